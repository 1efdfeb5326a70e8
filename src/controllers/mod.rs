//! The shared runner and helpers, then one module per controller.

pub mod batch;
pub mod consistency;
pub mod deployment;
pub mod expectations;
pub mod garbagecollector;
pub mod monitors;
pub mod pod_control;
pub mod podgc;
pub mod ref_manager;
pub mod replicaset;
pub mod resourcequota;
pub mod runner;

pub use runner::{
    ClientBuilder, Controller, ControllerContext, ControllerContextParts, Error, Health, Next,
    Queue, SyncResult, keys,
};
