//! What has to be done so that a pod runs as it should, by its state in the runtime.
//! Upstream: `computePodActions`.

use k8s_openapi::api::core::v1::EphemeralContainer;

use super::labels::container_hash;
use super::resize::{ResizeActions, Resizing};
use super::status::{ContainerStatus, PodStatus, State};
use crate::allocation::PodResources;
use crate::pod::{
    Container, ExitAction, Pod, PodExt, RestartPolicy, exit_action, is_restartable_init,
    restart_policy_of, restarts_after,
};

/// The results of the probes of one container; `None`: no result yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProbeResults {
    pub startup: Option<bool>,
    pub liveness: Option<bool>,
}

/// Why a container is killed. Upstream: `containerKillReason`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KillReason {
    Unknown,
    StartupProbe,
    LivenessProbe,
    Changed,
    /// Its new resources need a restart.
    Resized,
}

/// A container that must end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kill {
    pub id: String,
    pub name: String,
    pub message: String,
    pub reason: KillReason,
}

/// The steps, in their order: kill, create a sandbox, start ephemeral containers, init containers and
/// containers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodActions {
    /// Kill all containers and the sandbox.
    pub kill_pod: bool,
    pub create_sandbox: bool,
    /// The attempt of the new sandbox.
    pub attempt: u32,
    /// The present sandbox: containers start in it unless a new one is created.
    pub sandbox: Option<String>,
    /// Indices of ephemeral containers, each of which starts once.
    pub ephemeral_to_start: Vec<usize>,
    /// Indices of init containers; several only if they are restartable.
    pub init_to_start: Vec<usize>,
    pub to_start: Vec<usize>,
    /// What changes in place, before containers start.
    pub resize: ResizeActions,
    pub to_kill: Vec<Kill>,
    /// All containers, when a rule restarts them together: each is killed without grace if it runs,
    /// and removed. Those that have triggered it come last.
    pub to_reset: Vec<Reset>,
}

/// A container that is removed before all start again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reset {
    pub id: String,
    pub name: String,
    pub is_running: bool,
}

/// Returns whether the end of a container has to restart all of them. Upstream: the half of
/// `ShouldAllContainersRestart` that looks at the runtime.
pub fn triggers_restart_of_all(pod: &Pod, status: &PodStatus) -> bool {
    pod.all_containers().any(|container| {
        let newest = status.container(&container.name);
        newest.is_some_and(|newest| triggers_restart(container, newest))
    })
}

/// Returns whether a container's exit is one for which its rules restart all containers.
fn triggers_restart(container: &Container, status: &ContainerStatus) -> bool {
    status.state == State::Exited
        && exit_action(container, status.exit_code) == Some(ExitAction::RestartAllContainers)
}

/// Lists the containers that a restart of all removes, those whose exit has caused it last.
/// Upstream: `getContainersToReset`.
fn resets(pod: &Pod, status: &PodStatus) -> Vec<Reset> {
    let (mut victims, mut sources) = (Vec::new(), Vec::new());
    for list in [&pod.spec().containers[..], pod.init_containers()] {
        for container in list {
            for status in status.containers.iter().filter(|c| c.name == container.name) {
                let reset = Reset {
                    id: status.id.clone(),
                    name: status.name.clone(),
                    is_running: status.state != State::Exited,
                };
                let is_source = triggers_restart(container, status);
                if is_source { &mut sources } else { &mut victims }.push(reset);
            }
        }
    }
    victims.append(&mut sources);
    victims
}

/// Decides what has to happen so that the pod's sandbox and containers are as its definition says.
/// Upstream: `computePodActions`. `probes`: the results of the container with this id.
/// `restarts_all`: the restart of all containers is under way. `actuated`: the resources that its
/// containers were given; `None`: there is no record.
pub fn compute(
    pod: &Pod,
    status: &PodStatus,
    probes: &dyn Fn(&str) -> ProbeResults,
    restarts_all: bool,
    actuated: Option<&PodResources>,
) -> PodActions {
    let (needs_sandbox, attempt, sandbox) = sandbox_change(pod, status);
    let mut actions = PodActions {
        kill_pod: needs_sandbox,
        create_sandbox: needs_sandbox,
        attempt,
        sandbox,
        ..PodActions::default()
    };
    if restarts_all {
        actions.to_reset = resets(pod, status);
        return actions;
    }
    let resizing = Resizing { pod, actuated };
    if needs_sandbox {
        recreate(pod, status, &mut actions);
        for at in &actions.to_start {
            resizing.add_start(&pod.spec().containers[*at], &mut actions.resize);
        }
        return actions;
    }
    let ephemeral = pod.ephemeral_containers().iter().enumerate();
    let never_began =
        |(_, ephemeral): &(_, &EphemeralContainer)| status.container(&ephemeral.name).is_none();
    actions.ephemeral_to_start = ephemeral.filter(never_began).map(|(at, _)| at).collect();
    let is_initialized = init_actions(status, probes, &resizing, &mut actions);
    if actions.kill_pod || !is_initialized {
        return actions;
    }
    let mut keeps_any = false;
    for (at, container) in pod.spec().containers.iter().enumerate() {
        let current = status.container(&container.name);
        let Some(current) = current.filter(|current| current.state == State::Running) else {
            if should_restart(pod, container, status) {
                actions.to_start.push(at);
                resizing.add_start(container, &mut actions.resize);
                if let Some(current) = current.filter(|current| current.state == State::Unknown) {
                    actions.to_kill.push(unknown_state_kill(current, "Container"));
                }
            }
            continue;
        };
        let name = &container.name;
        let results = probes(&current.id);
        let mut restarts = restart_policy_of(container, pod) != RestartPolicy::Never;
        let (mut message, reason) = if is_changed(container, current) {
            // A changed definition restarts the container whichever restart policy it has.
            restarts = true;
            (format!("Container {name} definition changed"), KillReason::Changed)
        } else if results.liveness == Some(false) {
            (format!("Container {name} failed liveness probe"), KillReason::LivenessProbe)
        } else if results.startup == Some(false) {
            (format!("Container {name} failed startup probe"), KillReason::StartupProbe)
        } else if resizing.add_container(container, current, &mut actions.resize) {
            actions.to_start.push(at);
            actions.to_kill.push(resize_kill(current));
            continue;
        } else {
            keeps_any = true;
            continue;
        };
        if restarts {
            message.push_str(", will be restarted");
            actions.to_start.push(at);
        }
        actions.to_kill.push(Kill { id: current.id.clone(), name: name.clone(), message, reason });
    }
    if !keeps_any && actions.to_start.is_empty() {
        actions.kill_pod = true;
        // No container is left for which sidecars would have to run.
        actions.init_to_start.clear();
    } else {
        resizing.add_pod(&mut actions.resize);
    }
    actions
}

/// Describes the kill of a container that gets its new resources by a restart.
fn resize_kill(current: &ContainerStatus) -> Kill {
    Kill {
        id: current.id.clone(),
        name: current.name.clone(),
        message: format!("Container {} resize requires restart", current.name),
        reason: KillReason::Resized,
    }
}

/// Returns whether a new sandbox is needed, the attempt of the sandbox, and the id of the present
/// one (`None` also where its replacement gets no event `SandboxChanged`). Upstream:
/// `runtimeutil.PodSandboxChanged`.
fn sandbox_change(pod: &Pod, status: &PodStatus) -> (bool, u32, Option<String>) {
    let Some(newest) = status.sandboxes.first() else { return (true, 0, None) };
    let ready = status.sandboxes.iter().filter(|sandbox| sandbox.is_ready).count();
    let id = Some(newest.id.clone());
    if ready > 1 || !newest.is_ready {
        (true, newest.attempt + 1, id)
    } else if newest.is_host_network != pod.is_host_network() {
        // As upstream, which returns no id here.
        (true, newest.attempt + 1, None)
    } else if !pod.is_host_network() && newest.ips.is_empty() {
        (true, newest.attempt + 1, id)
    } else {
        (false, newest.attempt, id)
    }
}

/// Decides what starts in a new sandbox; a pod that has run and may not, or need not, run again
/// gets none.
fn recreate(pod: &Pod, status: &PodStatus, actions: &mut PodActions) {
    let never = pod.restart_policy() == RestartPolicy::Never;
    if never && actions.attempt != 0 && !status.containers.is_empty() {
        // The pod has run and may not run again.
        actions.create_sandbox = false;
        return;
    }
    let has_succeeded = |container: &Container| {
        let status = status.container(&container.name);
        status.is_some_and(|status| status.state == State::Exited && status.exit_code == 0)
    };
    let to_start: Vec<usize> = pod
        .spec()
        .containers
        .iter()
        .enumerate()
        .filter(|(_, container)| {
            let runs_once = restart_policy_of(container, pod) == RestartPolicy::OnFailure;
            !(runs_once && has_succeeded(container))
        })
        .map(|(at, _)| at)
        .collect();
    let has_initialized = pod.spec().containers.iter().any(|container| {
        status.container(&container.name).is_some_and(|status| status.state != State::Unknown)
    });
    if to_start.is_empty() && has_initialized {
        actions.create_sandbox = false;
    } else if pod.init_containers().is_empty() {
        actions.to_start = to_start;
    } else {
        actions.init_to_start = vec![0];
    }
}

/// Returns whether the definition of a container has changed since it was created.
fn is_changed(container: &Container, current: &ContainerStatus) -> bool {
    current.hash.is_some_and(|hash| hash != container_hash(container))
}

/// Describes the kill of a container of unknown state, which may still run. `what`: the start of
/// the message.
fn unknown_state_kill(current: &ContainerStatus, what: &str) -> Kill {
    Kill {
        id: current.id.clone(),
        name: current.name.clone(),
        message: format!("{what} is in \"unknown\" state, try killing it before restart"),
        reason: KillReason::Unknown,
    }
}

/// Returns whether a container that does not run has to run. Upstream:
/// `ShouldContainerBeRestarted`.
pub fn should_restart(pod: &Pod, container: &Container, status: &PodStatus) -> bool {
    if pod.metadata.deletion_timestamp.is_some() {
        return false;
    }
    let Some(current) = status.container(&container.name) else { return true };
    match current.state {
        State::Running => false,
        // It could not be started, or may or may not run.
        State::Created | State::Unknown => true,
        State::Exited => restarts_after(container, pod, current.exit_code),
    }
}

/// Adds the actions of init containers; returns whether all of them have done their work. One that
/// failed and may not restart ends the pod (`kill_pod`). Upstream: `computeInitContainerActions`.
fn init_actions(
    status: &PodStatus,
    probes: &dyn Fn(&str) -> ProbeResults,
    resizing: &Resizing<'_>,
    actions: &mut PodActions,
) -> bool {
    let pod = resizing.pod;
    let containers = pod.init_containers();
    if containers.is_empty() {
        return true;
    }
    // Once a container was created, init containers have run, even if they have been removed since.
    // One of a former sandbox says nothing: a power cut may leave it as created for ever.
    let mut is_initialized = pod.spec().containers.iter().any(|container| {
        let current = status.container(&container.name);
        current.is_some_and(|current| {
            matches!(current.state, State::Created | State::Running)
                && status.is_in_newest_sandbox(current)
        })
    });
    let mut later_ones_started = is_initialized;
    // From the last to the first: earlier ones may have been removed.
    for (at, container) in containers.iter().enumerate().rev() {
        let is_sidecar = is_restartable_init(container);
        let Some(current) = status.container(&container.name) else {
            if later_ones_started && is_sidecar {
                actions.init_to_start.push(at);
            }
            continue;
        };
        if later_ones_started && !is_sidecar {
            continue;
        }
        let step = match (current.state, is_sidecar) {
            (State::Created, _) | (State::Exited, true) => Step::Start,
            (State::Running, false) => {
                // The API server lets no such container restart for a resize.
                resizing.add_container(container, current, &mut actions.resize);
                Step::Wait
            }
            (State::Running, true) => sidecar_step(container, current, probes(&current.id)),
            (State::Exited, false) if current.exit_code == 0 => Step::Done(None),
            (State::Exited, false) if should_restart(pod, container, status) => Step::Start,
            (State::Unknown, _) if is_sidecar || may_restart(pod, container) => {
                Step::Restart(unknown_state_kill(current, "Init container"))
            }
            (State::Exited | State::Unknown, _) => {
                actions.kill_pod = true;
                actions.init_to_start.clear();
                return false;
            }
        };
        let step = match step {
            Step::Done(None)
                if current.state == State::Running
                    && resizing.add_container(container, current, &mut actions.resize) =>
            {
                Step::Done(Some(resize_kill(current)))
            }
            step => step,
        };
        match step {
            Step::Wait => {}
            Step::Start => actions.init_to_start.push(at),
            Step::Restart(kill) => {
                actions.to_kill.push(kill);
                actions.init_to_start.push(at);
            }
            Step::Done(kill) => {
                if at + 1 == containers.len() {
                    is_initialized = true;
                } else if !later_ones_started {
                    actions.init_to_start.push(at + 1);
                }
                if let Some(kill) = kill {
                    actions.to_kill.push(kill);
                    actions.init_to_start.push(at);
                }
            }
        }
        later_ones_started = true;
    }
    if !later_ones_started {
        actions.init_to_start.push(0);
    }
    actions.init_to_start.reverse();
    is_initialized
}

/// What happens to an init container, and so to those after it.
enum Step {
    Wait,
    Start,
    Restart(Kill),
    /// The next one may start. With a container to restart nevertheless.
    Done(Option<Kill>),
}

/// Returns whether the container's restart policy lets it restart at all.
fn may_restart(pod: &Pod, container: &Container) -> bool {
    restart_policy_of(container, pod) != RestartPolicy::Never
}

/// Decides about a running sidecar: restart it, wait for it, or let the next container start,
/// perhaps with a restart of this one.
fn sidecar_step(container: &Container, current: &ContainerStatus, results: ProbeResults) -> Step {
    let name = &container.name;
    let kill = |fault: &str, reason| Kill {
        id: current.id.clone(),
        name: name.clone(),
        message: format!("Init container {name} {fault}"),
        reason,
    };
    if container.startup_probe.is_some() && results.startup != Some(true) {
        return match results.startup {
            Some(false) => Step::Restart(kill("failed startup probe", KillReason::StartupProbe)),
            _ => Step::Wait,
        };
    }
    if is_changed(container, current) {
        return Step::Done(Some(kill("definition changed", KillReason::Changed)));
    }
    let is_dead = container.liveness_probe.is_some() && results.liveness == Some(false);
    Step::Done(is_dead.then(|| kill("failed liveness probe", KillReason::LivenessProbe)))
}

#[cfg(test)]
mod tests;
