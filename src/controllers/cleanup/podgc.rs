//! Deletes pods that no other component deletes: terminated pods above a threshold, pods of nodes
//! that are gone or out of service, and pods that are being deleted but were never scheduled.
//! Upstream: `pkg/controller/podgc`.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::cache::Lister;
use crate::client::{Client, Delete, Patch};
use crate::clock::SharedClock;
use crate::controllers::runner::batch::together;
use crate::controllers::{Controller, Error};
use crate::metrics::metrics;
use crate::objects::{
    Istr, Node, ObjectKey, PartialObjectMetadata, Pod, Resource, Timestamp, patch_conditions,
};

/// The time between two collections.
const PERIOD: Duration = Duration::from_secs(20);
/// How long a pod's node is missing from the cache before it is read from the API server.
const QUARANTINE: Duration = Duration::from_secs(40);
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

metrics! {
    static DELETED: IntCounterVec["namespace", "reason"] =
        "pod_gc_collector_force_delete_pods_total",
        "[ALPHA] Number of pods that are being forcefully deleted since the Pod GC Controller started.";
    static FAILED: IntCounterVec["namespace", "reason"] =
        "pod_gc_collector_force_delete_pod_errors_total",
        "[ALPHA] Number of errors encountered when forcefully deleting the pods since the Pod GC Controller started.";
}

/// Sets up the controller `pod-garbage-collector-controller`.
pub fn controller(c: &mut Controller) -> Result<(), String> {
    let this = Arc::new(PodGc {
        client: c.client(),
        clock: c.clock(),
        pods: c.lister(),
        nodes: c.lister(),
        threshold: usize::try_from(c.options().terminated_pod_gc_threshold).unwrap_or(0),
        quarantine: Mutex::default(),
    });
    c.every(PERIOD, move || this.clone().collect());
    Ok(())
}

struct PodGc {
    client: Client,
    clock: SharedClock,
    pods: Lister<Pod>,
    nodes: Lister<Node>,
    /// The number of terminated pods that stay; 0: all stay.
    threshold: usize,
    quarantine: Mutex<Quarantine>,
}

/// Why a pod is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    Terminated,
    OutOfService,
    Orphaned,
    Unscheduled,
}

impl Reason {
    /// Returns its name in metrics and in the log.
    fn label(self) -> &'static str {
        match self {
            Reason::Terminated => "terminated",
            Reason::OutOfService => "out-of-service",
            Reason::Orphaned => "orphaned",
            Reason::Unscheduled => "unscheduled",
        }
    }
}

impl PodGc {
    /// Deletes the pods of each reason in turn. Runs every [`PERIOD`].
    async fn collect(self: Arc<Self>) -> Result<(), Error> {
        let pods = self.pods.list();
        self.delete(excess_terminated(&pods, self.threshold), Reason::Terminated).await;
        let mut stuck = filter_pods(&pods, |pod| self.is_out_of_service(pod));
        sort_by_eviction_and_age(&mut stuck);
        self.delete(stuck, Reason::OutOfService).await;
        let deleted_nodes = self.deleted_nodes(&pods).await;
        let orphaned = filter_pods(&pods, |pod| deleted_nodes.contains(&pod.spec.node_name));
        self.delete(orphaned, Reason::Orphaned).await;
        let unscheduled = |pod: &Pod| pod.meta.is_being_deleted() && pod.spec.node_name.is_empty();
        self.delete(filter_pods(&pods, unscheduled), Reason::Unscheduled).await;
        Ok(())
    }

    fn node(&self, name: &str) -> Option<Arc<Node>> {
        self.nodes.get(&ObjectKey::cluster(name))
    }

    /// Returns whether the pod is being deleted on a node that is out of service and not ready: its
    /// kubelet cannot end the pod.
    fn is_out_of_service(&self, pod: &Pod) -> bool {
        pod.meta.is_being_deleted()
            && self
                .node(&pod.spec.node_name)
                .is_some_and(|node| !node.is_ready() && node.has_taint(OUT_OF_SERVICE))
    }

    /// Returns the names of nodes that pods refer to and that do not exist: the cache lacked them
    /// for the whole quarantine, and the API server does not have them either.
    async fn deleted_nodes(&self, pods: &[Arc<Pod>]) -> Vec<Istr> {
        let is_missing = |name: &Istr| self.node(name).is_none();
        let missing = pods.iter().map(|pod| &pod.spec.node_name);
        let missing = missing.filter(|name| !name.is_empty() && is_missing(name));
        let due = {
            let mut quarantine = self.quarantine.lock();
            quarantine.take_due(missing, self.clock.monotonic())
        };
        let mut deleted_nodes = Vec::new();
        for name in due.into_iter().filter(is_missing) {
            match self.client.get::<NodeName>(&ObjectKey::cluster(&name)).await {
                Ok(_) => {}
                Err(error) if error.is_not_found() => deleted_nodes.push(name),
                // The next collection puts it into quarantine again if its pods still exist.
                Err(error) => log::error!("Error while getting node {name}: {error}"),
            }
        }
        deleted_nodes
    }

    /// Deletes the pods at once, without a grace period; a failure is logged and counted.
    async fn delete(self: &Arc<Self>, pods: Vec<Arc<Pod>>, reason: Reason) {
        if !pods.is_empty() {
            log::info!("Garbage collecting {} pods ({})", pods.len(), reason.label());
        }
        let deletions = pods.into_iter().map(|pod| {
            let this = self.clone();
            async move {
                let key = pod.meta.key();
                let labels = &[key.namespace.as_str(), reason.label()];
                log::info!("PodGC is force deleting Pod {key}");
                if let Err(error) = this.fail_and_delete(&pod, reason).await {
                    log::error!("Failed to delete {} pod {key}: {error}", reason.label());
                    FAILED.with_label_values(labels).inc();
                }
                // Counts attempts: failed ones too, as upstream.
                DELETED.with_label_values(labels).inc();
            }
        });
        together(deletions).await;
    }

    /// Marks the pod Failed, so that its owner does not count it as running, then deletes it.
    async fn fail_and_delete(&self, pod: &Pod, reason: Reason) -> Result<(), Error> {
        let key = pod.meta.key();
        if let Some(patch) = failed_status_patch(pod, reason, self.clock.now()) {
            let status = self.client.resource(&Pod::RESOURCE).subresource("status");
            let patch = Patch::StrategicMerge(patch);
            status.patch::<PartialObjectMetadata>(&key, &patch).await?;
        }
        let now = Delete::new().grace_period(0).uid(pod.meta.uid.clone());
        Ok(self.client.delete::<Pod>(&key, now).await?)
    }
}

/// A Node of which no field is decoded: only its existence matters.
#[derive(serde::Deserialize)]
struct NodeName {}

impl Resource for NodeName {
    const RESOURCE: crate::objects::ResourceType = Node::RESOURCE;
}

/// Returns the pods for which `is_wanted` holds.
fn filter_pods(pods: &[Arc<Pod>], is_wanted: impl Fn(&Pod) -> bool) -> Vec<Arc<Pod>> {
    pods.iter().filter(|pod| is_wanted(pod)).cloned().collect()
}

/// Returns the terminated pods to delete so that `threshold` of them stay: evicted pods first, then
/// the oldest. None if `threshold` is 0.
fn excess_terminated(pods: &[Arc<Pod>], threshold: usize) -> Vec<Arc<Pod>> {
    if threshold == 0 {
        return Vec::new();
    }
    let mut terminated = filter_pods(pods, Pod::is_terminal);
    let count = terminated.len().saturating_sub(threshold);
    if count > 0 {
        sort_by_eviction_and_age(&mut terminated);
    }
    terminated.truncate(count);
    terminated
}

/// Sorts evicted pods first, then older ones. Upstream: `byEvictionAndCreationTimestamp`.
fn sort_by_eviction_and_age(pods: &mut [Arc<Pod>]) {
    pods.sort_by(|a, b| {
        let rank = |pod: &Pod| (!pod.status.evicted, pod.meta.creation_timestamp);
        rank(a).cmp(&rank(b)).then_with(|| a.meta.name.cmp(&b.meta.name))
    });
}

/// Returns the patch that makes `pod` Failed; `None` if it is terminated already. Only an orphaned
/// pod gets the condition `DisruptionTarget`.
fn failed_status_patch(pod: &Pod, reason: Reason, now: Timestamp) -> Option<Value> {
    if pod.is_terminal() {
        return None;
    }
    let mut status = json!({ "phase": "Failed" });
    let generation = Some(pod.meta.generation).filter(|generation| *generation != 0);
    if let Some(generation) = generation {
        status["observedGeneration"] = generation.into();
    }
    if reason == Reason::Orphaned {
        let mut condition = json!({
            "type": "DisruptionTarget", "status": "True",
            "reason": "DeletionByPodGC", "message": "PodGC: node no longer exists",
        });
        if let Some(generation) = generation {
            condition["observedGeneration"] = generation.into();
        }
        // A condition that was true already keeps its time: the patch merges.
        if !pod.status.is_disruption_target() {
            condition["lastTransitionTime"] = now.to_string().into();
        }
        let names = pod.status.conditions.iter().map(|condition| condition.r#type.as_str());
        patch_conditions(&mut status, names, vec![condition]);
    }
    Some(json!({ "metadata": { "uid": pod.meta.uid }, "status": status }))
}

/// The nodes that pods name and the cache lacks, each with the monotonic time at which it is to be
/// read from the API server.
#[derive(Default)]
struct Quarantine {
    ends: BTreeMap<Istr, Duration>,
}

impl Quarantine {
    /// Adds the `missing` nodes, and removes and returns those that are due at `now`. A node that
    /// is missing at the next call starts a new quarantine.
    fn take_due<'a>(
        &mut self,
        missing: impl Iterator<Item = &'a Istr>,
        now: Duration,
    ) -> Vec<Istr> {
        let missing: std::collections::BTreeSet<&Istr> = missing.collect();
        for name in &missing {
            self.ends.entry((*name).clone()).or_insert(now + QUARANTINE);
        }
        let is_due = |(_, end): &(&Istr, &Duration)| **end <= now;
        let due: Vec<Istr> =
            self.ends.iter().filter(is_due).map(|(name, _)| name.clone()).collect();
        for name in &due {
            self.ends.remove(name);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, second: i64, status: Value) -> Arc<Pod> {
        let created = Timestamp::from_secs(second).to_string();
        let pod = json!({
            "metadata": { "name": name, "uid": name, "generation": 3, "creationTimestamp": created },
            "status": status,
        });
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    #[test]
    fn evicted_pods_are_deleted_first_and_then_the_oldest() {
        let pods = [
            pod("running", 0, json!({ "phase": "Running" })),
            pod("young", 9, json!({ "phase": "Succeeded" })),
            pod("b", 5, json!({ "phase": "Failed" })),
            pod("a", 5, json!({ "phase": "Failed", "reason": "Error" })),
            pod("evicted", 9, json!({ "phase": "Failed", "reason": "Evicted" })),
        ];
        let names = |threshold| -> Vec<String> {
            excess_terminated(&pods, threshold)
                .iter()
                .map(|pod| pod.meta.name.to_string())
                .collect()
        };
        assert_eq!(names(0), Vec::<String>::new(), "off");
        assert_eq!(names(1), ["evicted", "a", "b"]);
        assert_eq!(names(3), ["evicted"]);
        assert_eq!(names(4), Vec::<String>::new());
    }

    #[test]
    fn a_pod_is_marked_failed_before_it_is_deleted() {
        let now = Timestamp::from_secs(60);
        let patch = |status: Value, reason| failed_status_patch(&pod("x", 0, status), reason, now);
        assert_eq!(patch(json!({ "phase": "Succeeded" }), Reason::Orphaned), None);
        assert_eq!(
            patch(json!({ "phase": "Running" }), Reason::Unscheduled),
            Some(json!({
                "metadata": { "uid": "x" },
                "status": { "phase": "Failed", "observedGeneration": 3 },
            }))
        );
        let mut condition = json!({
            "type": "DisruptionTarget", "status": "True", "observedGeneration": 3,
            "reason": "DeletionByPodGC", "message": "PodGC: node no longer exists",
            "lastTransitionTime": "1970-01-01T00:01:00Z",
        });
        let orphaned = |patch: Option<Value>| patch.unwrap()["status"]["conditions"][0].take();
        let with_condition = |status: &str| {
            let condition = json!({ "type": "DisruptionTarget", "status": status });
            json!({ "phase": "Running", "conditions": [condition] })
        };
        assert_eq!(orphaned(patch(with_condition("False"), Reason::Orphaned)), condition);
        // True before: the time of the change stays.
        condition.as_object_mut().unwrap().remove("lastTransitionTime");
        assert_eq!(orphaned(patch(with_condition("True"), Reason::Orphaned)), condition);
    }

    #[test]
    fn a_node_is_looked_up_after_its_quarantine() {
        let mut quarantine = Quarantine::default();
        let (a, b) = (Istr::new("a"), Istr::new("b"));
        let mut due = |missing: &[&Istr], second| {
            quarantine.take_due(missing.iter().copied(), Duration::from_secs(second))
        };
        assert!(due(&[&a, &a], 0).is_empty());
        assert!(due(&[&a, &b], 20).is_empty());
        assert_eq!(due(&[&a, &b], 40), ["a"]);
        assert_eq!(due(&[&a, &b], 60), ["b"]);
        assert_eq!(due(&[], 120), ["a"], "the caller looks at the cache first");
        assert!(due(&[], 200).is_empty());
    }
}
