//! The view of a StorageVersionMigration.

use serde::{Deserialize, Serialize};

use crate::objects::{Condition, Istr, Meta, WholeMeta, null_as_default, resource};

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct StorageVersionMigration {
    #[serde(rename = "metadata", deserialize_with = "null_as_default")]
    pub meta: Meta,
    #[serde(deserialize_with = "null_as_default")]
    pub spec: StorageVersionMigrationSpec,
    #[serde(deserialize_with = "null_as_default")]
    pub status: StorageVersionMigrationStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct StorageVersionMigrationSpec {
    #[serde(deserialize_with = "null_as_default")]
    pub resource: GroupResource,
}

/// Upstream: `metav1.GroupResource`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
#[serde(default)]
pub struct GroupResource {
    pub group: Istr,
    pub resource: Istr,
}

impl std::fmt::Display for GroupResource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.group.is_empty() {
            true => f.write_str(&self.resource),
            false => write!(f, "{}.{}", self.resource, self.group),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StorageVersionMigrationStatus {
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Objects with a newer version are already migrated; empty until it is known.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub resource_version: Istr,
}

resource!(
    StorageVersionMigration,
    "storagemigration.k8s.io",
    "v1beta1",
    "storageversionmigrations",
    cluster
);
impl WholeMeta for StorageVersionMigration {}

impl StorageVersionMigrationStatus {
    pub fn condition(&self, name: &str) -> Option<&Condition> {
        self.conditions.iter().find(|condition| condition.type_ == name)
    }

    pub fn is_true(&self, name: &str) -> bool {
        self.condition(name).is_some_and(|condition| condition.status == "True")
    }
}
