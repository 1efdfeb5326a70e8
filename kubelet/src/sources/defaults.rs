//! The defaults of a pod that no API server has seen.
//! Upstream: `pkg/apis/core/v1.SetObjectDefaults_Pod`.

use kube_controller_manager::objects::golang::complete_pod_template;
use serde_json::{Value, json};

use super::pod_resources;

/// Sets the defaults of a pod in its JSON.
pub fn complete(pod: &mut Value) {
    // A pod has the shape of a template: metadata and spec.
    complete_pod_template(pod);
    let Some(spec) = pod.get_mut("spec").filter(|spec| spec.is_object()) else { return };
    set_default(spec, "enableServiceLinks", json!(true));
    let is_host_network = spec["hostNetwork"] == json!(true);
    for list in ["initContainers", "containers"] {
        for container in items(spec, list) {
            let policy = pull_policy(container["image"].as_str().unwrap_or_default());
            set_default(container, "imagePullPolicy", json!(policy));
            requests_from_limits(container);
            if is_host_network {
                for port in items(container, "ports") {
                    let own = port["containerPort"].clone();
                    set_default(port, "hostPort", own);
                }
            }
        }
    }
    // A volume with only its name is an emptyDir.
    for volume in items(spec, "volumes") {
        let has_source = volume.as_object().is_some_and(|volume| volume.len() > 1);
        if !has_source && volume.is_object() {
            volume["emptyDir"] = json!({});
        }
    }
    pod_resources::complete(pod);
}

/// Returns the objects in a list of a JSON object; empty: it has no such list.
fn items<'a>(of: &'a mut Value, list: &str) -> impl Iterator<Item = &'a mut Value> {
    let items = of.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten();
    items.filter(|item| item.is_object())
}

/// Sets a field of a JSON object if it is missing or null.
fn set_default(of: &mut Value, field: &str, value: Value) {
    if of.get(field).is_none_or(Value::is_null) {
        of[field] = value;
    }
}

/// Sets the request of each resource that a container limits and does not request to its limit.
fn requests_from_limits(container: &mut Value) {
    let limits = container.get("resources").and_then(|resources| resources.get("limits"));
    let Some(limits) = limits.and_then(Value::as_object).cloned() else { return };
    let resources = &mut container["resources"];
    set_default(resources, "requests", json!({}));
    for (resource, limit) in limits {
        if resources["requests"].is_object() {
            set_default(&mut resources["requests"], &resource, limit);
        }
    }
}

/// Returns the default policy of pulls: images without a tag or with the tag `latest` are pulled
/// each time.
fn pull_policy(image: &str) -> &'static str {
    let last = image.rsplit('/').next().unwrap_or_default();
    let is_fixed =
        image.contains('@') || last.split_once(':').is_some_and(|(_, tag)| tag != "latest");
    if is_fixed { "IfNotPresent" } else { "Always" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pull_policy_depends_on_the_tag() {
        for (image, policy) in [
            ("busybox", "Always"),
            ("busybox:latest", "Always"),
            ("busybox:1", "IfNotPresent"),
            ("localhost:5000/busybox", "Always"),
            ("localhost:5000/busybox:1", "IfNotPresent"),
            ("busybox@sha256:00", "IfNotPresent"),
        ] {
            assert_eq!(pull_policy(image), policy, "{image}");
        }
    }

    #[test]
    fn absent_fields_get_defaults_and_set_ones_stay() {
        let mut pod = json!({"spec": {
            "hostNetwork": true,
            "volumes": [{"name": "a"}, {"name": "b", "hostPath": {"path": "/x"}}],
            "containers": [
                {"name": "a", "image": "a:1", "ports": [{"containerPort": 1}],
                 "resources": {"limits": {"cpu": "1"}}, "livenessProbe": {"tcpSocket": {"port": 1}}},
                {"name": "b", "image": "b:1", "imagePullPolicy": "Never"},
            ],
        }});
        complete(&mut pod);
        let spec = &pod["spec"];
        assert_eq!(spec["restartPolicy"], "Always");
        assert_eq!(spec["terminationGracePeriodSeconds"], 30);
        assert_eq!(spec["volumes"][0]["emptyDir"], json!({}));
        assert!(spec["volumes"][1].get("emptyDir").is_none());
        let a = &spec["containers"][0];
        assert_eq!(a["ports"][0], json!({"containerPort": 1, "hostPort": 1, "protocol": "TCP"}));
        assert_eq!(a["resources"]["requests"], json!({"cpu": "1"}));
        assert_eq!(a["livenessProbe"]["failureThreshold"], 3);
        assert_eq!(a["terminationMessagePath"], "/dev/termination-log");
        assert_eq!(a["imagePullPolicy"], "IfNotPresent");
        assert_eq!(spec["containers"][1]["imagePullPolicy"], "Never");
    }
}
