//! A process as `/proc` shows it.

use std::io;

use kube_controller_manager::app::process_metrics::{Reading, read, sleeps};

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

    /// How often a thread that lives now has gone to sleep by itself: that often it was woken.
    pub fn wakeups(&self) -> io::Result<u64> {
        let mut statuses = String::new();
        for task in std::fs::read_dir(format!("/proc/{}/task", self.id))? {
            // A thread may end while we look.
            statuses += &std::fs::read_to_string(task?.path().join("status")).unwrap_or_default();
        }
        Ok(sleeps(&statuses))
    }

    /// From now on the peak is that of what follows, where the kernel lets us.
    pub fn forget_peak(&self) {
        let _ = std::fs::write(format!("/proc/{}/clear_refs", self.id), "5");
    }
}
