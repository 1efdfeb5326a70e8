//! The handlers of an informer's events.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use event_listener::Event;

use crate::task::notify_all;

/// Handles an informer's events, one call at a time and in the order in which the changes reached
/// the cache. When a call is made, the Lister shows that change or a later one.
/// [`SharedIndexInformer`](super::SharedIndexInformer) has the whole contract.
///
/// A call must be short, as all tasks share a thread: it maps the event to a key and queues that.
/// A call that panics is logged and counted; the handler gets its next event a second later.
/// Upstream: `ResourceEventHandler`.
pub trait EventHandler<T>: Send + 'static {
    /// The object is in the cache, and was not before. `initial`: it was cached already when the
    /// handler was added, or the first list was not yet processed to its end.
    fn on_add(&mut self, object: &Arc<T>, initial: bool);
    /// The object has changed, from the state that the cache had before. The uids differ when the
    /// object was deleted and created again and the deletion was missed. A resync passes the same
    /// object (`Arc::ptr_eq`) twice.
    fn on_update(&mut self, old: &Arc<T>, new: &Arc<T>);
    /// The object is deleted and no longer in the cache.
    fn on_delete(&mut self, object: &Deleted<T>);
}

/// The last state known of a deleted object.
pub enum Deleted<T: ?Sized> {
    /// The final state, as the watch has sent it, with the version of the deletion.
    Known(Arc<T>),
    /// The last cached state, which may be old: the deletion was missed, or its event cannot be
    /// decoded. Upstream: `DeletedFinalStateUnknown`.
    FinalStateUnknown(Arc<T>),
}

impl<T: ?Sized> Deleted<T> {
    /// Returns the last state known.
    pub fn object(&self) -> &Arc<T> {
        match self {
            Deleted::Known(object) | Deleted::FinalStateUnknown(object) => object,
        }
    }

    /// Converts the object, and keeps what is known of the deletion.
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

/// A registered handler. Cheap to clone: clones are one registration. Dropping it does not remove
/// the handler. Upstream: `ResourceEventHandlerRegistration`.
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
    /// Returns whether the handler has been called for every object of the initial list.
    pub fn has_synced(&self) -> bool {
        self.state.synced.load(Ordering::Acquire)
    }

    /// Resolves once synced; never when the informer stops, or the handler is removed, earlier. May
    /// be dropped at any time.
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

    /// Returns whether both are the same registration.
    pub(super) fn is(&self, other: &Registration) -> bool {
        Arc::ptr_eq(&self.state, &other.state)
    }
}
