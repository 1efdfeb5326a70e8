//! Keys that are queued later. Upstream: `workqueue.TypedDelayingInterface`, which has no timers.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, HashMap};
use std::time::Duration;

use super::Key;

/// Why a key waits. A key has at most one time for each reason, and the times do not interfere:
/// a retry does not replace a later delay, and moving a deadline does not postpone the retry.
/// Upstream has one time for all, the earliest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reason {
    /// Added with a delay. The earliest time wins.
    Delay,
    /// Added with a delay after a failure. The earliest time wins.
    Retry,
    /// The key's timer. The latest call wins.
    Timer,
    /// The key was added while it rests. It is queued when it has rested.
    Rest,
}

/// Keys with the times at which they fall due, in one heap. Never waits.
///
/// Every operation costs O(log n) amortized: an entry that is replaced or cancelled stays in the
/// heap until it is on top, or until more than half of the heap is stale.
pub(super) struct Delayed<K> {
    /// Earliest on top. Stale entries are those that the maps below do not confirm.
    heap: BinaryHeap<Reverse<Entry<K>>>,
    times: Times<K>,
    /// The number of keys that rest. None of them is moved or cancelled, so they need no map.
    rests: usize,
    sequence: u64,
}

/// The times of keys for the reasons that can be moved, replaced or cancelled.
struct Times<K> {
    delays: HashMap<K, Due>,
    retries: HashMap<K, Due>,
    timers: HashMap<K, Due>,
}

/// Ordered by time; first come, first served among equals. The sequence makes it unique.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Due {
    at: Duration,
    sequence: u64,
}

/// A key in the heap, with its time and its reason.
struct Entry<K> {
    due: Due,
    reason: Reason,
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
        #[cfg(test)]
        tests::COMPARISONS.with(|count| count.set(count.get() + 1));
        self.due.cmp(&other.due)
    }
}

impl<K: Key> Delayed<K> {
    pub fn new() -> Delayed<K> {
        Delayed { heap: BinaryHeap::new(), times: Times::default(), rests: 0, sequence: 0 }
    }

    /// Lets `key` wait until `at`, or until the earlier time for which it waits already. Returns
    /// whether [`next`](Delayed::next) is now earlier than it was.
    pub fn insert(&mut self, key: K, at: Duration) -> bool {
        if self.times.delays.get(&key).is_some_and(|known| known.at <= at) {
            return false;
        }
        self.push(key, Reason::Delay, at)
    }

    /// Lets `key` wait as [`insert`](Delayed::insert) does, for a key that failed.
    pub fn retry(&mut self, key: K, at: Duration) -> bool {
        if self.times.retries.get(&key).is_some_and(|known| known.at <= at) {
            return false;
        }
        self.push(key, Reason::Retry, at)
    }

    /// Moves each retry that is due after `latest` to the time that `at` returns for it. Returns
    /// the keys of these retries.
    pub fn advance_retries(
        &mut self,
        latest: Duration,
        mut at: impl FnMut() -> Duration,
    ) -> Vec<K> {
        let late = self.times.retries.iter().filter(|(_, due)| due.at > latest);
        let late: Vec<K> = late.map(|(key, _)| key.clone()).collect();
        for key in &late {
            self.push(key.clone(), Reason::Retry, at());
        }
        late
    }

    /// Sets the timer of `key` to `at`, earlier or later than it was. Returns whether
    /// [`next`](Delayed::next) is now earlier than it was.
    pub fn set(&mut self, key: K, at: Duration) -> bool {
        if self.times.timers.get(&key).is_some_and(|known| known.at == at) {
            return false;
        }
        self.push(key, Reason::Timer, at)
    }

    /// Lets `key`, which does not rest yet, rest until `at`. Returns whether
    /// [`next`](Delayed::next) is now earlier than it was.
    pub fn rest(&mut self, key: K, at: Duration) -> bool {
        self.push(key, Reason::Rest, at)
    }

    /// Stops the timer of `key`. Returns whether it was running.
    pub fn cancel(&mut self, key: &K) -> bool {
        let was_set = self.times.timers.remove(key).is_some();
        if was_set {
            self.tidy();
        }
        was_set
    }

    /// Adds an entry; an earlier one of the key for this reason becomes stale. Returns whether
    /// [`next`](Delayed::next) is now earlier than it was.
    fn push(&mut self, key: K, reason: Reason, at: Duration) -> bool {
        let sooner = self.next().is_none_or(|next| at < next);
        self.sequence += 1;
        let due = Due { at, sequence: self.sequence };
        match self.times.for_reason(reason) {
            Some(times) => _ = times.insert(key.clone(), due),
            None => self.rests += 1,
        }
        self.heap.push(Reverse(Entry { due, reason, key }));
        self.tidy();
        sooner
    }

    /// Drops stale entries once they outnumber the others. Once nothing waits, drops all of them
    /// and frees the memory if it is large.
    fn tidy(&mut self) {
        if self.is_empty() {
            if self.times.all().any(|times| times.capacity() > 256) {
                self.clear();
            }
            self.heap.clear();
        } else if self.heap.len() > 2 * (self.times.len() + self.rests) + 64 {
            let times = &mut self.times;
            self.heap.retain(|Reverse(entry)| entry.is_current(times));
        }
    }

    /// Returns how many keys wait for a delay or rest, and how many wait for a timer.
    pub fn counts(&self) -> (usize, usize) {
        let timers = self.times.timers.len();
        (self.times.len() - timers + self.rests, timers)
    }

    /// Returns when the next key is due; `None`: no key waits. Drops stale entries on top.
    pub fn next(&mut self) -> Option<Duration> {
        while let Some(Reverse(top)) = self.heap.peek() {
            if top.is_current(&mut self.times) {
                return Some(top.due.at);
            }
            self.heap.pop();
        }
        None
    }

    /// Takes the earliest key that is due at `now`, and says when it was due and why it waited.
    pub fn pop_due(&mut self, now: Duration) -> Option<(K, Duration, Reason)> {
        let at = self.next().filter(|at| *at <= now)?;
        let Reverse(Entry { key, reason, .. }) = self.heap.pop()?;
        match self.times.for_reason(reason) {
            Some(times) => _ = times.remove(&key),
            None => self.rests -= 1,
        }
        self.tidy();
        Some((key, at, reason))
    }

    pub fn is_empty(&self) -> bool {
        self.times.len() + self.rests == 0
    }

    /// Forgets all keys and frees the memory.
    pub fn clear(&mut self) {
        *self = Delayed { sequence: self.sequence, ..Delayed::new() };
    }
}

impl<K> Default for Times<K> {
    fn default() -> Times<K> {
        Times { delays: HashMap::new(), retries: HashMap::new(), timers: HashMap::new() }
    }
}

impl<K> Times<K> {
    /// Returns the times of the keys that wait for `reason`; `None`: rests, which are neither moved
    /// nor cancelled.
    fn for_reason(&mut self, reason: Reason) -> Option<&mut HashMap<K, Due>> {
        match reason {
            Reason::Delay => Some(&mut self.delays),
            Reason::Retry => Some(&mut self.retries),
            Reason::Timer => Some(&mut self.timers),
            Reason::Rest => None,
        }
    }

    fn all(&self) -> impl Iterator<Item = &HashMap<K, Due>> {
        [&self.delays, &self.retries, &self.timers].into_iter()
    }

    fn len(&self) -> usize {
        self.all().map(HashMap::len).sum()
    }
}

impl<K: Key> Entry<K> {
    /// Returns whether the entry is not stale: its key still waits for this reason until this time.
    fn is_current(&self, times: &mut Times<K>) -> bool {
        times.for_reason(self.reason).is_none_or(|times| times.get(&self.key) == Some(&self.due))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        /// How often this thread compared two entries.
        pub static COMPARISONS: Cell<u64> = const { Cell::new(0) };
    }

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    fn pop(delayed: &mut Delayed<char>, now: u64) -> String {
        std::iter::from_fn(|| delayed.pop_due(secs(now))).map(|(key, ..)| key).collect()
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
        // The stale entry of c is no reason to wake up.
        assert_eq!(pop(&mut delayed, 30), "d");
        assert_eq!((delayed.next(), delayed.is_empty()), (None, true));
        assert!(delayed.insert('a', secs(50)), "a key may wait again");
        assert_eq!(pop(&mut delayed, 50), "a");
    }

    #[test]
    fn a_timer_can_be_moved_and_cancelled() {
        enum Do {
            Insert(char, u64),
            Set(char, u64),
            Rest(char, u64),
            Cancel(char, bool),
            /// The time, and the keys that are due then.
            Pop(u64, &'static str),
        }
        use Do::*;
        let table: &[(&str, &[Do])] = &[
            ("earlier", &[Set('a', 30), Set('a', 10), Pop(10, "a"), Pop(99, "")]),
            ("later", &[Set('a', 10), Set('a', 30), Pop(29, ""), Pop(30, "a"), Pop(99, "")]),
            (
                "to the same time keeps its place",
                &[Set('a', 9), Set('b', 9), Set('a', 9), Pop(9, "ab")],
            ),
            ("cancelled", &[Set('a', 10), Set('b', 20), Cancel('a', true), Pop(99, "b")]),
            (
                "cancelled twice",
                &[Set('a', 10), Cancel('a', true), Cancel('a', false), Pop(99, "")],
            ),
            ("cancelled after it fired", &[Set('a', 10), Pop(10, "a"), Cancel('a', false)]),
            (
                "set again",
                &[Set('a', 10), Cancel('a', true), Set('a', 20), Pop(19, ""), Pop(20, "a")],
            ),
            ("in the past", &[Set('a', 0), Pop(5, "a")]),
            (
                "a delay stands when the timer moves",
                &[Insert('a', 10), Set('a', 30), Pop(10, "a"), Pop(30, "a")],
            ),
            (
                "a delay stands when the timer is cancelled",
                &[Set('a', 5), Insert('a', 10), Cancel('a', true), Pop(99, "a")],
            ),
            (
                "a rest moves neither a delay nor the timer",
                &[Insert('a', 20), Set('a', 30), Rest('a', 10), Pop(10, "a"), Pop(30, "aa")],
            ),
            (
                "a rest outlasts a delay and a timer",
                &[Insert('a', 5), Set('a', 6), Rest('a', 10), Pop(9, "aa"), Pop(10, "a")],
            ),
            (
                "a delay does not stop the timer",
                &[Set('a', 5), Insert('a', 3), Pop(4, "a"), Pop(5, "a")],
            ),
        ];
        for (name, steps) in table {
            let mut delayed = Delayed::new();
            for step in *steps {
                match step {
                    Insert(key, at) => _ = delayed.insert(*key, secs(*at)),
                    Set(key, at) => _ = delayed.set(*key, secs(*at)),
                    Rest(key, at) => _ = delayed.rest(*key, secs(*at)),
                    Cancel(key, was_set) => assert_eq!(delayed.cancel(key), *was_set, "{name}"),
                    Pop(now, keys) => assert_eq!(pop(&mut delayed, *now), *keys, "{name}"),
                }
            }
            assert!(delayed.is_empty(), "{name}");
        }
    }

    #[test]
    fn late_retries_can_be_advanced() {
        let mut delayed = Delayed::new();
        assert!(delayed.retry('a', secs(900)) && delayed.retry('b', secs(12)));
        delayed.retry('c', secs(500));
        delayed.insert('a', secs(700));
        delayed.set('c', secs(800));
        let mut times = [11, 9].into_iter();
        let mut late =
            delayed.advance_retries(secs(15), || secs(times.next().expect("two are late")));
        late.sort_unstable();
        assert_eq!(late, ['a', 'c']);
        assert_eq!(pop(&mut delayed, 8), "");
        let mut both: Vec<char> = pop(&mut delayed, 11).chars().collect();
        both.sort_unstable();
        assert_eq!(both, ['a', 'c']);
        assert_eq!(pop(&mut delayed, 12), "b", "it was not late");
        assert!(delayed.advance_retries(Duration::ZERO, || Duration::ZERO).is_empty());
        assert_eq!(pop(&mut delayed, 900), "ac", "other times stay");
    }

    #[test]
    fn stale_entries_of_a_key_do_not_accumulate() {
        let mut delayed = Delayed::new();
        for at in (0..10_000).rev() {
            delayed.insert('a', secs(at));
            delayed.set('a', secs(20_000 - at));
        }
        assert!(delayed.heap.len() < 100);
        assert_eq!(pop(&mut delayed, 0), "a");
        for _ in 0..10_000 {
            delayed.set('a', secs(5));
            assert!(delayed.cancel(&'a'));
        }
        assert!(delayed.is_empty() && delayed.heap.len() < 100);
    }

    #[test]
    fn each_of_a_hundred_thousand_keys_costs_a_logarithm() {
        const KEYS: u32 = 100_000;
        let mut delayed = Delayed::new();
        let mut operations = 0;
        let start = COMPARISONS.with(Cell::get);
        for round in 0..4u64 {
            for key in 0..KEYS {
                // Scattered, so that most keys move past many others.
                let at = (u64::from(key) * 7919 + round * 104_729) % 1_000_003;
                delayed.set(key, secs(at));
                operations += 1;
            }
        }
        for key in (0..KEYS).step_by(2) {
            assert!(delayed.cancel(&key));
            operations += 1;
        }
        let mut last = Duration::ZERO;
        while let Some((key, at, _)) = delayed.pop_due(secs(2_000_000)) {
            assert!(key % 2 == 1 && at >= last);
            last = at;
            operations += 1;
        }
        assert_eq!(operations, u64::from(KEYS) * 5);
        // Four times the logarithm of the keys: pushes and pops, of current and of stale entries.
        let comparisons = COMPARISONS.with(Cell::get) - start;
        let bound = operations * 4 * u64::from(KEYS.ilog2() + 1);
        assert!(comparisons < bound, "{comparisons} comparisons, at most {bound}");
        assert!(delayed.heap.capacity() < 1_000, "the memory is given back");
    }
}
