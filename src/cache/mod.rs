//! client-go's tools/cache: keeps shared copies of the objects that the API server holds, and
//! notifies handlers of changes.
//!
//! The path of an object: [`Source`] (encoded) → [`Reflector`] (decodes it) → [`DeltaFifo`] →
//! [`Indexer`], and from there as notifications to every [`EventHandler`].
//! `docs/client-go.md` maps each piece to upstream's. Upstream: `k8s.io/client-go/tools/cache`.

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
mod phase;
mod processor;
mod progress;
mod reflector;
mod shared_informer;
mod source;
#[cfg(test)]
pub(crate) mod testing;
mod time_slice;

pub use any::AnyObject;
pub use decoder::Decoder;
pub use delta_fifo::{Delta, DeltaFifo, Known, Popped};
pub use error::{DecodeError, Error};
pub use factory::SharedInformerFactory;
pub use handler::{Deleted, EventHandler, Registration};
pub use history::{Follower, History};
pub use indexer::{AnyIndexer, HistoryVersion, Index, IndexFn, IndexValue, Indexer};
pub use informer::InformerStatus;
pub use lister::Lister;
pub use metadata::{MetadataHandler, MetadataInformer};
pub use phase::{Backoff, Outcome, Phase, Start};
pub use processor::HandlerStatus;
pub use progress::ReflectorStatus;
pub use reflector::Reflector;
pub use shared_informer::SharedIndexInformer;
pub use source::{Answer, BoxFuture, ListRequest, Scope, Source, WatchRequest};
