//! client-go's tools/cache: keeps shared copies of the objects that the API server holds, and
//! notifies handlers of changes.
//!
//! The path of an object: [`Source`] (encoded) → [`Reflector`] (decodes it) → [`DeltaFifo`] →
//! [`Indexer`], and from there as notifications to every [`EventHandler`].
//! [`guide`](crate::guide) maps each piece to upstream's. Upstream: `k8s.io/client-go/tools/cache`.
//!
//! Most users need three of them: a [`SharedInformerFactory`], its [`SharedIndexInformer`]s, and
//! their [`Lister`]s. The contract stands above [`SharedIndexInformer`]; [`Indexer`] has that of
//! reads. The server is behind [`Source`], so that a cache needs no HTTP:
//! [`ClientSource`](crate::source::ClientSource) is the client as one.
//!
//! ```no_run
//! use kube_controller_manager::cache::SharedInformerFactory;
//! use kube_controller_manager::client::Client;
//! use kube_controller_manager::clock::SharedClock;
//! use kube_controller_manager::objects::{ObjectKey, Pod};
//! use kube_controller_manager::source::ClientSource;
//! use kube_controller_manager::task::StopToken;
//!
//! async fn read(client: Client, clock: SharedClock) {
//!     let factory = SharedInformerFactory::new(ClientSource::new(client), clock);
//!     let pods = factory.informer::<Pod>().lister();
//!     let stop = StopToken::new();
//!     factory.start(&stop);
//!     factory.wait_for_cache_sync().await;
//!     println!("{} pods", pods.in_namespace("default").len());
//!     println!("{:?}", pods.get(&ObjectKey::new("default", "web-1")));
//!     stop.stop();
//!     factory.shutdown().await;
//! }
//! ```
//!
//! An [`Index`] finds objects by a value of theirs:
//!
//! ```
//! use std::sync::Arc;
//!
//! use kube_controller_manager::cache::{Index, IndexValue, Indexer};
//! use kube_controller_manager::objects::Pod;
//!
//! static BY_NODE: Index<Pod> = Index::new("node", |pod, found| {
//!     found(IndexValue::Text(pod.spec.node_name.clone()));
//! });
//!
//! let pods = Indexer::new();
//! pods.add_index(&BY_NODE);
//! for (name, node) in [("a", "node-1"), ("b", "node-2")] {
//!     let mut pod = Pod::default();
//!     pod.meta.name = name.into();
//!     pod.spec.node_name = node.into();
//!     pods.insert(Arc::new(pod));
//! }
//! let found = pods.by_index(&BY_NODE, &IndexValue::Text("node-2".into()));
//! assert_eq!((found.len(), &*found[0].meta.name), (1, "b"));
//! ```

#![warn(missing_docs)]

mod any;
mod backlog;
mod counts;
mod decoder;
mod delta_fifo;
mod error;
mod factory;
mod handler;
mod history;
mod indexer;
mod informer;
mod lister;
mod metadata;
mod metrics;
mod object_table;
mod outages;
mod phase;
mod processor;
mod progress;
mod reflector;
mod shared_informer;
mod source;
#[cfg(test)]
pub(crate) mod testing;
mod time_slice;
mod undelta_store;

pub use any::AnyObject;
pub use decoder::Decoder;
pub use delta_fifo::{Delta, DeltaFifo, KnownState, Popped};
pub use error::{DecodeError, Error};
pub use factory::SharedInformerFactory;
pub use handler::{Deleted, EventHandler, Registration};
pub use history::{LossObserver, VersionLosses};
pub use indexer::{AnyIndexer, HistoryVersion, Index, IndexFn, IndexValue, Indexer};
pub use informer::InformerStatus;
pub use lister::Lister;
pub use metadata::{MetadataHandler, MetadataInformer};
pub use outages::Outages;
pub use phase::{Backoff, Outcome, Phase, Start};
pub use processor::HandlerStatus;
pub use progress::ReflectorStatus;
pub use reflector::Reflector;
pub use shared_informer::SharedIndexInformer;
pub use source::{Answer, BoxFuture, ListRequest, Scope, Source, WatchRequest};
pub use undelta_store::{PushFn, UndeltaStore};
