//! Objects of any kind. The queue, the processor and the informer are compiled once, for this type;
//! the kind is known to the decoder, to the [`super::Indexer`] and its Lister, and to the handlers.

use std::any::Any;
use std::sync::Arc;

use crate::objects::{Meta, Object};

/// An object of any kind, by its metadata.
pub trait AnyObject: Any + Send + Sync {
    /// The object's metadata.
    fn meta(&self) -> &Meta;
}

impl<T: Object> AnyObject for T {
    fn meta(&self) -> &Meta {
        Object::meta(self)
    }
}

/// Returns the object with the type into which it was decoded.
///
/// # Panics
/// When it has another type: all objects of an informer have one type.
pub(super) fn typed<T: Object>(object: Arc<dyn AnyObject>) -> Arc<T> {
    let object: Arc<dyn Any + Send + Sync> = object;
    object.downcast().unwrap_or_else(|_| panic!("an object of another kind than its informer's"))
}
