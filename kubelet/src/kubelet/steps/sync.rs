//! Makes a pod run as its definition says. Upstream: `Kubelet.SyncPod`.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use kube_controller_manager::objects::Timestamp;

use super::jittered;
use crate::causes::chain;
use crate::events;
use crate::kubelet::pod_store::WaitingReasons;
use crate::kubelet::pod_workers::Outcome;
use crate::kubelet::{Error, Kubelet};
use crate::kuberuntime::{self, Synced};
use crate::metrics;
use crate::pod::{Pod, PodExt};
use crate::runtime::status::PodStatus;
use crate::status::generate;
use crate::volumes;

/// Upstream: `active_deadline.go`.
const DEADLINE_EXCEEDED: (&str, &str) =
    ("DeadlineExceeded", "Pod was active on the node longer than the specified deadline");

/// When a pod that waits for the runtime's network is synced again. Upstream:
/// `backOffOnTransientErrorPeriod`.
const NETWORK_RETRY: Duration = Duration::from_secs(1);

/// Upstream: `VolumeAttachmentLimitExceededReason`.
const ATTACH_LIMIT: &str = "VolumeAttachmentLimitExceeded";

impl Kubelet {
    /// Makes a pod run as its definition says, and publishes its status before and after that. A
    /// pod that has ended is terminal; so is one that fails here, beyond its deadline or because
    /// the node can attach no more volumes.
    pub(super) async fn sync_pod(&self, pod: &Arc<Pod>) -> Result<Outcome, Error> {
        let (runtime, status) = self.refresh(pod).await?;
        if matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")) {
            return Ok(Outcome::Terminal);
        }
        let remaining = self.until_deadline(pod, &status);
        if remaining == Some(Duration::ZERO) {
            let (reason, message) = DEADLINE_EXCEEDED;
            events::normal(pod, None, reason, message);
            self.fail(pod, reason, message);
            return Ok(Outcome::Terminal);
        }
        if let Some(fault) = self.manager.node.network.fault()
            && !pod.is_host_network()
        {
            events::warning(pod, None, "NetworkNotReady", format!("network is not ready: {fault}"));
            return Ok(Outcome::Failed(jittered(NETWORK_RETRY)));
        }
        if pod.is_static() {
            self.store.notify_mirror(pod.full_name());
        }
        let synced = self.sync_runtime(pod, &runtime, &status).await;
        if let Err(kuberuntime::Error::Volumes(error @ volumes::Error::AttachLimit { .. })) =
            &synced
        {
            let message = error.to_string();
            events::warning(pod, None, ATTACH_LIMIT, &message);
            metrics::ADMISSION_REJECTIONS.with_label_values(&[ATTACH_LIMIT]).inc();
            self.fail(pod, ATTACH_LIMIT, &format!("Pod was rejected: {message}"));
            return Ok(Outcome::Terminal);
        }
        let (waiting, retry) = match &synced {
            // All containers were removed: the next sync starts them at once.
            Ok(synced) if synced.is_reset => (WaitingReasons::new(), Some(Duration::ZERO)),
            Ok(synced) => (synced.waiting.clone(), synced.retry),
            // Returned below, once the status is published.
            Err(_) => (WaitingReasons::new(), None),
        };
        if let Some(error) = synced.as_ref().ok().and_then(|synced| synced.resize_error.as_ref()) {
            self.record_resize_failure(pod, &chain(error));
        }
        self.store.set_waiting(pod.uid(), waiting);
        let (runtime, _) = self.refresh(pod).await?;
        synced?;
        self.manager.prune(&runtime, false).await?;
        let again = remaining.unwrap_or(Duration::MAX).min(jittered(self.sync_period));
        Ok(match retry {
            Some(retry) => Outcome::Failed(retry.min(again)),
            None => Outcome::Done(again),
        })
    }

    /// Makes the pod's cgroup, and carries out its actions in the runtime.
    async fn sync_runtime(
        &self,
        pod: &Arc<Pod>,
        runtime: &PodStatus,
        status: &core::PodStatus,
    ) -> Result<Synced, kuberuntime::Error> {
        match self.manager.ensure_cgroup(pod, runtime, &|| self.active_pods()).await? {
            true => self.manager.sync(pod, runtime, generate::is_restarting_all(status)).await,
            // Its containers have been ended: they start again in the pod's cgroup.
            false => Ok(Synced { retry: Some(Duration::ZERO), ..Synced::default() }),
        }
    }

    /// Returns the time until a pod's deadline; zero: it has passed; `None`: the pod has no
    /// deadline, or no start time to count from.
    fn until_deadline(&self, pod: &Pod, status: &core::PodStatus) -> Option<Duration> {
        let deadline = pod.spec().active_deadline_seconds?;
        let started = status.start_time.as_ref()?.0.as_microsecond();
        let active = self.clock.now().duration_since(Timestamp::from_micros(started));
        Some(Duration::from_secs(deadline.unsigned_abs()).saturating_sub(active))
    }
}
