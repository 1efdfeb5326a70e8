//! Which pods end so that a critical pod can be admitted: as few as possible, of the lowest class,
//! with the smallest requests. Upstream: `pkg/kubelet/preemption`.

use std::cmp::Ordering;
use std::sync::Arc;

use super::Rejection;
use super::resources::{Shortage, freed_by};
use crate::eviction::is_critical;
use crate::pod::{Pod, PodExt, QosClass};

/// What has still to be freed: resources with amounts above zero.
pub type Needs = Vec<(String, i64)>;

/// Chooses the pods that end for `pod`, the lowest class first; without shortages none.
///
/// # Errors
/// The end of all pods that it may preempt would not free enough.
pub fn choose(
    pod: &Pod,
    others: &[Arc<Pod>],
    shortages: &[Shortage],
) -> Result<Vec<Arc<Pod>>, Rejection> {
    let needs: Needs = shortages.iter().map(|one| (one.resource.clone(), one.missing())).collect();
    let of_class = |class: QosClass| -> Vec<Arc<Pod>> {
        let others = others.iter().filter(|other| may_preempt(pod, other));
        others.filter(|other| QosClass::of(other) == class).cloned().collect()
    };
    let best_effort = of_class(QosClass::BestEffort);
    let burstable = of_class(QosClass::Burstable);
    let guaranteed = of_class(QosClass::Guaranteed);
    let unmet = after(&needs, [&best_effort, &burstable, &guaranteed]);
    if !unmet.is_empty() {
        return Err(Rejection::NothingToPreempt(unmet));
    }
    // The highest class first: each gives only what neither all pods of the lower classes nor those
    // chosen of the higher ones would free.
    let guaranteed = closest(guaranteed, after(&needs, [&best_effort, &burstable]));
    let burstable = closest(burstable, after(&needs, [&best_effort, &guaranteed]));
    let best_effort = closest(best_effort, after(&needs, [&burstable, &guaranteed]));
    Ok([best_effort, burstable, guaranteed].concat())
}

/// Returns whether `other` may end for `pod`. Upstream: `kubetypes.Preemptable`.
fn may_preempt(pod: &Pod, other: &Pod) -> bool {
    is_critical(pod) && !is_critical(other)
        || match (pod.spec().priority, other.spec().priority) {
            (Some(own), Some(others)) => own > others,
            // Only a critical pod preempts without a priority.
            _ => false,
        }
}

/// Returns the needs that remain when these pods have ended.
fn after<const N: usize>(needs: &Needs, ended: [&Vec<Arc<Pod>>; N]) -> Needs {
    let rest = |(resource, amount): &(String, i64)| {
        let freed = ended.into_iter().flatten().map(|pod| freed_by(pod, resource));
        let rest = amount.saturating_sub(freed.fold(0, i64::saturating_add));
        (rest > 0).then(|| (resource.clone(), rest))
    };
    needs.iter().filter_map(rest).collect()
}

/// Takes the pods that come closest to the needs, one by one, until these are met or no pod is
/// left. Upstream: `getPodsToPreemptByDistance`.
fn closest(mut pods: Vec<Arc<Pod>>, mut needs: Needs) -> Vec<Arc<Pod>> {
    let mut chosen = Vec::new();
    while !needs.is_empty() {
        let by_distance = |a: &usize, b: &usize| {
            let (a, b) = (&pods[*a], &pods[*b]);
            distance(&needs, a).total_cmp(&distance(&needs, b)).then_with(|| by_requests(a, b))
        };
        let Some(best) = (0..pods.len()).min_by(by_distance) else { break };
        let pod = pods.swap_remove(best);
        needs = after(&needs, [&vec![pod.clone()]]);
        chosen.push(pod);
    }
    chosen
}

/// Returns how far the end of a pod is from what is needed: 0 if it is enough, at most 1 for each
/// resource, so that all weigh the same.
fn distance(needs: &Needs, pod: &Pod) -> f64 {
    let part = |(resource, amount): &(String, i64)| {
        let rest = amount.saturating_sub(freed_by(pod, resource));
        if rest > 0 { (rest as f64 / *amount as f64).powi(2) } else { 0.0 }
    };
    needs.iter().map(part).sum()
}

/// Orders pods by their requests of memory, then of CPU. Upstream: `smallerResourceRequest`.
fn by_requests(a: &Pod, b: &Pod) -> Ordering {
    let requests = |pod: &Pod| (freed_by(pod, "memory"), freed_by(pod, "cpu"));
    requests(a).cmp(&requests(b))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Requests of millis of a CPU, and of as many MiB.
    fn pod(name: &str) -> Arc<Pod> {
        let requests =
            |amount: u32| json!({"cpu": format!("{amount}m"), "memory": format!("{amount}Mi")});
        let both = |amount| json!({"requests": requests(amount), "limits": requests(amount)});
        let only = |amount| json!({"requests": requests(amount)});
        let (resources, priority) = match name {
            "best-effort" => (json!({}), Value::Null),
            "cluster-critical" => (only(100), json!(2_000_000_000)),
            "node-critical" => (only(100), json!(2_000_000_100)),
            "burstable" => (only(100), Value::Null),
            "guaranteed" => (both(100), Value::Null),
            "high-burstable" => (only(300), Value::Null),
            "high-guaranteed" => (both(300), Value::Null),
            other => panic!("{other}"),
        };
        let container = json!({"name": "c", "resources": resources});
        let spec = json!({"containers": [container], "priority": priority});
        Arc::new(
            serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec}))
                .expect("a pod"),
        )
    }

    fn shortages(milli: i64, mib: i64, pods: i64) -> Vec<Shortage> {
        let needed = [("cpu", milli), ("memory", mib << 20), ("pods", pods)];
        let needed = needed.into_iter().filter(|(_, amount)| *amount > 0);
        // All of the node is used.
        let shortage = |(name, requested): (&str, i64)| Shortage {
            resource: name.to_owned(),
            requested,
            used: 1 << 40,
            capacity: 1 << 40,
        };
        needed.map(shortage).collect()
    }

    #[test]
    fn few_pods_of_low_classes_end() {
        let all = ["best-effort", "burstable", "high-burstable", "guaranteed", "high-guaranteed"];
        for (preemptor, others, (milli, mib, pods), expected) in [
            ("cluster-critical", &[][..], (0, 0, 0), Some("")),
            ("cluster-critical", &[], (0, 0, 1), None),
            ("cluster-critical", &["burstable"], (100, 100, 1), Some("burstable")),
            ("cluster-critical", &["burstable"], (200, 200, 2), None),
            ("cluster-critical", &["burstable", "best-effort"], (0, 0, 1), Some("best-effort")),
            ("cluster-critical", &["burstable", "guaranteed"], (0, 0, 1), Some("burstable")),
            (
                "cluster-critical",
                &["best-effort", "high-burstable", "burstable"],
                (100, 100, 0),
                Some("burstable"),
            ),
            (
                "cluster-critical",
                &["best-effort", "burstable", "high-burstable"],
                (150, 150, 0),
                Some("high-burstable"),
            ),
            ("cluster-critical", &all, (350, 350, 0), Some("high-burstable burstable")),
            ("cluster-critical", &all, (0, 550, 0), Some("high-burstable high-guaranteed")),
            ("cluster-critical", &["best-effort"], (0, 1, 0), None),
            ("node-critical", &["cluster-critical"], (100, 0, 0), Some("cluster-critical")),
            ("cluster-critical", &["node-critical"], (100, 0, 0), None),
            ("cluster-critical", &["cluster-critical"], (0, 0, 1), None),
            // A pod without a priority preempts only if it is critical.
            ("burstable", &["best-effort"], (0, 0, 1), None),
        ] {
            let others: Vec<Arc<Pod>> = others.iter().map(|name| pod(name)).collect();
            let chosen = choose(&pod(preemptor), &others, &shortages(milli, mib, pods)).ok();
            let names = |pods: Vec<Arc<Pod>>| {
                pods.iter().map(|pod| pod.name().to_owned()).collect::<Vec<_>>().join(" ")
            };
            let context = format!("{preemptor} {milli} {mib} {pods}");
            assert_eq!(chosen.map(names).as_deref(), expected, "{context}");
        }
    }

    #[test]
    fn what_cannot_be_freed_is_named() {
        let others = [pod("burstable")];
        let error = choose(&pod("cluster-critical"), &others, &shortages(250, 50, 2));
        let text = error.expect_err("too little").to_string();
        assert!(text.ends_with("[(res: cpu, q: 150), (res: pods, q: 1), ]"), "{text}");
    }
}
