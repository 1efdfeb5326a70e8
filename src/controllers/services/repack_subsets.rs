//! The canonical form of Endpoints. Upstream: `endpoints.RepackSubsets`.

use std::collections::{BTreeMap, HashMap};

use super::port_hash;
use crate::objects::{AddressText, EndpointAddress, EndpointPort, EndpointSubset, Uid};

/// Collects addresses and the ports that they offer, and packs them into subsets.
#[derive(Default)]
pub struct Packer {
    /// Each address once, identified by IP address and by the uid of its target.
    addresses: Vec<EndpointAddress>,
    known: HashMap<(AddressText, Uid), usize>,
    /// The addresses of each port (`None`: no port) and origin, as [`Packer::add`] defines it.
    ports: HashMap<(Option<EndpointPort>, usize), Offer>,
}

/// The addresses that have a port, by position in `addresses`, and whether each is ready.
type Offer = BTreeMap<usize, bool>;

impl Packer {
    /// Adds an address and one port that it offers, `None` if it has no ports. Once not ready for a
    /// port, it stays so. Ports with an application protocol are equal only if they have the same
    /// `origin`: upstream compares the pointers to these, and objects that it stored that way must
    /// not change.
    pub fn add(
        &mut self,
        address: &EndpointAddress,
        port: Option<&EndpointPort>,
        origin: usize,
        ready: bool,
    ) {
        let target = address.target_ref.as_ref();
        let uid = target.map(|target| target.uid.clone()).unwrap_or_default();
        let at = *self.known.entry((address.ip.clone(), uid)).or_insert_with(|| {
            self.addresses.push(address.clone());
            self.addresses.len() - 1
        });
        let by_pointer = port.is_some_and(|port| port.app_protocol.is_some());
        let port = (port.cloned(), if by_pointer { origin } else { 0 });
        let ready_now = self.ports.entry(port).or_default().entry(at).or_insert(ready);
        *ready_now &= ready;
    }

    /// Returns the fewest subsets that hold the addresses, sorted: ports with the same addresses
    /// share one.
    pub fn finish(self) -> Vec<EndpointSubset> {
        let mut by_offer: HashMap<Offer, Vec<EndpointPort>> = HashMap::new();
        for ((port, _), offer) in self.ports {
            by_offer.entry(offer).or_default().extend(port);
        }
        let subset = |(offer, mut ports): (Offer, Vec<EndpointPort>)| {
            let mut subset = EndpointSubset::default();
            for (at, ready) in offer {
                let address = self.addresses[at].clone();
                match ready {
                    true => subset.addresses.push(address),
                    false => subset.not_ready_addresses.push(address),
                }
            }
            subset.addresses.sort_by(by_ip_and_uid);
            subset.not_ready_addresses.sort_by(by_ip_and_uid);
            ports.sort_by_cached_key(port_hash::port_hash);
            subset.ports = ports;
            subset
        };
        let mut subsets: Vec<EndpointSubset> = by_offer.into_iter().map(subset).collect();
        subsets.sort_by_cached_key(port_hash::subset_hash);
        subsets
    }
}

/// Compares addresses in a subset: by IP address, then by the uid of the pod.
fn by_ip_and_uid(a: &EndpointAddress, b: &EndpointAddress) -> std::cmp::Ordering {
    fn uid(of: &EndpointAddress) -> Option<&Uid> {
        of.target_ref.as_ref().map(|target| &target.uid)
    }
    a.ip.cmp(&b.ip).then_with(|| uid(a).cmp(&uid(b)))
}

/// Packs the endpoints of `subsets` into the canonical form.
pub fn repack(subsets: &[EndpointSubset]) -> Vec<EndpointSubset> {
    let mut packer = Packer::default();
    let mut origin = 0;
    for EndpointSubset { addresses, not_ready_addresses, ports } in subsets {
        let ports: Vec<Option<&EndpointPort>> = match ports.is_empty() {
            true => vec![None],
            false => ports.iter().map(Some).collect(),
        };
        for port in ports {
            origin += 1;
            addresses.iter().for_each(|address| packer.add(address, port, origin, true));
            let not_ready = not_ready_addresses.iter();
            not_ready.for_each(|address| packer.add(address, port, origin, false));
        }
    }
    packer.finish()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn ip(ip: &str) -> Value {
        json!({ "ip": ip })
    }

    fn subset(ready: &[&str], not_ready: &[&str], ports: &[i32]) -> Value {
        let port =
            |port: &i32| json!({"name": format!("p{port}"), "port": port, "protocol": "TCP"});
        json!({
            "addresses": ready.iter().map(|a| ip(a)).collect::<Vec<_>>(),
            "notReadyAddresses": not_ready.iter().map(|a| ip(a)).collect::<Vec<_>>(),
            "ports": ports.iter().map(port).collect::<Vec<_>>(),
        })
    }

    fn subsets(of: &[Value]) -> Vec<EndpointSubset> {
        of.iter().map(|subset| serde_json::from_value(subset.clone()).unwrap()).collect()
    }

    #[test]
    fn equal_offers_become_one_subset() {
        for (what, given, packed) in [
            ("nothing", vec![], vec![]),
            ("one", vec![subset(&["1"], &[], &[80])], vec![subset(&["1"], &[], &[80])]),
            ("no ports", vec![subset(&["1"], &["2"], &[])], vec![subset(&["1"], &["2"], &[])]),
            (
                "one port, two addresses, in order",
                vec![subset(&["2"], &[], &[80]), subset(&["1"], &[], &[80])],
                vec![subset(&["1", "2"], &[], &[80])],
            ),
            (
                "in the order of the texts",
                vec![subset(&["10.0.0.2", "10.0.0.10"], &[], &[80])],
                vec![subset(&["10.0.0.10", "10.0.0.2"], &[], &[80])],
            ),
            (
                "one address, two ports",
                vec![subset(&["1"], &[], &[80]), subset(&["1"], &[], &[81])],
                vec![subset(&["1"], &[], &[80, 81])],
            ),
            (
                "not ready counts",
                vec![subset(&["1", "1"], &[], &[80]), subset(&[], &["1"], &[80])],
                vec![subset(&[], &["1"], &[80])],
            ),
        ] {
            let mut packed = subsets(&packed);
            for subset in &mut packed {
                subset.ports.sort_by_cached_key(port_hash::port_hash);
            }
            assert_eq!(repack(&subsets(&given)), packed, "{what}");
        }
        let apart =
            repack(&subsets(&[subset(&["1", "2"], &[], &[80]), subset(&["1"], &["2"], &[81])]));
        assert_eq!(apart.len(), 2, "ready for one port and not for the other");
        assert_eq!(repack(&apart), apart, "packed once is packed");
    }

    #[test]
    fn ports_with_an_application_protocol_stay_with_their_subset() {
        let subset = |ip: &str, protocol: Value| {
            json!({
                "addresses": [{"ip": ip}],
                "ports": [{"name": "p", "port": 80, "appProtocol": protocol}],
            })
        };
        for (protocol, count) in [(json!("http"), 2), (Value::Null, 1)] {
            let given = [subset("1", protocol.clone()), subset("2", protocol)];
            assert_eq!(repack(&subsets(&given)).len(), count);
        }
    }

    /// One address may be that of two pods of one host.
    #[test]
    fn addresses_with_different_targets_are_distinguished() {
        let shared = |uid: &str| json!({"ip": "1", "targetRef": {"uid": uid}});
        let given = json!({"addresses": [shared("b"), ip("1"), shared("a"), shared("b")]});
        let packed = repack(&subsets(&[given]));
        let wanted = json!({"addresses": [ip("1"), shared("a"), shared("b")]});
        assert_eq!(packed, subsets(&[wanted]));
    }
}
