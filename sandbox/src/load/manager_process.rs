//! A controller manager in a process of its own, and the wait until it is idle.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Advice, fadvise};

use super::Result;
use super::cgroup::{Counts, MemoryGroup};
use super::process::Process;
use crate::cluster::{Manager, ManagerProgram};
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::task::StopToken;

/// Flags that every manager gets: the client's own rate limits and the lease of another manager
/// must not count.
pub const FLAGS: [&str; 3] = [NO_ELECTION, "--kube-api-qps=2000", "--kube-api-burst=4000"];
pub const NO_ELECTION: &str = "--leader-elect=false";

/// A running manager, with the figures of its process.
pub struct ManagerProcess {
    manager: Manager,
    pub process: Process,
}

/// When a manager counts as idle: its memory and CPU stay the same for some polls in a row.
pub struct IdleCriteria {
    pub poll: Duration,
    pub quiet_polls: usize,
    /// The longest wait: a runtime that collects garbage may take longer to free memory.
    pub at_most: Duration,
    /// The share by which memory may change from poll to poll.
    pub memory: f64,
    /// The share of the time for which a processor may be busy.
    pub cpu: f64,
}

impl ManagerProcess {
    /// Starts a manager in the cgroup of this process.
    pub fn start(
        program: &ManagerProgram,
        kubeconfig: &Path,
        name: &str,
        flags: &[String],
    ) -> Result<ManagerProcess> {
        let manager = Manager::spawn(program, kubeconfig, name, flags)?;
        let process = Process::new(manager.id(), None);
        Ok(ManagerProcess { manager, process })
    }

    /// Starts the manager as [`ManagerProcess::start`] does, in a memory cgroup in which the pages
    /// of its code are counted too.
    pub fn start_in(
        group: MemoryGroup,
        program: &ManagerProgram,
        kubeconfig: &Path,
        name: &str,
        flags: &[String],
    ) -> Result<ManagerProcess> {
        let mut launch = program.launch()?;
        let copy = kubeconfig.with_file_name("manager-in-group");
        copy_uncached(&launch.path, &copy)?;
        launch.path = copy;
        launch.processes = Some(group.processes());
        let manager = Manager::launch(&launch, kubeconfig, name, flags)?;
        let process = Process::new(manager.id(), Some(group));
        Ok(ManagerProcess { manager, process })
    }

    /// Checks that the manager still runs. Errors: it has ended ([`OutOfMemory`] if it was killed
    /// at the limit of its group), or `stop` is stopped.
    pub fn check_alive(&mut self, stop: &StopToken) -> Result<()> {
        if stop.is_stopped() {
            return Err("stopped".into());
        }
        match self.manager.ended()? {
            None => Ok(()),
            Some(status) => {
                self.check_memory()?;
                let log = self.manager.log.display();
                Err(format!("the manager ended early ({status}), see {log}").into())
            }
        }
    }

    /// Checks that the kernel has not killed a process of the manager at the limit of its group.
    fn check_memory(&self) -> std::result::Result<(), OutOfMemory> {
        match self.process.group_counts().filter(|counts| counts.kills > 0) {
            None => Ok(()),
            Some(counts) => Err(OutOfMemory { counts, log: self.manager.log.clone() }),
        }
    }

    /// Waits until the manager is idle; after `idle.at_most` a busy one is accepted too.
    pub async fn wait_until_settled(
        &mut self,
        idle: &IdleCriteria,
        clock: &SharedClock,
        stop: &StopToken,
    ) -> Result<()> {
        let give_up = clock.monotonic() + idle.at_most;
        let mut quiet = 0;
        let mut before = self.process.read()?;
        while quiet < idle.quiet_polls && clock.monotonic() < give_up {
            clock.sleep(idle.poll).await;
            self.check_alive(stop)?;
            let now = self.process.read()?;
            let moved = (now.resident_bytes - before.resident_bytes).abs();
            let used = now.cpu_seconds - before.cpu_seconds;
            let is_quiet = moved < before.resident_bytes * idle.memory
                && used < idle.poll.as_secs_f64() * idle.cpu;
            quiet = if is_quiet { quiet + 1 } else { 0 };
            before = now;
        }
        Ok(())
    }

    /// Stops the manager; prints an unexpected exit status.
    ///
    /// # Errors
    /// [`OutOfMemory`] if the kernel has killed a process of it; when it cannot be stopped.
    pub async fn end(self, clock: &SharedClock) -> Result<()> {
        self.check_memory()?;
        let log = self.manager.log.clone();
        let status = self.manager.stop(clock, Duration::from_secs(30)).await?;
        // A manager that has no handler for SIGTERM is ended by it.
        let terminated = status.signal() == Some(15);
        if !status.success() && !terminated {
            eprintln!("the manager ended with {status}, see {}", log.display());
        }
        Ok(())
    }
}

/// The manager was killed at the limit of its memory cgroup.
#[derive(Debug)]
pub struct OutOfMemory {
    pub counts: Counts,
    log: PathBuf,
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the manager was killed at its memory limit, see {}", self.log.display())
    }
}

impl std::error::Error for OutOfMemory {}

/// Copies a program and drops the copy from the page cache. The pages of code that a process reads
/// afterwards are counted in its own group, as in the first container of an image on a machine.
/// Where files are kept in memory (tmpfs) they stay counted in the group of this process.
fn copy_uncached(program: &Path, copy: &Path) -> io::Result<()> {
    // A former copy may still run.
    if let Err(error) = fs::remove_file(copy)
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(error);
    }
    fs::copy(program, copy)?;
    let file = File::open(copy)?;
    // Only pages that are written can be dropped.
    file.sync_all()?;
    fadvise(&file, 0, None, Advice::DontNeed)?;
    Ok(())
}
