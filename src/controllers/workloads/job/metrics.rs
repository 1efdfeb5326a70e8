//! The controller's metrics. Upstream: `pkg/controller/job/metrics`.

use std::collections::BTreeMap;

use super::indexes::Indexes;
use super::sync_state::{TRACKING, completions};
use crate::controllers::runner::Change;
use crate::metrics::{exponential, metrics};
use crate::objects::{JobSpec, JobStatus, Pod};

metrics! {
    fn register;
    pub(super) static SYNC_SECONDS:
        HistogramVec["completion_mode", "result", "action"](exponential(0.004, 2.0, 15)) =
        "job_controller_job_sync_duration_seconds",
        "[STABLE] The time it took to sync a job";
    pub(super) static SYNCS: IntCounterVec["completion_mode", "result", "action"] =
        "job_controller_job_syncs_total", "[STABLE] The number of job syncs";
    pub(super) static FINISHED: IntCounterVec["completion_mode", "result", "reason"] =
        "job_controller_jobs_finished_total", "[STABLE] The number of finished jobs";
    pub(super) static EXTERNAL: IntCounterVec["controller_name"] =
        "job_controller_jobs_by_external_controller_total",
        "[ALPHA] The number of Jobs managed by an external controller";
    static PODS_FINISHED: IntCounterVec["completion_mode", "result"] =
        "job_controller_job_pods_finished_total",
        "[STABLE] The number of finished Pods that are fully tracked";
    static HANDLED_BY_POLICY: IntCounterVec["action"] =
        "job_controller_pod_failures_handled_by_failure_policy_total",
        "[BETA] The number of failed Pods handled by failure policy with\n\t\t\trespect to the \
         failure policy action applied based on the matched\n\t\t\trule. Possible values of the \
         action label correspond to the\n\t\t\tpossible values for the failure policy rule \
         action, which are:\n\t\t\t\"FailJob\", \"Ignore\" and \"Count\".";
    static TERMINATED_TRACKED: IntCounterVec["event"] =
        "job_controller_terminated_pods_tracking_finalizer_total",
        "[BETA] The number of terminated pods (phase=Failed|Succeeded)\nthat have the finalizer \
         batch.kubernetes.io/job-tracking\nThe event label can be \"add\" or \"delete\".";
    static INDEXES_FINISHED: IntCounterVec["status", "backoffLimit"] =
        "job_controller_job_finished_indexes_total",
        "[ALPHA] The number of finished indexes. Possible values for the\n\t\t\tstatus label \
         are: \"succeeded\", \"failed\". Possible values for the\n\t\t\tbackoffLimit label are: \
         \"perIndex\" and \"global\"";
    pub(super) static PODS_CREATED: IntCounterVec["reason", "status"] =
        "job_controller_job_pods_creation_total",
        "[ALPHA] The number of Pods created by the Job controller labelled with a reason for the \
         Pod creation.\nThis metric also distinguishes between Pods created using different \
         PodReplacementPolicy settings.\nPossible values of the \"reason\" label are:\n\"new\", \
         \"recreate_terminating_or_failed\", \"recreate_failed\".\nPossible values of the \
         \"status\" label are:\n\"succeeded\", \"failed\".";
    pub(super) static STALE_SYNC_SKIPS: IntCounterVec["group", "resource"] =
        "job_controller_stale_sync_skips_total",
        "[ALPHA] Total number of Job syncs skipped due to a stale watch cache.";
}

/// Returns the value of the label `completion_mode`.
pub fn mode(spec: &JobSpec) -> &'static str {
    if spec.is_indexed() { "Indexed" } else { "NonIndexed" }
}

/// Counts the pods and indexes that are in the counters of `new` and not in those of `old`.
/// Upstream: `recordJobPodFinished`.
pub fn count_finished(spec: &JobSpec, old: &JobStatus, new: &JobStatus) {
    let grown = |old: usize, new: usize| u64::try_from(new.saturating_sub(old)).unwrap_or(0);
    let pods = |old: i32, new: i32| u64::try_from(new.saturating_sub(old)).unwrap_or(0);
    let mode = mode(spec);
    let succeeded = if spec.is_indexed() {
        let indexes = |text: &str| Indexes::parse(text, completions(spec)).total();
        let succeeded = grown(indexes(&old.completed_indexes), indexes(&new.completed_indexes));
        let per_index = spec.backoff_limit_per_index.is_some();
        let limit = if per_index { "perIndex" } else { "global" };
        INDEXES_FINISHED.with_label_values(&["succeeded", limit]).inc_by(succeeded);
        if per_index {
            let failed =
                |status: &JobStatus| indexes(status.failed_indexes.as_deref().unwrap_or(""));
            let failed = grown(failed(old), failed(new));
            // Without a failure there is no such series, as upstream.
            if failed > 0 {
                INDEXES_FINISHED.with_label_values(&["failed", limit]).inc_by(failed);
            }
        }
        succeeded
    } else {
        pods(old.succeeded, new.succeeded)
    };
    PODS_FINISHED.with_label_values(&[mode, "succeeded"]).inc_by(succeeded);
    PODS_FINISHED.with_label_values(&[mode, "failed"]).inc_by(pods(old.failed, new.failed));
}

/// Counts the failed pods in `actions`, by the action of the failure policy that was applied to
/// them.
pub fn count_actions(actions: &BTreeMap<&'static str, u64>) {
    for (action, count) in actions {
        HANDLED_BY_POLICY.with_label_values(&[action]).inc_by(*count);
    }
}

/// Counts terminated pods that get or lose the finalizer.
/// Upstream: `recordFinishedPodWithTrackingFinalizer`.
pub fn count_tracked(change: &Change<'_, Pod>) {
    let holds = |pod: &Pod| pod.is_terminal() && pod.meta.has_finalizer(TRACKING);
    let (was, is) = match change {
        Change::Added { new, .. } => (false, holds(new)),
        Change::Updated { old, new } => (holds(old), holds(new)),
        Change::Resync { .. } => return,
        Change::Deleted(deleted) => (holds(deleted.object()), false),
    };
    if was != is {
        TERMINATED_TRACKED.with_label_values(&[if is { "add" } else { "delete" }]).inc();
    }
}
