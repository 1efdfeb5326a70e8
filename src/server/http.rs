//! An HTTP/1.1 server, over TLS or plain: keep-alive, chunked streams, client certificates.
//! Upstream: `apiserver/pkg/server.SecureServingInfo`.

use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_std::net::{TcpListener, TcpStream};
use futures_lite::{AsyncRead, AsyncWrite, FutureExt, Stream};
use futures_rustls::TlsAcceptor;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use smol_hyper::rt::FuturesIo;

use crate::clock::SharedClock;
use crate::task::{StopToken, Task, spawn};

pub use hyper::body::Bytes;
pub use hyper::{HeaderMap, Method};

/// Longest time for a TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
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
    pub peer: Peer,
}

impl Request {
    /// A header as text; `None` when absent or not ASCII.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }
}

/// Who is on the other side, by TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Peer {
    /// No TLS, or no client certificate.
    #[default]
    Anonymous,
    /// A client certificate that no trusted CA signed, or that is out of date.
    Unverified,
    Verified {
        common_name: String,
        organizations: Vec<String>,
    },
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

    pub fn stream(status: u16, content_type: &'static str, body: BodyStream) -> Response {
        Response { body: Body::Stream(body), ..Response::new(status, content_type, Bytes::new()) }
    }

    pub fn abort() -> Response {
        Response { body: Body::Abort, ..Response::text(500, Bytes::new()) }
    }

    /// Adds a header; a value that no header may hold is left out.
    pub fn with_header(mut self, name: HeaderName, value: &str) -> Response {
        if let Ok(value) = HeaderValue::from_str(value) {
            self.headers.push((name, value));
        }
        self
    }
}

pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Answers requests. A panic in it is answered with 500. Its future is dropped when the client goes
/// away.
pub type Handler = Arc<dyn Fn(Request) -> BoxFuture<Response> + Send + Sync>;

/// The serving certificate, and the CA of client certificates.
#[derive(Clone)]
pub struct Tls {
    config: Arc<rustls::ServerConfig>,
    clients: Option<Arc<dyn ClientCertVerifier>>,
}

/// What is wrong with the certificates.
#[derive(Debug)]
pub enum TlsError {
    Pem(&'static str, rustls::pki_types::pem::Error),
    Rustls(rustls::Error),
    ClientCa(rustls::server::VerifierBuilderError),
}

impl std::fmt::Display for TlsError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            TlsError::Pem(what, _) => write!(f, "cannot read the {what} as PEM"),
            TlsError::Rustls(_) => f.write_str("serving certificate and key cannot be used"),
            TlsError::ClientCa(_) => f.write_str("client CA cannot be used"),
        }
    }
}

impl std::error::Error for TlsError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            TlsError::Pem(_, source) => Some(source),
            TlsError::Rustls(source) => Some(source),
            TlsError::ClientCa(source) => Some(source),
        }
    }
}

impl Tls {
    /// All in PEM. With a client CA, clients may show a certificate; whether it is any good is
    /// told by [`Request::peer`], never by a failed handshake.
    pub fn new(chain: &[u8], key: &[u8], client_ca: Option<&[u8]>) -> Result<Tls, TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let chain = certificates("serving certificate", chain)?;
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|source| TlsError::Pem("serving key", source))?;
        let builder = rustls::ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(TlsError::Rustls)?;
        let clients = match client_ca {
            None => None,
            Some(pem) => {
                let mut roots = rustls::RootCertStore::empty();
                for certificate in certificates("client CA", pem)? {
                    roots.add(certificate).map_err(TlsError::Rustls)?;
                }
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                        .allow_unauthenticated()
                        .build()
                        .map_err(TlsError::ClientCa)?;
                Some(verifier)
            }
        };
        let builder = match &clients {
            None => builder.with_no_client_auth(),
            Some(verifier) => {
                builder.with_client_cert_verifier(Arc::new(VerifiedLater(verifier.clone())))
            }
        };
        let mut config = builder.with_single_cert(chain, key).map_err(TlsError::Rustls)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Tls { config: Arc::new(config), clients })
    }

    fn peer(&self, connection: &rustls::ServerConnection, now: UnixTime) -> Peer {
        let (Some(verifier), Some([leaf, rest @ ..])) =
            (&self.clients, connection.peer_certificates())
        else {
            return Peer::Anonymous;
        };
        if verifier.verify_client_cert(leaf, rest, now).is_err() {
            return Peer::Unverified;
        }
        let Ok((_, certificate)) = x509_parser::parse_x509_certificate(leaf) else {
            return Peer::Unverified;
        };
        let subject = certificate.subject();
        let text = |attribute: &x509_parser::x509::AttributeTypeAndValue<'_>| {
            attribute.as_str().unwrap_or_default().to_owned()
        };
        Peer::Verified {
            common_name: subject.iter_common_name().next().map(text).unwrap_or_default(),
            organizations: subject.iter_organization().map(text).collect(),
        }
    }
}

fn certificates(what: &'static str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|source| TlsError::Pem(what, source))
}

/// Lets any certificate pass the handshake (the key's signature is still checked), as Go's
/// `tls.RequestClientCert`: a bad one is then a 401, which the client can read.
#[derive(Debug)]
struct VerifiedLater(Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for VerifiedLater {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[rustls::DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.0.supported_verify_schemes()
    }
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
        let listener = TcpListener::bind(address).await?;
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
                // Out of file descriptors, most likely: others will be closed.
                Err(error) => {
                    log::warn!("accepting a connection: {error}");
                    self.clock.sleep(Duration::from_millis(50)).await;
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
            return self.serve(stream, Peer::Anonymous).await;
        };
        let handshake = async { TlsAcceptor::from(tls.config.clone()).accept(stream).await };
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
                let now = Duration::from_micros(self.clock.now().as_micros().max(0) as u64);
                let peer = tls.peer(stream.get_ref().1, UnixTime::since_unix_epoch(now));
                self.serve(stream, peer).await;
            }
            Err(error) => log::debug!("TLS handshake: {error}"),
        }
    }

    async fn serve<IO>(self: Arc<Self>, io: IO, peer: Peer)
    where
        IO: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let handler = self.handler.clone();
        let service = hyper::service::service_fn(move |request: hyper::Request<Incoming>| {
            answer(handler.clone(), request, peer.clone())
        });
        let mut connection = std::pin::pin!(
            hyper::server::conn::http1::Builder::new()
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

async fn answer(
    handler: Handler,
    request: hyper::Request<Incoming>,
    peer: Peer,
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
    use super::*;
    use crate::clock::SystemClock;
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
}
