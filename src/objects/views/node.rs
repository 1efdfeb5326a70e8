//! The lean view of a Node.

use serde::{Deserialize, Serialize};

use crate::objects::{Istr, Meta, Quantity, Taint, null_as_default, resource};

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
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NodeStatus {
    /// The status of the condition Ready: `True`, `False` or `Unknown`; empty without it.
    #[serde(rename = "conditions", deserialize_with = "ready")]
    pub ready: Istr,
    #[serde(rename = "allocatable", deserialize_with = "cpu")]
    pub allocatable_cpu: Quantity,
    #[serde(rename = "volumesAttached", deserialize_with = "null_as_default")]
    pub volumes_attached: Box<[AttachedVolume]>,
    #[serde(rename = "volumesInUse", deserialize_with = "null_as_default")]
    pub volumes_in_use: Box<[Istr]>,
}

/// What the status says of a volume that is attached.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AttachedVolume {
    pub name: Istr,
    pub device_path: Istr,
}

resource!(Node, "", "v1", "nodes", cluster);

impl Node {
    /// The label `topology.kubernetes.io/zone`, if it says anything.
    pub fn zone(&self) -> Option<&str> {
        self.meta.labels.get("topology.kubernetes.io/zone").filter(|zone| !zone.is_empty())
    }

    /// Upstream: `nodeutil.IsNodeReady`.
    pub fn is_ready(&self) -> bool {
        self.status.ready == "True"
    }

    /// Upstream: `taints.TaintKeyExists`.
    pub fn has_taint(&self, key: &str) -> bool {
        self.spec.taints.iter().any(|taint| taint.key == *key)
    }
}

fn ready<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Istr, D::Error> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Condition {
        r#type: Istr,
        status: Istr,
    }
    let conditions = Option::<Vec<Condition>>::deserialize(from)?.unwrap_or_default();
    let ready = conditions.into_iter().find(|condition| condition.r#type == "Ready");
    Ok(ready.map(|condition| condition.status).unwrap_or_default())
}

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
