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
use self::content::{CachedPods, Outcome, delete_all, is_pods};
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
const GRACE: Duration = Duration::from_secs(5);
/// The delay of the next pass over a namespace whose pods are gone from the cache, but were listed
/// just before.
const SOON: Duration = Duration::from_secs(1);
/// The delay before a retry after a first failure; it doubles.
const BACKOFF: [Duration; 2] = [Duration::from_millis(5), Duration::from_secs(60)];
/// Emptying a namespace takes many small requests: rate and burst are multiplied by these factors.
const FASTER: (f64, u32) = (20.0, 100);

/// The controller `namespace-controller`.
pub fn controller(c: &mut Controller) -> Result<(), String> {
    let namespaces = c.lister::<Namespace>();
    let limiter = MaxOfRateLimiter::new(vec![
        exponential_failure_rate_limiter(BACKOFF[0], BACKOFF[1]),
        Arc::new(BucketRateLimiter::new(10.0, 100, c.clock())),
    ]);
    let queue = c.queue(QueuePolicy::default().limited_by(Arc::new(limiter)));
    let period = c.options().namespace_sync_period;
    let resync = Some(period).filter(|period| !period.is_zero());
    c.watch_resyncing(&namespaces, resync, &queue, |change, queue| {
        if !matches!(change, Change::Deleted(_)) && change.object().meta.is_being_deleted() {
            queue.add_after(change.object().meta.key(), GRACE);
        }
    });
    let (rate_factor, burst_factor) = FASTER;
    let client = c.client().with_rate(rate_factor, burst_factor);
    // In shadow mode the pace is that of the manager in charge.
    let waiting = (!c.options().shadow).then(|| Waiting::new(c, &queue));
    let this = Arc::new(NamespaceController { namespaces, waiting, client, clock: c.clock() });
    c.sync(queue, &this, NamespaceController::sync);
    Ok(())
}

/// The namespaces whose pods are being deleted.
#[derive(Clone)]
struct Waiting {
    pods: Lister<Pod>,
    namespaces: Arc<Mutex<HashSet<ArcStr>>>,
}

impl Waiting {
    fn new(c: &mut Controller, queue: &Queue<ObjectKey>) -> Waiting {
        let pods = c.lister::<Pod>();
        let waiting = Waiting { pods: pods.clone(), namespaces: Arc::default() };
        let emptied = waiting.clone();
        c.watch_resyncing(&pods, None, queue, move |change, queue| {
            let namespace = &change.object().meta.namespace;
            if matches!(change, Change::Deleted(_)) && emptied.is_over(namespace) {
                queue.add(ObjectKey::cluster(namespace));
            }
        });
        waiting
    }

    /// `waited`: the pass before has deleted all pods.
    fn cached(&self, namespace: &str, waited: bool) -> CachedPods {
        let pods = self.pods.in_namespace(namespace);
        if pods.iter().any(|pod| !pod.meta.is_being_deleted()) {
            CachedPods::Alive
        } else if waited && !pods.is_empty() {
            CachedPods::Deleted
        } else {
            CachedPods::Unknown
        }
    }

    /// Whether the last pod of a waiting namespace is gone. It does not wait any more then.
    fn is_over(&self, namespace: &str) -> bool {
        let mut namespaces = self.namespaces.lock();
        namespaces.contains(namespace)
            && self.pods.count_in(namespace) == 0
            && namespaces.remove(namespace)
    }

    /// `false`: its pods have gone meanwhile, and no further event comes.
    fn start(&self, namespace: &ArcStr) -> bool {
        self.namespaces.lock().insert(namespace.clone());
        !self.is_over(namespace)
    }

    /// Whether the namespace waited.
    fn end(&self, namespace: &str) -> bool {
        self.namespaces.lock().remove(namespace)
    }
}

struct NamespaceController {
    namespaces: Lister<Namespace>,
    waiting: Option<Waiting>,
    client: Client,
    clock: SharedClock,
}

/// A write to a namespace that is being deleted.
#[derive(Clone, Copy)]
enum Step {
    MarkTerminating,
    RemoveFinalizer,
}

impl NamespaceController {
    async fn sync(self: Arc<Self>, key: ObjectKey) -> SyncResult {
        let waited = self.waiting.as_ref().is_some_and(|waiting| waiting.end(&key.name));
        if self.namespaces.get(&key).is_none() {
            return Ok(Next::Done);
        }
        let Some(mut namespace) = unless_gone(self.client.get::<Namespace>(&key).await)? else {
            return Ok(Next::Done);
        };
        if namespace.meta.is_being_deleted() && !namespace.is_terminating() {
            match self.write(Step::MarkTerminating, namespace).await? {
                Some(marked) => namespace = marked,
                None => return Ok(Next::Done),
            }
        }
        if !namespace.meta.is_being_deleted() || namespace.spec.finalizers.is_empty() {
            return Ok(Next::Done);
        }
        let (estimate, has_pods) = self.delete_content(&mut namespace, waited).await?;
        if !estimate.is_zero() {
            let mut wait = Duration::from_secs(estimate.as_secs() / 2 + 1);
            if let Some(waiting) = self.waiting.as_ref().filter(|_| has_pods)
                && !waiting.start(&key.name)
            {
                wait = SOON;
            }
            log::debug!("content remaining in namespace {key}, waiting {wait:?}");
            return Ok(Next::After(wait));
        }
        self.write(Step::RemoveFinalizer, namespace).await?;
        Ok(Next::Done)
    }

    /// Writes, and retries after each conflict; never to another namespace of the same name.
    /// `None`: it is gone.
    async fn write(
        &self,
        step: Step,
        mut namespace: Namespace,
    ) -> Result<Option<Namespace>, Error> {
        loop {
            match self.attempt(step, &namespace).await {
                Err(error) if error.is_conflict() => {}
                written => return Ok(unless_gone(written)?),
            }
            let latest = self.client.get::<Namespace>(&namespace.meta.key()).await;
            let Some(latest) = unless_gone(latest)? else { return Ok(None) };
            if latest.meta.uid != namespace.meta.uid {
                return Err(Error::other("namespace uid has changed across retries"));
            }
            namespace = latest;
        }
    }

    async fn attempt(&self, step: Step, namespace: &Namespace) -> client::Result<Namespace> {
        match step {
            Step::MarkTerminating => {
                let mut status = namespace.status.clone();
                status.phase = Some("Terminating".to_owned());
                self.client.update_status(namespace, &status).await
            }
            Step::RemoveFinalizer => {
                let mut left: Vec<&Istr> =
                    namespace.spec.finalizers.iter().filter(|name| *name != FINALIZER).collect();
                left.sort();
                left.dedup();
                let body = json!({
                    "apiVersion": "v1", "kind": "Namespace",
                    "metadata": namespace.meta, "spec": { "finalizers": left },
                });
                let finalize = self.client.resource(&Namespace::RESOURCE).subresource("finalize");
                finalize.update(&namespace.meta.key(), &body).await
            }
        }
    }

    /// Deletes what can be deleted now, and writes the conditions. Returns how long the rest may
    /// take (zero: nothing is left), and whether pods are left.
    async fn delete_content(
        &self,
        namespace: &mut Namespace,
        waited: bool,
    ) -> Result<(Duration, bool), Error> {
        let (mut findings, mut errors) = (Findings::default(), Vec::new());
        let resources = self.discover(&mut findings, &mut errors).await;
        let (pods, others): (Vec<_>, Vec<_>) =
            resources.into_iter().partition(|found| is_pods(&found.resource));
        let mut estimate = Duration::ZERO;
        let mut has_pods = false;
        let cached = match &self.waiting {
            Some(waiting) => waiting.cached(&namespace.meta.name, waited),
            None => CachedPods::Unknown,
        };
        for found in &pods {
            let (outcome, error) =
                self.delete_resource(found, namespace, cached, &mut findings).await;
            if let Some(error) = error {
                let name = &namespace.meta.name;
                errors.push(Error::other(format!(
                    "failed to delete pods for namespace: {name}, err: {}",
                    error.message()
                )));
            }
            estimate = estimate.max(outcome.estimate);
            has_pods |= outcome.left.count > 0;
        }
        // While there are pods, the conditions show failures only.
        if !has_pods {
            let cached = CachedPods::Unknown;
            for found in &others {
                let (outcome, error) =
                    self.delete_resource(found, namespace, cached, &mut findings).await;
                errors.extend(error);
                estimate = estimate.max(outcome.estimate);
                findings.remains(&found.resource, outcome.left);
            }
        }
        self.report(namespace, &findings).await;
        Error::many(errors).map_or(Ok((estimate, has_pods)), Err)
    }

    /// The namespaced resources that can be deleted. What is not known is found, not fatal.
    async fn discover(&self, findings: &mut Findings, errors: &mut Vec<Error>) -> Vec<ApiResource> {
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
        if let Some(wrong) = resources.iter().find_map(|found| unparsable(&found.resource)) {
            findings.group_version = Some(wrong.clone());
            errors.push(Error::other(wrong));
            return Vec::new();
        }
        resources
    }

    async fn delete_resource(
        &self,
        found: &ApiResource,
        namespace: &Namespace,
        cached: CachedPods,
        findings: &mut Findings,
    ) -> (Outcome, Option<Error>) {
        let now = self.clock.now();
        let since = namespace.meta.deletion_timestamp.unwrap_or(now);
        let age = now.duration_since(since);
        let name = &namespace.meta.name;
        let mut outcome = delete_all(&self.client, found, name, age, cached).await;
        let error = outcome.error.take();
        findings.failures.extend(error.as_ref().map(Error::message));
        (outcome, error)
    }

    /// A failure here is logged: the next pass writes the conditions again.
    async fn report(&self, namespace: &mut Namespace, findings: &Findings) {
        let mut status = namespace.status.clone();
        if !findings.apply(status.conditions.get_or_insert_default(), self.clock.now()) {
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

fn unless_gone<T>(answer: client::Result<T>) -> client::Result<Option<T>> {
    match answer {
        Err(error) if error.is_not_found() => Ok(None),
        answer => answer.map(Some),
    }
}

/// Why a resource's group version cannot be parsed. Upstream: `ParseGroupVersion`.
fn unparsable(resource: &ResourceType) -> Option<String> {
    let group_version = resource.api_version();
    let slashes = group_version.matches('/').count();
    (slashes > 1).then(|| format!("unexpected GroupVersion string: {group_version}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Indexer;

    #[test]
    fn a_wait_is_over_when_the_last_pod_goes() {
        let pods = Arc::new(Indexer::new());
        let waiting = Waiting { pods: Lister::new(pods.clone()), namespaces: Arc::default() };
        let pod = |name: &str| -> Arc<Pod> {
            let metadata = json!({ "namespace": "ns", "name": name, "uid": name });
            Arc::new(serde_json::from_value(json!({ "metadata": metadata })).unwrap())
        };
        let (a, b) = (pod("a"), pod("b"));
        pods.insert(a.clone());
        pods.insert(b.clone());
        assert!(!waiting.is_over("ns"), "it does not wait");
        assert!(waiting.start(&"ns".into()));
        pods.remove(&a.meta.key());
        assert!(!waiting.is_over("ns"), "a pod is left");
        pods.remove(&b.meta.key());
        assert!(!waiting.is_over("other"));
        assert!(waiting.is_over("ns"));
        assert!(!waiting.is_over("ns"), "once");
        assert!(!waiting.start(&"ns".into()), "they went before it waited");
        assert!(!waiting.is_over("ns"));
        pods.insert(a.clone());
        assert!(waiting.start(&"ns".into()));
        assert!(waiting.end("ns"));
        assert!(!waiting.end("ns"), "once");
        pods.remove(&a.meta.key());
        assert!(!waiting.is_over("ns"), "a sync has begun");
    }

    #[test]
    fn pods_that_are_not_being_deleted_count_first() {
        let pods = Arc::new(Indexer::new());
        let waiting = Waiting { pods: Lister::new(pods.clone()), namespaces: Arc::default() };
        let put = |name: &str, deleted: Option<&str>| {
            let metadata = json!({
                "namespace": "ns", "name": name, "uid": name, "deletionTimestamp": deleted,
            });
            let pod: Pod = serde_json::from_value(json!({ "metadata": metadata })).unwrap();
            pods.insert(Arc::new(pod));
        };
        let cached = |waited| waiting.cached("ns", waited);
        assert_eq!([cached(false), cached(true)], [CachedPods::Unknown; 2]);
        put("a", Some("2026-01-01T00:00:00Z"));
        assert_eq!([cached(false), cached(true)], [CachedPods::Unknown, CachedPods::Deleted]);
        put("b", None);
        assert_eq!([cached(false), cached(true)], [CachedPods::Alive; 2]);
    }

    #[test]
    fn a_group_version_has_one_slash_at_most() {
        let of = |group, version| unparsable(&ResourceType::fixed(group, version, "K", "ks", true));
        assert_eq!((of("", "v1"), of("apps", "v1")), (None, None));
        assert_eq!(of("a/b", "v1").as_deref(), Some("unexpected GroupVersion string: a/b/v1"));
    }
}
