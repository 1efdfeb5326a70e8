//! Memory that the program's own code takes.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::clock::SharedClock;
use crate::task::StopToken;

/// Between two looks at the CPU time, while there is much and while there is little to give back.
const BUSY: Duration = Duration::from_secs(1);
const IDLE: Duration = Duration::from_secs(10);
/// The process is quiet while it uses less than this part of a core.
const QUIET: f64 = 0.05;
/// Work that took less CPU time than this has not brought in much code.
const WORK: Duration = Duration::from_millis(200);
/// A process that is never quiet gives back all the same after this CPU time.
const MUCH_WORK: Duration = Duration::from_secs(30);
/// Bytes of free blocks that a process at rest may keep until the next look.
const FEW: usize = 256 << 10;

/// Gives the pages of the code back to the kernel whenever a start, or a burst of work, is over:
/// those that the manager runs at rest come back at once, and the others, a third, do not.
pub(super) async fn give_back(clock: SharedClock, stop: StopToken) {
    let (mut looks, mut wait) = (Looks::default(), BUSY);
    process::ThreadCache::enable();
    while stop.unless_stopped(clock.sleep(wait)).await.is_some() {
        let released = process::ThreadCache::release();
        let used = clock_gettime(ClockId::ProcessCPUTime);
        let used = Duration::try_from(used).unwrap_or_default();
        let is_over = looks.is_over(used, wait);
        if is_over {
            process::release_code();
        }
        wait = if looks.is_worth_it(used) || released > FEW { BUSY } else { IDLE };
    }
}

/// At the CPU time of the process.
#[derive(Default)]
struct Looks {
    before: Duration,
    /// When code was given back.
    given: Option<Duration>,
}

impl Looks {
    /// Whether work is over, by the CPU time that is `used` by now, after a wait. The answer counts as
    /// followed.
    fn is_over(&mut self, used: Duration, wait: Duration) -> bool {
        let is_quiet = used.saturating_sub(self.before).as_secs_f64() < wait.as_secs_f64() * QUIET;
        let is_much = used.saturating_sub(self.given.unwrap_or_default()) >= MUCH_WORK;
        let is_over = self.is_worth_it(used) && (is_quiet || is_much);
        self.before = used;
        if is_over {
            self.given = Some(used);
        }
        is_over
    }

    fn is_worth_it(&self, used: Duration) -> bool {
        self.given.is_none_or(|given| used.saturating_sub(given) >= WORK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_given_back_when_work_is_over() {
        let mut looks = Looks::default();
        for (used, wait, is_over, why) in [
            (120, BUSY, false, "the start goes on"),
            (150, BUSY, true, "the start is over"),
            (250, IDLE, false, "little was done"),
            (600, IDLE, true, "much was done, at the pace of a process at rest"),
            (1_800, BUSY, false, "a burst"),
            (1_820, BUSY, true, "it is over"),
            (20_000, BUSY, false, "it works all the time"),
            (31_000, BUSY, false, "for not so long"),
            (32_000, BUSY, true, "for long"),
        ] {
            assert_eq!(looks.is_over(Duration::from_millis(used), wait), is_over, "{why}");
        }
    }
}
