//! Addresses and ranges of addresses. Upstream: Kubernetes' `library.IP`, `library.CIDR`.

use std::net::IpAddr;

use super::Result;
use super::value::Value;

/// Calls a function that converts a text to an address or network, or tests whether it is one.
pub fn make(function: &str, of: &Value) -> Result<Value> {
    let text = match (function, of) {
        ("ip", Value::Cidr(ip, _)) => return Ok(Value::Ip(*ip)),
        ("ip", Value::Ip(_)) | ("cidr", Value::Cidr(..)) => return Ok(of.clone()),
        (_, Value::String(text)) => text,
        _ => return Err("no such overload".to_owned()),
    };
    match function {
        "ip" => parse_ip(text).map(Value::Ip),
        "isIP" => Ok(parse_ip(text).is_ok().into()),
        "ip.isCanonical" => parse_ip(text).map(|ip| (ip.to_string() == **text).into()),
        "isCIDR" => Ok(parse_cidr(text).is_ok().into()),
        _ => parse_cidr(text).map(|(ip, bits)| Value::Cidr(ip, bits)),
    }
}

/// Parses an address. Errors: malformed ones, and IPv4 addresses mapped to IPv6, as upstream.
fn parse_ip(text: &str) -> Result<IpAddr> {
    match text.parse() {
        Ok(IpAddr::V6(ip)) if ip.to_ipv4_mapped().is_some() => {
            Err(format!("IPv4-mapped IPv6 address {text:?} is not allowed"))
        }
        Ok(ip) => Ok(ip),
        Err(_) => Err(format!("IP Address {text:?} parse error during conversion from string")),
    }
}

fn parse_cidr(text: &str) -> Result<(IpAddr, u8)> {
    let wrong = || format!("network address parse error during conversion from string: {text:?}");
    let (ip, bits) = text.split_once('/').ok_or_else(wrong)?;
    let ip = parse_ip(ip)?;
    let bits = bits.parse().ok().filter(|bits| *bits <= width(ip)).ok_or_else(wrong)?;
    Ok((ip, bits))
}

fn width(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { 32 } else { 128 }
}

/// Clears all bits of the address after the prefix of `bits` bits.
fn masked(ip: IpAddr, bits: u8) -> IpAddr {
    match ip {
        IpAddr::V4(ip) => {
            let mask = u32::MAX.checked_shl(u32::from(32 - bits.min(32))).unwrap_or(0);
            IpAddr::V4((ip.to_bits() & mask).into())
        }
        IpAddr::V6(ip) => {
            let mask = u128::MAX.checked_shl(u32::from(128 - bits.min(128))).unwrap_or(0);
            IpAddr::V6((ip.to_bits() & mask).into())
        }
    }
}

/// Returns whether a network contains an address.
fn holds(of: (IpAddr, u8), ip: IpAddr) -> bool {
    of.0.is_ipv4() == ip.is_ipv4() && masked(of.0, of.1) == masked(ip, of.1)
}

/// Upstream: Go's `netip.Addr.IsLinkLocalMulticast`.
fn is_multicast_of_link(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.octets()[..3] == [224, 0, 0],
        IpAddr::V6(ip) => ip.segments()[0] & 0xff0f == 0xff02,
    }
}

/// Upstream: Go's `netip.Addr.IsLinkLocalUnicast`.
fn is_unicast_of_link(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.segments()[0] & 0xffc0 == 0xfe80,
    }
}

/// Returns whether the address is a unicast one that is valid beyond its link. Upstream: Go's
/// `net.IP.IsGlobalUnicast`.
fn is_global_unicast(ip: IpAddr) -> bool {
    let broadcast = matches!(ip, IpAddr::V4(ip) if ip.is_broadcast());
    !(broadcast
        || ip.is_unspecified()
        || ip.is_loopback()
        || ip.is_multicast()
        || is_unicast_of_link(ip))
}

/// Evaluates the functions of IP addresses and CIDR blocks. `None`: not one of them.
pub fn call(name: &str, args: &[Value]) -> Option<Result<Value>> {
    let found = match (name, args) {
        ("family", [Value::Ip(ip)]) => Value::Int(if ip.is_ipv4() { 4 } else { 6 }),
        ("isUnspecified", [Value::Ip(ip)]) => ip.is_unspecified().into(),
        ("isLoopback", [Value::Ip(ip)]) => ip.is_loopback().into(),
        ("isLinkLocalMulticast", [Value::Ip(ip)]) => is_multicast_of_link(*ip).into(),
        ("isLinkLocalUnicast", [Value::Ip(ip)]) => is_unicast_of_link(*ip).into(),
        ("isGlobalUnicast", [Value::Ip(ip)]) => is_global_unicast(*ip).into(),
        ("containsIP", [Value::Cidr(of, bits), Value::Ip(ip)]) => holds((*of, *bits), *ip).into(),
        ("containsIP", [Value::Cidr(of, bits), Value::String(text)]) => {
            return Some(parse_ip(text).map(|ip| holds((*of, *bits), ip).into()));
        }
        ("containsCIDR", [Value::Cidr(of, bits), Value::Cidr(ip, more)]) => {
            (more >= bits && holds((*of, *bits), *ip)).into()
        }
        ("containsCIDR", [Value::Cidr(of, bits), Value::String(text)]) => {
            let found = parse_cidr(text);
            return Some(found.map(|(ip, more)| (more >= *bits && holds((*of, *bits), ip)).into()));
        }
        ("prefixLength", [Value::Cidr(_, bits)]) => Value::Int(i64::from(*bits)),
        ("masked", [Value::Cidr(ip, bits)]) => Value::Cidr(masked(*ip, *bits), *bits),
        _ => return None,
    };
    Some(Ok(found))
}
