//! Endpoints and EndpointSlices with all their fields, so that they can be written back.

use std::ops::Deref;
use std::slice;
use std::sync::{Arc, LazyLock};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::objects::values::intern::Pool;
use crate::objects::{ArcStr, Interned, Istr, Labels, Meta, Uid, null_as_default, resource};

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
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<EndpointAddress>,
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub not_ready_addresses: Vec<EndpointAddress>,
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<EndpointPort>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointAddress {
    #[serde(default, deserialize_with = "null_as_default")]
    pub ip: Istr,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<Istr>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_name: Option<Istr>,
    #[serde(default, deserialize_with = "shared", skip_serializing_if = "Option::is_none")]
    pub target_ref: Option<Arc<TargetRef>>,
}

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

/// The object behind an endpoint. A pod has one in the Endpoints and one in a slice of each of its
/// Services, which share one copy. Upstream: `v1.ObjectReference`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "WireTarget", into = "WireTarget")]
pub struct TargetRef {
    pub scope: Interned<TargetScope>,
    pub name: ArcStr,
    pub uid: Uid,
}

/// What the targets of a Service have in common.
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
    pub fn to_pod(pod: &Meta) -> Arc<TargetRef> {
        let scope = TargetScope {
            kind: "Pod".into(),
            namespace: pod.namespace.clone(),
            ..TargetScope::default()
        };
        TargetRef { scope: scope.shared(), name: pod.name.clone(), uid: pod.uid.clone() }.shared()
    }

    fn shared(self) -> Arc<TargetRef> {
        static ALL: LazyLock<Pool<Arc<TargetRef>>> = LazyLock::new(Pool::new);
        ALL.intern(self)
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

impl TargetScope {
    fn shared(self) -> Interned<TargetScope> {
        static ALL: LazyLock<Pool<Interned<TargetScope>>> = LazyLock::new(Pool::new);
        ALL.intern(self)
    }

    fn same(&self, other: &TargetScope) -> bool {
        self.kind == other.kind
            && self.namespace == other.namespace
            && self.api_version == other.api_version
            && self.field_path == other.field_path
    }
}

/// As the API writes it.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
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
    #[serde(deserialize_with = "null_as_default")]
    pub endpoints: Vec<Endpoint>,
    #[serde(deserialize_with = "null_as_default")]
    pub ports: Vec<SlicePort>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Endpoint {
    #[serde(deserialize_with = "null_as_default")]
    pub addresses: EndpointAddresses,
    #[serde(deserialize_with = "null_as_default")]
    pub conditions: EndpointConditions,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<Istr>,
    #[serde(deserialize_with = "shared", skip_serializing_if = "Option::is_none")]
    pub target_ref: Option<Arc<TargetRef>>,
    #[serde(skip_serializing_if = "Labels::is_empty")]
    pub deprecated_topology: Labels,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<Istr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<Istr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hints: Option<Arc<EndpointHints>>,
}

impl Endpoint {
    /// Whether the condition `ready` is set and true.
    pub fn is_ready(&self) -> bool {
        self.conditions.ready == Some(true)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EndpointConditions {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serving: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub terminating: Option<bool>,
}

/// The addresses of an endpoint: nearly always one, which takes no allocation.
#[derive(Clone, Debug, PartialEq)]
pub struct EndpointAddresses(List);

#[derive(Clone, Debug, PartialEq)]
enum List {
    One(Istr),
    Other(Box<[Istr]>),
}

impl EndpointAddresses {
    /// In their order from now on.
    pub fn sort(&mut self) {
        if let List::Other(all) = &mut self.0 {
            all.sort();
        }
    }
}

impl Default for EndpointAddresses {
    fn default() -> EndpointAddresses {
        EndpointAddresses(List::Other(Box::default()))
    }
}

impl FromIterator<Istr> for EndpointAddresses {
    fn from_iter<I: IntoIterator<Item = Istr>>(all: I) -> EndpointAddresses {
        let mut all = all.into_iter();
        EndpointAddresses(match (all.next(), all.next()) {
            (Some(one), None) => List::One(one),
            (first, second) => List::Other(first.into_iter().chain(second).chain(all).collect()),
        })
    }
}

impl Deref for EndpointAddresses {
    type Target = [Istr];
    fn deref(&self) -> &[Istr] {
        match &self.0 {
            List::One(one) => slice::from_ref(one),
            List::Other(all) => all,
        }
    }
}

impl Serialize for EndpointAddresses {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(&**self)
    }
}

impl<'de> Deserialize<'de> for EndpointAddresses {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<EndpointAddresses, D::Error> {
        Ok(Vec::<Istr>::deserialize(deserializer)?.into_iter().collect())
    }
}

/// The consumers that should use an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointHints {
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub for_zones: Vec<Hint>,
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub for_nodes: Vec<Hint>,
}

/// A zone or a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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

fn shared<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Arc<TargetRef>>, D::Error> {
    Ok(Option::<TargetRef>::deserialize(deserializer)?.map(TargetRef::shared))
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
    fn both_kinds_share_the_target_and_its_address() {
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
        let (a, b) = (one.target_ref.as_ref().unwrap(), other.target_ref.as_ref().unwrap());
        assert!(Arc::ptr_eq(a, b));
        assert!(std::ptr::eq(one.ip.as_str(), other.addresses[0].as_str()));
        // A vector of them is most of the memory of a large Service.
        assert_eq!((size_of::<EndpointAddress>(), size_of::<Endpoint>()), (32, 72));
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
