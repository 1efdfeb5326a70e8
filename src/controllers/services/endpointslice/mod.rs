//! Writes the EndpointSlices of Services that select pods.
//! Upstream: `pkg/controller/endpointslice`, `k8s.io/endpointslice`.

mod desired;
mod distribution;
mod metrics;
mod pack;
mod reconcile;
mod topology;

use std::sync::Arc;
use std::time::Duration;

use self::reconcile::Reconciler;
use self::topology::TopologyCache;
use crate::cache::Lister;
use crate::controllers::runner::Change;
use crate::controllers::services::service_endpoints::tracker::SliceTracker;
use crate::controllers::services::service_endpoints::trigger_time::TriggerTimes;
use crate::controllers::services::service_endpoints::{
    MAX_RETRIES, of_pods, pods_of, slices, slow_retries,
};
use crate::controllers::{Controller, ControllerContext, Error, Next, Queue, SyncResult, keys};
use crate::events::Recorder;
use crate::objects::{EndpointSlice, Node, ObjectKey, Pod, Service};

const NAME: &str = "endpointslice-controller";
/// Its service account.
const ACCOUNT: &str = "endpointslice-controller";
/// What it calls itself in events.
const COMPONENT: &str = "endpoint-slice-controller";
/// What it calls itself in the label of its slices. Upstream: `ControllerName`.
const MANAGER: &str = "endpointslice-controller.k8s.io";

/// A changed slice wakes its Service so much later at least: more of them may change.
/// Upstream: `endpointSliceChangeMinSyncDelay`.
const MIN_SLICE_DELAY: Duration = Duration::from_secs(1);
const MAX_BACKOFF: Duration = Duration::from_secs(1000);

struct EndpointSlices {
    recorder: Recorder,
    services: Lister<Service>,
    pods: Lister<Pod>,
    slices: Lister<EndpointSlice>,
    nodes: Lister<Node>,
    times: TriggerTimes,
    tracker: Arc<SliceTracker>,
    topology: Arc<TopologyCache>,
    reconciler: Reconciler,
}

/// The controller `endpointslice-controller`.
pub fn controller(cx: &ControllerContext) -> Controller {
    metrics::register();
    let (services, pods) = (cx.informer::<Service>(), cx.informer::<Pod>());
    let (endpoint_slices, nodes) = (cx.informer::<EndpointSlice>(), cx.informer::<Node>());
    slices::index(&endpoint_slices);
    let (tracker, topology) = (Arc::<SliceTracker>::default(), Arc::<TopologyCache>::default());
    let recorder = cx.recorder_as(ACCOUNT, COMPONENT);
    let max = usize::try_from(cx.options.max_endpoints_per_slice).unwrap_or(1).max(1);
    let this = Arc::new(EndpointSlices {
        recorder: recorder.clone(),
        services: services.lister(),
        pods: pods.lister(),
        slices: endpoint_slices.lister(),
        nodes: nodes.lister(),
        times: TriggerTimes::default(),
        tracker: tracker.clone(),
        topology: topology.clone(),
        reconciler: Reconciler {
            client: cx.client(ACCOUNT),
            recorder,
            nodes: nodes.lister(),
            max,
            counts: metrics::counts(max),
            distributions: metrics::Distributions::default(),
            tracker: tracker.clone(),
            topology,
        },
    });

    let mut c = Controller::new(NAME);
    let workers = usize::try_from(cx.options.concurrent_service_endpoint_syncs).unwrap_or(0);
    let period: Duration = cx.options.endpointslice_updates_batch_period;
    let queue = c
        .queue("endpoint_slice", workers)
        .limiter(slow_retries(MAX_BACKOFF, cx.clock()))
        .max_retries(MAX_RETRIES)
        .log_retries(log::Level::Info);
    // The one key of a queue without a name: all Nodes together.
    let topology_queue = c.queue::<&'static str>("", 1);
    c.watch(&services, &queue, keys::of_object());
    c.watch(&pods, &queue, of_pods(services.lister(), period));
    let delay = MIN_SLICE_DELAY.max(period);
    c.watch(&endpoint_slices, &queue, slices::wake_service(MANAGER, tracker, delay));
    c.watch(&nodes, &topology_queue, |change: Change<'_, Node>, wake: &Queue<&'static str>| {
        if changes_topology(&change) {
            wake.add("nodes");
        }
    });
    let (looking, wake) = (this.clone(), queue.clone());
    c.sync(topology_queue, move |_| {
        looking.look_at_nodes(&wake);
        async { Ok(Next::Done) }
    });
    c.sync(queue, move |key| {
        let this = this.clone();
        async move {
            let result = this.sync(key).await;
            metrics::synced(&result);
            result
        }
    });
    c
}

/// A zone may be set long after the Node was made.
fn changes_topology(change: &Change<'_, Node>) -> bool {
    match change {
        Change::Added { .. } | Change::Deleted(_) => true,
        Change::Updated { old, new } => {
            old.is_ready() != new.is_ready() || old.zone() != new.zone()
        }
        Change::Resync { .. } => false,
    }
}

impl EndpointSlices {
    /// Upstream: `checkNodeTopologyDistribution`.
    fn look_at_nodes(&self, wake: &Queue) {
        self.topology.set_nodes(&self.nodes.list());
        for service in self.topology.overloaded() {
            wake.add(service);
        }
    }

    async fn sync(&self, key: ObjectKey) -> SyncResult {
        let Some(service) = self.services.get(&key) else {
            // Its slices go with their owner.
            self.times.forget(&key);
            self.tracker.forget(&key);
            self.reconciler.forget(&key);
            return Ok(Next::Done);
        };
        if !service.selects_pods() {
            // Somebody else writes them.
            return Ok(Next::Done);
        }
        let pods = pods_of(&self.pods, &service);
        let mut existing = slices::of_service(&self.slices, &key, MANAGER);
        existing.retain(|slice| !slice.meta.is_being_deleted());
        if self.tracker.are_stale(&key, existing.iter().map(|slice| &**slice)) {
            return Err(Error::Stale("EndpointSlice informer cache is out of date".into()));
        }
        let changed_at = self.times.observe(&service, &pods);
        if let Err(error) = self.reconciler.reconcile(&service, &pods, existing, changed_at).await {
            let text =
                format!("Error updating Endpoint Slices for Service {key}: {}", error.message());
            self.recorder.warning(&*service, "FailedToUpdateEndpointSlices", text);
            return Err(error);
        }
        Ok(Next::Done)
    }
}
