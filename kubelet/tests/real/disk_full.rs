//! A full disk below the kubelet's folder: what runs continues, what needs room waits with an error
//! that names the reason, no file is left half written, and all of it recovers when there is room.
//! With thresholds, the pod that fills the disk is evicted.

use std::path::PathBuf;
use std::time::Duration;

use futures_lite::future::block_on;
use kube_controller_manager::client::{ListOptions, Patch};
use kube_controller_manager::objects::{Node as NodeKind, ObjectKey, Resource, ResourceType};
use serde_json::{Value, json};

use super::api::{Agent, PATIENCE, Server, key, sleeps};
use super::node::Node;
use super::pods::{condition, container, is_ready};
use super::registration::EVENTS;

const CONFIG_MAPS: ResourceType = ResourceType::fixed("", "v1", "ConfigMap", "configmaps", true);

/// The kubelet's disk: a file system in memory.
struct Disk<'a> {
    node: &'a Node,
    /// The kubelet's folder.
    root: PathBuf,
}

impl Disk<'_> {
    /// Mounts a disk of some MiB. It ends with the machine.
    fn mount(node: &Node, size: usize) -> Disk<'_> {
        let root = node.folder.join("small");
        let disk = Disk { node, root };
        let size = format!("size={size}m");
        let mount = "mkdir $0 && mount -t tmpfs -o $1 small $0 && mount --make-shared $0";
        disk.run(mount, &size);
        disk
    }

    /// Runs a script in the machine, with the disk's folder as `$0` and an argument as `$1`.
    fn run(&self, script: &str, argument: &str) -> String {
        let mut run = self.node.script("run");
        run.args(["sh", "-c", script]).arg(&self.root).arg(argument);
        let output = run.output().expect("a shell");
        assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Takes all the room that there is.
    fn fill(&self) {
        self.run("dd if=/dev/zero of=$0/filler bs=4k 2>/dev/null || test -s $0/filler", "");
    }

    fn free(&self) {
        self.run("rm $0/filler", "");
    }

    fn agent(&self, server: &Server, flags: &[&str]) -> Agent {
        let own = [
            format!("--kubeconfig={}", server.sandbox.kubeconfig().display()),
            format!("--root-dir={}", self.root.display()),
        ];
        let flags: Vec<&str> =
            own.iter().map(String::as_str).chain(flags.iter().copied()).collect();
        Agent::start_by(self.node, &flags, "syncFrequency: 5s\n")
    }
}

impl Server {
    async fn set_color(&self, color: &str) {
        let change = Patch::Merge(json!({"data": {"color": color}}));
        let maps = self.client.resource(&CONFIG_MAPS);
        maps.patch::<Value>(&key("app"), &change).await.expect("changed");
    }

    /// The messages of a pod's events of a reason.
    async fn messages(&self, pod: &str, reason: &str) -> Vec<String> {
        let events = self.client.resource(&EVENTS);
        let all = events.list::<Value>(Some("default"), &ListOptions::default()).await;
        let of_pod =
            all.expect("a list").items.into_iter().filter(|event| {
                event["involvedObject"]["name"] == pod && event["reason"] == reason
            });
        of_pod.filter_map(|event| event["message"].as_str().map(str::to_owned)).collect()
    }
}

/// A pod with the ConfigMap as a volume and a folder of its own.
fn configured() -> Value {
    let mut spec = sleeps();
    spec["volumes"] = json!([
        {"name": "config", "configMap": {"name": "app"}}, {"name": "data", "emptyDir": {}},
    ]);
    spec["containers"][0]["volumeMounts"] = json!([
        {"name": "config", "mountPath": "/config"}, {"name": "data", "mountPath": "/data"},
    ]);
    spec
}

#[test]
fn full_disk_delays_what_needs_room_and_breaks_nothing() {
    let Some(node) = Node::start("disk-full") else { return };
    block_on(async move {
        let server = Server::start().await;
        // It does not fit into what a page of the disk has left over.
        let text = "x".repeat(200_000);
        let map = json!({"metadata": {"name": "app"}, "data": {"color": "red", "text": text}});
        let maps = server.client.resource(&CONFIG_MAPS);
        maps.create::<Value>("default", &map).await.expect("created");
        let disk = Disk::mount(&node, 16);
        let eventually = async |what: &str, is_so: &dyn Fn() -> bool| {
            let end = server.clock.monotonic() + PATIENCE;
            while !is_so() {
                assert!(server.clock.monotonic() < end, "not {what}:\n{}", node.log());
                server.clock.sleep(Duration::from_millis(200)).await;
            }
        };
        server.create("before", "n", json!({}), configured()).await;
        let agent = disk.agent(&server, &[]);
        let before = server.eventually("before", "ready", is_ready).await;
        let uid = before["metadata"]["uid"].as_str().expect("a uid");
        let volume = format!("pods/{uid}/volumes/kubernetes.io~configmap/config");
        let read = |name: &str| disk.run("cat $0/$1", &format!("{volume}/{name}"));

        disk.fill();
        server.set_color("blue").await;
        server.create("during", "n", json!({}), configured()).await;
        let no_room = |text: &str| text.to_lowercase().contains("no space left on device");
        let end = server.clock.monotonic() + PATIENCE;
        while !server.messages("during", "FailedMount").await.iter().any(|text| no_room(text)) {
            let log = node.log();
            assert!(server.clock.monotonic() < end, "{log}");
            server.clock.sleep(Duration::from_millis(200)).await;
        }
        let failures = || {
            let log = node.log();
            let lines = log.lines().filter(|line| line.contains("default/before"));
            lines.filter(|line| no_room(line) && line.contains("no retries permitted")).count()
        };
        eventually("a failed change", &|| failures() >= 2).await;
        // All of the old files are there, and what runs is as it was.
        assert_eq!(read("color"), "red");
        assert_eq!(read("text"), text);
        let during = server.pod("during").await;
        assert_eq!(during["status"]["phase"], "Pending", "{during:#}");
        let waiting = &container(&during)["state"]["waiting"]["reason"];
        assert_eq!(waiting, "ContainerCreating", "{during:#}");

        // A kubelet that starts now has less than it needs, and keeps what runs.
        drop(agent);
        let agent = disk.agent(&server, &[]);
        let failed = failures();
        eventually("a failed change of the next kubelet", &|| failures() > failed).await;
        let now = server.pod("before").await;
        assert_eq!(container(&now), container(&before), "{}", node.log());
        assert_eq!(read("color"), "red");

        disk.free();
        server.eventually("during", "ready", is_ready).await;
        eventually("the new files", &|| read("color") == "blue").await;
        assert_eq!(read("text"), text);
        let now = server.pod("before").await;
        assert_eq!(container(&now), container(&before), "{}", node.log());
        // The failures have left nothing behind.
        let folders = disk.run("ls -d $0/$1/..2* | wc -l", &volume);
        assert_eq!(folders.trim(), "1");
        // What the kubelet has written down is whole: the next one reads it.
        drop(agent);
        let agent = disk.agent(&server, &[]);
        for name in ["before", "during"] {
            server.delete(name, 1).await;
            server.eventually(name, "gone", Value::is_null).await;
        }
        eventually("clean", &|| disk.run("ls $0/pods | wc -l", "").trim() == "0").await;
        assert!(!node.log().contains("corrupt"), "{}", node.log());
        drop(agent);
    });
}

#[test]
fn pod_that_fills_the_disk_is_evicted() {
    let Some(node) = Node::start("disk-pressure") else { return };
    block_on(async move {
        let server = Server::start().await;
        let map = json!({"metadata": {"name": "app"}, "data": {"color": "red"}});
        let maps = server.client.resource(&CONFIG_MAPS);
        maps.create::<Value>("default", &map).await.expect("created");
        let disk = Disk::mount(&node, 64);
        let mut hog = configured();
        let script = "trap 'exit 0' TERM; dd if=/dev/zero of=/data/file bs=1M count=48; \
                      sleep 1000000 & wait";
        hog["containers"][0]["command"] = json!(["sh", "-c", script]);
        server.create("modest", "n", json!({}), configured()).await;
        let flags =
            ["--eviction-hard=nodefs.available<32Mi", "--eviction-pressure-transition-period=180s"];
        let agent = disk.agent(&server, &flags);
        let modest = server.eventually("modest", "ready", is_ready).await;
        server.create("hog", "n", json!({}), hog).await;
        let is_evicted = |pod: &Value| pod["status"]["reason"] == "Evicted";
        let hog = server.eventually("hog", "evicted", is_evicted).await;
        assert_eq!(hog["status"]["phase"], "Failed");
        let message = hog["status"]["message"].as_str().expect("a message");
        let start = "The node was low on resource: ephemeral-storage. Threshold quantity: 32Mi, \
                     available: ";
        assert!(message.starts_with(start), "{message}");
        assert_eq!(condition(&hog, "DisruptionTarget")["reason"], "TerminationByKubelet");
        let evicted = server.messages("hog", "Evicted").await;
        assert!(evicted.iter().any(|text| text == message), "{evicted:?}");
        // The Node says so, and takes no pod meanwhile.
        let pressure = async |wanted: &str| {
            let end = server.clock.monotonic() + PATIENCE;
            loop {
                let nodes = server.client.resource(&NodeKind::RESOURCE);
                let node: Value = nodes.get(&ObjectKey::cluster("n")).await.expect("a Node");
                if condition(&node, "DiskPressure")["status"] == wanted {
                    return;
                }
                assert!(server.clock.monotonic() < end, "{node:#}");
                server.clock.sleep(Duration::from_millis(100)).await;
            }
        };
        pressure("True").await;
        server.create("refused", "n", json!({}), sleeps()).await;
        let refused = server.eventually("refused", "refused", is_evicted).await;
        let message = refused["status"]["message"].as_str().expect("a message");
        assert_eq!(message, "Pod was rejected: The node had condition: [DiskPressure]. ");
        // Once the room is back, it does.
        pressure("False").await;
        server.create("after", "n", json!({}), configured()).await;
        server.eventually("after", "ready", is_ready).await;
        let now = server.pod("modest").await;
        assert_eq!(container(&now), container(&modest), "{}", node.log());
        drop(agent);
    });
}
