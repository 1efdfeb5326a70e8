//! The volumes behind claims: what a pod's `persistentVolumeClaim` and `ephemeral` stand for.
//! Upstream: `desiredStateOfWorldPopulator.createVolumeSpec`.

use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use kube_controller_manager::client::Client;
use kube_controller_manager::objects::{
    Labels, NodeAffinity, NodeSelector, ObjectKey, ResourceType,
};
use serde::Deserialize;
use serde_json::json;

use super::{Error, in_tree};
use crate::pod::{Pod, PodExt};
use crate::whole_object::WholeObject;

pub(super) const CLAIMS: ResourceType =
    ResourceType::fixed("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", true);
const VOLUMES: ResourceType =
    ResourceType::fixed("", "v1", "PersistentVolume", "persistentvolumes", false);

/// While a claim has it, it stays as long as pods use it.
const PROTECTION: &str = "kubernetes.io/pvc-protection";

/// A claim that is bound, and its volume.
#[derive(Clone, Debug)]
pub struct Bound {
    pub claim: Arc<core::PersistentVolumeClaim>,
    pub volume: Arc<core::PersistentVolume>,
    /// As the pod mounts it.
    pub read_only: bool,
    /// The volume is one of an in-tree plugin, which a CSI driver has taken over.
    pub migrated: bool,
}

impl Bound {
    /// Returns the PersistentVolume's name, which stands for the volume in messages and folders.
    pub fn name(&self) -> &str {
        self.volume.metadata.name.as_deref().unwrap_or_default()
    }

    pub fn spec(&self) -> core::PersistentVolumeSpec {
        self.volume.spec.clone().unwrap_or_default()
    }

    /// Returns whether containers have the volume as a device.
    pub fn is_block(&self) -> bool {
        mode(&self.volume) == "Block"
    }

    /// Returns whether the volume can be used on a node, as one without a node affinity always can.
    /// Upstream: `CheckNodeAffinity`.
    pub fn is_for(&self, node: &core::Node) -> bool {
        let affinity = self.volume.spec.as_ref().and_then(|spec| spec.node_affinity.as_ref());
        let Some(required) = affinity.and_then(|affinity| affinity.required.as_ref()) else {
            return true;
        };
        let affinity = NodeAffinity {
            // What cannot be read selects no node.
            required: Some(NodeSelector::deserialize(json!(required)).unwrap_or_default()),
            ..NodeAffinity::default()
        };
        let labels = node.metadata.labels.iter().flatten();
        let labels: Labels = labels.map(|(key, value)| (key.as_str(), value.as_str())).collect();
        affinity.matches(node.metadata.name.as_deref().unwrap_or_default(), &labels)
    }

    /// Returns the group that an annotation of the volume adds to all containers. Upstream:
    /// `VolumeGidAnnotationKey`.
    pub fn group(&self) -> Option<i64> {
        let annotations = self.volume.metadata.annotations.as_ref()?;
        annotations.get("pv.beta.kubernetes.io/gid")?.parse().ok()
    }
}

/// Returns the `volumeMode` of a PersistentVolume; `Filesystem` by default.
fn mode(volume: &core::PersistentVolume) -> &str {
    let mode = volume.spec.as_ref().and_then(|spec| spec.volume_mode.as_deref());
    mode.unwrap_or("Filesystem")
}

/// Returns the name of the claim of a pod's volume, and whether the pod mounts it read-only.
/// `None`: the volume has no claim. Upstream: `ephemeral.VolumeClaimName`.
pub(super) fn claim_of(pod: &Pod, volume: &core::Volume) -> Option<(String, bool)> {
    if let Some(source) = &volume.persistent_volume_claim {
        return Some((source.claim_name.clone(), source.read_only.unwrap_or_default()));
    }
    volume.ephemeral.as_ref().map(|_| (format!("{}-{}", pod.name(), volume.name), false))
}

/// Reads the claim of a pod's volume and the PersistentVolume that it is bound to, and checks that
/// the pod may use them. The volume of an in-tree plugin becomes that of its CSI driver.
///
/// # Errors
/// They cannot be read, are not bound to each other, or the pod uses the volume in another way.
pub(super) async fn bound(
    client: &Client,
    pod: &Pod,
    volume: &core::Volume,
    name: &str,
    read_only: bool,
) -> Result<Bound, Error> {
    let of_claim = |cause: Error| Error::Claim {
        namespace: pod.namespace().to_owned(),
        name: name.to_owned(),
        cause: cause.into(),
    };
    let key = ObjectKey::new(pod.namespace(), name);
    let claims = client.resource(&CLAIMS);
    let claim: WholeObject<core::PersistentVolumeClaim> =
        claims.get(&key).await.map_err(|error| of_claim(Error::FetchClaim(error)))?;
    let claim = claim.object().clone();
    let volume_name = check_claim(&claim).map_err(of_claim)?;
    if volume.ephemeral.is_some() && !is_of_pod(&claim, pod) {
        return Err(Error::ClaimOfOther {
            claim: format!("{}/{name}", pod.namespace()),
            pod: pod.display_name(),
        });
    }
    let found = client.resource(&VOLUMES).get(&ObjectKey::cluster(&volume_name)).await;
    let found: WholeObject<core::PersistentVolume> = found
        .map_err(|source| of_claim(Error::FetchVolume { name: volume_name.clone(), source }))?;
    let mut bound = Bound { claim, volume: found.object().clone(), read_only, migrated: false };
    check_volume(&bound).map_err(of_claim)?;
    if let Some(translated) = in_tree::translate(&bound.volume)? {
        (bound.volume, bound.migrated) = (Arc::new(translated), true);
    }
    check_mode(pod, &volume.name, mode(&bound.volume))?;
    Ok(bound)
}

/// Checks that a claim is bound and not deleted, and returns the name of its volume. One that is
/// being deleted counts while it has its protection finalizer: pods that run use it, also after a
/// restart of the kubelet. Upstream: `getPVCExtractPV`.
fn check_claim(claim: &core::PersistentVolumeClaim) -> Result<String, Error> {
    let is_protected =
        claim.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == PROTECTION);
    if claim.metadata.deletion_timestamp.is_some() && !is_protected {
        return Err(Error::ClaimDeleted);
    }
    let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
    if phase != Some("Bound") {
        return Err(Error::ClaimNotBound);
    }
    let name = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone());
    name.filter(|name| !name.is_empty()).ok_or(Error::ClaimWithoutVolume)
}

/// Returns whether the pod owns the claim. Upstream: `ephemeral.VolumeIsForPod`.
fn is_of_pod(claim: &core::PersistentVolumeClaim, pod: &Pod) -> bool {
    let mut owners = claim.metadata.owner_references.iter().flatten();
    owners.any(|owner| owner.controller == Some(true) && owner.uid == *pod.uid())
}

/// Checks that the volume is bound to this very claim. Upstream: `getPVSpec`.
fn check_volume(bound: &Bound) -> Result<(), Error> {
    let name = || bound.name().to_owned();
    let claim_ref = bound.volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    let Some(claim_ref) = claim_ref else { return Err(Error::VolumeNotBound(name())) };
    let wanted = bound.claim.metadata.uid.clone().unwrap_or_default();
    let found = claim_ref.uid.clone().unwrap_or_default();
    match found == wanted {
        true => Ok(()),
        false => Err(Error::VolumeOfOther { name: name(), found, wanted }),
    }
}

/// Checks that a volume of files is only mounted, and that one of blocks is only a device.
fn check_mode(pod: &Pod, volume: &str, mode: &str) -> Result<(), Error> {
    let fault = |list| Error::WrongMode { volume: volume.to_owned(), mode: mode.to_owned(), list };
    let is_mounted = pod
        .all_containers()
        .any(|container| container.volume_mounts.iter().flatten().any(|m| m.name == volume));
    if is_mounted && mode != "Filesystem" {
        return Err(fault("volumeMounts"));
    }
    let is_device = pod
        .all_containers()
        .any(|container| container.volume_devices.iter().flatten().any(|d| d.name == volume));
    match is_device && mode != "Block" {
        true => Err(fault("volumeDevices")),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::causes::chain;

    fn claim(value: Value) -> core::PersistentVolumeClaim {
        serde_json::from_value(value).expect("a claim")
    }

    #[test]
    fn claims_are_bound_and_not_deleted() {
        let bound = json!({"phase": "Bound"});
        let deleted = "2026-01-01T00:00:00Z";
        for (value, expected) in [
            (json!({"spec": {"volumeName": "v"}, "status": bound}), Ok("v")),
            (
                json!({"spec": {"volumeName": "v"}, "status": {"phase": "Pending"}}),
                Err("PVC is not bound"),
            ),
            (json!({"spec": {}, "status": bound}), Err("PVC has empty pvc.Spec.VolumeName")),
            (
                json!({"metadata": {"deletionTimestamp": deleted}, "spec": {"volumeName": "v"}, "status": bound}),
                Err("PVC is being deleted"),
            ),
            (
                json!({"metadata": {"deletionTimestamp": deleted, "finalizers": [PROTECTION]},
                       "spec": {"volumeName": "v"}, "status": bound}),
                Ok("v"),
            ),
        ] {
            let found = check_claim(&claim(value.clone())).map_err(|error| chain(&error));
            assert_eq!(found.as_deref().map_err(String::as_str), expected, "{value}");
        }
    }

    #[test]
    fn volumes_belong_to_their_claim() {
        let with = |spec: Value| Bound {
            claim: Arc::new(claim(json!({"metadata": {"uid": "c"}}))),
            volume: Arc::new(
                serde_json::from_value(json!({"metadata": {"name": "v"}, "spec": spec}))
                    .expect("a volume"),
            ),
            read_only: false,
            migrated: false,
        };
        for (spec, expected) in [
            (json!({"claimRef": {"uid": "c"}}), Ok(())),
            (
                json!({}),
                Err(
                    "found PV object v but it has a nil pv.Spec.ClaimRef indicating it is not yet \
                     bound to the claim",
                ),
            ),
            (
                json!({"claimRef": {"uid": "d"}}),
                Err(
                    "found PV object v but its pv.Spec.ClaimRef.UID d does not point to claim.UID c",
                ),
            ),
        ] {
            let found = check_volume(&with(spec)).map_err(|error| error.to_string());
            assert_eq!(found, expected.map_err(str::to_owned));
        }
    }

    #[test]
    fn claims_of_ephemeral_volumes_are_named_and_owned_by_the_pod() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "uid": "u"},
            "spec": {"containers": [], "volumes": [
                {"name": "a", "ephemeral": {}},
                {"name": "b", "persistentVolumeClaim": {"claimName": "c", "readOnly": true}},
                {"name": "d", "emptyDir": {}}]},
        }))
        .expect("a pod");
        let named: Vec<_> =
            pod.spec().volumes.iter().flatten().map(|volume| claim_of(&pod, volume)).collect();
        assert_eq!(named, [Some(("p-a".to_owned(), false)), Some(("c".to_owned(), true)), None]);
        for (owner, expected) in [
            (
                json!({"uid": "u", "controller": true, "name": "p", "kind": "Pod", "apiVersion": "v1"}),
                true,
            ),
            (json!({"uid": "u", "name": "p", "kind": "Pod", "apiVersion": "v1"}), false),
            (
                json!({"uid": "w", "controller": true, "name": "p", "kind": "Pod", "apiVersion": "v1"}),
                false,
            ),
        ] {
            let claim = claim(json!({"metadata": {"ownerReferences": [owner]}}));
            assert_eq!(is_of_pod(&claim, &pod), expected);
        }
    }

    #[test]
    fn volumes_are_used_by_their_mode() {
        let pod: Pod = serde_json::from_value(json!({"spec": {"containers": [{
            "name": "c", "volumeMounts": [{"name": "m", "mountPath": "/m"}],
            "volumeDevices": [{"name": "d", "devicePath": "/d"}]}]}}))
        .expect("a pod");
        for (volume, mode, expected) in [
            ("m", "Filesystem", Ok(())),
            ("d", "Block", Ok(())),
            ("unused", "Block", Ok(())),
            ("m", "Block", Err("volume m has volumeMode Block, but is specified in volumeMounts")),
            (
                "d",
                "Filesystem",
                Err("volume d has volumeMode Filesystem, but is specified in volumeDevices"),
            ),
        ] {
            let found = check_mode(&pod, volume, mode).map_err(|error| error.to_string());
            assert_eq!(found, expected.map_err(str::to_owned));
        }
    }
}
