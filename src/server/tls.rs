//! The TLS side of serving: certificates that are read again when they change, or one made in
//! memory; client certificates asked for, but judged by [`super::auth`].
//! Upstream: `apiserver/pkg/server/dynamiccertificates`.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{DigitallySignedStruct, DistinguishedName, ServerConfig, SignatureScheme};

use crate::clock::SharedClock;
use crate::task::{self, StopToken};

/// How often certificate files are read again.
const RELOAD: Duration = Duration::from_secs(60);

/// What to serve with; see the flags `--tls-*`.
#[derive(Clone, Debug, Default)]
pub struct TlsOptions {
    /// Certificate and key; `None`: one is made, for `localhost` and 127.0.0.1.
    pub files: Option<(PathBuf, PathBuf)>,
    /// More certificates: files and the names they are for.
    pub named: Vec<(PathBuf, PathBuf, Vec<String>)>,
    /// Go's names; empty: all that rustls has.
    pub cipher_suites: Vec<String>,
    /// Go's CurveIDs; empty: all that rustls has.
    pub curves: Vec<i32>,
    /// Go's name of the oldest version. What is below 1.2 counts as 1.2.
    pub min_version: String,
}

/// The server's configuration, and the certificates behind it.
#[derive(Clone)]
pub struct Tls {
    pub config: Arc<ServerConfig>,
    certificates: Arc<Certificates>,
}

impl Tls {
    /// # Errors
    /// One line naming the file or the option.
    pub fn new(options: TlsOptions) -> Result<Tls, String> {
        let provider = provider(&options)?;
        let loaded = Certificates::load(&options, &provider)?;
        Tls::serving(options, loaded, provider)
    }

    /// With a certificate, its chain and its key in PEM.
    ///
    /// # Errors
    /// One line saying what is wrong with them.
    pub fn from_pem(chain: &[u8], key: &[u8]) -> Result<Tls, String> {
        let provider = Arc::new(ring::default_provider());
        let chain = CertificateDer::pem_slice_iter(chain)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| format!("serving certificate: {error}"))?;
        let key =
            PrivateKeyDer::from_pem_slice(key).map_err(|error| format!("serving key: {error}"))?;
        let default = CertifiedKey::from_der(chain, key, &provider)
            .map_err(|error| format!("serving certificate and key: {error}"))?;
        let loaded = Loaded { default: Arc::new(default), named: Vec::new() };
        Tls::serving(TlsOptions::default(), loaded, provider)
    }

    fn serving(
        options: TlsOptions,
        loaded: Loaded,
        provider: Arc<CryptoProvider>,
    ) -> Result<Tls, String> {
        let certificates = Arc::new(Certificates { options, current: RwLock::new(loaded) });
        let oldest: &[&rustls::SupportedProtocolVersion] =
            match certificates.options.min_version.as_str() {
                "VersionTLS13" => &[&rustls::version::TLS13],
                _ => rustls::ALL_VERSIONS,
            };
        let mut config = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(oldest)
            .map_err(|error| format!("--tls-cipher-suites: {error}"))?
            .with_client_cert_verifier(Arc::new(AskOnly(provider)))
            .with_cert_resolver(certificates.clone());
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Tls { config: Arc::new(config), certificates })
    }

    /// The certificate that is served to who names no other.
    pub fn certificate(&self) -> CertificateDer<'static> {
        self.certificates.choose(None).cert[0].clone()
    }

    /// Reads the files again from time to time until stopped. What can't be read leaves the
    /// certificate as it is.
    pub async fn reload(&self, clock: SharedClock, stop: StopToken) {
        let certificates = &self.certificates;
        if certificates.options.files.is_none() && certificates.options.named.is_empty() {
            return;
        }
        while stop.unless_stopped(clock.sleep(RELOAD)).await.is_some() {
            let (options, provider) =
                (certificates.options.clone(), self.config.crypto_provider().clone());
            match task::blocking(move || Certificates::load(&options, &provider)).await {
                Ok(fresh) => certificates.set(fresh),
                Err(error) => log::error!("serving certificate not reloaded: {error}"),
            }
        }
    }
}

fn provider(options: &TlsOptions) -> Result<Arc<CryptoProvider>, String> {
    let mut provider = ring::default_provider();
    if !options.cipher_suites.is_empty() {
        provider.cipher_suites.retain(|suite| {
            // As in Go, TLS 1.3 has all of its suites. Older names of Go's lack the `_SHA256`.
            let name = format!("{:?}", suite.suite());
            options.cipher_suites.iter().any(|wanted| {
                let wanted = wanted.trim_end_matches("_SHA256");
                name.trim_end_matches("_SHA256") == wanted
            }) || suite.tls13().is_some()
        });
    }
    if !options.curves.is_empty() {
        provider
            .kx_groups
            .retain(|group| options.curves.contains(&i32::from(u16::from(group.name()))));
        if provider.kx_groups.is_empty() {
            return Err(format!(
                "--tls-curve-preferences: none of {:?} is supported",
                options.curves
            ));
        }
    }
    Ok(Arc::new(provider))
}

struct Loaded {
    default: Arc<CertifiedKey>,
    named: Vec<(Vec<String>, Arc<CertifiedKey>)>,
}

struct Certificates {
    options: TlsOptions,
    current: RwLock<Loaded>,
}

impl Certificates {
    fn load(options: &TlsOptions, provider: &CryptoProvider) -> Result<Loaded, String> {
        let default = match &options.files {
            Some((cert, key)) => load(cert, key, provider)?,
            None => self_signed(provider)?,
        };
        let named = options.named.iter().map(|(cert, key, names)| {
            let loaded = load(cert, key, provider)?;
            Ok((names.clone(), loaded))
        });
        Ok(Loaded { default, named: named.collect::<Result<_, String>>()? })
    }

    fn set(&self, mut fresh: Loaded) {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        if self.options.files.is_none() {
            // One made in memory stays for the process's life.
            fresh.default = current.default.clone();
        }
        *current = fresh;
    }

    fn choose(&self, name: Option<&str>) -> Arc<CertifiedKey> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        let fits = |pattern: &String| match (name, pattern.strip_prefix("*.")) {
            (Some(name), Some(rest)) => name.split_once('.').is_some_and(|(_, n)| n == rest),
            (Some(name), None) => name == pattern,
            (None, _) => false,
        };
        let named = current.named.iter().find(|(names, _)| names.iter().any(fits));
        named.map_or_else(|| current.default.clone(), |(_, key)| key.clone())
    }
}

impl std::fmt::Debug for Certificates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Certificates").field("options", &self.options).finish_non_exhaustive()
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.choose(hello.server_name()))
    }
}

fn load(cert: &Path, key: &Path, provider: &CryptoProvider) -> Result<Arc<CertifiedKey>, String> {
    let chain = CertificateDer::pem_file_iter(cert)
        .and_then(|chain| chain.collect::<Result<Vec<_>, _>>())
        .map_err(|error| format!("{}: {error}", cert.display()))?;
    if chain.is_empty() {
        return Err(format!("{}: no certificate in it", cert.display()));
    }
    let private =
        PrivateKeyDer::from_pem_file(key).map_err(|error| format!("{}: {error}", key.display()))?;
    CertifiedKey::from_der(chain, private, provider)
        .map(Arc::new)
        .map_err(|error| format!("{} and {}: {error}", cert.display(), key.display()))
}

fn self_signed(provider: &CryptoProvider) -> Result<Arc<CertifiedKey>, String> {
    let names = ["localhost".to_string(), "127.0.0.1".to_string()];
    let made = rcgen::generate_simple_self_signed(names).map_err(|error| error.to_string())?;
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der())
        .map_err(|error| error.to_string())?;
    CertifiedKey::from_der(vec![made.cert.der().clone()], key, provider)
        .map(Arc::new)
        .map_err(|error| format!("self-signed certificate: {error}"))
}

/// Asks for a client certificate and checks only that the client has its key: who it stands for
/// is decided for each request, since `--client-ca-file` binds no one to have one.
#[derive(Debug)]
struct AskOnly(Arc<CryptoProvider>);

impl ClientCertVerifier for AskOnly {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_files_a_certificate_is_made_and_kept() {
        let tls = Tls::new(TlsOptions::default()).expect("a configuration");
        let first = tls.certificates.choose(Some("x"));
        let again = Certificates::load(&TlsOptions::default(), tls.config.crypto_provider());
        tls.certificates.set(again.expect("certificates"));
        assert_eq!(first.cert, tls.certificates.choose(None).cert);
    }

    #[test]
    fn a_client_certificate_of_any_authority_reaches_the_handlers() {
        let tls = Tls::new(TlsOptions::default()).expect("a configuration");
        let served = tls.certificate();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(served).expect("a certificate");
        let own = rcgen::generate_simple_self_signed(["me".to_string()]).expect("a certificate");
        let key = PrivateKeyDer::try_from(own.signing_key.serialize_der()).expect("a key");
        let config = rustls::ClientConfig::builder_with_provider(ring::default_provider().into())
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots)
            .with_client_auth_cert(vec![own.cert.der().clone()], key)
            .expect("a client certificate");
        let name = "localhost".try_into().expect("a name");
        let mut client = rustls::ClientConnection::new(config.into(), name).expect("a client");
        let mut server = rustls::ServerConnection::new(tls.config.clone()).expect("a server");
        for _ in 0..4 {
            let mut wire = Vec::new();
            client.write_tls(&mut wire).expect("a write to memory");
            server.read_tls(&mut wire.as_slice()).expect("a read from memory");
            server.process_new_packets().expect("a good client");
            wire.clear();
            server.write_tls(&mut wire).expect("a write to memory");
            client.read_tls(&mut wire.as_slice()).expect("a read from memory");
            client.process_new_packets().expect("a good server");
        }
        assert!(!client.is_handshaking() && !server.is_handshaking());
        assert_eq!(server.peer_certificates(), Some(std::slice::from_ref(own.cert.der())));
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let files = Some((PathBuf::from("/nowhere/tls.crt"), PathBuf::from("/nowhere/tls.key")));
        let error = Tls::new(TlsOptions { files, ..TlsOptions::default() }).err();
        assert!(error.is_some_and(|error| error.starts_with("/nowhere/tls.crt: ")));
    }

    #[test]
    fn suites_and_curves_are_chosen_by_their_go_names() {
        let options = TlsOptions {
            cipher_suites: vec!["TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305".into()],
            curves: vec![29],
            ..TlsOptions::default()
        };
        let provider = provider(&options).expect("a provider");
        let tls12 = provider.cipher_suites.iter().filter(|suite| suite.tls13().is_none()).count();
        assert_eq!((tls12, provider.kx_groups.len()), (1, 1));
    }
}
