//! Lean views of the kinds, one for each resource: a second one would cost a second watch.

#[cfg(test)]
mod nulls;

pub mod bootstrap_token;
pub mod certificate_signing_request;
pub mod cluster_role;
pub mod config_map;
pub mod controller_revision;
pub mod cron_job;
pub mod csi_driver;
pub mod deployment;
pub mod device_class;
pub mod device_taint_rule;
pub mod endpoints;
pub mod job;
pub mod namespace;
pub mod node;
pub mod persistent_volume;
pub mod persistent_volume_claim;
pub mod pod;
pub mod pod_certificate_request;
pub mod pod_group;
pub mod pod_quota;
pub mod policy;
pub mod replicaset;
pub mod replication_controller;
pub mod resource_claim;
pub mod resource_claim_template;
pub mod resource_pool_status_request;
pub mod resource_quota;
pub mod resource_slice;
pub mod service;
pub mod service_account;
pub mod service_cidr;
pub mod stateful_set;
pub mod storage_class;
pub mod volume_attachment;
pub mod volume_attributes_class;
pub mod volume_source;
