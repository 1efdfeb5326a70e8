//! Upstream's cases: `horizontal_test.go`.

use super::*;

const NOW: Duration = Duration::from_secs(100_000);
const WINDOW: Duration = Duration::from_secs(300);

fn ago(seconds: u64) -> Duration {
    NOW - Duration::from_secs(seconds)
}

/// Recommendations: replicas, and how many seconds ago.
fn history(recommendations: &[(i32, u64)]) -> History {
    let known = |(replicas, seconds): &(i32, u64)| Recommendation {
        replicas: *replicas,
        at: ago(*seconds),
    };
    History { recommendations: recommendations.iter().map(known).collect(), ..History::default() }
}

/// `changes` over `seconds`, the last one now. Upstream: `generateEventsUniformDistribution`.
fn events(changes: &[i32], seconds: u64) -> Vec<ScaleEvent> {
    let interval = seconds / changes.len().max(1) as u64;
    let from_end = |at: usize| seconds - interval / 2 - interval * at as u64;
    let event = |(at, change): (usize, &i32)| ScaleEvent {
        change: *change,
        at: ago(from_end(at)),
        is_outdated: false,
    };
    changes.iter().enumerate().map(event).collect()
}

/// Policies of pods and of percent, each a value and a period; zero: no such policy.
fn rules(pods: (i32, i32), percent: (i32, i32)) -> ScalingRules {
    let policies = [("Pods", pods), ("Percent", percent)]
        .into_iter()
        .filter(|(_, (value, period))| (*value, *period) != (0, 0))
        .map(|(kind, (value, period_seconds))| ScalingPolicy {
            r#type: kind.into(),
            value,
            period_seconds,
        });
    ScalingRules { policies: policies.collect(), ..ScalingRules::default() }
}

#[test]
fn without_behavior_the_highest_recent_recommendation_counts() {
    // Recommendations, the desired number, the resulting one, and the recommendations kept.
    type Case<'a> = (&'a [(i32, u64)], i32, i32, &'a [i32]);
    let table: &[Case] = &[
        (&[], 5, 5, &[5]),
        (&[(4, 120), (5, 60)], 3, 5, &[4, 5, 3]),
        (&[(1, 120), (2, 60)], 3, 3, &[1, 2, 3]),
        (&[(10, 600), (9, 540)], 3, 3, &[10, 3]),
        (&[(10, 600), (4, 60), (5, 120), (9, 540)], 3, 5, &[10, 4, 5, 3]),
        (&[(7, 300)], 3, 7, &[7, 3]),
    ];
    for (known, desired, stabilized, kept) in table {
        let mut history = history(known);
        assert_eq!(history.stabilize(*desired, WINDOW, NOW), *stabilized, "{known:?} {desired}");
        let found: Vec<i32> = history.recommendations.iter().map(|known| known.replicas).collect();
        assert_eq!(found, *kept, "{known:?} {desired}");
    }
}

#[test]
fn with_behavior_each_direction_has_its_window() {
    // Recommendations, current, desired, the windows up and down, the result, and the number of
    // recommendations that are kept.
    type Row = (&'static [(i32, u64)], i32, i32, u64, u64, i32, usize);
    let table: &[Row] = &[
        (&[], 100, 5, 0, 0, 5, 1),
        (&[(4, 120), (5, 60)], 100, 3, 0, 180, 5, 3),
        (&[(4, 120), (5, 60)], 1, 7, 300, 0, 4, 3),
        (&[(1, 120), (2, 60)], 100, 3, 300, 0, 3, 3),
        (&[(4, 120), (5, 60)], 1, 3, 0, 300, 3, 3),
        (&[(10, 600), (9, 540)], 100, 3, 0, 0, 3, 2),
        (&[(10, 600), (9, 540)], 1, 100, 0, 0, 100, 2),
        (&[(10, 600), (4, 60), (5, 120), (9, 540)], 100, 3, 0, 180, 5, 4),
        (&[(10, 6000), (6, 60), (5, 120), (9, 180)], 1, 100, 300, 0, 5, 4),
        (&[(2, 6000), (3, 180)], 2, 1, 300, 300, 2, 2),
        (&[(2, 6000), (1, 180)], 2, 3, 300, 300, 2, 2),
    ];
    for (known, current, desired, up, down, stabilized, kept) in table {
        let bounds = ReplicaBounds { current: *current, desired: *desired, min: 0, max: i32::MAX };
        let (up, down) = (Duration::from_secs(*up), Duration::from_secs(*down));
        let mut history = history(known);
        let found = history.stabilize_both(bounds, up, down, NOW);
        assert_eq!(found, *stabilized, "{known:?} {bounds:?}");
        assert_eq!(history.recommendations.len(), *kept, "{known:?} {bounds:?}");
    }
}

#[test]
fn without_behavior_a_target_doubles_at_most() {
    for (current, desired, min, max, limited, reason) in [
        (5, 7, 3, 8, 7, "DesiredWithinRange"),
        (3, 1, 2, 8, 2, "TooFewReplicas"),
        (1, 0, 0, 10, 0, "DesiredWithinRange"),
        (20, 1000, 1, 10, 10, "TooManyReplicas"),
        (3, 1000, 1, 2000, 6, "ScaleUpLimit"),
        (1, 1000, 1, 2000, 4, "ScaleUpLimit"),
        (0, 9, 0, 2000, 4, "ScaleUpLimit"),
    ] {
        let bounds = ReplicaBounds { current, desired, min, max };
        let (found, why, _) = bounds.limit_by_rate();
        assert_eq!((found, why), (limited, reason), "{bounds:?}");
    }
}

#[test]
fn policies_limit_the_rate() {
    const UP: &str = "ScaleUpLimit";
    const DOWN: &str = "ScaleDownLimit";
    const RANGE: &str = "DesiredWithinRange";
    const MANY: &str = "TooManyReplicas";
    const FEW: &str = "TooFewReplicas";
    const NONE: (i32, i32) = (0, 0);
    // Changes of the last 120 seconds up and down, the policies of pods and percent for the
    // direction of the change, current, desired, min, max; the result, and the reason.
    type Row =
        (&'static [i32], &'static [i32], (i32, i32), (i32, i32), [i32; 4], (i32, &'static str));
    let table: &[Row] = &[
        (&[], &[], NONE, NONE, [5, 7, 3, 8], (7, RANGE)),
        (&[], &[], NONE, NONE, [3, 1, 2, 8], (2, FEW)),
        (&[], &[], NONE, NONE, [1, 0, 0, 10], (0, RANGE)),
        (&[], &[], NONE, NONE, [20, 1000, 1, 10], (10, MANY)),
        (&[], &[], NONE, NONE, [10, 50, 1, 1000], (20, UP)),
        (&[], &[], (100, 60), (100, 60), [10, 500, 1, 1000], (110, UP)),
        (&[], &[], (2, 60), (100, 60), [10, 500, 1, 1000], (20, UP)),
        (&[], &[], (100, 60), NONE, [10, 50, 1, 1000], (50, RANGE)),
        (&[], &[], (30, 60), NONE, [10, 50, 1, 1000], (40, UP)),
        (&[], &[], NONE, (200, 60), [10, 50, 1, 1000], (30, UP)),
        (&[], &[], (20, 60), (1, 60), [100, 2, 1, 1000], (80, DOWN)),
        (&[], &[], (2, 60), (1, 60), [100, 2, 1, 1000], (98, DOWN)),
        (&[], &[], (100, 60), NONE, [10, 0, 1, 1000], (1, FEW)),
        (&[], &[], NONE, (100, 60), [10, 2, 5, 1000], (5, FEW)),
        (&[], &[], (5, 60), NONE, [10, 2, 1, 1000], (5, DOWN)),
        (&[], &[], NONE, (50, 60), [10, 5, 1, 1000], (5, RANGE)),
        (&[1, 5, 9], &[], (300, 60), NONE, [100, 500, 1, 200], (200, MANY)),
        (&[1, 5, 9], &[], NONE, (10000, 60), [100, 500, 1, 200], (200, MANY)),
        // The limit would be below the current number.
        (&[1, 5, 9], &[], (5, 120), NONE, [100, 500, 1, 1000], (100, UP)),
        (&[1, 5, 9], &[], (150, 120), NONE, [100, 500, 1, 1000], (235, UP)),
        (&[1, 5, 9], &[], NONE, (200, 120), [100, 500, 1, 1000], (255, UP)),
        (&[4], &[2], NONE, (300, 300), [6, 24, 1, 1000], (16, UP)),
        (&[], &[1, 5, 9], NONE, NONE, [10, 5, 1, 1000], (5, RANGE)),
        (&[], &[1, 5, 9], (115, 120), NONE, [100, 0, 1, 1000], (1, FEW)),
        (&[], &[1, 5, 9], (130, 120), NONE, [100, 0, 5, 1000], (5, FEW)),
        (&[], &[1, 5, 9], NONE, (100, 120), [100, 2, 5, 1000], (5, FEW)),
        (&[], &[1, 5, 9], (5, 120), NONE, [100, 2, 1, 1000], (100, DOWN)),
        (&[], &[2, 4, 6], NONE, (50, 120), [100, 0, 1, 1000], (56, DOWN)),
        (&[2], &[4], NONE, (50, 180), [10, 1, 1, 1000], (6, DOWN)),
        // The limit would be above the current number.
        (&[], &[10, 10, 10], NONE, (10, 120), [100, 2, 1, 1000], (100, DOWN)),
    ];
    for (ups, downs, pods, percent, [current, desired, min, max], (limited, reason)) in table {
        let history =
            History { ups: events(ups, 120), downs: events(downs, 120), ..History::default() };
        let given = rules(*pods, *percent);
        let (up, down) = (Rules::up(&given), Rules::down(&given, WINDOW));
        let bounds = ReplicaBounds { current: *current, desired: *desired, min: *min, max: *max };
        let (found, why, _) = history.limit_by_policies(bounds, &up, &down, NOW);
        assert_eq!((found, why), (*limited, *reason), "{bounds:?} {pods:?} {percent:?}");
    }
}

#[test]
fn a_policy_is_selected() {
    let bounds = |desired| ReplicaBounds { current: 10, desired, min: 1, max: 1000 };
    for (select, up, down) in [("Max", 40, 5), ("Min", 20, 7), ("Disabled", 10, 10), ("", 40, 5)] {
        let mut given = rules((30, 60), (100, 60));
        given.select_policy = Some(select.into());
        let up_rules = Rules::up(&given);
        let mut given = rules((3, 60), (50, 60));
        given.select_policy = Some(select.into());
        let down_rules = Rules::down(&given, WINDOW);
        let history = History::default();
        assert_eq!(
            history.limit_by_policies(bounds(500), &up_rules, &down_rules, NOW).0,
            up,
            "{select}"
        );
        assert_eq!(
            history.limit_by_policies(bounds(1), &up_rules, &down_rules, NOW).0,
            down,
            "{select}"
        );
    }
}

#[test]
fn the_place_of_an_outdated_event_is_reused() {
    // Policies; the events before, as changes and how many seconds ago; those after; and the sum of
    // the first policy's period before.
    type Row = ((i32, i32), (i32, i32), &'static [(i32, u64)], &'static [i32]);
    let table: &[Row] = &[
        ((10, 60), (100, 60), &[], &[5]),
        ((10, 60), (100, 60), &[(7, 61)], &[5]),
        ((10, 60), (100, 60), &[(7, 58)], &[7, 5]),
        ((10, 60), (0, 0), &[(7, 61), (6, 59)], &[5, 6]),
        ((10, 60), (100, 30), &[(8, 29), (6, 59), (7, 61), (9, 61)], &[8, 6, 7, 5]),
        ((10, 120), (100, 30), &[(7, 58), (6, 59)], &[7, 6, 5]),
    ];
    for (pods, percent, before, after) in table {
        let known = |(change, seconds): &(i32, u64)| ScaleEvent {
            change: *change,
            at: ago(*seconds),
            is_outdated: false,
        };
        let known = || before.iter().map(known).collect();
        let rules = rules(*pods, *percent);
        let behavior = Behavior { scale_up: rules.clone(), scale_down: rules };
        let mut history = History { ups: known(), downs: known(), ..History::default() };
        history.record_scaling(&behavior, 10, 15, NOW);
        history.record_scaling(&behavior, 10, 5, NOW);
        for events in [&history.ups, &history.downs] {
            let found: Vec<i32> = events.iter().map(|event| event.change).collect();
            assert_eq!(found, *after, "{before:?}");
        }
    }
}

#[test]
fn conditions_say_what_was_stabilized_and_limited() {
    let able = |verdict: Verdict| verdict.1;
    let behavior = Behavior::default();
    for (behavior, known, desired, replicas, reasons) in [
        (None, (1, 60), 5, 5, ["ReadyForNewScale", "DesiredWithinRange"]),
        (None, (5, 60), 3, 5, ["ScaleDownStabilized", "DesiredWithinRange"]),
        (None, (5, 60), 90, 10, ["ReadyForNewScale", "ScaleUpLimit"]),
        (Some(&behavior), (5, 60), 3, 5, ["ScaleDownStabilized", "DesiredWithinRange"]),
        (Some(&behavior), (3, 400), 3, 3, ["ReadyForNewScale", "DesiredWithinRange"]),
        (Some(&behavior), (1, 60), 90, 10, ["ReadyForNewScale", "ScaleUpLimit"]),
    ] {
        let mut history = history(&[known]);
        let bounds = ReplicaBounds { current: 5, desired, min: 1, max: 20 };
        let found = history.normalize(bounds, behavior, WINDOW, NOW);
        assert_eq!(found.desired, replicas, "{known:?} {desired}");
        assert_eq!([able(found.able), found.limited.1], reasons, "{known:?} {desired}");
        let is_limited = if reasons[1] == "DesiredWithinRange" { "False" } else { "True" };
        assert_eq!((found.able.0, found.limited.0), ("True", is_limited));
    }
    let slow = ScalingRules { stabilization_window_seconds: Some(60), ..ScalingRules::default() };
    let behavior = Behavior { scale_up: slow, ..Behavior::default() };
    let mut history = history(&[(5, 30)]);
    let bounds = ReplicaBounds { current: 5, desired: 8, min: 1, max: 20 };
    let found = history.normalize(bounds, Some(&behavior), WINDOW, NOW);
    assert_eq!((found.desired, found.able.1), (5, "ScaleUpStabilized"));
}

#[test]
fn windows_and_periods_may_reach_before_the_start_of_the_clock() {
    let second = Duration::from_secs(1);
    let policies = rules((1, 60), (0, 0));
    let behavior = Behavior { scale_up: policies.clone(), scale_down: policies };
    // The behavior, and the results for 5 and for 20 wanted replicas after a change from 9 to 10.
    for (behavior, down, up) in [(None, 10, 20), (Some(&behavior), 10, 10)] {
        let mut history = History::default();
        history.start(10, Duration::ZERO);
        if let Some(behavior) = behavior {
            history.record_scaling(behavior, 9, 10, Duration::ZERO);
        }
        let bounds = |desired| ReplicaBounds { current: 10, desired, min: 1, max: 100 };
        let mut becomes =
            |desired, now| history.normalize(bounds(desired), behavior, WINDOW, now).desired;
        assert_eq!(becomes(5, second), down);
        assert_eq!(becomes(20, 2 * second), up);
        let kept: Vec<Duration> = history.recommendations.iter().map(|known| known.at).collect();
        assert_eq!(kept, [Duration::ZERO, second, 2 * second]);
        assert!(history.ups.iter().all(|event| !event.is_outdated));
    }
}
