//! A token bucket. Upstream: `flowcontrol.NewTokenBucketRateLimiter`.

use parking_lot::Mutex;
use std::time::Duration;

use crate::clock::SharedClock;

pub(super) struct Bucket {
    qps: f64,
    burst: f64,
    clock: SharedClock,
    /// Tokens, and when they were counted. Negative: requests wait for them.
    state: Mutex<(f64, Duration)>,
}

impl Bucket {
    /// `qps` tokens a second, at most `burst` at once. No limit when `qps` is zero or less.
    pub fn new(qps: f64, burst: u32, clock: SharedClock) -> Bucket {
        let burst = f64::from(burst.max(1));
        let now = clock.monotonic();
        Bucket { qps, burst, clock, state: Mutex::new((burst, now)) }
    }

    /// Takes a token. Returns how long the caller has to wait for it.
    fn reserve(&self) -> Duration {
        if self.qps <= 0.0 {
            return Duration::ZERO;
        }
        let now = self.clock.monotonic();
        let mut state = self.state.lock();
        let (tokens, at) = *state;
        let grown = tokens + now.saturating_sub(at).as_secs_f64() * self.qps;
        let left = grown.min(self.burst) - 1.0;
        *state = (left, now);
        if left >= 0.0 { Duration::ZERO } else { Duration::from_secs_f64(-left / self.qps) }
    }

    pub async fn take(&self) {
        let wait = self.reserve();
        if !wait.is_zero() {
            self.clock.sleep(wait).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::FakeClock;
    use crate::objects::Timestamp;

    #[test]
    fn a_burst_and_then_the_rate() {
        let clock = FakeClock::new(Timestamp::default());
        let bucket = Bucket::new(10.0, 2, clock.clone());
        let waits: Vec<u128> = (0..4).map(|_| bucket.reserve().as_millis()).collect();
        assert_eq!(waits, [0, 0, 100, 200]);
        clock.advance(Duration::from_secs(60));
        assert_eq!([bucket.reserve(), bucket.reserve()], [Duration::ZERO; 2]);
        assert_eq!(bucket.reserve().as_millis(), 100);
        assert_eq!(Bucket::new(-1.0, 1, clock).reserve(), Duration::ZERO);
    }
}
