//! Backoff of failing pods. Upstream: `flowcontrol.Backoff`.

use std::collections::HashMap;
use std::time::Duration;

use crate::objects::{ArcStr, Uid};

const INITIAL: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_mins(15);
/// After this long without a replacement the delays start from the beginning.
const EXPIRED: Duration = LONGEST.saturating_mul(2);
/// Expired entries are dropped no more often than this. Upstream: `BackoffGCInterval`.
const SWEEP_INTERVAL: Duration = Duration::from_mins(1);

/// The pods of one generation of a set on one node. Upstream: `failedPodsBackoffKey`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct FailureKey {
    pub set: Uid,
    /// That the status has observed.
    pub generation: i64,
    pub node: ArcStr,
}

/// When a failed pod may be replaced next. All times are those of one monotonic clock.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    entries: HashMap<FailureKey, Entry>,
    swept_at: Duration,
}

/// The wait before the next replacement, counted from the last one.
#[derive(Debug)]
struct Entry {
    delay: Duration,
    since: Duration,
}

impl Entry {
    fn is_expired(&self, now: Duration) -> bool {
        now.saturating_sub(self.since) > EXPIRED
    }
}

impl Backoff {
    /// Returns how long the failed pod of `key` has to wait until it may be replaced. The first does
    /// not wait. A call that returns zero counts as the replacement, and sets the wait of the next
    /// pod that fails: [`INITIAL`], then twice the one before, at most [`LONGEST`]. A pod that fails
    /// more than [`EXPIRED`] after the last replacement is a first one again.
    pub fn wait(&mut self, key: FailureKey, now: Duration) -> Duration {
        self.sweep(now);
        match self.entries.get_mut(&key).filter(|entry| !entry.is_expired(now)) {
            Some(entry) => {
                let wait = (entry.since + entry.delay).saturating_sub(now);
                if wait.is_zero() {
                    *entry = Entry { delay: (entry.delay * 2).min(LONGEST), since: now };
                }
                wait
            }
            None => {
                self.entries.insert(key, Entry { delay: INITIAL, since: now });
                Duration::ZERO
            }
        }
    }

    /// Drops expired entries, once in `SWEEP_INTERVAL`.
    fn sweep(&mut self, now: Duration) {
        if now.saturating_sub(self.swept_at) >= SWEEP_INTERVAL {
            self.swept_at = now;
            self.entries.retain(|_, entry| !entry.is_expired(now));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(node: &str) -> FailureKey {
        FailureKey { set: Uid::new("s"), generation: 1, node: node.into() }
    }

    #[test]
    fn delays_double_up_to_the_longest_and_expire() {
        let mut backoff = Backoff::default();
        let seconds = Duration::from_secs;
        let mut now = seconds(100);
        for delay in [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 900, 900] {
            assert_eq!(backoff.wait(key("a"), now), Duration::ZERO);
            assert_eq!(backoff.wait(key("a"), now), seconds(delay));
            let half = now + seconds(delay) / 2;
            assert_eq!(backoff.wait(key("a"), half), seconds(delay) - seconds(delay) / 2);
            now += seconds(delay);
        }
        assert_eq!(backoff.wait(key("b"), now), Duration::ZERO, "another node");
        let other = FailureKey { generation: 2, ..key("b") };
        assert_eq!(backoff.wait(other, now), Duration::ZERO, "another generation");
        now += EXPIRED + seconds(1);
        assert_eq!(backoff.wait(key("a"), now), Duration::ZERO);
        assert_eq!(backoff.wait(key("a"), now), seconds(1), "from the beginning");
        assert_eq!(backoff.entries.len(), 1, "the others are dropped");
    }
}
