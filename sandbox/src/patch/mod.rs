//! Patches: JSON patch, merge patch, strategic merge patch. Upstream: `apiserver
//! handlers/patch.go`.

mod strategic;

use json_patch::{AddOperation, PatchOperation};
use serde_json::Value;

use crate::kinds::Kind;
use crate::status::{ApiError, ApiResult};
use crate::types::schemas;

const JSON: &str = "application/json-patch+json";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

/// Upstream's limit of the bytes that the copies of one JSON patch add.
const MAX_COPIED_BYTES: usize = 3 * 1024 * 1024;
/// The deepest nesting that a JSON patch may lead to: the limit of objects in requests.
const MAX_DEPTH: usize = 127;

/// Returns whether a patch is a server-side apply, whose body is YAML.
pub fn is_apply(content_type: &str) -> bool {
    content_type.split(';').next().is_some_and(|media_type| media_type.trim() == APPLY)
}

/// Applies `patch` to `original`; `content_type` names its kind (parameters after `;` don't count).
///
/// Errors: 415 for other types (and for strategic merge of custom kinds), 400 for a patch that
/// can't be read, 413 for a JSON patch of too many operations, 422 for one that does not fit the
/// object.
pub fn apply(kind: &Kind, content_type: &str, original: &Value, patch: &[u8]) -> ApiResult<Value> {
    let media_type = content_type.split(';').next().unwrap_or_default().trim();
    match media_type {
        JSON => json_patch(original, patch),
        MERGE => {
            let patch = object(patch).map_err(unreadable)?;
            let patch = patch.ok_or_else(|| bad_request("Invalid JSON Patch"))?;
            let mut patched = original.clone();
            json_patch::merge(&mut patched, &patch);
            Ok(patched)
        }
        STRATEGIC if !kind.is_custom() => match object(patch).map_err(bad_request)? {
            Some(patch) => strategic::apply(&schemas::types_of(kind), original, &patch),
            None => Ok(original.clone()),
        },
        other => Err(unsupported(kind, other)),
    }
}

/// Builds the error 415 for a patch of this media type.
fn unsupported(kind: &Kind, media_type: &str) -> ApiError {
    let strategic = if kind.is_custom() { String::new() } else { format!(", {STRATEGIC}") };
    let accepted = format!("accepted media types include: {JSON}, {MERGE}{strategic}, {APPLY}");
    let message = match media_type {
        // Only views and the subresource `scale` pass an apply to this module.
        APPLY => format!("server-side apply does not work in this version of {}", kind.resource),
        _ => format!("the body of the request was in an unknown format - {accepted}"),
    };
    ApiError::new(415, "UnsupportedMediaType", message)
}

fn bad_request(message: impl Into<String>) -> ApiError {
    ApiError::new(400, "BadRequest", message)
}

fn unreadable(error: impl std::fmt::Display) -> ApiError {
    bad_request(format!("error decoding patch: {error}"))
}

/// Parses a patch that must be an object; `None`: it is null, which Go decodes as no map. Errors:
/// why it cannot be read, in Go's words.
fn object(patch: &[u8]) -> Result<Option<Value>, String> {
    let patch: Value = serde_json::from_slice(patch).map_err(|error| error.to_string())?;
    let what = match patch {
        Value::Object(_) => return Ok(Some(patch)),
        Value::Null => return Ok(None),
        Value::Array(_) => "array",
        Value::String(_) => "string",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
    };
    Err(format!("json: cannot unmarshal {what} into Go value of type map[string]interface {{}}"))
}

/// Applies a JSON patch, within upstream's limits of operations, copied bytes and depth.
fn json_patch(original: &Value, patch: &[u8]) -> ApiResult<Value> {
    // Upstream's limit of operations.
    const MAX_OPERATIONS: usize = 10_000;
    let operations: Vec<Value> = serde_json::from_slice(patch).map_err(unreadable)?;
    if operations.len() > MAX_OPERATIONS {
        let message = format!(
            "The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {}",
            operations.len()
        );
        return Err(ApiError::new(413, "RequestEntityTooLarge", message));
    }
    // Upstream does not name the mismatch.
    let misfit = || {
        let message = "the server rejected our request due to an error in our request";
        let mut error = ApiError::new(422, "Invalid", message);
        error.details = serde_json::json!({});
        error
    };
    let operations: json_patch::Patch =
        serde_json::from_value(Value::Array(operations)).map_err(|_| misfit())?;
    let mut patched = original.clone();
    let mut copied = 0;
    for operation in operations.0 {
        copied += bytes_copied(&operation, &patched);
        if copied > MAX_COPIED_BYTES || depth_after(&operation, &patched) > MAX_DEPTH {
            return Err(misfit());
        }
        let operation = lenient(operation, &patched);
        json_patch::patch(&mut patched, &operation).map_err(|_| misfit())?;
    }
    Ok(patched)
}

/// Returns how many bytes of JSON an operation doubles.
fn bytes_copied(operation: &PatchOperation, object: &Value) -> usize {
    let PatchOperation::Copy(copy) = operation else { return 0 };
    let bytes = object.pointer(copy.from.as_str()).map(serde_json::to_vec);
    bytes.and_then(Result::ok).map_or(0, |bytes| bytes.len())
}

/// Returns the depth that an operation leads to; 0 for one that adds nothing.
fn depth_after(operation: &PatchOperation, object: &Value) -> usize {
    let (path, value) = match operation {
        PatchOperation::Add(add) => (&add.path, Some(&add.value)),
        PatchOperation::Replace(replace) => (&replace.path, Some(&replace.value)),
        PatchOperation::Copy(copy) => (&copy.path, object.pointer(copy.from.as_str())),
        PatchOperation::Move(r#move) => (&r#move.path, object.pointer(r#move.from.as_str())),
        PatchOperation::Remove(_) | PatchOperation::Test(_) => return 0,
    };
    path.count() + value.map_or(0, depth)
}

/// Returns how deep lists and objects are nested in a value.
fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(members) => 1 + members.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

/// Rewrites an operation against the standard, but as upstream's library takes it: `replace` may
/// add a missing member, and to `test` it is null.
fn lenient(operation: PatchOperation, object: &Value) -> Vec<PatchOperation> {
    let missing = |path: &json_patch::jsonptr::Pointer| {
        let parent = path.parent().and_then(|parent| object.pointer(parent.as_str()));
        parent.is_some_and(Value::is_object) && object.pointer(path.as_str()).is_none()
    };
    match operation {
        PatchOperation::Replace(replace) if missing(&replace.path) => {
            vec![PatchOperation::Add(AddOperation { path: replace.path, value: replace.value })]
        }
        PatchOperation::Test(test) if test.value.is_null() && missing(&test.path) => Vec::new(),
        other => vec![other],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::{builtin, from_crd};
    use serde_json::json;

    fn pods() -> Kind {
        builtin().into_iter().find(|kind| kind.resource.plural == "pods").unwrap()
    }

    fn code(kind: &Kind, content_type: &str, patch: &str) -> u16 {
        let original = json!({"kind": "Pod", "a": 1});
        apply(kind, content_type, &original, patch.as_bytes()).map_or_else(|e| e.code, |_| 200)
    }

    #[test]
    fn each_type_has_its_answer() {
        let crd = json!({"metadata": {"name": "foos.x.io"}, "spec": {"group": "x.io", "scope": "Cluster",
            "names": {"kind": "Foo", "plural": "foos"}, "versions": [{"name": "v1", "served": true,
            "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}]}});
        let foo = from_crd(&crd).unwrap().remove(0);
        for (kind, content_type, patch, answer) in [
            (&pods(), JSON, r#"[{"op":"test","path":"/a","value":1}]"#, 200),
            (&pods(), JSON, r#"[{"op":"test","path":"/a","value":2}]"#, 422),
            (&pods(), JSON, r#"[{"op":"remove","path":"/b/c"}]"#, 422),
            (&pods(), JSON, r#"[{"op":"foo"}]"#, 422),
            (&pods(), JSON, r#"{}"#, 400),
            (&pods(), "application/merge-patch+json; charset=utf-8", r#"{"a":null}"#, 200),
            (&pods(), MERGE, "[]", 400),
            (&pods(), MERGE, "{", 400),
            (&pods(), MERGE, "null", 400),
            (&pods(), STRATEGIC, "{}", 200),
            (&pods(), STRATEGIC, "null", 200),
            (&foo, MERGE, "{}", 200),
            (&foo, STRATEGIC, "{}", 415),
            (&pods(), "application/apply-patch+yaml", "{}", 415),
            (&pods(), "text/plain", "{}", 415),
        ] {
            assert_eq!(code(kind, content_type, patch), answer, "{content_type} {patch}");
        }
    }

    #[test]
    fn a_json_patch_makes_nothing_too_large_or_too_deep() {
        let json_patch = |operations: &[Value]| {
            let patch = Value::from(operations).to_string();
            code(&pods(), JSON, &patch)
        };
        let text = json!({ "op": "add", "path": "/x", "value": ["x".repeat(64 * 1024)] });
        let double = json!({ "op": "copy", "from": "/x", "path": "/x/-" });
        let copies = |count| {
            let mut operations = vec![double.clone(); count];
            operations.insert(0, text.clone());
            json_patch(&operations)
        };
        // 64 KiB are copied, then 128 KiB, and so on.
        assert_eq!((copies(5), copies(6)), (200, 422));

        let steps = |count: usize| "/a".repeat(count);
        let nested = (0..100).fold(json!({}), |inner, _| json!({ "a": inner }));
        let first = json!({ "op": "add", "path": "/a", "value": nested });
        for deeper in [
            json!({ "op": "copy", "from": "/a", "path": steps(102) }),
            json!({ "op": "add", "path": steps(102), "value": nested }),
            json!({ "op": "replace", "path": steps(101), "value": nested }),
        ] {
            assert_eq!(json_patch(&[first.clone(), deeper.clone()]), 422, "{deeper}");
        }
        let flat = json!({ "op": "copy", "from": "/a", "path": "/b" });
        assert_eq!(json_patch(&[first.clone(), flat]), 200);
        let last = json!({ "op": "add", "path": steps(102), "value": {} });
        assert_eq!(json_patch(&[first, last]), 200);
    }
}
