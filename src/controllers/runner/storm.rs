//! The definition of a storm, in which the keys of a queue rest between their syncs.

use std::time::Duration;

use parking_lot::Mutex;

/// Syncs that may happen at once without a storm.
const BURST: f64 = 200.0;
/// Syncs a second that are not a storm, even if they never end.
const RATE: f64 = 20.0;

/// Counts the syncs of one queue, and says whether they are a storm. Upstream has no counterpart.
///
/// Rest saves CPU when thousands of things happen, and costs latency when one person changes one
/// object: it is a token bucket, full at first, and there is a storm while it is empty. Syncs while
/// it is empty are not counted, so a storm ends within 50 ms of its last sync. Methods never wait.
#[derive(Debug)]
pub(super) struct Storm {
    bucket: Mutex<Bucket>,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    tokens: f64,
    /// When the tokens were counted.
    at: Duration,
}

impl Default for Storm {
    fn default() -> Storm {
        Storm { bucket: Mutex::new(Bucket { tokens: BURST, at: Duration::ZERO }) }
    }
}

impl Storm {
    /// Counts a sync. `now` is monotonic time and the same clock's in all calls.
    pub fn count_sync(&self, now: Duration) {
        let mut bucket = self.bucket.lock();
        let tokens = (bucket.tokens_at(now) - 1.0).max(0.0);
        *bucket = Bucket { tokens, at: now };
    }

    /// Whether there is a storm at `now`, which is monotonic time. Counts nothing.
    pub fn is_on(&self, now: Duration) -> bool {
        self.bucket.lock().tokens_at(now) < 1.0
    }
}

impl Bucket {
    /// Returns the tokens at `now`, with those that have come since the last sync.
    fn tokens_at(&self, now: Duration) -> f64 {
        let grown = now.saturating_sub(self.at).as_secs_f64() * RATE;
        (self.tokens + grown).min(BURST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Duration = Duration::from_secs(1_000);

    fn millis(millis: u64) -> Duration {
        START + Duration::from_millis(millis)
    }

    #[test]
    fn a_burst_is_no_storm_and_a_flood_is() {
        let storm = Storm::default();
        for sync in 0..200 {
            assert!(!storm.is_on(START), "{sync}");
            storm.count_sync(START);
        }
        assert!(storm.is_on(START));
        (0..1_000).for_each(|_| storm.count_sync(START));
        assert!(!storm.is_on(millis(50)), "it ends when no sync comes");
        storm.count_sync(millis(50));
        assert!(storm.is_on(millis(50)), "it lasts while syncs continue");
    }

    #[test]
    fn a_steady_pace_is_no_storm() {
        let storm = Storm::default();
        for at in 0..10_000 {
            let now = millis(at * 50);
            assert!(!storm.is_on(now), "{at}");
            storm.count_sync(now);
        }
    }
}
