//! Requests by which the node shows that it lives: each has a time of its own.
//! Upstream: `Dependencies.HeartbeatClient`.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use futures_lite::FutureExt;
use kube_controller_manager::client::{self, Client};
use kube_controller_manager::clock::SharedClock;

/// A client for heartbeats: no limit of its rate, and a limit of the time of each request. Cheap to
/// clone.
#[derive(Clone)]
pub struct Heartbeats {
    client: Client,
    clock: SharedClock,
    limit: Duration,
}

/// Why a heartbeat was not sent, or not answered.
#[derive(Debug)]
pub enum Error {
    Request(client::Error),
    /// Nothing was answered for this long.
    Late(Duration),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Request(error) => error.fmt(f),
            Error::Late(limit) => write!(f, "the API server has not answered within {limit:?}"),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Error::Request(error) => error.source(),
            Error::Late(_) => None,
        }
    }
}

impl Error {
    /// Returns whether the server does not have the object. Upstream: `apierrors.IsNotFound`.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Error::Request(error) if error.is_not_found())
    }

    /// Returns whether the object exists already. Upstream: `apierrors.IsAlreadyExists`.
    pub fn is_already_exists(&self) -> bool {
        matches!(self, Error::Request(error) if error.is_already_exists())
    }

    /// Returns whether the server refused the request. Upstream: `apierrors.IsForbidden`.
    pub fn is_forbidden(&self) -> bool {
        matches!(self, Error::Request(error) if error.is_forbidden())
    }

    /// Returns whether the object has changed since it was read. Upstream: `apierrors.IsConflict`.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Error::Request(error) if error.is_conflict())
    }
}

impl Heartbeats {
    pub fn new(client: &Client, clock: SharedClock, limit: Duration) -> Heartbeats {
        // A rate of 0 is no limit.
        let client = client.for_lease().with_limits(0.0, 1);
        Heartbeats { client, clock, limit }
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    pub fn clock(&self) -> &SharedClock {
        &self.clock
    }

    /// Waits for the answer to a request of [`Heartbeats::client`]; one that is late is dropped.
    ///
    /// # Errors
    /// Those of the request, or that it is late.
    pub async fn within<T>(
        &self,
        request: impl Future<Output = client::Result<T>>,
    ) -> Result<T, Error> {
        let late = async {
            self.clock.sleep(self.limit).await;
            Err(Error::Late(self.limit))
        };
        async { request.await.map_err(Error::Request) }.or(late).await
    }
}
