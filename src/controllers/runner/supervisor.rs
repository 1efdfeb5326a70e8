//! The hook around the work of all controllers, for shadow mode.

use std::time::Duration;

use super::{Error, SyncResult};
use crate::cache::BoxFuture;

/// Wraps the syncs and jobs of all controllers, and may replace their results. Shadow mode is one.
/// Upstream has no counterpart.
///
/// Each method that gets `work` returns the future that the runner polls in its place. The runner
/// polls it to its end.
pub trait Supervisor: Send + Sync + 'static {
    /// Wraps one sync of `key`, which is spelled as in logs. Syncs of one key of a queue never
    /// overlap.
    fn sync(
        &self,
        controller: &'static str,
        key: String,
        work: BoxFuture<'static, SyncResult>,
    ) -> BoxFuture<'static, SyncResult>;

    /// Returns the pause after a job's end, in place of `period`.
    fn pause_after_job(&self, period: Duration) -> Duration;

    /// Wraps one call of a periodic job, whose own pause is `period`.
    fn job(
        &self,
        controller: &'static str,
        period: Duration,
        work: BoxFuture<'static, Result<(), Error>>,
    ) -> BoxFuture<'static, Result<(), Error>>;

    /// Wraps work that lasts until the controller's end.
    fn background(
        &self,
        controller: &'static str,
        work: BoxFuture<'static, ()>,
    ) -> BoxFuture<'static, ()>;
}
