//! One connection to the runtime's socket, on which all calls run: gRPC over HTTP/2.
//! Upstream: `grpc.ClientConn`.

use std::future::Future;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_io::Async;
use futures_lite::FutureExt;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper::header::{CONTENT_TYPE, HeaderMap, TE};
use hyper::{Request, Response};
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::{percent, task};
use parking_lot::Mutex;
use smol_hyper::rt::FuturesIo;

use super::error::{Code, Error};
use crate::metrics;

/// The largest answer, as upstream's `maxMsgSize`.
const MAX_ANSWER: usize = 16 << 20;

/// The flow-control window of an answer: lists of hundreds of containers come without a pause.
const WINDOW: u32 = 1 << 20;

/// Cheap to clone: clones share the connection.
#[derive(Clone)]
pub struct Channel {
    shared: Arc<Shared>,
}

struct Shared {
    socket: PathBuf,
    clock: SharedClock,
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
    pub fn clock(&self) -> &SharedClock {
        &self.shared.clock
    }

    /// A channel to `socket`. The first call connects.
    pub fn new(socket: &Path, clock: SharedClock) -> Channel {
        let shared = Shared { socket: socket.to_owned(), clock, connection: Mutex::default() };
        Channel { shared: Arc::new(shared) }
    }

    /// Calls `method` (`runtime.v1.RuntimeService/Version`). Dropping the future cancels the call.
    ///
    /// # Errors
    /// See [`Error`]; the variants differ in whether the runtime may have carried out the call.
    pub async fn call(
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
            Err(Error::DeadlineExceeded { method: name(method), after })
        };
        let answer = call.or(late).await;
        let took = clock.monotonic().saturating_sub(begin);
        metrics::observe_operation(method, took, answer.is_err());
        answer
    }

    async fn exchange(
        &self,
        method: &'static str,
        message: Vec<u8>,
        deadline: Option<Duration>,
    ) -> Result<Bytes, Error> {
        let request = request(method, "localhost", &message, deadline)
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

    async fn connection(&self) -> Result<SendRequest<Full<Bytes>>, Error> {
        let open = self.shared.connection.lock().clone();
        match open.filter(|connection| !connection.is_closed()) {
            Some(connection) => Ok(connection),
            None => self.connect().await,
        }
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, Error> {
        let unreachable = |source: Box<dyn std::error::Error + Send + Sync>| Error::Unreachable {
            socket: self.shared.socket.clone(),
            source,
        };
        let stream = Async::<UnixStream>::connect(&self.shared.socket).await;
        let stream = stream.map_err(|error| unreachable(error.into()))?;
        let mut builder = Builder::new(Executor);
        builder.initial_stream_window_size(WINDOW).initial_connection_window_size(WINDOW);
        let (sender, connection) = builder
            .handshake(FuturesIo::new(stream))
            .await
            .map_err(|error| unreachable(error.into()))?;
        drop(task::spawn(async move {
            if let Err(error) = connection.await {
                log::debug!("the connection to the container runtime ended: {error}");
            }
        }));
        *self.shared.connection.lock() = Some(sender.clone());
        Ok(sender)
    }
}

/// The last part of a method's path, for messages.
fn name(method: &'static str) -> &'static str {
    method.rsplit('/').next().unwrap_or(method)
}

/// The request of a call of one message.
pub(crate) fn request(
    method: &str,
    authority: &str,
    message: &[u8],
    deadline: Option<Duration>,
) -> Result<Request<Full<Bytes>>, hyper::http::Error> {
    let mut frame = Vec::with_capacity(message.len() + 5);
    // Not compressed.
    frame.push(0);
    frame.extend_from_slice(&u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes());
    frame.extend_from_slice(message);
    let mut request = Request::post(format!("http://{authority}/{method}"))
        .header(CONTENT_TYPE, "application/grpc")
        .header(TE, "trailers");
    if let Some(deadline) = deadline {
        request = request.header("grpc-timeout", timeout(deadline));
    }
    request.body(Full::new(frame.into()))
}

/// A deadline as gRPC writes it: at most eight digits and a unit.
fn timeout(deadline: Duration) -> String {
    match deadline.as_millis() {
        millis @ ..100_000_000 => format!("{millis}m"),
        millis => format!("{}S", (millis / 1000).min(99_999_999)),
    }
}

/// The message of an answer of one message.
pub(crate) async fn answer(
    method: &'static str,
    response: Response<Incoming>,
) -> Result<Bytes, Error> {
    let malformed = |fault: String| Error::Malformed { method, fault };
    let (head, mut body) = response.into_parts();
    if !head.status.is_success() {
        return Err(malformed(format!("HTTP status {}", head.status)));
    }
    // An error may come as trailers alone, which HTTP/2 shows as headers.
    let mut status = status_of(method, &head.headers)?;
    let mut content = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Error::Lost { method, source: error.into() })?;
        match frame.into_data() {
            Ok(data) if content.len() + data.len() > MAX_ANSWER => {
                return Err(malformed(format!("the answer has more than {MAX_ANSWER} bytes")));
            }
            Ok(data) => content.extend_from_slice(&data),
            Err(frame) => {
                if let Ok(trailers) = frame.into_trailers() {
                    status = status_of(method, &trailers)?.or(status);
                }
            }
        }
    }
    if status.is_none() {
        return Err(malformed("the answer has no grpc-status".to_owned()));
    }
    message_of(content).map_err(malformed)
}

/// Whether headers have a status, of success.
fn status_of(method: &'static str, headers: &HeaderMap) -> Result<Option<()>, Error> {
    let text = |key: &str| headers.get(key).and_then(|value| value.to_str().ok());
    let Some(status) = text("grpc-status") else { return Ok(None) };
    match Code::parse(status) {
        None => Err(Error::Malformed { method, fault: format!("grpc-status {status:?}") }),
        Some(None) => Ok(Some(())),
        Some(Some(code)) => {
            let message = percent::decode(text("grpc-message").unwrap_or_default());
            Err(Error::Status { method, code, message })
        }
    }
}

/// The message in an answer's body, or the `fault` of [`Error::Malformed`].
fn message_of(content: Vec<u8>) -> Result<Bytes, String> {
    let content = Bytes::from(content);
    let Some((&[flag, a, b, c, d], message)) = content.split_first_chunk() else {
        return Err("the answer ends within its first message".to_owned());
    };
    let length = u32::from_be_bytes([a, b, c, d]);
    if flag != 0 {
        return Err("the answer is compressed".to_owned());
    }
    if usize::try_from(length) != Ok(message.len()) {
        return Err(format!("a message of {length} bytes has {}", message.len()));
    }
    Ok(content.slice(5..))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_have_at_most_eight_digits() {
        for (deadline, text) in [
            (Duration::from_millis(1500), "1500m"),
            (Duration::from_secs(99_999), "99999000m"),
            (Duration::from_secs(100_000), "100000S"),
            (Duration::MAX, "99999999S"),
        ] {
            assert_eq!(timeout(deadline), text);
        }
    }

    #[test]
    fn messages_are_cut_out_of_their_frame() {
        let frame = [&[0, 0, 0, 0, 3][..], b"abc"].concat();
        assert_eq!(message_of(frame.clone()).as_deref(), Ok(&b"abc"[..]));
        for end in 0..frame.len() {
            assert!(message_of(frame[..end].to_vec()).is_err(), "{end}");
        }
        assert!(message_of([1, 0, 0, 0, 0].to_vec()).is_err());
        assert_eq!(message_of([0; 5].to_vec()).as_deref(), Ok(&b""[..]));
    }
}
