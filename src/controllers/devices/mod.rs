//! Claims of devices, and the devices' taints and pools.

pub mod consumers;
pub mod poolstatus;
pub mod recent;
pub mod resourceclaim;
pub mod tainteviction;
