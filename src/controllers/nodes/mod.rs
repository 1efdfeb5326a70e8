//! The nodes of the cluster.

pub mod ttl;
