//! An embedded API server, and the rest of a small cluster: a scheduler, stand-in nodes, a demo, a
//! lesson and loads for a controller manager. `docs/architecture.md` has the table of its rooms, and what each
//! may use of the others.

pub mod access;
mod admission;
mod api;
mod apply;
mod auth;
mod bootstrap;
pub mod cel;
pub mod cluster;
pub mod containers;
pub mod debug_proxy;
pub mod demo;
mod failures;
mod forwarder;
mod kinds;
pub mod lesson;
pub mod load;
mod metrics;
pub mod nodes;
mod object;
mod patch;
pub mod protobuf;
mod proxy;
pub mod real_server;
mod request;
mod rollout;
mod server;
pub mod soak;
pub mod status;
mod storage;
mod types;

pub use api::{Api, faults};
pub use auth::certs;
pub use server::{ClientFiles, Sandbox, SandboxError, SandboxOptions};
pub use storage::store;
