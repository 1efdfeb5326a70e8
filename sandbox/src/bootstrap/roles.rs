//! The default roles and bindings.
//! Upstream: `plugin/pkg/auth/authorizer/rbac/bootstrappolicy`.

use serde_json::{Value, json};

use crate::api::Api;
use crate::kinds::RBAC_GROUP as GROUP;
use crate::status::ApiResult;

const TABLE: &str = include_str!("roles.txt");
/// The roles of controllers that gates turn on, and what gates add to the others.
const GATED: &str = include_str!("gated_roles.txt");
const KUBEADM: &str = include_str!("kubeadm_roles.txt");

/// Parses a table of roles and bindings into pairs of resource and object. A line that is not
/// indented names an object; the indented lines below it are the rules of a role.
fn objects(table: &str) -> Vec<(&'static str, Value)> {
    let mut objects: Vec<(&'static str, Value)> = Vec::new();
    for line in table.lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match (line.starts_with(' '), words.as_slice()) {
            (true, words) => {
                if let Some((_, role)) = objects.last_mut() {
                    match role["rules"].as_array_mut() {
                        Some(rules) => rules.push(rule(words)),
                        None => role["rules"] = json!([rule(words)]),
                    }
                }
            }
            (false, [what @ ("role" | "clusterrole"), name, labels @ ..]) => {
                objects.push(role(what, name, labels));
            }
            (false, [what @ ("rolebinding" | "clusterrolebinding"), name, to, subjects @ ..]) => {
                objects.push(binding(what, name, to, subjects));
            }
            _ => {}
        }
    }
    objects
}

/// Builds a rule from its words: verbs and paths, or verbs, groups, resources and perhaps names.
fn rule(words: &[&str]) -> Value {
    let each = |words: &str| -> Value {
        words.split(',').map(|word| if word == "core" { "" } else { word }).collect()
    };
    match words {
        [verbs, paths] => json!({ "verbs": each(verbs), "nonResourceURLs": each(paths) }),
        [verbs, groups, resources] => json!({
            "verbs": each(verbs), "apiGroups": each(groups), "resources": each(resources),
        }),
        [verbs, groups, resources, names, ..] => json!({
            "verbs": each(verbs), "apiGroups": each(groups), "resources": each(resources),
            "resourceNames": each(names),
        }),
        _ => Value::Null,
    }
}

/// Builds an RBAC object without rules, with the labels of the server's own roles.
///
/// `name`: `NAMESPACE/NAME`, or `NAME` in the cluster scope.
fn named(kind: &str, name: &str) -> Value {
    let mut object = json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": kind,
        "metadata": {
            "name": name,
            "labels": { "kubernetes.io/bootstrapping": "rbac-defaults" },
            "annotations": { "rbac.authorization.kubernetes.io/autoupdate": "true" },
        },
    });
    if let Some((namespace, name)) = name.split_once('/') {
        object["metadata"]["namespace"] = namespace.into();
        object["metadata"]["name"] = name.into();
    }
    object
}

/// Builds a role without rules from a line of the table, and returns it with its resource.
fn role(what: &str, name: &str, labels: &[&str]) -> (&'static str, Value) {
    let (resource, kind) = match what {
        "role" => ("roles", "Role"),
        _ => ("clusterroles", "ClusterRole"),
    };
    let mut role = named(kind, name);
    for label in labels {
        let key = |label: &str| format!("{GROUP}/{label}");
        if let Some(label) = label.strip_prefix("label=") {
            role["metadata"]["labels"][key(label)] = "true".into();
        } else if let Some(label) = label.strip_prefix("from=") {
            let mut labels = json!({});
            labels[key(label)] = "true".into();
            role["aggregationRule"] =
                json!({ "clusterRoleSelectors": [{ "matchLabels": labels }] });
        }
    }
    (resource, role)
}

/// Builds a binding from the words of its line: the role as `KIND/NAME` or `NAME` of a ClusterRole,
/// the subjects as `account:NAMESPACE/NAME`, `group:NAME` or `user:NAME`.
fn binding(what: &str, name: &str, to: &str, subjects: &[&str]) -> (&'static str, Value) {
    let (resource, kind) = match what {
        "rolebinding" => ("rolebindings", "RoleBinding"),
        _ => ("clusterrolebindings", "ClusterRoleBinding"),
    };
    let (of_kind, role) = to.split_once('/').unwrap_or(("ClusterRole", to));
    let mut binding = named(kind, name);
    binding["roleRef"] = json!({ "apiGroup": GROUP, "kind": of_kind, "name": role });
    let subject = |subject: &&str| {
        let (kind, name) = subject.split_once(':')?;
        let by_name = |kind: &str| json!({ "apiGroup": GROUP, "kind": kind, "name": name });
        Some(match (kind, name.split_once('/')) {
            ("account", Some((namespace, name))) => {
                json!({ "kind": "ServiceAccount", "name": name, "namespace": namespace })
            }
            ("group", _) => by_name("Group"),
            _ => by_name("User"),
        })
    };
    let subjects: Vec<Value> = subjects.iter().filter_map(subject).collect();
    if !subjects.is_empty() {
        binding["subjects"] = subjects.into();
    }
    (resource, binding)
}

/// Creates the default roles and bindings, if the kinds are served.
pub fn create(api: &Api) -> ApiResult<()> {
    if api.registry.find(GROUP, "v1", "clusterroles").is_none() {
        return Ok(());
    }
    let mut all = objects(TABLE);
    // Upstream has these roles only where the kind is served.
    if api.registry.all().iter().any(|kind| kind.resource.kind == "DeviceTaintRule") {
        all.extend(objects(GATED));
    }
    // kubeadm creates these, so the API server does not update them.
    all.extend(objects(KUBEADM).into_iter().map(|(resource, mut object)| {
        if let Some(meta) = object["metadata"].as_object_mut() {
            meta.retain(|field, _| field != "labels" && field != "annotations");
        }
        (resource, object)
    }));
    for (resource, object) in all {
        api.create_value(GROUP, resource, object)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_table_is_read() {
        let objects = objects(TABLE);
        let lines = TABLE.lines().filter(|line| !line.starts_with('#'));
        let (rules, named): (Vec<_>, Vec<_>) = lines.partition(|line| line.starts_with(' '));
        assert_eq!(objects.len(), named.len());
        let all = objects.iter().flat_map(|(_, object)| object["rules"].as_array()).flatten();
        assert_eq!(all.filter(|rule| rule.is_object()).count(), rules.len());
        let find = |name: &str, resource: &str| {
            let is = |(of, object): &&(&str, Value)| {
                *of == resource && object["metadata"]["name"] == name
            };
            objects.iter().find(is).map(|(_, object)| object).unwrap()
        };
        let rules = json!([
            { "verbs": ["*"], "apiGroups": ["*"], "resources": ["*"] },
            { "verbs": ["*"], "nonResourceURLs": ["*"] },
        ]);
        assert_eq!(find("cluster-admin", "clusterroles")["rules"], rules);
        let edit = find("edit", "clusterroles");
        let label = "rbac.authorization.k8s.io/aggregate-to-admin";
        assert_eq!(edit["metadata"]["labels"][label], "true");
        let from = json!({ "rbac.authorization.k8s.io/aggregate-to-edit": "true" });
        assert_eq!(edit["aggregationRule"]["clusterRoleSelectors"][0]["matchLabels"], from);
        let locking = find("system::leader-locking-kube-controller-manager", "rolebindings");
        assert_eq!(locking["metadata"]["namespace"], "kube-system");
        assert_eq!(locking["roleRef"]["kind"], "Role");
        assert_eq!(locking["subjects"][0]["kind"], "User");
        let account = json!({ "kind": "ServiceAccount", "name": "kube-controller-manager",
            "namespace": "kube-system" });
        assert_eq!(locking["subjects"][1], account);
    }
}
