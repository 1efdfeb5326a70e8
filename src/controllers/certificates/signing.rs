//! Signs approved certificate requests. Upstream: `pkg/controller/certificates/signer`.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use parking_lot::Mutex;

use super::x509::{Authority, CertificateRequest, Template};
use super::{kubelet, requests};
use crate::cache::Lister;
use crate::client::{Client, pem};
use crate::clock::SharedClock;
use crate::controllers::runner::Change;
use crate::controllers::{Controller, Error, Next, SyncResult};
use crate::objects::{
    CertificateSigningRequest, CertificateSigningRequestStatus, Istr, ObjectKey, RequestCondition,
    Timestamp,
};
use crate::options::Options;
use crate::task;

/// The workers of each signer.
const WORKERS: usize = 5;

/// The shortest duration of a certificate that a request may choose.
const SHORTEST: Duration = Duration::from_secs(10 * 60);

type Check = fn(&CertificateRequest, &[Istr]) -> Result<(), String>;

/// One of the signers that the API defines.
struct Kind {
    name: &'static str,
    /// The certificate and key of this signer alone.
    files: fn(&Options) -> (&str, &str),
    check: Check,
}

const KINDS: [Kind; 4] = [
    Kind {
        name: "kubernetes.io/kubelet-serving",
        files: |o| {
            (
                &o.cluster_signing_kubelet_serving_cert_file,
                &o.cluster_signing_kubelet_serving_key_file,
            )
        },
        check: kubelet::check_serving,
    },
    Kind {
        name: "kubernetes.io/kube-apiserver-client-kubelet",
        files: |o| {
            (
                &o.cluster_signing_kubelet_client_cert_file,
                &o.cluster_signing_kubelet_client_key_file,
            )
        },
        check: kubelet::check_client,
    },
    Kind {
        name: "kubernetes.io/kube-apiserver-client",
        files: |o| {
            (
                &o.cluster_signing_kube_apiserver_client_cert_file,
                &o.cluster_signing_kube_apiserver_client_key_file,
            )
        },
        check: |_, usages| check_client(usages),
    },
    Kind {
        name: "kubernetes.io/legacy-unknown",
        files: |o| {
            (
                &o.cluster_signing_legacy_unknown_cert_file,
                &o.cluster_signing_legacy_unknown_key_file,
            )
        },
        check: |_, _| Ok(()),
    },
];

/// The controller `certificatesigningrequest-signing-controller`.
///
/// # Errors
/// When the flags contradict each other, or name files that can't be used.
pub fn controller(c: &mut Controller) -> Result<(), String> {
    let options = c.options();
    let shared = (&*options.cluster_signing_cert_file, &*options.cluster_signing_key_file);
    let is_given = |(cert, key): (&str, &str)| !cert.is_empty() || !key.is_empty();
    let any_specific = KINDS.iter().any(|kind| is_given((kind.files)(options)));
    match (shared.0.is_empty() || shared.1.is_empty(), any_specific) {
        (true, false) => {
            log::info!("Skipping CSR signer controller because no csr cert/key was specified");
            return Ok(());
        }
        (false, true) => {
            return Err("cannot specify default and per controller certs at the same time".into());
        }
        _ => {}
    }
    let mut signers = Vec::new();
    for kind in KINDS {
        let name = kind.name;
        let files = if any_specific { (kind.files)(options) } else { shared };
        if !is_given(files) {
            log::info!(
                "Skipping CSR signer controller because specific files were specified for other \
                 signers and not this one controller=\"{name}\""
            );
            continue;
        }
        let files = AuthorityFiles::load(files.0, files.1);
        let files = files
            .map_err(|error| format!("failed to init {name} certificate controller: {error}"))?;
        let longest = options.cluster_signing_duration;
        signers.push(Arc::new(Signer { kind, files, longest }));
    }
    let requests = c.lister::<CertificateSigningRequest>();
    let queue = c.queue(requests::retries(c.clock()));
    let workers = WORKERS * signers.len();
    let this =
        Signing { client: c.client(), requests: requests.clone(), signers, clock: c.clock() };
    let this = Arc::new(this);
    let signing = this.clone();
    c.watch(&requests, &queue, move |change, queue| {
        if !matches!(change, Change::Deleted(_)) && signing.signer_of(change.object()).is_some() {
            queue.add(change.object().meta.key());
        }
    });
    c.sync_by(workers, queue, &this, Signing::sync);
    Ok(())
}

struct Signing {
    client: Client,
    requests: Lister<CertificateSigningRequest>,
    signers: Vec<Arc<Signer>>,
    clock: SharedClock,
}

struct Signer {
    kind: Kind,
    files: AuthorityFiles,
    /// The longest duration of a certificate.
    longest: Duration,
}

/// The result of a request.
enum Decision {
    /// The certificate in PEM.
    Issued(String),
    /// The signer does not sign such requests.
    Refused(String),
}

impl Signing {
    /// The signer for `request`, if it is to be signed now.
    fn signer_of(&self, request: &CertificateSigningRequest) -> Option<&Arc<Signer>> {
        if request.status.is_issued() || !request.status.is_approved() || request.status.is_failed()
        {
            return None;
        }
        self.signers.iter().find(|signer| request.spec.signer_name == *signer.kind.name)
    }

    async fn sync(self: Arc<Self>, key: ObjectKey) -> SyncResult {
        let Some(request) = self.requests.get(&key) else { return Ok(Next::Done) };
        let Some(signer) = self.signer_of(&request).cloned() else { return Ok(Next::Done) };
        let (object, now) = (request.clone(), self.clock.now());
        let decision = task::blocking(move || signer.decide(&object, now)).await;
        let mut status = request.status.clone();
        let doing = match decision.map_err(Error::other)? {
            Decision::Issued(certificate) => {
                status.certificate = STANDARD.encode(certificate).into();
                "error updating signature for csr"
            }
            Decision::Refused(why) => {
                status.conditions.push(RequestCondition {
                    kind: CertificateSigningRequestStatus::FAILED.into(),
                    status: "True".into(),
                    reason: "SignerValidationFailure".into(),
                    message: why.into(),
                    last_update_time: Some(now),
                    last_transition_time: None,
                });
                "error adding failure condition for csr"
            }
        };
        let updated = self.client.update_status(&*request, &status).await;
        updated.map(|_| Next::Done).map_err(|error| Error::during(doing, error))
    }
}

impl Signer {
    fn decide(
        &self,
        object: &CertificateSigningRequest,
        now: Timestamp,
    ) -> Result<Decision, String> {
        let request = requests::parse(object)?;
        let usages = &object.spec.usages;
        if let Err(why) = (self.kind.check)(&request, usages) {
            return Ok(Decision::Refused(why));
        }
        let lifetime = lifetime(object.spec.expiration_seconds, self.longest);
        let signed = self
            .files
            .current()
            .and_then(|authority| authority.sign(&request, &Template { usages, lifetime, now }));
        let der = signed.map_err(|error| format!("error auto signing csr: {error}"))?;
        Ok(Decision::Issued(pem::certificate_text(&der)))
    }
}

/// The requested duration, within bounds.
fn lifetime(requested_seconds: Option<i32>, longest: Duration) -> Duration {
    let Some(seconds) = requested_seconds else { return longest };
    match Duration::from_secs(u64::try_from(seconds).unwrap_or_default()) {
        requested if requested > longest => longest,
        requested => requested.max(SHORTEST),
    }
}

/// The usages of a client's certificate.
fn check_client(usages: &[Istr]) -> Result<(), String> {
    const CLIENT: &str = "client auth";
    let known =
        |usage: &&Istr| ["digital signature", "key encipherment", CLIENT].contains(&usage.as_str());
    if let Some(usage) = usages.iter().find(|usage| !known(usage)) {
        return Err(format!("invalid usage for client certificate: {usage}"));
    }
    match usages.iter().any(|usage| usage == CLIENT) {
        true => Ok(()),
        false => Err(format!("missing required usage for client certificate: {CLIENT}")),
    }
}

/// The files of an authority. They are read again for each certificate, so that a replacement is
/// used at once. Upstream: `caProvider`, `DynamicCertKeyPairContent`.
struct AuthorityFiles {
    certificate: String,
    key: String,
    current: Mutex<Loaded>,
}

/// The newest certificate and key that belong together.
struct Loaded {
    certificate: Vec<u8>,
    key: Vec<u8>,
    authority: Result<Arc<Authority>, String>,
}

impl AuthorityFiles {
    fn load(certificate: &str, key: &str) -> Result<AuthorityFiles, String> {
        let fault = |error: String| format!("error reading CA cert file {certificate:?}: {error}");
        if certificate.is_empty() || key.is_empty() {
            return Err(fault("missing filename for serving cert".to_owned()));
        }
        let loaded = Loaded::read(certificate, key).map_err(fault)?;
        loaded.authority.clone()?;
        Ok(AuthorityFiles {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
            current: Mutex::new(loaded),
        })
    }

    /// Blocks: it reads files. Files that cannot be read, and a key that does not belong to the
    /// certificate, leave the authority as it is.
    fn current(&self) -> Result<Arc<Authority>, String> {
        let read = Loaded::read(&self.certificate, &self.key);
        let mut current = self.current.lock();
        match read {
            Ok(read) if read.certificate == current.certificate && read.key == current.key => {}
            Ok(read) => {
                log::info!(
                    "Loaded a new cert/key pair name=\"{}\"",
                    name(&self.certificate, &self.key)
                );
                *current = read;
            }
            Err(error) => {
                log::error!("{} failed with: {error}", name(&self.certificate, &self.key));
            }
        }
        current.authority.clone()
    }
}

fn name(certificate: &str, key: &str) -> String {
    format!("csr-controller::{certificate}::{key}")
}

impl Loaded {
    fn read(certificate_file: &str, key_file: &str) -> Result<Loaded, String> {
        let read = |file: &str| fs::read(file).map_err(|error| format!("open {file}: {error}"));
        let (certificate, key) = (read(certificate_file)?, read(key_file)?);
        if certificate.is_empty() || key.is_empty() {
            let name = name(certificate_file, key_file);
            return Err(format!("missing content for serving cert {name:?}"));
        }
        let authority = Authority::from_pem(&certificate, &key)?;
        let authority = match pem::certificates(&certificate).len() {
            1 => Ok(Arc::new(authority)),
            count => {
                let name = name(certificate_file, key_file);
                let fault = format!("expected 1 certificate, found {count}");
                Err(format!("error reading CA cert file {name:?}: {fault}"))
            }
        };
        Ok(Loaded { certificate, key, authority })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_duration_is_the_requested_one_within_bounds() {
        let hour = Duration::from_secs(3600);
        for (requested, seconds) in [
            (None, 3600),
            (Some(3601), 3600),
            (Some(3600), 3600),
            (Some(601), 601),
            (Some(599), 600),
            (Some(0), 600),
            (Some(-1), 600),
        ] {
            assert_eq!(lifetime(requested, hour).as_secs(), seconds, "{requested:?}");
        }
        assert_eq!(lifetime(Some(1), Duration::from_secs(60)), SHORTEST);
        assert_eq!(lifetime(Some(61), Duration::from_secs(60)).as_secs(), 60);
    }

    #[test]
    fn only_usages_of_clients_are_client_usages() {
        let check = |usages: &[&str]| {
            check_client(&usages.iter().copied().map(Istr::from).collect::<Vec<_>>())
        };
        assert_eq!(check(&["client auth", "digital signature", "key encipherment"]), Ok(()));
        let fault = |text: &str| Err(text.to_owned());
        assert_eq!(
            check(&["server auth", "client auth"]),
            fault("invalid usage for client certificate: server auth")
        );
        assert_eq!(
            check(&["digital signature"]),
            fault("missing required usage for client certificate: client auth")
        );
    }

    #[test]
    fn an_authority_has_one_certificate_and_its_key() {
        let folder = std::env::temp_dir().join(format!("kcm-authority-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let file = |name: &str| folder.join(name).display().to_string();
        let pair = || rcgen::generate_simple_self_signed(["ca".to_owned()]).unwrap();
        let (one, two) = (pair(), pair());
        let write = |certificate: &str, key: &str| {
            fs::write(file("crt"), certificate).unwrap();
            fs::write(file("key"), key).unwrap();
        };
        let load = || AuthorityFiles::load(&file("crt"), &file("key"));
        let fault = |loaded: Result<AuthorityFiles, String>| loaded.err().unwrap();
        let absent = fault(AuthorityFiles::load(&file("crt"), ""));
        assert!(absent.ends_with("missing filename for serving cert"), "{absent}");
        assert!(fault(load()).contains("open "));
        write(&one.cert.pem(), "");
        assert!(fault(load()).contains("missing content for serving cert"));
        let both = one.cert.pem() + &two.cert.pem();
        write(&both, &one.signing_key.serialize_pem());
        assert!(fault(load()).ends_with("expected 1 certificate, found 2"));
        write(&one.cert.pem(), &two.signing_key.serialize_pem());
        assert!(fault(load()).ends_with("private key does not match public key"));

        write(&one.cert.pem(), &one.signing_key.serialize_pem());
        let files = load().unwrap();
        let first = files.current().unwrap();
        assert!(Arc::ptr_eq(&first, &files.current().unwrap()));
        write(&two.cert.pem(), &one.signing_key.serialize_pem());
        assert!(Arc::ptr_eq(&first, &files.current().unwrap()), "half of a new pair");
        write(&both, &one.signing_key.serialize_pem());
        assert!(files.current().is_err());
        write(&two.cert.pem(), &two.signing_key.serialize_pem());
        assert!(!Arc::ptr_eq(&first, &files.current().unwrap()));
        fs::remove_dir_all(&folder).unwrap();
        assert!(files.current().is_ok(), "the files are gone");
    }
}
