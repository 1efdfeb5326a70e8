//! The lean view of a Node.

use serde::Deserialize;

use super::{Istr, Meta, resource};

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Node {
    #[serde(rename = "metadata")]
    pub meta: Meta,
    pub spec: NodeSpec,
    pub status: NodeStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSpec {
    pub taints: Vec<Taint>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Taint {
    pub key: Istr,
    pub value: Istr,
    pub effect: Istr,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NodeStatus {
    /// The status of the condition Ready: `True`, `False` or `Unknown`; empty without it.
    #[serde(rename = "conditions", deserialize_with = "ready")]
    pub ready: Istr,
}

resource!(Node, "", "v1", "nodes", cluster);

impl Node {
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
