//! The cache itself: a [`Store`] behind a lock, with named indices.

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::collections::{HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::store::{KnownObjects, Store};
use crate::objects::{Istr, Object, ObjectKey, Uid};

/// From an object to the values under which an index finds it.
pub type IndexFn<T> = fn(&T, &mut dyn FnMut(IndexValue));

/// What an index is keyed by: an interned string, a uid ...
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum IndexValue {
    Text(Istr),
    Uid(Uid),
    Key(ObjectKey),
}

/// A [`Store`] with named indices, and the newest version it has seen. Each call is atomic; two
/// calls may see two states. What is read is shared: it must not be changed, and cannot be.
/// Upstream: `cache.Indexer`, `cache.ThreadSafeStore`.
pub struct Indexer<T> {
    state: RwLock<State<T>>,
    /// The newest version of which all changes are in `state`.
    version: AtomicU64,
}

struct State<T> {
    store: Store<T>,
    indices: Vec<Index<T>>,
}

struct Index<T> {
    name: &'static str,
    values_of: IndexFn<T>,
    buckets: HashMap<IndexValue, Bucket<T>>,
}

/// The objects under one value; most values of most indices have one or a few.
enum Bucket<T> {
    One(Arc<T>),
    Few(Vec<Arc<T>>),
    Many(HashSet<ByAddress<T>>),
}

/// A bucket of more is a set, so that removing stays cheap.
const FEW: usize = 64;

struct ByAddress<T>(Arc<T>);

impl<T> PartialEq for ByAddress<T> {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl<T> Eq for ByAddress<T> {}

impl<T> Hash for ByAddress<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.0).hash(state);
    }
}

impl<T> Bucket<T> {
    fn insert(&mut self, object: Arc<T>) {
        match self {
            Bucket::One(first) => *self = Bucket::Few(vec![first.clone(), object]),
            Bucket::Few(objects) if objects.len() < FEW => objects.push(object),
            Bucket::Few(objects) => {
                let mut set: HashSet<_> = objects.drain(..).map(ByAddress).collect();
                set.insert(ByAddress(object));
                *self = Bucket::Many(set);
            }
            Bucket::Many(objects) => {
                objects.insert(ByAddress(object));
            }
        }
    }

    /// Whether the bucket is empty after it: drop it then.
    fn remove(&mut self, object: &Arc<T>) -> bool {
        match self {
            Bucket::One(only) => Arc::ptr_eq(only, object),
            Bucket::Few(objects) => {
                if let Some(at) = objects.iter().position(|other| Arc::ptr_eq(other, object)) {
                    objects.swap_remove(at);
                }
                objects.is_empty()
            }
            Bucket::Many(objects) => {
                objects.remove(&ByAddress(object.clone()));
                if objects.len() <= FEW / 2 {
                    *self = Bucket::Few(objects.drain().map(|object| object.0).collect());
                }
                false
            }
        }
    }

    fn replace(&mut self, old: &Arc<T>, new: Arc<T>) {
        match self {
            Bucket::One(only) => *only = new,
            Bucket::Few(objects) => match objects.iter_mut().find(|at| Arc::ptr_eq(at, old)) {
                Some(at) => *at = new,
                None => objects.push(new),
            },
            Bucket::Many(objects) => {
                objects.remove(&ByAddress(old.clone()));
                objects.insert(ByAddress(new));
            }
        }
    }

    fn to_vec(&self) -> Vec<Arc<T>> {
        match self {
            Bucket::One(only) => vec![only.clone()],
            Bucket::Few(objects) => objects.clone(),
            Bucket::Many(objects) => objects.iter().map(|object| object.0.clone()).collect(),
        }
    }
}

impl<T> Index<T> {
    /// Each value once, however often the function names it.
    fn values(&self, object: &T) -> Vec<IndexValue> {
        let mut values = Vec::new();
        (self.values_of)(object, &mut |value| {
            if !values.contains(&value) {
                values.push(value);
            }
        });
        values
    }

    fn insert(&mut self, value: IndexValue, object: &Arc<T>) {
        match self.buckets.get_mut(&value) {
            Some(bucket) => bucket.insert(object.clone()),
            None => {
                self.buckets.insert(value, Bucket::One(object.clone()));
            }
        }
    }

    fn remove(&mut self, value: &IndexValue, object: &Arc<T>) {
        if self.buckets.get_mut(value).is_some_and(|bucket| bucket.remove(object)) {
            self.buckets.remove(value);
            if self.buckets.capacity() > 64 && self.buckets.len() < self.buckets.capacity() / 4 {
                self.buckets.shrink_to(self.buckets.len() * 2);
            }
        }
    }

    fn change(&mut self, old: Option<&Arc<T>>, new: Option<&Arc<T>>) {
        let mut gone = old.map(|old| self.values(old)).unwrap_or_default();
        if let Some(new) = new {
            for value in self.values(new) {
                let kept = gone.iter().position(|other| *other == value);
                match (kept, old) {
                    (Some(at), Some(old)) => {
                        gone.swap_remove(at);
                        if let Some(bucket) = self.buckets.get_mut(&value) {
                            bucket.replace(old, new.clone());
                        }
                    }
                    _ => self.insert(value, new),
                }
            }
        }
        if let Some(old) = old {
            for value in &gone {
                self.remove(value, old);
            }
        }
    }
}

impl<T: Object> Default for Indexer<T> {
    fn default() -> Self {
        Indexer::new()
    }
}

impl<T: Object> Indexer<T> {
    pub fn new() -> Indexer<T> {
        let state = State { store: Store::new(), indices: Vec::new() };
        Indexer { state: RwLock::new(state), version: AtomicU64::new(0) }
    }

    fn read(&self) -> RwLockReadGuard<'_, State<T>> {
        self.state.read()
    }

    fn write(&self) -> RwLockWriteGuard<'_, State<T>> {
        self.state.write()
    }

    /// A second index of the same name is the first: it must be of the same function. What is
    /// stored already is indexed at once. Upstream: `AddIndexers`.
    pub fn add_index(&self, name: &'static str, values_of: IndexFn<T>) {
        let mut state = self.write();
        if state.indices.iter().any(|index| index.name == name) {
            return;
        }
        let mut index = Index { name, values_of, buckets: HashMap::new() };
        for object in state.store.iter() {
            index.change(None, Some(object));
        }
        state.indices.push(index);
    }

    /// Adds or updates. Returns what was there under the same name.
    pub fn insert(&self, object: Arc<T>) -> Option<Arc<T>> {
        let mut state = self.write();
        let old = state.store.insert(object.clone());
        for index in &mut state.indices {
            index.change(old.as_ref(), Some(&object));
        }
        old
    }

    pub fn remove(&self, key: &ObjectKey) -> Option<Arc<T>> {
        let mut state = self.write();
        let old = state.store.remove(key)?;
        for index in &mut state.indices {
            index.change(Some(&old), None);
        }
        Some(old)
    }

    pub fn get(&self, key: &ObjectKey) -> Option<Arc<T>> {
        self.read().store.get(key).cloned()
    }

    /// All, in no order.
    pub fn list(&self) -> Vec<Arc<T>> {
        let state = self.read();
        let mut all = Vec::with_capacity(state.store.len());
        all.extend(state.store.iter().cloned());
        all
    }

    /// Those of one namespace, in no order. Upstream: the index `cache.NamespaceIndex`.
    pub fn in_namespace(&self, namespace: &str) -> Vec<Arc<T>> {
        self.read().store.in_namespace(namespace).cloned().collect()
    }

    pub fn count_in(&self, namespace: &str) -> usize {
        self.read().store.count_in(namespace)
    }

    /// Panics on an index that was never added: a mistake in the program.
    pub fn by_index(&self, name: &'static str, value: &IndexValue) -> Vec<Arc<T>> {
        let state = self.read();
        let index = state.indices.iter().find(|index| index.name == name);
        let index = index.unwrap_or_else(|| panic!("there is no index {name:?}"));
        index.buckets.get(value).map(Bucket::to_vec).unwrap_or_default()
    }

    pub fn len(&self) -> usize {
        self.read().store.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The newest version of which all changes can be read here, bookmarks included; 0 before the
    /// first list is whole. Never goes back. Upstream: `LastStoreSyncResourceVersion`.
    pub fn last_seen_version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// All changes up to `version` are stored.
    pub fn set_seen_version(&self, version: u64) {
        self.version.fetch_max(version, Ordering::AcqRel);
    }
}

impl<T: Object> KnownObjects<T> for Indexer<T> {
    fn get(&self, key: &ObjectKey) -> Option<Arc<T>> {
        Indexer::get(self, key)
    }

    fn is_empty(&self) -> bool {
        Indexer::is_empty(self)
    }

    fn for_each(&self, visit: &mut dyn FnMut(&Arc<T>)) {
        self.read().store.iter().for_each(visit);
    }

    fn saw(&self, version: u64) {
        self.set_seen_version(version);
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{labelled, object};
    use super::*;
    use crate::objects::PartialObjectMetadata;

    fn by_app(object: &PartialObjectMetadata, put: &mut dyn FnMut(IndexValue)) {
        if let Some(app) = object.meta.labels.get("app") {
            put(IndexValue::Text(app.into()));
            put(IndexValue::Text(app.into()));
        }
    }

    fn under(indexer: &Indexer<PartialObjectMetadata>, app: &str) -> usize {
        indexer.by_index("app", &IndexValue::Text(app.into())).len()
    }

    #[test]
    fn an_index_follows_its_objects() {
        let indexer = Indexer::new();
        indexer.insert(labelled("a", "x", 1, &[("app", "web")]));
        indexer.add_index("app", by_app);
        indexer.insert(labelled("a", "y", 1, &[("app", "web")]));
        indexer.insert(object("a", "z", 1));
        assert_eq!(under(&indexer, "web"), 2, "what was there before the index, too");
        indexer.insert(labelled("a", "y", 2, &[("app", "db")]));
        assert_eq!((under(&indexer, "web"), under(&indexer, "db")), (1, 1));
        indexer.insert(labelled("a", "y", 3, &[("app", "db")]));
        let found = indexer.by_index("app", &IndexValue::Text("db".into()));
        assert_eq!(found[0].meta.resource_version, 3, "the index gives the new object");
        indexer.remove(&ObjectKey::new("a", "y"));
        indexer.insert(object("a", "x", 4));
        assert_eq!((under(&indexer, "web"), under(&indexer, "db")), (0, 0));
        assert!(indexer.read().indices[0].buckets.is_empty(), "no empty bucket stays");
    }

    /// Every size of bucket, grown, replaced and emptied.
    #[test]
    fn buckets_of_every_size_agree_with_a_count() {
        let indexer = Indexer::new();
        indexer.add_index("app", by_app);
        let name = |n: usize| format!("o{n}");
        for n in 0..200 {
            indexer.insert(labelled("a", &name(n), 1, &[("app", "web")]));
            assert_eq!(under(&indexer, "web"), n + 1);
            indexer.insert(labelled("a", &name(n / 2), 2, &[("app", "web")]));
            assert_eq!(under(&indexer, "web"), n + 1, "an update neither adds nor removes");
        }
        for n in 0..200 {
            indexer.remove(&ObjectKey::new("a", &name(n)));
            assert_eq!(under(&indexer, "web"), 199 - n);
        }
    }

    #[test]
    #[should_panic(expected = "there is no index \"node\"")]
    fn an_unknown_index_is_a_mistake() {
        Indexer::<PartialObjectMetadata>::new().by_index("node", &IndexValue::Text("n".into()));
    }
}
