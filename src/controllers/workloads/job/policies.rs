//! The pod failure policy and the success policy of a Job.
//! Upstream: `matchPodFailurePolicy`, `matchSuccessPolicy`.

use super::indexes::Indexes;
use crate::objects::{OnExitCodes, OnPodCondition, Pod, PodFailurePolicy, SuccessPolicy};

/// The decision of the pod failure policy about a failed pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// No rule matches: the failure counts.
    Unmatched,
    Count,
    Ignore,
    /// The failure counts, and the pod's index is not retried.
    FailIndex,
    /// The failure counts, and the Job fails with this message.
    FailJob(String),
}

impl Verdict {
    /// Returns whether the failure counts towards the back-off limits.
    pub fn counts(&self) -> bool {
        *self != Verdict::Ignore
    }

    /// Returns the action of the rule that matched, as the label of a metric.
    pub fn action(&self) -> Option<&'static str> {
        match self {
            Verdict::Unmatched => None,
            Verdict::Count => Some("Count"),
            Verdict::Ignore => Some("Ignore"),
            Verdict::FailIndex => Some("FailIndex"),
            Verdict::FailJob(_) => Some("FailJob"),
        }
    }
}

/// Returns the verdict of the first rule that matches `pod`, which has failed.
pub fn judge(policy: Option<&PodFailurePolicy>, pod: &Pod) -> Verdict {
    for (index, rule) in policy.iter().flat_map(|policy| &policy.rules).enumerate() {
        let (namespace, name) = (&pod.meta.namespace, &pod.meta.name);
        let message = match (&rule.on_exit_codes, &rule.on_pod_conditions) {
            (Some(codes), _) => matching_exit(pod, codes).map(|(container, code)| {
                format!(
                    "Container {container} for pod {namespace}/{name} failed with exit code {code}"
                )
            }),
            (None, Some(patterns)) => matching_condition(pod, patterns)
                .map(|condition| format!("Pod {namespace}/{name} has condition {condition}")),
            (None, None) => None,
        };
        let Some(message) = message else { continue };
        match rule.action.as_str() {
            "Ignore" => return Verdict::Ignore,
            "FailIndex" => return Verdict::FailIndex,
            "Count" => return Verdict::Count,
            "FailJob" => {
                let action = &rule.action;
                let text = format!("{message} matching {action} rule at index {index}");
                return Verdict::FailJob(text);
            }
            // Unknown actions are ignored, as upstream.
            _ => {}
        }
    }
    Verdict::Unmatched
}

/// Returns whether `pod` failed because of a disruption, and the policy ignores that.
pub fn ignores_disruption(policy: Option<&PodFailurePolicy>, pod: &Pod) -> bool {
    pod.status.is_disruption_target() && judge(policy, pod) == Verdict::Ignore
}

/// Returns the first container, init containers last, whose end matches: its name and code. Code 0
/// never does.
fn matching_exit<'a>(pod: &'a Pod, codes: &OnExitCodes) -> Option<(&'a str, i32)> {
    for end in &pod.rare_status()?.terminated {
        let is_named = match &codes.container_name {
            Some(name) => *name == end.name,
            None => true,
        };
        let is_listed = codes.values.contains(&end.exit_code);
        let has_code = match codes.operator.as_str() {
            "In" => is_listed,
            "NotIn" => !is_listed,
            // Unknown operators match nothing, as upstream.
            _ => false,
        };
        if is_named && has_code && end.exit_code != 0 {
            return Some((end.name.as_str(), end.exit_code));
        }
    }
    None
}

/// Returns the type of the pod's first condition that matches.
fn matching_condition<'a>(pod: &'a Pod, patterns: &[OnPodCondition]) -> Option<&'a str> {
    for condition in &pod.status.conditions {
        for pattern in patterns {
            if pattern.r#type == condition.r#type && pattern.status == condition.status {
                return Some(condition.r#type.as_str());
            }
        }
    }
    None
}

/// Returns the message about the first rule of the success policy that is met; `None` without one.
pub fn met_success_rule(
    policy: Option<&SuccessPolicy>,
    completions: i32,
    succeeded: &Indexes,
) -> Option<String> {
    if succeeded.is_empty() {
        return None;
    }
    for (index, rule) in policy?.rules.iter().enumerate() {
        let is_enough = |count: usize| match rule.succeeded_count {
            Some(needed) => count as i64 >= needed.into(),
            None => false,
        };
        let is_met = match &rule.succeeded_indexes {
            None => is_enough(succeeded.total()),
            Some(text) => {
                let listed = Indexes::parse(text, completions);
                let count = listed.overlap(succeeded);
                !listed.is_empty() && (count == listed.total() || is_enough(count))
            }
        };
        if is_met {
            return Some(format!("Matched rules at index {index}"));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn policy(rules: Value) -> PodFailurePolicy {
        serde_json::from_value(json!({ "rules": rules })).unwrap()
    }

    fn pod(status: Value) -> Pod {
        let meta = json!({ "namespace": "ns", "name": "p" });
        serde_json::from_value(json!({ "metadata": meta, "status": status })).unwrap()
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        let ended = |name: &str, code: i32| json!({ "name": name, "state": { "terminated": { "exitCode": code } } });
        let exits = pod(json!({
            "containerStatuses": [ended("ok", 0), ended("main", 3), { "name": "runs" }],
            "initContainerStatuses": [ended("init", 7)],
            "conditions": [
                { "type": "Ready", "status": "False" },
                { "type": "DisruptionTarget", "status": "True" },
            ],
        }));
        let codes = |action: &str, operator: &str, values: Value, container: Value| {
            json!({ "action": action, "onExitCodes": {
                "operator": operator, "values": values, "containerName": container } })
        };
        let condition = |action: &str, kind: &str, status: &str| json!({ "action": action, "onPodConditions": [{ "type": kind, "status": status }] });
        let any = Value::Null;
        let failed = |text: &str| Verdict::FailJob(text.to_owned());
        for (rules, verdict) in [
            (json!([]), Verdict::Unmatched),
            (json!([codes("Ignore", "In", json!([1, 3]), any.clone())]), Verdict::Ignore),
            (json!([codes("Count", "In", json!([7]), any.clone())]), Verdict::Count),
            (json!([codes("Count", "In", json!([7]), json!("main"))]), Verdict::Unmatched),
            (json!([codes("Count", "NotIn", json!([3, 7]), any.clone())]), Verdict::Unmatched),
            (json!([codes("FailIndex", "NotIn", json!([3]), any.clone())]), Verdict::FailIndex),
            (json!([codes("Ignore", "NotIn", json!([9]), json!("ok"))]), Verdict::Unmatched),
            (json!([codes("New", "In", json!([3]), any.clone())]), Verdict::Unmatched),
            (json!([codes("Ignore", "Near", json!([3]), any.clone())]), Verdict::Unmatched),
            (json!([{ "action": "Ignore" }]), Verdict::Unmatched),
            (
                json!([
                    codes("Ignore", "In", json!([8]), any.clone()),
                    codes("FailJob", "In", json!([7]), json!("init")),
                    codes("Ignore", "In", json!([3]), any.clone()),
                ]),
                failed(
                    "Container init for pod ns/p failed with exit code 7 matching FailJob rule at index 1",
                ),
            ),
            (json!([condition("Ignore", "DisruptionTarget", "False")]), Verdict::Unmatched),
            (json!([condition("Ignore", "DisruptionTarget", "True")]), Verdict::Ignore),
            (
                json!([condition("FailJob", "Ready", "False")]),
                failed("Pod ns/p has condition Ready matching FailJob rule at index 0"),
            ),
        ] {
            assert_eq!(judge(Some(&policy(rules.clone())), &exits), verdict, "{rules}");
        }
        assert_eq!(judge(None, &exits), Verdict::Unmatched);
        let all = [Verdict::Unmatched, Verdict::Count, Verdict::FailIndex, failed("")];
        assert!(all.iter().all(Verdict::counts) && !Verdict::Ignore.counts());
    }

    #[test]
    fn success_needs_the_indexes_or_the_number_of_a_rule() {
        let rule = |indexes: Value, count: Value| json!({ "succeededIndexes": indexes, "succeededCount": count });
        let none = Value::Null;
        for (rules, succeeded, met) in [
            (json!([]), "0-9", None),
            (json!([rule(json!("0-2"), none.clone())]), "", None),
            (json!([rule(json!("0-2"), none.clone())]), "0,1,5", None),
            (json!([rule(json!("0-2"), none.clone())]), "0-5", Some(0)),
            (json!([rule(json!("0-2"), json!(2))]), "1,2", Some(0)),
            (json!([rule(json!("0-2"), json!(2))]), "2-9", None),
            (json!([rule(none.clone(), json!(4))]), "2-4", None),
            (json!([rule(none.clone(), json!(3))]), "2-4", Some(0)),
            (json!([rule(json!("x"), json!(1)), rule(none.clone(), json!(1))]), "0", Some(1)),
            (json!([rule(none.clone(), none.clone())]), "0-9", None),
        ] {
            let policy: SuccessPolicy = serde_json::from_value(json!({ "rules": rules })).unwrap();
            let succeeded = Indexes::parse(succeeded, 10);
            let expected = met.map(|index: usize| format!("Matched rules at index {index}"));
            assert_eq!(
                met_success_rule(Some(&policy), 10, &succeeded),
                expected,
                "{rules} {succeeded}"
            );
        }
        assert_eq!(met_success_rule(None, 10, &Indexes::parse("0-9", 10)), None);
    }
}
