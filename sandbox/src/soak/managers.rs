//! The two managers of a soak: each behind a proxy of its own, started again when it has ended.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::Result;
use super::audit::{Audit, Writer};
use super::proxy::Proxy;
use super::server::Server;
use crate::cluster::{Manager, ManagerProgram};
use crate::load::process::Process;
use kube_controller_manager::clock::SharedClock;

pub const SEATS: usize = 2;
/// The pause before a manager that has ended is started again.
const RESTART: Duration = Duration::from_secs(1);
const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;
/// The time between the last renewal and the end of a leader (4 s) is shorter than a lease (8 s) by
/// more than a write may be late.
const FLAGS: [&str; 8] = [
    "--leader-elect-lease-duration=8s",
    "--leader-elect-renew-deadline=4s",
    "--leader-elect-retry-period=500ms",
    "--kube-api-qps=500",
    "--kube-api-burst=1000",
    // Longer than the API server is gone, or the nodes would be lost with it.
    "--node-monitor-grace-period=15s",
    "--node-monitor-period=1s",
    "--node-eviction-rate=1",
];
/// What a runtime prints when a program fails in a way that it should not.
const PANICS: [&str; 4] = ["panicked at", "Observed a panic", "panic: ", "fatal error: "];

/// Both managers.
pub struct Managers {
    program: ManagerProgram,
    flags: Vec<String>,
    clock: SharedClock,
    seats: [Seat; SEATS],
}

/// One of them.
pub struct Seat {
    name: char,
    pub proxy: Proxy,
    kubeconfig: PathBuf,
    /// How many managers ran here before. It counts a new one from its start, since requests of its
    /// predecessor may arrive after the predecessor's end.
    run: Arc<AtomicU64>,
    manager: Option<Manager>,
    /// When the next one is started, in monotonic time.
    due: Duration,
    started: Duration,
    logs: Vec<PathBuf>,
    /// The highest anonymous memory of any of its processes.
    peak_bytes: u64,
}

/// The memory of a running manager.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    pub anonymous_bytes: u64,
    pub age: Duration,
}

impl Managers {
    /// Opens a proxy and writes a kubeconfig for each seat. Starts no manager yet.
    pub async fn new(
        server: &Server,
        audit: &Arc<Audit>,
        program: ManagerProgram,
        flags: Vec<String>,
        clock: &SharedClock,
    ) -> Result<Managers> {
        let mut seats = Vec::new();
        for (n, name) in ('a'..).take(SEATS).enumerate() {
            let run = Arc::new(AtomicU64::new(0));
            let port = server.listen(audit.wrap(n, run.clone(), clock)).await?;
            let proxy = Proxy::start(port, clock)?;
            let kubeconfig = server.kubeconfig(&format!("manager-{name}"), proxy.address())?;
            seats.push(Seat {
                name,
                proxy,
                kubeconfig,
                run,
                manager: None,
                due: Duration::ZERO,
                started: Duration::ZERO,
                logs: Vec::new(),
                peak_bytes: 0,
            });
        }
        let Ok(seats) = seats.try_into() else { return Err("the seats of the managers".into()) };
        let own = FLAGS.iter().chain(server.manager_flags()).map(ToString::to_string);
        let flags = own.chain(flags).collect();
        Ok(Managers { program, flags, clock: clock.clone(), seats })
    }

    pub fn seats(&self) -> &[Seat; SEATS] {
        &self.seats
    }

    /// Starts managers that have ended, a while after their end, and notes the memory of those that
    /// run. Returns the ends that no fault explains.
    pub fn restart_ended(&mut self) -> Result<Vec<String>> {
        let now = self.clock.monotonic();
        let mut unexplained = Vec::new();
        for seat in &mut self.seats {
            if let Some(manager) = &mut seat.manager {
                let bytes = Process::new(manager.id(), None).private_bytes().unwrap_or_default();
                seat.peak_bytes = seat.peak_bytes.max(bytes);
                let Some(status) = manager.ended()? else { continue };
                if let Some(why) = unexpected_end(status) {
                    let log = manager.log.display();
                    unexplained
                        .push(format!("manager {} ended {why} ({status}), see {log}", seat.name));
                }
                seat.manager = None;
                seat.due = now + RESTART;
            }
            if seat.due <= now {
                let name = format!("manager-{}-{}", seat.name, seat.logs.len() + 1);
                seat.run.store(seat.logs.len() as u64, Ordering::SeqCst);
                let manager = Manager::spawn(&self.program, &seat.kubeconfig, &name, &self.flags)?;
                seat.logs.push(manager.log.clone());
                seat.manager = Some(manager);
                seat.started = now;
            }
        }
        Ok(unexplained)
    }

    /// Sends a signal (`-KILL`) to the manager of a seat; with `run`, only if it is still that
    /// process of the seat. Returns the process that got it.
    pub fn signal(&self, seat: usize, signal: &str, run: Option<u64>) -> Option<Writer> {
        let at = &self.seats[seat];
        let current = at.run.load(Ordering::SeqCst);
        let manager = at.manager.as_ref().filter(|_| run.is_none_or(|run| run == current))?;
        let status = Command::new("kill").args([signal, &manager.id().to_string()]).status();
        status.is_ok_and(|status| status.success()).then_some(Writer { seat, run: current })
    }

    /// Returns the memory of a running manager.
    pub fn memory(&self, seat: usize) -> Option<Memory> {
        let manager = self.seats[seat].manager.as_ref()?;
        let anonymous_bytes = Process::new(manager.id(), None).private_bytes().ok()?;
        Some(Memory { anonymous_bytes, age: self.clock.monotonic() - self.seats[seat].started })
    }

    /// Returns the memory of this process of a manager; `None`: it has ended.
    pub fn memory_of(&self, Writer { seat, run }: Writer) -> Option<Memory> {
        (self.seats[seat].run.load(Ordering::SeqCst) == run).then(|| self.memory(seat))?
    }

    pub fn peak_bytes(&self) -> u64 {
        self.seats.iter().map(|seat| seat.peak_bytes).max().unwrap_or_default()
    }

    /// Returns the number of processes started.
    pub fn started(&self) -> usize {
        self.seats.iter().map(|seat| seat.logs.len()).sum()
    }

    /// Returns the lines of all logs that report a panic.
    pub fn panics(&self) -> Vec<String> {
        self.seats.iter().flat_map(|seat| &seat.logs).flat_map(|log| panics(log)).collect()
    }

    /// Stops the managers, then their proxies.
    pub async fn stop(self) {
        for seat in self.seats {
            if let Some(manager) = seat.manager {
                let _ = manager.stop(&self.clock, Duration::from_secs(30)).await;
            }
            seat.proxy.stop().await;
        }
    }
}

/// Returns why an end is the manager's fault: an error exit is not, since a manager ends when it
/// has lost its lease or cannot reach the API server at its start.
fn unexpected_end(status: ExitStatus) -> Option<&'static str> {
    match (status.signal(), status.code()) {
        // The soak's own faults and its end.
        (Some(SIGKILL | SIGTERM), _) => None,
        (Some(_), _) => Some("by a signal that no fault sent"),
        // The exit codes of panics in Rust and in Go.
        (None, Some(101 | 2)) => Some("by a panic"),
        _ => None,
    }
}

/// Returns the lines of one log that report a panic.
fn panics(log: &Path) -> Vec<String> {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines = text.lines().filter(|line| PANICS.iter().any(|panic| line.contains(panic)));
    lines.map(|line| format!("{}: {line}", log.display())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_by_panics_and_foreign_signals_are_odd() {
        // Wait statuses: an exit code is in the second byte, a signal in the first.
        for (raw, odd) in
            [(0, false), (1 << 8, false), (9, false), (15, false), (11, true), (101 << 8, true)]
        {
            assert_eq!(unexpected_end(ExitStatus::from_raw(raw)).is_some(), odd, "{raw}");
        }
    }
}
