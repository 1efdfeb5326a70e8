//! The controllers of clouds, on an interface to a provider. Upstream: `k8s.io/cloud-provider`.
//!
//! [`provider`] is the interface, [`controllers`] works with any cloud behind it, and [`app`] is the
//! program `cloud-controller-manager`.

pub mod app;
pub mod bare;
pub mod controllers;
mod duration;
pub mod grpc;
pub mod objects;
pub mod options;
mod parallel;
pub mod provider;
pub mod providers;
