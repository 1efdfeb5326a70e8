//! Pods that the node does not admit, and pods that end for others.

use kube_controller_manager::task;
use serde_json::{Value, json};

use super::api::{Agent, Server, running, sleeps};
use super::machine::{Error, Machine};
use super::node::{Node, wait};
use super::pods::{condition, container, is_ready, once};

/// Most of the machine's CPUs: two such pods do not fit.
fn most_of_cpus() -> String {
    let list = std::fs::read_to_string("/sys/devices/system/cpu/online").expect("the CPUs");
    let count = list.trim().split(',').map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| text.parse::<u32>().expect("a number");
        number(last) - number(first) + 1
    });
    format!("{}m", count.sum::<u32>() * 600)
}

fn with_cpu(mut spec: Value, cpu: &str) -> Value {
    spec["containers"][0]["resources"] = json!({"requests": {"cpu": cpu}});
    spec
}

fn is_failed(pod: &Value) -> bool {
    pod["status"]["phase"] == "Failed"
}

fn id(pod: &Value) -> String {
    let id = container(pod)["containerID"].as_str().expect("an id");
    id.trim_start_matches("containerd://").to_owned()
}

#[test]
fn pods_of_the_server_are_admitted_rejected_and_preempted() {
    let Some(_place) = super::node::place("admission") else { return };
    let machine = match Machine::start(format!("/tmp/kadm{}", std::process::id()).into()) {
        Ok(machine) => machine,
        Err(Error::Missing(line)) => return eprintln!("admission: {line}"),
        Err(Error::Failed(text)) => panic!("{text}"),
    };
    task::run(1, async move {
        let server = Server::start().await;
        let kubeconfig = server.sandbox.kubeconfig();
        let agent = Agent::start(&machine, &kubeconfig);
        let mut escape = sleeps();
        escape["containers"][0]["securityContext"] = json!({"procMount": "Unmasked"});
        let mut sysctl = sleeps();
        sysctl["securityContext"] = json!({"sysctls": [{"name": "kernel.msgmax", "value": "1"}]});
        let mut elsewhere = sleeps();
        elsewhere["nodeSelector"] = json!({"disk": "none"});
        for (name, spec, reason, message) in [
            (
                "large",
                with_cpu(sleeps(), "1000"),
                "OutOfcpu",
                "Pod was rejected: Node didn't have enough resource: cpu, requested: 1000000, used: 0, \
                 capacity: ",
            ),
            (
                "escape",
                escape,
                "PodFeatureUnsupported",
                "Pod was rejected: Pod requires node features that are not available: ProcMountType",
            ),
            (
                "sysctl",
                sysctl,
                "SysctlForbidden",
                "Pod was rejected: forbidden sysctl: \"kernel.msgmax\" not allowlisted",
            ),
            (
                "elsewhere",
                elsewhere,
                "NodeAffinity",
                "Pod was rejected: Predicate NodeAffinity failed: node(s) didn't match Pod's node \
                 affinity/selector",
            ),
        ] {
            server.create(name, "n", json!({}), spec).await;
            let pod = server.eventually(name, "failed", is_failed).await;
            let status = &pod["status"];
            assert_eq!(status["reason"], reason, "{status:#}");
            assert!(
                status["message"].as_str().is_some_and(|text| text.starts_with(message)),
                "{status:#}"
            );
            assert!(status["containerStatuses"].is_null(), "{status:#}");
        }
        assert!(running(&machine, &server.clock).await.is_empty(), "{}", machine.log());
        server.delete("large", 30).await;
        server.eventually("large", "gone", Value::is_null).await;

        let cpu = most_of_cpus();
        server.create("low", "n", json!({}), with_cpu(sleeps(), &cpu)).await;
        server.create("idle", "n", json!({}), sleeps()).await;
        server.eventually("low", "ready", is_ready).await;
        let idle = server.eventually("idle", "ready", is_ready).await;
        let mut critical = with_cpu(sleeps(), &cpu);
        critical["priorityClassName"] = json!("system-cluster-critical");
        server.create("critical", "n", json!({}), critical).await;
        let critical = server.eventually("critical", "ready", is_ready).await;
        let low = server.eventually("low", "preempted", is_failed).await;
        assert_eq!(low["status"]["reason"], "Preempting", "{low:#}");
        assert_eq!(low["status"]["message"], "Preempted in order to admit critical pod");
        let disruption = condition(&low, "DisruptionTarget");
        assert_eq!(
            (&disruption["status"], &disruption["reason"], &disruption["message"]),
            (
                &json!("True"),
                &json!("TerminationByKubelet"),
                &json!("Pod was preempted by Kubelet to accommodate a critical pod.")
            )
        );
        assert!(is_ready(&server.pod("idle").await), "only what is needed ends");

        // What was admitted stays when the kubelet restarts, and a later pod does not take its place.
        drop(agent);
        server.create("late", "n", json!({}), with_cpu(sleeps(), &cpu)).await;
        let agent = Agent::start(&machine, &kubeconfig);
        let late = server.eventually("late", "failed", is_failed).await;
        assert_eq!(late["status"]["reason"], "OutOfcpu", "{late:#}");
        server.create("after", "n", json!({}), sleeps()).await;
        server.eventually("after", "ready", is_ready).await;
        let left = running(&machine, &server.clock).await;
        for before in [&critical, &idle] {
            let name = before["metadata"]["name"].as_str().expect("a name");
            let pod = server.pod(name).await;
            assert!(is_ready(&pod) && id(&pod) == id(before), "{pod:#}\n{}", machine.log());
            assert!(left.contains(&id(before)), "{}", machine.log());
        }
        drop(agent);
    });
}

#[test]
fn static_pods_keep_their_places_over_a_restart() {
    let Some(mut node) = Node::start("places") else { return };
    let cpu = most_of_cpus();
    let large = |name: &str| {
        once(name, "Always", "exec sleep 1000")
            + &format!("    resources: {{requests: {{cpu: {cpu}}}}}\n")
    };
    node.write("z.yaml", &large("z"));
    node.start_kubelet();
    let first = node.eventually("z-n", "ready", is_ready);
    // Its name comes first in the folder.
    node.write("a.yaml", &large("a"));
    let is_rejected =
        |pod: &Value| is_failed(pod) && pod["status"]["reason"] == "UnexpectedAdmissionError";
    node.eventually("a-n", "rejected", is_rejected);
    node.kill_kubelet();
    node.start_kubelet();
    node.eventually("a-n", "rejected", is_rejected);
    let again = node.eventually("z-n", "ready", is_ready);
    assert_eq!(id(&again), id(&first), "{}", node.log());
    // A pod that comes back is decided about again.
    node.remove("z.yaml");
    node.remove("a.yaml");
    assert!(wait(|| node.pod("z-n").is_null() && node.pod("a-n").is_null()), "{}", node.log());
    node.write("a.yaml", &large("a"));
    node.eventually("a-n", "ready", is_ready);
}
