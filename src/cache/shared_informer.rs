//! One cache of one scope, shared by its handlers and readers. Upstream: `SharedIndexInformer`.

use std::any::Any;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use super::any::typed;
use super::decoder::Decoder;
use super::handler::{EventHandler, Registration};
use super::indexer::{Index, Indexer};
use super::informer::Informer;
use super::lister::Lister;
use super::metadata::MetadataInformer;
use super::processor::{AnyHandler, Event};
use super::source::{Scope, Source};
use crate::clock::SharedClock;
use crate::objects::Object;
use crate::task::{Failure, StopToken};

/// One cache of one scope, and its handlers. Cheap to clone.
///
/// A change is in the cache before any handler is called for it. Every handler is called for all
/// changes of one object in order; each has a buffer, and a task while something is in it, so none
/// waits for another. Objects are shared by all: one decode and one allocation each, never a copy.
///
/// A panic while an object is decoded or indexed is logged and counted; after a pause the informer
/// lists again. When it repeats, the informer reports a failure.
pub struct SharedIndexInformer<T> {
    inner: Arc<Informer>,
    indexer: Arc<Indexer<T>>,
}

impl<T> Clone for SharedIndexInformer<T> {
    fn clone(&self) -> Self {
        SharedIndexInformer { inner: self.inner.clone(), indexer: self.indexer.clone() }
    }
}

/// A handler that knows the type of its objects.
struct Typed<T, H> {
    handler: H,
    object: PhantomData<fn(T)>,
}

impl<T: Object, H: EventHandler<T>> AnyHandler for Typed<T, H> {
    fn handle(&mut self, event: Event) {
        match event {
            Event::Add { object, initial } => self.handler.on_add(&typed(object), initial),
            Event::Update { old, new } => self.handler.on_update(&typed(old), &typed(new)),
            Event::Delete(deleted) => self.handler.on_delete(&deleted.map(typed)),
        }
    }
}

impl<T: Object> SharedIndexInformer<T> {
    pub fn new(source: Arc<dyn Source>, scope: Scope, clock: SharedClock) -> Self {
        SharedIndexInformer::reporting(source, scope, clock, Failure::new())
    }

    /// `failure`: where it reports that it cannot go on.
    pub(super) fn reporting(
        source: Arc<dyn Source>,
        scope: Scope,
        clock: SharedClock,
        failure: Failure,
    ) -> Self {
        let indexer = Arc::new(Indexer::new());
        let decoder = Decoder::of::<T>();
        let inner = Informer::new(source, scope, clock, decoder, indexer.clone(), failure);
        SharedIndexInformer { inner: Arc::new(inner), indexer }
    }

    /// `None` when the informer holds objects of another type.
    pub(super) fn of(inner: &Arc<Informer>) -> Option<Self> {
        let indexer: Arc<dyn Any + Send + Sync> = inner.indexer().clone();
        Some(SharedIndexInformer { inner: inner.clone(), indexer: indexer.downcast().ok()? })
    }

    pub(super) fn inner(&self) -> &Arc<Informer> {
        &self.inner
    }

    pub fn scope(&self) -> &Scope {
        self.inner.scope()
    }

    /// The same informer, by the metadata of its objects.
    pub fn by_metadata(&self) -> MetadataInformer {
        MetadataInformer::new(self.inner.clone())
    }

    /// The factory's resync period, for handlers that have none of their own.
    pub fn default_resync(&self) -> Option<Duration> {
        self.inner.default_resync()
    }

    /// Lets [`Lister::by_index`] find objects by `index`. May be added while running, and again.
    pub fn add_index(&self, index: &Index<T>) {
        self.indexer.add_index(index);
    }

    /// May be called at any time, before and after the start: a late handler first gets every
    /// object in the cache. `resync`: pass every object again with this period, of a second or
    /// more. After the informer's end the handler is not added and never syncs.
    pub fn add_handler(
        &self,
        name: &str,
        handler: impl EventHandler<T>,
        resync: Option<Duration>,
    ) -> Registration {
        self.inner.add_handler(name, Box::new(Typed { handler, object: PhantomData }), resync)
    }

    /// The handler is not called any more, except for a call under way.
    /// Upstream: `RemoveEventHandler`.
    pub fn remove_handler(&self, registration: &Registration) {
        self.inner.remove_handler(registration);
    }

    pub fn lister(&self) -> Lister<T> {
        Lister::new(self.indexer.clone())
    }

    /// The cache holds the whole first list. Handlers may not have been called for all of it yet:
    /// see [`Registration::has_synced`].
    pub fn has_synced(&self) -> bool {
        self.inner.has_synced()
    }

    /// Resolves once synced; never when the informer stops earlier.
    pub fn synced(&self) -> impl Future<Output = ()> + Send + use<T> {
        let inner = self.inner.clone();
        async move { inner.synced().await }
    }

    /// Lists and watches until stopped; resolves when every handler has returned from its last
    /// call. An informer runs once: a second call returns at once.
    pub fn run(&self, stop: StopToken) -> impl Future<Output = ()> + Send + use<T> {
        self.inner.clone().run(stop)
    }
}
