//! Pods whose resources change while they run: a change is allocated when the node has room for it,
//! and waits otherwise. Upstream: `allocation.Manager`.

use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ResourceRequirements;
use kube_controller_manager::objects::Quantity;
use parking_lot::Mutex;
use serde::Serialize;

use super::Kubelet;
use crate::allocation::{self, Checkpoint, PodResources, ResizeConditions, requests_grow};
use crate::causes::chain;
use crate::events;
use crate::metrics;
use crate::pod::{Container, Pod, PodExt, Uid, listed};
use crate::runtime::resize::Resizing;
use crate::runtime::status::{PodStatus, State};
use crate::sources::{Op, PodUpdate};

/// The period of retries until all sources have been read, and the one after that. Upstream:
/// `initialRetryDelay`, `retryDelay`.
const FIRST_RETRY: Duration = Duration::from_secs(30);
const RETRY: Duration = Duration::from_secs(180);

/// Why the resizes that wait are tried once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trigger {
    PodsAdded,
    PodUpdated,
    PodsRemoved,
    PodResized,
    PodTerminated,
    Period,
}

impl Trigger {
    /// Returns the trigger that a change of a source is.
    pub(super) fn of(update: &PodUpdate) -> Trigger {
        match update.op {
            Op::Add => Trigger::PodsAdded,
            Op::Update | Op::Delete => Trigger::PodUpdated,
            Op::Remove => Trigger::PodsRemoved,
            Op::Reconcile if update.pods.iter().any(|pod| pod.has_ended()) => {
                Trigger::PodTerminated
            }
            Op::Reconcile => Trigger::PodResized,
        }
    }

    /// Returns the label of upstream's metric. Upstream: `TriggerReasonPodResized` and those beside
    /// it.
    fn label(self) -> &'static str {
        match self {
            Trigger::PodsAdded => "pods_added",
            Trigger::PodUpdated => "pod_updated",
            Trigger::PodsRemoved => "pods_removed",
            Trigger::PodResized => "pod_resized",
            Trigger::PodTerminated => "pod_terminated",
            Trigger::Period => "periodic_retry",
        }
    }
}

/// What is allocated to pods, and which changes wait.
pub(super) struct Resizes {
    allocated: Checkpoint,
    conditions: ResizeConditions,
    /// In the order in which they are tried.
    pending: Mutex<Vec<Uid>>,
}

impl Resizes {
    pub(super) fn new(allocated: Checkpoint) -> Resizes {
        Resizes { allocated, conditions: ResizeConditions::default(), pending: Mutex::default() }
    }

    /// Returns the pod with the resources that are allocated to it. Upstream:
    /// `UpdatePodFromAllocation`.
    pub(super) fn allocated(&self, pod: &Arc<Pod>) -> Arc<Pod> {
        let record = self.allocated.get(&pod.uid());
        record.and_then(|record| record.apply(pod)).map_or_else(|| pod.clone(), Arc::new)
    }

    /// Returns whether the pod asks for other resources than are allocated to it.
    fn differs(&self, pod: &Pod) -> bool {
        self.allocated.get(&pod.uid()).is_some_and(|record| record.apply(pod).is_some())
    }

    fn has_pending(&self) -> bool {
        !self.pending.lock().is_empty()
    }

    /// Forgets the resize of a pod that has ended, whether it waits or is under way.
    pub(super) fn end(&self, uid: &str) {
        self.conditions.clear(uid);
        self.pending.lock().retain(|pending| **pending != *uid);
    }

    /// Forgets the pods that are not `known`.
    pub(super) fn retain(&self, known: impl Fn(&str) -> bool) {
        self.allocated.retain(&known);
        self.conditions.retain(&known);
        self.pending.lock().retain(|uid| known(uid));
    }

    /// Returns how many changes wait, and how many are under way.
    pub(super) fn counts(&self) -> (usize, usize) {
        self.conditions.counts()
    }

    /// Returns the conditions of a pod, as its status shows them.
    pub(super) fn conditions(&self, uid: &str) -> Vec<k8s_openapi::api::core::v1::PodCondition> {
        self.conditions.get(uid).conditions()
    }
}

impl Kubelet {
    /// Records the resources of an admitted pod as allocated, in memory. If its definition now asks
    /// for others, because it was changed while no kubelet ran, the resize is queued as pending.
    pub(super) fn allocate_admitted(&self, pod: &Arc<Pod>) {
        let allocated = self.resizes.allocated(pod);
        let uid = pod.uid();
        self.resizes.allocated.insert(&uid, PodResources::of(&allocated));
        if let Some(status) = pod.status.as_ref().filter(|_| !pod.is_static()) {
            self.resizes.conditions.restore(&uid, status);
        }
        if self.resizes.differs(pod) {
            self.push_pending(&uid);
        }
    }

    /// Writes what is allocated to the file. A failure is only logged: the next write has it too.
    pub(super) async fn store_allocations(&self) {
        if let Err(error) = self.resizes.allocated.write().await {
            log::error!("SetPodAllocation failed: {}", chain(&error));
        }
    }

    /// Queues a resize of a pod whose resources its source has changed, or takes a queued one back.
    pub(super) fn request_resize(&self, before: Option<&Pod>, pod: &Pod) {
        if before.is_some_and(|before| PodResources::of(before) == PodResources::of(pod)) {
            return;
        }
        if let Some(before) = before {
            count_requests(before, pod);
        }
        match self.resizes.differs(pod) {
            true => self.push_pending(&pod.uid()),
            // The pod asks for what is allocated to it again.
            false => drop(self.resizes.conditions.clear_pending(&pod.uid())),
        }
    }

    /// Adds a pod to those whose resize waits, unless it is among them, and sorts them by the order
    /// in which they are tried. Pods that no source has any more are dropped.
    fn push_pending(&self, uid: &Uid) {
        let mut pending = self.resizes.pending.lock();
        if pending.contains(uid) {
            return;
        }
        pending.push(uid.clone());
        let mut pods: Vec<_> = pending
            .iter()
            .filter_map(|uid| {
                let pod = self.store.pod(uid)?;
                let grows = requests_grow(&pod, &self.resizes.allocated(&pod));
                Some((pod, grows, self.resizes.conditions.get(uid).pending_since()))
            })
            .collect();
        pods.sort_by(|a, b| allocation::order((&a.0, a.1, a.2), (&b.0, b.1, b.2)));
        *pending = pods.into_iter().map(|(pod, ..)| pod.uid()).collect();
    }

    /// Tries once more to allocate the resizes that wait, and syncs the pods whose conditions have
    /// changed. Those of pods that end are dropped. Does nothing until all sources have been read.
    /// Upstream: `RetryPendingResizes`.
    pub(super) async fn retry_resizes(&self, trigger: Trigger) {
        if !self.resizes.has_pending() || !self.store.has_seen_all() {
            return;
        }
        let waiting = std::mem::take(&mut *self.resizes.pending.lock());
        for uid in waiting {
            let pod = self.store.pod(&uid).filter(|pod| !pod.has_ended());
            let Some(pod) = pod.filter(|_| !self.dispatcher.is_terminating(&uid)) else {
                self.resizes.end(&uid);
                continue;
            };
            let before = self.resizes.conditions.get(&uid);
            let is_allocated = self.allocate(&pod).await;
            if is_allocated && before.is_deferred() {
                let label = trigger.label();
                metrics::DEFERRED_ACCEPTED_RESIZES.with_label_values(&[label]).inc();
            }
            if !is_allocated {
                let mut pending = self.resizes.pending.lock();
                // A change of the pod may have queued it during the attempt.
                if !pending.contains(&uid) {
                    pending.push(uid.clone());
                }
            }
            if self.resizes.conditions.get(&uid) != before {
                self.dispatcher.requeue([&uid]);
            }
        }
    }

    /// Retries the resizes that wait from time to time, for ever.
    pub(super) async fn keep_retrying_resizes(&self) {
        loop {
            let period = if self.store.has_seen_all() { RETRY } else { FIRST_RETRY };
            self.clock.sleep(period).await;
            self.retry_resizes(Trigger::Period).await;
        }
    }

    /// Allocates the resources that a pod asks for, if the node has room for them or other pods can
    /// be evicted for them, and records the outcome in the pod's conditions and an event. Returns
    /// false when the resize has to wait: also when the allocation cannot be written, as after a
    /// restart the pod would not have it.
    async fn allocate(&self, pod: &Arc<Pod>) -> bool {
        let (uid, generation, now) = (pod.uid(), pod.metadata.generation, self.clock.now());
        let Resizes { allocated, conditions, .. } = &self.resizes;
        if !self.resizes.differs(pod) {
            conditions.clear_pending(&uid);
            return true;
        }
        match self.admission_of(pod, &self.manager.node.own.get()) {
            Ok(admitted) => {
                self.evict_for(&admitted);
                if let Err(error) = allocated.replace(&uid, PodResources::of(pod)).await {
                    log::error!("Failed to handle pod resources resize: {}", chain(&error));
                    return false;
                }
                conditions.begin(&uid, generation, now);
                let text = summary(pod, generation, None);
                events::normal(pod, None, "ResizeStarted", format!("Pod resize started: {text}"));
                true
            }
            Err(rejection) => {
                let message = rejection.to_string();
                if conditions.set_pending(&uid, &message, generation, now) {
                    let text = summary(pod, generation, Some(&message));
                    let message = format!("Pod resize {}: {text}", rejection.reason());
                    events::warning(pod, None, "ResizeDeferred", message);
                }
                false
            }
        }
    }

    /// Brings the condition of a pod's allocated resize up to date with its containers, and records
    /// an event when the resize is complete.
    pub(super) fn observe_resize(&self, pod: &Arc<Pod>, runtime: &PodStatus) {
        let uid = pod.uid();
        let actuated = self.manager.actuated.get(&uid);
        // More may have been allocated since the sync began.
        let pod = &self.resizes.allocated(pod);
        let resizing = Resizing { pod, actuated: actuated.as_ref() };
        let is_running =
            |name: &str| runtime.container(name).is_some_and(|one| one.state == State::Running);
        let conditions = &self.resizes.conditions;
        if resizing.is_in_progress(is_running) {
            conditions.keep_in_progress(&uid, pod.metadata.generation, self.clock.now());
        } else if let Some(generation) = conditions.complete(&uid) {
            let text = summary(pod, generation, None);
            events::normal(pod, None, "ResizeCompleted", format!("Pod resize completed: {text}"));
        }
    }

    /// Records that the resources of a pod could not be changed, with an event if the message is
    /// new.
    pub(super) fn record_resize_failure(&self, pod: &Arc<Pod>, message: &str) {
        let (uid, generation, now) = (pod.uid(), pod.metadata.generation, self.clock.now());
        if let Some(generation) = self.resizes.conditions.fail(&uid, message, generation, now) {
            let text = summary(pod, generation, Some(message));
            events::warning(pod, None, "ResizeError", format!("Pod resize error: {text}"));
        }
    }
}

/// Counts the changes of a pod's requests and limits by resource and direction, for a metric.
/// Upstream: `recordContainerResizeOperations`.
fn count_requests(before: &Pod, pod: &Pod) {
    for container in pod.all_containers() {
        let Some(old) = before.container(&container.name) else { continue };
        for (resource, is_limit) in
            [("memory", false), ("memory", true), ("cpu", false), ("cpu", true)]
        {
            let amount = |container: &Container| {
                let amount = listed(container.resources.as_ref(), resource, is_limit);
                amount.unwrap_or(Quantity::ZERO)
            };
            let (old, new) = (amount(old), amount(container));
            let operation = match new.compare(old) {
                Ordering::Equal => continue,
                _ if new.is_zero() => "remove",
                _ if old.is_zero() => "add",
                Ordering::Greater => "increase",
                Ordering::Less => "decrease",
            };
            let list = if is_limit { "limits" } else { "requests" };
            metrics::REQUESTED_RESIZES.with_label_values(&[resource, list, operation]).inc();
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Summary<'a> {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    init_containers: Vec<Asked<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    containers: Vec<Asked<'a>>,
    generation: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
}

#[derive(Serialize)]
struct Asked<'a> {
    name: &'a str,
    resources: ResourceRequirements,
}

/// Formats a pod's resources as JSON, for events about a resize. Upstream:
/// `makeResourceSummaryFromSpec`.
fn summary(pod: &Pod, generation: Option<i64>, error: Option<&str>) -> String {
    let summary = Summary {
        init_containers: pod.init_containers().iter().map(Asked::of).collect(),
        containers: pod.spec().containers.iter().map(Asked::of).collect(),
        generation: generation.unwrap_or_default(),
        error,
    };
    serde_json::to_string(&summary).unwrap_or_default()
}

impl Asked<'_> {
    fn of(container: &Container) -> Asked<'_> {
        Asked { name: &container.name, resources: container.resources.clone().unwrap_or_default() }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use kube_controller_manager::task;
    use serde_json::json;

    use super::*;
    use crate::kuberuntime::testing::TestNode;
    use crate::sources::Source;

    #[test]
    fn resize_that_cannot_be_written_waits() {
        task::run(1, async {
            let node = TestNode::start("unwritten-resize", |_| Ok(Vec::new()));
            let kubelet = Kubelet::for_tests(&node);
            let pod = |cpu: &str| -> Arc<Pod> {
                let resources = json!({"requests": {"cpu": cpu}});
                let pod = json!({
                    "metadata": {"name": "p", "namespace": "n", "uid": "u"},
                    "spec": {"containers": [{"name": "c", "resources": resources}]},
                });
                Arc::new(serde_json::from_value(pod).expect("a pod"))
            };
            let update =
                |op, pod: &Arc<Pod>| PodUpdate { source: Source::Api, op, pods: vec![pod.clone()] };
            let (before, after) = (pod("100m"), pod("200m"));
            kubelet.handle(&update(Op::Add, &before)).await;
            // Nothing can be renamed to a folder.
            let file = node.root.join("allocated_pods_state");
            fs::remove_file(&file).expect("a file");
            fs::create_dir(&file).expect("a folder");
            kubelet.handle(&update(Op::Update, &after)).await;
            assert_eq!(kubelet.resizes.allocated(&after), before);
            assert!(kubelet.resizes.has_pending());
            fs::remove_dir(&file).expect("removed");
            kubelet.retry_resizes(Trigger::Period).await;
            assert_eq!(kubelet.resizes.allocated(&after), after);
            assert!(!kubelet.resizes.has_pending());
            let written = node.checkpoint("allocated_pods_state").get("u");
            assert_eq!(written, Some(PodResources::of(&after)));
        });
    }

    #[test]
    fn triggers_are_by_upstreams_names() {
        let pod = |phase: &str| -> Arc<Pod> {
            let pod = json!({"spec": {"containers": []}, "status": {"phase": phase}});
            Arc::new(serde_json::from_value(pod).expect("a pod"))
        };
        for (op, phase, expected) in [
            (Op::Add, "Pending", "pods_added"),
            (Op::Update, "Running", "pod_updated"),
            (Op::Delete, "Running", "pod_updated"),
            (Op::Remove, "Running", "pods_removed"),
            (Op::Reconcile, "Running", "pod_resized"),
            (Op::Reconcile, "Succeeded", "pod_terminated"),
        ] {
            let update = PodUpdate { source: Source::Api, op, pods: vec![pod(phase)] };
            assert_eq!(Trigger::of(&update).label(), expected, "{op:?} {phase}");
        }
        assert_eq!(Trigger::Period.label(), "periodic_retry");
    }

    #[test]
    fn events_show_the_resources_in_upstreams_form() {
        let resources = json!({"requests": {"cpu": "5", "memory": "4500Mi"}});
        let pod = json!({"spec": {"containers": [{"name": "c1", "resources": resources}]}});
        let pod: Pod = serde_json::from_value(pod).expect("a pod");
        assert_eq!(
            summary(&pod, Some(2), Some("no cpu")),
            r#"{"containers":[{"name":"c1","resources":{"requests":{"cpu":"5","memory":"4500Mi"}}}],"generation":2,"error":"no cpu"}"#
        );
    }
}
