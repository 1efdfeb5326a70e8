//! Keeps as many pods of a ReplicaSet as it asks for; and of a ReplicationController, in the same way.
//! Upstream: `pkg/controller/replicaset`, `pkg/controller/replication`.

mod ranking;
mod status;
mod sync;

use std::sync::Arc;
use std::time::Duration;

use crate::cache::Lister;
use crate::client::Client;
use crate::clock::SharedClock;
use crate::controllers::runner::Change;
use crate::controllers::workloads::consistency::Consistency;
use crate::controllers::workloads::expectations::Expectations;
use crate::controllers::workloads::pod_control::PodControl;
use crate::controllers::workloads::ref_manager::{CONTROLLER_INDEX, by_controller};
use crate::controllers::{Controller, ControllerContext, Queue, keys};
use crate::objects::{
    Pod, ReplicaSet, ReplicaSetSpec, ReplicaSetStatus, ReplicationController, Resource, Selector,
    WholeMeta,
};

/// At most so many pods are created or deleted in one sync. Upstream: `BurstReplicas`.
const BURST_REPLICAS: usize = 500;

/// A kind that asks for a number of pods.
trait Replicating: WholeMeta {
    /// Whether the status tells of pods that are being deleted.
    const COUNTS_TERMINATING: bool;
    fn spec(&self) -> &ReplicaSetSpec;
    fn status(&self) -> &ReplicaSetStatus;

    /// How many, 1 when it is not said.
    fn replicas(&self) -> i32 {
        self.spec().replicas.unwrap_or(1)
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

/// How the controller of one kind is called, and by whom.
struct Names {
    controller: &'static str,
    /// Of its service account, and the source of its events.
    client: &'static str,
    queue: &'static str,
}

/// Keeps the sets of one kind.
struct ReplicaSets<S> {
    client: Client,
    pod_control: PodControl,
    sets: Lister<S>,
    pods: Lister<Pod>,
    expectations: Arc<Expectations>,
    consistency: Arc<Consistency>,
    clock: SharedClock,
}

/// The controller `replicaset-controller`.
pub fn controller(cx: &ControllerContext) -> Controller {
    let name = "replicaset-controller";
    let names = Names { controller: name, client: name, queue: "replicaset" };
    keeping::<ReplicaSet>(cx, names, cx.options.concurrent_replicaset_syncs)
}

/// The controller `replicationcontroller-controller`. Upstream: `NewReplicationManager`.
pub fn replication_controller(cx: &ControllerContext) -> Controller {
    let names = Names {
        controller: "replicationcontroller-controller",
        client: "replication-controller",
        queue: "replicationmanager",
    };
    keeping::<ReplicationController>(cx, names, cx.options.concurrent_rc_syncs)
}

fn keeping<S: Replicating>(cx: &ControllerContext, names: Names, workers: i32) -> Controller {
    sync::register_metrics();
    let (sets, pods) = (cx.informer::<S>(), cx.informer::<Pod>());
    pods.add_index(CONTROLLER_INDEX, by_controller::<Pod>);
    sets.add_index(CONTROLLER_INDEX, by_controller::<S>);

    let (set_lister, pod_lister) = (sets.lister(), pods.lister());
    let (sets_seen, pods_seen) = (set_lister.clone(), pod_lister.clone());
    let consistency = Arc::new(Consistency::new(vec![
        (Pod::RESOURCE, Arc::new(move || pods_seen.last_seen_version())),
        (S::RESOURCE, Arc::new(move || sets_seen.last_seen_version())),
    ]));
    let expectations = Arc::new(Expectations::new(cx.clock()));
    let client = cx.client(names.client);
    let this = Arc::new(ReplicaSets {
        pod_control: PodControl::new(client.clone(), cx.recorder(names.client), cx.clock())
            .recording(&consistency),
        client,
        sets: set_lister,
        pods: pod_lister,
        expectations: expectations.clone(),
        consistency: consistency.clone(),
        clock: cx.clock(),
    });

    let mut c = Controller::new(names.controller);
    let queue = c.queue(names.queue, usize::try_from(workers).unwrap_or(0));
    let owned = keys::of_controller(&this.sets)
        .or_matching_orphans(|set: &S| Selector::try_from(set.spec().selector.as_ref()))
        .observing(&expectations)
        .again_after(becomes_available);
    c.watch(&sets, &queue, move |change: Change<'_, S>, wake: &Queue| {
        let meta = change.object().meta();
        let key = meta.key();
        if let Change::Deleted(_) = change {
            // Another of its name starts clean.
            consistency.clear(&key, Some(&meta.uid));
            expectations.forget(&key);
        }
        wake.add(key);
    });
    c.watch(&pods, &queue, owned);
    c.sync(queue, move |key| this.clone().sync(key));
    c
}

/// No event tells that a pod has been ready for `minReadySeconds`.
fn becomes_available(old: &Pod, new: &Pod, set: &impl Replicating) -> Option<Duration> {
    let period = u64::try_from(set.spec().min_ready_seconds).ok().filter(|seconds| *seconds > 0)?;
    (!old.is_ready() && new.is_ready()).then(|| Duration::from_secs(period))
}
