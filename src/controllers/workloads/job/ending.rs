//! Whether a Job ends, and how. Upstream: `syncJob`, from "evaluating the end state" on.

use super::policies::{Verdict, judge, met_success_rule};
use super::sync_state::{SyncState, completions, condition, is_failed};
use crate::objects::{JobCondition, JobSpec, JobStatus, Pod, PodPhase, Timestamp};

use std::sync::Arc;
use std::time::Duration;

/// Returns the condition with which the Job of `state` ends for a reason other than the number of
/// completions. The first that applies counts: an earlier decision, failures, the success policy.
pub fn decide(state: &SyncState, now: Timestamp) -> Option<JobCondition> {
    let (spec, status) = (state.spec(), &state.status);
    let true_condition =
        |kind: &str| status.condition(kind).filter(|condition| condition.is_true());
    if let Some(met) = true_condition("SuccessCriteriaMet") {
        return Some(met.clone());
    }
    if let Some(JobCondition { reason, message, .. }) = true_condition("FailureTarget") {
        return Some(condition("Failed", true, reason, message, now));
    }
    let failure_target =
        |reason, message: &str| Some(condition("FailureTarget", true, reason, message, now));
    if let Some(message) = job_failure(spec, &state.pods) {
        return failure_target("PodFailurePolicy", &message);
    }
    let limit = backoff_limit(spec);
    if state.failed > limit || restarts_exceed(spec, limit, &state.pods) {
        return failure_target(
            "BackoffLimitExceeded",
            "Job has reached the specified backoff limit",
        );
    }
    if time_left(spec, status, now).is_some_and(|left| left.is_zero()) {
        return failure_target("DeadlineExceeded", "Job was active longer than specified deadline");
    }
    let indexed = state.indexed.as_ref()?;
    if let Some(failed) = &indexed.failed {
        let failed = failed.total() as i64;
        let done = failed + indexed.succeeded.total() as i64;
        if spec.max_failed_indexes.is_some_and(|max| failed > max.into()) {
            let message = "Job has exceeded the specified maximal number of failed indexes";
            return failure_target("MaxFailedIndexesExceeded", message);
        }
        if failed > 0 && done >= completions(spec).into() {
            return failure_target("FailedIndexes", "Job has failed indexes");
        }
    }
    let message =
        met_success_rule(spec.success_policy.as_deref(), completions(spec), &indexed.succeeded)?;
    Some(condition("SuccessCriteriaMet", true, "SuccessPolicy", &message, now))
}

/// Returns whether as many pods have succeeded as the Job asks for, and none is active.
pub fn is_complete(spec: &JobSpec, succeeded: i32, active: i32) -> bool {
    active == 0
        && match spec.completions {
            // Once one pod has succeeded the others are left to finish.
            None => succeeded > 0,
            Some(wanted) => succeeded >= wanted,
        }
}

/// Makes the condition of a Job that has enough succeeded pods. Upstream: `newSuccessCondition`.
pub fn completion_condition(now: Timestamp) -> JobCondition {
    let message = "Reached expected number of succeeded pods";
    condition("SuccessCriteriaMet", true, "CompletionsReached", message, now)
}

/// Returns the time until the deadline, zero when it has passed; `None` without one, or while the
/// Job is suspended.
pub fn time_left(spec: &JobSpec, status: &JobStatus, now: Timestamp) -> Option<Duration> {
    let seconds = spec.active_deadline_seconds.filter(|_| !spec.is_suspended())?;
    let allowed = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
    Some(allowed.saturating_sub(now.duration_since(status.start_time?)))
}

pub fn backoff_limit(spec: &JobSpec) -> i32 {
    // The API server's default.
    spec.backoff_limit.unwrap_or(6)
}

/// Returns the message about the first failed pod that, by policy, fails the Job; `None` without
/// one.
/// Upstream: `getFailJobMessage`.
fn job_failure(spec: &JobSpec, pods: &[Arc<Pod>]) -> Option<String> {
    let policy = spec.pod_failure_policy.as_deref()?;
    let failed = pods.iter().filter(|pod| is_failed(pod, spec));
    failed.into_iter().find_map(|pod| match judge(Some(policy), pod) {
        Verdict::FailJob(message) => Some(message),
        _ => None,
    })
}

/// Returns whether containers were restarted in place too often.
/// Upstream: `pastBackoffLimitOnFailure`.
fn restarts_exceed(spec: &JobSpec, limit: i32, pods: &[Arc<Pod>]) -> bool {
    if !spec.restarts_containers {
        return false;
    }
    let is_unfinished =
        |pod: &&Arc<Pod>| matches!(pod.status.phase, PodPhase::Running | PodPhase::Pending);
    let restarts = |pod: &Arc<Pod>| i64::from(pod.restarts());
    let restarts: i64 = pods.iter().filter(is_unfinished).map(restarts).sum();
    // With a limit of 0 the first restart fails the Job.
    restarts >= i64::from(limit).max(1)
}
