//! The life of each pod on this node: syncing, terminating, terminated, finished. Decides which
//! work is due; the caller does it and reports how it ended. Upstream:
//! `pkg/kubelet/pod_workers.go`.

mod schedule;
mod static_pods;
#[cfg(test)]
mod tests;
mod worker;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use self::schedule::Schedule;
use self::static_pods::StaticPods;
use self::worker::{PodWorker, Worker};
use crate::pod::{Pod, PodExt, Uid};

/// Why a worker is notified. Upstream: `SyncPodType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A source has added the pod.
    Create,
    Update,
    /// The runtime's state of the pod has changed, or a probe's result.
    Sync,
    /// The pod has to end: it was removed from its source.
    Kill,
}

/// What a worker has to do next.
#[derive(Clone, Debug, PartialEq)]
pub enum Work {
    /// Make the pod run as its definition says.
    Sync(Arc<Pod>),
    /// End all containers, with this many seconds of grace.
    Terminate(Arc<Pod>, i64),
    /// Release what the pod held.
    CleanUp(Arc<Pod>),
    /// End what runs of a pod that no source knows.
    TerminateOrphan,
}

/// How a worker's work ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Done; a running pod is synced again after this time.
    Done(Duration),
    /// The pod has ended by itself: terminate it.
    Terminal,
    /// Retry after this time.
    Failed(Duration),
    /// Other work is due in its place.
    Cancelled,
}

/// What [`Workers::retain`] has found.
#[derive(Debug, PartialEq, Eq)]
pub struct Retained {
    /// The desired pods without a worker: the caller creates them.
    pub missing: Vec<Uid>,
    /// Whether a pod that had ended was forgotten.
    pub has_forgotten: bool,
}

/// All workers, by the pods' uids.
#[derive(Debug, Default)]
pub struct Workers {
    workers: BTreeMap<Uid, Worker>,
    static_pods: StaticPods,
}

impl Workers {
    /// Passes a change of a pod to its worker, which a new pod gets here. Returns whether the work
    /// that the worker does now has to be cancelled. An orphan is ended first; the pod is created
    /// when [`retain`](Self::retain) names it. Upstream: `UpdatePod`.
    pub fn update(&mut self, pod: &Arc<Pod>, reason: Reason) -> bool {
        let uid = pod.uid();
        if !self.knows(&uid) {
            if matches!(reason, Reason::Kill | Reason::Sync) {
                // It never ran here.
                return false;
            }
            let worker = PodWorker::new(pod);
            if worker.is_waiting_for_name() {
                self.static_pods.wait(worker.full_name(), uid.clone());
            }
            self.workers.insert(uid.clone(), Worker::Pod(worker));
        }
        self.change(&uid, |worker| worker.update(pod, reason)).unwrap_or(false)
    }

    /// Gives a pod that was not admitted a worker that ends what runs of it, unless it has one
    /// already; the new one stays finished while the pod's source has it.
    pub fn reject(&mut self, pod: &Arc<Pod>) {
        let worker = || Worker::Pod(PodWorker::rejected(pod));
        self.workers.entry(pod.uid()).or_insert_with(worker);
    }

    /// Ends a pod for the node's sake, with this grace at most; it stays finished while its source
    /// has it. Returns whether the work that it does now has to be cancelled. Upstream: `Evict`.
    pub fn evict(&mut self, uid: &str, grace: i64) -> bool {
        self.change(uid, |worker| worker.evict(grace)).unwrap_or(false)
    }

    /// Applies `change` to the worker of a pod, and returns its result. `None`: the pod has no
    /// worker, or is an orphan.
    fn change<T>(&mut self, uid: &str, change: impl FnOnce(&mut PodWorker) -> T) -> Option<T> {
        let worker = self.workers.get_mut(uid)?.pod_mut()?;
        let result = change(worker);
        if worker.is_finished() {
            self.static_pods.remove(worker.full_name(), uid);
        }
        Some(result)
    }

    /// Gives a pod that is known work again: something about it has changed.
    pub fn requeue(&mut self, uid: &str) {
        if let Some(worker) = self.workers.get_mut(uid) {
            worker.request();
        }
    }

    /// Ends a pod that runs without a definition. Does nothing when the pod has a worker.
    pub fn end_orphan(&mut self, uid: Uid) {
        self.workers.entry(uid).or_insert(Worker::Orphan(Schedule::Now));
    }

    /// Begins the next work that is due, and returns it with its pod; `None`: no work is due. The
    /// worker gets no other work until [`done`](Self::done). A static pod gets none while another
    /// one with its name runs or has waited longer; else it is recorded as the one that runs.
    pub fn next(&mut self, now: Duration) -> Option<(Uid, Work)> {
        let Workers { workers, static_pods } = self;
        workers.iter_mut().find_map(|(uid, worker)| {
            let waits = worker.pod().is_some_and(|worker| {
                worker.is_waiting_for_name() && !static_pods.start(worker.full_name(), uid)
            });
            if waits { None } else { Some((uid.clone(), worker.begin(now)?)) }
        })
    }

    /// Records how a pod's work ended, at the time `now`.
    pub fn done(&mut self, uid: &str, outcome: Outcome, now: Duration) {
        match (self.workers.get_mut(uid), outcome) {
            (Some(Worker::Orphan(_)), Outcome::Done(_)) => drop(self.workers.remove(uid)),
            (Some(Worker::Orphan(schedule)), _) => *schedule = schedule.again(outcome, now),
            _ => drop(self.change(uid, |worker| worker.done(outcome, now))),
        }
    }

    /// Returns the earliest time for which a work waits, by the monotonic clock.
    pub fn next_due(&self) -> Option<Duration> {
        self.workers.values().filter_map(|worker| worker.schedule()?.time()).min()
    }

    /// Forgets finished pods that no source has, and those that were created again. Pods that no
    /// source has any more have to end: `on_end` cancels their syncs (upstream waits for the end of
    /// a sync that runs). Upstream: `SyncKnownPods`, `HandlePodCleanups`.
    pub fn retain(&mut self, desired: &BTreeSet<Uid>, on_end: impl Fn(&Uid)) -> Retained {
        let Workers { workers, static_pods } = self;
        let before = workers.len();
        workers.retain(|uid, worker| {
            let Worker::Pod(worker) = worker else { return true };
            let is_desired = desired.contains(uid);
            if !is_desired && !worker.is_terminating() {
                worker.terminate();
                on_end(uid);
            }
            let goes = worker.is_finished() && (worker.is_recreated() || !is_desired);
            if goes {
                static_pods.remove(worker.full_name(), uid);
            }
            !goes
        });
        let has_forgotten = workers.len() < before;
        let missing = desired.iter().filter(|uid| !self.knows(uid)).cloned().collect();
        Retained { missing, has_forgotten }
    }

    pub fn is_empty(&self) -> bool {
        self.workers.is_empty()
    }

    /// Returns whether the pod has a worker, finished or not.
    pub fn knows(&self, uid: &str) -> bool {
        self.workers.contains_key(uid)
    }

    fn pod(&self, uid: &str) -> Option<&PodWorker> {
        self.workers.get(uid)?.pod()
    }

    /// Returns whether the pod runs: it neither waits for its name nor has to end.
    pub fn is_syncing(&self, uid: &str) -> bool {
        self.pod(uid).is_some_and(PodWorker::is_syncing)
    }

    /// Returns whether a static pod of this full name has to end, and still may have running
    /// containers. Upstream: `IsPodForMirrorPodTerminatingByFullName`.
    pub fn is_name_ending(&self, full_name: &str) -> bool {
        let workers = self.workers.values().filter_map(Worker::pod);
        let mut named = workers.filter(|worker| worker.pod().is_static());
        named.any(|worker| {
            worker.full_name() == full_name && worker.is_terminating() && !worker.is_terminated()
        })
    }

    /// Returns whether the node ends the pod, or has ended it, for its own sake.
    pub fn is_evicted(&self, uid: &str) -> bool {
        self.pod(uid).is_some_and(PodWorker::is_evicted)
    }

    /// Returns whether the pod has to end, or has ended.
    pub fn is_terminating(&self, uid: &str) -> bool {
        self.pod(uid).is_some_and(PodWorker::is_terminating)
    }

    /// Returns whether the pod's containers have ended for good.
    pub fn is_terminated(&self, uid: &str) -> bool {
        self.pod(uid).is_some_and(PodWorker::is_terminated)
    }

    /// Returns whether the pod holds nothing any more.
    pub fn is_finished(&self, uid: &str) -> bool {
        self.pod(uid).is_some_and(PodWorker::is_finished)
    }

    /// Counts the pods by phase, whether a source still has them, and whether they are static: the
    /// labels of upstream's metric. `is_desired`: whether a source has the pod of this uid.
    /// Upstream: the summary of `HandlePodCleanups`.
    pub fn counts(&self, is_desired: &dyn Fn(&str) -> bool) -> BTreeMap<[&'static str; 3], usize> {
        let configs = [("desired", ""), ("desired", "true"), ("orphan", ""), ("orphan", "true")];
        let all = configs.into_iter().chain([("runtime_only", "unknown")]);
        let phases = ["sync", "terminating", "terminated"];
        let mut counts: BTreeMap<[&'static str; 3], usize> =
            all.flat_map(|(config, kind)| phases.map(|phase| ([phase, config, kind], 0))).collect();
        for (uid, worker) in &self.workers {
            let labels = match worker {
                Worker::Orphan(_) => ["terminating", "runtime_only", "unknown"],
                Worker::Pod(worker) => [
                    worker.phase_label(),
                    if is_desired(uid) { "desired" } else { "orphan" },
                    if worker.pod().is_static() { "true" } else { "" },
                ],
            };
            *counts.entry(labels).or_default() += 1;
        }
        counts
    }
}
