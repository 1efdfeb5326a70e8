//! Panics on purpose, so that tests of a finished binary can check that it survives one: no known
//! input causes a panic.
//!
//! `CONTRIBUTING.md` explains it; `tests/it/binary.rs` uses it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// The environment variable with the stations at which the process panics, once each, separated by
/// commas. A station is spelled as its call of [`at`] has it: `sync of deployment-controller`.
pub const VARIABLE: &str = "KCM_TEST_PANIC";

/// The plan of [`read_environment`]; unset when no panic is planned.
static PLANNED: OnceLock<Plan> = OnceLock::new();

/// The stations, each with whether its panic is still to come.
struct Plan(Vec<(String, AtomicBool)>);

impl Plan {
    fn new(stations: &str) -> Plan {
        let stations = stations.split(',').map(|station| station.trim().to_owned());
        Plan(stations.map(|station| (station, AtomicBool::new(true))).collect())
    }

    /// Returns whether a panic is planned at `station`, and cancels it: true only once.
    fn take(&self, station: &str) -> bool {
        let planned = self.0.iter().find(|(planned, _)| planned == station);
        planned.is_some_and(|(_, is_left)| is_left.swap(false, Ordering::Relaxed))
    }
}

/// Reads the environment variable at the start of the process. Returns its value, `None` if it is
/// unset or empty. Only the first call plans panics.
pub fn read_environment() -> Option<String> {
    let stations = std::env::var(VARIABLE).ok().filter(|stations| !stations.is_empty())?;
    PLANNED.get_or_init(|| Plan::new(&stations));
    Some(stations)
}

/// Panics at a station, a place where the process can be asked to do so. Costs one load when no
/// panic is planned; `station` gives the name and is called only when one is.
///
/// # Panics
/// Once, if the environment names this station.
#[inline]
pub fn at(station: impl FnOnce() -> String) {
    if let Some(plan) = PLANNED.get() {
        panic_if_planned(plan, &station());
    }
}

/// Panics if `plan` has the station and it has not panicked before.
#[cold]
fn panic_if_planned(plan: &Plan, station: &str) {
    assert!(!plan.take(station), "{station}: as {VARIABLE} asks");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_planned_station_panics_once() {
        at(|| unreachable!("nothing is planned"));
        let plan = Plan::new("sync of a, handler a of b");
        for (station, panics) in [
            ("sync of b", false),
            ("handler a of b", true),
            ("handler a of b", false),
            ("sync of a", true),
            ("sync of a", false),
            ("", false),
        ] {
            assert_eq!(plan.take(station), panics, "{station}");
        }
    }
}
