//! Creates the claims of pods' ephemeral volumes. Upstream: `pkg/controller/volume/ephemeral`.

use std::sync::Arc;

use serde_json::{Value, json};

use super::claims::{BY_CLAIM, pods_of};
use crate::cache::Lister;
use crate::client::Client;
use crate::controllers::runner::Change;
use crate::controllers::{Controller, Error, Next, Queue, QueuePolicy, SyncResult};
use crate::events::Recorder;
use crate::metrics::metrics;
use crate::objects::{ClaimSource, ClaimVolume, ObjectKey, PersistentVolumeClaim, Pod, Resource};

metrics! {
    fn register;
    static ATTEMPTS: IntCounter = "ephemeral_volume_controller_create_total",
        "[ALPHA] Number of PersistentVolumeClaim creation requests";
    static FAILURES: IntCounter = "ephemeral_volume_controller_create_failures_total",
        "[ALPHA] Number of PersistentVolumeClaim creation requests";
}

/// Sets up the controller `ephemeral-volume-controller`.
pub fn controller(c: &mut Controller) -> Result<(), String> {
    register();
    let (claims, pods) = (c.lister::<PersistentVolumeClaim>(), c.lister::<Pod>());
    c.index(&pods, &BY_CLAIM);
    let queue = c.queue(QueuePolicy::default());
    // The volumes of a pod never change, and its claims are deleted with their owner.
    c.watch(&pods, &queue, |change, queue| {
        if let Change::Added { new, .. } = change {
            queue_pod(new, queue);
        }
    });
    let users = pods.clone();
    c.watch(&claims, &queue, move |change, queue| {
        if let Change::Deleted(last) = change {
            for pod in pods_of(&users, &last.object().meta.key()) {
                queue_pod(&pod, queue);
            }
        }
    });
    let this = Ephemeral { client: c.client(), recorder: c.recorder(), claims, pods };
    let this = Arc::new(this);
    c.sync(queue, &this, Ephemeral::sync);
    Ok(())
}

/// Queues a pod that has ephemeral volumes and is not being deleted.
fn queue_pod(pod: &Pod, queue: &Queue) {
    if !pod.meta.is_being_deleted() && pod.claims().any(|(_, for_pod)| for_pod) {
        queue.add(pod.meta.key());
    }
}

struct Ephemeral {
    client: Client,
    recorder: Recorder,
    claims: Lister<PersistentVolumeClaim>,
    pods: Lister<Pod>,
}

impl Ephemeral {
    /// Creates the missing claims of a pod's ephemeral volumes.
    async fn sync(self: Arc<Self>, key: ObjectKey) -> SyncResult {
        let Some(pod) = self.pods.get(&key).filter(|pod| !pod.meta.is_being_deleted()) else {
            return Ok(Next::Done);
        };
        for volume in &pod.spec.shape.claims {
            let ClaimVolume { volume, claim: ClaimSource::Ephemeral, .. } = volume else {
                continue;
            };
            if let Err(error) = self.provide(&pod, volume).await {
                let text = format!("ephemeral volume {volume}: {}", error.message());
                self.recorder.warning(&*pod, "FailedBinding", &text);
                return Err(Error::other(format!("pod {key}, {text}")));
            }
        }
        Ok(Next::Done)
    }

    /// Creates the claim of an ephemeral volume, unless it exists or the pod is gone. Fails if a
    /// claim of this name is not the pod's. Upstream: `handleVolume`.
    async fn provide(&self, pod: &Pod, volume: &str) -> Result<(), Error> {
        let name = pod.ephemeral_claim(volume);
        let key = ObjectKey::new(&pod.meta.namespace, &name);
        if let Some(claim) = self.claims.get(&key) {
            return claim_is_for_pod(&claim, pod);
        }
        // The cached pod has no template of the claim.
        let live: Value = match self.client.resource(&Pod::RESOURCE).get(&pod.meta.key()).await {
            Err(error) if error.is_not_found() => return Ok(()),
            live => live?,
        };
        let Some(claim) = new_claim(pod, &live, volume, &name) else { return Ok(()) };
        ATTEMPTS.inc();
        let claims = self.client.resource(&PersistentVolumeClaim::RESOURCE);
        let created = claims.create_for_metadata(&key.namespace, &claim).await;
        created.map(drop).map_err(|error| {
            FAILURES.inc();
            Error::other(format!("create PVC {name}: {}", Error::from(error).message()))
        })
    }
}

/// Checks that a claim was made for the pod.
/// Upstream: `ephemeral.VolumeIsForPod`.
fn claim_is_for_pod(claim: &PersistentVolumeClaim, pod: &Pod) -> Result<(), Error> {
    match claim.meta.is_controlled_by(&pod.meta.uid) {
        true => Ok(()),
        false => Err(Error::other(format!(
            "PVC {} was not created for pod {} (pod is not owner)",
            claim.meta.key(),
            pod.meta.key(),
        ))),
    }
}

/// Builds the claim of an ephemeral volume from its template in `live`; `None` if that is another
/// pod of this name, or has no such volume.
fn new_claim(pod: &Pod, live: &Value, volume: &str, name: &str) -> Option<Value> {
    if live["metadata"]["uid"] != pod.meta.uid.to_string() {
        return None;
    }
    let mut volumes = live["spec"]["volumes"].as_array()?.iter();
    let template = &volumes.find(|found| found["name"] == volume)?["ephemeral"];
    let template = &template["volumeClaimTemplate"];
    let mut metadata = json!({
        "name": name, "ownerReferences": [pod.meta.controller_ref::<Pod>()],
    });
    for field in ["annotations", "labels"] {
        if !template["metadata"][field].is_null() {
            metadata[field] = template["metadata"][field].clone();
        }
    }
    Some(json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": metadata, "spec": template["spec"],
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_made_from_the_template_and_owned_by_the_pod() {
        let live = json!({
            "metadata": { "namespace": "ns", "name": "p", "uid": "u" },
            "spec": { "volumes": [
                { "name": "other", "emptyDir": {} },
                { "name": "tmp", "ephemeral": { "volumeClaimTemplate": {
                    "metadata": { "labels": { "a": "b" }, "name": "ignored" },
                    "spec": { "accessModes": ["ReadWriteOnce"], "futureField": 1.50 },
                } } },
            ] },
        });
        let pod: Pod = serde_json::from_value(live.clone()).unwrap();
        let claim = new_claim(&pod, &live, "tmp", "p-tmp").unwrap();
        assert_eq!(
            claim,
            json!({
                "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "metadata": {
                    "name": "p-tmp", "labels": { "a": "b" },
                    "ownerReferences": [{
                        "apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u",
                        "controller": true, "blockOwnerDeletion": true,
                    }],
                },
                "spec": { "accessModes": ["ReadWriteOnce"], "futureField": 1.50 },
            })
        );
        let mut next = live.clone();
        next["metadata"]["uid"] = json!("another");
        assert!(new_claim(&pod, &next, "tmp", "p-tmp").is_none(), "another pod of the name");
        assert!(new_claim(&pod, &live, "gone", "p-gone").is_none());
    }

    #[test]
    fn a_claim_of_another_owner_is_refused() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": { "namespace": "ns", "name": "p", "uid": "u" },
        }))
        .unwrap();
        let claim: PersistentVolumeClaim = serde_json::from_value(json!({
            "metadata": { "namespace": "ns", "name": "p-tmp" },
        }))
        .unwrap();
        assert_eq!(
            claim_is_for_pod(&claim, &pod).unwrap_err().to_string(),
            "PVC ns/p-tmp was not created for pod ns/p (pod is not owner)"
        );
    }
}
