//! Hands what happens to the handlers, each at its own pace. Upstream: `sharedProcessor`.

use parking_lot::{Mutex, MutexGuard};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use async_channel::{Receiver, Sender};
use event_listener::{Event, EventListener};
use futures_lite::future::yield_now;
use prometheus::IntGauge;

use super::handler::{Deleted, EventHandler, Registration};
use super::metrics::{HANDLER_BACKLOG, HANDLER_PANICS};
use super::source::BoxFuture;
use crate::clock::SharedClock;
use crate::task::{StopToken, TaskGroup};

/// A shorter resync period is raised to this. Upstream: `minimumResyncPeriod`.
const MINIMUM_RESYNC: Duration = Duration::from_secs(1);

/// After a handler panicked, its next notification waits this long.
const PAUSE_AFTER_PANIC: Duration = Duration::from_secs(1);

/// Notifications in a row before others get their turn on the thread.
const BATCH: u32 = 64;

pub enum Notification<T> {
    Add {
        object: Arc<T>,
        initial: bool,
    },
    Update {
        old: Arc<T>,
        new: Arc<T>,
    },
    Delete(Deleted<T>),
    /// The first list is over.
    Synced,
}

impl<T> Clone for Notification<T> {
    fn clone(&self) -> Self {
        match self {
            Notification::Add { object, initial } => {
                Notification::Add { object: object.clone(), initial: *initial }
            }
            Notification::Update { old, new } => {
                Notification::Update { old: old.clone(), new: new.clone() }
            }
            Notification::Delete(deleted) => Notification::Delete(deleted.clone()),
            Notification::Synced => Notification::Synced,
        }
    }
}

/// The handlers of one informer. While [`Processor::lock`] is held no handler is added and nothing
/// is told, so the cache and what the handlers were told change as one.
pub struct Processor<T> {
    listeners: Mutex<Listeners<T>>,
    /// A handler with a resync period came.
    resync_changed: Event,
    tasks: TaskGroup,
    clock: SharedClock,
    informer: String,
}

pub struct Listeners<T> {
    all: Vec<Listener<T>>,
    state: Running,
    synced: bool,
}

enum Running {
    NotYet,
    Until(StopToken),
    Ended,
}

struct Listener<T> {
    /// Unbounded, so that a slow handler holds up no other; its length is a metric.
    notifications: Sender<Notification<T>>,
    backlog: IntGauge,
    registration: Registration,
    resync: Option<Resync>,
    /// Before the informer runs.
    task: Option<BoxFuture<'static, ()>>,
}

struct Resync {
    period: Duration,
    next: Duration,
    /// What the resync under way hands again is for this handler.
    syncing: bool,
}

impl<T> Listener<T> {
    fn tell(&self, notification: Notification<T>) {
        if self.notifications.try_send(notification).is_ok() {
            self.backlog.inc();
        }
    }
}

impl<T> Listeners<T> {
    /// `sync`: nothing changed; only those hear of it who asked for this resync.
    pub fn distribute(&mut self, notification: Notification<T>, sync: bool) {
        let mut told = self.all.iter().filter(|listener| {
            !sync || listener.resync.as_ref().is_some_and(|resync| resync.syncing)
        });
        let Some(mut listener) = told.next() else { return };
        for next in told {
            listener.tell(notification.clone());
            listener = next;
        }
        listener.tell(notification);
    }

    pub fn set_synced(&mut self) {
        if !self.synced {
            self.synced = true;
            self.distribute(Notification::Synced, false);
        }
    }
}

impl<T: Send + Sync + 'static> Processor<T> {
    pub fn new(informer: String, clock: SharedClock) -> Processor<T> {
        let listeners = Listeners { all: Vec::new(), state: Running::NotYet, synced: false };
        Processor {
            listeners: Mutex::new(listeners),
            resync_changed: Event::new(),
            tasks: TaskGroup::new(),
            clock,
            informer,
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, Listeners<T>> {
        self.listeners.lock()
    }

    /// `current` is asked for the objects there are, at a moment when nothing else is told.
    pub fn add(
        &self,
        name: &str,
        handler: impl EventHandler<T>,
        resync: Option<Duration>,
        current: impl FnOnce() -> Vec<Arc<T>>,
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
            notifications,
            backlog,
            registration: registration.clone(),
            resync,
            task: None,
        };
        for object in current() {
            listener.tell(Notification::Add { object, initial: true });
        }
        if listeners.synced {
            listener.tell(Notification::Synced);
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

    /// What waits for the handler is dropped. Upstream: `RemoveEventHandler`.
    pub fn remove(&self, registration: &Registration) {
        registration.set_removed();
        self.lock().all.retain(|listener| !listener.registration.is(registration));
    }

    fn spawn(&self, task: BoxFuture<'static, ()>, stop: StopToken) {
        self.tasks.spawn(async move {
            stop.unless_stopped(task).await;
        });
    }

    /// From now on handlers are called. `false`: it was started before.
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
        drop(ended);
        self.tasks.join().await;
    }

    pub fn resync_changed(&self) -> EventListener {
        self.resync_changed.listen()
    }

    /// When, on the monotonic clock, the next handler wants a resync.
    pub fn next_resync(&self) -> Option<Duration> {
        self.lock().all.iter().filter_map(|listener| Some(listener.resync.as_ref()?.next)).min()
    }

    /// Readies the handlers whose time has come; whether there are any. Upstream: `shouldResync`.
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

/// One handler, its notifications, and the task that brings them together.
struct Delivery<T, H> {
    name: String,
    panics: prometheus::IntCounter,
    handler: H,
    notifications: Receiver<Notification<T>>,
    backlog: IntGauge,
    registration: Registration,
    clock: SharedClock,
}

impl<T, H> Drop for Delivery<T, H> {
    fn drop(&mut self) {
        // Handlers of one name share the gauge: take away this one's part alone.
        self.notifications.close();
        self.backlog.sub(self.notifications.len() as i64);
    }
}

impl<T: Send + Sync + 'static, H: EventHandler<T>> Delivery<T, H> {
    async fn run(mut self) {
        let mut in_a_row = 0_u32;
        while let Ok(notification) = self.notifications.recv().await {
            self.backlog.dec();
            if self.registration.is_removed() {
                return;
            }
            if let Notification::Synced = notification {
                self.registration.set_synced();
                continue;
            }
            let handler = &mut self.handler;
            // What the handler left half done is its own: it is called again all the same.
            let done = catch_unwind(AssertUnwindSafe(|| match &notification {
                Notification::Add { object, initial } => handler.on_add(object, *initial),
                Notification::Update { old, new } => handler.on_update(old, new),
                Notification::Delete(deleted) => handler.on_delete(deleted),
                Notification::Synced => {}
            }));
            if done.is_err() {
                self.panics.inc();
                log::error!("event handler {}: panicked; its next event is handed on", self.name);
                self.clock.sleep(PAUSE_AFTER_PANIC).await;
            }
            in_a_row = in_a_row.wrapping_add(1);
            if in_a_row.is_multiple_of(BATCH) {
                yield_now().await;
            }
        }
    }
}
