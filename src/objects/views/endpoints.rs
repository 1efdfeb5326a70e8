//! Endpoints and EndpointSlices with all their fields, so that they can be written back.

use std::sync::{Arc, LazyLock};

use serde::{Deserialize, Deserializer, Serialize};

use crate::objects::values::intern::{Interned, Pool};
use crate::objects::{Istr, Labels, Meta, Uid, null_as_default, resource};

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
    pub hostname: Option<Arc<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_name: Option<Istr>,
    #[serde(default, deserialize_with = "shared", skip_serializing_if = "Option::is_none")]
    pub target_ref: Option<Interned<TargetRef>>,
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
/// Services. Upstream: `v1.ObjectReference`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TargetRef {
    #[serde(skip_serializing_if = "str_is_empty")]
    pub kind: Istr,
    #[serde(skip_serializing_if = "str_is_empty")]
    pub namespace: Istr,
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "str_is_empty")]
    pub name: Arc<str>,
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Uid::is_empty")]
    pub uid: Uid,
    #[serde(skip_serializing_if = "str_is_empty")]
    pub api_version: Istr,
    #[serde(skip_serializing_if = "str_is_empty")]
    pub resource_version: Istr,
    #[serde(skip_serializing_if = "str_is_empty")]
    pub field_path: Istr,
}

impl TargetRef {
    /// The shared copy.
    pub fn shared(self) -> Interned<TargetRef> {
        static ALL: LazyLock<Pool<TargetRef>> = LazyLock::new(Pool::new);
        ALL.intern(self)
    }

    /// Whether both refer to the same object; the version is ignored.
    pub fn same(a: Option<&TargetRef>, b: Option<&TargetRef>) -> bool {
        match (a, b) {
            (Some(a), Some(b)) => {
                a.kind == b.kind
                    && a.namespace == b.namespace
                    && a.name == b.name
                    && a.uid == b.uid
                    && a.api_version == b.api_version
                    && a.field_path == b.field_path
            }
            (None, None) => true,
            _ => false,
        }
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
    pub addresses: Box<[Istr]>,
    #[serde(deserialize_with = "null_as_default")]
    pub conditions: EndpointConditions,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<Arc<str>>,
    #[serde(deserialize_with = "shared", skip_serializing_if = "Option::is_none")]
    pub target_ref: Option<Interned<TargetRef>>,
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

fn shared<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Interned<TargetRef>>, D::Error> {
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
        assert!(Interned::ptr_eq(a, b));
        assert!(std::ptr::eq(one.ip.as_str(), other.addresses[0].as_str()));
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
