//! A controller's queue, and the handling of a key by its workers.

use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use super::error::Chain;
use super::storm::Storm;
use super::{Error, Next, SyncResult};
use crate::cache::BoxFuture;
use crate::clock::SharedClock;
use crate::metrics::metrics;
use crate::objects::{ObjectKey, Timestamp};
use crate::task::{self, StopToken, panics};
use crate::trace::{self, Scope, Traced};
use crate::workqueue::{
    ItemExponentialFailureRateLimiter, Key, QueueStatus, RateLimiter, RateLimitingQueue,
    default_controller_rate_limiter,
};

metrics! {
    static PANICS: IntCounterVec["controller"] = "controller_panics_total",
        "Panics of a controller's syncs and jobs that were caught.";
}

/// The first wait before the next sync of a key whose cache lags behind the controller's own
/// writes. It doubles. Mostly the event that the cache lacks queues the key before that; not every
/// event does, and a watch may be silent for minutes.
const STALE_RETRY: Duration = Duration::from_millis(10);
const MAX_STALE_RETRY: Duration = Duration::from_secs(5);
/// The pause of a key whose retries are used up by errors that may pass. Then they begin again.
const OUTAGE_PAUSE: Duration = Duration::from_secs(60);

/// The number of the process's last sync.
static LAST_SYNC: AtomicU64 = AtomicU64::new(0);

/// In a storm, a key rests after a sync for this many times as long as the sync took, up to a
/// limit, and one sync handles all events of that time.
const REST_FACTOR: u32 = 4;
const MAX_REST: Duration = Duration::from_millis(500);

/// How a queue retries keys that failed.
pub struct QueuePolicy<K = ObjectKey> {
    limiter: Option<Arc<dyn RateLimiter<K>>>,
    max: Option<u32>,
    level: log::Level,
}

impl<K: Key> Default for QueuePolicy<K> {
    /// Retries with [`default_controller_rate_limiter`], without end and logged as errors.
    fn default() -> QueuePolicy<K> {
        QueuePolicy { limiter: None, max: None, level: log::Level::Error }
    }
}

impl<K: Key> QueuePolicy<K> {
    /// Drops a key at an error after it has been retried `max` times in a row, until an event adds
    /// it; otherwise like the default. [`Next::Backoff`] counts as a retry, [`Error::Stale`] does
    /// not; neither they nor a panic drop the key. At an error that [may pass](Error::may_pass) the
    /// retries begin again after a minute: no event says that the API server is well again.
    /// Upstream: `maxRetries`, for all errors.
    pub fn at_most(max: u32) -> QueuePolicy<K> {
        QueuePolicy { max: Some(max), ..QueuePolicy::default() }
    }

    /// The same, with the delays of another limiter.
    pub fn limited_by(self, limiter: Arc<dyn RateLimiter<K>>) -> QueuePolicy<K> {
        QueuePolicy { limiter: Some(limiter), ..self }
    }

    /// The same, where a failure that is retried is logged at `level`. Where conflicts are routine,
    /// upstream logs as errors only the keys that it drops.
    pub fn logged_as(self, level: log::Level) -> QueuePolicy<K> {
        QueuePolicy { level, ..self }
    }
}

/// A controller's handle on one of its queues. Cheap to clone; mappers and syncs have one. A
/// [`RateLimitingQueue`] with the policy of its retries: its contract holds here. Methods never
/// wait, and do nothing after the controller's stop.
pub struct Queue<K = ObjectKey> {
    shared: Arc<Shared<K>>,
}

struct Shared<K> {
    queue: RateLimitingQueue<K>,
    outcomes: Outcomes,
    /// The delays of keys whose last sync ended with [`Error::Stale`].
    stale: ItemExponentialFailureRateLimiter<K>,
    storm: Storm,
}

/// Counts the results of a queue's syncs, and decides about each key. It does not depend on the
/// type of keys.
struct Outcomes {
    syncs: Syncs,
    clock: SharedClock,
    /// `None`: keys are retried without end.
    max_retries: Option<u32>,
    retry_level: log::Level,
}

/// A queue that is not kept alive.
pub(super) struct WeakQueue<K>(Weak<Shared<K>>);

impl<K> WeakQueue<K> {
    pub fn upgrade(&self) -> Option<Queue<K>> {
        Some(Queue { shared: self.0.upgrade()? })
    }
}

/// The state of a queue, without the type of its keys. `None`: the queue is gone.
pub(super) trait AnyQueue: Send + Sync {
    fn status(&self) -> Option<SyncStatus>;
    /// See [`RateLimitingQueue::oldest_key_age`].
    fn oldest_key_age(&self) -> Option<Duration>;
    /// See [`RateLimitingQueue::advance_retries`].
    fn advance_retries(&self, period: Duration);
}

impl<K: Key> AnyQueue for WeakQueue<K> {
    fn status(&self) -> Option<SyncStatus> {
        Some(self.upgrade()?.status())
    }

    fn oldest_key_age(&self) -> Option<Duration> {
        Some(self.upgrade()?.inner().oldest_key_age())
    }

    fn advance_retries(&self, period: Duration) {
        if let Some(queue) = self.upgrade() {
            queue.inner().advance_retries(period);
        }
    }
}

/// Counts of a queue's syncs, for debug pages.
#[derive(Default)]
struct Syncs {
    count: AtomicU64,
    failures: AtomicU64,
    micros: AtomicU64,
    last_error: Mutex<Option<LastError>>,
}

/// The last failure of a queue's syncs, a panic included.
#[derive(Clone, Debug, PartialEq)]
pub struct LastError {
    /// The key, as in logs.
    pub key: String,
    /// The error with all its causes; `panic` after a panic.
    pub error: String,
    /// When the sync ended, in wall-clock time.
    pub at: Timestamp,
}

/// A queue and its syncs as debug pages show them. Counts begin with the controller.
#[derive(Clone, Debug, PartialEq)]
pub struct SyncStatus {
    /// The queue.
    pub queue: QueueStatus,
    /// Syncs that have ended.
    pub syncs: u64,
    /// Those that failed or panicked; [`Error::Stale`] is not a failure.
    pub failures: u64,
    /// The time that all syncs took, including the time for which they waited.
    pub seconds: f64,
    /// The last failure; a later success does not remove it.
    pub last_error: Option<LastError>,
}

impl Syncs {
    /// Returns the state of `queue` with the counts of its syncs.
    fn status(&self, queue: QueueStatus) -> SyncStatus {
        let Syncs { count, failures, micros, last_error } = self;
        SyncStatus {
            queue,
            syncs: count.load(Ordering::Relaxed),
            failures: failures.load(Ordering::Relaxed),
            seconds: micros.load(Ordering::Relaxed) as f64 / 1e6,
            last_error: last_error.lock().clone(),
        }
    }

    fn record_sync(&self, took: Duration) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.micros.fetch_add(took.as_micros() as u64, Ordering::Relaxed);
    }

    fn record_failure(&self, key: &dyn Display, error: String, at: Timestamp) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        *self.last_error.lock() = Some(LastError { key: key.to_string(), error, at });
    }
}

impl<K> Clone for Queue<K> {
    fn clone(&self) -> Self {
        Queue { shared: self.shared.clone() }
    }
}

impl<K: Key> Queue<K> {
    /// Makes a queue of a controller with its policy of retries.
    pub(in crate::controllers) fn new(
        name: &str,
        retries: QueuePolicy<K>,
        clock: SharedClock,
    ) -> Queue<K> {
        let QueuePolicy { limiter, max: max_retries, level: retry_level } = retries;
        let limiter = limiter.unwrap_or_else(|| default_controller_rate_limiter(clock.clone()));
        let queue = RateLimitingQueue::new(name, clock.clone(), limiter);
        let stale = ItemExponentialFailureRateLimiter::new(STALE_RETRY, MAX_STALE_RETRY);
        let outcomes = Outcomes { syncs: Syncs::default(), clock, max_retries, retry_level };
        let shared = Shared { queue, outcomes, stale, storm: Storm::default() };
        Queue { shared: Arc::new(shared) }
    }

    fn inner(&self) -> &RateLimitingQueue<K> {
        &self.shared.queue
    }

    pub(super) fn downgrade(&self) -> WeakQueue<K> {
        WeakQueue(Arc::downgrade(&self.shared))
    }

    /// Queues `key` for the next free worker: see [`RateLimitingQueue::add`].
    pub fn add(&self, key: K) {
        self.inner().add(key);
    }

    /// Adds `key` once `after` has passed: see [`RateLimitingQueue::add_after`].
    pub fn add_after(&self, key: K, after: Duration) {
        self.inner().add_after(key, after);
    }

    /// Sets the timer of `key`: see [`RateLimitingQueue::set_timer_after`].
    pub fn set_timer_after(&self, key: K, after: Duration) {
        self.inner().set_timer_after(key, after);
    }

    /// Stops the timer of `key`: see [`RateLimitingQueue::cancel_timer`].
    pub fn cancel_timer(&self, key: &K) -> bool {
        self.inner().cancel_timer(key)
    }

    /// Counts a failure of `key` and adds it after the limiter's delay: see
    /// [`RateLimitingQueue::add_rate_limited`]. For mappers; a sync returns its failure.
    pub fn add_rate_limited(&self, key: K) {
        self.inner().add_rate_limited(key);
    }

    /// Returns how often `key` failed in a row, as the limiter counts. Upstream: `NumRequeues`.
    pub fn retries(&self, key: &K) -> u32 {
        self.inner().num_requeues(key)
    }

    #[cfg(test)]
    pub(in crate::controllers) fn len(&self) -> usize {
        self.inner().len()
    }

    pub(super) fn status(&self) -> SyncStatus {
        self.shared.outcomes.syncs.status(self.inner().status())
    }

    pub(super) fn shut_down(&self) {
        self.inner().shut_down();
    }

    /// Works as one worker of `controller`: takes keys from the queue and calls `sync` with each,
    /// until the queue is shut down. After each sync it forgets or retries the key.
    pub(super) async fn work(self, controller: &'static str, sync: BoxSync<K>, stop: StopToken) {
        while let Some(key) = self.inner().get().await {
            let mut rest = Duration::ZERO;
            // Keys that are still queued at the stop are left to the next leader.
            if !stop.is_stopped() {
                let Shared { outcomes, storm, .. } = &*self.shared;
                let (began, traced) =
                    outcomes.begin_trace(self.inner().identity(), controller, &key);
                let span = traced.as_ref().map_or(0, |sync| sync.span);
                let scope = Scope { span, sync: LAST_SYNC.fetch_add(1, Ordering::Relaxed) + 1 };
                let work = Traced::new(scope, async {
                    panics::at(|| format!("sync of {controller}"));
                    sync(key.clone()).await
                });
                let result = catch_panic(controller, work).await;
                rest = outcomes.record_end(controller, &key, &result, began, traced, storm);
                // Retries and timers are caused by this sync.
                let _entered = trace::enter(scope);
                self.settle(controller, &key, result);
            }
            self.inner().done_resting(&key, rest);
        }
    }

    /// Forgets or retries `key`, depending on the `result` of its sync. `None`: the sync panicked.
    fn settle(&self, controller: &str, key: &K, result: Option<SyncResult>) {
        let Shared { queue, stale, .. } = &*self.shared;
        let retries = || queue.num_requeues(key);
        let end = self.shared.outcomes.record_result(controller, key, result, &retries);
        if !matches!(end, End::Stale) {
            stale.forget(key);
        }
        match end {
            End::Forget => queue.forget(key),
            End::After(delay) => {
                queue.forget(key);
                queue.add_after(key.clone(), delay.max(SHORTEST_DELAY));
            }
            End::Backoff => queue.add_rate_limited(key.clone()),
            End::Pause => {
                queue.forget(key);
                queue.retry_after(key.clone(), OUTAGE_PAUSE);
            }
            // Without the limiter's token bucket, which all keys share: after a storm of writes the
            // wait for its next token may be long.
            End::Stale => queue.retry_after(key.clone(), stale.when(key)),
        }
    }
}

/// The shortest delay of [`Next::After`]. Without it a key that comes back at once, from a sync
/// that never waits, would keep the thread busy.
const SHORTEST_DELAY: Duration = Duration::from_millis(1);

/// What happens to a key after its sync.
enum End {
    Forget,
    After(Duration),
    Backoff,
    /// Retried after [`OUTAGE_PAUSE`], as if it had not failed before.
    Pause,
    /// Retried after the delays of [`Error::Stale`].
    Stale,
}

impl Outcomes {
    /// Traces a sync that begins now. Returns the time, and the sync if it is traced.
    fn begin_trace(
        &self,
        queue: usize,
        controller: &str,
        key: &dyn Display,
    ) -> (Duration, Option<trace::SyncSpan>) {
        let now = self.clock.monotonic();
        (now, trace::sync_begins(queue, controller, key, now))
    }

    /// Counts a sync that ends now, and traces its end. Returns how long the key rests.
    fn record_end(
        &self,
        controller: &str,
        key: &dyn Display,
        result: &Option<SyncResult>,
        began: Duration,
        traced: Option<trace::SyncSpan>,
        storm: &Storm,
    ) -> Duration {
        let now = self.clock.monotonic();
        let took = now.saturating_sub(began);
        self.syncs.record_sync(took);
        if let Some(sync) = traced {
            trace::sync_ends(&sync, controller, key, &describe(result), now);
        }
        rest_after(result, storm, took, now)
    }

    /// Logs and counts the result of a sync of `key`, and returns what happens to the key, which
    /// has been retried `retries` times. Compiled once for all types of keys.
    fn record_result(
        &self,
        controller: &str,
        key: &dyn Display,
        result: Option<SyncResult>,
        retries: &dyn Fn() -> u32,
    ) -> End {
        let error = match result {
            Some(Ok(Next::Done)) => return End::Forget,
            Some(Ok(Next::After(delay))) => return End::After(delay),
            Some(Ok(Next::Backoff)) => return End::Backoff,
            None => {
                self.syncs.record_failure(key, "panic".into(), self.clock.now());
                return End::Backoff;
            }
            Some(Err(error)) => error,
        };
        if let Some(wait) = error.wait() {
            log::debug!("{controller}: {key} waits for {wait:?}: {}", Chain(&error));
            return End::After(wait);
        }
        let (is_stale, chain) = (error.is_stale(), Chain(&error));
        // A cache lags behind in every healthy start.
        if !is_stale {
            self.syncs.record_failure(key, chain.to_string(), self.clock.now());
        }
        if error.is_terminal() {
            log::error!("{controller}: Error syncing {key}, not retried: {chain}");
            return End::Forget;
        }
        if !is_stale && self.max_retries.is_some_and(|max| retries() >= max) {
            if error.may_pass() {
                log::error!(
                    "{controller}: Error syncing {key}, retried in {OUTAGE_PAUSE:?}: {chain}"
                );
                return End::Pause;
            }
            log::error!("{controller}: Dropping {key} out of the queue, too many retries: {chain}");
            return End::Forget;
        }
        let level = retry_log_level(&error, self.retry_level);
        log::log!(level, "{controller}: Error syncing {key}: {chain}");
        if is_stale { End::Stale } else { End::Backoff }
    }
}

/// Returns how long a key rests after a sync that ended at `now`: only in a storm, and not after a
/// failure, when the limiter decides when the key is retried.
fn rest_after(
    result: &Option<SyncResult>,
    storm: &Storm,
    took: Duration,
    now: Duration,
) -> Duration {
    if !matches!(result, Some(Ok(_))) {
        return Duration::ZERO;
    }
    storm.count_sync(now);
    match storm.is_on(now) {
        true => took.saturating_mul(REST_FACTOR).min(MAX_REST),
        false => Duration::ZERO,
    }
}

/// Returns the result of a sync as a text for the trace.
fn describe(result: &Option<SyncResult>) -> String {
    match result {
        None => "panic".into(),
        Some(Ok(Next::Done)) => "done".into(),
        Some(Ok(Next::After(delay))) => format!("again after {delay:?}"),
        Some(Ok(Next::Backoff)) => "again with back-off".into(),
        Some(Err(error)) => Chain(error).to_string(),
    }
}

/// Returns the log level of a failure that is retried: `level`, or debug if it is expected.
fn retry_log_level(error: &Error, level: log::Level) -> log::Level {
    if error.is_expected() { log::Level::Debug } else { level }
}

pub(super) type BoxSync<K> = Arc<dyn Fn(K) -> BoxFuture<'static, SyncResult> + Send + Sync>;

/// Returns the output of `work`, or `None` after a panic, which is logged and counted.
pub(super) async fn catch_panic<T>(controller: &str, work: impl Future<Output = T>) -> Option<T> {
    let output = task::caught(work).await;
    if let Err(panic) = &output {
        log::error!("{controller}: Observed a panic: {panic}");
        PANICS.with_label_values(&[controller]).inc();
    }
    output.ok()
}

/// Logs the failure of a periodic job, which has no key. `None`: it panicked, which
/// [`catch_panic`] has logged.
pub(super) fn log_job(controller: &str, result: Option<Result<(), Error>>) {
    if let Some(Err(error)) = result {
        let level = retry_log_level(&error, log::Level::Error);
        log::log!(level, "{controller}: {}", Chain(&error));
    }
}

#[cfg(test)]
pub(super) fn panics(controller: &str) -> u64 {
    PANICS.with_label_values(&[controller]).get()
}

#[cfg(test)]
impl<K: Key> Queue<K> {
    pub(in crate::controllers) fn for_test(clock: SharedClock) -> Queue<K> {
        Queue::new("test", QueuePolicy::default(), clock)
    }

    /// The keys that can be taken now, each done at once.
    pub(in crate::controllers) fn drain(&self) -> Vec<K> {
        let mut keys = Vec::new();
        let take = || futures_lite::future::poll_once(self.inner().get());
        while let Some(Some(key)) = futures_lite::future::block_on(take()) {
            self.inner().done(&key);
            keys.push(key);
        }
        keys
    }
}

#[cfg(test)]
mod tests {
    use log::Level;

    use super::*;
    use crate::client;
    use crate::clock::{Clock, FakeClock};
    use crate::objects::Timestamp;

    fn stale() -> Error {
        Error::Stale("behind".into())
    }

    fn not_yet() -> Error {
        Error::NotYet("not served".into())
    }

    #[test]
    fn a_stale_cache_does_not_count_in_the_rate_limiter() {
        let clock = FakeClock::new(Timestamp::from_secs(0));
        let (key, times) = ("k".to_owned(), 20);
        for (error, counted) in [(stale as fn() -> Error, 0), (not_yet, times)] {
            let queue: Queue<String> = Queue::for_test(clock.clone());
            (0..times).for_each(|_| queue.settle("c", &key, Some(Err(error()))));
            assert_eq!(queue.retries(&key), counted, "{}", error());
        }
    }

    #[test]
    fn retries_of_a_stale_cache_grow_to_seconds_until_it_has_caught_up() {
        let clock = FakeClock::new(Timestamp::from_secs(0));
        let queue: Queue<String> = Queue::for_test(clock.clone());
        let key = "k".to_owned();
        let wait_millis = |result: Option<SyncResult>| {
            queue.settle("c", &key, result);
            let mut waited = 0_u64;
            while queue.drain().is_empty() {
                clock.advance(Duration::from_millis(10));
                waited += 10;
            }
            waited
        };
        let waits: Vec<u64> = (0..11).map(|_| wait_millis(Some(Err(stale())))).collect();
        assert_eq!(waits, [10, 20, 40, 80, 160, 320, 640, 1280, 2560, 5000, 5000]);
        wait_millis(Some(Ok(Next::After(Duration::from_secs(1)))));
        assert_eq!(wait_millis(Some(Err(stale()))), 10, "reset by a sync that was not stale");
    }

    #[test]
    fn keys_that_have_failed_in_an_outage_are_retried_soon_after_it() {
        let clock = FakeClock::new(Timestamp::from_secs(0));
        for (retries, failures) in [(QueuePolicy::default(), 18), (QueuePolicy::at_most(3), 3)] {
            let queue: Queue<String> = Queue::new("", retries, clock.clone());
            for _ in 0..failures {
                let (request, source) = ("GET /".to_owned(), "refused".into());
                let error = client::Error::Transport { request, source };
                queue.settle("c", &"k".to_owned(), Some(Err(error.into())));
                clock.advance(Duration::from_secs(50));
            }
            queue.drain();
            let error = client::Error::Transport { request: "GET /".into(), source: "no".into() };
            queue.settle("c", &"k".to_owned(), Some(Err(error.into())));
            clock.advance(Duration::from_secs(30));
            assert_eq!(queue.drain().len(), 0, "{failures} failures");
            queue.downgrade().advance_retries(Duration::from_secs(2));
            clock.advance(Duration::from_secs(2));
            assert_eq!(queue.drain().len(), 1, "{failures} failures");
            // What fails once more begins with short delays.
            let error = client::Error::Transport { request: "GET /".into(), source: "no".into() };
            queue.settle("c", &"k".to_owned(), Some(Err(error.into())));
            clock.advance(Duration::from_secs(1));
            assert_eq!(queue.drain().len(), 1, "{failures} failures");
        }
    }

    #[test]
    fn a_key_rests_after_a_sync_in_a_storm() {
        // `None`: the sync fails.
        for (is_storm, next, took, rest) in [
            (true, Some(Next::Done), 0, 0),
            (true, Some(Next::Done), 5, 20),
            (true, Some(Next::Done), 100, 400),
            (true, Some(Next::Done), 9_000, 500),
            (false, Some(Next::Done), 9_000, 0),
            (true, None, 1, 0),
        ] {
            let clock = FakeClock::new(Timestamp::from_secs(0));
            let queue: Queue<String> = Queue::new("", QueuePolicy::default(), clock.clone());
            let (time, syncs) = (clock.clone(), Arc::new(AtomicU64::new(0)));
            let (count, shared) = (syncs.clone(), queue.shared.clone());
            let sync: BoxSync<String> = Arc::new(move |_| {
                time.advance(Duration::from_millis(took));
                if is_storm {
                    (0..1_000).for_each(|_| shared.storm.count_sync(time.monotonic()));
                }
                count.fetch_add(1, Ordering::Relaxed);
                Box::pin(async move { next.ok_or_else(|| Error::other("no")) })
            });
            let work = queue.clone().work("c", sync, StopToken::new());
            let mut work = std::pin::pin!(work);
            let mut run = || {
                let ended =
                    futures_lite::future::block_on(futures_lite::future::poll_once(&mut work));
                assert!(ended.is_none());
                syncs.swap(0, Ordering::Relaxed)
            };
            queue.add("k".to_owned());
            assert_eq!(run(), 1, "the first sync waits for nothing");
            queue.add("k".to_owned());
            if rest > 0 {
                clock.advance(Duration::from_millis(rest - 1));
                assert_eq!(run(), 0, "{next:?} after {took} ms");
                clock.advance(Duration::from_millis(1));
            }
            assert_eq!(run(), 1, "{next:?} after {took} ms");
        }
    }

    #[test]
    fn a_controller_sets_the_level_at_which_its_retries_are_logged() {
        for (retries, expected) in [
            (QueuePolicy::default(), [Level::Error, Level::Debug, Level::Debug]),
            (
                QueuePolicy::default().logged_as(Level::Info),
                [Level::Info, Level::Debug, Level::Debug],
            ),
        ] {
            let QueuePolicy::<String> { level, .. } = retries;
            let errors = [Error::other("conflict"), stale(), not_yet()];
            assert_eq!(errors.map(|error| retry_log_level(&error, level)), expected);
        }
    }
}
