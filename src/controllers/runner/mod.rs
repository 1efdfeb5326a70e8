//! What all controllers share: queues, workers, retries, event mapping.
//! Upstream: the `Run`, `worker` and `processNextWorkItem` of each controller.

pub mod batch;
mod context;
mod error;
pub mod keys;
mod queue;

pub use context::{ClientBuilder, ControllerContext, ControllerContextParts};
pub use error::{Error, Next, SyncResult};
pub use queue::Queue;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::cache::{BoxFuture, Deleted, EventHandler, Registration, SharedIndexInformer};
use crate::clock::SharedClock;
use crate::objects::Object;
use crate::task::{StopToken, TaskGroup};
use crate::workqueue::Key;
use queue::{BoxSync, ControllerClock, caught, log_job};

/// One event of an informer, as mappers see it. A delete-and-recreate that the watch missed
/// (`on_update` with another uid) is told as `Deleted` and then `Added`.
pub enum Change<'a, T> {
    Added {
        new: &'a Arc<T>,
        initial: bool,
    },
    Updated {
        old: &'a Arc<T>,
        new: &'a Arc<T>,
    },
    /// The periodic resync: nothing changed.
    Resync {
        object: &'a Arc<T>,
    },
    Deleted(&'a Deleted<T>),
}

impl<T> Change<'_, T> {
    /// The object as it is now, or was last.
    pub fn object(&self) -> &Arc<T> {
        match self {
            Change::Added { new, .. } | Change::Updated { new, .. } => new,
            Change::Resync { object } => object,
            Change::Deleted(deleted) => deleted.object(),
        }
    }
}

/// From a change to the keys it wakes. Runs on the informer's handler task: no waiting, no I/O.
pub trait Mapper<T, K>: Send + 'static {
    fn map(&mut self, change: Change<'_, T>, wake: &Queue<K>);
}

impl<T, K, F: FnMut(Change<'_, T>, &Queue<K>) + Send + 'static> Mapper<T, K> for F {
    fn map(&mut self, change: Change<'_, T>, wake: &Queue<K>) {
        self(change, wake)
    }
}

/// Hands an informer's events to a mapper.
struct Mapped<M, K> {
    mapper: M,
    queue: Queue<K>,
}

impl<T: Object, K: Key, M: Mapper<T, K>> EventHandler<T> for Mapped<M, K> {
    fn on_add(&mut self, object: &Arc<T>, initial: bool) {
        self.mapper.map(Change::Added { new: object, initial }, &self.queue);
    }

    fn on_update(&mut self, old: &Arc<T>, new: &Arc<T>) {
        if Arc::ptr_eq(old, new) {
            return self.mapper.map(Change::Resync { object: new }, &self.queue);
        }
        if old.meta().uid != new.meta().uid {
            let deleted = Deleted::FinalStateUnknown(old.clone());
            self.mapper.map(Change::Deleted(&deleted), &self.queue);
            return self.mapper.map(Change::Added { new, initial: false }, &self.queue);
        }
        self.mapper.map(Change::Updated { old, new }, &self.queue);
    }

    fn on_delete(&mut self, object: &Deleted<T>) {
        self.mapper.map(Change::Deleted(object), &self.queue);
    }
}

/// Whether a controller works. Cheap to clone.
#[derive(Clone)]
pub struct Health {
    name: &'static str,
    running: Arc<AtomicBool>,
}

impl Health {
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// From the time its caches are synced until it has ended.
    pub fn is_running(&self) -> bool {
        self.running.load(Ordering::SeqCst)
    }
}

type Wait = BoxFuture<'static, ()>;
type Start = Box<dyn FnOnce(&TaskGroup, &StopToken) + Send>;

/// A controller: what it watches, its queues, its syncs.
pub struct Controller {
    clock: ControllerClock,
    health: Health,
    /// The caches that must be synced before the work starts.
    waits: Vec<Wait>,
    starts: Vec<Start>,
    queues: ShutDown,
    debug: Option<DebugHandler>,
}

/// What is asked of a controller below `/debug/controllers/NAME`.
pub struct DebugRequest<'a> {
    /// Without the part that names the controller: `/graph`.
    pub path: &'a str,
    pub query: Vec<(&'a str, &'a str)>,
}

pub struct DebugAnswer {
    pub content_type: &'static str,
    pub body: String,
}

/// `None`: there is no such page. Upstream: `controller.Debuggable`.
pub type DebugHandler = Arc<dyn Fn(&DebugRequest<'_>) -> Option<DebugAnswer> + Send + Sync>;

/// Shuts the queues down when dropped: no queue outlives its controller's end, however that comes.
#[derive(Default)]
struct ShutDown(Vec<Box<dyn Fn() + Send>>);

impl Drop for ShutDown {
    fn drop(&mut self) {
        for shut_down in &self.0 {
            shut_down();
        }
    }
}

/// Stops when dropped.
struct StopOnDrop(StopToken);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.stop();
    }
}

impl Controller {
    /// `name`: as in `--controllers`, such as `replicaset-controller`.
    pub fn new(name: &'static str) -> Controller {
        Controller {
            clock: ControllerClock::default(),
            health: Health { name, running: Arc::default() },
            waits: Vec::new(),
            starts: Vec::new(),
            queues: ShutDown::default(),
            debug: None,
        }
    }

    pub fn name(&self) -> &'static str {
        self.health.name
    }

    pub fn health(&self) -> Health {
        self.health.clone()
    }

    /// It has nothing to do: flags or the environment left it without work. It is then not started.
    /// Upstream: a constructor that returns no controller.
    pub fn is_idle(&self) -> bool {
        self.starts.is_empty()
    }

    /// What to answer below `/debug/controllers/NAME`, to whoever may see it.
    pub fn debug(
        &mut self,
        answer: impl Fn(&DebugRequest<'_>) -> Option<DebugAnswer> + Send + Sync + 'static,
    ) {
        self.debug = Some(Arc::new(answer));
    }

    pub fn debug_handler(&self) -> Option<DebugHandler> {
        self.debug.clone()
    }

    /// Another clock than the system's. Before any queue is used, so before the informers start.
    pub fn with_clock(self, clock: SharedClock) -> Controller {
        self.clock.set(clock);
        self
    }

    /// A queue whose metrics carry `name`, worked on by `workers` workers.
    pub fn queue<K: Key>(&mut self, name: &'static str, workers: usize) -> Queue<K> {
        let queue = Queue::new(name, workers, self.clock.clone());
        let handle = queue.clone();
        self.queues.0.push(Box::new(move || handle.shut_down()));
        queue
    }

    pub fn watch<T: Object, K: Key>(
        &mut self,
        informer: &SharedIndexInformer<T>,
        queue: &Queue<K>,
        mapper: impl Mapper<T, K>,
    ) {
        self.watch_resyncing(informer, informer.default_resync(), queue, mapper);
    }

    /// As [`Controller::watch`], with a resync of its own in place of the informer's default.
    /// Upstream: `AddEventHandlerWithResyncPeriod`.
    pub fn watch_resyncing<T: Object, K: Key>(
        &mut self,
        informer: &SharedIndexInformer<T>,
        resync: Option<Duration>,
        queue: &Queue<K>,
        mapper: impl Mapper<T, K>,
    ) {
        let handler = Mapped { mapper, queue: queue.clone() };
        let registration = informer.add_handler(self.health.name, handler, resync);
        self.wait_for(informer, Some(registration));
    }

    /// Workers wait for this cache too.
    pub fn reads<T: Object>(&mut self, informer: &SharedIndexInformer<T>) {
        self.wait_for(informer, None);
    }

    fn wait_for<T: Object>(
        &mut self,
        informer: &SharedIndexInformer<T>,
        registration: Option<Registration>,
    ) {
        let informer = informer.clone();
        self.waits.push(Box::pin(async move {
            informer.synced().await;
            if let Some(registration) = registration {
                registration.synced().await;
            }
        }));
    }

    /// What the workers of `queue` do with a key.
    pub fn sync<K: Key, F, Fut>(&mut self, queue: Queue<K>, sync: F)
    where
        F: Fn(K) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = SyncResult> + Send + 'static,
    {
        let name = self.health.name;
        let sync: BoxSync<K> = Arc::new(move |key| Box::pin(sync(key)));
        self.starts.push(Box::new(move |tasks, stop| {
            for _ in 0..queue.workers() {
                tasks.spawn(queue.clone().work(name, sync.clone(), stop.clone()));
            }
        }));
    }

    /// Once the caches are synced, and then this long after each end.
    pub fn every<F, Fut>(&mut self, period: Duration, job: F)
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), Error>> + Send + 'static,
    {
        let name = self.health.name;
        let clock = self.clock.clone();
        self.starts.push(Box::new(move |tasks, stop| {
            let stop = stop.clone();
            tasks.spawn(async move {
                let clock = clock.get();
                loop {
                    log_job(name, caught(name, || Box::pin(job())).await);
                    if stop.unless_stopped(clock.sleep(period)).await.is_none() {
                        return;
                    }
                }
            });
        }));
    }

    /// Runs beside the workers, from the time the caches are synced until the stop.
    pub fn background<F, Fut>(&mut self, task: F)
    where
        F: FnOnce(StopToken) -> Fut + Send + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let name = self.health.name;
        self.starts.push(Box::new(move |tasks, stop| {
            let stop = stop.clone();
            tasks.spawn(async move {
                caught(name, || Box::pin(task(stop))).await;
            });
        }));
    }

    /// Runs until stopped: waits for the caches, then works. After the stop no key is taken any more,
    /// and this resolves when the running syncs have ended: the caller bounds that wait. Dropped
    /// half-way, it stops all the same, without waiting.
    pub async fn run(self, stop: StopToken) {
        let Controller { health, waits, starts, queues, .. } = self;
        let stop = StopOnDrop(stop.child());
        log::info!("Starting {}", health.name);
        let synced = async {
            for wait in waits {
                wait.await;
            }
        };
        if stop.0.unless_stopped(synced).await.is_none() {
            return;
        }
        let tasks = TaskGroup::new();
        for start in starts {
            start(&tasks, &stop.0);
        }
        health.running.store(true, Ordering::SeqCst);
        let _running = ClearOnDrop(&health.running);
        stop.0.stopped().await;
        log::info!("Shutting down {}", health.name);
        drop(queues);
        tasks.join().await;
    }
}

struct ClearOnDrop<'a>(&'a AtomicBool);

impl Drop for ClearOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;
    use std::collections::HashMap;

    use futures_lite::future::{block_on, yield_now};

    use super::*;
    use crate::clock::{Clock, FakeClock};
    use crate::objects::{Pod, Timestamp, Uid};
    use crate::task::spawn;

    /// What is sent next; meanwhile the fake time passes.
    async fn next<T>(from: &async_channel::Receiver<T>, clock: &FakeClock) -> T {
        loop {
            match from.try_recv() {
                Ok(sent) => return sent,
                Err(_) => {
                    clock.advance(Duration::from_millis(1));
                    yield_now().await;
                }
            }
        }
    }

    #[test]
    fn keys_are_retried_as_their_syncs_end() {
        let clock = FakeClock::new(Timestamp::from_secs(0));
        let mut c = Controller::new("test-retries").with_clock(clock.clone());
        let health = c.health();
        let queue = c.queue::<String>("test_retries", 2).max_retries(2);
        let (told, calls) = async_channel::unbounded();
        let attempts: Mutex<HashMap<String, u32>> = Mutex::default();
        c.sync(queue.clone(), move |key: String| {
            let mut attempts = attempts.lock();
            let attempt = *attempts.entry(key.clone()).and_modify(|n| *n += 1).or_insert(1);
            drop(attempts);
            told.try_send((key.clone(), attempt)).unwrap();
            async move {
                match (&*key, attempt) {
                    ("panics", 1) => panic!("as the test asks"),
                    ("fails", 1..=2) => Err(Error::Stale("behind".into())),
                    ("hopeless", _) => Err(Error::other("never")),
                    ("terminal", _) => Err(Error::Terminal(Box::new(Error::other("no")))),
                    ("again", 1) => Ok(Next::After(Duration::from_secs(1))),
                    ("slowly", 1) => Ok(Next::Backoff),
                    _ => Ok(Next::Done),
                }
            }
        });
        let stop = StopToken::new();
        block_on(async {
            let running = spawn(c.run(stop.clone()));
            for (key, attempts) in [
                ("panics", 2),
                ("fails", 3),
                ("hopeless", 3),
                ("terminal", 1),
                ("again", 2),
                ("slowly", 2),
                ("fine", 1),
            ] {
                queue.add(key.to_owned());
                for attempt in 1..=attempts {
                    assert_eq!(next(&calls, &clock).await, (key.to_owned(), attempt));
                }
                // Nothing of this key follows: the next one's call would come after it.
                clock.advance(Duration::from_secs(10));
            }
            assert!(health.is_running());
            stop.stop();
            running.await;
        });
        assert!(calls.try_recv().is_err());
        for key in ["panics", "fails", "hopeless", "terminal", "again", "slowly"] {
            assert_eq!(queue.retries(&key.to_owned()), 0, "{key} is forgotten");
        }
        assert_eq!(queue::panics("test-retries"), 1);
        assert!(!health.is_running());
    }

    #[test]
    fn a_controller_without_work_is_idle() {
        let mut c = Controller::new("test-idle");
        let queue = c.queue::<String>("test_idle", 1);
        assert!(c.is_idle(), "nobody takes what is queued");
        c.sync(queue, |_| async { Ok(Next::Done) });
        assert!(!c.is_idle());
    }

    #[test]
    fn a_stop_lets_the_running_sync_end_and_takes_no_further_key() {
        let mut c = Controller::new("test-stop");
        let queue = c.queue::<String>("test_stop", 1);
        let (told, calls) = async_channel::unbounded();
        let (release, released) = async_channel::unbounded::<()>();
        c.sync(queue.clone(), {
            let told = told.clone();
            move |key: String| {
                let (told, released) = (told.clone(), released.clone());
                async move {
                    told.try_send(format!("{key} starts")).unwrap();
                    released.recv().await.unwrap();
                    told.try_send(format!("{key} ends")).unwrap();
                    Ok(Next::Done)
                }
            }
        });
        c.background(move |stop| async move {
            stop.stopped().await;
            told.try_send("background ends".into()).unwrap();
        });
        block_on(async {
            let stop = StopToken::new();
            let running = spawn(c.run(stop.clone()));
            queue.add("a".into());
            queue.add("b".into());
            assert_eq!(calls.recv().await.unwrap(), "a starts");
            stop.stop();
            assert_eq!(calls.recv().await.unwrap(), "background ends");
            assert!(calls.is_empty(), "a still runs");
            release.try_send(()).unwrap();
            running.await;
            assert_eq!(calls.recv().await.unwrap(), "a ends");
            assert!(calls.recv().await.is_err(), "b is not taken, and nothing holds on");
        });
    }

    #[test]
    fn jobs_come_again_after_their_period() {
        let clock = FakeClock::new(Timestamp::from_secs(0));
        let mut c = Controller::new("test-every").with_clock(clock.clone());
        let (told, calls) = async_channel::unbounded();
        let times = clock.clone();
        c.every(Duration::from_secs(60), move || {
            told.try_send(times.monotonic()).unwrap();
            async { Err(Error::other("also after an error")) }
        });
        block_on(async {
            let stop = StopToken::new();
            let running = spawn(c.run(stop.clone()));
            let first = calls.recv().await.unwrap();
            assert_eq!(first, Duration::ZERO);
            let second = next(&calls, &clock).await;
            assert!(second >= Duration::from_secs(60), "{second:?}");
            stop.stop();
            running.await;
        });
    }

    #[test]
    fn events_are_told_for_what_they_are() {
        let pod = |uid: &str| {
            let mut pod = Pod::default();
            pod.meta.uid = Uid::new(uid);
            Arc::new(pod)
        };
        let told = Arc::new(Mutex::new(Vec::new()));
        let log = told.clone();
        let mapper = move |change: Change<'_, Pod>, _: &Queue| {
            let what = match &change {
                Change::Added { initial, .. } => format!("added {initial}"),
                Change::Updated { .. } => "updated".into(),
                Change::Resync { .. } => "resync".into(),
                Change::Deleted(Deleted::Known(_)) => "deleted".into(),
                Change::Deleted(Deleted::FinalStateUnknown(_)) => "lost".into(),
            };
            log.lock().push(format!("{what} {}", change.object().meta.uid));
        };
        let queue = Queue::for_test(FakeClock::new(Timestamp::from_secs(0)));
        let mut handler = Mapped { mapper, queue };
        let (a, a2, b) = (pod("a"), pod("a"), pod("b"));
        handler.on_add(&a, true);
        handler.on_update(&a, &a);
        handler.on_update(&a, &a2);
        handler.on_update(&a2, &b);
        handler.on_delete(&Deleted::Known(b));
        assert_eq!(
            *told.lock(),
            ["added true a", "resync a", "updated a", "lost a", "added false b", "deleted b"]
        );
    }
}
