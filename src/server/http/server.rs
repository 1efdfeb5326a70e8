//! Accepting connections.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use async_io::Async;
use async_lock::Semaphore;
use futures_lite::future::yield_now;
use futures_lite::{AsyncRead, AsyncWrite};
use rustix::io::Errno;

use super::connection::{Connection, Serving};
use super::connections::{Connections, Phase};
use super::descriptors::Reserve;
use super::{Chain, Handler};
use crate::clock::SharedClock;
use crate::server::tls::Tls;
use crate::task::{StopToken, Task, spawn};

/// The first and the longest wait when no connection can be accepted.
const ACCEPT_RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// Limits for clients.
#[derive(Clone, Copy, Debug)]
pub struct Guard {
    /// Open connections. There is always room for a new one: one of the origin with the most
    /// connections is closed for it.
    pub connections: usize,
    /// Bytes of a request's head, and of each buffer of a connection; `None`: hyper's 400 KiB.
    pub head_bytes: Option<usize>,
    /// Descriptors that are reserved for connections.
    pub descriptors: usize,
    /// How long a response in chunks may last; `None`: without a limit.
    pub stream_limit: Option<Duration>,
}

impl Guard {
    /// For a port that untrusted clients reach. A connection costs up to 70 KiB, most of it for a
    /// long head; all of them cost 5 MB. Managers and kubelets have few clients: probes,
    /// monitoring, people.
    pub const UNTRUSTED: Guard =
        Guard { connections: 64, head_bytes: Some(16 << 10), descriptors: 8, stream_limit: None };

    /// For a server whose clients are trusted.
    pub const NONE: Guard =
        Guard { connections: usize::MAX, head_bytes: None, descriptors: 0, stream_limit: None };
}

/// A running server. Dropping it does not stop it.
pub struct Server {
    address: SocketAddr,
    accepting: Task<()>,
}

impl Server {
    /// Binds `address` (port 0: any free port) and serves trusted clients until `stop`, then gives
    /// running requests two seconds to end.
    pub async fn start(
        address: SocketAddr,
        tls: Option<Tls>,
        handler: Handler,
        clock: SharedClock,
        stop: StopToken,
    ) -> io::Result<Server> {
        Server::on(TcpListener::bind(address)?, tls, handler, Guard::NONE, clock, stop)
    }

    /// Serves the clients that connect to `listener`, within the limits of `guard`, until `stop`.
    pub fn on(
        listener: TcpListener,
        tls: Option<Tls>,
        handler: Handler,
        guard: Guard,
        clock: SharedClock,
        stop: StopToken,
    ) -> io::Result<Server> {
        let address = listener.local_addr()?;
        let serving = Serving::new(tls, handler, guard, clock, stop);
        let listener = Async::new(listener)?;
        Ok(Server { address, accepting: spawn(Arc::new(serving).accept(listener)) })
    }

    /// Serves one client over `stream`, without TLS, until the connection ends. Dropping the future
    /// closes it.
    pub async fn serve<IO>(stream: IO, handler: Handler, guard: Guard, clock: SharedClock)
    where
        IO: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let serving = Arc::new(Serving::new(None, handler, guard, clock, StopToken::new()));
        let slot = serving.connections.admit(Ipv4Addr::LOCALHOST.into(), Phase::Head);
        Connection::new(&serving, slot).serve(stream, Chain::default()).await;
    }

    /// The address that it listens on, with its real port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until the server has stopped and its connections are closed.
    pub async fn join(self) {
        self.accepting.await;
    }
}

impl Serving {
    /// Makes the state that all connections of a server share.
    fn new(
        tls: Option<Tls>,
        handler: Handler,
        guard: Guard,
        clock: SharedClock,
        stop: StopToken,
    ) -> Serving {
        Serving {
            connections: Connections::new(guard.connections, guard.stream_limit, clock.clone()),
            reserve: Reserve::new(guard.descriptors),
            handshakes: Semaphore::new(1),
            head_bytes: guard.head_bytes,
            tls,
            handler,
            clock,
            stop,
        }
    }

    /// Accepts connections until the stop, then waits until all have ended.
    async fn accept(self: Arc<Self>, listener: Async<TcpListener>) {
        // Each connection holds a sender: the channel closes when the last has ended.
        let (open, all_closed) = async_channel::bounded::<()>(1);
        let mut wait = ACCEPT_RETRY.0;
        loop {
            if !self.reserve.refill() {
                // The next connection needs the descriptor of an old one, which ends when its task
                // runs.
                self.connections.evict();
                yield_now().await;
            }
            match self.stop.unless_stopped(self.next(&listener)).await {
                None => break,
                Some(Ok((stream, address))) => {
                    wait = ACCEPT_RETRY.0;
                    let (serving, open) = (self.clone(), open.clone());
                    let phase = if self.tls.is_some() { Phase::Handshake } else { Phase::Head };
                    let slot = self.connections.admit(address, phase);
                    spawn(async move {
                        Connection::new(&serving, slot).run(stream).await;
                        serving.reserve.refill();
                        drop(open);
                    });
                    // Many connections may wait to be accepted; other tasks run in between.
                    yield_now().await;
                }
                // The client has already disconnected.
                Some(Err(error)) if error.kind() == io::ErrorKind::ConnectionAborted => (),
                Some(Err(error)) => {
                    // Only the first of several failures in a row is logged.
                    let first = wait == ACCEPT_RETRY.0;
                    let level = if first { log::Level::Warn } else { log::Level::Debug };
                    log::log!(level, "accepting a connection: {error}");
                    self.stop.unless_stopped(self.clock.sleep(wait)).await;
                    wait = (wait * 2).min(ACCEPT_RETRY.1);
                }
            }
        }
        drop(listener);
        drop(open);
        // Each connection ends by itself after the stop.
        while all_closed.recv().await.is_ok() {}
    }

    /// Accepts the next connection. Without a free descriptor the kernel returns an error even when
    /// no client waits; so this frees one of the reserve first, and then waits for a client.
    async fn next(&self, listener: &Async<TcpListener>) -> io::Result<(Async<TcpStream>, IpAddr)> {
        loop {
            match listener.get_ref().accept() {
                Ok((stream, peer)) => return Ok((Async::new(stream)?, peer.ip())),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.reserve.refill();
                    listener.readable().await?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
                Err(error) if is_out_of_descriptors(&error) && self.reserve.release() => (),
                Err(error) => return Err(error),
            }
        }
    }
}

fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

#[cfg(test)]
mod tests {
    use futures_lite::future::{block_on, poll_once};
    use futures_lite::{AsyncReadExt, AsyncWriteExt, FutureExt, stream};
    use futures_rustls::TlsConnector;
    use rustls::pki_types::PrivateKeyDer;

    use super::*;
    use crate::clock::{Clock, FakeClock, SystemClock};
    use crate::objects::Timestamp;
    use crate::server::http::{Body, Bytes};
    use crate::server::tls::TlsOptions;
    use crate::server::{Request, Response, handler};

    type Client = Async<TcpStream>;

    async fn connect(address: SocketAddr) -> io::Result<Client> {
        Async::<TcpStream>::connect(address).await
    }

    async fn exchange(address: SocketAddr, request: &str) -> String {
        let mut connection = connect(address).await.unwrap();
        connection.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        // A cut connection may cause an error; only the bytes before it matter.
        let _cut = connection.read_to_end(&mut answer).await;
        String::from_utf8_lossy(&answer).into_owned()
    }

    #[test]
    fn server_answers_streams_survives_panics_and_stops() {
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
            // An idle connection does not delay the stop.
            let idle = connect(address).await.unwrap();
            stop.stop();
            server.join().await;
            assert!(connect(address).await.is_err());
            drop(idle);
        });
    }

    #[test]
    fn client_certificate_reaches_the_handler_over_tls() {
        let own = rcgen::generate_simple_self_signed(["me".to_string()]).unwrap();
        let own_der = own.cert.der().clone();
        block_on(async {
            let tls = Tls::new(TlsOptions::default()).unwrap();
            let mut roots = rustls::RootCertStore::empty();
            roots.add(tls.certificate().unwrap()).unwrap();
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
            let connect_tls = async || {
                let socket = connect(server.address()).await.unwrap();
                let name = "localhost".try_into().unwrap();
                TlsConnector::from(Arc::new(config.clone())).connect(name, socket).await.unwrap()
            };
            let (mut stream, mut answer) = (connect_tls().await, String::new());
            for part in ["GET /healthz?ver", "bose HTTP/1.0\r\nhost: x\r\n", "\r\n"] {
                stream.write_all(part.as_bytes()).await.unwrap();
            }
            stream.read_to_string(&mut answer).await.unwrap();
            assert!(answer.starts_with("HTTP/1.0 201 "), "{answer}");
            assert!(answer.ends_with("\r\n\r\n/healthz verbose true"), "{answer}");
            stop.stop();
            server.join().await;
        });
    }

    #[test]
    fn a_client_may_leave_http() {
        let echo: Handler = Arc::new(|request| {
            Box::pin(async move {
                let Some(upgrade) = request.upgrade else { return Response::text(400, "stay\n") };
                let echoing = spawn(async move {
                    let connection = upgrade.connection().await.expect("a connection");
                    let (read, mut write) = futures_lite::io::split(connection);
                    let copied = futures_lite::io::copy(read, &mut write).await;
                    copied.and(write.close().await).expect("an end");
                });
                drop(echoing);
                let granted = Response::text(101, "").with_header(hyper::header::UPGRADE, "echo");
                granted.with_header(hyper::header::CONNECTION, "Upgrade")
            })
        });
        block_on(async {
            let stop = StopToken::new();
            let address = SocketAddr::from(([127, 0, 0, 1], 0));
            let clock = SystemClock::shared();
            let server = Server::start(address, None, echo, clock, stop.clone()).await.unwrap();
            let plain = exchange(server.address(), "GET / HTTP/1.0\r\n\r\n").await;
            assert!(plain.starts_with("HTTP/1.0 400 "), "{plain}");
            let mut connection = connect(server.address()).await.unwrap();
            let request =
                "POST /x HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n";
            // The first bytes come with the head.
            connection.write_all(format!("{request}ab").as_bytes()).await.unwrap();
            // The server stops meanwhile: the connection is no longer its own.
            let mut answer = Vec::new();
            while !answer.ends_with(b"\r\n\r\nab") {
                let mut bytes = [0; 512];
                let read = connection.read(&mut bytes).await.unwrap();
                assert_ne!(read, 0, "closed");
                answer.extend_from_slice(&bytes[..read]);
            }
            let answer = String::from_utf8(answer).unwrap().to_ascii_lowercase();
            assert!(answer.starts_with("http/1.1 101 "), "{answer}");
            assert!(!answer.contains("content-length"), "{answer}");
            stop.stop();
            server.join().await;
            connection.write_all(b"cd").await.unwrap();
            connection.get_ref().shutdown(std::net::Shutdown::Write).unwrap();
            let mut rest = String::new();
            connection.read_to_string(&mut rest).await.unwrap();
            assert_eq!(rest, "cd");
        });
    }

    /// A server of `guard`, over TLS or plain, and its clock.
    fn serve(guard: Guard, is_tls: bool) -> (Arc<FakeClock>, Server, StopToken) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let tls = is_tls.then(|| Tls::new(TlsOptions::default()).unwrap());
        let (clock, stop) = (FakeClock::new(Timestamp::from_secs(0)), StopToken::new());
        let ok = handler(|_| Response::text(200, "ok"));
        let server = Server::on(listener, tls, ok, guard, clock.clone(), stop.clone()).unwrap();
        (clock, server, stop)
    }

    const GET: &str = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n";

    /// Sends a request on a connection that stays open.
    async fn request_on(connection: &mut Client) -> String {
        connection.write_all(GET.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\nok") {
            let mut bytes = [0; 512];
            let read = connection.read(&mut bytes).await.unwrap();
            assert_ne!(read, 0, "closed");
            answer.extend_from_slice(&bytes[..read]);
        }
        String::from_utf8(answer).unwrap()
    }

    /// The time by which the clock must advance until the server closes the connection.
    async fn closed_after(connection: &mut Client, clock: &FakeClock) -> Duration {
        let (since, mut byte) = (clock.monotonic(), [0]);
        loop {
            if let Some(read) = poll_once(connection.read(&mut byte)).await {
                assert_eq!(read.unwrap(), 0);
                return clock.monotonic() - since;
            }
            // Without a sleeper the server has not set its timer yet, or has closed already.
            if clock.sleepers() > 0 {
                clock.advance(Duration::from_millis(250));
            }
            yield_now().await;
        }
    }

    #[test]
    fn untrusted_clients_have_time_limits() {
        block_on(async {
            let (clock, server, stop) = serve(Guard::UNTRUSTED, false);
            let mut slow = connect(server.address()).await.unwrap();
            slow.write_all(b"GET /heal").await.unwrap();
            let closed = closed_after(&mut slow, &clock).await;
            assert!(closed >= Duration::from_secs(31), "head: {closed:?}");

            let mut idle = connect(server.address()).await.unwrap();
            request_on(&mut idle).await;
            clock.advance(Duration::from_secs(60));
            request_on(&mut idle).await;
            let closed = closed_after(&mut idle, &clock).await;
            assert!(closed >= Duration::from_secs(89), "idle: {closed:?}");
            stop.stop();
            server.join().await;

            let (clock, server, stop) = serve(Guard::UNTRUSTED, true);
            let mut silent = connect(server.address()).await.unwrap();
            let closed = closed_after(&mut silent, &clock).await;
            assert!(closed >= Duration::from_secs(9), "handshake: {closed:?}");
            stop.stop();
            server.join().await;
        });
    }

    /// The bytes of an answer, as long as the server holds them.
    struct Held(Arc<Vec<u8>>);

    impl AsRef<[u8]> for Held {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }

    #[test]
    fn a_client_that_does_not_read_its_response_has_a_time_limit() {
        block_on(async {
            // Longer than what the sockets hold.
            let long = Arc::new(vec![b'x'; 64 << 20]);
            let (clock, stop) = (FakeClock::new(Timestamp::from_secs(0)), StopToken::new());
            let held = long.clone();
            let answer = handler(move |_| Response {
                body: Body::Full(Bytes::from_owner(Held(held.clone()))),
                ..Response::text(200, "")
            });
            let server = Server::on(
                TcpListener::bind("127.0.0.1:0").unwrap(),
                None,
                answer,
                Guard::UNTRUSTED,
                clock.clone(),
                stop.clone(),
            )
            .unwrap();
            let mut deaf = connect(server.address()).await.unwrap();
            deaf.write_all(GET.as_bytes()).await.unwrap();
            deaf.read_exact(&mut [0]).await.unwrap();
            let since = clock.monotonic();
            let closed = async {
                // The handler and this test have one each.
                while Arc::strong_count(&long) > 2 {
                    // Without a sleeper the server has not set its timer yet, or has closed
                    // already.
                    if clock.sleepers() > 0 {
                        clock.advance(Duration::from_millis(250));
                    }
                    yield_now().await;
                }
            };
            let never = async {
                SystemClock::shared().sleep(Duration::from_secs(60)).await;
                panic!("a client that does not read keeps its connection");
            };
            closed.or(never).await;
            let closed = clock.monotonic() - since;
            assert!(closed >= Duration::from_secs(89), "response: {closed:?}");
            stop.stop();
            server.join().await;
        });
    }

    #[test]
    fn new_connection_takes_the_place_of_an_old_one() {
        block_on(async {
            let guard = Guard { connections: 2, ..Guard::UNTRUSTED };
            let (clock, server, stop) = serve(guard, false);
            let mut open = Vec::new();
            for _ in 0..10 {
                let mut new = connect(server.address()).await.unwrap();
                request_on(&mut new).await;
                clock.advance(Duration::from_secs(1));
                open.push(new);
            }
            let mut last = connect(server.address()).await.unwrap();
            request_on(&mut last).await;
            while open.len() > 1 {
                let mut still_open = Vec::new();
                for mut connection in open {
                    match poll_once(connection.read(&mut [0])).await {
                        Some(read) => assert_eq!(read.unwrap_or_default(), 0),
                        None => still_open.push(connection),
                    }
                }
                open = still_open;
                yield_now().await;
            }
            request_on(&mut last).await;
            request_on(&mut open[0]).await;
            stop.stop();
            server.join().await;
        });
    }

    #[test]
    fn long_heads_are_refused() {
        block_on(async {
            let (_, server, stop) = serve(Guard::UNTRUSTED, false);
            let head = |bytes: usize| {
                let value = "x".repeat(bytes);
                format!("GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-A: {value}\r\n\r\n")
            };
            let short = exchange(server.address(), &head(12 << 10)).await;
            assert!(short.starts_with("HTTP/1.1 200 "), "{short}");
            let mut long = connect(server.address()).await.unwrap();
            // The server may close before everything is sent.
            let _refused = long.write_all(head(1 << 20).as_bytes()).await;
            let mut answer = Vec::new();
            let _cut = long.read_to_end(&mut answer).await;
            let answer = String::from_utf8_lossy(&answer);
            assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431 "), "{answer}");
            stop.stop();
            server.join().await;
        });
    }

    #[test]
    fn plain_http_on_a_tls_port_is_answered_and_closed_without_a_reset() {
        block_on(async {
            let (_, server, stop) = serve(Guard::UNTRUSTED, true);
            let long = format!("GET / HTTP/1.1\r\nhost: {}\r\n\r\n", "x".repeat(100_000));
            for request in [GET, &long] {
                let mut connection = connect(server.address()).await.unwrap();
                connection.write_all(request.as_bytes()).await.unwrap();
                let mut answer = String::new();
                connection.read_to_string(&mut answer).await.unwrap();
                let text = "Client sent an HTTP request to an HTTPS server.\n";
                assert_eq!(answer, format!("HTTP/1.0 400 Bad Request\r\n\r\n{text}"));
                // A reset would show as an error.
                let status =
                    connection.write_all(b"more").await.and(connection.read(&mut [0]).await);
                assert_eq!(status.unwrap(), 0);
            }
            stop.stop();
            server.join().await;
        });
    }
}
