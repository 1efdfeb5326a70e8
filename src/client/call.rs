//! A request before it is sent.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use super::{Error, Result};
use crate::buffer_pool;

/// One request, before it is sent.
#[derive(Clone)]
pub struct Call {
    pub method: &'static str,
    pub path: String,
    pub query: Vec<(&'static str, String)>,
    pub accept: &'static str,
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
    pub fn new(method: &'static str, path: impl Into<String>) -> Call {
        let (path, accept) = (path.into(), "application/json");
        Call { method, path, query: Vec::new(), accept, is_watch: false, content: None }
    }

    pub fn query(&mut self, name: &'static str, value: &str) {
        self.query.push((name, value.to_owned()));
    }

    pub fn query_some(&mut self, name: &'static str, value: &Option<String>) {
        if let Some(value) = value.as_deref().filter(|value| !value.is_empty()) {
            self.query(name, value);
        }
    }

    /// The type and the bytes of its body.
    pub fn content(&self) -> Option<(&'static str, &[u8])> {
        self.content.as_ref().map(|(content_type, bytes)| (*content_type, &**bytes))
    }

    /// The same, with this body.
    pub fn bytes(mut self, content_type: &'static str, body: impl Into<Arc<[u8]>>) -> Call {
        self.content = Some((content_type, body.into()));
        self
    }

    /// The same, with a JSON body.
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
