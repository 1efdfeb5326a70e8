//! Where pods come from. Upstream: `pkg/kubelet/config`.

pub mod api;
pub mod decode;
mod defaults;
mod enumerated;
mod error;
pub mod file;
mod lifecycle;
mod octal;
pub mod pod_config;
mod pod_resources;
mod profiles;
mod support;
pub mod url;
mod validate;

pub use decode::Placement;
pub use error::Error;
pub use pod_config::{Op, PodConfig, PodUpdate, Source};
