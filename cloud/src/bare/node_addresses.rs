//! Load balancers whose addresses are those of nodes, as k3s's ServiceLB has them. What forwards the
//! traffic is kube-proxy: it has rules for the addresses in a Service's status.
//! Upstream: k3s's `pkg/cloudprovider/servicelb.go`, without its DaemonSet.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use kube_controller_manager::cache::Lister;
use kube_controller_manager::client::{Client, Patch};
use kube_controller_manager::controllers::{
    Change, Controller, ControllerContext, Next, Queue, QueuePolicy, SyncResult,
};
use kube_controller_manager::events::Recorder;
use kube_controller_manager::objects::{EndpointSlice, ObjectKey, Resource};
use serde_json::{Value, json};

use super::claims::{in_status, wants_load_balancer};
use super::profile;
use super::ranges::{Family, parse_address};
use crate::objects::{Node, Service};

/// Where a node has this label, only those with the value `true` are used.
const ENABLE: &str = "svccontroller.k3s.cattle.io/enablelb";
/// A Service with this label uses the nodes with the same value.
const POOL: &str = "svccontroller.k3s.cattle.io/lbpool";
const EXCLUDE: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
/// The label of a slice with the name of its Service.
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// The controller that writes the addresses.
pub struct NodeAddresses {
    client: Client,
    recorder: Recorder,
    services: Lister<Service>,
    nodes: Lister<Node>,
    slices: Lister<EndpointSlice>,
}

impl NodeAddresses {
    /// Returns the controller. It syncs a Service when the Service or one of its slices changes,
    /// and all Services when nodes or the ports of a Service change.
    ///
    /// # Errors
    /// When there is no client for it.
    pub fn controller(context: &Arc<ControllerContext>) -> Result<Controller, String> {
        let mut c = Controller::new(profile("bare-node-addresses"), context)?;
        let services = c.lister::<Service>();
        let nodes = c.lister::<Node>();
        let slices = c.lister::<EndpointSlice>();
        let queue = c.queue(QueuePolicy::default());
        let all = services.clone();
        c.watch(&services, &queue, move |change: Change<'_, Service>, queue: &Queue| {
            queue.add(change.object().meta.key());
            if changes_others(&change) {
                add_all(&all, queue);
            }
        });
        let all = services.clone();
        c.watch(&nodes, &queue, move |change: Change<'_, Node>, queue: &Queue| {
            if changes_nodes(&change) {
                add_all(&all, queue);
            }
        });
        c.watch(&slices, &queue, |change: Change<'_, EndpointSlice>, queue: &Queue| {
            let meta = &change.object().meta;
            if let Some(service) = meta.labels.get(SERVICE_NAME) {
                queue.add(ObjectKey::new(&meta.namespace, service));
            }
        });
        let (client, recorder) = (c.client(), c.recorder());
        let this = Arc::new(NodeAddresses { client, recorder, services, nodes, slices });
        c.sync(queue, &this, NodeAddresses::sync);
        Ok(c)
    }

    /// Writes the addresses of the Service's nodes into its status, if they have changed, and
    /// reports that by an event. An event warns if no node is available. Services without a load
    /// balancer are skipped.
    async fn sync(self: Arc<Self>, key: ObjectKey) -> SyncResult {
        let Some(service) = self.services.get(&key) else { return Ok(Next::Done) };
        if !is_balanced(&service) {
            return Ok(Next::Done);
        }
        let nodes = self.nodes.list();
        let taken = taken_nodes(&service, &self.services.list(), &nodes);
        let endpoints = is_local(&service).then(|| self.nodes_with_endpoints(&key));
        let wanted = addresses(&service, &nodes, endpoints.as_ref(), &taken);
        let before = in_status(&service);
        if wanted.is_empty() {
            self.recorder.warning(&*service, "UnAvailableLoadBalancer", unavailable(&taken));
        }
        if wanted == before {
            return Ok(Next::Done);
        }
        let ingress: Vec<Value> = wanted.iter().map(|ip| json!({ "ip": ip })).collect();
        let version = service.meta.resource_version.to_string();
        let patch = Patch::Merge(json!({
            "metadata": { "uid": service.meta.uid.to_string(), "resourceVersion": version },
            "status": { "loadBalancer": { "ingress": ingress } },
        }));
        let status = self.client.resource(&Service::RESOURCE).subresource("status");
        match status.patch_for_metadata(&key, &patch).await {
            Err(error) if error.is_not_found() => return Ok(Next::Done),
            written => written?,
        };
        if !wanted.is_empty() {
            let text = format!(
                "Updated LoadBalancer with new IPs: {} -> {}",
                listed(&before),
                listed(&wanted)
            );
            self.recorder.normal(&*service, "UpdatedLoadBalancer", text);
        }
        Ok(Next::Done)
    }

    /// Returns the names of the nodes that have a ready endpoint of the Service.
    fn nodes_with_endpoints(&self, service: &ObjectKey) -> BTreeSet<String> {
        let slices = self.slices.in_namespace(&service.namespace);
        let of_service = slices
            .iter()
            .filter(|slice| slice.meta.labels.get(SERVICE_NAME) == Some(service.name.as_str()));
        let endpoints = of_service.flat_map(|slice| &slice.endpoints);
        endpoints
            .filter(|endpoint| endpoint.is_ready())
            .filter_map(|endpoint| endpoint.node_name.as_ref())
            .map(ToString::to_string)
            .collect()
    }
}

/// Queues all Services that get addresses from this controller.
fn add_all(services: &Lister<Service>, queue: &Queue) {
    for service in services.list() {
        if is_balanced(&service) {
            queue.add(service.meta.key());
        }
    }
}

fn is_balanced(service: &Service) -> bool {
    wants_load_balancer(service) && !service.meta.is_being_deleted()
}

fn is_local(service: &Service) -> bool {
    service.spec.external_traffic_policy.as_deref() == Some("Local")
}

/// Returns whether a change may give other Services a port, or take it from them.
fn changes_others(change: &Change<'_, Service>) -> bool {
    match change {
        Change::Added { new, .. } => is_balanced(new),
        Change::Deleted(_) => true,
        Change::Updated { old, new } => {
            let shown = |service: &Service| {
                (is_balanced(service), service.meta.labels.clone(), service.spec.ports.clone())
            };
            shown(old) != shown(new)
        }
        Change::Resync { .. } => false,
    }
}

/// Returns whether a change of a node may change the addresses of Services.
fn changes_nodes(change: &Change<'_, Node>) -> bool {
    let Change::Updated { old, new } = change else {
        return !matches!(change, Change::Resync { .. });
    };
    is_ready(old) != is_ready(new)
        || old.meta.labels != new.meta.labels
        || old.status.addresses != new.status.addresses
}

fn is_ready(node: &Node) -> bool {
    node.condition("Ready") == Some("True") && !node.meta.is_being_deleted()
}

/// Returns the nodes that the Service may use by their labels, ready or not. As in k3s, the
/// Service's pool counts only if some node has the label [`ENABLE`].
fn eligible<'a>(service: &Service, nodes: &'a [Arc<Node>]) -> Vec<&'a Node> {
    let is_labelled = nodes.iter().any(|node| node.meta.labels.contains_key(ENABLE));
    let pool = service.meta.labels.get(POOL).filter(|pool| !pool.is_empty());
    let is_chosen = |node: &&Node| {
        let labels = &node.meta.labels;
        let is_of_pool = pool.is_none() || labels.get(POOL) == pool;
        // A value that is no bool excludes, as with the service controller.
        matches!(labels.get(EXCLUDE), None | Some("0" | "f" | "F" | "false" | "FALSE" | "False"))
            && (!is_labelled || labels.get(ENABLE) == Some("true") && is_of_pool)
    };
    nodes.iter().map(|node| &**node).filter(is_chosen).collect()
}

/// Returns the nodes on which an older Service has one of the ports, with that Service and port.
fn taken_nodes(
    service: &Service,
    all: &[Arc<Service>],
    nodes: &[Arc<Node>],
) -> Vec<(String, ObjectKey, String)> {
    let age = |service: &Service| (service.meta.creation_timestamp, service.meta.key().to_string());
    let mut taken = Vec::new();
    for other in all.iter().filter(|other| is_balanced(other) && age(other) < age(service)) {
        if let Some(port) = common_port(service, other) {
            for node in eligible(other, nodes) {
                taken.push((node.meta.name.to_string(), other.meta.key(), port.clone()));
            }
        }
    }
    taken
}

/// Returns a port that both have, as `80/TCP`.
fn common_port(one: &Service, other: &Service) -> Option<String> {
    let ports = |service: &Service| -> BTreeSet<(i32, String)> {
        let ports = service.spec.ports.iter().flatten();
        ports.map(|port| (port.port, port.protocol.clone().unwrap_or("TCP".to_owned()))).collect()
    };
    let (one, other) = (ports(one), ports(other));
    one.intersection(&other).next().map(|(port, protocol)| format!("{port}/{protocol}"))
}

/// Returns the addresses of the ready nodes that the Service uses and no older one takes: the
/// external ones if any node has one, else the internal ones. `endpoints`: if given, only these
/// nodes count.
fn addresses(
    service: &Service,
    nodes: &[Arc<Node>],
    endpoints: Option<&BTreeSet<String>>,
    taken: &[(String, ObjectKey, String)],
) -> Vec<IpAddr> {
    let mut nodes = eligible(service, nodes);
    nodes.retain(|node| {
        let name: &str = &node.meta.name;
        is_ready(node)
            && endpoints.is_none_or(|endpoints| endpoints.contains(name))
            && !taken.iter().any(|(taken, ..)| taken == name)
    });
    let of_type = |kind: &str| -> Vec<IpAddr> {
        let addresses = nodes.iter().flat_map(|node| node.status.addresses.iter());
        let addresses = addresses.filter(|address| address.type_ == kind);
        addresses.filter_map(|address| parse_address(&address.address)).collect()
    };
    let mut found = of_type("ExternalIP");
    if found.is_empty() {
        found = of_type("InternalIP");
    }
    // The order is that of k3s: by the Service's families, then as texts.
    found.sort_by_key(IpAddr::to_string);
    found.dedup();
    let named = service.spec.ip_families.iter().flatten();
    let named: Vec<Family> = named.filter_map(|name| Family::parse(name)).collect();
    let families = if named.is_empty() { vec![Family::V4, Family::V6] } else { named };
    let of_family = |family| found.iter().filter(move |found| Family::of(**found) == family);
    families.into_iter().flat_map(of_family).copied().collect()
}

/// Returns the message of an event: no node is available, with the first Service that takes one.
fn unavailable(taken: &[(String, ObjectKey, String)]) -> String {
    let text = "There are no available nodes for LoadBalancer";
    match taken.first() {
        None => text.to_owned(),
        Some((_, service, port)) => format!("{text}: Service {service} has port {port}"),
    }
}

/// Formats addresses as Go shows a list.
fn listed(addresses: &[IpAddr]) -> String {
    let texts: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
    format!("[{}]", texts.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, ready: &str, labels: Value, addresses: &[(&str, &str)]) -> Arc<Node> {
        let addresses: Vec<Value> = addresses
            .iter()
            .map(|(kind, address)| json!({ "type": kind, "address": address }))
            .collect();
        let node = json!({
            "metadata": { "name": name, "labels": labels },
            "status": {
                "addresses": addresses, "conditions": [{ "type": "Ready", "status": ready }],
            },
        });
        serde_json::from_value(node).expect("a Node")
    }

    fn service(name: &str, created: i64, spec: Value) -> Arc<Service> {
        let mut service = json!({
            "metadata": {
                "name": name, "namespace": "ns",
                "creationTimestamp": format!("2026-01-0{created}T00:00:00Z"),
            },
            "spec": { "type": "LoadBalancer", "ports": [{ "port": 80 }] },
        });
        for (field, value) in spec.as_object().expect("fields") {
            match field.as_str() {
                "labels" => service["metadata"]["labels"] = value.clone(),
                field => service["spec"][field] = value.clone(),
            }
        }
        serde_json::from_value(service).expect("a Service")
    }

    fn found(service: &Service, nodes: &[Arc<Node>], endpoints: Option<&[&str]>) -> Vec<String> {
        let endpoints =
            endpoints.map(|names| names.iter().map(|name| (*name).to_owned()).collect());
        let found = addresses(service, nodes, endpoints.as_ref(), &[]);
        found.iter().map(IpAddr::to_string).collect()
    }

    #[test]
    fn the_addresses_are_those_of_ready_nodes() {
        let internal = |ip| [("InternalIP", ip), ("Hostname", "h")];
        let none = json!({});
        let nodes = [
            node("b", "True", none.clone(), &internal("10.0.0.2")),
            node("a", "True", none.clone(), &internal("10.0.0.1")),
            node("c", "False", none.clone(), &internal("10.0.0.3")),
            node("d", "True", json!({ EXCLUDE: "" }), &internal("10.0.0.4")),
        ];
        let plain = service("s", 1, json!({}));
        assert_eq!(found(&plain, &nodes, None), ["10.0.0.1", "10.0.0.2"]);
        assert_eq!(found(&plain, &nodes, Some(&["b", "c"])), ["10.0.0.2"]);
        assert!(found(&plain, &nodes, Some(&[])).is_empty());
        // One external address is enough to leave out the internal ones.
        let external = node("e", "True", none.clone(), &[("ExternalIP", "203.0.113.1")]);
        let with_external = [nodes.to_vec(), vec![external]].concat();
        assert_eq!(found(&plain, &with_external, None), ["203.0.113.1"]);
        // Families are those of the Service, in its order.
        let dual = [("InternalIP", "10.0.0.1"), ("InternalIP", "fd00::1")];
        let dual = [node("a", "True", none, &dual)];
        for (families, expected) in [
            (json!(["IPv4"]), vec!["10.0.0.1"]),
            (json!(["IPv6", "IPv4"]), vec!["fd00::1", "10.0.0.1"]),
        ] {
            let service = service("s", 1, json!({ "ipFamilies": families }));
            assert_eq!(found(&service, &dual, None), expected);
        }
    }

    #[test]
    fn labels_choose_the_nodes() {
        let labelled =
            |name: &str, ip: &str, labels: Value| node(name, "True", labels, &[("InternalIP", ip)]);
        let nodes = [
            labelled("a", "10.0.0.1", json!({ ENABLE: "true", POOL: "x" })),
            labelled("b", "10.0.0.2", json!({ ENABLE: "true" })),
            labelled("c", "10.0.0.3", json!({ ENABLE: "false" })),
            labelled("d", "10.0.0.4", json!({})),
        ];
        let plain = service("s", 1, json!({}));
        let pooled = service("s", 1, json!({ "labels": { POOL: "x" } }));
        assert_eq!(found(&plain, &nodes, None), ["10.0.0.1", "10.0.0.2"]);
        assert_eq!(found(&pooled, &nodes, None), ["10.0.0.1"]);
        // A pool needs the other label, as in k3s.
        assert_eq!(found(&pooled, &nodes[3..], None), ["10.0.0.4"]);
    }

    #[test]
    fn the_oldest_service_has_a_port_of_a_node() {
        let labelled = |name: &str, ip: &str, pool: &str| {
            node(name, "True", json!({ ENABLE: "true", POOL: pool }), &[("InternalIP", ip)])
        };
        let nodes = [labelled("a", "10.0.0.1", "x"), labelled("b", "10.0.0.2", "y")];
        let udp = json!({ "ports": [{ "port": 80, "protocol": "UDP" }] });
        let (old, new) = (service("old", 1, json!({})), service("new", 2, json!({})));
        let other_pool = service("x", 1, json!({ "labels": { POOL: "x" } }));
        for (others, expected) in [
            (vec![old.clone()], vec![]),
            (vec![service("later", 3, json!({}))], vec!["10.0.0.1", "10.0.0.2"]),
            (vec![service("udp", 1, udp)], vec!["10.0.0.1", "10.0.0.2"]),
            (vec![other_pool], vec!["10.0.0.2"]),
            (
                vec![service("port", 1, json!({ "ports": [{ "port": 81 }] }))],
                vec!["10.0.0.1", "10.0.0.2"],
            ),
            (vec![service("c", 1, json!({ "type": "ClusterIP" }))], vec!["10.0.0.1", "10.0.0.2"]),
        ] {
            let all = [others, vec![new.clone()]].concat();
            let taken = taken_nodes(&new, &all, &nodes);
            let found = addresses(&new, &nodes, None, &taken);
            let found: Vec<String> = found.iter().map(IpAddr::to_string).collect();
            assert_eq!(found, expected, "{}", all[0].meta.name);
        }
        let taken = taken_nodes(&new, &[old, new.clone()], &nodes);
        assert_eq!(
            unavailable(&taken),
            "There are no available nodes for LoadBalancer: Service ns/old has port 80/TCP"
        );
    }
}
