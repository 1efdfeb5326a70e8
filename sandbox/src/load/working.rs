//! A manager under a load, in a process of its own.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::time::Duration;

use super::Result;
use super::process::Process;
use crate::cluster::{Manager, ManagerProgram};
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::task::StopToken;

/// Not to measure the client's own limits, and not to wait for the lease of another manager.
pub const FLAGS: [&str; 3] = [NO_ELECTION, "--kube-api-qps=2000", "--kube-api-burst=4000"];
pub const NO_ELECTION: &str = "--leader-elect=false";

pub struct Working {
    manager: Manager,
    pub process: Process,
}

/// When a manager counts as settled: neither its memory nor its CPU moves in some looks in a row.
pub struct Rest {
    pub look: Duration,
    pub looks: usize,
    /// A runtime that collects garbage may take longer to give back what it has.
    pub at_most: Duration,
    /// The share by which memory may change from look to look.
    pub memory: f64,
    /// The share of the time for which a processor may be used.
    pub cpu: f64,
}

impl Working {
    pub fn start(
        program: &ManagerProgram,
        kubeconfig: &Path,
        name: &str,
        flags: &[String],
    ) -> Result<Working> {
        let manager = Manager::spawn(program, kubeconfig, name, flags)?;
        let process = Process::new(manager.id());
        Ok(Working { manager, process })
    }

    /// An error when the manager is gone or a signal came.
    pub fn alive(&mut self, stop: &StopToken) -> Result<()> {
        if stop.is_stopped() {
            return Err("stopped".into());
        }
        match self.manager.ended()? {
            None => Ok(()),
            Some(status) => {
                let log = self.manager.log.display();
                Err(format!("the manager ended early ({status}), see {log}").into())
            }
        }
    }

    pub async fn settled(
        &mut self,
        rest: &Rest,
        clock: &SharedClock,
        stop: &StopToken,
    ) -> Result<()> {
        let give_up = clock.monotonic() + rest.at_most;
        let mut quiet = 0;
        let mut before = self.process.read()?;
        while quiet < rest.looks && clock.monotonic() < give_up {
            clock.sleep(rest.look).await;
            self.alive(stop)?;
            let now = self.process.read()?;
            let moved = (now.resident_bytes - before.resident_bytes).abs();
            let used = now.cpu_seconds - before.cpu_seconds;
            let is_quiet = moved < before.resident_bytes * rest.memory
                && used < rest.look.as_secs_f64() * rest.cpu;
            quiet = if is_quiet { quiet + 1 } else { 0 };
            before = now;
        }
        Ok(())
    }

    pub async fn end(self, clock: &SharedClock) -> Result<()> {
        let log = self.manager.log.clone();
        let status = self.manager.stop(clock, Duration::from_secs(30)).await?;
        // SIGTERM alone ends a manager without a lease, where that has no handler for it.
        let terminated = status.signal() == Some(15);
        if !status.success() && !terminated {
            eprintln!("the manager ended with {status}, see {}", log.display());
        }
        Ok(())
    }
}
