//! A channel and a server, over a socket and over TLS.

use std::convert::Infallible;
use std::fs;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_io::Async;
use futures_lite::future::{block_on, pending};
use futures_lite::stream;
use futures_rustls::TlsAcceptor;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::server::conn::http2::Builder;
use hyper::service::service_fn;
use hyper::{Request, Response};
use kube_controller_manager::clock::{FakeClock, SharedClock, SystemClock};
use kube_controller_manager::objects::Timestamp;
use kube_controller_manager::task::{self, Latch};
use prost::Message;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::RootCertStore;
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use rustls::server::WebPkiClientVerifier;
use smol_hyper::rt::FuturesIo;

use crate::endpoint::Stream;
use crate::{Channel, Code, Endpoint, Error, Executor, Tls, frame, message_of};

/// A message with a text.
#[derive(Clone, PartialEq, Message)]
struct Text {
    #[prost(string, tag = "1")]
    text: String,
}

type Body = StreamBody<stream::Iter<std::vec::IntoIter<Result<Frame<Bytes>, Infallible>>>>;

/// Returns the message of the call. By its text it fails, or does not answer.
async fn answer(request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    assert_eq!(request.uri().path(), "/test.v1.Test/Echo");
    let body = request.into_body().collect().await.expect("a body").to_bytes();
    let message = message_of(body).expect("a message");
    let Text { text } = Text::decode(message.clone()).expect("a text");
    let mut trailers = HeaderMap::new();
    let mut frames = Vec::new();
    let mut add = |name: &'static str, value: &'static str| {
        trailers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    };
    match text.as_str() {
        "silence" => pending().await,
        "failure" => {
            add("grpc-status", "14");
            add("grpc-message", "too%20busy");
            // RetryInfo with two seconds.
            let details = "GjAKKHR5cGUuZ29vZ2xlYXBpcy5jb20vZ29vZ2xlLnJwYy5SZXRyeUluZm8SBAoCCAI";
            add("grpc-status-details-bin", details);
        }
        _ => {
            frames.push(Ok(Frame::data(frame(&message))));
            add("grpc-status", "0");
        }
    }
    frames.push(Ok(Frame::trailers(trailers)));
    Ok(Response::new(StreamBody::new(stream::iter(frames))))
}

async fn serve(stream: impl Stream + 'static) {
    let connection =
        Builder::new(Executor).serve_connection(FuturesIo::new(stream), service_fn(answer));
    let _ = connection.await;
}

/// A folder that is removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let unique = format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::SeqCst));
        let path = std::env::temp_dir().join(format!("grpc-{unique}"));
        fs::create_dir_all(&path).expect("a folder");
        Folder(path)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, text).expect("a file");
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

async fn call(channel: &Channel, text: &str) -> Result<String, Error> {
    let message = Text { text: text.to_owned() };
    let deadline = Some(Duration::from_secs(5));
    channel.call::<Text>("test.v1.Test/Echo", &message, deadline).await.map(|answer| answer.text)
}

fn channel(endpoint: Endpoint, clock: SharedClock) -> Channel {
    Channel::new("server", endpoint, clock, |_, _, _| {})
}

#[test]
fn calls_over_a_socket_survive_a_restart_of_the_server() {
    let folder = Folder::new();
    let socket = folder.0.join("socket");
    let channel = channel(Endpoint::Unix(socket.clone()), SystemClock::shared());
    block_on(async {
        let error = call(&channel, "a").await.expect_err("no process listens");
        assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
        let text = error.with_causes();
        let start = format!("the server at {} cannot be reached: ", socket.display());
        assert!(text.starts_with(&start), "{text}");
        for _ in 0..2 {
            let listener = Async::<UnixListener>::bind(&socket).expect("a socket");
            let server = task::spawn(async move {
                let (stream, _) = listener.accept().await.expect("a connection");
                let (stop, stopped) = (Latch::new(), Latch::new());
                let (until, ended) = (stop.clone(), stopped.clone());
                drop(task::spawn(async move {
                    futures_lite::future::or(serve(stream), until.opened()).await;
                    ended.open();
                }));
                (stop, stopped)
            });
            assert_eq!(call(&channel, "a").await.expect("an answer"), "a");
            let error = call(&channel, "failure").await.expect_err("a failure");
            let Error::Status { code, message, retry_after, .. } = error else {
                panic!("{error:?}")
            };
            assert_eq!((code, message.as_str()), (Code::Unavailable, "too busy"));
            assert_eq!(retry_after, Some(Duration::from_secs(2)));
            let (stop, stopped) = server.await;
            stop.open();
            stopped.opened().await;
            fs::remove_file(&socket).expect("the socket");
        }
    });
}

#[test]
fn a_silent_server_is_left_after_the_deadline() {
    let authority = Authority::new();
    let folder = Folder::new();
    let clock = FakeClock::new(Timestamp::from_secs(0));
    let (port, accepted) = authority.serve(false);
    let channel = channel(authority.endpoint(&folder, port, None), clock.clone());
    block_on(async {
        assert_eq!(call(&channel, "a").await.expect("an answer"), "a");
        let silent = {
            let channel = channel.clone();
            task::spawn(async move { call(&channel, "silence").await })
        };
        // The calls before have dropped theirs.
        while clock.sleepers() == 0 {
            futures_lite::future::yield_now().await;
        }
        clock.advance(Duration::from_secs(5));
        let error = silent.await.expect_err("no answer");
        assert!(matches!(error, Error::DeadlineExceeded { method: "Echo", .. }), "{error:?}");
        assert_eq!(accepted.load(Ordering::SeqCst), 1);
        assert_eq!(call(&channel, "b").await.expect("an answer"), "b");
        assert_eq!(accepted.load(Ordering::SeqCst), 2, "the host may have vanished");
    });
}

/// An authority with the certificates of a server and of a client.
struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        Authority { issuer: CertifiedIssuer::self_signed(params, key).expect("a certificate") }
    }

    /// A certificate and its key, in PEM.
    fn issue(&self, name: &str) -> (rcgen::Certificate, KeyPair) {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec![name.to_owned()]).expect("parameters");
        (params.signed_by(&key, &self.issuer).expect("a certificate"), key)
    }

    /// A server named `localhost`, and the number of its connections.
    fn serve(&self, needs_client: bool) -> (u16, Arc<AtomicUsize>) {
        let (certificate, key) = self.issue("localhost");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .expect("versions");
        let builder = match needs_client {
            false => builder.with_no_client_auth(),
            true => {
                let mut roots = RootCertStore::empty();
                roots.add(self.issuer.der().clone()).expect("an authority");
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(roots.into(), provider).build();
                builder.with_client_cert_verifier(verifier.expect("a verifier"))
            }
        };
        let key = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
        let mut config = builder
            .with_single_cert(vec![certificate.der().clone()], key)
            .expect("a configuration");
        config.alpn_protocols = vec![b"h2".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let listener = Async::new(listener).expect("a listener");
        let accepted = Arc::new(AtomicUsize::new(0));
        let count = accepted.clone();
        drop(task::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.expect("a connection");
                count.fetch_add(1, Ordering::SeqCst);
                let acceptor = acceptor.clone();
                drop(task::spawn(async move {
                    if let Ok(stream) = acceptor.accept(stream).await {
                        serve(stream).await;
                    }
                }));
            }
        }));
        (port, accepted)
    }

    /// The server at `port`, trusted if this authority has signed its certificate.
    fn endpoint(&self, folder: &Folder, port: u16, client: Option<&str>) -> Endpoint {
        let ca = folder.write("ca.crt", &self.issuer.pem());
        let identity = client.map(|name| {
            let (certificate, key) = self.issue(name);
            (
                folder.write("client.crt", &certificate.pem()),
                folder.write("client.key", &key.serialize_pem()),
            )
        });
        let host = "127.0.0.1".to_owned();
        let server_name = Some("localhost".to_owned());
        Endpoint::Tls(Tls { host, port, ca, identity, server_name })
    }
}

#[test]
fn both_sides_of_tls_are_checked() {
    let (authority, other) = (Authority::new(), Authority::new());
    let folder = Folder::new();
    let clock = SystemClock::shared();
    block_on(async {
        let (port, _) = authority.serve(false);
        let trusted = channel(authority.endpoint(&folder, port, None), clock.clone());
        assert_eq!(call(&trusted, "a").await.expect("an answer"), "a");
        let untrusted = channel(other.endpoint(&folder, port, None), clock.clone());
        let error = call(&untrusted, "a").await.expect_err("another authority");
        assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
        assert!(error.with_causes().contains("certificate"), "{}", error.with_causes());
        // A name that is not in the certificate.
        let Endpoint::Tls(tls) = authority.endpoint(&folder, port, None) else { unreachable!() };
        let unnamed = channel(Endpoint::Tls(Tls { server_name: None, ..tls }), clock.clone());
        assert!(call(&unnamed, "a").await.is_err());
        // A server that wants the client's certificate.
        let (port, _) = authority.serve(true);
        let known = channel(authority.endpoint(&folder, port, Some("manager")), clock.clone());
        assert_eq!(call(&known, "a").await.expect("an answer"), "a");
        let unknown = channel(authority.endpoint(&folder, port, None), clock.clone());
        assert!(call(&unknown, "a").await.is_err());
    });
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let authority = Authority::new();
    let folder = Folder::new();
    let Endpoint::Tls(tls) = authority.endpoint(&folder, 1, None) else { unreachable!() };
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let ca = folder.0.join("missing");
    let channel = channel(Endpoint::Tls(Tls { ca, port, ..tls }), SystemClock::shared());
    let error = block_on(call(&channel, "a")).expect_err("no file").with_causes();
    assert!(error.contains("/missing: "), "{error}");
}
