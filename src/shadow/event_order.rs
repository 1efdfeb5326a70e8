//! The order of events in a namespace while some of them are held back. A request of another user
//! that came after a write of the manager in charge passes after it; a later write of that manager
//! is the answer to the request.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// A namespace is forgotten when no write in it was wanted for this working time.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

/// The waiting events of each namespace. `Inner` owns it, and the held watches fill it.
#[derive(Default)]
pub struct EventOrder {
    namespaces: HashMap<String, Namespace>,
}

#[derive(Default)]
struct Namespace {
    /// The events that wait, indexed by [`Origin`]: their versions, and the number of watches in
    /// which each waits.
    waiting: [BTreeMap<u64, usize>; 2],
    /// The working time when this manager last wanted one of them.
    wanted: Duration,
}

/// The kind of an event that waits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Origin {
    /// A write of the manager in charge.
    Write,
    /// A request of another user.
    ForeignRequest,
}

/// Returns the number in an object's version, which grows with time for all kinds that one server
/// stores; `None` for a version that is not a number.
pub fn version_number(version: &str) -> Option<u64> {
    version.parse().ok()
}

impl EventOrder {
    /// Records an event that waits until [`record_passed`](Self::record_passed) is called. The
    /// first event of a namespace also removes those where none waits and none was wanted recently.
    pub fn record_waiting(&mut self, origin: Origin, namespace: &str, version: u64, now: Duration) {
        if !self.namespaces.contains_key(namespace) {
            self.namespaces.retain(|_, events| {
                events.waiting.iter().any(|waiting| !waiting.is_empty())
                    || now.saturating_sub(events.wanted) < FORGOTTEN_AFTER
            });
        }
        let events = self.namespaces.entry(namespace.to_owned()).or_default();
        *events.waiting[origin as usize].entry(version).or_default() += 1;
    }

    /// Records that an event waits no longer.
    pub fn record_passed(&mut self, origin: Origin, namespace: &str, version: u64) {
        let Some(events) = self.namespaces.get_mut(namespace) else { return };
        let waiting = &mut events.waiting[origin as usize];
        if let Some(watches) = waiting.get_mut(&version) {
            *watches -= 1;
            if *watches == 0 {
                waiting.remove(&version);
            }
        }
    }

    /// Returns whether an event of this origin with an earlier version waits.
    pub fn has_waiting_before(&self, origin: Origin, namespace: &str, version: u64) -> bool {
        let events = self.namespaces.get(namespace);
        let first = events.and_then(|events| events.waiting[origin as usize].keys().next());
        first.is_some_and(|first| *first < version)
    }

    /// Records that a write in this namespace was wanted.
    pub fn record_wanted(&mut self, namespace: &str, now: Duration) {
        if let Some(events) = self.namespaces.get_mut(namespace) {
            events.wanted = now;
        }
    }

    /// Returns the time when a write in this namespace was last wanted; zero if not recently.
    pub fn last_wanted(&self, namespace: &str) -> Duration {
        self.namespaces.get(namespace).map_or(Duration::ZERO, |events| events.wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::ZERO;

    #[test]
    fn what_waits_is_in_the_order_of_versions() {
        let mut order = EventOrder::default();
        let is_before = |order: &EventOrder, namespace: &str| {
            order.has_waiting_before(Origin::Write, namespace, 5)
        };
        assert!(!is_before(&order, "a"));
        for version in [3, 4, 4, 5, 9] {
            order.record_waiting(Origin::Write, "a", version, NOW);
        }
        order.record_waiting(Origin::ForeignRequest, "b", 1, NOW);
        for (passes, expected) in [(4, true), (3, true), (4, false), (9, false)] {
            assert!(!is_before(&order, "b"), "another namespace, and no write");
            order.record_passed(Origin::Write, "a", passes);
            assert_eq!(is_before(&order, "a"), expected, "{passes}");
        }
        assert!(order.has_waiting_before(Origin::ForeignRequest, "b", 2));
        assert_eq!((version_number("17"), version_number("a17")), (Some(17), None));
    }

    #[test]
    fn a_namespace_is_forgotten_once_nothing_waits_or_was_wanted_lately() {
        let mut order = EventOrder::default();
        order.record_waiting(Origin::Write, "wanted", 1, NOW);
        order.record_wanted("wanted", FORGOTTEN_AFTER);
        order.record_passed(Origin::Write, "wanted", 1);
        order.record_waiting(Origin::Write, "idle", 2, NOW);
        order.record_waiting(Origin::Write, "waiting", 3, NOW);
        order.record_passed(Origin::Write, "idle", 2);
        order.record_waiting(Origin::Write, "new", 4, FORGOTTEN_AFTER);
        let mut known: Vec<_> = order.namespaces.keys().cloned().collect();
        known.sort();
        assert_eq!(known, ["new", "waiting", "wanted"]);
    }
}
