//! The served certificates and the choice among them.

use parking_lot::RwLock;
use std::path::Path;
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::TlsOptions;
use super::self_signed::self_signed;
use crate::client::pem;
use crate::client::x509::Certificate;

pub(super) struct Loaded {
    pub default: Arc<CertifiedKey>,
    pub named: Vec<(Vec<String>, Arc<CertifiedKey>)>,
}

/// Chooses the certificate by the host that a client names.
pub(super) struct Certificates {
    pub options: TlsOptions,
    pub current: RwLock<Loaded>,
}

impl Certificates {
    pub fn load(options: &TlsOptions, provider: &CryptoProvider) -> Result<Loaded, String> {
        let default = match &options.files {
            Some((cert, key)) => load(cert, key, provider)
                .map_err(|error| format!("--tls-cert-file, --tls-private-key-file: {error}"))?,
            None => {
                let (cert, key) = self_signed(options.address)?;
                certified(&cert, &key, provider)?
            }
        };
        let named = options.named.iter().map(|(cert, key, names)| {
            let loaded = load(cert, key, provider)
                .map_err(|error| format!("--tls-sni-cert-key: {error}"))?;
            let names = match names.is_empty() {
                true => own_names(&loaded.cert[0]),
                false => names.iter().map(|name| name.to_ascii_lowercase()).collect(),
            };
            Ok((names, loaded))
        });
        Ok(Loaded { default, named: named.collect::<Result<_, String>>()? })
    }

    pub fn set(&self, mut fresh: Loaded) {
        let mut current = self.current.write();
        if self.options.files.is_none() {
            // A certificate that was created in memory stays for the life of the process.
            fresh.default = current.default.clone();
        }
        *current = fresh;
    }

    pub fn choose(&self, name: Option<&str>) -> Arc<CertifiedKey> {
        let current = self.current.read();
        let find = |wanted: &str| {
            current.named.iter().find(|(names, _)| names.iter().any(|name| name == wanted))
        };
        // An exact name takes precedence over a wildcard.
        let named = name.map(str::to_ascii_lowercase).and_then(|name| {
            let any = || name.split_once('.').and_then(|(_, rest)| find(&format!("*.{rest}")));
            find(&name).or_else(any)
        });
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

pub(super) fn certified(
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

/// The names of a certificate in lower case: its alternative names, or else its common name.
fn own_names(cert: &CertificateDer<'_>) -> Vec<String> {
    let Ok(parsed) = Certificate::from_der(cert) else { return Vec::new() };
    let mut names = parsed.dns_names();
    if names.is_empty() {
        names.extend(parsed.common_names());
    }
    names.iter().map(|name| name.to_ascii_lowercase()).collect()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::Tls;
    use super::super::self_signed::testing::folder;
    use super::*;

    #[test]
    fn certificate_made_in_memory_is_kept() {
        let tls = Tls::new(TlsOptions::default()).expect("a configuration");
        let first = tls.certificates.choose(Some("x"));
        let again = Certificates::load(&TlsOptions::default(), tls.config.crypto_provider());
        tls.certificates.set(again.expect("certificates"));
        assert_eq!(first.cert, tls.certificates.choose(None).cert);
    }

    #[test]
    fn missing_file_is_named() {
        let files = Some((PathBuf::from("/nowhere/tls.crt"), PathBuf::from("/nowhere/tls.key")));
        let error = Tls::new(TlsOptions { files, ..TlsOptions::default() }).err();
        assert!(error.is_some_and(|error| error.contains("file: /nowhere/tls.crt: ")));
    }

    #[test]
    fn requested_name_chooses_the_certificate() {
        let folder = folder("names");
        std::fs::create_dir_all(&folder.0).expect("a folder");
        let write = |file: &str, names: &[&str]| {
            let names: Vec<String> = names.iter().map(ToString::to_string).collect();
            let made = rcgen::generate_simple_self_signed(names).expect("a certificate");
            let cert = folder.0.join(format!("{file}.crt"));
            let key = folder.0.join(format!("{file}.key"));
            std::fs::write(&cert, made.cert.pem()).expect("written");
            std::fs::write(&key, made.signing_key.serialize_pem()).expect("written");
            (cert, key)
        };
        let any = write("any", &["*.example.com"]);
        let one = write("one", &["ignored.example.com"]);
        let options = TlsOptions {
            named: vec![
                (any.0, any.1, Vec::new()),
                (one.0, one.1, vec!["a.Example.com".to_string()]),
            ],
            ..TlsOptions::default()
        };
        let tls = Tls::new(options).expect("a configuration");
        let named = tls.certificates.current.read().named.clone();
        let default = tls.certificates.choose(None);
        for (name, wanted) in [
            ("a.example.com", &named[1].1),
            ("A.EXAMPLE.COM", &named[1].1),
            ("b.example.com", &named[0].1),
            ("ignored.example.com", &named[0].1),
            ("c.b.example.com", &default),
            ("other", &default),
        ] {
            assert_eq!(tls.certificates.choose(Some(name)).cert, wanted.cert, "{name}");
        }
    }
}
