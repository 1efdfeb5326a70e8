//! The owners of a claim by the set's retention policy.
//! Upstream: the functions on owner references in `stateful_set_utils.go`.

use crate::controllers::workloads::statefulset::identity::is_wanted;
use crate::objects::{Meta, OwnerReference, Pod, Resource, StatefulSet, Uid};

/// The owners that a claim may have: the set, and the pod of the claim's ordinal.
pub struct Owners<'a> {
    set: Candidate<'a>,
    pod: Candidate<'a>,
    /// Whether the policy deletes claims in some case.
    has_policy: bool,
    wanted: Wanted,
}

/// An object that may own the claim.
struct Candidate<'a> {
    api_version: &'static str,
    kind: &'static str,
    name: &'a str,
    /// Empty for a pod that is to be created.
    uid: &'a Uid,
}

/// The one of the two that is to own the claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    Neither,
    Set,
    Pod,
}

impl Candidate<'_> {
    /// Returns whether `reference` names this object, with any uid. Upstream: `matchesRef`.
    fn is_named_by(&self, reference: &OwnerReference) -> bool {
        reference.api_version == self.api_version
            && reference.kind == self.kind
            && reference.name == self.name
    }

    /// Returns whether one of `references` has the uid of this object. Upstream: `hasOwnerRef`.
    fn owns(&self, references: &[OwnerReference]) -> bool {
        references.iter().any(|reference| reference.uid == *self.uid)
    }

    /// Returns whether the first reference of its name is to another object, an older one.
    /// Upstream: `hasStaleOwnerRef`.
    fn is_stale_in(&self, references: &[OwnerReference]) -> bool {
        let named = references.iter().find(|reference| self.is_named_by(reference));
        named.is_some_and(|reference| reference.uid != *self.uid)
    }
}

/// The policy for claims when the set is deleted, and when it is scaled down.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Policy {
    deletes_with_set: bool,
    deletes_when_scaled: bool,
}

/// Reads the policy of a set for its claims. A value that is not known retains both. Upstream:
/// `getPersistentVolumeClaimRetentionPolicy`.
fn retention_policy(set: &StatefulSet) -> Policy {
    let is_delete = |value: &str| match value {
        "Delete" => Some(true),
        "Retain" => Some(false),
        _ => None,
    };
    let retain = Policy { deletes_with_set: false, deletes_when_scaled: false };
    let Some(policy) = &set.spec.persistent_volume_claim_retention_policy else { return retain };
    match (is_delete(&policy.when_deleted), is_delete(&policy.when_scaled)) {
        (Some(deletes_with_set), Some(deletes_when_scaled)) => {
            Policy { deletes_with_set, deletes_when_scaled }
        }
        _ => retain,
    }
}

impl<'a> Owners<'a> {
    /// Decides which owner the claims of a pod should have by the retention policy. `uid`: of the
    /// pod; empty for one that is to be created.
    pub fn new(set: &'a StatefulSet, pod: &'a str, uid: &'a Uid, ordinal: i32) -> Owners<'a> {
        let policy = retention_policy(set);
        let wanted = match is_wanted(set, ordinal) {
            true if policy.deletes_with_set => Wanted::Set,
            true => Wanted::Neither,
            false if policy.deletes_when_scaled => Wanted::Pod,
            false if policy.deletes_with_set => Wanted::Set,
            false => Wanted::Neither,
        };
        Owners {
            set: Candidate {
                api_version: "apps/v1",
                kind: "StatefulSet",
                name: &set.meta.name,
                uid: &set.meta.uid,
            },
            pod: Candidate { api_version: "v1", kind: "Pod", name: pod, uid },
            has_policy: policy.deletes_with_set || policy.deletes_when_scaled,
            wanted,
        }
    }

    /// Returns whether the claim is managed by someone else, or has a reference to an older object
    /// of the set's or the pod's name; never while the policy deletes no claims.
    /// Upstream: `hasUnexpectedController`.
    pub fn has_unexpected_controller(&self, references: &[OwnerReference]) -> bool {
        let is_unexpected = |reference: &OwnerReference| {
            let named = [&self.set, &self.pod].into_iter().find(|own| own.is_named_by(reference));
            match named {
                Some(own) => reference.uid != *own.uid,
                None => reference.is_controller(),
            }
        };
        self.has_policy && references.iter().any(is_unexpected)
    }

    /// Returns whether the claim's owners are right, or must not be changed.
    /// Upstream: `isClaimOwnerUpToDate`.
    pub fn are_up_to_date(&self, references: &[OwnerReference]) -> bool {
        let Owners { set, pod, .. } = self;
        if set.is_stale_in(references) || pod.is_stale_in(references) {
            return true;
        }
        if self.has_unexpected_controller(references) {
            // Then neither the set nor the pod may own it.
            return !set.owns(references) && !pod.owns(references);
        }
        let is_own =
            |reference: &&OwnerReference| reference.uid == *set.uid || reference.uid == *pod.uid;
        references.iter().filter(is_own).all(OwnerReference::is_controller)
            && set.owns(references) == (self.wanted == Wanted::Set)
            && pod.owns(references) == (self.wanted == Wanted::Pod)
    }

    /// Returns whether a reference is replaced by [`Owners::addition`].
    pub fn replaces(&self, reference: &OwnerReference) -> bool {
        self.set.is_named_by(reference) || self.pod.is_named_by(reference)
    }

    /// Returns the reference that the claim gets; `None` if it gets none or has it already.
    /// Upstream: `updateClaimOwnerRefForSetAndPod`.
    pub fn addition(&self, references: &[OwnerReference]) -> Option<OwnerReference> {
        if self.has_unexpected_controller(references) {
            return None;
        }
        let own = match self.wanted {
            Wanted::Neither => return None,
            Wanted::Set => &self.set,
            Wanted::Pod => &self.pod,
        };
        let mut kept = references.iter().filter(|reference| !self.replaces(reference));
        if kept.any(|reference| reference.uid == *own.uid) {
            return None;
        }
        Some(OwnerReference {
            api_version: own.api_version.into(),
            kind: own.kind.into(),
            name: own.name.into(),
            uid: own.uid.clone(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        })
    }
}

/// Returns whether a claim will be deleted with an older pod of this name, so that the pod has to
/// wait; never if claims stay when the set is scaled down.
/// Upstream: `PodClaimIsStale`.
pub fn is_stale(set: &StatefulSet, pod: &str, claim: &Meta) -> bool {
    let keeps = |policy: &crate::objects::ClaimRetentionPolicy| policy.when_scaled == "Retain";
    if set.spec.persistent_volume_claim_retention_policy.as_ref().is_none_or(keeps) {
        return false;
    }
    let kind = &*Pod::RESOURCE.kind;
    claim.owners().iter().any(|reference| {
        reference.api_version == "v1" && reference.kind == *kind && reference.name == *pod
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn set(deleted: &str, scaled: &str) -> StatefulSet {
        serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "ns", "uid": "set"},
            "spec": {"replicas": 3, "persistentVolumeClaimRetentionPolicy": {
                "whenDeleted": deleted, "whenScaled": scaled,
            }},
        }))
        .unwrap()
    }

    /// `kind/name/uid`, with `!` for a controller.
    fn reference(text: &str) -> OwnerReference {
        let (text, controller) =
            text.strip_suffix('!').map_or((text, None), |text| (text, Some(true)));
        let parts: Vec<&str> = text.split('/').collect();
        let api_version = match parts[0] {
            "StatefulSet" => "apps/v1",
            "Pod" => "v1",
            _ => "example.com/v1",
        };
        OwnerReference {
            api_version: api_version.into(),
            kind: parts[0].into(),
            name: parts[1].into(),
            uid: parts[2].into(),
            controller,
            block_owner_deletion: controller,
        }
    }

    const SET: &str = "StatefulSet/web/set!";
    const OTHER: &str = "Operator/op/other!";

    /// The owners after an update; the same if none is due.
    fn after(set: &StatefulSet, ordinal: i32, before: &[&str]) -> Vec<OwnerReference> {
        let (name, uid) = (format!("web-{ordinal}"), Uid::new("pod"));
        let owners = Owners::new(set, &name, &uid, ordinal);
        let references: Vec<_> = before.iter().map(|text| reference(text)).collect();
        if owners.are_up_to_date(&references) {
            return references;
        }
        let addition = owners.addition(&references);
        let kept = references.into_iter().filter(|reference| !owners.replaces(reference));
        let after: Vec<_> = kept.chain(addition).collect();
        assert!(owners.are_up_to_date(&after), "{before:?} becomes {after:?}");
        after
    }

    #[test]
    fn owners_follow_the_policy() {
        let pod = |ordinal: i32| format!("Pod/web-{ordinal}/pod!");
        let (pod1, pod3) = (pod(1), pod(3));
        // whenDeleted, whenScaled, ordinal, and the one owner; 3 is beyond the wanted ordinals
        for (deleted, scaled, ordinal, owner) in [
            ("Retain", "Retain", 1, None),
            ("Retain", "Retain", 3, None),
            ("Delete", "Retain", 1, Some(SET)),
            ("Delete", "Retain", 3, Some(SET)),
            ("Retain", "Delete", 1, None),
            ("Retain", "Delete", 3, Some(&*pod3)),
            ("Delete", "Delete", 1, Some(SET)),
            ("Delete", "Delete", 3, Some(&*pod3)),
            ("Sometimes", "Delete", 3, None),
        ] {
            let set = set(deleted, scaled);
            let wanted: Vec<OwnerReference> = owner.map(reference).into_iter().collect();
            let own = if ordinal == 1 { &pod1 } else { &pod3 };
            let (own, weak) = (own.as_str(), own.trim_end_matches('!'));
            for before in [
                vec![],
                vec![SET],
                vec![own],
                vec![SET, own],
                vec![own, SET],
                vec!["StatefulSet/web/set"],
                vec![weak],
            ] {
                let case = format!("{deleted} {scaled} {ordinal} {before:?}");
                assert_eq!(after(&set, ordinal, &before), wanted, "{case}");
            }
            // Owners that do not manage it stay.
            let plain = after(&set, ordinal, &["Operator/op/other"]);
            assert_eq!(plain.len(), 1 + wanted.len(), "{deleted} {scaled} {ordinal}");
        }
    }

    #[test]
    fn claims_of_other_controllers_are_not_changed() {
        let all = [("Delete", "Retain"), ("Retain", "Delete"), ("Delete", "Delete")];
        for (deleted, scaled) in all {
            let set = set(deleted, scaled);
            for ordinal in [1, 3] {
                let own = format!("Pod/web-{ordinal}/pod!");
                let stale_pod = format!("Pod/web-{ordinal}/old!");
                for (before, expected) in [
                    (vec![OTHER], vec![OTHER]),
                    (vec![OTHER, SET], vec![OTHER]),
                    (vec![&*own, OTHER], vec![OTHER]),
                    (vec!["StatefulSet/web/old!"], vec!["StatefulSet/web/old!"]),
                    (vec![&*stale_pod], vec![&*stale_pod]),
                ] {
                    let expected: Vec<_> = expected.iter().map(|text| reference(text)).collect();
                    assert_eq!(after(&set, ordinal, &before), expected, "{before:?}");
                }
            }
        }
        // A policy that retains has nothing against other controllers.
        let retain = set("Retain", "Retain");
        assert_eq!(after(&retain, 1, &[OTHER, SET]), [reference(OTHER)]);
        let uid = Uid::new("pod");
        for (set, unexpected) in [(retain, false), (set("Delete", "Retain"), true)] {
            let owners = Owners::new(&set, "web-1", &uid, 1);
            assert_eq!(owners.has_unexpected_controller(&[reference(OTHER)]), unexpected);
            assert!(!owners.has_unexpected_controller(&[reference(SET)]));
        }
    }

    #[test]
    fn a_claim_that_an_older_pod_owns_is_stale() {
        let claim = |owner: &str| Meta {
            owner_references: serde_json::from_value::<Meta>(
                json!({ "ownerReferences": [reference(owner)] }),
            )
            .unwrap()
            .owner_references,
            ..Meta::default()
        };
        for (scaled, owner, stale) in [
            ("Delete", "Pod/web-1/old!", true),
            ("Delete", "Pod/web-2/old!", false),
            ("Delete", SET, false),
            ("Retain", "Pod/web-1/old!", false),
        ] {
            let set = set("Delete", scaled);
            assert_eq!(is_stale(&set, "web-1", &claim(owner)), stale, "{scaled} {owner}");
        }
        assert!(!is_stale(&StatefulSet::default(), "web-1", &claim("Pod/web-1/old!")));
    }
}
