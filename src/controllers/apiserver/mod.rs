//! Controllers that serve the API server: storage versions of objects, and checks of admission
//! policies.

pub mod storageversiongc;
pub mod storageversionmigrator;
pub mod validatingadmissionpolicystatus;
