//! One sync of a ReplicaSet: claim pods, create or delete some, write the status.

use std::sync::Arc;
use std::time::Duration;

use super::{BURST_REPLICAS, ReplicaSets, Replicating, ranking, status};
use crate::cache::IndexValue;
use crate::controllers::workloads::availability;
use crate::controllers::workloads::new_pod::NewPod;
use crate::controllers::workloads::pod_batch::{create_expected, delete_expected};
use crate::controllers::workloads::ref_manager::{
    ControllerRefManager, controller_index, owned_or_orphaned_pods,
};
use crate::controllers::{Error, Next, SyncResult};
use crate::metrics::{exponential, metrics};
use crate::objects::{ObjectKey, Pod, ReplicaSetStatus, Resource, Selector, Timestamp};

metrics! {
    fn register_metrics;
    static STALE_SYNC_SKIPS: IntCounterVec["group", "resource"] =
        "replicaset_controller_stale_sync_skips_total",
        "[ALPHA] Total number of ReplicaSet syncs skipped due to a stale watch cache.";
    static SORTING_DELETION_AGE_RATIO: Histogram(exponential(0.25, 2.0, 6)) =
        "replicaset_controller_sorting_deletion_age_ratio",
        "[ALPHA] The ratio of chosen deleted pod's ages to the current youngest pod's age (at the \
         time). Should be <2. The intent of this metric is to measure the rough efficacy of the \
         LogarithmicScaleDown feature gate's effect on the sorting (and deletion) of pods when a \
         replicaset scales down. This only considers Ready pods when calculating and reporting.";
}

/// What is to be done about the number of pods.
#[derive(Debug, PartialEq)]
enum Plan {
    Nothing,
    Create(usize),
    Delete(Vec<Arc<Pod>>),
}

/// Plans how many pods a sync creates, or which it deletes. `related`: see [`ranking::choose`].
fn plan(
    replicas: i32,
    active: &[Arc<Pod>],
    related: impl FnOnce() -> Vec<Arc<Pod>>,
    now: Timestamp,
    uses_deletion_cost: bool,
) -> Plan {
    let wanted = usize::try_from(replicas).unwrap_or(0);
    match active.len() {
        have if have < wanted => Plan::Create((wanted - have).min(BURST_REPLICAS)),
        have if have > wanted => {
            let count = (have - wanted).min(BURST_REPLICAS);
            let pods = active.to_vec();
            Plan::Delete(ranking::choose(pods, count, related, now, uses_deletion_cost))
        }
        _ => Plan::Nothing,
    }
}

impl<S: Replicating> ReplicaSets<S> {
    /// Creates or deletes pods of a set, and writes its status.
    /// Upstream: `syncReplicaSet`.
    pub(super) async fn sync(self: Arc<Self>, key: ObjectKey) -> SyncResult {
        self.consistency.start_sync(&key, &STALE_SYNC_SKIPS)?;
        let Some(set) = self.sets.get(&key) else {
            self.records.forget(&key, None);
            return Ok(Next::Done);
        };
        let satisfied = self.expectations.satisfied(&key);
        let selector = match Selector::try_from(set.spec().selector.as_ref()) {
            Ok(selector) => selector,
            Err(error) => {
                // Only a new spec can repair it, and that queues the set.
                log::error!("error converting pod selector to selector for {key}: {error}");
                return Ok(Next::Done);
            }
        };

        // The outcome of a write may be unknown, or a deleted set of this name may have left orphans:
        // then the server is asked what there is, and the sync waits until the cache has it.
        self.consistency.note_successor(&key, &set.meta().uid, &Pod::RESOURCE);
        if self.consistency.settle(&key, &selector, &self.client).await? {
            self.consistency.ensure_ready(&key)?;
        }

        let all = owned_or_orphaned_pods::<S>(&self.pods, set.meta());
        let terminates = |pod: &&Arc<Pod>| {
            pod.is_terminating()
                && pod.meta.is_controlled_by(&set.meta().uid)
                && selector.matches(&pod.meta.labels)
        };
        let terminating = self.counts_terminating.then(|| all.iter().filter(terminates).count());
        let active = all.into_iter().filter(|pod| pod.is_active()).collect();
        let manager = ControllerRefManager::new::<S>(&self.client, set.meta(), &selector);
        let manager = manager.recording(&self.consistency);
        let active = manager.claim::<S, _>(active, |_| true).await?;

        let failure = match satisfied && !set.meta().is_being_deleted() {
            true => self.manage(&key, &set, &active).await.err(),
            false => None,
        };
        // The status and the time of the next check are computed for the same moment.
        let now = self.clock.now();
        let status = status::calculate(&*set, &active, terminating, failure.as_ref(), now);
        let (ready, available) = (status.ready_replicas, status.available_replicas);
        let min_ready = set.spec().min_ready_seconds;
        if status::must_write(&*set, &status) {
            self.write_status(&key, &set, status).await?;
        }
        if let Some(failure) = failure {
            return Err(failure);
        }
        if min_ready <= 0 || ready == available {
            return Ok(Next::Done);
        }
        // The number of available pods is right after that period at the latest.
        let fallback = Duration::from_secs(min_ready.unsigned_abs().into());
        let next = availability::next_check(&active, min_ready, now, self.clock.now());
        Ok(Next::After(next.unwrap_or(fallback)))
    }

    /// Creates or deletes pods so that there are as many as wanted, at most [`BURST_REPLICAS`] in
    /// one sync.
    /// Upstream: `manageReplicas`.
    async fn manage(
        &self,
        key: &ObjectKey,
        set: &Arc<S>,
        active: &[Arc<Pod>],
    ) -> Result<(), Error> {
        let now = self.clock.now();
        let related = || self.related(set);
        match plan(set.replicas(), active, related, now, self.uses_deletion_cost) {
            Plan::Nothing => Ok(()),
            Plan::Create(count) => self.create(key, set, count).await,
            Plan::Delete(pods) => {
                if pods.len() < active.len() {
                    report_ages(active, &pods, now);
                }
                self.delete(key, set, pods).await
            }
        }
    }

    /// Creates `count` pods, in growing batches.
    async fn create(&self, key: &ObjectKey, set: &Arc<S>, count: usize) -> Result<(), Error> {
        let pod = Arc::new(NewPod::new::<S>(set.meta(), &set.spec().template)?.encode()?);
        log::debug!("{key}: too few replicas, need {}, creating {count}", set.replicas());
        self.expectations.expect_creations(key, count);
        let create = |_| {
            let (control, set, pod) = (self.pod_control.clone(), set.clone(), pod.clone());
            async move { control.create(&*set, &pod).await }
        };
        let (_, failure) = create_expected(&self.expectations, key, count, create).await;
        match failure {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Deletes `pods`, all at once; returns the first failure.
    async fn delete(
        &self,
        key: &ObjectKey,
        set: &Arc<S>,
        pods: Vec<Arc<Pod>>,
    ) -> Result<(), Error> {
        log::debug!("{key}: too many replicas, need {}, deleting {}", set.replicas(), pods.len());
        let uids = pods.iter().map(|pod| pod.meta.uid.clone()).collect();
        self.expectations.expect_deletions(key, uids);
        let control = &self.pod_control;
        let failed = delete_expected(control, set, &self.expectations, &self.pods, pods).await;
        // The failures are likely to be the same: one is enough.
        match failed.into_iter().next() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Returns the pods that this set, and the other sets of its owner, select; nothing without an
    /// owner, as upstream.
    /// Upstream: `getIndirectlyRelatedPods`.
    fn related(&self, set: &S) -> Vec<Arc<Pod>> {
        let Some(owner) = set.meta().controller() else { return Vec::new() };
        let sets = self.sets.by_index(&controller_index(), &IndexValue::Uid(owner.uid.clone()));
        // A selector that is broken matches nothing.
        let selectors: Vec<Selector> = sets
            .iter()
            .filter(|other| other.meta().namespace == set.meta().namespace)
            .filter_map(|other| Selector::try_from(other.spec().selector.as_ref()).ok())
            .collect();
        let mut pods = self.pods.in_namespace(&set.meta().namespace);
        pods.retain(|pod| selectors.iter().any(|selector| selector.matches(&pod.meta.labels)));
        pods
    }

    /// Writes `status`, and after a failure once more on the live set.
    /// Upstream: `updateReplicaSetStatus`.
    async fn write_status(
        &self,
        key: &ObjectKey,
        set: &Arc<S>,
        mut status: ReplicaSetStatus,
    ) -> Result<(), Error> {
        // The generation that was acted on, even when the live set is ahead of it.
        status.observed_generation = set.meta().generation;
        let written = match self.client.update_status_for_metadata(&**set, &status).await {
            Ok(written) => written,
            Err(error) => {
                let live: S = self.client.get(key).await?;
                if live.meta().uid != set.meta().uid {
                    return Err(error.into());
                }
                self.client.update_status_for_metadata(&live, &status).await?
            }
        };
        let version = written.meta.resource_version;
        self.consistency.record_write(key, &set.meta().uid, &S::RESOURCE, version);
        Ok(())
    }
}

/// Observes, for each ready pod of `to_delete`, how many times as old it is as the youngest ready
/// pod of `active`: a whole number, as upstream's. Does nothing while the youngest is not yet a
/// millisecond old.
/// Upstream: `reportSortingDeletionAgeRatioMetric`.
fn report_ages(active: &[Arc<Pod>], to_delete: &[Arc<Pod>], now: Timestamp) {
    let age = |pod: &Arc<Pod>| {
        let created = pod.meta.creation_timestamp.filter(|_| pod.is_ready())?;
        Some(now.duration_since(created).as_millis())
    };
    let Some(youngest) = active.iter().filter_map(age).min().filter(|age| *age > 0) else { return };
    for age in to_delete.iter().filter_map(age) {
        SORTING_DELETION_AGE_RATIO.observe((age / youngest) as f64);
    }
}

#[cfg(test)]
mod tests {
    use futures_lite::FutureExt;
    use futures_lite::future::{block_on, yield_now};

    use super::*;
    use crate::cache::{Indexer, Lister};
    use crate::client::Client;
    use crate::client::testing::forgetful;
    use crate::clock::{Clock, FakeClock, SystemClock};
    use crate::controllers::workloads::expectations::Expectations;
    use crate::controllers::workloads::owner_records::OwnerRecords;
    use crate::controllers::workloads::pod_control::PodControl;
    use crate::events::Recorder;
    use crate::events::testing::NoSink;
    use crate::objects::{Meta, ReplicaSet, Uid};

    fn sets_of(
        client: Client,
        clock: Arc<FakeClock>,
        sets: Indexer<ReplicaSet>,
        pods: Arc<Indexer<Pod>>,
    ) -> ReplicaSets<ReplicaSet> {
        let recorder = Recorder::to_sink(Arc::new(NoSink));
        ReplicaSets {
            pod_control: PodControl::new(client.clone(), recorder, clock.clone()),
            client,
            sets: Lister::new(Arc::new(sets)),
            pods: Lister::new(pods),
            expectations: Arc::new(Expectations::new(SystemClock::shared())),
            consistency: Arc::default(),
            records: OwnerRecords::default(),
            clock,
            counts_terminating: true,
            uses_deletion_cost: true,
        }
    }

    #[test]
    fn a_deletion_that_was_seen_before_it_was_expected_is_not_waited_for() {
        let clock = FakeClock::new(Timestamp::from_secs(0));
        let (client, _) = block_on(forgetful(1));
        let cached = Arc::new(Indexer::new());
        let pod = |name: &str, uid: &str, deletion_timestamp| {
            let (name, namespace, uid) = (name.into(), "ns".into(), Uid::new(uid));
            let meta = Meta { name, namespace, uid, deletion_timestamp, ..Meta::default() };
            Arc::new(Pod { meta, ..Pod::default() })
        };
        cached.insert(pod("going", "1", Some(clock.now())));
        cached.insert(pod("replaced", "another", None));
        cached.insert(pod("there", "4", None));
        let sets = sets_of(client, clock.clone(), Indexer::new(), cached);
        let key = ObjectKey::new("ns", "set");
        let names = ["going", "replaced", "gone", "there"];
        let chosen = names.iter().zip(["1", "2", "3", "4"]).map(|(name, uid)| pod(name, uid, None));
        let meta = Meta { name: "set".into(), namespace: "ns".into(), ..Meta::default() };
        let set = Arc::new(ReplicaSet { meta, ..ReplicaSet::default() });
        let passing = async {
            loop {
                if clock.sleepers() == names.len() {
                    clock.advance(Duration::from_secs(1));
                }
                yield_now().await;
            }
        };
        block_on(sets.delete(&key, &set, chosen.collect()).or(passing)).expect("that was us");
        assert!(!sets.expectations.satisfied(&key), "the event about one is still to come");
        sets.expectations.deletion_observed(&key, &Uid::new("4"));
        assert!(sets.expectations.satisfied(&key), "the events about the others have passed");
    }

    #[test]
    fn the_difference_is_made_up_in_bursts() {
        let pods = |count| -> Vec<_> { (0..count).map(|_| Arc::new(Pod::default())).collect() };
        let now = Timestamp::from_secs(0);
        for (replicas, have, create) in
            [(0, 0, 0), (3, 3, 0), (5, 2, 3), (2000, 0, 500), (501, 1, 500)]
        {
            let expected = if create == 0 { Plan::Nothing } else { Plan::Create(create) };
            let plan = plan(replicas, &pods(have), || panic!("not asked"), now, true);
            assert_eq!(plan, expected);
        }
        for (replicas, have, delete) in [(0, 2, 2), (1, 3, 2), (0, 2000, 500)] {
            let Plan::Delete(chosen) = plan(replicas, &pods(have), Vec::new, now, true) else {
                panic!("too many pods");
            };
            assert_eq!(chosen.len(), delete);
        }
    }
}
