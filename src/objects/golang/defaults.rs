//! The defaults that the API server gives a pod template.
//! Upstream: the part of `SetObjectDefaults_StatefulSet` about the template.

use serde_json::{Value, json};

use super::json::is_empty;
use super::types::{Kind, POD_TEMPLATE_SPEC, Type, fields};
use crate::objects::from_json;

/// Structs with the fields that get a value when they are zero, in JSON.
const DEFAULTS: &[(&str, &[(&str, &str)])] = &[
    (
        "v1.AzureDiskVolumeSource",
        &[
            ("cachingMode", r#""ReadWrite""#),
            ("fsType", r#""ext4""#),
            ("readOnly", "false"),
            ("kind", r#""Shared""#),
        ],
    ),
    ("v1.ConfigMapVolumeSource", &[("defaultMode", "420")]),
    ("v1.Container", CONTAINER),
    ("v1.ContainerPort", &[("protocol", r#""TCP""#)]),
    ("v1.DownwardAPIVolumeSource", &[("defaultMode", "420")]),
    ("v1.EphemeralContainerCommon", CONTAINER),
    ("v1.FileKeySelector", &[("optional", "false")]),
    ("v1.GRPCAction", &[("service", r#""""#)]),
    ("v1.HTTPGetAction", &[("path", r#""/""#), ("scheme", r#""HTTP""#)]),
    ("v1.HostPathVolumeSource", &[("type", r#""""#)]),
    ("v1.ISCSIVolumeSource", &[("iscsiInterface", r#""default""#)]),
    ("v1.ObjectFieldSelector", &[("apiVersion", r#""v1""#)]),
    ("v1.PersistentVolumeClaimSpec", &[("volumeMode", r#""Filesystem""#)]),
    (
        "v1.PodSpec",
        &[
            ("dnsPolicy", r#""ClusterFirst""#),
            ("restartPolicy", r#""Always""#),
            ("securityContext", "{}"),
            ("terminationGracePeriodSeconds", "30"),
            ("schedulerName", r#""default-scheduler""#),
        ],
    ),
    (
        "v1.Probe",
        &[
            ("timeoutSeconds", "1"),
            ("periodSeconds", "10"),
            ("successThreshold", "1"),
            ("failureThreshold", "3"),
        ],
    ),
    ("v1.ProjectedVolumeSource", &[("defaultMode", "420")]),
    (
        "v1.RBDVolumeSource",
        &[("pool", r#""rbd""#), ("user", r#""admin""#), ("keyring", r#""/etc/ceph/keyring""#)],
    ),
    ("v1.ScaleIOVolumeSource", &[("storageMode", r#""ThinProvisioned""#), ("fsType", r#""xfs""#)]),
    ("v1.SecretVolumeSource", &[("defaultMode", "420")]),
    ("v1.ServiceAccountTokenProjection", &[("expirationSeconds", "3600")]),
];

const CONTAINER: &[(&str, &str)] = &[
    ("terminationMessagePath", r#""/dev/termination-log""#),
    ("terminationMessagePolicy", r#""File""#),
];

/// Sets the defaults of the current API server in a pod template that may have been written when
/// the API had fewer fields.
pub fn complete_pod_template(template: &mut Value) {
    complete(Type::parse(POD_TEMPLATE_SPEC), template);
}

/// Sets the defaults of a value and of its parts.
fn complete(of: Type, value: &mut Value) {
    match of.kind {
        Kind::Pointer(inner) if !value.is_null() => complete(Type::parse(inner), value),
        Kind::Slice(inner) => {
            let items = value.as_array_mut().into_iter().flatten();
            items.for_each(|item| complete(Type::parse(inner), item));
        }
        Kind::Struct => {
            if value.is_null() {
                *value = json!({});
            }
            // A value of another type is not stored by the API server.
            if value.is_object() {
                complete_fields(of.name, value);
                complete_specially(of.name, value);
            }
        }
        _ => {}
    }
}

/// Sets the defaults in [`DEFAULTS`] of fields that are empty.
fn complete_fields(name: &str, object: &mut Value) {
    let rows = DEFAULTS.iter().find(|(known, _)| *known == name).map_or(&[][..], |(_, rows)| rows);
    for field in fields(name) {
        if field.is_embedded() {
            complete(field.r#type, object);
            continue;
        }
        let json_name = field.json_name();
        let row = rows.iter().find(|(name, _)| *name == json_name);
        if let Some((_, text)) = row
            && is_empty(field.r#type.kind, field.value_in(Some(object)))
            && let Ok(default) = from_json::<Value>(text)
        {
            object[&json_name] = default;
        }
        // Nested structs always exist in Go, but only those with a default matter here.
        if let Some(inner) = object.get_mut(&json_name) {
            complete(field.r#type, inner);
        }
    }
}

/// Sets the defaults that depend on other fields.
fn complete_specially(name: &str, object: &mut Value) {
    let text = |object: &Value, name: &str| object[name].as_str().unwrap_or_default().to_owned();
    let policy = |image: &str| if takes_latest(image) { "Always" } else { "IfNotPresent" };
    match name {
        "v1.Container" | "v1.EphemeralContainerCommon"
            if text(object, "imagePullPolicy").is_empty() =>
        {
            object["imagePullPolicy"] = json!(policy(&text(object, "image")));
        }
        "v1.ImageVolumeSource" if text(object, "pullPolicy").is_empty() => {
            object["pullPolicy"] = json!(policy(&text(object, "reference")));
        }
        "v1.Volume" => {
            let mut sources = fields("v1.VolumeSource");
            if !sources.any(|source| source.value_in(Some(object)).is_some()) {
                object["emptyDir"] = json!({});
            }
        }
        _ => {}
    }
}

/// Returns whether an image has the tag `latest`, or neither tag nor digest.
/// Upstream: `parsers.ParseImageName`.
fn takes_latest(image: &str) -> bool {
    let (name, digest) = image.split_once('@').map_or((image, None), |(n, d)| (n, Some(d)));
    let last = name.rsplit('/').next().unwrap_or(name);
    match last.split_once(':') {
        Some((_, tag)) => tag == "latest",
        None => digest.is_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_is_of_a_known_field() {
        for (name, rows) in DEFAULTS {
            for (field, text) in *rows {
                assert!(fields(name).any(|known| known.json_name() == *field), "{name}.{field}");
                assert!(from_json::<Value>(text).is_ok(), "{name}.{field}");
            }
        }
    }

    #[test]
    fn absent_fields_get_their_defaults() {
        let mut template = json!({
            "metadata": {"labels": {"a": "b"}},
            "spec": {
                "containers": [
                    {
                        "name": "a", "image": "host:5000/i",
                        "ports": [{"containerPort": 1}, {"containerPort": 2, "protocol": "UDP"}],
                        "env": [{"name": "E", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}],
                        "livenessProbe": {"httpGet": {"port": 1}, "periodSeconds": 5},
                        "readinessProbe": {"grpc": {"port": 1}, "failureThreshold": 0},
                        "lifecycle": {"preStop": {"httpGet": {"port": 1, "path": "/x"}}},
                    },
                    {"name": "b", "image": "i:1", "imagePullPolicy": "Never"},
                ],
                "initContainers": [{"name": "c", "image": "i@sha256:0"}],
                "volumes": [
                    {"name": "e"},
                    {"name": "s", "secret": {"secretName": "s"}},
                    {"name": "p", "projected": {"sources": [
                        {"serviceAccountToken": {"path": "t"}},
                        {"downwardAPI": {"items": [{"path": "l", "fieldRef": {"fieldPath": "x"}}]}},
                    ]}},
                    {"name": "h", "hostPath": {"path": "/"}},
                    {"name": "i", "image": {"reference": "i:latest@sha256:0"}},
                    {"name": "x", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}},
                ],
                "restartPolicy": "OnFailure",
            },
        });
        complete_pod_template(&mut template);
        let container = |name: &str, image: &str, policy: &str| {
            json!({
                "name": name, "image": image, "imagePullPolicy": policy,
                "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
            })
        };
        let mut first = container("a", "host:5000/i", "Always");
        for (field, value) in [
            (
                "ports",
                json!([{"containerPort": 1, "protocol": "TCP"}, {"containerPort": 2, "protocol": "UDP"}]),
            ),
            (
                "env",
                json!([{"name": "E", "valueFrom": {"fieldRef": {"fieldPath": "x", "apiVersion": "v1"}}}]),
            ),
            (
                "livenessProbe",
                json!({"httpGet": {"port": 1, "path": "/", "scheme": "HTTP"}, "periodSeconds": 5,
                    "timeoutSeconds": 1, "successThreshold": 1, "failureThreshold": 3}),
            ),
            (
                "readinessProbe",
                json!({"grpc": {"port": 1, "service": ""}, "periodSeconds": 10,
                    "timeoutSeconds": 1, "successThreshold": 1, "failureThreshold": 3}),
            ),
            (
                "lifecycle",
                json!({"preStop": {"httpGet": {"port": 1, "path": "/x", "scheme": "HTTP"}}}),
            ),
        ] {
            first[field] = value;
        }
        let downward = json!({"items": [{
            "path": "l", "fieldRef": {"fieldPath": "x", "apiVersion": "v1"},
        }]});
        let expected = json!({
            "metadata": {"labels": {"a": "b"}},
            "spec": {
                "containers": [first, container("b", "i:1", "Never")],
                "initContainers": [container("c", "i@sha256:0", "IfNotPresent")],
                "volumes": [
                    {"name": "e", "emptyDir": {}},
                    {"name": "s", "secret": {"secretName": "s", "defaultMode": 420}},
                    {"name": "p", "projected": {"defaultMode": 420, "sources": [
                        {"serviceAccountToken": {"path": "t", "expirationSeconds": 3600}},
                        {"downwardAPI": downward},
                    ]}},
                    {"name": "h", "hostPath": {"path": "/", "type": ""}},
                    {"name": "i", "image": {
                        "reference": "i:latest@sha256:0", "pullPolicy": "Always",
                    }},
                    {"name": "x", "ephemeral": {"volumeClaimTemplate": {
                        "spec": {"volumeMode": "Filesystem"},
                    }}},
                ],
                "restartPolicy": "OnFailure", "dnsPolicy": "ClusterFirst", "securityContext": {},
                "terminationGracePeriodSeconds": 30, "schedulerName": "default-scheduler",
            },
        });
        assert_eq!(template, expected);
        complete_pod_template(&mut template);
        assert_eq!(template, expected, "a second time changes nothing");
        let mut odd = json!({"spec": {"containers": [null, 7], "volumes": "x"}});
        complete_pod_template(&mut odd);
    }

    #[test]
    fn images_without_tag_are_the_latest() {
        for (image, latest) in [
            ("i", true),
            ("i:latest", true),
            ("h:5000/i", true),
            ("h:5000/i:1", false),
            ("i@sha256:0", false),
            ("i:latest@sha256:0", true),
            ("i:1@sha256:0", false),
        ] {
            assert_eq!(takes_latest(image), latest, "{image}");
        }
    }
}
