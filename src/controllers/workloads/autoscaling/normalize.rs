//! The limits of number and speed within which an autoscaler follows its metrics.
//! Upstream: `normalizeDesiredReplicas`, `normalizeDesiredReplicasWithBehaviors`.

use std::time::Duration;

use crate::objects::{Behavior, ScalingPolicy, ScalingRules};

/// The recent recommendations and changes of one autoscaler. Times are monotonic, so that a step of
/// the wall clock neither ends nor extends a window or a period.
#[derive(Debug, Default)]
pub(super) struct History {
    recommendations: Vec<Recommendation>,
    ups: Vec<ScaleEvent>,
    downs: Vec<ScaleEvent>,
}

#[derive(Clone, Copy, Debug)]
struct Recommendation {
    replicas: i32,
    at: Duration,
}

impl Recommendation {
    fn age(&self, now: Duration) -> Duration {
        now.saturating_sub(self.at)
    }
}

#[derive(Clone, Copy, Debug)]
struct ScaleEvent {
    /// The number of replicas that were added or removed.
    change: i32,
    at: Duration,
    /// Whether no policy needs it any more, so that the next event replaces it.
    is_outdated: bool,
}

impl ScaleEvent {
    fn age(&self, now: Duration) -> Duration {
        now.saturating_sub(self.at)
    }
}

/// The wanted number of replicas, and its bounds.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReplicaBounds {
    pub current: i32,
    pub desired: i32,
    pub min: i32,
    pub max: i32,
}

/// The status, the reason and the message of a condition.
pub(super) type Verdict = (&'static str, &'static str, &'static str);

/// The number of replicas within the limits.
#[derive(Debug, PartialEq)]
pub(super) struct Normalized {
    pub desired: i32,
    /// The content of the condition AbleToScale.
    pub able: Verdict,
    /// The content of the condition ScalingLimited.
    pub limited: Verdict,
}

const READY: Verdict = ("True", "ReadyForNewScale", "recommended size matches current size");
const DOWN_STABILIZED: Verdict = (
    "True",
    "ScaleDownStabilized",
    "recent recommendations were higher than current one, applying the highest recent recommendation",
);
const UP_STABILIZED: Verdict = (
    "True",
    "ScaleUpStabilized",
    "recent recommendations were lower than current one, applying the lowest recent recommendation",
);

/// A number of replicas, and the reason and message why it is not more or less.
type Limited = (i32, &'static str, &'static str);

const WITHIN_RANGE: (&str, &str) =
    ("DesiredWithinRange", "the desired count is within the acceptable range");
const SCALE_UP_LIMIT: (&str, &str) =
    ("ScaleUpLimit", "the desired replica count is increasing faster than the maximum scale rate");
const SCALE_DOWN_LIMIT: (&str, &str) = (
    "ScaleDownLimit",
    "the desired replica count is decreasing faster than the maximum scale rate",
);
const TOO_MANY: (&str, &str) =
    ("TooManyReplicas", "the desired replica count is more than the maximum replica count");
/// The reason of the condition ScalingLimited.
pub(super) const TOO_FEW: &str = "TooFewReplicas";
const BELOW_MIN: (&str, &str) =
    (TOO_FEW, "the desired replica count is less than the minimum replica count");

impl History {
    /// Records the number of replicas at the first sync as a recommendation; later calls do
    /// nothing.
    pub fn start(&mut self, current: i32, now: Duration) {
        if self.recommendations.is_empty() {
            self.recommendations.push(Recommendation { replicas: current, at: now });
        }
    }

    /// Limits a recommendation by the recent ones, the rules of scaling and the bounds. `window`:
    /// `--horizontal-pod-autoscaler-downscale-stabilization`.
    pub fn normalize(
        &mut self,
        bounds: ReplicaBounds,
        behavior: Option<&Behavior>,
        window: Duration,
        now: Duration,
    ) -> Normalized {
        let (stabilized, verdict, (desired, reason, message)) = match behavior {
            None => {
                let stabilized = self.stabilize(bounds.desired, window, now);
                let limited = ReplicaBounds { desired: stabilized, ..bounds }.limit_by_rate();
                (stabilized, DOWN_STABILIZED, limited)
            }
            Some(behavior) => {
                let up = Rules::up(&behavior.scale_up);
                let down = Rules::down(&behavior.scale_down, window);
                let stabilized = self.stabilize_both(bounds, up.window, down.window, now);
                let bounds_now = ReplicaBounds { desired: stabilized, ..bounds };
                let limited = self.limit_by_policies(bounds_now, &up, &down, now);
                let verdict =
                    if bounds.desired >= bounds.current { UP_STABILIZED } else { DOWN_STABILIZED };
                (stabilized, verdict, limited)
            }
        };
        let is_limited = if desired == stabilized { "False" } else { "True" };
        Normalized {
            desired,
            able: if stabilized == bounds.desired { READY } else { verdict },
            limited: (is_limited, reason, message),
        }
    }

    /// Returns the highest recommendation within the window, `desired` included, and records
    /// `desired`. Upstream: `stabilizeRecommendation`.
    fn stabilize(&mut self, desired: i32, window: Duration, now: Duration) -> i32 {
        let recent = self.recommendations.iter().filter(|known| known.age(now) <= window);
        let highest = recent.map(|known| known.replicas).fold(desired, i32::max);
        self.recommend(desired, now, |age| age > window);
        highest
    }

    /// Limits an increase to the lowest recommendation of the window `up`, and a decrease to the
    /// highest of the window `down`; records the new one. Upstream:
    /// `stabilizeRecommendationWithBehaviors`.
    fn stabilize_both(
        &mut self,
        bounds: ReplicaBounds,
        up: Duration,
        down: Duration,
        now: Duration,
    ) -> i32 {
        let within = |window: Duration| {
            let recent = self.recommendations.iter().filter(move |known| known.age(now) < window);
            recent.map(|known| known.replicas)
        };
        let lowest = within(up).fold(bounds.desired, i32::min);
        let highest = within(down).fold(bounds.desired, i32::max);
        self.recommend(bounds.desired, now, |age| age > up && age > down);
        bounds.current.max(lowest).min(highest)
    }

    /// Records a recommendation, in the place of one that is too old.
    fn recommend(&mut self, replicas: i32, now: Duration, is_old: impl Fn(Duration) -> bool) {
        let new = Recommendation { replicas, at: now };
        match self.recommendations.iter().rposition(|known| is_old(known.age(now))) {
            Some(at) => self.recommendations[at] = new,
            None => self.recommendations.push(new),
        }
    }

    /// Records that the target was scaled. The event replaces one that no policy needs any more.
    /// Upstream: `storeScaleEvent`.
    pub fn record_scaling(&mut self, behavior: &Behavior, from: i32, to: i32, now: Duration) {
        // Of the rules only the periods count here, not the window.
        let (events, rules) = match to > from {
            true => (&mut self.ups, Rules::up(&behavior.scale_up)),
            false => (&mut self.downs, Rules::down(&behavior.scale_down, Duration::ZERO)),
        };
        let period = rules.longest_period();
        for event in events.iter_mut().filter(|event| event.age(now) > period) {
            event.is_outdated = true;
        }
        let change = to.saturating_sub(from).saturating_abs();
        let new = ScaleEvent { change, at: now, is_outdated: false };
        match events.iter().rposition(|event| event.is_outdated) {
            Some(at) => events[at] = new,
            None => events.push(new),
        }
    }

    /// Limits a change by the policies of an autoscaler with behavior, and by the bounds.
    /// Upstream: `convertDesiredReplicasWithBehaviorRate`.
    fn limit_by_policies(
        &self,
        bounds: ReplicaBounds,
        up: &Rules,
        down: &Rules,
        now: Duration,
    ) -> Limited {
        let ReplicaBounds { current, desired, min, max } = bounds;
        if desired > current {
            let limit = self.up_limit(current, up, now).max(current);
            let (most, (reason, message)) =
                if max > limit { (limit, SCALE_UP_LIMIT) } else { (max, TOO_MANY) };
            if desired > most {
                return (most, reason, message);
            }
        } else if desired < current {
            let limit = self.down_limit(current, down, now).min(current);
            let (least, (reason, message)) =
                if min < limit { (limit, SCALE_DOWN_LIMIT) } else { (min, BELOW_MIN) };
            if desired < least {
                return (least, reason, message);
            }
        }
        (desired, WITHIN_RANGE.0, WITHIN_RANGE.1)
    }

    /// Returns the number of replicas at the beginning of the period of `policy`.
    fn replicas_at_start_of(&self, policy: &ScalingPolicy, current: i32, now: Duration) -> i32 {
        let period = seconds(policy.period_seconds);
        let changes = |events: &[ScaleEvent]| {
            let recent = events.iter().filter(|event| event.age(now) < period);
            recent.fold(0i32, |sum, event| sum.saturating_add(event.change))
        };
        current.saturating_sub(changes(&self.ups)).saturating_add(changes(&self.downs))
    }

    /// Returns the most replicas to which the policies allow to scale up now.
    /// Upstream: `calculateScaleUpLimitWithScalingRules`.
    fn up_limit(&self, current: i32, rules: &Rules, now: Duration) -> i32 {
        let limit = |policy: &ScalingPolicy| {
            let start = self.replicas_at_start_of(policy, current, now);
            match policy.r#type == "Percent" {
                // Rounded up, so that a small target can grow.
                true => (f64::from(start) * (1.0 + f64::from(policy.value) / 100.0)).ceil() as i32,
                false => start.saturating_add(policy.value),
            }
        };
        let limits = rules.policies.iter().map(limit);
        match rules.select {
            Select::Disabled => Some(current),
            Select::Least => limits.min(),
            Select::Most => limits.max(),
        }
        .unwrap_or(current)
    }

    /// Returns the least replicas to which the policies allow to scale down now.
    /// Upstream: `calculateScaleDownLimitWithBehaviors`.
    fn down_limit(&self, current: i32, rules: &Rules, now: Duration) -> i32 {
        let limit = |policy: &ScalingPolicy| {
            let start = self.replicas_at_start_of(policy, current, now);
            match policy.r#type == "Percent" {
                true => (f64::from(start) * (1.0 - f64::from(policy.value) / 100.0)) as i32,
                false => start.saturating_sub(policy.value),
            }
        };
        let limits = rules.policies.iter().map(limit);
        match rules.select {
            Select::Disabled => Some(current),
            Select::Least => limits.max(),
            Select::Most => limits.min(),
        }
        .unwrap_or(current)
    }
}

impl ReplicaBounds {
    /// Limits a change of an autoscaler without behavior: to the bounds, and to twice the current
    /// replicas or four, whichever is more.
    /// Upstream: `convertDesiredReplicasWithRules`.
    fn limit_by_rate(self) -> Limited {
        let ReplicaBounds { current, desired, min, max } = self;
        let rate = current.saturating_mul(2).max(4);
        let (most, (reason, message)) =
            if max > rate { (rate, SCALE_UP_LIMIT) } else { (max, TOO_MANY) };
        if desired < min {
            (min, BELOW_MIN.0, BELOW_MIN.1)
        } else if desired > most {
            (most, reason, message)
        } else {
            (desired, WITHIN_RANGE.0, WITHIN_RANGE.1)
        }
    }
}

/// Scaling rules with the defaults that the API server gives them.
struct Rules {
    window: Duration,
    select: Select,
    policies: Vec<ScalingPolicy>,
}

/// The choice between several policies.
enum Select {
    /// The one that allows the largest change.
    Most,
    Least,
    Disabled,
}

impl Rules {
    /// Returns the rules for scaling up, with the API's defaults. Upstream:
    /// `GenerateHPAScaleUpRules`.
    fn up(rules: &ScalingRules) -> Rules {
        let policy =
            |kind: &str, value| ScalingPolicy { r#type: kind.into(), value, period_seconds: 15 };
        Rules::with_defaults(rules, Duration::ZERO, || {
            vec![policy("Pods", 4), policy("Percent", 100)]
        })
    }

    /// Returns the rules for scaling down, with the API's defaults and the stabilization `window`
    /// of the flag in whole seconds. Upstream: `GenerateHPAScaleDownRules`.
    fn down(rules: &ScalingRules, window: Duration) -> Rules {
        let policy = || ScalingPolicy { r#type: "Percent".into(), value: 100, period_seconds: 15 };
        Rules::with_defaults(rules, Duration::from_secs(window.as_secs()), || vec![policy()])
    }

    /// Returns `rules` with defaults: the stabilization `window`, and `default_policies` where
    /// there are no policies.
    fn with_defaults(
        rules: &ScalingRules,
        window: Duration,
        default_policies: impl FnOnce() -> Vec<ScalingPolicy>,
    ) -> Rules {
        let select = match rules.select_policy.as_deref() {
            Some("Disabled") => Select::Disabled,
            Some("Min") => Select::Least,
            _ => Select::Most,
        };
        let policies =
            if rules.policies.is_empty() { default_policies() } else { rules.policies.clone() };
        let window = rules.stabilization_window_seconds.map_or(window, seconds);
        Rules { window, select, policies }
    }

    fn longest_period(&self) -> Duration {
        let longest = self.policies.iter().map(|policy| policy.period_seconds).max();
        seconds(longest.unwrap_or(0))
    }
}

fn seconds(count: i32) -> Duration {
    Duration::from_secs(u64::try_from(count).unwrap_or(0))
}

#[cfg(test)]
mod tests;
