//! Delays that double with each failure of a key. Upstream: `client-go/util/flowcontrol.Backoff`.

use std::collections::HashMap;
use std::time::Duration;

/// After this time without an event a key starts over, with each maximum. Upstream: the
/// `HasExpiredFunc` of containers; for images, twice their maximum.
const EXPIRES_AFTER: Duration = Duration::from_secs(600);

/// Delays of events by their keys. Times are [`Duration`]s since a common start.
#[derive(Debug)]
pub struct Backoff {
    initial: Duration,
    max: Duration,
    entries: HashMap<String, Entry>,
}

#[derive(Debug)]
struct Entry {
    delay: Duration,
    updated: Duration,
    /// The last event by its wall-clock time in nanoseconds, and when it was.
    event: Option<(i64, Duration)>,
}

impl Backoff {
    pub fn new(initial: Duration, max: Duration) -> Backoff {
        Backoff { initial, max, entries: HashMap::new() }
    }

    /// Returns when the last event of `key` was, on the monotonic clock. `nanos`: its wall-clock
    /// time. `seen`: its time as computed from the present wall clock. What was computed first is
    /// kept, as that clock may be set. Upstream computes it again each time, so that a key waits
    /// longer after the clock was set back.
    pub fn event(&mut self, key: &str, nanos: i64, seen: Duration) -> Duration {
        let Some(entry) = self.entries.get_mut(key) else { return seen };
        match entry.event {
            Some((same, at)) if same == nanos => at,
            _ => {
                entry.event = Some((nanos, seen));
                seen
            }
        }
    }

    /// Returns the time until which `key` has to wait after its last event; `None`: it need not
    /// wait. Upstream: `IsInBackOffSince`.
    pub fn until(&self, key: &str, event: Duration, now: Duration) -> Option<Duration> {
        let entry = self.entries.get(key)?;
        let until = event + entry.delay;
        (!entry.is_expired(event) && now < until).then_some(until)
    }

    /// Returns whether `key` has to wait after its last event. Upstream: `IsInBackOffSinceUpdate`.
    pub fn is_waiting(&self, key: &str, now: Duration) -> bool {
        self.entries.get(key).is_some_and(|entry| now < entry.updated + entry.delay)
    }

    /// Counts an event: the next one of `key` has to wait twice as long as this one.
    /// Upstream: `Next`.
    pub fn next(&mut self, key: &str, event: Duration, now: Duration) {
        let last = self.entries.get(key);
        let delay = match last {
            Some(entry) if !entry.is_expired(event) => (entry.delay * 2).min(self.max),
            _ => self.initial.min(self.max),
        };
        let event = last.and_then(|entry| entry.event);
        self.entries.insert(key.to_owned(), Entry { delay, updated: now, event });
    }

    /// Returns the delay of `key` after its last event.
    pub fn delay(&self, key: &str) -> Option<Duration> {
        self.entries.get(key).map(|entry| entry.delay)
    }

    /// Forgets a key, after a success.
    pub fn reset(&mut self, key: &str) {
        self.entries.remove(key);
    }

    /// Forgets the keys whose last event is long ago. Upstream: `GC`.
    pub fn remove_expired(&mut self, now: Duration) {
        self.entries.retain(|_, entry| !entry.is_expired(now));
    }
}

impl Entry {
    /// Returns whether the key starts over with an event at this time.
    fn is_expired(&self, event: Duration) -> bool {
        event.saturating_sub(self.updated) > EXPIRES_AFTER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_maximum_and_end_after_a_long_run() {
        let seconds = Duration::from_secs;
        let mut backoff = Backoff::new(seconds(10), seconds(300));
        assert_eq!(backoff.until("a", seconds(0), seconds(0)), None);
        let mut now = seconds(0);
        for delay in [10, 20, 40, 80, 160, 300, 300] {
            backoff.next("a", now, now);
            assert_eq!(backoff.until("a", now, now), Some(now + seconds(delay)));
            now += seconds(delay);
            assert_eq!(backoff.until("a", now - seconds(delay), now), None);
        }
        assert_eq!(backoff.until("b", now, now), None);
        now += seconds(1000);
        assert_eq!(backoff.until("a", now, now), None);
        backoff.next("a", now, now);
        assert_eq!(backoff.delay("a"), Some(seconds(10)));
        backoff.remove_expired(now + seconds(601));
        assert_eq!(backoff.delay("a"), None);
    }

    #[test]
    fn clock_that_is_set_moves_no_event_that_was_seen() {
        let seconds = Duration::from_secs;
        for set_to in [seconds(0), seconds(100), seconds(3600)] {
            let mut backoff = Backoff::new(seconds(10), seconds(300));
            // Nothing waits so far.
            assert_eq!(backoff.event("a", 1, seconds(5_000)), seconds(5_000));
            backoff.next("a", seconds(5_000), seconds(5_000));
            assert_eq!(backoff.event("a", 2, seconds(5_003)), seconds(5_003));
            let event = backoff.event("a", 2, set_to);
            assert_eq!(backoff.until("a", event, seconds(5_012)), Some(seconds(5_013)));
            assert_eq!(backoff.until("a", event, seconds(5_013)), None);
            // It is still the last one when what follows it has failed to start.
            backoff.next("a", event, seconds(5_013));
            assert_eq!(backoff.event("a", 2, set_to), event);
            // The next event is another one.
            assert_eq!(backoff.event("a", 3, seconds(5_020)), seconds(5_020));
        }
    }

    #[test]
    fn short_maximum_is_not_forgotten_sooner() {
        let seconds = Duration::from_secs;
        let mut backoff = Backoff::new(seconds(1), seconds(4));
        backoff.next("a", seconds(0), seconds(0));
        // A container that ran for 599 s.
        backoff.next("a", seconds(599), seconds(599));
        assert_eq!(backoff.delay("a"), Some(seconds(2)));
        backoff.remove_expired(seconds(599 + 600));
        assert_eq!(backoff.until("a", seconds(1199), seconds(1199)), Some(seconds(1201)));
        backoff.next("a", seconds(1200), seconds(1200));
        assert_eq!(backoff.delay("a"), Some(seconds(1)));
    }
}
