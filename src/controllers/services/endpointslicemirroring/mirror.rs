//! The slices that mirror Endpoints: one for each family and list of ports.
//! Upstream: `pkg/controller/endpointslicemirroring`'s `reconciler`, `desiredCalc`.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use super::MANAGER;
use crate::controllers::services::endpoint_set::{EndpointSet, equal};
use crate::controllers::services::endpoint_writes::{LAST_CHANGE, relabelled};
use crate::controllers::services::port_hash::in_order;
use crate::controllers::services::repack_subsets::repack;
use crate::controllers::services::service_slices::{MANAGED_BY, SERVICE_NAME, prefix};
use crate::controllers::services::slice_counts::Efficiency;
use crate::objects::{
    Endpoint, EndpointAddress, EndpointConditions, EndpointPort, EndpointSlice, EndpointSubset,
    Endpoints, Interned, Istr, Labels, Meta, SlicePort,
};

/// Upstream: `v1.LastAppliedConfigAnnotation`.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The address type and the ports of a slice.
type Kind = (Istr, Vec<SlicePort>);

/// The wanted slices of some Endpoints.
#[derive(Default)]
pub struct Desired {
    /// The endpoints of each kind, in a fixed order; a kind may have none.
    kinds: BTreeMap<Kind, Vec<Endpoint>>,
    /// The number of addresses that are not IP addresses.
    pub invalid: usize,
    /// The number of addresses that are not mirrored: invalid ones, and those above the limit.
    pub skipped: usize,
}

/// Converts Endpoints to the endpoints that slices are to mirror, by family and ports. `max`: the
/// most addresses of one subset that are mirrored.
pub fn desired(endpoints: &Endpoints, max: usize) -> Desired {
    let mut desired = Desired::default();
    for subset in repack(&endpoints.subsets) {
        let EndpointSubset { addresses, not_ready_addresses, ports } = subset;
        let ports = slice_ports(&ports);
        let kind = |family: &str| (Istr::new(family), ports.clone());
        // A kind without endpoints is there too, so that its slices are deleted.
        for family in ["IPv4", "IPv6"] {
            desired.kinds.entry(kind(family)).or_default();
        }
        let total = addresses.len() + not_ready_addresses.len();
        let mut mirrored = 0;
        let ready = addresses.iter().map(|address| (address, true));
        let all = ready.chain(not_ready_addresses.iter().map(|address| (address, false)));
        for (address, ready) in all {
            if mirrored == max {
                break;
            }
            match endpoint(address, ready) {
                Some((family, endpoint)) => {
                    desired.kinds.entry(kind(family)).or_default().push(endpoint);
                    mirrored += 1;
                }
                None => desired.invalid += 1,
            }
        }
        desired.skipped += total - mirrored;
    }
    desired
}

/// Converts an address to an endpoint, and returns it with its family; `None` if it is not an IP
/// address. Upstream: `addressToEndpoint`.
fn endpoint(address: &EndpointAddress, ready: bool) -> Option<(&'static str, Endpoint)> {
    let ip = address.ip.ip()?;
    let endpoint = Endpoint {
        addresses: [ip.into()].into_iter().collect(),
        conditions: EndpointConditions { ready: Some(ready), ..EndpointConditions::default() },
        hostname: address.hostname.clone().filter(|hostname| !hostname.is_empty()),
        node_name: address.node_name.clone(),
        target_ref: address.target_ref.clone(),
        ..Endpoint::default()
    };
    Some((if ip.is_ipv6() { "IPv6" } else { "IPv4" }, endpoint))
}

/// Converts the ports of a subset to those of a slice, in canonical order.
fn slice_ports(ports: &[EndpointPort]) -> Vec<SlicePort> {
    let port = |EndpointPort { name, port, protocol, app_protocol }: EndpointPort| SlicePort {
        name: Some(name),
        protocol: Some(protocol),
        port: Some(port),
        app_protocol,
    };
    in_order(ports.iter().cloned().map(port).collect())
}

/// The numbers of added, updated and removed endpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Changes {
    pub added: isize,
    pub updated: usize,
    pub removed: usize,
}

/// The changes to the slices.
#[derive(Debug, Default)]
pub struct Plan {
    pub create: Vec<EndpointSlice>,
    pub update: Vec<EndpointSlice>,
    pub delete: Vec<Arc<EndpointSlice>>,
    /// Slices with the wanted content.
    pub current: Vec<Arc<EndpointSlice>>,
    pub changes: Changes,
    pub efficiency: Vec<Efficiency>,
}

/// Plans the changes that make the `existing` slices, all that mirror these Endpoints now, mirror
/// the `desired` endpoints, with at most `max` in a slice.
/// Upstream: `reconcile`.
pub fn plan(
    endpoints: &Endpoints,
    desired: Desired,
    existing: Vec<Arc<EndpointSlice>>,
    max: usize,
) -> Plan {
    let mut by_kind: HashMap<Kind, Vec<Arc<EndpointSlice>>> = HashMap::new();
    for slice in existing {
        let kind = (slice.address_type.clone(), in_order(slice.ports.clone()));
        by_kind.entry(kind).or_default().push(slice);
    }
    let mut plan = Plan::default();
    for (kind, wanted) in desired.kinds {
        let existing = by_kind.remove(&kind).unwrap_or_default();
        let mut wanted = EndpointSet::new(wanted);
        let count = wanted.len();
        if wanted.is_empty() {
            plan.changes.removed += existing.iter().map(|s| s.endpoints.len()).sum::<usize>();
            plan.efficiency.push((0, 0));
            plan.delete.extend(existing);
            continue;
        }
        plan.efficiency.push((count, 1));
        // One slice holds the endpoints of a kind, up to `max`.
        let mut existing = existing.into_iter();
        let first = existing.next();
        plan.delete.extend(existing);
        let changes = match &first {
            Some(slice) => changes(slice, &wanted),
            None => Changes { added: count.cast_signed(), ..Changes::default() },
        };
        plan.changes.added += changes.added;
        plan.changes.updated += changes.updated;
        plan.changes.removed += changes.removed;
        if changes == Changes::default()
            && let Some(slice) = &first
            && mirrors_metadata(slice, endpoints)
        {
            plan.current.push(slice.clone());
            continue;
        }
        let mut new = new_slice(endpoints, kind);
        wanted.fill(&mut new.endpoints, max);
        match first {
            Some(slice) => plan.update.push(with_identity_of(new, &slice)),
            None => plan.create.push(new),
        }
    }
    plan.delete.extend(by_kind.into_values().flatten());
    recycle(&mut plan);
    plan
}

/// Turns deletions and creations of slices of the same address type into updates, pair by pair.
/// Upstream: `recycleSlices`.
fn recycle(plan: &mut Plan) {
    let Plan { create, update, delete, .. } = plan;
    let mut new: BTreeMap<Istr, VecDeque<EndpointSlice>> = BTreeMap::new();
    for slice in create.drain(..) {
        new.entry(slice.address_type.clone()).or_default().push_back(slice);
    }
    delete.retain(|old| match new.get_mut(&old.address_type).and_then(VecDeque::pop_front) {
        Some(new) => {
            update.push(with_identity_of(new, old));
            false
        }
        None => true,
    });
    create.extend(new.into_values().flatten());
}

/// Returns `new` with the name of `old`, so that it replaces it.
fn with_identity_of(mut new: EndpointSlice, old: &EndpointSlice) -> EndpointSlice {
    new.meta.name = old.meta.name.clone();
    new.meta.generate_name = Istr::default();
    new
}

/// Counts the endpoints that have to be added, updated and removed to turn a slice into `wanted`.
/// Upstream: `totalChanges`.
fn changes(slice: &EndpointSlice, wanted: &EndpointSet) -> Changes {
    let mut changes = Changes::default();
    let mut kept = 0usize;
    for endpoint in &slice.endpoints {
        match wanted.get(endpoint) {
            None => changes.removed += 1,
            Some(wanted) => {
                kept += 1;
                changes.updated += usize::from(!equal(wanted, endpoint));
            }
        }
    }
    // Negative when the slice has an address twice, so that it is written again.
    changes.added = wanted.len().cast_signed() - kept.cast_signed();
    changes
}

/// Returns the annotations of the Endpoints, without those that concern only them.
fn mirrored_annotations(endpoints: &Endpoints) -> Labels {
    relabelled(&endpoints.meta.annotations, &[(LAST_CHANGE, None), (LAST_APPLIED, None)])
}

/// Returns whether a slice has the labels and annotations of the Endpoints, and its owner is not an
/// earlier object of that name.
fn mirrors_metadata(slice: &EndpointSlice, endpoints: &Endpoints) -> bool {
    let labels = relabelled(&slice.meta.labels, &[(MANAGED_BY, None), (SERVICE_NAME, None)]);
    let of_another = slice.meta.owners().iter().any(|owner| {
        owner.kind == "Endpoints"
            && *owner.name == *endpoints.meta.name
            && owner.uid != endpoints.meta.uid
    });
    labels == endpoints.meta.labels
        && slice.meta.annotations == mirrored_annotations(endpoints)
        && !of_another
}

/// Returns an empty slice of this kind, to be created.
/// Upstream: `newEndpointSlice`.
fn new_slice(endpoints: &Endpoints, (address_type, ports): Kind) -> EndpointSlice {
    let meta = &endpoints.meta;
    let reserved = [(SERVICE_NAME, Some(&*meta.name)), (MANAGED_BY, Some(MANAGER))];
    EndpointSlice {
        meta: Meta {
            generate_name: prefix(&meta.name).into(),
            namespace: meta.namespace.clone(),
            labels: relabelled(&meta.labels, &reserved),
            annotations: mirrored_annotations(endpoints),
            owner_references: Some(Interned::alone([meta.controller_ref::<Endpoints>()])),
            ..Meta::default()
        },
        address_type,
        endpoints: Vec::new(),
        ports,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn endpoints(subsets: Value) -> Endpoints {
        serde_json::from_value(json!({
            "metadata": {
                "namespace": "ns", "name": "s", "uid": "u", "labels": {"a": "b"},
                "annotations": {"c": "d", LAST_CHANGE: "x", LAST_APPLIED: "y"},
            },
            "subsets": subsets,
        }))
        .unwrap()
    }

    fn subset(ready: &[&str], not_ready: &[&str], port: i32) -> Value {
        let addresses = |ips: &[&str]| ips.iter().map(|ip| json!({"ip": ip})).collect::<Vec<_>>();
        json!({
            "addresses": addresses(ready), "notReadyAddresses": addresses(not_ready),
            "ports": [{"name": "p", "port": port, "protocol": "TCP"}],
        })
    }

    fn mirrored(
        endpoints: &Endpoints,
        existing: &[EndpointSlice],
        max: usize,
    ) -> (Plan, usize, usize) {
        let existing = existing.iter().cloned().map(Arc::new).collect();
        let desired = desired(endpoints, max);
        let (invalid, skipped) = (desired.invalid, desired.skipped);
        (plan(endpoints, desired, existing, max), invalid, skipped)
    }

    /// A created slice as the API server stores it.
    fn stored(created: Vec<EndpointSlice>) -> Vec<EndpointSlice> {
        let named = |(at, mut slice): (usize, EndpointSlice)| {
            slice.meta.name = format!("s-{at}").into();
            slice
        };
        created.into_iter().enumerate().map(named).collect()
    }

    #[test]
    fn a_slice_for_each_family_and_list_of_ports() {
        let both = endpoints(json!([
            subset(&["10.0.0.1", "fd00::1"], &["10.0.0.2"], 80),
            subset(&["10.0.0.3", "nonsense"], &[], 81),
        ]));
        let (plan, invalid, skipped) = mirrored(&both, &[], 1000);
        assert_eq!((invalid, skipped), (1, 1));
        assert_eq!(plan.changes, Changes { added: 4, ..Changes::default() });
        let shown: Vec<String> = plan
            .create
            .iter()
            .map(|slice| {
                let ips: Vec<String> = slice
                    .endpoints
                    .iter()
                    .flat_map(|e| e.addresses.iter().map(|ip| (ip, e.is_ready())))
                    .map(|(ip, is_ready)| format!("{ip}={is_ready}"))
                    .collect();
                let port = slice.ports[0].port.unwrap();
                format!("{} {port} {}", slice.address_type, ips.join(","))
            })
            .collect();
        assert_eq!(
            shown,
            [
                "IPv4 80 10.0.0.1=true,10.0.0.2=false",
                "IPv4 81 10.0.0.3=true",
                "IPv6 80 fd00::1=true"
            ]
        );
        assert_eq!(
            serde_json::to_value(&plan.create[0].meta).unwrap(),
            json!({
                "generateName": "s-", "namespace": "ns", "annotations": {"c": "d"},
                "labels": {
                    "a": "b", "kubernetes.io/service-name": "s",
                    "endpointslice.kubernetes.io/managed-by":
                        "endpointslicemirroring-controller.k8s.io",
                },
                "ownerReferences": [{
                    "apiVersion": "v1", "kind": "Endpoints", "name": "s", "uid": "u",
                    "controller": true, "blockOwnerDeletion": true,
                }],
            })
        );
        let (again, ..) = mirrored(&both, &stored(plan.create), 1000);
        assert_eq!((again.create.len(), again.update.len(), again.delete.len()), (0, 0, 0));
        assert_eq!((again.current.len(), again.changes), (3, Changes::default()));
    }

    #[test]
    fn slices_follow_changes_of_the_endpoints() {
        let old = endpoints(json!([subset(&["10.0.0.1", "10.0.0.2"], &[], 80)]));
        let slices = stored(mirrored(&old, &[], 1000).0.create);
        let relabelled = Endpoints {
            meta: Meta { labels: Labels::default(), ..old.meta.clone() },
            ..old.clone()
        };
        let recreated =
            Endpoints { meta: Meta { uid: "v".into(), ..old.meta.clone() }, ..old.clone() };
        let changes = |added, updated, removed| Changes { added, updated, removed };
        for (what, new, (create, update, delete), counted) in [
            ("nothing", old.clone(), (0, 0, 0), changes(0, 0, 0)),
            (
                "one more",
                endpoints(json!([subset(&["10.0.0.1", "10.0.0.2", "10.0.0.3"], &[], 80)])),
                (0, 1, 0),
                changes(1, 0, 0),
            ),
            (
                "not ready",
                endpoints(json!([subset(&["10.0.0.1"], &["10.0.0.2"], 80)])),
                (0, 1, 0),
                changes(0, 1, 0),
            ),
            (
                "another port: recycled",
                endpoints(json!([subset(&["10.0.0.1"], &[], 81)])),
                (0, 1, 0),
                changes(1, 0, 0),
            ),
            (
                "another family",
                endpoints(json!([subset(&["fd00::1"], &[], 80)])),
                (1, 0, 1),
                changes(1, 0, 2),
            ),
            ("no address", endpoints(json!([])), (0, 0, 1), changes(0, 0, 0)),
            ("relabelled", relabelled, (0, 1, 0), changes(0, 0, 0)),
            ("recreated", recreated, (0, 1, 0), changes(0, 0, 0)),
        ] {
            let (plan, ..) = mirrored(&new, &slices, 1000);
            assert_eq!(
                (plan.create.len(), plan.update.len(), plan.delete.len()),
                (create, update, delete),
                "{what}"
            );
            assert_eq!(plan.changes, counted, "{what}");
            assert!(plan.update.iter().all(|slice| &*slice.meta.name == "s-0"), "{what}");
        }
    }

    #[test]
    fn no_more_than_the_maximum_of_a_subset_is_mirrored() {
        let many = endpoints(json!([subset(&["10.0.0.1", "10.0.0.2"], &["10.0.0.3"], 80)]));
        for (max, count, skipped) in [(3, 3, 0), (2, 2, 1), (1, 1, 2)] {
            let (plan, _, left_out) = mirrored(&many, &[], max);
            assert_eq!((plan.create[0].endpoints.len(), left_out), (count, skipped));
        }
    }
}
