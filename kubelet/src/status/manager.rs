//! Writes the statuses of pods that an API server has bound to this node, and deletes those pods
//! once they have ended. Upstream: `pkg/kubelet/status`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use async_channel::Receiver;
use futures_lite::FutureExt;
use k8s_openapi::api::core::v1 as core;
use kube_controller_manager::client::{Client, Delete, Error};
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::objects::{self, ObjectKey, Resource};
use kube_controller_manager::task::StopToken;
use serde_json::{Map, Value};

use super::Report;
use crate::metrics;
use crate::pod::{Pod, PodExt, Uid, is_restartable_init};

/// After a failed write. Upstream: `syncPeriod`.
const RETRY: Duration = Duration::from_secs(10);

/// The conditions that this kubelet computes; all others are other writers'.
/// Upstream: `PodConditionsByKubelet`.
const OWN_CONDITIONS: [&str; 5] =
    ["PodScheduled", "Ready", "Initialized", "ContainersReady", "PodReadyToStartContainers"];

/// The fields that others write, or the API server itself.
const FOREIGN_FIELDS: [&str; 6] = [
    "qosClass",
    "nominatedNodeName",
    "resourceClaimStatuses",
    "extendedResourceClaimStatus",
    "nodeAllocatableResourceClaimStatuses",
    "resize",
];

/// Writes the status of each pod that `changes` names, until stopped. `report`: what is to be known
/// of a pod; `None`: it has no status yet, or is gone.
pub async fn run(
    report: impl Fn(&Uid) -> Option<Report> + Send,
    client: Client,
    clock: SharedClock,
    changes: Receiver<Uid>,
    stop: StopToken,
) {
    let (mut pending, mut written) = (BTreeSet::new(), BTreeMap::new());
    let mut has_failed = false;
    loop {
        let retry = async {
            let retry = if has_failed { RETRY } else { Duration::MAX };
            clock.sleep(retry).await;
            Some(None)
        };
        let change = async { changes.recv().await.ok().map(Some) };
        let stopped = async {
            stop.stopped().await;
            None
        };
        let Some(change) = change.or(retry).or(stopped).await else { return };
        // A retry takes all that wait; a change only what has changed, so that failures wait.
        let mut due: BTreeSet<Uid> = match change {
            None => std::mem::take(&mut pending),
            Some(uid) => BTreeSet::from([uid]),
        };
        while let Ok(uid) = changes.try_recv() {
            due.insert(uid);
        }
        for uid in due {
            pending.remove(&uid);
            let Some(report) = report(&uid) else {
                written.remove(&uid);
                continue;
            };
            let begin = clock.monotonic();
            let outcome = write(&client, &report, &mut written).await;
            let took = clock.monotonic().saturating_sub(begin);
            metrics::STATUS_SYNC.observe(took.as_secs_f64());
            if let Err(error) = outcome {
                let pod = report.pod.display_name();
                // A conflict is routine: another writer was faster.
                let level = if error.is_conflict() { log::Level::Debug } else { log::Level::Error };
                log::log!(level, "pod {pod}: its status is not written: {error}");
                pending.insert(uid);
            }
        }
        has_failed = !pending.is_empty();
    }
}

/// Statuses that were sent, with what the server made of them: it may store some fields in another
/// form, and those are not sent again.
type Written = BTreeMap<Uid, (Value, Value)>;

/// Makes the server's status equal to the kubelet's; deletes the pod if it has ended and has to.
/// Upstream: `manager.syncPod`.
async fn write(client: &Client, report: &Report, written: &mut Written) -> Result<(), Error> {
    let pods = || client.resource(&objects::Pod::RESOURCE);
    let key = ObjectKey::new(report.pod.namespace(), report.pod.name());
    let mut live: Value = match pods().get(&key).await {
        Ok(live) => live,
        Err(error) if error.is_not_found() => return Ok(()),
        Err(error) => return Err(error),
    };
    let uid = live["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
    if uid != *report.pod.uid() {
        // Another pod has the name now.
        return Ok(());
    }
    let status = merged(&live["status"], report);
    let known = written.get(&report.pod.uid());
    let is_known = known.is_some_and(|(sent, stored)| *sent == status && *stored == live["status"]);
    if status != live["status"] && !is_known {
        live["status"] = status.clone();
        // With the version that was read: it fails if another writer was faster.
        live = pods().subresource("status").update(&key, &live).await?;
        written.insert(report.pod.uid(), (status, live["status"].clone()));
    }
    if !may_delete(&live, report.is_finished) {
        return Ok(());
    }
    let delete = Delete::new().grace_period(0).uid(uid.as_str().into());
    match pods().delete(&key, delete).await {
        Err(error) if !error.is_not_found() && !error.is_of_another_uid() => Err(error),
        _ => {
            log::info!("pod {}: deleted from the API server", report.pod.display_name());
            Ok(())
        }
    }
}

/// Whether nothing of the pod is left, and the API server waits for that.
/// Upstream: `canBeDeleted`.
fn may_delete(live: &Value, is_finished: bool) -> bool {
    is_finished
        && live["metadata"]["deletionTimestamp"].is_string()
        && is_terminal(live["status"]["phase"].as_str())
}

fn is_terminal(phase: Option<&str>) -> bool {
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// The server's status with the kubelet's part replaced. Upstream: `mergePodStatus`.
fn merged(live: &Value, report: &Report) -> Value {
    let mut own = report.status.clone();
    keep_ended(&mut own.init_container_statuses, &live["initContainerStatuses"]);
    keep_ended(&mut own.container_statuses, &live["containerStatuses"]);
    if report.is_terminated {
        end(&report.pod, &mut own);
    }
    let mut merged = serde_json::to_value(&own).unwrap_or_default();
    truncate_times(&mut merged);
    if let Some(time) = live.get("startTime") {
        merged["startTime"] = time.clone();
    }
    let none = Map::new();
    let live_fields = live.as_object().unwrap_or(&none);
    for field in FOREIGN_FIELDS {
        match live_fields.get(field) {
            Some(value) => merged[field] = value.clone(),
            None => drop(merged.as_object_mut().and_then(|merged| merged.remove(field))),
        }
    }
    let own_kinds: Vec<String> =
        own.conditions.iter().flatten().map(|condition| condition.type_.clone()).collect();
    let foreign = |condition: &&Value| {
        let is_own =
            |kind| OWN_CONDITIONS.contains(&kind) || own_kinds.iter().any(|own| own == kind);
        !condition["type"].as_str().is_some_and(is_own)
    };
    let kept = live["conditions"].as_array().into_iter().flatten().filter(foreign).cloned();
    let mut conditions: Vec<Value> = kept.collect();
    for condition in merged["conditions"].take().as_array_mut().into_iter().flatten() {
        let kind = &condition["type"];
        let before = live["conditions"].as_array().into_iter().flatten();
        let before = before.into_iter().find(|before| before["type"] == *kind);
        keep_transition(condition, before);
        conditions.push(condition.take());
    }
    merged["conditions"] = Value::Array(conditions);
    let phase = live["phase"].as_str();
    if is_terminal(phase) {
        // There is no way back, and another writer may have said why.
        merged["phase"] = live["phase"].clone();
        let is_explained = merged.get("reason").is_some() || merged.get("message").is_some();
        for field in ["reason", "message"] {
            if let Some(value) = live_fields.get(field).filter(|_| !is_explained) {
                merged[field] = value.clone();
            }
        }
    } else if is_terminal(merged["phase"].as_str()) && !report.is_terminated {
        // Others take the pod's resources once it is terminal.
        for field in ["phase", "reason", "message"] {
            match live_fields.get(field) {
                Some(value) => merged[field] = value.clone(),
                None => drop(merged.as_object_mut().and_then(|merged| merged.remove(field))),
            }
        }
    }
    merged
}

/// A container that has ended and that the runtime does not have any more keeps its last status.
fn keep_ended(own: &mut Option<Vec<core::ContainerStatus>>, live: &Value) {
    let live: Vec<core::ContainerStatus> = serde_json::from_value(live.clone()).unwrap_or_default();
    for status in own.iter_mut().flatten().filter(|status| status.container_id.is_none()) {
        let ended = live.iter().find(|before| {
            let is_ended = before.state.as_ref().is_some_and(|state| state.terminated.is_some());
            before.name == status.name && is_ended
        });
        if let Some(ended) = ended {
            *status = ended.clone();
        }
    }
}

/// A condition keeps the server's time while its status is the same: an agent that has restarted
/// does not know when it changed.
fn keep_transition(condition: &mut Value, before: Option<&Value>) {
    if let Some(before) = before.filter(|before| before["status"] == condition["status"])
        && let Some(time) = before.get("lastTransitionTime")
    {
        condition["lastTransitionTime"] = time.clone();
    }
    // The server stores them as null.
    if let Some(before) = before {
        for field in ["lastProbeTime", "observedGeneration"] {
            if let Some(value) = before.get(field)
                && condition.get(field).is_none()
            {
                condition[field] = value.clone();
            }
        }
    }
}

/// The server stores whole seconds; a finer time would be written again and again.
/// Upstream: `normalizeStatus`.
fn truncate_times(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(truncate_times),
        Value::Object(fields) => {
            for (field, value) in fields {
                match value {
                    Value::String(text) if field.ends_with("At") || field.ends_with("Time") => {
                        if let Some((whole, _)) =
                            text.split_once('.').filter(|_| text.ends_with('Z'))
                        {
                            *text = format!("{whole}Z");
                        }
                    }
                    value => truncate_times(value),
                }
            }
        }
        _ => {}
    }
}

/// Gives the status of a pod that has ended a terminal phase; what could not be found is a failure.
/// Upstream: `TerminatePod`, `getPhase`.
fn end(pod: &Pod, status: &mut core::PodStatus) {
    let unknown = || core::ContainerState {
        terminated: Some(core::ContainerStateTerminated {
            exit_code: 137,
            reason: Some("ContainerStatusUnknown".to_owned()),
            message: Some("The container could not be located when the pod was terminated".into()),
            ..Default::default()
        }),
        ..Default::default()
    };
    let is_open = |status: &core::ContainerStatus| {
        status.state.as_ref().is_none_or(|state| state.terminated.is_none())
    };
    let exit_code = |status: &core::ContainerStatus| {
        Some(status.state.as_ref()?.terminated.as_ref()?.exit_code)
    };
    let has_begun = status.container_statuses.iter().flatten().any(|status| !is_open(status));
    for container in status.container_statuses.iter_mut().flatten() {
        container.ready = false;
        container.started = Some(false);
        if has_begun && is_open(container) {
            container.state = Some(unknown());
        }
    }
    let containers = status.container_statuses.as_deref().unwrap_or_default();
    let is_done = !containers.is_empty() && containers.iter().all(|c| exit_code(c) == Some(0));
    let init = status.init_container_statuses.as_deref().unwrap_or_default();
    let mut init = pod.init_containers().iter().zip(init);
    let is_initialized = init
        .all(|(container, status)| is_restartable_init(container) || exit_code(status) == Some(0));
    if !is_terminal(status.phase.as_deref()) {
        let phase = if is_done && is_initialized { "Succeeded" } else { "Failed" };
        status.phase = Some(phase.to_owned());
    }
    let reason = match status.phase.as_deref() {
        Some("Succeeded") => "PodCompleted",
        _ => "PodFailed",
    };
    for condition in status.conditions.iter_mut().flatten() {
        if ["Ready", "ContainersReady"].contains(&condition.type_.as_str()) {
            condition.status = "False".to_owned();
            condition.reason = Some(reason.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;

    fn report(status: Value, is_terminated: bool) -> Report {
        let pod = json!({"metadata": {"name": "p", "namespace": "n"},
                         "spec": {"containers": [{"name": "a"}]}});
        Report {
            pod: Arc::new(serde_json::from_value(pod).expect("a pod")),
            status: serde_json::from_value(status).expect("a status"),
            is_terminated,
            is_finished: is_terminated,
        }
    }

    fn container(state: &Value) -> Value {
        json!({"name": "a", "image": "", "imageID": "", "ready": true, "restartCount": 0,
               "state": state})
    }

    #[test]
    fn conditions_and_fields_of_others_stay() {
        let live = json!({"phase": "Pending", "qosClass": "BestEffort", "conditions": [
            {"type": "Mine", "status": "True"},
            {"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z",
             "lastProbeTime": null},
        ]});
        let own = json!({"phase": "Running", "qosClass": "x", "startTime": "2026-01-01T00:00:01.5Z",
        "conditions": [
            {"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-02T00:00:00Z"},
            {"type": "Initialized", "status": "True",
             "lastTransitionTime": "2026-01-02T00:00:00.123Z"},
        ]});
        let merged = merged(&live, &report(own, false));
        assert_eq!(
            merged,
            json!({"phase": "Running", "qosClass": "BestEffort",
            "startTime": "2026-01-01T00:00:01Z",
            "conditions": [
                {"type": "Mine", "status": "True"},
                {"type": "Ready", "status": "False", "lastProbeTime": null,
                 "lastTransitionTime": "2026-01-01T00:00:00Z"},
                {"type": "Initialized", "status": "True",
                 "lastTransitionTime": "2026-01-02T00:00:00Z"},
            ]})
        );
    }

    #[test]
    fn phase_is_terminal_once_nothing_runs_and_stays_so() {
        let done = container(&json!({"terminated": {"exitCode": 0}}));
        let failed = container(&json!({"terminated": {"exitCode": 1}}));
        let running = container(&json!({"running": {}}));
        let waiting = container(&json!({"waiting": {}}));
        for (live, own, state, is_terminated, expected) in [
            ("Running", "Running", &running, false, "Running"),
            ("Running", "Succeeded", &done, false, "Running"),
            ("Running", "Succeeded", &done, true, "Succeeded"),
            // Deleted while it ran: its policy would restart it.
            ("Running", "Running", &done, true, "Succeeded"),
            ("Running", "Running", &failed, true, "Failed"),
            ("Pending", "Pending", &waiting, true, "Failed"),
            ("Failed", "Running", &running, false, "Failed"),
        ] {
            let own = json!({"phase": own, "containerStatuses": [state]});
            let live = json!({"phase": live});
            let merged = merged(&live, &report(own, is_terminated));
            assert_eq!(merged["phase"], expected, "{live} {state} {is_terminated}");
            let is_ready = merged["containerStatuses"][0]["ready"] == true;
            assert_eq!(is_ready, !is_terminated);
        }
    }

    #[test]
    fn the_reason_of_an_end_and_its_disruption_stay() {
        let disrupted = |reason: &str| {
            json!([
                {"type": "DisruptionTarget", "status": "True", "reason": reason}
            ])
        };
        let live = json!({"phase": "Failed", "reason": "Evicted", "message": "low on memory",
                          "conditions": disrupted("EvictionByEvictionAPI")});
        let of = |own: Value| {
            let merged = merged(&live, &report(own, true));
            let conditions = merged["conditions"].as_array().cloned().unwrap_or_default();
            let reasons: Vec<Value> = conditions.iter().map(|c| c["reason"].clone()).collect();
            (json!([merged["phase"], merged["reason"], merged["message"]]), json!(reasons))
        };
        let why = json!(["Failed", "Evicted", "low on memory"]);
        let (kept, reasons) = of(json!({"phase": "Running"}));
        assert_eq!((kept, reasons), (why, json!(["EvictionByEvictionAPI"])));
        let own = json!({"phase": "Failed", "reason": "DeadlineExceeded", "message": "late",
                         "conditions": disrupted("TerminationByKubelet")});
        let (own, reasons) = of(own);
        let why = json!(["Failed", "DeadlineExceeded", "late"]);
        assert_eq!((own, reasons), (why, json!(["TerminationByKubelet"])));
    }

    #[test]
    fn container_that_is_gone_keeps_its_last_status() {
        let done = container(&json!({"terminated": {"exitCode": 0}}));
        let gone = container(&json!({"waiting": {}}));
        let live = json!({"phase": "Succeeded", "containerStatuses": [done]});
        let own = json!({"phase": "Pending", "containerStatuses": [gone]});
        let merged = merged(&live, &report(own, true));
        assert_eq!(merged["phase"], "Succeeded");
        assert_eq!(merged["containerStatuses"][0]["state"]["terminated"]["exitCode"], 0);
    }

    #[test]
    fn pod_is_deleted_once_it_is_finished_terminal_and_asked_to_go() {
        let pod = |phase: &str, deletion: Value| json!({"metadata": {"deletionTimestamp": deletion}, "status": {"phase": phase}});
        let time = json!("2026-01-01T00:00:00Z");
        for (live, is_finished, expected) in [
            (pod("Failed", time.clone()), true, true),
            (pod("Failed", time.clone()), false, false),
            (pod("Running", time), true, false),
            (pod("Failed", Value::Null), true, false),
        ] {
            assert_eq!(may_delete(&live, is_finished), expected, "{live}");
        }
    }
}
