//! Passes notifications to the handlers, each at its own pace. Upstream: `sharedProcessor`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use futures_lite::FutureExt;
use futures_lite::future::yield_now;
use parking_lot::{Mutex, MutexGuard};

use super::any::AnyObject;
use super::backlog::Backlog;
use super::counts::Count;
use super::handler::{Deleted, Registration};
use super::source::BoxFuture;
use super::time_slice::TimeSlice;
use crate::clock::SharedClock;
use crate::objects::Istr;
use crate::task::{TaskGroup, panics};
use crate::trace::{self, Scope};

/// A shorter resync period is raised to this. Upstream: `minimumResyncPeriod`.
const MINIMUM_RESYNC: Duration = Duration::from_secs(1);

/// How long the next notification waits after a handler has panicked.
const PAUSE_AFTER_PANIC: Duration = Duration::from_secs(1);

/// A change for the handlers.
#[derive(Clone)]
pub enum Event {
    Add { object: Arc<dyn AnyObject>, initial: bool },
    Update { old: Arc<dyn AnyObject>, new: Arc<dyn AnyObject> },
    Delete(Deleted<dyn AnyObject>),
}

/// What waits for a handler.
#[derive(Clone)]
enum Notification {
    Event(Event),
    /// The first list is processed to its end.
    Synced,
}

/// A handler of objects of any kind.
pub trait AnyHandler: Send {
    fn handle(&mut self, event: Event);
}

/// The handlers of one informer. While [`Processor::lock`] is held, no handler is added and no
/// event is sent: the cache changes, and its events are sent, under one lock.
///
/// A handler has a task of its own while notifications wait for it.
pub struct Processor {
    listeners: Mutex<Listeners>,
    tasks: Arc<TaskGroup>,
}

/// The handlers of an informer, and what starting their tasks needs; locked by [`Processor::lock`].
pub struct Listeners {
    all: Vec<Listener>,
    state: State,
    synced: bool,
    tasks: Arc<TaskGroup>,
    clock: SharedClock,
    informer: Arc<str>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Notifications wait; no handler is called yet.
    NotYet,
    Running,
    Ended,
}

/// A registered handler, as the informer holds it.
struct Listener {
    inbox: Arc<Inbox>,
    /// Boxed, as few handlers have one.
    resync: Option<Box<Resync>>,
}

/// The part of a listener that its task and the informer share.
struct Inbox {
    /// The handler's name.
    handler: Istr,
    registration: Registration,
    /// Unbounded, so that a slow handler delays no other; its length is a metric.
    notifications: Backlog<Notification, Box<dyn AnyHandler>>,
    panics: Count,
}

/// The resyncs of a handler.
struct Resync {
    period: Duration,
    /// When the next one is due, on the monotonic clock.
    next: Duration,
    /// Whether the handler was due at the last resync.
    was_due: bool,
}

/// A handler as debug pages show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandlerStatus {
    /// Its name, which other handlers may have too.
    pub name: String,
    /// Notifications that wait for it.
    pub backlog: usize,
    /// How often it has panicked.
    pub panics: u64,
    /// Whether it was called for all objects of its initial list.
    pub synced: bool,
}

impl Listener {
    /// Returns the state of the handler for debug pages.
    fn status(&self) -> HandlerStatus {
        HandlerStatus {
            name: self.inbox.handler.to_string(),
            backlog: self.inbox.notifications.len(),
            panics: self.inbox.panics.get(),
            synced: self.inbox.registration.has_synced(),
        }
    }
}

impl Listeners {
    /// Sends the event of a change to all handlers.
    pub fn distribute(&mut self, event: Event) {
        self.send(Notification::Event(event), |_| true);
    }

    /// Sends the event of an unchanged object to the handlers whose resync was due last time.
    pub fn distribute_resync(&mut self, event: Event) {
        let is_due =
            |listener: &&Listener| listener.resync.as_ref().is_some_and(|resync| resync.was_due);
        self.send(Notification::Event(event), is_due);
    }

    /// Sends `notification` to each handler for which `is_receiver` is true. The last one gets the
    /// notification itself, the others copies.
    fn send(&mut self, notification: Notification, is_receiver: impl Fn(&&Listener) -> bool) {
        let mut receivers = self.all.iter().filter(is_receiver);
        let Some(mut listener) = receivers.next() else { return };
        for next in receivers {
            self.send_to(listener, notification.clone());
            listener = next;
        }
        self.send_to(listener, notification);
    }

    /// Queues `notification` for a handler, and starts its task if it has none.
    fn send_to(&self, listener: &Listener, notification: Notification) {
        listener.inbox.notifications.push(notification);
        self.start_handler(listener);
    }

    /// Starts the handler's task if it has none, a notification waits and the informer runs.
    fn start_handler(&self, listener: &Listener) {
        if self.state != State::Running {
            return;
        }
        if let Some(handler) = listener.inbox.notifications.take_reader() {
            let delivery = Delivery {
                inbox: listener.inbox.clone(),
                informer: self.informer.clone(),
                clock: self.clock.clone(),
            };
            self.tasks.spawn(delivery.run(handler));
        }
    }

    /// Sends, once, that the informer has its first list.
    pub fn set_synced(&mut self) {
        if !self.synced {
            self.synced = true;
            self.send(Notification::Synced, |_| true);
        }
    }
}

impl Processor {
    /// Makes the processor of an informer, without handlers.
    pub fn new(informer: Arc<str>, clock: SharedClock) -> Processor {
        let tasks = Arc::new(TaskGroup::new());
        let listeners = Listeners {
            all: Vec::new(),
            state: State::NotYet,
            synced: false,
            tasks: tasks.clone(),
            clock,
            informer,
        };
        Processor { listeners: Mutex::new(listeners), tasks }
    }

    pub fn lock(&self) -> MutexGuard<'_, Listeners> {
        self.listeners.lock()
    }

    /// Adds a handler, which first gets an `Add` for each object that `for_each` visits; no event
    /// is sent meanwhile. The next resync may be due earlier after the call.
    pub fn add(
        &self,
        name: &str,
        handler: Box<dyn AnyHandler>,
        resync: Option<Duration>,
        for_each: impl FnOnce(&mut dyn FnMut(Arc<dyn AnyObject>)),
    ) -> Registration {
        let registration = Registration::default();
        let mut listeners = self.lock();
        if listeners.state == State::Ended {
            log::warn!("{name} of {}: not added, the informer has ended", listeners.informer);
            return registration;
        }
        let inbox = Arc::new(Inbox {
            handler: Istr::new(name),
            registration: registration.clone(),
            notifications: Backlog::new(handler),
            panics: Count::default(),
        });
        let resync = resync.filter(|period| !period.is_zero()).map(|period| {
            let period = period.max(MINIMUM_RESYNC);
            let next = listeners.clock.monotonic() + period;
            Box::new(Resync { period, next, was_due: false })
        });
        for_each(&mut |object| {
            let event = Event::Add { object, initial: true };
            inbox.notifications.push(Notification::Event(event));
        });
        if listeners.synced {
            inbox.notifications.push(Notification::Synced);
        }
        let listener = Listener { inbox, resync };
        listeners.start_handler(&listener);
        listeners.all.reserve_exact(1);
        listeners.all.push(listener);
        registration
    }

    /// Removes a handler and drops its waiting notifications. Upstream: `RemoveEventHandler`.
    pub fn remove(&self, registration: &Registration) {
        let is_removed = |listener: &mut Listener| listener.inbox.registration.is(registration);
        // Handlers are dropped without the lock.
        let removed: Vec<Listener> = self.lock().all.extract_if(.., is_removed).collect();
        removed.iter().for_each(|listener| listener.inbox.notifications.close());
    }

    /// Starts to call the handlers. Returns `false` when it was started before.
    pub fn start(&self) -> bool {
        let mut listeners = self.lock();
        if listeners.state != State::NotYet {
            return false;
        }
        listeners.state = State::Running;
        listeners.all.iter().for_each(|listener| listeners.start_handler(listener));
        true
    }

    /// Drops all waiting notifications and handlers. Resolves when every handler has returned from
    /// its last call.
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

    /// Returns the status of each handler. Handlers may have the same name.
    pub fn handlers(&self) -> Vec<HandlerStatus> {
        self.lock().all.iter().map(Listener::status).collect()
    }

    /// Returns when, on the monotonic clock, the next resync of a handler is due.
    pub fn next_resync(&self) -> Option<Duration> {
        self.lock().all.iter().filter_map(|listener| Some(listener.resync.as_ref()?.next)).min()
    }

    /// Selects the handlers whose resync is due; returns whether there are any.
    /// Upstream: `shouldResync`.
    pub fn begin_resync(&self, now: Duration) -> bool {
        let mut any = false;
        for resync in self.lock().all.iter_mut().filter_map(|listener| listener.resync.as_mut()) {
            resync.was_due = resync.next <= now;
            if resync.was_due {
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
    clock: SharedClock,
}

impl Delivery {
    /// Traces that the handler gets `event`, and returns the number of the new span; 0 when the
    /// object is not traced.
    fn begin_span(&self, event: &Event) -> u64 {
        let (object, name) = match event {
            Event::Add { object, .. } => (object, "add"),
            Event::Update { old, new } if Arc::ptr_eq(old, new) => (new, "resync"),
            Event::Update { new, .. } => (new, "update"),
            Event::Delete(deleted) => (deleted.object(), "delete"),
        };
        trace::handled(object.meta(), name, &self.inbox.handler, || self.inbox.notifications.len())
    }

    /// Calls the handler until no notification waits. `reader`: the handler, which the queue takes
    /// back then.
    async fn run(self, mut reader: Box<dyn AnyHandler>) {
        let mut slice = TimeSlice::new(self.clock.clone());
        while let Some((notification, mut handler)) = self.inbox.notifications.next(reader) {
            let event = match notification {
                Notification::Event(event) => event,
                Notification::Synced => {
                    self.inbox.registration.set_synced();
                    reader = handler;
                    continue;
                }
            };
            let span = self.begin_span(&event);
            let began = slice.begin_item();
            // The handler is called with its next event even after a panic: it must cope with its
            // own state.
            let call = AssertUnwindSafe(|| {
                let _entered = trace::enter(Scope { span, sync: 0 });
                panics::at(|| format!("handler {} of {}", self.inbox.handler, self.informer));
                handler.handle(event);
            });
            if catch_unwind(call).is_err() {
                self.inbox.panics.add_one();
                log::error!(
                    "event handler {} of {}: panicked; it continues with its next event",
                    self.inbox.handler,
                    self.informer
                );
                self.pause().await;
            }
            reader = handler;
            if slice.end_item(began) {
                yield_now().await;
            }
        }
    }

    /// Waits for a second after a panic, or until the handler is removed. Boxed, as it is rare.
    fn pause(&self) -> BoxFuture<'_, ()> {
        let sleep = self.clock.sleep(PAUSE_AFTER_PANIC);
        Box::pin(sleep.or(self.inbox.notifications.closed()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use async_channel::Sender;
    use futures_lite::future::block_on;

    use super::*;
    use crate::clock::SystemClock;
    use crate::objects::Pod;

    struct Recording {
        names: Sender<String>,
        then: Box<dyn Fn(&str) + Send>,
    }

    impl AnyHandler for Recording {
        fn handle(&mut self, event: Event) {
            let Event::Add { object, .. } = event else { panic!("only additions are sent") };
            self.names.try_send(object.meta().name.to_string()).expect("a receiver");
            (self.then)(&object.meta().name);
        }
    }

    #[test]
    fn events_come_in_their_order_until_the_handler_is_removed() {
        let processor = Arc::new(Processor::new("pods".into(), SystemClock::shared()));
        let registration: Arc<OnceLock<Registration>> = Arc::default();
        let (its, known) = (processor.clone(), registration.clone());
        let remove = move |name: &str| {
            if name == "b" {
                its.remove(known.get().expect("it is added"));
            }
        };
        let add = |name: &str, then: Box<dyn Fn(&str) + Send>| {
            let (names, seen) = async_channel::unbounded();
            let handler = Box::new(Recording { names, then });
            (processor.add(name, handler, None, |_| {}), seen)
        };
        let (removed, seen_by_removed) = add("removed", Box::new(remove));
        registration.set(removed).unwrap_or_else(|_| panic!("set once"));
        let (_, seen_by_other) = add("other", Box::new(|_| {}));
        processor.start();
        {
            let mut listeners = processor.lock();
            for name in ["a", "b", "c"] {
                let mut pod = Pod::default();
                pod.meta.name = name.into();
                listeners.distribute(Event::Add { object: Arc::new(pod), initial: false });
            }
        }
        block_on(async {
            for name in ["a", "b", "c"] {
                assert_eq!(seen_by_other.recv().await.unwrap(), name);
            }
            for name in ["a", "b"] {
                assert_eq!(seen_by_removed.recv().await.unwrap(), name);
            }
            processor.end().await;
        });
        assert!(seen_by_removed.try_recv().is_err(), "c came after its removal");
    }
}
