//! A request before it is sent.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use super::{Error, Result};
use crate::buffer_pool;

/// One request, before it is sent. Cheap to clone: clones share the body. Upstream: `rest.Request`.
#[derive(Clone)]
pub struct Call {
    /// The HTTP method, in upper case.
    pub method: &'static str,
    /// The escaped path below the server's address, with a leading slash.
    /// [`ApiPath`](super::ApiPath) makes it from names.
    pub path: String,
    /// The parameters, not escaped, in their order.
    pub query: Vec<(&'static str, String)>,
    /// The header `Accept`.
    pub accept: &'static str,
    /// Whether it is a watch: it gets a connection of its own, and its body may be silent for any
    /// time.
    pub is_watch: bool,
    pub(super) content: Option<(&'static str, Arc<[u8]>)>,
}

/// Without the body, which may hold a Secret.
impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let body = self.content.as_ref().map_or(0, |(_, body)| body.len());
        write!(f, "Call({self}, {:?}, {body} bytes)", self.query)
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.method, self.path)
    }
}

impl Call {
    /// Makes a request without parameters and body, for an answer in JSON. `method` is an HTTP
    /// method in upper case, `path` is escaped.
    pub fn new(method: &'static str, path: impl Into<String>) -> Call {
        let (path, accept) = (path.into(), "application/json");
        Call { method, path, query: Vec::new(), accept, is_watch: false, content: None }
    }

    /// Adds a parameter. Neither its name nor its value is escaped yet.
    pub fn query(&mut self, name: &'static str, value: &str) {
        self.query.push((name, value.to_owned()));
    }

    /// Adds a parameter unless its value is absent or empty.
    pub fn query_some(&mut self, name: &'static str, value: &Option<String>) {
        if let Some(value) = value.as_deref().filter(|value| !value.is_empty()) {
            self.query(name, value);
        }
    }

    /// Returns the media type and the bytes of the body; `None` without a body.
    pub fn content(&self) -> Option<(&'static str, &[u8])> {
        self.content.as_ref().map(|(content_type, bytes)| (*content_type, &**bytes))
    }

    /// Returns the same request, with this body.
    pub fn bytes(mut self, content_type: &'static str, body: impl Into<Arc<[u8]>>) -> Call {
        self.content = Some((content_type, body.into()));
        self
    }

    /// Returns the same request, with `body` as JSON. `content_type`: `application/json`, or a
    /// patch's type.
    ///
    /// # Errors
    /// [`Error::Request`] when `body` does not serialize.
    pub fn body(self, content_type: &'static str, body: &impl Serialize) -> Result<Call> {
        let mut bytes = buffer_pool::take();
        serde_json::to_writer(&mut bytes, body).map_err(|source| Error::Request {
            request: self.to_string(),
            source: source.into(),
        })?;
        let call = self.bytes(content_type, bytes.as_slice());
        buffer_pool::give(&mut bytes);
        Ok(call)
    }
}
