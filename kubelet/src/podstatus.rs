//! The status of a pod as the API shows it. Upstream: `generateAPIPodStatus`, `getPhase`.

use std::collections::HashMap;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube_controller_manager::objects::Timestamp;

use crate::images::Waiting;
use crate::pod::{Container, Pod, PodExt, QosClass, RestartPolicy, is_restartable_init};
use crate::runtime::actions::should_restart;
use crate::runtime::status::{ContainerStatus, PodStatus, State};

/// What a status is computed from, beside the pod.
pub struct Facts<'a> {
    pub runtime: &'a PodStatus,
    /// Why containers wait, by name.
    pub waiting: &'a HashMap<String, Waiting>,
    /// The result of a container's readiness and startup probes, by its id.
    pub readiness: &'a dyn Fn(&str) -> Option<bool>,
    pub startup: &'a dyn Fn(&str) -> Option<bool>,
    /// The last messages of containers that have ended, by id.
    pub messages: &'a HashMap<String, String>,
    pub host_ip: &'a str,
    pub now: Timestamp,
    /// Keeps the times of conditions that do not change.
    pub before: Option<&'a core::PodStatus>,
}

pub fn time(timestamp: Timestamp) -> Time {
    Time(timestamp.to_jiff())
}

fn nanos(nanos: i64) -> Option<Time> {
    (nanos > 0).then(|| time(Timestamp::from_micros(nanos / 1000)))
}

/// Computes a pod's status.
pub fn generate(pod: &Pod, facts: &Facts<'_>) -> core::PodStatus {
    let has_init = !pod.init_containers().is_empty();
    let statuses = |containers: &[Container], default: &str| -> Vec<core::ContainerStatus> {
        containers
            .iter()
            .map(|container| container_status(pod, container, facts, default))
            .collect()
    };
    let init = statuses(pod.init_containers(), "PodInitializing");
    let waits_for = if has_init { "PodInitializing" } else { "ContainerCreating" };
    let containers = statuses(&pod.spec().containers, waits_for);
    let phase = phase(pod, &init, &containers);
    let ips = match pod.is_host_network() {
        true if facts.runtime.sandboxes.first().is_some_and(|sandbox| sandbox.is_ready) => {
            vec![facts.host_ip.to_owned()]
        }
        true => Vec::new(),
        false => facts.runtime.ips().to_vec(),
    };
    // An agent that restarts takes it from the oldest sandbox.
    let oldest = facts.runtime.sandboxes.last().and_then(|sandbox| nanos(sandbox.created_at));
    let start_time = facts.before.and_then(|before| before.start_time.clone()).or(oldest);
    let mut status = core::PodStatus {
        phase: Some(phase.to_owned()),
        host_ip: Some(facts.host_ip.to_owned()),
        pod_ip: ips.first().cloned(),
        pod_ips: Some(ips.into_iter().map(|ip| core::PodIP { ip }).collect()),
        start_time: Some(start_time.unwrap_or_else(|| time(facts.now))),
        qos_class: Some(QosClass::of(pod).name().to_owned()),
        ..Default::default()
    };
    status.conditions = Some(conditions(pod, phase, &init, &containers, facts));
    status.init_container_statuses = has_init.then_some(init);
    status.container_statuses = Some(containers);
    status
}

fn container_status(
    pod: &Pod,
    container: &Container,
    facts: &Facts<'_>,
    default: &str,
) -> core::ContainerStatus {
    let newest = facts.runtime.container(&container.name);
    let waits = |reason: &str, message: Option<String>| core::ContainerState {
        waiting: Some(core::ContainerStateWaiting { reason: Some(reason.to_owned()), message }),
        ..Default::default()
    };
    let state_of = |status: &ContainerStatus| match status.state {
        State::Running => core::ContainerState {
            running: Some(core::ContainerStateRunning { started_at: nanos(status.started_at) }),
            ..Default::default()
        },
        State::Exited => terminated(status, facts),
        State::Created | State::Unknown => waits(default, None),
    };
    let mut state = newest.map_or_else(|| waits(default, None), state_of);
    let mut last = facts.runtime.previous(&container.name).map(state_of);
    let is_running = newest.is_some_and(|status| status.state == State::Running);
    let reason = facts.waiting.get(&container.name).filter(|_| !is_running);
    if let Some(waiting) = reason
        && (newest.is_none() || should_restart(pod, container, facts.runtime))
    {
        let ended =
            std::mem::replace(&mut state, waits(waiting.reason, Some(waiting.message.clone())));
        if ended.terminated.is_some() {
            last = Some(ended);
        }
    }
    let id = newest.map(|status| status.id.as_str()).unwrap_or_default();
    let is_started =
        is_running && (container.startup_probe.is_none() || (facts.startup)(id) == Some(true));
    let has_readiness = container.readiness_probe.is_some();
    let is_ready = match newest.map(|status| (status.state, status.exit_code)) {
        Some((State::Running, _)) => {
            is_started && (!has_readiness || (facts.readiness)(id) == Some(true))
        }
        // An init container is ready once it has succeeded.
        Some((State::Exited, 0)) => {
            pod.init_containers().iter().any(|init| init.name == container.name)
                && !is_restartable_init(container)
        }
        _ => false,
    };
    core::ContainerStatus {
        name: container.name.clone(),
        image: newest
            .map(|status| status.image.clone())
            .or(container.image.clone())
            .unwrap_or_default(),
        image_id: newest.map(|status| status.image_ref.clone()).unwrap_or_default(),
        container_id: newest.map(|status| format!("containerd://{}", status.id)),
        ready: is_ready,
        started: Some(is_started),
        restart_count: newest
            .map_or(0, |status| status.restart_count.try_into().unwrap_or(i32::MAX)),
        state: Some(state),
        last_state: Some(last.unwrap_or_default()),
        ..Default::default()
    }
}

fn terminated(status: &ContainerStatus, facts: &Facts<'_>) -> core::ContainerState {
    let message = facts.messages.get(&status.id).cloned();
    core::ContainerState {
        terminated: Some(core::ContainerStateTerminated {
            exit_code: status.exit_code,
            reason: Some(status.reason.clone()),
            message: message
                .or_else(|| Some(status.message.clone()).filter(|text| !text.is_empty())),
            started_at: nanos(status.started_at),
            finished_at: nanos(status.finished_at),
            container_id: Some(format!("containerd://{}", status.id)),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// The phase of a pod by the states of its containers. Upstream: `getPhase`.
fn phase(
    pod: &Pod,
    init: &[core::ContainerStatus],
    containers: &[core::ContainerStatus],
) -> &'static str {
    let (mut has_pending_init, mut has_failed_init) = (false, false);
    for (container, status) in pod.init_containers().iter().zip(init) {
        match seen(status) {
            Seen::Running if is_restartable_init(container) => {
                has_pending_init |= status.started != Some(true);
            }
            Seen::Stopped(_) if is_restartable_init(container) => {}
            Seen::Stopped(0) => {}
            Seen::Stopped(_) => has_failed_init = true,
            Seen::Running | Seen::Waiting => has_pending_init = true,
        }
    }
    let (mut running, mut waiting, mut stopped, mut succeeded) = (0, 0, 0, 0);
    for status in containers {
        match seen(status) {
            Seen::Running => running += 1,
            Seen::Waiting => waiting += 1,
            Seen::Stopped(code) => {
                stopped += 1;
                succeeded += usize::from(code == 0);
            }
        }
    }
    let policy = pod.restart_policy();
    if has_failed_init && policy == RestartPolicy::Never {
        return "Failed";
    }
    if has_pending_init && running == 0 && stopped == 0 || has_failed_init {
        return "Pending";
    }
    match (running, waiting, stopped) {
        (_, 1.., 0) => "Pending",
        (_, 1.., _) | (1.., ..) => "Running",
        (0, 0, 1..) => match policy {
            RestartPolicy::Always => "Running",
            _ if stopped == succeeded => "Succeeded",
            RestartPolicy::Never => "Failed",
            RestartPolicy::OnFailure => "Running",
        },
        _ => "Pending",
    }
}

enum Seen {
    Running,
    Waiting,
    /// With its last exit code, whether or not it waits for a restart.
    Stopped(i32),
}

fn seen(status: &core::ContainerStatus) -> Seen {
    let terminated = |state: &Option<core::ContainerState>| {
        let terminated = state.as_ref().and_then(|state| state.terminated.as_ref());
        terminated.map(|terminated| terminated.exit_code)
    };
    match (&status.state, terminated(&status.state), terminated(&status.last_state)) {
        (Some(state), ..) if state.running.is_some() => Seen::Running,
        (_, Some(code), _) | (_, None, Some(code)) => Seen::Stopped(code),
        _ => Seen::Waiting,
    }
}

fn conditions(
    pod: &Pod,
    phase: &str,
    init: &[core::ContainerStatus],
    containers: &[core::ContainerStatus],
    facts: &Facts<'_>,
) -> Vec<core::PodCondition> {
    let is_done = phase == "Succeeded";
    let is_initialized =
        pod.init_containers().iter().zip(init).all(
            |(container, status)| match is_restartable_init(container) {
                true => status.started == Some(true),
                false => status.ready,
            },
        ) || containers.iter().any(|status| !matches!(seen(status), Seen::Waiting));
    let is_ready = !containers.is_empty() && containers.iter().all(|status| status.ready);
    let has_sandbox = facts.runtime.sandboxes.first().is_some_and(|sandbox| {
        sandbox.is_ready && (sandbox.is_host_network || !sandbox.ips.is_empty())
    });
    let unready = match phase {
        "Succeeded" => "PodCompleted",
        "Failed" => "PodFailed",
        _ => "ContainersNotReady",
    };
    [
        ("PodReadyToStartContainers", has_sandbox, None),
        (
            "Initialized",
            is_initialized,
            Some(if is_done { "PodCompleted" } else { "ContainersNotInitialized" }),
        ),
        ("Ready", is_ready, Some(unready)),
        ("ContainersReady", is_ready, Some(unready)),
        ("PodScheduled", true, None),
    ]
    .into_iter()
    .map(|(kind, is_true, reason)| {
        let value = if is_true { "True" } else { "False" };
        let before = facts.before.and_then(|before| before.conditions.as_ref());
        let before = before.into_iter().flatten().find(|c| c.type_ == kind && c.status == value);
        let since = before.and_then(|condition| condition.last_transition_time.clone());
        core::PodCondition {
            type_: kind.to_owned(),
            status: value.to_owned(),
            reason: reason.filter(|_| !is_true).map(str::to_owned),
            last_transition_time: Some(since.unwrap_or_else(|| time(facts.now))),
            ..Default::default()
        }
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn status(text: &str) -> core::ContainerStatus {
        let terminated = |code: i32| json!({"terminated": {"exitCode": code}});
        let (state, last, started) = match text {
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
        ] {
            let spec = |names: &[&str]| -> Vec<_> {
                names.iter().enumerate().map(|(at, _)| json!({"name": at.to_string()})).collect()
            };
            let pod: Pod = serde_json::from_value(json!({"spec": {
                "restartPolicy": policy, "initContainers": spec(init), "containers": spec(containers),
            }}))
            .expect("a pod");
            let statuses =
                |texts: &[&str]| texts.iter().map(|text| status(text)).collect::<Vec<_>>();
            let phase = phase(&pod, &statuses(init), &statuses(containers));
            assert_eq!(phase, expected, "{policy} {init:?} {containers:?}");
        }
    }
}
