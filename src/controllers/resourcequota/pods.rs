//! Pods, and what they ask for. Upstream: `quota/v1/evaluator/core/pods.go`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::evaluator::Evaluator;
use crate::cache::Lister;
use crate::clock::SharedClock;
use crate::controllers::Error;
use crate::objects::{
    Istr, Labels, Pod, PodQuota, Quantity, ResourceList, ScopeRequirement, SelectorError, Timestamp,
};

const COUNT: &str = "count/pods";
const NAMES: [&str; 11] = [
    COUNT,
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "pods",
];

/// The evaluator of Pods.
pub struct Pods {
    pub pods: Lister<Pod>,
    pub clock: SharedClock,
    /// The gate `PodLevelResources`.
    pub pod_level_resources: bool,
}

impl Evaluator for Pods {
    fn measures(&self, name: &str) -> bool {
        NAMES.contains(&name)
            || name.starts_with("hugepages-")
            || name.starts_with("requests.hugepages-")
            || is_extended_request(name)
    }

    fn usage(&self, namespace: &str, scopes: &[ScopeRequirement]) -> Result<ResourceList, Error> {
        let now = self.clock.now();
        Ok(sum(&self.pods.in_namespace(namespace), scopes, self.pod_level_resources, now))
    }
}

/// Sums what the pods that match all of `scopes` use. Pods of one template in the same state are
/// added up at once.
pub fn sum(
    pods: &[Arc<Pod>],
    scopes: &[ScopeRequirement],
    pod_level_resources: bool,
    now: Timestamp,
) -> ResourceList {
    // By template: the number of pods that exist, and of those that are charged.
    let mut alike: HashMap<*const PodQuota, (&PodQuota, u64, u64)> = HashMap::new();
    for pod in pods {
        let (_, stored, live) =
            alike.entry(std::ptr::from_ref(pod.quota())).or_insert((pod.quota(), 0, 0));
        *stored += 1;
        *live += u64::from(is_charged(pod, now));
    }
    let mut usage = ResourceList::default();
    for (quota, stored, live) in alike.into_values() {
        let mut matches = scopes.iter().map(|scope| in_scope(quota, scope));
        match matches.find(|matches| !matches!(matches, Ok(true))) {
            Some(Ok(_)) => continue,
            // A selector that cannot be read ends the count without an error, as upstream.
            Some(Err(_)) => break,
            None => {}
        }
        usage.add_to(&COUNT.into(), Quantity::ONE.times(stored));
        if live > 0 {
            for (name, amount) in quota.usage_by(pod_level_resources).iter() {
                usage.add_to(name, amount.times(live));
            }
        }
    }
    usage
}

/// Returns whether `name` is the request of an extended resource or of a device class. Upstream:
/// `isExtendedResourceNameForQuota`.
pub fn is_extended_request(name: &str) -> bool {
    let is_native = !name.contains('/') || name.contains("kubernetes.io/");
    name.starts_with("requests.deviceclass.resource.kubernetes.io/")
        || !is_native && name.starts_with("requests.")
}

/// Returns whether the pod is charged for its resources, not only counted as an object: it has not
/// ended, and is not past its grace period. Upstream: `QuotaV1Pod`.
pub fn is_charged(pod: &Pod, now: Timestamp) -> bool {
    !pod.is_terminal() && charged_until(pod).is_none_or(|last| now <= last)
}

/// Returns the last moment at which a pod that is being deleted is charged; `None` for other pods.
fn charged_until(pod: &Pod) -> Option<Timestamp> {
    let grace = pod.meta.deletion_grace_period_seconds?;
    Some(pod.meta.deletion_timestamp? + grace.into())
}

/// Returns the time until the first of `pods` that are being deleted is charged no longer, though
/// it still exists; `None` if no pod is being deleted and charged.
pub fn next_release<'a>(
    pods: impl IntoIterator<Item = &'a Arc<Pod>>,
    now: Timestamp,
) -> Option<Duration> {
    let charged = pods.into_iter().filter(|pod| is_charged(pod, now));
    let last = charged.filter_map(|pod| charged_until(pod)).min()?;
    // It is charged at the last moment, and no longer right after it.
    Some(last.duration_since(now) + Duration::from_millis(1))
}

/// Returns whether a pod is in a scope of a quota. A scope of another kind holds no pod.
/// Upstream: `podMatchesScopeFunc`.
pub fn in_scope(pod: &PodQuota, scope: &ScopeRequirement) -> Result<bool, SelectorError> {
    Ok(match scope.scope_name.as_str() {
        "Terminating" => pod.has_deadline,
        "NotTerminating" => !pod.has_deadline,
        "BestEffort" => pod.is_best_effort,
        "NotBestEffort" => !pod.is_best_effort,
        "CrossNamespacePodAffinity" => pod.has_cross_namespace_affinity,
        "PriorityClass" if scope.only_asks_for_existence() => !pod.priority_class.is_empty(),
        "PriorityClass" => {
            let class = Some(&pod.priority_class).filter(|class| !class.is_empty());
            let label = class.map(|class| (scope.scope_name.as_str(), class.as_str()));
            scope.selector()?.matches(&label.into_iter().collect::<Labels>())
        }
        _ => false,
    })
}

/// Returns whether an update changes what the pod is charged, so that quotas may have room again or
/// be used up.
/// Upstream: `DefaultUpdateFilter`.
pub fn changes_usage(old: &Pod, new: &Pod, now: Timestamp) -> bool {
    old.quota().usage != new.quota().usage
        || old.quota().has_deadline != new.quota().has_deadline
        || is_charged(old, now) && !is_charged(new, now)
}

/// Returns what a pod is charged of the resource `name`. Upstream: `PodUsageFunc`.
pub fn charge(pod: &Pod, name: &Istr, now: Timestamp) -> Quantity {
    let charged = Some(&pod.quota().usage).filter(|_| is_charged(pod, now));
    charged.and_then(|usage| usage.get(name)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(name: &str, spec: Value, status: Value) -> Arc<Pod> {
        let pod = json!({ "metadata": { "name": name }, "spec": spec, "status": status });
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    fn spec(cpu: &str, class: &str) -> Value {
        json!({
            "priorityClassName": class,
            "containers": [{ "name": "a", "resources": { "requests": { "cpu": cpu } } }],
        })
    }

    fn scope(name: &str, operator: &str, values: &[&str]) -> ScopeRequirement {
        ScopeRequirement {
            scope_name: name.into(),
            operator: operator.into(),
            values: values.iter().map(|value| Istr::new(value)).collect(),
        }
    }

    #[test]
    fn pods_are_added_up_within_their_scopes() {
        let ended = json!({ "phase": "Succeeded" });
        let mut limited = spec("10m", "");
        limited["activeDeadlineSeconds"] = 5.into();
        let pods = [
            pod("a", spec("100m", ""), json!({})),
            pod("b", spec("100m", ""), json!({})),
            pod("c", spec("100m", ""), ended),
            pod("d", spec("1", "high"), json!({})),
            pod("e", json!({ "containers": [{ "name": "a" }] }), json!({})),
            pod("f", limited, json!({})),
        ];
        let used = |scopes: &[ScopeRequirement]| {
            let usage = sum(&pods, scopes, true, Timestamp::from_secs(0));
            ["count/pods", "pods", "requests.cpu"]
                .map(|name| usage.get(name).unwrap_or_default().to_string())
        };
        for (scopes, expected) in [
            (vec![], ["6", "5", "1210m"]),
            (vec![scope("BestEffort", "Exists", &[])], ["1", "1", "0"]),
            (vec![scope("NotBestEffort", "Exists", &[])], ["5", "4", "1210m"]),
            (vec![scope("Terminating", "Exists", &[])], ["1", "1", "10m"]),
            (vec![scope("NotTerminating", "Exists", &[])], ["5", "4", "1200m"]),
            (vec![scope("PriorityClass", "Exists", &[])], ["1", "1", "1"]),
            (vec![scope("PriorityClass", "In", &["high", "low"])], ["1", "1", "1"]),
            (vec![scope("PriorityClass", "NotIn", &["high"])], ["5", "4", "210m"]),
            (vec![scope("PriorityClass", "DoesNotExist", &[])], ["5", "4", "210m"]),
            (vec![scope("PriorityClass", "In", &[])], ["0", "0", "0"]),
            (vec![scope("CrossNamespacePodAffinity", "Exists", &[])], ["0", "0", "0"]),
            (vec![scope("VolumeAttributesClass", "Exists", &[])], ["0", "0", "0"]),
            (
                vec![scope("NotBestEffort", "Exists", &[]), scope("Terminating", "Exists", &[])],
                ["1", "1", "10m"],
            ),
        ] {
            assert_eq!(used(&scopes), expected, "{scopes:?}");
        }
    }

    #[test]
    fn a_gate_says_whether_what_the_pod_names_as_a_whole_counts() {
        let mut whole = spec("100m", "");
        whole["resources"] = json!({ "requests": { "cpu": "2" } });
        let pods = [pod("a", whole, json!({})), pod("b", spec("1", ""), json!({}))];
        for (counts, cpu) in [(true, "3"), (false, "1100m")] {
            let usage = sum(&pods, &[], counts, Timestamp::from_secs(0));
            assert_eq!(usage.get("requests.cpu").unwrap_or_default().to_string(), cpu);
        }
    }

    #[test]
    fn a_pod_that_should_be_gone_is_charged_no_longer() {
        let mut pod = Pod::default();
        let charged = |pod: &Pod, second| is_charged(pod, Timestamp::from_secs(second));
        assert!(charged(&pod, 1000));
        pod.meta.deletion_timestamp = Some(Timestamp::from_secs(30));
        pod.meta.deletion_grace_period_seconds = Some(30.into());
        assert!(charged(&pod, 60));
        assert!(!charged(&pod, 61));
    }

    #[test]
    fn the_first_pod_that_is_charged_no_longer_is_waited_for() {
        let leaving = |deadline: Option<i64>, phase: &str| {
            let pod = json!({
                "metadata": {
                    "deletionTimestamp": deadline.map(Timestamp::from_secs),
                    "deletionGracePeriodSeconds": deadline.map(|_| 30),
                },
                "status": { "phase": phase },
            });
            Arc::new(serde_json::from_value::<Pod>(pod).unwrap())
        };
        let wait = |seconds: u64| Some(Duration::from_millis(seconds * 1000 + 1));
        for (pods, expected) in [
            (vec![], None),
            (vec![leaving(None, "Running")], None),
            (vec![leaving(Some(130), "Running"), leaving(Some(110), "Pending")], wait(40)),
            (vec![leaving(Some(130), "Running"), leaving(Some(110), "Failed")], wait(60)),
            // Charged for the last time now, and charged no longer.
            (vec![leaving(Some(70), "Running"), leaving(Some(69), "Running")], wait(0)),
            (vec![leaving(Some(69), "Running")], None),
        ] {
            assert_eq!(next_release(&pods, Timestamp::from_secs(100)), expected, "{pods:?}");
        }
    }

    #[test]
    fn names_that_are_measured() {
        for (name, expected) in [
            ("requests.example.com/gpu", true),
            ("example.com/gpu", false),
            ("limits.example.com/gpu", false),
            ("requests.kubernetes.io/x", false),
            ("requests.deviceclass.resource.kubernetes.io/x", true),
            ("requests.storage", false),
        ] {
            assert_eq!(is_extended_request(name), expected, "{name}");
        }
    }
}
