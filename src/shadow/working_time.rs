//! Time in which this process could work.

use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::SharedClock;

/// The period in which code that waits asks for the time.
pub const STEP: Duration = Duration::from_millis(250);
/// The most by which the time increases between two questions. If the clock has gone further, the
/// process was frozen or without CPU for most of that time, or nothing waited.
const LONGEST: Duration = Duration::from_millis(500);

/// Monotonic time that stands still while no code asks for it. Code that waits asks again after
/// [`STEP`], so a wait does not end while the process could do nothing.
pub struct WorkingTime {
    clock: SharedClock,
    last: Mutex<Last>,
}

/// The last question for the time, and the answer to it.
struct Last {
    /// By the clock.
    asked: Duration,
    /// The working time, which is behind the clock.
    answer: Duration,
}

impl WorkingTime {
    pub fn new(clock: SharedClock) -> WorkingTime {
        let asked = clock.monotonic();
        WorkingTime { clock, last: Mutex::new(Last { asked, answer: asked }) }
    }

    /// Returns the time in which this process has worked. A call adds at most `LONGEST`, even if
    /// more time has passed since the last one.
    pub fn elapsed(&self) -> Duration {
        let mut last = self.last.lock();
        let now = self.clock.monotonic();
        let answer = last.answer + now.saturating_sub(last.asked).min(LONGEST);
        *last = Last { asked: now, answer };
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock, FakeClock};
    use crate::objects::Timestamp;

    #[test]
    fn a_pause_counts_for_half_a_second() {
        let clock = FakeClock::new(Timestamp::from_secs(0));
        let time = WorkingTime::new(clock.clone());
        let mut expected = clock.monotonic();
        assert_eq!(time.elapsed(), expected);
        for (passes, counts) in [(0, 0), (1, 1), (250, 250), (400, 400), (60_000, 500), (7, 7)] {
            clock.advance(Duration::from_millis(passes));
            expected += Duration::from_millis(counts);
            assert_eq!((time.elapsed(), time.elapsed()), (expected, expected), "{passes}");
        }
    }
}
