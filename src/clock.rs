//! Injected time. Only this file reads the system's clocks or sleeps.
//! Upstream: `k8s.io/utils/clock`.
//!
//! ```
//! use std::time::Duration;
//!
//! use futures_lite::future::{block_on, poll_once};
//! use kube_controller_manager::clock::{Clock, FakeClock};
//! use kube_controller_manager::objects::Timestamp;
//!
//! let clock = FakeClock::new(Timestamp::from_secs(0));
//! let mut due = clock.sleep(Duration::from_secs(60));
//! clock.advance(Duration::from_secs(59));
//! assert_eq!(block_on(poll_once(&mut due)), None);
//! clock.advance(Duration::from_secs(1));
//! assert_eq!(block_on(poll_once(&mut due)), Some(()));
//! ```

#![warn(missing_docs)]

use parking_lot::Mutex;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use event_listener::Event;
use rustix::time::{ClockId, clock_gettime};

use crate::objects::Timestamp;

/// The future that [`Clock::sleep`] returns. It may be dropped at any time: nothing is left behind.
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The time, and a way to wait for it. Upstream: `clock.Clock`.
///
/// Code takes a clock as an argument and never asks the system for the time, so that tests run on a
/// [`FakeClock`]. A deadline is kept on [`monotonic`](Clock::monotonic) time; only times in objects
/// are wall-clock times.
pub trait Clock: Send + Sync + 'static {
    /// Wall-clock time in UTC, as it is written into objects. It may jump forwards and backwards.
    fn now(&self) -> Timestamp;
    /// Time since an arbitrary start, which is the same for all clocks of the process. Includes the
    /// time for which the machine was suspended, since a lease runs out meanwhile. Never goes back.
    fn monotonic(&self) -> Duration;
    /// Monotonic time that moves in steps of some milliseconds and stands still while the machine
    /// is suspended, with a start of its own. Cheaper to read, for differences within one item of
    /// work.
    fn coarse(&self) -> Duration {
        self.monotonic()
    }
    /// Resolves once `duration` has passed, never earlier; [`Duration::MAX`] never does. With the
    /// system's clocks it counts from the first poll and leaves out the time for which the machine
    /// was suspended, so a caller with a deadline compares it with [`monotonic`](Clock::monotonic)
    /// again.
    fn sleep(&self, duration: Duration) -> Sleep;
}

/// A clock as it is passed around: all clones are one clock.
pub type SharedClock = Arc<dyn Clock>;

/// The system's clocks: `CLOCK_REALTIME`, and `CLOCK_BOOTTIME` for monotonic time. Upstream:
/// `clock.RealClock`.
pub struct SystemClock;

impl SystemClock {
    /// Returns a new handle on the system's clocks; all handles show the same time.
    pub fn shared() -> SharedClock {
        Arc::new(SystemClock)
    }
}

/// Reads one of the kernel's clocks.
fn read_clock(clock: ClockId) -> Duration {
    let now = clock_gettime(clock);
    Duration::new(
        u64::try_from(now.tv_sec).unwrap_or_default(),
        u32::try_from(now.tv_nsec).unwrap_or_default(),
    )
}

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    fn now(&self) -> Timestamp {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp::from_micros(since.as_micros() as i64)
    }

    fn monotonic(&self) -> Duration {
        // `Instant` stands still during a suspension.
        read_clock(ClockId::Boottime)
    }

    fn coarse(&self) -> Duration {
        read_clock(ClockId::MonotonicCoarse)
    }

    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    fn sleep(&self, duration: Duration) -> Sleep {
        Box::pin(async_std::task::sleep(duration))
    }
}

/// A clock that moves only by [`advance`](FakeClock::advance), and is set by
/// [`set`](FakeClock::set). Upstream: `clock/testing.FakeClock`.
pub struct FakeClock {
    state: Arc<FakeState>,
}

/// The state of a [`FakeClock`], which its sleeping futures share.
struct FakeState {
    /// The wall-clock time at which monotonic time was zero.
    start: Mutex<Timestamp>,
    elapsed: Mutex<Duration>,
    sleepers: std::sync::atomic::AtomicUsize,
    moved: Event,
}

impl FakeState {
    fn elapsed(&self) -> Duration {
        *self.elapsed.lock()
    }
}

impl FakeClock {
    /// Makes a clock whose wall-clock time is `start` and whose monotonic time is zero.
    pub fn new(start: Timestamp) -> Arc<FakeClock> {
        let state = FakeState {
            start: Mutex::new(start),
            elapsed: Mutex::default(),
            sleepers: Default::default(),
            moved: Event::new(),
        };
        Arc::new(FakeClock { state: Arc::new(state) })
    }

    /// Moves both times forward and wakes each sleeper that is due. Does not wait until the
    /// sleepers have run.
    pub fn advance(&self, by: Duration) {
        *self.state.elapsed.lock() += by;
        self.state.moved.notify(usize::MAX);
    }

    /// Sets the wall-clock time, forwards or backwards, as a person or NTP does. Monotonic time stays
    /// as it is, and sleepers sleep on.
    pub fn set(&self, now: Timestamp) {
        *self.state.start.lock() = now - self.state.elapsed();
    }

    /// Returns how many sleeping futures exist, polled or not. A test waits for one before it moves
    /// the time.
    pub fn sleepers(&self) -> usize {
        self.state.sleepers.load(std::sync::atomic::Ordering::SeqCst)
    }
}

/// Counts a sleeping future in `sleepers` until it is dropped.
struct Sleeping(Arc<FakeState>);

impl Drop for Sleeping {
    fn drop(&mut self) {
        self.0.sleepers.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
    }
}

impl Clock for FakeClock {
    fn now(&self) -> Timestamp {
        *self.state.start.lock() + self.state.elapsed()
    }

    fn monotonic(&self) -> Duration {
        self.state.elapsed()
    }

    /// Sleeps until the time of this clock has been moved by `duration`.
    fn sleep(&self, duration: Duration) -> Sleep {
        let state = self.state.clone();
        let due = state.elapsed().saturating_add(duration);
        state.sleepers.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        let guard = Sleeping(state);
        Box::pin(async move {
            loop {
                let moved = guard.0.moved.listen();
                if guard.0.elapsed() >= due {
                    return;
                }
                moved.await;
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's clock that runs on during a suspension, as `/proc/uptime` shows it.
    fn uptime() -> Duration {
        let text = std::fs::read_to_string("/proc/uptime").expect("procfs");
        let seconds = text.split(' ').next().and_then(|seconds| seconds.parse().ok());
        Duration::from_secs_f64(seconds.expect("seconds"))
    }

    #[test]
    fn monotonic_time_includes_suspensions() {
        let clock = SystemClock::shared();
        let before = uptime();
        let now = clock.monotonic();
        // Hundredths of a second are cut off there.
        let after = uptime() + Duration::from_millis(20);
        assert!((before..=after).contains(&now), "{before:?} {now:?} {after:?}");
    }
}
