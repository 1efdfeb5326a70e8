//! Ready-made mappers from events to keys: of an object itself, and of the object that controls it.
//! Upstream: the event handlers of each controller; controller-runtime's `handler` package.

use std::sync::Arc;
use std::time::Duration;

use super::{Change, Mapper, Queue};
use crate::cache::Lister;
use crate::objects::{Meta, Object, ObjectKey, OwnerReference, Resource, Selector, SelectorError};

/// Returns a mapper that queues the key of each changed object itself, resyncs included.
pub fn of_object<T: Object>() -> impl Mapper<T, ObjectKey> {
    |change, queue| queue.add(change.object().meta().key())
}

/// Returns a mapper that queues the key of an object that passes `filter`, at additions, updates
/// and resyncs, and never at deletions. An update is judged by its new state alone.
pub fn of_current<T: Object>(
    filter: impl Fn(&T) -> bool + Send + 'static,
) -> impl Mapper<T, ObjectKey> {
    move |change, queue| {
        if !matches!(change, Change::Deleted(_)) && filter(change.object()) {
            queue.add(change.object().meta().key());
        }
    }
}

/// Makes the mapper that queues the owner of a changed dependent: the object of kind `O` that
/// controls it, if `owners` has exactly that one: kind, name and uid agree. When the controller
/// reference changes, the old owner is queued too. Resyncs queue no owner. Upstream: `addPod`,
/// `updatePod` and `deletePod` of the workload controllers.
///
/// Build it with [`OfController::mapper`].
///
/// | | orphans | observers | other |
/// |---|---|---|---|
/// | ReplicaSet | by selector | its expectations | `requeue_owner_after` minReadySeconds |
/// | StatefulSet | by selector | none | `requeue_owner_after` minReadySeconds |
/// | DaemonSet | by selector | its expectations | `requeue_owner_after` minReadySeconds |
/// | Job | by selector | its expectations; those of removed finalizers | `delayed` by the period of
/// its batches; `unowned` pods with its finalizer go to a queue of their own |
pub fn of_controller<T: Object, O: Object + Resource>(owners: &Lister<O>) -> OfController<T, O> {
    OfController::new(Box::new(owners.clone()))
}

/// A cache of owners: a [`Lister`], or in tests a list.
trait Owners<O>: Send {
    fn get(&self, key: &ObjectKey) -> Option<Arc<O>>;
    fn in_namespace(&self, namespace: &str) -> Vec<Arc<O>>;
}

impl<O: Object> Owners<O> for Lister<O> {
    fn get(&self, key: &ObjectKey) -> Option<Arc<O>> {
        Lister::get(self, key)
    }

    fn in_namespace(&self, namespace: &str) -> Vec<Arc<O>> {
        Lister::in_namespace(self, namespace)
    }
}

/// The selector of an owner: see [`OfController::or_matching_orphans`].
type SelectorOf<O> = Box<dyn Fn(&O) -> Result<Selector, SelectorError> + Send>;
/// The delay for an old and a new dependent and its owner: see
/// [`OfController::requeue_owner_after`].
type RequeueAfter<T, O> = Box<dyn Fn(&T, &T, &O) -> Option<Duration> + Send>;
/// Gets a dependent and its owner, if it has one: see [`OfController::unowned`].
type Unowned<T, O> = Box<dyn Fn(&T, Option<&O>) + Send>;

/// Gets each change of a dependent before its owner is queued: so expectations are lowered when the
/// owner's sync reads them.
pub trait Observer: Send + Sync {
    /// Handles a change of `dependent`, which `owner` controls. Runs on the informer's handler
    /// task: it must not wait.
    fn observe(&self, owner: &ObjectKey, dependent: &Meta, event: DependentEvent);
}

/// What happened to a dependent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DependentEvent {
    /// It is new in the cache. Not passed for one that is being deleted in the initial list.
    Created,
    /// It has changed. Also passed for the owner that it had before.
    Updated,
    /// It has a deletion timestamp: after an update, or already when it is added.
    Deleting,
    /// It is no longer in the cache.
    Deleted,
}

/// The mapper from dependents to their owners, before it is built: see [`of_controller`].
pub struct OfController<T, O> {
    owners: Box<dyn Owners<O>>,
    selector: Option<SelectorOf<O>>,
    observers: Vec<Arc<dyn Observer>>,
    requeue_after: Option<RequeueAfter<T, O>>,
    unowned: Option<Unowned<T, O>>,
    delay: Duration,
}

/// Returns the owner that `reference`, of an object in `namespace`, names: its kind is `O` and its
/// uid is that of the reference. `None` if the cache has no such object, or another one of that
/// name.
/// Upstream: `resolveControllerRef`.
pub fn resolve<O: Object + Resource>(
    owners: &Lister<O>,
    namespace: &str,
    reference: &OwnerReference,
) -> Option<Arc<O>> {
    resolve_in(owners, namespace, reference)
}

/// Returns the owner that `reference` names, as [`resolve`] does, from any set of owners.
fn resolve_in<O: Object + Resource>(
    owners: &dyn Owners<O>,
    namespace: &str,
    reference: &OwnerReference,
) -> Option<Arc<O>> {
    if reference.kind != *O::RESOURCE.kind {
        return None;
    }
    let namespace = if O::RESOURCE.namespaced { namespace } else { "" };
    let owner = owners.get(&ObjectKey::new(namespace, &reference.name))?;
    (owner.meta().uid == reference.uid).then_some(owner)
}

impl<T: Object, O: Object + Resource> OfController<T, O> {
    fn new(owners: Box<dyn Owners<O>>) -> OfController<T, O> {
        let (selector, observers, requeue_after, unowned) = (None, Vec::new(), None, None);
        OfController { owners, selector, observers, requeue_after, unowned, delay: Duration::ZERO }
    }

    /// Also queues, for a dependent without a controller, the owners of its namespace that select
    /// its labels: when it appears and when its labels or its owner change. A selector that is
    /// empty or malformed selects nothing.
    pub fn or_matching_orphans(
        mut self,
        selector: impl Fn(&O) -> Result<Selector, SelectorError> + Send + 'static,
    ) -> Self {
        self.selector = Some(Box::new(selector));
        self
    }

    /// Calls `observer` with each change of a dependent before the owner is queued. May be called
    /// several times.
    pub fn observing<X: Observer + 'static>(mut self, observer: &Arc<X>) -> Self {
        self.observers.push(observer.clone());
        self
    }

    /// Calls `unowned` with each change of a dependent that has no controller, and with each
    /// dependent that is deleted or being deleted, and its owner if there is one. For finalizers
    /// that outlive their owner. Upstream: `enqueueOrphanPod` of the Job controller.
    pub fn unowned(mut self, unowned: impl Fn(&T, Option<&O>) + Send + 'static) -> Self {
        self.unowned = Some(Box::new(unowned));
        self
    }

    /// Queues owners after `delay`, so that one sync handles a burst of changes. Upstream:
    /// `SyncJobBatchPeriod`.
    pub fn delayed(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// When a dependent is updated, also queues its owner after the delay that `after` returns for
    /// the old and the new dependent and the owner, such as `minReadySeconds` once a pod is ready.
    pub fn requeue_owner_after(
        mut self,
        after: impl Fn(&T, &T, &O) -> Option<Duration> + Send + 'static,
    ) -> Self {
        self.requeue_after = Some(Box::new(after));
        self
    }

    /// Returns the owner that controls `dependent`, if the cache has it.
    fn owner(&self, dependent: &T) -> Option<Arc<O>> {
        let meta = dependent.meta();
        resolve_in(&*self.owners, &meta.namespace, meta.controller()?)
    }

    /// Queues `owner`, after the delay of [`OfController::delayed`].
    fn queue(&self, owner: &O, queue: &Queue) {
        let key = owner.meta().key();
        match self.delay.is_zero() {
            true => queue.add(key),
            false => queue.add_after(key, self.delay),
        }
    }

    /// Calls the observers.
    fn observe(&self, owner: &O, dependent: &T, event: DependentEvent) {
        for observer in &self.observers {
            observer.observe(&owner.meta().key(), dependent.meta(), event);
        }
    }

    /// Calls the function of [`OfController::unowned`], if there is one.
    fn report_unowned(&self, dependent: &T, owner: Option<&O>) {
        if let Some(unowned) = &self.unowned {
            unowned(dependent, owner);
        }
    }

    /// Handles an added dependent: queues its owner, or the owners that may adopt it.
    /// Upstream: `addPod` of the controllers of pods.
    fn handle_added(&self, new: &T, initial: bool, queue: &Queue) {
        if new.meta().is_being_deleted() {
            // The cache never had it before its deletion began: the manager was restarted
            // (`initial`), or no watch was open for a time. Only in the second case may its owner
            // still expect its creation. Upstream counts the creation in neither case, so there the
            // owner waits until the expectation expires.
            if !initial && let Some(owner) = self.owner(new) {
                self.observe(&owner, new, DependentEvent::Created);
            }
            return self.handle_deleted(new, DependentEvent::Deleting, queue);
        }
        if new.meta().controller().is_none() {
            self.report_unowned(new, None);
            return self.queue_matching(new, queue);
        }
        if let Some(owner) = self.owner(new) {
            self.observe(&owner, new, DependentEvent::Created);
            self.queue(&owner, queue);
        }
    }

    /// Handles an updated dependent: queues its owner, its former one, or those that may adopt it.
    /// Upstream: `updatePod`.
    fn handle_updated(&self, old: &T, new: &T, queue: &Queue) {
        let (was, is) = (old.meta(), new.meta());
        // A relist, which changes nothing.
        if was.resource_version == is.resource_version {
            return;
        }
        let relabelled = was.labels != is.labels;
        let moved = was.controller() != is.controller();
        if is.is_being_deleted() {
            // The owner replaces it now, not when its grace period has ended.
            self.handle_deleted(new, DependentEvent::Deleting, queue);
            // In its former state it may have had another owner.
            if relabelled || moved {
                self.handle_deleted(old, DependentEvent::Deleting, queue);
            }
            return;
        }
        if moved && let Some(owner) = self.owner(old) {
            self.observe(&owner, new, DependentEvent::Updated);
            self.queue(&owner, queue);
        }
        if is.controller().is_none() {
            self.report_unowned(new, None);
            if relabelled || moved {
                self.queue_matching(new, queue);
            }
        } else if let Some(owner) = self.owner(new) {
            self.observe(&owner, new, DependentEvent::Updated);
            self.queue(&owner, queue);
            let requeue_after = self
                .requeue_after
                .as_ref()
                .and_then(|requeue_after| requeue_after(old, new, &owner));
            if let Some(after) = requeue_after {
                queue.add_after(owner.meta().key(), after);
            }
        }
    }

    /// Handles a dependent that is deleted or being deleted, as `event` says: passes it to the
    /// observers and queues its owner. Upstream: `deletePod`.
    fn handle_deleted(&self, last: &T, event: DependentEvent, queue: &Queue) {
        let owner = self.owner(last);
        self.report_unowned(last, owner.as_deref());
        // No owner waits for the deletion of an orphan.
        let Some(owner) = owner else { return };
        self.observe(&owner, last, event);
        self.queue(&owner, queue);
    }

    /// Queues the owners that may adopt `orphan`; as upstream, none if it has no labels.
    fn queue_matching(&self, orphan: &T, queue: &Queue) {
        let meta = orphan.meta();
        let Some(selector_of) = &self.selector else { return };
        if meta.labels.is_empty() {
            return;
        }
        for owner in self.owners.in_namespace(&meta.namespace) {
            if let Ok(selector) = selector_of(&owner)
                && !selector.is_empty()
                && selector.matches(&meta.labels)
            {
                self.queue(&owner, queue);
            }
        }
    }
}

impl<T: Object, O: Object + Resource> OfController<T, O> {
    /// The mapper, for [`Controller::watch`](super::Controller::watch).
    pub fn mapper(self) -> impl Mapper<T, ObjectKey> {
        move |change, queue| self.map(change, queue)
    }

    /// Passes a change to the method for it; a resync changes nothing.
    fn map(&self, change: Change<'_, T>, queue: &Queue) {
        match change {
            Change::Added { new, initial } => self.handle_added(new, initial, queue),
            Change::Updated { old, new } => self.handle_updated(old, new, queue),
            Change::Resync { .. } => {}
            Change::Deleted(deleted) => {
                self.handle_deleted(deleted.object(), DependentEvent::Deleted, queue)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::cache::Deleted;
    use crate::clock::FakeClock;
    use crate::controllers::workloads::expectations::Expectations;
    use crate::objects::{Pod, ReplicaSet, Timestamp, Uid};

    impl<O: Object> Owners<O> for Vec<Arc<O>> {
        fn get(&self, key: &ObjectKey) -> Option<Arc<O>> {
            self.iter().find(|owner| owner.meta().key() == *key).cloned()
        }

        fn in_namespace(&self, namespace: &str) -> Vec<Arc<O>> {
            self.iter().filter(|owner| owner.meta().namespace == *namespace).cloned().collect()
        }
    }

    fn set(name: &str, selects: Value) -> Arc<ReplicaSet> {
        let json = json!({
            "metadata": {"namespace": "ns", "name": name, "uid": format!("uid-{name}")},
            "spec": {"selector": selects},
        });
        Arc::new(serde_json::from_value(json).unwrap())
    }

    fn pod(version: u64, owner: &str, label: &str) -> Value {
        let owners = json!([{
            "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": owner,
            "uid": format!("uid-{owner}"), "controller": true,
        }]);
        json!({"metadata": {
            "namespace": "ns", "name": "p", "uid": "p", "resourceVersion": version.to_string(),
            "labels": if label.is_empty() { json!({}) } else { json!({ "app": label }) },
            "ownerReferences": if owner.is_empty() { json!([]) } else { owners },
        }})
    }

    fn decoded(pod: Value) -> Arc<Pod> {
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    fn being_deleted(mut pod: Value) -> Value {
        pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        pod
    }

    /// Owners a and b select their own label, "all" everything, and "old" is of another uid by now.
    struct Fixture {
        mapper: OfController<Pod, ReplicaSet>,
        expectations: Arc<Expectations>,
        queue: Queue,
        clock: Arc<FakeClock>,
    }

    fn fixture() -> Fixture {
        let clock = FakeClock::new(Timestamp::from_secs(0));
        let mut old = (*set("old", Value::Null)).clone();
        old.meta.uid = Uid::new("recreated");
        let owners = vec![
            set("a", json!({"matchLabels": {"app": "a"}})),
            set("b", json!({"matchLabels": {"app": "b"}})),
            set("all", json!({})),
            Arc::new(old),
        ];
        let expectations = Arc::new(Expectations::new(clock.clone()));
        let mapper = OfController::new(Box::new(owners))
            .or_matching_orphans(|set: &ReplicaSet| Selector::try_from(set.spec.selector.as_ref()))
            .observing(&expectations);
        let queue = Queue::for_test(clock.clone());
        Fixture { mapper, expectations, queue, clock }
    }

    impl Fixture {
        fn queues(&mut self, change: Change<'_, Pod>) -> Vec<String> {
            self.mapper.map(change, &self.queue);
            let mut queued: Vec<String> =
                self.queue.drain().iter().map(|key| key.name.to_string()).collect();
            queued.sort();
            queued
        }
    }

    #[test]
    fn additions_and_deletions_queue_the_owners_concerned() {
        let mut fixture = fixture();
        for (json, added, deleted) in [
            (pod(1, "a", ""), vec!["a"], vec!["a"]),
            (pod(1, "old", "b"), vec![], vec![]),
            (pod(1, "gone", "b"), vec![], vec![]),
            (pod(1, "", "b"), vec!["b"], vec![]),
            (pod(1, "", ""), vec![], vec![]),
            (being_deleted(pod(1, "", "b")), vec![], vec![]),
            (being_deleted(pod(1, "b", "")), vec!["b"], vec!["b"]),
        ] {
            let pod = decoded(json.clone());
            assert_eq!(
                fixture.queues(Change::Added { new: &pod, initial: false }),
                added,
                "{json}"
            );
            let last = Deleted::FinalStateUnknown(pod);
            assert_eq!(fixture.queues(Change::Deleted(&last)), deleted, "{json}");
        }
        let mut other_kind = pod(1, "a", "b");
        other_kind["metadata"]["ownerReferences"][0]["kind"] = json!("Job");
        let pod = decoded(other_kind);
        assert!(fixture.queues(Change::Added { new: &pod, initial: true }).is_empty());
    }

    #[test]
    fn updates_queue_the_old_and_the_new_owner() {
        let mut fixture = fixture();
        for (old, new, queued) in [
            (pod(1, "a", "a"), pod(2, "a", "a"), vec!["a"]),
            (pod(1, "a", "a"), pod(1, "a", "a"), vec![]),
            (pod(1, "a", "a"), pod(2, "b", "a"), vec!["a", "b"]),
            (pod(1, "a", "a"), pod(2, "", "b"), vec!["a", "b"]),
            (pod(1, "", "b"), pod(2, "a", "b"), vec!["a"]),
            (pod(1, "", "a"), pod(2, "", "b"), vec!["b"]),
            (pod(1, "", "b"), pod(2, "", "b"), vec![]),
            (pod(1, "a", "a"), being_deleted(pod(2, "a", "a")), vec!["a"]),
            (pod(1, "a", "a"), being_deleted(pod(2, "b", "b")), vec!["a", "b"]),
        ] {
            let case = format!("{old} to {new}");
            let (old, new) = (decoded(old), decoded(new));
            assert_eq!(fixture.queues(Change::Updated { old: &old, new: &new }), queued, "{case}");
        }
        let same = decoded(pod(1, "a", "a"));
        assert!(fixture.queues(Change::Resync { object: &same }).is_empty());
    }

    #[test]
    fn expectations_are_lowered_before_the_owner_is_queued() {
        let mut fixture = fixture();
        let owner = ObjectKey::new("ns", "a");
        let (alive, leaving) =
            (decoded(pod(1, "a", "a")), decoded(being_deleted(pod(2, "a", "a"))));

        fixture.expectations.expect_creations(&owner, 1);
        fixture.queues(Change::Added { new: &leaving, initial: true });
        assert!(
            !fixture.expectations.satisfied(&owner),
            "a pod that is being deleted is not the one just created"
        );
        fixture.queues(Change::Added { new: &leaving, initial: false });
        assert!(
            fixture.expectations.satisfied(&owner),
            "created and deleted while no watch was open"
        );
        fixture.expectations.expect_creations(&owner, 1);
        fixture.queues(Change::Added { new: &alive, initial: false });
        assert!(fixture.expectations.satisfied(&owner));

        fixture.expectations.expect_deletions(&owner, vec![Uid::new("p")]);
        fixture.queues(Change::Updated { old: &alive, new: &leaving });
        assert!(fixture.expectations.satisfied(&owner), "a deletion timestamp is enough");
    }

    #[test]
    fn observers_and_unowned_dependents_are_reported() {
        #[derive(Default)]
        struct Log(parking_lot::Mutex<Vec<String>>);
        impl Observer for Log {
            fn observe(&self, owner: &ObjectKey, dependent: &Meta, event: DependentEvent) {
                self.0.lock().push(format!("{} {} {event:?}", owner.name, dependent.name));
            }
        }
        let log = Arc::new(Log::default());
        let mut fixture = fixture();
        let unowned = log.clone();
        fixture.mapper = fixture.mapper.observing(&log).unowned(move |pod, owner| {
            let owner = owner.map_or("none", |owner| &owner.meta.name);
            unowned.0.lock().push(format!("unowned {} {owner}", pod.meta.name));
        });
        let of = |version, owner, label| decoded(pod(version, owner, label));
        let (alive, last) = (of(1, "a", "a"), of(3, "a", "a"));
        let lost = Deleted::FinalStateUnknown(of(3, "gone", "a"));
        let gone = Deleted::FinalStateUnknown(last);
        let (moved, orphan, leaving) =
            (of(2, "b", "a"), of(2, "", ""), decoded(being_deleted(pod(2, "a", "a"))));
        for (change, reported) in [
            (Change::Added { new: &alive, initial: false }, vec!["a p Created"]),
            (Change::Updated { old: &alive, new: &moved }, vec!["a p Updated", "b p Updated"]),
            (Change::Updated { old: &alive, new: &leaving }, vec!["unowned p a", "a p Deleting"]),
            (Change::Added { new: &leaving, initial: true }, vec!["unowned p a", "a p Deleting"]),
            (Change::Updated { old: &alive, new: &orphan }, vec!["a p Updated", "unowned p none"]),
            (Change::Added { new: &orphan, initial: true }, vec!["unowned p none"]),
            (Change::Deleted(&gone), vec!["unowned p a", "a p Deleted"]),
            (Change::Deleted(&lost), vec!["unowned p none"]),
        ] {
            fixture.queues(change);
            assert_eq!(std::mem::take(&mut *log.0.lock()), reported);
        }
    }

    #[test]
    fn a_delay_batches_the_changes_of_an_owner() {
        let mut fixture = fixture();
        fixture.mapper = fixture.mapper.delayed(Duration::from_secs(1));
        let (one, orphan) = (decoded(pod(1, "a", "a")), decoded(pod(1, "", "b")));
        for pod in [&one, &one, &orphan] {
            assert!(fixture.queues(Change::Added { new: pod, initial: false }).is_empty());
        }
        fixture.clock.advance(Duration::from_secs(1));
        assert_eq!(fixture.queue.drain(), [ObjectKey::new("ns", "a"), ObjectKey::new("ns", "b")]);
    }

    #[test]
    fn the_owner_can_be_queued_again_after_a_time() {
        let mut fixture = fixture();
        fixture.mapper = fixture.mapper.requeue_owner_after(|_, _, _| Some(Duration::from_secs(5)));
        let (old, new) = (decoded(pod(1, "a", "a")), decoded(pod(2, "a", "a")));
        assert_eq!(fixture.queues(Change::Updated { old: &old, new: &new }), ["a"]);
        assert!(fixture.queue.drain().is_empty());
        fixture.clock.advance(Duration::from_secs(5));
        assert_eq!(fixture.queue.drain(), [ObjectKey::new("ns", "a")]);
    }
}
