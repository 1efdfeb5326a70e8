//! The status of a pod as the API shows it. Upstream: `generateAPIPodStatus`, `getPhase`.

use std::collections::HashMap;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube_controller_manager::objects::Timestamp;

use crate::images::Waiting;
use crate::pod::{
    Container, ExitAction, Pod, PodExt, QosClass, exit_action, is_restartable_init,
    may_restart_all, restarts_after,
};
use crate::runtime::actions::{should_restart, triggers_restart_of_all};
use crate::runtime::status::{ContainerStatus, PodStatus, State};

/// What a status is computed from, beside the pod.
pub struct StatusInputs<'a> {
    pub runtime: &'a PodStatus,
    /// As the runtime names itself: `containerd`.
    pub runtime_name: &'a str,
    /// Why containers wait, by name.
    pub waiting: &'a HashMap<String, Waiting>,
    /// The result of a container's readiness and startup probes, by its id.
    pub readiness: &'a dyn Fn(&str) -> Option<bool>,
    pub startup: &'a dyn Fn(&str) -> Option<bool>,
    /// The last messages of containers that have ended, by id.
    pub messages: &'a HashMap<String, String>,
    /// The node's addresses, one of a family; empty: it has none yet.
    pub host_ips: &'a [String],
    pub now: Timestamp,
    /// Keeps the times of conditions that do not change.
    pub before: Option<&'a core::PodStatus>,
}

/// On a pod whose containers all restart, as a rule of one of them says.
const ALL_CONTAINERS_RESTARTING: &str = "AllContainersRestarting";
/// Why a container has ended that was removed for that.
const RESTARTING_ALL_CONTAINERS: &str = "RestartingAllContainers";

/// Whether a status says that all containers are being removed, to start again.
pub fn is_restarting_all(status: &core::PodStatus) -> bool {
    let conditions = status.conditions.iter().flatten();
    conditions.into_iter().any(|c| c.type_ == ALL_CONTAINERS_RESTARTING && c.status == "True")
}

/// Upstream: `ShouldAllContainersRestart`.
fn restarts_all(pod: &Pod, runtime: &PodStatus, before: Option<&core::PodStatus>) -> bool {
    if !may_restart_all(pod) {
        return false;
    }
    let has_triggered = |before: &core::PodStatus| {
        pod.all_containers().any(|container| {
            let status = status_of(before, &container.name);
            let code = status.and_then(terminated_of).map(|terminated| terminated.exit_code);
            code.is_some_and(|code| {
                exit_action(container, code) == Some(ExitAction::RestartAllContainers)
            })
        })
    };
    triggers_restart_of_all(pod, runtime)
        || before.is_some_and(|before| is_restarting_all(before) || has_triggered(before))
}

fn status_of<'a>(status: &'a core::PodStatus, name: &str) -> Option<&'a core::ContainerStatus> {
    let lists = [&status.init_container_statuses, &status.container_statuses];
    lists.into_iter().flatten().flatten().find(|status| status.name == name)
}

fn terminated_of(status: &core::ContainerStatus) -> Option<&core::ContainerStateTerminated> {
    status.state.as_ref()?.terminated.as_ref()
}

pub fn time(timestamp: Timestamp) -> Time {
    Time(timestamp.to_jiff())
}

fn nanos(nanos: i64) -> Option<Time> {
    (nanos > 0).then(|| time(Timestamp::from_micros(nanos / 1000)))
}

/// Computes a pod's status.
pub fn generate(pod: &Pod, inputs: &StatusInputs<'_>) -> core::PodStatus {
    let has_init = !pod.init_containers().is_empty();
    let all_restart = restarts_all(pod, inputs.runtime, inputs.before);
    let statuses = |containers: &[Container], default: &str| -> Vec<core::ContainerStatus> {
        containers
            .iter()
            .map(|container| container_status(pod, container, inputs, default, all_restart))
            .collect()
    };
    let init = statuses(pod.init_containers(), "PodInitializing");
    let waits_for = if has_init { "PodInitializing" } else { "ContainerCreating" };
    let containers = statuses(&pod.spec().containers, waits_for);
    let phase = phase(pod, &init, &containers);
    let ips = match pod.is_host_network() {
        true if inputs.runtime.sandboxes.first().is_some_and(|sandbox| sandbox.is_ready) => {
            inputs.host_ips.to_vec()
        }
        true => Vec::new(),
        false => inputs.runtime.ips().to_vec(),
    };
    // An agent that restarts takes it from the oldest sandbox.
    let oldest = inputs.runtime.sandboxes.last().and_then(|sandbox| nanos(sandbox.created_at));
    let start_time = inputs.before.and_then(|before| before.start_time.clone()).or(oldest);
    let mut status = core::PodStatus {
        phase: Some(phase.to_owned()),
        host_ip: inputs.host_ips.first().cloned(),
        host_ips: (!inputs.host_ips.is_empty())
            .then(|| inputs.host_ips.iter().map(|ip| core::HostIP { ip: ip.clone() }).collect()),
        pod_ip: ips.first().cloned(),
        pod_ips: Some(ips.into_iter().map(|ip| core::PodIP { ip }).collect()),
        start_time: Some(start_time.unwrap_or_else(|| time(inputs.now))),
        qos_class: Some(QosClass::of(pod).name().to_owned()),
        ..Default::default()
    };
    let mut all = conditions(pod, phase, &init, &containers, inputs);
    if may_restart_all(pod) {
        all.push(restarting_condition(pod, phase, inputs, all_restart));
    }
    status.conditions = Some(all);
    status.init_container_statuses = has_init.then_some(init);
    status.container_statuses = Some(containers);
    status
}

/// The status of a pod that was not admitted. Upstream: `rejectPod`.
pub fn rejected(pod: &Pod, reason: &str, message: &str, now: Timestamp) -> core::PodStatus {
    core::PodStatus {
        phase: Some("Failed".to_owned()),
        reason: Some(reason.to_owned()),
        message: Some(format!("Pod was rejected: {message}")),
        qos_class: Some(QosClass::of(pod).name().to_owned()),
        start_time: Some(time(now)),
        ..Default::default()
    }
}

fn container_status(
    pod: &Pod,
    container: &Container,
    inputs: &StatusInputs<'_>,
    default: &str,
    all_restart: bool,
) -> core::ContainerStatus {
    let newest = inputs.runtime.container(&container.name);
    let before = inputs.before.and_then(|before| status_of(before, &container.name));
    let waits = |reason: &str, message: Option<String>| core::ContainerState {
        waiting: Some(core::ContainerStateWaiting { reason: Some(reason.to_owned()), message }),
        ..Default::default()
    };
    let state_of = |status: &ContainerStatus| match status.state {
        State::Running => core::ContainerState {
            running: Some(core::ContainerStateRunning { started_at: nanos(status.started_at) }),
            ..Default::default()
        },
        State::Exited => terminated(status, inputs),
        State::Created | State::Unknown => waits(default, None),
    };
    let mut state = newest.map_or_else(|| waits(default, None), state_of);
    let mut last = inputs.runtime.previous(&container.name).map(state_of);
    let mut count = newest.map_or(0, |newest| newest.restart_count.try_into().unwrap_or(i32::MAX));
    match (newest, before) {
        (None, Some(before)) => {
            let removed = removed(before, all_restart);
            (state, last, count) = (removed.state.unwrap_or(state), removed.last, removed.count);
        }
        // A restart of all removes what ended before.
        (Some(newest), Some(before)) if may_restart_all(pod) => {
            let is_other = before.container_id.as_deref() != Some(&*id_of(newest, inputs));
            let ended = terminated_of(before).filter(|_| is_other).cloned();
            let ended = ended.map(|terminated| core::ContainerState {
                terminated: Some(terminated),
                ..Default::default()
            });
            last = last.or(ended).or_else(|| before.last_state.clone());
        }
        // An init container without a trace has done its work once a container was created.
        (None, None) if must_have_completed(pod, container, inputs) => {
            state = core::ContainerState {
                terminated: Some(core::ContainerStateTerminated {
                    reason: Some("Completed".to_owned()),
                    message: Some(
                        "Unable to get init container status from container runtime and pod has \
                         been initialized, treat it as exited normally"
                            .to_owned(),
                    ),
                    ..Default::default()
                }),
                ..Default::default()
            };
        }
        _ => {}
    }
    let is_running = newest.is_some_and(|status| status.state == State::Running);
    let reason = inputs.waiting.get(&container.name).filter(|_| !is_running);
    if let Some(waiting) = reason
        && (newest.is_none() || should_restart(pod, container, inputs.runtime))
    {
        let ended =
            std::mem::replace(&mut state, waits(waiting.reason, Some(waiting.message.clone())));
        if ended.terminated.is_some() {
            last = Some(ended);
        }
    }
    let id = newest.map(|status| status.id.as_str()).unwrap_or_default();
    let is_started =
        is_running && (container.startup_probe.is_none() || (inputs.startup)(id) == Some(true));
    let has_readiness = container.readiness_probe.is_some();
    let is_plain_init = pod.init_containers().iter().any(|init| init.name == container.name)
        && !is_restartable_init(container);
    let is_ready = match newest.map(|status| (status.state, status.exit_code)) {
        Some((State::Running, _)) => {
            is_started && (!has_readiness || (inputs.readiness)(id) == Some(true))
        }
        // An init container is ready once it has succeeded.
        Some((State::Exited, 0)) => is_plain_init,
        None => {
            let code = state.terminated.as_ref().map(|terminated| terminated.exit_code);
            is_plain_init && code == Some(0)
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
        container_id: newest.map(|newest| id_of(newest, inputs)),
        ready: is_ready,
        started: Some(is_started),
        restart_count: count,
        state: Some(state),
        last_state: Some(last.unwrap_or_default()),
        ..Default::default()
    }
}

fn id_of(status: &ContainerStatus, inputs: &StatusInputs<'_>) -> String {
    format!("{}://{}", inputs.runtime_name, status.id)
}

/// Whether `container` is an init container that must have completed, as a regular container was
/// created in the newest sandbox: the runtime may have removed its own.
fn must_have_completed(pod: &Pod, container: &Container, inputs: &StatusInputs<'_>) -> bool {
    let is_init = pod.init_containers().iter().any(|init| init.name == container.name);
    let is_created = |name: &str| {
        let status = inputs.runtime.container(name);
        status.is_some_and(|status| {
            status.state != State::Unknown && inputs.runtime.is_in_newest_sandbox(status)
        })
    };
    is_init
        && !is_restartable_init(container)
        && pod.spec().containers.iter().any(|container| is_created(&container.name))
}

/// A container that the runtime no longer has.
struct Removed {
    /// `None`: it waits.
    state: Option<core::ContainerState>,
    last: Option<core::ContainerState>,
    count: i32,
}

fn removed(before: &core::ContainerStatus, all_restart: bool) -> Removed {
    let state = before.state.clone().unwrap_or_default();
    let ended = |reason: &str, message: &str| core::ContainerState {
        terminated: Some(core::ContainerStateTerminated {
            exit_code: 137,
            reason: Some(reason.to_owned()),
            message: Some(message.to_owned()),
            ..Default::default()
        }),
        ..Default::default()
    };
    let (last, count) = (before.last_state.clone(), before.restart_count);
    if all_restart && state.waiting.is_none() {
        let message = "The container is removed because RestartAllContainers in place";
        let waiting = core::ContainerStateWaiting {
            reason: Some(RESTARTING_ALL_CONTAINERS.to_owned()),
            message: Some(message.to_owned()),
        };
        return Removed {
            state: Some(core::ContainerState { waiting: Some(waiting), ..Default::default() }),
            last: Some(ended(RESTARTING_ALL_CONTAINERS, message)),
            count: count + 1,
        };
    }
    if state.terminated.is_some() {
        return Removed { state: Some(state), last, count };
    }
    let has_ended = last.as_ref().is_some_and(|last| last.terminated.is_some());
    if state.running.is_none() || has_ended {
        return Removed { state: None, last, count };
    }
    let message = "The container could not be located when the pod was deleted.  The container \
                   used to be Running";
    Removed { state: None, last: Some(ended("ContainerStatusUnknown", message)), count: count + 1 }
}

/// Upstream: `GenerateAllContainersRestartingCondition`.
fn restarting_condition(
    pod: &Pod,
    phase: &str,
    inputs: &StatusInputs<'_>,
    all_restart: bool,
) -> core::PodCondition {
    let has_any = pod.all_containers().any(|c| inputs.runtime.container(&c.name).is_some());
    let is_done = ["Succeeded", "Failed"].contains(&phase);
    let is_true = !is_done && all_restart && has_any;
    let reason = match phase {
        "Succeeded" => Some("PodCompleted"),
        "Failed" => Some("PodFailed"),
        _ => is_true.then_some("RestartAllContainersStarted"),
    };
    let mut condition = condition(inputs, ALL_CONTAINERS_RESTARTING, is_true);
    condition.reason = reason.map(str::to_owned);
    condition.message = is_true.then(|| "container exited with restart policy rule".to_owned());
    condition
}

fn terminated(status: &ContainerStatus, inputs: &StatusInputs<'_>) -> core::ContainerState {
    let message = inputs.messages.get(&status.id).cloned();
    core::ContainerState {
        terminated: Some(core::ContainerStateTerminated {
            exit_code: status.exit_code,
            reason: Some(status.reason.clone()),
            message: message
                .or_else(|| Some(status.message.clone()).filter(|text| !text.is_empty())),
            started_at: nanos(status.started_at),
            finished_at: nanos(status.finished_at),
            container_id: Some(id_of(status, inputs)),
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
    let is_final = |container: &Container, end: End| {
        !end.is_restart_of_all && !restarts_after(container, pod, end.code)
    };
    let (mut running, mut waiting) = (0_usize, 0_usize);
    let (mut is_init_pending, mut is_sidecar_pending) = (false, false);
    for (container, status) in pod.init_containers().iter().zip(init) {
        match (seen(status), is_restartable_init(container)) {
            (Seen::Stopped(end), false) if end.code != 0 && is_final(container, end) => {
                return "Failed";
            }
            // Sidecars that have ended do not count.
            (Seen::Stopped(_), _) => {}
            (Seen::Running | Seen::Waiting, false) => is_init_pending = true,
            (Seen::Running, true) => {
                running += 1;
                is_sidecar_pending |= status.started != Some(true);
            }
            (Seen::Waiting, true) => {
                waiting += 1;
                is_sidecar_pending = true;
            }
        }
    }
    let (mut stopped, mut ended, mut succeeded) = (0_usize, 0_usize, 0_usize);
    for (container, status) in pod.spec().containers.iter().zip(containers) {
        match seen(status) {
            Seen::Running => running += 1,
            Seen::Waiting => waiting += 1,
            Seen::Stopped(end) => {
                stopped += 1;
                ended += usize::from(is_final(container, end));
                // Only an end that is not followed by a restart counts as a success.
                succeeded += usize::from(end.code == 0 && end.is_present);
            }
        }
    }
    // Sidecars that restart do not make an initialized pod pending.
    let has_started = containers.iter().any(|status| {
        status.state.as_ref().is_some_and(|s| s.running.is_some() || s.terminated.is_some())
    });
    if is_init_pending || is_sidecar_pending && !has_started || waiting > 0 {
        return "Pending";
    }
    match (running, stopped) {
        (1.., _) => "Running",
        (0, 0) => "Pending",
        // Some restart.
        (0, _) if stopped != ended => "Running",
        (0, _) if stopped == succeeded => "Succeeded",
        (0, _) => "Failed",
    }
}

/// How a container has ended last.
#[derive(Clone, Copy)]
struct End {
    code: i32,
    /// It does not wait for a restart.
    is_present: bool,
    is_restart_of_all: bool,
}

enum Seen {
    Running,
    Waiting,
    Stopped(End),
}

fn seen(status: &core::ContainerStatus) -> Seen {
    let end = |state: &Option<core::ContainerState>, is_present| {
        let terminated = state.as_ref().and_then(|state| state.terminated.as_ref());
        terminated.map(|terminated| End {
            code: terminated.exit_code,
            is_present,
            is_restart_of_all: terminated.reason.as_deref() == Some(RESTARTING_ALL_CONTAINERS),
        })
    };
    match (&status.state, end(&status.state, true), end(&status.last_state, false)) {
        (Some(state), ..) if state.running.is_some() => Seen::Running,
        (_, Some(end), _) | (_, None, Some(end)) => Seen::Stopped(end),
        _ => Seen::Waiting,
    }
}

fn conditions(
    pod: &Pod,
    phase: &str,
    init: &[core::ContainerStatus],
    containers: &[core::ContainerStatus],
    inputs: &StatusInputs<'_>,
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
    let has_sandbox = inputs.runtime.sandboxes.first().is_some_and(|sandbox| {
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
    .map(|(kind, is_true, reason)| core::PodCondition {
        reason: reason.filter(|_| !is_true).map(str::to_owned),
        ..condition(inputs, kind, is_true)
    })
    .collect()
}

/// The condition of a pod that was ended for the node's sake. Upstream: `DisruptionTarget`.
pub const DISRUPTION_TARGET: &str = "DisruptionTarget";

/// That condition, if a status has it.
pub fn disruption(status: &core::PodStatus) -> Option<&core::PodCondition> {
    let mut conditions = status.conditions.iter().flatten();
    conditions.find(|condition| condition.type_ == DISRUPTION_TARGET)
}

/// A condition since the time of its last change.
fn condition(inputs: &StatusInputs<'_>, kind: &str, is_true: bool) -> core::PodCondition {
    let value = if is_true { "True" } else { "False" };
    let before = inputs.before.and_then(|before| before.conditions.as_ref());
    let before = before.into_iter().flatten().find(|c| c.type_ == kind && c.status == value);
    let since = before.and_then(|condition| condition.last_transition_time.clone());
    core::PodCondition {
        type_: kind.to_owned(),
        status: value.to_owned(),
        last_transition_time: Some(since.unwrap_or_else(|| time(inputs.now))),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
            let statuses =
                |texts: &[&str]| texts.iter().map(|text| status(text)).collect::<Vec<_>>();
            let phase = phase(&pod, &statuses(init), &statuses(containers));
            assert_eq!(phase, expected, "{policy} {init:?} {containers:?}");
        }
    }

    #[test]
    fn ids_of_containers_begin_with_the_name_of_their_runtime() {
        let pod: Pod = serde_json::from_value(json!({"spec": {"containers": [{"name": "c"}]}}))
            .expect("a pod");
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
        let inputs = StatusInputs {
            runtime: &PodStatus { sandboxes: Vec::new(), containers },
            runtime_name: "cri-o",
            waiting: &HashMap::new(),
            readiness: &|_| None,
            startup: &|_| None,
            messages: &HashMap::new(),
            host_ips: &[],
            now: Timestamp::from_secs(0),
            before: None,
        };
        let status = generate(&pod, &inputs).container_statuses.unwrap_or_default().remove(0);
        assert_eq!(status.container_id.as_deref(), Some("cri-o://b"));
        let last = status.last_state.and_then(|state| state.terminated).expect("an end");
        assert_eq!(last.container_id.as_deref(), Some("cri-o://a"));
    }
}
