//! Ranges of addresses.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use crate::objects::{parse_ip, parse_ipv6};

/// A range as its first address and the length of its prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    pub is_v4: bool,
    /// An IPv4 address has the lowest 32 bits.
    pub network: u128,
    pub prefix: u8,
}

impl Cidr {
    /// Parses an address and a prefix, and returns the range that they lie in.
    /// Upstream: `netutils.ParseCIDRSloppy`.
    pub fn parse(text: &str) -> Option<Cidr> {
        let (address, prefix) = text.split_once('/')?;
        if prefix.is_empty() || !prefix.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        // An IPv4 address within IPv6 has an IPv6 prefix.
        let (is_v4, address) = match address.contains(':') {
            true => (false, u128::from(parse_ipv6(address)?)),
            false => match parse_ip(address)? {
                std::net::IpAddr::V4(address) => (true, u128::from(u32::from(address))),
                std::net::IpAddr::V6(_) => return None,
            },
        };
        let prefix = prefix.parse().ok().filter(|prefix| *prefix <= bits(is_v4))?;
        Some(Cidr { is_v4, network: address & mask(is_v4, prefix), prefix })
    }

    pub fn bits(&self) -> u8 {
        bits(self.is_v4)
    }

    /// Returns whether one of the ranges lies within the other.
    pub fn overlaps(&self, other: &Cidr) -> bool {
        let mask = mask(self.is_v4, self.prefix.min(other.prefix));
        self.is_v4 == other.is_v4 && self.network & mask == other.network & mask
    }

    /// Returns the last address.
    pub fn last(&self) -> u128 {
        self.network | (all_ones(self.is_v4) & !mask(self.is_v4, self.prefix))
    }
}

fn bits(is_v4: bool) -> u8 {
    if is_v4 { 32 } else { 128 }
}

fn all_ones(is_v4: bool) -> u128 {
    if is_v4 { u128::from(u32::MAX) } else { u128::MAX }
}

/// Returns the bits of the network in a range with this prefix.
fn mask(is_v4: bool, prefix: u8) -> u128 {
    let hosts = bits(is_v4) - prefix;
    let low = if hosts == 128 { u128::MAX } else { (1 << hosts) - 1 };
    all_ones(is_v4) & !low
}

/// Returns the address with these bits as text.
pub fn address(is_v4: bool, number: u128) -> String {
    match u32::try_from(number) {
        Ok(number) if is_v4 => Ipv4Addr::from(number).to_string(),
        _ => Ipv6Addr::from(number).to_string(),
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", address(self.is_v4, self.network), self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_as_the_api_does() {
        for (text, read) in [
            ("10.0.0.0/8", Some("10.0.0.0/8")),
            ("10.1.2.3/8", Some("10.0.0.0/8")),
            ("010.001.0.0/16", Some("10.1.0.0/16")),
            ("0.0.0.0/0", Some("0.0.0.0/0")),
            ("1.2.3.4/32", Some("1.2.3.4/32")),
            ("fd00:0:0::1/64", Some("fd00::/64")),
            ("0fd00::00001/064", Some("fd00::/64")),
            ("::/0", Some("::/0")),
            ("10.0.0.0/33", None),
            ("fd00::/129", None),
            ("10.0.0.0", None),
            ("10.0.0.0/", None),
            ("10.0.0.0/+8", None),
            ("x/8", None),
            ("", None),
        ] {
            assert_eq!(Cidr::parse(text).map(|cidr| cidr.to_string()).as_deref(), read, "{text}");
        }
    }

    #[test]
    fn ranges_overlap_when_one_holds_the_other() {
        let cidr = |text: &str| Cidr::parse(text).unwrap();
        for (one, other, overlap) in [
            ("10.0.0.0/8", "10.3.0.0/16", true),
            ("10.3.0.0/16", "10.3.0.0/16", true),
            ("10.3.0.0/16", "10.4.0.0/16", false),
            ("0.0.0.0/0", "10.4.0.0/16", true),
            ("::/0", "10.4.0.0/16", false),
            ("::/0", "fd00::/8", true),
        ] {
            assert_eq!(cidr(one).overlaps(&cidr(other)), overlap, "{one} {other}");
            assert_eq!(cidr(other).overlaps(&cidr(one)), overlap, "{other} {one}");
        }
        assert_eq!(address(true, cidr("10.3.0.0/16").last()), "10.3.255.255");
    }
}
