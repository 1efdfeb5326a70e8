//! Keeps a route to the pods of each Node. Upstream: `controllers/route`.

mod plan;
mod syncs;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kube_controller_manager::cache::Lister;
use kube_controller_manager::client::{Client, Patch};
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::controllers::{
    Change, Controller, Error, Next, Queue, QueuePolicy, SyncResult,
};
use kube_controller_manager::events::{EventType, ObjectReference, Recorder};
use kube_controller_manager::objects::{ArcStr, PartialObjectMetadata, Resource};
use kube_controller_manager::workqueue::{RateLimiter, TokenBucket};
use serde_json::json;

use self::plan::{ClusterRanges, NodePlan, Plan};
use self::syncs::Trigger;
use super::Parts;
use crate::objects::Node;
use crate::parallel;
use crate::provider::{self, Cloud, Route, Routes};

/// Upstream: `maxConcurrentRouteOperations`.
const CONCURRENT_OPERATIONS: usize = 200;
/// With watches, routes are reconciled at most once in this time. Upstream:
/// `minRouteResyncInterval`.
const MIN_INTERVAL: Duration = Duration::from_secs(10);
/// Reconcile on changes of Nodes, not periodically.
const WATCH_GATE: &str = "CloudControllerManagerWatchBasedRoutesReconciliation";
/// The only key of the queue: each reconciliation is of the whole cluster.
const ROUTES: &str = "routes";

const NETWORK_UNAVAILABLE: &str = "NetworkUnavailable";

/// Constructs `node-route-controller`, which reconciles routes after changes of Nodes or once a
/// period. It does not run without `--configure-cloud-routes` or a cloud that has routes.
///
/// # Errors
/// A fault of `--cluster-cidr`.
pub fn controller(c: &mut Controller) -> Result<(), String> {
    let parts = Parts::of(c)?;
    if !c.options().configure_cloud_routes {
        log::info!(
            "Will not configure cloud provider routes, --configure-cloud-routes: {}",
            c.options().configure_cloud_routes
        );
        return Ok(());
    }
    if parts.cloud.routes().is_none() {
        log::warn!(
            "--configure-cloud-routes is set, but cloud provider does not support routes. Will not \
             configure cloud provider routes."
        );
        return Ok(());
    }
    syncs::register();
    let ranges = ClusterRanges::parse(&c.options().cluster_cidr)?;
    let nodes = c.lister::<Node>();
    let this = Arc::new(RouteController {
        cloud: parts.cloud.clone(),
        client: c.client(),
        recorder: c.recorder(),
        clock: c.clock(),
        nodes: nodes.clone(),
        ranges,
        has_node_changed: AtomicBool::new(false),
    });
    if c.feature(WATCH_GATE) {
        let limiter = Arc::new(AtMostEvery::new(MIN_INTERVAL, c.clock()));
        let queue = c.queue::<&'static str>(QueuePolicy::default().limited_by(limiter));
        let state = this.clone();
        c.watch(&nodes, &queue, move |change: Change<'_, Node>, queue: &Queue<&'static str>| {
            if let Some(trigger) = trigger_of(&change) {
                state.note_trigger(trigger);
                queue.add_rate_limited(ROUTES);
            }
        });
        c.sync_by(1, queue, &this, RouteController::sync);
    } else {
        let period = c.options().route_reconciliation_period;
        c.every(period, move || {
            let this = this.clone();
            async move { this.reconcile(Trigger::Periodic).await }
        });
    }
    Ok(())
}

/// Returns what starts a reconciliation after this event of a Node: a change of the Node, or a
/// resync, which also repairs routes that others changed. `None`: nothing of the Node has changed
/// that routes depend on.
fn trigger_of(change: &Change<'_, Node>) -> Option<Trigger> {
    match change {
        Change::Updated { old, new } => {
            let is_changed = old.spec.pod_cidrs != new.spec.pod_cidrs
                || old.status.addresses != new.status.addresses;
            // Upstream sees a relist as a resync.
            let is_relist = old.meta.resource_version == new.meta.resource_version;
            match is_changed {
                true => Some(Trigger::NodeChange),
                false => is_relist.then_some(Trigger::Periodic),
            }
        }
        Change::Resync { .. } => Some(Trigger::Periodic),
        Change::Added { .. } | Change::Deleted(_) => Some(Trigger::NodeChange),
    }
}

/// One token in each interval; no wait is longer than the interval, so that events do not add up.
/// Upstream: `TypedWithMaxWaitRateLimiter` of a `TypedBucketRateLimiter`.
struct AtMostEvery {
    interval: Duration,
    bucket: TokenBucket,
}

impl AtMostEvery {
    fn new(interval: Duration, clock: SharedClock) -> AtMostEvery {
        let bucket = TokenBucket::new(1.0 / interval.as_secs_f64(), 1, clock);
        AtMostEvery { interval, bucket }
    }
}

impl<K> RateLimiter<K> for AtMostEvery {
    fn when(&self, _: &K) -> Duration {
        self.bucket.reserve().min(self.interval)
    }
    fn forget(&self, _: &K) {}
    fn retries(&self, _: &K) -> u32 {
        0
    }
}

struct RouteController {
    cloud: Arc<dyn Cloud>,
    client: Client,
    recorder: Recorder,
    clock: SharedClock,
    nodes: Lister<Node>,
    ranges: ClusterRanges,
    /// With watches: whether the next reconciliation is due to a change of a Node.
    has_node_changed: AtomicBool,
}

impl RouteController {
    /// Remembers that the next reconciliation is due to a change of a Node.
    fn note_trigger(&self, trigger: Trigger) {
        if trigger == Trigger::NodeChange {
            self.has_node_changed.store(true, Ordering::SeqCst);
        }
    }

    /// Reconciles the routes, with the trigger that the watch has noted.
    async fn sync(self: Arc<Self>, _: &'static str) -> SyncResult {
        let trigger = match self.has_node_changed.swap(false, Ordering::SeqCst) {
            true => Trigger::NodeChange,
            false => Trigger::Periodic,
        };
        let reconciled = self.clone().reconcile(trigger).await;
        if reconciled.is_err() {
            // The retry has the same cause.
            self.note_trigger(trigger);
        }
        reconciled?;
        Ok(Next::Done)
    }

    fn routes(&self) -> Result<&dyn Routes, provider::Error> {
        // The constructor has checked it.
        self.cloud.routes().ok_or(provider::Error::NotImplemented)
    }

    /// Brings the routes up to date and counts that in the metrics.
    async fn reconcile(self: Arc<Self>, trigger: Trigger) -> Result<(), Error> {
        syncs::started();
        let reconciled = self.bring_up_to_date().await;
        syncs::ended(&reconciled, trigger);
        reconciled.map(drop)
    }

    /// Brings the cloud's routes up to date, then the condition of each Node. Returns whether a
    /// route was made or deleted.
    ///
    /// # Errors
    /// When some part failed; the others are done. Upstream fails only if it cannot list.
    async fn bring_up_to_date(self: Arc<Self>) -> Result<bool, Error> {
        let listed = async { self.routes()?.list().await };
        let routes = listed.await.map_err(|error| {
            Error::other(format!("Couldn't reconcile node routes: error listing routes: {error}"))
        })?;
        let Plan { delete, nodes } = Plan::new(self.nodes.list(), routes, &self.ranges);
        // Before others are made: a route to other addresses may have the name of the new one.
        let this = self.clone();
        let deletion = move |route: Route| {
            let this = this.clone();
            async move { this.delete(&route).await }
        };
        let deleted = parallel::for_each(delete, CONCURRENT_OPERATIONS, deletion).await;
        let mut failures = deleted.iter().filter(|deleted| !**deleted).count();
        let mut changes = deleted.len() - failures;

        let missing = nodes.iter().flat_map(|plan| {
            plan.create.iter().map(move |route| (plan.node.clone(), route.clone()))
        });
        let missing: Vec<(Arc<Node>, Route)> = missing.collect();
        changes += missing.len();
        let this = self.clone();
        let creation = move |(node, route): (Arc<Node>, Route)| {
            let this = this.clone();
            async move { (!this.create(&node, &route).await).then(|| node.meta.name.clone()) }
        };
        let unmade = parallel::for_each(missing, CONCURRENT_OPERATIONS, creation).await;
        let unmade: Vec<ArcStr> = unmade.into_iter().flatten().collect();
        changes -= unmade.len();
        let unrouted: HashSet<ArcStr> = unmade.into_iter().collect();
        failures += unrouted.len();

        let shown: Vec<(Arc<Node>, bool)> = nodes
            .into_iter()
            .filter(|plan| plan.has_condition)
            .map(|NodePlan { node, .. }| {
                let is_routed =
                    !node.spec.pod_cidrs.is_empty() && !unrouted.contains(&node.meta.name);
                (node, is_routed)
            })
            .collect();
        let this = self.clone();
        let condition = move |(node, is_routed): (Arc<Node>, bool)| {
            let this = this.clone();
            async move { this.write_condition(&node, is_routed).await }
        };
        let written = parallel::for_each(shown, CONCURRENT_OPERATIONS, condition).await;
        failures += written.into_iter().filter(|written| !written).count();
        match failures {
            0 => Ok(changes > 0),
            _ => Err(Error::other(format!("Couldn't reconcile node routes: {failures} failures"))),
        }
    }

    /// Deletes a route; returns whether it is gone.
    async fn delete(&self, route: &Route) -> bool {
        let Route { name, destination, .. } = route;
        log::info!("Deleting route {name} {destination}");
        let deleted = async { self.routes()?.delete(route).await };
        match deleted.await {
            Ok(()) => log::info!("Deleted route {name} {destination}"),
            Err(error) => {
                log::error!("Could not delete route {name} {destination}: {error}");
                return false;
            }
        }
        true
    }

    /// Makes a route to a Node, with an event if that fails; returns whether the route exists now.
    async fn create(&self, node: &Node, route: &Route) -> bool {
        let (hint, name, destination) =
            (node.meta.uid.to_string(), &node.meta.name, &route.destination);
        log::info!("Creating route for node {name} {destination} with hint {hint}");
        let start = self.clock.monotonic();
        let created = async { self.routes()?.create(&hint, route).await };
        let Err(error) = created.await else {
            log::info!("Created route for node {name} {destination} with hint {hint}");
            return true;
        };
        let message = format!(
            "Could not create route {hint} {destination} for node {name} after {:?}: {error}",
            self.clock.monotonic() - start
        );
        log::error!("{message}");
        // As upstream, without the version of the Node.
        let about = ObjectReference { resource_version: 0, ..ObjectReference::to(node) };
        self.recorder.event(&about, EventType::Warning, "FailedToCreateRoute", message);
        false
    }

    /// Writes the condition `NetworkUnavailable` of a Node unless it shows that already; returns
    /// false if the write failed. Upstream: `updateNetworkingCondition`.
    async fn write_condition(&self, node: &Node, is_routed: bool) -> bool {
        let (status, reason, message) = match is_routed {
            true => ("False", "RouteCreated", "RouteController created a route"),
            false => ("True", "NoRouteCreated", "RouteController failed to create a route"),
        };
        let known = node.status.condition(NETWORK_UNAVAILABLE);
        if known.is_some_and(|known| known.status == status && known.reason == reason) {
            return true;
        }
        let now = self.clock.now().truncate_to_secs();
        let patch = Patch::StrategicMerge(json!({
            "metadata": { "uid": node.meta.uid },
            "status": { "conditions": [{
                "type": NETWORK_UNAVAILABLE, "status": status, "reason": reason, "message": message,
                "lastHeartbeatTime": now, "lastTransitionTime": now,
            }] },
        }));
        let nodes = self.client.resource(&Node::RESOURCE).subresource("status");
        match nodes.patch::<PartialObjectMetadata>(&node.meta.key(), &patch).await {
            Err(error) if !error.is_not_found() => {
                log::error!("Error updating node {}: {error}", node.meta.name);
                false
            }
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use kube_controller_manager::clock::FakeClock;

    use super::*;

    #[test]
    fn events_cause_one_reconciliation_in_each_interval() {
        let clock = FakeClock::new(Default::default());
        let limiter = AtMostEvery::new(MIN_INTERVAL, clock.clone());
        let when = || limiter.when(&ROUTES);
        assert_eq!(when(), Duration::ZERO);
        assert_eq!((when(), when(), when()), (MIN_INTERVAL, MIN_INTERVAL, MIN_INTERVAL));
    }

    #[test]
    fn changes_of_addresses_and_ranges_trigger_a_reconciliation_and_so_does_the_resync() {
        let node = |version: &str, address: &str, range: &str, ready: &str| -> Arc<Node> {
            let node = json!({
                "metadata": { "name": "n", "resourceVersion": version },
                "spec": { "podCIDRs": [range] },
                "status": {
                    "addresses": [{ "type": "InternalIP", "address": address }],
                    "conditions": [{ "type": "Ready", "status": ready }],
                },
            });
            serde_json::from_value(node).map(Arc::new).expect("a Node")
        };
        let old = node("1", "10.0.0.1", "10.1.0.0/24", "True");
        for (new, expected) in [
            (node("1", "10.0.0.1", "10.1.0.0/24", "True"), Some(Trigger::Periodic)),
            (node("2", "10.0.0.1", "10.1.0.0/24", "False"), None),
            (node("2", "10.0.0.2", "10.1.0.0/24", "True"), Some(Trigger::NodeChange)),
            (node("2", "10.0.0.1", "10.1.1.0/24", "True"), Some(Trigger::NodeChange)),
        ] {
            let text = format!("{new:?}");
            assert_eq!(trigger_of(&Change::Updated { old: &old, new: &new }), expected, "{text}");
        }
        assert_eq!(trigger_of(&Change::Resync { object: &old }), Some(Trigger::Periodic));
    }
}
