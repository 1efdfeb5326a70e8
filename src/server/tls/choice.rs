//! The choice among the served certificates, by the host that a client names or by the address that
//! it connects to. Upstream: `dynamiccertificates`, `Config.getCertificate` of `crypto/tls`.

use std::collections::BTreeMap;
use std::iter;
use std::net::IpAddr;
use std::sync::Arc;

use rustls::client::verify_server_name;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::ParsedCertificate;
use rustls::sign::CertifiedKey;

use crate::client::x509::Certificate;
use crate::objects::{is_dns1123_subdomain, parse_ip};

/// The certificates that are served now.
pub(super) struct Loaded {
    pub default: Arc<CertifiedKey>,
    pub named: Named,
}

impl Loaded {
    /// Returns the certificate for a client that sends the name `host`, or sends none and connects
    /// to the address `local`; the default one if no other is for them.
    pub fn choose(&self, host: Option<&str>, local: Option<IpAddr>) -> &Arc<CertifiedKey> {
        let chosen = match host {
            Some(host) => self.for_host(&host.to_ascii_lowercase()),
            // In Go an empty name on the command line stands for clients without SNI.
            None => local.and_then(|local| self.named.address(local)).or(self.named.host("")),
        };
        chosen.unwrap_or(&self.default)
    }

    /// Returns the certificate with this name; else any that is valid for the host, the default one
    /// first.
    fn for_host(&self, host: &str) -> Option<&Arc<CertifiedKey>> {
        let mut all = iter::once(&self.default).chain(self.named.0.values());
        self.named.host(host).or_else(|| all.find(|key| is_valid_for(key, host)))
    }
}

/// The certificates of `--tls-sni-cert-key` by name: a host, a host whose first label is `*`, or an
/// address.
#[derive(Default)]
pub(super) struct Named(BTreeMap<String, Arc<CertifiedKey>>);

impl Named {
    /// Sorts the certificates by the names for which they are chosen. Explicit names take
    /// precedence, then earlier certificates.
    /// Upstream: `BuildNamedCertificates`.
    pub fn new(given: &[(Vec<String>, Arc<CertifiedKey>)]) -> Named {
        let explicit =
            given.iter().flat_map(|(names, key)| names.iter().map(move |name| (name.clone(), key)));
        let by_own_names = given
            .iter()
            .filter(|(names, _)| names.is_empty())
            .flat_map(|(_, key)| own_names(&key.cert[0]).into_iter().map(move |name| (name, key)));
        let mut named = BTreeMap::new();
        for (name, key) in explicit.chain(by_own_names) {
            named.entry(name).or_insert_with(|| key.clone());
        }
        Named(named)
    }

    /// Returns the certificate for a host. An exact name takes precedence over a wildcard.
    fn host(&self, host: &str) -> Option<&Arc<CertifiedKey>> {
        let wildcard = || match host.split_once('.') {
            Some((_, rest)) => self.0.get(&format!("*.{rest}")),
            // A client without SNI matches no wildcard.
            None if host.is_empty() => None,
            None => self.0.get("*"),
        };
        self.0.get(host).or_else(wildcard)
    }

    fn address(&self, address: IpAddr) -> Option<&Arc<CertifiedKey>> {
        self.0.get(&address.to_canonical().to_string())
    }
}

/// Returns whether a certificate is valid for a host. Upstream: `Certificate.VerifyHostname` of
/// `crypto/x509`.
fn is_valid_for(key: &CertifiedKey, host: &str) -> bool {
    let Ok(host) = ServerName::try_from(host) else { return false };
    ParsedCertificate::try_from(&key.cert[0])
        .is_ok_and(|cert| verify_server_name(&cert, &host).is_ok())
}

/// Returns the names in a certificate: its common name, if that is a domain, and its DNS names.
/// Upstream: `getCertificateNames`.
fn own_names(cert: &CertificateDer<'_>) -> Vec<String> {
    let Ok(parsed) = Certificate::from_der(cert) else { return Vec::new() };
    // In Go the last of several common names counts.
    let common = parsed.common_names().last().filter(|name| is_domain(name));
    common.into_iter().chain(parsed.dns_names()).collect()
}

/// Returns whether a common name is a domain, with or without a wildcard. An IP address is not one,
/// though it has the same syntax.
fn is_domain(name: &str) -> bool {
    let domain = name.strip_prefix("*.").unwrap_or(name);
    name == "*" || (parse_ip(name).is_none() && is_dns1123_subdomain(domain))
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair, SanType};
    use rustls::crypto::ring;

    use super::super::certificates::parse_pair;
    use super::*;

    /// A common name, alternative names (`ip:` before an address), and explicit names.
    type Given<'a> = (&'a str, &'a [&'a str], &'a [&'a str]);

    fn certificate(common: &str, names: &[&str]) -> Arc<CertifiedKey> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, common);
        let name = |name: &&str| match name.strip_prefix("ip:") {
            Some(address) => SanType::IpAddress(address.parse().expect("an address")),
            None => SanType::DnsName((*name).try_into().expect("a name")),
        };
        params.subject_alt_names = names.iter().map(name).collect();
        let key = KeyPair::generate().expect("a key");
        let cert = params.self_signed(&key).expect("a certificate");
        let (cert, key) = (cert.pem(), key.serialize_pem());
        parse_pair(cert.as_bytes(), key.as_bytes(), &ring::default_provider()).expect("a pair")
    }

    /// Checks for each host and local address the position of the chosen certificate in `given`;
    /// `None`: the default one, which is valid for `default.com`.
    fn check(given: &[Given], rows: &[(Option<&str>, Option<&str>, Option<usize>)]) {
        let made = |(common, own, names): &Given| {
            let names: Vec<String> = names.iter().map(ToString::to_string).collect();
            (names, certificate(common, own))
        };
        let named: Vec<_> = given.iter().map(made).collect();
        let default = certificate("-", &["default.com"]);
        let loaded = Loaded { default, named: Named::new(&named) };
        for (host, local, wanted) in rows {
            let address: Option<IpAddr> = local.map(|local| local.parse().expect("an address"));
            let chosen = loaded.choose(*host, address);
            let at = named.iter().position(|(_, key)| Arc::ptr_eq(key, chosen));
            assert_eq!(at, *wanted, "{host:?} {local:?}");
        }
    }

    #[test]
    fn own_names_are_a_domain_as_common_name_and_the_dns_names() {
        let rows: [(&str, &[&str], &[&str]); 16] = [
            ("a.example.com", &["b.example.com"], &["a.example.com", "b.example.com"]),
            ("a", &["a", "B.example.com"], &["a", "a", "B.example.com"]),
            ("a-1", &["ip:10.0.0.1", "*.b"], &["a-1", "*.b"]),
            ("*.example.com", &[], &["*.example.com"]),
            ("*", &[], &["*"]),
            ("*.10.0.0.1", &[], &["*.10.0.0.1"]),
            ("10.0.0.1", &["a"], &["a"]),
            ("010.0.0.1", &[], &[]),
            ("::1", &[], &[]),
            ("A.example.com", &[], &[]),
            ("a.*.com", &[], &[]),
            ("a_b", &[], &[]),
            ("-a", &[], &[]),
            ("a.", &[], &[]),
            ("kube controller manager", &["a"], &["a"]),
            ("", &[], &[]),
        ];
        for (common, names, wanted) in rows {
            assert_eq!(own_names(&certificate(common, names).cert[0]), wanted, "{common}");
        }
    }

    #[test]
    fn explicit_names_precede_own_names_and_earlier_certificates_later_ones() {
        check(
            &[
                ("a.com", &["*.b.com"], &[]),
                ("-", &["a.com", "*.b.com", "x.b.com", "own.com"], &[]),
                ("own.com", &["own.com", "*.own.com"], &["a.com"]),
                ("-", &["c.com"], &["a.com", "*.b.com"]),
            ],
            &[
                (Some("a.com"), None, Some(2)),
                (Some("A.COM"), None, Some(2)),
                (Some("y.b.com"), None, Some(3)),
                (Some("x.b.com"), None, Some(1)),
                (Some("own.com"), None, Some(1)),
                (Some("z.y.b.com"), None, None),
                (Some("b.com"), None, None),
                (Some("other"), None, None),
                (None, None, None),
            ],
        );
        check(&[("a.com", &[], &[]), ("-", &["a.com"], &[])], &[(Some("a.com"), None, Some(0))]);
    }

    #[test]
    fn a_certificate_with_other_names_serves_the_hosts_that_it_is_valid_for() {
        check(
            &[("-", &["A.com", "*.b.com", "default.com"], &["c.com"])],
            &[
                (Some("c.com"), None, Some(0)),
                (Some("a.com"), None, Some(0)),
                (Some("x.b.com"), None, Some(0)),
                (Some("default.com"), None, None),
            ],
        );
    }

    #[test]
    fn a_lone_asterisk_is_a_wildcard_of_one_label() {
        check(
            &[("*", &[], &[])],
            &[(Some("a"), None, Some(0)), (Some("a.com"), None, None), (None, None, None)],
        );
    }

    #[test]
    fn explicit_names_match_as_they_are_written() {
        check(
            &[("-", &["a.com"], &["C.com", "FD00::1"])],
            &[(Some("c.com"), None, None), (None, Some("fd00::1"), None)],
        );
    }

    #[test]
    fn a_client_without_a_host_gets_the_certificate_of_its_address() {
        check(
            &[
                ("-", &["a.com"], &["10.0.0.1", "fd00::1"]),
                ("-", &["10.0.0.2", "ip:10.0.0.3"], &[]),
            ],
            &[
                (None, Some("10.0.0.1"), Some(0)),
                (None, Some("::ffff:10.0.0.1"), Some(0)),
                (None, Some("fd00:0::1"), Some(0)),
                (None, Some("10.0.0.2"), Some(1)),
                (None, Some("10.0.0.3"), None),
                (Some("other"), Some("10.0.0.1"), None),
                (Some("a.com"), Some("10.0.0.2"), Some(0)),
                (None, None, None),
            ],
        );
        check(
            &[("-", &["a.com"], &["10.0.0.1"]), ("-", &["b.com"], &[""])],
            &[
                (None, Some("10.0.0.1"), Some(0)),
                (None, Some("10.0.0.2"), Some(1)),
                (Some("other"), Some("10.0.0.2"), None),
            ],
        );
    }
}
