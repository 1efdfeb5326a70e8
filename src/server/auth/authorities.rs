//! Certificate authorities, and the users in client certificates.
//! Upstream: `apiserver/pkg/authentication/request/x509`.

use std::sync::Arc;
use std::time::Duration;

use rustls::RootCertStore;
use rustls::pki_types::UnixTime;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use sha2::{Digest, Sha256};
use x509_cert::der::asn1::ObjectIdentifier;

use super::User;
use crate::client::pem;
use crate::client::x509::Certificate;
use crate::objects::Timestamp;
use crate::server::http::Chain;
use crate::task;

/// The attribute of a subject that holds the user's UID. Upstream: `asn1.X509UID`.
const UID: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.4.1.57683.2");
/// Upstream: `user.CredentialIDKey`.
const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

/// Authorities of client certificates. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Authorities(Arc<dyn ClientCertVerifier>);

impl Authorities {
    /// Reads the authorities from certificates in PEM.
    ///
    /// # Errors
    /// When `pem` holds no certificate, or a certificate that cannot be parsed.
    pub fn from_pem(pem: &[u8]) -> Result<Authorities, String> {
        let mut roots = RootCertStore::empty();
        for certificate in pem::certificates(pem) {
            roots.add(certificate).map_err(|error| error.to_string())?;
        }
        if roots.is_empty() {
            return Err("no certificate in it".to_owned());
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .map(Authorities)
            .map_err(|error| error.to_string())
    }

    /// Reads the certificates of a file.
    ///
    /// # Errors
    /// When it cannot be read, and as [`Authorities::from_pem`].
    pub async fn from_file(file: &str) -> Result<Authorities, String> {
        let path = file.to_owned();
        let pem = task::blocking(move || std::fs::read(path)).await;
        let read = pem.map_err(|error| error.to_string());
        read.and_then(|pem| Authorities::from_pem(&pem)).map_err(|error| format!("{file}: {error}"))
    }

    /// Verifies `chain`, and returns the user that its first certificate names. As in Go, the last
    /// common name counts; the name is empty when the subject has none.
    ///
    /// # Errors
    /// Why the chain does not lead to one of these authorities, for the log.
    pub fn user(&self, chain: &Chain, now: Timestamp) -> Result<User, String> {
        let now = Duration::from_micros(now.as_micros().max(0) as u64);
        let (leaf, intermediates) = chain.split_first().ok_or("no certificate")?;
        self.0
            .verify_client_cert(leaf, intermediates, UnixTime::since_unix_epoch(now))
            .map_err(|error| error.to_string())?;
        let parsed = Certificate::from_der(leaf)?;
        let fingerprint = Sha256::digest(leaf);
        Ok(User {
            name: parsed.common_names().last().unwrap_or_default(),
            uid: uid(&parsed.attributes(UID).collect::<Vec<_>>())?,
            groups: parsed.organizations().collect(),
            extra: vec![(CREDENTIAL_ID.into(), vec![format!("X509SHA256={fingerprint:x}")])],
        })
    }
}

/// Returns the UID of a subject, empty if it has none. Upstream: `parseUIDFromCert`.
fn uid(uids: &[Option<String>]) -> Result<String, String> {
    match uids {
        [] => Ok(String::new()),
        [Some(uid)] if uid.is_empty() => Err("UID cannot be an empty string".into()),
        [Some(uid)] => Ok(uid.clone()),
        [None] => Err("unable to parse UID into a string".into()),
        _ => Err(format!("expected 1 UID, but found multiple: {uids:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{NOW, authority};
    use super::*;

    #[test]
    fn authorities_are_the_certificates_of_a_pem_file() {
        let good = authority().pem();
        let block = |content| {
            format!("-----BEGIN CERTIFICATE-----\n{content}\n-----END CERTIFICATE-----\n")
        };
        for (text, is_fine) in [
            (good.clone(), true),
            (block("!!!") + &good, true),
            (block("") + &good, false),
            (block("MIIB") + &good, false),
            (block("!!!"), false),
            (String::new(), false),
        ] {
            assert_eq!(Authorities::from_pem(text.as_bytes()).is_ok(), is_fine, "{text}");
        }
    }

    #[test]
    fn certificate_has_at_most_one_uid() {
        let some = |uid: &str| Some(uid.to_owned());
        assert_eq!(uid(&[]), Ok(String::new()));
        assert_eq!(uid(&[some("7")]), Ok("7".into()));
        for faulty in [&[None][..], &[some("")], &[some("7"), some("8")]] {
            assert!(uid(faulty).is_err(), "{faulty:?}");
        }
    }

    #[test]
    fn last_common_name_is_the_user() {
        let authority = authority();
        for (names, expected) in [(&["one"][..], "one"), (&["one", "two"], "two"), (&[], "")] {
            let user = authority.authorities().user(&authority.sign_names(names, "dev"), NOW);
            let user = user.expect("a user");
            let [(key, values)] = &user.extra[..] else { panic!("{:?}", user.extra) };
            assert_eq!(key, "authentication.kubernetes.io/credential-id");
            assert_eq!(values[0].len(), "X509SHA256=".len() + 64);
            assert_eq!((user.name.as_str(), user.groups), (expected, vec!["dev".to_owned()]));
        }
    }
}
