//! Many small control planes on one machine: managers beside empty API servers, at rest.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use super::Result;
use super::manager_process::{IdleCriteria, ManagerProcess};
use crate::cluster::ManagerProgram;
use crate::server::{Sandbox, SandboxOptions};
use kube_controller_manager::clock::{SharedClock, SystemClock};
use kube_controller_manager::task::StopToken;

/// No manager is started while less than this part of the machine's memory is available.
const RESERVE: f64 = 0.1;
/// The state in which a manager has started. All of them share the machine.
const STARTED: IdleCriteria = IdleCriteria {
    poll: Duration::from_millis(500),
    quiet_polls: 10,
    at_most: Duration::from_secs(120),
    memory: 0.01,
    cpu: 0.1,
};

/// The managers and the API servers to start.
pub struct Density {
    /// The folder in which each server has its own.
    pub dir: PathBuf,
    pub managers: usize,
    /// How long they are measured at rest.
    pub idle: Duration,
    pub manager: ManagerProgram,
    /// Beside the default flags: leader election is on, as in production.
    pub manager_flags: Vec<String>,
}

/// What a manager costs at rest.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DensityReport {
    pub manager: String,
    pub wanted: usize,
    /// The number of managers for which the machine had memory.
    pub managers: usize,
    pub seconds: f64,
    /// The pages that no other process shares.
    pub private_bytes: Spread,
    pub anonymous_bytes: Spread,
    pub resident_bytes: Spread,
    /// The share of a core.
    pub cpu: Spread,
    pub wakeups_per_second: Spread,
}

/// A figure of all managers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    pub mean: f64,
    pub median: f64,
    pub highest: f64,
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Spread {
        values.sort_by(f64::total_cmp);
        let (Some(&highest), Some(&median)) = (values.last(), values.get(values.len() / 2)) else {
            return Spread::default();
        };
        Spread { mean: values.iter().sum::<f64>() / values.len() as f64, median, highest }
    }
}

impl fmt::Display for DensityReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DensityReport { manager, wanted, managers, seconds, .. } = self;
        writeln!(f, "manager {manager}")?;
        writeln!(f, "{managers} managers beside empty API servers, {seconds:.0} s at rest")?;
        if managers < wanted {
            writeln!(f, "the machine has no memory for {wanted}")?;
        }
        writeln!(f, "\n{:<24} {:>9} {:>9} {:>9}", "A MANAGER", "MEAN", "MEDIAN", "HIGHEST")?;
        let mut line = |name: &str, Spread { mean, median, highest }: Spread, unit: f64| {
            let [mean, median, highest] = [mean, median, highest].map(|value| value / unit);
            writeln!(f, "{name:<24} {mean:>9.3} {median:>9.3} {highest:>9.3}")
        };
        line("private MB", self.private_bytes, 1e6)?;
        line("anonymous MB", self.anonymous_bytes, 1e6)?;
        line("resident MB", self.resident_bytes, 1e6)?;
        line("CPU, % of a core", self.cpu, 0.01)?;
        line("wake-ups a second", self.wakeups_per_second, 1.0)
    }
}

/// One control plane.
struct ControlPlane {
    sandbox: Sandbox,
    manager: ManagerProcess,
}

impl Density {
    /// Starts all, measures them at rest, and stops them.
    ///
    /// # Errors
    /// What could not be started, or a manager that ended.
    pub async fn run(self, stop: StopToken) -> Result<DensityReport> {
        let clock = SystemClock::shared();
        let mut planes = Vec::new();
        let measured = self.measure(&clock, &stop, &mut planes).await;
        for ControlPlane { sandbox, manager } in planes {
            manager.end(&clock).await?;
            sandbox.stop().await;
        }
        measured
    }

    /// Starts managers, each with a control plane of its own, as long as memory suffices; then
    /// measures their memory, CPU and wakeups at rest.
    async fn measure(
        &self,
        clock: &SharedClock,
        stop: &StopToken,
        planes: &mut Vec<ControlPlane>,
    ) -> Result<DensityReport> {
        for n in 0..self.managers {
            if !has_memory(&std::fs::read_to_string("/proc/meminfo")?) {
                eprintln!("no memory for manager {} of {}", n + 1, self.managers);
                break;
            }
            let sandbox = Sandbox::start(SandboxOptions::new(self.dir.join(n.to_string()))).await?;
            let kubeconfig = sandbox.kubeconfig_for("system:kube-controller-manager", &[])?;
            let flags = &self.manager_flags;
            let manager = ManagerProcess::start(&self.manager, &kubeconfig, "manager", flags)?;
            planes.push(ControlPlane { sandbox, manager });
        }
        eprintln!("{} managers start ...", planes.len());
        for plane in &mut *planes {
            plane.manager.wait_until_settled(&STARTED, clock, stop).await?;
        }
        eprintln!("at rest for {:?} ...", self.idle);
        // CPU seconds and wakeups of the manager so far.
        let read_plane = |plane: &ControlPlane| -> Result<(f64, u64)> {
            let process = &plane.manager.process;
            Ok((process.read()?.cpu_seconds, process.wakeups()?))
        };
        let begun = clock.monotonic();
        let before: Vec<(f64, u64)> = planes.iter().map(read_plane).collect::<Result<_>>()?;
        if stop.unless_stopped(clock.sleep(self.idle)).await.is_none() {
            return Err("stopped".into());
        }
        let seconds = (clock.monotonic() - begun).as_secs_f64();
        let after: Vec<(f64, u64)> = planes.iter().map(read_plane).collect::<Result<_>>()?;
        for plane in &mut *planes {
            plane.manager.check_alive(stop)?;
        }
        let pairs = before.iter().zip(&after);
        let processes = || planes.iter().map(|plane| &plane.manager.process);
        let bytes = |read: &dyn Fn(&super::process::Process) -> std::io::Result<u64>| {
            let all = processes().map(|process| Ok(read(process)? as f64));
            Ok::<_, std::io::Error>(Spread::of(all.collect::<std::io::Result<_>>()?))
        };
        Ok(DensityReport {
            manager: self.manager.to_string(),
            wanted: self.managers,
            managers: planes.len(),
            seconds,
            private_bytes: bytes(&|process| process.unshared_bytes())?,
            anonymous_bytes: bytes(&|process| process.private_bytes())?,
            resident_bytes: bytes(&|process| Ok(process.read()?.resident_bytes as u64))?,
            cpu: Spread::of(pairs.clone().map(|(one, two)| (two.0 - one.0) / seconds).collect()),
            wakeups_per_second: Spread::of(
                pairs.map(|(one, two)| two.1.saturating_sub(one.1) as f64 / seconds).collect(),
            ),
        })
    }
}

/// Returns whether a machine with this `/proc/meminfo` has memory for another manager; true if the
/// file does not say.
fn has_memory(meminfo: &str) -> bool {
    let kilobytes = |name: &str| -> Option<f64> {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix(" kB")?.parse().ok()
    };
    let parts = kilobytes("MemAvailable:").zip(kilobytes("MemTotal:"));
    parts.is_none_or(|(available, total)| available > total * RESERVE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenth_of_the_memory_stays_free() {
        let info = |available: u32| {
            format!("MemTotal:       1000 kB\nMemFree:  1 kB\nMemAvailable:    {available} kB\n")
        };
        assert!(has_memory(&info(101)));
        assert!(!has_memory(&info(100)));
        assert!(has_memory(""), "unknown");
    }

    #[test]
    fn a_spread_has_mean_median_and_highest() {
        let spread = Spread::of(vec![5.0, 1.0, 3.0]);
        assert_eq!(spread, Spread { mean: 3.0, median: 3.0, highest: 5.0 });
        assert_eq!(Spread::of(Vec::new()), Spread::default());
    }
}
