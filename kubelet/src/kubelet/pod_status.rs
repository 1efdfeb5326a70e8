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
use crate::status::terminate::{self, terminate};

impl Kubelet {
    /// Reads a pod's state in the runtime, starts and stops probes, notes the progress of a resize,
    /// and publishes the pod's status.
    ///
    /// # Errors
    /// The runtime does not answer.
    pub(super) async fn refresh(
        &self,
        pod: &Arc<Pod>,
    ) -> Result<(PodStatus, Arc<core::PodStatus>), cri::Error> {
        let runtime = self.read(pod).await?;
        self.update_probes(pod, &runtime).await;
        self.observe_resize(pod, &runtime);
        let status = self.publish(pod, &runtime, false).await;
        Ok((runtime, status))
    }

    /// Starts probes of what runs in a pod, and ends those of what does not.
    pub(super) async fn update_probes(&self, pod: &Arc<Pod>, runtime: &PodStatus) {
        let reported = || self.store.reported_status(pod);
        self.manager.update_probes(pod, runtime, &reported).await;
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

    /// Computes a pod's status, stores it, and has it written to the API server. Returns it.
    /// `is_terminal`: its containers have ended for good.
    pub(super) async fn publish(
        &self,
        pod: &Arc<Pod>,
        runtime: &PodStatus,
        is_terminal: bool,
    ) -> Arc<core::PodStatus> {
        let messages = self.manager.messages(runtime).await;
        let host_ips = self.manager.node.own.host_ips();
        let probes = &self.manager.probes;
        // Other writers may have changed it since the worker began.
        let latest = self.store.pod(&pod.uid()).unwrap_or_else(|| pod.clone());
        let reported = latest.status.as_ref().filter(|_| !pod.is_static());
        let now = self.clock.now();
        let actuated = self.manager.actuated.get(&pod.uid());
        let limits = self.manager.pod_limits(pod).await;
        let recursive = self.manager.supports_recursive(pod).await;
        let resize = self.resizes.conditions(&pod.uid());
        let change = self.store.update_status(pod, now, |before, waiting| {
            let inputs = StatusInputs {
                runtime,
                runtime_name: &self.manager.runtime_name,
                waiting,
                readiness: &|id| probes.result(id, Kind::Readiness),
                startup: &|id| probes.result(id, Kind::Startup),
                messages: &messages,
                host_ips: &host_ips,
                is_terminal,
                actuated: actuated.as_ref(),
                limits: limits.as_ref(),
                recursive,
                resize: &resize,
                before,
                reported,
            };
            generate::generate(pod, &inputs)
        });
        let after = self.announce_status(pod, change).after;
        if terminate::is_terminal(after.phase.as_deref()) {
            self.resizes.end(&pod.uid());
        }
        if after.phase.as_deref() == Some("Running")
            && let Some(seen) = self.store.take_first_seen(&pod.uid())
        {
            let took = self.clock.monotonic().saturating_sub(seen);
            metrics::POD_START.observe(took.as_secs_f64());
        }
        after
    }

    /// Sets the last status of a pod that holds no resources any more. Upstream: `TerminatePod`.
    pub(super) fn finish_status(&self, pod: &Arc<Pod>) {
        let change = self.store.update_status(pod, self.clock.now(), |before, _| {
            let mut status = before.cloned().unwrap_or_default();
            terminate(pod, &mut status);
            status
        });
        self.announce_status(pod, change);
    }

    /// Logs and counts what a new status says, and has it written to the API server. Returns the
    /// change.
    pub(super) fn announce_status(&self, pod: &Arc<Pod>, change: StatusChange) -> StatusChange {
        let StatusChange { before, after, differs_from_mirror } = &change;
        if before.as_ref().map(|before| &before.phase) != Some(&after.phase) {
            let phase = after.phase.as_deref().unwrap_or_default();
            log::info!("pod {} is {phase}", pod.display_name());
        }
        count_terminations(before.as_deref(), after);
        if *differs_from_mirror || before.as_ref() != Some(after) {
            self.store.notify(pod);
        }
        change
    }
}
