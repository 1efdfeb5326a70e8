//! Starts the work of the pods' workers when it is due, and cancels work that other work replaces.
//! Upstream: `podWorkers.podWorkerLoop`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use event_listener::{Event, EventListener};
use futures_lite::FutureExt;
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::task::{Latch, notify_all};
use parking_lot::Mutex;

use super::pod_workers::{Outcome, Reason, Retained, Work, Workers};
use crate::pod::{Pod, PodExt, Uid};

/// The workers of all pods, with what cancels their work.
#[derive(Default)]
pub(super) struct Dispatcher {
    state: Mutex<State>,
    changed: Event,
}

#[derive(Default)]
struct State {
    workers: Workers,
    cancels: HashMap<Uid, Latch>,
}

impl State {
    /// Cancels the work that a pod's worker does now, if it does any.
    fn cancel(&self, uid: &str) {
        cancel_work(&self.cancels, uid);
    }
}

/// Opens the latch that cancels the present work of a pod; nothing without work.
fn cancel_work(cancels: &HashMap<Uid, Latch>, uid: &str) {
    if let Some(cancel) = cancels.get(uid) {
        cancel.open();
    }
}

impl Dispatcher {
    /// Calls `start` with all work that is due, and with a latch that opens when the work has to
    /// stop. Each work has to be reported by [`done`](Self::done).
    pub(super) async fn run(&self, clock: &SharedClock, start: impl Fn(Uid, Work, Latch)) {
        loop {
            let changed = self.changed.listen();
            let due = {
                let now = clock.monotonic();
                let mut state = self.state.lock();
                while let Some((uid, work)) = state.workers.next(now) {
                    let cancel = Latch::new();
                    state.cancels.insert(uid.clone(), cancel.clone());
                    start(uid, work, cancel);
                }
                state.workers.next_due().map(|due| due.saturating_sub(now))
            };
            changed.or(clock.sleep(due.unwrap_or(Duration::MAX))).await;
        }
    }

    /// Returns a listener that wakes when a worker may have got or ended work.
    pub(super) fn changed(&self) -> EventListener {
        self.changed.listen()
    }

    /// Passes a change of a pod to its worker, and cancels the work that other work replaces.
    pub(super) fn update(&self, pod: &Arc<Pod>, reason: Reason) {
        let mut state = self.state.lock();
        if state.workers.update(pod, reason) {
            state.cancel(&pod.uid());
        }
        notify_all(&self.changed);
    }

    /// Records that a pod was not admitted.
    pub(super) fn reject(&self, pod: &Arc<Pod>) {
        self.state.lock().workers.reject(pod);
        notify_all(&self.changed);
    }

    /// Ends a pod for the node's sake, with this many seconds of grace at most.
    pub(super) fn evict(&self, uid: &str, grace: i64) {
        let mut state = self.state.lock();
        if state.workers.evict(uid, grace) {
            state.cancel(uid);
        }
        notify_all(&self.changed);
    }

    /// Gives pods that are known work again: something about them has changed.
    pub(super) fn requeue<'a>(&self, uids: impl IntoIterator<Item = &'a Uid>) {
        let mut state = self.state.lock();
        for uid in uids {
            state.workers.requeue(uid);
            notify_all(&self.changed);
        }
    }

    /// Ends what runs of a pod without a definition.
    pub(super) fn end_orphan(&self, uid: Uid) {
        self.state.lock().workers.end_orphan(uid);
        notify_all(&self.changed);
    }

    /// Records how a pod's work ended, at the time `now`.
    pub(super) fn done(&self, uid: &str, outcome: Outcome, now: Duration) {
        let mut state = self.state.lock();
        state.cancels.remove(uid);
        state.workers.done(uid, outcome, now);
        notify_all(&self.changed);
    }

    /// Forgets finished pods that no source has, ends those that run, and cancels their work. See
    /// [`Workers::retain`].
    pub(super) fn retain(&self, desired: &BTreeSet<Uid>) -> Retained {
        let State { workers, cancels } = &mut *self.state.lock();
        workers.retain(desired, |uid| {
            cancel_work(cancels, uid);
            notify_all(&self.changed);
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.state.lock().workers.is_empty()
    }

    /// Returns whether the pod has a worker, finished or not.
    pub(super) fn knows(&self, uid: &str) -> bool {
        self.state.lock().workers.knows(uid)
    }

    /// Returns whether the pod runs: it neither waits for its name nor has to end.
    pub(super) fn is_syncing(&self, uid: &str) -> bool {
        self.state.lock().workers.is_syncing(uid)
    }

    /// Returns whether a static pod of this full name has to end, and still may have running
    /// containers.
    pub(super) fn is_name_ending(&self, full_name: &str) -> bool {
        self.state.lock().workers.is_name_ending(full_name)
    }

    /// Waits until the containers of a pod have ended for good, or the pod has no worker.
    pub(super) async fn terminated(&self, uid: &str) {
        self.until(|workers| !workers.knows(uid) || workers.is_terminated(uid)).await;
    }

    /// Waits until a pod holds nothing any more, or has no worker.
    pub(super) async fn finished(&self, uid: &str) {
        self.until(|workers| !workers.knows(uid) || workers.is_finished(uid)).await;
    }

    /// Waits until something is true of the workers.
    async fn until(&self, is_so: impl Fn(&Workers) -> bool) {
        loop {
            let changed = self.changed();
            if is_so(&self.state.lock().workers) {
                return;
            }
            changed.await;
        }
    }

    /// Returns whether the node ends the pod, or has ended it, for its own sake.
    pub(super) fn is_evicted(&self, uid: &str) -> bool {
        self.state.lock().workers.is_evicted(uid)
    }

    /// Returns whether the pod has to end, or has ended.
    pub(super) fn is_terminating(&self, uid: &str) -> bool {
        self.state.lock().workers.is_terminating(uid)
    }

    /// Returns whether the pod's containers have ended for good.
    pub(super) fn is_terminated(&self, uid: &str) -> bool {
        self.state.lock().workers.is_terminated(uid)
    }

    /// Returns whether the pod holds nothing any more.
    pub(super) fn is_finished(&self, uid: &str) -> bool {
        self.state.lock().workers.is_finished(uid)
    }

    /// Counts the pods by the labels of upstream's metric. See [`Workers::counts`].
    pub(super) fn counts(&self, desired: &BTreeSet<Uid>) -> BTreeMap<[&'static str; 3], usize> {
        self.state.lock().workers.counts(&|uid| desired.contains(uid))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::pin::pin;

    use futures_lite::future::{block_on, poll_once};
    use kube_controller_manager::clock::FakeClock;
    use kube_controller_manager::objects::Timestamp;
    use serde_json::json;

    use super::*;

    const RETRY: Duration = Duration::from_secs(10);

    #[test]
    fn work_begins_when_it_is_due_and_is_cancelled_when_its_pod_has_to_end() {
        let pod = json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"}});
        let pod: Arc<Pod> = Arc::new(serde_json::from_value(pod).expect("a pod"));
        let time = FakeClock::new(Timestamp::from_secs(0));
        let clock: SharedClock = time.clone();
        let dispatcher = Dispatcher::default();
        let started = RefCell::new(Vec::new());
        let mut run = pin!(dispatcher.run(&clock, |_, work, cancel| {
            started.borrow_mut().push((work, cancel));
        }));
        let mut next = || {
            assert!(block_on(poll_once(&mut run)).is_none());
            started.borrow_mut().pop()
        };
        let is_cancelled = |cancel: &Latch| block_on(poll_once(cancel.opened())).is_some();
        assert!(next().is_none());
        dispatcher.update(&pod, Reason::Create);
        let (work, cancel) = next().expect("work");
        assert_eq!(work, Work::Sync(pod.clone()));
        assert!(!is_cancelled(&cancel));
        dispatcher.update(&pod, Reason::Kill);
        assert!(is_cancelled(&cancel));
        assert!(next().is_none(), "the sync still runs");
        dispatcher.done("u", Outcome::Cancelled, clock.monotonic());
        let (work, cancel) = next().expect("work");
        assert_eq!(work, Work::Terminate(pod.clone(), 30));
        dispatcher.evict("u", 1);
        assert!(is_cancelled(&cancel));
        dispatcher.done("u", Outcome::Cancelled, clock.monotonic());
        assert_eq!(next().map(|(work, _)| work), Some(Work::Terminate(pod.clone(), 1)));
        dispatcher.done("u", Outcome::Failed(RETRY), clock.monotonic());
        assert!(next().is_none());
        time.advance(RETRY);
        assert_eq!(next().map(|(work, _)| work), Some(Work::Terminate(pod, 1)));
    }

    #[test]
    fn end_of_a_pod_is_waited_for_step_by_step() {
        let pod = json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"}});
        let pod: Arc<Pod> = Arc::new(serde_json::from_value(pod).expect("a pod"));
        let clock: SharedClock = FakeClock::new(Timestamp::from_secs(0));
        let dispatcher = Dispatcher::default();
        let mut run = pin!(dispatcher.run(&clock, |_, _, _| {}));
        block_on(dispatcher.finished("u"));
        dispatcher.update(&pod, Reason::Create);
        dispatcher.evict("u", 1);
        assert!(dispatcher.is_evicted("u"));
        let mut terminated = pin!(dispatcher.terminated("u"));
        let mut finished = pin!(dispatcher.finished("u"));
        let mut ends = || {
            assert!(block_on(poll_once(&mut run)).is_none());
            dispatcher.done("u", Outcome::Done(RETRY), clock.monotonic());
        };
        assert!(block_on(poll_once(&mut terminated)).is_none());
        ends();
        assert!(block_on(poll_once(&mut terminated)).is_some(), "its containers have ended");
        assert!(block_on(poll_once(&mut finished)).is_none());
        ends();
        assert!(block_on(poll_once(&mut finished)).is_some(), "its volumes are gone");
    }

    #[test]
    fn sync_of_a_pod_without_a_source_is_cancelled() {
        let pod = json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"}});
        let pod: Arc<Pod> = Arc::new(serde_json::from_value(pod).expect("a pod"));
        let clock: SharedClock = FakeClock::new(Timestamp::from_secs(0));
        let dispatcher = Dispatcher::default();
        let started = RefCell::new(Vec::new());
        let mut run =
            pin!(dispatcher.run(&clock, |_, _, cancel| started.borrow_mut().push(cancel)));
        dispatcher.update(&pod, Reason::Create);
        assert!(block_on(poll_once(&mut run)).is_none());
        let cancel = started.borrow_mut().pop().expect("work");
        let is_cancelled = || block_on(poll_once(cancel.opened())).is_some();
        assert!(dispatcher.retain(&BTreeSet::from([pod.uid()])).missing.is_empty());
        assert!(!is_cancelled());
        assert!(dispatcher.retain(&BTreeSet::new()).missing.is_empty());
        assert!(is_cancelled());
    }

    #[test]
    fn pod_without_a_source_is_ended_at_once() {
        let pod = json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"}});
        let pod: Arc<Pod> = Arc::new(serde_json::from_value(pod).expect("a pod"));
        let clock: SharedClock = FakeClock::new(Timestamp::from_secs(0));
        let dispatcher = Dispatcher::default();
        let started = RefCell::new(Vec::new());
        let mut run = pin!(dispatcher.run(&clock, |_, work, _| started.borrow_mut().push(work)));
        dispatcher.update(&pod, Reason::Create);
        assert!(block_on(poll_once(&mut run)).is_none());
        dispatcher.done("u", Outcome::Done(RETRY), clock.monotonic());
        assert!(block_on(poll_once(&mut run)).is_none());
        assert_eq!(started.take(), [Work::Sync(pod.clone())]);
        assert!(dispatcher.retain(&BTreeSet::new()).missing.is_empty());
        assert!(block_on(poll_once(&mut run)).is_none());
        assert_eq!(started.take(), [Work::Terminate(pod, 30)]);
    }
}
