//! Pods that the kubelet ends: for the node's sake, or at their deadline.
//! Upstream: `killPodNow`, `eviction.evictPod`.

use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;

use super::Kubelet;
use crate::pod::{Pod, PodExt};
use crate::status::generate;

/// Why the node ends a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvictionCause {
    /// The node needs what the pod uses: a Job may ignore such an end, which is a disruption.
    NodePressure,
    /// A critical pod needs what the pod has: a disruption too.
    Preemption,
    /// The pod uses more than its own limit.
    OwnLimit,
}

impl Kubelet {
    /// Ends a pod: it fails with `reason` and `message`.
    pub fn evict(
        &self,
        pod: &Arc<Pod>,
        grace: i64,
        reason: &str,
        message: &str,
        cause: EvictionCause,
    ) {
        self.store.update_status(pod, |before, _| {
            let mut status = before.cloned().unwrap_or_default();
            let disruption = match cause {
                EvictionCause::NodePressure => Some(message),
                EvictionCause::Preemption => {
                    Some("Pod was preempted by Kubelet to accommodate a critical pod.")
                }
                EvictionCause::OwnLimit => None,
            };
            if let Some(message) = disruption {
                let conditions = status.conditions.get_or_insert_default();
                conditions.retain(|condition| condition.type_ != generate::DISRUPTION_TARGET);
                conditions.push(self.disruption(message));
            }
            failed(status, reason, message)
        });
        self.dispatcher.evict(&pod.uid(), grace);
    }

    /// A pod fails that the kubelet ends.
    pub(super) fn fail(&self, pod: &Pod, reason: &str, message: &str) {
        self.store.update_status(pod, |before, _| {
            failed(before.cloned().unwrap_or_default(), reason, message)
        });
    }

    fn disruption(&self, message: &str) -> core::PodCondition {
        core::PodCondition {
            type_: generate::DISRUPTION_TARGET.to_owned(),
            status: "True".to_owned(),
            reason: Some("TerminationByKubelet".to_owned()),
            message: Some(message.to_owned()),
            last_transition_time: Some(generate::time(self.clock.now())),
            ..Default::default()
        }
    }
}

fn failed(status: core::PodStatus, reason: &str, message: &str) -> core::PodStatus {
    core::PodStatus {
        phase: Some("Failed".to_owned()),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        ..status
    }
}
