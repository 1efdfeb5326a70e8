//! The life of one pod on this node, as a machine of states without I/O.
//! Upstream: `podSyncStatus`.

use std::sync::Arc;
use std::time::Duration;

use super::schedule::Schedule;
use super::{Outcome, Reason, Work};
use crate::pod::{DEFAULT_GRACE_SECONDS, Pod, PodExt};

/// The worker of a pod that a source has, or had.
#[derive(Debug)]
pub(super) struct PodWorker {
    pod: Arc<Pod>,
    /// That of the pod's first definition.
    full_name: String,
    phase: Phase,
    /// The node ends it, or has ended it, for its own sake.
    is_evicted: bool,
}

/// How far a pod's life is. `is_recreated`: a source has added the pod again since it has to end.
#[derive(Clone, Copy, Debug)]
enum Phase {
    /// It has not begun: another static pod may have its name.
    WaitingToStart,
    Syncing(Schedule),
    /// It has to end, with this many seconds of grace, once the sync that still runs has stopped.
    StoppingSync {
        grace: i64,
        is_recreated: bool,
    },
    /// Its containers are ended, with this many seconds of grace.
    Terminating {
        grace: i64,
        is_recreated: bool,
        schedule: Schedule,
    },
    /// Its containers have ended for good. What else it holds is released.
    Terminated {
        is_recreated: bool,
        schedule: Schedule,
    },
    /// It holds nothing any more.
    Finished {
        is_recreated: bool,
    },
}

impl Phase {
    /// Returns the schedule of the phase's work. `None`: it waits for other pods, or for the end of
    /// its sync, or has no work any more.
    fn schedule(mut self) -> Option<Schedule> {
        self.schedule_mut().copied()
    }

    /// Returns the schedule of the phase's work, to change it. `None` as for `schedule`.
    fn schedule_mut(&mut self) -> Option<&mut Schedule> {
        match self {
            Phase::Syncing(schedule)
            | Phase::Terminating { schedule, .. }
            | Phase::Terminated { schedule, .. } => Some(schedule),
            Phase::WaitingToStart | Phase::StoppingSync { .. } | Phase::Finished { .. } => None,
        }
    }

    /// Returns the mark that a source has added the pod again. `None`: the pod does not have to
    /// end.
    fn is_recreated_mut(&mut self) -> Option<&mut bool> {
        match self {
            Phase::WaitingToStart | Phase::Syncing(_) => None,
            Phase::StoppingSync { is_recreated, .. }
            | Phase::Terminating { is_recreated, .. }
            | Phase::Terminated { is_recreated, .. }
            | Phase::Finished { is_recreated } => Some(is_recreated),
        }
    }

    /// Returns whether a source has added the pod again since it has to end.
    fn is_recreated(mut self) -> bool {
        self.is_recreated_mut().copied().unwrap_or(false)
    }

    /// Returns the grace with which the pod's containers have to end; `None`: they do not have to
    /// end, or have ended.
    fn grace(self) -> Option<i64> {
        match self {
            Phase::StoppingSync { grace, .. } | Phase::Terminating { grace, .. } => Some(grace),
            _ => None,
        }
    }
}

impl PodWorker {
    /// Creates the worker of a new pod, which waits until the pod may start. A pod that has ended
    /// by its status does not wait: what still runs of it has to end.
    pub(super) fn new(pod: &Arc<Pod>) -> PodWorker {
        let phase = match pod.has_ended() {
            true => Phase::Syncing(Schedule::Now),
            false => Phase::WaitingToStart,
        };
        PodWorker { pod: pod.clone(), full_name: pod.full_name(), phase, is_evicted: false }
    }

    /// Returns the worker of a pod that does not start: an earlier kubelet may have started it.
    pub(super) fn rejected(pod: &Arc<Pod>) -> PodWorker {
        let (grace, is_recreated) = (effective_grace(None, pod), false);
        let phase = Phase::Terminating { grace, is_recreated, schedule: Schedule::Now };
        PodWorker { pod: pod.clone(), full_name: pod.full_name(), phase, is_evicted: false }
    }

    pub(super) fn pod(&self) -> &Arc<Pod> {
        &self.pod
    }

    pub(super) fn full_name(&self) -> &str {
        &self.full_name
    }

    /// Takes the pod as its source has changed it, and requests a sync, or begins to end the pod if
    /// it has to end. A finished pod ignores changes, but that it was added again is kept in mind.
    /// Returns whether the work that is done now has to be cancelled.
    pub(super) fn update(&mut self, pod: &Arc<Pod>, reason: Reason) -> bool {
        // A pod that has to end is only created again after its end.
        if reason == Reason::Create
            && let Some(is_recreated) = self.phase.is_recreated_mut()
        {
            *is_recreated = true;
            return false;
        }
        if self.is_finished() {
            return false;
        }
        self.pod = pod.clone();
        let is_deleted = pod.metadata.deletion_timestamp.is_some();
        let has_to_end = reason == Reason::Kill || is_deleted || pod.has_ended();
        if has_to_end || self.is_terminating() {
            return self.terminate();
        }
        self.request();
        false
    }

    /// Requests another sync, as something about the pod has changed.
    fn request(&mut self) {
        if let Some(schedule) = self.phase.schedule_mut() {
            schedule.request();
        }
    }

    /// Begins to end the pod, with the grace of its definition. Returns whether the work that is
    /// done now has to be cancelled.
    pub(super) fn terminate(&mut self) -> bool {
        self.terminate_within(effective_grace(self.phase.grace(), &self.pod))
    }

    /// Begins to end the pod for the node's sake, with this grace at most. Returns whether the work
    /// that is done now has to be cancelled.
    pub(super) fn evict(&mut self, grace: i64) -> bool {
        self.is_evicted = true;
        self.terminate_within(grace)
    }

    /// Begins to end the pod, with this grace at most, which can only decrease and is at least a
    /// second. Returns whether the work that is done now has to be cancelled.
    fn terminate_within(&mut self, grace: i64) -> bool {
        let before = self.phase.grace();
        let grace = before.map_or(grace, |before| before.min(grace)).max(1);
        let is_changed = before != Some(grace);
        let is_recreated = false;
        match &mut self.phase {
            Phase::WaitingToStart if self.pod.is_static() => {
                self.phase = Phase::Finished { is_recreated };
                false
            }
            // One of the API server may have containers of an earlier kubelet.
            Phase::WaitingToStart => {
                self.phase = Phase::Terminating { grace, is_recreated, schedule: Schedule::Now };
                false
            }
            Phase::Syncing(schedule) if schedule.is_working() => {
                self.phase = Phase::StoppingSync { grace, is_recreated };
                true
            }
            Phase::Syncing(_) => {
                self.phase = Phase::Terminating { grace, is_recreated, schedule: Schedule::Now };
                false
            }
            Phase::StoppingSync { grace: old, .. } => {
                *old = grace;
                is_changed
            }
            Phase::Terminating { grace: old, schedule, .. } => {
                *old = grace;
                schedule.request();
                schedule.is_working() && is_changed
            }
            // A clean-up that has failed is retried at once.
            Phase::Terminated { schedule, .. } => {
                schedule.request();
                false
            }
            Phase::Finished { .. } => false,
        }
    }

    /// Begins the work that is due, and returns it; `None`: no work is due.
    fn begin(&mut self, now: Duration) -> Option<Work> {
        if let Phase::WaitingToStart = self.phase {
            self.phase = Phase::Syncing(Schedule::Now);
        }
        let begins = self.phase.schedule_mut().is_some_and(|schedule| schedule.begin(now));
        let pod = begins.then(|| self.pod.clone())?;
        match self.phase {
            Phase::Syncing(_) => Some(Work::Sync(pod)),
            Phase::Terminating { grace, .. } => Some(Work::Terminate(pod, grace)),
            Phase::Terminated { .. } => Some(Work::CleanUp(pod)),
            Phase::WaitingToStart | Phase::StoppingSync { .. } | Phase::Finished { .. } => None,
        }
    }

    /// Moves the pod to the phase that follows a finished piece of work, or schedules the same work
    /// again.
    pub(super) fn done(&mut self, outcome: Outcome, now: Duration) {
        self.phase = match (self.phase, outcome) {
            (Phase::StoppingSync { grace, is_recreated }, _) => {
                Phase::Terminating { grace, is_recreated, schedule: Schedule::Now }
            }
            (Phase::Syncing(_), Outcome::Terminal) => {
                let grace = effective_grace(None, &self.pod);
                Phase::Terminating { grace, is_recreated: false, schedule: Schedule::Now }
            }
            (Phase::Terminating { is_recreated, .. }, Outcome::Done(_)) => {
                Phase::Terminated { is_recreated, schedule: Schedule::Now }
            }
            (Phase::Terminated { is_recreated, .. }, Outcome::Done(_)) => {
                Phase::Finished { is_recreated }
            }
            (mut phase, outcome) => {
                if let Some(schedule) = phase.schedule_mut() {
                    *schedule = schedule.again(outcome, now);
                }
                phase
            }
        };
    }

    /// Returns whether the pod may only start when no other one with its name runs.
    pub(super) fn is_waiting_for_name(&self) -> bool {
        matches!(self.phase, Phase::WaitingToStart) && self.pod.is_static()
    }

    /// Returns whether the pod runs.
    pub(super) fn is_syncing(&self) -> bool {
        matches!(self.phase, Phase::Syncing(_))
    }

    /// Returns whether the node ends the pod, or has ended it, for its own sake.
    pub(super) fn is_evicted(&self) -> bool {
        self.is_evicted
    }

    /// Returns whether the pod has to end, or has ended.
    pub(super) fn is_terminating(&self) -> bool {
        !matches!(self.phase, Phase::WaitingToStart | Phase::Syncing(_))
    }

    /// Returns whether the pod's containers have ended for good.
    pub(super) fn is_terminated(&self) -> bool {
        matches!(self.phase, Phase::Terminated { .. } | Phase::Finished { .. })
    }

    /// Returns whether the pod holds nothing any more.
    pub(super) fn is_finished(&self) -> bool {
        matches!(self.phase, Phase::Finished { .. })
    }

    /// Returns whether a source has added the pod again since it has to end.
    pub(super) fn is_recreated(&self) -> bool {
        self.phase.is_recreated()
    }

    /// Returns the phase in upstream's metric.
    pub(super) fn phase_label(&self) -> &'static str {
        match self.phase {
            Phase::WaitingToStart | Phase::Syncing(_) => "sync",
            Phase::StoppingSync { .. } | Phase::Terminating { .. } => "terminating",
            Phase::Terminated { .. } | Phase::Finished { .. } => "terminated",
        }
    }
}

/// A pod's worker.
#[derive(Debug)]
pub(super) enum Worker {
    /// Only the runtime knows the pod: what runs of it is ended.
    Orphan(Schedule),
    Pod(PodWorker),
}

impl Worker {
    /// Returns the worker of a pod. `None`: an orphan.
    pub(super) fn pod(&self) -> Option<&PodWorker> {
        match self {
            Worker::Orphan(_) => None,
            Worker::Pod(worker) => Some(worker),
        }
    }

    pub(super) fn pod_mut(&mut self) -> Option<&mut PodWorker> {
        match self {
            Worker::Orphan(_) => None,
            Worker::Pod(worker) => Some(worker),
        }
    }

    /// Returns the schedule of the work. `None`: it has no work by itself.
    pub(super) fn schedule(&self) -> Option<Schedule> {
        match self {
            Worker::Orphan(schedule) => Some(*schedule),
            Worker::Pod(worker) => worker.phase.schedule(),
        }
    }

    /// Requests more work, as something about the pod has changed.
    pub(super) fn request(&mut self) {
        match self {
            Worker::Orphan(schedule) => schedule.request(),
            Worker::Pod(worker) => worker.request(),
        }
    }

    /// Begins the work that is due, and returns it; `None`: no work is due.
    pub(super) fn begin(&mut self, now: Duration) -> Option<Work> {
        match self {
            Worker::Orphan(schedule) => schedule.begin(now).then_some(Work::TerminateOrphan),
            Worker::Pod(worker) => worker.begin(now),
        }
    }
}

/// Returns the grace period of a pod in seconds, which can only decrease and is at least one.
/// `before`: the one with which the pod has to end already. Upstream:
/// `calculateEffectiveGracePeriod`.
fn effective_grace(before: Option<i64>, pod: &Pod) -> i64 {
    let own = pod.metadata.deletion_grace_period_seconds;
    let grace = match (before, own) {
        (Some(before), Some(own)) => before.min(own),
        (Some(before), None) => before,
        (None, Some(own)) => own,
        (None, None) => {
            pod.spec().termination_grace_period_seconds.unwrap_or(DEFAULT_GRACE_SECONDS)
        }
    };
    grace.max(1)
}
