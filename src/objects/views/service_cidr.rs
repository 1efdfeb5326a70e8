//! The lean views of a ServiceCIDR and of an IPAddress.

use k8s_openapi::api::networking::v1::ServiceCIDRStatus;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde::{Deserialize, Deserializer};

use crate::objects::wire::conditions::conditions;
use crate::objects::{Meta, WholeMeta, null_as_default, resource};

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ServiceCIDR {
    #[serde(rename = "metadata", deserialize_with = "null_as_default")]
    pub meta: Meta,
    #[serde(deserialize_with = "null_as_default")]
    pub spec: ServiceCidrSpec,
    #[serde(deserialize_with = "status")]
    pub status: ServiceCIDRStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ServiceCidrSpec {
    /// At most one of each family.
    #[serde(deserialize_with = "null_as_default")]
    pub cidrs: Vec<String>,
}

resource!(ServiceCIDR, "networking.k8s.io", "v1", "servicecidrs", cluster);
impl WholeMeta for ServiceCIDR {}

/// The status as it comes.
#[derive(Default, Deserialize)]
#[serde(default)]
struct WireStatus {
    #[serde(deserialize_with = "conditions")]
    conditions: Vec<Condition>,
}

fn status<'de, D: Deserializer<'de>>(from: D) -> Result<ServiceCIDRStatus, D::Error> {
    let WireStatus { conditions } = Option::deserialize(from)?.unwrap_or_default();
    Ok(ServiceCIDRStatus { conditions: Some(conditions).filter(|found| !found.is_empty()) })
}

/// Its name is the address.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct IPAddress {
    #[serde(rename = "metadata", deserialize_with = "null_as_default")]
    pub meta: Meta,
}

resource!(IPAddress, "networking.k8s.io", "v1", "ipaddresses", cluster);
