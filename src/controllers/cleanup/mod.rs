//! Deletes leftovers: dependents without owners, the content of namespaces, old pods.

pub mod garbagecollector;
pub mod namespace;
pub mod podgc;
