//! Requests to the API server, on `surf` with a transport of our own. Upstream: client-go's `rest`,
//! `dynamic`, `discovery`, `tools/clientcmd`.
//!
//! [`Client`] sends all requests; the contract stands above it. [`Config`] says where the server is
//! and who asks. The verbs are methods of `Client` for a type that is a
//! [`Resource`](crate::objects::Resource), and of [`Dynamic`] for any resource, whose objects may be
//! JSON. [`Discovery`] has the resources that the server serves, and [`Error`] says why a request
//! failed. [`WatchStream`] and [`ListStream`] give objects as their bytes arrive; caches use them.
//!
//! ```no_run
//! use kube_controller_manager::client::{Client, Config, ListOptions, Patch, Result};
//! use kube_controller_manager::clock::SystemClock;
//! use kube_controller_manager::objects::{Deployment, ObjectKey, Pod, ResourceType};
//! use serde_json::{Value, json};
//!
//! async fn requests() -> Result<()> {
//!     let client = Client::new(Config::in_cluster()?, SystemClock::shared())?;
//!     let web = ListOptions { label_selector: Some("app=web".into()), ..ListOptions::default() };
//!     let pods: Vec<Pod> = client.list(Some("default"), &web).await?;
//!
//!     let patch = Patch::Merge(json!({ "spec": { "replicas": pods.len() + 1 } }));
//!     let scaled: Result<Deployment> = client.patch(&ObjectKey::new("default", "web"), &patch).await;
//!     match scaled {
//!         Err(error) if error.is_not_found() => println!("it is gone"),
//!         other => drop(other?),
//!     }
//!
//!     let widgets = ResourceType::fixed("example.com", "v1", "Widget", "widgets", true);
//!     let widgets = client.resource(&widgets).list::<Value>(None, &ListOptions::default()).await?;
//!     println!("{} widgets at {}", widgets.items.len(), widgets.resource_version);
//!     Ok(())
//! }
//! ```

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
mod served_versions;
mod single_flight;
mod split;
mod stream;
#[cfg(test)]
pub(crate) mod testing;
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
pub use credentials::{RenewedCertificate, TokenProvider};
pub use error::{Details, Error, Failure, FailureBody, Result, Status, StatusCause};
pub use guard::Guard;
pub use handle::Client;
pub use interceptor::Interceptor;
pub use path::ApiPath;
pub use served_versions::Versions;
pub use split::{DocumentSplitter, ListPiece, ListSplitter};
pub use stream::{ListStream, WatchStream};
pub use transport::{Framing, Head, Trust, read_head};
pub use writes::Writes;
