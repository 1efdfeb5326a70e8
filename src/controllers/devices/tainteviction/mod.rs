//! Evicts pods whose devices have taints of effect NoExecute that their claims do not tolerate.
//! Upstream: `pkg/controller/devicetainteviction`.

mod evict;
mod eviction;
mod metrics;
mod status;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use self::eviction::{
    Eviction, NO_EXECUTE, Reason, evicting_taints, eviction_by_taints, newest_slices,
    selector_matches,
};
use super::consumers::{
    ClaimName, GROUP_CLAIMS, PODS_BY_GROUP, check_is_for_pod, claims_of, has_claims,
    is_reserved_for,
};
use super::uid_cache::RecentUids;
use crate::cache::{Index, IndexValue, Lister};
use crate::client::Client;
use crate::clock::SharedClock;
use crate::controllers::runner::Change;
use crate::controllers::{Controller, Next, Queue, QueuePolicy, SyncResult};
use crate::events::Recorder;
use crate::objects::{
    AllocatedDevice, Allocation, DeviceTaint, DeviceTaintRule, Istr, Meta, ObjectKey, Pod,
    ResourceClaim, ResourceSlice, Timestamp, Uid,
};

/// Indexes slices by the pool that they belong to.
const SLICES_BY_POOL: Index<ResourceSlice> = Index::new("pool", |slice, add| add(pool_of(slice)));
/// Indexes allocated claims by the pools of their devices.
const CLAIMS_BY_POOL: Index<ResourceClaim> = Index::new("allocatedPool", |claim, add| {
    let Some(Allocation(devices)) = &claim.status.allocation else { return };
    for (at, device) in devices.iter().enumerate() {
        let is_of_same_pool =
            |other: &AllocatedDevice| other.driver == device.driver && other.pool == device.pool;
        if !devices[..at].iter().any(is_of_same_pool) {
            add(pool_value(&device.driver, &device.pool));
        }
    }
});

/// Sets up the controller `device-taint-eviction-controller`.
pub fn controller(c: &mut Controller) -> Result<(), String> {
    metrics::register();
    let (pods, claims) = (c.lister::<Pod>(), c.lister::<ResourceClaim>());
    let slices = c.lister::<ResourceSlice>();
    c.index(&slices, &SLICES_BY_POOL);
    c.index(&claims, &CLAIMS_BY_POOL);
    let group_claims = c.feature(GROUP_CLAIMS);
    if group_claims {
        c.index(&pods, &PODS_BY_GROUP);
    }
    let rules = c.feature("DRADeviceTaintRules").then(|| c.lister::<DeviceTaintRule>());
    let queue = c.queue::<Key>(QueuePolicy::default().logged_as(log::Level::Info));
    let this = Arc::new(TaintEviction {
        name: c.name(),
        client: c.client(),
        recorder: c.recorder(),
        clock: c.clock(),
        queue: queue.clone(),
        pods: pods.clone(),
        claims: claims.clone(),
        slices: slices.clone(),
        rules: rules.clone(),
        group_claims,
        evicted: RecentUids::default(),
        state: Mutex::default(),
    });
    if let Some(rules) = &rules {
        let handler = this.clone();
        c.watch(rules, &queue, move |change, _| handler.rule_changed(&change));
    }
    let handler = this.clone();
    c.watch(&claims, &queue, move |change, _| match change {
        Change::Updated { old, new } if old.status != new.status => {
            handler.queue_users(old);
            handler.queue_users(new);
        }
        Change::Updated { .. } | Change::Resync { .. } => {}
        change => handler.queue_users(change.object()),
    });
    let handler = this.clone();
    c.watch(&pods, &queue, move |change, queue| match change {
        Change::Deleted(last) => handler.cancel_deleted(last.object()),
        // Pods change often. In particular, the condition that announces the eviction needs no
        // sync.
        Change::Updated { old, new }
            if old.spec.node_name == new.spec.node_name
                && old.resource_claims() == new.resource_claims()
                && old.extended_claim() == new.extended_claim() => {}
        change => queue_pod(change.object(), queue),
    });
    let handler = this.clone();
    let mut taints = HashMap::new();
    c.watch(&slices, &queue, move |change, _| {
        // The slice may have moved from one pool to another.
        if let Change::Updated { old, .. } = &change {
            handler.pool_changed(old, &mut taints);
        }
        handler.pool_changed(change.object(), &mut taints);
    });
    c.sync(queue, &this, TaintEviction::sync);
    Ok(())
}

/// A key of the queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    Pod(ObjectId),
    /// The status of a rule.
    Rule(ObjectId),
}

/// The key and the uid of a pod or a rule. Upstream: `tainteviction.NamespacedObject`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ObjectId {
    key: ObjectKey,
    uid: Uid,
}

impl ObjectId {
    fn of(meta: &Meta) -> ObjectId {
        ObjectId { key: meta.key(), uid: meta.uid.clone() }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, ObjectId { key, uid }) = match self {
            Key::Pod(id) => ("pod", id),
            Key::Rule(id) => ("rule", id),
        };
        write!(f, "{kind}:{key}:{uid}")
    }
}

/// Returns the value of a pool in the indices.
fn pool_value(driver: &str, pool: &str) -> IndexValue {
    IndexValue::Text(Istr::from(format!("{driver}/{pool}")))
}

/// Returns the value of a slice's pool in the indices.
fn pool_of(slice: &ResourceSlice) -> IndexValue {
    pool_value(&slice.spec.driver, &slice.spec.pool.name)
}

/// Queues the pod if it has a node and claims.
fn queue_pod(pod: &Pod, queue: &Queue<Key>) {
    if has_claims(pod) && !pod.spec.node_name.is_empty() {
        queue.add(Key::Pod(ObjectId::of(&pod.meta)));
    }
}

/// The taints of effect NoExecute, by pool and device.
type EvictingTaints = HashMap<IndexValue, BTreeMap<Istr, Vec<DeviceTaint>>>;

struct TaintEviction {
    name: &'static str,
    client: Client,
    recorder: Recorder,
    clock: SharedClock,
    queue: Queue<Key>,
    pods: Lister<Pod>,
    claims: Lister<ResourceClaim>,
    slices: Lister<ResourceSlice>,
    /// The gate `DRADeviceTaintRules`.
    rules: Option<Lister<DeviceTaintRule>>,
    /// The gate `DRAWorkloadResourceClaims`.
    group_claims: bool,
    /// Pods that the API server was asked to delete.
    evicted: RecentUids,
    state: Mutex<State>,
}

/// The last write of a rule's condition.
#[derive(Clone, Copy)]
struct ConditionWrite {
    generation: i64,
    time: Timestamp,
}

#[derive(Default)]
struct State {
    /// The pods that are to be evicted.
    due: HashMap<ObjectId, Eviction>,
    /// The number of evicted pods for each rule.
    evicted_by: HashMap<Uid, u64>,
    /// The last write of the condition of each rule.
    condition_writes: HashMap<Uid, ConditionWrite>,
}

/// The mappers from changes to keys.
impl TaintEviction {
    /// Queues the pods that a claim is reserved for.
    fn queue_users(&self, claim: &ResourceClaim) {
        for consumer in &claim.status.reserved_for {
            let key = ObjectKey::new(&claim.meta.namespace, &consumer.name);
            if consumer.is_pod() {
                let pod = self.pods.get(&key).filter(|pod| pod.meta.uid == consumer.uid);
                if let Some(pod) = pod {
                    queue_pod(&pod, &self.queue);
                }
            } else if self.group_claims && consumer.is_group() {
                for pod in self.pods.by_index(&PODS_BY_GROUP, &IndexValue::Key(key)) {
                    queue_pod(&pod, &self.queue);
                }
            }
        }
    }

    /// Cancels the eviction of a deleted pod, without an event.
    fn cancel_deleted(&self, pod: &Pod) {
        let id = ObjectId::of(&pod.meta);
        if self.state.lock().due.remove(&id).is_some() {
            self.queue.cancel_timer(&Key::Pod(id));
        }
    }

    /// Queues the users of the devices whose taints changed in the pool of `slice`. `known`: the
    /// taints of each pool at its last change, which this updates.
    fn pool_changed(&self, slice: &ResourceSlice, known: &mut EvictingTaints) {
        let pool = pool_of(slice);
        let new = evicting_taints(&self.slices.by_index(&SLICES_BY_POOL, &pool));
        let old = known.remove(&pool).unwrap_or_default();
        if old == new {
            if !new.is_empty() {
                known.insert(pool, new);
            }
            return;
        }
        let has_changed = |device: &AllocatedDevice| {
            pool_value(&device.driver, &device.pool) == pool
                && old.get(&device.device) != new.get(&device.device)
        };
        for claim in self.claims.by_index(&CLAIMS_BY_POOL, &pool) {
            let allocation = claim.status.allocation.as_ref();
            if allocation.is_some_and(|Allocation(devices)| devices.iter().any(has_changed)) {
                self.queue_users(&claim);
            }
        }
        if !new.is_empty() {
            known.insert(pool, new);
        }
    }

    /// Handles a change of a rule: queues its status, and the users of the devices that it selects
    /// or selected before.
    fn rule_changed(&self, change: &Change<'_, DeviceTaintRule>) {
        let (old, new): (Option<&DeviceTaintRule>, Option<&DeviceTaintRule>) = match change {
            Change::Added { new, .. } => (None, Some(new)),
            Change::Updated { old, new } if old.spec != new.spec => (Some(old), Some(new)),
            Change::Updated { .. } | Change::Resync { .. } => return,
            Change::Deleted(last) => (Some(last.object()), None),
        };
        match new {
            // The status is written first, before pods are evicted.
            Some(rule) => self.queue.add(Key::Rule(ObjectId::of(&rule.meta))),
            None => {
                let (uid, mut state) = (&change.object().meta.uid, self.state.lock());
                state.evicted_by.remove(uid);
                state.condition_writes.remove(uid);
            }
        }
        let mut rules: Vec<&DeviceTaintRule> = old.into_iter().chain(new).collect();
        rules.retain(|rule| rule.spec.taint.effect == NO_EXECUTE);
        if rules.is_empty() {
            return;
        }
        for claim in self.claims.list() {
            let Some(Allocation(devices)) = &claim.status.allocation else { continue };
            if devices.iter().any(|device| rules.iter().any(|rule| rule_matches(rule, device))) {
                self.queue_users(&claim);
            }
        }
    }
}

/// Returns whether the rule selects the device.
fn rule_matches(rule: &DeviceTaintRule, device: &AllocatedDevice) -> bool {
    let selector = rule.spec.device_selector.as_ref();
    selector_matches(selector, &device.driver, &device.pool, &device.device)
}

impl TaintEviction {
    async fn sync(self: Arc<Self>, key: Key) -> SyncResult {
        match key {
            Key::Pod(id) => self.sync_pod(id).await,
            Key::Rule(id) => self.sync_rule(&id).await,
        }
    }

    /// Evicts the pod if it is due, else sets a timer for its eviction, or cancels that if no taint
    /// asks for it. A pod that was evicted before needs nothing more.
    async fn sync_pod(&self, id: ObjectId) -> SyncResult {
        let pod = self.pods.get(&id.key).filter(|pod| pod.meta.uid == id.uid);
        let eviction = pod.as_ref().and_then(|pod| self.pod_eviction(pod, &self.evicting_rules()));
        let Some(eviction) = eviction else {
            if self.state.lock().due.remove(&id).is_some() && pod.is_some() {
                self.queue.cancel_timer(&Key::Pod(id.clone()));
                self.record(&id, "Cancelling deletion");
            }
            return Ok(Next::Done);
        };
        if self.evicted.has(&id.uid) {
            return Ok(Next::Done);
        }
        self.state.lock().due.insert(id.clone(), eviction.clone());
        // More pods may be evicted soon.
        self.queue_rule_statuses(&eviction);
        let wait = eviction.when.duration_since(self.clock.now());
        if !wait.is_zero() {
            self.queue.set_timer_after(Key::Pod(id), wait);
            return Ok(Next::Done);
        }
        self.evict(&id, &eviction).await?;
        Ok(Next::Done)
    }

    /// Queues the rules behind the eviction, whose statuses change with it.
    fn queue_rule_statuses(&self, eviction: &Eviction) {
        for reason in &eviction.reasons {
            if let Reason::Rule { name, uid } = reason {
                let id = ObjectId { key: ObjectKey::cluster(name), uid: uid.clone() };
                self.queue.add_after(Key::Rule(id), status::PERIOD);
            }
        }
    }

    /// Returns the rules with the effect NoExecute.
    fn evicting_rules(&self) -> Vec<Arc<DeviceTaintRule>> {
        let mut rules = self.rules.as_ref().map(Lister::list).unwrap_or_default();
        rules.retain(|rule| rule.spec.taint.effect == NO_EXECUTE);
        rules
    }

    /// Returns all slices of a pool, those of older generations too.
    fn slices_of(&self, driver: &str, pool: &str) -> Vec<Arc<ResourceSlice>> {
        self.slices.by_index(&SLICES_BY_POOL, &pool_value(driver, pool))
    }

    /// Returns when and why the pod is evicted, by the taints of all devices of the claims that are
    /// reserved for it; `None` if it is not.
    /// Upstream: `podEvictionTime`, which leaves out the claim for extended resources.
    fn pod_eviction(&self, pod: &Pod, rules: &[Arc<DeviceTaintRule>]) -> Option<Eviction> {
        if pod.spec.node_name.is_empty() {
            return None;
        }
        let mut eviction = None;
        for name in claims_of(pod) {
            let (name, is_generated) = match name {
                ClaimName::UserCreated(name) => (name, false),
                ClaimName::Generated(name) => (name, true),
                ClaimName::NotGenerated | ClaimName::NotNeeded | ClaimName::Unsupported => continue,
            };
            let key = ObjectKey::new(&pod.meta.namespace, name);
            let Some(claim) = self.claims.get(&key) else { continue };
            let Some(Allocation(devices)) = &claim.status.allocation else { continue };
            let is_pods = !is_generated || check_is_for_pod(pod, &claim, self.group_claims).is_ok();
            if !is_pods || !is_reserved_for(pod, &claim, self.group_claims) {
                continue;
            }
            for device in devices {
                if let Some(device_eviction) = self.device_eviction(device, rules) {
                    eviction = Some(device_eviction.merge(eviction));
                }
            }
        }
        eviction
    }

    /// Returns when and why the users of an allocated device are evicted: by the taints of its
    /// slice, or of rules that select it.
    fn device_eviction(
        &self,
        device: &AllocatedDevice,
        rules: &[Arc<DeviceTaintRule>],
    ) -> Option<Eviction> {
        let AllocatedDevice { driver, pool, device: name, .. } = device;
        let slices = self.slices_of(driver, pool);
        let mut published = newest_slices(&slices).flat_map(|slice| &slice.spec.devices);
        let published = published.find(|published| published.name == *name);
        let slice_taints = published.iter().flat_map(|device| device.taints.iter().enumerate());
        let slice_taints = slice_taints.map(|(index, taint)| {
            let (driver, pool, device) = (driver.clone(), pool.clone(), name.clone());
            (Reason::Slice { driver, pool, device, taint: index }, taint)
        });
        let rules = rules.iter().filter(|rule| rule_matches(rule, device));
        let rule_taints = rules.map(|rule| (Reason::of_rule(rule), &rule.spec.taint));
        eviction_by_taints(device, slice_taints.chain(rule_taints))
    }
}
