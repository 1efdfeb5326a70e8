//! The state of one sync of a Job. Upstream: `syncJobCtx`.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::backoff::finished_at;
use super::indexes::{Indexes, valid_index_of};
use super::policies::{Verdict, judge};
use crate::objects::{
    Job, JobCondition, JobSpec, JobStatus, Pod, PodPhase, Timestamp, Uid, UncountedTerminatedPods,
};

/// Upstream: `batch.JobTrackingFinalizer`. A pod that has it is not counted in the status for good.
pub const TRACKING: &str = "batch.kubernetes.io/job-tracking";
/// Upstream: `batch.JobIndexFailureCountAnnotation`.
pub const INDEX_FAILURES: &str = "batch.kubernetes.io/job-index-failure-count";
/// Upstream: `batch.JobIndexIgnoredFailureCountAnnotation`.
pub const INDEX_IGNORED_FAILURES: &str = "batch.kubernetes.io/job-index-ignored-failure-count";

/// A Job, its pods, and the state of one sync.
pub struct SyncState {
    /// As it was last read or written.
    pub job: Arc<Job>,
    /// The status to be written.
    pub status: JobStatus,
    pub pods: Vec<Arc<Pod>>,
    pub active: Vec<Arc<Pod>>,
    /// Pods whose finalizer was removed, though the cache does not show it yet.
    released: HashSet<Uid>,
    /// The pods in the status at the start.
    uncounted: Uncounted,
    pub succeeded: i32,
    pub failed: i32,
    pub terminating: i32,
    pub ready: i32,
    /// `None` for a Job without indexes.
    pub indexed: Option<Indexed>,
    /// How the Job ends. Upstream: `finishedCondition`.
    pub ending: Option<JobCondition>,
}

/// The pods that have ended and that the numbers in the status do not include yet.
/// Upstream: `UncountedTerminatedPods`.
#[derive(Default)]
struct Uncounted {
    succeeded: HashSet<Uid>,
    failed: HashSet<Uid>,
}

/// The indexes of an Indexed Job.
#[derive(Debug, Default)]
pub struct Indexed {
    /// The indexes in the status at the start.
    pub counted: Indexes,
    pub succeeded: Indexes,
    /// `None` without a back-off limit per index.
    pub failed: Option<Indexes>,
    /// Failed pods that keep their finalizer until their index has a new pod, which carries their
    /// count of failures on. Upstream: `podsWithDelayedDeletionPerIndex`.
    pub awaiting: HashMap<i32, Arc<Pod>>,
}

/// Pods of a Job that have finished.
pub struct FinishedPods {
    pub succeeded: Vec<Arc<Pod>>,
    pub failed: Vec<Arc<Pod>>,
}

impl SyncState {
    /// Computes the state at the start, and the finished pods with the finalizer that the status
    /// does not name.
    pub fn new(
        job: Arc<Job>,
        pods: Vec<Arc<Pod>>,
        released: HashSet<Uid>,
    ) -> (SyncState, FinishedPods) {
        let mut status = job.status.clone();
        let known = status.uncounted_terminated_pods.get_or_insert_default();
        let uncounted = Uncounted {
            succeeded: known.succeeded.iter().cloned().collect(),
            failed: known.failed.iter().cloned().collect(),
        };
        let active: Vec<Arc<Pod>> = pods.iter().filter(|pod| pod.is_active()).cloned().collect();
        let mut state = SyncState {
            terminating: as_i32(pods.iter().filter(|pod| pod.is_terminating()).count()),
            ready: as_i32(active.iter().filter(|pod| pod.is_ready()).count()),
            succeeded: 0,
            failed: 0,
            indexed: None,
            ending: None,
            job,
            status,
            pods,
            active,
            released,
            uncounted,
        };
        let (named, spec) = (&state.uncounted, &state.job.spec);
        let mut newly_finished = FinishedPods { succeeded: Vec::new(), failed: Vec::new() };
        for pod in state.uncounted_pods() {
            let uid = &pod.meta.uid;
            if pod.status.phase == PodPhase::Succeeded && !named.succeeded.contains(uid) {
                newly_finished.succeeded.push(pod.clone());
            }
            if is_failed(pod, spec) && !named.failed.contains(uid) {
                newly_finished.failed.push(pod.clone());
            }
        }
        let policy = spec.pod_failure_policy.as_deref();
        let not_ignored =
            newly_finished.failed.iter().filter(|pod| judge(policy, pod).counts()).count();
        let succeeded = newly_finished.succeeded.len() + named.succeeded.len();
        let failed = not_ignored + named.failed.len();
        state.succeeded = state.status.succeeded.saturating_add(as_i32(succeeded));
        state.failed = state.status.failed.saturating_add(as_i32(failed));
        if state.job.spec.is_indexed() {
            let indexed = state.indexed();
            state.succeeded = as_i32(indexed.succeeded.total());
            state.indexed = Some(indexed);
        }
        (state, newly_finished)
    }

    pub fn spec(&self) -> &JobSpec {
        &self.job.spec
    }

    /// Returns all pods that have finished and are still there, also those that the status counts.
    /// Of the pods without the finalizer those that are being deleted may have been too many: no
    /// failure.
    pub fn finished_pods(&self) -> FinishedPods {
        let mut finished = FinishedPods { succeeded: Vec::new(), failed: Vec::new() };
        for pod in self.valid_pods() {
            if !self.is_tracked(pod) && pod.meta.is_being_deleted() {
                continue;
            }
            if pod.status.phase == PodPhase::Succeeded {
                finished.succeeded.push(pod.clone());
            }
            if is_failed(pod, self.spec()) {
                finished.failed.push(pod.clone());
            }
        }
        finished
    }

    /// Returns the pods with the finalizer and, in an Indexed Job, with a valid index.
    /// Upstream: `getValidPodsWithFilter`.
    fn uncounted_pods(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.valid_pods().filter(|pod| self.is_tracked(pod))
    }

    /// Returns all pods; in an Indexed Job those with a valid index.
    fn valid_pods(&self) -> impl Iterator<Item = &Arc<Pod>> {
        let (indexed, completions) = (self.spec().is_indexed(), completions(self.spec()));
        let valid = move |pod: &&Arc<Pod>| !indexed || valid_index_of(pod, completions).is_some();
        self.pods.iter().filter(valid)
    }

    /// Returns whether `pod` still has the finalizer.
    pub fn is_tracked(&self, pod: &Pod) -> bool {
        pod.meta.has_finalizer(TRACKING) && !self.released.contains(&pod.meta.uid)
    }

    /// Returns whether the status had `pod` among the uncounted succeeded ones at the start.
    pub fn was_uncounted_success(&self, pod: &Pod) -> bool {
        self.uncounted.succeeded.contains(&pod.meta.uid)
    }

    /// Returns whether the status had `pod` among the uncounted failed ones at the start.
    pub fn was_uncounted_failure(&self, pod: &Pod) -> bool {
        self.uncounted.failed.contains(&pod.meta.uid)
    }

    /// Returns the list of finished pods that the status to be written names and does not count
    /// yet.
    pub fn uncounted(&mut self) -> &mut UncountedTerminatedPods {
        self.status.uncounted_terminated_pods.get_or_insert_default()
    }

    /// Computes the succeeded and failed indexes, by the status and by the pods that it does not
    /// count yet.
    fn indexed(&self) -> Indexed {
        let spec = self.spec();
        let completions = completions(spec);
        let parse = |text: &str| Indexes::parse(text, completions);
        // As upstream also of pods that were just released: an index counts once in any case.
        let indexes_where = |condition: &dyn Fn(&Pod) -> bool| -> Indexes {
            let pods = self.pods.iter().filter(|pod| pod.meta.has_finalizer(TRACKING));
            let pods = pods.filter(|pod| condition(pod));
            pods.filter_map(|pod| valid_index_of(pod, completions)).collect()
        };
        let counted = parse(&self.status.completed_indexes);
        let has_succeeded = |pod: &Pod| pod.status.phase == PodPhase::Succeeded;
        let succeeded = counted.union(&indexes_where(&has_succeeded));
        let mut indexed = Indexed { counted, succeeded, ..Indexed::default() };
        if let Some(limit) = spec.backoff_limit_per_index {
            let before = parse(self.status.failed_indexes.as_deref().unwrap_or_default());
            let has_failed = |pod: &Pod| fails_index(pod, spec, limit);
            let failed = before.union(&indexes_where(&has_failed));
            indexed.awaiting = self.awaiting(&indexed.succeeded, &failed);
            indexed.failed = Some(failed);
        }
        indexed
    }

    /// Returns for each index that may be tried once more its last failed pod, which decides how
    /// long the next one waits.
    /// Upstream: `getPodsWithDelayedDeletionPerIndex`.
    fn awaiting(&self, succeeded: &Indexes, failed: &Indexes) -> HashMap<i32, Arc<Pod>> {
        let completions = completions(self.spec());
        // The active pod of an index carries the count already.
        let active: HashSet<i32> =
            self.active.iter().filter_map(|pod| valid_index_of(pod, completions)).collect();
        let mut awaiting: HashMap<i32, Arc<Pod>> = HashMap::new();
        for pod in self.uncounted_pods().filter(|pod| is_failed(pod, self.spec())) {
            let Some(index) = valid_index_of(pod, completions) else { continue };
            if succeeded.contains(index) || failed.contains(index) || active.contains(&index) {
                continue;
            }
            let later = |known: &Arc<Pod>| {
                all_failures(known) <= all_failures(pod) && finished_at(known) <= finished_at(pod)
            };
            if awaiting.get(&index).is_none_or(later) {
                awaiting.insert(index, pod.clone());
            }
        }
        awaiting
    }
}

/// Returns a number of pods as the API has it.
pub fn as_i32(pods: usize) -> i32 {
    i32::try_from(pods).unwrap_or(i32::MAX)
}

/// Returns `spec.completions`, which the API server requires of an Indexed Job; 0 without it.
pub fn completions(spec: &JobSpec) -> i32 {
    spec.completions.unwrap_or(0)
}

/// Returns whether pods are replaced only when they have failed, and not when they are being
/// deleted.
/// Upstream: `onlyReplaceFailedPods`.
pub fn replaces_failed_only(spec: &JobSpec) -> bool {
    spec.pod_failure_policy.is_some()
        || spec.pod_replacement_policy.as_ref().is_some_and(|policy| *policy == "Failed")
}

/// Returns whether `pod` has failed. A pod that is being deleted counts as failed, because it may
/// never reach the phase `Failed`, unless pods are replaced only when they have failed. Upstream:
/// `isPodFailed`.
pub fn is_failed(pod: &Pod, spec: &JobSpec) -> bool {
    match pod.status.phase {
        PodPhase::Failed => true,
        PodPhase::Succeeded => false,
        _ => !replaces_failed_only(spec) && pod.meta.is_being_deleted(),
    }
}

/// Returns whether `pod` has failed and its index is not retried. `limit`: of retries per index.
/// Upstream: `isIndexFailed`.
fn fails_index(pod: &Pod, spec: &JobSpec, limit: i32) -> bool {
    if !is_failed(pod, spec) {
        return false;
    }
    let verdict = judge(spec.pod_failure_policy.as_deref(), pod);
    verdict == Verdict::FailIndex || verdict.counts() && failures_before(pod) >= limit
}

/// Returns the failures of the pod's index before this pod that count towards the limit. Upstream:
/// `getIndexFailureCount`.
pub fn failures_before(pod: &Pod) -> i32 {
    number_in_annotation(pod, INDEX_FAILURES)
}

/// Returns the failures of the pod's index before this pod that do not count towards the limit.
pub fn ignored_before(pod: &Pod) -> i32 {
    number_in_annotation(pod, INDEX_IGNORED_FAILURES)
}

/// Returns all failures of the pod's index before this pod. Upstream:
/// `getIndexAbsoluteFailureCount`.
pub fn all_failures(pod: &Pod) -> i32 {
    failures_before(pod).saturating_add(ignored_before(pod))
}

/// Reads a number of failures; 0 where the annotation is missing or malformed.
fn number_in_annotation(pod: &Pod, annotation: &str) -> i32 {
    let Some(text) = pod.meta.annotations.get(annotation) else { return 0 };
    match text.parse::<i32>() {
        Ok(number) if number >= 0 => number,
        _ => {
            log::error!("{}: annotation {annotation}: no number: {text:?}", pod.meta.key());
            0
        }
    }
}

/// Makes a condition that changes now.
pub fn condition(
    kind: &str,
    is_true: bool,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> JobCondition {
    JobCondition {
        r#type: kind.into(),
        status: if is_true { "True" } else { "False" }.into(),
        last_probe_time: Some(now),
        last_transition_time: Some(now),
        reason: reason.into(),
        message: message.into(),
    }
}

/// Adds a condition, or changes it where it stands. A new one is added only when it is true.
/// Returns whether anything changed. Upstream: `ensureJobConditionStatus`.
pub fn ensure_condition(conditions: &mut Vec<JobCondition>, wanted: JobCondition) -> bool {
    match conditions.iter_mut().find(|known| known.r#type == wanted.r#type) {
        Some(known) => {
            let same = known.status == wanted.status
                && known.reason == wanted.reason
                && known.message == wanted.message;
            if !same {
                *known = wanted;
            }
            !same
        }
        None if wanted.is_true() => {
            conditions.push(wanted);
            true
        }
        None => false,
    }
}
