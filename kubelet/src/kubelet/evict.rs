//! Pods that the kubelet ends: for the node's sake, or at their deadline.
//! Upstream: `killPodNow`, `eviction.evictPod`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use event_listener::{Event, EventListener};
use k8s_openapi::api::core::v1 as core;
use kube_controller_manager::task::notify_all;

use super::Kubelet;
use crate::pod::{Pod, PodExt};
use crate::status::conditions;

/// Why the node ends a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvictionCause {
    /// The node needs what the pod uses: a Job may ignore such an end, which is a disruption.
    NodePressure,
    /// A critical pod needs what the pod has: a disruption too.
    Preemption,
    /// The machine shuts down: a disruption too.
    NodeShutdown,
    /// The pod uses more than its own limit.
    OwnLimit,
}

/// Whether the machine shuts down.
#[derive(Debug, Default)]
pub(super) struct ShutdownState {
    is_set: AtomicBool,
    changed: Event,
}

impl ShutdownState {
    fn set(&self, is_set: bool) {
        self.is_set.store(is_set, Ordering::Release);
        notify_all(&self.changed);
    }

    pub(super) fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Acquire)
    }
}

impl Kubelet {
    /// Evicts a pod: marks it as failed with `reason` and `message`, and ends its containers within
    /// `grace` seconds.
    pub fn evict(
        &self,
        pod: &Arc<Pod>,
        grace: i64,
        reason: &str,
        message: &str,
        cause: EvictionCause,
    ) {
        let change = self.store.update_status(pod, self.clock.now(), |before, _| {
            let mut status = before.cloned().unwrap_or_default();
            let disruption = match cause {
                EvictionCause::NodePressure | EvictionCause::NodeShutdown => Some(message),
                EvictionCause::Preemption => {
                    Some("Pod was preempted by Kubelet to accommodate a critical pod.")
                }
                // A pod beyond its own limit is not disrupted for others.
                EvictionCause::OwnLimit => None,
            };
            if let Some(message) = disruption {
                let all = status.conditions.get_or_insert_default();
                conditions::replace(all, disruption_of(pod, message));
            }
            let succeeded = status.phase.as_deref() == Some("Succeeded");
            let ended = failed(status, reason, message);
            // A pod that has succeeded keeps its phase when the node shuts down.
            match succeeded && cause == EvictionCause::NodeShutdown {
                true => core::PodStatus { phase: Some("Succeeded".to_owned()), ..ended },
                false => ended,
            }
        });
        self.announce_status(pod, change);
        self.dispatcher.evict(&pod.uid(), grace);
    }

    /// Waits until the pod holds nothing any more.
    pub async fn finished(&self, uid: &str) {
        loop {
            let changed = self.dispatcher.changed();
            if !self.dispatcher.knows(uid) || self.dispatcher.is_finished(uid) {
                return;
            }
            changed.await;
        }
    }

    /// Records that the machine shuts down, or does so no more: no pod is admitted meanwhile, and
    /// the Node is not ready.
    pub fn set_shutting_down(&self, is_shutting_down: bool) {
        self.shutdown.set(is_shutting_down);
    }

    /// Returns why the node takes no pods; `None`: the machine does not shut down. Upstream:
    /// `ShutdownStatus`.
    pub fn shutdown_fault(&self) -> Option<String> {
        self.shutdown.is_set().then(|| "node is shutting down".to_owned())
    }

    /// Returns a listener that wakes when the machine begins to shut down, or does so no more.
    pub fn shutdown_changed(&self) -> EventListener {
        self.shutdown.changed.listen()
    }

    /// Sets the status of a pod to failed: the kubelet is about to end the pod.
    pub(super) fn fail(&self, pod: &Arc<Pod>, reason: &str, message: &str) {
        let change = self.store.update_status(pod, self.clock.now(), |before, _| {
            failed(before.cloned().unwrap_or_default(), reason, message)
        });
        self.announce_status(pod, change);
    }
}

/// Builds the condition by which a pod shows that the kubelet ends it.
fn disruption_of(pod: &Pod, message: &str) -> core::PodCondition {
    core::PodCondition {
        type_: conditions::DISRUPTION_TARGET.to_owned(),
        status: "True".to_owned(),
        reason: Some("TerminationByKubelet".to_owned()),
        message: Some(message.to_owned()),
        observed_generation: conditions::observed_generation(pod),
        ..Default::default()
    }
}

/// Returns the status with the phase `Failed` and this reason and message.
fn failed(status: core::PodStatus, reason: &str, message: &str) -> core::PodStatus {
    core::PodStatus {
        phase: Some("Failed".to_owned()),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        ..status
    }
}
