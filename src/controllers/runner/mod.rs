//! What all controllers share: queues, workers, retries, event mapping.
//! Upstream: the `Run`, `worker` and `processNextWorkItem` of each controller.

pub mod batch;
mod change;
mod context;
mod controller;
mod error;
pub mod keys;
mod profile;
mod queue;
mod supervisor;

use std::sync::Arc;

pub use change::{Change, Mapper};
pub use context::{ClientBuilder, ControllerContext, ControllerContextParts, MetadataCaches};
pub use controller::{Controller, ControllerStatus, OptionalCache, Watcher};
pub use error::{Error, Next, SyncResult};
pub use profile::{Profile, Workers};
pub use queue::{LastError, Queue, QueuePolicy, SyncStatus};
pub use supervisor::Supervisor;

/// A request below `/debug/controllers/NAME`.
pub struct DebugRequest<'a> {
    /// Without the part that names the controller: `/graph`.
    pub path: &'a str,
    pub query: Vec<(&'a str, &'a str)>,
}

pub struct DebugAnswer {
    pub content_type: &'static str,
    pub body: String,
}

/// `None`: there is no such page. Upstream: `controller.Debuggable`.
pub type DebugHandler = Arc<dyn Fn(&DebugRequest<'_>) -> Option<DebugAnswer> + Send + Sync>;
