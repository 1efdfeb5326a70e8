//! Functions of lists, sets and optional values. Upstream: cel-go's `ext.Lists`, `ext.Sets` and
//! `cel.OptionalTypes`, Kubernetes' `library.Lists`.

use std::cmp::Ordering;
use std::sync::Arc;

use super::value::{Key, Value};
use super::{COST_LIMIT, Result, operators};

/// The greatest number of items in a list that a function creates from a number.
const LONGEST: i64 = 1_000_000;

/// Evaluates the functions of lists, sets, maps and optionals. `None`: not one of them.
pub fn call(name: &str, args: &[Value]) -> Option<Result<Value>> {
    Some(match (name, args) {
        ("value", [Value::Optional(value)]) => match value {
            Some(value) => Ok((**value).clone()),
            None => Err("optional.none() dereference".to_owned()),
        },
        ("hasValue", [Value::Optional(value)]) => Ok(value.is_some().into()),
        ("optional.unwrap" | "unwrapOpt", [Value::List(items)]) => {
            let items = items.iter().filter_map(|item| match item {
                Value::Optional(value) => value.as_ref().map(|value| (**value).clone()),
                other => Some(other.clone()),
            });
            Ok(Value::list(items.collect()))
        }
        ("first", [Value::List(items)]) => Ok(items.first().cloned().into()),
        ("last", [Value::List(items)]) => Ok(items.last().cloned().into()),
        ("cel.@mapInsert", [Value::Map(members), key, value]) => insert(members, key, value),
        ("cel.@mapInsert", [Value::Map(members), Value::Map(more)]) => {
            let mut members = members.clone();
            for (key, value) in more.iter() {
                if Arc::make_mut(&mut members).insert(key.clone(), value.clone()).is_some() {
                    return Some(Err(repeated(key)));
                }
            }
            Ok(Value::Map(members))
        }
        ("indexOf", [Value::List(items), item]) => {
            Ok(position(items.iter().position(|it| it == item)))
        }
        ("lastIndexOf", [Value::List(items), item]) => {
            Ok(position(items.iter().rposition(|it| it == item)))
        }
        ("sets.contains", [Value::List(a), Value::List(b)]) => Ok(holds_all(a, b).into()),
        ("sets.equivalent", [Value::List(a), Value::List(b)]) => {
            Ok((holds_all(a, b) && holds_all(b, a)).into())
        }
        ("sets.intersects", [Value::List(a), Value::List(b)]) => {
            Ok(a.iter().any(|item| b.contains(item)).into())
        }
        ("slice", [Value::List(items), Value::Int(from), Value::Int(to)]) => {
            slice(items, *from, *to)
        }
        ("flatten", [Value::List(items)]) => Ok(Value::list(flat(items, 1))),
        ("flatten", [Value::List(items), Value::Int(depth)]) if *depth >= 0 => {
            Ok(Value::list(flat(items, *depth)))
        }
        ("flatten", [Value::List(_), Value::Int(_)]) => {
            Err("level must be non-negative".to_owned())
        }
        ("sort", [Value::List(items)]) => sorted(items, items),
        ("@sortByAssociatedKeys", [Value::List(items), Value::List(keys)]) => sorted(items, keys),
        ("lists.range", [Value::Int(count)]) if *count > LONGEST => Err(COST_LIMIT.to_owned()),
        ("lists.range", [Value::Int(count)]) => {
            Ok(Value::list((0..*count).map(Value::Int).collect()))
        }
        ("reverse", [Value::List(items)]) => Ok(Value::list(items.iter().rev().cloned().collect())),
        ("distinct", [Value::List(items)]) => {
            let mut found: Vec<Value> = Vec::new();
            for item in items.iter() {
                if !found.contains(item) {
                    found.push(item.clone());
                }
            }
            Ok(Value::list(found))
        }
        ("isSorted", [Value::List(items)]) => {
            let mut pairs = items.windows(2).map(|pair| pair[0].compare(&pair[1]));
            Ok(pairs.all(|order| order.is_some_and(Ordering::is_le)).into())
        }
        ("sum", [Value::List(items)]) => {
            let mut items = items.iter();
            let first = items.next().cloned().unwrap_or(Value::Int(0));
            items.try_fold(first, |sum, item| {
                // `_+_` is a known operator, so the fallback is never used.
                operators::binary("_+_", &sum, item).unwrap_or(Ok(Value::Null))
            })
        }
        ("min", [Value::List(items)]) => extreme(name, items, Ordering::Less),
        ("max", [Value::List(items)]) => extreme(name, items, Ordering::Greater),
        _ => return None,
    })
}

/// Formats the error for a key that a map has already.
fn repeated(key: &Key) -> String {
    format!("insert failed: key {} already exists", key.value().text().unwrap_or_default())
}

/// Returns a map with this member too; fails if it has the key already, or the value `key` cannot
/// be a key.
fn insert(
    members: &Arc<std::collections::BTreeMap<Key, Value>>,
    key: &Value,
    value: &Value,
) -> Result<Value> {
    let key = Key::of(key).ok_or("no such overload")?;
    let mut members = members.clone();
    if members.contains_key(&key) {
        return Err(repeated(&key));
    }
    Arc::make_mut(&mut members).insert(key, value.clone());
    Ok(Value::Map(members))
}

fn position(at: Option<usize>) -> Value {
    at.map_or(Value::Int(-1), Value::int)
}

fn holds_all(a: &[Value], b: &[Value]) -> bool {
    b.iter().all(|item| a.contains(item))
}

/// Returns the items in this range of a list; fails if the range is not inside the list.
fn slice(items: &[Value], from: i64, to: i64) -> Result<Value> {
    let at = |index: i64| usize::try_from(index).ok();
    match (at(from), at(to)) {
        (Some(from), Some(to)) if from <= to && to <= items.len() => {
            Ok(Value::list(items[from..to].to_vec()))
        }
        (None, _) | (_, None) => {
            Err(format!("cannot slice({from}, {to}), negative indexes not supported"))
        }
        (Some(from), Some(to)) if from > to => Err(format!(
            "cannot slice({from}, {to}), start index must be less than or equal to end index"
        )),
        _ => Err(format!("cannot slice({from}, {to}), list is length {}", items.len())),
    }
}

/// Returns the items of a list, with those of nested lists in their place down to this depth.
fn flat(items: &[Value], depth: i64) -> Vec<Value> {
    let mut found = Vec::new();
    for item in items {
        match item {
            Value::List(inner) if depth > 0 => found.extend(flat(inner, depth - 1)),
            other => found.push(other.clone()),
        }
    }
    found
}

/// Sorts the items by the keys at the same positions. Errors: keys without an order among them.
fn sorted(items: &[Value], keys: &[Value]) -> Result<Value> {
    if keys.windows(2).any(|pair| pair[0].compare(&pair[1]).is_none()) {
        return Err("list elements must have the same type".to_owned());
    }
    let mut pairs: Vec<(&Value, &Value)> = keys.iter().zip(items).collect();
    pairs.sort_by(|(a, _), (b, _)| a.compare(b).unwrap_or(Ordering::Equal));
    Ok(Value::list(pairs.into_iter().map(|(_, item)| item.clone()).collect()))
}

/// Returns the lowest or highest item; fails for an empty list, and for items that cannot be
/// compared.
fn extreme(name: &str, items: &[Value], wanted: Ordering) -> Result<Value> {
    let mut items = items.iter();
    let first = items.next().ok_or_else(|| format!("{name} called on empty list"))?;
    items
        .try_fold(first, |found, item| {
            let order = item.compare(found).ok_or("no such overload")?;
            Ok(if order == wanted { item } else { found })
        })
        .cloned()
}
