//! The figures of another process, read from `/proc`.

use std::io;

use kube_controller_manager::metrics::process_stats::{Reading, read};

pub struct Process {
    id: u32,
}

impl Process {
    pub fn new(id: u32) -> Process {
        Process { id }
    }

    pub fn read(&self) -> io::Result<Reading> {
        let text = |name: &str| std::fs::read_to_string(format!("/proc/{}/{name}", self.id));
        Ok(read(&text("stat")?, &text("status")?, ""))
    }

    /// Resident memory that is not backed by a file: the heap and the stacks, without the code.
    pub fn private_bytes(&self) -> io::Result<u64> {
        Ok(anonymous(&std::fs::read_to_string(format!("/proc/{}/status", self.id))?))
    }

    /// The voluntary context switches of the process's current threads, each followed by a wake-up.
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

/// `RssAnon` of a `status` file, in bytes.
fn anonymous(status: &str) -> u64 {
    let kilobytes = |line: &str| {
        line.strip_prefix("RssAnon:")?.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()
    };
    status.lines().find_map(kilobytes).unwrap_or(0) * 1024
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
    }
}
