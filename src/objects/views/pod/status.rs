//! The wire form of a pod's status, and the part that the view keeps.

use std::net::IpAddr;
use std::num::NonZeroU32;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::spec::WireResources;
use super::{
    PodCondition, PodPhase, PodState, PodStatus, RareFields, RareStatus, ResourceClaimStatus,
    Sidecar, Terminated,
};
use crate::lookup::Lookup;
use crate::objects::values::intern::shared;
use crate::objects::{Istr, PodQuota, ResourceList, Timestamp, null_as_default, parse_ip};

shared!(PodState);

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(in crate::objects::views) struct WireStatus {
    #[serde(deserialize_with = "null_as_default")]
    phase: PodPhase,
    reason: Istr,
    start_time: Option<Timestamp>,
    conditions: Option<Vec<WireCondition>>,
    #[serde(rename = "podIPs")]
    pod_ips: Option<Vec<WireAddress>>,
    pub container_statuses: Option<Vec<WireContainerStatus>>,
    pub init_container_statuses: Option<Vec<WireContainerStatus>>,
    ephemeral_container_statuses: Option<Vec<WireContainerStatus>>,
    pub qos_class: Istr,
    resource_claim_statuses: Option<Box<[ResourceClaimStatus]>>,
    extended_resource_claim_status: Option<WireExtendedClaim>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(in crate::objects::views) struct WireContainerStatus {
    pub name: Istr,
    state: Option<WireState>,
    #[serde(deserialize_with = "null_as_default")]
    restart_count: i32,
    pub resources: Option<WireResources>,
    #[serde(deserialize_with = "null_as_default")]
    pub allocated_resources: ResourceList,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireState {
    waiting: Option<IgnoredAny>,
    terminated: Option<WireTerminated>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireTerminated {
    #[serde(deserialize_with = "null_as_default")]
    exit_code: i32,
    finished_at: Option<Timestamp>,
}

impl WireContainerStatus {
    /// Returns whether a container may run: its state says neither "waiting" nor "terminated", or
    /// is absent.
    fn runs(&self) -> bool {
        let idle = |state: &WireState| state.waiting.is_some() || state.terminated.is_some();
        !self.state.as_ref().is_some_and(idle)
    }

    fn terminated(&self) -> Option<&WireTerminated> {
        self.state.as_ref()?.terminated.as_ref()
    }
}

/// Returns the latest of `before` and the ends of the containers; `None` if one of them has no end.
fn last_end<'a>(
    before: Option<Timestamp>,
    mut containers: impl Iterator<Item = &'a WireContainerStatus>,
) -> Option<Timestamp> {
    containers
        .try_fold(before, |last, status| Some(last.max(Some(status.terminated()?.finished_at?))))?
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireExtendedClaim {
    resource_claim_name: Istr,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(in crate::objects::views) struct WireCondition {
    r#type: Istr,
    status: Istr,
    pub reason: Istr,
    last_transition_time: Option<Timestamp>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireAddress {
    #[serde(deserialize_with = "null_as_default")]
    ip: Box<str>,
}

impl WireStatus {
    pub fn condition(&self, name: &str) -> Option<&WireCondition> {
        self.conditions.iter().flatten().find(|condition| condition.r#type == *name)
    }
}

impl PodStatus {
    /// Converts the wire form of a status to the view, which has the fields that some controller
    /// reads. Those that few pods have are set in `rare`.
    pub(super) fn from_wire(
        status: WireStatus,
        sidecars: &[Sidecar],
        quota: PodQuota,
        rare: &mut RareFields,
    ) -> PodStatus {
        let ready = status.condition("Ready");
        let is_ready = ready.map(|condition| condition.status == "True");
        let ready_changed = ready.and_then(|condition| condition.last_transition_time);
        let disrupted = status.condition("DisruptionTarget");
        let disruption_target_since =
            disrupted.and_then(|condition| condition.last_transition_time);
        let containers = status.container_statuses.as_deref().unwrap_or_default();
        let init = status.init_container_statuses.as_deref().unwrap_or_default();
        let ephemeral = status.ephemeral_container_statuses.as_deref().unwrap_or_default();
        let mut all = [containers, init, ephemeral].into_iter().flatten();
        let nothing_runs = !all.any(WireContainerStatus::runs);
        let terminated = |statuses: &[WireContainerStatus], is_init| -> Vec<Terminated> {
            let ended = statuses.iter().filter_map(|status| {
                let exit_code = status.terminated()?.exit_code;
                Some(Terminated { name: status.name.clone(), is_init, exit_code })
            });
            ended.collect()
        };
        let sidecars = Lookup::new(sidecars, |sidecar| sidecar.name.as_str());
        let is_sidecar = |status: &&WireContainerStatus| sidecars.contains(&status.name);
        let restarts = |status: &WireContainerStatus| status.restart_count;
        let claim = status.extended_resource_claim_status;
        let rare_status = RareStatus {
            terminated: [terminated(containers, false), terminated(init, true)].concat().into(),
            finished_at: last_end(
                last_end(None, containers.iter()),
                init.iter().filter(|status| is_sidecar(status)),
            ),
            restarts: containers.iter().chain(init).map(restarts).fold(0, i32::saturating_add),
            max_restarts: (
                containers.iter().map(restarts).max().unwrap_or(0),
                init.iter().filter(is_sidecar).map(restarts).max().unwrap_or(0),
            ),
            resource_claims: status.resource_claim_statuses.unwrap_or_default(),
            extended_claim: claim.map(|claim| claim.resource_claim_name),
            disruption_target_since,
        };
        rare.status = (rare_status != RareStatus::default()).then(|| Box::new(rare_status));
        let conditions = status.conditions.into_iter().flatten();
        let conditions: Box<[PodCondition]> = conditions
            .map(|WireCondition { r#type, status, reason, .. }| PodCondition {
                r#type,
                status,
                reason,
            })
            .collect();
        let ips = status.pod_ips.into_iter().flatten();
        let ips: Vec<IpAddr> = ips.filter_map(|address| parse_ip(&address.ip)).collect();
        let ip = match &*ips {
            [IpAddr::V4(ip)] => NonZeroU32::new(ip.to_bits()),
            _ => None,
        };
        rare.ips = if ip.is_none() { ips.into() } else { Box::default() };
        let state = PodState {
            phase: status.phase,
            is_ready,
            evicted: status.phase == PodPhase::Failed && status.reason == "Evicted",
            nothing_runs,
            conditions,
            quota,
        };
        let (start_time, state) = (status.start_time, state.shared());
        PodStatus { ready_changed, start_time, ip, state }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::objects::Pod;

    #[test]
    fn addresses_keep_their_order() {
        for (ips, are_rare) in [
            (vec![], false),
            (vec!["10.0.0.1"], false),
            (vec!["fd00::1"], true),
            (vec!["fd00::1", "10.0.0.1"], true),
            (vec!["10.0.0.1", "10.0.0.2"], true),
        ] {
            let mut pod_ips: Vec<_> = ips.iter().map(|ip| json!({ "ip": ip })).collect();
            pod_ips.insert(0, json!({ "ip": "malformed" }));
            let pod: Pod = serde_json::from_value(json!({"status": {"podIPs": pod_ips}})).unwrap();
            assert_eq!(pod.ips().map(|ip| ip.to_string()).collect::<Vec<_>>(), ips);
            assert_eq!(pod.rare.is_some(), are_rare, "{ips:?}");
        }
    }

    #[test]
    fn a_pod_has_finished_when_all_its_containers_have() {
        let pod = |statuses: serde_json::Value| -> Pod {
            let init = json!([{"name": "i", "state": {"terminated": {"exitCode": 3}}}]);
            let status = json!({"containerStatuses": statuses, "initContainerStatuses": init});
            serde_json::from_value(json!({"status": status})).unwrap()
        };
        let ended = |name: &str, code: i32, second: i32| {
            let at = format!("2026-01-01T00:00:0{second}Z");
            json!({"name": name, "state": {"terminated": {"exitCode": code, "finishedAt": at}}})
        };
        let at = |second| Some(format!("2026-01-01T00:00:0{second}Z").parse().unwrap());
        let running = json!({"name": "c", "state": {"running": {}}});
        let silent = json!({"name": "c", "state": {"terminated": {"exitCode": 0}}});
        for (statuses, finished_at, codes) in [
            (
                json!([ended("a", 1, 4), ended("b", 0, 2)]),
                at(4),
                vec![("a", 1), ("b", 0), ("i", 3)],
            ),
            (json!([ended("a", 1, 4), running]), None, vec![("a", 1), ("i", 3)]),
            (json!([ended("a", 1, 4), silent]), None, vec![("a", 1), ("c", 0), ("i", 3)]),
            (json!([]), None, vec![("i", 3)]),
        ] {
            let pod = pod(statuses.clone());
            let rare = pod.rare_status().unwrap();
            let found: Vec<_> =
                rare.terminated.iter().map(|end| (end.name.as_str(), end.exit_code)).collect();
            assert_eq!((rare.finished_at, found), (finished_at, codes), "{statuses}");
            assert!(rare.terminated.iter().all(|end| end.is_init == (end.name == "i")));
        }
        let plain: Pod = serde_json::from_value(json!({"status": {"phase": "Running"}})).unwrap();
        assert_eq!(plain.rare, None);
    }
}
