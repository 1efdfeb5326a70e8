//! The lean view of a PodDisruptionBudget.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde::{Deserialize, Serialize};

use crate::objects::{Istr, LabelSelector, Meta, Timestamp, WholeMeta, null_as_default, resource};

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PodDisruptionBudget {
    #[serde(rename = "metadata", deserialize_with = "null_as_default")]
    pub meta: Meta,
    #[serde(deserialize_with = "null_as_default")]
    pub spec: PodDisruptionBudgetSpec,
    #[serde(deserialize_with = "null_as_default")]
    pub status: PodDisruptionBudgetStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodDisruptionBudgetSpec {
    pub min_available: Option<IntOrString>,
    pub max_unavailable: Option<IntOrString>,
    /// An empty selector selects every pod of the namespace, an absent one none.
    pub selector: Option<LabelSelector>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodDisruptionBudgetStatus {
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_zero")]
    pub observed_generation: i64,
    /// The times when evictions were allowed, by the names of the pods. These pods are not deleted
    /// yet.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub disrupted_pods: BTreeMap<Box<str>, Option<Timestamp>>,
    #[serde(deserialize_with = "null_as_default")]
    pub disruptions_allowed: i32,
    #[serde(deserialize_with = "null_as_default")]
    pub current_healthy: i32,
    #[serde(deserialize_with = "null_as_default")]
    pub desired_healthy: i32,
    #[serde(deserialize_with = "null_as_default")]
    pub expected_pods: i32,
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<BudgetCondition>,
}

/// `metav1.Condition`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BudgetCondition {
    pub r#type: Istr,
    pub status: Istr,
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_zero")]
    pub observed_generation: i64,
    pub last_transition_time: Option<Timestamp>,
    pub reason: Istr,
    #[serde(deserialize_with = "null_as_default")]
    pub message: String,
}

resource!(PodDisruptionBudget, "policy", "v1", "poddisruptionbudgets", namespaced);
impl WholeMeta for PodDisruptionBudget {}

fn is_zero(number: &i64) -> bool {
    *number == 0
}
