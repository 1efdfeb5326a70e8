//! Membership of pods in a StatefulSet, and the names of its pods and claims.
//! Upstream: the first half of `stateful_set_utils.go`.

use std::ops::Range;

use crate::controllers::Error;
use crate::controllers::workloads::history::REVISION_LABEL;
use crate::controllers::workloads::new_pod::NewPod;
use crate::lookup::Lookup;
use crate::objects::{
    ClaimSource, ClaimTemplate, ClaimVolume, Object, Pod, RawObject, StatefulSet, Template,
};

/// Upstream: `StatefulSetPodNameLabel`.
pub const POD_NAME_LABEL: &str = "statefulset.kubernetes.io/pod-name";
/// Upstream: `PodIndexLabel`.
pub const POD_INDEX_LABEL: &str = "apps.kubernetes.io/pod-index";

/// Splits the name of a pod into the name of its set and the ordinal, which is `None` if the number
/// is too large. Returns `None` if the name does not end with a number.
/// Upstream: `getParentNameAndOrdinal`.
pub fn parent_and_ordinal(pod: &str) -> Option<(&str, Option<i32>)> {
    let (parent, digits) = pod.rsplit_once('-')?;
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| (parent, digits.parse().ok()))
}

/// Returns whether `pod` has the name of a pod of `set`, with any ordinal. Upstream: `isMemberOf`.
pub fn is_member(set: &StatefulSet, pod: &Pod) -> bool {
    parent_and_ordinal(&pod.meta.name).is_some_and(|(parent, _)| parent == &*set.meta.name)
}

/// Returns the ordinal in the name of `pod`; `None` without a number or with too large a one.
/// Upstream: `getOrdinal`.
pub fn ordinal(pod: &Pod) -> Option<i32> {
    parent_and_ordinal(&pod.meta.name)?.1
}

/// Returns the ordinals of the wanted pods. Upstream: `getStartOrdinal`, `getEndOrdinal`.
pub fn wanted_ordinals(set: &StatefulSet) -> Range<i64> {
    let start = i64::from(set.spec.ordinals.start);
    start..start + i64::from(set.replicas().max(0))
}

/// Returns whether the set wants a pod of this ordinal. Upstream: `podInOrdinalRange`.
pub fn is_wanted(set: &StatefulSet, ordinal: i32) -> bool {
    wanted_ordinals(set).contains(&i64::from(ordinal))
}

/// Upstream: `getPodName`.
pub fn pod_name(set: &StatefulSet, ordinal: i32) -> String {
    format!("{}-{ordinal}", set.meta.name)
}

/// Upstream: `getPersistentVolumeClaimName`.
pub fn claim_name(set: &StatefulSet, template: &ClaimTemplate, ordinal: i32) -> String {
    format!("{}-{}-{ordinal}", template.name, set.meta.name)
}

/// Returns the volumes that a pod has for the set's claims, as pairs of volume and claim name.
pub fn claim_volumes(set: &StatefulSet, ordinal: i32) -> Vec<(&str, String)> {
    let templates = set.spec.volume_claim_templates.iter();
    templates.map(|template| (&*template.name, claim_name(set, template, ordinal))).collect()
}

/// Returns whether `pod` has the name and the label of a member. Upstream: `identityMatches`.
pub fn identity_matches(set: &StatefulSet, pod: &Pod) -> bool {
    ordinal(pod).is_some_and(|ordinal| *pod.meta.name == *pod_name(set, ordinal))
        && is_member(set, pod)
        && pod.meta.labels.get(POD_NAME_LABEL) == Some(&pod.meta.name)
}

/// Returns whether `pod` has a volume with the right claim for each claim template. Upstream:
/// `storageMatches`.
pub fn storage_matches(set: &StatefulSet, pod: &Pod) -> bool {
    let Some(ordinal) = ordinal(pod) else { return false };
    // The API server refuses two volumes of one name.
    let volumes = Lookup::new(&pod.spec.shape.claims, |known| known.volume.as_str());
    claim_volumes(set, ordinal).iter().all(|(name, claim)| {
        matches!(volumes.get(name), Some(ClaimVolume { claim: ClaimSource::Existing(known), .. })
            if known == &**claim)
    })
}

/// Makes the pod of this ordinal from `template`, of the revision with this name.
/// Upstream: `newStatefulSetPod`.
pub fn new_pod(
    set: &StatefulSet,
    template: &Template,
    revision: &str,
    ordinal: i32,
) -> Result<NewPod, Error> {
    let mut pod = NewPod::new::<StatefulSet>(set.meta(), template)?;
    let name = pod_name(set, ordinal);
    pod.metadata.set_label(POD_NAME_LABEL, &name);
    pod.metadata.set_label(POD_INDEX_LABEL, &ordinal.to_string());
    pod.metadata.set_label(REVISION_LABEL, revision);
    let claims = claim_volumes(set, ordinal);
    pod.edit_spec(|spec| {
        spec.set_hostname(&name)?;
        spec.set_subdomain(&set.spec.service_name)?;
        spec.put_claims(claims.iter().map(|(volume, claim)| (*volume, claim.as_str())))
    })?;
    pod.metadata.name = name;
    Ok(pod)
}

/// Makes the claim of this template for the pod of this ordinal, with the labels of the set's
/// selector in addition.
/// Upstream: `getPersistentVolumeClaims`.
pub fn new_claim(
    set: &StatefulSet,
    template: &ClaimTemplate,
    ordinal: i32,
) -> Result<RawObject, Error> {
    let mut claim = template.object()?;
    claim.set("apiVersion", "v1")?;
    claim.set("kind", "PersistentVolumeClaim")?;
    claim.edit("metadata", |metadata| {
        metadata.set("name", claim_name(set, template, ordinal))?;
        metadata.set("namespace", &*set.meta.namespace)?;
        match set.spec.selector.as_ref().map(|selector| &selector.match_labels) {
            Some(selected) if !selected.is_empty() => {
                metadata.edit("labels", |labels| labels.set_all(selected.iter()))
            }
            _ => Ok(()),
        }
    })?;
    Ok(claim)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn set() -> StatefulSet {
        serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "ns", "uid": "s"},
            "spec": {
                "replicas": 3, "serviceName": "svc", "ordinals": {"start": 2},
                "selector": {"matchLabels": {"app": "web"}},
                "template": {
                    "metadata": {"labels": {"app": "web"}},
                    "spec": {"volumes": [{"name": "data", "emptyDir": {}}, {"name": "tmp"}],
                        "subdomain": "other", "brandNew": 1.50},
                },
                "volumeClaimTemplates": [
                    {"metadata": {"name": "data", "labels": {"app": "x", "tier": "db"}},
                        "spec": {"brandNew": 1}},
                    {"metadata": {"name": "log"}},
                ],
            },
        }))
        .unwrap()
    }

    fn pod(name: &str, label: &str, volumes: Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "ns", "labels": {POD_NAME_LABEL: label}},
            "spec": {"volumes": volumes},
        }))
        .unwrap()
    }

    #[test]
    fn names_have_a_parent_and_an_ordinal() {
        for (name, found) in [
            ("web-0", Some(("web", Some(0)))),
            ("web-1-2", Some(("web-1", Some(2)))),
            ("web-007", Some(("web", Some(7)))),
            ("-3", Some(("", Some(3)))),
            ("web-2147483647", Some(("web", Some(i32::MAX)))),
            ("web-2147483648", Some(("web", None))),
            ("web-", None),
            ("web-x1", None),
            ("web-+1", None),
            ("web", None),
        ] {
            assert_eq!(parent_and_ordinal(name), found, "{name}");
        }
    }

    #[test]
    fn the_wanted_ordinals_start_where_the_spec_says() {
        let mut set = set();
        assert_eq!(wanted_ordinals(&set), 2..5);
        assert_eq!([1, 2, 4, 5].map(|at| is_wanted(&set, at)), [false, true, true, false]);
        set.spec.replicas = Some(i32::MAX);
        set.spec.ordinals.start = i32::MAX;
        assert_eq!(wanted_ordinals(&set).count(), i32::MAX as usize);
    }

    #[test]
    fn a_member_needs_its_identity_and_its_storage() {
        let claims = json!([
            {"name": "tmp", "emptyDir": {}},
            {"name": "data", "persistentVolumeClaim": {"claimName": "data-web-2"}},
            {"name": "log", "persistentVolumeClaim": {"claimName": "log-web-2"}},
        ]);
        let other = json!([
            {"name": "data", "persistentVolumeClaim": {"claimName": "data-web-3"}},
            {"name": "log", "persistentVolumeClaim": {"claimName": "log-web-2"}},
        ]);
        for (name, label, volumes, member, identity, storage) in [
            ("web-2", "web-2", claims.clone(), true, true, true),
            ("web-2", "", claims.clone(), true, false, true),
            ("web-02", "web-02", claims.clone(), true, false, true),
            ("web-x", "web-x", claims.clone(), false, false, false),
            ("other-2", "other-2", claims, false, false, true),
            ("web-2", "web-2", other, true, true, false),
            ("web-2", "web-2", json!([]), true, true, false),
        ] {
            let (set, pod) = (set(), pod(name, label, volumes));
            let got =
                (is_member(&set, &pod), identity_matches(&set, &pod), storage_matches(&set, &pod));
            assert_eq!(got, (member, identity, storage), "{name} {label}");
        }
    }

    #[test]
    fn a_pod_has_its_identity_and_its_claims() {
        let set = set();
        let made = new_pod(&set, &set.spec.template, "web-abc", 2).unwrap();
        assert_eq!(
            serde_json::to_value(&made).unwrap(),
            json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {
                    "name": "web-2", "generateName": "web-",
                    "labels": {
                        "app": "web", POD_NAME_LABEL: "web-2", POD_INDEX_LABEL: "2",
                        "controller-revision-hash": "web-abc",
                    },
                    "ownerReferences": [{
                        "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web", "uid": "s",
                        "controller": true, "blockOwnerDeletion": true,
                    }],
                },
                "spec": {
                    "hostname": "web-2", "subdomain": "svc", "brandNew": 1.5,
                    "volumes": [
                        {"name": "data", "persistentVolumeClaim": {"claimName": "data-web-2"}},
                        {"name": "log", "persistentVolumeClaim": {"claimName": "log-web-2"}},
                        {"name": "tmp"},
                    ],
                },
            })
        );
    }

    #[test]
    fn a_claim_has_the_labels_of_template_and_selector() {
        let set = set();
        let made = |at: usize| {
            let template = &set.spec.volume_claim_templates[at];
            serde_json::to_value(new_claim(&set, template, 2).unwrap()).unwrap()
        };
        assert_eq!(
            made(0),
            json!({
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "spec": {"brandNew": 1},
                "metadata": {"name": "data-web-2", "namespace": "ns",
                    "labels": {"app": "web", "tier": "db"}},
            })
        );
        assert_eq!(made(1)["metadata"]["labels"], json!({"app": "web"}));
    }
}
