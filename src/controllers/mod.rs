//! The shared runner and helpers, then one module per controller.

pub mod batch;
pub mod clusterroleaggregation;
pub mod consistency;
pub mod deployment;
pub mod endpoint;
pub mod endpointslice;
pub mod endpointslicemirroring;
pub mod expectations;
pub mod garbagecollector;
pub mod monitors;
pub mod namespace;
pub mod pod_control;
pub mod podgc;
pub mod ref_manager;
pub mod replicaset;
pub mod resourcequota;
pub mod root_ca;
pub mod rootcacertpublisher;
pub mod runner;
pub mod service_endpoints;
pub mod serviceaccount;
pub mod servicecidrs;
pub mod ttl;
pub mod validatingadmissionpolicystatus;

pub use runner::{
    ClientBuilder, Controller, ControllerContext, ControllerContextParts, DebugAnswer,
    DebugHandler, DebugRequest, Error, Health, Next, Queue, SyncResult, keys,
};
