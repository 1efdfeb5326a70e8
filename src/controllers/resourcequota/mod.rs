//! Keeps the status of ResourceQuotas: the usage of the resources that they limit.
//! Upstream: `pkg/controller/resourcequota`, `pkg/quota/v1`.

mod charges;
mod devices;
mod evaluator;
pub mod kinds;
pub mod pods;

use std::sync::Arc;
use std::time::Duration;

use self::charges::Charges;
use self::devices::{Extended, resource_claims};
use self::evaluator::{Evaluator, Registry};
use self::kinds::{claim_changes_usage, service_changes_usage, services, volume_claims};
use self::pods::Pods;
use crate::cache::{Lister, MetadataHandler};
use crate::client::{ApiResource, Client, ListOptions};
use crate::clock::SharedClock;
use crate::controllers::runner::Change;
use crate::controllers::runner::resource_monitors::Monitors;
use crate::controllers::{Controller, Error, Next, Queue, QueuePolicy, SyncResult};
use crate::objects::{
    Istr, Meta, Object, ObjectKey, PersistentVolumeClaim, Pod, Quantity, Resource, ResourceClaim,
    ResourceList, ResourceQuota, ResourceQuotaStatus, ResourceType, Service,
};

/// How long workers wait for the DeviceClasses, which a server need not serve.
const CLASSES_PATIENCE: Duration = Duration::from_secs(10);

/// The delay before the first count of new limits is repeated. Objects that are created during it
/// are charged to nothing, and then no event causes another count.
const SECOND_COUNT: Duration = Duration::from_secs(5);

/// Sets up the controller `resourcequota-controller`.
pub fn controller(c: &mut Controller) -> Result<(), String> {
    let queue = c.queue(QueuePolicy::default());
    let urgent = c.queue_named("resourcequota_priority", QueuePolicy::default());
    let quotas = c.lister::<ResourceQuota>();
    let this = Arc::new(Quotas {
        client: c.client(),
        clock: c.clock(),
        quotas: quotas.clone(),
        pods: c.lister(),
        pod_level_resources: c.feature("PodLevelResources"),
        registry: registry(c),
        queue: queue.clone(),
        recent_charges: Charges::default(),
    });
    watch_quotas(c, &this, &quotas, &urgent);
    watch_updates(c, &this);
    watch_terminating_pods(c, &this);
    for queue in [queue, urgent] {
        c.sync(queue, &this, Quotas::sync);
    }
    let period = c.options().resource_quota_sync_period;
    if !period.is_zero() {
        let all = this.clone();
        c.every(period, move || {
            all.quotas.list().iter().for_each(|quota| all.queue.add(quota.meta.key()));
            async { Ok(()) }
        });
    }
    Monitors::new(c, this.client.clone(), is_counted).follow(c, move |resource, informer| {
        let evaluator = this.registry.evaluator_for(resource, informer);
        Box::new(Replenish { quotas: this.clone(), evaluator })
    });
    Ok(())
}

/// Makes the registry with the built-in evaluators, which do more than count objects.
fn registry(c: &mut Controller) -> Registry {
    let pods = c.lister::<Pod>();
    let pod_level_resources = c.feature("PodLevelResources");
    let evaluator = Pods { pods: pods.clone(), clock: c.clock(), pod_level_resources };
    let evaluator: Arc<dyn Evaluator> = Arc::new(evaluator);
    let mut built_in = vec![
        (Pod::RESOURCE, evaluator),
        (Service::RESOURCE, services(c.lister())),
        (PersistentVolumeClaim::RESOURCE, volume_claims(c.lister())),
    ];
    if c.feature("DynamicResourceAllocation") {
        let extended = c.feature("DRAExtendedResource").then(|| Extended {
            classes: c.optional(CLASSES_PATIENCE),
            pods,
            clock: c.clock(),
        });
        // The monitors wait for the claims if they are served.
        let claims = resource_claims(c.optional(Duration::ZERO), extended);
        built_in.push((ResourceClaim::RESOURCE, claims));
    }
    Registry::new(built_in)
}

/// Queues quotas whose limits change; those whose status lacks a usage go to `urgent`. Records what
/// the status of each says is used.
fn watch_quotas(
    c: &mut Controller,
    this: &Arc<Quotas>,
    quotas: &Lister<ResourceQuota>,
    urgent: &Queue,
) {
    let (this, urgent) = (this.clone(), urgent.clone());
    let queue = this.queue.clone();
    c.watch(quotas, &queue, move |change, queue| {
        match &change {
            Change::Deleted(last) => this.recent_charges.forget(&last.object().meta.key()),
            change => this.record_used(change.object()),
        }
        let quota = match change {
            Change::Added { new, .. } => new,
            // Changes of the status are our own, or the API server's when it charges new objects.
            Change::Updated { old, new } if !old.limits().amounts_equal(&new.limits()) => new,
            _ => return,
        };
        let queue = if this.lacks_usage(quota) { &urgent } else { queue };
        queue.add(quota.meta.key());
    });
}

/// Queues quotas for updates that change usage. [`Replenish`] queues them for deletions.
fn watch_updates(c: &mut Controller, this: &Arc<Quotas>) {
    let clock = c.clock();
    watch_kind(c, this, move |old: &Pod, new| pods::changes_usage(old, new, clock.now()));
    watch_kind(c, this, service_changes_usage);
    watch_kind(c, this, claim_changes_usage);
}

/// Queues quotas for the moment at which a pod that is being deleted, and still exists, is charged
/// no longer. No event marks it: upstream counts again in the next full pass.
fn watch_terminating_pods(c: &mut Controller, this: &Arc<Quotas>) {
    let (quotas, queue) = (this.clone(), this.queue.clone());
    let pods = this.pods.clone();
    c.watch(&pods, &queue, move |change, queue| {
        let (Change::Added { new, .. } | Change::Updated { new, .. }) = change else { return };
        if let Some(after) = pods::next_release([new], quotas.clock.now()) {
            for quota in quotas.limiting_pods(&new.meta.namespace) {
                queue.add_after(quota.meta.key(), after);
            }
        }
    });
}

/// Queues the quotas of a namespace when an update of an object `changes_usage`.
fn watch_kind<T: Object + Resource>(
    c: &mut Controller,
    this: &Arc<Quotas>,
    changes_usage: impl Fn(&T, &T) -> bool + Send + 'static,
) {
    let objects = c.lister::<T>();
    let (quotas, queue) = (this.clone(), this.queue.clone());
    c.watch(&objects, &queue, move |change, _| {
        if let Change::Updated { old, new } = change
            && changes_usage(old, new)
            && let Some(evaluator) = quotas.registry.built_in(&T::RESOURCE)
        {
            quotas.replenish(&**evaluator, &new.meta().namespace);
        }
    });
}

/// Returns whether the objects of a resource are counted by quotas.
/// Upstream: `GetQuotableResources`, `DefaultIgnoredResources`.
fn is_counted(found: &ApiResource) -> bool {
    let ResourceType { plural, group, namespaced, .. } = &found.resource;
    let is_ignored = match group.as_ref() {
        "" => matches!(plural.as_ref(), "bindings" | "componentstatuses" | "events"),
        "events.k8s.io" => plural == "events",
        "authentication.k8s.io" | "authorization.k8s.io" => plural.ends_with("reviews"),
        _ => false,
    };
    *namespaced && !is_ignored && found.supports(&["create", "list", "watch", "delete"])
}

struct Quotas {
    client: Client,
    clock: SharedClock,
    quotas: Lister<ResourceQuota>,
    pods: Lister<Pod>,
    /// The gate `PodLevelResources`.
    pod_level_resources: bool,
    registry: Registry,
    queue: Queue,
    recent_charges: Charges,
}

impl Quotas {
    /// Returns whether the status lacks a limit, or the usage of a limited resource.
    fn lacks_usage(&self, quota: &ResourceQuota) -> bool {
        let ResourceQuotaStatus { hard, used } = &quota.status;
        !quota.limits().amounts_equal(&hard.quantities())
            || hard.names().any(|name| !used.has(name) && self.registry.measures(name))
    }

    /// Queues the quotas of a namespace that limit what `evaluator` measures. The spec counts too:
    /// a new quota's first count may have begun before the change, and its status is not known yet.
    fn replenish(&self, evaluator: &dyn Evaluator, namespace: &str) {
        for quota in self.quotas.in_namespace(namespace) {
            let mut limits = quota.spec.hard.names().chain(quota.status.hard.names());
            if limits.any(|name| evaluator.measures(name)) {
                self.queue.add(quota.meta.key());
            }
        }
    }

    /// Returns the quotas of a namespace that limit what pods use.
    fn limiting_pods(&self, namespace: &str) -> Vec<Arc<ResourceQuota>> {
        let mut quotas = self.quotas.in_namespace(namespace);
        quotas.retain(|quota| self.limits_pods(quota));
        quotas
    }

    fn limits_pods(&self, quota: &ResourceQuota) -> bool {
        quota.spec.hard.names().any(|name| self.is_of_pods(name))
    }

    /// Returns the part of the quota's usage that pods have.
    fn used_by_pods(&self, quota: &ResourceQuota) -> ResourceList {
        let mut used = quota.status.used.quantities();
        used.retain(|name| self.is_of_pods(name));
        used
    }

    /// Records the usage of pods in a quota that a watch has shown: the API server may have charged
    /// it.
    fn record_used(&self, quota: &ResourceQuota) {
        let (used, known) = (self.used_by_pods(quota), self.pods.last_seen_version());
        self.recent_charges.record_seen(&quota.meta, used, known, self.clock.monotonic());
    }

    /// Returns whether `name` is a resource of quotas that pods use.
    fn is_of_pods(&self, name: &str) -> bool {
        self.registry.built_in(&Pod::RESOURCE).is_some_and(|pods| pods.measures(name))
    }

    /// Measures the pods that the API server has now, and replaces the amounts of pods in
    /// `measured`, which are of the cache. An amount that other evaluators share is removed, and
    /// all of them if the list fails: a resource without an amount keeps its usage.
    async fn measure_live_pods(
        &self,
        quota: &ResourceQuota,
        measured: &mut ResourceList,
    ) -> Result<(), Error> {
        let key = quota.meta.key();
        let names = measured.iter().map(|(name, _)| name.clone());
        let names: Vec<Istr> = names.filter(|name| self.is_of_pods(name)).collect();
        measured.retain(|name| !self.is_of_pods(name));
        let pods = self.client.resource(&Pod::RESOURCE);
        let live = pods.list::<Pod>(Some(&key.namespace), &ListOptions::default()).await?;
        let live: Vec<Arc<Pod>> = live.items.into_iter().map(Arc::new).collect();
        let usage = pods::sum(&live, &quota.scopes(), self.pod_level_resources, self.clock.now());
        for name in names.into_iter().filter(|name| !self.registry.is_shared(name)) {
            let amount = usage.get(&name).unwrap_or_default();
            measured.insert(name, amount);
        }
        Ok(())
    }

    /// Counts the usage of one quota, and writes its status if that changes it. Upstream:
    /// `syncResourceQuota`.
    async fn sync(self: Arc<Self>, key: ObjectKey) -> SyncResult {
        let Some(quota) = self.quotas.get(&key) else { return Ok(Next::Done) };
        // Read first: what is measured is at least as new.
        let (mut known, now) = (self.pods.last_seen_version(), self.clock.monotonic());
        let (mut measured, mut errors) =
            self.registry.measure(&key.namespace, &quota.limits(), &quota.scopes());
        let used = self.used_by_pods(&quota);
        let mut is_live = false;
        if is_lower(&measured, &used) && self.recent_charges.are_overdue(&key, known, now) {
            match self.measure_live_pods(&quota, &mut measured).await {
                // No charge is newer than what was just listed.
                Ok(()) => (is_live, known) = (true, u64::MAX),
                Err(error) => errors.push(error),
            }
        }
        let mut recheck_after = None;
        if is_lower(&measured, &used) {
            let (missing, pause) = self.recent_charges.missing(&quota.meta, &used, known, now);
            add_missing(&mut measured, &missing, &used);
            recheck_after = pause;
        }
        // The API server admits no object before the quota has a count of them.
        for name in quota.spec.hard.names() {
            if !quota.status.used.has(name) && self.registry.has_lost(name) {
                measured.insert(name.clone(), Quantity::ZERO);
            }
        }
        let new = new_status(&quota, &measured);
        let is_first = new.is_some() && self.lacks_usage(&quota);
        if let Some(status) = new {
            match self.client.update_status(&*quota, &status).await {
                Ok(written) => {
                    self.recent_charges.record_write(&written.meta, self.used_by_pods(&written))
                }
                Err(error) => {
                    is_live = false;
                    errors.push(error.into());
                }
            }
        }
        if is_live {
            self.recent_charges.record_list(&key, now);
        }
        if let Some(error) = Error::many(errors) {
            return Err(error);
        }
        let release = if self.limits_pods(&quota) {
            pods::next_release(&self.pods.in_namespace(&key.namespace), self.clock.now())
        } else {
            None
        };
        let second_count = if is_first { Some(SECOND_COUNT) } else { None };
        match [release, second_count, recheck_after].into_iter().flatten().min() {
            Some(next) => Ok(Next::After(next)),
            None => Ok(Next::Done),
        }
    }
}

/// Returns whether the `measured` amount of some resource is lower than the `used` one: the cache
/// may lag behind what the API server has charged.
fn is_lower(measured: &ResourceList, used: &ResourceList) -> bool {
    let mut counts = measured.iter();
    counts.any(|(name, count)| used.get(name).is_some_and(|used| count.compare(used).is_lt()))
}

/// Adds the `missing` amounts to those `measured` ones that are lower than the `used` ones, at most
/// up to these.
fn add_missing(measured: &mut ResourceList, missing: &ResourceList, used: &ResourceList) {
    for (name, used) in used.iter() {
        let lower = measured.get(name).filter(|count| count.compare(used).is_lt());
        if let (Some(count), Some(missing)) = (lower, missing.get(name)) {
            let sum = count + missing;
            measured.insert(name.clone(), if sum.compare(used).is_lt() { sum } else { used });
        }
    }
}

/// Returns the quota's status with the `measured` usage; `None` if it has that already. A resource
/// that was not measured keeps its usage.
fn new_status(quota: &ResourceQuota, measured: &ResourceList) -> Option<ResourceQuotaStatus> {
    let ResourceQuotaStatus { hard, used } = &quota.status;
    let old = used.quantities();
    let mut new = old.clone();
    measured.iter().for_each(|(name, amount)| new.insert(name.clone(), amount));
    new.retain(|name| quota.spec.hard.has(name));
    // A new quota gets a status even if its limits or its usage are empty.
    let is_current = !hard.is_empty()
        && !used.is_empty()
        && quota.limits().amounts_equal(&hard.quantities())
        && new.amounts_equal(&old);
    let status = || ResourceQuotaStatus { hard: quota.spec.hard.clone(), used: (&new).into() };
    (!is_current).then(status)
}

/// Queues quotas when an object of the evaluator's kind is deleted.
struct Replenish {
    quotas: Arc<Quotas>,
    evaluator: Arc<dyn Evaluator>,
}

impl MetadataHandler for Replenish {
    /// Does nothing: the API server has charged the object.
    fn on_add(&mut self, _: &Meta) {}

    fn on_update(&mut self, _: &Meta, _: &Meta) {}

    fn on_delete(&mut self, meta: &Meta) {
        self.quotas.replenish(&*self.evaluator, &meta.namespace);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn next(spec: Value, status: Value, measured: &[(&str, &str)]) -> Option<Value> {
        let quota = json!({ "spec": { "hard": spec }, "status": status });
        let quota: ResourceQuota = serde_json::from_value(quota).unwrap();
        let measured = measured.iter().map(|(name, amount)| (*name, amount.parse().unwrap()));
        let status = new_status(&quota, &measured.collect())?;
        Some(serde_json::to_value(status).unwrap())
    }

    #[test]
    fn a_status_is_written_when_it_says_something_new() {
        let hard = json!({ "pods": "+5", "memory": "1Gi" });
        // Limits are copied as they are written, sums are canonical.
        assert_eq!(
            next(hard.clone(), json!({}), &[("pods", "1000"), ("memory", "512Mi"), ("cpu", "1")]),
            Some(json!({ "hard": hard, "used": { "pods": "1k", "memory": "512Mi" } }))
        );
        let same = json!({
            "hard": { "pods": "5", "memory": "1024Mi" }, "used": { "pods": "2", "memory": "0" },
        });
        assert_eq!(next(hard.clone(), same.clone(), &[("pods", "2000m")]), None);
        // What could not be measured stays as it was.
        assert_eq!(
            next(hard.clone(), same.clone(), &[("memory", "1")]),
            Some(json!({ "hard": hard, "used": { "pods": "2", "memory": "1" } }))
        );
        assert_eq!(
            next(json!({ "pods": "5" }), same, &[("pods", "2")]),
            Some(json!({ "hard": { "pods": "5" }, "used": { "pods": "2" } }))
        );
    }

    #[test]
    fn missing_pods_are_added_to_a_lower_count() {
        let list = |amounts: &[(&str, &str)]| -> ResourceList {
            amounts.iter().map(|(name, amount)| (*name, amount.parse().unwrap())).collect()
        };
        let used = list(&[("pods", "5"), ("cpu", "1")]);
        let missing = list(&[("pods", "2"), ("cpu", "100m"), ("memory", "1")]);
        // The count, whether it is lower, and the count with what it lacks.
        for (measured, lower, expected) in [
            (vec![("pods", "5"), ("cpu", "1000m")], false, vec![("pods", "5"), ("cpu", "1")]),
            (vec![("pods", "6"), ("cpu", "500m")], true, vec![("pods", "6"), ("cpu", "600m")]),
            (vec![("pods", "2")], true, vec![("pods", "4")]),
            (vec![("pods", "4")], true, vec![("pods", "5")]),
            (
                vec![("services", "1"), ("memory", "0")],
                false,
                vec![("services", "1"), ("memory", "0")],
            ),
        ] {
            let mut count = list(&measured);
            assert_eq!(is_lower(&count, &used), lower, "{measured:?}");
            add_missing(&mut count, &missing, &used);
            assert!(count.amounts_equal(&list(&expected)), "{measured:?}: {count:?}");
        }
    }

    #[test]
    fn what_is_counted() {
        let counted = |group: &'static str, plural: &'static str, namespaced, verbs: &[&str]| {
            is_counted(&ApiResource {
                resource: ResourceType::fixed(group, "v1", "X", plural, namespaced),
                verbs: verbs.iter().map(|verb| crate::objects::Istr::new(verb)).collect(),
                preferred: true,
            })
        };
        let all = ["create", "delete", "list", "watch"];
        assert!(counted("", "pods", true, &all));
        assert!(counted("example.com", "events", true, &all));
        assert!(!counted("", "events", true, &all));
        assert!(!counted("events.k8s.io", "events", true, &all));
        assert!(!counted("", "nodes", false, &all));
        assert!(!counted("metrics.k8s.io", "pods", true, &["get", "list"]));
    }
}
