//! The lean view of a ResourceClaim.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::objects::{Istr, Meta, Uid, null_as_default, resource};

/// Upstream: `resourceapi.AllocationResultsMaxSize`.
const MOST_DEVICES: i64 = 32;

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ResourceClaim {
    #[serde(rename = "metadata", deserialize_with = "null_as_default")]
    pub meta: Meta,
    #[serde(deserialize_with = "null_as_default")]
    pub spec: ResourceClaimSpec,
    #[serde(deserialize_with = "null_as_default")]
    pub status: ResourceClaimUse,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(from = "WireSpec")]
pub struct ResourceClaimSpec {
    /// The greatest number of devices of each class that may be allocated to it.
    pub devices: Box<[(Istr, i64)]>,
    /// Whether a request asks for admin access.
    pub admin_access: bool,
    /// Whether a request lists alternatives.
    pub has_alternatives: bool,
}

/// The allocation of a claim, and its consumers. Upstream: `ResourceClaimStatus`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourceClaimUse {
    /// `None`: not allocated.
    pub allocation: Option<Allocation>,
    #[serde(deserialize_with = "null_as_default")]
    pub reserved_for: Box<[ClaimConsumer]>,
}

/// The devices of an allocation. Upstream: `AllocationResult`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(from = "WireAllocation")]
pub struct Allocation(pub Box<[AllocatedDevice]>);

/// Upstream: `DeviceRequestAllocationResult`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct AllocatedDevice {
    pub driver: Istr,
    pub pool: Istr,
    pub device: Istr,
    #[serde(deserialize_with = "null_as_default")]
    pub tolerations: Box<[DeviceToleration]>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceToleration {
    pub key: Istr,
    pub operator: Istr,
    pub value: Istr,
    pub effect: Istr,
    pub toleration_seconds: Option<i64>,
}

/// Upstream: `ResourceClaimConsumerReference`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimConsumer {
    pub api_group: Istr,
    pub resource: Istr,
    #[serde(deserialize_with = "null_as_default")]
    pub name: Box<str>,
    #[serde(deserialize_with = "null_as_default")]
    pub uid: Uid,
}

resource!(ResourceClaim, "resource.k8s.io", "v1", "resourceclaims", namespaced);

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireAllocation {
    #[serde(deserialize_with = "null_as_default")]
    devices: WireResults,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireResults {
    #[serde(deserialize_with = "null_as_default")]
    results: Box<[AllocatedDevice]>,
}

impl From<WireAllocation> for Allocation {
    fn from(wire: WireAllocation) -> Allocation {
        Allocation(wire.devices.results)
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireSpec {
    #[serde(deserialize_with = "null_as_default")]
    devices: WireDevices,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireDevices {
    requests: Option<Vec<WireRequest>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireRequest {
    exactly: Option<WireWanted>,
    first_available: Option<Vec<WireWanted>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireWanted {
    device_class_name: Istr,
    allocation_mode: Istr,
    #[serde(deserialize_with = "null_as_default")]
    count: i64,
    admin_access: Option<bool>,
}

impl WireWanted {
    /// Returns the largest number of devices that the request may get.
    fn most(&self) -> i64 {
        match self.allocation_mode.as_str() {
            "ExactCount" => self.count,
            "All" => MOST_DEVICES,
            // An unknown mode is not charged, as upstream.
            _ => 0,
        }
    }
}

impl From<WireSpec> for ResourceClaimSpec {
    /// Converts the wire form of a spec to the view: how many devices of each class the claim may
    /// be charged for, and two of its features.
    fn from(spec: WireSpec) -> ResourceClaimSpec {
        let requests = spec.devices.requests.unwrap_or_default();
        let admin = |wanted: &WireWanted| wanted.admin_access == Some(true);
        let admin_access =
            requests.iter().any(|request| request.exactly.as_ref().is_some_and(admin));
        let alternatives = |request: &WireRequest| {
            request.first_available.as_ref().is_some_and(|wanted| !wanted.is_empty())
        };
        let has_alternatives = requests.iter().any(alternatives);
        let mut most: BTreeMap<Istr, i64> = BTreeMap::new();
        for request in requests {
            // One of the alternatives is allocated: the largest number for each class is charged.
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
        let devices = most.into_iter().collect();
        ResourceClaimSpec { devices, admin_access, has_alternatives }
    }
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
        assert!(!claim.spec.admin_access && claim.spec.has_alternatives);
    }

    #[test]
    fn an_allocation_may_be_there_without_devices() {
        let allocation = |status: serde_json::Value| {
            let claim: ResourceClaim = serde_json::from_value(json!({ "status": status })).unwrap();
            claim.status.allocation.map(|Allocation(devices)| devices.len())
        };
        assert_eq!(allocation(json!({})), None);
        assert_eq!(allocation(json!({ "allocation": null })), None);
        assert_eq!(allocation(json!({ "allocation": {} })), Some(0));
        let results = json!([{ "driver": "d", "pool": "p", "device": "x" }]);
        assert_eq!(
            allocation(json!({ "allocation": { "devices": { "results": results } } })),
            Some(1)
        );
    }
}
