//! Keeps one pod of a DaemonSet on each node that suits it. Upstream: `pkg/controller/daemon`.

mod backoff;
mod fit;
mod manage;
mod revisions;
mod rolling;
mod sites;
mod status;
mod sync;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use self::backoff::Backoff;
use self::fit::{Fit, needs_sync};
use crate::cache::{Index, IndexValue, Lister};
use crate::client::Client;
use crate::clock::SharedClock;
use crate::controllers::runner::{Change, Queue};
use crate::controllers::workloads::availability::becomes_available;
use crate::controllers::workloads::changed_revisions::ChangedRevisions;
use crate::controllers::workloads::consistency::Consistency;
use crate::controllers::workloads::creations::PodOwner;
use crate::controllers::workloads::expectations::Expectations;
use crate::controllers::workloads::owner_records::OwnerRecords;
use crate::controllers::workloads::pod_control::PodControl;
use crate::controllers::workloads::ref_manager::controller_index;
use crate::controllers::{Controller, Next, QueuePolicy, SyncResult, keys};
use crate::events::Recorder;
use crate::objects::{
    ArcStr, ControllerRevision, DaemonSet, Istr, LabelSelector, Node, ObjectKey, Pod, Resource,
    Selector, Uid,
};

/// The most pods that one sync creates, and the most that it deletes. Upstream: `BurstReplicas`.
const BURST_REPLICAS: usize = 250;

/// Daemon pods by the node that they run on.
const BY_NODE: Index<Pod> = Index::new("daemon-pod-node", by_node);

/// Added to `minReadySeconds` before the next check: the time of a pod's condition has whole
/// seconds, so without it the check could be too early.
const SKEW: Duration = Duration::from_secs(1);

struct DaemonSets {
    client: Client,
    recorder: Recorder,
    pod_control: PodControl,
    sets: Lister<DaemonSet>,
    pods: Lister<Pod>,
    nodes: Lister<Node>,
    revisions: Lister<ControllerRevision>,
    queue: Queue,
    expectations: Arc<Expectations>,
    consistency: Arc<Consistency>,
    changed_revisions: Arc<ChangedRevisions>,
    records: OwnerRecords,
    backoff: Mutex<Backoff>,
    clock: SharedClock,
    /// Tolerations may compare numbers.
    comparison: bool,
}

impl PodOwner for DaemonSet {
    fn selector(&self) -> Option<&LabelSelector> {
        self.spec.selector.as_ref()
    }
}

/// Sets up the controller `daemonset-controller`.
/// Upstream: `NewDaemonSetsController`.
pub fn controller(c: &mut Controller) -> Result<(), String> {
    sync::register_metrics();
    let (sets, pods) = (c.lister::<DaemonSet>(), c.lister::<Pod>());
    let (nodes, revisions) = (c.lister::<Node>(), c.lister::<ControllerRevision>());
    c.index(&pods, &controller_index());
    c.index(&pods, &BY_NODE);
    c.index(&revisions, &controller_index());
    let consistency = match c.feature("StaleControllerConsistencyDaemonSet") {
        true => Consistency::default().tracking(&pods).tracking(&sets),
        false => Consistency::default(),
    };
    // The records that are dropped when a set is deleted.
    let mut records = OwnerRecords::default();
    let consistency = records.add(consistency);
    let expectations = records.add(Expectations::new(c.clock()).seen_in(&pods));
    let pod_control = PodControl::new(c.client(), c.recorder(), c.clock());
    records.share(pod_control.creations());
    let queue = c.queue(QueuePolicy::default());
    let node_queue = c.queue_named("daemonset-node-updates", QueuePolicy::default());
    let this = Arc::new(DaemonSets {
        client: c.client(),
        recorder: c.recorder(),
        pod_control: pod_control.recording(&consistency),
        sets: sets.clone(),
        pods: pods.clone(),
        nodes: nodes.clone(),
        revisions: revisions.clone(),
        queue: queue.clone(),
        expectations: expectations.clone(),
        consistency,
        changed_revisions: records.add(ChangedRevisions::new(c.recorder())),
        records,
        backoff: Mutex::default(),
        clock: c.clock(),
        comparison: c.feature("TaintTolerationComparisonOperators"),
    });
    let selector = |set: &DaemonSet| Selector::try_from(set.spec.selector.as_ref());
    let recheck_delay = |old: &Pod, new: &Pod, set: &DaemonSet| {
        becomes_available(old, new, set.spec.min_ready_seconds).map(|period| period + SKEW)
    };
    let of_pods = keys::of_controller(&sets)
        .or_matching_orphans(selector)
        .observing(&expectations)
        .requeue_owner_after(recheck_delay);
    let mut of_revisions = keys::of_controller(&sets).or_matching_orphans(selector).mapper();
    c.watch(&sets, &queue, this.records.mapper());
    c.watch(&pods, &queue, of_pods.mapper());
    c.watch(&revisions, &queue, move |change: Change<'_, ControllerRevision>, queue| {
        if !is_new_and_owned(&change) {
            of_revisions(change, queue);
        }
    });
    c.watch(&nodes, &node_queue, |change: Change<'_, Node>, queue: &Queue| {
        let is_relevant = match &change {
            Change::Added { .. } => true,
            Change::Updated { old, new } => may_change_fit(old, new),
            Change::Resync { .. } | Change::Deleted(_) => false,
        };
        if is_relevant {
            queue.add(change.object().meta.key());
        }
    });
    expectations.queue_overdue(c, &queue);
    c.sync(queue, &this, DaemonSets::sync);
    c.sync(node_queue, &this, DaemonSets::sync_node);
    Ok(())
}

/// Returns whether an update of a node can make it suit other sets. Upstream:
/// `shouldIgnoreNodeUpdate`.
fn may_change_fit(old: &Node, new: &Node) -> bool {
    old.meta.labels != new.meta.labels || old.spec.taints != new.spec.taints
}

/// Returns whether `change` is a revision that appeared with an owner. It does not queue the set:
/// the sync that made the revision used it already. Upstream: `addHistory`.
fn is_new_and_owned(change: &Change<'_, ControllerRevision>) -> bool {
    match change {
        Change::Added { new, .. } => {
            new.meta.controller().is_some() && !new.meta.is_being_deleted()
        }
        _ => false,
    }
}

/// Emits the node of `pod` for the index [`BY_NODE`], if a DaemonSet controls the pod.
fn by_node(pod: &Pod, emit: &mut dyn FnMut(IndexValue)) {
    let is_daemon = |owner: &str| owner == DaemonSet::RESOURCE.kind;
    let bound = !pod.spec.node_name.is_empty();
    if bound && pod.meta.controller().is_some_and(|owner| is_daemon(&owner.kind)) {
        emit(IndexValue::Text(pod.spec.node_name.clone()));
    }
}

impl DaemonSets {
    /// Returns the name of `node`, and whether it suits the pods of `set`.
    fn fit(&self, node: &Node, set: &DaemonSet) -> (ArcStr, Fit) {
        (node.meta.name.clone(), Fit::new(node, &set.spec.placement, self.comparison))
    }

    /// Queues the sets that get a pod on a node, lose one, or may have to count one otherwise: see
    /// [`needs_sync`]. Upstream: `syncNodeUpdate`.
    async fn sync_node(self: Arc<Self>, key: ObjectKey) -> SyncResult {
        let Some(node) = self.nodes.get(&key) else { return Ok(Next::Done) };
        let on_node = IndexValue::Text(Istr::new(&node.meta.name));
        let pods = self.pods.by_index(&BY_NODE, &on_node);
        let owners: HashSet<&Uid> =
            pods.iter().filter_map(|pod| Some(&pod.meta.controller()?.uid)).collect();
        for set in self.sets.list() {
            let (_, fit) = self.fit(&node, &set);
            let is_there = owners.contains(&set.meta.uid);
            if needs_sync(fit, is_there, set.status.number_misscheduled) {
                self.queue.add(set.meta.key());
            }
        }
        Ok(Next::Done)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn only_labels_and_taints_of_a_node_count() {
        let node = |change: Value| -> Node {
            let mut node = json!({
                "metadata": {"name": "n", "labels": {"a": "b"}, "resourceVersion": "1"},
                "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]},
            });
            for (pointer, value) in change.as_object().unwrap() {
                *node.pointer_mut(pointer).unwrap() = value.clone();
            }
            serde_json::from_value(node).unwrap()
        };
        let old = node(json!({}));
        for (change, is_news) in [
            (json!({"/metadata/resourceVersion": "2"}), false),
            (json!({"/metadata/labels": {"a": "c"}}), true),
            (json!({"/spec/taints": []}), true),
            (json!({"/spec/taints/0/effect": "NoExecute"}), true),
        ] {
            assert_eq!(may_change_fit(&old, &node(change.clone())), is_news, "{change}");
        }
    }

    #[test]
    fn a_new_revision_that_has_an_owner_queues_no_set() {
        let revision = |owned: bool, deleted: bool| -> Arc<ControllerRevision> {
            let mut meta = json!({"name": "r"});
            if owned {
                meta["ownerReferences"] = json!([{"apiVersion": "apps/v1", "kind": "DaemonSet",
                    "name": "d", "uid": "u", "controller": true}]);
            }
            if deleted {
                meta["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            }
            Arc::new(serde_json::from_value(json!({"metadata": meta})).unwrap())
        };
        for (owned, deleted, expected) in
            [(true, false, true), (false, false, false), (true, true, false)]
        {
            let new = &revision(owned, deleted);
            let added = Change::Added { new, initial: false };
            assert_eq!(is_new_and_owned(&added), expected, "owned {owned}, deleted {deleted}");
            assert!(!is_new_and_owned(&Change::Updated { old: new, new }));
        }
    }

    #[test]
    fn bound_pods_of_daemon_sets_are_indexed() {
        let indexed = |kind: &str, node: &str| {
            let pod: Pod = serde_json::from_value(json!({
                "metadata": {"ownerReferences": [{"apiVersion": "apps/v1", "kind": kind,
                    "name": "o", "uid": "u", "controller": true}]},
                "spec": {"nodeName": node},
            }))
            .unwrap();
            let mut found = Vec::new();
            by_node(&pod, &mut |value| found.push(value));
            found
        };
        assert_eq!(indexed("DaemonSet", "n"), [IndexValue::Text("n".into())]);
        assert_eq!(indexed("DaemonSet", ""), []);
        assert_eq!(indexed("ReplicaSet", "n"), []);
    }
}
