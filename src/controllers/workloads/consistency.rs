//! No sync acts on a cache older than the last write it made. Upstream: `consistency.ConsistencyStore`
//! (feature gates `StaleControllerConsistency...`).

use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use crate::client::{Client, ListOptions};
use crate::controllers::Error;
use crate::objects::{ObjectKey, PartialObjectMetadata, ResourceType, Selector, Uid};

/// The newest version that the cache of a resource has seen: `Lister::last_seen_version`.
pub type SeenVersion = Arc<dyn Fn() -> u64 + Send + Sync>;

/// The newest versions written on behalf of each owner, held against what the caches have seen.
pub struct Consistency {
    stores: Vec<(ResourceType, SeenVersion)>,
    writes: Mutex<HashMap<ObjectKey, Written>>,
}

/// What was written for one owner.
struct Written {
    uid: Uid,
    /// By position in `stores`.
    at: Box<[At]>,
}

#[derive(Clone, Copy, Default)]
struct At {
    /// 0: none.
    version: u64,
    /// There was a write of which nobody can say whether it was done.
    unsure: bool,
}

/// A cache that has not seen yet what was written. Upstream: `ConsistencyError`.
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
    /// Writes to resources that are not in `stores` are not tracked.
    pub fn new(stores: Vec<(ResourceType, SeenVersion)>) -> Consistency {
        Consistency { stores, writes: Mutex::default() }
    }

    fn writes(&self) -> MutexGuard<'_, HashMap<ObjectKey, Written>> {
        self.writes.lock()
    }

    fn note(
        &self,
        owner: &ObjectKey,
        uid: &Uid,
        resource: &ResourceType,
        note: impl FnOnce(&mut At),
    ) {
        let Some(at) = self.stores.iter().position(|(known, _)| known == resource) else { return };
        let mut writes = self.writes();
        let fresh =
            || Written { uid: uid.clone(), at: vec![At::default(); self.stores.len()].into() };
        let written = writes.entry(owner.clone()).or_insert_with(fresh);
        if written.uid != *uid {
            *written = fresh();
        }
        note(&mut written.at[at]);
    }

    /// `resource` was written at `version` for the owner of this name and uid. An owner of another uid
    /// starts anew; an older version than known is nothing new.
    pub fn wrote_at(&self, owner: &ObjectKey, uid: &Uid, resource: &ResourceType, version: u64) {
        self.note(owner, uid, resource, |at| at.version = at.version.max(version));
    }

    /// A write of `resource` for the owner may have been done: its answer was lost. The next sync is
    /// to [`settle`](Consistency::settle) it, lest the same is written twice.
    pub fn unsure(&self, owner: &ObjectKey, uid: &Uid, resource: &ResourceType) {
        self.note(owner, uid, resource, |at| at.unsure = true);
    }

    /// Asks the API server for the objects that may have been written though the answer was lost, so
    /// that [`lagging`](Consistency::lagging) waits for them too. Gives whether there were any such
    /// writes. `selector`: of what the owner owns.
    pub async fn settle(
        &self,
        owner: &ObjectKey,
        selector: &Selector,
        client: &Client,
    ) -> Result<bool, Error> {
        let (uid, unsure) = match self.writes().get(owner) {
            Some(written) => {
                let stores = self.stores.iter().zip(&written.at);
                let unsure = stores.filter(|(_, at)| at.unsure).map(|((of, _), _)| of.clone());
                (written.uid.clone(), unsure.collect::<Vec<_>>())
            }
            None => return Ok(false),
        };
        let options =
            ListOptions { label_selector: Some(selector.to_string()), ..ListOptions::default() };
        for resource in &unsure {
            let dynamic = client.resource(resource).metadata_only();
            let live = dynamic
                .list::<PartialObjectMetadata>(Some(&owner.namespace), &options)
                .await?
                .items;
            let owned = live.iter().filter(|object| object.meta.is_controlled_by(&uid));
            let version = owned.map(|object| object.meta.resource_version).max().unwrap_or(0);
            self.note(owner, &uid, resource, |at| {
                *at = At { version: at.version.max(version), unsure: false };
            });
        }
        Ok(!unsure.is_empty())
    }

    /// Forgets the owner if it has this uid; whatever its uid with `None`.
    pub fn clear(&self, owner: &ObjectKey, uid: Option<&Uid>) {
        let mut writes = self.writes();
        if writes.get(owner).is_some_and(|written| uid.is_none_or(|uid| *uid == written.uid)) {
            writes.remove(owner);
        }
    }

    /// The cache that lags behind what was written for `owner`, if one does. When none does, the record
    /// has served and is dropped. Not to be called while a sync of `owner` writes.
    pub fn lagging(&self, owner: &ObjectKey) -> Option<Lag> {
        let mut writes = self.writes();
        let written = writes.get(owner)?;
        for ((resource, seen), &At { version: written, .. }) in self.stores.iter().zip(&written.at)
        {
            if written == 0 {
                continue;
            }
            let seen = seen();
            // 0: the store does not know; nobody is to wait for that.
            if seen != 0 && written > seen {
                return Some(Lag { resource: resource.clone(), written, seen });
            }
        }
        // What is not settled yet is still to be asked for.
        if written.at.iter().all(|at| !at.unsure) {
            writes.remove(owner);
        }
        None
    }

    /// `Error::Stale` while a cache lags behind what was written for `owner`.
    pub fn ensure_ready(&self, owner: &ObjectKey) -> Result<(), Error> {
        self.lagging(owner).map_or(Ok(()), |lag| Err(lag.into()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::objects::{Pod, ReplicaSet, Resource};

    #[test]
    fn an_owner_is_ready_when_the_caches_have_seen_its_writes() {
        let (pods, sets) = (Arc::new(AtomicU64::new(5)), Arc::new(AtomicU64::new(5)));
        let seen = |of: &Arc<AtomicU64>| -> SeenVersion {
            let of = of.clone();
            Arc::new(move || of.load(Ordering::SeqCst))
        };
        let store = Consistency::new(vec![
            (Pod::RESOURCE, seen(&pods)),
            (ReplicaSet::RESOURCE, seen(&sets)),
        ]);
        let (owner, uid) = (ObjectKey::new("ns", "a"), Uid::new("1"));
        assert!(store.ensure_ready(&owner).is_ok(), "nothing written");

        store.wrote_at(&owner, &uid, &Pod::RESOURCE, 9);
        store.wrote_at(&owner, &uid, &Pod::RESOURCE, 7);
        let lag = store.lagging(&owner).unwrap();
        assert_eq!((lag.written, lag.seen), (9, 5));
        assert_eq!(
            lag.to_string(),
            "read version: 5 is not as new as written version: 9 for group resource pods"
        );
        pods.store(9, Ordering::SeqCst);
        assert!(store.ensure_ready(&owner).is_ok());

        store.wrote_at(&owner, &uid, &ReplicaSet::RESOURCE, 6);
        assert!(matches!(store.ensure_ready(&owner), Err(Error::Stale(_))));
        store.clear(&owner, Some(&Uid::new("2")));
        assert!(store.ensure_ready(&owner).is_err(), "another uid clears nothing");
        // A recreated owner does not wait for the writes of the one before.
        store.wrote_at(&owner, &Uid::new("2"), &Pod::RESOURCE, 9);
        assert!(store.ensure_ready(&owner).is_ok());

        store.wrote_at(&owner, &uid, &Pod::RESOURCE, 100);
        store.clear(&owner, None);
        assert!(store.ensure_ready(&owner).is_ok());
    }
}
