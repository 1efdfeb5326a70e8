//! The cgroups of the node: one for all pods, one for each class of quality of service, one for each
//! pod. Upstream: `pkg/kubelet/cm`.

pub mod details;
mod files;
mod name;
mod resources;
mod system;
mod systemd;
pub mod usage;

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io;
use std::path::Path;

use rustix::process::{Pid, Signal};

pub use files::{Error, Hierarchy};
pub use name::{Driver, Name};
pub use resources::{PERIOD, PodLimits, Resources, pod_amount, quota, shares};
pub use system::{SystemCgroups, join};

use resources::UNBOUNDED;

use self::systemd::Systemd;
use crate::node::huge_pages::PageSize;
use crate::pod::{Pod, PodExt, QosClass, Uid};

/// The cgroup of all pods, below the root. Upstream: `defaultNodeAllocatableCgroupName`.
const ALL_PODS: &str = "kubepods";
/// Upstream: `podCgroupNamePrefix`.
const POD_PREFIX: &str = "pod";

/// How the cgroups of pods are made.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `cgroupRoot`.
    pub root: String,
    pub driver: Driver,
    /// `podPidsLimit`; `None`: no limit.
    pub pids_limit: Option<i64>,
    /// The sizes of huge pages that the machine has.
    pub page_sizes: Vec<PageSize>,
}

/// The cgroups of pods by their classes. Its calls block.
#[derive(Clone, Debug)]
pub struct Cgroups {
    hierarchy: Hierarchy,
    driver: Driver,
    /// Makes the cgroups of its driver.
    systemd: Systemd,
    all_pods: Name,
    pids_limit: Option<i64>,
    page_sizes: Vec<PageSize>,
}

/// What a cgroup of many processes may use; `None`: left as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    pub milli_cpus: Option<i64>,
    pub memory_bytes: Option<i64>,
    pub pids: Option<i64>,
}

impl Limits {
    /// Returns these limits and those of huge pages as the limits of a cgroup.
    fn resources(self, huge_pages: Vec<(String, i64)>) -> Resources {
        Resources {
            cpu_shares: self.milli_cpus.map(resources::shares),
            // As with runc: 0 does not limit.
            memory: self.memory_bytes.filter(|bytes| *bytes > 0),
            pids: self.pids,
            huge_pages,
            ..Resources::default()
        }
    }
}

impl Cgroups {
    /// Creates the cgroups of pods by the driver's form of names; touches no file.
    pub fn new(settings: &Settings, hierarchy: Hierarchy) -> Cgroups {
        let root = match settings.driver {
            Driver::Cgroupfs => Name::of_cgroupfs(&settings.root),
            Driver::Systemd => Name::of_systemd(&settings.root),
        };
        Cgroups {
            hierarchy,
            driver: settings.driver,
            systemd: Systemd::default(),
            all_pods: root.child(ALL_PODS),
            pids_limit: settings.pids_limit,
            page_sizes: settings.page_sizes.clone(),
        }
    }

    /// Returns the cgroup of a class. Guaranteed pods are directly in the one of all pods.
    fn class(&self, class: QosClass) -> Name {
        match class {
            QosClass::Guaranteed => self.all_pods.clone(),
            QosClass::Burstable => self.all_pods.child("burstable"),
            QosClass::BestEffort => self.all_pods.child("besteffort"),
        }
    }

    /// Returns the mounted cgroups.
    pub fn hierarchy(&self) -> &Hierarchy {
        &self.hierarchy
    }

    /// Returns whether a pod has its cgroup.
    pub fn has_pod(&self, pod: &Pod) -> bool {
        self.hierarchy.exists(&self.pod(pod))
    }

    /// Returns the path of the cgroup of all pods below the mounts.
    pub fn all_pods(&self) -> String {
        self.all_pods.path(self.driver)
    }

    /// Returns the paths of the cgroups of the classes that have their own.
    pub fn classes(&self) -> [String; 2] {
        [QosClass::Burstable, QosClass::BestEffort].map(|class| self.class(class).path(self.driver))
    }

    /// Returns the path of a pod's cgroup below the mounts.
    pub fn pod(&self, pod: &Pod) -> String {
        self.pod_name(pod).path(self.driver)
    }

    fn pod_name(&self, pod: &Pod) -> Name {
        self.class(QosClass::of(pod)).child(&format!("{POD_PREFIX}{}", pod.uid()))
    }

    /// Returns the parent of a pod's containers, as the runtime takes it. Upstream:
    /// `GetPodCgroupParent`.
    pub fn parent(&self, pod: &Pod) -> String {
        self.pod_name(pod).parent_of_containers(self.driver)
    }

    /// Makes the cgroups of all pods and of the classes, with their limits.
    /// Upstream: `createNodeAllocatableCgroups`, `qosContainerManagerImpl.Start`.
    ///
    /// # Errors
    /// With the path that cannot be made.
    pub fn start(&self, limits: Limits) -> io::Result<()> {
        // Pods of an existing one may use more: the caller sets that limit later, and retries.
        if !self.hierarchy.exists(&self.all_pods()) {
            self.limit_pods(limits)?;
        }
        self.make(&self.class(QosClass::Burstable), &self.of_class(None))?;
        self.make(&self.class(QosClass::BestEffort), &self.of_class(Some(resources::MIN_SHARES)))
    }

    /// Limits all pods together. Upstream: `enforceNodeAllocatableCgroups`.
    ///
    /// # Errors
    /// With the path that cannot be written: for instance, they use more memory.
    pub fn limit_pods(&self, limits: Limits) -> io::Result<()> {
        let huge_pages = self.huge_pages(|size| size.capacity);
        self.make(&self.all_pods, &limits.resources(huge_pages))
    }

    /// Limits a cgroup that others have made. It may use no huge pages, as upstream. Upstream:
    /// `enforceExistingCgroup`.
    ///
    /// # Errors
    /// With the path that does not exist or cannot be written.
    pub fn limit_existing(&self, cgroup: &str, limits: Limits) -> io::Result<()> {
        let name = self.name(cgroup);
        let path = name.path(self.driver);
        if !self.hierarchy.exists(&path) {
            let text = format!("cgroup {path:?} has some missing paths");
            return Err(io::Error::new(io::ErrorKind::NotFound, text));
        }
        self.make(&name, &limits.resources(self.huge_pages(|_| 0)))
    }

    /// Parses a cgroup's name in the form of the driver.
    fn name(&self, path: &str) -> Name {
        match self.driver {
            Driver::Cgroupfs => Name::of_cgroupfs(path),
            Driver::Systemd => Name::of_systemd(path),
        }
    }

    /// Returns the limits of a class. It may use all huge pages: the cgroups of its pods limit
    /// them.
    fn of_class(&self, cpu_shares: Option<u64>) -> Resources {
        let huge_pages = self.huge_pages(|_| resources::UNBOUNDED);
        Resources { cpu_shares, huge_pages, ..Resources::default() }
    }

    fn huge_pages(&self, bytes: impl Fn(&PageSize) -> i64) -> Vec<(String, i64)> {
        self.page_sizes.iter().map(|size| (size.name.clone(), bytes(size))).collect()
    }

    /// Gives the burstable class the shares that its pods ask for, and best-effort pods the fewest.
    /// Upstream: `qosContainerManagerImpl.UpdateCgroups`.
    ///
    /// # Errors
    /// With the path that cannot be written.
    pub fn update_classes<'a>(&self, pods: impl Iterator<Item = &'a Pod>) -> io::Result<()> {
        let shares = Some(resources::burstable_shares(pods));
        self.make(&self.class(QosClass::Burstable), &self.of_class(shares))?;
        self.make(&self.class(QosClass::BestEffort), &self.of_class(Some(resources::MIN_SHARES)))
    }

    /// Makes the cgroup of a pod, unless it exists. Upstream: `EnsureExists`.
    ///
    /// # Errors
    /// With the path that cannot be made.
    pub fn ensure_pod(&self, pod: &Pod) -> io::Result<()> {
        if self.has_pod(pod) {
            return Ok(());
        }
        let name = self.pod_name(pod);
        let huge_pages = self.huge_pages(|size| resources::pod_pages(pod, size.bytes));
        let resources = Resources { pids: self.pids_limit, huge_pages, ..Resources::of_pod(pod) };
        self.make(&name, &resources)
    }

    /// Sets limits of the existing cgroup of a pod. Upstream: `SetPodCgroupConfig`.
    ///
    /// # Errors
    /// With the path that cannot be written.
    pub fn limit_pod(&self, pod: &Pod, resources: &Resources) -> io::Result<()> {
        let path = self.pod(pod);
        if self.driver == Driver::Systemd {
            self.systemd.make(&path, resources, self.hierarchy.is_v2())?;
        }
        self.hierarchy.limit(&path, &self.rounded(resources.clone()))
    }

    /// Returns the limits as the driver keeps them: systemd rounds quotas of CPU.
    pub fn rounded(&self, resources: Resources) -> Resources {
        match self.driver {
            Driver::Cgroupfs => resources,
            Driver::Systemd => {
                let cpu_quota = resources.cpu_quota.map(systemd::rounded_quota);
                Resources { cpu_quota, ..resources }
            }
        }
    }

    /// Returns what the cgroup of a pod limits. Upstream: `GetPodCgroupConfig`.
    ///
    /// # Errors
    /// The name of a resource whose limits are not known.
    pub fn pod_limits(&self, pod: &Pod) -> Result<PodLimits, &'static str> {
        PodLimits::read(&self.hierarchy, &self.pod(pod))
    }

    /// Returns the bytes of memory that a pod uses, or one of its containers, by its id. `None`:
    /// the files of its cgroup cannot be read.
    pub fn memory_usage(&self, pod: &Pod, container: Option<&str>) -> Option<u64> {
        let path = match container {
            Some(id) => self.hierarchy.container_below(&self.pod(pod), id),
            None => self.pod(pod),
        };
        usage::read(&self.hierarchy, &path).memory.map(|memory| memory.usage)
    }

    /// Makes a cgroup with these limits. What systemd does not limit, such as huge pages, is in the
    /// files of its slice.
    fn make(&self, name: &Name, resources: &Resources) -> io::Result<()> {
        let path = name.path(self.driver);
        if self.driver == Driver::Systemd {
            self.systemd.make(&path, resources, self.hierarchy.is_v2())?;
        }
        self.hierarchy.make(&path, &self.rounded(resources.clone()))
    }

    /// Returns the pods that have a cgroup. Upstream: `GetAllPodsFromCgroups`.
    pub fn pods(&self) -> BTreeSet<Uid> {
        self.pod_folders().into_iter().map(|(uid, _)| uid).collect()
    }

    /// Lists the cgroups of pods in all classes and mounts, as paths below the mounts.
    fn pod_folders(&self) -> Vec<(Uid, String)> {
        let mut found = Vec::new();
        for class in [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort] {
            let path = self.class(class).path(self.driver);
            for folder in self.hierarchy.folders(&path) {
                for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                    let entry = format!("{path}/{}", entry.file_name().to_string_lossy());
                    if let Some(uid) = self.uid(&entry) {
                        found.push((uid, entry));
                    }
                }
            }
        }
        found.sort();
        found.dedup();
        found
    }

    fn uid(&self, path: &str) -> Option<Uid> {
        Uid::parse(self.name(path).last()?.strip_prefix(POD_PREFIX)?)
    }

    /// Kills what still runs in the cgroups of a pod, and removes them. Upstream: `Destroy`.
    ///
    /// # Errors
    /// With the path that stays.
    pub fn remove_pod(&self, uid: &str) -> io::Result<()> {
        for (_, path) in self.pod_folders().into_iter().filter(|(found, _)| **found == *uid) {
            if self.driver == Driver::Systemd {
                self.systemd.stop(&path)?;
            }
            for folder in self.hierarchy.folders(&path) {
                remove_tree(&folder)?;
            }
        }
        Ok(())
    }
}

/// Removes a cgroup with those below it, and kills their processes. While one of them has not ended
/// yet, the kernel keeps the cgroup: an error, after which the caller retries.
fn remove_tree(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_tree(&entry.path())?;
        }
    }
    let processes = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
    for process in processes.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)) {
        log::debug!("killing process {} in {}", process.as_raw_nonzero(), folder.display());
        // It may have ended meanwhile.
        let _ = rustix::process::kill_process(process, Signal::KILL);
    }
    match fs::remove_dir(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(io::Error::new(error.kind(), format!("{}: {error}", folder.display())))
        }
        _ => Ok(()),
    }
}

/// What the mounted cgroups can limit for containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    pub is_v2: bool,
    /// Whether there is a file that limits swap. Upstream: `checkSwapControllerAvailability`.
    pub limits_swap: bool,
}

impl Features {
    /// Detects the machine's features. Blocks. Call it when cgroups have been made: that enables
    /// the controller of memory in version 2.
    pub fn detect() -> Features {
        // The root cgroup, and kernels without swap accounting, have no such file.
        let (is_v2, file) = match Hierarchy::detect() {
            Ok(Hierarchy::V1 { mounts }) => {
                (false, mounts.get("memory").map(|root| root.join("memory.memsw.limit_in_bytes")))
            }
            Ok(Hierarchy::V2 { root }) => {
                let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
                let own = own.lines().find_map(|line| line.strip_prefix("0::/"));
                (true, Some(root.join(own.unwrap_or_default()).join("memory.swap.max")))
            }
            Err(_) => (false, None),
        };
        Features { is_v2, limits_swap: file.is_some_and(|file| file.exists()) }
    }

    /// Returns entries of `unified` for containers in version 2: the kernel kills all processes of
    /// a container at its memory limit, unless `kills_single`, and the container gets no swap.
    /// Upstream: `singleProcessOOMKill`, `ConfigureNoSwap`.
    pub fn unified(self, kills_single: bool) -> HashMap<String, String> {
        let entries = [
            ("memory.oom.group", "1", self.is_v2 && !kills_single),
            ("memory.swap.max", "0", self.is_v2 && self.limits_swap),
        ];
        let present = entries.into_iter().filter(|(_, _, is_present)| *is_present);
        present.map(|(file, content, _)| (file.to_owned(), content.to_owned())).collect()
    }

    /// Returns whether a container's limit of memory is its limit of memory and swap too: its swap
    /// in version 1. Upstream: `ConfigureNoSwap`.
    pub fn limits_memory_and_swap(self) -> bool {
        !self.is_v2 && self.limits_swap
    }
}

/// Returns the most processes of the machine, the lower of the kernel's two limits; `None`: neither
/// can be read. Upstream: `pidlimit.Stats`.
pub fn max_pids() -> Option<i64> {
    let read = |file: &str| -> Option<i64> {
        fs::read_to_string(Path::new("/proc/sys/kernel").join(file)).ok()?.trim().parse().ok()
    };
    read("pid_max").into_iter().chain(read("threads-max")).min()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(requests: serde_json::Value, limits: serde_json::Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "0-1"},
            "spec": {"containers": [
                {"name": "a", "resources": {"requests": requests, "limits": limits}},
            ]},
        }))
        .expect("a pod")
    }

    #[test]
    fn containers_have_no_swap_where_it_is_limited() {
        let (group, swap) = (("memory.oom.group", "1"), ("memory.swap.max", "0"));
        for (is_v2, limits_swap, expected, both) in [
            (false, false, &[][..], false),
            (false, true, &[], true),
            (true, false, &[group], false),
            (true, true, &[group, swap], false),
        ] {
            let features = Features { is_v2, limits_swap };
            let expected = expected.iter().map(|(file, text)| (file.to_string(), text.to_string()));
            assert_eq!(features.unified(false), expected.collect(), "{features:?}");
            // With `singleProcessOOMKill`, only swap is limited.
            assert_eq!(features.unified(true).len(), usize::from(is_v2 && limits_swap));
            assert_eq!(features.limits_memory_and_swap(), both, "{features:?}");
        }
    }

    #[test]
    fn cgroups_of_pods_are_made_in_both_versions() {
        let base = std::env::temp_dir().join(format!("kubelet-cgroups-{}", std::process::id()));
        for (version, hierarchy) in [
            ("v1", Hierarchy::v1_for_tests(&base.join("v1"), &["cpu", "memory", "pids", "cpuset"])),
            ("v2", Hierarchy::V2 { root: base.join("v2") }),
        ] {
            let settings = Settings {
                root: "/r".to_owned(),
                driver: Driver::Cgroupfs,
                pids_limit: Some(7),
                page_sizes: vec![PageSize {
                    name: "2MB".to_owned(),
                    bytes: 2 << 20,
                    capacity: 8 << 20,
                }],
            };
            let cgroups = Cgroups::new(&settings, hierarchy);
            let limits =
                Limits { milli_cpus: Some(2000), memory_bytes: Some(1 << 30), pids: Some(100) };
            cgroups.start(limits).expect(version);
            let less = Limits { memory_bytes: Some(1 << 20), ..Limits::default() };
            assert!(cgroups.limit_existing("/system", less).is_err(), "others make it");
            for controller in ["", "cpu", "memory", "pids", "cpuset"] {
                fs::create_dir_all(base.join(version).join(controller).join("system"))
                    .expect("made");
            }
            cgroups.limit_existing("/system", less).expect(version);
            let burstable = pod(json!({"cpu": "500m", "memory": "1Mi"}), json!({}));
            let both = json!({"cpu": "1", "memory": "2Mi"});
            let guaranteed = pod(both.clone(), both);
            cgroups.update_classes([&burstable, &guaranteed].into_iter()).expect(version);
            for pod in [&burstable, &guaranteed] {
                cgroups.ensure_pod(pod).expect(version);
            }
            let read = |path: &str| {
                let file = base.join(version).join(path);
                fs::read_to_string(&file)
                    .unwrap_or_else(|error| panic!("{}: {error}", file.display()))
            };
            let expected: &[(&str, &str)] = match version {
                "v1" => &[
                    ("cpu/r/kubepods/cpu.shares", "2048"),
                    ("memory/r/kubepods/memory.limit_in_bytes", "1073741824"),
                    ("pids/r/kubepods/pids.max", "100"),
                    ("memory/system/memory.limit_in_bytes", "1048576"),
                    ("cpu/r/kubepods/burstable/cpu.shares", "512"),
                    ("cpu/r/kubepods/besteffort/cpu.shares", "2"),
                    ("cpu/r/kubepods/burstable/pod0-1/cpu.shares", "512"),
                    ("pids/r/kubepods/burstable/pod0-1/pids.max", "7"),
                    ("cpu/r/kubepods/pod0-1/cpu.cfs_quota_us", "100000"),
                    ("memory/r/kubepods/pod0-1/memory.limit_in_bytes", "2097152"),
                ],
                _ => &[
                    ("r/kubepods/cpu.weight", "79"),
                    ("r/kubepods/memory.max", "1073741824"),
                    ("r/kubepods/pids.max", "100"),
                    ("system/memory.max", "1048576"),
                    ("r/kubepods/burstable/cpu.weight", "20"),
                    ("r/kubepods/besteffort/cpu.weight", "1"),
                    ("r/kubepods/burstable/pod0-1/pids.max", "7"),
                    ("r/kubepods/pod0-1/cpu.max", "100000 100000"),
                    ("r/kubepods/pod0-1/memory.max", "2097152"),
                ],
            };
            for (path, content) in expected {
                assert_eq!(read(path), *content, "{version} {path}");
            }
            assert_eq!(cgroups.pods(), BTreeSet::from([Uid::parse("0-1").expect("a uid")]));
            assert_eq!(cgroups.parent(&burstable), "/r/kubepods/burstable/pod0-1");
        }
        fs::remove_dir_all(&base).expect("removed");
    }
}
