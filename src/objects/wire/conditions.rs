//! Conditions of the generated type.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

/// Go's zero time.
const ZERO_TIME: &str = "0001-01-01T00:00:00Z";

/// Reads a list of conditions. Go writes null for a list that is empty and for a time that is zero;
/// the generated type needs a value in each field.
pub fn conditions<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Condition>, D::Error> {
    let found = Option::<Vec<Map<String, Value>>>::deserialize(from)?.unwrap_or_default();
    let read = found.into_iter().map(|mut condition| {
        condition.retain(|_, value| !value.is_null());
        condition.entry("lastTransitionTime").or_insert_with(|| ZERO_TIME.into());
        serde_json::from_value(condition.into()).map_err(serde::de::Error::custom)
    });
    read.collect()
}
