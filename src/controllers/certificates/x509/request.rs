//! A certificate request (PKCS #10), as Go's `crypto/x509` reads it.

use std::collections::HashSet;
use std::net::Ipv6Addr;

use der::asn1::{
    Any, AnyRef, BitStringRef, Ia5String, IntRef, ObjectIdentifier, OctetString,
    PrintableStringRef, Utf8StringRef,
};
use der::oid::AssociatedOid;
use der::oid::db::rfc4519::{C, CN, L, O, OU, POSTAL_CODE, SERIAL_NUMBER, ST, STREET};
use der::oid::db::rfc5912::ID_EXTENSION_REQ;
use der::{Decode, Encode, ErrorKind, Reader, Sequence, SliceReader, Tag, TagNumber, Tagged};
use rustls::pki_types::pem::{self, SectionKind};
use x509_cert::ext::Extension;
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;
use x509_cert::spki::{AlgorithmIdentifierRef, SubjectPublicKeyInfoRef};

use super::signature;
use super::uri::normal_form;
use crate::client::x509::string;

/// The content of a certificate request.
#[derive(Debug)]
pub struct CertificateRequest {
    pub subject: Subject,
    pub names: AlternativeNames,
    /// `SubjectPublicKeyInfo`.
    pub public_key: Vec<u8>,
    /// The part that is signed.
    signed: Vec<u8>,
    /// `AlgorithmIdentifier`.
    algorithm: Vec<u8>,
    signature: Vec<u8>,
}

/// The names of a subject that Go knows; others are dropped. Upstream: `pkix.Name`.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Subject {
    /// The values of each attribute, in the order of [`ATTRIBUTES`].
    values: [Vec<String>; ATTRIBUTES.len()],
}

/// The attributes of a subject, in the order in which Go writes them.
const ATTRIBUTES: [ObjectIdentifier; 9] = [C, ST, L, STREET, POSTAL_CODE, O, OU, CN, SERIAL_NUMBER];
const ORGANIZATION_INDEX: usize = 5;
const COMMON_NAME_INDEX: usize = 7;

#[derive(Debug, Default, PartialEq, Eq)]
pub struct AlternativeNames {
    pub dns: Vec<String>,
    pub emails: Vec<String>,
    /// Addresses of 4 or 16 bytes.
    pub ips: Vec<Vec<u8>>,
    /// The URIs in the form in which Go writes them.
    pub uris: Vec<String>,
}

const EMAIL: Tag = Tag::ContextSpecific { constructed: false, number: TagNumber::N1 };
const DNS: Tag = Tag::ContextSpecific { constructed: false, number: TagNumber::N2 };
const URI: Tag = Tag::ContextSpecific { constructed: false, number: TagNumber::N6 };
const IP: Tag = Tag::ContextSpecific { constructed: false, number: TagNumber::N7 };

// `x509_cert` has these as well, but refuses what Go takes: a set that holds a value twice, an
// attribute or an alternative name of a form that is not used, a version that is not 0. Nor does it
// keep the order of a set, of which Go takes the last common name.

/// `CertificationRequest`.
#[derive(Sequence)]
struct SignedRequest<'a> {
    info: AnyRef<'a>,
    algorithm: AlgorithmIdentifierRef<'a>,
    signature: BitStringRef<'a>,
}

/// `CertificationRequestInfo`.
#[derive(Sequence)]
struct RequestInfo<'a> {
    version: IntRef<'a>,
    subject: AnyRef<'a>,
    public_key: SubjectPublicKeyInfoRef<'a>,
    #[asn1(context_specific = "0", tag_mode = "IMPLICIT")]
    attributes: Vec<AnyRef<'a>>,
}

/// An attribute of a request; `values` is a set.
#[derive(Sequence)]
struct Attribute<'a> {
    kind: ObjectIdentifier,
    values: AnyRef<'a>,
}

/// `AttributeTypeAndValue`.
#[derive(Sequence)]
struct NameAttribute<'a> {
    kind: ObjectIdentifier,
    value: AnyRef<'a>,
}

impl CertificateRequest {
    /// Parses the first block of `text`, a PEM that must begin with a request. Upstream:
    /// `ParseCSR`.
    ///
    /// # Errors
    /// One line that describes the fault.
    pub fn from_pem(text: &[u8]) -> Result<CertificateRequest, String> {
        match pem::from_buf(&mut &*text) {
            Ok(Some((SectionKind::Csr, der))) => CertificateRequest::from_der(&der),
            _ => Err("PEM block type must be CERTIFICATE REQUEST".to_owned()),
        }
    }

    /// Parses a request in DER.
    ///
    /// # Errors
    /// One line that describes the fault.
    pub fn from_der(der: &[u8]) -> Result<CertificateRequest, String> {
        let request = SignedRequest::from_der(der).map_err(der_error)?;
        let info: RequestInfo = request.info.decode_as().map_err(der_error)?;
        let signature = request.signature.as_bytes();
        Ok(CertificateRequest {
            subject: Subject::read(info.subject)?,
            names: requested_names(&info.attributes)?,
            public_key: info.public_key.to_der().map_err(der_error)?,
            signed: request.info.to_der().map_err(der_error)?,
            algorithm: request.algorithm.to_der().map_err(der_error)?,
            signature: signature.ok_or("asn1: the signature has a part of a byte")?.to_vec(),
        })
    }

    /// Checks that the request is signed with the private key that belongs to its public key.
    ///
    /// # Errors
    /// One line that gives the reason.
    pub fn check_signature(&self) -> Result<(), String> {
        let CertificateRequest { public_key, algorithm, signed, signature, .. } = self;
        signature::verify(public_key, algorithm, signed, signature)
    }
}

fn der_error(error: der::Error) -> String {
    format!("asn1: {error}")
}

/// Returns the elements of a set, in the order in which they are encoded.
fn set_elements(set: AnyRef<'_>) -> der::Result<Vec<AnyRef<'_>>> {
    set.tag().assert_eq(Tag::Set)?;
    let mut reader = SliceReader::new(set.value())?;
    let mut elements = Vec::new();
    while !reader.is_finished() {
        elements.push(reader.decode()?);
    }
    Ok(elements)
}

impl Subject {
    /// Returns the last common name; empty if the subject has none.
    pub fn common_name(&self) -> &str {
        self.values[COMMON_NAME_INDEX].last().map_or("", String::as_str)
    }

    pub fn organizations(&self) -> &[String] {
        &self.values[ORGANIZATION_INDEX]
    }

    /// Decodes a `Name`. Attributes that are not in [`ATTRIBUTES`], or are not text, are skipped.
    fn read(name: AnyRef<'_>) -> Result<Subject, String> {
        let mut subject = Subject::default();
        for set in name.decode_as::<Vec<AnyRef>>().map_err(der_error)? {
            for attribute in set_elements(set).map_err(der_error)? {
                let Some(NameAttribute { kind, value }) =
                    decode_attribute(attribute).map_err(der_error)?
                else {
                    continue;
                };
                let value = string(value.tag().into(), value.value())?;
                let index = ATTRIBUTES.iter().position(|attribute| *attribute == kind);
                if let (Some(index), Some(value)) = (index, value) {
                    let values = &mut subject.values[index];
                    // If there are several common names or serial numbers, the last one counts.
                    if index >= COMMON_NAME_INDEX {
                        values.clear();
                    }
                    values.push(value);
                }
            }
        }
        Ok(subject)
    }

    /// Encodes the subject as a `Name`. `x509_cert`'s has no room for a value that occurs twice,
    /// which Go writes.
    pub fn to_der(&self) -> der::Result<Vec<u8>> {
        let mut names = Vec::new();
        for (index, (kind, values)) in ATTRIBUTES.iter().zip(&self.values).enumerate() {
            // Go leaves out a common name or serial number that is empty.
            if values.is_empty() || index >= COMMON_NAME_INDEX && values[0].is_empty() {
                continue;
            }
            let attribute = |value: &String| encode_attribute(*kind, value);
            let mut set: Vec<Vec<u8>> = values.iter().map(attribute).collect::<der::Result<_>>()?;
            set.sort();
            names.push(Any::new(Tag::Set, set.concat())?);
        }
        names.to_der()
    }
}

/// Decodes an attribute; `None` if its value has a type that `der` does not know. Go reads no
/// text of such a type either.
fn decode_attribute(attribute: AnyRef<'_>) -> der::Result<Option<NameAttribute<'_>>> {
    attribute.sequence(|reader| {
        let kind = reader.decode()?;
        let is_unknown = |error: der::Error| matches!(error.kind(), ErrorKind::TagUnknown { .. });
        if reader.peek_tag().is_err_and(is_unknown) {
            reader.read_slice(reader.remaining_len())?;
            return Ok(None);
        }
        Ok(Some(NameAttribute { kind, value: reader.decode()? }))
    })
}

/// Encodes an attribute with this value: as a PrintableString where that is possible, else as a
/// UTF8String.
fn encode_attribute(kind: ObjectIdentifier, value: &str) -> der::Result<Vec<u8>> {
    let value = match PrintableStringRef::new(value) {
        Ok(printable) => printable.into(),
        Err(_) => Utf8StringRef::new(value)?.into(),
    };
    NameAttribute { kind, value }.to_der()
}

/// Returns the alternative names in the extensions that a request's attributes ask for. Attributes
/// of other forms are ignored. Fails if an extension is malformed or there twice.
fn requested_names(attributes: &[AnyRef<'_>]) -> Result<AlternativeNames, String> {
    let mut names = AlternativeNames::default();
    let mut seen: HashSet<ObjectIdentifier> = HashSet::new();
    for extensions in attributes.iter().filter_map(|attribute| requested_extensions(*attribute)) {
        for extension in extensions.decode_as::<Vec<Extension>>().map_err(der_error)? {
            if !seen.insert(extension.extn_id) {
                let twice = "x509: certificate request contains duplicate requested extensions";
                return Err(twice.to_owned());
            }
            if extension.extn_id == SubjectAltName::OID {
                names = AlternativeNames::read(extension.extn_value.as_bytes())?;
            }
        }
    }
    Ok(names)
}

/// Returns the extensions that an attribute asks for, its first value; `None` for other attributes.
fn requested_extensions(attribute: AnyRef<'_>) -> Option<AnyRef<'_>> {
    let Attribute { kind, values } = attribute.decode_as().ok()?;
    if kind != ID_EXTENSION_REQ {
        return None;
    }
    set_elements(values).ok()?.first().copied()
}

impl AlternativeNames {
    pub fn is_empty(&self) -> bool {
        *self == AlternativeNames::default()
    }

    /// Decodes the extension `SubjectAltName`.
    fn read(extension: &[u8]) -> Result<AlternativeNames, String> {
        let mut names =
            sequence_reader(extension).map_err(|_| "x509: invalid subject alternative names")?;
        let mut found = AlternativeNames::default();
        while !names.is_finished() {
            let name = AnyRef::decode(&mut names);
            let name = name.map_err(|_| "x509: invalid subject alternative name")?;
            let ascii = |what: &str| match name.value().is_ascii() {
                true => Ok(String::from_utf8_lossy(name.value()).into_owned()),
                false => Err(format!("x509: SAN {what} is malformed")),
            };
            match name.tag() {
                EMAIL => found.emails.push(ascii("rfc822Name")?),
                DNS => found.dns.push(ascii("dNSName")?),
                URI => {
                    let uri = ascii("uniformResourceIdentifier")?;
                    match normal_form(&uri) {
                        Ok(form) => found.uris.push(form),
                        Err(why) => return Err(format!("x509: cannot parse URI {uri:?}: {why}")),
                    }
                }
                IP => match name.value().len() {
                    4 | 16 => found.ips.push(name.value().to_vec()),
                    n => return Err(format!("x509: cannot parse IP address of length {n}")),
                },
                // Go ignores names of other kinds.
                _ => {}
            }
        }
        Ok(found)
    }

    /// Encodes the names as an extension, grouped by their kind.
    pub fn to_extension(&self) -> der::Result<SubjectAltName> {
        let mut names = Vec::new();
        for name in &self.dns {
            names.push(GeneralName::DnsName(Ia5String::new(name)?));
        }
        for name in &self.emails {
            names.push(GeneralName::Rfc822Name(Ia5String::new(name)?));
        }
        for ip in &self.ips {
            names.push(GeneralName::IpAddress(OctetString::new(shorten_ip(ip))?));
        }
        for uri in &self.uris {
            names.push(GeneralName::UniformResourceIdentifier(Ia5String::new(uri)?));
        }
        Ok(SubjectAltName(names))
    }
}

/// Returns a reader of the elements of the sequence that `bytes` begin with.
fn sequence_reader(bytes: &[u8]) -> der::Result<SliceReader<'_>> {
    let sequence: AnyRef = SliceReader::new(bytes)?.decode()?;
    sequence.tag().assert_eq(Tag::Sequence)?;
    SliceReader::new(sequence.value())
}

/// Returns the address; an IPv4 address that is mapped into an IPv6 address becomes 4 bytes.
fn shorten_ip(ip: &[u8]) -> Vec<u8> {
    let Ok(v6) = <[u8; 16]>::try_from(ip) else { return ip.to_vec() };
    match Ipv6Addr::from(v6).to_ipv4_mapped() {
        Some(v4) => v4.octets().to_vec(),
        None => ip.to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use der::oid::db::rfc4519::GIVEN_NAME;

    use super::*;

    fn read(name: &[u8]) -> Subject {
        Subject::read(AnyRef::from_der(name).unwrap()).unwrap()
    }

    fn element(tag: Tag, content: &[u8]) -> Vec<u8> {
        AnyRef::new(tag, content).unwrap().to_der().unwrap()
    }

    fn joined(parts: &[Vec<u8>]) -> Vec<u8> {
        element(Tag::Sequence, &parts.concat())
    }

    #[test]
    fn a_subject_is_written_in_gos_order() {
        let attribute = |kind: ObjectIdentifier, tag: Tag, value: &[u8]| {
            joined(&[kind.to_der().unwrap(), element(tag, value)])
        };
        let name = |attributes: &[Vec<u8>]| {
            let set = |one: &Vec<u8>| element(Tag::Set, one);
            joined(&attributes.iter().map(set).collect::<Vec<_>>())
        };
        // `der` does not know the type UniversalString.
        let universal = joined(&[CN.to_der().unwrap(), vec![0x1c, 4, 0, 0, 0, b'u']]);
        // Go drops all common names but the last, attributes and types that it does not know, and
        // an empty serial number.
        let encoded = name(&[
            attribute(CN, Tag::Utf8String, b"first"),
            attribute(O, Tag::BmpString, &[0, b'z']),
            attribute(O, Tag::TeletexString, &[0xfc]),
            attribute(O, Tag::BitString, &[0, 1]),
            attribute(GIVEN_NAME, Tag::Utf8String, b"unknown"),
            attribute(CN, Tag::PrintableString, b"star*"),
            attribute(C, Tag::Ia5String, b"DE"),
            attribute(SERIAL_NUMBER, Tag::Utf8String, b""),
            universal,
        ]);
        let subject = read(&encoded);
        assert_eq!(subject.common_name(), "star*");
        assert_eq!(subject.organizations(), ["z", "\u{fc}"]);
        // Sets are sorted by their bytes.
        let organizations = [
            attribute(O, Tag::PrintableString, b"z"),
            attribute(O, Tag::Utf8String, "\u{fc}".as_bytes()),
        ]
        .concat();
        let expected = name(&[
            attribute(C, Tag::PrintableString, b"DE"),
            organizations,
            attribute(CN, Tag::Utf8String, b"star*"),
        ]);
        assert_eq!(subject.to_der().unwrap(), expected);
        assert_eq!(read(&expected).to_der().unwrap(), expected);
    }

    #[test]
    fn alternative_names_are_sorted_by_kind() {
        let name = element;
        let encoded = joined(&[
            name(URI, b"SPIFFE://td/a b"),
            name(IP, &[1, 2, 3, 4]),
            name(EMAIL, b"a@b"),
            name(DNS, b"x"),
            name(Tag::ContextSpecific { constructed: true, number: TagNumber::N4 }, b""),
            name(IP, &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 5, 6, 7, 8]),
        ]);
        let names = AlternativeNames::read(&encoded).unwrap();
        let expected = joined(&[
            name(DNS, b"x"),
            name(EMAIL, b"a@b"),
            name(IP, &[1, 2, 3, 4]),
            name(IP, &[5, 6, 7, 8]),
            name(URI, b"spiffe://td/a%20b"),
        ]);
        assert_eq!(names.to_extension().unwrap().to_der().unwrap(), expected);
        for (bad, why) in [
            (name(IP, &[1]), "x509: cannot parse IP address of length 1"),
            (name(DNS, b"\xff"), "x509: SAN dNSName is malformed"),
            (name(URI, b":"), "x509: cannot parse URI \":\": parse \":\": missing protocol scheme"),
            (vec![DNS.into()], "x509: invalid subject alternative name"),
        ] {
            let read = AlternativeNames::read(&joined(&[bad]));
            assert_eq!(read.unwrap_err(), why);
        }
    }

    #[test]
    fn the_first_block_is_a_request() {
        let csr = include_bytes!("../../../../fixtures/certificates/kubelet-client.csr");
        let other = include_bytes!("../../../../fixtures/certificates/ca-p256.crt");
        assert!(CertificateRequest::from_pem(csr).is_ok());
        for bad in [&other[..], &[other, &csr[..]].concat(), b"", b"-----BEGIN"] {
            assert_eq!(
                CertificateRequest::from_pem(bad).unwrap_err(),
                "PEM block type must be CERTIFICATE REQUEST"
            );
        }
    }
}
