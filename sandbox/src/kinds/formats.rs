//! The formats of text that schemas of CustomResourceDefinitions know.
//! Upstream: `kube-openapi/pkg/validation/strfmt`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use regex_lite::Regex;

use super::metadata::{NameRule, name_fault};

/// Formats that one expression describes. Letters beyond ASCII count as letters of a host name.
const PATTERNS: [(&str, &str); 13] = [
    ("bsonobjectid", "^[0-9a-fA-F]{24}$"),
    ("date", r"^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])$"),
    (
        "datetime",
        r"^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])[Tt]([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]+)?([Zz]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$",
    ),
    (
        "duration",
        r"^[-+]?(0|(([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+)$|[0-9]\s*(?i:ns|nano[a-z]*|us|µs|micro[a-z]*|ms|milli[a-z]*|s|sec[a-z]*|m|min[a-z]*|h|hr|hour[a-z]*|d|day[a-z]*|w|wk|week[a-z]*)([^A-Za-zµ]|$)",
    ),
    ("hexcolor", "^#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})$"),
    (
        "hostname",
        r"^([a-zA-Z0-9\x{80}-\x{10FFFF}](-?[a-zA-Z0-9\x{80}-\x{10FFFF}]{0,62})?|([a-zA-Z0-9\x{80}-\x{10FFFF}]([a-zA-Z0-9\x{80}-\x{10FFFF}-]{0,61}[a-zA-Z0-9\x{80}-\x{10FFFF}])?\.)+[a-zA-Z\x{80}-\x{10FFFF}]{2,63})$",
    ),
    (
        "mac",
        "^(([0-9a-fA-F]{2}[:-]){5}|([0-9a-fA-F]{2}[:-]){7}|([0-9a-fA-F]{2}[:-]){19})[0-9a-fA-F]{2}$|^([0-9a-fA-F]{4}\\.){2}[0-9a-fA-F]{4}$",
    ),
    ("ssn", "^[0-9]{3}[- ]?[0-9]{2}[- ]?[0-9]{4}$"),
    ("uri", r"^(/|[a-zA-Z][a-zA-Z0-9+.-]*:([^/]|/($|[^/])|//[^ /]*(/|$)))[^\x00-\x1f\x7f]*$"),
    ("uuid", "(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}$"),
    ("uuid3", "(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?3[0-9a-f]{3}-?[0-9a-f]{4}-?[0-9a-f]{12}$"),
    ("uuid4", "(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?4[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}$"),
    ("uuid5", "(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?5[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}$"),
];

/// Returns whether `text` has this format of a schema; true for a format that is not known here.
pub fn fits(format: &str, text: &str) -> bool {
    let format = format.replace('-', "");
    match format.as_str() {
        "byte" => STANDARD.decode(text).is_ok(),
        "cidr" => is_cidr(text),
        "email" => is_email(text),
        "ipv4" => text.parse::<Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<Ipv6Addr>().is_ok(),
        "k8sshortname" => name_fault(NameRule::Dns1123Label, text).is_none(),
        "k8slongname" => name_fault(NameRule::Subdomain, text).is_none(),
        format => match PATTERNS.iter().find(|(name, _)| *name == format) {
            Some((_, pattern)) => Regex::new(pattern).is_ok_and(|of| of.is_match(text)),
            None => true,
        },
    }
}

/// Returns whether `text` is an address with the length of its prefix.
fn is_cidr(text: &str) -> bool {
    let Some((address, bits)) = text.split_once('/') else { return false };
    let most = match address.parse::<IpAddr>() {
        Ok(IpAddr::V4(_)) => 32,
        Ok(IpAddr::V6(_)) => 128,
        Err(_) => return false,
    };
    bits.parse::<u8>().is_ok_and(|bits| bits <= most)
}

/// Returns whether `text` is `local@domain`, or has that in angle brackets after a name.
fn is_email(text: &str) -> bool {
    let address = match text.strip_suffix('>').and_then(|text| text.split_once('<')) {
        Some((_, address)) => address,
        None => text.trim(),
    };
    address.rsplit_once('@').is_some_and(|(local, domain)| {
        let plain = |part: &str| !part.is_empty() && !part.contains([' ', '@', '<', '>', ',']);
        plain(local) && plain(domain)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_recognized() {
        for (format, good, bad) in [
            ("date", &["2020-01-01"][..], &["x", "2020-13-01", "2020-01-01T00:00:00Z"][..]),
            (
                "date-time",
                &["2020-01-01T00:00:00Z", "2020-01-01T00:00:00.5+01:00"],
                &["x", "2020-01-01"],
            ),
            ("duration", &["1h", "1.5h30m", "3 days", "0"], &["x", "", "1 parsec"]),
            ("ipv4", &["1.2.3.4"], &["::1", "x"]),
            ("ipv6", &["::1"], &["1.2.3.4"]),
            ("cidr", &["1.2.3.4/8", "fd00::/64"], &["1.2.3.4", "1.2.3.4/33"]),
            ("email", &["a@b.c", "A <a@b>"], &["x", "a@", "a b@c"]),
            ("uri", &["http://x/", "/abs", "mailto:x"], &["x y", "x", "http://a b/"]),
            ("hostname", &["a", "a.bc", "1.example"], &["a.b", "a_b", "-"]),
            ("byte", &["YQ==", ""], &["x", "!"]),
            ("uuid", &["01234567-89ab-cdef-0123-456789abcdef"], &["x"]),
            ("mac", &["01:02:03:04:05:06"], &["x", "01:02"]),
            ("k8s-short-name", &["a-b"], &["a.b", "A"]),
            ("k8s-long-name", &["a.b"], &["A"]),
            ("nonsense", &["x"], &[]),
        ] {
            for text in good {
                assert!(fits(format, text), "{format}: {text}");
            }
            for text in bad {
                assert!(!fits(format, text), "{format}: {text}");
            }
        }
    }
}
