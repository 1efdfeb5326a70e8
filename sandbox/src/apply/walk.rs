//! Walks objects by their shape: their fields, the differences between two, one merged into
//! another. Upstream: `structured-merge-diff/typed`.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::fields::Fields;
use crate::types::shape::{Items, Shape};

/// Returns the name of a list item; `None` in lists without identity of items.
fn item_name(list: Shape<'_>, item: &Value) -> Option<String> {
    match list.items() {
        Items::Atomic => None,
        Items::Set => Some(format!("v:{item}")),
        Items::Map(keys) => {
            let shape = list.item();
            let keys: Map<String, Value> = keys
                .iter()
                .filter_map(Value::as_str)
                .map(|key| {
                    let value = item.get(key).cloned();
                    (key.to_owned(), value.unwrap_or_else(|| shape.key_default(key)))
                })
                .collect();
            Some(format!("k:{}", Value::Object(keys)))
        }
    }
}

fn member<'a>(shape: Shape<'a>, key: &str) -> Shape<'a> {
    shape.member(key).unwrap_or(Shape::Open)
}

/// Returns members or items by their names, in order; `None` for an atomic value.
fn parts<'v, 's>(
    shape: Shape<'s>,
    value: &'v Value,
) -> Option<Vec<(String, Shape<'s>, &'v Value)>> {
    match value {
        Value::Object(members) if !shape.is_atomic() => {
            let parts = members.iter();
            Some(parts.map(|(key, of)| (format!("f:{key}"), member(shape, key), of)).collect())
        }
        Value::Array(items) => items
            .iter()
            .map(|item| Some((item_name(shape, item)?, shape.item(), item)))
            .collect::<Option<_>>()
            .filter(|_| !matches!(shape.items(), Items::Atomic)),
        _ => None,
    }
}

fn is_empty_object(value: &Value) -> bool {
    value.as_object().is_some_and(Map::is_empty)
}

/// Collects the fields that `value` has.
pub fn fields_of(shape: Shape<'_>, value: &Value) -> Fields {
    let Some(parts) = parts(shape, value) else { return Fields::leaf() };
    let mut fields = Fields::default();
    for (name, of, part) in parts {
        let mut below = fields_of(of, part);
        let named = name.strip_prefix("f:").is_some_and(|key| shape.names(key));
        // A member that the schema names is no field of its own beside those below it; items of
        // lists and keys of maps are.
        below.member |= !named || part.is_null() || is_empty_object(part);
        fields.insert(name, below);
    }
    fields
}

/// The differences between two objects.
#[derive(Debug, Default)]
pub struct Comparison {
    pub added: Fields,
    pub modified: Fields,
    pub removed: Fields,
}

impl Comparison {
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.modified.is_empty() && self.removed.is_empty()
    }

    /// Removes a path from all three.
    pub fn ignore(&mut self, path: &[&str]) {
        for set in [&mut self.added, &mut self.modified, &mut self.removed] {
            set.remove(path);
        }
    }
}

/// Compares `old` and `new`, at least one of which is present, part by part. A value that only one
/// side has is listed with all its parts; a changed one only where nothing below it can be compared.
pub fn compare(shape: Shape<'_>, old: Option<&Value>, new: Option<&Value>) -> Comparison {
    let mut found = Comparison::default();
    if old == new {
        return found;
    }
    // The number of parts; `None` for an atomic value.
    let parts_of = |value: Option<&'_ Value>| match value {
        None | Some(Value::Null) => Some(0),
        Some(value) => parts(shape, value).map(|parts| parts.len()),
    };
    // The value counts as a whole if one side is atomic, or both are empty.
    let whole = match (parts_of(old), parts_of(new)) {
        (Some(0), Some(0)) | (None, _) | (_, None) => true,
        (Some(_), Some(_)) => false,
    };
    if !whole {
        let list = |value| parts(shape, value).unwrap_or_default();
        let (olds, news) = (old.map(list).unwrap_or_default(), new.map(list).unwrap_or_default());
        let before: HashMap<&str, &Value> =
            olds.iter().map(|(name, _, value)| (name.as_str(), *value)).collect();
        let after: HashMap<&str, &Value> =
            news.iter().map(|(name, _, value)| (name.as_str(), *value)).collect();
        let gone = olds.iter().filter(|(name, ..)| !after.contains_key(name.as_str()));
        for (name, of, _) in news.iter().chain(gone) {
            let (old, new) = (before.get(name.as_str()), after.get(name.as_str()));
            let inner = compare(*of, old.copied(), new.copied());
            found.added.insert(name.clone(), inner.added);
            found.modified.insert(name.clone(), inner.modified);
            found.removed.insert(name.clone(), inner.removed);
        }
    }
    match (old, new) {
        (None, _) => found.added.member = true,
        (_, None) => found.removed.member = true,
        _ => found.modified.member = whole,
    }
    found
}

/// Merges the configuration of an apply into the live object: members and items that only `live`
/// has stay.
pub fn merge(shape: Shape<'_>, live: &Value, config: &Value) -> Value {
    match (live, config) {
        (Value::Object(old), Value::Object(new)) if !shape.is_atomic() => {
            let mut merged = old.clone();
            for (key, value) in new {
                let value = match old.get(key) {
                    Some(old) => merge(member(shape, key), old, value),
                    None => value.clone(),
                };
                merged.insert(key.clone(), value);
            }
            Value::Object(merged)
        }
        (Value::Array(_), Value::Array(_)) => match (parts(shape, live), parts(shape, config)) {
            (Some(live), Some(config)) => Value::Array(merge_items(&live, &config)),
            _ => config.clone(),
        },
        _ => config.clone(),
    }
}

type Part<'v, 's> = (String, Shape<'s>, &'v Value);

/// Merges items in the order of `config`; an item that only `live` has stays behind the item that
/// preceded it.
fn merge_items(live: &[Part<'_, '_>], config: &[Part<'_, '_>]) -> Vec<Value> {
    let wanted: HashMap<&str, ()> = config.iter().map(|(name, ..)| (name.as_str(), ())).collect();
    let by_name: HashMap<&str, &Value> =
        live.iter().map(|(name, _, value)| (name.as_str(), *value)).collect();
    let mut remaining = live.iter().peekable();
    let mut merged = Vec::new();
    for (name, of, value) in config {
        while let Some((_, _, own)) =
            remaining.next_if(|(name, ..)| !wanted.contains_key(name.as_str()))
        {
            merged.push((*own).clone());
        }
        remaining.next_if(|(live, ..)| live == name);
        merged.push(match by_name.get(name.as_str()) {
            Some(live) => merge(*of, live, value),
            None => (*value).clone(),
        });
    }
    let rest = remaining.filter(|(name, ..)| !wanted.contains_key(name.as_str()));
    merged.extend(rest.map(|(_, _, value)| (*value).clone()));
    merged
}

/// Removes from `value` the fields in `gone`, unless they or fields below them are in `kept`.
pub fn prune(shape: Shape<'_>, value: &mut Value, gone: &Fields, kept: &Fields) {
    /// Returns whether a part is removed as a whole; if not, it is pruned.
    fn is_removed(
        name: &str,
        of: Shape<'_>,
        part: &mut Value,
        named: bool,
        gone: &Fields,
        kept: &Fields,
    ) -> bool {
        let Some(gone) = gone.below.get(name) else { return false };
        match kept.below.get(name) {
            // No part of it is kept: a field of the type goes as a whole, a map's key only if it
            // was owned itself.
            None => gone.member || named,
            Some(kept) => {
                let filled = !is_empty_object(part);
                prune(of, part, gone, kept);
                // It goes too if it has lost all that it had.
                named && filled && !kept.member && is_empty_object(part)
            }
        }
    }
    match value {
        Value::Object(members) if !shape.is_atomic() => members.retain(|key, part| {
            let of = member(shape, key);
            !is_removed(&format!("f:{key}"), of, part, shape.names(key), gone, kept)
        }),
        Value::Array(items) => items.retain_mut(|item| {
            item_name(shape, item)
                .is_none_or(|name| !is_removed(&name, shape.item(), item, false, gone, kept))
        }),
        _ => {}
    }
}
