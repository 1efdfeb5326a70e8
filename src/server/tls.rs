//! The TLS side of serving: certificates that are read again when they change, or one made in
//! memory; client certificates asked for, but judged by [`super::auth`].
//! Upstream: `apiserver/pkg/server/dynamiccertificates`.

use parking_lot::RwLock;
use std::fs::OpenOptions;
use std::io::Write;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{DigitallySignedStruct, DistinguishedName, ServerConfig, SignatureScheme};

use crate::client::pem;
use crate::clock::SharedClock;
use crate::task::{self, StopToken};

/// How often certificate files are read again.
const RELOAD: Duration = Duration::from_secs(60);

/// What to serve with; see the flags `--tls-*`.
#[derive(Clone, Debug, Default)]
pub struct TlsOptions {
    /// Certificate and key; `None`: one is made, for `localhost`, 127.0.0.1 and `address`.
    pub files: Option<(PathBuf, PathBuf)>,
    /// The address that is served on, if it is one.
    pub address: Option<IpAddr>,
    /// More certificates: files and the names they are for; none: those they have themselves.
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
        let default = certified(chain, key, &provider)?;
        let loaded = Loaded { default, named: Vec::new() };
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

    fn set(&self, mut fresh: Loaded) {
        let mut current = self.current.write();
        if self.options.files.is_none() {
            // One made in memory stays for the process's life.
            fresh.default = current.default.clone();
        }
        *current = fresh;
    }

    fn choose(&self, name: Option<&str>) -> Arc<CertifiedKey> {
        let current = self.current.read();
        let find = |wanted: &str| {
            current.named.iter().find(|(names, _)| names.iter().any(|name| name == wanted))
        };
        // A whole name goes before one that starts with `*`.
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

fn certified(
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

/// A certificate and its key in PEM, for this machine and for `address`.
fn self_signed(address: Option<IpAddr>) -> Result<(Vec<u8>, Vec<u8>), String> {
    let told = |error: rcgen::Error| format!("self-signed certificate: {error}");
    let mut names = vec!["localhost".to_string(), "127.0.0.1".to_string()];
    names.extend(address.map(|address| address.to_string()).filter(|a| *a != names[1]));
    let mut params = rcgen::CertificateParams::new(names).map_err(told)?;
    params.distinguished_name.push(rcgen::DnType::CommonName, "localhost");
    params.key_usages =
        vec![rcgen::KeyUsagePurpose::DigitalSignature, rcgen::KeyUsagePurpose::KeyEncipherment];
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
    let key = rcgen::KeyPair::generate().map_err(told)?;
    let cert = params.self_signed(&key).map_err(told)?;
    Ok((cert.pem().into_bytes(), key.serialize_pem().into_bytes()))
}

/// The files `NAME.crt` and `NAME.key` in a folder; where neither is there they are made, folder
/// and all. Upstream: `MaybeDefaultWithSelfSignedCerts`.
///
/// # Errors
/// One line naming the file.
pub fn pair_in(
    folder: &Path,
    name: &str,
    address: Option<IpAddr>,
) -> Result<(PathBuf, PathBuf), String> {
    let files = (folder.join(format!("{name}.crt")), folder.join(format!("{name}.key")));
    match (files.0.exists(), files.1.exists()) {
        (true, true) => return Ok(files),
        (false, false) => (),
        (true, false) => {
            return Err(format!("{} is there, {} is not", files.0.display(), files.1.display()));
        }
        (false, true) => {
            return Err(format!("{} is there, {} is not", files.1.display(), files.0.display()));
        }
    }
    let (cert, key) = self_signed(address)?;
    let told = |path: &Path| {
        let path = path.display().to_string();
        move |error: std::io::Error| format!("{path}: {error}")
    };
    std::fs::create_dir_all(folder).map_err(told(folder))?;
    // Nobody else reads the key, from its first byte on.
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    options.open(&files.1).and_then(|mut file| file.write_all(&key)).map_err(told(&files.1))?;
    std::fs::write(&files.0, cert).map_err(told(&files.0))?;
    log::info!("Generated self-signed cert ({}, {})", files.0.display(), files.1.display());
    Ok(files)
}

/// The names a certificate is for, in lower case: its alternative names, or its common name.
fn own_names(cert: &CertificateDer<'_>) -> Vec<String> {
    let Ok((_, parsed)) = x509_parser::parse_x509_certificate(cert) else { return Vec::new() };
    let alternative = parsed.subject_alternative_name().ok().flatten();
    let mut names: Vec<String> = alternative
        .iter()
        .flat_map(|names| &names.value.general_names)
        .filter_map(|name| match name {
            x509_parser::extensions::GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
            _ => None,
        })
        .collect();
    if names.is_empty() {
        let common = parsed.subject().iter_common_name();
        names.extend(common.filter_map(|name| Some(name.as_str().ok()?.to_ascii_lowercase())));
    }
    names
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
        assert!(error.is_some_and(|error| error.contains("file: /nowhere/tls.crt: ")));
    }

    /// A folder of this test's own, gone with it.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            Folder(std::env::temp_dir().join(format!("kcm-tls-{name}-{}", std::process::id())))
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_pair_is_made_once_in_its_folder() {
        let folder = Folder::new("pair");
        let files = pair_in(&folder.0, "x", None).expect("a pair");
        let made = std::fs::read(&files.1).expect("a key");
        assert_eq!(pair_in(&folder.0, "x", None), Ok(files.clone()));
        assert_eq!(std::fs::read(&files.1).expect("a key"), made);
        let options = TlsOptions { files: Some(files.clone()), ..TlsOptions::default() };
        assert!(Tls::new(options).is_ok());
        std::fs::remove_file(&files.1).expect("it was there");
        let error = pair_in(&folder.0, "x", None).expect_err("half a pair");
        assert!(error.ends_with("x.key is not"), "{error}");
    }

    #[test]
    fn the_name_that_is_asked_for_chooses_the_certificate() {
        let folder = Folder::new("names");
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
