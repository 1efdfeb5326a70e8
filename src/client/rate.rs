//! A token bucket. Upstream: `flowcontrol.NewTokenBucketRateLimiter`.

use parking_lot::Mutex;
use std::time::Duration;

use crate::clock::SharedClock;

/// The token bucket of one client's requests.
pub(super) struct Bucket {
    qps: f64,
    burst: f64,
    clock: SharedClock,
    /// Tokens, and when they were counted. Negative: requests wait for them.
    state: Mutex<(f64, Duration)>,
}

impl Bucket {
    /// Makes a full bucket: `qps` tokens a second, at most `burst` at once. No limit when `qps` is
    /// zero or less.
    pub fn new(qps: f64, burst: u32, clock: SharedClock) -> Bucket {
        let burst = f64::from(burst.max(1));
        let now = clock.monotonic();
        Bucket { qps, burst, clock, state: Mutex::new((burst, now)) }
    }

    /// Takes a token. Returns how long the caller has to wait for it; zero if there is no rate,
    /// which means no limit.
    fn reserve(&self) -> Duration {
        if self.qps <= 0.0 {
            return Duration::ZERO;
        }
        let now = self.clock.monotonic();
        let mut state = self.state.lock();
        let (tokens, at) = *state;
        let gained = now.saturating_sub(at).as_secs_f64() * self.qps;
        let tokens = (tokens + gained).min(self.burst) - 1.0;
        *state = (tokens, now);
        if tokens >= 0.0 {
            return Duration::ZERO;
        }
        // A tiny rate makes a wait that no `Duration` holds.
        Duration::try_from_secs_f64(-tokens / self.qps).unwrap_or(Duration::MAX)
    }

    /// Takes a token, and waits for it.
    pub async fn take(&self) {
        let wait = self.reserve();
        if !wait.is_zero() {
            self.clock.sleep(wait).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_lite::future::{block_on, poll_once};

    use super::*;
    use crate::clock::FakeClock;
    use crate::objects::Timestamp;

    #[test]
    fn the_burst_passes_at_once_and_then_the_rate_applies() {
        let clock = FakeClock::new(Timestamp::default());
        let bucket = Bucket::new(10.0, 2, clock.clone());
        let waits: Vec<u128> = (0..4).map(|_| bucket.reserve().as_millis()).collect();
        assert_eq!(waits, [0, 0, 100, 200]);
        clock.advance(Duration::from_secs(60));
        assert_eq!([bucket.reserve(), bucket.reserve()], [Duration::ZERO; 2]);
        assert_eq!(bucket.reserve().as_millis(), 100);
        assert_eq!(Bucket::new(-1.0, 1, clock).reserve(), Duration::ZERO);
    }

    #[test]
    fn any_number_is_a_rate() {
        // As --kube-api-qps takes them, times the factor of a faster client.
        for (qps, expected) in [
            (f64::from(f32::from_bits(1)), Duration::MAX),
            (f64::from(f32::from_bits(1)) * 10.0, Duration::MAX),
            (1e-300, Duration::MAX),
            (1e-12, Duration::from_secs(1_000_000_000_000)),
            (f64::from(f32::MAX) * 10.0, Duration::ZERO),
            (f64::INFINITY, Duration::ZERO),
            (f64::NAN, Duration::ZERO),
            (f64::NEG_INFINITY, Duration::ZERO),
        ] {
            let clock = FakeClock::new(Timestamp::default());
            let bucket = Bucket::new(qps, 1, clock.clone());
            assert_eq!([bucket.reserve(), bucket.reserve()], [Duration::ZERO, expected], "{qps}");
            // A wait of any length does not panic.
            let mut waiting = Box::pin(bucket.take());
            let waits = block_on(poll_once(&mut waiting)).is_none();
            assert_eq!(waits, expected > Duration::ZERO, "{qps}");
            clock.advance(Duration::from_secs(60));
        }
    }
}
