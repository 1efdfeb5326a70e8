//! The status of a Deployment, computed from its ReplicaSets.

use std::time::Duration;

use super::limits::Limits;
use super::sets::Sets;
use crate::objects::{Condition, Deployment, DeploymentStatus, ReplicaSet, Timestamp};

pub(super) const AVAILABLE: &str = "Available";
pub(super) const PROGRESSING: &str = "Progressing";
pub(super) const REPLICA_FAILURE: &str = "ReplicaFailure";

pub(super) const REPLICA_SET_UPDATED: &str = "ReplicaSetUpdated";
pub(super) const FAILED_CREATE: &str = "ReplicaSetCreateError";
pub(super) const NEW_REPLICA_SET: &str = "NewReplicaSetCreated";
pub(super) const FOUND_REPLICA_SET: &str = "FoundNewReplicaSet";
pub(super) const NEW_AVAILABLE: &str = "NewReplicaSetAvailable";
pub(super) const TIMED_OUT: &str = "ProgressDeadlineExceeded";
pub(super) const PAUSED: &str = "DeploymentPaused";
pub(super) const RESUMED: &str = "DeploymentResumed";

/// Makes a condition that changes now.
/// Upstream: `NewDeploymentCondition`.
pub(super) fn condition(
    kind: &str,
    status: &str,
    reason: &str,
    message: impl Into<String>,
    now: Timestamp,
) -> Condition {
    Condition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        last_update_time: Some(now.truncate_to_secs()),
        last_transition_time: Some(now.truncate_to_secs()),
        reason: Some(reason.to_owned()),
        message: Some(message.into()),
        ..Condition::default()
    }
}

pub(super) fn find_condition<'a>(
    status: &'a DeploymentStatus,
    kind: &str,
) -> Option<&'a Condition> {
    status.conditions.iter().flatten().find(|condition| condition.type_ == kind)
}

/// Sets a condition, unless it is there with the same status and reason. The time of its transition
/// changes with its status. Upstream: `SetDeploymentCondition`.
pub(super) fn set_condition(status: &mut DeploymentStatus, mut condition: Condition) {
    if let Some(current) = find_condition(status, &condition.type_)
        && current.status == condition.status
    {
        if current.reason == condition.reason {
            return;
        }
        condition.last_transition_time = current.last_transition_time;
    }
    remove_condition(status, &condition.type_);
    status.conditions.get_or_insert_default().push(condition);
}

pub(super) fn remove_condition(status: &mut DeploymentStatus, kind: &str) {
    if let Some(conditions) = &mut status.conditions {
        conditions.retain(|condition| condition.type_ != kind);
        if conditions.is_empty() {
            status.conditions = None;
        }
    }
}

/// Returns the condition of a ReplicaSet as one of its Deployment. Upstream:
/// `ReplicaSetToDeploymentCondition`.
pub(super) fn from_replica_set(condition: &Condition) -> Condition {
    Condition { last_update_time: condition.last_transition_time, ..condition.clone() }
}

/// Computes the status: the counts, and whether enough pods are available; other conditions are
/// carried over.
/// Upstream: `calculateStatus`.
pub(super) fn calculate(
    sets: &Sets,
    deployment: &Deployment,
    now: Timestamp,
    counts_terminating: bool,
) -> DeploymentStatus {
    let sum = |count: fn(&ReplicaSet) -> i32| {
        sets.all().map(|set| count(set)).fold(0, i32::saturating_add)
    };
    let available = sum(|set| set.status.available_replicas);
    let mut status = DeploymentStatus {
        observed_generation: Some(deployment.meta.generation),
        replicas: Some(sum(|set| set.status.replicas)),
        updated_replicas: Some(sets.new.as_ref().map_or(0, |set| set.status.replicas)),
        ready_replicas: Some(sum(|set| set.status.ready_replicas)),
        available_replicas: Some(available),
        // More are available than wanted while a Deployment shrinks.
        unavailable_replicas: Some(sets.replicas().saturating_sub(available).max(0)),
        collision_count: deployment.status.collision_count,
        terminating_replicas: terminating(sets).filter(|_| counts_terminating),
        conditions: deployment.status.conditions.clone(),
    };
    let needed = deployment.replicas() - Limits::new(deployment).max_unavailable;
    let availability = if available >= needed {
        ("True", "MinimumReplicasAvailable", "Deployment has minimum availability.")
    } else {
        ("False", "MinimumReplicasUnavailable", "Deployment does not have minimum availability.")
    };
    set_condition(
        &mut status,
        condition(AVAILABLE, availability.0, availability.1, availability.2, now),
    );
    without_defaults(status)
}

/// Returns the number of pods that are being deleted; `None` while a ReplicaSet that has a status
/// does not show its number. Upstream: `GetTerminatingReplicaCountForReplicaSets` (gate
/// `DeploymentReplicaSetTerminatingReplicas`).
fn terminating(sets: &Sets) -> Option<i32> {
    let mut known = sets.all().map(|set| match set.status.terminating_replicas {
        None if set.status.observed_generation == 0 => Some(0),
        count => count,
    });
    known.try_fold(0i32, |sum, count| Some(sum.saturating_add(count?)))
}

/// Returns the status as the API would return it: what is zero or empty is absent.
pub(super) fn without_defaults(mut status: DeploymentStatus) -> DeploymentStatus {
    for count in [
        &mut status.replicas,
        &mut status.updated_replicas,
        &mut status.ready_replicas,
        &mut status.available_replicas,
        &mut status.unavailable_replicas,
    ] {
        *count = count.filter(|count| *count != 0);
    }
    status.observed_generation = status.observed_generation.filter(|generation| *generation != 0);
    status.conditions = status.conditions.filter(|conditions| !conditions.is_empty());
    for condition in status.conditions.iter_mut().flatten() {
        condition.reason = condition.reason.take().filter(|text| !text.is_empty());
        condition.message = condition.message.take().filter(|text| !text.is_empty());
    }
    status
}

/// Returns whether the rollout is complete: every pod is of the new template and available, and no
/// old one is left.
/// Upstream: `DeploymentComplete`.
pub(super) fn is_complete(deployment: &Deployment, status: &DeploymentStatus) -> bool {
    let desired = deployment.replicas();
    [status.updated_replicas, status.replicas, status.available_replicas]
        .iter()
        .all(|count| count.unwrap_or(0) == desired)
        && status.observed_generation.unwrap_or(0) >= deployment.meta.generation
}

/// Returns whether the rollout has progressed from `old` to `new`: there are more new, ready or
/// available pods, or fewer old ones.
/// Upstream: `DeploymentProgressing`.
pub(super) fn has_progressed(old: &DeploymentStatus, new: &DeploymentStatus) -> bool {
    let count = |count: Option<i32>| count.unwrap_or(0);
    let outdated =
        |status: &DeploymentStatus| count(status.replicas) - count(status.updated_replicas);
    count(new.updated_replicas) > count(old.updated_replicas)
        || outdated(new) < outdated(old)
        || count(new.ready_replicas) > count(old.ready_replicas)
        || count(new.available_replicas) > count(old.available_replicas)
}

/// Returns `spec.progressDeadlineSeconds`; its largest value means no deadline. Upstream:
/// `HasProgressDeadline`.
pub(super) fn progress_deadline(deployment: &Deployment) -> Option<Duration> {
    let seconds = deployment.spec.progress_deadline_seconds.filter(|secs| *secs != i32::MAX)?;
    Some(Duration::from_secs(u64::try_from(seconds).unwrap_or(0)))
}

/// Returns the last update of a condition; 1970 if it is not known.
pub(super) fn updated_at(condition: &Condition) -> Timestamp {
    condition.last_update_time.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::sets::tests::set as replica_set;
    use super::*;
    use serde_json::{Value, json};

    const NOW: Timestamp = Timestamp::from_secs(1000);

    fn deployment(spec: Value, status: Value) -> Deployment {
        let meta = json!({"namespace": "ns", "name": "web", "generation": 3});
        serde_json::from_value(json!({"metadata": meta, "spec": spec, "status": status})).unwrap()
    }

    fn status_of(new: Option<Value>, old: &[Value], spec: Value, status: Value) -> Value {
        let one =
            |name: &str, status: &Value| replica_set(name, 1, name, 2, json!({"/status": status}));
        let sets = Sets {
            new: new.as_ref().map(|status| one("new", status)),
            old: old.iter().map(|status| one("old", status)).collect(),
        };
        serde_json::to_value(calculate(&sets, &deployment(spec, status), NOW, true)).unwrap()
    }

    #[test]
    fn counts_and_availability() {
        let spec = json!({"replicas": 4, "strategy": {"type": "RollingUpdate",
            "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 1}}});
        let full = json!({"replicas": 2, "readyReplicas": 2, "availableReplicas": 2,
            "observedGeneration": 1, "terminatingReplicas": 1});
        let half = json!({"replicas": 2, "readyReplicas": 1, "availableReplicas": 1,
            "observedGeneration": 1, "terminatingReplicas": 0});
        let got = status_of(
            Some(half.clone()),
            std::slice::from_ref(&full),
            spec.clone(),
            json!({"collisionCount": 0}),
        );
        assert_eq!(
            got,
            json!({"observedGeneration": 3, "replicas": 4, "updatedReplicas": 2, "readyReplicas": 3,
                "availableReplicas": 3, "unavailableReplicas": 1, "terminatingReplicas": 1,
                "collisionCount": 0, "conditions": [{"type": "Available", "status": "True",
                    "reason": "MinimumReplicasAvailable",
                    "message": "Deployment has minimum availability.",
                    "lastUpdateTime": "1970-01-01T00:16:40Z",
                    "lastTransitionTime": "1970-01-01T00:16:40Z"}]})
        );
        let got = status_of(None, &[half], spec.clone(), json!({}));
        assert_eq!(got["conditions"][0]["reason"], "MinimumReplicasUnavailable");
        assert_eq!(got["updatedReplicas"], Value::Null);
        // `terminatingReplicas` is the sum over all ReplicaSets. One without any status adds 0; if
        // one has a status without this count, the sum is absent.
        let got = status_of(Some(json!({})), std::slice::from_ref(&full), spec.clone(), json!({}));
        assert_eq!(got["terminatingReplicas"], 1);
        let got = status_of(Some(json!({"observedGeneration": 1})), &[full], spec, json!({}));
        assert_eq!(got["terminatingReplicas"], Value::Null);
    }

    #[test]
    fn a_sum_that_is_too_large_is_the_largest_number() {
        let full = json!({"replicas": i32::MAX, "readyReplicas": i32::MAX,
            "availableReplicas": i32::MAX, "observedGeneration": 1, "terminatingReplicas": i32::MAX});
        let got = status_of(Some(full.clone()), &[full], json!({"replicas": 1}), json!({}));
        for count in ["replicas", "readyReplicas", "availableReplicas", "terminatingReplicas"] {
            assert_eq!(got[count], i32::MAX, "{count}");
        }
    }

    #[test]
    fn conditions_keep_their_times() {
        let at = |secs| Timestamp::from_secs(secs);
        let mut status = DeploymentStatus::default();
        set_condition(&mut status, condition("A", "True", "R1", "m1", at(1)));
        set_condition(&mut status, condition("B", "True", "R", "m", at(1)));
        // status, reason, and then the reason, the transition's and the update's time
        for (value, reason, now, transition, update) in
            [("True", "R1", 2, 1, 1), ("True", "R2", 3, 1, 3), ("False", "R2", 4, 4, 4)]
        {
            set_condition(&mut status, condition("A", value, reason, "m", at(now)));
            let found = find_condition(&status, "A").unwrap();
            assert_eq!(found.last_transition_time, Some(at(transition)));
            assert_eq!(updated_at(found), at(update));
            assert_eq!(found.reason.as_deref(), Some(reason));
        }
        remove_condition(&mut status, "A");
        assert!(find_condition(&status, "A").is_none() && find_condition(&status, "B").is_some());
        remove_condition(&mut status, "B");
        assert_eq!(status, DeploymentStatus::default());
    }

    #[test]
    fn complete_and_progressing() {
        let counts = |updated, total, ready, available| DeploymentStatus {
            updated_replicas: Some(updated),
            replicas: Some(total),
            ready_replicas: Some(ready),
            available_replicas: Some(available),
            observed_generation: Some(3),
            ..DeploymentStatus::default()
        };
        let wanted = deployment(json!({"replicas": 3}), json!({}));
        for (status, complete) in [
            (counts(3, 3, 3, 3), true),
            (counts(3, 4, 4, 3), false),
            (counts(2, 3, 3, 3), false),
            (counts(3, 3, 3, 2), false),
            (DeploymentStatus { observed_generation: Some(2), ..counts(3, 3, 3, 3) }, false),
        ] {
            assert_eq!(is_complete(&wanted, &status), complete, "{status:?}");
        }
        let before = counts(1, 3, 2, 2);
        for (after, progressed) in [
            (counts(1, 3, 2, 2), false),
            (counts(2, 4, 2, 2), true),
            (counts(1, 2, 2, 2), true),
            (counts(1, 3, 3, 2), true),
            (counts(1, 3, 2, 3), true),
            (counts(1, 4, 1, 1), false),
        ] {
            assert_eq!(has_progressed(&before, &after), progressed, "{after:?}");
        }
    }
}
