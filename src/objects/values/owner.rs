//! Owner references.

use serde::{Deserialize, Serialize};

use crate::objects::{Istr, Uid, null_as_default};

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OwnerReference {
    pub api_version: Istr,
    pub kind: Istr,
    pub name: Istr,
    #[serde(deserialize_with = "null_as_default")]
    pub uid: Uid,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_owner_deletion: Option<bool>,
}

impl OwnerReference {
    pub fn is_controller(&self) -> bool {
        self.controller == Some(true)
    }

    /// The group of `apiVersion`; empty for the core group.
    pub fn group(&self) -> &str {
        self.api_version.split_once('/').map_or("", |(group, _)| group)
    }
}
