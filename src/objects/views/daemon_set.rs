//! The lean view of a DaemonSet.

use serde::{Deserialize, Serialize};

use crate::objects::{
    Condition, Istr, LabelSelector, Labels, Meta, NodeAffinity, NodeSelector, RollingUpdate,
    Template, Toleration, WholeMeta, from_json, null_as_default, resource,
};

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct DaemonSet {
    #[serde(rename = "metadata", deserialize_with = "null_as_default")]
    pub meta: Meta,
    #[serde(deserialize_with = "null_as_default")]
    pub spec: DaemonSetSpec,
    #[serde(deserialize_with = "null_as_default")]
    pub status: DaemonSetStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(try_from = "WireSpec")]
pub struct DaemonSetSpec {
    pub selector: Option<LabelSelector>,
    pub template: Template,
    /// The template's placement.
    pub placement: Placement,
    pub update_strategy: DaemonSetUpdateStrategy,
    pub min_ready_seconds: i32,
    pub revision_history_limit: Option<i32>,
}

/// Whole.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DaemonSetStatus {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collision_count: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Vec<Condition>>,
    #[serde(deserialize_with = "null_as_default")]
    pub current_number_scheduled: i32,
    #[serde(deserialize_with = "null_as_default")]
    pub desired_number_scheduled: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub number_available: Option<i32>,
    #[serde(deserialize_with = "null_as_default")]
    pub number_misscheduled: i32,
    #[serde(deserialize_with = "null_as_default")]
    pub number_ready: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub number_unavailable: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub updated_number_scheduled: Option<i32>,
}

/// The nodes on which pods of a template may run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Placement {
    /// If not empty, the only node.
    pub node_name: Istr,
    pub affinity: NodeAffinity,
    pub tolerations: Box<[Toleration]>,
    pub host_network: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DaemonSetUpdateStrategy {
    /// `RollingUpdate` or `OnDelete`.
    pub r#type: Istr,
    pub rolling_update: Option<RollingUpdate>,
}

resource!(DaemonSet, "apps", "v1", "daemonsets", namespaced);
impl WholeMeta for DaemonSet {}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireSpec {
    selector: Option<LabelSelector>,
    template: Template,
    #[serde(deserialize_with = "null_as_default")]
    update_strategy: DaemonSetUpdateStrategy,
    #[serde(deserialize_with = "null_as_default")]
    min_ready_seconds: i32,
    revision_history_limit: Option<i32>,
}

impl TryFrom<WireSpec> for DaemonSetSpec {
    type Error = serde_json::Error;

    /// Converts a spec, and reads from its template on which nodes pods may run.
    fn try_from(wire: WireSpec) -> Result<DaemonSetSpec, serde_json::Error> {
        Ok(DaemonSetSpec {
            placement: Placement::read(&wire.template)?,
            selector: wire.selector,
            template: wire.template,
            update_strategy: wire.update_strategy,
            min_ready_seconds: wire.min_ready_seconds,
            revision_history_limit: wire.revision_history_limit,
        })
    }
}

impl Placement {
    /// Reads from the template what decides on which nodes its pods may run.
    fn read(template: &Template) -> Result<Placement, serde_json::Error> {
        let WireTemplate { spec } = from_json(template.json())?;
        let required = spec.affinity.node_affinity.required;
        Ok(Placement {
            node_name: spec.node_name,
            affinity: NodeAffinity { node_selector: spec.node_selector, required },
            tolerations: spec.tolerations,
            host_network: spec.host_network,
        })
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireTemplate {
    #[serde(deserialize_with = "null_as_default")]
    spec: WirePodSpec,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WirePodSpec {
    node_name: Istr,
    node_selector: Labels,
    #[serde(deserialize_with = "null_as_default")]
    affinity: WireAffinity,
    #[serde(deserialize_with = "null_as_default")]
    tolerations: Box<[Toleration]>,
    #[serde(deserialize_with = "null_as_default")]
    host_network: bool,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireAffinity {
    #[serde(deserialize_with = "null_as_default")]
    node_affinity: WireNodeAffinity,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireNodeAffinity {
    #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution")]
    required: Option<NodeSelector>,
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn placement_is_read_from_the_template() {
        let placement = |spec: Value| -> Placement {
            let set: DaemonSet =
                serde_json::from_value(json!({"spec": {"template": {"spec": spec}}})).unwrap();
            set.spec.placement
        };
        assert_eq!(placement(Value::Null), Placement::default());
        let found = placement(json!({
            "nodeName": "n1", "nodeSelector": {"disk": "ssd"}, "hostNetwork": true,
            "tolerations": [{"key": "k", "operator": "Exists"}],
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchFields": [
                    {"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]}}},
        }));
        assert_eq!((&*found.node_name, found.host_network), ("n1", true));
        assert_eq!((&*found.tolerations[0].key, &*found.tolerations[0].operator), ("k", "Exists"));
        let labels: Labels = [("disk", "ssd")].into_iter().collect();
        assert!(found.affinity.matches("n1", &labels));
        assert!(!found.affinity.matches("n2", &labels));
        assert!(!found.affinity.matches("n1", &Labels::default()));
    }
}
