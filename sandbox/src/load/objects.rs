//! Objects of the usual shape: what a load creates, and what the heap budget and the benches decode
//! as an API server would list them.

use serde_json::{Value, json};

/// Pods of one ReplicaSet, and of one Deployment.
pub const PODS_A_SET: usize = 100;

/// The number of consecutive nodes in one zone.
const NODES_A_ZONE: usize = 3;

/// Returns the UUID of the `n`th object of a kind.
fn uid(kind: u16, n: usize) -> String {
    format!("5f0c{kind:04x}-7a3e-4d21-9b68-{n:012x}")
}

/// Returns five letters, as at the end of the names of a ReplicaSet's pods.
fn suffix(n: usize) -> String {
    const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let mut rest = n;
    let digit = |_| {
        let letter = LETTERS[rest % LETTERS.len()];
        rest /= LETTERS.len();
        char::from(letter)
    };
    (0..5).map(digit).collect()
}

/// Builds a pod template of the usual shape: one container, twelve environment variables, two
/// probes, one volume. `n` makes templates distinct.
pub fn template(app: &str, n: usize) -> Value {
    let env: Vec<Value> = (0..12)
        .map(|at| json!({ "name": format!("SETTING_{at}"), "value": format!("value-of-setting-{at}") }))
        .collect();
    let probe = |path: &str, delay: u32| {
        json!({
            "httpGet": { "path": path, "port": 8080, "scheme": "HTTP" }, "initialDelaySeconds": delay,
            "timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3,
        })
    };
    json!({
        "metadata": { "labels": { "app": app, "tier": "backend" } },
        "spec": {
            "volumes": [{ "name": "config", "configMap": { "name": format!("config-{n}"), "defaultMode": 420 } }],
            "containers": [{
                "name": "main", "image": format!("registry.example/team/app-{n}:1.27.3"),
                "ports": [{ "name": "http", "containerPort": 8080, "protocol": "TCP" }],
                "env": env,
                "resources": {
                    "limits": { "cpu": "500m", "memory": "256Mi" },
                    "requests": { "cpu": "10m", "memory": "16Mi" },
                },
                "volumeMounts": [{ "name": "config", "readOnly": true, "mountPath": "/etc/app" }],
                "livenessProbe": probe("/healthz", 10), "readinessProbe": probe("/readyz", 0),
                "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
                "imagePullPolicy": "IfNotPresent",
            }],
            "restartPolicy": "Always", "terminationGracePeriodSeconds": 30, "dnsPolicy": "ClusterFirst",
            "securityContext": {}, "schedulerName": "default-scheduler",
        },
    })
}

/// Returns the managers of the fields, as the API server stores them.
fn managed(manager: &str, subresource: &str, fields: &Value) -> Value {
    json!({
        "manager": manager, "operation": "Update", "apiVersion": "v1", "time": "2026-05-01T10:00:01Z",
        "fieldsType": "FieldsV1", "fieldsV1": fields, "subresource": subresource,
    })
}

/// Builds the `n`th pod, of the template of a set, with the status of a running pod and without a
/// name.
fn running_pod(n: usize, set: usize) -> Value {
    let mut pod = template(&format!("app-{set}"), set);
    let ip = format!("10.{}.{}.{}", 64 + n / 65_536, n / 256 % 256, n % 256);
    let condition = |name: &str| json!({ "type": name, "status": "True", "lastProbeTime": null, "lastTransitionTime": "2026-05-01T10:00:09Z" });
    let conditions =
        ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"]
            .map(condition);
    pod["apiVersion"] = "v1".into();
    pod["kind"] = "Pod".into();
    pod["status"] = json!({
        "phase": "Running", "hostIP": "192.0.2.7", "hostIPs": [{ "ip": "192.0.2.7" }],
        "podIP": ip, "podIPs": [{ "ip": ip }], "startTime": "2026-05-01T10:00:02Z", "qosClass": "Burstable",
        "conditions": conditions,
        "containerStatuses": [{
            "name": "main", "state": { "running": { "startedAt": "2026-05-01T10:00:08Z" } }, "lastState": {},
            "ready": true, "started": true, "restartCount": 0,
            "image": format!("registry.example/team/app-{set}:1.27.3"),
            "imageID": "registry.example/team/app@sha256:6926dd802f40e5e7257fded83e0d8030039642e4e10c4a98a6478e9c6fe06153",
            "containerID": format!("containerd://{:064x}", n),
        }],
    });
    pod
}

/// Encodes the `n`th pod: twelve environment variables, two probes, one volume, an owner,
/// `managedFields`, and the status of a running pod.
pub fn pod(n: usize) -> Vec<u8> {
    let set = n / PODS_A_SET;
    let hash = format!("{:x}", 0x7d4b_9c6f_u64 + set as u64);
    let mut pod = running_pod(n, set);
    let spec_fields: Value = (0..12)
        .map(|n| {
            (
                format!("k:{{\"name\":\"SETTING_{n}\"}}"),
                json!({ ".": {}, "f:name": {}, "f:value": {} }),
            )
        })
        .collect::<serde_json::Map<_, _>>()
        .into();
    let name = format!("app-{set}-{hash}-{}", suffix(n));
    pod["metadata"] = json!({
        "name": name, "generateName": format!("app-{set}-{hash}-"),
        "namespace": format!("team-{}", set / 10), "uid": uid(1, n),
        "resourceVersion": (1_000_000 + n).to_string(), "generation": 1,
        "creationTimestamp": "2026-05-01T10:00:01Z",
        "labels": { "app": format!("app-{set}"), "tier": "backend", "pod-template-hash": hash },
        "ownerReferences": [{
            "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": format!("app-{set}-{hash}"),
            "uid": uid(2, set), "controller": true, "blockOwnerDeletion": true,
        }],
        "managedFields": [
            managed("kube-controller-manager", "", &json!({ "f:spec": { "f:containers": { "f:env": spec_fields } } })),
            managed("kubelet", "status", &json!({ "f:status": { "f:conditions": {}, "f:podIP": {} } })),
        ],
    });
    pod["spec"]["nodeName"] = format!("node-{}", n % 100).into();
    pod.to_string().into_bytes()
}

/// Returns the name of the `n`th node.
pub fn node_name(n: usize) -> String {
    format!("node-{n:05}")
}

/// Builds the `n`th node of three zones as its kubelet reports it, with twenty images.
pub fn node(n: usize, now: &str) -> Value {
    let name = node_name(n);
    let zone = format!("zone-{}", char::from(b'a' + (n / NODES_A_ZONE % 3) as u8));
    let condition = |kind: &str, status: &str, reason: &str| {
        json!({
            "type": kind, "status": status, "reason": reason,
            "message": format!("kubelet has posted its condition {kind} as {status}"),
            "lastHeartbeatTime": now, "lastTransitionTime": "2026-05-01T10:00:09Z",
        })
    };
    let images: Vec<Value> = (0..20)
        .map(|at| {
            let image = format!("registry.example/team/app-{at}");
            let digest = "6926dd802f40e5e7257fded83e0d8030039642e4e10c4a98a6478e9c6fe06153";
            json!({
                "names": [format!("{image}@sha256:{digest}"), format!("{image}:1.27.3")],
                "sizeBytes": 54_000_000 + at,
            })
        })
        .collect();
    let amounts = json!({
        "cpu": "16", "memory": "65844432Ki", "pods": "110", "ephemeral-storage": "203056560Ki",
        "hugepages-1Gi": "0", "hugepages-2Mi": "0",
    });
    let address = format!("10.{}.{}.{}", n / 65_536, n / 256 % 256, n % 256);
    let range = format!("10.{}.{}.0/24", 64 + n / 256, n % 256);
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {
            "name": name, "uid": uid(5, n), "creationTimestamp": "2026-05-01T10:00:00Z",
            "labels": {
                "beta.kubernetes.io/arch": "amd64", "beta.kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64", "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux", "node.kubernetes.io/instance-type": "m.large",
                "topology.kubernetes.io/region": "region", "topology.kubernetes.io/zone": zone,
            },
            "annotations": { "volumes.kubernetes.io/controller-managed-attach-detach": "true" },
        },
        "spec": { "podCIDR": range, "podCIDRs": [range], "providerID": format!("example:///{name}") },
        "status": {
            "capacity": amounts, "allocatable": amounts,
            "conditions": [
                condition("MemoryPressure", "False", "KubeletHasSufficientMemory"),
                condition("DiskPressure", "False", "KubeletHasNoDiskPressure"),
                condition("PIDPressure", "False", "KubeletHasSufficientPID"),
                condition("Ready", "True", "KubeletReady"),
            ],
            "addresses": [
                { "type": "InternalIP", "address": address }, { "type": "Hostname", "address": name },
            ],
            "daemonEndpoints": { "kubeletEndpoint": { "Port": 10250 } },
            "nodeInfo": {
                "architecture": "amd64", "operatingSystem": "linux", "bootID": uid(6, n),
                "machineID": uid(7, n), "systemUUID": uid(8, n), "kernelVersion": "6.12.0",
                "osImage": "Example Linux 12", "containerRuntimeVersion": "containerd://2.1.0",
                "kubeletVersion": "v1.36.2", "kubeProxyVersion": "",
            },
            "images": images,
        },
    })
}

/// Builds the lease of the `n`th node.
pub fn lease(n: usize, now: &str) -> Value {
    let name = node_name(n);
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {
            "name": name, "namespace": "kube-node-lease", "uid": uid(9, n),
            "creationTimestamp": "2026-05-01T10:00:00Z",
            "ownerReferences": [{
                "apiVersion": "v1", "kind": "Node", "name": name, "uid": uid(5, n),
            }],
        },
        "spec": { "holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": now },
    })
}

/// Returns the name of the `n`th pod that stands alone.
pub fn pod_name(n: usize) -> String {
    format!("pod-{n:06}")
}

/// Builds the `n`th pod without an owner, running on a node. It tolerates for some seconds that its
/// node is lost, or for ever.
pub fn bound_pod(n: usize, node: usize, namespace: &str, tolerated: Option<i64>) -> Value {
    let toleration = |key: &str| {
        let mut toleration = json!({
            "key": format!("node.kubernetes.io/{key}"), "operator": "Exists", "effect": "NoExecute",
        });
        if let Some(seconds) = tolerated {
            toleration["tolerationSeconds"] = seconds.into();
        }
        toleration
    };
    let mut pod = running_pod(n, n / PODS_A_SET);
    pod["metadata"] = json!({
        "name": pod_name(n), "namespace": namespace, "uid": uid(1, n), "generation": 1,
        "creationTimestamp": "2026-05-01T10:00:01Z",
        "labels": { "app": format!("app-{}", n / PODS_A_SET), "tier": "backend" },
    });
    pod["spec"]["nodeName"] = node_name(node).into();
    pod["spec"]["tolerations"] = json!([toleration("not-ready"), toleration("unreachable")]);
    pod
}

/// Encodes the `n`th ReplicaSet, of the pods `n * PODS_A_SET` and on.
pub fn replica_set(n: usize) -> Vec<u8> {
    let hash = format!("{:x}", 0x7d4b_9c6f_u64 + n as u64);
    let labels = json!({ "app": format!("app-{n}"), "tier": "backend", "pod-template-hash": hash });
    let mut template = template(&format!("app-{n}"), n);
    template["metadata"]["labels"] = labels.clone();
    let set = json!({
        "apiVersion": "apps/v1", "kind": "ReplicaSet",
        "metadata": {
            "name": format!("app-{n}-{hash}"), "namespace": format!("team-{}", n / 10), "uid": uid(2, n),
            "resourceVersion": (2_000_000 + n).to_string(), "generation": 1,
            "creationTimestamp": "2026-05-01T10:00:00Z", "labels": labels,
            "annotations": {
                "deployment.kubernetes.io/desired-replicas": "100",
                "deployment.kubernetes.io/max-replicas": "125", "deployment.kubernetes.io/revision": "1",
            },
            "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": "Deployment", "name": format!("app-{n}"), "uid": uid(3, n),
                "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "spec": { "replicas": 100, "selector": { "matchLabels": labels }, "template": template },
        "status": {
            "replicas": 100, "fullyLabeledReplicas": 100, "readyReplicas": 100, "availableReplicas": 100,
            "observedGeneration": 1,
        },
    });
    set.to_string().into_bytes()
}

/// Returns `size` bytes, or a little more, as the data of a ConfigMap.
pub fn data(size: usize) -> Value {
    json!({ "app.conf": "key = value\n".repeat(size.div_ceil(12)) })
}

/// Encodes the `n`th ConfigMap, with `size` bytes of data.
pub fn config_map(n: usize, size: usize) -> Vec<u8> {
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {
            "name": format!("app-{n}-config"), "namespace": format!("team-{}", n / 10), "uid": uid(4, n),
            "resourceVersion": (3_000_000 + n).to_string(), "creationTimestamp": "2026-05-01T10:00:00Z",
        },
        "data": data(size),
    });
    map.to_string().into_bytes()
}

/// Joins encoded `items` to a list as the API server sends it.
pub fn list(kind: &str, items: impl IntoIterator<Item = Vec<u8>>) -> Vec<u8> {
    let head =
        r#"{"kind":"KIND","apiVersion":"v1","metadata":{"resourceVersion":"9000000"},"items":["#;
    let mut body = head.replace("KIND", kind).into_bytes();
    for (n, item) in items.into_iter().enumerate() {
        if n > 0 {
            body.push(b',');
        }
        body.extend_from_slice(&item);
    }
    body.extend_from_slice(b"]}\n");
    body
}

/// Returns an event of a watch.
pub fn event(kind: &str, object: &[u8]) -> Vec<u8> {
    [br#"{"type":""#, kind.as_bytes(), br#"","object":"#, object, b"}\n"].concat()
}
