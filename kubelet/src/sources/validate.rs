//! The rules of a pod that no API server has checked: those whose breach would reach the runtime or
//! another pod. Upstream: `validation.ValidatePodCreate`, `podutil.HasAPIObjectReference`.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1 as core;
use kube_controller_manager::objects::is_dns1123_subdomain;

use super::{enumerated, lifecycle, pod_resources, profiles, support};
use crate::pod::{Pod, PodExt, Uid, is_restartable_init};

/// Lists the faults of a pod, each with its field; empty: it can be run.
pub fn faults(pod: &Pod) -> Vec<String> {
    let mut faults = Faults::default();
    let name = pod.name();
    if !is_dns1123_subdomain(name) {
        faults.add("metadata.name", format!("Invalid value: {name:?}: not a DNS subdomain"));
    }
    if !is_dns1123_label(pod.namespace()) {
        let namespace = pod.namespace();
        faults.add("metadata.namespace", format!("Invalid value: {namespace:?}: not a DNS label"));
    }
    if Uid::of(pod).is_none() {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        faults.add("metadata.uid", format!("Invalid value: {uid:?}: not a plain name"));
    }
    let spec = pod.spec();
    if spec.containers.is_empty() {
        faults.add("spec.containers", "Required value");
    }
    if spec.termination_grace_period_seconds.is_some_and(|seconds| seconds < 0) {
        faults.add("spec.terminationGracePeriodSeconds", "must be greater than or equal to 0");
    }
    if spec.active_deadline_seconds.is_some_and(|seconds| seconds < 1) {
        faults.add("spec.activeDeadlineSeconds", "must be greater than 0");
    }
    let volumes = faults.check_volumes(spec);
    let mut names = BTreeSet::new();
    for (list, containers) in
        [("initContainers", pod.init_containers()), ("containers", &spec.containers[..])]
    {
        for (at, container) in containers.iter().enumerate() {
            let field = format!("spec.{list}[{at}]");
            if !names.insert(container.name.as_str()) {
                faults
                    .add(format!("{field}.name"), format!("Duplicate value: {:?}", container.name));
            }
            faults.check_container(&field, container, &volumes);
            faults.check_probes(&field, container);
            let grace = spec.termination_grace_period_seconds;
            faults.0.extend(lifecycle::faults(&field, container, grace));
            if list == "initContainers" && !is_restartable_init(container) {
                faults.check_no_probes(&field, container);
            }
        }
    }
    faults.0.extend(enumerated::faults(pod));
    faults.0.extend(profiles::faults(pod));
    faults.0.extend(pod_resources::faults(pod));
    faults.0.extend(support::refusals(pod));
    if spec.ephemeral_containers.as_ref().is_some_and(|containers| !containers.is_empty()) {
        faults.add("spec.ephemeralContainers", "Forbidden: cannot be set on create");
    }
    faults.0
}

/// The faults that were found so far, each with its field.
#[derive(Default)]
struct Faults(Vec<String>);

impl Faults {
    fn add(&mut self, field: impl AsRef<str>, fault: impl AsRef<str>) {
        self.0.push(format!("{}: {}", field.as_ref(), fault.as_ref()));
    }

    /// Checks the volumes of a pod, and returns their names.
    fn check_volumes<'a>(&mut self, spec: &'a core::PodSpec) -> BTreeSet<&'a str> {
        let mut names = BTreeSet::new();
        for (at, volume) in spec.volumes.iter().flatten().enumerate() {
            let field = format!("spec.volumes[{at}]");
            if !is_dns1123_label(&volume.name) {
                let name = &volume.name;
                self.add(
                    format!("{field}.name"),
                    format!("Invalid value: {name:?}: not a DNS label"),
                );
            }
            if !names.insert(volume.name.as_str()) {
                self.add(format!("{field}.name"), format!("Duplicate value: {:?}", volume.name));
            }
            if let Some(host_path) = &volume.host_path
                && host_path.path.split('/').any(|part| part == "..")
            {
                self.add(format!("{field}.hostPath.path"), "must not contain '..'");
            }
            if let Some(image) = &volume.image
                && image.reference.as_ref().is_none_or(String::is_empty)
            {
                self.add(format!("{field}.image.reference"), "Required value");
            }
        }
        names
    }

    /// Checks a container: its name, image, mounts, ports and variables.
    fn check_container(
        &mut self,
        field: &str,
        container: &core::Container,
        volumes: &BTreeSet<&str>,
    ) {
        if !is_dns1123_label(&container.name) {
            let name = &container.name;
            self.add(format!("{field}.name"), format!("Invalid value: {name:?}: not a DNS label"));
        }
        if container.image.as_deref().is_none_or(|image| image.trim().is_empty()) {
            self.add(format!("{field}.image"), "Required value");
        }
        let own = container.security_context.as_ref();
        let is_privileged = own.and_then(|own| own.privileged) == Some(true);
        let mut paths = BTreeSet::new();
        for (at, mount) in container.volume_mounts.iter().flatten().enumerate() {
            let field = format!("{field}.volumeMounts[{at}]");
            if !volumes.contains(mount.name.as_str()) {
                self.add(format!("{field}.name"), format!("Not found: {:?}", mount.name));
            }
            if mount.mount_path.is_empty() {
                self.add(format!("{field}.mountPath"), "Required value");
            }
            if !paths.insert(&mount.mount_path) {
                self.add(format!("{field}.mountPath"), "must be unique");
            }
            if mount.mount_propagation.as_deref() == Some("Bidirectional") && !is_privileged {
                self.add(
                    format!("{field}.mountPropagation"),
                    "Forbidden: Bidirectional mount propagation is available only to privileged \
                     containers",
                );
            }
            for path in [&mount.sub_path, &mount.sub_path_expr].into_iter().flatten() {
                if leads_out(path) {
                    self.add(format!("{field}.subPath"), "must be a relative path without '..'");
                }
            }
        }
        for (at, port) in container.ports.iter().flatten().enumerate() {
            let field = format!("{field}.ports[{at}]");
            for (name, port) in
                [("containerPort", Some(port.container_port)), ("hostPort", port.host_port)]
            {
                if port.is_some_and(|port| !(1..=65535).contains(&port)) {
                    self.add(format!("{field}.{name}"), "must be between 1 and 65535, inclusive");
                }
            }
        }
        for (at, env) in container.env.iter().flatten().enumerate() {
            if env.name.is_empty() || env.name.contains('=') {
                self.add(format!("{field}.env[{at}].name"), "Invalid value");
            }
            let from = env.value_from.as_ref().and_then(|from| from.file_key_ref.as_ref());
            for (name, given) in from.map_or(vec![], |from| {
                vec![("key", &from.key), ("path", &from.path), ("volumeName", &from.volume_name)]
            }) {
                let field = format!("{field}.env[{at}].valueFrom.fileKeyRef.{name}");
                if given.is_empty() {
                    self.add(field, "Required value");
                } else if name == "path" && given.split('/').any(|part| part == "..") {
                    self.add(field, "must not contain '..'");
                }
            }
        }
    }

    /// Checks a container's probes: each needs exactly one action.
    fn check_probes(&mut self, field: &str, container: &core::Container) {
        for (name, probe) in [
            ("livenessProbe", &container.liveness_probe),
            ("readinessProbe", &container.readiness_probe),
            ("startupProbe", &container.startup_probe),
        ] {
            let Some(probe) = probe else { continue };
            let actions = [
                probe.exec.is_some(),
                probe.http_get.is_some(),
                probe.tcp_socket.is_some(),
                probe.grpc.is_some(),
            ];
            let port = probe.grpc.as_ref().map(|grpc| grpc.port);
            if port.is_some_and(|port| !(1..=65535).contains(&port)) {
                let field = format!("{field}.{name}.grpc.port");
                self.add(field, "must be between 1 and 65535, inclusive");
            }
            if actions.iter().filter(|is_set| **is_set).count() != 1 {
                self.add(format!("{field}.{name}"), "must have one handler type");
            }
        }
    }

    /// Checks that an init container that does not always restart has no probes and no hooks.
    fn check_no_probes(&mut self, field: &str, container: &core::Container) {
        for (name, is_set) in [
            ("lifecycle", container.lifecycle.is_some()),
            ("livenessProbe", container.liveness_probe.is_some()),
            ("readinessProbe", container.readiness_probe.is_some()),
            ("startupProbe", container.startup_probe.is_some()),
        ] {
            if is_set {
                self.add(
                    format!("{field}.{name}"),
                    "Forbidden: may not be set for init containers without restartPolicy=Always",
                );
            }
        }
    }
}

/// Returns whether a path is absolute, or has a part `..`, by which it may lead out of its folder.
pub fn leads_out(path: &str) -> bool {
    path.starts_with('/') || path.split('/').any(|part| part == "..")
}

/// Returns whether a text is of lower-case letters, digits and dashes, with a letter or digit at
/// both ends; at most 63.
fn is_dns1123_label(text: &str) -> bool {
    let is_fine = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-');
    (1..=63).contains(&text.len())
        && text.bytes().all(is_fine)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// Returns the first kind of API objects that a static pod refers to and may not refer to. `None`:
/// it has no such reference. With `has_objects` it may refer to ConfigMaps and Secrets in variables
/// and volumes, and to a RuntimeClass.
pub fn api_reference(pod: &Pod, has_objects: bool) -> Option<&'static str> {
    let spec = pod.spec();
    if spec.service_account_name.as_deref().is_some_and(|name| !name.is_empty()) {
        return Some("serviceaccounts");
    }
    if spec.image_pull_secrets.as_ref().is_some_and(|secrets| !secrets.is_empty()) {
        return Some("secrets");
    }
    if spec.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty()) {
        return Some("resourceclaims");
    }
    if spec.runtime_class_name.as_ref().is_some_and(|name| !name.is_empty() && !has_objects) {
        return Some("runtimeclasses");
    }
    // Objects of these two kinds may come from the kubelet's folder of objects.
    let is_refused = |kind: &&str| !has_objects || !["secrets", "configmaps"].contains(kind);
    for container in pod.all_containers().filter(|_| !has_objects) {
        for env in container.env_from.iter().flatten() {
            if env.secret_ref.is_some() {
                return Some("secrets");
            }
            if env.config_map_ref.is_some() {
                return Some("configmaps");
            }
        }
        for from in container.env.iter().flatten().filter_map(|env| env.value_from.as_ref()) {
            if from.secret_key_ref.is_some() {
                return Some("secrets");
            }
            if from.config_map_key_ref.is_some() {
                return Some("configmaps");
            }
        }
    }
    let mut kinds = spec.volumes.iter().flatten().flat_map(volume_references);
    kinds.find(is_refused)
}

/// Returns the types of objects that a volume refers to.
fn volume_references(volume: &core::Volume) -> Vec<&'static str> {
    let projected = volume.projected.iter().flat_map(|volume| volume.sources.iter().flatten());
    let projected = projected.filter_map(|source| match source {
        source if source.secret.is_some() => Some("secrets"),
        source if source.config_map.is_some() => Some("configmaps"),
        source if source.service_account_token.is_some() => Some("serviceaccounts"),
        source if source.cluster_trust_bundle.is_some() => Some("clustertrustbundles"),
        source if source.pod_certificate.is_some() => Some("podcertificaterequests"),
        _ => None,
    });
    match volume {
        volume if volume.secret.is_some() => vec!["secrets"],
        volume if volume.config_map.is_some() => vec!["configmaps"],
        volume if volume.persistent_volume_claim.is_some() => vec!["persistentvolumeclaims"],
        volume if volume.ephemeral.is_some() => vec!["persistentvolumeclaims"],
        volume if volume.csi.is_some() => vec!["csidrivers"],
        _ => projected.collect(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(spec: Value) -> Pod {
        let metadata = json!({"name": "web", "namespace": "default", "uid": "u"});
        serde_json::from_value(json!({"metadata": metadata, "spec": spec})).expect("a pod")
    }

    #[test]
    fn names_of_the_pod_are_checked() {
        for (field, value, fault) in [
            ("uid", "..", Some("metadata.uid: Invalid value: \"..\": not a plain name")),
            ("uid", "a/b", Some("metadata.uid: Invalid value: \"a/b\": not a plain name")),
            ("uid", "", Some("metadata.uid: Invalid value: \"\": not a plain name")),
            ("uid", "0123-45", None),
            ("name", "..", Some("metadata.name: Invalid value: \"..\": not a DNS subdomain")),
            ("namespace", "..", Some("metadata.namespace: Invalid value: \"..\": not a DNS label")),
        ] {
            let mut pod = pod(json!({"containers": [{"name": "a", "image": "b"}]}));
            let value = Some(value.to_owned());
            match field {
                "uid" => pod.metadata.uid = value,
                "name" => pod.metadata.name = value,
                _ => pod.metadata.namespace = value,
            }
            let expected: Vec<&str> = fault.into_iter().collect();
            assert_eq!(faults(&pod), expected);
        }
    }

    #[test]
    fn faults_name_their_field() {
        let container = json!({"name": "a", "image": "b"});
        for (spec, fault) in [
            (json!({"containers": [container]}), None),
            (json!({"containers": []}), Some("spec.containers: Required value")),
            (
                json!({"containers": [container, container]}),
                Some("spec.containers[1].name: Duplicate value: \"a\""),
            ),
            (
                json!({"containers": [{"name": "a"}]}),
                Some("spec.containers[0].image: Required value"),
            ),
            (
                json!({"containers": [container], "restartPolicy": "Often"}),
                Some(
                    "spec.restartPolicy: Unsupported value: \"Often\": supported values: \
                     \"Always\", \"Never\", \"OnFailure\"",
                ),
            ),
            (
                json!({"volumes": [{"name": "c", "emptyDir": {}}], "containers": [
                    {"name": "a", "image": "b", "volumeMounts": [{"name": "c", "mountPath": "/c",
                        "mountPropagation": "Bidirectional"}]}]}),
                Some(
                    "spec.containers[0].volumeMounts[0].mountPropagation: Forbidden: Bidirectional \
                     mount propagation is available only to privileged containers",
                ),
            ),
            (
                json!({"containers": [{"name": "a", "image": "b", "volumeMounts": [
                    {"name": "c", "mountPath": "/c"}]}]}),
                Some("spec.containers[0].volumeMounts[0].name: Not found: \"c\""),
            ),
            (
                json!({"containers": [container], "initContainers": [
                    {"name": "i", "image": "b", "readinessProbe": {"tcpSocket": {"port": 1}}}]}),
                Some(
                    "spec.initContainers[0].readinessProbe: Forbidden: may not be set for init \
                     containers without restartPolicy=Always",
                ),
            ),
            (
                json!({"containers": [{"name": "a", "image": "b",
                    "livenessProbe": {"grpc": {"port": 0}}}]}),
                Some(
                    "spec.containers[0].livenessProbe.grpc.port: must be between 1 and 65535, \
                     inclusive",
                ),
            ),
            (
                json!({"containers": [{"name": "a", "image": "b", "livenessProbe": {}}]}),
                Some("spec.containers[0].livenessProbe: must have one handler type"),
            ),
            (
                json!({"containers": [{"name": "A", "image": "b"}]}),
                Some("spec.containers[0].name: Invalid value: \"A\": not a DNS label"),
            ),
        ] {
            let expected: Vec<&str> = fault.into_iter().collect();
            assert_eq!(faults(&pod(spec.clone())), expected, "{spec}");
        }
    }

    #[test]
    fn references_to_api_objects_are_found() {
        for (spec, reference) in [
            (json!({"containers": []}), None),
            (json!({"containers": [], "serviceAccountName": "a"}), Some("serviceaccounts")),
            (
                json!({"containers": [], "volumes": [{"name": "a", "configMap": {"name": "b"}}]}),
                Some("configmaps"),
            ),
            (
                json!({"containers": [], "volumes": [{"name": "a", "projected": {"sources": [
                    {"downwardAPI": {}}, {"secret": {"name": "b"}}]}}]}),
                Some("secrets"),
            ),
            (
                json!({"containers": [{"name": "a", "env": [{"name": "E", "valueFrom":
                    {"secretKeyRef": {"name": "b", "key": "c"}}}]}]}),
                Some("secrets"),
            ),
        ] {
            assert_eq!(api_reference(&pod(spec.clone()), false), reference, "{spec}");
            let others = reference.filter(|kind| *kind == "serviceaccounts");
            assert_eq!(api_reference(&pod(spec.clone()), true), others, "{spec}");
        }
        let token = json!({"containers": [], "volumes": [{"name": "a", "projected": {"sources": [
            {"secret": {"name": "b"}}, {"serviceAccountToken": {"path": "t"}}]}}]});
        assert_eq!(api_reference(&pod(token), true), Some("serviceaccounts"));
    }
}
