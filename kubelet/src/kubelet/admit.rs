//! Admits the pods that a source has added, or lets them fail. Upstream: `HandlePodAdditions`,
//! `rejectPod`.

use std::sync::Arc;

use futures_lite::future::Boxed;
use k8s_openapi::api::core::v1 as core;

use super::Kubelet;
use super::evict::EvictionCause;
use super::pleg::Snapshot;
use super::pod_workers::Reason;
use crate::admission::{self, Admitted, Inputs, Rejection};
use crate::causes::chain;
use crate::concurrent::join_all;
use crate::events;
use crate::metrics;
use crate::pod::{DEFAULT_GRACE_SECONDS, Pod, PodExt};
use crate::sources::PodUpdate;
use crate::status::generate;

/// What decides about new pods beside the Node and its pods.
pub struct Admission {
    pub rules: admission::Rules,
    /// Reads the Node from the API server; `None`: there is no server.
    pub fetch_node: Option<FetchNode>,
}

/// A request for the Node; `None`: the server does not have it, or does not answer.
pub type FetchNode = Box<dyn Fn() -> Boxed<Option<Arc<core::Node>>> + Send + Sync>;

/// The reason and message of a pod that ends for a critical one. Upstream: `preemption.message`.
const PREEMPTED: (&str, &str) = ("Preempting", "Preempted in order to admit critical pod");

impl Kubelet {
    /// Admits the pods that a source has added and starts them, or rejects them. Waits until the
    /// pods that have to make room for them have ended.
    pub(super) async fn add(&self, update: &PodUpdate) {
        for pod in &self.by_age(update).await {
            self.store.set_pod(pod);
            metrics::CONTAINERS_PER_POD.observe(pod.spec().containers.len() as f64);
            self.store.set_first_seen(pod.uid(), self.clock.monotonic());
            if self.dispatcher.is_terminating(&pod.uid()) {
                // An earlier life of the pod has to end first: `start_again` admits it then.
                self.dispatcher.update(pod, Reason::Create);
            } else if let Some(admitted) = self.decide(pod).await {
                self.store.set_reserved(pod);
                self.preempt(&admitted).await;
                self.allocate_admitted(pod);
                self.store_allocations().await;
                self.start(pod);
            }
            self.store.notify(pod);
        }
    }

    /// Sorts the added pods, the oldest first, so that those that were admitted before a restart of
    /// the kubelet are admitted again. Static pods have no age: those that the runtime has come
    /// first.
    async fn by_age(&self, update: &PodUpdate) -> Vec<Arc<Pod>> {
        let mut pods = update.pods.clone();
        // Only the first read of a source has pods that an earlier kubelet may have started.
        let is_first = pods.len() > 1 && !self.store.has_seen(update.source);
        let running = match is_first {
            true => Snapshot::read(&self.manager.runtime).await.unwrap_or_else(|error| {
                log::warn!("pods are admitted in the order of their source: {}", chain(&error));
                Snapshot::default()
            }),
            false => Snapshot::default(),
        };
        pods.sort_by_key(|pod| {
            let created = pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
            (created, !running.pods().any(|uid| *uid == pod.uid()))
        });
        pods
    }

    /// Decides whether an added pod is admitted. `None`: it was rejected, and its status says why.
    /// If the Node's labels do not fit, reads the Node from the API server and decides once more.
    async fn decide(&self, pod: &Arc<Pod>) -> Option<Admitted> {
        let allocated = self.resizes.allocated(pod);
        let mut outcome = self.admission_of(&allocated, &self.manager.node.own.get());
        if let Err(Rejection::Misfit { predicate: "NodeAffinity", .. }) = outcome
            && let Some(fetch) = &self.admission.fetch_node
            && let Some(node) = fetch().await
        {
            // A label of the Node may be as new as the pod. The other pods of the update need it
            // too.
            self.manager.node.own.keep_if_newer(&node);
            outcome = self.admission_of(&allocated, &node);
        }
        outcome.map_err(|rejection| self.reject(pod, &rejection)).ok()
    }

    /// Decides whether a pod may run here, beside the active pods and under the present pressure.
    pub(super) fn admission_of(&self, pod: &Pod, node: &core::Node) -> Result<Admitted, Rejection> {
        // It takes no room: its worker only ends what still runs of it.
        if pod.has_ended() {
            return Ok(Admitted::default());
        }
        if self.shutdown.is_set() {
            return Err(Rejection::NodeShutdown);
        }
        let (active, pressure) = (&*self.active_pods(), &*self.manager.node.pressure.all());
        let rules = &self.admission.rules;
        admission::admit(pod, &Inputs { rules, node, active, pressure })
    }

    /// Admits and starts a pod again that a source added while its earlier life was ending, or
    /// rejects it. Does not wait for the pods that have to make room for it. The caller writes what
    /// was allocated: the pod may start before that.
    pub(super) fn start_again(&self, pod: &Arc<Pod>) {
        let allocated = self.resizes.allocated(pod);
        match self.admission_of(&allocated, &self.manager.node.own.get()) {
            Ok(admitted) => {
                self.evict_for(&admitted);
                let label = metrics::static_label(pod.is_static());
                metrics::RESTARTED_PODS.with_label_values(&[label]).inc();
                self.allocate_admitted(pod);
                self.start(pod);
            }
            Err(rejection) => self.reject(pod, &rejection),
        }
    }

    /// Records that a pod is admitted, and gives it a worker.
    fn start(&self, pod: &Arc<Pod>) {
        self.store.set_admitted(pod);
        self.dispatcher.update(pod, Reason::Create);
    }

    /// Fails a pod that is not admitted: records the status, and ends what an earlier kubelet has
    /// started of it.
    fn reject(&self, pod: &Arc<Pod>, rejection: &Rejection) {
        let (reason, message) = (rejection.reason(), rejection.to_string());
        events::warning(pod, None, &reason, &message);
        metrics::ADMISSION_REJECTIONS.with_label_values(&[&rejection.metric_label()]).inc();
        let status = generate::rejected(pod, &reason, &message);
        self.store.set_rejected(pod, status, self.clock.now());
        self.store.notify(pod);
        self.dispatcher.reject(pod);
    }

    /// Ends the pods that make room. Returns when they have ended, or do not end in time.
    async fn preempt(&self, admitted: &Admitted) {
        self.evict_for(admitted);
        let ends = admitted.preempted.iter().map(|pod| {
            Box::pin(async move {
                if self.ended_in_time(pod, grace_of(pod)).await {
                    let resource = &*admitted.resource;
                    metrics::PREEMPTIONS.with_label_values(&[resource]).inc();
                }
            })
        });
        join_all(ends.collect()).await;
    }

    /// Evicts the pods that make room for an admitted one, without waiting for their ends.
    pub(super) fn evict_for(&self, admitted: &Admitted) {
        let (reason, message) = PREEMPTED;
        for pod in &admitted.preempted {
            events::warning(pod, None, reason, message);
            self.evict(pod, grace_of(pod), reason, message, EvictionCause::Preemption);
        }
    }
}

/// Returns the grace period of a pod's definition in seconds.
fn grace_of(pod: &Pod) -> i64 {
    pod.spec().termination_grace_period_seconds.unwrap_or(DEFAULT_GRACE_SECONDS)
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::time::Duration;

    use futures_lite::future::poll_once;
    use kube_controller_manager::task;
    use serde_json::json;

    use super::*;
    use crate::allocation::PodResources;
    use crate::kubelet::pod_workers::Outcome;
    use crate::kuberuntime::testing::TestNode;
    use crate::sources::{Op, Source};

    #[test]
    fn pod_that_is_started_again_has_an_allocation() {
        task::run(1, async {
            let node = TestNode::start("again", |_| Ok(Vec::new()));
            let kubelet = Kubelet::for_tests(&node);
            let resources = json!({"requests": {"cpu": "100m"}});
            let pod = json!({
                "metadata": {"name": "p", "namespace": "n", "uid": "u"},
                "spec": {"containers": [{"name": "c", "resources": resources}]},
            });
            let pod: Arc<Pod> = Arc::new(serde_json::from_value(pod).expect("a pod"));
            let added = PodUpdate { source: Source::File, op: Op::Add, pods: vec![pod.clone()] };
            kubelet.set_shutting_down(true);
            kubelet.add(&added).await;
            kubelet.set_shutting_down(false);
            // Its source adds it once more while what runs of it is ended.
            kubelet.add(&added).await;
            assert!(kubelet.dispatcher.is_terminating("u"));
            let mut run = pin!(kubelet.dispatcher.run(&kubelet.clock, |_, _, _| {}));
            while !kubelet.dispatcher.is_finished("u") {
                assert!(poll_once(&mut run).await.is_none());
                let (done, now) = (Outcome::Done(Duration::ZERO), kubelet.clock.monotonic());
                kubelet.dispatcher.done("u", done, now);
            }
            assert_eq!(node.checkpoint("allocated_pods_state").get("u"), None);
            kubelet.forget_ended().await;
            assert!(!kubelet.dispatcher.is_terminating("u"));
            let written = node.checkpoint("allocated_pods_state").get("u");
            assert_eq!(written, Some(PodResources::of(&pod)));
        });
    }
}
