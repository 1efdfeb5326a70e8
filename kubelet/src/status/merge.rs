//! The kubelet's part of a status beside that of other writers. Upstream: `mergePodStatus`,
//! `PatchPodStatus`.

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use super::Report;
use super::conditions::{self, is_own, is_shared};
use super::settle::{self, keep_transition};
use super::terminate::is_terminal;
use crate::strategic_merge::{changed_list, changed_members};

/// Computes a pod's status for the server from the one that it has (`live`) and the kubelet's own.
pub fn merged(live: &core::PodStatus, report: &Report, now: &Time) -> core::PodStatus {
    let own = &*report.status;
    let mut merged = core::PodStatus {
        resource_claim_statuses: live.resource_claim_statuses.clone(),
        extended_resource_claim_status: live.extended_resource_claim_status.clone(),
        node_allocatable_resource_claim_statuses: live
            .node_allocatable_resource_claim_statuses
            .clone(),
        ..own.clone()
    };
    let was_terminal = is_terminal(live.phase.as_deref());
    let ends = !was_terminal && is_terminal(own.phase.as_deref());
    let others = live.conditions.iter().flatten().filter(|condition| !is_own(&condition.type_));
    let mut conditions: Vec<core::PodCondition> = others.cloned().collect();
    for condition in own.conditions.iter().flatten() {
        if is_own(&condition.type_) {
            conditions.push(condition.clone());
        } else if is_shared(&condition.type_) && ends && report.is_terminated {
            let mut condition = condition.clone();
            // It waited for the end of the containers, so that its time is now.
            keep_transition(&mut condition, Some(live), now);
            conditions::replace(&mut conditions, condition);
        }
    }
    merged.conditions = Some(conditions);
    if ends && !report.is_terminated {
        // Others take the pod's resources once it is terminal.
        merged.phase.clone_from(&live.phase);
        merged.reason.clone_from(&live.reason);
        merged.message.clone_from(&live.message);
    }
    if was_terminal {
        // There is no way back, and another writer may have said why.
        merged.phase.clone_from(&live.phase);
        if merged.reason.is_none() && merged.message.is_none() {
            merged.reason.clone_from(&live.reason);
            merged.message.clone_from(&live.message);
        }
    }
    set_unready(&mut merged, now);
    merged
}

/// Sets the conditions of readiness of a pod in a terminal phase to false.
fn set_unready(status: &mut core::PodStatus, now: &Time) {
    let reason = status.phase.as_deref().and_then(conditions::terminal_reason);
    let Some(reason) = reason else { return };
    for condition in status.conditions.iter_mut().flatten() {
        if ["Ready", "ContainersReady"].contains(&condition.type_.as_str())
            && condition.status == "True"
        {
            condition.status = "False".to_owned();
            condition.reason = Some(reason.to_owned());
            condition.message = None;
            condition.last_transition_time = Some(now.clone());
        }
    }
}

/// Returns the patch that makes `new` of the status `old` of the pod of this uid; `None`: they are
/// equal.
pub fn patch(uid: &str, old: &core::PodStatus, new: &core::PodStatus) -> Option<Value> {
    let (old, new) = (settle::value(old), settle::value(new));
    let mut status = changed_members(&old, &new);
    for (list, key) in [("conditions", "type"), ("podIPs", "ip"), ("hostIPs", "ip")] {
        changed_list(&mut status, list, key, &old, &new);
    }
    let is_changed = !status.is_empty();
    is_changed.then(|| json!({"metadata": {"uid": uid}, "status": status}))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kube_controller_manager::objects::Timestamp;

    use super::*;
    use crate::pod::Pod;

    fn status(value: &Value) -> core::PodStatus {
        serde_json::from_value(value.clone()).expect("a status")
    }

    fn now() -> Time {
        Time(Timestamp::from_secs(0).to_jiff())
    }

    fn merge(live: &Value, own: &Value, is_terminated: bool) -> Value {
        let report = Report {
            pod: Arc::new(Pod::default()),
            api: None,
            status: Arc::new(status(own)),
            version: 1,
            is_terminated,
            is_finished: false,
        };
        settle::value(&merged(&status(live), &report, &now()))
    }

    #[test]
    fn conditions_and_fields_of_others_stay() {
        let live = json!({"phase": "Pending", "resourceClaimStatuses": [{"name": "c"}],
            "conditions": [
            {"type": "Mine", "status": "True"},
            {"type": "Ready", "status": "False", "message": "old"},
            {"type": "PodResizePending", "status": "True"},
        ]});
        let own = json!({"phase": "Running", "conditions": [
            {"type": "Foreign", "status": "True"}, {"type": "Ready", "status": "True"},
        ]});
        assert_eq!(
            merge(&live, &own, false),
            json!({"phase": "Running", "resourceClaimStatuses": [{"name": "c"}], "conditions": [
                {"type": "Mine", "status": "True"}, {"type": "Ready", "status": "True"},
            ]})
        );
    }

    #[test]
    fn phase_is_terminal_once_nothing_runs_and_stays_so() {
        for (live, own, is_terminated, expected) in [
            ("Running", "Running", false, "Running"),
            ("Running", "Succeeded", false, "Running"),
            ("Running", "Succeeded", true, "Succeeded"),
            ("Pending", "Failed", true, "Failed"),
            ("Failed", "Running", false, "Failed"),
            ("Failed", "Succeeded", true, "Failed"),
        ] {
            let ready = json!([{"type": "Ready", "status": "True"}]);
            let own = json!({"phase": own, "conditions": ready});
            let merged = merge(&json!({"phase": live}), &own, is_terminated);
            assert_eq!(merged["phase"], expected, "{live} {own} {is_terminated}");
            let is_ready = merged["conditions"][0]["status"] == "True";
            assert_eq!(is_ready, expected == "Running", "{live} {own}");
        }
    }

    #[test]
    fn reason_of_an_end_and_its_disruption_come_with_the_end_and_stay() {
        let disrupted = |reason: &str| json!([{"type": "DisruptionTarget", "status": "True", "reason": reason}]);
        let of = |live: &Value, own: &Value, is_terminated| {
            let merged = merge(live, own, is_terminated);
            let reason = merged["conditions"][0]["reason"].clone();
            json!([merged["phase"], merged["reason"], merged["message"], reason])
        };
        let own = json!({"phase": "Failed", "reason": "Evicted", "message": "low on memory",
                         "conditions": disrupted("TerminationByKubelet")});
        let runs = json!({"phase": "Running", "conditions": disrupted("EvictionByEvictionAPI")});
        assert_eq!(of(&runs, &own, false), json!(["Running", null, null, "EvictionByEvictionAPI"]));
        assert_eq!(
            of(&runs, &own, true),
            json!(["Failed", "Evicted", "low on memory", "TerminationByKubelet"])
        );
        let ended = json!({"phase": "Failed", "reason": "NodeLost", "message": "m",
                           "conditions": disrupted("DeletionByPodGC")});
        assert_eq!(
            of(&ended, &json!({"phase": "Running"}), true),
            json!(["Failed", "NodeLost", "m", "DeletionByPodGC"])
        );
        let late = json!({"phase": "Failed", "reason": "DeadlineExceeded", "message": "late"});
        assert_eq!(
            of(&ended, &late, true),
            json!(["Failed", "DeadlineExceeded", "late", "DeletionByPodGC"])
        );
    }

    #[test]
    fn patches_have_the_uid_and_what_differs() {
        let ip = |ip: &str| json!({"ip": ip});
        let ready = |status: &str| json!({"type": "Ready", "status": status});
        let x = json!({"type": "x", "status": "True"});
        for (old, new, expected) in [
            (
                json!({"phase": "Running", "podIPs": []}),
                json!({"phase": "Running", "reason": ""}),
                None,
            ),
            (
                json!({"phase": "Pending", "message": "m", "conditions": [ready("False"), x]}),
                json!({"phase": "Running", "conditions": [x, ready("True")],
                       "podIPs": [ip("10.0.0.1")]}),
                Some(json!({"phase": "Running", "message": null,
                    "conditions": [ready("True")],
                    "$setElementOrder/conditions": [{"type": "x"}, {"type": "Ready"}],
                    "podIPs": [ip("10.0.0.1")], "$setElementOrder/podIPs": [ip("10.0.0.1")]})),
            ),
            (
                json!({"podIPs": [ip("10.0.0.1")]}),
                json!({"podIPs": [ip("10.0.0.2")]}),
                Some(json!({"podIPs": [ip("10.0.0.2"), {"$patch": "delete", "ip": "10.0.0.1"}],
                            "$setElementOrder/podIPs": [ip("10.0.0.2")]})),
            ),
            (
                json!({"hostIPs": [ip("10.0.0.1")]}),
                json!({"hostIPs": [ip("10.0.0.2")]}),
                Some(json!({"hostIPs": [ip("10.0.0.2"), {"$patch": "delete", "ip": "10.0.0.1"}],
                            "$setElementOrder/hostIPs": [ip("10.0.0.2")]})),
            ),
        ] {
            let expected =
                expected.map(|status| json!({"metadata": {"uid": "u"}, "status": status}));
            assert_eq!(patch("u", &status(&old), &status(&new)), expected, "{old} {new}");
        }
    }
}
