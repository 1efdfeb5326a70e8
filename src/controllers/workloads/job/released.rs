//! The pods whose finalizer was removed and that the cache still shows with it.
//! Upstream: `uidTrackingExpectations`.

use parking_lot::{Mutex, MutexGuard};
use std::collections::{HashMap, HashSet};

use super::sync_state::TRACKING;
use crate::cache::Lister;
use crate::controllers::runner::keys::{DependentEvent, Observer};
use crate::controllers::workloads::owner_records::OwnerRecord;
use crate::objects::{Meta, ObjectKey, Pod, Uid};

/// By Job. A removal that the API server has lost, as by a restored backup, is forgotten.
pub struct Released {
    /// The history of the pods' cache: see [`HistoryVersion`](crate::cache::HistoryVersion).
    history: Box<dyn Fn() -> u64 + Send + Sync>,
    state: Mutex<State>,
}

/// The pods by Job, recorded in this history of the cache.
#[derive(Default)]
struct State {
    history: u64,
    jobs: HashMap<ObjectKey, HashSet<Uid>>,
}

impl Released {
    /// Makes an empty record for pods in the cache `pods`.
    pub fn seen_in(pods: &Lister<Pod>) -> Released {
        let pods = pods.clone();
        Released { history: Box::new(move || pods.seen().history), state: Mutex::default() }
    }

    /// Locks the record, and empties it if the server has lost its history: no events come for what
    /// was recorded before.
    fn state(&self) -> MutexGuard<'_, State> {
        let (history, mut state) = ((self.history)(), self.state.lock());
        if state.history != history {
            *state = State { history, ..State::default() };
        }
        state
    }

    pub fn pods_of(&self, job: &ObjectKey) -> HashSet<Uid> {
        self.state().jobs.get(job).cloned().unwrap_or_default()
    }

    /// Records pods whose finalizers will be removed. Call it before the removal.
    pub fn expect(&self, job: &ObjectKey, pods: impl IntoIterator<Item = Uid>) {
        self.state().jobs.entry(job.clone()).or_default().extend(pods);
    }

    /// Forgets a pod: the removal was seen, or will never be seen.
    pub fn observed(&self, job: &ObjectKey, pod: &Uid) {
        let mut state = self.state();
        let Some(pods) = state.jobs.get_mut(job) else { return };
        pods.remove(pod);
        if pods.is_empty() {
            state.jobs.remove(job);
        }
    }
}

impl OwnerRecord for Released {
    fn forget(&self, job: &ObjectKey, _: Option<&Uid>) {
        self.state().jobs.remove(job);
    }
}

impl Observer for Released {
    /// Forgets a pod when the cache shows it without its finalizer.
    fn observe(&self, owner: &ObjectKey, dependent: &Meta, event: DependentEvent) {
        let is_released = match event {
            DependentEvent::Created => false,
            DependentEvent::Updated | DependentEvent::Deleting => {
                !dependent.has_finalizer(TRACKING)
            }
            DependentEvent::Deleted => true,
        };
        if is_released {
            self.observed(owner, &dependent.uid);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::cache::Indexer;

    #[test]
    fn a_pod_is_released_until_it_is_seen_without_the_finalizer() {
        let pods = Arc::new(Indexer::new());
        let released = Released::seen_in(&Lister::new(pods.clone()));
        let (job, pod) = (ObjectKey::new("ns", "j"), Uid::new("p"));
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
            assert_eq!(released.pods_of(&job).is_empty(), over, "{finalizers:?} {event:?}");
        }
        assert!(released.state().jobs.is_empty());
        released.expect(&job, [pod.clone()]);
        pods.go_back(1);
        assert!(released.pods_of(&job).is_empty(), "the pod has its finalizer again");
        released.expect(&job, [pod]);
        assert_eq!(released.pods_of(&job).len(), 1);
    }
}
