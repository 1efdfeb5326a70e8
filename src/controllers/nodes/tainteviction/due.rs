//! When a pod has to leave a node with NoExecute taints.

use std::time::Duration;

use crate::objects::{Taint, Toleration};

/// When a pod has to leave its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    Never,
    /// A taint is not tolerated.
    Now,
    /// All taints are tolerated for this long, which may be zero.
    After(Duration),
}

/// What changed while an eviction waits, so that it may be due at another time.
#[derive(Clone, Copy, Debug)]
pub enum Cause {
    Taints,
    Tolerations,
}

impl Due {
    /// Returns the new start and end of a wait that was from `planned` to `due`; `None` if it
    /// stays. A change of taints moves no wait that has begun, unless one is not tolerated.
    /// Upstream: `processPodOnNode`, where a change of tolerations does not move it either.
    pub fn replaces(
        self,
        planned: Duration,
        due: Duration,
        cause: Cause,
        now: Duration,
    ) -> Option<(Duration, Duration)> {
        match (self, cause) {
            (Due::Never, _) => None,
            (Due::Now, _) => Some((now, now)),
            (Due::After(after), Cause::Taints) => {
                (planned >= now).then(|| (now, now.saturating_add(after)))
            }
            (Due::After(after), Cause::Tolerations) => {
                let moved = planned.saturating_add(after);
                (moved != due).then(|| (planned, moved.max(now)))
            }
        }
    }

    /// Returns when an eviction that was planned at `planned`, and has failed, is due again, if
    /// that is later than now: tolerations have become longer. Upstream counts from the change.
    pub fn postpones(self, planned: Duration, now: Duration) -> Option<Duration> {
        match self {
            Due::After(after) => Some(planned.saturating_add(after)).filter(|due| *due > now),
            Due::Never | Due::Now => None,
        }
    }
}

/// Returns when a pod with these tolerations has to leave because of the taints. Only the first
/// toleration of each taint counts. `comparison`: the gate TaintTolerationComparisonOperators.
/// Upstream: `GetMatchingTolerations`, `getMinTolerationTime`.
pub fn when_due(taints: &[&Taint], tolerations: &[Toleration], comparison: bool) -> Due {
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
            // More nanoseconds than 64 bits hold.
            (&["a"], &[("a", Some(18446744074))], after(18446744074)),
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
            assert_eq!(when_due(&tainted, &tolerated, false), due, "{taints:?} {tolerations:?}");
        }
        let huge = toleration("a", Some(i64::MAX));
        assert_eq!(when_due(&[&taint("a")], &[huge], false), after(i64::MAX.unsigned_abs()));
    }

    #[test]
    fn an_eviction_that_waits_follows_the_tolerations() {
        use Cause::{Taints, Tolerations};
        let secs = Duration::from_secs;
        // Planned at a second for second 100, and seen again at second 20.
        for (due, planned, cause, replaced) in [
            (Due::Never, 10, Tolerations, None),
            (Due::Now, 10, Taints, Some((20, 20))),
            (Due::Now, 10, Tolerations, Some((20, 20))),
            (Due::After(secs(0)), 10, Taints, None),
            (Due::After(secs(500)), 10, Taints, None),
            // Planned in the same sync.
            (Due::After(secs(5)), 20, Taints, Some((20, 25))),
            (Due::After(secs(90)), 10, Tolerations, None),
            (Due::After(secs(500)), 10, Tolerations, Some((10, 510))),
            (Due::After(secs(30)), 10, Tolerations, Some((10, 40))),
            (Due::After(secs(5)), 10, Tolerations, Some((10, 20))),
        ] {
            let found = due.replaces(secs(planned), secs(100), cause, secs(20));
            let expected = replaced.map(|(start, end)| (secs(start), secs(end)));
            assert_eq!(found, expected, "{due:?} {planned} {cause:?}");
        }
        let endless =
            Due::After(Duration::MAX).replaces(secs(10), secs(100), Tolerations, secs(20));
        assert_eq!(endless, Some((secs(10), Duration::MAX)));
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
