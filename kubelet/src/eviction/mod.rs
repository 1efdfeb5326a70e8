//! Decides when the node has too little of a resource, and which pod has to go for it.
//! Upstream: `pkg/kubelet/eviction`.

mod error;
mod limits;
mod ranking;
mod thresholds;
mod watch;

use kube_controller_manager::objects::{Format, Quantity};

pub use self::error::{AmountError, Error};
pub use self::limits::{exceeded_limit, has_local_limits};
pub use self::ranking::{CRITICAL_PRIORITY, Candidate, Explanation, explain, is_critical, rank};
pub use self::thresholds::{Amount, Signal, Statements, Threshold, reserved, thresholds};
pub use self::watch::{Observation, Observations, Watch, observe, unresolved};
use crate::stats::Fs;

/// The reason in the status of a pod that is evicted.
pub const REASON: &str = "Evicted";

/// Returns the bytes that a file system has in use, or with `inodes` its inodes in use.
fn used(fs: Option<&Fs>, inodes: bool) -> u64 {
    fs.and_then(|fs| if inodes { fs.inodes_used } else { fs.used_bytes }).unwrap_or(0)
}

/// Formats bytes as a quantity, such as `1Gi`.
fn bytes(bytes: u64) -> String {
    let milli = i64::try_from(bytes).unwrap_or(i64::MAX).saturating_mul(1000);
    Quantity::from_milli(milli, Format::BinarySi).to_string()
}
