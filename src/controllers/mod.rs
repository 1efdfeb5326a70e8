//! The runner that all controllers share, and a module for each family of controllers.

pub mod accounts;
pub mod apiserver;
pub mod bootstrap;
pub mod certificates;
pub mod cleanup;
pub mod devices;
pub mod nodes;
pub mod resourcequota;
pub mod runner;
pub mod services;
pub mod storage;
pub mod workloads;

pub use runner::{
    Change, ClientBuilder, Controller, ControllerContext, ControllerContextParts, DebugAnswer,
    DebugHandler, DebugRequest, Error, Next, Profile, Queue, QueuePolicy, Supervisor, SyncResult,
    Watcher, Workers, keys,
};
