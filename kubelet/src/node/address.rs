//! The addresses of the node. Upstream: `nodestatus.NodeAddress`, `nodeutil.ParseNodeIPArgument`.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, ToSocketAddrs, UdpSocket};
use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use parking_lot::Mutex;

use super::Error;

/// Addresses behind the default routes: a socket that is connected to one has the node's own
/// address. Nothing is sent. Upstream: `ChooseHostInterface`.
const FAR: [Far; 2] = [("0.0.0.0:0", "192.0.2.1:9"), ("[::]:0", "[2001:db8::1]:9")];

/// The addresses that `--node-ip` names, for the cloud controller.
/// Upstream: `AnnotationAlphaProvidedIPAddr`.
pub const PROVIDED_IP: &str = "alpha.kubernetes.io/provided-node-ip";

/// An unspecified address of a family, and one behind its default route.
type Far = (&'static str, &'static str);

/// `--node-ip`: one address, or one of each family. An unspecified address names only the family that
/// is preferred.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeIps {
    first: Option<IpAddr>,
    second: Option<IpAddr>,
}

impl NodeIps {
    /// Parses the addresses of `--node-ip`: at most one of each family. Words that are no addresses
    /// are ignored, and logged.
    ///
    /// # Errors
    /// There are several of a family, or an unspecified one beside another.
    pub fn parse(text: &str) -> Result<NodeIps, Error> {
        let words = text.split(',').map(str::trim).filter(|_| !text.is_empty());
        let (mut ips, mut faulty) = (Vec::new(), Vec::new());
        for word in words {
            match parse_sloppy(word) {
                Some(ip) => ips.push(ip),
                None => faulty.push(word),
            }
        }
        if !faulty.is_empty() {
            log::info!("Could not parse some node IP(s), ignoring them: {faulty:?}");
        }
        let fault = match ips[..] {
            [] | [_] => None,
            [first, second] if first.is_ipv4() != second.is_ipv4() => {
                let has_unspecified = first.is_unspecified() || second.is_unspecified();
                has_unspecified.then_some("dual-stack node IP cannot include '0.0.0.0' or '::'")
            }
            _ => Some("must contain either a single IP or a dual-stack pair of IPs"),
        };
        match fault {
            Some(fault) => Err(Error::NodeIp { text: text.to_owned(), fault }),
            None => Ok(NodeIps { first: ips.first().copied(), second: ips.get(1).copied() }),
        }
    }

    fn specified(&self) -> impl Iterator<Item = IpAddr> + use<> {
        [self.first, self.second].into_iter().flatten().filter(|ip| !ip.is_unspecified())
    }

    fn prefers_v4(&self) -> bool {
        self.first.is_none_or(|ip| ip.is_ipv4())
    }
}

/// Parses an address whose parts may have leading zeros. Upstream: `netutils.ParseIPSloppy`.
pub fn parse_sloppy(text: &str) -> Option<IpAddr> {
    if text.contains(':') {
        let ip = text.parse::<IpAddr>().ok()?;
        return Some(ip.to_canonical());
    }
    let parts: Vec<String> = text
        .split('.')
        .map(|part| match part.trim_start_matches('0') {
            "" if !part.is_empty() => "0".to_owned(),
            digits => digits.to_owned(),
        })
        .collect();
    parts.join(".").parse().ok()
}

/// The addresses of the node, which are read when they are needed: a node may start before it has one,
/// and each lease may bring another. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct NodeAddress {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// The node's name, and its address of the type Hostname.
    hostname: String,
    ips: NodeIps,
    /// `--cloud-provider=external`: a controller of the cloud sets the addresses.
    is_external: bool,
    /// The last address of the default route, which stays while no route is found.
    last: Mutex<Option<IpAddr>>,
    /// The machine's own address of the node's name, if it has been found.
    looked_up: Mutex<Option<IpAddr>>,
}

/// Where addresses come from beside the settings.
struct Sources<'a> {
    /// Checks that the node can have an address; `Err`: why not.
    validate: &'a dyn Fn(IpAddr) -> Result<(), String>,
    /// Returns the addresses of the node's name.
    look_up: &'a dyn Fn() -> Vec<IpAddr>,
    default_route: &'a dyn Fn() -> Option<IpAddr>,
}

impl NodeAddress {
    pub fn new(hostname: String, ips: NodeIps, is_external: bool) -> NodeAddress {
        NodeAddress { inner: Arc::new(Inner { hostname, ips, is_external, ..Inner::default() }) }
    }

    /// Returns the addresses of the machine, one of a family: those of `--node-ip`, else the one of
    /// the node's name, else that of the default route. Empty: there never was one.
    pub fn now(&self) -> Vec<IpAddr> {
        let Inner { hostname, ips, looked_up, .. } = &*self.inner;
        let mut specified: Vec<IpAddr> = ips.specified().collect();
        if specified.is_empty() {
            let named = parse_sloppy(hostname);
            let looked_up = || looked_up.lock().filter(|ip| validate(*ip).is_ok());
            specified.extend(named.or_else(looked_up).or_else(|| self.default_route()));
        }
        specified
    }

    /// Sets the addresses of a Node, and the annotation for the cloud's controller. Blocks.
    /// Upstream: `nodestatus.NodeAddress`.
    ///
    /// # Errors
    /// The machine does not have an address of `--node-ip`, or no address is known; those of the
    /// Node stay.
    pub fn set(&self, node: &mut core::Node) -> Result<(), Error> {
        let look_up = || -> Vec<IpAddr> {
            let found = (self.inner.hostname.as_str(), 0).to_socket_addrs();
            found.into_iter().flatten().map(|address| address.ip().to_canonical()).collect()
        };
        let default_route = || self.default_route();
        let sources =
            Sources { validate: &validate, look_up: &look_up, default_route: &default_route };
        self.set_by(node, &sources)
    }

    /// Sets the addresses as [`Self::set`] does, from these sources. With a cloud the addresses of
    /// its controller stay.
    fn set_by(&self, node: &mut core::Node, sources: &Sources<'_>) -> Result<(), Error> {
        let Inner { ips, is_external, .. } = &*self.inner;
        let specified: Vec<IpAddr> = ips.specified().collect();
        for (ip, which) in specified.iter().zip(["nodeIP", "secondaryNodeIP"]) {
            (sources.validate)(*ip).map_err(|fault| Error::Address { which, fault })?;
        }
        if *is_external && !specified.is_empty() {
            let texts: Vec<String> = specified.iter().map(IpAddr::to_string).collect();
            let annotations = node.metadata.annotations.get_or_insert_default();
            annotations.insert(PROVIDED_IP.to_owned(), texts.join(","));
        } else if let Some(annotations) = &mut node.metadata.annotations {
            annotations.remove(PROVIDED_IP);
        }
        let status = node.status.get_or_insert_default();
        let has_addresses = status.addresses.as_ref().is_some_and(|all| !all.is_empty());
        if *is_external && has_addresses {
            // The cloud's addresses take precedence.
            return Ok(());
        }
        let internal = match (*is_external, ips.first) {
            // The cloud's controller sets them. An unspecified `--node-ip` asks for one until then.
            (true, None) => Vec::new(),
            _ if !specified.is_empty() => specified,
            _ => vec![self.find_address(sources)?],
        };
        status.addresses = Some(self.list(&internal));
        Ok(())
    }

    /// Lists the addresses of a Node: internal ones, and the hostname.
    fn list(&self, internal: &[IpAddr]) -> Vec<core::NodeAddress> {
        let address =
            |type_: &str, address: String| core::NodeAddress { type_: type_.to_owned(), address };
        let internal = internal.iter().map(|ip| address("InternalIP", ip.to_string()));
        internal.chain([address("Hostname", self.inner.hostname.clone())]).collect()
    }

    /// Finds the address of a node for which none is specified: by its name, else on the default
    /// route.
    fn find_address(&self, sources: &Sources<'_>) -> Result<IpAddr, Error> {
        let Inner { hostname, ips, looked_up, .. } = &*self.inner;
        if let Some(ip) = parse_sloppy(hostname) {
            return Ok(ip);
        }
        let own = (sources.look_up)().into_iter().filter(|ip| (sources.validate)(*ip).is_ok());
        let own: Vec<IpAddr> = own.collect();
        let preferred = own.iter().find(|ip| ip.is_ipv4() == ips.prefers_v4());
        let found = preferred.or(own.first()).copied();
        *looked_up.lock() = found;
        let found = found.or_else(|| (sources.default_route)());
        found.ok_or_else(|| Error::NoAddress { node: hostname.clone() })
    }

    /// Returns the address of the default route, of the preferred family first.
    fn default_route(&self) -> Option<IpAddr> {
        self.route_by(|(any, far)| {
            let socket = UdpSocket::bind(any)?;
            socket.connect(far)?;
            Ok(socket.local_addr()?.ip())
        })
    }

    /// Returns the machine's address on the route of its preferred family, or of the other one.
    /// Where that fails, it is the last one found.
    fn route_by(&self, source: impl Fn(Far) -> io::Result<IpAddr>) -> Option<IpAddr> {
        let [v4, v6] = FAR;
        let (first, second) = if self.inner.ips.prefers_v4() { (v4, v6) } else { (v6, v4) };
        let found = source(first).or_else(|error| match error.kind() {
            ErrorKind::NetworkUnreachable | ErrorKind::HostUnreachable => source(second),
            // The kernel has no IPv6.
            _ if error.raw_os_error() == Some(rustix::io::Errno::AFNOSUPPORT.raw_os_error()) => {
                source(second)
            }
            // Others say nothing about the route: for instance, there is no descriptor.
            _ => Err(error),
        });
        let mut last = self.inner.last.lock();
        if let Ok(found) = found {
            *last = Some(found);
        }
        *last
    }
}

/// Checks that the node can have an address: it is one of the machine's, and others can reach it.
/// Upstream: `validateNodeIP`.
fn validate(ip: IpAddr) -> Result<(), String> {
    let is_link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    let fault = match ip {
        _ if ip.is_loopback() => "nodeIP can't be loopback address",
        _ if ip.is_multicast() => "nodeIP can't be a multicast address",
        _ if is_link_local => "nodeIP can't be a link-local unicast address",
        _ if ip.is_unspecified() => "nodeIP can't be an all zeros address",
        // Only own addresses can be bound to.
        _ => match UdpSocket::bind((ip, 0)) {
            Err(error) if error.kind() == ErrorKind::AddrNotAvailable => {
                return Err(format!(
                    "node IP: \"{ip}\" not found in the host's network interfaces"
                ));
            }
            // Other errors say nothing about the address.
            _ => return Ok(()),
        },
    };
    Err(fault.to_owned())
}

/// Returns the addresses at which the API's objects show a Node: the first one of its internal and
/// external addresses, and the first one of the other family. Upstream: `GetNodeHostIPs`.
pub fn host_ips(node: &core::Node) -> Vec<IpAddr> {
    let all = || node.status.iter().flat_map(|status| &status.addresses).flatten();
    let of = |kind: &'static str| all().filter(move |address| address.type_ == kind);
    let ips = of("InternalIP").chain(of("ExternalIP"));
    let ips: Vec<IpAddr> = ips.filter_map(|address| parse_sloppy(&address.address)).collect();
    let Some(first) = ips.first() else { return Vec::new() };
    let other = ips.iter().find(|ip| ip.is_ipv4() != first.is_ipv4());
    [Some(first), other].into_iter().flatten().copied().collect()
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;
    use serde_json::{Value, json};

    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn last_address_stays_until_another_is_found() {
        let address = NodeAddress::default();
        let (lost, lack) = (Err(Errno::NETUNREACH), Err(Errno::MFILE));
        for (v4, v6, expected) in [
            (lack, Ok("fd00::1"), None),
            (lost, lost, None),
            (lost, Ok("fd00::1"), Some("fd00::1")),
            (Ok("10.0.0.1"), Ok("fd00::1"), Some("10.0.0.1")),
            (lack, Ok("fd00::1"), Some("10.0.0.1")),
            (lost, lost, Some("10.0.0.1")),
            (lost, lack, Some("10.0.0.1")),
            (Ok("10.0.0.2"), lost, Some("10.0.0.2")),
            (Err(Errno::HOSTUNREACH), Ok("fd00::2"), Some("fd00::2")),
        ] {
            // All clones have the same.
            let found = address.clone().route_by(|far| {
                let source = if far == FAR[0] { v4 } else { v6 };
                source.map(ip).map_err(io::Error::from)
            });
            assert_eq!(found, expected.map(ip), "{v4:?}, {v6:?}");
        }
    }

    #[test]
    fn unspecified_address_names_the_preferred_family() {
        for (flag, v4, v6, expected) in [
            ("", Ok("10.0.0.1"), Ok("fd00::1"), "10.0.0.1"),
            ("0.0.0.0", Ok("10.0.0.1"), Ok("fd00::1"), "10.0.0.1"),
            ("::", Ok("10.0.0.1"), Ok("fd00::1"), "fd00::1"),
            ("::", Ok("10.0.0.1"), Err(Errno::NETUNREACH), "10.0.0.1"),
            ("::", Ok("10.0.0.1"), Err(Errno::AFNOSUPPORT), "10.0.0.1"),
        ] {
            let ips = NodeIps::parse(flag).expect("addresses");
            let found = NodeAddress::new("n".to_owned(), ips, false).route_by(|far| {
                let source = if far == FAR[0] { v4 } else { v6 };
                source.map(ip).map_err(io::Error::from)
            });
            assert_eq!(found, Some(ip(expected)), "{flag:?} {v6:?}");
        }
    }

    #[test]
    fn node_ips_are_one_or_one_of_each_family() {
        let pair = "must contain either a single IP or a dual-stack pair of IPs";
        for (text, expected) in [
            ("", Ok((None, None))),
            ("010.0.0.01", Ok((Some("10.0.0.1"), None))),
            ("::ffff:10.0.0.1", Ok((Some("10.0.0.1"), None))),
            ("x, fd00::1", Ok((Some("fd00::1"), None))),
            ("fd00::1,10.0.0.1", Ok((Some("fd00::1"), Some("10.0.0.1")))),
            ("::", Ok((Some("::"), None))),
            ("10.0.0.1,10.0.0.2", Err(pair)),
            ("10.0.0.1,fd00::1,10.0.0.2", Err(pair)),
            ("10.0.0.1,::", Err("dual-stack node IP cannot include '0.0.0.0' or '::'")),
        ] {
            let parsed = NodeIps::parse(text);
            let expected = expected
                .map(|(first, second)| NodeIps { first: first.map(ip), second: second.map(ip) })
                .map_err(|fault| Error::NodeIp { text: text.to_owned(), fault });
            assert_eq!(parsed, expected, "{text}");
        }
    }

    /// `own`: the machine's addresses, which are also those of the node's name.
    fn set(node: Value, flag: &str, host: &str, is_external: bool, own: &[&str]) -> Value {
        let mut node: core::Node = serde_json::from_value(node).expect("a node");
        let ips = NodeIps::parse(flag).expect("addresses");
        let own: Vec<IpAddr> = own.iter().map(|own| ip(own)).collect();
        let validate = |ip: IpAddr| match own.contains(&ip) {
            true => Ok(()),
            false => Err("not found".to_owned()),
        };
        let sources = Sources {
            validate: &validate,
            look_up: &|| own.clone(),
            default_route: &|| Some(ip("10.9.9.9")),
        };
        let outcome =
            NodeAddress::new(host.to_owned(), ips, is_external).set_by(&mut node, &sources);
        if let Err(error) = outcome {
            return error.to_string().into();
        }
        let all = node.status.unwrap_or_default().addresses.unwrap_or_default();
        let all = all.into_iter().map(|one| format!("{} {}", one.type_, one.address));
        json!([all.collect::<Vec<_>>(), node.metadata.annotations.unwrap_or_default()])
    }

    #[test]
    fn addresses_follow_flags_names_and_the_cloud() {
        let cloud =
            json!({"status": {"addresses": [{"type": "ExternalIP", "address": "9.9.9.9"}]}});
        let stale = json!({"metadata": {"annotations": {PROVIDED_IP: "1.1.1.1"}}});
        let both = "10.0.0.1,fd00::1";
        for (node, flag, host, is_external, own, expected) in [
            (
                json!({}),
                "10.0.0.1",
                "n",
                false,
                &["10.0.0.1"][..],
                json!([["InternalIP 10.0.0.1", "Hostname n"], {}]),
            ),
            (json!({}), "10.0.0.1", "n", false, &[], json!("failed to validate nodeIP: not found")),
            (
                json!({}),
                both,
                "n",
                false,
                &["10.0.0.1"],
                json!("failed to validate secondaryNodeIP: not found"),
            ),
            (
                json!({}),
                both,
                "n",
                false,
                &["10.0.0.1", "fd00::1"],
                json!([["InternalIP 10.0.0.1", "InternalIP fd00::1", "Hostname n"], {}]),
            ),
            // The address is that of the host name, or else that of the default route.
            (
                json!({}),
                "",
                "n",
                false,
                &["fd00::1", "10.0.0.2"],
                json!([["InternalIP 10.0.0.2", "Hostname n"], {}]),
            ),
            (
                json!({}),
                "::",
                "n",
                false,
                &["10.0.0.2", "fd00::1"],
                json!([["InternalIP fd00::1", "Hostname n"], {}]),
            ),
            (json!({}), "", "n", false, &[], json!([["InternalIP 10.9.9.9", "Hostname n"], {}])),
            (
                json!({}),
                "",
                "10.0.0.7",
                false,
                &[],
                json!([["InternalIP 10.0.0.7", "Hostname 10.0.0.7"], {}]),
            ),
            (
                stale.clone(),
                "10.0.0.1",
                "n",
                false,
                &["10.0.0.1"],
                json!([["InternalIP 10.0.0.1", "Hostname n"], {}]),
            ),
            // A cloud's controller sets the addresses.
            (json!({}), "", "n", true, &[], json!([["Hostname n"], {}])),
            (cloud.clone(), "", "n", true, &[], json!([["ExternalIP 9.9.9.9"], {}])),
            (
                cloud,
                both,
                "n",
                true,
                &["10.0.0.1", "fd00::1"],
                json!([["ExternalIP 9.9.9.9"], {PROVIDED_IP: both}]),
            ),
            (stale, "0.0.0.0", "n", true, &[], json!([["InternalIP 10.9.9.9", "Hostname n"], {}])),
        ] {
            assert_eq!(set(node.clone(), flag, host, is_external, own), expected, "{node} {flag}");
        }
    }

    #[test]
    fn addresses_of_others_are_not_the_nodes() {
        for (address, fault) in [
            ("127.0.0.1", "nodeIP can't be loopback address"),
            ("224.0.0.1", "nodeIP can't be a multicast address"),
            ("fe80::1", "nodeIP can't be a link-local unicast address"),
            ("0.0.0.0", "nodeIP can't be an all zeros address"),
            ("192.0.2.7", "node IP: \"192.0.2.7\" not found in the host's network interfaces"),
        ] {
            assert_eq!(validate(ip(address)), Err(fault.to_owned()));
        }
    }

    #[test]
    fn host_ips_are_of_both_families_internal_ones_first() {
        for (addresses, expected) in [
            (json!([]), &[][..]),
            (json!([["Hostname", "n"], ["ExternalIP", "x"]]), &[]),
            (json!([["ExternalIP", "1.1.1.1"], ["InternalIP", "2.2.2.2"]]), &["2.2.2.2"]),
            (
                json!([
                    ["InternalIP", "fd00::1"],
                    ["InternalIP", "fd00::2"],
                    ["ExternalIP", "1.1.1.1"]
                ]),
                &["fd00::1", "1.1.1.1"],
            ),
        ] {
            let all = addresses.as_array().expect("a list").iter();
            let all = all.map(|one| json!({"type": one[0], "address": one[1]}));
            let node = json!({"status": {"addresses": all.collect::<Vec<_>>()}});
            let node: core::Node = serde_json::from_value(node).expect("a node");
            let expected: Vec<IpAddr> = expected.iter().map(|text| ip(text)).collect();
            assert_eq!(host_ips(&node), expected, "{addresses}");
        }
    }
}
