//! Where pods come from. Upstream: `pkg/kubelet/config`.

pub mod api;
pub mod decode;
mod defaults;
pub mod file;
pub mod pod_config;
pub mod url;
mod validate;

pub use pod_config::{Op, PodConfig, PodUpdate, Source};
