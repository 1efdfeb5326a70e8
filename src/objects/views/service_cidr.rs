//! The lean views of a ServiceCIDR and of an IPAddress.

use k8s_openapi::api::networking::v1::ServiceCIDRStatus;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

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

/// Go's zero time.
const ZERO_TIME: &str = "0001-01-01T00:00:00Z";

/// Go writes null for a time that is zero; the generated type of a condition needs a time.
fn status<'de, D: Deserializer<'de>>(from: D) -> Result<ServiceCIDRStatus, D::Error> {
    let Some(mut status) = Option::<Value>::deserialize(from)? else {
        return Ok(ServiceCIDRStatus::default());
    };
    let conditions = status.get_mut("conditions").and_then(Value::as_array_mut);
    for condition in conditions.into_iter().flatten().filter_map(Value::as_object_mut) {
        condition.retain(|_, value| !value.is_null());
        condition.entry("lastTransitionTime").or_insert_with(|| ZERO_TIME.into());
    }
    serde_json::from_value(status).map_err(serde::de::Error::custom)
}

/// Its name is the address.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct IPAddress {
    #[serde(rename = "metadata", deserialize_with = "null_as_default")]
    pub meta: Meta,
}

resource!(IPAddress, "networking.k8s.io", "v1", "ipaddresses", cluster);
