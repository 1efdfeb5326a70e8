//! Structural schemas of CustomResourceDefinitions: pruning and defaulting.
//! Upstream: `apiextensions-apiserver/pkg/apiserver/schema`.

use serde_json::Value;

use super::json::truth;

pub(super) fn property<'a>(schema: &'a Value, key: &str) -> Option<&'a Value> {
    schema.get("properties")?.get(key)
}

pub(super) fn additional(schema: &Value) -> Option<&Value> {
    schema.get("additionalProperties").filter(|value| value.is_object())
}

/// Returns whether `key` is a standard member of a resource, which the schema does not describe.
pub(super) fn is_own(is_resource: bool, key: &str) -> bool {
    is_resource && matches!(key, "apiVersion" | "kind" | "metadata")
}

/// Drops the members the schema does not know.
pub fn prune(schema: &Value, object: &mut Value) {
    prune_at(schema, object, true);
}

/// Removes the fields that the schema does not know from a value and all below it. `root`: the
/// value is the object itself, whose type and metadata stay.
fn prune_at(schema: &Value, value: &mut Value, root: bool) {
    match value {
        Value::Object(members) => {
            let keeps_unknown = truth(schema, "/x-kubernetes-preserve-unknown-fields")
                || schema.get("additionalProperties").is_some_and(|a| *a != Value::Bool(false));
            let is_resource = root || truth(schema, "/x-kubernetes-embedded-resource");
            members.retain(|key, _| {
                keeps_unknown || is_own(is_resource, key) || property(schema, key).is_some()
            });
            for (key, member) in members.iter_mut().filter(|(key, _)| !is_own(is_resource, key)) {
                if let Some(of) = property(schema, key).or_else(|| additional(schema)) {
                    prune_at(of, member, false);
                }
            }
        }
        Value::Array(items) => {
            if let Some(of) = schema.get("items") {
                items.iter_mut().for_each(|item| prune_at(of, item, false));
            }
        }
        _ => {}
    }
}

/// Fills in the schema's defaults where a member is absent, or null and not nullable. A whole
/// number of an integer's type becomes an integer.
pub fn default(schema: &Value, value: &mut Value) {
    match value {
        Value::Object(members) => {
            for (key, of) in
                schema.get("properties").and_then(Value::as_object).into_iter().flatten()
            {
                if members.get(key).is_some_and(Value::is_null) && !truth(of, "/nullable") {
                    members.remove(key);
                }
                if let Some(default) = of.get("default")
                    && !members.contains_key(key)
                {
                    members.insert(key.clone(), default.clone());
                }
            }
            for (key, member) in members.iter_mut() {
                if let Some(of) = property(schema, key).or_else(|| additional(schema)) {
                    default(of, member);
                }
            }
        }
        Value::Array(items) => {
            if let Some(of) = schema.get("items") {
                items.iter_mut().for_each(|item| default(of, item));
            }
        }
        Value::Number(number) if schema["type"] == "integer" => {
            if let Some(whole) = number.as_f64().filter(|n| number.is_f64() && n.fract() == 0.0) {
                *value = (whole as i64).into();
            }
        }
        _ => {}
    }
}
