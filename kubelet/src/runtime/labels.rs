//! Labels and annotations of sandboxes and containers, by which an agent that restarts knows them.
//! Upstream: `kuberuntime/labels.go`.

use std::collections::HashMap;
use std::fmt::Write;

use serde_json::json;

use crate::pod::{Container, Pod, PodExt, Uid};

pub const POD_NAME: &str = "io.kubernetes.pod.name";
pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
pub const POD_UID: &str = "io.kubernetes.pod.uid";
pub const CONTAINER_NAME: &str = "io.kubernetes.container.name";

pub const CONTAINER_HASH: &str = "io.kubernetes.container.hash";
pub const RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
pub const MESSAGE_PATH: &str = "io.kubernetes.container.terminationMessagePath";
pub const MESSAGE_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
pub const GRACE_PERIOD: &str = "io.kubernetes.pod.terminationGracePeriod";
/// Of these three, only the Go kubelet makes use, when it ends a container whose pod it does not know.
const DELETION_GRACE_PERIOD: &str = "io.kubernetes.pod.deletionGracePeriod";
const PRE_STOP: &str = "io.kubernetes.container.preStopHandler";
const PORTS: &str = "io.kubernetes.container.ports";

/// Returns the uid of the pod of a sandbox or container, from its labels. `None`: it is another
/// program's.
pub fn pod_uid(labels: &HashMap<String, String>) -> Option<Uid> {
    Uid::parse(labels.get(POD_UID)?)
}

/// Builds the labels of a pod's sandbox: the pod's own and those that name the pod.
pub fn sandbox_labels(pod: &Pod) -> HashMap<String, String> {
    let mut labels: HashMap<String, String> =
        pod.metadata.labels.iter().flatten().map(|(k, v)| (k.clone(), v.clone())).collect();
    labels.extend(pod_labels(pod));
    labels
}

/// Builds the labels of a container, which name it and its pod.
pub fn container_labels(pod: &Pod, container: &Container) -> HashMap<String, String> {
    let mut labels = pod_labels(pod);
    labels.insert(CONTAINER_NAME.to_owned(), container.name.clone());
    labels
}

/// Builds the labels that name a pod.
fn pod_labels(pod: &Pod) -> HashMap<String, String> {
    let labels = [
        (POD_NAME, pod.name().to_owned()),
        (POD_NAMESPACE, pod.namespace().to_owned()),
        (POD_UID, pod.uid().to_string()),
    ];
    labels.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

/// Builds the annotations of a container, from which a kubelet that restarts reads how it was
/// started.
pub fn container_annotations(
    pod: &Pod,
    container: &Container,
    restart_count: u32,
) -> HashMap<String, String> {
    let mut annotations = HashMap::from([
        (CONTAINER_HASH.to_owned(), format!("{:x}", container_hash(container))),
        (RESTART_COUNT.to_owned(), restart_count.to_string()),
        (MESSAGE_PATH.to_owned(), container.termination_message_path.clone().unwrap_or_default()),
        (
            MESSAGE_POLICY.to_owned(),
            container.termination_message_policy.clone().unwrap_or_default(),
        ),
    ]);
    let pre_stop = container.lifecycle.as_ref().and_then(|hooks| hooks.pre_stop.as_ref());
    let ports = container.ports.as_ref().filter(|ports| !ports.is_empty());
    let optional = [
        (GRACE_PERIOD, pod.spec().termination_grace_period_seconds.map(|grace| grace.to_string())),
        (DELETION_GRACE_PERIOD, pod.metadata.deletion_grace_period_seconds.map(|g| g.to_string())),
        (PRE_STOP, pre_stop.map(|hook| json!(hook).to_string())),
        (PORTS, ports.map(|ports| json!(ports).to_string())),
    ];
    let given = optional.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)));
    annotations.extend(given);
    annotations
}

/// Hashes what requires a new container when it changes: the name and the image. Upstream:
/// `kubecontainer.HashContainer`.
pub fn container_hash(container: &Container) -> u64 {
    let picked = json!({"image": container.image, "name": container.name}).to_string();
    // Bytes as Go prints them for hashing.
    let mut text = "([]uint8)[".to_owned();
    for (at, byte) in picked.bytes().enumerate() {
        let _ = write!(text, "{}{byte}", if at > 0 { " " } else { "" });
    }
    text.push(']');
    let hash = text
        .bytes()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    u64::from(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_other_programs_name_no_pod() {
        for (uid, expected) in
            [(Some("0123"), Some("0123")), (Some(".."), None), (Some(""), None), (None, None)]
        {
            let uid = uid.map(|uid| (POD_UID.to_owned(), uid.to_owned()));
            let labels = HashMap::from_iter(uid);
            assert_eq!(pod_uid(&labels).as_deref(), expected, "{labels:?}");
        }
    }

    #[test]
    fn annotations_say_how_a_container_ends_without_its_pod() {
        let all = |metadata: serde_json::Value, container: serde_json::Value| {
            let pod = json!({"metadata": metadata, "spec": {"containers": []}});
            let pod: Pod = serde_json::from_value(pod).expect("a pod");
            let container: Container = serde_json::from_value(container).expect("a container");
            container_annotations(&pod, &container, 0)
        };
        let hook = r#"{"exec":{"command":["a","b"]}}"#;
        let ports = r#"[{"containerPort":80,"name":"http","protocol":"TCP"}]"#;
        let port = json!([{"name": "http", "containerPort": 80, "protocol": "TCP"}]);
        let lifecycle = json!({"preStop": {"exec": {"command": ["a", "b"]}}});
        let found = all(
            json!({"deletionGracePeriodSeconds": 7}),
            json!({"name": "c", "lifecycle": lifecycle, "ports": port}),
        );
        let found = [DELETION_GRACE_PERIOD, PRE_STOP, PORTS].map(|key| found[key].as_str());
        assert_eq!(found, ["7", hook, ports]);
        let lifecycle = json!({"postStart": {"exec": {"command": ["a"]}}});
        let found = all(json!({}), json!({"name": "c", "lifecycle": lifecycle, "ports": []}));
        let absent = [GRACE_PERIOD, DELETION_GRACE_PERIOD, PRE_STOP, PORTS];
        assert!(absent.iter().all(|key| !found.contains_key(*key)), "{found:?}");
    }

    #[test]
    fn hash_changes_with_name_and_image_only() {
        let container = |name: &str, image: &str, tty: bool| {
            container_hash(&Container {
                name: name.to_owned(),
                image: Some(image.to_owned()),
                tty: Some(tty),
                ..Container::default()
            })
        };
        let hash = container("a", "b", false);
        assert_eq!(container("a", "b", true), hash);
        assert_ne!(container("c", "b", false), hash);
        assert_ne!(container("a", "c", false), hash);
    }
}
