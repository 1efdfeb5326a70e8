//! Reading from a cache. Upstream: `cache.GenericLister` and the generated listers.

use std::sync::Arc;

use super::indexer::{IndexValue, Indexer};
use crate::objects::{Object, ObjectKey};

/// Reads from a cache. Cheap to clone. The returned objects are shared with every other reader.
pub struct Lister<T> {
    indexer: Arc<Indexer<T>>,
}

impl<T> Clone for Lister<T> {
    fn clone(&self) -> Self {
        Lister { indexer: self.indexer.clone() }
    }
}

impl<T: Object> Lister<T> {
    pub fn new(indexer: Arc<Indexer<T>>) -> Lister<T> {
        Lister { indexer }
    }

    /// Whether both read the same cache.
    pub fn is(&self, other: &Lister<T>) -> bool {
        Arc::ptr_eq(&self.indexer, &other.indexer)
    }

    pub fn get(&self, key: &ObjectKey) -> Option<Arc<T>> {
        self.indexer.get(key)
    }

    /// All, in no order.
    pub fn list(&self) -> Vec<Arc<T>> {
        self.indexer.list()
    }

    /// The objects of one namespace, in no order.
    pub fn in_namespace(&self, namespace: &str) -> Vec<Arc<T>> {
        self.indexer.in_namespace(namespace)
    }

    /// # Panics
    /// When there is no such index: a mistake in the program.
    pub fn by_index(&self, name: &'static str, value: &IndexValue) -> Vec<Arc<T>> {
        self.indexer.by_index(name, value)
    }

    pub fn len(&self) -> usize {
        self.indexer.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The newest version that this cache has seen, bookmarks included: every change up to it can
    /// be read here. 0 before the first list is whole. Upstream: `LastStoreSyncResourceVersion`.
    pub fn last_seen_version(&self) -> u64 {
        self.indexer.last_seen_version()
    }
}
