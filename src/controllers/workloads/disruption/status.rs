//! The status of a budget.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::expected::SCALE_HINT;
use crate::objects::{BudgetCondition, Pod, PodDisruptionBudgetStatus, Timestamp};

/// How long after its eviction was allowed a pod has to be deleted. Upstream: `DeletionTimeout`.
const DELETION_TIMEOUT: Duration = Duration::from_secs(120);
/// Upstream: `policy.DisruptionAllowedCondition`.
const DISRUPTION_ALLOWED: &str = "DisruptionAllowed";

/// Pods whose eviction was allowed, and when.
pub(super) type DisruptedPods = BTreeMap<Box<str>, Option<Timestamp>>;

/// The pods of a budget whose eviction was allowed and that are not being deleted.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Disrupted {
    /// Not deleted yet.
    pub waiting: DisruptedPods,
    /// Not deleted in time.
    pub overdue: Vec<Arc<Pod>>,
    /// When the first of those that wait is overdue.
    pub recheck: Option<Timestamp>,
}

/// Returns until when a pod counts as disrupted whose eviction was `allowed` at this time.
fn deadline(allowed: Option<Timestamp>) -> Timestamp {
    allowed.unwrap_or(Timestamp::from_secs(0)) + DELETION_TIMEOUT
}

/// Splits the pods whose eviction was allowed, which the status has as `known`, into those that
/// still wait for their deletion and those that are overdue. The others are dropped.
/// Upstream: `buildDisruptedPodMap`.
pub(super) fn disrupted(pods: &[Arc<Pod>], known: &DisruptedPods, now: Timestamp) -> Disrupted {
    let mut disrupted = Disrupted::default();
    for pod in pods.iter().filter(|pod| !pod.meta.is_being_deleted()) {
        let Some((name, allowed)) = known.get_key_value(&*pod.meta.name) else { continue };
        let deadline = deadline(*allowed);
        if deadline < now {
            disrupted.overdue.push(pod.clone());
            continue;
        }
        let recheck = disrupted.recheck.map_or(deadline, |known| known.min(deadline));
        disrupted.recheck = Some(recheck);
        disrupted.waiting.insert(name.clone(), *allowed);
    }
    disrupted
}

/// Counts the pods that are ready and stay. Upstream: `countHealthyPods`.
pub(super) fn healthy(pods: &[Arc<Pod>], disrupted: &DisruptedPods, now: Timestamp) -> i32 {
    let goes = |pod: &Pod| {
        pod.meta.is_being_deleted()
            || disrupted.get(&*pod.meta.name).is_some_and(|allowed| deadline(*allowed) > now)
    };
    let healthy = pods.iter().filter(|pod| !goes(pod) && pod.is_ready()).count();
    i32::try_from(healthy).unwrap_or(i32::MAX)
}

/// The numbers of pods that are healthy, that have to be, and that the budget covers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counts {
    pub healthy: i32,
    pub desired: i32,
    pub expected: i32,
}

/// Computes the status from the counts; a condition that says the same stays as it is.
/// Upstream: `updatePdbStatus`.
pub(super) fn calculate(
    old: &PodDisruptionBudgetStatus,
    generation: i64,
    counts: Counts,
    disrupted_pods: DisruptedPods,
    now: Timestamp,
) -> PodDisruptionBudgetStatus {
    // A budget without pods is safe when its first ones appear before the next sync.
    let allowed = match counts.expected > 0 {
        true => counts.healthy.saturating_sub(counts.desired).max(0),
        false => 0,
    };
    let mut conditions = old.conditions.clone();
    let (status, reason) = match allowed > 0 {
        true => ("True", "SufficientPods"),
        false => ("False", "InsufficientPods"),
    };
    let is_current = conditions
        .iter()
        .find(|condition| condition.r#type == DISRUPTION_ALLOWED)
        .is_some_and(|condition| condition.status == status && condition.reason == reason);
    // A condition that says the same is left as it is, with the message of the failure that ended
    // or of another writer.
    let is_same = is_current
        && old.observed_generation == generation
        && old.disruptions_allowed == allowed
        && (old.current_healthy, old.desired_healthy, old.expected_pods)
            == (counts.healthy, counts.desired, counts.expected)
        && old.disrupted_pods == disrupted_pods;
    if !is_same {
        set_condition(&mut conditions, status, reason, String::new(), generation, now);
    }
    PodDisruptionBudgetStatus {
        observed_generation: generation,
        disrupted_pods,
        disruptions_allowed: allowed,
        current_healthy: counts.healthy,
        desired_healthy: counts.desired,
        expected_pods: counts.expected,
        conditions,
    }
}

/// Returns the status that allows no eviction, with the reason. A condition of the Go manager,
/// whose message lacks [`SCALE_HINT`], stays.
/// Upstream: `failSafe`.
pub(super) fn fail_safe(
    old: &PodDisruptionBudgetStatus,
    why: String,
    now: Timestamp,
) -> PodDisruptionBudgetStatus {
    let mut status = PodDisruptionBudgetStatus { disruptions_allowed: 0, ..old.clone() };
    let generation = old.observed_generation;
    let is_shown = status.conditions.iter().any(|known| {
        known.r#type == DISRUPTION_ALLOWED
            && known.reason == "SyncFailed"
            && (known.message == why || why.strip_suffix(SCALE_HINT) == Some(&*known.message))
    });
    if !is_shown {
        set_condition(&mut status.conditions, "False", "SyncFailed", why, generation, now);
    }
    status
}

/// Sets the condition DisruptionAllowed; the time of its transition changes with its status.
/// Upstream: `meta.SetStatusCondition`.
fn set_condition(
    conditions: &mut Vec<BudgetCondition>,
    status: &str,
    reason: &str,
    message: String,
    observed_generation: i64,
    now: Timestamp,
) {
    let mut new = BudgetCondition {
        r#type: DISRUPTION_ALLOWED.into(),
        status: status.into(),
        observed_generation,
        last_transition_time: Some(now.truncate_to_secs()),
        reason: reason.into(),
        message,
    };
    match conditions.iter_mut().find(|condition| condition.r#type == DISRUPTION_ALLOWED) {
        Some(old) => {
            if old.status == new.status {
                new.last_transition_time = old.last_transition_time;
            }
            *old = new;
        }
        None => conditions.push(new),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1000);

    fn pod(name: &str, ready: &str, deleted: bool) -> Arc<Pod> {
        let deleted = deleted.then_some("2026-01-01T00:00:00Z");
        let pod = json!({
            "metadata": { "name": name, "deletionTimestamp": deleted },
            "status": { "conditions": [{ "type": "Ready", "status": ready }] },
        });
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    fn at(seconds: i64) -> Option<Timestamp> {
        Some(Timestamp::from_secs(seconds))
    }

    #[test]
    fn disrupted_pods_wait_until_their_deadline() {
        let pods = [
            pod("deleted", "True", true),
            pod("late", "True", false),
            pod("at-the-deadline", "True", false),
            pod("waits", "True", false),
            pod("fresh", "False", false),
            pod("other", "True", false),
            pod("unready", "False", false),
        ];
        let known: DisruptedPods = [
            ("deleted", at(990)),
            ("late", at(879)),
            ("at-the-deadline", at(880)),
            ("waits", at(900)),
            ("fresh", at(1000)),
            ("gone", at(1000)),
        ]
        .into_iter()
        .map(|(name, time)| (name.into(), time))
        .collect();
        let Disrupted { waiting, overdue, recheck } = disrupted(&pods, &known, NOW);
        let names: Vec<&str> = waiting.keys().map(|name| &**name).collect();
        assert_eq!(names, ["at-the-deadline", "fresh", "waits"]);
        let late: Vec<&str> = overdue.iter().map(|pod| &*pod.meta.name).collect();
        assert_eq!(late, ["late"]);
        assert_eq!(recheck, Some(NOW));
        // Late, at its deadline, and other.
        assert_eq!(healthy(&pods, &waiting, NOW), 3);
        assert_eq!(disrupted(&pods, &DisruptedPods::new(), NOW), Disrupted::default());
    }

    #[test]
    fn what_is_allowed() {
        // Healthy, desired, expected, and what is allowed.
        for (healthy, desired, expected, allowed) in [
            (0, 0, 0, 0),
            (5, 3, 5, 2),
            (3, 3, 5, 0),
            (2, 3, 5, 0),
            (3, 0, 0, 0),
            (i32::MIN, i32::MAX, 1, 0),
        ] {
            let counts = Counts { healthy, desired, expected };
            let old = PodDisruptionBudgetStatus::default();
            let status = calculate(&old, 7, counts, DisruptedPods::new(), NOW);
            assert_eq!(status.disruptions_allowed, allowed, "{counts:?}");
            let condition = &status.conditions[0];
            let (is, reason) = match allowed {
                0 => ("False", "InsufficientPods"),
                _ => ("True", "SufficientPods"),
            };
            assert_eq!((&*condition.status, &*condition.reason), (is, reason));
            assert_eq!((status.observed_generation, condition.observed_generation), (7, 7));
            // The next sync changes nothing.
            let later = NOW + Duration::from_secs(9);
            assert_eq!(calculate(&status, 7, counts, DisruptedPods::new(), later), status);
        }
    }

    #[test]
    fn a_failure_allows_nothing_until_it_ends() {
        let counts = Counts { healthy: 5, desired: 3, expected: 5 };
        let good = PodDisruptionBudgetStatus::default();
        let good = calculate(&good, 2, counts, DisruptedPods::new(), NOW);
        let later = NOW + Duration::from_secs(10);
        let failed = fail_safe(&good, "no".into(), later);
        assert_eq!(failed.disruptions_allowed, 0);
        assert_eq!((failed.current_healthy, failed.expected_pods), (5, 5));
        let condition: Value = serde_json::to_value(&failed.conditions[0]).unwrap();
        assert_eq!(
            condition,
            json!({
                "type": "DisruptionAllowed", "status": "False", "observedGeneration": 2,
                "lastTransitionTime": later, "reason": "SyncFailed", "message": "no",
            })
        );
        let hint = format!("no{SCALE_HINT}");
        for (why, message) in [(&*hint, "no"), ("no", "no"), ("no-10", "no-10"), ("yes", "yes")] {
            let found = super::fail_safe(&failed, why.to_owned(), later);
            assert_eq!(&*found.conditions[0].message, message, "{why}");
        }
        let again = calculate(&failed, 2, counts, DisruptedPods::new(), later);
        assert_eq!(again.disruptions_allowed, 2);
        assert_eq!(
            (&*again.conditions[0].reason, &*again.conditions[0].message),
            ("SufficientPods", "")
        );
        assert_eq!(again.conditions.len(), 1);
    }
}
