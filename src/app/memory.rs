//! Memory that a busy process uses and one at rest does not: free blocks of the allocator, and pages
//! of the program's own code.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::clock::SharedClock;
use crate::task::StopToken;

/// Between two looks at the CPU time, while there is much and while there is little to give back.
const BUSY: Duration = Duration::from_secs(1);
const IDLE: Duration = Duration::from_secs(10);
/// Below each part of a core that the process uses: the CPU time since code was given back from which
/// on it is worth it again. Little work brings little code in, and a busy process needs it again.
const WORTH_IT: [(f64, Duration); 3] = [
    (0.01, LITTLE_WORK),
    (0.05, Duration::from_millis(200)),
    (f64::INFINITY, Duration::from_secs(30)),
];
const LITTLE_WORK: Duration = Duration::from_millis(30);
/// Bytes of free blocks that a process at rest may keep until the next look.
const FEW: usize = 256 << 10;

/// Lets the executor's thread, on which this runs, keep free blocks from one look to the next, and
/// gives the pages of the code back to the kernel whenever work is over: those that the manager runs at
/// rest come back at once, and the others, a third, do not. With more than one executor thread, the
/// one that ran this first may keep its blocks for longer.
pub(super) async fn give_back(clock: SharedClock, stop: StopToken) {
    let (mut looks, mut wait) = (Looks::default(), BUSY);
    process::ThreadCache::enable();
    while stop.unless_stopped(clock.sleep(wait)).await.is_some() {
        let released = process::ThreadCache::release();
        let used = clock_gettime(ClockId::ProcessCPUTime);
        let used = Duration::try_from(used).unwrap_or_default();
        if looks.is_over(used, wait) {
            process::release_code();
        }
        let is_working = looks.since_given(used) >= LITTLE_WORK || released > FEW;
        wait = if is_working { BUSY } else { IDLE };
    }
}

/// At the CPU time of the process.
#[derive(Default)]
struct Looks {
    before: Duration,
    /// When code was given back.
    given: Duration,
}

impl Looks {
    /// Whether work is over, by the CPU time that is `used` by now, after a wait. The answer counts as
    /// followed.
    fn is_over(&mut self, used: Duration, wait: Duration) -> bool {
        let rate = used.saturating_sub(self.before).as_secs_f64() / wait.as_secs_f64();
        let enough = WORTH_IT.iter().find(|(below, _)| rate < *below);
        let is_over = enough.is_some_and(|(_, enough)| self.since_given(used) >= *enough);
        self.before = used;
        if is_over {
            self.given = used;
        }
        is_over
    }

    fn since_given(&self, used: Duration) -> Duration {
        used.saturating_sub(self.given)
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
            (150, BUSY, false, "it ends"),
            (155, BUSY, true, "it is over"),
            (175, IDLE, false, "little was done"),
            (190, IDLE, true, "enough was done, at the pace of a process at rest"),
            (230, BUSY, false, "it works a little"),
            (270, BUSY, false, "and on"),
            (390, BUSY, false, "more"),
            (430, BUSY, true, "much was done, and it works a little"),
            (1_800, BUSY, false, "a burst"),
            (1_809, BUSY, true, "it is over"),
            (20_000, BUSY, false, "it works all the time"),
            (31_000, BUSY, false, "for not so long"),
            (32_000, BUSY, true, "for long"),
        ] {
            assert_eq!(looks.is_over(Duration::from_millis(used), wait), is_over, "{why}");
        }
    }
}
