//! The lock that the contenders read and write. Upstream: `tools/leaderelection/resourcelock`.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use crate::client;
use crate::objects::Timestamp;

pub type LockFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, LockError>> + Send + 'a>>;

/// A record that all contenders see; of several concurrent writers one succeeds. Futures may be
/// dropped at any time; the write may then have happened or not.
pub trait Lock: Send + Sync + 'static {
    /// The name of this contender; not empty, and unique.
    fn identity(&self) -> &str;
    /// For logs.
    fn describe(&self) -> String;
    /// `None`: the record does not exist yet.
    fn get(&self) -> LockFuture<'_, Option<LeaderElectionRecord>>;
    /// Fails if the record exists.
    fn create<'a>(&'a self, record: &'a LeaderElectionRecord) -> LockFuture<'a, ()>;
    /// Fails if another contender has written the record since our last `get`, `create` or
    /// `update`.
    fn update<'a>(&'a self, record: &'a LeaderElectionRecord) -> LockFuture<'a, ()>;
    /// Records an event that this contender did `what`. Does not wait.
    fn record_event(&self, what: &str);
}

/// The leader and its times. The times are those of the holder's clock: they are for people, and
/// no decision depends on them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaderElectionRecord {
    /// Empty: released.
    pub holder_identity: String,
    pub lease_duration_seconds: i32,
    pub acquire_time: Option<Timestamp>,
    pub renew_time: Option<Timestamp>,
    pub leader_transitions: i32,
    /// Coordinated election: the candidate that takes the lock when this term ends; empty: none.
    pub preferred_holder: String,
    /// Coordinated election: how the API server picks the leader; empty: the election is not
    /// coordinated.
    pub strategy: String,
}

#[derive(Debug)]
pub enum LockError {
    /// `update` before the first `get` or `create`.
    NotRead,
    /// No answer in time.
    TimedOut,
    /// The lock's object cannot be read as a lock.
    Malformed(String),
    Api(client::Error),
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
