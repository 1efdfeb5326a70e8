//! What the node, its pods and containers use, read when somebody asks: cgroup files, file systems
//! and `/proc`. Upstream: `pkg/kubelet/server/stats`, `pkg/kubelet/metrics/collectors`.

mod cadvisor;
mod resource;
mod summary;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::CStr;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_lock::MutexGuardArc;
use k8s_openapi::api::core::v1 as core;
use kube_controller_manager::objects::Timestamp;
use parking_lot::Mutex;
use rustix::fs::Stat;

pub use self::cadvisor::{Sandbox, cadvisor_metrics};
pub use self::resource::{resource_metrics, scrape_error};
pub use self::summary::*;

use crate::cgroups::details;
use crate::cgroups::usage::{self, Usage};
use crate::cgroups::{Hierarchy, SystemCgroups, max_pids};
use crate::csi::Amounts;
use crate::files::tree;
use crate::images::ImageUse;
use crate::metrics::ClaimAmounts;
use crate::pod::{Pod, PodExt, Uid};
use crate::volumes::{Folders, MeasuredVolume};

/// What logs and containers write is measured at most once in this time. Upstream: containerd's
/// `stats_collect_period`, and cAdvisor's period of disk usage.
const WALK_PERIOD: Duration = Duration::from_secs(60);

/// A rate is computed over at least this time.
const WINDOW: Duration = Duration::from_secs(1);

/// What is measured.
pub struct StatsSource<'a> {
    pub node: &'a str,
    pub memory_bytes: u64,
    pub folders: &'a Folders,
    pub hierarchy: &'a Hierarchy,
    /// The paths of the cgroups of all pods, of the classes that have their own, and of a pod.
    pub all_pods: Option<String>,
    pub classes: Vec<String>,
    pub cgroup_of: &'a dyn Fn(&Pod) -> Option<String>,
    pub system_cgroups: &'a SystemCgroups,
    /// When the kubelet has started.
    pub started: Timestamp,
    /// What the runtime uses for images, with the folder of their disk.
    pub images: Option<ImageUse>,
    pub pods: &'a [Pod],
    /// When running containers started, in microseconds since 1970, by their ids as statuses have
    /// them. Statuses have whole seconds: a container that has just started again would seem to be
    /// the one before.
    pub starts: &'a HashMap<String, i64>,
    pub now: Timestamp,
    pub monotonic: Duration,
    /// What a volume's files use is measured at most once in this time; `None`: never.
    pub volume_period: Option<Duration>,
    /// Without what files of volumes and logs use.
    pub only_cpu_and_memory: bool,
}

/// A reading of the CPU time of a cgroup, and the rate up to then.
#[derive(Clone, Copy, Debug)]
struct Sample {
    at: Duration,
    nanos: u64,
    rate: Option<u64>,
}

/// What a folder uses, measured at a time.
#[derive(Clone, Copy, Debug)]
struct Walk {
    at: Duration,
    bytes: u64,
    inodes: u64,
}

/// Keeps the last samples of CPU time, for rates, and what folders used.
#[derive(Debug, Default)]
pub struct Stats {
    samples: Mutex<HashMap<String, Sample>>,
    walks: Mutex<HashMap<PathBuf, Walk>>,
    /// Held while folders are measured.
    walking: Arc<async_lock::Mutex<()>>,
}

impl Stats {
    /// Computes the nanoseconds of CPU time that a cgroup takes a second, since its last sample;
    /// within `WINDOW` of that, returns its rate again. `None` for the first one.
    fn rate(&self, path: &str, nanos: u64, now: Duration) -> Option<u64> {
        let mut samples = self.samples.lock();
        let rate = match samples.get(path) {
            Some(last) if now.saturating_sub(last.at) < WINDOW => return last.rate,
            Some(last) => {
                let spent = u128::from(nanos.saturating_sub(last.nanos)) * 1_000_000_000;
                let rate = spent.checked_div(now.saturating_sub(last.at).as_nanos());
                rate.and_then(|rate| u64::try_from(rate).ok())
            }
            None => None,
        };
        samples.insert(path.to_owned(), Sample { at: now, nanos, rate });
        rate
    }

    /// Forgets cgroups and folders that were not measured for long.
    fn tidy(&self, now: Duration) {
        let limit = Duration::from_secs(600);
        self.samples.lock().retain(|_, sample| now.saturating_sub(sample.at) < limit);
        self.walks.lock().retain(|_, walk| now.saturating_sub(walk.at) < limit);
    }

    /// Waits until no other measurement of folders runs, and holds off the next ones until the
    /// guard is dropped. A measurement cannot be cancelled: without this, clients which come and go
    /// could begin any number.
    pub async fn lock_walks(&self) -> MutexGuardArc<()> {
        self.walking.lock_arc().await
    }

    /// Measures what a folder uses of its file system, at most once in `period`. `None`: the folder
    /// does not exist, or cannot be read.
    fn measure_folder(
        &self,
        source: &StatsSource<'_>,
        folder: &Path,
        period: Duration,
    ) -> Option<Fs> {
        let disk = disk(&source.now.to_string(), folder)?;
        let walk = self.walk(folder, source.monotonic, period);
        Some(Fs { used_bytes: Some(walk.bytes), inodes_used: Some(walk.inodes), ..disk })
    }

    /// Returns what a folder uses: what was measured last, or, if that is `period` old, a new
    /// measurement.
    fn walk(&self, folder: &Path, now: Duration, period: Duration) -> Walk {
        let last = self.walks.lock().get(folder).copied();
        let is_recent = |walk: &Walk| now.saturating_sub(walk.at) < period;
        last.filter(is_recent).unwrap_or_else(|| {
            let (bytes, inodes) = folder_usage(folder);
            let walk = Walk { at: now, bytes, inodes };
            self.walks.lock().insert(folder.to_owned(), walk);
            walk
        })
    }

    /// Measures the logs of running containers, each at most once a minute. Returns the uid,
    /// namespace and name of the pod, the name of the container, and the bytes. Blocks.
    pub fn logs(&self, folders: &Folders, pods: &[Pod], now: Duration) -> Vec<([String; 4], u64)> {
        self.tidy(now);
        let logs_of = |pod: &Pod, container: &core::ContainerStatus| {
            let (uid, namespace, name) = (pod.uid(), pod.namespace(), pod.name());
            let labels = [&*uid, namespace, name, &container.name].map(str::to_owned);
            let folder = folders.pod_logs(pod).join(&container.name);
            (labels, self.walk(&folder, now, WALK_PERIOD).bytes)
        };
        let of_pod = |pod: &Pod| -> Vec<_> {
            let all = pod.status.iter().flat_map(running);
            all.map(|(container, _)| logs_of(pod, container)).collect()
        };
        pods.iter().flat_map(of_pod).collect()
    }

    /// Measures what the container of a process has written to its own layer, where that is an
    /// overlay's.
    fn rootfs(&self, source: &StatsSource<'_>, process: u32) -> Option<Fs> {
        let mounts = File::open(format!("/proc/{process}/mountinfo")).ok()?;
        // The kernel writes a line when it is asked for, and that of the root is the first one.
        let mounts = BufReader::with_capacity(1 << 10, mounts).lines().map_while(Result::ok);
        self.measure_folder(source, &upper_folder(mounts)?, WALK_PERIOD)
    }

    /// Converts the usage of the cgroup at `path` to the form of the summary, with the rate of CPU
    /// since the last reading.
    fn used(&self, source: &StatsSource<'_>, path: &str, usage: &Usage) -> Used {
        let time = source.now.to_string();
        let memory_time = time.clone();
        let mut pressure = match source.only_cpu_and_memory {
            true => BTreeMap::new(),
            false => details::pressure(source.hierarchy, path),
        };
        let mut psi = |resource| pressure.remove(resource).map(PsiStats::from);
        Used {
            io: psi("io").map(|psi| IoStats { time: time.clone(), psi }),
            cpu: usage.cpu_nanos.map(|nanos| CpuStats {
                time: time.clone(),
                usage_nano_cores: self.rate(path, nanos, source.monotonic),
                usage_core_nano_seconds: nanos,
                psi: psi("cpu"),
            }),
            memory: usage.memory.map(|memory| MemoryStats {
                time: memory_time,
                available_bytes: memory.available(),
                usage_bytes: memory.usage,
                working_set_bytes: memory.working_set,
                rss_bytes: memory.rss,
                page_faults: memory.page_faults,
                major_page_faults: memory.major_page_faults,
                psi: psi("memory"),
            }),
            swap: usage.swap.map(|swap| SwapStats {
                time,
                swap_available_bytes: usage.swap_available,
                swap_usage_bytes: swap,
            }),
        }
    }

    /// Measures the node and its pods. Blocks.
    pub fn summary(&self, source: &StatsSource<'_>) -> Summary {
        self.tidy(source.monotonic);
        Summary {
            node: self.node(source),
            pods: source.pods.iter().filter_map(|pod| self.pod(source, pod)).collect(),
            time: source.now,
        }
    }

    /// Measures the node: the machine, the cgroup of all pods, network and disks.
    fn node(&self, source: &StatsSource<'_>) -> NodeStats {
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let mut usage = usage::read(source.hierarchy, "/");
        usage.memory = Some(usage::machine_memory(source.hierarchy, source.memory_bytes));
        (usage.swap, usage.swap_available) = usage::swap_of_machine(&meminfo);
        let started = boot_time();
        let time = source.now.to_string();
        let is_full = !source.only_cpu_and_memory;
        NodeStats {
            node_name: source.node.to_owned(),
            system_containers: self.system_containers(source, started),
            start_time: started.to_string(),
            used: self.used(source, "/", &usage),
            network: is_full.then(|| network(&time, None)).flatten(),
            fs: is_full.then(|| disk(&time, &source.folders.root)).flatten(),
            runtime: source.images.as_ref().filter(|_| is_full).map(|images| {
                let disk = disk(&time, Path::new(&images.mount_point));
                let used = disk.clone().map(|disk| Fs {
                    used_bytes: Some(images.bytes),
                    inodes_used: Some(images.inodes),
                    ..disk
                });
                Runtime { image_fs: used.clone(), container_fs: used }
            }),
            rlimit: is_full.then(|| rlimit(&time)).flatten(),
        }
    }

    /// Measures the cgroups of all pods, of the kubelet and of the runtime, those that exist.
    /// `booted`: when the machine was started. Upstream: `GetSystemContainersStats`.
    fn system_containers(
        &self,
        source: &StatsSource<'_>,
        booted: Timestamp,
    ) -> Vec<ContainerStats> {
        let pods = source.all_pods.iter().map(|path| ("pods", path.as_str()));
        let all = pods.chain(source.system_cgroups.named()).filter_map(|(name, path)| {
            let folder = source.hierarchy.folder("memory", path)?;
            let made = fs::metadata(folder).ok()?.mtime();
            let mut usage = usage::read(source.hierarchy, path);
            let start = match name {
                "pods" => booted,
                "kubelet" => source.started,
                _ => Timestamp::from_secs(made),
            };
            if name == "pods"
                && let Some(memory) = &mut usage.memory
            {
                memory.limit = memory.limit.or(Some(source.memory_bytes));
            }
            Some(ContainerStats {
                name: name.to_owned(),
                start_time: start.to_string(),
                used: self.used(source, path, &usage),
                ..Default::default()
            })
        });
        all.collect()
    }

    /// Measures a pod and its running containers. `None`: no container of it runs, or it has no
    /// cgroup.
    fn pod(&self, source: &StatsSource<'_>, pod: &Pod) -> Option<PodStats> {
        let status = pod.status.as_ref()?;
        let path = (source.cgroup_of)(pod)?;
        let mut containers = Vec::new();
        let mut process = None;
        for (container, running) in running(status) {
            let Some(full_id) = &container.container_id else { continue };
            let Some((_, id)) = full_id.split_once("://") else { continue };
            let reported = || running.started_at.as_ref().map(|time| time.0.as_microsecond());
            let started = source.starts.get(full_id).copied().or_else(reported).unwrap_or(0);
            let below = source.hierarchy.container_below(&path, id);
            let usage = usage::read(source.hierarchy, &below);
            let own_process = usage::first_process(source.hierarchy, &below);
            process = process.or(own_process);
            let rootfs = own_process.filter(|_| !source.only_cpu_and_memory);
            let logs = source.folders.pod_logs(pod).join(&container.name);
            containers.push(ContainerStats {
                name: container.name.clone(),
                start_time: Timestamp::from_micros(started).to_string(),
                used: self.used(source, &below, &usage),
                rootfs: rootfs.and_then(|process| self.rootfs(source, process)),
                logs: (!source.only_cpu_and_memory)
                    .then(|| self.measure_folder(source, &logs, WALK_PERIOD))
                    .flatten(),
                started_micros: started,
            });
        }
        if containers.is_empty() {
            return None;
        }
        let time = source.now.to_string();
        let usage = usage::read(source.hierarchy, &path);
        let is_full = !source.only_cpu_and_memory;
        let volumes = if is_full { self.volumes(source, pod) } else { Vec::new() };
        let local = volumes.iter().filter(|volume| volume.is_local).map(|volume| &volume.stats.fs);
        let own = containers.iter().flat_map(|one| [&one.logs, &one.rootfs]).flatten();
        let counted: Vec<&Fs> = local.chain(own).collect();
        let sum = |of: fn(&Fs) -> Option<u64>| counted.iter().filter_map(|fs| of(fs)).sum();
        let ephemeral_storage = is_full.then(|| disk(&time, &source.folders.root)).flatten();
        let ephemeral_storage = ephemeral_storage.map(|disk| Fs {
            used_bytes: Some(sum(|fs| fs.used_bytes)),
            inodes_used: Some(sum(|fs| fs.inodes_used)),
            ..disk
        });
        let started = status.start_time.as_ref().map_or(0, |time| time.0.as_microsecond());
        let own_network = process.filter(|_| is_full && !pod.is_host_network());
        Some(PodStats {
            pod_ref: PodRef {
                name: pod.name().to_owned(),
                namespace: pod.namespace().to_owned(),
                uid: pod.uid().to_string(),
            },
            start_time: Timestamp::from_micros(started).to_string(),
            used: self.used(source, &path, &usage),
            network: own_network.and_then(|process| network(&time, Some(process))),
            ephemeral_storage,
            volumes: volumes.into_iter().map(|volume| volume.stats).collect(),
            processes: usage::processes(source.hierarchy, &path)
                .map(|process_count| Processes { process_count }),
            containers,
        })
    }

    /// Measures the volumes whose files are in the pod's folder.
    fn volumes(&self, source: &StatsSource<'_>, pod: &Pod) -> Vec<OwnVolume> {
        let Some(period) = source.volume_period else { return Vec::new() };
        let all = pod.spec().volumes.iter().flatten().filter_map(|volume| {
            // The folder of its kind, and whether it is on the node's disk. Upstream:
            // `IsLocalEphemeralVolume`.
            let (kind, is_local) = match volume {
                volume if volume.config_map.is_some() => ("configmap", true),
                volume if volume.secret.is_some() => ("secret", false),
                volume if volume.downward_api.is_some() => ("downward-api", false),
                volume if volume.projected.is_some() => ("projected", false),
                volume => {
                    let empty = volume.empty_dir.as_ref()?;
                    ("empty-dir", empty.medium.as_deref().unwrap_or_default().is_empty())
                }
            };
            let folder = source.folders.volume(&pod.uid(), kind, &volume.name);
            let fs = self.measure_folder(source, &folder, period)?;
            let stats = VolumeStats { fs, name: volume.name.clone(), claim: None };
            Some(OwnVolume { stats, is_local })
        });
        all.collect()
    }
}

/// A volume whose files are in the pod's folder.
struct OwnVolume {
    stats: VolumeStats,
    /// It counts as the pod's usage of the node's disk.
    is_local: bool,
}

/// Adds to a summary what the volumes of claims and drivers hold.
pub fn add_volumes(summary: &mut Summary, measured: &HashMap<Uid, Vec<MeasuredVolume>>) {
    for pod in &mut summary.pods {
        let Some(volumes) = measured.get(&*pod.pod_ref.uid) else { continue };
        let namespace = pod.pod_ref.namespace.clone();
        let claim_ref = |name| ClaimRef { name, namespace: namespace.clone() };
        pod.volumes.extend(volumes.iter().map(|volume| {
            let Amounts { capacity_bytes, available_bytes, used_bytes, .. } = volume.amounts;
            let Amounts { inodes, inodes_free, inodes_used, .. } = volume.amounts;
            VolumeStats {
                fs: Fs {
                    time: volume.time.to_string(),
                    available_bytes,
                    capacity_bytes,
                    used_bytes: Some(used_bytes),
                    inodes_free,
                    inodes,
                    inodes_used: Some(inodes_used),
                },
                name: volume.name.clone(),
                claim: volume.claim.clone().map(claim_ref),
            }
        }));
    }
}

/// Returns what the volumes of claims hold, for metrics: by namespace and claim.
pub fn claim_amounts(
    pods: &[Arc<Pod>],
    measured: &HashMap<Uid, Vec<MeasuredVolume>>,
) -> BTreeMap<(String, String), ClaimAmounts> {
    let of_pods = pods.iter().flat_map(|pod| {
        let volumes = measured.get(&pod.uid()).into_iter().flatten();
        volumes.filter_map(move |volume| {
            let key = (pod.namespace().to_owned(), volume.claim.clone()?);
            let Amounts { capacity_bytes, available_bytes, used_bytes, .. } = volume.amounts;
            let Amounts { inodes, inodes_free, inodes_used, .. } = volume.amounts;
            let bytes = [capacity_bytes, available_bytes, used_bytes];
            Some((key, [bytes[0], bytes[1], bytes[2], inodes, inodes_free, inodes_used]))
        })
    });
    of_pods.collect()
}

/// Returns the size and use of the file system of a path; `None`: the path does not exist, or
/// cannot be read.
fn disk(time: &str, path: &Path) -> Option<Fs> {
    let stat = rustix::fs::statvfs(path).ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
    Some(Fs {
        time: time.to_owned(),
        available_bytes: bytes(stat.f_bavail),
        capacity_bytes: bytes(stat.f_blocks),
        used_bytes: Some(bytes(stat.f_blocks.saturating_sub(stat.f_bfree))),
        inodes_free: stat.f_ffree,
        inodes: stat.f_files,
        inodes_used: Some(stat.f_files.saturating_sub(stat.f_ffree)),
    })
}

/// Sums the bytes and inodes that a folder uses, without other file systems mounted below it. Each
/// inode counts once. Blocks. Upstream: `fsquota`, `GetDirUsage`.
pub fn folder_usage(folder: &Path) -> (u64, u64) {
    let Ok(data) = fs::metadata(folder) else { return (0, 0) };
    let (mut bytes, mut inodes) = (data.blocks() * 512, 1);
    let mut seen = BTreeSet::new();
    let mut enter = |_: BorrowedFd<'_>, _: &CStr, status: &Stat| {
        let is_folder = tree::is_folder(status);
        let is_linked = status.st_nlink > 1 && !is_folder;
        // Another file system may have an inode of the same number.
        if status.st_dev != data.dev() || is_linked && !seen.insert(status.st_ino) {
            return Ok(false);
        }
        bytes += status.st_blocks.unsigned_abs() * 512;
        inodes += 1;
        Ok(is_folder)
    };
    if let Err(error) = tree::walk(folder, &mut enter, &mut |_, _| Ok(())) {
        log::debug!("{}: not all of it is measured: {error}", folder.display());
    }
    (bytes, inodes)
}

/// Returns when the machine was started.
fn boot_time() -> Timestamp {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = stat.lines().find_map(|line| line.strip_prefix("btime "));
    let seconds: i64 = line.and_then(|seconds| seconds.trim().parse().ok()).unwrap_or_default();
    Timestamp::from_micros(seconds.saturating_mul(1_000_000))
}

/// Returns the number of threads of the machine, and their limit.
fn rlimit(time: &str) -> Option<Rlimit> {
    let (curproc, maxpid) = processes()?;
    Some(Rlimit { time: time.to_owned(), maxpid, curproc })
}

/// Returns the number of threads of the machine, and how many there can be.
pub fn processes() -> Option<(i64, i64)> {
    let load = fs::read_to_string("/proc/loadavg").ok()?;
    // Running and all threads, as `1/234`.
    let (_, all) = load.split(' ').nth(3)?.split_once('/')?;
    Some((all.parse().ok()?, max_pids()?))
}

/// Returns the folder in which an overlay at the root keeps what is written; `None`: the root is no
/// overlay. `mounts`: the lines of a process's `mountinfo`.
fn upper_folder(mut mounts: impl Iterator<Item = String>) -> Option<PathBuf> {
    mounts.find_map(|line| {
        let (front, back) = line.split_once(" - overlay ")?;
        let mut options = back.rsplit(' ').next()?.split(',');
        let is_root = front.split(' ').nth(4) == Some("/");
        let folder = options.find_map(|option| option.strip_prefix("upperdir="))?;
        is_root.then(|| folder.into())
    })
}

/// Returns the network of a process, or of this one. Its default interface is `eth0`, or else the
/// first.
fn network(time: &str, process: Option<u32>) -> Option<Network> {
    let interfaces = interfaces_of(process);
    let default = interfaces.iter().find(|one| one.name == "eth0").or(interfaces.first());
    let default = default.cloned().unwrap_or_default();
    (!interfaces.is_empty()).then(|| Network { time: time.to_owned(), default, interfaces })
}

/// Returns the interfaces of a process, or of this one.
fn interfaces_of(process: Option<u32>) -> Vec<Interface> {
    let process = process.map_or("self".to_owned(), |process| process.to_string());
    let text = fs::read_to_string(format!("/proc/{process}/net/dev"));
    text.map(|text| interfaces(&text)).unwrap_or_default()
}

/// Parses the interfaces of a network but the loopback.
fn interfaces(text: &str) -> Vec<Interface> {
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    let parsed = lines.filter_map(|(name, counts)| {
        let counts: Vec<u64> =
            counts.split_whitespace().map(|count| count.parse().unwrap_or(0)).collect();
        Some(Interface {
            name: name.trim().to_owned(),
            rx_bytes: *counts.first()?,
            rx_errors: *counts.get(2)?,
            tx_bytes: *counts.get(8)?,
            tx_errors: *counts.get(10)?,
            counts,
        })
    });
    parsed.filter(|interface| interface.name != "lo").collect()
}

/// Lists the running containers of a pod, with their states.
fn running(
    status: &core::PodStatus,
) -> impl Iterator<Item = (&core::ContainerStatus, &core::ContainerStateRunning)> {
    let all = [
        &status.init_container_statuses,
        &status.container_statuses,
        &status.ephemeral_container_statuses,
    ];
    all.into_iter()
        .flatten()
        .flatten()
        .filter_map(|container| Some((container, container.state.as_ref()?.running.as_ref()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_over_the_time_since_the_last_question() {
        let stats = Stats::default();
        let seconds = Duration::from_secs;
        for (at, nanos, rate) in [
            (10, 5_000_000_000, None),
            (12, 6_000_000_000, Some(500_000_000)),
            // This is too early: the last rate stays.
            (12, 9_000_000_000, Some(500_000_000)),
            (13, 9_000_000_000, Some(3_000_000_000)),
            // A cgroup that was made again.
            (14, 0, Some(0)),
        ] {
            assert_eq!(stats.rate("/a", nanos, seconds(at)), rate, "{at}");
        }
        stats.tidy(seconds(1000));
        assert_eq!(stats.rate("/a", 0, seconds(1000)), None);
    }

    #[test]
    fn logs_of_running_containers_are_measured() {
        let base = std::env::temp_dir().join(format!("kubelet-logsize-{}", std::process::id()));
        let status = |name: &str, state: serde_json::Value| {
            serde_json::json!({"name": name, "image": "", "imageID": "", "ready": true,
                               "restartCount": 0, "state": state})
        };
        let pod = serde_json::json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u"},
            "status": {
                "initContainerStatuses": [status("i", serde_json::json!({"terminated": {"exitCode": 0}}))],
                "containerStatuses": [status("c", serde_json::json!({"running": {}}))],
            },
        });
        let pod: Pod = serde_json::from_value(pod).expect("a pod");
        let folders = Folders { root: base.clone(), logs: base.join("logs") };
        for container in ["i", "c"] {
            let folder = folders.pod_logs(&pod).join(container);
            fs::create_dir_all(&folder).expect("a folder");
            fs::write(folder.join("0.log"), [b'x'; 5000]).expect("a log");
        }
        let stats = Stats::default();
        let logs = stats.logs(&folders, &[pod], Duration::ZERO);
        let [(labels, bytes)] = &logs[..] else { panic!("{logs:?}") };
        assert_eq!(labels.join("/"), "u/n/p/c");
        assert!(*bytes >= 5000, "{bytes}");
        for (at, kept) in [(599, 1), (600, 0)] {
            stats.logs(&folders, &[], Duration::from_secs(at));
            assert_eq!(stats.walks.lock().len(), kept, "{at}");
        }
        fs::remove_dir_all(&base).expect("removed");
    }

    #[test]
    fn cgroups_of_the_nodes_programs_are_measured() {
        let base = std::env::temp_dir().join(format!("kubelet-system-{}", std::process::id()));
        for (path, bytes) in [("pods", "700"), ("system/kubelet", "30"), ("runtime", "50")] {
            let folder = base.join("memory").join(path);
            fs::create_dir_all(&folder).expect("a folder");
            fs::write(folder.join("memory.usage_in_bytes"), bytes).expect("a file");
            fs::write(folder.join("memory.stat"), "total_rss 1\n").expect("a file");
        }
        let stats = Stats::default();
        let folders = Folders { root: base.clone(), logs: base.clone() };
        for (kubelet, runtime, expected) in [
            ("/system/kubelet", "/runtime", &[("pods", 700), ("kubelet", 30), ("runtime", 50)][..]),
            ("/system/kubelet", "", &[("pods", 700), ("kubelet", 30)]),
            ("/absent", "", &[("pods", 700)]),
        ] {
            let source = StatsSource {
                node: "n",
                memory_bytes: 1000,
                folders: &folders,
                hierarchy: &Hierarchy::v1_for_tests(&base, &["cpu", "memory"]),
                all_pods: Some("/pods".to_owned()),
                classes: Vec::new(),
                system_cgroups: &SystemCgroups::detect(kubelet, runtime),
                started: Timestamp::from_secs(7),
                cgroup_of: &|_| None,
                images: None,
                pods: &[],
                starts: &HashMap::new(),
                now: Timestamp::from_secs(9),
                monotonic: Duration::from_secs(9),
                volume_period: None,
                only_cpu_and_memory: true,
            };
            let node = stats.summary(&source).node;
            let found = node.system_containers.iter().map(|one| {
                let memory = one.used.memory.as_ref().expect("memory");
                // Only pods have the machine's limit where their cgroup has none.
                assert_eq!(memory.available_bytes.is_some(), one.name == "pods");
                let is_start = one.start_time == "1970-01-01T00:00:07Z";
                assert_eq!(is_start, one.name == "kubelet", "{}", one.start_time);
                (one.name.as_str(), memory.usage_bytes)
            });
            assert_eq!(found.collect::<Vec<_>>(), expected);
        }
        fs::remove_dir_all(&base).expect("removed");
    }

    #[test]
    fn interfaces_are_read_without_the_loopback() {
        let text = "Inter-|   Receive  |  Transmit\n face |bytes    packets errs|bytes\n    lo:  1 2 3 4 5 6 \
                    7 8 9 10 11\n  eth0: 100 2 3 4 5 6 7 8 900 10 11 0 0 0 0 0\n";
        let found = interfaces(text);
        assert_eq!(found.len(), 1, "{found:?}");
        let Interface { name, rx_bytes, rx_errors, tx_bytes, tx_errors, counts } = &found[0];
        assert_eq!(counts.len(), 16);
        assert_eq!((&**name, *rx_bytes, *rx_errors), ("eth0", 100, 3));
        assert_eq!((*tx_bytes, *tx_errors), (900, 11));
    }

    #[test]
    fn metrics_have_upstreams_names_and_the_time() {
        let used = || Used {
            cpu: Some(CpuStats { usage_core_nano_seconds: 1_500_000_000, ..Default::default() }),
            memory: Some(MemoryStats { working_set_bytes: 7, ..Default::default() }),
            io: None,
            swap: None,
        };
        let swap = SwapStats { swap_available_bytes: Some(2), ..Default::default() };
        let container = ContainerStats {
            name: "c".to_owned(),
            used: Used { swap: Some(swap), ..used() },
            started_micros: 1_500_000,
            ..Default::default()
        };
        let pod = PodStats {
            pod_ref: PodRef { name: "p".to_owned(), namespace: "n".to_owned(), uid: String::new() },
            containers: vec![container],
            used: used(),
            ..Default::default()
        };
        let node = NodeStats { used: used(), ..Default::default() };
        let time = Timestamp::from_micros(4_000_000);
        let text = resource_metrics(&Summary { node, pods: vec![pod], time });
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            lines,
            [
                "container_cpu_usage_seconds_total{container=\"c\",namespace=\"n\",pod=\"p\"} 1.5 4000",
                "container_memory_working_set_bytes{container=\"c\",namespace=\"n\",pod=\"p\"} 7 4000",
                "container_start_time_seconds{container=\"c\",namespace=\"n\",pod=\"p\"} 1.5",
                "container_swap_limit_bytes{container=\"c\",namespace=\"n\",pod=\"p\"} 2 4000",
                "container_swap_usage_bytes{container=\"c\",namespace=\"n\",pod=\"p\"} 0 4000",
                "node_cpu_usage_seconds_total 1.5 4000",
                "node_memory_working_set_bytes 7 4000",
                "pod_cpu_usage_seconds_total{namespace=\"n\",pod=\"p\"} 1.5 4000",
                "pod_memory_working_set_bytes{namespace=\"n\",pod=\"p\"} 7 4000",
                "resource_scrape_error 0",
            ]
        );
    }

    #[test]
    fn what_a_container_writes_is_in_the_upper_folder_of_its_root() {
        let overlay = "30 1 0:40 / / rw,relatime - overlay overlay \
                       rw,lowerdir=/l,upperdir=/c/1/fs,workdir=/c/1/work";
        let other = "31 30 0:41 / /v rw - overlay overlay rw,lowerdir=/l,upperdir=/other";
        let found = |lines: &[&str]| upper_folder(lines.iter().map(|line| (*line).to_owned()));
        assert_eq!(found(&[other, overlay]), Some("/c/1/fs".into()));
        assert_eq!(found(&[other]), None);
        assert_eq!(found(&["30 1 8:1 / / rw - ext4 /dev/sda1 rw"]), None);
    }

    #[test]
    fn usage_of_a_folder_counts_each_inode_once() {
        let folder = std::env::temp_dir().join(format!("kubelet-usage-of-{}", std::process::id()));
        fs::create_dir_all(folder.join("a")).expect("a folder");
        let (empty, _) = folder_usage(&folder);
        fs::write(folder.join("a/b"), vec![1; 100_000]).expect("a file");
        fs::hard_link(folder.join("a/b"), folder.join("c")).expect("a link");
        std::os::unix::fs::symlink("/", folder.join("d")).expect("a link");
        let (bytes, inodes) = folder_usage(&folder);
        assert_eq!(inodes, 4);
        assert!((100_000..120_000).contains(&(bytes - empty)), "{bytes} {empty}");
        assert_eq!(folder_usage(&folder.join("none")), (0, 0));
        fs::remove_dir_all(&folder).expect("removed");
    }

    #[test]
    fn volumes_of_claims_are_added_with_their_claims() {
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": {"containers": []},
        }))
        .expect("a pod");
        let amounts = Amounts {
            capacity_bytes: 6,
            available_bytes: 5,
            used_bytes: 4,
            inodes: 3,
            inodes_free: 2,
            inodes_used: 1,
        };
        let volume = |name: &str, claim: Option<&str>| MeasuredVolume {
            name: name.to_owned(),
            claim: claim.map(str::to_owned),
            time: Timestamp::from_secs(1),
            amounts,
        };
        let measured =
            HashMap::from([(pod.uid(), vec![volume("v", Some("c")), volume("inline", None)])]);
        let pod_ref =
            PodRef { name: "p".to_owned(), namespace: "n".to_owned(), uid: "u".to_owned() };
        let of_pod = PodStats { pod_ref, ..PodStats::default() };
        let mut summary = Summary { pods: vec![of_pod], ..Summary::default() };
        add_volumes(&mut summary, &measured);
        let shown = serde_json::to_value(&summary.pods[0].volumes).expect("JSON");
        let fs = serde_json::json!({
            "time": "1970-01-01T00:00:01Z", "availableBytes": 5, "capacityBytes": 6, "usedBytes": 4,
            "inodesFree": 2, "inodes": 3, "inodesUsed": 1, "name": "v",
            "pvcRef": {"name": "c", "namespace": "n"},
        });
        assert_eq!(shown[0], fs);
        assert_eq!((&shown[1]["name"], shown[1].get("pvcRef")), (&"inline".into(), None));
        let claims = claim_amounts(&[Arc::new(pod)], &measured);
        let expected = [(("n".to_owned(), "c".to_owned()), [6, 5, 4, 3, 2, 1])];
        assert_eq!(claims, BTreeMap::from(expected));
    }

    #[test]
    fn folders_are_walked_once_a_minute() {
        let folder = std::env::temp_dir().join(format!("kubelet-walks-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let stats = Stats::default();
        let seconds = Duration::from_secs;
        let inodes = |at| stats.walk(&folder, seconds(at), seconds(60)).inodes;
        assert_eq!(inodes(100), 1);
        fs::write(folder.join("a"), "").expect("a file");
        assert_eq!((inodes(159), inodes(160)), (1, 2));
        fs::remove_dir_all(&folder).expect("removed");
    }
}
