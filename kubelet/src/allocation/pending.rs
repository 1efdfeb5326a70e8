//! The order in which waiting resizes are tried. Upstream: `sortPendingResizes`.

use std::cmp::Ordering;

use kube_controller_manager::objects::Timestamp;

use crate::pod::{Pod, PodExt, QosClass, of_pod};

/// Returns whether the pod asks for more CPU or memory than is allocated to it. Upstream:
/// `isResizeIncreasingRequests`.
pub fn requests_grow(wanted: &Pod, allocated: &Pod) -> bool {
    let request = |pod: &Pod, resource: &str| of_pod(pod, resource, false);
    let grows = |resource| request(wanted, resource).compare(request(allocated, resource)).is_gt();
    ["memory", "cpu"].into_iter().any(grows)
}

/// Orders two pods by which is tried first: one that asks for no more than it has, the higher
/// priority, the class Guaranteed, the one that waits longer. `grows`: whether it asks for more;
/// `since`: when it began to wait, `None`: just now.
pub fn order(a: (&Pod, bool, Option<Timestamp>), b: (&Pod, bool, Option<Timestamp>)) -> Ordering {
    let ((a, a_grows, a_since), (b, b_grows, b_since)) = (a, b);
    let priority = |pod: &Pod| pod.spec().priority.unwrap_or(0);
    let is_guaranteed = |pod: &Pod| QosClass::of(pod) == QosClass::Guaranteed;
    a_grows
        .cmp(&b_grows)
        .then(priority(b).cmp(&priority(a)))
        .then(is_guaranteed(b).cmp(&is_guaranteed(a)))
        .then(a_since.is_none().cmp(&b_since.is_none()))
        .then(a_since.cmp(&b_since))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn resizes_are_tried_by_what_they_free_their_priority_class_and_age() {
        let pod = |name: &str, priority: i32, is_guaranteed: bool| -> Pod {
            let amounts = json!({"cpu": "1", "memory": "1Mi"});
            let limits = if is_guaranteed { amounts.clone() } else { json!({}) };
            let container =
                json!({"name": "c", "resources": {"requests": amounts, "limits": limits}});
            let pod = json!({"metadata": {"name": name},
                "spec": {"priority": priority, "containers": [container]}});
            serde_json::from_value(pod).expect("a pod")
        };
        let at = |seconds| Some(Timestamp::from_secs(seconds));
        let mut all = [
            (pod("new", 0, false), true, None),
            (pod("late", 0, false), true, at(2)),
            (pod("early", 0, false), true, at(1)),
            (pod("guaranteed", 0, true), true, at(3)),
            (pod("high", 9, false), true, at(4)),
            (pod("less", -1, false), false, at(5)),
        ];
        all.sort_by(|a, b| order((&a.0, a.1, a.2), (&b.0, b.1, b.2)));
        let names: Vec<&str> = all.iter().map(|(pod, ..)| pod.name()).collect();
        assert_eq!(names, ["less", "high", "guaranteed", "early", "late", "new"]);
    }

    #[test]
    fn growth_is_of_cpu_or_memory() {
        let pod = |cpu: &str, memory: &str| -> Pod {
            let requests = json!({"cpu": cpu, "memory": memory});
            let container = json!({"name": "c", "resources": {"requests": requests}});
            serde_json::from_value(json!({"spec": {"containers": [container]}})).expect("a pod")
        };
        let allocated = pod("1", "1Mi");
        for (wanted, expected) in [
            (pod("1", "1Mi"), false),
            (pod("2", "1Ki"), true),
            (pod("1m", "2Mi"), true),
            (pod("1m", "1Mi"), false),
        ] {
            assert_eq!(requests_grow(&wanted, &allocated), expected);
        }
    }
}
