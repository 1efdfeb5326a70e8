//! The lean view of a ResourceClaim.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};

use crate::objects::{Istr, Meta, null_as_default, resource};

/// Upstream: `resourceapi.AllocationResultsMaxSize`.
const MOST_DEVICES: i64 = 32;

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ResourceClaim {
    #[serde(rename = "metadata", deserialize_with = "null_as_default")]
    pub meta: Meta,
    #[serde(deserialize_with = "null_as_default")]
    pub spec: ResourceClaimSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ResourceClaimSpec {
    /// How many devices of each class it may be given at most.
    #[serde(deserialize_with = "most_devices")]
    pub devices: Box<[(Istr, i64)]>,
}

resource!(ResourceClaim, "resource.k8s.io", "v1", "resourceclaims", namespaced);

fn most_devices<'de, D: Deserializer<'de>>(from: D) -> Result<Box<[(Istr, i64)]>, D::Error> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Devices {
        requests: Option<Vec<Request>>,
    }
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct Request {
        exactly: Option<Wanted>,
        first_available: Option<Vec<Wanted>>,
    }
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct Wanted {
        device_class_name: Istr,
        allocation_mode: Istr,
        #[serde(deserialize_with = "null_as_default")]
        count: i64,
    }
    impl Wanted {
        fn most(&self) -> i64 {
            match self.allocation_mode.as_str() {
                "ExactCount" => self.count,
                "All" => MOST_DEVICES,
                // A mode that this build does not know is not charged, as upstream.
                _ => 0,
            }
        }
    }
    let devices = Option::<Devices>::deserialize(from)?.unwrap_or_default();
    let mut most: BTreeMap<Istr, i64> = BTreeMap::new();
    for request in devices.requests.unwrap_or_default() {
        // One of the alternatives is given: the most of each class is charged.
        let alternatives = request.first_available.filter(|wanted| !wanted.is_empty());
        let mut of_request: BTreeMap<Istr, i64> = BTreeMap::new();
        for wanted in alternatives.unwrap_or_else(|| request.exactly.into_iter().collect()) {
            let count = of_request.entry(wanted.device_class_name.clone()).or_default();
            *count = wanted.most().max(*count);
        }
        for (class, count) in of_request {
            let sum = most.entry(class).or_default();
            *sum = sum.saturating_add(count);
        }
    }
    Ok(most.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_most_of_each_class_is_counted() {
        let claim: ResourceClaim =
            serde_json::from_value(json!({ "spec": { "devices": { "requests": [
            { "exactly": { "deviceClassName": "a", "allocationMode": "ExactCount", "count": 2 } },
            { "exactly": { "deviceClassName": "b", "allocationMode": "All" } },
            { "exactly": { "deviceClassName": "a", "allocationMode": "Later", "count": 9 } },
            { "firstAvailable": [
                { "deviceClassName": "a", "allocationMode": "ExactCount", "count": 1 },
                { "deviceClassName": "a", "allocationMode": "ExactCount", "count": 3 },
                { "deviceClassName": "c", "allocationMode": "ExactCount", "count": 4 },
            ] },
        ] } } }))
            .unwrap();
        let expected = [("a", 5), ("b", 32), ("c", 4)].map(|(class, count)| (class.into(), count));
        assert_eq!(*claim.spec.devices, expected);
    }
}
