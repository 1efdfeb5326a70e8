//! The metrics of pods, and of what the runtime has of them.

use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use kube_controller_manager::metrics::IntGauge;

use super::Kubelet;
use super::pleg::Snapshot;
use crate::metrics;
use crate::pod::{Pod, PodExt};
use crate::runtime::status::State::{Created, Exited, Running, Unknown};

impl Kubelet {
    /// Sets the gauges of pods. Upstream: `HandlePodCleanups`.
    pub(super) fn measure_pods(&self) {
        let pods = self.store.pods();
        for is_static in [false, true] {
            let label = &[metrics::static_label(is_static)];
            let desired = pods.iter().filter(|pod| pod.is_static() == is_static);
            let is_active = |pod: &&Arc<Pod>| !self.dispatcher.is_terminated(&pod.uid());
            set_gauge(&metrics::DESIRED_PODS.with_label_values(label), desired.clone().count());
            set_gauge(
                &metrics::ACTIVE_PODS.with_label_values(label),
                desired.filter(is_active).count(),
            );
        }
        set_gauge(&metrics::MIRROR_PODS, self.store.mirrors().len());
        let ephemeral = pods.iter().map(|pod| pod.ephemeral_containers().len());
        set_gauge(&metrics::EPHEMERAL_CONTAINERS, ephemeral.sum());
        let (pending, in_progress) = self.resizes.counts();
        set_gauge(&metrics::PENDING_RESIZES.with_label_values(&["deferred"]), pending);
        set_gauge(&metrics::RESIZES_IN_PROGRESS, in_progress);
        for (labels, count) in self.dispatcher.counts(&self.store.uids()) {
            set_gauge(&metrics::WORKING_PODS.with_label_values(&labels), count);
        }
    }
}

/// Sets the gauges of the pods and containers that the runtime has.
pub(super) fn measure_runtime(snapshot: &Snapshot) {
    set_gauge(&metrics::RUNNING_PODS, snapshot.running_pods());
    for (name, container) in
        [("created", Created), ("running", Running), ("exited", Exited), ("unknown", Unknown)]
    {
        let gauge = metrics::RUNNING_CONTAINERS.with_label_values(&[name]);
        set_gauge(&gauge, snapshot.containers(container));
    }
}

fn set_gauge(gauge: &IntGauge, count: usize) {
    gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
}

/// Counts containers that have ended since the last status.
/// Upstream: `checkAndRecordTerminations`.
pub(super) fn count_terminations(before: Option<&core::PodStatus>, status: &core::PodStatus) {
    let ended = |status: &core::ContainerStatus| {
        status.state.as_ref().and_then(|state| state.terminated.clone())
    };
    let list = |status: &core::PodStatus, is_init| match is_init {
        true => status.init_container_statuses.clone().unwrap_or_default(),
        false => status.container_statuses.clone().unwrap_or_default(),
    };
    for (kind, is_init) in [("init_container", true), ("container", false)] {
        let old = before.map(|before| list(before, is_init)).unwrap_or_default();
        for status in list(status, is_init) {
            let Some(terminated) = ended(&status) else { continue };
            if !old.iter().any(|old| old.name == status.name && ended(old).is_some()) {
                let code = terminated.exit_code.to_string();
                let reason = terminated.reason.unwrap_or_default();
                metrics::TERMINATED_CONTAINERS.with_label_values(&[kind, &code, &reason]).inc();
            }
        }
    }
}
