//! A kubelet that keeps pods on one machine.

pub mod cri;
pub mod http;
pub mod pod;
pub mod sources;
