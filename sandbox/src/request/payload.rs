//! The body of a request.

use serde_json::Value;

use crate::failures::{self, unsupported_media};
use crate::protobuf;
use crate::status::ApiResult;
use kube_controller_manager::server::http::Bytes;

/// The body of a request, parsed on demand.
pub struct Payload {
    pub content_type: String,
    pub bytes: Bytes,
}

impl Payload {
    /// Decodes the object in the body, from JSON, YAML or protobuf. Errors: 415, 400.
    pub fn object(&self) -> ApiResult<Value> {
        let unreadable = |error: &dyn std::fmt::Display| {
            failures::bad_request(format!("the object provided is unrecognized: {error}"))
        };
        let body: Value = match self.content_type.as_str() {
            "" | "application/json" => {
                serde_json::from_slice(&self.bytes).map_err(|error| unreadable(&error))?
            }
            "application/yaml" => {
                serde_yaml_ng::from_slice(&self.bytes).map_err(|error| unreadable(&error))?
            }
            protobuf::MEDIA_TYPE => protobuf::decode(&self.bytes)?,
            _ => return Err(unsupported_media(&["application/json", "application/yaml"])),
        };
        if body.is_object() { Ok(body) } else { Err(unreadable(&"it is no object")) }
    }

    /// Decodes the body as [`Payload::object`] does, but an empty one is null.
    pub fn optional(&self) -> ApiResult<Value> {
        if self.bytes.is_empty() { Ok(Value::Null) } else { self.object() }
    }
}
