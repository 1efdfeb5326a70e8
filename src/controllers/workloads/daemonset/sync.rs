//! One sync of a DaemonSet: revisions, pods, status.

use std::sync::Arc;
use std::time::Duration;

use super::backoff::FailureKey;
use super::fit::{Fit, tolerated_taints};
use super::manage::{self, PlanInput};
use super::revisions::Revisions;
use super::rolling::{self, Limits, is_rolling_update};
use super::sites::{
    Availability, GENERATION_ANNOTATION, GENERATION_LABEL, NodePods, Version, group_by_node,
};
use super::status::Counts;
use super::{BURST_REPLICAS, DaemonSets};
use crate::controllers::workloads::availability;
use crate::controllers::workloads::history::REVISION_LABEL;
use crate::controllers::workloads::new_pod::NewPod;
use crate::controllers::workloads::pod_batch::{create_expected, delete_expected};
use crate::controllers::workloads::ref_manager::{ControllerRefManager, owned_or_orphaned_pods};
use crate::controllers::{Error, Next, SyncResult};
use crate::metrics::metrics;
use crate::objects::{ArcStr, DaemonSet, ObjectKey, Pod, PodPhase, Resource, Selector, Timestamp};

metrics! {
    fn register_metrics;
    static STALE_SYNC_SKIPS: IntCounterVec["group", "resource"] =
        "daemonset_controller_stale_sync_skips_total",
        "[ALPHA] Total number of DaemonSet syncs skipped due to a stale watch cache.";
}

/// The state of one sync.
struct Work {
    set: Arc<DaemonSet>,
    key: ObjectKey,
    selector: Selector,
    /// All nodes, with their fit for the set.
    nodes: Vec<(ArcStr, Fit)>,
    /// The pods of the set, as the cache had them when they were last claimed.
    pods: Vec<Arc<Pod>>,
    /// The nodes with these pods.
    sites: Vec<NodePods>,
    revisions: Revisions,
    /// The time before the available pods were counted.
    began: Timestamp,
}

impl Work {
    /// Replaces the pods by those read after some were written.
    fn set_pods(&mut self, pods: Vec<Arc<Pod>>) {
        self.sites = group_by_node(&self.nodes, &pods);
        self.pods = pods;
    }

    /// Returns the version by which current pods are recognised. Upstream: `GetTemplateGeneration`.
    fn version(&self) -> Version<'_> {
        let annotation = self.set.meta.annotations.get(GENERATION_ANNOTATION);
        let generation = annotation.and_then(|text| text.parse().ok());
        Version { hash: &self.revisions.hash, generation }
    }
}

impl DaemonSets {
    /// Creates, deletes and updates the pods of a set, and writes its status. Does nothing for one
    /// that is being deleted, or that selects all pods, which an event reports.
    /// Upstream: `syncDaemonSet`.
    pub(super) async fn sync(self: Arc<Self>, key: ObjectKey) -> SyncResult {
        self.consistency.start_sync(&key, &STALE_SYNC_SKIPS)?;
        let Some(set) = self.sets.get(&key) else {
            self.records.forget(&key, None);
            return Ok(Next::Done);
        };
        let selector = Selector::try_from(set.spec.selector.as_ref());
        // Only a new spec can repair the selector, and that queues the set.
        let selector = selector.map_err(|error| Error::Terminal(Box::new(error.into())))?;
        if selector.is_empty() {
            let message =
                "This daemon set is selecting all pods. A non-empty selector is required.";
            self.recorder.warning(&*set, "SelectingAll", message);
            return Ok(Next::Done);
        }
        // Its revisions may be orphaned or deleted before its pods, so the pods have no known
        // version.
        if set.meta.is_being_deleted() {
            return Ok(Next::Done);
        }
        self.consistency.note_successor(&key, &set.meta.uid, &Pod::RESOURCE);
        if self.consistency.settle(&key, &selector, &self.client).await? {
            self.consistency.ensure_ready(&key)?;
        }
        let fit = |node: &Arc<_>| self.fit(node, &set);
        let nodes: Vec<_> = self.nodes.list().iter().map(fit).collect();
        // Checked before the pods are read, so that the pods that met the expectations are among
        // them.
        let satisfied = self.expectations.satisfied(&key);
        let mut pods = self.claimed_pods(&set, &selector).await?;
        let doing = "failed to construct revisions of DaemonSet";
        let revisions = self.revisions(&set, &selector, &mut pods).await;
        let revisions = revisions.map_err(|error| Error::during(doing, error))?;
        let sites = group_by_node(&nodes, &pods);
        let began = self.clock.now();
        let mut work = Work { set, key, selector, nodes, pods, sites, revisions, began };

        if !satisfied {
            // This generation was not acted on.
            return self.update_status(&work, false).await.map(next);
        }
        let mut again = None;
        let updated = self.update(&mut work, &mut again).await;
        let written = self.update_status(&work, true).await;
        // The earlier of both checks.
        if let Ok(Some(period)) = written {
            again = Some(again.map_or(period, |again| again.min(period)));
        }
        let failure = match (updated, written) {
            (Ok(()), Ok(_)) => return Ok(next(again)),
            (Ok(()), Err(error)) => error,
            (Err(failure), written) => {
                if let Err(error) = written {
                    log::error!("{}: failed to update the status: {error}", work.key);
                }
                failure
            }
        };
        // The timer does not wait for the retry, whose back-off may be long.
        if let Some(again) = again {
            self.queue.add_after(work.key, again);
        }
        Err(failure)
    }

    /// Returns the pods that the set owns, after adopting orphans and releasing others.
    /// Upstream: `getDaemonPods`.
    async fn claimed_pods(
        &self,
        set: &Arc<DaemonSet>,
        selector: &Selector,
    ) -> Result<Vec<Arc<Pod>>, Error> {
        let candidates = owned_or_orphaned_pods::<DaemonSet>(&self.pods, &set.meta);
        let manager = ControllerRefManager::new::<DaemonSet>(&self.client, &set.meta, selector);
        manager.recording(&self.consistency).claim::<DaemonSet, _>(candidates, |_| true).await
    }

    /// Creates missing pods and deletes surplus ones, takes a step of a rollout, and deletes old
    /// revisions. `again`: the time until a failed pod that has to wait may be replaced. It is set
    /// also after a failure. Upstream: `updateDaemonSet`.
    async fn update(&self, work: &mut Work, again: &mut Option<Duration>) -> Result<(), Error> {
        let strategy = work.set.spec.update_strategy.clone();
        let availability = self.availability(&work.set);
        let hash = &*work.revisions.hash;
        let input = PlanInput { hash, surges: rolling::allows_surge(&strategy), availability };
        let plan = manage::plan(&work.sites, &input, |node| self.wait(&work.set, node));
        *again = plan.again;
        for (pod, node) in &plan.ended {
            self.report_end(&work.set, pod, node);
        }
        if !plan.create.is_empty() || !plan.delete.is_empty() {
            self.write(work, plan.create, plan.delete).await?;
            // The cache may have seen some of the writes.
            work.set_pods(self.claimed_pods(&work.set, &work.selector).await?);
        }
        if self.expectations.satisfied(&work.key) && is_rolling_update(&strategy) {
            let failed = |error| Error::other(format!("couldn't get unavailable numbers: {error}"));
            let sites = &work.sites;
            let desired = sites.iter().filter(|site| site.should_run()).count();
            let desired = i32::try_from(desired).unwrap_or(i32::MAX);
            let limits = Limits::new(&strategy, desired).map_err(failed)?;
            let (version, availability) = (work.version(), self.availability(&work.set));
            let rolling::Plan { delete, create } = match limits.max_surge {
                0 => {
                    let most = limits.max_unavailable;
                    rolling::plan_replacement(sites, &version, availability, most)
                }
                max_surge => rolling::plan_surge(sites, &version, availability, max_surge)
                    .map_err(Error::other)?,
            };
            if !create.is_empty() || !delete.is_empty() {
                self.write(work, create, delete).await?;
                work.set_pods(self.claimed_pods(&work.set, &work.selector).await?);
            }
        }
        let doing = "failed to clean up revisions of DaemonSet";
        let cleaned = self.clean_up_revisions(&work.set, &work.revisions.old, &work.pods).await;
        cleaned.map_err(|error| Error::during(doing, error))
    }

    fn availability(&self, set: &DaemonSet) -> Availability {
        Availability { min_ready_seconds: set.spec.min_ready_seconds, now: self.clock.now() }
    }

    /// Counts a failed pod of `set` on `node`, and returns how long it has to wait for its
    /// replacement: see `Backoff::wait`.
    fn wait(&self, set: &DaemonSet, node: &ArcStr) -> Duration {
        let generation = set.status.observed_generation.unwrap_or(0);
        let key = FailureKey { set: set.meta.uid.clone(), generation, node: node.clone() };
        self.backoff.lock().wait(key, self.clock.monotonic())
    }

    /// Records the event about an ended pod that is deleted so that another takes its place.
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
        mut create: Vec<ArcStr>,
        mut delete: Vec<Arc<Pod>>,
    ) -> Result<(), Error> {
        create.truncate(BURST_REPLICAS);
        delete.truncate(BURST_REPLICAS);
        let Work { set, key, .. } = work;
        let mut errors = Vec::new();
        // A failed creation does not prevent deletions.
        let template = match create.is_empty() {
            true => None,
            false => self.new_pod(work).map_err(|error| errors.push(error)).ok(),
        };
        if template.is_none() {
            create.clear();
        }
        log::debug!("{key}: creating {} pods, deleting {}", create.len(), delete.len());
        let uids = delete.iter().map(|pod| pod.meta.uid.clone()).collect();
        self.expectations.expect(key, create.len(), uids);
        if let Some(template) = template {
            errors.extend(self.create(set, key, template, create).await.err());
        }
        let control = &self.pod_control;
        errors.extend(delete_expected(control, set, &self.expectations, &self.pods, delete).await);
        Error::many(errors).map_or(Ok(()), Err)
    }

    /// Makes the pod of the current version, without a node yet.
    /// Upstream: `CreatePodTemplate`.
    fn new_pod(&self, work: &Work) -> Result<NewPod, Error> {
        let (set, Version { hash, generation }) = (&work.set, work.version());
        let mut pod = NewPod::new::<DaemonSet>(&set.meta, &set.spec.template)?;
        if let Some(generation) = generation {
            pod.metadata.set_label(GENERATION_LABEL, &generation.to_string());
        }
        if !hash.is_empty() {
            pod.metadata.set_label(REVISION_LABEL, hash);
        }
        pod.edit_spec(|spec| {
            tolerated_taints(spec.is_on_host_network())
                .try_for_each(|(key, effect)| spec.tolerate(key, effect))
        })?;
        Ok(pod)
    }

    /// Creates a pod of `template` on each of `nodes`.
    async fn create(
        &self,
        set: &Arc<DaemonSet>,
        key: &ObjectKey,
        template: NewPod,
        nodes: Vec<ArcStr>,
    ) -> Result<(), Error> {
        let template = Arc::new(template);
        let create = |at: usize| {
            let (node, control) = (nodes[at].clone(), self.pod_control.clone());
            let (set, template) = (set.clone(), template.clone());
            async move {
                let mut pod = (*template).clone();
                pod.edit_spec(|spec| spec.pin_to_node(&node))?;
                control.create_on(&*set, &pod.encode()?, Some(&node)).await
            }
        };
        let count = nodes.len();
        let (_, failure) = create_expected(&self.expectations, key, count, create).await;
        match failure {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Writes the status if it differs, and after a failure once more on the live set. `acted`:
    /// whether this sync acted on the set's generation. Returns when to check pods that are not yet
    /// ready for `minReadySeconds`. Upstream checks only for the first pod of a node, so it can
    /// miss the successor of a surge that became ready while another check was due.
    async fn update_status(&self, work: &Work, acted: bool) -> Result<Option<Duration>, Error> {
        let Work { set, key, .. } = work;
        let counts = Counts::new(&work.sites, &work.version(), self.availability(set));
        let generation = acted.then_some(set.meta.generation);
        let status = counts.put_into(&set.status, generation);
        if status != set.status {
            let written = match self.client.update_status_for_metadata(&**set, &status).await {
                Ok(written) => written,
                Err(error) => {
                    let live: DaemonSet = self.client.get(key).await?;
                    if live.meta.uid != set.meta.uid {
                        return Err(error.into());
                    }
                    let status = counts.put_into(&live.status, generation);
                    self.client.update_status_for_metadata(&live, &status).await?
                }
            };
            let version = written.meta.resource_version;
            self.consistency.record_write(key, &set.meta.uid, &DaemonSet::RESOURCE, version);
        }
        let (min_ready, now) = (set.spec.min_ready_seconds, self.clock.now());
        if min_ready <= 0 {
            return Ok(None);
        }
        Ok(availability::next_check(&work.pods, min_ready, work.began, now))
    }
}

/// Returns how a successful sync ends: the set is synced again `after` this time; with `None` only
/// an event queues it.
fn next(after: Option<Duration>) -> Next {
    after.map_or(Next::Done, Next::After)
}

#[cfg(test)]
mod tests {
    use futures_lite::future::block_on;
    use parking_lot::Mutex;
    use serde_json::json;

    use super::*;
    use crate::cache::{Indexer, Lister};
    use crate::client::Client;
    use crate::client::testing::answering;
    use crate::clock::FakeClock;
    use crate::controllers::QueuePolicy;
    use crate::controllers::runner::Queue;
    use crate::controllers::workloads::changed_revisions::ChangedRevisions;
    use crate::controllers::workloads::expectations::Expectations;
    use crate::controllers::workloads::owner_records::OwnerRecords;
    use crate::controllers::workloads::pod_control::PodControl;
    use crate::events::Recorder;
    use crate::events::testing::Heard;
    use crate::objects::Object;

    fn empty<T: Object>() -> Lister<T> {
        Lister::new(Arc::new(Indexer::new()))
    }

    /// A controller with only `set` in its cache, and its clock.
    fn knowing(set: DaemonSet, client: Client, recorder: Recorder, now: i64) -> Arc<DaemonSets> {
        let sets = Arc::new(Indexer::new());
        sets.insert(Arc::new(set));
        let clock = FakeClock::new(Timestamp::from_secs(now));
        Arc::new(DaemonSets {
            pod_control: PodControl::new(client.clone(), recorder.clone(), clock.clone()),
            changed_revisions: Arc::new(ChangedRevisions::new(recorder.clone())),
            client,
            recorder,
            sets: Lister::new(sets),
            pods: empty(),
            nodes: empty(),
            revisions: empty(),
            queue: Queue::new("", QueuePolicy::default(), clock.clone()),
            expectations: Arc::new(Expectations::new(clock.clone())),
            consistency: Arc::default(),
            records: OwnerRecords::default(),
            backoff: Mutex::default(),
            clock,
            comparison: false,
        })
    }

    #[test]
    fn a_set_that_selects_all_pods_is_reported_and_not_synced() {
        let requests = Arc::new(Mutex::new(Vec::new()));
        let heard_requests = requests.clone();
        let client = block_on(answering(move |line| {
            heard_requests.lock().push(line.to_owned());
            (404, json!({}))
        }));
        let set: DaemonSet = serde_json::from_value(json!({
            "metadata": { "namespace": "ns", "name": "d", "uid": "u" },
            "spec": { "selector": {} },
        }))
        .unwrap();
        let heard = Arc::new(Heard::default());
        let this = knowing(set, client, Recorder::to_sink(heard.clone()), 0);
        assert!(matches!(block_on(this.sync(ObjectKey::new("ns", "d"))), Ok(Next::Done)));
        let message = "This daemon set is selecting all pods. A non-empty selector is required.";
        assert_eq!(heard.take(), [format!("Warning SelectingAll {message}")]);
        assert!(requests.lock().is_empty());
    }

    /// A custom resource may have the kind and the name of a set.
    #[test]
    fn a_changed_node_queues_a_set_that_has_no_pod_of_its_own_there() {
        let set = json!({ "metadata": { "namespace": "ns", "name": "d", "uid": "u" } });
        let client = block_on(answering(|_| (404, json!({}))));
        let key = ObjectKey::new("ns", "d");
        for (owner, queued) in [("u", vec![]), ("of-another-group", vec![key])] {
            let recorder = Recorder::to_sink(Arc::new(Heard::default()));
            let set = serde_json::from_value(set.clone()).unwrap();
            let mut this = knowing(set, client.clone(), recorder, 0);
            let (pods, nodes) = (Arc::new(Indexer::<Pod>::new()), Arc::new(Indexer::new()));
            pods.add_index(&super::super::BY_NODE);
            let pod = json!({
                "metadata": { "namespace": "ns", "name": "p", "ownerReferences": [{
                    "kind": "DaemonSet", "name": "d", "uid": owner, "controller": true }] },
                "spec": { "nodeName": "n" },
            });
            pods.insert(Arc::new(serde_json::from_value::<Pod>(pod).unwrap()));
            let node = json!({ "metadata": { "name": "n" } });
            nodes.insert(Arc::new(serde_json::from_value::<crate::objects::Node>(node).unwrap()));
            let knows = Arc::get_mut(&mut this).unwrap();
            (knows.pods, knows.nodes) = (Lister::new(pods), Lister::new(nodes));
            block_on(this.clone().sync_node(ObjectKey::cluster("n"))).unwrap();
            assert_eq!(this.queue.drain(), queued, "{owner}");
        }
    }

    /// The first pod of the node is available, so the status alone has nothing to wait for.
    #[test]
    fn the_successor_of_a_surge_is_checked_when_it_is_available() {
        let pod = |name: &str, ready_since: i64| -> Arc<Pod> {
            let since = Timestamp::from_secs(ready_since).to_string();
            let value = json!({
                "metadata": { "namespace": "ns", "name": name, "creationTimestamp": since },
                "spec": { "nodeName": "n" },
                "status": { "conditions":
                    [{ "type": "Ready", "status": "True", "lastTransitionTime": since }] },
            });
            Arc::new(serde_json::from_value(value).unwrap())
        };
        for (min_ready, successor_since, expected) in
            [(10, 995, Some(5)), (10, 1000, Some(10)), (10, 990, None), (0, 995, None)]
        {
            let set = json!({
                "metadata": { "namespace": "ns", "name": "d", "uid": "u" },
                "spec": { "minReadySeconds": min_ready },
            });
            let answer = set.clone();
            let client = block_on(answering(move |_| (200, answer.clone())));
            let set: DaemonSet = serde_json::from_value(set).unwrap();
            let recorder = Recorder::to_sink(Arc::new(Heard::default()));
            let this = knowing(set.clone(), client, recorder, 1000);
            let nodes = vec![("n".into(), Fit { should_run: true, may_stay: true })];
            let pods = vec![pod("old", 900), pod("new", successor_since)];
            let work = Work {
                key: set.meta.key(),
                set: Arc::new(set),
                selector: Selector::everything(),
                sites: group_by_node(&nodes, &pods),
                nodes,
                pods,
                revisions: Revisions { hash: "h".to_owned(), old: Vec::new() },
                began: this.clock.now(),
            };
            let again = block_on(this.update_status(&work, true)).unwrap();
            assert_eq!(again, expected.map(Duration::from_secs), "{min_ready} {successor_since}");
        }
    }
}
