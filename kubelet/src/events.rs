//! Events of pods and of the node, as lines of the log: upstream's reasons and messages, in the form
//! in which its event broadcaster logs them. Upstream: `pkg/kubelet/events`, `record.EventRecorder`.

use std::fmt;

use crate::pod::{Pod, PodExt};

/// Records that something has gone as it should. `container`: the event is about this one.
pub fn normal(pod: &Pod, container: Option<&str>, reason: &str, message: impl fmt::Display) {
    log::info!("{}", line(pod, container, "Normal", reason, &message.to_string()));
}

/// Records that something has gone wrong.
pub fn warning(pod: &Pod, container: Option<&str>, reason: &str, message: impl fmt::Display) {
    log::warn!("{}", line(pod, container, "Warning", reason, &message.to_string()));
}

/// Records that something has gone wrong with the node.
pub fn node_warning(node: &str, reason: &str, message: impl fmt::Display) {
    log::warn!("{}", text(node, "", "Node", "Warning", reason, &message.to_string()));
}

fn line(pod: &Pod, container: Option<&str>, kind: &str, reason: &str, message: &str) -> String {
    let path = container.map(|name| field_path(pod, name)).unwrap_or_default();
    text(&pod.display_name(), &path, "Pod", kind, reason, message)
}

fn text(object: &str, path: &str, of: &str, kind: &str, reason: &str, message: &str) -> String {
    format!(
        "Event occurred object={object:?} fieldPath={path:?} kind=\"{of}\" apiVersion=\"v1\" \
         type=\"{kind}\" reason=\"{reason}\" message={message:?}"
    )
}

/// Upstream: `kubecontainer.fieldPath`.
fn field_path(pod: &Pod, container: &str) -> String {
    let is_init = pod.init_containers().iter().any(|init| init.name == container);
    let list = if is_init { "initContainers" } else { "containers" };
    format!("spec.{list}{{{container}}}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn line_has_upstreams_form() {
        let pod = json!({"metadata": {"name": "p", "namespace": "n"},
                         "spec": {"initContainers": [{"name": "i"}], "containers": [{"name": "c"}]}});
        let pod: Pod = serde_json::from_value(pod).expect("a pod");
        for (container, path) in
            [(None, ""), (Some("i"), "spec.initContainers{i}"), (Some("c"), "spec.containers{c}")]
        {
            let line = line(&pod, container, "Normal", "Started", "a \"b\"\nc");
            let expected = format!(
                r#"Event occurred object="n/p" fieldPath="{path}" kind="Pod" apiVersion="v1" "#
            ) + r#"type="Normal" reason="Started" message="a \"b\"\nc""#;
            assert_eq!(line, expected);
        }
    }
}
