//! The nodes of the cluster.

pub mod ipam;
pub mod lifecycle;
pub mod pods;
pub mod tainteviction;
mod taints;
pub mod ttl;
