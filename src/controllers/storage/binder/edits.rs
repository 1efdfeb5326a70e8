//! The changes of a binding to a volume and a claim. Each function returns `None` when nothing is
//! to be written, so that repeating a binding completes it.

use serde_json::{Map, Value, json};

use super::super::annotations::{
    BIND_COMPLETED, BOUND_BY_CONTROLLER, EXTERNAL_FINALIZER, IN_TREE_FINALIZER, IN_TREE_PREFIX,
    MIGRATED_TO, PRE_RESIZE_CAPACITY, PROVISIONED_BY, with_annotation, without_annotation,
};
use super::super::csi_migration::driver_of;
use super::matching::is_bound_to_claim;
use crate::objects::{Labels, Meta, PersistentVolume, PersistentVolumeClaim, Quantity};

/// A change of metadata and spec.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Edit {
    /// All annotations of the object after the change; `None`: unchanged.
    pub annotations: Option<Labels>,
    /// All finalizers of the object after the change; `None`: unchanged.
    pub finalizers: Option<Vec<String>>,
    /// Fields of the spec; null removes.
    pub spec: Vec<(&'static str, Value)>,
    /// Removes `spec.claimRef.uid`.
    pub forgets_claim_uid: bool,
}

impl Edit {
    pub fn annotations(annotations: Labels) -> Edit {
        Edit { annotations: Some(annotations), ..Edit::default() }
    }
}

/// Returns the edit that binds `volume` to `claim`; `None` if it is bound to it. A volume that did
/// not name the claim is marked as bound by the controller. Upstream: `GetBindVolumeToClaim`.
pub fn bound_volume(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Option<Edit> {
    let annotations = &volume.meta.annotations;
    let by_controller =
        !is_bound_to_claim(volume, claim) && !annotations.contains_key(BOUND_BY_CONTROLLER);
    let annotations =
        by_controller.then(|| with_annotation(annotations, BOUND_BY_CONTROLLER, "yes"));
    let is_bound = volume.spec.claim_ref.as_ref().is_some_and(|reference| {
        is_bound_to_claim(volume, claim) && reference.uid == claim.meta.uid
    });
    let spec = if is_bound { Vec::new() } else { vec![("claimRef", reference(claim))] };
    (annotations.is_some() || !is_bound).then_some(Edit { annotations, spec, ..Edit::default() })
}

/// Builds the reference to a claim. Upstream: `reference.GetReference`.
pub fn reference(claim: &PersistentVolumeClaim) -> Value {
    json!({
        "kind": "PersistentVolumeClaim", "apiVersion": "v1",
        "namespace": claim.meta.namespace, "name": claim.meta.name, "uid": claim.meta.uid,
        "resourceVersion": claim.meta.resource_version.to_string(),
    })
}

/// Returns the edit that removes the claim from `volume`. One that a user has reserved for it stays
/// reserved: only the uid is removed.
/// Upstream: `unbindVolume`.
pub fn unbound_volume(volume: &PersistentVolume) -> Edit {
    if volume.meta.annotations.contains_key(BOUND_BY_CONTROLLER) {
        return Edit {
            spec: vec![("claimRef", Value::Null)],
            ..Edit::annotations(without_annotation(&volume.meta.annotations, BOUND_BY_CONTROLLER))
        };
    }
    Edit { forgets_claim_uid: true, ..Edit::default() }
}

/// Returns the edit that binds `claim` to the volume, and marks the binding as complete; `None` if
/// both are so. A claim that did not name the volume is marked as bound by the controller.
/// Upstream: `bindClaimToVolume`.
pub fn bound_claim(claim: &PersistentVolumeClaim, volume: &str) -> Option<Edit> {
    let names_it = *claim.spec.volume_name == *volume;
    let old = &claim.meta.annotations;
    if names_it && old.contains_key(BIND_COMPLETED) {
        return None;
    }
    let mut annotations = old.clone();
    if !names_it && !old.contains_key(BOUND_BY_CONTROLLER) {
        annotations = with_annotation(&annotations, BOUND_BY_CONTROLLER, "yes");
    }
    if !old.contains_key(BIND_COMPLETED) {
        annotations = with_annotation(&annotations, BIND_COMPLETED, "yes");
    }
    let spec = if names_it { Vec::new() } else { vec![("volumeName", volume.into())] };
    Some(Edit { spec, ..Edit::annotations(annotations) })
}

/// Returns the fields of a claim's status that change for `phase` and the volume that it is bound
/// to; null removes a field. `None` if none changes. `with_classes`: the gate
/// VolumeAttributesClass.
/// Upstream: `updateClaimStatus`.
///
/// # Errors
/// When the volume has no capacity.
pub fn claim_status(
    claim: &PersistentVolumeClaim,
    phase: &str,
    volume: Option<&PersistentVolume>,
    with_classes: bool,
) -> Result<Option<Map<String, Value>>, String> {
    let status = &claim.status;
    let mut fields = Map::new();
    let mut set = |field: &str, value: Value| drop(fields.insert(field.to_owned(), value));
    let is_new = status.phase != *phase;
    if is_new {
        set("phase", phase.into());
    }
    let Some(volume) = volume else {
        for (field, is_there) in [
            ("accessModes", status.access_modes.is_some()),
            ("capacity", status.capacity.is_some()),
            (
                "currentVolumeAttributesClassName",
                status.current_volume_attributes_class_name.is_some(),
            ),
        ] {
            if is_there {
                set(field, Value::Null);
            }
        }
        return Ok((!fields.is_empty()).then_some(fields));
    };
    if status.access_modes.as_deref().unwrap_or_default() != &*volume.spec.access_modes {
        set("accessModes", json!(volume.spec.access_modes));
    }
    // Only then: a capacity that differs later may be intended, as a file system that has not grown
    // yet.
    if is_new {
        let Some(capacity) = volume.spec.capacity else {
            let name = &volume.meta.name;
            return Err(format!("PersistentVolume {name:?} is without a storage capacity"));
        };
        // Until the node has grown the file system, the claim shows the capacity before the
        // expansion.
        let before = volume.meta.annotations.get(PRE_RESIZE_CAPACITY);
        let capacity = match before.map(str::parse::<Quantity>) {
            Some(before) => Some(before.unwrap_or(capacity)),
            None => match status.capacity {
                Some(known) if known.compare(capacity).is_eq() => None,
                _ => Some(capacity),
            },
        };
        if let Some(capacity) = capacity {
            set("capacity", json!({ "storage": capacity }));
        }
    }
    let class = &volume.spec.volume_attributes_class_name;
    let is_binding = status.phase == "Pending" && phase == "Bound";
    if with_classes && is_binding && status.current_volume_attributes_class_name != *class {
        set("currentVolumeAttributesClassName", json!(class));
    }
    Ok((!fields.is_empty()).then_some(fields))
}

/// Returns `annotations` with the name of the CSI driver that replaces the in-tree `provisioner`,
/// or without it if none does. `None`: unchanged, or no provisioner.
/// Upstream: `updateMigrationAnnotations`.
pub fn with_migration_annotation(
    annotations: &Labels,
    provisioner: Option<&str>,
) -> Option<Labels> {
    let driver = driver_of(provisioner?);
    let known = annotations.get(MIGRATED_TO).unwrap_or_default();
    match driver {
        Some(driver) => {
            (known != driver).then(|| with_annotation(annotations, MIGRATED_TO, driver))
        }
        None => (!known.is_empty()).then(|| without_annotation(annotations, MIGRATED_TO)),
    }
}

/// Returns the finalizers that a provisioned volume should have; `None` if it has these, or
/// was not provisioned. The one of an in-tree plugin is set with the policy Delete only; the
/// external provisioner's is removed from volumes of in-tree plugins.
/// Upstream: `modifyDeletionFinalizers`.
pub fn deletion_finalizers(meta: &Meta, reclaim_policy: &str) -> Option<Vec<String>> {
    let provisioner = meta.annotations.get(PROVISIONED_BY)?;
    let old = meta.finalizers();
    let mut finalizers: Vec<String> = old.iter().map(ToString::to_string).collect();
    if driver_of(provisioner).is_some() {
        finalizers.retain(|name| name != IN_TREE_FINALIZER);
    } else if provisioner.starts_with(IN_TREE_PREFIX) {
        match reclaim_policy {
            "Delete" if !meta.has_finalizer(IN_TREE_FINALIZER) => {
                finalizers.push(IN_TREE_FINALIZER.to_owned());
            }
            "Retain" | "Recycle" => finalizers.retain(|name| name != IN_TREE_FINALIZER),
            _ => {}
        }
        finalizers.retain(|name| name != EXTERNAL_FINALIZER);
    }
    let differs =
        finalizers.len() != old.len() || old.iter().zip(&finalizers).any(|(a, b)| *a != **b);
    differs.then_some(finalizers)
}

/// Builds the status of a volume in `phase`. The server sets the time of the transition.
pub fn volume_status(volume: &PersistentVolume, phase: &str, message: &str) -> Value {
    let mut status = json!({ "phase": phase });
    for (field, text) in [("message", message), ("reason", &*volume.status.reason)] {
        if !text.is_empty() {
            status[field] = text.into();
        }
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(json: Value) -> PersistentVolume {
        serde_json::from_value(json).unwrap()
    }

    fn claim(annotations: Value, spec: Value, status: Value) -> PersistentVolumeClaim {
        let json = json!({
            "metadata": { "name": "c", "namespace": "ns", "uid": "u", "annotations": annotations },
            "spec": spec, "status": status,
        });
        serde_json::from_value(json).unwrap()
    }

    fn labels(json: Value) -> Labels {
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn a_binding_is_completed_from_every_state() {
        let claim = claim(json!({}), json!({}), json!({}));
        let named = |uid: Option<&str>| json!({ "namespace": "ns", "name": "c", "uid": uid });
        let by_controller = json!({ BOUND_BY_CONTROLLER: "yes" });
        // The claim and the annotations of the volume; whether each is written.
        for (claim_ref, annotations, sets_claim, annotates) in [
            (Value::Null, json!({}), true, true),
            (Value::Null, by_controller.clone(), true, false),
            (named(None), json!({}), true, false),
            (named(None), by_controller.clone(), true, false),
            (named(Some("u")), json!({}), false, false),
            (named(Some("u")), by_controller, false, false),
            (named(Some("old")), json!({}), true, true),
        ] {
            let case = format!("{claim_ref} {annotations}");
            let volume = volume(json!({
                "metadata": { "name": "v", "annotations": annotations },
                "spec": { "claimRef": claim_ref },
            }));
            let edit = bound_volume(&volume, &claim);
            assert_eq!(edit.is_some(), sets_claim || annotates, "{case}");
            let edit = edit.unwrap_or_default();
            assert_eq!(edit.annotations.is_some(), annotates, "{case}");
            assert_eq!(!edit.spec.is_empty(), sets_claim, "{case}");
        }
    }

    #[test]
    fn a_claim_is_bound_once() {
        let done = json!({ BIND_COMPLETED: "yes" });
        let both = json!({ BIND_COMPLETED: "yes", BOUND_BY_CONTROLLER: "yes" });
        for (annotations, named, expected, sets_name) in [
            (json!({}), "", Some(both.clone()), true),
            (json!({}), "v", Some(done.clone()), false),
            (json!({ BOUND_BY_CONTROLLER: "yes" }), "v", Some(both), false),
            (done.clone(), "v", None, false),
        ] {
            let claim = claim(annotations, json!({ "volumeName": named }), json!({}));
            let edit = bound_claim(&claim, "v");
            let annotations = edit.as_ref().and_then(|edit| edit.annotations.clone());
            assert_eq!(annotations, expected.map(labels), "{named}");
            assert_eq!(edit.is_some_and(|edit| !edit.spec.is_empty()), sets_name);
        }
    }

    #[test]
    fn only_bindings_of_the_controller_are_removed() {
        let claim_ref = json!({ "namespace": "ns", "name": "c", "uid": "u" });
        let by_us = json!({ "name": "v", "annotations": { BOUND_BY_CONTROLLER: "yes", "a": "b" } });
        let freed = unbound_volume(&volume(
            json!({ "metadata": by_us, "spec": { "claimRef": claim_ref } }),
        ));
        assert_eq!(freed.spec, [("claimRef", Value::Null)]);
        assert_eq!(freed.annotations, Some(labels(json!({ "a": "b" }))));
        let reserved = unbound_volume(&volume(json!({ "spec": { "claimRef": claim_ref } })));
        assert_eq!(reserved, Edit { forgets_claim_uid: true, ..Edit::default() });
    }

    #[test]
    fn the_status_of_a_claim_follows_its_volume() {
        let of = |annotations: Value| {
            volume(json!({
                "metadata": { "name": "v", "annotations": annotations },
                "spec": {
                    "capacity": { "storage": "2Gi" }, "accessModes": ["ReadWriteOnce"],
                    "volumeAttributesClassName": "gold",
                },
            }))
        };
        let (plain, resized) = (of(json!({})), of(json!({ PRE_RESIZE_CAPACITY: "1Gi" })));
        let odd = of(json!({ PRE_RESIZE_CAPACITY: "much" }));
        let modes = json!(["ReadWriteOnce"]);
        let whole = |size: &str| {
            json!({
                "phase": "Bound", "accessModes": modes, "capacity": { "storage": size },
                "currentVolumeAttributesClassName": "gold",
            })
        };
        let grown = json!({
            "phase": "Bound", "accessModes": modes, "capacity": { "storage": "1Gi" },
            "currentVolumeAttributesClassName": "silver",
        });
        for (what, status, phase, volume, expected) in [
            ("a new claim", json!({ "phase": "Pending" }), "Bound", Some(&plain), whole("2Gi")),
            (
                "an expansion under way",
                json!({ "phase": "Pending" }),
                "Bound",
                Some(&resized),
                whole("1Gi"),
            ),
            ("no number", json!({ "phase": "Pending" }), "Bound", Some(&odd), whole("2Gi")),
            ("bound already", grown.clone(), "Bound", Some(&plain), json!({})),
            (
                "lost",
                grown,
                "Lost",
                None,
                json!({
                    "phase": "Lost", "accessModes": null, "capacity": null,
                    "currentVolumeAttributesClassName": null,
                }),
            ),
            ("pending", json!({ "phase": "Pending" }), "Pending", None, json!({})),
            (
                "found again",
                json!({ "phase": "Lost" }),
                "Bound",
                Some(&plain),
                json!({
                    "phase": "Bound", "accessModes": modes, "capacity": { "storage": "2Gi" },
                }),
            ),
        ] {
            let claim = claim(json!({}), json!({}), status);
            let fields = claim_status(&claim, phase, volume, true).unwrap();
            assert_eq!(Value::Object(fields.unwrap_or_default()), expected, "{what}");
        }
        let pending = claim(json!({}), json!({}), json!({ "phase": "Pending" }));
        let fields = claim_status(&pending, "Bound", Some(&plain), false).unwrap().unwrap();
        assert!(!fields.contains_key("currentVolumeAttributesClassName"), "without the gate");
        assert_eq!(
            claim_status(&pending, "Bound", Some(&PersistentVolume::default()), true).unwrap_err(),
            "PersistentVolume \"\" is without a storage capacity"
        );
    }

    #[test]
    fn the_status_of_a_volume_says_why_it_failed() {
        let failed = volume_status(&volume(json!({})), "Failed", "no deleter");
        assert_eq!(failed, json!({ "phase": "Failed", "message": "no deleter" }));
        let kept = volume(json!({ "status": { "phase": "Available", "reason": "r" } }));
        assert_eq!(volume_status(&kept, "Bound", ""), json!({ "phase": "Bound", "reason": "r" }));
    }

    #[test]
    fn migrated_plugins_are_marked() {
        let ebs = "ebs.csi.aws.com";
        for (annotations, provisioner, expected) in [
            (json!({}), None, None),
            (json!({}), Some("kubernetes.io/aws-ebs"), Some(json!({ MIGRATED_TO: ebs }))),
            (json!({ MIGRATED_TO: ebs }), Some("kubernetes.io/aws-ebs"), None),
            (
                json!({ MIGRATED_TO: "x" }),
                Some("kubernetes.io/aws-ebs"),
                Some(json!({ MIGRATED_TO: ebs })),
            ),
            (json!({ MIGRATED_TO: ebs }), Some("kubernetes.io/host-path"), Some(json!({}))),
            (json!({}), Some("csi.example.com"), None),
        ] {
            let found = with_migration_annotation(&labels(annotations), provisioner);
            assert_eq!(found, expected.map(labels), "{provisioner:?}");
        }
    }

    #[test]
    fn finalizers_follow_the_policy_of_provisioned_volumes() {
        const OTHER: &str = "example.com/other";
        let in_tree = "kubernetes.io/host-path";
        for (provisioner, policy, had, expected) in [
            (None, "Delete", vec![EXTERNAL_FINALIZER], None),
            (Some("csi.example.com"), "Delete", vec![EXTERNAL_FINALIZER], None),
            (Some("csi.example.com"), "Delete", vec![IN_TREE_FINALIZER], None),
            (
                Some("kubernetes.io/gce-pd"),
                "Delete",
                vec![IN_TREE_FINALIZER, EXTERNAL_FINALIZER],
                Some(vec![EXTERNAL_FINALIZER]),
            ),
            (Some("kubernetes.io/gce-pd"), "Delete", vec![EXTERNAL_FINALIZER], None),
            (Some(in_tree), "Delete", vec![], Some(vec![IN_TREE_FINALIZER])),
            (Some(in_tree), "Delete", vec![IN_TREE_FINALIZER], None),
            (
                Some(in_tree),
                "Delete",
                vec![OTHER, EXTERNAL_FINALIZER],
                Some(vec![OTHER, IN_TREE_FINALIZER]),
            ),
            (Some(in_tree), "Retain", vec![IN_TREE_FINALIZER, OTHER], Some(vec![OTHER])),
            (Some(in_tree), "Recycle", vec![IN_TREE_FINALIZER], Some(vec![])),
            (Some(in_tree), "Retain", vec![OTHER], None),
        ] {
            let volume = volume(json!({ "metadata": {
                "annotations": provisioner.map(|name| json!({ PROVISIONED_BY: name })),
                "finalizers": had,
            } }));
            let expected = expected.map(|names| names.into_iter().map(str::to_owned).collect());
            let found = deletion_finalizers(&volume.meta, policy);
            assert_eq!(found, expected, "{provisioner:?} {policy} {had:?}");
        }
    }
}
