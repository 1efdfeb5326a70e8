//! The documents that describe the API, by path.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{discovery, openapi};
use crate::kinds::Kind;

/// Returns the version that a server of Kubernetes 1.`minor` claims to be.
pub fn version(minor: u32) -> String {
    if minor == 36 { "v1.36.2".to_owned() } else { format!("v1.{minor}.0") }
}

/// Builds the discovery document at `path`, if there is one.
pub fn discovery(kinds: &[Arc<Kind>], path: &str, aggregated: bool) -> Option<Value> {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let document = match parts.as_slice() {
        [] => root(kinds),
        [root @ ("api" | "apis")] if aggregated => discovery::aggregated(kinds, *root == "api"),
        ["api"] => discovery::api_versions(),
        ["apis"] => discovery::api_groups(kinds),
        ["api", version] => discovery::resources_legacy(kinds, "", version),
        ["apis", group] => discovery::group(kinds, group),
        ["apis", group, version] => discovery::resources_legacy(kinds, group, version),
        _ => return None,
    };
    (!document.is_null()).then_some(document)
}

/// Builds the OpenAPI document at `path` of a server of Kubernetes 1.`minor`, if there is one.
pub fn openapi(kinds: &[Arc<Kind>], minor: u32, path: &str) -> Option<Value> {
    let server = version(minor);
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let document = match parts.as_slice() {
        ["openapi", "v2"] => openapi::v2(&server),
        ["openapi", "v3"] => openapi::v3_index(kinds),
        ["openapi", "v3", "api", version] => openapi::v3_document(kinds, &server, "", version),
        ["openapi", "v3", "apis", group, version] => {
            openapi::v3_document(kinds, &server, group, version)
        }
        _ => return None,
    };
    (!document.is_null()).then_some(document)
}

/// Encodes `/openapi/v2` as the protobuf that older clients insist on: a `openapi.v2.Document` with
/// its version and info, no paths and no definitions. Such clients then skip what they do not find.
pub fn openapi_v2_protobuf(minor: u32) -> Vec<u8> {
    let field = |number: u8, bytes: &[u8]| {
        // Every part is shorter than 128 bytes, so a length is one byte.
        let mut field = vec![number << 3 | 2, bytes.len() as u8];
        field.extend_from_slice(bytes);
        field
    };
    let info = [field(1, b"Kubernetes"), field(2, version(minor).as_bytes())].concat();
    [field(1, b"2.0"), field(2, &info), field(8, b""), field(9, b"")].concat()
}

/// Builds the answer to `/`: the paths that are served.
fn root(kinds: &[Arc<Kind>]) -> Value {
    let mut paths: Vec<String> = [
        "/api",
        "/apis",
        "/healthz",
        "/livez",
        "/openapi/v2",
        "/openapi/v3",
        "/readyz",
        "/version",
    ]
    .map(str::to_owned)
    .into();
    for kind in kinds {
        paths.push(match kind.resource.group.is_empty() {
            true => format!("/api/{}", kind.resource.version),
            false => format!("/apis/{}", kind.resource.api_version()),
        });
    }
    paths.sort_unstable();
    paths.dedup();
    json!({ "paths": paths })
}
