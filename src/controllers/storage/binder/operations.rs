//! Long operations beside the syncs: one operation of a name at a time, and the next one after a
//! failure only when a delay has passed. Upstream: `goroutinemap` with its exponential back-off.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_channel::{Receiver, Sender};
use parking_lot::Mutex;

use crate::cache::BoxFuture;
use crate::clock::SharedClock;
use crate::controllers::Error;
use crate::task::{self, StopToken, TaskGroup};

/// The delay after the first failure; it doubles with each further one.
const FIRST_DELAY: Duration = Duration::from_millis(500);
const MAX_DELAY: Duration = Duration::from_secs(122);

type Work = BoxFuture<'static, ()>;

/// The long operations of the binder by name. [`run`] runs them.
pub struct Operations {
    clock: SharedClock,
    known: Mutex<HashMap<String, OperationState>>,
    start: Sender<Work>,
}

/// An operation that runs, or that has failed.
#[derive(Clone, Copy, Debug, PartialEq)]
struct OperationState {
    is_running: bool,
    /// Zero before the first failure.
    delay: Duration,
    failed_at: Duration,
}

impl OperationState {
    /// Returns whether the operation may start: it does not run, and its delay has passed.
    fn may_start(self, now: Duration) -> bool {
        !self.is_running && now > self.failed_at + self.delay
    }

    /// Returns the state after a failure, with twice the delay.
    fn after_failure(self, now: Duration) -> OperationState {
        let delay =
            if self.delay.is_zero() { FIRST_DELAY } else { (self.delay * 2).min(MAX_DELAY) };
        OperationState { is_running: false, delay, failed_at: now }
    }

    /// Returns whether the failure is so old that it can be forgotten.
    fn is_forgotten(self, now: Duration) -> bool {
        !self.is_running && now > self.failed_at + 4 * MAX_DELAY
    }
}

impl Operations {
    /// Makes the operations, and the receiver of those that are started, for [`run`].
    pub fn new(clock: SharedClock) -> (Arc<Operations>, Receiver<Work>) {
        let (start, started) = async_channel::unbounded();
        (Arc::new(Operations { clock, known: Mutex::default(), start }), started)
    }

    /// Starts `work`, unless an operation of this name runs or its delay after a failure has not
    /// passed.
    pub fn start<F>(self: &Arc<Self>, name: String, work: F)
    where
        F: Future<Output = Result<(), Error>> + Send + 'static,
    {
        let now = self.clock.monotonic();
        {
            let mut known = self.known.lock();
            let before = known.get(&name).copied();
            if before.is_some_and(|known| !known.may_start(now)) {
                log::debug!("operation {name:?} runs or has just failed");
                return;
            }
            let new = OperationState { is_running: false, delay: Duration::ZERO, failed_at: now };
            known
                .insert(name.clone(), OperationState { is_running: true, ..before.unwrap_or(new) });
        }
        let this = self.clone();
        let work = async move {
            let ended = task::caught(work).await;
            this.record_end(&name, ended.unwrap_or_else(|panic| Err(Error::other(panic))));
        };
        // The receiver is dropped only together with the controller.
        let _ = self.start.try_send(Box::pin(work));
    }

    /// Records the end of an operation: forgets it after a success, and sets its delay after a
    /// failure. Then old failures of others are dropped too.
    fn record_end(&self, name: &str, result: Result<(), Error>) {
        let now = self.clock.monotonic();
        let mut known = self.known.lock();
        let Some(before) = known.remove(name) else { return };
        if let Err(error) = result {
            let after = before.after_failure(now);
            let delay = after.delay;
            log::error!(
                "Operation for {name:?} failed. No retries permitted for {delay:?}. Error: {error}"
            );
            known.retain(|_, other| !other.is_forgotten(now));
            known.insert(name.to_owned(), after);
        }
    }
}

/// Runs the started operations until the stop, which ends each at its next wait.
pub async fn run(started: Receiver<Work>, stop: StopToken) {
    let tasks = TaskGroup::new();
    while let Some(Ok(work)) = stop.unless_stopped(started.recv()).await {
        let stop = stop.clone();
        tasks.spawn(async move {
            stop.unless_stopped(work).await;
        });
    }
    tasks.join().await;
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_lite::future::block_on;

    use super::*;
    use crate::clock::FakeClock;
    use crate::objects::Timestamp;

    #[test]
    fn one_operation_of_a_name_runs_at_a_time_and_failures_delay_the_next() {
        let clock = FakeClock::new(Timestamp::from_secs(0));
        let (operations, started) = Operations::new(clock.clone());
        let count = Arc::new(AtomicUsize::new(0));
        let start = |fails: bool| {
            let count = count.clone();
            operations.start("x".to_owned(), async move {
                count.fetch_add(1, Ordering::SeqCst);
                if fails { Err(Error::other("no")) } else { Ok(()) }
            });
        };
        let run = || {
            let mut ran = 0;
            while let Ok(work) = started.try_recv() {
                block_on(work);
                ran += 1;
            }
            ran
        };
        start(true);
        start(true);
        assert_eq!(run(), 1, "the second found the first");
        for delay in [500, 1000, 2000, 4000] {
            clock.advance(Duration::from_millis(delay));
            start(true);
            assert_eq!(run(), 0, "after {delay} ms");
            clock.advance(Duration::from_millis(1));
            start(true);
            assert_eq!(run(), 1, "after {delay} ms and one");
        }
        clock.advance(Duration::from_secs(9));
        start(false);
        start(false);
        assert_eq!(run(), 1);
        start(false);
        assert_eq!(run(), 1, "a success forgets the failures");
        assert_eq!(count.load(Ordering::SeqCst), 7);
    }

    #[test]
    fn the_delay_is_bounded() {
        let mut known =
            OperationState { is_running: true, delay: Duration::ZERO, failed_at: Duration::ZERO };
        for _ in 0..20 {
            known = known.after_failure(Duration::ZERO);
        }
        assert_eq!(known.delay, MAX_DELAY);
        assert!(!known.is_forgotten(MAX_DELAY) && known.is_forgotten(5 * MAX_DELAY));
    }
}
