//! The client of the container runtime: CRI v1. Upstream: `k8s.io/cri-client`.

mod images;
mod runtime;
#[cfg(test)]
pub(crate) mod testing;

use std::path::Path;

use grpc::Endpoint;
use kube_controller_manager::clock::SharedClock;

use crate::metrics;

/// The messages of CRI, compiled from `proto/api.proto`.
#[allow(clippy::all, clippy::allow_attributes, reason = "generated code")]
pub mod api {
    include!(concat!(env!("OUT_DIR"), "/runtime.v1.rs"));
}

pub use grpc::{Channel, Code, Error, Executor};
pub use images::ImageService;
pub use runtime::RuntimeService;

/// Returns a channel to the container runtime at `socket`. Its calls are counted.
pub fn channel(socket: &Path, clock: SharedClock) -> Channel {
    let endpoint = Endpoint::Unix(socket.to_owned());
    Channel::new("container runtime", endpoint, clock, metrics::observe_operation)
}

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
