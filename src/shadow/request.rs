//! A write that was not sent, and its effect on the live object.

use serde_json::{Value, json};

use super::diff::{Change, changes, object_changes};
use super::patch::patched;
use super::secrets::conceal;
use crate::client::Call;

/// A write of one object, or of a collection.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: &'static str,
    pub content_type: &'static str,
    pub subresource: String,
    /// The body; null without one. The values of a Secret are digests.
    pub body: Value,
    /// The object is a Secret: its values are compared and shown as digests.
    pub is_of_secret: bool,
    /// The path of the object that the write changes; `None` for an object without a name yet, or
    /// for a collection.
    pub object_path: Option<String>,
    /// The call that lists the collection to be deleted.
    pub collection: Option<Call>,
}

/// The effect that a write would have.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// None: the object already has the content of the write.
    Nothing,
    /// These fields, where the write names fields.
    Changes(Vec<Change>),
    /// The effect cannot be computed from the object that was read.
    Unknown,
}

/// Why the API server would refuse a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    NotFound,
    AlreadyExists,
    Conflict,
    /// The namespace does not exist or is being deleted.
    NoNamespace,
    NamespaceTerminating,
}

impl Refusal {
    /// Returns the status code, its reason and a text.
    pub fn answer(self) -> (u16, &'static str, &'static str) {
        match self {
            Refusal::NotFound => (404, "NotFound", "not found"),
            Refusal::AlreadyExists => (409, "AlreadyExists", "already exists"),
            Refusal::Conflict => (
                409,
                "Conflict",
                "the object has been modified; please apply your changes to the latest version and try again",
            ),
            Refusal::NoNamespace => (404, "NotFound", "its namespace is not found"),
            Refusal::NamespaceTerminating => (
                403,
                "Forbidden",
                "unable to create new content because its namespace is being terminated",
            ),
        }
    }
}

/// Returns whether only the metadata of an object was read.
fn is_partial(object: &Value) -> bool {
    object["kind"] == "PartialObjectMetadata"
}

fn is_being_deleted(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
}

impl Request {
    pub fn is_delete(&self) -> bool {
        self.method == "DELETE" || (self.method == "POST" && self.subresource == "eviction")
    }

    pub fn is_create(&self) -> bool {
        self.method == "POST" && self.subresource.is_empty()
    }

    /// Returns the verb as upstream's authorization has it. `named`: one object, not a collection.
    pub fn verb(&self, named: bool) -> &'static str {
        match (self.method, named) {
            ("PUT", _) => "update",
            ("PATCH", _) => "patch",
            ("DELETE", true) => "delete",
            ("DELETE", false) => "deletecollection",
            _ => "create",
        }
    }

    fn is_apply(&self) -> bool {
        self.content_type.starts_with("application/apply-patch")
    }

    /// Returns the reason why the server would refuse a creation in this namespace, if there is
    /// one.
    pub fn namespace_refusal(namespace: Option<&Value>) -> Option<Refusal> {
        match namespace {
            None => Some(Refusal::NoNamespace),
            Some(namespace) if is_being_deleted(namespace) => Some(Refusal::NamespaceTerminating),
            Some(_) => None,
        }
    }

    /// Returns the reason why the server would refuse the write; `None` if it would not. `live`:
    /// the live object.
    pub fn refusal(&self, live: Option<&Value>) -> Option<Refusal> {
        let Some(live) = live else {
            // A server-side apply creates the object.
            let may_create = self.is_create() || (self.method == "PATCH" && self.is_apply());
            return (!may_create).then_some(Refusal::NotFound);
        };
        if self.is_create() {
            return Some(Refusal::AlreadyExists);
        }
        let wanted = match self.is_delete() {
            true => &self.body["preconditions"],
            false => &self.body["metadata"],
        };
        let differs = |field: &str| match &wanted[field] {
            Value::String(wanted) if !wanted.is_empty() => live["metadata"][field] != **wanted,
            _ => false,
        };
        (differs("uid") || differs("resourceVersion")).then_some(Refusal::Conflict)
    }

    /// Returns what the write would change in `live`; for a Secret, with digests in place of its
    /// values.
    pub fn effect(&self, live: &Value) -> Effect {
        if !self.is_of_secret {
            return self.effect_on(live);
        }
        let mut live = live.clone();
        conceal(&mut live);
        self.effect_on(&live)
    }

    /// Returns what the request would change in `live`, an object whose values are already
    /// concealed if it is a Secret.
    fn effect_on(&self, live: &Value) -> Effect {
        // The object that was to be created exists, or is already being deleted.
        if self.is_create() || (self.is_delete() && is_being_deleted(live)) {
            return Effect::Nothing;
        }
        if self.is_delete() {
            // A deletion names no fields.
            return Effect::Changes(Vec::new());
        }
        let changes = match (self.method, self.subresource.as_str()) {
            ("PATCH", _) => match patched(self.content_type, live, &self.body) {
                Some(patched) => object_changes(live, &patched),
                None => return Effect::Unknown,
            },
            ("PUT", "") => {
                let without_status = |object: &Value| {
                    let mut object = object.clone();
                    object.as_object_mut().map(|members| members.remove("status"));
                    object
                };
                object_changes(&without_status(live), &without_status(&self.body))
            }
            ("PUT", "scale") => {
                // The Scale, or the object that is scaled.
                let replicas =
                    |object: &Value| json!({ "spec": { "replicas": object["spec"]["replicas"] } });
                changes(&replicas(live), &replicas(&self.body))
            }
            ("PUT", subresource) => {
                let part = if subresource == "finalize" { "spec" } else { "status" };
                changes(&json!({ part: live[part] }), &json!({ part: self.body[part] }))
            }
            _ => return Effect::Unknown,
        };
        // What else the write changes cannot be seen in the metadata alone.
        if is_partial(live) && !changes.iter().all(|change| change.path.starts_with("metadata.")) {
            return Effect::Unknown;
        }
        match changes.is_empty() {
            true => Effect::Nothing,
            false => Effect::Changes(changes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: &'static str, subresource: &str, body: Value) -> Request {
        let content_type = match method {
            "PATCH" => "application/merge-patch+json",
            _ => "application/json",
        };
        let subresource = subresource.to_owned();
        Request {
            method,
            content_type,
            subresource,
            body,
            is_of_secret: false,
            object_path: None,
            collection: None,
        }
    }

    #[test]
    fn refusals_are_those_of_the_server() {
        let live = json!({"metadata": {"uid": "u", "resourceVersion": "7"}});
        let meta = |uid: &str, version: &str| json!({"metadata": {"uid": uid, "resourceVersion": version}});
        let delete = |uid: &str| json!({"preconditions": {"uid": uid}});
        for (request, there, expected) in [
            (request("PUT", "", meta("u", "7")), true, None),
            (request("PUT", "", meta("u", "6")), true, Some(Refusal::Conflict)),
            (request("PATCH", "", meta("v", "")), true, Some(Refusal::Conflict)),
            (request("PATCH", "", meta("", "")), false, Some(Refusal::NotFound)),
            (request("DELETE", "", delete("u")), true, None),
            (request("DELETE", "", delete("v")), true, Some(Refusal::Conflict)),
            (request("DELETE", "", Value::Null), false, Some(Refusal::NotFound)),
            (request("POST", "", json!({})), true, Some(Refusal::AlreadyExists)),
            (request("POST", "", json!({})), false, None),
        ] {
            assert_eq!(request.refusal(there.then_some(&live)), expected, "{request:?}");
        }
    }

    #[test]
    fn nothing_is_created_in_a_namespace_that_goes() {
        let namespace = |going: bool| match going {
            true => json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
            false => json!({"metadata": {}}),
        };
        for (namespace, expected) in [
            (None, Some(Refusal::NoNamespace)),
            (Some(namespace(true)), Some(Refusal::NamespaceTerminating)),
            (Some(namespace(false)), None),
        ] {
            assert_eq!(Request::namespace_refusal(namespace.as_ref()), expected);
        }
    }

    #[test]
    fn an_effect_is_what_differs_in_the_part_that_is_written() {
        let live = json!({
            "metadata": {"name": "a", "resourceVersion": "7", "managedFields": [{}]},
            "spec": {"replicas": 3}, "status": {"replicas": 2},
        });
        let body = json!({
            "metadata": {"name": "a"}, "spec": {"replicas": 4}, "status": {"replicas": 3},
        });
        let paths = |request: &Request, live: &Value| match request.effect(live) {
            Effect::Changes(changes) => {
                changes.into_iter().map(|change| change.path).collect::<Vec<_>>().join(" ")
            }
            Effect::Nothing => "nothing".to_owned(),
            Effect::Unknown => "unknown".to_owned(),
        };
        let going = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
        let partial = json!({"kind": "PartialObjectMetadata", "metadata": {"name": "a"}});
        for (request, live, expected) in [
            (request("PUT", "", body.clone()), &live, "spec.replicas"),
            (request("PUT", "status", body.clone()), &live, "status.replicas"),
            (request("PATCH", "", json!({"spec": {"replicas": 3}})), &live, "nothing"),
            (request("PATCH", "", json!({"spec": {"replicas": 5}})), &live, "spec.replicas"),
            (request("PATCH", "", json!({"spec": {"replicas": 5}})), &partial, "unknown"),
            (request("DELETE", "", Value::Null), &live, ""),
            (request("DELETE", "", Value::Null), &going, "nothing"),
            (request("POST", "eviction", json!({})), &going, "nothing"),
            (request("POST", "", body.clone()), &live, "nothing"),
        ] {
            assert_eq!(paths(&request, live), expected, "{request:?}");
        }
    }
}
