//! The Secrets that a pod names. Upstream: `podutil.VisitPodSecretNames`.

use std::collections::{BTreeMap, HashSet};

use serde::Deserialize;

use crate::objects::{Pod, Resource, ResourceType, null_as_default};

/// The parts of a pod that name Secrets.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct PodSecrets {
    #[serde(deserialize_with = "null_as_default")]
    spec: Spec,
}

impl Resource for PodSecrets {
    const RESOURCE: ResourceType = Pod::RESOURCE;
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    #[serde(deserialize_with = "null_as_default")]
    image_pull_secrets: Vec<SecretReference>,
    #[serde(deserialize_with = "null_as_default")]
    containers: Vec<Container>,
    #[serde(deserialize_with = "null_as_default")]
    init_containers: Vec<Container>,
    #[serde(deserialize_with = "null_as_default")]
    ephemeral_containers: Vec<Container>,
    #[serde(deserialize_with = "null_as_default")]
    volumes: Vec<Volume>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct SecretReference {
    #[serde(deserialize_with = "null_as_default")]
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Container {
    #[serde(deserialize_with = "null_as_default")]
    env: Vec<EnvVar>,
    #[serde(deserialize_with = "null_as_default")]
    env_from: Vec<EnvFromSource>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct EnvVar {
    value_from: Option<EnvVarSource>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct EnvVarSource {
    secret_key_ref: Option<SecretReference>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct EnvFromSource {
    secret_ref: Option<SecretReference>,
}

/// The source of a volume, under the name of its kind.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Volume {
    #[serde(rename = "name", deserialize_with = "null_as_default")]
    _name: String,
    #[serde(flatten)]
    source: BTreeMap<String, Option<VolumeSource>>,
}

/// The places in which some kind of volume names a Secret.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct VolumeSource {
    #[serde(deserialize_with = "null_as_default")]
    secret_name: String,
    secret_ref: Option<SecretReference>,
    node_publish_secret_ref: Option<SecretReference>,
    /// `null` in a projected volume without sources.
    #[serde(deserialize_with = "null_as_default")]
    sources: Vec<ProjectedSource>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ProjectedSource {
    secret: Option<SecretReference>,
}

impl PodSecrets {
    /// Returns the names of the Secrets that the pod refers to, each once.
    pub fn names(self) -> HashSet<String> {
        let mut names = HashSet::new();
        let Spec { image_pull_secrets, containers, init_containers, ephemeral_containers, volumes } =
            self.spec;
        names.extend(image_pull_secrets.into_iter().map(|secret| secret.name));
        for container in containers.into_iter().chain(init_containers).chain(ephemeral_containers) {
            for secret in container.env.into_iter().filter_map(|env| env.value_from?.secret_key_ref)
            {
                names.insert(secret.name);
            }
            for secret in container.env_from.into_iter().filter_map(|source| source.secret_ref) {
                names.insert(secret.name);
            }
        }
        for source in volumes.into_iter().flat_map(|volume| volume.source.into_values()).flatten() {
            names.insert(source.secret_name);
            names.extend(source.secret_ref.map(|secret| secret.name));
            names.extend(source.node_publish_secret_ref.map(|secret| secret.name));
            for secret in source.sources.into_iter().filter_map(|projected| projected.secret) {
                names.insert(secret.name);
            }
        }
        // A reference without a name names no Secret.
        names.remove("");
        names
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_place_that_can_name_a_secret_is_read() {
        let container = |n: u32| {
            json!({
                "name": "c", "image": "i",
                "env": [
                    { "name": "PLAIN", "value": "x" },
                    { "name": "FIELD", "valueFrom": { "fieldRef": { "fieldPath": "a" } } },
                    { "name": "S", "valueFrom": { "secretKeyRef": { "name": format!("env-{n}"), "key": "k" } } },
                ],
                "envFrom": [{ "configMapRef": { "name": "no" } }, { "secretRef": { "name": format!("all-{n}") } }],
            })
        };
        let pod = json!({ "spec": {
            "imagePullSecrets": [{ "name": "pull" }, {}],
            "containers": [container(1)], "initContainers": [container(2)],
            "ephemeralContainers": [container(3)],
            "volumes": [
                { "name": "no", "emptyDir": {} },
                { "name": "no", "projected": { "sources": null, "defaultMode": 420 } },
                { "name": "no", "configMap": { "name": "no", "items": [{ "key": "k", "path": "p" }] } },
                { "name": "a", "secret": { "secretName": "volume", "defaultMode": 420 } },
                { "name": "b", "csi": { "driver": "d", "nodePublishSecretRef": { "name": "csi" } } },
                { "name": "c", "iscsi": { "lun": 1, "secretRef": { "name": "iscsi" } } },
                { "name": "d", "projected": { "sources": [
                    { "serviceAccountToken": { "path": "token" } }, { "secret": { "name": "part" } },
                ] } },
            ],
        } });
        let mut names: Vec<String> =
            serde_json::from_value::<PodSecrets>(pod).unwrap().names().into_iter().collect();
        names.sort();
        let mut expected = vec!["pull", "volume", "csi", "iscsi", "part"];
        expected.extend(["env-1", "env-2", "env-3", "all-1", "all-2", "all-3"]);
        expected.sort_unstable();
        assert_eq!(names, expected);
        assert!(serde_json::from_value::<PodSecrets>(json!({})).unwrap().names().is_empty());
    }
}
