//! Validates request bodies against the types of their kind, as `fieldValidation` asks.
//! Upstream: `apiserver/pkg/endpoints/handlers/{create,patch}.go`.

use std::fmt;

use serde_json::{Map, Value};

use crate::apply;
use crate::failures;
use crate::object::go_text;
use crate::protobuf;
use crate::request::call::Call;
use crate::request::payload::Payload;
use crate::status::{ApiError, ApiResult, Cause};
use crate::types::decode::read;

/// The treatment of unknown and duplicate fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Validation {
    Ignore,
    Warn,
    Strict,
}

impl Call {
    /// Reads how the request wants unknown and duplicate fields treated. Errors: 422 for an invalid
    /// `fieldValidation`.
    fn validation(&self) -> ApiResult<Validation> {
        match self.query.get("fieldValidation") {
            "Ignore" => Ok(Validation::Ignore),
            "" | "Warn" => Ok(Validation::Warn),
            "Strict" => Ok(Validation::Strict),
            other => {
                let cause = Cause {
                    reason: "FieldValueNotSupported",
                    message: format!(
                        "Unsupported value: {other:?}: supported values: \"\", \"Ignore\", \"Strict\", \"Warn\""
                    ),
                    field: "fieldValidation".to_owned(),
                };
                Err(failures::invalid("meta.k8s.io", "CreateOptions", "", &[cause]))
            }
        }
    }

    /// Warns of `faults` or fails with `refusal`, by the request's `fieldValidation`.
    fn judge(&self, faults: Vec<String>, refusal: impl FnOnce(&str) -> ApiError) -> ApiResult<()> {
        match self.validation()? {
            Validation::Strict if !faults.is_empty() => {
                Err(refusal(&format!("strict decoding error: {}", faults.join(", "))))
            }
            Validation::Warn => {
                faults.into_iter().for_each(|fault| self.warn(fault));
                Ok(())
            }
            Validation::Ignore | Validation::Strict => Ok(()),
        }
    }

    /// Decodes the object in a request's body, without the fields that its kind does not have.
    /// Errors: 415; 400 for an unreadable body and, by `fieldValidation`, for such fields (a
    /// Protobuf body is not checked for them).
    pub fn object(&self, payload: &Payload) -> ApiResult<Value> {
        let validation = self.validation()?;
        let kind = &self.kind;
        let unreadable = |error: &dyn fmt::Display| {
            failures::bad_request(format!(
                "the object provided is unrecognized (must be of type {}): couldn't get version/kind; json parse error: {error}",
                kind.resource.kind
            ))
        };
        let (object, found) = match payload.content_type.as_str() {
            "" | "application/json" => {
                let mut body = serde_json::Deserializer::from_slice(&payload.bytes);
                let read = read(Some(kind), &mut body).map_err(|error| unreadable(&error))?;
                body.end().map_err(|error| unreadable(&error))?;
                read
            }
            "application/yaml" => {
                let body = serde_yaml_ng::Deserializer::from_slice(&payload.bytes);
                read(Some(kind), body).map_err(|error| unreadable(&error))?
            }
            protobuf::MEDIA_TYPE => return protobuf::decode(&payload.bytes),
            _ => {
                return Err(failures::unsupported_media(&["application/json", "application/yaml"]));
            }
        };
        let name = object["kind"].as_str().unwrap_or(&kind.resource.kind).to_owned();
        let version = object["apiVersion"].as_str().unwrap_or(&kind.resource.version);
        let version = version.rsplit('/').next().unwrap_or_default().to_owned();
        let refusal = |why: &str| {
            failures::bad_request(format!(
                "{name} in version {version:?} cannot be handled as a {}: {why}",
                kind.resource.kind
            ))
        };
        if let Some(mismatch) = &found.mismatch {
            return Err(refusal(mismatch));
        }
        if validation != Validation::Ignore {
            self.judge(found.faults(kind.is_custom()), refusal)?;
        }
        Ok(object)
    }

    /// Decodes the configuration of a server-side apply. Errors: 422 without a field manager, 400,
    /// 500.
    pub fn config(&self, payload: &Payload) -> ApiResult<Value> {
        self.validation()?;
        if !self.query.has("fieldManager") {
            let cause = failures::required("fieldManager", "is required for apply patch");
            return Err(failures::invalid("meta.k8s.io", "PatchOptions", "", &[cause]));
        }
        let body = serde_yaml_ng::Deserializer::from_slice(&payload.bytes);
        let (mut config, found) = read(Some(&self.kind), body)
            .map_err(|error| failures::bad_request(format!("error decoding YAML: {error}")))?;
        crate::kinds::drop_nulls(&mut config);
        let text = |key: &str| config[key].as_str().unwrap_or_default();
        if text("kind").is_empty() || text("apiVersion").is_empty() {
            let (group, version) =
                text("apiVersion").split_once('/').unwrap_or(("", text("apiVersion")));
            let kind = text("kind");
            return Err(failures::bad_request(format!(
                "invalid object type: {group}/{version}, Kind={kind}"
            )));
        }
        let subject = apply::subject(&self.kind, &config);
        let untyped = |why: &str| {
            ApiError::new(
                500,
                "",
                format!("failed to create typed patch object ({subject}): {why}"),
            )
        };
        if let Some(mismatch) = &found.mismatch {
            return Err(untyped(mismatch));
        }
        let unknown: Vec<String> =
            found.unknown().map(|path| format!(".{path}: field not declared in schema")).collect();
        match unknown.as_slice() {
            [] => {}
            [one] => return Err(untyped(one)),
            many => return Err(untyped(&format!("errors:\n  {}", many.join("\n  ")))),
        }
        if config.pointer("/metadata/managedFields").is_some() {
            return Err(failures::bad_request("metadata.managedFields must be nil"));
        }
        if !config["metadata"].is_object() {
            config["metadata"] = Value::Object(Map::new());
        }
        let name = config["metadata"]["name"].as_str().unwrap_or_default();
        if name.is_empty() {
            config["metadata"]["name"] = self.name.as_str().into();
        } else if name != self.name {
            return Err(failures::bad_request(format!(
                "the name of the object ({name}) does not match the name on the URL ({})",
                self.name
            )));
        }
        Ok(config)
    }

    /// Checks the result of a patch, and drops the fields that its kind does not have; `patch` is
    /// searched for duplicate fields. Errors: 422, by `fieldValidation`.
    pub fn check_patched(&self, payload: &Payload, object: Value) -> ApiResult<Value> {
        let (patch, media_type) = (&payload.bytes, &payload.content_type);
        let refusal = |why: &str| {
            let strategic = media_type.contains("strategic");
            let patch = serde_json::from_slice(patch).ok().filter(|_| strategic);
            let shown = patch.map_or_else(|| object.to_string(), |patch| go_text(&patch));
            let cause = failures::invalid_value("patch", &shown.into(), why);
            failures::invalid("", "", "", &[cause])
        };
        let (known, found) =
            read(Some(&self.kind), &object).map_err(|error| refusal(&error.to_string()))?;
        if let Some(mismatch) = &found.mismatch {
            let strategic = media_type.contains("strategic");
            let converted = conversion_mismatch(mismatch).filter(|_| strategic);
            return Err(refusal(converted.as_deref().unwrap_or(mismatch)));
        }
        let mut faults = match read(None, &mut serde_json::Deserializer::from_slice(patch)) {
            Ok((_, twice)) => twice.faults(true),
            Err(_) => Vec::new(),
        };
        faults.extend(found.faults(self.kind.is_custom()));
        self.judge(faults, refusal)?;
        Ok(known)
    }
}

/// Translates a mismatch in a strategic merge patch, whose result upstream converts instead of
/// decoding it; `None`: upstream has no other text for it. Upstream:
/// `apimachinery/pkg/runtime.fromUnstructured`.
fn conversion_mismatch(mismatch: &str) -> Option<String> {
    let (given, field) = mismatch.strip_prefix("json: cannot unmarshal ")?.split_once(" into ")?;
    let wanted = field.rsplit_once(" of type ")?.1;
    let given = match given.split(' ').next()? {
        "number" if given.contains('.') => "float64",
        "number" => "int64",
        "array" => "slice",
        "object" => "map",
        other => other,
    };
    Some(match wanted {
        _ if matches!((given, wanted), ("int64", "string") | ("float64", "int32" | "int64")) => {
            format!("cannot convert {given} to {wanted}")
        }
        "string" | "bool" | "int32" | "int64" => format!("unrecognized type: {wanted}"),
        _ if wanted.starts_with("[]") => format!("cannot restore slice from {given}"),
        _ if wanted.starts_with("map[") => format!("cannot restore map from {given}"),
        _ if wanted.starts_with("v1.") => format!("cannot restore struct from: {given}"),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_is_converted() {
        for (given, wanted, expected) in [
            ("string", "int32", Some("unrecognized type: int32")),
            ("string", "[]v1.Container", Some("cannot restore slice from string")),
            ("number", "string", Some("cannot convert int64 to string")),
            ("number 1.5", "int32", Some("cannot convert float64 to int32")),
            ("array", "map[string]string", Some("cannot restore map from slice")),
            ("string", "v1.PodSpec", Some("cannot restore struct from: string")),
            ("string", "intstr.IntOrString", None),
        ] {
            let mismatch =
                format!("json: cannot unmarshal {given} into Go struct field A.b of type {wanted}");
            assert_eq!(conversion_mismatch(&mismatch).as_deref(), expected);
        }
    }
}
