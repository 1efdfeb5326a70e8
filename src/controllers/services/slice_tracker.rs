//! The EndpointSlices that a controller wrote last. It does not act on a cache that has not seen them
//! yet, and their events start no sync. Upstream: `k8s.io/endpointslice/util.EndpointSliceTracker`.

use parking_lot::{Mutex, MutexGuard};
use std::collections::{HashMap, HashSet};

use super::service_slices::service_of;
use crate::objects::{EndpointSlice, ObjectKey, Uid};

/// What the watch is going to show of a slice.
#[derive(Clone, Copy, PartialEq)]
enum Expected {
    Written { generation: i64, version: u64 },
    Deletion,
}

/// By Service and by slice. Slices without a Service's name belong to the Service without one.
#[derive(Default)]
pub struct SliceTracker {
    services: Mutex<HashMap<ObjectKey, HashMap<Uid, Expected>>>,
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

    /// The slice was written, and this is what came back.
    pub fn wrote(&self, slice: &EndpointSlice) {
        let (generation, version) = (slice.meta.generation, slice.meta.resource_version);
        self.expect(slice, Expected::Written { generation, version });
    }

    /// The slice was deleted.
    pub fn expect_deletion(&self, slice: &EndpointSlice) {
        self.expect(slice, Expected::Deletion);
    }

    pub fn has(&self, slice: &EndpointSlice) -> bool {
        self.expected(slice).is_some()
    }

    /// Whether the slice is news: not known, or newer than what was written.
    pub fn should_sync(&self, slice: &EndpointSlice) -> bool {
        match self.expected(slice) {
            Some(Expected::Written { generation, .. }) => slice.meta.generation > generation,
            Some(Expected::Deletion) | None => true,
        }
    }

    /// The slice is gone. Gives whether that was to be expected.
    pub fn deleted(&self, slice: &EndpointSlice) -> bool {
        let mut services = self.services();
        let known = services.get_mut(&service_of(slice)).and_then(|s| s.remove(&slice.meta.uid));
        !matches!(known, Some(Expected::Written { .. }))
    }

    /// Whether these slices of `service`, all in the cache, lag behind what was written. `seen`: the
    /// newest version that the cache had seen before it was read.
    pub fn are_stale<'a>(
        &self,
        service: &ObjectKey,
        slices: impl IntoIterator<Item = &'a EndpointSlice>,
        seen: u64,
    ) -> bool {
        let mut services = self.services();
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
            Expected::Written { version, .. } => found.contains(uid) || *version > seen,
            Expected::Deletion => true,
        });
        let written = |expected: &&Expected| **expected != Expected::Deletion;
        expected.values().filter(written).count() > found.len()
    }

    pub fn forget(&self, service: &ObjectKey) {
        self.services().remove(service);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn slice(uid: &str, generation: i64) -> EndpointSlice {
        serde_json::from_value(json!({"metadata": {
            "namespace": "ns", "name": uid, "uid": uid, "generation": generation,
            "resourceVersion": "7",
            "labels": {"kubernetes.io/service-name": "s"},
        }}))
        .unwrap()
    }

    #[test]
    fn the_cache_is_stale_until_it_shows_what_was_written() {
        let (tracker, service) = (SliceTracker::default(), ObjectKey::new("ns", "s"));
        let stale = |slices: &[EndpointSlice]| tracker.are_stale(&service, slices, 0);
        assert!(!stale(&[slice("a", 1)]), "nothing written");
        tracker.wrote(&slice("a", 2));
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
        assert!(tracker.deleted(&slice("a", 1)), "the watch shows it before the answer");
        tracker.wrote(&slice("a", 1));
        assert!(tracker.are_stale(&service, &[], 6), "the cache has not seen the write");
        assert!(!tracker.are_stale(&service, &[], 7));
        assert!(!tracker.has(&slice("a", 1)));
    }

    #[test]
    fn what_was_written_is_no_news() {
        let tracker = SliceTracker::default();
        assert!(tracker.should_sync(&slice("a", 1)) && !tracker.has(&slice("a", 1)));
        tracker.wrote(&slice("a", 2));
        assert!(!tracker.should_sync(&slice("a", 2)) && tracker.should_sync(&slice("a", 3)));
        assert!(!tracker.deleted(&slice("a", 2)), "not by us");
        assert!(tracker.deleted(&slice("a", 2)), "not known any more");
        tracker.expect_deletion(&slice("a", 2));
        assert!(tracker.should_sync(&slice("a", 2)) && tracker.deleted(&slice("a", 2)));
    }
}
