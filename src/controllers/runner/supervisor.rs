//! Work of controllers that something else watches over.

use std::time::Duration;

use super::{Error, SyncResult};
use crate::cache::BoxFuture;

/// Stands around the syncs and jobs of all controllers. It may replace their results.
pub trait Supervisor: Send + Sync + 'static {
    fn sync(
        &self,
        controller: &'static str,
        key: String,
        work: BoxFuture<'static, SyncResult>,
    ) -> BoxFuture<'static, SyncResult>;

    /// How long a job rests after its end, in place of `period`.
    fn rest(&self, period: Duration) -> Duration;

    /// A job whose own rest is `period`.
    fn job(
        &self,
        controller: &'static str,
        period: Duration,
        work: BoxFuture<'static, Result<(), Error>>,
    ) -> BoxFuture<'static, Result<(), Error>>;

    /// Work that lasts as long as the controller.
    fn background(
        &self,
        controller: &'static str,
        work: BoxFuture<'static, ()>,
    ) -> BoxFuture<'static, ()>;
}
