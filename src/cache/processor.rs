//! Passes notifications to the handlers, each at its own pace. Upstream: `sharedProcessor`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use event_listener::EventListener;
use futures_lite::FutureExt;
use futures_lite::future::yield_now;
use parking_lot::{Mutex, MutexGuard};

use super::any::AnyObject;
use super::backlog::Backlog;
use super::handler::{Deleted, Registration};
use super::metrics::Count;
use super::source::BoxFuture;
use crate::clock::SharedClock;
use crate::task::TaskGroup;
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
    informer: Arc<str>,
}

pub struct Listeners {
    all: Vec<Listener>,
    state: State,
    synced: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    NotYet,
    Running,
    Ended,
}

struct Listener {
    inbox: Arc<Inbox>,
    registration: Registration,
    resync: Option<Resync>,
    /// Before the informer runs.
    task: Option<BoxFuture<'static, ()>>,
}

/// What a handler's task shares with the informer.
struct Inbox {
    handler: Box<str>,
    /// Unbounded, so that a slow handler delays no other; its length is a metric.
    notifications: Backlog<Notification>,
    panics: Count,
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
    pub panics: u64,
    /// It was called for all objects of its initial list.
    pub synced: bool,
}

impl Listener {
    fn status(&self) -> HandlerStatus {
        HandlerStatus {
            name: self.inbox.handler.to_string(),
            backlog: self.inbox.notifications.len(),
            panics: self.inbox.panics.get(),
            synced: self.registration.has_synced(),
        }
    }

    fn send(&self, notification: Notification) {
        self.inbox.notifications.push(notification);
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
    pub fn new(informer: Arc<str>, clock: SharedClock) -> Processor {
        let listeners = Listeners { all: Vec::new(), state: State::NotYet, synced: false };
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
        let inbox = Arc::new(Inbox {
            handler: name.into(),
            notifications: Backlog::default(),
            panics: Count::default(),
        });
        let resync = resync.filter(|period| !period.is_zero()).map(|period| {
            let period = period.max(MINIMUM_RESYNC);
            Resync { period, next: self.clock.monotonic() + period, syncing: false }
        });
        let mut listeners = self.lock();
        if listeners.state == State::Ended {
            log::warn!("{name} of {}: not added, the informer has ended", self.informer);
            return registration;
        }
        let delivery = Delivery {
            inbox: inbox.clone(),
            informer: self.informer.clone(),
            handler,
            registration: registration.clone(),
            clock: self.clock.clone(),
        };
        let mut listener =
            Listener { inbox, registration: registration.clone(), resync, task: None };
        for_each(&mut |object| {
            listener.send(Notification::Event(Event::Add { object, initial: true }));
        });
        if listeners.synced {
            listener.send(Notification::Synced);
        }
        let task = Box::pin(delivery.run());
        match listeners.state {
            State::Running => self.tasks.spawn_boxed(task),
            _ => listener.task = Some(task),
        }
        listeners.all.push(listener);
        drop(listeners);
        self.resync_changed.notify(usize::MAX);
        registration
    }

    /// Waiting notifications of the handler are dropped. Upstream: `RemoveEventHandler`.
    pub fn remove(&self, registration: &Registration) {
        let mut listeners = self.lock();
        let removed = |listener: &mut Listener| listener.registration.is(registration);
        for listener in listeners.all.extract_if(.., removed) {
            listener.inbox.notifications.close();
        }
    }

    /// Starts to call the handlers. Returns `false` when it was started before.
    pub fn start(&self) -> bool {
        let mut listeners = self.lock();
        if listeners.state != State::NotYet {
            return false;
        }
        listeners.state = State::Running;
        for listener in &mut listeners.all {
            if let Some(task) = listener.task.take() {
                self.tasks.spawn_boxed(task);
            }
        }
        true
    }

    /// Drops the notifications that wait. Resolves when every handler has returned from its last
    /// call.
    pub async fn end(&self) {
        let ended = {
            let mut listeners = self.lock();
            listeners.state = State::Ended;
            std::mem::take(&mut listeners.all)
        };
        ended.iter().for_each(|listener| listener.inbox.notifications.close());
        drop(ended);
        self.tasks.join().await;
    }

    /// Each handler. Handlers may have the same name.
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
    inbox: Arc<Inbox>,
    informer: Arc<str>,
    handler: Box<dyn AnyHandler>,
    registration: Registration,
    clock: SharedClock,
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
        let handler = self.inbox.handler.split(' ').next().unwrap_or_default();
        trace::handled(object.meta(), name, handler, self.inbox.notifications.len())
    }

    async fn run(mut self) {
        let mut in_a_row = 0_u32;
        while let Some(notification) = self.inbox.notifications.next().await {
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
                self.inbox.panics.add_one();
                log::error!(
                    "event handler {} of {}: panicked; it goes on with its next event",
                    self.inbox.handler,
                    self.informer
                );
                self.pause().await;
            }
            in_a_row = in_a_row.wrapping_add(1);
            if in_a_row.is_multiple_of(BATCH) {
                yield_now().await;
            }
        }
    }

    /// Boxed, as it is rare.
    fn pause(&self) -> BoxFuture<'_, ()> {
        let sleep = self.clock.sleep(PAUSE_AFTER_PANIC);
        Box::pin(sleep.or(self.inbox.notifications.closed()))
    }
}
