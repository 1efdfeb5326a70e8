//! Events of pods and of the node: lines of the log, in the form in which upstream's event broadcaster
//! logs them, with upstream's reasons and messages; and, with an API server, objects there.
//! Upstream: `pkg/kubelet/events`, `record.EventRecorder`.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::OnceLock;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube_controller_manager::events::{EventType, ObjectReference, Recorder};

use crate::pod::{Pod, PodExt};

/// Where events go beside the log.
static RECORDER: OnceLock<Recorder> = OnceLock::new();

/// Sends the events of this process to the API server too, from now on. Only the first call counts.
pub fn send_to(recorder: Recorder) {
    RECORDER.get_or_init(|| recorder);
}

/// Records that something has gone as it should. `container`: the event is about this one.
pub fn normal(pod: &Pod, container: Option<&str>, reason: &str, message: impl fmt::Display) {
    record(&of_pod(pod, container), EventType::Normal, reason, message.to_string());
}

/// Records that something has gone wrong.
pub fn warning(pod: &Pod, container: Option<&str>, reason: &str, message: impl fmt::Display) {
    record(&of_pod(pod, container), EventType::Warning, reason, message.to_string());
}

/// Records that something has gone wrong with a pod, with annotations for programs.
pub fn annotated_warning(
    pod: &Pod,
    reason: &str,
    message: impl fmt::Display,
    annotations: BTreeMap<String, String>,
) {
    let about = of_pod(pod, None);
    record_annotated(&about, EventType::Warning, reason, message.to_string(), annotations);
}

/// Records that something about a claim has gone as it should.
pub fn claim_normal(claim: &PersistentVolumeClaim, reason: &str, message: impl fmt::Display) {
    let version = claim.metadata.resource_version.as_deref();
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    let about = ObjectReference {
        api_version: "v1".into(),
        kind: "PersistentVolumeClaim".into(),
        namespace: text(&claim.metadata.namespace).as_str().into(),
        name: text(&claim.metadata.name).as_str().into(),
        uid: text(&claim.metadata.uid).as_str().into(),
        resource_version: version.and_then(|version| version.parse().ok()).unwrap_or_default(),
        field_path: "".into(),
    };
    record(&about, EventType::Normal, reason, message.to_string());
}

/// Records that something has happened to the node.
pub fn node_normal(node: &str, reason: &str, message: impl fmt::Display) {
    record(&of_node(node), EventType::Normal, reason, message.to_string());
}

/// Records that something has gone wrong with the node.
pub fn node_warning(node: &str, reason: &str, message: impl fmt::Display) {
    record(&of_node(node), EventType::Warning, reason, message.to_string());
}

/// Records an event without annotations.
fn record(about: &ObjectReference, kind: EventType, reason: &str, message: String) {
    record_annotated(about, kind, reason, message, BTreeMap::new());
}

/// Logs an event, and sends it to the API server if there is one.
fn record_annotated(
    about: &ObjectReference,
    kind: EventType,
    reason: &str,
    message: String,
    annotations: BTreeMap<String, String>,
) {
    let level = match kind {
        EventType::Normal => log::Level::Info,
        EventType::Warning => log::Level::Warn,
    };
    log::log!(level, "{}", line(about, kind, reason, &message));
    if let Some(recorder) = RECORDER.get() {
        recorder.annotated_event(about, kind, reason, message, annotations);
    }
}

/// Renders an event as a line of the log.
fn line(about: &ObjectReference, kind: EventType, reason: &str, message: &str) -> String {
    let object = match about.namespace.as_str() {
        "" => about.name.to_string(),
        namespace => format!("{namespace}/{}", about.name),
    };
    format!(
        "Event occurred object={object:?} fieldPath={:?} kind=\"{}\" apiVersion=\"v1\" \
         type=\"{kind:?}\" reason=\"{reason}\" message={message:?}",
        about.field_path.as_str(),
        about.kind.as_str(),
    )
}

/// Builds the reference to a Node. As upstream's, it has no uid.
fn of_node(name: &str) -> ObjectReference {
    ObjectReference {
        api_version: "v1".into(),
        kind: "Node".into(),
        namespace: "".into(),
        name: name.into(),
        uid: "".into(),
        resource_version: 0,
        field_path: "".into(),
    }
}

/// Returns the reference of an event to a pod, or to one of its containers.
fn of_pod(pod: &Pod, container: Option<&str>) -> ObjectReference {
    let version = pod.metadata.resource_version.as_deref();
    ObjectReference {
        api_version: "v1".into(),
        kind: "Pod".into(),
        namespace: pod.namespace().into(),
        name: pod.name().into(),
        uid: pod.metadata.uid.as_deref().unwrap_or_default().into(),
        resource_version: version.and_then(|version| version.parse().ok()).unwrap_or_default(),
        field_path: container.map(|name| field_path(pod, name)).unwrap_or_default().as_str().into(),
    }
}

/// Returns the path of a container in the pod's definition. Upstream: `kubecontainer.fieldPath`.
fn field_path(pod: &Pod, container: &str) -> String {
    let is_init = pod.init_containers().iter().any(|init| init.name == container);
    let is_ephemeral = pod.ephemeral_containers().iter().any(|one| one.name == container);
    let list = match (is_init, is_ephemeral) {
        (true, _) => "initContainers",
        (_, true) => "ephemeralContainers",
        _ => "containers",
    };
    format!("spec.{list}{{{container}}}")
}

/// The events of this process, for tests.
#[cfg(test)]
pub mod testing {
    use std::sync::{Arc, LazyLock};

    use kube_controller_manager::events::EventSink;
    use parking_lot::Mutex;

    use super::*;

    /// The names of objects, each with an event as `Type Reason message`.
    #[derive(Default)]
    struct Heard(Mutex<Vec<(String, String)>>);

    impl EventSink for Heard {
        fn record(
            &self,
            about: &ObjectReference,
            kind: EventType,
            reason: &str,
            message: String,
            _: BTreeMap<String, String>,
        ) {
            let event = format!("{kind:?} {reason} {message}");
            self.0.lock().push((about.name.to_string(), event));
        }
    }

    /// Returns the events about the object of this name since the first call for any.
    pub fn about(name: &str) -> Vec<String> {
        static HEARD: LazyLock<Arc<Heard>> = LazyLock::new(|| {
            let heard = Arc::<Heard>::default();
            send_to(Recorder::to_sink(heard.clone()));
            heard
        });
        let all = HEARD.0.lock();
        all.iter().filter(|(of, _)| of == name).map(|(_, event)| event.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn line_has_upstreams_form() {
        let pod = json!({"metadata": {"name": "p", "namespace": "n"},
                         "spec": {"initContainers": [{"name": "i"}], "containers": [{"name": "c"}],
                                  "ephemeralContainers": [{"name": "e"}]}});
        let pod: Pod = serde_json::from_value(pod).expect("a pod");
        for (container, path) in [
            (None, ""),
            (Some("i"), "spec.initContainers{i}"),
            (Some("c"), "spec.containers{c}"),
            (Some("e"), "spec.ephemeralContainers{e}"),
        ] {
            let about = of_pod(&pod, container);
            let line = line(&about, EventType::Normal, "Started", "a \"b\"\nc");
            let expected = format!(
                r#"Event occurred object="n/p" fieldPath="{path}" kind="Pod" apiVersion="v1" "#
            ) + r#"type="Normal" reason="Started" message="a \"b\"\nc""#;
            assert_eq!(line, expected);
        }
        let line = line(&of_node("n"), EventType::Warning, "Rebooted", "m");
        let expected = r#"Event occurred object="n" fieldPath="" kind="Node" apiVersion="v1" "#;
        assert_eq!(line, expected.to_owned() + r#"type="Warning" reason="Rebooted" message="m""#);
    }
}
