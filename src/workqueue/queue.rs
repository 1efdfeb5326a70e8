//! The keys to work on, in order, and those in progress.
//! Upstream: `workqueue.Typed`.

use std::collections::{HashMap, VecDeque, hash_map};
use std::time::Duration;

use super::Key;
use super::metrics::{InProgress, QueueMetrics};

/// After a burst, capacity above this is freed once nothing is queued.
const KEPT_CAPACITY: usize = 256;

/// First in, first out, each key once, and no key taken twice before it is done.
/// Never waits: times are passed in, since the clock's start.
pub(super) struct Queue<K> {
    /// Keys that are dirty and not in progress, each once.
    order: VecDeque<K>,
    /// Every key that is dirty, in progress, or both.
    keys: HashMap<K, Work>,
    in_progress: usize,
    shutting_down: bool,
    metrics: Option<QueueMetrics>,
}

struct Work {
    /// Added, and not taken since.
    dirty: bool,
    added: Duration,
    /// When it was taken, while it is in progress.
    started: Option<Duration>,
}

impl<K: Key> Queue<K> {
    pub fn new(metrics: Option<QueueMetrics>) -> Queue<K> {
        Queue {
            order: VecDeque::new(),
            keys: HashMap::new(),
            in_progress: 0,
            shutting_down: false,
            metrics,
        }
    }

    /// Whether there is one more key to take now.
    pub fn add(&mut self, key: K, now: Duration) -> bool {
        if self.shutting_down {
            return false;
        }
        let to_take = match self.keys.entry(key) {
            hash_map::Entry::Occupied(known) if known.get().dirty => return false,
            hash_map::Entry::Occupied(mut working) => {
                let work = working.get_mut();
                work.dirty = true;
                work.added = now;
                false
            }
            hash_map::Entry::Vacant(new) => {
                self.order.push_back(new.key().clone());
                new.insert(Work { dirty: true, added: now, started: None });
                true
            }
        };
        if let Some(metrics) = &self.metrics {
            metrics.added();
        }
        to_take
    }

    /// The next key, which is in progress until [`done`](Queue::done).
    pub fn take(&mut self, now: Duration) -> Option<K> {
        let key = self.order.pop_front()?;
        if let Some(work) = self.keys.get_mut(&key) {
            work.dirty = false;
            work.started = Some(now);
            self.in_progress += 1;
            if let Some(metrics) = &self.metrics {
                metrics.taken(now.saturating_sub(work.added));
            }
        }
        Some(key)
    }

    /// Whether there is one more key to take now, as `key` was added while in progress. Does
    /// nothing when `key` is not in progress.
    pub fn done(&mut self, key: &K, now: Duration) -> bool {
        let Some(work) = self.keys.get_mut(key) else { return false };
        let Some(started) = work.started.take() else { return false };
        self.in_progress -= 1;
        if let Some(metrics) = &self.metrics {
            metrics.done(now.saturating_sub(started));
        }
        if work.dirty {
            self.order.push_back(key.clone());
            return true;
        }
        self.keys.remove(key);
        if self.keys.is_empty() && self.keys.capacity() > KEPT_CAPACITY {
            self.keys.shrink_to(KEPT_CAPACITY);
            self.order.shrink_to(KEPT_CAPACITY);
        }
        false
    }

    /// How many keys wait to be taken.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// How many keys are taken and not done.
    pub fn in_progress(&self) -> usize {
        self.in_progress
    }

    /// From now on nothing is added; what is queued can still be taken.
    pub fn shut_down(&mut self) {
        self.shutting_down = true;
    }

    pub fn is_shutting_down(&self) -> bool {
        self.shutting_down
    }

    /// For how long the keys in progress have been worked on.
    pub fn progress(&self, now: Duration) -> InProgress {
        let ages = self.keys.values().filter_map(|work| work.started);
        ages.fold(InProgress::default(), |sum, started| sum.and(now.saturating_sub(started)))
    }

    /// The key that waits longest to be taken, and since when.
    pub fn oldest(&self) -> Option<(&K, Duration)> {
        let key = self.order.front()?;
        Some((key, self.keys.get(key)?.added))
    }

    /// The key that has been in progress longest, and since when.
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

    enum Do {
        /// The key, and whether it can be taken now.
        Add(u8, bool),
        Take(Option<u8>),
        /// The key, and whether it comes again.
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
                "added in progress: comes again after done",
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
                "done of what is queued, done twice, or never added: nothing",
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
                    Add(key, expect) => assert_eq!(queue.add(*key, NOW), *expect, "{name}: {at}"),
                    Take(expect) => assert_eq!(queue.take(NOW), *expect, "{name}: {at}"),
                    Done(key, expect) => assert_eq!(queue.done(key, NOW), *expect, "{name}: {at}"),
                    ShutDown => queue.shut_down(),
                }
                let started = queue.keys.values().filter(|work| work.started.is_some()).count();
                assert_eq!(queue.in_progress(), started, "{name}: {at}");
            }
        }
    }

    #[test]
    fn progress_is_the_age_of_what_is_taken() {
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
    fn a_burst_leaves_no_memory_behind() {
        let mut queue = Queue::new(None);
        for key in 0..10_000u32 {
            queue.add(key, NOW);
        }
        while let Some(key) = queue.take(NOW) {
            queue.done(&key, NOW);
        }
        assert!(queue.keys.capacity() < 1_000 && queue.order.capacity() < 1_000);
    }
}
