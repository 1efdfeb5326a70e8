//! The progress of a rollout: whether it advances, has ended, or is late.

use std::time::Duration;

use super::DeploymentController;
use super::sets::Sets;
use super::status::{self, PROGRESSING, REPLICA_FAILURE};
use crate::controllers::{Next, SyncResult};
use crate::objects::{Condition, Deployment, DeploymentStatus, Timestamp};

impl DeploymentController {
    /// Writes the status with the condition Progressing, if anything changed; if not, sets a timer
    /// for the deadline. Upstream: `syncRolloutStatus`.
    pub(super) async fn sync_rollout_status(
        &self,
        deployment: &mut Deployment,
        sets: &Sets,
    ) -> SyncResult {
        let now = self.clock.now();
        let next = rollout_status(sets, deployment, now, self.counts_terminating);
        if next == status::without_defaults(deployment.status.clone()) {
            return Ok(next_check(deployment, &next, now));
        }
        deployment.status = next;
        self.write_status(deployment).await?;
        Ok(Next::Done)
    }
}

/// Computes the next status, with the conditions Progressing and ReplicaFailure.
/// Upstream: `syncRolloutStatus`.
fn rollout_status(
    sets: &Sets,
    deployment: &Deployment,
    now: Timestamp,
    counts_terminating: bool,
) -> DeploymentStatus {
    let mut next = status::calculate(sets, deployment, now, counts_terminating);
    let name = match &sets.new {
        Some(set) => format!("ReplicaSet {:?}", set.meta.name),
        None => format!("Deployment {:?}", deployment.meta.name),
    };
    let current = status::find_condition(&deployment.status, PROGRESSING);
    let was_complete = next.replicas == next.updated_replicas
        && current.is_some_and(|current| has_reason(current, status::NEW_AVAILABLE));
    match status::progress_deadline(deployment) {
        None => status::remove_condition(&mut next, PROGRESSING),
        // The condition of an ended rollout stays, though pods may be unavailable again.
        Some(_) if was_complete => {}
        Some(deadline) => {
            let progress = |status: &str, reason, what: &str| {
                status::condition(PROGRESSING, status, reason, format!("{name} {what}"), now)
            };
            if status::is_complete(deployment, &next) {
                let done = progress("True", status::NEW_AVAILABLE, "has successfully progressed.");
                status::set_condition(&mut next, done);
            } else if status::has_progressed(&deployment.status, &next) {
                let mut moving = progress("True", status::REPLICA_SET_UPDATED, "is progressing.");
                // Replaced even with the same reason: its update time is the time of the last
                // progress.
                if let Some(current) = current {
                    if current.status == "True" {
                        moving.last_transition_time = current.last_transition_time;
                    }
                    status::remove_condition(&mut next, PROGRESSING);
                }
                status::set_condition(&mut next, moving);
            } else if has_timed_out(status::find_condition(&next, PROGRESSING), deadline, now) {
                let late = progress("False", status::TIMED_OUT, "has timed out progressing.");
                status::set_condition(&mut next, late);
            }
        }
    }
    match replica_failure(sets) {
        Some(failure) => status::set_condition(&mut next, failure),
        None => status::remove_condition(&mut next, REPLICA_FAILURE),
    }
    status::without_defaults(next)
}

fn has_reason(condition: &Condition, reason: &str) -> bool {
    condition.reason.as_deref() == Some(reason)
}

/// Returns whether the rollout has made no progress for the time of `deadline`, by the condition
/// Progressing. Upstream: `DeploymentTimedOut`.
fn has_timed_out(progressing: Option<&Condition>, deadline: Duration, now: Timestamp) -> bool {
    match progressing {
        None => false,
        // That rollout has ended; the condition of the next one is on its way.
        Some(condition) if has_reason(condition, status::NEW_AVAILABLE) => false,
        Some(condition) if has_reason(condition, status::TIMED_OUT) => true,
        Some(condition) => status::updated_at(condition) + deadline < now,
    }
}

/// Returns the failure that a ReplicaSet reports, the new one before the old. Upstream:
/// `getReplicaFailures`.
fn replica_failure(sets: &Sets) -> Option<Condition> {
    let failures = sets.new.iter().chain(&sets.old).flat_map(|set| &set.status.conditions);
    let mut failures = failures.filter(|condition| condition.type_ == REPLICA_FAILURE);
    failures.next().map(status::from_replica_set)
}

/// Returns when a Deployment without progress has to be checked again; `Done`: its rollout has no
/// deadline or has ended.
/// Upstream: `requeueStuckDeployment`.
fn next_check(deployment: &Deployment, next: &DeploymentStatus, now: Timestamp) -> Next {
    let current = status::find_condition(&deployment.status, PROGRESSING);
    let (Some(deadline), Some(current)) = (status::progress_deadline(deployment), current) else {
        return Next::Done;
    };
    // A rollout that has ended cannot be late either, though a pod may be unavailable again.
    let has_ended = [status::TIMED_OUT, status::NEW_AVAILABLE];
    if status::is_complete(deployment, next)
        || has_ended.iter().any(|reason| has_reason(current, reason))
    {
        return Next::Done;
    }
    let left = (status::updated_at(current) + deadline).duration_since(now);
    // The API keeps whole seconds, so one more is needed to be past the deadline.
    Next::After(left + Duration::from_secs(1))
}

#[cfg(test)]
mod tests {
    use super::super::sets::tests::set as replica_set;
    use super::*;
    use serde_json::{Value, json};

    const NOW: Timestamp = Timestamp::from_secs(100);

    fn deployment(deadline: Value, status: Value) -> Deployment {
        serde_json::from_value(json!({
            "metadata": {"namespace": "ns", "name": "web", "generation": 1},
            "spec": {"replicas": 2, "progressDeadlineSeconds": deadline},
            "status": status
        }))
        .unwrap()
    }

    /// A status of `updated` and `available` of two pods, with a Progressing condition that was
    /// written `ago` seconds ago.
    fn status(updated: i32, available: i32, progressing: Option<(&str, &str, i64)>) -> Value {
        let conditions: Vec<Value> = progressing
            .iter()
            .map(|(value, reason, ago)| {
                let time = (NOW - Duration::from_secs(ago.unsigned_abs())).to_string();
                json!({"type": "Progressing", "status": value, "reason": reason,
                    "message": "before", "lastUpdateTime": time, "lastTransitionTime": time})
            })
            .collect();
        json!({"observedGeneration": 1, "replicas": 2, "updatedReplicas": updated,
            "readyReplicas": available, "availableReplicas": available, "conditions": conditions})
    }

    fn sets(updated: i32, available: i32) -> Sets {
        let new = json!({"/status/replicas": updated, "/status/readyReplicas": available,
            "/status/availableReplicas": available});
        let old = json!({"/status/replicas": 2 - updated});
        Sets {
            new: Some(replica_set("new", 2, "new", updated, new)),
            old: vec![replica_set("old", 1, "old", 2 - updated, old)],
        }
    }

    #[test]
    fn the_condition_shows_the_progress_of_a_rollout() {
        let before = |reason, ago| Some(("True", reason, ago));
        let late = Some(("False", "ProgressDeadlineExceeded", 50));
        // before: updated, available, condition; now: updated, available; then status and reason,
        // seconds since its update and its transition
        for (was, is, expected) in [
            ((1, 0, before("R", 5)), (1, 0), Some(("True", "R", 5, 5))),
            (
                (1, 0, before("ReplicaSetUpdated", 5)),
                (2, 0),
                Some(("True", "ReplicaSetUpdated", 0, 5)),
            ),
            ((1, 0, late), (2, 0), Some(("True", "ReplicaSetUpdated", 0, 0))),
            ((1, 0, late), (1, 0), Some(("False", "ProgressDeadlineExceeded", 50, 50))),
            ((1, 0, before("R", 10)), (1, 0), Some(("True", "R", 10, 10))),
            ((1, 0, before("R", 11)), (1, 0), Some(("False", "ProgressDeadlineExceeded", 0, 0))),
            ((2, 1, before("R", 50)), (2, 2), Some(("True", "NewReplicaSetAvailable", 0, 50))),
            // complete once: a pod that is lost later starts no rollout
            (
                (2, 2, before("NewReplicaSetAvailable", 50)),
                (2, 1),
                Some(("True", "NewReplicaSetAvailable", 50, 50)),
            ),
            (
                (2, 2, before("NewReplicaSetAvailable", 50)),
                (1, 1),
                Some(("True", "NewReplicaSetAvailable", 50, 50)),
            ),
            ((1, 0, None), (1, 0), None),
        ] {
            let wanted = deployment(json!(10), status(was.0, was.1, was.2));
            let next = rollout_status(&sets(is.0, is.1), &wanted, NOW, true);
            let got = super::status::find_condition(&next, PROGRESSING).map(|condition| {
                let transition: Timestamp = condition.last_transition_time.unwrap();
                (
                    condition.status.clone(),
                    condition.reason.clone().unwrap(),
                    NOW.duration_since(super::status::updated_at(condition)).as_secs(),
                    NOW.duration_since(transition).as_secs(),
                )
            });
            let expected = expected.map(|(value, reason, update, transition)| {
                (value.to_owned(), reason.to_owned(), update, transition)
            });
            assert_eq!(got, expected, "{was:?} {is:?}");
        }
        for none in [Value::Null, json!(i32::MAX)] {
            let wanted = deployment(none, status(1, 0, before("R", 5)));
            let next = rollout_status(&sets(1, 0), &wanted, NOW, true);
            assert!(super::status::find_condition(&next, PROGRESSING).is_none());
        }
    }

    #[test]
    fn messages_name_the_replica_set() {
        let wanted = deployment(json!(10), status(1, 0, None));
        let message = |sets: &Sets| {
            let next = rollout_status(sets, &wanted, NOW, true);
            super::status::find_condition(&next, PROGRESSING).unwrap().message.clone().unwrap()
        };
        assert_eq!(message(&sets(2, 0)), "ReplicaSet \"new\" is progressing.");
        assert_eq!(message(&sets(2, 2)), "ReplicaSet \"new\" has successfully progressed.");
        let gone = Sets { new: None, old: Vec::new() };
        assert_eq!(message(&gone), "Deployment \"web\" is progressing.");
    }

    #[test]
    fn failures_of_the_new_replica_set_come_first() {
        let failing = |name: &str, reason: &str| {
            let condition = json!({"type": "ReplicaFailure", "status": "True", "reason": reason});
            replica_set(name, 1, name, 1, json!({"/status/conditions": [condition]}))
        };
        let reason = |sets: Sets| replica_failure(&sets).and_then(|condition| condition.reason);
        let (old, new) = (failing("old", "Old"), failing("new", "New"));
        let both = Sets { new: Some(new), old: vec![old.clone()] };
        assert_eq!(reason(both).as_deref(), Some("New"));
        assert_eq!(reason(Sets { new: None, old: vec![old] }).as_deref(), Some("Old"));
        assert_eq!(reason(Sets::default()), None);
    }

    #[test]
    fn the_deadline_is_checked_when_it_may_have_passed() {
        let after = |secs| Next::After(Duration::from_secs(secs));
        for (deadline, progressing, available, expected) in [
            (json!(10), Some(("True", "R", 3)), 0, after(8)),
            (json!(10), Some(("True", "R", 9)), 0, after(2)),
            (json!(10), Some(("True", "R", 10)), 0, after(1)),
            (json!(10), Some(("True", "R", 30)), 0, after(1)),
            (json!(10), Some(("False", "ProgressDeadlineExceeded", 3)), 0, Next::Done),
            (json!(10), Some(("True", "NewReplicaSetAvailable", 30)), 0, Next::Done),
            (json!(10), Some(("True", "R", 3)), 2, Next::Done),
            (json!(10), None, 0, Next::Done),
            (Value::Null, Some(("True", "R", 3)), 0, Next::Done),
        ] {
            let wanted = deployment(deadline, status(2, available, progressing));
            assert_eq!(next_check(&wanted, &wanted.status, NOW), expected, "{progressing:?}");
        }
    }
}
