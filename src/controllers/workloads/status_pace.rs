//! In a storm, a status on its way to its final numbers is not written with each step.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;

use super::owner_records::OwnerRecord;
use crate::controllers::Change;
use crate::objects::{ObjectKey, Pod, Uid};
use crate::storm::Storm;

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
    /// Counts a pod of an owner of this kind that from `now` on, which is monotonic time, counts
    /// differently in a status. Their number does not depend on how often an owner is synced.
    pub fn saw(&self, change: &Change<'_, Pod>, kind: &str, now: Duration) {
        if let Change::Updated { old, new } = change
            && (old.is_ready(), old.is_active()) != (new.is_ready(), new.is_active())
            && new.meta.controller().is_some_and(|owner| owner.kind == *kind)
        {
            self.storm.count(now, 1);
        }
    }

    /// A sync of `owner` found a status that differs at `now`, which is monotonic time. How long its
    /// write waits; `None`: not at all. `patience`: how old the last status may become, `None`: it
    /// is replaced at once; called only in a storm.
    pub fn wait(
        &self,
        owner: &ObjectKey,
        patience: &dyn Fn() -> Option<Duration>,
        now: Duration,
    ) -> Option<Duration> {
        self.storm.count(now, WEIGHT);
        if !self.storm.is_on(now) {
            *self.written.lock() = HashMap::new();
            return None;
        }
        let written = *self.written.lock().get(owner)?;
        (written + patience()?).checked_sub(now).filter(|left| !left.is_zero())
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
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;

    fn key(name: &str) -> ObjectKey {
        ObjectKey::new("ns", name)
    }

    #[test]
    fn a_status_on_its_way_waits_in_a_storm_alone() {
        let (start, millis) = (Duration::from_secs(1_000), Duration::from_millis);
        let pace = StatusPace::default();
        pace.wrote(&key("a"), start);
        let not_asked = || -> Option<Duration> { panic!("asked") };
        assert_eq!(pace.wait(&key("a"), &not_asked, start), None, "no storm");

        let pace = StatusPace::in_storm(start);
        assert_eq!(pace.wait(&key("a"), &not_asked, start), None, "the first of the storm");
        pace.wrote(&key("a"), start);
        for (name, patience, after, expected) in [
            ("a", Some(2_000), 0, Some(2_000)),
            ("a", Some(2_000), 1, Some(1_999)),
            ("a", None, 2, None),
            ("b", Some(2_000), 3, None),
            ("a", Some(5_000), 4, Some(4_996)),
            ("a", Some(2_000), 2_000, None),
            ("a", Some(2_000), 3_000, None),
        ] {
            let now = start + millis(after);
            pace.storm_goes_on(now);
            let wait = pace.wait(&key(name), &|| patience.map(millis), now);
            assert_eq!(wait, expected.map(millis), "{name} {patience:?} after {after} ms");
        }
    }

    #[test]
    fn pods_that_count_differently_make_a_storm() {
        let start = Duration::from_secs(1_000);
        let pod = |kind: &str, ready: &str, deleted: Value| {
            let owner = json!({ "apiVersion": "v1", "kind": kind, "name": "o", "uid": "o", "controller": true });
            let pod = json!({
                "metadata": { "name": "p", "ownerReferences": [owner], "deletionTimestamp": deleted },
                "status": { "conditions": [{ "type": "Ready", "status": ready }] },
            });
            Arc::new(serde_json::from_value::<Pod>(pod).unwrap())
        };
        let of_set = |ready| pod("ReplicaSet", ready, Value::Null);
        let (unready, ready) = (of_set("False"), of_set("True"));
        let deleted = pod("ReplicaSet", "True", json!("2026-01-01T00:00:00Z"));
        let of_job = |ready| pod("Job", ready, Value::Null);
        let (unready_of_job, ready_of_job) = (of_job("False"), of_job("True"));
        for (change, is_storm) in [
            (Change::Updated { old: &unready, new: &ready }, true),
            (Change::Updated { old: &ready, new: &unready }, true),
            (Change::Updated { old: &ready, new: &deleted }, true),
            (Change::Updated { old: &ready, new: &ready }, false),
            (Change::Added { new: &ready, initial: false }, false),
            (Change::Updated { old: &unready_of_job, new: &ready_of_job }, false),
        ] {
            let pace = StatusPace::default();
            (0..1_000).for_each(|_| pace.saw(&change, "ReplicaSet", start));
            assert_eq!(pace.storm.is_on(start), is_storm);
        }
    }

    #[test]
    fn what_was_written_is_forgotten_with_its_owner_and_with_the_storm() {
        let start = Duration::from_secs(1_000);
        let pace = StatusPace::in_storm(start);
        pace.wrote(&key("a"), start);
        pace.wrote(&key("b"), start);
        pace.forget(&key("a"), None);
        let age = Duration::from_secs(2);
        let patience = || Some(age);
        assert_eq!(pace.wait(&key("a"), &patience, start), None);
        assert_eq!(pace.wait(&key("b"), &patience, start), Some(age));
        assert_eq!(pace.wait(&key("b"), &patience, start + age / 2), None, "the storm is over");
        assert!(pace.written.lock().is_empty());
    }
}
