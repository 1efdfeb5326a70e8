//! Conceals the values of Secrets: replaces them with digests.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

pub const RESOURCE: &str = "secrets";

/// The annotation that contains the whole object with its values.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The hasher, with a random key of this process: values cannot be guessed by comparing digests.
static KEYED: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// Replaces the values in a Secret, or in a patch of one. Equal values have equal digests, whether
/// they stand in `data` or in `stringData`.
pub fn conceal(object: &mut Value) {
    // The operations of a JSON patch.
    for operation in object.as_array_mut().into_iter().flatten() {
        conceal_at(operation, "value", digest_of_text);
    }
    for (field, digest) in [("data", digest_of_base64 as Digest), ("stringData", digest_of_text)] {
        match object.get_mut(field) {
            Some(Value::Object(values)) => values.values_mut().for_each(digest),
            Some(value) => digest_of_text(value),
            None => {}
        }
    }
    if let Some(annotations) = object.pointer_mut("/metadata/annotations") {
        conceal_at(annotations, LAST_APPLIED, digest_of_text);
    }
}

/// Replaces a value with its digest.
type Digest = fn(&mut Value);

/// Replaces one member of `object`, if it exists, with its digest.
fn conceal_at(object: &mut Value, member: &str, digest: Digest) {
    object.get_mut(member).into_iter().for_each(digest);
}

/// Replaces a base64 value with the digest of its decoded bytes. A value that is empty or cannot be
/// decoded is treated as text.
fn digest_of_base64(value: &mut Value) {
    let decoded = value.as_str().and_then(|text| STANDARD.decode(text).ok());
    match decoded.filter(|bytes| !bytes.is_empty()) {
        Some(bytes) => *value = digest_value(&bytes),
        None => digest_of_text(value),
    }
}

/// Replaces a text with its digest. An absent or empty value stays, because it reveals nothing.
fn digest_of_text(value: &mut Value) {
    *value = match &*value {
        Value::Null => return,
        Value::String(text) if text.is_empty() => return,
        Value::String(text) => digest_value(text.as_bytes()),
        other => digest_value(other.to_string().as_bytes()),
    };
}

/// Returns the digest that replaces a value.
fn digest_value(bytes: &[u8]) -> Value {
    format!("digest:{:016x}", KEYED.hash_one(bytes)).into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_of_secrets_are_digests() {
        let applied = |text: &str| json!({ "annotations": { LAST_APPLIED: text, "a": "kept" } });
        for (object, kept) in [
            // The object, patches by merging, and an apply.
            (json!({ "data": { "k": "aHVudGVyMg==" }, "type": "kept" }), true),
            (json!({ "stringData": { "k": "hunter2" }, "type": "kept" }), true),
            (json!({ "metadata": applied("{\"data\":{\"k\":\"aHVudGVyMg==\"}}") }), true),
            (json!({ "data": { "k": "hunter2, which is no base64" } }), false),
            // Bodies that no server accepts.
            (json!({ "data": "hunter2" }), false),
            (json!({ "data": { "k": { "deep": ["hunter2"] } } }), false),
            (json!([{ "op": "add", "path": "/data/k", "value": "aHVudGVyMg==" }]), false),
            (json!([{ "op": "add", "path": "/data", "value": { "k": "aHVudGVyMg==" } }]), false),
        ] {
            let mut concealed = object.clone();
            conceal(&mut concealed);
            let text = concealed.to_string();
            assert!(!text.contains("hunter2") && !text.contains("aHVudGVy"), "{object}: {text}");
            assert!(text.contains("digest:"), "{text}");
            assert_eq!(text.contains("kept"), kept, "{text}");
        }
        let mut emptied = json!({ "data": { "k": null, "l": "" }, "stringData": null });
        let before = emptied.clone();
        conceal(&mut emptied);
        assert_eq!(emptied, before, "nothing is there to conceal");
    }

    #[test]
    fn equal_values_stay_equal() {
        let concealed = |mut object: Value| {
            conceal(&mut object);
            object
        };
        let of = |value: &str| concealed(json!({ "data": { "k": value } }))["data"]["k"].clone();
        let text =
            concealed(json!({ "stringData": { "k": "hunter2" } }))["stringData"]["k"].clone();
        assert_eq!(of("aHVudGVyMg=="), text);
        assert_ne!(of("aHVudGVyMw=="), text);
    }
}
