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
use crate::controllers::services::endpoint_writes::{MAX_RETRIES, MIN_EDIT_DELAY, slow_retries};
use crate::controllers::services::service_pods::{of_pods, pods_of};
use crate::controllers::services::service_slices;
use crate::controllers::services::slice_tracker::{self, SliceTracker};
use crate::controllers::services::trigger_times::TriggerTimes;
use crate::controllers::{Controller, Error, Next, Queue, QueuePolicy, SyncResult, keys};
use crate::events::Recorder;
use crate::objects::{EndpointSlice, Node, ObjectKey, Pod, Service};

/// The controller's name in the label of its slices. Upstream: `ControllerName`.
const MANAGER: &str = "endpointslice-controller.k8s.io";

/// The longest delay of a retry. Upstream: `maxSyncBackOff`.
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

/// Sets up the controller `endpointslice-controller`.
pub fn controller(c: &mut Controller) -> Result<(), String> {
    metrics::register();
    let (services, pods) = (c.lister::<Service>(), c.lister::<Pod>());
    let (slices, nodes) = (service_slices::lister(c), c.lister::<Node>());
    let (tracker, topology) = (Arc::<SliceTracker>::default(), Arc::<TopologyCache>::default());
    let recorder = c.recorder();
    let max = c.options().max_endpoints_per_slice.get();
    let this = Arc::new(EndpointSlices {
        recorder: recorder.clone(),
        services: services.clone(),
        pods: pods.clone(),
        slices: slices.clone(),
        nodes: nodes.clone(),
        times: TriggerTimes::default(),
        tracker: tracker.clone(),
        topology: topology.clone(),
        reconciler: Reconciler {
            client: c.client(),
            recorder,
            nodes: nodes.clone(),
            max,
            counts: metrics::new_counts(max),
            distributions: metrics::Distributions::default(),
            tracker: tracker.clone(),
            topology,
        },
    });
    let period = c.options().endpointslice_updates_batch_period;
    let retries = QueuePolicy::at_most(MAX_RETRIES)
        .limited_by(slow_retries(MAX_BACKOFF, c.clock()))
        .logged_as(log::Level::Info);
    let queue = c.queue(retries);
    c.watch(&services, &queue, keys::of_object());
    c.watch(&pods, &queue, of_pods(services, period));
    let delay = MIN_EDIT_DELAY.max(period);
    c.watch(&slices, &queue, slice_tracker::queue_service(MANAGER, tracker, delay));
    // One key for all Nodes together, in a queue without metrics.
    let topology_queue = c.queue_named("", QueuePolicy::default());
    c.watch(&nodes, &topology_queue, |change, queue| {
        if changes_topology(&change) {
            queue.add("nodes");
        }
    });
    let service_queue = queue.clone();
    c.sync_by(1, topology_queue, &this, move |this, _| {
        this.check_node_topology(&service_queue);
        async { Ok(Next::Done) }
    });
    c.sync(queue, &this, async |this, key| {
        let result = this.sync(key).await;
        metrics::count_sync(&result);
        result
    });
    Ok(())
}

/// Returns whether a change of a Node may change the distribution of CPUs over zones. The zone may
/// be set long after the Node was created.
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
    /// Updates the CPUs of the zones, and queues the Services of which a zone has too few endpoints
    /// now. Upstream: `checkNodeTopologyDistribution`.
    fn check_node_topology(&self, queue: &Queue) {
        self.topology.set_nodes(&self.nodes.list());
        for service in self.topology.overloaded() {
            queue.add(service);
        }
    }

    /// Makes the EndpointSlices of a Service show its pods, unless the cache lacks the last writes.
    async fn sync(&self, key: ObjectKey) -> SyncResult {
        let Some(service) = self.services.get(&key) else {
            // Its slices go with their owner.
            self.times.forget(&key);
            self.tracker.forget(&key);
            self.reconciler.forget(&key);
            return Ok(Next::Done);
        };
        if !service.selects_pods() {
            // The user writes them.
            return Ok(Next::Done);
        }
        let seen = self.slices.seen();
        let mut existing = service_slices::of_service(&self.slices, &key, MANAGER);
        existing.retain(|slice| !slice.meta.is_being_deleted());
        if self.tracker.are_stale(&key, existing.iter().map(|slice| &**slice), seen) {
            return Err(Error::Stale("EndpointSlice informer cache is out of date".into()));
        }
        let pods = pods_of(&self.pods, &service);
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
