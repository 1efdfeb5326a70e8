//! The mode in which an autoscaler scales: by its limits, by its metrics, or not; and scaling to
//! zero replicas and back. Upstream: parts of `reconcileAutoscaler`.

/// The mode of a sync.
#[derive(Debug, PartialEq)]
pub(super) enum ScalingMode {
    /// Nothing: the target was set to zero replicas, and not by the autoscaler.
    Disabled,
    /// Brings it between its limits, with this reason, without reading the metrics.
    Set(i32, &'static str),
    /// Follows the metrics.
    Follow,
}

pub(super) const ABOVE_MAX: &str = "Current number of replicas above Spec.MaxReplicas";
pub(super) const BELOW_MIN: &str = "Current number of replicas below Spec.MinReplicas";

/// The conditions for scaling to and from zero replicas.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScaleToZero {
    /// The gate `HPAScaleToZero`.
    pub is_enabled: bool,
    /// Whether the condition ScaledToZero is true.
    pub was_scaled: bool,
    /// Whether there are metrics that exist without pods.
    pub has_other_metrics: bool,
}

impl ScaleToZero {
    /// Returns whether the autoscaler itself scaled the target to zero.
    fn scaled_by_autoscaler(self) -> bool {
        self.is_enabled && self.was_scaled
    }

    /// Returns the least number of replicas for `minReplicas`. Without the gate it is at least 1:
    /// nothing would return a target from zero.
    pub fn least(self, min: i32) -> i32 {
        if self.is_enabled { min } else { min.max(1) }
    }

    /// Returns whether a change of the replicas is a scaling to zero from which metrics can bring
    /// the target back: then the condition ScaledToZero is true. Asked with the gate only.
    pub fn reaches_zero(self, from: i32, to: i32, min: i32) -> bool {
        from > 0 && to == 0 && min == 0 && self.has_other_metrics
    }
}

impl ScalingMode {
    /// Returns the mode for a target that has `current` replicas.
    pub fn decide(current: i32, min: i32, max: i32, zero: ScaleToZero) -> ScalingMode {
        match current {
            // A minimum raised since, or a metric that exists without pods, brings it back.
            0 if zero.scaled_by_autoscaler() && (min != 0 || zero.has_other_metrics) => {
                ScalingMode::Follow
            }
            // A manager that had the gate has scaled it to zero.
            0 if zero.was_scaled && !zero.is_enabled => {
                ScalingMode::Set(zero.least(min), BELOW_MIN)
            }
            0 => ScalingMode::Disabled,
            more if more > max => ScalingMode::Set(max, ABOVE_MAX),
            less if less < min => ScalingMode::Set(min, BELOW_MIN),
            _ => ScalingMode::Follow,
        }
    }
}

/// Returns the number of replicas when the metrics propose `desired`: a target that its autoscaler
/// scaled to zero gets at least the present minimum.
pub(super) fn raise_from_zero(current: i32, desired: i32, min: i32, zero: ScaleToZero) -> i32 {
    if current == 0 && zero.scaled_by_autoscaler() { desired.max(min) } else { desired }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zero(is_enabled: bool, was_scaled: bool, has_other_metrics: bool) -> ScaleToZero {
        ScaleToZero { is_enabled, was_scaled, has_other_metrics }
    }

    #[test]
    fn limits_come_first_and_zero_replicas_stay_zero() {
        let (off, own, foreign) =
            (zero(false, true, true), zero(true, true, true), zero(true, false, true));
        let (pods_only, by_user) = (zero(true, true, false), zero(false, false, true));
        for (current, min, max, zero, course) in [
            (5, 1, 3, off, ScalingMode::Set(3, ABOVE_MAX)),
            (1, 2, 3, off, ScalingMode::Set(2, BELOW_MIN)),
            (2, 1, 3, off, ScalingMode::Follow),
            (3, 1, 3, off, ScalingMode::Follow),
            (0, 1, 3, by_user, ScalingMode::Disabled),
            (0, 0, 3, by_user, ScalingMode::Disabled),
            (0, 0, 3, off, ScalingMode::Set(1, BELOW_MIN)),
            (0, 2, 3, off, ScalingMode::Set(2, BELOW_MIN)),
            (0, 0, 3, own, ScalingMode::Follow),
            (0, 2, 3, own, ScalingMode::Follow),
            (0, 0, 3, foreign, ScalingMode::Disabled),
            (0, 2, 3, foreign, ScalingMode::Disabled),
            // No metric can bring it back, but the new limit does.
            (0, 0, 3, pods_only, ScalingMode::Disabled),
            (0, 2, 3, pods_only, ScalingMode::Follow),
            (1, 0, 3, own, ScalingMode::Follow),
        ] {
            assert_eq!(
                ScalingMode::decide(current, min, max, zero),
                course,
                "{current} {min} {max} {zero:?}"
            );
        }
    }

    #[test]
    fn a_target_returns_from_zero_with_its_minimum() {
        let own = zero(true, true, true);
        for (current, desired, min, zero, replicas) in [
            (0, 0, 2, own, 2),
            (0, 1, 2, own, 2),
            (0, 3, 2, own, 3),
            (0, 0, 0, own, 0),
            (0, 1, 2, zero(false, true, true), 1),
            (3, 1, 2, own, 1),
        ] {
            assert_eq!(
                raise_from_zero(current, desired, min, zero),
                replicas,
                "{current} {desired} {min}"
            );
        }
    }

    #[test]
    fn zero_replicas_need_the_gate() {
        for (is_enabled, min, least) in [(true, 0, 0), (true, 2, 2), (false, 0, 1), (false, 2, 2)] {
            assert_eq!(zero(is_enabled, false, true).least(min), least, "{is_enabled} {min}");
        }
    }

    #[test]
    fn zero_is_reached_by_metrics_that_need_no_pods() {
        let own = zero(true, false, true);
        for (from, to, min, zero, is_reached) in [
            (1, 0, 0, own, true),
            (0, 0, 0, own, false),
            (1, 0, 1, own, false),
            (2, 1, 0, own, false),
            (1, 0, 0, zero(true, false, false), false),
        ] {
            assert_eq!(zero.reaches_zero(from, to, min), is_reached, "{from} {to} {min}");
        }
    }
}
