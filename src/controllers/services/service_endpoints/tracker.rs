//! Which EndpointSlices a controller wrote last, so that it neither acts on a cache that has not seen
//! them yet nor wakes up for them. Upstream: `k8s.io/endpointslice/util.EndpointSliceTracker`.

use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;

use super::slices::service_of;
use crate::objects::{EndpointSlice, ObjectKey, Uid};

/// What the watch will show of a slice at last.
#[derive(Clone, Copy, PartialEq)]
enum Expected {
    Generation(i64),
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
        self.expect(slice, Expected::Generation(slice.meta.generation));
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
            Some(Expected::Generation(written)) => slice.meta.generation > written,
            Some(Expected::Deletion) | None => true,
        }
    }

    /// The slice is gone. Gives whether that was to be expected.
    pub fn deleted(&self, slice: &EndpointSlice) -> bool {
        let mut services = self.services();
        let known = services.get_mut(&service_of(slice)).and_then(|s| s.remove(&slice.meta.uid));
        !matches!(known, Some(Expected::Generation(_)))
    }

    /// Whether these slices of `service`, all that the cache has, lag behind what was written.
    pub fn are_stale<'a>(
        &self,
        service: &ObjectKey,
        slices: impl IntoIterator<Item = &'a EndpointSlice>,
    ) -> bool {
        let services = self.services();
        let Some(expected) = services.get(service) else { return false };
        let mut found = 0;
        for slice in slices {
            match expected.get(&slice.meta.uid) {
                Some(Expected::Deletion) => return true,
                Some(Expected::Generation(written)) if *written > slice.meta.generation => {
                    return true;
                }
                Some(Expected::Generation(_)) => found += 1,
                None => {}
            }
        }
        expected.values().filter(|expected| **expected != Expected::Deletion).count() > found
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
            "labels": {"kubernetes.io/service-name": "s"},
        }}))
        .unwrap()
    }

    #[test]
    fn the_cache_is_stale_until_it_shows_what_was_written() {
        let (tracker, service) = (SliceTracker::default(), ObjectKey::new("ns", "s"));
        let stale = |slices: &[EndpointSlice]| tracker.are_stale(&service, slices);
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
