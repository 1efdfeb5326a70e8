//! Rules in CEL of structural schemas. Upstream: `apiextensions-apiserver/pkg/apiserver/schema/cel`.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cel_compiler::{RESERVED, on_deep_stack};
use jiff::Timestamp;
use serde_json::Value;

use super::fault::{duplicate, forbidden, invalid, required};
use super::json::{list, members, text, truth};
use super::schema::{additional, is_own, property};
use crate::cel::{self, Key, Program, Variables, parse_duration};
use crate::status::Cause;

const RULES: &str = "x-kubernetes-validations";
/// The longest message that an expression may make. Upstream:
/// `MaxEvaluatedMessageExpressionSizeBytes`.
const MAX_MESSAGE_BYTES: usize = 5 * 1024;

/// Returns whether a rule is in the schema or below it.
pub fn any(schema: &Value) -> bool {
    schema.get(RULES).is_some()
        || members(schema, "/properties").any(|(_, below)| any(below))
        || ["items", "additionalProperties"].iter().filter_map(|key| schema.get(key)).any(any)
}

/// Evaluates the CEL rules of a schema on an object, and returns their faults. `old`: the object
/// before an update.
pub fn check(schema: &Value, object: &Value, old: Option<&Value>) -> Vec<Cause> {
    let found = on_deep_stack(|| {
        let mut faults = Vec::new();
        check_at(schema, object, old, "", true, &mut faults);
        faults
    });
    found.unwrap_or_else(|error| vec![invalid("<nil>", &"".into(), &error.to_string())])
}

/// Returns a fault for each rule of the schema at `at` whose syntax is wrong. Types are not
/// checked.
pub fn syntax(schema: &Value, at: &str) -> Vec<Cause> {
    let mut faults = Vec::new();
    for (n, rule) in list(schema, &format!("/{RULES}")).iter().enumerate() {
        for key in ["rule", "messageExpression"] {
            let source = text(rule, &format!("/{key}"));
            if source.trim().is_empty() {
                continue;
            }
            if let Ok(Err(issue)) = on_deep_stack(|| Program::parse(source)) {
                let detail = format!("compilation failed: {issue}");
                faults.push(invalid(format!("{at}.{RULES}[{n}].{key}"), &source.into(), &detail));
            }
        }
    }
    faults
}

/// Evaluates the CEL rules of the schema on a value at path `at`, then on all values below it. No
/// rule applies to null.
fn check_at(
    schema: &Value,
    value: &Value,
    old: Option<&Value>,
    at: &str,
    is_resource: bool,
    faults: &mut Vec<Cause>,
) {
    if value.is_null() {
        return;
    }
    let is_resource = is_resource || truth(schema, "/x-kubernetes-embedded-resource");
    check_rules(schema, value, old.filter(|old| !old.is_null()), at, is_resource, faults);
    match value {
        Value::Object(given) => {
            for (name, member) in given.iter().filter(|(name, _)| !is_own(is_resource, name)) {
                let known = property(schema, name);
                let Some(below) = known.or_else(|| additional(schema)) else { continue };
                let path = match (known, at) {
                    (Some(_), "") => name.clone(),
                    (Some(_), _) => format!("{at}.{name}"),
                    (None, _) => format!("{at}[{name}]"),
                };
                let old = old.and_then(|old| old.get(name));
                check_at(below, member, old, &path, false, faults);
            }
        }
        Value::Array(items) => {
            let Some(below) = schema.get("items") else { return };
            for (n, item) in items.iter().enumerate() {
                let old = old.and_then(|old| same_item(schema, old, item));
                check_at(below, item, old, &format!("{at}[{n}]"), false, faults);
            }
        }
        _ => {}
    }
}

/// Returns the item of the old list with the keys of `item`; lists of other types have none.
fn same_item<'a>(schema: &Value, old: &'a Value, item: &Value) -> Option<&'a Value> {
    if text(schema, "/x-kubernetes-list-type") != "map" {
        return None;
    }
    let keys = list(schema, "/x-kubernetes-list-map-keys");
    let keys = || keys.iter().filter_map(Value::as_str);
    old.as_array()?.iter().find(|old| keys().all(|key| old.get(key) == item.get(key)))
}

/// Evaluates the CEL rules of one schema node on its value, and adds a fault for each that fails. A
/// rule that compares with `oldSelf` is skipped when there is no old value.
fn check_rules(
    schema: &Value,
    value: &Value,
    old: Option<&Value>,
    at: &str,
    is_resource: bool,
    faults: &mut Vec<Cause>,
) {
    let rules = list(schema, &format!("/{RULES}"));
    if rules.is_empty() {
        return;
    }
    let new_self = to_cel(schema, value, is_resource);
    let old_self = old.map(|old| to_cel(schema, old, is_resource));
    let kind = text(schema, "/type");
    let place = if at.is_empty() { "<nil>" } else { at };
    for rule in rules {
        let source = text(rule, "/rule").trim();
        let title = match text(rule, "/message").trim() {
            "" => source,
            message => message,
        };
        let rule_fault = |detail: &str| invalid(place, &kind.into(), detail);
        let program = match Program::parse(source) {
            Ok(program) => program,
            Err(issue) => {
                faults.push(rule_fault(&format!("rule compile error: {issue}")));
                continue;
            }
        };
        let uses_old = program.uses("oldSelf");
        let is_optional = truth(rule, "/optionalOldSelf");
        if uses_old && old_self.is_none() && !is_optional {
            continue;
        }
        let mut variables = Variables::default();
        variables.set("self", new_self.clone());
        match (&old_self, is_optional) {
            // With `optionalOldSelf` the old value is a CEL optional, empty at a creation.
            (old_self, true) => variables.set("oldSelf", old_self.clone().into()),
            (Some(old_self), false) => variables.set("oldSelf", old_self.clone()),
            (None, false) => {}
        }
        match program.evaluate(&variables) {
            Ok(cel::Value::Bool(true)) => {}
            // An unchanged value that was already invalid is accepted.
            Ok(_) if !uses_old && old == Some(value) => {}
            Ok(_) => {
                let path = match (at, text(rule, "/fieldPath").trim_start_matches('.')) {
                    (_, "") => place.to_owned(),
                    ("", below) => below.to_owned(),
                    (at, below) => format!("{at}.{below}"),
                };
                faults.push(refusal_cause(rule, path, value, &message(rule, source, &variables)));
            }
            Err(error) if error.starts_with("no such overload") => faults.push(rule_fault(&format!(
                "'{error}': call arguments did not match a supported operator, function or macro \
                 signature for rule: {title}"
            ))),
            Err(error) => faults.push(rule_fault(&format!("{error} evaluating rule: {title}"))),
        }
    }
}

/// Returns the message of a rule that does not hold: that of its expression if it is usable, else
/// its own text, else the rule itself.
fn message(rule: &Value, source: &str, variables: &Variables<'_>) -> String {
    let evaluated = match text(rule, "/messageExpression") {
        "" => None,
        expression => {
            Program::parse(expression).and_then(|evaluated| evaluated.evaluate(variables)).ok()
        }
    };
    let evaluated = evaluated.as_ref().and_then(cel::Value::as_str).unwrap_or_default().trim();
    if !evaluated.is_empty() && evaluated.len() <= MAX_MESSAGE_BYTES && !evaluated.contains('\n') {
        return evaluated.to_owned();
    }
    match text(rule, "/message").trim() {
        "" => format!("failed rule: {source}"),
        message => message.to_owned(),
    }
}

/// Builds the fault of a value that a rule refuses, with the reason that the rule gives. Objects
/// and lists are not shown. Upstream: `fieldErrorForReason`.
fn refusal_cause(rule: &Value, path: String, value: &Value, detail: &str) -> Cause {
    let is_plain = !value.is_object() && !value.is_array();
    match text(rule, "/reason") {
        "FieldValueForbidden" => forbidden(path, detail),
        "FieldValueRequired" => required(path, detail),
        "FieldValueDuplicate" if is_plain => duplicate(path, value),
        "FieldValueDuplicate" => Cause {
            reason: "FieldValueDuplicate",
            message: "Duplicate value".to_owned(),
            field: path,
        },
        _ if is_plain => invalid(path, value, detail),
        _ => Cause {
            reason: "FieldValueInvalid",
            message: format!("Invalid value: {detail}"),
            field: path,
        },
    }
}

/// Converts a value to CEL, with the types from its schema, without the members that the schema
/// does not know or whose name CEL cannot express. Upstream: `UnstructuredToVal`.
fn to_cel(schema: &Value, value: &Value, is_resource: bool) -> cel::Value {
    let untyped = || cel::Value::from(value);
    if truth(schema, "/x-kubernetes-int-or-string") {
        return untyped();
    }
    match (text(schema, "/type"), value) {
        ("object", Value::Object(given)) => {
            let is_resource = is_resource || truth(schema, "/x-kubernetes-embedded-resource");
            let below = |(name, member): (&String, &Value)| {
                if is_own(is_resource, name) {
                    return Some((name.clone(), resource_member(name, member)));
                }
                match (property(schema, name), additional(schema)) {
                    (Some(below), _) => Some((escaped(name)?, to_cel(below, member, false))),
                    (None, Some(below)) => Some((name.clone(), to_cel(below, member, false))),
                    (None, None) => None,
                }
            };
            let members = given.iter().filter_map(below);
            let members = members.map(|(name, member)| (Key::String(name.into()), member));
            cel::Value::Map(Arc::new(members.collect()))
        }
        ("array", Value::Array(items)) => {
            let nothing = Value::Null;
            let below = schema.get("items").unwrap_or(&nothing);
            cel::Value::list(items.iter().map(|item| to_cel(below, item, false)).collect())
        }
        ("number", Value::Number(number)) => {
            cel::Value::Double(number.as_f64().unwrap_or_default())
        }
        ("string", Value::String(given)) => match text(schema, "/format") {
            "date-time" => given.parse().map_or_else(|_| untyped(), cel::Value::Timestamp),
            "date" => {
                let midnight: Result<Timestamp, _> = format!("{given}T00:00:00Z").parse();
                midnight.map_or_else(|_| untyped(), cel::Value::Timestamp)
            }
            "duration" => parse_duration(given).map_or_else(untyped, cel::Value::Duration),
            "byte" => STANDARD
                .decode(given)
                .map_or_else(|_| untyped(), |bytes| cel::Value::Bytes(bytes.into())),
            _ => untyped(),
        },
        _ => untyped(),
    }
}

/// Returns a member of a resource as rules see it: of the metadata only the names.
fn resource_member(name: &str, value: &Value) -> cel::Value {
    if name != "metadata" {
        return value.into();
    }
    let seen = ["name", "generateName"]
        .into_iter()
        .filter_map(|key| Some((Key::String(key.into()), cel::Value::from(value.get(key)?))));
    cel::Value::Map(Arc::new(seen.collect()))
}

/// Returns the name of a property in rules; `None` when rules cannot use it. Upstream:
/// `cel.Escape`.
fn escaped(name: &str) -> Option<String> {
    let mut letters = name.chars();
    if letters.next().is_none_or(|first| first.is_ascii_digit()) {
        return None;
    }
    if RESERVED.contains(&name) {
        return Some(format!("__{name}__"));
    }
    let name = name.replace("__", "__underscores__");
    let mut escaped = String::new();
    for letter in name.chars() {
        match letter {
            '.' => escaped.push_str("__dot__"),
            '-' => escaped.push_str("__dash__"),
            '/' => escaped.push_str("__slash__"),
            letter if letter.is_ascii_alphanumeric() || letter == '_' => escaped.push(letter),
            _ => return None,
        }
    }
    Some(escaped)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn schema() -> Value {
        json!({ "type": "object", "properties": { "spec": {
            "type": "object",
            "x-kubernetes-validations": [
                { "rule": "self.low <= self.high", "messageExpression": "'low is ' + string(self.low)" },
                { "rule": "self.kind == oldSelf.kind", "message": " kind is fixed ",
                  "reason": "FieldValueForbidden", "fieldPath": ".kind" },
            ],
            "properties": {
                "low": { "type": "integer" },
                "high": { "type": "integer", "x-kubernetes-validations": [{ "rule": "self < 100" }] },
                "kind": { "type": "string" },
                "ratio": { "type": "number", "x-kubernetes-validations": [{ "rule": "self < 1.5" }] },
                "when": { "type": "string", "format": "date-time",
                    "x-kubernetes-validations": [{ "rule": "self.getFullYear() > 2000" }] },
                "a-b": { "type": "object", "additionalProperties": { "type": "string" },
                    "x-kubernetes-validations": [{ "rule": "self.all(k, k != 'x')" }] },
                "ports": { "type": "array", "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["name"],
                    "items": { "type": "object",
                        "properties": { "name": { "type": "string" }, "n": { "type": "integer" } },
                        "x-kubernetes-validations": [{ "rule": "self.n >= oldSelf.n" }] } },
            },
        } }, "x-kubernetes-validations": [{ "rule": "!has(self.spec) || !has(self.spec.a__dash__b)\
            || self.metadata.name != 'none'" }] })
    }

    fn faults(object: &Value, old: Option<&Value>) -> Vec<String> {
        assert!(any(&schema()));
        let faults = check(&schema(), object, old);
        faults.into_iter().map(|fault| format!("{}: {}", fault.field, fault.message)).collect()
    }

    #[test]
    fn rules_are_evaluated_at_their_own_level() {
        let object =
            |name: &str, spec: Value| json!({ "metadata": { "name": name }, "spec": spec });
        for (spec, expected) in [
            (json!({ "low": 1, "high": 2, "kind": "a", "ratio": 1 }), vec![]),
            (json!({ "low": 3, "high": 2 }), vec!["spec: Invalid value: low is 3"]),
            (
                json!({ "low": 3, "high": 200 }),
                vec!["spec.high: Invalid value: 200: failed rule: self < 100"],
            ),
            (
                json!({ "low": 3 }),
                vec![
                    "spec: Invalid value: \"object\": no such key: high evaluating rule: self.low <= self.high",
                ],
            ),
            (
                json!({ "low": 1, "high": 2, "when": "1999-01-01T00:00:00Z" }),
                vec![
                    "spec.when: Invalid value: \"1999-01-01T00:00:00Z\": failed rule: self.getFullYear() > 2000",
                ],
            ),
            (
                json!({ "low": 1, "high": 2, "a-b": { "x": "" } }),
                vec!["spec.a-b: Invalid value: failed rule: self.all(k, k != 'x')"],
            ),
        ] {
            assert_eq!(faults(&object("a", spec.clone()), None), expected, "{spec}");
        }
        let named = object("none", json!({ "low": 1, "high": 2, "a-b": {} }));
        assert_eq!(faults(&named, None).len(), 1);
        assert!(faults(&named, None)[0].starts_with("<nil>: Invalid value: failed rule: !has("));
    }

    #[test]
    fn rules_with_old_values_run_on_updates() {
        let object = |kind: &str, ports: Value| json!({ "spec": { "low": 1, "high": 2, "kind": kind, "ports": ports } });
        let old = object("a", json!([{ "name": "p", "n": 2 }, { "name": "q", "n": 2 }]));
        let fine = object("a", json!([{ "name": "q", "n": 3 }, { "name": "r", "n": 0 }]));
        assert_eq!(faults(&fine, Some(&old)), [""; 0]);
        let worse = object("b", json!([{ "name": "q", "n": 1 }]));
        assert_eq!(
            faults(&worse, Some(&old)),
            [
                "spec.kind: Forbidden: kind is fixed",
                "spec.ports[0]: Invalid value: failed rule: self.n >= oldSelf.n",
            ]
        );
        // An unchanged value that was already invalid is accepted.
        let bad = json!({ "spec": { "low": 3, "high": 2, "kind": "a" } });
        let mut more = bad.clone();
        more["x"] = 1.into();
        assert_eq!(faults(&more, Some(&bad)), [""; 0]);
    }

    #[test]
    fn wrong_syntax_is_found_at_definition() {
        let schema =
            json!({ "x-kubernetes-validations": [{ "rule": "self." }, { "rule": "self" }] });
        let faults = syntax(&schema, "a");
        assert_eq!(faults.len(), 1);
        assert_eq!(faults[0].field, "a.x-kubernetes-validations[0].rule");
    }
}
