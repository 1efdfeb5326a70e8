//! Which servers are trusted.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, SignatureScheme};

use super::x509::{Authorities, Purpose, check_alone, verify_tls12, verify_tls13};

#[derive(Debug)]
enum Trusted {
    /// `insecure-skip-tls-verify`
    Everybody,
    /// What an authority vouches for; and an authority that is itself the server, which rustls does
    /// not trust: servers' certificates that are made by hand are often both. Upstream: `crypto/x509`.
    Vouched(Authorities),
}

#[derive(Debug)]
pub(super) struct Trust {
    trusted: Trusted,
    provider: Arc<CryptoProvider>,
}

impl Trust {
    pub fn everybody(provider: &Arc<CryptoProvider>) -> Trust {
        Trust { trusted: Trusted::Everybody, provider: provider.clone() }
    }

    pub fn of(authorities: Vec<CertificateDer<'static>>, provider: &Arc<CryptoProvider>) -> Trust {
        let trusted = Trusted::Vouched(Authorities::new(authorities, provider.clone()));
        Trust { trusted, provider: provider.clone() }
    }
}

impl ServerCertVerifier for Trust {
    fn verify_server_cert(
        &self,
        own: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match &self.trusted {
            Trusted::Everybody => Ok(ServerCertVerified::assertion()),
            Trusted::Vouched(authorities) if authorities.contain(own) => {
                check_alone(own, Purpose::Server, now)?;
                verify_server_name(&ParsedCertificate::try_from(own)?, name)?;
                Ok(ServerCertVerified::assertion())
            }
            Trusted::Vouched(authorities) => {
                let (roots, between) = authorities.links(between, Purpose::Server, now)?;
                WebPkiServerVerifier::builder_with_provider(roots.into(), self.provider.clone())
                    .build()
                    .map_err(|_| Error::InvalidCertificate(CertificateError::UnknownIssuer))?
                    .verify_server_cert(own, &between, name, ocsp, now)
            }
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
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

    /// Whether a server at `name` that shows `own` is trusted by whom `authority` is trusted,
    /// in the year.
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
        assert!(verify(&own, &own, "k.example", 2000).is_err(), "it is another's");
        assert!(verify(&alone(|_| ()), &own, "127.0.0.1", 2000).is_err(), "it is a stranger");
        let leaf = alone(|params| params.is_ca = IsCa::NoCa);
        assert_eq!(verify(&leaf, &leaf, "127.0.0.1", 2000), Ok(()));
        let client = ExtendedKeyUsagePurpose::ClientAuth;
        let client = alone(|params| params.extended_key_usages = vec![client]);
        let refused = Err(CertificateError::InvalidPurpose);
        assert_eq!(verify(&client, &client, "127.0.0.1", 2000), refused);
    }

    #[test]
    fn an_authority_vouches_for_servers() {
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
