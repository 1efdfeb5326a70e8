//! Keeps as many pods of a ReplicaSet as it asks for.
//! Upstream: `pkg/controller/replicaset`.

mod ranking;
mod status;
mod sync;

use std::sync::Arc;
use std::time::Duration;

use crate::cache::Lister;
use crate::client::Client;
use crate::clock::SharedClock;
use crate::controllers::consistency::Consistency;
use crate::controllers::expectations::Expectations;
use crate::controllers::pod_control::PodControl;
use crate::controllers::ref_manager::{CONTROLLER_INDEX, by_controller};
use crate::controllers::runner::Change;
use crate::controllers::{Controller, ControllerContext, Queue, keys};
use crate::objects::{Object, Pod, ReplicaSet, Resource, Selector};

const NAME: &str = "replicaset-controller";

/// At most so many pods are created or deleted in one sync. Upstream: `BurstReplicas`.
const BURST_REPLICAS: usize = 500;

struct ReplicaSets {
    client: Client,
    pod_control: PodControl,
    sets: Lister<ReplicaSet>,
    pods: Lister<Pod>,
    expectations: Arc<Expectations>,
    consistency: Arc<Consistency>,
    clock: SharedClock,
}

/// The controller `replicaset-controller`.
pub fn controller(cx: &ControllerContext) -> Controller {
    sync::register_metrics();
    let (sets, pods) = (cx.informer::<ReplicaSet>(), cx.informer::<Pod>());
    pods.add_index(CONTROLLER_INDEX, by_controller::<Pod>);
    sets.add_index(CONTROLLER_INDEX, by_controller::<ReplicaSet>);

    let (set_lister, pod_lister) = (sets.lister(), pods.lister());
    let (sets_seen, pods_seen) = (set_lister.clone(), pod_lister.clone());
    let consistency = Arc::new(Consistency::new(vec![
        (Pod::RESOURCE, Arc::new(move || pods_seen.last_seen_version())),
        (ReplicaSet::RESOURCE, Arc::new(move || sets_seen.last_seen_version())),
    ]));
    let expectations = Arc::new(Expectations::new(cx.clock()));
    let client = cx.client(NAME);
    let this = Arc::new(ReplicaSets {
        pod_control: PodControl::new(client.clone(), cx.recorder(NAME)).recording(&consistency),
        client,
        sets: set_lister,
        pods: pod_lister,
        expectations: expectations.clone(),
        consistency: consistency.clone(),
        clock: cx.clock(),
    });

    let mut c = Controller::new(NAME);
    let workers = usize::try_from(cx.options.concurrent_replicaset_syncs).unwrap_or(0);
    let queue = c.queue("replicaset", workers);
    let owned = keys::of_controller(&this.sets)
        .or_matching_orphans(|set: &ReplicaSet| Selector::try_from(set.spec.selector.as_ref()))
        .observing(&expectations)
        .again_after(becomes_available);
    c.watch(&sets, &queue, move |change: Change<'_, ReplicaSet>, wake: &Queue| {
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
fn becomes_available(old: &Pod, new: &Pod, set: &ReplicaSet) -> Option<Duration> {
    let period = u64::try_from(set.spec.min_ready_seconds).ok().filter(|seconds| *seconds > 0)?;
    (!old.is_ready() && new.is_ready()).then(|| Duration::from_secs(period))
}
