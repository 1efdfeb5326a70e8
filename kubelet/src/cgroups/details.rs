//! What the files of a cgroup say in detail, for the metrics of containers. Upstream: cAdvisor's
//! `container/libcontainer`.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;

use super::usage::{field, number, text};
use super::{Hierarchy, UNBOUNDED};

/// Readings of a cgroup; `None`: its file is absent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Details {
    pub cpu: Option<Cpu>,
    pub memory: Option<MemoryDetails>,
    /// By device, as `8:0`.
    pub io: BTreeMap<String, Io>,
    pub threads: Option<u64>,
    /// 0: there is no limit.
    pub threads_max: Option<u64>,
    /// Those of the cgroup itself, without those below it.
    pub processes: Option<Processes>,
    /// Version 2 with PSI: `cpu`, `memory` and `io`.
    pub pressure: BTreeMap<&'static str, Pressure>,
}

/// Nanoseconds of CPU time, and what limits it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cpu {
    pub usage: u64,
    pub user: u64,
    pub system: u64,
    pub periods: u64,
    pub throttled_periods: u64,
    pub throttled: u64,
    /// Periods in which saved time was used, and how much.
    pub burst_periods: u64,
    pub burst: u64,
    pub shares: u64,
    /// Microseconds.
    pub period: u64,
    /// Microseconds in a period; `None`: there is no limit.
    pub quota: Option<u64>,
}

/// Bytes of memory, and events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryDetails {
    pub usage: u64,
    /// The kernel may not say.
    pub max_usage: u64,
    pub working_set: u64,
    pub cache: u64,
    pub rss: u64,
    pub kernel: u64,
    pub mapped_file: u64,
    pub swap: u64,
    pub active_file: u64,
    pub inactive_file: u64,
    pub failures: u64,
    pub oom_kills: u64,
    pub page_faults: u64,
    pub major_page_faults: u64,
    /// Without those below it; in version 2 the kernel does not say.
    pub own_page_faults: u64,
    pub own_major_page_faults: u64,
    /// 0: there is no limit.
    pub limit: u64,
    pub reservation: u64,
    pub swap_limit: u64,
}

/// Bytes and operations on a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Io {
    /// Bytes by `Read`, `Write`, and what else the kernel counts in version 1.
    pub bytes: BTreeMap<String, u64>,
    pub reads: u64,
    pub writes: u64,
}

/// The processes of one cgroup, and what they have open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Processes {
    /// The number of one of them; `None`: there is no process.
    pub first: Option<u32>,
    pub count: u64,
    pub descriptors: u64,
    pub sockets: u64,
}

/// How long processes have waited. Upstream: `PSIStats`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pressure {
    /// All of them.
    pub full: Stall,
    /// At least one.
    pub some: Stall,
}

/// The share of time in percent, and the total in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stall {
    pub total: u64,
    pub avg10: f64,
    pub avg60: f64,
    pub avg300: f64,
}

/// The files of a cgroup.
struct Files<'a> {
    hierarchy: &'a Hierarchy,
    path: &'a str,
}

impl Files<'_> {
    fn text(&self, controller: &str, file: &str) -> Option<String> {
        text(self.hierarchy, controller, self.path, file)
    }

    fn number(&self, controller: &str, file: &str) -> Option<u64> {
        number(&self.text(controller, file)?)
    }

    /// Reads a limit. 0: its file is absent, or it limits nothing.
    fn limit(&self, controller: &str, file: &str) -> u64 {
        let limit = self.number(controller, file);
        limit.filter(|limit| *limit < UNBOUNDED.unsigned_abs()).unwrap_or(0)
    }
}

/// Reads the cgroup at a path below the mounts. Blocks for a moment.
pub fn read(hierarchy: &Hierarchy, path: &str) -> Details {
    let files = Files { hierarchy, path };
    let mut details = match hierarchy.is_v2() {
        true => v2(&files),
        false => v1(&files),
    };
    details.processes = files.text("cpu", "cgroup.procs").map(|text| processes(&text));
    details
}

/// Counts the processes with these numbers, one a line, and what they have open. Upstream:
/// `processStatsFromProcs`.
fn processes(numbers: &str) -> Processes {
    let first = numbers.lines().next().and_then(|process| process.parse().ok());
    let mut counts = Processes { first, ..Processes::default() };
    for process in numbers.lines() {
        counts.count += 1;
        // One that has ended meanwhile has nothing open.
        for descriptor in fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten() {
            let Ok(descriptor) = descriptor else { continue };
            counts.descriptors += 1;
            let target = fs::read_link(descriptor.path());
            if target.is_ok_and(|target| target.as_os_str().as_bytes().starts_with(b"socket")) {
                counts.sockets += 1;
            }
        }
    }
    counts
}

/// Returns how many files a process may have open; -1: as many as it likes. `None`: it has ended,
/// or its limits cannot be read.
pub fn open_file_limit(process: u32) -> Option<i64> {
    soft_limit(&fs::read_to_string(format!("/proc/{process}/limits")).ok()?)
}

/// Returns the soft limit of open files in the content of `/proc/PID/limits`; -1: it is unlimited.
fn soft_limit(limits: &str) -> Option<i64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(-1),
        number => number.parse().ok(),
    }
}

/// Reads how long the processes of a cgroup have waited; empty: the kernel does not count it.
pub fn pressure(hierarchy: &Hierarchy, path: &str) -> BTreeMap<&'static str, Pressure> {
    if !hierarchy.is_v2() {
        return BTreeMap::new();
    }
    let files = Files { hierarchy, path };
    let of = |resource: &'static str| {
        let own = files.text(resource, &format!("{resource}.pressure"));
        // The root of the cgroups has none.
        let text = match path {
            "/" => own.or_else(|| fs::read_to_string(format!("/proc/pressure/{resource}")).ok()),
            _ => own,
        };
        Some((resource, stalls(&text?)?))
    };
    ["cpu", "memory", "io"].into_iter().filter_map(of).collect()
}

/// Parses the pressure of one resource, from lines `some avg10=0.00 avg60=0.00 avg300=0.00
/// total=0`. `None`: it has no line `some`. Older kernels have no line `full` for CPU: all are 0.
fn stalls(text: &str) -> Option<Pressure> {
    let stall = |kind: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(kind)?.strip_prefix(' '))?;
        let value = |name: &str| {
            line.split(' ').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
        };
        let share = |name: &str| value(name).and_then(|text| text.parse().ok()).unwrap_or(0.0);
        Some(Stall {
            total: value("total")?.parse().ok()?,
            avg10: share("avg10"),
            avg60: share("avg60"),
            avg300: share("avg300"),
        })
    };
    Some(Pressure { some: stall("some")?, full: stall("full").unwrap_or_default() })
}

/// Reads the details of a cgroup in the files of version 1.
fn v1(files: &Files<'_>) -> Details {
    let cpu = files.number("cpuacct", "cpuacct.usage").map(|usage| {
        let ticks = files.text("cpuacct", "cpuacct.stat").unwrap_or_default();
        // A tick is 10 ms.
        let nanos = |name: &str| field(&ticks, name).unwrap_or(0).saturating_mul(10_000_000);
        let stat = files.text("cpu", "cpu.stat").unwrap_or_default();
        Cpu {
            usage,
            user: nanos("user"),
            system: nanos("system"),
            periods: field(&stat, "nr_periods").unwrap_or(0),
            throttled_periods: field(&stat, "nr_throttled").unwrap_or(0),
            throttled: field(&stat, "throttled_time").unwrap_or(0),
            burst_periods: field(&stat, "nr_bursts").unwrap_or(0),
            burst: field(&stat, "burst_time").unwrap_or(0),
            shares: files.number("cpu", "cpu.shares").unwrap_or(0),
            period: files.number("cpu", "cpu.cfs_period_us").unwrap_or(0),
            quota: files.number("cpu", "cpu.cfs_quota_us").filter(|quota| *quota > 0),
        }
    });
    let memory = files.text("memory", "memory.stat").map(|stat| {
        let of = |name: &str| field(&stat, name).unwrap_or(0);
        let usage = files.number("memory", "memory.usage_in_bytes").unwrap_or(0);
        let control = files.text("memory", "memory.oom_control").unwrap_or_default();
        MemoryDetails {
            usage,
            max_usage: files.number("memory", "memory.max_usage_in_bytes").unwrap_or(0),
            working_set: usage.saturating_sub(of("total_inactive_file")),
            cache: of("total_cache"),
            rss: of("total_rss"),
            kernel: files.number("memory", "memory.kmem.usage_in_bytes").unwrap_or(0),
            mapped_file: of("total_mapped_file"),
            swap: of("total_swap"),
            active_file: of("total_active_file"),
            inactive_file: of("total_inactive_file"),
            failures: files.number("memory", "memory.failcnt").unwrap_or(0),
            oom_kills: field(&control, "oom_kill").unwrap_or(0),
            page_faults: of("total_pgfault"),
            major_page_faults: of("total_pgmajfault"),
            own_page_faults: of("pgfault"),
            own_major_page_faults: of("pgmajfault"),
            limit: files.limit("memory", "memory.limit_in_bytes"),
            reservation: files.limit("memory", "memory.soft_limit_in_bytes"),
            swap_limit: files.limit("memory", "memory.memsw.limit_in_bytes"),
        }
    });
    let mut io: BTreeMap<String, Io> = BTreeMap::new();
    for (file, is_bytes) in
        [("blkio.throttle.io_service_bytes", true), ("blkio.throttle.io_serviced", false)]
    {
        let text = files.text("blkio", &format!("{file}_recursive"));
        let text = text.or_else(|| files.text("blkio", file)).unwrap_or_default();
        for line in text.lines() {
            let mut parts = line.split(' ');
            let (Some(device), Some(kind), Some(value)) =
                (parts.next(), parts.next(), parts.next().and_then(number))
            else {
                continue;
            };
            let counts = io.entry(device.to_owned()).or_default();
            match kind {
                _ if is_bytes => _ = counts.bytes.insert(kind.to_owned(), value),
                "Read" => counts.reads = value,
                "Write" => counts.writes = value,
                _ => {}
            }
        }
    }
    Details {
        cpu,
        memory,
        io,
        threads: files.number("pids", "pids.current"),
        threads_max: files.text("pids", "pids.max").map(|text| number(&text).unwrap_or(0)),
        ..Details::default()
    }
}

/// Reads the details of a cgroup in the files of version 2.
fn v2(files: &Files<'_>) -> Details {
    let cpu = files.text("cpu", "cpu.stat").and_then(|stat| {
        let nanos = |name: &str| field(&stat, name).map(|micros| micros.saturating_mul(1000));
        let max = files.text("cpu", "cpu.max").unwrap_or_default();
        let (quota, period) = max.trim().split_once(' ').unwrap_or(("max", "0"));
        let weight = files.number("cpu", "cpu.weight");
        Some(Cpu {
            usage: nanos("usage_usec")?,
            user: nanos("user_usec").unwrap_or(0),
            system: nanos("system_usec").unwrap_or(0),
            periods: field(&stat, "nr_periods").unwrap_or(0),
            throttled_periods: field(&stat, "nr_throttled").unwrap_or(0),
            throttled: nanos("throttled_usec").unwrap_or(0),
            burst_periods: field(&stat, "nr_bursts").unwrap_or(0),
            burst: nanos("burst_usec").unwrap_or(0),
            shares: weight.map_or(0, super::resources::shares_of_weight),
            period: number(period).unwrap_or(0),
            quota: number(quota),
        })
    });
    let memory = files.text("memory", "memory.stat").map(|stat| {
        let of = |name: &str| field(&stat, name).unwrap_or(0);
        // The root has no usage of its own.
        let usage = files.number("memory", "memory.current").unwrap_or(of("anon") + of("file"));
        let events = files.text("memory", "memory.events").unwrap_or_default();
        MemoryDetails {
            usage,
            max_usage: files.number("memory", "memory.peak").unwrap_or(0),
            working_set: usage.saturating_sub(of("inactive_file")),
            cache: of("file"),
            rss: of("anon"),
            kernel: of("kernel"),
            mapped_file: of("file_mapped"),
            swap: files.number("memory", "memory.swap.current").unwrap_or(0),
            active_file: of("active_file"),
            inactive_file: of("inactive_file"),
            failures: field(&events, "max").unwrap_or(0),
            oom_kills: field(&events, "oom_kill").unwrap_or(0),
            page_faults: of("pgfault"),
            major_page_faults: of("pgmajfault"),
            // The kernel does not count those without the cgroups below.
            own_page_faults: of("pgfault"),
            own_major_page_faults: of("pgmajfault"),
            limit: files.limit("memory", "memory.max"),
            reservation: files.limit("memory", "memory.high"),
            swap_limit: files.limit("memory", "memory.swap.max"),
        }
    });
    let mut io = BTreeMap::new();
    for line in files.text("io", "io.stat").unwrap_or_default().lines() {
        let Some((device, pairs)) = line.split_once(' ') else { continue };
        let of = |name: &str| {
            let mut values = pairs.split(' ').filter_map(|pair| pair.split_once('='));
            values.find(|(key, _)| *key == name).and_then(|(_, value)| number(value)).unwrap_or(0)
        };
        let bytes = [("Read", "rbytes"), ("Write", "wbytes")];
        let bytes = bytes.map(|(kind, name)| (kind.to_owned(), of(name)));
        let counts = Io { bytes: bytes.into(), reads: of("rios"), writes: of("wios") };
        io.insert(device.to_owned(), counts);
    }
    Details {
        cpu,
        memory,
        io,
        threads: files.number("pids", "pids.current"),
        threads_max: files.text("pids", "pids.max").map(|text| number(&text).unwrap_or(0)),
        pressure: pressure(files.hierarchy, files.path),
        ..Details::default()
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    struct Tree(PathBuf);

    impl Tree {
        fn new(name: &str, files: &[(&str, &str)]) -> Tree {
            let name = format!("kubelet-details-{name}-{}", std::process::id());
            let root = std::env::temp_dir().join(name);
            for (path, text) in files {
                let file = root.join(path);
                fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
                fs::write(file, text).expect("a file");
            }
            Tree(root)
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    const PSI: &str = "some avg10=1.50 avg60=0.25 avg300=0.00 total=700\n\
                       full avg10=0.00 avg60=0.00 avg300=0.00 total=30\n";

    #[test]
    fn files_of_version_2_are_read() {
        let tree = Tree::new(
            "v2",
            &[
                (
                    "a/cpu.stat",
                    "usage_usec 30\nuser_usec 20\nsystem_usec 10\nnr_periods 7\n\
                            nr_throttled 3\nthrottled_usec 5\nnr_bursts 2\nburst_usec 4\n",
                ),
                ("a/cpu.max", "20000 100000\n"),
                ("a/cpu.weight", "39\n"),
                ("a/cpu.pressure", PSI),
                (
                    "a/memory.stat",
                    "anon 100\nfile 200\nkernel 30\nfile_mapped 40\nactive_file 50\n\
                               inactive_file 60\npgfault 8\npgmajfault 1\n",
                ),
                ("a/memory.current", "1000\n"),
                ("a/memory.peak", "2000\n"),
                ("a/memory.max", "max\n"),
                ("a/memory.events", "low 0\nmax 4\noom 2\noom_kill 1\n"),
                ("a/io.stat", "8:0 rbytes=10 wbytes=20 rios=1 wios=2 dbytes=0\n"),
                ("a/pids.current", "3\n"),
                ("a/pids.max", "max\n"),
                ("a/cgroup.procs", "1\n2\n"),
            ],
        );
        let found = read(&Hierarchy::V2 { root: tree.0.clone() }, "/a");
        let cpu = found.cpu.expect("CPU");
        assert_eq!((cpu.usage, cpu.user, cpu.throttled), (30_000, 20_000, 5000));
        assert_eq!((cpu.burst_periods, cpu.burst), (2, 4000));
        assert_eq!((cpu.quota, cpu.period, cpu.shares), (Some(20_000), 100_000, 998));
        let memory = found.memory.expect("memory");
        assert_eq!((memory.usage, memory.working_set, memory.max_usage), (1000, 940, 2000));
        assert_eq!((memory.cache, memory.rss, memory.limit), (200, 100, 0));
        assert_eq!((memory.failures, memory.oom_kills, memory.page_faults), (4, 1, 8));
        let bytes = [("Read".to_owned(), 10), ("Write".to_owned(), 20)].into();
        let io = Io { bytes, reads: 1, writes: 2 };
        assert_eq!(found.io, BTreeMap::from([("8:0".to_owned(), io)]));
        assert_eq!(
            (found.threads, found.threads_max, found.processes.map(|own| own.count)),
            (Some(3), Some(0), Some(2))
        );
        let pressure = found.pressure["cpu"];
        assert_eq!((pressure.some.total, pressure.full.total), (700, 30));
        assert_eq!(pressure.some.avg10, 1.5);
        assert_eq!(found.pressure.len(), 1);
    }

    #[test]
    fn files_of_version_1_are_read() {
        let tree = Tree::new(
            "v1",
            &[
                ("cpuacct/a/cpuacct.usage", "30000\n"),
                ("cpuacct/a/cpuacct.stat", "user 2\nsystem 1\n"),
                ("cpu/a/cpu.stat", "nr_periods 7\nnr_throttled 3\nthrottled_time 5000\n"),
                ("cpu/a/cpu.shares", "1024\n"),
                ("cpu/a/cpu.cfs_period_us", "100000\n"),
                ("cpu/a/cpu.cfs_quota_us", "-1\n"),
                (
                    "memory/a/memory.stat",
                    "pgfault 5\ntotal_cache 200\ntotal_rss 100\n\
                                      total_inactive_file 60\ntotal_pgfault 8\n",
                ),
                ("memory/a/memory.usage_in_bytes", "1000\n"),
                ("memory/a/memory.limit_in_bytes", "4096\n"),
                ("memory/a/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"),
                (
                    "blkio/a/blkio.throttle.io_service_bytes",
                    "8:0 Read 10\n8:0 Write 20\n8:0 Total 30\n\
                                                         Total 30\n",
                ),
                ("blkio/a/blkio.throttle.io_serviced", "8:0 Read 1\n8:0 Write 2\n"),
            ],
        );
        let controllers = ["cpu", "cpuacct", "memory", "blkio"];
        let found = read(&Hierarchy::v1_for_tests(&tree.0, &controllers), "/a");
        let cpu = found.cpu.expect("CPU");
        assert_eq!((cpu.usage, cpu.user, cpu.system), (30_000, 20_000_000, 10_000_000));
        assert_eq!((cpu.quota, cpu.shares, cpu.throttled_periods), (None, 1024, 3));
        let memory = found.memory.expect("memory");
        assert_eq!((memory.working_set, memory.cache, memory.limit), (940, 200, 4096));
        assert_eq!((memory.page_faults, memory.own_page_faults, memory.oom_kills), (8, 5, 2));
        let bytes = [("Read", 10), ("Total", 30), ("Write", 20)];
        let bytes = bytes.map(|(kind, bytes)| (kind.to_owned(), bytes)).into();
        let io = Io { bytes, reads: 1, writes: 2 };
        assert_eq!(found.io, BTreeMap::from([("8:0".to_owned(), io)]));
        assert!(found.pressure.is_empty());
        let absent = read(&Hierarchy::v1_for_tests(&tree.0, &controllers), "/b");
        assert_eq!(absent, Details::default());
    }

    #[test]
    fn open_files_of_processes_are_counted_and_their_limit_is_read() {
        let (_one, _two) = std::os::unix::net::UnixStream::pair().expect("sockets");
        let own = processes(&format!("{}\n4194305\n", std::process::id()));
        assert_eq!((own.first, own.count), (Some(std::process::id()), 2), "one has ended");
        assert!(own.sockets >= 2 && own.descriptors >= own.sockets, "{own:?}");
        assert!(open_file_limit(std::process::id()).is_some());
        for (limits, expected) in [
            ("Limit  Soft Limit\nMax open files   1024   4096   files \n", Some(1024)),
            ("Max open files   unlimited   unlimited   files \n", Some(-1)),
            ("Max cpu time   1   1   seconds \n", None),
        ] {
            assert_eq!(soft_limit(limits), expected, "{limits}");
        }
    }
}
