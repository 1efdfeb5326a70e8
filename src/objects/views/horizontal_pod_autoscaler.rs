//! The lean view of a HorizontalPodAutoscaler.

use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

use crate::objects::{
    Istr, LabelSelector, Meta, Quantity, Timestamp, WholeMeta, null_as_default, resource,
};

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct HorizontalPodAutoscaler {
    #[serde(rename = "metadata", deserialize_with = "null_as_default")]
    pub meta: Meta,
    #[serde(deserialize_with = "null_as_default")]
    pub spec: HorizontalPodAutoscalerSpec,
    #[serde(deserialize_with = "null_as_default")]
    pub status: HorizontalPodAutoscalerStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HorizontalPodAutoscalerSpec {
    #[serde(deserialize_with = "null_as_default")]
    pub scale_target_ref: CrossVersionObjectReference,
    /// The API server defaults it to 1.
    pub min_replicas: Option<i32>,
    #[serde(deserialize_with = "null_as_default")]
    pub max_replicas: i32,
    #[serde(deserialize_with = "null_as_default")]
    pub metrics: Vec<MetricSpec>,
    pub behavior: Option<Behavior>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CrossVersionObjectReference {
    pub kind: Istr,
    pub name: Istr,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub api_version: Istr,
}

/// One metric. The member that `type` names is set.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MetricSpec {
    pub r#type: Istr,
    pub object: Option<MetricSource>,
    pub pods: Option<MetricSource>,
    pub resource: Option<MetricSource>,
    pub container_resource: Option<MetricSource>,
    pub external: Option<MetricSource>,
}

/// The members of all sources; each has some of them.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MetricSource {
    /// The name of the resource.
    pub name: Istr,
    pub container: Istr,
    #[serde(deserialize_with = "null_as_default")]
    pub described_object: CrossVersionObjectReference,
    #[serde(deserialize_with = "null_as_default")]
    pub metric: MetricIdentifier,
    #[serde(deserialize_with = "null_as_default")]
    pub target: MetricTarget,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MetricIdentifier {
    pub name: Istr,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MetricTarget {
    pub r#type: Istr,
    pub value: Option<Quantity>,
    pub average_value: Option<Quantity>,
    pub average_utilization: Option<i32>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Behavior {
    #[serde(deserialize_with = "null_as_default")]
    pub scale_up: ScalingRules,
    #[serde(deserialize_with = "null_as_default")]
    pub scale_down: ScalingRules,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ScalingRules {
    pub stabilization_window_seconds: Option<i32>,
    pub select_policy: Option<Istr>,
    #[serde(deserialize_with = "null_as_default")]
    pub policies: Vec<ScalingPolicy>,
    pub tolerance: Option<Quantity>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ScalingPolicy {
    pub r#type: Istr,
    #[serde(deserialize_with = "null_as_default")]
    pub value: i32,
    #[serde(deserialize_with = "null_as_default")]
    pub period_seconds: i32,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HorizontalPodAutoscalerStatus {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_scale_time: Option<Timestamp>,
    #[serde(deserialize_with = "null_as_default")]
    pub current_replicas: i32,
    #[serde(deserialize_with = "null_as_default")]
    pub desired_replicas: i32,
    /// In their original form: they are only compared.
    #[serde(deserialize_with = "null_as_default", serialize_with = "null_for_none")]
    pub current_metrics: Vec<Value>,
    #[serde(deserialize_with = "null_as_default")]
    pub conditions: Vec<AutoscalerCondition>,
}

/// Writes an empty list as null, as Go does.
fn null_for_none<S: Serializer>(list: &Vec<Value>, to: S) -> Result<S::Ok, S::Error> {
    if list.is_empty() { to.serialize_none() } else { list.serialize(to) }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AutoscalerCondition {
    pub r#type: Istr,
    pub status: Istr,
    pub last_transition_time: Option<Timestamp>,
    pub reason: Istr,
    #[serde(deserialize_with = "null_as_default")]
    pub message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

resource!(HorizontalPodAutoscaler, "autoscaling", "v2", "horizontalpodautoscalers", namespaced);
impl WholeMeta for HorizontalPodAutoscaler {}

impl HorizontalPodAutoscaler {
    /// `spec.minReplicas`, 1 when absent.
    pub fn min_replicas(&self) -> i32 {
        self.spec.min_replicas.unwrap_or(1)
    }

    pub fn condition(&self, kind: &str) -> Option<&AutoscalerCondition> {
        self.status.conditions.iter().find(|condition| condition.r#type == *kind)
    }
}
