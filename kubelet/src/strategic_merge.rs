//! Strategic merge patches of what has changed.
//! Upstream: `strategicpatch.CreateTwoWayMergePatch`.

use serde_json::{Map, Value, json};

/// Returns the members of `new` that differ from those of `old`: objects by their own members,
/// lists whole. Null: the member is removed.
pub fn changed_members(old: &Value, new: &Value) -> Map<String, Value> {
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

/// Replaces the change of the list `name` by the changes of its members, which the server merges by
/// the field `key`, and their order. A list that is removed stays removed whole.
pub fn changed_list(
    patch: &mut Map<String, Value>,
    name: &str,
    key: &str,
    old: &Value,
    new: &Value,
) {
    if !patch.get(name).is_some_and(Value::is_array) {
        return;
    }
    let none = Vec::new();
    let [old, new] = [old, new].map(|lists| lists[name].as_array().unwrap_or(&none));
    let find = |list: &[Value], value: &Value| {
        list.iter().find(|member| member[key] == value[key]).cloned()
    };
    let mut changes = Vec::new();
    for member in new {
        match find(old, member) {
            Some(before) if before == *member => {}
            Some(before) => {
                let mut change = changed_members(&before, member);
                change.insert(key.to_owned(), member[key].clone());
                changes.push(change.into());
            }
            None => changes.push(member.clone()),
        }
    }
    for member in old {
        if find(new, member).is_none() {
            changes.push(json!({"$patch": "delete", key: member[key]}));
        }
    }
    let order: Vec<Value> = new.iter().map(|member| json!({key: member[key]})).collect();
    patch.insert(name.to_owned(), changes.into());
    patch.insert(format!("$setElementOrder/{name}"), order.into());
}
