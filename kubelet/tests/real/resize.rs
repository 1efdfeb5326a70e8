//! Resources of running containers that change in place.

use std::fs;

use kube_controller_manager::client::Patch;
use kube_controller_manager::objects::{Pod, Resource};
use kube_controller_manager::task;
use serde_json::{Value, json};

use super::api::{Agent, Server, key};
use super::machine::{Error, Machine};
use super::node::{cgroups_of, place};
use super::pods::{container, is_ready};

impl Server {
    async fn resize(&self, name: &str, containers: Value) {
        let pods = self.client.resource(&Pod::RESOURCE).subresource("resize");
        let change = Patch::StrategicMerge(json!({"spec": {"containers": containers}}));
        pods.patch::<Value>(&key(name), &change).await.expect("resized");
    }
}

fn both(cpu: &str, memory: &str) -> Value {
    let list = json!({"cpu": cpu, "memory": memory});
    json!({"requests": list, "limits": list})
}

fn condition(pod: &Value, kind: &str) -> Value {
    let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    conditions.into_iter().find(|one| one["type"] == kind).cloned().unwrap_or_default()
}

fn has(pod: &Value, resources: &Value) -> bool {
    let status = container(pod);
    status["resources"] == *resources
        && status["allocatedResources"] == resources["requests"]
        && pod["status"]["resources"]["limits"] == resources["limits"]
        && condition(pod, "PodResizeInProgress").is_null()
}

#[test]
fn running_containers_are_resized_in_place() {
    let Some(_place) = place("resize") else { return };
    let machine = match Machine::start(format!("/tmp/kres{}", std::process::id()).into()) {
        Ok(machine) => machine,
        Err(Error::Missing(line)) => return eprintln!("resize: {line}"),
        Err(Error::Failed(text)) => panic!("{text}"),
    };
    task::run(1, async move {
        let server = Server::start().await;
        let spec = json!({
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "main", "image": "node.test/busybox:1", "command": ["sleep", "infinity"],
                "resources": both("100m", "32Mi"),
                "resizePolicy": [
                    {"resourceName": "cpu", "restartPolicy": "NotRequired"},
                    {"resourceName": "memory", "restartPolicy": "NotRequired"},
                ],
            }],
        });
        server.create("p", "n", json!({}), spec).await;
        let agent = Agent::start(&machine, &server.sandbox.kubeconfig());
        let pod = server.eventually("p", "ready", is_ready).await;
        let uid = pod["metadata"]["uid"].as_str().expect("a uid").to_owned();
        let id = container(&pod)["containerID"].clone();
        let own = id.as_str().and_then(|id| id.rsplit('/').next()).expect("an id").to_owned();
        let pod_path = format!("{}/kubepods/pod{uid}", machine.name);
        let limits = || {
            let of = |path: &str, [controller, v1]: [&str; 2], v2: &str| {
                let folder = cgroups_of(controller).join(path);
                let file = if folder.join(v2).exists() { v2 } else { v1 };
                let text = fs::read_to_string(folder.join(file)).unwrap_or_default();
                // In version 2 the period follows.
                text.split_whitespace().next().unwrap_or_default().to_owned()
            };
            [&pod_path, &format!("{pod_path}/{own}")].map(|path| {
                let cpu = of(path, ["cpu", "cpu.cfs_quota_us"], "cpu.max");
                let memory = of(path, ["memory", "memory.limit_in_bytes"], "memory.max");
                (cpu, memory)
            })
        };
        // Up, then down again.
        for (cpu, memory, quota, bytes) in
            [("200m", "64Mi", "20000", "67108864"), ("50m", "16Mi", "5000", "16777216")]
        {
            let wanted = both(cpu, memory);
            server.resize("p", json!([{"name": "main", "resources": wanted}])).await;
            let pod = server.eventually("p", "resized", |pod| has(pod, &wanted)).await;
            assert_eq!(container(&pod)["containerID"], id, "{pod:#}");
            assert_eq!(container(&pod)["restartCount"], 0);
            let expected = (quota.to_owned(), bytes.to_owned());
            assert_eq!(limits(), [expected.clone(), expected], "{}", machine.log());
        }
        // The kubelet that comes next knows what runs.
        drop(agent);
        let agent = Agent::start(&machine, &server.sandbox.kubeconfig());
        // More than the node has.
        server.resize("p", json!([{"name": "main", "resources": both("900", "16Mi")}])).await;
        let is_deferred = |pod: &Value| {
            let pending = condition(pod, "PodResizePending");
            let message = pending["message"].as_str().unwrap_or_default();
            pending["reason"] == "Deferred"
                && message.starts_with("Node didn't have enough resource: cpu, requested: 900000")
        };
        let pod = server.eventually("p", "deferred", is_deferred).await;
        assert_eq!(container(&pod)["allocatedResources"]["cpu"], "50m");
        assert_eq!(container(&pod)["containerID"], id);
        // Taken back.
        server.resize("p", json!([{"name": "main", "resources": both("50m", "16Mi")}])).await;
        let is_clear = |pod: &Value| condition(pod, "PodResizePending").is_null();
        let pod = server.eventually("p", "clear", is_clear).await;
        assert_eq!(container(&pod)["containerID"], id);
        // Less than it uses.
        server.resize("p", json!([{"name": "main", "resources": both("50m", "4Ki")}])).await;
        let has_failed = |pod: &Value| {
            let progress = condition(pod, "PodResizeInProgress");
            let message = progress["message"].as_str().unwrap_or_default();
            progress["reason"] == "Error"
                && message.contains("attempting to set pod memory limit (4096) below current usage")
        };
        server.eventually("p", "refused", has_failed).await;
        assert_eq!(limits()[0].1, "16777216");
        drop(agent);
    });
}
