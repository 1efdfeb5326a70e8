//! A hook between a client and its transport that sees every request.

use futures_lite::future::Boxed;

use super::{Call, Result};

/// Sees the reads of a client, and answers its writes in place of the API server. Shadow mode is
/// one. Upstream: `rest.Config.WrapTransport`.
///
/// It comes before the limiter, the guard and the credentials: a write that it answers reaches none
/// of them.
pub trait Interceptor: Send + Sync + 'static {
    /// Called with each read before it is sent, retries not included. Must not wait.
    fn on_read(&self, call: &Call);

    /// The body of the answer to a write, or the error that its caller gets. `agent`: the client's
    /// User-Agent. The future may be dropped at any time.
    fn handle_write(&self, call: &Call, agent: &str) -> Boxed<Result<Vec<u8>>>;
}
