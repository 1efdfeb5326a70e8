//! Shadow mode around the controllers' work: a sync that wanted to write is called again until it no
//! longer wants to.

use std::time::Duration;

use super::Shadow;
use crate::cache::BoxFuture;
use crate::controllers::{Error, Next, Supervisor, SyncResult};
use crate::task::{Run, in_run};

impl Supervisor for Shadow {
    fn sync(
        &self,
        controller: &'static str,
        key: String,
        work: BoxFuture<'static, SyncResult>,
    ) -> BoxFuture<'static, SyncResult> {
        let shadow = self.inner.clone();
        Box::pin(async move {
            let run = Run::new(controller, key, Duration::ZERO);
            let began = shadow.clock.monotonic();
            let result = in_run(run.clone(), work).await;
            run.end();
            let (now, derailed) = (shadow.clock.monotonic(), run.is_derailed());
            let is_whole = !derailed && result.is_ok();
            let retry = shadow.ledger.lock().run_ended(now, controller, &run.key, began, is_whole);
            // What the controller makes of a failed write (a back-off, a last retry) does not count:
            // the write did not fail.
            if derailed { Ok(Next::After(retry)) } else { result }
        })
    }

    fn job(
        &self,
        controller: &'static str,
        period: Duration,
        work: BoxFuture<'static, Result<(), Error>>,
    ) -> BoxFuture<'static, Result<(), Error>> {
        let run = Run::new(controller, "", period);
        Box::pin(async move {
            let result = in_run(run.clone(), work).await;
            if run.is_derailed() { Ok(()) } else { result }
        })
    }

    fn background(
        &self,
        controller: &'static str,
        work: BoxFuture<'static, ()>,
    ) -> BoxFuture<'static, ()> {
        Box::pin(in_run(Run::new(controller, "", Duration::ZERO), work))
    }
}
