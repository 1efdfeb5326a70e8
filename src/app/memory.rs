//! The cache of free blocks of the executor's thread: enabled at start, released regularly.

use std::time::Duration;

use crate::clock::SharedClock;
use crate::task::StopToken;

/// The time between two releases, while the thread frees much and while it frees little.
const BUSY: Duration = Duration::from_secs(1);
const IDLE: Duration = Duration::from_secs(10);
/// Bytes of free blocks that a process at rest may keep until the next release.
const FEW: usize = 256 << 10;

/// Lets the executor's thread, on which this runs, keep free blocks, and releases them regularly.
/// With more than one executor thread, the one that ran this first may keep its blocks for longer.
pub(super) async fn release_regularly(clock: SharedClock, stop: StopToken) {
    process::ThreadCache::enable();
    let mut wait = BUSY;
    while stop.unless_stopped(clock.sleep(wait)).await.is_some() {
        let released = process::ThreadCache::release();
        wait = if released > FEW { BUSY } else { IDLE };
    }
}
