//! The wanted content of a Service's slices. Upstream: `k8s.io/endpointslice/utils.go`.

use super::MANAGER;
use crate::controllers::services::endpoint_writes::HEADLESS;
use crate::controllers::services::service_pods::{OfferedPort, hostname, offered_ports};
use crate::controllers::services::service_slices::{MANAGED_BY, SERVICE_NAME, prefix};
use crate::objects::{
    AddressList, AddressText, Endpoint, EndpointConditions, EndpointSlice, Interned, Istr, Labels,
    Meta, Node, Pod, Service, SlicePort, TargetRef,
};

/// Returns the address types for which a Service gets slices, one for each of its families.
/// Upstream: `getAddressTypesForService`.
pub fn address_types(service: &Service) -> Vec<Istr> {
    let mut types: Vec<Istr> = Vec::new();
    for family in &service.spec.ip_families {
        if matches!(family.as_str(), "IPv4" | "IPv6") && !types.contains(family) {
            types.push(family.clone());
        }
    }
    // The rest is for Services that an old API server gave no families.
    match types.is_empty() {
        false => types,
        true if !service.has_cluster_ip() => vec!["IPv4".into(), "IPv6".into()],
        true if service.spec.cluster_ip.contains(':') => vec!["IPv6".into()],
        true => vec!["IPv4".into()],
    }
}

/// Returns the endpoint of a pod, with its addresses of one family; `None` if it has none.
/// Upstream: `podToEndpoint`.
pub fn endpoint(
    pod: &Pod,
    node: Option<&Node>,
    service: &Service,
    address_type: &str,
) -> Option<Endpoint> {
    let ips = pod.ips().filter(|ip| ip.is_ipv6() == (address_type == "IPv6"));
    let addresses: AddressList = ips.map(AddressText::from).collect();
    addresses.iter().next()?;
    let (serving, terminating) = (pod.is_ready(), pod.meta.is_being_deleted());
    let ready = service.spec.publish_not_ready_addresses || (serving && !terminating);
    let node_name = Some(&pod.spec.node_name).filter(|name| !name.is_empty());
    Some(Endpoint {
        addresses: addresses.sorted().unwrap_or(addresses),
        conditions: EndpointConditions {
            ready: Some(ready),
            serving: Some(serving),
            terminating: Some(terminating),
        },
        hostname: hostname(pod, service).cloned(),
        target_ref: Some(TargetRef::to_pod(&pod.meta)),
        node_name: node_name.cloned(),
        zone: node.and_then(Node::zone).map(Istr::new),
        ..Endpoint::default()
    })
}

/// Returns the Service's ports that a pod offers, as slices have them, in the Service's order.
/// Upstream: `getEndpointPorts`.
pub fn ports(service: &Service, pod: &Pod) -> Vec<SlicePort> {
    let offered = offered_ports(service, pod);
    let ports = offered.into_iter().map(|OfferedPort { port, number, .. }| SlicePort {
        name: Some(port.name.clone()),
        protocol: Some(port.protocol.clone()),
        port: Some(number),
        app_protocol: port.app_protocol.clone(),
    });
    ports.collect()
}

/// What all slices of one Service, one family and one list of ports have in common.
pub struct Shape<'a> {
    pub service: &'a Service,
    pub address_type: &'a Istr,
    labels: Labels,
    /// The number of `labels` that are copied from the Service.
    copied: usize,
}

/// Returns whether `label` is never copied from the Service.
fn is_reserved(label: &str) -> bool {
    matches!(label, SERVICE_NAME | MANAGED_BY | HEADLESS)
}

impl<'a> Shape<'a> {
    /// Computes what all slices of a Service and an address type have in common.
    pub fn new(service: &'a Service, address_type: &'a Istr) -> Shape<'a> {
        let reserved = [(SERVICE_NAME, &*service.meta.name), (MANAGED_BY, MANAGER)];
        let headless = (!service.has_cluster_ip()).then_some((HEADLESS, ""));
        let copied = || service.meta.labels.iter().filter(|(key, _)| !is_reserved(key));
        Shape {
            service,
            address_type,
            labels: copied().chain(reserved).chain(headless).collect(),
            copied: copied().count(),
        }
    }

    /// Returns whether a slice has the labels that are copied from the Service, and no other ones.
    /// The reserved labels do not count. Upstream: `setEndpointSliceLabels`.
    pub fn has_labels(&self, slice: &EndpointSlice) -> bool {
        let copied = || slice.meta.labels.iter().filter(|(key, _)| !is_reserved(key));
        copied().count() == self.copied
            && copied().all(|(key, value)| self.labels.get(key) == Some(value))
    }

    /// Returns a copy of `like` with the Service's labels and these endpoints.
    pub fn with_endpoints(&self, like: &EndpointSlice, endpoints: Vec<Endpoint>) -> EndpointSlice {
        EndpointSlice {
            meta: Meta { labels: self.labels.clone(), ..like.meta.clone() },
            address_type: like.address_type.clone(),
            endpoints,
            ports: like.ports.clone(),
        }
    }

    /// Returns an empty slice with these ports, to be created.
    /// Upstream: `newEndpointSlice`.
    pub fn new_slice(&self, ports: &[SlicePort]) -> EndpointSlice {
        let meta = &self.service.meta;
        EndpointSlice {
            meta: Meta {
                generate_name: prefix(&meta.name).into(),
                namespace: meta.namespace.clone(),
                labels: self.labels.clone(),
                owner_references: Some(Interned::alone([meta.controller_ref::<Service>()])),
                ..Meta::default()
            },
            address_type: self.address_type.clone(),
            endpoints: Vec::new(),
            ports: ports.to_vec(),
        }
    }

    /// Returns whether `slice` can be the placeholder of a Service without endpoints.
    /// Upstream: `placeholderSliceCompare`.
    pub fn is_placeholder(&self, slice: &EndpointSlice) -> bool {
        let (has, wanted) = (&slice.meta.labels, &self.labels);
        // An empty label counts as absent.
        let includes = |a: &Labels, b: &Labels| {
            b.iter().all(|(key, value)| a.get(key).unwrap_or_default() == value)
        };
        slice.endpoints.is_empty()
            && slice.ports.is_empty()
            && slice.address_type == *self.address_type
            && includes(has, wanted)
            && includes(wanted, has)
    }
}

/// Returns whether `slice` is of this very Service, not of an earlier one of its name.
pub fn is_owned(slice: &EndpointSlice, service: &Service) -> bool {
    slice.meta.owners().iter().any(|owner| {
        owner.uid == service.meta.uid && owner.kind == "Service" && owner.api_version == "v1"
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn service(spec: Value) -> Service {
        let json = json!({
            "metadata": {"namespace": "ns", "name": "s", "uid": "u", "labels": {"team": "x"}},
            "spec": spec,
        });
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn without_families_in_the_spec_the_cluster_ip_decides() {
        for (spec, types) in [
            (json!({"ipFamilies": ["IPv6", "IPv4"]}), vec!["IPv6", "IPv4"]),
            (json!({"clusterIP": "10.96.0.1"}), vec!["IPv4"]),
            (json!({"clusterIP": "fd00::1"}), vec!["IPv6"]),
            (json!({"clusterIP": "None"}), vec!["IPv4", "IPv6"]),
            (json!({}), vec!["IPv4", "IPv6"]),
        ] {
            assert_eq!(address_types(&service(spec.clone())), types, "{spec}");
        }
    }

    #[test]
    fn conditions_show_ready_serving_and_terminating() {
        let pod = |ready: bool, going: bool| -> Pod {
            let mut json = json!({
                "metadata": {"namespace": "ns", "name": "p", "uid": "u"},
                "spec": {"nodeName": "n1", "hostname": "h", "subdomain": "s"},
                "status": {
                    "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}],
                    "conditions": [
                        {"type": "Ready", "status": if ready { "True" } else { "False" }},
                    ],
                },
            });
            if going {
                json["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            }
            serde_json::from_value(json).unwrap()
        };
        let (plain, published) =
            (service(json!({})), service(json!({"publishNotReadyAddresses": true})));
        for (ready, going, conditions, when_published) in [
            (true, false, (true, true, false), true),
            (false, false, (false, false, false), true),
            (true, true, (false, true, true), true),
            (false, true, (false, false, true), true),
        ] {
            let pod = pod(ready, going);
            let of = |service: &Service| {
                endpoint(&pod, None, service, "IPv4").map(|found| found.conditions.clone()).unwrap()
            };
            let EndpointConditions { ready, serving, terminating } = of(&plain);
            assert_eq!(
                (ready, serving, terminating),
                (Some(conditions.0), Some(conditions.1), Some(conditions.2))
            );
            assert_eq!(of(&published).ready, Some(when_published));
        }
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": "n1", "labels": {"topology.kubernetes.io/zone": "z1"}},
        }))
        .unwrap();
        assert_eq!(
            serde_json::to_value(endpoint(&pod(true, false), Some(&node), &plain, "IPv6")).unwrap(),
            json!({
                "addresses": ["fd00::1"],
                "conditions": {"ready": true, "serving": true, "terminating": false},
                "hostname": "h", "nodeName": "n1", "zone": "z1",
                "targetRef": {"kind": "Pod", "namespace": "ns", "name": "p", "uid": "u"},
            })
        );
    }

    #[test]
    fn labels_follow_the_service() {
        let service = service(json!({"clusterIP": "None"}));
        let family = "IPv4".into();
        let shape = Shape::new(&service, &family);
        let new = shape.new_slice(&[]);
        assert_eq!(
            serde_json::to_value(&new).unwrap(),
            json!({
                "metadata": {
                    "generateName": "s-", "namespace": "ns",
                    "labels": {
                        "team": "x", "kubernetes.io/service-name": "s",
                        "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
                        "service.kubernetes.io/headless": "",
                    },
                    "ownerReferences": [{
                        "apiVersion": "v1", "kind": "Service", "name": "s", "uid": "u",
                        "controller": true, "blockOwnerDeletion": true,
                    }],
                },
                "addressType": "IPv4",
            })
        );
        assert!(is_owned(&new, &service));
        let labelled = |labels: &[(&str, &str)]| {
            let mut slice = new.clone();
            slice.meta.labels = labels.iter().copied().collect();
            slice
        };
        let manager = (MANAGED_BY, MANAGER);
        for (labels, has, placeholder) in [
            (vec![("team", "x"), (SERVICE_NAME, "s"), manager], true, true),
            (vec![("team", "x"), (SERVICE_NAME, "t"), manager], true, false),
            (vec![("team", "y"), (SERVICE_NAME, "s"), manager], false, false),
            (vec![("team", "x"), (SERVICE_NAME, "s"), manager, ("a", "b")], false, false),
            (vec![], false, false),
        ] {
            let slice = labelled(&labels);
            assert_eq!(
                (shape.has_labels(&slice), shape.is_placeholder(&slice)),
                (has, placeholder),
                "{labels:?}"
            );
        }
    }
}
