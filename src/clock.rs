//! Injected time. The one place that reads the system's clocks or sleeps.
//! Upstream: `k8s.io/utils/clock`.

use parking_lot::Mutex;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use event_listener::Event;

use crate::objects::Timestamp;

pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What time it is, and a way to wait. Sleeping futures may be dropped at any time.
pub trait Clock: Send + Sync + 'static {
    /// Wall-clock time, as it is written into objects.
    fn now(&self) -> Timestamp;
    /// Time since an arbitrary start. Never goes back.
    fn monotonic(&self) -> Duration;
    fn sleep(&self, duration: Duration) -> Sleep;
}

pub type SharedClock = Arc<dyn Clock>;

/// The system's clocks.
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    pub fn shared() -> SharedClock {
        Arc::new(SystemClock { start: Instant::now() })
    }
}

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    fn now(&self) -> Timestamp {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp::from_micros(since.as_micros() as i64)
    }

    fn monotonic(&self) -> Duration {
        self.start.elapsed()
    }

    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    fn sleep(&self, duration: Duration) -> Sleep {
        Box::pin(async_std::task::sleep(duration))
    }
}

/// A clock that moves only when told to. Upstream: `clock/testing.FakeClock`.
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

    /// Moves time forward and wakes every sleeper whose time has come.
    pub fn advance(&self, by: Duration) {
        *self.state.elapsed.lock() += by;
        self.state.moved.notify(usize::MAX);
    }

    /// How many futures wait for this clock now.
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
        let due = state.elapsed() + duration;
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
