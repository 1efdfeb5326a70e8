//! A connection to a server, for one request.

use std::error::Error as StdError;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_io::Async;
use futures_lite::future::or;
use futures_lite::{AsyncRead, AsyncWrite, Stream};
use futures_rustls::TlsConnector;
use futures_rustls::rustls::ClientConfig;
use futures_rustls::rustls::pki_types::{InvalidDnsNameError, ServerName};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::client::conn::http1::{Builder, Connection};
use hyper::http::response::Parts;
use smol_hyper::rt::FuturesIo;

use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::server::http::{Bytes, RequestBody, Socket, set_options};
use kube_controller_manager::task;

/// The time limits of Go's transport.
const DIAL: Duration = Duration::from_secs(30);
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Bytes of an answer that are read before they are taken.
const BUFFER_BYTES: usize = 64 << 10;

/// A host, which is a name or an address without brackets, and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    pub host: String,
    pub port: u16,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// Why a server has not answered. The text has its causes and is Go's: clients see it.
#[derive(Debug)]
pub enum Error {
    Lookup {
        host: String,
        source: io::Error,
    },
    Dial {
        address: SocketAddr,
        source: io::Error,
    },
    Name {
        source: InvalidDnsNameError,
    },
    Handshake {
        source: io::Error,
    },
    HandshakeTimeout,
    Exchange {
        source: hyper::Error,
    },
    /// The connection has ended before an answer.
    Ended,
    Redirect,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Lookup { host, source } => {
                write!(f, "dial tcp: lookup {host}: {}", words(source))
            }
            Error::Dial { address, source } => write!(f, "dial tcp {address}: {}", words(source)),
            Error::Name { source } => write!(f, "tls: {source}"),
            Error::Handshake { source } => f.write_str(&words(source)),
            Error::HandshakeTimeout => f.write_str("net/http: TLS handshake timeout"),
            Error::Exchange { source } if !source.is_incomplete_message() => {
                let cause = source.source().and_then(|cause| cause.downcast_ref());
                f.write_str(&cause.map_or_else(|| source.to_string(), words))
            }
            Error::Exchange { .. } | Error::Ended => f.write_str("EOF"),
            Error::Redirect => f.write_str("redirects forbidden"),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Error::Lookup { source, .. }
            | Error::Dial { source, .. }
            | Error::Handshake { source } => Some(source),
            Error::Name { source } => Some(source),
            Error::Exchange { source } => Some(source),
            Error::HandshakeTimeout | Error::Ended | Error::Redirect => None,
        }
    }
}

/// Describes an error of a socket in Go's words.
fn words(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connect: connection refused".to_owned(),
        io::ErrorKind::HostUnreachable => "connect: no route to host".to_owned(),
        io::ErrorKind::NetworkUnreachable => "connect: network is unreachable".to_owned(),
        io::ErrorKind::ConnectionReset => "read: connection reset by peer".to_owned(),
        io::ErrorKind::TimedOut => "i/o timeout".to_owned(),
        io::ErrorKind::UnexpectedEof => "EOF".to_owned(),
        _ => error.to_string(),
    }
}

/// TLS to a server that is asked for `name`.
pub struct Tls<'a> {
    pub config: &'a Arc<ClientConfig>,
    pub name: &'a str,
}

/// Where and how a server is reached.
pub struct Backend<'a> {
    pub address: &'a Address,
    pub tls: Option<Tls<'a>>,
    pub clock: &'a SharedClock,
}

impl Backend<'_> {
    /// Connects and sends one request; the answer's body is read on demand.
    ///
    /// # Errors
    /// When there is no connection, or no answer.
    pub async fn send(&self, request: hyper::Request<Outgoing>) -> Result<Answer, Error> {
        exchange(self.connect().await?, request).await
    }

    /// Connects to the first address that accepts, with TLS if wanted. Each attempt and the
    /// handshake have a time limit.
    async fn connect(&self) -> Result<Box<dyn ByteStream>, Error> {
        // Always replaced: `lookup` returns an address at least.
        let mut socket = Err(Error::Ended);
        for address in lookup(self.address).await? {
            socket = self.dial(address).await;
            if socket.is_ok() {
                break;
            }
        }
        let socket = socket?;
        let Some(tls) = &self.tls else { return Ok(Box::new(socket)) };
        let name = ServerName::try_from(tls.name.to_owned());
        let name = name.map_err(|source| Error::Name { source })?;
        let connector = TlsConnector::from(tls.config.clone());
        let secured = async {
            let stream = connector.connect(name, socket).await;
            stream.map_err(|source| Error::Handshake { source })
        };
        let late = async {
            self.clock.sleep(HANDSHAKE).await;
            Err(Error::HandshakeTimeout)
        };
        Ok(Box::new(or(secured, late).await?))
    }

    /// Connects to one address, in [`DIAL`] at most.
    async fn dial(&self, address: SocketAddr) -> Result<Socket, Error> {
        let late = async {
            self.clock.sleep(DIAL).await;
            Err(io::ErrorKind::TimedOut.into())
        };
        let connected = or(Async::<TcpStream>::connect(address), late).await;
        let connected = connected.and_then(|socket| {
            set_options(socket.get_ref())?;
            Ok(Socket(socket))
        });
        connected.map_err(|source| Error::Dial { address, source })
    }
}

/// Sends the request, and returns the answer once its head has arrived. Its body then drives the
/// connection.
async fn exchange(
    io: Box<dyn ByteStream>,
    request: hyper::Request<Outgoing>,
) -> Result<Answer, Error> {
    let failed = |source| Error::Exchange { source };
    let mut builder = Builder::new();
    builder.max_buf_size(BUFFER_BYTES);
    let (mut sender, mut connection) =
        builder.handshake(FuturesIo::new(io)).await.map_err(failed)?;
    let mut answer = pin!(sender.send_request(request));
    let mut is_over = false;
    let answer = poll_fn(|cx| {
        // Its errors reach the answer.
        is_over = is_over || connection.poll_without_shutdown(cx).is_ready();
        match answer.as_mut().poll(cx) {
            Poll::Pending if is_over => Poll::Ready(Err(Error::Ended)),
            polled => polled.map(|answer| answer.map_err(failed)),
        }
    });
    let (head, body) = answer.await?.into_parts();
    Ok(Answer { head, body: Received { connection, is_over, body } })
}

/// Resolves a host's name, on a thread that may block; an IP address needs no lookup.
async fn lookup(address: &Address) -> Result<Vec<SocketAddr>, Error> {
    if let Ok(ip) = address.host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, address.port)]);
    }
    let (host, port) = (address.host.clone(), address.port);
    let found = task::blocking(move || (host.as_str(), port).to_socket_addrs()).await;
    let host = address.host.clone();
    let found = found.map_err(|source| Error::Lookup { host: host.clone(), source })?;
    let found: Vec<SocketAddr> = found.collect();
    if found.is_empty() {
        let source = io::Error::new(io::ErrorKind::NotFound, "no such host");
        return Err(Error::Lookup { host, source });
    }
    Ok(found)
}

/// The body of a request, passed on as it arrives.
pub struct Outgoing(RequestBody);

impl Outgoing {
    pub fn new(body: RequestBody) -> Outgoing {
        Outgoing(body)
    }

    pub fn empty() -> Outgoing {
        Outgoing(RequestBody::Full(Bytes::new()))
    }
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<hyper::Result<Frame<Bytes>>>> {
        match &mut self.0 {
            RequestBody::Incoming(body) => Pin::new(body).poll_frame(cx),
            RequestBody::Full(bytes) if bytes.is_empty() => Poll::Ready(None),
            RequestBody::Full(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            RequestBody::Incoming(body) => body.is_end_stream(),
            RequestBody::Full(bytes) => bytes.is_empty(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            RequestBody::Incoming(body) => body.size_hint(),
            RequestBody::Full(bytes) => SizeHint::with_exact(bytes.len() as u64),
        }
    }
}

/// Bytes in both directions.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for S {}

/// A connection that has switched to another protocol. Closing it ends its outgoing half.
pub struct Switched {
    io: Box<dyn ByteStream>,
    /// Bytes that were read together with the head of the answer.
    read: Bytes,
}

impl AsyncRead for Switched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        if self.read.is_empty() {
            return Pin::new(&mut self.io).poll_read(cx, buf);
        }
        let count = self.read.len().min(buf.len());
        let part = self.read.split_to(count);
        buf[..count].copy_from_slice(&part);
        Poll::Ready(Ok(count))
    }
}

impl AsyncWrite for Switched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_close(cx)
    }
}

pub struct Answer {
    pub head: Parts,
    pub body: Received,
}

/// The body of an answer. It holds the connection, which is used only while the body is read:
/// dropping it ends both.
pub struct Received {
    connection: Connection<FuturesIo<Box<dyn ByteStream>>, Outgoing>,
    is_over: bool,
    body: Incoming,
}

impl Received {
    fn poll_connection(&mut self, cx: &mut Context<'_>) {
        // Its errors reach the body.
        self.is_over = self.is_over || self.connection.poll_without_shutdown(cx).is_ready();
    }

    /// Returns the connection after an answer that has changed the protocol.
    ///
    /// # Errors
    /// When the connection breaks before it.
    pub async fn switched(mut self) -> Result<Switched, Error> {
        if !self.is_over {
            let ended = poll_fn(|cx| self.connection.poll_without_shutdown(cx)).await;
            ended.map_err(|source| Error::Exchange { source })?;
        }
        let parts = self.connection.into_parts();
        Ok(Switched { io: parts.io.into_inner(), read: parts.read_buf })
    }
}

impl Stream for Received {
    type Item = io::Result<Bytes>;

    fn poll_next(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Bytes>>> {
        self.poll_connection(cx);
        loop {
            return match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Pending => Poll::Pending,
                Poll::Ready(None) => Poll::Ready(None),
                Poll::Ready(Some(Err(error))) => Poll::Ready(Some(Err(io::Error::other(error)))),
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(bytes) => Poll::Ready(Some(Ok(bytes))),
                    // Trailers are not passed on.
                    Err(_) => continue,
                },
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use futures_lite::future::{block_on, poll_once, zip};
    use futures_lite::{AsyncReadExt, AsyncWriteExt, StreamExt};

    use super::*;

    fn get() -> hyper::Request<Outgoing> {
        hyper::Request::builder().uri("/").header("host", "x").body(Outgoing::empty()).unwrap()
    }

    #[test]
    fn an_answer_that_is_not_read_is_not_received() {
        block_on(async {
            let (near, mut far) = Async::<UnixStream>::pair().unwrap();
            let head = b"HTTP/1.1 200 OK\r\ncontent-length: 67108864\r\n\r\n";
            let answered = zip(exchange(Box::new(near), get()), far.write_all(head));
            let (answer, sent) = answered.await;
            sent.unwrap();
            let mut body = answer.unwrap().body;
            let chunk = [b'x'; 4096];
            far.write_all(&chunk).await.unwrap();
            assert!(!body.next().await.unwrap().unwrap().is_empty());
            let (mut sent, mut refused) = (0, 0);
            // The socket has buffers too; without a limit all would be taken.
            while sent < 64 << 20 && refused < 3 {
                match poll_once(far.write(&chunk)).await {
                    Some(count) => (sent, refused) = (sent + count.unwrap(), 0),
                    None => refused += 1,
                }
            }
            assert!(sent < 8 << 20, "{sent}");
            // It continues with the reader.
            let mut read = 0;
            while read < sent {
                read += body.next().await.unwrap().unwrap().len();
            }
            drop(body);
            // Only the request was sent.
            let mut request = Vec::new();
            let _end = far.read_to_end(&mut request).await;
            assert!(request.starts_with(b"GET / HTTP/1.1\r\n"));
        });
    }

    #[test]
    fn a_connection_that_ends_without_an_answer_is_an_error() {
        block_on(async {
            for start in [&b""[..], b"HTTP/1.1 200"] {
                let (near, mut far) = Async::<UnixStream>::pair().unwrap();
                let end = async move {
                    let mut head = vec![0; b"GET / HTTP/1.1\r\nhost: x\r\n\r\n".len()];
                    far.read_exact(&mut head).await.unwrap();
                    far.write_all(start).await.unwrap();
                };
                let (answer, ()) = zip(exchange(Box::new(near), get()), end).await;
                assert_eq!(answer.err().unwrap().to_string(), "EOF");
            }
        });
    }
}
