//! The figures of another process, read from `/proc`.

use std::io;

use super::cgroup::{Counts, MemoryGroup};
use kube_controller_manager::metrics::process_stats::{Reading, read};

pub struct Process {
    id: u32,
    /// Its own memory cgroup, if it has one.
    group: Option<MemoryGroup>,
}

impl Process {
    pub fn new(id: u32, group: Option<MemoryGroup>) -> Process {
        Process { id, group }
    }

    /// Returns what its own memory cgroup has counted so far.
    pub fn group_counts(&self) -> Option<Counts> {
        self.group.as_ref().map(MemoryGroup::counts)
    }

    pub fn read(&self) -> io::Result<Reading> {
        let text = |name: &str| std::fs::read_to_string(format!("/proc/{}/{name}", self.id));
        Ok(read(&text("stat")?, &text("status")?, ""))
    }

    /// Reads the resident memory that is not backed by a file: the heap and the stacks, without the
    /// code.
    pub fn private_bytes(&self) -> io::Result<u64> {
        Ok(anonymous(&std::fs::read_to_string(format!("/proc/{}/status", self.id))?))
    }

    /// Returns the pages that no other process has mapped, of files too: what one more process of
    /// the same program adds.
    pub fn unshared_bytes(&self) -> io::Result<u64> {
        Ok(unshared(&std::fs::read_to_string(format!("/proc/{}/smaps_rollup", self.id))?))
    }

    /// Returns the voluntary context switches of the process's current threads, each followed by a
    /// wake-up.
    pub fn wakeups(&self) -> io::Result<u64> {
        let mut statuses = String::new();
        for task in std::fs::read_dir(format!("/proc/{}/task", self.id))? {
            // A thread may end meanwhile.
            statuses += &std::fs::read_to_string(task?.path().join("status")).unwrap_or_default();
        }
        Ok(sleeps(&statuses))
    }

    /// Resets the peak memory, where the kernel permits it.
    pub fn forget_peak(&self) {
        let _ = std::fs::write(format!("/proc/{}/clear_refs", self.id), "5");
    }
}

/// Sums up the voluntary context switches in the concatenated `status` files of threads.
fn sleeps(statuses: &str) -> u64 {
    let count =
        |line: &str| line.strip_prefix("voluntary_ctxt_switches:")?.trim().parse::<u64>().ok();
    statuses.lines().filter_map(count).sum()
}

/// Reads `RssAnon` of a `status` file, in bytes.
fn anonymous(status: &str) -> u64 {
    kilobytes(status, "RssAnon:") * 1024
}

/// Sums `Private_Clean` and `Private_Dirty` of a `smaps_rollup` file, in bytes.
fn unshared(rollup: &str) -> u64 {
    (kilobytes(rollup, "Private_Clean:") + kilobytes(rollup, "Private_Dirty:")) * 1024
}

fn kilobytes(text: &str, name: &str) -> u64 {
    let read = |line: &str| {
        line.strip_prefix(name)?.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()
    };
    text.lines().find_map(read).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn voluntary_switches_are_summed_up() {
        let two =
            "Name:\tx\nvoluntary_ctxt_switches:\t5\nnonvoluntary_ctxt_switches:\t7\n".repeat(2);
        assert_eq!(sleeps(&two), 10);
    }

    #[test]
    fn private_memory_is_read() {
        let status = "VmRSS:\t    9216 kB\nRssAnon:\t    4096 kB\nRssFile:\t    5120 kB\n";
        assert_eq!(anonymous(status), 4096 * 1024);
        let rollup = "Rss:  9000 kB\nPrivate_Clean:   20 kB\nPrivate_Dirty:    3 kB\n";
        assert_eq!(unshared(rollup), 23 * 1024);
    }
}
