//! Claims of devices, and the devices' taints and pools.

pub mod consumers;
pub mod poolstatus;
pub mod resourceclaim;
pub mod tainteviction;
pub mod uid_cache;
