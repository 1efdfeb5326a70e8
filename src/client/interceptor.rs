//! A place between a client and its transport that sees every request.

use futures_lite::future::Boxed;

use super::{Call, Result};

/// Sees the reads of a client, and answers its writes in place of the API server.
pub trait Interceptor: Send + Sync + 'static {
    /// A read, before it is sent.
    fn on_read(&self, call: &Call);

    /// The body of the answer to a write, or the error. `agent`: the client's User-Agent.
    fn handle_write(&self, call: &Call, agent: &str) -> Boxed<Result<Vec<u8>>>;
}
