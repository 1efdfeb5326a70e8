//! The definition of a storm: one rule for all code that gathers events, rests after work or waits
//! for a tick.
//!
//! Waiting saves CPU when thousands of things happen, and costs latency when one person changes one
//! object. So code waits only during a storm; an event at a human's pace is never delayed.
//! [`guide::waiting`](crate::guide::waiting) lists who waits for what. Upstream has no counterpart.

#![warn(missing_docs)]

use std::time::Duration;

use parking_lot::Mutex;

/// Events that may happen at once without a storm: a few changes of each of several hundred pods.
const BURST: f64 = 1_000.0;
/// Events a second that are not a storm, even if they never end.
const RATE: f64 = 100.0;

/// Counts the events of one source, and says whether they are a storm. Upstream has no counterpart.
///
/// It is a token bucket of 1,000 tokens, full at first, that gains 100 a second: there is a storm
/// while it is empty. Events while the bucket is empty are not counted, so a storm ends within 10
/// ms of its last event. Methods never wait.
#[derive(Debug)]
pub struct Storm {
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
    /// Counts an event that costs as much as `weight` plain ones. `now` is monotonic time and the
    /// same clock's in all calls.
    pub fn count(&self, now: Duration, weight: u32) {
        let mut bucket = self.bucket.lock();
        let tokens = (bucket.at(now) - f64::from(weight)).max(0.0);
        *bucket = Bucket { tokens, at: now };
    }

    /// Whether there is a storm at `now`, which is monotonic time. Counts nothing.
    pub fn is_on(&self, now: Duration) -> bool {
        self.bucket.lock().at(now) < 1.0
    }
}

impl Bucket {
    fn at(&self, now: Duration) -> f64 {
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
        for event in 0..1_000 {
            assert!(!storm.is_on(START), "{event}");
            storm.count(START, 1);
        }
        assert!(storm.is_on(START));
        storm.count(START, 1_000_000);
        assert!(!storm.is_on(millis(10)), "it ends when no event comes");
        storm.count(millis(10), 1);
        assert!(storm.is_on(millis(10)), "it lasts while events continue");
    }

    #[test]
    fn a_steady_pace_is_no_storm() {
        let storm = Storm::default();
        for at in 0..10_000 {
            let now = millis(at * 10);
            assert!(!storm.is_on(now), "{at}");
            storm.count(now, 1);
        }
    }

    #[test]
    fn events_have_weights() {
        let storm = Storm::default();
        (0..200).for_each(|_| storm.count(START, 5));
        assert!(storm.is_on(START));
    }
}
