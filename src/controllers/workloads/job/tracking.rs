//! Counts finished pods in a Job's status, each once. Upstream:
//! `trackJobStatusAndRemoveFinalizers`.
//!
//! A finished pod's uid is first added to `status.uncountedTerminatedPods`, then the pod loses its
//! finalizer, and then a counter replaces the uid. So a manager that starts anywhere in between
//! knows the missing steps: a pod with the finalizer is not counted, and a uid without a pod that
//! has the finalizer is to be counted.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use super::indexes::{index_of, valid_index_of};
use super::policies::judge;
use super::sync_state::{SyncState, as_i32, completions, condition, ensure_condition, is_failed};
use crate::objects::{JobCondition, JobStatus, Pod, PodPhase, Timestamp, Uid};

/// The most uids, and new indexes, in a status: about 20 KB. Upstream: `MaxUncountedPods`.
const MOST_UNCOUNTED: usize = 500;

/// The changes that need a write of the status, and the steps after it.
#[derive(Default)]
pub struct StatusPlan {
    /// The pods that lose their finalizer when the status is written.
    pub release: Vec<Arc<Pod>>,
    /// The uids of all pods that have the finalizer.
    pub tracked: HashSet<Uid>,
    /// Whether the status must be written before finalizers are removed.
    pub flush: bool,
    /// There are more pods than fit into the status.
    pub is_full: bool,
    /// Failed pods by the action of the rule that matched.
    pub actions: BTreeMap<&'static str, u64>,
}

/// Puts finished pods and the end of the Job into the status of `state`.
pub fn plan_status(state: &mut SyncState, now: Timestamp) -> StatusPlan {
    let mut plan = StatusPlan::default();
    if state.indexed.is_some() {
        // The indexes that fit into the status are the lowest.
        state.pods.sort_by_cached_key(|pod| index_of(pod));
    }
    let tracked = state.pods.iter().filter(|pod| state.is_tracked(pod));
    plan.tracked = tracked.map(|pod| pod.meta.uid.clone()).collect();
    plan.flush = count_released(&mut state.status, &plan.tracked);
    let succeeded = count_finished(state, &mut plan);
    write_indexes(state, &succeeded, &mut plan);
    announce_end(state, &mut plan, now);
    plan
}

/// Plans the release of the pods that [`may_release`] allows, until the status is full. Of these
/// counts in the status the finished ones, or all if the Job fails, by their indexes or uids.
/// Returns the indexes that succeeded and that the status did not count.
fn count_finished(state: &mut SyncState, plan: &mut StatusPlan) -> Vec<i32> {
    let mut indexes = Vec::new();
    let completions = completions(state.spec());
    for pod in state.pods.clone() {
        let has_failed = is_failed(&pod, state.spec());
        if !state.is_tracked(&pod) || !may_release(state, &pod, has_failed) {
            continue;
        }
        plan.release.push(pod.clone());
        let index = valid_index_of(&pod, completions);
        // A pod that the status names as failed already stays so.
        if pod.status.phase == PodPhase::Succeeded && !state.was_uncounted_failure(&pod) {
            if let Some(indexed) = &state.indexed {
                // The index is sufficient to count the pod once.
                let new = index.filter(|index| !indexed.counted.contains(*index));
                plan.flush |= new.is_some();
                indexes.extend(new);
            } else if !state.was_uncounted_success(&pod) {
                plan.flush = true;
                state.uncounted().succeeded.push(pod.meta.uid.clone());
            }
        } else if has_failed || fails_all(state) {
            let valid = state.indexed.is_none() || index.is_some();
            if valid && !state.was_uncounted_failure(&pod) {
                let verdict = judge(state.spec().pod_failure_policy.as_deref(), &pod);
                if let Some(action) = verdict.action() {
                    *plan.actions.entry(action).or_default() += 1;
                }
                if verdict.counts() {
                    plan.flush = true;
                    state.uncounted().failed.push(pod.meta.uid.clone());
                }
            }
        }
        let uncounted = state.uncounted();
        let named = uncounted.succeeded.len() + uncounted.failed.len();
        if indexes.len() + named >= MOST_UNCOUNTED {
            plan.is_full = true;
            break;
        }
    }
    indexes
}

/// Returns whether the Job fails: then every pod that has not succeeded counts as failed.
fn fails_all(state: &SyncState) -> bool {
    state.ending.as_ref().is_some_and(|ending| ending.r#type != "SuccessCriteriaMet")
}

/// Returns whether the finalizer of `pod` may be removed now: of any pod once the Job ends or is
/// being deleted; before that of a succeeded one, and of a failed one unless its index awaits a new
/// pod. Upstream: `canRemoveFinalizer`.
fn may_release(state: &SyncState, pod: &Pod, has_failed: bool) -> bool {
    if state.job.meta.is_being_deleted()
        || state.ending.is_some()
        || pod.status.phase == PodPhase::Succeeded
    {
        return true;
    }
    let awaits = || {
        let indexed = state.indexed.as_ref()?;
        let awaiting = indexed.awaiting.get(&index_of(pod)?)?;
        Some(awaiting.meta.uid == pod.meta.uid)
    };
    has_failed && awaits() != Some(true)
}

/// Puts the succeeded and failed indexes into the status; those of `new` have succeeded as well.
fn write_indexes(state: &mut SyncState, new: &[i32], plan: &mut StatusPlan) {
    let Some(indexed) = &mut state.indexed else { return };
    indexed.succeeded = indexed.succeeded.union(&new.iter().copied().collect());
    let completed: Box<str> = indexed.succeeded.to_string().into();
    let failed = indexed.failed.as_ref().map(|failed| failed.to_string().into());
    let status = &mut state.status;
    plan.flush |= completed != status.completed_indexes || failed != status.failed_indexes;
    status.succeeded = as_i32(indexed.succeeded.total());
    status.completed_indexes = completed;
    status.failed_indexes = failed;
}

/// Adds the interim condition of a Job that ends to the status, and makes its final condition the
/// `ending` of `state`.
fn announce_end(state: &mut SyncState, plan: &mut StatusPlan, now: Timestamp) {
    let Some(ending) = &mut state.ending else { return };
    let last = match ending.r#type.as_str() {
        "FailureTarget" => "Failed",
        "SuccessCriteriaMet" => "Complete",
        // It is final: the status has the interim condition already.
        _ => return,
    };
    if !state.status.condition(&ending.r#type).is_some_and(JobCondition::is_true) {
        state.status.conditions.push(ending.clone());
        plan.flush = true;
    }
    *ending = condition(last, true, &ending.reason, &ending.message, now);
}

/// Moves the pods that have lost their finalizer, so are not in `tracked`, from the uncounted ones
/// of the status to its counters. Returns whether there were any.
/// Upstream: `cleanUncountedPodsWithoutFinalizers`.
pub fn count_released(status: &mut JobStatus, tracked: &HashSet<Uid>) -> bool {
    let Some(uncounted) = &mut status.uncounted_terminated_pods else { return false };
    let counted = |uids: &mut Vec<Uid>| {
        let before = uids.len();
        uids.retain(|uid| tracked.contains(uid));
        before - uids.len()
    };
    let (succeeded, failed) = (counted(&mut uncounted.succeeded), counted(&mut uncounted.failed));
    status.succeeded = status.succeeded.saturating_add(as_i32(succeeded));
    status.failed = status.failed.saturating_add(as_i32(failed));
    succeeded + failed > 0
}

/// Adds the final condition to the status if the Job has ended: every pod is counted, and gone or
/// finished. Returns whether it has ended. Upstream: `enactJobFinished`.
pub fn finish(state: &mut SyncState, now: Timestamp) -> bool {
    let Some(ending) = state.ending.clone() else { return false };
    let uncounted = state.uncounted();
    if !uncounted.succeeded.is_empty() || !uncounted.failed.is_empty() || state.terminating > 0 {
        return false;
    }
    if ending.r#type == "Complete" {
        state.status.completion_time = ending.last_transition_time;
    }
    let JobCondition { r#type, reason, message, .. } = &ending;
    let wanted = condition(r#type, true, reason, message, now);
    ensure_condition(&mut state.status.conditions, wanted);
    true
}
