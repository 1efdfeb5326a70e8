//! The newest known state of objects: the cache's, or that of our own last write, which the cache
//! may not have yet. Upstream: the `volumes` and `claims` stores of the controller.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::cache::{HistoryVersion, Index, IndexValue, Lister};
use crate::objects::{Object, ObjectKey, Uid};

/// The cache together with our own last writes. A binding is several writes to two objects: with
/// this a sync sees those that were made, and does not take a volume that has just been bound to
/// another claim.
pub struct AssumeCache<T> {
    lister: Lister<T>,
    /// The answers to our writes that the cache does not have yet.
    own_writes: Mutex<HashMap<ObjectKey, OwnWrite<T>>>,
}

/// The answer to one of our writes, and its version.
struct OwnWrite<T> {
    object: Arc<T>,
    at: HistoryVersion,
}

impl<T: Object> AssumeCache<T> {
    pub fn new(lister: Lister<T>) -> AssumeCache<T> {
        AssumeCache { lister, own_writes: Mutex::default() }
    }

    /// Keeps the answer to a write until the cache has it, and returns it.
    pub fn assume(&self, written: T) -> Arc<T> {
        let written = Arc::new(written);
        let at = self.lister.written_at(written.meta().resource_version);
        if self.lister.seen() < at {
            let write = OwnWrite { object: written.clone(), at };
            self.own_writes.lock().insert(written.meta().key(), write);
        }
        written
    }

    /// Forgets the object with this uid, which is gone. The cache may see its version later.
    pub fn forget(&self, key: &ObjectKey, uid: &Uid) {
        let mut own_writes = self.own_writes.lock();
        if own_writes.get(key).is_some_and(|write| write.object.meta().uid == *uid) {
            own_writes.remove(key);
        }
    }

    /// Returns the newest known state of an object.
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<T>> {
        // Read before the cache, which then holds at least this version.
        let seen = self.lister.seen();
        self.newest(key, self.lister.get(key), seen)
    }

    /// Returns the objects that `index` has under `value`, in their newest state, and all of our
    /// own writes, which may belong there by now. In no order; callers check that an object still
    /// has `value`.
    pub fn candidates(&self, index: &Index<T>, value: &IndexValue) -> Vec<Arc<T>> {
        let seen = self.lister.seen();
        let mut found = self.lister.by_index(index, value);
        let mut own_writes = self.own_writes.lock();
        own_writes.retain(|_, write| write.at > seen);
        if own_writes.is_empty() {
            return found;
        }
        found.retain(|object| !own_writes.contains_key(&object.meta().key()));
        found.extend(own_writes.values().map(|write| write.object.clone()));
        found
    }

    /// Returns our own write of the object, or the cached one if that is as new.
    fn newest(
        &self,
        key: &ObjectKey,
        cached: Option<Arc<T>>,
        seen: HistoryVersion,
    ) -> Option<Arc<T>> {
        let mut own_writes = self.own_writes.lock();
        let Some(OwnWrite { object, at }) = own_writes.get(key) else { return cached };
        let is_past = seen >= *at
            || cached.as_ref().is_some_and(|cached| cached.meta().resource_version >= at.version);
        if is_past {
            own_writes.remove(key);
            return cached;
        }
        Some(object.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Indexer;
    use crate::objects::PersistentVolume;

    fn volume(version: u64, phase: &str) -> PersistentVolume {
        let mut volume = PersistentVolume::default();
        volume.meta.name = "v".into();
        volume.meta.resource_version = version;
        volume.status.phase = phase.into();
        volume
    }

    #[test]
    fn own_writes_are_returned_until_the_cache_has_them() {
        const ALL: Index<PersistentVolume> =
            Index::new("all", |_, emit| emit(IndexValue::Text("x".into())));
        let indexer = Arc::new(Indexer::new());
        indexer.add_index(&ALL);
        let latest = AssumeCache::new(Lister::new(indexer.clone()));
        let key = ObjectKey::cluster("v");
        let phase = || latest.get(&key).map(|volume| volume.status.phase.to_string());
        let all = || latest.candidates(&ALL, &IndexValue::Text("x".into())).len();
        indexer.insert(Arc::new(volume(1, "Available")));
        indexer.set_seen_version(1);
        latest.assume(volume(3, "Bound"));
        assert_eq!((phase().as_deref(), all()), (Some("Bound"), 1));
        // An older event comes.
        indexer.insert(Arc::new(volume(2, "Available")));
        indexer.set_seen_version(2);
        assert_eq!((phase().as_deref(), all()), (Some("Bound"), 1));
        indexer.insert(Arc::new(volume(4, "Released")));
        indexer.set_seen_version(4);
        assert_eq!((phase().as_deref(), all()), (Some("Released"), 1));
        // A deletion is seen before its version counts.
        latest.assume(volume(5, "Failed"));
        indexer.remove(&key);
        latest.forget(&key, &"another".into());
        assert_eq!((phase().as_deref(), all()), (Some("Failed"), 1));
        latest.forget(&key, &Uid::default());
        assert_eq!((phase(), all()), (None, 0));
        // The answer to a write comes after the deletion.
        latest.assume(volume(5, "Failed"));
        indexer.remove(&key);
        assert_eq!((phase().as_deref(), all()), (Some("Failed"), 1));
        indexer.set_seen_version(6);
        assert_eq!((phase(), all()), (None, 0));
    }
}
