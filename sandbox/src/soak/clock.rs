//! A clock whose wall-clock time jumps, as when a machine's time is corrected.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use kube_controller_manager::clock::{Clock, SharedClock, Sleep};
use kube_controller_manager::objects::Timestamp;

/// The time of another clock, and an offset. Monotonic time does not jump.
pub struct SteppedClock {
    clock: SharedClock,
    offset_seconds: AtomicI64,
}

impl SteppedClock {
    pub fn new(clock: SharedClock) -> SteppedClock {
        SteppedClock { clock, offset_seconds: AtomicI64::new(0) }
    }

    /// Moves the wall-clock time from now on. Upstream: `FakeClock.Step`.
    pub fn step(&self, seconds: i64) {
        self.offset_seconds.fetch_add(seconds, Ordering::Relaxed);
    }
}

impl Clock for SteppedClock {
    fn now(&self) -> Timestamp {
        let seconds = self.offset_seconds.load(Ordering::Relaxed);
        let offset = Duration::from_secs(seconds.unsigned_abs());
        let now = self.clock.now();
        if seconds < 0 { now - offset } else { now + offset }
    }

    fn monotonic(&self) -> Duration {
        self.clock.monotonic()
    }

    fn coarse(&self) -> Duration {
        self.clock.coarse()
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        self.clock.sleep(duration)
    }
}

#[cfg(test)]
mod tests {
    use kube_controller_manager::clock::FakeClock;

    use super::*;

    #[test]
    fn steps_add_up_and_leave_monotonic_time_alone() {
        let begun = Timestamp::from_secs(1000);
        let clock = SteppedClock::new(FakeClock::new(begun));
        for (step, offset) in [(60, 60), (-90, -30), (30, 0)] {
            clock.step(step);
            assert_eq!(clock.now(), Timestamp::from_secs(1000 + offset));
            assert_eq!(clock.monotonic(), Duration::ZERO);
        }
    }
}
