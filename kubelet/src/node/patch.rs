//! The change of a Node's metadata and status as a strategic merge patch.
//! Upstream: `nodeutil.PatchNodeStatus`, `strategicpatch.CreateTwoWayMergePatch`.

use k8s_openapi::api::core::v1 as core;
use serde_json::{Map, Value, json};

use crate::strategic_merge::{changed_list, changed_members};

/// Builds the patch that makes `after` of `before`, in which the spec is left out; empty: they are
/// equal.
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
    changed_list(&mut status, "conditions", "type", old, new);
    if !status.is_empty() {
        patch.insert("status".to_owned(), status.into());
    }
    patch.into()
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
