//! The shared runner and helpers, then one module per controller.

pub mod batch;
pub mod consistency;
pub mod deployment;
pub mod endpoint;
pub mod endpointslice;
pub mod endpointslicemirroring;
pub mod expectations;
pub mod garbagecollector;
pub mod pod_control;
pub mod ref_manager;
pub mod replicaset;
pub mod runner;
pub mod service_endpoints;

pub use runner::{
    ClientBuilder, Controller, ControllerContext, ControllerContextParts, Error, Health, Next,
    Queue, SyncResult, keys,
};
