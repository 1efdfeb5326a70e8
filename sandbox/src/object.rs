//! Objects as JSON: access to their members, names and uids.

use serde_json::{Value, json};

/// The letters of generated names: no vowels, no letters that look alike. Upstream: `util/rand`.
const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

pub fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

pub fn list<'a>(object: &'a Value, pointer: &str) -> &'a [Value] {
    object.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

pub fn is_deleting(object: &Value) -> bool {
    !text(object, "/metadata/deletionTimestamp").is_empty()
}

pub fn remove(object: &mut Value, key: &str) {
    if let Some(map) = object.as_object_mut() {
        map.remove(key);
    }
}

/// Copies the member `key` of `from`, or removes it if `from` lacks it.
pub fn carry(object: &mut Value, from: &Value, key: &str) {
    match from.get(key) {
        Some(value) => object[key] = value.clone(),
        None => remove(object, key),
    }
}

/// Returns a random UUID, whose version 4 and variant are in six fixed bits.
pub fn uuid() -> String {
    let bits = (fastrand::u128(..) & !(0xf << 76) & !(0x3 << 62)) | (0x4 << 76) | (0x2 << 62);
    let hex = format!("{bits:032x}");
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// Returns `base` with a random suffix: 58 characters are 63 with it. Upstream:
/// `SimpleNameGenerator`.
pub fn generated_name(base: &str) -> String {
    let base: String = base.chars().take(58).collect();
    let suffix: String =
        (0..5).map(|_| char::from(ALPHABET[fastrand::usize(..ALPHABET.len())])).collect();
    base + &suffix
}

/// Removes empty lists and maps from the metadata, as serializing its Go type does.
pub fn drop_empty(metadata: &mut Value) {
    for key in ["annotations", "finalizers", "labels", "ownerReferences"] {
        let empty = match metadata.get(key) {
            Some(Value::Array(items)) => items.is_empty(),
            Some(Value::Object(members)) => members.is_empty(),
            _ => false,
        };
        if empty {
            remove(metadata, key);
        }
    }
}

pub fn spec_keys(object: &Value) -> Vec<String> {
    object["spec"].as_object().into_iter().flatten().map(|(key, _)| key.clone()).collect()
}

/// Removes the members of the spec that are not in `asked`, and returns them.
pub fn take_added(object: &mut Value, asked: &[String]) -> Vec<(String, Value)> {
    let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) else {
        return Vec::new();
    };
    let added: Vec<String> = spec.keys().filter(|key| !asked.contains(key)).cloned().collect();
    added.into_iter().filter_map(|key| spec.remove_entry(&key)).collect()
}

/// Returns whether two objects are equal without metadata and status. A change of the rest
/// increases the generation.
pub fn same_content(a: &Value, b: &Value) -> bool {
    let content = |object: &Value| {
        let mut map = object.as_object().cloned().unwrap_or_default();
        map.remove("metadata");
        map.remove("status");
        map
    };
    content(a) == content(b)
}

/// Formats a value as Go's `%v` prints it.
pub fn go_text(value: &Value) -> String {
    let joined = |parts: Vec<String>| parts.join(" ");
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => format!("[{}]", joined(items.iter().map(go_text).collect())),
        Value::Object(members) => {
            let members = members.iter().map(|(key, value)| format!("{key}:{}", go_text(value)));
            format!("map[{}]", joined(members.collect()))
        }
        plain => plain.to_string(),
    }
}

/// Sets a condition in `status.conditions`; its transition time changes only with its status.
pub fn set_condition(object: &mut Value, now: &str, mut condition: Value) {
    let conditions = &mut object["status"]["conditions"];
    if !conditions.is_array() {
        *conditions = json!([]);
    }
    condition["lastTransitionTime"] = now.into();
    let Some(conditions) = conditions.as_array_mut() else { return };
    match conditions.iter_mut().find(|known| known["type"] == condition["type"]) {
        Some(known) => {
            if known["status"] == condition["status"] {
                condition["lastTransitionTime"] = known["lastTransitionTime"].clone();
            }
            *known = condition;
        }
        None => conditions.push(condition),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_uids_have_the_form_of_upstreams() {
        let name = generated_name(&"x".repeat(70));
        assert_eq!((name.len(), &name[..58]), (63, &*"x".repeat(58)));
        let uid = uuid();
        assert_eq!((uid.len(), &uid[14..15]), (36, "4"));
        assert!("89ab".contains(&uid[19..20]), "{uid}");
    }
}
