//! Shadow mode: this manager works beside the manager in charge and writes nothing. Each write that
//! a controller asks for is recorded as an intention, and compared with what the other manager
//! writes.
//!
//! No controller knows of it. Below all of them, [`Shadow`] answers writes in place of the API
//! server (`answer`): as the server would where it would refuse or change nothing, else with
//! [`client::Error::Shadowed`](crate::client::Error::Shadowed), which a sync treats as any failed
//! write. Around them it observes each sync (`supervisor`), and before the caches each object that
//! comes in a watch (`held_watch`). What it sees goes into the `ledger`.

mod answer;
mod author;
mod contents;
mod creations;
mod diff;
mod event_order;
mod held_watch;
mod intended;
mod ledger;
mod patch;
mod refused_creations;
mod report;
mod request;
mod secrets;
mod supervisor;
mod target;
mod working_time;

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use event_listener::Event;
use serde_json::Value;

use self::author::{Authors, Metadata};
use self::event_order::{EventOrder, Origin};
use self::intended::{IntendedWrite, Place};
use self::ledger::{Kind, Ledger, Live, Write};
pub use self::report::Report;
use self::request::Refusal;
use self::working_time::WorkingTime;
use crate::cache::{Scope, Source};
use crate::client::{Call, Client, Interceptor};
use crate::clock::SharedClock;
use crate::controllers::{Supervisor, Watcher};
use crate::objects::Uid;
use crate::task::{Latch, StopToken};

/// The period in which expired intentions are judged.
const TICK: Duration = Duration::from_secs(1);

/// The rate of the reads that compare live objects, in requests a second, as a multiple of that of
/// a controller.
const READS: f64 = 10.0;

/// The comparison of two managers. Cheap to clone.
#[derive(Clone)]
pub struct Shadow {
    inner: Arc<Inner>,
}

/// The state of shadow mode, which the interceptor, the supervisor and the held watches share.
struct Inner {
    ledger: Mutex<Ledger>,
    /// The last authors of the objects in each watched scope.
    authors: Mutex<HashMap<Scope, Authors>>,
    /// Notified when a waiting event may pass: at each new claim, and when another event passes.
    moved: Event,
    order: Mutex<EventOrder>,
    /// Measures how long events wait.
    waiting: WorkingTime,
    /// When a write of the manager in charge last passed without a claim, in working time.
    last_suspect: Mutex<Duration>,
    is_judging: AtomicBool,
    begun: Latch,
    /// The controllers, once they run.
    watchers: Mutex<Vec<Watcher>>,
    /// The report as it was at the end.
    last: Mutex<Option<Report>>,
    /// Reads live objects; it is not intercepted.
    reader: Client,
    clock: SharedClock,
    grace: Duration,
}

impl Shadow {
    /// Makes the shadow of the manager in charge, with an empty ledger. `reader`: a client that is
    /// not intercepted.
    pub fn new(reader: &Client, clock: SharedClock, grace: Duration) -> Shadow {
        let inner = Inner {
            ledger: Mutex::new(Ledger::new(grace, clock.monotonic())),
            authors: Mutex::default(),
            moved: Event::new(),
            order: Mutex::default(),
            waiting: WorkingTime::new(clock.clone()),
            last_suspect: Mutex::default(),
            is_judging: AtomicBool::new(false),
            begun: Latch::new(),
            watchers: Mutex::default(),
            last: Mutex::default(),
            reader: reader.with_rate(READS, 10),
            clock,
            grace,
        };
        Shadow { inner: Arc::new(inner) }
    }

    /// Returns the interceptor that answers the writes of all clients.
    pub fn interceptor(&self) -> Arc<dyn Interceptor> {
        Arc::new(self.clone())
    }

    /// Returns the supervisor around the controllers' syncs.
    pub fn supervisor(&self) -> Arc<dyn Supervisor> {
        Arc::new(self.clone())
    }

    /// Wraps `source`, so that its objects are observed on their way into the caches.
    pub fn tap(&self, source: Arc<dyn Source>) -> Arc<dyn Source> {
        held_watch::HeldStream::new(source, self.inner.clone())
    }

    /// Begins to judge writes of the manager in charge. `watchers`: the controllers, which run now.
    pub fn begin(&self, watchers: Vec<Watcher>) {
        *self.inner.watchers.lock() = watchers;
        let now = self.inner.clock.monotonic();
        *self.inner.ledger.lock() = Ledger::new(self.inner.grace, now);
        self.inner.is_judging.store(true, Ordering::Relaxed);
        log::info!("shadow: comparing with the manager in charge");
        self.inner.begun.open();
    }

    /// Resolves once writes are judged.
    pub async fn begun(&self) {
        self.inner.begun.opened().await;
    }

    pub fn has_begun(&self) -> bool {
        self.inner.is_judging.load(Ordering::Relaxed)
    }

    pub fn is_closed(&self) -> bool {
        self.inner.last.lock().is_some()
    }

    /// Freezes the report.
    pub fn close(&self) {
        let report = self.report();
        *self.inner.last.lock() = Some(report);
    }

    /// Judges intentions and writes whose time is over, until stopped.
    pub async fn run(&self, stop: &StopToken) {
        let Inner { clock, .. } = &*self.inner;
        while stop.unless_stopped(clock.sleep(TICK)).await.is_some() {
            if stop.unless_stopped(self.compare_late()).await.is_none() {
                return;
            }
        }
    }

    /// Reads the live objects of the intentions that are late and records them in the ledger; then
    /// judges what is due and publishes the numbers.
    pub async fn compare_late(&self) {
        let Inner { ledger, clock, .. } = &*self.inner;
        let due = ledger.lock().due(clock.monotonic());
        for check in due {
            // The live object; and, where it is absent, whether that is certain.
            let found = match (&check.request.object_path, &check.request.collection) {
                (Some(path), _) => self.inner.read(path).await.map(|live| (live, true)),
                (None, Some(list)) => {
                    self.inner.has_items(list).await.map(|has_items| (None, !has_items))
                }
                (None, None) => Ok((None, false)),
            };
            let live = match &found {
                Ok((Some(live), _)) => Live::Object(live),
                Ok((None, _)) if self.inner.has_failure_event(&check).await => Live::Refused,
                Ok((None, true)) => Live::Absent,
                Ok((None, false)) => Live::Unknown,
                // The intention stays unchanged until the object can be read.
                Err(error) => {
                    log::warn!("shadow: {}: {error}", check.place);
                    continue;
                }
            };
            ledger.lock().record_check(clock.monotonic(), &check, live);
        }
        let now = clock.monotonic();
        ledger.lock().tick(now);
        self.report().publish();
    }

    /// Returns the report as of now, or the last one if the shadow was closed.
    pub fn report(&self) -> Report {
        if let Some(last) = &*self.inner.last.lock() {
            return last.clone();
        }
        self.inner.ledger.lock().report(self.inner.clock.monotonic())
    }
}

impl Inner {
    /// Reads the live object at `path`; `None` if it does not exist.
    async fn read(&self, path: &str) -> crate::client::Result<Option<Value>> {
        match self.reader.fetch(&Call::new("GET", path)).await {
            Ok(live) => Ok(Some(live)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Records a state of an object. Returns the write of the manager in charge that led to it, if
    /// it made one, and whether the request of users differs from that in the last state.
    fn observe(&self, scope: &Scope, meta: &Metadata) -> (Option<Write>, bool) {
        let mut all = self.authors.lock();
        if !all.contains_key(scope) {
            all.insert(scope.clone(), Authors::default());
        }
        let Some(authors) = all.get_mut(scope) else { return (None, false) };
        (authors.observe(&scope.resource.to_string(), meta), authors.request_changed(meta))
    }

    /// Forgets a deleted object. Returns whether its deletion was not known before.
    fn forget(&self, scope: &Scope, uid: &Uid) -> bool {
        self.authors.lock().get_mut(scope).is_some_and(|authors| authors.forget(uid))
    }

    /// Returns whether the cluster is ahead of the caches in the namespace of a key, because writes
    /// there are still held back; false for a key that is not an object's namespace and name.
    fn is_ahead(&self, key: &str) -> bool {
        let namespace = key.split_once('/').map(|(namespace, _)| namespace);
        // Every waiting write is before this version.
        namespace
            .is_some_and(|of| self.order.lock().has_waiting_before(Origin::Write, of, u64::MAX))
    }

    /// Returns how long the oldest key of any controller has waited or been processed.
    fn oldest_key_age(&self) -> Duration {
        self.watchers.lock().iter().map(Watcher::oldest_key_age).max().unwrap_or_default()
    }

    /// Records that a controller wants a write of this kind, and wakes the held watches.
    fn claim(&self, place: &Place, kind: Kind, controller: &str) {
        self.ledger.lock().claim(self.clock.monotonic(), place, kind, controller);
        self.moved.notify(usize::MAX);
    }

    /// Returns whether the manager in charge has recently created the wanted object.
    fn was_created(&self, intended: &IntendedWrite) -> bool {
        self.ledger.lock().was_created(self.clock.monotonic(), intended)
    }

    /// Records that the API server would refuse the write: it is no longer an intention, unless the
    /// object has only changed meanwhile. Then other final conditions in it are recorded.
    fn record_refusal(&self, intended: &IntendedWrite, refusal: Refusal, live: Option<&Value>) {
        let IntendedWrite { controller, request, place, .. } = intended;
        log::debug!("shadow: {controller}: {} {place}: {refusal:?}", request.method);
        let now = self.clock.monotonic();
        let is_met = match refusal {
            Refusal::Conflict => {
                let live = live.unwrap_or(&Value::Null);
                return self.ledger.lock().record_overtaken(now, intended, live);
            }
            // A deletion of an absent object is done.
            Refusal::NotFound => intended.request.is_delete(),
            Refusal::AlreadyExists => true,
            Refusal::NoNamespace | Refusal::NamespaceTerminating => false,
        };
        self.ledger.lock().record_refusal(now, intended, is_met);
    }

    /// Logs a write that a controller would make, adds it to the ledger as a claim too, and wakes
    /// the held watches.
    fn record_intended(&self, intended: IntendedWrite) {
        log::debug!(
            "shadow: {}: {} {}",
            intended.controller,
            intended.request.method,
            intended.place
        );
        self.ledger.lock().record_intended(self.clock.monotonic(), intended);
        self.moved.notify(usize::MAX);
    }
}
