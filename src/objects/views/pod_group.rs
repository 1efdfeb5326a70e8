//! The lean view of a PodGroup.

use serde::Deserialize;

use crate::objects::{
    Istr, Meta, PodResourceClaim, ResourceClaimStatus, null_as_default, resource,
};

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PodGroup {
    #[serde(rename = "metadata", deserialize_with = "null_as_default")]
    pub meta: Meta,
    #[serde(deserialize_with = "null_as_default")]
    pub spec: PodGroupSpec,
    #[serde(deserialize_with = "null_as_default")]
    pub status: PodGroupStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodGroupSpec {
    #[serde(deserialize_with = "null_as_default")]
    pub pod_group_template_ref: PodGroupTemplateRef,
    #[serde(deserialize_with = "null_as_default")]
    pub resource_claims: Box<[PodResourceClaim]>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodGroupStatus {
    #[serde(deserialize_with = "null_as_default")]
    pub resource_claim_statuses: Box<[ResourceClaimStatus]>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PodGroupTemplateRef {
    #[serde(deserialize_with = "null_as_default")]
    pub workload: WorkloadTemplateRef,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkloadTemplateRef {
    /// Empty when the group does not belong to a Workload.
    pub workload_name: Istr,
}

resource!(PodGroup, "scheduling.k8s.io", "v1alpha2", "podgroups", namespaced);
