//! How a Node is initialized: its labels, its provider id and its taints.

use std::collections::BTreeMap;

use kube_controller_manager::objects::{Labels, Taint};
use serde_json::{Value, json};

use super::UNINITIALIZED;
use crate::controllers::node_writes::with_taints;
use crate::objects::Node;
use crate::provider::{InstanceMetadata, is_kubernetes_label};

const BETA_INSTANCE_TYPE: &str = "beta.kubernetes.io/instance-type";
const INSTANCE_TYPE: &str = "node.kubernetes.io/instance-type";
const BETA_ZONE: &str = "failure-domain.beta.kubernetes.io/zone";
const ZONE: &str = "topology.kubernetes.io/zone";
const BETA_REGION: &str = "failure-domain.beta.kubernetes.io/region";
const REGION: &str = "topology.kubernetes.io/region";

/// Returns the body of the patch that initializes a Node: it removes the taint, and sets the
/// provider id and labels. `None`: the Node is initialized. Upstream:
/// `getNodeModifiersFromCloudProvider`.
pub fn initializing_patch(node: &Node, metadata: &InstanceMetadata) -> Option<Value> {
    if !node.has_taint(UNINITIALIZED) {
        return None;
    }
    let taints: Vec<Taint> =
        node.spec.taints.iter().filter(|taint| taint.key != *UNINITIALIZED).cloned().collect();
    let mut body = with_taints(&taints);
    // The API server lets the field be set once.
    if node.spec.provider_id.is_empty() && !metadata.provider_id.is_empty() {
        body["spec"]["providerID"] = json!(metadata.provider_id);
    }
    let labels = labels(&node.meta.labels, metadata);
    if !labels.is_empty() {
        body["metadata"]["labels"] = json!(labels);
    }
    Some(body)
}

/// Returns the labels that the Node gets: of instance type, zone and region, and the additional
/// ones that are not Kubernetes's and not there yet.
fn labels<'a>(has: &Labels, metadata: &'a InstanceMetadata) -> BTreeMap<&'a str, &'a str> {
    let mut labels = BTreeMap::new();
    for (value, names) in [
        (&metadata.instance_type, [BETA_INSTANCE_TYPE, INSTANCE_TYPE]),
        (&metadata.zone, [BETA_ZONE, ZONE]),
        (&metadata.region, [BETA_REGION, REGION]),
    ] {
        if !value.is_empty() {
            labels.extend(names.map(|name| (name, value.as_str())));
        }
    }
    for (name, value) in &metadata.additional_labels {
        if is_kubernetes_label(name) {
            log::warn!("Discarding node label {name} with kubernetes namespace");
        } else if let Some(present) = has.get(name) {
            if present != value {
                log::warn!("Discarding node label {name} that is already present");
            }
        } else {
            labels.insert(name, value);
        }
    }
    labels
}

/// Returns the labels of today that differ from the older ones, with the values of those: the older
/// ones are the source of truth. Upstream: `labelReconcileInfo`.
pub fn label_updates(labels: &Labels) -> BTreeMap<&'static str, &str> {
    [(BETA_ZONE, ZONE), (BETA_REGION, REGION), (BETA_INSTANCE_TYPE, INSTANCE_TYPE)]
        .into_iter()
        .filter_map(|(older, today)| Some((today, labels.get(older)?)))
        .filter(|(today, value)| labels.get(today) != Some(*value))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(json: Value) -> Node {
        serde_json::from_value(json).expect("a Node")
    }

    fn metadata() -> InstanceMetadata {
        InstanceMetadata {
            provider_id: "fake://12345".into(),
            instance_type: "t1.micro".into(),
            zone: "us-west-1a".into(),
            region: "us-west".into(),
            ..InstanceMetadata::default()
        }
    }

    #[test]
    fn a_node_is_initialized_by_one_patch() {
        let taints = json!([
            { "key": "a", "effect": "NoSchedule" },
            { "key": UNINITIALIZED, "value": "true", "effect": "NoSchedule" },
        ]);
        let body = initializing_patch(&node(json!({ "spec": { "taints": taints } })), &metadata());
        assert_eq!(
            body,
            Some(json!({
                "metadata": { "labels": {
                    BETA_INSTANCE_TYPE: "t1.micro", INSTANCE_TYPE: "t1.micro",
                    BETA_ZONE: "us-west-1a", ZONE: "us-west-1a",
                    BETA_REGION: "us-west", REGION: "us-west",
                } },
                "spec": {
                    "providerID": "fake://12345", "taints": [{ "key": "a", "effect": "NoSchedule" }],
                },
            }))
        );
        let known = json!({
            "spec": { "providerID": "other://1", "taints": [{ "key": UNINITIALIZED, "effect": "NoSchedule" }] },
        });
        let bare = InstanceMetadata { provider_id: "fake://2".into(), ..Default::default() };
        assert_eq!(
            initializing_patch(&node(known), &bare),
            Some(json!({ "spec": { "taints": null } }))
        );
        assert_eq!(initializing_patch(&node(json!({})), &metadata()), None);
    }

    #[test]
    fn additional_labels_replace_none_and_are_not_kubernetes_own() {
        let given = [
            ("topology.k8s.io/region", "a"),
            ("k8s.io/zone", "a"),
            ("a.kubernetes.io/b", "a"),
            ("kubernetes.io/b", "a"),
            ("notkubernetes.io/b", "kept"),
            ("example.com/present", "other"),
            ("example.com/kubernetes.io", "kept"),
            ("plain", "kept"),
        ];
        let additional_labels =
            given.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let metadata = InstanceMetadata { additional_labels, ..Default::default() };
        let has: Labels = [("example.com/present", "value")].into_iter().collect();
        let added: Vec<&str> = labels(&has, &metadata).into_keys().collect();
        assert_eq!(added, ["example.com/kubernetes.io", "notkubernetes.io/b", "plain"]);
    }

    #[test]
    fn older_labels_are_the_source_of_those_of_today() {
        for (labels, updates) in [
            (&[][..], &[][..]),
            (&[(BETA_ZONE, "a")], &[(ZONE, "a")]),
            (&[(BETA_ZONE, "a"), (ZONE, "a")], &[]),
            (&[(BETA_ZONE, "a"), (ZONE, "b")], &[(ZONE, "a")]),
            (&[(ZONE, "b"), (REGION, "c"), (INSTANCE_TYPE, "d")], &[]),
            (
                &[(BETA_REGION, "c"), (BETA_INSTANCE_TYPE, "d"), (INSTANCE_TYPE, "e")],
                &[(REGION, "c"), (INSTANCE_TYPE, "d")],
            ),
        ] {
            let has: Labels = labels.iter().copied().collect();
            let expected: BTreeMap<&str, &str> = updates.iter().copied().collect();
            assert_eq!(label_updates(&has), expected, "{labels:?}");
        }
    }
}
