//! The scheduler's treatment of a pod's claims: it waits until they are bound, and for a class that
//! waits for its first consumer it chooses a volume or a node.

use serde::Deserialize;
use serde_json::{Value, json};

use kube_controller_manager::cache::Lister;
use kube_controller_manager::client::{self, Client, Patch};
use kube_controller_manager::objects::{
    Istr, ObjectKey, PersistentVolume, PersistentVolumeClaim, Resource, StorageClass,
};

const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

/// The fields of a pod's volume that refer to a claim.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodVolume {
    name: Istr,
    persistent_volume_claim: Option<ClaimSource>,
    ephemeral: Option<serde::de::IgnoredAny>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ClaimSource {
    claim_name: Istr,
}

impl PodVolume {
    /// Returns the name of its claim in a pod `pod`.
    pub fn claim(&self, pod: &str) -> Option<String> {
        match (&self.persistent_volume_claim, &self.ephemeral) {
            (Some(source), _) => Some(source.claim_name.to_string()),
            (None, Some(_)) => Some(format!("{pod}-{}", self.name)),
            (None, None) => None,
        }
    }
}

/// Whether the claims of a pod permit a node.
#[derive(Debug, PartialEq)]
pub enum Claims {
    /// All are bound.
    Ready,
    /// These will be bound once a node is chosen.
    Delayed(Vec<ObjectKey>),
    /// The pod cannot be scheduled to any node; contains the message of the event.
    Missing(String),
}

pub struct Volumes {
    pub claims: Lister<PersistentVolumeClaim>,
    pub volumes: Lister<PersistentVolume>,
    pub classes: Lister<StorageClass>,
}

impl Volumes {
    /// Checks whether these claims of a pod permit to bind it: returns what is missing, or the
    /// claims that wait for a node to be chosen.
    pub fn check_claims(&self, namespace: &str, claims: impl Iterator<Item = String>) -> Claims {
        let mut delayed = Vec::new();
        for name in claims {
            let key = ObjectKey::new(namespace, &name);
            let Some(claim) = self.claims.get(&key) else {
                return Claims::Missing(format!("persistentvolumeclaim {name:?} not found"));
            };
            if claim.meta.is_being_deleted() {
                return Claims::Missing(format!("persistentvolumeclaim {name:?} is being deleted"));
            }
            let class = self.classes.get(&ObjectKey::cluster(claim.storage_class()));
            let waits = class.is_some_and(|c| c.volume_binding_mode == "WaitForFirstConsumer");
            match (claim.status.phase == "Bound", waits) {
                (true, _) => {}
                (false, true) => delayed.push(key),
                (false, false) => {
                    let message = "pod has unbound immediate PersistentVolumeClaims";
                    return Claims::Missing(message.to_owned());
                }
            }
        }
        if delayed.is_empty() { Claims::Ready } else { Claims::Delayed(delayed) }
    }

    /// Reserves the smallest free volume that suits the claim. Without one, asks the provisioner
    /// for a volume on `node`, by an annotation of the claim; a class that is unknown or has no
    /// provisioner cannot be asked. Does nothing if the claim has a volume or a node.
    pub async fn reserve_or_request(
        &self,
        client: &Client,
        key: &ObjectKey,
        node: &str,
    ) -> client::Result<()> {
        let Some(claim) = self.claims.get(key) else { return Ok(()) };
        let class = self.classes.get(&ObjectKey::cluster(claim.storage_class()));
        if has_node(&claim) || !claim.spec.volume_name.is_empty() {
            return Ok(());
        }
        if let Some(volume) = smallest(&claim, self.volumes.list().iter().map(|v| &**v)) {
            let reserve = json!({
                "metadata": {
                    "resourceVersion": volume.meta.resource_version.to_string(),
                    "annotations": { "pv.kubernetes.io/bound-by-controller": "yes" },
                },
                "spec": { "claimRef": {
                    "apiVersion": "v1", "kind": PersistentVolumeClaim::RESOURCE.kind,
                    "namespace": key.namespace, "name": key.name, "uid": claim.meta.uid,
                } },
            });
            let verbs = client.resource(&PersistentVolume::RESOURCE);
            return verbs
                .patch(&volume.meta.key(), &Patch::Merge(reserve))
                .await
                .map(|_: Value| ());
        }
        if class.is_none_or(|class| class.provisioner == NO_PROVISIONER) {
            return Ok(());
        }
        let selected = json!({ "metadata": { "annotations": { SELECTED_NODE: node } } });
        let verbs = client.resource(&PersistentVolumeClaim::RESOURCE);
        verbs.patch(key, &Patch::Merge(selected)).await.map(|_: Value| ())
    }
}

/// Returns whether the scheduler chose a node for the claim's volume.
pub fn has_node(claim: &PersistentVolumeClaim) -> bool {
    claim.meta.annotations.contains_key(SELECTED_NODE)
}

/// Returns the smallest free volume that suits the claim.
fn smallest<'a>(
    claim: &PersistentVolumeClaim,
    volumes: impl Iterator<Item = &'a PersistentVolume>,
) -> Option<&'a PersistentVolume> {
    let wanted = claim.spec.storage.unwrap_or_default();
    let modes = claim.spec.access_modes.as_deref().unwrap_or_default();
    let suits = |volume: &&PersistentVolume| {
        let size = volume.spec.capacity.unwrap_or_default();
        volume.spec.claim_ref.is_none()
            && volume.status.phase == "Available"
            && volume.storage_class() == claim.storage_class()
            && volume.spec.is_block == claim.spec.is_block
            && size.compare(wanted).is_ge()
            && modes.iter().all(|mode| volume.spec.access_modes.contains(mode))
    };
    volumes.filter(suits).min_by(|a, b| {
        let size = |volume: &PersistentVolume| volume.spec.capacity.unwrap_or_default();
        size(a).compare(size(b)).then_with(|| a.meta.name.cmp(&b.meta.name))
    })
}
