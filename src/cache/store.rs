//! Objects by namespace and name, and what a reflector needs of the place it writes to.

use std::borrow::Borrow;
use std::collections::{HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::objects::{Istr, Object, ObjectKey};

/// What a [`super::Reflector`] writes to. A replacement is streamed, so that a list never stands in
/// memory as a whole: `begin_replace`, `replace_item` for each, `finish_replace`. A `delete`
/// meanwhile takes an item back. A `begin_replace` before the `finish_replace` abandons the list
/// that was under way.
/// Upstream: `cache.ReflectorStore`, `cache.ReflectorBookmarkStore`.
pub trait ReflectorStore<T>: Send + Sync + 'static {
    fn add(&self, object: Arc<T>);
    fn update(&self, object: Arc<T>);
    fn delete(&self, object: Arc<T>);
    fn begin_replace(&self);
    fn replace_item(&self, object: Arc<T>);
    /// What the list did not name is gone. `version`: the list's.
    fn finish_replace(&self, version: u64);
    /// Everything up to `version` has been written here.
    fn bookmark(&self, version: u64);
}

/// What a [`super::DeltaFifo`] asks of the cache behind it.
/// Upstream: `cache.KeyListerGetter`.
pub trait KnownObjects<T>: Send + Sync + 'static {
    fn get(&self, key: &ObjectKey) -> Option<Arc<T>>;
    fn is_empty(&self) -> bool;
    fn for_each(&self, visit: &mut dyn FnMut(&Arc<T>));
    /// Everything up to `version` has been processed.
    fn saw(&self, version: u64);
}

/// Objects by namespace and name. No lock, no index: see [`super::Indexer`] for both.
///
/// An object costs one pointer (and the table's slack): its name and namespace are read from its
/// own metadata, and the map by namespace is the index by namespace. Upstream: `cache.Store`.
pub struct Store<T> {
    namespaces: HashMap<Istr, HashSet<ByName<T>>>,
    len: usize,
}

/// Equal and hashed by the object's name.
struct ByName<T>(Arc<T>);

impl<T: Object> Borrow<str> for ByName<T> {
    fn borrow(&self) -> &str {
        &self.0.meta().name
    }
}

impl<T: Object> PartialEq for ByName<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0.meta().name == other.0.meta().name
    }
}

impl<T: Object> Eq for ByName<T> {}

impl<T: Object> Hash for ByName<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // As `str` hashes, or it would not be found by its name.
        <str as Hash>::hash(&self.0.meta().name, state);
    }
}

impl<T> Default for Store<T> {
    fn default() -> Self {
        Store { namespaces: HashMap::new(), len: 0 }
    }
}

impl<T: Object> Store<T> {
    pub fn new() -> Store<T> {
        Store::default()
    }

    pub fn get(&self, key: &ObjectKey) -> Option<&Arc<T>> {
        Some(&self.namespaces.get(&key.namespace)?.get(&*key.name)?.0)
    }

    /// Returns what was there under the same name.
    pub fn insert(&mut self, object: Arc<T>) -> Option<Arc<T>> {
        let namespace = &object.meta().namespace;
        if !self.namespaces.contains_key(namespace) {
            self.namespaces.insert(namespace.clone(), HashSet::new());
        }
        let objects = self.namespaces.get_mut(namespace)?;
        let old = objects.replace(ByName(object));
        self.len += usize::from(old.is_none());
        old.map(|old| old.0)
    }

    pub fn remove(&mut self, key: &ObjectKey) -> Option<Arc<T>> {
        let objects = self.namespaces.get_mut(&key.namespace)?;
        let old = objects.take(&*key.name)?;
        self.len -= 1;
        if objects.is_empty() {
            self.namespaces.remove(&key.namespace);
        } else if objects.capacity() > 64 && objects.len() < objects.capacity() / 4 {
            // Memory goes back after a storm.
            objects.shrink_to(objects.len() * 2);
        }
        Some(old.0)
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<T>> {
        self.namespaces.values().flatten().map(|object| &object.0)
    }

    pub fn count_in(&self, namespace: &str) -> usize {
        self.namespaces.get(namespace).map_or(0, HashSet::len)
    }

    /// Those of one namespace, in no order.
    pub fn in_namespace(&self, namespace: &str) -> impl Iterator<Item = &Arc<T>> {
        self.namespaces.get(namespace).into_iter().flatten().map(|object| &object.0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::object;
    use super::*;

    #[test]
    fn objects_are_found_by_key_and_by_namespace() {
        let mut store = Store::new();
        assert!(store.insert(object("a", "x", 1)).is_none());
        assert!(store.insert(object("a", "y", 1)).is_none());
        assert!(store.insert(object("", "x", 1)).is_none());
        let old = store.insert(object("a", "x", 2)).map(|old| old.meta.resource_version);
        assert_eq!(old, Some(1), "the new object took the old one's place");
        assert_eq!(store.len(), 3);
        let found = store.get(&ObjectKey::new("a", "x")).map(|found| found.meta.resource_version);
        assert_eq!(found, Some(2));
        assert_eq!(store.in_namespace("a").count(), 2);
        assert_eq!(store.in_namespace("b").count(), 0);
        assert!(store.remove(&ObjectKey::new("b", "x")).is_none());
        assert!(store.remove(&ObjectKey::cluster("x")).is_some());
        assert!(store.remove(&ObjectKey::cluster("x")).is_none());
        assert_eq!((store.len(), store.iter().count()), (2, 2));
    }

    #[test]
    fn memory_goes_back_after_a_storm() {
        let mut store = Store::new();
        for n in 0..1000 {
            store.insert(object("a", &format!("pod-{n}"), 1));
        }
        for n in 0..990 {
            store.remove(&ObjectKey::new("a", &format!("pod-{n}")));
        }
        let capacity: usize = store.namespaces.values().map(HashSet::capacity).sum();
        assert!(capacity < 100, "{capacity} slots for {} objects", store.len());
        assert_eq!(size_of::<ByName<crate::objects::Pod>>(), size_of::<usize>());
    }
}
