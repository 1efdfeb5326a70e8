//! Informers by the metadata of their objects, whatever their type.
//! Upstream: `metadatainformer`, `informerfactory.InformerFactory`.

use std::any::Any;
use std::sync::Arc;

use super::handler::{Deleted, EventHandler, Registration};
use super::shared_informer::SharedIndexInformer;
use super::source::Scope;
use crate::objects::{Meta, Object, ObjectKey};

/// Any informer by the metadata of its objects.
pub trait MetadataInformer: Send + Sync {
    fn scope(&self) -> &Scope;
    /// Without resyncs.
    fn add_metadata_handler(&self, name: &str, handler: Box<dyn MetadataHandler>) -> Registration;
    /// See [`SharedIndexInformer::remove_handler`].
    fn remove_metadata_handler(&self, registration: &Registration);
    fn has_synced(&self) -> bool;
    fn get(&self, key: &ObjectKey) -> Option<Arc<dyn HasMeta>>;
    fn count_in(&self, namespace: &str) -> usize;
}

/// What a metadata handler is told. See [`EventHandler`].
pub trait MetadataHandler: Send + 'static {
    fn on_add(&mut self, meta: &Meta);
    fn on_update(&mut self, old: &Meta, new: &Meta);
    fn on_delete(&mut self, meta: &Meta);
}

pub trait HasMeta: Any + Send + Sync {
    fn meta(&self) -> &Meta;
}

impl<T: Object> HasMeta for T {
    fn meta(&self) -> &Meta {
        Object::meta(self)
    }
}

struct ByMetadata(Box<dyn MetadataHandler>);

impl<T: Object> EventHandler<T> for ByMetadata {
    fn on_add(&mut self, object: &Arc<T>, _: bool) {
        self.0.on_add(Object::meta(&**object));
    }
    fn on_update(&mut self, old: &Arc<T>, new: &Arc<T>) {
        self.0.on_update(Object::meta(&**old), Object::meta(&**new));
    }
    fn on_delete(&mut self, object: &Deleted<T>) {
        self.0.on_delete(Object::meta(&**object.object()));
    }
}

impl<T: Object> MetadataInformer for SharedIndexInformer<T> {
    fn scope(&self) -> &Scope {
        SharedIndexInformer::scope(self)
    }

    fn add_metadata_handler(&self, name: &str, handler: Box<dyn MetadataHandler>) -> Registration {
        self.add_handler(name, ByMetadata(handler), None)
    }

    fn remove_metadata_handler(&self, registration: &Registration) {
        self.remove_handler(registration);
    }

    fn has_synced(&self) -> bool {
        SharedIndexInformer::has_synced(self)
    }

    fn get(&self, key: &ObjectKey) -> Option<Arc<dyn HasMeta>> {
        self.indexer().get(key).map(|object| object as Arc<dyn HasMeta>)
    }

    fn count_in(&self, namespace: &str) -> usize {
        self.indexer().count_in(namespace)
    }
}
