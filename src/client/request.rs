//! The path of all requests: rate-limited, authorized, counted, retried where that is safe.

use std::fmt;
use std::io;
use std::time::Duration;

use futures_lite::FutureExt;
use futures_lite::io::{AsyncBufReadExt, AsyncReadExt, Cursor};
use http_client::http_types::{self, Method};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::call::Call;
use super::credentials::{Shown, header_value};
use super::error::undecoded;
use super::metrics::{DURATION, LIMITED, REQUEST_SIZE, REQUESTS, RESPONSE_SIZE, RETRIES};
use super::transport::{GuardRefused, Purpose, WriteGuard, WriteRefused, is_read};
use super::{Client, Error, Result};
use crate::objects::protobuf::Message;
use crate::objects::{
    Encoded, Form, Meta, ObjectKey, PartialObjectMetadata, Uid, decode, protobuf,
};
use crate::{buffer_pool, trace};

/// The most attempts of one request. Upstream: `maxRetries` of `rest.Request`.
const TRIES: u32 = 10;
/// The average wait before a watch that was reset is started again.
const RESET_WAIT: Duration = Duration::from_secs(1);

impl Client {
    /// Reads any path below the address of the server with GET, and returns the body as it is.
    /// Upstream: `AbsPath(path).DoRaw`.
    pub async fn get_path(&self, path: &str) -> Result<Vec<u8>> {
        self.send(&Call::new("GET", path)).await
    }

    /// Sends a request and decodes the JSON of its answer.
    ///
    /// # Errors
    /// As [`Self::open`]; [`Error::Decode`] when the answer is not an `O`.
    pub async fn fetch<O: DeserializeOwned>(&self, call: &Call) -> Result<O> {
        let mut body = self.send_into(call, buffer_pool::take).await?;
        let decoded = serde_json::from_slice(&body).map_err(undecoded(&call.to_string()));
        buffer_pool::give(&mut body);
        decoded
    }

    /// Reads an object as [`Self::fetch`] does, but also one that comes in protobuf, where
    /// `message` describes it.
    pub async fn fetch_message<T: DeserializeOwned>(
        &self,
        call: &Call,
        message: &'static Message,
    ) -> Result<T> {
        let mut body = self.send_into(call, buffer_pool::take).await?;
        let decoded = match protobuf::is_enveloped(&body) {
            true => protobuf::open(&body)
                .map_err(Into::into)
                .and_then(|object| decode(Form::Protobuf, Some(message), object)),
            false => decode(Form::Json, None, &body),
        };
        buffer_pool::give(&mut body);
        decoded.map_err(|source| Error::Decode { request: call.to_string(), source: source.into() })
    }

    /// Sends a request and returns the whole body of its answer, of any size.
    ///
    /// # Errors
    /// As [`Self::open`]; [`Error::Transport`] also when the body is cut off or late.
    pub async fn send(&self, call: &Call) -> Result<Vec<u8>> {
        self.send_into(call, Vec::new).await
    }

    /// Sends a request as [`Self::send`] does, and reads the answer into the buffer that `empty`
    /// gives once the answer begins.
    async fn send_into(&self, call: &Call, empty: fn() -> Vec<u8>) -> Result<Vec<u8>> {
        let mut answer = self.open(call).await?;
        let mut body = empty();
        answer.read_to_end(&mut body).await.map_err(|error| transport_error(call, error))?;
        self.count_response(call, body.len());
        if trace::current() != 0 && call.method != "GET" {
            trace_write(call, &body, self.inner.clock.monotonic());
        }
        Ok(body)
    }

    /// Sends a request as [`Self::send`] does, and reads the body of its answer without keeping it
    /// in memory.
    pub async fn send_and_drain(&self, call: &Call) -> Result<()> {
        if trace::current() != 0 {
            // The trace shows the object in the answer.
            return self.send(call).await.map(drop);
        }
        let mut answer = self.open(call).await?;
        let mut size = 0;
        loop {
            let read = answer.fill_buf().await.map_err(|error| transport_error(call, error))?.len();
            if read == 0 {
                self.count_response(call, size);
                return Ok(());
            }
            answer.consume(read);
            size += read;
        }
    }

    /// Records the size of a body in the metric. Lists and watches that are read as they arrive are
    /// not counted.
    fn count_response(&self, call: &Call, size: usize) {
        let labels = [call.method, self.inner.host.as_str()];
        RESPONSE_SIZE.with_label_values(&labels).observe(size as f64);
    }

    /// Sends a request, and again where that is safe (see [`Client`]). Returns the body of an
    /// answer with a 2xx status, which is read as it arrives. Dropping the body before its end
    /// closes the connection. An interceptor sees a read, and answers a write, which is not sent.
    ///
    /// # Errors
    /// [`Error::Status`] for any other status, [`Error::Transport`] when no answer came in time,
    /// [`Error::GuardRefused`] or [`Error::Shadowed`] for a write that was not sent,
    /// [`Error::Stopped`] for a request that waited for the limiter at the stop (one that waited for
    /// a further attempt fails as the attempt before), [`Error::Credentials`] without credentials to
    /// show.
    pub async fn open(&self, call: &Call) -> Result<http_types::Body> {
        if let Some(interceptor) = &self.inner.interceptor {
            match is_read(call.method, &call.path) {
                true => interceptor.on_read(call),
                false => {
                    let answer =
                        interceptor.handle_write(call, &self.inner.config.user_agent).await?;
                    return Ok(http_types::Body::from_bytes(answer));
                }
            }
        }
        let mut tries = 0;
        let mut is_renewed = false;
        loop {
            tries += 1;
            let mut shown = Shown::default();
            let error = match self.attempt(call, &mut shown).await {
                Ok(body) => return Ok(body),
                Err(error) => error,
            };
            let wait = match &error {
                Error::Status(failure) if failure.code == 401 && !is_renewed => {
                    is_renewed = true;
                    self.inner.auth.record_refusal(&shown);
                    Some(Duration::ZERO)
                }
                error => wait_before_retry(call, error, tries, fastrand::f64()),
            };
            let Some(wait) = wait.filter(|_| tries < TRIES) else { return Err(error) };
            let code = error.code().map_or_else(|| "<error>".to_owned(), |code| code.to_string());
            let labels = [code.as_str(), call.method, self.inner.host.as_str()];
            RETRIES.with_label_values(&labels).inc();
            if !self.wait_unless_stopped(self.inner.clock.sleep(wait)).await {
                return Err(error);
            }
        }
    }

    /// Waits to the end of `wait` (`true`), or until the client is stopped. A wait that is over at
    /// once ends after the stop too.
    async fn wait_unless_stopped(&self, wait: impl Future<Output = ()>) -> bool {
        let Some(stop) = &self.inner.stop else {
            wait.await;
            return true;
        };
        let ended = async {
            wait.await;
            true
        };
        let stopped = async {
            stop.stopped().await;
            false
        };
        ended.or(stopped).await
    }

    /// Sends a request once, after the wait for the limiter and if the guard lets it pass, and
    /// counts it in the metrics. `shown` becomes the credentials that it shows.
    async fn attempt(&self, call: &Call, shown: &mut Shown) -> Result<http_types::Body> {
        let inner = &self.inner;
        let labels = [call.method, inner.host.as_str()];
        let guard = inner.guard.as_ref().filter(|_| call.method != "GET");
        let guard_refused = || Error::GuardRefused { request: call.to_string() };
        if guard.is_some_and(|guard| !guard.passes()) {
            return Err(guard_refused());
        }
        let start = inner.clock.monotonic();
        if !self.wait_unless_stopped(inner.limiter.take()).await {
            return Err(Error::Stopped { request: call.to_string() });
        }
        let sent = inner.clock.monotonic();
        LIMITED.with_label_values(&labels).observe((sent - start).as_secs_f64());
        *shown = inner.auth.show().await?;
        let mut request = self.build_request(call, shown)?;
        if let Some(guard) = guard {
            request.ext_mut().insert(WriteGuard(guard.clone()));
        }
        let size = call.content.as_ref().map_or(0, |(_, body)| body.len());
        REQUEST_SIZE.with_label_values(&labels).observe(size as f64);
        trace::sent(call, size, sent - start);
        let answer = inner.http.send(request).await;
        DURATION.with_label_values(&labels).observe((inner.clock.monotonic() - sent).as_secs_f64());
        let answer = answer.map_err(|error| match error.into_inner().downcast::<io::Error>() {
            Ok(error) if error.get_ref().is_some_and(|inner| inner.is::<GuardRefused>()) => {
                guard_refused()
            }
            Ok(error) if error.get_ref().is_some_and(|inner| inner.is::<WriteRefused>()) => {
                Error::Shadowed { request: call.to_string() }
            }
            // Kept as it is, so that callers can ask for its kind.
            Ok(error) => transport_error(call, error),
            Err(other) => Error::Transport { request: call.to_string(), source: other.into() },
        });
        let code = match &answer {
            Ok(answer) => u16::from(answer.status()).to_string(),
            // A request that was not sent is not counted.
            Err(Error::GuardRefused { .. }) => return Err(guard_refused()),
            Err(error) if error.is_shadowed() => return Err(error.clone()),
            Err(_) => "<error>".to_owned(),
        };
        REQUESTS.with_label_values(&[code.as_str(), call.method, inner.host.as_str()]).inc();
        inner.writes.count_write(call, !code.starts_with('2'));
        trace::answered(call, &code, inner.clock.monotonic() - sent);
        let mut answer = answer?;
        let code = u16::from(answer.status());
        if (200..300).contains(&code) {
            return Ok(answer.take_body());
        }
        let retry_after =
            answer.header("retry-after").and_then(|value| value.as_str().parse().ok());
        let is_text = answer.content_type().is_some_and(|mime| mime.basetype() == "text");
        let body = answer.body_bytes().await.unwrap_or_default();
        Err(Error::from_answer(call.to_string(), code, retry_after, is_text, &body))
    }

    /// Builds the request in the form of http-types, with credentials and headers.
    fn build_request(&self, call: &Call, shown: &Shown) -> Result<http_types::Request> {
        let inner = &self.inner;
        let mut url = inner.base.clone();
        let path = format!("{}{}", inner.base.path().trim_end_matches('/'), call.path);
        url.set_path(&path);
        if !call.query.is_empty() {
            url.query_pairs_mut().extend_pairs(&call.query);
        }
        let method: Method = call.method.parse().map_err(|_| Error::Request {
            request: call.to_string(),
            source: "no such method".into(),
        })?;
        let mut request = http_types::Request::new(method, url);
        if let Some((content_type, body)) = &call.content {
            let reader = Cursor::new(body.clone());
            // First, or the body would come with a type of its own.
            request.insert_header("content-type", *content_type);
            request.set_body(http_types::Body::from_reader(reader, Some(body.len())));
        }
        request.insert_header("accept", call.accept);
        request.insert_header("user-agent", inner.config.user_agent.as_str());
        if let Some(value) = &shown.header {
            let value = header_value(value)
                .map_err(|_| Error::Credentials("the token does not fit in a header".into()))?;
            request.insert_header("authorization", value);
        }
        for (name, value) in inner.impersonation.iter() {
            request.append_header(name.clone(), value.clone());
        }
        let purpose = if call.is_watch {
            Purpose::Watch
        } else if inner.is_urgent {
            Purpose::Lease
        } else {
            Purpose::Request
        };
        request.ext_mut().insert(purpose);
        Ok(request)
    }
}

/// Returns the wait before the next attempt, after `tries` of them; `None` if there is no further
/// attempt. `random`: 0 to 1.
fn wait_before_retry(call: &Call, error: &Error, tries: u32, random: f64) -> Option<Duration> {
    match error {
        // The server asks for another try, and has done nothing.
        Error::Status(failure) if matches!(failure.code, 429 | 500..=599) => failure.retry_after,
        // A server that restarts is most often back after a second. All its watches end at once,
        // and must not return at once.
        _ if call.is_watch && error.is_reset() => Some(RESET_WAIT.mul_f64(0.5 + random)),
        // Only a closed connection, as upstream. The caller decides about a refused connection and
        // about an answer that is late.
        _ if call.method == "GET" && error.is_reset() && tries < 3 => {
            Some(Duration::from_millis(50))
        }
        _ => None,
    }
}

/// Passes the metadata of the written object, which the answer holds, to the trace.
#[cold]
fn trace_write(call: &Call, body: &[u8], now: Duration) {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Answer {
        kind: String,
        metadata: Meta,
        details: Details,
    }
    /// The object that was deleted, in the Status of the answer.
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Details {
        kind: String,
        name: String,
        uid: Uid,
    }
    if protobuf::is_enveloped(body) {
        let message = protobuf::open(body).map(Encoded::protobuf);
        // The list of the objects that a deletion of a collection deleted has no uid.
        if let Ok(Ok(object)) = message.map(|object| object.decode::<PartialObjectMetadata>())
            && !object.meta.uid.is_empty()
        {
            let Meta { uid, resource_version, .. } = &object.meta;
            let kind = match protobuf::kind(body) {
                // The answer to a create that asks for metadata alone.
                "PartialObjectMetadata" => &kind_sent(call),
                kind => kind,
            };
            trace::wrote(kind, &object.meta.key(), uid, *resource_version, now);
        }
        return;
    }
    let Ok(Answer { kind, metadata, details }) = serde_json::from_slice(body) else { return };
    match kind.as_str() {
        "Status" if !details.uid.is_empty() => {
            // The Status does not name the namespace.
            let key = ObjectKey::cluster(&details.name);
            trace::wrote(&details.kind, &key, &details.uid, 0, now);
        }
        _ if !metadata.uid.is_empty() => {
            let kind = if kind == "PartialObjectMetadata" { kind_sent(call) } else { kind };
            trace::wrote(&kind, &metadata.key(), &metadata.uid, metadata.resource_version, now);
        }
        _ => (),
    }
}

/// Returns the kind of the object in the request's body.
fn kind_sent(call: &Call) -> String {
    #[derive(Deserialize)]
    struct Sent {
        kind: String,
    }
    let sent = call.content.as_ref().and_then(|(_, body)| serde_json::from_slice(body).ok());
    sent.map_or_else(String::new, |Sent { kind }| kind)
}

/// Returns the error of a request to which no whole answer came.
pub(super) fn transport_error(call: &impl fmt::Display, error: std::io::Error) -> Error {
    Error::Transport { request: call.to_string(), source: error.into() }
}

#[cfg(test)]
mod tests {
    use futures_lite::future::{block_on, poll_once};

    use super::super::Config;
    use super::*;
    use crate::clock::FakeClock;
    use crate::objects::Timestamp;
    use crate::task::StopToken;

    #[test]
    fn requests_that_wait_for_the_limiter_end_at_the_stop() {
        // Nothing listens there: a request that is sent fails too.
        let mut config = Config::new("http://127.0.0.1:1".to_owned());
        (config.qps, config.burst) = (0.001, 1);
        let clock = FakeClock::new(Timestamp::from_secs(0));
        let stop = StopToken::new();
        let client = Client::new(config, clock.clone()).expect("a client").stopped_by(stop.clone());
        let events = client.with_uncounted_writes();
        let (read, write) = (Call::new("GET", "/x"), Call::new("POST", "/x"));
        block_on(async {
            for client in [&client, &events] {
                let sent = client.send(&read).await;
                assert!(sent.is_err_and(|error| error.is_transport()), "the first has a token");
            }
            let mut waiting = [
                Box::pin(client.send(&read)),
                Box::pin(client.send(&write)),
                Box::pin(events.send(&write)),
            ];
            for request in &mut waiting {
                assert!(poll_once(request).await.is_none());
            }
            stop.stop();
            let [read, write, event] = &mut waiting;
            for request in [read, write] {
                let ended = request.await;
                assert!(matches!(ended, Err(Error::Stopped { .. })), "{ended:?}");
            }
            assert!(poll_once(event).await.is_none(), "its sender limits the time");
            clock.advance(Duration::from_secs(10_000));
            let sent = client.send(&Call::new("GET", "/x")).await;
            assert!(sent.is_err_and(|error| error.is_transport()), "it need not wait");
        });
    }

    #[test]
    fn requests_are_sent_again_only_where_that_is_safe() {
        let watch = Call { is_watch: true, ..Call::new("GET", "/x") };
        let (read, write) = (Call::new("GET", "/x"), Call::new("POST", "/x"));
        let lost = |kind: io::ErrorKind| transport_error(&"GET /x", kind.into());
        let reset = || lost(io::ErrorKind::ConnectionReset);
        let status =
            |code, seconds| Error::from_answer("GET /x".to_owned(), code, seconds, true, b"");
        for (call, error, tries, expected) in [
            (&watch, reset(), 1, Some([500, 1_000, 1_500])),
            (&watch, lost(io::ErrorKind::UnexpectedEof), 5, Some([500, 1_000, 1_500])),
            (&watch, lost(io::ErrorKind::ConnectionRefused), 1, None),
            (&read, reset(), 2, Some([50; 3])),
            (&read, reset(), 3, None),
            (&read, lost(io::ErrorKind::TimedOut), 1, None),
            (&read, lost(io::ErrorKind::ConnectionRefused), 1, None),
            (&write, reset(), 1, None),
            (&write, status(429, Some(3)), 1, Some([3_000; 3])),
            (&write, status(503, None), 1, None),
            (&write, status(409, Some(3)), 1, None),
        ] {
            // A watch's wait differs between attempts, so that not all watches return at once.
            let waits = [0.0, 0.5, 1.0]
                .map(|random| wait_before_retry(call, &error, tries, random))
                .map(|wait| wait.map(|wait| wait.as_millis()));
            let expected = expected.map_or([None; 3], |waits| waits.map(Some));
            assert_eq!(waits, expected, "{call}: {error}");
        }
    }
}
