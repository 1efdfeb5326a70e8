//! The kubelet on real containers: each test makes a machine of its own with `tests/node`, where
//! that is possible, and removes it.

mod crashes;
mod cri;
mod faults;
mod node;
mod pods;
mod proxy;
mod registry;
mod upkeep;
