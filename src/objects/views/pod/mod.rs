//! The lean view of a Pod.

mod spec;
mod status;

use std::hash::BuildHasher;
use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU32;
use std::ops::Deref;
use std::sync::{Arc, LazyLock};

use hashbrown::DefaultHashBuilder;
use serde::Deserialize;

pub(super) use self::spec::{WireAffinity, WireResources, WireSpec, WireTerm, WireVolume, kept};
pub(super) use self::status::WireStatus;
use crate::objects::values::intern::Interned;
use crate::objects::views::pod_quota::QuotaSpec;
use crate::objects::views::volume_source::VolumeSource;
use crate::objects::{
    DecodeError, Encoded, Form, Istr, KnownState, Meta, PodQuota, ResourceList, Timestamp,
    Toleration, messages, null_as_default, protobuf, resource,
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
    /// The pod-level requests in the spec, without the overhead, which the usage of containers does not
    /// have either; empty without pod-level requests. Upstream: `PodRequests`, `IsPodLevelRequestsSet`.
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
    encoded: EncodedStatus,
    pub state: Arc<PodState>,
}

/// A hash of a status in protobuf; 0 for other forms. It is no part of the value.
#[derive(Clone, Copy, Debug, Default)]
struct EncodedStatus(u32);

impl PartialEq for EncodedStatus {
    fn eq(&self, _: &EncodedStatus) -> bool {
        true
    }
}

impl EncodedStatus {
    fn of(bytes: &[u8]) -> EncodedStatus {
        static HASHER: LazyLock<DefaultHashBuilder> = LazyLock::new(Default::default);
        let hash = HASHER.hash_one(bytes);
        EncodedStatus((((hash >> 32) ^ hash) as u32).max(1))
    }

    fn is(self, other: EncodedStatus) -> bool {
        self.0 == other.0
    }
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
    /// The time since when the condition Ready is true.
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

// Thousands of pods are created and deleted at a time, and each change costs a sync and a status of
// its owner and of the owner's owner.
resource!(Pod, "", "v1", "pods", namespaced, POD, 50, Pod::decode);

impl Pod {
    /// Decodes a pod, but not its spec if that is the known one. The beginning and the end of a
    /// deletion do not change the status, so it is kept while the hash of the encoded one is the same.
    /// A status that changes during the deletion to one with that hash, which one in four thousand
    /// million does, is not seen.
    fn decode(object: &Encoded, known: KnownState) -> Result<Pod, DecodeError> {
        if object.form != Form::Protobuf {
            return object.decode();
        }
        let [meta, spec, status] = protobuf::parts(&object.bytes)?;
        let meta: Meta = protobuf::from_slice(&messages::METADATA, meta)
            .map_err(|error| error.of("metadata"))?;
        let encoded = EncodedStatus::of(status);
        let known = known(&meta.key());
        let known: Option<&Pod> = known.as_deref().and_then(|known| known.downcast_ref());
        let known = known.filter(|known| known.has_spec_of(&meta));
        if let Some(known) = known
            && meta.is_being_deleted()
            && known.status.encoded.is(encoded)
        {
            let Pod { spec, status, rare, .. } = known;
            let (spec, status, rare) = (spec.clone(), status.clone(), rare.clone());
            return Ok(Pod { meta, spec, status, rare });
        }
        let status: WireStatus = protobuf::from_slice(&messages::POD_STATUS, status)
            .map_err(|error| error.of("status"))?;
        let mut rare = RareFields::default();
        let spec = match known {
            Some(known) => {
                rare.hostname = known.hostname().cloned().unwrap_or_default();
                known.spec.clone()
            }
            None => {
                let spec = protobuf::from_slice(&messages::POD_SPEC, spec);
                PodSpec::of(spec.map_err(|error| error.of("spec"))?, &mut rare)
            }
        };
        let mut pod = Pod::of(meta, spec, status, rare);
        pod.status.encoded = encoded;
        Ok(pod)
    }

    /// Whether the state with the metadata `other` has the spec of this one. The generation counts
    /// the beginning of the deletion, and each change of the spec but that of the node.
    /// Upstream: `updatePodGeneration`, `setPodNodeAndMetadata`, `BeforeDelete`.
    fn has_spec_of(&self, other: &Meta) -> bool {
        let Meta { uid, generation, .. } = &self.meta;
        let begins_to_end = other.is_being_deleted() && !self.meta.is_being_deleted();
        *uid == other.uid
            && *generation > 0
            && *generation + i64::from(begins_to_end) == other.generation
            && !self.spec.node_name.is_empty()
    }

    /// `rare`: with the fields of the spec.
    fn of(meta: Meta, spec: PodSpec, status: WireStatus, mut rare: RareFields) -> Pod {
        let quota = PodQuota::of(&spec.shape.quota, &status);
        let status = PodStatus::of(status, &spec.shape.sidecars, quota, &mut rare);
        Pod { meta, spec, status, rare: (rare != RareFields::default()).then(|| Box::new(rare)) }
    }

    /// The quota usage, from spec and status.
    pub fn quota(&self) -> &PodQuota {
        &self.status.quota
    }

    /// The hostname in the spec.
    pub fn hostname(&self) -> Option<&Istr> {
        self.rare.as_ref().map(|rare| &rare.hostname).filter(|hostname| !hostname.is_empty())
    }

    /// The addresses, in the order of the pod's families; malformed ones are left out.
    pub fn ips(&self) -> impl Iterator<Item = IpAddr> + '_ {
        let others = self.rare.iter().flat_map(|rare| rare.ips.iter().copied());
        let single = self.status.ip.map(|bits| IpAddr::V4(Ipv4Addr::from_bits(bits.get())));
        single.into_iter().chain(others)
    }

    /// The node that the pod runs on, or was created for. Upstream: `GetTargetNodeName`.
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

    /// The highest restart count of any container, and of any sidecar.
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

    /// Ready for at least `min_ready_seconds` at `now`. Upstream: `podutil.IsPodAvailable`.
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

    /// Whether no container runs, and none will start. Upstream: `volumeutil.IsPodTerminated`.
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

    /// Whether the pod is neither finished nor being deleted. Upstream: `controller.IsPodActive`.
    pub fn is_active(&self) -> bool {
        !self.is_terminal() && !self.meta.is_being_deleted()
    }

    /// Whether the pod is being deleted and not finished yet. Upstream:
    /// `controller.IsPodTerminating`.
    pub fn is_terminating(&self) -> bool {
        !self.is_terminal() && self.meta.is_being_deleted()
    }

    /// The ports with a name: those of containers, then those of sidecars.
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
    fn from(wire: WirePod<WireSpec, WireStatus>) -> Pod {
        let mut rare = RareFields::default();
        let spec = PodSpec::of(wire.spec, &mut rare);
        Pod::of(wire.metadata, spec, wire.status, rare)
    }
}

#[cfg(test)]
mod tests {
    use std::any::Any;

    use super::*;
    use crate::objects::{ObjectKey, Uid};

    /// The size after the two counts of an `Arc`. musl's next larger block has 48 bytes more.
    #[cfg(target_pointer_width = "64")]
    #[test]
    fn a_pod_fits_into_a_block_of_188_bytes() {
        assert!(2 * size_of::<usize>() + size_of::<Pod>() <= 188, "{}", size_of::<Pod>());
    }

    #[test]
    fn a_pod_keeps_its_known_spec_until_its_generation_changes() {
        let envelope = include_bytes!("../../../../fixtures/pod.protobuf");
        let object = Encoded::protobuf(protobuf::open(envelope).unwrap());
        let whole: Pod = object.decode().unwrap();
        assert!(whole.meta.generation > 0 && whole.hostname().is_some());
        type Change = fn(&mut Pod);
        let cases: [(&str, Change, bool); 8] = [
            ("as it is", |_| {}, true),
            ("another version", |pod| pod.meta.resource_version -= 1, true),
            ("another pod of that name", |pod| pod.meta.uid = Uid::new("other"), false),
            ("another generation", |pod| pod.meta.generation -= 1, false),
            (
                "not deleted yet",
                |pod| {
                    pod.meta.generation -= 1;
                    pod.meta.deletion_timestamp = None;
                },
                true,
            ),
            ("changed when it was deleted", |pod| pod.meta.deletion_timestamp = None, false),
            ("no node yet", |pod| pod.spec.node_name = Istr::default(), false),
            ("of another type", |_| {}, false),
        ];
        for (name, change, is_kept) in cases {
            // A status that differs, and a spec that shows where it is from.
            let mut known = Pod { status: PodStatus::default(), ..whole.clone() };
            known.spec.shape = Interned::default();
            change(&mut known);
            let known: Arc<dyn Any + Send + Sync> = match name {
                "of another type" => Arc::new(()),
                _ => Arc::new(known),
            };
            let find = |key: &ObjectKey| (*key == whole.meta.key()).then(|| known.clone());
            let mut pod = Pod::decode(&object, &find).unwrap();
            assert_eq!(*pod.spec.shape == PodShape::default(), is_kept, "{name}");
            let shape = whole.spec.shape.clone();
            if is_kept {
                // Sidecars and requests are the shape's.
                pod = Pod { status: whole.status.clone(), rare: whole.rare.clone(), ..pod };
                pod.spec.shape = shape;
            }
            assert_eq!(pod, whole, "{name}");
        }
        assert_eq!(Pod::decode(&object, &|_| None).unwrap(), whole, "nothing is known");
        let known: Arc<dyn Any + Send + Sync> = Arc::new(whole.clone());
        let pod = Pod::decode(&object, &|_| Some(known.clone())).unwrap();
        assert_eq!(pod, whole, "its status is computed with the known spec");
    }

    #[test]
    fn a_pod_that_is_being_deleted_keeps_an_equal_status() {
        let message = |generation: u8, is_deleted: bool, phase: &str| {
            let mut meta = [b"\x0a\x01a\x2a\x01u\x38", &[generation][..]].concat();
            if is_deleted {
                meta.extend(b"\x4a\x06\x08\x80\xf2\xd6\xca\x06");
            }
            let field = |tag: u8, value: &[u8]| [&[tag, value.len() as u8], value].concat();
            let address = |ip: &[u8]| field(0x62, &field(0x0a, ip));
            let status = field(0x0a, phase.as_bytes());
            let status = [status, address(b"10.0.0.1"), address(b"fd00::1")].concat();
            let parts = [field(0x0a, &meta), field(0x12, b"\x52\x01n"), field(0x1a, &status)];
            Encoded::protobuf(parts.concat())
        };
        let decode = |object: &Encoded| Pod::decode(object, &|_| None).unwrap();
        let alive = decode(&message(1, false, "Running"));
        let deleted = decode(&message(2, true, "Running"));
        let in_json = Pod { status: PodStatus::default(), ..deleted.clone() };
        for (name, known, generation, is_deleted, phase, is_kept) in [
            ("begins", &alive, 2, true, "Running", true),
            ("ends", &deleted, 2, true, "Running", true),
            ("has ended", &deleted, 2, true, "Failed", false),
            ("lives", &alive, 1, false, "Running", false),
            ("has another spec", &alive, 3, true, "Running", false),
            ("was in JSON", &in_json, 2, true, "Running", false),
        ] {
            // A state that shows where it is from.
            let mut known = known.clone();
            known.status.state = PodState { evicted: true, ..PodState::default() }.shared();
            let known: Arc<dyn Any + Send + Sync> = Arc::new(known);
            let object = message(generation, is_deleted, phase);
            let pod = Pod::decode(&object, &|_| Some(known.clone())).unwrap();
            assert_eq!(pod.status.evicted, is_kept, "{name}");
            let whole = Pod { status: pod.status.clone(), ..object.decode().unwrap() };
            assert_eq!((pod.ips().count(), &pod), (2, &whole), "{name}");
            assert!(is_kept || pod == decode(&object), "{name}");
        }
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
            let (decoded, whole) = (Pod::decode(&object, &|_| None), object.decode::<Pod>());
            assert!(decoded.is_err() && whole.is_err(), "{why}");
        }
        let object = Encoded::protobuf(&b"\x12\x02\x50\x01"[..]);
        let error = Pod::decode(&object, &|_| None).unwrap_err().to_string();
        assert!(error.contains("spec: nodeName: "), "{error}");
    }

    #[test]
    fn a_pod_in_json_is_decoded_whole() {
        let json = include_bytes!("../../../../fixtures/pod.json");
        let object = Encoded::json(&json[..]);
        let pod = Pod::decode(&object, &|_| panic!("asked for the known state")).unwrap();
        assert_eq!(pod, object.decode().unwrap());
    }
}
