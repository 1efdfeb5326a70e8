//! Which pod goes first, and what its status says. Upstream: `eviction/helpers.go`.

use std::sync::Arc;

use super::thresholds::Threshold;
use super::watch::Observations;
use super::{bytes, used};
use crate::cgroups::pod_amount;
use crate::pod::{Pod, PodExt, quantity};
use crate::stats::PodStats;

/// From this priority on, a pod is critical. Upstream: `SystemCriticalPriority`.
pub const CRITICAL_PRIORITY: i32 = 2_000_000_000;

/// Returns whether a pod is never evicted: static pods would not come back. Upstream:
/// `IsCriticalPod`.
pub fn is_critical(pod: &Pod) -> bool {
    pod.is_static()
        || pod.is_mirror()
        || pod.spec().priority.is_some_and(|priority| priority >= CRITICAL_PRIORITY)
}

/// A pod with what it uses.
pub struct Candidate<'a> {
    pub pod: Arc<Pod>,
    pub stats: Option<&'a PodStats>,
}

/// Returns what a pod uses of a resource.
fn used_of(stats: &PodStats, resource: &str) -> u64 {
    match resource {
        "memory" => stats.used.memory.as_ref().map_or(0, |memory| memory.working_set_bytes),
        "pids" => stats.processes.as_ref().map_or(0, |processes| processes.process_count),
        resource => used(stats.ephemeral_storage.as_ref(), resource == "inodes"),
    }
}

/// Orders pods: the first is evicted first. Those that use more than they requested, then those of
/// low priority, then those that use the most above their request.
/// Upstream: `rankMemoryPressure`, `rankDiskPressureFunc`, `rankPIDPressure`.
pub fn rank(candidates: &mut [Candidate<'_>], resource: &str) {
    let request = |pod: &Pod| match resource {
        "memory" | "ephemeral-storage" => pod_amount(pod, resource, false),
        // Pods cannot request inodes and process ids.
        _ => 0,
    };
    candidates.sort_by_cached_key(|candidate| {
        let pod = &candidate.pod;
        let priority = pod.spec().priority.unwrap_or(0);
        let excess = candidate
            .stats
            .map(|stats| i128::from(used_of(stats, resource)) - i128::from(request(pod)));
        // The use of a pod without numbers is unknown: it comes first. For process ids upstream
        // ranks by priority and use alone.
        let exceeds = excess.is_none_or(|excess| excess > 0) || resource == "pids";
        (excess.is_some(), !exceeds, priority, std::cmp::Reverse(excess.unwrap_or(0)))
    });
}

/// Builds the message in the status of a pod that is evicted for a resource. Upstream:
/// `evictionMessage`.
pub fn message(
    candidate: &Candidate<'_>,
    met: &[Threshold],
    resource: &str,
    observations: &Observations,
) -> String {
    let mut text = format!("The node was low on resource: {resource}. ");
    let threshold = met.iter().find(|threshold| threshold.signal.resource() == resource);
    if let Some((threshold, observed)) =
        threshold.and_then(|one| Some((one, observations.get(&one.signal)?)))
    {
        let is_bytes = matches!(resource, "memory" | "ephemeral-storage");
        let shown = |units| if is_bytes { bytes(units) } else { units.to_string() };
        let wanted = threshold.value.of(observed.capacity);
        text.push_str(&format!(
            "Threshold quantity: {}, available: {}. ",
            shown(wanted),
            shown(observed.available)
        ));
    }
    let Some(stats) = candidate.stats.filter(|_| resource == "memory") else { return text };
    for container in &stats.containers {
        let Some(definition) = candidate.pod.container(&container.name) else { continue };
        let requests = definition.resources.as_ref().and_then(|lists| lists.requests.as_ref());
        let request = requests.and_then(|requests| quantity(requests, resource));
        let used = container.used.memory.as_ref().map_or(0, |memory| memory.working_set_bytes);
        let requested = request.map_or(0, |request| request.value());
        if i128::from(used) > i128::from(requested) {
            let request = request.map_or("0".to_owned(), |request| request.to_string());
            text.push_str(&format!(
                "Container {} was using {}, request is {request}, has larger consumption of \
                 {resource}. ",
                container.name,
                bytes(used)
            ));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::thresholds::{Amount, Signal};
    use super::super::watch::Observation;
    use super::*;
    use crate::stats::{ContainerStats, Fs, MemoryStats, Processes, Used};

    fn pod(name: &str, priority: i32, request: &str) -> Arc<Pod> {
        let pod = json!({
            "metadata": {"name": name, "uid": name},
            "spec": {"priority": priority, "containers": [{
                "name": "c",
                "resources": {"requests": {"memory": request, "ephemeral-storage": request}},
            }]},
        });
        Arc::new(serde_json::from_value(pod).expect("a pod"))
    }

    fn stats(amount: u64) -> PodStats {
        let used = || Used {
            memory: Some(MemoryStats { working_set_bytes: amount, ..Default::default() }),
            ..Default::default()
        };
        let fs = Fs { used_bytes: Some(amount), inodes_used: Some(amount), ..Default::default() };
        let container = ContainerStats { name: "c".to_owned(), used: used(), ..Default::default() };
        PodStats {
            used: used(),
            containers: vec![container],
            ephemeral_storage: Some(fs),
            processes: Some(Processes { process_count: amount }),
            ..Default::default()
        }
    }

    #[test]
    fn pods_are_ranked_by_excess_and_priority() {
        let all = [
            ("low-within", 0, "100", 90),
            ("low-above", 0, "100", 110),
            ("low-far-above", 0, "100", 500),
            ("high-far-above", 9, "100", 900),
            ("high-within", 9, "900", 800),
        ];
        let measured: Vec<(Arc<Pod>, PodStats)> = all
            .into_iter()
            .map(|(name, priority, request, used)| (pod(name, priority, request), stats(used)))
            .collect();
        let by = |resource: &str| {
            let mut candidates: Vec<Candidate<'_>> = measured
                .iter()
                .map(|(pod, stats)| Candidate { pod: pod.clone(), stats: Some(stats) })
                .collect();
            candidates.push(Candidate { pod: pod("unknown", 9, "1"), stats: None });
            rank(&mut candidates, resource);
            let names = candidates.iter().map(|candidate| candidate.pod.name().to_owned());
            names.collect::<Vec<_>>().join(" ")
        };
        let expected = "unknown low-far-above low-above high-far-above low-within high-within";
        assert_eq!(by("memory"), expected);
        assert_eq!(by("ephemeral-storage"), expected);
        assert_eq!(
            by("pids"),
            "unknown low-far-above low-above low-within high-far-above high-within"
        );
    }

    #[test]
    fn message_names_the_threshold_and_the_containers() {
        let measured = stats(3 << 20);
        let candidate = Candidate { pod: pod("p", 0, "1Mi"), stats: Some(&measured) };
        let threshold = Threshold {
            signal: Signal::MemoryAvailable,
            value: Amount::Units(100 << 20),
            grace: None,
            min_reclaim: None,
        };
        let observed = Observation { available: 5000, capacity: 1 << 30 };
        let observations = Observations::from([(Signal::MemoryAvailable, observed)]);
        assert_eq!(
            message(&candidate, &[threshold], "memory", &observations),
            "The node was low on resource: memory. Threshold quantity: 100Mi, available: 5000. \
             Container c was using 3Mi, request is 1Mi, has larger consumption of memory. "
        );
    }
}
