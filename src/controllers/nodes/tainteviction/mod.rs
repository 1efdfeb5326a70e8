//! Deletes pods from nodes with NoExecute taints that they do not tolerate, or no longer.
//! Upstream: `pkg/controller/tainteviction`.

mod due;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};

use self::due::{Cause, Due};
use super::pods::{BY_NODE, on_node};
use crate::cache::Lister;
use crate::client::{self, Client, Delete, Patch};
use crate::clock::SharedClock;
use crate::controllers::runner::{Change, Queue};
use crate::controllers::{Controller, Error, Next, QueuePolicy, SyncResult};
use crate::events::{EventType, ObjectReference, Recorder};
use crate::metrics::metrics;
use crate::objects::{
    Istr, NO_EXECUTE, Node, ObjectKey, PartialObjectMetadata, Pod, Resource, Taint, Timestamp, Uid,
    patch_conditions,
};

/// Pods that are deleted at once. Upstream has no limit but the client's.
const EVICTIONS: usize = 16;
const REASON: &str = "DeletionByTaintManager";
/// How often the deletion of a pod may be refused. Upstream: `retries`, for every failure.
const REFUSALS: u32 = 5;

metrics! {
    fn register;
    static DELETIONS: IntCounter = "taint_eviction_controller_pod_deletions_total",
        "[ALPHA] Total number of Pods deleted by TaintEvictionController since its start.";
    static LATENCY: Histogram([
        0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 30.0, 60.0, 120.0, 180.0, 240.0,
    ]) = "taint_eviction_controller_pod_deletion_duration_seconds",
        "[ALPHA] Latency, in seconds, between the time when a taint effect has been activated for the Pod and its deletion via TaintEvictionController.";
}

/// Sets up the controller `taint-eviction-controller`. Its gate is locked on: upstream has a way to
/// run it as a part of the node lifecycle controller, which no flag can reach any more.
pub fn controller(c: &mut Controller) -> Result<(), String> {
    register();
    let (nodes, pods) = (c.lister::<Node>(), c.lister::<Pod>());
    c.index(&pods, &BY_NODE);
    let evictions: Queue = c.queue_named("", QueuePolicy::default());
    let this = Arc::new(TaintEviction {
        planning: Mutex::default(),
        client: c.client(),
        recorder: c.recorder(),
        clock: c.clock(),
        nodes: nodes.clone(),
        pods: pods.clone(),
        comparison: c.feature("TaintTolerationComparisonOperators"),
        queue: evictions.clone(),
        planned: Mutex::default(),
    });

    let node_queue: Queue = c.queue_named("noexec_taint_node", QueuePolicy::default());
    c.watch_resyncing(&nodes, None, &node_queue, |change, queue| {
        if changes_taints(&change) {
            queue.add(change.object().meta.key());
        }
    });
    c.sync_by(1, node_queue, &this, |this, key| {
        this.sync_node(&key);
        std::future::ready(Ok(Next::Done))
    });

    let pod_queue: Queue = c.queue_named("noexec_taint_pod", QueuePolicy::default());
    let handler = this.clone();
    c.watch_resyncing(&pods, None, &pod_queue, move |change, queue| {
        if handler.may_be_evicted(&change) {
            queue.add(change.object().meta.key());
        }
    });
    c.sync_by(1, pod_queue, &this, |this, key| {
        this.sync_pod(key);
        std::future::ready(Ok(Next::Done))
    });

    c.sync_by(EVICTIONS, evictions, &this, TaintEviction::evict);
    Ok(())
}

/// Returns the taints of a node that evict. Upstream: `getNoExecuteTaints`.
fn no_execute_taints(node: &Node) -> impl Iterator<Item = &Taint> {
    node.spec.taints.iter().filter(|taint| taint.effect == *NO_EXECUTE)
}

/// Returns whether the pods of the node are to be planned again. Not after its deletion: the
/// evictions that are planned take place.
fn changes_taints(change: &Change<'_, Node>) -> bool {
    match change {
        // A node that comes back without taints cancels what its predecessor had planned.
        Change::Added { new, initial } => !initial || no_execute_taints(new).next().is_some(),
        Change::Updated { old, new } => !no_execute_taints(old).eq(no_execute_taints(new)),
        Change::Resync { .. } | Change::Deleted(_) => false,
    }
}

struct TaintEviction {
    /// Held from the read of a node to the plan for its pods, so that no plan is made from taints
    /// that another worker has seen go. Upstream: one worker for all of a node.
    planning: Mutex<()>,
    client: Client,
    recorder: Recorder,
    clock: SharedClock,
    nodes: Lister<Node>,
    pods: Lister<Pod>,
    /// The gate TaintTolerationComparisonOperators.
    comparison: bool,
    /// The pods of `planned`, each with its timer, or queued.
    queue: Queue,
    planned: Mutex<HashMap<ObjectKey, Planned>>,
}

/// A pod that is to be deleted.
struct Planned {
    uid: Uid,
    /// The times at which it was planned and at which it is due, on the monotonic clock.
    created: Duration,
    due: Duration,
    stage: Stage,
    /// How often the API server has refused it.
    refusals: u32,
}

#[derive(Clone, Copy, PartialEq)]
/// How far an eviction is. Each one is announced by one event.
enum Stage {
    /// No event is recorded yet.
    Waiting,
    /// The event is recorded, and is not repeated; a request is to be made, for the first time or
    /// once more.
    Announced,
    /// A request is under way: the end of the eviction is not announced.
    Running,
}

impl TaintEviction {
    fn node(&self, name: &str) -> Option<Arc<Node>> {
        self.nodes.get(&ObjectKey::cluster(name))
    }

    /// Returns whether a change of a pod may plan or cancel its eviction. This keeps pods on nodes
    /// without taints out of the queue.
    fn may_be_evicted(&self, change: &Change<'_, Pod>) -> bool {
        let (pod, is_new) = match change {
            Change::Added { new, .. } => (new, true),
            Change::Updated { old, new } => {
                let is_new = old.spec.node_name != new.spec.node_name
                    || old.spec.shape.tolerations != new.spec.shape.tolerations;
                (new, is_new)
            }
            Change::Deleted(deleted) => (&deleted.object(), false),
            Change::Resync { .. } => return false,
        };
        if is_new {
            let node = Some(&pod.spec.node_name).filter(|name| !name.is_empty());
            let node = node.and_then(|name| self.node(name));
            return node.is_some_and(|node| no_execute_taints(&node).next().is_some());
        }
        matches!(change, Change::Deleted(_)) && self.planned.lock().contains_key(&pod.meta.key())
    }

    /// Plans or cancels the evictions of all pods of a node whose taints have changed.
    /// Upstream: `handleNodeUpdate`.
    fn sync_node(&self, key: &ObjectKey) {
        let _planning = self.planning.lock();
        let Some(node) = self.nodes.get(key) else { return };
        let taints: Vec<&Taint> = no_execute_taints(&node).collect();
        for pod in on_node(&self.pods, &node.meta.name) {
            match taints.is_empty() {
                true => self.cancel(&pod.meta.key()),
                false => self.plan(&pod, &taints, Cause::Taints),
            }
        }
    }

    /// Plans the eviction of a pod that is new or has changed, or cancels that of a deleted one.
    /// Upstream: `handlePodUpdate`.
    fn sync_pod(&self, key: ObjectKey) {
        let _planning = self.planning.lock();
        let Some(pod) = self.pods.get(&key) else { return self.cancel(&key) };
        // The evictions from a deleted node take place as planned.
        let Some(node) = self.node(&pod.spec.node_name) else { return };
        let taints: Vec<&Taint> = no_execute_taints(&node).collect();
        // Without taints the change of the node has cancelled the eviction, or will.
        if !taints.is_empty() {
            self.plan(&pod, &taints, Cause::Tolerations);
        }
    }

    /// Plans the eviction of a pod because of these taints, in place of the one that was planned,
    /// or cancels it if the pod tolerates them. A deletion under way, and a wait that keeps its
    /// time, stay as they are.
    /// Upstream: `processPodOnNode`.
    fn plan(&self, pod: &Pod, taints: &[&Taint], cause: Cause) {
        let (key, now) = (pod.meta.key(), self.clock.monotonic());
        let uid = self.planned.lock().get(&key).map(|planned| planned.uid.clone());
        if uid.is_some_and(|uid| uid != pod.meta.uid) {
            self.cancel(&key);
        }
        let wanted = due::when_due(taints, &pod.spec.shape.tolerations, self.comparison);
        let after = match wanted {
            Due::Never => return self.cancel(&key),
            Due::Now => Duration::ZERO,
            Due::After(after) => after,
        };
        let known = self.planned.lock().get(&key).map(|it| (it.stage, it.created, it.due));
        let replacement = match known {
            None => Some((now, now.saturating_add(after))),
            Some((Stage::Waiting, created, due)) => wanted.replaces(created, due, cause, now),
            Some((Stage::Announced, created, _)) => {
                wanted.postpones(created, now).map(|due| (created, due))
            }
            Some((Stage::Running, ..)) => None,
        };
        let Some((created, due)) = replacement else { return };
        if known.is_some() {
            self.cancel(&key);
        }
        let after = due - now;
        let stage = if after.is_zero() { Stage::Announced } else { Stage::Waiting };
        let planned = Planned { uid: pod.meta.uid.clone(), created, due, stage, refusals: 0 };
        self.planned.lock().insert(key.clone(), planned);
        if after.is_zero() {
            self.record_event(&key, "Marking for deletion Pod");
        }
        self.queue.set_timer_after(key, after);
    }

    /// Cancels the eviction of a pod, with an event; one that is running is only dropped from the
    /// plan. Upstream: `cancelWorkWithEvent`.
    fn cancel(&self, key: &ObjectKey) {
        let cancelled = self.planned.lock().remove(key);
        if cancelled.is_some_and(|planned| planned.stage != Stage::Running) {
            self.queue.cancel_timer(key);
            self.record_event(key, "Cancelling deletion of Pod");
        }
    }

    /// Records an event about a pod, without its uid, as upstream.
    /// Upstream: `emitPodDeletionEvent`, `emitCancelPodDeletionEvent`.
    fn record_event(&self, key: &ObjectKey, what: &str) {
        let about = ObjectReference {
            api_version: "v1".into(),
            kind: "Pod".into(),
            namespace: key.namespace.clone(),
            name: key.name.clone(),
            uid: Uid::default(),
            resource_version: 0,
            field_path: Istr::default(),
        };
        let message = format!("{what} {key}");
        self.recorder.event(&about, EventType::Normal, "TaintManagerEviction", message);
    }

    /// Deletes a pod that is due, or waits on if its eviction was postponed. Upstream:
    /// `deletePodHandler`.
    async fn evict(self: Arc<Self>, key: ObjectKey) -> SyncResult {
        let now = self.clock.monotonic();
        let (uid, due, begins) = {
            let mut planned = self.planned.lock();
            let Some(planned) = planned.get_mut(&key) else { return Ok(Next::Done) };
            if now < planned.due {
                self.queue.set_timer_after(key, planned.due - now);
                return Ok(Next::Done);
            }
            let stage = std::mem::replace(&mut planned.stage, Stage::Running);
            (planned.uid.clone(), planned.due, stage == Stage::Waiting)
        };
        if begins {
            self.record_event(&key, "Marking for deletion Pod");
        }
        // `Ok` says whether the pod was there to be deleted.
        let result = match self.pods.get(&key).filter(|pod| pod.meta.uid == uid) {
            Some(pod) => self.delete(&pod).await.map(|()| true),
            None => Ok(false),
        };
        let is_gone = |error: &Error| error.api().is_some_and(|error| error.is_not_found());
        match result {
            Err(error) if !is_gone(&error) => {
                if let Some(planned) = self.planned.lock().get_mut(&key) {
                    planned.stage = Stage::Announced;
                }
                // Tolerations may have changed meanwhile.
                self.sync_pod(key.clone());
                return self.handle_failure(&key, &uid, error);
            }
            Err(_) | Ok(false) => {}
            Ok(true) => {
                DELETIONS.inc();
                LATENCY.observe((self.clock.monotonic() - due).as_secs_f64());
            }
        }
        self.forget(&key, &uid);
        Ok(Next::Done)
    }

    /// Drops the plan for the pod with this uid.
    fn forget(&self, key: &ObjectKey, uid: &Uid) {
        let mut planned = self.planned.lock();
        if planned.get(key).is_some_and(|planned| planned.uid == *uid) {
            planned.remove(key);
        }
    }

    /// Decides whether a failed eviction is retried. A pod whose deletion is refused [`REFUSALS`]
    /// times stays until taints or tolerations change. Upstream gives up on every failure; here
    /// those that may pass, as an API server that restarts, are retried.
    fn handle_failure(&self, key: &ObjectKey, uid: &Uid, error: Error) -> SyncResult {
        if !is_refusal(&error) {
            return Err(error);
        }
        // Without a plan the eviction was cancelled: it is not retried.
        let refusals = self.planned.lock().get_mut(key).map_or(REFUSALS, |planned| {
            planned.refusals += 1;
            planned.refusals
        });
        if refusals < REFUSALS {
            return Err(error);
        }
        self.forget(key, uid);
        Err(Error::Terminal(Box::new(error)))
    }

    /// Sets the condition `DisruptionTarget`, which owners and disruption budgets read, and then
    /// deletes the pod. Upstream: `addConditionAndDeletePod`.
    async fn delete(&self, pod: &Pod) -> Result<(), Error> {
        let key = pod.meta.key();
        if let Some(patch) = disruption_patch(pod, self.clock.now()) {
            let statuses = self.client.resource(&Pod::RESOURCE).subresource("status");
            statuses.patch::<PartialObjectMetadata>(&key, &Patch::StrategicMerge(patch)).await?;
        }
        Ok(self.client.delete::<Pod>(&key, Delete::new().uid(pod.meta.uid.clone())).await?)
    }
}

/// Returns whether the API server understood the request and does not carry it out: an admission
/// webhook or policy denies it, or the manager lacks the right. Other failures may pass.
fn is_refusal(error: &Error) -> bool {
    let code = error.api().and_then(client::Error::code);
    // Unauthorized, timeout, conflict and too many requests may pass.
    code.is_some_and(|code| (400..500).contains(&code) && ![401, 408, 409, 429].contains(&code))
}

/// Returns the patch of the condition DisruptionTarget; `None` if the pod has it for this reason.
fn disruption_patch(pod: &Pod, now: Timestamp) -> Option<Value> {
    let known = pod.status.condition("DisruptionTarget");
    let is_true = known.is_some_and(|condition| condition.status == "True");
    if is_true && known.is_some_and(|condition| condition.reason == *REASON) {
        return None;
    }
    let mut condition = json!({
        "type": "DisruptionTarget", "status": "True", "reason": REASON,
        "message": "Taint manager: deleting due to NoExecute taint",
    });
    if pod.meta.generation != 0 {
        condition["observedGeneration"] = pod.meta.generation.into();
    }
    if !is_true {
        condition["lastTransitionTime"] = now.to_string().into();
    }
    let mut status = json!({});
    let names = pod.status.conditions.iter().map(|condition| condition.r#type.as_str());
    patch_conditions(&mut status, names, vec![condition]);
    Some(json!({ "metadata": { "uid": pod.meta.uid }, "status": status }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_marked_once_before_it_is_deleted() {
        let condition = |status: &str, reason: &str| json!([{ "type": "DisruptionTarget", "status": status, "reason": reason }]);
        // The conditions, whether there is a patch, and whether the time is new.
        for (conditions, patched, retimed) in [
            (json!([]), true, true),
            (condition("False", REASON), true, true),
            (condition("True", "PreemptionByScheduler"), true, false),
            (condition("True", REASON), false, false),
        ] {
            let pod: Pod = serde_json::from_value(json!({
                "metadata": { "uid": "u", "generation": 3 },
                "status": { "conditions": conditions },
            }))
            .unwrap();
            let mut expected = json!({
                "type": "DisruptionTarget", "status": "True", "observedGeneration": 3,
                "reason": "DeletionByTaintManager",
                "message": "Taint manager: deleting due to NoExecute taint",
            });
            if retimed {
                expected["lastTransitionTime"] = "1970-01-01T00:01:00Z".into();
            }
            let expected = patched.then(|| {
                let order = json!([{ "type": "DisruptionTarget" }]);
                json!({
                    "metadata": { "uid": "u" },
                    "status": { "$setElementOrder/conditions": order, "conditions": [expected] },
                })
            });
            assert_eq!(disruption_patch(&pod, Timestamp::from_secs(60)), expected, "{conditions}");
        }
    }
}
