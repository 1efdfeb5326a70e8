//! The subsets of a Service's Endpoints.

use std::sync::Arc;

use crate::controllers::services::repack_subsets::Packer;
use crate::controllers::services::service_pods::{OfferedPort, belongs, hostname, offered_ports};
use crate::objects::{
    EndpointAddress, EndpointPort, EndpointSubset, Pod, Service, ServicePort, TargetRef,
};

/// The largest number of addresses that is written. Upstream: `maxCapacity`.
const MAX_CAPACITY: usize = 1000;

/// Packs the addresses and ports of the Service's pods into subsets.
pub fn of_service(service: &Service, pods: &[Arc<Pod>]) -> Vec<EndpointSubset> {
    let not_ready_too = service.spec.publish_not_ready_addresses;
    let mut packer = Packer::default();
    for pod in pods.iter().filter(|pod| belongs(pod, not_ready_too)) {
        // In a cluster that is changed to two families a pod may have no address of this one yet.
        let Some(address) = endpoint_address(service, pod) else { continue };
        let ready = not_ready_too || pod.is_ready();
        if service.spec.ports.is_empty() && service.is_headless() {
            packer.add(&address, None, 0, ready);
        }
        for OfferedPort { at, port, number } in offered_ports(service, pod) {
            packer.add(&address, Some(&endpoint_port(port, number)), at, ready);
        }
    }
    packer.finish()
}

/// Returns the address of a pod of the Service's first family; `None` if the pod has none.
/// Upstream: `podToEndpointAddressForService`.
fn endpoint_address(service: &Service, pod: &Pod) -> Option<EndpointAddress> {
    let is_ipv6 = match service.spec.ip_families.first() {
        Some(family) => *family == "IPv6",
        None if service.has_cluster_ip() => service.spec.cluster_ip.contains(':'),
        None => pod.ips().next().is_some_and(|ip| ip.is_ipv6()),
    };
    let ip = pod.ips().find(|ip| ip.is_ipv6() == is_ipv6)?;
    Some(EndpointAddress {
        ip: ip.into(),
        hostname: hostname(pod, service).cloned(),
        node_name: Some(pod.spec.node_name.clone()),
        target_ref: Some(TargetRef::to_pod(&pod.meta)),
    })
}

/// Converts a Service's port to that of a subset, with the port's `number` in the pod.
fn endpoint_port(port: &ServicePort, number: i32) -> EndpointPort {
    let ServicePort { name, protocol, app_protocol, .. } = port.clone();
    EndpointPort { name, port: number, protocol, app_protocol }
}

/// Returns whether two lists of subsets are equal, except for the versions of the objects behind
/// the addresses.
pub fn are_equal(a: &[EndpointSubset], b: &[EndpointSubset]) -> bool {
    let address = |(a, b): (&EndpointAddress, &EndpointAddress)| {
        a.ip == b.ip
            && a.hostname.as_deref().unwrap_or_default()
                == b.hostname.as_deref().unwrap_or_default()
            && a.node_name == b.node_name
            && TargetRef::same(a.target_ref.as_ref(), b.target_ref.as_ref())
    };
    let addresses = |a: &[EndpointAddress], b: &[EndpointAddress]| {
        a.len() == b.len() && a.iter().zip(b).all(address)
    };
    a.len() == b.len()
        && a.iter().zip(b).all(|(a, b)| {
            a.ports == b.ports
                && addresses(&a.addresses, &b.addresses)
                && addresses(&a.not_ready_addresses, &b.not_ready_addresses)
        })
}

fn count_addresses(subsets: &[EndpointSubset]) -> usize {
    subsets.iter().map(|subset| subset.addresses.len() + subset.not_ready_addresses.len()).sum()
}

/// Truncates the subsets to [`MAX_CAPACITY`] addresses, ready ones first, and an equal part of each
/// subset. Returns whether there were more. Upstream: `truncateEndpoints`.
pub fn truncate(subsets: &mut [EndpointSubset]) -> bool {
    if count_addresses(subsets) <= MAX_CAPACITY {
        return false;
    }
    let ready: usize = subsets.iter().map(|subset| subset.addresses.len()).sum();
    let only_ready = ready > MAX_CAPACITY;
    let (room, total) = match only_ready {
        true => (MAX_CAPACITY, ready),
        false => (MAX_CAPACITY - ready, count_addresses(subsets) - ready),
    };
    let mut room_left = room;
    for subset in subsets {
        let addresses = if only_ready {
            subset.not_ready_addresses.clear();
            &mut subset.addresses
        } else {
            &mut subset.not_ready_addresses
        };
        // Rounded up, so the last subset may get less than its part; in floating point, as
        // upstream.
        let part = (addresses.len() as f64 / total as f64 * room as f64).ceil() as usize;
        addresses.truncate(part.min(room_left));
        room_left -= addresses.len();
    }
    true
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn service(spec: Value) -> Service {
        let mut json = json!({
            "metadata": {"namespace": "ns", "name": "s"},
            "spec": {"clusterIP": "10.96.0.1", "ipFamilies": ["IPv4"]},
        });
        for (key, value) in spec.as_object().unwrap() {
            json["spec"][key] = value.clone();
        }
        serde_json::from_value(json).unwrap()
    }

    fn pod(name: &str, ips: &[&str], ready: bool) -> Value {
        json!({
            "metadata": {"namespace": "ns", "name": name, "uid": name},
            "spec": {
                "nodeName": "n1", "hostname": name, "subdomain": "s",
                "containers": [{"ports": [{"name": "web", "containerPort": 8080}]}],
            },
            "status": {
                "phase": "Running",
                "podIPs": ips.iter().map(|ip| json!({"ip": ip})).collect::<Vec<_>>(),
                "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}],
            },
        })
    }

    /// `ready:port,port` or `-not ready:port` of each subset, sorted.
    fn summary(service: &Service, pods: &[Value]) -> Vec<String> {
        let pods: Vec<Arc<Pod>> =
            pods.iter().map(|pod| Arc::new(serde_json::from_value(pod.clone()).unwrap())).collect();
        let ips = |of: &[EndpointAddress]| -> String {
            of.iter().map(|address| address.ip.to_string()).collect::<Vec<_>>().join(",")
        };
        let mut shown: Vec<String> = of_service(service, &pods)
            .iter()
            .map(|subset| {
                let mut ports: Vec<String> = subset
                    .ports
                    .iter()
                    .map(|port| format!("{}={}", port.name, port.port))
                    .collect();
                ports.sort();
                let (ready, not) = (ips(&subset.addresses), ips(&subset.not_ready_addresses));
                format!("{ready} -{not} {}", ports.join(","))
            })
            .collect();
        shown.sort();
        shown
    }

    #[test]
    fn subsets_have_the_addresses_and_ports_of_pods() {
        let number = json!({"name": "n", "port": 80, "protocol": "TCP", "targetPort": 80});
        let named = json!({"name": "w", "port": 81, "protocol": "TCP", "targetPort": "web"});
        let unknown = json!({"name": "u", "port": 82, "protocol": "TCP", "targetPort": "nope"});
        let (a, b) = (pod("a", &["10.0.0.1", "fd00::1"], true), pod("b", &["10.0.0.2"], false));
        let mut going = a.clone();
        going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        let mut over = a.clone();
        over["status"]["phase"] = json!("Succeeded");
        let both = [a.clone(), b.clone()];
        for (what, spec, pods, wanted) in [
            (
                "ready and not",
                json!({"ports": [number]}),
                &both[..],
                vec!["10.0.0.1 -10.0.0.2 n=80"],
            ),
            (
                "a port that no container names is left out",
                json!({"ports": [number, named, unknown]}),
                &both[..],
                vec!["10.0.0.1 -10.0.0.2 n=80,w=8080"],
            ),
            (
                "not ready is published",
                json!({"ports": [number], "publishNotReadyAddresses": true}),
                &both[..],
                vec!["10.0.0.1,10.0.0.2 - n=80"],
            ),
            (
                "the other family",
                json!({"ports": [number], "ipFamilies": ["IPv6"]}),
                &both[..],
                vec!["fd00::1 - n=80"],
            ),
            (
                "no family given: that of the address",
                json!({"ports": [number], "ipFamilies": [], "clusterIP": "fd00::9"}),
                &both[..],
                vec!["fd00::1 - n=80"],
            ),
            (
                "headless without ports",
                json!({"clusterIP": "None"}),
                &both[..],
                vec!["10.0.0.1 -10.0.0.2 "],
            ),
            ("no ports", json!({}), &both[..], vec![]),
            ("going", json!({"ports": [number]}), &[going.clone()], vec![]),
            (
                "going, published",
                json!({"ports": [number], "publishNotReadyAddresses": true}),
                &[going],
                vec!["10.0.0.1 - n=80"],
            ),
            ("over", json!({"ports": [number]}), &[over], vec![]),
            ("no address yet", json!({"ports": [number]}), &[pod("c", &[], true)], vec![]),
        ] {
            assert_eq!(summary(&service(spec), pods), wanted, "{what}");
        }
    }

    #[test]
    fn an_address_names_its_pod() {
        let pod: Pod = serde_json::from_value(pod("a", &["10.0.0.1"], true)).unwrap();
        assert_eq!(
            serde_json::to_value(endpoint_address(&service(json!({})), &pod)).unwrap(),
            json!({
                "ip": "10.0.0.1", "hostname": "a", "nodeName": "n1",
                "targetRef": {"kind": "Pod", "namespace": "ns", "name": "a", "uid": "a"},
            })
        );
    }

    #[test]
    fn too_many_addresses_are_cut_in_proportion() {
        let addresses = |count: usize| {
            (0..count)
                .map(|n| -> EndpointAddress {
                    serde_json::from_value(json!({"ip": n.to_string()})).unwrap()
                })
                .collect::<Vec<_>>()
        };
        for (given, left) in [
            (vec![(600, 400)], None),
            (vec![(1001, 0)], Some(vec![(1000, 0)])),
            (vec![(500, 600)], Some(vec![(500, 500)])),
            (vec![(1200, 300), (300, 10)], Some(vec![(800, 0), (200, 0)])),
            (vec![(400, 301), (400, 100)], Some(vec![(400, 151), (400, 49)])),
            (vec![(1, 333), (0, 333), (0, 335)], Some(vec![(1, 333), (0, 333), (0, 333)])),
        ] {
            let mut subsets: Vec<EndpointSubset> = given
                .iter()
                .map(|&(ready, not)| EndpointSubset {
                    addresses: addresses(ready),
                    not_ready_addresses: addresses(not),
                    ports: Vec::new(),
                })
                .collect();
            assert_eq!(truncate(&mut subsets), left.is_some(), "{given:?}");
            let counts: Vec<(usize, usize)> = subsets
                .iter()
                .map(|subset| (subset.addresses.len(), subset.not_ready_addresses.len()))
                .collect();
            assert_eq!(counts, left.unwrap_or(given));
        }
    }
}
