//! Whether a node runs the pods of a DaemonSet. Upstream: `NodeShouldRunDaemonPod`.

use std::sync::LazyLock;

use crate::objects::{NO_EXECUTE, NO_SCHEDULE, Node, Placement, Toleration, untolerated};

/// The taints that every daemon pod tolerates for ever, as pairs of key and effect: a node in
/// trouble keeps its daemons. Upstream: `AddOrUpdateDaemonPodTolerations`.
const TOLERATED: [(&str, &str); 6] = [
    ("node.kubernetes.io/not-ready", NO_EXECUTE),
    ("node.kubernetes.io/unreachable", NO_EXECUTE),
    ("node.kubernetes.io/disk-pressure", NO_SCHEDULE),
    ("node.kubernetes.io/memory-pressure", NO_SCHEDULE),
    ("node.kubernetes.io/pid-pressure", NO_SCHEDULE),
    ("node.kubernetes.io/unschedulable", NO_SCHEDULE),
];
/// The pods that use the network of their node tolerate this one as well.
const TOLERATED_ON_HOST_NETWORK: (&str, &str) =
    ("node.kubernetes.io/network-unavailable", NO_SCHEDULE);

/// Returns the taints, as pairs of key and effect, that daemon pods tolerate besides those of their
/// template's tolerations.
pub(super) fn tolerated_taints(
    host_network: bool,
) -> impl Iterator<Item = (&'static str, &'static str)> {
    TOLERATED.into_iter().chain(host_network.then_some(TOLERATED_ON_HOST_NETWORK))
}

/// Whether a node suits the pods of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fit {
    /// The node is to have a pod.
    pub should_run: bool,
    /// An existing pod may stay.
    pub may_stay: bool,
}

impl Fit {
    const NEVER: Fit = Fit { should_run: false, may_stay: false };

    /// Decides whether a pod of a set should run, and may stay, on a node. `comparison`: the gate
    /// TaintTolerationComparisonOperators.
    pub fn new(node: &Node, placement: &Placement, comparison: bool) -> Fit {
        let name = &*node.meta.name;
        let elsewhere = !placement.node_name.is_empty() && placement.node_name != *name;
        if elsewhere || !placement.affinity.matches(name, &node.meta.labels) {
            return Fit::NEVER;
        }
        let added = added_tolerations(placement.host_network);
        let tolerations = placement.tolerations.iter().chain(added);
        let keeps_away = |effects: &[&str]| {
            untolerated(&node.spec.taints, effects, tolerations.clone(), comparison).is_some()
        };
        let should_run = !keeps_away(&[NO_EXECUTE, NO_SCHEDULE]);
        Fit { should_run, may_stay: should_run || !keeps_away(&[NO_EXECUTE]) }
    }
}

/// Returns the tolerations that all pods of sets get, see [`tolerated_taints`]; the last one is
/// only for pods in the network of the host.
fn added_tolerations(host_network: bool) -> &'static [Toleration] {
    static ALL: LazyLock<Vec<Toleration>> = LazyLock::new(|| {
        let exists = |(key, effect): (&str, &str)| Toleration {
            key: key.into(),
            operator: "Exists".into(),
            effect: effect.into(),
            ..Toleration::default()
        };
        tolerated_taints(true).map(exists).collect()
    });
    &ALL[..ALL.len() - usize::from(!host_network)]
}

/// Returns whether a set is queued for a new node, or one with changed labels or taints.
/// `is_there`: the node has a pod of the set, which may have to go, or may no longer be one of
/// those that the status counts as `misscheduled`. Upstream: `syncNodeUpdate`.
pub(super) fn needs_sync(fit: Fit, is_there: bool, misscheduled: i32) -> bool {
    match is_there {
        true => !fit.may_stay || misscheduled > 0,
        false => fit.should_run,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::objects::DaemonSet;

    const RUNS: Fit = Fit { should_run: true, may_stay: true };
    const STAYS: Fit = Fit { should_run: false, may_stay: true };

    fn node(taints: &[(&str, &str)]) -> Node {
        let taints: Vec<Value> = taints
            .iter()
            .map(|(key, effect)| json!({"key": key, "value": "7", "effect": effect}))
            .collect();
        serde_json::from_value(json!({
            "metadata": {"name": "n1", "labels": {"disk": "ssd"}}, "spec": {"taints": taints},
        }))
        .unwrap()
    }

    fn placement(spec: Value) -> Placement {
        let set = json!({"spec": {"template": {"spec": spec}}});
        serde_json::from_value::<DaemonSet>(set).unwrap().spec.placement
    }

    fn fit(spec: Value, taints: &[(&str, &str)]) -> Fit {
        Fit::new(&node(taints), &placement(spec), true)
    }

    #[test]
    fn nodes_are_chosen_by_name_labels_and_affinity() {
        let term = |name: &str| {
            json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchFields": [
                    {"key": "metadata.name", "operator": "In", "values": [name]}]}]}}}})
        };
        for (spec, expected) in [
            (json!({}), RUNS),
            (json!({"nodeName": "n1"}), RUNS),
            (json!({"nodeName": "n2"}), Fit::NEVER),
            (json!({"nodeSelector": {"disk": "ssd"}}), RUNS),
            (json!({"nodeSelector": {"disk": "hdd"}}), Fit::NEVER),
            (term("n1"), RUNS),
            (term("n2"), Fit::NEVER),
        ] {
            assert_eq!(fit(spec.clone(), &[]), expected, "{spec}");
            // Without a fitting node no toleration counts.
            let stays = if expected == RUNS { STAYS } else { Fit::NEVER };
            assert_eq!(fit(spec, &[("k", "NoSchedule")]), stays);
        }
    }

    #[test]
    fn taints_prevent_new_pods_and_remove_old_ones() {
        let all = json!({"tolerations": [{"operator": "Exists"}]});
        let more = json!({"tolerations": [{"key": "k", "operator": "Gt", "value": "5"}]});
        let host = json!({"hostNetwork": true});
        for (spec, taint, expected) in [
            (json!({}), ("k", "NoSchedule"), STAYS),
            (json!({}), ("k", "NoExecute"), Fit::NEVER),
            (json!({}), ("k", "PreferNoSchedule"), RUNS),
            (all, ("k", "NoExecute"), RUNS),
            (more.clone(), ("k", "NoExecute"), RUNS),
            (more, ("l", "NoSchedule"), STAYS),
            (json!({}), ("node.kubernetes.io/not-ready", "NoExecute"), RUNS),
            (json!({}), ("node.kubernetes.io/not-ready", "NoSchedule"), STAYS),
            (json!({}), ("node.kubernetes.io/unreachable", "NoExecute"), RUNS),
            (json!({}), ("node.kubernetes.io/disk-pressure", "NoSchedule"), RUNS),
            (json!({}), ("node.kubernetes.io/memory-pressure", "NoSchedule"), RUNS),
            (json!({}), ("node.kubernetes.io/pid-pressure", "NoSchedule"), RUNS),
            (json!({}), ("node.kubernetes.io/unschedulable", "NoSchedule"), RUNS),
            (json!({}), ("node.kubernetes.io/network-unavailable", "NoSchedule"), STAYS),
            (host, ("node.kubernetes.io/network-unavailable", "NoSchedule"), RUNS),
        ] {
            assert_eq!(fit(spec.clone(), &[taint]), expected, "{spec} {taint:?}");
        }
        let both = [("k", "NoSchedule"), ("k", "NoExecute")];
        assert_eq!(fit(json!({}), &both), Fit::NEVER);
        let by_number = placement(json!({"tolerations": [
            {"key": "k", "operator": "Gt", "value": "5"}]}));
        assert_eq!(Fit::new(&node(&[("k", "NoSchedule")]), &by_number, false), STAYS);
    }

    #[test]
    fn a_node_queues_the_sets_that_gain_or_lose_a_pod() {
        for (fit, is_there, misscheduled, queued) in [
            (RUNS, false, 0, true),
            (RUNS, true, 0, false),
            (RUNS, true, 1, true),
            (STAYS, false, 1, false),
            (STAYS, true, 0, false),
            (STAYS, true, 1, true),
            (Fit::NEVER, false, 0, false),
            (Fit::NEVER, true, 0, true),
        ] {
            assert_eq!(needs_sync(fit, is_there, misscheduled), queued, "{fit:?} {is_there}");
        }
    }
}
