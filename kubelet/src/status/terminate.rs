//! The last status of a pod that holds nothing any more. Upstream: `manager.TerminatePod`.

use k8s_openapi::api::core::v1 as core;

use crate::pod::{Pod, PodExt, is_restartable_init};

/// Returns whether no container of a pod in this phase runs again.
pub fn is_terminal(phase: Option<&str>) -> bool {
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// Gives containers whose end was not seen an unknown end, and the pod the phase `Failed` if it has
/// no terminal phase yet. As upstream, a static pod keeps its phase.
pub fn terminate(pod: &Pod, status: &mut core::PodStatus) {
    if is_initialized(pod, status) {
        status.container_statuses.iter_mut().flatten().for_each(set_unknown);
    }
    // Init containers after the last one that began never ran.
    if let Some(init) = &mut status.init_container_statuses {
        let begun =
            init.iter().rposition(|status| !is_waiting(status) || has_ended(&status.last_state));
        // If none is known to have begun, the first one counts.
        init.iter_mut().take(begun.unwrap_or_default() + 1).for_each(set_unknown);
    }
    if !pod.is_static() && !is_terminal(status.phase.as_deref()) {
        status.phase = Some("Failed".to_owned());
    }
}

fn is_waiting(status: &core::ContainerStatus) -> bool {
    status.state.as_ref().is_none_or(|state| state.waiting.is_some())
}

fn has_ended(state: &Option<core::ContainerState>) -> bool {
    state.as_ref().is_some_and(|state| state.terminated.is_some())
}

/// Marks a container as ended with an unknown outcome, unless it is known to have ended.
fn set_unknown(status: &mut core::ContainerStatus) {
    if has_ended(&status.state) {
        return;
    }
    let message = "The container could not be located when the pod was terminated";
    let terminated = core::ContainerStateTerminated {
        // As upstream: the code of a process that was killed.
        exit_code: 137,
        reason: Some("ContainerStatusUnknown".to_owned()),
        message: Some(message.to_owned()),
        ..Default::default()
    };
    status.state =
        Some(core::ContainerState { terminated: Some(terminated), ..Default::default() });
}

/// Returns whether a regular container may have run: the init containers are done, or there are
/// none. Upstream: `hasPodInitialized`.
fn is_initialized(pod: &Pod, status: &core::PodStatus) -> bool {
    let Some(last) = pod.init_containers().last() else { return true };
    let mut containers = status.container_statuses.iter().flatten();
    if containers.any(|status| has_ended(&status.last_state) || !is_waiting(status)) {
        return true;
    }
    let mut init = status.init_container_statuses.iter().flatten();
    init.any(|status| {
        let succeeded = |state: &Option<core::ContainerState>| {
            let ended = state.as_ref().and_then(|state| state.terminated.as_ref());
            ended.is_some_and(|ended| ended.exit_code == 0)
        };
        let is_running = status.state.as_ref().is_some_and(|state| state.running.is_some());
        status.name == last.name
            && match is_restartable_init(last) {
                true => is_running && status.started == Some(true),
                false => succeeded(&status.state) || succeeded(&status.last_state),
            }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::pod::CONFIG_SOURCE;

    #[test]
    fn unseen_ends_are_failures_and_the_phase_is_terminal() {
        let done = json!({"terminated": {"exitCode": 0}});
        let (runs, waits) = (json!({"running": {}}), json!({"waiting": {}}));
        let unknown = "ContainerStatusUnknown";
        for (name, source, phase, init, containers, expected) in [
            (
                "done",
                "api",
                "Succeeded",
                json!([]),
                json!([done]),
                json!(["Succeeded", [], [null]]),
            ),
            (
                "never begun",
                "api",
                "Pending",
                json!([]),
                json!([waits]),
                json!(["Failed", [], [unknown]]),
            ),
            (
                "static",
                "file",
                "Pending",
                json!([]),
                json!([waits]),
                json!(["Pending", [], [unknown]]),
            ),
            (
                "lost",
                "api",
                "Running",
                json!([]),
                json!([runs, done]),
                json!(["Failed", [], [unknown, null]]),
            ),
            (
                "first init container",
                "api",
                "Pending",
                json!([waits, waits]),
                json!([waits]),
                json!(["Failed", [unknown, "waits"], ["waits"]]),
            ),
            (
                "init container",
                "api",
                "Pending",
                json!([done, runs, waits]),
                json!([waits]),
                json!(["Failed", [null, unknown, "waits"], ["waits"]]),
            ),
            (
                "initialized",
                "api",
                "Pending",
                json!([done]),
                json!([waits]),
                json!(["Failed", [null], [unknown]]),
            ),
        ] {
            let list = |states: &Value| -> Value {
                let of = |(at, state): (usize, &Value)| {
                    json!({"name": at.to_string(), "image": "", "imageID": "", "ready": false,
                           "restartCount": 0, "state": state})
                };
                states.as_array().into_iter().flatten().enumerate().map(of).collect()
            };
            let names = |states: &Value| -> Value {
                let count = states.as_array().map_or(0, Vec::len);
                (0..count).map(|at| json!({"name": at.to_string()})).collect()
            };
            let pod: Pod = serde_json::from_value(json!({
                "metadata": {"annotations": {CONFIG_SOURCE: source}},
                "spec": {"initContainers": names(&init), "containers": names(&containers)},
            }))
            .expect("a pod");
            let mut status: core::PodStatus = serde_json::from_value(json!({
                "phase": phase, "initContainerStatuses": list(&init),
                "containerStatuses": list(&containers),
            }))
            .expect("a status");
            terminate(&pod, &mut status);
            let shown = |list: &Option<Vec<core::ContainerStatus>>| -> Value {
                let of = |status: &core::ContainerStatus| match &status.state {
                    Some(core::ContainerState { terminated: Some(ended), .. }) => {
                        json!(ended.reason)
                    }
                    _ => json!("waits"),
                };
                list.iter().flatten().map(of).collect()
            };
            let found = json!([
                status.phase,
                shown(&status.init_container_statuses),
                shown(&status.container_statuses),
            ]);
            assert_eq!(found, expected, "{name}");
        }
    }
}
