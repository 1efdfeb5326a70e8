//! What a pod's worker does, a file for each work. Upstream: the `podSyncer`.

mod sync;
mod terminated;
mod terminating;

use std::sync::Arc;
use std::time::Duration;

use futures_lite::FutureExt;
use kube_controller_manager::task::Latch;

use super::Kubelet;
use super::pod_workers::{Outcome, Work};
use super::resize::Trigger;
use crate::causes::chain;
use crate::metrics;
use crate::pod::{PodExt, Uid};

/// The delay after a failed work. Upstream: `backOffPeriod`.
const RETRY: Duration = Duration::from_secs(10);

impl Kubelet {
    /// Does a pod's work, and reports how it ended. The work stops when `cancel` opens and no
    /// container is just being started.
    pub(super) async fn work(self: Arc<Self>, uid: Uid, work: Work, cancel: Latch) {
        let begin = self.clock.monotonic();
        let operation = self.operation(&uid, &work, begin);
        // The mirror pod of a static pod may change when the pod ends.
        let full_name = match &work {
            Work::Terminate(pod, _) | Work::CleanUp(pod) if pod.is_static() => {
                Some(pod.full_name())
            }
            _ => None,
        };
        let run = async {
            match &work {
                Work::Sync(pod) => self.sync_pod(&self.resizes.allocated(pod)).await,
                Work::Terminate(pod, grace) => {
                    self.sync_terminating_pod(&self.resizes.allocated(pod), *grace).await
                }
                Work::CleanUp(pod) => self.sync_terminated_pod(pod).await,
                Work::TerminateOrphan => self.end_orphan(&uid).await,
            }
        };
        let cancelled = async {
            cancel.opened().await;
            // A start that is cut off leaves a container that could not start.
            drop(self.manager.starts.lock(&uid).await);
            Ok(Outcome::Cancelled)
        };
        let outcome = cancelled.or(run).await.unwrap_or_else(|error| {
            log::error!("Error syncing pod {uid}, skipping: {}", chain(&error));
            Outcome::Failed(jittered(RETRY))
        });
        let now = self.clock.monotonic();
        metrics::WORKER.with_label_values(&[operation]).observe((now - begin).as_secs_f64());
        self.dispatcher.done(&uid, outcome, now);
        if let Some(pod) = self.store.pod(&uid) {
            self.store.notify(&pod);
        }
        self.forget_ended().await;
        if let Some(name) = full_name {
            self.store.notify_mirror(name);
        }
        if !matches!(work, Work::Sync(_)) {
            // The resources of the pod may be free now.
            self.retry_resizes(Trigger::PodTerminated).await;
        }
    }

    /// Returns the label of the work in upstream's metric. Observes the delay of a pod's first
    /// sync, too.
    fn operation(&self, uid: &Uid, work: &Work, begin: Duration) -> &'static str {
        match work {
            Work::Sync(_) if self.store.status(uid).is_none() => {
                if let Some(seen) = self.store.first_seen(uid) {
                    metrics::WORKER_START.observe(begin.saturating_sub(seen).as_secs_f64());
                }
                "create"
            }
            Work::Sync(_) => "sync",
            Work::Terminate(..) | Work::CleanUp(_) | Work::TerminateOrphan => "kill",
        }
    }
}

/// Returns the period with up to half of it added at random.
fn jittered(period: Duration) -> Duration {
    period.mul_f64(1.0 + 0.5 * fastrand::f64())
}
