//! IP addresses, as the API parses them.

use std::net::{IpAddr, Ipv4Addr};

/// Parses an address as the API does: an IPv4 address may have leading zeros, and an IPv4-mapped
/// IPv6 address is an IPv4 address. Upstream: `netutils.ParseIPSloppy`.
pub fn parse_ip(text: &str) -> Option<IpAddr> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(address.to_canonical());
    }
    let mut octets = [0u8; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        let part = parts.next().filter(|part| part.bytes().all(|byte| byte.is_ascii_digit()))?;
        *octet = part.parse().ok()?;
    }
    parts.next().is_none().then(|| octets.into())
}

/// Addresses in their order. One address of IPv4, which most pods have, takes no allocation.
#[derive(Clone, Debug, PartialEq)]
pub struct Addresses(Repr);

#[derive(Clone, Debug, PartialEq)]
enum Repr {
    V4(Ipv4Addr),
    Any(Box<[IpAddr]>),
}

impl Addresses {
    pub fn is_empty(&self) -> bool {
        matches!(&self.0, Repr::Any(all) if all.is_empty())
    }

    pub fn iter(&self) -> impl Iterator<Item = IpAddr> + '_ {
        let (one, all) = match &self.0 {
            Repr::V4(one) => (Some(IpAddr::V4(*one)), [].as_slice()),
            Repr::Any(all) => (None, &**all),
        };
        one.into_iter().chain(all.iter().copied())
    }
}

impl Default for Addresses {
    fn default() -> Addresses {
        Addresses(Repr::Any(Box::default()))
    }
}

impl FromIterator<IpAddr> for Addresses {
    fn from_iter<I: IntoIterator<Item = IpAddr>>(all: I) -> Addresses {
        let mut all = all.into_iter();
        Addresses(match (all.next(), all.next()) {
            (Some(IpAddr::V4(one)), None) => Repr::V4(one),
            (first, second) => Repr::Any(first.into_iter().chain(second).chain(all).collect()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_keep_their_order() {
        for texts in [vec![], vec!["10.0.0.1"], vec!["fd00::1"], vec!["fd00::1", "10.0.0.1"]] {
            let ips: Vec<IpAddr> = texts.iter().filter_map(|text| parse_ip(text)).collect();
            let held: Addresses = ips.iter().copied().collect();
            assert_eq!(held.iter().collect::<Vec<_>>(), ips);
            assert_eq!(held.is_empty(), ips.is_empty());
        }
    }

    #[test]
    fn addresses_are_read_as_the_api_does() {
        for (text, read) in [
            ("10.0.0.1", Some("10.0.0.1")),
            ("010.000.00.01", Some("10.0.0.1")),
            ("::ffff:1.2.3.4", Some("1.2.3.4")),
            ("FD00:0::1", Some("fd00::1")),
            ("1.2.3", None),
            ("1.2.3.4.5", None),
            ("1.2.3.256", None),
            ("1.+2.3.4", None),
            ("", None),
            ("example.com", None),
        ] {
            assert_eq!(parse_ip(text).map(|ip| ip.to_string()).as_deref(), read, "{text}");
        }
    }
}
