//! The Service and the manager of an EndpointSlice, and the Service that a change of a slice wakes.

use std::sync::Arc;
use std::time::Duration;

use super::slice_tracker::SliceTracker;
use crate::cache::{Index, IndexValue, Lister};
use crate::controllers::Controller;
use crate::controllers::runner::{Change, Mapper};
use crate::objects::{EndpointSlice, Labels, ObjectKey};

/// The label that names the Service. Upstream: `discovery.LabelServiceName`.
pub const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// The label that names who writes the slice. Upstream: `discovery.LabelManagedBy`.
pub const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";

const BY_SERVICE: Index<EndpointSlice> = Index::new("service", |slice, put| {
    if slice.meta.labels.contains_key(SERVICE_NAME) {
        put(IndexValue::Key(service_of(slice)));
    }
});

/// The Service that a slice is of; without a name when the slice names none.
pub fn service_of(slice: &EndpointSlice) -> ObjectKey {
    let name = slice.meta.labels.get(SERVICE_NAME).unwrap_or_default();
    ObjectKey { namespace: slice.meta.namespace.clone(), name: name.into() }
}

pub fn is_managed(labels: &Labels, manager: &str) -> bool {
    labels.get(MANAGED_BY) == Some(manager)
}

/// A Lister in which [`of_service`] finds slices.
pub fn lister(c: &mut Controller) -> Lister<EndpointSlice> {
    let slices = c.lister();
    c.index(&slices, &BY_SERVICE);
    slices
}

/// The slices of a Service that `manager` writes, by name.
pub fn of_service(
    slices: &Lister<EndpointSlice>,
    service: &ObjectKey,
    manager: &str,
) -> Vec<Arc<EndpointSlice>> {
    let mut found = slices.by_index(&BY_SERVICE, &IndexValue::Key(service.clone()));
    found.retain(|slice| is_managed(&slice.meta.labels, manager));
    found.sort_by(|a, b| a.meta.name.cmp(&b.meta.name));
    found
}

/// The name that a new slice of `owner` starts with.
pub fn prefix(owner: &str) -> String {
    // One more character would be one too many for the longest names.
    if owner.len() < 253 { format!("{owner}-") } else { owner.to_owned() }
}

/// A slice that `manager` writes and that is not as it was last written wakes its Service, `delay`
/// later; so does one that changes hands, and one that changes its Service wakes both.
pub fn wake_service(
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
                if managed(slice) && tracker.has(slice) && !tracker.deleted(slice) {
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

    use super::*;
    use crate::cache::Deleted;
    use crate::clock::FakeClock;
    use crate::controllers::Queue;
    use crate::controllers::runner::Change;
    use crate::objects::Timestamp;

    fn slice(generation: i64, service: &str, manager: &str) -> Arc<EndpointSlice> {
        let json = json!({"metadata": {
            "namespace": "ns", "name": "x", "uid": "x", "generation": generation,
            "labels": {SERVICE_NAME: service, MANAGED_BY: manager},
        }});
        Arc::new(serde_json::from_value(json).unwrap())
    }

    #[test]
    fn slices_that_are_not_as_written_wake_their_service_later() {
        let (clock, delay) = (FakeClock::new(Timestamp::from_secs(0)), Duration::from_secs(1));
        let (tracker, queue) = (Arc::<SliceTracker>::default(), Queue::for_test(clock.clone()));
        let mut mapper = wake_service("me", tracker.clone(), delay);
        let mut wakes = |change: Change<'_, EndpointSlice>| {
            mapper(change, &queue);
            assert!(queue.drain().is_empty(), "not at once");
            clock.advance(delay);
            let mut names: Vec<String> = queue.drain().iter().map(|k| k.name.to_string()).collect();
            names.sort();
            names
        };
        tracker.wrote(&slice(2, "s", "me"));
        for (new, woken) in [
            (slice(2, "s", "me"), vec![]),
            (slice(3, "s", "me"), vec!["s"]),
            (slice(3, "s", "other"), vec![]),
            (slice(1, "t", "me"), vec!["t"]),
            (slice(1, "", "me"), vec![]),
        ] {
            assert_eq!(wakes(Change::Added { new: &new, initial: false }), woken, "{new:?}");
        }
        let old = slice(2, "s", "me");
        for (new, woken) in [
            (slice(2, "s", "me"), vec![]),
            (slice(3, "s", "me"), vec!["s"]),
            (slice(2, "t", "me"), vec!["s", "t"]),
            (slice(2, "s", "other"), vec!["s"]),
        ] {
            assert_eq!(wakes(Change::Updated { old: &old, new: &new }), woken, "{new:?}");
        }
        assert!(wakes(Change::Resync { object: &slice(9, "s", "me") }).is_empty());
        let deleted = Deleted::Known(old.clone());
        assert_eq!(wakes(Change::Deleted(&deleted)), ["s"], "not by us");
        tracker.expect_deletion(&old);
        assert!(wakes(Change::Deleted(&deleted)).is_empty(), "by us");
        assert!(wakes(Change::Deleted(&deleted)).is_empty(), "not known");
    }
}
