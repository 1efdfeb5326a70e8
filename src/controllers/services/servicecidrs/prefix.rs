//! Subnets of both families. Upstream: `net/netip.Prefix`, `pkg/api/servicecidr`.

use std::net::IpAddr;
use std::str::FromStr;

/// An address and how many of its bits name the subnet. Host bits may be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    address: IpAddr,
    bits: u32,
}

/// Not a subnet in the form `address/bits`.
#[derive(Debug, PartialEq, Eq)]
pub struct BadPrefix;

impl FromStr for Prefix {
    type Err = BadPrefix;

    fn from_str(text: &str) -> Result<Prefix, BadPrefix> {
        let (address, bits) = text.rsplit_once('/').ok_or(BadPrefix)?;
        let address: IpAddr = address.parse().map_err(|_| BadPrefix)?;
        let plain = bits.bytes().all(|byte| byte.is_ascii_digit());
        if !plain || (bits.len() > 1 && bits.starts_with('0')) {
            return Err(BadPrefix);
        }
        let bits = bits.parse().ok().filter(|bits| *bits <= width(address)).ok_or(BadPrefix)?;
        Ok(Prefix { address, bits })
    }
}

fn width(address: IpAddr) -> u32 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// The address as a number whose highest bit is the address's first.
fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from(v4.to_bits()) << 96,
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

impl Prefix {
    pub fn is_ipv4(&self) -> bool {
        self.address.is_ipv4()
    }

    fn agrees(&self, with: IpAddr, bits: u32) -> bool {
        let differing = number(self.address) ^ number(with);
        self.is_ipv4() == with.is_ipv4() && differing.leading_zeros() >= bits
    }

    pub fn overlaps(&self, other: &Prefix) -> bool {
        self.agrees(other.address, self.bits.min(other.bits))
    }

    /// All of `other` is within, or it is the same subnet.
    pub fn contains(&self, other: &Prefix) -> bool {
        self.bits <= other.bits && self.overlaps(other)
    }

    /// The address is one that the subnet can give away: neither its first one nor, with IPv4, its
    /// last one. Upstream: `servicecidr.PrefixContainsIP`.
    pub fn gives(&self, address: IpAddr) -> bool {
        // Bit by bit, in an address shifted to the top: the host part is what is left.
        let width = width(self.address);
        let host = number(address).checked_shl(self.bits).unwrap_or(0);
        let ones = match width - self.bits {
            0 => 0,
            hosts => u128::MAX << (128 - hosts),
        };
        let reserved = host == 0 || (self.is_ipv4() && host == ones);
        self.agrees(address, self.bits) && !reserved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(text: &str) -> Prefix {
        text.parse().unwrap()
    }

    #[test]
    fn what_is_a_subnet() {
        for good in ["10.0.0.0/8", "10.1.2.3/0", "::/0", "2001:db8::1/128", "1.2.3.4/32"] {
            assert!(good.parse::<Prefix>().is_ok(), "{good}");
        }
        for bad in [
            "",
            "/",
            "10.0.0.0",
            "10.0.0.0/",
            "10.0.0.0/33",
            "10.0.0.0/08",
            "10.0.0.0/+8",
            "::/129",
            "10.0.0/8",
            "fe80::1%eth0/64",
        ] {
            assert_eq!(bad.parse::<Prefix>(), Err(BadPrefix), "{bad}");
        }
    }

    #[test]
    fn how_subnets_lie_to_each_other() {
        // First, second; they overlap; the first contains the second.
        for (first, second, overlap, contain) in [
            ("10.0.0.0/24", "10.0.0.0/26", true, true),
            ("10.0.0.0/24", "10.0.0.128/26", true, true),
            ("10.0.0.0/26", "10.0.0.0/24", true, false),
            ("10.0.0.0/24", "10.0.0.7/24", true, true),
            ("10.0.0.0/24", "10.0.1.0/24", false, false),
            ("0.0.0.0/0", "255.0.0.0/8", true, true),
            ("0.0.0.0/0", "::/0", false, false),
            ("2001:db8::/96", "2001:db8::/112", true, true),
            ("2001:db8::/128", "2001:db8::1/128", false, false),
        ] {
            let (a, b) = (prefix(first), prefix(second));
            assert_eq!(a.overlaps(&b), overlap, "{first} {second}");
            assert_eq!(b.overlaps(&a), overlap, "{second} {first}");
            assert_eq!(a.contains(&b), contain, "{first} {second}");
        }
    }

    #[test]
    fn which_addresses_a_subnet_gives() {
        for (subnet, address, gives) in [
            ("10.0.0.0/24", "10.0.0.1", true),
            ("10.0.0.0/24", "10.0.0.0", false),
            ("10.0.0.0/24", "10.0.0.255", false),
            ("10.0.0.0/24", "10.0.0.254", true),
            ("10.0.0.0/24", "10.0.1.1", false),
            ("10.0.0.9/24", "10.0.0.9", true),
            ("10.0.0.0/31", "10.0.0.1", false),
            ("10.0.0.4/32", "10.0.0.4", false),
            ("0.0.0.0/0", "1.2.3.4", true),
            ("0.0.0.0/0", "255.255.255.255", false),
            ("2001:db8::/112", "2001:db8::ffff", true),
            ("2001:db8::/112", "2001:db8::", false),
            ("2001:db8::/112", "2001:db8::1:1", false),
            ("2001:db8::1/128", "2001:db8::1", false),
            ("::/0", "::1", true),
            ("::/0", "0.0.0.1", false),
        ] {
            let address: IpAddr = address.parse().unwrap();
            assert_eq!(prefix(subnet).gives(address), gives, "{subnet} {address}");
        }
    }
}
