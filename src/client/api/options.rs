//! The options of the verbs.

use serde::Serialize;
use serde_json::Value;

use crate::objects::Uid;

/// A patch and its content type.
#[derive(Clone, Debug)]
pub enum Patch {
    /// RFC 6902
    Json(Value),
    /// RFC 7386
    Merge(Value),
    StrategicMerge(Value),
    Apply {
        manager: String,
        force: bool,
        body: Value,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Propagation {
    Orphan,
    Background,
    Foreground,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Preconditions {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<Uid>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_version: Option<String>,
}

/// `metav1.DeleteOptions`
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Delete {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace_period_seconds: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preconditions: Option<Preconditions>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub propagation_policy: Option<Propagation>,
}

impl Delete {
    pub fn new() -> Delete {
        Delete::default()
    }

    pub fn foreground() -> Delete {
        Delete { propagation_policy: Some(Propagation::Foreground), ..Delete::default() }
    }

    pub fn background() -> Delete {
        Delete { propagation_policy: Some(Propagation::Background), ..Delete::default() }
    }

    pub fn orphan() -> Delete {
        Delete { propagation_policy: Some(Propagation::Orphan), ..Delete::default() }
    }

    /// Only if the object still has this uid.
    pub fn uid(mut self, uid: Uid) -> Delete {
        self.preconditions.get_or_insert_default().uid = Some(uid);
        self
    }

    /// Only if the object is still at this version.
    pub fn resource_version(mut self, version: u64) -> Delete {
        self.preconditions.get_or_insert_default().resource_version = Some(version.to_string());
        self
    }

    pub fn grace_period(mut self, seconds: i64) -> Delete {
        self.grace_period_seconds = Some(seconds);
        self
    }
}

/// The part of `metav1.ListOptions` that lists and watches share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListOptions {
    pub label_selector: Option<String>,
    pub field_selector: Option<String>,
    /// `None`: the newest. `Some("0")`: any version that the server has in its cache.
    pub resource_version: Option<String>,
    /// Items a page; `None` lets the client choose.
    pub limit: Option<u32>,
}
