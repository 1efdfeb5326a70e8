//! The costs of a load, as text and as JSON.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::api::traffic::Count;

#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    pub manager: String,
    pub deployments: usize,
    pub replicas: usize,
    /// The pods of a Job.
    pub job: usize,
    pub daemon_sets: usize,
    pub claims: usize,
    pub config_maps: usize,
    pub nodes: usize,
    pub rows: Vec<Row>,
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

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { manager, deployments, replicas, claims, config_maps, nodes, .. } = self;
        let Report { job, daemon_sets, .. } = self;
        writeln!(f, "manager {manager}")?;
        match claims {
            0 => write!(
                f,
                "{deployments} Deployments of {replicas} replicas, a Job of {job} pods, \
                 {daemon_sets} DaemonSets"
            )?,
            claims => write!(f, "{claims} claims")?,
        }
        writeln!(f, ", {nodes} nodes, {config_maps} ConfigMaps\n")?;
        write_rows(f, &self.rows)
    }
}

/// The table, and the requests of each phase.
pub fn write_rows(f: &mut fmt::Formatter<'_>, rows: &[Row]) -> fmt::Result {
    writeln!(
        f,
        "{:<24} {:>8} {:>8} {:>8} {:>9} {:>8} {:>9} {:>8} {:>8}",
        "PHASE",
        "SECONDS",
        "CPU S",
        "RSS MB",
        "ADDED MB",
        "HEAP MB",
        "PEAK MB",
        "THREADS",
        "WAKEUPS"
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
        writeln!(
            f,
            "{:<24} {:>8.2} {:>8.2} {:>8.1} {added:>9} {:>8.1} {:>9.1} {:>8} {:>8}",
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
