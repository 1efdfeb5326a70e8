//! When a worker gets its next work.

use std::time::Duration;

use super::Outcome;

/// When a worker gets its next work.
#[derive(Clone, Copy, Debug)]
pub(super) enum Schedule {
    Now,
    /// At this time of the monotonic clock, or earlier if something changes.
    At(Duration),
    /// It works. `again`: something has changed since this work began.
    Working {
        again: bool,
    },
}

impl Schedule {
    /// Makes the work due now, or due again after the one that is done now.
    pub(super) fn request(&mut self) {
        match self {
            Schedule::Working { again } => *again = true,
            Schedule::Now | Schedule::At(_) => *self = Schedule::Now,
        }
    }

    /// Begins the work that is due. Returns whether any is.
    pub(super) fn begin(&mut self, now: Duration) -> bool {
        let is_due = match self {
            Schedule::Now => true,
            Schedule::At(at) => *at <= now,
            Schedule::Working { .. } => false,
        };
        if is_due {
            *self = Schedule::Working { again: false };
        }
        is_due
    }

    /// Returns when the same work is due again, after it has ended with `outcome` at the time
    /// `now`.
    pub(super) fn again(self, outcome: Outcome, now: Duration) -> Schedule {
        match (self, outcome) {
            (Schedule::Working { again: false }, Outcome::Done(delay) | Outcome::Failed(delay)) => {
                Schedule::At(now.saturating_add(delay))
            }
            // Something has changed meanwhile, or the work was cut short.
            _ => Schedule::Now,
        }
    }

    pub(super) fn is_working(self) -> bool {
        matches!(self, Schedule::Working { .. })
    }

    /// Returns the time for which the work waits. `None`: it is due now, or under way.
    pub(super) fn time(self) -> Option<Duration> {
        match self {
            Schedule::At(at) => Some(at),
            Schedule::Now | Schedule::Working { .. } => None,
        }
    }
}
