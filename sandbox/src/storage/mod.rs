//! The objects of the cluster: the store, the kinds in it, and what the server itself keeps there.

mod bootstrap;
mod companions;
mod definitions;
pub mod registry;
pub mod store;
