//! The client of the container runtime: CRI v1. Upstream: `k8s.io/cri-client`.

mod channel;
mod error;
mod images;
mod runtime;

/// The messages of CRI, compiled from `proto/api.proto`.
#[allow(clippy::all, clippy::allow_attributes, reason = "generated code")]
pub mod api {
    include!(concat!(env!("OUT_DIR"), "/runtime.v1.rs"));
}

pub use channel::{Channel, Executor};
pub(crate) use channel::{answer, request};
pub use error::{Code, Error};
pub use images::ImageService;
pub use runtime::RuntimeService;

/// Declares the calls of a service that have one deadline for all.
macro_rules! calls {
    ($service:literal: $(
        $(#[$doc:meta])* $name:ident $method:literal ($request:ty) -> $answer:ty;
    )+) => { $(
        $(#[$doc])*
        ///
        /// # Errors
        /// See [`Error`](crate::cri::Error).
        pub async fn $name(&self, request: $request) -> Result<$answer, crate::cri::Error> {
            let path = concat!("runtime.v1.", $service, "/", $method);
            self.call(path, &request, Some(self.deadline)).await
        }
    )+ };
}
use calls;

use hyper::body::Bytes;
use prost::Message;

fn decoded<A: Message + Default>(method: &'static str, answer: Bytes) -> Result<A, Error> {
    A::decode(answer).map_err(|error| Error::Malformed { method, fault: error.to_string() })
}
