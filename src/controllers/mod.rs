//! The runner that all controllers share, and a module for each family of controllers.
//!
//! [`runner`] is for any controller, also of another program; its items are exported here. The
//! families are the controllers of kube-controller-manager, which the table in `app` starts: they are
//! examples to read, no library. `docs/adding-a-controller.md` explains how one is added. Upstream:
//! `pkg/controller`.

pub(crate) mod accounts;
pub(crate) mod apiserver;
pub(crate) mod bootstrap;
pub mod certificates;
pub mod cleanup;
pub(crate) mod devices;
pub(crate) mod nodes;
pub(crate) mod resourcequota;
pub mod runner;
pub(crate) mod services;
pub mod storage;
pub mod workloads;

pub(crate) use runner::Supervisor;
pub use runner::{
    Change, ClientBuilder, Controller, ControllerContext, ControllerContextParts, DebugAnswer,
    DebugHandler, DebugRequest, Error, Next, Profile, Queue, QueuePolicy, SyncResult, Watcher,
    Workers, keys,
};
