//! Serves a [`Handler`] over TLS, a request a connection: scrapes and probes come seldom.
//! Upstream: `apiserver/pkg/server.SecureServingInfo`.

use std::sync::Arc;
use std::time::Duration;

use async_std::net::{TcpListener, TcpStream};
use futures_lite::{AsyncReadExt, AsyncWriteExt, FutureExt};
use futures_rustls::TlsAcceptor;
use rustls::ServerConfig;

use super::{Handler, Request};
use crate::clock::SharedClock;
use crate::task::{self, StopToken};

const MOST_HEAD_BYTES: usize = 64 * 1024;
/// How long a connection may take, from its handshake to the end of its answer.
const LONGEST: Duration = Duration::from_secs(60);
/// How long to wait when no connection can be accepted: others will be closed.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// Accepts connections until stopped.
pub async fn serve(
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    handler: Handler,
    clock: SharedClock,
    stop: StopToken,
) {
    let acceptor = TlsAcceptor::from(tls);
    while let Some(accepted) = stop.unless_stopped(listener.accept()).await {
        match accepted {
            Ok((socket, peer)) => {
                let answered = answer(socket, acceptor.clone(), handler.clone());
                let late = clock.sleep(LONGEST);
                // Its own bound ends it.
                drop(task::spawn(async move {
                    let late = async {
                        late.await;
                        Err(std::io::ErrorKind::TimedOut.into())
                    };
                    if let Err(error) = answered.or(late).await {
                        log::debug!("connection from {peer}: {error}");
                    }
                }));
            }
            Err(error) => {
                log::warn!("accepting a connection: {error}");
                clock.sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

async fn answer(socket: TcpStream, acceptor: TlsAcceptor, handler: Handler) -> std::io::Result<()> {
    let mut stream = acceptor.accept(socket).await?;
    let (_, session) = stream.get_ref();
    let chain = session.peer_certificates().unwrap_or_default();
    let peer_certificates = chain.iter().map(|der| der.to_vec()).collect();
    let (mut head, mut part) = (Vec::new(), [0; 4096]);
    let request = loop {
        let read = stream.read(&mut part).await?;
        head.extend_from_slice(&part[..read]);
        if read == 0 || head.len() > MOST_HEAD_BYTES {
            return Ok(());
        }
        if let Some(request) = parse(&head) {
            break Request { peer_certificates, ..request };
        }
    };
    let response = handler(request).await;
    let head = format!(
        "HTTP/1.1 {} -\r\ncontent-type: {}\r\ncontent-length: {}\r\nconnection: close\r\n\
         x-content-type-options: nosniff\r\ncache-control: no-cache, private\r\n\r\n",
        response.status,
        response.content_type,
        response.body.len(),
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(&response.body).await?;
    stream.close().await
}

fn parse(head: &[u8]) -> Option<Request> {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut parsed = httparse::Request::new(&mut headers);
    if !parsed.parse(head).ok()?.is_complete() {
        return None;
    }
    let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
    let request = Request::get(parsed.path?);
    let headers = parsed.headers.iter().map(|h| (h.name.into(), text(h.value))).collect();
    Some(Request { method: parsed.method?.into(), headers, ..request })
}

#[cfg(test)]
mod tests {
    use async_std::task::block_on;
    use futures_rustls::TlsConnector;
    use rustls::pki_types::PrivateKeyDer;

    use super::super::tls::{Tls, TlsOptions};
    use super::super::{Response, handler};
    use super::*;
    use crate::clock::FakeClock;
    use crate::objects::Timestamp;

    #[test]
    fn a_request_is_answered_with_the_clients_certificate_known() {
        let mut answer = String::new();
        let own = rcgen::generate_simple_self_signed(["me".to_string()]).expect("a certificate");
        let own_der = own.cert.der().to_vec();
        block_on(async {
            let tls = Tls::new(TlsOptions::default()).expect("a configuration");
            let mut roots = rustls::RootCertStore::empty();
            roots.add(tls.certificate()).expect("a certificate");
            let key = PrivateKeyDer::try_from(own.signing_key.serialize_der()).expect("a key");
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let config = rustls::ClientConfig::builder_with_provider(provider)
                .with_safe_default_protocol_versions()
                .expect("versions")
                .with_root_certificates(roots)
                .with_client_auth_cert(vec![own.cert.der().clone()], key)
                .expect("a client certificate");

            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let address = listener.local_addr().expect("an address");
            let stop = StopToken::new();
            let clock = FakeClock::new(Timestamp::from_secs(0));
            let echo = handler(move |r: &Request| {
                let known = r.peer_certificates == [own_der.clone()];
                Response::text(201, format!("{} {} {known}", r.path, r.query))
            });
            let serving =
                task::spawn(serve(listener, tls.config.clone(), echo, clock, stop.clone()));
            let socket = TcpStream::connect(address).await.expect("a connection");
            let name = "localhost".try_into().expect("a name");
            let connector = TlsConnector::from(Arc::new(config));
            let mut stream = connector.connect(name, socket).await.expect("a handshake");
            for part in ["GET /healthz?ver", "bose HTTP/1.1\r\nhost: x\r\n", "\r\n"] {
                stream.write_all(part.as_bytes()).await.expect("a write");
            }
            stream.read_to_string(&mut answer).await.expect("an answer");
            stop.stop();
            serving.await;
        });
        assert!(answer.starts_with("HTTP/1.1 201 "), "{answer}");
        assert!(answer.ends_with("\r\n\r\n/healthz verbose true"), "{answer}");
    }
}
