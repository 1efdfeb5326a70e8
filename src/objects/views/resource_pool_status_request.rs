//! The view of a ResourcePoolStatusRequest.

use serde::Deserialize;

use crate::objects::{Istr, Meta, Timestamp, null_as_default, resource};

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ResourcePoolStatusRequest {
    #[serde(rename = "metadata", deserialize_with = "null_as_default")]
    pub meta: Meta,
    #[serde(deserialize_with = "null_as_default")]
    pub spec: ResourcePoolStatusRequestSpec,
    /// `None`: not answered yet.
    pub status: Option<ResourcePoolStatusRequestStatus>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourcePoolStatusRequestSpec {
    pub driver: Istr,
    pub pool_name: Istr,
    /// The greatest number of pools in the answer.
    pub limit: Option<u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ResourcePoolStatusRequestStatus {
    #[serde(deserialize_with = "null_as_default")]
    pub conditions: Vec<RequestEnd>,
}

/// A condition: Complete or Failed.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RequestEnd {
    pub r#type: Istr,
    pub last_transition_time: Option<Timestamp>,
}

resource!(
    ResourcePoolStatusRequest,
    "resource.k8s.io",
    "v1alpha3",
    "resourcepoolstatusrequests",
    cluster
);
