//! The costs of a load, as text and as JSON.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::OnceLock;
use std::time::Duration;

use kube_controller_manager::clock::SharedClock;
use serde::Serialize;

use super::cgroup::{Bytes, Counts};
use super::queues::QueueTimes;
use super::size::Size;
use crate::api::traffic::Count;

/// Logs the beginning of a phase, with the seconds since the first one began.
pub fn announce(clock: &SharedClock, phase: &str) {
    static FIRST: OnceLock<Duration> = OnceLock::new();
    let now = clock.monotonic();
    eprintln!("{:>7.1} s  {phase} ...", (now - *FIRST.get_or_init(|| now)).as_secs_f64());
}

#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    pub manager: String,
    #[serde(flatten)]
    pub size: Size,
    pub config_maps: usize,
    pub nodes: usize,
    /// `None`: the manager had no memory limit.
    pub limit: Option<Limited>,
    pub rows: Vec<Row>,
}

/// How a manager lived under a memory limit.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Limited {
    pub limit_bytes: Bytes,
    /// Why there is no cgroup, and no load was run.
    pub skipped: Option<String>,
    pub lived: bool,
    /// Over all managers of the load; the peak is the highest.
    pub counts: Counts,
}

impl Limited {
    pub fn new(limit: Bytes, skipped: Option<String>) -> Limited {
        let counts = Counts { hits: Some(0), ..Counts::default() };
        Limited { limit_bytes: limit, lived: skipped.is_none(), skipped, counts }
    }

    /// Adds what the cgroup of a further manager has counted in its life.
    pub fn add(&mut self, counts: Counts) {
        self.lived &= counts.kills == 0;
        self.counts.add(counts);
    }
}

impl fmt::Display for Limited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Limited { limit_bytes, skipped, lived, counts } = self;
        write!(f, "memory limit {limit_bytes}: ")?;
        if let Some(why) = skipped {
            return write!(f, "skipped, {why}");
        }
        let end = if *lived { "lived" } else { "killed" };
        match counts.hits {
            Some(hits) => write!(f, "{end}, met the limit {hits} times")?,
            None => write!(f, "{end}, met the limit (this kernel does not count how often)")?,
        }
        let (refaults, peak) = (counts.refaults, Bytes(counts.peak_bytes));
        write!(f, ", {refaults} pages of files read again, at most {peak}")
    }
}

/// One phase.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    pub phase: String,
    pub seconds: f64,
    /// User and system time of the manager in this phase.
    pub cpu_seconds: f64,
    /// At the end of the phase.
    pub resident_bytes: u64,
    /// The resident memory that no file backs: without the program's code.
    pub private_bytes: u64,
    /// The highest resident memory in this phase.
    pub peak_bytes: u64,
    pub threads: u64,
    /// How often one of its threads was woken in this phase.
    pub wakeups: u64,
    /// How often the memory limit was met in this phase; `None`: it had no cgroup of its own, or
    /// the kernel does not count it.
    pub limit_hits: Option<u64>,
    /// How long after the last byte of the manager's lists the phase ended; `None` where that is
    /// not measured.
    pub after_lists_seconds: Option<f64>,
    pub queues: Option<QueueTimes>,
    /// The manager's requests by verb; `None` unless the API server is the embedded one.
    pub requests: Option<BTreeMap<&'static str, Count>>,
    /// Why there are no figures.
    pub skipped: Option<String>,
}

impl Row {
    pub fn skipped(phase: &str, why: &str) -> Row {
        Row { phase: phase.to_owned(), skipped: Some(why.to_owned()), ..Row::default() }
    }
}

fn mega(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

impl Report {
    fn row(&self, phase: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.phase == phase && row.skipped.is_none())
    }

    /// Writes what one pod costs in each phase that all pods pass.
    fn write_costs(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pods = self.size.pods() as f64;
        for phase in ["all pods exist", "all pods ready"] {
            let Some(row) = self.row(phase) else { continue };
            let (cpu, time) = (row.cpu_seconds / pods * 1e6, row.seconds / pods * 1e6);
            writeln!(f, "{phase}: {cpu:.0} µs of CPU a pod, {time:.0} µs of time")?;
        }
        if let (Some(before), Some(full)) = (self.row("empty cluster"), self.row("settled, full")) {
            let added = full.private_bytes.saturating_sub(before.private_bytes);
            writeln!(f, "settled, full: {:.0} bytes of heap a pod", added as f64 / pods)?;
        }
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { manager, size, config_maps, nodes, .. } = self;
        let Size { deployments, replicas, job, daemon_sets, claims, .. } = size;
        let Size { storm, namespaces, services, jobs, .. } = size;
        writeln!(f, "manager {manager}")?;
        match claims {
            0 => write!(
                f,
                "{deployments} Deployments of {replicas} replicas, a Job of {job} pods, \
                 {daemon_sets} DaemonSets"
            )?,
            claims => write!(f, "{claims} claims")?,
        }
        writeln!(f, ", {nodes} nodes, {config_maps} ConfigMaps")?;
        if size.is_spread() {
            writeln!(f, "{namespaces} namespaces, {services} Services, {jobs} Jobs of one pod")?;
        }
        if *storm > 0 {
            writeln!(f, "a storm of {storm} pods")?;
        }
        if let Some(limited) = &self.limit {
            writeln!(f, "{limited}")?;
        }
        if self.rows.is_empty() {
            return Ok(());
        }
        writeln!(f)?;
        write_rows(f, &self.rows)?;
        if self.size.is_spread() {
            self.write_costs(f)?;
        }
        Ok(())
    }
}

/// Writes the table, and the requests of each phase.
pub fn write_rows(f: &mut fmt::Formatter<'_>, rows: &[Row]) -> fmt::Result {
    writeln!(
        f,
        "{:<24} {:>8} {:>8} {:>8} {:>9} {:>8} {:>9} {:>8} {:>8}{}",
        "PHASE",
        "SECONDS",
        "CPU S",
        "RSS MB",
        "ADDED MB",
        "HEAP MB",
        "PEAK MB",
        "THREADS",
        "WAKEUPS",
        if rows.iter().any(|row| row.limit_hits.is_some()) { "     HITS" } else { "" },
    )?;
    let mut before = None;
    for row in rows {
        if let Some(why) = &row.skipped {
            writeln!(f, "{:<24} skipped: {why}", row.phase)?;
            continue;
        }
        let added = match before {
            None => String::new(),
            Some(before) => format!("{:+.1}", mega(row.resident_bytes) - mega(before)),
        };
        before = Some(row.resident_bytes);
        let hits = row.limit_hits.map_or_else(String::new, |hits| format!(" {hits:>8}"));
        writeln!(
            f,
            "{:<24} {:>8.2} {:>8.2} {:>8.1} {added:>9} {:>8.1} {:>9.1} {:>8} {:>8}{hits}",
            row.phase,
            row.seconds,
            row.cpu_seconds,
            mega(row.resident_bytes),
            mega(row.private_bytes),
            mega(row.peak_bytes),
            row.threads,
            row.wakeups,
        )?;
    }
    for row in rows {
        if let Some(seconds) = row.after_lists_seconds {
            writeln!(f, "{}: {seconds:.2} s after the last byte of the lists", row.phase)?;
        }
        if let Some(times) = &row.queues {
            writeln!(f, "{}: {times}", row.phase)?;
        }
    }
    for row in rows.iter().filter(|row| row.requests.is_some()) {
        write!(f, "\n{}:", row.phase)?;
        for (verb, count) in row.requests.iter().flatten() {
            let Count { requests, received_bytes, sent_bytes } = *count;
            let (up, down) = (mega(received_bytes), mega(sent_bytes));
            write!(f, " {verb} {requests} ({up:.1} MB up, {down:.1} MB down)")?;
        }
    }
    writeln!(f)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_shows_what_each_phase_added() {
        let count = Count { requests: 7, received_bytes: 2_000_000, sent_bytes: 500_000 };
        let row = |phase: &str, resident_bytes| Row {
            phase: phase.to_owned(),
            resident_bytes,
            requests: Some(BTreeMap::from([("list", count)])),
            ..Row::default()
        };
        let rows = vec![
            row("empty", 9_000_000),
            Row::skipped("gone", "no reason"),
            row("full", 19_500_000),
        ];
        let text = Report { rows, ..Report::default() }.to_string();
        for part in ["gone                     skipped: no reason", " 19.5 ", " +10.5 "] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        assert!(text.ends_with("full: list 7 (2.0 MB up, 0.5 MB down)\n"), "{text}");
    }
}
