//! Which routes are deleted and made.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::NodeAddress;
use kube_controller_manager::objects::parse_ip;

use crate::objects::Node;
use crate::provider::Route;

/// The ranges of `--cluster-cidr`: routes outside of them are not ours.
#[derive(Debug, PartialEq)]
pub struct ClusterRanges(Vec<IpNet>);

impl ClusterRanges {
    /// Parses the value of `--cluster-cidr`: one range, or one of each family. Upstream:
    /// `processCIDRs`.
    ///
    /// # Errors
    /// A fault of the flag.
    pub fn parse(flag: &str) -> Result<ClusterRanges, String> {
        let parse = |text: &str| {
            parse_cidr(text)
                .ok_or_else(|| format!("--cluster-cidr: invalid CIDR address: {text:?}"))
        };
        let ranges: Vec<IpNet> = flag.trim().split(',').map(parse).collect::<Result<_, _>>()?;
        let is_ipv4 = |range: &IpNet| matches!(range, IpNet::V4(_));
        let ipv4 = ranges.iter().filter(|range| is_ipv4(range)).count();
        match ranges.len() {
            1 => Ok(ClusterRanges(ranges)),
            count if ipv4 == 0 || ipv4 == count => Err(format!(
                "--cluster-cidr: len of ClusterCIDRs=={count} and they are not configured as dual \
                 stack (at least one from each IPFamily)"
            )),
            2 => Ok(ClusterRanges(ranges)),
            count => Err(format!(
                "--cluster-cidr: length of clusterCIDRs is:{count} more than max allowed of 2"
            )),
        }
    }

    /// Returns whether the destination of a route begins or ends in one of the ranges. A
    /// destination that cannot be parsed does not.
    fn include(&self, route: &Route) -> bool {
        let Some(destination) = parse_cidr(&route.destination) else {
            log::error!("Ignoring route {}, unparsable CIDR {:?}", route.name, route.destination);
            return false;
        };
        let ends: [IpAddr; 2] = [destination.network(), destination.broadcast()];
        self.0.iter().any(|range| ends.iter().any(|end| range.contains(end)))
    }
}

/// Parses a CIDR as Go does, without its host bits. Upstream: `netutils.ParseCIDRSloppy`.
fn parse_cidr(text: &str) -> Option<IpNet> {
    let (address, prefix) = text.split_once('/')?;
    let range = IpNet::new(parse_ip(address)?, prefix.parse().ok()?).ok()?;
    Some(range.trunc())
}

/// The routes of a Node.
#[derive(Debug)]
pub struct NodePlan {
    pub node: Arc<Node>,
    /// Its ranges that have no route, or one to other addresses.
    pub create: Vec<Route>,
    /// Whether its condition is written: it has ranges or routes.
    pub has_condition: bool,
}

/// What a reconciliation does.
#[derive(Debug)]
pub struct Plan {
    pub delete: Vec<Route>,
    pub nodes: Vec<NodePlan>,
}

impl Plan {
    /// Compares the routes with the ranges of the Nodes, and plans the changes: routes that are
    /// missing are made; those within `ranges` that no Node needs, or that lead nowhere, are
    /// deleted.
    pub fn new(nodes: Vec<Arc<Node>>, routes: Vec<Route>, ranges: &ClusterRanges) -> Plan {
        let mut by_node: HashMap<&str, Vec<&Route>> = HashMap::new();
        for route in routes.iter().filter(|route| !route.target_node.is_empty()) {
            by_node.entry(&route.target_node).or_default().push(route);
        }
        let mut kept: HashSet<(&str, &str)> = HashSet::new();
        let mut plans = Vec::new();
        for node in &nodes {
            let known = by_node.get(node.meta.name.as_str()).map_or(&[][..], Vec::as_slice);
            let mut create = Vec::new();
            for range in &node.spec.pod_cidrs {
                let addresses = &node.status.addresses;
                if is_routed(known, range, addresses) {
                    kept.insert((node.meta.name.as_str(), &**range));
                    continue;
                }
                create.push(Route {
                    target_node: node.meta.name.to_string(),
                    target_addresses: Some(addresses.to_vec()),
                    destination: range.to_string(),
                    ..Route::default()
                });
            }
            let has_condition = !node.spec.pod_cidrs.is_empty() || !known.is_empty();
            plans.push(NodePlan { node: node.clone(), create, has_condition });
        }
        let is_stale = |route: &Route| {
            ranges.include(route)
                && (route.blackhole
                    || !kept.contains(&(route.target_node.as_str(), route.destination.as_str())))
        };
        let delete = routes.iter().filter(|route| is_stale(route)).cloned().collect();
        Plan { delete, nodes: plans }
    }
}

/// Returns whether the first route to `range` leads to these addresses, in any order. A route whose
/// addresses the cloud does not report counts as right.
fn is_routed(routes: &[&Route], range: &str, addresses: &[NodeAddress]) -> bool {
    let Some(route) = routes.iter().find(|route| route.destination == range) else { return false };
    let Some(targets) = &route.target_addresses else { return true };
    targets.len() == addresses.len() && addresses.iter().all(|address| targets.contains(address))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn ranges(flag: &str) -> ClusterRanges {
        ClusterRanges::parse(flag).expect("ranges")
    }

    fn node(name: &str, pod_cidrs: &[&str], addresses: &[&str]) -> Arc<Node> {
        let address = |ip: &&str| json!({ "type": "InternalIP", "address": ip });
        let addresses: Vec<_> = addresses.iter().map(address).collect();
        let node = json!({
            "metadata": { "name": name }, "spec": { "podCIDRs": pod_cidrs },
            "status": { "addresses": addresses },
        });
        serde_json::from_value(node).map(Arc::new).expect("a Node")
    }

    /// `name node destination`, with addresses that the provider keeps.
    fn route(text: &str, addresses: Option<&[&str]>) -> Route {
        let [name, target_node, destination] = text.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{text}")
        };
        let address = |ip: &&str| NodeAddress { address: (*ip).into(), type_: "InternalIP".into() };
        Route {
            name: name.into(),
            target_node: target_node.into(),
            destination: destination.into(),
            target_addresses: addresses.map(|ips| ips.iter().map(address).collect()),
            blackhole: false,
        }
    }

    /// The names of the deleted routes, and the new ones as `node destination`.
    fn planned(nodes: Vec<Arc<Node>>, routes: Vec<Route>) -> (Vec<String>, Vec<String>) {
        let plan = Plan::new(nodes, routes, &ranges("10.120.0.0/16,fd00::/48"));
        let made = plan.nodes.into_iter().flat_map(|plan| plan.create);
        (
            plan.delete.into_iter().map(|route| route.name).collect(),
            made.map(|route| format!("{} {}", route.target_node, route.destination)).collect(),
        )
    }

    #[test]
    fn each_range_of_a_node_has_one_route() {
        let a = || node("a", &["10.120.0.0/24"], &["10.0.0.1"]);
        let dual = || node("b", &["10.120.1.0/24", "fd00:0:0:1::/64"], &[]);
        let to_a = || route("1 a 10.120.0.0/24", None);
        for (nodes, routes, deleted, made) in [
            (vec![a()], vec![to_a()], &[][..], &[][..]),
            (vec![a()], vec![], &[], &["a 10.120.0.0/24"]),
            (vec![dual()], vec![], &[], &["b 10.120.1.0/24", "b fd00:0:0:1::/64"]),
            (
                vec![a(), dual()],
                vec![to_a(), route("2 b fd00:0:0:1::/64", None)],
                &[],
                &["b 10.120.1.0/24"],
            ),
            // The Node is gone, has no range, or another one.
            (vec![], vec![to_a()], &["1"], &[]),
            (vec![node("a", &[], &[])], vec![to_a()], &["1"], &[]),
            (vec![a()], vec![route("3 a 10.120.7.0/24", None)], &["3"], &["a 10.120.0.0/24"]),
            // Not ours: outside of the cluster's ranges, or not to be read.
            (vec![], vec![route("4 x 10.1.0.0/16", None), route("5 x nonsense", None)], &[], &[]),
            (vec![], vec![route("6 x 10.0.0.0/8", None)], &[], &[]),
            (vec![], vec![route("7 x fd00:0:0:9::/64", None)], &["7"], &[]),
            // The provider keeps addresses, in its own order.
            (
                vec![node("a", &["10.120.0.0/24"], &["10.0.0.1", "10.0.0.2"])],
                vec![route("8 a 10.120.0.0/24", Some(&["10.0.0.2", "10.0.0.1"]))],
                &[],
                &[],
            ),
            (
                vec![a()],
                vec![route("9 a 10.120.0.0/24", Some(&["10.0.0.9"]))],
                &["9"],
                &["a 10.120.0.0/24"],
            ),
        ] {
            let shown = format!("{nodes:?} {routes:?}");
            let (now_deleted, now_made) = planned(nodes, routes);
            assert_eq!(now_deleted, deleted, "{shown}");
            assert_eq!(now_made, made, "{shown}");
        }
    }

    #[test]
    fn blackholes_are_deleted_and_the_others_stay() {
        let nowhere = |text: &str| Route { blackhole: true, ..route(text, None) };
        let routes = vec![nowhere("1  10.120.5.0/24"), nowhere("2  10.1.0.0/24")];
        assert_eq!(planned(vec![], routes).0, ["1"]);
    }

    #[test]
    fn nodes_with_a_range_or_a_route_have_a_condition() {
        let nodes =
            vec![node("a", &["10.120.0.0/24"], &[]), node("b", &[], &[]), node("c", &[], &[])];
        let routes = vec![route("1 c 10.120.1.0/24", None)];
        let plan = Plan::new(nodes, routes, &ranges("10.120.0.0/16"));
        let shown: Vec<bool> = plan.nodes.iter().map(|plan| plan.has_condition).collect();
        assert_eq!(shown, [true, false, true]);
    }

    #[test]
    fn cluster_ranges_are_one_of_each_family() {
        for (flag, fault) in [
            ("10.0.0.0/8", ""),
            (" 10.0.0.0/8,fd00::/48", ""),
            ("", "invalid CIDR address: \"\""),
            ("10.0.0.0/8,", "invalid CIDR address: \"\""),
            ("10.0.0.0/33", "invalid CIDR address"),
            ("10.0.0.0/8,11.0.0.0/8", "not configured as dual stack"),
            ("10.0.0.0/8,11.0.0.0/8,fd00::/48", "more than max allowed of 2"),
        ] {
            match ClusterRanges::parse(flag) {
                Ok(_) => assert_eq!(fault, "", "{flag}"),
                Err(error) => assert!(!fault.is_empty() && error.contains(fault), "{error}"),
            }
        }
    }
}
