//! A kubelet that keeps pods on one machine: from a folder, a URL or an API server.
//!
//! The path of a pod: sources → [`sources::PodConfig`] → [`kubelet::Kubelet`], which admits it
//! ([`admission`]) and gives it a worker ([`kubelet::pod_workers`]) → [`kuberuntime::Manager`], which carries out what
//! [`runtime::actions`] decides by calls to the container runtime ([`cri`]). A relist of the
//! runtime ([`kubelet::pleg`]) and the results of probes ([`prober`]) bring pods back to their
//! workers.

pub mod admission;
pub mod allocation;
pub mod app;
pub mod causes;
pub mod certificate;
pub mod cgroups;
pub mod concurrent;
pub mod cri;
pub mod csi;
pub mod dbus;
pub mod events;
pub mod eviction;
#[cfg(test)]
mod few_descriptors;
pub mod files;
pub mod http;
pub mod images;
pub mod kubelet;
pub mod kuberuntime;
pub mod locks;
pub mod logs;
pub mod metrics;
pub mod node;
pub mod node_sync;
pub mod objects;
pub mod options;
pub mod pod;
pub mod prober;
pub mod runtime;
pub mod server;
pub mod shutdown;
pub mod sources;
pub mod stats;
pub mod status;
pub mod strategic_merge;
pub mod upkeep;
pub mod user_namespaces;
pub mod volumes;
pub mod whole_object;
