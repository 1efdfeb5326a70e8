//! The lean view of a Pod.

use std::net::IpAddr;
use std::sync::LazyLock;

use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::objects::values::intern::{Interned, Pool};
use crate::objects::{Istr, Meta, PodQuota, ResourceList, Timestamp, null_as_default, resource};

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(from = "WirePod")]
pub struct Pod {
    pub meta: Meta,
    pub spec: PodSpec,
    pub status: PodStatus,
    /// Of spec and status.
    pub quota: Interned<PodQuota>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodSpec {
    pub node_name: Istr,
    pub hostname: Istr,
    pub shape: Interned<PodShape>,
}

/// What pods of one template have in common; one copy for all that are alike.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PodShape {
    pub subdomain: Istr,
    /// Those with a name of all containers, in their order.
    pub ports: Box<[NamedPort]>,
    /// The init containers that run as long as the pod does.
    pub sidecars: Box<[Sidecar]>,
    /// The volumes that are claims, in their order.
    pub claims: Box<[ClaimVolume]>,
}

/// A volume that is a PersistentVolumeClaim.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ClaimVolume {
    /// The claim's name.
    Existing(Istr),
    /// The volume's name. The claim is made for the pod and owned by it.
    Ephemeral(Istr),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Sidecar {
    pub name: Istr,
    /// Those with a name, in their order.
    pub ports: Box<[NamedPort]>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NamedPort {
    pub name: Istr,
    pub protocol: Istr,
    pub number: i32,
}

static SHAPES: LazyLock<Pool<PodShape>> = LazyLock::new(Pool::new);

#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodStatus {
    pub phase: PodPhase,
    /// When the Ready condition last changed, and whether it is true now. `None`: no such condition.
    pub ready: Option<ReadyCondition>,
    /// The condition DisruptionTarget is there, and true.
    pub disruption_target: bool,
    /// Failed because the kubelet evicted it.
    pub evicted: bool,
    /// In the order of the pod's families; what is not an address is left out.
    pub ips: Box<[IpAddr]>,
    /// Every container that has a status waits or has terminated.
    pub nothing_runs: bool,
    /// Of any container. Upstream: `maxContainerRestarts`.
    pub max_restarts: i32,
    /// Of any sidecar. Upstream: `maxContainerRestarts`.
    pub max_sidecar_restarts: i32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum PodPhase {
    Pending,
    Running,
    Succeeded,
    Failed,
    /// Absent, or not known to this build.
    #[default]
    #[serde(other)]
    Unknown,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ReadyCondition {
    pub is_true: bool,
    pub last_transition_time: Option<Timestamp>,
}

resource!(Pod, "", "v1", "pods", namespaced, POD);

impl Pod {
    /// Upstream: `podutil.IsPodReady`.
    pub fn is_ready(&self) -> bool {
        self.status.ready.as_ref().is_some_and(|ready| ready.is_true)
    }

    /// Ready for at least `min_ready_seconds` at `now`. Upstream: `podutil.IsPodAvailable`.
    pub fn is_available(&self, min_ready_seconds: i32, now: Timestamp) -> bool {
        let Some(ReadyCondition { is_true: true, last_transition_time }) = &self.status.ready
        else {
            return false;
        };
        let period = std::time::Duration::from_secs(u64::try_from(min_ready_seconds).unwrap_or(0));
        min_ready_seconds <= 0 || last_transition_time.is_some_and(|since| since + period <= now)
    }

    /// Upstream: `podutil.IsPodTerminal`.
    pub fn is_terminal(&self) -> bool {
        matches!(self.status.phase, PodPhase::Failed | PodPhase::Succeeded)
    }

    /// No container runs any more, nor will. Upstream: `volumeutil.IsPodTerminated`.
    pub fn is_terminated(&self) -> bool {
        self.is_terminal() || self.meta.is_being_deleted() && self.status.nothing_runs
    }

    /// The claims of the pod's volumes: the name, and whether the claim is made for the pod.
    pub fn claims(&self) -> impl Iterator<Item = (Istr, bool)> + '_ {
        self.spec.shape.claims.iter().map(|volume| match volume {
            ClaimVolume::Existing(name) => (name.clone(), false),
            ClaimVolume::Ephemeral(volume) => (self.ephemeral_claim(volume), true),
        })
    }

    /// The name of the claim for an ephemeral volume. Upstream: `ephemeral.VolumeClaimName`.
    pub fn ephemeral_claim(&self, volume: &str) -> Istr {
        Istr::new(&format!("{}-{volume}", self.meta.name))
    }

    /// Neither finished nor being deleted. Upstream: `controller.IsPodActive`.
    pub fn is_active(&self) -> bool {
        !self.is_terminal() && !self.meta.is_being_deleted()
    }

    /// Being deleted and not finished yet. Upstream: `controller.IsPodTerminating`.
    pub fn is_terminating(&self) -> bool {
        !self.is_terminal() && self.meta.is_being_deleted()
    }

    /// The number of the first port that containers, or else sidecars, call `name`.
    pub fn port(&self, name: &str, protocol: &str) -> Option<i32> {
        let PodShape { ports, sidecars, .. } = &*self.spec.shape;
        let mut all = ports.iter().chain(sidecars.iter().flat_map(|sidecar| &sidecar.ports));
        Some(all.find(|port| port.name == *name && port.protocol == *protocol)?.number)
    }
}

/// A pod as it comes, with all that the view is computed from.
#[derive(Default, Deserialize)]
#[serde(default)]
struct WirePod {
    #[serde(deserialize_with = "null_as_default")]
    metadata: Meta,
    #[serde(deserialize_with = "null_as_default")]
    spec: WireSpec,
    #[serde(deserialize_with = "null_as_default")]
    status: WireStatus,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WireSpec {
    node_name: Istr,
    hostname: Istr,
    subdomain: Istr,
    volumes: Option<Vec<WireVolume>>,
    pub containers: Option<Vec<WireContainer>>,
    pub init_containers: Option<Vec<WireContainer>>,
    pub resources: Option<WireResources>,
    #[serde(deserialize_with = "null_as_default")]
    pub overhead: ResourceList,
    pub active_deadline_seconds: Option<i64>,
    pub priority_class_name: Istr,
    pub affinity: Option<WireAffinity>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireVolume {
    name: Istr,
    persistent_volume_claim: Option<WireClaimSource>,
    ephemeral: Option<IgnoredAny>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireClaimSource {
    claim_name: Istr,
}

impl WireVolume {
    fn claim(self) -> Option<ClaimVolume> {
        match (self.persistent_volume_claim, self.ephemeral) {
            (Some(source), _) => Some(ClaimVolume::Existing(source.claim_name)),
            (None, Some(_)) => Some(ClaimVolume::Ephemeral(self.name)),
            (None, None) => None,
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WireContainer {
    pub name: Istr,
    restart_policy: Option<Istr>,
    ports: Option<Vec<WirePort>>,
    pub resources: Option<WireResources>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WirePort {
    name: Istr,
    protocol: Istr,
    #[serde(deserialize_with = "null_as_default")]
    container_port: i32,
}

impl WireContainer {
    /// Upstream: `podutil.IsRestartableInitContainer`.
    pub fn runs_on(&self) -> bool {
        self.restart_policy.as_ref().is_some_and(|policy| *policy == "Always")
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct WireResources {
    #[serde(deserialize_with = "null_as_default")]
    pub requests: ResourceList,
    #[serde(deserialize_with = "null_as_default")]
    pub limits: ResourceList,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WireAffinity {
    pub pod_affinity: Option<WireTerms>,
    pub pod_anti_affinity: Option<WireTerms>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct WireTerms {
    #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution")]
    pub required: Option<Vec<WireTerm>>,
    #[serde(rename = "preferredDuringSchedulingIgnoredDuringExecution")]
    pub preferred: Option<Vec<WireWeightedTerm>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WireTerm {
    pub namespaces: Option<Vec<IgnoredAny>>,
    pub namespace_selector: Option<IgnoredAny>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WireWeightedTerm {
    #[serde(deserialize_with = "null_as_default")]
    pub pod_affinity_term: WireTerm,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WireStatus {
    #[serde(deserialize_with = "null_as_default")]
    phase: PodPhase,
    reason: Istr,
    conditions: Option<Vec<WireCondition>>,
    #[serde(rename = "podIPs")]
    pod_ips: Option<Vec<WireAddress>>,
    pub container_statuses: Option<Vec<WireContainerStatus>>,
    pub init_container_statuses: Option<Vec<WireContainerStatus>>,
    ephemeral_container_statuses: Option<Vec<WireContainerStatus>>,
    pub qos_class: Istr,
    pub extended_resource_claim_status: Option<WireExtendedClaim>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WireContainerStatus {
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
    terminated: Option<IgnoredAny>,
}

impl WireContainerStatus {
    fn runs(&self) -> bool {
        let idle = |state: &WireState| state.waiting.is_some() || state.terminated.is_some();
        !self.state.as_ref().is_some_and(idle)
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WireExtendedClaim {
    pub resource_claim_name: Istr,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WireCondition {
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

/// The ports with a name.
fn named(ports: impl Iterator<Item = WirePort>) -> Box<[NamedPort]> {
    let named = ports.filter(|port| !port.name.is_empty());
    let named = named.map(|WirePort { name, protocol, container_port: number }| {
        // The API server's default.
        let protocol = if protocol.is_empty() { "TCP".into() } else { protocol };
        NamedPort { name, protocol, number }
    });
    named.collect()
}

impl From<WirePod> for Pod {
    fn from(WirePod { metadata: meta, spec, status }: WirePod) -> Pod {
        let quota = PodQuota::of(&spec, &status);
        let containers = spec.containers.into_iter().flatten();
        let ports = named(containers.filter_map(|container| container.ports).flatten());
        let init = spec.init_containers.into_iter().flatten().filter(WireContainer::runs_on);
        let sidecars: Box<[Sidecar]> = init
            .map(|WireContainer { name, ports, .. }| Sidecar {
                name,
                ports: named(ports.into_iter().flatten()),
            })
            .collect();
        let ready = status.condition("Ready").map(|condition| ReadyCondition {
            is_true: condition.status == "True",
            last_transition_time: condition.last_transition_time,
        });
        let disruption_target = status
            .condition("DisruptionTarget")
            .is_some_and(|condition| condition.status == "True");
        let all = [
            &status.container_statuses,
            &status.init_container_statuses,
            &status.ephemeral_container_statuses,
        ];
        let nothing_runs = !all.into_iter().flatten().flatten().any(WireContainerStatus::runs);
        let ips = status.pod_ips.into_iter().flatten();
        let containers = status.container_statuses.into_iter().flatten();
        let init = status.init_container_statuses.into_iter().flatten();
        let runs_on = |status: &WireContainerStatus| {
            sidecars.iter().any(|sidecar| sidecar.name == status.name)
        };
        let status = PodStatus {
            phase: status.phase,
            ready,
            disruption_target,
            nothing_runs,
            ips: ips.filter_map(|address| parse_ip(&address.ip)).collect(),
            evicted: status.phase == PodPhase::Failed && status.reason == "Evicted",
            max_restarts: containers.map(|status| status.restart_count).max().unwrap_or(0),
            max_sidecar_restarts: init
                .filter(runs_on)
                .map(|status| status.restart_count)
                .max()
                .unwrap_or(0),
        };
        let claims = spec.volumes.into_iter().flatten().filter_map(WireVolume::claim).collect();
        let shape = PodShape { subdomain: spec.subdomain, ports, sidecars, claims };
        let shape = SHAPES.intern(shape);
        let spec = PodSpec { node_name: spec.node_name, hostname: spec.hostname, shape };
        Pod { meta, spec, status, quota }
    }
}

/// Reads an address as the API does: an IPv4 address may have leading zeros, and one that is mapped
/// into IPv6 is one of IPv4. Upstream: `netutils.ParseIPSloppy`.
pub fn parse_ip(text: &str) -> Option<IpAddr> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(address.to_canonical());
    }
    let mut octets = [0u8; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        let part = parts.next().filter(|part| part.bytes().all(|byte| byte.is_ascii_digit()))?;
        *octet = part.parse().ok()?;
    }
    parts.next().is_none().then(|| octets.into())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn named_ports_are_found_in_containers_and_then_in_sidecars() {
        let pod = || -> Pod {
            let json = json!({"spec": {
                "initContainers": [
                    {"name": "once", "ports": [{"name": "late", "containerPort": 1}]},
                    {"name": "proxy", "restartPolicy": "Always", "ports": [
                        {"name": "web", "containerPort": 2, "protocol": "TCP"},
                        {"name": "mesh", "containerPort": 3, "protocol": "TCP"},
                    ]},
                ],
                "containers": [
                    {"name": "plain"},
                    {"name": "main", "ports": [
                        {"containerPort": 9},
                        {"name": "web", "containerPort": 53, "protocol": "UDP"},
                        {"name": "web", "containerPort": 80, "protocol": "TCP"},
                    ]},
                ],
            }});
            serde_json::from_value(json).unwrap()
        };
        for (name, protocol, found) in [
            ("web", "TCP", Some(80)),
            ("web", "UDP", Some(53)),
            ("mesh", "TCP", Some(3)),
            ("late", "TCP", None),
            ("", "TCP", None),
        ] {
            assert_eq!(pod().port(name, protocol), found, "{name}/{protocol}");
        }
        let (a, b) = (pod(), pod());
        assert!(Interned::ptr_eq(&a.spec.shape, &b.spec.shape), "pods that are alike share it");
    }

    #[test]
    fn addresses_are_read_as_the_api_does() {
        for (text, read) in [
            ("10.0.0.1", Some("10.0.0.1")),
            ("010.000.00.01", Some("10.0.0.1")),
            ("::ffff:1.2.3.4", Some("1.2.3.4")),
            ("FD00:0::1", Some("fd00::1")),
            ("1.2.3", None),
            ("1.2.3.4.5", None),
            ("1.2.3.256", None),
            ("1.+2.3.4", None),
            ("", None),
            ("example.com", None),
        ] {
            assert_eq!(parse_ip(text).map(|ip| ip.to_string()).as_deref(), read, "{text}");
        }
    }
}
