//! The graph in the DOT language, for people. Upstream: `garbagecollector/dump.go`.

use std::collections::HashSet;
use std::fmt::Write as _;

use super::graph::{Graph, Node};
use crate::objects::{OwnerReference, Uid};

/// A vertex of the text: a node of the graph, or an owner that is not in it.
struct Vertex<'a> {
    api_version: &'a str,
    kind: &'a str,
    namespace: &'a str,
    name: &'a str,
    being_deleted: bool,
    deleting_dependents: bool,
    is_virtual: bool,
    missing: bool,
}

impl<'a> Vertex<'a> {
    fn from_node(node: &'a Node) -> Vertex<'a> {
        let id = &node.identity;
        Vertex {
            api_version: &id.scope.api_version,
            kind: &id.scope.kind,
            namespace: &id.scope.namespace,
            name: &id.name,
            being_deleted: node.being_deleted,
            deleting_dependents: node.deleting_dependents,
            is_virtual: node.is_virtual,
            missing: false,
        }
    }

    /// Makes the vertex of an owner that has no node.
    fn missing(owner: &'a OwnerReference) -> Vertex<'a> {
        Vertex {
            api_version: &owner.api_version,
            kind: &owner.kind,
            namespace: "",
            name: &owner.name,
            being_deleted: false,
            deleting_dependents: false,
            is_virtual: false,
            missing: true,
        }
    }

    /// Returns the text that a drawing shows in the vertex.
    fn label(&self, uid: &str, group: &str, version: &str) -> String {
        let Vertex { kind, namespace, name, .. } = self;
        let dot = if group.is_empty() { "" } else { "." };
        let mut label =
            format!("uid={uid}\nnamespace={namespace}\n{kind}.{version}{dot}{group}/{name}\n");
        let conditions = [
            (self.being_deleted, "beingDeleted"),
            (self.deleting_dependents, "deletingDependents"),
            (self.is_virtual, "virtual"),
            (self.missing, "missingFromGraph"),
        ];
        let holding: Vec<&str> =
            conditions.iter().filter(|(holds, _)| *holds).map(|(_, name)| *name).collect();
        if !holding.is_empty() {
            label.push_str(&holding.join(","));
            label.push('\n');
        }
        label
    }

    /// Appends the definition of the vertex `uid` to `text`.
    fn write(&self, uid: &str, text: &mut String) {
        let (group, version) = self.api_version.rsplit_once('/').unwrap_or(("", self.api_version));
        let flag = |holds: bool| if holds { "true" } else { "false" };
        let _ = writeln!(text, "  {uid:?} [");
        for (key, value) in [
            ("label", &*self.label(uid, group, version)),
            ("group", group),
            ("version", version),
            ("kind", self.kind),
            ("namespace", self.namespace),
            ("name", self.name),
            ("uid", uid),
            ("missing", flag(self.missing)),
            ("beingDeleted", flag(self.being_deleted)),
            ("deletingDependents", flag(self.deleting_dependents)),
            ("virtual", flag(self.is_virtual)),
        ] {
            let _ = writeln!(text, "    {key}={value:?}");
        }
        text.push_str("  ];\n");
    }
}

impl Graph {
    /// Draws the graph in the DOT language: the nodes that have owners or dependents. With `uids`,
    /// only those nodes and all that are connected to them. Owners without a node are shown as
    /// missing, as often as they are referred to.
    pub fn to_dot(&self, uids: &[Uid]) -> String {
        let connected = if uids.is_empty() { None } else { Some(self.connected(uids)) };
        let is_shown = |node: &&Node| {
            (!node.dependents.is_empty() || !node.owners().is_empty())
                && connected.as_ref().is_none_or(|connected| connected.contains(&node.identity.uid))
        };
        let (mut vertices, mut edges) = (Vec::new(), Vec::new());
        for node in self.nodes.values().filter(is_shown) {
            let uid = node.identity.uid.to_string();
            for owner in node.owners() {
                edges.push((uid.clone(), owner.uid.to_string()));
                if !self.nodes.get(&owner.uid).is_some_and(|owner| is_shown(&owner)) {
                    vertices.push((owner.uid.to_string(), Vertex::missing(owner)));
                }
            }
            vertices.push((uid, Vertex::from_node(node)));
        }
        vertices.sort_by(|(a, _), (b, _)| a.cmp(b));
        edges.sort();

        let mut text = String::from("strict digraph full {\n");
        if !vertices.is_empty() {
            text.push_str("  // Node definitions.\n");
        }
        for (uid, vertex) in &vertices {
            vertex.write(uid, &mut text);
        }
        if !edges.is_empty() {
            text.push_str("  // Edge definitions.\n");
        }
        for (from, to) in &edges {
            let _ = writeln!(text, "  {from:?} -> {to:?};");
        }
        text.push_str("}\n");
        text
    }

    /// Returns the nodes that can be reached from `uids` by owner references, in both directions.
    fn connected<'a>(&'a self, uids: &'a [Uid]) -> HashSet<&'a Uid> {
        let mut connected = HashSet::new();
        let mut to_visit: Vec<&Uid> = uids.iter().collect();
        while let Some(uid) = to_visit.pop() {
            if let Some(node) = self.nodes.get(uid)
                && connected.insert(&node.identity.uid)
            {
                to_visit.extend(node.dependents.iter());
                to_visit.extend(node.owners().iter().map(|owner| &owner.uid));
            }
        }
        connected
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::graph::{Identity, Scope};
    use super::*;
    use crate::objects::Meta;

    fn observe(graph: &mut Graph, kind: &str, name: &str, meta: Value) {
        let scope = Scope {
            kind: kind.into(),
            api_version: if kind == "Pod" { "v1" } else { "apps/v1" }.into(),
            namespace: "a".into(),
        };
        let identity = Identity { scope: scope.shared(), name: name.into(), uid: Uid::new(name) };
        let meta: Meta = serde_json::from_value(meta).unwrap();
        graph.observe(identity, None, &meta, &mut |_| {});
    }

    fn owned_by(owner: &str) -> Value {
        json!({ "ownerReferences": [
            { "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": owner, "uid": owner },
        ]})
    }

    #[test]
    fn the_text_is_that_of_upstream() {
        let mut graph = Graph::default();
        assert_eq!(graph.to_dot(&[]), "strict digraph full {\n}\n");
        observe(&mut graph, "Pod", "alone", json!({}));
        let dying = json!({
            "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["foregroundDeletion"],
        });
        observe(&mut graph, "ReplicaSet", "set \"1\"", dying);
        observe(&mut graph, "Pod", "pod", owned_by("set \"1\""));
        observe(&mut graph, "Pod", "b", owned_by("virtual"));
        let expected = r#"strict digraph full {
  // Node definitions.
  "pod" [
    label="uid=pod\nnamespace=a\nPod.v1/pod\n"
    group=""
    version="v1"
    kind="Pod"
    namespace="a"
    name="pod"
    uid="pod"
    missing="false"
    beingDeleted="false"
    deletingDependents="false"
    virtual="false"
  ];
  "set \"1\"" [
    label="uid=set \"1\"\nnamespace=a\nReplicaSet.v1.apps/set \"1\"\nbeingDeleted,deletingDependents\n"
    group="apps"
    version="v1"
    kind="ReplicaSet"
    namespace="a"
    name="set \"1\""
    uid="set \"1\""
    missing="false"
    beingDeleted="true"
    deletingDependents="true"
    virtual="false"
  ];
  // Edge definitions.
  "pod" -> "set \"1\"";
}
"#;
        assert_eq!(graph.to_dot(&[Uid::new("pod")]), expected);
        assert_eq!(graph.to_dot(&[Uid::new("set \"1\""), Uid::new("unknown")]), expected);
        let all = graph.to_dot(&[]);
        assert!(all.contains("ReplicaSet.v1.apps/virtual\\nvirtual\\n\""), "{all}");
        assert!(
            all.contains("  \"b\" -> \"virtual\";\n  \"pod\" -> \"set \\\"1\\\"\";\n"),
            "{all}"
        );
        assert!(!all.contains("alone"), "neither owner nor dependent");
        assert_eq!(graph.to_dot(&[Uid::new("alone")]), "strict digraph full {\n}\n");

        graph.nodes.remove(&Uid::new("virtual"));
        let all = graph.to_dot(&[]);
        assert!(all.contains("apps/virtual\\nmissingFromGraph\\n\""), "{all}");
        assert_eq!(all.matches("    missing=\"true\"\n").count(), 1, "{all}");
    }
}
