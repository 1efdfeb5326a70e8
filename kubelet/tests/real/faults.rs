//! Faults of the runtime, put in by a proxy on its socket: pods become ready in the end, and each
//! container has started once.

use std::fs;
use std::path::Path;

use kube_controller_manager::task::Latch;
use serde_json::Value;

use super::crashes::{containers, sandboxes};
use super::node::{Node, wait};
use super::pods::{STAYS, is_ready, once, with_out};
use super::proxy::{CHANGES, Fault, Proxy};

/// A pod whose container has its name and writes it at each start.
fn pod(name: &str, policy: &str, out: &Path, then: &str) -> String {
    let script = format!("echo {name} >> /out/starts; {then}");
    with_out(&once(name, policy, &script), out).replace("name: main", &format!("name: {name}"))
}

/// Pods come and go while each fault happens once.
fn survives(test: &str, names: &[&str], flags: &[&str], faults: &[(&'static str, Fault)]) {
    let Some(mut node) = Node::start(test) else { return };
    let proxy = Proxy::start(&node.folder, &node.socket());
    for (method, fault) in faults {
        proxy.inject(method, fault.clone());
    }
    let endpoint = format!("--container-runtime-endpoint=unix://{}", proxy.socket.display());
    let flags: Vec<&str> = [endpoint.as_str()].into_iter().chain(flags.iter().copied()).collect();
    node.start_kubelet_with(&flags);
    let out = node.folder.join("out");
    for name in names {
        node.write(&format!("{name}.yaml"), &pod(name, "Always", &out, STAYS));
    }
    for name in names {
        node.eventually(&format!("{name}-n"), "ready", is_ready);
    }
    let starts = fs::read_to_string(out.join("starts")).expect("starts");
    let mut starts: Vec<&str> = starts.lines().collect();
    starts.sort_unstable();
    assert_eq!(starts, names, "{}", node.log());
    for name in names {
        node.remove(&format!("{name}.yaml"));
    }
    let is_gone = wait(|| sandboxes(&node) == 0 && containers(&node).is_empty());
    assert!(is_gone, "{:?}\n{}", containers(&node), node.log());
    assert!(proxy.is_used_up(), "a fault has not happened:\n{}", node.log());
}

const THREE: [&str; 3] = ["a", "b", "c"];

/// Codes of gRPC.
const UNKNOWN: u32 = 2;
const DEADLINE_EXCEEDED: u32 = 4;
const UNAVAILABLE: u32 = 14;

/// The calls of a pod's life: no image is pulled.
fn calls() -> impl Iterator<Item = &'static str> {
    CHANGES.into_iter().filter(|method| *method != "PullImage")
}

#[test]
fn refused_calls_are_retried() {
    let reads = ["ListPodSandbox", "ListContainers", "PodSandboxStatus", "ContainerStatus"];
    let methods = calls().chain(reads).chain(["ImageStatus"]);
    let faults: Vec<_> = methods.map(|method| (method, Fault::Refused(UNKNOWN))).collect();
    survives("refused", &THREE, &[], &faults);
}

#[test]
fn calls_whose_answer_is_lost_are_not_repeated_blindly() {
    let faults: Vec<_> = calls()
        .zip([UNAVAILABLE, DEADLINE_EXCEEDED].into_iter().cycle())
        .map(|(method, code)| (method, Fault::LostAnswer(code)))
        .collect();
    survives("lost", &THREE, &[], &faults);
}

#[test]
fn calls_without_an_answer_end_at_their_deadline() {
    let faults: Vec<_> = calls().map(|method| (method, Fault::Silence)).collect();
    survives("silence", &THREE, &["--runtime-request-timeout=8s"], &faults);
}

#[test]
fn cut_connections_are_replaced() {
    let faults: Vec<_> = calls().map(|method| (method, Fault::Cut)).collect();
    // A connection that is cut ends the other calls on it too, and with them what they start.
    survives("cut", &["a"], &[], &faults);
}

#[test]
fn slow_pull_delays_no_other_pod() {
    let Some(mut node) = Node::start("slow") else { return };
    let proxy = Proxy::start(&node.folder, &node.socket());
    let release = Latch::new();
    proxy.inject("PullImage", Fault::Held(release.clone()));
    let endpoint = format!("--container-runtime-endpoint=unix://{}", proxy.socket.display());
    node.start_kubelet_with(&[&endpoint]);
    let out = node.folder.join("out");
    node.write("slow.yaml", &pod("slow", "Always", &out, STAYS).replace("busybox:1", "none:1"));
    assert!(wait(|| proxy.calls("PullImage") == 1), "{}", node.log());
    node.write("a.yaml", &pod("a", "Always", &out, STAYS));
    node.eventually("a-n", "ready", is_ready);
    // A pod that goes ends its pull.
    node.remove("slow.yaml");
    node.eventually("slow-n", "gone", Value::is_null);
    assert!(wait(|| sandboxes(&node) == 1), "{}", node.log());
    release.open();
}

#[test]
fn end_of_a_pod_does_not_cut_off_the_start_of_its_container() {
    let Some(mut node) = Node::start("begun") else { return };
    let proxy = Proxy::start(&node.folder, &node.socket());
    let release = Latch::new();
    proxy.inject("StartContainer", Fault::Held(release.clone()));
    let endpoint = format!("--container-runtime-endpoint=unix://{}", proxy.socket.display());
    node.start_kubelet_with(&[&endpoint]);
    let out = node.folder.join("out");
    node.write("begun.yaml", &pod("begun", "Always", &out, STAYS));
    assert!(wait(|| proxy.calls("StartContainer") == 1), "{}", node.log());
    node.remove("begun.yaml");
    // Its source has changed again: the end of the first pod is known.
    node.write("a.yaml", &pod("a", "Always", &out, STAYS));
    node.eventually("a-n", "ready", is_ready);
    release.open();
    node.eventually("begun-n", "gone", Value::is_null);
    assert!(wait(|| sandboxes(&node) == 1), "{}", node.log());
    let starts = fs::read_to_string(out.join("starts")).expect("starts");
    assert!(starts.lines().any(|line| line == "begun"), "{starts}");
}

#[test]
fn pods_run_again_after_a_restart_of_the_machine() {
    let Some(mut node) = Node::start("reboot") else { return };
    let out = node.folder.join("out");
    node.write("a.yaml", &pod("a", "Always", &out, STAYS));
    node.write("job.yaml", &pod("job", "Never", &out, "exit 0"));
    let looks = "echo $(grep -c ' /mem tmpfs ' /proc/mounts) $(stat -c %a /mem) >> /out/memory";
    let memory = pod("memory", "Always", &out, &format!("{looks}; {STAYS}"))
        .replace("volumes: [", "volumes: [{name: mem, emptyDir: {medium: Memory}}, ")
        .replace("volumeMounts: [", "volumeMounts: [{name: mem, mountPath: /mem}, ");
    node.write("memory.yaml", &memory);
    node.start_kubelet();
    node.eventually("a-n", "ready", is_ready);
    node.eventually("memory-n", "ready", is_ready);
    node.eventually("job-n", "succeeded", |pod| pod["status"]["phase"] == "Succeeded");
    node.restart_machine();
    node.start_kubelet();
    let again = node.eventually("a-n", "ready again", |pod| {
        is_ready(pod) && pod["status"]["containerStatuses"][0]["restartCount"] == 1
    });
    assert_eq!(again["status"]["phase"], "Running");
    let job = node.eventually("job-n", "known", |pod| pod["status"]["phase"] == "Succeeded");
    assert_eq!(job["status"]["containerStatuses"][0]["restartCount"], 0);
    node.eventually("memory-n", "ready again", |pod| {
        is_ready(pod) && pod["status"]["containerStatuses"][0]["restartCount"] == 1
    });
    assert_eq!(fs::read_to_string(out.join("memory")).expect("its lines"), "1 1777\n1 1777\n");
    let starts = fs::read_to_string(out.join("starts")).expect("starts");
    assert_eq!(starts.lines().filter(|line| *line == "job").count(), 1, "{starts}");
    assert_eq!(starts.lines().filter(|line| *line == "a").count(), 2, "{starts}");
    // What the restart left is removed: one sandbox and its predecessor at most.
    for name in ["a", "job", "memory"] {
        node.remove(&format!("{name}.yaml"));
    }
    let is_gone = wait(|| sandboxes(&node) == 0 && containers(&node).is_empty());
    assert!(is_gone, "{:?}\n{}", containers(&node), node.log());
}
