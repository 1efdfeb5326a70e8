//! A gRPC client for calls of one message and one answer, on hyper's HTTP/2: the kubelet calls the
//! container runtime by it, and the cloud controllers a cloud provider that is a process of its own.
//! Upstream: `google.golang.org/grpc`, of which it has what these two need.

mod channel;
mod endpoint;
mod error;
mod frames;
#[cfg(test)]
mod tests;

pub use channel::{Channel, Executor};
pub use endpoint::{Endpoint, Tls};
pub use error::{Code, Error};
pub use frames::{answer, frame, message_of, request};
