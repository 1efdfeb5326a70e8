//! Passes requests on to a real API server, as they are, and applies planned faults to them.

use std::future::poll_fn;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use async_io::Async;
use futures_lite::future::or;
use futures_lite::{StreamExt, stream};
use futures_rustls::TlsConnector;
use futures_rustls::rustls::pki_types::ServerName;
use futures_rustls::rustls::{ClientConfig, RootCertStore};
use hyper::body::{Body as _, Frame, Incoming, SizeHint};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{
    CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderValue, TRANSFER_ENCODING,
};
use parking_lot::Mutex;
use smol_hyper::rt::FuturesIo;

use crate::api::faults::{Epoch, Faults};
use crate::failures;
use crate::protobuf;
use crate::request::accept::{Accept, Encoding};
use crate::request::call::{Query, ResourcePath, verb};
use kube_controller_manager::client::pem;
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::server::http::{Body, BodyStream, Bytes, Handler, Request, Response};
use kube_controller_manager::task;

const BODY_LIMIT_BYTES: usize = 16 << 20;
/// Idle connections beyond this number are closed.
const IDLE: usize = 8;

/// Connections to an API server.
pub struct Forwarder {
    address: SocketAddr,
    tls: TlsConnector,
    idle: Mutex<Vec<SendRequest<Sent>>>,
}

/// The body of a forwarded request.
struct Sent(Option<Bytes>);

impl hyper::body::Body for Sent {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        Poll::Ready(self.0.take().map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.as_ref().map_or(0, Bytes::len) as u64)
    }
}

impl Forwarder {
    /// Creates a forwarder to the server at `address`, which must have a certificate of the
    /// authority in the file.
    pub fn new(address: SocketAddr, authority: &Path) -> io::Result<Forwarder> {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(pem::certificates(&std::fs::read(authority)?));
        let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        Ok(Forwarder { address, tls: Arc::new(config).into(), idle: Mutex::default() })
    }

    /// Returns a handler that passes requests on, each with the credentials that it has. While the
    /// server is gone, connections are cut.
    pub fn handler(self: Arc<Self>, faults: &Arc<Faults>, clock: &SharedClock) -> Handler {
        let (faults, clock) = (faults.clone(), clock.clone());
        Arc::new(move |request| {
            let (this, faults, clock) = (self.clone(), faults.clone(), clock.clone());
            Box::pin(async move { this.answer(request, faults, &clock).await })
        })
    }

    /// Forwards a request to the real server, with the planned faults before and after it.
    async fn answer(
        self: Arc<Self>,
        request: Request,
        faults: Arc<Faults>,
        clock: &SharedClock,
    ) -> Response {
        let path = ResourcePath::parse(&request.path);
        let verb = verb(&request.method, path.as_ref(), &Query::parse(&request.query));
        let resource_name = path.map_or_else(|| request.path.clone(), |path| path.full_name());
        let (clears, epoch) = (faults.clears(), faults.epoch());
        let fault = faults.take_fault(verb, &resource_name);
        if let Some(answer) = faults.before(fault.as_ref(), clears, clock).await {
            let accept = request.header("accept").unwrap_or_default();
            return match Accept::parse(accept).plain() {
                Some(Encoding::Protobuf) => protobuf::answer(answer),
                _ => answer,
            };
        }
        let mut response = self.forward(request).await.unwrap_or_else(|error| {
            log::debug!("{verb} {resource_name}: {error}");
            Response::abort()
        });
        if let Body::Stream(body) = response.body {
            // Of the answers that are streams, faults steer only watches.
            let is_watch = verb == "watch" && response.status == 200;
            response.body = Body::Stream(match is_watch {
                true => with_faults(body, is_protobuf(&response.headers), faults, epoch),
                false => body,
            });
        }
        match fault {
            Some(fault) => fault.after(response),
            None => response,
        }
    }

    /// Opens a TLS connection to the API server, and drives it in a task of its own until it ends.
    async fn connect(&self) -> io::Result<SendRequest<Sent>> {
        let stream = Async::<TcpStream>::connect(self.address).await?;
        stream.get_ref().set_nodelay(true)?;
        let stream = self.tls.connect(ServerName::from(self.address.ip()), stream).await?;
        let (sender, connection) =
            handshake(FuturesIo::new(stream)).await.map_err(io::Error::other)?;
        drop(task::spawn(async move {
            if let Err(error) = connection.await {
                log::debug!("connection to the API server: {error}");
            }
        }));
        Ok(sender)
    }

    /// Sends a request over an idle connection to the real server, or a new one, and streams the
    /// answer.
    async fn forward(self: Arc<Self>, request: Request) -> io::Result<Response> {
        let idle = std::iter::from_fn(|| self.idle.lock().pop()).find(SendRequest::is_ready);
        let mut sender = match idle {
            Some(sender) => sender,
            None => self.connect().await?,
        };
        let Request { method, path, query, headers, body, .. } = request;
        let target = if query.is_empty() { path } else { format!("{path}?{query}") };
        let body = body.read(BODY_LIMIT_BYTES).await;
        let body = body.map_err(|error| io::Error::other(format!("{error:?}")))?;
        let body = Sent((!body.is_empty()).then_some(body));
        let mut outgoing = hyper::Request::builder().method(method).uri(target);
        if let Some(target_headers) = outgoing.headers_mut() {
            *target_headers = headers;
            for name in [CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING] {
                target_headers.remove(name);
            }
            let host = HeaderValue::from_str(&self.address.to_string());
            target_headers.insert(HOST, host.map_err(io::Error::other)?);
        }
        let outgoing = outgoing.body(body).map_err(io::Error::other)?;
        let (head, body) =
            sender.send_request(outgoing).await.map_err(io::Error::other)?.into_parts();
        let headers = head.headers.iter();
        let headers = headers
            .filter(|(name, _)| ![CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING].contains(name))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        let body = Body::Stream(self.stream_body(body, sender));
        Ok(Response { status: head.status.as_u16(), headers, body })
    }

    /// Streams the body of an answer. At its end the connection becomes idle and may be used again,
    /// unless `IDLE` others are idle.
    fn stream_body(self: Arc<Self>, body: Incoming, sender: SendRequest<Sent>) -> BodyStream {
        let body = stream::unfold(Some((body, sender)), move |state| {
            let this = self.clone();
            async move {
                let (mut body, sender) = state?;
                loop {
                    match poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
                        Some(Ok(frame)) => {
                            let Ok(bytes) = frame.into_data() else { continue };
                            return Some((Ok(bytes), Some((body, sender))));
                        }
                        Some(Err(error)) => return Some((Err(io::Error::other(error)), None)),
                        None => {
                            let mut idle = this.idle.lock();
                            if idle.len() < IDLE {
                                idle.push(sender);
                            }
                            return None;
                        }
                    }
                }
            }
        });
        Box::pin(body)
    }
}

fn is_protobuf(headers: &[(hyper::header::HeaderName, HeaderValue)]) -> bool {
    let media = headers.iter().find(|(name, _)| name == CONTENT_TYPE);
    media.is_some_and(|(_, media)| media.as_bytes().starts_with(protobuf::MEDIA_TYPE.as_bytes()))
}

/// The end of an event in the bytes of a watch.
#[derive(Default)]
struct Boundary {
    is_protobuf: bool,
    /// The bytes of a length, before those of its event.
    length: Vec<u8>,
    left: usize,
    is_in_line: bool,
}

impl Boundary {
    fn is_between(&self) -> bool {
        self.length.is_empty() && self.left == 0 && !self.is_in_line
    }

    /// Records forwarded bytes, so that it is known whether they end inside an event: inside a line
    /// of JSON, or inside a protobuf message that its length of four bytes announces.
    fn record(&mut self, mut bytes: &[u8]) {
        if !self.is_protobuf {
            self.is_in_line = bytes.last().map_or(self.is_in_line, |last| *last != b'\n');
            return;
        }
        while let Some((first, rest)) = bytes.split_first() {
            if self.left > 0 {
                let passed = self.left.min(bytes.len());
                self.left -= passed;
                bytes = &bytes[passed..];
                continue;
            }
            self.length.push(*first);
            bytes = rest;
            if let Ok(length) = <[u8; 4]>::try_from(self.length.as_slice()) {
                self.left = u32::from_be_bytes(length) as usize;
                self.length.clear();
            }
        }
    }
}

/// Passes on the events of a watch until planned faults cut it or end it with 410. `epoch`: the
/// state of the faults when the watch began.
fn with_faults(
    body: BodyStream,
    is_protobuf: bool,
    faults: Arc<Faults>,
    epoch: Epoch,
) -> BodyStream {
    let boundary = Boundary { is_protobuf, ..Boundary::default() };
    let events = stream::unfold(Some((body, boundary)), move |state| {
        let faults = faults.clone();
        async move {
            let (mut body, mut boundary) = state?;
            loop {
                let steered = faults.listen();
                let now = faults.epoch();
                if now.cut != epoch.cut {
                    return Some((Err(io::ErrorKind::ConnectionReset.into()), None));
                }
                if now.expire != epoch.expire && boundary.is_between() {
                    return Some((Ok(gone(boundary.is_protobuf)), None));
                }
                let next = or(async { Some(body.next().await) }, async {
                    steered.await;
                    None
                });
                let Some(next) = next.await else { continue };
                if let Ok(bytes) = next.as_ref()? {
                    boundary.record(bytes);
                }
                return Some((next?, Some((body, boundary))));
            }
        }
    });
    Box::pin(events)
}

/// Builds the event that ends an expired watch.
fn gone(is_protobuf: bool) -> Bytes {
    let status = failures::expired("fault on purpose").to_json();
    let mut event = Vec::new();
    match is_protobuf {
        true => {
            let status = protobuf::encode(&status).unwrap_or_default();
            protobuf::event(&mut event, "ERROR", &status);
        }
        false => event = format!("{{\"type\":\"ERROR\",\"object\":{status}}}\n").into_bytes(),
    }
    event.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ends_of_events_are_found_at_any_cut() {
        let mut binary = Vec::new();
        let mut ends = vec![0];
        for object in ["ab", "", "\n"] {
            protobuf::event(&mut binary, "ADDED", object.as_bytes());
            ends.push(binary.len());
        }
        let lines = b"{\"a\":1}\n{}\n".to_vec();
        for (bytes, is_protobuf, ends) in [(binary, true, ends), (lines, false, vec![0, 8, 11])] {
            for cut in 0..=bytes.len() {
                for middle in 0..=cut {
                    let mut boundary = Boundary { is_protobuf, ..Boundary::default() };
                    boundary.record(&bytes[..middle]);
                    boundary.record(&bytes[middle..cut]);
                    assert_eq!(boundary.is_between(), ends.contains(&cut), "{middle} {cut}");
                }
            }
        }
    }
}
