//! The way from a bootstrap credential to a kubeconfig with a client certificate of its own.
//! Upstream: `pkg/kubelet/certificate/bootstrap`.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use futures_lite::FutureExt;
use kube_controller_manager::client::x509::Certificate;
use kube_controller_manager::client::{Call, Client, Config, Credentials, Pem, Tls, pem};
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::objects::Timestamp;
use ring::digest::{Context, SHA512_256};
use serde_json::json;

use super::csr::{self, CLIENT_SIGNER, ENCIPHERMENT, SIGNATURE};
use super::key::{PrivateKey, Template};
use super::store::{Pair, Store, replace_file};
use super::{CLIENT_AUTH, CLIENT_STORE, Error};
use crate::causes::chain;

/// Holds the key until its certificate is issued. Upstream: `tmpPrivateKeyFile`.
const KEY_FILE: &str = "kubelet-client.key.tmp";
/// How long the API server is waited for before the first request, and between two tries.
const SERVER_TIMEOUT: Duration = Duration::from_secs(60);
const SERVER_PERIOD: Duration = Duration::from_secs(2);
/// How long one try may take.
const TRY_TIMEOUT: Duration = Duration::from_secs(1);
/// How long the certificate is waited for.
const ISSUE_TIMEOUT: Duration = Duration::from_secs(3600);

/// The places of the kubelet's identity.
#[derive(Clone, Debug)]
pub struct Places {
    /// `--kubeconfig`; it may be absent where there is a bootstrap kubeconfig.
    pub kubeconfig: PathBuf,
    /// `--bootstrap-kubeconfig`.
    pub bootstrap: Option<PathBuf>,
    /// `--cert-dir`.
    pub folder: PathBuf,
}

/// The configurations of a kubelet that renews its certificate. Upstream: `LoadClientConfig`.
pub struct Configs {
    /// Asks for a certificate as long as there is no valid one.
    pub bootstrap: Config,
    /// The kubelet's own.
    pub client: Config,
    /// Whether the first is not the second.
    pub is_bootstrapping: bool,
}

impl Places {
    /// Loads the client's configuration, and the one with which certificates are requested. Without
    /// a usable kubeconfig, writes one for the certificate to come; the bootstrap credential is
    /// used until then.
    pub(super) fn configs(&self, clock: &SharedClock) -> Result<Configs, Error> {
        let load = |path: &Path, which| {
            Config::from_kubeconfig(path, None, None)
                .map_err(|source| Error::Kubeconfig { which, source })
        };
        let bootstrap = match &self.bootstrap {
            Some(bootstrap) if !self.is_valid(clock)? => bootstrap,
            _ => {
                log::info!("No bootstrapping is needed, the kubeconfig is used");
                let client = load(&self.kubeconfig, "kubeconfig")?;
                return Ok(Configs { bootstrap: client.clone(), client, is_bootstrapping: false });
            }
        };
        let bootstrap = load(bootstrap, "bootstrap kubeconfig")?;
        let store = Store::open(CLIENT_STORE, &self.folder, None)?;
        let link = store.current_path();
        self.write_kubeconfig(&bootstrap, &link)?;
        log::info!("The bootstrap credential is used to ask for a certificate");
        let pem = Some(Pem::File(link));
        let tls = Tls { certificate: pem.clone(), key: pem, ..bootstrap.tls.clone() };
        let (credentials, impersonation) = (Credentials::None, None);
        let client = Config { tls, credentials, impersonation, ..bootstrap.clone() };
        Ok(Configs { bootstrap, client, is_bootstrapping: true })
    }

    /// Returns whether the kubeconfig is there and can be used, with a client certificate that is
    /// not expired. Upstream: `isClientConfigStillValid`.
    ///
    /// # Errors
    /// When the file is there but cannot be accessed.
    fn is_valid(&self, clock: &SharedClock) -> Result<bool, Error> {
        let path = &self.kubeconfig;
        match fs::metadata(path) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(Error::file(path)(error)),
        }
        let fault = check_usable(path, clock).err();
        if let Some(fault) = &fault {
            log::error!("the kubeconfig {} cannot be used: {fault}", path.display());
        }
        Ok(fault.is_none())
    }

    /// Writes a kubeconfig for the bootstrap's cluster, with the certificate at `link`. Upstream:
    /// `writeKubeconfigFromBootstrapping`, which drops the name of the server and the proxy.
    fn write_kubeconfig(&self, bootstrap: &Config, link: &Path) -> Result<(), Error> {
        let mut cluster = json!({ "server": bootstrap.host });
        match &bootstrap.tls.ca {
            Some(Pem::File(path)) => {
                let path = std::path::absolute(path).map_err(Error::file(path))?;
                cluster["certificate-authority"] = path.display().to_string().into();
            }
            Some(Pem::Inline(text)) => {
                cluster["certificate-authority-data"] = STANDARD.encode(text).into();
            }
            None => {}
        }
        if bootstrap.tls.insecure {
            cluster["insecure-skip-tls-verify"] = true.into();
        }
        if let Some(name) = &bootstrap.tls.server_name {
            cluster["tls-server-name"] = name.as_str().into();
        }
        if let Some(proxy) = &bootstrap.proxy {
            cluster["proxy-url"] = proxy.as_str().into();
        }
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "default-context",
            "clusters": [{ "name": "default-cluster", "cluster": cluster }],
            "contexts": [{ "name": "default-context", "context": {
                "cluster": "default-cluster", "namespace": "default", "user": "default-auth",
            } }],
            "users": [{ "name": "default-auth", "user": {
                "client-certificate": link, "client-key": link,
            } }],
        });
        // JSON is YAML, but people read this file.
        let text = serde_yaml_ng::to_string(&kubeconfig).unwrap_or_else(|_| kubeconfig.to_string());
        let file = target(&self.kubeconfig);
        if let Some(folder) = file.parent() {
            fs::create_dir_all(folder).map_err(Error::file(folder))?;
        }
        replace_file(&file, text.as_bytes(), 0o600)
    }

    /// Gets a client certificate by the bootstrap credential and writes the kubeconfig for it. Does
    /// nothing without a bootstrap kubeconfig, or with a kubeconfig that can be used. For a kubelet
    /// that does not renew it. May be dropped at any time: the next call continues with the same
    /// key and request. Upstream: `LoadClientCert`.
    pub async fn bootstrap(&self, node: &str, clock: &SharedClock) -> Result<(), Error> {
        let Some(bootstrap) = &self.bootstrap else { return Ok(()) };
        if self.is_valid(clock)? {
            log::info!("The kubeconfig exists and is valid, skipping bootstrap");
            return Ok(());
        }
        let which = "bootstrap kubeconfig";
        let fault = |source| Error::Kubeconfig { which, source };
        let config = Config::from_kubeconfig(bootstrap, None, None).map_err(fault)?;
        let client = Client::new(config.clone(), clock.clone()).map_err(fault)?;
        let store = Store::open(CLIENT_STORE, &self.folder, None)?;
        let key_file = self.folder.join(KEY_FILE);
        // The key of a stored certificate is used again, as upstream.
        let key = match store.current() {
            Ok(Some(pair)) => PrivateKey::from_pem(&pair.key, "the store").ok(),
            _ => None,
        };
        let key = match key {
            Some(key) => key,
            None => self.unsigned_key(&key_file)?,
        };
        if let Err(fault) = wait_for_server(&config, clock).await {
            log::warn!("Error waiting for apiserver to come up: {fault}");
        }
        let template = Template::of_node(node);
        // In upstream's order, on which the request's name depends.
        let of_rsa = [SIGNATURE, CLIENT_AUTH, ENCIPHERMENT];
        let usages = if key.is_rsa() { &of_rsa[..] } else { &of_rsa[..2] };
        let name = request_name(&key, &template, usages);
        let (now, signer) = (clock.now(), CLIENT_SIGNER);
        let submitted =
            csr::submit(&client, &template, &key, Some(&name), signer, usages, now).await?;
        log::info!("Waiting for client certificate to be issued");
        let late = async {
            clock.sleep(ISSUE_TIMEOUT).await;
            Err(Error::TimedOut)
        };
        let issued = csr::wait(&client, &submitted, clock).or(late).await?;
        let pair = Pair::from_pem(&issued, &key.pem, "the certificate that was issued")?;
        store.update(&pair, clock.now())?;
        match fs::remove_file(&key_file) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                log::warn!("Failed cleaning up private key file {}: {error}", key_file.display());
            }
            _ => {}
        }
        self.write_kubeconfig(&config, &store.current_path())
    }

    /// Loads the key of an earlier run whose certificate was not issued, or makes a new one.
    /// Upstream: `LoadOrGenerateKeyFile`, which fails when a crash has left a part of the file.
    fn unsigned_key(&self, file: &Path) -> Result<PrivateKey, Error> {
        match fs::read(file) {
            Ok(text) => match PrivateKey::from_pem(&text, &file.display().to_string()) {
                Ok(key) => return Ok(key),
                Err(error) => log::warn!("{error}: it is replaced"),
            },
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(Error::file(file)(error)),
        }
        fs::create_dir_all(&self.folder).map_err(Error::file(&self.folder))?;
        let key = PrivateKey::generate()?;
        replace_file(file, &key.pem, 0o600)?;
        Ok(key)
    }
}

/// Returns the file that a path names: a symbolic link to it stays when the file is replaced. A
/// link to no file is followed once.
fn target(path: &Path) -> PathBuf {
    let linked = || {
        let link = fs::read_link(path).ok()?;
        Some(path.parent()?.join(link))
    };
    fs::canonicalize(path).ok().or_else(linked).unwrap_or_else(|| path.to_owned())
}

/// Checks that a kubeconfig can be used, with a certificate that is not expired. `Err`: why not.
fn check_usable(path: &Path, clock: &SharedClock) -> Result<(), String> {
    let config = Config::from_kubeconfig(path, None, None).map_err(|error| error.to_string())?;
    // Reads all of its files.
    Client::new(config.clone(), clock.clone()).map_err(|error| error.to_string())?;
    let certificate = config.tls.certificate.as_ref().ok_or("no client certificate")?;
    let text = certificate.read().map_err(|error| error.to_string())?;
    check_expiration(&text, clock.now())
}

/// Checks that no certificate of a chain is expired.
fn check_expiration(chain: &[u8], now: Timestamp) -> Result<(), String> {
    for der in pem::certificates(chain) {
        let end = Certificate::from_der(&der)?.not_after();
        if now > end {
            return Err(format!(
                "part of the existing bootstrap client certificate is expired: {end}"
            ));
        }
    }
    Ok(())
}

/// Computes the name of the request for a certificate: the same for the same key, subject and
/// usages, also of upstream's kubelet. Upstream: `digestedName`.
fn request_name(key: &PrivateKey, template: &Template, usages: &[&str]) -> String {
    let mut context = Context::new(&SHA512_256);
    let parts = [&key.public_key[..], template.common_name.as_bytes()];
    let parts = parts.into_iter().chain([template.organization.as_bytes()]);
    for part in parts.chain(usages.iter().map(|usage| usage.as_bytes())) {
        context.update(URL_SAFE_NO_PAD.encode(part).as_bytes());
        context.update(b"|");
    }
    format!("node-csr-{}", URL_SAFE_NO_PAD.encode(context.finish()))
}

/// Waits until the API server answers. `Err`: the last failure, after the timeout, or why no client
/// can be made.
async fn wait_for_server(config: &Config, clock: &SharedClock) -> Result<(), String> {
    let config = Config { timeout: TRY_TIMEOUT, ..config.clone() };
    let client = Client::new(config, clock.clone()).map_err(|error| error.to_string())?;
    let end = clock.monotonic() + SERVER_TIMEOUT;
    loop {
        match client.send(&Call::new("GET", "/healthz")).await {
            Ok(_) => return Ok(()),
            Err(error) if clock.monotonic() >= end => return Err(error.to_string()),
            Err(error) => log::info!("Failed to connect to apiserver: {}", chain(&error)),
        }
        clock.sleep(SERVER_PERIOD.mul_f64(1.0 + 0.2 * fastrand::f64())).await;
    }
}

#[cfg(test)]
mod tests {
    use kube_controller_manager::clock::FakeClock;

    use super::super::testing::{Folder, authority};
    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);
    const DAY: Duration = Duration::from_secs(86_400);

    fn clock() -> SharedClock {
        FakeClock::new(NOW)
    }

    fn places(folder: &Folder) -> Places {
        Places {
            kubeconfig: folder.path().join("kubelet.conf"),
            bootstrap: Some(folder.path().join("bootstrap.conf")),
            folder: folder.path().join("pki"),
        }
    }

    fn kubeconfig(cluster: &str, user: &str) -> String {
        format!(
            "current-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
             clusters: [{{name: k, cluster: {{server: 'https://127.0.0.1:6443', {cluster}}}}}]\n\
             users: [{{name: u, user: {{{user}}}}}]\n"
        )
    }

    #[test]
    fn name_of_a_request_is_upstreams() {
        // Computed from the public keys by openssl and Python.
        for (pem, usages, expected) in [
            (
                include_bytes!("../../../fixtures/certificates/ca-p256.key").as_slice(),
                &["digital signature", "client auth"][..],
                "node-csr-qnZJRuO1OPUud7iO1_vUv83DZJc7cARpuGM37hrbZfg",
            ),
            (
                include_bytes!("../../../fixtures/certificates/ca-rsa2048.key").as_slice(),
                &["digital signature", "client auth", "key encipherment"],
                "node-csr-QqYmdyxNTYVDpL25QBQoiTprkLMyPeutNCsocqbn8ik",
            ),
        ] {
            let key = PrivateKey::from_pem(pem, "a fixture").expect("a key");
            assert_eq!(request_name(&key, &Template::of_node("n1"), usages), expected);
        }
    }

    #[test]
    fn bootstrap_is_needed_without_a_valid_certificate() {
        let folder = Folder::new("bootstrap-valid");
        let places = places(&folder);
        let write = |text: &str| fs::write(&places.kubeconfig, text).expect("written");
        let is_valid = || places.is_valid(&clock()).expect("accessible");
        assert!(!is_valid(), "there is no file");
        let pem = folder.path().join("client.pem");
        let user = "client-certificate: client.pem, client-key: client.pem";
        for (text, why) in [
            (String::new(), "it is empty"),
            (kubeconfig("", "token: t"), "it has no certificate"),
            (kubeconfig("", user), "its files are absent"),
        ] {
            write(&text);
            assert!(!is_valid(), "{why}");
        }
        for (from, days, valid) in [(NOW, 1, true), (NOW - 2 * DAY, 1, false)] {
            let pair = authority().sign("n1", from, days * DAY);
            let text = [&pair.certificate[..], &pair.key].concat();
            fs::write(&pem, text).expect("written");
            assert_eq!(is_valid(), valid);
        }
        let (one, other) = (authority().sign("n1", NOW, DAY), authority().sign("n1", NOW, DAY));
        fs::write(&pem, [&one.certificate[..], &other.key].concat()).expect("written");
        assert!(!is_valid(), "it is of another key");
        fs::write(&pem, "-----BEGIN CERT").expect("written");
        assert!(!is_valid(), "it is cut off");
    }

    #[test]
    fn kubeconfig_is_written_for_the_certificate_to_come() {
        let folder = Folder::new("bootstrap-config");
        let places = places(&folder);
        let ca = STANDARD.encode(&authority().certificate);
        for (cluster, expected) in [
            (format!("certificate-authority-data: {ca}"), true),
            ("insecure-skip-tls-verify: true, proxy-url: 'http://proxy:1'".to_owned(), false),
        ] {
            let bootstrap = kubeconfig(&cluster, "token: abcdef.0123456789abcdef");
            fs::write(places.bootstrap.as_ref().expect("a path"), bootstrap).expect("written");
            let configs = places.configs(&clock()).expect("configurations");
            assert!(configs.is_bootstrapping);
            let link = folder.path().join("pki/kubelet-client-current.pem");
            let written = Config::from_kubeconfig(&places.kubeconfig, None, None);
            let written = written.expect("a kubeconfig");
            for config in [&configs.client, &written] {
                assert_eq!(config.tls.certificate, Some(Pem::File(link.clone())));
                assert_eq!(config.tls.key, Some(Pem::File(link.clone())));
                assert!(config.credentials == Credentials::None, "no token in it");
                assert_eq!(config.host, "https://127.0.0.1:6443");
                assert_eq!(config.tls.ca.is_some(), expected);
                assert_eq!(config.tls.insecure, !expected);
                assert_eq!(config.proxy.is_some(), !expected);
            }
            let token = Credentials::Token("abcdef.0123456789abcdef".to_owned());
            assert!(configs.bootstrap.credentials == token);
        }
        let places = Places { bootstrap: None, ..places };
        let configs = places.configs(&clock()).expect("the kubeconfig alone");
        assert!(!configs.is_bootstrapping);
        fs::remove_file(&places.kubeconfig).expect("it was there");
        let error = places.configs(&clock()).err().expect("no kubeconfig");
        assert_eq!(error.to_string(), "unable to load kubeconfig");
    }

    #[test]
    fn kubeconfig_may_be_a_symbolic_link() {
        let folder = Folder::new("bootstrap-link");
        let places = places(&folder);
        let bootstrap = kubeconfig("insecure-skip-tls-verify: true", "token: t");
        fs::write(places.bootstrap.as_ref().expect("a path"), bootstrap).expect("written");
        std::os::unix::fs::symlink("etc/real.conf", &places.kubeconfig).expect("a link");
        let real = folder.path().join("etc/real.conf");
        // At first the link names no file.
        for _ in 0..2 {
            places.configs(&clock()).expect("configurations");
            assert!(places.kubeconfig.is_symlink());
            let text = fs::read_to_string(&real).expect("the file");
            assert!(text.contains("default-cluster"), "{text}");
            fs::write(&real, "").expect("written");
        }
    }

    #[test]
    fn key_of_an_unsigned_request_is_used_again() {
        let folder = Folder::new("bootstrap-key");
        let places = places(&folder);
        let file = places.folder.join(KEY_FILE);
        let key = || places.unsigned_key(&file).expect("a key").public_key;
        let first = key();
        assert_eq!(key(), first);
        fs::write(&file, "-----BEGIN PRIV").expect("written");
        let second = key();
        assert_ne!(second, first);
        assert_eq!(key(), second);
    }
}
