//! What the status of a ReplicaSet says, and when it must be looked at again.
//! Upstream: `replica_set_utils.go`.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::ReplicaSetCondition;

use super::Replicating;
use crate::controllers::Error;
use crate::objects::{Pod, ReplicaSetStatus, Selector, Timestamp};

const REPLICA_FAILURE: &str = "ReplicaFailure";

/// The status after a sync that found these `active` pods, and as many that `terminating` counts.
/// `failure`: what creating or deleting pods failed with. Upstream: `calculateStatus`.
pub fn calculate<S: Replicating>(
    set: &S,
    active: &[Arc<Pod>],
    terminating: usize,
    failure: Option<&Error>,
    now: Timestamp,
) -> ReplicaSetStatus {
    let template = Selector::from_labels(&set.spec().template.labels);
    let count = |test: &dyn Fn(&Pod) -> bool| number(active.iter().filter(|pod| test(pod)).count());
    ReplicaSetStatus {
        replicas: number(active.len()),
        fully_labeled_replicas: count(&|pod| template.matches(&pod.meta.labels)),
        ready_replicas: count(&Pod::is_ready),
        available_replicas: count(&|pod| pod.is_available(set.spec().min_ready_seconds, now)),
        terminating_replicas: S::COUNTS_TERMINATING.then(|| number(terminating)),
        observed_generation: set.status().observed_generation,
        conditions: conditions(set, active.len(), failure, now),
    }
}

fn number(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

/// A failure condition that exists keeps its reason and message.
fn conditions(
    set: &impl Replicating,
    active: usize,
    failure: Option<&Error>,
    now: Timestamp,
) -> Vec<ReplicaSetCondition> {
    let mut conditions = set.status().conditions.clone();
    let is_set = conditions.iter().any(|condition| condition.type_ == REPLICA_FAILURE);
    match failure {
        None => conditions.retain(|condition| condition.type_ != REPLICA_FAILURE),
        Some(_) if is_set => {}
        Some(failure) => {
            let reason = match i64::from(number(active)) - i64::from(set.replicas()) {
                ..0 => Some("FailedCreate".to_owned()),
                0 => None,
                1.. => Some("FailedDelete".to_owned()),
            };
            conditions.push(ReplicaSetCondition {
                type_: REPLICA_FAILURE.to_owned(),
                status: "True".to_owned(),
                last_transition_time: Some(now.to_api()),
                reason,
                message: Some(failure.message()),
            });
        }
    }
    conditions
}

/// Whether `status` must be written: it differs, or the stored one has another observed generation.
pub fn must_write(set: &impl Replicating, status: &ReplicaSetStatus) -> bool {
    set.meta().generation != set.status().observed_generation
        || ReplicaSetStatus {
            observed_generation: set.status().observed_generation,
            ..status.clone()
        } != *set.status()
}

/// How long from `now` until another of the `active` pods counts as available, of those that did not
/// at `evaluated`, the time of which the status speaks. `None`: no pod will by waiting alone.
/// Upstream: `FindMinNextPodAvailabilityCheck`.
pub fn next_availability_check(
    active: &[Arc<Pod>],
    min_ready_seconds: i32,
    evaluated: Timestamp,
    now: Timestamp,
) -> Option<Duration> {
    let period = Duration::from_secs(u64::try_from(min_ready_seconds).unwrap_or(0));
    let ready = active.iter().filter_map(|pod| pod.status.ready.as_ref());
    let since = ready.filter(|ready| ready.is_true).filter_map(|ready| ready.last_transition_time);
    let due = since.map(|since| since + period).filter(|due| *due > evaluated).min()?;
    Some(due.duration_since(now))
}

#[cfg(test)]
mod tests {
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
        let status = calculate(&set(4), &pods, 2, None, NOW);
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
    fn a_failure_is_told_once_and_taken_back() {
        let mut set = set(2);
        let failure = Error::other("exceeded quota");
        for (pods, reason) in [(1, Some("FailedCreate")), (3, Some("FailedDelete")), (2, None)] {
            let pods = vec![pod("web", None); pods];
            let [condition] = &calculate(&set, &pods, 0, Some(&failure), NOW).conditions[..] else {
                panic!("one condition");
            };
            assert_eq!(condition.reason.as_deref(), reason);
            assert_eq!(condition.message.as_deref(), Some("exceeded quota"));
        }
        set.status = calculate(&set, &[], 0, Some(&failure), NOW);
        let later = NOW + Duration::from_secs(5);
        let again = calculate(&set, &[], 0, Some(&Error::other("other words")), later);
        assert_eq!(again, set.status);
        assert!(calculate(&set, &[], 0, None, later).conditions.is_empty());
    }

    #[test]
    fn only_news_is_written() {
        let mut set = set(0);
        let status = calculate(&set, &[], 0, None, NOW);
        assert!(must_write(&set, &status), "generation 2 was not observed");
        set.status = ReplicaSetStatus { observed_generation: 2, ..status.clone() };
        assert!(!must_write(&set, &status));
        assert!(must_write(&set, &ReplicaSetStatus { terminating_replicas: None, ..status }));
    }

    #[test]
    fn the_next_look_is_when_the_next_pod_is_due() {
        let at = |seconds| Timestamp::from_secs(seconds);
        for (since, evaluated, now, expected) in [
            (vec![], 1000, 1000, None),
            (vec![Some(990)], 1000, 1000, None),
            (vec![Some(995), Some(992), None], 1000, 1000, Some(2)),
            (vec![Some(995), Some(992)], 1000, 1001, Some(1)),
            // Due between the evaluation and now: at once.
            (vec![Some(992)], 1000, 1005, Some(0)),
        ] {
            let pods: Vec<Arc<Pod>> = since.into_iter().map(|since| pod("web", since)).collect();
            let next = next_availability_check(&pods, 10, at(evaluated), at(now));
            assert_eq!(next, expected.map(Duration::from_secs));
        }
    }
}
