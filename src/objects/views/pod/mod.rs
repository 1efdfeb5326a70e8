//! The lean view of a Pod.

mod spec;
mod status;

use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU32;
use std::ops::Deref;
use std::sync::Arc;

use serde::Deserialize;

pub(super) use self::spec::{
    WireAffinity, WireResources, WireSpec, WireTerm, WireVolume, kept_volumes,
};
pub(super) use self::status::WireStatus;
use crate::objects::values::intern::Interned;
use crate::objects::views::pod_quota::QuotaSpec;
use crate::objects::views::volume_source::VolumeSource;
use crate::objects::{
    Istr, Meta, PodQuota, ResourceList, Timestamp, Toleration, null_as_default, resource,
};

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(from = "WirePod<WireSpec, WireStatus>")]
pub struct Pod {
    pub meta: Meta,
    pub spec: PodSpec,
    pub status: PodStatus,
    /// `None` when all of it is empty.
    pub rare: Option<Box<RareFields>>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodSpec {
    pub node_name: Istr,
    pub shape: Interned<PodShape>,
}

/// The fields that pods of one template have in common; pods with equal fields share one copy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PodShape {
    pub subdomain: Istr,
    /// The named ports of all containers, in their order.
    pub ports: Box<[NamedPort]>,
    pub containers: Box<[ContainerRequests]>,
    /// The init containers that run for the life of the pod.
    pub sidecars: Box<[Sidecar]>,
    /// The pod-level requests in the spec, without the overhead, which the usage of containers does
    /// not have either; empty without pod-level requests. Upstream: `PodRequests`,
    /// `IsPodLevelRequestsSet`.
    pub requests: ResourceList,
    pub tolerations: Box<[Toleration]>,
    /// The volumes that are PersistentVolumeClaims, in their order.
    pub claims: Box<[ClaimVolume]>,
    /// The volumes with an inline source that is attached to the node, in their order.
    pub inline_volumes: Box<[InlineVolume]>,
    pub resource_claims: Box<[PodResourceClaim]>,
    /// The PodGroup that the pod is scheduled with; empty without one.
    pub pod_group: Istr,
    /// From which the quota usage is computed, together with the status.
    quota: Interned<QuotaSpec>,
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
    /// The claim is created for the pod and owned by it.
    Ephemeral,
}

impl ClaimVolume {
    /// Returns the name of the claim, if the volume is one of `pod`.
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
    /// The named ports, in their order.
    pub ports: Box<[NamedPort]>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NamedPort {
    /// Name and protocol.
    pub key: (Istr, Istr),
    pub number: i32,
}

/// The status. The fields of [`PodState`] are read as its own.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodStatus {
    /// When the condition Ready last changed.
    pub ready_changed: Option<Timestamp>,
    pub start_time: Option<Timestamp>,
    /// The bits of the address of a pod with a single IPv4 address. Others are in [`RareFields`].
    ip: Option<NonZeroU32>,
    pub state: Arc<PodState>,
}

impl Deref for PodStatus {
    type Target = PodState;
    fn deref(&self) -> &PodState {
        &self.state
    }
}

/// What pods of one template in the same state have in common. They share one copy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PodState {
    pub phase: PodPhase,
    /// Whether the condition Ready is true; `None` without that condition.
    pub is_ready: Option<bool>,
    /// Whether the pod failed because the kubelet evicted it.
    pub evicted: bool,
    /// Whether every container with a status waits or has terminated.
    pub nothing_runs: bool,
    /// All conditions, in their order.
    pub conditions: Box<[PodCondition]>,
    /// The quota usage, from spec and status.
    pub quota: PodQuota,
}

/// Fields that few pods have, and that differ among pods of one template.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RareFields {
    /// The hostname in the spec, which pods of StatefulSets and indexed Jobs have.
    pub hostname: Istr,
    /// The node that a required node affinity names by `metadata.name`, as in pods of DaemonSets,
    /// kept only until the pod has a node; empty without one.
    /// Upstream: `daemon/util.GetTargetNodeName`.
    pub target_node: Istr,
    /// All addresses of any other pod than one with a single IPv4 address.
    ips: Box<[IpAddr]>,
    /// `None` when all of it is empty.
    pub status: Option<Box<RareStatus>>,
}

/// Status fields that few pods have.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RareStatus {
    /// The terminated containers, init containers after the others.
    pub terminated: Box<[Terminated]>,
    /// The end of the last container or sidecar; `None` while one has not terminated or has no end
    /// time. Upstream: `getFinishTimeFromContainers`.
    pub finished_at: Option<Timestamp>,
    /// The restarts of all containers and init containers together.
    pub restarts: i32,
    /// The highest restart count of any container, and of any sidecar.
    /// Upstream: `maxContainerRestarts`.
    pub max_restarts: (i32, i32),
    pub resource_claims: Box<[ResourceClaimStatus]>,
    /// `status.extendedResourceClaimStatus.resourceClaimName`
    pub extended_claim: Option<Istr>,
    /// The time when the condition DisruptionTarget last changed.
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
    /// Returns the time since when the condition Ready is true.
    pub fn ready_since(&self) -> Option<Timestamp> {
        self.ready_changed.filter(|_| self.is_ready == Some(true))
    }

    pub fn condition(&self, name: &str) -> Option<&PodCondition> {
        self.conditions.iter().find(|condition| condition.r#type == *name)
    }

    /// Whether the pod is or was being disrupted.
    pub fn is_disruption_target(&self) -> bool {
        self.condition("DisruptionTarget").is_some_and(PodCondition::is_true)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
pub enum PodPhase {
    Pending,
    Running,
    Succeeded,
    Failed,
    /// An absent or unknown phase.
    #[default]
    #[serde(other)]
    Unknown,
}

resource!(Pod, "", "v1", "pods", namespaced, POD);

impl Pod {
    /// The quota usage, from spec and status.
    pub fn quota(&self) -> &PodQuota {
        &self.status.quota
    }

    /// The hostname in the spec.
    pub fn hostname(&self) -> Option<&Istr> {
        self.rare.as_ref().map(|rare| &rare.hostname).filter(|hostname| !hostname.is_empty())
    }

    /// Returns the addresses, in the order of the pod's families; malformed ones are left out.
    pub fn ips(&self) -> impl Iterator<Item = IpAddr> + '_ {
        let others = self.rare.iter().flat_map(|rare| rare.ips.iter().copied());
        let single = self.status.ip.map(|bits| IpAddr::V4(Ipv4Addr::from_bits(bits.get())));
        single.into_iter().chain(others)
    }

    /// Returns the node that the pod runs on, or was created for. Upstream: `GetTargetNodeName`.
    pub fn target_node(&self) -> Option<&Istr> {
        let made_for = || self.rare.as_ref().map(|rare| &rare.target_node);
        let node_name = &self.spec.node_name;
        let node = if node_name.is_empty() { made_for()? } else { node_name };
        (!node.is_empty()).then_some(node)
    }

    /// Status fields that few pods have; `None`: this one has none of them.
    pub fn rare_status(&self) -> Option<&RareStatus> {
        self.rare.as_ref()?.status.as_deref()
    }

    /// Returns the highest restart count of any container, and that of any sidecar.
    /// Upstream: `maxContainerRestarts`.
    pub fn max_restarts(&self) -> (i32, i32) {
        self.rare_status().map_or((0, 0), |rare| rare.max_restarts)
    }

    /// The restarts of all containers and init containers together.
    pub fn restarts(&self) -> i32 {
        self.rare_status().map_or(0, |rare| rare.restarts)
    }

    /// The statuses of the pod's resource claims.
    pub fn resource_claims(&self) -> &[ResourceClaimStatus] {
        self.rare_status().map_or(&[], |rare| &rare.resource_claims)
    }

    /// The claim that the scheduler made for the pod's extended resources.
    pub fn extended_claim(&self) -> Option<&Istr> {
        self.rare_status()?.extended_claim.as_ref()
    }

    /// Upstream: `podutil.IsPodReady`.
    pub fn is_ready(&self) -> bool {
        self.status.is_ready == Some(true)
    }

    /// Returns whether the pod has been ready for at least `min_ready_seconds` at `now`. Upstream:
    /// `podutil.IsPodAvailable`.
    pub fn is_available(&self, min_ready_seconds: i32, now: Timestamp) -> bool {
        let period = std::time::Duration::from_secs(u64::try_from(min_ready_seconds).unwrap_or(0));
        let since = self.status.ready_since();
        self.is_ready()
            && (min_ready_seconds <= 0 || since.is_some_and(|since| since + period <= now))
    }

    /// Upstream: `podutil.IsPodTerminal`.
    pub fn is_terminal(&self) -> bool {
        matches!(self.status.phase, PodPhase::Failed | PodPhase::Succeeded)
    }

    /// Returns whether no container runs, and none will start. Upstream:
    /// `volumeutil.IsPodTerminated`.
    pub fn is_terminated(&self) -> bool {
        self.is_terminal() || self.meta.is_being_deleted() && self.status.nothing_runs
    }

    /// Returns the claims of the pod's volumes: the name of each, and whether it is made for the
    /// pod.
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

    /// Whether the pod is neither finished nor being deleted. Upstream: `controller.IsPodActive`.
    pub fn is_active(&self) -> bool {
        !self.is_terminal() && !self.meta.is_being_deleted()
    }

    /// Whether the pod is being deleted and not finished yet. Upstream:
    /// `controller.IsPodTerminating`.
    pub fn is_terminating(&self) -> bool {
        !self.is_terminal() && self.meta.is_being_deleted()
    }

    /// Returns the ports with a name: those of containers, then those of sidecars.
    pub fn named_ports(&self) -> impl Iterator<Item = &NamedPort> {
        let PodShape { ports, sidecars, .. } = &*self.spec.shape;
        ports.iter().chain(sidecars.iter().flat_map(|sidecar| &sidecar.ports))
    }
}

/// The wire form of a pod, with all fields from which a view is computed.
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

impl From<WirePod<WireSpec, WireStatus>> for Pod {
    /// Converts the wire form of a pod to the view, and computes the pod's quota usage.
    fn from(wire: WirePod<WireSpec, WireStatus>) -> Pod {
        let mut rare = RareFields::default();
        let spec = PodSpec::from_wire(wire.spec, &mut rare);
        let quota = PodQuota::from_wire(&spec.shape.quota, &wire.status);
        let status = PodStatus::from_wire(wire.status, &spec.shape.sidecars, quota, &mut rare);
        let rare = (rare != RareFields::default()).then(|| Box::new(rare));
        Pod { meta: wire.metadata, spec, status, rare }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::{Encoded, protobuf};

    /// The size after the two counts of an `Arc`. musl's next larger block has 48 bytes more.
    #[cfg(target_pointer_width = "64")]
    #[test]
    fn a_pod_fits_into_a_block_of_188_bytes() {
        assert!(2 * size_of::<usize>() + size_of::<Pod>() <= 188, "{}", size_of::<Pod>());
    }

    #[test]
    fn a_malformed_pod_is_refused() {
        let envelope = include_bytes!("../../../../fixtures/pod.protobuf");
        let message = protobuf::open(envelope).unwrap();
        for (bytes, why) in [
            (&message[..message.len() - 1], "cut off"),
            (b"\x08\x01", "a number in place of the metadata"),
            (b"\x0a\x00\x0a\x00", "the metadata in two pieces"),
            (b"\x12\x02\x50\x01", "a number in place of the node's name"),
        ] {
            let object = Encoded::protobuf(bytes);
            assert!(object.decode::<Pod>().is_err(), "{why}");
        }
        let object = Encoded::protobuf(&b"\x12\x02\x50\x01"[..]);
        let error = object.decode::<Pod>().unwrap_err().to_string();
        assert!(error.contains("spec: nodeName: "), "{error}");
    }
}
