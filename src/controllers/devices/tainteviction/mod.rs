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

use self::eviction::{Eviction, NO_EXECUTE, Reason, newest, of_device, selects, tainted};
use super::consumers::{
    BY_GROUP, ClaimName, GROUP_CLAIMS, claims_of, has_claims, is_for_pod, is_reserved_for,
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

/// Slices by the pool that they belong to.
const SLICES_BY_POOL: Index<ResourceSlice> = Index::new("pool", |slice, add| add(pool_of(slice)));
/// Allocated claims by the pools of their devices.
const CLAIMS_BY_POOL: Index<ResourceClaim> = Index::new("allocatedPool", |claim, add| {
    let Some(Allocation(devices)) = &claim.status.allocation else { return };
    for (at, device) in devices.iter().enumerate() {
        let same =
            |other: &AllocatedDevice| other.driver == device.driver && other.pool == device.pool;
        if !devices[..at].iter().any(same) {
            add(pool_value(&device.driver, &device.pool));
        }
    }
});

/// The controller `device-taint-eviction-controller`.
pub fn controller(c: &mut Controller) -> Result<(), String> {
    metrics::register();
    let (pods, claims) = (c.lister::<Pod>(), c.lister::<ResourceClaim>());
    let slices = c.lister::<ResourceSlice>();
    c.index(&slices, &SLICES_BY_POOL);
    c.index(&claims, &CLAIMS_BY_POOL);
    let groups = c.feature(GROUP_CLAIMS);
    if groups {
        c.index(&pods, &BY_GROUP);
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
        groups,
        evicted: RecentUids::default(),
        state: Mutex::default(),
    });
    if let Some(rules) = &rules {
        let own = this.clone();
        c.watch(rules, &queue, move |change, _| own.rule_changed(&change));
    }
    let own = this.clone();
    c.watch(&claims, &queue, move |change, _| match change {
        Change::Updated { old, new } if old.status != new.status => {
            own.queue_users(old);
            own.queue_users(new);
        }
        Change::Updated { .. } | Change::Resync { .. } => {}
        change => own.queue_users(change.object()),
    });
    let own = this.clone();
    c.watch(&pods, &queue, move |change, queue| match change {
        Change::Deleted(last) => own.forget(last.object()),
        // Pods change often. In particular, the condition that announces the eviction needs no
        // sync.
        Change::Updated { old, new }
            if old.spec.node_name == new.spec.node_name
                && old.resource_claims() == new.resource_claims()
                && old.extended_claim() == new.extended_claim() => {}
        change => queue_pod(change.object(), queue),
    });
    let own = this.clone();
    let mut taints = HashMap::new();
    c.watch(&slices, &queue, move |change, _| {
        if let Change::Updated { old, .. } = &change {
            own.pool_changed(old, &mut taints);
        }
        own.pool_changed(change.object(), &mut taints);
    });
    c.sync(queue, &this, TaintEviction::sync);
    Ok(())
}

/// A key of the queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    Pod(Named),
    /// The status of a rule.
    Rule(Named),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Named {
    key: ObjectKey,
    uid: Uid,
}

impl Named {
    fn of(meta: &Meta) -> Named {
        Named { key: meta.key(), uid: meta.uid.clone() }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, Named { key, uid }) = match self {
            Key::Pod(named) => ("pod", named),
            Key::Rule(named) => ("rule", named),
        };
        write!(f, "{kind}:{key}:{uid}")
    }
}

fn pool_value(driver: &str, pool: &str) -> IndexValue {
    IndexValue::Text(Istr::from(format!("{driver}/{pool}")))
}

fn pool_of(slice: &ResourceSlice) -> IndexValue {
    pool_value(&slice.spec.driver, &slice.spec.pool.name)
}

fn queue_pod(pod: &Pod, queue: &Queue<Key>) {
    if has_claims(pod) && !pod.spec.node_name.is_empty() {
        queue.add(Key::Pod(Named::of(&pod.meta)));
    }
}

/// The taints that evict, of each pool.
type Taints = HashMap<IndexValue, BTreeMap<Istr, Vec<DeviceTaint>>>;

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
    groups: bool,
    /// Pods that the API server was asked to delete.
    evicted: RecentUids,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The pods that are to be evicted.
    due: HashMap<Named, Eviction>,
    /// The number of evicted pods for each rule.
    evicted_by: HashMap<Uid, u64>,
    /// When the condition of each rule was last written, and for which generation.
    reported: HashMap<Uid, (i64, Timestamp)>,
}

/// The mappers from changes to keys.
impl TaintEviction {
    /// Queues the pods that a claim is reserved for.
    fn queue_users(&self, claim: &ResourceClaim) {
        for consumer in &claim.status.reserved_for {
            let key = ObjectKey::new(&claim.meta.namespace, &consumer.name);
            if consumer.is_pod() {
                let pod = self.pods.get(&key).filter(|pod| pod.meta.uid == consumer.uid);
                pod.iter().for_each(|pod| queue_pod(pod, &self.queue));
            } else if self.groups && consumer.is_group() {
                let members = self.pods.by_index(&BY_GROUP, &IndexValue::Key(key));
                members.iter().for_each(|pod| queue_pod(pod, &self.queue));
            }
        }
    }

    /// Cancels the eviction of a deleted pod, without an event.
    fn forget(&self, pod: &Pod) {
        let named = Named::of(&pod.meta);
        if self.state.lock().due.remove(&named).is_some() {
            self.queue.cancel_timer(&Key::Pod(named));
        }
    }

    /// Queues the users of the devices whose taints changed in the pool of `slice`.
    fn pool_changed(&self, slice: &ResourceSlice, known: &mut Taints) {
        let pool = pool_of(slice);
        let new = tainted(&self.slices.by_index(&SLICES_BY_POOL, &pool));
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

    fn rule_changed(&self, change: &Change<'_, DeviceTaintRule>) {
        let (old, new): (Option<&DeviceTaintRule>, Option<&DeviceTaintRule>) = match change {
            Change::Added { new, .. } => (None, Some(new)),
            Change::Updated { old, new } if old.spec != new.spec => (Some(old), Some(new)),
            Change::Updated { .. } | Change::Resync { .. } => return,
            Change::Deleted(last) => (Some(last.object()), None),
        };
        match new {
            // The status first, before pods are evicted.
            Some(rule) => self.queue.add(Key::Rule(Named::of(&rule.meta))),
            None => {
                let (uid, mut state) = (&change.object().meta.uid, self.state.lock());
                state.evicted_by.remove(uid);
                state.reported.remove(uid);
            }
        }
        let rules = || old.iter().chain(&new).filter(|r| r.spec.taint.effect == NO_EXECUTE);
        if rules().next().is_none() {
            return;
        }
        for claim in self.claims.list() {
            let Some(Allocation(devices)) = &claim.status.allocation else { continue };
            if devices.iter().any(|device| rules().any(|rule| taints(rule, device))) {
                self.queue_users(&claim);
            }
        }
    }
}

fn taints(rule: &DeviceTaintRule, device: &AllocatedDevice) -> bool {
    let selector = rule.spec.device_selector.as_ref();
    selects(selector, &device.driver, &device.pool, &device.device)
}

impl TaintEviction {
    async fn sync(self: Arc<Self>, key: Key) -> SyncResult {
        match key {
            Key::Pod(named) => self.sync_pod(named).await,
            Key::Rule(named) => self.sync_rule(&named).await,
        }
    }

    async fn sync_pod(&self, named: Named) -> SyncResult {
        let pod = self.pods.get(&named.key).filter(|pod| pod.meta.uid == named.uid);
        let eviction = pod.as_ref().and_then(|pod| self.eviction_of(pod, &self.evicting_rules()));
        let Some(eviction) = eviction else {
            if self.state.lock().due.remove(&named).is_some() && pod.is_some() {
                self.queue.cancel_timer(&Key::Pod(named.clone()));
                self.record(&named, "Cancelling deletion");
            }
            return Ok(Next::Done);
        };
        if self.evicted.has(&named.uid) {
            return Ok(Next::Done);
        }
        self.state.lock().due.insert(named.clone(), eviction.clone());
        // More pods may be evicted soon.
        self.update_rules_later(&eviction);
        let wait = eviction.when.duration_since(self.clock.now());
        if !wait.is_zero() {
            self.queue.set_timer_after(Key::Pod(named), wait);
            return Ok(Next::Done);
        }
        self.evict(&named, &eviction).await?;
        Ok(Next::Done)
    }

    fn update_rules_later(&self, eviction: &Eviction) {
        for reason in &eviction.reasons {
            if let Reason::Rule { name, uid } = reason {
                let named = Named { key: ObjectKey::cluster(name), uid: uid.clone() };
                self.queue.add_after(Key::Rule(named), status::PERIOD);
            }
        }
    }

    fn evicting_rules(&self) -> Vec<Arc<DeviceTaintRule>> {
        let mut rules = self.rules.as_ref().map(Lister::list).unwrap_or_default();
        rules.retain(|rule| rule.spec.taint.effect == NO_EXECUTE);
        rules
    }

    fn slices_of(&self, driver: &str, pool: &str) -> Vec<Arc<ResourceSlice>> {
        self.slices.by_index(&SLICES_BY_POOL, &pool_value(driver, pool))
    }

    /// The eviction of the pod by the taints of all devices of all its claims. Upstream:
    /// `podEvictionTime`, without the claim for extended resources.
    fn eviction_of(&self, pod: &Pod, rules: &[Arc<DeviceTaintRule>]) -> Option<Eviction> {
        if pod.spec.node_name.is_empty() {
            return None;
        }
        let mut eviction = None;
        for name in claims_of(pod) {
            let (name, is_made) = match name {
                ClaimName::Given(name) => (name, false),
                ClaimName::Made(name) => (name, true),
                ClaimName::NotMade | ClaimName::NotNeeded | ClaimName::Unsupported => continue,
            };
            let key = ObjectKey::new(&pod.meta.namespace, name);
            let Some(claim) = self.claims.get(&key) else { continue };
            let Some(Allocation(devices)) = &claim.status.allocation else { continue };
            let is_its = !is_made || is_for_pod(pod, &claim, self.groups).is_ok();
            if !is_its || !is_reserved_for(pod, &claim, self.groups) {
                continue;
            }
            for device in devices {
                if let Some(of_device) = self.eviction_by(device, rules) {
                    eviction = Some(of_device.and(eviction));
                }
            }
        }
        eviction
    }

    /// The eviction of the users of an allocated device.
    fn eviction_by(
        &self,
        device: &AllocatedDevice,
        rules: &[Arc<DeviceTaintRule>],
    ) -> Option<Eviction> {
        let AllocatedDevice { driver, pool, device: name, .. } = device;
        let slices = self.slices_of(driver, pool);
        let mut published = newest(&slices).flat_map(|slice| &slice.spec.devices);
        let published = published.find(|published| published.name == *name);
        let own = published.iter().flat_map(|device| device.taints.iter().enumerate());
        let own = own.map(|(at, taint)| {
            let (driver, pool, device) = (driver.clone(), pool.clone(), name.clone());
            (Reason::Slice { driver, pool, device, taint: at }, taint)
        });
        let ruled = rules.iter().filter(|rule| taints(rule, device));
        let ruled = ruled.map(|rule| (Reason::of_rule(rule), &rule.spec.taint));
        of_device(device, own.chain(ruled))
    }
}
