//! Keys that are to be queued later. Upstream: `workqueue.TypedDelayingInterface`.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, HashMap};
use std::time::Duration;

use super::Key;

/// Each key once, with its earliest time. Never waits.
pub(super) struct Delayed<K> {
    /// Earliest on top. A key that got an earlier time leaves its old entry behind: `due` tells
    /// which entry counts.
    heap: BinaryHeap<Reverse<Entry<K>>>,
    due: HashMap<K, Due>,
    sequence: u64,
}

/// Ordered by time; first come, first served among equals.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Due {
    at: Duration,
    sequence: u64,
}

struct Entry<K> {
    due: Due,
    key: K,
}

impl<K> PartialEq for Entry<K> {
    fn eq(&self, other: &Self) -> bool {
        self.due == other.due
    }
}
impl<K> Eq for Entry<K> {}
impl<K> PartialOrd for Entry<K> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl<K> Ord for Entry<K> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.due.cmp(&other.due)
    }
}

impl<K: Key> Delayed<K> {
    pub fn new() -> Delayed<K> {
        Delayed { heap: BinaryHeap::new(), due: HashMap::new(), sequence: 0 }
    }

    /// Keeps the earlier time when `key` waits already. Returns whether [`next`](Delayed::next)
    /// is now earlier than it was.
    pub fn insert(&mut self, key: K, at: Duration) -> bool {
        if self.due.get(&key).is_some_and(|known| known.at <= at) {
            return false;
        }
        let sooner = self.next().is_none_or(|next| at < next);
        self.sequence += 1;
        let due = Due { at, sequence: self.sequence };
        self.due.insert(key.clone(), due);
        self.heap.push(Reverse(Entry { due, key }));
        if self.heap.len() > 2 * self.due.len() + 64 {
            self.heap.retain(|Reverse(entry)| self.due.get(&entry.key) == Some(&entry.due));
        }
        sooner
    }

    /// When the next key is due.
    pub fn next(&mut self) -> Option<Duration> {
        while let Some(Reverse(top)) = self.heap.peek() {
            if self.due.get(&top.key) == Some(&top.due) {
                return Some(top.due.at);
            }
            self.heap.pop();
        }
        None
    }

    /// Takes the earliest key that is due at `now`, and says when it was due.
    pub fn pop_due(&mut self, now: Duration) -> Option<(K, Duration)> {
        let at = self.next().filter(|at| *at <= now)?;
        let Reverse(Entry { key, .. }) = self.heap.pop()?;
        self.due.remove(&key);
        if self.due.is_empty() && self.due.capacity() > 256 {
            self.clear();
        }
        Some((key, at))
    }

    pub fn is_empty(&self) -> bool {
        self.due.is_empty()
    }

    /// Forgets all, and gives the memory back.
    pub fn clear(&mut self) {
        *self = Delayed { sequence: self.sequence, ..Delayed::new() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    fn pop(delayed: &mut Delayed<char>, now: u64) -> String {
        std::iter::from_fn(|| delayed.pop_due(secs(now))).map(|(key, _)| key).collect()
    }

    #[test]
    fn keys_come_at_their_earliest_time_in_order() {
        let mut delayed = Delayed::new();
        let inserts = [('c', 30), ('a', 10), ('b', 20), ('d', 30), ('b', 25), ('c', 15), ('c', 40)];
        let sooner: Vec<bool> =
            inserts.iter().map(|&(key, at)| delayed.insert(key, secs(at))).collect();
        assert_eq!(sooner, [true, true, false, false, false, false, false]);
        assert_eq!(pop(&mut delayed, 9), "");
        assert_eq!(pop(&mut delayed, 10), "a");
        assert_eq!(delayed.next(), Some(secs(15)));
        assert_eq!(pop(&mut delayed, 29), "cb");
        // What is left of c's first time is no reason to wake up.
        assert_eq!(pop(&mut delayed, 30), "d");
        assert_eq!((delayed.next(), delayed.is_empty()), (None, true));
        assert!(delayed.insert('a', secs(50)), "a key may wait again");
        assert_eq!(pop(&mut delayed, 50), "a");
    }

    #[test]
    fn a_key_moved_often_does_not_pile_up() {
        let mut delayed = Delayed::new();
        for at in (0..10_000).rev() {
            delayed.insert('a', secs(at));
        }
        assert!(delayed.heap.len() < 100);
        assert_eq!(pop(&mut delayed, 0), "a");
    }
}
