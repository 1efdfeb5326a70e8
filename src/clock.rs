//! Injected time. Only this file reads the system's clocks or sleeps.
//! Upstream: `k8s.io/utils/clock`.

use parking_lot::Mutex;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use event_listener::Event;
use rustix::time::{ClockId, clock_gettime};

use crate::objects::Timestamp;

pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What time it is, and a way to wait. Sleeping futures may be dropped at any time.
pub trait Clock: Send + Sync + 'static {
    /// Wall-clock time, as it is written into objects.
    fn now(&self) -> Timestamp;
    /// Time since an arbitrary start, with the time that the machine was suspended: a lease runs
    /// out meanwhile. Never goes back.
    fn monotonic(&self) -> Duration;
    fn sleep(&self, duration: Duration) -> Sleep;
}

pub type SharedClock = Arc<dyn Clock>;

/// The system's clocks.
pub struct SystemClock;

impl SystemClock {
    pub fn shared() -> SharedClock {
        Arc::new(SystemClock)
    }
}

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    fn now(&self) -> Timestamp {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp::from_micros(since.as_micros() as i64)
    }

    fn monotonic(&self) -> Duration {
        // `Instant` stands still during a suspension.
        let now = clock_gettime(ClockId::Boottime);
        Duration::new(
            u64::try_from(now.tv_sec).unwrap_or_default(),
            u32::try_from(now.tv_nsec).unwrap_or_default(),
        )
    }

    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    fn sleep(&self, duration: Duration) -> Sleep {
        Box::pin(async_std::task::sleep(duration))
    }
}

/// A clock that moves only by [`advance`](FakeClock::advance). Upstream: `clock/testing.FakeClock`.
pub struct FakeClock {
    state: Arc<FakeState>,
}

struct FakeState {
    start: Timestamp,
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
    pub fn new(start: Timestamp) -> Arc<FakeClock> {
        let state = FakeState {
            start,
            elapsed: Mutex::default(),
            sleepers: Default::default(),
            moved: Event::new(),
        };
        Arc::new(FakeClock { state: Arc::new(state) })
    }

    /// Moves time forward and wakes each sleeper that is due.
    pub fn advance(&self, by: Duration) {
        *self.state.elapsed.lock() += by;
        self.state.moved.notify(usize::MAX);
    }

    /// How many futures sleep by this clock.
    pub fn sleepers(&self) -> usize {
        self.state.sleepers.load(std::sync::atomic::Ordering::SeqCst)
    }
}

struct Sleeping(Arc<FakeState>);

impl Drop for Sleeping {
    fn drop(&mut self) {
        self.0.sleepers.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
    }
}

impl Clock for FakeClock {
    fn now(&self) -> Timestamp {
        self.state.start + self.state.elapsed()
    }

    fn monotonic(&self) -> Duration {
        self.state.elapsed()
    }

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
