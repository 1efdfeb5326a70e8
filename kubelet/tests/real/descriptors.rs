//! The kubelet's descriptors: clients that hold connections, and a process that can open no file.

use std::net::TcpStream;
use std::process::Command;

use kube_controller_manager::open_files;
use serde_json::Value;

use super::node::{Node, wait};
use super::pods::{container, is_ready};

/// A probe that fails once ends the container.
const WEB: &str = "
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: node.test/busybox:1
    command: [httpd, -f, -p, '8080']
    readinessProbe: {httpGet: {port: 8080, path: /etc/passwd}, periodSeconds: 1, failureThreshold: 1}
    livenessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1, failureThreshold: 1}
";

/// The probes of a kind that have succeeded.
fn successes(node: &Node, kind: &str) -> u64 {
    let page = node.get("127.0.0.1:10255", "/metrics/probes").unwrap_or_default();
    let label = format!("probe_type=\"{kind}\",result=\"successful\"");
    let line = page.lines().find(|line| line.contains(&label));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or_default()
}

fn restarts(pod: &Value) -> Option<i64> {
    container(pod)["restartCount"].as_i64()
}

#[test]
fn idle_clients_leave_descriptors_to_probes() {
    let Some(mut node) = Node::start("idle") else { return };
    node.write("web.yaml", WEB);
    node.start_kubelet_with(&["--max-open-files=1024"]);
    node.eventually("web-n", "ready", is_ready);
    open_files::raise_limit();
    let idle = node.in_network(|| {
        let connect =
            |port| move |_| TcpStream::connect(("127.0.0.1", port)).expect("a connection");
        (0..500).map(connect(10248)).chain((0..500).map(connect(10255))).collect::<Vec<_>>()
    });
    for kind in ["Readiness", "Liveness"] {
        let before = successes(&node, kind);
        assert!(wait(|| successes(&node, kind) > before + 3), "{kind}: {}", node.log());
    }
    let open = std::fs::read_dir(format!("/proc/{}/fd", node.kubelet_id())).expect("a process");
    let open = open.count();
    assert!(open < 300, "{open} descriptors with {} idle connections", idle.len());
    assert_eq!(restarts(&node.pod("web-n")), Some(0), "{}", node.log());
    assert_eq!(node.get("127.0.0.1:10248", "/healthz").as_deref(), Some("ok"));
}

#[test]
fn limits_of_descriptors_are_set() {
    let Some(mut node) = Node::start("limit") else { return };
    let few = ["prlimit", "--nofile=256:2048"];
    node.start_kubelet_by(&few, &["--max-open-files=0"]);
    assert!(wait(|| node.log().contains("raised from 256 to 2048")), "{}", node.log());
    node.kill_kubelet();
    node.start_kubelet_by(&few, &["--max-open-files=1500"]);
    let limits = format!("/proc/{}/limits", node.kubelet_id());
    let is_set = || {
        let limits = std::fs::read_to_string(&limits).unwrap_or_default();
        let line = limits.lines().find(|line| line.starts_with("Max open files"));
        line.is_some_and(|line| line.split_whitespace().skip(3).take(2).eq(["1500", "1500"]))
    };
    assert!(wait(is_set), "{}", node.log());
}

#[test]
fn probes_that_cannot_open_a_socket_have_no_result() {
    let Some(mut node) = Node::start("sockets") else { return };
    node.write("web.yaml", WEB);
    node.start_kubelet();
    node.eventually("web-n", "ready", is_ready);
    let limit = |open: &str| {
        let (process, limit) = (node.kubelet_id().to_string(), format!("--nofile={open}"));
        let limited = Command::new("prlimit").args(["--pid", &process, &limit]).status();
        assert!(limited.expect("prlimit").success());
    };
    // All that are open stay open; none can be opened.
    limit("3:");
    for kind in ["Readiness", "Liveness"] {
        let line = format!("{kind} probe errored and resulted in unknown state: dial tcp");
        assert!(wait(|| node.log().matches(&line).count() > 3), "{kind}: {}", node.log());
    }
    limit("1024:");
    let before = successes(&node, "Liveness");
    assert!(wait(|| successes(&node, "Liveness") > before), "{}", node.log());
    let pod = node.pod("web-n");
    assert!(restarts(&pod) == Some(0) && is_ready(&pod), "{pod:#}\n{}", node.log());
    assert!(!node.log().contains("probe failed: dial tcp"), "{}", node.log());
}
