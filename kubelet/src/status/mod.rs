//! The status of a pod: [`generate`] computes it, and [`manager`] writes it to the API server.
//! Upstream: `pkg/kubelet/status`.

pub mod generate;
pub mod manager;

use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;

use crate::pod::Pod;

/// What the API server is to know about one of its pods.
#[derive(Clone, Debug)]
pub struct Report {
    pub pod: Arc<Pod>,
    pub status: core::PodStatus,
    /// Whether its containers have ended for good.
    pub is_terminated: bool,
    /// Whether it holds nothing any more.
    pub is_finished: bool,
}
