//! The wire form of a pod's spec, and the part that the view keeps.

use std::sync::LazyLock;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::{
    ClaimSource, ClaimVolume, ContainerRequests, InlineVolume, NamedPort, PodResourceClaim,
    PodShape, PodSpec, RareFields, Sidecar,
};
use crate::objects::values::intern::{Interned, Pool};
use crate::objects::views::pod_quota::QuotaSpec;
use crate::objects::views::volume_source::with_volume_sources;
use crate::objects::{Istr, ResourceList, Toleration, null_as_default};

static SHAPES: LazyLock<Pool<Interned<PodShape>>> = LazyLock::new(Pool::new);

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(in crate::objects::views) struct WireSpec {
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
    pub(in crate::objects::views) struct WireVolume {
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

/// The part of a volume that a view keeps.
enum KeptVolume {
    Claim(ClaimVolume),
    Inline(InlineVolume),
}

/// Selects the volumes that are claims, and those with an inline source that is attached to the
/// node; in their order.
pub(in crate::objects::views) fn kept_volumes(
    volumes: Option<Vec<WireVolume>>,
) -> (Box<[ClaimVolume]>, Box<[InlineVolume]>) {
    let (mut claims, mut inline) = (Vec::new(), Vec::new());
    for volume in volumes.into_iter().flatten().filter_map(WireVolume::into_kept) {
        match volume {
            KeptVolume::Claim(claim) => claims.push(claim),
            KeptVolume::Inline(volume) => inline.push(volume),
        }
    }
    (claims.into(), inline.into())
}

impl WireVolume {
    /// Returns the claim or inline source of a volume; `None` if it has neither.
    fn into_kept(mut self) -> Option<KeptVolume> {
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
pub(in crate::objects::views) struct WireContainer {
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
    /// Returns whether an init container runs for the life of the pod. Upstream:
    /// `podutil.IsRestartableInitContainer`.
    pub fn is_sidecar(&self) -> bool {
        self.restart_policy.as_ref().is_some_and(|policy| *policy == "Always")
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub(in crate::objects::views) struct WireResources {
    #[serde(deserialize_with = "null_as_default")]
    pub requests: ResourceList,
    #[serde(deserialize_with = "null_as_default")]
    pub limits: ResourceList,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(in crate::objects::views) struct WireAffinity {
    node_affinity: Option<WireNodeAffinity>,
    pub pod_affinity: Option<WireTerms>,
    pub pod_anti_affinity: Option<WireTerms>,
}

impl WireAffinity {
    /// Returns the name of the only node that the affinity allows, which the pod of a DaemonSet
    /// has.
    /// Upstream: `daemon/util.GetTargetNodeName`.
    fn target_node(self) -> Option<Istr> {
        let terms = self.node_affinity?.required?.node_selector_terms?;
        let mut fields = terms.into_iter().flat_map(|term| term.match_fields.unwrap_or_default());
        fields.find_map(|field| {
            if field.key != "metadata.name" || field.operator != "In" {
                return None;
            }
            let [name] = <[Istr; 1]>::try_from(field.values?).ok()?;
            Some(name)
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
pub(in crate::objects::views) struct WireTerms {
    #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution")]
    pub required: Option<Vec<WireTerm>>,
    #[serde(rename = "preferredDuringSchedulingIgnoredDuringExecution")]
    pub preferred: Option<Vec<WireWeightedTerm>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(in crate::objects::views) struct WireTerm {
    pub namespaces: Option<Vec<IgnoredAny>>,
    pub namespace_selector: Option<IgnoredAny>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(in crate::objects::views) struct WireWeightedTerm {
    #[serde(deserialize_with = "null_as_default")]
    pub pod_affinity_term: WireTerm,
}

/// Returns the ports that have a name.
fn named_ports(ports: impl Iterator<Item = WirePort>) -> Box<[NamedPort]> {
    let named = ports.filter(|port| !port.name.is_empty());
    let named = named.map(|WirePort { name, protocol, container_port: number }| {
        // The API server's default.
        let protocol = if protocol.is_empty() { "TCP".into() } else { protocol };
        NamedPort { key: (name, protocol), number }
    });
    named.collect()
}

impl PodSpec {
    /// Converts the wire form of a spec to the view, which has the fields that some controller
    /// reads. Those that few pods have are set in `rare`.
    pub(super) fn from_wire(spec: WireSpec, rare: &mut RareFields) -> PodSpec {
        let requests = |resources: Option<WireResources>| resources.unwrap_or_default().requests;
        let quota = QuotaSpec::from_wire(&spec);
        let (mut ports, mut containers) = (Vec::new(), Vec::new());
        for container in spec.containers.into_iter().flatten() {
            ports.extend(container.ports.into_iter().flatten());
            let requests = requests(container.resources);
            containers.push(ContainerRequests { name: container.name, requests });
        }
        let init = spec.init_containers.into_iter().flatten().filter(WireContainer::is_sidecar);
        let sidecars = init.map(|WireContainer { name, ports, resources, .. }| Sidecar {
            name,
            requests: requests(resources),
            ports: named_ports(ports.into_iter().flatten()),
        });
        let (claims, inline_volumes) = kept_volumes(spec.volumes);
        let shape = PodShape {
            subdomain: spec.subdomain,
            ports: named_ports(ports.into_iter()),
            containers: containers.into(),
            sidecars: sidecars.collect(),
            requests: quota.requests_as_a_whole(),
            tolerations: spec.tolerations.unwrap_or_default(),
            claims,
            inline_volumes,
            resource_claims: spec.resource_claims.unwrap_or_default(),
            pod_group: spec.scheduling_group.unwrap_or_default().pod_group_name,
            quota,
        };
        let affinity = spec.affinity.filter(|_| spec.node_name.is_empty());
        rare.hostname = spec.hostname;
        rare.target_node = affinity.and_then(WireAffinity::target_node).unwrap_or_default();
        PodSpec { node_name: spec.node_name, shape: SHAPES.intern(shape) }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::objects::{Interned, Pod};

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
            let (pod, key) = (pod(), (name.into(), protocol.into()));
            let first = pod.named_ports().find(|port| port.key == key);
            assert_eq!(first.map(|port| port.number), found, "{name}/{protocol}");
        }
        let (a, b) = (pod(), pod());
        assert!(Interned::ptr_eq(&a.spec.shape, &b.spec.shape), "pods that are alike share it");
    }

    #[test]
    fn the_node_of_a_daemon_is_the_one_that_its_affinity_names() {
        let pod = |node: &str, fields: serde_json::Value| {
            let json = json!({"spec": {"nodeName": node, "affinity": {"nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                    {"matchExpressions": []}, {"matchFields": fields},
                ]},
            }}}});
            serde_json::from_value::<Pod>(json).unwrap()
        };
        for (key, operator, values, found) in [
            ("metadata.name", "In", json!(["n1"]), "n1"),
            ("metadata.name", "In", json!(["n1", "n2"]), ""),
            ("metadata.name", "NotIn", json!(["n1"]), ""),
            ("metadata.uid", "In", json!(["n1"]), ""),
            ("metadata.name", "In", json!(null), ""),
        ] {
            let field = json!({"key": key, "operator": operator, "values": values});
            let target = pod("", json!([field])).target_node().map(|node| node.to_string());
            assert_eq!(target.unwrap_or_default(), found, "{field}");
        }
        let field = json!({"key": "metadata.name", "operator": "In", "values": ["n1"]});
        let bound = pod("n2", json!([field]));
        assert_eq!(bound.target_node().map(|node| node.as_str()), Some("n2"));
        assert_eq!(bound.rare, None, "only the node that it runs on counts");
    }
}
