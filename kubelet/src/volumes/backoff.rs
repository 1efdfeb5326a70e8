//! When the next attempt at a volume that failed is due. Upstream: `exponentialbackoff`.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(500);
pub(super) const LONGEST: Duration = Duration::from_secs(122);

/// The failures of one volume, one after the other.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Backoff {
    delay: Duration,
    until: Duration,
}

impl Backoff {
    /// Records a failure at a time of the monotonic clock. Returns the delay until the next
    /// attempt.
    pub(super) fn fail(&mut self, now: Duration) -> Duration {
        self.delay = (self.delay * 2).clamp(FIRST, LONGEST);
        self.until = now + self.delay;
        self.delay
    }

    /// Returns the time until the next attempt; zero: now.
    pub(super) fn remaining(&self, now: Duration) -> Duration {
        self.until.saturating_sub(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_from_half_a_second_to_two_minutes() {
        let mut backoff = Backoff::default();
        let second = Duration::from_secs(1);
        assert_eq!(backoff.remaining(second), Duration::ZERO);
        let delays: Vec<u128> = (0..10).map(|_| backoff.fail(second).as_millis()).collect();
        let expected = [500, 1000, 2000, 4000, 8000, 16_000, 32_000, 64_000, 122_000, 122_000];
        assert_eq!(delays, expected);
        assert_eq!(backoff.remaining(second * 23), second * 100);
        assert_eq!(backoff.remaining(second * 200), Duration::ZERO);
    }
}
