//! A pass over all nodes: their health, their taints for eviction, their pods, and then the zones.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::json;

use super::health::{Health, Ready, unknown_conditions};
use super::node_observation::NodeObservation;
use super::tainter::Tainter;
use super::zones::{Count, Disruption, update, zone_of};
use super::{
    EVICTIONS, Known, NODE_SECONDS, NODE_WORKERS, NodeLifecycle, PASS_SECONDS, State, TAINT_DELAY,
    UNHEALTHY, Unmarked, ZONE_HEALTH, ZONE_SIZE,
};
use crate::client::{self, Patch};
use crate::controllers::nodes::pods::on_node;
use crate::controllers::nodes::taints::{self, Swap};
use crate::controllers::runner::batch::together;
use crate::controllers::{Next, SyncResult};
use crate::events::{EventType, ObjectReference};
use crate::objects::{
    Istr, Lease, NO_EXECUTE, Node, NodeCondition, ObjectKey, PartialObjectMetadata, Resource,
    Timestamp, Uid,
};

/// Attempts to write the conditions of a node in one pass, and the delay between them.
/// Upstream: `NodeHealthUpdateRetry`, `retrySleepTime`.
const ATTEMPTS: usize = 5;
const RETRY_DELAY: Duration = Duration::from_millis(20);
/// A node with this label does not count in its zone.
const NOT_COUNTED: &str = "node.kubernetes.io/exclude-disruption";

/// How many nodes of each zone are ready and not ready, in one pass.
type Counts = HashMap<Istr, Count>;

impl NodeLifecycle {
    /// Observes all nodes once, writes the conditions of silent ones, and adapts the rates of the
    /// zones.
    /// Upstream: `monitorNodeHealth`.
    pub(super) async fn pass(self: Arc<Self>) -> SyncResult {
        let start = self.clock.monotonic();
        self.state.lock().clock.start(start, self.period);
        let nodes = self.nodes.list();
        let tainted = self.register(&nodes);
        self.for_each_concurrently(tainted, |this, node| async move {
            this.mark_reachable(&node).await
        })
        .await;

        let counts = Arc::new(Mutex::new(Counts::new()));
        let to_write = self.observe_all(&nodes, &mut counts.lock());
        let counted = counts.clone();
        self.for_each_concurrently(to_write, move |this, (node, observation)| {
            let counts = counted.clone();
            async move {
                let start = this.clock.monotonic();
                this.process_node(node, observation, &counts).await;
                NODE_SECONDS.observe((this.clock.monotonic() - start).as_secs_f64());
            }
        })
        .await;
        let counts = std::mem::take(&mut *counts.lock());
        self.handle_disruption(&counts, &nodes).await;

        let end = self.clock.monotonic();
        PASS_SECONDS.observe((end - start).as_secs_f64());
        if nodes.is_empty() {
            return Ok(Next::Done);
        }
        self.state.lock().clock.expect_next_pass(end + self.period);
        Ok(Next::After(self.period))
    }

    /// Runs `work` for all items, at most [`NODE_WORKERS`] at once.
    async fn for_each_concurrently<T, F, Fut>(self: &Arc<Self>, items: Vec<T>, work: F)
    where
        T: Send + 'static,
        F: Fn(Arc<Self>, T) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let workers = items.len().min(NODE_WORKERS);
        let shared = Arc::new((Mutex::new(items.into_iter()), work));
        together((0..workers).map(|_| {
            let (this, shared) = (self.clone(), shared.clone());
            async move {
                let (items, work) = &*shared;
                loop {
                    let next = items.lock().next();
                    let Some(item) = next else { return };
                    work(this.clone(), item).await;
                }
            }
        }))
        .await;
    }

    /// Records new nodes and forgets those that are gone. Returns the new ones that have a taint
    /// for eviction: it is removed, and comes back at the zone's rate if it is still deserved.
    fn register(&self, nodes: &[Arc<Node>]) -> Vec<Arc<Node>> {
        let mut tainted = Vec::new();
        let mut state = self.state.lock();
        let State { pass, known, .. } = &mut *state;
        *pass = pass.wrapping_add(1);
        let pass = *pass;
        let mut zones = Vec::new();
        for node in nodes {
            let meta = &node.meta;
            match known.get_mut(&meta.name) {
                Some(known) => {
                    known.pass = pass;
                    if known.version != meta.resource_version {
                        (known.version, known.zone) = (meta.resource_version, zone_of(node));
                    }
                    if known.uid != meta.uid {
                        (known.uid, known.health) = (meta.uid.clone(), None);
                    }
                    zones.push(known.zone.clone());
                }
                None => {
                    self.record(&meta.name, &meta.uid, "RegisteredNode", "Registered", "in");
                    let zone = zone_of(node);
                    zones.push(zone.clone());
                    let new = Known {
                        uid: meta.uid.clone(),
                        zone,
                        version: meta.resource_version,
                        health: None,
                        unmarked: match Ready::of_node(node) {
                            Some(Ready::Unknown) => Unmarked::Inherited,
                            _ => Unmarked::No,
                        },
                        pass,
                    };
                    known.insert(meta.name.clone(), new);
                    if is_tainted(node) {
                        tainted.push(node.clone());
                    }
                }
            }
        }
        known.retain(|name, known| {
            if known.pass != pass {
                self.record(name, &known.uid, "RemovingNode", "Removing", "from");
            }
            known.pass == pass
        });
        for zone in zones {
            self.add_zone(&mut state, zone);
        }
        tainted
    }

    /// Adds a zone, with the normal rate, if it is new. Upstream: `addPodEvictorForNewZone`.
    fn add_zone(&self, state: &mut State, zone: Istr) {
        if state.zones.contains_key(&zone) {
            return;
        }
        // The metric shows the zone before its first eviction.
        EVICTIONS.with_label_values(&[&*zone]).inc_by(0);
        let tainter = Tainter::new(self.rates.normal, self.clock.clone());
        state.tainters.insert(zone.clone(), tainter);
        state.zones.insert(zone, super::ZoneState::Initial);
    }

    /// Records an event that a node was `does` ("Registered") `from` ("in") the controller.
    /// Upstream: `RecordNodeEvent`.
    fn record(&self, name: &str, uid: &Uid, reason: &str, does: &str, from: &str) {
        let message = format!("Node {name} event: {does} Node {name} {from} Controller");
        self.recorder.event(&reference(name, uid), EventType::Normal, reason, message);
    }

    /// Observes every node. Returns those that need a request; the others are finished here.
    fn observe_all(
        &self,
        nodes: &[Arc<Node>],
        counts: &mut Counts,
    ) -> Vec<(Arc<Node>, NodeObservation)> {
        let start = self.clock.monotonic();
        let mut to_write = Vec::new();
        let mut state = self.state.lock();
        for node in nodes {
            let observation = self.observe(&mut state, node);
            let Some(known) = state.known.get_mut(&node.meta.name) else { continue };
            let has_ready_pods = observation.has_ready_pods(known.unmarked);
            if observation.write.is_some() || observation.swap(node).is_some() || has_ready_pods {
                to_write.push((node.clone(), observation));
                continue;
            }
            known.unmarked = observation.unmarked_after(known.unmarked, false);
            let zone = known.zone.clone();
            count_node(counts, node, &zone, observation.current);
            self.update_tainter(&mut state, node, &zone, observation.current);
        }
        let settled = nodes.len() - to_write.len();
        if settled > 0 {
            let each = (self.clock.monotonic() - start).as_secs_f64() / settled as f64;
            (0..settled).for_each(|_| NODE_SECONDS.observe(each));
        }
        to_write
    }

    /// Returns whether a node that seems silent may be given up. With the gate its Lease is read
    /// from the API server, as the watch of the cache may stall. If the cache lacks that version, no
    /// node is given up, and no further Lease is read, before the cache has it; and none whose Lease
    /// cannot be read now. After an error that lasts, as a missing permission, the cache decides.
    async fn may_be_given_up(&self, node: &Node) -> bool {
        if !self.reads_leases {
            return true;
        }
        if self.state.lock().awaited_lease > self.leases.seen() {
            return false;
        }
        let (name, lease) = (&node.meta.name, self.lease_of(node));
        match self.client.get::<Lease>(&lease).await {
            Ok(live) => {
                let version = live.meta.resource_version;
                let cached = self.leases.get(&lease);
                if cached.is_some_and(|cached| cached.meta.resource_version == version) {
                    return true;
                }
                log::warn!("The cache lags behind the Lease of node {name}: no node is given up");
                let mut state = self.state.lock();
                state.awaited_lease = self.leases.written_at(version).max(state.awaited_lease);
                false
            }
            Err(error) if error.is_not_found() => true,
            Err(error) if error.may_pass() => {
                log::warn!("Node {name} seems silent, and stays as it is: {error}");
                false
            }
            Err(error) => {
                log::error!("The Lease of node {name}, which seems silent: {error}");
                true
            }
        }
    }

    /// Returns the key of the node's Lease.
    fn lease_of(&self, node: &Node) -> ObjectKey {
        ObjectKey { namespace: self.lease_namespace.clone(), name: node.meta.name.clone() }
    }

    /// Observes a node: whether it is silent, and if so which conditions have to be written.
    fn observe(&self, state: &mut State, node: &Node) -> NodeObservation {
        let now = state.clock.now(self.clock.monotonic());
        let lease = self.leases.get(&self.lease_of(node));
        let current = Ready::of_node(node);
        let observed = current.unwrap_or(Ready::Unknown);
        let Some(known) = state.known.get_mut(&node.meta.name) else {
            return NodeObservation { observed, current, write: None, is_silent: false };
        };
        let health = Health::observe(known.health.as_ref(), node, lease.as_deref(), now);
        let is_silent = health.is_silent(&self.grace, now);
        known.health = Some(health);
        if !is_silent {
            return NodeObservation { observed, current, write: None, is_silent };
        }
        let write = unknown_conditions(node, self.clock.now());
        NodeObservation { observed, current: Some(Ready::Unknown), write, is_silent }
    }

    /// Adds a node that is not ready to the queue of its zone, and removes one that is ready. One
    /// without the condition Ready stays as it is.
    fn update_tainter(&self, state: &mut State, node: &Node, zone: &Istr, ready: Option<Ready>) {
        let (Some(ready), Some(tainter)) = (ready, state.tainters.get_mut(zone)) else { return };
        let taint = match ready {
            Ready::True => {
                tainter.remove(&node.meta.name);
                return;
            }
            Ready::False => taints::NOT_READY,
            Ready::Unknown => taints::UNREACHABLE,
        };
        // As upstream: one that has lost its taint is queued again, and so is one that still waits.
        if !taints::has_taint(node, taint, NO_EXECUTE) {
            tainter.remove(&node.meta.name);
        }
        if tainter.add(&node.meta.name, self.clock.monotonic() + TAINT_DELAY) {
            self.queue.add(zone.clone());
        }
    }

    /// Carries out the decision about a node: its conditions, taints and pods. A node whose
    /// conditions cannot be written gets no other write, and does not count in its zone.
    async fn process_node(
        &self,
        mut node: Arc<Node>,
        mut observation: NodeObservation,
        counts: &Mutex<Counts>,
    ) {
        let key = node.meta.key();
        if observation.write.is_some() {
            let may_be_given_up = self.may_be_given_up(&node).await;
            // Other nodes were written before: it may have shown a sign of life.
            observation = self.observe(&mut self.state.lock(), &node);
            if !may_be_given_up {
                observation.suspend(&node);
            }
        }
        let mut attempts = 0;
        while let Some(conditions) = observation.write.take() {
            let Err(error) = self.write_conditions(&node, &conditions).await else {
                self.record_unknown(&node);
                break;
            };
            log::error!("Error updating node {}: {error}", node.meta.name);
            if error.is_unsure()
                && let Some(known) = self.state.lock().known.get_mut(&node.meta.name)
            {
                // The node may show its new condition from now on, which marks no pods.
                known.unmarked = Unmarked::Failed;
            }
            attempts += 1;
            if attempts > ATTEMPTS {
                log::error!("Update health of Node {}: given up in this pass", node.meta.name);
                return;
            }
            self.clock.sleep(RETRY_DELAY).await;
            match self.client.get::<Node>(&key).await {
                Ok(live) => node = Arc::new(live),
                Err(error) => {
                    log::error!("Failed while getting Node {}: {error}", node.meta.name);
                    return;
                }
            }
            observation = self.observe(&mut self.state.lock(), &node);
        }
        let zone = zone_of(&node);
        count_node(&mut counts.lock(), &node, &zone, observation.current);
        match observation.swap(&node) {
            None => self.update_tainter(&mut self.state.lock(), &node, &zone, observation.current),
            Some(_) if observation.current == Some(Ready::True) => self.mark_reachable(&node).await,
            Some(swap) => {
                if let Err(error) = swap.write(&self.client, &self.clock, &node).await {
                    log::error!("Failed to swap the taints of {}: {error}", node.meta.name);
                }
            }
        }
        let has_failed = self.process_pods(&node, &observation).await;
        if let Some(known) = self.state.lock().known.get_mut(&node.meta.name) {
            known.unmarked = observation.unmarked_after(known.unmarked, has_failed);
        }
    }

    /// Marks the pods of a node as not ready if that is due, with an event if the node was lost in
    /// this pass. Returns whether it failed for some of them.
    async fn process_pods(&self, node: &Node, observation: &NodeObservation) -> bool {
        let name = &node.meta.name;
        let unmarked = self.state.lock().known.get(name).map(|known| known.unmarked);
        if !observation.has_ready_pods(unmarked.unwrap_or(Unmarked::No)) {
            return false;
        }
        if observation.is_lost() {
            let about = reference(name, &node.meta.uid);
            let message = format!("Node {name} status is now: NodeNotReady");
            self.recorder.event(&about, EventType::Normal, "NodeNotReady", message);
        }
        match self.mark_not_ready(&on_node(&self.pods, name)).await {
            Ok(()) => false,
            Err(error) => {
                log::error!("Unable to mark all pods NotReady on node {name}: {error}");
                true
            }
        }
    }

    /// Replaces the conditions in the status of the node, if it is still at this version.
    async fn write_conditions(
        &self,
        node: &Node,
        conditions: &[NodeCondition],
    ) -> client::Result<()> {
        let patch = Patch::Merge(json!({
            "metadata": {
                "uid": node.meta.uid, "resourceVersion": node.meta.resource_version.to_string(),
            },
            "status": { "conditions": conditions },
        }));
        let statuses = self.client.resource(&Node::RESOURCE).subresource("status");
        statuses.patch::<PartialObjectMetadata>(&node.meta.key(), &patch).await.map(drop)
    }

    /// Records that the node's condition Ready was set to Unknown, before the cache shows it.
    fn record_unknown(&self, node: &Node) {
        let mut state = self.state.lock();
        let known = state.known.get_mut(&node.meta.name);
        if let Some(health) = known.and_then(|known| known.health.as_mut()) {
            // A condition that was missing got this time as its heartbeat: `unknown_conditions`.
            let created = node.meta.creation_timestamp;
            let heartbeat = health.ready.map_or(created, |(heartbeat, _)| heartbeat);
            health.ready = Some((heartbeat, Ready::Unknown));
        }
    }

    /// Removes the taints of a node that is ready again, and takes it out of its zone's queue.
    /// Upstream: `markNodeAsReachable`.
    pub(super) async fn mark_reachable(&self, node: &Node) {
        let remove = vec![taints::UNREACHABLE, taints::NOT_READY];
        let swap = Swap { effect: NO_EXECUTE, add: Vec::new(), remove };
        if is_tainted(node)
            && let Err(error) = swap.write(&self.client, &self.clock, node).await
        {
            log::error!("Failed to remove taints from node {}: {error}", node.meta.name);
            return;
        }
        if let Some(tainter) = self.state.lock().tainters.get_mut(&zone_of(node)) {
            tainter.remove(&node.meta.name);
        }
    }

    /// Returns the node as the API server has it, if this pass may have tainted it, else as given.
    /// Upstream takes it as it was when the pass began, so that the taint stays.
    async fn newest(&self, node: Arc<Node>) -> Arc<Node> {
        let is_member = |tainter: &Tainter| tainter.contains(&node.meta.name);
        let may_be = self.state.lock().tainters.get(&zone_of(&node)).is_some_and(is_member);
        if !may_be {
            return node;
        }
        self.client.get::<Node>(&node.meta.key()).await.map_or(node, Arc::new)
    }

    /// Sets the rates of the zones, and their metrics. Stops evictions while no node is ready: all
    /// nodes lose their eviction taints then, and count as just seen when evictions resume.
    /// Upstream: `handleDisruption`.
    async fn handle_disruption(self: &Arc<Self>, counts: &Counts, nodes: &[Arc<Node>]) {
        let disruption = {
            let mut state = self.state.lock();
            for zone in state.zones.keys().filter(|zone| !counts.contains_key(*zone)) {
                report(zone, &Count::default());
            }
            counts.iter().for_each(|(zone, count)| report(zone, count));
            update(&mut state.zones, counts, &self.rates)
        };
        let (rates, is_resumed) = match disruption {
            Disruption::Rates(rates) => (rates, false),
            Disruption::Resume(rates) => {
                log::info!("Some Nodes are ready again: evictions resume");
                (rates, true)
            }
            Disruption::Stop => {
                log::info!("No Node is ready: evictions stop");
                self.state.lock().tainters.values().for_each(|tainter| tainter.set_rate(0.0));
                let nodes = nodes.to_vec();
                self.for_each_concurrently(nodes, |this, node| async move {
                    let node = this.newest(node).await;
                    this.mark_reachable(&node).await;
                })
                .await;
                let zones = self.state.lock().zones.keys().cloned().collect::<Vec<_>>();
                (zones.into_iter().map(|zone| (zone, 0.0)).collect(), false)
            }
        };
        let mut state = self.state.lock();
        if is_resumed {
            let now: Timestamp = state.clock.now(self.clock.monotonic());
            for health in state.known.values_mut().filter_map(|known| known.health.as_mut()) {
                health.probe = now;
            }
        }
        for (zone, rate) in rates {
            if let Some(tainter) = state.tainters.get(&zone) {
                log::info!("Nodes of zone {:?} are tainted at {rate} a second", &*zone);
                tainter.set_rate(rate);
                self.queue.add(zone);
            }
        }
    }
}

/// Returns whether the node has a taint for eviction of this controller.
fn is_tainted(node: &Node) -> bool {
    [taints::UNREACHABLE, taints::NOT_READY]
        .iter()
        .any(|key| taints::has_taint(node, key, NO_EXECUTE))
}

/// Returns the node as events name it.
fn reference(name: &str, uid: &Uid) -> ObjectReference {
    ObjectReference {
        api_version: "v1".into(),
        kind: "Node".into(),
        namespace: Istr::default(),
        name: name.into(),
        uid: uid.clone(),
        resource_version: 0,
        field_path: Istr::default(),
    }
}

/// Counts a node in its zone, unless its label excludes it.
fn count_node(counts: &mut Counts, node: &Node, zone: &Istr, ready: Option<Ready>) {
    if node.meta.labels.get(NOT_COUNTED).is_some() {
        return;
    }
    let count = counts.entry(zone.clone()).or_default();
    match ready {
        Some(Ready::True) => count.ready += 1,
        _ => count.not_ready += 1,
    }
}

/// Sets the metrics of a zone; an empty one is healthy.
fn report(zone: &str, count: &Count) {
    let healthy = match count.size() {
        0 => 100.0,
        size => (100 * count.ready) as f64 / size as f64,
    };
    ZONE_HEALTH.with_label_values(&[zone]).set(healthy);
    ZONE_SIZE.with_label_values(&[zone]).set(count.size() as i64);
    UNHEALTHY.with_label_values(&[zone]).set(count.not_ready as i64);
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_lite::future::block_on;

    use super::*;
    use crate::cache::{HistoryVersion, Indexer, Lister};
    use crate::client::Client;
    use crate::client::testing::answering;
    use crate::clock::{Clock, FakeClock};
    use crate::controllers::QueuePolicy;
    use crate::controllers::nodes::lifecycle::health::{GracePeriods, MonitorClock};
    use crate::controllers::nodes::lifecycle::zones::Rates;
    use crate::controllers::runner::Queue;
    use crate::events::Recorder;
    use crate::events::testing::Heard;

    fn lease(version: u64) -> serde_json::Value {
        let meta = json!({
            "namespace": super::super::LEASES, "name": "n", "resourceVersion": version.to_string(),
        });
        json!({ "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta })
    }

    /// A controller that reads Leases, with that of the node `n` at version `cached` in its cache,
    /// if any, while it waits for the version `awaited`.
    fn lifecycle(client: Client, cached: Option<u64>, awaited: u64) -> NodeLifecycle {
        let leases = Arc::new(Indexer::<Lease>::new());
        if let Some(version) = cached {
            leases.insert(Arc::new(serde_json::from_value(lease(version)).unwrap()));
            leases.set_seen_version(version);
        }
        let clock = FakeClock::new(Timestamp::from_secs(0));
        let state = State {
            clock: MonitorClock::new(clock.now(), clock.monotonic()),
            pass: 0,
            awaited_lease: HistoryVersion { history: 0, version: awaited },
            known: HashMap::new(),
            zones: HashMap::new(),
            tainters: HashMap::new(),
        };
        NodeLifecycle {
            client,
            reads_leases: true,
            recorder: Recorder::to_sink(Arc::new(Heard::default())),
            nodes: Lister::new(Arc::default()),
            leases: Lister::new(leases),
            pods: Lister::new(Arc::default()),
            lease_namespace: Istr::new(super::super::LEASES),
            rates: Rates { normal: 0.1, secondary: 0.01, large: 50, unhealthy: 0.55 },
            grace: GracePeriods { monitor: Duration::ZERO, startup: Duration::ZERO },
            period: Duration::from_secs(5),
            queue: Queue::new("", QueuePolicy::default(), clock.clone()),
            state: Mutex::new(state),
            clock,
        }
    }

    #[test]
    fn a_silent_node_is_given_up_if_the_cache_has_its_live_lease_or_there_is_none() {
        let node: Node = serde_json::from_value(json!({ "metadata": { "name": "n" } })).unwrap();
        for (cached, awaited, (code, live), may, requests, awaited_then) in [
            (Some(5), 0, (200, 5), true, 1, 0),
            (Some(5), 0, (200, 7), false, 1, 7),
            (None, 0, (200, 7), false, 1, 7),
            // The cache does not have the version that was read before.
            (Some(5), 7, (200, 5), false, 0, 7),
            (Some(7), 7, (200, 7), true, 1, 7),
            (Some(8), 7, (200, 8), true, 1, 7),
            (Some(5), 0, (404, 0), true, 1, 0),
            (None, 0, (404, 0), true, 1, 0),
            // An error that may pass, and one that lasts.
            (Some(5), 0, (503, 0), false, 1, 0),
            (Some(5), 0, (403, 0), true, 1, 0),
        ] {
            let case = format!("cached {cached:?}, awaited {awaited}, {code} {live}");
            let asked = Arc::new(AtomicUsize::new(0));
            let count = asked.clone();
            let client = block_on(answering(move |_| {
                count.fetch_add(1, Ordering::SeqCst);
                (code, if code == 200 { lease(live) } else { json!({}) })
            }));
            let this = lifecycle(client, cached, awaited);
            assert_eq!(block_on(this.may_be_given_up(&node)), may, "{case}");
            assert_eq!(asked.load(Ordering::SeqCst), requests, "{case}");
            assert_eq!(this.state.lock().awaited_lease.version, awaited_then, "{case}");

            let without_gate = NodeLifecycle { reads_leases: false, ..this };
            assert!(block_on(without_gate.may_be_given_up(&node)), "{case}");
            assert_eq!(asked.load(Ordering::SeqCst), requests, "{case}: nothing is asked");
        }
    }

    #[test]
    fn a_node_that_is_excluded_does_not_count_in_its_zone() {
        let zone = Istr::new("z");
        let mut counts = Counts::new();
        let labels = [json!({}), json!({ NOT_COUNTED: "" }), json!({ NOT_COUNTED: "false" })];
        for labels in labels {
            let node: Node =
                serde_json::from_value(json!({ "metadata": { "labels": labels } })).unwrap();
            for ready in [Some(Ready::True), Some(Ready::False), Some(Ready::Unknown), None] {
                count_node(&mut counts, &node, &zone, ready);
            }
        }
        let expected = Count { ready: 1, not_ready: 3 };
        assert_eq!(counts, Counts::from([(zone, expected)]));
    }
}
