//! The statuses of pods in an API server, the pods that mirror static ones, and their deletion: the
//! embedded server, with faults, and beside real containers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_channel::Sender;
use kube_controller_manager::client::Patch;
use kube_controller_manager::clock::FakeClock;
use kube_controller_manager::objects::{Node, ObjectKey, Pod as PodKind, Resource, Timestamp};
use kube_controller_manager::task::{self, StopToken};
use kubelet::node::address::NodeAddress;
use kubelet::node::own::OwnNode;
use kubelet::pod::{Pod, PodExt, Uid};
use kubelet::status::manager::Manager;
use kubelet::status::mirror::Step;
use kubelet::status::{Change, Pods, Report};
use parking_lot::Mutex;
use sandbox::faults::Fault;
use serde_json::{Value, json};

use super::api::{Agent, PATIENCE, Server, key, sleeps};
use super::machine::{Error, Machine};
use super::node::place;
use super::pods::{condition, container, is_ready};

/// What a kubelet would say.
#[derive(Default)]
struct Said {
    reports: Mutex<BTreeMap<Uid, Report>>,
    steps: Mutex<BTreeMap<String, Step>>,
}

impl Pods for Said {
    fn report(&self, uid: &Uid) -> Option<Report> {
        self.reports.lock().get(uid).cloned()
    }

    fn mirror_step(&self, full_name: &str) -> Option<Step> {
        self.steps.lock().get(full_name).cloned()
    }
}

/// A status manager whose retries the test decides.
struct Writer {
    server: Server,
    said: Arc<Said>,
    changes: Sender<Change>,
    time: Arc<FakeClock>,
    stop: StopToken,
}

impl Writer {
    async fn start() -> Writer {
        let server = Server::start().await;
        let said = Arc::new(Said::default());
        let (changes, receiver) = async_channel::unbounded();
        let time = FakeClock::new(Timestamp::from_secs(1_000_000_000));
        let stop = StopToken::new();
        let node = OwnNode::new("n", NodeAddress::default());
        let (client, pods) = (server.client.clone(), said.clone());
        let manager = Manager { pods, client, node, clock: time.clone() };
        drop(task::spawn(manager.run(receiver, stop.clone())));
        Writer { server, said, changes, time, stop }
    }

    /// The pod as the server has it.
    async fn live(&self, name: &str) -> Arc<Pod> {
        Arc::new(serde_json::from_value(self.server.pod(name).await).expect("a pod"))
    }

    /// Reports a phase of a pod.
    fn report(&self, live: &Arc<Pod>, phase: &str, version: u64, is_finished: bool) {
        let status = json!({"phase": phase, "qosClass": "BestEffort"});
        let report = Report {
            pod: live.clone(),
            api: Some(live.clone()),
            status: Arc::new(serde_json::from_value(status).expect("a status")),
            version,
            is_terminated: is_finished,
            is_finished,
        };
        self.said.reports.lock().insert(live.uid(), report);
        self.changes.try_send(Change::Status(live.uid())).expect("a manager");
    }

    /// Makes a pod that runs, after all that was reported before it.
    async fn settle(&self, name: &str) {
        self.server.create(name, "n", json!({}), sleeps()).await;
        self.report(&self.live(name).await, "Running", 1, false);
        self.until_phase(name, "Running").await;
    }

    /// Waits, with retries.
    async fn until(&self, name: &str, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let clock = &self.server.clock;
        let end = clock.monotonic() + PATIENCE;
        loop {
            let pod = self.server.pod(name).await;
            if is_so(&pod) {
                return pod;
            }
            assert!(clock.monotonic() < end, "{name} is not {what}: {pod:#}");
            clock.sleep(Duration::from_millis(20)).await;
            self.time.advance(Duration::from_secs(10));
        }
    }

    async fn until_phase(&self, name: &str, phase: &str) -> Value {
        self.until(name, phase, |pod| pod["status"]["phase"] == phase).await
    }

    fn count(&self, verb: &str, resource: &str) -> u64 {
        self.server.sandbox.faults().count(verb, resource)
    }
}

#[test]
fn status_is_written_once_through_each_fault() {
    task::run(1, async {
        let writer = Writer::start().await;
        let faults = writer.server.sandbox.faults().clone();
        let plans = [
            ("patch", "pods/status", Fault::code(409, None), 2),
            ("patch", "pods/status", Fault::code(404, None), 2),
            ("patch", "pods/status", Fault::code(500, None), 2),
            ("patch", "pods/status", Fault::LoseAnswer, 1),
            ("get", "pods", Fault::code(500, None), 1),
        ];
        for (at, (verb, resource, fault, patches)) in plans.into_iter().enumerate() {
            let name = format!("p{at}");
            writer.server.create(&name, "n", json!({}), sleeps()).await;
            let live = writer.live(&name).await;
            let before = writer.count("patch", "pods/status");
            faults.next(1, verb, resource, fault.clone());
            writer.report(&live, "Running", 1, false);
            let end = writer.server.clock.monotonic() + PATIENCE;
            while !faults.pending().is_empty() {
                assert!(writer.server.clock.monotonic() < end, "{name}: no request");
                writer.server.clock.sleep(Duration::from_millis(20)).await;
            }
            writer.until_phase(&name, "Running").await;
            // The same version again, as the server has it now: no request.
            writer.report(&writer.live(&name).await, "Running", 1, false);
            writer.settle(&format!("{name}-next")).await;
            let after = writer.count("patch", "pods/status");
            assert_eq!(after - before, patches + 1, "{fault:?}");
        }
        writer.stop.stop();
    });
}

#[test]
fn ended_pods_are_deleted_and_pods_of_the_same_name_are_left_alone() {
    task::run(1, async {
        let writer = Writer::start().await;
        let server = &writer.server;
        // A pod that is made again under its name is not the one that is reported.
        server.create("again", "n", json!({}), sleeps()).await;
        let first = writer.live("again").await;
        server.delete("again", 0).await;
        server.create("again", "n", json!({}), sleeps()).await;
        writer.report(&first, "Running", 1, false);

        // The deletion of a pod ends with the kubelet's, once nothing of it is left.
        server.create("goes", "n", json!({}), sleeps()).await;
        server.delete("goes", 30).await;
        writer.report(&writer.live("goes").await, "Running", 1, false);
        let running = writer.until_phase("goes", "Running").await;
        assert!(running["metadata"]["deletionTimestamp"].is_string());
        server.sandbox.faults().next(1, "delete", "pods", Fault::code(500, None));
        writer.report(&writer.live("goes").await, "Failed", 2, true);
        writer.until("goes", "gone", Value::is_null).await;

        // A finalizer keeps it, and it is not deleted again and again.
        server.create("kept", "n", json!({}), sleeps()).await;
        let pods = server.client.resource(&PodKind::RESOURCE);
        let patch = Patch::Merge(json!({"metadata": {"finalizers": ["example.com/x"]}}));
        pods.patch::<Value>(&key("kept"), &patch).await.expect("patched");
        server.delete("kept", 30).await;
        let before = writer.count("delete", "pods");
        writer.report(&writer.live("kept").await, "Failed", 1, true);
        let is_deleted = |pod: &Value| pod["metadata"]["deletionGracePeriodSeconds"] == 0;
        writer.until("kept", "deleted", is_deleted).await;
        writer.report(&writer.live("kept").await, "Failed", 1, true);
        writer.settle("last").await;
        assert_eq!(writer.count("delete", "pods"), before + 1);
        assert_eq!(server.pod("again").await["status"]["phase"], "Pending");
        writer.stop.stop();
    });
}

#[test]
fn mirror_pods_and_readiness_gates_live_with_their_pods() {
    let Some(_place) = place("status") else { return };
    let machine = match Machine::start(format!("/tmp/kst{}", std::process::id()).into()) {
        Ok(machine) => machine,
        Err(Error::Missing(line)) => return eprintln!("status: {line}"),
        Err(Error::Failed(text)) => panic!("{text}"),
    };
    task::run(1, async move {
        let server = Server::start().await;
        let kubeconfig = server.sandbox.kubeconfig();
        let manifest = |color: &str| {
            let metadata = json!({"name": "s", "labels": {"color": color}});
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": sleeps()})
        };
        let file = machine.pods().join("s.json");
        std::fs::write(&file, manifest("red").to_string()).expect("a file");
        let mut gated = sleeps();
        gated["readinessGates"] = json!([{"conditionType": "example.com/on"}]);
        server.create("gated", "n", json!({}), gated).await;
        let agent = Agent::start(&machine, &kubeconfig);

        // A mirror pod shows the static pod, and belongs to the Node.
        let mirror = server.eventually("s-n", "ready", is_ready).await;
        let metadata = &mirror["metadata"];
        let annotations = &metadata["annotations"];
        assert!(annotations["kubernetes.io/config.hash"].is_string(), "{mirror:#}");
        assert_eq!(
            annotations["kubernetes.io/config.mirror"],
            annotations["kubernetes.io/config.hash"]
        );
        let nodes = server.client.resource(&Node::RESOURCE);
        let node: Value = nodes.get(&ObjectKey::cluster("n")).await.expect("a node");
        let owner = &metadata["ownerReferences"][0];
        assert_eq!((&owner["kind"], &owner["uid"]), (&json!("Node"), &node["metadata"]["uid"]));
        let id = container(&mirror)["containerID"].clone();
        assert!(id.is_string(), "{mirror:#}");

        // Another kubelet takes it over.
        drop(agent);
        let agent = Agent::start(&machine, &kubeconfig);

        // The gate holds the pod until somebody opens it, and their condition stays.
        let waits = |pod: &Value| {
            condition(pod, "Ready")["reason"] == "ReadinessGatesNotReady"
                && condition(pod, "ContainersReady")["status"] == "True"
        };
        let gated = server.eventually("gated", "held", waits).await;
        assert_eq!(
            condition(&gated, "Ready")["message"],
            "corresponding condition of pod readiness gate \"example.com/on\" does not exist."
        );
        let open = json!({"type": "example.com/on", "status": "True"});
        let patch = Patch::StrategicMerge(json!({"status": {"conditions": [open]}}));
        let status = server.client.resource(&PodKind::RESOURCE).subresource("status");
        status.patch::<Value>(&key("gated"), &patch).await.expect("patched");
        let gated = server.eventually("gated", "ready", is_ready).await;
        assert_eq!(condition(&gated, "example.com/on")["status"], "True");
        let generation = &gated["metadata"]["generation"];
        assert_eq!(gated["status"]["observedGeneration"], *generation);
        assert_eq!(condition(&gated, "Ready")["observedGeneration"], *generation);

        // A mirror pod that a person deletes is made again; the container runs on.
        server.delete("s-n", 30).await;
        let is_new =
            |pod: &Value| pod["metadata"]["uid"] != mirror["metadata"]["uid"] && is_ready(pod);
        let second = server.eventually("s-n", "made again", is_new).await;
        assert_eq!(container(&second)["containerID"], id, "{}", machine.log());
        assert_eq!(second["status"]["startTime"], mirror["status"]["startTime"]);

        // A changed static pod has a new one.
        std::fs::write(&file, manifest("blue").to_string()).expect("a file");
        let is_blue = |pod: &Value| pod["metadata"]["labels"]["color"] == "blue" && is_ready(pod);
        let third = server.eventually("s-n", "changed", is_blue).await;
        assert_ne!(container(&third)["containerID"], id);

        // Without the static pod it goes: also of one that went while there was no kubelet.
        std::fs::remove_file(&file).expect("a file");
        server.eventually("s-n", "gone", Value::is_null).await;
        std::fs::write(&file, manifest("green").to_string()).expect("a file");
        server.eventually("s-n", "back", is_ready).await;
        drop(agent);
        std::fs::remove_file(&file).expect("a file");
        let agent = Agent::start(&machine, &kubeconfig);
        server.eventually("s-n", "gone", Value::is_null).await;
        drop(agent);
    });
}
