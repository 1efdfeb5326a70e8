//! Objects with their history, and the served kinds.

pub mod registry;
pub mod store;
