//! An embedded API server, a small scheduler and stand-in nodes.

pub mod api;
pub mod auth;
mod call;
pub mod certs;
pub mod cluster;
mod delete;
pub mod demo;
pub mod discovery;
mod documents;
mod failures;
pub mod faults;
pub mod kinds;
mod legacy_tokens;
pub mod load;
pub mod nodes;
pub mod openapi;
pub mod patch;
mod read;
mod registry;
mod reviews;
pub mod scheduler;
mod select;
mod server;
pub mod status;
pub mod store;
mod subresources;
pub mod table;
pub mod traffic;
mod watch;
mod write;

pub use server::{ClientFiles, Sandbox, SandboxError, SandboxOptions};
