use serde_json::json;

use super::*;
use crate::pod::CONFIG_SOURCE;
use crate::runtime::status::SandboxStatus;

fn status(text: &str) -> core::ContainerStatus {
    let terminated = |code: i32| json!({"terminated": {"exitCode": code}});
    let all = json!({"terminated": {"exitCode": 137, "reason": RESTARTING_ALL_CONTAINERS}});
    let (state, last, started) = match text.rsplit(' ').next().unwrap_or_default() {
        "removed" => (json!({"waiting": {}}), all, false),
        "running" => (json!({"running": {}}), json!({}), true),
        "starting" => (json!({"running": {}}), json!({}), false),
        "waiting" => (json!({"waiting": {}}), json!({}), false),
        "crashed" => (json!({"waiting": {}}), terminated(1), false),
        code => (terminated(code.parse().expect("a code")), json!({}), false),
    };
    serde_json::from_value(json!({
        "name": "", "image": "", "imageID": "", "ready": false, "restartCount": 0,
        "started": started, "state": state, "lastState": last,
    }))
    .expect("a status")
}

#[test]
fn phase_follows_containers_and_restart_policy() {
    for (policy, init, containers, expected) in [
        ("Always", &[][..], &["waiting"][..], "Pending"),
        ("Always", &[], &["running", "waiting"], "Pending"),
        ("Always", &[], &["running"], "Running"),
        ("Always", &[], &["crashed"], "Running"),
        ("Always", &[], &["0"], "Running"),
        ("OnFailure", &[], &["0", "0"], "Succeeded"),
        ("OnFailure", &[], &["0", "1"], "Running"),
        ("Never", &[], &["0", "1"], "Failed"),
        ("Never", &[], &["0", "running"], "Running"),
        ("Always", &["waiting"], &["waiting"], "Pending"),
        ("Always", &["running"], &["waiting"], "Pending"),
        ("Always", &["crashed"], &["waiting"], "Pending"),
        ("Never", &["1"], &["waiting"], "Failed"),
        ("Never", &["0"], &["running"], "Running"),
        ("OnFailure", &["crashed"], &["waiting"], "Pending"),
        ("Never", &["side running"], &["waiting"], "Pending"),
        ("Never", &["side starting"], &["waiting"], "Pending"),
        ("Never", &["side starting"], &["running"], "Running"),
        ("Never", &["side crashed"], &["running"], "Running"),
        ("Never", &["side running"], &["0"], "Running"),
        ("Never", &["side 137"], &["0"], "Succeeded"),
        ("Never", &["side 137"], &["1"], "Failed"),
        ("Never", &["side 0"], &["running"], "Running"),
        ("Never", &[], &["rule 3"], "Running"),
        ("Never", &[], &["rule 4"], "Failed"),
        ("Never", &["rule 3"], &["waiting"], "Pending"),
        ("Never", &["rule 4"], &["waiting"], "Failed"),
        ("Never", &["0"], &["rule crashed", "running"], "Running"),
        ("Never", &["removed"], &["removed"], "Running"),
    ] {
        let spec = |names: &[&str]| -> Vec<_> {
            let rules = json!([{"action": "Restart",
                "exitCodes": {"operator": "In", "values": [3]}}]);
            let container = |(at, name): (usize, &&str)| match name.split_once(' ') {
                Some(("side", _)) => json!({"name": at.to_string(), "restartPolicy": "Always"}),
                Some(_) => json!({"name": at.to_string(), "restartPolicy": "Never",
                    "restartPolicyRules": rules}),
                None => json!({"name": at.to_string()}),
            };
            names.iter().enumerate().map(container).collect()
        };
        let pod: Pod = serde_json::from_value(json!({"spec": {
            "restartPolicy": policy, "initContainers": spec(init), "containers": spec(containers),
        }}))
        .expect("a pod");
        let statuses = |texts: &[&str]| texts.iter().map(|text| status(text)).collect::<Vec<_>>();
        let has_started = |status: &core::ContainerStatus| {
            let state = status.state.clone().unwrap_or_default();
            state.running.is_some() || state.terminated.is_some()
        };
        let has_started = statuses(containers).iter().any(has_started);
        let phase = phase(&pod, &statuses(init), &statuses(containers), false, has_started);
        assert_eq!(phase, expected, "{policy} {init:?} {containers:?}");
    }
}

#[test]
fn pod_has_started_with_a_container_in_its_present_sandbox() {
    let spec = json!({"initContainers": [{"name": "side"}], "containers": [{"name": "c"}]});
    let pod: Pod = serde_json::from_value(json!({"spec": spec})).expect("a pod");
    for (is_ready, made, expected) in [
        (true, &[("c", "new")][..], true),
        (true, &[("c", "old"), ("side", "new")], false),
        (false, &[("c", "new")], false),
        (true, &[], false),
    ] {
        let sandbox = SandboxStatus {
            id: "new".to_owned(),
            is_ready,
            attempt: 1,
            created_at: 0,
            is_host_network: false,
            ips: Vec::new(),
        };
        let container = |&(name, sandbox): &(&str, &str)| ContainerStatus {
            name: name.to_owned(),
            sandbox: sandbox.to_owned(),
            ..ContainerStatus::default()
        };
        let containers = made.iter().map(container).collect();
        let runtime = PodStatus { sandboxes: vec![sandbox], containers };
        assert_eq!(has_started(&pod, &runtime), expected, "{is_ready} {made:?}");
    }
}

#[test]
fn status_shows_users_mounts_and_ephemeral_containers() {
    let mounts = json!([{"name": "v", "mountPath": "/v", "readOnly": true,
                         "recursiveReadOnly": "Enabled"},
                        {"name": "w", "mountPath": "/w", "readOnly": true},
                        {"name": "x", "mountPath": "/x"}]);
    let spec = json!({"containers": [{"name": "c", "volumeMounts": mounts}],
                      "ephemeralContainers": [{"name": "e"}, {"name": "f"}]});
    let pod: Pod = serde_json::from_value(json!({"spec": spec})).expect("a pod");
    let running = |name: &str| ContainerStatus {
        name: name.to_owned(),
        state: State::Running,
        user: Some(User { uid: 1, gid: 2, groups: vec![3] }),
        ..ContainerStatus::default()
    };
    let runtime = PodStatus { sandboxes: Vec::new(), containers: vec![running("c"), running("e")] };
    let (waiting, messages) = (HashMap::new(), HashMap::new());
    let inputs = inputs(&runtime, &waiting, &messages);
    let status = serde_json::to_value(generate(&pod, &inputs)).expect("a status");
    let own = &status["containerStatuses"][0];
    let user = json!({"linux": {"uid": 1, "gid": 2, "supplementalGroups": [3]}});
    assert_eq!(own["user"], user);
    let modes: Vec<_> = own["volumeMounts"].as_array().expect("mounts").iter().collect();
    let modes: Vec<_> = modes.iter().map(|mount| mount["recursiveReadOnly"].clone()).collect();
    assert_eq!(modes, [json!("Enabled"), json!("Disabled"), json!(null)]);
    let (seen, unseen) =
        (&status["ephemeralContainerStatuses"][0], &status["ephemeralContainerStatuses"][1]);
    assert!(!seen["state"]["running"].is_null());
    assert_eq!((&seen["ready"], &seen["started"]), (&json!(false), &json!(null)));
    assert_eq!(unseen["state"]["waiting"]["reason"], "ContainerCreating");
    // They are no part of the pod's phase and readiness.
    assert_eq!(status["phase"], "Running");
}

#[test]
fn ids_of_containers_begin_with_the_name_of_their_runtime() {
    let pod: Pod =
        serde_json::from_value(json!({"spec": {"containers": [{"name": "c"}]}})).expect("a pod");
    let of_runtime = |id: &str, state| ContainerStatus {
        id: id.to_owned(),
        name: "c".to_owned(),
        state,
        created_at: 1,
        started_at: 1,
        finished_at: 1,
        exit_code: 1,
        ..ContainerStatus::default()
    };
    let containers = vec![of_runtime("b", State::Running), of_runtime("a", State::Exited)];
    let runtime = PodStatus { sandboxes: Vec::new(), containers };
    let (waiting, messages) = (HashMap::new(), HashMap::new());
    let inputs = StatusInputs { runtime_name: "cri-o", ..inputs(&runtime, &waiting, &messages) };
    let status = generate(&pod, &inputs).container_statuses.unwrap_or_default().remove(0);
    assert_eq!(status.container_id.as_deref(), Some("cri-o://b"));
    let last = status.last_state.and_then(|state| state.terminated).expect("an end");
    assert_eq!(last.container_id.as_deref(), Some("cri-o://a"));
}

#[test]
fn init_containers_are_ready_once_they_have_succeeded() {
    let sidecar = json!({"name": "i", "restartPolicy": "Always"});
    for (init, state, exit_code, expected) in [
        (json!({"name": "i"}), State::Running, 0, false),
        (json!({"name": "i"}), State::Exited, 0, true),
        (json!({"name": "i"}), State::Exited, 1, false),
        (sidecar.clone(), State::Running, 0, true),
        (sidecar, State::Exited, 0, false),
    ] {
        let spec = json!({"restartPolicy": "Never", "initContainers": [init],
                          "containers": [{"name": "c"}]});
        let pod: Pod = serde_json::from_value(json!({"spec": spec})).expect("a pod");
        let container = ContainerStatus {
            name: "i".to_owned(),
            state,
            exit_code,
            created_at: 1,
            started_at: 1,
            finished_at: 1,
            ..ContainerStatus::default()
        };
        let runtime = PodStatus { sandboxes: Vec::new(), containers: vec![container] };
        let (waiting, messages) = (HashMap::new(), HashMap::new());
        let status = generate(&pod, &inputs(&runtime, &waiting, &messages));
        let statuses = status.init_container_statuses.unwrap_or_default();
        assert_eq!(statuses[0].ready, expected, "{init} {exit_code}");
    }
}

fn inputs<'a>(
    runtime: &'a PodStatus,
    waiting: &'a HashMap<String, Waiting>,
    messages: &'a HashMap<String, String>,
) -> StatusInputs<'a> {
    StatusInputs {
        runtime,
        runtime_name: "r",
        waiting,
        readiness: &|_| None,
        startup: &|_| None,
        messages,
        host_ips: &[],
        is_terminal: false,
        actuated: None,
        limits: None,
        recursive: false,
        resize: &[],
        before: None,
        reported: None,
    }
}

#[test]
fn addresses_are_one_of_each_family_and_stay_after_the_end() {
    let pod: Pod =
        serde_json::from_value(json!({"spec": {"containers": [{"name": "c"}]}})).expect("a pod");
    let before: core::PodStatus =
        serde_json::from_value(json!({"podIPs": [{"ip": "10.0.0.9"}]})).expect("a status");
    let (waiting, messages) = (HashMap::new(), HashMap::new());
    for (ips, is_ready, host, expected) in [
        (&["fd00::1", "10.0.0.1", "10.0.0.2"][..], true, "192.0.2.1", &["10.0.0.1", "fd00::1"][..]),
        (&["10.0.0.1", "fd00::1"], true, "2001:db8::1", &["fd00::1", "10.0.0.1"]),
        (&["10.0.0.1"], true, "2001:db8::1", &["10.0.0.1"]),
        (&[], true, "192.0.2.1", &[]),
        (&["10.0.0.1"], false, "192.0.2.1", &["10.0.0.9"]),
    ] {
        let sandbox = SandboxStatus {
            id: "s".to_owned(),
            is_ready,
            attempt: 0,
            created_at: 1,
            is_host_network: false,
            ips: ips.iter().map(ToString::to_string).collect(),
        };
        let runtime = PodStatus { sandboxes: vec![sandbox], containers: Vec::new() };
        let host = [host.to_owned()];
        let inputs = StatusInputs {
            host_ips: &host,
            before: Some(&before),
            ..inputs(&runtime, &waiting, &messages)
        };
        let found = generate(&pod, &inputs);
        let list = found.pod_ips.into_iter().flatten().map(|ip| ip.ip);
        assert_eq!(list.collect::<Vec<_>>(), expected, "{ips:?} {host:?}");
        assert_eq!(found.pod_ip.as_deref(), expected.first().copied());
    }
}

#[test]
fn phase_is_final_with_its_reason_and_conditions_of_others_stay() {
    let pod = |source: &str| -> Pod {
        serde_json::from_value(json!({
            "metadata": {"annotations": {CONFIG_SOURCE: source}},
            "spec": {"containers": [{"name": "c"}]},
        }))
        .expect("a pod")
    };
    let ended = |exit_code| ContainerStatus {
        id: "a".to_owned(),
        name: "c".to_owned(),
        state: State::Exited,
        exit_code,
        ..ContainerStatus::default()
    };
    let status = |value: serde_json::Value| -> Option<core::PodStatus> {
        (!value.is_null()).then(|| serde_json::from_value(value).expect("a status"))
    };
    let evicted = json!({"phase": "Failed", "reason": "Evicted", "conditions": [
        {"type": "DisruptionTarget", "status": "True"}, {"type": "PodScheduled", "status": "True"},
    ]});
    let others = json!({"phase": "Running", "reason": "r", "conditions": [
        {"type": "x", "status": "True"}, {"type": "Ready", "status": "True"},
    ]});
    let (waiting, messages) = (HashMap::new(), HashMap::new());
    for (name, source, code, is_terminal, before, reported, expected) in [
        ("restarts", "api", 1, false, json!(null), json!(null), json!(["Running", null, null])),
        ("ended", "api", 1, true, json!(null), json!(null), json!(["Failed", null, null])),
        ("done", "api", 0, true, json!(null), json!(null), json!(["Succeeded", null, null])),
        ("static", "file", 0, true, json!(null), json!(null), json!(["Running", null, null])),
        (
            "evicted",
            "api",
            0,
            true,
            evicted.clone(),
            others.clone(),
            json!(["Failed", "Evicted", "x DisruptionTarget"]),
        ),
        (
            "failed by another",
            "api",
            1,
            false,
            json!({"phase": "Running"}),
            evicted,
            json!(["Failed", "Evicted", "DisruptionTarget"]),
        ),
        (
            "same phase",
            "api",
            1,
            false,
            json!({"phase": "Running", "reason": "why"}),
            others,
            json!(["Running", "why", "x"]),
        ),
    ] {
        let runtime = PodStatus { sandboxes: Vec::new(), containers: vec![ended(code)] };
        let (before, reported) = (status(before), status(reported));
        let inputs = StatusInputs {
            is_terminal,
            before: before.as_ref(),
            reported: reported.as_ref(),
            ..inputs(&runtime, &waiting, &messages)
        };
        let found = generate(&pod(source), &inputs);
        let all = found.conditions.into_iter().flatten().map(|condition| condition.type_);
        let others: Vec<String> = all.filter(|kind| !conditions::is_own(kind)).collect();
        let others = (!others.is_empty()).then(|| others.join(" "));
        assert_eq!(json!([found.phase, found.reason, others]), expected, "{name}");
    }
}

#[test]
fn container_that_is_gone_keeps_its_last_status() {
    let pod: Pod = serde_json::from_value(json!({"spec": {"restartPolicy": "Never",
        "containers": [{"name": "c"}]}}))
    .expect("a pod");
    let done = json!({"name": "c", "image": "i", "imageID": "d", "containerID": "r://a",
        "ready": false, "restartCount": 2, "state": {"terminated": {"exitCode": 0}}});
    let before: core::PodStatus =
        serde_json::from_value(json!({"containerStatuses": [done]})).expect("a status");
    let runtime = PodStatus::default();
    let (waiting, messages) = (HashMap::new(), HashMap::new());
    let inputs = StatusInputs { before: Some(&before), ..inputs(&runtime, &waiting, &messages) };
    let found = generate(&pod, &inputs);
    assert_eq!(found.container_statuses, before.container_statuses);
    assert_eq!(found.phase.as_deref(), Some("Succeeded"));
}

#[test]
fn mounts_of_volumes_are_shown() {
    let pod: Pod = serde_json::from_value(json!({"spec": {"containers": [{"name": "c",
    "volumeMounts": [
        {"name": "a", "mountPath": "/a"},
        {"name": "b", "mountPath": "/b", "readOnly": true},
        {"name": "c", "mountPath": "/c", "readOnly": true, "recursiveReadOnly": "Enabled"},
        {"name": "d", "mountPath": "/d", "readOnly": true,
         "recursiveReadOnly": "IfPossible"},
    ]}]}}))
    .expect("a pod");
    let (runtime, waiting, messages) = (PodStatus::default(), HashMap::new(), HashMap::new());
    let found = generate(&pod, &inputs(&runtime, &waiting, &messages));
    let mounts = &found.container_statuses.expect("statuses")[0].volume_mounts;
    assert_eq!(
        serde_json::to_value(mounts).expect("a list"),
        json!([
            {"name": "a", "mountPath": "/a"},
            {"name": "b", "mountPath": "/b", "readOnly": true, "recursiveReadOnly": "Disabled"},
            {"name": "c", "mountPath": "/c", "readOnly": true, "recursiveReadOnly": "Enabled"},
            {"name": "d", "mountPath": "/d", "readOnly": true, "recursiveReadOnly": "Disabled"},
        ])
    );
    let inputs = StatusInputs { recursive: true, ..inputs(&runtime, &waiting, &messages) };
    let found = generate(&pod, &inputs).container_statuses.expect("statuses");
    let modes = found[0].volume_mounts.iter().flatten().map(|m| m.recursive_read_only.as_deref());
    let expected = [None, Some("Disabled"), Some("Enabled"), Some("Enabled")];
    assert_eq!(modes.collect::<Vec<_>>(), expected);
}

#[test]
fn restarts_of_a_deleted_pod_are_not_counted() {
    for (deleted, expected) in [(json!(null), 3), (json!("2026-01-01T00:00:00Z"), 2)] {
        let pod: Pod = serde_json::from_value(json!({"metadata": {"deletionTimestamp": deleted},
            "spec": {"containers": [{"name": "c"}]}}))
        .expect("a pod");
        let running = json!({"name": "c", "image": "i", "imageID": "d", "containerID": "r://a",
            "ready": true, "restartCount": 2, "state": {"running": {}}});
        let before: core::PodStatus =
            serde_json::from_value(json!({"containerStatuses": [running]})).expect("a status");
        let runtime = PodStatus::default();
        let (waiting, messages) = (HashMap::new(), HashMap::new());
        let inputs =
            StatusInputs { before: Some(&before), ..inputs(&runtime, &waiting, &messages) };
        let statuses = generate(&pod, &inputs).container_statuses.unwrap_or_default();
        assert_eq!(statuses[0].restart_count, expected);
        let last = statuses[0].last_state.as_ref().and_then(|last| last.terminated.as_ref());
        assert_eq!(last.expect("an end").exit_code, 137);
    }
}

#[test]
fn init_container_without_a_trace_has_completed_once_others_were_created() {
    let pod: Pod = serde_json::from_value(json!({"spec": {
        "initContainers": [{"name": "i"}], "containers": [{"name": "c"}]}}))
    .expect("a pod");
    let running = ContainerStatus {
        name: "c".to_owned(),
        sandbox: "s".to_owned(),
        state: State::Running,
        created_at: 1,
        started_at: 1,
        ..ContainerStatus::default()
    };
    let sandbox = SandboxStatus {
        id: "s".to_owned(),
        is_ready: true,
        attempt: 0,
        created_at: 1,
        is_host_network: false,
        ips: Vec::new(),
    };
    let runtime = PodStatus { sandboxes: vec![sandbox], containers: vec![running] };
    let waiting = json!({"name": "i", "image": "i", "imageID": "", "ready": false,
        "restartCount": 0, "state": {"waiting": {"reason": "PodInitializing"}}});
    let waiting: core::PodStatus =
        serde_json::from_value(json!({"initContainerStatuses": [waiting]})).expect("a status");
    for before in [None, Some(&waiting)] {
        let (reasons, messages) = (HashMap::new(), HashMap::new());
        let inputs = StatusInputs { before, ..inputs(&runtime, &reasons, &messages) };
        let status = generate(&pod, &inputs);
        let statuses = status.init_container_statuses.unwrap_or_default();
        let ended = statuses[0].state.as_ref().and_then(|state| state.terminated.as_ref());
        let reason = ended.and_then(|ended| ended.reason.as_deref());
        assert_eq!(reason, Some("Completed"), "{before:?}");
        assert_eq!(status.phase.as_deref(), Some("Running"));
    }
}
