//! The controllers, one row each. Upstream: `DefaultInitFuncConstructors`, and the sample in
//! `cmd/cloud-controller-manager`.

use kube_controller_manager::app::controller_table::{Descriptor, find, row};
use kube_controller_manager::controllers::Controller;

use crate::controllers::{lifecycle, node, route, service};

const NODE_IPAM: &str = "node-ipam-controller";

/// Returns the rows of the controllers, in the order in which they start. All are on by default.
pub fn controllers() -> Vec<Descriptor> {
    let mut rows = vec![
        row("cloud-node-controller")
            .alias("cloud-node")
            .account("node-controller")
            .event_source("cloud-node-controller")
            .queue("Nodes")
            .built(node::controller),
        row("cloud-node-lifecycle-controller")
            .alias("cloud-node-lifecycle")
            .account("node-controller")
            .event_source("cloud-node-lifecycle-controller")
            .built(lifecycle::controller),
        row("service-lb-controller")
            .alias("service")
            .account("service-controller")
            .queue("service")
            .workers_from_flag("ServiceController", "ConcurrentServiceSyncs", |o| {
                o.concurrent_service_syncs
            })
            .built(service::controller),
        row("node-route-controller")
            .alias("route")
            .account("route-controller")
            .event_source("route_controller")
            .queue("Routes")
            .built(route::controller),
    ];
    // The other manager's, by its own row.
    rows.extend(find(NODE_IPAM).map(|row| row.built(node_ipam)));
    rows
}

/// Constructs `node-ipam-controller` with the constructor of the other manager's row. Refuses
/// unknown allocators, and those that asked a cloud: they are gone from 1.36, and a manager with
/// their names does not start. Without `--allocate-node-cidrs` any name is accepted.
fn node_ipam(c: &mut Controller) -> Result<(), String> {
    let options = c.options();
    let fault = match options.cidr_allocator_type.as_str() {
        // The constructor starts no controller then.
        _ if !options.allocate_node_cidrs => None,
        "RangeAllocator" => None,
        "IPAMFromCluster" | "IPAMFromCloud" => Some(
            "Error trying to Init(): legacy cloud provider support disabled at build time"
                .to_owned(),
        ),
        other => Some(format!("invalid CIDR allocator type: {other}")),
    };
    if let Some(fault) = fault {
        return Err(format!("--cidr-allocator-type: {fault}"));
    }
    let constructor = find(NODE_IPAM).and_then(|row| row.constructor);
    constructor.map_or(Ok(()), |constructor| constructor(c))
}

#[cfg(test)]
mod tests {
    use kube_controller_manager::app::controller_table::{canonical, names};

    use super::*;

    #[test]
    fn names_and_aliases_are_upstreams() {
        let rows = controllers();
        let (all, off) = names(&rows);
        assert_eq!(
            all,
            [
                "cloud-node-controller",
                "cloud-node-lifecycle-controller",
                "node-ipam-controller",
                "node-route-controller",
                "service-lb-controller",
            ]
        );
        assert_eq!(off, Vec::<&str>::new());
        let older: Vec<String> =
            ["-cloud-node", "cloud-node-lifecycle", "nodeipam", "route", "service"]
                .map(String::from)
                .into();
        assert_eq!(
            canonical(&rows, &older),
            [
                "-cloud-node-controller",
                "cloud-node-lifecycle-controller",
                "node-ipam-controller",
                "node-route-controller",
                "service-lb-controller",
            ]
        );
    }
}
