//! Deletes the content of a namespace that is being deleted, then removes its finalizer.
//! Upstream: `pkg/controller/namespace`.
//!
//! Pods are deleted first, and the rest when they are gone: a NetworkPolicy, for example, outlives
//! the pods that it protects. The deletion of the last pod queues the next pass at once; upstream
//! waits for half of the pods' grace period.

mod conditions;
mod content;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::json;

use self::conditions::Findings;
use self::content::{CachedPods, DeletionResult, delete_all, is_pods};
use crate::cache::Lister;
use crate::client::{self, ApiResource, Client};
use crate::clock::SharedClock;
use crate::controllers::runner::Change;
use crate::controllers::{Controller, Error, Next, Queue, QueuePolicy, SyncResult};
use crate::objects::{ArcStr, Istr, Namespace, ObjectKey, Pod, Resource, ResourceType};
use crate::workqueue::{BucketRateLimiter, MaxOfRateLimiter, exponential_failure_rate_limiter};

/// The finalizer of a namespace's spec that this controller removes.
const FINALIZER: &str = "kubernetes";
/// The wait after a change of a namespace. Then all API servers refuse new objects in it, and
/// objects that were created just before can be listed.
const DELETION_GRACE_PERIOD: Duration = Duration::from_secs(5);
/// The delay of the next pass over a namespace whose pods are gone from the cache, but were listed
/// just before.
const RECHECK_DELAY: Duration = Duration::from_secs(1);
/// The delay before a retry after a first failure, which doubles with each failure, and its limit.
const MIN_BACKOFF: Duration = Duration::from_millis(5);
const MAX_BACKOFF: Duration = Duration::from_secs(60);
/// Emptying a namespace takes many small requests: rate and burst are multiplied by these factors.
const RATE_FACTOR: f64 = 20.0;
const BURST_FACTOR: u32 = 100;

/// Sets up the controller `namespace-controller`.
pub fn controller(c: &mut Controller) -> Result<(), String> {
    let namespaces = c.lister::<Namespace>();
    let limiter = MaxOfRateLimiter::new(vec![
        exponential_failure_rate_limiter(MIN_BACKOFF, MAX_BACKOFF),
        Arc::new(BucketRateLimiter::new(10.0, 100, c.clock())),
    ]);
    let queue = c.queue(QueuePolicy::default().limited_by(Arc::new(limiter)));
    let period = c.options().namespace_sync_period;
    let resync = if period.is_zero() { None } else { Some(period) };
    c.watch_resyncing(&namespaces, resync, &queue, |change, queue| {
        if !matches!(change, Change::Deleted(_)) && change.object().meta.is_being_deleted() {
            queue.add_after(change.object().meta.key(), DELETION_GRACE_PERIOD);
        }
    });
    let client = c.client().with_rate(RATE_FACTOR, BURST_FACTOR);
    // In shadow mode the pace is that of the manager in charge.
    let waiting = (!c.options().shadow).then(|| WaitingNamespaces::new(c, &queue));
    let this = Arc::new(NamespaceController { namespaces, waiting, client, clock: c.clock() });
    c.sync(queue, &this, NamespaceController::sync);
    Ok(())
}

/// The namespaces whose pods are being deleted: the deletion of the last pod queues the namespace.
/// `sync` adds and removes them.
#[derive(Clone)]
struct WaitingNamespaces {
    pods: Lister<Pod>,
    namespaces: Arc<Mutex<HashSet<ArcStr>>>,
}

impl WaitingNamespaces {
    /// Watches pods, and adds waiting namespaces to `queue` when their last pod is deleted.
    fn new(c: &mut Controller, queue: &Queue<ObjectKey>) -> WaitingNamespaces {
        let pods = c.lister::<Pod>();
        let waiting = WaitingNamespaces { pods: pods.clone(), namespaces: Arc::default() };
        let handler = waiting.clone();
        c.watch_resyncing(&pods, None, queue, move |change, queue| {
            let namespace = &change.object().meta.namespace;
            if matches!(change, Change::Deleted(_)) && handler.remove_if_emptied(namespace) {
                queue.add(ObjectKey::cluster(namespace));
            }
        });
        waiting
    }

    /// Returns the state of a namespace's pods in the cache. `pods_were_deleted`: the last pass
    /// over the namespace has sent their deletion.
    fn cached_pods(&self, namespace: &str, pods_were_deleted: bool) -> CachedPods {
        let pods = self.pods.in_namespace(namespace);
        if pods.iter().any(|pod| !pod.meta.is_being_deleted()) {
            CachedPods::Alive
        } else if pods_were_deleted && !pods.is_empty() {
            CachedPods::Deleted
        } else {
            CachedPods::Unknown
        }
    }

    /// Removes the namespace from the waiting ones if its last pod is gone. Returns whether it did.
    fn remove_if_emptied(&self, namespace: &str) -> bool {
        let mut namespaces = self.namespaces.lock();
        namespaces.contains(namespace)
            && self.pods.count_in(namespace) == 0
            && namespaces.remove(namespace)
    }

    /// Adds a namespace. Returns `false` if its last pod is gone already, so that no deletion will
    /// queue it.
    fn add(&self, namespace: &ArcStr) -> bool {
        self.namespaces.lock().insert(namespace.clone());
        !self.remove_if_emptied(namespace)
    }

    /// Removes the namespace, and returns whether it was waiting.
    fn remove(&self, namespace: &str) -> bool {
        self.namespaces.lock().remove(namespace)
    }
}

/// The content of a namespace that could not be deleted yet.
struct Remaining {
    /// The time until it may be gone; zero: nothing remains.
    estimate: Duration,
    has_pods: bool,
}

struct NamespaceController {
    namespaces: Lister<Namespace>,
    waiting: Option<WaitingNamespaces>,
    client: Client,
    clock: SharedClock,
}

/// A write to a namespace that is being deleted, which `write_with_retries` repeats.
#[derive(Clone, Copy)]
enum NamespaceWrite {
    MarkTerminating,
    RemoveFinalizer,
}

impl NamespaceController {
    /// Deletes the content of a namespace that is being deleted, and removes its finalizer when
    /// nothing remains.
    async fn sync(self: Arc<Self>, key: ObjectKey) -> SyncResult {
        let pods_were_deleted =
            self.waiting.as_ref().is_some_and(|waiting| waiting.remove(&key.name));
        if self.namespaces.get(&key).is_none() {
            return Ok(Next::Done);
        }
        let Some(mut namespace) = none_if_not_found(self.client.get::<Namespace>(&key).await)?
        else {
            return Ok(Next::Done);
        };
        if namespace.meta.is_being_deleted() && !namespace.is_terminating() {
            match self.write_with_retries(NamespaceWrite::MarkTerminating, namespace).await? {
                Some(marked) => namespace = marked,
                None => return Ok(Next::Done),
            }
        }
        if !namespace.meta.is_being_deleted() || namespace.spec.finalizers.is_empty() {
            return Ok(Next::Done);
        }
        let Remaining { estimate, has_pods } =
            self.delete_content(&mut namespace, pods_were_deleted).await?;
        if !estimate.is_zero() {
            // Half of the estimate, as upstream.
            let mut wait = Duration::from_secs(estimate.as_secs() / 2 + 1);
            if has_pods
                && let Some(waiting) = &self.waiting
                && !waiting.add(&key.name)
            {
                wait = RECHECK_DELAY;
            }
            log::debug!("content remaining in namespace {key}, waiting {wait:?}");
            return Ok(Next::After(wait));
        }
        self.write_with_retries(NamespaceWrite::RemoveFinalizer, namespace).await?;
        Ok(Next::Done)
    }

    /// Sends a write, and repeats it on the latest state after each conflict; never on another
    /// namespace of the same name. Returns `None` if the namespace does not exist any more.
    async fn write_with_retries(
        &self,
        step: NamespaceWrite,
        mut namespace: Namespace,
    ) -> Result<Option<Namespace>, Error> {
        loop {
            match self.write_once(step, &namespace).await {
                Err(error) if error.is_conflict() => {}
                written => return Ok(none_if_not_found(written)?),
            }
            let latest = self.client.get::<Namespace>(&namespace.meta.key()).await;
            let Some(latest) = none_if_not_found(latest)? else { return Ok(None) };
            if latest.meta.uid != namespace.meta.uid {
                return Err(Error::other("namespace uid has changed across retries"));
            }
            namespace = latest;
        }
    }

    /// Sends a write once, on the state `namespace`.
    async fn write_once(
        &self,
        step: NamespaceWrite,
        namespace: &Namespace,
    ) -> client::Result<Namespace> {
        match step {
            NamespaceWrite::MarkTerminating => {
                let mut status = namespace.status.clone();
                status.phase = Some("Terminating".to_owned());
                self.client.update_status(namespace, &status).await
            }
            NamespaceWrite::RemoveFinalizer => {
                let mut remaining: Vec<&Istr> =
                    namespace.spec.finalizers.iter().filter(|name| *name != FINALIZER).collect();
                // Upstream writes a sorted set.
                remaining.sort();
                remaining.dedup();
                let body = json!({
                    "apiVersion": "v1", "kind": "Namespace",
                    "metadata": namespace.meta, "spec": { "finalizers": remaining },
                });
                let finalize = self.client.resource(&Namespace::RESOURCE).subresource("finalize");
                finalize.update(&namespace.meta.key(), &body).await
            }
        }
    }

    /// Deletes the content that can be deleted now: first the pods, the rest when they are gone.
    /// Writes the conditions, and returns what remains. A failure of one resource does not stop the
    /// others; all are returned at the end, after the conditions are written. `pods_were_deleted`:
    /// as for `cached_pods`.
    async fn delete_content(
        &self,
        namespace: &mut Namespace,
        pods_were_deleted: bool,
    ) -> Result<Remaining, Error> {
        let (mut findings, mut errors) = (Findings::default(), Vec::new());
        let resources = self.discover_deletable(&mut findings, &mut errors).await;
        let (pods, others): (Vec<_>, Vec<_>) =
            resources.into_iter().partition(|found| is_pods(&found.resource));
        let mut estimate = Duration::ZERO;
        let mut has_pods = false;
        let cached_pods = match &self.waiting {
            Some(waiting) => waiting.cached_pods(&namespace.meta.name, pods_were_deleted),
            None => CachedPods::Unknown,
        };
        for found in &pods {
            let result = self.delete_resource(found, namespace, cached_pods, &mut findings).await;
            if let Some(error) = result.error {
                let name = &namespace.meta.name;
                errors.push(Error::other(format!(
                    "failed to delete pods for namespace: {name}, err: {}",
                    error.message()
                )));
            }
            estimate = estimate.max(result.estimate);
            has_pods |= result.remaining.count > 0;
        }
        // While there are pods, the conditions show failures only.
        if !has_pods {
            for found in &others {
                let not_pods = CachedPods::Unknown;
                let result = self.delete_resource(found, namespace, not_pods, &mut findings).await;
                errors.extend(result.error);
                estimate = estimate.max(result.estimate);
                findings.add_remaining(&found.resource, result.remaining);
            }
        }
        self.write_conditions(namespace, &findings).await;
        match Error::many(errors) {
            Some(error) => Err(error),
            None => Ok(Remaining { estimate, has_pods }),
        }
    }

    /// Returns the namespaced resources that can be deleted; empty if discovery fails as a whole,
    /// or names a malformed group version. Adds failures of discovery to `findings` and `errors`.
    async fn discover_deletable(
        &self,
        findings: &mut Findings,
        errors: &mut Vec<Error>,
    ) -> Vec<ApiResource> {
        let discovery = match self.client.discover().await {
            Ok(discovery) => discovery,
            Err(error) => {
                let error = Error::from(error);
                findings.discovery = Some(error.message());
                errors.push(error);
                return Vec::new();
            }
        };
        if let Some(failure) = discovery.failure() {
            let count = discovery.failures.len();
            findings.discovery =
                Some(format!("Discovery failed for some groups, {count} failing: {failure}"));
            errors.push(Error::other(failure));
        }
        let deletable =
            |found: &&ApiResource| found.resource.namespaced && found.supports(&["delete"]);
        let resources: Vec<ApiResource> =
            discovery.preferred().filter(deletable).cloned().collect();
        if let Some(fault) = resources.iter().find_map(|found| group_version_error(&found.resource))
        {
            findings.group_version = Some(fault.clone());
            errors.push(Error::other(fault));
            return Vec::new();
        }
        resources
    }

    /// Deletes the objects of one resource, and adds a failure to `findings` too.
    async fn delete_resource(
        &self,
        found: &ApiResource,
        namespace: &Namespace,
        cached_pods: CachedPods,
        findings: &mut Findings,
    ) -> DeletionResult {
        let now = self.clock.now();
        let since = namespace.meta.deletion_timestamp.unwrap_or(now);
        let age = now.duration_since(since);
        let name = &namespace.meta.name;
        let result = delete_all(&self.client, found, name, age, cached_pods).await;
        findings.failures.extend(result.error.as_ref().map(Error::message));
        result
    }

    /// Writes the conditions if they change. A failure is only logged: the next pass writes them
    /// again.
    async fn write_conditions(&self, namespace: &mut Namespace, findings: &Findings) {
        let mut status = namespace.status.clone();
        if !findings.update_conditions(status.conditions.get_or_insert_default(), self.clock.now())
        {
            return;
        }
        match self.client.update_status(&*namespace, &status).await {
            Ok(updated) => *namespace = updated,
            Err(error) => log::error!(
                "couldn't update status condition for namespace {}: {error}",
                namespace.meta.name
            ),
        }
    }
}

/// Returns `None` in place of the error that the object does not exist.
fn none_if_not_found<T>(answer: client::Result<T>) -> client::Result<Option<T>> {
    match answer {
        Err(error) if error.is_not_found() => Ok(None),
        answer => answer.map(Some),
    }
}

/// Returns why a resource's group version cannot be parsed; `None` if it can. Upstream:
/// `ParseGroupVersion`.
fn group_version_error(resource: &ResourceType) -> Option<String> {
    let group_version = resource.api_version();
    let slashes = group_version.matches('/').count();
    if slashes > 1 {
        Some(format!("unexpected GroupVersion string: {group_version}"))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Indexer;

    #[test]
    fn a_wait_is_over_when_the_last_pod_goes() {
        let pods = Arc::new(Indexer::new());
        let waiting =
            WaitingNamespaces { pods: Lister::new(pods.clone()), namespaces: Arc::default() };
        let pod = |name: &str| -> Arc<Pod> {
            let metadata = json!({ "namespace": "ns", "name": name, "uid": name });
            Arc::new(serde_json::from_value(json!({ "metadata": metadata })).unwrap())
        };
        let (a, b) = (pod("a"), pod("b"));
        pods.insert(a.clone());
        pods.insert(b.clone());
        assert!(!waiting.remove_if_emptied("ns"), "it does not wait");
        assert!(waiting.add(&"ns".into()));
        pods.remove(&a.meta.key());
        assert!(!waiting.remove_if_emptied("ns"), "a pod is left");
        pods.remove(&b.meta.key());
        assert!(!waiting.remove_if_emptied("other"));
        assert!(waiting.remove_if_emptied("ns"));
        assert!(!waiting.remove_if_emptied("ns"), "once");
        assert!(!waiting.add(&"ns".into()), "they went before it waited");
        assert!(!waiting.remove_if_emptied("ns"));
        pods.insert(a.clone());
        assert!(waiting.add(&"ns".into()));
        assert!(waiting.remove("ns"));
        assert!(!waiting.remove("ns"), "once");
        pods.remove(&a.meta.key());
        assert!(!waiting.remove_if_emptied("ns"), "a sync has begun");
    }

    #[test]
    fn pods_that_are_not_being_deleted_count_first() {
        let pods = Arc::new(Indexer::new());
        let waiting =
            WaitingNamespaces { pods: Lister::new(pods.clone()), namespaces: Arc::default() };
        let put = |name: &str, deleted: Option<&str>| {
            let metadata = json!({
                "namespace": "ns", "name": name, "uid": name, "deletionTimestamp": deleted,
            });
            let pod: Pod = serde_json::from_value(json!({ "metadata": metadata })).unwrap();
            pods.insert(Arc::new(pod));
        };
        let cached_pods = |pods_were_deleted| waiting.cached_pods("ns", pods_were_deleted);
        assert_eq!([cached_pods(false), cached_pods(true)], [CachedPods::Unknown; 2]);
        put("a", Some("2026-01-01T00:00:00Z"));
        assert_eq!(
            [cached_pods(false), cached_pods(true)],
            [CachedPods::Unknown, CachedPods::Deleted]
        );
        put("b", None);
        assert_eq!([cached_pods(false), cached_pods(true)], [CachedPods::Alive; 2]);
    }

    #[test]
    fn a_group_version_has_one_slash_at_most() {
        let error_of = |group, version| {
            group_version_error(&ResourceType::fixed(group, version, "K", "ks", true))
        };
        assert_eq!((error_of("", "v1"), error_of("apps", "v1")), (None, None));
        assert_eq!(
            error_of("a/b", "v1").as_deref(),
            Some("unexpected GroupVersion string: a/b/v1")
        );
    }
}
