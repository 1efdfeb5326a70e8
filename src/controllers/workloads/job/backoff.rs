//! The delay before failed pods of a Job are replaced. Upstream: `backoff_utils.go`.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::Duration;

use super::policies::ignores_disruption;
use super::sync_state::{FinishedPods, SyncState};
use crate::controllers::workloads::owner_records::OwnerRecord;
use crate::objects::{JobSpec, ObjectKey, Pod, Timestamp, Uid};

/// Upstream: `DefaultJobPodFailureBackOff`.
const FIRST: Duration = Duration::from_secs(10);
/// Upstream: `MaxJobPodFailureBackOff`.
const LONGEST: Duration = Duration::from_secs(10 * 60);

/// The failures of a Job's pods since its last success. Upstream: `backoffRecord`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Failures {
    count: u32,
    last: Option<Timestamp>,
}

impl Failures {
    /// Returns the record after pods are seen finished for the first time. Of the failed ones those
    /// count that delay their successor and, if there are successes, ended after the last of these.
    /// Upstream: `newBackoffRecord`.
    pub fn with_finished(self, spec: &JobSpec, finished: &FinishedPods) -> Failures {
        let FinishedPods { succeeded, failed } = finished;
        // A success starts the count again.
        let mut failures = if succeeded.is_empty() { self } else { Failures::default() };
        let last_success = succeeded.iter().filter_map(|pod| finished_at(pod)).max();
        let mut last_new = None;
        for pod in failed.iter().filter(|pod| delays_successor(spec, pod)) {
            let time = finished_at(pod);
            if succeeded.is_empty() || time > last_success {
                failures.count = failures.count.saturating_add(1);
                last_new = last_new.max(Some(time));
            }
        }
        if let Some(time) = last_new {
            failures.last = time;
        }
        failures
    }

    /// Returns the time until pods may be created.
    pub fn wait(self, now: Timestamp) -> Duration {
        remaining_wait(self.count, self.last, now)
    }
}

/// The failures of each Job, as of its last status. Upstream: `backoffStore`.
#[derive(Default)]
pub struct BackoffStore(Mutex<HashMap<ObjectKey, Failures>>);

impl BackoffStore {
    /// Returns the failures of the Job `key`, with those of pods that are seen finished for the
    /// first time. Without a record, as after a start of the manager, they are computed from all
    /// finished pods that still exist.
    pub fn failures(
        &self,
        key: &ObjectKey,
        state: &SyncState,
        newly_finished: &FinishedPods,
    ) -> Failures {
        let spec = state.spec();
        let known = self.0.lock().get(key).copied();
        match known {
            Some(known) => known.with_finished(spec, newly_finished),
            None => Failures::default().with_finished(spec, &state.finished_pods()),
        }
    }

    /// Records the failures of the Job `job` for its next sync.
    pub fn set(&self, job: &ObjectKey, failures: Failures) {
        self.0.lock().insert(job.clone(), failures);
    }
}

impl OwnerRecord for BackoffStore {
    fn forget(&self, job: &ObjectKey, _: Option<&Uid>) {
        self.0.lock().remove(job);
    }
}

/// Returns the time until a pod may replace `failed`, which itself had replaced `before` pods.
/// Upstream: `getRemainingTimePerIndex`.
pub fn wait_for_index(spec: &JobSpec, failed: &Pod, before: u32, now: Timestamp) -> Duration {
    match delays_successor(spec, failed) {
        true => remaining_wait(before.saturating_add(1), finished_at(failed), now),
        false => Duration::ZERO,
    }
}

/// Returns whether the successor of a failed pod has to wait. It need not after a disruption that
/// the policy ignores, if the pod had existed for the time of the first delay: so pods that are
/// disrupted again and again are replaced no faster than after failures.
fn delays_successor(spec: &JobSpec, failed: &Pod) -> bool {
    // Without the ends of containers a pod that was never ready seems to have ended at its start.
    let disrupted_at = || failed.rare_status()?.disruption_target_since;
    let end = || finished_at(failed).max(disrupted_at());
    let existed = || Some(end()?.duration_since(failed.meta.creation_timestamp?));
    !ignores_disruption(spec.pod_failure_policy.as_deref(), failed)
        || existed().is_none_or(|time| time < FIRST)
}

/// Returns how long the next pod has to wait after this number of failures, the last of which was
/// at `last`.
/// Upstream: `getRemainingTimeForFailuresCount`.
fn remaining_wait(failures: u32, last: Option<Timestamp>, now: Timestamp) -> Duration {
    if failures == 0 {
        return Duration::ZERO;
    }
    let doubled = 2_u32.checked_pow(failures - 1).and_then(|times| FIRST.checked_mul(times));
    let period = doubled.unwrap_or(LONGEST).min(LONGEST);
    // A time ahead of this clock prolongs the wait, as upstream.
    let last = last.unwrap_or_default();
    (period + last.duration_since(now)).saturating_sub(now.duration_since(last))
}

/// Returns the best known time at which a pod finished: that of its containers, else when it became
/// unready, else that of its deletion, else that of its creation.
/// Upstream: `getFinishedTime`.
pub fn finished_at(pod: &Pod) -> Option<Timestamp> {
    if let Some(rare) = pod.rare_status()
        && let Some(containers_finished) = rare.finished_at
    {
        return Some(containers_finished);
    }
    if let Some(ready) = pod.status.condition("Ready")
        && ready.status == "False"
        && let Some(became_unready) = pod.status.ready_changed
    {
        return Some(became_unready);
    }
    if let Some(deletion) = pod.meta.deletion_timestamp {
        let grace = pod.meta.deletion_grace_period_seconds.map_or(Duration::ZERO, Duration::from);
        return Some(deletion - grace);
    }
    pod.meta.creation_timestamp
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_secs(second)
    }

    fn pod(json: Value) -> Arc<Pod> {
        Arc::new(serde_json::from_value(json).unwrap())
    }

    fn ended_pod(second: i64) -> Arc<Pod> {
        let state = json!({ "terminated": { "exitCode": 1, "finishedAt": at(second) } });
        pod(json!({ "status": { "containerStatuses": [{ "name": "c", "state": state }] } }))
    }

    #[test]
    fn failures_after_the_last_success_count() {
        let before = Failures { count: 2, last: Some(at(5)) };
        // Ends of pods that succeeded, and that failed; the number of failures, and the last one.
        for (succeeded, failed, count, last) in [
            (&[] as &[i64], &[] as &[i64], 2, Some(5)),
            (&[], &[9, 7], 4, Some(9)),
            (&[8], &[], 0, None),
            (&[8, 3], &[9, 7, 8, 12], 2, Some(12)),
            (&[20], &[9], 0, None),
        ] {
            let pods = |ends: &[i64]| ends.iter().map(|end| ended_pod(*end)).collect::<Vec<_>>();
            let finished = FinishedPods { succeeded: pods(succeeded), failed: pods(failed) };
            let found = before.with_finished(&JobSpec::default(), &finished);
            assert_eq!(found, Failures { count, last: last.map(at) }, "{succeeded:?} {failed:?}");
        }
    }

    #[test]
    fn the_wait_doubles_to_ten_minutes() {
        // Failures, seconds since the last, and the seconds to wait.
        for (count, ago, seconds) in [
            (0, 0, 0),
            (1, 0, 10),
            (1, 4, 6),
            (1, 10, 0),
            (2, 0, 20),
            (3, 100, 0),
            (6, 0, 320),
            (7, 0, 600),
            (7, 590, 10),
            (100, 0, 600),
            (1, -5, 15),
        ] {
            let failures = Failures { count, last: Some(at(1000 - ago)) };
            assert_eq!(failures.wait(at(1000)), Duration::from_secs(seconds), "{count} {ago}");
        }
        let (spec, failed) = (JobSpec::default(), ended_pod(1000));
        assert_eq!(wait_for_index(&spec, &failed, 0, at(1000)), Duration::from_secs(10));
        assert_eq!(wait_for_index(&spec, &failed, 2, at(1005)), Duration::from_secs(35));
    }

    #[test]
    fn a_disruption_that_the_policy_ignores_delays_no_successor() {
        let disrupted = json!({ "type": "DisruptionTarget", "status": "True" });
        let on_disruption = json!({ "action": "Ignore", "onPodConditions": [disrupted] });
        let on_exit = |action: &str| {
            json!({
                "action": action, "onExitCodes": { "operator": "In", "values": [1] },
            })
        };
        let failed = |existed: i64, conditions: Value| {
            let state = json!({ "terminated": { "exitCode": 1, "finishedAt": at(1000) } });
            pod(json!({
                "metadata": { "creationTimestamp": at(1000 - existed) },
                "status": {
                    "phase": "Failed", "conditions": conditions,
                    "containerStatuses": [{ "name": "c", "state": state }],
                },
            }))
        };
        let (yes, no) = (json!([disrupted]), json!([]));
        let rules = [
            json!([on_disruption]),
            json!([on_exit("Ignore")]),
            json!([on_exit("Count"), on_disruption]),
        ];
        // The rules, how long the pod existed, its conditions, and the seconds to wait.
        for (rules, existed, conditions, seconds) in [
            (&rules[0], 10, &yes, 0),
            (&rules[0], 9, &yes, 10),
            (&rules[0], 10, &no, 10),
            (&rules[1], 10, &yes, 0),
            (&rules[1], 10, &no, 10),
            (&rules[2], 10, &yes, 10),
            (&no, 10, &yes, 10),
        ] {
            let policy = json!({ "podFailurePolicy": { "rules": rules } });
            let spec: JobSpec = serde_json::from_value(policy).unwrap();
            let failed = failed(existed, conditions.clone());
            let wait = Duration::from_secs(seconds);
            let text = format!("{rules} {existed} {conditions}");
            assert_eq!(wait_for_index(&spec, &failed, 0, at(1000)), wait, "{text}");
            let finished = FinishedPods { succeeded: Vec::new(), failed: vec![failed] };
            let failures = Failures::default().with_finished(&spec, &finished);
            assert_eq!(failures.wait(at(1000)), wait, "{text}");
        }
        // A pod that was never ready, by the time for which it existed until its disruption.
        for (existed, seconds) in [(10, 0), (9, 30)] {
            let mut target = disrupted.clone();
            target["lastTransitionTime"] = json!(at(990 + existed));
            let ready =
                json!({ "type": "Ready", "status": "False", "lastTransitionTime": at(990) });
            let failed = pod(json!({
                "metadata": { "creationTimestamp": at(990) },
                "status": { "phase": "Failed", "conditions": [ready, target] },
            }));
            let policy = json!({ "podFailurePolicy": { "rules": [on_disruption] } });
            let spec: JobSpec = serde_json::from_value(policy).unwrap();
            let wait = wait_for_index(&spec, &failed, 2, at(1000));
            assert_eq!(wait, Duration::from_secs(seconds), "{existed}");
        }
    }

    #[test]
    fn a_pod_ends_with_its_last_container_or_at_the_next_best_time() {
        let terminated =
            |second: i64| json!({ "terminated": { "exitCode": 1, "finishedAt": at(second) } });
        let ready = |status: &str| json!([{ "type": "Ready", "status": status, "lastTransitionTime": at(30) }]);
        let meta = json!({
            "creationTimestamp": at(10), "deletionTimestamp": at(50), "deletionGracePeriodSeconds": 10,
        });
        let created = json!({ "creationTimestamp": at(10) });
        let both = json!([
            { "name": "a", "state": terminated(20) }, { "name": "b", "state": terminated(22) },
        ]);
        let one = json!([{ "name": "a", "state": terminated(20) }, { "name": "b", "state": {} }]);
        let none = json!([]);
        for (meta, containers, ready, end) in [
            (&meta, &both, ready("False"), 22),
            (&meta, &one, ready("False"), 30),
            (&meta, &one, ready("Unknown"), 40),
            (&created, &none, ready("True"), 10),
        ] {
            let status = json!({ "containerStatuses": containers, "conditions": ready });
            let pod = pod(json!({ "metadata": meta, "status": status }));
            assert_eq!(finished_at(&pod), Some(at(end)), "{status}");
        }
        // A sidecar ends after the containers, and what has not ended has no end.
        let sidecar = |state: Value| {
            pod(json!({
                "metadata": created,
                "spec": { "initContainers": [{ "name": "s", "restartPolicy": "Always" }] },
                "status": {
                    "containerStatuses": both,
                    "initContainerStatuses": [{ "name": "s", "state": state }],
                },
            }))
        };
        assert_eq!(finished_at(&sidecar(terminated(25))), Some(at(25)));
        assert_eq!(finished_at(&sidecar(json!({ "running": {} }))), Some(at(10)));
    }
}
