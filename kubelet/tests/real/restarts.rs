//! Restarts of the agent: the results of probes stay.

use std::fs;

use serde_json::Value;

use super::node::{Node, wait};
use super::pods::{container, is_ready};

/// A pod with a folder of the machine at `/host`, a container with `probes` and its sidecars.
fn pod(node: &Node, name: &str, init: &str, probes: &str) -> String {
    let folder = node.host_path("").display().to_string();
    format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 1
  volumes: [{{name: host, hostPath: {{path: {folder}}}}}]
{init}
  containers:
  - name: main
    image: node.test/busybox:1
    command: [sh, -c, 'touch /host/{name}.main; exec sleep 100000']
    volumeMounts: [{{name: host, mountPath: /host}}]
{probes}
"
    )
}

/// A probe of a file in the folder.
fn probe(kind: &str, file: &str, failures: u32) -> String {
    format!(
        "    {kind}: {{exec: {{command: [test, -e, /host/{file}]}}, periodSeconds: 1, \
         timeoutSeconds: 60, failureThreshold: {failures}}}\n"
    )
}

/// How often this agent's probes of a kind have ended so.
pub fn probed(node: &Node, pod: &str, kind: &str, result: &str) -> u64 {
    let metrics = node.get("127.0.0.1:10255", "/metrics/probes").unwrap_or_default();
    let labels = [format!("pod=\"{pod}\""), format!("\"{kind}\""), format!("\"{result}\"")];
    let mut lines = metrics.lines().filter(|line| labels.iter().all(|label| line.contains(label)));
    let count = lines.find(|line| line.starts_with("prober_probe_total"));
    count.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or_default()
}

#[test]
fn agent_that_restarts_knows_the_results_of_probes() {
    let Some(mut node) = Node::start("results") else { return };
    let slow = probe("startupProbe", "started", 1000) + &probe("livenessProbe", "alive", 1);
    node.write("slow.yaml", &pod(&node, "slow", "", &slow));
    let sidecar = "  initContainers:
  - name: side
    image: node.test/busybox:1
    restartPolicy: Always
    command: [sleep, '100000']
    volumeMounts: [{name: host, mountPath: /host}]
";
    let gate = format!("{sidecar}{}", probe("startupProbe", "started", 1000));
    node.write("gate.yaml", &pod(&node, "gate", &gate, ""));
    node.write("unready.yaml", &pod(&node, "unready", "", &probe("readinessProbe", "none", 9)));
    // Its startup probe would fail now.
    let ready = probe("startupProbe", "once", 1) + &probe("readinessProbe", "ready.main", 9);
    node.write("ready.yaml", &pod(&node, "ready", "", &ready));
    fs::write(node.host_path("once"), "").expect("a file");
    node.start_kubelet();
    let before = node.eventually("ready-n", "ready", is_ready);
    for (name, kind) in [("slow-n", "Startup"), ("gate-n", "Startup"), ("unready-n", "Readiness")] {
        assert!(wait(|| probed(&node, name, kind, "failed") > 0), "{}", node.log());
    }
    fs::remove_file(node.host_path("once")).expect("a file");
    node.kill_kubelet();
    node.start_kubelet();
    // The first status that has a container.
    let known = |pod: &Value| container(pod)["containerID"].is_string();
    let after = node.eventually("ready-n", "known", known);
    assert!(is_ready(&after), "readiness flips: {after:#}");
    for name in ["slow-n", "unready-n"] {
        let after = node.eventually(name, "known", known);
        assert!(!is_ready(&after), "it has become ready: {after:#}");
    }
    for (name, kind, result) in [
        ("slow-n", "Startup", "failed"),
        ("gate-n", "Startup", "failed"),
        ("unready-n", "Readiness", "failed"),
        ("ready-n", "Readiness", "successful"),
    ] {
        assert!(wait(|| probed(&node, name, kind, result) > 2), "{name}: {}", node.log());
    }
    assert!(!node.host_path("gate.main").exists(), "the sidecar has not started yet");
    for name in ["slow-n", "unready-n"] {
        assert!(!is_ready(&node.pod(name)), "{}", node.log());
    }
    fs::write(node.host_path("alive"), "").expect("a file");
    fs::write(node.host_path("started"), "").expect("a file");
    for name in ["slow-n", "gate-n"] {
        let started = node.eventually(name, "ready", is_ready);
        assert_eq!(container(&started)["restartCount"], 0, "{}", node.log());
    }
    let last = node.pod("ready-n");
    assert_eq!(container(&last)["containerID"], container(&before)["containerID"]);
}
