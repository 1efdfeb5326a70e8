//! What signals show, and since when thresholds are crossed. Upstream: `managerImpl.synchronize`.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use super::Error;
use super::thresholds::{Signal, Threshold};
use crate::cgroups::{Hierarchy, usage};
use crate::stats;

/// What a signal shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observation {
    pub available: u64,
    pub capacity: u64,
}

/// The observations of a moment; signals without one are not judged.
pub type Observations = BTreeMap<Signal, Observation>;

/// Measures how much memory, disk, inodes and process ids the machine has, and how much of each is
/// free. `root` and `images`: folders on the disks of the node and of images. Whether these are
/// different disks is returned too. Blocks. Upstream: `makeSignalObservations`.
///
/// # Errors
/// A folder does not exist, or cgroups are not mounted.
pub fn observe(
    root: &Path,
    images: &str,
    memory_bytes: u64,
    all_pods: Option<&str>,
) -> Result<(Observations, bool), Error> {
    let hierarchy = Hierarchy::detect().map_err(Error::Cgroups)?;
    let mut found = Observations::new();
    let machine = usage::machine_memory(&hierarchy, memory_bytes);
    let available = machine.available().unwrap_or_default();
    found.insert(Signal::MemoryAvailable, Observation { available, capacity: memory_bytes });
    let of_pods = all_pods.and_then(|path| usage::read(&hierarchy, path).memory);
    if let Some(pods) = of_pods {
        let capacity = pods.limit.unwrap_or(memory_bytes);
        let available = capacity.saturating_sub(pods.working_set);
        found.insert(Signal::AllocatableMemoryAvailable, Observation { available, capacity });
    }
    let fault = |path: &Path, source| Error::Disk { path: path.to_owned(), source };
    let mut devices = Vec::new();
    for (path, bytes, inodes) in [
        (root, Signal::NodeFsAvailable, Signal::NodeFsInodesFree),
        (Path::new(images), Signal::ImageFsAvailable, Signal::ImageFsInodesFree),
    ] {
        let stat = rustix::fs::statvfs(path).map_err(|error| fault(path, error.into()))?;
        let size = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
        let disk = Observation { available: size(stat.f_bavail), capacity: size(stat.f_blocks) };
        found.insert(bytes, disk);
        // Some file systems do not count inodes.
        if stat.f_files > 0 {
            let counted = Observation { available: stat.f_ffree, capacity: stat.f_files };
            found.insert(inodes, counted);
        }
        devices.push(fs::metadata(path).map_err(|error| fault(path, error))?.dev());
    }
    if let Some((running, max)) = stats::processes() {
        let (running, capacity) = (running.unsigned_abs(), max.unsigned_abs());
        let available = capacity.saturating_sub(running);
        found.insert(Signal::PidAvailable, Observation { available, capacity });
    }
    Ok((found, devices.first() != devices.last()))
}

/// Returns whether a threshold is crossed; false if its signal was not observed. With `reclaims`:
/// with the amount on top that has to be freed. Upstream: `thresholdsMet`.
fn is_met(threshold: &Threshold, observations: &Observations, reclaims: bool) -> bool {
    let Some(observed) = observations.get(&threshold.signal) else { return false };
    let extra = threshold.min_reclaim.filter(|_| reclaims);
    let wanted = threshold.value.of(observed.capacity);
    wanted.saturating_add(extra.map_or(0, |extra| extra.of(observed.capacity))) > observed.available
}

/// Returns whether any threshold is still crossed, with the amount on top that has to be freed.
pub fn unresolved(thresholds: &[Threshold], observations: &Observations) -> bool {
    thresholds.iter().any(|threshold| is_met(threshold, observations, true))
}

/// Follows thresholds over time.
#[derive(Debug)]
pub struct Watch {
    thresholds: Vec<Threshold>,
    /// Since when each threshold is crossed.
    since: Vec<Option<Duration>>,
    /// Whether it counted the last time.
    was_met: Vec<bool>,
}

impl Watch {
    pub fn new(thresholds: Vec<Threshold>) -> Watch {
        let (since, was_met) = (vec![None; thresholds.len()], vec![false; thresholds.len()]);
        Watch { thresholds, since, was_met }
    }

    pub fn thresholds(&self) -> &[Threshold] {
        &self.thresholds
    }

    /// Returns the signals whose thresholds are crossed, whether or not their grace is over.
    pub fn crossed(&self) -> impl Iterator<Item = Signal> {
        let all = self.thresholds.iter().zip(&self.since);
        all.filter(|(_, since)| since.is_some()).map(|(threshold, _)| threshold.signal)
    }

    /// Compares the observations with the thresholds, and returns those that count now, the most
    /// urgent first. Upstream: `synchronize`.
    pub fn observe(&mut self, observations: &Observations, now: Duration) -> Vec<Threshold> {
        let mut met = Vec::new();
        for (at, threshold) in self.thresholds.iter().enumerate() {
            // One that counted stays crossed until the amount on top is free too.
            let is_crossed = is_met(threshold, observations, false)
                || self.was_met[at] && is_met(threshold, observations, true);
            let since = match is_crossed {
                true => Some(self.since[at].unwrap_or(now)),
                false => None,
            };
            self.since[at] = since;
            let lasts = since.is_some_and(|since| {
                now.saturating_sub(since) >= threshold.grace.unwrap_or_default()
            });
            self.was_met[at] = lasts;
            if lasts {
                met.push(*threshold);
            }
        }
        met.sort_by_key(|threshold| threshold.signal);
        met
    }
}

#[cfg(test)]
mod tests {
    use super::super::thresholds::Amount;
    use super::*;

    #[test]
    fn thresholds_count_after_their_grace_and_until_enough_is_freed() {
        let seconds = Duration::from_secs;
        let hard = Threshold {
            signal: Signal::NodeFsAvailable,
            value: Amount::Units(100),
            grace: None,
            min_reclaim: Some(Amount::Units(50)),
        };
        let soft = Threshold {
            signal: Signal::MemoryAvailable,
            value: Amount::Part(0.5),
            grace: Some(seconds(30)),
            min_reclaim: None,
        };
        let mut watch = Watch::new(vec![hard, soft]);
        // Time, disk, memory: the signals that count.
        for (at, disk, memory, expected) in [
            (0, 100, 500, &[][..]),
            (10, 99, 499, &[Signal::NodeFsAvailable]),
            (20, 149, 499, &[Signal::NodeFsAvailable]),
            (30, 150, 499, &[]),
            (40, 149, 499, &[Signal::MemoryAvailable]),
            (50, 99, 499, &[Signal::MemoryAvailable, Signal::NodeFsAvailable]),
            (60, 200, 500, &[]),
            (70, 200, 499, &[]),
        ] {
            let observations = Observations::from([
                (Signal::NodeFsAvailable, Observation { available: disk, capacity: 1000 }),
                (Signal::MemoryAvailable, Observation { available: memory, capacity: 1000 }),
            ]);
            let met = watch.observe(&observations, seconds(at));
            let signals: Vec<Signal> = met.iter().map(|threshold| threshold.signal).collect();
            assert_eq!(signals, expected, "{at}");
            // A soft one is crossed before it counts.
            assert_eq!(watch.crossed().any(|s| s == Signal::MemoryAvailable), memory < 500, "{at}");
        }
        assert!(watch.observe(&Observations::new(), seconds(100)).is_empty());
    }
}
