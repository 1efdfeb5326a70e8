//! Leader election: at most one of several processes works at a time.
//! Upstream: client-go's `tools/leaderelection`.
//!
//! `election` decides, without I/O, the next step of an attempt to take or keep the lock;
//! [`LeaderElector`] carries it out and waits; [`LeaseLock`] is the lock. The contract stands above
//! [`LeaderElector`]; [`LeaderElector::guard`] refuses writes that would be late.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use kube_controller_manager::client::Client;
//! use kube_controller_manager::clock::SharedClock;
//! use kube_controller_manager::leaderelection::{
//!     Config, ConfigError, Ended, LeaderCallbacks, LeaderElector, LeaseLock, Work, new_identity,
//! };
//! use kube_controller_manager::objects::ObjectKey;
//! use kube_controller_manager::task::StopToken;
//!
//! async fn lead(client: Client, clock: SharedClock, stop: StopToken) -> Result<(), ConfigError> {
//!     let lease = ObjectKey::new("default", "example");
//!     let lock = LeaseLock::new(&client.for_lease(), lease, new_identity(), None);
//!     let elector = LeaderElector::new(Config::new("example", Arc::new(lock)), clock)?;
//!     // The work writes by this client alone.
//!     let guarded = client.guarded(elector.guard());
//!     let work = |stop: StopToken| async move {
//!         stop.stopped().await;
//!         drop(guarded);
//!         Work::Ended
//!     };
//!     if elector.run(LeaderCallbacks::new(work, || ()), &stop).await == Ended::Lost {
//!         std::process::exit(1);
//!     }
//!     Ok(())
//! }
//! ```

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
