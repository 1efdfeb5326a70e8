//! The Secrets that a pod names. Upstream: `podutil.VisitPodSecretNames`.

use std::collections::{BTreeMap, HashSet};

use serde::Deserialize;

use crate::objects::{Pod, Resource, ResourceType, null_as_default};

/// The parts of a pod that name Secrets.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Mounts {
    #[serde(deserialize_with = "null_as_default")]
    spec: Spec,
}

impl Resource for Mounts {
    const RESOURCE: ResourceType = Pod::RESOURCE;
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    #[serde(deserialize_with = "null_as_default")]
    image_pull_secrets: Vec<Reference>,
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
struct Reference {
    #[serde(deserialize_with = "null_as_default")]
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Container {
    #[serde(deserialize_with = "null_as_default")]
    env: Vec<Variable>,
    #[serde(deserialize_with = "null_as_default")]
    env_from: Vec<Variables>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Variable {
    value_from: Option<ValueFrom>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ValueFrom {
    secret_key_ref: Option<Reference>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Variables {
    secret_ref: Option<Reference>,
}

/// The source of a volume, under the name of its kind.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Volume {
    #[serde(rename = "name", deserialize_with = "null_as_default")]
    _name: String,
    #[serde(flatten)]
    source: BTreeMap<String, Option<Source>>,
}

/// The places in which some kind of volume names a Secret.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Source {
    #[serde(deserialize_with = "null_as_default")]
    secret_name: String,
    secret_ref: Option<Reference>,
    node_publish_secret_ref: Option<Reference>,
    /// `null` in a projected volume without sources.
    #[serde(deserialize_with = "null_as_default")]
    sources: Vec<Projected>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Projected {
    secret: Option<Reference>,
}

impl Mounts {
    pub fn names(self) -> HashSet<String> {
        let mut names = HashSet::new();
        let mut put = |name: String| {
            if !name.is_empty() {
                names.insert(name);
            }
        };
        let Spec { image_pull_secrets, containers, init_containers, ephemeral_containers, volumes } =
            self.spec;
        image_pull_secrets.into_iter().for_each(|secret| put(secret.name));
        for container in containers.into_iter().chain(init_containers).chain(ephemeral_containers) {
            let single = container.env.into_iter().filter_map(|v| v.value_from?.secret_key_ref);
            let whole = container.env_from.into_iter().filter_map(|v| v.secret_ref);
            single.chain(whole).for_each(|secret| put(secret.name));
        }
        for source in volumes.into_iter().flat_map(|volume| volume.source.into_values()).flatten() {
            put(source.secret_name);
            let projected = source.sources.into_iter().filter_map(|part| part.secret);
            let named = source.secret_ref.into_iter().chain(source.node_publish_secret_ref);
            named.chain(projected).for_each(|secret| put(secret.name));
        }
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
            serde_json::from_value::<Mounts>(pod).unwrap().names().into_iter().collect();
        names.sort();
        let mut wanted = vec!["pull", "volume", "csi", "iscsi", "part"];
        wanted.extend(["env-1", "env-2", "env-3", "all-1", "all-2", "all-3"]);
        wanted.sort_unstable();
        assert_eq!(names, wanted);
        assert!(serde_json::from_value::<Mounts>(json!({})).unwrap().names().is_empty());
    }
}
