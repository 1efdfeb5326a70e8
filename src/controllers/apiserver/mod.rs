//! What is done for the API server: stored objects in their current version, and the checks of
//! admission policies.

pub mod storageversiongc;
pub mod storageversionmigrator;
pub mod validatingadmissionpolicystatus;
