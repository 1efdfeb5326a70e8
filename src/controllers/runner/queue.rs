//! A controller's queue and what its workers do with a key.

use parking_lot::Mutex;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::Duration;

use futures_lite::FutureExt;
use prometheus::{IntCounterVec, register_int_counter_vec};

use super::error::Chain;
use super::{Error, Next, SyncResult};
use crate::cache::BoxFuture;
use crate::clock::{SharedClock, SystemClock};
use crate::objects::ObjectKey;
use crate::task::StopToken;
use crate::workqueue::{Key, RateLimiter, RateLimitingQueue, default_controller_rate_limiter};

static PANICS: LazyLock<IntCounterVec> = LazyLock::new(|| {
    register_int_counter_vec!(
        "controller_panics_total",
        "Panics of a controller's syncs and jobs that were caught.",
        &["controller"]
    )
    .expect("registered once, with a valid name")
});

/// How soon a key is looked at again whose cache lagged behind its own writes.
const STALE_RETRY: Duration = Duration::from_millis(100);

/// The clock of a controller: the system's, unless another was set before the first look.
#[derive(Clone, Default)]
pub(super) struct ControllerClock(Arc<OnceLock<SharedClock>>);

impl ControllerClock {
    pub fn get(&self) -> SharedClock {
        self.0.get_or_init(SystemClock::shared).clone()
    }

    pub fn set(&self, clock: SharedClock) {
        if self.0.set(clock).is_err() {
            log::warn!("a controller's clock was set after its first use: not changed");
        }
    }
}

/// A controller's handle on one of its queues. Cheap to clone; may be given to syncs and handlers.
pub struct Queue<K = ObjectKey> {
    shared: Arc<Shared<K>>,
}

struct Shared<K> {
    name: &'static str,
    workers: usize,
    clock: ControllerClock,
    /// Another than the default one; taken with the first use.
    limiter: Mutex<Option<Arc<dyn RateLimiter<K>>>>,
    /// `u32::MAX`: no end.
    max_retries: AtomicU32,
    /// Of a failure that is to be tried again, if not an error.
    retry_level: OnceLock<log::Level>,
    /// Made with the first use, when limiter and clock are known.
    queue: OnceLock<RateLimitingQueue<K>>,
}

impl<K> Clone for Queue<K> {
    fn clone(&self) -> Self {
        Queue { shared: self.shared.clone() }
    }
}

impl<K: Key> Queue<K> {
    pub(super) fn new(name: &'static str, workers: usize, clock: ControllerClock) -> Queue<K> {
        Queue {
            shared: Arc::new(Shared {
                name,
                workers,
                clock,
                limiter: Mutex::new(None),
                max_retries: AtomicU32::new(u32::MAX),
                retry_level: OnceLock::new(),
                queue: OnceLock::new(),
            }),
        }
    }

    fn inner(&self) -> &RateLimitingQueue<K> {
        let Shared { name, clock, limiter, queue, .. } = &*self.shared;
        queue.get_or_init(|| {
            let clock = clock.get();
            let limiter = limiter.lock().take();
            let limiter = limiter.unwrap_or_else(|| default_controller_rate_limiter(clock.clone()));
            RateLimitingQueue::new(name, clock, limiter)
        })
    }

    /// Another limiter than `DefaultTypedControllerRateLimiter`; before the start.
    pub fn limiter(self, limiter: Arc<dyn RateLimiter<K>>) -> Queue<K> {
        *self.shared.limiter.lock() = Some(limiter);
        self
    }

    /// Give up on a key after so many failures in a row (upstream's `maxRetries`).
    pub fn max_retries(self, retries: u32) -> Queue<K> {
        self.shared.max_retries.store(retries, Ordering::Relaxed);
        self
    }

    /// Log failures that are tried again as no more than `level`; before the start. Where a
    /// conflict is an everyday thing upstream does so, and tells of those alone that it gives up on.
    pub fn log_retries(self, level: log::Level) -> Queue<K> {
        self.shared.retry_level.get_or_init(|| level);
        self
    }

    pub fn add(&self, key: K) {
        self.inner().add(key);
    }

    pub fn add_after(&self, key: K, after: Duration) {
        self.inner().add_after(key, after);
    }

    pub fn add_rate_limited(&self, key: K) {
        self.inner().add_rate_limited(key);
    }

    /// How often `key` failed since it was last forgotten.
    pub fn retries(&self, key: &K) -> u32 {
        self.inner().num_requeues(key)
    }

    pub(super) fn workers(&self) -> usize {
        self.shared.workers
    }

    pub(super) fn shut_down(&self) {
        self.inner().shut_down();
    }

    /// One worker: takes keys until the queue is shut down.
    pub(super) async fn work(self, controller: &'static str, sync: BoxSync<K>, stop: StopToken) {
        while let Some(key) = self.inner().get().await {
            // What is still queued at the stop is left to the next leader.
            if !stop.is_stopped() {
                let result = caught(controller, || sync(key.clone())).await;
                self.settle(controller, &key, result);
            }
            self.inner().done(&key);
        }
    }

    /// Forgets or retries `key`, as `result` asks. `None`: the sync panicked.
    fn settle(&self, controller: &str, key: &K, result: Option<SyncResult>) {
        let queue = self.inner();
        let error = match result {
            Some(Ok(Next::Done)) => return queue.forget(key),
            Some(Ok(Next::After(delay))) => {
                queue.forget(key);
                return queue.add_after(key.clone(), delay);
            }
            Some(Ok(Next::Backoff)) | None => return queue.add_rate_limited(key.clone()),
            Some(Err(error)) => error,
        };
        if error.is_terminal() {
            log::error!("{controller}: Error syncing {key}, not retried: {}", Chain(&error));
            return queue.forget(key);
        }
        if queue.num_requeues(key) >= self.shared.max_retries.load(Ordering::Relaxed) {
            log::error!(
                "{controller}: Dropping {key} out of the queue, too many retries: {}",
                Chain(&error)
            );
            return queue.forget(key);
        }
        log::log!(self.retry_level(&error), "{controller}: Error syncing {key}: {}", Chain(&error));
        if error.is_stale() {
            // The key did nothing wrong. A turn in the bucket that all failures share could be long
            // in coming, after a storm of writes, when the cache is up to date within milliseconds.
            return queue.add_after(key.clone(), STALE_RETRY);
        }
        queue.add_rate_limited(key.clone());
    }

    /// How a failure is logged that is tried again.
    fn retry_level(&self, error: &Error) -> log::Level {
        match self.shared.retry_level.get() {
            _ if error.is_expected() => log::Level::Debug,
            Some(level) => *level,
            None => log::Level::Error,
        }
    }
}

pub(super) type BoxSync<K> = Arc<dyn Fn(K) -> BoxFuture<'static, SyncResult> + Send + Sync>;

/// What `run` gives, or `None` when it panicked: logged and counted.
pub(super) async fn caught<T>(
    controller: &str,
    run: impl FnOnce() -> BoxFuture<'static, T>,
) -> Option<T> {
    // Nothing of a sync's own is looked at after its panic; what it shares guards itself.
    match AssertUnwindSafe(async { run().await }).catch_unwind().await {
        Ok(output) => Some(output),
        Err(panic) => {
            let what = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| panic.downcast_ref::<&str>().copied())
                .unwrap_or("no message");
            log::error!("{controller}: Observed a panic: {what}");
            PANICS.with_label_values(&[controller]).inc();
            None
        }
    }
}

/// Logs the end of a job that belongs to no key.
pub(super) fn log_job(controller: &str, result: Option<Result<(), Error>>) {
    if let Some(Err(error)) = result {
        let level = if error.is_expected() { log::Level::Debug } else { log::Level::Error };
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
        let of = ControllerClock::default();
        of.set(clock);
        Queue::new("test", 1, of)
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
    use crate::clock::FakeClock;
    use crate::objects::Timestamp;

    fn stale() -> Error {
        Error::Stale("behind".into())
    }

    fn not_yet() -> Error {
        Error::NotYet("not served".into())
    }

    #[test]
    fn only_our_own_writes_are_waited_for_without_backoff() {
        let clock = FakeClock::new(Timestamp::from_secs(0));
        let (key, times) = ("k".to_owned(), 20);
        for (error, counted) in [(stale as fn() -> Error, 0), (not_yet, times)] {
            let queue: Queue<String> = Queue::for_test(clock.clone());
            (0..times).for_each(|_| queue.settle("c", &key, Some(Err(error()))));
            assert_eq!(queue.retries(&key), counted, "{}", error());
        }
    }

    #[test]
    fn a_controller_says_how_its_retries_are_logged() {
        let clock = FakeClock::new(Timestamp::from_secs(0));
        for (level, expected) in [
            (None, [Level::Error, Level::Debug, Level::Debug]),
            (Some(Level::Info), [Level::Info, Level::Debug, Level::Debug]),
        ] {
            let queue: Queue<String> = Queue::for_test(clock.clone());
            let queue = level.into_iter().fold(queue, Queue::log_retries);
            let errors = [Error::other("conflict"), stale(), not_yet()];
            assert_eq!(errors.map(|error| queue.retry_level(&error)), expected);
        }
    }
}
