//! The agent is killed at each of its calls to the runtime, before and after the runtime has carried
//! it out, and started again: each container runs as its pod asks, and none twice.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use futures_lite::future::block_on;
use kube_controller_manager::clock::SystemClock;
use kubelet::cri::{Channel, RuntimeService, api};
use serde_json::Value;

use super::node::{Node, wait};
use super::proxy::{Moment, Proxy};

/// With the value `all`: the agent is killed at reading calls too, which takes much longer.
const CALLS: &str = "KUBELET_CRASH_CALLS";

const POD: &str = "
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  terminationGracePeriodSeconds: 1
  volumes: [{name: out, hostPath: {path: OUT}}]
  initContainers:
  - name: first
    image: node.test/busybox:1
    command: [sh, -c, 'echo first >> /out/starts']
    volumeMounts: [{name: out, mountPath: /out}]
  - name: sidecar
    image: node.test/busybox:1
    restartPolicy: Always
    command: [sh, -c, 'echo sidecar >> /out/starts; trap \"exit 0\" TERM; sleep 1000 & wait']
    volumeMounts: [{name: out, mountPath: /out}]
  containers:
  - name: main
    image: node.test/busybox:1
    command: [sh, -c, 'echo main >> /out/starts; trap \"exit 0\" TERM; sleep 1000 & wait']
    volumeMounts: [{name: out, mountPath: /out}]
";

const JOB: &str = "
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  restartPolicy: Never
  volumes: [{name: out, hostPath: {path: OUT}}]
  containers:
  - name: job
    image: node.test/busybox:1
    command: [sh, -c, 'echo job >> /out/starts']
    volumeMounts: [{name: out, mountPath: /out}]
";

/// The containers of the runtime by name, with their states.
pub fn containers(node: &Node) -> BTreeMap<String, Vec<api::ContainerState>> {
    let channel = Channel::new(&node.socket(), SystemClock::shared());
    let runtime = RuntimeService::new(channel, Duration::from_secs(60));
    let listed = block_on(runtime.list_containers(api::ListContainersRequest::default()));
    let mut found: BTreeMap<String, Vec<api::ContainerState>> = BTreeMap::new();
    for container in listed.expect("the containers").containers {
        let state = container.state();
        found.entry(container.metadata.expect("a name").name).or_default().push(state);
    }
    found
}

/// The number of sandboxes in the runtime.
pub fn sandboxes(node: &Node) -> usize {
    let channel = Channel::new(&node.socket(), SystemClock::shared());
    let runtime = RuntimeService::new(channel, Duration::from_secs(60));
    let listed = block_on(runtime.list_pod_sandbox(api::ListPodSandboxRequest::default()));
    listed.expect("the sandboxes").items.len()
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|c| c["type"] == "Ready" && c["status"] == "True")
}

/// Whether containerd gave up the start of the pod's container: it does so when the agent ends while
/// it waits for the answer, and the container counts as failed.
fn start_was_cut_off(pod: &Value) -> bool {
    pod["status"]["containerStatuses"][0]["state"]["terminated"]["reason"] == "StartError"
}

/// One life of two pods, with a crash on the way.
struct Life<'a> {
    node: &'a mut Node,
    proxy: &'a Proxy,
    name: String,
    out: PathBuf,
    has_crashed: bool,
}

impl Life<'_> {
    fn start_kubelet(&mut self) {
        let endpoint = format!("unix://{}", self.proxy.socket.display());
        self.node.start_kubelet_with(&[&format!("--container-runtime-endpoint={endpoint}")]);
    }

    /// Waits for a condition; where the agent crashes meanwhile, it is started again.
    fn wait(&mut self, what: &str, condition: impl Fn(&Node) -> bool) {
        let mut is_met = false;
        while !is_met {
            let (proxy, node, had_crashed) = (self.proxy, &*self.node, self.has_crashed);
            let is_over = wait(|| {
                is_met = condition(node);
                is_met || !had_crashed && proxy.killed_at().is_some()
            });
            if let Some(call) = proxy.killed_at().filter(|_| !had_crashed) {
                println!("{}: crashed at {call}", self.name);
                self.has_crashed = true;
                self.node.kill_kubelet();
                self.start_kubelet();
                continue;
            }
            let (name, log) = (&self.name, self.node.log());
            let tail = &log[log.len().saturating_sub(8000)..];
            assert!(is_over, "{name} is not {what}: {:?}\n{tail}", containers(self.node));
        }
    }

    fn live(&mut self) {
        fs::create_dir_all(&self.out).expect("a folder");
        let (main, job) = (self.name.clone(), format!("{}-job", self.name));
        let out = self.out.display().to_string();
        for (name, manifest) in [(&main, POD), (&job, JOB)] {
            let text = manifest.replace("NAME", name).replace("OUT", &out);
            self.node.write(&format!("{name}.yaml"), &text);
        }
        let (running, ended) = (format!("{main}-n"), format!("{job}-n"));
        self.wait("ready", |node| {
            let job = node.pod(&ended);
            let has_ended = job["status"]["phase"] == "Succeeded" || start_was_cut_off(&job);
            is_ready(&node.pod(&running)) && has_ended
        });
        let job_has_run = !start_was_cut_off(&self.node.pod(&ended));
        assert!(job_has_run || self.has_crashed, "{main}");
        let mut starts: Vec<String> = fs::read_to_string(self.out.join("starts"))
            .expect("starts")
            .lines()
            .map(str::to_owned)
            .collect();
        starts.sort();
        let mut expected = vec!["first", "job", "main", "sidecar"];
        expected.retain(|name| *name != "job" || job_has_run);
        assert_eq!(starts, expected, "{main}");
        let found = containers(self.node);
        for (name, expected) in [("first", 0), ("sidecar", 1), ("main", 1), ("job", 0)] {
            let states = found.get(name).map(Vec::as_slice).unwrap_or_default();
            let count = states
                .iter()
                .filter(|state| **state == api::ContainerState::ContainerRunning)
                .count();
            assert_eq!(count, expected, "{main}, {name}: {found:?}");
        }
        for name in [&main, &job] {
            self.node.remove(&format!("{name}.yaml"));
        }
        self.wait("gone", |node| sandboxes(node) == 0 && containers(node).is_empty());
        let pods = self.node.folder.join("kubelet/pods");
        let logs = self.node.folder.join("podlogs");
        let count = |folder: &PathBuf| fs::read_dir(folder).map_or(0, Iterator::count);
        self.wait("removed from the disk", |_| count(&pods) + count(&logs) == 0);
    }
}

#[test]
fn agent_that_is_killed_at_a_call_leaves_no_container_twice() {
    let Some(mut node) = Node::start("crashes") else { return };
    let proxy = Proxy::start(&node.folder, &node.socket());
    let counts_all = std::env::var(CALLS).is_ok_and(|calls| calls == "all");
    let mut call = 1;
    let mut crashes = 0;
    loop {
        let mut reached = false;
        for moment in [Moment::Before, Moment::After] {
            let out = node.folder.join(format!("out/{call}-{moment:?}"));
            let name = format!("p{call}{moment:?}").to_lowercase();
            let mut life = Life { node: &mut node, proxy: &proxy, name, out, has_crashed: false };
            if crashes == 0 && call == 1 && moment == Moment::Before {
                life.start_kubelet();
            } else {
                // A new agent, so that its first calls are counted too.
                life.node.kill_kubelet();
                life.start_kubelet();
            }
            proxy.kill_at(call, moment, life.node.kubelet_id(), counts_all);
            life.live();
            reached |= life.has_crashed;
            crashes += usize::from(life.has_crashed);
            proxy.spare();
        }
        if !reached {
            break;
        }
        call += 1;
    }
    println!("{crashes} crashes");
    // Two sandboxes and four containers, which start and end.
    assert!(crashes >= 2 * 16, "{crashes} crashes only");
}
