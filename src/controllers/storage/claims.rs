//! Which pods use a claim.

use crate::cache::{IndexValue, Lister};
use crate::objects::{ClaimVolume, Meta, ObjectKey, PersistentVolumeClaim, Pod};

/// The index of pods by the claims of their volumes. Upstream: `common.PodPVCIndex`.
pub const CLAIM_INDEX: &str = "pod-pvc-index";

/// See [`CLAIM_INDEX`]. Upstream: `common.PodPVCIndexFunc`.
pub fn by_claim(pod: &Pod, emit: &mut dyn FnMut(IndexValue)) {
    emit_claims(&pod.meta, &pod.spec.shape.claims, emit);
}

/// The keys of the claims of a pod's volumes.
pub fn emit_claims(pod: &Meta, volumes: &[ClaimVolume], emit: &mut dyn FnMut(IndexValue)) {
    for volume in volumes {
        let claim = volume.claim_of(pod);
        if !claim.is_empty() {
            emit(IndexValue::Key(ObjectKey::new(&pod.namespace, &claim)));
        }
    }
}

/// The pods of the cache whose volumes name `claim`.
pub fn pods_of(pods: &Lister<Pod>, claim: &ObjectKey) -> Vec<std::sync::Arc<Pod>> {
    pods.by_index(CLAIM_INDEX, &IndexValue::Key(claim.clone()))
}

/// Whether one of the pod's volumes is `claim`; an ephemeral one only if `ephemeral` is true and the
/// claim was made for this pod.
pub fn uses(pod: &Pod, claim: &PersistentVolumeClaim, ephemeral: bool) -> bool {
    pod.meta.namespace == claim.meta.namespace
        && pod.claims().any(|(name, for_pod)| {
            *name == *claim.meta.name
                && (!for_pod || ephemeral && claim.meta.is_controlled_by(&pod.meta.uid))
        })
}
