//! The creations and deletions that a controller waits for before it acts again. Upstream:
//! `ControllerExpectations` and `UIDTrackingControllerExpectations`.

use parking_lot::{Mutex, MutexGuard};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use crate::cache::Lister;
use crate::clock::SharedClock;
use crate::controllers::Controller;
use crate::controllers::runner::Queue;
use crate::controllers::runner::keys::{DependentEvent, Observer};
use crate::controllers::workloads::owner_records::OwnerRecord;
use crate::objects::{Meta, Object, ObjectKey, Uid};

/// After this long an expectation counts as met: an event must have been lost.
pub const EXPECTATIONS_TIMEOUT: Duration = Duration::from_secs(5 * 60);
/// The period in which owners with overdue expectations are looked for.
const OVERDUE_PERIOD: Duration = Duration::from_secs(60);

/// For each owner, the creations and deletions that it has requested and not seen yet. Creations
/// are counted; deletions are recorded by uid, so that none is counted twice (first as an update
/// with a deletion timestamp, then as the deletion).
pub struct Expectations {
    clock: SharedClock,
    /// The history of the dependents' cache: see [`HistoryVersion`](crate::cache::HistoryVersion).
    history: Box<dyn Fn() -> u64 + Send + Sync>,
    owners: Mutex<HashMap<ObjectKey, Expected>>,
}

/// What one owner expects.
struct Expected {
    creations: usize,
    deletions: HashSet<Uid>,
    /// On the monotonic clock.
    since: Duration,
    history: u64,
}

impl Expected {
    fn is_fulfilled(&self) -> bool {
        self.creations == 0 && self.deletions.is_empty()
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "creations: {}, deletions: {}", self.creations, self.deletions.len())
    }
}

impl Expectations {
    pub fn new(clock: SharedClock) -> Expectations {
        Expectations { clock, history: Box::new(|| 0), owners: Mutex::default() }
    }

    /// Takes `dependents` as the cache in which the expected events are seen: when the server loses
    /// the history of that cache, what was expected before is overdue.
    pub fn seen_in<T: Object>(self, dependents: &Lister<T>) -> Expectations {
        let dependents = dependents.clone();
        Expectations { history: Box::new(move || dependents.seen().history), ..self }
    }

    fn owners(&self) -> MutexGuard<'_, HashMap<ObjectKey, Expected>> {
        self.owners.lock()
    }

    /// Returns whether no further event about `expected` will come: the time is over, or the server
    /// has lost its history.
    fn is_overdue(&self, expected: &Expected) -> bool {
        let waited = || self.clock.monotonic().saturating_sub(expected.since);
        expected.history != (self.history)() || waited() > EXPECTATIONS_TIMEOUT
    }

    /// Returns whether `owner` may act: it expects nothing, all expected events were seen, or no
    /// more will come.
    pub fn satisfied(&self, owner: &ObjectKey) -> bool {
        let owners = self.owners();
        let Some(expected) = owners.get(owner) else { return true };
        let waits = !expected.is_fulfilled() && !self.is_overdue(expected);
        if waits {
            log::debug!("{owner} waits for {expected}");
        }
        !waits
    }

    /// Queues each owner whose expectations are overdue. A dependent that was created and deleted
    /// between two lists has no event, so without this the owner would wait until another event
    /// queues it. Upstream waits for that, or for the resync.
    pub fn queue_overdue(self: &Arc<Self>, c: &mut Controller, queue: &Queue) {
        let (name, this, queue) = (c.name(), self.clone(), queue.clone());
        c.every(OVERDUE_PERIOD, move || {
            for (owner, expected) in this.take_overdue() {
                log::info!("{name}: {owner} waits no longer for {expected}");
                queue.add(owner);
            }
            ready(Ok(()))
        });
    }

    /// Drops the expectations that are met or overdue. Returns the overdue ones, by their owners.
    fn take_overdue(&self) -> Vec<(ObjectKey, Expected)> {
        let mut owners = self.owners();
        owners.retain(|_, expected| !expected.is_fulfilled());
        owners.extract_if(|_, expected| self.is_overdue(expected)).collect()
    }

    /// Replaces what `owner` expects. Upstream: `SetExpectations`.
    pub fn expect(&self, owner: &ObjectKey, creations: usize, deletions: Vec<Uid>) {
        let since = self.clock.monotonic();
        let deletions = deletions.into_iter().collect();
        let history = (self.history)();
        let expected = Expected { creations, deletions, since, history };
        self.owners().insert(owner.clone(), expected);
    }

    /// Replaces what `owner` expects.
    pub fn expect_creations(&self, owner: &ObjectKey, count: usize) {
        self.expect(owner, count, Vec::new());
    }

    /// Replaces what `owner` expects.
    pub fn expect_deletions(&self, owner: &ObjectKey, dependents: Vec<Uid>) {
        self.expect(owner, 0, dependents);
    }

    /// Lowers the expectation by one creation, which was seen or will never be seen.
    pub fn creation_observed(&self, owner: &ObjectKey) {
        if let Some(expected) = self.owners().get_mut(owner) {
            expected.creations = expected.creations.saturating_sub(1);
        }
    }

    /// Removes the expected deletion of `dependent`, which was seen or will never be seen. Counts
    /// once.
    pub fn deletion_observed(&self, owner: &ObjectKey, dependent: &Uid) {
        if let Some(expected) = self.owners().get_mut(owner) {
            expected.deletions.remove(dependent);
        }
    }
}

/// Upstream: `DeleteExpectations`.
impl OwnerRecord for Expectations {
    fn forget(&self, owner: &ObjectKey, _: Option<&Uid>) {
        self.owners().remove(owner);
    }
}

/// A dependent with a deletion timestamp counts as deleted.
impl Observer for Expectations {
    fn observe(&self, owner: &ObjectKey, dependent: &Meta, event: DependentEvent) {
        match event {
            DependentEvent::Created => self.creation_observed(owner),
            DependentEvent::Updated => {}
            DependentEvent::Deleting | DependentEvent::Deleted => {
                self.deletion_observed(owner, &dependent.uid)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_lite::future::{block_on, yield_now};

    use super::*;
    use crate::cache::Indexer;
    use crate::clock::{Clock, FakeClock};
    use crate::controllers::{Next, QueuePolicy};
    use crate::objects::{Pod, Timestamp};
    use crate::task::{StopToken, spawn};

    #[test]
    fn an_owner_waits_for_its_creations_and_deletions() {
        let clock = FakeClock::new(Timestamp::from_secs(0));
        let expectations = Expectations::new(clock.clone());
        let (a, b) = (ObjectKey::new("ns", "a"), ObjectKey::new("ns", "b"));
        assert!(expectations.satisfied(&a), "never expected anything");

        expectations.expect_creations(&a, 2);
        expectations.creation_observed(&a);
        expectations.creation_observed(&b);
        assert!(!expectations.satisfied(&a));
        assert!(expectations.satisfied(&b));
        expectations.creation_observed(&a);
        assert!(expectations.satisfied(&a));
        // More than was asked for (an adopted pod) makes no debt.
        expectations.creation_observed(&a);
        expectations.expect_creations(&a, 1);
        assert!(!expectations.satisfied(&a));

        let (x, y) = (Uid::new("x"), Uid::new("y"));
        expectations.expect_deletions(&a, vec![x.clone(), y.clone()]);
        expectations.deletion_observed(&a, &x);
        expectations.deletion_observed(&a, &x);
        assert!(!expectations.satisfied(&a), "x must not count twice");
        clock.advance(EXPECTATIONS_TIMEOUT);
        assert!(!expectations.satisfied(&a));
        clock.advance(Duration::from_nanos(1));
        assert!(expectations.satisfied(&a), "expired");
        expectations.expect_deletions(&a, vec![y]);
        assert!(!expectations.satisfied(&a));
        expectations.forget(&a, None);
        assert!(expectations.satisfied(&a));
    }

    #[test]
    fn an_owner_does_not_wait_for_what_the_server_has_lost() {
        let pods = Arc::new(Indexer::<Pod>::new());
        let clock = FakeClock::new(Timestamp::from_secs(0));
        let expectations = Expectations::new(clock).seen_in(&Lister::new(pods.clone()));
        let owner = ObjectKey::new("ns", "a");
        expectations.expect_creations(&owner, 1);
        assert!(!expectations.satisfied(&owner));
        pods.go_back(7);
        assert!(expectations.satisfied(&owner));
        expectations.expect_creations(&owner, 1);
        assert!(!expectations.satisfied(&owner));
    }

    #[test]
    fn an_owner_whose_events_were_lost_is_queued_once() {
        let pods = Arc::new(Indexer::<Pod>::new());
        let clock = FakeClock::new(Timestamp::from_secs(0));
        let expectations = Expectations::new(clock.clone()).seen_in(&Lister::new(pods.clone()));
        let key = |name| ObjectKey::new("ns", name);
        let (waiting, late, met) = (key("waiting"), key("late"), key("met"));
        expectations.expect_creations(&late, 2);
        expectations.creation_observed(&late);
        expectations.expect_creations(&met, 0);
        clock.advance(Duration::from_nanos(1));
        expectations.expect_deletions(&waiting, vec![Uid::new("x")]);
        let overdue = || -> Vec<_> {
            expectations.take_overdue().into_iter().map(|(owner, _)| owner).collect()
        };
        assert_eq!(overdue(), []);
        clock.advance(EXPECTATIONS_TIMEOUT);
        assert_eq!(overdue(), [late]);
        assert_eq!(overdue(), []);
        assert!(!expectations.satisfied(&waiting), "its time is not over");
        pods.go_back(7);
        assert_eq!(overdue(), [waiting]);
    }

    #[test]
    fn a_controller_syncs_an_owner_whose_events_were_lost() {
        let clock = FakeClock::new(Timestamp::from_secs(0));
        let mut c = Controller::for_test("test-overdue", 1, clock.clone());
        let queue = c.queue::<ObjectKey>(QueuePolicy::default());
        let expectations = Arc::new(Expectations::new(clock.clone()));
        expectations.queue_overdue(&mut c, &queue);
        let (sent, synced) = async_channel::unbounded();
        c.sync(queue, &expectations, move |expectations, key| {
            let satisfied = expectations.satisfied(&key);
            sent.try_send((key, satisfied)).unwrap();
            async { Ok(Next::Done) }
        });
        let owner = ObjectKey::new("ns", "a");
        expectations.expect_creations(&owner, 1);
        block_on(async {
            let stop = StopToken::new();
            let running = spawn(c.run(stop.clone()));
            while synced.is_empty() {
                clock.advance(Duration::from_secs(1));
                yield_now().await;
            }
            assert!(clock.monotonic() > EXPECTATIONS_TIMEOUT);
            assert_eq!(synced.recv().await.unwrap(), (owner, true));
            stop.stop();
            running.await;
        });
    }
}
