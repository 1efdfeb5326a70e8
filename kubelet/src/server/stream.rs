//! Streams to containers: the request is sent to the runtime's own server, and once both sides have left
//! HTTP, bytes are copied. The protocols in them are not read here.
//! Upstream: `apimachinery/pkg/util/proxy.UpgradeAwareHandler`.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, COOKIE, TRANSFER_ENCODING};
use hyper::{StatusCode, Uri};
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::server::http::{Socket, Upgrade, Upgraded, remove_credentials};
use kube_controller_manager::server::{Request, Response};
use kube_controller_manager::task::{self, StopToken};
use smol_hyper::rt::FuturesIo;
use url::Url;

use super::copy::{self, End};
use crate::causes::chain;
use crate::http;

/// Bytes of the runtime's refusal that are passed on.
const REFUSAL_BYTES: usize = 64 << 10;

/// How streams end.
#[derive(Clone)]
pub struct StreamLimits {
    /// Streams without a byte in this time are closed.
    pub idle: Duration,
    pub clock: SharedClock,
    pub stop: StopToken,
}

/// Why there is no stream. The texts are upstream's.
#[derive(Debug)]
pub enum StreamError {
    /// The client does not ask to leave HTTP.
    NotUpgrade,
    /// The runtime's answer is not the URL of its server.
    NotUrl {
        url: String,
    },
    /// The runtime's server cannot be connected to.
    Dial(http::Error),
    /// The runtime's server does not answer.
    Exchange(hyper::Error),
    Request(hyper::http::Error),
    /// The runtime's server answers neither with an upgrade nor with an error.
    Status(StatusCode),
}

impl fmt::Display for StreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StreamError::NotUpgrade => f.write_str("Upgrade request required"),
            StreamError::NotUrl { url } => {
                write!(f, "the runtime's address of streams is not http://HOST:PORT/PATH: {url:?}")
            }
            StreamError::Dial(_) => f.write_str("error dialing backend"),
            StreamError::Exchange(_) | StreamError::Request(_) => {
                f.write_str("error sending request")
            }
            StreamError::Status(status) => {
                write!(f, "invalid upgrade response: status code {}", status.as_u16())
            }
        }
    }
}

impl StdError for StreamError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            StreamError::Dial(error) => Some(error),
            StreamError::Exchange(error) => Some(error),
            StreamError::Request(error) => Some(error),
            _ => None,
        }
    }
}

/// Passes a request on to the runtime's server at `url`. With its consent, bytes are copied until one
/// side ends; its refusal is passed on.
///
/// # Errors
/// There is no stream, and no refusal of the runtime's server.
pub async fn proxy(
    mut request: Request,
    url: &str,
    limits: &StreamLimits,
) -> Result<Response, StreamError> {
    let upgrade = request.upgrade.take().ok_or(StreamError::NotUpgrade)?;
    let answer = exchange(request, url).await?;
    let status = answer.status();
    if status == StatusCode::SWITCHING_PROTOCOLS {
        return Ok(answer_upgrade(answer, upgrade, limits));
    }
    match status.is_client_error() || status.is_server_error() {
        true => Ok(refusal(answer).await),
        false => Err(StreamError::Status(status)),
    }
}

/// Sends the request to the runtime's server, and returns its answer.
async fn exchange(request: Request, url: &str) -> Result<hyper::Response<Incoming>, StreamError> {
    let not_url = || StreamError::NotUrl { url: url.to_owned() };
    let parsed = Url::parse(url).map_err(|_| not_url())?;
    let host = parsed.host_str().filter(|_| parsed.scheme() == "http").ok_or_else(not_url)?;
    let port = parsed.port_or_known_default().ok_or_else(not_url)?;
    let query = parsed.query().map(|query| format!("?{query}")).unwrap_or_default();
    let target: Uri = (parsed.path().to_owned() + &query).parse().map_err(|_| not_url())?;
    let stream = http::connect(host.trim_matches(['[', ']']), port).await;
    let stream = stream.map_err(StreamError::Dial)?;
    if let Err(error) = stream.get_ref().set_nodelay(true) {
        log::debug!("set_nodelay: {error}");
    }
    let (mut sender, connection) =
        http1::handshake(FuturesIo::new(Socket(stream))).await.map_err(StreamError::Exchange)?;
    // It ends with its sender, or gives the connection away.
    drop(task::spawn(async move {
        if let Err(error) = connection.with_upgrades().await {
            log::debug!("stream to the runtime: {error}");
        }
    }));
    let mut passed = hyper::Request::builder()
        .method(request.method)
        .uri(target)
        .body(Empty::<Bytes>::new())
        .map_err(StreamError::Request)?;
    *passed.headers_mut() = request.headers;
    // The runtime needs no credentials of clients, and gets no body.
    remove_credentials(passed.headers_mut());
    for header in [COOKIE, CONTENT_LENGTH, TRANSFER_ENCODING] {
        passed.headers_mut().remove(header);
    }
    sender.send_request(passed).await.map_err(StreamError::Exchange)
}

/// Answers with the runtime's consent to leave HTTP. Bytes are copied once the client has it.
fn answer_upgrade(
    mut answer: hyper::Response<Incoming>,
    upgrade: Upgrade,
    limits: &StreamLimits,
) -> Response {
    let headers = std::mem::take(answer.headers_mut());
    let limits = limits.clone();
    drop(task::spawn(async move {
        let streaming = async {
            let client = upgrade.connection().await?;
            let runtime = hyper::upgrade::on(answer).await.map_err(std::io::Error::other)?;
            Ok(copy::copy(client, Upgraded::from(runtime), limits.idle, &limits.clock).await)
        };
        match limits.stop.unless_stopped(streaming).await {
            None | Some(Ok(End::Closed)) => {}
            Some(Ok(End::Broken(error)) | Err(error)) => log::debug!("stream: {error}"),
            Some(Ok(End::Idle(limit))) => log::info!("stream closed: silent for {limit:?}"),
        }
    }));
    let mut granted = Response::text(StatusCode::SWITCHING_PROTOCOLS.as_u16(), "");
    granted.headers = headers
        .iter()
        .filter(|(name, _)| ![CONTENT_LENGTH, TRANSFER_ENCODING].contains(name))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    granted
}

/// Returns the runtime's refusal as the answer, with its status, type and text.
async fn refusal(answer: hyper::Response<Incoming>) -> Response {
    let status = answer.status().as_u16();
    let kind = answer.headers().get(CONTENT_TYPE).cloned();
    // A longer one is left out.
    let body = Limited::new(answer.into_body(), REFUSAL_BYTES).collect().await;
    let body = body.map(|body| body.to_bytes()).unwrap_or_default();
    let mut refusal = Response::text(status, body);
    if let Some(kind) = kind {
        refusal.headers = vec![(CONTENT_TYPE, kind)];
    }
    refusal
}

/// Logs why there is no stream, and returns the answer that says so.
pub fn failure(error: &StreamError) -> Response {
    let text = chain(error);
    log::error!("Error while proxying request: {text}");
    Response::text(500, text + "\n")
}

#[cfg(test)]
mod tests {
    use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
    use std::sync::Arc;

    use async_io::Async;
    use futures_lite::future::block_on;
    use futures_lite::{AsyncReadExt, AsyncWriteExt};
    use hyper::header::{CONNECTION, UPGRADE};
    use kube_controller_manager::clock::{Clock, SystemClock};
    use kube_controller_manager::server::Handler;
    use kube_controller_manager::server::http::{Guard, Server};

    use super::*;
    use crate::few_descriptors::has_few_descriptors;

    const HOUR: Duration = Duration::from_secs(3600);
    const MIB: usize = 1 << 20;

    fn serve(handler: Handler, stop: &StopToken) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let clock = SystemClock::shared();
        let server = Server::on(listener, None, handler, Guard::NONE, clock, stop.clone());
        server.expect("a server").address()
    }

    /// The runtime's server: its streams do what the path says.
    fn runtime(stop: &StopToken) -> SocketAddr {
        let handler: Handler = Arc::new(|request| {
            Box::pin(async move {
                if request.path == "/refuse" {
                    let shown = ["authorization", "proxy-authorization", "cookie"];
                    let shown = shown.iter().any(|name| request.header(name).is_some());
                    let protocol = request.header("sec-websocket-protocol").unwrap_or_default();
                    return Response::text(403, format!("no: {shown} {protocol}"));
                }
                let (Some(upgrade), true) = (request.upgrade, request.path != "/ok") else {
                    return Response::text(200, "ok");
                };
                let path = request.path;
                drop(task::spawn(async move { play(&path, upgrade).await }));
                let granted = Response::text(101, "").with_header(UPGRADE, "SPDY/3.1");
                let granted = granted.with_header(CONNECTION, "Upgrade");
                let name = hyper::header::HeaderName::from_static("x-stream-protocol-version");
                granted.with_header(name, "v4.channel.k8s.io")
            })
        });
        serve(handler, stop)
    }

    async fn play(path: &str, upgrade: Upgrade) {
        let Ok(mut connection) = upgrade.connection().await else { return };
        match path {
            "/echo" => {
                let mut buffer = vec![0; 4096];
                while let Ok(length @ 1..) = connection.read(&mut buffer).await {
                    if connection.write_all(&buffer[..length]).await.is_err() {
                        return;
                    }
                }
            }
            "/flood" => {
                let block = vec![b'x'; MIB];
                for _ in 0..256 {
                    if connection.write_all(&block).await.is_err() {
                        return;
                    }
                }
            }
            // It goes away in the midst.
            _ => drop(connection.read(&mut [0]).await),
        }
    }

    /// A server that passes all requests on to the runtime's.
    fn front(runtime: SocketAddr, stop: &StopToken) -> SocketAddr {
        let limits = StreamLimits { idle: HOUR, clock: SystemClock::shared(), stop: stop.clone() };
        let handler: Handler = Arc::new(move |request: Request| {
            let (url, limits) = (format!("http://{runtime}{}", request.path), limits.clone());
            Box::pin(async move {
                let answer = proxy(request, &url, &limits).await;
                answer.unwrap_or_else(|error| failure(&error))
            })
        });
        serve(handler, stop)
    }

    /// Asks for a stream: the connection, and the head of the answer.
    async fn open(server: SocketAddr, path: &str) -> (Async<TcpStream>, String) {
        let mut client = Async::<TcpStream>::connect(server).await.expect("a connection");
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer t\r\nConnection: Upgrade\r\n\
             Upgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v4.channel.k8s.io\r\n\
             Content-Length: 0\r\n\r\n"
        );
        client.write_all(request.as_bytes()).await.expect("sent");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            client.read_exact(&mut byte).await.expect("a head");
            head.push(byte[0]);
        }
        (client, String::from_utf8(head).expect("text"))
    }

    fn open_descriptors() -> usize {
        std::fs::read_dir("/proc/self/fd").expect("descriptors").count()
    }

    /// The most memory that this process has had, in bytes.
    fn peak() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").expect("a status");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
        let number = line.split_whitespace().next().and_then(|number| number.parse::<usize>().ok());
        number.expect("a number") << 10
    }

    #[test]
    fn streams_leave_no_descriptor_and_hold_little_memory() {
        const TEST: &str =
            "server::stream::tests::streams_leave_no_descriptor_and_hold_little_memory";
        // Each stream has four here, as both servers and the clients are one process.
        if !has_few_descriptors(TEST, 480) {
            return;
        }
        let stop = StopToken::new();
        let server = front(runtime(&stop), &stop);
        let clock = SystemClock;
        block_on(async {
            let (first, head) = open(server, "/echo").await;
            assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
            let head = head.to_ascii_lowercase();
            for header in ["upgrade: spdy/3.1", "x-stream-protocol-version: v4.channel.k8s.io"] {
                assert!(head.contains(header), "{head}");
            }
            drop(first);
            let before = {
                let mut known = open_descriptors();
                // Those of the first stream may still be there.
                for _ in 0..50 {
                    clock.sleep(Duration::from_millis(10)).await;
                    known = known.min(open_descriptors());
                }
                known
            };
            for round in 0..4 {
                let mut streams = Vec::new();
                for number in 0..100 {
                    let path = if round == 2 { "/leave" } else { "/echo" };
                    let (mut client, head) = open(server, path).await;
                    assert!(head.starts_with("HTTP/1.1 101 "), "{number}: {head}");
                    client.write_all(&[b'x'; 3000]).await.expect("sent");
                    streams.push(client);
                }
                assert!(open_descriptors() >= before + 100);
                for client in &mut streams {
                    let mut text = Vec::new();
                    if round == 2 {
                        // The runtime has gone; a reset is an end too.
                        let _ = client.read_to_end(&mut text).await;
                        continue;
                    }
                    text.resize(3000, 0);
                    client.read_exact(&mut text).await.expect("the echo");
                    if round == 1 {
                        client.get_ref().shutdown(Shutdown::Write).expect("an end");
                        client.read_to_end(&mut text).await.expect("its end");
                    }
                }
                drop(streams);
                for _ in 0..600 {
                    if open_descriptors() <= before {
                        break;
                    }
                    clock.sleep(Duration::from_millis(50)).await;
                }
                assert!(open_descriptors() <= before, "round {round}");
            }
            let small = peak();
            let (mut client, _) = open(server, "/flood").await;
            let (mut total, mut block) = (0, vec![0; 64 << 10]);
            loop {
                let length = client.read(&mut block).await.expect("bytes");
                total += length;
                if length == 0 {
                    break;
                }
            }
            assert_eq!(total, 256 * MIB);
            let grown = peak() - small;
            assert!(grown < 16 * MIB, "{grown}");
        });
        stop.stop();
    }

    #[test]
    fn a_guard_lives_as_long_as_its_stream() {
        let stop = StopToken::new();
        let (runtime, guard) = (runtime(&stop), Arc::new(()));
        let held = Arc::downgrade(&guard);
        let limits = StreamLimits { idle: HOUR, clock: SystemClock::shared(), stop: stop.clone() };
        let guard = Arc::new(parking_lot::Mutex::new(Some(guard)));
        let handler: Handler = Arc::new(move |mut request: Request| {
            let (guard, limits) = (guard.lock().take().expect("one request"), limits.clone());
            request.upgrade = request.upgrade.map(|upgrade| upgrade.with_guard(guard));
            Box::pin(async move {
                proxy(request, &format!("http://{runtime}/echo"), &limits).await.expect("a stream")
            })
        });
        let server = serve(handler, &stop);
        block_on(async {
            let (mut client, head) = open(server, "/echo").await;
            assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
            client.write_all(b"x").await.expect("sent");
            client.read_exact(&mut [0]).await.expect("the echo");
            assert!(held.upgrade().is_some());
            client.get_ref().shutdown(Shutdown::Write).expect("an end");
            client.read_to_end(&mut Vec::new()).await.expect("its end");
            drop(client);
            while held.upgrade().is_some() {
                SystemClock.sleep(Duration::from_millis(10)).await;
            }
        });
        stop.stop();
    }

    #[test]
    fn refusals_and_faults_are_answered() {
        let stop = StopToken::new();
        let server = front(runtime(&stop), &stop);
        let absent = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = absent.local_addr().expect("an address");
        drop(absent);
        let nowhere = front(address, &stop);
        let plain = "GET /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        let upgrade = |path: &str| {
            format!(
                "POST {path} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\
                 Authorization: Bearer t\r\nProxy-Authorization: x\r\nCookie: a=b\r\n\
                 Sec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.dA, v4\r\n\r\n"
            )
        };
        for (server, request, status, text) in [
            (server, upgrade("/refuse"), "403", "no: false v4".to_owned()),
            (
                server,
                upgrade("/ok"),
                "500",
                "invalid upgrade response: status code 200\n".to_owned(),
            ),
            (server, plain.to_owned(), "500", "Upgrade request required\n".to_owned()),
            (
                nowhere,
                upgrade("/echo"),
                "500",
                format!(
                    "error dialing backend: dial tcp {address}: Connection refused (os error 111)\n"
                ),
            ),
        ] {
            let answer = block_on(async {
                let mut client = Async::<TcpStream>::connect(server).await.expect("a connection");
                client.write_all(request.as_bytes()).await.expect("sent");
                let mut answer = Vec::new();
                while !answer.ends_with(text.as_bytes()) {
                    let mut byte = [0];
                    if client.read(&mut byte).await.expect("an answer") == 0 {
                        break;
                    }
                    answer.push(byte[0]);
                }
                String::from_utf8(answer).expect("text")
            });
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
            assert!(answer.ends_with(&text), "{answer}");
        }
        stop.stop();
    }

    #[test]
    fn runtime_has_to_name_a_server_of_http() {
        for url in ["", "/exec/x", "https://127.0.0.1:1/x", "unix:///run/x"] {
            let answered = block_on(exchange(Request::get("/x"), url));
            assert!(matches!(answered, Err(StreamError::NotUrl { .. })), "{url}");
        }
    }
}
