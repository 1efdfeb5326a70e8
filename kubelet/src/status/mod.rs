//! The status of a pod: [`generate`] computes it, and [`manager`] writes it to the API server, where
//! [`mirror`] keeps a pod for each static one.
//! Upstream: `pkg/kubelet/status`, `pkg/kubelet/pod/mirror_client.go`.

pub mod conditions;
pub mod generate;
pub mod manager;
mod merge;
pub mod mirror;
mod resources;
pub mod settle;
pub mod terminate;

use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;

use crate::pod::{Pod, Uid};

/// What the API server is to know about a pod.
#[derive(Clone, Debug)]
pub struct Report {
    pub pod: Arc<Pod>,
    /// The pod as the API server had it last: that of a static pod is its mirror pod. `None`: it has
    /// none.
    pub api: Option<Arc<Pod>>,
    pub status: Arc<core::PodStatus>,
    /// Grows with each change of the status.
    pub version: u64,
    /// Whether its containers have ended for good.
    pub is_terminated: bool,
    /// Whether it holds nothing any more.
    pub is_finished: bool,
}

/// What may have to be written to the API server.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    /// The status of the pod of this uid.
    Status(Uid),
    /// The mirror pod of this full name, or the static pod of that name.
    Mirror(String),
}

/// What the kubelet knows of its pods.
pub trait Pods: Send + Sync {
    /// Returns the report of a pod. `None`: no source has the pod, or it has no status yet.
    fn report(&self, uid: &Uid) -> Option<Report>;

    /// Returns what to do about the mirror pod of this full name; `None`: nothing, for now.
    fn mirror_step(&self, full_name: &str) -> Option<mirror::Step>;
}
