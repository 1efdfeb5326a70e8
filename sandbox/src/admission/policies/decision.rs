//! Evaluates a policy for a request with one set of parameters.
//! Upstream: `admission/plugin/policy/validating.validator`.

use serde_json::Value as Json;

use crate::cel::{Authorize, Program, Value, Variables};
use crate::object::{list, text};

/// The longest message that an expression may make. Upstream:
/// `MaxEvaluatedMessageExpressionSizeBytes`.
const MAX_MESSAGE_BYTES: usize = 5 * 1024;

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    /// The status reason that the validation names.
    pub reason: &'static str,
    pub message: String,
}

impl Refusal {
    /// Returns the refusal when the policy itself fails.
    pub fn invalid(message: String) -> Refusal {
        Refusal { reason: "Invalid", message }
    }
}

/// Evaluates a policy for one request, and returns its refusals: none if the request is allowed.
/// `values` are the CEL variables of the request; the policy's own variables are evaluated on first
/// use.
pub fn decide(
    policy: &Json,
    values: &[(&'static str, Value)],
    authorize: &dyn Authorize,
) -> Vec<Refusal> {
    let spec = &policy["spec"];
    let declared: Vec<(&str, Result<Program, String>)> = list(spec, "/variables")
        .iter()
        .map(|variable| (text(variable, "/name"), compiled(text(variable, "/expression"))))
        .collect();
    let mut variables = Variables::new(authorize);
    for (name, value) in values {
        variables.set(name, value.clone());
    }
    for (name, program) in &declared {
        variables.add_lazy(name, program.as_ref().map_err(String::clone));
    }
    judge(spec, &variables)
}

/// Returns a refusal for each validation that does not hold, if the match conditions of the policy
/// do. An expression that cannot be evaluated refuses too, unless the policy ignores failures.
fn judge(spec: &Json, variables: &Variables<'_>) -> Vec<Refusal> {
    let error_refuses = text(spec, "/failurePolicy") != "Ignore";
    let refuse_failure = |message: String| -> Vec<Refusal> {
        if error_refuses { vec![Refusal::invalid(message)] } else { Vec::new() }
    };
    match conditions_hold(spec, variables) {
        Ok(true) => {}
        Ok(false) => return Vec::new(),
        Err(error) => return refuse_failure(error),
    }
    let mut refusals = Vec::new();
    for validation in list(spec, "/validations") {
        match evaluate(text(validation, "/expression"), variables) {
            Ok(Value::Bool(true)) => {}
            Ok(_) => refusals.push(Refusal {
                reason: reason(text(validation, "/reason")),
                message: message(validation, variables),
            }),
            Err(error) => refusals.extend(refuse_failure(error)),
        }
    }
    refusals
}

fn compiled(source: &str) -> Result<Program, String> {
    Program::parse(source).map_err(|error| format!("compilation error: {error}"))
}

fn evaluate(source: &str, variables: &Variables<'_>) -> Result<Value, String> {
    compiled(source)?
        .evaluate(variables)
        .map_err(|error| format!("expression '{source}' resulted in error: {error}"))
}

/// Returns whether all match conditions of a policy hold. A false one decides, even if others fail.
/// Upstream: `matchconditions.Matcher`.
fn conditions_hold(spec: &Json, variables: &Variables<'_>) -> Result<bool, String> {
    let mut errors = Vec::new();
    for condition in list(spec, "/matchConditions") {
        match evaluate(text(condition, "/expression"), variables) {
            Ok(Value::Bool(false)) => return Ok(false),
            Ok(_) => {}
            Err(error) => errors.push(error),
        }
    }
    match errors.as_slice() {
        [] => Ok(true),
        [one] => Err(one.clone()),
        _ => Err(format!("[{}]", errors.join(", "))),
    }
}

/// Returns the message of a refusal: that of its expression if it is usable, else its own text,
/// else the validation itself.
fn message(validation: &Json, variables: &Variables<'_>) -> String {
    let source = text(validation, "/messageExpression");
    let evaluated = match source {
        "" => None,
        _ => evaluate(source, variables).ok(),
    };
    let evaluated = evaluated.as_ref().and_then(Value::as_str).unwrap_or_default().trim();
    if !evaluated.is_empty() && evaluated.len() <= MAX_MESSAGE_BYTES && !evaluated.contains('\n') {
        return evaluated.to_owned();
    }
    match text(validation, "/message").trim() {
        "" => format!("failed expression: {}", text(validation, "/expression").trim()),
        given => given.to_owned(),
    }
}

/// Returns the reason of a validation as a static string; `Invalid` for an absent or unknown one.
fn reason(given: &str) -> &'static str {
    match given {
        "Unauthorized" => "Unauthorized",
        "Forbidden" => "Forbidden",
        "RequestEntityTooLarge" => "RequestEntityTooLarge",
        _ => "Invalid",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Access;
    use serde_json::json;

    struct Nothing;

    impl Authorize for Nothing {
        fn authorize(&self, _: Option<&(String, String)>, _: &Access) -> Result<String, String> {
            Err("no".to_owned())
        }
    }

    fn refusals(spec: Json) -> Vec<(&'static str, String)> {
        let object = json!({ "spec": { "replicas": 7 } });
        let values = [("object", Value::from(&object)), ("params", Value::Null)];
        let found = decide(&json!({ "spec": spec }), &values, &Nothing);
        found.into_iter().map(|refusal| (refusal.reason, refusal.message)).collect()
    }

    #[test]
    fn a_policy_refuses_what_its_validations_do() {
        let few = json!({ "expression": "object.spec.replicas <= 5" });
        let with = |more: Json| {
            let mut validation = few.clone();
            validation.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap());
            json!({ "validations": [validation] })
        };
        let by_default = "failed expression: object.spec.replicas <= 5";
        for (spec, expected) in [
            (json!({ "validations": [{ "expression": "object.spec.replicas > 5" }] }), vec![]),
            (json!({ "validations": [few] }), vec![("Invalid", by_default)]),
            (with(json!({ "message": " few! " })), vec![("Invalid", "few!")]),
            (with(json!({ "reason": "Forbidden" })), vec![("Forbidden", by_default)]),
            (
                with(json!({ "messageExpression": "'not ' + string(object.spec.replicas)" })),
                vec![("Invalid", "not 7")],
            ),
            // The message replaces that of an expression which fails or returns an empty text.
            (
                with(json!({ "messageExpression": "object.nope", "message": "few" })),
                vec![("Invalid", "few")],
            ),
            (
                with(json!({ "messageExpression": "' '", "message": "few" })),
                vec![("Invalid", "few")],
            ),
            (
                json!({ "variables": [{ "name": "n", "expression": "object.spec.replicas" }],
                    "validations": [{ "expression": "variables.n < 3", "message": "m" }] }),
                vec![("Invalid", "m")],
            ),
            // A condition that is false decides, even if others fail.
            (
                json!({ "validations": [few], "matchConditions": [
                    { "name": "a", "expression": "object.nope" },
                    { "name": "b", "expression": "object.spec.replicas > 10" },
                ] }),
                vec![],
            ),
            (
                json!({ "validations": [few], "matchConditions": [
                    { "name": "a", "expression": "object.nope" },
                ] }),
                vec![("Invalid", "expression 'object.nope' resulted in error: no such key: nope")],
            ),
            (
                json!({ "validations": [{ "expression": "object.nope" }] }),
                vec![("Invalid", "expression 'object.nope' resulted in error: no such key: nope")],
            ),
            (
                json!({ "failurePolicy": "Ignore", "validations": [{ "expression": "object.nope" }] }),
                vec![],
            ),
        ] {
            let expected: Vec<_> = expected
                .into_iter()
                .map(|(reason, message)| (reason, message.to_owned()))
                .collect();
            assert_eq!(refusals(spec.clone()), expected, "{spec}");
        }
    }
}
