//! An authority that signs certificates. Upstream: `pkg/controller/certificates/authority`, and
//! `CreateCertificate` of Go's `crypto/x509`.

use std::time::Duration;

use der::asn1::{
    AnyRef, BitStringRef, GeneralizedTime, ObjectIdentifier, OctetString, UintRef, UtcTime,
};
use der::flagset::FlagSet;
use der::oid::AssociatedOid;
use der::{Decode, Encode, Sequence};
use rsa::rand_core::{OsRng, RngCore};
use x509_cert::certificate::Version;
use x509_cert::ext::Extension;
use x509_cert::ext::pkix::{
    AuthorityKeyIdentifier, BasicConstraints, ExtendedKeyUsage, KeyUsage, KeyUsages,
};
use x509_cert::spki::{AlgorithmIdentifierRef, SubjectPublicKeyInfoRef};
use x509_cert::time::{Time, Validity};

use super::request::CertificateRequest;
use super::signature::SigningKey;
use crate::client::pem;
use crate::client::x509::Certificate;
use crate::objects::{Istr, Timestamp};

/// How long before now a certificate begins, because some clocks are slow.
const BACKDATE: Duration = Duration::from_secs(5 * 60);
/// A lifetime below this is not reduced by [`BACKDATE`].
const SHORT_LIFETIME: Duration = Duration::from_secs(8 * 60 * 60);

/// The bit of each name that `spec.usages` may hold.
const KEY_USAGES: [(&str, KeyUsages); 10] = [
    ("signing", KeyUsages::DigitalSignature),
    ("digital signature", KeyUsages::DigitalSignature),
    ("content commitment", KeyUsages::NonRepudiation),
    ("key encipherment", KeyUsages::KeyEncipherment),
    ("data encipherment", KeyUsages::DataEncipherment),
    ("key agreement", KeyUsages::KeyAgreement),
    ("cert sign", KeyUsages::KeyCertSign),
    ("crl sign", KeyUsages::CRLSign),
    ("encipher only", KeyUsages::EncipherOnly),
    ("decipher only", KeyUsages::DecipherOnly),
];

/// The identifier of each name that `spec.usages` may hold, in the order in which they are written.
const EXTENDED_USAGES: [(&str, ObjectIdentifier); 13] = [
    ("any", ObjectIdentifier::new_unwrap("2.5.29.37.0")),
    ("server auth", ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.3.1")),
    ("client auth", ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.3.2")),
    ("code signing", ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.3.3")),
    ("email protection", ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.3.4")),
    ("s/mime", ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.3.4")),
    ("ipsec end system", ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.3.5")),
    ("ipsec tunnel", ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.3.6")),
    ("ipsec user", ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.3.7")),
    ("timestamping", ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.3.8")),
    ("ocsp signing", ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.3.9")),
    ("microsoft sgc", ObjectIdentifier::new_unwrap("1.3.6.1.4.1.311.10.3.3")),
    ("netscape sgc", ObjectIdentifier::new_unwrap("2.16.840.1.113730.4.1")),
];

/// Whether a reader that does not know an extension must refuse the certificate.
const CRITICAL: bool = true;
const NOT_CRITICAL: bool = false;

/// A certificate authority: what is needed of its certificate, and its private key.
pub struct Authority {
    /// The certificate's subject in DER.
    subject: Vec<u8>,
    /// Its subject key identifier, if it has one.
    key_id: Vec<u8>,
    not_after: Timestamp,
    key: SigningKey,
}

/// The properties of a certificate beside those in its request.
pub struct Template<'a> {
    /// The usages, by the names that `spec.usages` gives them.
    pub usages: &'a [Istr],
    pub lifetime: Duration,
    pub now: Timestamp,
}

/// The part of a certificate that is signed. `x509_cert`'s has no room for a subject that holds a
/// value twice.
#[derive(Sequence)]
struct TbsCertificate<'a> {
    #[asn1(context_specific = "0", tag_mode = "EXPLICIT")]
    version: Version,
    serial_number: UintRef<'a>,
    signature: AlgorithmIdentifierRef<'a>,
    issuer: AnyRef<'a>,
    validity: Validity,
    subject: AnyRef<'a>,
    public_key: SubjectPublicKeyInfoRef<'a>,
    #[asn1(context_specific = "3", tag_mode = "EXPLICIT")]
    extensions: Vec<Extension>,
}

#[derive(Sequence)]
struct SignedCertificate<'a> {
    contents: AnyRef<'a>,
    algorithm: AlgorithmIdentifierRef<'a>,
    signature: BitStringRef<'a>,
}

impl Authority {
    /// Makes an authority from a certificate and its key in PEM.
    ///
    /// # Errors
    /// One line that describes the fault.
    pub fn from_pem(certificate: &[u8], key: &[u8]) -> Result<Authority, String> {
        let certificates = pem::certificates(certificate);
        let Some(first) = certificates.first() else {
            return Err("data does not contain any valid RSA or ECDSA certificates".to_owned());
        };
        let parsed = Certificate::from_der(first)?;
        let key = SigningKey::from_pem(key)
            .ok_or_else(|| "data does not contain a valid RSA or ECDSA private key".to_owned())?;
        if key.public_key() != parsed.public_key() {
            return Err("tls: private key does not match public key".to_owned());
        }
        Ok(Authority {
            subject: parsed.subject(),
            key_id: parsed.subject_key_id(),
            not_after: parsed.not_after(),
            key,
        })
    }

    /// Signs the certificate that `request` asks for, and returns it in DER. It takes the request's
    /// subject, alternative names and key, and no other extension.
    ///
    /// # Errors
    /// One line that gives the reason.
    pub fn sign(
        &self,
        request: &CertificateRequest,
        template: &Template<'_>,
    ) -> Result<Vec<u8>, String> {
        request
            .check_signature()
            .map_err(|error| format!("unable to verify certificate request signature: {error}"))?;
        let mut serial = [0; 16];
        OsRng.fill_bytes(&mut serial);
        let contents = self.tbs_certificate(request, template, &serial)?;
        let signature = self.key.sign(&contents);
        let signature =
            signature.map_err(|error| format!("failed to sign certificate: {error}"))?;
        let certificate = SignedCertificate {
            contents: AnyRef::from_der(&contents).map_err(encoding_error)?,
            algorithm: self.key.algorithm(),
            signature: BitStringRef::from_bytes(&signature).map_err(encoding_error)?,
        };
        certificate.to_der().map_err(encoding_error)
    }

    /// Returns the DER of the TBSCertificate: subject and key of the request, usages and validity
    /// of the template, within the validity of the authority.
    fn tbs_certificate(
        &self,
        request: &CertificateRequest,
        template: &Template<'_>,
        serial: &[u8],
    ) -> Result<Vec<u8>, String> {
        let usages = Usages::parse(template.usages)?;
        let validity = validity(template, self.not_after)?;
        self.encode_tbs(request, &usages, validity, serial).map_err(encoding_error)
    }

    /// Encodes the TBSCertificate, valid from `not_before` to `not_after`.
    fn encode_tbs(
        &self,
        request: &CertificateRequest,
        usages: &Usages,
        (not_before, not_after): (Timestamp, Timestamp),
        serial: &[u8],
    ) -> der::Result<Vec<u8>> {
        let subject = request.subject.to_der()?;
        let subject = AnyRef::from_der(&subject)?;
        let issuer = AnyRef::from_der(&self.subject)?;
        let mut extensions = usages.extensions()?;
        let not_a_ca = BasicConstraints { ca: false, path_len_constraint: None };
        extensions.push(extension(CRITICAL, &not_a_ca)?);
        // As in Go, which writes none into a certificate that names itself as the issuer.
        if subject != issuer && !self.key_id.is_empty() {
            let key_identifier = Some(OctetString::new(&*self.key_id)?);
            let id = AuthorityKeyIdentifier { key_identifier, ..Default::default() };
            extensions.push(extension(NOT_CRITICAL, &id)?);
        }
        if !request.names.is_empty() {
            // RFC 5280: without a subject the names are all that identifies the holder.
            let critical = subject.value().is_empty();
            extensions.push(extension(critical, &request.names.to_extension()?)?);
        }
        let validity =
            Validity { not_before: asn1_time(not_before)?, not_after: asn1_time(not_after)? };
        let contents = TbsCertificate {
            version: Version::V3,
            serial_number: UintRef::new(serial)?,
            signature: self.key.algorithm(),
            issuer,
            validity,
            subject,
            public_key: SubjectPublicKeyInfoRef::from_der(&request.public_key)?,
            extensions,
        };
        contents.to_der()
    }
}

/// Describes an error of encoding.
fn encoding_error(error: der::Error) -> String {
    format!("failed to encode certificate: {error}")
}

/// Returns the first and the last moment of a certificate: it begins [`BACKDATE`] ago. A lifetime
/// counts from then, or from now if it is below [`SHORT_LIFETIME`], and ends with the authority's.
/// Fails if the authority has expired.
/// Upstream: `PermissiveSigningPolicy.apply`.
fn validity(
    template: &Template<'_>,
    authority_ends: Timestamp,
) -> Result<(Timestamp, Timestamp), String> {
    let Template { lifetime, now, .. } = *template;
    let not_before = now - BACKDATE;
    let not_after = match lifetime < SHORT_LIFETIME {
        true => now + lifetime,
        false => now + (lifetime - BACKDATE),
    };
    if not_before >= authority_ends {
        return Err(format!("the signer has expired: NotAfter={authority_ends}"));
    }
    if now >= authority_ends {
        return Err(format!(
            "refusing to sign a certificate that expired in the past: NotAfter={authority_ends}"
        ));
    }
    Ok((not_before, not_after.min(authority_ends)))
}

/// The usages of a certificate, as its extensions hold them.
#[derive(Debug, Default, PartialEq, Eq)]
struct Usages {
    key: FlagSet<KeyUsages>,
    /// Indices in [`EXTENDED_USAGES`], sorted.
    extended: Vec<usize>,
}

impl Usages {
    /// Parses the names in `spec.usages`.
    fn parse(usages: &[Istr]) -> Result<Usages, String> {
        let mut parsed = Usages::default();
        let mut unknown = Vec::new();
        for usage in usages.iter().map(Istr::as_str) {
            if let Some((_, bit)) = KEY_USAGES.iter().find(|(name, _)| *name == usage) {
                parsed.key |= *bit;
            } else if let Some(at) = EXTENDED_USAGES.iter().position(|(name, _)| *name == usage) {
                parsed.extended.push(at);
            } else {
                unknown.push(format!("{usage:?}"));
            }
        }
        parsed.extended.sort();
        // Two names may have the same identifier.
        parsed.extended.dedup_by_key(|at| EXTENDED_USAGES[*at].1);
        if !unknown.is_empty() {
            return Err(format!("unrecognized usage values: [{}]", unknown.join(" ")));
        }
        Ok(parsed)
    }

    /// Returns the extensions of key usage and of extended key usage, where they are not empty.
    fn extensions(&self) -> der::Result<Vec<Extension>> {
        let mut extensions = Vec::new();
        if !self.key.is_empty() {
            extensions.push(extension(CRITICAL, &KeyUsage(self.key))?);
        }
        if !self.extended.is_empty() {
            let identifiers = self.extended.iter().map(|at| EXTENDED_USAGES[*at].1).collect();
            extensions.push(extension(NOT_CRITICAL, &ExtendedKeyUsage(identifiers))?);
        }
        Ok(extensions)
    }
}

/// Encodes an extension with the identifier of `T`.
fn extension<T: AssociatedOid + Encode>(critical: bool, value: &T) -> der::Result<Extension> {
    let extn_value = OctetString::new(value.to_der()?)?;
    Ok(Extension { extn_id: T::OID, critical, extn_value })
}

/// Encodes a time in whole seconds, with two digits of the year until 2049 (RFC 5280), then with
/// four. A time before 1970 becomes 1970: no certificate begins or ends before.
fn asn1_time(time: Timestamp) -> der::Result<Time> {
    let since_1970 = Duration::from_secs(time.as_secs().try_into().unwrap_or_default());
    Ok(match UtcTime::from_unix_duration(since_1970) {
        Ok(short) => short.into(),
        Err(_) => GeneralizedTime::from_unix_duration(since_1970)?.into(),
    })
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::CertificateSigningRequestDer;
    use rustls::pki_types::pem::PemObject;
    use x509_cert::certificate::{CertificateInner, Raw};
    use x509_cert::der::{Decode, Encode};

    use super::*;

    use crate::controllers::certificates::x509::signature;

    macro_rules! fixture {
        ($($part:literal),+) => {
            include_bytes!(concat!("../../../../fixtures/certificates/", $($part),+)) as &[u8]
        };
    }

    fn usages(names: &[&str]) -> Vec<Istr> {
        names.iter().copied().map(Istr::from).collect()
    }

    fn authority(certificate: &[u8], key: &[u8]) -> Authority {
        Authority::from_pem(certificate, key).unwrap()
    }

    /// A certificate that the Go manager signed: its request, usages and seconds.
    struct Golden {
        name: &'static str,
        request: &'static [u8],
        certificate: &'static [u8],
        usages: Vec<Istr>,
        seconds: u64,
    }

    macro_rules! golden {
        ($name:literal, $usages:expr, $seconds:expr) => {
            Golden {
                name: $name,
                request: fixture!($name, ".csr"),
                certificate: fixture!($name, ".crt"),
                usages: usages(&$usages),
                seconds: $seconds,
            }
        };
    }

    const YEAR: u64 = 8760 * 3600;

    fn goldens() -> Vec<Golden> {
        let key_usages = KEY_USAGES.map(|(name, _)| name);
        let all = [&key_usages[..], &EXTENDED_USAGES.map(|(name, _)| name)[..]].concat();
        let all: [&str; 23] = all.try_into().unwrap();
        vec![
            golden!("kubelet-client", ["digital signature", "client auth"], YEAR),
            golden!(
                "kubelet-serving",
                ["digital signature", "key encipherment", "server auth"],
                3600
            ),
            golden!("api-client", ["client auth"], 60000),
            golden!("legacy-all", all, 700),
            golden!("legacy-none", ["any"], YEAR),
            golden!("legacy-empty-subject", ["decipher only"], YEAR),
            golden!("legacy-sha512", ["crl sign"], YEAR),
            golden!("legacy-sha1", ["client auth"], YEAR),
            golden!("legacy-rsa1024", ["client auth"], YEAR),
            golden!("legacy-pss", ["client auth"], YEAR),
            golden!("legacy-dn", ["client auth"], YEAR),
        ]
    }

    /// Signs as the Go manager did, at the same time and with the same serial number. Returns the
    /// signed part of both, and the Go manager's signature.
    fn signed_parts(authority: &Authority, golden: &Golden) -> (Vec<u8>, Vec<u8>, Vec<u8>) {
        let der = pem::certificates(golden.certificate).remove(0);
        let begins = Certificate::from_der(&der).unwrap().not_before();
        let parsed = CertificateInner::<Raw>::from_der(&der).unwrap();
        let serial = parsed.tbs_certificate.serial_number.as_bytes();
        let template = Template {
            usages: &golden.usages,
            lifetime: Duration::from_secs(golden.seconds),
            now: begins + BACKDATE + Duration::from_millis(999),
        };
        let request = CertificateRequest::from_pem(golden.request).unwrap();
        let contents = authority.tbs_certificate(&request, &template, serial).unwrap();
        let whole = authority.sign(&request, &template).unwrap();
        assert!(whole.len().abs_diff(der.len()) <= 10, "{}", golden.name);
        let signature = parsed.signature.raw_bytes().to_vec();
        (contents, parsed.tbs_certificate.to_der().unwrap(), signature)
    }

    #[test]
    fn certificates_equal_those_of_the_go_manager_byte_for_byte() {
        let authority = authority(fixture!("ca-rsa2048.crt"), fixture!("ca-rsa2048.key"));
        for golden in goldens() {
            let (ours, theirs, signature) = signed_parts(&authority, &golden);
            assert_eq!(ours, theirs, "{}", golden.name);
            assert_eq!(authority.key.sign(&ours), Ok(signature), "{}", golden.name);
        }
    }

    #[test]
    fn authorities_have_keys_of_every_kind() {
        macro_rules! signed_by {
            ($key:literal) => {
                (
                    fixture!("ca-", $key, ".crt"),
                    fixture!("ca-", $key, ".key"),
                    fixture!("kubelet-client-", $key, ".crt"),
                )
            };
        }
        let cases = [
            signed_by!("rsa1024"),
            signed_by!("p256"),
            signed_by!("p384"),
            signed_by!("p521"),
            signed_by!("ed25519"),
        ];
        for (certificate, key, signed) in cases {
            let authority = authority(certificate, key);
            let golden = Golden { certificate: signed, ..goldens().remove(0) };
            let (ours, theirs, signature) = signed_parts(&authority, &golden);
            assert_eq!(ours, theirs);
            let public = authority.key.public_key();
            let algorithm = authority.key.algorithm().to_der().unwrap();
            for signature in [signature, authority.key.sign(&ours).unwrap()] {
                let verify = |text: &[u8]| signature::verify(public, &algorithm, text, &signature);
                assert_eq!(verify(&ours), Ok(()));
                assert!(verify(&ours[1..]).is_err());
            }
        }
    }

    #[test]
    fn a_key_of_another_certificate_is_refused() {
        let refused = |certificate, key| Authority::from_pem(certificate, key).err().unwrap();
        let certificate = fixture!("ca-p256.crt");
        assert_eq!(
            refused(certificate, fixture!("ca-p384.key")),
            "tls: private key does not match public key"
        );
        assert_eq!(
            refused(certificate, certificate),
            "data does not contain a valid RSA or ECDSA private key"
        );
        assert_eq!(
            refused(fixture!("ca-p256.key"), fixture!("ca-p256.key")),
            "data does not contain any valid RSA or ECDSA certificates"
        );
    }

    #[test]
    fn a_request_that_was_changed_is_refused() {
        let authority = authority(fixture!("ca-p256.crt"), fixture!("ca-p256.key"));
        let usages = usages(&["client auth"]);
        let now = Timestamp::from_secs(1_800_000_000);
        let template = Template { usages: &usages, lifetime: Duration::from_secs(3600), now };
        for golden in goldens() {
            let der = CertificateSigningRequestDer::from_pem_slice(golden.request).unwrap();
            for at in 0..der.len() {
                assert!(CertificateRequest::from_der(&der[..at]).is_err(), "cut at {at}");
            }
        }
        let der = CertificateSigningRequestDer::from_pem_slice(goldens()[0].request).unwrap();
        for at in (0..der.len()).step_by(7) {
            let mut changed = der.to_vec();
            changed[at] ^= 1;
            if let Ok(request) = CertificateRequest::from_der(&changed) {
                assert!(authority.sign(&request, &template).is_err(), "changed at {at}");
            }
        }
    }

    #[test]
    fn a_certificate_is_not_valid_longer_than_its_authority() {
        const HOUR: u64 = 3600;
        let now = Timestamp::from_secs(1_000_000_000);
        let at = |hours: u64| now + Duration::from_secs(hours * HOUR);
        let validity = |hours: u64, ends: Timestamp| {
            let lifetime = Duration::from_secs(hours * HOUR);
            super::validity(&Template { usages: &[], lifetime, now }, ends)
        };
        let begins = now - BACKDATE;
        assert_eq!(validity(7, at(9)), Ok((begins, at(7))));
        assert_eq!(validity(8, at(9)), Ok((begins, at(8) - BACKDATE)));
        assert_eq!(validity(10, at(9)), Ok((begins, at(9))));
        assert_eq!(
            validity(10, now - BACKDATE),
            Err("the signer has expired: NotAfter=2001-09-09T01:41:40Z".to_owned())
        );
        assert_eq!(
            validity(10, now),
            Err("refusing to sign a certificate that expired in the past: \
                 NotAfter=2001-09-09T01:46:40Z"
                .to_owned())
        );
    }

    #[test]
    fn unknown_usages_are_refused() {
        let parsed = Usages::parse(&usages(&["client auth", "a", "s/mime", "b"]));
        assert_eq!(parsed, Err(r#"unrecognized usage values: ["a" "b"]"#.to_owned()));
        let twice = usages(&["s/mime", "email protection", "signing", "digital signature"]);
        assert_eq!(
            Usages::parse(&twice),
            Ok(Usages { key: KeyUsages::DigitalSignature.into(), extended: vec![4] })
        );
    }

    #[test]
    fn years_have_four_digits_where_two_are_not_enough() {
        for (seconds, text) in
            [(2_524_607_999, "491231235959Z"), (2_524_608_000, "20500101000000Z")]
        {
            let time = asn1_time(Timestamp::from_secs(seconds)).unwrap();
            assert_eq!(&time.to_der().unwrap()[2..], text.as_bytes());
        }
    }
}
