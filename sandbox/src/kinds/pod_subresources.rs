//! The pod's subresources `ephemeralcontainers` and `resize`: what they change, and the faults of a
//! change. Upstream: `podEphemeralContainersStrategy`, `podResizeStrategy` and
//! `pkg/apis/core/validation`.

use serde_json::Value;

use super::fault::{duplicate, forbidden, invalid, not_found};
use super::json::{list, list_mut, restore, set, text};
use super::pod::qos_class;
use super::pod_rules;
use crate::status::Cause;

const EPHEMERAL: &str = "ephemeralcontainers";
/// Both kinds of containers that are resized.
const RESIZED: [&str; 2] = ["containers", "initContainers"];
const MIRROR: &str = "kubernetes.io~1config.mirror";

/// Returns the old pod with the part of the new one that the subresource changes: the ephemeral
/// containers, or the resources of containers.
pub fn with_change(subresource: &str, new: &Value, old: &Value) -> Value {
    let mut whole = old.clone();
    set(&mut whole, "metadata", new.get("metadata").cloned().unwrap_or_default());
    // These stay: only members such as the resource version come from the new one.
    for key in ["labels", "annotations", "finalizers", "ownerReferences"] {
        restore(&mut whole["metadata"], old.get("metadata").unwrap_or(&Value::Null), key);
    }
    if subresource == EPHEMERAL {
        restore(&mut whole["spec"], &new["spec"], "ephemeralContainers");
        return whole;
    }
    if !changed_containers(new, old).is_empty() {
        // Its validation refuses this.
        for part in RESIZED {
            restore(&mut whole["spec"], &new["spec"], part);
        }
        return whole;
    }
    restore(&mut whole["spec"], &new["spec"], "resources");
    for part in RESIZED {
        let pointer = format!("/spec/{part}");
        for (n, container) in list_mut(&mut whole, &pointer).iter_mut().enumerate() {
            for key in ["resources", "resizePolicy"] {
                restore(container, &list(new, &pointer)[n], key);
            }
        }
    }
    whole
}

/// Validates a change by the subresource.
pub fn check(subresource: &str, new: &Value, old: &Value) -> Vec<Cause> {
    let is_ephemeral = subresource == EPHEMERAL;
    if old.pointer(&format!("/metadata/annotations/{MIRROR}")).is_some() {
        let why = match is_ephemeral {
            true => "static pods do not support ephemeral containers",
            false => "static pods cannot be resized",
        };
        return vec![forbidden("", why)];
    }
    match is_ephemeral {
        true => check_ephemeral(new, old),
        false => check_resize(new, old),
    }
}

/// Validates the ephemeral containers of an update, which may add some but change or remove none.
fn check_ephemeral(new: &Value, old: &Value) -> Vec<Cause> {
    const AT: &str = "spec.ephemeralContainers";
    const REFUSED: [&str; 9] = [
        "lifecycle",
        "livenessProbe",
        "ports",
        "readinessProbe",
        "resizePolicy",
        "resources",
        "restartPolicy",
        "restartPolicyRules",
        "startupProbe",
    ];
    let mut faults = Vec::new();
    let volumes: Vec<&str> =
        list(new, "/spec/volumes").iter().map(|volume| text(volume, "/name")).collect();
    let others = RESIZED.iter().flat_map(|part| list(new, &format!("/spec/{part}")));
    let others: Vec<&str> = others.map(|container| text(container, "/name")).collect();
    let mut names = others.clone();
    let containers = list(new, "/spec/ephemeralContainers");
    for (n, container) in containers.iter().enumerate() {
        let at = format!("{AT}[{n}]");
        pod_rules::container(container, &at, &volumes, &mut faults);
        let (name, target) = (text(container, "/name"), text(container, "/targetContainerName"));
        if names.contains(&name) {
            faults.push(duplicate(format!("{at}.name"), &name.into()));
        }
        names.push(name);
        if !target.is_empty() && !others.contains(&target) {
            faults.push(not_found(format!("{at}.targetContainerName"), &target.into()));
        }
        let cannot = "cannot be set for an Ephemeral Container";
        for key in REFUSED {
            if container.get(key).is_some_and(is_set) {
                faults.push(forbidden(format!("{at}.{key}"), cannot));
            }
        }
        for (m, mount) in list(container, "/volumeMounts").iter().enumerate() {
            for key in ["subPath", "subPathExpr"] {
                if mount.get(key).is_some_and(is_set) {
                    faults.push(forbidden(format!("{at}.volumeMounts[{m}].{key}"), cannot));
                }
            }
        }
    }
    for had in list(old, "/spec/ephemeralContainers") {
        let name = text(had, "/name");
        let why = match containers.iter().find(|has| text(has, "/name") == name) {
            None => format!("existing ephemeral containers {name:?} may not be removed\n"),
            Some(has) if has != had => {
                format!("existing ephemeral containers {name:?} may not be changed\n")
            }
            Some(_) => continue,
        };
        faults.push(forbidden(AT, &why));
    }
    faults
}

/// Returns whether a value is present and not empty.
fn is_set(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(members) => !members.is_empty(),
        _ => true,
    }
}

/// Returns the faults of a resize that adds, removes, renames or reorders containers.
fn changed_containers(new: &Value, old: &Value) -> Vec<Cause> {
    let mut faults = Vec::new();
    for part in RESIZED {
        let pointer = format!("/spec/{part}");
        let (has, had) = (list(new, &pointer), list(old, &pointer));
        if has.len() != had.len() {
            let why = format!("{part} may not be added or removed on resize");
            faults.push(forbidden(format!("spec.{part}"), &why));
            continue;
        }
        for (n, (has, had)) in has.iter().zip(had).enumerate() {
            if text(has, "/name") != text(had, "/name") {
                let why = format!("{part} may not be renamed or reordered on resize");
                faults.push(forbidden(format!("spec.{part}[{n}].name"), &why));
            }
        }
    }
    faults
}

/// Validates a resize, which may change only the CPU and memory of containers, and not the QoS
/// class.
fn check_resize(new: &Value, old: &Value) -> Vec<Cause> {
    let mut faults = pod_rules::spec(new.get("spec").unwrap_or(&Value::Null), "spec");
    let class = qos_class(new);
    if class != qos_class(old) {
        let why = "Pod QOS Class may not change as a result of resizing";
        let reported = new.pointer("/status/qosClass").cloned().unwrap_or_default();
        faults.push(invalid("spec", &reported, why));
    }
    let changed = changed_containers(new, old);
    if !changed.is_empty() {
        faults.extend(changed);
        return faults;
    }
    for part in RESIZED {
        let pointer = format!("/spec/{part}");
        let pairs = list(new, &pointer).iter().zip(list(old, &pointer));
        for (n, (has, had)) in pairs.enumerate() {
            let at = format!("spec.{part}[{n}]");
            for kind in ["requests", "limits"] {
                let amounts = |container: &Value| {
                    let amounts = container.pointer(&format!("/resources/{kind}"));
                    amounts.and_then(Value::as_object).cloned().unwrap_or_default()
                };
                let (has, had) = (amounts(has), amounts(had));
                if had.keys().any(|name| !has.contains_key(name)) {
                    let why = format!("resource {kind} cannot be removed");
                    faults.push(forbidden(format!("{at}.resources.{kind}"), &why));
                }
            }
            if without_cpu_and_memory(has) == without_cpu_and_memory(had) {
                continue;
            }
            let (at, why) = match part {
                "containers" => ("spec".to_owned(), "only cpu and memory resources are mutable"),
                _ => {
                    let why = "only cpu and memory resources for init or sidecar containers are \
                        mutable";
                    (at, why)
                }
            };
            faults.push(forbidden(at, why));
        }
    }
    faults
}

/// Returns a container's resources without the amounts that may change.
fn without_cpu_and_memory(container: &Value) -> Value {
    let mut resources = container.get("resources").cloned().unwrap_or_default();
    for kind in ["requests", "limits"] {
        if let Some(amounts) = resources.get_mut(kind).and_then(Value::as_object_mut) {
            amounts.retain(|name, _| name != "cpu" && name != "memory");
            if amounts.is_empty() {
                super::json::remove(&mut resources, kind);
            }
        }
    }
    match is_set(&resources) {
        true => resources,
        // So that empty resources equal absent ones.
        false => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(spec: &Value) -> Value {
        let mut pod = json!({ "metadata": { "name": "p" }, "spec": {
            "containers": [{ "name": "a", "image": "a:1" }],
        } });
        for (key, value) in spec.as_object().into_iter().flatten() {
            pod["spec"][key] = value.clone();
        }
        crate::kinds::pod::default(&mut pod);
        pod
    }

    /// The messages of the faults, after the change that the subresource allows.
    fn faults(subresource: &str, old: &Value, new: &Value) -> String {
        let new = with_change(subresource, new, old);
        let shown = |fault: Cause| format!("{}: {}", fault.field, fault.message);
        check(subresource, &new, old).into_iter().map(shown).collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn ephemeral_containers_are_only_added() {
        let debugger = |more: Value| {
            let mut container = json!({ "name": "d", "image": "d:1" });
            for (key, value) in more.as_object().into_iter().flatten() {
                container[key] = value.clone();
            }
            pod(&json!({ "ephemeralContainers": [container] }))
        };
        let (plain, one) = (pod(&json!({})), debugger(json!({})));
        for (old, new, expected) in [
            (&plain, &one, ""),
            (&one, &one, ""),
            (&one, &plain, "existing ephemeral containers \"d\" may not be removed"),
            (&one, &debugger(json!({ "image": "e:1" })), "\"d\" may not be changed"),
            (&plain, &debugger(json!({ "name": "a" })), "[0].name: Duplicate value: \"a\""),
            (
                &plain,
                &debugger(json!({ "targetContainerName": "x" })),
                "[0].targetContainerName: Not found: \"x\"",
            ),
            (&plain, &debugger(json!({ "targetContainerName": "a" })), ""),
            (
                &plain,
                &debugger(json!({ "ports": [{ "containerPort": 80 }] })),
                "[0].ports: Forbidden: cannot be set for an Ephemeral Container",
            ),
            (&plain, &debugger(json!({ "image": "" })), "[0].image: Required value"),
        ] {
            let found = faults(EPHEMERAL, old, new);
            assert_eq!(found.is_empty(), expected.is_empty(), "{found}");
            assert!(found.contains(expected), "{found}");
        }
        let mut other = one.clone();
        other["spec"]["containers"][0]["image"] = "b:1".into();
        other["metadata"]["labels"] = json!({ "a": "b" });
        assert_eq!(with_change(EPHEMERAL, &other, &plain), one, "the rest does not change");
        let mut mirror = plain.clone();
        mirror["metadata"]["annotations"] = json!({ "kubernetes.io/config.mirror": "x" });
        assert!(faults(EPHEMERAL, &mirror, &one).contains("static pods do not support"));
    }

    #[test]
    fn cpu_and_memory_are_resized_within_the_class() {
        let sized = |requests: Value, limits: Value| {
            let resources = json!({ "requests": requests, "limits": limits });
            pod(&json!({ "containers": [
                { "name": "a", "image": "a:1", "resources": resources },
            ] }))
        };
        let small = sized(json!({ "cpu": "1" }), json!({}));
        let guaranteed = sized(json!({}), json!({ "cpu": "1", "memory": "1Gi" }));
        for (old, new, expected) in [
            (&small, &sized(json!({ "cpu": "2", "memory": "1Gi" }), json!({})), ""),
            (&small, &sized(json!({}), json!({})), "resource requests cannot be removed"),
            (&small, &guaranteed, "Pod QOS Class may not change"),
            (
                &small,
                &sized(json!({ "cpu": "1", "ephemeral-storage": "1Gi" }), json!({})),
                "spec: Forbidden: only cpu and memory resources are mutable",
            ),
            (
                &small,
                &pod(&json!({ "containers": [{ "name": "b", "image": "a:1" }] })),
                "spec.containers[0].name: Forbidden: containers may not be renamed",
            ),
            (
                &small,
                &pod(&json!({ "containers": [] })),
                "spec.containers: Forbidden: containers may not be added or removed",
            ),
        ] {
            let found = faults("resize", old, new);
            assert_eq!(found.is_empty(), expected.is_empty(), "{found}");
            assert!(found.contains(expected), "{found}");
        }
        let mut other = sized(json!({ "cpu": "2" }), json!({}));
        other["spec"]["containers"][0]["image"] = "b:1".into();
        let resized = with_change("resize", &other, &small);
        assert_eq!(resized["spec"]["containers"][0]["resources"]["requests"]["cpu"], "2");
        assert_eq!(resized["spec"]["containers"][0]["image"], "a:1");
    }
}
