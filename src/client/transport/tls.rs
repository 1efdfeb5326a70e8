//! The client's half of TLS.

use parking_lot::Mutex;
use std::sync::Arc;

use futures_lite::future::{Boxed, pending};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, RootCertStore};

use super::rotation::Rotations;
use super::trust::Trust;
use crate::client::config::{Pem, Tls};
use crate::client::credentials::{Pair, Plugin};
use crate::client::x509::Certificate;
use crate::client::{Error, Result, pem};
use crate::files::{Stamp, stamp};

/// The sources of a configuration: the content of its files, and the certificate that the plugin
/// issued or the process has renewed.
type Sources = ([Stamp; 3], Option<Pair>);

/// Makes rustls's configuration, and makes it again when one of its files, the plugin's or the
/// renewed certificate has changed. Until then every caller gets the same `Arc`: a connection that
/// holds another one is out of date.
pub(super) struct TlsSource {
    tls: Tls,
    plugin: Option<Arc<Plugin>>,
    current: Mutex<Option<Current>>,
    rotations: Arc<Rotations>,
}

/// The configuration that was made last.
struct Current {
    made_from: Sources,
    /// The client certificate in it.
    pair: Option<Pair>,
    config: Arc<ClientConfig>,
}

/// The current configuration for new connections.
pub(super) struct Identity {
    pub config: Arc<ClientConfig>,
    /// How often the client certificate had been replaced.
    pub rotations: u64,
}

impl TlsSource {
    /// Makes the source, and a configuration to find the faults in its files. `plugin`: its
    /// certificate has precedence over that of `tls`.
    ///
    /// # Errors
    /// When a certificate or key cannot be read or used.
    pub fn new(tls: Tls, plugin: Option<Arc<Plugin>>) -> Result<TlsSource> {
        let (current, rotations) = (Mutex::default(), Arc::default());
        let source = TlsSource { tls, plugin, current, rotations };
        source.identity_with(None)?;
        Ok(source)
    }

    pub fn server_name(&self) -> Option<&str> {
        self.tls.server_name.as_deref()
    }

    /// Returns whether the client certificate may be replaced while the process runs.
    pub fn may_rotate(&self) -> bool {
        self.plugin.is_some() || self.may_be_replaced()
    }

    /// Returns whether the client certificate may be replaced without a request that asks for it:
    /// it is in files, or this process renews it.
    pub fn may_be_replaced(&self) -> bool {
        let is_file = |pem: &Option<Pem>| matches!(pem, Some(Pem::File(_)));
        is_file(&self.tls.certificate) || is_file(&self.tls.key) || self.tls.renewed.is_some()
    }

    /// Returns a future that resolves when this process has renewed the certificate after this
    /// call.
    pub fn renewal(&self) -> Boxed<()> {
        match &self.tls.renewed {
            Some(renewed) => Box::pin(renewed.listen()),
            None => Box::pin(pending()),
        }
    }

    pub fn rotations(&self) -> &Arc<Rotations> {
        &self.rotations
    }

    /// Returns the TLS configuration for a new connection, with the present certificate.
    pub async fn identity(&self) -> Result<Identity> {
        let pair = match (&self.plugin, &self.tls.renewed) {
            (Some(plugin), _) => plugin.credentials().await?.pair.clone(),
            (None, Some(renewed)) => renewed.pair(),
            (None, None) => None,
        };
        self.identity_with(pair)
    }

    /// Returns the TLS configuration for a new connection, and builds it again when its files or
    /// `pair` have changed. Without a `pair`, changed files that cannot be used leave the former
    /// configuration in use. `pair`: the certificate of a plugin, or a renewed one.
    fn identity_with(&self, pair: Option<Pair>) -> Result<Identity> {
        let stamps = [&self.tls.ca, &self.tls.certificate, &self.tls.key].map(|pem| match pem {
            Some(Pem::File(path)) => stamp(path),
            _ => None,
        });
        let sources = (stamps, pair);
        let mut current = self.current.lock();
        let identity_of = |config: &Arc<ClientConfig>| Identity {
            config: config.clone(),
            rotations: self.rotations.count(),
        };
        if let Some(Current { made_from, config, .. }) = current.as_ref()
            && *made_from == sources
        {
            return Ok(identity_of(config));
        }
        let (config, pair) = match (self.make_config(sources.1.as_ref()), current.take()) {
            (Ok((config, pair)), before) => {
                if before.is_some_and(|before| before.pair.is_some() && before.pair != pair) {
                    log::info!("the client certificate has changed: watches are restarted");
                    self.rotations.increment();
                }
                (Arc::new(config), pair)
            }
            // Files that are being replaced: the former content is used until they change again.
            (Err(error), Some(before)) if sources.1.is_none() => {
                log::warn!("TLS files have changed but cannot be used yet: {error}");
                (before.config, before.pair)
            }
            (Err(error), before) => {
                *current = before;
                return Err(error);
            }
        };
        let identity = identity_of(&config);
        *current = Some(Current { made_from: sources, pair, config });
        Ok(identity)
    }

    /// Builds the TLS configuration, and returns it with the client certificate in it.
    fn make_config(&self, issued: Option<&Pair>) -> Result<(ClientConfig, Option<Pair>)> {
        let fault =
            |what: &str, error: &dyn std::fmt::Display| Error::Config(format!("{what}: {error}"));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| fault("TLS", &error))?;
        let trust = match self.tls.insecure {
            true => Trust::every(&provider),
            false => Trust::of(self.authorities()?, &provider),
        };
        let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(trust));
        let pair = match (issued, &self.tls.certificate, &self.tls.key) {
            (Some(issued), ..) => Some(issued.clone()),
            (None, Some(certificate), Some(key)) => {
                let read = |what: &str, pem: &Pem| pem.read().map_err(|e| fault(what, &e));
                Some(Pair {
                    certificate: read("client certificate", certificate)?,
                    key: read("client key", key)?,
                })
            }
            _ => None,
        };
        let mut config = match &pair {
            Some(Pair { certificate, key }) => {
                let chain = pem::certificates(certificate);
                let key = PrivateKeyDer::from_pem_slice(key)
                    .map_err(|error| fault("client key", &error))?;
                let resolver = certified(chain, key, &provider)
                    .map_err(|error| fault("client certificate and key", &error))?;
                builder.with_client_cert_resolver(Arc::new(resolver))
            }
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok((config, pair))
    }

    /// Reads the certificates of the authorities that the server's must be signed by. One that
    /// cannot be used is skipped. If none remains, that is an error only for a configured file.
    fn authorities(&self) -> Result<Vec<CertificateDer<'static>>> {
        let fault =
            |what: &dyn std::fmt::Display| Error::Config(format!("certificate authority: {what}"));
        let bytes = match &self.tls.ca {
            Some(ca) => ca.read().map_err(|error| fault(&error))?,
            None => system_roots(),
        };
        let mut found = pem::certificates(&bytes);
        found.retain(|found| match RootCertStore::empty().add(found.clone()) {
            Ok(()) => true,
            Err(error) => {
                log::warn!("{}", fault(&format_args!("skipped one: {error}")));
                false
            }
        });
        if found.is_empty() && self.tls.ca.is_some() {
            return Err(fault(&"no certificate in it"));
        }
        Ok(found)
    }
}

/// Joins a client certificate with its key, and checks that they belong together. Certificates of
/// version 1 are accepted too, which rustls itself does not read: `openssl x509 -req` makes them
/// when no extensions are asked for. `Err`: why the two cannot be used.
fn certified(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    provider: &CryptoProvider,
) -> std::result::Result<SingleCertAndKey, String> {
    let leaf = chain.first().ok_or("no certificate")?;
    let parsed = Certificate::from_der(leaf)?;
    let key = provider.key_provider.load_private_key(key).map_err(|e| e.to_string())?;
    if key.public_key().is_some_and(|public| public.as_ref() != parsed.public_key()) {
        return Err("the key is not that of the certificate".to_owned());
    }
    Ok(CertifiedKey::new(chain, key).into())
}

/// Reads the bundle of authorities in one of the usual places; empty if none has one.
fn system_roots() -> Vec<u8> {
    let named = std::env::var("SSL_CERT_FILE").ok();
    let usual = [
        "/etc/ssl/certs/ca-certificates.crt",
        "/etc/pki/tls/certs/ca-bundle.crt",
        "/etc/ssl/cert.pem",
    ];
    let places = named.as_deref().into_iter().chain(usual);
    places.map(std::fs::read).find_map(std::io::Result::ok).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use futures_lite::future::{block_on, poll_once};

    use super::*;
    use crate::client::RenewedCertificate;

    /// Made by `openssl x509 -req -signkey`: of version 1, and self-signed.
    const OLD: &str = "\
-----BEGIN CERTIFICATE-----
MIIBFjCBvQIUbzZlPiJrD/mwDRxIqWxjynfC3UgwCgYIKoZIzj0EAwIwDjEMMAoG
A1UEAwwDb2xkMB4XDTI2MTEyMTE1NTQ0MloXDTM2MTExODE1NTQ0MlowDjEMMAoG
A1UEAwwDb2xkMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEBWfpLqJts/Adp33J
Lc7w8VIdLpp41JUV+qn/g8a3GfQiOE9DZlnYKBdNldGeZKjvGGg/TpvEEgxzDhGm
xk/I+zAKBggqhkjOPQQDAgNIADBFAiEAmAmA9Nle6V35az3giEv+3bqvIlCO1+RU
t0EX/WkfbEACIEa6ERQ8S7r8YDLBOvpWwSSIFm60DmQkf4Zl94vp/DWi
-----END CERTIFICATE-----
";
    const OLD_KEY: &str = "\
-----BEGIN EC PRIVATE KEY-----
MHcCAQEEIJKBco85mIU7s9AzjRq3kBW2ouQrFZDsYf1SDq7a7gANoAoGCCqGSM49
AwEHoUQDQgAEBWfpLqJts/Adp33JLc7w8VIdLpp41JUV+qn/g8a3GfQiOE9DZlnY
KBdNldGeZKjvGGg/TpvEEgxzDhGmxk/I+w==
-----END EC PRIVATE KEY-----
";

    fn source(certificate: &str, key: &str) -> std::result::Result<TlsSource, String> {
        let inline = |pem: &str| Some(Pem::Inline(pem.as_bytes().to_vec()));
        let (certificate, key) = (inline(certificate), inline(key));
        let tls = Tls { certificate, key, ..Tls::default() };
        TlsSource::new(tls, None).map_err(|error| error.to_string())
    }

    #[test]
    fn unusable_authorities_are_skipped() {
        let good = rcgen::generate_simple_self_signed(["me".to_owned()]).unwrap().cert;
        let block = |content| {
            format!("-----BEGIN CERTIFICATE-----\n{content}\n-----END CERTIFICATE-----\n")
        };
        let bad = ["", "MIIB", "!!!"].map(block).concat();
        let authorities = |pem: String| {
            let tls = Tls { ca: Some(Pem::Inline(pem.into_bytes())), ..Tls::default() };
            TlsSource::new(tls, None)?.authorities()
        };
        assert_eq!(authorities(format!("{bad}{}{bad}", good.pem())).unwrap(), [good.der().clone()]);
        let error = authorities(bad.clone()).unwrap_err().to_string();
        assert!(error.contains("certificate authority: no certificate in it"), "{error}");
    }

    #[test]
    fn renewed_certificate_is_shown_from_then_on() {
        let renewed = RenewedCertificate::default();
        let tls = Tls { renewed: Some(renewed.clone()), ..Tls::default() };
        let source = TlsSource::new(tls, None).unwrap();
        let identity = || block_on(source.identity()).unwrap();
        let shows_one = |identity: &Identity| identity.config.client_auth_cert_resolver.has_certs();
        assert!(!shows_one(&identity()), "before the first one");
        let mut before = identity();
        for rotations in [0, 1] {
            let mut renewal = source.renewal();
            assert!(block_on(poll_once(&mut renewal)).is_none());
            let pair = rcgen::generate_simple_self_signed(["me".to_owned()]).unwrap();
            let (certificate, key) = (pair.cert.pem(), pair.signing_key.serialize_pem());
            renewed.set(certificate.into_bytes(), key.into_bytes());
            assert!(block_on(poll_once(&mut renewal)).is_some());
            let now = identity();
            assert!(shows_one(&now) && !Arc::ptr_eq(&before.config, &now.config));
            assert_eq!(now.rotations, rotations, "watches end when it replaces another one");
            before = now;
        }
        assert!(Arc::ptr_eq(&before.config, &identity().config), "connections are used again");
    }

    #[test]
    fn a_certificate_of_any_version_needs_its_own_key() {
        let pair = rcgen::generate_simple_self_signed(["me".to_owned()]).unwrap();
        let (new, new_key) = (pair.cert.pem(), pair.signing_key.serialize_pem());
        for (certificate, key) in [(new.as_str(), new_key.as_str()), (OLD, OLD_KEY)] {
            let both = format!("{key}\n{certificate}\n");
            assert!(source(certificate, key).is_ok() && source(&both, &both).is_ok());
        }
        let wrong = "client certificate and key: the key is not that of the certificate";
        for (certificate, key, expected) in [
            (new.as_str(), OLD_KEY, wrong),
            (OLD, new_key.as_str(), wrong),
            ("", OLD_KEY, "client certificate and key: no certificate"),
            (OLD, "", "client key: "),
            (OLD, OLD, "client key: "),
        ] {
            let error = source(certificate, key).err().expect("no pair");
            assert!(error.contains(expected), "{error}");
        }
    }
}
