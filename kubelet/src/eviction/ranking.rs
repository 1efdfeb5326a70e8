//! Which pod goes first, and what its status says. Upstream: `eviction/helpers.go`.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use kube_controller_manager::objects::Quantity;

use super::thresholds::{Signal, Threshold};
use super::watch::Observations;
use super::{bytes, used};
use crate::cgroups::pod_amount;
use crate::pod::{Pod, PodExt, quantity};
use crate::stats::{ContainerStats, PodStats};

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

/// Returns what a pod uses of the resource of a signal. Where images have a disk of their own, the
/// layers of containers are on it, and logs and volumes are on the node's. Upstream:
/// `buildSignalToRankFunc`.
fn used_of(stats: &PodStats, signal: Signal, has_image_disk: bool) -> u64 {
    let resource = signal.resource();
    match resource {
        "memory" => stats.used.memory.as_ref().map_or(0, |memory| memory.working_set_bytes),
        "pids" => stats.processes.as_ref().map_or(0, |processes| processes.process_count),
        resource => {
            let inodes = resource == "inodes";
            let all = used(stats.ephemeral_storage.as_ref(), inodes);
            let layers = stats.containers.iter().map(|one| used(one.rootfs.as_ref(), inodes));
            let layers = layers.fold(0, u64::saturating_add);
            match (has_image_disk, signal.is_of_images()) {
                (false, _) => all,
                (true, true) => layers,
                (true, false) => all.saturating_sub(layers),
            }
        }
    }
}

/// Orders pods: the first is evicted first. Those that use more than they requested, then those of
/// low priority, then those that use the most above their request. Of process ids, the priority
/// decides first. `has_image_disk`: images have a disk of their own.
/// Upstream: `rankMemoryPressure`, `rankDiskPressureFunc`, `rankPIDPressure`.
pub fn rank(candidates: &mut [Candidate<'_>], signal: Signal, has_image_disk: bool) {
    let resource = signal.resource();
    let request = |pod: &Pod| match resource {
        "memory" | "ephemeral-storage" => pod_amount(pod, resource, false),
        // Pods cannot request inodes and process ids.
        _ => 0,
    };
    candidates.sort_by_cached_key(|candidate| {
        let pod = &candidate.pod;
        let priority = pod.spec().priority.unwrap_or(0);
        let excess = candidate.stats.map(|stats| {
            i128::from(used_of(stats, signal, has_image_disk)) - i128::from(request(pod))
        });
        // The use of a pod without numbers is unknown: it comes first. For process ids upstream
        // ranks by priority and use alone.
        let by_use = excess.filter(|_| resource != "pids");
        let exceeds = by_use.is_none_or(|excess| excess > 0);
        let is_known = excess.is_some();
        (by_use.is_some(), !exceeds, priority, is_known, Reverse(excess.unwrap_or(0)))
    });
}

/// Why a pod is evicted: the message of its status and event, and the event's annotations.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Explanation {
    pub message: String,
    pub annotations: BTreeMap<String, String>,
}

/// Explains the eviction of a pod for a resource: the threshold, and what the pod and its
/// containers use above their requests. Upstream: `evictionMessage`.
pub fn explain(
    candidate: &Candidate<'_>,
    met: &[Threshold],
    resource: &str,
    observations: &Observations,
) -> Explanation {
    let mut message = format!("The node was low on resource: {resource}. ");
    message.extend(threshold_text(met, resource, observations));
    let Some(stats) = candidate.stats else {
        return Explanation { message, annotations: BTreeMap::new() };
    };
    let pod = &candidate.pod;
    let mut annotations = vec![("starved_resource", resource.to_owned())];
    if let Some(usage) = usage_of_pod(pod, stats, resource) {
        message.push_str(&usage.text("Pod", resource));
        annotations.push(("offending_pod", usage.name.to_owned()));
        annotations.push(("offending_pod_usage", bytes(usage.used)));
    }
    let containers = excessive_containers(pod, stats, resource);
    message.extend(containers.iter().map(|usage| usage.text("Container", resource)));
    let join = |of: &dyn Fn(&Usage<'_>) -> String| {
        containers.iter().map(of).collect::<Vec<String>>().join(",")
    };
    annotations.push(("offending_containers", join(&|usage| usage.name.to_owned())));
    annotations.push(("offending_containers_usage", join(&|usage| bytes(usage.used))));
    let annotations = annotations.into_iter().map(|(key, value)| (key.to_owned(), value));
    Explanation { message, annotations: annotations.collect() }
}

/// Says which threshold of a resource is met, and what is available. `None`: none is met.
fn threshold_text(
    met: &[Threshold],
    resource: &str,
    observations: &Observations,
) -> Option<String> {
    let threshold = met.iter().find(|threshold| threshold.signal.resource() == resource)?;
    let observed = observations.get(&threshold.signal)?;
    let is_bytes = matches!(resource, "memory" | "ephemeral-storage");
    let shown = |units| if is_bytes { bytes(units) } else { units.to_string() };
    let (wanted, available) = (threshold.value.of(observed.capacity), observed.available);
    Some(format!("Threshold quantity: {}, available: {}. ", shown(wanted), shown(available)))
}

/// The bytes that a pod or container uses, and its request.
struct Usage<'a> {
    name: &'a str,
    used: u64,
    request: Option<Quantity>,
}

impl Usage<'_> {
    /// Returns the sentence of the message. `what`: `Pod` or `Container`.
    fn text(&self, what: &str, resource: &str) -> String {
        let request = self.request.map_or("0".to_owned(), |request| request.to_string());
        format!(
            "{what} {} was using {}, request is {request}, has larger consumption of {resource}. ",
            self.name,
            bytes(self.used)
        )
    }
}

/// Returns the memory that a pod with a request of its own uses, as upstream also if that is less
/// than the request. `None`: it has no such request, or the resource is another one.
fn usage_of_pod<'a>(pod: &'a Pod, stats: &PodStats, resource: &str) -> Option<Usage<'a>> {
    let requests = pod.spec().resources.as_ref()?.requests.as_ref()?;
    let request = quantity(requests, resource).filter(|_| resource == "memory")?;
    let used = stats.used.memory.as_ref()?.working_set_bytes;
    Some(Usage { name: pod.name(), used, request: Some(request) })
}

/// Lists the containers that use more than they requested. Ephemeral ones have no requests and are
/// left out, as upstream.
fn excessive_containers<'a>(pod: &'a Pod, stats: &PodStats, resource: &str) -> Vec<Usage<'a>> {
    let used_of = |container: &ContainerStats| match resource {
        "memory" => container.used.memory.as_ref().map(|memory| memory.working_set_bytes),
        "ephemeral-storage" => {
            let layer = container.rootfs.as_ref()?.used_bytes?;
            Some(layer.saturating_add(container.logs.as_ref()?.used_bytes?))
        }
        _ => None,
    };
    let usages = stats.containers.iter().filter_map(|container| {
        let (used, definition) = (used_of(container)?, pod.container(&container.name)?);
        let requests = definition.resources.as_ref().and_then(|lists| lists.requests.as_ref());
        let request = requests.and_then(|requests| quantity(requests, resource));
        Some(Usage { name: &definition.name, used, request })
    });
    let requested = |usage: &Usage<'_>| usage.request.map_or(0, |request| request.value());
    usages.filter(|usage| i128::from(usage.used) > i128::from(requested(usage))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::thresholds::Amount;
    use super::super::watch::Observation;
    use super::*;
    use crate::stats::{Fs, MemoryStats, Processes, Used};

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
        let by = |signal: Signal| {
            let mut candidates: Vec<Candidate<'_>> = measured
                .iter()
                .map(|(pod, stats)| Candidate { pod: pod.clone(), stats: Some(stats) })
                .collect();
            candidates.push(Candidate { pod: pod("unknown", 9, "1"), stats: None });
            rank(&mut candidates, signal, false);
            let names = candidates.iter().map(|candidate| candidate.pod.name().to_owned());
            names.collect::<Vec<_>>().join(" ")
        };
        let expected = "unknown low-far-above low-above high-far-above low-within high-within";
        assert_eq!(by(Signal::MemoryAvailable), expected);
        assert_eq!(by(Signal::NodeFsAvailable), expected);
        assert_eq!(
            by(Signal::PidAvailable),
            "low-far-above low-above low-within unknown high-far-above high-within"
        );
    }

    #[test]
    fn pods_are_ranked_by_what_they_have_on_the_disk_of_the_signal() {
        // The name, the bytes of its container's layer, and those of its logs and volumes.
        let measured = [("layer", 50, 10), ("volume", 0, 100)].map(|(name, layer, rest)| {
            let fs = |bytes: u64| Fs {
                used_bytes: Some(bytes),
                inodes_used: Some(bytes),
                ..Default::default()
            };
            let container = ContainerStats { rootfs: Some(fs(layer)), ..Default::default() };
            let stats = PodStats {
                containers: vec![container],
                ephemeral_storage: Some(fs(layer + rest)),
                ..Default::default()
            };
            (pod(name, 0, "0"), stats)
        });
        for (signal, has_image_disk, first) in [
            (Signal::NodeFsAvailable, false, "volume"),
            (Signal::ImageFsAvailable, false, "volume"),
            (Signal::NodeFsAvailable, true, "volume"),
            (Signal::NodeFsInodesFree, true, "volume"),
            (Signal::ImageFsAvailable, true, "layer"),
            (Signal::ImageFsInodesFree, true, "layer"),
        ] {
            let mut candidates: Vec<Candidate<'_>> = measured
                .iter()
                .map(|(pod, stats)| Candidate { pod: pod.clone(), stats: Some(stats) })
                .collect();
            rank(&mut candidates, signal, has_image_disk);
            let of_first = candidates.first().map(|candidate| candidate.pod.name());
            assert_eq!(of_first, Some(first), "{signal:?} {has_image_disk}");
        }
        assert_eq!(used_of(&measured[0].1, Signal::NodeFsAvailable, true), 10);
    }

    /// A pod with a request of its own and containers with these requests, all for `resource`.
    fn pod_of(resource: &str, own: Option<&str>, containers: &[(&str, &str)]) -> Arc<Pod> {
        let requests = |request: &str| json!({"requests": {resource: request}});
        let definition = |&(name, request): &(&str, &str)| {
            let own = Some(request).filter(|request| !request.is_empty());
            json!({"name": name, "resources": own.map(requests)})
        };
        let containers: Vec<_> = containers.iter().map(definition).collect();
        let pod = json!({
            "metadata": {"name": "p", "uid": "p"},
            "spec": {
                "resources": own.map(requests),
                "initContainers": containers[..1],
                "containers": containers[1..],
            },
        });
        Arc::new(serde_json::from_value(pod).expect("a pod"))
    }

    /// Usage of the containers `i`, `a`, `b` and `e`: each has this much in memory, in its
    /// layer and in its logs.
    fn usages(mib: [u64; 4]) -> PodStats {
        let fs = |mib: u64| Fs { used_bytes: Some(mib << 20), ..Default::default() };
        let used = |mib: u64| Used {
            memory: Some(MemoryStats { working_set_bytes: mib << 20, ..Default::default() }),
            ..Default::default()
        };
        let container = |(name, mib): (&str, u64)| ContainerStats {
            name: name.to_owned(),
            used: used(mib),
            rootfs: Some(fs(mib)),
            logs: Some(fs(mib)),
            ..Default::default()
        };
        PodStats {
            used: used(mib.iter().sum()),
            containers: ["i", "a", "b", "e"].into_iter().zip(mib).map(container).collect(),
            ..Default::default()
        }
    }

    #[test]
    fn eviction_is_explained_by_the_threshold_and_what_exceeds_requests() {
        let requests = [("i", "1Mi"), ("a", ""), ("b", "8Mi")];
        // The ephemeral container is not in the definition.
        let known = Some(usages([2, 3, 4, 9]));
        let larger = |what: &str, usage: &str, request: &str, resource: &str| {
            format!(
                "{what} was using {usage}, request is {request}, has larger consumption of \
                 {resource}. "
            )
        };
        let of_memory = |what, usage, request| larger(what, usage, request, "memory");
        let of_disk = |what, usage, request| larger(what, usage, request, "ephemeral-storage");
        let none = Vec::<(&str, &str)>::new;
        for (signal, own, stats, text, expected) in [
            (Signal::MemoryAvailable, None, None, String::new(), none()),
            (
                Signal::MemoryAvailable,
                None,
                known.as_ref(),
                of_memory("Container i", "2Mi", "1Mi") + &of_memory("Container a", "3Mi", "0"),
                vec![
                    ("offending_containers", "i,a"),
                    ("offending_containers_usage", "2Mi,3Mi"),
                    ("starved_resource", "memory"),
                ],
            ),
            (
                Signal::AllocatableMemoryAvailable,
                Some("100Mi"),
                known.as_ref(),
                of_memory("Pod p", "18Mi", "100Mi")
                    + &of_memory("Container i", "2Mi", "1Mi")
                    + &of_memory("Container a", "3Mi", "0"),
                vec![
                    ("offending_containers", "i,a"),
                    ("offending_containers_usage", "2Mi,3Mi"),
                    ("offending_pod", "p"),
                    ("offending_pod_usage", "18Mi"),
                    ("starved_resource", "memory"),
                ],
            ),
            (
                Signal::ImageFsAvailable,
                Some("1Mi"),
                known.as_ref(),
                of_disk("Container i", "4Mi", "1Mi") + &of_disk("Container a", "6Mi", "0"),
                vec![
                    ("offending_containers", "i,a"),
                    ("offending_containers_usage", "4Mi,6Mi"),
                    ("starved_resource", "ephemeral-storage"),
                ],
            ),
            (
                Signal::PidAvailable,
                None,
                known.as_ref(),
                String::new(),
                vec![
                    ("offending_containers", ""),
                    ("offending_containers_usage", ""),
                    ("starved_resource", "pids"),
                ],
            ),
        ] {
            let resource = signal.resource();
            let candidate = Candidate { pod: pod_of(resource, own, &requests), stats };
            let (value, min_reclaim) = (Amount::Units(100 << 20), None);
            let threshold = Threshold { signal, value, grace: None, min_reclaim };
            let observed = Observation { available: 5000, capacity: 1 << 30 };
            let observations = Observations::from([(signal, observed)]);
            let found = explain(&candidate, &[threshold], resource, &observations);
            let wanted = if resource == "pids" { "104857600" } else { "100Mi" };
            let message = format!(
                "The node was low on resource: {resource}. Threshold quantity: {wanted}, \
                 available: 5000. {text}"
            );
            assert_eq!(found.message, message);
            let annotations = found.annotations.iter().map(|(key, value)| (&**key, &**value));
            assert_eq!(annotations.collect::<Vec<_>>(), expected, "{message}");
        }
    }
}
