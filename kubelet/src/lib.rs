//! A kubelet that keeps pods on one machine, from a folder or a URL, without an API server.
//!
//! The path of a pod: sources → [`sources::PodConfig`] → [`kubelet::Kubelet`], which gives each
//! pod a worker ([`workers`]) → [`manager::Manager`], which carries out what [`runtime::actions`]
//! decides by calls to the container runtime ([`cri`]). A relist of the runtime ([`pleg`]) and the
//! results of probes ([`probes`]) bring pods back to their workers.

pub mod app;
pub mod cgroups;
pub mod concurrent;
pub mod configuration;
pub mod credential_plugins;
pub mod credentials;
pub mod cri;
pub mod events;
pub mod eviction;
#[cfg(test)]
mod few_descriptors;
pub mod folder_watch;
pub mod garbage;
pub mod grpc;
pub mod hooks;
pub mod http;
pub mod huge_pages;
pub mod imagegc;
pub mod images;
pub mod kubelet;
pub mod local_objects;
pub mod logs;
pub mod manager;
pub mod metrics;
pub mod node_address;
pub mod oom;
pub mod options;
pub mod pleg;
pub mod pod;
pub mod podstatus;
pub mod probes;
pub mod runtime;
pub mod serving;
pub mod sources;
pub mod stats;
pub mod statusmanager;
pub mod tree;
pub mod upkeep;
pub mod volumes;
pub mod workers;
