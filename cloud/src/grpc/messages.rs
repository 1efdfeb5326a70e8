//! Objects as messages, and answers as the interface has them.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{self as core, LoadBalancerIngress};
use kube_controller_manager::objects::Labels;

use super::api;
use crate::objects::{Node, Service};
use crate::provider::{InstanceMetadata, Route};

fn pairs(labels: &Labels) -> BTreeMap<String, String> {
    labels.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// Returns a text for a message, in which an absent one is empty.
fn text(value: &Option<String>) -> String {
    value.clone().unwrap_or_default()
}

/// Returns a Service as a message.
pub fn service(of: &Service) -> api::Service {
    let spec = &of.spec;
    let affinity = spec.session_affinity_config.as_ref();
    let affinity = affinity.and_then(|config| config.client_ip.as_ref()?.timeout_seconds);
    let ports = spec.ports.iter().flatten().map(|port| api::ServicePort {
        name: text(&port.name),
        protocol: port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()),
        port: port.port,
        node_port: port.node_port.unwrap_or_default(),
        app_protocol: text(&port.app_protocol),
    });
    api::Service {
        namespace: of.meta.namespace.to_string(),
        name: of.meta.name.to_string(),
        uid: of.meta.uid.to_string(),
        labels: pairs(&of.meta.labels),
        annotations: pairs(&of.meta.annotations),
        ports: ports.collect(),
        external_traffic_policy: text(&spec.external_traffic_policy),
        health_check_node_port: of.health_check_port().unwrap_or_default(),
        session_affinity: text(&spec.session_affinity),
        session_affinity_seconds: affinity.unwrap_or_default(),
        source_ranges: of.source_ranges(),
        ip_families: spec.ip_families.clone().unwrap_or_default(),
        ip_family_policy: text(&spec.ip_family_policy),
        load_balancer_ip: text(&spec.load_balancer_ip),
        without_node_ports: spec.allocate_load_balancer_node_ports == Some(false),
    }
}

fn node_address(of: &core::NodeAddress) -> api::NodeAddress {
    api::NodeAddress { r#type: of.type_.clone(), address: of.address.clone() }
}

fn core_address(of: api::NodeAddress) -> core::NodeAddress {
    core::NodeAddress { type_: of.r#type, address: of.address }
}

/// Returns a Node as a message.
pub fn node(of: &Node) -> api::Node {
    api::Node {
        name: of.meta.name.to_string(),
        uid: of.meta.uid.to_string(),
        provider_id: of.spec.provider_id.to_string(),
        labels: pairs(&of.meta.labels),
        annotations: pairs(&of.meta.annotations),
        addresses: of.status.addresses.iter().map(node_address).collect(),
        pod_cidrs: of.spec.pod_cidrs.iter().map(ToString::to_string).collect(),
        machine_id: of.status.node_info.machine_id.to_string(),
        system_uuid: of.status.node_info.system_uuid.to_string(),
    }
}

/// Returns a route as a message.
pub fn route(of: &Route) -> api::Route {
    let addresses = of.target_addresses.as_ref();
    api::Route {
        name: of.name.clone(),
        target_node: of.target_node.clone(),
        target_addresses: addresses.map(|addresses| api::NodeAddresses {
            addresses: addresses.iter().map(node_address).collect(),
        }),
        destination: of.destination.clone(),
        blackhole: of.blackhole,
    }
}

/// Returns the route of a message.
pub fn route_of(message: api::Route) -> Route {
    let addresses = message.target_addresses;
    Route {
        name: message.name,
        target_node: message.target_node,
        target_addresses: addresses
            .map(|addresses| addresses.addresses.into_iter().map(core_address).collect()),
        destination: message.destination,
        blackhole: message.blackhole,
    }
}

/// Returns the status of a message, with the mode that the API server would set.
///
/// # Errors
/// Names what the API server would not store.
pub fn status_of(message: api::LoadBalancerStatus) -> Result<core::LoadBalancerStatus, String> {
    let ingress = message.ingress.into_iter().map(|ingress| {
        let api::Ingress { ip, hostname, ip_mode } = ingress;
        if ip.is_empty() == hostname.is_empty() {
            return Err("an ingress has not either an ip or a hostname".to_owned());
        }
        if !ip.is_empty() && ip.parse::<IpAddr>().is_err() {
            return Err(format!("the ip {ip:?} of an ingress is not one"));
        }
        let ip_mode = match (ip.is_empty(), ip_mode.as_str()) {
            (true, "") => None,
            (false, "" | "VIP") => Some("VIP".to_owned()),
            (false, "Proxy") => Some(ip_mode),
            _ => return Err(format!("the ip_mode {ip_mode:?} of an ingress is not valid")),
        };
        let some = |text: String| (!text.is_empty()).then_some(text);
        let (ip, hostname) = (some(ip), some(hostname));
        Ok(LoadBalancerIngress { ip, hostname, ip_mode, ports: None })
    });
    Ok(core::LoadBalancerStatus { ingress: Some(ingress.collect::<Result<_, _>>()?) })
}

/// Returns what an answer says of a machine. `name`: the provider's, with which its provider ids
/// begin.
///
/// # Errors
/// When the provider id is not one of this provider.
pub fn metadata_of(
    message: api::GetInstanceResponse,
    name: &str,
) -> Result<InstanceMetadata, String> {
    let id = message.provider_id.strip_prefix(name).and_then(|rest| rest.strip_prefix("://"));
    if id.is_none_or(str::is_empty) {
        return Err(format!("the provider id {:?} is not {name}://ID", message.provider_id));
    }
    Ok(InstanceMetadata {
        provider_id: message.provider_id,
        instance_type: message.instance_type,
        node_addresses: message.addresses.into_iter().map(core_address).collect(),
        zone: message.zone,
        region: message.region,
        additional_labels: message.labels,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn objects_become_messages() {
        let of: Service = serde_json::from_value(json!({
            "metadata": { "namespace": "ns", "name": "web", "uid": "u", "labels": { "a": "b" } },
            "spec": {
                "type": "LoadBalancer",
                "ports": [{ "name": "h", "port": 80, "nodePort": 30080, "appProtocol": "http" }],
                "externalTrafficPolicy": "Local", "healthCheckNodePort": 31000,
                "sessionAffinity": "ClientIP",
                "sessionAffinityConfig": { "clientIP": { "timeoutSeconds": 60 } },
                "loadBalancerSourceRanges": ["10.0.0.0/8"], "ipFamilies": ["IPv4"],
                "ipFamilyPolicy": "SingleStack", "loadBalancerIP": "10.0.0.1",
                "allocateLoadBalancerNodePorts": false,
            },
        }))
        .expect("a Service");
        let message = service(&of);
        assert_eq!((message.namespace.as_str(), message.name.as_str()), ("ns", "web"));
        assert_eq!(message.labels.get("a").map(String::as_str), Some("b"));
        let port = &message.ports[0];
        assert_eq!((port.protocol.as_str(), port.port, port.node_port), ("TCP", 80, 30080));
        assert_eq!((message.session_affinity_seconds, message.health_check_node_port), (60, 31000));
        assert!(message.without_node_ports);
        let of: Node = serde_json::from_value(json!({
            "metadata": { "name": "n" },
            "spec": { "providerID": "a://1", "podCIDRs": ["10.244.0.0/24"] },
            "status": {
                "addresses": [{ "type": "InternalIP", "address": "10.0.0.1" }],
                "nodeInfo": { "machineID": "m", "systemUUID": "s" },
            },
        }))
        .expect("a Node");
        let message = node(&of);
        assert_eq!((message.provider_id.as_str(), message.machine_id.as_str()), ("a://1", "m"));
        assert_eq!(message.addresses[0].address, "10.0.0.1");
        assert_eq!(message.pod_cidrs, ["10.244.0.0/24"]);
    }

    #[test]
    fn clients_are_limited_by_the_field_or_by_the_annotation() {
        let annotation = json!({
            "service.beta.kubernetes.io/load-balancer-source-ranges": " 10.0.0.0/8, fd00::/8",
        });
        for (annotations, field, expected) in [
            (json!({}), json!(null), &[][..]),
            (json!({}), json!(["192.0.2.0/24"]), &["192.0.2.0/24"]),
            (annotation.clone(), json!(null), &["10.0.0.0/8", "fd00::/8"]),
            (annotation, json!(["192.0.2.0/24"]), &["192.0.2.0/24"]),
        ] {
            let of: Service = serde_json::from_value(json!({
                "metadata": { "annotations": annotations },
                "spec": { "type": "LoadBalancer", "loadBalancerSourceRanges": field },
            }))
            .expect("a Service");
            assert_eq!(service(&of).source_ranges, expected);
        }
    }

    #[test]
    fn routes_are_the_same_after_both_ways() {
        let address = |address: &str| core::NodeAddress {
            type_: "InternalIP".to_owned(),
            address: address.to_owned(),
        };
        for target_addresses in [None, Some(vec![]), Some(vec![address("10.0.0.1")])] {
            let of = Route {
                name: "r".to_owned(),
                target_node: "n".to_owned(),
                target_addresses,
                destination: "10.244.0.0/24".to_owned(),
                blackhole: true,
            };
            assert_eq!(route_of(route(&of)), of);
        }
    }

    #[test]
    fn answers_that_the_api_would_refuse_are_faults() {
        let ingress = |ip: &str, hostname: &str, mode: &str| {
            let ingress = api::Ingress {
                ip: ip.to_owned(),
                hostname: hostname.to_owned(),
                ip_mode: mode.to_owned(),
            };
            status_of(api::LoadBalancerStatus { ingress: vec![ingress] })
        };
        for (ip, hostname, mode, fine) in [
            ("192.0.2.1", "", "", true),
            ("2001:db8::1", "", "Proxy", true),
            ("", "lb.example", "", true),
            ("", "", "", false),
            ("192.0.2.1", "lb.example", "", false),
            ("192.0.2.256", "", "", false),
            ("192.0.2.1", "", "vip", false),
            ("", "lb.example", "VIP", false),
        ] {
            assert_eq!(ingress(ip, hostname, mode).is_ok(), fine, "{ip} {hostname} {mode}");
        }
        let metadata = |id: &str| {
            let provider_id = id.to_owned();
            metadata_of(api::GetInstanceResponse { provider_id, ..Default::default() }, "a")
        };
        for (id, fine) in [("a://1", true), ("b://1", false), ("a://", false), ("", false)] {
            assert_eq!(metadata(id).is_ok(), fine, "{id}");
        }
    }
}
