//! Another manager at the same API server: the Go one where its binary is at hand, else this one.

pub mod handover;
mod shadow;
