//! The objects of the cluster: the store, the kinds in it, and what the server itself keeps there.

pub mod bootstrap;
pub mod companions;
pub mod definitions;
mod flow;
pub mod registry;
pub mod store;
