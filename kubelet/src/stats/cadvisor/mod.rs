//! The text of `/metrics/cadvisor`: what each cgroup of the node and its pods uses. Upstream:
//! cAdvisor's `PrometheusCollector`, `containerPrometheusLabelsFunc`.

mod page;

use std::array;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use self::page::Page;
use super::{Fs, Interface, StatsSource, disk, interfaces_of};
use crate::cgroups::details::{self, Details, Io, Pressure};
use crate::cgroups::usage::swap_of_machine;
use crate::pod::{Pod, PodExt, Uid};

/// What cAdvisor calls a container: a cgroup.
struct Subject<'a> {
    id: String,
    name: &'a str,
    image: &'a str,
    pod: &'a str,
    namespace: &'a str,
    container: &'a str,
    started_seconds: i64,
}

impl Subject<'_> {
    /// Returns a cgroup that belongs to no container or pod.
    fn of_cgroup(source: &StatsSource<'_>, path: &str) -> Self {
        Subject {
            id: path.to_owned(),
            name: "",
            image: "",
            pod: "",
            namespace: "",
            container: "",
            started_seconds: made_at(source, path),
        }
    }

    /// Returns the labels of the series of this cgroup.
    fn labels(&self) -> String {
        let Subject { id, name, image, pod, namespace, container, .. } = self;
        format!(
            "container={container:?},id={id:?},image={image:?},name={name:?},\
             namespace={namespace:?},pod={pod:?}"
        )
    }
}

/// The sandbox of a pod.
pub struct Sandbox {
    pub id: String,
    /// Empty: it is not known.
    pub image: String,
}

/// Measures the node, the cgroups of pods, and those of their containers and sandboxes.
/// `sandboxes`: the newest sandbox of each pod. Pods without a cgroup are left out. Blocks.
pub fn cadvisor_metrics(source: &StatsSource<'_>, sandboxes: &HashMap<Uid, Sandbox>) -> String {
    let mut page = Page::new(source.now);
    let devices = Devices::default();
    add_node(&mut page, source, &devices);
    for pod in source.pods {
        add_pod(&mut page, source, pod, sandboxes.get(&pod.uid()), &devices);
    }
    page.add("container_scrape_error", "", 0.0);
    page.text()
}

/// Adds the series of the machine, of its cgroup, and of those of many pods or of the node's
/// programs.
fn add_node(page: &mut Page, source: &StatsSource<'_>, devices: &Devices) {
    add_machine(page, source);
    let (labels, _) = add_cgroup(page, source, &Subject::of_cgroup(source, "/"), devices);
    add_network(page, &labels, None);
    for (device, disk) in node_disks(source) {
        add_disk(page, &format!("{labels},device={device:?}"), &disk);
    }
    for path in cgroups_of_many(source) {
        add_cgroup(page, source, &Subject::of_cgroup(source, path), devices);
    }
}

/// Adds the series of a pod, its containers and its sandbox; nothing for a pod without a cgroup.
fn add_pod(
    page: &mut Page,
    source: &StatsSource<'_>,
    pod: &Pod,
    sandbox: Option<&Sandbox>,
    devices: &Devices,
) {
    let Some(path) = (source.cgroup_of)(pod) else { return };
    if !source.hierarchy.folder("memory", &path).is_some_and(|folder| folder.is_dir()) {
        return;
    }
    let cgroup = Subject::of_cgroup(source, &path);
    let of_pod = Subject { pod: pod.name(), namespace: pod.namespace(), ..cgroup };
    add_cgroup(page, source, &of_pod, devices);
    for container in containers(source, pod, &path) {
        add_cgroup(page, source, &container, devices);
    }
    let Some(Sandbox { id, image }) = sandbox else { return };
    let below = source.hierarchy.container_below(&path, id);
    let cgroup = Subject::of_cgroup(source, &below);
    let Subject { pod, namespace, .. } = of_pod;
    let sandbox = Subject { name: id, image, pod, namespace, ..cgroup };
    let (labels, first_process) = add_cgroup(page, source, &sandbox, devices);
    if first_process.is_some() {
        add_network(page, &labels, first_process);
    }
}

/// Lists the cgroups of all pods, of their classes, of the kubelet and of the runtime, those that
/// exist. Upstream: the roots of cAdvisor, and the cgroups below them.
fn cgroups_of_many<'a>(source: &'a StatsSource<'_>) -> Vec<&'a str> {
    let pods = source.all_pods.iter().chain(&source.classes).map(String::as_str);
    let system = source.system_cgroups.named().map(|(_, path)| path);
    let exists = |path: &str| {
        let folders = ["cpu", "memory"].map(|controller| source.hierarchy.folder(controller, path));
        folders.into_iter().flatten().any(|folder| folder.is_dir())
    };
    // The root has its series already.
    pods.chain(system).filter(|path| *path != "/" && exists(path)).collect()
}

/// Lists the running containers of a pod, by its status.
fn containers<'a>(source: &StatsSource<'_>, pod: &'a Pod, path: &str) -> Vec<Subject<'a>> {
    let Some(status) = &pod.status else { return Vec::new() };
    let lists = [
        &status.init_container_statuses,
        &status.container_statuses,
        &status.ephemeral_container_statuses,
    ];
    let all = lists.into_iter().flatten().flatten().filter_map(|status| {
        let running = status.state.as_ref()?.running.as_ref()?;
        let (_, id) = status.container_id.as_deref()?.split_once("://")?;
        Some(Subject {
            id: source.hierarchy.container_below(path, id),
            name: id,
            image: &status.image,
            pod: pod.name(),
            namespace: pod.namespace(),
            container: &status.name,
            started_seconds: running.started_at.as_ref().map_or(0, |time| time.0.as_second()),
        })
    });
    all.collect()
}

/// Returns when a cgroup was made, in seconds since 1970, by the time of its folder; 0: it is not
/// known.
fn made_at(source: &StatsSource<'_>, path: &str) -> i64 {
    let folder = source.hierarchy.folder("cpu", path);
    folder.and_then(|folder| fs::metadata(folder).ok()).map_or(0, |data| data.mtime())
}

/// Adds the metrics of the machine, and the versions of its kernel and system.
fn add_machine(page: &mut Page, source: &StatsSource<'_>) {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let labels = format!(
        "boot_id={:?},machine_id={:?},system_uuid={:?}",
        read("/proc/sys/kernel/random/boot_id"),
        read("/etc/machine-id"),
        read("/sys/class/dmi/id/product_uuid"),
    );
    let processors = Processors::parse(&read("/proc/cpuinfo"));
    let (used, free) = swap_of_machine(&read("/proc/meminfo"));
    let swap = used.unwrap_or(0) + free.unwrap_or(0);
    for (name, value) in [
        ("machine_cpu_cores", processors.threads as f64),
        ("machine_cpu_physical_cores", processors.cores as f64),
        ("machine_cpu_sockets", processors.sockets as f64),
        ("machine_memory_bytes", source.memory_bytes as f64),
        ("machine_swap_bytes", swap as f64),
    ] {
        page.add(name, &labels, value);
    }
    page.add("machine_scrape_error", "", 0.0);
    let version = format!(
        "cadvisorRevision=\"\",cadvisorVersion=\"\",dockerVersion=\"\",kernelVersion={:?},\
         osVersion={:?}",
        read("/proc/sys/kernel/osrelease"),
        os_version(&read("/etc/os-release")),
    );
    page.add("cadvisor_version_info", &version, 1.0);
}

fn os_version(text: &str) -> String {
    let name = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    name.unwrap_or_default().trim_matches('"').to_owned()
}

/// How many processors the machine has.
#[derive(Debug, PartialEq, Eq)]
struct Processors {
    threads: usize,
    cores: usize,
    sockets: usize,
}

impl Processors {
    /// Parses `/proc/cpuinfo`. Machines that do not name cores and sockets have one socket, and
    /// each thread is a core.
    fn parse(text: &str) -> Processors {
        let values = |name: &str| -> Vec<&str> {
            let lines = text.lines().filter_map(|line| line.split_once(':'));
            lines.filter(|(key, _)| key.trim() == name).map(|(_, value)| value.trim()).collect()
        };
        let threads = values("processor").len();
        let (sockets, cores) = (values("physical id"), values("core id"));
        let distinct = |mut all: Vec<(&str, &str)>| {
            all.sort_unstable();
            all.dedup();
            all.len()
        };
        let of_sockets = distinct(sockets.iter().map(|socket| (*socket, "")).collect());
        let of_cores = distinct(sockets.into_iter().zip(cores).collect());
        Processors {
            threads,
            cores: if of_cores == 0 { threads } else { of_cores },
            sockets: of_sockets.max(1),
        }
    }
}

/// A disk of the node: its size and use, and what the kernel counts.
struct NodeDisk {
    fs: Fs,
    counts: DiskCounts,
}

/// The columns of a line of `/proc/diskstats`, from that of the reads on. Times are milliseconds.
#[derive(Debug, Default, PartialEq, Eq)]
struct DiskCounts([u64; 11]);

impl DiskCounts {
    /// Finds the device with this number in the content of `/proc/diskstats`; a device that is
    /// absent has done nothing.
    fn find(text: &str, number: u64) -> DiskCounts {
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        let of = |line: &str| {
            let mut words = line.split_whitespace();
            let is_it = [major, minor].iter().all(|part| words.next() == Some(&*part.to_string()));
            let mut counts = words.skip(1).map(|count| count.parse().unwrap_or(0));
            is_it.then(|| DiskCounts(array::from_fn(|_| counts.next().unwrap_or(0))))
        };
        text.lines().find_map(of).unwrap_or_default()
    }
}

/// Measures the disks of the node's files and of images, by their devices.
fn node_disks(source: &StatsSource<'_>) -> BTreeMap<String, NodeDisk> {
    let images = source.images.as_ref().map(|images| Path::new(&images.mount_point));
    let folders = [Some(source.folders.root.as_path()), images].into_iter().flatten();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let counts = fs::read_to_string("/proc/diskstats").unwrap_or_default();
    let time = source.now.to_string();
    let disks = folders.filter_map(|folder| {
        let number = fs::metadata(folder).ok()?.dev();
        let device = device_of(&mounts, number)?;
        let fs = disk(&time, folder)?;
        Some((device, NodeDisk { fs, counts: DiskCounts::find(&counts, number) }))
    });
    disks.collect()
}

/// Adds the series of a disk of the node. Its times are seconds, where cAdvisor divides
/// milliseconds by 10^9.
fn add_disk(page: &mut Page, labels: &str, NodeDisk { fs, counts }: &NodeDisk) {
    for (name, value) in [
        ("container_fs_inodes_free", fs.inodes_free),
        ("container_fs_inodes_total", fs.inodes),
        ("container_fs_limit_bytes", fs.capacity_bytes),
        ("container_fs_usage_bytes", fs.used_bytes.unwrap_or(0)),
    ] {
        page.add_timed(name, labels, value as f64);
    }
    // In the order of the columns.
    for ((name, unit), count) in [
        ("container_fs_reads_total", 1.0),
        ("container_fs_reads_merged_total", 1.0),
        ("container_fs_sector_reads_total", 1.0),
        ("container_fs_read_seconds_total", 1e3),
        ("container_fs_writes_total", 1.0),
        ("container_fs_writes_merged_total", 1.0),
        ("container_fs_sector_writes_total", 1.0),
        ("container_fs_write_seconds_total", 1e3),
        ("container_fs_io_current", 1.0),
        ("container_fs_io_time_seconds_total", 1e3),
        ("container_fs_io_time_weighted_seconds_total", 1e3),
    ]
    .into_iter()
    .zip(counts.0)
    {
        // The cgroup of the root may count the operations on the same device.
        if !page.has(name, labels) {
            page.add_timed(name, labels, count as f64 / unit);
        }
    }
}

/// Returns the source of the first mount of a device, by its number.
fn device_of(mounts: &str, number: u64) -> Option<String> {
    let number = format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number));
    let of = |line: &str| {
        let (front, back) = line.split_once(" - ")?;
        (front.split(' ').nth(2)? == number).then(|| back.split(' ').nth(1).map(str::to_owned))?
    };
    mounts.lines().find_map(of)
}

/// The names of devices by their numbers, as `8:0`.
#[derive(Default)]
struct Devices(RefCell<HashMap<String, String>>);

impl Devices {
    /// Returns the path of the device with this number, or the number if it has no name. It is read
    /// once.
    fn name(&self, number: &str) -> String {
        let mut names = self.0.borrow_mut();
        if let Some(name) = names.get(number) {
            return name.clone();
        }
        let link = fs::read_link(format!("/sys/dev/block/{number}"));
        let name =
            link.ok().and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
        let name = name.map_or_else(|| number.to_owned(), |name| format!("/dev/{name}"));
        names.insert(number.to_owned(), name.clone());
        name
    }
}

/// Adds the series of a cgroup; returns its labels and the first of its processes, if it has one.
fn add_cgroup(
    page: &mut Page,
    source: &StatsSource<'_>,
    subject: &Subject<'_>,
    devices: &Devices,
) -> (String, Option<u32>) {
    let labels = subject.labels();
    let details = details::read(source.hierarchy, &subject.id);
    page.add_timed("container_last_seen", &labels, source.now.to_jiff().as_second() as f64);
    page.add("container_start_time_seconds", &labels, subject.started_seconds as f64);
    add_series(page, &labels, &details);
    let first_process = details.processes.and_then(|processes| processes.first);
    // A cgroup without a name is no container: the machine's first process, or none.
    let limited = match (subject.name, &*subject.id) {
        ("", "/") => Some(1),
        ("", _) => None,
        _ => first_process,
    };
    if let Some(limit) = limited.and_then(details::open_file_limit) {
        let labels = format!("{labels},ulimit=\"max_open_files\"");
        page.add_timed("container_ulimits_soft", &labels, limit as f64);
    }
    for (number, io) in &details.io {
        let labels = format!("{labels},device={:?}", devices.name(number));
        add_io(page, &labels, number, io);
    }
    (labels, first_process)
}

/// Adds the series of what a cgroup has read and written on a device with this number.
fn add_io(page: &mut Page, labels: &str, number: &str, io: &Io) {
    let bytes = |operation: &str| io.bytes.get(operation).copied().unwrap_or(0);
    for (name, value) in [
        ("container_fs_reads_bytes_total", bytes("Read")),
        ("container_fs_reads_total", io.reads),
        ("container_fs_writes_bytes_total", bytes("Write")),
        ("container_fs_writes_total", io.writes),
    ] {
        page.add_timed(name, labels, value as f64);
    }
    let (major, minor) = number.split_once(':').unwrap_or((number, ""));
    for (operation, bytes) in &io.bytes {
        let labels = format!("{labels},major={major:?},minor={minor:?},operation={operation:?}");
        page.add_timed("container_blkio_device_usage_total", &labels, *bytes as f64);
    }
}

/// Converts nanoseconds to seconds.
fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

/// Adds the series of one cgroup: CPU, memory, processes and pressure.
fn add_series(page: &mut Page, labels: &str, details: &Details) {
    if let Some(cpu) = details.cpu {
        page.add("container_spec_cpu_period", labels, cpu.period as f64);
        page.add("container_spec_cpu_shares", labels, cpu.shares as f64);
        let total = format!("{labels},cpu=\"total\"");
        page.add_timed("container_cpu_usage_seconds_total", &total, seconds(cpu.usage));
        page.add_timed("container_cpu_user_seconds_total", labels, seconds(cpu.user));
        page.add_timed("container_cpu_system_seconds_total", labels, seconds(cpu.system));
        if let Some(quota) = cpu.quota {
            page.add("container_spec_cpu_quota", labels, quota as f64);
            page.add_timed("container_cpu_cfs_periods_total", labels, cpu.periods as f64);
            let throttled = cpu.throttled_periods as f64;
            page.add_timed("container_cpu_cfs_throttled_periods_total", labels, throttled);
            let throttled = seconds(cpu.throttled);
            page.add_timed("container_cpu_cfs_throttled_seconds_total", labels, throttled);
            let periods = cpu.burst_periods as f64;
            page.add_timed("container_cpu_cfs_burst_periods_total", labels, periods);
            page.add_timed("container_cpu_cfs_burst_seconds_total", labels, seconds(cpu.burst));
        }
    }
    if let Some(memory) = details.memory {
        for (name, bytes) in [
            ("container_spec_memory_limit_bytes", memory.limit),
            ("container_spec_memory_reservation_limit_bytes", memory.reservation),
            ("container_spec_memory_swap_limit_bytes", memory.swap_limit),
        ] {
            page.add(name, labels, bytes as f64);
        }
        for (name, value) in [
            ("container_memory_cache", memory.cache),
            ("container_memory_failcnt", memory.failures),
            ("container_memory_kernel_usage", memory.kernel),
            ("container_memory_mapped_file", memory.mapped_file),
            ("container_memory_max_usage_bytes", memory.max_usage),
            ("container_memory_rss", memory.rss),
            ("container_memory_swap", memory.swap),
            ("container_memory_total_active_file_bytes", memory.active_file),
            ("container_memory_total_inactive_file_bytes", memory.inactive_file),
            ("container_memory_usage_bytes", memory.usage),
            ("container_memory_working_set_bytes", memory.working_set),
            ("container_oom_events_total", memory.oom_kills),
        ] {
            page.add_timed(name, labels, value as f64);
        }
        for (kind, scope, value) in [
            ("pgfault", "container", memory.own_page_faults),
            ("pgmajfault", "container", memory.own_major_page_faults),
            ("pgfault", "hierarchy", memory.page_faults),
            ("pgmajfault", "hierarchy", memory.major_page_faults),
        ] {
            let labels = format!("{labels},failure_type={kind:?},scope={scope:?}");
            page.add_timed("container_memory_failures_total", &labels, value as f64);
        }
    }
    if let Some(processes) = details.processes {
        page.add_timed("container_processes", labels, processes.count as f64);
        page.add_timed("container_file_descriptors", labels, processes.descriptors as f64);
        page.add_timed("container_sockets", labels, processes.sockets as f64);
    }
    for (name, value) in
        [("container_threads", details.threads), ("container_threads_max", details.threads_max)]
    {
        if let Some(value) = value {
            page.add_timed(name, labels, value as f64);
        }
    }
    for (resource, stalled, waiting) in [
        (
            "cpu",
            "container_pressure_cpu_stalled_seconds_total",
            "container_pressure_cpu_waiting_seconds_total",
        ),
        (
            "memory",
            "container_pressure_memory_stalled_seconds_total",
            "container_pressure_memory_waiting_seconds_total",
        ),
        (
            "io",
            "container_pressure_io_stalled_seconds_total",
            "container_pressure_io_waiting_seconds_total",
        ),
    ] {
        if let Some(Pressure { full, some }) = details.pressure.get(resource) {
            page.add_timed(stalled, labels, full.total as f64 / 1e6);
            page.add_timed(waiting, labels, some.total as f64 / 1e6);
        }
    }
}

/// Adds the series of the network of a process, or of the machine.
fn add_network(page: &mut Page, labels: &str, process: Option<u32>) {
    for Interface { name, counts, .. } in interfaces_of(process) {
        let labels = format!("{labels},interface={name:?}");
        // The positions are the columns of `/proc/net/dev`.
        let of = |at: usize| counts.get(at).copied().unwrap_or(0) as f64;
        for (name, at) in [
            ("container_network_receive_bytes_total", 0),
            ("container_network_receive_packets_total", 1),
            ("container_network_receive_errors_total", 2),
            ("container_network_receive_packets_dropped_total", 3),
            ("container_network_transmit_bytes_total", 8),
            ("container_network_transmit_packets_total", 9),
            ("container_network_transmit_errors_total", 10),
            ("container_network_transmit_packets_dropped_total", 11),
        ] {
            page.add_timed(name, &labels, of(at));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kube_controller_manager::objects::Timestamp;

    use super::*;
    use crate::cgroups::details::{Cpu, MemoryDetails, Processes};
    use crate::cgroups::{Hierarchy, SystemCgroups};
    use crate::volumes::Folders;

    #[test]
    fn series_have_upstreams_names_labels_and_times() {
        let subject = Subject {
            id: "/kubepods/podu/c".to_owned(),
            name: "c",
            image: "node.test/busybox:1",
            pod: "p",
            namespace: "n",
            container: "main",
            started_seconds: 7,
        };
        let details = Details {
            cpu: Some(Cpu {
                usage: 2_500_000_000,
                periods: 4,
                throttled: 500_000_000,
                burst_periods: 3,
                burst: 250_000_000,
                period: 100_000,
                quota: Some(20_000),
                ..Cpu::default()
            }),
            memory: Some(MemoryDetails { working_set: 5, limit: 9, ..MemoryDetails::default() }),
            pressure: [("cpu", Pressure::default())].into(),
            processes: Some(Processes { count: 1, descriptors: 4, sockets: 2, first: Some(1) }),
            ..Details::default()
        };
        let mut page = Page::new(Timestamp::from_secs(3));
        add_series(&mut page, &subject.labels(), &details);
        let text = page.text();
        let labels = "container=\"main\",id=\"/kubepods/podu/c\",image=\"node.test/busybox:1\",\
                      name=\"c\",namespace=\"n\",pod=\"p\"";
        for line in [
            "# TYPE container_cpu_usage_seconds_total counter".to_owned(),
            format!("container_cpu_usage_seconds_total{{{labels},cpu=\"total\"}} 2.5 3000"),
            format!("container_cpu_cfs_periods_total{{{labels}}} 4 3000"),
            format!("container_cpu_cfs_throttled_seconds_total{{{labels}}} 0.5 3000"),
            format!("container_cpu_cfs_burst_periods_total{{{labels}}} 3 3000"),
            format!("container_cpu_cfs_burst_seconds_total{{{labels}}} 0.25 3000"),
            format!("container_spec_cpu_quota{{{labels}}} 20000"),
            format!("container_memory_working_set_bytes{{{labels}}} 5 3000"),
            format!("container_spec_memory_limit_bytes{{{labels}}} 9"),
            format!("container_pressure_cpu_waiting_seconds_total{{{labels}}} 0 3000"),
            format!("container_file_descriptors{{{labels}}} 4 3000"),
            format!("container_sockets{{{labels}}} 2 3000"),
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(!text.contains("pressure_io"), "{text}");
    }

    #[test]
    fn series_of_all_pods_are_below_one_head() {
        let base = std::env::temp_dir().join(format!("kubelet-cadvisor-{}", std::process::id()));
        let pod = |name: &str| -> Pod {
            let folder = base.join(name);
            fs::create_dir_all(&folder).expect("a folder");
            fs::write(folder.join("pids.current"), "3\n").expect("a file");
            let metadata = serde_json::json!({"name": name, "namespace": "n", "uid": name});
            serde_json::from_value(serde_json::json!({"metadata": metadata})).expect("a pod")
        };
        let pods = ["a", "b", "c"].map(pod);
        fs::remove_dir_all(base.join("b")).expect("removed");
        let source = StatsSource {
            node: "n",
            memory_bytes: 1,
            folders: &Folders { root: base.clone(), logs: base.clone() },
            hierarchy: &Hierarchy::V2 { root: base.clone() },
            all_pods: None,
            classes: Vec::new(),
            system_cgroups: &SystemCgroups::detect("", ""),
            started: Timestamp::from_secs(0),
            cgroup_of: &|pod| Some(format!("/{}", pod.name())),
            images: None,
            pods: &pods,
            starts: &HashMap::new(),
            now: Timestamp::from_secs(9),
            monotonic: Duration::from_secs(9),
            volume_period: None,
            only_cpu_and_memory: false,
        };
        let text = cadvisor_metrics(&source, &HashMap::new());
        let threads = text.lines().filter(|line| line.contains("container_threads"));
        let series = |pod: &str| {
            format!(
                "container_threads{{container=\"\",id=\"/{pod}\",image=\"\",name=\"\",\
                 namespace=\"n\",pod=\"{pod}\"}} 3 9000"
            )
        };
        let head = "container_threads Number of threads running inside the container";
        let expected = [
            format!("# HELP {head}"),
            "# TYPE container_threads gauge".to_owned(),
            series("a"),
            series("c"),
        ];
        assert_eq!(threads.collect::<Vec<_>>(), expected);
        fs::remove_dir_all(&base).expect("removed");
    }

    #[test]
    fn disks_have_what_the_kernel_counts() {
        let table = "   8       0 sda 9 9 9 9 9 9 9 9 9 9 9 0 0 0 0\n   \
                     8       1 sda1 1 2 3 4000 5 6 7 8000 9 10000 11000 0 0 0 0 0 0\n";
        let counts = DiskCounts::find(table, rustix::fs::makedev(8, 1));
        assert_eq!(counts, DiskCounts([1, 2, 3, 4000, 5, 6, 7, 8000, 9, 10_000, 11_000]));
        let absent = DiskCounts::find(table, rustix::fs::makedev(0, 40));
        assert_eq!(absent, DiskCounts::default());
        let mut page = Page::new(Timestamp::from_secs(3));
        let bytes = [("Read", 10), ("Total", 30)].map(|(kind, bytes)| (kind.to_owned(), bytes));
        let io = Io { bytes: bytes.into(), reads: 70, writes: 80 };
        let labels = "id=\"/\",device=\"/dev/sda1\"";
        add_io(&mut page, labels, "8:1", &io);
        add_disk(&mut page, labels, &NodeDisk { fs: Fs::default(), counts });
        let text = page.text();
        let blkio = format!("container_blkio_device_usage_total{{{labels},major=\"8\",minor=\"1\"");
        for line in [
            format!("{blkio},operation=\"Read\"}} 10 3000"),
            format!("{blkio},operation=\"Total\"}} 30 3000"),
            // The cgroup's own counts take precedence.
            format!("container_fs_reads_total{{{labels}}} 70 3000"),
            format!("container_fs_reads_bytes_total{{{labels}}} 10 3000"),
            format!("container_fs_reads_merged_total{{{labels}}} 2 3000"),
            format!("container_fs_sector_writes_total{{{labels}}} 7 3000"),
            format!("container_fs_read_seconds_total{{{labels}}} 4 3000"),
            format!("container_fs_io_current{{{labels}}} 9 3000"),
            format!("container_fs_io_time_weighted_seconds_total{{{labels}}} 11 3000"),
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        let reads = text.lines().filter(|line| line.starts_with("container_fs_reads_total"));
        assert_eq!(reads.count(), 1, "{text}");
    }

    #[test]
    fn processors_are_counted_by_their_cores_and_sockets() {
        let one = |id: &str, socket: &str, core: &str| {
            format!("processor\t: {id}\nphysical id\t: {socket}\ncore id\t\t: {core}\n\n")
        };
        let text = [one("0", "0", "0"), one("1", "0", "0"), one("2", "1", "0")].concat();
        let expected = Processors { threads: 3, cores: 2, sockets: 2 };
        assert_eq!(Processors::parse(&text), expected);
        let expected = Processors { threads: 2, cores: 2, sockets: 1 };
        assert_eq!(Processors::parse("processor : 0\nprocessor : 1\n"), expected);
    }

    #[test]
    fn devices_of_disks_are_found_by_their_numbers() {
        let mounts = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n23 1 0:5 / /proc rw - proc proc rw\n";
        let number = rustix::fs::makedev(8, 1);
        assert_eq!(device_of(mounts, number).as_deref(), Some("/dev/sda1"));
        assert_eq!(device_of(mounts, rustix::fs::makedev(9, 1)), None);
    }
}
