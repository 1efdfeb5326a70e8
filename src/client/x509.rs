//! Certificates as Go takes them: of versions 1 and 2 too, which rustls does not read, and of
//! authorities that may vouch at the time. Upstream: `crypto/x509`.

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
    verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{
    CertificateDer, SignatureVerificationAlgorithm, SubjectPublicKeyInfoDer, UnixTime,
};
use rustls::server::WebPkiClientVerifier;
use rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore};
use x509_parser::asn1_rs::{Any, FromDer};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::{
    GeneralName, GeneralSubtree, NameConstraints, ParsedExtension, X509Extension,
};
use x509_parser::x509::{SubjectPublicKeyInfo, X509Version};

/// Of what a client shows between itself and an authority, no more is looked at.
const MOST_BETWEEN: usize = 8;

/// What a certificate is shown for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    Server,
    Client,
}

/// Certificates of those who may vouch for others. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Authorities {
    certificates: Arc<[CertificateDer<'static>]>,
    provider: Arc<CryptoProvider>,
}

impl Authorities {
    pub fn new(
        certificates: Vec<CertificateDer<'static>>,
        provider: Arc<CryptoProvider>,
    ) -> Authorities {
        Authorities { certificates: certificates.into(), provider }
    }

    /// Whether `own` is itself one of them.
    pub fn contain(&self, own: &CertificateDer<'_>) -> bool {
        self.certificates.iter().any(|one| one == own)
    }

    /// What rustls may make a chain of for who shows a certificate for `purpose`, with what is
    /// `between`: those that may vouch at `now`, and of the others those that may sign. rustls looks
    /// neither at what a key may be used for, nor at how many an authority lets stand below it: here
    /// all that are left count, whether they are needed or not.
    ///
    /// # Errors
    /// Nobody may vouch: why the last one may not.
    pub fn links<'a>(
        &self,
        between: &[CertificateDer<'a>],
        purpose: Purpose,
        now: UnixTime,
    ) -> Result<(RootCertStore, Vec<CertificateDer<'a>>), Error> {
        let mut between = between.to_vec();
        between.retain(|one| !self.contain(one) && parse(one).is_ok_and(|one| may_sign(&one)));
        let (mut roots, mut fault) = (RootCertStore::empty(), stranger());
        for certificate in self.certificates.iter() {
            let added = vouching(certificate, purpose, now).and_then(|parsed| {
                match allows_below(&parsed, between.len()) {
                    true => roots.add(certificate.clone()),
                    false => Err(stranger()),
                }
            });
            if let Err(error) = added {
                fault = error;
            }
        }
        if roots.is_empty() { Err(fault) } else { Ok((roots, between)) }
    }

    /// Whether a client that shows `own`, and what is `between` it and an authority, is vouched for.
    ///
    /// # Errors
    /// Why it is not.
    pub fn verify_client(
        &self,
        own: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), Error> {
        let parsed = parse(own)?;
        if self.contain(own) {
            return check(&parsed, Purpose::Client, now);
        }
        if parsed.version() == X509Version::V3 {
            let (roots, between) = self.links(between, Purpose::Client, now)?;
            return WebPkiClientVerifier::builder_with_provider(
                roots.into(),
                self.provider.clone(),
            )
            .build()
            .map_err(|_| stranger())?
            .verify_client_cert(own, &between, now)
            .map(drop);
        }
        check(&parsed, Purpose::Client, now)?;
        let authorities = self.certificates.iter();
        let authorities: Vec<_> =
            authorities.filter_map(|one| vouching(one, Purpose::Client, now).ok()).collect();
        let between = between.iter().take(MOST_BETWEEN).filter_map(|one| parse(one).ok());
        let between = between.filter(|one| is_between(one, Purpose::Client, now)).collect();
        let algorithms = &self.provider.signature_verification_algorithms;
        is_vouched_for(&parsed, between, &authorities, algorithms)
            .then_some(())
            .ok_or_else(stranger)
    }
}

/// The certificates in PEM, among whatever else. What cannot be decoded is skipped, and logged; what
/// is decoded need not be a certificate yet. Upstream: `pem.Decode`.
pub fn from_pem(text: &[u8]) -> Vec<CertificateDer<'static>> {
    // One at a time: what is broken may have no end, and takes nothing else with it.
    let starts: Vec<usize> = memchr::memmem::find_iter(text, "-----BEGIN ").collect();
    let ends = starts.iter().skip(1).copied().chain([text.len()]);
    let blocks = starts.iter().zip(ends).map(|(start, end)| &text[*start..end]);
    let decoded = blocks.flat_map(CertificateDer::pem_slice_iter).filter_map(|block| {
        block.inspect_err(|error| log::warn!("skipped what is no PEM: {error}")).ok()
    });
    decoded.collect()
}

fn parse<'a>(certificate: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, Error> {
    match x509_parser::parse_x509_certificate(certificate) {
        Ok(([], parsed)) if parsed.version().0 <= X509Version::V3.0 => Ok(parsed),
        _ => Err(unreadable()),
    }
}

fn unreadable() -> Error {
    Error::InvalidCertificate(CertificateError::BadEncoding)
}

/// What holds for any certificate, whoever vouches for it.
fn check(certificate: &X509Certificate<'_>, purpose: Purpose, now: UnixTime) -> Result<(), Error> {
    let (validity, now) =
        (certificate.validity(), i64::try_from(now.as_secs()).unwrap_or(i64::MAX));
    let usage = certificate.extended_key_usage().map_err(|_| unreadable())?;
    let serves = usage.is_none_or(|usage| {
        usage.value.any
            || match purpose {
                Purpose::Server => usage.value.server_auth,
                Purpose::Client => usage.value.client_auth,
            }
    });
    let fault = if now < validity.not_before.timestamp() {
        CertificateError::NotValidYet
    } else if now > validity.not_after.timestamp() {
        CertificateError::Expired
    } else if !serves {
        CertificateError::InvalidPurpose
    } else {
        return Ok(());
    };
    Err(Error::InvalidCertificate(fault))
}

/// The same of one that is shown without its chain, because it is itself an authority.
pub(super) fn check_alone(
    own: &CertificateDer<'_>,
    purpose: Purpose,
    now: UnixTime,
) -> Result<(), Error> {
    check(&parse(own)?, purpose, now)
}

fn stranger() -> Error {
    Error::InvalidCertificate(CertificateError::UnknownIssuer)
}

/// An authority that may vouch at `now`.
fn vouching<'a>(
    authority: &'a CertificateDer<'_>,
    purpose: Purpose,
    now: UnixTime,
) -> Result<X509Certificate<'a>, Error> {
    let parsed = parse(authority)?;
    check(&parsed, purpose, now)?;
    if may_sign(&parsed) { Ok(parsed) } else { Err(stranger()) }
}

/// Whether it may sign others. Upstream: `Certificate.CheckSignatureFrom`.
fn may_sign(certificate: &X509Certificate<'_>) -> bool {
    let (Ok(constraints), Ok(usage)) = (certificate.basic_constraints(), certificate.key_usage())
    else {
        return false;
    };
    // Before version 3 there was no way to say so.
    constraints.map_or(certificate.version() != X509Version::V3, |found| found.value.ca)
        && usage.is_none_or(|usage| usage.value.key_cert_sign())
        && certificate.extensions().iter().all(|one| !one.critical || is_heeded(one))
}

/// Whether what it says is seen to. Upstream: `UnhandledCriticalExtensions`.
fn is_heeded(extension: &X509Extension<'_>) -> bool {
    let is_common = |subtree: &GeneralSubtree<'_>| {
        matches!(
            subtree.base,
            GeneralName::DNSName(_)
                | GeneralName::RFC822Name(_)
                | GeneralName::URI(_)
                | GeneralName::IPAddress(_)
        )
    };
    match extension.parsed_extension() {
        ParsedExtension::NameConstraints(NameConstraints {
            permitted_subtrees,
            excluded_subtrees,
        }) => {
            [permitted_subtrees, excluded_subtrees].into_iter().flatten().flatten().all(is_common)
        }
        ParsedExtension::BasicConstraints(_)
        | ParsedExtension::CertificatePolicies(_)
        | ParsedExtension::CRLDistributionPoints(_)
        | ParsedExtension::ExtendedKeyUsage(_)
        | ParsedExtension::InhibitAnyPolicy(_)
        | ParsedExtension::KeyUsage(_)
        | ParsedExtension::PolicyConstraints(_)
        | ParsedExtension::PolicyMappings(_)
        | ParsedExtension::SubjectAlternativeName(_) => true,
        _ => false,
    }
}

/// Whether so many may stand between it and whom it vouches for.
fn allows_below(authority: &X509Certificate<'_>, count: usize) -> bool {
    let constraints = authority.basic_constraints().ok().flatten();
    let length = constraints.and_then(|found| found.value.path_len_constraint);
    length.is_none_or(|length| u32::try_from(count).is_ok_and(|count| count <= length))
}

/// Whether it may stand between an authority and a client.
fn is_between(certificate: &X509Certificate<'_>, purpose: Purpose, now: UnixTime) -> bool {
    certificate.version() == X509Version::V3
        && check(certificate, purpose, now).is_ok()
        && may_sign(certificate)
}

/// Whether signatures lead from `own` to one of `vouching`. Upstream: `Certificate.Verify`, which
/// also goes back where a way leads nowhere.
fn is_vouched_for<'a>(
    own: &X509Certificate<'a>,
    mut between: Vec<X509Certificate<'a>>,
    vouching: &[X509Certificate<'_>],
    algorithms: &WebPkiSupportedAlgorithms,
) -> bool {
    let mut below = own.clone();
    for depth in 0.. {
        let signs = |issuer: &X509Certificate<'_>| {
            allows_below(issuer, depth) && has_signed(issuer, &below, algorithms)
        };
        if vouching.iter().any(signs) {
            return true;
        }
        let Some(next) = between.iter().position(signs) else { return false };
        below = between.swap_remove(next);
    }
    false
}

fn has_signed(
    issuer: &X509Certificate<'_>,
    certificate: &X509Certificate<'_>,
    algorithms: &WebPkiSupportedAlgorithms,
) -> bool {
    // The signed part, the algorithm, the signature.
    let algorithm = Any::from_der(certificate.as_raw())
        .and_then(|(_, whole)| Any::from_der(whole.data))
        .and_then(|(rest, _)| Any::from_der(rest));
    let Ok((_, algorithm)) = algorithm else { return false };
    let fitting = algorithms.all.iter().filter(|one| *one.signature_alg_id() == *algorithm.data);
    certificate.issuer().as_raw() == issuer.subject().as_raw()
        && certificate.tbs_certificate.signature == certificate.signature_algorithm
        && is_signature(
            &certificate.signature_value.data,
            certificate.tbs_certificate.as_ref(),
            issuer.public_key(),
            fitting.copied(),
        )
}

/// Whether `key` has made this signature of `message`, by one of the algorithms.
fn is_signature(
    signature: &[u8],
    message: &[u8],
    key: &SubjectPublicKeyInfo<'_>,
    algorithms: impl IntoIterator<Item = &'static dyn SignatureVerificationAlgorithm>,
) -> bool {
    let kind = Any::from_der(key.raw).and_then(|(_, whole)| Any::from_der(whole.data));
    let Ok((_, kind)) = kind else { return false };
    let mut fitting =
        algorithms.into_iter().filter(|algorithm| *algorithm.public_key_alg_id() == *kind.data);
    let key = &key.subject_public_key.data;
    fitting.any(|algorithm| algorithm.verify_signature(key, message, signature).is_ok())
}

/// The parsed certificate, if it is one that rustls does not read.
fn old<'a>(certificate: &'a CertificateDer<'_>) -> Option<X509Certificate<'a>> {
    parse(certificate).ok().filter(|parsed| parsed.version() != X509Version::V3)
}

/// [`verify_tls12_signature`] for certificates of any version.
///
/// # Errors
/// The handshake was not signed with the certificate's key.
pub fn verify_tls12(
    message: &[u8],
    certificate: &CertificateDer<'_>,
    signed: &DigitallySignedStruct,
    algorithms: &WebPkiSupportedAlgorithms,
) -> Result<HandshakeSignatureValid, Error> {
    let Some(parsed) = old(certificate) else {
        return verify_tls12_signature(message, certificate, signed, algorithms);
    };
    let fitting = algorithms.mapping.iter().filter(|(scheme, _)| *scheme == signed.scheme);
    let fitting = fitting.flat_map(|(_, algorithms)| algorithms.iter().copied());
    match is_signature(signed.signature(), message, parsed.public_key(), fitting) {
        true => Ok(HandshakeSignatureValid::assertion()),
        false => Err(Error::InvalidCertificate(CertificateError::BadSignature)),
    }
}

/// [`verify_tls13_signature`] for certificates of any version.
///
/// # Errors
/// The handshake was not signed with the certificate's key.
pub fn verify_tls13(
    message: &[u8],
    certificate: &CertificateDer<'_>,
    signed: &DigitallySignedStruct,
    algorithms: &WebPkiSupportedAlgorithms,
) -> Result<HandshakeSignatureValid, Error> {
    let Some(parsed) = old(certificate) else {
        return verify_tls13_signature(message, certificate, signed, algorithms);
    };
    let key = SubjectPublicKeyInfoDer::from(parsed.public_key().raw);
    verify_tls13_signature_with_raw_key(message, &key, signed, algorithms)
}

#[cfg(test)]
pub(crate) mod testing {
    use rcgen::SigningKey;

    use super::*;

    const VERSION: u32 = 0;
    const EXTENSIONS: u32 = 3;

    fn der(tag: u8, content: &[u8]) -> Vec<u8> {
        let bytes = u16::try_from(content.len()).unwrap().to_be_bytes();
        let length = match bytes {
            [0, few @ ..=0x7f] => vec![few],
            [0, more] => vec![0x81, more],
            [much, more] => vec![0x82, much, more],
        };
        [&[tag], length.as_slice(), content].concat()
    }

    /// The same certificate in version 1, signed by `key`.
    pub fn aged(certificate: &CertificateDer<'_>, key: &rcgen::KeyPair) -> CertificateDer<'static> {
        let (_, whole) = Any::from_der(certificate).unwrap();
        let (rest, signed) = Any::from_der(whole.data).unwrap();
        let (signature, _) = Any::from_der(rest).unwrap();
        let algorithm = &rest[..rest.len() - signature.len()];
        let (mut kept, mut left) = (Vec::new(), signed.data);
        while !left.is_empty() {
            let (rest, part) = Any::from_der(left).unwrap();
            let is_new = part.header.is_contextspecific()
                && [VERSION, EXTENSIONS].contains(&part.header.tag().0);
            if !is_new {
                kept.extend_from_slice(&left[..left.len() - rest.len()]);
            }
            left = rest;
        }
        let kept = der(0x30, &kept);
        let signature = [&[0], key.sign(&kept).unwrap().as_slice()].concat();
        let whole = [kept.as_slice(), algorithm, &der(0x03, &signature)].concat();
        CertificateDer::from(der(0x30, &whole))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rcgen::{
        BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose,
        IsCa, KeyPair, KeyUsagePurpose, date_time_ymd,
    };

    use super::testing::aged;
    use super::*;

    fn params(name: &str, change: impl FnOnce(&mut CertificateParams)) -> CertificateParams {
        let mut params = CertificateParams::new([]).unwrap();
        params.not_before = date_time_ymd(2000, 1, 1);
        params.not_after = date_time_ymd(2010, 1, 1);
        params.distinguished_name.push(DnType::CommonName, name);
        change(&mut params);
        params
    }

    type Issuer = CertifiedIssuer<'static, KeyPair>;

    fn authority(name: &str, change: impl FnOnce(&mut CertificateParams)) -> Issuer {
        let params = params(name, |params| {
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            change(params);
        });
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    }

    fn below(issuer: &Issuer, change: impl FnOnce(&mut CertificateParams)) -> Issuer {
        let params = params("between", |params| {
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            change(params);
        });
        CertifiedIssuer::signed_by(params, KeyPair::generate().unwrap(), issuer).unwrap()
    }

    fn client(
        issuer: &Issuer,
        change: impl FnOnce(&mut CertificateParams),
    ) -> CertificateDer<'static> {
        let key = KeyPair::generate().unwrap();
        params("client", change).signed_by(&key, issuer).unwrap().der().clone()
    }

    fn verify(
        authority: &CertificateDer<'static>,
        chain: &[&CertificateDer<'static>],
        year: u64,
    ) -> Result<(), CertificateError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let authorities = Authorities::new(vec![authority.clone()], provider);
        let now = Duration::from_secs((year - 1970) * 31_557_600 + 86_400 * 100);
        let chain: Vec<_> = chain.iter().map(|one| (*one).clone()).collect();
        let now = UnixTime::since_unix_epoch(now);
        match authorities.verify_client(&chain[0], &chain[1..], now) {
            Ok(()) => Ok(()),
            Err(Error::InvalidCertificate(fault)) => Err(fault),
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn what_is_no_pem_is_skipped() {
        let (one, two) = (authority("one", |_| ()), authority("two", |_| ()));
        let (begin, end) = ("-----BEGIN CERTIFICATE-----\n", "-----END CERTIFICATE-----\n");
        let key = one.key().serialize_pem();
        for (broken, more) in [
            (String::new(), 0),
            (format!("{begin}!!!\n{end}"), 0),
            (format!("{begin}AAAA\n"), 0),
            (format!("{key}comment\n{end}"), 0),
            (format!("{begin}{end}"), 1),
        ] {
            let text = format!("{broken}{}{broken}{}{broken}", one.pem(), two.pem());
            let mut found = from_pem(text.as_bytes());
            assert_eq!(found.len(), 2 + 3 * more, "{broken}");
            found.retain(|one| !one.is_empty());
            assert_eq!(found, [one.der().clone(), two.der().clone()], "{broken}");
        }
    }

    const STRANGER: Result<(), CertificateError> = Err(CertificateError::UnknownIssuer);

    #[test]
    fn clients_of_any_version_are_vouched_for_by_their_authority() {
        let root = authority("root", |_| ());
        let new = client(&root, |_| ());
        let old = aged(&new, root.key());
        let other = authority("root", |_| ());
        for own in [&new, &old] {
            assert_eq!(verify(root.der(), &[own], 2001), Ok(()));
            let [early, late] = [1999, 2011].map(|year| verify(root.der(), &[own], year));
            assert!(early.is_err() && late.is_err(), "{early:?} {late:?}");
            assert!(verify(other.der(), &[own], 2001).is_err(), "it has only the same name");
            // Of version 1 the authority itself may be.
            assert_eq!(verify(&aged(root.der(), root.key()), &[own], 2001), Ok(()));
        }
        // There is no version 4.
        let mut future = new.to_vec();
        let at = future.windows(5).position(|bytes| bytes == [0xa0, 3, 2, 1, 2]).unwrap();
        future[at + 4] = 3;
        let future = CertificateDer::from(future);
        assert_eq!(verify(&new, &[&new], 2001), Ok(()));
        assert_eq!(verify(&future, &[&future], 2001), Err(CertificateError::BadEncoding));
        assert_eq!(verify(other.der(), &[&old], 2001), STRANGER);
        assert_eq!(verify(root.der(), &[&old], 1999), Err(CertificateError::NotValidYet));
        assert_eq!(verify(root.der(), &[&old], 2011), Err(CertificateError::Expired));
        // Signed by the right key, under another's name.
        let renamed = authority("another", |_| ());
        assert_eq!(
            verify(root.der(), &[&aged(&client(&renamed, |_| ()), root.key())], 2001),
            STRANGER
        );
        // Signed, and changed afterwards.
        let mut forged = old.to_vec();
        let at = forged.windows(6).position(|bytes| bytes == b"client").unwrap();
        forged[at..at + 6].copy_from_slice(b"master");
        assert_eq!(verify(root.der(), &[&forged.into()], 2001), STRANGER);
        assert!(verify(root.der(), &[&CertificateDer::from(vec![1, 2, 3])], 2001).is_err());
    }

    #[test]
    fn an_authority_vouches_while_it_may() {
        let expired = authority("root", |params| params.not_after = date_time_ymd(2003, 1, 1));
        let no_authority = authority("root", |params| params.is_ca = IsCa::NoCa);
        let signs_nothing =
            authority("root", |params| params.key_usages = vec![KeyUsagePurpose::DigitalSignature]);
        let of_servers = authority("root", |params| {
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        });
        let of_clients = authority("root", |params| {
            params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        });
        for (root, expected) in [
            (&expired, false),
            (&no_authority, false),
            (&signs_nothing, false),
            (&of_servers, false),
            (&of_clients, true),
        ] {
            let new = client(root, |_| ());
            for own in [&new, &aged(&new, root.key())] {
                assert_eq!(verify(root.der(), &[own], 2005).is_ok(), expected, "{root:?}");
            }
        }
        let of_servers = client(&of_clients, |params| {
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        });
        assert!(verify(of_clients.der(), &[&of_servers], 2005).is_err());
        // An authority may itself be the client; one for servers may not.
        assert_eq!(verify(no_authority.der(), &[no_authority.der()], 2005), Ok(()));
        let alone = aged(no_authority.der(), no_authority.key());
        assert_eq!(verify(&alone, &[&alone], 2005), Ok(()));
        assert_eq!(
            verify(&of_servers, &[&of_servers], 2005),
            Err(CertificateError::InvalidPurpose)
        );
    }

    #[test]
    fn others_may_stand_between() {
        let root = authority("root", |_| ());
        let good = below(&root, |_| ());
        let lower = below(&good, |params| {
            params.distinguished_name.push(DnType::CommonName, "lower");
        });
        let own = aged(&client(&good, |_| ()), good.key());
        assert_eq!(verify(root.der(), &[&own, good.der()], 2001), Ok(()));
        assert_eq!(verify(root.der(), &[&own], 2001), STRANGER);
        let deep = aged(&client(&lower, |_| ()), lower.key());
        assert_eq!(verify(root.der(), &[&deep, good.der(), lower.der()], 2001), Ok(()));
        assert_eq!(verify(root.der(), &[&deep, lower.der()], 2001), STRANGER);
        // None of these may.
        let extended = |id: &[u64], is_critical| {
            let mut extension = rcgen::CustomExtension::from_oid_content(id, vec![1]);
            extension.set_criticality(is_critical);
            below(&root, |params| params.custom_extensions = vec![extension])
        };
        let mut named = rcgen::DistinguishedName::new();
        named.push(DnType::CommonName, "client");
        let named = rcgen::NameConstraints {
            permitted_subtrees: vec![rcgen::GeneralSubtree::DirectoryName(named)],
            excluded_subtrees: Vec::new(),
        };
        for between in [
            below(&root, |params| params.is_ca = IsCa::NoCa),
            below(&root, |params| params.is_ca = IsCa::ExplicitNoCa),
            below(&root, |params| params.not_after = date_time_ymd(2000, 2, 1)),
            below(&root, |params| {
                params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
            }),
            below(&root, |params| params.key_usages = vec![KeyUsagePurpose::DigitalSignature]),
            extended(&[1, 2, 3, 4], true),
            // Its uses, which cannot be read.
            extended(&[2, 5, 29, 37], false),
            extended(&[2, 5, 29, 15], false),
            // Names of this kind are not looked at.
            below(&root, |params| params.name_constraints = Some(named)),
        ] {
            let new = client(&between, |_| ());
            assert!(verify(root.der(), &[&new, between.der()], 2001).is_err(), "{between:?}");
            let own = aged(&new, between.key());
            assert_eq!(verify(root.der(), &[&own, between.der()], 2001), STRANGER, "{between:?}");
        }
        let old = aged(good.der(), root.key());
        assert_eq!(verify(root.der(), &[&own, &old], 2001), STRANGER, "it cannot say that it may");
        let short =
            below(&root, |params| params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0)));
        let lower = below(&short, |params| {
            params.distinguished_name.push(DnType::CommonName, "lower");
        });
        let own = aged(&client(&short, |_| ()), short.key());
        assert_eq!(verify(root.der(), &[&own, short.der()], 2001), Ok(()));
        let deep = aged(&client(&lower, |_| ()), lower.key());
        assert_eq!(verify(root.der(), &[&deep, short.der(), lower.der()], 2001), STRANGER);
    }

    #[test]
    fn an_authority_says_how_many_may_stand_below_it() {
        let lone = IsCa::Ca(BasicConstraints::Constrained(0));
        let root = authority("root", |params| params.is_ca = lone);
        let between = below(&root, |_| ());
        for (issuer, more, expected) in [
            (&root, vec![], true),
            (&root, vec![root.der()], true),
            (&between, vec![between.der()], false),
        ] {
            let new = client(issuer, |_| ());
            for own in [&new, &aged(&new, issuer.key())] {
                let chain = [&[own], more.as_slice()].concat();
                assert_eq!(verify(root.der(), &chain, 2001).is_ok(), expected, "{issuer:?}");
            }
        }
    }
}
