//! The controllers of clouds, on an interface to a provider. Upstream: `k8s.io/cloud-provider`.

pub mod objects;
pub mod provider;
