//! Errors as the API shows them: `metav1.Status`.

use serde_json::{Value, json};

/// A request that failed; becomes a `Status` with this HTTP code.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiError {
    pub code: u16,
    /// `NotFound`, `Invalid` ...
    pub reason: &'static str,
    pub message: String,
    /// `Status.details`, or null.
    pub details: Value,
    /// Seconds, also sent as the header `Retry-After`.
    pub retry_after: Option<u64>,
}

pub type ApiResult<T> = Result<T, ApiError>;

/// One fault of a field. Upstream: `field.Error`.
#[derive(Clone, Debug, PartialEq)]
pub struct Cause {
    /// `FieldValueRequired`, `FieldValueInvalid`, `FieldValueForbidden` ...
    pub reason: &'static str,
    /// As upstream prints it: `Invalid value: "x": must be ...`
    pub message: String,
    /// `spec.selector`
    pub field: String,
}

impl ApiError {
    pub fn new(code: u16, reason: &'static str, message: impl Into<String>) -> ApiError {
        ApiError { code, reason, message: message.into(), details: Value::Null, retry_after: None }
    }

    /// Returns the `Status` object that a client gets for this error.
    pub fn to_json(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "code": self.code,
        });
        if !self.reason.is_empty() {
            status["reason"] = self.reason.into();
        }
        let mut details = self.details.clone();
        if let Some(seconds) = self.retry_after {
            details["retryAfterSeconds"] = seconds.into();
        }
        if !details.is_null() {
            status["details"] = details;
        }
        status
    }
}
