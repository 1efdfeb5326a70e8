//! The lean views of a ServiceCIDR and of an IPAddress.

use serde::Deserialize;

use crate::objects::{Condition, Meta, WholeMeta, null_as_default, resource};

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ServiceCIDR {
    #[serde(rename = "metadata", deserialize_with = "null_as_default")]
    pub meta: Meta,
    #[serde(deserialize_with = "null_as_default")]
    pub spec: ServiceCidrSpec,
    #[serde(deserialize_with = "null_as_default")]
    pub status: ServiceCidrStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ServiceCidrSpec {
    /// At most one of each family.
    #[serde(deserialize_with = "null_as_default")]
    pub cidrs: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ServiceCidrStatus {
    #[serde(deserialize_with = "null_as_default")]
    pub conditions: Vec<Condition>,
}

resource!(ServiceCIDR, "networking.k8s.io", "v1", "servicecidrs", cluster);
impl WholeMeta for ServiceCIDR {}

/// Its name is the address.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct IPAddress {
    #[serde(rename = "metadata", deserialize_with = "null_as_default")]
    pub meta: Meta,
}

resource!(IPAddress, "networking.k8s.io", "v1", "ipaddresses", cluster);
