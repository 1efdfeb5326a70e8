//! When a lower usage of pods may be written.
//!
//! The API server charges a pod to the quota before it stores the pod, so a count may lack pods that the
//! usage has. A usage that forgets them admits more pods than the quota permits, as under upstream's
//! manager.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;

use crate::objects::{Meta, ObjectKey};

/// How long a lower usage waits for pods that were charged, until they are listed. The wait has an
/// end, because a charged pod may have been refused in the end.
const PATIENCE: Duration = Duration::from_secs(5);
/// The time that the API server gets to store a charged pod.
const STORED: Duration = Duration::from_millis(250);
/// The pause until the cache of pods is compared again.
const PAUSE: Duration = Duration::from_millis(100);

/// Whether a count may lack pods that a quota was charged for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lag {
    None,
    /// They may still come: it is to be asked again after this time.
    Short(Duration),
    /// They have not come for [`PATIENCE`].
    Long,
}

/// What is known of the charges to each quota.
#[derive(Default)]
pub struct Charges {
    quotas: Mutex<HashMap<ObjectKey, Charge>>,
}

#[derive(Default)]
struct Charge {
    /// The newest version that this process has seen.
    version: u64,
    /// The newest version that this process wrote, which charges nothing.
    written: u64,
    /// When the newest version came that somebody else wrote, and the one before it, in monotonic time.
    charged: Duration,
    charged_before: Duration,
    /// Since when a lower usage waits.
    waits: Option<Duration>,
}

impl Charge {
    fn see(&mut self, version: u64, now: Duration) {
        self.version = version;
        if version != self.written {
            (self.charged_before, self.charged) = (self.charged, now);
        }
    }
}

impl Charges {
    /// A quota has this version, which the API server may have written to charge a pod. After a restored
    /// backup it may be lower than the one before.
    pub fn see(&self, quota: &Meta, now: Duration) {
        let mut quotas = self.quotas.lock();
        let charge = quotas.entry(quota.key()).or_default();
        if charge.version != quota.resource_version {
            charge.see(quota.resource_version, now);
        }
    }

    /// This process wrote a quota, which has this version now. No lower usage of it waits any more.
    pub fn wrote(&self, quota: &Meta) {
        let mut quotas = self.quotas.lock();
        // A quota that is gone has none.
        let Some(charge) = quotas.get_mut(&quota.key()) else { return };
        charge.written = quota.resource_version;
        charge.waits = None;
        if charge.version == charge.written {
            // Its event came before the answer.
            charge.charged = charge.charged_before;
        }
    }

    pub fn forget(&self, quota: &ObjectKey) {
        self.quotas.lock().remove(quota);
    }

    /// No lower usage of this quota waits any more.
    pub fn settle(&self, quota: &ObjectKey) {
        if let Some(charge) = self.quotas.lock().get_mut(quota) {
            charge.waits = None;
        }
    }

    /// Whether pods may be missing in a lower usage of `quota`, which waits from the first call on until it
    /// is written or [settled](Charges::settle). `known`: the version until which all changes of pods
    /// were counted.
    pub fn wait(&self, quota: &Meta, known: u64, now: Duration) -> Lag {
        let mut quotas = self.quotas.lock();
        let charge = quotas.entry(quota.key()).or_default();
        if charge.version < quota.resource_version {
            charge.see(quota.resource_version, now);
        }
        let stored = charge.charged + STORED;
        let since = *charge.waits.get_or_insert(now);
        if known >= quota.resource_version {
            let ends = stored.min(since + PATIENCE);
            return if now < ends { Lag::Short(ends - now) } else { Lag::None };
        }
        let ends = (since + PATIENCE).max(stored).min(since + 2 * PATIENCE);
        if now < ends { Lag::Short(PAUSE) } else { Lag::Long }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota(version: u64) -> Meta {
        let (namespace, name) = ("ns".into(), "q".into());
        Meta { namespace, name, resource_version: version, ..Meta::default() }
    }

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn a_lower_usage_waits_for_what_was_charged() {
        // When the quota got version 7, what is known of the pods, and when.
        for (charged, known, now, expected) in [
            (0, 7, 1_000, Lag::None),
            (900, 7, 1_000, Lag::Short(millis(150))),
            (900, 7, 1_150, Lag::None),
            (0, 6, 1_000, Lag::Short(PAUSE)),
        ] {
            let charges = Charges::default();
            charges.see(&quota(7), millis(charged));
            let lag = charges.wait(&quota(7), known, millis(now));
            assert_eq!(lag, expected, "{charged} {known} {now}");
        }
    }

    #[test]
    fn what_this_process_wrote_charges_nothing() {
        for is_event_first in [false, true] {
            let charges = Charges::default();
            charges.see(&quota(7), millis(0));
            let event = || charges.see(&quota(8), millis(1_000));
            if is_event_first {
                event();
            }
            charges.wrote(&quota(8));
            event();
            assert_eq!(charges.wait(&quota(8), 8, millis(1_001)), Lag::None, "{is_event_first}");
        }
    }

    #[test]
    fn a_wait_has_an_end() {
        // The version grows by one each 100 ms. What is known grows with it, or not at all.
        for (is_known, last, expected) in [(true, 5_000, Lag::None), (false, 10_000, Lag::Long)] {
            let charges = Charges::default();
            for now in (0..=last).step_by(100) {
                let version = 10 + now / 100;
                charges.see(&quota(version), millis(now));
                let known = if is_known { version } else { 9 };
                let lag = charges.wait(&quota(version), known, millis(now));
                assert_eq!(lag == expected, now == last, "{now} {lag:?}");
            }
            // A write that met a conflict does not wait again.
            charges.see(&quota(1_000), millis(last + 1));
            let known = if is_known { 1_000 } else { 9 };
            assert_eq!(charges.wait(&quota(1_000), known, millis(last + 1)), expected);
        }
    }

    #[test]
    fn a_usage_that_was_written_or_settled_waits_no_more() {
        let charges = Charges::default();
        charges.see(&quota(7), millis(0));
        let wait = |now| charges.wait(&quota(7), 6, millis(now));
        assert_eq!((wait(0), wait(5_000)), (Lag::Short(PAUSE), Lag::Long));
        charges.settle(&quota(7).key());
        assert_eq!((wait(5_000), wait(10_000)), (Lag::Short(PAUSE), Lag::Long));
        charges.wrote(&quota(7));
        assert_eq!(wait(10_000), Lag::Short(PAUSE));
        charges.forget(&quota(7).key());
        charges.wrote(&quota(8));
        assert!(charges.quotas.lock().is_empty());
    }

    #[test]
    fn versions_of_a_restored_backup_charge_too() {
        let charges = Charges::default();
        charges.see(&quota(1_000), millis(0));
        charges.see(&quota(7), millis(1_000));
        assert_eq!(charges.wait(&quota(7), 7, millis(1_000)), Lag::Short(STORED));
    }
}
