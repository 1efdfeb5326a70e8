//! Endpoints and EndpointSlices with all their fields, so that they can be written back.

use serde::{Deserialize, Deserializer, Serialize};

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

/// An address of Endpoints.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointAddress {
    /// Empty in an object without one.
    #[serde(deserialize_with = "null_as_default")]
    pub ip: AddressText,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<Istr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<Istr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_ref: Option<TargetRef>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointPort {
    #[serde(skip_serializing_if = "str::is_empty")]
    pub name: Istr,
    #[serde(deserialize_with = "null_as_default")]
    pub port: i32,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub protocol: Istr,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub app_protocol: Option<Istr>,
}

/// The object behind an endpoint. Upstream: `v1.ObjectReference`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TargetRef {
    #[serde(skip_serializing_if = "str::is_empty")]
    pub kind: Istr,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub namespace: Istr,
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "str::is_empty")]
    pub name: ArcStr,
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Uid::is_empty")]
    pub uid: Uid,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub api_version: Istr,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub resource_version: Istr,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub field_path: Istr,
}

impl TargetRef {
    /// Makes the reference to a pod.
    pub fn to_pod(pod: &Meta) -> TargetRef {
        TargetRef {
            kind: "Pod".into(),
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            uid: pod.uid.clone(),
            ..TargetRef::default()
        }
    }

    /// Returns all fields but the version.
    fn identity(&self) -> (&Istr, &Istr, &ArcStr, &Uid, &Istr, &Istr) {
        let TargetRef { kind, namespace, name, uid, api_version, field_path, .. } = self;
        (kind, namespace, name, uid, api_version, field_path)
    }

    /// Returns whether both refer to the same object; the version is ignored.
    pub fn same(a: Option<&TargetRef>, b: Option<&TargetRef>) -> bool {
        a.map(TargetRef::identity) == b.map(TargetRef::identity)
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

/// An endpoint of a slice.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Endpoint {
    #[serde(deserialize_with = "null_as_default")]
    pub addresses: AddressList,
    #[serde(deserialize_with = "null_as_default")]
    pub conditions: EndpointConditions,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<Istr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_ref: Option<TargetRef>,
    #[serde(skip_serializing_if = "Labels::is_empty")]
    pub deprecated_topology: Labels,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<Istr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<Istr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hints: Option<EndpointHints>,
}

impl Endpoint {
    /// Whether the condition `ready` is set and true.
    pub fn is_ready(&self) -> bool {
        self.conditions.ready == Some(true)
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

/// Reads a list, and removes its spare capacity: a large Service has thousands of entries.
fn exact<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<Vec<T>, D::Error> {
    let mut all: Vec<T> = null_as_default(from)?;
    let mut exact = Vec::with_capacity(all.len());
    exact.append(&mut all);
    Ok(exact)
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
