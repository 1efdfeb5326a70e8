//! One cache of one scope, shared by its handlers and readers. Upstream: `SharedIndexInformer`.

use std::any::Any;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use super::any::typed;
use super::decoder::Decoder;
use super::handler::{EventHandler, Registration};
use super::history::VersionLosses;
use super::indexer::{Index, Indexer};
use super::informer::Informer;
use super::lister::Lister;
use super::metadata::MetadataInformer;
use super::processor::{AnyHandler, Event};
use super::source::{Scope, Source};
use crate::clock::SharedClock;
use crate::objects::Object;
use crate::task::{Failure, StopToken};

/// One cache of one scope, and its handlers. Cheap to clone: clones are one informer.
/// Upstream: `cache.SharedIndexInformer`; the contract is that of its `SharedInformer`.
///
/// An object is identified by namespace and name, not by its uid.
///
/// # What holds
///
/// - The cache follows the API server: each state that the server has for an object, that state or
///   a later one is cached some time later, unless the informer stops, the server cannot be
///   reached, or the object cannot be decoded. (An object that cannot be decoded keeps its last
///   cached state.)
/// - The states of one object are cached in their order. The exception is a server that has lost
///   versions, as after a restored backup.
/// - Each read of a [`Lister`] is answered from one state of the cache, indices included.
/// - A change is in the cache, and in the indices, before any handler is called for it.
/// - Each handler is called for every change of the cache after it was added, one call at a time,
///   in the order in which the cache changed. It has a buffer of its own, so no handler waits for
///   another.
/// - A handler that is added to a running informer first gets an `on_add` for each object that the
///   cache holds at that time, in no order, and then every later change; none is missed or passed
///   twice.
/// - Objects are shared by the cache and all handlers: one decode and one allocation each. They
///   never change.
///
/// # What is not promised
///
/// - Every state of an object: after an outage a list skips those between. In particular, an object
///   that was deleted and created again meanwhile is passed as one update, whose old and new object
///   differ in their uid.
/// - The order between different objects: it may differ from the server's.
/// - That the cache still has the state that a handler is called for: it may have a later one, or
///   the object may be gone.
/// - Any order between handlers.
/// - A bound of the buffers: a slow handler delays only itself, and its backlog grows. The metric
///   `informer_handler_backlog` shows it.
///
/// # Resync
///
/// A handler that asks for a resync is called again for every cached object, with `on_update` and
/// the same object twice. Nothing is requested from the server. Objects whose change waits already
/// are left out, as that change follows. The time between two resyncs is at least the period and
/// may be longer; while many changes wait, no resync begins. An unchanged object of a later list is
/// passed in the same way, to the handlers that were due at the last resync.
///
/// # Panics of others
///
/// A panic while an object is decoded or indexed is logged and counted; after a pause the informer
/// lists again. After five within ten minutes the informer reports a failure to its factory
/// ([`SharedInformerFactory::failed`](super::SharedInformerFactory::failed)). A handler that panics
/// loses that event and gets the next one a second later.
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
    /// Makes an informer with an empty cache, outside of any factory. It sends nothing before
    /// [`run`](Self::run).
    pub fn new(source: Arc<dyn Source>, scope: Scope, clock: SharedClock) -> Self {
        SharedIndexInformer::reporting(
            source,
            scope,
            clock,
            Failure::new(),
            VersionLosses::default(),
        )
    }

    /// Makes an informer of a factory. `failure`: gets the report when the informer keeps
    /// panicking. `history`: the losses of versions after which it lists again.
    pub(super) fn reporting(
        source: Arc<dyn Source>,
        scope: Scope,
        clock: SharedClock,
        failure: Failure,
        history: VersionLosses,
    ) -> Self {
        let indexer = Arc::new(Indexer::new());
        let decoder = Decoder::for_type::<T>();
        let inner = Informer::new(source, scope, clock, decoder, indexer.clone(), failure, history);
        SharedIndexInformer { inner: Arc::new(inner), indexer }
    }

    /// Returns `inner` with the type of its objects; `None` when they are of another type than `T`.
    pub(super) fn downcast(inner: &Arc<Informer>) -> Option<Self> {
        let indexer: Arc<dyn Any + Send + Sync> = inner.indexer().clone();
        Some(SharedIndexInformer { inner: inner.clone(), indexer: indexer.downcast().ok()? })
    }

    pub(super) fn inner(&self) -> &Arc<Informer> {
        &self.inner
    }

    /// Returns the objects that it lists and watches.
    pub fn scope(&self) -> &Scope {
        self.inner.scope()
    }

    /// Returns the same informer, which shows the metadata of its objects.
    pub fn by_metadata(&self) -> MetadataInformer {
        MetadataInformer::new(self.inner.clone())
    }

    /// Returns the factory's resync period, for handlers without one of their own; `None`: it has
    /// none. A caller passes it to [`add_handler`](Self::add_handler).
    pub fn default_resync(&self) -> Option<Duration> {
        self.inner.default_resync()
    }

    /// Sets the period after which the server ends each watch, in place of five minutes; it may
    /// last twice as long. For one of many informers of few objects. Call it before
    /// [`run`](Self::run); the first period stays. Upstream: `ReflectorOptions.MinWatchTimeout`.
    pub fn set_min_watch_timeout(&self, period: Duration) {
        self.inner.set_min_watch_timeout(period);
    }

    /// Lets [`Lister::by_index`] find objects by `index`. May be called at any time, also while the
    /// informer runs. Adding an index again does nothing. Upstream: `AddIndexers`.
    pub fn add_index(&self, index: &Index<T>) {
        self.indexer.add_index(index);
    }

    /// Adds a handler, at any time: before the start, or while the informer runs; it then first
    /// gets every object in the cache. `name`: for logs and metrics. `resync`: the period of its
    /// resyncs, raised to one second if shorter; `None` or zero: no resync. After the informer's
    /// end the handler is not added, which is logged, and its registration never syncs.
    /// Upstream: `AddEventHandlerWithResyncPeriod`.
    pub fn add_handler(
        &self,
        name: &str,
        handler: impl EventHandler<T>,
        resync: Option<Duration>,
    ) -> Registration {
        self.inner.add_handler(name, Box::new(Typed { handler, object: PhantomData }), resync)
    }

    /// Removes a handler and drops its waiting events. A call that runs now is not interrupted, and
    /// no other follows. A second removal does nothing. Upstream: `RemoveEventHandler`.
    pub fn remove_handler(&self, registration: &Registration) {
        self.inner.remove_handler(registration);
    }

    /// Returns a reader of the cache.
    pub fn lister(&self) -> Lister<T> {
        Lister::new(self.indexer.clone())
    }

    /// Returns whether the cache holds the whole first list. Handlers may not have been called for
    /// all of it yet: see [`Registration::has_synced`]. Unrelated to resyncs.
    pub fn has_synced(&self) -> bool {
        self.inner.has_synced()
    }

    /// Waits until the informer has synced; never resolves when it stops earlier. May be dropped at
    /// any time.
    pub fn synced(&self) -> impl Future<Output = ()> + Send + use<T> {
        let inner = self.inner.clone();
        async move { inner.synced().await }
    }

    /// Lists and watches until stopped; resolves when every handler has returned from its last
    /// call. Events that wait at the stop are dropped, and so are the handlers; the cache stays
    /// readable. An informer runs once: a second call is logged and returns at once.
    ///
    /// End it by `stop`, not by dropping the future: that also ends the list or watch, but handlers
    /// still get their waiting events.
    pub fn run(&self, stop: StopToken) -> impl Future<Output = ()> + Send + use<T> {
        self.inner.clone().run(stop)
    }
}
