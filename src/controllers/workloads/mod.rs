//! What runs pods: the workload controllers, and what they share.

pub mod consistency;
pub mod cronjob;
pub mod deployment;
pub mod expectations;
pub mod history;
pub mod pod_control;
pub mod ref_manager;
pub mod replicaset;
pub mod ttlafterfinished;
