//! Which volume a claim may be bound to. Upstream: `component-helpers/storage/volume.FindMatchingVolume`
//! and `persistentVolumeOrderedIndex`.

use std::cmp::Reverse;
use std::sync::Arc;

use crate::cache::IndexValue;
use crate::objects::{
    ClaimRef, Istr, ObjectKey, PersistentVolume, PersistentVolumeClaim, Quantity, Selector,
};

/// The index of volumes by the claim that they name, or by their class while they are free.
pub const BY_TAKER: &str = "volume-by-taker";

/// See [`BY_TAKER`].
pub fn by_taker(volume: &PersistentVolume, emit: &mut dyn FnMut(IndexValue)) {
    match &volume.spec.claim_ref {
        Some(claim) => emit(IndexValue::Key(claim.key())),
        None if volume.status.phase == "Available" => {
            emit(IndexValue::Text(volume.storage_class().into()));
        }
        None => {}
    }
}

impl ClaimRef {
    pub fn key(&self) -> ObjectKey {
        ObjectKey { namespace: self.namespace.clone(), name: (*self.name).into() }
    }
}

/// Whether `volume` names `claim`, by its uid or, as long as there is no uid, by its name.
/// Upstream: `IsVolumeBoundToClaim`.
pub fn names(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    volume.spec.claim_ref.as_ref().is_some_and(|reference| {
        *reference.name == *claim.meta.name
            && reference.namespace == claim.meta.namespace
            && (reference.uid.is_empty() || reference.uid == claim.meta.uid)
    })
}

/// Block against Filesystem. Upstream: `CheckVolumeModeMismatches`.
pub fn modes_differ(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    volume.spec.is_block != claim.spec.is_block
}

/// A set of access modes. Modes that this build does not know count as no mode, as upstream's
/// index has it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Modes(u8);

impl Modes {
    const KNOWN: [&str; 4] = ["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"];

    fn of(modes: &[Istr]) -> Modes {
        let bit = |known: &str| u8::from(modes.iter().any(|mode| mode == known));
        Modes((0..).zip(Modes::KNOWN).fold(0, |set, (at, known)| set | bit(known) << at))
    }

    fn include(self, others: Modes) -> bool {
        self.0 & others.0 == others.0
    }

    fn count(self) -> u32 {
        self.0.count_ones()
    }
}

fn attributes_class(name: &Option<Istr>) -> &str {
    name.as_deref().unwrap_or_default()
}

/// The volume of `volumes` for `claim`: one that names it, else the smallest that is free, both
/// among the volumes with the fewest access modes. With `delayed` the scheduler chooses among those
/// that are free. `with_classes`: the gate VolumeAttributesClass.
///
/// # Errors
/// When the claim's selector is malformed, or it asks for a VolumeAttributesClass without the gate.
pub fn best_match(
    claim: &PersistentVolumeClaim,
    volumes: impl IntoIterator<Item = Arc<PersistentVolume>>,
    delayed: bool,
    with_classes: bool,
) -> Result<Option<Arc<PersistentVolume>>, String> {
    let spec = &claim.spec;
    let wanted_class = attributes_class(&spec.volume_attributes_class_name);
    if !with_classes && !wanted_class.is_empty() {
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
    let requested = spec.storage.unwrap_or_default();
    let wanted_modes = Modes::of(spec.access_modes.as_deref().unwrap_or_default());
    let mut best: Option<(_, Arc<PersistentVolume>)> = None;
    for volume in volumes {
        let fits = |volume: &PersistentVolume| {
            let capacity = volume.spec.capacity.unwrap_or_default();
            let has_class = attributes_class(&volume.spec.volume_attributes_class_name);
            capacity.compare(requested).is_ge()
                && !modes_differ(volume, claim)
                && has_class == if with_classes { wanted_class } else { "" }
                && !volume.meta.is_being_deleted()
        };
        let is_named = names(&volume, claim);
        let is_free = || {
            !delayed
                && volume.spec.claim_ref.is_none()
                && volume.status.phase == "Available"
                && selector.as_ref().is_none_or(|s| s.matches(&volume.meta.labels))
                && volume.storage_class() == claim.storage_class()
        };
        let modes = Modes::of(&volume.spec.access_modes);
        if !modes.include(wanted_modes) || !fits(&volume) || !(is_named || is_free()) {
            continue;
        }
        let rank = (modes.count(), modes, Reverse(is_named));
        let is_better = best.as_ref().is_none_or(|(known, other): &(_, Arc<PersistentVolume>)| {
            let size = |volume: &PersistentVolume| volume.spec.capacity.unwrap_or_default();
            rank.cmp(known)
                .then_with(|| size(&volume).compare(size(other)))
                .then_with(|| volume.meta.name.cmp(&other.meta.name))
                .is_lt()
        });
        if is_better {
            best = Some((rank, volume));
        }
    }
    Ok(best.map(|(_, volume)| volume))
}

/// Why a volume that the claim names is not what it asks for. Upstream: `checkVolumeSatisfyClaim`.
pub fn mismatch(
    volume: &PersistentVolume,
    claim: &PersistentVolumeClaim,
    with_classes: bool,
) -> Option<String> {
    let value = |quantity: Option<Quantity>| quantity.unwrap_or_default().value();
    let class = |name| attributes_class(name);
    let wanted = class(&claim.spec.volume_attributes_class_name);
    let has = class(&volume.spec.volume_attributes_class_name);
    let wanted_modes = claim.spec.access_modes.as_deref().unwrap_or_default();
    let fault = if volume.meta.is_being_deleted() {
        return Some(format!("the volume is marked for deletion {:?}", &*volume.meta.name));
    } else if value(volume.spec.capacity) < value(claim.spec.storage) {
        "requested PV is too small"
    } else if volume.storage_class() != claim.storage_class() {
        "storageClassName does not match"
    } else if with_classes && wanted != has {
        "volumeAttributesClassName does not match"
    } else if !(with_classes || wanted.is_empty() && has.is_empty()) {
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
        let forth = best_match(claim, volumes.iter().cloned(), delayed, true).unwrap();
        let back = best_match(claim, volumes.iter().rev().cloned(), delayed, true).unwrap();
        assert_eq!(forth, back, "the order of volumes does not count");
        forth.map(|volume| volume.meta.name.to_string())
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
    fn a_delayed_claim_takes_no_free_volume() {
        let free = [volume("v", "1Gi", RWO, json!({}))];
        assert_eq!(best(&claim("1Gi", RWO, json!({})), &free, true), None);
    }

    #[test]
    fn malformed_claims_are_errors() {
        let odd = json!({ "spec": { "selector": { "matchExpressions": [{ "key": "a", "operator": "Like" }] } } });
        let error = best_match(&claim("1Gi", RWO, odd), [], false, true).unwrap_err();
        assert!(error.starts_with("error creating internal label selector for claim: ns/claim: "));
        let classed = claim("1Gi", RWO, json!({ "spec": { "volumeAttributesClassName": "a" } }));
        assert_eq!(
            best_match(&classed, [], false, false).unwrap_err(),
            "unsupported volumeAttributesClassName is set on claim ns/claim when the feature-gate \
             VolumeAttributesClass is disabled"
        );
        let of_class =
            volume("v", "1Gi", RWO, json!({ "spec": { "volumeAttributesClassName": "a" } }));
        let plain = claim("1Gi", RWO, json!({}));
        assert_eq!(best_match(&plain, [of_class], false, false), Ok(None), "without the gate");
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
