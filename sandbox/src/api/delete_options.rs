//! The options of a delete: grace, preconditions, propagation. Upstream: `metav1.DeleteOptions`.

use serde_json::{Value, json};

use crate::failures;
use crate::kinds::Kind;
use crate::object::{list, text};
use crate::request::call::Call;
use crate::request::payload::Payload;
use crate::status::{ApiError, ApiResult, Cause};

const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";

/// `metav1.DeleteOptions`, from the body and the query.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeleteOptions {
    pub grace: Option<i64>,
    pub uid: Option<String>,
    pub version: Option<String>,
    /// `Orphan`, `Foreground`, `Background`.
    pub propagation: Option<String>,
    pub dry_run: bool,
}

impl DeleteOptions {
    /// Reads the options from the body of a delete. Errors: 422 for an unknown propagation policy
    /// or dry run value, or two settings that contradict each other.
    pub fn from_json(body: &Value) -> ApiResult<DeleteOptions> {
        let text_at =
            |pointer: &str| body.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        let mut propagation = text_at("/propagationPolicy");
        match body["orphanDependents"].as_bool() {
            Some(_) if propagation.is_some() => {
                return Err(invalid(failures::invalid_value(
                    "propagationPolicy",
                    &body["propagationPolicy"],
                    "orphanDependents and deletionPropagation cannot be both set",
                )));
            }
            Some(true) => propagation = Some("Orphan".to_owned()),
            Some(false) => propagation = Some("Background".to_owned()),
            None => {}
        }
        if let Some(policy) = &propagation
            && !matches!(policy.as_str(), "Orphan" | "Foreground" | "Background")
        {
            return Err(invalid(Cause {
                reason: "FieldValueNotSupported",
                message: format!(
                    "Unsupported value: {policy:?}: supported values: \"Foreground\", \"Background\", \"Orphan\", \"nil\""
                ),
                field: "propagationPolicy".to_owned(),
            }));
        }
        if let Some(other) = list(body, "/dryRun").iter().find(|value| *value != "All") {
            return Err(invalid(Cause {
                reason: "FieldValueNotSupported",
                message: format!("Unsupported value: [{other}]: supported values: \"All\""),
                field: "dryRun".to_owned(),
            }));
        }
        Ok(DeleteOptions {
            grace: body["gracePeriodSeconds"].as_i64(),
            uid: text_at("/preconditions/uid"),
            version: text_at("/preconditions/resourceVersion"),
            propagation,
            dry_run: list(body, "/dryRun").iter().any(|value| value == "All"),
        })
    }

    /// Parses the options of a request; parameters of the query replace those of the body.
    pub fn of(call: &Call, payload: &Payload) -> ApiResult<DeleteOptions> {
        let mut body = payload.optional()?;
        if !body.is_object() {
            body = json!({});
        }
        if let Some(grace) = call.query.number::<i64>("gracePeriodSeconds")? {
            body["gracePeriodSeconds"] = grace.into();
        }
        if call.query.has("propagationPolicy") {
            body["propagationPolicy"] = call.query.get("propagationPolicy").into();
        }
        if call.query.has("orphanDependents") {
            body["orphanDependents"] = call.query.is("orphanDependents").into();
        }
        let mut options = DeleteOptions::from_json(&body)?;
        options.dry_run |= call.query.dry_run()?;
        Ok(options)
    }

    /// Compares `object` with the preconditions of the delete. Errors: 409 when one does not hold.
    pub fn check(&self, kind: &Kind, object: &Value) -> ApiResult<()> {
        let name = text(object, "/metadata/name");
        let faults = [
            (&self.uid, "UID", "uid", "The object might have been deleted and then recreated"),
            (
                &self.version,
                "ResourceVersion",
                "resourceVersion",
                "The object might have been modified",
            ),
        ];
        for (wanted, label, key, hint) in faults {
            let real = object["metadata"][key].as_str().unwrap_or_default();
            if let Some(wanted) = wanted
                && wanted != real
            {
                let why = format!(
                    "the {label} in the precondition ({wanted}) does not match the {label} in record ({real}). {hint}"
                );
                // Upstream names the kind here, not the resource.
                let mut named = kind.resource.clone();
                named.plural = named.kind.clone();
                return Err(failures::conflict(&named, name, &why));
            }
        }
        Ok(())
    }

    /// Returns the finalizers of `object` after this delete adds or removes those of the garbage
    /// collector.
    pub fn finalizers(&self, kind: &Kind, object: &Value) -> Vec<Value> {
        let old = list(object, "/metadata/finalizers");
        let mut new: Vec<Value> =
            old.iter().filter(|f| *f != ORPHAN && *f != FOREGROUND).cloned().collect();
        let kept = old.iter().find(|f| *f == ORPHAN || *f == FOREGROUND).and_then(Value::as_str);
        let wanted = match self.propagation.as_deref() {
            Some("Orphan") => Some(ORPHAN),
            Some("Foreground") => Some(FOREGROUND),
            Some(_) => None,
            None => kept.or(orphans_by_default(kind).then_some(ORPHAN)),
        };
        new.extend(wanted.map(Value::from));
        new
    }
}

/// Returns whether the kind orphans its pods unless a delete names another policy, as the oldest
/// kinds do. Upstream: `DefaultGarbageCollectionPolicy`.
fn orphans_by_default(kind: &Kind) -> bool {
    matches!(
        (&*kind.resource.group, &*kind.resource.plural),
        ("", "replicationcontrollers") | ("batch", "jobs")
    )
}

fn invalid(cause: Cause) -> ApiError {
    failures::invalid("meta.k8s.io", "DeleteOptions", "", &[cause])
}
