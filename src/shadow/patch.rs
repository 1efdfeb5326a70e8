//! Applies patches to objects without the types of their kinds: lists merge by the names of their
//! fields.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

const DIRECTIVE: &str = "$patch";
const DELETE_PRIMITIVES: &str = "$deleteFromPrimitiveList/";

/// The merge keys of the lists that controllers patch: the field, and the member that identifies an
/// item, empty for lists of plain values. Other lists are replaced.
const LISTS: &[(&str, &str)] = &[
    ("addresses", "type"),
    ("conditions", "type"),
    ("finalizers", ""),
    ("ownerReferences", "uid"),
    ("podCIDRs", ""),
    ("reservedFor", "uid"),
    ("resourceClaimStatuses", "name"),
    ("secrets", "name"),
];

/// Returns `object` after `patch`; `None` for a type that no controller sends.
pub fn patched(content_type: &str, object: &Value, patch: &Value) -> Option<Value> {
    let mut result = object.clone();
    match content_type {
        "application/merge-patch+json" => merge(&mut result, patch),
        "application/strategic-merge-patch+json" | "application/apply-patch+yaml" => {
            merge_strategically(&mut result, patch);
        }
        _ => return None,
    }
    Some(result)
}

/// Applies a merge patch (RFC 7386) to `object`.
fn merge(object: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *object = patch.clone();
        return;
    };
    let members = members(object);
    for (key, value) in patch {
        match value {
            Value::Null => {
                members.remove(key);
            }
            value => merge(members.entry(key).or_insert(Value::Null), value),
        }
    }
}

/// Returns the members of `object`, after making it an empty object if it is something else.
fn members(object: &mut Value) -> &mut Map<String, Value> {
    if !object.is_object() {
        *object = Value::Object(Map::new());
    }
    object.as_object_mut().expect("it is an object by now")
}

/// Returns the `$patch` directive of a strategic merge patch, such as `replace` or `delete`.
fn directive(patch: &Value) -> Option<&str> {
    patch.get(DIRECTIVE)?.as_str()
}

/// Applies a strategic merge patch to `object`; the lists in [`LISTS`] are merged by their key.
fn merge_strategically(object: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        *object = patch.clone();
        return;
    };
    match directive(patch) {
        Some("replace") => *object = Value::Object(Map::new()),
        Some("delete") => {
            *object = Value::Null;
            return;
        }
        _ => {}
    }
    let members = members(object);
    for (key, value) in changes {
        if let Some(field) = key.strip_prefix(DELETE_PRIMITIVES) {
            if let (Some(Value::Array(items)), Some(gone)) =
                (members.get_mut(field), value.as_array())
            {
                items.retain(|item| !gone.contains(item));
            }
            continue;
        }
        // Other directives, such as `$setElementOrder`, are ignored.
        if key.starts_with('$') {
            continue;
        }
        let rule = LISTS.iter().find(|(field, _)| field == key);
        match (value, rule) {
            (Value::Null, _) => {
                members.remove(key);
            }
            (Value::Array(items), Some((_, id))) => {
                merge_list(members.entry(key).or_insert(Value::Null), items, id);
            }
            (value, _) => {
                merge_strategically(members.entry(key).or_insert(Value::Null), value);
                if members.get(key).is_some_and(Value::is_null) {
                    members.remove(key);
                }
            }
        }
    }
}

/// Merges `changes` into the items with the same `id`, and appends those without one. `id`: the
/// merge key, empty for a list of plain values.
fn merge_list(list: &mut Value, changes: &[Value], id: &str) {
    if !list.is_array() || changes.iter().any(|change| directive(change) == Some("replace")) {
        *list = Value::Array(Vec::new());
    }
    let Some(items) = list.as_array_mut() else { return };
    // By text: a value cannot be hashed. An item without an identity equals no other.
    let name = |item: &Value| match id {
        "" => Some(item.to_string()),
        id => item.get(id).map(Value::to_string),
    };
    let is_deletion = |change: &&Value| directive(change) == Some("delete");
    let deleted: HashSet<String> = changes.iter().filter(is_deletion).filter_map(name).collect();
    items.retain(|item| name(item).is_none_or(|name| !deleted.contains(&name)));
    let mut places = HashMap::new();
    for (at, item) in items.iter().enumerate() {
        places.entry(name(item)).or_insert(at);
    }
    for change in changes.iter().filter(|change| directive(change).is_none()) {
        let identity = name(change);
        let place = identity.is_some().then(|| *places.entry(identity).or_insert(items.len()));
        if place.is_none_or(|at| at == items.len()) {
            items.push(Value::Null);
        }
        let last = items.len() - 1;
        merge_strategically(&mut items[place.unwrap_or(last)], change);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn patches_apply() {
        const MERGE: &str = "application/merge-patch+json";
        const STRATEGIC: &str = "application/strategic-merge-patch+json";
        let owners = |uids: &[&str]| {
            let owners: Vec<Value> = uids.iter().map(|uid| json!({ "uid": uid })).collect();
            json!({ "metadata": { "ownerReferences": owners } })
        };
        for (content_type, object, patch, expected) in [
            (
                STRATEGIC,
                owners(&["a", "b", "c", "d"]),
                json!({ "metadata": { "ownerReferences": [
                    { "$patch": "delete", "uid": "b" }, { "uid": "e" }, { "uid": "c", "x": 1 },
                    { "$patch": "delete", "uid": "d" }, { "uid": "e", "x": 2 },
                ] } }),
                json!({ "metadata": { "ownerReferences": [
                    { "uid": "a" }, { "uid": "c", "x": 1 }, { "uid": "e", "x": 2 },
                ] } }),
            ),
            (
                MERGE,
                json!({"a": 1, "b": {"c": 1}}),
                json!({"a": null, "b": {"d": 2}}),
                json!({"b": {"c": 1, "d": 2}}),
            ),
            (MERGE, json!({"l": [1, 2]}), json!({"l": [3]}), json!({"l": [3]})),
            (
                STRATEGIC,
                json!({"status": {"conditions": [{"type": "A", "status": "True", "reason": "r"}]}}),
                json!({"status": {"conditions": [{"type": "A", "status": "False"}, {"type": "B"}]}}),
                json!({"status": {"conditions": [{"type": "A", "status": "False", "reason": "r"}, {"type": "B"}]}}),
            ),
            (STRATEGIC, owners(&["1"]), owners(&["2"]), owners(&["1", "2"])),
            (
                STRATEGIC,
                owners(&["1", "2"]),
                json!({"metadata": {"ownerReferences": [{"$patch": "delete", "uid": "1"}]}}),
                owners(&["2"]),
            ),
            (
                STRATEGIC,
                json!({"metadata": {"finalizers": ["a", "b"]}}),
                json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}}),
                json!({"metadata": {"finalizers": ["b"]}}),
            ),
            (
                STRATEGIC,
                json!({"l": [1], "m": {"a": 1}}),
                json!({"l": [2], "m": null}),
                json!({"l": [2]}),
            ),
            (
                STRATEGIC,
                json!({"m": {"a": 1}}),
                json!({"m": {"$patch": "replace", "b": 2}}),
                json!({"m": {"b": 2}}),
            ),
        ] {
            assert_eq!(patched(content_type, &object, &patch), Some(expected), "{patch}");
        }
        assert_eq!(patched("application/json-patch+json", &json!({}), &json!([])), None);
    }
}
