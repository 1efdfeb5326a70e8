//! An HTTP/1.1 server, over TLS or plain: keep-alive, chunked streams, client certificates.
//! Upstream: `apiserver/pkg/server.SecureServingInfo`.

use parking_lot::Mutex;
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use async_std::net::{TcpListener, TcpStream};
use futures_lite::future::Boxed;
use futures_lite::{AsyncRead, AsyncWrite, AsyncWriteExt, FutureExt, Stream};
use futures_rustls::TlsAcceptor;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::rt::{Sleep, Timer};
use rustls::pki_types::CertificateDer;
use smol_hyper::rt::FuturesIo;

use super::tls::Tls;
use crate::clock::SharedClock;
use crate::task::{StopToken, Task, spawn};

pub use hyper::body::Bytes;
pub use hyper::{HeaderMap, Method};

/// Longest time for a TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long a connection may idle, or take to send the head of a request.
const IDLE: Duration = Duration::from_secs(90);
/// How long to wait when no connection can be accepted: others will be closed.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);
/// The first byte of a TLS connection: its content type, a handshake.
const TLS_HANDSHAKE: u8 = 22;
/// Time that requests have to end once a stop was asked for.
const DRAIN: Duration = Duration::from_secs(2);

/// A request as it came. The body is read on demand.
pub struct Request {
    pub method: Method,
    /// Still percent-encoded.
    pub path: String,
    /// What follows the `?`, still percent-encoded.
    pub query: String,
    pub headers: HeaderMap,
    pub body: RequestBody,
    pub peer: Chain,
}

/// The client's certificates, its own first. TLS has checked that it holds the key of that, and
/// no more; who signed it is for [`Authorities`](super::auth::Authorities) to judge.
pub type Chain = Arc<[CertificateDer<'static>]>;

impl Request {
    /// A GET of a path with its query, from nobody.
    pub fn get(path: &str) -> Request {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        Request {
            method: Method::GET,
            path: path.into(),
            query: query.into(),
            headers: HeaderMap::new(),
            body: RequestBody::Full(Bytes::new()),
            peer: Chain::default(),
        }
    }

    /// A header as text; `None` when absent or not ASCII.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// The parameters of the query, each with its value or an empty one, as they came.
    pub fn query_pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        let pairs = self.query.split('&').filter(|pair| !pair.is_empty());
        pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")))
    }

    /// Each value of a parameter of the query; empty where it has none.
    pub fn query_values(&self, name: &str) -> impl Iterator<Item = &str> {
        self.query_pairs().filter(move |(n, _)| *n == name).map(|(_, value)| value)
    }
}

/// The body of a request.
pub enum RequestBody {
    Incoming(Incoming),
    Full(Bytes),
}

/// Why a request's body could not be had.
#[derive(Debug)]
pub enum BodyError {
    TooLarge,
    Broken(hyper::Error),
}

impl RequestBody {
    /// The whole body, of at most `limit` bytes.
    pub async fn read(self, limit: usize) -> Result<Bytes, BodyError> {
        let mut body = match self {
            RequestBody::Full(bytes) if bytes.len() > limit => return Err(BodyError::TooLarge),
            RequestBody::Full(bytes) => return Ok(bytes),
            RequestBody::Incoming(incoming) => incoming,
        };
        let mut whole = Vec::new();
        while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
            if let Ok(data) = frame.map_err(BodyError::Broken)?.into_data() {
                if whole.len() + data.len() > limit {
                    return Err(BodyError::TooLarge);
                }
                whole.extend_from_slice(&data);
            }
        }
        Ok(whole.into())
    }
}

/// Chunks of a response. An error cuts the connection, so that the client sees a broken body.
pub type BodyStream = Pin<Box<dyn Stream<Item = io::Result<Bytes>> + Send>>;

pub enum Body {
    Full(Bytes),
    /// Sent chunked, each item as soon as it is there. Dropped when the client goes away.
    Stream(BodyStream),
    /// No response at all: the connection is cut.
    Abort,
}

pub struct Response {
    pub status: u16,
    pub headers: Vec<(HeaderName, HeaderValue)>,
    pub body: Body,
}

impl Response {
    pub fn new(status: u16, content_type: &'static str, body: impl Into<Bytes>) -> Response {
        Response {
            status,
            headers: vec![(CONTENT_TYPE, HeaderValue::from_static(content_type))],
            body: Body::Full(body.into()),
        }
    }

    pub fn text(status: u16, body: impl Into<Bytes>) -> Response {
        Response::new(status, "text/plain; charset=utf-8", body)
    }

    pub fn json(status: u16, body: &serde_json::Value) -> Response {
        Response::new(status, "application/json", body.to_string())
    }

    /// An error as the API tells it. Upstream: `metav1.Status`.
    pub fn status(code: u16, reason: &str, message: &str) -> Response {
        let body = serde_json::json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": message, "reason": reason, "code": code,
        });
        Response::json(code, &body)
    }

    pub fn stream(status: u16, content_type: &'static str, body: BodyStream) -> Response {
        Response { body: Body::Stream(body), ..Response::new(status, content_type, Bytes::new()) }
    }

    pub fn abort() -> Response {
        Response { body: Body::Abort, ..Response::text(500, Bytes::new()) }
    }

    /// The whole body; empty when it is a stream.
    pub fn content(&self) -> &[u8] {
        match &self.body {
            Body::Full(bytes) => bytes,
            Body::Stream(_) | Body::Abort => &[],
        }
    }

    /// Adds a header; a value that no header may hold is left out.
    pub fn with_header(mut self, name: HeaderName, value: &str) -> Response {
        if let Ok(value) = HeaderValue::from_str(value) {
            self.headers.push((name, value));
        }
        self
    }
}

/// Answers requests, many at once. A panic in it is answered with 500. Its future is dropped when
/// the client goes away.
pub type Handler = Arc<dyn Fn(Request) -> Boxed<Response> + Send + Sync>;

/// A handler that answers at once.
pub fn handler(answer: impl Fn(&Request) -> Response + Send + Sync + 'static) -> Handler {
    Arc::new(move |request| {
        let response = answer(&request);
        Box::pin(async move { response })
    })
}

/// A server that runs. Dropping it does not stop it.
pub struct Server {
    address: SocketAddr,
    accepting: Task<()>,
}

impl Server {
    /// Binds `address` (port 0: any free one) and serves until `stop`, then lets running requests
    /// end for at most two seconds.
    pub async fn start(
        address: SocketAddr,
        tls: Option<Tls>,
        handler: Handler,
        clock: SharedClock,
        stop: StopToken,
    ) -> io::Result<Server> {
        Server::on(TcpListener::bind(address).await?, tls, handler, clock, stop)
    }

    /// The same, on a listener that is there already.
    pub fn on(
        listener: TcpListener,
        tls: Option<Tls>,
        handler: Handler,
        clock: SharedClock,
        stop: StopToken,
    ) -> io::Result<Server> {
        let address = listener.local_addr()?;
        let serving = Arc::new(Serving { tls, handler, clock, stop });
        Ok(Server { address, accepting: spawn(serving.accept(listener)) })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until the server has stopped and its connections are closed.
    pub async fn join(self) {
        self.accepting.await;
    }
}

struct Serving {
    tls: Option<Tls>,
    handler: Handler,
    clock: SharedClock,
    stop: StopToken,
}

impl Serving {
    async fn accept(self: Arc<Self>, listener: TcpListener) {
        // Each connection holds a sender: the channel closes when the last has ended.
        let (open, all_closed) = async_channel::bounded::<()>(1);
        while let Some(accepted) = self.stop.unless_stopped(listener.accept()).await {
            match accepted {
                Ok((stream, _)) => {
                    let (serving, open) = (self.clone(), open.clone());
                    spawn(async move {
                        serving.connection(stream).await;
                        drop(open);
                    });
                }
                // Out of file descriptors, most likely.
                Err(error) => {
                    log::warn!("accepting a connection: {error}");
                    self.clock.sleep(ACCEPT_RETRY).await;
                }
            }
        }
        drop(listener);
        drop(open);
        // Each connection ends by itself within DRAIN.
        while all_closed.recv().await.is_ok() {}
    }

    async fn connection(self: Arc<Self>, stream: TcpStream) {
        if let Err(error) = stream.set_nodelay(true) {
            log::debug!("set_nodelay: {error}");
        }
        let Some(tls) = self.tls.clone() else {
            return self.serve(stream, Chain::default()).await;
        };
        let handshake = async { handshake(tls, stream).await };
        let late = async {
            self.clock.sleep(HANDSHAKE).await;
            Err(io::ErrorKind::TimedOut.into())
        };
        let stopped = async {
            self.stop.stopped().await;
            Err(io::ErrorKind::Interrupted.into())
        };
        match handshake.or(late).or(stopped).await {
            Ok(stream) => {
                let chain = stream.get_ref().1.peer_certificates().unwrap_or_default().into();
                self.serve(stream, chain).await;
            }
            Err(error) => log::debug!("TLS handshake: {error}"),
        }
    }

    async fn serve<IO>(self: Arc<Self>, io: IO, peer: Chain)
    where
        IO: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let handler = self.handler.clone();
        let service = hyper::service::service_fn(move |request: hyper::Request<Incoming>| {
            answer(handler.clone(), request, peer.clone())
        });
        let mut connection = std::pin::pin!(
            hyper::server::conn::http1::Builder::new()
                .timer(ClockTimer(self.clock.clone()))
                .header_read_timeout(IDLE)
                .serve_connection(FuturesIo::new(io), service)
        );
        let ended = async { Some(connection.as_mut().await) };
        let stopped = async {
            self.stop.stopped().await;
            None
        };
        let ended = match ended.or(stopped).await {
            Some(ended) => ended,
            None => {
                connection.as_mut().graceful_shutdown();
                let late = async {
                    self.clock.sleep(DRAIN).await;
                    Ok(())
                };
                connection.or(late).await
            }
        };
        if let Err(error) = ended {
            log::debug!("connection: {error}");
        }
    }
}

type TlsStream = futures_rustls::server::TlsStream<TcpStream>;

async fn handshake(tls: Tls, mut stream: TcpStream) -> io::Result<TlsStream> {
    let mut first = [0];
    if stream.peek(&mut first).await? == 1 && first[0] != TLS_HANDSHAKE {
        let told =
            b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n";
        stream.write_all(told).await?;
        stream.close().await?;
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not TLS"));
    }
    TlsAcceptor::from(tls.config).accept(stream).await
}

/// Our clock as hyper's.
struct ClockTimer(SharedClock);

impl Timer for ClockTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        Box::pin(ClockSleep(Mutex::new(self.0.sleep(duration))))
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        self.sleep(deadline.saturating_duration_since(self.now()))
    }
}

/// In a mutex since hyper wants it `Sync`; it is never locked.
struct ClockSleep(Mutex<Boxed<()>>);

impl Future for ClockSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.0.get_mut().poll(cx)
    }
}

impl Sleep for ClockSleep {}

async fn answer(
    handler: Handler,
    request: hyper::Request<Incoming>,
    peer: Chain,
) -> Result<hyper::Response<Outgoing>, Cut> {
    let (head, body) = request.into_parts();
    let request = Request {
        method: head.method,
        path: head.uri.path().to_owned(),
        query: head.uri.query().unwrap_or_default().to_owned(),
        headers: head.headers,
        body: RequestBody::Incoming(body),
        peer,
    };
    let answered = AssertUnwindSafe(async move { handler(request).await }).catch_unwind().await;
    let response = answered.unwrap_or_else(|_| Response::text(500, "internal server error\n"));
    let mut built = hyper::Response::new(match response.body {
        Body::Full(bytes) => Outgoing::Full(Some(bytes)),
        Body::Stream(stream) => Outgoing::Stream(stream),
        Body::Abort => return Err(Cut),
    });
    *built.status_mut() = hyper::StatusCode::from_u16(response.status)
        .unwrap_or(hyper::StatusCode::INTERNAL_SERVER_ERROR);
    built.headers_mut().extend(response.headers);
    Ok(built)
}

/// The handler wants the connection cut.
#[derive(Debug)]
struct Cut;

impl std::fmt::Display for Cut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("connection cut on purpose")
    }
}

impl std::error::Error for Cut {}

enum Outgoing {
    Full(Option<Bytes>),
    Stream(BodyStream),
}

impl HttpBody for Outgoing {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match &mut *self {
            Outgoing::Full(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Outgoing::Stream(stream) => {
                stream.as_mut().poll_next(cx).map(|next| next.map(|next| next.map(Frame::data)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Outgoing::Full(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Outgoing::Full(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64)
            }
            Outgoing::Stream(_) => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_rustls::TlsConnector;
    use rustls::pki_types::PrivateKeyDer;

    use super::super::tls::TlsOptions;
    use super::*;
    use crate::clock::{FakeClock, SystemClock};
    use crate::objects::Timestamp;
    use futures_lite::future::block_on;
    use futures_lite::{AsyncReadExt, AsyncWriteExt, stream};

    async fn exchange(address: SocketAddr, request: &str) -> String {
        let mut connection = TcpStream::connect(address).await.unwrap();
        connection.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        // A cut connection may show as an error; what came before it counts.
        let _cut = connection.read_to_end(&mut answer).await;
        String::from_utf8_lossy(&answer).into_owned()
    }

    #[test]
    fn answers_streams_survives_panics_and_stops() {
        let handler: Handler = Arc::new(|request| {
            Box::pin(async move {
                match request.path.as_str() {
                    "/echo" => Response::text(200, request.body.read(4).await.unwrap_or_default()),
                    "/stream" => {
                        let chunks =
                            ["a", "bc"].map(|chunk| Ok(Bytes::from_static(chunk.as_bytes())));
                        Response::stream(200, "text/plain", Box::pin(stream::iter(chunks)))
                    }
                    "/cut" => {
                        let chunks =
                            [Ok(Bytes::from_static(b"abc")), Err(io::ErrorKind::Other.into())];
                        Response::stream(200, "text/plain", Box::pin(stream::iter(chunks)))
                    }
                    "/abort" => Response::abort(),
                    _ => panic!("on purpose"),
                }
            })
        });
        block_on(async {
            let stop = StopToken::new();
            let address = SocketAddr::from(([127, 0, 0, 1], 0));
            let clock = SystemClock::shared();
            let server = Server::start(address, None, handler, clock, stop.clone()).await.unwrap();
            let address = server.address();
            let get =
                |path: &str| format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
            let post = "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nping";
            let twice = format!("{post}{}", get("/panic"));
            let answers = exchange(address, &twice).await;
            assert!(
                answers.starts_with("HTTP/1.1 200 OK") && answers.contains("ping"),
                "{answers}"
            );
            assert!(answers.contains("HTTP/1.1 500"), "{answers}");
            let streamed = exchange(address, &get("/stream")).await;
            assert!(streamed.ends_with("1\r\na\r\n2\r\nbc\r\n0\r\n\r\n"), "{streamed}");
            let cut = exchange(address, &get("/cut")).await;
            assert!(!cut.ends_with("0\r\n\r\n"), "{cut}");
            assert_eq!(exchange(address, &get("/abort")).await, "");
            // An idle connection does not hold the stop up.
            let idle = TcpStream::connect(address).await.unwrap();
            stop.stop();
            server.join().await;
            assert!(TcpStream::connect(address).await.is_err());
            drop(idle);
        });
    }

    #[test]
    fn over_tls_the_clients_certificate_is_known_and_plain_http_is_told() {
        let own = rcgen::generate_simple_self_signed(["me".to_string()]).unwrap();
        let own_der = own.cert.der().clone();
        block_on(async {
            let tls = Tls::new(TlsOptions::default()).unwrap();
            let mut roots = rustls::RootCertStore::empty();
            roots.add(tls.certificate()).unwrap();
            let key = PrivateKeyDer::try_from(own.signing_key.serialize_der()).unwrap();
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let config = rustls::ClientConfig::builder_with_provider(provider)
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_root_certificates(roots)
                .with_client_auth_cert(vec![own_der.clone()], key)
                .unwrap();
            let echo = handler(move |r: &Request| {
                Response::text(201, format!("{} {} {}", r.path, r.query, r.peer[0] == own_der))
            });
            let (address, stop) = (SocketAddr::from(([127, 0, 0, 1], 0)), StopToken::new());
            let clock = FakeClock::new(Timestamp::from_secs(0));
            let server =
                Server::start(address, Some(tls), echo, clock.clone(), stop.clone()).await.unwrap();
            let connect = async || {
                let socket = TcpStream::connect(server.address()).await.unwrap();
                let name = "localhost".try_into().unwrap();
                TlsConnector::from(Arc::new(config.clone())).connect(name, socket).await.unwrap()
            };
            let (mut stream, mut answer) = (connect().await, String::new());
            for part in ["GET /healthz?ver", "bose HTTP/1.0\r\nhost: x\r\n", "\r\n"] {
                stream.write_all(part.as_bytes()).await.unwrap();
            }
            stream.read_to_string(&mut answer).await.unwrap();
            assert!(answer.starts_with("HTTP/1.0 201 "), "{answer}");
            assert!(answer.ends_with("\r\n\r\n/healthz verbose true"), "{answer}");

            let plain = exchange(server.address(), "GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
            assert!(
                plain.ends_with("Client sent an HTTP request to an HTTPS server.\n"),
                "{plain}"
            );
            stop.stop();
            server.join().await;
        });
    }
}
