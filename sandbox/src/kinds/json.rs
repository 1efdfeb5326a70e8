//! Reading and filling JSON objects.

use serde_json::{Map, Value};

/// Returns the value at a JSON pointer as text; empty when absent or of another type.
pub fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

pub fn int(value: &Value, pointer: &str) -> Option<i64> {
    value.pointer(pointer).and_then(Value::as_i64)
}

pub fn truth(value: &Value, pointer: &str) -> bool {
    value.pointer(pointer).and_then(Value::as_bool).unwrap_or(false)
}

/// Returns the list at a JSON pointer; empty when absent.
pub fn list<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    value.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Returns the members of the object at a JSON pointer; none when absent.
pub fn members<'a>(value: &'a Value, pointer: &str) -> impl Iterator<Item = (&'a str, &'a Value)> {
    let object = value.pointer(pointer).and_then(Value::as_object);
    object.into_iter().flatten().map(|(key, value)| (key.as_str(), value))
}

/// Returns the items of the list at a JSON pointer, to change them.
pub fn list_mut<'a>(value: &'a mut Value, pointer: &str) -> &'a mut [Value] {
    value.pointer_mut(pointer).and_then(Value::as_array_mut).map_or(&mut [], Vec::as_mut_slice)
}

/// Returns the object under `key`, which is made when it is absent. A value that is no object is
/// replaced: decoding has already refused objects of a wrong shape.
pub fn object<'a>(value: &'a mut Value, key: &str) -> &'a mut Value {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    let slot = &mut value[key];
    if !slot.is_object() {
        *slot = Value::Object(Map::new());
    }
    slot
}

/// Sets a member that is absent, null, or empty text.
pub fn fill(value: &mut Value, key: &str, default: impl Into<Value>) {
    let Some(object) = value.as_object_mut() else { return };
    let missing = match object.get(key) {
        None | Some(Value::Null) => true,
        Some(Value::String(text)) => text.is_empty(),
        Some(_) => false,
    };
    if missing {
        object.insert(key.to_owned(), default.into());
    }
}

/// Sets a member, present or not.
pub fn set(value: &mut Value, key: &str, to: impl Into<Value>) {
    if let Some(object) = value.as_object_mut() {
        object.insert(key.to_owned(), to.into());
    }
}

pub fn remove(value: &mut Value, key: &str) {
    if let Some(object) = value.as_object_mut() {
        object.remove(key);
    }
}

/// Restores the old value of a top-level member, or its absence.
pub fn restore(new: &mut Value, old: &Value, key: &str) {
    match old.get(key) {
        Some(value) => set(new, key, value.clone()),
        None => remove(new, key),
    }
}

/// Drops every null: absent and null are the same in a typed object.
pub fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(object) => {
            object.retain(|_, value| !value.is_null());
            object.values_mut().for_each(drop_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}
