//! The lean view of a Node.

use serde::{Deserialize, Serialize};

use crate::objects::{Istr, Meta, Quantity, Taint, Timestamp, null_as_default, resource};

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Node {
    #[serde(rename = "metadata", deserialize_with = "null_as_default")]
    pub meta: Meta,
    #[serde(deserialize_with = "null_as_default")]
    pub spec: NodeSpec,
    #[serde(deserialize_with = "null_as_default")]
    pub status: NodeStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSpec {
    #[serde(deserialize_with = "null_as_default")]
    pub taints: Vec<Taint>,
    #[serde(deserialize_with = "null_as_default")]
    pub unschedulable: bool,
    /// The CIDRs of its pods, one of each family.
    #[serde(rename = "podCIDRs", deserialize_with = "null_as_default")]
    pub pod_cidrs: Box<[Box<str>]>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NodeStatus {
    /// All fields, so that they can be replaced.
    #[serde(deserialize_with = "null_as_default")]
    pub conditions: Box<[NodeCondition]>,
    #[serde(rename = "allocatable", deserialize_with = "cpu")]
    pub allocatable_cpu: Quantity,
    #[serde(rename = "volumesAttached", deserialize_with = "null_as_default")]
    pub volumes_attached: Box<[AttachedVolume]>,
    #[serde(rename = "volumesInUse", deserialize_with = "null_as_default")]
    pub volumes_in_use: Box<[Istr]>,
}

/// An attached volume in the status.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AttachedVolume {
    pub name: Istr,
    pub device_path: Istr,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeCondition {
    pub r#type: Istr,
    pub status: Istr,
    pub last_heartbeat_time: Option<Timestamp>,
    pub last_transition_time: Option<Timestamp>,
    #[serde(skip_serializing_if = "is_empty")]
    pub reason: Istr,
    #[serde(skip_serializing_if = "is_empty")]
    pub message: Istr,
}

fn is_empty(text: &Istr) -> bool {
    text.is_empty()
}

impl NodeStatus {
    /// Returns the condition of this type. Upstream: `GetNodeCondition`.
    pub fn condition(&self, name: &str) -> Option<&NodeCondition> {
        self.conditions.iter().find(|condition| condition.r#type == *name)
    }

    /// The condition Ready.
    pub fn ready(&self) -> Option<&NodeCondition> {
        self.condition("Ready")
    }
}

resource!(Node, "", "v1", "nodes", cluster, NODE);

impl Node {
    /// The label `topology.kubernetes.io/zone`, if it is not empty.
    pub fn zone(&self) -> Option<&str> {
        self.meta.labels.get("topology.kubernetes.io/zone").filter(|zone| !zone.is_empty())
    }

    /// Returns whether the condition Ready is true. Upstream: `nodeutil.IsNodeReady`.
    pub fn is_ready(&self) -> bool {
        self.status.ready().is_some_and(|ready| ready.status == "True")
    }

    /// Returns whether the node has a taint with this key. Upstream: `taints.TaintKeyExists`.
    pub fn has_taint(&self, key: &str) -> bool {
        self.spec.taints.iter().any(|taint| taint.key == *key)
    }
}

/// Reads `cpu` of the field `allocatable`; 0 if it is absent or malformed.
fn cpu<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Quantity, D::Error> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Allocatable {
        cpu: Istr,
    }
    let allocatable = Option::<Allocatable>::deserialize(from)?.unwrap_or_default();
    Ok(allocatable.cpu.parse().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_and_readiness_are_read() {
        for (json, ready, millis) in [
            (r#"{}"#, false, 0),
            (r#"{"allocatable": {"cpu": "3920m", "memory": "1Ki"}}"#, false, 3920),
            (r#"{"allocatable": {"cpu": "1.5"}}"#, false, 1500),
            (r#"{"allocatable": {"cpu": "much"}}"#, false, 0),
            (r#"{"conditions": [{"type": "Ready", "status": "True"}]}"#, true, 0),
            (r#"{"conditions": [{"type": "Ready", "status": "Unknown"}]}"#, false, 0),
            (r#"{"conditions": [{"type": "DiskPressure", "status": "True"}]}"#, false, 0),
        ] {
            let status: NodeStatus = serde_json::from_str(json).unwrap();
            let node = Node { status, ..Node::default() };
            let cpu = node.status.allocatable_cpu.milli_value();
            assert_eq!((node.is_ready(), cpu), (ready, millis), "{json}");
        }
    }
}
