//! The lean view of a DeviceClass.

use serde::Deserialize;

use crate::objects::{Istr, Meta, null_as_default, resource};

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct DeviceClass {
    #[serde(rename = "metadata", deserialize_with = "null_as_default")]
    pub meta: Meta,
    #[serde(deserialize_with = "null_as_default")]
    pub spec: DeviceClassSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceClassSpec {
    /// The resource by which containers may request its devices.
    pub extended_resource_name: Option<Istr>,
}

resource!(DeviceClass, "resource.k8s.io", "v1", "deviceclasses", cluster);
