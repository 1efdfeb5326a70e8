//! The view of a DeviceTaintRule.

use serde::Deserialize;

use crate::objects::views::resource_slice::DeviceTaint;
use crate::objects::{Istr, Meta, Timestamp, null_as_default, resource};

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct DeviceTaintRule {
    #[serde(rename = "metadata", deserialize_with = "null_as_default")]
    pub meta: Meta,
    #[serde(deserialize_with = "null_as_default")]
    pub spec: DeviceTaintRuleSpec,
    #[serde(deserialize_with = "null_as_default")]
    pub status: DeviceTaintRuleStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceTaintRuleSpec {
    /// `None` selects no device.
    pub device_selector: Option<DeviceSelector>,
    #[serde(deserialize_with = "null_as_default")]
    pub taint: DeviceTaint,
}

/// Selects the devices that match all fields that are set.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct DeviceSelector {
    pub driver: Option<Istr>,
    pub pool: Option<Istr>,
    pub device: Option<Istr>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct DeviceTaintRuleStatus {
    #[serde(deserialize_with = "null_as_default")]
    pub conditions: Vec<TaintRuleCondition>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TaintRuleCondition {
    pub r#type: Istr,
    pub status: Istr,
    pub reason: Istr,
    #[serde(deserialize_with = "null_as_default")]
    pub message: String,
    #[serde(deserialize_with = "null_as_default")]
    pub observed_generation: i64,
    pub last_transition_time: Option<Timestamp>,
}

resource!(DeviceTaintRule, "resource.k8s.io", "v1beta2", "devicetaintrules", cluster);
