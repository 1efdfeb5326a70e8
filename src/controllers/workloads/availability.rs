//! The time at which ready pods count as available.

use std::sync::Arc;
use std::time::Duration;

use crate::objects::{Pod, Timestamp};

/// Returns the time until a pod that was just made ready is available, for a further sync then: no
/// event comes when `minReadySeconds` have passed. `None` if this update did not make it ready, or
/// it is available at once.
pub fn becomes_available(old: &Pod, new: &Pod, min_ready_seconds: i32) -> Option<Duration> {
    let period = u64::try_from(min_ready_seconds).ok().filter(|seconds| *seconds > 0)?;
    (!old.is_ready() && new.is_ready()).then(|| Duration::from_secs(period))
}

/// Returns the time from `now` until the next of the `active` pods counts as available.
/// `evaluated`: the time for which the status was computed. `None`: no pod becomes available only
/// by waiting.
/// Upstream: `FindMinNextPodAvailabilityCheck`.
pub fn next_check(
    active: &[Arc<Pod>],
    min_ready_seconds: i32,
    evaluated: Timestamp,
    now: Timestamp,
) -> Option<Duration> {
    let period = Duration::from_secs(u64::try_from(min_ready_seconds).unwrap_or(0));
    let since = active.iter().filter_map(|pod| pod.status.ready_since());
    let due = since.map(|since| since + period).filter(|due| *due > evaluated).min()?;
    Some(due.duration_since(now))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(ready_since: Option<i64>) -> Arc<Pod> {
        let conditions = ready_since.map(|at| {
            json!([{"type": "Ready", "status": "True",
                "lastTransitionTime": Timestamp::from_secs(at).to_string()}])
        });
        Arc::new(serde_json::from_value(json!({"status": {"conditions": conditions}})).unwrap())
    }

    #[test]
    fn the_next_check_is_when_the_next_pod_becomes_available() {
        let at = |seconds| Timestamp::from_secs(seconds);
        for (since, evaluated, now, expected) in [
            (vec![], 1000, 1000, None),
            (vec![Some(990)], 1000, 1000, None),
            (vec![Some(995), Some(992), None], 1000, 1000, Some(2)),
            (vec![Some(995), Some(992)], 1000, 1001, Some(1)),
            // A pod is due between the evaluation and now: the check is at once.
            (vec![Some(992)], 1000, 1005, Some(0)),
        ] {
            let pods: Vec<Arc<Pod>> = since.into_iter().map(pod).collect();
            let next = next_check(&pods, 10, at(evaluated), at(now));
            assert_eq!(next, expected.map(Duration::from_secs));
        }
    }

    #[test]
    fn a_pod_that_becomes_ready_is_checked_after_min_ready_seconds() {
        let (ready, unready) = (pod(Some(1)), pod(None));
        for (old, new, period, again) in [
            (&unready, &ready, 5, Some(5)),
            (&unready, &ready, 0, None),
            (&unready, &ready, -1, None),
            (&ready, &ready, 5, None),
            (&ready, &unready, 5, None),
        ] {
            assert_eq!(becomes_available(old, new, period), again.map(Duration::from_secs));
        }
    }
}
