//! A certificate request (PKCS #10), as Go's `crypto/x509` reads it.

use std::collections::HashSet;
use std::net::Ipv6Addr;

use rustls::pki_types::pem::{self, SectionKind};

use super::der::{self, Malformed, Reader};
use super::signature;
use super::uri::normal_form;
use crate::client::x509::{is_printable, string};
use crate::sort::Order;

/// What a certificate request asks for.
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
    /// In the order of [`ATTRIBUTES`].
    values: [Vec<String>; ATTRIBUTES.len()],
}

/// The last number of 2.5.4.x, in the order in which Go writes them: country, province, locality,
/// street, postal code, organization, its unit, common name, serial number.
const ATTRIBUTES: [u8; 9] = [6, 8, 7, 9, 17, 10, 11, 3, 5];
const ORGANIZATION: usize = 5;
const COMMON_NAME: usize = 7;

#[derive(Debug, Default, PartialEq, Eq)]
pub struct AlternativeNames {
    pub dns: Vec<String>,
    pub emails: Vec<String>,
    /// Of 4 bytes or 16.
    pub ips: Vec<Vec<u8>>,
    /// In the form in which Go writes them.
    pub uris: Vec<String>,
}

/// 2.5.4, of the attributes of a name.
const ATTRIBUTE: &[u8] = &[0x55, 0x04];
/// 1.2.840.113549.1.9.14
const EXTENSION_REQUEST: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 0x0e];
/// 2.5.29.17
pub(super) const SUBJECT_ALTERNATIVE_NAME: &[u8] = &[0x55, 0x1d, 0x11];

const EMAIL: u8 = der::context(1);
const DNS: u8 = der::context(2);
const URI: u8 = der::context(6);
const IP: u8 = der::context(7);

impl CertificateRequest {
    /// The first block of `text`, which must be a request. Upstream: `ParseCSR`.
    ///
    /// # Errors
    /// One line saying what is wrong with it.
    pub fn from_pem(text: &[u8]) -> Result<CertificateRequest, String> {
        match pem::from_buf(&mut &*text) {
            Ok(Some((SectionKind::Csr, der))) => CertificateRequest::from_der(&der),
            _ => Err("PEM block type must be CERTIFICATE REQUEST".to_owned()),
        }
    }

    pub(super) fn from_der(der: &[u8]) -> Result<CertificateRequest, String> {
        let mut outer = Reader::new(der);
        let mut request = outer.nested(der::SEQUENCE, "request").map_err(text)?;
        outer.end("end of request").map_err(text)?;
        let signed = request.expect(der::SEQUENCE, "request info").map_err(text)?;
        let algorithm = request.expect(der::SEQUENCE, "signature algorithm").map_err(text)?.whole;
        let signature = request.bytes("signature").map_err(text)?;
        request.end("end of request").map_err(text)?;

        let mut info = Reader::new(signed.content);
        info.expect(der::INTEGER, "version").map_err(text)?;
        let subject = Subject::read(info.nested(der::SEQUENCE, "subject").map_err(text)?)?;
        let public_key = info.expect(der::SEQUENCE, "public key").map_err(text)?.whole;
        let attributes = info.nested(der::constructed(0), "attributes").map_err(text)?;
        info.end("end of request info").map_err(text)?;
        Ok(CertificateRequest {
            subject,
            names: alternative_names(attributes)?,
            public_key: public_key.to_vec(),
            signed: signed.whole.to_vec(),
            algorithm: algorithm.to_vec(),
            signature: signature.to_vec(),
        })
    }

    /// Whether the requester has the private key.
    ///
    /// # Errors
    /// One line saying why not.
    pub fn check_signature(&self) -> Result<(), String> {
        let CertificateRequest { public_key, algorithm, signed, signature, .. } = self;
        signature::verify(public_key, algorithm, signed, signature)
    }
}

fn text(error: Malformed) -> String {
    error.to_string()
}

impl Subject {
    pub fn common_name(&self) -> &str {
        self.values[COMMON_NAME].last().map_or("", String::as_str)
    }

    pub fn organizations(&self) -> &[String] {
        &self.values[ORGANIZATION]
    }

    fn read(mut names: Reader<'_>) -> Result<Subject, String> {
        let mut subject = Subject::default();
        while !names.is_empty() {
            let mut set = names.nested(der::SET, "subject").map_err(text)?;
            while !set.is_empty() {
                let mut attribute = set.nested(der::SEQUENCE, "attribute").map_err(text)?;
                let kind = attribute.expect(der::OBJECT_IDENTIFIER, "attribute").map_err(text)?;
                let value = attribute.any("attribute").map_err(text)?;
                attribute.end("attribute").map_err(text)?;
                let value = string(value.tag, value.content)?;
                let known = kind.content.strip_prefix(ATTRIBUTE).and_then(|last| match last {
                    [last] => ATTRIBUTES.iter().position(|attribute| attribute == last),
                    _ => None,
                });
                if let (Some(at), Some(value)) = (known, value) {
                    let values = &mut subject.values[at];
                    // Of common names and serial numbers the last one counts.
                    if at >= COMMON_NAME {
                        values.clear();
                    }
                    values.push(value);
                }
            }
        }
        Ok(subject)
    }

    pub fn to_der(&self) -> Vec<u8> {
        let mut names = Vec::new();
        for (at, (kind, values)) in ATTRIBUTES.iter().zip(&self.values).enumerate() {
            if values.is_empty() || at >= COMMON_NAME && values[0].is_empty() {
                continue;
            }
            let kind = der::element(der::OBJECT_IDENTIFIER, &[ATTRIBUTE, &[*kind]].concat());
            let attribute = |value: &String| der::sequence(&[kind.clone(), encoded(value)]);
            let mut set: Vec<Vec<u8>> = values.iter().map(attribute).collect();
            set.order();
            names.push(der::element(der::SET, &set.concat()));
        }
        der::sequence(&names)
    }
}

/// As a PrintableString where that is possible.
fn encoded(value: &str) -> Vec<u8> {
    let tag = match value.bytes().all(is_printable) {
        true => der::PRINTABLE_STRING,
        false => der::UTF8_STRING,
    };
    der::element(tag, value.as_bytes())
}

/// The names in the extensions that a request's attributes ask for. Attributes of other forms are
/// ignored.
fn alternative_names(mut attributes: Reader<'_>) -> Result<AlternativeNames, String> {
    let mut names = AlternativeNames::default();
    let mut seen: HashSet<&[u8]> = HashSet::new();
    while !attributes.is_empty() {
        let attribute = attributes.any("attribute").map_err(text)?;
        let Some(mut extensions) = requested(attribute.whole) else { continue };
        let mut extensions = extensions.nested(der::SEQUENCE, "extensions").map_err(text)?;
        while !extensions.is_empty() {
            let mut extension = extensions.nested(der::SEQUENCE, "extension").map_err(text)?;
            let kind = extension.expect(der::OBJECT_IDENTIFIER, "extension").map_err(text)?;
            // Whether it is critical.
            let _ = extension.expect(der::BOOLEAN, "extension");
            let value = extension.expect(der::OCTET_STRING, "extension").map_err(text)?;
            extension.end("extension").map_err(text)?;
            if !seen.insert(kind.content) {
                let twice = "x509: certificate request contains duplicate requested extensions";
                return Err(twice.to_owned());
            }
            if kind.content == SUBJECT_ALTERNATIVE_NAME {
                names = AlternativeNames::read(value.content)?;
            }
        }
    }
    Ok(names)
}

/// The first value of an attribute that asks for extensions.
fn requested(attribute: &[u8]) -> Option<Reader<'_>> {
    let mut attribute = Reader::new(attribute).nested(der::SEQUENCE, "attribute").ok()?;
    let kind = attribute.expect(der::OBJECT_IDENTIFIER, "attribute").ok()?;
    let values = attribute.nested(der::SET, "attribute").ok()?;
    let wanted = kind.content == EXTENSION_REQUEST && attribute.is_empty() && !values.is_empty();
    wanted.then_some(values)
}

impl AlternativeNames {
    pub fn is_empty(&self) -> bool {
        *self == AlternativeNames::default()
    }

    fn read(extension: &[u8]) -> Result<AlternativeNames, String> {
        let names = Reader::new(extension).nested(der::SEQUENCE, "");
        let mut names = names.map_err(|_| "x509: invalid subject alternative names".to_owned())?;
        let mut found = AlternativeNames::default();
        while !names.is_empty() {
            let name =
                names.any("").map_err(|_| "x509: invalid subject alternative name".to_owned())?;
            let ascii = |what: &str| match name.content.is_ascii() {
                true => Ok(String::from_utf8_lossy(name.content).into_owned()),
                false => Err(format!("x509: SAN {what} is malformed")),
            };
            match name.tag {
                EMAIL => found.emails.push(ascii("rfc822Name")?),
                DNS => found.dns.push(ascii("dNSName")?),
                URI => {
                    let given = ascii("uniformResourceIdentifier")?;
                    let form = normal_form(&given);
                    found.uris.push(
                        form.map_err(|why| format!("x509: cannot parse URI {given:?}: {why}"))?,
                    );
                }
                IP => match name.content.len() {
                    4 | 16 => found.ips.push(name.content.to_vec()),
                    n => return Err(format!("x509: cannot parse IP address of length {n}")),
                },
                _ => {}
            }
        }
        Ok(found)
    }

    /// The extension's value: the names by their kind.
    pub fn to_der(&self) -> Vec<u8> {
        let text = |tag: u8, names: &[String]| -> Vec<Vec<u8>> {
            names.iter().map(|name| der::element(tag, name.as_bytes())).collect()
        };
        let ips = self.ips.iter().map(|ip| der::element(IP, shortest(ip).as_slice())).collect();
        let all = [text(DNS, &self.dns), text(EMAIL, &self.emails), ips, text(URI, &self.uris)];
        der::sequence(&all.concat())
    }
}

/// An IPv4 address in 4 bytes, also when it came within an IPv6 address.
fn shortest(ip: &[u8]) -> Vec<u8> {
    let v4 = <[u8; 16]>::try_from(ip).ok().and_then(|ip| Ipv6Addr::from(ip).to_ipv4_mapped());
    v4.map_or_else(|| ip.to_vec(), |v4| v4.octets().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    const T61_STRING: u8 = 0x14;
    const IA5_STRING: u8 = 0x16;
    const BMP_STRING: u8 = 0x1e;

    fn read(names: &[u8]) -> Subject {
        let names = Reader::new(names).nested(der::SEQUENCE, "").unwrap();
        Subject::read(names).unwrap()
    }

    #[test]
    fn a_subject_is_written_in_gos_order() {
        let attribute = |kind: u8, tag: u8, value: &[u8]| {
            let kind = der::element(der::OBJECT_IDENTIFIER, &[0x55, 0x04, kind]);
            der::sequence(&[kind, der::element(tag, value)])
        };
        let name = |attributes: &[Vec<u8>]| {
            let set = |one: &Vec<u8>| der::element(der::SET, one);
            der::sequence(&attributes.iter().map(set).collect::<Vec<_>>())
        };
        let given = name(&[
            attribute(3, der::UTF8_STRING, b"first"),
            attribute(10, BMP_STRING, &[0, b'z']),
            attribute(10, T61_STRING, &[0xfc]),
            attribute(10, der::BIT_STRING, &[0, 1]),
            attribute(42, der::UTF8_STRING, b"unknown"),
            attribute(3, der::PRINTABLE_STRING, b"star*"),
            attribute(6, IA5_STRING, b"DE"),
            attribute(5, der::UTF8_STRING, b""),
        ]);
        let subject = read(&given);
        assert_eq!(subject.common_name(), "star*");
        assert_eq!(subject.organizations(), ["z", "\u{fc}"]);
        // Sets are sorted by their bytes.
        let organizations = [
            attribute(10, der::PRINTABLE_STRING, b"z"),
            attribute(10, der::UTF8_STRING, "\u{fc}".as_bytes()),
        ]
        .concat();
        let wanted = name(&[
            attribute(6, der::PRINTABLE_STRING, b"DE"),
            organizations,
            attribute(3, der::UTF8_STRING, b"star*"),
        ]);
        assert_eq!(subject.to_der(), wanted);
        assert_eq!(read(&wanted).to_der(), wanted);
    }

    #[test]
    fn alternative_names_are_sorted_by_kind() {
        let name = der::element;
        let given = der::sequence(&[
            name(URI, b"SPIFFE://td/a b"),
            name(IP, &[1, 2, 3, 4]),
            name(EMAIL, b"a@b"),
            name(DNS, b"x"),
            name(der::constructed(4), b""),
            name(IP, &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 5, 6, 7, 8]),
        ]);
        let names = AlternativeNames::read(&given).unwrap();
        let wanted = der::sequence(&[
            name(DNS, b"x"),
            name(EMAIL, b"a@b"),
            name(IP, &[1, 2, 3, 4]),
            name(IP, &[5, 6, 7, 8]),
            name(URI, b"spiffe://td/a%20b"),
        ]);
        assert_eq!(names.to_der(), wanted);
        for (bad, why) in [
            (name(IP, &[1]), "x509: cannot parse IP address of length 1"),
            (name(DNS, b"\xff"), "x509: SAN dNSName is malformed"),
            (name(URI, b":"), "x509: cannot parse URI \":\": parse \":\": missing protocol scheme"),
            (vec![DNS], "x509: invalid subject alternative name"),
        ] {
            let read = AlternativeNames::read(&der::sequence(&[bad]));
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
