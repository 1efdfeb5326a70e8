//! The node's address and resolver come and change while the kubelet runs.

use std::fs;

use super::node::{Node, wait};
use super::pods::{container, is_ready};
use super::restarts::probed;

/// Runs `ip` in the machine's network.
fn ip(node: &Node, arguments: &str) {
    let status = node.script("run").arg("ip").args(arguments.split(' ')).status();
    assert!(status.expect("ip").success(), "ip {arguments}");
}

/// A pod with the node's network and address.
fn pod(node: &Node, name: &str, port: u16, script: &str) -> String {
    let folder = node.host_path("").display().to_string();
    format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  hostNetwork: true
  terminationGracePeriodSeconds: 1
  volumes: [{{name: host, hostPath: {{path: {folder}}}}}]
  containers:
  - name: main
    image: node.test/busybox:1
    command: [sh, -c, 'echo $HOST $POD > /host/{name}; cat /etc/resolv.conf > /host/{name}.resolv;
      {script}']
    env:
    - {{name: HOST, valueFrom: {{fieldRef: {{fieldPath: status.hostIP}}}}}}
    - {{name: POD, valueFrom: {{fieldRef: {{fieldPath: status.podIP}}}}}}
    volumeMounts: [{{name: host, mountPath: /host}}]
    startupProbe: {{tcpSocket: {{port: {port}}}, periodSeconds: 1, failureThreshold: 60}}
    livenessProbe: {{httpGet: {{port: {port}}}, periodSeconds: 1, timeoutSeconds: 60, failureThreshold: 1}}
    readinessProbe: {{tcpSocket: {{port: {port}}}, periodSeconds: 1, timeoutSeconds: 60}}
"
    )
}

const SERVE: &str = "echo ok > /index.html; exec httpd -f -h / -p";

#[test]
fn a_new_lease_ends_no_pod() {
    let Some(mut node) = Node::start("lease") else { return };
    node.write("web.yaml", &pod(&node, "web", 18081, &format!("{SERVE} 18081")));
    node.start_kubelet();
    let web = node.eventually("web-n", "ready", is_ready);
    assert_eq!(web["status"]["hostIP"], "198.51.100.2");
    assert_eq!(node.host_text("web"), "198.51.100.2 198.51.100.2\n");
    ip(&node, "address add 203.0.113.3/24 dev uplink");
    ip(&node, "route replace default via 203.0.113.1");
    let succeeded = || probed(&node, "web-n", "Liveness", "successful");
    let probe_more = || {
        let before = succeeded();
        assert!(wait(|| succeeded() > before + 1), "{}", node.log());
    };
    // None is under way when the old address goes.
    probe_more();
    ip(&node, "address delete 198.51.100.2/24 dev uplink");
    probe_more();
    assert_eq!(probed(&node, "web-n", "Liveness", "failed"), 0, "{}", node.log());
    assert_eq!(container(&node.pod("web-n"))["restartCount"], 0);
}

#[test]
fn a_kubelet_may_start_before_its_network() {
    let Some(mut node) = Node::start("boot") else { return };
    ip(&node, "route delete default");
    let resolver = node.folder.join("resolv.conf");
    node.write("early.yaml", &pod(&node, "early", 18082, &format!("{SERVE} 18082")));
    node.start_kubelet_with(&[&format!("--resolv-conf={}", resolver.display())]);
    assert!(wait(|| node.log().contains("(--resolv-conf)")), "{}", node.log());
    fs::write(&resolver, "nameserver 203.0.113.53\n").expect("a file");
    node.eventually("early-n", "waiting for an address", |pod| {
        let waiting = &container(pod)["state"]["waiting"];
        let message = waiting["message"].as_str().unwrap_or_default();
        message.contains("can't get ip address of node")
    });
    ip(&node, "route add default via 198.51.100.1");
    node.eventually("early-n", "ready", is_ready);
    assert_eq!(node.host_text("early"), "198.51.100.2 198.51.100.2\n");
    assert_eq!(node.host_text("early.resolv"), "nameserver 203.0.113.53\n");
}
