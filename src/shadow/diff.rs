//! Finds the fields that differ between two states of an object.

use std::collections::HashMap;

use serde::Serialize;
use serde_json::Value;

use crate::objects::Timestamp;

/// The difference in seconds up to which the times of two managers count as the same.
const SAME_TIME_SECONDS: i64 = 60;

/// Fields of `metadata` that the API server sets.
const SET_BY_SERVER: [&str; 6] =
    ["creationTimestamp", "generation", "managedFields", "resourceVersion", "selfLink", "uid"];

/// One field that a write changes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Change {
    /// `status.conditions[type=Ready].status`
    pub path: String,
    pub old: Value,
    pub new: Value,
}

/// Returns the fields in which `new` differs from `old`.
pub fn changes(old: &Value, new: &Value) -> Vec<Change> {
    let mut changes = Vec::new();
    compare("", old, new, &mut changes);
    changes
}

/// Returns whether `path` is, or is below, one of the fields in [`SET_BY_SERVER`].
fn is_set_by_server(path: &str) -> bool {
    let Some(path) = path.strip_prefix("metadata.") else { return false };
    SET_BY_SERVER.iter().any(|field| match path.strip_prefix(field) {
        Some(below) => below.is_empty() || below.starts_with(['.', '[']),
        None => false,
    })
}

/// Returns the fields in which two whole objects differ, as [`changes`] does, without those that
/// the server sets.
pub fn object_changes(old: &Value, new: &Value) -> Vec<Change> {
    let mut changes = changes(old, new);
    changes.retain(|change| {
        !matches!(change.path.as_str(), "kind" | "apiVersion") && !is_set_by_server(&change.path)
    });
    changes
}

/// Returns whether two values of a field mean the same: an empty one equals an absent one, as in
/// Go's types, and times need not be exact.
pub fn same(a: &Value, b: &Value) -> bool {
    let mut found = Vec::new();
    compare("", a, b, &mut found);
    found.is_empty()
}

/// Returns whether a value is the zero value of its type, as fields that are left out are.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.values().all(is_empty),
    }
}

/// Returns whether two values mean the same without a comparison of their members: they are equal,
/// both empty, or times at most [`SAME_TIME_SECONDS`] apart.
fn same_plain(a: &Value, b: &Value) -> bool {
    if a == b || (is_empty(a) && is_empty(b)) {
        return true;
    }
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a.as_f64() == b.as_f64(),
        (Value::String(a), Value::String(b)) => {
            let seconds = |text: &str| {
                let looks_like_time = text.len() >= 20 && text.as_bytes()[4] == b'-';
                looks_like_time.then(|| text.parse::<Timestamp>().ok()).flatten()
            };
            match (seconds(a), seconds(b)) {
                (Some(a), Some(b)) => {
                    (a.as_micros() - b.as_micros()).abs() <= SAME_TIME_SECONDS * 1_000_000
                }
                _ => false,
            }
        }
        _ => false,
    }
}

/// Returns the member that identifies the items of both lists, if one does.
pub fn identity<'a>(a: &[Value], b: &[Value]) -> Option<&'a str> {
    ["type", "uid", "name", "ip"].into_iter().find(|key| {
        let identifies = |items: &[Value]| {
            let ids: Option<Vec<&str>> =
                items.iter().map(|item| item.get(*key).and_then(Value::as_str)).collect();
            ids.is_some_and(|mut ids| {
                ids.sort();
                ids.windows(2).all(|pair| pair[0] != pair[1])
            })
        };
        identifies(a) && identifies(b)
    })
}

/// Returns the items, each with the text of the member that identifies it.
pub fn identified<'v>(items: &'v [Value], key: &str) -> impl Iterator<Item = (&'v str, &'v Value)> {
    items.iter().filter_map(move |item| Some((item.get(key)?.as_str()?, item)))
}

/// Appends the differences at and below `path`.
fn compare<'v>(path: &str, old: &'v Value, new: &'v Value, changes: &mut Vec<Change>) {
    const NULL: &Value = &Value::Null;
    if same_plain(old, new) {
        return;
    }
    let below = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => {
            for (key, value) in old {
                compare(&below(key), value, new.get(key).unwrap_or(NULL), changes);
            }
            for (key, value) in new.iter().filter(|(key, _)| !old.contains_key(*key)) {
                compare(&below(key), NULL, value, changes);
            }
            return;
        }
        (Value::Array(before), Value::Array(after)) => {
            if let Some(key) = identity(before, after) {
                let by_id = |items| -> HashMap<&str, &Value> { identified(items, key).collect() };
                let (old, new) = (by_id(before), by_id(after));
                let added = identified(after, key).filter(|(id, _)| !old.contains_key(id));
                for (id, _) in identified(before, key).chain(added) {
                    let of = |items: &HashMap<&str, &'v Value>| items.get(id).copied();
                    let path = format!("{path}[{key}={id}]");
                    compare(&path, of(&old).unwrap_or(NULL), of(&new).unwrap_or(NULL), changes);
                }
                return;
            }
            if before.len() == after.len() {
                for (index, (old, new)) in before.iter().zip(after).enumerate() {
                    compare(&format!("{path}[{index}]"), old, new, changes);
                }
                return;
            }
        }
        _ => {}
    }
    changes.push(Change { path: path.to_owned(), old: old.clone(), new: new.clone() });
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn differing_fields_are_named_by_their_paths() {
        for (old, new, paths) in [
            (json!({"a": {"b": 1}}), json!({"a": {"b": 2}}), vec!["a.b"]),
            (json!({}), json!({"a": 0, "b": "", "c": [], "d": {"e": false}}), vec![]),
            (json!({"l": [1, 2]}), json!({"l": [1, 3]}), vec!["l[1]"]),
            (json!({"l": [1, 2]}), json!({"l": [1]}), vec!["l"]),
            (
                json!({"c": [{"type": "A", "status": "True"}, {"type": "B", "status": "True"}]}),
                json!({"c": [{"type": "B", "status": "False"}, {"type": "A", "status": "True"}]}),
                vec!["c[type=B].status"],
            ),
            (json!({"at": "2026-01-01T00:00:00Z"}), json!({"at": "2026-01-01T00:00:59Z"}), vec![]),
            (
                json!({"at": "2026-01-01T00:00:00Z"}),
                json!({"at": "2026-01-01T00:02:00Z"}),
                vec!["at"],
            ),
            (json!({"n": 1}), json!({"n": 1.0}), vec![]),
            (json!({"a": {"b": 1}}), json!({}), vec!["a"]),
        ] {
            let found = changes(&old, &new);
            let found: Vec<&str> = found.iter().map(|change| change.path.as_str()).collect();
            assert_eq!(found, paths, "{old} {new}");
            assert_eq!(same(&old, &new), paths.is_empty());
        }
    }

    #[test]
    fn what_the_server_sets_is_left_out() {
        let old = json!({"metadata": {"uid": "a", "resourceVersion": "1", "labels": {"a": "b"}}});
        let new = json!({"kind": "Pod", "metadata": {"resourceVersion": "2", "generation": 4}});
        let found = object_changes(&old, &new);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].path, "metadata.labels");
    }
}
