//! The calls that an election makes, and how it ends.

use std::future::Future;
use std::pin::Pin;

use crate::task::StopToken;

/// The leader's work.
pub(super) type Leading = Pin<Box<dyn Future<Output = Work> + Send>>;

/// What the leader's work leaves behind when its future resolves. Upstream has no counterpart:
/// there the lock is released after a stop without a wait for the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Nothing: another leader may begin, and the lock is released if so configured.
    Ended,
    /// Parts of it that may still write. The lock is kept until it expires, as after a crash.
    Unfinished,
}

/// The functions that an election calls. Upstream: `LeaderCallbacks`.
pub struct LeaderCallbacks {
    pub(super) on_started_leading: Box<dyn FnOnce(StopToken) -> Leading + Send>,
    pub(super) on_stopped_leading: Box<dyn FnOnce() + Send>,
    pub(super) on_new_leader: Box<dyn Fn(&str) + Send + Sync>,
}

impl LeaderCallbacks {
    /// Makes the callbacks of an election. `started` is the leader's work. It is called when the
    /// lock is ours and runs as a task of its own; it has to end soon after its token stops.
    /// `stopped` is called once when the election has ended, even if we never led; it runs on the
    /// elector's task and must not block. Upstream: `OnStartedLeading`, `OnStoppedLeading`.
    pub fn new<F>(
        started: impl FnOnce(StopToken) -> F + Send + 'static,
        stopped: impl FnOnce() + Send + 'static,
    ) -> LeaderCallbacks
    where
        F: Future<Output = Work> + Send + 'static,
    {
        LeaderCallbacks {
            on_started_leading: Box::new(|stop| Box::pin(started(stop))),
            on_stopped_leading: Box::new(stopped),
            on_new_leader: Box::new(|_| ()),
        }
    }

    /// Calls `seen` with the identity of each new leader, ourselves included, and with an empty one
    /// when the lock was released. Leaders between two attempts are not seen. It runs on the
    /// elector's task and must not block. Upstream: `OnNewLeader`.
    pub fn on_new_leader(mut self, seen: impl Fn(&str) + Send + Sync + 'static) -> LeaderCallbacks {
        self.on_new_leader = Box::new(seen);
        self
    }
}

/// How an election ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Stopped before the lock was ours.
    NeverLed,
    /// Stopped while we led, and the leader's work has resolved. The lock is released if so
    /// configured and the work left nothing behind.
    Stopped,
    /// We could not renew in time. The token of the leader's work has stopped, but the work may
    /// still run: the process has to end now.
    Lost,
}
