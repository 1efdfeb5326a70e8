//! One connection to a server, on which all calls run: gRPC over HTTP/2.
//! Upstream: `grpc.ClientConn`.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_lite::FutureExt;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::client::conn::http2::{Builder, SendRequest};
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::task;
use parking_lot::Mutex;
use prost::Message;
use smol_hyper::rt::FuturesIo;

use crate::endpoint::{Endpoint, Fault};
use crate::error::Error;
use crate::frames::{answer, request};

/// The flow-control window of an answer: lists of hundreds of containers come without a pause.
const WINDOW: u32 = 1 << 20;

/// Called at the end of each call with its method, its duration and whether it failed.
type Observer = fn(&str, Duration, bool);

/// Cheap to clone: clones share the connection.
#[derive(Clone)]
pub struct Channel {
    shared: Arc<Shared>,
}

struct Shared {
    peer: &'static str,
    endpoint: Endpoint,
    clock: SharedClock,
    observer: Observer,
    connection: Mutex<Option<SendRequest<Full<Bytes>>>>,
}

/// Runs hyper's tasks.
#[derive(Clone)]
pub struct Executor;

impl<F> hyper::rt::Executor<F> for Executor
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, future: F) {
        drop(task::spawn(future));
    }
}

impl Channel {
    /// Returns a channel to the server at `endpoint`. The first call connects. `peer`: the server
    /// in messages ("container runtime"); `observer`: called at the end of each call.
    pub fn new(
        peer: &'static str,
        endpoint: Endpoint,
        clock: SharedClock,
        observer: Observer,
    ) -> Channel {
        let connection = Mutex::default();
        Channel { shared: Arc::new(Shared { peer, endpoint, clock, observer, connection }) }
    }

    pub fn clock(&self) -> &SharedClock {
        &self.shared.clock
    }

    /// Calls `method` (`runtime.v1.RuntimeService/Version`). Dropping the future cancels the call.
    ///
    /// # Errors
    /// See [`Error`]; the variants differ in whether the peer may have carried out the call.
    pub async fn call<A: Message + Default>(
        &self,
        method: &'static str,
        message: &impl Message,
        deadline: Option<Duration>,
    ) -> Result<A, Error> {
        let answer = self.call_bytes(method, message.encode_to_vec(), deadline).await?;
        let malformed = |fault: String| Error::Malformed { method: name(method), fault };
        A::decode(answer).map_err(|error| malformed(error.to_string()))
    }

    /// Makes one call within its deadline, and reports its method, time and outcome to the
    /// observer.
    async fn call_bytes(
        &self,
        method: &'static str,
        message: Vec<u8>,
        deadline: Option<Duration>,
    ) -> Result<Bytes, Error> {
        let clock = &self.shared.clock;
        let begin = clock.monotonic();
        let call = self.exchange(method, message, deadline);
        let late = async {
            let after = deadline.unwrap_or(Duration::MAX);
            clock.sleep(after).await;
            self.leave_silent_connection();
            Err(Error::DeadlineExceeded { method: name(method), after })
        };
        let answer = call.or(late).await;
        let took = clock.monotonic().saturating_sub(begin);
        (self.shared.observer)(method, took, answer.is_err());
        answer
    }

    /// Drops the connection to another host after a deadline, so that the next call connects again:
    /// a host that vanished looks like a slow one. A Unix socket closes with its process,
    /// and is kept, as is the connection of calls that are under way.
    fn leave_silent_connection(&self) {
        if matches!(self.shared.endpoint, Endpoint::Tls(_)) {
            *self.shared.connection.lock() = None;
        }
    }

    /// Sends the request over the present connection, or over a new one if that has closed before
    /// the request was written.
    async fn exchange(
        &self,
        method: &'static str,
        message: Vec<u8>,
        deadline: Option<Duration>,
    ) -> Result<Bytes, Error> {
        let request = request(&self.shared.endpoint.origin(), method, &message, deadline)
            .map_err(|error| Error::Malformed { method: name(method), fault: error.to_string() })?;
        let mut connection = self.connection().await?;
        let sent = connection.try_send_request(request).await;
        let sent = match sent {
            Ok(response) => Ok(response),
            Err(mut error) => match error.take_message() {
                // The connection closed before the request was written.
                Some(request) => self.connect().await?.send_request(request).await,
                None => Err(error.into_error()),
            },
        };
        let lost = |error: hyper::Error| Error::Lost { method: name(method), source: error.into() };
        answer(name(method), sent.map_err(lost)?).await
    }

    /// Returns the open connection, or a new one.
    async fn connection(&self) -> Result<SendRequest<Full<Bytes>>, Error> {
        let open = self.shared.connection.lock().clone();
        match open.filter(|connection| !connection.is_closed()) {
            Some(connection) => Ok(connection),
            None => self.connect().await,
        }
    }

    /// Opens a connection, and keeps it for the calls that follow.
    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, Error> {
        let Shared { peer, endpoint, .. } = &*self.shared;
        let sender = self.handshake().await.map_err(|source| Error::Unreachable {
            peer,
            endpoint: endpoint.to_string(),
            source,
        })?;
        *self.shared.connection.lock() = Some(sender.clone());
        Ok(sender)
    }

    /// Opens a connection, and drives it in a task of its own until it ends.
    async fn handshake(&self) -> Result<SendRequest<Full<Bytes>>, Fault> {
        let stream = self.shared.endpoint.connect().await?;
        let mut builder = Builder::new(Executor);
        builder.initial_stream_window_size(WINDOW).initial_connection_window_size(WINDOW);
        let (sender, connection) = builder.handshake(FuturesIo::new(stream)).await?;
        let peer = self.shared.peer;
        drop(task::spawn(async move {
            if let Err(error) = connection.await {
                log::debug!("the connection to the {peer} ended: {error}");
            }
        }));
        Ok(sender)
    }
}

/// Returns the last part of a method's path, for messages.
fn name(method: &'static str) -> &'static str {
    method.rsplit('/').next().unwrap_or(method)
}
