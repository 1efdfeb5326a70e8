//! What quotas were charged lately for pods.
//!
//! The API server charges a pod to the quota before it stores the pod, so a count may lack pods
//! that the usage has. A usage that forgets them admits more pods than the quota permits, as under
//! upstream's manager. So recent charges are added to a count that is lower than the usage.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;

use crate::objects::{Meta, ObjectKey, ResourceList};

/// The time that the API server gets to store a charged pod.
const STORED: Duration = Duration::from_millis(250);
/// How long the cache of pods may be older than a charge, until the pods are listed. It may stay
/// older: a charged pod may have been refused in the end.
const PATIENCE: Duration = Duration::from_secs(5);
/// The pause until the cache of pods is compared again.
const PAUSE: Duration = Duration::from_millis(100);
/// The number of charges to a quota that are kept apart.
const MAX_CHARGES: usize = 32;

/// The charges to each quota that a count of pods may lack.
#[derive(Default)]
pub struct Charges {
    quotas: Mutex<HashMap<ObjectKey, Usage>>,
}

/// What the pods of one quota use, and the charges that a count may lack.
#[derive(Default)]
struct Usage {
    /// The newest version that this process has seen or written.
    version: u64,
    /// The amounts that pods use, as the quota's status has them in that version.
    used: ResourceList,
    /// The charges in the order of their versions, at most [`MAX_CHARGES`]. Beyond that the two
    /// oldest become one, which waits for both: a sum that is too high is safe, because a count
    /// with it is at most the usage.
    recent: Vec<Charge>,
}

/// A rise of the usage of pods that the API server charged.
struct Charge {
    version: u64,
    at: Duration,
    /// The time since which the cache of pods may have been older than the charge, without a list.
    unlisted: Duration,
    amounts: ResourceList,
}

impl Charge {
    /// Returns the time after which to look again, if a count that has the changes until the version
    /// `known` may lack some of its pods: the API server may still be storing them (see [`STORED`]),
    /// or the cache is older than the charge. `None`: the count has all.
    fn recheck_after(&self, known: u64, now: Duration) -> Option<Duration> {
        let is_behind = known < self.version;
        let stored = (self.at + STORED).checked_sub(now).filter(|pause| !pause.is_zero());
        stored.max(is_behind.then_some(PAUSE))
    }
}

impl Usage {
    /// Records that pods use `used` in the version `version` of the quota. A rise over the earlier
    /// usage is a charge of that version.
    fn update(&mut self, version: u64, used: ResourceList, now: Duration) {
        // A lower version: the API server was restored from a backup, so charges have other
        // versions now.
        if version < self.version {
            *self = Usage::default();
        }
        let known = |name: &str| self.used.get(name).unwrap_or_default();
        let mut amounts = ResourceList::default();
        for (name, amount) in used.iter() {
            let rise = amount - known(name);
            if rise.is_positive() {
                amounts.insert(name.clone(), rise);
            }
        }
        if !amounts.is_empty() {
            self.recent.push(Charge { version, at: now, unlisted: now, amounts });
        }
        if self.recent.len() > MAX_CHARGES {
            // The two oldest become one.
            let second = self.recent.remove(1);
            let first = &mut self.recent[0];
            (first.version, first.at) = (second.version, first.at.max(second.at));
            first.amounts.add(&second.amounts);
        }
        (self.version, self.used) = (version, used);
    }

    /// Drops the charges whose pods a count must have by now.
    fn drop_old(&mut self, known: u64, now: Duration) {
        self.recent.retain(|charge| charge.recheck_after(known, now).is_some());
    }
}

impl Charges {
    /// Records the usage of pods in a quota that a watch has shown. Its rise was charged; of a new
    /// quota all of it. `known`: the version until which all changes of pods are in the cache.
    pub fn record_seen(&self, quota: &Meta, used: ResourceList, known: u64, now: Duration) {
        let mut quotas = self.quotas.lock();
        let usage = quotas.entry(quota.key()).or_default();
        if usage.version != quota.resource_version {
            usage.update(quota.resource_version, used, now);
            usage.drop_old(known, now);
        }
    }

    /// Records the usage in a quota that this process wrote. A later version may be the next that
    /// is seen, as after a list: its difference to this one was charged.
    pub fn record_write(&self, quota: &Meta, used: ResourceList) {
        // A quota that is gone has no usage.
        if let Some(usage) = self.quotas.lock().get_mut(&quota.key())
            && usage.version < quota.resource_version
        {
            (usage.version, usage.used) = (quota.resource_version, used);
        }
    }

    /// Forgets a deleted quota.
    pub fn forget(&self, quota: &ObjectKey) {
        self.quotas.lock().remove(quota);
    }

    /// Returns whether the cache of pods has been older than a charge for longer than [`PATIENCE`],
    /// so that the pods are to be listed.
    pub fn are_overdue(&self, quota: &ObjectKey, known: u64, now: Duration) -> bool {
        let is_overdue =
            |charge: &Charge| known < charge.version && now >= charge.unlisted + PATIENCE;
        self.quotas.lock().get(quota).is_some_and(|usage| usage.recent.iter().any(is_overdue))
    }

    /// Records that the pods were listed and the count was written: the next list comes after
    /// another [`PATIENCE`].
    pub fn record_list(&self, quota: &ObjectKey, now: Duration) {
        if let Some(usage) = self.quotas.lock().get_mut(quota) {
            usage.recent.iter_mut().for_each(|charge| charge.unlisted = charge.unlisted.max(now));
        }
    }

    /// Returns the amounts that a count may lack although it has all changes of pods until the
    /// version `known`, and the time after which it may lack less. `used`: what pods use in the
    /// version of `quota`.
    pub fn missing(
        &self,
        quota: &Meta,
        used: &ResourceList,
        known: u64,
        now: Duration,
    ) -> (ResourceList, Option<Duration>) {
        let mut quotas = self.quotas.lock();
        // The quota's event is on the way: until then all of its usage counts as charged.
        let Some(usage) = quotas.get_mut(&quota.key()) else { return (used.clone(), Some(PAUSE)) };
        if usage.version < quota.resource_version {
            usage.update(quota.resource_version, used.clone(), now);
        }
        let (mut sum, mut first) = (ResourceList::default(), None::<Duration>);
        for charge in &usage.recent {
            if let Some(pause) = charge.recheck_after(known, now) {
                sum.add(&charge.amounts);
                first = Some(first.map_or(pause, |first| first.min(pause)));
            }
        }
        (sum, first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::Quantity;

    fn quota(version: u64) -> Meta {
        let (namespace, name) = ("ns".into(), "q".into());
        Meta { namespace, name, resource_version: version, ..Meta::default() }
    }

    fn pods(count: i64) -> ResourceList {
        [("pods", Quantity::new(count))].into_iter().collect()
    }

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// A quota with three pods at version 5, which were charged long ago.
    fn charges() -> Charges {
        let charges = Charges::default();
        charges.record_seen(&quota(5), pods(3), 5, Duration::ZERO);
        charges
    }

    /// The number of pods that a count may lack, and the pause in milliseconds.
    fn missing(charges: &Charges, known: u64, now: u64) -> (i64, Option<u64>) {
        let missing = charges.missing(&quota(0), &pods(9), known, millis(now));
        let count = missing.0.get("pods").unwrap_or_default().value();
        (count, missing.1.map(|pause| u64::try_from(pause.as_millis()).unwrap()))
    }

    #[test]
    fn a_charge_is_missing_until_it_is_stored_and_the_cache_is_as_new() {
        // When the fourth pod is charged, by version 7; what is known of the pods, and when.
        for (charged, known, now, expected) in [
            (1_000, 7, 1_000, (1, Some(250))),
            (1_000, 7, 1_249, (1, Some(1))),
            (1_000, 7, 1_250, (0, None)),
            (1_000, 6, 1_100, (1, Some(150))),
            (1_000, 6, 1_250, (1, Some(100))),
            (1_000, 6, 99_000, (1, Some(100))),
            // The first version may have charged all.
            (0, 4, 100, (4, Some(150))),
            (0, 5, 200, (4, Some(50))),
        ] {
            let charges = charges();
            charges.record_seen(&quota(7), pods(4), 0, millis(charged));
            assert_eq!(missing(&charges, known, now), expected, "{charged} {known} {now}");
        }
    }

    #[test]
    fn a_charge_of_something_else_delays_nothing() {
        let charges = charges();
        for (version, now) in [(6, 400), (7, 550), (8, 700)] {
            charges.record_seen(&quota(version), pods(3), version, millis(now));
            assert_eq!(missing(&charges, version, now), (0, None), "{now}");
        }
        // Nor do charges of pods that follow one another delay the count of older ones.
        for (version, now) in [(9, 1_000), (10, 1_150), (11, 1_300), (12, 1_450)] {
            charges.record_seen(
                &quota(version),
                pods(version.cast_signed() - 5),
                version,
                millis(now),
            );
            assert!(missing(&charges, version, now).0 <= 2, "{now}");
        }
        assert_eq!(charges.quotas.lock()[&quota(0).key()].recent.len(), 2);
    }

    #[test]
    fn a_write_and_a_charge_may_come_as_one_change() {
        let charges = charges();
        charges.record_write(&quota(6), pods(1));
        charges.record_write(&quota(5), pods(9));
        charges.record_seen(&quota(7), pods(3), 5, millis(1_000));
        assert_eq!(missing(&charges, 7, 1_000), (2, Some(250)));
        charges.forget(&quota(7).key());
        charges.record_write(&quota(8), pods(1));
        assert!(charges.quotas.lock().is_empty());
    }

    #[test]
    fn a_quota_whose_event_has_not_come_may_be_charged_for_all() {
        let charges = Charges::default();
        assert_eq!(missing(&charges, u64::MAX, 1_000), (9, Some(100)));
        assert!(charges.quotas.lock().is_empty());
        charges.record_seen(&quota(5), pods(3), 5, Duration::ZERO);
        let (missing, _) = charges.missing(&quota(6), &pods(5), 5, millis(1_000));
        assert_eq!(missing, pods(2));
    }

    #[test]
    fn pods_are_listed_each_five_seconds_while_the_cache_is_behind() {
        let charges = charges();
        charges.record_seen(&quota(7), pods(4), 5, millis(1_000));
        let overdue = |known, now| charges.are_overdue(&quota(7).key(), known, millis(now));
        assert_eq!([overdue(6, 5_999), overdue(6, 6_000), overdue(7, 6_000)], [false, true, false]);
        // The list has what was charged more than 250 ms before it.
        assert_eq!(missing(&charges, u64::MAX, 6_000), (0, None));
        charges.record_list(&quota(7).key(), millis(6_000));
        assert_eq!([overdue(6, 10_999), overdue(6, 11_000)], [false, true]);
        assert_eq!(missing(&charges, 6, 7_000), (1, Some(100)));
    }

    #[test]
    fn charges_are_merged_while_the_cache_is_behind() {
        let charges = charges();
        for number in 1..=1_000_u64 {
            let used = pods(3 + number.cast_signed());
            charges.record_seen(&quota(5 + number), used, 0, millis(10 * number));
        }
        assert_eq!(charges.quotas.lock()[&quota(0).key()].recent.len(), MAX_CHARGES);
        assert!(charges.are_overdue(&quota(0).key(), 0, millis(10_000)), "since the first charge");
        // What is known of the pods, and when; the oldest 972 of 1,003 pods have one version.
        for (known, now, expected) in [
            (0, 20_000, (1_003, Some(100))),
            (973, 20_000, (1_003, Some(100))),
            (974, 20_000, (31, Some(100))),
            (1_004, 20_000, (1, Some(100))),
            (1_005, 20_000, (0, None)),
            // The last of the oldest was charged 310 ms ago, and the last of all just now.
            (1_005, 10_000, (25, Some(10))),
        ] {
            assert_eq!(missing(&charges, known, now), expected, "{known} {now}");
        }
    }

    #[test]
    fn versions_of_a_restored_backup_charge_too() {
        let charges = Charges::default();
        charges.record_seen(&quota(1_000), pods(3), 1_000, millis(0));
        charges.record_seen(&quota(7), pods(2), 7, millis(1_000));
        assert_eq!(missing(&charges, 7, 1_000), (2, Some(250)));
    }
}
