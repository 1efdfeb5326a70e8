//! The Node in the API server: the embedded one, beside a runtime without containers.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use kube_controller_manager::client::{Delete, ListOptions, Patch};
use kube_controller_manager::objects::{Lease, Node, ObjectKey, Resource, ResourceType};
use kube_controller_manager::task;
use kubelet::cri::api;
use serde_json::{Value, json};

use super::api::Server;
use super::fake_runtime::{Answers, FakeRuntime};
use super::node::kubelet;

const PATIENCE: Duration = Duration::from_secs(120);
pub const NAME: &str = "n1";
pub const EVENTS: ResourceType = ResourceType::fixed("", "v1", "Event", "events", true);

/// A kubelet in a folder of its own, in which its mounts end with it.
pub struct Agent {
    child: Child,
    folder: PathBuf,
}

impl Agent {
    pub fn start(folder: &Path, server: &Server, runtime: &FakeRuntime, flags: &[&str]) -> Agent {
        let path = |name: &str| folder.join(name).display().to_string();
        let config = format!(
            "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
             podLogsDir: {}\nhealthzPort: 0\nenableServer: false\nresolvConf: ''\ncgroupsPerQOS: false\n\
             evictionHard: {{memory.available: 1Mi}}\nimageGCHighThresholdPercent: 100\n\
             nodeStatusUpdateFrequency: 1s\nnodeStatusReportFrequency: 1h\n\
             nodeLeaseDurationSeconds: 4\nsystemReserved: {{cpu: 100m, memory: 10Mi}}\n\
             kubeReserved: {{memory: 20Mi}}\nproviderID: fake://1\nmaxPods: 7\n\
             registerWithTaints: [{{key: a, value: b, effect: NoSchedule}}]\n",
            path("podlogs"),
        );
        std::fs::write(path("config"), config).expect("a file");
        let log = std::fs::File::options().append(true).create(true).open(path("kubelet.log"));
        let child = Command::new("unshare")
            .arg("--mount")
            .arg(kubelet())
            .arg(format!("--config={}", path("config")))
            .arg(format!("--kubeconfig={}", server.sandbox.kubeconfig().display()))
            .arg(format!("--container-runtime-endpoint=unix://{}", runtime.socket.display()))
            .arg(format!("--root-dir={}", path("kubelet")))
            .args([&format!("--hostname-override={NAME}"), "-v=4"])
            .args(["--node-labels=x=y,node.kubernetes.io/z=1"])
            .args(flags)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log.expect("a log"))
            .spawn()
            .expect("the kubelet");
        Agent { child, folder: folder.to_owned() }
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("kubelet.log")).unwrap_or_default()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The folder of a test, removed when dropped.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn make() -> Folder {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::SeqCst);
        let folder = std::env::temp_dir().join(format!("kreg{}x{number}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        Folder(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Whether the kubelet can run here: it mounts.
pub fn is_possible() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    let can_unshare = || {
        let probe =
            Command::new("unshare").args(["--mount", "true"]).stderr(Stdio::null()).status();
        probe.is_ok_and(|status| status.success())
    };
    let is_possible = is_root && can_unshare();
    if !is_possible {
        eprintln!("registration: skipped: it needs root and mount namespaces");
    }
    is_possible
}

pub fn status(network_is_ready: bool) -> api::StatusResponse {
    let condition = |kind: &str, status| api::RuntimeCondition {
        r#type: kind.to_owned(),
        status,
        reason: "R".to_owned(),
        message: "m".to_owned(),
    };
    let conditions =
        vec![condition("RuntimeReady", true), condition("NetworkReady", network_is_ready)];
    api::StatusResponse {
        status: Some(api::RuntimeStatus { conditions }),
        runtime_handlers: vec![api::RuntimeHandler { name: "h".to_owned(), features: None }],
        features: Some(api::RuntimeFeatures {
            supplemental_groups_policy: true,
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn ready(node: &Value) -> Value {
    let conditions = node["status"]["conditions"].as_array().into_iter().flatten();
    let mut ready = conditions.filter(|condition| condition["type"] == "Ready").cloned();
    ready.next().unwrap_or_default()
}

fn is_ready(node: &Value) -> bool {
    ready(node)["status"] == "True"
}

/// An object of the server; null: it is not there.
async fn get(server: &Server, resource: &ResourceType, key: &ObjectKey) -> Value {
    match server.client.resource(resource).get(key).await {
        Ok(object) => object,
        Err(error) if error.is_not_found() => Value::Null,
        Err(error) => panic!("{error}"),
    }
}

/// Waits for a moment, or fails after a long time.
async fn pause(server: &Server, what: &str, end: Duration) {
    assert!(server.clock.monotonic() < end, "not {what}");
    server.clock.sleep(Duration::from_millis(100)).await;
}

async fn until(server: &Server, what: &str, is_so: impl Fn() -> bool + Send) {
    let end = server.clock.monotonic() + PATIENCE;
    while !is_so() {
        pause(server, what, end).await;
    }
}

async fn object(
    server: &Server,
    (resource, key): (&ResourceType, ObjectKey),
    what: &str,
    is_so: impl Fn(&Value) -> bool + Send,
) -> Value {
    let end = server.clock.monotonic() + PATIENCE;
    loop {
        let found = get(server, resource, &key).await;
        if is_so(&found) {
            return found;
        }
        pause(server, what, end).await;
    }
}

async fn node(server: &Server, what: &str, is_so: impl Fn(&Value) -> bool + Send) -> Value {
    object(server, (&Node::RESOURCE, ObjectKey::cluster(NAME)), what, is_so).await
}

async fn lease(server: &Server, what: &str, is_so: impl Fn(&Value) -> bool + Send) -> Value {
    let key = ObjectKey::new("kube-node-lease", NAME);
    object(server, (&Lease::RESOURCE, key), what, is_so).await
}

async fn event(server: &Server, reason: &str) -> Value {
    let end = server.clock.monotonic() + PATIENCE;
    loop {
        let events = server.client.resource(&EVENTS);
        let all = events.list::<Value>(Some("default"), &ListOptions::default()).await;
        let mut all = all.expect("a list").items.into_iter();
        if let Some(event) = all.find(|event| event["reason"] == reason) {
            return event;
        }
        pause(server, reason, end).await;
    }
}

async fn patch_node(server: &Server, is_status: bool, change: Value) {
    let mut nodes = server.client.resource(&Node::RESOURCE);
    if is_status {
        nodes = nodes.subresource("status");
    }
    let key = ObjectKey::cluster(NAME);
    nodes.patch::<Value>(&key, &Patch::Merge(change)).await.expect("patched");
}

#[test]
fn node_is_registered_reported_and_leased() {
    if !is_possible() {
        return;
    }
    task::run(1, async {
        let server = Server::start().await;
        let folder = Folder::make();
        let image = |size, tag: &str| api::Image {
            repo_tags: vec![tag.to_owned()],
            size,
            ..Default::default()
        };
        let images = vec![image(1, "small"), image(2, "large")];
        let answers = Answers { status: status(false), images, ..Answers::default() };
        let cidrs = answers.pod_cidrs.clone();
        let runtime = FakeRuntime::start(&folder.0, answers);
        let agent = Agent::start(&folder.0, &server, &runtime, &["--pod-cidr=10.0.0.0/24"]);

        // Not ready at first, by the runtime. Images are listed meanwhile.
        let has_csi_node = |node: &Value| {
            let message = ready(node)["message"].as_str().unwrap_or_default().to_owned();
            !message.is_empty() && !message.contains("CSINode")
        };
        let first = node(&server, "registered", |node| {
            has_csi_node(node) && node["status"]["images"][0].is_object()
        });
        let first = first.await;
        let labels = &first["metadata"]["labels"];
        assert_eq!((&labels["x"], &labels["node.kubernetes.io/z"]), (&json!("y"), &json!("1")));
        assert_eq!(labels["kubernetes.io/hostname"], NAME);
        assert_eq!(first["spec"]["providerID"], "fake://1");
        let taints = first["spec"]["taints"].as_array().expect("taints");
        assert!(taints.contains(&json!({"key": "a", "value": "b", "effect": "NoSchedule"})));
        let fault = "container runtime network not ready: NetworkReady=false reason:R message:m";
        assert_eq!(ready(&first)["message"], fault, "{first:#}");
        assert_eq!(ready(&first)["reason"], "KubeletNotReady");
        let status_of = &first["status"];
        assert_eq!(status_of["nodeInfo"]["containerRuntimeVersion"], "fake://1.2.3");
        assert_eq!(status_of["nodeInfo"]["kubeletVersion"], "v1.36.2");
        assert_eq!(status_of["images"][0], json!({"names": ["large"], "sizeBytes": 2}));
        assert_eq!(status_of["runtimeHandlers"][0]["name"], "h");
        assert_eq!(status_of["capacity"]["pods"], "7");
        let amount = |list: &str, resource: &str| -> i64 {
            let text = status_of[list][resource].as_str().expect("an amount");
            text.parse::<kube_controller_manager::objects::Quantity>().expect("it").milli_value()
        };
        let reserved =
            |resource: &str| amount("capacity", resource) - amount("allocatable", resource);
        assert_eq!(reserved("cpu"), 100);
        assert_eq!(reserved("memory"), ((10 + 20 + 1) << 20) * 1000);

        // Ready soon after the runtime is.
        runtime.change(|answers| answers.status = status(true));
        let now = node(&server, "ready", is_ready).await;
        assert_eq!(now["metadata"]["uid"], first["metadata"]["uid"]);
        event(&server, "NodeReady").await;
        let starting = event(&server, "Starting").await;
        assert_eq!(starting["source"], json!({"component": "kubelet", "host": NAME}));
        assert_eq!(starting["involvedObject"]["kind"], "Node");
        event(&server, "NodeHasSufficientMemory").await;
        if !Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
            event(&server, "CgroupV1").await;
        }

        // The runtime makes its network of the Node's ranges, each once.
        assert_eq!(*cidrs.lock(), ["10.0.0.0/24"]);
        let ranges = ["10.1.0.0/24", "fd00::/64"];
        let spec = json!({"podCIDR": ranges[0], "podCIDRs": ranges});
        patch_node(&server, false, json!({"spec": spec})).await;
        let all = ["10.0.0.0/24".to_owned(), ranges.join(",")];
        node(&server, "given its ranges", |_| *cidrs.lock() == all).await;

        // The lease belongs to the Node, is renewed, and keeps what others write.
        let first = lease(&server, "leased", |lease| !lease.is_null()).await;
        let owner = &first["metadata"]["ownerReferences"][0];
        assert_eq!((&owner["kind"], &owner["uid"]), (&json!("Node"), &now["metadata"]["uid"]));
        assert_eq!(first["spec"]["leaseDurationSeconds"], 4);
        assert_eq!(first["spec"]["holderIdentity"], NAME);
        let key = ObjectKey::new("kube-node-lease", NAME);
        let change = Patch::Merge(json!({"metadata": {"annotations": {"a": "b"}}}));
        let leases = server.client.resource(&Lease::RESOURCE);
        let marked: Value = leases.patch(&key, &change).await.expect("patched");
        let renewed = lease(&server, "renewed", |lease| {
            lease["spec"]["renewTime"] != marked["spec"]["renewTime"]
        });
        assert_eq!(renewed.await["metadata"]["annotations"]["a"], "b");
        leases.delete(&key, Delete::new()).await.expect("deleted");
        lease(&server, "made again", |lease| !lease.is_null()).await;

        // What others change comes back, and what is theirs stays.
        let others = json!([{"type": "InternalIP", "address": "192.0.2.1"}]);
        patch_node(
            &server,
            true,
            json!({"status": {
                "addresses": others, "capacity": {"example.com/x": "3"},
            }}),
        )
        .await;
        patch_node(&server, false, json!({"metadata": {"labels": {"kubernetes.io/os": "x"}}}))
            .await;
        let back = node(&server, "restored", |node| {
            node["status"]["addresses"] == now["status"]["addresses"]
                && node["metadata"]["labels"]["kubernetes.io/os"] == "linux"
        });
        let back = back.await;
        assert_eq!(back["status"]["capacity"]["example.com/x"], "3");
        assert_eq!(back["status"]["allocatable"]["example.com/x"], "3");
        patch_node(&server, false, json!({"spec": {"unschedulable": true}})).await;
        event(&server, "NodeNotSchedulable").await;

        // Nothing has changed since: nothing is written.
        let settled = node(&server, "settled", |_| true).await;
        let renewals = lease(&server, "leased", |_| true).await;
        for _ in 0..3 {
            let last = lease(&server, "leased", |_| true).await;
            lease(&server, "renewed", |lease| lease["spec"] != last["spec"]).await;
        }
        assert_ne!(lease(&server, "leased", |_| true).await["spec"], renewals["spec"]);
        let still = node(&server, "there", |_| true).await;
        assert_eq!(still["metadata"]["resourceVersion"], settled["metadata"]["resourceVersion"]);

        // The API server goes away and comes back.
        let last = lease(&server, "leased", |_| true).await;
        server.sandbox.faults().cut_all();
        runtime.change(|answers| answers.status = status(false));
        let is_missed = || agent.log().contains("Error updating node status");
        until(&server, "missed", is_missed).await;
        server.sandbox.faults().come_back();
        node(&server, "reported", |node| !is_ready(node)).await;
        event(&server, "NodeNotReady").await;
        lease(&server, "renewed", |lease| lease["spec"] != last["spec"]).await;
        runtime.change(|answers| answers.status = status(true));
        node(&server, "ready", is_ready).await;

        // A Node that a person deletes stays away until the kubelet starts again.
        let uid = still["metadata"]["uid"].clone();
        let nodes = server.client.resource(&Node::RESOURCE);
        nodes.delete(&ObjectKey::cluster(NAME), Delete::new()).await.expect("deleted");
        let lines = || agent.log().matches("update node status exceeds retry count").count();
        let before = lines();
        until(&server, "missed", || lines() > before + 1).await;
        assert!(get(&server, &Node::RESOURCE, &ObjectKey::cluster(NAME)).await.is_null());
        drop(agent);
        let agent = Agent::start(&folder.0, &server, &runtime, &[]);
        let again = node(&server, "registered again", is_ready).await;
        assert_ne!(again["metadata"]["uid"], uid);
        drop(agent);

        // A Node that exists keeps its labels and taints, but for those that the machine has.
        patch_node(
            &server,
            false,
            json!({
                "metadata": {"labels": {"kubernetes.io/hostname": "other", "mine": "1", "x": null}},
                "spec": {"taints": null},
            }),
        )
        .await;
        let _agent = Agent::start(&folder.0, &server, &runtime, &[]);
        let kept = node(&server, "reconciled", |node| {
            node["metadata"]["labels"]["kubernetes.io/hostname"] == NAME
        });
        let kept = kept.await;
        let labels = &kept["metadata"]["labels"];
        assert_eq!((&labels["mine"], &labels["x"]), (&json!("1"), &Value::Null));
        assert!(kept["spec"]["taints"].is_null(), "{kept:#}");
    });
}

#[test]
fn node_of_others_is_not_registered() {
    if !is_possible() {
        return;
    }
    task::run(1, async {
        let server = Server::start().await;
        let folder = Folder::make();
        let answers = Answers { status: status(true), ..Answers::default() };
        let runtime = FakeRuntime::start(&folder.0, answers);
        let agent = Agent::start(&folder.0, &server, &runtime, &["--register-node=false"]);
        let is_missed = || agent.log().contains("update node status exceeds retry count");
        until(&server, "missed", is_missed).await;
        assert!(get(&server, &Node::RESOURCE, &ObjectKey::cluster(NAME)).await.is_null());
        // The status of a Node that somebody makes is written.
        let new = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NAME}});
        let nodes = server.client.resource(&Node::RESOURCE);
        nodes.create::<Value>("", &new).await.expect("created");
        node(&server, "ready", is_ready).await;
    });
}
