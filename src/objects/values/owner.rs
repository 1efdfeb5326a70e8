//! Owner references.

#![warn(missing_docs)]

use serde::{Deserialize, Serialize};

use crate::objects::{Istr, Uid, null_as_default};

/// Names an owner of an object: when all owners are gone, the garbage collector deletes the object.
/// The owner is in the object's namespace or has none. Upstream: `metav1.OwnerReference`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OwnerReference {
    /// Group and version, `apps/v1`; of the core group `v1`.
    pub api_version: Istr,
    /// The kind, `Deployment`.
    pub kind: Istr,
    /// The owner's name.
    pub name: Istr,
    /// The owner's uid: an owner of that name with another uid is another object.
    #[serde(deserialize_with = "null_as_default")]
    pub uid: Uid,
    /// Whether this owner manages the object; at most one does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller: Option<bool>,
    /// Whether a foreground deletion of the owner waits for this object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_owner_deletion: Option<bool>,
}

impl OwnerReference {
    /// Whether this owner manages the object.
    pub fn is_controller(&self) -> bool {
        self.controller == Some(true)
    }

    /// The group of `apiVersion`; empty for the core group.
    pub fn group(&self) -> &str {
        self.api_version.split_once('/').map_or("", |(group, _)| group)
    }
}
