//! The resources of which the node has too little. Upstream:
//! `evictionManager.IsUnderMemoryPressure` and those beside it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

/// What the node may have too little of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pressure {
    Memory,
    Disk,
    Pid,
}

/// The pressures that thresholds of evictions show; each stays for a while after its threshold is
/// no longer crossed. Cheap to clone: clones are one state.
#[derive(Clone, Debug)]
pub struct NodePressure {
    /// How long an observed pressure stays. Upstream: `PressureTransitionPeriod`.
    transition_period: Duration,
    last: Arc<Mutex<Last>>,
}

#[derive(Debug, Default)]
struct Last {
    /// When each was observed last, on the monotonic clock.
    observed: BTreeMap<Pressure, Duration>,
    /// Those that held at the last observation.
    held: Vec<Pressure>,
}

impl NodePressure {
    pub fn new(transition_period: Duration) -> NodePressure {
        NodePressure { transition_period, last: Arc::default() }
    }

    /// Records which thresholds are crossed now. `now`: by the monotonic clock. Upstream:
    /// `nodeConditionsLastObservedAt`, `nodeConditionsObservedSince`.
    pub fn observe(&self, crossed: impl IntoIterator<Item = Pressure>, now: Duration) {
        let mut last = self.last.lock();
        last.observed.extend(crossed.into_iter().map(|pressure| (pressure, now)));
        last.observed.retain(|_, at| now.saturating_sub(*at) < self.transition_period);
        last.held = last.observed.keys().copied().collect();
    }

    /// Returns whether the node is under a pressure, as of the last observation.
    pub fn is_under(&self, pressure: Pressure) -> bool {
        self.last.lock().held.contains(&pressure)
    }

    /// Returns all pressures of the node, as of the last observation.
    pub fn all(&self) -> Vec<Pressure> {
        self.last.lock().held.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pressure_stays_for_the_transition_period() {
        let pressure = NodePressure::new(Duration::from_secs(30));
        assert!(!pressure.is_under(Pressure::Disk));
        for (at, crossed, expected) in [
            (10, &[Pressure::Disk][..], &[Pressure::Disk][..]),
            (20, &[Pressure::Memory], &[Pressure::Memory, Pressure::Disk]),
            (39, &[], &[Pressure::Memory, Pressure::Disk]),
            (40, &[], &[Pressure::Memory]),
            (50, &[], &[]),
        ] {
            pressure.observe(crossed.iter().copied(), Duration::from_secs(at));
            let all = [Pressure::Memory, Pressure::Disk, Pressure::Pid];
            let held: Vec<Pressure> =
                all.into_iter().filter(|one| pressure.clone().is_under(*one)).collect();
            assert_eq!(held, expected, "{at}");
        }
    }
}
