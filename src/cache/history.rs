//! One notice, for all caches, that the API server has lost versions, as after a restored backup.
//! Upstream has no counterpart.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use event_listener::Event;
use futures_lite::FutureExt;
use parking_lot::Mutex;

use crate::clock::SharedClock;

/// How long the readers of caches wait, at most, until all caches are listed again.
const PATIENCE: Duration = Duration::from_secs(30);

/// What [`LossObserver::record_list`] is before the first list.
const UNLISTED: u64 = u64::MAX;

/// The losses of versions that any part of the process has noticed. All caches that follow it are
/// listed again after each, and readers wait for that: [`settled`](VersionLosses::settled). Cheap to
/// clone: clones are one.
#[derive(Clone, Default)]
pub struct VersionLosses {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    /// The number of losses.
    losses: AtomicU64,
    /// The last loss after which all caches were listed, or waited for in vain.
    settled: AtomicU64,
    state: Mutex<State>,
    /// Notified with a loss, and when a follower has listed or ended.
    changed: Event,
}

#[derive(Default)]
struct State {
    /// When the last loss was noticed, on the monotonic clock.
    at: Duration,
    /// The `listed` of each [`LossObserver`].
    followers: Vec<Arc<AtomicU64>>,
}

/// One cache that follows a [`VersionLosses`], until it is dropped.
pub struct LossObserver {
    history: VersionLosses,
    /// The last loss before the last whole list began.
    listed: Arc<AtomicU64>,
}

impl VersionLosses {
    /// Returns the number of losses so far.
    pub fn losses(&self) -> u64 {
        self.inner.losses.load(Ordering::Acquire)
    }

    /// Records a loss that was noticed at `now`, on the monotonic clock. `known`: the number of
    /// losses that the caller knows; if there are more already, this one is among them.
    pub fn record_loss(&self, known: u64, now: Duration) {
        {
            let mut state = self.inner.state.lock();
            if self.losses() != known {
                return;
            }
            state.at = now;
            self.inner.losses.store(known + 1, Ordering::Release);
        }
        log::warn!("the API server has lost versions, as after a restored backup: all is listed");
        self.inner.changed.notify(usize::MAX);
    }

    /// Registers a cache that is not listed yet; dropping the observer removes it.
    pub fn follow(&self) -> LossObserver {
        let listed = Arc::new(AtomicU64::new(UNLISTED));
        self.inner.state.lock().followers.push(listed.clone());
        LossObserver { history: self.clone(), listed }
    }

    /// Returns whether all caches have been listed since the last loss. Costs two loads.
    pub fn is_settled(&self) -> bool {
        self.inner.settled.load(Ordering::Acquire) == self.losses()
    }

    /// Waits until all caches have been listed since the last loss; returns at once if there was
    /// none. A cache that cannot be listed is waited for no longer than half a minute. May be
    /// dropped at any time.
    pub async fn settled(&self, clock: &SharedClock) {
        while !self.is_settled() {
            let changed = self.inner.changed.listen();
            let Some(wait) = self.wait_or_settle(clock.monotonic()) else { return };
            changed.or(clock.sleep(wait)).await;
        }
    }

    /// Returns how long to wait, at most, for caches that have not been listed since the last loss.
    /// Without such caches, or when their time is over, records that all losses are settled, and
    /// returns `None`.
    fn wait_or_settle(&self, now: Duration) -> Option<Duration> {
        let state = self.inner.state.lock();
        let losses = self.losses();
        let is_unlisted = |listed: &Arc<AtomicU64>| listed.load(Ordering::Acquire) < losses;
        let wait = (state.at + PATIENCE).saturating_sub(now);
        if state.followers.iter().any(is_unlisted) && !wait.is_zero() {
            return Some(wait);
        }
        self.inner.settled.store(losses, Ordering::Release);
        None
    }
}

impl LossObserver {
    /// See [`VersionLosses::losses`].
    pub fn losses(&self) -> u64 {
        self.history.losses()
    }

    /// Returns whether a loss was noticed after the last whole list began. Never before the first
    /// list.
    pub fn is_behind(&self) -> bool {
        self.listed.load(Ordering::Acquire) < self.losses()
    }

    /// Records a whole list that began after this number of losses.
    pub fn record_list(&self, losses: u64) {
        if self.listed.swap(losses, Ordering::AcqRel) != losses {
            self.history.inner.changed.notify(usize::MAX);
        }
    }

    /// Records a loss that this cache noticed itself at `now`. It has to be listed after that.
    pub fn record_loss(&self, now: Duration) {
        self.history.record_loss(self.listed.load(Ordering::Acquire), now);
    }

    /// Returns a future that resolves when [`is_behind`](LossObserver::is_behind) is true, at once
    /// if it is so now.
    pub fn loss(&self) -> impl Future<Output = ()> + use<> {
        let (history, listed) = (self.history.clone(), self.listed.clone());
        async move {
            loop {
                let changed = history.inner.changed.listen();
                if listed.load(Ordering::Acquire) < history.losses() {
                    return;
                }
                changed.await;
            }
        }
    }
}

impl Drop for LossObserver {
    fn drop(&mut self) {
        let inner = &self.history.inner;
        inner.state.lock().followers.retain(|listed| !Arc::ptr_eq(listed, &self.listed));
        inner.changed.notify(usize::MAX);
    }
}

#[cfg(test)]
mod tests {
    use futures_lite::future::{block_on, poll_once};

    use super::*;
    use crate::clock::{Clock, FakeClock};
    use crate::objects::Timestamp;

    #[test]
    fn a_loss_is_settled_when_all_caches_are_listed_again() {
        let clock = FakeClock::new(Timestamp::from_secs(0));
        let (shared, history): (SharedClock, _) = (clock.clone(), VersionLosses::default());
        let (one, other, unlisted) = (history.follow(), history.follow(), history.follow());
        one.record_list(0);
        other.record_list(0);
        assert!(history.is_settled() && !one.is_behind());

        one.record_loss(clock.monotonic());
        // The same loss.
        other.record_loss(clock.monotonic());
        assert_eq!(history.losses(), 1);
        assert!(one.is_behind() && other.is_behind() && !unlisted.is_behind());
        let mut settled = Box::pin(history.settled(&shared));
        let mut is_over = || block_on(poll_once(&mut settled)).is_some();
        assert!(!is_over());
        one.record_list(1);
        assert!(!is_over());
        // A list that began before the loss.
        other.record_list(0);
        assert!(!is_over());
        other.record_list(1);
        assert!(is_over() && history.is_settled());
    }

    #[test]
    fn a_cache_that_ends_or_cannot_be_listed_is_not_waited_for() {
        let clock = FakeClock::new(Timestamp::from_secs(0));
        let (shared, history): (SharedClock, _) = (clock.clone(), VersionLosses::default());
        let (one, other) = (history.follow(), history.follow());
        one.record_list(0);
        other.record_list(0);
        history.record_loss(0, clock.monotonic());
        one.record_list(1);
        let mut settled = Box::pin(history.settled(&shared));
        let mut is_over = || block_on(poll_once(&mut settled)).is_some();
        assert!(!is_over());
        clock.advance(PATIENCE - Duration::from_millis(1));
        assert!(!is_over());
        clock.advance(Duration::from_millis(1));
        assert!(is_over());

        history.record_loss(1, clock.monotonic());
        one.record_list(2);
        let mut settled = Box::pin(history.settled(&shared));
        assert!(block_on(poll_once(&mut settled)).is_none());
        drop(other);
        assert!(block_on(poll_once(&mut settled)).is_some());
    }
}
