//! How long a task of the cache runs before it lets others run.

use std::time::Duration;

use crate::clock::SharedClock;

/// The most items in a slice.
const ITEMS: u32 = 64;

/// The most time in a slice: one object may be as large as a thousand others.
const SLICE: Duration = Duration::from_millis(10);

/// Counts the items that a task worked on since it yielded, and the time that they took: a task that
/// always has work must yield now and then. The time is read twice for each item of each handler, so
/// the coarse clock does it.
pub struct TimeSlice {
    clock: SharedClock,
    items: u32,
    spent: Duration,
}

impl TimeSlice {
    pub fn new(clock: SharedClock) -> TimeSlice {
        TimeSlice { clock, items: 0, spent: Duration::ZERO }
    }

    /// Returns the time at which the work on an item begins: pass it to [`TimeSlice::end_item`].
    pub fn begin_item(&self) -> Duration {
        self.clock.coarse()
    }

    /// Counts an item. Returns whether the slice is used up and the task must yield; the next slice
    /// begins then.
    pub fn end_item(&mut self, began: Duration) -> bool {
        self.items += 1;
        self.spent += self.clock.coarse().saturating_sub(began);
        let is_over = self.items >= ITEMS || self.spent >= SLICE;
        if is_over {
            (self.items, self.spent) = (0, Duration::ZERO);
        }
        is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::FakeClock;
    use crate::objects::Timestamp;

    #[test]
    fn a_slice_ends_by_its_items_or_by_their_time() {
        // How long each item takes, in milliseconds, and how many are done in a slice.
        for (millis, expected) in [(0, 64), (1, 10), (3, 4), (10, 1), (500, 1)] {
            let clock = FakeClock::new(Timestamp::from_secs(0));
            let mut slice = TimeSlice::new(clock.clone());
            for _ in 0..2 {
                let mut done = 0;
                let mut is_over = false;
                while !is_over {
                    let began = slice.begin_item();
                    clock.advance(Duration::from_millis(millis));
                    done += 1;
                    is_over = slice.end_item(began);
                    // Time between items does not count.
                    clock.advance(Duration::from_secs(1));
                }
                assert_eq!(done, expected, "{millis} ms");
            }
        }
    }
}
