//! Passes notifications to the handlers, each at its own pace. Upstream: `sharedProcessor`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use async_channel::{Receiver, Sender};
use event_listener::EventListener;
use futures_lite::future::yield_now;
use parking_lot::{Mutex, MutexGuard};
use prometheus::IntGauge;

use super::any::AnyObject;
use super::handler::{Deleted, Registration};
use super::metrics::{HANDLER_BACKLOG, HANDLER_PANICS};
use super::source::BoxFuture;
use crate::clock::SharedClock;
use crate::task::{StopToken, TaskGroup};
use crate::trace;

/// A shorter resync period is raised to this. Upstream: `minimumResyncPeriod`.
const MINIMUM_RESYNC: Duration = Duration::from_secs(1);

/// After a handler panicked, its next notification waits this long.
const PAUSE_AFTER_PANIC: Duration = Duration::from_secs(1);

/// Notifications in a row before other tasks get their turn on the thread.
const BATCH: u32 = 64;

/// A change for the handlers.
#[derive(Clone)]
pub enum Event {
    Add { object: Arc<dyn AnyObject>, initial: bool },
    Update { old: Arc<dyn AnyObject>, new: Arc<dyn AnyObject> },
    Delete(Deleted<dyn AnyObject>),
}

#[derive(Clone)]
enum Notification {
    Event(Event),
    /// The first list is over.
    Synced,
}

/// A handler of objects of any kind.
pub trait AnyHandler: Send {
    fn handle(&mut self, event: Event);
}

/// The handlers of one informer. While [`Processor::lock`] is held, no handler is added and no
/// event is sent: the cache changes, and its events are sent, under one lock.
pub struct Processor {
    listeners: Mutex<Listeners>,
    /// Notified when a handler with a resync period is added.
    resync_changed: event_listener::Event,
    tasks: TaskGroup,
    clock: SharedClock,
    informer: String,
}

pub struct Listeners {
    all: Vec<Listener>,
    state: Running,
    synced: bool,
}

enum Running {
    NotYet,
    Until(StopToken),
    Ended,
}

struct Listener {
    name: String,
    /// Unbounded, so that a slow handler delays no other; its length is a metric.
    notifications: Sender<Notification>,
    backlog: IntGauge,
    registration: Registration,
    resync: Option<Resync>,
    /// Before the informer runs.
    task: Option<BoxFuture<'static, ()>>,
}

struct Resync {
    period: Duration,
    next: Duration,
    /// The resync under way is for this handler.
    syncing: bool,
}

/// A handler as debug pages show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandlerStatus {
    pub name: String,
    /// Notifications that wait for it.
    pub backlog: usize,
    /// It was called for all objects of its initial list.
    pub synced: bool,
}

impl Listener {
    fn status(&self) -> HandlerStatus {
        HandlerStatus {
            name: self.name.clone(),
            backlog: self.notifications.len(),
            synced: self.registration.has_synced(),
        }
    }

    fn send(&self, notification: Notification) {
        if self.notifications.try_send(notification).is_ok() {
            self.backlog.inc();
        }
    }
}

impl Listeners {
    /// Sends to all handlers; with `sync`, when nothing changed, to those of the resync under way.
    pub fn distribute(&mut self, event: Event, sync: bool) {
        self.send(Notification::Event(event), sync);
    }

    fn send(&mut self, notification: Notification, sync: bool) {
        let mut receivers = self.all.iter().filter(|listener| {
            !sync || listener.resync.as_ref().is_some_and(|resync| resync.syncing)
        });
        let Some(mut listener) = receivers.next() else { return };
        for next in receivers {
            listener.send(notification.clone());
            listener = next;
        }
        listener.send(notification);
    }

    pub fn set_synced(&mut self) {
        if !self.synced {
            self.synced = true;
            self.send(Notification::Synced, false);
        }
    }
}

impl Processor {
    pub fn new(informer: String, clock: SharedClock) -> Processor {
        let listeners = Listeners { all: Vec::new(), state: Running::NotYet, synced: false };
        Processor {
            listeners: Mutex::new(listeners),
            resync_changed: event_listener::Event::new(),
            tasks: TaskGroup::new(),
            clock,
            informer,
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, Listeners> {
        self.listeners.lock()
    }

    /// The handler first gets an `Add` for each object that `for_each` visits; no event is sent
    /// meanwhile.
    pub fn add(
        &self,
        name: &str,
        handler: Box<dyn AnyHandler>,
        resync: Option<Duration>,
        for_each: impl FnOnce(&mut dyn FnMut(Arc<dyn AnyObject>)),
    ) -> Registration {
        let registration = Registration::default();
        let (notifications, receiver) = async_channel::unbounded();
        let labels = [self.informer.as_str(), name];
        let backlog = HANDLER_BACKLOG.with_label_values(&labels);
        let task = Delivery {
            name: format!("{} of {}", name, self.informer),
            panics: HANDLER_PANICS.with_label_values(&labels),
            handler,
            notifications: receiver,
            backlog: backlog.clone(),
            registration: registration.clone(),
            clock: self.clock.clone(),
        };
        let resync = resync.filter(|period| !period.is_zero()).map(|period| {
            let period = period.max(MINIMUM_RESYNC);
            Resync { period, next: self.clock.monotonic() + period, syncing: false }
        });
        let mut listeners = self.lock();
        if let Running::Ended = listeners.state {
            log::warn!("{}: not added, the informer has ended", task.name);
            return registration;
        }
        let mut listener = Listener {
            name: name.to_owned(),
            notifications,
            backlog,
            registration: registration.clone(),
            resync,
            task: None,
        };
        for_each(&mut |object| {
            listener.send(Notification::Event(Event::Add { object, initial: true }));
        });
        if listeners.synced {
            listener.send(Notification::Synced);
        }
        let task = Box::pin(task.run());
        match &listeners.state {
            Running::Until(stop) => self.spawn(task, stop.clone()),
            _ => listener.task = Some(task),
        }
        listeners.all.push(listener);
        drop(listeners);
        self.resync_changed.notify(usize::MAX);
        registration
    }

    /// Waiting notifications of the handler are dropped. Upstream: `RemoveEventHandler`.
    pub fn remove(&self, registration: &Registration) {
        registration.set_removed();
        let mut listeners = self.lock();
        let removed = |listener: &mut Listener| listener.registration.is(registration);
        let removed: Vec<Listener> = listeners.all.extract_if(.., removed).collect();
        for listener in removed {
            // Handlers of one name share their series.
            if listeners.all.iter().all(|other| other.name != listener.name) {
                self.remove_series(&listener.name);
            }
        }
    }

    fn remove_series(&self, handler: &str) {
        let labels = [self.informer.as_str(), handler];
        // A series that does not exist needs no removal.
        let _ = HANDLER_BACKLOG.remove_label_values(&labels);
        let _ = HANDLER_PANICS.remove_label_values(&labels);
    }

    fn spawn(&self, task: BoxFuture<'static, ()>, stop: StopToken) {
        self.tasks.spawn(async move {
            stop.unless_stopped(task).await;
        });
    }

    /// Starts to call the handlers. Returns `false` when it was started before.
    pub fn start(&self, stop: &StopToken) -> bool {
        let mut listeners = self.lock();
        if !matches!(listeners.state, Running::NotYet) {
            return false;
        }
        listeners.state = Running::Until(stop.clone());
        for listener in &mut listeners.all {
            if let Some(task) = listener.task.take() {
                self.spawn(task, stop.clone());
            }
        }
        true
    }

    /// Resolves when every handler has returned from its last call, after the stop.
    pub async fn end(&self) {
        let ended = {
            let mut listeners = self.lock();
            listeners.state = Running::Ended;
            std::mem::take(&mut listeners.all)
        };
        for listener in ended {
            self.remove_series(&listener.name);
        }
        self.tasks.join().await;
    }

    pub fn handlers(&self) -> Vec<HandlerStatus> {
        self.lock().all.iter().map(Listener::status).collect()
    }

    pub fn resync_changed(&self) -> EventListener {
        self.resync_changed.listen()
    }

    /// When, on the monotonic clock, the next resync of a handler is due.
    pub fn next_resync(&self) -> Option<Duration> {
        self.lock().all.iter().filter_map(|listener| Some(listener.resync.as_ref()?.next)).min()
    }

    /// Selects the handlers whose resync is due; returns whether there are any.
    /// Upstream: `shouldResync`.
    pub fn begin_resync(&self, now: Duration) -> bool {
        let mut any = false;
        for resync in self.lock().all.iter_mut().filter_map(|listener| listener.resync.as_mut()) {
            resync.syncing = resync.next <= now;
            if resync.syncing {
                resync.next = now + resync.period;
                any = true;
            }
        }
        any
    }
}

/// The task of one handler.
struct Delivery {
    name: String,
    panics: prometheus::IntCounter,
    handler: Box<dyn AnyHandler>,
    notifications: Receiver<Notification>,
    backlog: IntGauge,
    registration: Registration,
    clock: SharedClock,
}

impl Drop for Delivery {
    fn drop(&mut self) {
        // Handlers of one name share the gauge: subtract the part of this one.
        self.notifications.close();
        self.backlog.sub(self.notifications.len() as i64);
    }
}

impl Delivery {
    /// The span of the event, 0 when its object is not traced.
    fn traced(&self, event: &Event) -> u64 {
        let (object, name) = match event {
            Event::Add { object, .. } => (object, "add"),
            Event::Update { old, new } if Arc::ptr_eq(old, new) => (new, "resync"),
            Event::Update { new, .. } => (new, "update"),
            Event::Delete(deleted) => (deleted.object(), "delete"),
        };
        let handler = self.name.split(' ').next().unwrap_or_default();
        trace::handled(object.meta(), name, handler, self.notifications.len())
    }

    async fn run(mut self) {
        let mut in_a_row = 0_u32;
        while let Ok(notification) = self.notifications.recv().await {
            self.backlog.dec();
            if self.registration.is_removed() {
                return;
            }
            let event = match notification {
                Notification::Event(event) => event,
                Notification::Synced => {
                    self.registration.set_synced();
                    continue;
                }
            };
            let span = if trace::is_on() { self.traced(&event) } else { 0 };
            let handler = &mut self.handler;
            // The handler's state is its own business: it is called again with its next event.
            let call = AssertUnwindSafe(|| {
                let _entered = trace::enter(span);
                handler.handle(event);
            });
            if catch_unwind(call).is_err() {
                self.panics.inc();
                log::error!(
                    "event handler {}: panicked; it goes on with its next event",
                    self.name
                );
                self.clock.sleep(PAUSE_AFTER_PANIC).await;
            }
            in_a_row = in_a_row.wrapping_add(1);
            if in_a_row.is_multiple_of(BATCH) {
                yield_now().await;
            }
        }
    }
}
