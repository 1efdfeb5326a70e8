//! One cache of one scope, shared by its handlers and readers. Upstream: `SharedIndexInformer`.

use std::any::Any;
use std::marker::PhantomData;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_lite::FutureExt;
use futures_lite::future::{yield_now, zip};

use super::any::{AnyObject, typed};
use super::decoder::Decoder;
use super::delta_fifo::{Delta, DeltaFifo, Popped};
use super::handler::{EventHandler, Registration};
use super::indexer::{AnyIndexer, IndexFn, Indexer};
use super::lister::Lister;
use super::metadata::MetadataInformer;
use super::metrics::{self, Counts};
use super::processor::{AnyHandler, Event, HandlerStatus, Listeners, Processor};
use super::progress::{Progress, ReflectorStatus};
use super::reflector::{Backoff, Reflector};
use super::source::{Scope, Source};
use super::time_slice::TimeSlice;
use crate::clock::{SharedClock, Sleep};
use crate::objects::{Meta, Object};
use crate::task::{Failure, Latch, StopToken, caught};
use crate::trace;

/// An informer that panics this often within [`PANIC_PERIOD`] has failed.
const PANICS: usize = 5;
const PANIC_PERIOD: Duration = Duration::from_secs(10 * 60);

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

/// The part of an informer that is compiled once for all kinds.
pub struct Informer {
    /// The scope, as logs and metrics name it.
    name: Arc<str>,
    scope: Arc<Scope>,
    source: Arc<dyn Source>,
    clock: SharedClock,
    decoder: Decoder,
    indexer: Arc<dyn AnyIndexer>,
    fifo: Arc<DeltaFifo>,
    processor: Processor,
    counts: Arc<Counts>,
    default_resync: OnceLock<Duration>,
    synced: Latch,
    failure: Failure,
    progress: Arc<Progress>,
}

/// An informer as debug pages show it.
#[derive(Clone, Debug)]
pub struct InformerStatus {
    pub scope: Scope,
    pub objects: usize,
    /// See [`AnyIndexer::bytes_held`].
    pub bytes: usize,
    /// The newest version of which all changes are cached.
    pub version: u64,
    pub synced: bool,
    pub reflector: ReflectorStatus,
    /// Keys that wait in the DeltaFifo.
    pub queued: usize,
    pub handlers: Vec<HandlerStatus>,
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
        let indexer: Arc<dyn Any + Send + Sync> = inner.indexer.clone();
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
        self.inner.default_resync.get().copied()
    }

    /// A second index of the same name must have the same function. May be added while running.
    pub fn add_index(&self, name: &'static str, index: IndexFn<T>) {
        self.indexer.add_index(name, index);
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

impl Informer {
    fn new(
        source: Arc<dyn Source>,
        scope: Scope,
        clock: SharedClock,
        decoder: Decoder,
        indexer: Arc<dyn AnyIndexer>,
        failure: Failure,
    ) -> Informer {
        let name: Arc<str> = scope.to_string().into();
        Informer {
            fifo: Arc::new(DeltaFifo::new(indexer.clone())),
            processor: Processor::new(name.clone(), clock.clone()),
            counts: Arc::default(),
            name,
            default_resync: OnceLock::new(),
            synced: Latch::new(),
            progress: Arc::default(),
            failure,
            scope: Arc::new(scope),
            source,
            clock,
            decoder,
            indexer,
        }
    }

    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    pub fn indexer(&self) -> &Arc<dyn AnyIndexer> {
        &self.indexer
    }

    /// Walks the cache: the cost grows with its objects.
    pub fn status(&self) -> InformerStatus {
        InformerStatus {
            scope: (*self.scope).clone(),
            objects: self.indexer.len(),
            bytes: self.indexer.bytes_held(),
            version: self.indexer.last_seen_version(),
            synced: self.has_synced(),
            reflector: self.progress.status(&self.counts, self.clock.monotonic()),
            queued: self.fifo.len(),
            handlers: self.processor.handlers(),
        }
    }

    /// The first period stays. Upstream: `defaultEventHandlerResyncPeriod`.
    pub fn set_default_resync(&self, period: Duration) {
        self.default_resync.get_or_init(|| period);
    }

    pub fn add_handler(
        &self,
        name: &str,
        handler: Box<dyn AnyHandler>,
        resync: Option<Duration>,
    ) -> Registration {
        let added = self.processor.add(name, handler, resync, |visit| self.indexer.for_each(visit));
        if resync.is_some() {
            self.fifo.look_again();
        }
        added
    }

    pub fn remove_handler(&self, registration: &Registration) {
        self.processor.remove(registration);
    }

    pub fn has_synced(&self) -> bool {
        self.fifo.has_synced()
    }

    pub async fn synced(&self) {
        self.synced.opened().await;
    }

    pub async fn run(self: Arc<Self>, stop: StopToken) {
        if !self.processor.start() {
            log::warn!("{}: it was started before", self.name);
            return;
        }
        metrics::report(&self);
        stop.unless_stopped(self.work()).await;
        metrics::forget(&self);
        self.fifo.close();
        self.processor.end().await;
    }

    /// Runs the reflector and the queue in one task: the queue stays short, since both take turns.
    /// After a panic both start again with an empty queue and a list.
    async fn work(&self) {
        let mut reflector = Reflector::new(
            self.name.clone(),
            self.scope.clone(),
            self.source.clone(),
            self.decoder,
            self.fifo.clone(),
            self.counts.clone(),
            self.clock.clone(),
        )
        .reporting(self.progress.clone());
        let mut backoff = Backoff::new(self.clock.monotonic(), fastrand::Rng::new());
        let mut panics = Vec::new();
        loop {
            let work = zip(reflector.run(), self.process());
            let Err(message) = caught(work).await else { return };
            let now = self.clock.monotonic();
            panics.retain(|at| now.saturating_sub(*at) < PANIC_PERIOD);
            panics.push(now);
            self.counts.panics.add_one();
            log::error!("{}: the informer panicked, it lists again: {message}", self.name);
            if panics.len() >= PANICS {
                let name = &self.name;
                self.failure.report(format!("the informer of {name} keeps panicking: {message}"));
            }
            self.fifo.abandon();
            self.clock.sleep(backoff.next(now)).await;
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it counts since it was made.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Keys that wait in the queue.
    pub fn queued(&self) -> usize {
        self.fifo.len()
    }

    /// The newest version of which the store has all changes.
    pub fn last_seen_version(&self) -> u64 {
        self.indexer.last_seen_version()
    }

    pub fn handlers(&self) -> Vec<HandlerStatus> {
        self.processor.handlers()
    }

    /// The labels of upstream's metrics: name, group, version and resource.
    pub fn labels(&self) -> [&str; 4] {
        let resource = &self.scope.resource;
        let name = if self.scope.metadata_only { "metadata" } else { "kube-controller-manager" };
        [name, &resource.group, &resource.version, &resource.plural]
    }

    /// Moves changes from the queue into the cache and to the handlers. While none wait, passes all
    /// objects again to each handler whose resync is due. Upstream: `processLoop`.
    async fn process(&self) {
        // Many changes of one object, or of a large one, hold up neither other tasks nor the reflector.
        let mut slice = TimeSlice::new(self.clock.clone());
        // Of the next resync, and when that is due.
        let mut timer: Option<(Duration, Sleep)> = None;
        loop {
            let (changed, began) = (self.fifo.changed(), slice.begin_item());
            let popped = self.fifo.try_pop(|delta, initial| self.apply(delta, initial));
            if !self.synced.is_open() && self.fifo.has_synced() {
                self.processor.lock().set_synced();
                self.synced.open();
                log::debug!("{}: synced, {} objects", self.name, self.indexer.len());
            }
            match popped {
                Popped::Processed => {
                    if slice.end_item(began) {
                        yield_now().await;
                    }
                }
                Popped::Empty => match self.next_resync(&mut timer) {
                    None => changed.await,
                    Some(sleep) => {
                        let fires = async {
                            sleep.await;
                            true
                        };
                        let changes = async {
                            changed.await;
                            false
                        };
                        if fires.or(changes).await {
                            timer = None;
                        }
                    }
                },
                Popped::Closed => return,
            }
        }
    }

    /// Waits for the next resync, if a handler has one. Queues all objects when it is due.
    fn next_resync<'a>(&self, timer: &'a mut Option<(Duration, Sleep)>) -> Option<&'a mut Sleep> {
        let now = self.clock.monotonic();
        let mut due = self.processor.next_resync()?;
        if due <= now {
            if self.processor.begin_resync(now) && self.fifo.has_synced() {
                self.fifo.resync();
            }
            due = self.processor.next_resync()?;
        }
        if timer.as_ref().is_none_or(|(at, _)| *at != due) {
            *timer = Some((due, self.clock.sleep(due.saturating_sub(now))));
        }
        timer.as_mut().map(|(_, sleep)| sleep)
    }

    /// Upstream: `processDeltas`.
    fn apply(&self, delta: Delta, initial: bool) {
        let mut listeners = self.processor.lock();
        match delta {
            Delta::Added(object)
            | Delta::Updated(object)
            | Delta::Replaced(object)
            | Delta::Sync(object) => self.store(&mut listeners, object, initial),
            Delta::Deleted(deleted) => {
                self.indexer.remove(&deleted.object().meta().key());
                if trace::is_on() {
                    trace::cached(deleted.object().meta(), "removed", self.indexer.len());
                }
                listeners.distribute(Event::Delete(deleted), false);
            }
        }
    }

    fn store(&self, listeners: &mut Listeners, object: Arc<dyn AnyObject>, initial: bool) {
        let traced = |object: &Arc<dyn AnyObject>, change| {
            if trace::is_on() {
                trace::cached(object.meta(), change, self.indexer.len());
            }
        };
        match self.indexer.get(&object.meta().key()) {
            Some(old) if is_same(old.meta(), object.meta()) => {
                // Nothing changed: the cached object, which all readers share, stays.
                let new = old.clone();
                traced(&new, "unchanged");
                listeners.distribute(Event::Update { old, new }, true);
            }
            Some(old) => {
                self.indexer.insert(object.clone());
                traced(&object, "updated");
                listeners.distribute(Event::Update { old, new: object }, false);
            }
            None => {
                self.indexer.insert(object.clone());
                traced(&object, "added");
                listeners.distribute(Event::Add { object, initial }, false);
            }
        }
    }
}

/// One object at one version.
fn is_same(old: &Meta, new: &Meta) -> bool {
    old.resource_version == new.resource_version && old.resource_version != 0 && old.uid == new.uid
}

#[cfg(test)]
mod tests;
