//! Decides which servers are trusted.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use crate::client::x509::Certificate;
use crate::objects::Timestamp;

/// The servers that a [`Trust`] accepts.
#[derive(Debug)]
enum Trusted {
    /// `insecure-skip-tls-verify`
    Every,
    /// Servers whose certificate an authority has signed, and servers whose certificate is itself
    /// an authority's: certificates made by hand are often both, and rustls does not trust those.
    /// Upstream: `crypto/x509`.
    Signed {
        /// `None`: there are no authorities.
        chains: Option<Arc<WebPkiServerVerifier>>,
        authorities: Vec<CertificateDer<'static>>,
    },
}

/// A verifier of servers, by whom their certificates are signed.
#[derive(Debug)]
pub struct Trust {
    trusted: Trusted,
    schemes: WebPkiSupportedAlgorithms,
}

impl Trust {
    /// Trusts every server.
    pub fn every(provider: &CryptoProvider) -> Trust {
        Trust { trusted: Trusted::Every, schemes: provider.signature_verification_algorithms }
    }

    /// Trusts servers that `authorities` have signed.
    pub fn of(authorities: Vec<CertificateDer<'static>>, provider: &Arc<CryptoProvider>) -> Trust {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(authorities.iter().cloned());
        let chains = WebPkiServerVerifier::builder_with_provider(roots.into(), provider.clone());
        let trusted = Trusted::Signed { chains: chains.build().ok(), authorities };
        Trust { trusted, schemes: provider.signature_verification_algorithms }
    }
}

/// Verifies a server whose certificate is itself an authority's: by its dates, its usages and its
/// name.
fn verify_alone(
    end_entity: &CertificateDer<'_>,
    name: &ServerName<'_>,
    now: UnixTime,
) -> Result<(), Error> {
    let parsed = Certificate::from_der(end_entity)
        .map_err(|_| Error::InvalidCertificate(CertificateError::BadEncoding))?;
    let now = Timestamp::from_secs(i64::try_from(now.as_secs()).unwrap_or(i64::MAX));
    let fault = if now < parsed.not_before() {
        CertificateError::NotValidYet
    } else if now > parsed.not_after() {
        CertificateError::Expired
    } else if !parsed.may_serve() {
        CertificateError::InvalidPurpose
    } else {
        return verify_server_name(&ParsedCertificate::try_from(end_entity)?, name);
    };
    Err(Error::InvalidCertificate(fault))
}

impl ServerCertVerifier for Trust {
    /// Verifies the server's certificate: any one if every server is trusted, one that is itself a
    /// trusted authority's alone, and any other with its chain.
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match &self.trusted {
            Trusted::Every => Ok(ServerCertVerified::assertion()),
            Trusted::Signed { authorities, .. }
                if authorities.iter().any(|one| one == end_entity) =>
            {
                verify_alone(end_entity, name, now).map(|()| ServerCertVerified::assertion())
            }
            Trusted::Signed { chains: Some(chains), .. } => {
                chains.verify_server_cert(end_entity, intermediates, name, ocsp, now)
            }
            Trusted::Signed { chains: None, .. } => {
                Err(Error::InvalidCertificate(CertificateError::UnknownIssuer))
            }
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.schemes)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.schemes)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, KeyPair};
    use rcgen::{CertifiedIssuer, date_time_ymd};

    use super::*;

    fn params(change: impl FnOnce(&mut CertificateParams)) -> CertificateParams {
        let mut params = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
        params.not_before = date_time_ymd(2000, 1, 1);
        params.not_after = date_time_ymd(2001, 1, 1);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        change(&mut params);
        params
    }

    fn alone(change: impl FnOnce(&mut CertificateParams)) -> CertificateDer<'static> {
        params(change).self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
    }

    /// Whether a client that trusts `authority` trusts a server at `name` that shows `own`, in
    /// `year`.
    fn verify(
        authority: &CertificateDer<'static>,
        own: &CertificateDer<'static>,
        name: &str,
        year: u64,
    ) -> Result<(), CertificateError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let trust = Trust::of(vec![authority.clone()], &provider);
        let year = Duration::from_secs((year - 1970) * 31_557_600 + 86_400 * 100);
        let (name, now) = (ServerName::try_from(name).unwrap(), UnixTime::since_unix_epoch(year));
        match trust.verify_server_cert(own, &[], &name, &[], now) {
            Ok(_) => Ok(()),
            Err(Error::InvalidCertificate(fault)) => Err(fault),
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn a_server_may_be_its_own_authority() {
        let own = alone(|_| ());
        assert_eq!(verify(&own, &own, "127.0.0.1", 2000), Ok(()));
        assert_eq!(verify(&own, &own, "127.0.0.1", 1999), Err(CertificateError::NotValidYet));
        assert_eq!(verify(&own, &own, "127.0.0.1", 2001), Err(CertificateError::Expired));
        assert!(verify(&own, &own, "k.example", 2000).is_err(), "it has another name");
        assert!(
            verify(&alone(|_| ()), &own, "127.0.0.1", 2000).is_err(),
            "it is another certificate"
        );
        let leaf = alone(|params| params.is_ca = IsCa::NoCa);
        assert_eq!(verify(&leaf, &leaf, "127.0.0.1", 2000), Ok(()));
        let client = ExtendedKeyUsagePurpose::ClientAuth;
        let client = alone(|params| params.extended_key_usages = vec![client]);
        let refused = Err(CertificateError::InvalidPurpose);
        assert_eq!(verify(&client, &client, "127.0.0.1", 2000), refused);
    }

    #[test]
    fn servers_that_an_authority_has_signed_are_trusted() {
        let issuer =
            CertifiedIssuer::self_signed(params(|_| ()), KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let server = params(|params| params.is_ca = IsCa::NoCa).signed_by(&key, &issuer).unwrap();
        let (authority, server) = (issuer.der().clone(), server.der().clone());
        assert_eq!(verify(&authority, &server, "127.0.0.1", 2000), Ok(()));
        assert!(verify(&authority, &server, "127.0.0.2", 2000).is_err());
        assert!(verify(&authority, &server, "127.0.0.1", 2002).is_err());
    }
}
