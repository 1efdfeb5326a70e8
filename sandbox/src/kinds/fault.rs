//! Faults with upstream's messages. Upstream: `apimachinery/pkg/util/validation/field`.

use serde_json::Value;

use crate::status::Cause;

fn cause(reason: &'static str, field: impl Into<String>, message: String) -> Cause {
    Cause { reason, message, field: field.into() }
}

fn with_detail(kind: &str, detail: &str) -> String {
    if detail.is_empty() { kind.to_owned() } else { format!("{kind}: {detail}") }
}

pub fn required(field: impl Into<String>, detail: &str) -> Cause {
    cause("FieldValueRequired", field, with_detail("Required value", detail))
}

/// Builds the fault of an invalid value. `value` is printed as JSON, so text is quoted.
pub fn invalid(field: impl Into<String>, value: &Value, detail: &str) -> Cause {
    cause("FieldValueInvalid", field, with_detail(&format!("Invalid value: {value}"), detail))
}

/// Builds the cause for a value that is not one of `supported`.
pub fn unsupported(field: impl Into<String>, value: &Value, supported: &[&str]) -> Cause {
    let supported: Vec<String> = supported.iter().map(|s| format!("{s:?}")).collect();
    let detail = format!("supported values: {}", supported.join(", "));
    cause(
        "FieldValueNotSupported",
        field,
        with_detail(&format!("Unsupported value: {value}"), &detail),
    )
}

pub fn forbidden(field: impl Into<String>, detail: &str) -> Cause {
    cause("FieldValueForbidden", field, with_detail("Forbidden", detail))
}

pub fn duplicate(field: impl Into<String>, value: &Value) -> Cause {
    cause("FieldValueDuplicate", field, format!("Duplicate value: {value}"))
}

pub fn not_found(field: impl Into<String>, value: &Value) -> Cause {
    cause("FieldValueNotFound", field, format!("Not found: {value}"))
}

pub fn wrong_type(field: impl Into<String>, value: &Value, detail: &str) -> Cause {
    cause("FieldValueTypeInvalid", field, with_detail(&format!("Invalid value: {value}"), detail))
}

pub fn too_long(field: impl Into<String>, most: usize) -> Cause {
    let bytes = if most == 1 { "byte" } else { "bytes" };
    let message = format!("Too long: may not be more than {most} {bytes}");
    cause("FieldValueTooLong", field, message)
}

pub fn too_many(field: impl Into<String>, count: usize, most: usize) -> Cause {
    let items = if most == 1 { "item" } else { "items" };
    let message = format!("Too many: {count}: must have at most {most} {items}");
    cause("FieldValueTooMany", field, message)
}

/// Returns the fault `field is immutable` when the two values differ.
pub fn immutable(field: &str, new: Option<&Value>, old: Option<&Value>) -> Option<Cause> {
    let changed = new.unwrap_or(&Value::Null) != old.unwrap_or(&Value::Null);
    changed.then(|| invalid(field, new.unwrap_or(&Value::Null), "field is immutable"))
}

/// Returns the fault of a number below zero, if it is one.
pub fn non_negative(field: &str, value: Option<&Value>) -> Option<Cause> {
    let value = value?;
    let negative = value.as_i64().is_some_and(|n| n < 0);
    negative.then(|| invalid(field, value, "must be greater than or equal to 0"))
}
