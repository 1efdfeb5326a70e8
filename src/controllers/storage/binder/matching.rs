//! The volume that a claim is bound to. Upstream:
//! `component-helpers/storage/volume.FindMatchingVolume` and `persistentVolumeOrderedIndex`.

use std::sync::Arc;

use super::free_volumes::{FreeVolumes, Modes, Size, VolumeGroup};
use crate::cache::{Index, IndexValue};
use crate::objects::{
    ArcStr, ClaimRef, Istr, ObjectKey, PersistentVolume, PersistentVolumeClaim, Quantity, Selector,
};

/// Indexes volumes by the claim that they name.
pub const BY_CLAIM_REF: Index<PersistentVolume> = Index::new("claim-ref", |volume, emit| {
    if let Some(claim) = &volume.spec.claim_ref {
        emit(IndexValue::Key(claim.key()));
    }
});

impl ClaimRef {
    pub fn key(&self) -> ObjectKey {
        ObjectKey { namespace: self.namespace.clone(), name: (*self.name).into() }
    }
}

/// Returns whether `volume` names `claim`, by its uid or, while it has no uid, by its name.
/// Upstream: `IsVolumeBoundToClaim`.
pub fn is_bound_to_claim(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    volume.spec.claim_ref.as_ref().is_some_and(|reference| {
        *reference.name == *claim.meta.name
            && reference.namespace == claim.meta.namespace
            && (reference.uid.is_empty() || reference.uid == claim.meta.uid)
    })
}

/// Returns whether one is Block and the other Filesystem. Upstream: `CheckVolumeModeMismatches`.
pub fn modes_differ(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    volume.spec.is_block != claim.spec.is_block
}

/// Returns the name of a VolumeAttributesClass; empty if there is no name.
fn attributes_class(name: &Option<Istr>) -> &str {
    name.as_deref().unwrap_or_default()
}

/// The requirements of a claim for a volume.
struct Request<'a> {
    claim: &'a PersistentVolumeClaim,
    selector: Option<Selector>,
    modes: Modes,
    size: Quantity,
}

impl<'a> Request<'a> {
    /// Collects the requirements of `claim`. `with_classes`: the gate VolumeAttributesClass.
    fn new(claim: &'a PersistentVolumeClaim, with_classes: bool) -> Result<Request<'a>, String> {
        let spec = &claim.spec;
        if !with_classes && !attributes_class(&spec.volume_attributes_class_name).is_empty() {
            return Err(format!(
                "unsupported volumeAttributesClassName is set on claim {} when the feature-gate \
                 VolumeAttributesClass is disabled",
                claim.meta.key()
            ));
        }
        let selector = spec.selector.as_deref().map(Selector::try_from).transpose();
        let selector = selector.map_err(|error| {
            let key = claim.meta.key();
            format!("error creating internal label selector for claim: {key}: {error}")
        })?;
        let modes = Modes::new(spec.access_modes.as_deref().unwrap_or_default());
        Ok(Request { claim, selector, modes, size: spec.storage.unwrap_or_default() })
    }

    /// Returns the group of the free volumes for the claim.
    fn group(&self) -> VolumeGroup {
        let spec = &self.claim.spec;
        VolumeGroup {
            class: self.claim.storage_class().into(),
            attributes_class: spec.volume_attributes_class_name.clone().unwrap_or_default(),
            is_block: spec.is_block,
        }
    }

    /// Returns whether `volume` meets what the claim requires also of a volume that names it: all but
    /// the label selector and the StorageClass, which count for a free volume only.
    fn is_suited_by(&self, volume: &PersistentVolume) -> bool {
        Modes::new(&volume.spec.access_modes).include(self.modes)
            && volume.spec.capacity.unwrap_or_default().compare(self.size).is_ge()
            && !modes_differ(volume, self.claim)
            && attributes_class(&volume.spec.volume_attributes_class_name)
                == attributes_class(&self.claim.spec.volume_attributes_class_name)
            && !volume.meta.is_being_deleted()
    }

    /// Returns whether `volume` is free and meets all requirements of the claim.
    fn may_take(&self, volume: &PersistentVolume) -> bool {
        self.is_suited_by(volume)
            && volume.spec.claim_ref.is_none()
            && volume.status.phase == "Available"
            && self.selector.as_ref().is_none_or(|s| s.matches(&volume.meta.labels))
            && volume.storage_class() == self.claim.storage_class()
    }
}

/// Returns the volume for `claim`: of those that suit it and have the fewest access modes, one that
/// names the claim, else the smallest free one. `naming`: volumes that may name the claim. `free`:
/// `None` if it may take no other. `newest`: returns the newest state of a volume. `with_classes`:
/// the gate VolumeAttributesClass.
///
/// # Errors
/// When the claim's selector is malformed, or it asks for a VolumeAttributesClass without the gate.
pub fn best_match(
    claim: &PersistentVolumeClaim,
    naming: impl IntoIterator<Item = Arc<PersistentVolume>>,
    free: Option<&FreeVolumes>,
    newest: impl Fn(&ArcStr) -> Option<Arc<PersistentVolume>>,
    with_classes: bool,
) -> Result<Option<Arc<PersistentVolume>>, String> {
    let request = Request::new(claim, with_classes)?;
    let rank = |volume: &PersistentVolume| Modes::new(&volume.spec.access_modes).rank();
    let order = |volume: &Arc<PersistentVolume>| {
        let size = Size(volume.spec.capacity.unwrap_or_default());
        (rank(volume), size, volume.meta.name.clone())
    };
    let suits = |volume: &Arc<PersistentVolume>| {
        is_bound_to_claim(volume, claim) && request.is_suited_by(volume)
    };
    let named = naming.into_iter().filter(suits).min_by_key(order);
    let Some(free) = free else { return Ok(named) };
    for ((mode_count, _), name) in free.find(&request.group(), request.modes, request.size) {
        // A free volume wins only with fewer modes than the one that names the claim.
        if let Some(named) = &named
            && mode_count >= rank(named).0
        {
            break;
        }
        if let Some(volume) = newest(name)
            && request.may_take(&volume)
        {
            return Ok(Some(volume));
        }
    }
    Ok(named)
}

/// Returns why a volume that the claim names does not meet its requirements; `None` if it does.
/// Upstream: `checkVolumeSatisfyClaim`.
pub fn mismatch(
    volume: &PersistentVolume,
    claim: &PersistentVolumeClaim,
    with_classes: bool,
) -> Option<String> {
    let capacity = volume.spec.capacity.unwrap_or_default();
    let wanted_class = attributes_class(&claim.spec.volume_attributes_class_name);
    let class = attributes_class(&volume.spec.volume_attributes_class_name);
    let wanted_modes = claim.spec.access_modes.as_deref().unwrap_or_default();
    let fault = if volume.meta.is_being_deleted() {
        return Some(format!("the volume is marked for deletion {:?}", &*volume.meta.name));
    } else if capacity.compare(claim.spec.storage.unwrap_or_default()).is_lt() {
        "requested PV is too small"
    } else if volume.storage_class() != claim.storage_class() {
        "storageClassName does not match"
    } else if with_classes && wanted_class != class {
        "volumeAttributesClassName does not match"
    } else if !(with_classes || wanted_class.is_empty() && class.is_empty()) {
        "volumeAttributesClassName is not supported when the feature-gate VolumeAttributesClass is \
         disabled"
    } else if modes_differ(volume, claim) {
        "incompatible volumeMode"
    } else if !wanted_modes.iter().all(|mode| volume.spec.access_modes.contains(mode)) {
        "incompatible accessMode"
    } else {
        return None;
    };
    Some(fault.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn volume(name: &str, size: &str, modes: &[&str], more: Value) -> Arc<PersistentVolume> {
        let mut json = json!({
            "metadata": { "name": name },
            "spec": { "capacity": { "storage": size }, "accessModes": modes },
            "status": { "phase": "Available" },
        });
        merge(&mut json, more);
        Arc::new(serde_json::from_value(json).unwrap())
    }

    fn claim(size: &str, modes: &[&str], more: Value) -> PersistentVolumeClaim {
        let mut json = json!({
            "metadata": { "name": "claim", "namespace": "ns", "uid": "u" },
            "spec": { "resources": { "requests": { "storage": size } }, "accessModes": modes },
        });
        merge(&mut json, more);
        serde_json::from_value(json).unwrap()
    }

    fn merge(into: &mut Value, more: Value) {
        match (into, more) {
            (Value::Object(into), Value::Object(more)) => {
                more.into_iter().for_each(|(key, value)| {
                    merge(into.entry(key).or_insert(Value::Null), value);
                });
            }
            (into, more) => *into = more,
        }
    }

    fn best(
        claim: &PersistentVolumeClaim,
        volumes: &[Arc<PersistentVolume>],
        delayed: bool,
    ) -> Option<String> {
        let mut free_volumes = FreeVolumes::default();
        volumes.iter().for_each(|volume| free_volumes.update(volume));
        let newest =
            |name: &ArcStr| volumes.iter().find(|volume| volume.meta.name == *name).cloned();
        let free = (!delayed).then_some(&free_volumes);
        let best = best_match(claim, volumes.iter().cloned(), free, newest, true).unwrap();
        if !delayed {
            assert_eq!(best, best_by_scan(claim, volumes), "{claim:?}");
        }
        best.map(|volume| volume.meta.name.to_string())
    }

    /// The expected volume: the one with the fewest modes; among these one that names the claim;
    /// among these the smallest.
    fn best_by_scan(
        claim: &PersistentVolumeClaim,
        volumes: &[Arc<PersistentVolume>],
    ) -> Option<Arc<PersistentVolume>> {
        let request = Request::new(claim, true).unwrap();
        let is_named = |volume: &PersistentVolume| {
            is_bound_to_claim(volume, claim) && request.is_suited_by(volume)
        };
        let fits = |volume: &&Arc<PersistentVolume>| is_named(volume) || request.may_take(volume);
        let rank = |volume: &&Arc<PersistentVolume>| {
            let size = Size(volume.spec.capacity.unwrap_or_default());
            let rank = Modes::new(&volume.spec.access_modes).rank();
            (rank.0, !is_named(volume), rank, size, volume.meta.name.clone())
        };
        volumes.iter().filter(fits).min_by_key(rank).cloned()
    }

    const RWO: &[&str] = &["ReadWriteOnce"];
    const ROX: &[&str] = &["ReadOnlyMany"];
    const BOTH: &[&str] = &["ReadWriteOnce", "ReadOnlyMany"];
    const ALL: &[&str] = &["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany"];

    #[test]
    fn the_smallest_volume_with_the_fewest_modes_is_taken() {
        let volumes = [
            volume("rwo-10", "10Gi", RWO, json!({})),
            volume("rwo-5", "5Gi", RWO, json!({})),
            volume("rwo-1", "1Gi", RWO, json!({})),
            volume("both-2", "2Gi", BOTH, json!({})),
            volume("all-3", "3Gi", ALL, json!({})),
            volume("pod-1", "1Gi", &["ReadWriteOncePod"], json!({})),
        ];
        for (size, modes, expected) in [
            ("1Gi", RWO, Some("rwo-1")),
            ("2Gi", RWO, Some("rwo-5")),
            ("1025Mi", RWO, Some("rwo-5")),
            ("10Gi", RWO, Some("rwo-10")),
            ("11Gi", RWO, None),
            ("1Gi", ROX, Some("both-2")),
            ("3Gi", ROX, Some("all-3")),
            ("1Gi", &["ReadWriteMany"], Some("all-3")),
            ("4Gi", ROX, None),
            ("1Gi", &["ReadWriteOncePod"], Some("pod-1")),
        ] {
            let found = best(&claim(size, modes, json!({})), &volumes, false);
            assert_eq!(found.as_deref(), expected, "{size} {modes:?}");
        }
    }

    #[test]
    fn volumes_that_do_not_suit_are_left_out() {
        let now = "2026-01-01T00:00:00Z";
        for (what, more, claimed, expected) in [
            (
                "a phase other than Available",
                json!({ "status": { "phase": "Pending" } }),
                json!({}),
                false,
            ),
            (
                "a volume of another claim",
                json!({ "spec": { "claimRef": { "namespace": "ns", "name": "other" } } }),
                json!({}),
                false,
            ),
            (
                "an older claim of the name",
                json!({ "spec": { "claimRef": { "namespace": "ns", "name": "claim", "uid": "old" } } }),
                json!({}),
                false,
            ),
            (
                "a volume that goes",
                json!({ "metadata": { "deletionTimestamp": now } }),
                json!({}),
                false,
            ),
            ("a class", json!({ "spec": { "storageClassName": "gold" } }), json!({}), false),
            (
                "the same class",
                json!({ "spec": { "storageClassName": "gold" } }),
                json!({ "spec": { "storageClassName": "gold" } }),
                true,
            ),
            (
                "the class of the old annotation",
                json!({ "spec": { "storageClassName": "gold" } }),
                json!({ "metadata": { "annotations": { "volume.beta.kubernetes.io/storage-class": "gold" } }, "spec": { "storageClassName": "silver" } }),
                true,
            ),
            (
                "a claim with a class",
                json!({}),
                json!({ "spec": { "storageClassName": "gold" } }),
                false,
            ),
            ("a block volume", json!({ "spec": { "volumeMode": "Block" } }), json!({}), false),
            (
                "a claim of a block volume",
                json!({}),
                json!({ "spec": { "volumeMode": "Block" } }),
                false,
            ),
            (
                "both block",
                json!({ "spec": { "volumeMode": "Block" } }),
                json!({ "spec": { "volumeMode": "Block" } }),
                true,
            ),
            (
                "both the default mode",
                json!({ "spec": { "volumeMode": "Filesystem" } }),
                json!({}),
                true,
            ),
            (
                "an attributes class",
                json!({ "spec": { "volumeAttributesClassName": "a" } }),
                json!({}),
                false,
            ),
            (
                "the same attributes class",
                json!({ "spec": { "volumeAttributesClassName": "a" } }),
                json!({ "spec": { "volumeAttributesClassName": "a" } }),
                true,
            ),
            (
                "an empty attributes class",
                json!({ "spec": { "volumeAttributesClassName": "" } }),
                json!({}),
                true,
            ),
            (
                "labels that match",
                json!({ "metadata": { "labels": { "a": "b" } } }),
                json!({ "spec": { "selector": { "matchLabels": { "a": "b" } } } }),
                true,
            ),
            (
                "labels that do not",
                json!({ "metadata": { "labels": { "a": "c" } } }),
                json!({ "spec": { "selector": { "matchLabels": { "a": "b" } } } }),
                false,
            ),
            ("an empty selector", json!({}), json!({ "spec": { "selector": {} } }), true),
            (
                "an affinity to nodes, which the scheduler checks",
                json!({ "spec": { "nodeAffinity": { "required": { "nodeSelectorTerms": [] } } } }),
                json!({}),
                true,
            ),
        ] {
            let found = best(&claim("1Gi", RWO, claimed), &[volume("v", "1Gi", RWO, more)], false);
            assert_eq!(found.is_some(), expected, "{what}");
        }
    }

    #[test]
    fn a_volume_that_names_the_claim_comes_first_among_its_modes() {
        let named = json!({ "spec": { "claimRef": { "namespace": "ns", "name": "claim" } }, "status": { "phase": "Pending" } });
        let large = volume("named", "10Gi", RWO, named.clone());
        let small = volume("named", "512Mi", RWO, named.clone());
        let wide = volume("named", "10Gi", BOTH, named);
        let free = volume("free", "1Gi", RWO, json!({}));
        let claim =
            claim("1Gi", RWO, json!({ "spec": { "selector": { "matchLabels": { "a": "b" } } } }));
        assert_eq!(best(&claim, &[free.clone(), large.clone()], false).as_deref(), Some("named"));
        assert_eq!(best(&claim, &[large], true).as_deref(), Some("named"), "also when delayed");
        assert_eq!(best(&claim, &[small], false), None, "it is too small");
        let claim = self::claim("1Gi", RWO, json!({}));
        let found = best(&claim, &[free.clone(), wide.clone()], false);
        assert_eq!(found.as_deref(), Some("free"), "fewer modes count more");
        assert_eq!(best(&claim, &[free, wide], true).as_deref(), Some("named"));
    }

    #[test]
    fn a_volume_that_names_the_claim_comes_before_free_ones_with_as_many_modes() {
        let named = json!({ "spec": { "claimRef": { "namespace": "ns", "name": "claim" } } });
        let claim = claim("1Gi", RWO, json!({}));
        let other = &["ReadWriteOnce", "ReadWriteMany"];
        for (of_named, of_free) in [(BOTH, &other[..]), (other, BOTH)] {
            let named = volume("named", "10Gi", of_named, named.clone());
            let free = volume("free", "1Gi", of_free, json!({}));
            let found = best(&claim, &[free, named], false);
            assert_eq!(found.as_deref(), Some("named"), "{of_named:?} {of_free:?}");
        }
    }

    #[test]
    fn a_delayed_claim_takes_no_free_volume() {
        let free = [volume("v", "1Gi", RWO, json!({}))];
        assert_eq!(best(&claim("1Gi", RWO, json!({})), &free, true), None);
    }

    #[test]
    fn malformed_claims_are_errors() {
        let odd = json!({ "spec": { "selector": { "matchExpressions": [{ "key": "a", "operator": "Like" }] } } });
        let nothing = FreeVolumes::default();
        let none = |_: &ArcStr| None;
        let error =
            best_match(&claim("1Gi", RWO, odd), [], Some(&nothing), none, true).unwrap_err();
        assert!(error.starts_with("error creating internal label selector for claim: ns/claim: "));
        let classed = claim("1Gi", RWO, json!({ "spec": { "volumeAttributesClassName": "a" } }));
        assert_eq!(
            best_match(&classed, [], Some(&nothing), none, false).unwrap_err(),
            "unsupported volumeAttributesClassName is set on claim ns/claim when the feature-gate \
             VolumeAttributesClass is disabled"
        );
        let of_class =
            volume("v", "1Gi", RWO, json!({ "spec": { "volumeAttributesClassName": "a" } }));
        let plain = claim("1Gi", RWO, json!({}));
        let mut free_volumes = FreeVolumes::default();
        free_volumes.update(&of_class);
        let newest = |_: &ArcStr| Some(of_class.clone());
        let found = best_match(&plain, [], Some(&free_volumes), newest, false);
        assert_eq!(found, Ok(None), "without the gate");
    }

    #[test]
    fn only_volumes_that_the_claim_may_take_are_read() {
        let mut free_volumes = FreeVolumes::default();
        let mut volumes = std::collections::HashMap::new();
        for n in 0..5_000 {
            let class =
                json!({ "spec": { "storageClassName": if n % 2 == 0 { "a" } else { "b" } } });
            let modes = if n % 4 < 2 { RWO } else { BOTH };
            let volume = volume(&format!("v-{n}"), &format!("{}Mi", n + 1), modes, class);
            free_volumes.update(&volume);
            volumes.insert(volume.meta.name.clone(), volume);
        }
        let looks = std::cell::Cell::new(0);
        let newest = |name: &ArcStr| {
            looks.set(looks.get() + 1);
            volumes.get(name).cloned()
        };
        let of_class = json!({ "spec": { "storageClassName": "b" } });
        let claim = claim("4000Mi", RWO, of_class);
        let best = best_match(&claim, [], Some(&free_volumes), newest, true).unwrap().unwrap();
        assert_eq!((&*best.meta.name, looks.get()), ("v-4001", 1));
        // The index of free volumes is old: the volume has been taken.
        let mut taken = (*best).clone();
        taken.status.phase = "Bound".into();
        volumes.insert(taken.meta.name.clone(), Arc::new(taken));
        let newest = |name: &ArcStr| volumes.get(name).cloned();
        let best = best_match(&claim, [], Some(&free_volumes), newest, true).unwrap().unwrap();
        assert_eq!(&*best.meta.name, "v-4005");
    }

    #[test]
    fn mismatches_are_named() {
        let spec = |spec: Value| json!({ "spec": spec });
        for (volume_has, claim_has, fault) in [
            (json!({}), json!({}), None),
            (
                json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } }),
                json!({}),
                Some("the volume is marked for deletion \"v\""),
            ),
            (
                spec(json!({ "capacity": { "storage": "1" } })),
                json!({}),
                Some("requested PV is too small"),
            ),
            // Both are beyond 64 bits.
            (
                spec(json!({ "capacity": { "storage": "10E" } })),
                spec(json!({ "resources": { "requests": { "storage": "20E" } } })),
                Some("requested PV is too small"),
            ),
            (
                spec(json!({ "capacity": { "storage": "20E" } })),
                spec(json!({ "resources": { "requests": { "storage": "20E" } } })),
                None,
            ),
            (
                spec(json!({ "storageClassName": "gold" })),
                json!({}),
                Some("storageClassName does not match"),
            ),
            (
                spec(json!({ "volumeAttributesClassName": "a" })),
                json!({}),
                Some("volumeAttributesClassName does not match"),
            ),
            (json!({}), spec(json!({ "volumeMode": "Block" })), Some("incompatible volumeMode")),
            (spec(json!({ "accessModes": ROX })), json!({}), Some("incompatible accessMode")),
            (spec(json!({ "accessModes": BOTH })), json!({}), None),
        ] {
            let found =
                mismatch(&volume("v", "1Gi", RWO, volume_has), &claim("1Gi", RWO, claim_has), true);
            assert_eq!(found.as_deref(), fault);
        }
        let of_class = volume("v", "1Gi", RWO, spec(json!({ "volumeAttributesClassName": "a" })));
        let found = mismatch(&of_class, &claim("1Gi", RWO, json!({})), false).unwrap();
        assert!(found.starts_with("volumeAttributesClassName is not supported"), "{found}");
    }
}
