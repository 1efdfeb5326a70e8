//! No sync acts on a cache older than the last write it made. Upstream:
//! `consistency.ConsistencyStore` (feature gates `StaleControllerConsistency...`).

use parking_lot::{Mutex, MutexGuard};
use std::collections::{HashMap, VecDeque};
use std::fmt;

use crate::cache::{HistoryVersion, Lister};
use crate::client::{Client, ListOptions};
use crate::controllers::Error;
use crate::controllers::workloads::owner_records::OwnerRecord;
use crate::metrics::IntCounterVec;
use crate::objects::{
    Object, ObjectKey, PartialObjectMetadata, Resource, ResourceType, Selector, Uid,
};

/// The newest version that the cache of a resource has seen: `Lister::seen`.
type SeenVersion = Box<dyn Fn() -> HistoryVersion + Send + Sync>;

/// The newest versions written on behalf of each owner, compared with what the caches have seen.
/// Writes to resources whose cache it does not know are not tracked.
#[derive(Default)]
pub struct Consistency {
    stores: Vec<(ResourceType, SeenVersion)>,
    writes: Mutex<HashMap<ObjectKey, Written>>,
    /// The names of owners that were deleted lately, oldest first.
    deleted_owners: Mutex<VecDeque<ObjectKey>>,
}

/// The number of names of deleted owners that are remembered.
const MAX_DELETED_OWNERS: usize = 64;

/// The writes for one owner.
struct Written {
    uid: Uid,
    /// In the order of `stores`.
    by_store: Box<[LastWrite]>,
}

#[derive(Clone, Copy, Default)]
struct LastWrite {
    /// Version 0: none.
    version: HistoryVersion,
    /// Whether the answer to a write was lost: it may have been carried out.
    is_unknown: bool,
}

/// A cache that has not seen a write yet. Upstream: `ConsistencyError`.
#[derive(Debug, PartialEq, Eq)]
pub struct Lag {
    pub resource: ResourceType,
    pub written: u64,
    pub seen: u64,
}

impl fmt::Display for Lag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Lag { resource, written, seen } = self;
        write!(
            f,
            "read version: {seen} is not as new as written version: {written} for group resource {resource}"
        )
    }
}

impl From<Lag> for Error {
    fn from(lag: Lag) -> Error {
        Error::Stale(lag.to_string())
    }
}

impl Consistency {
    /// Tracks the writes to the objects of `lister` as well.
    pub fn tracking<T: Object + Resource>(self, lister: &Lister<T>) -> Consistency {
        let lister = lister.clone();
        self.track(T::RESOURCE, Box::new(move || lister.seen()))
    }

    /// Tracks the writes to `resource` as well. `seen` returns the newest version in its cache.
    fn track(mut self, resource: ResourceType, seen: SeenVersion) -> Consistency {
        self.stores.push((resource, seen));
        self
    }

    fn writes(&self) -> MutexGuard<'_, HashMap<ObjectKey, Written>> {
        self.writes.lock()
    }

    /// Edits the record of the last write of `resource` for `owner`, which is made if it is
    /// missing. `edit` also gets the history of the server's storage: see [`HistoryVersion`].
    fn edit_record(
        &self,
        owner: &ObjectKey,
        uid: &Uid,
        resource: &ResourceType,
        edit: impl FnOnce(&mut LastWrite, u64),
    ) {
        let Some(store) = self.stores.iter().position(|(known, _)| known == resource) else {
            return;
        };
        let (_, seen_version) = &self.stores[store];
        let history = seen_version().history;
        let mut writes = self.writes();
        let fresh = || Written {
            uid: uid.clone(),
            by_store: vec![LastWrite::default(); self.stores.len()].into(),
        };
        let written = writes.entry(owner.clone()).or_insert_with(fresh);
        if written.uid != *uid {
            *written = fresh();
        }
        edit(&mut written.by_store[store], history);
    }

    /// Records a write of `resource` at `version` for the owner with this name and uid. The record
    /// of an owner with another uid is replaced; a version older than a known one changes nothing.
    pub fn record_write(
        &self,
        owner: &ObjectKey,
        uid: &Uid,
        resource: &ResourceType,
        version: u64,
    ) {
        self.edit_record(owner, uid, resource, |last, history| {
            last.version = last.version.max(HistoryVersion { history, version });
        });
    }

    /// Records that a write of `resource` for the owner may have been carried out: its answer was
    /// lost. The next sync has to [`settle`](Consistency::settle) it, or it may be written twice.
    pub fn record_unknown_outcome(&self, owner: &ObjectKey, uid: &Uid, resource: &ResourceType) {
        self.edit_record(owner, uid, resource, |last, _| last.is_unknown = true);
    }

    /// Records a write of `resource` with unknown outcome if an owner of this name was deleted
    /// lately. The new owner may adopt the orphans of the deleted one, which a cache older than the
    /// deletion still shows under the old owner; the next sync has to
    /// [`settle`](Consistency::settle) them. Upstream does not, and creates others beside them.
    pub fn note_successor(&self, owner: &ObjectKey, uid: &Uid, resource: &ResourceType) {
        let mut deleted_owners = self.deleted_owners.lock();
        if let Some(at) = deleted_owners.iter().position(|name| name == owner) {
            deleted_owners.remove(at);
            self.record_unknown_outcome(owner, uid, resource);
        }
    }

    /// Reads the objects of writes whose answer was lost from the API server, so that
    /// [`lagging`](Consistency::lagging) waits for them too. Returns whether there were any such
    /// writes. `selector`: selects the owner's objects.
    pub async fn settle(
        &self,
        owner: &ObjectKey,
        selector: &Selector,
        client: &Client,
    ) -> Result<bool, Error> {
        let (uid, unknown) = match self.writes().get(owner) {
            Some(written) => {
                let mut unknown = Vec::new();
                for ((resource, _), last) in self.stores.iter().zip(&written.by_store) {
                    if last.is_unknown {
                        unknown.push(resource.clone());
                    }
                }
                (written.uid.clone(), unknown)
            }
            None => return Ok(false),
        };
        let options =
            ListOptions { label_selector: Some(selector.to_string()), ..ListOptions::default() };
        for resource in &unknown {
            let dynamic = client.resource(resource).metadata_only();
            let live = dynamic
                .list::<PartialObjectMetadata>(Some(&owner.namespace), &options)
                .await?
                .items;
            let may_own = |object: &&PartialObjectMetadata| {
                object.meta.controller().is_none_or(|owner| owner.uid == uid)
            };
            let owned = live.iter().filter(may_own);
            let version = owned.map(|object| object.meta.resource_version).max().unwrap_or(0);
            self.edit_record(owner, &uid, resource, |last, history| {
                let live = HistoryVersion { history, version };
                *last = LastWrite { version: last.version.max(live), is_unknown: false };
            });
        }
        Ok(!unknown.is_empty())
    }

    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.writes().is_empty()
    }

    /// Returns the cache that lags behind the writes for `owner`, if there is one; if not, the
    /// record is dropped once all writes are settled. Must not be called while a sync of `owner`
    /// writes.
    pub fn lagging(&self, owner: &ObjectKey) -> Option<Lag> {
        let mut writes = self.writes();
        let written = writes.get(owner)?;
        for ((resource, seen), &LastWrite { version: written, .. }) in
            self.stores.iter().zip(&written.by_store)
        {
            if written.version == 0 {
                continue;
            }
            let seen = seen();
            // 0: the store does not know its version, so there is nothing to wait for. Nor is there
            // for a write of a history that the server has lost.
            if seen.version != 0 && written > seen {
                let (written, seen) = (written.version, seen.version);
                return Some(Lag { resource: resource.clone(), written, seen });
            }
        }
        // A write that is not settled yet keeps the record.
        if written.by_store.iter().all(|last| !last.is_unknown) {
            writes.remove(owner);
        }
        None
    }

    /// Returns `Error::Stale` at the start of a sync while a cache lags behind the writes for
    /// `owner`, and counts this in `skips`, by group and resource. Upstream:
    /// `stale_sync_skips_total`.
    pub fn start_sync(&self, owner: &ObjectKey, skips: &IntCounterVec) -> Result<(), Error> {
        let Some(lag) = self.lagging(owner) else { return Ok(()) };
        skips.with_label_values(&[&*lag.resource.group, &*lag.resource.plural]).inc();
        Err(lag.into())
    }

    /// Returns `Error::Stale` while a cache lags behind the writes for `owner`.
    pub fn ensure_ready(&self, owner: &ObjectKey) -> Result<(), Error> {
        match self.lagging(owner) {
            Some(lag) => Err(lag.into()),
            None => Ok(()),
        }
    }
}

impl OwnerRecord for Consistency {
    /// Drops the writes for an owner, unless they are for another one with its name. With a `uid`
    /// also keeps the name for [`note_successor`](Consistency::note_successor): a new owner may get
    /// it.
    fn forget(&self, owner: &ObjectKey, uid: Option<&Uid>) {
        if uid.is_some() && !self.stores.is_empty() {
            let mut deleted_owners = self.deleted_owners.lock();
            deleted_owners.retain(|name| name != owner);
            if deleted_owners.len() == MAX_DELETED_OWNERS {
                deleted_owners.pop_front();
            }
            deleted_owners.push_back(owner.clone());
        }
        let mut writes = self.writes();
        // The writes may be for another owner, which has this one's name.
        if let (Some(written), Some(uid)) = (writes.get(owner), uid)
            && written.uid != *uid
        {
            return;
        }
        writes.remove(owner);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use futures_lite::future::block_on;
    use serde_json::{Value, json};

    use super::*;
    use crate::cache::Indexer;
    use crate::client::testing::answering;
    use crate::objects::{Pod, ReplicaSet};

    #[test]
    fn an_owner_is_ready_when_the_caches_have_seen_its_writes() {
        let (pods, sets) = (Arc::new(AtomicU64::new(5)), Arc::new(AtomicU64::new(5)));
        let seen = |of: &Arc<AtomicU64>| -> SeenVersion {
            let of = of.clone();
            Box::new(move || HistoryVersion { history: 0, version: of.load(Ordering::SeqCst) })
        };
        let store = Consistency::default()
            .track(Pod::RESOURCE, seen(&pods))
            .track(ReplicaSet::RESOURCE, seen(&sets));
        let (owner, uid) = (ObjectKey::new("ns", "a"), Uid::new("1"));
        assert!(store.ensure_ready(&owner).is_ok(), "nothing written");

        store.record_write(&owner, &uid, &Pod::RESOURCE, 9);
        store.record_write(&owner, &uid, &Pod::RESOURCE, 7);
        let lag = store.lagging(&owner).unwrap();
        assert_eq!((lag.written, lag.seen), (9, 5));
        assert_eq!(
            lag.to_string(),
            "read version: 5 is not as new as written version: 9 for group resource pods"
        );
        pods.store(9, Ordering::SeqCst);
        assert!(store.ensure_ready(&owner).is_ok());

        store.record_write(&owner, &uid, &ReplicaSet::RESOURCE, 6);
        assert!(matches!(store.ensure_ready(&owner), Err(Error::Stale(_))));
        store.forget(&owner, Some(&Uid::new("2")));
        assert!(store.ensure_ready(&owner).is_err(), "another uid forgets nothing");
        // A recreated owner does not wait for the writes of the one before.
        store.record_write(&owner, &Uid::new("2"), &Pod::RESOURCE, 9);
        assert!(store.ensure_ready(&owner).is_ok());

        store.record_write(&owner, &uid, &Pod::RESOURCE, 100);
        store.forget(&owner, None);
        assert!(store.ensure_ready(&owner).is_ok());
    }

    #[test]
    fn an_owner_waits_for_the_orphans_of_the_one_before_it() {
        let pod = |name: &str, version: u64, owner: Option<&str>| {
            let owner = owner.map(|uid| {
                json!({ "apiVersion": "v1", "kind": "X", "name": "a", "uid": uid, "controller": true })
            });
            let owners: Vec<Value> = owner.into_iter().collect();
            json!({ "metadata": {
                "namespace": "ns", "name": name, "resourceVersion": version.to_string(),
                "ownerReferences": owners,
            } })
        };
        let items = [pod("orphan", 9, None), pod("own", 7, Some("2")), pod("other", 20, Some("3"))];
        let list = json!({ "kind": "List", "apiVersion": "v1", "items": items });
        let client = block_on(answering(move |_| (200, list.clone())));
        let indexer = Arc::new(Indexer::<Pod>::new());
        indexer.set_seen_version(8);
        let store = Consistency::default().tracking(&Lister::new(indexer.clone()));
        let (owner, old, new) = (ObjectKey::new("ns", "a"), Uid::new("1"), Uid::new("2"));
        let settle = || block_on(store.settle(&owner, &Selector::everything(), &client)).unwrap();
        store.note_successor(&owner, &old, &Pod::RESOURCE);
        assert!(!settle(), "it is the first of its name");
        store.forget(&owner, Some(&old));
        store.note_successor(&owner, &new, &Pod::RESOURCE);
        assert!(settle());
        assert_eq!(store.lagging(&owner).map(|lag| lag.written), Some(9));
        indexer.set_seen_version(9);
        assert!(store.ensure_ready(&owner).is_ok());
        store.note_successor(&owner, &new, &Pod::RESOURCE);
        assert!(!settle(), "once is enough");
        // Not all names are kept.
        for n in 0..2 * MAX_DELETED_OWNERS {
            store.forget(&ObjectKey::new("ns", &n.to_string()), Some(&old));
        }
        assert_eq!(store.deleted_owners.lock().len(), MAX_DELETED_OWNERS);
    }

    #[test]
    fn a_write_that_the_server_has_lost_is_not_waited_for() {
        let indexer = Arc::new(Indexer::<Pod>::new());
        let store = Consistency::default().tracking(&Lister::new(indexer.clone()));
        let (owner, uid) = (ObjectKey::new("ns", "a"), Uid::new("1"));
        indexer.set_seen_version(1200);
        store.record_write(&owner, &uid, &Pod::RESOURCE, 1250);
        assert!(store.ensure_ready(&owner).is_err());
        indexer.go_back(1000);
        assert!(store.ensure_ready(&owner).is_ok());
        // A later write counts, although its version is lower than those of the lost history.
        store.record_write(&owner, &uid, &Pod::RESOURCE, 1001);
        assert!(store.ensure_ready(&owner).is_err());
        indexer.set_seen_version(1001);
        assert!(store.ensure_ready(&owner).is_ok());
    }
}
