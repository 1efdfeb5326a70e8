//! The conditions of a pod that a kubelet writes.
//! Upstream: `pkg/kubelet/status/generate.go`, `pkg/kubelet/types/pod_status.go`.

use k8s_openapi::api::core::v1 as core;

use crate::pod::{Pod, PodExt, is_restartable_init};

/// The condition of a pod that was ended for the node's sake.
pub const DISRUPTION_TARGET: &str = "DisruptionTarget";
/// On a pod whose containers all restart, as a rule of one of them says.
pub const ALL_CONTAINERS_RESTARTING: &str = "AllContainersRestarting";

/// The conditions that no other writer has. Upstream: `PodConditionByKubelet`.
const OWN: [&str; 8] = [
    "PodScheduled",
    "Ready",
    "Initialized",
    "ContainersReady",
    "PodResizeInProgress",
    "PodResizePending",
    "PodReadyToStartContainers",
    ALL_CONTAINERS_RESTARTING,
];

/// Returns whether only the kubelet writes conditions of this type.
pub fn is_own(kind: &str) -> bool {
    OWN.contains(&kind)
}

/// Returns whether conditions of this type say how far a resize is. They bring their transition time
/// with them, that of the last change of the reason: the status, always True, says nothing of it.
pub fn is_of_resize(kind: &str) -> bool {
    ["PodResizeInProgress", "PodResizePending"].contains(&kind)
}

/// Returns whether the kubelet writes conditions of this type beside others. Upstream:
/// `PodConditionSharedByKubelet`.
pub fn is_shared(kind: &str) -> bool {
    kind == DISRUPTION_TARGET
}

/// Returns the condition of a type, if the status has it.
pub fn find<'a>(status: &'a core::PodStatus, kind: &str) -> Option<&'a core::PodCondition> {
    status.conditions.iter().flatten().find(|condition| condition.type_ == kind)
}

/// Replaces the condition of the same type, or appends it. Upstream: `ReplaceOrAppendPodCondition`.
pub fn replace(conditions: &mut Vec<core::PodCondition>, condition: core::PodCondition) {
    match conditions.iter_mut().find(|before| before.type_ == condition.type_) {
        Some(before) => *before = condition,
        None => conditions.push(condition),
    }
}

/// Returns the generation of the pod that a condition is about; static pods have none.
pub fn observed_generation(pod: &Pod) -> Option<i64> {
    pod.metadata.generation.filter(|generation| *generation != 0)
}

/// What conditions are computed from, beside the pod.
#[derive(Clone, Copy)]
pub struct Observed<'a> {
    pub phase: &'a str,
    /// In the order of the pod's definition, as the next list.
    pub init: &'a [core::ContainerStatus],
    pub containers: &'a [core::ContainerStatus],
    /// Whether the pod's sandbox is there, with its network.
    pub has_sandbox: bool,
    /// Whether the pod was initialized by its last status.
    pub was_initialized: bool,
    /// The conditions of other writers.
    pub others: &'a [core::PodCondition],
}

/// Computes the conditions of the kubelet without the times of their last change.
pub fn kubelet_conditions(pod: &Pod, observed: &Observed<'_>) -> Vec<core::PodCondition> {
    let containers_ready = containers_ready(pod, observed);
    let ready = match containers_ready.is_true {
        false => containers_ready.clone(),
        true => gates_ready(pod, observed.others),
    };
    [
        ("PodReadyToStartContainers", Verdict { is_true: observed.has_sandbox, ..Verdict::TRUE }),
        ("Initialized", initialized(pod, observed)),
        ("Ready", ready),
        ("ContainersReady", containers_ready),
        ("PodScheduled", Verdict::TRUE),
    ]
    .map(|(kind, verdict)| verdict.condition(pod, kind))
    .into()
}

/// What a condition says.
#[derive(Clone)]
struct Verdict {
    is_true: bool,
    reason: Option<&'static str>,
    message: Option<String>,
}

impl Verdict {
    const TRUE: Verdict = Verdict { is_true: true, reason: None, message: None };

    fn not(reason: &'static str, message: Option<String>) -> Verdict {
        Verdict { is_true: false, reason: Some(reason), message }
    }

    /// Converts the verdict to a condition of a pod.
    fn condition(self, pod: &Pod, kind: &str) -> core::PodCondition {
        core::PodCondition {
            type_: kind.to_owned(),
            status: if self.is_true { "True" } else { "False" }.to_owned(),
            reason: self.reason.map(str::to_owned),
            message: self.message,
            observed_generation: observed_generation(pod),
            ..Default::default()
        }
    }
}

/// Formats a list of names as Go does.
fn names(of: &[&str]) -> String {
    format!("[{}]", of.join(" "))
}

/// Computes the condition `ContainersReady`. Upstream: `GenerateContainersReadyCondition`.
fn containers_ready(pod: &Pod, observed: &Observed<'_>) -> Verdict {
    match terminal_reason(observed.phase) {
        Some(reason) => return Verdict::not(reason, None),
        None if observed.containers.is_empty() => {
            return Verdict::not("UnknownContainerStatuses", None);
        }
        None => {}
    }
    let init = pod.init_containers().iter().zip(observed.init);
    let sidecars = init.filter(|(container, _)| is_restartable_init(container));
    let all = sidecars.map(|(_, status)| status).chain(observed.containers);
    let unready: Vec<&str> =
        all.filter(|status| !status.ready).map(|status| status.name.as_str()).collect();
    if unready.is_empty() {
        return Verdict::TRUE;
    }
    let message = format!("containers with unready status: {}", names(&unready));
    Verdict::not("ContainersNotReady", Some(message))
}

/// Returns why the containers of a pod in this phase are not ready; `None`: the phase does not say
/// it.
pub fn terminal_reason(phase: &str) -> Option<&'static str> {
    match phase {
        "Succeeded" => Some("PodCompleted"),
        "Failed" => Some("PodFailed"),
        _ => None,
    }
}

/// Computes the condition `Ready` of a pod whose containers are ready, by its readiness gates.
/// Upstream: `GeneratePodReadyCondition`.
fn gates_ready(pod: &Pod, others: &[core::PodCondition]) -> Verdict {
    let gates = pod.spec().readiness_gates.iter().flatten();
    let faults = gates.filter_map(|gate| {
        let kind = &gate.condition_type;
        match others.iter().find(|condition| condition.type_ == *kind) {
            None => Some(format!(
                "corresponding condition of pod readiness gate {kind:?} does not exist."
            )),
            Some(condition) if condition.status != "True" => Some(format!(
                "the status of pod readiness gate {kind:?} is not \"True\", but {}",
                condition.status
            )),
            Some(_) => None,
        }
    });
    let faults: Vec<String> = faults.collect();
    match faults.is_empty() {
        true => Verdict::TRUE,
        false => Verdict::not("ReadinessGatesNotReady", Some(faults.join(", "))),
    }
}

/// Returns whether the condition `Ready` in the API server is out of date, because another writer
/// has set the condition of a readiness gate. False while the containers are not ready: gates do
/// not count then. Upstream: `NeedToReconcilePodReadiness`.
pub fn has_stale_gates(pod: &Pod) -> bool {
    let has_gates = pod.spec().readiness_gates.as_ref().is_some_and(|gates| !gates.is_empty());
    let Some(status) = pod.status.as_ref().filter(|_| has_gates) else { return false };
    let (Some(ready), Some(containers)) = (find(status, "Ready"), find(status, "ContainersReady"))
    else {
        return false;
    };
    if containers.status != "True" {
        return false;
    }
    let now = gates_ready(pod, status.conditions.as_deref().unwrap_or_default());
    now.is_true != (ready.status == "True") || now.message != ready.message
}

/// Computes the condition `Initialized`. Upstream: `GeneratePodInitializedCondition`.
fn initialized(pod: &Pod, observed: &Observed<'_>) -> Verdict {
    if observed.phase == "Succeeded" {
        return Verdict { reason: Some("PodCompleted"), ..Verdict::TRUE };
    }
    let has_started = observed.containers.iter().any(|status| {
        let state = status.state.as_ref();
        state.is_some_and(|state| state.running.is_some() || state.terminated.is_some())
    });
    let init = pod.init_containers().iter().zip(observed.init);
    let incomplete = init.filter(|(container, status)| match is_restartable_init(container) {
        true => status.started != Some(true),
        false => !status.ready,
    });
    let incomplete: Vec<&str> = incomplete.map(|(_, status)| status.name.as_str()).collect();
    // A restart of all containers leaves a pod initialized.
    if has_started || observed.was_initialized || incomplete.is_empty() {
        return Verdict::TRUE;
    }
    let message = format!("containers with incomplete status: {}", names(&incomplete));
    Verdict::not("ContainersNotInitialized", Some(message))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn statuses(list: &Value) -> Vec<core::ContainerStatus> {
        let list = list.as_array().into_iter().flatten().map(|text| {
            let words: Vec<&str> =
                text.as_str().into_iter().flat_map(str::split_whitespace).collect();
            let state = match words.contains(&"runs") {
                true => json!({"running": {}}),
                false => json!({"waiting": {}}),
            };
            let status = json!({
                "name": words[0], "image": "", "imageID": "", "restartCount": 0, "state": state,
                "ready": words.contains(&"ready"), "started": words.contains(&"started"),
            });
            serde_json::from_value(status).expect("a status")
        });
        list.collect()
    }

    #[test]
    fn conditions_follow_containers_gates_and_the_phase() {
        let gates = json!([{"conditionType": "a/x"}, {"conditionType": "a/y"}]);
        let no = "False";
        for (name, phase, init, containers, gates, others, expected) in [
            (
                "ready",
                "Running",
                json!([]),
                json!(["c ready runs"]),
                json!(null),
                json!([]),
                json!({
                    "Initialized": ["True", null, null], "Ready": ["True", null, null],
                    "ContainersReady": ["True", null, null], "PodScheduled": ["True", null, null],
                    "PodReadyToStartContainers": ["True", null, null],
                }),
            ),
            (
                "unready",
                "Running",
                json!([]),
                json!(["c runs", "d ready runs", "e"]),
                json!(null),
                json!([]),
                json!({
                    "Ready": [no, "ContainersNotReady", "containers with unready status: [c e]"],
                    "ContainersReady": [no, "ContainersNotReady", "containers with unready status: [c e]"],
                }),
            ),
            (
                "gates without conditions",
                "Running",
                json!([]),
                json!(["c ready runs"]),
                gates.clone(),
                json!([{"type": "a/y", "status": "False"}]),
                json!({
                    "ContainersReady": ["True", null, null],
                    "Ready": [no, "ReadinessGatesNotReady",
                        "corresponding condition of pod readiness gate \"a/x\" does not exist., the \
                         status of pod readiness gate \"a/y\" is not \"True\", but False"],
                }),
            ),
            (
                "gates of unready containers",
                "Running",
                json!([]),
                json!(["c runs"]),
                gates.clone(),
                json!([]),
                json!({
                    "Ready": [no, "ContainersNotReady", "containers with unready status: [c]"],
                }),
            ),
            (
                "gates",
                "Running",
                json!([]),
                json!(["c ready runs"]),
                gates,
                json!([{"type": "a/y", "status": "True"}, {"type": "a/x", "status": "True"}]),
                json!({
                    "Ready": ["True", null, null],
                }),
            ),
            (
                "initializing",
                "Pending",
                json!(["i", "s runs started"]),
                json!(["c"]),
                json!(null),
                json!([]),
                json!({
                    "Initialized": [no, "ContainersNotInitialized",
                                    "containers with incomplete status: [i]"],
                }),
            ),
            (
                "unready sidecar",
                "Running",
                json!(["i ready", "s runs started"]),
                json!(["c ready runs"]),
                json!(null),
                json!([]),
                json!({
                    "Initialized": ["True", null, null],
                    "ContainersReady": [no, "ContainersNotReady", "containers with unready status: [s]"],
                }),
            ),
            (
                "failed",
                "Failed",
                json!([]),
                json!(["c ready runs"]),
                json!(null),
                json!([]),
                json!({
                    "Initialized": ["True", null, null], "Ready": [no, "PodFailed", null],
                    "ContainersReady": [no, "PodFailed", null],
                }),
            ),
            (
                "done",
                "Succeeded",
                json!(["i ready"]),
                json!(["c"]),
                json!(null),
                json!([]),
                json!({
                    "Initialized": ["True", "PodCompleted", null], "Ready": [no, "PodCompleted", null],
                    "ContainersReady": [no, "PodCompleted", null],
                }),
            ),
        ] {
            let named = |list: &Value| -> Value {
                let of = |text: &Value| {
                    let name = text.as_str().and_then(|text| text.split(' ').next());
                    match name {
                        Some("s") => json!({"name": "s", "restartPolicy": "Always"}),
                        name => json!({"name": name}),
                    }
                };
                list.as_array().into_iter().flatten().map(of).collect()
            };
            let pod: Pod = serde_json::from_value(json!({
                "metadata": {"generation": 7},
                "spec": {"initContainers": named(&init), "containers": named(&containers),
                         "readinessGates": gates},
            }))
            .expect("a pod");
            let others: Vec<core::PodCondition> =
                serde_json::from_value(others).expect("conditions");
            let observed = Observed {
                phase,
                init: &statuses(&init),
                containers: &statuses(&containers),
                has_sandbox: true,
                was_initialized: false,
                others: &others,
            };
            let own = kubelet_conditions(&pod, &observed);
            for (kind, expected) in expected.as_object().into_iter().flatten() {
                let found = own.iter().find(|condition| condition.type_ == *kind).expect(kind);
                let shown = json!([found.status, found.reason, found.message]);
                assert_eq!(shown, *expected, "{name}: {kind}");
                assert_eq!(found.observed_generation, Some(7), "{name}: {kind}");
            }
        }
    }

    #[test]
    fn gates_that_others_have_set_make_ready_stale() {
        let pod = |ready: Value, containers: &str, gate: &str| -> Pod {
            serde_json::from_value(json!({
                "spec": {"containers": [], "readinessGates": [{"conditionType": "x"}]},
                "status": {"conditions": [
                    {"type": "Ready", "status": ready[0], "message": ready[1]},
                    {"type": "ContainersReady", "status": containers},
                    {"type": "x", "status": gate},
                ]},
            }))
            .expect("a pod")
        };
        let missing = "corresponding condition of pod readiness gate \"x\" does not exist.";
        for (ready, containers, gate, expected) in [
            (json!(["False", missing]), "True", "True", true),
            (json!(["True", null]), "True", "True", false),
            (json!(["True", null]), "True", "False", true),
            (json!(["False", missing]), "True", "False", true),
            (json!(["False", "containers"]), "False", "True", false),
        ] {
            let of = pod(ready.clone(), containers, gate);
            assert_eq!(has_stale_gates(&of), expected, "{ready} {containers} {gate}");
        }
    }
}
