//! Hooks, the order in which containers end, grace periods, deadlines and restart rules.

use std::fs;

use serde_json::Value;

use super::node::{Node, wait};
use super::pods::{container, is_ready};

/// A pod with a folder of the machine at `/host` in each container. `containers`: name, more fields
/// and script of each.
fn pod(node: &Node, name: &str, spec: &str, init: &[Part], containers: &[Part]) -> String {
    let list = |key: &str, parts: &[Part]| {
        let mut text = if parts.is_empty() { String::new() } else { format!("  {key}:\n") };
        for Part(name, more, script) in parts {
            text.push_str(&format!(
                "  - name: {name}
    image: node.test/busybox:1
    command: [sh, -c, {script:?}]
    volumeMounts: [{{name: host, mountPath: /host}}, {{name: work, mountPath: /work}}]
    {more}
"
            ));
        }
        text
    };
    let folder = node.host_path("").display().to_string();
    format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  volumes: [{{name: host, hostPath: {{path: {folder}}}}}, {{name: work, emptyDir: {{}}}}]
  {spec}
{}{}",
        list("initContainers", init),
        list("containers", containers)
    )
}

struct Part<'a>(&'a str, &'a str, &'a str);

/// Runs until it is asked to end, and writes its name then.
fn loyal(name: &str) -> String {
    format!("trap 'echo {name} >> /host/ends; exit 0' TERM; sleep 100000 & wait")
}

#[test]
fn hooks_run_and_sidecars_end_last() {
    let Some(mut node) = Node::start("hooks") else { return };
    let sidecar = "restartPolicy: Always";
    let hooks = "lifecycle:
      postStart: {exec: {command: [sh, -c, 'echo started > /host/started']}}
      preStop: {exec: {command: [sh, -c, 'echo pre-stop >> /host/ends']}}";
    let served = "restartPolicy: Always
    lifecycle: {preStop: {httpGet: {port: 8080, path: /cgi-bin/end}}}";
    // Its hook is a request that writes to the machine's folder.
    let http = "mkdir -p /www/cgi-bin; printf '#!/bin/sh\\necho http >> /host/http; echo; echo' \
                > /www/cgi-bin/end; chmod +x /www/cgi-bin/end; trap 'exit 0' TERM; \
                httpd -f -p 8080 -h /www & wait";
    let (first, second, main) = (loyal("first"), loyal("second"), loyal("main"));
    let manifest = pod(
        &node,
        "hooks",
        "terminationGracePeriodSeconds: 60",
        &[
            Part("http", served, http),
            Part("first", sidecar, &first),
            Part("done", "", "echo init >> /host/init"),
            Part("second", sidecar, &second),
        ],
        &[Part("main", hooks, &main)],
    );
    node.write("hooks.yaml", &manifest);
    let failing = "lifecycle: {postStart: {exec: {command: [sh, -c, 'echo no; exit 5']}}}";
    let failing = pod(
        &node,
        "failing",
        "terminationGracePeriodSeconds: 1",
        &[],
        &[Part("main", failing, "exec sleep 1000")],
    );
    node.write("failing.yaml", &failing);
    node.start_kubelet();
    let hooked = node.eventually("hooks-n", "ready", is_ready);
    assert_eq!(hooked["status"]["phase"], "Running");
    assert_eq!(node.host_text("started"), "started\n");
    assert_eq!(node.host_text("init"), "init\n");
    let failed = node.eventually("failing-n", "failing in its hook", |pod| {
        container(pod)["state"]["waiting"]["reason"] == "PostStartHookError"
            || container(pod)["restartCount"].as_i64() >= Some(1)
    });
    let uid = failed["metadata"]["uid"].as_str().expect("a uid");
    let fault = format!(
        "Exec lifecycle hook ([sh -c echo no; exit 5]) for Container \"main\" in Pod \
         \"failing-n_default({uid})\" failed - error: command 'sh -c echo no; exit 5' exited with \
         5: , message: \"no\\n\""
    );
    assert!(node.log().contains(&fault), "{}", node.log());
    node.remove("hooks.yaml");
    node.eventually("hooks-n", "gone", Value::is_null);
    assert!(wait(|| node.log().contains("pod default/hooks-n has ended")), "{}", node.log());
    assert_eq!(node.host_text("ends"), "pre-stop\nmain\nsecond\nfirst\n", "{}", node.log());
    assert_eq!(node.host_text("http"), "http\n", "{}", node.log());
}

#[test]
fn grace_periods_and_deadlines_end_containers() {
    let Some(mut node) = Node::start("grace") else { return };
    // It ignores the stop signal, and its pod would wait for an hour.
    let stubborn = "trap '' TERM; touch /work/ok; while true; do sleep 0.1; done";
    let probe = "livenessProbe: {exec: {command: [test, -e, /work/gone]}, periodSeconds: 1, \
                 failureThreshold: 1, terminationGracePeriodSeconds: 1}";
    let slow = "terminationGracePeriodSeconds: 3600";
    let manifest = pod(&node, "probe", slow, &[], &[Part("main", probe, stubborn)]);
    node.write("probe.yaml", &manifest);
    let startup = probe.replace("livenessProbe", "startupProbe");
    let manifest = pod(&node, "startup", slow, &[], &[Part("main", &startup, stubborn)]);
    node.write("startup.yaml", &manifest);
    let deadline = "activeDeadlineSeconds: 2
  terminationGracePeriodSeconds: 1";
    let manifest = pod(&node, "late", deadline, &[], &[Part("main", "", "exec sleep 1000")]);
    node.write("late.yaml", &manifest);
    // Its hook takes longer than the grace period.
    let hook = "lifecycle: {preStop: {sleep: {seconds: 2}}}";
    let short = "terminationGracePeriodSeconds: 2";
    let manifest = pod(&node, "sleepy", short, &[], &[Part("main", hook, &loyal("sleepy"))]);
    node.write("sleepy.yaml", &manifest);
    node.start_kubelet();
    let restarted =
        |pod: &Value| container(pod)["lastState"]["terminated"]["exitCode"].as_i64() == Some(137);
    node.eventually("probe-n", "restarted by its liveness probe", restarted);
    node.eventually("startup-n", "restarted by its startup probe", restarted);
    let late = node.eventually("late-n", "failed", |pod| pod["status"]["phase"] == "Failed");
    assert_eq!(late["status"]["reason"], "DeadlineExceeded");
    let late = node.eventually("late-n", "ended", |pod| {
        container(pod)["state"]["terminated"]["exitCode"].is_number()
    });
    assert_eq!(late["status"]["phase"], "Failed");
    node.eventually("sleepy-n", "ready", is_ready);
    node.remove("sleepy.yaml");
    node.eventually("sleepy-n", "gone", Value::is_null);
    assert!(wait(|| node.host_text("ends") == "sleepy\n"), "{}", node.log());
}

#[test]
fn rules_restart_one_container_or_all() {
    let Some(mut node) = Node::start("rules") else { return };
    let rule = |action: &str, code: i32| {
        format!(
            "restartPolicy: Never
    restartPolicyRules: [{{action: {action}, exitCodes: {{operator: In, values: [{code}]}}}}]"
        )
    };
    let count = "echo x >> /work/count; n=$(wc -l < /work/count); [ $n -ge 3 ] && exit 0; exit 4";
    let spec = "restartPolicy: Never
  terminationGracePeriodSeconds: 1";
    let manifest = pod(&node, "one", spec, &[], &[Part("main", &rule("Restart", 4), count)]);
    node.write("one.yaml", &manifest);
    let other = pod(&node, "other", spec, &[], &[Part("main", &rule("Restart", 4), "exit 5")]);
    node.write("other.yaml", &other);
    let source = "[ -e /work/again ] && exec sleep 1000; touch /work/again; sleep 2; exit 7";
    let all = rule("RestartAllContainers", 7);
    let manifest = pod(
        &node,
        "all",
        spec,
        &[
            Part("init", "", "echo x >> /host/init"),
            Part("sidecar", "restartPolicy: Always", &loyal("sidecar")),
        ],
        &[Part("victim", "", "exec sleep 1000"), Part("source", &all, source)],
    );
    node.write("all.yaml", &manifest);
    node.start_kubelet();
    let one = node.eventually("one-n", "succeeded", |pod| pod["status"]["phase"] == "Succeeded");
    assert_eq!(container(&one)["restartCount"], 2, "{one:#}");
    let other = node.eventually("other-n", "failed", |pod| pod["status"]["phase"] == "Failed");
    assert_eq!(container(&other)["restartCount"], 0);
    let all = node.eventually("all-n", "ready after its restart", |pod| {
        let lists = ["initContainerStatuses", "containerStatuses"].map(|list| &pod["status"][list]);
        let mut statuses = lists.into_iter().flat_map(|list| list.as_array()).flatten();
        is_ready(pod) && statuses.all(|status| status["restartCount"] == 1)
    });
    assert_eq!(node.host_text("init"), "x\nx\n", "{all:#}");
    let conditions = all["status"]["conditions"].as_array().expect("conditions");
    let restarting = conditions.iter().find(|c| c["type"] == "AllContainersRestarting");
    assert_eq!(restarting.expect("a condition")["status"], "False");
    assert_eq!(all["status"]["phase"], "Running");
    let source = &all["status"]["containerStatuses"][1];
    let last = &source["lastState"]["terminated"];
    assert_eq!(last["reason"], "RestartingAllContainers", "{source:#}");
}

#[test]
fn startup_probes_hold_the_others_back_and_slow_probes_fail() {
    let Some(mut node) = Node::start("startup") else { return };
    let starts = "startupProbe: {exec: {command: [test, -e, /host/up]}, periodSeconds: 1, \
                  timeoutSeconds: 60, failureThreshold: 1000}
    livenessProbe: {exec: {command: [test, -e, /host/up]}, periodSeconds: 1, timeoutSeconds: 60, \
                  failureThreshold: 1}
    readinessProbe: {exec: {command: ['true']}, periodSeconds: 1, timeoutSeconds: 60}";
    let slow =
        "readinessProbe: {exec: {command: [sleep, '30']}, periodSeconds: 1, timeoutSeconds: 1}";
    for (name, probes) in [("starts", starts), ("slow", slow)] {
        let grace = "terminationGracePeriodSeconds: 1";
        let manifest = pod(&node, name, grace, &[], &[Part("main", probes, &loyal(name))]);
        node.write(&format!("{name}.yaml"), &manifest);
    }
    node.start_kubelet();
    let failed = |name: &str, probe: &str| {
        let log = node.log();
        let mut lines = log.lines().filter(|line| line.contains(name));
        lines.any(|line| line.contains(&format!("{probe} probe failed")))
    };
    assert!(wait(|| failed("starts-n", "Startup")), "{}", node.log());
    assert!(wait(|| failed("slow-n", "Readiness")), "{}", node.log());
    let waiting = node.pod("starts-n");
    assert_eq!(container(&waiting)["started"], false, "{waiting:#}");
    assert!(!is_ready(&waiting), "{waiting:#}");
    fs::write(node.host_path("up"), "").expect("a file");
    let ready = node.eventually("starts-n", "ready", is_ready);
    assert_eq!(container(&ready)["started"], true, "{ready:#}");
    assert_eq!(container(&ready)["restartCount"], 0, "{ready:#}");
    assert!(!failed("starts-n", "Liveness"), "{}", node.log());
    let slow = node.pod("slow-n");
    assert!(!is_ready(&slow) && container(&slow)["state"]["running"].is_object(), "{slow:#}");
}
