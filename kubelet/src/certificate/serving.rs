//! The certificate with which the kubelet serves: from files, self-signed, or requested from the
//! API server and renewed. Upstream: `InitializeTLS`, `NewKubeletServerCertificateManager`,
//! `NewKubeletServerCertificateDynamicFileManager`.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_lite::future::pending;
use k8s_openapi::api::core::v1::NodeAddress;
use kube_controller_manager::client::Client;
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::files::{Stamp, stamp};
use kube_controller_manager::objects::Timestamp;
use parking_lot::Mutex;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose, SanType,
};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::csr::SERVING_SIGNER;
use super::key::{PrivateKey, Template};
use super::manager::{Initial, Manager, Purpose, Wanted};
use super::store::{Pair, Store, replace_file};
use super::{Error, SERVER_AUTH, SERVING_STORE};
use crate::causes::chain;
use crate::metrics::CertificateMetrics;

/// The life of a self-signed certificate, which begins an hour earlier for clients whose clock is
/// late. Upstream: `GenerateSelfSignedCertKeyWithOptions`.
const SELF_SIGNED_LIFE: Duration = Duration::from_secs(365 * 86_400);
const EARLIER: Duration = Duration::from_secs(3600);

/// Which certificate is served.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// `tlsCertFile` and `tlsPrivateKeyFile`; empty: none.
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// `serverTLSBootstrap`: it is requested from the API server.
    pub is_requested: bool,
    /// `--cert-dir`.
    pub folder: PathBuf,
}

/// The served certificate. For rustls it is that of the moment; before the first one handshakes
/// fail. Cheap to clone: all clones are one.
#[derive(Clone, Debug)]
pub struct ServingCertificate(Arc<Source>);

/// Where the served certificate is from.
enum Source {
    Files(Files),
    Requested { manager: Manager, wanted: Wanted, node: String },
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Files(files) => files.fmt(f),
            Source::Requested { node, .. } => {
                f.debug_struct("Requested").field("node", node).finish_non_exhaustive()
            }
        }
    }
}

/// A certificate and its key in files, which are read again when they have changed.
#[derive(Debug)]
struct Files {
    certificate: PathBuf,
    key: PathBuf,
    loaded: Mutex<Loaded>,
}

#[derive(Debug)]
struct Loaded {
    stamps: [Stamp; 2],
    pair: Arc<CertifiedKey>,
}

impl ServingCertificate {
    /// Loads the certificate from the given files, or prepares to request one. Without files and
    /// without a request to the API server, the certificate is `FOLDER/kubelet.crt` with its key,
    /// self-signed for the node's name where they do not exist. Reads and writes files.
    pub fn new(
        options: &Options,
        node: &str,
        clock: &SharedClock,
    ) -> Result<ServingCertificate, Error> {
        let Options { certificate, key, is_requested, folder } = options;
        let is_given = |path: &PathBuf| !path.as_os_str().is_empty();
        let source = match (is_requested, is_given(certificate), is_given(key)) {
            (true, has_certificate, has_key) => {
                let files =
                    (has_certificate && has_key).then(|| (certificate.clone(), key.clone()));
                open_requested(folder, files, node, clock)?
            }
            (false, false, false) => {
                let (certificate, key) = self_signed_files(folder, node, clock.now())?;
                Source::Files(Files::load(certificate, key)?)
            }
            (false, true, true) => Source::Files(Files::load(certificate.clone(), key.clone())?),
            (false, true, false) => return Err(Error::HalfPair("tlsPrivateKeyFile".into())),
            (false, false, true) => return Err(Error::HalfPair("tlsCertFile".into())),
        };
        Ok(ServingCertificate(Arc::new(source)))
    }

    /// Sets the addresses of the node's status, for which a certificate is requested. When they
    /// change, another one is requested; without an IP address among them, none is. Does nothing
    /// for a certificate from files. Upstream: `newGetTemplateFn`.
    pub fn set_addresses(&self, addresses: &[NodeAddress]) {
        if let Source::Requested { wanted, node, .. } = &*self.0 {
            wanted.set(template(node, addresses));
        }
    }

    /// Returns the certificate of the moment; `None`: none was issued yet, or it has expired.
    pub fn current(&self) -> Option<Arc<CertifiedKey>> {
        match &*self.0 {
            Source::Files(files) => Some(files.current()),
            Source::Requested { manager, .. } => Some(manager.current()?.certified.clone()),
        }
    }

    /// Requests the certificate and renews it, for ever. From files there is nothing to do. May be
    /// dropped at any time.
    pub async fn run(&self, client: Client) {
        match &*self.0 {
            Source::Files(_) => pending().await,
            Source::Requested { manager, .. } => {
                manager.run(Box::new(move |_| Ok(client.clone()))).await;
            }
        }
    }
}

impl ResolvesServerCert for ServingCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let current = self.current();
        if current.is_none() {
            log::debug!("no serving certificate available for the kubelet");
        }
        current
    }
}

/// Opens the store of a serving certificate that the API server signs; a stored one is used unless
/// it has expired.
fn open_requested(
    folder: &Path,
    files: Option<(PathBuf, PathBuf)>,
    node: &str,
    clock: &SharedClock,
) -> Result<Source, Error> {
    let store = Store::open(SERVING_STORE, folder, files)?;
    let initial = match store.current() {
        Ok(Some(pair)) if !pair.is_expired(clock.now()) => Initial::Stored(pair),
        Ok(_) => Initial::None,
        // Upstream does not start then.
        Err(error) => {
            log::warn!("{}: it is replaced", chain(&error));
            Initial::None
        }
    };
    let metrics = CertificateMetrics::Serving;
    let purpose = Purpose { signer: SERVING_SIGNER, usage: SERVER_AUTH, metrics };
    let wanted = Wanted::default();
    let manager = Manager::new(purpose, store, wanted.clone(), initial, clock.clone());
    Ok(Source::Requested { manager, wanted, node: node.to_owned() })
}

/// Builds the wanted certificate by the node's addresses; `None`: the node has no IP address.
/// Upstream: `addressesToHostnamesAndIPs`.
fn template(node: &str, addresses: &[NodeAddress]) -> Option<Template> {
    let (mut dns, mut ips) = (BTreeSet::new(), BTreeSet::new());
    for NodeAddress { address, type_: kind } in addresses {
        match (kind.as_str(), address.parse::<IpAddr>()) {
            (_, Err(_)) if address.is_empty() => {}
            ("Hostname" | "ExternalIP" | "InternalIP", Ok(ip)) => {
                ips.insert((ip.to_string(), ip));
            }
            ("Hostname", Err(_)) | ("ExternalDNS" | "InternalDNS", _) => {
                dns.insert(address.clone());
            }
            _ => {}
        }
    }
    (!ips.is_empty()).then(|| Template {
        dns_names: dns.into_iter().collect(),
        ips: ips.into_iter().map(|(_, ip)| ip).collect(),
        ..Template::of_node(node)
    })
}

impl Files {
    fn load(certificate: PathBuf, key: PathBuf) -> Result<Files, Error> {
        // Taken before the files are read, so that a change meanwhile is noticed.
        let stamps = [stamp(&certificate), stamp(&key)];
        let pair = Pair::from_files(&certificate, &key)?.certified;
        Ok(Files { certificate, key, loaded: Mutex::new(Loaded { stamps, pair }) })
    }

    /// Reads the certificate of the files again if they have changed, and returns it. While the
    /// files cannot be used, it is the former certificate.
    fn current(&self) -> Arc<CertifiedKey> {
        let mut loaded = self.loaded.lock();
        let stamps = [stamp(&self.certificate), stamp(&self.key)];
        if stamps != loaded.stamps {
            match Pair::from_files(&self.certificate, &self.key) {
                Ok(pair) => *loaded = Loaded { stamps, pair: pair.certified },
                Err(error) => {
                    log::error!("{}", chain(&error));
                    // A file that cannot be read is read again the next time.
                    if !matches!(error, Error::File { .. }) {
                        loaded.stamps = stamps;
                    }
                }
            }
        }
        loaded.pair.clone()
    }
}

/// Makes `kubelet.crt` and `kubelet.key` if they do not exist, and returns their paths. A crash may
/// leave a key without its certificate, which is then made for it; a certificate without its key is
/// an error.
fn self_signed_files(
    folder: &Path,
    host: &str,
    now: Timestamp,
) -> Result<(PathBuf, PathBuf), Error> {
    let (certificate, key) = (folder.join("kubelet.crt"), folder.join("kubelet.key"));
    let exists = |path: &Path| path.try_exists().map_err(Error::file(path));
    let private = match (exists(&certificate)?, exists(&key)?) {
        (true, true) => return Ok((certificate, key)),
        (true, false) => return Err(Error::HalfPair(key)),
        (false, true) => {
            let text = std::fs::read(&key).map_err(Error::file(&key))?;
            PrivateKey::from_pem(&text, &key.display().to_string())?
        }
        (false, false) => {
            std::fs::create_dir_all(folder).map_err(Error::file(folder))?;
            let private = PrivateKey::generate()?;
            replace_file(&key, &private.pem, 0o600)?;
            private
        }
    };
    let text = self_signed(host, &private, now);
    let text = text.map_err(|source| Error::Make { what: "a self-signed certificate", source })?;
    replace_file(&certificate, text.as_bytes(), 0o644)?;
    log::info!("Using self-signed cert {} and {}", certificate.display(), key.display());
    Ok((certificate, key))
}

/// Makes a certificate for `host`, followed by that of the authority that has signed it, in PEM;
/// the authority's key is dropped. Upstream: `GenerateSelfSignedCertKey`, whose keys are RSA.
fn self_signed(host: &str, key: &PrivateKey, now: Timestamp) -> Result<String, rcgen::Error> {
    let seconds = now.as_secs();
    let params = |name: String| {
        let epoch = rcgen::date_time_ymd(1970, 1, 1);
        let begin = (now - EARLIER).duration_since(Timestamp::from_secs(0));
        let begin = Duration::from_secs(begin.as_secs());
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        (params.not_before, params.not_after) = (epoch + begin, epoch + begin + SELF_SIGNED_LIFE);
        params.key_usages =
            vec![KeyUsagePurpose::KeyEncipherment, KeyUsagePurpose::DigitalSignature];
        params
    };
    let mut authority = params(format!("{host}-ca@{seconds}"));
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.key_usages.push(KeyUsagePurpose::KeyCertSign);
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;
    let mut own = params(format!("{host}@{seconds}"));
    own.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    own.subject_alt_names = vec![match host.parse() {
        Ok(ip) => SanType::IpAddress(ip),
        Err(_) => SanType::DnsName(host.try_into()?),
    }];
    let own = own.signed_by(key, &authority)?;
    Ok(own.pem() + &authority.pem())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use kube_controller_manager::client::x509::Certificate;
    use kube_controller_manager::clock::FakeClock;

    use super::super::testing::{Folder, pair};
    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);

    fn serving(options: &Options) -> Result<ServingCertificate, String> {
        let clock: SharedClock = FakeClock::new(NOW);
        ServingCertificate::new(options, "n1", &clock).map_err(|error| chain(&error))
    }

    fn served(serving: &ServingCertificate) -> Option<Vec<u8>> {
        Some(serving.current()?.cert[0].to_vec())
    }

    #[test]
    fn certificate_is_self_signed_where_nothing_is_configured() {
        let folder = Folder::new("serving-self");
        let options = Options { folder: folder.path().join("pki"), ..Options::default() };
        let first = served(&serving(&options).expect("a certificate")).expect("one");
        let read = Certificate::from_der(&first).expect("a certificate");
        assert_eq!(read.common_names().collect::<Vec<_>>(), ["n1@1800000000"]);
        assert_eq!(read.dns_names(), ["n1"]);
        assert_eq!(read.not_before(), NOW - EARLIER);
        assert_eq!(read.not_after(), NOW - EARLIER + SELF_SIGNED_LIFE);
        assert!(read.may_serve());
        let again = serving(&options).expect("a certificate");
        assert_eq!(served(&again), Some(first.clone()), "it stays");
        // A crash may leave the key alone.
        let (certificate, key) =
            (options.folder.join("kubelet.crt"), options.folder.join("kubelet.key"));
        fs::remove_file(&certificate).expect("it was there");
        let second = served(&serving(&options).expect("a certificate")).expect("one");
        assert_ne!(second, first);
        let second = Certificate::from_der(&second).expect("a certificate");
        assert_eq!(second.public_key(), read.public_key());
        fs::remove_file(&key).expect("it was there");
        let error = serving(&options).expect_err("a certificate without its key");
        assert!(error.ends_with("must be supplied as a pair"), "{error}");
    }

    #[test]
    fn self_signed_certificate_of_an_address_names_it() {
        let key = PrivateKey::generate().expect("a key");
        let text = self_signed("10.0.0.7", &key, NOW).expect("a certificate");
        let pair = Pair::from_pem(text.as_bytes(), &key.pem, "memory").expect("a pair");
        assert_eq!(pair.leaf.ip_addresses(), ["10.0.0.7".parse::<IpAddr>().expect("an address")]);
        assert_eq!(pair.certified.cert.len(), 2, "with its authority");
    }

    #[test]
    fn files_are_read_again_when_they_have_changed() {
        let folder = Folder::new("serving-files");
        let (certificate, key) = (folder.path().join("tls.crt"), folder.path().join("tls.key"));
        let (first, second) = (pair("n1"), pair("n1"));
        let write = |path: &Path, text: &[u8]| replace_file(path, text, 0o600).expect("written");
        let options =
            Options { certificate: certificate.clone(), key: key.clone(), ..Options::default() };
        assert!(serving(&options).expect_err("no files").contains("tls.crt"));
        write(&certificate, &first.certificate);
        write(&key, &first.key);
        let files = serving(&options).expect("a certificate");
        let der = |pair: &Pair| Some(pair.certified.cert[0].to_vec());
        assert_eq!(served(&files), der(&first));
        write(&certificate, &second.certificate);
        assert_eq!(served(&files), der(&first), "its key is still to come");
        write(&key, &second.key);
        assert_eq!(served(&files), der(&second));
        fs::remove_file(&key).expect("it was there");
        assert_eq!(served(&files), der(&second));
        let half = Options { key: PathBuf::new(), ..options };
        assert!(serving(&half).expect_err("half").contains("tlsPrivateKeyFile"));
    }

    #[test]
    fn addresses_of_the_node_are_the_names() {
        let address = |kind: &str, address: &str| NodeAddress {
            type_: kind.to_owned(),
            address: address.to_owned(),
        };
        let names = |addresses: &[NodeAddress]| {
            let template = template("n1", addresses)?;
            let ips: Vec<String> = template.ips.iter().map(IpAddr::to_string).collect();
            Some((template.dns_names, ips))
        };
        assert_eq!(names(&[]), None);
        assert_eq!(names(&[address("Hostname", "n1")]), None, "without an IP address");
        let (dns, ips) = names(&[
            address("InternalIP", "fd00::1"),
            address("InternalIP", "10.0.0.7"),
            address("ExternalIP", "10.0.0.7"),
            address("ExternalIP", "nonsense"),
            address("Hostname", "n1"),
            address("Hostname", "10.0.0.8"),
            address("InternalDNS", "b.example"),
            address("ExternalDNS", "a.example"),
            address("ExternalDNS", ""),
            address("Other", "x"),
        ])
        .expect("a template");
        assert_eq!(dns, ["a.example", "b.example", "n1"]);
        assert_eq!(ips, ["10.0.0.7", "10.0.0.8", "fd00::1"]);
    }
}
