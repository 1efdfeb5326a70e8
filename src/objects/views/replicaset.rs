//! The lean view of a ReplicaSet.

use serde::{Deserialize, Serialize};

use crate::objects::{
    Condition, LabelSelector, Meta, Template, WholeMeta, null_as_default, resource,
};

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ReplicaSet {
    #[serde(rename = "metadata", deserialize_with = "null_as_default")]
    pub meta: Meta,
    #[serde(deserialize_with = "null_as_default")]
    pub spec: ReplicaSetSpec,
    #[serde(deserialize_with = "null_as_default")]
    pub status: ReplicaSetStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReplicaSetSpec {
    /// The API server defaults it to 1, so it is always there.
    pub replicas: Option<i32>,
    #[serde(deserialize_with = "null_as_default")]
    pub min_ready_seconds: i32,
    pub selector: Option<LabelSelector>,
    pub template: Template,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReplicaSetStatus {
    #[serde(deserialize_with = "null_as_default")]
    pub replicas: i32,
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_zero")]
    pub fully_labeled_replicas: i32,
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_zero")]
    pub ready_replicas: i32,
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_zero")]
    pub available_replicas: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub terminating_replicas: Option<i32>,
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_zero_i64")]
    pub observed_generation: i64,
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

resource!(ReplicaSet, "apps", "v1", "replicasets", namespaced);
impl WholeMeta for ReplicaSet {}

impl ReplicaSet {
    /// `spec.replicas`, 1 when absent.
    pub fn replicas(&self) -> i32 {
        self.spec.replicas.unwrap_or(1)
    }
}

fn is_zero(number: &i32) -> bool {
    *number == 0
}

fn is_zero_i64(number: &i64) -> bool {
    *number == 0
}
