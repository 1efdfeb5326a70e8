//! The decision about one target: the number of replicas, the reason, and the status. No I/O.
//! Upstream: parts of `reconcileAutoscaler`.

use std::time::Duration;

use serde_json::{Value, json};

use super::monitor::Action;
use super::normalize::{History, Normalized, ReplicaBounds, TOO_FEW};
use super::scaling_mode::{BELOW_MIN, ScaleToZero, ScalingMode, raise_from_zero};
use super::sources::{Computed, Failed};
use super::status::{
    ABLE_TO_SCALE, SCALED_TO_ZERO, SCALING_ACTIVE, SCALING_LIMITED, remove_condition, set_condition,
};
use crate::objects::{
    HorizontalPodAutoscaler, HorizontalPodAutoscalerStatus, ObjectKey, Timestamp,
};

const SCALED: (&str, &str, &str) =
    ("True", "ScaledToZero", "the HPA controller scaled the workload to zero");
const NOT_SCALED: (&str, &str, &str) =
    ("False", "NotScaledToZero", "the HPA controller did not scale the workload to zero");

const ZERO_NEEDS_GATE: &str = "the desired replica count is zero, for which kube-controller-manager \
                               needs the feature gate HPAScaleToZero: minReplicas counts as 1";

/// The proposal of all metrics together.
#[derive(Default)]
pub(super) struct Proposed {
    pub replicas: i32,
    /// The metric with the highest proposal.
    pub name: String,
    pub statuses: Vec<Value>,
    /// The failures of metrics that could not be read.
    pub error: Option<String>,
}

/// The replicas of a target, and the bounds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scaling {
    pub current: i32,
    min: i32,
    max: i32,
    zero: ScaleToZero,
}

impl Scaling {
    /// Computes the sizes between which `autoscaler` may scale its target, which has `current`
    /// replicas. `is_enabled`: the gate `HPAScaleToZero`.
    pub fn new(autoscaler: &HorizontalPodAutoscaler, current: i32, is_enabled: bool) -> Scaling {
        let known = autoscaler.condition(SCALED_TO_ZERO);
        let needs_no_pods = |kind: &str| matches!(kind, "Object" | "External");
        let metrics = &autoscaler.spec.metrics;
        let zero = ScaleToZero {
            is_enabled,
            was_scaled: known.is_some_and(|known| known.status == "True"),
            has_other_metrics: metrics.iter().any(|spec| needs_no_pods(&spec.r#type)),
        };
        let (min, max) = (zero.least(autoscaler.min_replicas()), autoscaler.spec.max_replicas);
        Scaling { current, min, max, zero }
    }

    /// Returns how the size of the target is decided: by the metrics, by a bound, or not at all.
    pub fn mode(self) -> ScalingMode {
        ScalingMode::decide(self.current, self.min, self.max, self.zero)
    }
}

/// The recent history of an autoscaler, and the time of the decision.
pub(super) struct Recent<'a> {
    pub history: &'a mut History,
    /// `--horizontal-pod-autoscaler-downscale-stabilization`.
    pub window: Duration,
    /// On the monotonic clock.
    pub moment: Duration,
}

/// The wanted number of replicas of a target, and the reason when it differs from the present one.
#[derive(Debug, PartialEq)]
pub(super) struct Decision {
    pub desired: i32,
    pub reason: String,
}

/// An autoscaler and its new status.
pub(super) struct Reconcile<'a> {
    pub autoscaler: &'a HorizontalPodAutoscaler,
    pub key: &'a ObjectKey,
    pub status: HorizontalPodAutoscalerStatus,
    /// The generation of the spec, where the status names it: the gate `HPAGeneration`.
    pub observed_generation: Option<i64>,
    /// `Deployment/default/web`
    pub reference: String,
    pub action: Action,
}

impl Reconcile<'_> {
    /// Sets the condition `kind` in the new status; `condition`: its status, reason and message.
    pub fn set_condition(
        &mut self,
        kind: &str,
        condition: (&str, &str, impl Into<String>),
        now: Timestamp,
    ) {
        set_condition(&mut self.status, kind, condition, self.observed_generation, now);
    }

    /// Sets the counts, the metrics and the observed generation in the new status.
    /// Upstream: `setStatus`.
    pub fn set_counts(&mut self, current: i32, desired: i32, metrics: Vec<Value>) {
        self.status.observed_generation = self.observed_generation;
        self.status.current_replicas = current;
        self.status.desired_replicas = desired;
        self.status.current_metrics = metrics;
    }

    /// Returns the highest proposal of the metrics' results, and sets the condition ScalingActive.
    /// A metric that cannot be read might propose more than the others, so then there is no scaling
    /// down.
    ///
    /// # Errors
    /// The number of failures with the first of them, and the statuses of the metrics: nothing may
    /// be proposed.
    pub fn propose(
        &mut self,
        results: Vec<Result<Computed, Failed>>,
        current: i32,
        now: Timestamp,
    ) -> Result<Proposed, (String, Vec<Value>)> {
        let (all, mut failures) = (results.len(), 0);
        let mut first_failure: Option<Failed> = None;
        let mut proposed = Proposed::default();
        for result in results {
            match result {
                Ok(Computed { replicas, name, status }) => {
                    proposed.statuses.push(status);
                    if proposed.replicas == 0 || replicas > proposed.replicas {
                        (proposed.replicas, proposed.name) = (replicas, name);
                    }
                }
                Err(failed) => {
                    // Upstream writes an empty status in its place.
                    proposed.statuses.push(json!({ "type": "" }));
                    failures += 1;
                    first_failure.get_or_insert(failed);
                }
            }
        }
        if let Some(Failed { reason, cause, error, .. }) = first_failure {
            let error = format!(
                "invalid metrics ({failures} invalid out of {all}), first error is: {error}"
            );
            if failures >= all || proposed.replicas < current {
                let message = format!("the HPA was unable to compute the replica count: {cause}");
                let inactive = ("False", reason, message);
                self.set_condition(SCALING_ACTIVE, inactive, now);
                return Err((error, proposed.statuses));
            }
            proposed.error = Some(error);
        }
        let name = &proposed.name;
        let message =
            format!("the HPA was able to successfully calculate a replica count from {name}");
        let active = ("True", "ValidMetricFound", message);
        self.set_condition(SCALING_ACTIVE, active, now);
        Ok(proposed)
    }

    /// Decides on the size of the target, and sets the conditions about the decision. `proposed`
    /// counts only in the mode that follows the metrics.
    pub fn decide(
        &mut self,
        scaling: Scaling,
        proposed: &Proposed,
        recent: &mut Recent<'_>,
        now: Timestamp,
    ) -> Decision {
        let Scaling { current, min, max, zero } = scaling;
        match scaling.mode() {
            ScalingMode::Disabled => {
                let message = "scaling is disabled since the replica count of the target is zero";
                let disabled = ("False", "ScalingDisabled", message);
                self.set_condition(SCALING_ACTIVE, disabled, now);
                if !zero.is_enabled {
                    // A manager with the gate has set it.
                    remove_condition(&mut self.status, SCALED_TO_ZERO);
                }
                Decision { desired: 0, reason: String::new() }
            }
            ScalingMode::Set(desired, reason) => Decision { desired, reason: reason.to_owned() },
            ScalingMode::Follow => {
                let (wanted, name) = (proposed.replicas.max(0), &proposed.name);
                log::debug!("{}: proposing {wanted} replicas by {name}", self.reference);
                let bounds = ReplicaBounds { current, desired: wanted, min, max };
                let behavior = self.autoscaler.spec.behavior.as_ref();
                let Normalized { desired: normalized, able, limited } =
                    recent.history.normalize(bounds, behavior, recent.window, recent.moment);
                let limited = match limited {
                    // The spec allows zero replicas, but the gate is off.
                    (is_limited, TOO_FEW, _) if self.autoscaler.min_replicas() < min => {
                        (is_limited, TOO_FEW, ZERO_NEEDS_GATE)
                    }
                    other => other,
                };
                self.set_condition(ABLE_TO_SCALE, able, now);
                self.set_condition(SCALING_LIMITED, limited, now);
                let desired = raise_from_zero(current, normalized, min, zero);
                let reason = match wanted {
                    more if more > current => format!("{name} above target"),
                    less if less < current => "All metrics below target".to_owned(),
                    _ if desired > normalized => BELOW_MIN.to_owned(),
                    _ => String::new(),
                };
                Decision { desired, reason }
            }
        }
    }

    /// Records in the new status that the target has `desired` replicas now: in the conditions, the
    /// action and the time of the last scaling.
    pub fn record_rescale(&mut self, scaling: Scaling, desired: i32, now: Timestamp) {
        let Scaling { current, min, zero, .. } = scaling;
        let message =
            format!("the HPA controller was able to update the target scale to {desired}");
        let succeeded = ("True", "SucceededRescale", message);
        self.set_condition(ABLE_TO_SCALE, succeeded, now);
        if zero.is_enabled {
            let reaches_zero = zero.reaches_zero(current, desired, min);
            let condition = if reaches_zero { SCALED } else { NOT_SCALED };
            self.set_condition(SCALED_TO_ZERO, condition, now);
        } else {
            remove_condition(&mut self.status, SCALED_TO_ZERO);
        }
        self.action = if desired > current { Action::ScaleUp } else { Action::ScaleDown };
        self.status.last_scale_time = Some(now.truncate_to_secs());
    }
}

#[cfg(test)]
mod tests {
    use super::super::scaling_mode::ABOVE_MAX;
    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(100);

    /// Between 2 and 10 replicas, by a metric that needs no pods.
    fn autoscaler(was_scaled_to_zero: bool, behavior: bool) -> HorizontalPodAutoscaler {
        let behavior = behavior.then(|| json!({}));
        let is = if was_scaled_to_zero { "True" } else { "False" };
        serde_json::from_value(json!({
            "spec": { "minReplicas": 2, "maxReplicas": 10, "metrics": [{ "type": "External" }],
                "behavior": behavior },
            "status": { "conditions": [{ "type": SCALED_TO_ZERO, "status": is }] },
        }))
        .unwrap()
    }

    fn reconcile<'a>(of: &'a HorizontalPodAutoscaler, key: &'a ObjectKey) -> Reconcile<'a> {
        let (status, reference) = (of.status.clone(), "Deployment/ns/web".into());
        Reconcile {
            autoscaler: of,
            key,
            status,
            observed_generation: None,
            reference,
            action: Action::None,
        }
    }

    /// Each condition as its type and its reason.
    fn reasons(subject: &Reconcile<'_>) -> Vec<(String, String)> {
        let conditions = subject.status.conditions.iter();
        conditions.map(|known| (known.r#type.to_string(), known.reason.to_string())).collect()
    }

    #[test]
    fn a_decision_has_its_reason_and_its_conditions() {
        let (below, ready) = ("All metrics below target", "ReadyForNewScale");
        let within = "DesiredWithinRange";
        let nothing: [&str; 3] = [""; 3];
        // Whether the autoscaler scaled to zero before, and has a behavior; replicas there are, and
        // that metrics ask for; those decided on, with the reason; the reasons of AbleToScale,
        // ScalingLimited and ScalingActive.
        for ((own, behavior), current, proposed, desired, reason, conditions) in [
            ((false, false), 3, 5, 5, "m above target", [ready, within, ""]),
            ((false, false), 3, 1, 2, below, [ready, "TooFewReplicas", ""]),
            ((false, false), 3, -1, 2, below, [ready, "TooFewReplicas", ""]),
            ((false, false), 3, 20, 6, "m above target", [ready, "ScaleUpLimit", ""]),
            ((false, false), 3, 3, 3, "", [ready, within, ""]),
            ((false, false), 12, 3, 10, ABOVE_MAX, nothing),
            ((false, false), 1, 9, 2, BELOW_MIN, nothing),
            ((false, false), 0, 9, 0, "", ["", "", "ScalingDisabled"]),
            ((true, false), 0, 3, 3, "m above target", [ready, within, ""]),
            ((true, false), 0, 0, 2, "", [ready, "TooFewReplicas", ""]),
            ((true, true), 0, 0, 2, BELOW_MIN, [ready, within, ""]),
        ] {
            let (of, key) = (autoscaler(own, behavior), ObjectKey::new("ns", "web"));
            let mut subject = reconcile(&of, &key);
            let (history, moment) = (&mut History::default(), Duration::from_secs(7));
            let mut recent = Recent { history, window: Duration::ZERO, moment };
            let proposed =
                Proposed { replicas: proposed, name: "m".to_owned(), ..Proposed::default() };
            let scaling = Scaling::new(&of, current, true);
            let decision = subject.decide(scaling, &proposed, &mut recent, NOW);
            assert_eq!(decision, Decision { desired, reason: reason.to_owned() }, "{current}");
            let found = reasons(&subject);
            let reason = |kind: &str| {
                let known = found.iter().find(|(found, _)| found == kind);
                known.map_or("", |(_, reason)| reason.as_str())
            };
            let found = [ABLE_TO_SCALE, SCALING_LIMITED, SCALING_ACTIVE].map(reason);
            assert_eq!(found, conditions, "{current} {}", proposed.replicas);
        }
    }

    #[test]
    fn zero_replicas_need_the_gate_and_a_condition_says_so() {
        let few = "the desired replica count is less than the minimum replica count";
        // The gate, the behavior, the least number, the wanted and the present replicas; those
        // decided on, and the message of ScalingLimited; empty: it is not limited.
        for (is_enabled, behavior, min, wanted, current, desired, message) in [
            (true, false, 0, 0, 1, 0, ""),
            (false, false, 0, 0, 1, 1, ZERO_NEEDS_GATE),
            (false, true, 0, 0, 1, 1, ZERO_NEEDS_GATE),
            (false, false, 0, 0, 3, 1, ZERO_NEEDS_GATE),
            (false, false, 0, 2, 3, 2, ""),
            (false, false, 2, 0, 3, 2, few),
        ] {
            let (mut of, key) = (autoscaler(false, behavior), ObjectKey::new("ns", "web"));
            of.spec.min_replicas = Some(min);
            let mut subject = reconcile(&of, &key);
            let (history, moment) = (&mut History::default(), Duration::from_secs(7));
            let mut recent = Recent { history, window: Duration::ZERO, moment };
            let proposed = Proposed { replicas: wanted, ..Proposed::default() };
            let scaling = Scaling::new(&of, current, is_enabled);
            let decision = subject.decide(scaling, &proposed, &mut recent, NOW);
            assert_eq!(decision.desired, desired, "{is_enabled} {min} {wanted} {current}");
            let limited =
                subject.status.conditions.iter().find(|known| known.r#type == SCALING_LIMITED);
            let limited = limited.filter(|known| known.status == "True");
            assert_eq!(limited.map_or("", |known| known.message.as_str()), message, "{current}");
        }
    }

    #[test]
    fn a_metric_that_cannot_be_read_forbids_scaling_down_only() {
        let read = |replicas, name: &str| {
            let status = json!({ "type": name });
            Ok(Computed { replicas, name: name.to_owned(), status })
        };
        let lost = |cause: &str| {
            let (cause, error) = (cause.to_owned(), format!("context: {cause}"));
            Err(Failed { reason: "FailedGetMetric", cause, error, is_spec: false })
        };
        let invalid = |failures: usize, all: usize| {
            format!("invalid metrics ({failures} invalid out of {all}), first error is: context: x")
        };
        let (valid, failed) = ("ValidMetricFound", "FailedGetMetric");
        // The results at three replicas; the proposal or its lack, the failures, and the reason of
        // ScalingActive.
        for (results, proposal, error, reason) in [
            (vec![read(2, "a"), read(5, "b"), read(4, "c")], Some((5, "b")), None, valid),
            (vec![read(0, "a"), read(0, "b")], Some((0, "b")), None, valid),
            (vec![lost("x"), read(5, "b"), lost("y")], Some((5, "b")), Some(invalid(2, 3)), valid),
            (vec![read(3, "a"), lost("x")], Some((3, "a")), Some(invalid(1, 2)), valid),
            (vec![read(2, "a"), lost("x")], None, Some(invalid(1, 2)), failed),
            (vec![lost("x"), lost("y")], None, Some(invalid(2, 2)), failed),
        ] {
            let (of, key) = (autoscaler(false, false), ObjectKey::new("ns", "web"));
            let mut subject = reconcile(&of, &key);
            let count = results.len();
            let (found, statuses, problem) = match subject.propose(results, 3, NOW) {
                Ok(Proposed { replicas, name, statuses, error }) => {
                    (Some((replicas, name)), statuses, error)
                }
                Err((error, statuses)) => (None, statuses, Some(error)),
            };
            let proposal = proposal.map(|(replicas, name)| (replicas, name.to_owned()));
            assert_eq!((found, problem), (proposal, error));
            assert_eq!(statuses.len(), count);
            let active = (SCALING_ACTIVE.to_owned(), reason.to_owned());
            assert!(reasons(&subject).contains(&active), "{:?}", reasons(&subject));
        }
    }

    #[test]
    fn a_status_says_whether_its_autoscaler_scaled_to_zero() {
        // The gate, the least number, the replicas before and after; the action, and the reason of
        // ScaledToZero; empty: there is no such condition.
        for (is_enabled, min, current, desired, action, reason) in [
            (true, 0, 3, 0, Action::ScaleDown, "ScaledToZero"),
            (true, 0, 3, 1, Action::ScaleDown, "NotScaledToZero"),
            (true, 2, 0, 2, Action::ScaleUp, "NotScaledToZero"),
            (false, 0, 3, 4, Action::ScaleUp, ""),
        ] {
            let (mut of, key) = (autoscaler(true, false), ObjectKey::new("ns", "web"));
            of.spec.min_replicas = Some(min);
            let mut subject = reconcile(&of, &key);
            subject.record_rescale(Scaling::new(&of, current, is_enabled), desired, NOW);
            assert_eq!((subject.action, subject.status.last_scale_time), (action, Some(NOW)));
            let mut expected = vec![(ABLE_TO_SCALE.to_owned(), "SucceededRescale".to_owned())];
            if !reason.is_empty() {
                expected.insert(0, (SCALED_TO_ZERO.to_owned(), reason.to_owned()));
            }
            assert_eq!(reasons(&subject), expected, "{current} {desired}");
        }
    }
}
