//! The view of a Workload, whose pods are scheduled as a whole.

use serde::Deserialize;
use serde_json::Value;

use crate::objects::{Istr, Meta, null_as_default, resource};

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Workload {
    #[serde(rename = "metadata", deserialize_with = "null_as_default")]
    pub meta: Meta,
    #[serde(deserialize_with = "null_as_default")]
    pub spec: WorkloadSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkloadSpec {
    pub controller_ref: Option<WorkloadOwner>,
    #[serde(deserialize_with = "null_as_default")]
    pub pod_group_templates: Vec<PodGroupTemplate>,
}

/// The object, in the same namespace, whose pods belong to the Workload.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkloadOwner {
    pub api_group: Istr,
    pub kind: Istr,
    pub name: Istr,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodGroupTemplate {
    pub name: Istr,
    pub scheduling_policy: Value,
}

resource!(Workload, "scheduling.k8s.io", "v1alpha2", "workloads", namespaced);
