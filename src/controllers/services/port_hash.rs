//! The hashes by which upstream orders ports and subsets: FNV-1a over the text in which `spew`
//! prints the Go value. The order is visible in the objects, so it must be the same here. Upstream:
//! `hashutil.DeepHashObject`, `dump.ForHash`.

use std::fmt::{Display, Write};

use crate::objects::{EndpointAddress, EndpointPort, EndpointSubset, SlicePort, TargetRef};

/// FNV-1a of 128 bits.
struct Fnv(u128);

impl Write for Fnv {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        const PRIME: u128 = 0x0100_0000_0000_0000_0000_013b;
        for byte in text.bytes() {
            self.0 = (self.0 ^ u128::from(byte)).wrapping_mul(PRIME);
        }
        Ok(())
    }
}

/// Returns the FNV-1a hash of the text that `print` writes.
fn hash(print: impl FnOnce(&mut dyn Write) -> std::fmt::Result) -> u128 {
    let mut fnv = Fnv(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d);
    // Writing text to it never fails.
    let _ = print(&mut fnv);
    fnv.0
}

/// Sorts a slice's ports into the canonical order, for storing and for comparing lists of ports.
/// Upstream: `portsInOrder`.
pub fn in_order(mut ports: Vec<SlicePort>) -> Vec<SlicePort> {
    ports.sort_by_cached_key(slice_port_hash);
    ports
}

/// Returns the sort key of a slice's port: upstream sorts by the hash of the port as go-spew prints
/// it.
fn slice_port_hash(port: &SlicePort) -> u128 {
    hash(|to| {
        to.write_str("(v1.EndpointPort){Name:")?;
        pointer(to, "string", port.name.as_ref())?;
        to.write_str(" Protocol:")?;
        pointer(to, "v1.Protocol", port.protocol.as_ref())?;
        to.write_str(" Port:")?;
        pointer(to, "int32", port.port.as_ref())?;
        to.write_str(" AppProtocol:")?;
        pointer(to, "string", port.app_protocol.as_ref())?;
        to.write_str("}")
    })
}

/// Returns the sort key of a subset's port: the hash of the text that go-spew prints.
pub fn port_hash(port: &EndpointPort) -> u128 {
    hash(|to| {
        to.write_str("(v1.EndpointPort)")?;
        print_port(to, port)
    })
}

/// Returns the sort key of a subset, whose addresses and ports are in order already: the hash of
/// the text that go-spew prints.
pub fn subset_hash(subset: &EndpointSubset) -> u128 {
    hash(|to| {
        to.write_str("(v1.EndpointSubset){Addresses:([]v1.EndpointAddress)")?;
        print_list(to, &subset.addresses, print_address)?;
        to.write_str(" NotReadyAddresses:([]v1.EndpointAddress)")?;
        print_list(to, &subset.not_ready_addresses, print_address)?;
        to.write_str(" Ports:([]v1.EndpointPort)")?;
        print_list(to, &subset.ports, print_port)?;
        to.write_str("}")
    })
}

/// Prints a pointer as go-spew does.
fn pointer<T: Display>(to: &mut dyn Write, kind: &str, value: Option<&T>) -> std::fmt::Result {
    match value {
        Some(value) => write!(to, "(*{kind}){value}"),
        None => write!(to, "(*{kind})<nil>"),
    }
}

/// Prints a list; an empty one is nil, as in Go.
fn print_list<T>(
    to: &mut dyn Write,
    list: &[T],
    print: fn(&mut dyn Write, &T) -> std::fmt::Result,
) -> std::fmt::Result {
    if list.is_empty() {
        return to.write_str("<nil>");
    }
    for (at, item) in list.iter().enumerate() {
        to.write_str(if at == 0 { "[" } else { " " })?;
        print(to, item)?;
    }
    to.write_str("]")
}

/// Prints a port as go-spew does.
fn print_port(to: &mut dyn Write, port: &EndpointPort) -> std::fmt::Result {
    let EndpointPort { name, port, protocol, app_protocol } = port;
    write!(to, "{{Name:(string){name} Port:(int32){port} Protocol:(v1.Protocol){protocol}")?;
    to.write_str(" AppProtocol:")?;
    pointer(to, "string", app_protocol.as_ref())?;
    to.write_str("}")
}

/// Prints an address as go-spew does.
fn print_address(to: &mut dyn Write, address: &EndpointAddress) -> std::fmt::Result {
    let EndpointAddress { ip, hostname, node_name, target_ref } = address;
    let hostname = hostname.as_deref().unwrap_or_default();
    write!(to, "{{IP:(string){ip} Hostname:(string){hostname} NodeName:")?;
    pointer(to, "string", node_name.as_ref())?;
    to.write_str(" TargetRef:(*v1.ObjectReference)")?;
    match target_ref {
        None => to.write_str("<nil>")?,
        Some(target) => {
            let TargetRef { kind, namespace, name, uid, .. } = target;
            let TargetRef { api_version, resource_version, field_path, .. } = target;
            write!(
                to,
                "{{Kind:(string){kind} Namespace:(string){namespace} Name:(string){name} \
                 UID:(types.UID){uid} APIVersion:(string){api_version} \
                 ResourceVersion:(string){resource_version} FieldPath:(string){field_path}}}"
            )?;
        }
    }
    to.write_str("}")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn ports(of: &[(&str, i32, &str)]) -> Value {
        let port = |(name, port, protocol): &(&str, i32, &str)| {
            let mut json = json!({"name": name, "port": port, "protocol": protocol});
            if *name == "http" {
                json["appProtocol"] = json!("kubernetes.io/h2c");
            }
            json
        };
        of.iter().map(port).collect()
    }

    /// The orders in which the Go manager stored these ports.
    #[test]
    fn ports_are_in_the_order_of_upstream() {
        let (dns, http) = (("dns", 53, "UDP"), ("http", 8080, "TCP"));
        let (adm, num) = (("adm", 8081, "TCP"), ("num", 99, "TCP"));
        let given: Vec<SlicePort> = serde_json::from_value(ports(&[adm, dns, http, num])).unwrap();
        let stored: Vec<SlicePort> = serde_json::from_value(ports(&[dns, http, adm, num])).unwrap();
        assert_eq!(in_order(given), stored);

        let mut given: Vec<EndpointPort> =
            serde_json::from_value(ports(&[dns, http, adm])).unwrap();
        let stored: Vec<EndpointPort> = serde_json::from_value(ports(&[adm, http, dns])).unwrap();
        given.sort_by_key(port_hash);
        assert_eq!(given, stored);
    }
}
