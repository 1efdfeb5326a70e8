//! The keys to work on, in order, and those in progress.
//! Upstream: `workqueue.Typed`.

use std::collections::{HashMap, VecDeque, hash_map};
use std::time::Duration;

use super::Key;
use super::metrics::{InProgress, QueueMetrics};

/// After a burst, capacity above this is freed once no key is queued.
const KEPT_CAPACITY: usize = 256;

/// A queue that is first in, first out. It holds each key once, and no key can be taken while it is
/// in progress or rests. Never waits: callers pass the time since the clock's start.
pub(super) struct Queue<K> {
    /// Keys that are dirty, not in progress and do not rest, each once.
    order: VecDeque<K>,
    /// Every key that is dirty, in progress or resting.
    keys: HashMap<K, Work>,
    /// Keys that may be resting, in the order in which they were done.
    resting: VecDeque<K>,
    in_progress: usize,
    shutting_down: bool,
    metrics: Option<QueueMetrics>,
}

/// What is known of a key: whether it waits, is in progress, or rests.
struct Work {
    /// Whether it was added and has not been taken since.
    dirty: bool,
    /// When it was added.
    added: Duration,
    /// When it was taken, while it is in progress.
    started: Option<Duration>,
    /// The end of its rest. Zero: it does not rest.
    rests_until: Duration,
}

/// The result of adding or ending a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Added {
    /// There is one more key to take now.
    Ready,
    /// The key rests: call [`Queue::end_rest`] at this time.
    Rests(Duration),
    /// Nothing changes.
    No,
}

impl Work {
    /// Returns whether the key is neither queued nor in progress.
    fn is_idle(&self) -> bool {
        !self.dirty && self.started.is_none()
    }
}

impl<K: Key> Queue<K> {
    pub fn new(metrics: Option<QueueMetrics>) -> Queue<K> {
        Queue {
            order: VecDeque::new(),
            keys: HashMap::new(),
            resting: VecDeque::new(),
            in_progress: 0,
            shutting_down: false,
            metrics,
        }
    }

    /// Queues `key`, unless it waits already or rests. A key in progress is queued once it is done.
    /// Does nothing after the shutdown.
    pub fn add(&mut self, key: K, now: Duration) -> Added {
        if self.shutting_down {
            return Added::No;
        }
        let added = match self.keys.entry(key) {
            hash_map::Entry::Occupied(known) if known.get().dirty => return Added::No,
            hash_map::Entry::Occupied(mut known) => {
                let work = known.get_mut();
                work.dirty = true;
                work.added = now;
                if work.started.is_some() {
                    Added::No
                } else if work.rests_until > now {
                    Added::Rests(work.rests_until)
                } else {
                    work.rests_until = Duration::ZERO;
                    self.order.push_back(known.key().clone());
                    Added::Ready
                }
            }
            hash_map::Entry::Vacant(new) => {
                self.order.push_back(new.key().clone());
                let rests_until = Duration::ZERO;
                new.insert(Work { dirty: true, added: now, started: None, rests_until });
                Added::Ready
            }
        };
        if let Some(metrics) = &self.metrics {
            metrics.record_added();
        }
        added
    }

    /// Queues a key that was added while it rested, at the end of its rest. Returns whether there
    /// is one more key to take now.
    pub fn end_rest(&mut self, key: K) -> bool {
        let Some(work) = self.keys.get_mut(&key) else { return false };
        work.rests_until = Duration::ZERO;
        self.order.push_back(key);
        true
    }

    /// Takes the next key, which is in progress until [`done`](Queue::done).
    pub fn take(&mut self, now: Duration) -> Option<K> {
        let key = self.order.pop_front()?;
        if let Some(work) = self.keys.get_mut(&key) {
            work.dirty = false;
            work.started = Some(now);
            self.in_progress += 1;
            if let Some(metrics) = &self.metrics {
                metrics.record_taken(now.saturating_sub(work.added));
            }
        }
        Some(key)
    }

    /// Ends the work on `key`, which rests for `rest` from now. A key that was added while in
    /// progress is queued again. Does nothing when `key` is not in progress.
    pub fn done(&mut self, key: &K, now: Duration, rest: Duration) -> Added {
        self.forget_rested(now);
        let Some(work) = self.keys.get_mut(key) else { return Added::No };
        let Some(started) = work.started.take() else { return Added::No };
        self.in_progress -= 1;
        if let Some(metrics) = &self.metrics {
            metrics.record_done(now.saturating_sub(started));
        }
        if !rest.is_zero() {
            work.rests_until = now.saturating_add(rest);
            if work.dirty {
                return Added::Rests(work.rests_until);
            }
            self.resting.push_back(key.clone());
        } else if work.dirty {
            self.order.push_back(key.clone());
            return Added::Ready;
        } else {
            self.keys.remove(key);
        }
        self.shrink();
        Added::No
    }

    /// Forgets keys that have rested and were not added meanwhile. A short rest behind a long one
    /// is forgotten with it.
    fn forget_rested(&mut self, now: Duration) {
        while let Some(key) = self.resting.front() {
            match self.keys.get(key) {
                Some(work) if work.is_idle() && work.rests_until > now => return,
                Some(work) if work.is_idle() => _ = self.keys.remove(key),
                // Added again or taken: its work has a later end.
                _ => {}
            }
            self.resting.pop_front();
        }
    }

    /// Frees memory after a burst of keys.
    fn shrink(&mut self) {
        let is_calm = self.order.is_empty() && self.keys.len() <= KEPT_CAPACITY / 2;
        if is_calm && self.keys.capacity() > 2 * KEPT_CAPACITY {
            self.keys.shrink_to(KEPT_CAPACITY);
            self.order.shrink_to(KEPT_CAPACITY);
            self.resting.shrink_to(KEPT_CAPACITY);
        }
    }

    /// Returns the number of keys that wait to be taken.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Returns the number of keys that are taken and not done.
    pub fn in_progress(&self) -> usize {
        self.in_progress
    }

    /// Ends additions: from now on nothing is added; queued keys can still be taken.
    pub fn shut_down(&mut self) {
        self.shutting_down = true;
    }

    pub fn is_shutting_down(&self) -> bool {
        self.shutting_down
    }

    /// Returns how long the keys in progress have been worked on.
    pub fn progress(&self, now: Duration) -> InProgress {
        let ages = self.keys.values().filter_map(|work| work.started);
        ages.fold(InProgress::default(), |sum, started| sum.and(now.saturating_sub(started)))
    }

    /// Returns the key that waits longest, to be taken or for the end of its rest, and since when.
    pub fn oldest(&self) -> Option<(&K, Duration)> {
        let waiting = self.keys.iter().filter(|(_, work)| work.dirty);
        waiting.map(|(key, work)| (key, work.added)).min_by_key(|(_, added)| *added)
    }

    /// Returns the time of the oldest key that waits or is in progress.
    pub fn oldest_key_time(&self) -> Option<Duration> {
        let times = |work: &Work| work.dirty.then_some(work.added).into_iter().chain(work.started);
        self.keys.values().flat_map(times).min()
    }

    /// Returns the key that has been in progress longest, and since when.
    pub fn longest(&self) -> Option<(&K, Duration)> {
        let working = self.keys.iter().filter_map(|(key, work)| Some((key, work.started?)));
        working.min_by_key(|(_, started)| *started)
    }

    pub fn metrics(&self) -> Option<&QueueMetrics> {
        self.metrics.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::ZERO;
    const NO_REST: Duration = Duration::ZERO;

    enum Do {
        /// The key, and whether it can be taken now.
        Add(u8, bool),
        Take(Option<u8>),
        /// The key, and whether it is queued again.
        Done(u8, bool),
        ShutDown,
    }
    use Do::*;

    #[test]
    fn no_key_is_worked_on_twice_at_once_and_none_is_lost() {
        let table: &[(&str, &[Do])] = &[
            (
                "first in, first out, each once",
                &[
                    Add(1, true),
                    Add(2, true),
                    Add(1, false),
                    Take(Some(1)),
                    Take(Some(2)),
                    Take(None),
                ],
            ),
            (
                "added in progress: queued again after done",
                &[Add(1, true), Take(Some(1)), Add(1, false), Add(1, false), Take(None)],
            ),
            (
                "added in progress: once, behind what waits",
                &[
                    Add(1, true),
                    Take(Some(1)),
                    Add(1, false),
                    Add(2, true),
                    Done(1, true),
                    Take(Some(2)),
                    Take(Some(1)),
                    Done(1, false),
                    Done(2, false),
                    Take(None),
                    Add(1, true),
                ],
            ),
            (
                "done of a key that is queued, done twice or never added: nothing",
                &[
                    Add(1, true),
                    Done(1, false),
                    Done(9, false),
                    Take(Some(1)),
                    Done(1, false),
                    Done(1, false),
                    Take(None),
                ],
            ),
            (
                "shut down: nothing more comes in, what is there goes out",
                &[
                    Add(1, true),
                    Add(2, true),
                    Take(Some(1)),
                    Add(1, false),
                    ShutDown,
                    Add(3, false),
                    Take(Some(2)),
                    Done(1, true),
                    Take(Some(1)),
                    Take(None),
                ],
            ),
        ];
        for (name, steps) in table {
            let mut queue = Queue::new(None);
            for (at, step) in steps.iter().enumerate() {
                match step {
                    Add(key, expect) => {
                        let added = queue.add(*key, NOW);
                        assert_eq!(added == Added::Ready, *expect, "{name}: {at}");
                    }
                    Take(expect) => assert_eq!(queue.take(NOW), *expect, "{name}: {at}"),
                    Done(key, expect) => {
                        let again = queue.done(key, NOW, NO_REST);
                        assert_eq!(again == Added::Ready, *expect, "{name}: {at}");
                    }
                    ShutDown => queue.shut_down(),
                }
                let started = queue.keys.values().filter(|work| work.started.is_some()).count();
                assert_eq!(queue.in_progress(), started, "{name}: {at}");
            }
        }
    }

    #[test]
    fn progress_is_the_age_of_taken_keys() {
        let seconds = Duration::from_secs;
        let mut queue = Queue::new(None);
        for key in 0..3u8 {
            queue.add(key, seconds(0));
        }
        queue.take(seconds(1));
        queue.take(seconds(4));
        let progress = queue.progress(seconds(10));
        assert_eq!((progress.total, progress.longest), (seconds(15), seconds(9)));
    }

    #[test]
    fn memory_is_freed_after_a_burst() {
        let mut queue = Queue::new(None);
        for key in 0..10_000u32 {
            queue.add(key, NOW);
        }
        while let Some(key) = queue.take(NOW) {
            queue.done(&key, NOW, NO_REST);
        }
        assert!(queue.keys.capacity() < 1_000 && queue.order.capacity() < 1_000);
    }

    #[test]
    fn a_key_that_rests_is_taken_once_it_has_rested() {
        let at = Duration::from_millis;
        let worked = |rest| {
            let mut queue = Queue::new(None);
            queue.add('k', at(0));
            queue.take(at(0));
            assert_eq!(queue.done(&'k', at(10), at(rest)), Added::No);
            queue
        };
        let mut queue = worked(40);
        assert_eq!(queue.add('k', at(20)), Added::Rests(at(50)));
        assert_eq!(queue.add('k', at(30)), Added::No, "it is added already");
        assert_eq!(queue.add('o', at(30)), Added::Ready);
        assert_eq!(queue.take(at(30)), Some('o'));
        assert_eq!(queue.take(at(30)), None);
        assert!(queue.end_rest('k'));
        assert_eq!(queue.take(at(50)), Some('k'));
        assert_eq!(queue.add('k', at(60)), Added::No, "in progress");
        assert_eq!(queue.done(&'k', at(70), at(40)), Added::Rests(at(110)));
        assert_eq!(queue.take(at(80)), None);
        assert!(queue.end_rest('k'));
        assert_eq!(queue.take(at(110)), Some('k'));
        assert_eq!(queue.done(&'k', at(110), NO_REST), Added::No);
        assert_eq!(queue.add('k', at(111)), Added::Ready, "its last work was followed by no rest");

        let mut queue = worked(40);
        assert_eq!(queue.add('k', at(50)), Added::Ready, "it has rested");
    }

    #[test]
    fn keys_that_have_rested_are_forgotten() {
        let mut queue = Queue::new(None);
        let rest = Duration::from_millis(20);
        let burst = 0..10_000u64;
        burst.clone().for_each(|key| _ = queue.add(key, Duration::ZERO));
        for key in burst {
            let now = Duration::from_millis(key);
            assert_eq!(queue.take(now), Some(key));
            queue.done(&key, now, rest);
        }
        assert!(queue.keys.len() <= 20 && queue.resting.len() <= 20);
        assert!(queue.keys.capacity() < 1_000 && queue.order.capacity() < 1_000);
        let later = Duration::from_secs(20);
        queue.add(7, later);
        queue.take(later);
        queue.done(&7, later, NO_REST);
        assert!(queue.keys.is_empty() && queue.resting.is_empty());
    }
}
