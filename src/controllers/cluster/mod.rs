//! What keeps the cluster as a whole in order: garbage, namespaces, quotas, policies.

pub mod garbagecollector;
pub mod monitors;
pub mod namespace;
pub mod podgc;
pub mod podgroupprotection;
pub mod resourcequota;
pub mod storageversiongc;
pub mod storageversionmigrator;
pub mod validatingadmissionpolicystatus;
