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
/// The pause between events that does not end a storm: the watch of pods gathers them for 50 ms, and
/// other work delays them.
const LULL: Duration = Duration::from_millis(250);

/// Since when the status of each owner waits. Upstream has no counterpart: it writes each step.
#[derive(Default)]
pub struct StatusPace {
    storm: Storm,
    waiting: Mutex<HashMap<ObjectKey, Duration>>,
}

impl StatusPace {
    /// Counts a pod of an owner of this kind that from `now` on, which is monotonic time, counts
    /// differently in a status. Their number does not depend on how often an owner is synced.
    pub fn saw(&self, change: &Change<'_, Pod>, kind: &str, now: Duration) {
        let counts = |pod: &Pod| (pod.is_ready(), pod.is_active());
        let pod = match change {
            Change::Updated { old, new } if counts(old) == counts(new) => return,
            Change::Added { initial: true, .. } | Change::Resync { .. } => return,
            Change::Added { new, .. } | Change::Updated { new, .. } => new,
            Change::Deleted(gone) => gone.object(),
        };
        if pod.meta.controller().is_some_and(|owner| owner.kind == *kind) {
            self.storm.count(now, 1);
        }
    }

    /// A sync of `owner` found a status that differs at `now`, which is monotonic time. How long its
    /// write still waits; `None`: not at all. `patience`: how long the last status may be wrong,
    /// `None`: it is replaced at once; called only in a storm.
    pub fn wait(
        &self,
        owner: &ObjectKey,
        patience: &dyn Fn() -> Option<Duration>,
        now: Duration,
    ) -> Option<Duration> {
        self.storm.count(now, WEIGHT);
        if !self.storm.goes_on(now, LULL) {
            return None;
        }
        let patience = patience()?;
        let since = *self.waiting.lock().entry(owner.clone()).or_insert(now);
        (since + patience).checked_sub(now).filter(|left| !left.is_zero())
    }

    /// The status of `owner` is right: it was written, or shows what a sync found.
    pub fn settle(&self, owner: &ObjectKey) {
        let mut waiting = self.waiting.lock();
        if waiting.remove(owner).is_some() && waiting.is_empty() {
            // Its table grew in the storm.
            *waiting = HashMap::new();
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

    pub fn has(&self, owner: &ObjectKey) -> bool {
        self.waiting.lock().contains_key(owner)
    }
}

impl OwnerRecord for StatusPace {
    fn forget(&self, owner: &ObjectKey, _: Option<&Uid>) {
        self.settle(owner);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use crate::cache::Deleted;

    fn key(name: &str) -> ObjectKey {
        ObjectKey::new("ns", name)
    }

    #[test]
    fn a_status_on_its_way_waits_in_a_storm_alone() {
        let (start, millis) = (Duration::from_secs(1_000), Duration::from_millis);
        let pace = StatusPace::default();
        let not_asked = || -> Option<Duration> { panic!("asked") };
        assert_eq!(pace.wait(&key("a"), &not_asked, start), None, "no storm");

        let pace = StatusPace::in_storm(start);
        for (name, patience, after, expected) in [
            ("a", Some(2_000), 0, Some(2_000)),
            ("a", Some(2_000), 1, Some(1_999)),
            ("a", None, 2, None),
            ("b", None, 3, None),
            ("b", Some(2_000), 4, Some(2_000)),
            ("a", Some(5_000), 5, Some(4_995)),
            ("a", Some(2_000), 1_999, Some(1)),
            ("a", Some(2_000), 2_000, None),
            ("a", Some(2_000), 3_000, None),
            ("a", Some(5_000), 3_000, Some(2_000)),
        ] {
            let now = start + millis(after);
            pace.storm_goes_on(now);
            let wait = pace.wait(&key(name), &|| patience.map(millis), now);
            assert_eq!(wait, expected.map(millis), "{name} {patience:?} after {after} ms");
        }
        // Once it was written, the next difference begins its own wait.
        pace.settle(&key("a"));
        let now = start + millis(4_000);
        pace.storm_goes_on(now);
        let patience = || Some(millis(2_000));
        assert_eq!(pace.wait(&key("a"), &patience, now), Some(millis(2_000)));
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
        let gone = Deleted::Known(deleted.clone());
        for (change, is_storm) in [
            (Change::Updated { old: &unready, new: &ready }, true),
            (Change::Updated { old: &ready, new: &unready }, true),
            (Change::Updated { old: &ready, new: &deleted }, true),
            (Change::Updated { old: &ready, new: &ready }, false),
            (Change::Added { new: &unready, initial: false }, true),
            (Change::Added { new: &unready, initial: true }, false),
            (Change::Resync { object: &ready }, false),
            (Change::Deleted(&gone), true),
            (Change::Updated { old: &unready_of_job, new: &ready_of_job }, false),
        ] {
            let pace = StatusPace::default();
            (0..1_000).for_each(|_| pace.saw(&change, "ReplicaSet", start));
            assert_eq!(pace.storm.is_on(start), is_storm);
        }
    }

    #[test]
    fn a_wait_ends_with_its_owner_and_survives_a_pause_of_the_storm() {
        let start = Duration::from_secs(1_000);
        let pace = StatusPace::in_storm(start);
        let age = Duration::from_secs(2);
        let patience = || Some(age);
        for name in ["a", "b"] {
            assert_eq!(pace.wait(&key(name), &patience, start), Some(age));
        }
        pace.forget(&key("a"), None);
        let now = start + age / 4;
        pace.storm_goes_on(now);
        assert_eq!(pace.wait(&key("a"), &patience, now), Some(age), "it begins again");
        assert_eq!(pace.wait(&key("b"), &patience, now), Some(age - age / 4));
        let now = now + LULL;
        assert_eq!(pace.wait(&key("b"), &patience, now), Some(age - age / 4 - LULL), "a lull");
        let now = start + age / 2;
        assert_eq!(pace.wait(&key("a"), &patience, now), None, "there is no storm");
        pace.settle(&key("a"));
        pace.storm_goes_on(now);
        assert_eq!(pace.wait(&key("b"), &patience, now), Some(age / 2));
        pace.settle(&key("b"));
        assert!(!pace.has(&key("a")) && !pace.has(&key("b")));
    }
}
