//! Compares the content of creations. Most objects are compared by the updates that each manager
//! wants; those that are written only once are compared when they are created.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::diff::{Change, identified, identity, same};

/// Resources that are written once, with the fields that both managers must agree on. The
/// annotations of ReplicaSets are written again with each revision.
const WRITTEN_ONCE: &[(&str, &[&str])] = &[
    ("configmaps", &["metadata.annotations", "data"]),
    ("controllerrevisions.apps", &["metadata.labels", "metadata.ownerReferences", "data"]),
    ("jobs.batch", &["metadata.annotations", "metadata.ownerReferences", "spec"]),
    ("persistentvolumeclaims", &["metadata.labels", "metadata.ownerReferences", "spec"]),
    (
        "pods",
        &[
            "metadata.generateName",
            "metadata.labels",
            "metadata.annotations",
            "metadata.finalizers",
            "metadata.ownerReferences",
            "spec",
        ],
    ),
    (
        "replicasets.apps",
        &[
            "metadata.labels",
            "metadata.ownerReferences",
            "spec.selector",
            "spec.template",
            "spec.minReadySeconds",
        ],
    ),
    (
        "resourceclaims.resource.k8s.io",
        &["metadata.annotations", "metadata.ownerReferences", "spec"],
    ),
];

/// Resources whose labels, annotations and finalizers only their controllers write.
const NOTHING_ADDED: [&str; 3] = ["controllerrevisions.apps", "pods", "replicasets.apps"];

/// Final conditions: a manager that finds one writes nothing more.
const FINAL: &[(&str, &[&str])] =
    &[("jobs.batch", &["Complete", "Failed", "FailureTarget", "SuccessCriteriaMet"])];

/// The member that names the Node of a DaemonSet's Pod. It is not compared: a batch may begin with
/// any Node.
const NODE_OF_DAEMON_POD: &str = "matchFields";

/// Members of containers that admission changes: by registries' mirrors and by autoscalers.
const ADMITTED: [&str; 3] = ["image", "imagePullPolicy", "resources"];

/// Returns the fields of an object that are compared, as a map from their paths; `None` if objects
/// of this kind are not compared.
pub fn part(resource: &str, object: &Value) -> Option<Value> {
    let (_, fields) = WRITTEN_ONCE.iter().find(|(name, _)| *name == resource)?;
    let mut part = Map::new();
    for field in *fields {
        let value = field.split('.').fold(object, |value, name| &value[name]).clone();
        part.insert((*field).to_owned(), value);
    }
    Some(part.into())
}

/// Returns the differences between a created object and the one that this manager would have
/// created, both as returned by [`part`]. Fields that the API server and admission may have added
/// do not count.
pub fn differences(resource: &str, wanted: &Value, created: &Value) -> Vec<Change> {
    let mut found = Vec::new();
    append_unmet("", wanted, created, &mut found);
    let both = |field: &str| (&wanted[field], &created[field]);
    let (ours, theirs) = both("metadata.ownerReferences");
    if list(ours).len() < list(theirs).len() {
        push("metadata.ownerReferences", ours, theirs, &mut found);
    }
    if !NOTHING_ADDED.contains(&resource) {
        return found;
    }
    for field in ["metadata.labels", "metadata.annotations"] {
        let (ours, theirs) = both(field);
        for (key, value) in theirs.as_object().into_iter().flatten() {
            // Admission adds others.
            let is_plain = field == "metadata.labels" && !key.contains('/');
            if ours.get(key).is_none() && (is_plain || is_of_a_controller(key)) {
                push(&format!("{field}.{key}"), &Value::Null, value, &mut found);
            }
        }
    }
    let (ours, theirs) = both("metadata.finalizers");
    for finalizer in list(theirs) {
        if finalizer.as_str().is_some_and(is_of_a_controller) && !list(ours).contains(finalizer) {
            push("metadata.finalizers", &Value::Null, finalizer, &mut found);
        }
    }
    found
}

/// Returns the final conditions, such as a Job's `Complete`, that this manager wants and that
/// `live` lacks or has for another reason. Empty if `live` has no final condition yet: then the
/// manager in charge was not faster.
pub fn other_verdicts(resource: &str, wanted: &Value, live: &Value) -> Vec<Change> {
    let Some((_, types)) = FINAL.iter().find(|(name, _)| *name == resource) else {
        return Vec::new();
    };
    let final_reasons = |object: &'_ Value| -> Vec<(String, Value)> {
        let is_final = |condition: &&Value| {
            condition["status"] == "True"
                && condition["type"].as_str().is_some_and(|name| types.contains(&name))
        };
        list(&object["status"]["conditions"])
            .iter()
            .filter(is_final)
            .map(|condition| {
                let name = condition["type"].as_str().unwrap_or_default();
                (format!("status.conditions[type={name}].reason"), condition["reason"].clone())
            })
            .collect()
    };
    let (ours, theirs) = (final_reasons(wanted), final_reasons(live));
    if theirs.is_empty() {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (path, reason) in ours {
        let other = theirs.iter().find(|(other, _)| *other == path);
        let other = other.map_or(Value::Null, |(_, reason)| reason.clone());
        if other != reason {
            push(&path, &reason, &other, &mut found);
        }
    }
    found
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Returns whether a name's domain is that of a controller; admission uses others.
fn is_of_a_controller(name: &str) -> bool {
    let domain = name.split_once('/').map_or("", |(domain, _)| domain);
    domain.ends_with(".kubernetes.io") && !domain.starts_with("kubectl.")
}

fn push(path: &str, wanted: &Value, created: &Value, into: &mut Vec<Change>) {
    into.push(Change { path: path.to_owned(), old: created.clone(), new: wanted.clone() });
}

/// Appends the fields of `wanted` that `created` lacks or has with another value. Fields that only
/// `created` has do not count: the API server and admission add some.
fn append_unmet(path: &str, wanted: &Value, created: &Value, into: &mut Vec<Change>) {
    if same(wanted, created) {
        return;
    }
    match (wanted, created) {
        (Value::Null, _) => {}
        (Value::Object(wanted), _) if wanted.is_empty() => {}
        (Value::Array(wanted), _) if wanted.is_empty() => {}
        (Value::Object(wanted), Value::Object(created)) => {
            // `containers`, `initContainers` and `ephemeralContainers`.
            let is_container = path.contains("ontainers[");
            for (key, value) in wanted {
                if key == NODE_OF_DAEMON_POD || (is_container && ADMITTED.contains(&key.as_str())) {
                    continue;
                }
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                append_unmet(&path, value, created.get(key).unwrap_or(&Value::Null), into);
            }
        }
        (Value::Array(wanted), Value::Array(created)) => match identity(wanted, created) {
            Some(key) => {
                let others: HashMap<&str, &Value> = identified(created, key).collect();
                for (id, item) in identified(wanted, key) {
                    let path = format!("{path}[{key}={id}]");
                    append_unmet(&path, item, others.get(id).unwrap_or(&&Value::Null), into);
                }
            }
            None => {
                let mut next = 0;
                for (index, item) in wanted.iter().enumerate() {
                    let has = |other: &Value| {
                        let mut found = Vec::new();
                        append_unmet(path, item, other, &mut found);
                        found.is_empty()
                    };
                    // Both probably have the same order, so the search continues where the last one
                    // ended.
                    let (before, behind) = created.split_at(next);
                    let place = behind.iter().chain(before).position(has);
                    if let Some(place) = place {
                        next = (next + place + 1) % created.len();
                    } else {
                        let other = created.get(index).unwrap_or(&Value::Null);
                        push(&format!("{path}[{index}]"), item, other, into);
                    }
                }
            }
        },
        _ => push(path, wanted, created, into),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(more: Value) -> Value {
        let mut pod = json!({
            "metadata": { "generateName": "web-", "labels": { "app": "web" } },
            "spec": {
                "containers": [{ "name": "main", "image": "one", "env": [{ "name": "A" }] }],
                "tolerations": [{ "key": "a", "operator": "Exists" }],
            },
        });
        for (pointer, value) in more.as_object().into_iter().flatten() {
            *pod.pointer_mut(pointer).expect("a field") = value.clone();
        }
        pod
    }

    #[test]
    fn a_created_object_may_have_more_but_not_less() {
        for (created, paths) in [
            (json!({}), vec![]),
            (
                json!({ "/metadata/labels": { "app": "web", "mesh.example.com/on": "true" } }),
                vec![],
            ),
            (
                json!({ "/metadata/labels": { "app": "web", "hash": "1" } }),
                vec!["metadata.labels.hash"],
            ),
            (json!({ "/metadata/labels": { "app": "other" } }), vec!["metadata.labels.app"]),
            (
                json!({ "/spec/tolerations": [{ "key": "b" }, { "key": "a", "operator": "Exists" }] }),
                vec![],
            ),
            (json!({ "/spec/tolerations": [{ "key": "b" }] }), vec!["spec.tolerations[0]"]),
            (json!({ "/spec/containers/0/image": "mirror/one" }), vec![]),
            (
                json!({ "/spec/containers/0/env": [] }),
                vec!["spec.containers[name=main].env[name=A]"],
            ),
        ] {
            let (wanted, made) = (part("pods", &pod(json!({}))), part("pods", &pod(created)));
            let found = differences("pods", &wanted.expect("compared"), &made.expect("compared"));
            let found: Vec<&str> = found.iter().map(|change| change.path.as_str()).collect();
            assert_eq!(found, paths);
        }
        assert_eq!(part("endpointslices.discovery.k8s.io", &json!({})), None);
    }

    #[test]
    fn a_final_condition_of_another_kind_is_another_verdict() {
        let job = |name: &str, reason: &str| {
            let condition = json!({ "type": name, "status": "True", "reason": reason });
            json!({ "status": { "conditions": [condition] } })
        };
        for (wanted, live, count) in [
            (job("Failed", "DeadlineExceeded"), job("Failed", "DeadlineExceeded"), 0),
            (job("Failed", "DeadlineExceeded"), job("Failed", "BackoffLimitExceeded"), 1),
            (job("Complete", "CompletionsReached"), job("Failed", "BackoffLimitExceeded"), 1),
            (job("Suspended", "JobSuspended"), job("Failed", "BackoffLimitExceeded"), 0),
            (job("Failed", "DeadlineExceeded"), json!({}), 0),
        ] {
            let found = other_verdicts("jobs.batch", &wanted, &live);
            assert_eq!(found.len(), count, "{wanted} {live}");
            assert!(other_verdicts("pods", &wanted, &live).is_empty());
        }
    }

    #[test]
    fn finalizers_of_controllers_are_all_wanted() {
        let object = |finalizers: Value| json!({ "metadata": { "finalizers": finalizers } });
        for (wanted, created, count) in [
            (json!(["batch.kubernetes.io/a"]), json!(["batch.kubernetes.io/a"]), 0),
            (json!(null), json!(["batch.kubernetes.io/a"]), 1),
            (json!(null), json!(["kubernetes.io/protection"]), 0),
            (json!(["a"]), json!(null), 1),
            (json!(["a"]), json!(["b"]), 1),
        ] {
            let of = |finalizers: Value| part("pods", &object(finalizers)).expect("compared");
            let found = differences("pods", &of(wanted), &of(created));
            assert_eq!(found.len(), count, "{found:?}");
        }
    }
}
