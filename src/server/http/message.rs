//! Requests and responses as handlers see them.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use futures_lite::Stream;
use futures_lite::future::Boxed;
use hyper::body::{Body as _, Incoming};
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderName, HeaderValue};
use rustls::pki_types::CertificateDer;

use super::upgrade::Upgrade;

pub use hyper::body::Bytes;
pub use hyper::{HeaderMap, Method};

/// A request. The body is read on demand.
pub struct Request {
    /// The HTTP method.
    pub method: Method,
    /// Still percent-encoded.
    pub path: String,
    /// The part after the `?`, still percent-encoded.
    pub query: String,
    /// The headers.
    pub headers: HeaderMap,
    /// The body, which is not read yet.
    pub body: RequestBody,
    /// The certificates that the client showed.
    pub peer: Chain,
    /// Set when the client asks to leave HTTP.
    pub upgrade: Option<Upgrade>,
}

/// The client's certificates, its own first. TLS checks only that the client holds the key of the
/// first; [`Authorities`](crate::server::auth::Authorities) verify who signed it.
pub type Chain = Arc<[CertificateDer<'static>]>;

impl Request {
    /// Makes a GET of a path with its query, without a client certificate.
    pub fn get(path: &str) -> Request {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        Request {
            method: Method::GET,
            path: path.into(),
            query: query.into(),
            headers: HeaderMap::new(),
            body: RequestBody::Full(Bytes::new()),
            peer: Chain::default(),
            upgrade: None,
        }
    }

    /// Returns a header as text; `None` when it is absent or not ASCII.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// Returns the quality (0 to 1) that a header such as `Accept` gives `item`; 0 when the header
    /// does not name it.
    pub fn quality(&self, header: &str, item: &str) -> f32 {
        let lines = self.headers.get_all(header).iter().filter_map(|line| line.to_str().ok());
        let mut best = 0.0;
        for listed in lines.flat_map(|line| line.split(',')) {
            let mut parts = listed.split(';').map(str::trim);
            if !parts.next().is_some_and(|name| name.eq_ignore_ascii_case(item)) {
                continue;
            }
            let quality = match parts.find_map(|part| part.strip_prefix("q=")) {
                Some(text) => text.parse().unwrap_or(0.0),
                None => 1.0,
            };
            best = f32::max(best, quality);
        }
        best
    }

    /// Returns the parameters of the query, still encoded; a parameter without a value has an empty
    /// one.
    pub fn query_pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        let pairs = self.query.split('&').filter(|pair| !pair.is_empty());
        pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")))
    }

    /// Each value of a parameter of the query; empty where the parameter has no value.
    pub fn query_values(&self, name: &str) -> impl Iterator<Item = &str> {
        self.query_pairs().filter(move |(n, _)| *n == name).map(|(_, value)| value)
    }
}

/// The body of a request.
pub enum RequestBody {
    /// It is read from the connection.
    Incoming(Incoming),
    /// It is in memory.
    Full(Bytes),
}

/// Why a request's body could not be read.
#[derive(Debug)]
pub enum BodyError {
    /// It is longer than the limit.
    TooLarge,
    /// The connection broke, or the body is malformed.
    Broken(hyper::Error),
}

impl RequestBody {
    /// Reads the whole body, of at most `limit` bytes.
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

/// The body of a response.
pub enum Body {
    /// Sent with its length.
    Full(Bytes),
    /// Sent chunked, each item once it is ready. Dropped when the client disconnects.
    Stream(BodyStream),
    /// No response: the connection is cut.
    Abort,
}

/// A response.
pub struct Response {
    /// The HTTP status.
    pub status: u16,
    /// The headers; the server adds those of the connection.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// The body.
    pub body: Body,
}

impl Response {
    /// Makes a response of this media type.
    pub fn new(status: u16, content_type: &'static str, body: impl Into<Bytes>) -> Response {
        Response {
            status,
            headers: vec![(CONTENT_TYPE, HeaderValue::from_static(content_type))],
            body: Body::Full(body.into()),
        }
    }

    /// A response of plain text.
    pub fn text(status: u16, body: impl Into<Bytes>) -> Response {
        Response::new(status, "text/plain; charset=utf-8", body)
    }

    /// A response of JSON.
    pub fn json(status: u16, body: &serde_json::Value) -> Response {
        Response::new(status, "application/json", body.to_string())
    }

    /// Returns the same response, gzipped if the client accepts it.
    pub fn gzipped_for(mut self, request: &Request) -> Response {
        if let Body::Full(body) = &mut self.body
            && request.quality("accept-encoding", "gzip") > 0.0
        {
            *body = process::gzip(body).into();
            return self.with_header(CONTENT_ENCODING, "gzip");
        }
        self
    }

    /// Makes an error as an API object. Upstream: `metav1.Status`.
    pub fn status(code: u16, reason: &str, message: &str) -> Response {
        let body = serde_json::json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": message, "reason": reason, "code": code,
        });
        Response::json(code, &body)
    }

    /// A response whose body is sent in chunks, as it becomes ready.
    pub fn stream(status: u16, content_type: &'static str, body: BodyStream) -> Response {
        Response { body: Body::Stream(body), ..Response::new(status, content_type, Bytes::new()) }
    }

    /// No response: the connection is cut.
    pub fn abort() -> Response {
        Response { body: Body::Abort, ..Response::text(500, Bytes::new()) }
    }

    /// Returns the whole body; empty when it is a stream.
    pub fn content(&self) -> &[u8] {
        match &self.body {
            Body::Full(bytes) => bytes,
            Body::Stream(_) | Body::Abort => &[],
        }
    }

    /// Adds a header; a value with bytes that are not allowed in headers is left out.
    pub fn with_header(mut self, name: HeaderName, value: &str) -> Response {
        if let Ok(value) = HeaderValue::from_str(value) {
            self.headers.push((name, value));
        }
        self
    }
}

/// Answers requests concurrently. A panic is answered with 500. The future is dropped when the
/// client disconnects.
pub type Handler = Arc<dyn Fn(Request) -> Boxed<Response> + Send + Sync>;

/// Makes a handler that answers without waiting.
pub fn handler(answer: impl Fn(&Request) -> Response + Send + Sync + 'static) -> Handler {
    Arc::new(move |request| {
        let response = answer(&request);
        Box::pin(async move { response })
    })
}
