//! An embedded API server, and around it what makes a small cluster: a scheduler, stand-in nodes, a
//! demo and loads for a controller manager.
//!
//! | room | what it is |
//! |---|---|
//! | `api` | requests, the verbs, and their answers |
//! | `types` | OpenAPI and discovery documents; bodies held against the types |
//! | `patch`, `apply` | patches, server-side apply and field management |
//! | `protobuf` | the binary form of objects |
//! | `kinds` | defaults, rules and columns of each kind |
//! | `admission` | plugins that act on new objects |
//! | `cel` | evaluates expressions of policies and schemas |
//! | `auth` | certificates, tokens, RBAC |
//! | `storage` | objects with their history, and those that the server itself keeps |
//! | `nodes` | the scheduler and the kubelet |
//! | `metrics` | the metrics APIs, with values that a person sets |
//! | `debug_proxy` | shows a manager's debug pages to a browser |
//! | `load` | loads, and what they cost a controller manager |

mod access;
mod admission;
mod api;
mod apply;
mod auth;
mod bootstrap;
mod cel;
pub mod cluster;
pub mod debug_proxy;
pub mod demo;
mod failures;
mod kinds;
pub mod load;
mod metrics;
pub mod nodes;
mod object;
mod patch;
mod percent;
pub mod protobuf;
mod request;
mod rollout;
mod server;
pub mod status;
mod storage;
mod types;

pub use api::faults;
pub use auth::certs;
pub use server::{ClientFiles, Sandbox, SandboxError, SandboxOptions};
pub use storage::store;
