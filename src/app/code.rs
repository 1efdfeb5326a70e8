//! Memory that the program's own code takes.

use std::time::Duration;

use crate::clock::SharedClock;
use crate::task::StopToken;

/// By then a small cluster's manager has started.
const FIRST: Duration = Duration::from_secs(15);
/// Code that a burst of work brought in goes within this time.
const PERIOD: Duration = Duration::from_secs(300);

/// Gives the pages of the code back to the kernel from time to time: those that the manager runs
/// come back at once, and those of its start, a third, do not.
pub(super) async fn give_back(clock: SharedClock, stop: StopToken) {
    let mut wait = FIRST;
    while stop.unless_stopped(clock.sleep(wait)).await.is_some() {
        process::release_code();
        wait = PERIOD;
    }
}
