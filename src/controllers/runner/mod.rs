//! The parts that all controllers share: queues, workers, retries, event mapping.
//! Upstream: the `Run`, `worker` and `processNextWorkItem` of each controller.
//!
//! A controller's constructor wires a [`Controller`]: caches, queues, mappers from events to keys,
//! and a sync. [`Controller::run`] then does what upstream repeats in each controller; the contract
//! stands above [`Controller`]. [`QueuePolicy`] says how keys are retried, [`keys`] has the usual
//! mappers, [`Next`] and [`Error`] are what a sync returns. A [`ControllerContext`] has what the
//! controllers of a process share.
//! [`writing_a_controller`](crate::guide::writing_a_controller) has a whole program.

#![warn(missing_docs)]

pub(crate) mod batch;
mod change;
mod context;
mod controller;
mod error;
pub mod keys;
mod profile;
mod queue;
pub(crate) mod resource_monitors;
mod storm;
mod supervisor;

use std::sync::Arc;

pub use change::{Change, Mapper};
pub use context::{ClientBuilder, ControllerContext, ControllerContextParts, MetadataCaches};
pub use controller::{Controller, ControllerStatus, OptionalCache, Watcher};
pub use error::{Error, Next, SyncResult};
pub use profile::{Profile, Workers};
pub use queue::{LastError, Queue, QueuePolicy, SyncStatus};
pub(crate) use supervisor::Supervisor;

/// A GET below `/debug/controllers/NAME`.
pub struct DebugRequest<'a> {
    /// The path after the controller's name: `/graph`; empty at the name itself.
    pub path: &'a str,
    /// The parameters, still encoded, in their order; one without a value has an empty one.
    pub query: Vec<(&'a str, &'a str)>,
}

/// The page that answers a [`DebugRequest`], with status 200.
pub struct DebugAnswer {
    /// The media type of the page.
    pub content_type: &'static str,
    /// The page.
    pub body: String,
}

/// Answers debug requests from memory. `None`: there is no such page, and the answer is 404.
/// Upstream: `controller.Debuggable`.
pub type DebugHandler = Arc<dyn Fn(&DebugRequest<'_>) -> Option<DebugAnswer> + Send + Sync>;
