//! Structural schemas of CustomResourceDefinitions applied to objects.
//! Upstream: `apiextensions-apiserver/pkg/apiserver/schema`.

use serde_json::{Map, Value};

use super::fault::{invalid, required, unsupported, wrong_type};
use super::json::{int, list, truth};
use crate::sandbox::status::Cause;

fn property<'a>(schema: &'a Value, key: &str) -> Option<&'a Value> {
    schema.get("properties")?.get(key)
}

fn additional(schema: &Value) -> Option<&Value> {
    schema.get("additionalProperties").filter(|value| value.is_object())
}

/// Parts of an object that no schema of its own describes.
fn is_own(path_is_root: bool, key: &str) -> bool {
    path_is_root && matches!(key, "apiVersion" | "kind" | "metadata")
}

/// Drops the members the schema does not know.
pub fn prune(schema: &Value, object: &mut Value) {
    prune_at(schema, object, true);
}

fn prune_at(schema: &Value, value: &mut Value, root: bool) {
    match value {
        Value::Object(members) => {
            let keep = truth(schema, "/x-kubernetes-preserve-unknown-fields")
                || schema.get("additionalProperties").is_some_and(|a| *a != Value::Bool(false));
            let resource = root || truth(schema, "/x-kubernetes-embedded-resource");
            members
                .retain(|key, _| keep || is_own(resource, key) || property(schema, key).is_some());
            for (key, member) in members.iter_mut().filter(|(key, _)| !is_own(resource, key)) {
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

/// Fills in the schema's defaults where a member is absent, or null and not nullable.
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
        _ => {}
    }
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn is_of_type(schema: &Value, value: &Value) -> bool {
    let (wanted, given) = (super::json::text(schema, "/type"), type_name(value));
    let either = truth(schema, "/x-kubernetes-int-or-string");
    match given {
        "null" => truth(schema, "/nullable") || wanted.is_empty() && !either,
        _ if either => matches!(given, "string" | "integer"),
        "integer" => matches!(wanted, "" | "integer" | "number"),
        _ => wanted.is_empty() || wanted == given,
    }
}

/// Faults of `value` at the path `at` under the schema: types, required members, enums, bounds of
/// numbers, lengths. Patterns, formats and CEL rules are not looked at.
pub fn check(schema: &Value, value: &Value, at: &str, faults: &mut Vec<Cause>) {
    if !is_of_type(schema, value) {
        let wanted = match super::json::text(schema, "/type") {
            "" => "integer or string",
            wanted => wanted,
        };
        let field = if at.is_empty() { "<nil>" } else { at };
        let detail = format!("{field} in body must be of type {wanted}: \"{}\"", type_name(value));
        faults.push(wrong_type(at, &type_name(value).into(), &detail));
        return;
    }
    let allowed = list(schema, "/enum");
    if !allowed.is_empty() && !allowed.contains(value) {
        let allowed: Vec<String> = allowed
            .iter()
            .map(|v| v.as_str().map_or_else(|| v.to_string(), str::to_owned))
            .collect();
        faults.push(unsupported(
            at,
            value,
            &allowed.iter().map(String::as_str).collect::<Vec<_>>(),
        ));
    }
    match value {
        Value::Object(members) => check_members(schema, members, at, faults),
        Value::Array(items) => {
            let bounds = [("/minItems", false), ("/maxItems", true)];
            check_count(schema, items.len(), "items", bounds, at, value, faults);
            if let Some(of) = schema.get("items") {
                for (n, item) in items.iter().enumerate() {
                    check(of, item, &format!("{at}[{n}]"), faults);
                }
            }
        }
        Value::String(text) => {
            let bounds = [("/minLength", false), ("/maxLength", true)];
            check_count(schema, text.chars().count(), "chars long", bounds, at, value, faults);
        }
        Value::Number(number) => {
            let number = number.as_f64().unwrap_or(0.0);
            let bound = |name: &str| schema.get(name).and_then(Value::as_f64);
            if let Some(least) = bound("minimum").filter(|least| number < *least) {
                let detail = format!("{at} in body should be greater than or equal to {least}");
                faults.push(invalid(at, value, &detail));
            }
            if let Some(most) = bound("maximum").filter(|most| number > *most) {
                let detail = format!("{at} in body should be less than or equal to {most}");
                faults.push(invalid(at, value, &detail));
            }
        }
        Value::Null | Value::Bool(_) => {}
    }
}

fn check_members(schema: &Value, members: &Map<String, Value>, at: &str, faults: &mut Vec<Cause>) {
    let join = |key: &str| if at.is_empty() { key.to_owned() } else { format!("{at}.{key}") };
    for key in list(schema, "/required").iter().filter_map(Value::as_str) {
        if !members.contains_key(key) {
            faults.push(required(join(key), ""));
        }
    }
    for (key, member) in members.iter().filter(|(key, _)| !is_own(at.is_empty(), key)) {
        if let Some(of) = property(schema, key).or_else(|| additional(schema)) {
            check(of, member, &join(key), faults);
        }
    }
}

fn check_count(
    schema: &Value,
    count: usize,
    what: &str,
    bounds: [(&str, bool); 2],
    at: &str,
    value: &Value,
    faults: &mut Vec<Cause>,
) {
    for (pointer, most) in bounds {
        let Some(bound) = int(schema, pointer).and_then(|bound| usize::try_from(bound).ok()) else {
            continue;
        };
        if most && count > bound {
            let detail = format!("{at} in body should be at most {bound} {what}");
            faults.push(invalid(at, value, &detail));
        } else if !most && count < bound {
            let detail = format!("{at} in body should be at least {bound} {what}");
            faults.push(invalid(at, value, &detail));
        }
    }
}
