//! Requests to the API server, on `surf` with a transport of our own. Upstream: client-go's `rest`.
//!
//! [`Client`] sends all requests; the contract stands above it. [`Dynamic`] has the verbs over one
//! resource, [`Config`] says where the server is and who asks, and [`Error`] why a request failed.

#![warn(missing_docs)]

mod api;
mod buffered;
mod call;
mod chunks;
mod config;
mod credentials;
mod error;
mod frames;
mod guard;
mod handle;
mod interceptor;
mod metrics;
mod path;
pub mod pem;
mod rate;
mod request;
mod single_flight;
mod split;
mod stream;
mod transport;
mod writes;
pub mod x509;

pub use api::{
    ApiResource, Delete, Discovery, Dynamic, List, ListOptions, Patch, Preconditions, Propagation,
    Scales,
};
pub use call::Call;
pub use chunks::{BadChunk, ChunkDecoder, Piece};
pub use config::{Config, Credentials, Exec, ExecEnv, Impersonation, Pem, Tls, is_in_cluster};
pub use credentials::TokenProvider;
pub use error::{Details, Error, Failure, FailureBody, Result, Status, StatusCause};
pub use guard::Guard;
pub use handle::Client;
pub use interceptor::Interceptor;
pub use path::ApiPath;
pub use split::{DocumentSplitter, ListPiece, ListSplitter};
pub use stream::{ListStream, WatchStream};
pub use transport::{Framing, Head, read_head};
pub use writes::Writes;
