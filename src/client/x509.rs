//! The parts of an X.509 certificate, and of a request for one, that the manager and the kubelet
//! read. Upstream: Go's `crypto/x509`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rustls::pki_types::pem::{self, SectionKind};
use x509_cert::certificate::{CertificateInner, Raw};
use x509_cert::der::asn1::{Any, ObjectIdentifier};
use x509_cert::der::oid::db::rfc4519::{CN, O};
use x509_cert::der::oid::db::rfc5280::{ANY_EXTENDED_KEY_USAGE, ID_KP_SERVER_AUTH};
use x509_cert::der::{Decode, Encode, Tag, Tagged};
use x509_cert::ext::pkix::name::GeneralName;
use x509_cert::ext::pkix::{ExtendedKeyUsage, SubjectAltName, SubjectKeyIdentifier};
use x509_cert::name::Name;
use x509_cert::request::CertReq;
use x509_cert::time::Time;

use crate::objects::Timestamp;

/// A certificate of version 1 to 3, whose signature is not checked.
// Raw: serial numbers of any length and sign, as in certificates that are made by hand.
pub struct Certificate(CertificateInner<Raw>);

impl Certificate {
    /// Decodes a certificate.
    ///
    /// # Errors
    /// When `der` is something else than one certificate.
    pub fn from_der(der: &[u8]) -> Result<Certificate, String> {
        CertificateInner::from_der(der)
            .map(Certificate)
            .map_err(|error| format!("malformed certificate: {error}"))
    }

    /// Returns the start of its validity.
    pub fn not_before(&self) -> Timestamp {
        timestamp(self.0.tbs_certificate.validity.not_before)
    }

    /// Returns the end of its validity: it is valid at this second and not after it.
    pub fn not_after(&self) -> Timestamp {
        timestamp(self.0.tbs_certificate.validity.not_after)
    }

    /// `SubjectPublicKeyInfo` in DER.
    pub fn public_key(&self) -> Vec<u8> {
        encoded(&self.0.tbs_certificate.subject_public_key_info)
    }

    /// Returns the subject in DER.
    pub fn subject(&self) -> Vec<u8> {
        encoded(&self.0.tbs_certificate.subject)
    }

    /// Returns the subject key identifier; empty without one, or when it is malformed.
    pub fn subject_key_id(&self) -> Vec<u8> {
        let found = self.0.tbs_certificate.get::<SubjectKeyIdentifier>().ok().flatten();
        found.map_or_else(Vec::new, |(_, id)| id.0.into_bytes())
    }

    /// Returns the subject's common names that are text.
    pub fn common_names(&self) -> impl Iterator<Item = String> {
        self.attributes(CN).flatten()
    }

    /// Returns the subject's organizations that are text.
    pub fn organizations(&self) -> impl Iterator<Item = String> {
        self.attributes(O).flatten()
    }

    /// Returns the subject's attributes of one kind, in their order; `None` for one that is no
    /// text.
    pub fn attributes(&self, kind: ObjectIdentifier) -> impl Iterator<Item = Option<String>> {
        attributes(&self.0.tbs_certificate.subject, kind)
    }

    /// Returns the DNS names among the alternative names; none when that extension is malformed.
    pub fn dns_names(&self) -> Vec<String> {
        let dns = self.alternative_names().filter_map(|name| match name {
            GeneralName::DnsName(name) => Some(name.to_string()),
            _ => None,
        });
        dns.collect()
    }

    /// Returns the addresses among the alternative names; none when that extension is malformed.
    pub fn ip_addresses(&self) -> Vec<IpAddr> {
        let addresses = self.alternative_names().filter_map(|name| match name {
            GeneralName::IpAddress(bytes) => match *bytes.as_bytes() {
                [a, b, c, d] => Some(Ipv4Addr::new(a, b, c, d).into()),
                ref more => <[u8; 16]>::try_from(more).ok().map(|all| Ipv6Addr::from(all).into()),
            },
            _ => None,
        });
        addresses.collect()
    }

    /// Returns the alternative names; none when that extension is malformed.
    fn alternative_names(&self) -> impl Iterator<Item = GeneralName> {
        let found = self.0.tbs_certificate.get::<SubjectAltName>().ok().flatten();
        found.into_iter().flat_map(|(_, names)| names.0)
    }

    /// Returns whether its extended usages, if it names any, include that of a server. A malformed
    /// extension counts as none.
    pub fn may_serve(&self) -> bool {
        let found = self.0.tbs_certificate.get::<ExtendedKeyUsage>().ok().flatten();
        found.is_none_or(|(_, usages)| {
            usages.0.iter().any(|usage| [ANY_EXTENDED_KEY_USAGE, ID_KP_SERVER_AUTH].contains(usage))
        })
    }
}

/// A request for a certificate (PKCS #10), whose signature is not checked.
pub struct Request(CertReq);

impl Request {
    /// Decodes the first block of `text`, which must be a request.
    ///
    /// # Errors
    /// When it is something else, or malformed.
    pub fn from_pem(text: &[u8]) -> Result<Request, String> {
        let Ok(Some((SectionKind::Csr, der))) = pem::from_buf(&mut &*text) else {
            return Err("PEM block type must be CERTIFICATE REQUEST".to_owned());
        };
        let request = CertReq::from_der(&der);
        request.map(Request).map_err(|error| format!("malformed request: {error}"))
    }

    /// `SubjectPublicKeyInfo` in DER.
    pub fn public_key(&self) -> Vec<u8> {
        encoded(&self.0.info.public_key)
    }

    /// Returns the subject's common names that are text.
    pub fn common_names(&self) -> impl Iterator<Item = String> {
        attributes(&self.0.info.subject, CN).flatten()
    }

    /// Returns the subject's organizations that are text.
    pub fn organizations(&self) -> impl Iterator<Item = String> {
        attributes(&self.0.info.subject, O).flatten()
    }
}

/// Returns the values of a name's attributes of one kind, in their order; `None` for one that is no
/// text.
fn attributes(name: &Name, kind: ObjectIdentifier) -> impl Iterator<Item = Option<String>> {
    let attributes = name.0.iter().flat_map(|set| set.0.iter());
    attributes.filter(move |one| one.oid == kind).map(|one| text_of(&one.value))
}

fn timestamp(time: Time) -> Timestamp {
    Timestamp::from_secs(time.to_unix_duration().as_secs() as i64)
}

/// Encodes a part of a certificate in DER.
fn encoded(part: &impl Encode) -> Vec<u8> {
    part.to_der().expect("what was read can be written")
}

/// Returns the text of a value; `None` when it is no text.
fn text_of(value: &Any) -> Option<String> {
    string(value.tag().into(), value.value()).ok().flatten()
}

/// Returns the text of a string in DER, of which `tag` is the type; `None` of a type that is no
/// text to Go. By hand: `der` refuses what Go takes, `*` and `&` in a PrintableString and Latin-1.
///
/// # Errors
/// When a byte is not allowed in a string of this type.
pub fn string(tag: u8, bytes: &[u8]) -> Result<Option<String>, String> {
    let text_if = |is_valid: bool, kind: &str| match is_valid {
        true => Ok(Some(String::from_utf8_lossy(bytes).into_owned())),
        false => Err(format!("asn1: invalid {kind}")),
    };
    match Tag::try_from(tag) {
        Ok(Tag::Utf8String) => text_if(std::str::from_utf8(bytes).is_ok(), "UTF8String"),
        Ok(Tag::PrintableString) => {
            let is_allowed = |byte: &u8| is_printable(*byte) || matches!(byte, b'*' | b'&');
            text_if(bytes.iter().all(is_allowed), "PrintableString")
        }
        Ok(Tag::Ia5String) => text_if(bytes.is_ascii(), "IA5String"),
        Ok(Tag::NumericString) => {
            let is_valid = bytes.iter().all(|byte| byte.is_ascii_digit() || *byte == b' ');
            text_if(is_valid, "NumericString")
        }
        // Read as Latin-1.
        Ok(Tag::TeletexString) => Ok(Some(bytes.iter().copied().map(char::from).collect())),
        Ok(Tag::BmpString) => {
            let (units, rest) = bytes.as_chunks::<2>();
            let mut units: Vec<u16> = units.iter().copied().map(u16::from_be_bytes).collect();
            // Go drops one final zero too.
            if units.last() == Some(&0) {
                units.pop();
            }
            let whole = if rest.is_empty() { String::from_utf16(&units).ok() } else { None };
            whole.map(Some).ok_or_else(|| "asn1: invalid BMPString".to_owned())
        }
        _ => Ok(None),
    }
}

/// Returns whether this byte may be in a PrintableString.
fn is_printable(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b" '()+,-./:=?".contains(&byte)
}

#[cfg(test)]
mod tests {
    use rcgen::{
        CertificateParams, DnType, DnValue, ExtendedKeyUsagePurpose, IsCa, KeyPair, PublicKeyData,
        SanType, SerialNumber, date_time_ymd,
    };

    use super::*;

    fn certificate(change: impl FnOnce(&mut CertificateParams)) -> (Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        change(&mut params);
        let der = params.self_signed(&key).unwrap().der().to_vec();
        assert!(Certificate::from_der(&[&der[..], b"\0"].concat()).is_err(), "bytes follow it");
        assert!(Certificate::from_der(&der[..der.len() - 1]).is_err(), "it is cut");
        (Certificate::from_der(&der).unwrap(), key)
    }

    #[test]
    fn its_fields_are_read() {
        let (read, key) = certificate(|params| {
            params.not_before = date_time_ymd(2049, 12, 31);
            params.not_after = date_time_ymd(2050, 1, 1);
            let name = &mut params.distinguished_name;
            name.push(DnType::CommonName, "me");
            name.push(DnType::OrganizationName, DnValue::PrintableString("us".try_into().unwrap()));
            params.is_ca = IsCa::ExplicitNoCa;
            params.use_authority_key_identifier_extension = false;
        });
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        assert_eq!(read.not_before(), at("2049-12-31T00:00:00Z"));
        assert_eq!(read.not_after(), at("2050-01-01T00:00:00Z"));
        assert_eq!(read.public_key(), key.subject_public_key_info());
        assert_eq!(read.common_names().collect::<Vec<_>>(), ["me"]);
        assert_eq!(read.organizations().collect::<Vec<_>>(), ["us"]);
        assert!(read.dns_names().is_empty());
    }

    #[test]
    fn alternative_names_are_returned_by_their_kind() {
        let addresses = ["10.0.0.1", "fd00::1"].map(|text| text.parse().unwrap());
        let (read, _) = certificate(|params| {
            let dns = |name: &str| SanType::DnsName(name.try_into().unwrap());
            let [v4, v6] = addresses.map(SanType::IpAddress);
            params.subject_alt_names = vec![dns("A.example"), v4, dns("*.b"), v6];
        });
        assert_eq!(read.dns_names(), ["A.example", "*.b"]);
        assert_eq!(read.ip_addresses(), addresses);
    }

    #[test]
    fn subject_and_key_of_a_request_are_read() {
        let text = include_bytes!("../../fixtures/certificates/kubelet-client.csr");
        let read = Request::from_pem(text).unwrap();
        assert_eq!(read.organizations().collect::<Vec<_>>(), ["system:nodes"]);
        assert!(read.common_names().next().unwrap().starts_with("system:node:"));
        let key = KeyPair::generate().unwrap();
        let made = CertificateParams::default().serialize_request(&key).unwrap();
        let read = Request::from_pem(made.pem().unwrap().as_bytes()).unwrap();
        assert_eq!(read.public_key(), key.subject_public_key_info());
        let certificate = include_bytes!("../../fixtures/certificates/kubelet-client.crt");
        assert!(Request::from_pem(certificate).is_err() && Request::from_pem(b"").is_err());
    }

    #[test]
    fn extended_usages_decide_whether_it_is_a_server_certificate() {
        use ExtendedKeyUsagePurpose::{Any, ClientAuth, ServerAuth};
        for (usages, serves) in [
            (vec![], true),
            (vec![ClientAuth], false),
            (vec![ClientAuth, ServerAuth], true),
            (vec![Any], true),
        ] {
            let name = format!("{usages:?}");
            let (read, _) = certificate(|params| params.extended_key_usages = usages);
            assert_eq!(read.may_serve(), serves, "{name}");
        }
    }

    #[test]
    fn a_serial_number_has_any_length() {
        for length in [1, 20, 21, 40] {
            certificate(|params| {
                params.serial_number = Some(SerialNumber::from(vec![0x7f; length]))
            });
        }
    }

    #[test]
    fn strings_hold_what_their_types_allow() {
        let read = |tag: Tag, bytes| string(tag.into(), bytes);
        for (tag, bytes) in [
            (Tag::Utf8String, &b"\xff"[..]),
            (Tag::PrintableString, b"a_b"),
            (Tag::Ia5String, b"\x80"),
            (Tag::NumericString, b"1a"),
            (Tag::BmpString, b"abc"),
            (Tag::BmpString, b"\xd8\x00"),
        ] {
            assert!(read(tag, bytes).is_err(), "{tag} {bytes:?}");
        }
        assert_eq!(read(Tag::NumericString, b"1 2"), Ok(Some("1 2".to_owned())));
        assert_eq!(read(Tag::BmpString, b"\0a\0\0"), Ok(Some("a".to_owned())));
        assert_eq!(read(Tag::TeletexString, b"\xfc"), Ok(Some("\u{fc}".to_owned())));
        assert_eq!(read(Tag::Integer, b"1"), Ok(None));
    }
}
