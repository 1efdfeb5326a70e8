//! The controllers of clouds. Upstream: `cloud-provider/controllers`.

pub mod lifecycle;
pub mod node;
mod node_writes;
pub mod route;
pub mod service;

use std::sync::Arc;
use std::time::Duration;

use kube_controller_manager::controllers::Controller;

use crate::provider::Cloud;

/// What these controllers need beside what all controllers have.
pub struct Parts {
    pub cloud: Arc<dyn Cloud>,
    /// `--node-status-update-frequency`.
    pub node_status_update_frequency: Duration,
    /// `--concurrent-node-syncs`.
    pub concurrent_node_syncs: usize,
    /// `--concurrent-node-status-updates`.
    pub concurrent_node_status_updates: usize,
    /// `--concurrent-node-lifecycle-syncs`.
    pub concurrent_node_lifecycle_syncs: usize,
}

impl Parts {
    /// Returns the parts of the program that made the controller.
    fn of(c: &Controller) -> Result<Arc<Parts>, String> {
        c.extension::<Parts>().ok_or_else(|| format!("{}: there is no cloud", c.name()))
    }
}
