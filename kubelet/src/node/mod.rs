//! The node: the machine, its Node in the API, and the processes that its kernel kills.
//!
//! [`own::OwnNode`] is the Node that all parts read. [`status`] computes its status from plain values,
//! [`register`] and [`lease`] write to the API server.

pub mod address;
pub mod app_armor;
pub mod conditions;
mod error;
pub mod heartbeat;
pub mod huge_pages;
pub mod labels;
pub mod lease;
pub mod machine_info;
pub mod network;
pub mod oom;
pub mod own;
pub mod patch;
pub mod pressure;
pub mod register;
pub mod resources;
pub mod status;

pub use self::error::Error;
