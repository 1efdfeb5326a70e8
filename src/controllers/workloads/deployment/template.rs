//! Templates compared, and named by their hash.

use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::controllers::workloads::creations::compare;
use crate::controllers::workloads::history::template_hash;
use crate::objects::golang::pod_template_dump;
use crate::objects::{Quantity, Template};

/// The label by which a ReplicaSet and its pods name their template.
pub(super) const HASH_LABEL: &str = "pod-template-hash";

/// Maps from names to strings: their entries are the user's, never pruned.
const STRING_MAPS: [&str; 5] =
    ["labels", "annotations", "nodeSelector", "matchLabels", "volumeAttributes"];
/// Quantities, alone or as a map's values.
const QUANTITIES: [&str; 6] =
    ["limits", "requests", "overhead", "capacity", "sizeLimit", "divisor"];
/// Fields of which `{}` says no more than their absence. Others, such as a `namespaceSelector` or
/// a `securityContext`, are pointers in the API: empty is not absent.
const EMPTY_MEANS_ABSENT: [&str; 11] = [
    "metadata",
    "labels",
    "annotations",
    "nodeSelector",
    "matchLabels",
    "volumeAttributes",
    "resources",
    "limits",
    "requests",
    "overhead",
    "status",
];
/// The same for `""`: plain strings of the API.
const BLANK_MEANS_ABSENT: [&str; 13] = [
    "value",
    "subPath",
    "subPathExpr",
    "namespace",
    "nodeName",
    "serviceAccount",
    "serviceAccountName",
    "hostname",
    "subdomain",
    "priorityClassName",
    "schedulerName",
    "workingDir",
    "hostIP",
];

/// Returns `template` as JSON that is equal for templates which mean the same; their hash labels
/// are left out. Upstream: `apiequality.Semantic.DeepEqual` takes absent and empty as equal, and
/// compares quantities by their value.
pub(super) fn canonical(template: &Template) -> Value {
    let mut value = without_hash(template);
    normalize_value(&mut value, "");
    value
}

/// Returns the template's JSON without its hash label. Upstream: `CloneAndRemoveLabel`.
pub(super) fn without_hash(template: &Template) -> Value {
    let mut value = template.to_value();
    if let Some(labels) = value.pointer_mut("/metadata/labels").and_then(Value::as_object_mut) {
        labels.remove(HASH_LABEL);
    }
    value
}

/// Returns whether both mean the same, except for their hash labels. Upstream: `EqualIgnoreHash`.
pub(super) fn equal_ignoring_hash(one: &Template, other: &Template) -> bool {
    digest(one) == digest(other)
}

/// Returns the places below `spec.template` at which `other` differs from `one`; nothing if only
/// their hash labels differ.
pub(super) fn differences(one: &Template, other: &Template) -> Vec<String> {
    let mut places = Vec::new();
    if !equal_ignoring_hash(one, other) {
        compare("spec.template", &canonical(one), &canonical(other), &mut places);
    }
    places
}

/// Returns the digest of the canonical form, computed once for each template: a sync compares the
/// templates of all its ReplicaSets, which hardly ever change.
fn digest(template: &Template) -> u128 {
    template.digest(|template| {
        let sum = Sha256::digest(canonical(template).to_string());
        sum.iter().take(16).fold(0, |digest, byte| digest << 8 | u128::from(*byte))
    })
}

/// Returns whether `{}` in this field of a `parent` says no more than its absence. The resources of
/// a pod as a whole are a pointer in the API, those of a container are not. Those of a claim, which
/// are in a `spec` too, are always written by the API server.
fn empty_means_absent(parent: &str, field: &str) -> bool {
    EMPTY_MEANS_ABSENT.contains(&field) && (parent, field) != ("spec", "resources")
}

/// Drops what means the same as its absence, and writes quantities as amounts. `key`: the name of
/// the field that holds `value`.
fn normalize_value(value: &mut Value, key: &str) {
    match value {
        Value::Object(map) if QUANTITIES.contains(&key) => {
            map.values_mut().for_each(|quantity| *quantity = normalize_quantity(quantity));
        }
        Value::Object(_) if STRING_MAPS.contains(&key) => {}
        Value::Object(map) => {
            map.iter_mut().for_each(|(field, child)| normalize_value(child, field));
            map.retain(|field, child| match child {
                Value::Null => false,
                Value::Array(items) => !items.is_empty(),
                Value::Object(map) => !map.is_empty() || !empty_means_absent(key, field),
                Value::String(text) => {
                    !text.is_empty() || !BLANK_MEANS_ABSENT.contains(&field.as_str())
                }
                _ => true,
            });
        }
        Value::Array(items) => items.iter_mut().for_each(|item| normalize_value(item, key)),
        scalar if QUANTITIES.contains(&key) => *scalar = normalize_quantity(scalar),
        _ => {}
    }
}

/// Returns a quantity as its amount, so that `1Gi` equals `1073741824`; anything else as it is.
fn normalize_quantity(quantity: &Value) -> Value {
    let amount = match quantity {
        Value::String(text) => text.parse::<Quantity>().ok(),
        Value::Number(number) => number.to_string().parse().ok(),
        _ => None,
    };
    match amount.and_then(Quantity::nanos) {
        Some(nanos) => Value::String(format!("{nanos}n")),
        None => quantity.clone(),
    }
}

/// Returns the value of the hash label, which is the Go manager's too: the ReplicaSet of a template
/// has the same name whichever of the two makes it. Upstream: `ComputeHash`.
pub(super) fn hash(template: &Template, collision_count: Option<i32>) -> String {
    template_hash(&pod_template_dump(&template.to_value()), collision_count)
}

/// Returns `<deployment>-<hash>`, the Deployment's name cut where the whole would be too long for a
/// name.
/// Upstream: `generateReplicaSetName`.
pub(super) fn replica_set_name(deployment: &str, hash: &str) -> String {
    const LONGEST_NAME: usize = 253;
    let room = LONGEST_NAME.saturating_sub(1 + hash.len());
    let kept = if room > 0 { deployment.get(..room).unwrap_or(deployment) } else { deployment };
    format!("{kept}-{hash}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(text: &str) -> Template {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn templates_that_mean_the_same_are_equal() {
        for (one, other, same) in [
            (r#"{"spec":{"a":1}}"#, r#"{"spec":{"a":1},"metadata":{}}"#, true),
            (
                r#"{"metadata":{"labels":{"app":"a","pod-template-hash":"x"}}}"#,
                r#"{"metadata":{"creationTimestamp":null,"labels":{"app":"a"}}}"#,
                true,
            ),
            (
                r#"{"metadata":{"labels":{"app":"a"}}}"#,
                r#"{"metadata":{"labels":{"app":"b"}}}"#,
                false,
            ),
            (r#"{"metadata":{"labels":{"value":""}}}"#, r#"{"metadata":{"labels":{}}}"#, false),
            (r#"{"spec":{"volumes":[]}}"#, r#"{"spec":{}}"#, true),
            (
                r#"{"spec":{"env":[{"name":"A","value":""}]}}"#,
                r#"{"spec":{"env":[{"name":"A"}]}}"#,
                true,
            ),
            (r#"{"spec":{"namespaceSelector":{}}}"#, r#"{"spec":{}}"#, false),
            (r#"{"spec":{"securityContext":{}}}"#, r#"{"spec":{}}"#, false),
            (r#"{"spec":{"resources":{}}}"#, r#"{"spec":{}}"#, false),
            (
                r#"{"spec":{"containers":[{"name":"a","resources":{}}]}}"#,
                r#"{"spec":{"containers":[{"name":"a"}]}}"#,
                true,
            ),
            (
                r#"{"spec":{"resources":{"limits":{"memory":"1Gi","cpu":"1500m"}}}}"#,
                r#"{"spec":{"resources":{"limits":{"cpu":"1.5","memory":"1073741824"}}}}"#,
                true,
            ),
            (
                r#"{"spec":{"resources":{"limits":{"cpu":"1"}}}}"#,
                r#"{"spec":{"resources":{"limits":{"cpu":"1m"}}}}"#,
                false,
            ),
            (
                r#"{"spec":{"resources":{"limits":{"cpu":"1e4294967296"}}}}"#,
                r#"{"spec":{"resources":{"limits":{"cpu":"1"}}}}"#,
                true,
            ),
            (
                r#"{"spec":{"resources":{"limits":{"cpu":"1e60"}}}}"#,
                r#"{"spec":{"resources":{"limits":{"cpu":"2e60"}}}}"#,
                false,
            ),
            (r#"{"spec":{"x":1,"y":[1,2]}}"#, r#"{"spec":{"y":[1,2],"x":1}}"#, true),
            (r#"{"spec":{"y":[1,2]}}"#, r#"{"spec":{"y":[2,1]}}"#, false),
        ] {
            let (a, b) = (template(one), template(other));
            assert_eq!(equal_ignoring_hash(&a, &b), same, "{one} {other}");
        }
    }

    #[test]
    fn differences_name_their_places() {
        let one = r#"{"metadata":{"labels":{"app":"a"}},
            "spec":{"containers":[{"name":"c","image":"x","env":[]}],"old":1,"list":[1]}}"#;
        let other = r#"{"metadata":{"labels":{"app":"a","pod-template-hash":"h"}},
            "spec":{"containers":[{"name":"c","image":"m/x"}],"fresh":1,"list":[1,2]}}"#;
        assert_eq!(
            differences(&template(one), &template(other)),
            [
                "spec.template.spec.containers[0].image is changed",
                "spec.template.spec.list is changed",
                "spec.template.spec.old is missing",
                "spec.template.spec.fresh is new",
            ]
        );
        assert!(differences(&template(one), &template(one)).is_empty());
    }

    /// The expected hash is the Go manager's.
    #[test]
    fn a_hash_is_the_go_managers_and_changes_with_collisions() {
        let swap = template(TEMPLATE);
        let of = |count| super::hash(&swap, count);
        assert_eq!(of(None), "6bff8476f7");
        assert_ne!(of(None), of(Some(0)));
        assert_ne!(of(Some(0)), of(Some(1)));
    }

    const TEMPLATE: &str = r#"{"metadata":{"labels":{"app":"swap"}},"spec":{"containers":[{
        "image":"registry.k8s.io/pause:3.10","imagePullPolicy":"IfNotPresent","name":"pause",
        "resources":{},"terminationMessagePath":"/dev/termination-log",
        "terminationMessagePolicy":"File"}],"dnsPolicy":"ClusterFirst","restartPolicy":"Always",
        "schedulerName":"default-scheduler","securityContext":{},
        "terminationGracePeriodSeconds":30}}"#;

    #[test]
    fn names_fit() {
        assert_eq!(replica_set_name("web", "abc"), "web-abc");
        let long = replica_set_name(&"w".repeat(253), "abcdefghij");
        assert_eq!((long.len(), long.ends_with("w-abcdefghij")), (253, true));
    }
}
