//! surf's backend: HTTP/1.1 over TCP and TLS, with a bounded keep-alive pool.
//!
//! A request marked [`OwnConnection`] (a watch) opens a connection that never counts against the
//! pool. A pooled connection that the server has closed is noticed before it is used, and a request
//! is never sent twice. A peer that is gone without a word is noticed by TCP's keep-alive, so that a
//! watch does not wait for it: HTTP/1.1 has no ping as the one of HTTP/2 that client-go sends.

use parking_lot::{Mutex, MutexGuard};
use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use async_lock::{Semaphore, SemaphoreGuardArc};
use async_std::net::TcpStream;
use futures_lite::io::{AsyncBufRead, AsyncRead, AsyncWrite};
use futures_lite::{AsyncBufReadExt, AsyncWriteExt, FutureExt, ready};
use futures_rustls::TlsConnector;
use http_client::http_types::{self, StatusCode};
use http_client::{HttpClient, Request, Response};
use pin_project::pin_project;
use rustix::net::sockopt;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;

use super::buffered::Buffered;
use super::chunks::{ChunkDecoder, Piece};
use super::proxy::{Kind, Proxy};
use super::rotation::UntilRotated;
use super::tls::TlsSource;
use super::tunnel;
use crate::clock::{SharedClock, Sleep};
use crate::objects::protobuf;
use crate::task;

/// In a request's extensions: do not use the pool.
#[derive(Clone, Copy)]
pub struct OwnConnection;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Idle connections kept, and connections in use before a request rather waits for one of them: a
/// handshake costs both sides more than many requests.
const POOL_SIZE: usize = 32;
/// How long it waits, so that slow answers hold up nobody.
const WAIT_FOR_CONNECTION: Duration = Duration::from_millis(500);
/// Shorter than the 90 s after which the API server closes a connection that is idle.
const IDLE_LIFETIME: Duration = Duration::from_secs(75);
/// A connection without a byte for the first of these is probed, and is dead after so many probes
/// without an answer: 45 s in all, as client-go's pings.
const KEEP_ALIVE_AFTER: Duration = Duration::from_secs(30);
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(5);
const KEEP_ALIVE_PROBES: u32 = 3;
/// Between two looks at the files of the client certificate, while nobody asks for anything.
const LOOK_AT_FILES: Duration = Duration::from_secs(5 * 60);
const HEAD_LIMIT: usize = 64 << 10;
/// A request's head has room here, a token of a service account included.
const HEAD_CAPACITY: usize = 2 << 10;

trait ReadWrite: AsyncRead + AsyncWrite + Send + Sync + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Sync + Unpin> ReadWrite for T {}

type Io = Buffered<Box<dyn ReadWrite>>;

struct Connection {
    io: Io,
    /// Made with this; a newer one may have another client certificate. `None`: without TLS.
    tls: Option<Arc<ClientConfig>>,
}

#[derive(Default)]
struct Idle {
    /// And since when.
    connections: Vec<(Connection, Duration)>,
    /// A task is about to close those that nobody came for.
    reaped: bool,
}

/// One server's connections.
#[derive(Clone)]
pub struct Transport {
    shared: Arc<Shared>,
    config: http_client::Config,
}

struct Shared {
    tls: TlsSource,
    proxy: Option<Proxy>,
    clock: SharedClock,
    /// For an answer's head, and between two pieces of a body that is not a watch's.
    timeout: Duration,
    idle: Mutex<Idle>,
    in_use: Arc<Semaphore>,
    /// A task looks at the files of the client certificate.
    looked_at: AtomicBool,
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Transport")
    }
}

impl Transport {
    pub fn new(
        tls: TlsSource,
        proxy: Option<Proxy>,
        clock: SharedClock,
        timeout: Duration,
    ) -> Transport {
        let (idle, in_use) = (Mutex::default(), Arc::new(Semaphore::new(POOL_SIZE)));
        let looked_at = AtomicBool::new(false);
        let shared = Shared { tls, proxy, clock, timeout, idle, in_use, looked_at };
        Transport { shared: Arc::new(shared), config: http_client::Config::default() }
    }
}

impl HttpClient for Transport {
    fn send<'a, 'f>(
        &'a self,
        request: Request,
    ) -> Pin<Box<dyn Future<Output = Result<Response, http_types::Error>> + Send + 'f>>
    where
        'a: 'f,
        Self: 'f,
    {
        Box::pin(async move {
            let answer = self.shared.clone().exchange(request).await;
            answer.map_err(|error| http_types::Error::new(StatusCode::BadGateway, error))
        })
    }

    fn config(&self) -> &http_client::Config {
        &self.config
    }
}

fn timed_out(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("{what} timed out"))
}

impl Shared {
    async fn within<T>(
        &self,
        limit: Duration,
        what: &str,
        work: impl Future<Output = io::Result<T>>,
    ) -> io::Result<T> {
        let late = async {
            self.clock.sleep(limit).await;
            Err(timed_out(what))
        };
        work.or(late).await
    }

    async fn exchange(self: Arc<Self>, mut request: Request) -> io::Result<Response> {
        let own = request.ext().get::<OwnConnection>().is_some();
        let body = request.take_body().into_bytes().await.map_err(io::Error::other)?;
        let forwarding = self.proxy.as_ref().filter(|proxy| proxy.forwards_to(request.url()));
        let head = head_of(&request, body.len(), forwarding)?;
        let identity = match request.url().scheme() {
            "http" => None,
            _ => Some(self.tls.identity().await.map_err(io::Error::other)?),
        };
        let rotations = identity.as_ref().map(|identity| identity.rotations);
        let tls = identity.map(|identity| identity.config);
        let turn = if own { None } else { self.turn().await };
        let pooled = if own { None } else { self.take_idle(tls.as_ref()) };
        let Connection { mut io, tls } = match pooled {
            Some(connection) => connection,
            None => self.connect(request.url(), tls).await?,
        };
        let is_head = request.method() == http_types::Method::Head;
        let work = async {
            io.get_mut().write_all(&head).await?;
            io.get_mut().write_all(&body).await?;
            io.get_mut().flush().await?;
            read_head(&mut io).await
        };
        let head = self.within(self.timeout, "the answer", work).await?;
        let mut response = Response::new(head.status);
        if let Some(value) = &head.retry_after {
            response.insert_header("retry-after", value.as_str());
        }
        let framing = match head.framing {
            _ if is_head || matches!(head.code, 100..=199 | 204 | 304) => Framing::Length(0),
            framing => framing,
        };
        let mut reader = BodyReader {
            connection: Some(Connection { io, tls }),
            framing,
            keep: head.keep_alive && !own,
            shared: self.clone(),
            turn,
        };
        reader.finish_if_done();
        let mut body = match (own, rotations.filter(|_| self.tls.may_rotate())) {
            (true, None) => http_types::Body::from_reader(reader, None),
            (true, Some(count)) => {
                self.look_at_files();
                let rotations = self.tls.rotations().clone();
                let reader = UntilRotated::new(reader, rotations, count);
                http_types::Body::from_reader(reader, None)
            }
            (false, _) => {
                let limited = IdleLimit::new(reader, self.timeout, self.clock.clone());
                http_types::Body::from_reader(limited, None)
            }
        };
        if head.is_protobuf {
            body.set_mime(protobuf::MEDIA_TYPE);
        }
        response.set_body(body);
        Ok(response)
    }

    /// A place among the connections in use; `None` when there was none for too long.
    async fn turn(&self) -> Option<SemaphoreGuardArc> {
        if let Some(turn) = self.in_use.try_acquire_arc() {
            return Some(turn);
        }
        let late = async {
            self.clock.sleep(WAIT_FOR_CONNECTION).await;
            None
        };
        async { Some(self.in_use.acquire_arc().await) }.or(late).await
    }

    fn idle(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock()
    }

    /// `tls`: what a new connection would be made with. Those made with another are closed: who we
    /// are, or whom we trust, has changed since.
    fn take_idle(&self, tls: Option<&Arc<ClientConfig>>) -> Option<Connection> {
        let now = self.clock.monotonic();
        let mut idle = self.idle();
        idle.connections.retain(|(connection, since)| {
            let same = match (&connection.tls, tls) {
                (Some(one), Some(other)) => Arc::ptr_eq(one, other),
                (one, other) => one.is_none() && other.is_none(),
            };
            same && now < *since + IDLE_LIFETIME
        });
        while let Some((mut connection, _)) = idle.connections.pop() {
            // Anything to be read now is the server's goodbye.
            let mut context = Context::from_waker(Waker::noop());
            if Pin::new(&mut connection.io).poll_fill_buf(&mut context).is_pending() {
                return Some(connection);
            }
        }
        None
    }

    fn put_idle(self: &Arc<Self>, connection: Connection) {
        let mut idle = self.idle();
        if connection.io.buffer().is_empty() && idle.connections.len() < POOL_SIZE {
            idle.connections.push((connection, self.clock.monotonic()));
            if !std::mem::replace(&mut idle.reaped, true) {
                task::spawn(reap(Arc::downgrade(self), self.clock.clone()));
            }
        }
    }

    async fn connect(
        &self,
        url: &http_types::Url,
        tls: Option<Arc<ClientConfig>>,
    ) -> io::Result<Connection> {
        let bad =
            |what: &str| io::Error::new(io::ErrorKind::InvalidInput, format!("{url}: {what}"));
        let host = url.host_str().ok_or_else(|| bad("no host"))?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = url.port_or_known_default().ok_or_else(|| bad("no port"))?;
        let work = async {
            let (peer, peer_port) = match &self.proxy {
                Some(proxy) => (proxy.host.as_str(), proxy.port),
                None => (host.as_str(), port),
            };
            let tcp = TcpStream::connect((peer, peer_port)).await.map_err(|error| {
                io::Error::new(error.kind(), format!("connect to {peer}:{peer_port}: {error}"))
            })?;
            tcp.set_nodelay(true)?;
            if let Err(error) = probe_when_silent(&tcp) {
                log::debug!("{peer}:{peer_port}: no keep-alive: {error}");
            }
            let mut stream = Box::new(tcp) as Box<dyn ReadWrite>;
            if let Some(proxy) = &self.proxy {
                if proxy.kind == Kind::Https {
                    // A proxy is trusted, and told who we are, as the server: client-go has one
                    // configuration for both.
                    let config = match &tls {
                        Some(config) => config.clone(),
                        None => self.tls.identity().await.map_err(io::Error::other)?.config,
                    };
                    stream = self.secure(config, stream, peer, peer_port).await?;
                }
                if !proxy.forwards_to(url) {
                    stream = tunnel::open(stream, proxy, &host, port).await?;
                }
            }
            match tls.clone() {
                Some(config) => self.secure(config, stream, &host, port).await,
                None => Ok(stream),
            }
        };
        let io = self.within(CONNECT_TIMEOUT, "the connection", work).await?;
        Ok(Connection { io: Buffered::new(io), tls })
    }
}

impl Shared {
    /// TLS with whoever is at the other end of `stream`.
    async fn secure(
        &self,
        config: Arc<ClientConfig>,
        stream: Box<dyn ReadWrite>,
        host: &str,
        port: u16,
    ) -> io::Result<Box<dyn ReadWrite>> {
        let name = self.tls.server_name().unwrap_or(host).to_owned();
        let name = ServerName::try_from(name).map_err(io::Error::other)?;
        let secured = TlsConnector::from(config).connect(name, stream).await;
        let secured = secured.map_err(|error| {
            io::Error::new(error.kind(), format!("TLS with {host}:{port}: {error}"))
        })?;
        Ok(Box::new(secured))
    }

    /// Sees to it that watches hear of a new client certificate though no request comes by.
    fn look_at_files(self: &Arc<Self>) {
        if self.tls.has_files() && !self.looked_at.swap(true, Ordering::Relaxed) {
            task::spawn(look(Arc::downgrade(self), self.clock.clone()));
        }
    }
}

/// Ends with the transport.
async fn look(shared: Weak<Shared>, clock: SharedClock) {
    loop {
        clock.sleep(LOOK_AT_FILES).await;
        let Some(shared) = shared.upgrade() else { return };
        if let Err(error) = shared.tls.identity().await {
            log::error!("the client certificate: {error}");
        }
    }
}

/// Closes what is idle for too long, though no request comes by. Ends with the last of them.
async fn reap(shared: Weak<Shared>, clock: SharedClock) {
    loop {
        clock.sleep(IDLE_LIFETIME).await;
        let Some(shared) = shared.upgrade() else { return };
        let now = clock.monotonic();
        let mut idle = shared.idle();
        idle.connections.retain(|(_, since)| now < *since + IDLE_LIFETIME);
        if idle.connections.is_empty() {
            *idle = Idle::default();
            return;
        }
    }
}

fn probe_when_silent(tcp: &TcpStream) -> rustix::io::Result<()> {
    sockopt::set_socket_keepalive(tcp, true)?;
    sockopt::set_tcp_keepidle(tcp, KEEP_ALIVE_AFTER)?;
    sockopt::set_tcp_keepintvl(tcp, KEEP_ALIVE_EVERY)?;
    sockopt::set_tcp_keepcnt(tcp, KEEP_ALIVE_PROBES)
}

/// `forwarding`: the proxy that is sent the request itself.
fn head_of(request: &Request, length: usize, forwarding: Option<&Proxy>) -> io::Result<Vec<u8>> {
    let url = request.url();
    let host = url.host_str().unwrap_or_default();
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    let mut head = String::with_capacity(HEAD_CAPACITY);
    let mut push = |parts: &[&str]| parts.iter().for_each(|part| head.push_str(part));
    push(&[request.method().as_ref(), " "]);
    if forwarding.is_some() {
        push(&[url.scheme(), "://", host, &port]);
    }
    push(&[url.path()]);
    if let Some(query) = url.query() {
        push(&["?", query]);
    }
    push(&[" HTTP/1.1\r\nhost: ", host, &port, "\r\n"]);
    if let Some(value) = forwarding.and_then(Proxy::authorization) {
        push(&["proxy-authorization: ", &value, "\r\n"]);
    }
    for (name, values) in request.iter() {
        // http-types gives even an empty body a type, and the API server refuses it for discovery.
        if length == 0 && name.as_str() == "content-type" {
            continue;
        }
        for value in values {
            if value.as_str().contains(['\r', '\n']) {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("header {name}")));
            }
            push(&[name.as_str(), ": ", value.as_str(), "\r\n"]);
        }
    }
    let has_body = matches!(
        request.method(),
        http_types::Method::Post | http_types::Method::Put | http_types::Method::Patch
    );
    if length > 0 || has_body {
        push(&["content-length: ", &length.to_string(), "\r\n"]);
    }
    push(&["\r\n"]);
    Ok(head.into_bytes())
}

#[derive(Debug)]
enum Framing {
    Length(u64),
    Chunked(ChunkDecoder),
    UntilClose,
}

pub(super) struct Head {
    pub code: u16,
    status: StatusCode,
    /// The one header that anybody reads.
    retry_after: Option<String>,
    framing: Framing,
    /// Of the body; JSON, or whatever it is, goes unnamed.
    is_protobuf: bool,
    keep_alive: bool,
}

pub(super) async fn read_head(io: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Head> {
    loop {
        let head = read_one_head(io).await?;
        // 1xx are only on the way to the answer.
        if !matches!(head.code, 100..=199) {
            return Ok(head);
        }
    }
}

async fn read_one_head(io: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Head> {
    let mut bytes = Vec::new();
    loop {
        let there = io.fill_buf().await?;
        if there.is_empty() {
            let what = if bytes.is_empty() {
                "closed before an answer came"
            } else {
                "closed in the answer's head"
            };
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, what));
        }
        let before = bytes.len();
        bytes.extend_from_slice(there);
        let count = there.len();
        match parse_head(&bytes)? {
            Some((head, length)) => {
                io.consume(length - before);
                return Ok(head);
            }
            None if bytes.len() > HEAD_LIMIT => {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "the answer's head is too long",
                ));
            }
            None => io.consume(count),
        }
    }
}

fn parse_head(bytes: &[u8]) -> io::Result<Option<(Head, usize)>> {
    let bad =
        |what: String| io::Error::new(io::ErrorKind::InvalidData, format!("bad answer: {what}"));
    let mut headers = [httparse::EMPTY_HEADER; 96];
    let mut response = httparse::Response::new(&mut headers);
    let length = match response.parse(bytes).map_err(|error| bad(error.to_string()))? {
        httparse::Status::Partial => return Ok(None),
        httparse::Status::Complete(length) => length,
    };
    let code = response.code.unwrap_or_default();
    let status = StatusCode::try_from(code).or_else(|_| match code / 100 {
        2 => Ok(StatusCode::Ok),
        4 => Ok(StatusCode::BadRequest),
        5 => Ok(StatusCode::InternalServerError),
        _ => Err(bad(format!("status {code}"))),
    })?;
    let find = |name: &str| {
        let mut all =
            response.headers.iter().filter(|header| header.name.eq_ignore_ascii_case(name));
        all.next().map(|header| String::from_utf8_lossy(header.value).trim().to_ascii_lowercase())
    };
    let framing = match (find("transfer-encoding"), find("content-length")) {
        (Some(coding), _) if coding.ends_with("chunked") => Framing::Chunked(ChunkDecoder::new()),
        (Some(_), _) | (None, None) => Framing::UntilClose,
        (None, Some(length)) => {
            Framing::Length(length.parse().map_err(|_| bad(format!("content-length {length}")))?)
        }
    };
    let closes = find("connection").is_some_and(|value| value.contains("close"));
    let keep_alive =
        response.version == Some(1) && !closes && !matches!(framing, Framing::UntilClose);
    let retry_after = find("retry-after").filter(|value| value.is_ascii());
    let is_protobuf = response.headers.iter().any(|header| {
        header.name.eq_ignore_ascii_case("content-type")
            && header.value.starts_with(protobuf::MEDIA_TYPE.as_bytes())
    });
    Ok(Some((Head { code, status, retry_after, framing, is_protobuf, keep_alive }, length)))
}

/// Fails when the next piece takes longer than `limit`.
#[pin_project]
struct IdleLimit<R> {
    #[pin]
    reader: R,
    limit: Duration,
    /// When the next piece must be there; set while one is awaited. In a lock only to be `Sync`.
    deadline: Mutex<Option<Sleep>>,
    clock: SharedClock,
}

impl<R> IdleLimit<R> {
    fn new(reader: R, limit: Duration, clock: SharedClock) -> IdleLimit<R> {
        IdleLimit { reader, limit, deadline: Mutex::default(), clock }
    }
}

/// What was read, or the end of the time for it.
fn limited<T>(
    read: Poll<io::Result<T>>,
    deadline: &mut Mutex<Option<Sleep>>,
    limit: Duration,
    clock: &SharedClock,
    context: &mut Context<'_>,
) -> Poll<io::Result<T>> {
    let deadline = deadline.get_mut();
    if read.is_ready() {
        *deadline = None;
        return read;
    }
    let sleep = deadline.get_or_insert_with(|| clock.sleep(limit));
    ready!(sleep.as_mut().poll(context));
    Poll::Ready(Err(timed_out("the answer's body")))
}

impl<R: AsyncRead> AsyncRead for IdleLimit<R> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        output: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.project();
        let read = this.reader.poll_read(context, output);
        limited(read, this.deadline, *this.limit, this.clock, context)
    }
}

impl<R: AsyncBufRead> AsyncBufRead for IdleLimit<R> {
    fn poll_fill_buf(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let this = self.project();
        let read = this.reader.poll_fill_buf(context);
        limited(read, this.deadline, *this.limit, this.clock, context)
    }

    fn consume(self: Pin<&mut Self>, count: usize) {
        self.project().reader.consume(count);
    }
}

/// An answer's body. Read to its end, it gives the connection back to the pool; dropped before, it
/// closes it.
struct BodyReader {
    connection: Option<Connection>,
    framing: Framing,
    keep: bool,
    shared: Arc<Shared>,
    turn: Option<SemaphoreGuardArc>,
}

impl BodyReader {
    fn finish_if_done(&mut self) {
        let done = match &self.framing {
            Framing::Length(left) => *left == 0,
            Framing::Chunked(decoder) => decoder.is_done(),
            Framing::UntilClose => false,
        };
        if done
            && let Some(connection) = self.connection.take()
            && self.keep
        {
            self.shared.put_idle(connection);
        }
        if done {
            self.turn = None;
        }
    }
}

impl BodyReader {
    /// How many bytes of the body stand at the front of the connection's buffer; zero at the end.
    fn poll_data(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        loop {
            let Some(Connection { io, .. }) = self.connection.as_mut() else {
                return Poll::Ready(Ok(0));
            };
            let input = ready!(Pin::new(&mut *io).poll_fill_buf(context))?;
            if input.is_empty() {
                self.connection = None;
                return Poll::Ready(match self.framing {
                    Framing::UntilClose => Ok(0),
                    _ => Err(io::Error::new(
                        io::ErrorKind::UnexpectedEof,
                        "closed in the middle of the answer's body",
                    )),
                });
            }
            let Piece { coding, data } = match &mut self.framing {
                Framing::UntilClose => Piece { coding: 0, data: input.len() },
                Framing::Length(left) => Piece {
                    coding: 0,
                    data: input.len().min(usize::try_from(*left).unwrap_or(usize::MAX)),
                },
                Framing::Chunked(decoder) => decoder
                    .next(input)
                    .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?,
            };
            Pin::new(io).consume(coding);
            self.finish_if_done();
            if data > 0 {
                return Poll::Ready(Ok(data));
            }
        }
    }
}

impl AsyncBufRead for BodyReader {
    fn poll_fill_buf(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let this = self.get_mut();
        let data = ready!(this.poll_data(context))?;
        let buffer = this.connection.as_ref().map_or(&[][..], |open| open.io.buffer());
        Poll::Ready(Ok(&buffer[..data]))
    }

    fn consume(self: Pin<&mut Self>, count: usize) {
        let this = self.get_mut();
        if let Some(open) = this.connection.as_mut().filter(|_| count > 0) {
            Pin::new(&mut open.io).consume(count);
            match &mut this.framing {
                Framing::UntilClose => {}
                Framing::Length(left) => *left = left.saturating_sub(count as u64),
                Framing::Chunked(decoder) => decoder.took(count),
            }
            this.finish_if_done();
        }
    }
}

impl AsyncRead for BodyReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        output: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let data = ready!(self.as_mut().poll_fill_buf(context))?;
        let count = data.len().min(output.len());
        output[..count].copy_from_slice(&data[..count]);
        self.consume(count);
        Poll::Ready(Ok(count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_read_whole_or_not_at_all() {
        let text = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX: y\r\n\r\n5\r\n";
        let end = text.len() - 3;
        for cut in 0..end {
            assert!(parse_head(&text[..cut]).unwrap().is_none(), "cut at {cut}");
        }
        let (head, length) = parse_head(text).unwrap().unwrap();
        assert_eq!((head.code, length), (200, end));
        assert!(head.keep_alive && matches!(head.framing, Framing::Chunked(_)));
        for (text, keep) in [
            ("HTTP/1.1 409 Conflict\r\nContent-Length: 2\r\n\r\n", true),
            ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n", false),
            ("HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n", false),
            ("HTTP/1.1 200 OK\r\n\r\n", false),
        ] {
            let (head, _) = parse_head(text.as_bytes()).unwrap().unwrap();
            assert_eq!(head.keep_alive, keep, "{text}");
        }
        assert!(parse_head(b"NONSENSE\r\n\r\n").is_err());
    }

    #[test]
    fn an_idle_connection_is_closed_though_nobody_asks_for_it() {
        use crate::clock::FakeClock;
        use crate::objects::Timestamp;
        use futures_lite::AsyncReadExt;
        use futures_lite::future::{yield_now, zip};

        async_std::task::block_on(async {
            let listener = async_std::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let url = format!("http://{}/", listener.local_addr().unwrap());
            let clock = FakeClock::new(Timestamp::from_secs(0));
            let tls = TlsSource::new(super::super::config::Tls::default(), None).unwrap();
            let transport = Transport::new(tls, None, clock.clone(), Duration::from_secs(10));
            let request = Request::new(http_types::Method::Get, url.as_str());
            let serve = async {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut piece = [0; 1024];
                assert_ne!(stream.read(&mut piece).await.unwrap(), 0);
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
                stream
            };
            let (answer, mut server) = zip(transport.send(request), serve).await;
            drop(answer.unwrap());
            assert_eq!(transport.shared.idle().connections.len(), 1);
            for _ in 0..1_000_000 {
                if clock.sleepers() > 0 {
                    break;
                }
                yield_now().await;
            }
            assert_eq!(clock.sleepers(), 1, "whoever closes it waits");
            clock.advance(IDLE_LIFETIME);
            assert_eq!(server.read(&mut [0; 8]).await.unwrap(), 0, "it is closed");
            assert!(transport.shared.idle().connections.is_empty());
        });
    }

    #[test]
    fn a_silent_peer_is_probed() {
        async_std::task::block_on(async {
            let listener = async_std::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let tcp = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            probe_when_silent(&tcp).unwrap();
            assert!(sockopt::socket_keepalive(&tcp).unwrap());
            let times = [sockopt::tcp_keepidle(&tcp), sockopt::tcp_keepintvl(&tcp)];
            assert_eq!(times.map(Result::unwrap), [KEEP_ALIVE_AFTER, KEEP_ALIVE_EVERY]);
            assert_eq!(sockopt::tcp_keepcnt(&tcp).unwrap(), KEEP_ALIVE_PROBES);
        });
    }

    #[test]
    fn only_silence_counts_against_the_limit() {
        use crate::clock::FakeClock;
        use crate::objects::Timestamp;
        use futures_lite::AsyncReadExt;

        let clock = FakeClock::new(Timestamp::from_secs(0));
        let (mut server, body) = async_std::task::block_on(async {
            let listener = async_std::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let body = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            (listener.accept().await.unwrap().0, body)
        });
        let limit = Duration::from_secs(10);
        let mut limited = IdleLimit::new(body, limit, clock.clone());
        async_std::task::block_on(async {
            let mut piece = [0; 4];
            for _ in 0..3 {
                server.write_all(b"more").await.unwrap();
                limited.read_exact(&mut piece).await.unwrap();
                clock.advance(limit);
            }
            let mut read = Box::pin(limited.read(&mut piece));
            assert!(futures_lite::future::poll_once(&mut read).await.is_none());
            clock.advance(limit);
            let error = read.await.expect_err("nothing came for so long");
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        });
    }
}
