//! Runs the pods of Jobs until enough of them have succeeded. Upstream: `pkg/controller/job`.
//!
//! - `sync`: one sync, from the pods of a Job to its status;
//! - `sync_state`: the state of a sync, `ending`: how a Job ends, `plan`: the pods it needs;
//! - `tracking`: how finished pods are counted, each once;
//! - `manage`: creates and deletes pods;
//! - `orphans`: pods that no Job counts;
//! - `workload`: the pod group of a Job that is scheduled as a whole.

mod backoff;
mod ending;
mod indexes;
mod manage;
mod metrics;
mod orphans;
mod plan;
mod policies;
mod released;
mod sync;
mod sync_state;
mod tracking;
mod workload;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use self::backoff::BackoffStore;
use self::indexes::COMPLETION_INDEX;
use self::orphans::Orphans;
use self::released::Released;
use self::sync_state::TRACKING;
use self::workload::Groups;
use crate::cache::Lister;
use crate::client::Client;
use crate::clock::SharedClock;
use crate::controllers::runner::{Change, Queue, keys};
use crate::controllers::workloads::consistency::Consistency;
use crate::controllers::workloads::creations::PodOwner;
use crate::controllers::workloads::expectations::Expectations;
use crate::controllers::workloads::owner_records::{OwnerRecord, OwnerRecords};
use crate::controllers::workloads::pod_control::PodControl;
use crate::controllers::workloads::ref_manager::controller_index;
use crate::controllers::{Controller, QueuePolicy};
use crate::events::Recorder;
use crate::objects::{Job, LabelSelector, ObjectKey, Pod, Selector, Timestamp, Uid};
use crate::workqueue::exponential_failure_rate_limiter;

/// Changes of pods and of a Job's status queue the Job this long after the first of them.
/// Upstream: `SyncJobBatchPeriod`.
const BATCH_PERIOD: Duration = Duration::from_secs(1);
/// Upstream: `DefaultJobApiBackOff`.
const FIRST_RETRY: Duration = Duration::from_secs(1);
/// Upstream: `MaxJobApiBackOff`.
const LAST_RETRY: Duration = Duration::from_secs(60);
/// Upstream: `batch.JobControllerName`.
const THIS_CONTROLLER: &str = "kubernetes.io/job-controller";

struct Jobs {
    client: Client,
    clock: SharedClock,
    recorder: Recorder,
    pod_control: PodControl,
    jobs: Lister<Job>,
    pods: Lister<Pod>,
    queue: Queue,
    orphans: Queue<Orphans>,
    expectations: Arc<Expectations>,
    released: Arc<Released>,
    consistency: Arc<Consistency>,
    backoff: Arc<BackoffStore>,
    finished: Arc<Finished>,
    records: OwnerRecords,
    /// `None`: the feature gate is off.
    groups: Option<Groups>,
    /// Whether a suspended Job has no start time.
    resets_start_time: bool,
}

/// The Jobs whose end is written and not seen yet, with the history of their cache: an end that the
/// API server has lost does not count. Upstream: `finishedJobExpectations`.
#[derive(Default)]
struct Finished(Mutex<HashMap<Uid, u64>>);

impl Finished {
    fn insert(&self, job: &Uid, history: u64) {
        self.0.lock().insert(job.clone(), history);
    }

    fn remove(&self, job: &Uid) {
        self.0.lock().remove(job);
    }

    fn contains(&self, job: &Uid, history: u64) -> bool {
        self.0.lock().get(job) == Some(&history)
    }
}

impl OwnerRecord for Finished {
    fn forget(&self, _: &ObjectKey, uid: Option<&Uid>) {
        uid.into_iter().for_each(|uid| self.remove(uid));
    }
}

impl PodOwner for Job {
    const FINALIZER: Option<&'static str> = Some(TRACKING);
    const ANNOTATION: Option<&'static str> = Some(COMPLETION_INDEX);

    fn selector(&self) -> Option<&LabelSelector> {
        self.spec.selector.as_ref()
    }
}

/// Sets up the controller `job-controller`.
pub fn controller(c: &mut Controller) -> Result<(), String> {
    metrics::register();
    let (jobs, pods) = (c.lister::<Job>(), c.lister::<Pod>());
    c.index(&pods, &controller_index());
    let consistency = match c.feature("StaleControllerConsistencyJob") {
        true => Consistency::default().tracking(&pods).tracking(&jobs),
        false => Consistency::default(),
    };
    let mut records = OwnerRecords::default();
    let consistency = records.add(consistency);
    let retries = QueuePolicy::default();
    let queue =
        c.queue(retries.limited_by(exponential_failure_rate_limiter(FIRST_RETRY, LAST_RETRY)));
    let retries = QueuePolicy::default();
    let orphans = c.queue_named(
        "job_orphan_pod",
        retries.limited_by(exponential_failure_rate_limiter(FIRST_RETRY, LAST_RETRY)),
    );
    let groups = c.feature("WorkloadWithJob").then(|| Groups::new(c));
    let pod_control = PodControl::new(c.client(), c.recorder(), c.clock());
    records.share(pod_control.creations());
    let this = Arc::new(Jobs {
        client: c.client(),
        clock: c.clock(),
        recorder: c.recorder(),
        pod_control: pod_control.recording(&consistency),
        jobs: jobs.clone(),
        pods: pods.clone(),
        queue: queue.clone(),
        orphans: orphans.clone(),
        expectations: records.add(Expectations::new(c.clock()).seen_in(&pods)),
        released: records.add(Released::seen_in(&pods)),
        consistency,
        backoff: records.add(BackoffStore::default()),
        finished: records.add(Finished::default()),
        records,
        groups,
        resets_start_time: c.feature("MutableSchedulingDirectivesForSuspendedJobs"),
    });

    let controller = this.clone();
    c.watch(&jobs, &queue, move |change, _| controller.job_changed(&change));
    let unowned = orphans.clone();
    let mut owned = keys::of_controller(&jobs)
        .or_matching_orphans(|job: &Job| Selector::try_from(job.spec.selector.as_ref()))
        .observing(&this.expectations)
        .observing(&this.released)
        .unowned(move |pod: &Pod, job: Option<&Job>| {
            let counts = job.is_some_and(|job| job.finished().is_none());
            if pod.meta.has_finalizer(TRACKING) && !counts {
                unowned.add(Orphans::Named(pod.meta.key()));
            }
        })
        .delayed(BATCH_PERIOD)
        .mapper();
    c.watch(&pods, &queue, move |change, queue| {
        metrics::count_tracked(&change);
        owned(change, queue);
    });
    this.expectations.queue_overdue(c, &queue);
    c.sync(queue, &this, Jobs::sync);
    c.sync(orphans, &this, Jobs::sync_orphans);
    Ok(())
}

impl Jobs {
    /// Queues a Job that was added, changed or deleted. A deleted one loses its records, and its
    /// pods are queued as orphans. Upstream: `addJob`, `updateJob`, `deleteJob`.
    fn job_changed(&self, change: &Change<'_, Job>) {
        match change {
            Change::Added { new, .. } => {
                self.queue.add(new.meta.key());
                if managed_by_another(new) {
                    let name = new.spec.managed_by.as_deref().unwrap_or_default();
                    metrics::EXTERNAL.with_label_values(&[name]).inc();
                }
            }
            Change::Updated { old, new } => self.job_updated(old, new),
            Change::Resync { object } => self.job_updated(object, object),
            Change::Deleted(deleted) => {
                let job = deleted.object();
                let key = job.meta.key();
                // A new Job of the same name starts without the old one's records.
                self.records.forget(&key, Some(&job.meta.uid));
                Orphans::selected_by(job).into_iter().for_each(|pods| self.orphans.add(pods));
                self.queue.add(key);
            }
        }
    }

    /// Queues an updated Job, also for its deadline if that has changed. When it has finished,
    /// queues its orphans instead, and drops its records.
    /// Upstream: `updateJob`.
    fn job_updated(&self, old: &Job, new: &Job) {
        let key = new.meta.key();
        if new.finished().is_some() {
            // No pod should have the finalizer any more.
            Orphans::selected_by(new).into_iter().for_each(|pods| self.orphans.add(pods));
            self.records.forget(&key, Some(&new.meta.uid));
            return;
        }
        match new.meta.generation == old.meta.generation {
            true => self.queue.add_after(key.clone(), BATCH_PERIOD),
            false => self.queue.add(key.clone()),
        }
        let deadline = new.spec.active_deadline_seconds;
        if deadline.is_some()
            && deadline != old.spec.active_deadline_seconds
            && let Some(left) = ending::time_left(&new.spec, &new.status, self.clock.now())
        {
            self.queue.add_after(key, left);
        }
    }

    fn now(&self) -> Timestamp {
        self.clock.now()
    }
}

/// Returns whether `spec.managedBy` names another controller. Upstream:
/// `managedByExternalController`.
fn managed_by_another(job: &Job) -> bool {
    job.spec.managed_by.as_ref().is_some_and(|name| *name != THIS_CONTROLLER)
}
