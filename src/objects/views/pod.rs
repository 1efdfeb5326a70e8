//! The lean view of a Pod.

use std::net::IpAddr;
use std::sync::LazyLock;

use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::objects::values::intern::{Interned, Pool};
use crate::objects::views::pod_quota;
use crate::objects::views::volume_source::{VolumeSource, with_volume_sources};
use crate::objects::{
    Istr, Meta, PodQuota, ResourceList, Timestamp, Toleration, null_as_default, resource,
};

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(from = "WirePod<WireSpec, WireStatus>")]
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
    /// The node that a required node affinity names by `metadata.name`; empty without one.
    /// Upstream: `daemon/util.GetTargetNodeName`.
    pub target_node: Istr,
    pub shape: Interned<PodShape>,
}

/// What pods of one template have in common; one copy for all that are alike.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PodShape {
    pub subdomain: Istr,
    /// Those with a name of all containers, in their order.
    pub ports: Box<[NamedPort]>,
    pub containers: Box<[ContainerRequests]>,
    /// The init containers that run as long as the pod does.
    pub sidecars: Box<[Sidecar]>,
    /// What the pod requests by its spec alone, with its overhead; empty unless it names requests
    /// as a whole. Upstream: `PodRequests`, `IsPodLevelRequestsSet`.
    pub requests: ResourceList,
    pub tolerations: Box<[Toleration]>,
    /// The volumes that are PersistentVolumeClaims, in their order.
    pub claims: Box<[ClaimVolume]>,
    /// The volumes that name what is attached to the node themselves, in their order.
    pub inline_volumes: Box<[InlineVolume]>,
    pub resource_claims: Box<[PodResourceClaim]>,
    /// The PodGroup that the pod is scheduled with; empty without one.
    pub pod_group: Istr,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ContainerRequests {
    pub name: Istr,
    pub requests: ResourceList,
}

/// A volume that is a PersistentVolumeClaim.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClaimVolume {
    /// The volume's name.
    pub volume: Istr,
    pub claim: ClaimSource,
    pub read_only: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ClaimSource {
    /// The claim of this name.
    Existing(Istr),
    /// The claim is made for the pod and owned by it.
    Ephemeral,
}

impl ClaimVolume {
    /// The name of the claim, if the volume is one of `pod`.
    /// Upstream: `ephemeral.VolumeClaimName`.
    pub fn claim_of(&self, pod: &Meta) -> Istr {
        match &self.claim {
            ClaimSource::Existing(name) => name.clone(),
            ClaimSource::Ephemeral => format!("{}-{}", pod.name, self.volume).into(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct InlineVolume {
    pub name: Istr,
    pub source: VolumeSource,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodResourceClaim {
    pub name: Istr,
    pub resource_claim_name: Option<Istr>,
    pub resource_claim_template_name: Option<Istr>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Sidecar {
    pub name: Istr,
    pub requests: ResourceList,
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
static CONDITIONS: LazyLock<Pool<[PodCondition]>> = LazyLock::new(Pool::new);

#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodStatus {
    pub phase: PodPhase,
    /// When the Ready condition last changed, and whether it is true now. `None`: no such condition.
    pub ready: Option<ReadyCondition>,
    /// All of them, in their order. Pods in one state share one copy.
    pub conditions: Interned<[PodCondition]>,
    pub start_time: Option<Timestamp>,
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
    /// `None` when all of it is empty.
    pub rare: Option<Box<RareStatus>>,
}

/// What few pods have.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RareStatus {
    /// The containers that have terminated, init containers behind the others.
    pub terminated: Box<[Terminated]>,
    /// The end of the last container or sidecar; `None` while one has not terminated or does not say
    /// when. Upstream: `getFinishTimeFromContainers`.
    pub finished_at: Option<Timestamp>,
    /// Of all containers and init containers together.
    pub restarts: i32,
    pub resource_claims: Box<[ResourceClaimStatus]>,
    /// When the condition DisruptionTarget last changed.
    pub disruption_target_since: Option<Timestamp>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terminated {
    pub name: Istr,
    pub is_init: bool,
    pub exit_code: i32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourceClaimStatus {
    pub name: Istr,
    /// `None` when no claim is needed.
    pub resource_claim_name: Option<Istr>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PodCondition {
    pub r#type: Istr,
    pub status: Istr,
    pub reason: Istr,
}

impl PodCondition {
    pub fn is_true(&self) -> bool {
        self.status == "True"
    }
}

impl PodStatus {
    pub fn condition(&self, name: &str) -> Option<&PodCondition> {
        self.conditions.iter().find(|condition| condition.r#type == *name)
    }

    /// The pod is being disrupted, or was.
    pub fn is_disruption_target(&self) -> bool {
        self.condition("DisruptionTarget").is_some_and(PodCondition::is_true)
    }

    /// How often containers and init containers were restarted, all together.
    pub fn restarts(&self) -> i32 {
        self.rare.as_ref().map_or(0, |rare| rare.restarts)
    }

    /// The statuses of the pod's resource claims.
    pub fn resource_claims(&self) -> &[ResourceClaimStatus] {
        self.rare.as_ref().map_or(&[], |rare| &rare.resource_claims)
    }
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
        self.spec.shape.claims.iter().map(|ClaimVolume { volume, claim, .. }| match claim {
            ClaimSource::Existing(name) => (name.clone(), false),
            ClaimSource::Ephemeral => (self.ephemeral_claim(volume), true),
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

/// A pod as it comes, with all that a view is computed from.
#[derive(Default, Deserialize)]
#[serde(
    default,
    bound(deserialize = "S: Default + Deserialize<'de>, T: Default + Deserialize<'de>")
)]
pub(super) struct WirePod<S, T> {
    #[serde(deserialize_with = "null_as_default")]
    pub metadata: Meta,
    #[serde(deserialize_with = "null_as_default")]
    pub spec: S,
    #[serde(deserialize_with = "null_as_default")]
    pub status: T,
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
    tolerations: Option<Box<[Toleration]>>,
    resource_claims: Option<Box<[PodResourceClaim]>>,
    scheduling_group: Option<WireSchedulingGroup>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireSchedulingGroup {
    pod_group_name: Istr,
}

with_volume_sources! {
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    pub(super) struct WireVolume {
        name: Istr,
        persistent_volume_claim: Option<WireClaimSource>,
        ephemeral: Option<IgnoredAny>,
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireClaimSource {
    claim_name: Istr,
    #[serde(deserialize_with = "null_as_default")]
    read_only: bool,
}

/// What a view keeps of a volume.
pub(super) enum KeptVolume {
    Claim(ClaimVolume),
    Inline(InlineVolume),
}

impl WireVolume {
    pub fn kept(mut self) -> Option<KeptVolume> {
        let source = self.source();
        let (volume, mut read_only) = (self.name, false);
        let claim = match (self.persistent_volume_claim, self.ephemeral) {
            (Some(source), _) => {
                read_only = source.read_only;
                ClaimSource::Existing(source.claim_name)
            }
            (None, Some(_)) => ClaimSource::Ephemeral,
            (None, None) => {
                return Some(KeptVolume::Inline(InlineVolume { name: volume, source: source? }));
            }
        };
        Some(KeptVolume::Claim(ClaimVolume { volume, claim, read_only }))
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
    node_affinity: Option<WireNodeAffinity>,
    pub pod_affinity: Option<WireTerms>,
    pub pod_anti_affinity: Option<WireTerms>,
}

impl WireAffinity {
    /// Upstream: `daemon/util.GetTargetNodeName`.
    fn target_node(self) -> Option<Istr> {
        let terms = self.node_affinity?.required?.node_selector_terms?;
        let mut fields = terms.into_iter().flat_map(|term| term.match_fields.unwrap_or_default());
        fields.find_map(|field| {
            let by_name = field.key == "metadata.name" && field.operator == "In";
            <[Istr; 1]>::try_from(field.values.filter(|_| by_name)?).ok().map(|[name]| name)
        })
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireNodeAffinity {
    #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution")]
    required: Option<WireNodeSelector>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireNodeSelector {
    node_selector_terms: Option<Vec<WireNodeTerm>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireNodeTerm {
    match_fields: Option<Vec<WireRequirement>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireRequirement {
    key: Istr,
    operator: Istr,
    values: Option<Vec<Istr>>,
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
    start_time: Option<Timestamp>,
    conditions: Option<Vec<WireCondition>>,
    #[serde(rename = "podIPs")]
    pod_ips: Option<Vec<WireAddress>>,
    pub container_statuses: Option<Vec<WireContainerStatus>>,
    pub init_container_statuses: Option<Vec<WireContainerStatus>>,
    ephemeral_container_statuses: Option<Vec<WireContainerStatus>>,
    pub qos_class: Istr,
    resource_claim_statuses: Option<Box<[ResourceClaimStatus]>>,
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
    fn runs(&self) -> bool {
        let idle = |state: &WireState| state.waiting.is_some() || state.terminated.is_some();
        !self.state.as_ref().is_some_and(idle)
    }

    fn terminated(&self) -> Option<&WireTerminated> {
        self.state.as_ref()?.terminated.as_ref()
    }
}

/// The latest of `before` and the ends of containers, if every one has an end.
fn last_end<'a>(
    before: Option<Timestamp>,
    mut containers: impl Iterator<Item = &'a WireContainerStatus>,
) -> Option<Timestamp> {
    containers
        .try_fold(before, |last, status| Some(last.max(Some(status.terminated()?.finished_at?))))?
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

impl From<WirePod<WireSpec, WireStatus>> for Pod {
    fn from(wire: WirePod<WireSpec, WireStatus>) -> Pod {
        let WirePod { metadata: meta, spec, status } = wire;
        let quota = PodQuota::of(&spec, &status);
        let spec = PodSpec::from(spec);
        let status = PodStatus::of(status, &spec.shape.sidecars);
        Pod { meta, spec, status, quota }
    }
}

impl From<WireSpec> for PodSpec {
    fn from(spec: WireSpec) -> PodSpec {
        let requests = |resources: Option<WireResources>| resources.unwrap_or_default().requests;
        let requests_as_a_whole = pod_quota::requests_as_a_whole(&spec);
        let (mut ports, mut containers) = (Vec::new(), Vec::new());
        for container in spec.containers.into_iter().flatten() {
            ports.extend(container.ports.into_iter().flatten());
            let requests = requests(container.resources);
            containers.push(ContainerRequests { name: container.name, requests });
        }
        let init = spec.init_containers.into_iter().flatten().filter(WireContainer::runs_on);
        let sidecars = init.map(|WireContainer { name, ports, resources, .. }| Sidecar {
            name,
            requests: requests(resources),
            ports: named(ports.into_iter().flatten()),
        });
        let (mut claims, mut inline_volumes) = (Vec::new(), Vec::new());
        for volume in spec.volumes.into_iter().flatten().filter_map(WireVolume::kept) {
            match volume {
                KeptVolume::Claim(claim) => claims.push(claim),
                KeptVolume::Inline(volume) => inline_volumes.push(volume),
            }
        }
        let shape = PodShape {
            subdomain: spec.subdomain,
            ports: named(ports.into_iter()),
            containers: containers.into(),
            sidecars: sidecars.collect(),
            requests: requests_as_a_whole,
            tolerations: spec.tolerations.unwrap_or_default(),
            claims: claims.into(),
            inline_volumes: inline_volumes.into(),
            resource_claims: spec.resource_claims.unwrap_or_default(),
            pod_group: spec.scheduling_group.unwrap_or_default().pod_group_name,
        };
        PodSpec {
            node_name: spec.node_name,
            hostname: spec.hostname,
            target_node: spec.affinity.and_then(WireAffinity::target_node).unwrap_or_default(),
            shape: SHAPES.intern(shape),
        }
    }
}

impl PodStatus {
    fn of(status: WireStatus, sidecars: &[Sidecar]) -> PodStatus {
        let ready = status.condition("Ready").map(|condition| ReadyCondition {
            is_true: condition.status == "True",
            last_transition_time: condition.last_transition_time,
        });
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
        let runs_on =
            |status: &&WireContainerStatus| sidecars.iter().any(|s| s.name == status.name);
        let restarts = |status: &WireContainerStatus| status.restart_count;
        let rare = RareStatus {
            terminated: [terminated(containers, false), terminated(init, true)].concat().into(),
            finished_at: last_end(
                last_end(None, containers.iter()),
                init.iter().filter(|status| runs_on(status)),
            ),
            restarts: containers.iter().chain(init).map(restarts).fold(0, i32::saturating_add),
            resource_claims: status.resource_claim_statuses.unwrap_or_default(),
            disruption_target_since,
        };
        let conditions = status.conditions.into_iter().flatten();
        let conditions: Box<[PodCondition]> = conditions
            .map(|WireCondition { r#type, status, reason, .. }| PodCondition {
                r#type,
                status,
                reason,
            })
            .collect();
        let ips = status.pod_ips.into_iter().flatten();
        PodStatus {
            phase: status.phase,
            ready,
            conditions: CONDITIONS.intern(conditions),
            start_time: status.start_time,
            nothing_runs,
            ips: ips.filter_map(|address| parse_ip(&address.ip)).collect(),
            evicted: status.phase == PodPhase::Failed && status.reason == "Evicted",
            max_restarts: containers.iter().map(restarts).max().unwrap_or(0),
            max_sidecar_restarts: init.iter().filter(runs_on).map(restarts).max().unwrap_or(0),
            rare: (rare != RareStatus::default()).then(|| Box::new(rare)),
        }
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
    fn the_node_of_a_daemon_is_the_one_that_its_affinity_names() {
        let target = |fields: serde_json::Value| {
            let json = json!({"spec": {"affinity": {"nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                    {"matchExpressions": []}, {"matchFields": fields},
                ]},
            }}}});
            serde_json::from_value::<Pod>(json).unwrap().spec.target_node
        };
        for (key, operator, values, found) in [
            ("metadata.name", "In", json!(["n1"]), "n1"),
            ("metadata.name", "In", json!(["n1", "n2"]), ""),
            ("metadata.name", "NotIn", json!(["n1"]), ""),
            ("metadata.uid", "In", json!(["n1"]), ""),
            ("metadata.name", "In", json!(null), ""),
        ] {
            let field = json!({"key": key, "operator": operator, "values": values});
            assert_eq!(target(json!([field])), found, "{field}");
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
            let rare = pod(statuses.clone()).status.rare.unwrap();
            let found: Vec<_> =
                rare.terminated.iter().map(|end| (end.name.as_str(), end.exit_code)).collect();
            assert_eq!((rare.finished_at, found), (finished_at, codes), "{statuses}");
            assert!(rare.terminated.iter().all(|end| end.is_init == (end.name == "i")));
        }
        let plain: Pod = serde_json::from_value(json!({"status": {"phase": "Running"}})).unwrap();
        assert_eq!(plain.status.rare, None);
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
