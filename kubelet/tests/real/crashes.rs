//! The agent is killed at each of its calls to the runtime, before and after the runtime has carried
//! it out, and started again: each container runs as its pod asks, and none twice.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_lite::future::block_on;
use kube_controller_manager::clock::SystemClock;
use kubelet::cri::{self, RuntimeService, api};
use serde_json::Value;

use super::node::{Node, wait};
use super::pods::{STAYS, is_ready, once, with_out};
use super::proxy::{Moment, Proxy};

/// With the value `all`: the agent is killed at reading calls too, which takes much longer. `20-39`:
/// at these of all calls.
const CALLS: &str = "KUBELET_CRASH_CALLS";

/// The numbers of the first and the last call at which the agent is killed; `None`: at all.
pub fn range() -> Option<(usize, usize)> {
    let calls = std::env::var(CALLS).ok()?;
    let (first, last) = calls.split_once('-')?;
    Some((first.parse().expect("a number"), last.parse().expect("a number")))
}

/// A pod with an init container, a sidecar and a container, each of which writes its name at its start.
fn pod(name: &str, out: &Path) -> String {
    let container = |name: &str, policy: &str, script: &str| {
        format!(
            "  - name: {name}
    image: node.test/busybox:1
    command: [sh, -c, {script:?}]
    volumeMounts: [{{name: out, mountPath: /out}}]
{policy}"
        )
    };
    let stays = |name: &str| format!("echo {name} >> /out/starts; {STAYS}");
    let init = container("first", "", "echo first >> /out/starts")
        + &container("sidecar", "    restartPolicy: Always\n", &stays("sidecar"));
    with_out(&once(name, "Always", &stays("main")), out)
        .replace("  containers:", &format!("  initContainers:\n{init}  containers:"))
}

fn job(name: &str, out: &Path) -> String {
    let job = once(name, "Never", "echo job >> /out/starts").replace("name: main", "name: job");
    with_out(&job, out)
}

/// The containers of the runtime by name, with their states.
pub fn containers(node: &Node) -> BTreeMap<String, Vec<api::ContainerState>> {
    let channel = cri::channel(&node.socket(), SystemClock::shared());
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
    let channel = cri::channel(&node.socket(), SystemClock::shared());
    let runtime = RuntimeService::new(channel, Duration::from_secs(60));
    let listed = block_on(runtime.list_pod_sandbox(api::ListPodSandboxRequest::default()));
    listed.expect("the sandboxes").items.len()
}

/// Whether containerd gave up the start of the pod's container: it does so when the agent ends while
/// it waits for the answer, and the container counts as failed.
pub fn start_was_cut_off(pod: &Value) -> bool {
    pod["status"]["containerStatuses"][0]["state"]["terminated"]["reason"] == "StartError"
}

/// The containers of a pod that ran again after such a start, which may have come as far as their own
/// work. Of an init container only the last run is kept.
pub fn started_again(pod: &Value) -> Vec<&str> {
    let lists = ["initContainerStatuses", "containerStatuses"].map(|list| &pod["status"][list]);
    let all = lists.into_iter().filter_map(Value::as_array).flatten();
    let again = all.filter(|status| {
        let last = &status["lastState"]["terminated"]["reason"];
        status["restartCount"] == 1 && (last.is_null() || last == "StartError")
    });
    again.filter_map(|status| status["name"].as_str()).collect()
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
        let (main, ended) = (self.name.clone(), format!("{}-job", self.name));
        self.node.write(&format!("{main}.yaml"), &pod(&main, &self.out));
        self.node.write(&format!("{ended}.yaml"), &job(&ended, &self.out));
        let (running, done) = (format!("{main}-n"), format!("{ended}-n"));
        let written = self.out.join("starts");
        // A container runs a moment before its command does.
        let has_begun = |name: &str| {
            let text = fs::read_to_string(&written);
            text.is_ok_and(|text| text.lines().any(|line| line == name))
        };
        self.wait("ready", |node| {
            let job = node.pod(&done);
            let has_ended = job["status"]["phase"] == "Succeeded" || start_was_cut_off(&job);
            let has_begun = ["sidecar", "main"].into_iter().all(has_begun);
            is_ready(&node.pod(&running)) && has_ended && has_begun
        });
        let job_has_run = !start_was_cut_off(&self.node.pod(&done));
        assert!(job_has_run || self.has_crashed, "{main}");
        let text = fs::read_to_string(written).expect("starts");
        let mut starts: Vec<String> = text.lines().map(str::to_owned).collect();
        starts.sort();
        let pod = self.node.pod(&running);
        for again in started_again(&pod).into_iter().filter(|_| self.has_crashed) {
            let twice = starts.windows(2).position(|pair| pair[0] == again && pair[1] == again);
            twice.map(|at| starts.remove(at));
        }
        if !job_has_run && !starts.iter().any(|name| name == "job") {
            // A start that was cut off may have come as far as the job's own work.
            starts.insert(1, "job".to_owned());
        }
        assert_eq!(starts, ["first", "job", "main", "sidecar"], "{main}: {pod:#}");
        let found = containers(self.node);
        for (name, expected) in [("first", 0), ("sidecar", 1), ("main", 1), ("job", 0)] {
            let states = found.get(name).map(Vec::as_slice).unwrap_or_default();
            let count = states
                .iter()
                .filter(|state| **state == api::ContainerState::ContainerRunning)
                .count();
            assert_eq!(count, expected, "{main}, {name}: {found:?}");
        }
        for name in [&main, &ended] {
            self.node.remove(&format!("{name}.yaml"));
        }
        self.wait("gone", |node| sandboxes(node) == 0 && containers(node).is_empty());
        let pods = self.node.folder.join("kubelet/pods");
        let logs = self.node.folder.join("podlogs");
        let count = |folder: &PathBuf| fs::read_dir(folder).map_or(0, Iterator::count);
        self.wait("removed from the disk", |_| count(&pods) + count(&logs) == 0);
    }
}

/// Lives until no call is left at which the agent could be killed, or `last` has passed. `next`: the
/// number of the next call, which machines share. Returns the number of crashes.
fn crash_at_each_call(counts_all: bool, next: &AtomicUsize, last: usize) -> usize {
    let Some(mut node) = Node::start("crashes") else { return usize::MAX };
    let proxy = Proxy::start(&node.folder, &node.socket());
    let mut crashes = 0;
    loop {
        let call = next.fetch_add(1, Ordering::SeqCst);
        if call > last {
            return crashes;
        }
        let mut reached = false;
        for moment in [Moment::Before, Moment::After] {
            let out = node.folder.join(format!("out/{call}-{moment:?}"));
            let name = format!("p{call}{moment:?}").to_lowercase();
            let mut life = Life { node: &mut node, proxy: &proxy, name, out, has_crashed: false };
            // A new agent, so that its first calls are counted too.
            life.node.kill_kubelet();
            life.start_kubelet();
            proxy.kill_at(call, moment, life.node.kubelet_id(), counts_all);
            life.live();
            reached |= life.has_crashed;
            crashes += usize::from(life.has_crashed);
            proxy.spare();
        }
        if !reached {
            println!("no pod's life has a call {call}");
            return crashes;
        }
    }
}

#[test]
fn agent_that_is_killed_at_a_call_leaves_no_container_twice() {
    let (calls, range) = (std::env::var(CALLS).unwrap_or_default(), range());
    let (first, last) = range.unwrap_or((1, usize::MAX));
    let (counts_all, next) = (calls == "all" || range.is_some(), AtomicUsize::new(first));
    let crashes = std::thread::scope(|scope| {
        let machines = if counts_all { 3 } else { 1 };
        let lives = || scope.spawn(|| crash_at_each_call(counts_all, &next, last));
        let machines: Vec<_> = (0..machines).map(|_| lives()).collect();
        let counts = machines.into_iter().map(|machine| machine.join().expect("no failure"));
        counts.fold(0_usize, usize::saturating_add)
    });
    println!("{crashes} crashes");
    // Two sandboxes and four containers, which start and end.
    assert!(range.is_some() || crashes >= 2 * 16, "{crashes} crashes only");
}
