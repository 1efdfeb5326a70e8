//! Keeps the number of pods that a ReplicaSet or a ReplicationController asks for.
//! Upstream: `pkg/controller/replicaset`, `pkg/controller/replication`.

mod ranking;
mod status;
mod sync;

use std::sync::Arc;

use crate::cache::Lister;
use crate::client::Client;
use crate::clock::SharedClock;
use crate::controllers::workloads::availability::becomes_available;
use crate::controllers::workloads::consistency::Consistency;
use crate::controllers::workloads::creations::PodOwner;
use crate::controllers::workloads::expectations::Expectations;
use crate::controllers::workloads::owner_records::OwnerRecords;
use crate::controllers::workloads::pod_control::PodControl;
use crate::controllers::workloads::ref_manager::controller_index;
use crate::controllers::{Controller, QueuePolicy, keys};
use crate::objects::{
    LabelSelector, Pod, ReplicaSet, ReplicaSetSpec, ReplicaSetStatus, ReplicationController,
    Selector, WholeMeta,
};

/// The most pods that one sync creates or deletes. Upstream: `BurstReplicas`.
const BURST_REPLICAS: usize = 500;

/// A kind that asks for a number of pods.
pub trait Replicating: WholeMeta + PodOwner {
    /// Whether the status counts pods that are being deleted.
    const COUNTS_TERMINATING: bool;
    fn spec(&self) -> &ReplicaSetSpec;
    fn status(&self) -> &ReplicaSetStatus;

    /// The wanted number of pods; 1 when the spec does not say.
    fn replicas(&self) -> i32 {
        self.spec().replicas.unwrap_or(1)
    }
}

impl PodOwner for ReplicaSet {
    fn selector(&self) -> Option<&LabelSelector> {
        self.spec.selector.as_ref()
    }
}

impl PodOwner for ReplicationController {
    fn selector(&self) -> Option<&LabelSelector> {
        self.spec.selector.as_ref()
    }
}

impl Replicating for ReplicaSet {
    const COUNTS_TERMINATING: bool = true;

    fn spec(&self) -> &ReplicaSetSpec {
        &self.spec
    }

    fn status(&self) -> &ReplicaSetStatus {
        &self.status
    }
}

impl Replicating for ReplicationController {
    const COUNTS_TERMINATING: bool = false;

    fn spec(&self) -> &ReplicaSetSpec {
        &self.spec
    }

    fn status(&self) -> &ReplicaSetStatus {
        &self.status
    }
}

/// Keeps the sets of one kind.
struct ReplicaSets<S> {
    client: Client,
    pod_control: PodControl,
    sets: Lister<S>,
    pods: Lister<Pod>,
    expectations: Arc<Expectations>,
    consistency: Arc<Consistency>,
    records: OwnerRecords,
    clock: SharedClock,
    /// Whether the status counts pods that are being deleted.
    counts_terminating: bool,
    /// Whether the annotation of a pod decides how early it is deleted.
    uses_deletion_cost: bool,
}

/// Sets up the controller of the sets of one kind: `replicaset-controller`, and
/// `replicationcontroller-controller`.
/// Upstream: `NewReplicaSetController`, `NewReplicationManager`.
pub fn controller<S: Replicating>(c: &mut Controller) -> Result<(), String> {
    sync::register_metrics();
    let (sets, pods) = (c.lister::<S>(), c.lister::<Pod>());
    c.index(&pods, &controller_index());
    c.index(&sets, &controller_index());
    let consistency = match c.feature("StaleControllerConsistencyReplicaSet") {
        true => Consistency::default().tracking(&pods).tracking(&sets),
        false => Consistency::default(),
    };
    let mut records = OwnerRecords::default();
    let consistency = records.add(consistency);
    let expectations = records.add(Expectations::new(c.clock()).seen_in(&pods));
    let pod_control = PodControl::new(c.client(), c.recorder(), c.clock());
    records.share(pod_control.creations());
    let this = Arc::new(ReplicaSets {
        pod_control: pod_control.recording(&consistency),
        client: c.client(),
        sets: sets.clone(),
        pods: pods.clone(),
        expectations: expectations.clone(),
        consistency,
        records,
        clock: c.clock(),
        counts_terminating: S::COUNTS_TERMINATING
            && c.feature("DeploymentReplicaSetTerminatingReplicas"),
        uses_deletion_cost: c.feature("PodDeletionCost"),
    });
    let owned = keys::of_controller(&sets)
        .or_matching_orphans(|set: &S| Selector::try_from(set.spec().selector.as_ref()))
        .observing(&expectations)
        .requeue_owner_after(|old: &Pod, new: &Pod, set: &S| {
            becomes_available(old, new, set.spec().min_ready_seconds)
        });
    let queue = c.queue(QueuePolicy::default());
    c.watch(&sets, &queue, this.records.mapper());
    c.watch(&pods, &queue, owned.mapper());
    expectations.queue_overdue(c, &queue);
    c.sync(queue, &this, ReplicaSets::sync);
    Ok(())
}
