//! IP addresses, as the API parses them, and as it wrote them.

use std::cmp::Ordering;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::ser::{Serialize, Serializer};

use crate::objects::Istr;

/// Parses an address as the API does: its parts may have leading zeros, and an IPv4-mapped IPv6
/// address is an IPv4 address. Upstream: `netutils.ParseIPSloppy`.
pub fn parse_ip(text: &str) -> Option<IpAddr> {
    match text.contains(':') {
        true => parse_ipv6(text).map(|address| IpAddr::V6(address).to_canonical()),
        false => parse_ipv4(text).map(IpAddr::V4),
    }
}

/// Parses an IPv6 address, also an IPv4-mapped one, whose parts may have leading zeros.
pub fn parse_ipv6(text: &str) -> Option<Ipv6Addr> {
    let unpadded = |part: &str| match part.trim_start_matches('0') {
        "" if !part.is_empty() => Some("0".to_owned()),
        _ if part.contains('.') => parse_ipv4(part).map(|address| address.to_string()),
        digits => Some(digits.to_owned()),
    };
    text.parse().ok().or_else(|| {
        let parts: Vec<String> = text.split(':').map(unpadded).collect::<Option<_>>()?;
        parts.join(":").parse().ok()
    })
}

/// Parses an IPv4 address, whose parts may have leading zeros.
fn parse_ipv4(text: &str) -> Option<Ipv4Addr> {
    let mut octets = [0u8; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        let part = parts.next().filter(|part| part.bytes().all(|byte| byte.is_ascii_digit()))?;
        *octet = part.parse().ok()?;
    }
    if parts.next().is_some() {
        return None;
    }
    Some(octets.into())
}

/// An address of an endpoint, as it was written. One of IPv4 in its usual form takes no allocation.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct AddressText(Text);

#[derive(Clone, PartialEq, Eq, Hash)]
enum Text {
    V4(Ipv4Addr),
    Other(Istr),
}

impl AddressText {
    /// Returns the address; `None` for a name, or for another text.
    pub fn ip(&self) -> Option<IpAddr> {
        match &self.0 {
            Text::V4(address) => Some(IpAddr::V4(*address)),
            Text::Other(text) => parse_ip(text),
        }
    }
}

impl Default for AddressText {
    fn default() -> AddressText {
        AddressText(Text::Other(Istr::default()))
    }
}

impl From<&str> for AddressText {
    fn from(text: &str) -> AddressText {
        // The parser refuses all spellings but the usual one.
        AddressText(match text.parse() {
            Ok(address) => Text::V4(address),
            Err(_) => Text::Other(text.into()),
        })
    }
}

impl From<IpAddr> for AddressText {
    fn from(address: IpAddr) -> AddressText {
        AddressText(match address {
            IpAddr::V4(address) => Text::V4(address),
            IpAddr::V6(address) => Text::Other(address.to_string().into()),
        })
    }
}

impl fmt::Display for AddressText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Text::V4(address) => fmt::Display::fmt(address, f),
            Text::Other(text) => fmt::Display::fmt(text, f),
        }
    }
}

impl fmt::Debug for AddressText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Returns a value that orders addresses as their texts: the digits of each octet from the left,
/// where a point and the end of the text are before all digits.
fn text_order(address: &Ipv4Addr) -> [[u8; 3]; 4] {
    address.octets().map(|octet| match octet {
        0..10 => [octet + 1, 0, 0],
        10..100 => [octet / 10 + 1, octet % 10 + 1, 0],
        100.. => [octet / 100 + 1, octet / 10 % 10 + 1, octet % 10 + 1],
    })
}

/// The order of the texts.
impl Ord for AddressText {
    fn cmp(&self, other: &AddressText) -> Ordering {
        match (&self.0, &other.0) {
            (Text::V4(a), Text::V4(b)) => text_order(a).cmp(&text_order(b)),
            (Text::Other(a), Text::Other(b)) => a.cmp(b),
            _ => self.to_string().cmp(&other.to_string()),
        }
    }
}

impl PartialOrd for AddressText {
    fn partial_cmp(&self, other: &AddressText) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Serialize for AddressText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for AddressText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<AddressText, D::Error> {
        struct Address;
        impl Visitor<'_> for Address {
            type Value = AddressText;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an address")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<AddressText, E> {
                Ok(text.into())
            }
            fn visit_unit<E: de::Error>(self) -> Result<AddressText, E> {
                Ok(AddressText::default())
            }
        }
        deserializer.deserialize_any(Address)
    }
}

/// The addresses of an endpoint, in their order. One address of IPv4, which most have, takes no
/// allocation. Lists are compared in an order of their own, not in that of the texts.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AddressList(List);

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum List {
    V4(Ipv4Addr),
    Other(Box<[AddressText]>),
}

impl AddressList {
    pub fn iter(&self) -> impl Iterator<Item = AddressText> + '_ {
        let (one, all) = match &self.0 {
            List::V4(one) => (Some(AddressText(Text::V4(*one))), [].as_slice()),
            List::Other(all) => (None, &**all),
        };
        one.into_iter().chain(all.iter().cloned())
    }

    /// Returns the same addresses in the order of their texts; `None` if they are in it already.
    pub fn sorted(&self) -> Option<AddressList> {
        let List::Other(all) = &self.0 else { return None };
        (!all.is_sorted()).then(|| {
            let mut all = all.clone();
            all.sort();
            AddressList(List::Other(all))
        })
    }
}

impl Default for AddressList {
    fn default() -> AddressList {
        AddressList(List::Other(Box::default()))
    }
}

impl FromIterator<AddressText> for AddressList {
    fn from_iter<I: IntoIterator<Item = AddressText>>(all: I) -> AddressList {
        let all: Box<[AddressText]> = all.into_iter().collect();
        AddressList(match &*all {
            [AddressText(Text::V4(one))] => List::V4(*one),
            _ => List::Other(all),
        })
    }
}

impl Serialize for AddressList {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

impl<'de> Deserialize<'de> for AddressList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<AddressList, D::Error> {
        Ok(Vec::<AddressText>::deserialize(deserializer)?.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn addresses_are_read_as_the_api_does() {
        for (text, read) in [
            ("10.0.0.1", Some("10.0.0.1")),
            ("010.000.00.01", Some("10.0.0.1")),
            ("::ffff:1.2.3.4", Some("1.2.3.4")),
            ("FD00:0::1", Some("fd00::1")),
            ("0fd00::00001", Some("fd00::1")),
            ("00000::", Some("::")),
            ("::FFFF:01.2.003.4", Some("1.2.3.4")),
            ("64:ff9b::010.0.0.1", Some("64:ff9b::a00:1")),
            ("1fd00::1", None),
            ("::1::00001", None),
            ("01.2.3.4::", None),
            ("fe80::00001%eth0", None),
            (":", None),
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

    #[test]
    fn texts_of_addresses_come_back_and_are_in_their_order() {
        let texts = [
            "",
            "1.2.3.4",
            "10.0.0.1",
            "10.0.0.10",
            "10.0.0.100",
            "10.0.0.2",
            "10.0.0.20",
            "2.0.0.1",
            "255.0.0.1",
            "010.0.0.1",
            "fd00::1",
            "FD00::1",
            "example.com",
            "::ffff:1.2.3.4",
            "1.2.3",
        ];
        for a in texts {
            assert_eq!(AddressText::from(a).to_string(), a);
            for b in texts {
                assert_eq!(AddressText::from(a).cmp(&b.into()), a.cmp(b), "{a} {b}");
            }
        }
        assert_eq!(AddressText::from("010.0.0.1").ip(), parse_ip("10.0.0.1"));
        assert_eq!(AddressText::from(parse_ip("fd00:0::1").unwrap()).to_string(), "fd00::1");
        for (list, sorted) in [
            (json!([]), None),
            (json!(["10.0.0.1"]), None),
            (json!(["fd00::1"]), None),
            (json!(["10.0.0.1", "10.0.0.2"]), None),
            (json!(["10.0.0.2", "10.0.0.10"]), Some(json!(["10.0.0.10", "10.0.0.2"]))),
            (json!(["", "10.0.0.1"]), None),
        ] {
            let held: AddressList = serde_json::from_value(list.clone()).unwrap();
            assert_eq!(serde_json::to_value(&held).unwrap(), list);
            assert_eq!(held.sorted().map(|sorted| json!(sorted)), sorted);
        }
        let absent: AddressList = serde_json::from_value(json!([null])).unwrap();
        assert_eq!(json!(absent), json!([""]));
    }
}
