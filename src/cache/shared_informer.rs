//! One cache of one scope, shared by its handlers and readers. Upstream: `SharedIndexInformer`.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use event_listener::Event;
use futures_lite::FutureExt;
use futures_lite::future::{yield_now, zip};

use super::delta_fifo::{Delta, DeltaFifo, Deltas, Popped};
use super::handler::{EventHandler, Registration};
use super::indexer::{IndexFn, Indexer};
use super::lister::Lister;
use super::metrics::{QUEUED_ITEMS, STORE_RESOURCE_VERSION};
use super::processor::{Listeners, Notification, Processor};
use super::reflector::Reflector;
use super::source::{Scope, Source};
use crate::clock::SharedClock;
use crate::objects::Object;
use crate::task::StopToken;

/// Keys processed in a row before the reflector gets its turn.
const BATCH: u32 = 64;

/// One cache of one scope, and its handlers. Cheap to clone.
///
/// A change is in the cache before any handler hears of it. Every handler hears of all changes of
/// one object in order; each has a task and a buffer of its own, so none waits for another. Objects
/// are shared by all: one decode and one allocation each, never a copy.
pub struct SharedIndexInformer<T> {
    inner: Arc<Inner<T>>,
}

struct Inner<T> {
    scope: Scope,
    source: Arc<dyn Source>,
    clock: SharedClock,
    indexer: Arc<Indexer<T>>,
    fifo: Arc<DeltaFifo<T>>,
    processor: Processor<T>,
    transform: OnceLock<fn(&mut T)>,
    default_resync: OnceLock<Duration>,
    synced: Event,
}

impl<T> Clone for SharedIndexInformer<T> {
    fn clone(&self) -> Self {
        SharedIndexInformer { inner: self.inner.clone() }
    }
}

impl<T: Object> SharedIndexInformer<T> {
    pub fn new(source: Arc<dyn Source>, scope: Scope, clock: SharedClock) -> Self {
        let indexer = Arc::new(Indexer::new());
        let inner = Inner {
            fifo: Arc::new(DeltaFifo::new(Some(indexer.clone()))),
            processor: Processor::new(scope.to_string(), clock.clone()),
            transform: OnceLock::new(),
            default_resync: OnceLock::new(),
            synced: Event::new(),
            scope,
            source,
            clock,
            indexer,
        };
        SharedIndexInformer { inner: Arc::new(inner) }
    }

    pub fn scope(&self) -> &Scope {
        &self.inner.scope
    }

    /// Called on every object before anyone sees it, to drop what nobody reads. It must leave name,
    /// namespace, uid and version alone. Before the informer runs; the first one set stays.
    /// Upstream: `SetTransform`.
    pub fn set_transform(&self, transform: fn(&mut T)) {
        if self.inner.transform.set(transform).is_err() {
            log::warn!("{}: it has a transform already", self.scope());
        }
    }

    /// The resync of handlers that have no wish of their own; the first one set stays.
    /// Upstream: `defaultEventHandlerResyncPeriod`.
    pub(super) fn set_default_resync(&self, period: Duration) {
        self.inner.default_resync.get_or_init(|| period);
    }

    /// What [`SharedIndexInformer::add_handler`] is to be given for a handler that has no wish of
    /// its own.
    pub fn default_resync(&self) -> Option<Duration> {
        self.inner.default_resync.get().copied()
    }

    /// A second index of the same name must be of the same function. May be added while running.
    pub fn add_index(&self, name: &'static str, index: IndexFn<T>) {
        self.inner.indexer.add_index(name, index);
    }

    /// May be called at any time, before and after the start: a handler that comes late is first
    /// told of every object there is. `resync`: hand every object again this often, at least a
    /// second apart. After the informer's end the handler is not added and never syncs.
    pub fn add_handler(
        &self,
        name: &str,
        handler: impl EventHandler<T>,
        resync: Option<Duration>,
    ) -> Registration {
        self.inner.processor.add(name, handler, resync, || self.inner.indexer.list())
    }

    /// The handler is called no more, but for the call that may be under way.
    /// Upstream: `RemoveEventHandler`.
    pub fn remove_handler(&self, registration: &Registration) {
        self.inner.processor.remove(registration);
    }

    pub fn lister(&self) -> Lister<T> {
        Lister::new(self.inner.indexer.clone())
    }

    pub(super) fn indexer(&self) -> &Indexer<T> {
        &self.inner.indexer
    }

    /// The cache holds the whole first list. Handlers may still have it before them: see
    /// [`Registration::has_synced`].
    pub fn has_synced(&self) -> bool {
        self.inner.fifo.has_synced()
    }

    /// Resolves once synced; never when the informer stops before.
    pub async fn synced(&self) {
        while !self.has_synced() {
            let synced = self.inner.synced.listen();
            if self.has_synced() {
                return;
            }
            synced.await;
        }
    }

    /// Lists and watches until stopped; resolves when every handler has returned from its last
    /// call. An informer runs once: a second call returns at once.
    pub async fn run(&self, stop: StopToken) {
        let inner = &self.inner;
        if !inner.processor.start(&stop) {
            log::warn!("{}: it was started before", self.scope());
            return;
        }
        let reflector = Reflector::new(
            inner.scope.clone(),
            inner.source.clone(),
            inner.fifo.clone(),
            inner.transform.get().copied(),
            inner.clock.clone(),
        );
        // In one task: the queue stays short, since both sides take turns.
        let work = zip(reflector.run(), zip(inner.process(), inner.resync()));
        stop.unless_stopped(work).await;
        inner.fifo.close();
        inner.processor.end().await;
    }
}

impl<T: Object> Inner<T> {
    /// From the queue into the cache and to the handlers. Upstream: `processLoop`.
    async fn process(&self) {
        let resource = &self.scope.resource;
        let name = if self.scope.metadata_only { "metadata" } else { "kube-controller-manager" };
        let labels = [name, &*resource.group, &*resource.version, &*resource.plural];
        let queued = QUEUED_ITEMS.with_label_values(&labels);
        let version = STORE_RESOURCE_VERSION.with_label_values(&labels);
        let mut announced = false;
        let mut in_a_row = 0_u32;
        loop {
            let changed = self.fifo.changed();
            let popped = self.fifo.try_pop(|deltas, initial| self.apply(deltas, initial));
            if !announced && self.fifo.has_synced() {
                announced = true;
                self.processor.lock().set_synced();
                self.synced.notify(usize::MAX);
                log::debug!("{}: synced, {} objects", self.scope, self.indexer.len());
            }
            match popped {
                Popped::Processed => {
                    in_a_row = in_a_row.wrapping_add(1);
                    if in_a_row.is_multiple_of(BATCH) {
                        queued.set(self.fifo.len() as i64);
                        yield_now().await;
                    }
                }
                Popped::Empty => {
                    queued.set(0);
                    version.set(self.indexer.last_seen_version() as i64);
                    changed.await;
                }
                Popped::Closed => return,
            }
        }
    }

    /// Upstream: `processDeltas`.
    fn apply(&self, deltas: Deltas<T>, initial: bool) {
        let mut listeners = self.processor.lock();
        for delta in deltas {
            match delta {
                Delta::Added(object)
                | Delta::Updated(object)
                | Delta::Replaced(object)
                | Delta::Sync(object) => self.store(&mut listeners, object, initial),
                Delta::Deleted(deleted) => {
                    self.indexer.remove(&deleted.object().meta().key());
                    listeners.distribute(Notification::Delete(deleted), false);
                }
            }
        }
    }

    fn store(&self, listeners: &mut Listeners<T>, object: Arc<T>, initial: bool) {
        match self.indexer.get(&object.meta().key()) {
            Some(old) if is_same(&*old, &*object) => {
                // Nothing changed: the object that everyone shares already stays.
                let new = old.clone();
                listeners.distribute(Notification::Update { old, new }, true);
            }
            Some(old) => {
                self.indexer.insert(object.clone());
                listeners.distribute(Notification::Update { old, new: object }, false);
            }
            None => {
                self.indexer.insert(object.clone());
                listeners.distribute(Notification::Add { object, initial }, false);
            }
        }
    }

    /// Hands all objects again to those who asked for it, when they asked for it.
    async fn resync(&self) {
        loop {
            let changed = self.processor.resync_changed();
            let now = self.clock.monotonic();
            match self.processor.next_resync() {
                None => changed.await,
                Some(due) if due > now => self.clock.sleep(due - now).or(changed).await,
                Some(_) => {
                    if self.processor.begin_resync(now) && self.fifo.has_synced() {
                        self.fifo.resync();
                    }
                }
            }
        }
    }
}

/// One object at one version.
fn is_same<T: Object>(old: &T, new: &T) -> bool {
    let (old, new) = (old.meta(), new.meta());
    old.resource_version == new.resource_version && old.resource_version != 0 && old.uid == new.uid
}

#[cfg(test)]
mod tests;
