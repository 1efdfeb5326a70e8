//! A controller: its watches, queues and syncs, and how it runs.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use futures_lite::FutureExt;

use super::change::Mapped;
use super::queue::{AnyQueue, BoxSync, SyncStatus, catch_panic, log_job};
use super::{
    ControllerContext, DebugAnswer, DebugHandler, DebugRequest, Error, Mapper, MetadataCaches,
    Next, Profile, Queue, QueuePolicy, SyncResult,
};
use crate::cache::{
    BoxFuture, Index, Lister, Registration, Scope, SharedIndexInformer, VersionLosses,
};
use crate::client::{Client, Writes};
use crate::clock::SharedClock;
use crate::events::Recorder;
use crate::objects::{Object, Resource};
use crate::options::Options;
use crate::task::{Failure, Latch, StopToken, TaskGroup};
use crate::workqueue::Key;

/// Ends when a cache has synced.
type Wait = BoxFuture<'static, ()>;
/// Runs until the stop.
type Work = BoxFuture<'static, ()>;
/// Makes the work, which ends after the stop of the token.
type Start = Box<dyn FnOnce(&StopToken) -> Work + Send>;

/// A controller: its caches, queues and work. A constructor gets a new one and wires it up;
/// [`run`](Controller::run) runs it.
///
/// # What holds
///
/// - Before any sync, job or background task, all caches that the controller has a [`Lister`] of
///   have synced, and its mappers have had every object of the first lists. [Optional
///   caches](Controller::optional) are waited for up to their time.
/// - Workers and jobs start when all [gates](Controller::ready_when) are open.
/// - Per queue, at most one sync of a key runs at a time, and [`Profile::workers`] syncs in all.
///   Queues do not exclude one another: two of them may sync one object at the same time.
/// - A key that is added during its sync is synced again afterwards, so no event is missed.
/// - After a loss of versions, as with a restored backup, no sync or job begins before all caches
///   have been listed again, or half a minute has passed: see [`VersionLosses`].
/// - A failed sync is retried as its [`QueuePolicy`] says. A panic of a sync is caught, logged and
///   counted, and its key is retried with back-off; a job that panics is called again after its
///   period.
/// - After the stop no sync begins. Syncs and jobs under way are not interrupted.
///
/// # What is not promised
///
/// - That the caches hold the controller's own last writes: expectations and consistency checks are
///   the controller's.
/// - That keys that are queued at the stop are synced. The next leader's first lists queue every
///   object.
/// - That work under way ends when the lease is lost: the client's [`Guard`](crate::client::Guard)
///   refuses its writes.
///
/// Upstream: the `Run`, `worker` and `processNextWorkItem` of each controller.
pub struct Controller {
    profile: Profile,
    context: Arc<ControllerContext>,
    client: Client,
    /// The `SharedIndexInformer`s behind the Listers.
    informers: Vec<Box<dyn Any + Send>>,
    /// The caches that must have synced before any task starts.
    waits: Vec<Wait>,
    /// Workers start when all of these are open.
    gates: Vec<Latch>,
    backgrounds: Vec<Start>,
    workers: Vec<Start>,
    queues: ShutDown,
    failure: Failure,
    debug: Option<DebugHandler>,
    /// The states of the queues, for [`Watcher`]. They do not keep the queues alive.
    watched: Vec<Arc<dyn AnyQueue>>,
    running: Latch,
}

/// Answers questions about a controller, while it runs and after. Cheap to clone.
#[derive(Clone)]
pub struct Watcher {
    profile: Profile,
    workers: usize,
    client: Client,
    queues: Vec<Arc<dyn AnyQueue>>,
    running: Latch,
}

/// A controller as debug pages show it. The numbers are read one after another, not at one moment.
#[derive(Clone, Debug)]
pub struct ControllerStatus {
    /// The name in `--controllers`, which is also that of its event handlers.
    pub name: &'static str,
    /// The name of the service account that sends its requests.
    pub account: &'static str,
    /// The number of workers of each queue, except for queues that name their own number.
    pub workers: usize,
    /// Whether its caches have synced and its workers have started. It stays true after the stop.
    pub running: bool,
    /// Its queues that still exist: after its end its mappers keep them.
    pub queues: Vec<SyncStatus>,
    /// The writes that it has sent.
    pub writes: Writes,
}

impl Watcher {
    /// Returns the state of the controller for debug pages. Never waits.
    pub fn status(&self) -> ControllerStatus {
        ControllerStatus {
            name: self.profile.name,
            account: self.profile.account,
            workers: self.workers,
            running: self.running.is_open(),
            queues: self.queues.iter().filter_map(|queue| queue.status()).collect(),
            writes: self.client.writes(),
        }
    }

    /// Resolves once the workers have started, at once if they have. May be dropped at any time.
    pub async fn runs(&self) {
        self.running.opened().await;
    }

    /// Returns how long the oldest key of its queues has waited or been worked on; zero without a
    /// key. Keys that wait for a retry do not count. See
    /// [`RateLimitingQueue::oldest_key_age`](crate::workqueue::RateLimitingQueue::oldest_key_age).
    pub fn oldest_key_age(&self) -> Duration {
        self.queues.iter().filter_map(|queue| queue.oldest_key_age()).max().unwrap_or_default()
    }

    /// Makes the keys that have failed retry within `period`: see
    /// [`RateLimitingQueue::advance_retries`](crate::workqueue::RateLimitingQueue::advance_retries).
    pub fn advance_retries(&self, period: Duration) {
        self.queues.iter().for_each(|queue| queue.advance_retries(period));
    }
}

/// Shuts the queues down when dropped: no queue outlives its controller.
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

/// The parts that a controller is made from.
impl Controller {
    /// Makes a controller that neither watches nor does anything yet. Its client has a rate limit
    /// of its own.
    ///
    /// # Errors
    /// When there is no client with the credentials of its account.
    pub fn new(profile: Profile, context: &Arc<ControllerContext>) -> Result<Controller, String> {
        Ok(Controller {
            client: context.client(profile.account)?,
            profile,
            context: context.clone(),
            informers: Vec::new(),
            waits: Vec::new(),
            gates: Vec::new(),
            backgrounds: Vec::new(),
            workers: Vec::new(),
            queues: ShutDown::default(),
            failure: Failure::new(),
            debug: None,
            watched: Vec::new(),
            running: Latch::new(),
        })
    }

    /// The name in `--controllers`.
    pub fn name(&self) -> &'static str {
        self.profile.name
    }

    /// The flags, by their names in snake case.
    pub fn options(&self) -> &Options {
        &self.context.options
    }

    /// Whether a feature gate is on; its name as in `--feature-gates`.
    pub fn feature(&self, gate: &str) -> bool {
        self.context.options.feature_gates.enabled(gate)
    }

    /// What the program's own controllers share, if it is a `T`.
    pub fn extension<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        self.context.extension.clone()?.downcast().ok()
    }

    /// The time by which it works: the same for all controllers.
    pub fn clock(&self) -> SharedClock {
        self.context.clock.clone()
    }

    /// The losses of versions that the caches have noticed.
    pub fn history(&self) -> VersionLosses {
        self.context.factory.history().clone()
    }

    /// The controller's client. Its User-Agent has the name of the controller's account; with
    /// `--use-service-account-credentials` it has the credentials of that account.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// A client with the manager's own credentials and another name in its User-Agent, for a
    /// controller that makes the credentials of others. Upstream: `rootClientBuilder`.
    pub fn root_client(&self, name: &str) -> Client {
        self.context.root_client(name)
    }

    /// Records events of this controller, under its event source.
    pub fn recorder(&self) -> Recorder {
        let Profile { name, event_source, .. } = self.profile;
        self.context.recorder(name, self.client(), event_source)
    }
}

/// The caches that a controller reads.
impl Controller {
    /// Returns the cache of every `T` in the cluster, which controllers share. Workers wait until
    /// it has synced; it lacks objects before.
    pub fn lister<T: Object + Resource>(&mut self) -> Lister<T> {
        self.lister_of(Scope::all(T::RESOURCE))
    }

    /// Returns a cache as [`Controller::lister`] does, of a narrower scope, such as one namespace
    /// or metadata alone.
    pub fn lister_of<T: Object>(&mut self, scope: Scope) -> Lister<T> {
        let informer = self.context.factory.informer_for::<T>(scope);
        let lister = informer.lister();
        if self.informer(&lister).is_none() {
            self.wait_for(&informer, None);
            self.informers.push(Box::new(informer));
        }
        lister
    }

    /// Lets [`Lister::by_index`] find the objects of `lister` by `index`.
    ///
    /// # Panics
    /// When this controller has no Lister of that cache.
    pub fn index<T: Object>(&mut self, lister: &Lister<T>, index: &Index<T>) {
        self.own_informer(lister).add_index(index);
    }

    /// Returns a cache that may never sync, because a server need not serve its resource. Workers
    /// wait for it no longer than `patience`; it gives a Lister once it has synced, also later.
    pub fn optional<T: Object + Resource>(&mut self, patience: Duration) -> OptionalCache<T> {
        let informer = self.context.factory.informer::<T>();
        let (synced, clock) = (informer.clone(), self.clock());
        self.waits.push(Box::pin(async move { synced.synced().or(clock.sleep(patience)).await }));
        OptionalCache { informer }
    }

    /// The caches of resources that become known while the controller runs. Workers do not wait for
    /// them.
    pub fn metadata_caches(&self) -> MetadataCaches {
        MetadataCaches { factory: self.context.factory.clone() }
    }

    /// Returns the informer behind `lister`, if this controller has got that Lister.
    fn informer<T: Object>(&self, lister: &Lister<T>) -> Option<&SharedIndexInformer<T>> {
        let typed = self.informers.iter().filter_map(|any| any.downcast_ref());
        typed.into_iter().find(|informer: &&SharedIndexInformer<T>| informer.lister().is(lister))
    }

    /// Returns the informer behind `lister`; panics where [`Controller::index`] and
    /// [`Controller::watch`] say so.
    fn own_informer<T: Object>(&self, lister: &Lister<T>) -> SharedIndexInformer<T> {
        let informer = self.informer(lister);
        informer.expect("a Lister comes from the controller that uses it").clone()
    }

    /// Makes the workers wait until the cache has synced and, with a `registration`, its handler
    /// too.
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
}

/// A cache that is read once it has synced: see [`Controller::optional`].
pub struct OptionalCache<T> {
    informer: SharedIndexInformer<T>,
}

impl<T: Object> OptionalCache<T> {
    /// As [`Controller::index`], for this cache.
    pub fn index(&self, index: &Index<T>) {
        self.informer.add_index(index);
    }

    /// The cache; `None` before its first list is complete.
    pub fn lister(&self) -> Option<Lister<T>> {
        self.informer.has_synced().then(|| self.informer.lister())
    }
}

/// Wraps `sync` so that it begins when all caches have been listed since the last loss of versions.
/// After the stop it is not called, and its key counts as done: the next leader queues all keys.
fn delay_until_settled<K: Key>(
    sync: BoxSync<K>,
    history: VersionLosses,
    clock: SharedClock,
    stop: StopToken,
) -> BoxSync<K> {
    Arc::new(move |key| {
        if history.is_settled() {
            return sync(key);
        }
        let (sync, history) = (sync.clone(), history.clone());
        let (clock, stop) = (clock.clone(), stop.clone());
        Box::pin(async move {
            match stop.unless_stopped(history.settled(&clock)).await {
                Some(()) => sync(key).await,
                None => Ok(Next::Done),
            }
        })
    })
}

/// The work of a controller.
impl Controller {
    /// The number of workers of its queues.
    fn worker_count(&self) -> usize {
        self.profile.workers.resolve(&self.context.options)
    }

    /// Makes a queue with the name that the controller's profile has for metrics.
    pub fn queue<K: Key>(&mut self, retries: QueuePolicy<K>) -> Queue<K> {
        self.queue_named(self.profile.queue, retries)
    }

    /// Makes a further queue, with another name in metrics. It is shut down when the controller
    /// stops or is dropped.
    pub fn queue_named<K: Key>(&mut self, name: &'static str, retries: QueuePolicy<K>) -> Queue<K> {
        let queue = Queue::new(name, retries, self.clock());
        let handle = queue.clone();
        self.queues.0.push(Box::new(move || handle.shut_down()));
        self.watched.push(Arc::new(queue.downgrade()));
        queue
    }

    /// Passes the changes of the objects of `lister` to `mapper`, which adds keys to `queue`, with
    /// the resync of `--min-resync-period`. The mapper begins with the objects of the cache. A
    /// mapper that is slow delays no other: its events are buffered.
    ///
    /// # Panics
    /// When this controller has no Lister of that cache.
    pub fn watch<T: Object, K: Key>(
        &mut self,
        lister: &Lister<T>,
        queue: &Queue<K>,
        mapper: impl Mapper<T, K>,
    ) {
        let resync = self.own_informer(lister).default_resync();
        self.watch_resyncing(lister, resync, queue, mapper);
    }

    /// Watches as [`Controller::watch`] does, with this resync period, of a second or more; `None`:
    /// without a resync. Upstream: `AddEventHandlerWithResyncPeriod`.
    pub fn watch_resyncing<T: Object, K: Key>(
        &mut self,
        lister: &Lister<T>,
        resync: Option<Duration>,
        queue: &Queue<K>,
        mapper: impl Mapper<T, K>,
    ) {
        let informer = self.own_informer(lister);
        let handler = Mapped { mapper, queue: queue.clone() };
        let registration = informer.add_handler(self.profile.name, handler, resync);
        self.wait_for(&informer, Some(registration));
    }

    /// A gate: no worker or job starts before `latch` is open. A controller whose gate never opens
    /// does no work until its stop.
    pub fn ready_when(&mut self, latch: &Latch) {
        self.gates.push(latch.clone());
    }

    /// Starts workers for `queue`: each takes a key and calls `sync`, a method of `controller`,
    /// with it. The result decides what happens to the key. Call it once for each queue.
    pub fn sync<C, K, F, Fut>(&mut self, queue: Queue<K>, controller: &Arc<C>, sync: F)
    where
        C: Send + Sync + 'static,
        K: Key,
        F: Fn(Arc<C>, K) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = SyncResult> + Send + 'static,
    {
        self.sync_by(self.worker_count(), queue, controller, sync);
    }

    /// Processes a queue as [`Controller::sync`] does, with a number of workers other than the
    /// profile's.
    pub fn sync_by<C, K, F, Fut>(
        &mut self,
        workers: usize,
        queue: Queue<K>,
        controller: &Arc<C>,
        sync: F,
    ) where
        C: Send + Sync + 'static,
        K: Key,
        F: Fn(Arc<C>, K) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = SyncResult> + Send + 'static,
    {
        let controller = controller.clone();
        self.add_workers(
            workers,
            queue,
            Arc::new(move |key| Box::pin(sync(controller.clone(), key))),
        );
    }

    /// Adds the workers of a queue: the part of [`Controller::sync_by`] that is compiled once for
    /// each type of key.
    fn add_workers<K: Key>(&mut self, workers: usize, queue: Queue<K>, sync: BoxSync<K>) {
        let name = self.profile.name;
        let sync: BoxSync<K> = match self.context.supervisor() {
            None => sync,
            Some(supervisor) => Arc::new(move |key| {
                let key_text = key.to_string();
                supervisor.sync(name, key_text, sync(key))
            }),
        };
        let history = self.history();
        for _ in 0..workers {
            let (queue, sync) = (queue.clone(), sync.clone());
            let (history, clock) = (history.clone(), self.clock());
            self.workers.push(Box::new(move |stop| {
                let sync = delay_until_settled(sync, history, clock, stop.clone());
                Box::pin(queue.work(name, sync, stop.clone()))
            }));
        }
    }

    /// Calls `job` when the workers start, and then each time `period` after its end, or after the
    /// supervisor's time: calls never overlap. A failure is logged and does not prevent the next
    /// call. After the stop a call under way ends, and no other follows. Upstream:
    /// `wait.UntilWithContext`.
    pub fn every<F, Fut>(&mut self, period: Duration, job: F)
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), Error>> + Send + 'static,
    {
        let (name, clock) = (self.profile.name, self.clock());
        let supervisor = self.context.supervisor();
        let pause =
            supervisor.as_ref().map_or(period, |supervisor| supervisor.pause_after_job(period));
        let history = self.history();
        self.workers.push(Box::new(move |stop| {
            let stop = stop.clone();
            Box::pin(async move {
                loop {
                    if stop.unless_stopped(history.settled(&clock)).await.is_none() {
                        return;
                    }
                    let done = async {
                        match &supervisor {
                            None => job().await,
                            Some(supervisor) => supervisor.job(name, period, Box::pin(job())).await,
                        }
                    };
                    log_job(name, catch_panic(name, done).await);
                    if stop.unless_stopped(clock.sleep(pause)).await.is_none() {
                        return;
                    }
                }
            })
        }));
    }

    /// Calls `job` once, when the caches have synced. It must not wait. A panic makes the
    /// controller fail.
    pub fn at_start(&mut self, job: impl FnOnce() + Send + 'static) {
        self.backgrounds.push(Box::new(move |stop| {
            let stop = stop.clone();
            Box::pin(async move {
                job();
                // A task that ends before the stop counts as a failure of the controller.
                stop.stopped().await;
            })
        }));
    }

    /// Runs `task` beside the workers, from the time the caches have synced. It must run until its
    /// token stops, and end soon afterwards: the controller fails when it ends sooner or panics.
    pub fn background<F, Fut>(&mut self, task: F)
    where
        F: FnOnce(StopToken) -> Fut + Send + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let (name, supervisor) = (self.profile.name, self.context.supervisor());
        self.backgrounds.push(Box::new(move |stop| {
            let work: Work = Box::pin(task(stop.clone()));
            match supervisor {
                None => work,
                Some(supervisor) => supervisor.background(name, work),
            }
        }));
    }

    /// Answers requests below `/debug/controllers/NAME`, in place of an earlier function. `answer`
    /// must not wait.
    pub fn debug(
        &mut self,
        answer: impl Fn(&DebugRequest<'_>) -> Option<DebugAnswer> + Send + Sync + 'static,
    ) {
        self.debug = Some(Arc::new(answer));
    }

    /// The function of [`Controller::debug`]; `None` without one.
    pub fn debug_handler(&self) -> Option<DebugHandler> {
        self.debug.clone()
    }

    /// Returns a handle that answers questions about this controller. It knows the queues that
    /// exist already, so call this after all of them are made.
    pub fn watcher(&self) -> Watcher {
        Watcher {
            profile: self.profile,
            workers: self.worker_count(),
            client: self.client(),
            queues: self.watched.clone(),
            running: self.running.clone(),
        }
    }

    /// Returns whether its constructor added no work, because these flags or this environment need
    /// none.
    /// Such a controller is not started. Upstream: a constructor that returns no controller.
    pub fn is_idle(&self) -> bool {
        self.workers.is_empty() && self.backgrounds.is_empty()
    }

    /// Returns the place of the controller's failure. It is filled when one of its tasks panics
    /// outside of a sync or job, or ends before the stop. The controller then stops by itself; the
    /// process has to decide what follows.
    pub fn failure(&self) -> Failure {
        self.failure.clone()
    }

    /// Waits for the caches, then works until `stop` stops or the controller fails. From then on no
    /// sync begins, and this resolves when those under way have ended; the caller bounds that wait.
    /// When it is dropped, it stops the controller without that wait: syncs under way continue as
    /// tasks of their own. When it is stopped before the caches have synced, it returns at once.
    ///
    /// The caller starts the caches.
    pub async fn run(self, stop: StopToken) {
        let Controller {
            profile,
            waits,
            gates,
            backgrounds,
            workers,
            queues,
            failure,
            running,
            ..
        } = self;
        let (name, stop) = (profile.name, StopOnDrop(stop.child()));
        log::info!("Starting {name}");
        let synced = async {
            for wait in waits {
                wait.await;
            }
        };
        if stop.0.unless_stopped(synced).await.is_none() {
            return;
        }
        let tasks = TaskGroup::new();
        let spawn = |start: Start| {
            tasks.spawn(run_task(name, start(&stop.0), failure.clone(), stop.0.clone()));
        };
        backgrounds.into_iter().for_each(spawn);
        let work = async {
            for gate in gates {
                gate.opened().await;
            }
            workers.into_iter().for_each(spawn);
            running.open();
            // Only a failure or the stop ends the wait below.
            std::future::pending().await
        };
        stop.0.unless_stopped(failure.reported().or(work)).await;
        log::info!("Shutting down {name}");
        stop.0.stop();
        drop(queues);
        tasks.join().await;
    }
}

/// Runs `work`, a task of the controller `name`, and reports its end or panic as the `failure`,
/// unless that comes after the stop.
async fn run_task(name: &'static str, work: Work, failure: Failure, stop: StopToken) {
    let ended = catch_panic(name, work).await;
    if !stop.is_stopped() {
        let how = if ended.is_some() { "ended" } else { "panicked" };
        failure.report(format!("{name}: a task of the controller {how}"));
    }
}

#[cfg(test)]
impl Controller {
    /// Makes a controller that makes no requests, and whose caches never sync.
    pub(crate) fn for_test(
        name: &'static str,
        workers: i32,
        clock: Arc<crate::clock::FakeClock>,
    ) -> Controller {
        let context = ControllerContext::for_test(Options::default(), clock);
        let workers = super::Workers::Fixed(crate::options::Count::new(workers));
        let profile = Profile { workers, ..Profile::new(name) };
        Controller::new(profile, &context).expect("there is one client for all")
    }

    /// The number of workers of all its queues, and of its periodic jobs.
    pub(crate) fn worker_count_of_all(&self) -> usize {
        self.workers.len()
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;
    use std::collections::HashMap;
    use std::io;

    use futures_lite::future::{block_on, poll_once, yield_now};

    use super::super::Next;
    use super::super::queue::panics;
    use super::*;
    use crate::clock::{Clock, FakeClock};
    use crate::objects::{Node, Timestamp};
    use crate::task::spawn;

    /// The next message; meanwhile the fake time passes.
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

    fn refused_connection() -> Error {
        let source = io::Error::from(io::ErrorKind::ConnectionRefused).into();
        Error::Api(crate::client::Error::Transport { request: "GET /x".into(), source })
    }

    #[test]
    fn keys_are_retried_as_their_syncs_end() {
        let clock = FakeClock::new(Timestamp::from_secs(0));
        let mut c = Controller::for_test("test-retries", 2, clock.clone());
        let queue = c.queue::<String>(QueuePolicy::at_most(2));
        let (sent, calls) = async_channel::unbounded();
        let attempts: Mutex<HashMap<String, u32>> = Mutex::default();
        c.sync(queue.clone(), &Arc::new(()), move |_, key: String| {
            let mut attempts = attempts.lock();
            let attempt = *attempts.entry(key.clone()).and_modify(|n| *n += 1).or_insert(1);
            drop(attempts);
            sent.try_send((key.clone(), attempt)).unwrap();
            async move {
                match (&*key, attempt) {
                    ("panics", 1) => panic!("as the test asks"),
                    ("fails", 1..=2) => Err(Error::Stale("behind".into())),
                    ("hopeless", _) => Err(Error::other("never")),
                    ("outage", 1..=4) => Err(refused_connection()),
                    ("outage", 5) => Err(Error::other("not ready")),
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
                ("outage", 6),
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
            stop.stop();
            running.await;
        });
        assert!(calls.try_recv().is_err());
        for key in ["panics", "fails", "hopeless", "outage", "terminal", "again", "slowly"] {
            assert_eq!(queue.retries(&key.to_owned()), 0, "{key} is forgotten");
        }
        assert_eq!(panics("test-retries"), 1);
    }

    #[test]
    fn a_controller_without_work_is_idle() {
        let mut c = Controller::for_test("test-idle", 1, FakeClock::new(Timestamp::from_secs(0)));
        let queue = c.queue::<String>(QueuePolicy::default());
        assert!(c.is_idle(), "a queue without workers is no work");
        c.sync(queue, &Arc::new(()), |_, _| async { Ok(Next::Done) });
        assert!(!c.is_idle());
    }

    #[test]
    fn a_stop_lets_the_running_sync_end_and_takes_no_further_key() {
        let mut c = Controller::for_test("test-stop", 1, FakeClock::new(Timestamp::from_secs(0)));
        let queue = c.queue::<String>(QueuePolicy::default());
        let (sent, calls) = async_channel::unbounded();
        let (release, released) = async_channel::unbounded::<()>();
        let channels = Arc::new((sent.clone(), released));
        c.sync(queue.clone(), &channels, async |channels, key| {
            let (sent, released) = &*channels;
            sent.try_send(format!("{key} starts")).unwrap();
            released.recv().await.unwrap();
            sent.try_send(format!("{key} ends")).unwrap();
            Ok(Next::Done)
        });
        drop(channels);
        c.background(move |stop| async move {
            stop.stopped().await;
            sent.try_send("background ends".into()).unwrap();
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
    fn jobs_are_called_again_after_their_period() {
        let clock = FakeClock::new(Timestamp::from_secs(0));
        let mut c = Controller::for_test("test-every", 1, clock.clone());
        let (sent, calls) = async_channel::unbounded();
        let times = clock.clone();
        c.every(Duration::from_secs(60), move || {
            sent.try_send(times.monotonic()).unwrap();
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
    fn workers_wait_for_every_cache_that_is_read_and_for_the_gate() {
        let clock = FakeClock::new(Timestamp::from_secs(0));
        let run = |prepare: &dyn Fn(&mut Controller)| {
            let mut c = Controller::for_test("test-gate", 1, clock.clone());
            prepare(&mut c);
            let queue = c.queue::<&str>(QueuePolicy::default());
            let (sent, calls) = async_channel::unbounded();
            c.sync(queue.clone(), &Arc::new(()), move |_, key| {
                sent.try_send(key).unwrap();
                async { Ok(Next::Done) }
            });
            queue.add("a");
            (Box::pin(c.run(StopToken::new())), calls)
        };
        let takes_a_key = |prepare: &dyn Fn(&mut Controller)| {
            let (running, calls) = run(prepare);
            let ended = async {
                running.await;
                false
            };
            block_on(async { calls.recv().await.is_ok() }.or(ended))
        };
        let waits = |prepare: &dyn Fn(&mut Controller)| {
            let (mut running, calls) = run(prepare);
            assert!(block_on(poll_once(&mut running)).is_none());
            assert!(takes_a_key(&|_| {}), "a worker without a gate took a key");
            calls.is_empty()
        };
        assert!(takes_a_key(&|_| {}));
        assert!(waits(&|c| drop(c.lister::<Node>())), "the cache never syncs");
        assert!(takes_a_key(&|c| drop(c.optional::<Node>(Duration::ZERO))));
        let latch = Latch::new();
        assert!(waits(&|c| c.ready_when(&latch)));
        latch.open();
        assert!(takes_a_key(&|c| c.ready_when(&latch)));
    }

    #[test]
    fn a_controller_fails_with_a_background_task_that_panics_or_ends() {
        type Add = fn(&mut Controller);
        let cases: [(Add, Option<&str>); 5] = [
            (|c| c.background(|_| async { panic!("as the test asks") }), Some("panicked")),
            (|c| c.background(|_| async {}), Some("ended")),
            (|c| c.background(|stop| async move { stop.stopped().await }), None),
            (|c| c.at_start(|| {}), None),
            (|c| c.at_start(|| panic!("as the test asks")), Some("panicked")),
        ];
        for (add, how) in cases {
            let mut c =
                Controller::for_test("test-fails", 1, FakeClock::new(Timestamp::from_secs(0)));
            add(&mut c);
            let (failure, stop) = (c.failure(), StopToken::new());
            block_on(async {
                let running = spawn(c.run(stop.clone()));
                if how.is_none() {
                    stop.stop();
                }
                running.await;
            });
            let expected = how.map(|how| format!("test-fails: a task of the controller {how}"));
            assert_eq!(failure.get(), expected.as_deref());
        }
    }
}
