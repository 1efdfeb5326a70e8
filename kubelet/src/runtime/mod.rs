//! Pods in the container runtime: their state there, what has to be done, and the calls that do it.
//! Upstream: `pkg/kubelet/kuberuntime`.

pub mod actions;
pub mod backoff;
pub mod dns;
pub mod env_file;
pub mod environment;
mod error;
pub mod labels;
pub mod order;
pub mod resize;
pub mod spec;
pub mod status;

pub use self::error::Error;
