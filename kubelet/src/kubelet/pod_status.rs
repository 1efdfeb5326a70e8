//! The status of a pod: from its state in the runtime, the results of its probes, and its last
//! status. Upstream: `Kubelet.generateAPIPodStatus`.

use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;

use super::Kubelet;
use super::measure::count_terminations;
use super::pod_store::StatusChange;
use crate::cri;
use crate::metrics;
use crate::pod::{Pod, PodExt};
use crate::prober::Kind;
use crate::runtime::status::{self, PodStatus};
use crate::status::generate::{self, StatusInputs};

impl Kubelet {
    /// Reads a pod's state in the runtime, starts and stops probes, and publishes the pod's status.
    ///
    /// # Errors
    /// The runtime does not answer.
    pub(super) async fn refresh(
        &self,
        pod: &Arc<Pod>,
    ) -> Result<(PodStatus, Arc<core::PodStatus>), cri::Error> {
        let runtime = self.read(pod).await?;
        self.manager.update_probes(pod, &runtime).await;
        let status = self.publish(pod, &runtime).await;
        Ok((runtime, status))
    }

    /// Reads a pod's state in the runtime.
    ///
    /// # Errors
    /// The runtime does not answer.
    pub(super) async fn read(&self, pod: &Pod) -> Result<PodStatus, cri::Error> {
        let begin = self.clock.monotonic();
        let read = status::read(&self.manager.runtime, &pod.uid()).await;
        let took = self.clock.monotonic().saturating_sub(begin);
        metrics::POD_RELIST.observe(took.as_secs_f64());
        read
    }

    /// Computes a pod's status and keeps it.
    pub(super) async fn publish(
        &self,
        pod: &Arc<Pod>,
        runtime: &PodStatus,
    ) -> Arc<core::PodStatus> {
        let messages = self.manager.messages(runtime).await;
        let host_ips = self.manager.node.own.host_ips();
        let probes = &self.manager.probes;
        let StatusChange { before, after } = self.store.update_status(pod, |before, waiting| {
            let inputs = StatusInputs {
                runtime,
                runtime_name: &self.manager.runtime_name,
                waiting,
                readiness: &|id| probes.result(id, Kind::Readiness),
                startup: &|id| probes.result(id, Kind::Startup),
                messages: &messages,
                host_ips: &host_ips,
                now: self.clock.now(),
                before,
            };
            stay_failed(generate::generate(pod, &inputs), before)
        });
        if before.as_ref().map(|before| &before.phase) != Some(&after.phase) {
            let phase = after.phase.as_deref().unwrap_or_default();
            log::info!("pod {} is {phase}", pod.display_name());
        }
        count_terminations(before.as_deref(), &after);
        if before.as_ref() != Some(&after) {
            self.store.notify(pod);
        }
        if after.phase.as_deref() == Some("Running")
            && let Some(seen) = self.store.take_first_seen(&pod.uid())
        {
            let took = self.clock.monotonic().saturating_sub(seen);
            metrics::POD_START.observe(took.as_secs_f64());
        }
        after
    }
}

/// A pod that has failed stays so.
fn stay_failed(mut status: core::PodStatus, before: Option<&core::PodStatus>) -> core::PodStatus {
    let Some(before) = before.filter(|before| before.phase.as_deref() == Some("Failed")) else {
        return status;
    };
    status.phase.clone_from(&before.phase);
    status.reason.clone_from(&before.reason);
    status.message.clone_from(&before.message);
    let disruption = generate::disruption(before).cloned();
    status.conditions.get_or_insert_default().extend(disruption);
    status
}
