//! The kubelet on real containers: each test makes a machine of its own with `tests/node`, where
//! that is possible, and removes it.

mod addresses;
mod admission;
mod api;
mod api_objects;
mod cgroup2;
mod crashes;
mod cri;
mod csi;
mod csi_driver;
mod debug;
mod demo;
mod demo_cluster;
mod descriptors;
mod fake_runtime;
mod faults;
mod grpc;
mod images;
mod lifecycle;
mod machine;
mod node;
mod objects;
mod pods;
mod port;
mod proxy;
mod registration;
mod registry;
mod resize;
mod restarts;
mod secure;
mod sources;
mod spec;
mod standalone;
mod status;
mod streams;
mod upkeep;
