//! Gives Services their addresses: decides, and writes the decision into the Service.
//!
//! # No address is given twice
//!
//! A decision sees the addresses of all Services in the cache and those that this process has chosen
//! and the cache does not show yet. Decisions are made one after the other. A chosen address stays
//! reserved until the cache shows the write, or the Service is gone; after a write whose outcome is
//! unknown the next attempt chooses the same address. Writes are conditional, so that one which was
//! delayed by a former leader fails where this one has written.
//!
//! Where two Services have one address nevertheless, as after a write of a former leader to another
//! Service, [`Claim::precedes`] says which one keeps it; the other one gets a new address.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_lite::FutureExt;
use kube_controller_manager::cache::{Lister, Scope};
use kube_controller_manager::client::{self, Client, Patch};
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::controllers::{
    Change, Controller, ControllerContext, Error, Next, Queue, QueuePolicy, SyncResult,
};
use kube_controller_manager::objects::{ConfigMap, Meta, ObjectKey, Resource, Uid, Written};
use kube_controller_manager::task::Latch;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};

use super::claims::{
    Claim, GIVEN_ADDRESSES, GIVEN_FIELD, GRANTED_ADDRESSES, Hold, IMPLEMENTATION, KUBE_VIP,
    KUBE_VIP_ADDRESSES, KUBE_VIP_EGRESS, KUBE_VIP_INTERFACE, field, given, show,
    wants_load_balancer,
};
use super::config::MapName;
use super::plan::{Plan, Refusal, plan};
use super::pools::Pools;
use super::{SOON, profile};
use crate::objects::Service;

/// How long a call waits for the caches.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often a write is repeated at once when the Service has changed meanwhile.
const ATTEMPTS: usize = 5;

/// Addresses from pools.
pub struct Assignment {
    config_map: MapName,
    parts: OnceLock<Parts>,
    state: Mutex<State>,
}

/// What the manager has for its providers.
struct Parts {
    client: Client,
    clock: SharedClock,
    services: Lister<Service>,
    maps: Lister<ConfigMap>,
    /// Open when the caches are complete.
    synced: Latch,
}

#[derive(Default)]
struct State {
    reserved: HashMap<Uid, Reservation>,
    /// The Services that have been refused, or lack an address that they prefer to have.
    waiting: HashSet<ObjectKey>,
}

/// The addresses that were chosen for a Service, which the cache may not show yet.
struct Reservation {
    addresses: Vec<IpAddr>,
    /// The version of the Service that has them; `None`: not written, or its outcome is unknown.
    written: Option<u64>,
}

impl State {
    fn addresses(&self, uid: &Uid) -> &[IpAddr] {
        self.reserved.get(uid).map_or(&[], |reservation| &reservation.addresses)
    }

    fn claim(&self, service: &Service, pools: &Pools) -> Claim {
        let shares = pools.allows_sharing(&service.meta.namespace);
        Claim::of(service, self.addresses(&service.meta.uid), shares)
    }

    /// Forgets the reservations that the cache shows by now, and those of Services that are gone.
    fn prune(&mut self, services: &[Arc<Service>]) {
        if self.reserved.is_empty() {
            return;
        }
        let seen: HashMap<&Uid, u64> = services
            .iter()
            .map(|service| (&service.meta.uid, service.meta.resource_version))
            .collect();
        self.reserved.retain(|uid, reservation| match seen.get(uid) {
            None => false,
            Some(seen) => reservation.written.is_none_or(|written| *seen < written),
        });
    }

    /// Decides which addresses a Service gets and reserves them. Returns the decision with the
    /// patch that writes it into the Service; without a patch the Service shows all of it. The
    /// addresses are reserved then too: the Service may be newer than the cache. `services`: all of
    /// the cache.
    fn decide(
        &mut self,
        service: &Service,
        services: &[Arc<Service>],
        pools: &Pools,
    ) -> Result<(Plan, Option<Value>), Refusal> {
        self.prune(services);
        let uid = &service.meta.uid;
        let others: Vec<Claim> = services
            .iter()
            .filter(|other| other.meta.uid != *uid)
            .map(|other| self.claim(other, pools))
            .filter(|claim| !claim.addresses.is_empty())
            .collect();
        let own = self.claim(service, pools);
        let planned = plan(service, &own, self.addresses(uid), &others, pools)?;
        let change = plan_patch(service, &planned, pools);
        let written = change.is_none().then_some(service.meta.resource_version);
        let reservation = Reservation { addresses: planned.addresses.clone(), written };
        self.reserved.insert(uid.clone(), reservation);
        Ok((planned, change))
    }

    /// Records the version of the Service that has the reserved addresses. The reservation ends
    /// when the cache shows that version.
    fn note_written(&mut self, uid: &Uid, version: u64) {
        if let Some(reservation) = self.reserved.get_mut(uid) {
            reservation.written = Some(version);
        }
    }

    /// Ends the reservation of a Service: at once if it is gone (`None`), else when the cache shows
    /// `version`. In that version the Service has given its addresses back, or has them while it is
    /// being deleted. The cache may show an older one, which does not show that: with leader
    /// migration it is not the cache of the caller.
    fn release(&mut self, uid: &Uid, version: Option<u64>) {
        match version {
            Some(version) => self.note_written(uid, version),
            None => drop(self.reserved.remove(uid)),
        }
    }
}

/// Why a Service has no addresses.
#[derive(Debug)]
pub enum Failure {
    /// It may have none.
    Refused(Refusal),
    /// A request failed.
    Api(client::Error),
    /// It keeps changing, or the caches are not complete yet.
    Busy(&'static str),
    /// It is gone, or no longer wants addresses.
    Gone,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Refused(refusal) => refusal.fmt(f),
            Failure::Api(error) => error.fmt(f),
            Failure::Busy(why) => f.write_str(why),
            Failure::Gone => f.write_str("the Service no longer wants a load balancer"),
        }
    }
}

impl From<client::Error> for Failure {
    fn from(error: client::Error) -> Failure {
        Failure::Api(error)
    }
}

impl Assignment {
    pub fn new(config_map: MapName) -> Arc<Assignment> {
        Arc::new(Assignment { config_map, parts: OnceLock::new(), state: Mutex::default() })
    }

    /// Returns the controller that assigns again when an address comes free, when the pools change,
    /// and when two Services have one address. What it writes into a Service makes the service
    /// controller sync that Service again.
    ///
    /// # Errors
    /// When there is no client for it.
    pub fn controller(
        self: &Arc<Self>,
        context: &Arc<ControllerContext>,
    ) -> Result<Controller, String> {
        let mut c = Controller::new(profile("bare-address-pools"), context)?;
        let services = c.lister::<Service>();
        let MapName { namespace, name } = self.config_map.clone();
        let maps = c.lister_of::<ConfigMap>(Scope {
            namespace: Some(namespace),
            field_selector: Some(format!("metadata.name={name}")),
            ..Scope::all(ConfigMap::RESOURCE)
        });
        let queue = c.queue(QueuePolicy::default());
        let all = ObjectKey::cluster("pools");
        let key = all.clone();
        c.watch(&services, &queue, move |change: Change<'_, Service>, queue: &Queue| {
            if changes_claims(&change) {
                queue.add(key.clone());
            }
        });
        c.watch(&maps, &queue, move |_: Change<'_, ConfigMap>, queue: &Queue| {
            queue.add(all.clone());
        });
        let synced = Latch::new();
        let parts =
            Parts { client: c.client(), clock: c.clock(), services, maps, synced: synced.clone() };
        if self.parts.set(parts).is_err() {
            return Err("the provider is initialized twice".to_owned());
        }
        // Background work starts when the caches are complete.
        c.background(move |stop| async move {
            synced.open();
            stop.stopped().await;
        });
        c.sync(queue, self, Assignment::settle);
        Ok(c)
    }

    /// Returns the client and the caches once the caches are complete; fails after `PATIENCE`.
    async fn parts(&self) -> Result<&Parts, Failure> {
        let parts = self.parts.get().ok_or(Failure::Busy("the provider is not initialized"))?;
        let synced = async {
            parts.synced.opened().await;
            Ok(parts)
        };
        let late = async {
            parts.clock.sleep(PATIENCE).await;
            Err(Failure::Busy("the caches of Services and of the address pools are not complete"))
        };
        synced.or(late).await
    }

    /// Gives the Service its addresses: they are in its annotations when this returns. A Service
    /// that cannot get them now, or lacks one that it prefers to have, is kept in `waiting`.
    /// `cached`: the Service in the cache of the caller.
    ///
    /// # Errors
    /// See [`Failure`].
    pub async fn assign(&self, cached: &Service) -> Result<Plan, Failure> {
        let parts = self.parts().await?;
        let assigned = self.attempt(parts, cached).await;
        let waits = match &assigned {
            Ok(plan) => plan.lacks.is_some(),
            Err(failure) => !matches!(failure, Failure::Gone),
        };
        let mut state = self.state.lock();
        match waits {
            true => state.waiting.insert(cached.meta.key()),
            false => state.waiting.remove(&cached.meta.key()),
        };
        assigned
    }

    /// Decides for a Service by the cache. If something is to be written, or the Service is refused
    /// although it has reserved addresses, decides again by the live Service and writes that,
    /// repeated after conflicts.
    ///
    /// # Errors
    /// `Busy` while the cache is older than `cached`, and after too many conflicts; `Gone` if the
    /// Service may have no addresses. See [`Failure`].
    async fn attempt(&self, parts: &Parts, cached: &Service) -> Result<Plan, Failure> {
        let (key, uid) = (cached.meta.key(), &cached.meta.uid);
        // With leader migration the caller has another cache.
        let known = parts.services.get(&key).filter(|known| {
            known.meta.uid == *uid && known.meta.resource_version >= cached.meta.resource_version
        });
        let known = known.ok_or(Failure::Busy("the cache of Services is behind"))?;
        if !may_have(&known) {
            return Err(Failure::Gone);
        }
        match self.decide(parts, &known) {
            Ok((plan, None)) => return Ok(plan),
            Err(refusal) if self.state.lock().addresses(uid).is_empty() => {
                return Err(Failure::Refused(refusal));
            }
            // The live Service says whether the reservation is still right.
            Ok((_, Some(_))) | Err(_) => {}
        }
        for _ in 0..ATTEMPTS {
            // The cached one is older than the finalizer that the service controller has just set.
            let live = match parts.client.get::<Service>(&key).await {
                Err(error) if error.is_not_found() => return Err(self.forget_gone(uid)),
                live => live?,
            };
            if live.meta.uid != *uid || !may_have(&live) {
                return Err(self.forget_gone(uid));
            }
            let (plan, change) = self.decide(parts, &live).map_err(|refusal| {
                self.state.lock().reserved.remove(uid);
                Failure::Refused(refusal)
            })?;
            let Some(change) = change else { return Ok(plan) };
            match write(&parts.client, &live.meta, change).await {
                Ok(version) => {
                    self.state.lock().note_written(uid, version);
                    return Ok(plan);
                }
                Err(error) if error.is_conflict() => {}
                // The reservation stays, as it may be of an earlier write too: the next attempt
                // uses it.
                Err(error) => return Err(error.into()),
            }
        }
        Err(Failure::Busy("the Service changes all the time"))
    }

    /// Forgets the reservation of a Service that is gone, and returns the failure that says so.
    fn forget_gone(&self, uid: &Uid) -> Failure {
        self.state.lock().reserved.remove(uid);
        Failure::Gone
    }

    fn pools(&self, parts: &Parts) -> Pools {
        let key = ObjectKey::new(&self.config_map.namespace, &self.config_map.name);
        Pools::new(parts.maps.get(&key).map(|map| map.data.clone()))
    }

    /// Decides as [`State::decide`], with the Services and pools of the caches.
    fn decide(&self, parts: &Parts, service: &Service) -> Result<(Plan, Option<Value>), Refusal> {
        let pools = self.pools(parts);
        let mut state = self.state.lock();
        // Under the lock: an older list lacks what a later one has made others forget.
        state.decide(service, &parts.services.list(), &pools)
    }

    /// Removes its addresses from a Service that no longer wants them. A Service that is being
    /// deleted is not changed: it has its addresses until it is gone.
    ///
    /// # Errors
    /// When they cannot be removed from the Service.
    pub async fn release(&self, cached: &Service) -> Result<(), Failure> {
        let parts = self.parts().await?;
        self.state.lock().waiting.remove(&cached.meta.key());
        let mut service = cached.clone();
        for _ in 0..ATTEMPTS {
            let change = match service.meta.is_being_deleted() {
                true => None,
                false => removal(&service),
            };
            let released = match change {
                // Nothing to write: it has its addresses while it is being deleted, else none.
                None => Some(service.meta.resource_version),
                Some(change) => match write(&parts.client, &service.meta, change).await {
                    Ok(version) => Some(version),
                    Err(error) if error.is_not_found() => None,
                    Err(error) if error.is_conflict() => {
                        match parts.client.get::<Service>(&service.meta.key()).await {
                            Err(error) if error.is_not_found() => None,
                            live => {
                                service = live?;
                                match service.meta.uid == cached.meta.uid {
                                    true => continue,
                                    false => None,
                                }
                            }
                        }
                    }
                    Err(error) => return Err(error.into()),
                },
            };
            self.state.lock().release(&cached.meta.uid, released);
            return Ok(());
        }
        Err(Failure::Busy("the Service changes all the time"))
    }

    /// Returns whether the Service has addresses of this provider, or they are reserved for it. The
    /// label counts: it is on every Service with addresses, also with those that a person asked
    /// for, which are not among the given.
    pub fn has_given(&self, service: &Service) -> bool {
        let is_labelled = service.meta.labels.get(IMPLEMENTATION) == Some(KUBE_VIP);
        is_labelled
            || !given(service).is_empty()
            || self.state.lock().reserved.contains_key(&service.meta.uid)
    }

    /// Assigns addresses to each Service of `unsettled`. Retried after a failed request and after a
    /// `Busy`; a refusal is only logged, as the next change of a Service or of the pools queues
    /// this again.
    async fn settle(self: Arc<Self>, _: ObjectKey) -> SyncResult {
        let (mut failure, mut busy) = (None, None);
        for service in self.unsettled() {
            match self.assign(&service).await {
                Err(Failure::Api(error)) => failure = Some(error),
                Err(Failure::Busy(why)) => {
                    let why = format!("Service {}: {why}", service.meta.key());
                    busy = Some(Error::Wait { after: SOON, why });
                }
                Err(other) => log::debug!("Service {}: {other}", service.meta.key()),
                Ok(_) => {}
            }
        }
        failure.map(Error::from).or(busy).map_or(Ok(Next::Done), Err)
    }

    /// Returns the Services that wait for addresses, and those that have an address which another
    /// one keeps; the oldest first. Forgets what is known of Services that are gone.
    fn unsettled(&self) -> Vec<Arc<Service>> {
        let Some(parts) = self.parts.get() else { return Vec::new() };
        let pools = self.pools(parts);
        let mut state = self.state.lock();
        let services = parts.services.list();
        state.prune(&services);
        let services: Vec<Arc<Service>> =
            services.into_iter().filter(|service| may_have(service)).collect();
        let claims: Vec<Claim> =
            services.iter().map(|service| state.claim(service, &pools)).collect();
        let losing = losing_claims(&claims);
        let present: HashSet<ObjectKey> =
            services.iter().map(|service| service.meta.key()).collect();
        state.waiting.retain(|key| present.contains(key));
        let mut found: Vec<Arc<Service>> = services
            .iter()
            .enumerate()
            .filter(|(at, service)| {
                losing.contains(at) || state.waiting.contains(&service.meta.key())
            })
            .map(|(_, service)| service.clone())
            .collect();
        found.sort_by_key(|service| {
            (service.meta.creation_timestamp, service.meta.key().to_string())
        });
        found
    }
}

/// Returns whether a Service is to have addresses.
fn may_have(service: &Service) -> bool {
    wants_load_balancer(service) && !service.meta.is_being_deleted()
}

/// Returns the places in `claims` of those that have an address which another claim keeps.
fn losing_claims(claims: &[Claim]) -> BTreeSet<usize> {
    let mut having: BTreeMap<IpAddr, Vec<usize>> = BTreeMap::new();
    for (at, claim) in claims.iter().enumerate() {
        for (address, hold) in &claim.addresses {
            if *hold > Hold::Requested {
                having.entry(*address).or_default().push(at);
            }
        }
    }
    let mut losing = BTreeSet::new();
    for (address, having) in having.into_iter().filter(|(_, having)| having.len() > 1) {
        for &one in &having {
            let loses_to = |other: &usize| {
                *other != one
                    && claims[*other].precedes(&claims[one], address)
                    && claims[one].shares(&claims[*other], address).is_err()
            };
            if having.iter().any(loses_to) {
                losing.insert(one);
            }
        }
    }
    losing
}

/// Returns whether a change may free an address, or give one address to two Services.
fn changes_claims(change: &Change<'_, Service>) -> bool {
    let claim = |service: &Service| Claim::of(service, &[], false);
    match change {
        Change::Updated { old, new } => claim(old) != claim(new),
        Change::Added { .. } | Change::Deleted(_) => !claim(change.object()).addresses.is_empty(),
        // A resync checks all claims again.
        Change::Resync { .. } => true,
    }
}

/// Returns the patch that writes a plan into the Service; `None`: the Service shows all of it.
/// Where a person asks by kube-vip's annotation, that annotation stays and only the grant is
/// written.
fn plan_patch(service: &Service, plan: &Plan, pools: &Pools) -> Option<Value> {
    let annotations = &service.meta.annotations;
    let (shown, before) = (annotations.get(KUBE_VIP_ADDRESSES), annotations.get(GIVEN_ADDRESSES));
    let mut changed = Map::new();
    // A person has set kube-vip's annotation if it differs from what this provider has written.
    let is_persons = shown.is_some_and(|shown| !shown.is_empty() && Some(shown) != before);
    let granted = annotations.get(GRANTED_ADDRESSES);
    let text = show(&plan.addresses);
    if plan.is_requested && is_persons {
        if before.is_some() {
            changed.insert(GIVEN_ADDRESSES.to_owned(), Value::Null);
        }
        if granted != Some(text.as_str()) {
            changed.insert(GRANTED_ADDRESSES.to_owned(), text.into());
        }
    } else {
        if granted.is_some() {
            changed.insert(GRANTED_ADDRESSES.to_owned(), Value::Null);
        }
        if shown != Some(text.as_str()) || before != Some(text.as_str()) {
            changed.insert(KUBE_VIP_ADDRESSES.to_owned(), text.clone().into());
            changed.insert(GIVEN_ADDRESSES.to_owned(), text.into());
            let interface = pools.interface(&service.meta.namespace);
            if let Some(interface) =
                interface.filter(|_| !annotations.contains_key(KUBE_VIP_INTERFACE))
            {
                changed.insert(KUBE_VIP_INTERFACE.to_owned(), interface.into());
            }
        }
    }
    let wanted = wanted_field(service, plan);
    let new_field = changed_field(service, wanted.as_deref(), &mut changed);
    let is_labelled = service.meta.labels.get(IMPLEMENTATION) == Some(KUBE_VIP);
    if changed.is_empty() && new_field.is_none() && is_labelled {
        return None;
    }
    let labels = json!({ IMPLEMENTATION: KUBE_VIP });
    Some(patch_of(json!({ "annotations": changed, "labels": labels }), new_field))
}

fn patch_of(metadata: Value, new_field: Option<Value>) -> Value {
    let mut patch = json!({ "metadata": metadata });
    if let Some(field) = new_field {
        patch["spec"] = json!({ "loadBalancerIP": field });
    }
    patch
}

/// Returns the value that `spec.loadBalancerIP` is to have: the first known address, if kube-vip
/// sends the egress traffic of the Service, else none.
fn wanted_field(service: &Service, plan: &Plan) -> Option<String> {
    let is_needed = service.meta.annotations.get(KUBE_VIP_EGRESS) == Some("true");
    // By DHCP the announcer gets another one.
    let known = plan.addresses.iter().find(|address| !address.is_unspecified());
    known.filter(|_| is_needed).map(IpAddr::to_string)
}

/// Returns the new value of `spec.loadBalancerIP`, null to remove it; `None`: it stays, as a
/// person's value does. Adds to `changed` the annotation that says that the value is this
/// provider's.
fn changed_field(
    service: &Service,
    wanted: Option<&str>,
    changed: &mut Map<String, Value>,
) -> Option<Value> {
    let own = service.meta.annotations.get(GIVEN_FIELD);
    let present = field(service);
    let is_persons = present.is_some() && present != own;
    let wanted = wanted.filter(|_| !is_persons);
    if own != wanted {
        changed.insert(GIVEN_FIELD.to_owned(), json!(wanted));
    }
    (!is_persons && present != wanted).then(|| json!(wanted))
}

/// Returns the patch that removes what this provider has written into a Service; `None`: it has
/// nothing of it. A person's own annotation, field and label stay, and kube-vip's interface does:
/// nothing says whose it is.
fn removal(service: &Service) -> Option<Value> {
    let annotations = &service.meta.annotations;
    let given = annotations.get(GIVEN_ADDRESSES);
    let is_granted = annotations.contains_key(GRANTED_ADDRESSES);
    let is_labelled = service.meta.labels.get(IMPLEMENTATION) == Some(KUBE_VIP);
    let mut removed = Map::new();
    let new_field = changed_field(service, None, &mut removed);
    if given.is_none() && !is_granted && !is_labelled && removed.is_empty() {
        return None;
    }
    if given.is_some() {
        removed.insert(GIVEN_ADDRESSES.to_owned(), Value::Null);
        if annotations.get(KUBE_VIP_ADDRESSES) == given {
            removed.insert(KUBE_VIP_ADDRESSES.to_owned(), Value::Null);
        }
    }
    if is_granted {
        removed.insert(GRANTED_ADDRESSES.to_owned(), Value::Null);
    }
    let mut metadata = json!({ "annotations": removed });
    if is_labelled {
        metadata["labels"] = json!({ IMPLEMENTATION: null });
    }
    Some(patch_of(metadata, new_field))
}

/// Patches a Service if it still has the uid and version of `meta`, and returns the new version.
async fn write(client: &Client, meta: &Meta, mut patch: Value) -> client::Result<u64> {
    patch["metadata"]["uid"] = meta.uid.to_string().into();
    patch["metadata"]["resourceVersion"] = meta.resource_version.to_string().into();
    let patch = Patch::Merge(patch);
    let written: Written =
        client.resource(&Service::RESOURCE).patch_for_metadata(&meta.key(), &patch).await?;
    Ok(written.meta.resource_version)
}

#[cfg(test)]
mod tests {
    use kube_controller_manager::objects::Labels;

    use super::*;

    /// A Service at a version, with these annotations.
    fn service(name: &str, version: u64, annotations: Value) -> Service {
        serde_json::from_value(json!({
            "metadata": {
                "name": name, "namespace": "default", "uid": name,
                "resourceVersion": version.to_string(), "annotations": annotations,
                "labels": { IMPLEMENTATION: KUBE_VIP },
            },
            "spec": { "type": "LoadBalancer", "ports": [{ "port": 80 }] },
        }))
        .expect("a Service")
    }

    fn with_given(name: &str, version: u64) -> Service {
        let annotations = json!({ KUBE_VIP_ADDRESSES: "10.0.0.1", GIVEN_ADDRESSES: "10.0.0.1" });
        service(name, version, annotations)
    }

    fn pools() -> Pools {
        let entries = [("range-global", "10.0.0.1-10.0.0.9")];
        Pools::new(Some(entries.into_iter().collect::<Labels>()))
    }

    /// What is known of the write of an address.
    #[derive(Clone, Copy, Debug)]
    enum Outcome {
        Unknown,
        Written(u64),
        /// The live Service shows it, and was decided on again.
        Live(u64),
    }

    #[test]
    fn an_address_is_reserved_until_the_cache_shows_it() {
        let pools = pools();
        let bare = |version| Some(service("a", version, json!({})));
        for (outcome, cached, other, is_reserved) in [
            (Outcome::Unknown, bare(1), "10.0.0.2", true),
            (Outcome::Unknown, bare(9), "10.0.0.2", true),
            (Outcome::Unknown, None, "10.0.0.1", false),
            (Outcome::Written(5), bare(1), "10.0.0.2", true),
            (Outcome::Written(5), bare(4), "10.0.0.2", true),
            (Outcome::Written(5), Some(with_given("a", 5)), "10.0.0.2", false),
            // Somebody has removed the annotations.
            (Outcome::Written(5), bare(6), "10.0.0.1", false),
            (Outcome::Written(5), None, "10.0.0.1", false),
            (Outcome::Live(5), bare(1), "10.0.0.2", true),
            (Outcome::Live(5), Some(with_given("a", 5)), "10.0.0.2", false),
        ] {
            let text = format!("{outcome:?}, cached {cached:?}");
            let mut state = State::default();
            let first = service("a", 1, json!({}));
            let new = service("b", 2, json!({}));
            let before = [Arc::new(first.clone()), Arc::new(new.clone())];
            let (plan, change) = state.decide(&first, &before, &pools).expect(&text);
            assert_eq!((show(&plan.addresses).as_str(), change.is_some()), ("10.0.0.1", true));
            match outcome {
                Outcome::Unknown => {}
                Outcome::Written(version) => state.note_written(&first.meta.uid, version),
                Outcome::Live(version) => {
                    let live = with_given("a", version);
                    let (plan, change) = state.decide(&live, &before, &pools).expect(&text);
                    assert_eq!((show(&plan.addresses).as_str(), change), ("10.0.0.1", None));
                }
            }
            let services: Vec<Arc<Service>> =
                cached.into_iter().chain([new.clone()]).map(Arc::new).collect();
            let (plan, _) = state.decide(&new, &services, &pools).expect(&text);
            assert_eq!(show(&plan.addresses), other, "{text}");
            assert_eq!(state.reserved.contains_key(&first.meta.uid), is_reserved, "{text}");
        }
    }

    /// A Service that is being deleted has its address until it is gone, also while the cache shows
    /// it as it was before the address was written.
    #[test]
    fn a_released_address_is_reserved_until_the_cache_shows_the_release() {
        let pools = pools();
        for (released, cached, other) in [
            // It is being deleted, with its annotations, in version 6.
            (Some(6), Some(service("a", 1, json!({}))), "10.0.0.2"),
            (Some(6), Some(with_given("a", 5)), "10.0.0.2"),
            (Some(6), Some(with_given("a", 6)), "10.0.0.2"),
            (Some(6), None, "10.0.0.1"),
            // It has another type, and no annotations, in version 6.
            (Some(6), Some(service("a", 6, json!({}))), "10.0.0.1"),
            // It is gone.
            (None, Some(service("a", 1, json!({}))), "10.0.0.1"),
        ] {
            let text = format!("{released:?}, cached {cached:?}");
            let mut state = State::default();
            let first = service("a", 1, json!({}));
            let new = service("b", 2, json!({}));
            state.decide(&first, &[Arc::new(first.clone())], &pools).expect(&text);
            state.note_written(&first.meta.uid, 5);
            state.release(&first.meta.uid, released);
            let services: Vec<Arc<Service>> =
                cached.into_iter().chain([new.clone()]).map(Arc::new).collect();
            let (plan, _) = state.decide(&new, &services, &pools).expect(&text);
            assert_eq!(show(&plan.addresses), other, "{text}");
        }
    }

    /// kube-vip removes the rules of its egress by the field alone.
    #[test]
    fn the_field_is_set_for_egress_and_a_persons_stays() {
        // The annotation and the field in a patch: "-" stays, "" is removed.
        let shown = |patch: Option<Value>| {
            let at = |path: &str| {
                let value = patch.as_ref().and_then(|patch| patch.pointer(path));
                value.map_or("-".to_owned(), |value| value.as_str().unwrap_or_default().to_owned())
            };
            let annotation = format!("/metadata/annotations/{}", GIVEN_FIELD.replace('/', "~1"));
            [at(&annotation), at("/spec/loadBalancerIP")]
        };
        let (given, other) = ("10.0.0.1", "10.0.0.7");
        for (egress, field, own, planned, removed) in [
            (false, None, None, ["-", "-"], ["-", "-"]),
            (true, None, None, [given, given], ["-", "-"]),
            (true, Some(given), Some(given), ["-", "-"], ["", ""]),
            (true, Some(other), Some(other), [given, given], ["", ""]),
            (true, None, Some(given), ["-", given], ["", "-"]),
            (false, Some(given), Some(given), ["", ""], ["", ""]),
        ] {
            let text = format!("{egress} {field:?} {own:?}");
            let mut annotations = json!({ KUBE_VIP_ADDRESSES: given, GIVEN_ADDRESSES: given });
            if egress {
                annotations[KUBE_VIP_EGRESS] = "true".into();
            }
            if let Some(own) = own {
                annotations[GIVEN_FIELD] = own.into();
            }
            let mut of = service("a", 1, annotations);
            of.spec.load_balancer_ip = field.map(str::to_owned);
            let (_, change) = State::default().decide(&of, &[], &pools()).expect(&text);
            assert_eq!(shown(change), planned, "{text}");
            assert_eq!(shown(removal(&of)), removed, "{text}");
        }
        // A person's own value is a request, and stays.
        let annotations = json!({ KUBE_VIP_EGRESS: "true", GIVEN_FIELD: given });
        let mut of = service("a", 1, annotations);
        of.spec.load_balancer_ip = Some(other.to_owned());
        let (plan, change) = State::default().decide(&of, &[], &pools()).expect("granted");
        assert_eq!(show(&plan.addresses), other);
        assert_eq!(shown(change), ["", "-"]);
        assert_eq!(shown(removal(&of)), ["", "-"]);
    }

    #[test]
    fn a_granted_request_is_recorded_and_kept_from_others() {
        let (pools, mut state) = (pools(), State::default());
        let request = |name, granted: Option<&str>| {
            let mut annotations = json!({ KUBE_VIP_ADDRESSES: "10.0.0.1" });
            if let Some(granted) = granted {
                annotations[GRANTED_ADDRESSES] = granted.into();
            }
            service(name, 1, annotations)
        };
        let (plan, change) = state.decide(&request("z", None), &[], &pools).expect("granted");
        assert_eq!(show(&plan.addresses), "10.0.0.1");
        let change = change.expect("a change");
        assert_eq!(change["metadata"]["annotations"], json!({ GRANTED_ADDRESSES: "10.0.0.1" }));
        // A former leader's grant is known from the Service alone, with any names.
        let granted = request("z", Some("10.0.0.1"));
        let services = [Arc::new(granted.clone()), Arc::new(request("a", None))];
        let mut state = State::default();
        let refused = state.decide(&services[1], &services, &pools);
        assert!(matches!(refused, Err(Refusal::Taken { .. })), "{refused:?}");
        let (_, change) = state.decide(&granted, &services, &pools).expect("granted");
        assert_eq!(change, None);
        let removed = removal(&granted).expect("a change");
        assert_eq!(removed["metadata"]["annotations"], json!({ GRANTED_ADDRESSES: null }));
        // Another request is another grant.
        let other = request("z", Some("10.0.0.7"));
        let (_, change) = State::default().decide(&other, &[], &pools).expect("granted");
        let change = change.expect("a change");
        assert_eq!(change["metadata"]["annotations"], json!({ GRANTED_ADDRESSES: "10.0.0.1" }));
    }

    #[test]
    fn an_address_whose_write_is_unknown_is_chosen_again() {
        let (pools, mut state) = (pools(), State::default());
        let first = service("a", 1, json!({}));
        let services = [Arc::new(first.clone())];
        state.decide(&first, &services, &pools).expect("an address");
        // The pool prefers another one by now.
        let entries = [("range-global", "10.0.0.1-10.0.0.9"), ("search-order", "desc")];
        let pools = Pools::new(Some(entries.into_iter().collect::<Labels>()));
        let (plan, _) = state.decide(&first, &services, &pools).expect("an address");
        assert_eq!(show(&plan.addresses), "10.0.0.1");
    }
}
