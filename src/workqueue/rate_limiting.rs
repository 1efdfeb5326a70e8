//! The queue that workers wait on. Upstream: `workqueue.TypedRateLimitingInterface`.

use parking_lot::{Mutex, MutexGuard};
use std::sync::{Arc, Weak};
use std::time::Duration;

use event_listener::{Event, IntoNotification};
use futures_lite::FutureExt;

use super::delaying::{Delayed, Reason};
use super::metrics::{HasProgress, InProgress, QueueMetrics, report_progress};
use super::queue::{Added, Queue};
use super::{Key, RateLimiter};
use crate::clock::SharedClock;
use crate::trace::{self, How};

/// A queue of keys for several workers. Cheap to clone: clones are one queue.
///
/// # What holds
///
/// - A key is worked on by at most one worker at a time. Added while it is in progress, it is
///   queued after [`done`](Self::done), behind the keys that are queued by then.
/// - A key that is queued already is not queued twice: one sync serves all additions before it.
/// - Keys come in the order in which they were added or fell due. A key that fell due comes before
///   keys that are added after that time.
/// - Before the shutdown no key is lost. [`get`](Self::get) may be dropped at any time: it takes a
///   key only in the poll that returns it. A key that was returned is in progress until `done`,
///   also if its worker has ended.
/// - Methods other than `get` and [`shut_down_with_drain`](Self::shut_down_with_drain) never wait.
///
/// # What is not promised
///
/// - Why a key comes: a sync compares its own deadlines with the clock.
/// - How often it comes: fewer times than it was added, and again after a delay that was not
///   needed.
/// - That a time is met: a key comes no earlier, and as much later as the workers are busy.
///
/// # Times
///
/// A key can wait for several times at once. [`add_after`](Self::add_after) delays it; the earliest
/// of such times counts. [`add_rate_limited`](Self::add_rate_limited) and
/// [`retry_after`](Self::retry_after) delay it after a failure; again the earliest counts.
/// [`set_timer_after`](Self::set_timer_after) sets the key's timer (a deadline, a schedule, an
/// expiry); the latest call counts, and it fires once. None of the three affects the others. When a
/// time comes, the key is queued as by [`add`](Self::add). Upstream has one time for all three, the
/// earliest.
///
/// A key may rest after its work ([`done_resting`](Self::done_resting)): added meanwhile, in any of
/// these ways, it is queued when it has rested.
///
/// # Idle queues
///
/// An idle queue costs nothing: there is no task and no ticker. While keys wait for their time, one
/// of the waiting workers (the timekeeper) also waits for the clock; a worker that comes from a
/// sync reads the clock before it waits. A timer that moves later, or is cancelled, leaves the
/// timekeeper's sleep as it is: at most one wake-up finds nothing to do. Without workers that call
/// `get`, keys fall due when another method reads the queue.
pub struct RateLimitingQueue<K> {
    inner: Arc<Inner<K>>,
}

impl<K> Clone for RateLimitingQueue<K> {
    fn clone(&self) -> Self {
        RateLimitingQueue { inner: self.inner.clone() }
    }
}

/// The parts of a [`RateLimitingQueue`], which its clones share.
struct Inner<K> {
    name: Box<str>,
    state: Mutex<State<K>>,
    clock: SharedClock,
    limiter: Arc<dyn RateLimiter<K>>,
    /// One notification for each key that can be taken.
    ready: Event,
    /// For the timekeeper: a key is due sooner.
    sooner: Event,
    /// Nothing is in progress, or the drain was ended by `shut_down`.
    idle: Event,
}

/// A queue as debug pages show it: a snapshot under the queue's lock.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueStatus {
    /// The label of its metrics; empty for a queue without metrics.
    pub name: String,
    /// Keys that wait for a worker.
    pub depth: usize,
    /// Keys that a worker has taken and not ended.
    pub in_progress: usize,
    /// Times for which keys wait after a delay or a failure, and keys that rest and were added
    /// meanwhile.
    pub delayed: usize,
    /// Keys with a timer.
    pub timers: usize,
    /// The key that was added first of those that no worker has taken since, and how many seconds
    /// ago.
    pub oldest: Option<(String, f64)>,
    /// The key that has been in progress longest, and for how many seconds.
    pub longest: Option<(String, f64)>,
    /// Keys queued since the process started, by all queues of this name; `None` without metrics.
    /// Upstream: `workqueue_adds_total`.
    pub adds: Option<u64>,
    /// Additions with a delay, counted in the same way; timers are not among them. Upstream:
    /// `workqueue_retries_total`.
    pub retries: Option<u64>,
}

/// The keys of a queue, under its lock.
struct State<K> {
    queue: Queue<K>,
    delayed: Delayed<K>,
    /// Whether a worker waits for the time of `delayed.next()`.
    has_timekeeper: bool,
    /// Whether [`RateLimitingQueue::shut_down_with_drain`] waits for keys in progress.
    draining: bool,
}

impl<K: Key> RateLimitingQueue<K> {
    /// Makes an empty queue. `name` is the label of its metrics, which queues of one name share; an
    /// empty name means no metrics. `limiter` decides the delays of
    /// [`add_rate_limited`](Self::add_rate_limited) alone.
    /// Upstream: `NewTypedRateLimitingQueueWithConfig`.
    pub fn new(name: &str, clock: SharedClock, limiter: Arc<dyn RateLimiter<K>>) -> Self {
        let state = State {
            queue: Queue::new(QueueMetrics::new(name)),
            delayed: Delayed::new(),
            has_timekeeper: false,
            draining: false,
        };
        let inner = Arc::new(Inner {
            name: name.into(),
            state: Mutex::new(state),
            clock,
            limiter,
            ready: Event::new(),
            sooner: Event::new(),
            idle: Event::new(),
        });
        if !name.is_empty() {
            let weak: Weak<Inner<K>> = Arc::downgrade(&inner);
            report_progress(name, weak);
        }
        RateLimitingQueue { inner }
    }

    /// Queues `key` for the next free worker. Does nothing when it is queued already, or after the
    /// shutdown. Upstream: `Add`.
    pub fn add(&self, key: K) {
        let mut state = self.inner.lock();
        self.inner.trace_addition(&state, &key, How::Now);
        let now = self.inner.clock.monotonic();
        let ready = state.queue_due(now) + self.inner.queue_now(&mut state, key, now);
        drop(state);
        self.inner.notify_ready(ready);
    }

    /// Adds `key` once `after` has passed, or sooner if it waits for an earlier delay already. Zero
    /// adds it now and leaves a later delay as it is. Does nothing after the shutdown. Upstream:
    /// `AddAfter`.
    pub fn add_after(&self, key: K, after: Duration) {
        self.add_later(key, after, Delayed::insert);
    }

    /// Adds `key` as [`add_after`](Self::add_after) does, after a failure: a later time for which
    /// it waits for another reason stays. The failure is not counted by the rate limiter.
    pub fn retry_after(&self, key: K, after: Duration) {
        self.add_later(key, after, Delayed::retry);
    }

    /// Adds `key` now if `after` is zero, or lets it wait by `insert`, which returns whether the
    /// timekeeper must wake earlier. Counts as a retry in the metrics. Does nothing after the
    /// shutdown.
    fn add_later(&self, key: K, after: Duration, insert: fn(&mut Delayed<K>, K, Duration) -> bool) {
        let mut state = self.inner.lock();
        if state.queue.is_shutting_down() {
            return;
        }
        if let Some(metrics) = state.queue.metrics() {
            metrics.record_retried();
        }
        self.inner.trace_addition(&state, &key, How::After(after));
        let now = self.inner.clock.monotonic();
        if after.is_zero() {
            let ready = state.queue_due(now) + self.inner.queue_now(&mut state, key, now);
            drop(state);
            return self.inner.notify_ready(ready);
        }
        if insert(&mut state.delayed, key, now.saturating_add(after)) {
            self.inner.wake_timekeeper(&state);
        }
    }

    /// Brings forward the retries that are due after `period`: adds their keys at random times
    /// within it, and forgets their failures.
    pub fn advance_retries(&self, period: Duration) {
        let mut state = self.inner.lock();
        let now = self.inner.clock.monotonic();
        let at = || now + period.mul_f64(fastrand::f64());
        let advanced = state.delayed.advance_retries(now + period, at);
        advanced.iter().for_each(|key| self.inner.limiter.forget(key));
        if !advanced.is_empty() {
            self.inner.wake_timekeeper(&state);
        }
    }

    /// Sets the timer of `key`: it is added once `after` has passed from now, in place of the time
    /// that its timer had. Zero adds it now and stops the timer. Does nothing after the shutdown.
    /// Upstream has no counterpart: there a deadline that moves later leaves the earlier one in
    /// place.
    pub fn set_timer_after(&self, key: K, after: Duration) {
        let mut state = self.inner.lock();
        if state.queue.is_shutting_down() {
            return;
        }
        self.inner.trace_addition(&state, &key, How::Timer(after));
        let now = self.inner.clock.monotonic();
        if after.is_zero() {
            state.delayed.cancel(&key);
            let ready = state.queue_due(now) + self.inner.queue_now(&mut state, key, now);
            drop(state);
            return self.inner.notify_ready(ready);
        }
        if state.delayed.set(key, now.saturating_add(after)) {
            self.inner.wake_timekeeper(&state);
        }
    }

    /// Stops the timer of `key`, and returns whether it was running. A key whose timer has fired is
    /// queued, and stays so.
    pub fn cancel_timer(&self, key: &K) -> bool {
        let mut state = self.inner.lock();
        let ready = state.queue_due(self.inner.clock.monotonic());
        let was_set = state.delayed.cancel(key);
        drop(state);
        self.inner.notify_ready(ready);
        was_set
    }

    /// Counts a failure of `key` and adds it after the delay that the rate limiter gives. Upstream:
    /// `AddRateLimited`.
    pub fn add_rate_limited(&self, key: K) {
        let after = self.inner.limiter.when(&key);
        self.retry_after(key, after);
    }

    /// Forgets the failures of `key` in the rate limiter. A delay for which it waits stays.
    /// Upstream: `Forget`.
    pub fn forget(&self, key: &K) {
        self.inner.limiter.forget(key);
    }

    /// Returns how often `key` failed since it was last forgotten, as the rate limiter counts.
    /// Upstream: `NumRequeues`.
    pub fn num_requeues(&self, key: &K) -> u32 {
        self.inner.limiter.retries(key)
    }

    /// Takes the next key; waits while the queue is empty. `None`: the queue is shut down and
    /// empty. Each key must be passed to [`done`](Self::done), or it is never returned again. May
    /// be dropped at any time. Upstream: `Get`.
    pub async fn get(&self) -> Option<K> {
        let inner = &*self.inner;
        loop {
            let (ready, keeper) = {
                let mut state = inner.lock();
                let now = inner.clock.monotonic();
                let due = state.queue_due(now);
                if let Some(key) = state.queue.take(now) {
                    // This worker takes one of the keys that have fallen due.
                    inner.notify_ready(due.saturating_sub(1));
                    // Another worker has to wait for the clock in place of this one.
                    if !state.has_timekeeper && !state.delayed.is_empty() {
                        inner.ready.notify(1);
                    }
                    return Some(key);
                }
                if state.queue.is_shutting_down() {
                    return None;
                }
                let next = state.delayed.next().filter(|_| !state.has_timekeeper);
                let keeper = next.map(|at| {
                    state.has_timekeeper = true;
                    let due = inner.clock.sleep(at.saturating_sub(now));
                    (Timekeeper { inner, released: false }, inner.sooner.listen(), due)
                });
                (inner.ready.listen(), keeper)
            };
            match keeper {
                None => ready.await,
                Some((keeper, sooner, due)) => {
                    ready.or(sooner).or(due).await;
                    keeper.release_timekeeping();
                }
            }
        }
    }

    /// Ends the work on `key`, which [`get`](Self::get) returned. Does nothing for a key that is
    /// not in progress. Upstream: `Done`.
    pub fn done(&self, key: &K) {
        self.done_resting(key, Duration::ZERO);
    }

    /// Ends the work on `key` as [`done`](Self::done) does; `get` does not return it again before
    /// `rest` has passed.
    pub fn done_resting(&self, key: &K, rest: Duration) {
        let mut state = self.inner.lock();
        let added = state.queue.done(key, self.inner.clock.monotonic(), rest);
        let ready = self.inner.carry_out(&mut state, added, || key.clone());
        let idle = state.queue.in_progress() == 0;
        drop(state);
        self.inner.notify_ready(ready);
        if idle {
            self.inner.idle.notify(usize::MAX);
        }
    }

    /// Returns how many keys wait for a worker; those whose time has not come are not counted.
    /// Upstream: `Len`.
    pub fn len(&self) -> usize {
        let mut state = self.inner.lock();
        let due = state.queue_due(self.inner.clock.monotonic());
        self.inner.notify_ready(due);
        state.queue.len()
    }

    /// Returns whether no key waits for a worker. Keys may be in progress, or wait for their time.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns a number that distinguishes this queue from others in the trace. A later queue may
    /// get the number of one that is gone.
    pub fn identity(&self) -> usize {
        Arc::as_ptr(&self.inner).addr()
    }

    /// Returns the state of the queue for debug pages.
    pub fn status(&self) -> QueueStatus {
        let mut state = self.inner.lock();
        let now = self.inner.clock.monotonic();
        let due = state.queue_due(now);
        self.inner.notify_ready(due);
        let with_age = |found: Option<(&K, Duration)>| {
            found.map(|(key, since)| (key.to_string(), now.saturating_sub(since).as_secs_f64()))
        };
        let (delayed, timers) = state.delayed.counts();
        let (adds, retries) = state.queue.metrics().map(|metrics| metrics.counts()).unzip();
        QueueStatus {
            name: self.inner.name.to_string(),
            depth: state.queue.len(),
            in_progress: state.queue.in_progress(),
            delayed,
            timers,
            oldest: with_age(state.queue.oldest()),
            longest: with_age(state.queue.longest()),
            adds,
            retries,
        }
    }

    /// Returns the age of the oldest key; zero without keys. A queued key ages from when it was
    /// added, a key in progress from when a worker took it. A key that waits for a delay or a timer
    /// has not been added yet.
    pub fn oldest_key_age(&self) -> Duration {
        let oldest = self.inner.lock().queue.oldest_key_time();
        oldest.map_or(Duration::ZERO, |since| self.inner.clock.monotonic().saturating_sub(since))
    }

    /// Shuts the queue down for good: nothing is added from now on. Workers get the keys that are
    /// queued, then `None`; keys whose time has not come, or that rest, are dropped. A key that was
    /// added while in progress is still queued after `done`. Upstream: `ShutDown`.
    pub fn shut_down(&self) {
        self.inner.shut_down(false);
    }

    /// Returns whether the shutdown has begun. It never ends. Upstream: `ShuttingDown`.
    pub fn is_shutting_down(&self) -> bool {
        self.inner.lock().queue.is_shutting_down()
    }

    /// Shuts down, and waits until no key is in progress or until [`shut_down`](Self::shut_down) is
    /// called. Keys that are queued and not taken are not waited for. Waits for ever if a worker
    /// does not call `done`. May be dropped at any time; the queue stays shut down. Upstream:
    /// `ShutDownWithDrain`.
    pub async fn shut_down_with_drain(&self) {
        self.inner.shut_down(true);
        loop {
            let idle = self.inner.idle.listen();
            {
                let state = self.inner.lock();
                if state.queue.in_progress() == 0 || !state.draining {
                    return;
                }
            }
            idle.await;
        }
    }
}

impl<K> Inner<K> {
    fn lock(&self) -> MutexGuard<'_, State<K>> {
        self.state.lock()
    }

    /// Wakes the timekeeper, since the next time is sooner than it was.
    fn wake_timekeeper(&self, state: &State<K>) {
        // Without a timekeeper any waiting worker becomes it.
        let waker = if state.has_timekeeper { &self.sooner } else { &self.ready };
        waker.notify(1);
    }

    /// Wakes one waiting worker for each of `keys` more keys that can be taken.
    fn notify_ready(&self, keys: usize) {
        if keys > 0 {
            self.ready.notify(keys.additional());
        }
    }
}

impl<K: Key> Inner<K> {
    /// Adds `key`; returns how many more keys can be taken.
    fn queue_now(&self, state: &mut State<K>, key: K, now: Duration) -> usize {
        let added = state.queue.add(key.clone(), now);
        self.carry_out(state, added, || key)
    }

    /// Carries out what [`Queue`] has decided about a key: one that was added while it rests waits
    /// for the end of its rest. Returns how many more keys can be taken.
    fn carry_out(&self, state: &mut State<K>, added: Added, key: impl FnOnce() -> K) -> usize {
        if let Added::Rests(until) = added
            && state.delayed.rest(key(), until)
        {
            self.wake_timekeeper(state);
        }
        usize::from(added == Added::Ready)
    }

    /// Traces that `key` is added, and `how`.
    fn trace_addition(&self, state: &State<K>, key: &K, how: How) {
        let queue = (std::ptr::from_ref(self).addr(), &*self.name);
        trace::key_queued(queue, key, how, state.queue.len(), self.clock.monotonic());
    }

    /// Shuts down: queues the keys that are due, drops those that wait for a later time, and wakes
    /// all waiters. `drain`: see
    /// [`RateLimitingQueue::shut_down_with_drain`].
    fn shut_down(&self, drain: bool) {
        let mut state = self.lock();
        state.queue_due(self.clock.monotonic());
        state.delayed.clear();
        state.queue.shut_down();
        state.draining = drain;
        drop(state);
        self.ready.notify(usize::MAX);
        self.idle.notify(usize::MAX);
    }
}

impl<K: Key> State<K> {
    /// Queues what has fallen due; returns how many more keys can be taken.
    fn queue_due(&mut self, now: Duration) -> usize {
        let mut ready = 0;
        while let Some((key, at, reason)) = self.delayed.pop_due(now) {
            ready += usize::from(match reason {
                Reason::Rest => self.queue.end_rest(key),
                Reason::Delay | Reason::Retry | Reason::Timer => {
                    match self.queue.add(key.clone(), at) {
                        Added::Rests(until) => {
                            self.delayed.rest(key, until);
                            false
                        }
                        added => added == Added::Ready,
                    }
                }
            });
        }
        ready
    }
}

impl<K: Key> HasProgress for Inner<K> {
    fn progress(&self) -> InProgress {
        self.lock().queue.progress(self.clock.monotonic())
    }
}

/// The worker that waits for the clock on behalf of all.
struct Timekeeper<'a, K> {
    inner: &'a Inner<K>,
    released: bool,
}

impl<K> Timekeeper<'_, K> {
    /// Gives up timekeeping, for a worker that checks the queue next: another need not be woken.
    fn release_timekeeping(mut self) {
        self.released = true;
        self.inner.lock().has_timekeeper = false;
    }
}

impl<K> Drop for Timekeeper<'_, K> {
    fn drop(&mut self) {
        if !self.released {
            self.inner.lock().has_timekeeper = false;
            // The worker's future was dropped: another has to keep the time.
            self.inner.ready.notify(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::{Pin, pin};
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Poll;

    use futures_lite::future::{block_on, poll_once};

    use super::super::exponential_failure_rate_limiter;
    use super::*;
    use crate::clock::FakeClock;
    use crate::task;

    type Get<'a> = Pin<Box<dyn Future<Output = Option<char>> + 'a>>;

    fn queue(name: &str) -> (Arc<FakeClock>, RateLimitingQueue<char>) {
        let clock = FakeClock::new(Default::default());
        let limiter =
            exponential_failure_rate_limiter(Duration::from_secs(1), Duration::from_secs(100));
        (clock.clone(), RateLimitingQueue::new(name, clock, limiter))
    }

    fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
        match block_on(poll_once(future)) {
            Some(output) => Poll::Ready(output),
            None => Poll::Pending,
        }
    }

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    #[test]
    fn many_workers_on_many_threads_take_each_key_once_at_a_time() {
        const KEYS: u32 = 50;
        const ROUNDS: u32 = 20;
        let clock = FakeClock::new(Default::default());
        let limiter = exponential_failure_rate_limiter(secs(1), secs(1));
        let queue = RateLimitingQueue::new("", clock, limiter);
        let busy: Arc<Vec<AtomicU32>> = Arc::new((0..KEYS).map(|_| AtomicU32::new(0)).collect());
        let worked = Arc::new(AtomicU32::new(0));
        let workers: Vec<_> = (0..8)
            .map(|_| {
                let (queue, busy, worked) = (queue.clone(), busy.clone(), worked.clone());
                task::spawn(async move {
                    while let Some(key) = queue.get().await {
                        let others = busy[key as usize].fetch_add(1, Ordering::SeqCst);
                        futures_lite::future::yield_now().await;
                        busy[key as usize].fetch_sub(1, Ordering::SeqCst);
                        assert_eq!(others, 0);
                        worked.fetch_add(1, Ordering::SeqCst);
                        queue.done(&key);
                    }
                })
            })
            .collect();
        for key in (0..ROUNDS).flat_map(|_| 0..KEYS) {
            queue.add(key);
        }
        queue.shut_down();
        block_on(async {
            for worker in workers {
                worker.await;
            }
        });
        let worked = worked.load(Ordering::SeqCst);
        assert!((KEYS..=KEYS * ROUNDS).contains(&worked), "{worked}");
        assert_eq!(queue.inner.lock().queue.in_progress(), 0);
    }

    #[test]
    fn a_retry_does_not_replace_a_later_addition() {
        let (clock, queue) = queue("");
        queue.add_after('a', secs(10));
        queue.add_rate_limited('a');
        queue.retry_after('a', secs(5));
        let mut times = Vec::new();
        for now in 0..20 {
            let mut get: Get = Box::pin(queue.get());
            if poll(&mut get) == Poll::Ready(Some('a')) {
                times.push(now);
                queue.done(&'a');
            }
            clock.advance(secs(1));
        }
        assert_eq!(times, [1, 10], "the earlier of both retries, and the look");
    }

    #[test]
    fn a_worker_waits_for_a_key_or_the_shutdown() {
        let (_, queue) = queue("");
        let mut first: Get = Box::pin(queue.get());
        let mut second: Get = Box::pin(queue.get());
        assert!(poll(&mut first).is_pending() && poll(&mut second).is_pending());
        queue.add('a');
        assert_eq!(poll(&mut first), Poll::Ready(Some('a')));
        assert!(poll(&mut second).is_pending());
        queue.add('a');
        assert!(poll(&mut second).is_pending(), "a is in progress");
        queue.done(&'a');
        assert_eq!(poll(&mut second), Poll::Ready(Some('a')));
        queue.add('b');
        queue.shut_down();
        queue.add('c');
        assert_eq!(block_on(queue.get()), Some('b'));
        assert_eq!(block_on(queue.get()), None);
    }

    #[test]
    fn a_notified_worker_that_is_dropped_wakes_another() {
        let (_, queue) = queue("");
        let mut first: Get = Box::pin(queue.get());
        let mut second: Get = Box::pin(queue.get());
        assert!(poll(&mut first).is_pending() && poll(&mut second).is_pending());
        queue.add('a');
        drop(first);
        assert_eq!(poll(&mut second), Poll::Ready(Some('a')));
    }

    #[test]
    fn a_delayed_key_wakes_one_worker_at_its_time() {
        let (clock, queue) = queue("");
        let mut gets: Vec<Get> = (0..3).map(|_| Box::pin(queue.get()) as Get).collect();
        assert!(gets.iter_mut().all(|get| poll(get).is_pending()));
        assert_eq!(clock.sleepers(), 0, "an idle queue has no timer");
        queue.add_after('b', secs(20));
        queue.add_after('a', secs(10));
        assert!(gets.iter_mut().all(|get| poll(get).is_pending()));
        assert_eq!(clock.sleepers(), 1, "one timer for all workers");
        assert!(queue.is_empty());
        clock.advance(secs(10));
        let ready: Vec<_> = gets.iter_mut().map(poll).filter(Poll::is_ready).collect();
        assert_eq!(ready, [Poll::Ready(Some('a'))]);
    }

    #[test]
    fn an_earlier_key_and_a_dropped_worker_move_the_timer() {
        let (clock, queue) = queue("");
        let mut first: Get = Box::pin(queue.get());
        queue.add_after('b', secs(20));
        assert!(poll(&mut first).is_pending());
        queue.add_after('a', secs(5));
        assert!(poll(&mut first).is_pending());
        let mut second: Get = Box::pin(queue.get());
        assert!(poll(&mut second).is_pending());
        drop(first);
        assert!(poll(&mut second).is_pending());
        assert_eq!(clock.sleepers(), 1);
        clock.advance(secs(5));
        assert_eq!(poll(&mut second), Poll::Ready(Some('a')));
        clock.advance(secs(15));
        assert_eq!(block_on(queue.get()), Some('b'), "found by the next worker");
    }

    #[test]
    fn a_timer_moves_both_ways_and_is_cancelled() {
        let (clock, queue) = queue("");
        let mut get: Get = Box::pin(queue.get());
        queue.set_timer_after('a', secs(10));
        assert!(poll(&mut get).is_pending());
        queue.set_timer_after('a', secs(5));
        assert!(poll(&mut get).is_pending());
        clock.advance(secs(5));
        assert_eq!(poll(&mut get), Poll::Ready(Some('a')), "earlier");
        queue.set_timer_after('a', secs(10));
        clock.advance(secs(10));
        assert!(poll(&mut Box::pin(queue.get())).is_pending(), "a is in progress");
        queue.done(&'a');
        assert_eq!(block_on(queue.get()), Some('a'), "fired meanwhile");
        queue.done(&'a');

        let mut get: Get = Box::pin(queue.get());
        queue.set_timer_after('a', secs(10));
        assert!(poll(&mut get).is_pending());
        queue.set_timer_after('a', secs(30));
        clock.advance(secs(10));
        assert!(poll(&mut get).is_pending(), "later");
        assert_eq!(clock.sleepers(), 1, "the timer is set to the new time");
        assert!(queue.cancel_timer(&'a') && !queue.cancel_timer(&'a'));
        clock.advance(secs(60));
        assert!(poll(&mut get).is_pending(), "cancelled");
        assert_eq!(clock.sleepers(), 0, "nothing to wait for");
    }

    #[test]
    fn a_timer_that_has_fired_cannot_be_cancelled() {
        let (clock, queue) = queue("");
        queue.set_timer_after('a', secs(10));
        queue.set_timer_after('b', Duration::ZERO);
        clock.advance(secs(10));
        assert!(!queue.cancel_timer(&'a') && !queue.cancel_timer(&'b'));
        assert_eq!([block_on(queue.get()), block_on(queue.get())], [Some('b'), Some('a')]);
        queue.shut_down();
        queue.set_timer_after('c', Duration::ZERO);
        queue.set_timer_after('c', secs(1));
        assert!(!queue.cancel_timer(&'c'));
        assert_eq!(block_on(queue.get()), None);
    }

    #[test]
    fn retries_and_timers_of_a_key_do_not_interfere() {
        let (clock, queue) = queue("");
        queue.add_rate_limited('a');
        queue.set_timer_after('a', secs(60));
        clock.advance(secs(1));
        assert_eq!(block_on(queue.get()), Some('a'), "the retry");
        queue.done(&'a');
        queue.add_after('a', secs(30));
        assert!(queue.cancel_timer(&'a'), "the retry has not stopped it");
        clock.advance(secs(30));
        assert_eq!(block_on(queue.get()), Some('a'), "a cancelled timer leaves the retry");
    }

    #[test]
    fn a_key_is_not_taken_while_it_rests_in_any_way_that_adds_it() {
        type Add = fn(&RateLimitingQueue<char>);
        let table: [(&str, Add); 5] = [
            ("added", |queue| queue.add('a')),
            ("added after a delay", |queue| queue.add_after('a', secs(1))),
            ("retried", |queue| queue.add_rate_limited('a')),
            ("its timer", |queue| queue.set_timer_after('a', secs(1))),
            ("its timer, stopped", |queue| queue.set_timer_after('a', Duration::ZERO)),
        ];
        for (name, add) in table {
            for in_progress in [true, false] {
                let (clock, queue) = queue("");
                queue.add('a');
                assert_eq!(block_on(queue.get()), Some('a'));
                let mut waits: Get = Box::pin(queue.get());
                assert!(poll(&mut waits).is_pending());
                if in_progress {
                    add(&queue);
                }
                queue.done_resting(&'a', secs(4));
                if !in_progress {
                    assert!(poll(&mut waits).is_pending());
                    assert_eq!(clock.sleepers(), 0, "{name}: a rest alone needs no timer");
                    add(&queue);
                }
                for _ in 0..3 {
                    clock.advance(secs(1));
                    assert!(poll(&mut waits).is_pending(), "{name}");
                }
                assert_eq!(clock.sleepers(), 1, "{name}");
                clock.advance(secs(1));
                assert_eq!(poll(&mut waits), Poll::Ready(Some('a')), "{name}");
                queue.done(&'a');
                assert!(poll(&mut Box::pin(queue.get())).is_pending(), "{name}: once");
            }
        }
    }

    #[test]
    fn a_rest_does_not_change_later_times_of_the_key() {
        let (clock, queue) = queue("");
        queue.add('a');
        assert_eq!(block_on(queue.get()), Some('a'));
        queue.add_after('a', secs(10));
        queue.set_timer_after('a', secs(20));
        queue.done_resting(&'a', secs(1));
        queue.add('a');
        // The rest, the delay and the timer.
        for wait in [1, 9, 10] {
            assert!(poll(&mut Box::pin(queue.get())).is_pending());
            clock.advance(secs(wait));
            assert_eq!(block_on(queue.get()), Some('a'));
            queue.done(&'a');
        }
    }

    #[test]
    fn due_keys_come_before_later_ones_and_the_shutdown_drops_keys_that_are_not_due() {
        let (clock, queue) = queue("");
        queue.add_rate_limited('a');
        queue.add_rate_limited('a');
        assert_eq!(queue.num_requeues(&'a'), 2);
        queue.forget(&'a');
        assert_eq!(queue.num_requeues(&'a'), 0);
        queue.add_after('z', secs(50));
        queue.add_after('n', Duration::ZERO);
        clock.advance(secs(1));
        queue.add('b');
        queue.shut_down();
        assert_eq!(queue.len(), 3);
        let all: Vec<_> = std::iter::from_fn(|| block_on(queue.get())).collect();
        assert_eq!(all, ['n', 'a', 'b']);
    }

    #[test]
    fn drain_waits_for_work_in_progress_unless_forced() {
        for forced in [false, true] {
            let (_, queue) = queue("");
            queue.add('a');
            assert_eq!(block_on(queue.get()), Some('a'));
            let mut drain = pin!(queue.shut_down_with_drain());
            assert!(poll(&mut drain).is_pending());
            if forced {
                queue.shut_down()
            } else {
                queue.done(&'a')
            }
            assert!(poll(&mut drain).is_ready());
        }
    }

    #[test]
    fn metrics_have_the_names_that_dashboards_know() {
        let (clock, queue) = queue("metrics_test");
        queue.add('a');
        queue.add('b');
        clock.advance(secs(2));
        block_on(queue.get());
        clock.advance(secs(3));
        queue.add_rate_limited('c');
        let text = String::from_utf8(crate::metrics::render()).unwrap();
        for line in [
            "workqueue_depth{name=\"metrics_test\"} 1",
            "workqueue_adds_total{name=\"metrics_test\"} 2",
            "workqueue_queue_duration_seconds_sum{name=\"metrics_test\"} 2",
            "workqueue_unfinished_work_seconds{name=\"metrics_test\"} 3",
            "workqueue_longest_running_processor_seconds{name=\"metrics_test\"} 3",
            "workqueue_retries_total{name=\"metrics_test\"} 1",
        ] {
            assert!(text.lines().any(|have| have == line), "{line} in\n{text}");
        }
        queue.done(&'a');
        let text = String::from_utf8(crate::metrics::render()).unwrap();
        assert!(text.contains("workqueue_work_duration_seconds_sum{name=\"metrics_test\"} 3"));
        drop(queue);
        let text = String::from_utf8(crate::metrics::render()).unwrap();
        assert!(!text.contains("workqueue_unfinished_work_seconds{name=\"metrics_test\"}"));
    }
}
