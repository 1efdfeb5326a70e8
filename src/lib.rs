//! The Kubernetes controller manager in Rust: client-go's informer machinery and, on top of it,
//! the controllers of kube-controller-manager 1.36.
//!
//! A module uses only modules that are named before it: see `docs/architecture.md`.

mod buffer_pool;
pub mod clock;
mod files;
pub mod jwt;
mod lines;
mod lookup;
pub mod metrics;
mod storm;
pub mod task;
pub mod trace;

pub mod objects;

pub mod cache;
pub mod client;
pub mod workqueue;

pub mod source;

pub mod events;
pub mod leaderelection;

pub mod controllers;
pub mod server;
mod shadow;

pub mod app;
pub mod options;
