//! The delay before a failed key is retried.
//! Upstream: util/workqueue/default_rate_limiters.go.

use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::{Key, TokenBucket};
use crate::clock::SharedClock;

/// Decides the delay before a failed key is retried. Upstream: `TypedRateLimiter`. Methods are
/// called from several tasks at once; they do not wait.
pub trait RateLimiter<K>: Send + Sync + 'static {
    /// Counts one more failure of `key`, and returns the delay before its retry. Each call counts,
    /// so call it once for each failure.
    fn when(&self, key: &K) -> Duration;
    /// Forgets the failures of `key`, after a success or when the key is given up.
    fn forget(&self, key: &K);
    /// How often `key` failed since it was last forgotten. Upstream: `NumRequeues`.
    fn retries(&self, key: &K) -> u32;
}

/// Makes a limiter of the longer of two delays: 5 ms, doubling with each failure of the key to
/// 1,000 s; and the wait for a token of a bucket that all keys share, with 10 tokens a second and a
/// burst of 100. So after many failures a key may wait for the bucket although it failed for the
/// first time. Upstream: `DefaultTypedControllerRateLimiter`.
pub fn default_controller_rate_limiter<K: Key>(clock: SharedClock) -> Arc<dyn RateLimiter<K>> {
    Arc::new(MaxOfRateLimiter::new(vec![
        exponential_failure_rate_limiter(Duration::from_millis(5), Duration::from_secs(1000)),
        Arc::new(BucketRateLimiter::new(10.0, 100, clock)),
    ]))
}

/// Makes an [`ItemExponentialFailureRateLimiter`] as a trait object. Upstream:
/// `NewTypedItemExponentialFailureRateLimiter`.
pub fn exponential_failure_rate_limiter<K: Key>(
    base: Duration,
    max: Duration,
) -> Arc<dyn RateLimiter<K>> {
    Arc::new(ItemExponentialFailureRateLimiter::new(base, max))
}

/// Failures in a row, by key.
struct Failures<K>(Mutex<HashMap<K, u32>>);

impl<K: Key> Failures<K> {
    fn new() -> Failures<K> {
        Failures(Mutex::default())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<K, u32>> {
        self.0.lock()
    }

    /// Counts one more failure, and returns the number before it.
    fn increment(&self, key: &K) -> u32 {
        let mut failures = self.lock();
        let Some(count) = failures.get_mut(key) else {
            failures.insert(key.clone(), 1);
            return 0;
        };
        let before = *count;
        *count = before.saturating_add(1);
        before
    }

    /// Forgets the failures of `key`, and frees memory after a burst.
    fn forget(&self, key: &K) {
        let mut failures = self.lock();
        if failures.remove(key).is_some() && failures.is_empty() && failures.capacity() > 256 {
            failures.shrink_to_fit();
        }
    }

    fn get(&self, key: &K) -> u32 {
        self.lock().get(key).copied().unwrap_or(0)
    }
}

/// Delays a key by `base * 2^failures`, at most `max`. Holds an entry for each key that failed
/// until the key is forgotten: forget keys that are given up. Upstream:
/// `TypedItemExponentialFailureRateLimiter`.
pub struct ItemExponentialFailureRateLimiter<K> {
    failures: Failures<K>,
    base: Duration,
    max: Duration,
}

impl<K: Key> ItemExponentialFailureRateLimiter<K> {
    /// Makes a limiter: the first failure of a key waits for `base`. If `max` is shorter, each
    /// waits for `max`.
    pub fn new(base: Duration, max: Duration) -> Self {
        ItemExponentialFailureRateLimiter { failures: Failures::new(), base, max }
    }
}

impl<K: Key> RateLimiter<K> for ItemExponentialFailureRateLimiter<K> {
    /// Returns `base`, doubled for each failure before this one, but at most `max`.
    fn when(&self, key: &K) -> Duration {
        let delay = match 1u32.checked_shl(self.failures.increment(key)) {
            Some(factor) => self.base.saturating_mul(factor),
            None => self.max,
        };
        delay.min(self.max)
    }
    fn forget(&self, key: &K) {
        self.failures.forget(key);
    }
    fn retries(&self, key: &K) -> u32 {
        self.failures.get(key)
    }
}

/// One [`TokenBucket`] for all keys together: it counts no failures, and forgetting a key gives no
/// token back. Upstream: `TypedBucketRateLimiter`.
pub struct BucketRateLimiter(TokenBucket);

impl BucketRateLimiter {
    /// Makes a full bucket: see [`TokenBucket::new`].
    pub fn new(per_second: f64, burst: u32, clock: SharedClock) -> BucketRateLimiter {
        BucketRateLimiter(TokenBucket::new(per_second, burst, clock))
    }
}

impl<K> RateLimiter<K> for BucketRateLimiter {
    /// Takes a token, and returns the wait for it.
    fn when(&self, _: &K) -> Duration {
        self.0.reserve()
    }
    fn forget(&self, _: &K) {}
    fn retries(&self, _: &K) -> u32 {
        0
    }
}

/// The longest delay and the most failures of several limiters. Each call counts in all of them.
/// Upstream: `TypedMaxOfRateLimiter`.
pub struct MaxOfRateLimiter<K> {
    limiters: Vec<Arc<dyn RateLimiter<K>>>,
}

impl<K: Key> MaxOfRateLimiter<K> {
    /// Makes a limiter of several; without any no key waits.
    pub fn new(limiters: Vec<Arc<dyn RateLimiter<K>>>) -> Self {
        MaxOfRateLimiter { limiters }
    }
}

impl<K: Key> RateLimiter<K> for MaxOfRateLimiter<K> {
    fn when(&self, key: &K) -> Duration {
        self.limiters.iter().map(|limiter| limiter.when(key)).max().unwrap_or_default()
    }
    fn forget(&self, key: &K) {
        self.limiters.iter().for_each(|limiter| limiter.forget(key));
    }
    fn retries(&self, key: &K) -> u32 {
        self.limiters.iter().map(|limiter| limiter.retries(key)).max().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::FakeClock;

    fn millis(limiter: &dyn RateLimiter<char>, key: char, times: usize) -> Vec<u128> {
        (0..times).map(|_| limiter.when(&key).as_millis()).collect()
    }

    #[test]
    fn the_delay_of_a_key_doubles_with_each_failure() {
        let limiter =
            exponential_failure_rate_limiter(Duration::from_millis(1), Duration::from_millis(20));
        assert_eq!(millis(&*limiter, 'a', 7), [1, 2, 4, 8, 16, 20, 20]);
        assert_eq!((limiter.retries(&'a'), limiter.retries(&'b')), (7, 0));
        assert_eq!(millis(&*limiter, 'b', 1), [1]);
        limiter.forget(&'a');
        assert_eq!((limiter.retries(&'a'), limiter.retries(&'b')), (0, 1));
        assert_eq!(millis(&*limiter, 'a', 2), [1, 2]);
        let forever =
            exponential_failure_rate_limiter(Duration::from_millis(1), Duration::from_secs(1000));
        let waits = millis(&*forever, 'a', 100);
        assert_eq!((waits[19], waits[20], waits[99]), (524_288, 1_000_000, 1_000_000));
    }

    #[test]
    fn the_default_paces_all_keys_once_the_burst_is_spent() {
        let clock = FakeClock::new(Default::default());
        let limiter = default_controller_rate_limiter::<char>(clock.clone());
        for key in ('a'..).take(100) {
            assert_eq!(limiter.when(&key), Duration::from_millis(5));
        }
        assert_eq!(millis(&*limiter, '1', 2), [100, 200]);
        clock.advance(Duration::from_millis(200));
        assert_eq!(millis(&*limiter, '2', 1), [100]);
        // No more than the burst is saved up.
        clock.advance(Duration::from_secs(3600));
        for key in ('A'..).take(100) {
            limiter.forget(&key);
            assert_eq!(limiter.when(&key), Duration::from_millis(5));
        }
        assert_eq!(millis(&*limiter, '3', 1), [100]);
        assert_eq!(limiter.retries(&'1'), 2);
    }
}
