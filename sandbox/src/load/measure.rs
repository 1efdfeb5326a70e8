//! Measures the costs of a manager's process and its requests in a phase.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use super::Row;
use super::process::Process;
use crate::api::traffic::Count;

/// The first part of every manager's user agent.
pub const PROGRAM: &str = "kube-controller-manager";

/// Requests by verb; `None` unless the API server is the embedded one.
pub type Requests = Option<BTreeMap<&'static str, Count>>;

/// The figures at the start of a phase.
pub struct Mark {
    at: Duration,
    cpu_seconds: f64,
    wakeups: u64,
    limit_hits: Option<u64>,
    requests: Requests,
}

impl Mark {
    /// Reads the counters at the start of a phase. `process`: absent before it was started.
    pub fn new(at: Duration, process: Option<&Process>, requests: Requests) -> io::Result<Mark> {
        let mut mark = Mark { at, cpu_seconds: 0.0, wakeups: 0, limit_hits: Some(0), requests };
        if let Some(process) = process {
            process.forget_peak();
            mark.cpu_seconds = process.read()?.cpu_seconds;
            mark.wakeups = process.wakeups()?;
            mark.limit_hits = process.group_counts().and_then(|counts| counts.hits);
        }
        Ok(mark)
    }

    /// Computes the row of a phase from this mark to `at`.
    pub fn row(
        self,
        phase: &str,
        at: Duration,
        process: &Process,
        requests: Requests,
    ) -> io::Result<Row> {
        let now = process.read()?;
        let before = self.requests.unwrap_or_default();
        let new = |(verb, count): (&'static str, Count)| {
            let count = count.since(before.get(verb).copied().unwrap_or_default());
            (count != Count::default()).then_some((verb, count))
        };
        let hits = process.group_counts().and_then(|counts| counts.hits);
        Ok(Row {
            phase: phase.to_owned(),
            seconds: (at - self.at).as_secs_f64(),
            cpu_seconds: now.cpu_seconds - self.cpu_seconds,
            resident_bytes: now.resident_bytes as u64,
            private_bytes: process.private_bytes()?,
            peak_bytes: now.peak_bytes as u64,
            threads: now.threads as u64,
            wakeups: process.wakeups()?.saturating_sub(self.wakeups),
            limit_hits: hits.zip(self.limit_hits).map(|(now, before)| now - before),
            after_lists_seconds: None,
            queues: None,
            requests: requests.map(|requests| requests.into_iter().filter_map(new).collect()),
            skipped: None,
        })
    }
}
