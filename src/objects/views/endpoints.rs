//! Endpoints and EndpointSlices with all their fields, so that they can be written back.

use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize};

use crate::objects::values::intern::shared;
use crate::objects::{
    AddressList, AddressText, ArcStr, Istr, Labels, Meta, Uid, null_as_default, resource,
};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Endpoints {
    #[serde(rename = "metadata", deserialize_with = "null_as_default")]
    pub meta: Meta,
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub subsets: Vec<EndpointSubset>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointSubset {
    #[serde(deserialize_with = "exact", skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<EndpointAddress>,
    #[serde(deserialize_with = "exact", skip_serializing_if = "Vec::is_empty")]
    pub not_ready_addresses: Vec<EndpointAddress>,
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<EndpointPort>,
}

/// An address of Endpoints: one pointer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "WireAddress", into = "WireAddress")]
pub struct EndpointAddress {
    pub backend: Arc<Backend>,
}

impl EndpointAddress {
    /// The address; empty in an object without one.
    pub fn ip(&self) -> AddressText {
        self.backend.addresses.iter().next().unwrap_or_default()
    }
}

/// As the API writes an address of Endpoints.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireAddress {
    #[serde(default, deserialize_with = "null_as_default")]
    ip: AddressText,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hostname: Option<Istr>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    node_name: Option<Istr>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    target_ref: Option<TargetRef>,
}

impl From<WireAddress> for EndpointAddress {
    fn from(WireAddress { ip, hostname, node_name, target_ref }: WireAddress) -> EndpointAddress {
        let addresses = [ip].into_iter().collect();
        let location = Location { hostname, node_name }.shared();
        EndpointAddress { backend: Backend { addresses, location, target_ref }.shared() }
    }
}

impl From<EndpointAddress> for WireAddress {
    fn from(address: EndpointAddress) -> WireAddress {
        let ip = address.ip();
        let Backend { location, target_ref, .. } = Backend::clone(&address.backend);
        let Location { hostname, node_name } = Location::clone(&location);
        WireAddress { ip, hostname, node_name, target_ref }
    }
}

/// What stands behind an endpoint. A pod's entries in the Endpoints and in the slices of all its
/// Services share one copy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Backend {
    pub addresses: AddressList,
    pub location: Arc<Location>,
    pub target_ref: Option<TargetRef>,
}

shared!(Backend);

/// Where backends run. Those of one node mostly share one copy: few have a hostname.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Location {
    pub hostname: Option<Istr>,
    pub node_name: Option<Istr>,
}

shared!(Location);

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointPort {
    #[serde(skip_serializing_if = "str_is_empty")]
    pub name: Istr,
    #[serde(deserialize_with = "null_as_default")]
    pub port: i32,
    #[serde(skip_serializing_if = "str_is_empty")]
    pub protocol: Istr,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub app_protocol: Option<Istr>,
}

/// The object behind an endpoint. Upstream: `v1.ObjectReference`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "WireTarget", into = "WireTarget")]
pub struct TargetRef {
    pub scope: Arc<TargetScope>,
    pub name: ArcStr,
    pub uid: Uid,
}

/// What the targets of a Service mostly have in common.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct TargetScope {
    pub kind: Istr,
    pub namespace: Istr,
    pub api_version: Istr,
    pub resource_version: Istr,
    pub field_path: Istr,
}

impl TargetRef {
    /// The reference to a pod.
    pub fn to_pod(pod: &Meta) -> TargetRef {
        let scope = TargetScope {
            kind: "Pod".into(),
            namespace: pod.namespace.clone(),
            ..TargetScope::default()
        };
        TargetRef { scope: scope.shared(), name: pod.name.clone(), uid: pod.uid.clone() }
    }

    /// Whether both refer to the same object; the version is ignored.
    pub fn same(a: Option<&TargetRef>, b: Option<&TargetRef>) -> bool {
        match (a, b) {
            (Some(a), Some(b)) => a.name == b.name && a.uid == b.uid && a.scope.same(&b.scope),
            (None, None) => true,
            _ => false,
        }
    }
}

shared!(TargetScope);

impl TargetScope {
    fn same(&self, other: &TargetScope) -> bool {
        self.kind == other.kind
            && self.namespace == other.namespace
            && self.api_version == other.api_version
            && self.field_path == other.field_path
    }
}

/// As the API writes it.
#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireTarget {
    #[serde(skip_serializing_if = "str_is_empty")]
    kind: Istr,
    #[serde(skip_serializing_if = "str_is_empty")]
    namespace: Istr,
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "str_is_empty")]
    name: ArcStr,
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Uid::is_empty")]
    uid: Uid,
    #[serde(skip_serializing_if = "str_is_empty")]
    api_version: Istr,
    #[serde(skip_serializing_if = "str_is_empty")]
    resource_version: Istr,
    #[serde(skip_serializing_if = "str_is_empty")]
    field_path: Istr,
}

impl From<WireTarget> for TargetRef {
    fn from(wire: WireTarget) -> TargetRef {
        let WireTarget { kind, namespace, name, uid, api_version, resource_version, field_path } =
            wire;
        let scope = TargetScope { kind, namespace, api_version, resource_version, field_path };
        TargetRef { scope: scope.shared(), name, uid }
    }
}

impl From<TargetRef> for WireTarget {
    fn from(TargetRef { scope, name, uid }: TargetRef) -> WireTarget {
        let TargetScope { kind, namespace, api_version, resource_version, field_path } =
            TargetScope::clone(&scope);
        WireTarget { kind, namespace, name, uid, api_version, resource_version, field_path }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointSlice {
    #[serde(rename = "metadata", deserialize_with = "null_as_default")]
    pub meta: Meta,
    /// `IPv4`, `IPv6` or `FQDN`
    pub address_type: Istr,
    /// Empty lists are not written, as in protobuf: no manager owns them then.
    #[serde(deserialize_with = "exact", skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<Endpoint>,
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<SlicePort>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "WireEndpoint", into = "WireEndpoint")]
pub struct Endpoint {
    pub backend: Arc<Backend>,
    pub state: Arc<EndpointState>,
}

/// What many endpoints have in common. Those in the same state share one copy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct EndpointState {
    pub conditions: EndpointConditions,
    pub deprecated_topology: Labels,
    pub zone: Option<Istr>,
    pub hints: Option<EndpointHints>,
}

shared!(EndpointState);

/// As the API writes an endpoint of a slice.
#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireEndpoint {
    #[serde(deserialize_with = "null_as_default")]
    addresses: AddressList,
    #[serde(deserialize_with = "null_as_default")]
    conditions: EndpointConditions,
    #[serde(skip_serializing_if = "Option::is_none")]
    hostname: Option<Istr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target_ref: Option<TargetRef>,
    #[serde(skip_serializing_if = "Labels::is_empty")]
    deprecated_topology: Labels,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_name: Option<Istr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    zone: Option<Istr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hints: Option<EndpointHints>,
}

impl From<WireEndpoint> for Endpoint {
    fn from(wire: WireEndpoint) -> Endpoint {
        let WireEndpoint { addresses, hostname, node_name, target_ref, .. } = wire;
        let WireEndpoint { conditions, deprecated_topology, zone, hints, .. } = wire;
        let location = Location { hostname, node_name }.shared();
        Endpoint {
            backend: Backend { addresses, location, target_ref }.shared(),
            state: EndpointState { conditions, deprecated_topology, zone, hints }.shared(),
        }
    }
}

impl From<Endpoint> for WireEndpoint {
    fn from(endpoint: Endpoint) -> WireEndpoint {
        let Backend { addresses, location, target_ref } = Backend::clone(&endpoint.backend);
        let Location { hostname, node_name } = Location::clone(&location);
        let EndpointState { conditions, deprecated_topology, zone, hints } =
            EndpointState::clone(&endpoint.state);
        WireEndpoint {
            addresses,
            conditions,
            hostname,
            target_ref,
            deprecated_topology,
            node_name,
            zone,
            hints,
        }
    }
}

impl Endpoint {
    /// Whether the condition `ready` is set and true.
    pub fn is_ready(&self) -> bool {
        self.state.conditions.ready == Some(true)
    }

    /// Replaces the hints.
    pub fn set_hints(&mut self, hints: Option<EndpointHints>) {
        if self.state.hints == hints {
            return;
        }
        self.state = EndpointState { hints, ..EndpointState::clone(&self.state) }.shared();
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct EndpointConditions {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serving: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub terminating: Option<bool>,
}

/// The consumers that should use an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointHints {
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub for_zones: Vec<Hint>,
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub for_nodes: Vec<Hint>,
}

/// A zone or a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Hint {
    pub name: Istr,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SlicePort {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<Istr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Istr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub app_protocol: Option<Istr>,
}

resource!(Endpoints, "", "v1", "endpoints", namespaced);
resource!(EndpointSlice, "discovery.k8s.io", "v1", "endpointslices", namespaced);

/// A list without room for more: a large Service has thousands of entries.
fn exact<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<Vec<T>, D::Error> {
    let mut all: Vec<T> = null_as_default(from)?;
    let mut exact = Vec::with_capacity(all.len());
    exact.append(&mut all);
    Ok(exact)
}

fn str_is_empty(text: &str) -> bool {
    text.is_empty()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// An object that is read and written is unchanged.
    #[test]
    fn both_kinds_come_back_whole() {
        let target = json!({
            "kind": "Pod", "namespace": "n", "name": "p", "uid": "u", "apiVersion": "v1",
            "resourceVersion": "7", "fieldPath": "x",
        });
        let metadata = json!({
            "name": "s", "generateName": "s-", "namespace": "n", "uid": "u",
            "resourceVersion": "5", "generation": 2, "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"a": "b"}, "annotations": {"c": "d"}, "finalizers": ["f"],
            "ownerReferences": [{
                "apiVersion": "v1", "kind": "Service", "name": "s", "uid": "u",
                "controller": true, "blockOwnerDeletion": true,
            }],
        });
        let endpoints = json!({"metadata": metadata, "subsets": [{
            "addresses": [{"ip": "10.0.0.1", "hostname": "h", "nodeName": "", "targetRef": target}],
            "notReadyAddresses": [{"ip": "10.0.0.2"}],
            "ports": [{"name": "a", "port": 80, "protocol": "TCP", "appProtocol": "http"}],
        }]});
        let whole: Endpoints = serde_json::from_value(endpoints.clone()).unwrap();
        assert_eq!(serde_json::to_value(&whole).unwrap(), endpoints);

        let slice = json!({
            "metadata": metadata, "addressType": "IPv4",
            "ports": [{"name": "", "protocol": "TCP", "port": 80, "appProtocol": "http"}],
            "endpoints": [{
                "addresses": ["10.0.0.1"], "conditions": {"ready": true, "terminating": false},
                "hostname": "h", "targetRef": target, "deprecatedTopology": {"rack": "1"},
                "nodeName": "n1", "zone": "z",
                "hints": {"forZones": [{"name": "z"}], "forNodes": [{"name": "n1"}]},
            }],
        });
        let whole: EndpointSlice = serde_json::from_value(slice.clone()).unwrap();
        assert_eq!(serde_json::to_value(&whole).unwrap(), slice);
        let empty: EndpointSlice =
            serde_json::from_value(json!({"endpoints": null, "ports": null})).unwrap();
        assert_eq!(empty, EndpointSlice::default());
    }

    #[test]
    fn both_kinds_share_what_stands_behind_an_endpoint() {
        let target = json!({"kind": "Pod", "namespace": "n", "name": "p", "uid": "u"});
        let endpoints: Endpoints = serde_json::from_value(json!({"subsets": [{
            "addresses": [{"ip": "10.0.0.1", "targetRef": target}],
        }]}))
        .unwrap();
        let slice: EndpointSlice = serde_json::from_value(json!({
            "endpoints": [{"addresses": ["10.0.0.1"], "targetRef": target}],
        }))
        .unwrap();
        let (one, other) = (&endpoints.subsets[0].addresses[0], &slice.endpoints[0]);
        assert!(Arc::ptr_eq(&one.backend, &other.backend));
        // Their entries are most of the memory of a large Service.
        assert_eq!((size_of::<EndpointAddress>(), size_of::<Endpoint>()), (8, 16));
    }

    #[test]
    fn a_target_is_the_same_at_any_version() {
        let target = |json: Value| -> TargetRef { serde_json::from_value(json).unwrap() };
        let (a, b) = (
            target(json!({"name": "p", "resourceVersion": "1"})),
            target(json!({"name": "p", "resourceVersion": "2"})),
        );
        assert!(TargetRef::same(Some(&a), Some(&b)));
        assert!(!TargetRef::same(Some(&a), Some(&target(json!({"name": "q"})))));
        assert!(!TargetRef::same(Some(&a), None) && TargetRef::same(None, None));
    }
}
