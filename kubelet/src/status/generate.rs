//! The status of a pod as the API shows it. Upstream: `generateAPIPodStatus`, `getPhase`.

use std::collections::HashMap;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube_controller_manager::objects::Timestamp;

use super::resources;
use crate::allocation::PodResources;
use crate::cgroups::PodLimits;
use crate::images::Waiting;
use crate::pod::{
    Container, ExitAction, Pod, PodExt, QosClass, exit_action, is_restartable_init,
    may_restart_all, of_ephemeral, restarts_after,
};
use crate::runtime::actions::{should_restart, triggers_restart_of_all};
use crate::runtime::status::{ContainerStatus, PodStatus, State, User};
use crate::status::conditions::{self, ALL_CONTAINERS_RESTARTING, Observed};
use crate::status::terminate::is_terminal;

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
    /// Whether the pod's containers have ended for good.
    pub is_terminal: bool,
    /// The resources that its containers were given; `None`: there is no record.
    pub actuated: Option<&'a PodResources>,
    /// What the pod's cgroup limits; `None`: it is not known.
    pub limits: Option<&'a PodLimits>,
    /// Whether what is mounted in its mounts can be read-only too.
    pub recursive: bool,
    /// The conditions of a change of its resources.
    pub resize: &'a [core::PodCondition],
    /// The last status that was computed, or that the API server has.
    pub before: Option<&'a core::PodStatus>,
    /// The status that the API server has; `None`: the pod is static.
    pub reported: Option<&'a core::PodStatus>,
}

/// Why a container has ended that was removed for that.
const RESTARTING_ALL_CONTAINERS: &str = "RestartingAllContainers";

/// Returns whether a status says that all containers are being removed, to start again.
pub fn is_restarting_all(status: &core::PodStatus) -> bool {
    is_true(status, ALL_CONTAINERS_RESTARTING)
}

fn is_true(status: &core::PodStatus, kind: &str) -> bool {
    conditions::find(status, kind).is_some_and(|condition| condition.status == "True")
}

/// Returns whether all containers of the pod have to restart, or are being restarted. Upstream:
/// `ShouldAllContainersRestart`.
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

/// Returns the status of a container of any kind, by its name.
fn status_of<'a>(status: &'a core::PodStatus, name: &str) -> Option<&'a core::ContainerStatus> {
    let lists = [
        &status.init_container_statuses,
        &status.container_statuses,
        &status.ephemeral_container_statuses,
    ];
    lists.into_iter().flatten().flatten().find(|status| status.name == name)
}

fn terminated_of(status: &core::ContainerStatus) -> Option<&core::ContainerStateTerminated> {
    status.state.as_ref()?.terminated.as_ref()
}

pub fn time(timestamp: Timestamp) -> Time {
    Time(timestamp.to_jiff())
}

/// Converts nanoseconds since 1970 to a time; `None`: the runtime has not set it.
fn nanos(nanos: i64) -> Option<Time> {
    (nanos > 0).then(|| time(Timestamp::from_micros(nanos / 1000)))
}

/// Computes the status of a pod for the API server, from what the runtime reports, the results of
/// probes and the status before.
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
    let has_started = has_started(pod, inputs.runtime);
    let computed = phase(pod, &init, &containers, inputs.is_terminal, has_started);
    let (phase, why) = settled_phase(computed, inputs);
    let ips = ips(pod, inputs);
    // A kubelet that restarts takes the pod's start from the oldest sandbox, which is the last one.
    let oldest = inputs.runtime.sandboxes.last().and_then(|sandbox| nanos(sandbox.created_at));
    let start_time = inputs.before.and_then(|before| before.start_time.clone()).or(oldest);
    let mut status = core::PodStatus {
        phase: Some(phase.clone()),
        reason: why.and_then(|why| why.reason.clone()),
        message: why.and_then(|why| why.message.clone()),
        host_ip: inputs.host_ips.first().cloned(),
        host_ips: (!inputs.host_ips.is_empty())
            .then(|| inputs.host_ips.iter().map(|ip| core::HostIP { ip: ip.clone() }).collect()),
        pod_ip: ips.first().cloned(),
        pod_ips: Some(ips.into_iter().map(|ip| core::PodIP { ip }).collect()),
        start_time,
        qos_class: Some(QosClass::of(pod).name().to_owned()),
        ..Default::default()
    };
    let mut all = all_conditions(pod, &phase, &init, &containers, inputs);
    if may_restart_all(pod) {
        all.push(restarting_condition(pod, &phase, inputs, all_restart));
    }
    if !["Succeeded", "Failed"].contains(&phase.as_str()) {
        all.extend(inputs.resize.iter().cloned());
    }
    status.conditions = Some(all);
    // What the cgroup limits counts once the pod was seen to run; until then its spec does.
    let ran = inputs.before.filter(|before| before.phase.as_deref() == Some("Running"));
    let limits = inputs.limits.filter(|_| ran.is_some());
    let reported = ran.and_then(|before| before.resources.as_ref());
    status.resources = Some(resources::of_pod_itself(pod, limits, reported));
    let requests = resources::total(pod, false);
    status.allocated_resources = (!requests.is_empty()).then_some(requests);
    let ephemeral = pod.ephemeral_containers().iter().map(|ephemeral| {
        let container = of_ephemeral(ephemeral);
        let status = container_status(pod, &container, inputs, waits_for, all_restart);
        // It is no part of the pod's readiness.
        core::ContainerStatus { ready: false, started: None, ..status }
    });
    let ephemeral: Vec<_> = ephemeral.collect();
    status.ephemeral_container_statuses = (!ephemeral.is_empty()).then_some(ephemeral);
    status.init_container_statuses = has_init.then_some(init);
    status.container_statuses = Some(containers);
    status
}

/// Returns the phase of a pod, and the status that says why it is in that phase. No pod leaves a
/// terminal phase: it may have been evicted, or another writer may have set it.
fn settled_phase<'a>(
    computed: &str,
    inputs: &StatusInputs<'a>,
) -> (String, Option<&'a core::PodStatus>) {
    let mut known = [inputs.before, inputs.reported].into_iter().flatten();
    if let Some(ended) = known.find(|known| is_terminal(known.phase.as_deref())) {
        return (ended.phase.clone().unwrap_or_default(), Some(ended));
    }
    let is_same = |before: &&core::PodStatus| before.phase.as_deref() == Some(computed);
    (computed.to_owned(), inputs.before.filter(is_same))
}

/// Returns the pod's addresses, that of the node's first family first. A pod that has ended keeps
/// them. Upstream: `sortPodIPs`, `getPodIPs`.
fn ips(pod: &Pod, inputs: &StatusInputs<'_>) -> Vec<String> {
    if pod.is_host_network() {
        return inputs.host_ips.to_vec();
    }
    let found = inputs.runtime.ips();
    if found.is_empty() && !inputs.runtime.sandboxes.iter().any(|sandbox| sandbox.is_ready) {
        let before = inputs.before.and_then(|before| before.pod_ips.as_ref());
        return before.into_iter().flatten().map(|ip| ip.ip.clone()).collect();
    }
    let is_v6 = |ip: &String| ip.contains(':');
    let first = inputs.host_ips.first().is_some_and(is_v6);
    let of_family = |family: bool| found.iter().find(move |ip| is_v6(ip) == family);
    of_family(first).into_iter().chain(of_family(!first)).cloned().collect()
}

/// Returns the status of a pod that was not admitted. Upstream: `rejectPod`.
pub fn rejected(pod: &Pod, reason: &str, message: &str) -> core::PodStatus {
    core::PodStatus {
        phase: Some("Failed".to_owned()),
        reason: Some(reason.to_owned()),
        message: Some(format!("Pod was rejected: {message}")),
        qos_class: Some(QosClass::of(pod).name().to_owned()),
        ..Default::default()
    }
}

/// Computes the status of a container by the runtime's, its last status and the reason for which it
/// waits; without a reason of its own that is `default`. `all_restart`: all containers of the pod
/// are being restarted.
fn container_status(
    pod: &Pod,
    container: &Container,
    inputs: &StatusInputs<'_>,
    default: &str,
    all_restart: bool,
) -> core::ContainerStatus {
    let newest = inputs.runtime.container(&container.name);
    let before = inputs.before.and_then(|before| status_of(before, &container.name));
    // A container that has ended keeps its status when the runtime no longer has it.
    if let (None, Some(ended), false) = (newest, before, all_restart)
        && terminated_of(ended).is_some()
        && !inputs.waiting.contains_key(&container.name)
    {
        return ended.clone();
    }
    let waits = |reason: &str, message: Option<String>| core::ContainerState {
        waiting: Some(core::ContainerStateWaiting { reason: Some(reason.to_owned()), message }),
        ..Default::default()
    };
    let state_of = |status: &ContainerStatus| match status.state {
        State::Running => core::ContainerState {
            running: Some(core::ContainerStateRunning { started_at: nanos(status.started_at) }),
            ..Default::default()
        },
        State::Exited => terminated_state(status, inputs),
        State::Created | State::Unknown => waits(default, None),
    };
    let mut state = newest.map_or_else(|| waits(default, None), state_of);
    let mut last = inputs.runtime.previous(&container.name).map(state_of);
    let mut count = newest.map_or(0, |newest| newest.restart_count.try_into().unwrap_or(i32::MAX));
    match (newest, before) {
        (None, Some(before)) => {
            let is_deleted = pod.metadata.deletion_timestamp.is_some();
            let removed = state_of_removed(before, all_restart, is_deleted);
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
        _ => {}
    }
    // An init container without a trace has done its work once a container was created.
    let is_lost =
        newest.is_none() && state.waiting.is_some() && must_have_completed(pod, container, inputs);
    if is_lost {
        state = completed_without_trace();
    }
    // One that has to start shows why it waits; its end, if it has one, becomes the last state.
    let is_running = newest.is_some_and(|status| status.state == State::Running);
    let reason = inputs.waiting.get(&container.name).filter(|_| !is_running && !is_lost);
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
    // An init container is ready once it has succeeded.
    let is_ready = match is_plain_init {
        true => state.terminated.as_ref().is_some_and(|ended| ended.exit_code == 0),
        false => is_started && (!has_readiness || (inputs.readiness)(id) == Some(true)),
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
        user: match newest {
            Some(newest) => newest.user.as_ref().map(user),
            None => before.and_then(|before| before.user.clone()),
        },
        volume_mounts: volume_mounts(container, inputs.recursive),
        resources: match newest {
            Some(newest) => Some(resources_of(container, newest, before, inputs)),
            None => before.and_then(|before| before.resources.clone()),
        },
        allocated_resources: match newest {
            Some(_) => container.resources.as_ref().and_then(|lists| lists.requests.clone()),
            None => before.and_then(|before| before.allocated_resources.clone()),
        },
        ..Default::default()
    }
}

/// Converts the user of a container, as the runtime reports it. Upstream:
/// `convertContainerStatusUser`.
fn user(user: &User) -> core::ContainerUser {
    let groups = Some(user.groups.clone()).filter(|groups| !groups.is_empty());
    core::ContainerUser {
        linux: Some(core::LinuxContainerUser {
            uid: user.uid,
            gid: user.gid,
            supplemental_groups: groups,
        }),
    }
}

/// Returns the mounts in a container's status. `is_possible`: whether the node can make what is
/// mounted within a mount read-only too.
fn volume_mounts(container: &Container, is_possible: bool) -> Option<Vec<core::VolumeMountStatus>> {
    let mounts = container.volume_mounts.as_ref().filter(|mounts| !mounts.is_empty())?;
    let shown = mounts.iter().map(|mount| {
        let is_recursive = match mount.recursive_read_only.as_deref() {
            Some("Enabled") => true,
            Some("IfPossible") => is_possible,
            _ => false,
        };
        let mode = if is_recursive { "Enabled" } else { "Disabled" };
        let is_read_only = mount.read_only == Some(true);
        core::VolumeMountStatus {
            name: mount.name.clone(),
            mount_path: mount.mount_path.clone(),
            read_only: is_read_only.then_some(true),
            recursive_read_only: is_read_only.then(|| mode.to_owned()),
            ..Default::default()
        }
    });
    Some(shown.collect())
}

/// Returns the resources in a container's status: what a running one has, else what it is to have.
fn resources_of(
    container: &Container,
    newest: &ContainerStatus,
    before: Option<&core::ContainerStatus>,
    inputs: &StatusInputs<'_>,
) -> core::ResourceRequirements {
    let allocated = container.resources.clone().unwrap_or_default();
    if newest.state != State::Running {
        return allocated;
    }
    let is_same = |before: &&core::ContainerStatus| {
        before.container_id.as_deref() == Some(&*id_of(newest, inputs))
            && before.state.as_ref().is_some_and(|state| state.running.is_some())
    };
    let before = before.filter(is_same).and_then(|before| before.resources.as_ref());
    let actuated =
        inputs.actuated.and_then(|record| record.container_resources.get(&container.name));
    resources::of_container(&allocated, newest.resources, actuated, before)
}

fn id_of(status: &ContainerStatus, inputs: &StatusInputs<'_>) -> String {
    format!("{}://{}", inputs.runtime_name, status.id)
}

/// Returns the state of an init container that must have completed, though nothing shows it.
fn completed_without_trace() -> core::ContainerState {
    let message = "Unable to get init container status from container runtime and pod has been \
                   initialized, treat it as exited normally";
    core::ContainerState {
        terminated: Some(core::ContainerStateTerminated {
            reason: Some("Completed".to_owned()),
            message: Some(message.to_owned()),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// Returns whether `container` is an init container that must have completed, as a regular
/// container was created in the newest sandbox: the runtime may have removed its own.
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

/// Returns the state of a container that the runtime no longer has. One that has ended stays so,
/// and one that was running has an unknown end as its last state. With `all_restart` both wait for
/// their restart instead.
fn state_of_removed(
    before: &core::ContainerStatus,
    all_restart: bool,
    is_deleted: bool,
) -> Removed {
    let state = before.state.clone().unwrap_or_default();
    let ended = |reason: &str, message: &str| core::ContainerState {
        terminated: Some(core::ContainerStateTerminated {
            // As upstream: the code of a process that was killed.
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
    // As upstream: an end that is known already is not replaced by an unknown one.
    let has_ended = last.as_ref().is_some_and(|last| last.terminated.is_some());
    if state.running.is_none() || has_ended {
        return Removed { state: None, last, count };
    }
    let message = "The container could not be located when the pod was deleted.  The container \
                   used to be Running";
    // One of a pod that is being deleted does not start again.
    let count = if is_deleted { count } else { count + 1 };
    Removed { state: None, last: Some(ended("ContainerStatusUnknown", message)), count }
}

/// Computes the condition `AllContainersRestarting`. Upstream:
/// `GenerateAllContainersRestartingCondition`.
fn restarting_condition(
    pod: &Pod,
    phase: &str,
    inputs: &StatusInputs<'_>,
    all_restart: bool,
) -> core::PodCondition {
    // It counts until the runtime has removed all containers.
    let has_any = pod.all_containers().any(|c| inputs.runtime.container(&c.name).is_some());
    let is_done = ["Succeeded", "Failed"].contains(&phase);
    let is_true = !is_done && all_restart && has_any;
    let reason = match phase {
        "Succeeded" => Some("PodCompleted"),
        "Failed" => Some("PodFailed"),
        _ => is_true.then_some("RestartAllContainersStarted"),
    };
    core::PodCondition {
        type_: ALL_CONTAINERS_RESTARTING.to_owned(),
        status: if is_true { "True" } else { "False" }.to_owned(),
        reason: reason.map(str::to_owned),
        message: is_true.then(|| "container exited with restart policy rule".to_owned()),
        ..Default::default()
    }
}

/// Returns the state of a container that has exited.
fn terminated_state(status: &ContainerStatus, inputs: &StatusInputs<'_>) -> core::ContainerState {
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

/// Returns whether a container of the pod, no init container, was made in its present sandbox: then
/// its init containers have ended there, and its sidecars have started. Upstream:
/// `HasAnyActiveRegularContainerStarted`.
fn has_started(pod: &Pod, runtime: &PodStatus) -> bool {
    let has_sandbox = runtime.sandboxes.first().is_some_and(|sandbox| sandbox.is_ready);
    let is_regular = |name: &str| pod.spec().containers.iter().any(|own| own.name == name);
    let mut made = runtime.containers.iter().filter(|made| runtime.is_in_newest_sandbox(made));
    has_sandbox && made.any(|made| is_regular(&made.name))
}

/// Computes the phase of a pod by the states of its containers. Upstream: `getPhase`.
fn phase(
    pod: &Pod,
    init: &[core::ContainerStatus],
    containers: &[core::ContainerStatus],
    is_terminal: bool,
    has_started: bool,
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
            // It has succeeded or restarts, or is a sidecar that has ended: these do not count.
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
    if is_init_pending || is_sidecar_pending && !has_started || waiting > 0 {
        return "Pending";
    }
    match (running, stopped) {
        (1.., _) => "Running",
        (0, 0) => "Pending",
        // Some restart. As upstream, a static pod that was ended keeps its phase.
        (0, _) if stopped != ended && (!is_terminal || pod.is_static()) => "Running",
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

/// What the phase of a pod depends on, of one container.
enum Seen {
    Running,
    Waiting,
    Stopped(End),
}

/// Returns whether a container runs, waits to run for the first time, or how it has ended last.
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

/// Lists the conditions of other writers, and computes those of the kubelet but
/// `AllContainersRestarting` and those of a resize.
fn all_conditions(
    pod: &Pod,
    phase: &str,
    init: &[core::ContainerStatus],
    containers: &[core::ContainerStatus],
    inputs: &StatusInputs<'_>,
) -> Vec<core::PodCondition> {
    let sandboxes = &inputs.runtime.sandboxes;
    let has_sandbox = sandboxes.iter().filter(|sandbox| sandbox.is_ready).count() == 1
        && sandboxes.first().is_some_and(|sandbox| {
            sandbox.is_ready
                && sandbox.is_host_network == pod.is_host_network()
                && (sandbox.is_host_network || !sandbox.ips.is_empty())
        });
    let reported = inputs.reported.iter().flat_map(|status| status.conditions.iter().flatten());
    let others = reported.filter(|condition| !conditions::is_own(&condition.type_));
    let mut all: Vec<core::PodCondition> = others.cloned().collect();
    // A disruption comes from one event, not from what is observed.
    if let Some(disruption) =
        inputs.before.and_then(|before| conditions::find(before, conditions::DISRUPTION_TARGET))
    {
        conditions::replace(&mut all, disruption.clone());
    }
    let observed = Observed {
        phase,
        init,
        containers,
        has_sandbox,
        was_initialized: inputs.before.is_some_and(|before| is_true(before, "Initialized")),
        others: &all,
    };
    let own = conditions::kubelet_conditions(pod, &observed);
    all.extend(own);
    all
}

#[cfg(test)]
mod tests;
