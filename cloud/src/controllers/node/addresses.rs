//! The addresses of a Node: those that the cloud knows, with those that the kubelet prefers first.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::NodeAddress;
use kube_controller_manager::objects::parse_ip;

use crate::objects::Node;

/// The value of the kubelet's `--node-ip`. Upstream: `AnnotationAlphaProvidedIPAddr`.
const PROVIDED_NODE_IP: &str = "alpha.kubernetes.io/provided-node-ip";
const HOSTNAME: &str = "Hostname";

/// Returns the addresses that the Node should have; `None`: it has them, or the cloud knows none.
///
/// # Errors
/// Why the kubelet's own address is not among those of the cloud.
pub fn wanted(node: &Node, cloud: Vec<NodeAddress>) -> Result<Option<Vec<NodeAddress>>, String> {
    if cloud.is_empty() {
        return Ok(None);
    }
    let current = &node.status.addresses;
    let mut addresses = cloud;
    if !addresses.iter().any(|address| address.type_ == HOSTNAME) {
        // The kubelet has set it.
        addresses.extend(current.iter().filter(|address| address.type_ == HOSTNAME).cloned());
    }
    let addresses = preferring_node_ip(node, addresses)?;
    Ok(Some(addresses).filter(|addresses| by_type(addresses) != by_type(current)))
}

/// Groups addresses by type: the order counts only within a type.
fn by_type(addresses: &[NodeAddress]) -> BTreeMap<&str, Vec<&str>> {
    let mut types: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for address in addresses {
        types.entry(&address.type_).or_default().push(&address.address);
    }
    types
}

/// Returns the cloud's addresses with those of the kubelet's `--node-ip` first, and as the only
/// ones of their types: a machine may have addresses that are of no use to the cluster. Without
/// `--node-ip` they stay as they are. Upstream: `GetNodeAddressesFromNodeIP`.
///
/// # Errors
/// When the annotation cannot be read, or names an address that the cloud does not know.
pub fn preferring_node_ip(
    node: &Node,
    cloud: Vec<NodeAddress>,
) -> Result<Vec<NodeAddress>, String> {
    let Some(provided) = node.meta.annotations.get(PROVIDED_NODE_IP) else { return Ok(cloud) };
    let ips = parse_node_ips(provided)
        .map_err(|error| format!("failed to parse node IP {provided:?}: {error}"))?;
    let mut preferred: Vec<NodeAddress> = Vec::new();
    for ip in ips {
        let matching = cloud.iter().filter(|address| parse_ip(&address.address) == Some(ip));
        let before = preferred.len();
        preferred.extend(matching.cloned());
        if preferred.len() == before {
            return Err(format!(
                "failed to get node address from cloud provider that matches ip: {ip}"
            ));
        }
    }
    let is_other =
        |address: &NodeAddress| !preferred.iter().any(|preferred| preferred.type_ == address.type_);
    let others: Vec<NodeAddress> =
        cloud.iter().filter(|address| is_other(address)).cloned().collect();
    Ok(preferred.into_iter().chain(others).collect())
}

/// Parses one address, or one of each family. Upstream: `ParseNodeIPAnnotation`.
fn parse_node_ips(text: &str) -> Result<Vec<IpAddr>, String> {
    let parse = |text: &str| parse_ip(text).ok_or_else(|| format!("could not parse {text:?}"));
    let ips: Vec<IpAddr> = text.split(',').map(parse).collect::<Result<_, _>>()?;
    match ips[..] {
        [_] => Ok(ips),
        [one, other] if one.is_ipv4() != other.is_ipv4() => {
            match one.is_unspecified() || other.is_unspecified() {
                true => Err("dual-stack node IP cannot include '0.0.0.0' or '::'".into()),
                false => Ok(ips),
            }
        }
        _ => Err("must contain either a single IP or a dual-stack pair of IPs".into()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// `InternalIP 10.0.0.1, Hostname n`.
    fn addresses(text: &str) -> Vec<NodeAddress> {
        let address = |text: &str| {
            let (type_, address) = text.split_once(' ').expect("a type and an address");
            NodeAddress { address: address.into(), type_: type_.into() }
        };
        text.split(", ").filter(|text| !text.is_empty()).map(address).collect()
    }

    fn node(provided: Option<&str>, current: &str) -> Node {
        let annotations = provided.map(|ip| json!({ PROVIDED_NODE_IP: ip }));
        let mut node: Node =
            serde_json::from_value(json!({ "metadata": { "annotations": annotations } }))
                .expect("a Node");
        node.status.addresses = addresses(current).into();
        node
    }

    #[test]
    fn addresses_of_the_node_ip_come_first_and_alone_in_their_type() {
        let fault = "failed to get node address from cloud provider that matches ip: ";
        for (provided, cloud, expected) in [
            ("10.1.1.1", "InternalIP 10.1.1.1, Hostname n", Ok("InternalIP 10.1.1.1, Hostname n")),
            (
                "10.1.1.1",
                "InternalIP 10.1.1.1, InternalIP 10.2.2.2, ExternalIP 55.5.5.5",
                Ok("InternalIP 10.1.1.1, ExternalIP 55.5.5.5"),
            ),
            (
                "55.5.5.5",
                "InternalIP 10.1.1.1, ExternalIP 55.5.5.5, ExternalIP 66.6.6.6, Hostname n",
                Ok("ExternalIP 55.5.5.5, InternalIP 10.1.1.1, Hostname n"),
            ),
            // One address may be of several types.
            (
                "10.1.1.1",
                "InternalIP 10.1.1.1, ExternalIP 10.1.1.1, ExternalIP 55.5.5.5, Hostname n",
                Ok("InternalIP 10.1.1.1, ExternalIP 10.1.1.1, Hostname n"),
            ),
            (
                "10.1.1.1,fc01:1234::1",
                "InternalIP fc01:1234:0::1, InternalIP 10.1.1.1, InternalIP 10.2.2.2",
                Ok("InternalIP 10.1.1.1, InternalIP fc01:1234:0::1"),
            ),
            ("10.3.3.3", "InternalIP 10.1.1.1", Err(format!("{fault}10.3.3.3"))),
            ("10.1.1.1,fc01::9", "InternalIP 10.1.1.1", Err(format!("{fault}fc01::9"))),
            (
                "10.1.1.1,10.2.2.2",
                "InternalIP 10.1.1.1",
                Err("failed to parse node IP \"10.1.1.1,10.2.2.2\": must contain either a single \
                     IP or a dual-stack pair of IPs"
                    .to_owned()),
            ),
            ("", "InternalIP 10.1.1.1", Err("failed to parse node IP \"\": could not parse \"\"".into())),
            (
                "0.0.0.0,fc01::9",
                "InternalIP 10.1.1.1",
                Err("failed to parse node IP \"0.0.0.0,fc01::9\": dual-stack node IP cannot include \
                     '0.0.0.0' or '::'"
                    .to_owned()),
            ),
        ] {
            let preferred = preferring_node_ip(&node(Some(provided), ""), addresses(cloud));
            assert_eq!(preferred, expected.map(addresses), "{provided} {cloud}");
        }
    }

    #[test]
    fn addresses_are_written_when_they_change() {
        for (current, cloud, expected) in [
            ("", "", None),
            ("InternalIP 10.1.1.1", "", None),
            ("", "InternalIP 10.1.1.1", Some("InternalIP 10.1.1.1")),
            ("InternalIP 10.1.1.1", "InternalIP 10.1.1.1", None),
            ("Hostname n", "InternalIP 10.1.1.1", Some("InternalIP 10.1.1.1, Hostname n")),
            (
                "Hostname n",
                "InternalIP 10.1.1.1, Hostname m",
                Some("InternalIP 10.1.1.1, Hostname m"),
            ),
            ("Hostname n, InternalIP 10.1.1.1", "InternalIP 10.1.1.1", None),
            (
                "InternalIP 10.1.1.1, InternalIP fc01::1",
                "InternalIP 10.1.1.1, InternalIP fc01::1",
                None,
            ),
            (
                "InternalIP fc01::1, InternalIP 10.1.1.1",
                "InternalIP 10.1.1.1, InternalIP fc01::1",
                Some("InternalIP 10.1.1.1, InternalIP fc01::1"),
            ),
            (
                "InternalIP 10.1.1.1, ExternalIP 55.5.5.5",
                "InternalIP 10.1.1.1",
                Some("InternalIP 10.1.1.1"),
            ),
        ] {
            let wanted = wanted(&node(None, current), addresses(cloud));
            assert_eq!(wanted, Ok(expected.map(addresses)), "{current} {cloud}");
        }
    }
}
