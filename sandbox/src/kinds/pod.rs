//! Defaults of pods and pod templates. Upstream: `pkg/apis/core/v1/defaults.go`.

use serde_json::{Value, json};

use super::json::{drop_nulls, fill, list, list_mut, members, object, set, text};
use super::quantity::canonicalize;

/// Fills in the defaults of a pod spec, of a pod or in a template.
pub fn default_spec(spec: &mut Value) {
    if !spec.is_object() {
        *spec = json!({});
    }
    fill(spec, "restartPolicy", "Always");
    fill(spec, "dnsPolicy", "ClusterFirst");
    fill(spec, "terminationGracePeriodSeconds", 30);
    fill(spec, "schedulerName", "default-scheduler");
    fill(spec, "securityContext", json!({}));
    // The old name of the field follows the new one.
    for (from, to) in
        [("serviceAccountName", "serviceAccount"), ("serviceAccount", "serviceAccountName")]
    {
        if let Some(name) = spec.get(from).filter(|name| name.is_string()).cloned() {
            fill(spec, to, name);
        }
    }
    let host_network = spec.get("hostNetwork") == Some(&Value::Bool(true));
    for containers in ["/containers", "/initContainers", "/ephemeralContainers"] {
        for container in list_mut(spec, containers) {
            default_container(container, host_network);
        }
    }
    list_mut(spec, "/volumes").iter_mut().for_each(default_volume);
}

/// Fills the defaults of a container, its ports, probes and hooks. With the host's network, a port
/// without a host port gets its own number as one.
fn default_container(container: &mut Value, host_network: bool) {
    fill(container, "terminationMessagePath", "/dev/termination-log");
    fill(container, "terminationMessagePolicy", "File");
    let policy = if takes_latest(text(container, "/image")) { "Always" } else { "IfNotPresent" };
    fill(container, "imagePullPolicy", policy);
    fill(container, "resources", json!({}));
    default_resources(&mut container["resources"]);
    for port in list_mut(container, "/ports") {
        fill(port, "protocol", "TCP");
        if host_network && let Some(number) = port.get("containerPort").cloned() {
            fill(port, "hostPort", number);
        }
    }
    for env in list_mut(container, "/env") {
        if let Some(field) = env.pointer_mut("/valueFrom/fieldRef") {
            fill(field, "apiVersion", "v1");
        }
    }
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let Some(probe) = container.get_mut(probe).filter(|probe| probe.is_object()) else {
            continue;
        };
        for (key, value) in [
            ("timeoutSeconds", 1),
            ("periodSeconds", 10),
            ("successThreshold", 1),
            ("failureThreshold", 3),
        ] {
            fill(probe, key, value);
        }
        if let Some(http) = probe.get_mut("httpGet") {
            default_http(http);
        }
        if let Some(grpc) = probe.get_mut("grpc") {
            fill(grpc, "service", "");
        }
    }
    for hook in ["/lifecycle/preStop/httpGet", "/lifecycle/postStart/httpGet"] {
        if let Some(http) = container.pointer_mut(hook) {
            default_http(http);
        }
    }
}

fn default_http(http: &mut Value) {
    fill(http, "path", "/");
    fill(http, "scheme", "HTTP");
}

/// Returns whether an image has the tag `latest`, or neither tag nor digest.
fn takes_latest(image: &str) -> bool {
    if image.contains('@') {
        return false;
    }
    let name = image.rsplit('/').next().unwrap_or(image);
    name.split_once(':').is_none_or(|(_, tag)| tag == "latest")
}

/// Writes the limits and requests in canonical form.
pub fn default_resources(resources: &mut Value) {
    canonicalize(resources.get_mut("limits"));
    canonicalize(resources.get_mut("requests"));
}

/// Sets the requests that a container lacks to its limits.
fn limits_to_requests(container: &mut Value) {
    let limits: Vec<(String, Value)> = members(container, "/resources/limits")
        .map(|(name, value)| (name.to_owned(), value.clone()))
        .collect();
    for (name, value) in limits {
        fill(object(&mut container["resources"], "requests"), &name, value);
    }
}

/// Fills in the defaults of a volume; one that has only a name becomes an `emptyDir`.
fn default_volume(volume: &mut Value) {
    let has_only_a_name = volume.as_object().is_some_and(|volume| volume.len() == 1);
    if has_only_a_name {
        fill(volume, "emptyDir", json!({}));
    }
    for source in ["secret", "configMap", "downwardAPI", "projected"] {
        if let Some(source) = volume.get_mut(source) {
            fill(source, "defaultMode", 0o644);
            default_downward(source);
        }
    }
    for projection in list_mut(volume, "/projected/sources") {
        if let Some(token) = projection.get_mut("serviceAccountToken") {
            fill(token, "expirationSeconds", 3600);
        }
        if let Some(downward) = projection.get_mut("downwardAPI") {
            default_downward(downward);
        }
    }
    if let Some(path) = volume.get_mut("hostPath") {
        fill(path, "type", "");
    }
    if let Some(template) = volume.pointer_mut("/ephemeral/volumeClaimTemplate/spec") {
        fill(template, "volumeMode", "Filesystem");
    }
}

fn default_downward(source: &mut Value) {
    for item in list_mut(source, "/items") {
        if let Some(field) = item.get_mut("fieldRef") {
            fill(field, "apiVersion", "v1");
        }
    }
}

/// Fills a template (`metadata` and `spec`) that stands under `key`.
pub fn default_template(owner: &mut Value, key: &str) {
    let template = object(owner, key);
    object(template, "metadata");
    default_spec(&mut template["spec"]);
}

/// Fills in the defaults of a pod.
pub fn default(pod: &mut Value) {
    drop_nulls(pod);
    for condition in list_mut(pod, "/status/conditions") {
        // The only time that is serialized when absent.
        if let Some(condition) = condition.as_object_mut() {
            condition.entry("lastProbeTime").or_insert(Value::Null);
        }
    }
    let spec = object(pod, "spec");
    default_spec(spec);
    fill(spec, "enableServiceLinks", true);
    for containers in ["/containers", "/initContainers"] {
        list_mut(spec, containers).iter_mut().for_each(limits_to_requests);
    }
}

/// Sets the fields that registry and admission set: the status of a pending pod, its priority, and
/// tolerations of nodes that are not ready or unreachable.
pub fn prepare_create(pod: &mut Value) {
    let class = qos_class(pod);
    set(pod, "status", json!({ "phase": "Pending", "qosClass": class }));
    let spec = object(pod, "spec");
    let priority = match text(spec, "/priorityClassName") {
        // Upstream: `SystemCriticalPriority`, and 1000 more for nodes.
        "system-node-critical" => 2_000_001_000,
        "system-cluster-critical" => 2_000_000_000,
        _ => 0,
    };
    fill(spec, "priority", priority);
    fill(spec, "preemptionPolicy", "PreemptLowerPriority");
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let tolerated = list(spec, "/tolerations").iter().any(|toleration| {
            let (named, effect) = (text(toleration, "/key"), text(toleration, "/effect"));
            (named == key || named.is_empty()) && matches!(effect, "" | "NoExecute")
        });
        if !tolerated {
            let toleration = json!({
                "key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300,
            });
            fill(spec, "tolerations", json!([]));
            if let Some(tolerations) = spec["tolerations"].as_array_mut() {
                tolerations.push(toleration);
            }
        }
    }
}

/// Returns the QoS class of a pod by the CPU and memory of all its containers. Upstream:
/// `qos.ComputePodQOS`.
pub(super) fn qos_class(pod: &Value) -> &'static str {
    let containers =
        || list(pod, "/spec/containers").iter().chain(list(pod, "/spec/initContainers"));
    let resources = ["cpu", "memory"];
    let amount = |container: &Value, kind: &str, name: &str| {
        container.pointer(&format!("/resources/{kind}/{name}")).cloned()
    };
    let any = containers().any(|container| {
        resources.iter().any(|name| {
            amount(container, "limits", name).is_some()
                || amount(container, "requests", name).is_some()
        })
    });
    let guaranteed = containers().all(|container| {
        resources.iter().all(|name| {
            let limit = amount(container, "limits", name);
            limit.is_some() && limit == amount(container, "requests", name)
        })
    });
    match (any, guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

/// Returns the grace period of a delete that names none: that of the pod's spec, 30 by default; 0
/// for a pod that no kubelet runs.
pub fn grace(pod: &Value) -> Option<i64> {
    // No kubelet would end a pod without a node, or one that has ended.
    if text(pod, "/spec/nodeName").is_empty()
        || matches!(text(pod, "/status/phase"), "Succeeded" | "Failed")
    {
        return Some(0);
    }
    Some(pod.pointer("/spec/terminationGracePeriodSeconds").and_then(Value::as_i64).unwrap_or(30))
}

/// Returns the value of a field that a field selector for pods may name; `None` for any other
/// field.
pub fn field(pod: &Value, path: &str) -> Option<String> {
    let pointer = match path {
        "spec.nodeName" => "/spec/nodeName",
        "spec.restartPolicy" => "/spec/restartPolicy",
        "spec.schedulerName" => "/spec/schedulerName",
        "spec.serviceAccountName" => "/spec/serviceAccountName",
        "status.phase" => "/status/phase",
        "status.podIP" => "/status/podIPs/0/ip",
        "status.nominatedNodeName" => "/status/nominatedNodeName",
        "spec.hostNetwork" => {
            let host = pod.pointer("/spec/hostNetwork") == Some(&Value::Bool(true));
            return Some(host.to_string());
        }
        _ => return None,
    };
    Some(text(pod, pointer).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_filled_as_by_a_real_server() {
        let mut pod = json!({"metadata": {"name": "p"}, "spec": {
            "containers": [
                {"name": "a", "image": "nginx", "ports": [{"containerPort": 80}],
                 "env": [{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
                 "livenessProbe": {"httpGet": {"port": 80}},
                 "resources": {"limits": {"cpu": 0.5, "memory": "1024Mi"}}},
                {"name": "b", "image": "r.io:5000/nginx:1", "readinessProbe": {"grpc": {"port": 5}}}],
            "volumes": [{"name": "v", "configMap": {"name": "c"}}, {"name": "e"},
                {"name": "pr", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}},
                {"name": "h", "hostPath": {"path": "/x"}}]}});
        default(&mut pod);
        prepare_create(&mut pod);
        let tolerate = |key: &str| json!({"effect": "NoExecute", "key": key, "operator": "Exists", "tolerationSeconds": 300});
        let expected = json!({
            "containers": [
                {"env": [{"name": "X", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}}],
                 "image": "nginx", "imagePullPolicy": "Always",
                 "livenessProbe": {"failureThreshold": 3, "httpGet": {"path": "/", "port": 80, "scheme": "HTTP"},
                    "periodSeconds": 10, "successThreshold": 1, "timeoutSeconds": 1},
                 "name": "a", "ports": [{"containerPort": 80, "protocol": "TCP"}],
                 "resources": {"limits": {"cpu": "500m", "memory": "1Gi"}, "requests": {"cpu": "500m", "memory": "1Gi"}},
                 "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"},
                {"image": "r.io:5000/nginx:1", "imagePullPolicy": "IfNotPresent", "name": "b",
                 "readinessProbe": {"failureThreshold": 3, "grpc": {"port": 5, "service": ""},
                    "periodSeconds": 10, "successThreshold": 1, "timeoutSeconds": 1},
                 "resources": {}, "terminationMessagePath": "/dev/termination-log",
                 "terminationMessagePolicy": "File"}],
            "dnsPolicy": "ClusterFirst", "enableServiceLinks": true,
            "preemptionPolicy": "PreemptLowerPriority", "priority": 0, "restartPolicy": "Always",
            "schedulerName": "default-scheduler", "securityContext": {},
            "terminationGracePeriodSeconds": 30,
            "tolerations": [tolerate("node.kubernetes.io/not-ready"), tolerate("node.kubernetes.io/unreachable")],
            "volumes": [{"configMap": {"defaultMode": 420, "name": "c"}, "name": "v"},
                {"emptyDir": {}, "name": "e"},
                {"name": "pr", "projected": {"defaultMode": 420,
                    "sources": [{"serviceAccountToken": {"expirationSeconds": 3600, "path": "t"}}]}},
                {"hostPath": {"path": "/x", "type": ""}, "name": "h"}]});
        assert_eq!(pod["spec"], expected);
        assert_eq!(pod["status"], json!({"phase": "Pending", "qosClass": "Burstable"}));
    }
}
