//! The part of an informer that is compiled once for all kinds: the tasks that fill its cache and
//! call its handlers.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_lite::FutureExt;
use futures_lite::future::{yield_now, zip};

use super::any::AnyObject;
use super::counts::Counts;
use super::decoder::Decoder;
use super::delta_fifo::{Delta, DeltaFifo, Popped};
use super::handler::Registration;
use super::history::VersionLosses;
use super::indexer::AnyIndexer;
use super::metrics::{self, Measured};
use super::phase::{Backoff, Outcome};
use super::processor::{AnyHandler, Event, HandlerStatus, Listeners, Processor};
use super::progress::{Progress, ReflectorStatus};
use super::reflector::Reflector;
use super::source::{Scope, Source};
use super::time_slice::TimeSlice;
use crate::clock::{SharedClock, Sleep};
use crate::objects::Meta;
use crate::task::{Failure, Latch, StopToken, caught};
use crate::trace;

/// An informer that panics this often within [`PANIC_PERIOD`] has failed.
const PANICS: usize = 5;
const PANIC_PERIOD: Duration = Duration::from_secs(10 * 60);

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
    min_watch_timeout: OnceLock<Duration>,
    synced: Latch,
    failure: Failure,
    progress: Arc<Progress>,
    history: VersionLosses,
}

/// An informer as debug pages show it.
#[derive(Clone, Debug)]
pub struct InformerStatus {
    /// The objects that it lists and watches.
    pub scope: Scope,
    /// The number of cached objects.
    pub objects: usize,
    /// The memory of the cache, in bytes: see [`AnyIndexer::bytes_held`].
    pub bytes: usize,
    /// The newest resource version up to which all changes are cached; 0 before the first list.
    pub version: u64,
    /// Whether the cache holds the whole first list.
    pub synced: bool,
    /// What its reflector does.
    pub reflector: ReflectorStatus,
    /// Keys that wait in the DeltaFifo.
    pub queued: usize,
    /// Its handlers, in the order in which they were added.
    pub handlers: Vec<HandlerStatus>,
}

impl Informer {
    /// Makes an informer that sends nothing before [`run`](Self::run).
    pub fn new(
        source: Arc<dyn Source>,
        scope: Scope,
        clock: SharedClock,
        decoder: Decoder,
        indexer: Arc<dyn AnyIndexer>,
        failure: Failure,
        history: VersionLosses,
    ) -> Informer {
        let name: Arc<str> = scope.to_string().into();
        Informer {
            fifo: Arc::new(DeltaFifo::new(indexer.clone())),
            processor: Processor::new(name.clone(), clock.clone()),
            counts: Arc::default(),
            name,
            default_resync: OnceLock::new(),
            min_watch_timeout: OnceLock::new(),
            synced: Latch::new(),
            progress: Arc::default(),
            failure,
            history,
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

    /// Returns the factory's resync period, for handlers without one of their own.
    pub fn default_resync(&self) -> Option<Duration> {
        self.default_resync.get().copied()
    }

    pub fn indexer(&self) -> &Arc<dyn AnyIndexer> {
        &self.indexer
    }

    /// Returns the state of the informer for debug pages. Walks the cache: the cost grows with its
    /// objects.
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

    /// Sets the resync period of handlers without one of their own; a later call changes nothing.
    /// Upstream: `defaultEventHandlerResyncPeriod`.
    pub fn set_default_resync(&self, period: Duration) {
        self.default_resync.get_or_init(|| period);
    }

    /// Sets the least time after which the server ends a watch; a later call changes nothing.
    /// Upstream: `ReflectorOptions.MinWatchTimeout`.
    pub fn set_min_watch_timeout(&self, period: Duration) {
        self.min_watch_timeout.get_or_init(|| period);
    }

    /// Adds a handler. If it has a resync period, wakes the reader of the queue, which may sleep
    /// until a later resync.
    pub fn add_handler(
        &self,
        name: &str,
        handler: Box<dyn AnyHandler>,
        resync: Option<Duration>,
    ) -> Registration {
        let added = self.processor.add(name, handler, resync, |visit| self.indexer.for_each(visit));
        if resync.is_some() {
            self.fifo.wake();
        }
        added
    }

    pub fn remove_handler(&self, registration: &Registration) {
        self.processor.remove(registration);
    }

    /// Returns whether the cache holds the whole first list. Upstream: `HasSynced`.
    pub fn has_synced(&self) -> bool {
        self.fifo.has_synced()
    }

    /// Waits until the cache holds the whole first list.
    pub async fn synced(&self) {
        self.synced.opened().await;
    }

    /// Lists, watches and calls the handlers until `stop`; then waits until each handler has
    /// returned from its last call. Runs once.
    pub async fn run(self: Arc<Self>, stop: StopToken) {
        if !self.processor.start() {
            log::warn!("{}: the informer was started before", self.name);
            return;
        }
        metrics::report(&self);
        stop.unless_stopped(self.work()).await;
        metrics::forget(&self);
        self.fifo.close();
        self.processor.end().await;
    }

    /// Runs the reflector and [`Self::process`] in one task: they alternate, so the queue stays
    /// short. After a panic both start again with an empty queue and a list.
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
        .reporting(self.progress.clone())
        .following(&self.history)
        .watching_for(self.min_watch_timeout.get().copied());
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
            self.clock.sleep(backoff.next(Outcome::Failed, now)).await;
        }
    }

    /// Moves changes from the queue into the cache and to the handlers. While none wait, passes all
    /// objects again to each handler whose resync is due. Upstream: `processLoop`.
    async fn process(&self) {
        // Yields now and then, so that many changes of one object, or large objects, delay neither
        // other tasks nor the reflector.
        let mut slice = TimeSlice::new(self.clock.clone());
        // When the next resync is due, and the sleep until then.
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

    /// Returns a sleep until the next resync is due; `None` if no handler has one. Queues all
    /// objects when one is due now, unless the first list is still under way. `timer` keeps the
    /// sleep, with its time, between two calls.
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

    /// Applies a change to the cache, and passes it to the handlers.
    /// Upstream: `processDeltas`.
    fn apply(&self, delta: Delta, initial: bool) {
        let mut listeners = self.processor.lock();
        match delta {
            Delta::Added(object)
            | Delta::Updated(object)
            | Delta::Replaced(object)
            | Delta::Sync(object) => self.store(&mut listeners, object, initial, is_same),
            Delta::Restored(object) => self.store(&mut listeners, object, initial, |_, _| false),
            Delta::Deleted(deleted) => {
                self.indexer.remove(&deleted.object().meta().key());
                trace::cached(deleted.object().meta(), "removed", || self.indexer.len());
                listeners.distribute(Event::Delete(deleted));
            }
        }
    }

    /// Stores `object` in the cache and passes an addition or an update to the handlers. `is_same`
    /// gets the cached and the new metadata: if it returns `true`, the cached object stays, and
    /// only handlers in a resync get it.
    fn store(
        &self,
        listeners: &mut Listeners,
        object: Arc<dyn AnyObject>,
        initial: bool,
        is_same: fn(&Meta, &Meta) -> bool,
    ) {
        let trace_change = |object: &Arc<dyn AnyObject>, change| {
            trace::cached(object.meta(), change, || self.indexer.len());
        };
        match self.indexer.get(&object.meta().key()) {
            Some(old) if is_same(old.meta(), object.meta()) => {
                // Nothing changed: the cached object, which all readers share, stays.
                let new = old.clone();
                trace_change(&new, "unchanged");
                listeners.distribute_resync(Event::Update { old, new });
            }
            Some(old) => {
                self.indexer.insert(object.clone());
                trace_change(&object, "updated");
                listeners.distribute(Event::Update { old, new: object });
            }
            None => {
                self.indexer.insert(object.clone());
                trace_change(&object, "added");
                listeners.distribute(Event::Add { object, initial });
            }
        }
    }
}

impl Measured for Informer {
    fn name(&self) -> &str {
        &self.name
    }

    fn labels(&self) -> [&str; 4] {
        let resource = &self.scope.resource;
        // Upstream names all informers so, except those of metadata.
        let name = if self.scope.metadata_only { "metadata" } else { "kube-controller-manager" };
        [name, &resource.group, &resource.version, &resource.plural]
    }

    fn queued(&self) -> usize {
        self.fifo.len()
    }

    fn last_seen_version(&self) -> u64 {
        self.indexer.last_seen_version()
    }

    fn handlers(&self) -> Vec<HandlerStatus> {
        self.processor.handlers()
    }

    fn counts(&self) -> &Counts {
        &self.counts
    }
}

/// Returns whether both are the same object at the same version.
fn is_same(old: &Meta, new: &Meta) -> bool {
    old.resource_version == new.resource_version && old.resource_version != 0 && old.uid == new.uid
}

#[cfg(test)]
mod tests;
