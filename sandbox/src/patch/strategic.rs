//! Strategic merge patch: lists of objects merge by a key, and a patch carries directives.
//! Upstream: `apimachinery/pkg/util/strategicpatch`.

use serde_json::{Map, Value};

use crate::object::go_text;
use crate::status::{ApiError, ApiResult};
use crate::types::merge_rules::{MergeRule, merge_rule};
use crate::types::schemas::Types;

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_PRIMITIVES: &str = "$deleteFromPrimitiveList/";
const ORDER: &str = "$setElementOrder/";

/// Applies the strategic merge `patch` to `original`, by the types of its kind.
pub fn apply(types: &Types, original: &Value, patch: &Value) -> ApiResult<Value> {
    let mut patched = original.as_object().cloned().unwrap_or_default();
    let Some(patch) = patch.as_object() else { return Err(fault("a patch must be an object")) };
    merge_object(types, Some(&types.root), &mut patched, patch)?;
    Ok(Value::Object(patched))
}

/// Builds the error of an invalid patch, for which upstream answers with 500.
fn fault(message: impl Into<String>) -> ApiError {
    ApiError::new(500, "", message)
}

fn is_directive(key: &str) -> bool {
    key == DIRECTIVE
        || key == RETAIN_KEYS
        || key.starts_with(DELETE_PRIMITIVES)
        || key.starts_with(ORDER)
}

/// Merges a patch into an object: its directive first, then the keys to retain, the primitives to
/// delete, the members, and orders without changes.
fn merge_object(
    types: &Types,
    type_name: Option<&str>,
    original: &mut Map<String, Value>,
    patch: &Map<String, Value>,
) -> ApiResult<()> {
    match patch.get(DIRECTIVE).map(|directive| directive.as_str().unwrap_or_default()) {
        None | Some("merge") => {}
        Some("replace") => {
            *original = patch.clone();
            original.remove(DIRECTIVE);
            return Ok(());
        }
        Some("delete") => {
            original.clear();
            return Ok(());
        }
        Some(other) => {
            let patch = go_text(&Value::Object(patch.clone()));
            return Err(fault(format!("unknown patch type: {other} in map: {patch}")));
        }
    }
    if let Some(retained) = patch.get(RETAIN_KEYS) {
        let Some(retained) = retained.as_array() else {
            return Err(fault(format!("{RETAIN_KEYS} must be a list")));
        };
        let kept = |key: &str| retained.iter().any(|retained| retained == key);
        if let Some(extra) = patch.keys().find(|key| !is_directive(key) && !kept(key)) {
            return Err(fault(format!("{extra} is set by the patch but not in {RETAIN_KEYS}")));
        }
        original.retain(|key, _| kept(key));
    }
    for (key, list) in patch {
        if let Some(field) = key.strip_prefix(DELETE_PRIMITIVES) {
            let gone = list.as_array().ok_or_else(|| fault(format!("{key} must be a list")))?;
            if let Some(items) = original.get_mut(field).and_then(Value::as_array_mut) {
                items.retain(|item| !gone.contains(item));
            }
        }
    }
    for (key, value) in patch.iter().filter(|(key, _)| !is_directive(key)) {
        let rule = type_name.and_then(|name| merge_rule(name, key));
        let of = type_name.and_then(|name| types.field(name, key));
        let order = patch.get(&format!("{ORDER}{key}")).and_then(Value::as_array);
        merge_member(types, of, rule, original, key, value, order)?;
    }
    // A patch may contain an order without changes.
    for (key, order) in patch {
        if let Some(field) = key.strip_prefix(ORDER)
            && !patch.contains_key(field)
            && let (Some(items), Some(order)) =
                (original.get_mut(field).and_then(Value::as_array_mut), order.as_array())
        {
            let rule = type_name.and_then(|name| merge_rule(name, field));
            let before = items.clone();
            sort(items, order, &before, rule.map_or("", |rule| rule.key));
        }
    }
    Ok(())
}

/// Merges one member of a patch. `of` is the member's type, `rule` how its lists merge, `order` the
/// wanted order of a list's items. Null removes the member.
fn merge_member(
    types: &Types,
    of: Option<&str>,
    rule: Option<MergeRule>,
    original: &mut Map<String, Value>,
    key: &str,
    value: &Value,
    order: Option<&Vec<Value>>,
) -> ApiResult<()> {
    let replaces = rule.is_some_and(|rule| rule.strategy == "replace");
    match value {
        Value::Null => {
            original.remove(key);
        }
        Value::Object(patch) if !replaces => {
            if patch.get(DIRECTIVE) == Some(&Value::from("delete")) {
                original.remove(key);
                return Ok(());
            }
            let slot = original.entry(key).or_insert_with(|| Value::Object(Map::new()));
            if !slot.is_object() {
                *slot = Value::Object(Map::new());
            }
            if let Value::Object(inner) = slot {
                merge_object(types, of, inner, patch)?;
            }
        }
        Value::Array(patch) => {
            let had = match original.get(key) {
                Some(Value::Array(items)) => items.clone(),
                _ => Vec::new(),
            };
            let merged = match rule.filter(|rule| rule.strategy.contains("merge")) {
                Some(rule) => merge_list(types, of, rule.key, had, patch, order)?,
                None => without_directives(patch),
            };
            original.insert(key.to_owned(), Value::Array(merged));
        }
        value => {
            original.insert(key.to_owned(), value.clone());
        }
    }
    Ok(())
}

fn without_directives(patch: &[Value]) -> Vec<Value> {
    patch.iter().filter(|item| item.get(DIRECTIVE).is_none()).cloned().collect()
}

/// Merges a list by the merge key of its items; an empty `key` means a set of primitives.
fn merge_list(
    types: &Types,
    of: Option<&str>,
    key: &str,
    mut items: Vec<Value>,
    patch: &[Value],
    order: Option<&Vec<Value>>,
) -> ApiResult<Vec<Value>> {
    let before = items.clone();
    if let Some(order) = order {
        follows_order(patch, order, key)?;
    }
    let order = order.map_or(patch, Vec::as_slice);
    if key.is_empty() {
        for item in patch.iter().filter(|item| !item.is_object()) {
            if !items.contains(item) {
                items.push(item.clone());
            }
        }
        sort(&mut items, order, &before, key);
        return Ok(items);
    }
    if patch.iter().any(|item| item.get(DIRECTIVE) == Some(&Value::from("replace"))) {
        return Ok(without_directives(patch));
    }
    for change in patch {
        let Some(change_object) = change.as_object() else {
            return Err(fault(format!("a list merged by {key} must hold objects")));
        };
        let Some(id) = change.get(key) else {
            let change = go_text(change);
            let message = format!("map: {change} does not contain declared merge key: {key}");
            return Err(fault(message));
        };
        if change.get(DIRECTIVE) == Some(&Value::from("delete")) {
            items.retain(|item| item.get(key) != Some(id));
            continue;
        }
        match items.iter_mut().find(|item| item.get(key) == Some(id)) {
            Some(Value::Object(item)) => merge_object(types, of, item, change_object)?,
            _ => {
                let mut item = Map::new();
                merge_object(types, of, &mut item, change_object)?;
                items.push(Value::Object(item));
            }
        }
    }
    sort(&mut items, order, &before, key);
    Ok(items)
}

/// Checks that the items of `patch` are in the `order` that its directive gives. Errors: they are
/// not.
fn follows_order(patch: &[Value], order: &[Value], key: &str) -> ApiResult<()> {
    let mut wanted = order.iter();
    let set = || patch.iter().filter(|item| item.get(DIRECTIVE).is_none());
    if set().all(|item| wanted.any(|wanted| same(wanted, item, key))) {
        return Ok(());
    }
    let set = go_text(&set().cloned().collect());
    let order = go_text(&Value::Array(order.to_vec()));
    Err(fault(format!(
        "The order in patch list:\n{set}\n doesn't match {} list:\n{order}\n",
        ORDER.trim_end_matches('/')
    )))
}

/// Returns whether two list items are the same: by `key`, or by value when there is no key.
fn same(a: &Value, b: &Value, key: &str) -> bool {
    if key.is_empty() { a == b } else { a.get(key).is_some() && a.get(key) == b.get(key) }
}

/// Sorts `items`: those in `order` follow that order, the others keep their order from the list
/// `before`. An item that is not in `order` precedes one that is only if it did so in `before`; so
/// items that a patch adds come first. Upstream: `normalizeElementOrder`.
fn sort(items: &mut Vec<Value>, order: &[Value], before: &[Value], key: &str) {
    let rank = |list: &[Value], item: &Value| list.iter().position(|at| same(at, item, key));
    let (mut named, mut others): (Vec<Value>, Vec<Value>) =
        items.drain(..).partition(|item| rank(order, item).is_some());
    named.sort_by_key(|item| rank(order, item));
    others.sort_by_key(|item| rank(before, item));
    let mut others = others.into_iter().peekable();
    for item in named {
        let at = rank(before, &item);
        while let Some(other) = others.next_if(|other| {
            let other = rank(before, other);
            other.is_some() && at.is_some() && other < at
        }) {
            items.push(other);
        }
        items.push(item);
    }
    items.extend(others);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::builtin;
    use crate::types::schemas;
    use serde_json::json;

    fn types(plural: &str) -> std::sync::Arc<Types> {
        let kinds = builtin();
        let kind = kinds.iter().find(|kind| kind.resource.plural == plural).unwrap();
        schemas::types_of(kind)
    }

    #[test]
    fn merges_as_documented() {
        let pods = types("pods");
        let a = json!({"name": "a", "image": "1"});
        let b = json!({"name": "b", "image": "2"});
        for (original, patch, expected) in [
            // Containers by name, new ones at the end.
            (
                json!({"spec": {"containers": [a, b]}}),
                json!({"spec": {"containers": [{"name": "b", "image": "3"}, {"name": "c"}]}}),
                json!({"spec": {"containers": [a, {"name": "b", "image": "3"}, {"name": "c"}]}}),
            ),
            (
                json!({"spec": {"containers": [a, b]}}),
                json!({"spec": {"containers": [{"name": "a", "$patch": "delete"}]}}),
                json!({"spec": {"containers": [b]}}),
            ),
            (
                json!({"spec": {"containers": [a, b]}}),
                json!({"spec": {"containers": [{"$patch": "replace"}, {"name": "c"}]}}),
                json!({"spec": {"containers": [{"name": "c"}]}}),
            ),
            (
                json!({"spec": {"containers": [a, b]}}),
                json!({"spec": {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}],
                    "containers": [{"name": "a", "image": "9"}]}}),
                json!({"spec": {"containers": [b, {"name": "a", "image": "9"}]}}),
            ),
            // Tolerations are replaced whole, nulls delete.
            (
                json!({"spec": {"tolerations": [{"key": "x"}], "nodeName": "n"}}),
                json!({"spec": {"tolerations": [{"key": "y"}], "nodeName": null}}),
                json!({"spec": {"tolerations": [{"key": "y"}]}}),
            ),
            // Finalizers merge as a set.
            (
                json!({"metadata": {"finalizers": ["a", "b"]}}),
                json!({"metadata": {"finalizers": ["b", "c"], "$deleteFromPrimitiveList/finalizers": ["a"]}}),
                json!({"metadata": {"finalizers": ["b", "c"]}}),
            ),
            (
                json!({"metadata": {"ownerReferences": [{"uid": "1"}, {"uid": "2"}]}}),
                json!({"metadata": {"ownerReferences": [{"uid": "1", "$patch": "delete"}]}}),
                json!({"metadata": {"ownerReferences": [{"uid": "2"}]}}),
            ),
            // Volumes keep only the source that the patch names.
            (
                json!({"spec": {"volumes": [{"name": "v", "emptyDir": {}}]}}),
                json!({"spec": {"volumes": [{"name": "v", "$retainKeys": ["name", "secret"], "secret": {"secretName": "s"}}]}}),
                json!({"spec": {"volumes": [{"name": "v", "secret": {"secretName": "s"}}]}}),
            ),
            // Maps merge; a directive replaces one.
            (
                json!({"metadata": {"labels": {"a": "1", "b": "2"}}}),
                json!({"metadata": {"labels": {"b": null, "c": "3"}}}),
                json!({"metadata": {"labels": {"a": "1", "c": "3"}}}),
            ),
            (
                json!({"metadata": {"labels": {"a": "1"}}}),
                json!({"metadata": {"labels": {"$patch": "replace", "c": "3"}}}),
                json!({"metadata": {"labels": {"c": "3"}}}),
            ),
            (
                json!({"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "r"}]}}),
                json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}}),
                json!({"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "r"}]}}),
            ),
        ] {
            assert_eq!(apply(&pods, &original, &patch), Ok(expected), "{patch}");
        }
    }

    #[test]
    fn nested_lists_merge_and_invalid_patches_are_refused() {
        let deployments = types("deployments");
        let original = json!({"spec": {"template": {"spec": {"containers": [
            {"name": "a", "env": [{"name": "X", "value": "1"}]}]}}}});
        let patch = json!({"spec": {"template": {"spec": {"containers": [
            {"name": "a", "env": [{"name": "Y", "value": "2"}]}]}}}});
        let patched = apply(&deployments, &original, &patch).unwrap();
        let env = &patched["spec"]["template"]["spec"]["containers"][0]["env"];
        assert_eq!(env, &json!([{"name": "Y", "value": "2"}, {"name": "X", "value": "1"}]));
        for (patch, message) in [
            (json!({"spec": {"$patch": "bad"}}), "unknown patch type: bad in map: map[$patch:bad]"),
            (
                json!({"spec": {"template": {"spec": {
                    "$setElementOrder/containers": [{"name": "b"}, {"name": "a"}],
                    "containers": [{"name": "b"}, {"name": "c"}]}}}}),
                "The order in patch list:\n[map[name:b] map[name:c]]\n doesn't match \
                 $setElementOrder list:\n[map[name:b] map[name:a]]\n",
            ),
            (
                json!({"spec": {"template": {"spec": {"containers": [{"image": "x"}]}}}}),
                "does not contain declared merge key: name",
            ),
        ] {
            let error = apply(&deployments, &original, &patch).unwrap_err();
            assert!(error.message.contains(message), "{}", error.message);
        }
    }
}
