//! Two managers at one API server. The other one is the Go manager where its binary is present,
//! else this manager in another process.

pub mod handover;
mod shadow;
