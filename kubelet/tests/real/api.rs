//! Pods that an API server binds to the node: the embedded one, beside real containers.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_channel::Receiver;
use futures_lite::FutureExt;
use kube_controller_manager::client::{Client, Delete, Patch};
use kube_controller_manager::clock::{SharedClock, SystemClock};
use kube_controller_manager::objects::{ObjectKey, Pod, Resource};
use kube_controller_manager::source::ClientSource;
use kube_controller_manager::task::{self, StopToken};
use kubelet::cri::{self, RuntimeService, api};
use kubelet::node::address::NodeAddress;
use kubelet::node::own::OwnNode;
use kubelet::pod::PodExt;
use kubelet::sources::{self, Op, PodConfig, PodUpdate, Source};
use sandbox::cluster::administrator;
use sandbox::{Sandbox, SandboxOptions};
use serde_json::{Value, json};

use super::machine::{Error, Machine};
use super::node::{kubelet, place};
use super::pods::is_ready;

pub const PATIENCE: Duration = Duration::from_secs(600);

/// An API server alone.
pub struct Server {
    pub sandbox: Sandbox,
    pub client: Client,
    pub clock: SharedClock,
    folder: PathBuf,
}

impl Server {
    pub async fn start() -> Server {
        Server::start_with(|options| SandboxOptions { service_accounts: false, ..options }).await
    }

    pub async fn start_with(change: impl FnOnce(SandboxOptions) -> SandboxOptions) -> Server {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let unique = format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::SeqCst));
        let folder = std::env::temp_dir().join(format!("kubelet-api-{unique}"));
        let options = change(SandboxOptions::new(&folder));
        let sandbox = Sandbox::start(options).await.expect("the sandbox starts");
        let clock = SystemClock::shared();
        let client = administrator(&sandbox.kubeconfig(), "test", &clock).expect("a client");
        Server { sandbox, client, clock, folder }
    }

    pub async fn create(&self, name: &str, node: &str, annotations: Value, mut spec: Value) {
        spec["nodeName"] = json!(node);
        let pod = json!({"metadata": {"name": name, "annotations": annotations}, "spec": spec});
        self.client.create::<Pod>("default", &pod).await.expect("created");
    }

    async fn patch(&self, name: &str, is_status: bool, change: Value) {
        let mut pods = self.client.resource(&Pod::RESOURCE);
        if is_status {
            pods = pods.subresource("status");
        }
        let patched = pods.patch::<Value>(&key(name), &Patch::Merge(change)).await;
        patched.expect("patched");
    }

    pub async fn delete(&self, name: &str, grace: i64) {
        let delete = Delete::new().grace_period(grace);
        self.client.delete::<Pod>(&key(name), delete).await.expect("deleted");
    }

    /// Null: there is no such pod.
    pub async fn pod(&self, name: &str) -> Value {
        match self.client.resource(&Pod::RESOURCE).get(&key(name)).await {
            Ok(pod) => pod,
            Err(error) if error.is_not_found() => Value::Null,
            Err(error) => panic!("{error}"),
        }
    }

    pub async fn eventually(
        &self,
        name: &str,
        what: &str,
        is_so: impl Fn(&Value) -> bool,
    ) -> Value {
        let end = self.clock.monotonic() + PATIENCE;
        loop {
            let pod = self.pod(name).await;
            if is_so(&pod) {
                return pod;
            }
            assert!(self.clock.monotonic() < end, "{name} is not {what}: {pod:#}");
            self.clock.sleep(Duration::from_millis(200)).await;
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

pub fn key(name: &str) -> ObjectKey {
    ObjectKey::new("default", name)
}

pub fn sleeps() -> Value {
    json!({
        "terminationGracePeriodSeconds": 1,
        "containers": [{
            "name": "main", "image": "node.test/busybox:1", "command": ["sleep", "infinity"],
            "readinessProbe": {
                "exec": {"command": ["true"]}, "periodSeconds": 1, "timeoutSeconds": 60,
            },
        }],
    })
}

async fn next(updates: &Receiver<PodUpdate>, clock: &SharedClock) -> (Op, Vec<String>) {
    let late = async {
        clock.sleep(PATIENCE).await;
        panic!("no change");
    };
    let update = async { updates.recv().await.expect("a change") };
    let update = update.or(late).await;
    assert_eq!(update.source, Source::Api);
    (update.op, update.pods.iter().map(|pod| pod.name().to_owned()).collect())
}

#[test]
fn changes_at_the_server_become_changes_of_pods() {
    task::run(1, async {
        let server = Server::start().await;
        server.create("a", "n", json!({}), sleeps()).await;
        server.create("elsewhere", "m", json!({}), sleeps()).await;
        server.create("mirror", "n", json!({"kubernetes.io/config.mirror": "x"}), sleeps()).await;
        let (config, updates) = PodConfig::new(server.clock.clone());
        let stop = StopToken::new();
        let own = OwnNode::new("n", NodeAddress::default());
        own.set_standalone();
        let running = task::spawn(sources::api::run(
            ClientSource::new(server.client.clone()),
            own,
            config,
            server.clock.clone(),
            stop.clone(),
        ));
        let next = || next(&updates, &server.clock);
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        // The first state is the whole list, with what mirrors static pods.
        let (op, mut first) = next().await;
        first.sort();
        assert_eq!((op, first), (Op::Add, names(&["a", "mirror"])));
        server.create("b", "n", json!({}), sleeps()).await;
        assert_eq!(next().await, (Op::Add, names(&["b"])));
        server.patch("a", false, json!({"metadata": {"labels": {"x": "y"}}})).await;
        assert_eq!(next().await, (Op::Update, names(&["a"])));
        server.patch("a", true, json!({"status": {"message": "hello"}})).await;
        assert_eq!(next().await, (Op::Reconcile, names(&["a"])));
        server.delete("a", 30).await;
        assert_eq!(next().await, (Op::Delete, names(&["a"])));
        server.delete("a", 0).await;
        assert_eq!(next().await, (Op::Remove, names(&["a"])));
        stop.stop();
        running.await;
    });
}

/// A kubelet of the machine's runtime, outside of its network: the API server is there.
pub struct Agent(Child);

impl Agent {
    pub fn start(machine: &Machine, kubeconfig: &Path) -> Agent {
        Agent::start_with(machine, kubeconfig, "")
    }

    /// Starts it with `lines` in its configuration too.
    pub fn start_with(machine: &Machine, kubeconfig: &Path, lines: &str) -> Agent {
        Agent::start_by(machine, &[&format!("--kubeconfig={}", kubeconfig.display())], lines)
    }

    /// Starts it with more flags, which win over the usual ones, and with `lines` in its
    /// configuration.
    pub fn start_by(machine: &Machine, flags: &[&str], lines: &str) -> Agent {
        Agent::spawn(Agent::command(machine, flags, lines))
    }

    /// The command of a kubelet, as [`Agent::start_by`] starts it.
    pub fn command(machine: &Machine, flags: &[&str], lines: &str) -> Command {
        let path = |name: &str| machine.folder.join(name).display().to_string();
        let log = std::fs::File::options().append(true).create(true).open(path("kubelet.log"));
        let config = format!(
            "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
             podLogsDir: {}\nstaticPodPath: {}\ncgroupRoot: /{}\nhealthzPort: 0\n\
             enableServer: false\n\
             evictionHard: {{}}\nimageGCHighThresholdPercent: 100\n{lines}",
            path("podlogs"),
            path("pods"),
            machine.name,
        );
        std::fs::write(path("config"), config).expect("a file");
        // Volumes in memory are seen by the runtime.
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--mount={}", path("ns/mount")))
            .arg("--wdns=/")
            .arg(kubelet())
            .arg(format!("--config={}", path("config")))
            .arg(format!("--container-runtime-endpoint=unix://{}", machine.socket().display()))
            .arg(format!("--root-dir={}", path("kubelet")))
            .args(["--hostname-override=n", "--resolv-conf=", "-v=4"])
            .args(flags)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log.expect("a log"));
        command
    }

    pub fn spawn(mut command: Command) -> Agent {
        Agent(command.spawn().expect("the kubelet"))
    }

    /// The id of its process.
    pub fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The ids of running containers, from the runtime itself.
pub async fn running(machine: &Machine, clock: &SharedClock) -> Vec<String> {
    let runtime = RuntimeService::new(cri::channel(&machine.socket(), clock.clone()), PATIENCE);
    let listed = runtime.list_containers(api::ListContainersRequest::default()).await;
    let containers = listed.expect("a list").containers.into_iter();
    let is_running = |state| state == api::ContainerState::ContainerRunning as i32;
    containers.filter(|c| is_running(c.state)).map(|c| c.id).collect()
}

#[test]
fn pods_of_the_server_run_report_and_are_deleted() {
    let Some(_place) = place("api") else { return };
    let machine = match Machine::start(format!("/tmp/kapi{}", std::process::id()).into()) {
        Ok(machine) => machine,
        Err(Error::Missing(line)) => return eprintln!("api: {line}"),
        Err(Error::Failed(text)) => panic!("{text}"),
    };
    task::run(1, async move {
        let server = Server::start().await;
        let kubeconfig = server.sandbox.kubeconfig();
        server.create("web", "n", json!({}), sleeps()).await;
        let mut once = sleeps();
        once["restartPolicy"] = json!("Never");
        once["containers"][0]["command"] = json!(["sh", "-c", "exit 0"]);
        server.create("once", "n", json!({}), once).await;
        server.create("stays", "n", json!({}), sleeps()).await;
        let mut slow = sleeps();
        let script = "trap 'sleep 3; exit 0' TERM; while :; do sleep 0.1; done";
        slow["containers"][0]["command"] = json!(["sh", "-c", script]);
        server.create("slow", "n", json!({}), slow).await;
        let mut leaves = sleeps();
        leaves["containers"][0]["readinessProbe"]["exec"]["command"] =
            json!(["test", "-e", "/tmp/ready"]);
        leaves["containers"][0]["readinessProbe"]["failureThreshold"] = json!(1);
        let script = "trap 'rm /tmp/ready' TERM; touch /tmp/ready; while :; do sleep 0.1; done";
        leaves["containers"][0]["command"] = json!(["sh", "-c", script]);
        server.create("leaves", "n", json!({}), leaves).await;
        let agent = Agent::start(&machine, &kubeconfig);
        let web = server.eventually("web", "ready", is_ready).await;
        let status = &web["status"];
        assert_eq!(
            (&status["phase"], &status["qosClass"]),
            (&json!("Running"), &json!("BestEffort"))
        );
        assert!(
            status["podIP"].is_string() && status["hostIPs"][0]["ip"].is_string(),
            "{status:#}"
        );
        let is_done = |pod: &Value| pod["status"]["phase"] == "Succeeded";
        let once = server.eventually("once", "done", is_done).await;
        // A graceful deletion ends with the kubelet's own.
        server.delete("web", 1).await;
        server.eventually("web", "gone", Value::is_null).await;
        // Until it ends, its readiness is followed.
        server.eventually("leaves", "ready", is_ready).await;
        server.delete("leaves", 600).await;
        let leaves = server.eventually("leaves", "unready", |pod| !is_ready(pod)).await;
        let state = &leaves["status"]["containerStatuses"][0]["state"];
        assert!(state["running"].is_object(), "{leaves:#}");
        server.delete("leaves", 1).await;
        server.eventually("leaves", "gone", Value::is_null).await;
        let stays = server.eventually("stays", "ready", is_ready).await;
        let id = stays["status"]["containerStatuses"][0]["containerID"].as_str().expect("an id");
        let id = id.trim_start_matches("containerd://").to_owned();
        let slow = server.eventually("slow", "ready", is_ready).await;
        let slow = slow["status"]["containerStatuses"][0]["containerID"].clone();
        let slow = slow.as_str().expect("an id").trim_start_matches("containerd://").to_owned();
        // An agent that restarts neither runs again what has ended nor flips what is ready.
        drop(agent);
        server.delete("slow", 600).await;
        let agent = Agent::start(&machine, &kubeconfig);
        // What was deleted while there was no agent is ready until its containers have ended, and gone then.
        let reported = server.eventually("slow", "reported or gone", |pod| {
            pod.is_null() || pod["metadata"]["deletionTimestamp"].is_string()
        });
        let reported = reported.await;
        assert!(reported.is_null() || is_ready(&reported), "{reported:#}");
        server.eventually("slow", "gone", Value::is_null).await;
        assert!(!running(&machine, &server.clock).await.contains(&slow), "{}", machine.log());
        server.create("after", "n", json!({}), sleeps()).await;
        server.eventually("after", "ready", is_ready).await;
        let container = |pod: &Value| pod["status"]["containerStatuses"][0].clone();
        assert_eq!(container(&server.pod("once").await), container(&once));
        let again = server.pod("stays").await;
        assert_eq!(again["status"]["conditions"], stays["status"]["conditions"]);
        drop(agent);
        // With the server away, what runs is kept, and static pods start.
        server.sandbox.stop().await;
        let agent = Agent::start(&machine, &kubeconfig);
        let spec = sleeps();
        let manifest = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "s"},
                              "spec": {"containers": spec["containers"]}});
        let before = running(&machine, &server.clock).await;
        std::fs::write(machine.pods().join("s.json"), manifest.to_string()).expect("a file");
        let end = server.clock.monotonic() + PATIENCE;
        while running(&machine, &server.clock).await.len() <= before.len() {
            assert!(server.clock.monotonic() < end, "{}", machine.log());
            server.clock.sleep(Duration::from_millis(200)).await;
        }
        assert!(running(&machine, &server.clock).await.contains(&id), "{}", machine.log());
        drop(agent);
    });
}
