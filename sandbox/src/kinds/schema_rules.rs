//! Validates objects against structural schemas; `schema_expressions` has their rules in CEL.
//! Upstream: `kube-openapi/pkg/validation/validate`, `apiextensions-apiserver/pkg/apiserver`.

use regex_lite::Regex;
use serde_json::{Map, Value};

use super::fault::{duplicate, invalid, required, too_long, too_many, unsupported, wrong_type};
use super::formats;
use super::json::{int, list, text, truth};
use super::schema::{additional, is_own, property};
use crate::status::Cause;

/// Returns the faults of a whole object. `old` is the object before an update: a fault that it had
/// and that has not changed is accepted.
pub fn check(schema: &Value, object: &Value, old: Option<&Value>) -> Vec<Cause> {
    let mut faults = Vec::new();
    check_at(schema, object, old, "", &mut faults);
    faults
}

/// Returns a fault that belongs to no field.
fn of_no_field(detail: &str) -> Cause {
    invalid("<nil>", &"".into(), detail)
}

/// Returns the name of a value's type in OpenAPI's terms.
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

/// Tests whether a value has the type that its schema wants. An integer is a number too. Null fits
/// a nullable schema, and one that names no type.
fn is_of_type(schema: &Value, value: &Value) -> bool {
    let (wanted, given) = (text(schema, "/type"), type_name(value));
    let either = truth(schema, "/x-kubernetes-int-or-string");
    match given {
        "null" => truth(schema, "/nullable") || wanted.is_empty() && !either,
        _ if either => matches!(given, "string" | "integer"),
        "integer" => matches!(wanted, "" | "integer" | "number"),
        _ => wanted.is_empty() || wanted == given,
    }
}

/// Checks a value at path `at` against its schema, then all values below it. An unchanged value is
/// accepted, so that a schema may become stricter.
fn check_at(schema: &Value, value: &Value, old: Option<&Value>, at: &str, faults: &mut Vec<Cause>) {
    if old == Some(value) {
        return;
    }
    if !is_of_type(schema, value) {
        let wanted = match text(schema, "/type") {
            "" => "integer,string",
            wanted => wanted,
        };
        let field = if at.is_empty() { "<nil>" } else { at };
        let given = type_name(value);
        let detail = format!("{field} in body must be of type {wanted}: {given:?}");
        faults.push(wrong_type(at, &given.into(), &detail));
        // A fraction in place of an integer has two faults, as upstream.
        if (wanted, given) == ("integer", "number") {
            let detail = format!("Checked value must be of type integer (default format) in {at}");
            faults.push(of_no_field(&detail));
        }
        return;
    }
    check_choices(schema, value, old, at, faults);
    match value {
        Value::Object(members) => check_members(schema, members, old, at, faults),
        Value::Array(items) => check_items(schema, items, old, at, faults),
        Value::String(given) => faults.extend(wrong_text(schema, given, at)),
        Value::Number(number) => {
            let range = match text(schema, "/format") {
                "int32" => Some((i64::from(i32::MIN), i64::from(i32::MAX))),
                _ => None,
            };
            let within = |(least, most)| number.as_i64().is_some_and(|n| least <= n && n <= most);
            match range.filter(|range| text(schema, "/type") == "integer" && !within(*range)) {
                Some(_) => faults.push(of_no_field(&format!(
                    "Checked value must be of type integer with format int32 in {at}"
                ))),
                None => faults.extend(wrong_number(schema, value, at)),
            }
        }
        Value::Null | Value::Bool(_) => {}
    }
    let allowed = list(schema, "/enum");
    if !allowed.is_empty() && !allowed.contains(value) {
        let plain = |v: &Value| v.as_str().map_or_else(|| v.to_string(), str::to_owned);
        let allowed: Vec<String> = allowed.iter().map(plain).collect();
        let allowed: Vec<&str> = allowed.iter().map(String::as_str).collect();
        faults.push(unsupported(at, value, &allowed));
    }
}

/// Checks the value against `anyOf`, `oneOf`, `allOf` and `not` of the schema.
fn check_choices(
    schema: &Value,
    value: &Value,
    old: Option<&Value>,
    at: &str,
    faults: &mut Vec<Cause>,
) {
    let faults_of = |of: &Value| {
        let mut faults = Vec::new();
        check_at(of, value, old, at, &mut faults);
        faults
    };
    let faults_of_each = |key: &str| -> Vec<Vec<Cause>> {
        list(schema, &format!("/{key}")).iter().map(faults_of).collect()
    };
    let any = faults_of_each("anyOf");
    if let Some(first) = any.first()
        && any.iter().all(|faults| !faults.is_empty())
    {
        let detail = format!("{at:?} must validate at least one schema (anyOf)");
        faults.push(of_no_field(&detail));
        faults.extend(first.iter().cloned());
    }
    let one = faults_of_each("oneOf");
    let valid = one.iter().filter(|faults| faults.is_empty()).count();
    if !one.is_empty() && valid != 1 {
        let found = match valid {
            0 => "Found none valid".to_owned(),
            many => format!("Found {many} valid alternatives"),
        };
        let detail = format!("{at:?} must validate one and only one schema (oneOf). {found}");
        faults.push(of_no_field(&detail));
        if valid == 0 {
            faults.extend(one[0].iter().cloned());
        }
    }
    let all = faults_of_each("allOf");
    let failed = all.iter().filter(|faults| !faults.is_empty()).count();
    if failed > 0 {
        let none = if failed == all.len() { ". None validated" } else { "" };
        faults.extend(all.into_iter().flatten());
        let detail = format!("{at:?} must validate all the schemas (allOf){none}");
        faults.push(of_no_field(&detail));
    }
    if schema.get("not").is_some_and(|not| faults_of(not).is_empty()) {
        faults.push(of_no_field(&format!("{at:?} must not validate the schema (not)")));
    }
}

/// Checks the members of an object: their number, the required ones, and each against its schema.
fn check_members(
    schema: &Value,
    members: &Map<String, Value>,
    old: Option<&Value>,
    at: &str,
    faults: &mut Vec<Cause>,
) {
    let join = |key: &str| if at.is_empty() { key.to_owned() } else { format!("{at}.{key}") };
    faults.extend(wrong_count(schema, members.len(), "Properties", at));
    for key in list(schema, "/required").iter().filter_map(Value::as_str) {
        if !members.contains_key(key) {
            faults.push(required(join(key), ""));
        }
    }
    let is_root = at.is_empty();
    if truth(schema, "/x-kubernetes-embedded-resource") {
        let lacks = |key: &&str| !members.contains_key(*key);
        faults.extend(
            ["apiVersion", "kind"].into_iter().filter(lacks).map(|k| required(join(k), "")),
        );
    }
    for (key, member) in members.iter().filter(|(key, _)| !is_own(is_root, key)) {
        if let Some(of) = property(schema, key).or_else(|| additional(schema)) {
            let old = old.and_then(|old| old.get(key));
            check_at(of, member, old, &join(key), faults);
        }
    }
}

/// Checks the items of a list: each against its schema, their number, and that none occurs twice in
/// a list of type `set` or `map`.
fn check_items(
    schema: &Value,
    items: &[Value],
    old: Option<&Value>,
    at: &str,
    faults: &mut Vec<Cause>,
) {
    let keys = list(schema, "/x-kubernetes-list-map-keys");
    // The identity of a list's item, if it has one.
    let identity = |item: &Value| match text(schema, "/x-kubernetes-list-type") {
        "set" => Some(item.clone()),
        "map" => {
            let names = keys.iter().filter_map(Value::as_str);
            Some(names.filter_map(|key| Some((key.to_owned(), item.get(key)?.clone()))).collect())
        }
        _ => None,
    };
    let before = |item: &Value| {
        let wanted = identity(item)?;
        let mut old = old?.as_array()?.iter();
        old.find(|old| identity(old).as_ref() == Some(&wanted))
    };
    if let Some(of) = schema.get("items") {
        for (n, item) in items.iter().enumerate() {
            check_at(of, item, before(item), &format!("{at}[{n}]"), faults);
        }
    }
    faults.extend(wrong_count(schema, items.len(), "Items", at));
    let identities: Vec<Option<Value>> = items.iter().map(identity).collect();
    for (n, own) in identities.iter().enumerate() {
        if let Some(own) = own
            && identities[..n].contains(&Some(own.clone()))
        {
            faults.push(duplicate(format!("{at}[{n}]"), own));
        }
    }
}

/// Returns a fault unless the number of items or properties is within the schema's bounds. `what`:
/// `Items` or `Properties`.
fn wrong_count(schema: &Value, count: usize, what: &str, at: &str) -> Option<Cause> {
    let bound = |of: &str| {
        int(schema, &format!("/{of}{what}")).and_then(|bound| usize::try_from(bound).ok())
    };
    if let Some(most) = bound("max").filter(|most| count > *most) {
        return Some(too_many(at, count, most));
    }
    let least = bound("min").filter(|least| count < *least)?;
    let what = what.to_lowercase();
    Some(invalid(at, &count.into(), &format!("{at} in body should have at least {least} {what}")))
}

/// Checks a string against its schema: length, pattern and format. One fault of length or pattern
/// is reported at most.
fn wrong_text(schema: &Value, given: &str, at: &str) -> Vec<Cause> {
    let mut faults = Vec::new();
    let value = Value::from(given);
    let bound = |pointer: &str| int(schema, pointer).and_then(|n| usize::try_from(n).ok());
    let count = given.chars().count();
    let pattern = text(schema, "/pattern");
    if let Some(most) = bound("/maxLength").filter(|most| count > *most) {
        faults.push(too_long(at, most));
    } else if let Some(least) = bound("/minLength").filter(|least| count < *least) {
        let detail = format!("{at} in body should be at least {least} chars long");
        faults.push(invalid(at, &value, &detail));
    } else if !pattern.is_empty()
        && Regex::new(pattern).is_ok_and(|pattern| !pattern.is_match(given))
    {
        faults.push(invalid(at, &value, &format!("{at} in body should match '{pattern}'")));
    }
    let format = text(schema, "/format");
    if !formats::fits(format, given) {
        let detail = format!("{at} in body must be of type {format}: {value}");
        faults.push(invalid(at, &value, &detail));
    }
    faults
}

/// Checks a number against `multipleOf`, `maximum` and `minimum` of the schema.
fn wrong_number(schema: &Value, value: &Value, at: &str) -> Vec<Cause> {
    let number = value.as_f64().unwrap_or(0.0);
    let bound = |name: &str| schema.get(name).and_then(Value::as_f64);
    let mut details = Vec::new();
    if let Some(step) = bound("multipleOf").filter(|step| (number / step).fract() != 0.0) {
        details.push(format!("should be a multiple of {step}"));
    }
    if let Some(most) = bound("maximum") {
        match truth(schema, "/exclusiveMaximum") {
            true if number >= most => details.push(format!("should be less than {most}")),
            false if number > most => {
                details.push(format!("should be less than or equal to {most}"));
            }
            _ => {}
        }
    }
    if let Some(least) = bound("minimum") {
        match truth(schema, "/exclusiveMinimum") {
            true if number <= least => details.push(format!("should be greater than {least}")),
            false if number < least => {
                details.push(format!("should be greater than or equal to {least}"));
            }
            _ => {}
        }
    }
    details.iter().map(|detail| invalid(at, value, &format!("{at} in body {detail}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn schema() -> Value {
        json!({ "type": "object", "required": ["size"], "properties": {
            "size": { "type": "integer", "minimum": 1, "maximum": 10 },
            "ratio": { "type": "number", "minimum": 0, "exclusiveMinimum": true },
            "color": { "type": "string", "enum": ["red", "blue"] },
            "level": { "type": "integer", "enum": [1, 2] },
            "name": { "type": "string", "pattern": "^[a-z]+$", "minLength": 2, "maxLength": 4 },
            "tags": { "type": "array", "minItems": 1, "maxItems": 2,
                "items": { "type": "string", "minLength": 1 } },
            "ids": { "type": "array", "x-kubernetes-list-type": "set",
                "items": { "type": "string" } },
            "ports": { "type": "array", "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["id"],
                "items": { "type": "object", "required": ["id"],
                    "properties": { "id": { "type": "integer" }, "to": { "type": "integer" } } } },
            "even": { "type": "integer", "multipleOf": 2 },
            "small": { "type": "integer", "format": "int32" },
            "map": { "type": "object", "minProperties": 1, "maxProperties": 2,
                "additionalProperties": { "type": "integer" } },
            "either": { "x-kubernetes-int-or-string": true },
            "ip": { "type": "string", "format": "ipv4" },
            "any": { "type": "object", "x-kubernetes-preserve-unknown-fields": true,
                "properties": { "known": { "type": "integer" } } },
            "pod": { "type": "object", "x-kubernetes-embedded-resource": true },
            "one": { "type": "object", "oneOf": [{ "required": ["a"] }, { "required": ["b"] }] },
            "some": { "type": "object", "anyOf": [{ "required": ["a"] }, { "required": ["b"] }] },
            "all": { "type": "object", "allOf": [{ "required": ["a"] }, { "type": "object" }] },
            "not": { "type": "string", "not": { "enum": ["bad"] } },
        } })
    }

    /// The faults that a kube-apiserver 1.36 reports for the same schema under `spec`.
    #[test]
    fn faults_equal_those_of_a_real_server() {
        let schema = json!({ "type": "object", "properties": { "spec": schema() } });
        for (spec, expected) in [
            (json!({ "size": 3 }), &[][..]),
            (json!({}), &["spec.size: Required value"]),
            (
                json!({ "size": 0 }),
                &[
                    "spec.size: Invalid value: 0: spec.size in body should be greater than or equal to 1",
                ],
            ),
            (
                json!({ "size": 11 }),
                &[
                    "spec.size: Invalid value: 11: spec.size in body should be less than or equal to 10",
                ],
            ),
            (
                json!({ "size": "a" }),
                &[
                    "spec.size: Invalid value: \"string\": spec.size in body must be of type integer: \"string\"",
                ],
            ),
            (
                json!({ "size": 1.5 }),
                &[
                    "spec.size: Invalid value: \"number\": spec.size in body must be of type integer: \"number\"",
                    "<nil>: Invalid value: \"\": Checked value must be of type integer (default format) in spec.size",
                ],
            ),
            (
                json!({ "size": 1, "ratio": 0 }),
                &["spec.ratio: Invalid value: 0: spec.ratio in body should be greater than 0"],
            ),
            (
                json!({ "size": 1, "color": "green" }),
                &["spec.color: Unsupported value: \"green\": supported values: \"red\", \"blue\""],
            ),
            (
                json!({ "size": 1, "level": 3 }),
                &["spec.level: Unsupported value: 3: supported values: \"1\", \"2\""],
            ),
            (
                json!({ "size": 1, "name": "ABC" }),
                &["spec.name: Invalid value: \"ABC\": spec.name in body should match '^[a-z]+$'"],
            ),
            (
                json!({ "size": 1, "name": "a" }),
                &[
                    "spec.name: Invalid value: \"a\": spec.name in body should be at least 2 chars long",
                ],
            ),
            (
                json!({ "size": 1, "name": "ABCDEF" }),
                &["spec.name: Too long: may not be more than 4 bytes"],
            ),
            (
                json!({ "size": 1, "tags": [] }),
                &["spec.tags: Invalid value: 0: spec.tags in body should have at least 1 items"],
            ),
            (
                json!({ "size": 1, "tags": ["a", "b", ""] }),
                &[
                    "spec.tags[2]: Invalid value: \"\": spec.tags[2] in body should be at least 1 chars long",
                    "spec.tags: Too many: 3: must have at most 2 items",
                ],
            ),
            (json!({ "size": 1, "ids": ["a", "a"] }), &["spec.ids[1]: Duplicate value: \"a\""]),
            (
                json!({ "size": 1, "ports": [{ "id": 1 }, { "id": 1, "to": 2 }] }),
                &["spec.ports[1]: Duplicate value: {\"id\":1}"],
            ),
            (json!({ "size": 1, "ports": [{}] }), &["spec.ports[0].id: Required value"]),
            (
                json!({ "size": 1, "even": 3 }),
                &["spec.even: Invalid value: 3: spec.even in body should be a multiple of 2"],
            ),
            (
                json!({ "size": 1, "small": 3_000_000_000i64 }),
                &[
                    "<nil>: Invalid value: \"\": Checked value must be of type integer with format int32 in spec.small",
                ],
            ),
            (
                json!({ "size": 1, "map": {} }),
                &["spec.map: Invalid value: 0: spec.map in body should have at least 1 properties"],
            ),
            (
                json!({ "size": 1, "map": { "a": 1, "b": 2, "c": 3 } }),
                &["spec.map: Too many: 3: must have at most 2 items"],
            ),
            (
                json!({ "size": 1, "map": { "a": "x" } }),
                &[
                    "spec.map.a: Invalid value: \"string\": spec.map.a in body must be of type integer: \"string\"",
                ],
            ),
            (json!({ "size": 1, "either": "5%" }), &[]),
            (
                json!({ "size": 1, "either": true }),
                &[
                    "spec.either: Invalid value: \"boolean\": spec.either in body must be of type integer,string: \"boolean\"",
                ],
            ),
            (
                json!({ "size": 1, "ip": "::1" }),
                &["spec.ip: Invalid value: \"::1\": spec.ip in body must be of type ipv4: \"::1\""],
            ),
            (
                json!({ "size": 1, "any": { "known": "x", "more": 1 } }),
                &[
                    "spec.any.known: Invalid value: \"string\": spec.any.known in body must be of type integer: \"string\"",
                ],
            ),
            (
                json!({ "size": 1, "pod": { "a": 1 } }),
                &["spec.pod.apiVersion: Required value", "spec.pod.kind: Required value"],
            ),
            (
                json!({ "size": 1, "one": {} }),
                &[
                    "<nil>: Invalid value: \"\": \"spec.one\" must validate one and only one schema (oneOf). Found none valid",
                    "spec.one.a: Required value",
                ],
            ),
            (
                json!({ "size": 1, "one": { "a": 1, "b": 2 } }),
                &[
                    "<nil>: Invalid value: \"\": \"spec.one\" must validate one and only one schema (oneOf). Found 2 valid alternatives",
                ],
            ),
            (
                json!({ "size": 1, "some": {} }),
                &[
                    "<nil>: Invalid value: \"\": \"spec.some\" must validate at least one schema (anyOf)",
                    "spec.some.a: Required value",
                ],
            ),
            (
                json!({ "size": 1, "all": {} }),
                &[
                    "spec.all.a: Required value",
                    "<nil>: Invalid value: \"\": \"spec.all\" must validate all the schemas (allOf)",
                ],
            ),
            (
                json!({ "size": 1, "not": "bad" }),
                &["<nil>: Invalid value: \"\": \"spec.not\" must not validate the schema (not)"],
            ),
        ] {
            let object = json!({ "metadata": { "name": "a" }, "spec": spec });
            let messages: Vec<String> = check(&schema, &object, None)
                .into_iter()
                .map(|cause| format!("{}: {}", cause.field, cause.message))
                .collect();
            assert_eq!(messages, expected, "{spec}");
        }
    }

    #[test]
    fn unchanged_invalid_values_are_accepted() {
        let old = json!({ "size": 0, "ports": [{ "id": 1, "to": "x" }], "ids": [] });
        let mut new = old.clone();
        new["color"] = "red".into();
        new["ports"] = json!([{ "id": 2 }, { "id": 1, "to": "x" }]);
        assert_eq!(check(&schema(), &new, Some(&old)), []);
        assert_eq!(check(&schema(), &new, None).len(), 2);
        new["size"] = 11.into();
        new["ports"][1]["to"] = "y".into();
        assert_eq!(check(&schema(), &new, Some(&old)).len(), 2);
    }
}
