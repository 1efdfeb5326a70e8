//! One sync of a DaemonSet: revisions, pods, status.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::backoff::FailureKey;
use super::fit::{Fit, tolerated};
use super::manage::{self, Situation};
use super::revisions::Revisions;
use super::rolling::{self, Limits, is_rolling_update};
use super::sites::{Availability, GENERATION_ANNOTATION, GENERATION_LABEL, Version, group};
use super::status::Counts;
use super::{BURST_REPLICAS, DaemonSets};
use crate::controllers::runner::batch::{SLOW_START_INITIAL_BATCH_SIZE, slow_start, together};
use crate::controllers::workloads::history::REVISION_LABEL;
use crate::controllers::workloads::new_pod::NewPod;
use crate::controllers::workloads::pod_control::{is_gone, is_seen_to_go};
use crate::controllers::workloads::ref_manager::{
    ControllerRefManager, owned_or_orphaned, recheck_deletion_timestamp,
};
use crate::controllers::{Error, Next, SyncResult};
use crate::metrics::metrics;
use crate::objects::{DaemonSet, ObjectKey, Pod, PodPhase, Resource, Selector, Uid};

metrics! {
    pub(super) fn register_metrics;
    static STALE_SYNC_SKIPS: IntCounterVec["group", "resource"] =
        "daemonset_controller_stale_sync_skips_total",
        "[ALPHA] Total number of DaemonSet syncs skipped due to a stale watch cache.";
}

/// What one sync works on.
struct Work {
    set: Arc<DaemonSet>,
    key: ObjectKey,
    selector: Selector,
    /// All nodes, and how they suit the set.
    nodes: Vec<(Arc<str>, Fit)>,
    /// Those of the set, as the cache had them when they were last claimed.
    pods: Vec<Arc<Pod>>,
    revisions: Revisions,
}

impl Work {
    fn version(&self) -> Version<'_> {
        let annotation = self.set.meta.annotations.get(GENERATION_ANNOTATION);
        let generation = annotation.and_then(|text| text.parse().ok());
        Version { hash: &self.revisions.hash, generation }
    }
}

impl DaemonSets {
    /// Upstream: `syncDaemonSet`.
    pub(super) async fn sync(self: Arc<Self>, key: ObjectKey) -> SyncResult {
        if let Some(lag) = self.consistency.lagging(&key) {
            let labels = [&*lag.resource.group, &*lag.resource.plural];
            STALE_SYNC_SKIPS.with_label_values(&labels).inc();
            return Err(lag.into());
        }
        let Some(set) = self.sets.get(&key) else {
            self.consistency.clear(&key, None);
            self.expectations.forget(&key);
            return Ok(Next::Done);
        };
        let selector = Selector::try_from(set.spec.selector.as_ref());
        // Only a new spec can mend a broken selector, and that wakes the set.
        let selector = selector.map_err(|error| Error::Terminal(Box::new(error.into())))?;
        if selector.is_empty() {
            let message =
                "This daemon set is selecting all pods. A non-empty selector is required.";
            self.recorder.warning(&*set, "SelectingAll", message);
            return Ok(Next::Done);
        }
        // Its revisions may be orphaned or deleted before its pods, so nothing can be said of them.
        if set.meta.is_being_deleted() {
            return Ok(Next::Done);
        }
        if self.consistency.settle(&key, &selector, &self.client).await? {
            self.consistency.ensure_ready(&key)?;
        }
        let fit = |node: &Arc<_>| self.fit(node, &set);
        let nodes = self.nodes.list().iter().map(fit).collect();
        let pods = self.claimed_pods(&set, &selector).await?;
        let doing = "failed to construct revisions of DaemonSet";
        let revisions = self.revisions(&set, &selector, &pods).await;
        let revisions = revisions.map_err(|error| Error::during(doing, error))?;
        let mut work = Work { set, key, selector, nodes, pods, revisions };

        if !self.expectations.satisfied(&work.key) {
            // This generation was not acted on.
            return self.update_status(&work, false).await.map(next);
        }
        let (mut again, mut failure) = (None, None);
        match self.update(&mut work).await {
            Ok(wait) => again = wait,
            Err(error) => failure = Some(error),
        }
        let written = self.update_status(&work, true).await;
        match (failure, written) {
            (Some(failure), written) => {
                if let Err(error) = written {
                    log::error!("{}: failed to update the status: {error}", work.key);
                }
                Err(failure)
            }
            (None, Err(error)) => Err(error),
            (None, Ok(period)) => Ok(next(again.into_iter().chain(period).min())),
        }
    }

    /// Upstream: `getDaemonPods`.
    async fn claimed_pods(
        &self,
        set: &Arc<DaemonSet>,
        selector: &Selector,
    ) -> Result<Vec<Arc<Pod>>, Error> {
        let manager = ControllerRefManager {
            client: &self.client,
            owner: &set.meta,
            owner_ref: set.meta.controller_ref::<DaemonSet>(),
            selector,
            finalizers: &[],
        };
        let candidates = owned_or_orphaned(&self.pods, &set.meta);
        let orphans: HashSet<Uid> = candidates
            .iter()
            .filter(|pod| pod.meta.controller().is_none())
            .map(|pod| pod.meta.uid.clone())
            .collect();
        // The cache may not know yet that the set is going, or is another by now.
        let recheck = recheck_deletion_timestamp::<DaemonSet>(&self.client, &set.meta);
        let claimed = manager.claim(candidates, |_| true, || recheck).await?;
        if !orphans.is_empty() {
            for adopted in claimed.iter().filter(|pod| orphans.contains(&pod.meta.uid)) {
                self.pod_control.wrote(&set.meta, &adopted.meta);
            }
        }
        Ok(claimed)
    }

    /// Brings the pods to where they should be. Returns when a failed pod may be replaced that has
    /// to wait now. Upstream: `updateDaemonSet`.
    async fn update(&self, work: &mut Work) -> Result<Option<Duration>, Error> {
        let strategy = work.set.spec.update_strategy.clone();
        let availability = self.availability(&work.set);
        let hash = &*work.revisions.hash;
        let situation = Situation { hash, surges: rolling::surges(&strategy), availability };
        let mut sites = group(&work.nodes, &work.pods);
        let plan = manage::plan(&sites, &situation, |node| self.wait(&work.set, node));
        for (pod, node) in &plan.ended {
            self.report_end(&work.set, pod, node);
        }
        if !plan.create.is_empty() || !plan.delete.is_empty() {
            self.write(work, plan.create, plan.delete).await?;
            // The cache may have seen some of it.
            work.pods = self.claimed_pods(&work.set, &work.selector).await?;
            sites = group(&work.nodes, &work.pods);
        }
        if self.expectations.satisfied(&work.key) && is_rolling_update(&strategy) {
            let failed = |error| Error::other(format!("couldn't get unavailable numbers: {error}"));
            let desired = sites.iter().filter(|site| site.should_run()).count();
            let desired = i32::try_from(desired).unwrap_or(i32::MAX);
            let limits = Limits::of(&strategy, desired).map_err(failed)?;
            let (version, availability) = (work.version(), self.availability(&work.set));
            let rolling::Plan { delete, create } = match limits.max_surge {
                0 => rolling::replace(&sites, &version, availability, limits.max_unavailable),
                max_surge => rolling::surge(&sites, &version, availability, max_surge)
                    .map_err(Error::other)?,
            };
            if !create.is_empty() || !delete.is_empty() {
                self.write(work, create, delete).await?;
                work.pods = self.claimed_pods(&work.set, &work.selector).await?;
            }
        }
        let doing = "failed to clean up revisions of DaemonSet";
        let cleaned = self.clean_up_revisions(&work.set, &work.revisions.old, &work.pods).await;
        cleaned.map_err(|error| Error::during(doing, error))?;
        Ok(plan.again)
    }

    fn availability(&self, set: &DaemonSet) -> Availability {
        Availability { min_ready_seconds: set.spec.min_ready_seconds, now: self.clock.now() }
    }

    /// How long a failed pod of `set` on `node` has to wait for its replacement.
    fn wait(&self, set: &DaemonSet, node: &Arc<str>) -> Duration {
        let generation = set.status.observed_generation.unwrap_or(0);
        let key = FailureKey { set: set.meta.uid.clone(), generation, node: node.clone() };
        self.backoff.lock().wait(key, self.clock.monotonic())
    }

    fn report_end(&self, set: &DaemonSet, pod: &Pod, node: &str) {
        let key = pod.meta.key();
        if pod.status.phase == PodPhase::Failed {
            let message =
                format!("Found failed daemon pod {key} on node {node}, will try to kill it");
            self.recorder.warning(set, "FailedDaemonPod", message);
        } else {
            let message =
                format!("Found succeeded daemon pod {key} on node {node}, will try to delete it");
            self.recorder.normal(set, "SucceededDaemonPod", message);
        }
    }

    /// Creates and deletes pods, a burst of each at most. Upstream: `syncNodes`.
    async fn write(
        &self,
        work: &Work,
        mut create: Vec<Arc<str>>,
        mut delete: Vec<Arc<Pod>>,
    ) -> Result<(), Error> {
        create.truncate(BURST_REPLICAS);
        delete.truncate(BURST_REPLICAS);
        let Work { set, key, .. } = work;
        let template = match create.is_empty() {
            true => None,
            false => Some(self.new_pod(work)?),
        };
        log::debug!("{key}: creating {} pods, deleting {}", create.len(), delete.len());
        let uids = delete.iter().map(|pod| pod.meta.uid.clone()).collect();
        self.expectations.expect(key, create.len(), uids);
        let mut errors = Vec::new();
        if let Some(template) = template {
            errors.extend(self.create(set, key, template, create).await.err());
        }
        errors.extend(self.delete(set, key, delete).await.err());
        Error::many(errors).map_or(Ok(()), Err)
    }

    /// The pod of the current version, for no node yet. Upstream: `CreatePodTemplate`.
    fn new_pod(&self, work: &Work) -> Result<NewPod, Error> {
        let (set, Version { hash, generation }) = (&work.set, work.version());
        let mut pod = NewPod::of::<DaemonSet>(&set.meta, &set.spec.template)?;
        if let Some(generation) = generation {
            pod.metadata.set_label(GENERATION_LABEL, &generation.to_string());
        }
        if !hash.is_empty() {
            pod.metadata.set_label(REVISION_LABEL, hash);
        }
        pod.edit_spec(|spec| {
            tolerated(spec.is_on_host_network())
                .try_for_each(|(key, effect)| spec.tolerate(key, effect))
        })?;
        Ok(pod)
    }

    async fn create(
        &self,
        set: &Arc<DaemonSet>,
        key: &ObjectKey,
        template: NewPod,
        nodes: Vec<Arc<str>>,
    ) -> Result<(), Error> {
        let (count, template, taken) = (nodes.len(), Arc::new(template), AtomicUsize::new(0));
        let (created, failure) = slow_start(count, SLOW_START_INITIAL_BATCH_SIZE, || {
            let node = nodes.get(taken.fetch_add(1, Ordering::Relaxed)).cloned();
            let (control, set, template) =
                (self.pod_control.clone(), set.clone(), template.clone());
            async move {
                let Some(node) = node else { return Ok(()) };
                let mut pod = (*template).clone();
                pod.edit_spec(|spec| spec.pin_to_node(&node))?;
                control.create(&*set, &pod).await
            }
        })
        .await;
        let terminates = |error: &Error| error.api().is_some_and(|e| e.is_namespace_terminating());
        if failure.as_ref().is_some_and(terminates) {
            // The set terminates as well, so its expectations may stay unmet.
            return Ok(());
        }
        // No event comes for pods that were not created.
        for _ in created..count {
            self.expectations.creation_observed(key);
        }
        failure.map_or(Ok(()), Err)
    }

    async fn delete(
        &self,
        set: &Arc<DaemonSet>,
        key: &ObjectKey,
        pods: Vec<Arc<Pod>>,
    ) -> Result<(), Error> {
        let deletions = pods.into_iter().map(|pod| {
            let (control, set, key) = (self.pod_control.clone(), set.clone(), key.clone());
            let (expectations, cached) = (self.expectations.clone(), self.pods.clone());
            async move {
                let result = control.delete(&*set, &pod).await;
                // No event comes for this deletion, or it came before the expectation.
                if result.is_err() || is_seen_to_go(&pod, &cached) {
                    expectations.deletion_observed(&key, &pod.meta.uid);
                }
                result
            }
        });
        let failed = together(deletions).await.into_iter().filter_map(Result::err);
        Error::many(failed.filter(|error| !is_gone(error)).collect()).map_or(Ok(()), Err)
    }

    /// Writes the status if it is news, once more on the live set if that fails. `acted`: on the
    /// set's generation. Returns when to look again at pods that are not ready for long enough.
    async fn update_status(&self, work: &Work, acted: bool) -> Result<Option<Duration>, Error> {
        let Work { set, key, .. } = work;
        let sites = group(&work.nodes, &work.pods);
        let counts = Counts::of(&sites, &work.version(), self.availability(set));
        let generation = acted.then_some(set.meta.generation);
        let status = counts.put_into(&set.status, generation);
        if status != set.status {
            let updated = match self.client.update_status(&**set, &status).await {
                Ok(updated) => updated,
                Err(error) => {
                    let live: DaemonSet = self.client.get(key).await?;
                    if live.meta.uid != set.meta.uid {
                        return Err(error.into());
                    }
                    let status = counts.put_into(&live.status, generation);
                    self.client.update_status(&live, &status).await?
                }
            };
            let version = updated.meta.resource_version;
            self.consistency.wrote_at(key, &set.meta.uid, &DaemonSet::RESOURCE, version);
        }
        let period = u64::try_from(set.spec.min_ready_seconds).unwrap_or(0);
        let waits = period > 0 && counts.ready != counts.available;
        Ok(waits.then(|| Duration::from_secs(period)))
    }
}

fn next(after: Option<Duration>) -> Next {
    after.map_or(Next::Done, Next::After)
}
