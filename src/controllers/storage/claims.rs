//! The pods that use a claim.

use crate::cache::{Index, IndexValue, Lister};
use crate::objects::{ClaimSource, ClaimVolume, Meta, ObjectKey, PersistentVolumeClaim, Pod};

/// Indexes pods by the claims of their volumes. Upstream: `common.PodPVCIndex`.
pub const BY_CLAIM: Index<Pod> = Index::new("pod-pvc-index", |pod, emit| {
    emit_claims(&pod.meta, &pod.spec.shape.claims, emit);
});

/// Emits the key of the claim of each of a pod's volumes.
pub fn emit_claims(pod: &Meta, volumes: &[ClaimVolume], emit: &mut dyn FnMut(IndexValue)) {
    for volume in volumes {
        let claim = volume.claim_of(pod);
        if !claim.is_empty() {
            emit(IndexValue::Key(ObjectKey::new(&pod.namespace, &claim)));
        }
    }
}

/// Returns the pods of the cache whose volumes name `claim`. Needs [`BY_CLAIM`].
pub fn pods_of(pods: &Lister<Pod>, claim: &ObjectKey) -> Vec<std::sync::Arc<Pod>> {
    pods.by_index(&BY_CLAIM, &IndexValue::Key(claim.clone()))
}

/// Returns whether one of the pod's volumes is `claim`. An ephemeral volume counts only if the
/// claim was made for this pod.
pub fn uses(pod: &Pod, claim: &PersistentVolumeClaim) -> bool {
    pod.meta.namespace == claim.meta.namespace
        && pod.spec.shape.claims.iter().any(|volume| match &volume.claim {
            ClaimSource::Existing(name) => *name == *claim.meta.name,
            ClaimSource::Ephemeral => {
                is_named_after(&claim.meta.name, &pod.meta.name, &volume.volume)
                    && claim.meta.is_controlled_by(&pod.meta.uid)
            }
        })
}

/// Returns whether a claim has the name of the claim for an ephemeral volume: pod, `-`, volume.
/// Allocates no name, because each sync of a claim compares every volume. Upstream:
/// `ephemeral.VolumeClaimName`.
fn is_named_after(claim: &str, pod: &str, volume: &str) -> bool {
    let rest = claim.strip_prefix(pod).and_then(|rest| rest.strip_prefix('-'));
    rest == Some(volume)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_claim_is_used_by_its_name_or_made_for_the_pod() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": { "namespace": "ns", "name": "p", "uid": "u" },
            "spec": { "volumes": [
                { "name": "a", "persistentVolumeClaim": { "claimName": "given" } },
                { "name": "b", "ephemeral": {} },
            ] },
        }))
        .unwrap();
        let claim = |namespace: &str, name: &str, owner: &str| -> PersistentVolumeClaim {
            let owner = json!([{ "kind": "Pod", "name": "p", "uid": owner, "controller": true }]);
            let metadata =
                json!({ "namespace": namespace, "name": name, "ownerReferences": owner });
            serde_json::from_value(json!({ "metadata": metadata })).unwrap()
        };
        // The claim; whether it is used.
        for (namespace, name, owner, used) in [
            ("ns", "given", "other", true),
            ("other", "given", "other", false),
            ("ns", "p-b", "u", true),
            ("ns", "p-b", "other", false),
            ("ns", "p-a", "u", false),
            ("ns", "pb", "u", false),
            ("ns", "p-bb", "u", false),
        ] {
            let claim = claim(namespace, name, owner);
            assert_eq!(uses(&pod, &claim), used, "{namespace}/{name} of {owner}");
        }
    }
}
