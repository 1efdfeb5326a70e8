//! Resources of running containers that change in place.

use std::fs;

use kube_controller_manager::client::Patch;
use kube_controller_manager::objects::{Pod, Resource};
use kube_controller_manager::task;
use serde_json::{Value, json};

use super::api::{Agent, Server, key};
use super::machine::{Error, Machine};
use super::node::{Node, cgroups_of, place};
use super::pods::{condition, container, is_ready};

impl Server {
    async fn resize(&self, name: &str, containers: Value) {
        self.resize_spec(name, json!({"containers": containers})).await;
    }

    async fn resize_spec(&self, name: &str, spec: Value) {
        let pods = self.client.resource(&Pod::RESOURCE).subresource("resize");
        let change = Patch::StrategicMerge(json!({"spec": spec}));
        pods.patch::<Value>(&key(name), &change).await.expect("resized");
    }
}

/// The limits of a cgroup, as its files have them: the quota of CPU, and the bytes of memory.
fn limits_of(path: &str) -> (String, String) {
    let of = |[controller, v1]: [&str; 2], v2: &str| {
        let folder = cgroups_of(controller).join(path);
        let file = if folder.join(v2).exists() { v2 } else { v1 };
        let text = fs::read_to_string(folder.join(file)).unwrap_or_default();
        // In version 2 the period follows.
        text.split_whitespace().next().unwrap_or_default().to_owned()
    };
    let cpu = of(["cpu", "cpu.cfs_quota_us"], "cpu.max");
    let memory = of(["memory", "memory.limit_in_bytes"], "memory.max");
    (cpu, memory)
}

/// The id of a container, as the runtime has it.
fn id_of(status: &Value) -> &str {
    let id = status["containerID"].as_str().and_then(|id| id.rsplit('/').next());
    id.expect("an id")
}

fn both(cpu: &str, memory: &str) -> Value {
    let list = json!({"cpu": cpu, "memory": memory});
    json!({"requests": list, "limits": list})
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
        let pod_path = format!("{}/kubepods/pod{uid}", machine.name);
        let own_path = format!("{pod_path}/{}", id_of(container(&pod)));
        let limits = || [limits_of(&pod_path), limits_of(&own_path)];
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

/// The resources of a pod's sidecar and of its container, in this order.
fn parts(pod: &Value) -> [&Value; 2] {
    [&pod["status"]["initContainerStatuses"][0], container(pod)]
}

/// What a part of a pod is to have: the same requests and limits, allocated and in its cgroup.
struct Wanted<'a> {
    cpu: &'a str,
    memory: &'a str,
    limits: [&'a str; 2],
}

impl Wanted<'_> {
    fn resources(&self) -> Value {
        both(self.cpu, self.memory)
    }

    fn is_in(&self, status: &Value) -> bool {
        let resources = self.resources();
        status["resources"] == resources
            && status["allocatedResources"] == resources["requests"]
            && status["state"]["running"].is_object()
    }
}

const SMALL: Wanted = Wanted { cpu: "50m", memory: "16Mi", limits: ["5000", "16777216"] };
const MEDIUM: Wanted = Wanted { cpu: "100m", memory: "32Mi", limits: ["10000", "33554432"] };
const LARGE: Wanted = Wanted { cpu: "100m", memory: "64Mi", limits: ["10000", "67108864"] };

#[test]
fn sidecars_are_resized_and_containers_restart_where_their_policy_says_so() {
    let Some(machine) = Node::start("resize-parts") else { return };
    task::run(1, async move {
        let server = Server::start().await;
        let part = |name: &str, memory_policy: &str| {
            json!({
                "name": name, "image": "node.test/busybox:1", "command": ["sleep", "infinity"],
                "resources": SMALL.resources(),
                "resizePolicy": [
                    {"resourceName": "cpu", "restartPolicy": "NotRequired"},
                    {"resourceName": "memory", "restartPolicy": memory_policy},
                ],
            })
        };
        let mut sidecar = part("side", "NotRequired");
        sidecar["restartPolicy"] = json!("Always");
        let spec = json!({
            "terminationGracePeriodSeconds": 1, "initContainers": [sidecar],
            "containers": [part("main", "RestartContainer")],
        });
        server.create("p", "n", json!({}), spec).await;
        let _agent = Agent::start(&machine, &server.sandbox.kubeconfig());
        let first = server.eventually("p", "ready", is_ready).await;
        let uid = first["metadata"]["uid"].as_str().expect("a uid");
        let pod_path = format!("{}/kubepods/pod{uid}", machine.name);
        // The part, what both get, the pod's limits then, and how often the parts have restarted.
        let steps = [
            ("initContainers", "side", [&LARGE, &SMALL], ["15000", "83886080"], [0, 0]),
            ("containers", "main", [&LARGE, &MEDIUM], ["20000", "100663296"], [0, 1]),
            ("initContainers", "side", [&MEDIUM, &MEDIUM], ["20000", "67108864"], [0, 1]),
            ("containers", "main", [&MEDIUM, &SMALL], ["15000", "50331648"], [0, 2]),
        ];
        let mut before = first.clone();
        for (list, name, wanted, of_pod, restarts) in steps {
            let at = usize::from(name == "main");
            let change = json!([{"name": name, "resources": wanted[at].resources()}]);
            server.resize_spec("p", json!({list: change})).await;
            let pod = server.eventually("p", "resized", |pod| {
                let parts = parts(pod);
                wanted[0].is_in(parts[0])
                    && wanted[1].is_in(parts[1])
                    && condition(pod, "PodResizePending").is_null()
                    && condition(pod, "PodResizeInProgress").is_null()
                    && is_ready(pod)
            });
            let pod = pod.await;
            let counts = parts(&pod).map(|status| status["restartCount"].as_u64());
            assert_eq!(counts, restarts.map(Some), "{pod:#}\n{}", machine.log());
            let ids = |pod: &Value| parts(pod).map(|status| id_of(status).to_owned());
            let is_same = [0, 1].map(|part| ids(&before)[part] == ids(&pod)[part]);
            assert_eq!(is_same, [true, name != "main"], "{before:#}\n{pod:#}");
            assert_eq!(limits_of(&pod_path), (of_pod[0].to_owned(), of_pod[1].to_owned()));
            for (status, wanted) in parts(&pod).into_iter().zip(wanted) {
                let found = limits_of(&format!("{pod_path}/{}", id_of(status)));
                let expected = wanted.limits.map(str::to_owned);
                assert_eq!(found, <(String, String)>::from(expected), "{}", machine.log());
            }
            let generation = &pod["metadata"]["generation"];
            assert_eq!(&pod["status"]["observedGeneration"], generation, "{pod:#}");
            before = pod;
        }
    });
}

#[test]
fn pods_with_resources_of_their_own_are_resized() {
    let Some(machine) = Node::start("resize-pod") else { return };
    task::run(1, async move {
        let server = Server::start().await;
        let part = |name: &str| {
            json!({
                "name": name, "image": "node.test/busybox:1", "command": ["sleep", "infinity"],
            })
        };
        let mut bounded = part("bounded");
        bounded["resources"] = SMALL.resources();
        let spec = json!({
            "terminationGracePeriodSeconds": 1, "resources": both("200m", "64Mi"),
            "containers": [bounded, part("free")],
        });
        server.create("p", "n", json!({}), spec).await;
        let mut agent = Agent::start(&machine, &server.sandbox.kubeconfig());
        let first = server.eventually("p", "ready", is_ready).await;
        let uid = first["metadata"]["uid"].as_str().expect("a uid");
        let pod_path = format!("{}/kubepods/pod{uid}", machine.name);
        let ids = |pod: &Value| {
            [0, 1].map(|at| id_of(&pod["status"]["containerStatuses"][at]).to_owned())
        };
        let limits = |path: &str| -> [String; 2] { limits_of(path).into() };
        assert_eq!(limits(&pod_path), ["20000", "67108864"]);
        for (cpu, memory, of_pod) in
            [("400m", "128Mi", ["40000", "134217728"]), ("100m", "48Mi", ["10000", "50331648"])]
        {
            let wanted = both(cpu, memory);
            server.resize_spec("p", json!({"resources": wanted})).await;
            let pod = server.eventually("p", "resized", |pod| {
                pod["status"]["resources"] == wanted
                    && pod["status"]["allocatedResources"] == wanted["requests"]
                    && condition(pod, "PodResizePending").is_null()
                    && condition(pod, "PodResizeInProgress").is_null()
            });
            let pod = pod.await;
            assert_eq!(limits(&pod_path), of_pod, "{}", machine.log());
            // A container without limits has those of its pod; one with its own keeps them.
            let [bounded, free] = ids(&pod).map(|id| limits(&format!("{pod_path}/{id}")));
            assert_eq!(bounded, SMALL.limits, "{}", machine.log());
            assert_eq!(free, of_pod, "{}", machine.log());
            assert_eq!(ids(&pod), ids(&first));
            // The kubelet that comes next neither restarts nor resizes anything.
            drop(agent);
            agent = Agent::start(&machine, &server.sandbox.kubeconfig());
        }
        server.resize_spec("p", json!({"resources": both("900", "48Mi")})).await;
        let is_deferred = |pod: &Value| condition(pod, "PodResizePending")["reason"] == "Deferred";
        let pod = server.eventually("p", "deferred", is_deferred).await;
        assert_eq!(pod["status"]["allocatedResources"], both("100m", "48Mi")["requests"]);
        assert_eq!(limits(&pod_path), ["10000", "50331648"]);
        assert_eq!(ids(&pod), ids(&first));
        drop(agent);
    });
}
