//! Service accounts, their tokens, and roles.

pub mod clusterroleaggregation;
pub mod serviceaccount;
