//! The kubelet is killed at each of its calls to the runtime that change something, and at each of
//! its writes to the API server, before and after they are carried out. The next kubelet brings the
//! pods of the API server to their right end: nothing is restarted, and nothing stays behind.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_lite::future::block_on;
use kube_controller_manager::client::ListOptions;
use kube_controller_manager::objects::{Pod, Resource};
use kubelet::cri::{self, RuntimeService, api};
use sandbox::faults::Death;
use serde_json::{Value, json};

use super::api::{Agent, PATIENCE, Server, sleeps};
use super::crashes::{range, start_was_cut_off, started_again};
use super::node::Node;
use super::pods::{STAYS, container, is_ready};
use super::proxy::{Moment, Proxy};

/// The kubelet, as it names itself to the API server.
const PROGRAM: &str = "kubelet";

/// Whose calls are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Calls {
    Runtime,
    Server,
}

/// A pod with an init container, a sidecar and a container, each of which writes its name at its
/// start; and one that ends.
fn specs(out: &Path) -> [Value; 2] {
    let part = |name: &str, then: &str| {
        let script = format!("echo {name} >> /out/starts; {then}");
        json!({
            "name": name, "image": "node.test/busybox:1", "command": ["sh", "-c", script],
            "volumeMounts": [
                {"name": "out", "mountPath": "/out"}, {"name": "config", "mountPath": "/config"},
            ],
        })
    };
    let mut sidecar = part("sidecar", STAYS);
    sidecar["restartPolicy"] = json!("Always");
    let spec = |policy: &str, init: Vec<Value>, main: Value| {
        json!({
            "restartPolicy": policy, "terminationGracePeriodSeconds": 1,
            "volumes": [
                {"name": "out", "hostPath": {"path": out, "type": "DirectoryOrCreate"}},
                {"name": "config", "configMap": {"name": "kube-root-ca.crt"}},
            ],
            "initContainers": init, "containers": [main],
        })
    };
    [
        spec("Always", vec![part("first", ""), sidecar], part("main", STAYS)),
        spec("Never", vec![], part("job", "")),
    ]
}

/// A machine with a kubelet that can be killed, and a pod that stays through all of that.
struct Victim<'a> {
    node: &'a Node,
    server: &'a Server,
    proxy: &'a Proxy,
    agent: Option<Agent>,
    stays: Value,
}

impl Victim<'_> {
    fn start_agent(&mut self) {
        self.agent = None;
        let flags = [
            format!("--kubeconfig={}", self.server.sandbox.kubeconfig().display()),
            format!("--container-runtime-endpoint=unix://{}", self.proxy.socket.display()),
        ];
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let lines = "crashLoopBackOff: {maxContainerRestartPeriod: 2s}\n";
        self.agent = Some(Agent::start_by(self.node, &flags, lines));
    }

    /// Plans the death of a new kubelet at its call number `call`, which starts at 1.
    fn plan(&mut self, calls: Calls, call: usize, moment: Moment) {
        if calls == Calls::Server {
            let death = match moment {
                Moment::Before => Death::Before,
                Moment::After => Death::After,
            };
            self.server.sandbox.faults().allow_writes(PROGRAM, call - 1, death);
        }
        self.start_agent();
        if calls == Calls::Runtime {
            let id = self.agent.as_ref().expect("a kubelet").id();
            self.proxy.kill_at(call, moment, id, false);
        }
    }

    /// Whether the kubelet has died, or is cut off from the API server as if it had.
    fn has_died(&self) -> bool {
        self.proxy.killed_at().is_some() || self.server.sandbox.faults().has_died(PROGRAM)
    }

    /// Ends what was planned and has not happened.
    fn spare(&self) {
        self.proxy.spare();
        self.server.sandbox.faults().allow_writes(PROGRAM, usize::MAX, Death::Before);
    }

    /// The containers in the runtime by pod and name, with their states.
    async fn containers(&self) -> BTreeMap<(String, String), Vec<api::ContainerState>> {
        let channel = cri::channel(&self.node.socket(), self.server.clock.clone());
        let runtime = RuntimeService::new(channel, Duration::from_secs(60));
        let listed = runtime.list_containers(api::ListContainersRequest::default()).await;
        let mut found: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for container in listed.expect("the containers").containers {
            let pod = container.labels["io.kubernetes.pod.name"].clone();
            let state = container.state();
            let name = container.metadata.expect("a name").name;
            found.entry((pod, name)).or_default().push(state);
        }
        found
    }

    async fn sandboxes(&self) -> usize {
        let channel = cri::channel(&self.node.socket(), self.server.clock.clone());
        let runtime = RuntimeService::new(channel, Duration::from_secs(60));
        let listed = runtime.list_pod_sandbox(api::ListPodSandboxRequest::default()).await;
        listed.expect("the sandboxes").items.len()
    }
}

/// One life of two pods, with a death on the way.
struct Life<'a, 'b> {
    victim: &'a mut Victim<'b>,
    name: String,
    out: PathBuf,
    has_died: bool,
}

impl Life<'_, '_> {
    fn job(&self) -> String {
        format!("{}-job", self.name)
    }

    /// Waits until `is_so`. Where the kubelet dies meanwhile, another one starts.
    async fn wait(&mut self, what: &str, is_so: impl AsyncFn(&Victim<'_>) -> bool) {
        let clock = self.victim.server.clock.clone();
        let end = clock.monotonic() + PATIENCE;
        loop {
            if !self.has_died && self.victim.has_died() {
                let (name, call) = (&self.name, self.victim.proxy.killed_at());
                println!("{name}: died before it was {what}, {call:?}");
                self.has_died = true;
                self.victim.agent = None;
                self.victim.spare();
                self.victim.start_agent();
            }
            if is_so(&*self.victim).await {
                return;
            }
            let log = self.victim.node.log();
            let tail = &log[log.len().saturating_sub(8000)..];
            assert!(clock.monotonic() < end, "{} is not {what}\n{tail}", self.name);
            clock.sleep(Duration::from_millis(100)).await;
        }
    }

    async fn run(&mut self) {
        fs::create_dir_all(&self.out).expect("a folder");
        let (main, job) = (self.name.clone(), self.job());
        let [stays, ends] = specs(&self.out);
        self.victim.server.create(&main, "n", json!({}), stays).await;
        self.victim.server.create(&job, "n", json!({}), ends).await;
        let written = self.out.join("starts");
        let starts = || {
            let text = fs::read_to_string(&written).unwrap_or_default();
            let mut starts: Vec<String> = text.lines().map(str::to_owned).collect();
            starts.sort();
            starts
        };
        self.wait("ready", async |victim| {
            let job = victim.server.pod(&job).await;
            let has_ended = job["status"]["phase"] == "Succeeded" || start_was_cut_off(&job);
            let has = |name: &str| starts().iter().any(|start| start == name);
            // A container runs a moment before its command does.
            let has_begun = has("sidecar") && has("main");
            is_ready(&victim.server.pod(&main).await) && has_ended && has_begun
        })
        .await;
        self.check_starts(starts()).await;
        for name in [&main, &job] {
            self.victim.server.delete(name, 1).await;
        }
        self.wait("gone", async |victim| {
            let are_gone =
                victim.server.pod(&main).await.is_null() && victim.server.pod(&job).await.is_null();
            // The one that stays has a sandbox and a container.
            are_gone && victim.sandboxes().await == 1 && victim.containers().await.len() == 1
        })
        .await;
        self.wait("without folders", async |victim| {
            let count = |folder: &str| {
                fs::read_dir(victim.node.folder.join(folder)).map_or(0, Iterator::count)
            };
            (count("kubelet/pods"), count("podlogs")) == (1, 1)
        })
        .await;
        self.check_the_one_that_stays().await;
    }

    /// Each container has started once, and those that stay run once.
    async fn check_starts(&self, mut starts: Vec<String>) {
        let server = self.victim.server;
        let (main, job) = (&self.name, self.job());
        let (pod, ended) = (server.pod(main).await, server.pod(&job).await);
        // containerd gives up a start whose caller has died.
        let was_cut_off = start_was_cut_off(&ended);
        assert!(self.has_died || !was_cut_off, "{ended:#}");
        for again in started_again(&pod).into_iter().filter(|_| self.has_died) {
            let twice = starts.windows(2).position(|pair| pair[0] == again && pair[1] == again);
            twice.map(|at| starts.remove(at));
        }
        if was_cut_off && !starts.iter().any(|name| name == "job") {
            starts.insert(1, "job".to_owned());
        }
        assert_eq!(starts, ["first", "job", "main", "sidecar"], "{main}: {pod:#}");
        let found = self.victim.containers().await;
        for (pod, name, expected) in
            [(main, "first", 0), (main, "sidecar", 1), (main, "main", 1), (&job, "job", 0)]
        {
            let states = found.get(&(pod.clone(), name.to_owned()));
            let states = states.map(Vec::as_slice).unwrap_or_default();
            let running = api::ContainerState::ContainerRunning;
            let count = states.iter().filter(|state| **state == running).count();
            assert_eq!(count, expected, "{pod}, {name}: {found:?}");
        }
    }

    /// The pod that was there before all deaths is as it was, and the server has no other one.
    async fn check_the_one_that_stays(&self) {
        let Victim { server, stays, .. } = &*self.victim;
        let now = server.pod("stays").await;
        assert_eq!(container(&now), container(stays), "{}", self.victim.node.log());
        assert_eq!(now["metadata"]["uid"], stays["metadata"]["uid"]);
        assert!(is_ready(&now), "{now:#}");
        let pods = server.client.resource(&Pod::RESOURCE);
        let all = pods.list::<Value>(None, &ListOptions::default()).await.expect("a list").items;
        assert_eq!(all.len(), 1, "{all:#?}");
    }
}

/// Lives until no call of this kind is left at which the kubelet could be killed.
fn die_at_each_call(test: &str, calls: Calls, least: usize) {
    let Some(node) = Node::start(test) else { return };
    let (first, last) = range().unwrap_or((1, usize::MAX));
    block_on(async move {
        let server = Server::start_with(|options| options).await;
        server.make_account().await;
        let proxy = Proxy::start(&node.folder, &node.socket());
        let (node, server, proxy) = (&node, &server, &proxy);
        let mut victim = Victim { node, server, proxy, agent: None, stays: Value::Null };
        server.create("stays", "n", json!({}), sleeps()).await;
        victim.start_agent();
        victim.stays = server.eventually("stays", "ready", is_ready).await;
        let mut deaths = 0;
        for call in first..=last {
            let before = deaths;
            for moment in [Moment::Before, Moment::After] {
                victim.plan(calls, call, moment);
                let name = format!("p{call}{moment:?}").to_lowercase();
                let out = node.folder.join("out").join(&name);
                let mut life = Life { victim: &mut victim, name, out, has_died: false };
                life.run().await;
                deaths += usize::from(life.has_died);
                victim.spare();
            }
            if deaths == before {
                println!("no life has a call {call}");
                break;
            }
        }
        println!("{deaths} deaths");
        drop(victim);
        assert!(range().is_some() || deaths >= least, "{deaths} deaths only");
    });
}

#[test]
fn kubelet_that_dies_at_a_call_of_the_runtime_leaves_pods_to_the_next_one() {
    // Two sandboxes and four containers, which start and end.
    die_at_each_call("api-crashes", Calls::Runtime, 2 * 16);
}

#[test]
fn kubelet_that_dies_at_a_write_to_the_server_leaves_pods_to_the_next_one() {
    // A token and the statuses of each pod, and its deletion.
    die_at_each_call("server-crashes", Calls::Server, 2 * 10);
}
