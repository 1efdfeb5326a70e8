//! Informers by the metadata of their objects, of any type.
//! Upstream: `metadatainformer`, `informerfactory.InformerFactory`.

use std::sync::Arc;

use super::any::AnyObject;
use super::handler::Registration;
use super::informer::Informer;
use super::processor::{AnyHandler, Event};
use super::source::Scope;
use crate::objects::{Meta, ObjectKey};

/// An informer of any kind, by the metadata of its objects. Cheap to clone.
#[derive(Clone)]
pub struct MetadataInformer {
    inner: Arc<Informer>,
}

/// Handles the events of a [`MetadataInformer`]. See [`super::EventHandler`].
pub trait MetadataHandler: Send + 'static {
    fn on_add(&mut self, meta: &Meta);
    fn on_update(&mut self, old: &Meta, new: &Meta);
    fn on_delete(&mut self, meta: &Meta);
}

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

    pub fn scope(&self) -> &Scope {
        self.inner.scope()
    }

    /// The handler gets no resyncs.
    pub fn add_metadata_handler(
        &self,
        name: &str,
        handler: Box<dyn MetadataHandler>,
    ) -> Registration {
        self.inner.add_handler(name, Box::new(ByMetadata(handler)), None)
    }

    /// See [`super::SharedIndexInformer::remove_handler`].
    pub fn remove_metadata_handler(&self, registration: &Registration) {
        self.inner.remove_handler(registration);
    }

    pub fn has_synced(&self) -> bool {
        self.inner.has_synced()
    }

    pub fn get(&self, key: &ObjectKey) -> Option<Arc<dyn AnyObject>> {
        self.inner.indexer().get(key)
    }

    pub fn count_in(&self, namespace: &str) -> usize {
        self.inner.indexer().count_in(namespace)
    }
}
