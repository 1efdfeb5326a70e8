//! The workload controllers, and the parts that they share.

pub mod autoscaling;
pub mod availability;
pub mod changed_revisions;
pub mod consistency;
pub mod creations;
pub mod cronjob;
pub mod daemonset;
pub mod deployment;
pub mod disruption;
pub mod expectations;
pub mod history;
pub mod job;
pub mod new_pod;
pub mod owner_records;
pub mod percent;
pub mod pod_batch;
pub mod pod_control;
pub mod podgroupprotection;
pub mod ref_manager;
pub mod replicaset;
pub mod statefulset;
pub mod ttlafterfinished;
