//! Processes that the kernel kills because the whole machine is out of memory: each is an event of
//! the node. Upstream: `pkg/kubelet/oom`, cadvisor's `oomparser`.

use std::fs::File;
use std::io::{ErrorKind, Read};

use async_io::Async;
use futures_lite::future::yield_now;

use crate::events;

/// The kernel's log: each read returns a record.
const KERNEL_LOG: &str = "/dev/kmsg";
/// The longest record. Linux: `PRINTK_MESSAGE_MAX`.
const MAX_RECORD: usize = 8192;

/// Records an event of the node for each process that is killed, also for those that the kernel's
/// log still has, as upstream. Ends when the log cannot be read.
pub async fn watch(node: &str) {
    let Err(error) = read(node).await else { return };
    log::warn!("{KERNEL_LOG}: {error}: processes killed for want of memory are not noticed");
}

/// Reads the kernel's log for ever, and records the events. Returns why it cannot be read any more.
async fn read(node: &str) -> std::io::Result<()> {
    let file = Async::new(File::open(KERNEL_LOG)?)?;
    let (mut parser, mut record) = (Parser::default(), vec![0; MAX_RECORD]);
    loop {
        // The log may have thousands of records.
        yield_now().await;
        let length = match file.read_with(|mut file| file.read(&mut record)).await {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(length) => length,
            // Records were overwritten before they were read: the next one follows.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => continue,
            Err(error) => return Err(error),
        };
        let text = String::from_utf8_lossy(&record[..length]);
        // Numbers come before the message, and the lines of a dictionary after it.
        let message = text.split_once(';').map_or("", |(_, message)| message);
        let message = message.lines().next().unwrap_or_default();
        if let Some(Victim { pid, process }) = parser.next(message) {
            let message = format!("System OOM encountered, victim process: {process}, pid: {pid}");
            events::node_warning(node, "SystemOOM", message);
        }
    }
}

/// A process that was killed because the machine is out of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Victim {
    pid: u32,
    process: String,
}

/// Understands the kernel's messages.
#[derive(Debug, Default)]
struct Parser {
    /// A kill was announced, and its process is not known yet.
    is_killing: bool,
}

impl Parser {
    /// Takes the next message of the kernel. Returns the process if the message names the one that
    /// was killed because the whole machine lacked memory.
    fn next(&mut self, message: &str) -> Option<Victim> {
        if !self.is_killing {
            self.is_killing = message.contains("invoked oom-killer:");
            return None;
        }
        // A limit of a cgroup: the machine has memory.
        if message.contains("oom-kill:constraint=") && message.contains(",oom_memcg=")
            || message.contains(" killed as a result of limit of ")
        {
            self.is_killing = false;
            return None;
        }
        let (_, killed) = message.split_once("Killed process ")?;
        let (pid, rest) = killed.split_once(" (")?;
        let (process, _) = rest.rsplit_once(')')?;
        self.is_killing = false;
        Some(Victim { pid: pid.parse().ok()?, process: process.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn victims_of_limits_are_no_events() {
        let mut parser = Parser::default();
        let begin = "stress invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0";
        let victim = |pid, process: &str| Some(Victim { pid, process: process.to_owned() });
        for (message, expected) in [
            ("Killed process 1 (no kill was announced)", None),
            (begin, None),
            ("CPU: 0 PID: 77 Comm: stress", None),
            (
                "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,\
                 global_oom,task_memcg=/kubepods/pod1/c,task=stress (1),pid=77,uid=0",
                None,
            ),
            (
                "Out of memory: Killed process 77 (stress (1)) total-vm:1kB, anon-rss:2kB",
                victim(77, "stress (1)"),
            ),
            ("Killed process 78 (of the same kill)", None),
            (begin, None),
            (
                "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=c,mems_allowed=0,\
                 oom_memcg=/kubepods/pod1/c,task_memcg=/kubepods/pod1/c,task=sh,pid=79,uid=0",
                None,
            ),
            ("Memory cgroup out of memory: Killed process 79 (sh) total-vm:1kB", None),
            (begin, None),
            ("Task in /kubepods/pod1 killed as a result of limit of /kubepods/pod1", None),
            ("Memory cgroup out of memory: Killed process 80 (sh)", None),
            (begin, None),
            ("Killed process 81 (init)", victim(81, "init")),
        ] {
            assert_eq!(parser.next(message), expected, "{message}");
        }
    }
}
