//! What the controller remembers of each Service with a load balancer.

use std::collections::HashMap;
use std::sync::Arc;

use kube_controller_manager::objects::ObjectKey;
use parking_lot::Mutex;

use super::predicates::TargetSet;
use crate::objects::Service;

/// The Services that have or may have a load balancer. Upstream: `serviceCache`, `lastSyncedNodes`.
#[derive(Default)]
pub struct Records {
    records: Mutex<HashMap<ObjectKey, Record>>,
    /// The last set, which most records share.
    latest: Mutex<Arc<TargetSet>>,
}

#[derive(Default)]
struct Record {
    /// As it was last synced: the only trace of a Service that is gone. `None`: it has no load
    /// balancer.
    service: Option<Arc<Service>>,
    /// The targets of the last call, also of one that failed.
    targets: Option<Arc<TargetSet>>,
    /// The version that the last write of its status made; 0: it is not known.
    status: u64,
    /// Held by the calls for this Service.
    calls: Arc<async_lock::Mutex<()>>,
}

impl Records {
    /// Returns the lock that calls for a Service hold, so that none overlap.
    pub fn calls(&self, key: &ObjectKey) -> Arc<async_lock::Mutex<()>> {
        self.records.lock().entry(key.clone()).or_default().calls.clone()
    }

    pub fn service(&self, key: &ObjectKey) -> Option<Arc<Service>> {
        self.records.lock().get(key)?.service.clone()
    }

    pub fn set_service(&self, key: &ObjectKey, service: Arc<Service>) {
        self.records.lock().entry(key.clone()).or_default().service = Some(service);
    }

    /// Returns a shared copy of the set: one for all equal sets in a row.
    pub fn shared(&self, targets: TargetSet) -> Arc<TargetSet> {
        let mut latest = self.latest.lock();
        if **latest != targets {
            *latest = Arc::new(targets);
        }
        latest.clone()
    }

    /// Remembers the targets of a call; returns whether they were others before.
    pub fn replace_targets(&self, key: &ObjectKey, targets: &Arc<TargetSet>) -> bool {
        let mut records = self.records.lock();
        let before = records.entry(key.clone()).or_default().targets.replace(targets.clone());
        // Upstream takes a Service without known targets for one with none.
        *before.unwrap_or_default() != **targets
    }

    /// Returns the version that the last write of its status made; 0: it is not known.
    pub fn status(&self, key: &ObjectKey) -> u64 {
        self.records.lock().get(key).map_or(0, |record| record.status)
    }

    pub fn set_status(&self, key: &ObjectKey, version: u64) {
        self.records.lock().entry(key.clone()).or_default().status = version;
    }

    /// Empties the record of a Service whose load balancer is gone. The record itself stays for its
    /// lock.
    pub fn remove(&self, key: &ObjectKey) {
        if let Some(record) = self.records.lock().get_mut(key) {
            (record.service, record.targets, record.status) = (None, None, 0);
        }
    }

    /// Drops what is remembered of a Service without a load balancer, unless others wait for its
    /// lock. The caller holds the lock.
    pub fn forget_unused(&self, key: &ObjectKey) {
        let mut records = self.records.lock();
        let is_unused = records.get(key).is_some_and(|record| {
            // The record and the caller have one each.
            record.service.is_none() && Arc::strong_count(&record.calls) <= 2
        });
        if is_unused {
            records.remove(key);
        }
    }

    /// Returns the Services that have or may have a load balancer.
    pub fn keys(&self) -> Vec<ObjectKey> {
        let records = self.records.lock();
        let known = records.iter().filter(|(_, record)| record.service.is_some());
        known.map(|(key, _)| key.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_lasts_until_its_load_balancer_is_gone_and_no_call_waits() {
        let (records, key) = (Records::default(), ObjectKey::new("default", "web"));
        let count = || records.records.lock().len();
        let first = records.calls(&key);
        records.set_service(&key, Arc::default());
        records.forget_unused(&key);
        assert_eq!((count(), records.keys()), (1, vec![key.clone()]));
        let second = records.calls(&key);
        records.set_status(&key, 7);
        assert_eq!(records.status(&key), 7);
        records.remove(&key);
        assert_eq!((records.keys(), records.status(&key)), (vec![], 0));
        records.forget_unused(&key);
        assert_eq!(count(), 1, "another call waits for the lock");
        drop(second);
        records.forget_unused(&key);
        assert_eq!(count(), 0);
        drop(first);
    }

    #[test]
    fn unknown_targets_are_those_of_a_load_balancer_with_none() {
        let (records, key) = (Records::default(), ObjectKey::new("default", "web"));
        assert!(!records.replace_targets(&key, &Arc::default()));
    }
}
