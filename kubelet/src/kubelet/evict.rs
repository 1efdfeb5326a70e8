//! Pods that the kubelet ends: for the node's sake, or at their deadline.
//! Upstream: `killPodNow`, `eviction.evictPod`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use event_listener::{Event, EventListener};
use futures_lite::FutureExt;
use k8s_openapi::api::core::v1 as core;
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::task::notify_all;

use super::Kubelet;
use super::dispatcher::Dispatcher;
use crate::events;
use crate::pod::{Pod, PodExt};
use crate::status::conditions;

/// The least time that a pod has to end, before that is late. Upstream: `killPodNow`.
const MIN_WAIT: Duration = Duration::from_secs(10);

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

    /// Returns whether a pod has begun here, and is not forgotten.
    pub fn has_worker(&self, uid: &str) -> bool {
        self.dispatcher.knows(uid)
    }

    /// Returns whether a pod was evicted: it has to end, or has ended.
    pub fn is_evicted(&self, uid: &str) -> bool {
        self.dispatcher.is_evicted(uid)
    }

    /// Shortens the grace of a pod that was evicted to this many seconds, if it is longer.
    pub fn limit_grace(&self, uid: &str, grace: i64) {
        self.dispatcher.evict(uid, grace);
    }

    /// Waits until the containers of a pod have ended that was evicted with `grace` seconds, and
    /// returns true. If that takes too long, records an event and returns false. Upstream:
    /// `killPodNow`.
    pub async fn ended_in_time(&self, pod: &Pod, grace: i64) -> bool {
        ended_in_time(&self.dispatcher, &self.clock, pod, grace).await
    }

    /// Waits until the pod holds nothing any more.
    pub async fn finished(&self, uid: &str) {
        self.dispatcher.finished(uid).await;
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

/// See [`Kubelet::ended_in_time`].
async fn ended_in_time(
    dispatcher: &Dispatcher,
    clock: &SharedClock,
    pod: &Pod,
    grace: i64,
) -> bool {
    let uid = pod.uid();
    let terminated = async {
        dispatcher.terminated(&uid).await;
        true
    };
    let late = async {
        clock.sleep(longest_end(grace)).await;
        false
    };
    let in_time = terminated.or(late).await;
    if !in_time {
        let message = "Container runtime did not kill the pod within specified grace period.";
        events::warning(pod, None, "ExceededGracePeriod", message);
    }
    in_time
}

/// Returns how long the end of a pod with this grace in seconds may take: half of it is for the
/// runtime to kill the rest, as upstream.
fn longest_end(grace: i64) -> Duration {
    let grace = Duration::from_secs(grace.unsigned_abs());
    grace.saturating_add(grace / 2).max(MIN_WAIT)
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

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_lite::future::{block_on, poll_once};
    use kube_controller_manager::clock::FakeClock;
    use kube_controller_manager::objects::Timestamp;
    use serde_json::json;

    use super::*;
    use crate::kubelet::pod_workers::{Outcome, Reason};

    #[test]
    fn end_of_a_pod_may_take_longer_than_its_grace() {
        for (grace, seconds) in [(0, 10), (1, 10), (6, 10), (8, 12), (30, 45)] {
            assert_eq!(longest_end(grace), Duration::from_secs(seconds), "{grace}");
        }
    }

    #[test]
    fn late_end_of_a_pod_is_an_event() {
        let message = "Container runtime did not kill the pod within specified grace period.";
        let late = format!("Warning ExceededGracePeriod {message}");
        for (name, seconds, in_time, expected) in
            [("ends-at-once", 0, true, vec![]), ("ends-late", 45, false, vec![late])]
        {
            let pod = json!({"metadata": {"name": name, "namespace": "n", "uid": "u"}});
            let pod: Arc<Pod> = Arc::new(serde_json::from_value(pod).expect("a pod"));
            let time = FakeClock::new(Timestamp::from_secs(0));
            let clock: SharedClock = time.clone();
            let dispatcher = Dispatcher::default();
            let mut run = pin!(dispatcher.run(&clock, |_, _, _| {}));
            dispatcher.update(&pod, Reason::Create);
            dispatcher.evict("u", 30);
            assert!(events::testing::about(name).is_empty());
            let mut ended = pin!(ended_in_time(&dispatcher, &clock, &pod, 30));
            assert!(block_on(poll_once(&mut ended)).is_none());
            time.advance(Duration::from_secs(seconds));
            if in_time {
                assert!(block_on(poll_once(&mut run)).is_none());
                dispatcher.done("u", Outcome::Done(Duration::ZERO), clock.monotonic());
            }
            assert_eq!(block_on(ended), in_time, "{name}");
            assert_eq!(events::testing::about(name), expected);
        }
    }
}
