//! The status of a ReplicaSet, and the time of the next check.
//! Upstream: `replica_set_utils.go`.

use std::sync::Arc;

use super::Replicating;
use crate::controllers::Error;
use crate::objects::{Condition, Pod, ReplicaSetStatus, Selector, Timestamp};

const REPLICA_FAILURE: &str = "ReplicaFailure";

/// Computes the status after a sync that found these `active` pods. `terminating`: the number of
/// pods that are being deleted, if the status counts them. `failure`: of the creation or deletion
/// of pods.
/// Upstream: `calculateStatus`.
pub fn calculate(
    set: &impl Replicating,
    active: &[Arc<Pod>],
    terminating: Option<usize>,
    failure: Option<&Error>,
    now: Timestamp,
) -> ReplicaSetStatus {
    let template = Selector::from_labels(&set.spec().template.labels);
    let mut is_labeled = template.matcher();
    let labeled = active.iter().filter(|pod| is_labeled(&pod.meta.labels)).count();
    let count = |test: &dyn Fn(&Pod) -> bool| as_i32(active.iter().filter(|pod| test(pod)).count());
    ReplicaSetStatus {
        replicas: as_i32(active.len()),
        fully_labeled_replicas: as_i32(labeled),
        ready_replicas: count(&Pod::is_ready),
        available_replicas: count(&|pod| pod.is_available(set.spec().min_ready_seconds, now)),
        terminating_replicas: terminating.map(as_i32),
        observed_generation: set.status().observed_generation,
        conditions: conditions(set, active.len(), failure, now),
    }
}

/// Returns a number of pods as the API has it.
fn as_i32(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

/// Returns the conditions, with ReplicaFailure if there is a `failure` and without it otherwise. A
/// failure that the status shows already keeps its message.
fn conditions(
    set: &impl Replicating,
    active: usize,
    failure: Option<&Error>,
    now: Timestamp,
) -> Vec<Condition> {
    let mut conditions = set.status().conditions.clone();
    let is_shown = conditions.iter().any(|condition| condition.type_ == REPLICA_FAILURE);
    match failure {
        None => conditions.retain(|condition| condition.type_ != REPLICA_FAILURE),
        Some(_) if is_shown => {}
        Some(failure) => {
            let reason = match i64::from(as_i32(active)) - i64::from(set.replicas()) {
                ..0 => Some("FailedCreate".to_owned()),
                // As upstream: the number of pods is right, so no reason is given.
                0 => None,
                1.. => Some("FailedDelete".to_owned()),
            };
            conditions.push(Condition {
                type_: REPLICA_FAILURE.to_owned(),
                status: "True".to_owned(),
                last_transition_time: Some(now.truncate_to_secs()),
                reason,
                message: Some(failure.message()),
                ..Condition::default()
            });
        }
    }
    conditions
}

/// Returns whether `status` has to be written: it differs from the known one, or that is of another
/// generation.
pub fn must_write(set: &impl Replicating, status: &ReplicaSetStatus) -> bool {
    set.meta().generation != set.status().observed_generation
        || ReplicaSetStatus {
            observed_generation: set.status().observed_generation,
            ..status.clone()
        } != *set.status()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::objects::ReplicaSet;
    use serde_json::json;

    const NOW: Timestamp = Timestamp::from_secs(1000);

    fn pod(labels: &str, ready_since: Option<i64>) -> Arc<Pod> {
        let conditions = ready_since.map(|at| {
            json!([{"type": "Ready", "status": "True",
                "lastTransitionTime": Timestamp::from_secs(at).to_string()}])
        });
        Arc::new(
            serde_json::from_value(json!({
                "metadata": {"name": "p", "labels": {"app": labels}},
                "status": {"phase": "Running", "conditions": conditions},
            }))
            .unwrap(),
        )
    }

    fn set(replicas: i32) -> ReplicaSet {
        serde_json::from_value(json!({
            "metadata": {"name": "s", "generation": 2},
            "spec": {
                "replicas": replicas, "minReadySeconds": 10,
                "template": {"metadata": {"labels": {"app": "web"}}},
            },
            "status": {"replicas": 0, "observedGeneration": 1},
        }))
        .unwrap()
    }

    #[test]
    fn pods_are_counted_by_what_they_are() {
        let pods =
            [pod("web", Some(990)), pod("web", Some(991)), pod("web", None), pod("other", Some(1))];
        let status = calculate(&set(4), &pods, Some(2), None, NOW);
        assert_eq!(
            status,
            ReplicaSetStatus {
                replicas: 4,
                fully_labeled_replicas: 3,
                ready_replicas: 3,
                available_replicas: 2,
                terminating_replicas: Some(2),
                observed_generation: 1,
                conditions: vec![],
            }
        );
    }

    #[test]
    fn a_failure_condition_is_set_once_and_cleared() {
        let mut set = set(2);
        let failure = Error::other("exceeded quota");
        for (pods, reason) in [(1, Some("FailedCreate")), (3, Some("FailedDelete")), (2, None)] {
            let pods = vec![pod("web", None); pods];
            let [condition] = &calculate(&set, &pods, Some(0), Some(&failure), NOW).conditions[..]
            else {
                panic!("one condition");
            };
            assert_eq!(condition.reason.as_deref(), reason);
            assert_eq!(condition.message.as_deref(), Some("exceeded quota"));
        }
        set.status = calculate(&set, &[], Some(0), Some(&failure), NOW);
        let later = NOW + Duration::from_secs(5);
        let again = calculate(&set, &[], Some(0), Some(&Error::other("other words")), later);
        assert_eq!(again, set.status);
        assert!(calculate(&set, &[], Some(0), None, later).conditions.is_empty());
    }

    #[test]
    fn only_a_changed_status_is_written() {
        let mut set = set(0);
        let status = calculate(&set, &[], Some(0), None, NOW);
        assert!(must_write(&set, &status), "generation 2 was not observed");
        set.status = ReplicaSetStatus { observed_generation: 2, ..status.clone() };
        assert!(!must_write(&set, &status));
        assert!(must_write(&set, &ReplicaSetStatus { terminating_replicas: None, ..status }));
    }
}
