//! The lean view of a ReplicationController.

use serde::{Deserialize, Deserializer};

use crate::objects::{
    LabelSelector, Labels, Meta, ReplicaSetSpec, ReplicaSetStatus, Template, WholeMeta,
    null_as_default, resource,
};

/// A ReplicationController, converted to a ReplicaSet. Upstream:
/// `pkg/controller/replication/conversion.go`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ReplicationController {
    #[serde(rename = "metadata", deserialize_with = "null_as_default")]
    pub meta: Meta,
    #[serde(deserialize_with = "spec")]
    pub spec: ReplicaSetSpec,
    /// Never has `terminating_replicas`.
    #[serde(deserialize_with = "null_as_default")]
    pub status: ReplicaSetStatus,
}

resource!(ReplicationController, "", "v1", "replicationcontrollers", namespaced);
impl WholeMeta for ReplicationController {}

/// Reads the spec of a ReplicationController, whose selector is a map of labels, as that of a
/// ReplicaSet.
fn spec<'de, D: Deserializer<'de>>(from: D) -> Result<ReplicaSetSpec, D::Error> {
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct Spec {
        replicas: Option<i32>,
        #[serde(deserialize_with = "null_as_default")]
        min_ready_seconds: i32,
        selector: Option<Labels>,
        template: Template,
    }
    let Spec { replicas, min_ready_seconds, selector, template } =
        Option::<Spec>::deserialize(from)?.unwrap_or_default();
    let selector =
        selector.map(|match_labels| LabelSelector { match_labels, ..LabelSelector::default() });
    Ok(ReplicaSetSpec { replicas, min_ready_seconds, selector, template })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn it_is_seen_as_a_replica_set() {
        let spec = |selector: Value| {
            json!({"replicas": 2, "minReadySeconds": 3, "selector": selector,
                "template": {"metadata": {"labels": {"app": "a"}}}})
        };
        let status =
            json!({"replicas": 1, "conditions": [{"type": "ReplicaFailure", "status": "True"}]});
        for (labels, selector) in [
            (json!({"app": "a"}), json!({"matchLabels": {"app": "a"}})),
            (json!({}), json!({})),
            (Value::Null, Value::Null),
        ] {
            let controller: ReplicationController =
                serde_json::from_value(json!({"spec": spec(labels), "status": status})).unwrap();
            let set: crate::objects::ReplicaSet =
                serde_json::from_value(json!({"spec": spec(selector), "status": status})).unwrap();
            assert_eq!((controller.spec, controller.status), (set.spec, set.status));
        }
    }
}
