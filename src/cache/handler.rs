//! The handlers of an informer's events.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use event_listener::Event;

use crate::task::notify_all;

/// Handles an informer's events, one call at a time and in the order in which the changes reached
/// the cache. When a call is made, the Lister shows that change or a later one.
/// Upstream: `ResourceEventHandler`.
pub trait EventHandler<T>: Send + 'static {
    /// `initial`: the object was cached when the handler was added, or came with the first list.
    fn on_add(&mut self, object: &Arc<T>, initial: bool);
    /// A resync passes the same object (`Arc::ptr_eq`) twice.
    fn on_update(&mut self, old: &Arc<T>, new: &Arc<T>);
    fn on_delete(&mut self, object: &Deleted<T>);
}

/// The last state known of a deleted object.
pub enum Deleted<T: ?Sized> {
    Known(Arc<T>),
    /// The deletion was missed; this may be old. Upstream: `DeletedFinalStateUnknown`.
    FinalStateUnknown(Arc<T>),
}

impl<T: ?Sized> Deleted<T> {
    pub fn object(&self) -> &Arc<T> {
        match self {
            Deleted::Known(object) | Deleted::FinalStateUnknown(object) => object,
        }
    }

    pub(super) fn map<U>(self, convert: impl FnOnce(Arc<T>) -> Arc<U>) -> Deleted<U> {
        match self {
            Deleted::Known(object) => Deleted::Known(convert(object)),
            Deleted::FinalStateUnknown(object) => Deleted::FinalStateUnknown(convert(object)),
        }
    }
}

impl<T: ?Sized> Clone for Deleted<T> {
    fn clone(&self) -> Self {
        match self {
            Deleted::Known(object) => Deleted::Known(object.clone()),
            Deleted::FinalStateUnknown(object) => Deleted::FinalStateUnknown(object.clone()),
        }
    }
}

/// A registered handler. Cheap to clone. Upstream: `ResourceEventHandlerRegistration`.
#[derive(Clone, Default)]
pub struct Registration {
    state: Arc<RegistrationState>,
}

#[derive(Default)]
struct RegistrationState {
    synced: AtomicBool,
    changed: Event,
}

impl Registration {
    /// The handler has been called for every object of the initial list.
    pub fn has_synced(&self) -> bool {
        self.state.synced.load(Ordering::Acquire)
    }

    /// Resolves once synced; never when the informer stops earlier.
    pub async fn synced(&self) {
        while !self.has_synced() {
            let changed = self.state.changed.listen();
            if self.has_synced() {
                return;
            }
            changed.await;
        }
    }

    pub(super) fn set_synced(&self) {
        self.state.synced.store(true, Ordering::Release);
        notify_all(&self.state.changed);
    }

    pub(super) fn is(&self, other: &Registration) -> bool {
        Arc::ptr_eq(&self.state, &other.state)
    }
}
