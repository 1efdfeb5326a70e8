//! The newest write of each Endpoints. It is not repeated while the cache lags behind it, and its
//! event starts no sync, unless it comes before the answer: that sync finds nothing to write. Every
//! other change of managed Endpoints starts one. Upstream's `staleEndpointsTracker` has only the
//! first part.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::cache::{HistoryVersion, Lister};
use crate::controllers::runner::{Change, Mapper};
use crate::objects::{Endpoints, ObjectKey, Service};

/// The versions of the newest writes.
#[derive(Default)]
pub struct OwnWrites(Mutex<HashMap<ObjectKey, HistoryVersion>>);

impl OwnWrites {
    /// Records a write. `at`: the version of the answer.
    pub fn record(&self, key: ObjectKey, at: HistoryVersion) {
        self.0.lock().insert(key, at);
    }

    /// Forgets the Endpoints of a deleted Service.
    pub fn forget(&self, key: &ObjectKey) {
        self.0.lock().remove(key);
    }

    /// Returns whether a cache that has seen the versions up to `seen` lacks the newest write.
    pub fn lacks_last_write(&self, key: &ObjectKey, seen: HistoryVersion) -> bool {
        self.0.lock().get(key).is_some_and(|at| *at > seen)
    }

    /// Returns whether `endpoints` is as it was last written.
    fn is_last_write(&self, endpoints: &Endpoints) -> bool {
        let version = |at: &HistoryVersion| at.version;
        self.0.lock().get(&endpoints.meta.key()).map(version)
            == Some(endpoints.meta.resource_version)
    }
}

/// Queues the Service of Endpoints that another client has changed, after `delay`, and of deleted
/// ones at once. Endpoints without a Service, or of one without a selector, are their user's: a
/// sync would delete the former.
pub fn queue_service(
    services: Lister<Service>,
    writes: Arc<OwnWrites>,
    delay: Duration,
) -> impl Mapper<Endpoints, ObjectKey> {
    move |change, queue| {
        let version = |endpoints: &Endpoints| endpoints.meta.resource_version;
        let changed = match change {
            Change::Added { new, initial: false } => new,
            Change::Updated { old, new } if version(old) != version(new) => new,
            Change::Deleted(deleted) => return queue.add(deleted.object().meta.key()),
            Change::Added { .. } | Change::Updated { .. } | Change::Resync { .. } => return,
        };
        let key = changed.meta.key();
        let is_managed = || services.get(&key).is_some_and(|service| service.selects_pods());
        if !writes.is_last_write(changed) && is_managed() {
            queue.add_after(key, delay);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cache::{Deleted, Indexer};
    use crate::clock::FakeClock;
    use crate::controllers::Queue;
    use crate::objects::Timestamp;

    const DELAY: Duration = Duration::from_secs(1);

    fn endpoints(name: &str, version: u64) -> Arc<Endpoints> {
        let meta = json!({
            "namespace": "ns", "name": name, "resourceVersion": version.to_string(),
        });
        Arc::new(serde_json::from_value(json!({ "metadata": meta })).unwrap())
    }

    fn service(name: &str, selector: serde_json::Value) -> Arc<Service> {
        let meta = json!({ "namespace": "ns", "name": name });
        let service = json!({ "metadata": meta, "spec": { "selector": selector } });
        Arc::new(serde_json::from_value(service).unwrap())
    }

    #[test]
    fn changes_of_managed_endpoints_by_others_queue_their_service() {
        let services = Arc::new(Indexer::new());
        services.insert(service("managed", json!({ "a": "b" })));
        services.insert(service("users", json!(null)));
        let (clock, writes) =
            (FakeClock::new(Timestamp::from_secs(0)), Arc::<OwnWrites>::default());
        let queue = Queue::for_test(clock.clone());
        let mut mapper = queue_service(Lister::new(services), writes.clone(), DELAY);
        writes.record(ObjectKey::new("ns", "managed"), HistoryVersion { history: 0, version: 7 });
        // The name and version of Endpoints, and whether a change to them queues their Service.
        for (name, version, queued) in [
            ("managed", 7, false),
            ("managed", 8, true),
            ("users", 8, false),
            ("without a service", 8, false),
        ] {
            let (old, new) = (endpoints(name, 1), endpoints(name, version));
            for (change, queued) in [
                (Change::Updated { old: &old, new: &new }, queued),
                (Change::Added { new: &new, initial: false }, queued),
                (Change::Added { new: &new, initial: true }, false),
                (Change::Updated { old: &new, new: &new }, false),
                (Change::Resync { object: &new }, false),
            ] {
                mapper(change, &queue);
                assert!(queue.drain().is_empty(), "{name}: not at once");
                clock.advance(DELAY);
                assert_eq!(queue.drain().len(), usize::from(queued), "{name} {version}");
            }
            mapper(Change::Deleted(&Deleted::Known(new)), &queue);
            assert_eq!(queue.drain().len(), 1, "{name}: deleted");
        }
    }

    #[test]
    fn a_cache_lags_until_it_has_seen_the_write() {
        let (writes, key) = (OwnWrites::default(), ObjectKey::new("ns", "s"));
        let at = |history: u64, version: u64| HistoryVersion { history, version };
        assert!(!writes.lacks_last_write(&key, at(0, 0)), "nothing written");
        writes.record(key.clone(), at(0, 7));
        assert!(writes.lacks_last_write(&key, at(0, 6)));
        assert!(!writes.lacks_last_write(&key, at(0, 7)));
        assert!(!writes.lacks_last_write(&key, at(1, 2)), "the server has lost the write");
        writes.forget(&key);
        assert!(!writes.lacks_last_write(&key, at(0, 6)));
    }
}
