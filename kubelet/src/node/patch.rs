//! The change of a Node's metadata and status as a strategic merge patch.
//! Upstream: `nodeutil.PatchNodeStatus`, `strategicpatch.CreateTwoWayMergePatch`.

use k8s_openapi::api::core::v1 as core;
use serde_json::{Map, Value, json};

/// The patch that makes `after` of `before`, in which the spec is left out; empty: they are equal.
pub fn between(before: &core::Node, after: &core::Node) -> Value {
    let value = |node: &core::Node| serde_json::to_value(node).unwrap_or_default();
    let (old, new) = (value(before), value(after));
    let mut patch = Map::new();
    let metadata = changed_members(&old["metadata"], &new["metadata"]);
    if !metadata.is_empty() {
        patch.insert("metadata".to_owned(), metadata.into());
    }
    let (old, new) = (&old["status"], &new["status"]);
    let mut status = changed_members(old, new);
    // A merge by type would mix the addresses of one type: they are replaced.
    if status.contains_key("addresses") {
        let all = new["addresses"].as_array().cloned().unwrap_or_default();
        let is_first = old["addresses"].as_array().is_none_or(Vec::is_empty);
        let replace = (!is_first).then(|| json!({"$patch": "replace"}));
        let list: Vec<Value> = all.into_iter().chain(replace).collect();
        status.insert("addresses".to_owned(), list.into());
    }
    if status.contains_key("conditions") {
        let (conditions, order) = conditions(&old["conditions"], &new["conditions"]);
        status.insert("conditions".to_owned(), conditions);
        status.insert("$setElementOrder/conditions".to_owned(), order);
    }
    if !status.is_empty() {
        patch.insert("status".to_owned(), status.into());
    }
    patch.into()
}

/// The members that differ: objects by their own members, lists whole. Null: it is removed.
fn changed_members(old: &Value, new: &Value) -> Map<String, Value> {
    let mut changed = Map::new();
    for (name, value) in new.as_object().into_iter().flatten() {
        match &old[name] {
            before if before == value => {}
            Value::Object(_) if value.is_object() => {
                changed.insert(name.clone(), changed_members(&old[name], value).into());
            }
            _ => drop(changed.insert(name.clone(), value.clone())),
        }
    }
    for name in old.as_object().into_iter().flatten().map(|(name, _)| name) {
        if new.get(name).is_none() {
            changed.insert(name.clone(), Value::Null);
        }
    }
    changed
}

/// Changes of conditions by their types, and the order of the types.
fn conditions(old: &Value, new: &Value) -> (Value, Value) {
    let none = Vec::new();
    let [old, new] = [old, new].map(|list| list.as_array().unwrap_or(&none));
    let of_type = |list: &[Value], type_: &Value| {
        list.iter().find(|condition| condition["type"] == *type_).cloned()
    };
    let mut changes = Vec::new();
    for condition in new {
        let type_ = &condition["type"];
        match of_type(old, type_) {
            Some(before) if before == *condition => {}
            Some(before) => {
                let mut change = changed_members(&before, condition);
                change.insert("type".to_owned(), type_.clone());
                changes.push(change.into());
            }
            None => changes.push(condition.clone()),
        }
    }
    for condition in old {
        let type_ = &condition["type"];
        if of_type(new, type_).is_none() {
            changes.push(json!({"$patch": "delete", "type": type_}));
        }
    }
    let order = new.iter().map(|condition| json!({"type": condition["type"]}));
    (changes.into(), order.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patches_have_only_what_differs() {
        let condition = |type_: &str, status: &str| json!({"type": type_, "status": status});
        for (old, new, expected) in [
            (json!({}), json!({}), json!({})),
            (
                json!({"metadata": {"labels": {"a": "1", "b": "2"}}, "spec": {"providerID": "x"}}),
                json!({"metadata": {"labels": {"a": "3"}, "annotations": {"c": "4"}}}),
                json!({"metadata": {"labels": {"a": "3", "b": null}, "annotations": {"c": "4"}}}),
            ),
            (
                json!({"status": {"capacity": {"cpu": "1", "x/y": "2"},
                                  "images": [{"names": ["a"]}, {"names": ["b"]}],
                                  "volumesInUse": ["v"]}}),
                json!({"status": {"capacity": {"cpu": "2", "x/y": "2"},
                                  "images": [{"names": ["b"]}]}}),
                json!({"status": {"capacity": {"cpu": "2"}, "images": [{"names": ["b"]}],
                                  "volumesInUse": null}}),
            ),
            // The first addresses have nothing to be merged with.
            (
                json!({}),
                json!({"status": {"addresses": [{"type": "Hostname", "address": "n"}]}}),
                json!({"status": {"addresses": [{"type": "Hostname", "address": "n"}]}}),
            ),
            (
                json!({"status": {"addresses": [{"type": "InternalIP", "address": "1.1.1.1"}]}}),
                json!({"status": {"addresses": [{"type": "InternalIP", "address": "2.2.2.2"},
                                                {"type": "InternalIP", "address": "fd00::2"}]}}),
                json!({"status": {"addresses": [{"type": "InternalIP", "address": "2.2.2.2"},
                                                {"type": "InternalIP", "address": "fd00::2"},
                                                {"$patch": "replace"}]}}),
            ),
            (
                json!({"status": {"conditions": [condition("a", "True"), condition("b", "True"),
                                                 condition("c", "True")]}}),
                json!({"status": {"conditions": [condition("a", "True"), condition("b", "False"),
                                                 condition("d", "True")]}}),
                json!({"status": {
                    "conditions": [condition("b", "False"), condition("d", "True"),
                                   {"$patch": "delete", "type": "c"}],
                    "$setElementOrder/conditions": [{"type": "a"}, {"type": "b"}, {"type": "d"}],
                }}),
            ),
        ] {
            let node = |value: &Value| -> core::Node {
                serde_json::from_value(value.clone()).expect("a node")
            };
            assert_eq!(between(&node(&old), &node(&new)), expected, "{old} {new}");
        }
    }
}
