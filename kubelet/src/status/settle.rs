//! What a computed status takes over from the last one of its pod, and when two are the same.
//! Upstream: `manager.updateStatusInternal`, `normalizeStatus`, `isPodStatusByKubeletEqual`.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ListedQuantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube_controller_manager::objects::{Quantity, Timestamp};
use serde_json::Value;

use super::conditions::{self, is_of_resize, is_own, is_shared, observed_generation};
use crate::pod::{Pod, PodExt};

/// In bytes, for all containers of a pod. Upstream: `MaxPodTerminationMessageLogLength`.
const MESSAGES: usize = 12 << 10;

/// Makes `status` the one that follows `old`: conditions keep the times of their last change, the
/// pod keeps its start, a generation that was observed stays so, and all gets the form that the
/// server has (`normalize`).
pub fn settle(
    pod: &Pod,
    status: &mut core::PodStatus,
    old: Option<&core::PodStatus>,
    now: Timestamp,
) {
    let now = Time(now.to_jiff());
    for condition in status.conditions.iter_mut().flatten() {
        let has_time = is_of_resize(&condition.type_);
        if (is_own(&condition.type_) || is_shared(&condition.type_)) && !has_time {
            keep_transition(condition, old, &now);
        }
    }
    let start = old.and_then(|old| old.start_time.clone()).or(status.start_time.take());
    status.start_time = Some(start.unwrap_or(now));
    let observed = old.and_then(|old| old.observed_generation);
    status.observed_generation = observed_generation(pod).max(observed);
    normalize(pod, status);
}

/// Sets the time at which a condition last changed: that of the old one if it has the same status,
/// else now. Upstream: `updateLastTransitionTime`.
pub fn keep_transition(
    condition: &mut core::PodCondition,
    old: Option<&core::PodStatus>,
    now: &Time,
) {
    let old = old.and_then(|old| conditions::find(old, &condition.type_));
    condition.last_transition_time = match old.filter(|old| old.status == condition.status) {
        Some(old) => old.last_transition_time.clone(),
        None => Some(now.clone()),
    };
}

/// Truncates a time to whole seconds, which the server stores: a finer time would be written again
/// and again.
fn truncate(time: &mut Option<Time>) {
    if let Some(Time(time)) = time {
        let seconds = Timestamp::from_secs(time.as_second());
        *time = seconds.to_jiff();
    }
}

/// Rewrites amounts in the canonical form in which the server stores them. Those that are malformed
/// stay.
fn make_canonical(list: &mut Option<BTreeMap<String, ListedQuantity>>) {
    for amount in list.iter_mut().flat_map(BTreeMap::values_mut) {
        if let Ok(parsed) = amount.0.parse::<Quantity>() {
            amount.0 = parsed.to_string();
        }
    }
}

fn make_all_canonical(resources: &mut Option<core::ResourceRequirements>) {
    if let Some(resources) = resources {
        make_canonical(&mut resources.requests);
        make_canonical(&mut resources.limits);
    }
}

/// Brings a status to the form in which the server has it, and cuts long last messages.
fn normalize(pod: &Pod, status: &mut core::PodStatus) {
    let most = MESSAGES / pod.all_containers().count().max(1);
    let normalize_state = |state: &mut Option<core::ContainerState>| {
        let Some(state) = state else { return };
        if let Some(running) = &mut state.running {
            truncate(&mut running.started_at);
        }
        if let Some(ended) = &mut state.terminated {
            truncate(&mut ended.started_at);
            truncate(&mut ended.finished_at);
            if let Some(message) = &mut ended.message {
                message.truncate(message.floor_char_boundary(most));
            }
        }
    };
    truncate(&mut status.start_time);
    for condition in status.conditions.iter_mut().flatten() {
        truncate(&mut condition.last_probe_time);
        truncate(&mut condition.last_transition_time);
    }
    for list in [
        &mut status.init_container_statuses,
        &mut status.container_statuses,
        &mut status.ephemeral_container_statuses,
    ] {
        for status in list.iter_mut().flatten() {
            normalize_state(&mut status.state);
            normalize_state(&mut status.last_state);
            make_canonical(&mut status.allocated_resources);
            make_all_canonical(&mut status.resources);
        }
    }
    make_canonical(&mut status.allocated_resources);
    make_all_canonical(&mut status.resources);
    // Init containers stay in the order in which they run.
    let by_name = |a: &core::ContainerStatus, b: &core::ContainerStatus| a.name.cmp(&b.name);
    for list in [&mut status.container_statuses, &mut status.ephemeral_container_statuses] {
        list.iter_mut().for_each(|list| list.sort_by(by_name));
    }
}

/// Returns the JSON of a status without empty texts and lists, which the server may leave out.
pub fn value(status: &core::PodStatus) -> Value {
    let mut value = serde_json::to_value(status).unwrap_or_default();
    prune(&mut value);
    value
}

/// Removes null, empty texts and empty lists from a value, so that statuses compare equal with and
/// without them.
fn prune(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.values_mut().for_each(prune);
            members.retain(|_, member| match member {
                Value::Null => false,
                Value::String(text) => !text.is_empty(),
                Value::Array(list) => !list.is_empty(),
                _ => true,
            });
        }
        Value::Array(list) => list.iter_mut().for_each(prune),
        _ => {}
    }
}

/// Returns whether two statuses say the same, as far as they are the kubelet's.
pub fn is_same(one: &core::PodStatus, other: &core::PodStatus) -> bool {
    let own_conditions = |status: &core::PodStatus| {
        let all = status.conditions.iter().flatten();
        let own = all.filter(|one| is_own(&one.type_) || is_shared(&one.type_));
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let shown = own.map(|one| {
            (one.type_.clone(), (one.status.clone(), text(&one.reason), text(&one.message)))
        });
        shown.collect::<BTreeMap<_, _>>()
    };
    let rest = |status: &core::PodStatus| {
        value(&core::PodStatus {
            conditions: None,
            resource_claim_statuses: None,
            extended_resource_claim_status: None,
            node_allocatable_resource_claim_statuses: None,
            ..status.clone()
        })
    };
    own_conditions(one) == own_conditions(other) && rest(one) == rest(other)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn status(value: Value) -> core::PodStatus {
        serde_json::from_value(value).expect("a status")
    }

    const NOW: &str = "2026-02-01T00:00:00Z";

    fn settled(generation: Value, new: Value, old: Value) -> Value {
        let pod = json!({"metadata": {"generation": generation},
                         "spec": {"containers": [{"name": "a"}, {"name": "b"}]}});
        let pod: Pod = serde_json::from_value(pod).expect("a pod");
        let mut new = status(new);
        let old = (!old.is_null()).then(|| status(old));
        let now: Timestamp = NOW.parse().expect("a time");
        settle(&pod, &mut new, old.as_ref(), now);
        value(&new)
    }

    #[test]
    fn times_and_generations_continue() {
        let condition = |kind: &str, status: &str, time: &str| json!({"type": kind, "status": status, "lastTransitionTime": time});
        let old = json!({
            "startTime": "2026-01-01T00:00:01Z", "observedGeneration": 3,
            "conditions": [condition("Ready", "False", "2026-01-02T00:00:00Z"),
                           condition("Initialized", "False", "2026-01-02T00:00:00Z")],
        });
        let resize = condition("PodResizePending", "True", "2026-01-03T00:00:00Z");
        let new = json!({"conditions": [
            {"type": "mine", "status": "True"}, {"type": "Ready", "status": "False"},
            {"type": "Initialized", "status": "True"}, {"type": "DisruptionTarget", "status": "True"},
            resize,
        ]});
        assert_eq!(
            settled(json!(2), new, old),
            json!({"startTime": "2026-01-01T00:00:01Z", "observedGeneration": 3, "conditions": [
                {"type": "mine", "status": "True"},
                condition("Ready", "False", "2026-01-02T00:00:00Z"),
                condition("Initialized", "True", NOW), condition("DisruptionTarget", "True", NOW),
                resize,
            ]})
        );
        assert_eq!(
            settled(json!(2), json!({}), json!(null)),
            json!({"startTime": NOW, "observedGeneration": 2})
        );
        // A static pod has none.
        assert_eq!(settled(json!(null), json!({}), json!(null)), json!({"startTime": NOW}));
    }

    #[test]
    fn form_is_that_of_the_server() {
        let container = |name: &str, message: String| {
            json!({"name": name, "image": "", "imageID": "", "ready": true, "restartCount": 0,
                   "state": {"terminated": {"exitCode": 0, "message": message,
                                            "startedAt": "2026-01-01T00:00:01.9Z"}}})
        };
        let new = json!({"startTime": "2026-01-01T00:00:00.5Z", "containerStatuses": [
            container("b", "\u{e4}".repeat(5000)), container("a", "short".to_owned()),
        ]});
        let settled = settled(json!(null), new, json!(null));
        assert_eq!(settled["startTime"], "2026-01-01T00:00:00Z");
        let all = settled["containerStatuses"].as_array().expect("a list");
        let names: Vec<&Value> = all.iter().map(|status| &status["name"]).collect();
        assert_eq!(names, ["a", "b"]);
        let ended = |at: usize| all[at]["state"]["terminated"].clone();
        assert_eq!(ended(0)["startedAt"], "2026-01-01T00:00:01Z");
        assert_eq!(ended(1)["message"].as_str().map(str::len), Some(MESSAGES / 2));
    }

    #[test]
    fn amounts_are_canonical() {
        let of = |cpu: &str, memory: &str| {
            let list = json!({"cpu": cpu, "memory": memory});
            let resources = json!({"requests": list, "limits": list});
            let container = json!({"name": "a", "image": "i", "imageID": "i", "ready": true,
                                   "restartCount": 0, "resources": resources,
                                   "allocatedResources": list});
            json!({"startTime": NOW, "resources": resources, "allocatedResources": list,
                   "containerStatuses": [container], "initContainerStatuses": [container]})
        };
        let same = of("500m", "many");
        assert_eq!(settled(json!(null), of("0.5", "many"), json!(null)), same);
        let same = of("1", "1Gi");
        assert_eq!(settled(json!(null), of("1000m", "1024Mi"), json!(null)), same);
    }

    #[test]
    fn only_what_the_kubelet_says_is_compared() {
        let with = |condition: Value| json!({"phase": "Running", "conditions": [condition]});
        let ready = |message: &str, time: &str| {
            with(json!({"type": "Ready", "status": "False", "message": message,
                        "lastTransitionTime": time}))
        };
        let (old, new) = ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z");
        for (one, other, expected) in [
            (ready("a", old), ready("a", new), true),
            (ready("a", old), ready("b", old), false),
            (ready("a", old), json!({"phase": "Running"}), false),
            (with(json!({"type": "x", "status": "True"})), json!({"phase": "Running"}), true),
            (json!({"podIPs": [], "reason": ""}), json!({}), true),
            (json!({"podIP": "10.0.0.1"}), json!({}), false),
            (json!({"resourceClaimStatuses": [{"name": "c"}]}), json!({}), true),
            (json!({"observedGeneration": 1}), json!({"observedGeneration": 2}), false),
        ] {
            let is_same = is_same(&status(one.clone()), &status(other.clone()));
            assert_eq!(is_same, expected, "{one} {other}");
        }
    }
}
