//! Sets of IP addresses, as pools have them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The family of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    pub fn of(address: IpAddr) -> Family {
        match address {
            IpAddr::V4(_) => Family::V4,
            IpAddr::V6(_) => Family::V6,
        }
    }

    /// Returns the family of this name in `spec.ipFamilies`.
    pub fn parse(name: &str) -> Option<Family> {
        match name {
            "IPv4" => Some(Family::V4),
            "IPv6" => Some(Family::V6),
            _ => None,
        }
    }

    /// Returns the name in `spec.ipFamilies`.
    pub fn name(self) -> &'static str {
        match self {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        }
    }
}

/// Reads an address. `::ffff:10.0.0.1` is read as `10.0.0.1`: announcers take both for the same
/// one.
pub fn parse_address(text: &str) -> Option<IpAddr> {
    text.parse().ok().map(|address: IpAddr| address.to_canonical())
}

/// Returns the address as a number.
fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// Returns the address with this number, which is a number of the family.
fn address(family: Family, bits: u128) -> IpAddr {
    match family {
        Family::V4 => IpAddr::V4(Ipv4Addr::from_bits(u32::try_from(bits).unwrap_or(u32::MAX))),
        Family::V6 => IpAddr::V6(Ipv6Addr::from_bits(bits)),
    }
}

/// The addresses from the first to the last one, which are of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    family: Family,
    first: u128,
    last: u128,
}

impl Range {
    /// Parses a CIDR. `skip_ends`: without the first and the last address of an IPv4 network that
    /// has more than two.
    fn parse_cidr(text: &str, skip_ends: bool) -> Option<Range> {
        let (network, length) = text.split_once('/')?;
        let network = parse_address(network)?;
        let family = Family::of(network);
        let width: u32 = if family == Family::V4 { 32 } else { 128 };
        // `str::parse` takes a sign.
        let length: u32 = length.parse().ok().filter(|_| !length.starts_with('+'))?;
        let host_bits = width.checked_sub(length)?;
        let hosts = 1u128.checked_shl(host_bits).map_or(u128::MAX, |size| size - 1);
        let first = bits(network) & !hosts;
        let mut range = Range { family, first, last: first | hosts };
        if skip_ends && family == Family::V4 && host_bits > 1 {
            range.first += 1;
            range.last -= 1;
        }
        Some(range)
    }

    /// Parses `FIRST-LAST`, two addresses of one family.
    fn parse_ends(text: &str) -> Option<Range> {
        let (first, last) = text.split_once('-')?;
        let (first, last) = (parse_address(first.trim())?, parse_address(last.trim())?);
        let family = Family::of(first);
        let range = Range { family, first: bits(first), last: bits(last) };
        (family == Family::of(last) && range.first <= range.last).then_some(range)
    }

    fn contains(self, of: IpAddr) -> bool {
        self.family == Family::of(of) && (self.first..=self.last).contains(&bits(of))
    }
}

/// Returns whether an address ends in 0 or 255: it may be one of a network or of broadcasts, with
/// any length of its prefix.
fn is_reserved(of: IpAddr) -> bool {
    matches!(of, IpAddr::V4(of) if matches!(of.octets()[3], 0 | 255))
}

/// The order in which a free address is looked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    #[default]
    Ascending,
    Descending,
}

/// Addresses in ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges {
    /// By family and number; they do not overlap.
    ranges: Vec<Range>,
}

impl Ranges {
    /// Parses CIDRs and ranges (`FIRST-LAST`) with commas between, and merges those that overlap.
    ///
    /// # Errors
    /// The part that is neither.
    pub fn parse(text: &str, skip_ends: bool) -> Result<Ranges, String> {
        let mut ranges = Vec::new();
        for part in text.split(',').map(str::trim) {
            let range = Range::parse_cidr(part, skip_ends).or_else(|| Range::parse_ends(part));
            ranges.push(range.ok_or_else(|| part.to_owned())?);
        }
        ranges.sort_by_key(|range| (range.family == Family::V6, range.first));
        // Merged, so that no address comes twice.
        let mut merged: Vec<Range> = Vec::new();
        for range in ranges {
            match merged.last_mut() {
                Some(before) if before.family == range.family && range.first <= before.last => {
                    before.last = before.last.max(range.last);
                }
                _ => merged.push(range),
            }
        }
        Ok(Ranges { ranges: merged })
    }

    pub fn contains(&self, address: IpAddr) -> bool {
        self.ranges.iter().any(|range| range.contains(address))
    }

    pub fn has(&self, family: Family) -> bool {
        self.ranges.iter().any(|range| range.family == family)
    }

    /// Returns the first address of a family that is not used. Takes as many steps as there are
    /// used addresses.
    pub fn first_free(
        &self,
        family: Family,
        order: Order,
        is_used: impl Fn(IpAddr) -> bool,
    ) -> Option<IpAddr> {
        let is_free = |bits: &u128| {
            let address = address(family, *bits);
            !is_reserved(address) && !is_used(address)
        };
        let mut ranges = self.ranges.iter().filter(|range| range.family == family);
        let found = match order {
            Order::Ascending => ranges.find_map(|range| (range.first..=range.last).find(is_free)),
            Order::Descending => {
                ranges.rev().find_map(|range| (range.first..=range.last).rev().find(is_free))
            }
        };
        found.map(|bits| address(family, bits))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn pools_are_searched_as_kube_vip_searches_them() {
        use Order::{Ascending, Descending};
        for (pool, skip_ends, order, used, found) in [
            ("10.10.10.8/29", false, Ascending, "10.10.10.8 10.10.10.9", Some("10.10.10.10")),
            ("10.10.10.8/29", true, Ascending, "", Some("10.10.10.9")),
            ("10.10.10.8/29", true, Descending, "", Some("10.10.10.14")),
            ("10.10.10.8/29", false, Descending, "10.10.10.15", Some("10.10.10.14")),
            ("192.168.1.1/24", false, Ascending, "192.168.1.1", Some("192.168.1.2")),
            ("192.168.1.1/24", false, Descending, "", Some("192.168.1.254")),
            ("10.0.0.1/31", true, Ascending, "", Some("10.0.0.1")),
            ("10.0.0.1/32", true, Ascending, "", Some("10.0.0.1")),
            ("10.0.0.1/32", true, Ascending, "10.0.0.1", None),
            ("10.0.0.255-10.0.1.0", false, Ascending, "", None),
            ("10.0.0.8-10.0.0.9, 10.0.0.4/31", false, Ascending, "", Some("10.0.0.4")),
            ("10.0.0.8-10.0.0.9, 10.0.0.4/31", false, Descending, "", Some("10.0.0.9")),
            (
                "10.0.0.8-10.0.0.9,10.0.0.9-10.0.0.10",
                false,
                Ascending,
                "10.0.0.8 10.0.0.9",
                Some("10.0.0.10"),
            ),
            ("2001::10/127", false, Ascending, "", None),
            ("::ffff:10.0.0.4-::ffff:10.0.0.5", false, Ascending, "10.0.0.4", Some("10.0.0.5")),
        ] {
            let ranges = Ranges::parse(pool, skip_ends).expect("a pool");
            let used: Vec<IpAddr> = used.split_whitespace().map(ip).collect();
            let free = ranges.first_free(Family::V4, order, |address| used.contains(&address));
            assert_eq!(free, found.map(ip), "{pool}");
        }
        let ranges = Ranges::parse("fe80::ffff-fe80::1:3, 10.0.0.1/32", true).expect("a pool");
        let used = [ip("fe80::ffff"), ip("fe80::1:0")];
        let free = ranges.first_free(Family::V6, Ascending, |address| used.contains(&address));
        assert_eq!(free, Some(ip("fe80::1:1")));
        assert_eq!(ranges.first_free(Family::V6, Descending, |_| false), Some(ip("fe80::1:3")));
    }

    #[test]
    fn the_largest_networks_are_searched_at_once() {
        let all = Ranges::parse("::/0, 0.0.0.0/0", false).expect("a pool");
        assert_eq!(all.first_free(Family::V6, Order::Ascending, |_| false), Some(ip("::")));
        assert_eq!(all.first_free(Family::V4, Order::Ascending, |_| false), Some(ip("0.0.0.1")));
        assert!(all.contains(ip("ffff::")) && all.contains(ip("255.255.255.255")));
        let last = Ranges::parse("255.255.255.254/31", false).expect("a pool");
        assert_eq!(
            last.first_free(Family::V4, Order::Descending, |_| false),
            Some(ip("255.255.255.254"))
        );
    }

    #[test]
    fn the_malformed_part_is_the_error() {
        for (pool, part) in [
            ("10.0.0.0/33", "10.0.0.0/33"),
            ("10.0.0.1-10.0.0.2,nonsense", "nonsense"),
            ("10.0.0.0/+8", "10.0.0.0/+8"),
            ("10.0.0.2-10.0.0.1", "10.0.0.2-10.0.0.1"),
            ("10.0.0.1-::1", "10.0.0.1-::1"),
            // A length of IPv6, with an address of IPv4.
            ("::ffff:10.0.0.0/120", "::ffff:10.0.0.0/120"),
            ("10.0.0.1", "10.0.0.1"),
            ("", ""),
            ("10.0.0.0/8,", ""),
        ] {
            assert_eq!(Ranges::parse(pool, false), Err(part.to_owned()));
        }
    }
}
