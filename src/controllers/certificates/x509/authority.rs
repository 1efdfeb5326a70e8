//! An authority that signs certificates. Upstream: `pkg/controller/certificates/authority`, and
//! `CreateCertificate` of Go's `crypto/x509`.

use std::time::Duration;

use rsa::rand_core::{OsRng, RngCore};

use super::der;
use super::request::{CertificateRequest, SUBJECT_ALTERNATIVE_NAME};
use super::signature::SigningKey;
use crate::client::pem;
use crate::client::x509::Certificate;
use crate::objects::{Istr, Timestamp};
use crate::sort::Order;

/// How long before now a certificate begins, for clocks that are slow.
const BACKDATE: Duration = Duration::from_secs(5 * 60);
/// A shorter life is not cut by [`BACKDATE`].
const SHORT: Duration = Duration::from_secs(8 * 60 * 60);

/// The bits of the KeyUsage extension.
const KEY_USAGES: [(&str, u16); 10] = [
    ("signing", 0),
    ("digital signature", 0),
    ("content commitment", 1),
    ("key encipherment", 2),
    ("data encipherment", 3),
    ("key agreement", 4),
    ("cert sign", 5),
    ("crl sign", 6),
    ("encipher only", 7),
    ("decipher only", 8),
];

/// 1.3.6.1.5.5.7.3.x
macro_rules! purpose {
    ($number:literal) => {
        &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x03, $number]
    };
}

/// The identifiers of the ExtKeyUsage extension, in the order in which they are written.
const EXTENDED_USAGES: [(&str, &[u8]); 13] = [
    ("any", &[0x55, 0x1d, 0x25, 0x00]),
    ("server auth", purpose!(1)),
    ("client auth", purpose!(2)),
    ("code signing", purpose!(3)),
    ("email protection", purpose!(4)),
    ("s/mime", purpose!(4)),
    ("ipsec end system", purpose!(5)),
    ("ipsec tunnel", purpose!(6)),
    ("ipsec user", purpose!(7)),
    ("timestamping", purpose!(8)),
    ("ocsp signing", purpose!(9)),
    ("microsoft sgc", &[0x2b, 0x06, 0x01, 0x04, 0x01, 0x82, 0x37, 0x0a, 0x03, 0x03]),
    ("netscape sgc", &[0x60, 0x86, 0x48, 0x01, 0x86, 0xf8, 0x42, 0x04, 0x01]),
];

/// The last number of 2.5.29.x
const KEY_USAGE: u8 = 15;
const BASIC_CONSTRAINTS: u8 = 19;
const AUTHORITY_KEY_ID: u8 = 35;
const EXTENDED_KEY_USAGE: u8 = 37;

/// A certificate and its private key.
pub struct Authority {
    /// The certificate's subject in DER.
    subject: Vec<u8>,
    /// Its subject key identifier, if it has one.
    key_id: Vec<u8>,
    not_after: Timestamp,
    key: SigningKey,
}

/// What a certificate is to be, beside what its request says.
pub struct Template<'a> {
    /// As `spec.usages` names them.
    pub usages: &'a [Istr],
    pub lifetime: Duration,
    pub now: Timestamp,
}

impl Authority {
    /// From a certificate and its key in PEM.
    ///
    /// # Errors
    /// One line saying what is wrong with them.
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

    /// Signs the certificate that `request` asks for; gives it in DER. It takes the request's
    /// subject, alternative names and key, and no other extension.
    ///
    /// # Errors
    /// One line saying why not.
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
        let contents = self.contents(request, template, &serial)?;
        let signature = self.key.sign(&contents);
        let signature =
            signature.map_err(|error| format!("failed to sign certificate: {error}"))?;
        let algorithm = self.key.algorithm().to_vec();
        Ok(der::sequence(&[contents, algorithm, der::bit_string(&signature, 0)]))
    }

    /// The part that is signed.
    fn contents(
        &self,
        request: &CertificateRequest,
        template: &Template<'_>,
        serial: &[u8],
    ) -> Result<Vec<u8>, String> {
        let usages = Usages::parse(template.usages)?;
        let (not_before, not_after) = validity(template, self.not_after)?;
        let subject = request.subject.to_der();
        let mut extensions = usages.extensions();
        // Of no authority.
        extensions.push(extension(&[BASIC_CONSTRAINTS], true, der::EMPTY_SEQUENCE));
        if subject != self.subject && !self.key_id.is_empty() {
            let id = der::sequence(&[der::element(der::context(0), &self.key_id)]);
            extensions.push(extension(&[AUTHORITY_KEY_ID], false, &id));
        }
        if !request.names.is_empty() {
            let kind = SUBJECT_ALTERNATIVE_NAME.split_at(2).1;
            let critical = subject == der::EMPTY_SEQUENCE;
            extensions.push(extension(kind, critical, &request.names.to_der()));
        }
        let version = der::element(der::constructed(0), &der::unsigned(&[2]));
        Ok(der::sequence(&[
            version,
            der::unsigned(serial),
            self.key.algorithm().to_vec(),
            self.subject.clone(),
            der::sequence(&[time(not_before), time(not_after)]),
            subject,
            request.public_key.clone(),
            der::element(der::constructed(3), &der::sequence(&extensions)),
        ]))
    }
}

/// The first and the last moment of a certificate. Upstream: `PermissiveSigningPolicy.apply`.
fn validity(
    template: &Template<'_>,
    authority_ends: Timestamp,
) -> Result<(Timestamp, Timestamp), String> {
    let Template { lifetime, now, .. } = *template;
    let not_before = now - BACKDATE;
    let not_after = match lifetime < SHORT {
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

#[derive(Debug, Default, PartialEq, Eq)]
struct Usages {
    /// Bit 0 is the lowest.
    key: u16,
    /// Places in [`EXTENDED_USAGES`].
    extended: Vec<usize>,
}

impl Usages {
    fn parse(usages: &[Istr]) -> Result<Usages, String> {
        let mut parsed = Usages::default();
        let mut unknown = Vec::new();
        for usage in usages.iter().map(Istr::as_str) {
            let at = EXTENDED_USAGES.iter().position(|(name, _)| *name == usage);
            match (KEY_USAGES.iter().find(|(name, _)| *name == usage), at) {
                (Some((_, bit)), _) => parsed.key |= 1 << bit,
                (None, Some(at)) => parsed.extended.push(at),
                (None, None) => unknown.push(format!("{usage:?}")),
            }
        }
        parsed.extended.order();
        // Two names may be of one purpose.
        parsed.extended.dedup_by_key(|at| EXTENDED_USAGES[*at].1);
        match unknown.is_empty() {
            true => Ok(parsed),
            false => Err(format!("unrecognized usage values: [{}]", unknown.join(" "))),
        }
    }

    fn extensions(&self) -> Vec<Vec<u8>> {
        let mut extensions = Vec::new();
        if self.key != 0 {
            let [high, low] = self.key.reverse_bits().to_be_bytes();
            let bits: &[u8] = if low == 0 { &[high] } else { &[high, low] };
            // At most seven.
            let unused = u8::try_from(bits[bits.len() - 1].trailing_zeros()).unwrap_or_default();
            extensions.push(extension(&[KEY_USAGE], true, &der::bit_string(bits, unused)));
        }
        if !self.extended.is_empty() {
            let purpose = |at: &usize| der::element(der::OBJECT_IDENTIFIER, EXTENDED_USAGES[*at].1);
            let purposes: Vec<Vec<u8>> = self.extended.iter().map(purpose).collect();
            extensions.push(extension(&[EXTENDED_KEY_USAGE], false, &der::sequence(&purposes)));
        }
        extensions
    }
}

/// Of the kind 2.5.29.`kind`.
fn extension(kind: &[u8], critical: bool, value: &[u8]) -> Vec<u8> {
    let mut parts = vec![der::element(der::OBJECT_IDENTIFIER, &[&[0x55, 0x1d], kind].concat())];
    if critical {
        parts.push(der::element(der::BOOLEAN, &[0xff]));
    }
    parts.push(der::element(der::OCTET_STRING, value));
    der::sequence(&parts)
}

/// Whole seconds, with two digits of the year where these are enough.
fn time(time: Timestamp) -> Vec<u8> {
    /// From 1950 up to 2050.
    const SHORT_YEARS: std::ops::Range<i64> = -631_152_000..2_524_608_000;
    let text = time.to_string().replace(['-', ':', 'T'], "");
    match SHORT_YEARS.contains(&time.as_secs()) {
        true => der::element(der::UTC_TIME, &text.as_bytes()[2..]),
        false => der::element(der::GENERALIZED_TIME, text.as_bytes()),
    }
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

    /// One that the Go manager signed: its request, usages and seconds.
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
        let known = KEY_USAGES.map(|(name, _)| name);
        let all = [&known[..], &EXTENDED_USAGES.map(|(name, _)| name)[..]].concat();
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

    /// Signs as the Go manager did, at the same time and with the same serial number; gives what
    /// both signed, and the Go manager's signature.
    fn both(authority: &Authority, golden: &Golden) -> (Vec<u8>, Vec<u8>, Vec<u8>) {
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
        let contents = authority.contents(&request, &template, serial).unwrap();
        let whole = authority.sign(&request, &template).unwrap();
        assert!(whole.len().abs_diff(der.len()) <= 10, "{}", golden.name);
        let signature = parsed.signature.raw_bytes().to_vec();
        (contents, parsed.tbs_certificate.to_der().unwrap(), signature)
    }

    #[test]
    fn certificates_are_the_go_managers_byte_for_byte() {
        let authority = authority(fixture!("ca-rsa2048.crt"), fixture!("ca-rsa2048.key"));
        for golden in goldens() {
            let (ours, theirs, signature) = both(&authority, &golden);
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
            let (ours, theirs, signature) = both(&authority, &golden);
            assert_eq!(ours, theirs);
            let (public, algorithm) = (authority.key.public_key(), authority.key.algorithm());
            for signature in [signature, authority.key.sign(&ours).unwrap()] {
                let verify = |text: &[u8]| signature::verify(public, algorithm, text, &signature);
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
    fn a_certificate_ends_with_its_authority() {
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
        assert_eq!(Usages::parse(&twice), Ok(Usages { key: 1, extended: vec![4] }));
    }

    #[test]
    fn years_have_four_digits_where_two_are_not_enough() {
        for (seconds, text) in [
            (2_524_607_999, "491231235959Z"),
            (2_524_608_000, "20500101000000Z"),
            (-631_152_000, "500101000000Z"),
            (-631_152_001, "19491231235959Z"),
        ] {
            assert_eq!(&time(Timestamp::from_secs(seconds))[2..], text.as_bytes());
        }
    }
}
