//! An embedded API server, a small scheduler and stand-in nodes.

pub mod api;
mod apply;
pub mod auth;
mod call;
pub mod certs;
pub mod cluster;
mod decode;
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
mod protobuf;
mod read;
mod registry;
mod reviews;
pub mod scheduler;
mod select;
mod server;
mod shape;
pub mod status;
pub mod store;
mod subresources;
pub mod table;
pub mod traffic;
mod validation;
mod watch;
mod write;

pub use server::{ClientFiles, Sandbox, SandboxError, SandboxOptions};
