//! The lock that the contenders read and write. Upstream: `tools/leaderelection/resourcelock`.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use crate::client;
use crate::objects::Timestamp;

/// A request to the lock. It may be dropped at any time; a write may then have happened or not.
pub type LockFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, LockError>> + Send + 'a>>;

/// A record that all contenders read and write. Of several writers at the same time one succeeds: a
/// write fails if the record has changed since this contender read it. Upstream:
/// `resourcelock.Interface`.
///
/// Methods send one request and do not retry. The elector limits their time, and drops those that
/// take longer.
pub trait Lock: Send + Sync + 'static {
    /// The name of this contender: not empty, and different from those of all others.
    fn identity(&self) -> &str;
    /// The lock's name in logs, such as `kube-system/kube-controller-manager`.
    fn describe(&self) -> String;
    /// Reads the record; `None`: it does not exist yet.
    fn get(&self) -> LockFuture<'_, Option<LeaderElectionRecord>>;
    /// Creates the record. Fails if it exists.
    fn create<'a>(&'a self, record: &'a LeaderElectionRecord) -> LockFuture<'a, ()>;
    /// Replaces the record. Fails if another contender has written it since our last `get`,
    /// `create` or `update`, and with [`LockError::NotRead`] before the first of them.
    fn update<'a>(&'a self, record: &'a LeaderElectionRecord) -> LockFuture<'a, ()>;
    /// Records an event on the lock's object that this contender did `what` ("became leader"). Does
    /// not wait and does not fail.
    fn record_event(&self, what: &str);
}

/// The leader and its times. Times are those of the holder's clock: they are shown to people, and
/// no decision depends on them. Upstream: `LeaderElectionRecord`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaderElectionRecord {
    /// The leader's identity; empty: the lock is released.
    pub holder_identity: String,
    /// How long other contenders wait after a change of the record before they take the lock.
    pub lease_duration_seconds: i32,
    /// When the holder took the lock.
    pub acquire_time: Option<Timestamp>,
    /// When the holder last renewed it.
    pub renew_time: Option<Timestamp>,
    /// How often the lock went to another holder.
    pub leader_transitions: i32,
    /// Coordinated election: the candidate that takes the lock when this term ends; empty: none.
    pub preferred_holder: String,
    /// Coordinated election: how the API server picks the leader; empty: the election is not
    /// coordinated.
    pub strategy: String,
}

/// Why a request to a lock failed. The elector logs it and tries again.
#[derive(Debug)]
pub enum LockError {
    /// `update` before the first `get` or `create`.
    NotRead,
    /// No answer came in the elector's time; a write may have happened.
    TimedOut,
    /// The lock's object cannot be read as a lock; the text says why.
    Malformed(String),
    /// The client's error, such as a conflict with another contender's write.
    Api(client::Error),
    /// The error of a lock that is not an object of the API.
    Other(Box<dyn std::error::Error + Send + Sync>),
}

impl fmt::Display for LockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LockError::NotRead => f.write_str("the lock has not been read yet"),
            LockError::TimedOut => f.write_str("no answer in time"),
            LockError::Malformed(what) => write!(f, "not a lock: {what}"),
            LockError::Api(error) => error.fmt(f),
            LockError::Other(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for LockError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            LockError::Api(error) => error.source(),
            LockError::Other(error) => error.source(),
            _ => None,
        }
    }
}

impl From<client::Error> for LockError {
    fn from(error: client::Error) -> LockError {
        LockError::Api(error)
    }
}
