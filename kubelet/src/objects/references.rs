//! The objects and tokens that a pod refers to. Upstream: `VisitPodConfigmapNames`,
//! `VisitPodSecretNames`.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1 as core;

use super::tokens::TokenSpec;
use super::{Key, Kind};
use crate::pod::{Container, Pod, PodExt};

/// What a pod needs its objects for.
#[derive(Clone, Copy)]
pub enum Use<'a> {
    /// The files of its volumes.
    Volumes,
    /// The variables of a container.
    Variables(&'a Container),
    /// Credentials for its images.
    Pulls,
}

/// A kind and a name in the pod's namespace.
type Name<'a> = (Kind, &'a str);

impl Use<'_> {
    /// Returns the keys of the objects that a pod refers to for this use.
    pub(super) fn keys(self, pod: &Pod) -> BTreeSet<Key> {
        let names = match self {
            Use::Volumes => of_volumes(pod),
            Use::Variables(container) => {
                of_variables(container.env.as_deref(), container.env_from.as_deref())
            }
            Use::Pulls => of_pulls(pod),
        };
        keys(pod, names)
    }

    /// Returns whether a pod needs ClusterTrustBundles for this use.
    pub(super) fn needs_bundles(self, pod: &Pod) -> bool {
        match self {
            Use::Volumes => needs_bundles(pod),
            Use::Variables(_) | Use::Pulls => false,
        }
    }

    /// Returns the tokens that a pod needs for this use.
    pub(super) fn tokens(self, pod: &Pod) -> BTreeSet<TokenSpec> {
        match self {
            Use::Volumes => projections(pod)
                .filter_map(|source| source.service_account_token.as_ref())
                .map(TokenSpec::of)
                .collect(),
            Use::Variables(_) | Use::Pulls => BTreeSet::new(),
        }
    }
}

/// Lists all objects that a pod refers to.
pub fn references(pod: &Pod) -> BTreeSet<Key> {
    let spec = pod.spec();
    let mut names = [of_volumes(pod), of_pulls(pod)].concat();
    for container in pod.all_containers() {
        names.extend(of_variables(container.env.as_deref(), container.env_from.as_deref()));
    }
    for container in spec.ephemeral_containers.iter().flatten() {
        names.extend(of_variables(container.env.as_deref(), container.env_from.as_deref()));
    }
    let class = spec.runtime_class_name.iter().filter(|name| !name.is_empty());
    names.extend(class.map(|name| (Kind::RuntimeClass, name.as_str())));
    keys(pod, names)
}

/// Returns the keys of these names, in the pod's namespace or in none.
fn keys(pod: &Pod, names: Vec<Name<'_>>) -> BTreeSet<Key> {
    let namespace = pod.namespace();
    let key = |(kind, name): Name<'_>| Key {
        kind,
        namespace: if kind == Kind::RuntimeClass { "" } else { namespace }.to_owned(),
        name: name.to_owned(),
    };
    // The API server lets references without a name through.
    names.into_iter().filter(|(_, name)| !name.is_empty()).map(key).collect()
}

/// Returns the ConfigMaps and Secrets that a container's variables refer to.
fn of_variables<'a>(
    variables: Option<&'a [core::EnvVar]>,
    from: Option<&'a [core::EnvFromSource]>,
) -> Vec<Name<'a>> {
    let mut names = Vec::new();
    for from in from.into_iter().flatten() {
        names.extend(from.config_map_ref.iter().map(|r| (Kind::ConfigMap, r.name.as_str())));
        names.extend(from.secret_ref.iter().map(|r| (Kind::Secret, r.name.as_str())));
    }
    let sources = variables.into_iter().flatten().filter_map(|env| env.value_from.as_ref());
    for from in sources {
        names.extend(from.config_map_key_ref.iter().map(|r| (Kind::ConfigMap, r.name.as_str())));
        names.extend(from.secret_key_ref.iter().map(|r| (Kind::Secret, r.name.as_str())));
    }
    names
}

/// Returns the ConfigMaps and Secrets that a pod's volumes refer to.
fn of_volumes(pod: &Pod) -> Vec<Name<'_>> {
    let mut names = Vec::new();
    for volume in pod.spec().volumes.iter().flatten() {
        names.extend(volume.config_map.iter().map(|r| (Kind::ConfigMap, r.name.as_str())));
        let secret = volume.secret.iter().filter_map(|source| source.secret_name.as_deref());
        names.extend(secret.map(|name| (Kind::Secret, name)));
        let publish = volume.csi.iter().filter_map(|csi| csi.node_publish_secret_ref.as_ref());
        names.extend(publish.map(|r| (Kind::Secret, r.name.as_str())));
    }
    for source in projections(pod) {
        names.extend(source.config_map.iter().map(|r| (Kind::ConfigMap, r.name.as_str())));
        names.extend(source.secret.iter().map(|r| (Kind::Secret, r.name.as_str())));
    }
    names
}

/// Returns whether a volume of the pod needs ClusterTrustBundles.
pub(super) fn needs_bundles(pod: &Pod) -> bool {
    projections(pod).any(|source| source.cluster_trust_bundle.is_some())
}

fn of_pulls(pod: &Pod) -> Vec<Name<'_>> {
    let secrets = pod.spec().image_pull_secrets.iter().flatten();
    secrets.map(|secret| (Kind::Secret, secret.name.as_str())).collect()
}

/// Returns the sources of all projected volumes.
fn projections(pod: &Pod) -> impl Iterator<Item = &core::VolumeProjection> {
    let volumes = pod.spec().volumes.iter().flatten();
    let projected = volumes.filter_map(|volume| volume.projected.as_ref());
    projected.flat_map(|volume| volume.sources.iter().flatten())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn references_are_found_in_variables_volumes_and_pull_secrets() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"namespace": "n"},
            "spec": {
                "runtimeClassName": "kata",
                "imagePullSecrets": [{"name": "pull"}, {"name": ""}],
                "initContainers": [{"name": "i", "envFrom": [
                    {"configMapRef": {"name": "a"}}, {"secretRef": {"name": "b"}}]}],
                "containers": [{"name": "c", "env": [
                    {"name": "E", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}},
                    {"name": "F", "valueFrom": {"secretKeyRef": {"name": "d", "key": "k"}}}]}],
                "ephemeralContainers": [{"name": "e", "env": [
                    {"name": "E", "valueFrom": {"configMapKeyRef": {"name": "i", "key": "k"}}}]}],
                "volumes": [
                    {"name": "1", "configMap": {"name": "e"}},
                    {"name": "2", "secret": {"secretName": "f"}},
                    {"name": "3", "csi": {"driver": "d", "nodePublishSecretRef": {"name": "j"}}},
                    {"name": "4", "projected": {"sources": [
                        {"configMap": {"name": "g"}}, {"secret": {"name": "h"}},
                        {"serviceAccountToken": {"path": "t", "audience": "x"}},
                        {"clusterTrustBundle": {"name": "k", "path": "b"}}]}},
                ],
            },
        }))
        .expect("a pod");
        let shown = |keys: &BTreeSet<Key>| -> String {
            let show = |key: &Key| format!("{:?} {}/{}", key.kind, key.namespace, key.name);
            keys.iter().map(show).collect::<Vec<_>>().join(", ")
        };
        for (keys, expected) in [
            (
                references(&pod),
                "ConfigMap n/a, ConfigMap n/c, ConfigMap n/e, ConfigMap n/g, ConfigMap n/i, \
                 Secret n/b, Secret n/d, Secret n/f, Secret n/h, Secret n/j, Secret n/pull, \
                 RuntimeClass /kata",
            ),
            (
                Use::Volumes.keys(&pod),
                "ConfigMap n/e, ConfigMap n/g, Secret n/f, Secret n/h, Secret n/j",
            ),
            (Use::Variables(&pod.spec().containers[0]).keys(&pod), "ConfigMap n/c, Secret n/d"),
            (Use::Pulls.keys(&pod), "Secret n/pull"),
        ] {
            assert_eq!(shown(&keys), expected);
        }
        let spec = TokenSpec { audience: "x".to_owned(), seconds: None, account_uid: None };
        assert_eq!(Use::Volumes.tokens(&pod), BTreeSet::from([spec]));
        assert!(Use::Pulls.tokens(&pod).is_empty());
        assert!(Use::Volumes.needs_bundles(&pod) && !Use::Pulls.needs_bundles(&pod));
    }
}
