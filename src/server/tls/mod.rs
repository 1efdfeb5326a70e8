//! The TLS side of serving. Certificates come from files, which are read again when they change, or
//! are created in memory. Client certificates are requested; [`super::auth`] verifies them.
//! Upstream: `apiserver/pkg/server/dynamiccertificates`.

mod certificates;
mod choice;
mod client_certificates;
mod key_exchange;
mod self_signed;

use parking_lot::RwLock;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::CertificateDer;
use rustls::server::{NoServerSessionStorage, ResolvesServerCert};
use rustls::{ServerConfig, SupportedCipherSuite};

use crate::clock::SharedClock;
use crate::files::{POLL_PERIOD, Stamp, stamp};
use crate::task::{self, StopToken};

use certificates::{AtAddress, Certificates, parse_pair};
use choice::{Loaded, Named};
use client_certificates::RequestOnly;

pub use self_signed::load_or_create_self_signed;

/// The certificates and the protocol; see the flags `--tls-*`.
#[derive(Clone, Debug, Default)]
pub struct TlsOptions {
    /// Certificate and key; `None`: self-signed in memory, for `localhost`, 127.0.0.1 and
    /// `address`.
    pub files: Option<(PathBuf, PathBuf)>,
    /// The address that is served; `None` when every address is.
    pub address: Option<IpAddr>,
    /// More certificates: files and the names they are for; without names, the certificate's own.
    pub named: Vec<(PathBuf, PathBuf, Vec<String>)>,
    /// Go's names; empty: all that rustls supports.
    pub cipher_suites: Vec<String>,
    /// Go's CurveIDs; without any that rustls supports: all of those.
    pub curves: Vec<i32>,
    /// Whether the server has created its own certificate, because none was given. It has an ECDSA
    /// key, where Go's has an RSA key.
    pub is_self_signed: bool,
    /// Go's name of the oldest version. Versions below 1.2 count as 1.2.
    pub min_version: String,
}

impl TlsOptions {
    /// Returns the stamps of all its files.
    fn stamps(&self) -> Vec<Stamp> {
        let named = self.named.iter().map(|(cert, key, _)| (cert, key));
        let pairs = self.files.iter().map(|(cert, key)| (cert, key)).chain(named);
        pairs.flat_map(|(cert, key)| [stamp(cert), stamp(key)]).collect()
    }
}

/// The server's configuration, and the certificates behind it.
#[derive(Clone)]
pub struct Tls {
    pub config: Arc<ServerConfig>,
    /// `None`: another resolver chooses the certificate.
    certificates: Option<Arc<Certificates>>,
}

impl Tls {
    /// Serves the certificates of the options' files, or a self-signed one that it creates.
    ///
    /// # Errors
    /// One line naming the file or the option.
    pub fn new(options: TlsOptions) -> Result<Tls, String> {
        let provider = provider(&options)?;
        let loaded = Certificates::load(&options, &provider)?;
        Tls::serving(options, loaded, provider)
    }

    /// Serves a certificate chain with its key, both in PEM.
    ///
    /// # Errors
    /// One line naming the fault.
    pub fn from_pem(chain: &[u8], key: &[u8]) -> Result<Tls, String> {
        let provider = Arc::new(ring::default_provider());
        let default = parse_pair(chain, key, &provider)?;
        let loaded = Loaded { default, named: Named::default() };
        Tls::serving(TlsOptions::default(), loaded, provider)
    }

    /// Makes the configuration for certificates that were loaded.
    fn serving(
        options: TlsOptions,
        loaded: Loaded,
        provider: Arc<CryptoProvider>,
    ) -> Result<Tls, String> {
        let certificates = Arc::new(Certificates { options, current: RwLock::new(loaded) });
        let config = config(&certificates.options, provider, certificates.clone())?;
        Ok(Tls { config: Arc::new(config), certificates: Some(certificates) })
    }

    /// Serves the certificates that `resolver` chooses, by the protocol of `options`.
    ///
    /// # Errors
    /// One line naming the option.
    pub fn with_resolver(
        options: &TlsOptions,
        resolver: Arc<dyn ResolvesServerCert>,
    ) -> Result<Tls, String> {
        let config = config(options, provider(options)?, resolver)?;
        Ok(Tls { config: Arc::new(config), certificates: None })
    }

    /// Returns the configuration for a connection to the address `local`, which may have a
    /// certificate for clients that name no host. Upstream: `GetConfigForClient`.
    pub fn config_at(&self, local: Option<IpAddr>) -> Arc<ServerConfig> {
        let named = self.certificates.as_ref().filter(|all| !all.options.named.is_empty());
        let (Some(local), Some(certificates)) = (local, named) else { return self.config.clone() };
        let mut config = ServerConfig::clone(&self.config);
        let certificates = certificates.clone();
        config.cert_resolver = Arc::new(AtAddress { certificates, local });
        Arc::new(config)
    }

    /// Returns the certificate for clients that name no other host; `None` if another resolver
    /// chooses it.
    pub fn certificate(&self) -> Option<CertificateDer<'static>> {
        Some(self.certificates.as_ref()?.choose(None, None).cert[0].clone())
    }

    /// Reads the files again when they have changed, until stopped. A file that cannot be read
    /// leaves the certificate as it is.
    pub async fn reload(&self, clock: SharedClock, stop: StopToken) {
        let Some(certificates) = &self.certificates else { return };
        if certificates.options.files.is_none() && certificates.options.named.is_empty() {
            return;
        }
        // The first poll reads files that may have changed since the start.
        let (mut read, mut known) = (Vec::new(), String::new());
        while stop.unless_stopped(clock.sleep(POLL_PERIOD)).await.is_some() {
            let (options, provider) =
                (certificates.options.clone(), self.config.crypto_provider().clone());
            let before = read.clone();
            let reading = task::blocking(move || {
                let now = options.stamps();
                (now != before).then(|| (now, Certificates::load(&options, &provider)))
            });
            match reading.await {
                None => {}
                Some((now, Ok(fresh))) => {
                    certificates.set(fresh);
                    (read, known) = (now, String::new());
                }
                // Retried at the next poll, and logged once.
                Some((_, Err(error))) if error != known => {
                    log::error!("serving certificate not reloaded: {error}");
                    known = error;
                }
                Some((_, Err(_))) => {}
            }
        }
    }
}

/// Builds the TLS configuration, which asks clients for a certificate but does not need one.
fn config(
    options: &TlsOptions,
    provider: Arc<CryptoProvider>,
    resolver: Arc<dyn ResolvesServerCert>,
) -> Result<ServerConfig, String> {
    let versions: &[&rustls::SupportedProtocolVersion] = match options.min_version.as_str() {
        "VersionTLS13" => &[&rustls::version::TLS13],
        // 1.2 and 1.3.
        _ => rustls::ALL_VERSIONS,
    };
    let mut config = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(versions)
        .map_err(|error| format!("--tls-cipher-suites: {error}"))?
        .with_client_cert_verifier(Arc::new(RequestOnly(provider)))
        .with_cert_resolver(resolver);
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    // A stored session holds the client's certificates, which an untrusted client may make large.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// Returns the cryptography of rustls, restricted to the chosen cipher suites and curves.
fn provider(options: &TlsOptions) -> Result<Arc<CryptoProvider>, String> {
    let mut provider = ring::default_provider();
    if !options.cipher_suites.is_empty() {
        provider.cipher_suites.retain(|suite| {
            // As in Go, all suites of TLS 1.3 stay.
            suite.tls13().is_some()
                || options.cipher_suites.iter().any(|wanted| is_suite(suite, wanted, options))
        });
    }
    key_exchange::restrict(&mut provider.kx_groups, &options.curves)?;
    Ok(Arc::new(provider))
}

/// Returns whether `wanted`, in Go's spelling, names this suite. For a certificate that the server
/// has created, a suite for RSA also selects its counterpart for ECDSA.
fn is_suite(suite: &SupportedCipherSuite, wanted: &str, options: &TlsOptions) -> bool {
    let name = format!("{:?}", suite.suite());
    // Some older names in Go lack this ending.
    let (name, wanted) = (name.trim_end_matches("_SHA256"), wanted.trim_end_matches("_SHA256"));
    name == wanted || (options.is_self_signed && name == wanted.replace("_RSA_", "_ECDSA_"))
}

#[cfg(test)]
pub mod testing {
    use super::*;

    /// Both ends of a connection in memory to `host`, after the handshake.
    pub fn shake_hands(
        client: rustls::ClientConfig,
        host: &'static str,
        server: Arc<ServerConfig>,
    ) -> (rustls::ClientConnection, rustls::ServerConnection) {
        let host = host.try_into().expect("a name");
        let mut client = rustls::ClientConnection::new(client.into(), host).expect("a client");
        let mut server = rustls::ServerConnection::new(server).expect("a server");
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
        (client, server)
    }
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::PrivateKeyDer;

    use super::testing::shake_hands;
    use super::*;

    #[test]
    fn client_certificate_of_any_authority_is_accepted() {
        let tls = Tls::new(TlsOptions::default()).expect("a configuration");
        let served = tls.certificate().expect("its own");
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
        let (client, server) = shake_hands(config, "localhost", tls.config.clone());
        assert!(!client.is_handshaking() && !server.is_handshaking());
        assert_eq!(server.peer_certificates(), Some(std::slice::from_ref(own.cert.der())));
    }

    #[test]
    fn suites_and_curves_have_the_names_of_go() {
        let mut options = TlsOptions {
            cipher_suites: vec!["TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305".into()],
            curves: vec![29],
            ..TlsOptions::default()
        };
        let count = |options: &TlsOptions| {
            let provider = provider(options).expect("a provider");
            let suites = provider.cipher_suites.iter();
            (suites.filter(|suite| suite.tls13().is_none()).count(), provider.kx_groups.len())
        };
        assert_eq!(count(&options), (1, 1));
        options.is_self_signed = true;
        assert_eq!(count(&options), (2, 1));
    }
}
