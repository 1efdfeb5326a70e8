//! One sync of a StatefulSet: reads its pods and revisions, carries out a plan, writes the status.
//! Upstream: `stateful_set.go`, `stateful_set_control.go`.

use std::sync::Arc;
use std::time::Duration;

use super::StatefulSets;
use super::identity::is_member;
use super::plan::{
    Members, Plan, PlanInput, PodSteps, count_replaced, is_parallel, max_unavailable,
};
use super::revisions::Revisions;
use super::status::{self, Names};
use crate::controllers::runner::batch::slow_start;
use crate::controllers::workloads::availability;
use crate::controllers::workloads::history;
use crate::controllers::workloads::ref_manager::{ControllerRefManager, owned_or_orphaned_pods};
use crate::controllers::{Error, Next, SyncResult};
use crate::metrics::metrics;
use crate::objects::{
    ControllerRevision, ObjectKey, Pod, Selector, StatefulSet, StatefulSetStatus, Timestamp,
};

metrics! {
    fn register_metrics;
    static MAX_UNAVAILABLE: GaugeVec["statefulset_namespace", "statefulset_name", "pod_management_policy"] =
        "statefulset_controller_statefulset_max_unavailable",
        "[ALPHA] Maximum number of unavailable pods allowed during StatefulSet rolling updates";
    static UNAVAILABLE_REPLICAS: GaugeVec["statefulset_namespace", "statefulset_name", "pod_management_policy"] =
        "statefulset_controller_statefulset_unavailable_replicas",
        "[ALPHA] Current number of unavailable pods in StatefulSet";
}

metrics! {
    // Upstream declares it and does not serve it; here it is served once it counts.
    static STALE_SYNC_SKIPS: IntCounterVec["group", "resource"] =
        "statefulset_controller_stale_sync_skips_total",
        "[ALPHA] Total number of StatefulSet syncs skipped due to a stale watch cache.";
}

/// The delays between attempts to write a status. Upstream: `retry.DefaultRetry`.
const STATUS_PAUSES: [Duration; 4] = [Duration::from_millis(10); 4];

/// Returns the values of the labels of the gauges.
fn labels(set: &StatefulSet) -> [&str; 3] {
    [&set.meta.namespace, &set.meta.name, &set.spec.pod_management_policy]
}

/// The result of a plan.
#[derive(Debug, Default)]
struct Done {
    /// The number of pods of the current revision that were deleted for their update.
    updates: i32,
    failure: Option<Error>,
}

impl StatefulSets {
    /// Claims the pods and revisions of a set, carries out its plan, writes its status, and deletes
    /// old revisions.
    /// Upstream: `sync`, `syncStatefulSet`.
    pub(super) async fn sync(self: Arc<Self>, key: ObjectKey) -> SyncResult {
        self.consistency.start_sync(&key, &STALE_SYNC_SKIPS)?;
        let Some(set) = self.sets.get(&key) else {
            self.records.forget(&key, None);
            return Ok(Next::Done);
        };
        let selector = match Selector::try_from(set.spec.selector.as_ref()) {
            Ok(selector) => selector,
            Err(error) => {
                // Only a new spec can repair it, and that queues the set.
                log::error!("error converting StatefulSet selector for {key}: {error}");
                return Ok(Next::Done);
            }
        };
        let sorted = self.claim_revisions(&set, &selector).await?;
        let pods = self.claim_pods(&set, &selector).await?;
        // The status and the time of the next check are computed for the same moment.
        let now = self.clock.now();
        let revisions = Arc::new(self.revisions(&set, &sorted).await?);
        let written = self.update(&set, &revisions, &pods, now).await;
        let truncated = self.truncate_history(&set, &sorted, &pods, &revisions).await;
        let status = match (written, truncated) {
            (Ok(status), Ok(())) => status,
            (Ok(_), Err(error)) | (Err(error), Ok(())) => return Err(error),
            (Err(first), Err(second)) => return Err(Error::Many(vec![first, second])),
        };
        let min_ready = set.spec.min_ready_seconds;
        if min_ready > 0 && status.ready_replicas != status.available_replicas {
            let next = availability::next_check(&pods, min_ready, now, self.clock.now());
            // The status is right after that period at the latest.
            let fallback = Duration::from_secs(min_ready.unsigned_abs().into());
            return Ok(Next::After(next.unwrap_or(fallback)));
        }
        Ok(Next::Done)
    }

    /// Returns the set's revisions, oldest first, and adopts orphans among them. `Err` if there are
    /// orphans and the set is being deleted.
    /// Upstream: `adoptOrphanRevisions`.
    async fn claim_revisions(
        &self,
        set: &StatefulSet,
        selector: &Selector,
    ) -> Result<Vec<Arc<ControllerRevision>>, Error> {
        let found = history::revisions_of(&self.revisions, &set.meta, selector);
        if found.iter().all(|found| found.meta.controller().is_some()) {
            return Ok(found);
        }
        if set.meta.is_being_deleted() {
            // Its pods and revisions are being orphaned, so the status stays as it is.
            let key = set.meta.key();
            return Err(Error::Stale(format!(
                "can't adopt ControllerRevisions: StatefulSet {key} has just been deleted"
            )));
        }
        history::claim_revisions::<StatefulSet>(&self.client, &set.meta, selector, found).await
    }

    /// Returns the pods that the set owns, after adopting orphans and releasing others.
    /// Upstream: `getPodsForStatefulSet`.
    async fn claim_pods(
        &self,
        set: &StatefulSet,
        selector: &Selector,
    ) -> Result<Vec<Arc<Pod>>, Error> {
        let candidates = owned_or_orphaned_pods::<StatefulSet>(&self.pods, &set.meta);
        let manager = ControllerRefManager::new::<StatefulSet>(&self.client, &set.meta, selector);
        let manager = manager.recording(&self.consistency);
        manager.claim::<StatefulSet, _>(candidates, |pod| is_member(set, pod)).await
    }

    /// Carries out the plan and writes the status, which it returns.
    /// Upstream: `performUpdate`.
    async fn update(
        self: &Arc<Self>,
        set: &Arc<StatefulSet>,
        revisions: &Arc<Revisions>,
        pods: &[Arc<Pod>],
        now: Timestamp,
    ) -> Result<StatefulSetStatus, Error> {
        let names = Names { current: &revisions.current.name, update: &revisions.update.name };
        let collisions = revisions.collision_count;
        let max_unavailable = match self.honours_max_unavailable {
            true => Some(max_unavailable(set).map_err(Error::other)?),
            false => None,
        };
        if let Some(most) = max_unavailable {
            MAX_UNAVAILABLE.with_label_values(&labels(set)).set(most as f64);
        }
        let (mut status, failure) = if set.meta.is_being_deleted() {
            (status::calculate(set, names, collisions, pods.iter(), now), None)
        } else {
            let members = Members::new(set, pods);
            let plan = self.plan(set, names.update, &members, max_unavailable, now);
            let Done { updates, failure } = self.carry_out(set, revisions, plan).await;
            let mut status = status::calculate(set, names, collisions, members.iter(), now);
            status.current_replicas -= updates;
            (status, failure)
        };
        status::complete_update(set, &mut status);
        let written = self.write_status(set, &status).await;
        match failure {
            Some(failure) => {
                if let Err(error) = written {
                    log::error!("{}: could not update status: {error}", set.meta.key());
                }
                Err(failure)
            }
            None => written.map(|()| status),
        }
    }

    /// Makes the plan, with the caches of claims; sets the gauge of unavailable pods.
    fn plan(
        &self,
        set: &StatefulSet,
        update: &str,
        members: &Members,
        max_unavailable: Option<usize>,
        now: Timestamp,
    ) -> Plan {
        let claim = |name: &str| self.claim(set, name);
        let plan = PlanInput { set, members, update, claim: &claim, max_unavailable, now }.plan();
        if let Some(unavailable) = plan.unavailable {
            UNAVAILABLE_REPLICAS.with_label_values(&labels(set)).set(unavailable as f64);
        }
        plan
    }

    /// Carries out the plan: scales the set, and updates its pods if nothing has failed.
    async fn carry_out(
        self: &Arc<Self>,
        set: &Arc<StatefulSet>,
        revisions: &Arc<Revisions>,
        plan: Plan,
    ) -> Done {
        let wanted = self.run_phases(set, revisions, [plan.replicas]);
        let condemned = self.run_phases(set, revisions, [plan.condemned_claims, plan.scale_down]);
        // With Parallel neither waits for the other: a quota may refuse a wanted pod until a
        // condemned one is gone. Upstream never scales down then.
        let failures = match is_parallel(set) {
            true => [condemned.await, wanted.await],
            false => match wanted.await {
                None => [condemned.await, None],
                failure => [failure, None],
            },
        };
        if let Some(failure) = Error::many(failures.into_iter().flatten().collect()) {
            return Done { updates: 0, failure: Some(failure) };
        }
        let (done, failure) = self.run_in_order(set, revisions, &plan.update).await;
        Done { updates: count_replaced(&plan.update[..done], &revisions.current.name), failure }
    }

    /// Runs one phase after the other until one fails, and returns its failure.
    async fn run_phases<const N: usize>(
        self: &Arc<Self>,
        set: &Arc<StatefulSet>,
        revisions: &Arc<Revisions>,
        phases: [Vec<PodSteps>; N],
    ) -> Option<Error> {
        for phase in phases {
            let failure = match is_parallel(set) {
                true => self.run_in_batches(set, revisions, phase).await,
                false => self.run_in_order(set, revisions, &phase).await.1,
            };
            if failure.is_some() {
                return failure;
            }
        }
        None
    }

    /// Takes the steps of one pod after the other until one fails. Returns the number of pods that
    /// are done, and the failure.
    async fn run_in_order(
        &self,
        set: &StatefulSet,
        revisions: &Revisions,
        pod_steps: &[PodSteps],
    ) -> (usize, Option<Error>) {
        for (done, steps) in pod_steps.iter().enumerate() {
            for step in steps {
                if let Err(error) = self.perform(set, revisions, step).await {
                    return (done, Some(error));
                }
            }
        }
        (pod_steps.len(), None)
    }

    /// Takes the steps of the pods in batches until a batch has a failure, which it returns.
    /// Upstream: `runForAll`, `slowStartBatch`.
    async fn run_in_batches(
        self: &Arc<Self>,
        set: &Arc<StatefulSet>,
        revisions: &Arc<Revisions>,
        pod_steps: Vec<PodSteps>,
    ) -> Option<Error> {
        let (count, pod_steps) = (pod_steps.len(), Arc::new(pod_steps));
        let attempt = |at: usize| {
            if pod_steps[at].is_empty() {
                return None;
            }
            let (this, pod_steps) = (self.clone(), pod_steps.clone());
            let (set, revisions) = (set.clone(), revisions.clone());
            Some(async move {
                let steps = &pod_steps[at..=at];
                this.run_in_order(&set, &revisions, steps).await.1.map_or(Ok(()), Err)
            })
        };
        slow_start(count, attempt).await.1
    }

    /// Writes `status` if it has changed; after a conflict on the live set.
    /// Upstream: `UpdateStatefulSetStatus`.
    async fn write_status(
        &self,
        set: &Arc<StatefulSet>,
        status: &StatefulSetStatus,
    ) -> Result<(), Error> {
        if !status::needs_write(&set.status, status) {
            return Ok(());
        }
        let mut base = set.clone();
        let mut pauses = STATUS_PAUSES.iter();
        loop {
            match self.client.update_status_for_metadata(&*base, status).await {
                Ok(written) => {
                    self.record_write::<StatefulSet>(set, written.meta.resource_version);
                    return Ok(());
                }
                Err(error) => match pauses.next().filter(|_| error.is_conflict()) {
                    Some(pause) => self.clock.sleep(*pause).await,
                    None => return Err(error.into()),
                },
            }
            let live: StatefulSet = self.client.get(&set.meta.key()).await?;
            if live.meta.uid != set.meta.uid {
                return Err(Error::other(format!("{} is another set by now", set.meta.key())));
            }
            base = Arc::new(live);
        }
    }
}
