use serde_json::{Value, json};

use super::super::status::SandboxStatus;
use super::*;

fn pod(policy: &str, init: Value, names: &[&str]) -> Pod {
    let containers: Vec<Value> =
        names.iter().map(|name| json!({"name": name, "image": "i"})).collect();
    let pod = json!({
        "metadata": {"name": "p", "namespace": "n", "uid": "u"},
        "spec": {"restartPolicy": policy, "initContainers": init, "containers": containers},
    });
    serde_json::from_value(pod).expect("a pod")
}

fn sandbox(is_ready: bool, attempt: u32) -> SandboxStatus {
    SandboxStatus {
        id: format!("s{attempt}"),
        is_ready,
        attempt,
        created_at: 0,
        is_host_network: false,
        ips: vec!["10.0.0.1".to_owned()],
    }
}

/// A container whose id is its name, with the hash of the image `i`.
fn container(name: &str, state: State, exit_code: i32) -> ContainerStatus {
    let hash = container_hash(&Container {
        name: name.to_owned(),
        image: Some("i".to_owned()),
        ..Container::default()
    });
    ContainerStatus {
        id: name.to_owned(),
        name: name.to_owned(),
        state,
        created_at: 1,
        started_at: 1,
        finished_at: 1,
        exit_code,
        image: "i".to_owned(),
        hash: Some(hash),
        sandbox: "s0".to_owned(),
        ..ContainerStatus::default()
    }
}

fn compute(
    pod: &Pod,
    status: &PodStatus,
    probes: &dyn Fn(&str) -> ProbeResults,
    restarts_all: bool,
) -> PodActions {
    super::compute(pod, status, probes, restarts_all, None)
}

fn no_probes(_: &str) -> ProbeResults {
    ProbeResults::default()
}

/// `kill`, `sandbox`, the init containers and containers that start, the names that are killed.
fn shown(actions: &PodActions) -> String {
    let mut parts = Vec::new();
    if actions.kill_pod {
        parts.push("kill".to_owned());
    }
    if actions.create_sandbox {
        parts.push(format!("sandbox {}", actions.attempt));
    }
    parts.extend(actions.ephemeral_to_start.iter().map(|at| format!("ephemeral {at}")));
    parts.extend(actions.init_to_start.iter().map(|at| format!("init {at}")));
    parts.extend(actions.to_start.iter().map(|at| format!("start {at}")));
    parts.extend(actions.to_kill.iter().map(|kill| format!("end {}", kill.name)));
    let reset = |reset: &Reset| {
        format!("{} {}", if reset.is_running { "end and remove" } else { "remove" }, reset.id)
    };
    parts.extend(actions.to_reset.iter().map(reset));
    parts.join(", ")
}

#[test]
fn ephemeral_containers_start_once_in_a_sandbox_that_is_there() {
    use State::{Created, Exited, Running};
    let up = sandbox(true, 0);
    let running = container("a", Running, 0);
    for (sandboxes, containers, expected) in [
        (vec![], vec![], "kill, sandbox 0, init 0"),
        // They do not wait for init containers.
        (vec![up.clone()], vec![], "ephemeral 0, ephemeral 1, init 0"),
        (vec![up.clone()], vec![running.clone(), container("e", Exited, 1)], "ephemeral 1"),
        (vec![up], vec![running, container("e", Created, 0), container("f", Running, 0)], ""),
    ] {
        let mut pod = pod("Always", json!([{"name": "i", "image": "i"}]), &["a"]);
        let ephemeral = json!([{"name": "e", "image": "i"}, {"name": "f", "image": "i"}]);
        pod.spec.get_or_insert_default().ephemeral_containers =
            Some(serde_json::from_value(ephemeral).expect("ephemeral containers"));
        let status = PodStatus { sandboxes, containers };
        assert_eq!(shown(&compute(&pod, &status, &no_probes, false)), expected);
    }
}

#[test]
fn containers_without_init_containers() {
    use State::{Created, Exited, Running, Unknown};
    let up = sandbox(true, 0);
    let down = sandbox(false, 0);
    let table: &[(&str, &[&SandboxStatus], &[ContainerStatus], &str)] = &[
        ("Always", &[], &[], "kill, sandbox 0, start 0, start 1"),
        ("Always", &[&up], &[], "start 0, start 1"),
        ("Always", &[&up], &[container("a", Running, 0), container("b", Running, 0)], ""),
        ("Always", &[&up], &[container("a", Running, 0), container("b", Exited, 0)], "start 1"),
        ("OnFailure", &[&up], &[container("a", Running, 0), container("b", Exited, 0)], ""),
        ("OnFailure", &[&up], &[container("a", Running, 0), container("b", Exited, 1)], "start 1"),
        ("Never", &[&up], &[container("a", Running, 0), container("b", Exited, 1)], ""),
        ("Never", &[&up], &[container("a", Exited, 0), container("b", Exited, 1)], "kill"),
        ("Never", &[&up], &[container("a", Created, 0), container("b", Running, 0)], "start 0"),
        (
            "Always",
            &[&up],
            &[container("a", Unknown, 0), container("b", Running, 0)],
            "start 0, end a",
        ),
        (
            "Always",
            &[&down],
            &[container("a", Exited, 0), container("b", Exited, 0)],
            "kill, sandbox 1, start 0, start 1",
        ),
        (
            "OnFailure",
            &[&down],
            &[container("a", Exited, 0), container("b", Exited, 1)],
            "kill, sandbox 1, start 1",
        ),
        ("OnFailure", &[&down], &[container("a", Exited, 0), container("b", Exited, 0)], "kill"),
        ("Never", &[&down], &[container("a", Exited, 0)], "kill"),
        ("Never", &[&down], &[], "kill, sandbox 1, start 0, start 1"),
        (
            "Always",
            &[&sandbox(true, 2), &sandbox(true, 1)],
            &[container("a", Running, 0)],
            "kill, sandbox 3, start 0, start 1",
        ),
    ];
    for (policy, sandboxes, containers, expected) in table {
        let status = PodStatus {
            sandboxes: sandboxes.iter().map(|sandbox| (*sandbox).clone()).collect(),
            containers: containers.to_vec(),
        };
        let actions = compute(&pod(policy, json!([]), &["a", "b"]), &status, &no_probes, false);
        assert_eq!(shown(&actions), *expected, "{policy} {status:?}");
    }
}

#[test]
fn init_containers_run_one_after_the_other() {
    use State::{Created, Exited, Running, Unknown};
    let init = json!([{"name": "x", "image": "i"}, {"name": "y", "image": "i"}]);
    let table: &[(&str, &[ContainerStatus], &str)] = &[
        ("Always", &[], "init 0"),
        ("Always", &[container("x", Running, 0)], ""),
        ("Always", &[container("x", Created, 0)], "init 0"),
        ("Always", &[container("x", Exited, 0)], "init 1"),
        ("Always", &[container("x", Exited, 1)], "init 0"),
        ("Never", &[container("x", Exited, 1)], "kill"),
        ("Never", &[container("x", Unknown, 0)], "kill"),
        ("Always", &[container("x", Unknown, 0)], "init 0, end x"),
        ("Always", &[container("y", Exited, 0)], "start 0"),
        ("Always", &[container("y", Exited, 1), container("x", Exited, 0)], "init 1"),
        ("Always", &[container("a", Running, 0)], ""),
        ("Always", &[container("a", Running, 0), container("y", Exited, 1)], ""),
    ];
    for (policy, containers, expected) in table {
        let status =
            PodStatus { sandboxes: vec![sandbox(true, 0)], containers: containers.to_vec() };
        let actions = compute(&pod(policy, init.clone(), &["a"]), &status, &no_probes, false);
        assert_eq!(shown(&actions), *expected, "{policy} {containers:?}");
    }
    // A power cut has left a container as created, in the sandbox before this one.
    let status = PodStatus {
        sandboxes: vec![sandbox(true, 1), sandbox(false, 0)],
        containers: vec![
            ContainerStatus { sandbox: "s1".to_owned(), ..container("x", Exited, 0) },
            container("a", Created, 0),
        ],
    };
    let actions = compute(&pod("Always", init.clone(), &["a"]), &status, &no_probes, false);
    assert_eq!(shown(&actions), "init 1");
    let fresh = compute(&pod("Always", init, &["a"]), &PodStatus::default(), &no_probes, false);
    assert_eq!(shown(&fresh), "kill, sandbox 0, init 0");
}

#[test]
fn sidecars_run_beside_the_containers() {
    use State::{Exited, Running};
    let sidecar = json!({"name": "x", "image": "i", "restartPolicy": "Always"});
    let mut probed = sidecar.clone();
    probed["startupProbe"] = json!({});
    probed["livenessProbe"] = json!({});
    let plain = json!({"name": "y", "image": "i"});
    let x = container("x", Running, 0);
    let results = |startup, liveness| ProbeResults { startup, liveness };
    let none = results(None, None);
    let table = [
        (&sidecar, vec![x.clone()], none, "init 1"),
        (&probed, vec![x.clone()], none, ""),
        (&probed, vec![x.clone()], results(Some(false), None), "init 0, end x"),
        (&probed, vec![x.clone()], results(Some(true), None), "init 1"),
        (&probed, vec![x.clone()], results(Some(true), Some(false)), "init 0, init 1, end x"),
        (&sidecar, vec![container("a", Running, 0), container("x", Exited, 0)], none, "init 0"),
        (&sidecar, vec![container("a", Running, 0)], none, "init 0"),
        (&sidecar, vec![container("a", Running, 0), x.clone()], none, ""),
        (&sidecar, vec![container("y", Exited, 0), x.clone()], none, "start 0"),
    ];
    for (first, containers, probes, expected) in table {
        let pod = pod("Always", json!([first, plain]), &["a"]);
        let status =
            PodStatus { sandboxes: vec![sandbox(true, 0)], containers: containers.clone() };
        let actions = compute(&pod, &status, &|_| probes, false);
        assert_eq!(shown(&actions), expected, "{first} {containers:?} {probes:?}");
    }
    // A pod whose containers have ended is killed, with its sidecars.
    let pod = pod("Never", json!([sidecar]), &["a"]);
    let containers = vec![container("a", Exited, 0), container("x", Exited, 0)];
    let status = PodStatus { sandboxes: vec![sandbox(true, 0)], containers };
    let actions = compute(&pod, &status, &no_probes, false);
    assert!(actions.to_start.is_empty(), "{actions:?}");
}

#[test]
fn changed_and_unhealthy_containers_are_replaced() {
    let status = |mut container: ContainerStatus, is_changed: bool| {
        if is_changed {
            container.hash = Some(0);
        }
        PodStatus { sandboxes: vec![sandbox(true, 0)], containers: vec![container] }
    };
    let running = container("a", State::Running, 0);
    let results = |startup, liveness| ProbeResults { startup, liveness };
    for (policy, is_changed, probes, expected) in [
        ("Always", false, results(Some(true), Some(true)), ""),
        ("Always", true, results(None, None), "start 0, end a"),
        ("Never", true, results(None, None), "start 0, end a"),
        ("Always", false, results(None, Some(false)), "start 0, end a"),
        ("Never", false, results(None, Some(false)), "kill, end a"),
        ("OnFailure", false, results(Some(false), None), "start 0, end a"),
    ] {
        let status = status(running.clone(), is_changed);
        let actions = compute(&pod(policy, json!([]), &["a"]), &status, &|_| probes, false);
        assert_eq!(shown(&actions), expected, "{policy} {is_changed} {probes:?}");
    }
}

#[test]
fn rules_restart_one_container_or_all() {
    use State::{Exited, Running};
    let rule = |action: &str, code: i32| json!({"action": action, "exitCodes": {"operator": "In", "values": [code]}});
    let mut pod = pod("Never", json!([{"name": "x", "image": "i"}]), &["a", "b"]);
    let spec = pod.spec.as_mut().expect("a spec");
    spec.containers[0].restart_policy = Some("Never".to_owned());
    let rules = json!([rule("Restart", 3), rule("RestartAllContainers", 7)]);
    spec.containers[0].restart_policy_rules = serde_json::from_value(rules).expect("rules");
    let done = || container("x", Exited, 0);
    let old = |mut status: ContainerStatus| {
        status.id = "old".to_owned();
        status
    };
    for (containers, restarts_all, expected) in [
        (vec![container("a", Exited, 3), container("b", Running, 0), done()], false, "start 0"),
        (vec![container("a", Exited, 4), container("b", Running, 0), done()], false, ""),
        (vec![container("a", Exited, 4), container("b", Exited, 0), done()], false, "kill"),
        (
            vec![container("a", Exited, 7), container("b", Running, 0), done()],
            true,
            "end and remove b, remove x, remove a",
        ),
        (
            vec![container("a", Exited, 7), old(container("a", Exited, 3)), done()],
            true,
            "remove old, remove x, remove a",
        ),
        (vec![], true, ""),
        (vec![], false, "init 0"),
    ] {
        let triggers = containers.iter().any(|status| status.exit_code == 7);
        let status = PodStatus { sandboxes: vec![sandbox(true, 0)], containers };
        assert_eq!(triggers_restart_of_all(&pod, &status), triggers, "{status:?}");
        let actions = compute(&pod, &status, &no_probes, restarts_all);
        assert_eq!(shown(&actions), expected, "{status:?}");
    }
}

#[test]
fn resized_containers_are_updated_or_restarted() {
    use State::{Exited, Running};
    let resized = |cpu: &str, policy: &str| -> Pod {
        let container = |name: &str, restart: Value| {
            json!({"name": name, "image": "i", "restartPolicy": restart,
                "resources": {"requests": {"cpu": cpu}},
                "resizePolicy": [{"resourceName": "cpu", "restartPolicy": policy}]})
        };
        let spec = json!({"initContainers": [container("s", json!("Always"))],
            "containers": [container("a", json!(null)), container("b", json!(null))]});
        let pod = json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": spec});
        serde_json::from_value(pod).expect("a pod")
    };
    let record = PodResources::of(&resized("1", ""));
    for (policy, b, expected) in [
        ("NotRequired", Running, "s a b false"),
        // It starts with its new resources: the pod's cgroup follows.
        ("NotRequired", Exited, "start 1 | s a true"),
        ("RestartContainer", Running, "init 0, start 0, start 1, end s, end a, end b | true"),
    ] {
        let containers =
            vec![container("s", Running, 0), container("a", Running, 0), container("b", b, 0)];
        let status = PodStatus { sandboxes: vec![sandbox(true, 0)], containers };
        let pod = resized("2", policy);
        let actions = super::compute(&pod, &status, &no_probes, false, Some(&record));
        let updates = actions.resize.cpu.iter().map(|update| update.name.clone());
        let updates = updates.chain([actions.resize.has_pod.to_string()]);
        let updates = updates.collect::<Vec<_>>().join(" ");
        let parts = [shown(&actions), updates];
        let parts: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        assert_eq!(parts.join(" | "), expected, "{policy} {b:?}");
    }
}
