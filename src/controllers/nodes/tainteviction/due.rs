//! When a pod has to leave a node with NoExecute taints.

use std::time::Duration;

use crate::objects::{Taint, Toleration};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    Never,
    /// A taint is not tolerated.
    Now,
    /// All taints are tolerated for this long, which may be zero.
    After(Duration),
}

impl Due {
    /// Whether an eviction that waits since `planned` is planned again. Other tolerations do not move
    /// it, not even to now. Upstream: `processPodOnNode`.
    pub fn replaces(self, planned: Duration, now: Duration) -> bool {
        match self {
            Due::Now => true,
            Due::Never | Due::After(_) => planned >= now,
        }
    }

    /// When an eviction that is planned since `planned`, and was due and failed, is due again, if
    /// that is later than now: tolerations have become longer. Upstream counts from the change.
    pub fn postpones(self, planned: Duration, now: Duration) -> Option<Duration> {
        match self {
            Due::After(after) => Some(planned.saturating_add(after)).filter(|due| *due > now),
            Due::Never | Due::Now => None,
        }
    }
}

/// The first toleration of each taint counts. `comparison`: the gate
/// TaintTolerationComparisonOperators. Upstream: `GetMatchingTolerations`, `getMinTolerationTime`.
pub fn of(taints: &[&Taint], tolerations: &[Toleration], comparison: bool) -> Due {
    let mut least: Option<i64> = None;
    for taint in taints {
        let covers = |toleration: &&Toleration| toleration.tolerates(taint, comparison);
        let Some(toleration) = tolerations.iter().find(covers) else { return Due::Now };
        least = least.into_iter().chain(toleration.toleration_seconds).min();
    }
    match least.map(u64::try_from) {
        None => Due::Never,
        Some(seconds) => Due::After(Duration::from_secs(seconds.unwrap_or(0))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::NO_EXECUTE;

    fn taint(key: &str) -> Taint {
        Taint { key: key.into(), effect: NO_EXECUTE.into(), ..Taint::default() }
    }

    fn toleration(key: &str, seconds: Option<i64>) -> Toleration {
        Toleration {
            key: key.into(),
            operator: "Exists".into(),
            effect: NO_EXECUTE.into(),
            toleration_seconds: seconds,
            ..Toleration::default()
        }
    }

    #[test]
    fn the_least_toleration_that_is_used_counts() {
        let after = |seconds| Due::After(Duration::from_secs(seconds));
        // Upstream: TestGetMinTolerationTime, TestCreatePod.
        for (taints, tolerations, due) in [
            (&["a"][..], &[][..], Due::Now),
            (&["a"], &[("a", None)], Due::Never),
            (&["a"], &[("a", Some(100))], after(100)),
            (&["a"], &[("a", Some(0))], after(0)),
            (&["a"], &[("a", Some(-5))], after(0)),
            (&["a"], &[("b", Some(100))], Due::Now),
            (&["a", "b"], &[("a", Some(100)), ("b", Some(10))], after(10)),
            (&["a", "b"], &[("a", None), ("b", Some(10))], after(10)),
            (&["a", "b"], &[("a", None), ("b", None)], Due::Never),
            (&["a", "b"], &[("a", Some(0)), ("b", None)], after(0)),
            (&["a", "b"], &[("a", Some(1))], Due::Now),
            // The first that matches counts, not the least; those that match nothing do not count.
            (&["a"], &[("a", Some(100)), ("a", Some(1)), ("b", Some(1))], after(100)),
        ] {
            let tainted: Vec<Taint> = taints.iter().map(|key| taint(key)).collect();
            let tainted: Vec<&Taint> = tainted.iter().collect();
            let tolerated: Vec<Toleration> =
                tolerations.iter().map(|(key, seconds)| toleration(key, *seconds)).collect();
            assert_eq!(of(&tainted, &tolerated, false), due, "{taints:?} {tolerations:?}");
        }
        let huge = toleration("a", Some(i64::MAX));
        assert_eq!(of(&[&taint("a")], &[huge], false), after(i64::MAX.unsigned_abs()));
    }
    #[test]
    fn an_eviction_that_waits_is_replaced_only_by_a_taint_that_is_not_tolerated() {
        let secs = Duration::from_secs;
        for (due, planned, replaced) in [
            (Due::Now, 10, true),
            (Due::After(secs(0)), 10, false),
            (Due::After(secs(5)), 10, false),
            (Due::After(secs(500)), 10, false),
            // Planned in the same sync.
            (Due::After(secs(5)), 20, true),
        ] {
            assert_eq!(due.replaces(secs(planned), secs(20)), replaced, "{due:?} {planned}");
        }
    }

    #[test]
    fn an_eviction_that_failed_is_postponed_by_a_longer_toleration() {
        let secs = Duration::from_secs;
        for (due, postponed) in [
            (Due::Now, None),
            (Due::Never, None),
            (Due::After(secs(5)), None),
            (Due::After(secs(10)), None),
            (Due::After(secs(11)), Some(secs(21))),
            (Due::After(Duration::MAX), Some(Duration::MAX)),
        ] {
            assert_eq!(due.postpones(secs(10), secs(20)), postponed, "{due:?}");
        }
    }
}
