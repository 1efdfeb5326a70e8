//! Leader election: at most one of several managers works at a time.
//! Upstream: client-go's `tools/leaderelection`.
//!
//! `election` decides, without I/O, the next step of an attempt to take or keep the lock;
//! [`LeaderElector`] carries it out and waits; [`LeaseLock`] is the lock. The contract stands above
//! [`LeaderElector`].

#![warn(missing_docs)]

mod callbacks;
mod config;
mod election;
mod elector;
mod healthz;
mod lease_lock;
mod lock;

pub use callbacks::{Ended, LeaderCallbacks, Work};
pub use config::{Config, ConfigError};
pub use elector::LeaderElector;
pub use healthz::HealthzAdaptor;
pub use lease_lock::{LeaseLock, new_identity};
pub use lock::{LeaderElectionRecord, Lock, LockError, LockFuture};
