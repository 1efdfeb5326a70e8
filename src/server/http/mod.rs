//! An HTTP/1.1 server, over TLS or plain: keep-alive, chunked streams, client certificates.
//! Upstream: `apiserver/pkg/server.SecureServingInfo`.
//!
//! Clients are untrusted until a handler has authenticated them, and they share the manager's only
//! thread. A [`Guard`] bounds their cost: connections, bytes of a request's head, and concurrent
//! steps of TLS handshakes. It also reserves descriptors, so that health checks are answered when
//! the process has no others.

#![warn(missing_docs)]

mod connection;
mod connections;
mod descriptors;
mod message;
mod server;
mod socket;
mod upgrade;

pub use message::{
    Body, BodyError, BodyStream, Bytes, Chain, Handler, HeaderMap, Method, Request, RequestBody,
    Response, handler,
};
pub use server::{Guard, Server};
pub use socket::{Socket, set_options};
pub use upgrade::{Upgrade, Upgraded, remove_credentials};
