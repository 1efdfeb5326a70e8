//! Evictions under disruption budgets.

use std::collections::{HashMap, HashSet, VecDeque};

use serde_json::Value;

use super::{Change, Check, Verdict, has_condition};
use crate::object::{is_deleting, list, text};

/// How old the pods that the budget's status counts may be, in seconds: no watch is disturbed, and
/// no manager is without a leader, for as long.
const STALENESS: f64 = 120.0;

/// An eviction leaves as many healthy pods as its budget asks for.
///
/// Pods that are lost otherwise (deleted, on a dead node) count as healthy for the time after which
/// the budget's status must show the loss: upstream's eviction trusts the status, which the
/// controller computes from its cache. So this finds evictions that are not counted, or counted
/// and forgotten.
#[derive(Default)]
pub struct Evictions {
    /// The least healthy pods, by namespace and label.
    budgets: HashMap<String, usize>,
    /// The uids of healthy pods by namespace and label.
    healthy: HashMap<String, HashSet<String>>,
    /// The seconds at which pods were lost otherwise.
    losses: HashMap<String, VecDeque<f64>>,
}

impl Check for Evictions {
    fn name(&self) -> &'static str {
        "budgets respected by evictions"
    }

    /// Follows budgets and healthy pods. When an evicted pod is no longer healthy, judges whether
    /// its budget permits that.
    fn observe(&mut self, change: &Change<'_>) -> Verdict {
        let namespace = change.key.split_once('/').map_or("", |(namespace, _)| namespace);
        let labelled = |app: &str| format!("{namespace}/{app}");
        match change.table {
            "poddisruptionbudgets.policy" => {
                let group = labelled(text(change.new, "/spec/selector/matchLabels/app"));
                match change.new["spec"]["minAvailable"].as_u64() {
                    Some(least) if !change.deleted => self.budgets.insert(group, least as usize),
                    _ => self.budgets.remove(&group),
                };
                Verdict::Unrelated
            }
            "pods" => {
                let group = labelled(text(change.new, "/metadata/labels/app"));
                let healthy = self.healthy.entry(group.clone()).or_default();
                let is_healthy = change
                    .live()
                    .is_some_and(|pod| !is_deleting(pod) && has_condition(pod, "Ready"));
                if is_healthy {
                    healthy.insert(change.uid().to_owned());
                    return Verdict::Unrelated;
                }
                if !healthy.remove(change.uid()) {
                    return Verdict::Unrelated;
                }
                let healthy = healthy.len();
                let losses = self.losses.entry(group.clone()).or_default();
                losses.retain(|second| *second > change.second - STALENESS);
                let budget = self.budgets.get(&group).filter(|_| is_evicted(change.new));
                let Some(&least) = budget else {
                    losses.push_back(change.second);
                    return Verdict::Unrelated;
                };
                match healthy + losses.len() >= least {
                    true => Verdict::Holds,
                    false => Verdict::Broken(format!(
                        "an eviction left {healthy} healthy pods, {} were lost otherwise, and the \
                         budget asks for {least}",
                        losses.len()
                    )),
                }
            }
            _ => Verdict::Unrelated,
        }
    }
}

/// Returns whether the API server evicted the pod on request.
fn is_evicted(pod: &Value) -> bool {
    list(pod, "/status/conditions")
        .iter()
        .any(|it| it["type"] == "DisruptionTarget" && it["reason"] == "EvictionByEvictionAPI")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::broken;
    use super::*;

    #[test]
    fn an_eviction_below_the_budget_is_found() {
        let budget = |deleted| {
            let budget = json!({
                "metadata": { "namespace": "a", "name": "b", "uid": "b" },
                "spec": { "minAvailable": 2, "selector": { "matchLabels": { "app": "web" } } },
            });
            ("poddisruptionbudgets.policy", budget, deleted)
        };
        let pod = |name: &str, is_ready: bool, reason: &str| {
            let pod = json!({
                "metadata": {
                    "namespace": "a", "name": name, "uid": name, "labels": { "app": "web" },
                    "deletionTimestamp": if is_ready { "" } else { "now" },
                },
                "status": { "conditions": [
                    { "type": "Ready", "status": "True" },
                    { "type": "DisruptionTarget", "reason": reason },
                ] },
            });
            ("pods", pod, false)
        };
        let ready = |name| pod(name, true, "");
        let evicted = |name| pod(name, false, "EvictionByEvictionAPI");
        let lost = |name| pod(name, false, "DeletionByTaintManager");
        let three = || vec![budget(false), ready("x"), ready("y"), ready("z")];
        for (more, expected) in [
            (vec![evicted("x"), evicted("y")], vec![5]),
            (vec![evicted("x"), ready("w"), evicted("y")], vec![]),
            (vec![lost("x"), evicted("y"), evicted("z")], vec![6]),
            (vec![lost("x"), lost("y"), evicted("z")], vec![]),
            (vec![budget(true), evicted("x"), evicted("y"), evicted("z")], vec![]),
        ] {
            let changes: Vec<_> = three().into_iter().chain(more).collect();
            assert_eq!(broken(&mut Evictions::default(), &changes), expected, "{changes:?}");
        }
    }
}
