//! What happened in a soak, and what it found.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::invariants::Breach;

/// The memory that a manager may have in the end: this multiple of what the leader had at the
/// beginning, and this number of bytes more.
const GROWTH: f64 = 1.5;
const SLACK_BYTES: f64 = 8e6;

/// The result of a soak.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SoakReport {
    pub manager: String,
    pub seed: u64,
    pub seconds: u64,
    /// By kind.
    pub faults: BTreeMap<&'static str, u64>,
    /// By kind: done, and refused by the API server.
    pub work: BTreeMap<&'static str, [u64; 2]>,
    /// The changes of objects that were seen.
    pub changes: u64,
    /// How often each invariant was checked.
    pub checked: BTreeMap<&'static str, u64>,
    /// The writes of managers, by verb.
    pub writes: BTreeMap<&'static str, u64>,
    /// The number of managers that were started.
    pub managers: usize,
    /// How long it took until all objects were as their specs say, after the last fault.
    pub settled_seconds: f64,
    pub memory: MemoryReport,
    /// Invariants that did not hold, and other findings.
    pub breaches: Vec<Breach>,
}

/// Anonymous memory in bytes.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MemoryReport {
    /// The leader's memory, beside the first objects.
    pub first_bytes: u64,
    /// The memory of each manager in the end, beside the same objects, with its age in seconds.
    pub last: Vec<(u64, f64)>,
    /// The highest of all managers.
    pub peak_bytes: u64,
}

impl MemoryReport {
    /// Returns the memory of a manager that has grown too much.
    pub fn excess(&self) -> Option<u64> {
        let most = self.first_bytes as f64 * GROWTH + SLACK_BYTES;
        self.last.iter().map(|(bytes, _)| *bytes).find(|bytes| *bytes as f64 > most)
    }
}

impl SoakReport {
    /// Returns whether nothing was found.
    pub fn is_sound(&self) -> bool {
        self.breaches.is_empty()
    }
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Breach { invariant, second, object, seen } = self;
        write!(f, "second {second:.1}: {invariant}: {object}: {seen}")
    }
}

impl fmt::Display for SoakReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "manager {}", self.manager)?;
        writeln!(f, "{} seconds of faults, seed {}", self.seconds, self.seed)?;
        writeln!(f, "{} managers started", self.managers)?;
        writeln!(f, "\n{:<44} {:>8}", "FAULTS", "TIMES")?;
        for (name, times) in &self.faults {
            writeln!(f, "{name:<44} {times:>8}")?;
        }
        writeln!(f, "\n{:<44} {:>8} {:>8}", "WORK", "DONE", "REFUSED")?;
        for (name, [done, refused]) in &self.work {
            writeln!(f, "{name:<44} {done:>8} {refused:>8}")?;
        }
        writeln!(f, "\n{:<44} {:>8}", "CHECKED", "TIMES")?;
        for (name, times) in &self.checked {
            writeln!(f, "{name:<44} {times:>8}")?;
        }
        let writes = self.writes.iter().map(|(verb, count)| format!("{verb} {count}"));
        let writes: Vec<String> = writes.collect();
        writeln!(f, "\nchanges of objects: {}", self.changes)?;
        writeln!(f, "writes of managers: {}", writes.join(", "))?;
        let MemoryReport { first_bytes, last, peak_bytes } = &self.memory;
        let mega = |bytes: u64| bytes as f64 / 1e6;
        write!(f, "anonymous memory: {:.1} MB at first,", mega(*first_bytes))?;
        for (bytes, age) in last {
            write!(f, " {:.1} MB in the end ({age:.0} s old),", mega(*bytes))?;
        }
        writeln!(f, " {:.1} MB at most", mega(*peak_bytes))?;
        writeln!(f, "all objects as their specs say after {:.1} s", self.settled_seconds)?;
        for breach in &self.breaches {
            writeln!(f, "FAILED seed {} {breach}", self.seed)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manager_may_grow_by_half_and_eight_megabytes() {
        for (last, excess) in [(23_000_000, None), (23_000_001, Some(23_000_001))] {
            let memory = MemoryReport {
                first_bytes: 10_000_000,
                last: vec![(1, 1.0), (last, 2.0)],
                peak_bytes: 0,
            };
            assert_eq!(memory.excess(), excess);
        }
    }

    #[test]
    fn a_breach_is_shown_with_its_seed_second_and_object() {
        let breach = Breach {
            invariant: "one of each",
            second: 3.25,
            object: "pods a/x".to_owned(),
            seen: "two".to_owned(),
        };
        let report = SoakReport { seed: 7, breaches: vec![breach], ..SoakReport::default() };
        let text = report.to_string();
        assert!(!report.is_sound());
        assert!(
            text.ends_with("\nFAILED seed 7 second 3.2: one of each: pods a/x: two\n"),
            "{text}"
        );
    }
}
