//! The nodes of a zone that wait for their NoExecute taint, at the zone's rate.
//! Upstream: `pkg/controller/nodelifecycle/scheduler`.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use crate::clock::SharedClock;
use crate::objects::ArcStr;
use crate::workqueue::TokenBucket;

/// Upstream: `scheduler.EvictionRateLimiterBurst`.
const BURST: u32 = 1;

/// When a node is due, and a number that keeps the order of those that are due together.
type Place = (Duration, u64);

/// Each node once, the earliest first. A node that was handed out stays a member, so that it is not
/// added again, until it is removed. Upstream: `RateLimitedTimedQueue`.
pub struct Tainter {
    waiting: BTreeMap<Place, ArcStr>,
    /// Each member's place in `waiting`; `None` once it was handed out and tainted.
    members: HashMap<ArcStr, Option<Place>>,
    limiter: TokenBucket,
    sequence: u64,
}

/// The next node to taint.
#[derive(Debug, PartialEq)]
pub enum NextNode {
    Node(ArcStr),
    /// No node may be tainted for this long.
    Wait(Duration),
    /// No node waits, or the rate is zero.
    Idle,
}

impl Tainter {
    pub fn new(rate: f32, clock: SharedClock) -> Tainter {
        let limiter = TokenBucket::new(f64::from(rate), BURST, clock);
        let (waiting, members) = (BTreeMap::new(), HashMap::new());
        Tainter { waiting, members, limiter, sequence: 0 }
    }

    /// Adds a node that is due at `due`. Returns `false` if it is a member already.
    pub fn add(&mut self, node: &ArcStr, due: Duration) -> bool {
        if self.members.contains_key(node) {
            return false;
        }
        self.enqueue(node.clone(), due);
        true
    }

    /// Queues `node` for `due`, behind earlier nodes of the same time.
    fn enqueue(&mut self, node: ArcStr, due: Duration) {
        self.sequence += 1;
        let place = (due, self.sequence);
        self.waiting.insert(place, node.clone());
        self.members.insert(node, Some(place));
    }

    /// Removes a node, which may be added again. Returns whether it was a member.
    pub fn remove(&mut self, node: &str) -> bool {
        if self.members.is_empty() {
            return false;
        }
        let Some(place) = self.members.remove(node) else { return false };
        if let Some(place) = place {
            self.waiting.remove(&place);
        }
        true
    }

    pub fn contains(&self, node: &str) -> bool {
        self.members.contains_key(node)
    }

    /// Returns the first node that is due, for a token of the rate; `Idle` also while the rate is
    /// zero. The node stays the first until [`finish`](Tainter::finish), `retry` or `remove`.
    pub fn next(&mut self, now: Duration) -> NextNode {
        let Some((&(due, _), node)) = self.waiting.first_key_value() else { return NextNode::Idle };
        let Some(token_in) = self.limiter.next_in() else { return NextNode::Idle };
        let wait = token_in.max(due.saturating_sub(now));
        if wait.is_zero() && self.limiter.try_take() {
            return NextNode::Node(node.clone());
        }
        NextNode::Wait(wait.max(Duration::from_millis(1)))
    }

    /// Records that a node that was handed out is tainted, or needs no taint. It stays a member.
    pub fn finish(&mut self, node: &str) {
        if let Some(place) = self.members.get_mut(node).and_then(Option::take) {
            self.waiting.remove(&place);
        }
    }

    /// Queues a node that was handed out again, for `due`.
    pub fn retry(&mut self, node: &ArcStr, due: Duration) {
        if let Some(Some(place)) = self.members.get(node) {
            self.waiting.remove(place);
            self.enqueue(node.clone(), due);
        }
    }

    pub fn set_rate(&self, rate: f32) {
        self.limiter.swap_rate(f64::from(rate));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock, FakeClock};
    use crate::objects::Timestamp;
    use std::sync::Arc;

    struct Fixture {
        clock: Arc<FakeClock>,
        tainter: Tainter,
    }

    impl Fixture {
        fn new(rate: f32) -> Fixture {
            let clock = FakeClock::new(Timestamp::from_secs(0));
            Fixture { tainter: Tainter::new(rate, clock.clone()), clock }
        }

        fn add(&mut self, node: &str) -> bool {
            self.tainter.add(&node.into(), self.clock.monotonic())
        }

        /// Takes nodes for this many seconds, each done at once.
        fn take_for(&mut self, seconds: u64) -> Vec<String> {
            let end = self.clock.monotonic() + Duration::from_secs(seconds);
            let mut taken = Vec::new();
            loop {
                let now = self.clock.monotonic();
                match self.tainter.next(now) {
                    NextNode::Node(node) => {
                        self.tainter.finish(&node);
                        taken.push(node.to_string());
                    }
                    NextNode::Wait(wait) if now + wait <= end => self.clock.advance(wait),
                    _ => {
                        self.clock.advance(end.saturating_sub(now));
                        return taken;
                    }
                }
            }
        }
    }

    #[test]
    fn nodes_come_at_the_rate_in_their_order() {
        let mut fixture = Fixture::new(0.1);
        for node in ["a", "b", "c"] {
            assert!(fixture.add(node));
            assert!(!fixture.add(node));
        }
        assert_eq!(fixture.take_for(0), ["a"]);
        assert_eq!(fixture.take_for(9), [""; 0]);
        assert_eq!(fixture.take_for(1), ["b"]);
        assert!(!fixture.add("a"), "tainted once, until it is removed");
        assert!(fixture.tainter.remove("c") && !fixture.tainter.remove("c"));
        assert!(fixture.tainter.remove("a") && fixture.add("a"));
        assert_eq!(fixture.take_for(60), ["a"]);
    }

    #[test]
    fn a_rate_of_zero_stops_and_a_new_rate_resumes() {
        let mut fixture = Fixture::new(0.1);
        for node in ["a", "b", "c"] {
            fixture.add(node);
        }
        assert_eq!(fixture.take_for(0), ["a"]);
        fixture.tainter.set_rate(0.0);
        assert_eq!(fixture.tainter.next(fixture.clock.monotonic()), NextNode::Idle);
        assert_eq!(fixture.take_for(3600), [""; 0]);
        fixture.tainter.set_rate(0.1);
        assert_eq!(fixture.take_for(9), [""; 0], "without an extra token");
        assert_eq!(fixture.take_for(11), ["b", "c"]);
    }

    #[test]
    fn a_node_that_failed_comes_again() {
        let mut fixture = Fixture::new(1000.0);
        for node in ["a", "b"] {
            fixture.add(node);
        }
        let now = fixture.clock.monotonic();
        let NextNode::Node(first) = fixture.tainter.next(now) else { panic!("a node is due") };
        fixture.tainter.retry(&first, now + Duration::from_millis(50));
        assert_eq!(fixture.take_for(1), ["b", "a"]);
        fixture.tainter.retry(&"a".into(), now);
        assert_eq!(fixture.take_for(1), [""; 0], "it is done");
    }
}
