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
/// Within which time a charged pod is stored.
const STORED: Duration = Duration::from_millis(250);

/// Whether a count may lack pods that a quota was charged for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lag {
    None,
    /// They may still come.
    Short,
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
    /// When the newest version came that somebody else wrote, in monotonic time.
    charged: Duration,
    /// Since when a lower usage waits.
    waits: Option<Duration>,
}

impl Charge {
    fn see(&mut self, version: u64, now: Duration) {
        if version > self.version {
            self.version = version;
            if version != self.written {
                self.charged = now;
            }
        }
    }
}

impl Charges {
    /// A quota has this version, which the API server may have written to charge a pod.
    pub fn see(&self, quota: &Meta, now: Duration) {
        let mut quotas = self.quotas.lock();
        quotas.entry(quota.key()).or_default().see(quota.resource_version, now);
    }

    /// This process wrote a quota, which has this version now.
    pub fn wrote(&self, quota: &Meta) {
        let mut quotas = self.quotas.lock();
        quotas.entry(quota.key()).or_default().written = quota.resource_version;
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

    /// Whether pods may be missing in a lower usage of `quota`. `known`: the version until which all
    /// changes of pods were counted.
    pub fn lag(&self, quota: &Meta, known: u64, now: Duration) -> Lag {
        let mut quotas = self.quotas.lock();
        let charge = quotas.entry(quota.key()).or_default();
        charge.see(quota.resource_version, now);
        let stored = charge.charged + STORED;
        let since = *charge.waits.get_or_insert(now);
        if known >= quota.resource_version && now >= stored.min(since + PATIENCE) {
            charge.waits = None;
            return Lag::None;
        }
        let ends = (since + PATIENCE).max(stored).min(since + 2 * PATIENCE);
        if now < ends { Lag::Short } else { Lag::Long }
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
            (900, 7, 1_000, Lag::Short),
            (900, 7, 1_150, Lag::None),
            (0, 6, 1_000, Lag::Short),
        ] {
            let charges = Charges::default();
            charges.see(&quota(7), millis(charged));
            let lag = charges.lag(&quota(7), known, millis(now));
            assert_eq!(lag, expected, "{charged} {known} {now}");
        }
    }

    #[test]
    fn what_this_process_wrote_charges_nothing() {
        let charges = Charges::default();
        charges.see(&quota(7), millis(0));
        charges.wrote(&quota(8));
        charges.see(&quota(8), millis(1_000));
        assert_eq!(charges.lag(&quota(8), 8, millis(1_001)), Lag::None);
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
                let expected = if now < last { Lag::Short } else { expected };
                assert_eq!(charges.lag(&quota(version), known, millis(now)), expected, "{now}");
            }
        }
        let charges = Charges::default();
        charges.see(&quota(7), millis(0));
        assert_eq!(charges.lag(&quota(7), 6, millis(0)), Lag::Short);
        assert_eq!(charges.lag(&quota(7), 6, millis(5_000)), Lag::Long);
        charges.settle(&quota(7).key());
        assert_eq!(charges.lag(&quota(7), 6, millis(5_000)), Lag::Short);
    }
}
