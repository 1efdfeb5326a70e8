//! The queue of events and the task that sends them. Upstream: `tools/record/event.go`.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use async_channel::{Receiver, Sender};
use futures_lite::FutureExt;
use lru::LruCache;

use super::correlator::{Correlated, Correlator, Now};
use super::event::{Event, EventType, ObjectReference};
use super::writer::{ClientWriter, EventWriter, WriteError};
use super::{EventSink, Recorder};
use crate::client::Client;
use crate::clock::SharedClock;
use crate::objects::{ArcStr, Timestamp};
use crate::task::{self, StopToken, Task};

/// The most events that wait to be sent; further ones are dropped.
const MAX_QUEUED_EVENTS: usize = 1000;
/// The attempts to send an event, and the wait between two of them. Upstream:
/// `maxTriesPerEvent`, `defaultSleepDuration`.
const MAX_TRIES_PER_EVENT: u32 = 12;
const SLEEP_BETWEEN_TRIES: Duration = Duration::from_secs(10);
/// How long a shutdown waits for queued events.
const SHUTDOWN_BOUND: Duration = Duration::from_secs(2);

/// The destination of recorded events; one for each controller. Upstream: `EventBroadcaster`.
///
/// # What holds
///
/// - Recording never waits and never fails. At most 1,000 events wait; further ones are dropped and
///   logged.
/// - Events are sent one at a time, in the order in which they were recorded.
/// - A repeated event updates the count of the one on the server; repetitions that wait behind
///   other writes are sent as one. From the tenth message on, events that differ only in their message
///   become one combined event, until ten minutes pass without one.
/// - One component sends 25 events of a type about an object at once, and then one every five
///   minutes; further ones are dropped without a log line.
/// - A write that may succeed later has 12 attempts, up to 10 seconds apart; the events behind it
///   wait. A write that the server refuses is logged and dropped.
///
/// # What is not promised
///
/// - That an event arrives. No controller may depend on it.
/// - That counts are exact: the correlator knows the last 4,096 series, and forgets them with the
///   process.
///
/// When it is dropped without [`shutdown`](EventBroadcaster::shutdown), events are still sent until
/// its recorders are dropped and the queue is empty.
pub struct EventBroadcaster {
    queue: Arc<Queue>,
    /// Asks the task to try each queued event once without a wait, and to end.
    stop: StopToken,
    /// Ends the task at once.
    abort: StopToken,
    task: Mutex<Option<Task<()>>>,
}

/// The way of events from recorders to the broadcaster's task.
struct Queue {
    sender: Sender<Box<Event>>,
    /// How many events wait here and in the task.
    waiting: Arc<AtomicUsize>,
    clock: SharedClock,
}

/// Returns the number in the name of an event that is recorded at `now`: about its nanoseconds, and
/// in this process each number once, also where many events have the same microsecond.
fn name_number(now: Timestamp) -> i64 {
    static EVENTS: AtomicI64 = AtomicI64::new(0);
    now.as_micros().saturating_mul(1000).saturating_add(EVENTS.fetch_add(1, Ordering::Relaxed))
}

impl EventBroadcaster {
    /// Starts the task that sends events with `client`, under its rate limit.
    pub fn new(client: Client, clock: SharedClock) -> EventBroadcaster {
        EventBroadcaster::to_writer(ClientWriter(client), clock)
    }

    /// Makes a broadcaster whose task sends the events to `writer`.
    fn to_writer(writer: impl EventWriter, clock: SharedClock) -> EventBroadcaster {
        // Unbounded, since a bounded queue allocates all its places; `record` keeps the bound.
        let (sender, receiver) = async_channel::unbounded();
        let waiting = Arc::default();
        let (stop, abort) = (StopToken::new(), StopToken::new());
        let send = EventSender::new(writer, clock.clone(), stop.clone(), Arc::clone(&waiting));
        let queue = Arc::new(Queue { sender, waiting, clock });
        let task = {
            let abort = abort.clone();
            task::spawn(async move {
                abort.unless_stopped(send.run(receiver)).await;
            })
        };
        EventBroadcaster { queue, stop, abort, task: Mutex::new(Some(task)) }
    }

    /// Makes a recorder whose events name `component` as their source.
    pub fn recorder(&self, component: &str) -> Recorder {
        self.recorder_on(component, "")
    }

    /// Makes a recorder whose events name `component` on the node `host` as their source.
    pub fn recorder_on(&self, component: &str, host: &str) -> Recorder {
        let queue = self.queue.clone();
        let (component, host) = (component.into(), host.into());
        Recorder::to_sink(Arc::new(QueueSink { queue, component, host }))
    }

    /// Tries each queued event once more, for two seconds in all, and ends the task. Events that
    /// are recorded later are dropped. A second call returns at once. Dropped half-way, it leaves
    /// the task to send what is queued, each event once.
    pub async fn shutdown(&self) {
        self.queue.sender.close();
        self.stop.stop();
        let task = self.task.lock().take();
        let Some(mut task) = task else { return };
        let late = async {
            self.queue.clock.sleep(SHUTDOWN_BOUND).await;
            self.abort.stop();
            false
        };
        let ended = async {
            (&mut task).await;
            true
        };
        if !ended.or(late).await {
            log::warn!("events: not all were sent before the shutdown");
            task.await;
        }
    }
}

/// The sink of one component: it names the source of each event and queues it.
struct QueueSink {
    queue: Arc<Queue>,
    component: ArcStr,
    /// Empty: the component has no node.
    host: ArcStr,
}

impl EventSink for QueueSink {
    /// Queues an event for the broadcaster's task; drops it when too many wait or after the
    /// shutdown.
    fn record(
        &self,
        about: &ObjectReference,
        event_type: EventType,
        reason: &str,
        message: String,
        annotations: BTreeMap<String, String>,
    ) {
        log::debug!(
            "Event occurred: {} {}/{}: {event_type:?} {reason}: {message}",
            about.kind,
            about.namespace,
            about.name
        );
        let queue = &self.queue;
        if queue.waiting.load(Ordering::Relaxed) >= MAX_QUEUED_EVENTS {
            log::error!(
                "events: too many queued, dropped {reason} about {} {}/{}",
                about.kind,
                about.namespace,
                about.name
            );
            return;
        }
        let now = queue.clock.now();
        let nanos = name_number(now);
        let event =
            Event::new(self.component.clone(), about, event_type, reason, message, now, nanos)
                .on_host(self.host.clone())
                .annotated(annotations);
        queue.waiting.fetch_add(1, Ordering::Relaxed);
        if queue.sender.try_send(Box::new(event)).is_err() {
            queue.waiting.fetch_sub(1, Ordering::Relaxed);
            log::debug!("events: shut down, dropped {reason}");
        }
    }
}

/// The task that sends.
struct EventSender<W> {
    writer: W,
    clock: SharedClock,
    correlator: Correlator,
    /// The next write of each series, the oldest first.
    writes: LruCache<u64, Correlated>,
    /// How many events are in the queue and in `writes`.
    waiting: Arc<AtomicUsize>,
    stop: StopToken,
}

impl<W: EventWriter> EventSender<W> {
    /// Makes the sender of a broadcaster. `waiting`: the number of queued events, which it counts
    /// down.
    fn new(
        writer: W,
        clock: SharedClock,
        stop: StopToken,
        waiting: Arc<AtomicUsize>,
    ) -> EventSender<W> {
        EventSender {
            writer,
            clock,
            correlator: Correlator::new(),
            writes: LruCache::unbounded(),
            waiting,
            stop,
        }
    }

    /// Sends until the queue is closed and empty.
    async fn run(mut self, queue: Receiver<Box<Event>>) {
        loop {
            while let Ok(event) = queue.try_recv() {
                self.add_write(*event);
            }
            if let Some((_, Correlated { event, is_repetition, .. })) = self.writes.pop_lru() {
                self.waiting.fetch_sub(1, Ordering::Relaxed);
                self.send(&event, is_repetition).await;
            } else {
                let Ok(event) = queue.recv().await else { return };
                self.add_write(*event);
            }
        }
    }

    /// Adds the event's write, unless a write of its series waits, which then writes this event
    /// too. Events that the correlator drops are not written.
    fn add_write(&mut self, event: Event) {
        let wall = self.clock.now();
        let now = Now { wall, monotonic: self.clock.monotonic(), nanos: name_number(wall) };
        let Some(new) = self.correlator.correlate(event, now) else {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return;
        };
        if let Some(waiting) = self.writes.peek_mut(&new.series) {
            waiting.event.repeat(new.event);
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        } else {
            self.writes.put(new.series, new);
        }
    }

    /// Sends an event, and retries until the server takes or refuses it, or too many attempts have
    /// failed.
    async fn send(&self, event: &Event, is_repetition: bool) {
        for tries in 1..=MAX_TRIES_PER_EVENT {
            let Err(error) = self.try_send(event, is_repetition).await else { return };
            log::error!("events: write failed, attempt {tries}: {error}");
            // The first wait is random, so that retries of several managers spread.
            let wait = match tries {
                1 => SLEEP_BETWEEN_TRIES.mul_f64(fastrand::f64()),
                MAX_TRIES_PER_EVENT => break,
                _ => SLEEP_BETWEEN_TRIES,
            };
            if self.stop.unless_stopped(self.clock.sleep(wait)).await.is_none() {
                break;
            }
        }
        log::error!(
            "events: given up: {} about {} {}/{}: {}",
            event.reason,
            event.involved_object.kind,
            event.involved_object.namespace,
            event.involved_object.name,
            event.message
        );
    }

    /// Sends an event once, as a patch of the stored one if `is_repetition`, and logs a refusal.
    /// `Err`: a retry may succeed.
    async fn try_send(&self, event: &Event, is_repetition: bool) -> Result<(), String> {
        let mut result = if is_repetition { self.writer.patch(event).await } else { Ok(()) };
        // The server has expired the event: the series starts again there.
        if !is_repetition || matches!(result, Err(WriteError::NotFound(_))) {
            result = self.writer.create(event).await;
        }
        match result {
            Ok(()) => Ok(()),
            Err(WriteError::Unreachable(message)) => Err(message),
            Err(WriteError::Rejected { message, expected: true }) => {
                log::debug!("events: rejected {}: {message}", event.metadata.name);
                Ok(())
            }
            Err(WriteError::Rejected { message, .. } | WriteError::NotFound(message)) => {
                log::error!("events: rejected {}: {message}", event.metadata.name);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_lite::future::{block_on, poll_once};

    use super::super::writer::Write;
    use super::*;
    use crate::clock::FakeClock;

    #[derive(Default)]
    struct Server {
        /// `create` or `patch`, the name without its number, the count, the message.
        writes: Mutex<Vec<String>>,
        /// The errors of the next writes.
        errors: Mutex<Vec<WriteError>>,
        silent: Mutex<bool>,
    }

    struct Fake(Arc<Server>);

    impl Fake {
        fn write(&self, verb: &str, event: &Event) -> Write<'_> {
            let name = event.metadata.name.split('.').next().unwrap_or_default();
            let line = format!("{verb} {name} {} {}", event.count, event.message);
            Box::pin(async move {
                if *self.0.silent.lock() {
                    std::future::pending::<()>().await;
                }
                self.0.writes.lock().push(line);
                self.0.errors.lock().pop().map_or(Ok(()), Err)
            })
        }
    }

    impl EventWriter for Fake {
        fn create<'a>(&'a self, event: &'a Event) -> Write<'a> {
            self.write("create", event)
        }
        fn patch<'a>(&'a self, event: &'a Event) -> Write<'a> {
            self.write("patch", event)
        }
    }

    fn about(name: &str) -> ObjectReference {
        ObjectReference {
            api_version: "apps/v1".into(),
            kind: "ReplicaSet".into(),
            namespace: "ns".into(),
            name: name.into(),
            uid: "u".into(),
            resource_version: 0,
            field_path: "".into(),
        }
    }

    fn record(recorder: &Recorder, message: &str) {
        recorder.event(&about("rs"), EventType::Normal, "SuccessfulCreate", message);
    }

    fn unreachable() -> WriteError {
        WriteError::Unreachable("connection refused".into())
    }

    /// The sending task, polled by hand.
    fn sender(server: &Arc<Server>) -> (Arc<FakeClock>, EventSender<Fake>) {
        let clock = FakeClock::new(Timestamp::from_secs(1000));
        let writer = Fake(server.clone());
        let send = EventSender::new(writer, clock.clone(), StopToken::new(), Arc::default());
        (clock, send)
    }

    fn event(message: &str) -> Box<Event> {
        let now = Timestamp::from_secs(1000);
        let about = about("rs");
        Box::new(Event::new("c".into(), &about, EventType::Normal, "R", message.into(), now, 1))
    }

    #[test]
    fn queued_events_are_sent_before_the_shutdown() {
        let server = Arc::new(Server::default());
        let clock = FakeClock::new(Timestamp::from_secs(1000));
        let broadcaster = EventBroadcaster::to_writer(Fake(server.clone()), clock);
        let recorder = broadcaster.recorder("replicaset-controller");
        record(&recorder, "one");
        record(&recorder, "two");
        record(&recorder, "three");
        block_on(broadcaster.shutdown());
        record(&recorder, "too late");
        let all = ["create rs 1 one", "create rs 1 two", "create rs 1 three"];
        assert_eq!(*server.writes.lock(), all);
    }

    #[test]
    fn shutdown_does_not_wait_for_a_silent_server() {
        let server = Arc::new(Server { silent: Mutex::new(true), ..Server::default() });
        let clock = FakeClock::new(Timestamp::from_secs(1000));
        let broadcaster = EventBroadcaster::to_writer(Fake(server), clock.clone());
        record(&broadcaster.recorder("c"), "one");
        let mut shutdown = Box::pin(broadcaster.shutdown());
        assert!(block_on(poll_once(&mut shutdown)).is_none());
        clock.advance(SHUTDOWN_BOUND);
        block_on(shutdown);
    }

    #[test]
    fn errors_are_retried_dropped_or_answered_with_a_new_event() {
        let rejected = || WriteError::Rejected { message: "no".into(), expected: false };
        let gone = || WriteError::NotFound("gone".into());
        let table = [
            ("rejected: dropped", vec![rejected()], vec!["create rs 1 a", "patch rs 2 a"]),
            (
                "unreachable: again",
                vec![unreachable(), unreachable()],
                vec!["create rs 1 a", "create rs 1 a", "create rs 1 a", "patch rs 2 a"],
            ),
            (
                "expired: created again with its count, twice",
                vec![gone(), unreachable(), gone(), rejected()],
                vec![
                    "create rs 1 a",
                    "patch rs 2 a",
                    "create rs 2 a",
                    "patch rs 2 a",
                    "create rs 2 a",
                ],
            ),
        ];
        for (name, errors, expect) in table {
            let server = Arc::new(Server { errors: Mutex::new(errors), ..Server::default() });
            let (clock, send) = sender(&server);
            let (queue, receiver) = async_channel::unbounded();
            queue.try_send(event("a")).unwrap();
            let mut run = Box::pin(send.run(receiver));
            assert!(block_on(poll_once(&mut run)).is_none(), "{name}");
            while clock.sleepers() > 0 {
                clock.advance(SLEEP_BETWEEN_TRIES);
                assert!(block_on(poll_once(&mut run)).is_none(), "{name}");
            }
            queue.try_send(event("a")).unwrap();
            queue.close();
            while block_on(poll_once(&mut run)).is_none() {
                assert_eq!(clock.sleepers(), 1, "{name}");
                clock.advance(SLEEP_BETWEEN_TRIES);
            }
            assert_eq!(*server.writes.lock(), expect, "{name}");
        }
    }

    #[test]
    fn repetitions_that_wait_are_sent_as_one() {
        let errors = Mutex::new(vec![unreachable()]);
        let server = Arc::new(Server { errors, ..Server::default() });
        let (clock, send) = sender(&server);
        let waiting = send.waiting.clone();
        let (queue, receiver) = async_channel::unbounded();
        let record = |messages: &[&str]| {
            waiting.fetch_add(messages.len(), Ordering::Relaxed);
            messages.iter().for_each(|message| queue.try_send(event(message)).unwrap());
        };
        record(&["a"]);
        let mut run = Box::pin(send.run(receiver));
        assert!(block_on(poll_once(&mut run)).is_none(), "the first attempt has failed");
        record(&["b", "a", "c", "b", "a", "b"]);
        clock.advance(SLEEP_BETWEEN_TRIES);
        assert!(block_on(poll_once(&mut run)).is_none());
        let expect =
            ["create rs 1 a", "create rs 1 a", "create rs 3 b", "patch rs 3 a", "create rs 1 c"];
        assert_eq!(*server.writes.lock(), expect);
        assert_eq!(waiting.load(Ordering::Relaxed), 0);
        // From the tenth message on they are one series, and from the 26th event on dropped.
        let messages: Vec<String> = (0..30).map(|i| format!("{i}")).collect();
        record(&messages.iter().map(String::as_str).collect::<Vec<_>>());
        queue.close();
        assert!(block_on(poll_once(&mut run)).is_some());
        let writes = server.writes.lock();
        let combined = "create rs 12 (combined from similar events): 17";
        assert_eq!((writes.len(), writes.last().map(String::as_str)), (12, Some(combined)));
        assert_eq!(waiting.load(Ordering::Relaxed), 0, "each event has left its place");
    }

    #[test]
    fn event_is_given_up_after_twelve_attempts_or_at_the_shutdown() {
        for stopped in [false, true] {
            let errors = Mutex::new((0..100).map(|_| unreachable()).collect());
            let server = Arc::new(Server { errors, ..Server::default() });
            let (clock, send) = sender(&server);
            if stopped {
                send.stop.stop();
            }
            let (queue, receiver) = async_channel::unbounded();
            queue.try_send(event("a")).unwrap();
            queue.close();
            let mut run = Box::pin(send.run(receiver));
            while block_on(poll_once(&mut run)).is_none() {
                clock.advance(SLEEP_BETWEEN_TRIES);
            }
            assert_eq!(server.writes.lock().len(), if stopped { 1 } else { 12 });
        }
    }

    /// A recorder with its queue, which is never emptied.
    fn queued() -> (Recorder, Receiver<Box<Event>>) {
        let clock = FakeClock::new(Timestamp::from_secs(1000));
        let (sender, receiver) = async_channel::unbounded();
        let waiting = Arc::default();
        let queue = Arc::new(Queue { sender, waiting, clock });
        let (component, host) = ("c".into(), ArcStr::new());
        (Recorder::to_sink(Arc::new(QueueSink { queue, component, host })), receiver)
    }

    #[test]
    fn event_keeps_its_annotations() {
        let (recorder, receiver) = queued();
        let annotations = BTreeMap::from([("a".to_owned(), "b".to_owned())]);
        recorder.annotated_event(&about("rs"), EventType::Normal, "R", "x", annotations.clone());
        record(&recorder, "x");
        let next = || receiver.try_recv().expect("an event").metadata.annotations;
        assert_eq!((next(), next()), (annotations, BTreeMap::new()));
    }

    #[test]
    fn full_queue_drops_events() {
        let (recorder, receiver) = queued();
        for _ in 0..MAX_QUEUED_EVENTS + 5 {
            record(&recorder, "x");
        }
        assert_eq!(receiver.len(), MAX_QUEUED_EVENTS);
        let names: std::collections::HashSet<String> =
            std::iter::from_fn(|| receiver.try_recv().ok()).map(|e| e.metadata.name).collect();
        assert_eq!(names.len(), MAX_QUEUED_EVENTS, "one microsecond, different names");
    }
}
