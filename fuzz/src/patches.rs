//! Patches of the sandbox's objects: the first byte picks the object and the type of the patch. The
//! answer is no fault of the server, and the object keeps its identity.

use kube_controller_manager::server::http::Method;
use serde_json::Value;

use crate::bytes::parameters;
use crate::world::{first_objects, world};

const TYPES: [&str; 4] = [
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
];

/// Patches an object; the server must not fail, and the object stays what it is.
pub fn target(input: &[u8]) {
    let (parameter, patch) = parameters(input);
    let world = world();
    let objects = first_objects();
    let parameter = usize::from(parameter);
    let content_type = TYPES[parameter % TYPES.len()];
    let (folder, _) = objects[parameter / TYPES.len() % objects.len()];
    let name = if folder.ends_with("definitions") { "widgets.fuzz.example.com" } else { "a" };
    let path = format!("{folder}/{name}");
    let before = world.get(&path).expect("an object");
    let query = format!("{path}?fieldManager=fuzz&force=true");
    let query = if content_type == TYPES[3] { &query } else { &path };
    let answer = world.send(Method::PATCH, query, content_type, patch).expect("an answer");
    let body = String::from_utf8_lossy(answer.content());
    // Upstream answers a malformed strategic merge patch so, and an applied object of other types.
    let may_fail = content_type == TYPES[2] || body.contains("failed to create typed patch object");
    assert!(answer.status < 500 || answer.status == 500 && may_fail, "{} {body}", answer.status);
    let answer: Value =
        serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}"));
    assert!(answer.is_object(), "{body}");
    let after = world.get(&path).expect("an object");
    for field in ["/apiVersion", "/kind", "/metadata/name", "/metadata/uid"] {
        assert_eq!(after.pointer(field), before.pointer(field), "{field}: {after}");
    }
    if let Some(encoded) = sandbox::protobuf::encode(&after) {
        assert!(sandbox::protobuf::decode(&encoded).is_ok(), "{after}");
    }
}
