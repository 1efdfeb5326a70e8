//! The conditions of an autoscaler.

use crate::objects::{AutoscalerCondition, HorizontalPodAutoscalerStatus, Timestamp};

pub(super) const ABLE_TO_SCALE: &str = "AbleToScale";
pub(super) const SCALING_ACTIVE: &str = "ScalingActive";
pub(super) const SCALING_LIMITED: &str = "ScalingLimited";
pub(super) const SCALED_TO_ZERO: &str = "ScaledToZero";

/// Adds or changes the condition `kind`; the time of its transition changes with its status.
/// `observed_generation`: the generation of the spec, if the status shows it. Upstream:
/// `setCondition`.
pub(super) fn set_condition(
    status: &mut HorizontalPodAutoscalerStatus,
    kind: &str,
    (new_status, reason, message): (&str, &str, impl Into<String>),
    observed_generation: Option<i64>,
    now: Timestamp,
) {
    let at = match status.conditions.iter().position(|condition| condition.r#type == *kind) {
        Some(at) => at,
        None => {
            let new = AutoscalerCondition { r#type: kind.into(), ..Default::default() };
            status.conditions.push(new);
            status.conditions.len() - 1
        }
    };
    let condition = &mut status.conditions[at];
    if condition.status != *new_status {
        condition.last_transition_time = Some(now.truncate_to_secs());
    }
    condition.status = new_status.into();
    condition.reason = reason.into();
    condition.message = message.into();
    condition.observed_generation = observed_generation;
}

/// Returns the status as a manager of 1.36 knows it: without observed generations.
pub(super) fn without_generations(
    status: &HorizontalPodAutoscalerStatus,
) -> HorizontalPodAutoscalerStatus {
    let mut status = status.clone();
    status.observed_generation = None;
    for condition in &mut status.conditions {
        condition.observed_generation = None;
    }
    status
}

pub(super) fn remove_condition(status: &mut HorizontalPodAutoscalerStatus, kind: &str) {
    status.conditions.retain(|condition| condition.r#type != *kind);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pull requests 138228 and 138653.
    #[test]
    fn generations_are_unknown_to_a_manager_of_1_36() {
        let mut status = HorizontalPodAutoscalerStatus::default();
        let now = Timestamp::from_secs(1);
        set_condition(&mut status, ABLE_TO_SCALE, ("True", "A", "m"), None, now);
        let known = status.clone();
        set_condition(&mut status, ABLE_TO_SCALE, ("True", "A", "m"), Some(3), now);
        status.observed_generation = Some(3);
        assert_ne!(status, known);
        assert_eq!(without_generations(&status), known);
    }

    #[test]
    fn the_time_of_a_condition_moves_with_its_status() {
        let mut status = HorizontalPodAutoscalerStatus::default();
        for (second, is, reason, since) in [
            (10, "True", "A", 10),
            (20, "True", "B", 10),
            (30, "False", "B", 30),
            (40, "False", "C", 30),
        ] {
            let now = Timestamp::from_micros(second * 1_000_000 + 7);
            set_condition(&mut status, ABLE_TO_SCALE, (is, reason, "m"), None, now);
            let [condition] = &status.conditions[..] else { panic!("{:?}", status.conditions) };
            assert_eq!((&*condition.status, &*condition.reason), (is, reason));
            assert_eq!(condition.last_transition_time, Some(Timestamp::from_secs(since)));
        }
        remove_condition(&mut status, SCALED_TO_ZERO);
        assert_eq!(status.conditions.len(), 1);
        remove_condition(&mut status, ABLE_TO_SCALE);
        assert!(status.conditions.is_empty());
    }
}
