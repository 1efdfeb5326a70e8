//! Decides when the node has too little of a resource, and which pod has to go for it.
//! Upstream: `pkg/kubelet/eviction`.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kube_controller_manager::objects::{Format, Quantity};
use kube_controller_manager::options::parse_duration;

use crate::cgroups::{Hierarchy, pod_amount, usage};
use crate::pod::{Container, Pod, PodExt, is_restartable_init, quantity};
use crate::stats::{self, Fs, PodStats};

/// The reason in the status of a pod that is evicted.
pub const REASON: &str = "Evicted";

/// From this priority on, a pod is critical. Upstream: `SystemCriticalPriority`.
const CRITICAL_PRIORITY: i32 = 2_000_000_000;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Signal {
    /// The memory of the machine, and that of all pods together. Memory comes first.
    MemoryAvailable,
    AllocatableMemoryAvailable,
    NodeFsAvailable,
    NodeFsInodesFree,
    ImageFsAvailable,
    ImageFsInodesFree,
    PidAvailable,
}

impl Signal {
    /// Those that a configuration may name.
    const NAMED: [Signal; 7] = [
        Signal::MemoryAvailable,
        Signal::AllocatableMemoryAvailable,
        Signal::NodeFsAvailable,
        Signal::NodeFsInodesFree,
        Signal::ImageFsAvailable,
        Signal::ImageFsInodesFree,
        Signal::PidAvailable,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Signal::MemoryAvailable => "memory.available",
            Signal::AllocatableMemoryAvailable => "allocatableMemory.available",
            Signal::NodeFsAvailable => "nodefs.available",
            Signal::NodeFsInodesFree => "nodefs.inodesFree",
            Signal::ImageFsAvailable => "imagefs.available",
            Signal::ImageFsInodesFree => "imagefs.inodesFree",
            Signal::PidAvailable => "pid.available",
        }
    }

    fn parse(name: &str) -> Result<Signal, String> {
        let found = Signal::NAMED.into_iter().find(|signal| signal.name() == name);
        found.ok_or_else(|| format!("unsupported eviction signal {name}"))
    }

    /// The resource that is low.
    pub fn resource(self) -> &'static str {
        match self {
            Signal::MemoryAvailable | Signal::AllocatableMemoryAvailable => "memory",
            Signal::NodeFsAvailable | Signal::ImageFsAvailable => "ephemeral-storage",
            Signal::NodeFsInodesFree | Signal::ImageFsInodesFree => "inodes",
            Signal::PidAvailable => "pids",
        }
    }

    /// Whether to remove unused containers and images before pods. `has_image_disk`: images have a
    /// disk of their own. Upstream: `buildSignalToNodeReclaimFuncs`.
    pub fn reclaims_images(self, has_image_disk: bool) -> bool {
        match self {
            Signal::ImageFsAvailable | Signal::ImageFsInodesFree => true,
            Signal::NodeFsAvailable | Signal::NodeFsInodesFree => !has_image_disk,
            _ => false,
        }
    }
}

/// An amount, or a part of the capacity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    Units(u64),
    /// 1: all of it.
    Part(f32),
}

impl Amount {
    fn of(self, capacity: u64) -> u64 {
        match self {
            Amount::Units(units) => units,
            Amount::Part(part) => (capacity as f64 * f64::from(part)) as u64,
        }
    }
}

/// Below this value, the node has too little.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Threshold {
    pub signal: Signal,
    pub value: Amount,
    /// How long a soft threshold may be crossed; `None`: a hard one.
    pub grace: Option<Duration>,
    pub min_reclaim: Option<Amount>,
}

/// The maps of a configuration, by signal.
#[derive(Clone, Copy, Debug)]
pub struct Statements<'a> {
    pub hard: &'a BTreeMap<String, String>,
    pub soft: &'a BTreeMap<String, String>,
    pub soft_grace: &'a BTreeMap<String, String>,
    pub min_reclaim: &'a BTreeMap<String, String>,
}

/// The hard thresholds of a configuration that names none. Upstream: `DefaultEvictionHard`.
pub fn default_hard() -> BTreeMap<String, String> {
    let default = [
        ("memory.available", "100Mi"),
        ("nodefs.available", "10%"),
        ("nodefs.inodesFree", "5%"),
        ("imagefs.available", "15%"),
        ("imagefs.inodesFree", "5%"),
    ];
    default.into_iter().map(|(signal, value)| (signal.to_owned(), value.to_owned())).collect()
}

/// Parses thresholds. `limits_pods`: all pods together have a limit of memory, which has a threshold
/// too. Upstream: `ParseThresholdConfig`.
///
/// # Errors
/// One line that names the signal.
pub fn thresholds(of: Statements<'_>, limits_pods: bool) -> Result<Vec<Threshold>, String> {
    let mut thresholds = Vec::new();
    for (name, text) in of.hard {
        let signal = Signal::parse(name)?;
        let value = value(signal, text)?;
        thresholds.extend(value.map(|value| Threshold {
            signal,
            value,
            grace: None,
            min_reclaim: None,
        }));
    }
    for (name, text) in of.soft {
        let signal = Signal::parse(name)?;
        let Some(value) = value(signal, text)? else { continue };
        let grace = of.soft_grace.get(name).ok_or_else(|| {
            format!("grace period must be specified for the soft eviction threshold {name}")
        })?;
        let grace = parse_duration(grace)
            .map_err(|error| format!("the eviction grace period of {name}: {error}"))?;
        thresholds.push(Threshold { signal, value, grace: Some(grace), min_reclaim: None });
    }
    for name in of.soft_grace.keys() {
        Signal::parse(name)?;
    }
    for (name, text) in of.min_reclaim {
        let signal = Signal::parse(name)?;
        let amount = amount(text)
            .map_err(|fault| format!("eviction minimum reclaim {name}: {text:?}: {fault}"))?;
        for threshold in thresholds.iter_mut().filter(|threshold| threshold.signal == signal) {
            threshold.min_reclaim = Some(amount);
        }
    }
    let memory = thresholds
        .iter()
        .find(|threshold| threshold.signal == Signal::MemoryAvailable && threshold.grace.is_none());
    let of_pods = memory
        .filter(|_| limits_pods)
        .map(|threshold| Threshold { signal: Signal::AllocatableMemoryAvailable, ..*threshold });
    thresholds.extend(of_pods);
    Ok(thresholds)
}

/// The bytes of memory below which pods are evicted at once. Upstream: `hardEvictionReservation`.
pub fn reserved_memory(thresholds: &[Threshold], capacity: i64) -> i64 {
    let is_hard = |one: &&Threshold| one.signal == Signal::MemoryAvailable && one.grace.is_none();
    let capacity = u64::try_from(capacity).unwrap_or(0);
    let bytes = thresholds.iter().find(is_hard).map_or(0, |hard| hard.value.of(capacity));
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// `None`: the threshold is off.
fn value(signal: Signal, text: &str) -> Result<Option<Amount>, String> {
    if matches!(text, "0%" | "100%") {
        return Ok(None);
    }
    let fault = |fault: String| format!("eviction threshold {}: {text:?}: {fault}", signal.name());
    match amount(text).map_err(fault)? {
        Amount::Units(0) => Err(fault("must be positive".to_owned())),
        amount => Ok(Some(amount)),
    }
}

fn amount(text: &str) -> Result<Amount, String> {
    if let Some(percent) = text.strip_suffix('%') {
        let percent: f32 = percent.parse().map_err(|_| "not a percentage".to_owned())?;
        return match percent {
            0.0..=100.0 => Ok(Amount::Part(percent / 100.0)),
            _ => Err("must be >= 0% and <= 100%".to_owned()),
        };
    }
    let amount = text.parse::<Quantity>().map_err(|error| error.to_string())?;
    u64::try_from(amount.value()).map(Amount::Units).map_err(|_| "must be positive".to_owned())
}

/// What a signal shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observation {
    pub available: u64,
    pub capacity: u64,
}

/// The observations of a moment; signals without one are not judged.
pub type Observations = BTreeMap<Signal, Observation>;

/// Observes the machine. `root` and `images`: folders on the disks of the node and of images.
/// Whether these are different disks is returned too. Blocks. Upstream: `makeSignalObservations`.
///
/// # Errors
/// One line: a folder does not exist, or cgroups are not mounted.
pub fn observe(
    root: &Path,
    images: &str,
    memory_bytes: u64,
    all_pods: Option<&str>,
) -> Result<(Observations, bool), String> {
    use std::os::unix::fs::MetadataExt;
    let hierarchy = Hierarchy::detect()?;
    let mut found = Observations::new();
    let machine = usage::machine_memory(&hierarchy, memory_bytes);
    let available = machine.available().unwrap_or_default();
    found.insert(Signal::MemoryAvailable, Observation { available, capacity: memory_bytes });
    let of_pods = all_pods.and_then(|path| usage::read(&hierarchy, path).memory);
    if let Some(pods) = of_pods {
        let capacity = pods.limit.unwrap_or(memory_bytes);
        let available = capacity.saturating_sub(pods.working_set);
        found.insert(Signal::AllocatableMemoryAvailable, Observation { available, capacity });
    }
    let fault = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    let mut devices = Vec::new();
    for (path, bytes, inodes) in [
        (root, Signal::NodeFsAvailable, Signal::NodeFsInodesFree),
        (Path::new(images), Signal::ImageFsAvailable, Signal::ImageFsInodesFree),
    ] {
        let stat = rustix::fs::statvfs(path).map_err(|error| fault(path, error.into()))?;
        let size = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
        let disk = Observation { available: size(stat.f_bavail), capacity: size(stat.f_blocks) };
        found.insert(bytes, disk);
        // Some file systems do not count inodes.
        if stat.f_files > 0 {
            let counted = Observation { available: stat.f_ffree, capacity: stat.f_files };
            found.insert(inodes, counted);
        }
        devices.push(std::fs::metadata(path).map_err(|error| fault(path, error))?.dev());
    }
    if let Some((running, max)) = stats::processes() {
        let (running, capacity) = (running.unsigned_abs(), max.unsigned_abs());
        let available = capacity.saturating_sub(running);
        found.insert(Signal::PidAvailable, Observation { available, capacity });
    }
    Ok((found, devices.first() != devices.last()))
}

/// Whether a threshold is crossed. With `reclaims`: with the amount on top that has to be freed.
/// Upstream: `thresholdsMet`.
fn is_met(threshold: &Threshold, observations: &Observations, reclaims: bool) -> bool {
    let Some(observed) = observations.get(&threshold.signal) else { return false };
    let extra = threshold.min_reclaim.filter(|_| reclaims);
    let wanted = threshold.value.of(observed.capacity);
    wanted.saturating_add(extra.map_or(0, |extra| extra.of(observed.capacity))) > observed.available
}

/// The thresholds that are crossed with what has to be freed on top.
pub fn unresolved(thresholds: &[Threshold], observations: &Observations) -> bool {
    thresholds.iter().any(|threshold| is_met(threshold, observations, true))
}

/// Follows thresholds over time.
#[derive(Debug)]
pub struct Watch {
    thresholds: Vec<Threshold>,
    /// Since when each threshold is crossed.
    since: Vec<Option<Duration>>,
    /// Whether it counted the last time.
    was_met: Vec<bool>,
}

impl Watch {
    pub fn new(thresholds: Vec<Threshold>) -> Watch {
        let (since, was_met) = (vec![None; thresholds.len()], vec![false; thresholds.len()]);
        Watch { thresholds, since, was_met }
    }

    pub fn thresholds(&self) -> &[Threshold] {
        &self.thresholds
    }

    /// The thresholds that count now, the most urgent first. Upstream: `synchronize`.
    pub fn observe(&mut self, observations: &Observations, now: Duration) -> Vec<Threshold> {
        let mut met = Vec::new();
        for (at, threshold) in self.thresholds.iter().enumerate() {
            let is_crossed = is_met(threshold, observations, false)
                || self.was_met[at] && is_met(threshold, observations, true);
            let since = match is_crossed {
                true => Some(self.since[at].unwrap_or(now)),
                false => None,
            };
            self.since[at] = since;
            let lasts = since.is_some_and(|since| {
                now.saturating_sub(since) >= threshold.grace.unwrap_or_default()
            });
            self.was_met[at] = lasts;
            if lasts {
                met.push(*threshold);
            }
        }
        met.sort_by_key(|threshold| threshold.signal);
        met
    }
}

/// Whether a pod is never evicted: static pods would not come back. Upstream: `IsCriticalPod`.
pub fn is_critical(pod: &Pod) -> bool {
    pod.is_static()
        || pod.annotation(crate::pod::CONFIG_MIRROR).is_some()
        || pod.spec().priority.is_some_and(|priority| priority >= CRITICAL_PRIORITY)
}

/// A pod with what it uses.
pub struct Candidate<'a> {
    pub pod: Arc<Pod>,
    pub stats: Option<&'a PodStats>,
}

fn used(fs: Option<&Fs>, inodes: bool) -> u64 {
    fs.and_then(|fs| if inodes { fs.inodes_used } else { fs.used_bytes }).unwrap_or(0)
}

/// What a pod uses of a resource.
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
        _ => 0,
    };
    candidates.sort_by_cached_key(|candidate| {
        let pod = &candidate.pod;
        let priority = pod.spec().priority.unwrap_or(0);
        let excess = candidate
            .stats
            .map(|stats| i128::from(used_of(stats, resource)) - i128::from(request(pod)));
        // Of a pod without numbers nothing is known: it comes first.
        let exceeds = excess.is_none_or(|excess| excess > 0) || resource == "pids";
        (excess.is_some(), !exceeds, priority, std::cmp::Reverse(excess.unwrap_or(0)))
    });
}

/// The message in the status of a pod that is evicted for a resource. Upstream: `evictionMessage`.
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

fn bytes(bytes: u64) -> String {
    let milli = i64::try_from(bytes).unwrap_or(i64::MAX).saturating_mul(1000);
    Quantity::from_milli(milli, Format::BinarySi).to_string()
}

/// Whether a pod limits what it may use of the node's disk.
pub fn has_local_limits(pod: &Pod) -> bool {
    let volumes = pod.spec().volumes.iter().flatten();
    let mut volumes = volumes.filter_map(|volume| volume.empty_dir.as_ref());
    volumes.any(|empty| empty.size_limit.is_some())
        || pod.all_containers().any(|container| storage_limit(container).is_some())
}

fn storage_limit(container: &Container) -> Option<Quantity> {
    let limits = container.resources.as_ref()?.limits.as_ref()?;
    quantity(limits, "ephemeral-storage").filter(|limit| limit.is_positive())
}

/// Which local limit a pod exceeds: the signal and the message. Upstream: `localStorageEviction`.
pub fn exceeded_limit(pod: &Pod, stats: &PodStats) -> Option<(&'static str, String)> {
    let exceeds = |used: u64, limit: Quantity| i128::from(used) > i128::from(limit.value());
    for volume in pod.spec().volumes.iter().flatten() {
        let limit = volume.empty_dir.as_ref().and_then(|empty| empty.size_limit.as_ref());
        let limit = limit.and_then(|limit| limit.0.parse::<Quantity>().ok());
        let used = stats.volumes.iter().find(|used| used.name == volume.name);
        if let (Some(limit), Some(used)) = (limit.filter(|limit| limit.is_positive()), used)
            && exceeds(used.fs.used_bytes.unwrap_or(0), limit)
        {
            let (name, limit) = (&volume.name, limit.to_string());
            let message =
                format!("Usage of EmptyDir volume {name:?} exceeds the limit {limit:?}. ");
            return Some(("emptydirfs.limit", message));
        }
    }
    let limit = pod_amount(pod, "ephemeral-storage", true);
    let total = used(stats.ephemeral_storage.as_ref(), false);
    if limit > 0 && i128::from(total) > i128::from(limit) {
        let limit = bytes(limit.unsigned_abs());
        let message = format!(
            "Pod ephemeral local storage usage exceeds the total limit of containers {limit}. "
        );
        return Some(("ephemeralpodfs.limit", message));
    }
    let sidecars = pod.init_containers().iter().filter(|init| is_restartable_init(init));
    for container in pod.spec().containers.iter().chain(sidecars) {
        let own = stats.containers.iter().find(|own| own.name == container.name);
        let used = used(own.and_then(|own| own.logs.as_ref()), false);
        if let Some(limit) = storage_limit(container).filter(|limit| exceeds(used, *limit)) {
            let (name, limit) = (&container.name, limit.to_string());
            let message =
                format!("Container {name} exceeded its local ephemeral storage limit {limit:?}. ");
            return Some(("ephemeralcontainerfs.limit", message));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::stats::{ContainerStats, MemoryStats, Processes, Used, VolumeStats};

    fn map(value: &Value) -> BTreeMap<String, String> {
        serde_json::from_value(value.clone()).expect("a map")
    }

    fn parse(
        hard: Value,
        soft: Value,
        grace: Value,
        least: Value,
    ) -> Result<Vec<Threshold>, String> {
        let [hard, soft, grace, least] = [&hard, &soft, &grace, &least].map(map);
        let statements =
            Statements { hard: &hard, soft: &soft, soft_grace: &grace, min_reclaim: &least };
        thresholds(statements, true)
    }

    #[test]
    fn thresholds_are_parsed() {
        let all = parse(
            json!({"memory.available": "100Mi", "nodefs.available": "10%", "pid.available": "0%"}),
            json!({"nodefs.available": "20%"}),
            json!({"nodefs.available": "90s"}),
            json!({"memory.available": "1Gi", "nodefs.available": "5%"}),
        )
        .expect("thresholds");
        let five = Some(Amount::Part(0.05));
        let memory = Threshold {
            signal: Signal::MemoryAvailable,
            value: Amount::Units(100 << 20),
            grace: None,
            min_reclaim: Some(Amount::Units(1 << 30)),
        };
        let disk = Threshold {
            signal: Signal::NodeFsAvailable,
            value: Amount::Part(0.1),
            grace: None,
            min_reclaim: five,
        };
        let soft =
            Threshold { value: Amount::Part(0.2), grace: Some(Duration::from_secs(90)), ..disk };
        let of_pods = Threshold { signal: Signal::AllocatableMemoryAvailable, ..memory };
        assert_eq!(all, [memory, disk, soft, of_pods]);
        let soft_memory = Threshold { grace: soft.grace, ..memory };
        for (all, reserved) in [(&all[..], 100 << 20), (&[soft_memory, disk], 0), (&[], 0)] {
            assert_eq!(reserved_memory(all, 1 << 30), reserved);
        }
        let none = || json!({});
        for (hard, soft, grace, fault) in [
            (json!({"x": "1"}), none(), none(), "unsupported eviction signal x"),
            (
                json!({"memory.available": "0"}),
                none(),
                none(),
                "eviction threshold memory.available: \"0\": must be positive",
            ),
            (
                json!({"memory.available": "101%"}),
                none(),
                none(),
                "eviction threshold memory.available: \"101%\": must be >= 0% and <= 100%",
            ),
            (
                none(),
                json!({"memory.available": "1%"}),
                none(),
                "grace period must be specified for the soft eviction threshold memory.available",
            ),
        ] {
            assert_eq!(parse(hard, soft, grace, none()).err().as_deref(), Some(fault));
        }
        let default = default_hard();
        let empty = BTreeMap::new();
        let statements =
            Statements { hard: &default, soft: &empty, soft_grace: &empty, min_reclaim: &empty };
        assert_eq!(thresholds(statements, false).map(|all| all.len()), Ok(5));
    }

    #[test]
    fn thresholds_count_after_their_grace_and_until_enough_is_freed() {
        let seconds = Duration::from_secs;
        let hard = Threshold {
            signal: Signal::NodeFsAvailable,
            value: Amount::Units(100),
            grace: None,
            min_reclaim: Some(Amount::Units(50)),
        };
        let soft = Threshold {
            signal: Signal::MemoryAvailable,
            value: Amount::Part(0.5),
            grace: Some(seconds(30)),
            min_reclaim: None,
        };
        let mut watch = Watch::new(vec![hard, soft]);
        // Time, disk, memory: the signals that count.
        for (at, disk, memory, expected) in [
            (0, 100, 500, &[][..]),
            (10, 99, 499, &[Signal::NodeFsAvailable]),
            (20, 149, 499, &[Signal::NodeFsAvailable]),
            (30, 150, 499, &[]),
            (40, 149, 499, &[Signal::MemoryAvailable]),
            (50, 99, 499, &[Signal::MemoryAvailable, Signal::NodeFsAvailable]),
            (60, 200, 500, &[]),
            (70, 200, 499, &[]),
        ] {
            let observations = Observations::from([
                (Signal::NodeFsAvailable, Observation { available: disk, capacity: 1000 }),
                (Signal::MemoryAvailable, Observation { available: memory, capacity: 1000 }),
            ]);
            let met = watch.observe(&observations, seconds(at));
            let signals: Vec<Signal> = met.iter().map(|threshold| threshold.signal).collect();
            assert_eq!(signals, expected, "{at}");
        }
        assert!(watch.observe(&Observations::new(), seconds(100)).is_empty());
    }

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

    #[test]
    fn local_limits_are_compared_with_usage() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p"},
            "spec": {
                "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Mi"}}],
                "initContainers": [
                    {"name": "init", "resources": {"limits": {"ephemeral-storage": "1"}}},
                    {"name": "side", "restartPolicy": "Always",
                     "resources": {"limits": {"ephemeral-storage": "1Mi"}}},
                ],
                "containers": [
                    {"name": "a", "resources": {"limits": {"ephemeral-storage": "2Mi"}}},
                    {"name": "b", "resources": {"limits": {"ephemeral-storage": "3Mi"}}},
                ],
            },
        }))
        .expect("a pod");
        let fs = |mib: u64| Fs { used_bytes: Some(mib << 20), ..Default::default() };
        let exceeds = |name: &str, limit: &str| {
            format!("Container {name} exceeded its local ephemeral storage limit {limit:?}. ")
        };
        let of_volume = "Usage of EmptyDir volume \"v\" exceeds the limit \"1Mi\". ".to_owned();
        let of_pod =
            "Pod ephemeral local storage usage exceeds the total limit of containers 6Mi. ";
        for (volume, container, logs, total, expected) in [
            (1, "a", 2, 6, None),
            (2, "a", 2, 6, Some(of_volume)),
            (1, "a", 2, 7, Some(of_pod.to_owned())),
            (1, "a", 3, 6, Some(exceeds("a", "2Mi"))),
            (1, "side", 1, 6, None),
            (1, "side", 2, 6, Some(exceeds("side", "1Mi"))),
            (1, "init", 2, 6, None),
        ] {
            let stats = PodStats {
                containers: vec![ContainerStats {
                    name: container.to_owned(),
                    logs: Some(fs(logs)),
                    ..Default::default()
                }],
                volumes: vec![VolumeStats { fs: fs(volume), name: "v".to_owned() }],
                ephemeral_storage: Some(fs(total)),
                ..Default::default()
            };
            let found = exceeded_limit(&pod, &stats).map(|(_, message)| message);
            assert_eq!(found, expected, "{volume} {container} {logs} {total}");
        }
        assert!(has_local_limits(&pod));
        assert!(!has_local_limits(&Pod::default()));
    }
}
