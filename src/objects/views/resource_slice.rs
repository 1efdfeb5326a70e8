//! The lean view of a ResourceSlice.

use serde::Deserialize;

use crate::objects::{Istr, Meta, Timestamp, null_as_default, resource};

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ResourceSlice {
    #[serde(rename = "metadata", deserialize_with = "null_as_default")]
    pub meta: Meta,
    #[serde(deserialize_with = "null_as_default")]
    pub spec: ResourceSliceSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourceSliceSpec {
    pub driver: Istr,
    #[serde(deserialize_with = "null_as_default")]
    pub pool: ResourcePool,
    pub node_name: Istr,
    #[serde(deserialize_with = "null_as_default")]
    pub devices: Box<[SliceDevice]>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourcePool {
    pub name: Istr,
    #[serde(deserialize_with = "null_as_default")]
    pub generation: i64,
    /// The number of slices of the pool at this generation.
    #[serde(deserialize_with = "null_as_default")]
    pub resource_slice_count: i64,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct SliceDevice {
    pub name: Istr,
    #[serde(deserialize_with = "null_as_default")]
    pub taints: Box<[DeviceTaint]>,
}

/// A taint of a device, of its slice or of a DeviceTaintRule.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceTaint {
    pub key: Istr,
    pub value: Istr,
    pub effect: Istr,
    /// The API server sets it.
    pub time_added: Option<Timestamp>,
}

resource!(ResourceSlice, "resource.k8s.io", "v1", "resourceslices", cluster);
