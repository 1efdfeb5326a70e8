//! The Services and Nodes that controllers and providers read. Views of their own: those of the
//! library have the fields that the manager's controllers read, and each field more costs it memory.

use k8s_openapi::api::core::v1::{NodeAddress, ServiceSpec, ServiceStatus};
use kube_controller_manager::objects::{Istr, Meta, Object, Resource, ResourceType, Taint};
use serde::{Deserialize, Deserializer, Serialize};

/// The older form of `spec.loadBalancerSourceRanges`. Upstream:
/// `v1.AnnotationLoadBalancerSourceRangesKey`.
const SOURCE_RANGES: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";

/// A Service, whole but for its managed fields.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Service {
    #[serde(rename = "metadata", deserialize_with = "null_as_default")]
    pub meta: Meta,
    #[serde(deserialize_with = "null_as_default")]
    pub spec: ServiceSpec,
    #[serde(deserialize_with = "null_as_default")]
    pub status: ServiceStatus,
}

impl Resource for Service {
    const RESOURCE: ResourceType = ResourceType::fixed("", "v1", "Service", "services", true);
}

impl Object for Service {
    fn meta(&self) -> &Meta {
        &self.meta
    }
}

impl Service {
    /// Returns whether load balancers are what its type asks for.
    pub fn is_load_balancer(&self) -> bool {
        self.spec.type_.as_deref() == Some("LoadBalancer")
    }

    /// Returns whether only nodes with an endpoint take its traffic. Upstream:
    /// `servicehelper.RequestsOnlyLocalTraffic`.
    pub fn wants_only_local_traffic(&self) -> bool {
        matches!(self.spec.type_.as_deref(), Some("LoadBalancer" | "NodePort"))
            && self.spec.external_traffic_policy.as_deref() == Some("Local")
    }

    /// Returns the port of each node at which a load balancer asks under `/healthz` whether the
    /// node has an endpoint; `None`: it asks nothing. Upstream:
    /// `servicehelper.GetServiceHealthCheckPathPort`.
    pub fn health_check_port(&self) -> Option<i32> {
        let needs = self.is_load_balancer() && self.wants_only_local_traffic();
        self.spec.health_check_node_port.filter(|port| needs && *port != 0)
    }

    /// Returns the CIDRs that may connect to its load balancer; empty: all. The annotation counts
    /// where the field is empty. Upstream: `servicehelper.GetLoadBalancerSourceRanges`.
    pub fn source_ranges(&self) -> Vec<String> {
        let field = self.spec.load_balancer_source_ranges.as_deref().unwrap_or_default();
        if !field.is_empty() {
            return field.to_vec();
        }
        let annotation = self.meta.annotations.get(SOURCE_RANGES).unwrap_or_default();
        let ranges = annotation.split(',').map(str::trim).filter(|range| !range.is_empty());
        ranges.map(str::to_owned).collect()
    }
}

/// A Node: its metadata, and what identifies and reaches the machine.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Node {
    #[serde(rename = "metadata", deserialize_with = "null_as_default")]
    pub meta: Meta,
    #[serde(deserialize_with = "null_as_default")]
    pub spec: NodeSpec,
    #[serde(deserialize_with = "null_as_default")]
    pub status: NodeStatus,
}

/// The part of a Node's spec that clouds are about.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSpec {
    /// Empty until the machine is known to the cloud.
    #[serde(rename = "providerID", deserialize_with = "null_as_default")]
    pub provider_id: Box<str>,
    /// The CIDRs of its pods, one of each family.
    #[serde(rename = "podCIDRs", deserialize_with = "null_as_default")]
    pub pod_cidrs: Box<[Box<str>]>,
    #[serde(deserialize_with = "null_as_default")]
    pub taints: Vec<Taint>,
    #[serde(deserialize_with = "null_as_default")]
    pub unschedulable: bool,
}

/// The part of a Node's status that clouds are about.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeStatus {
    #[serde(deserialize_with = "null_as_default")]
    pub addresses: Box<[NodeAddress]>,
    #[serde(deserialize_with = "null_as_default")]
    pub conditions: Box<[NodeCondition]>,
    /// What the kubelet read of its machine.
    #[serde(deserialize_with = "null_as_default")]
    pub node_info: NodeInfo,
}

impl NodeStatus {
    /// Upstream: `GetNodeCondition`.
    pub fn condition(&self, name: &str) -> Option<&NodeCondition> {
        self.conditions.iter().find(|condition| condition.r#type == *name)
    }
}

/// A condition, without its times.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeCondition {
    pub r#type: Istr,
    pub status: Istr,
    pub reason: Istr,
}

/// The ids of a machine.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NodeInfo {
    #[serde(rename = "machineID", deserialize_with = "null_as_default")]
    pub machine_id: Box<str>,
    #[serde(rename = "systemUUID", deserialize_with = "null_as_default")]
    pub system_uuid: Box<str>,
}

impl Resource for Node {
    const RESOURCE: ResourceType = ResourceType::fixed("", "v1", "Node", "nodes", false);
}

impl Object for Node {
    fn meta(&self) -> &Meta {
        &self.meta
    }
}

impl Node {
    /// Returns the status of a condition; `None`: there is no such condition.
    pub fn condition(&self, name: &str) -> Option<&str> {
        Some(&self.status.condition(name)?.status)
    }

    /// Upstream: `nodeutil.IsNodeReady`.
    pub fn is_ready(&self) -> bool {
        self.condition("Ready") == Some("True")
    }

    pub fn has_taint(&self, key: &str) -> bool {
        self.spec.taints.iter().any(|taint| taint.key == *key)
    }
}

/// Treats an explicit null as an absent field.
fn null_as_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    from: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}
