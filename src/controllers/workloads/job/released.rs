//! The pods whose finalizer was removed and that the cache still shows with it.
//! Upstream: `uidTrackingExpectations`.

use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};

use super::sync_state::TRACKING;
use crate::controllers::runner::keys::{DependentEvent, Observer};
use crate::controllers::workloads::owner_records::OwnerRecord;
use crate::objects::{Meta, ObjectKey, Uid};

/// By Job.
#[derive(Default)]
pub struct Released(Mutex<HashMap<ObjectKey, HashSet<Uid>>>);

impl Released {
    pub fn of(&self, job: &ObjectKey) -> HashSet<Uid> {
        self.0.lock().get(job).cloned().unwrap_or_default()
    }

    /// Records pods whose finalizers will be removed. Call it before the removal.
    pub fn expect(&self, job: &ObjectKey, pods: impl IntoIterator<Item = Uid>) {
        self.0.lock().entry(job.clone()).or_default().extend(pods);
    }

    /// Forgets a pod: the removal was seen, or will never be seen.
    pub fn observed(&self, job: &ObjectKey, pod: &Uid) {
        let mut jobs = self.0.lock();
        let Some(pods) = jobs.get_mut(job) else { return };
        pods.remove(pod);
        if pods.is_empty() {
            jobs.remove(job);
        }
    }
}

impl OwnerRecord for Released {
    fn forget(&self, job: &ObjectKey, _: Option<&Uid>) {
        self.0.lock().remove(job);
    }
}

impl Observer for Released {
    fn observe(&self, owner: &ObjectKey, dependent: &Meta, event: DependentEvent) {
        let released = match event {
            DependentEvent::Created => false,
            DependentEvent::Updated | DependentEvent::Deleting => {
                !dependent.has_finalizer(TRACKING)
            }
            DependentEvent::Deleted => true,
        };
        if released {
            self.observed(owner, &dependent.uid);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_is_released_until_it_is_seen_without_the_finalizer() {
        let (released, job, pod) = (Released::default(), ObjectKey::new("ns", "j"), Uid::new("p"));
        let meta = |finalizers: &[&str]| -> Meta {
            serde_json::from_value(json!({ "uid": "p", "finalizers": finalizers })).unwrap()
        };
        for (finalizers, event, over) in [
            (&[TRACKING] as &[&str], DependentEvent::Updated, false),
            (&[TRACKING], DependentEvent::Deleting, false),
            (&["another"], DependentEvent::Created, false),
            (&["another"], DependentEvent::Updated, true),
            (&[], DependentEvent::Deleting, true),
            (&[TRACKING], DependentEvent::Deleted, true),
        ] {
            released.expect(&job, [pod.clone()]);
            released.observe(&job, &meta(finalizers), event);
            assert_eq!(released.of(&job).is_empty(), over, "{finalizers:?} {event:?}");
        }
        assert!(released.0.lock().is_empty());
    }
}
