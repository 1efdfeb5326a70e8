//! The EndpointSlices that a controller wrote last. It does not act on a cache that has not seen
//! them yet, and their events start no sync. Upstream:
//! `k8s.io/endpointslice/util.EndpointSliceTracker`.

use parking_lot::{Mutex, MutexGuard};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::service_slices::{SERVICE_NAME, is_managed, service_of};
use crate::cache::HistoryVersion;
use crate::controllers::runner::{Change, Mapper};
use crate::objects::{EndpointSlice, ObjectKey, Uid};

/// The change of a slice that the watch is going to show.
#[derive(Clone, Copy, PartialEq)]
enum Expected {
    Written { generation: i64, version: u64 },
    Deletion,
}

/// Expected changes by Service and by slice. Slices without a Service's name belong to the Service
/// without a name.
#[derive(Default)]
pub struct SliceTracker {
    services: Mutex<HashMap<ObjectKey, HashMap<Uid, Expected>>>,
    /// The history to which `services` belongs.
    history: AtomicU64,
}

impl SliceTracker {
    fn services(&self) -> MutexGuard<'_, HashMap<ObjectKey, HashMap<Uid, Expected>>> {
        self.services.lock()
    }

    fn expected(&self, slice: &EndpointSlice) -> Option<Expected> {
        self.services().get(&service_of(slice))?.get(&slice.meta.uid).copied()
    }

    fn expect(&self, slice: &EndpointSlice, expected: Expected) {
        let mut services = self.services();
        services.entry(service_of(slice)).or_default().insert(slice.meta.uid.clone(), expected);
    }

    /// Records a write, of which `slice` is the answer: the watch will show it.
    pub fn record_write(&self, slice: &EndpointSlice) {
        let (generation, version) = (slice.meta.generation, slice.meta.resource_version);
        self.expect(slice, Expected::Written { generation, version });
    }

    /// Records a deletion that the watch will show.
    pub fn expect_deletion(&self, slice: &EndpointSlice) {
        self.expect(slice, Expected::Deletion);
    }

    pub fn has(&self, slice: &EndpointSlice) -> bool {
        self.expected(slice).is_some()
    }

    /// Returns whether a slice that the watch shows needs a sync: it is unknown, was deleted by the
    /// controller, or is newer than the last write.
    pub fn should_sync(&self, slice: &EndpointSlice) -> bool {
        match self.expected(slice) {
            Some(Expected::Written { generation, .. }) => slice.meta.generation > generation,
            Some(Expected::Deletion) | None => true,
        }
    }

    /// Forgets a slice whose deletion the watch shows. Returns whether the deletion was expected;
    /// `true` also if the slice is unknown.
    pub fn handle_deletion(&self, slice: &EndpointSlice) -> bool {
        let mut services = self.services();
        let known = services.get_mut(&service_of(slice)).and_then(|s| s.remove(&slice.meta.uid));
        !matches!(known, Some(Expected::Written { .. }))
    }

    /// Returns whether `slices`, all slices of `service` in the cache, lag behind the writes.
    /// `seen`: the newest version that the cache had seen before they were read.
    pub fn are_stale<'a>(
        &self,
        service: &ObjectKey,
        slices: impl IntoIterator<Item = &'a EndpointSlice>,
        seen: HistoryVersion,
    ) -> bool {
        let mut services = self.services();
        if self.history.swap(seen.history, Ordering::SeqCst) != seen.history {
            // The server has lost what was written.
            services.clear();
        }
        let Some(expected) = services.get_mut(service) else { return false };
        let mut found = HashSet::new();
        for slice in slices {
            match expected.get(&slice.meta.uid) {
                Some(Expected::Deletion) => return true,
                Some(Expected::Written { generation, .. })
                    if *generation > slice.meta.generation =>
                {
                    return true;
                }
                Some(Expected::Written { .. }) => {
                    found.insert(slice.meta.uid.clone());
                }
                None => {}
            }
        }
        // A slice that another client deleted before our request was answered: the cache has seen
        // both the write and the deletion, and no further event comes.
        expected.retain(|uid, expected| match expected {
            Expected::Written { version, .. } => found.contains(uid) || *version > seen.version,
            Expected::Deletion => true,
        });
        let written = |expected: &&Expected| **expected != Expected::Deletion;
        expected.values().filter(written).count() > found.len()
    }

    pub fn forget(&self, service: &ObjectKey) {
        self.services().remove(service);
    }
}

/// Queues the Service of a slice of `manager`, after `delay`, if the slice is not as it was last
/// written. A slice whose manager changes queues its Service too; one whose Service changes queues
/// both Services.
pub fn queue_service(
    manager: &'static str,
    tracker: Arc<SliceTracker>,
    delay: Duration,
) -> impl Mapper<EndpointSlice, ObjectKey> {
    move |change, queue| {
        let managed = |slice: &EndpointSlice| is_managed(&slice.meta.labels, manager);
        let add = |slice: &EndpointSlice| {
            let service = service_of(slice);
            if service.name.is_empty() {
                return log::error!(
                    "EndpointSlice {} has no label {SERVICE_NAME}",
                    slice.meta.key()
                );
            }
            queue.add_after(service, delay);
        };
        match change {
            Change::Added { new, .. } if managed(new) && tracker.should_sync(new) => add(new),
            Change::Updated { old, new } => {
                let service = |slice: &EndpointSlice| {
                    slice.meta.labels.get(SERVICE_NAME).map(str::to_owned).unwrap_or_default()
                };
                if service(old) != service(new) {
                    add(new);
                    add(old);
                } else if managed(old) != managed(new) || (managed(new) && tracker.should_sync(new))
                {
                    add(new);
                }
            }
            Change::Deleted(deleted) => {
                let slice = deleted.object();
                if managed(slice) && tracker.has(slice) && !tracker.handle_deletion(slice) {
                    add(slice);
                }
            }
            Change::Added { .. } | Change::Resync { .. } => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::service_slices::MANAGED_BY;
    use super::*;
    use crate::cache::Deleted;
    use crate::clock::FakeClock;
    use crate::controllers::Queue;
    use crate::objects::Timestamp;

    fn slice(uid: &str, generation: i64) -> EndpointSlice {
        serde_json::from_value(json!({"metadata": {
            "namespace": "ns", "name": uid, "uid": uid, "generation": generation,
            "resourceVersion": "7",
            "labels": {"kubernetes.io/service-name": "s"},
        }}))
        .unwrap()
    }

    fn seen(history: u64, version: u64) -> HistoryVersion {
        HistoryVersion { history, version }
    }

    #[test]
    fn slices_that_the_server_has_lost_are_not_waited_for() {
        let (tracker, service) = (SliceTracker::default(), ObjectKey::new("ns", "s"));
        tracker.record_write(&slice("a", 3));
        tracker.expect_deletion(&slice("b", 1));
        let restored = [slice("a", 2), slice("b", 1)];
        assert!(tracker.are_stale(&service, &restored, seen(0, 6)));
        assert!(!tracker.are_stale(&service, &restored, seen(1, 5)));
        tracker.record_write(&slice("a", 3));
        assert!(tracker.are_stale(&service, &restored, seen(1, 5)));
    }

    #[test]
    fn the_cache_is_stale_until_it_shows_the_writes() {
        let (tracker, service) = (SliceTracker::default(), ObjectKey::new("ns", "s"));
        let stale = |slices: &[EndpointSlice]| tracker.are_stale(&service, slices, seen(0, 0));
        assert!(!stale(&[slice("a", 1)]), "nothing written");
        tracker.record_write(&slice("a", 2));
        assert!(stale(&[]), "not there yet");
        assert!(stale(&[slice("a", 1)]), "an older one");
        assert!(!stale(&[slice("a", 2)]) && !stale(&[slice("a", 3), slice("b", 1)]));
        tracker.expect_deletion(&slice("b", 1));
        assert!(stale(&[slice("a", 2), slice("b", 1)]), "still there");
        assert!(!stale(&[slice("a", 2)]));
        tracker.forget(&service);
        assert!(!stale(&[]));
    }

    #[test]
    fn a_slice_that_another_client_deletes_before_the_answer_is_not_waited_for() {
        let (tracker, service) = (SliceTracker::default(), ObjectKey::new("ns", "s"));
        assert!(tracker.handle_deletion(&slice("a", 1)), "the watch shows it before the answer");
        tracker.record_write(&slice("a", 1));
        assert!(tracker.are_stale(&service, &[], seen(0, 6)), "the cache has not seen the write");
        assert!(!tracker.are_stale(&service, &[], seen(0, 7)));
        assert!(!tracker.has(&slice("a", 1)));
    }

    #[test]
    fn a_slice_as_written_needs_no_sync() {
        let tracker = SliceTracker::default();
        assert!(tracker.should_sync(&slice("a", 1)) && !tracker.has(&slice("a", 1)));
        tracker.record_write(&slice("a", 2));
        assert!(!tracker.should_sync(&slice("a", 2)) && tracker.should_sync(&slice("a", 3)));
        assert!(!tracker.handle_deletion(&slice("a", 2)), "not by us");
        assert!(tracker.handle_deletion(&slice("a", 2)), "not known any more");
        tracker.expect_deletion(&slice("a", 2));
        assert!(tracker.should_sync(&slice("a", 2)) && tracker.handle_deletion(&slice("a", 2)));
    }
    fn managed_slice(generation: i64, service: &str, manager: &str) -> Arc<EndpointSlice> {
        let json = json!({"metadata": {
            "namespace": "ns", "name": "x", "uid": "x", "generation": generation,
            "labels": {SERVICE_NAME: service, MANAGED_BY: manager},
        }});
        Arc::new(serde_json::from_value(json).unwrap())
    }

    #[test]
    fn slices_that_are_not_as_written_queue_their_service_after_the_delay() {
        let (clock, delay) = (FakeClock::new(Timestamp::from_secs(0)), Duration::from_secs(1));
        let (tracker, queue) = (Arc::<SliceTracker>::default(), Queue::for_test(clock.clone()));
        let mut mapper = queue_service("me", tracker.clone(), delay);
        let mut queues = |change: Change<'_, EndpointSlice>| {
            mapper(change, &queue);
            assert!(queue.drain().is_empty(), "not at once");
            clock.advance(delay);
            let mut names: Vec<String> = queue.drain().iter().map(|k| k.name.to_string()).collect();
            names.sort();
            names
        };
        tracker.record_write(&managed_slice(2, "s", "me"));
        for (new, queued) in [
            (managed_slice(2, "s", "me"), vec![]),
            (managed_slice(3, "s", "me"), vec!["s"]),
            (managed_slice(3, "s", "other"), vec![]),
            (managed_slice(1, "t", "me"), vec!["t"]),
            (managed_slice(1, "", "me"), vec![]),
        ] {
            assert_eq!(queues(Change::Added { new: &new, initial: false }), queued, "{new:?}");
        }
        let old = managed_slice(2, "s", "me");
        for (new, queued) in [
            (managed_slice(2, "s", "me"), vec![]),
            (managed_slice(3, "s", "me"), vec!["s"]),
            (managed_slice(2, "t", "me"), vec!["s", "t"]),
            (managed_slice(2, "s", "other"), vec!["s"]),
        ] {
            assert_eq!(queues(Change::Updated { old: &old, new: &new }), queued, "{new:?}");
        }
        assert!(queues(Change::Resync { object: &managed_slice(9, "s", "me") }).is_empty());
        let deleted = Deleted::Known(old.clone());
        assert_eq!(queues(Change::Deleted(&deleted)), ["s"], "not by us");
        tracker.expect_deletion(&old);
        assert!(queues(Change::Deleted(&deleted)).is_empty(), "by us");
        assert!(queues(Change::Deleted(&deleted)).is_empty(), "not known");
    }
}
