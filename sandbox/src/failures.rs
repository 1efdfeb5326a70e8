//! The errors of handlers, with upstream's messages.
//! Upstream: `apimachinery/pkg/api/errors`.

use serde_json::{Value, json};

use crate::status::{ApiError, Cause};
use kube_controller_manager::objects::ResourceType;

/// Builds the `details` of a failure that is about this object; a name and group are present only
/// if they are not empty.
fn details(resource: &ResourceType, name: &str) -> Value {
    let mut details = json!({ "kind": resource.plural });
    if !name.is_empty() {
        details["name"] = name.into();
    }
    if !resource.group.is_empty() {
        details["group"] = (&*resource.group).into();
    }
    details
}

fn with_details(mut error: ApiError, resource: &ResourceType, name: &str) -> ApiError {
    error.details = details(resource, name);
    error
}

pub fn not_found(resource: &ResourceType, name: &str) -> ApiError {
    let error = ApiError::new(404, "NotFound", format!("{resource} {name:?} not found"));
    with_details(error, resource, name)
}

/// Returns the error for a path that is not served; the answer is plain text.
pub fn no_such_path() -> ApiError {
    let mut error = no_such_resource();
    error.details = json!({ "path": true });
    error
}

/// Returns the error for an unknown kind, version or subresource of a served group.
pub fn no_such_resource() -> ApiError {
    let mut error =
        ApiError::new(404, "NotFound", "the server could not find the requested resource");
    error.details = json!({});
    error
}

pub fn already_exists(resource: &ResourceType, name: &str) -> ApiError {
    let error = ApiError::new(409, "AlreadyExists", format!("{resource} {name:?} already exists"));
    with_details(error, resource, name)
}

pub fn conflict(resource: &ResourceType, name: &str, why: &str) -> ApiError {
    let message = format!("Operation cannot be fulfilled on {resource} {name:?}: {why}");
    with_details(ApiError::new(409, "Conflict", message), resource, name)
}

/// Returns the conflict of a write that read an older version.
pub fn modified(resource: &ResourceType, name: &str) -> ApiError {
    conflict(
        resource,
        name,
        "the object has been modified; please apply your changes to the latest version and try again",
    )
}

pub fn forbidden(resource: &ResourceType, name: &str, why: &str) -> ApiError {
    let named = if name.is_empty() { String::new() } else { format!(" {name:?}") };
    let error = ApiError::new(403, "Forbidden", format!("{resource}{named} is forbidden: {why}"));
    with_details(error, resource, name)
}

pub fn bad_request(message: impl Into<String>) -> ApiError {
    ApiError::new(400, "BadRequest", message)
}

/// Builds the error for a body whose media type is not one of `accepted`.
pub fn unsupported_media(accepted: &[&str]) -> ApiError {
    let accepted = accepted.join(", ");
    ApiError::new(
        415,
        "UnsupportedMediaType",
        format!(
            "the body of the request was in an unknown format - accepted media types include: {accepted}"
        ),
    )
}

/// Builds the error 405 for a verb that the resource does not serve.
pub fn method_not_allowed() -> ApiError {
    let mut error = ApiError::new(
        405,
        "MethodNotAllowed",
        "the server does not allow this method on the requested resource",
    );
    error.details = json!({});
    error
}

pub fn expired(message: impl Into<String>) -> ApiError {
    ApiError::new(410, "Expired", message)
}

pub fn unauthorized() -> ApiError {
    ApiError::new(401, "Unauthorized", "Unauthorized")
}

pub fn internal(message: impl std::fmt::Display) -> ApiError {
    let mut error =
        ApiError::new(500, "InternalError", format!("Internal error occurred: {message}"));
    error.details = json!({ "causes": [{ "message": message.to_string() }] });
    error
}

/// Returns the error for a request for a version that has not been written yet. Upstream:
/// `storage.NewTooLargeResourceVersionError`.
pub fn too_large(wanted: u64, current: u64) -> ApiError {
    let message = format!("Timeout: Too large resource version: {wanted}, current: {current}");
    let mut error = ApiError::new(504, "Timeout", message);
    error.details = json!({ "causes": [
        { "reason": "ResourceVersionTooLarge", "message": "Too large resource version" },
    ] });
    error.retry_after = Some(1);
    error
}

/// Builds the error 422 with its causes; `group` and `kind` are those of the object.
pub fn invalid(group: &str, kind: &str, name: &str, causes: &[Cause]) -> ApiError {
    let lines: Vec<String> =
        causes.iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect();
    let qualified = if group.is_empty() { kind.to_owned() } else { format!("{kind}.{group}") };
    let faults = match lines.as_slice() {
        [one] => one.clone(),
        _ => format!("[{}]", lines.join(", ")),
    };
    let mut error =
        ApiError::new(422, "Invalid", format!("{qualified} {name:?} is invalid: {faults}"));
    let causes: Vec<Value> = causes
        .iter()
        .map(|c| json!({ "reason": c.reason, "message": c.message, "field": c.field }))
        .collect();
    error.details = json!({ "causes": causes });
    if !kind.is_empty() {
        error.details["kind"] = kind.into();
    }
    if !name.is_empty() {
        error.details["name"] = name.into();
    }
    if !group.is_empty() {
        error.details["group"] = group.into();
    }
    error
}

/// Builds the cause of an invalid value, which reads `metadata.name: Invalid value: "x": why`.
pub fn invalid_value(field: &str, value: &Value, why: &str) -> Cause {
    Cause {
        reason: "FieldValueInvalid",
        message: format!("Invalid value: {value}: {why}"),
        field: field.to_owned(),
    }
}

/// Builds the cause for a field that is missing; `why` may be empty.
pub fn required(field: &str, why: &str) -> Cause {
    let more = if why.is_empty() { String::new() } else { format!(": {why}") };
    Cause {
        reason: "FieldValueRequired",
        message: format!("Required value{more}"),
        field: field.to_owned(),
    }
}

pub fn forbidden_field(field: &str, why: &str) -> Cause {
    Cause {
        reason: "FieldValueForbidden",
        message: format!("Forbidden: {why}"),
        field: field.to_owned(),
    }
}
