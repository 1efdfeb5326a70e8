//! What a cgroup uses, read from its files. Upstream: `cadvisor`, `stats.containerStats`.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use super::Hierarchy;
use crate::node::huge_pages::PageSize;

/// Larger limits mean that there is no limit. Upstream: `maxMemorySize`.
const NO_LIMIT: u64 = 1 << 62;
/// The most bytes of a file of a cgroup that are read.
const MAX_BYTES: u64 = 16 << 20;

/// The usage of a cgroup with those below it. `None`: the file is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Nanoseconds of CPU time.
    pub cpu_nanos: Option<u64>,
    pub memory: Option<Memory>,
    /// Bytes.
    pub swap: Option<u64>,
    pub swap_available: Option<u64>,
}

/// Bytes of memory, and faults of pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    pub usage: u64,
    /// What cannot be freed at once.
    pub working_set: u64,
    pub rss: u64,
    pub page_faults: u64,
    pub major_page_faults: u64,
    pub limit: Option<u64>,
}

impl Memory {
    /// Returns what the cgroup may use more.
    pub fn available(&self) -> Option<u64> {
        self.limit.map(|limit| limit.saturating_sub(self.working_set))
    }
}

/// Reads the usage of the cgroup at a path below the mounts. Blocks for a moment.
pub fn read(hierarchy: &Hierarchy, path: &str) -> Usage {
    let file = |controller: &str, name: &str| text(hierarchy, controller, path, name);
    let is_v2 = hierarchy.is_v2();
    let cpu_nanos = match is_v2 {
        true => file("cpu", "cpu.stat").and_then(|text| Some(field(&text, "usage_usec")? * 1000)),
        false => file("cpuacct", "cpuacct.usage").as_deref().and_then(number),
    };
    let (usage, limit) = match is_v2 {
        true => ("memory.current", "memory.max"),
        false => ("memory.usage_in_bytes", "memory.limit_in_bytes"),
    };
    let stat = file("memory", "memory.stat");
    let memory_number = |name: &str| file("memory", name).as_deref().and_then(number);
    let (swap, swap_max) = match is_v2 {
        true => (memory_number("memory.swap.current"), memory_number("memory.swap.max")),
        false => (stat.as_deref().and_then(|stat| field(stat, "total_swap")), None),
    };
    let swap_available = swap_max.zip(swap).map(|(max, swap)| max.saturating_sub(swap));
    let memory = stat.and_then(|stat| {
        // The root of version 2 has no usage of its own.
        Some(memory(memory_number(usage)?, memory_number(limit), &stat, is_v2))
    });
    Usage { cpu_nanos, memory, swap, swap_available }
}

/// Returns the memory of the machine, which has `memory_bytes`; its limit leaves out what is set
/// aside for huge pages. Blocks for a moment.
pub fn machine_memory(hierarchy: &Hierarchy, memory_bytes: u64) -> Memory {
    let memory = read(hierarchy, "/").memory.unwrap_or_else(|| {
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let stat = hierarchy.folder("memory", "/").map(|folder| folder.join("memory.stat"));
        let stat = stat.and_then(|file| fs::read_to_string(file).ok()).unwrap_or_default();
        of_machine(&meminfo, &stat)
    });
    Memory { limit: Some(without_huge_pages(memory_bytes, &PageSize::detect())), ..memory }
}

/// Returns the memory that is not set aside for huge pages, which no cgroup counts as used memory.
pub fn without_huge_pages(memory_bytes: u64, sizes: &[PageSize]) -> u64 {
    let set_aside = sizes.iter().map(|size| size.capacity.unsigned_abs());
    memory_bytes.saturating_sub(set_aside.fold(0, u64::saturating_add))
}

/// Returns the memory of the machine, where the root of the cgroups has no usage of its own: by
/// `/proc/meminfo` and the root's `memory.stat`. Upstream: `rootStatsFromMeminfo`.
fn of_machine(meminfo: &str, stat: &str) -> Memory {
    let total = kib(meminfo, "MemTotal:").unwrap_or(0);
    let used = match (field(stat, "anon"), field(stat, "file")) {
        (Some(anon), Some(file)) => anon + file,
        _ => total.saturating_sub(kib(meminfo, "MemFree:").unwrap_or(0)),
    };
    memory(used, None, stat, true)
}

/// Returns the swap of the machine that is in use, and that is free.
pub fn swap_of_machine(meminfo: &str) -> (Option<u64>, Option<u64>) {
    let free = kib(meminfo, "SwapFree:");
    let total = kib(meminfo, "SwapTotal:");
    (total.zip(free).map(|(total, free)| total.saturating_sub(free)), free)
}

/// Returns the value of a line `NAME VALUE kB`, in bytes.
fn kib(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    number(line.trim().trim_end_matches(" kB")).map(|kib| kib * 1024)
}

/// Returns a process of a cgroup; `None`: it has no process, or does not exist.
pub fn first_process(hierarchy: &Hierarchy, path: &str) -> Option<u32> {
    text(hierarchy, "cpu", path, "cgroup.procs")?.lines().next()?.parse().ok()
}

/// Computes the memory of a cgroup from its usage, its limit and the content of `memory.stat`,
/// whose fields have other names in each version.
fn memory(usage: u64, limit: Option<u64>, stat: &str, is_v2: bool) -> Memory {
    let of = |v1: &str, v2: &str| field(stat, if is_v2 { v2 } else { v1 }).unwrap_or(0);
    Memory {
        usage,
        working_set: usage.saturating_sub(of("total_inactive_file", "inactive_file")),
        rss: of("total_rss", "anon"),
        page_faults: of("total_pgfault", "pgfault"),
        major_page_faults: of("total_pgmajfault", "pgmajfault"),
        limit: limit.filter(|limit| *limit < NO_LIMIT),
    }
}

/// Counts the processes of a cgroup with those below it; `None`: there is no such cgroup. Blocks for
/// a moment.
pub fn processes(hierarchy: &Hierarchy, path: &str) -> Option<u64> {
    fn below(folder: &Path) -> u64 {
        let own = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        own.lines().count() as u64 + folders.map(|folder| below(&folder.path())).sum::<u64>()
    }
    let folder = hierarchy.folder("pids", path).or_else(|| hierarchy.folder("cpu", path))?;
    folder.is_dir().then(|| below(&folder))
}

/// Reads a file of a cgroup; `None`: it is absent, or cannot be read. Unlike `fs::read_to_string`
/// it does not ask for the file's length first: the kernel makes the text when it is read.
pub(super) fn text(
    hierarchy: &Hierarchy,
    controller: &str,
    path: &str,
    name: &str,
) -> Option<String> {
    let file = File::open(hierarchy.folder(controller, path)?.join(name)).ok()?;
    let mut text = String::with_capacity(4096);
    file.take(MAX_BYTES).read_to_string(&mut text).ok()?;
    Some(text)
}

pub(super) fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// Returns the value of a line `NAME VALUE`.
pub(super) fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).and_then(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_both_versions_are_read() {
        let base = std::env::temp_dir().join(format!("kubelet-usage-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let file = base.join(path);
            fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
            fs::write(file, text).expect("a file");
        };
        write("v1/cpuacct/a/cpuacct.usage", "123456\n");
        write("v1/memory/a/memory.usage_in_bytes", "1000\n");
        write("v1/memory/a/memory.limit_in_bytes", "9223372036854771712\n");
        let stat =
            "rss 1\ntotal_rss 300\ntotal_pgfault 7\ntotal_pgmajfault 2\ntotal_inactive_file 400\n";
        write("v1/memory/a/memory.stat", stat);
        write("v1/pids/a/cgroup.procs", "1\n2\n");
        write("v1/pids/a/b/cgroup.procs", "3\n");
        write("v2/a/cpu.stat", "usage_usec 123\nuser_usec 1\n");
        write("v2/a/memory.current", "1000\n");
        write("v2/a/memory.max", "5000\n");
        write("v2/a/memory.stat", "anon 300\ninactive_file 1400\npgfault 7\npgmajfault 2\n");
        write("v2/a/cgroup.procs", "");
        let v1 = Hierarchy::v1_for_tests(&base.join("v1"), &["cpu", "cpuacct", "memory", "pids"]);
        let v2 = Hierarchy::V2 { root: base.join("v2") };
        let expected = Memory {
            usage: 1000,
            working_set: 600,
            rss: 300,
            page_faults: 7,
            major_page_faults: 2,
            limit: None,
        };
        let usage = read(&v1, "/a");
        assert_eq!(usage.cpu_nanos, Some(123_456));
        assert_eq!((usage.memory, processes(&v1, "/a")), (Some(expected), Some(3)));
        assert_eq!(expected.available(), None);
        let usage = read(&v2, "/a");
        let meminfo = "MemTotal: 4 kB\nMemFree: 1 kB\nSwapTotal: 3 kB\nSwapFree: 2 kB\n";
        let machine = of_machine(meminfo, "anon 5\ninactive_file 72\n");
        assert_eq!((machine.usage, machine.working_set, machine.rss), (3072, 3000, 5));
        let machine = of_machine(meminfo, "anon 5\nfile 80\ninactive_file 72\n");
        assert_eq!((machine.usage, machine.working_set, machine.rss), (85, 13, 5));
        assert_eq!(swap_of_machine(meminfo), (Some(1024), Some(2048)));
        assert_eq!(swap_of_machine(""), (None, None));
        let expected = Memory { working_set: 0, limit: Some(5000), ..expected };
        assert_eq!(usage.cpu_nanos, Some(123_000));
        assert_eq!((usage.memory, processes(&v2, "/a")), (Some(expected), Some(0)));
        assert_eq!(expected.available(), Some(5000));
        assert_eq!((read(&v2, "/b"), processes(&v2, "/b")), (Usage::default(), None));
        fs::remove_dir_all(&base).expect("removed");
    }

    #[test]
    fn memory_of_huge_pages_is_not_available() {
        let size = |capacity| PageSize { name: String::new(), bytes: 1, capacity };
        for (sizes, expected) in [
            (vec![], 100),
            (vec![size(0), size(30)], 70),
            (vec![size(30), size(20)], 50),
            (vec![size(200)], 0),
        ] {
            assert_eq!(without_huge_pages(100, &sizes), expected, "{sizes:?}");
        }
    }
}
