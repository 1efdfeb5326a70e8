//! Informers of any type that show the metadata of their objects.
//! Upstream: `metadatainformer`, `informerfactory.InformerFactory`.

use std::sync::Arc;

use super::any::AnyObject;
use super::handler::Registration;
use super::informer::Informer;
use super::processor::{AnyHandler, Event};
use super::source::Scope;
use crate::objects::{Meta, ObjectKey};

/// An informer of any kind that shows the metadata of its objects. Cheap to clone. Its contract is
/// that of [`super::SharedIndexInformer`].
#[derive(Clone)]
pub struct MetadataInformer {
    inner: Arc<Informer>,
}

/// Handles the events of a [`MetadataInformer`], as a [`super::EventHandler`] does.
pub trait MetadataHandler: Send + 'static {
    /// The object is in the cache, and was not before.
    fn on_add(&mut self, meta: &Meta);
    /// The object has changed.
    fn on_update(&mut self, old: &Meta, new: &Meta);
    /// The object is deleted; `meta` is from the last state known.
    fn on_delete(&mut self, meta: &Meta);
}

/// Passes the metadata of each event to a [`MetadataHandler`].
struct ByMetadata(Box<dyn MetadataHandler>);

impl AnyHandler for ByMetadata {
    fn handle(&mut self, event: Event) {
        match event {
            Event::Add { object, .. } => self.0.on_add(object.meta()),
            Event::Update { old, new } => self.0.on_update(old.meta(), new.meta()),
            Event::Delete(deleted) => self.0.on_delete(deleted.object().meta()),
        }
    }
}

impl MetadataInformer {
    pub(super) fn new(inner: Arc<Informer>) -> MetadataInformer {
        MetadataInformer { inner }
    }

    /// Returns the objects that it lists and watches.
    pub fn scope(&self) -> &Scope {
        self.inner.scope()
    }

    /// Adds a handler, which gets no resyncs. See [`super::SharedIndexInformer::add_handler`].
    /// `name`: for logs and metrics.
    pub fn add_metadata_handler(
        &self,
        name: &str,
        handler: Box<dyn MetadataHandler>,
    ) -> Registration {
        self.inner.add_handler(name, Box::new(ByMetadata(handler)), None)
    }

    /// Removes a handler. See [`super::SharedIndexInformer::remove_handler`].
    pub fn remove_metadata_handler(&self, registration: &Registration) {
        self.inner.remove_handler(registration);
    }

    /// Returns whether the cache holds the whole first list.
    pub fn has_synced(&self) -> bool {
        self.inner.has_synced()
    }

    /// Returns the cached object with this namespace and name.
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<dyn AnyObject>> {
        self.inner.indexer().get(key)
    }

    /// Returns the number of cached objects in one namespace.
    pub fn count_in(&self, namespace: &str) -> usize {
        self.inner.indexer().count_in(namespace)
    }
}
