//! Pods made from a template. Upstream: `GetPodFromTemplate`, and the changes of the workload
//! controllers to the pods that they create.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::controllers::Error;
use crate::lookup::Lookup;
use crate::objects::{
    Istr, Labels, Meta, OwnerReference, RawObject, Resource, Template, from_json,
    is_dns1123_subdomain,
};

/// A pod to be created. Its spec is the template's, byte for byte except for edits, so fields that
/// this build does not know reach the pod.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NewPod {
    api_version: &'static str,
    kind: &'static str,
    pub metadata: NewPodMeta,
    spec: Option<Arc<RawValue>>,
}

/// A pod as it is sent. All pods that an owner creates in one sync may share it.
pub struct EncodedPod {
    pub metadata: NewPodMeta,
    pub body: Box<RawValue>,
}

/// Labels, annotations and finalizers of a template's metadata reach the pod, as upstream.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NewPodMeta {
    /// Wins over `generate_name`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub generate_name: String,
    #[serde(skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    #[serde(skip_serializing_if = "Labels::is_empty")]
    pub annotations: Labels,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub finalizers: Vec<Istr>,
    pub owner_references: Vec<OwnerReference>,
}

impl NewPod {
    /// Makes a pod of `owner` under a generated name.
    pub fn new<O: Resource>(owner: &Meta, template: &Template) -> Result<NewPod, Error> {
        #[derive(Deserialize)]
        struct SpecOf {
            #[serde(default)]
            spec: Option<Box<RawValue>>,
        }
        let SpecOf { spec } = from_json(template.json())?;
        Ok(NewPod {
            api_version: "v1",
            kind: "Pod",
            metadata: NewPodMeta {
                name: String::new(),
                generate_name: name_prefix(&owner.name),
                labels: template.labels.clone(),
                annotations: template.annotations.clone(),
                finalizers: template.finalizers.clone(),
                owner_references: vec![owner.controller_ref::<O>()],
            },
            spec: spec.map(Arc::from),
        })
    }

    /// Edits the spec. The pod is unchanged when `change` fails.
    pub fn edit_spec(
        &mut self,
        change: impl FnOnce(&mut PodSpecEditor) -> Result<(), serde_json::Error>,
    ) -> Result<(), Error> {
        let text = self.spec.as_ref().map_or("null", |spec| spec.get());
        let mut editor = PodSpecEditor(RawObject::parse(text)?);
        change(&mut editor)?;
        self.spec = Some(Arc::from(serde_json::value::to_raw_value(&editor.0)?));
        Ok(())
    }

    pub fn encode(self) -> Result<EncodedPod, Error> {
        let body = serde_json::value::to_raw_value(&self)?;
        Ok(EncodedPod { metadata: self.metadata, body })
    }
}

impl NewPodMeta {
    /// Adds a label, or changes it.
    pub fn set_label(&mut self, key: &str, value: &str) {
        self.labels = self.labels.iter().chain([(key, value)]).collect();
    }

    /// Adds an annotation, or changes it.
    pub fn set_annotation(&mut self, key: &str, value: &str) {
        self.annotations = self.annotations.iter().chain([(key, value)]).collect();
    }

    /// Adds a finalizer, if it is not there.
    pub fn add_finalizer(&mut self, name: &str) {
        if !self.finalizers.iter().any(|known| known == name) {
            self.finalizers.push(Istr::new(name));
        }
    }
}

/// The result of an edit of a pod's spec.
type Edited = Result<(), serde_json::Error>;

/// The spec of a pod to be created. An edit touches the named field and nothing else; it fails
/// where the template has a value of another type, which the API server does not store.
pub struct PodSpecEditor(RawObject);

impl PodSpecEditor {
    pub fn set_hostname(&mut self, name: &str) -> Edited {
        self.0.set("hostname", name)
    }

    pub fn set_subdomain(&mut self, name: &str) -> Edited {
        self.0.set("subdomain", name)
    }

    /// Binds the pod to a node, past the scheduler.
    pub fn set_node_name(&mut self, name: &str) -> Edited {
        self.0.set("nodeName", name)
    }

    /// Lets the pod be scheduled together with the others of a PodGroup.
    pub fn set_scheduling_group(&mut self, pod_group: &str) -> Edited {
        self.0.set("schedulingGroup", json!({ "podGroupName": pod_group }))
    }

    /// Whether the pod uses the network of its node.
    pub fn is_on_host_network(&self) -> bool {
        self.0.get("hostNetwork").is_some_and(|value| value.get() == "true")
    }

    /// Adds scheduling gates by name, each once.
    pub fn add_scheduling_gates(&mut self, names: &[&str]) -> Edited {
        self.0.edit_list("schedulingGates", |gates| {
            for name in names {
                if !has_name(gates, name)? {
                    gates.push(raw(&json!({ "name": name }))?);
                }
            }
            Ok(())
        })
    }

    /// Puts claims, as pairs of volume and claim name, before the template's volumes, and drops
    /// those of the same names. Upstream: `updateStorage`.
    pub fn put_claims<'a>(
        &mut self,
        claims: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Edited {
        let volume = |(name, claim): (&str, &str)| {
            (name.to_owned(), json!({"name": name, "persistentVolumeClaim": {"claimName": claim}}))
        };
        self.put_volumes(claims.into_iter().map(volume).collect())
    }

    /// Puts volumes, as pairs of name and JSON, before those of the template, and drops those of
    /// the same names.
    pub fn put_volumes(&mut self, volumes: Vec<(String, Value)>) -> Edited {
        if volumes.is_empty() {
            return Ok(());
        }
        self.0.edit_list("volumes", |list| {
            let known = Lookup::new(&volumes, |(name, _)| name.as_str());
            let mut all =
                volumes.iter().map(|(_, volume)| raw(volume)).collect::<Result<Vec<_>, _>>()?;
            for volume in list.drain(..) {
                if !known.contains(&Named::parse(&volume)?.name) {
                    all.push(volume);
                }
            }
            *list = all;
            Ok(())
        })
    }

    /// Restricts the scheduler to this node; replaces the required terms of the template.
    /// Upstream: `ReplaceDaemonSetPodNodeNameNodeAffinity`.
    pub fn pin_to_node(&mut self, node: &str) -> Edited {
        let terms = json!([{
            "matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}],
        }]);
        self.0.edit("affinity", |affinity| {
            affinity.edit("nodeAffinity", |nodes| {
                nodes.edit("requiredDuringSchedulingIgnoredDuringExecution", |required| {
                    required.set("nodeSelectorTerms", terms)
                })
            })
        })
    }

    /// Makes the pod tolerate a taint for ever: changes the tolerations of this taint, or adds one.
    /// Upstream: `AddOrUpdateTolerationInPodSpec`, for the operator `Exists`.
    pub fn tolerate(&mut self, key: &str, effect: &str) -> Edited {
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        struct Toleration {
            key: Istr,
            operator: Istr,
            value: Istr,
            effect: Istr,
            toleration_seconds: Option<i64>,
        }
        let wanted = raw(&json!({"key": key, "operator": "Exists", "effect": effect}))?;
        let mut known = false;
        self.0.edit_list("tolerations", |list| {
            for one in list.iter_mut() {
                let found: Toleration = from_json(one.get())?;
                let same_taint = found.key == *key
                    && found.effect == *effect
                    && found.operator == "Exists"
                    && found.value.is_empty();
                if same_taint {
                    known = true;
                    if found.toleration_seconds.is_some() {
                        *one = wanted.clone();
                    }
                }
            }
            if !known {
                list.push(wanted);
            }
            Ok(())
        })
    }

    /// Adds an environment variable to the init containers and containers that have none of its
    /// name. `source` is its `value` or its `valueFrom`. Upstream:
    /// `addCompletionIndexEnvVariables`.
    pub fn add_env(&mut self, name: &str, source: &EnvSource<'_>) -> Edited {
        let variable = raw(&match source {
            EnvSource::Value(value) => json!({"name": name, "value": value}),
            EnvSource::Field(path) => {
                json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}})
            }
        })?;
        for containers in ["initContainers", "containers"] {
            if self.0.list(containers)?.is_empty() {
                continue;
            }
            self.0.edit_list(containers, |list| {
                for container in list.iter_mut() {
                    let mut object = RawObject::parse(container.get())?;
                    if has_name(&object.list("env")?, name)? {
                        continue;
                    }
                    object.edit_list("env", |env| {
                        env.push(variable.clone());
                        Ok(())
                    })?;
                    *container = serde_json::value::to_raw_value(&object)?;
                }
                Ok(())
            })?;
        }
        Ok(())
    }
}

/// The source of the value of an environment variable.
pub enum EnvSource<'a> {
    Value(&'a str),
    /// A field of the pod: `metadata.annotations['...']`.
    Field(&'a str),
}

/// An item of a list whose items have names.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Named {
    name: Istr,
}

impl Named {
    fn parse(item: &RawValue) -> Result<Named, serde_json::Error> {
        from_json(item.get())
    }
}

/// Returns whether one of `items` has this name.
fn has_name(items: &[Box<RawValue>], name: &str) -> Result<bool, serde_json::Error> {
    for item in items {
        if Named::parse(item)?.name == *name {
            return Ok(true);
        }
    }
    Ok(false)
}

fn raw(value: &Value) -> Result<Box<RawValue>, serde_json::Error> {
    serde_json::value::to_raw_value(value)
}

/// Returns the prefix of generated names: `owner-`, or `owner` alone where the dash would make a
/// malformed name. Upstream: `getPodsPrefix`.
fn name_prefix(owner: &str) -> String {
    let prefix = format!("{owner}-");
    // As upstream: the last letter and the dash become an `a`, since no name ends with a dash.
    let masked = match prefix.char_indices().nth_back(1) {
        Some((at, _)) => format!("{}a", &prefix[..at]),
        None => prefix.clone(),
    };
    if is_dns1123_subdomain(&masked) { prefix } else { owner.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::ReplicaSet;

    #[test]
    fn a_pod_is_its_template() {
        let owner = Meta { name: "web-1".into(), uid: "u".into(), ..Meta::default() };
        let template: Template = serde_json::from_value(json!({
            "metadata": {
                "name": "not taken", "labels": {"a": "b"}, "annotations": {"c": "d"}, "finalizers": ["x/y"]
            },
            "spec": {"containers": [{"name": "c", "brandNew": [1, 2]}]},
        }))
        .unwrap();
        let pod = NewPod::new::<ReplicaSet>(&owner, &template).unwrap();
        assert_eq!(
            serde_json::to_value(&pod).unwrap(),
            json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {
                    "generateName": "web-1-", "labels": {"a": "b"}, "annotations": {"c": "d"},
                    "finalizers": ["x/y"],
                    "ownerReferences": [{
                        "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-1", "uid": "u",
                        "controller": true, "blockOwnerDeletion": true,
                    }],
                },
                "spec": {"containers": [{"name": "c", "brandNew": [1, 2]}]},
            })
        );
    }

    #[test]
    fn the_prefix_has_a_dash_where_names_may() {
        let long = "a".repeat(253);
        for (owner, prefix) in [
            ("web", "web-"),
            ("a.b", "a.b-"),
            ("Web", "Web"),
            ("", ""),
            (&long, &*(long.clone() + "-")),
        ] {
            assert_eq!(name_prefix(owner), prefix);
        }
        assert_eq!(name_prefix(&(long + "a")), "a".repeat(254));
    }

    /// Unknown fields at every level, with numbers, escapes and an order that a parser would
    /// change.
    const UNUSUAL_TEMPLATE: &str = r#"{"metadata":{"labels":{"a":"b"},"brandNew":1},"spec":{"z":1.50,"containers":[{"name":"c","q":1e400,"env":[{"name":"A","value":"\u003c\/","new":{"x":[ ]}}],"probe":{"n":12345678901234567890123}},{"name":"d"}],"initContainers":[{"y":"\u00e9","name":"i","env":[{"name":"X"}]}],"volumes":[{"name":"data","emptyDir":{"new":1.0}},{"new":2.50,"name":"other"}],"affinity":{"podAffinity":{"k":0.10},"nodeAffinity":{"preferred":[1.0],"requiredDuringSchedulingIgnoredDuringExecution":{"u":1e2,"nodeSelectorTerms":[{"matchExpressions":[]}]}}},"tolerations":[{"key":"t","operator":"Exists","effect":"NoExecute","tolerationSeconds":5},{"key":"u","operator":"Exists","effect":"NoExecute","new":1.0}],"hostname":"old","restartPolicy":"OnFailure","hostNetwork":true}}"#;

    /// The pod of this template, and the text of its spec.
    fn unusual_pod() -> (NewPod, String) {
        let template: Template = serde_json::from_str(UNUSUAL_TEMPLATE).unwrap();
        let owner = Meta { name: "web".into(), uid: "u".into(), ..Meta::default() };
        let pod = NewPod::new::<ReplicaSet>(&owner, &template).unwrap();
        let spec = pod.spec.as_ref().unwrap().get().to_owned();
        (pod, spec)
    }

    #[test]
    fn a_spec_keeps_every_byte_that_is_not_edited() {
        type Edit = fn(&mut PodSpecEditor) -> Edited;
        type Case<'a> = (&'a str, Edit, &'a [(&'a str, &'a str)]);
        // The edit, the replaced text, and the new text; an addition at the end replaces the last
        // brace.
        let table: &[Case<'_>] = &[
            ("nothing", |_| Ok(()), &[]),
            (
                "host name, subdomain and node",
                |spec| {
                    spec.set_hostname("web-0")?;
                    spec.set_subdomain("web")?;
                    spec.set_node_name("n1")
                },
                &[
                    (r#""hostname":"old""#, r#""hostname":"web-0""#),
                    (
                        r#""hostNetwork":true}"#,
                        r#""hostNetwork":true,"subdomain":"web","nodeName":"n1"}"#,
                    ),
                ],
            ),
            (
                "claims come first, and replace volumes of their name",
                |spec| spec.put_claims([("data", "data-web-0"), ("logs", "logs-web-0")]),
                &[(
                    r#"{"name":"data","emptyDir":{"new":1.0}},"#,
                    r#"{"name":"data","persistentVolumeClaim":{"claimName":"data-web-0"}},{"name":"logs","persistentVolumeClaim":{"claimName":"logs-web-0"}},"#,
                )],
            ),
            (
                "the required node terms are replaced, the rest of the affinity stays",
                |spec| spec.pin_to_node("n1"),
                &[(
                    r#"[{"matchExpressions":[]}]"#,
                    r#"[{"matchFields":[{"key":"metadata.name","operator":"In","values":["n1"]}]}]"#,
                )],
            ),
            (
                "a toleration that ends is replaced, one for ever stays, a missing one is added",
                |spec| {
                    spec.tolerate("t", "NoExecute")?;
                    spec.tolerate("u", "NoExecute")?;
                    spec.tolerate("v", "NoSchedule")
                },
                &[
                    (
                        r#"{"key":"t","operator":"Exists","effect":"NoExecute","tolerationSeconds":5}"#,
                        r#"{"effect":"NoExecute","key":"t","operator":"Exists"}"#,
                    ),
                    (
                        r#""new":1.0}],"hostname""#,
                        r#""new":1.0},{"effect":"NoSchedule","key":"v","operator":"Exists"}],"hostname""#,
                    ),
                ],
            ),
            (
                "a variable is added where its name is free",
                |spec| spec.add_env("X", &EnvSource::Field("metadata.labels['i']")),
                &[
                    (
                        r#""new":{"x":[ ]}}],"probe""#,
                        r#""new":{"x":[ ]}},{"name":"X","valueFrom":{"fieldRef":{"fieldPath":"metadata.labels['i']"}}}],"probe""#,
                    ),
                    (
                        r#"{"name":"d"}"#,
                        r#"{"name":"d","env":[{"name":"X","valueFrom":{"fieldRef":{"fieldPath":"metadata.labels['i']"}}}]}"#,
                    ),
                ],
            ),
            (
                "a variable with a value",
                |spec| spec.add_env("A", &EnvSource::Value("<1>")),
                &[
                    (r#"{"name":"d"}"#, r#"{"name":"d","env":[{"name":"A","value":"<1>"}]}"#),
                    (r#"[{"name":"X"}]"#, r#"[{"name":"X"},{"name":"A","value":"<1>"}]"#),
                ],
            ),
            (
                "scheduling gates",
                |spec| spec.add_scheduling_gates(&["a/b", "a/b"]),
                &[(
                    r#""hostNetwork":true}"#,
                    r#""hostNetwork":true,"schedulingGates":[{"name":"a/b"}]}"#,
                )],
            ),
        ];
        for (name, edit, changes) in table {
            let (mut pod, before) = unusual_pod();
            pod.edit_spec(edit).unwrap();
            let mut expected = before;
            for (old, new) in *changes {
                assert_eq!(expected.matches(old).count(), 1, "{name}: {old}");
                expected = expected.replace(old, new);
            }
            assert_eq!(pod.spec.as_ref().unwrap().get(), expected, "{name}");
            // The bytes reach the request.
            assert!(serde_json::to_string(&pod).unwrap().contains(&expected), "{name}");
        }
        let (mut pod, _) = unusual_pod();
        pod.edit_spec(|spec| {
            assert!(spec.is_on_host_network());
            Ok(())
        })
        .unwrap();
    }

    #[test]
    fn an_empty_spec_can_be_edited_and_a_malformed_one_is_an_error() {
        let owner = Meta { name: "web".into(), ..Meta::default() };
        let pod = |spec: &str| {
            let text = format!(r#"{{"metadata":{{"labels":{{"a":"b"}}}},"spec":{spec}}}"#);
            let template: Template = serde_json::from_str(&text).unwrap();
            NewPod::new::<ReplicaSet>(&owner, &template).unwrap()
        };
        for spec in ["null", "{}", r#"{"affinity":null,"tolerations":null,"volumes":null}"#] {
            let mut pod = pod(spec);
            pod.edit_spec(|spec| {
                spec.pin_to_node("n")?;
                spec.tolerate("k", "NoExecute")?;
                spec.put_claims([("v", "c")])?;
                spec.add_env("A", &EnvSource::Value("1"))
            })
            .unwrap();
            let spec: Value = serde_json::from_str(pod.spec.as_ref().unwrap().get()).unwrap();
            assert_eq!(spec["volumes"][0]["name"], "v");
            assert_eq!(spec["tolerations"][0]["key"], "k");
            assert!(
                spec["affinity"]["nodeAffinity"].is_object() && spec.get("containers").is_none()
            );
        }
        let mut malformed = pod(r#"{"volumes":7}"#);
        assert!(malformed.edit_spec(|spec| spec.put_claims([("v", "c")])).is_err());
        assert_eq!(malformed.spec.unwrap().get(), r#"{"volumes":7}"#);
    }

    #[test]
    fn metadata_can_be_edited() {
        let (mut pod, _) = unusual_pod();
        pod.metadata.name = "web-0".to_owned();
        pod.metadata.generate_name.clear();
        pod.metadata.set_label("a", "c");
        pod.metadata.set_label("i", "0");
        pod.metadata.set_annotation("x", "y");
        pod.metadata.add_finalizer("f");
        pod.metadata.add_finalizer("f");
        let json = serde_json::to_value(&pod.metadata).unwrap();
        assert_eq!(json["labels"], json!({"a": "c", "i": "0"}));
        assert_eq!(
            (&json["annotations"], &json["finalizers"]),
            (&json!({"x": "y"}), &json!(["f"]))
        );
        assert_eq!((&json["name"], json.get("generateName")), (&json!("web-0"), None));
    }
}
