//! The machines of Nodes: what their kubelets report, and what the configuration adds.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::NodeAddress;

use super::NAME;
use super::config::{Nodes, ProviderId};
use crate::objects::Node;
use crate::provider::{Error, InstanceMetadata};

/// The addresses of the kubelet's flag `--node-ip`. Upstream: `AnnotationAlphaProvidedIPAddr`.
const PROVIDED_NODE_IP: &str = "alpha.kubernetes.io/provided-node-ip";

/// Returns what the node controller writes into the Node. What the configuration says of the
/// machine itself has precedence over what it says of all nodes.
///
/// # Errors
/// When the Node has no address, or not the id that the configuration asks for.
pub fn metadata(node: &Node, config: &Nodes) -> Result<InstanceMetadata, Error> {
    let name: &str = &node.meta.name;
    let machine = config.machine(name);
    let text = |own: Option<&String>, all: &String| match own {
        Some(own) if !own.is_empty() => own.clone(),
        _ => all.clone(),
    };
    let mut additional_labels: BTreeMap<String, String> = config.labels.clone();
    additional_labels.extend(machine.map(|machine| machine.labels.clone()).unwrap_or_default());
    Ok(InstanceMetadata {
        provider_id: provider_id(node, config.provider_id)?,
        instance_type: text(machine.map(|machine| &machine.instance_type), &config.instance_type),
        node_addresses: addresses(node, config)?,
        zone: text(machine.map(|machine| &machine.zone), &config.zone),
        region: text(machine.map(|machine| &machine.region), &config.region),
        additional_labels,
    })
}

/// Returns the id that the Node has, or a new one: `bare://` and the name or id that `kind`
/// selects.
fn provider_id(node: &Node, kind: ProviderId) -> Result<String, Error> {
    if !node.spec.provider_id.is_empty() {
        return Ok(node.spec.provider_id.to_string());
    }
    let (id, what) = match kind {
        ProviderId::Name => (&*node.meta.name, "name"),
        ProviderId::MachineId => (&*node.status.node_info.machine_id, "machine id"),
        ProviderId::SystemUuid => (&*node.status.node_info.system_uuid, "system uuid"),
    };
    match id.is_empty() {
        true => Err(Error::other(format!("node {} reports no {what}", node.meta.name))),
        false => Ok(format!("{NAME}://{id}")),
    }
}

/// Returns the addresses of `--node-ip`, of the configuration and of the Node's status. Those of
/// the status may be what this provider wrote before: internal ones count only if there are no
/// others, external ones only without `--node-ip`. Without a `Hostname` the Node's name is added as
/// one.
///
/// # Errors
/// When there is no IP address.
fn addresses(node: &Node, config: &Nodes) -> Result<Vec<NodeAddress>, Error> {
    let name: &str = &node.meta.name;
    let node_address = |kind: &str, address: &str| NodeAddress {
        address: address.to_owned(),
        type_: kind.to_owned(),
    };
    let provided = node.meta.annotations.get(PROVIDED_NODE_IP).unwrap_or_default();
    let provided: Vec<&str> = provided
        .split(',')
        .map(str::trim)
        .filter(|address| address.parse().is_ok_and(|ip: IpAddr| !ip.is_unspecified()))
        .collect();
    let mut found: Vec<NodeAddress> =
        provided.iter().map(|address| node_address("InternalIP", address)).collect();
    let configured = config.machine(name).map(|machine| machine.addresses.as_slice());
    found.extend(configured.unwrap_or_default().iter().map(super::config::Address::of_node));
    let has_internal = found.iter().any(|address| address.type_ == "InternalIP");
    // With `--node-ip` the kubelet leaves the addresses to the provider, so the status has those
    // that this provider wrote before.
    let is_reported = |address: &&NodeAddress| match address.type_.as_str() {
        "InternalIP" => !has_internal,
        "ExternalIP" => provided.is_empty(),
        _ => true,
    };
    found.extend(node.status.addresses.iter().filter(is_reported).cloned());
    if !found.iter().any(|address| address.address.parse::<IpAddr>().is_ok()) {
        return Err(Error::other(format!(
            "node {name} reports no address: its kubelet needs --node-ip, or the configuration an \
             entry in nodes.machines"
        )));
    }
    if !found.iter().any(|address| address.type_ == "Hostname") {
        found.push(node_address("Hostname", name));
    }
    let mut unique = Vec::with_capacity(found.len());
    for address in found {
        if !unique.contains(&address) {
            unique.push(address);
        }
    }
    Ok(unique)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn node(more: Value) -> Node {
        let mut node = json!({ "metadata": { "name": "n1" } });
        for (field, value) in more.as_object().expect("fields") {
            match field.as_str() {
                "nodeIP" => {
                    node["metadata"]["annotations"] = json!({ PROVIDED_NODE_IP: value });
                }
                field => node[field] = value.clone(),
            }
        }
        serde_json::from_value(node).expect("a Node")
    }

    fn config(text: &str) -> Nodes {
        serde_yaml_ng::from_str(text).expect("a configuration")
    }

    #[test]
    fn addresses_are_those_that_the_kubelet_reports() {
        let status = |addresses: &[(&str, &str)]| {
            let addresses: Vec<Value> = addresses
                .iter()
                .map(|(kind, address)| json!({ "type": kind, "address": address }))
                .collect();
            json!({ "addresses": addresses })
        };
        let machine = "machines: [{name: n1, addresses: [{type: ExternalIP, address: 1.2.3.4}]}]";
        let no_address = Err("node n1 reports no address: its kubelet needs --node-ip, or the \
                              configuration an entry in nodes.machines");
        for (more, text, expected) in [
            (json!({ "nodeIP": "10.0.0.1" }), "{}", Ok("InternalIP=10.0.0.1 Hostname=n1")),
            (
                json!({ "nodeIP": "10.0.0.1,fd00::1" }),
                "{}",
                Ok("InternalIP=10.0.0.1 InternalIP=fd00::1 Hostname=n1"),
            ),
            // The address has changed; the status has the former one.
            (
                json!({
                    "nodeIP": "10.0.0.2",
                    "status": status(&[("InternalIP", "10.0.0.1"), ("Hostname", "h1")]),
                }),
                "{}",
                Ok("InternalIP=10.0.0.2 Hostname=h1"),
            ),
            (
                json!({ "status": status(&[("InternalIP", "10.0.0.1"), ("ExternalDNS", "n.example")]) }),
                "{}",
                Ok("InternalIP=10.0.0.1 ExternalDNS=n.example Hostname=n1"),
            ),
            (
                json!({ "nodeIP": "10.0.0.1" }),
                machine,
                Ok("InternalIP=10.0.0.1 ExternalIP=1.2.3.4 Hostname=n1"),
            ),
            // Written by this provider before.
            (
                json!({
                    "nodeIP": "10.0.0.1",
                    "status": status(&[("InternalIP", "10.0.0.1"), ("ExternalIP", "1.2.3.4")]),
                }),
                machine,
                Ok("InternalIP=10.0.0.1 ExternalIP=1.2.3.4 Hostname=n1"),
            ),
            // The configuration no longer has the external one.
            (
                json!({
                    "nodeIP": "10.0.0.1",
                    "status": status(&[("InternalIP", "10.0.0.1"), ("ExternalIP", "1.2.3.4")]),
                }),
                "{}",
                Ok("InternalIP=10.0.0.1 Hostname=n1"),
            ),
            (json!({ "nodeIP": "0.0.0.0" }), "{}", no_address),
            (json!({ "status": status(&[("Hostname", "n1")]) }), "{}", no_address),
        ] {
            let text_of = |metadata: InstanceMetadata| {
                let texts = metadata.node_addresses.iter();
                let texts = texts.map(|address| format!("{}={}", address.type_, address.address));
                texts.collect::<Vec<_>>().join(" ")
            };
            let found = metadata(&node(more.clone()), &config(text));
            let found = found.map(text_of).map_err(|error| error.to_string());
            assert_eq!(found.as_deref().map_err(String::as_str), expected, "{more}");
        }
    }

    #[test]
    fn ids_are_kept_once_they_are_set() {
        let info = json!({ "nodeInfo": { "machineID": "m", "systemUUID": "u" } });
        let with = |more: Value| {
            let mut whole = json!({ "nodeIP": "10.0.0.1" });
            whole
                .as_object_mut()
                .expect("fields")
                .extend(more.as_object().expect("fields").clone());
            node(whole)
        };
        for (more, id, expected) in [
            (json!({}), "name", Ok("bare://n1")),
            (json!({ "status": info }), "machineID", Ok("bare://m")),
            (json!({ "status": info }), "systemUUID", Ok("bare://u")),
            (json!({}), "machineID", Err("node n1 reports no machine id")),
            (json!({ "spec": { "providerID": "k3s://n1" } }), "machineID", Ok("k3s://n1")),
        ] {
            let found = metadata(&with(more), &config(&format!("providerID: {id}")));
            let found = found.map(|found| found.provider_id).map_err(|error| error.to_string());
            assert_eq!(found.as_deref().map_err(String::as_str), expected);
        }
    }

    #[test]
    fn labels_and_places_of_a_machine_have_precedence() {
        let config = config(
            "{zone: z, region: r, instanceType: t, labels: {a: all, b: all}, machines: [{name: n1, \
             zone: own, labels: {b: own}}]}",
        );
        let found = metadata(&node(json!({ "nodeIP": "10.0.0.1" })), &config).expect("metadata");
        assert_eq!(
            (found.zone, found.region, found.instance_type),
            ("own".to_owned(), "r".to_owned(), "t".to_owned())
        );
        let labels: Vec<(&str, &str)> =
            found.additional_labels.iter().map(|(key, value)| (&**key, &**value)).collect();
        assert_eq!(labels, [("a", "all"), ("b", "own")]);
    }
}
