//! Watches whether nodes are alive, says so in their conditions and taints, and has the pods of a
//! node that is not alive marked as not ready. Upstream: `pkg/controller/nodelifecycle`.
//!
//! All nodes are checked every `--node-monitor-period`, from the caches; the renewal of a lease by
//! itself costs nothing. With the gate `NodeControllerLeaseCircuitBreaker` the API server is asked
//! before a node is given up: a watch may stall. Without nodes there are no passes.

mod health;
mod monitor;
mod node_observation;
mod pods;
mod reconcile;
mod tainter;
mod zones;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use self::health::{GracePeriods, Health, MonitorClock, Ready};
use self::tainter::{NextNode, Tainter};
use self::zones::{Rates, ZoneState};
use super::pods::BY_NODE;
use super::taints::{self, Swap};
use crate::cache::{HistoryVersion, Lister};
use crate::client::Client;
use crate::clock::SharedClock;
use crate::controllers::runner::{Change, Queue, keys};
use crate::controllers::{Controller, Next, QueuePolicy, SyncResult};
use crate::events::Recorder;
use crate::metrics::{exponential, metrics};
use crate::objects::{ArcStr, Istr, Lease, NO_EXECUTE, Node, ObjectKey, Pod, Uid};

/// Nodes that are written to at once. Upstream: `scheduler.UpdateWorkerSize`.
const NODE_WORKERS: usize = 8;
/// Upstream: `podUpdateWorkerSize`.
const POD_WORKERS: usize = 4;
/// From the decision to the first attempt: by then the cache has the conditions that were just
/// written. Upstream: `NodeEvictionPeriod`.
const TAINT_DELAY: Duration = Duration::from_millis(100);
/// The delay before a node that cannot be tainted yet is checked again.
const TAINT_RETRY: Duration = Duration::from_millis(50);
/// The namespace of the nodes' leases. Upstream: `v1.NamespaceNodeLease`.
const LEASES: &str = "kube-node-lease";
/// The one key of the queue of passes.
const PASS: &str = "all nodes";

metrics! {
    fn register;
    static ZONE_HEALTH: GaugeVec["zone"] = "node_collector_zone_health",
        "[ALPHA] Gauge measuring percentage of healthy nodes per zone.";
    static ZONE_SIZE: IntGaugeVec["zone"] = "node_collector_zone_size",
        "[ALPHA] Gauge measuring number of registered Nodes per zones.";
    static UNHEALTHY: IntGaugeVec["zone"] = "node_collector_unhealthy_nodes_in_zone",
        "[ALPHA] Gauge measuring number of not Ready Nodes per zones.";
    static EVICTIONS: IntCounterVec["zone"] = "node_collector_evictions_total",
        "[STABLE] Number of Node evictions that happened since current instance of NodeController started.";
    static NODE_SECONDS: Histogram(exponential(0.001, 4.0, 8)) =
        "node_collector_update_node_health_duration_seconds",
        "[ALPHA] Duration in seconds for NodeController to update the health of a single node.";
    static PASS_SECONDS: Histogram(exponential(0.01, 4.0, 8)) =
        "node_collector_update_all_nodes_health_duration_seconds",
        "[ALPHA] Duration in seconds for NodeController to update the health of all nodes.";
}

/// Sets up the controller `node-lifecycle-controller`.
pub fn controller(c: &mut Controller) -> Result<(), String> {
    register();
    let (nodes, leases, pods) = (c.lister::<Node>(), c.lister::<Lease>(), c.lister::<Pod>());
    c.index(&pods, &BY_NODE);
    let o = c.options();
    let rates = Rates {
        normal: o.node_eviction_rate,
        secondary: o.secondary_node_eviction_rate,
        large: o.large_cluster_size_threshold,
        unhealthy: o.unhealthy_zone_threshold,
    };
    let grace =
        GracePeriods { monitor: o.node_monitor_grace_period, startup: o.node_startup_grace_period };
    let period = o.node_monitor_period.max(Duration::from_millis(1));
    let clock = c.clock();
    let zones: Queue<Istr> = c.queue_named("", QueuePolicy::default());
    let passes: Queue<&'static str> = c.queue_named("", QueuePolicy::default());
    let state = State {
        clock: MonitorClock::new(clock.now(), clock.monotonic()),
        pass: 0,
        awaited_lease: HistoryVersion::default(),
        known: HashMap::new(),
        zones: HashMap::new(),
        tainters: HashMap::new(),
    };
    let this = Arc::new(NodeLifecycle {
        client: c.client(),
        reads_leases: c.feature("NodeControllerLeaseCircuitBreaker"),
        recorder: c.recorder(),
        clock,
        nodes: nodes.clone(),
        leases,
        pods: pods.clone(),
        lease_namespace: Istr::new(LEASES),
        rates,
        grace,
        period,
        queue: zones.clone(),
        state: Mutex::new(state),
    });

    let reconcile = c.queue(QueuePolicy::default());
    c.watch(&nodes, &reconcile, keys::of_current(|_| true));
    c.sync_by(NODE_WORKERS, reconcile, &this, NodeLifecycle::reconcile);

    let pod_queue = c.queue_named("node_lifecycle_controller_pods", QueuePolicy::default());
    let known = this.clone();
    c.watch(&pods, &pod_queue, move |change, queue| {
        if is_placed(&change) && known.is_not_ready(&change.object().spec.node_name) {
            queue.add(change.object().meta.key());
        }
    });
    c.sync_by(POD_WORKERS, pod_queue, &this, NodeLifecycle::mark_pod_of_not_ready_node);

    c.sync_by(1, zones, &this, NodeLifecycle::taint_zone);

    // The first pass comes with the workers. The first node of a cluster starts the passes again.
    passes.add(PASS);
    c.watch_resyncing(&nodes, None, &passes, move |change: Change<'_, Node>, queue| {
        if matches!(change, Change::Added { initial: false, .. }) {
            queue.add_after(PASS, period);
        }
    });
    c.sync_by(1, passes, &this, |this, _| this.pass());
    Ok(())
}

/// Returns whether the change binds the pod to a node. Upstream: `podUpdated`.
fn is_placed(change: &Change<'_, Pod>) -> bool {
    match change {
        Change::Added { new, .. } => !new.spec.node_name.is_empty(),
        Change::Updated { old, new } => {
            !new.spec.node_name.is_empty() && old.spec.node_name != new.spec.node_name
        }
        Change::Resync { .. } | Change::Deleted(_) => false,
    }
}

struct NodeLifecycle {
    client: Client,
    /// Whether the Lease of a node is read from the API server before the node is given up.
    reads_leases: bool,
    recorder: Recorder,
    clock: SharedClock,
    nodes: Lister<Node>,
    leases: Lister<Lease>,
    pods: Lister<Pod>,
    lease_namespace: Istr,
    rates: Rates,
    grace: GracePeriods,
    period: Duration,
    /// Zones in which a node may wait for its taint.
    queue: Queue<Istr>,
    state: Mutex<State>,
}

/// The memory of the passes over the nodes, under one lock.
struct State {
    clock: MonitorClock,
    /// The number of the pass.
    pass: u32,
    /// The version of a Lease that was read from the API server: no node is given up before the
    /// cache has it.
    awaited_lease: HistoryVersion,
    known: HashMap<ArcStr, Known>,
    zones: HashMap<Istr, ZoneState>,
    tainters: HashMap<Istr, Tainter>,
}

/// A node that a pass has seen.
struct Known {
    uid: Uid,
    zone: Istr,
    /// The version of the node that `zone` is computed from.
    version: u64,
    health: Option<Health>,
    unmarked: Unmarked,
    /// The last pass that saw it.
    pass: u32,
}

/// Whether pods of a node that is not ready may still say that they are ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unmarked {
    No,
    /// Some may: they could not all be marked, or the answer to the write of the node's conditions
    /// is lost.
    /// Upstream: `nodesToRetry`.
    Failed,
    /// The node was Unknown when this manager first saw it: another one may have died before it
    /// marked them. They are marked if the node stays silent.
    Inherited,
}

impl NodeLifecycle {
    /// Returns whether a pass has found the node's condition Ready other than True.
    fn is_not_ready(&self, node: &str) -> bool {
        let state = self.state.lock();
        let ready = state.known.get(node).and_then(|known| known.health.as_ref()?.ready);
        ready.is_some_and(|(_, ready)| ready != Ready::True)
    }

    /// Taints the nodes of a zone that wait for it, as fast as the zone's rate permits. Upstream:
    /// `doNoExecuteTaintingPass`.
    async fn taint_zone(self: Arc<Self>, zone: Istr) -> SyncResult {
        loop {
            let now = self.clock.monotonic();
            let next = self.state.lock().tainters.get_mut(&zone).map(|tainter| tainter.next(now));
            let node = match next {
                None | Some(NextNode::Idle) => return Ok(Next::Done),
                Some(NextNode::Wait(wait)) => return Ok(Next::After(wait)),
                Some(NextNode::Node(node)) => node,
            };
            let outcome = self.taint(&node).await;
            if self.record_taint_result(&zone, &node, outcome)
                && let Ok(live) = self.client.get::<Node>(&ObjectKey::cluster(&node)).await
            {
                self.mark_reachable(&live).await;
            }
        }
    }

    /// Records how the attempt to taint a node ended; `Err` is the delay before the next. Returns
    /// whether all evictions have stopped meanwhile, so that the taint has to be removed again. In
    /// a zone that is disrupted in part it stays.
    fn record_taint_result(
        &self,
        zone: &Istr,
        node: &ArcStr,
        outcome: Result<(), Duration>,
    ) -> bool {
        let mut state = self.state.lock();
        let Some(tainter) = state.tainters.get_mut(zone) else { return false };
        match outcome {
            Ok(()) => tainter.finish(node),
            Err(wait) => tainter.retry(node, self.clock.monotonic() + wait),
        }
        outcome.is_ok() && zones::are_all_full(&state.zones)
    }

    /// Swaps the taints of a node that is not ready or unreachable; `Ok` also if it needs none, or
    /// is gone. `Err` is the delay before the next attempt. Not ready and unreachable exclude each
    /// other, as the statuses of the condition Ready do.
    async fn taint(&self, name: &ArcStr) -> Result<(), Duration> {
        let Some(node) = self.nodes.get(&ObjectKey::cluster(name)) else { return Ok(()) };
        let (add, remove) = match Ready::of_node(&node) {
            None => return Err(TAINT_RETRY),
            Some(Ready::True) => return Ok(()),
            Some(Ready::False) => (taints::NOT_READY, taints::UNREACHABLE),
            Some(Ready::Unknown) => (taints::UNREACHABLE, taints::NOT_READY),
        };
        let swap = Swap { effect: NO_EXECUTE, add: vec![add], remove: vec![remove] };
        if let Err(error) = swap.write(&self.client, &self.clock, &node).await {
            log::error!("unable to taint unresponsive Node {name:?} with {add}: {error}");
            // The next attempt is at once, as far as the rate permits.
            return Err(Duration::ZERO);
        }
        EVICTIONS.with_label_values(&[&*zones::zone_of(&node)]).inc();
        Ok(())
    }
}
