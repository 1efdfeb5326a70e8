//! Responses with one JSON document.

use hyper::header::RETRY_AFTER;
use serde_json::{Value, json};

use crate::kinds::Kind;
use crate::status::ApiError;
use kube_controller_manager::server::http::Response;

pub fn json_response(status: u16, body: &Value) -> Response {
    Response::new(status, "application/json", serde_json::to_vec(body).unwrap_or_default())
}

/// Answers with the `Status` of a failure; with plain text for a path that is not served.
pub fn failure(error: &ApiError) -> Response {
    // Set by `failures::no_such_path`.
    if error.details["path"] == true {
        return Response::text(404, "404 page not found\n");
    }
    let mut response = json_response(error.code, &error.to_json());
    if let Some(seconds) = error.retry_after {
        response = response.with_header(RETRY_AFTER, &seconds.to_string());
    }
    response
}

/// Builds the `metav1.Status` of a success.
pub fn success(kind: &Kind, name: &str, uid: &str) -> Value {
    let mut details = json!({ "name": name, "kind": kind.resource.plural });
    if !kind.resource.group.is_empty() {
        details["group"] = (&*kind.resource.group).into();
    }
    if !uid.is_empty() {
        details["uid"] = uid.into();
    }
    json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details })
}
