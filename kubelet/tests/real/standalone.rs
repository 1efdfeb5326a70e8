//! What upstream's own tests ask of a kubelet without an API server: `e2e_node`'s standalone and static
//! pod tests, and those of mirror pods as far as they look at the pod itself.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use futures_lite::future::block_on;
use kube_controller_manager::clock::{Clock, SystemClock};
use kubelet::cri::{self, RuntimeService, api};
use serde_json::Value;

use super::crashes::containers;
use super::node::{Node, wait};
use super::pods::{STAYS, container, is_ready, once};

/// A machine on which the Go kubelet runs as well.
fn start(test: &str) -> Option<Node> {
    let node = Node::start(test)?;
    node.configure(
        "failCgroupV1: false\nfailSwapOn: false\nlocalStorageCapacityIsolation: false\n\
         makeIPTablesUtilChains: false\nresolvConf: ''\ncgroupDriver: cgroupfs",
    );
    Some(node)
}

/// How many of the containers with this name run.
fn running(all: &BTreeMap<String, Vec<api::ContainerState>>, name: &str) -> usize {
    let states = all.get(name).into_iter().flatten();
    states.filter(|state| **state == api::ContainerState::ContainerRunning).count()
}

fn init(pod: &Value) -> &Value {
    &pod["status"]["initContainerStatuses"][0]
}

/// Removes a container from the runtime, by its id in the status of a pod.
fn remove_container(node: &Node, status: &Value) {
    let id = status["containerID"].as_str().expect("an id").trim_start_matches("containerd://");
    let channel = cri::channel(&node.socket(), SystemClock::shared());
    let runtime = RuntimeService::new(channel, Duration::from_secs(60));
    let request = api::RemoveContainerRequest { container_id: id.to_owned() };
    block_on(async {
        runtime.stop_container(id, Duration::ZERO).await.expect("stopped");
        runtime.remove_container(request).await.expect("removed");
    });
}

/// Upstream: `restarting kubelet`, `when the static pod has init container`, `… sidecar container`.
#[test]
fn init_containers_that_were_removed_are_known_and_sidecars_run_again() {
    let Some(mut node) = start("init") else { return };
    let with = |name: &str, policy: &str, script: &str| {
        let init = format!(
            "spec:\n  initContainers:\n  - name: init\n    image: node.test/busybox:1\n    \
             command: [sh, -c, {script:?}]\n{policy}"
        );
        once(name, "Always", STAYS).replace("spec:\n", &init)
    };
    node.write("init.yaml", &with("init", "", "exit 0"));
    node.write("sidecar.yaml", &with("sidecar", "    restartPolicy: Always\n", STAYS));
    node.start_kubelet();
    let done = node.eventually("init-n", "ready", is_ready);
    let sidecar = node.eventually("sidecar-n", "ready", is_ready);
    assert_eq!(init(&done)["state"]["terminated"]["reason"], "Completed");
    node.kill_kubelet();
    remove_container(&node, init(&done));
    remove_container(&node, init(&sidecar));
    node.start_kubelet();
    let again = node.eventually("init-n", "ready again", is_ready);
    let ended = &init(&again)["state"]["terminated"];
    assert_eq!((&ended["reason"], &ended["exitCode"]), (&"Completed".into(), &0.into()));
    let message = ended["message"].as_str().unwrap_or_default();
    assert!(message.starts_with("Unable to get init container status"), "{ended:#}");
    assert_eq!(container(&again)["containerID"], container(&done)["containerID"]);
    node.eventually("sidecar-n", "ready with a new sidecar", |pod| {
        let id = &init(pod)["containerID"];
        let runs = init(pod)["state"]["running"].is_object();
        is_ready(pod) && runs && id.is_string() && *id != init(&sidecar)["containerID"]
    });
    assert_eq!(node.get("127.0.0.1:10248", "/healthz").as_deref(), Some("ok"));
}

/// Upstream: `the pod with the port on host network … can be upgraded when the container name changes`,
/// `should be updated when static pod updated`, `should successfully recreate when file is removed and
/// recreated`.
#[test]
fn manifests_are_upgraded_and_come_back() {
    let Some(mut node) = start("upgrade") else { return };
    let port = "spec:\n  hostNetwork: true\n";
    let web = once("web", "Always", STAYS).replace("spec:\n", port)
        + "    ports: [{containerPort: 4534, name: tcp}]\n";
    // It still ends when it comes back.
    let back = once("back", "Always", "trap 'sleep 3; exit 0' TERM; sleep 1000 & wait")
        .replace("PeriodSeconds: 1", "PeriodSeconds: 60");
    node.write("web.yaml", &web);
    node.write("back.yaml", &back);
    node.start_kubelet();
    let first = node.eventually("web-n", "ready", is_ready);
    node.eventually("back-n", "ready", is_ready);
    node.write("web.yaml", &web.replace("name: main", "name: upgraded"));
    let second = node.eventually("web-n", "upgraded", |pod| {
        is_ready(pod) && container(pod)["name"] == "upgraded"
    });
    assert_ne!(first["metadata"]["uid"], second["metadata"]["uid"]);
    assert_eq!(second["spec"]["containers"][0]["name"], "upgraded");
    node.remove("back.yaml");
    // Each file is a change of its own: the kubelet sees the pod go.
    assert!(wait(|| node.pod("back-n").is_null()), "{}", node.log());
    node.write("back.yaml", &back);
    let again = node.eventually("back-n", "ready again", |pod| {
        is_ready(pod) && container(pod)["restartCount"] == 1
    });
    assert_eq!(again["status"]["phase"], "Running");
    block_on(SystemClock.sleep(Duration::from_secs(5)));
    assert_eq!(container(&node.pod("back-n")), container(&again), "{}", node.log());
    for name in ["web", "back"] {
        node.remove(&format!("{name}.yaml"));
        node.eventually(&format!("{name}-n"), "gone", Value::is_null);
    }
    assert!(wait(|| containers(&node).is_empty()), "{}", node.log());
}

const STUBBORN: &str = "trap 'echo caught; sleep 100' TERM; while true; do sleep 0.1; done";

/// Upstream: `mirror pod termination should satisfy grace period`, when a static pod is deleted, is
/// updated, and is updated many times meanwhile.
#[test]
fn pods_that_go_have_their_grace_and_the_last_manifest_wins() {
    let Some(mut node) = start("graceful") else { return };
    let pod = |name: &str| {
        let named = format!("name: {name}");
        once(name, "Always", STUBBORN)
            .replace("PeriodSeconds: 1", "PeriodSeconds: 6")
            .replace("name: main", &named)
    };
    for name in ["gone", "new", "often"] {
        node.write(&format!("{name}.yaml"), &pod(name));
    }
    node.start_kubelet();
    for name in ["gone", "new", "often"] {
        node.eventually(&format!("{name}-n"), "ready", is_ready);
    }
    let begin = SystemClock.monotonic();
    let last = |name: &str| once(name, "Always", STAYS).replace("main", &format!("{name}-last"));
    node.remove("gone.yaml");
    node.write("new.yaml", &last("new"));
    for turn in 0..30 {
        node.write("often.yaml", &pod("often").replace("busybox:1", &format!("none:{turn}")));
        block_on(SystemClock.sleep(Duration::from_millis(100)));
    }
    node.write("often.yaml", &last("often"));
    loop {
        let all = containers(&node);
        // What is read before this was read within the grace period.
        if SystemClock.monotonic() - begin >= Duration::from_secs(6) {
            break;
        }
        for name in ["gone", "new", "often"] {
            assert_eq!(running(&all, name), 1, "{name}: {}", node.log());
            assert_eq!(running(&all, &format!("{name}-last")), 0, "{name}: {}", node.log());
        }
        block_on(SystemClock.sleep(Duration::from_millis(200)));
    }
    for name in ["new", "often"] {
        node.eventually(&format!("{name}-n"), "ready with its last manifest", |pod| {
            is_ready(pod) && container(pod)["name"] == format!("{name}-last")
        });
    }
    let only_the_last = || {
        let names: Vec<String> = containers(&node).into_keys().collect();
        names == ["new-last", "often-last"]
    };
    assert!(wait(only_the_last), "{:?}\n{}", containers(&node), node.log());
}

/// Upstream: `and the container runtime is temporarily down during pod termination`.
#[test]
fn pod_ends_after_the_runtime_was_away_and_metrics_say_where_it_is() {
    let Some(mut node) = start("terminating") else { return };
    let manifest = once("slow", "Always", STUBBORN).replace("PeriodSeconds: 1", "PeriodSeconds: 5");
    node.write("slow.yaml", &manifest);
    node.start_kubelet();
    node.eventually("slow-n", "ready", is_ready);
    // The sums of a metric's series that count something.
    let counted = |name: &str| -> Vec<String> {
        let page = node.get("127.0.0.1:10255", "/metrics").unwrap_or_default();
        let lines = page.lines().filter(|line| line.starts_with(name) && !line.ends_with(" 0"));
        lines.map(|line| line.trim_start_matches(name).to_owned()).collect()
    };
    let is = |working: &str, of_both: &[&str]| {
        let working: Vec<&str> =
            Some(working).filter(|text| !text.is_empty()).into_iter().collect();
        wait(|| {
            counted("kubelet_working_pods") == working
                && counted("kubelet_active_pods") == of_both
                && counted("kubelet_desired_pods") == of_both
        })
    };
    let syncs = r#"{config="desired",lifecycle="sync",static="true"} 1"#;
    assert!(is(syncs, &[r#"{static="true"} 1"#]), "{:?}", counted("kubelet_"));
    node.remove("slow.yaml");
    assert!(wait(|| node.log().contains("Stopping container main")), "{}", node.log());
    node.kill_runtime();
    let ends = r#"{config="orphan",lifecycle="terminating",static="true"} 1"#;
    assert!(is(ends, &[]), "{:?}", counted("kubelet_"));
    node.resume_runtime();
    assert!(wait(|| containers(&node).is_empty()), "{}", node.log());
    assert!(is("", &[]), "{:?}", counted("kubelet_"));
}

/// Upstream: `static pod with EnvFiles … should be running and consume variables`.
#[test]
fn variables_come_from_files_of_volumes() {
    let Some(mut node) = start("envfiles") else { return };
    let pod = |name: &str, key: &str| {
        format!(
            "
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  restartPolicy: Never
  volumes: [{{name: config, emptyDir: {{}}}}]
  initContainers:
  - name: setup
    image: node.test/busybox:1
    command: [sh, -c, \"echo CONFIG_1=\\\\'value1\\\\' > /data/config.env;
      echo CONFIG_2=\\\\'value2\\\\' >> /data/config.env; ln -s /etc/passwd /data/link\"]
    volumeMounts: [{{name: config, mountPath: /data}}]
  containers:
  - name: use
    image: node.test/busybox:1
    command: [sh, -c, 'env | grep CONFIG_ | sort']
    env:
    - {{name: CONFIG_1, valueFrom: {{fileKeyRef: {{volumeName: config, path: config.env, key: CONFIG_1}}}}}}
    - {{name: CONFIG_X, valueFrom: {{fileKeyRef: {{volumeName: config, path: config.env, key: X, optional: true}}}}}}
    - {{name: CONFIG_2, valueFrom: {{fileKeyRef: {{volumeName: config, {key}}}}}}}
"
        )
    };
    node.write("good.yaml", &pod("good", "path: config.env, key: CONFIG_2"));
    node.write("missing.yaml", &pod("missing", "path: config.env, key: NONE"));
    node.write("link.yaml", &pod("link", "path: link, key: CONFIG_2"));
    node.start_kubelet();
    let good = node.eventually("good-n", "succeeded", |pod| pod["status"]["phase"] == "Succeeded");
    let uid = good["metadata"]["uid"].as_str().expect("a uid");
    let log = node.folder.join(format!("podlogs/default_good-n_{uid}/use/0.log"));
    let log = fs::read_to_string(log).expect("a log");
    let lines: Vec<&str> = log.lines().filter_map(|line| line.split(" F ").nth(1)).collect();
    assert_eq!(lines, ["CONFIG_1=value1", "CONFIG_2=value2"], "{log}");
    for (name, fault) in [
        ("missing-n", "/volumes/kubernetes.io~empty-dir/config/config.env\""),
        // It leads out of the volume.
        ("link-n", "couldn't parse env file"),
    ] {
        let bad = node.eventually(name, "waiting for its variables", |pod| {
            container(pod)["state"]["waiting"]["reason"] == "CreateContainerConfigError"
        });
        let message = container(&bad)["state"]["waiting"]["message"].as_str().unwrap_or_default();
        assert!(message.ends_with(fault), "{name}: {message}");
        let key = message.contains("environment variable key \"NONE\" not found in file");
        assert_eq!(key, name == "missing-n", "{name}: {message}");
    }
}
