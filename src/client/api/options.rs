//! The options of the verbs.

use serde::Serialize;
use serde_json::Value;

use crate::objects::Uid;

/// A patch, by its type. Upstream: `types.PatchType`.
#[derive(Clone, Debug)]
pub enum Patch {
    /// A list of operations: RFC 6902.
    Json(Value),
    /// Fields to set, and to remove with null; lists are replaced: RFC 7386.
    Merge(Value),
    /// As a merge patch, but lists with merge keys are merged. Only for built-in kinds.
    StrategicMerge(Value),
    /// Server-side apply.
    Apply {
        /// The field manager that owns the fields of `body` afterwards.
        manager: String,
        /// Take fields over from other managers; otherwise they make a conflict (409).
        force: bool,
        /// The fields that the manager wants; fields that it owned and that are missing are
        /// removed.
        body: Value,
    },
}

/// The effect of a deletion on the dependents of an object. Upstream: `metav1.DeletionPropagation`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Propagation {
    /// They stay, without the owner reference.
    Orphan,
    /// The object is deleted at once, its dependents afterwards.
    Background,
    /// The object stays until its dependents are deleted.
    Foreground,
}

/// Conditions on the stored object; if it does not meet them, the deletion is a conflict (409).
/// Upstream: `metav1.Preconditions`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Preconditions {
    /// The uid that the object must have; `None`: any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<Uid>,
    /// The resourceVersion that it must have; `None`: any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_version: Option<String>,
}

/// How to delete an object. Absent fields leave the choice to the server. Upstream:
/// `metav1.DeleteOptions`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Delete {
    /// How long a pod may take to stop; zero deletes it at once. Kinds without a grace period
    /// ignore it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace_period_seconds: Option<i64>,
    /// The conditions on the object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preconditions: Option<Preconditions>,
    /// What happens to the dependents.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub propagation_policy: Option<Propagation>,
}

impl Delete {
    /// Makes a deletion with the server's defaults: its grace period and propagation of the kind,
    /// no preconditions.
    pub fn new() -> Delete {
        Delete::default()
    }

    /// Makes a deletion with [`Propagation::Foreground`].
    pub fn foreground() -> Delete {
        Delete { propagation_policy: Some(Propagation::Foreground), ..Delete::default() }
    }

    /// Makes a deletion with [`Propagation::Background`].
    pub fn background() -> Delete {
        Delete { propagation_policy: Some(Propagation::Background), ..Delete::default() }
    }

    /// Makes a deletion with [`Propagation::Orphan`].
    pub fn orphan() -> Delete {
        Delete { propagation_policy: Some(Propagation::Orphan), ..Delete::default() }
    }

    /// Restricts the deletion to an object that still has this uid.
    pub fn uid(mut self, uid: Uid) -> Delete {
        self.preconditions.get_or_insert_default().uid = Some(uid);
        self
    }

    /// Restricts the deletion to an object that is still at this version.
    pub fn resource_version(mut self, version: u64) -> Delete {
        self.preconditions.get_or_insert_default().resource_version = Some(version.to_string());
        self
    }

    /// Sets the grace period, in seconds.
    pub fn grace_period(mut self, seconds: i64) -> Delete {
        self.grace_period_seconds = Some(seconds);
        self
    }
}

/// The part of `metav1.ListOptions` that lists and watches share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListOptions {
    /// Selects objects by their labels, in the API's syntax (`app=web,tier!=db`); `None`: all.
    pub label_selector: Option<String>,
    /// Selects objects by fields (`spec.nodeName=a`), which the kind must support; `None`: all.
    pub field_selector: Option<String>,
    /// The version to read or to watch from. `None`: the newest. `Some("0")`: any version that the
    /// server has in its cache.
    pub resource_version: Option<String>,
    /// Objects a page; `None`: 500 for a list of all pages, no limit for one page.
    pub limit: Option<u32>,
}
