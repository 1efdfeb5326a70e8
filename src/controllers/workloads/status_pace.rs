//! In a storm, a status on its way to its final numbers is not written with each step.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;

use super::owner_records::OwnerRecord;
use crate::objects::{ObjectKey, Uid};
use crate::storm::Storm;

/// How old a status on its way may become in a storm.
const AGE: Duration = Duration::from_secs(2);
/// A sync whose status differs from the last one counts as this number of plain events.
const WEIGHT: u32 = 5;

/// When the status of each owner was written in the last storm. Upstream has no counterpart: it
/// writes each step.
#[derive(Default)]
pub struct StatusPace {
    storm: Storm,
    /// Emptied by the first changed status after the storm.
    written: Mutex<HashMap<ObjectKey, Duration>>,
}

impl StatusPace {
    /// A sync of `owner` found a status that differs at `now`, which is monotonic time. How long its
    /// write waits; `None`: not at all. `may_wait` is called only in a storm, for a status that is
    /// not old yet.
    pub fn wait(
        &self,
        owner: &ObjectKey,
        may_wait: impl FnOnce() -> bool,
        now: Duration,
    ) -> Option<Duration> {
        self.storm.count(now, WEIGHT);
        if !self.storm.is_on(now) {
            *self.written.lock() = HashMap::new();
            return None;
        }
        let due = *self.written.lock().get(owner)? + AGE;
        due.checked_sub(now).filter(|left| !left.is_zero() && may_wait())
    }

    /// The status of `owner` was written at `now`.
    pub fn wrote(&self, owner: &ObjectKey, now: Duration) {
        if self.storm.is_on(now) {
            self.written.lock().insert(owner.clone(), now);
        }
    }
}

#[cfg(test)]
impl StatusPace {
    pub fn in_storm(now: Duration) -> StatusPace {
        let pace = StatusPace::default();
        pace.storm_goes_on(now);
        pace
    }

    pub fn storm_goes_on(&self, now: Duration) {
        self.storm.count(now, u32::MAX);
    }
}

impl OwnerRecord for StatusPace {
    fn forget(&self, owner: &ObjectKey, _: Option<&Uid>) {
        self.written.lock().remove(owner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> ObjectKey {
        ObjectKey::new("ns", name)
    }

    #[test]
    fn a_status_on_its_way_waits_in_a_storm_alone() {
        let (start, millis) = (Duration::from_secs(1_000), Duration::from_millis);
        let pace = StatusPace::default();
        pace.wrote(&key("a"), start);
        let not_asked = || panic!("asked");
        assert_eq!(pace.wait(&key("a"), not_asked, start), None, "no storm");

        let pace = StatusPace::in_storm(start);
        assert_eq!(pace.wait(&key("a"), not_asked, start), None, "the first of the storm");
        pace.wrote(&key("a"), start);
        for (name, may_wait, after, expected) in [
            ("a", true, 0, Some(2_000)),
            ("a", true, 1, Some(1_999)),
            ("a", false, 2, None),
            ("b", true, 3, None),
            ("a", true, 4, Some(1_996)),
        ] {
            let wait = pace.wait(&key(name), || may_wait, start + millis(after));
            assert_eq!(wait, expected.map(millis), "{name} {may_wait} after {after} ms");
        }
        pace.storm_goes_on(start + AGE);
        assert_eq!(pace.wait(&key("a"), not_asked, start + AGE), None, "it is old");
    }

    #[test]
    fn what_was_written_is_forgotten_with_its_owner_and_with_the_storm() {
        let start = Duration::from_secs(1_000);
        let pace = StatusPace::in_storm(start);
        pace.wrote(&key("a"), start);
        pace.wrote(&key("b"), start);
        pace.forget(&key("a"), None);
        let may_wait = || true;
        assert_eq!(pace.wait(&key("a"), may_wait, start), None);
        assert_eq!(pace.wait(&key("b"), may_wait, start), Some(AGE));
        assert_eq!(pace.wait(&key("b"), may_wait, start + AGE / 2), None, "the storm is over");
        assert!(pace.written.lock().is_empty());
    }
}
