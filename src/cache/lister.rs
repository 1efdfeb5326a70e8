//! Reads from a cache. Upstream: `cache.GenericLister` and the generated listers.

use std::any::type_name;
use std::sync::Arc;

use super::indexer::{HistoryVersion, Index, IndexValue, Indexer};
use crate::objects::{Object, ObjectKey};
use crate::trace;

/// Reads from an informer's cache. Cheap to clone. The returned objects are shared with every other
/// reader and never change. [`Indexer`] has the contract: each call is answered from one state of
/// the cache, and two calls may see two states. Before the first list and after the informer's end
/// a Lister reads what the cache has then.
pub struct Lister<T> {
    indexer: Arc<Indexer<T>>,
}

impl<T> Clone for Lister<T> {
    fn clone(&self) -> Self {
        Lister { indexer: self.indexer.clone() }
    }
}

impl<T: Object> Lister<T> {
    /// Makes a reader of this cache.
    pub fn new(indexer: Arc<Indexer<T>>) -> Lister<T> {
        Lister { indexer }
    }

    /// Returns whether both read the same cache.
    pub fn is(&self, other: &Lister<T>) -> bool {
        Arc::ptr_eq(&self.indexer, &other.indexer)
    }

    /// Returns the object with this namespace and name; `None` when it is not cached, which does
    /// not prove that the server does not have it.
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<T>> {
        let found = self.indexer.get(key);
        let meta = found.as_deref().map(Object::meta);
        trace::read(type_name::<T>(), key, meta, || self.last_seen_version());
        found
    }

    /// Traces a read of several objects, and returns them.
    fn trace_list(&self, found: Vec<Arc<T>>) -> Vec<Arc<T>> {
        let count = format_args!("objects={}", found.len());
        trace::read(type_name::<T>(), &count, None, || self.last_seen_version());
        found
    }

    /// Returns all objects, in no order.
    pub fn list(&self) -> Vec<Arc<T>> {
        self.trace_list(self.indexer.list())
    }

    /// Returns the objects of one namespace, in no order.
    pub fn in_namespace(&self, namespace: &str) -> Vec<Arc<T>> {
        self.trace_list(self.indexer.in_namespace(namespace))
    }

    /// Returns the number of objects in one namespace.
    pub fn count_in(&self, namespace: &str) -> usize {
        self.indexer.count_in(namespace)
    }

    /// Returns the objects that `index` has under `value`, in no order.
    ///
    /// # Panics
    /// When the index was not added: a mistake in the program.
    pub fn by_index(&self, index: &Index<T>, value: &IndexValue) -> Vec<Arc<T>> {
        self.trace_list(self.indexer.by_index(index, value))
    }

    /// Returns the number of objects.
    pub fn len(&self) -> usize {
        self.indexer.len()
    }

    /// Returns whether there are no objects.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the newest resource version that this cache has seen, in an object or a bookmark:
    /// every change up to it can be read here. 0 before the first list is whole. Upstream:
    /// `LastStoreSyncResourceVersion`.
    pub fn last_seen_version(&self) -> u64 {
        self.indexer.last_seen_version()
    }

    /// Returns [`last_seen_version`](Lister::last_seen_version) with its history, to compare it
    /// with [`written_at`](Lister::written_at).
    pub fn seen(&self) -> HistoryVersion {
        self.indexer.seen()
    }

    /// Returns the version of a write whose answer has come now.
    pub fn written_at(&self, version: u64) -> HistoryVersion {
        HistoryVersion { version, ..self.seen() }
    }
}
