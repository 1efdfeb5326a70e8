//! Time in which this process could work.

use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::SharedClock;

/// The longest time between two calls of [`WorkingTime::now`] that counts: of a longer one the
/// process was frozen or got no CPU for most, or nobody waited.
pub const STEP: Duration = Duration::from_millis(250);

/// Monotonic time that stands still while nobody asks for it. Code that waits asks again
/// after [`STEP`] at most, so a wait does not end while the process could do nothing.
pub struct WorkingTime {
    clock: SharedClock,
    last: Mutex<Last>,
}

struct Last {
    /// By the clock.
    asked: Duration,
    answer: Duration,
}

impl WorkingTime {
    pub fn new(clock: SharedClock) -> WorkingTime {
        let asked = clock.monotonic();
        WorkingTime { clock, last: Mutex::new(Last { asked, answer: asked }) }
    }

    pub fn now(&self) -> Duration {
        let mut last = self.last.lock();
        let now = self.clock.monotonic();
        let answer = last.answer + now.saturating_sub(last.asked).min(STEP);
        *last = Last { asked: now, answer };
        answer
    }
}
