//! The queues that controllers take their keys from. Upstream: client-go's `util/workqueue`.
//!
//! `queue` holds the keys to work on and those in progress, `delaying` the keys that wait for a
//! time; both are plain data that never wait. [`RateLimitingQueue`] puts a lock around the two and
//! lets workers wait; its documentation has the contract. `rate_limiters` decide how long a failed
//! key waits, and `token_bucket` holds a rate that may change.
//!
//! A worker takes a key, works, and then calls `done`. A key that fails is added again after the
//! limiter's delay, and one that succeeds is forgotten by it:
//!
//! ```
//! use kube_controller_manager::clock::SystemClock;
//! use kube_controller_manager::task;
//! use kube_controller_manager::workqueue::{RateLimitingQueue, default_controller_rate_limiter};
//!
//! let attempts = task::run(1, async {
//!     let clock = SystemClock::shared();
//!     let limiter = default_controller_rate_limiter(clock.clone());
//!     let queue = RateLimitingQueue::new("", clock, limiter);
//!     // Two additions before a worker takes the key are one piece of work.
//!     queue.add("default/web");
//!     queue.add("default/web");
//!     let mut attempts = 0;
//!     while let Some(key) = queue.get().await {
//!         attempts += 1;
//!         match queue.num_requeues(&key) {
//!             0 => queue.add_rate_limited(key),
//!             _ => {
//!                 queue.forget(&key);
//!                 queue.shut_down();
//!             }
//!         }
//!         queue.done(&key);
//!     }
//!     attempts
//! });
//! assert_eq!(attempts, 2);
//! ```

#![warn(missing_docs)]

mod delaying;
mod metrics;
mod queue;
mod rate_limiters;
mod rate_limiting;
mod token_bucket;

use std::fmt::Display;
use std::hash::Hash;

pub use rate_limiters::{
    BucketRateLimiter, ItemExponentialFailureRateLimiter, MaxOfRateLimiter, RateLimiter,
    default_controller_rate_limiter, exponential_failure_rate_limiter,
};
pub use rate_limiting::{QueueStatus, RateLimitingQueue};
pub use token_bucket::TokenBucket;

/// A key that a queue can hold: cheap to clone, and printable for logs. Equal keys are the same
/// work.
pub trait Key: Clone + Eq + Hash + Display + Send + Sync + 'static {}
impl<K: Clone + Eq + Hash + Display + Send + Sync + 'static> Key for K {}
