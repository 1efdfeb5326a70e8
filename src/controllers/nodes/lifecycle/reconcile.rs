//! The NoSchedule taints and the labels that follow from a node's own state.

use std::sync::Arc;

use serde_json::json;

use super::NodeLifecycle;
use crate::client::Patch;
use crate::controllers::nodes::taints::{self, Swap};
use crate::controllers::{Error, Next, SyncResult};
use crate::objects::{Istr, NO_SCHEDULE, Node, ObjectKey, PartialObjectMetadata, Resource};

/// Each condition of a node, the status that counts, and the taint that it asks for.
const BY_CONDITION: [(&str, &str, &str); 6] = [
    ("Ready", "False", taints::NOT_READY),
    ("Ready", "Unknown", taints::UNREACHABLE),
    ("MemoryPressure", "True", taints::MEMORY_PRESSURE),
    ("DiskPressure", "True", taints::DISK_PRESSURE),
    ("NetworkUnavailable", "True", taints::NETWORK_UNAVAILABLE),
    ("PIDPressure", "True", taints::PID_PRESSURE),
];

/// Labels, and the older ones that must have the same value.
const LABELS: [(&str, &str); 2] = [
    ("kubernetes.io/os", "beta.kubernetes.io/os"),
    ("kubernetes.io/arch", "beta.kubernetes.io/arch"),
];

impl NodeLifecycle {
    /// Corrects the NoSchedule taints and the labels of a node.
    /// Upstream: `doNodeProcessingPassWorker`.
    pub(super) async fn reconcile(self: Arc<Self>, key: ObjectKey) -> SyncResult {
        let Some(node) = self.nodes.get(&key) else { return Ok(Next::Done) };
        let mut errors = Vec::new();
        if let Some(swap) = no_schedule_swap(&node)
            && let Err(error) = swap.write(&self.client, &self.clock, &node).await
        {
            errors.push(Error::during("failed to swap taints of node", error));
        }
        let labels = labels_to_set(&node);
        if !labels.is_empty() {
            let labels: serde_json::Map<_, _> =
                labels.into_iter().map(|(name, value)| (name.to_owned(), json!(value))).collect();
            let patch = Patch::Merge(json!({ "metadata": { "labels": labels } }));
            let nodes = self.client.resource(&Node::RESOURCE);
            if let Err(error) = nodes.patch::<PartialObjectMetadata>(&key, &patch).await {
                errors.push(Error::during("failed to update labels of node", error));
            }
        }
        errors.retain(|error| !error.api().is_some_and(|error| error.is_not_found()));
        match Error::many(errors) {
            Some(error) => Err(error),
            None => Ok(Next::Done),
        }
    }
}

/// Returns the NoSchedule taints that the conditions of `node` ask for and it lacks, and those that
/// it has without reason; `None` if there are neither.
/// Upstream: `doNoScheduleTaintingPass`.
fn no_schedule_swap(node: &Node) -> Option<Swap<'static>> {
    let mut wanted: Vec<&'static str> = Vec::new();
    for condition in &node.status.conditions {
        for (name, status, taint) in BY_CONDITION {
            if condition.r#type == *name && condition.status == *status {
                wanted.push(taint);
            }
        }
    }
    if node.spec.unschedulable {
        wanted.push(taints::UNSCHEDULABLE);
    }
    let ours = BY_CONDITION.iter().map(|(.., taint)| *taint).chain([taints::UNSCHEDULABLE]);
    let remove: Vec<&'static str> = ours
        .filter(|taint| taints::has_taint(node, taint, NO_SCHEDULE) && !wanted.contains(taint))
        .collect();
    let mut add = wanted;
    add.retain(|taint| !taints::has_taint(node, taint, NO_SCHEDULE));
    if add.is_empty() && remove.is_empty() {
        return None;
    }
    Some(Swap { effect: NO_SCHEDULE, add, remove })
}

/// Returns the beta labels that differ from their stable labels, with the values to set.
/// Upstream: `reconcileNodeLabels`.
fn labels_to_set(node: &Node) -> Vec<(&'static str, Istr)> {
    let labels = &node.meta.labels;
    let mut to_set = Vec::new();
    for (stable, beta) in LABELS {
        if let Some(value) = labels.get(stable)
            && labels.get(beta) != Some(value)
        {
            to_set.push((beta, Istr::new(value)));
        }
    }
    to_set
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn node(conditions: Value, unschedulable: bool, taints: Value) -> Node {
        serde_json::from_value(json!({
            "spec": { "unschedulable": unschedulable, "taints": taints },
            "status": { "conditions": conditions },
        }))
        .unwrap()
    }

    #[test]
    fn conditions_become_taints() {
        let is = |name: &str, status: &str| json!({ "type": name, "status": status });
        let has = |key: &str| json!({ "key": format!("node.kubernetes.io/{key}"), "effect": NO_SCHEDULE });
        let foreign = || json!({ "key": "mine", "effect": NO_SCHEDULE });
        let evicts = || json!({ "key": taints::NOT_READY, "effect": "NoExecute" });
        // Upstream: TestTaintsNodeByCondition. Conditions, unschedulable, taints; added, removed.
        for (conditions, unschedulable, before, add, remove) in [
            (json!([is("Ready", "True")]), false, json!([]), "", ""),
            (json!([is("Ready", "False")]), false, json!([foreign()]), "not-ready", ""),
            (json!([is("Ready", "Unknown")]), false, json!([]), "unreachable", ""),
            (
                json!([is("Ready", "Unknown")]),
                false,
                json!([has("not-ready"), evicts()]),
                "unreachable",
                "not-ready",
            ),
            (json!([is("Ready", "True")]), false, json!([has("not-ready")]), "", "not-ready"),
            (
                json!([is("NetworkUnavailable", "True"), is("Ready", "True")]),
                false,
                json!([]),
                "network-unavailable",
                "",
            ),
            (
                json!([
                    is("NetworkUnavailable", "True"),
                    is("DiskPressure", "True"),
                    is("MemoryPressure", "True"),
                    is("PIDPressure", "True"),
                    is("Ready", "True"),
                ]),
                true,
                json!([has("disk-pressure")]),
                "network-unavailable memory-pressure pid-pressure unschedulable",
                "",
            ),
            (json!([]), true, json!([has("unschedulable")]), "", ""),
            (json!([]), false, json!([has("unschedulable"), foreign()]), "", "unschedulable"),
        ] {
            let swap = no_schedule_swap(&node(conditions.clone(), unschedulable, before));
            let names = |keys: &[&str]| keys.join(" ").replace("node.kubernetes.io/", "");
            let found = swap.map(|swap| (names(&swap.add), names(&swap.remove)));
            assert_eq!(found.unwrap_or_default(), (add.into(), remove.into()), "{conditions}");
        }
    }

    #[test]
    fn older_labels_follow_the_stable_ones() {
        // Upstream: TestReconcileNodeLabels.
        for (given, expected) in [
            (json!({}), json!([])),
            (json!({"beta.kubernetes.io/os": "linux"}), json!([])),
            (
                json!({"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}),
                json!([["beta.kubernetes.io/os", "linux"], ["beta.kubernetes.io/arch", "amd64"]]),
            ),
            (
                json!({"kubernetes.io/os": "linux", "beta.kubernetes.io/os": "windows"}),
                json!([["beta.kubernetes.io/os", "linux"]]),
            ),
            (json!({"kubernetes.io/os": "linux", "beta.kubernetes.io/os": "linux"}), json!([])),
        ] {
            let node: Node =
                serde_json::from_value(json!({ "metadata": { "labels": given } })).unwrap();
            assert_eq!(json!(labels_to_set(&node)), expected, "{given}");
        }
    }
}
