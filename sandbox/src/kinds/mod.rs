//! How each kind is served, defaulted, validated and printed.

mod builtin;
mod cells;
mod certificates;
mod columns;
mod core;
mod custom;
mod devices;
mod fault;
mod formats;
mod gated;
mod human_duration;
mod json;
mod metadata;
mod other_groups;
mod pod;
mod pod_rules;
pub mod pod_subresources;
mod quantity;
mod rbac;
mod rules;
pub mod schema;
mod schema_expressions;
mod schema_rules;
pub mod views;
mod workloads;

pub use builtin::builtin;
pub use custom::from_crd;
pub use gated::{behind_gates, in_versions, served};
pub use human_duration::human_duration;
pub use json::drop_nulls;
pub use metadata::subdomain_fault;
pub use rbac::GROUP as RBAC_GROUP;
pub use views::View;

use serde_json::Value;

use crate::status::Cause;
use kube_controller_manager::objects::ResourceType;

/// Changes an object in place.
pub type Edit = Box<dyn Fn(&mut Value) + Send + Sync>;
/// Changes the new object (first), given the old one.
pub type EditFrom = Box<dyn Fn(&mut Value, &Value) + Send + Sync>;
/// The faults of a new object.
pub type Check = Box<dyn Fn(&Value) -> Vec<Cause> + Send + Sync>;
/// The faults of the new object (first), given the old one.
pub type CheckFrom = Box<dyn Fn(&Value, &Value) -> Vec<Cause> + Send + Sync>;

/// Makes a cell of a table from an object and the time now in seconds since 1970.
pub type Cell = Box<dyn Fn(&Value, i64) -> Value + Send + Sync>;

/// One served resource and its rules: of a built-in kind or of a CustomResourceDefinition. Objects
/// are JSON values with `apiVersion` and `kind` set; the handlers do everything that is the same
/// for all kinds (names, uids, versions, generation, timestamps, finalizers, preconditions, managed
/// `metadata`); a `Kind` has the differences.
///
/// Order on create: name, uid and creation time set, `default`, `prepare_create`,
/// `validate_create`. On update: `default`, `prepare_update`, `validate_update`.
pub struct Kind {
    pub resource: ResourceType,
    pub singular: String,
    pub short_names: Vec<String>,
    pub categories: Vec<String>,
    pub subresources: Vec<Subresource>,
    /// Bumps `metadata.generation` when anything but metadata and status changes.
    pub has_generation: bool,
    /// Grace period given by the object to a delete that names none (pods); `None` deletes at once.
    pub default_grace: fn(&Value) -> Option<i64>,
    /// Fills in defaults, on create and update alike.
    pub default: Edit,
    /// Runs before a create is validated: resets the status and similar fields.
    pub prepare_create: Edit,
    /// Runs before an update is validated: restores the fields that this endpoint may not change.
    /// Arguments: the new object, the old one.
    pub prepare_update: EditFrom,
    pub validate_create: Check,
    /// The new object, the old one.
    pub validate_update: CheckFrom,
    /// Whether `validate_update` also checks writes of the status.
    pub checks_status: bool,
    /// Field selectors beyond metadata.name and metadata.namespace: path to value. `None` for a
    /// field that cannot be selected by.
    pub field: fn(&Value, &str) -> Option<String>,
    /// Columns of `kubectl get`.
    pub columns: Vec<Column>,
    /// For CustomResourceDefinitions: the OpenAPI schema of the kind.
    pub schema: Option<Value>,
    /// For CustomResourceDefinitions: the `apiVersion` in which objects are stored.
    pub storage_version: Option<String>,
    /// For a kind whose objects are stored as another's.
    pub view: Option<View>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Subresource {
    Status,
    /// JSON paths (`.spec.replicas`) of a scale subresource; answers are autoscaling/v1 Scale.
    Scale {
        replicas: String,
        status_replicas: String,
        selector: Option<String>,
    },
    Eviction,
    Binding,
    Token,
    Finalize,
    Approval,
    EphemeralContainers,
    Resize,
    Log,
    /// Subresources that another server answers: exec, attach, port-forward, proxy.
    Connect(&'static str),
}

impl Subresource {
    /// Returns the subresource's name in paths.
    pub fn name(&self) -> &'static str {
        match self {
            Subresource::Status => "status",
            Subresource::Scale { .. } => "scale",
            Subresource::Eviction => "eviction",
            Subresource::Binding => "binding",
            Subresource::Token => "token",
            Subresource::Finalize => "finalize",
            Subresource::Approval => "approval",
            Subresource::EphemeralContainers => "ephemeralcontainers",
            Subresource::Resize => "resize",
            Subresource::Log => "log",
            Subresource::Connect(name) => name,
        }
    }
}

impl Kind {
    /// Returns whether a CustomResourceDefinition defines the kind.
    pub fn is_custom(&self) -> bool {
        self.schema.is_some()
    }

    /// Returns a stored object converted to the current schema of its definition: members that the
    /// schema does not have are dropped, and its defaults are filled in. `None` when this changes
    /// nothing. Upstream: `schemaCoercingDecoder`.
    pub fn coerced(&self, stored: &Value) -> Option<Value> {
        if !self.is_custom() {
            return None;
        }
        let mut value = stored.clone();
        (self.default)(&mut value);
        (value != *stored).then_some(value)
    }

    /// Gives an object the version in which it is stored.
    pub fn encode(&self, object: &mut Value) {
        if let Some(version) = &self.storage_version {
            json::set(object, "apiVersion", version.as_str());
        }
    }

    /// Returns whether a stored object has the version in which objects are stored now.
    pub fn is_encoded(&self, stored: &Value) -> bool {
        self.storage_version.as_ref().is_none_or(|version| stored["apiVersion"] == **version)
    }

    /// Lists the verbs of the resource itself, sorted, as in discovery.
    pub fn verbs(&self) -> Vec<&'static str> {
        match (&*self.resource.group, &*self.resource.plural) {
            // Reviews are answered and not stored.
            ("authentication.k8s.io" | "authorization.k8s.io", _) | ("", "bindings") => {
                return vec!["create"];
            }
            ("", "componentstatuses") => return vec!["get", "list"],
            _ => {}
        }
        let all =
            ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
        let namespace = self.resource.group.is_empty() && self.resource.plural == "namespaces";
        all.into_iter().filter(|verb| !(namespace && *verb == "deletecollection")).collect()
    }
}

/// A column of the Table form.
pub struct Column {
    pub name: String,
    /// `string`, `integer`, `date` ...
    pub r#type: &'static str,
    pub format: &'static str,
    pub description: String,
    /// 0: always shown; more: with `-o wide`.
    pub priority: i32,
    /// The cell, given the object and the time now in seconds since 1970.
    pub cell: Cell,
}
