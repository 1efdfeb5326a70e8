//! Keeps a PersistentVolumeClaim that is being deleted while a pod uses it.
//! Upstream: `pkg/controller/volume/pvcprotection`.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::claims::{BY_CLAIM, pods_of, uses};
use super::protection::Protection;
use crate::cache::Lister;
use crate::client::{Client, ListOptions};
use crate::clock::SharedClock;
use crate::controllers::runner::Change;
use crate::controllers::{Controller, Error, Next, Queue, QueuePolicy, SyncResult};
use crate::objects::{Object, ObjectKey, PersistentVolumeClaim, Pod, Resource, Timestamp};

/// Upstream: `volumeutil.PVCProtectionFinalizer`.
const PROTECTION: Protection = Protection("kubernetes.io/pvc-protection");
/// The gate of the condition Unused.
const UNUSED_SINCE: &str = "PersistentVolumeClaimUnusedSinceTime";
const UNUSED: &str = "Unused";

/// Sets up the controller `persistentvolumeclaim-protection-controller`.
pub fn controller(c: &mut Controller) -> Result<(), String> {
    let (claims, pods) = (c.lister::<PersistentVolumeClaim>(), c.lister::<Pod>());
    c.index(&pods, &BY_CLAIM);
    let tracks_use = c.feature(UNUSED_SINCE);
    let queue = c.queue(QueuePolicy::default());
    c.watch(&claims, &queue, move |change, queue| {
        let claim = change.object();
        let lacks_condition =
            || tracks_use && has_unused_condition(claim) && claim.condition(UNUSED).is_none();
        let needs_sync = PROTECTION.concerns(&claim.meta) || lacks_condition();
        if !matches!(change, Change::Deleted(_)) && needs_sync {
            queue.add(claim.meta.key());
        }
    });
    c.watch(&pods, &queue, move |change, queue| match change {
        Change::Deleted(last) => queue_claims(last.object(), queue),
        change if tracks_use || frees_claims(change.object()) => {
            queue_claims(change.object(), queue);
        }
        _ => {}
    });
    let this = PvcProtection { client: c.client(), clock: c.clock(), claims, pods, tracks_use };
    let this = Arc::new(this);
    c.sync(queue, &this, PvcProtection::sync);
    Ok(())
}

/// Returns whether a change of an existing pod may release a claim: one that runs on a node does
/// not.
fn frees_claims(pod: &Pod) -> bool {
    pod.is_terminated() || pod.spec.node_name.is_empty()
}

/// Queues the claims of a pod's volumes.
fn queue_claims(pod: &Pod, queue: &Queue) {
    for (claim, _) in pod.claims() {
        queue.add(ObjectKey::new(&pod.meta.namespace, &claim));
    }
}

/// Returns whether `pod` keeps a claim from being deleted. A kubelet does not start a pod with a
/// claim that is being deleted, so only a pod that has a node counts. Upstream:
/// `podUsesPVCForDeletion`.
fn blocks_deletion(pod: &Pod, claim: &PersistentVolumeClaim) -> bool {
    // The kubelet has ended it, or it was deleted by force. In a foreground deletion it waits for
    // the claims that it owns. Upstream frees only those of ephemeral volumes.
    let is_shut_down =
        pod.meta.is_being_deleted() && pod.meta.deletion_grace_period_seconds == Some(0.into());
    let is_owner = || claim.meta.owners().iter().any(|owner| owner.uid == pod.meta.uid);
    !pod.spec.node_name.is_empty() && uses(pod, claim) && !(is_shut_down && is_owner())
}

/// Returns whether this controller writes the claim's condition Unused. Not before it is bound:
/// then the binder writes the status, and a second writer causes conflicts. A lost claim was bound.
fn has_unused_condition(claim: &PersistentVolumeClaim) -> bool {
    !matches!(&*claim.status.phase, "" | "Pending")
}

/// Returns whether `pod` counts for the condition Unused. Upstream: `podUsesPVCForUnusedSince`.
fn counts_as_use(pod: &Pod, claim: &PersistentVolumeClaim) -> bool {
    !pod.is_terminated() && uses(pod, claim)
}

/// The delay before the next sync of a claim that only a live list has shown to be in use.
const UNSEEN_POD_RECHECK: Duration = Duration::from_secs(30);

struct PvcProtection {
    client: Client,
    clock: SharedClock,
    claims: Lister<PersistentVolumeClaim>,
    pods: Lister<Pod>,
    tracks_use: bool,
}

impl PvcProtection {
    /// Adds the finalizer to a claim, removes it from a deleted claim that no pod uses, and updates
    /// the condition Unused.
    async fn sync(self: Arc<Self>, key: ObjectKey) -> SyncResult {
        let Some(claim) = self.claims.get(&key) else { return Ok(Next::Done) };
        let (mut live, mut next) = (None, Next::Done);
        // The cache may never show the pod, and then no event about its end comes.
        let unseen = Next::After(UNSEEN_POD_RECHECK);
        if self.tracks_use && has_unused_condition(&claim) && !claim.meta.is_being_deleted() {
            let used = self.is_used(&claim, counts_as_use, &mut live).await?;
            self.set_unused(&claim, !used).await?;
            if used && live.is_some() {
                next = unseen;
            }
        }
        if PROTECTION.is_deletion_candidate(&claim.meta) {
            // Before the live list, which `is_used` may make: it then shows the pods of these too.
            let others = self.other_candidates(&claim);
            if !self.is_used(&claim, blocks_deletion, &mut live).await? {
                PROTECTION.remove(&self.client, &*claim).await?;
                self.release(&others, &live.unwrap_or_default()).await;
            } else if live.is_some() {
                next = unseen;
            }
        }
        if PROTECTION.is_missing(&claim.meta) {
            PROTECTION.add(&self.client, &*claim).await?;
        }
        Ok(next)
    }

    /// Returns whether a pod uses the claim, as `by` decides. If the cache has no such pod, it may
    /// lack one, so the namespace's pods are listed from the API server, once a sync, into `live`.
    async fn is_used(
        &self,
        claim: &PersistentVolumeClaim,
        by: fn(&Pod, &PersistentVolumeClaim) -> bool,
        live: &mut Option<Vec<Pod>>,
    ) -> Result<bool, Error> {
        if pods_of(&self.pods, &claim.meta.key()).iter().any(|pod| by(pod, claim)) {
            return Ok(true);
        }
        if live.is_none() {
            let namespace = Some(&*claim.meta.namespace);
            let listed = self.client.list(namespace, &ListOptions::default()).await;
            *live = Some(listed.map_err(|e| Error::during("live list of pods failed", e))?);
        }
        Ok(live.iter().flatten().any(|pod| by(pod, claim)))
    }

    /// Returns the other claims of the namespace that are being deleted by now. A list of pods that
    /// begins after this serves them too: many claims that are deleted together cost one list.
    fn other_candidates(&self, claim: &PersistentVolumeClaim) -> Vec<Arc<PersistentVolumeClaim>> {
        let mut claims = self.claims.in_namespace(&claim.meta.namespace);
        claims.retain(|other| {
            other.meta.uid != claim.meta.uid && PROTECTION.is_deletion_candidate(&other.meta)
        });
        claims
    }

    /// Removes the finalizer of those of `claims` that no pod uses, by the cache and by the `live`
    /// list. Failures are ignored: the claims' own syncs repeat this.
    async fn release(&self, claims: &[Arc<PersistentVolumeClaim>], live: &[Pod]) {
        for claim in claims {
            let is_used = pods_of(&self.pods, &claim.meta.key())
                .iter()
                .any(|pod| blocks_deletion(pod, claim))
                || live.iter().any(|pod| blocks_deletion(pod, claim));
            if !is_used {
                let _ = PROTECTION.remove(&self.client, &**claim).await;
            }
        }
    }

    /// Writes the condition Unused of a claim if its status changes. Fails as stale if the claim
    /// has changed. Upstream: `updateUnusedCondition`.
    async fn set_unused(&self, claim: &PersistentVolumeClaim, unused: bool) -> Result<(), Error> {
        if claim.condition(UNUSED).is_some_and(|condition| (condition.status == "True") == unused) {
            return Ok(());
        }
        let claims = self.client.resource(&PersistentVolumeClaim::RESOURCE);
        let mut live: Value = claims.get(&claim.meta().key()).await?;
        let version = claim.meta.resource_version.to_string();
        if live["metadata"]["resourceVersion"] != version {
            // It may be another claim by now, or have the condition.
            return Err(Error::Stale(format!("the claim {} has changed", claim.meta.key())));
        }
        set_condition(&mut live["status"], unused_condition(unused, self.clock.now()));
        claims.subresource("status").update::<Value>(&claim.meta.key(), &live).await?;
        Ok(())
    }
}

/// Returns the condition Unused, with the reason for its status.
fn unused_condition(unused: bool, now: Timestamp) -> Value {
    let (status, reason, message) = match unused {
        true => ("True", "NoPodsUsingPVC", "No pods are currently referencing this PVC"),
        false => ("False", "PodUsingPVC", "A pod is currently referencing this PVC"),
    };
    json!({
        "type": UNUSED, "status": status, "lastTransitionTime": now,
        "reason": reason, "message": message,
    })
}

/// Replaces the condition of the same type, or adds it.
fn set_condition(status: &mut Value, condition: Value) {
    if status["conditions"].is_null() {
        status["conditions"] = json!([]);
    }
    let Some(conditions) = status["conditions"].as_array_mut() else { return };
    match conditions.iter_mut().find(|old| old["type"] == condition["type"]) {
        Some(old) => *old = condition,
        None => conditions.push(condition),
    }
}

#[cfg(test)]
mod tests {
    use futures_lite::future::block_on;
    use parking_lot::Mutex;

    use super::*;
    use crate::cache::Indexer;
    use crate::client::testing::answering;
    use crate::clock::FakeClock;

    fn pod(spec: Value, meta: Value, status: Value) -> Pod {
        let mut metadata = json!({ "namespace": "ns", "name": "p", "uid": "pod" });
        metadata.as_object_mut().unwrap().extend(meta.as_object().unwrap().clone());
        serde_json::from_value(json!({ "metadata": metadata, "spec": spec, "status": status }))
            .unwrap()
    }

    fn claim(name: &str, owner: Option<&str>) -> PersistentVolumeClaim {
        let owners: Vec<Value> = owner
            .iter()
            .map(|uid| {
                json!({
                    "apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid, "controller": true,
                })
            })
            .collect();
        serde_json::from_value(json!({
            "metadata": { "namespace": "ns", "name": name, "ownerReferences": owners },
        }))
        .unwrap()
    }

    #[test]
    fn which_pods_keep_which_claims() {
        let volumes = json!([
            { "name": "data", "persistentVolumeClaim": { "claimName": "plain" } },
            { "name": "tmp", "ephemeral": { "volumeClaimTemplate": {} } },
            { "name": "dir", "emptyDir": {} },
        ]);
        let on_node = json!({ "nodeName": "n", "volumes": volumes });
        let pending = json!({ "volumes": volumes });
        let shut_down = json!({
            "deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 0,
        });
        let (plain, own) = (claim("plain", None), claim("p-tmp", Some("pod")));
        let (foreign, owned) = (claim("p-tmp", Some("another")), claim("plain", Some("pod")));
        // The pod; then whether it keeps the claim, its own ephemeral one, another pod's, and one
        // that it owns.
        for (spec, meta, kept, what) in [
            (&on_node, json!({}), [true, true, false, true], "runs"),
            (&pending, json!({}), [false; 4], "has no node"),
            (&on_node, shut_down.clone(), [true, false, false, false], "is shut down"),
        ] {
            let pod = pod(spec.clone(), meta, json!({}));
            let found = [&plain, &own, &foreign, &owned].map(|claim| blocks_deletion(&pod, claim));
            assert_eq!(found, kept, "{what}");
        }
        assert!(!blocks_deletion(&pod(on_node, json!({}), json!({})), &claim("dir", None)));
    }

    /// No event about the end of such a pod comes if it ends before a watch is open again.
    #[test]
    fn a_claim_whose_pod_only_the_server_shows_is_synced_again() {
        let (pods, claims) = (Arc::new(Indexer::<Pod>::new()), Arc::new(Indexer::new()));
        pods.add_index(&BY_CLAIM);
        let claim = json!({
            "metadata": {
                "namespace": "ns", "name": "c", "finalizers": [PROTECTION.0],
                "deletionTimestamp": "2026-01-01T00:00:00Z",
            },
        });
        let claim: PersistentVolumeClaim = serde_json::from_value(claim).unwrap();
        let key = claim.meta.key();
        claims.insert(Arc::new(claim));
        let spec = json!({
            "nodeName": "n", "volumes": [{ "persistentVolumeClaim": { "claimName": "c" } }],
        });
        let shown = json!({
            "metadata": { "namespace": "ns", "name": "p", "uid": "pod" }, "spec": spec,
        });
        let list = json!({ "kind": "PodList", "apiVersion": "v1", "items": [shown] });
        let this = Arc::new(PvcProtection {
            client: block_on(answering(move |_| (200, list.clone()))),
            clock: FakeClock::new(Timestamp::from_secs(0)),
            claims: Lister::new(claims),
            pods: Lister::new(pods.clone()),
            tracks_use: false,
        });
        let sync = || block_on(this.clone().sync(key.clone())).unwrap();
        assert_eq!(sync(), Next::After(UNSEEN_POD_RECHECK));
        pods.insert(Arc::new(pod(spec, json!({}), json!({}))));
        assert_eq!(sync(), Next::Done);
    }

    #[test]
    fn a_claim_gets_the_condition_unused_once_it_was_bound() {
        for (phase, written) in [("", 0), ("Pending", 0), ("Lost", 1), ("Bound", 1)] {
            let claim = json!({
                "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "metadata": {
                    "namespace": "ns", "name": "c", "resourceVersion": "7",
                    "finalizers": [PROTECTION.0],
                },
                "status": { "phase": phase },
            });
            let (pods, claims) = (Arc::new(Indexer::<Pod>::new()), Arc::new(Indexer::new()));
            pods.add_index(&BY_CLAIM);
            let cached: PersistentVolumeClaim = serde_json::from_value(claim.clone()).unwrap();
            let key = cached.meta.key();
            claims.insert(Arc::new(cached));
            let writes = Arc::new(Mutex::new(0));
            let counted = writes.clone();
            let client = block_on(answering(move |line| {
                *counted.lock() += usize::from(line.starts_with("PUT"));
                let list = json!({ "kind": "PodList", "apiVersion": "v1", "items": [] });
                (200, if line.contains("/pods") { list } else { claim.clone() })
            }));
            let this = Arc::new(PvcProtection {
                client,
                clock: FakeClock::new(Timestamp::from_secs(0)),
                claims: Lister::new(claims),
                pods: Lister::new(pods),
                tracks_use: true,
            });
            assert_eq!(block_on(this.sync(key)).unwrap(), Next::Done);
            assert_eq!(*writes.lock(), written, "{phase}");
        }
    }

    #[test]
    fn which_pods_count_as_use() {
        let spec = || json!({ "volumes": [{ "persistentVolumeClaim": { "claimName": "c" } }] });
        let deleted = json!({ "deletionTimestamp": "2026-01-01T00:00:00Z" });
        let state = |state: &str| json!({ "phase": "Running", "containerStatuses": [{ "state": { state: {} } }] });
        for (meta, status, counts) in [
            (json!({}), json!({ "phase": "Pending" }), true),
            (json!({}), json!({ "phase": "Succeeded" }), false),
            (json!({}), json!({ "phase": "Failed" }), false),
            (deleted.clone(), state("running"), true),
            (deleted.clone(), state("terminated"), false),
            (deleted.clone(), state("waiting"), false),
            (json!({}), state("waiting"), true),
        ] {
            let text = format!("{meta} {status}");
            let pod = pod(spec(), meta, status);
            assert_eq!(counts_as_use(&pod, &claim("c", None)), counts, "{text}");
        }
    }

    #[test]
    fn a_condition_is_replaced_and_the_others_stay() {
        let now = Timestamp::from_secs(0);
        let mut status = json!({ "phase": "Bound", "conditions": [{ "type": "Resizing" }] });
        set_condition(&mut status, unused_condition(true, now));
        set_condition(&mut status, unused_condition(false, now));
        assert_eq!(status["conditions"].as_array().unwrap().len(), 2);
        assert_eq!(status["conditions"][1]["reason"], "PodUsingPVC");
        let mut none = json!({});
        set_condition(&mut none, unused_condition(true, now));
        assert_eq!(none["conditions"][0]["lastTransitionTime"], "1970-01-01T00:00:00Z");
    }
}
