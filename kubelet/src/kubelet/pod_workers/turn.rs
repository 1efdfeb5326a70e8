//! When a worker gets its next work.

use std::time::Duration;

use super::Outcome;

/// When a worker gets its next work.
#[derive(Clone, Copy, Debug)]
pub(super) enum Turn {
    Now,
    /// At this time of the monotonic clock, or earlier if something changes.
    At(Duration),
    /// It works. `again`: something has changed since this work began.
    Working {
        again: bool,
    },
}

impl Turn {
    /// Something has changed.
    pub(super) fn request(&mut self) {
        match self {
            Turn::Working { again } => *again = true,
            Turn::Now | Turn::At(_) => *self = Turn::Now,
        }
    }

    /// Begins the work that is due. Returns whether any is.
    pub(super) fn begin(&mut self, now: Duration) -> bool {
        let is_due = match self {
            Turn::Now => true,
            Turn::At(at) => *at <= now,
            Turn::Working { .. } => false,
        };
        if is_due {
            *self = Turn::Working { again: false };
        }
        is_due
    }

    /// The next turn for the same work, which has ended so at the time `now`.
    pub(super) fn again(self, outcome: Outcome, now: Duration) -> Turn {
        match (self, outcome) {
            (Turn::Working { again: false }, Outcome::Done(delay) | Outcome::Failed(delay)) => {
                Turn::At(now.saturating_add(delay))
            }
            _ => Turn::Now,
        }
    }

    pub(super) fn is_working(self) -> bool {
        matches!(self, Turn::Working { .. })
    }

    /// `None`: it waits for no time.
    pub(super) fn time(self) -> Option<Duration> {
        match self {
            Turn::At(at) => Some(at),
            Turn::Now | Turn::Working { .. } => None,
        }
    }
}
