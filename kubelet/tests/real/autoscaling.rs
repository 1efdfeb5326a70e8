//! A HorizontalPodAutoscaler that follows the CPU of containers: the kubelet measures it, a
//! metrics-server reads it, and the manager's controller scales.

use std::time::Duration;

use kube_controller_manager::options::Options;
use kube_controller_manager::task;
use sandbox::containers;
use serde_json::Value;

use super::container_cluster::{ContainerCluster, Kubectl};
use super::metrics_server::MetricsServer;
use super::node::{place, wait};

const CONTROLLERS: [&str; 7] = [
    "deployment-controller",
    "horizontal-pod-autoscaler-controller",
    "node-lifecycle-controller",
    "pod-garbage-collector-controller",
    "replicaset-controller",
    "root-ca-certificate-publisher-controller",
    "serviceaccount-controller",
];

/// Its containers are busy until there is a file. They request so little that any machine is fast
/// enough to be above the target, and may use so little that other tests are not disturbed.
const BUSY: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: busy}
spec:
  selector: {matchLabels: {app: busy}}
  template:
    metadata: {labels: {app: busy}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - name: main
        image: node.test/busybox:1
        command: [sh, -c, 'while [ ! -e /tmp/rest ]; do :; done; exec sleep 100000']
        resources: {requests: {cpu: 1m, memory: 8Mi}, limits: {cpu: 100m}}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: busy}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: busy}
  minReplicas: 1
  maxReplicas: 3
  behavior: {scaleDown: {stabilizationWindowSeconds: 0}}
  metrics:
  - {type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 50}}}
";

#[test]
fn an_autoscaler_follows_the_cpu_of_containers() {
    let Some(_place) = place("autoscaling") else { return };
    task::run(2, async {
        let options = Options {
            horizontal_pod_autoscaler_sync_period: Duration::from_secs(1),
            ..Options::default()
        };
        let Some(running) = ContainerCluster::start(None, &CONTROLLERS, options).await else {
            return;
        };
        let metrics = MetricsServer::start(&running.server).await;
        let kubectl = running.kubectl.clone();
        // The API server is in this process: its threads must not wait for kubectl.
        task::blocking(move || scale(&kubectl)).await;
        metrics.stop().await;
        running.stop().await;
    });
}

fn scale(kubectl: &Kubectl) {
    kubectl.feed(&["create", "-f", "-"], BUSY);
    until(kubectl, "deployment/busy", "{.status.readyReplicas}=3");
    let hpa = kubectl.run(&["get", "hpa", "busy", "-o", "json"]);
    let hpa: Value = serde_json::from_str(&hpa).expect("JSON");
    let status = &hpa["status"];
    for (kind, reason) in [
        ("AbleToScale", None),
        ("ScalingActive", Some("ValidMetricFound")),
        ("ScalingLimited", Some("TooManyReplicas")),
    ] {
        let mut conditions = status["conditions"].as_array().into_iter().flatten();
        let found = conditions.find(|found| found["type"] == kind);
        let found = found.unwrap_or_else(|| panic!("no {kind}: {status:#}"));
        assert_eq!(found["status"], "True", "{status:#}");
        assert!(reason.is_none_or(|reason| found["reason"] == reason), "{status:#}");
    }
    let current = &status["currentMetrics"][0]["resource"];
    assert_eq!(current["name"], "cpu", "{status:#}");
    let percent = current["current"]["averageUtilization"].as_i64();
    assert!(percent.is_some_and(|percent| percent > 50), "{status:#}");
    has_event(kubectl, "cpu resource utilization (percentage of request) above target");

    // Each of the containers is busy, and so is the node.
    let mut shown = String::new();
    let all_busy = || {
        shown = kubectl.run(&["top", "pods", "-l", "app=busy", "--containers", "--no-headers"]);
        let rows: Vec<Vec<&str>> =
            shown.lines().map(|line| line.split_whitespace().collect()).collect();
        let is_busy = |row: &Vec<&str>| matches!(row[..], [_, "main", cpu, _] if is_some(cpu, "m"));
        rows.len() == 3 && rows.iter().all(is_busy)
    };
    assert!(wait(all_busy), "{shown}");
    let shown = kubectl.run(&["top", "nodes", "--no-headers"]);
    let row: Vec<&str> = shown.split_whitespace().collect();
    let [name, cpu, cpu_share, memory, memory_share] = row[..] else { panic!("{shown}") };
    assert_eq!(name, containers::NODE, "{shown}");
    assert!(is_some(cpu, "m") && is_some(memory, "Mi"), "{shown}");
    assert!(cpu_share.ends_with('%') && memory_share.ends_with('%'), "{shown}");

    // Without load one pod is left.
    let pods = kubectl.run(&["get", "pods", "-l", "app=busy", "-o", "name"]);
    for pod in pods.lines() {
        kubectl.run(&["exec", pod, "--", "touch", "/tmp/rest"]);
    }
    until(kubectl, "deployment/busy", "{.status.replicas}=1");
    has_event(kubectl, "All metrics below target");
}

/// Waits until a field of an object has a value.
fn until(kubectl: &Kubectl, object: &str, field: &str) {
    kubectl.run(&["wait", object, &format!("--for=jsonpath={field}"), "--timeout=600s"]);
}

/// Whether an amount has this unit and is more than nothing.
fn is_some(amount: &str, unit: &str) -> bool {
    let count = amount.strip_suffix(unit).and_then(|count| count.parse::<u64>().ok());
    count.is_some_and(|count| count > 0)
}

/// Waits until an event says that the size has changed for this reason.
fn has_event(kubectl: &Kubectl, reason: &str) {
    let mut shown = String::new();
    let is_there = || {
        shown = kubectl.run(&["get", "events", "-o", "jsonpath={.items[*].message}"]);
        shown.contains("New size: ") && shown.contains(&format!("; reason: {reason}"))
    };
    assert!(wait(is_there), "{shown}");
}
