//! Which pods are deleted first when there are too many. Upstream:
//! `controller.ActivePodsWithRanks`.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use crate::objects::{Istr, Pod, PodPhase, Timestamp, Uid};

const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// The order in which pods are deleted: the first field that differs decides, the lesser goes
/// first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Preference {
    assigned: bool,
    phase: u8,
    ready: bool,
    deletion_cost: i32,
    /// How many related pods share its node.
    neighbours: Reverse<usize>,
    /// For how long it has been ready.
    ready_for: Option<Age>,
    restarts: Reverse<(i32, i32)>,
    age: Option<Age>,
}

/// Time passed, in buckets that double, so that among pods of about one age chance decides: the
/// uid. (For pods that became ready at the same moment upstream uses the next rule, and so do we.
/// But upstream compares the pods' own uids here, which makes its order circular.) No age at all,
/// `None`, is less than any.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Age {
    log2_nanos: i64,
    uid: Uid,
}

impl Age {
    /// Makes the age at `now` of what began at `since`; `uid` decides between ages of one bucket.
    fn new(since: Timestamp, now: Timestamp, uid: Uid) -> Age {
        let nanos = now.as_micros().saturating_sub(since.as_micros()) as f64 * 1000.0;
        // An age of 0, or less by another clock, has a bucket below all others.
        Age { log2_nanos: if nanos > 0.0 { nanos.log2() as i64 } else { -1 }, uid }
    }
}

/// Returns the `count` pods to delete, in the order of preference. `related`: the pods that are
/// counted for each node, usually a superset of `pods`; called only if there is a choice.
/// Upstream: `getPodsToDelete`.
pub fn choose(
    mut pods: Vec<Arc<Pod>>,
    count: usize,
    related: impl FnOnce() -> Vec<Arc<Pod>>,
    now: Timestamp,
    uses_deletion_cost: bool,
) -> Vec<Arc<Pod>> {
    if count >= pods.len() {
        return pods;
    }
    let mut on_node: HashMap<Istr, usize> = HashMap::new();
    for pod in related().iter().filter(|pod| pod.is_active()) {
        *on_node.entry(pod.spec.node_name.clone()).or_default() += 1;
    }
    // Of the pods that became ready at one moment, the lowest uid: these pods have to be equal
    // here, so that the next rule decides.
    let mut moments: HashMap<Timestamp, Uid> = HashMap::new();
    for pod in &pods {
        if let Some(since) = pod.status.ready_since() {
            let uid = moments.entry(since).or_insert_with(|| pod.meta.uid.clone());
            if pod.meta.uid < *uid {
                *uid = pod.meta.uid.clone();
            }
        }
    }
    pods.sort_by_cached_key(|pod| Preference {
        assigned: !pod.spec.node_name.is_empty(),
        phase: match pod.status.phase {
            PodPhase::Unknown => 1,
            PodPhase::Running => 2,
            PodPhase::Pending | PodPhase::Succeeded | PodPhase::Failed => 0,
        },
        ready: pod.is_ready(),
        deletion_cost: if uses_deletion_cost { deletion_cost(pod) } else { 0 },
        neighbours: Reverse(on_node.get(&pod.spec.node_name).copied().unwrap_or(0)),
        ready_for: pod
            .status
            .ready_since()
            .map(|since| Age::new(since, now, moments[&since].clone())),
        restarts: Reverse(pod.max_restarts()),
        age: pod.meta.creation_timestamp.map(|at| Age::new(at, now, pod.meta.uid.clone())),
    });
    pods.truncate(count);
    pods
}

/// Returns the cost in the annotation; 0 if it is not a proper number. Upstream:
/// `GetDeletionCostFromPodAnnotations`.
fn deletion_cost(pod: &Pod) -> i32 {
    let Some(text) = pod.meta.annotations.get(DELETION_COST) else { return 0 };
    // Upstream refuses "+1" and leading zeros, the latter not behind a minus.
    let proper = text == "0" || text.starts_with(|first: char| matches!(first, '-' | '1'..='9'));
    if proper { text.parse().unwrap_or(0) } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const NOW: i64 = 1_000_000;

    fn pod(name: &str, change: impl Fn(&mut Value)) -> Arc<Pod> {
        let at = |ago: i64| Timestamp::from_secs(NOW - ago).to_string();
        let mut json = json!({
            "metadata": {"name": name, "uid": name, "creationTimestamp": at(5000)},
            "spec": {"nodeName": "n1"},
            "status": {
                "phase": "Running",
                "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": at(4000)}],
                "containerStatuses": [{"restartCount": 0}],
            },
        });
        change(&mut json);
        Arc::new(serde_json::from_value(json).unwrap())
    }

    /// The order in which all of `pods` would go.
    fn order(pods: &[Arc<Pod>], related: &[Arc<Pod>]) -> Vec<String> {
        let keeper = pod("zz", |_| {});
        let mut all = pods.to_vec();
        all.push(keeper);
        all.reverse();
        let count = all.len() - 1;
        let chosen = choose(all, count, || related.to_vec(), Timestamp::from_secs(NOW), true);
        chosen.iter().map(|pod| pod.meta.name.to_string()).collect()
    }

    #[test]
    fn each_rule_decides_before_the_next() {
        let ago = |seconds: i64| json!(Timestamp::from_secs(NOW - seconds).to_string());
        let ready = |json: &mut Value, value: Value| json["status"]["conditions"][0] = value;
        let pods = [
            pod("unassigned", |p| p["spec"]["nodeName"] = json!("")),
            pod("pending", |p| p["status"]["phase"] = json!("Pending")),
            pod("unknown", |p| p["status"]["phase"] = json!("Unknown")),
            pod("unready-restarted", |p| {
                ready(p, json!({"type": "Ready", "status": "False"}));
                p["status"]["containerStatuses"][0]["restartCount"] = json!(7);
            }),
            pod("unready", |p| ready(p, json!({"type": "Ready", "status": "False"}))),
            pod("cheap", |p| p["metadata"]["annotations"][DELETION_COST] = json!("-5")),
            pod("crowded", |p| p["spec"]["nodeName"] = json!("n2")),
            pod("no-ready-time", |p| ready(p, json!({"type": "Ready", "status": "True"}))),
            pod("just-ready", |p| {
                ready(p, json!({"type": "Ready", "status": "True", "lastTransitionTime": ago(10)}));
            }),
            pod("restarted", |p| p["status"]["containerStatuses"][0]["restartCount"] = json!(3)),
            pod("sidecar-restarted", |p| {
                p["spec"]["initContainers"] =
                    json!([{"name": "s", "restartPolicy": "Always"}, {"name": "i"}]);
                p["status"]["initContainerStatuses"] =
                    json!([{"name": "s", "restartCount": 1}, {"name": "i", "restartCount": 9}]);
            }),
            pod("init-restarted", |p| {
                p["spec"]["initContainers"] = json!([{"name": "i"}]);
                p["status"]["initContainerStatuses"] = json!([{"name": "i", "restartCount": 9}]);
                p["metadata"]["creationTimestamp"] = Value::Null;
            }),
            pod("young", |p| p["metadata"]["creationTimestamp"] = ago(4001)),
        ];
        let related = [pod("x", |p| p["spec"]["nodeName"] = json!("n2"))];
        let names: Vec<String> = pods.iter().map(|pod| pod.meta.name.to_string()).collect();
        assert_eq!(order(&pods, &related), names);
    }

    #[test]
    fn about_one_age_is_decided_by_uid() {
        let created = |name: &str, ago: i64| {
            pod(name, |p| {
                let at = Timestamp::from_secs(NOW - ago).to_string();
                p["metadata"]["creationTimestamp"] = json!(at);
            })
        };
        // 2^42 ns are 4398 s, 2^43 ns are 8796 s.
        assert_eq!(order(&[created("b", 5000), created("a", 8000)], &[]), ["a", "b"]);
        assert_eq!(order(&[created("b", 4300), created("a", 8000)], &[]), ["b", "a"]);
    }

    #[test]
    fn deletion_costs_are_proper_numbers() {
        for (text, cost) in
            [("5", 5), ("-5", -5), ("-05", -5), ("0", 0), ("+5", 0), ("05", 0), ("-x", 0), ("", 0)]
        {
            let pod = pod("a", |p| p["metadata"]["annotations"][DELETION_COST] = json!(text));
            assert_eq!(deletion_cost(&pod), cost, "{text:?}");
        }
    }

    #[test]
    fn without_a_choice_nothing_is_ranked() {
        let pods = vec![pod("a", |_| {}), pod("b", |_| {})];
        let chosen = choose(pods, 2, || panic!("not asked"), Timestamp::from_secs(NOW), true);
        assert_eq!(chosen.len(), 2);
    }
}
