//! The files of configMap, secret, downwardAPI and projected volumes.
//! Upstream: `MakePayload`, `CollectData`, `collectData`.

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1 as core;

use super::atomic::{File, Payload};
use super::{Error, fs_group};
use crate::objects::{Contents, Credentials, Kind, PodObjects};
use crate::pod::{Pod, PodExt};
use crate::runtime::environment::{DownwardInputs, pod_field, resource_field};

/// The mode of files for which nothing names one.
const DEFAULT_MODE: i32 = 0o644;

/// A volume whose files are written by the kubelet.
pub struct Written {
    /// The name of its folder among the pod's volumes. Upstream: the plugin's name.
    pub kind: &'static str,
    /// Whether it must not reach a disk.
    pub in_memory: bool,
    pub files: Payload,
}

/// Returns the name of the plugin's folder for a volume whose files the kubelet writes. `None`: the
/// volume is of another kind.
pub fn kind_of(volume: &core::Volume) -> Option<&'static str> {
    match volume {
        volume if volume.config_map.is_some() => Some("configmap"),
        volume if volume.secret.is_some() => Some("secret"),
        volume if volume.downward_api.is_some() => Some("downward-api"),
        volume if volume.projected.is_some() => Some("projected"),
        _ => None,
    }
}

/// Builds the files of a volume that the kubelet writes; `None`: it is of another kind.
///
/// # Errors
/// What is missing.
pub fn build(
    pod: &Pod,
    volume: &core::Volume,
    objects: &PodObjects,
    inputs: DownwardInputs<'_>,
) -> Result<Option<Written>, Error> {
    let Some(kind) = kind_of(volume) else { return Ok(None) };
    let files = if let Some(map) = &volume.config_map {
        let source = Source {
            kind: Kind::ConfigMap,
            name: &map.name,
            items: map.items.as_deref(),
            optional: map.optional,
            mode: map.default_mode,
        };
        source.files(pod, objects)?
    } else if let Some(secret) = &volume.secret {
        let source = Source {
            kind: Kind::Secret,
            name: secret.secret_name.as_deref().unwrap_or_default(),
            items: secret.items.as_deref(),
            optional: secret.optional,
            mode: secret.default_mode,
        };
        source.files(pod, objects)?
    } else if let Some(downward) = &volume.downward_api {
        downward_files(pod, downward.items.as_deref(), downward.default_mode, inputs)?
    } else {
        let projected = volume.projected.as_ref();
        let mode = projected.and_then(|projected| projected.default_mode);
        let sources = projected.and_then(|projected| projected.sources.as_deref());
        let sources = sources.unwrap_or_default();
        projected_files(pod, &volume.name, sources, mode, objects, inputs)?
    };
    Ok(Some(Written { kind, in_memory: kind != "configmap", files }))
}

/// Builds the files of a projected volume from all its sources. Of files with the same path the
/// last one counts.
fn projected_files(
    pod: &Pod,
    volume: &str,
    sources: &[core::VolumeProjection],
    mode: Option<i32>,
    objects: &PodObjects,
    inputs: DownwardInputs<'_>,
) -> Result<Payload, Error> {
    let (mut files, mut faults) = (Payload::new(), Vec::new());
    for (at, source) in sources.iter().enumerate() {
        let of_source = if let Some(map) = &source.config_map {
            let (items, optional) = (map.items.as_deref(), map.optional);
            Source { kind: Kind::ConfigMap, name: &map.name, items, optional, mode }
                .files(pod, objects)
        } else if let Some(secret) = &source.secret {
            let (items, optional) = (secret.items.as_deref(), secret.optional);
            Source { kind: Kind::Secret, name: &secret.name, items, optional, mode }
                .files(pod, objects)
        } else if let Some(downward) = &source.downward_api {
            downward_files(pod, downward.items.as_deref(), mode, inputs)
        } else if let Some(token) = &source.service_account_token {
            token_file(pod, token, mode, objects)
        } else if let Some(bundle) = &source.cluster_trust_bundle {
            bundle_file(pod, bundle, mode, objects)
        } else if let Some(certificate) = &source.pod_certificate {
            match objects.certificate(volume, at) {
                Ok(credentials) => Ok(certificate_files(pod, certificate, mode, credentials)),
                Err(error) => Err(Error::NoObject(error)),
            }
        } else {
            Err(Error::UnsupportedSource)
        };
        match of_source {
            Ok(more) => files.extend(more),
            Err(fault) => faults.push(fault),
        }
    }
    match faults.is_empty() {
        true => Ok(files),
        false => Err(Error::Several(faults)),
    }
}

/// A ConfigMap or Secret of a volume.
struct Source<'a> {
    kind: Kind,
    name: &'a str,
    items: Option<&'a [core::KeyToPath]>,
    optional: Option<bool>,
    mode: Option<i32>,
}

impl Source<'_> {
    /// Builds the files of a ConfigMap or Secret: those of its items, else all. An optional object
    /// that does not exist has none.
    fn files(&self, pod: &Pod, objects: &PodObjects) -> Result<Payload, Error> {
        let is_optional = self.optional == Some(true);
        let none = Contents::default();
        let contents = match objects.get(self.kind, pod.namespace(), self.name) {
            Ok(contents) => contents,
            Err(error) if is_optional && error.is_not_found() => &none,
            Err(error) => return Err(Error::NoObject(error)),
        };
        let items = self.items.unwrap_or_default();
        if items.is_empty() {
            let all = contents.data.iter().chain(&contents.binary_data);
            return Ok(all
                .map(|(key, data)| (PathBuf::from(key), file(data, None, self.mode)))
                .collect());
        }
        let mut files = Payload::new();
        for item in items {
            match contents.bytes(&item.key) {
                Some(data) => {
                    files.insert(clean(&item.path), file(data, item.mode, self.mode));
                }
                None if is_optional => {}
                None => {
                    let (kind, key) = (self.kind, item.key.clone());
                    return Err(Error::NoKey { kind, key });
                }
            }
        }
        Ok(files)
    }
}

/// Makes a file with the mode of its item, else the default one of its volume.
fn file(data: &[u8], own: Option<i32>, default: Option<i32>) -> File {
    let mode = own.or(default).unwrap_or(DEFAULT_MODE);
    File { data: data.to_vec(), mode: mode.unsigned_abs() & 0o777, owner: None }
}

/// Builds the file of a token.
fn token_file(
    pod: &Pod,
    source: &core::ServiceAccountTokenProjection,
    mode: Option<i32>,
    objects: &PodObjects,
) -> Result<Payload, Error> {
    let token = objects.token(source).map_err(Error::NoObject)?;
    let file = private_file(pod, token.as_bytes(), mode);
    Ok(Payload::from([(clean(&source.path), file)]))
}

/// Builds the files of a certificate: the key, the chain, and a bundle of the key and then the
/// chain, those that the source names.
fn certificate_files(
    pod: &Pod,
    source: &core::PodCertificateProjection,
    mode: Option<i32>,
    Credentials { key, chain }: &Credentials,
) -> Payload {
    let named = [
        (&source.credential_bundle_path, [&**key, &**chain].concat()),
        (&source.key_path, key.to_string()),
        (&source.certificate_chain_path, chain.to_string()),
    ];
    let file = |(path, text): (&Option<String>, String)| {
        let path = path.as_deref().filter(|path| !path.is_empty())?;
        Some((clean(path), private_file(pod, text.as_bytes(), mode)))
    };
    named.into_iter().filter_map(file).collect()
}

/// Builds the file of ClusterTrustBundles, which is empty where an optional source selects none.
fn bundle_file(
    pod: &Pod,
    source: &core::ClusterTrustBundleProjection,
    mode: Option<i32>,
    objects: &PodObjects,
) -> Result<Payload, Error> {
    let anchors = objects.trust_anchors(source).map_err(Error::NoObject)?;
    Ok(Payload::from([(clean(&source.path), private_file(pod, anchors.as_bytes(), mode))]))
}

/// Makes a file for the pod's containers alone. If all of them have one user, only this user can
/// read it; if the pod has an `fsGroup`, the group too.
fn private_file(pod: &Pod, data: &[u8], mode: Option<i32>) -> File {
    let owner = common_user(pod);
    // `atomic::write` adds the group's bits when it gives the file to the group.
    let mode = if owner.is_some() || fs_group(pod).is_some() { Some(0o600) } else { mode };
    File { owner, ..file(data, None, mode) }
}

/// Returns the user that all containers have; `None`: they have several, or one does not name its
/// user. Upstream: `FsUserFrom`.
fn common_user(pod: &Pod) -> Option<u32> {
    let of_pod = pod.spec().security_context.as_ref().and_then(|context| context.run_as_user);
    let mut users = pod.all_containers().map(|container| {
        let own = container.security_context.as_ref().and_then(|context| context.run_as_user);
        own.or(of_pod)
    });
    let first = users.next()??;
    users.all(|user| user == Some(first)).then(|| u32::try_from(first).ok())?
}

/// Returns the path without `.` and doubled slashes; `..` stays, and is refused when it is written.
fn clean(path: &str) -> PathBuf {
    Path::new(path).components().filter(|part| part.as_os_str() != ".").collect()
}

/// Builds the files of a downward API volume, or of such a source of a projected one.
fn downward_files(
    pod: &Pod,
    items: Option<&[core::DownwardAPIVolumeFile]>,
    mode: Option<i32>,
    inputs: DownwardInputs<'_>,
) -> Result<Payload, Error> {
    let mut files = Payload::new();
    for item in items.unwrap_or_default() {
        let text = if let Some(field) = &item.field_ref {
            pod_field(pod, &field.field_path, inputs).map_err(Error::NoValue)?
        } else if let Some(resource) = &item.resource_field_ref {
            let name = resource.container_name.as_deref().unwrap_or_default();
            let container =
                pod.container(name).ok_or_else(|| Error::NoContainer(name.to_owned()))?;
            resource_field(pod, container, resource, inputs).map_err(Error::NoValue)?
        } else {
            // As upstream: an item that refers to nothing is an empty file.
            String::new()
        };
        files.insert(clean(&item.path), file(text.as_bytes(), item.mode, mode));
    }
    Ok(files)
}

/// Lists the folders that have to exist in a volume so that containers can mount other volumes
/// below it: they cannot be made later, as the volume is read-only for containers. Upstream:
/// `getNestedMountpoints`.
pub fn nested(pod: &Pod, volume: &str) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for container in pod.all_containers() {
        let mounts = || container.volume_mounts.iter().flatten();
        let is_whole = |mount: &&core::VolumeMount| {
            mount.sub_path.as_deref().is_none_or(str::is_empty)
                && mount.sub_path_expr.as_deref().is_none_or(str::is_empty)
        };
        for own in mounts().filter(|mount| mount.name == volume).filter(is_whole) {
            for other in mounts().filter(|mount| mount.name != volume) {
                let below = Path::new(&other.mount_path).strip_prefix(&own.mount_path);
                let below = below.map(Path::to_owned).unwrap_or_default();
                let is_fine = below.iter().all(|part| !part.as_encoded_bytes().starts_with(b".."));
                if below.as_os_str().is_empty() || !is_fine || folders.contains(&below) {
                    continue;
                }
                folders.push(below);
            }
        }
    }
    folders.sort();
    folders
}

#[cfg(test)]
mod tests {
    use kube_controller_manager::client::pem;
    use serde_json::{Value, json};

    use super::*;
    use crate::causes::chain;
    use crate::node::own::OwnNode;
    use crate::objects::Unavailable;

    const MAP: &str =
        "{apiVersion: v1, kind: ConfigMap, metadata: {name: m}, data: {a: '1', b: '2'}}";
    const SECRET: &str =
        "{apiVersion: v1, kind: Secret, metadata: {name: s}, stringData: {c: '3'}}";

    fn token(source: &Value) -> core::ServiceAccountTokenProjection {
        serde_json::from_value(source.clone()).expect("a source")
    }

    /// A pod with a volume, and the volume.
    fn pod_with(volume: &Value, security: &Value, containers: &Value) -> (Pod, core::Volume) {
        let mut named = volume.clone();
        named["name"] = json!("v");
        let pod = json!({
            "metadata": {"name": "p", "namespace": "default"},
            "spec": {"containers": containers, "securityContext": security, "volumes": [named]},
        });
        let pod: Pod = serde_json::from_value(pod).expect("a pod");
        let volume = pod.spec().volumes.iter().flatten().next().expect("a volume").clone();
        (pod, volume)
    }

    fn files(pod: &Pod, volume: &core::Volume, objects: &PodObjects) -> Result<String, String> {
        let node = OwnNode::for_tests("2", "1", "");
        let inputs = DownwardInputs { node: &node, pod_ips: &[] };
        let written = build(pod, volume, objects, inputs).map_err(|error| chain(&error))?;
        Ok(shown(written.expect("a volume of files").files))
    }

    fn shown(files: Payload) -> String {
        let show = |(path, file): (PathBuf, File)| {
            let text = String::from_utf8(file.data).expect("text");
            let owner = file.owner.map(|owner| format!(" {owner}")).unwrap_or_default();
            format!("{} {text} {:o}{owner}", path.display(), file.mode)
        };
        files.into_iter().map(show).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn files_come_from_objects_and_the_pod() {
        let items = |mode: Value| json!([{"key": "a", "path": "x/./y", "mode": mode}]);
        let missing = json!([{"key": "z", "path": "z"}, {"key": "a", "path": "a"}]);
        for (volume, expected) in [
            (json!({"configMap": {"name": "m"}}), Ok("a 1 644, b 2 644")),
            (
                json!({"configMap": {"name": "m", "defaultMode": 0o400, "items": items(json!(null))}}),
                Ok("x/y 1 400"),
            ),
            (json!({"configMap": {"name": "m", "items": items(json!(0o444))}}), Ok("x/y 1 444")),
            (json!({"configMap": {"name": "n"}}), Err("configmap \"n\" not found")),
            (json!({"configMap": {"name": "n", "optional": true}}), Ok("")),
            (
                json!({"configMap": {"name": "m", "items": missing}}),
                Err("configmap references non-existent config key: z"),
            ),
            (
                json!({"configMap": {"name": "m", "items": missing, "optional": true}}),
                Ok("a 1 644"),
            ),
            (json!({"secret": {"secretName": "s"}}), Ok("c 3 644")),
            (
                json!({"secret": {"secretName": "s", "items": missing}}),
                Err("references non-existent secret key: z"),
            ),
            (
                json!({"downwardAPI": {"items": [
                    {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}},
                    {"path": "cpu", "mode": 0o600, "resourceFieldRef":
                        {"containerName": "c", "resource": "limits.cpu"}}]}}),
                Ok("cpu 2 600, name p 644"),
            ),
            (
                json!({"projected": {"defaultMode": 0o640, "sources": [
                    {"configMap": {"name": "m"}},
                    {"secret": {"name": "s", "items": [{"key": "c", "path": "b"}]}},
                    {"downwardAPI": {"items": [
                        {"path": "d", "fieldRef": {"fieldPath": "metadata.name"}}]}}]}}),
                Ok("a 1 640, b 3 640, d p 640"),
            ),
            (
                json!({"projected": {"sources": [
                    {"configMap": {"name": "n"}}, {"secret": {"name": "t"}}]}}),
                Err("[configmap \"n\" not found, secret \"t\" not found]"),
            ),
        ] {
            let (pod, named) = pod_with(&volume, &json!({}), &json!([{"name": "c"}]));
            let found = files(&pod, &named, &PodObjects::for_tests(&pod, &[MAP, SECRET]));
            assert_eq!(found.as_deref().map_err(String::as_str), expected, "{volume}");
        }
    }

    #[test]
    fn optional_objects_are_waited_for() {
        let waits =
            |kind| format!("failed to sync {kind} cache: timed out waiting for the condition");
        for (volume, kind) in [
            (json!({"configMap": {"name": "m", "optional": true}}), "configmap"),
            (json!({"secret": {"secretName": "s", "optional": true}}), "secret"),
            (
                json!({"projected": {"sources": [{"secret": {"name": "s", "optional": true}}]}}),
                "secret",
            ),
        ] {
            let (pod, named) = pod_with(&volume, &json!({}), &json!([{"name": "c"}]));
            assert_eq!(files(&pod, &named, &PodObjects::not_yet(&pod)), Err(waits(kind)));
        }
    }

    #[test]
    fn token_is_readable_for_the_user_of_all_containers() {
        let source = json!({"path": "a/token", "audience": "x", "expirationSeconds": 600});
        let volume = json!({"projected": {"defaultMode": 0o644, "sources": [{"serviceAccountToken": source}]}});
        let user = |user: Value| json!({"name": "c", "securityContext": {"runAsUser": user}});
        for (security, containers, expected) in [
            (json!({}), json!([{"name": "c"}]), "a/token t 644"),
            (json!({"runAsUser": 7}), json!([{"name": "c"}]), "a/token t 600 7"),
            (json!({"runAsUser": 7}), json!([user(json!(8)), user(json!(8))]), "a/token t 600 8"),
            (json!({"runAsUser": 7}), json!([user(json!(7)), user(json!(8))]), "a/token t 644"),
            (json!({}), json!([user(json!(7)), {"name": "d"}]), "a/token t 644"),
            (json!({"fsGroup": 9}), json!([{"name": "c"}]), "a/token t 600"),
            (json!({"fsGroup": 9, "runAsUser": 7}), json!([{"name": "c"}]), "a/token t 600 7"),
        ] {
            let (pod, named) = pod_with(&volume, &security, &containers);
            let objects = PodObjects::default().with_token(&token(&source), "t");
            assert_eq!(files(&pod, &named, &objects).as_deref(), Ok(expected), "{security}");
        }
        let (pod, named) = pod_with(&volume, &json!({}), &json!([]));
        let other = token(&json!({"path": "token"}));
        let objects = PodObjects::default().with_token(&other, "t");
        let fault = "cannot use TokenManager when kubelet is in standalone mode";
        assert_eq!(files(&pod, &named, &objects), Err(fault.to_owned()));
    }

    #[test]
    fn certificate_has_the_files_that_its_source_names() {
        let all = json!({"credentialBundlePath": "b/./undle", "keyPath": "key",
                         "certificateChainPath": "chain", "signerName": "s", "keyType": "ED25519"});
        let bundle = json!({"credentialBundlePath": "bundle", "keyPath": ""});
        let issued = || Ok(Credentials { key: "K;".into(), chain: "C;D;".into() });
        let three = "b/undle K;C;D; 644, chain C;D; 644, key K; 644";
        for (source, security, known, expected) in [
            (&all, json!({}), issued(), Ok(three)),
            (&bundle, json!({"runAsUser": 7}), issued(), Ok("bundle K;C;D; 600 7")),
            (&bundle, json!({"fsGroup": 9}), issued(), Ok("bundle K;C;D; 600")),
            (
                &all,
                json!({}),
                Err(Unavailable::CertificateNotYet),
                Err("credential bundle is not issued yet"),
            ),
        ] {
            let sources = json!([{"downwardAPI": {}}, {"podCertificate": source}]);
            let volume = json!({"projected": {"sources": sources}});
            let (pod, named) = pod_with(&volume, &security, &json!([{"name": "c"}]));
            let objects = PodObjects::default().with_certificate("v", 1, known);
            let found = files(&pod, &named, &objects);
            assert_eq!(found.as_deref().map_err(String::as_str), expected, "{source}");
            // A source that is not known yet is waited for.
            let known = Err(Unavailable::CertificateNotYet);
            let other = PodObjects::default().with_certificate("v", 0, known);
            let not_yet = "credential bundle is not issued yet".to_owned();
            assert_eq!(files(&pod, &named, &other), Err(not_yet));
            // While the gate is off there is nothing of it.
            let without = files(&pod, &named, &PodObjects::default());
            assert_eq!(without, Err("unimplemented".to_owned()));
        }
    }

    #[test]
    fn bundle_is_a_file_as_a_token_is() {
        let anchor = pem::certificate_text(b"ca");
        let bundle = json!({"metadata": {"name": "b"}, "spec": {"trustBundle": anchor}});
        let absent = "while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io \
                      \"n\" not found";
        for (source, security, expected) in [
            (json!({"name": "b", "path": "a/./ca"}), json!({}), Ok(format!("a/ca {anchor} 440"))),
            (
                json!({"name": "b", "path": "ca"}),
                json!({"runAsUser": 7}),
                Ok(format!("ca {anchor} 600 7")),
            ),
            (
                json!({"name": "b", "path": "ca"}),
                json!({"fsGroup": 9}),
                Ok(format!("ca {anchor} 600")),
            ),
            (
                json!({"name": "n", "path": "ca", "optional": true}),
                json!({}),
                Ok("ca  440".to_owned()),
            ),
            (json!({"name": "n", "path": "ca"}), json!({}), Err(absent.to_owned())),
        ] {
            let volume = json!({"projected": {
                "defaultMode": 0o440, "sources": [{"clusterTrustBundle": source}]}});
            let (pod, named) = pod_with(&volume, &security, &json!([{"name": "c"}]));
            let objects = PodObjects::default().with_bundles(std::slice::from_ref(&bundle));
            assert_eq!(files(&pod, &named, &objects), expected, "{source} {security}");
            let unsupported =
                "ClusterTrustBundle projection is not supported in static kubelet mode";
            let found = files(&pod, &named, &PodObjects::for_tests(&pod, &[]));
            assert_eq!(found, Err(unsupported.to_owned()), "{source}");
        }
    }

    #[test]
    fn folders_are_made_for_volumes_that_lie_within() {
        let pod: Pod = serde_json::from_value(json!({"spec": {"containers": [
            {"name": "a", "volumeMounts": [
                {"name": "v", "mountPath": "/etc/v"},
                {"name": "w", "mountPath": "/etc/v/w"},
                {"name": "x", "mountPath": "/etc/v/x/y"},
                {"name": "o", "mountPath": "/etc/vo"},
                {"name": "d", "mountPath": "/etc/v/..data"}]},
            {"name": "b", "volumeMounts": [
                {"name": "v", "mountPath": "/z", "subPath": "s"},
                {"name": "w", "mountPath": "/z/w2"}]},
        ]}}))
        .expect("a pod");
        assert_eq!(nested(&pod, "v"), [Path::new("w"), Path::new("x/y")]);
        assert!(nested(&pod, "w").is_empty());
    }
}
