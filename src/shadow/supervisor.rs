//! Shadow mode around the controllers' work: a sync that wanted to write is called again until it
//! no longer wants to.

use std::time::Duration;

use super::Shadow;
use crate::cache::BoxFuture;
use crate::client;
use crate::controllers::{Error, Next, Supervisor, SyncResult};
use crate::task::{SyncScope, in_scope};

/// Periodic jobs with at most this period run this many times as often: the manager in charge runs
/// them at another time, and this manager must want the same writes while they are held back.
const FREQUENT_PERIOD: Duration = Duration::from_secs(60);
const FREQUENCY_FACTOR: u32 = 20;

/// Returns whether the error shows that the live object differs from the cached one.
fn is_from_stale_cache(error: &Error) -> bool {
    let is = |error: &client::Error| {
        error.is_not_found() || error.is_conflict() || error.is_already_exists()
    };
    error.api().is_some_and(is)
}

impl Supervisor for Shadow {
    /// Runs a sync of a key, and records its end; a sync with writes that were not made is retried.
    fn sync(
        &self,
        controller: &'static str,
        key: String,
        work: BoxFuture<'static, SyncResult>,
    ) -> BoxFuture<'static, SyncResult> {
        let shadow = self.inner.clone();
        Box::pin(async move {
            let run = SyncScope::new(controller, key, Duration::ZERO);
            let began = shadow.clock.monotonic();
            let result = in_scope(run.clone(), work).await;
            run.end();
            let (now, has_unwritten) = (shadow.clock.monotonic(), run.has_unwritten());
            let is_whole = !has_unwritten && result.is_ok();
            let retry =
                shadow.ledger.lock().record_sync_end(now, controller, &run.key, began, is_whole);
            // The controller's reaction to a failed write (a back-off, a last retry) does not
            // count, because no write failed. Nor do errors about objects that changed on the
            // server before the caches saw it.
            match result {
                _ if has_unwritten => Ok(Next::After(retry)),
                Err(error) if is_from_stale_cache(&error) && shadow.is_ahead(&run.key) => {
                    log::debug!("shadow: {controller}: {}, behind the cluster: {error}", run.key);
                    Ok(Next::After(retry))
                }
                result => result,
            }
        })
    }

    fn pause_after_job(&self, period: Duration) -> Duration {
        if period <= FREQUENT_PERIOD { period / FREQUENCY_FACTOR } else { period }
    }

    /// Runs a periodic job; its error does not count if it has wanted a write.
    fn job(
        &self,
        controller: &'static str,
        period: Duration,
        work: BoxFuture<'static, Result<(), Error>>,
    ) -> BoxFuture<'static, Result<(), Error>> {
        let run = SyncScope::new(controller, "", period);
        Box::pin(async move {
            let result = in_scope(run.clone(), work).await;
            if run.has_unwritten() { Ok(()) } else { result }
        })
    }

    /// Runs a background task in a scope of its own, so that its writes are recorded under the
    /// controller's name.
    fn background(
        &self,
        controller: &'static str,
        work: BoxFuture<'static, ()>,
    ) -> BoxFuture<'static, ()> {
        Box::pin(in_scope(SyncScope::new(controller, "", Duration::ZERO), work))
    }
}
