//! The served certificates: their files, and their part in a handshake.

use parking_lot::RwLock;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::TlsOptions;
use super::choice::{Loaded, Named};
use super::self_signed::self_signed;
use crate::client::pem;

/// The certificates for connections to any address.
pub(super) struct Certificates {
    pub options: TlsOptions,
    pub current: RwLock<Loaded>,
}

impl Certificates {
    /// Reads the certificates from the files of the options; creates the default one in memory if
    /// they name no file for it.
    pub fn load(options: &TlsOptions, provider: &CryptoProvider) -> Result<Loaded, String> {
        let default = match &options.files {
            Some((cert, key)) => load_pair(cert, key, provider)
                .map_err(|error| format!("--tls-cert-file, --tls-private-key-file: {error}"))?,
            None => {
                let (cert, key) = self_signed(options.address)?;
                parse_pair(&cert, &key, provider)?
            }
        };
        let named = options.named.iter().map(|(cert, key, names)| {
            let loaded = load_pair(cert, key, provider)
                .map_err(|error| format!("--tls-sni-cert-key: {error}"))?;
            Ok((names.clone(), loaded))
        });
        let named = named.collect::<Result<Vec<_>, String>>()?;
        Ok(Loaded { default, named: Named::new(&named) })
    }

    /// Serves the certificates of `fresh` from now on.
    pub fn set(&self, mut fresh: Loaded) {
        let mut current = self.current.write();
        if self.options.files.is_none() {
            // A certificate that was created in memory stays for the life of the process.
            fresh.default = current.default.clone();
        }
        *current = fresh;
    }

    pub fn choose(&self, host: Option<&str>, local: Option<IpAddr>) -> Arc<CertifiedKey> {
        self.current.read().choose(host, local).clone()
    }
}

impl std::fmt::Debug for Certificates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Certificates").field("options", &self.options).finish_non_exhaustive()
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.choose(hello.server_name(), None))
    }
}

/// The certificates for a connection to the address `local`.
#[derive(Debug)]
pub(super) struct AtAddress {
    pub certificates: Arc<Certificates>,
    pub local: IpAddr,
}

impl ResolvesServerCert for AtAddress {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.certificates.choose(hello.server_name(), Some(self.local)))
    }
}

/// Reads a certificate and its key from PEM files.
fn load_pair(
    cert: &Path,
    key: &Path,
    provider: &CryptoProvider,
) -> Result<Arc<CertifiedKey>, String> {
    if cert.as_os_str().is_empty() || key.as_os_str().is_empty() {
        return Err("missing filename for serving cert".to_owned());
    }
    let chain = std::fs::read(cert).map_err(|error| format!("{}: {error}", cert.display()))?;
    let chain = pem::certificates(&chain);
    if chain.is_empty() {
        return Err(format!("{}: no certificate in it", cert.display()));
    }
    let private =
        PrivateKeyDer::from_pem_file(key).map_err(|error| format!("{}: {error}", key.display()))?;
    CertifiedKey::from_der(chain, private, provider)
        .map(Arc::new)
        .map_err(|error| format!("{} and {}: {error}", cert.display(), key.display()))
}

/// Parses a certificate and its key from PEM.
pub(super) fn parse_pair(
    cert: &[u8],
    key: &[u8],
    provider: &CryptoProvider,
) -> Result<Arc<CertifiedKey>, String> {
    let key =
        PrivateKeyDer::from_pem_slice(key).map_err(|error| format!("serving key: {error}"))?;
    CertifiedKey::from_der(pem::certificates(cert), key, provider)
        .map(Arc::new)
        .map_err(|error| format!("serving certificate and key: {error}"))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use rustls::RootCertStore;
    use rustls::crypto::ring;
    use rustls::pki_types::CertificateDer;

    use super::super::Tls;
    use super::super::self_signed::testing::folder;
    use super::super::testing::shake_hands;
    use super::*;

    #[test]
    fn certificate_made_in_memory_is_kept() {
        let tls = Tls::new(TlsOptions::default()).expect("a configuration");
        let certificates = tls.certificates.expect("its own");
        let first = certificates.choose(Some("x"), None);
        let again = Certificates::load(&TlsOptions::default(), tls.config.crypto_provider());
        certificates.set(again.expect("certificates"));
        assert_eq!(first.cert, certificates.choose(None, None).cert);
    }

    #[test]
    fn missing_file_is_named() {
        let files = Some((PathBuf::from("/nowhere/tls.crt"), PathBuf::from("/nowhere/tls.key")));
        let error = Tls::new(TlsOptions { files, ..TlsOptions::default() }).err();
        assert!(error.is_some_and(|error| error.contains("file: /nowhere/tls.crt: ")));
        for (cert, key) in [("", "tls.key"), ("tls.crt", ""), ("", "")] {
            let named = vec![(PathBuf::from(cert), PathBuf::from(key), Vec::new())];
            let error = Tls::new(TlsOptions { named, ..TlsOptions::default() }).err();
            let wanted = "--tls-sni-cert-key: missing filename for serving cert";
            assert_eq!(error.as_deref(), Some(wanted), "{cert},{key}");
        }
    }

    /// The certificate that a client of 127.0.0.1, which sends no host, gets on a connection to
    /// `local`.
    fn served(tls: &Tls, roots: &RootCertStore, local: &str) -> CertificateDer<'static> {
        let config = rustls::ClientConfig::builder_with_provider(ring::default_provider().into())
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots.clone())
            .with_no_client_auth();
        let server = tls.config_at(Some(local.parse().expect("an address")));
        let (client, _) = shake_hands(config, "127.0.0.1", server);
        client.peer_certificates().expect("certificates")[0].clone()
    }

    #[test]
    fn address_of_the_connection_chooses_the_certificate() {
        let folder = folder("address");
        std::fs::create_dir_all(&folder.0).expect("a folder");
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_string()]);
        let made = made.expect("a certificate");
        let files = (folder.0.join("named.crt"), folder.0.join("named.key"));
        std::fs::write(&files.0, made.cert.pem()).expect("written");
        std::fs::write(&files.1, made.signing_key.serialize_pem()).expect("written");
        let named = vec![(files.0, files.1, vec!["10.0.0.1".to_string()])];
        let tls = Tls::new(TlsOptions { named, ..TlsOptions::default() }).expect("a configuration");
        let (named, default) = (made.cert.der().clone(), tls.certificate().expect("its own"));
        let mut roots = RootCertStore::empty();
        for root in [&named, &default] {
            roots.add(root.clone()).expect("a certificate");
        }
        assert_eq!(served(&tls, &roots, "10.0.0.1"), named);
        assert_eq!(served(&tls, &roots, "::ffff:10.0.0.1"), named);
        assert_eq!(served(&tls, &roots, "10.0.0.2"), default);
    }
}
