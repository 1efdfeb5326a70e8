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
const MIN_DURATION: Duration = Duration::from_secs(10 * 60);

/// Checks a request and its usages against the rules of a signer; the error is the reason for the
/// refusal.
type RequestCheck = fn(&CertificateRequest, &[Istr]) -> Result<(), String>;

/// One of the signers that Kubernetes defines.
struct SignerKind {
    name: &'static str,
    /// The flags that name the certificate file and the key file of this signer alone.
    files: fn(&Options) -> (&str, &str),
    check: RequestCheck,
}

const SIGNER_KINDS: [SignerKind; 4] = [
    SignerKind {
        name: "kubernetes.io/kubelet-serving",
        files: |options| {
            (
                &options.cluster_signing_kubelet_serving_cert_file,
                &options.cluster_signing_kubelet_serving_key_file,
            )
        },
        check: kubelet::check_serving,
    },
    SignerKind {
        name: "kubernetes.io/kube-apiserver-client-kubelet",
        files: |options| {
            (
                &options.cluster_signing_kubelet_client_cert_file,
                &options.cluster_signing_kubelet_client_key_file,
            )
        },
        check: kubelet::check_client,
    },
    SignerKind {
        name: "kubernetes.io/kube-apiserver-client",
        files: |options| {
            (
                &options.cluster_signing_kube_apiserver_client_cert_file,
                &options.cluster_signing_kube_apiserver_client_key_file,
            )
        },
        check: |_, usages| check_client_usages(usages),
    },
    SignerKind {
        name: "kubernetes.io/legacy-unknown",
        files: |options| {
            (
                &options.cluster_signing_legacy_unknown_cert_file,
                &options.cluster_signing_legacy_unknown_key_file,
            )
        },
        check: |_, _| Ok(()),
    },
];

/// Sets up the controller `certificatesigningrequest-signing-controller`; idle without files of an
/// authority.
///
/// # Errors
/// When the flags contradict each other, or name files that can't be used.
pub fn controller(c: &mut Controller) -> Result<(), String> {
    let options = c.options();
    // Each pair is the certificate file and the key file.
    let default_files = (&*options.cluster_signing_cert_file, &*options.cluster_signing_key_file);
    let is_set = |(cert, key): (&str, &str)| !cert.is_empty() || !key.is_empty();
    let any_specific = SIGNER_KINDS.iter().any(|kind| is_set((kind.files)(options)));
    let has_default = !default_files.0.is_empty() && !default_files.1.is_empty();
    if !has_default && !any_specific {
        log::info!("Skipping CSR signer controller because no csr cert/key was specified");
        return Ok(());
    }
    if has_default && any_specific {
        return Err("cannot specify default and per controller certs at the same time".into());
    }
    let mut signers = Vec::new();
    for kind in SIGNER_KINDS {
        let name = kind.name;
        let files = if any_specific { (kind.files)(options) } else { default_files };
        if !is_set(files) {
            log::info!(
                "Skipping CSR signer controller because specific files were specified for other \
                 signers and not this one controller=\"{name}\""
            );
            continue;
        }
        let (certificate, key) = files;
        let files = AuthorityFiles::load(certificate, key)
            .map_err(|error| format!("failed to init {name} certificate controller: {error}"))?;
        let max_duration = options.cluster_signing_duration;
        signers.push(Arc::new(Signer { kind, files, max_duration }));
    }
    let requests = c.lister::<CertificateSigningRequest>();
    let queue = c.queue(requests::queue_policy(c.clock()));
    let workers = WORKERS * signers.len();
    let this =
        Signing { client: c.client(), requests: requests.clone(), signers, clock: c.clock() };
    let this = Arc::new(this);
    let signing = this.clone();
    c.watch(&requests, &queue, move |change, queue| {
        if !matches!(change, Change::Deleted(_)) && signing.signer_for(change.object()).is_some() {
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
    kind: SignerKind,
    files: AuthorityFiles,
    /// The longest duration of a certificate.
    max_duration: Duration,
}

/// The answer to a request.
enum Decision {
    /// The certificate in PEM.
    Issued(String),
    /// The signer does not sign such requests.
    Refused(String),
}

impl Signing {
    /// Returns the signer of `request` if it is approved, has not failed and has no certificate
    /// yet.
    fn signer_for(&self, request: &CertificateSigningRequest) -> Option<&Arc<Signer>> {
        if request.status.is_issued() || !request.status.is_approved() || request.status.is_failed()
        {
            return None;
        }
        self.signers.iter().find(|signer| request.spec.signer_name == *signer.kind.name)
    }

    /// Signs the request, and writes the certificate, or the reason for the refusal, into its
    /// status.
    async fn sync(self: Arc<Self>, key: ObjectKey) -> SyncResult {
        let Some(request) = self.requests.get(&key) else { return Ok(Next::Done) };
        let Some(signer) = self.signer_for(&request).cloned() else { return Ok(Next::Done) };
        let (object, now) = (request.clone(), self.clock.now());
        let decision = task::blocking(move || signer.sign_or_refuse(&object, now)).await;
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
    /// Decides about the request, and signs the certificate unless it is refused. Blocks: it reads
    /// the files of the authority.
    fn sign_or_refuse(
        &self,
        object: &CertificateSigningRequest,
        now: Timestamp,
    ) -> Result<Decision, String> {
        let request = requests::parse_request(object)?;
        let usages = &object.spec.usages;
        if let Err(why) = (self.kind.check)(&request, usages) {
            return Ok(Decision::Refused(why));
        }
        let lifetime = lifetime(object.spec.expiration_seconds, self.max_duration);
        let sign_error = |error: String| format!("error auto signing csr: {error}");
        let authority = self.files.reload().map_err(sign_error)?;
        let template = Template { usages, lifetime, now };
        let der = authority.sign(&request, &template).map_err(sign_error)?;
        Ok(Decision::Issued(pem::certificate_text(&der)))
    }
}

/// Returns the requested duration, but at least [`MIN_DURATION`] and at most `max_duration`;
/// `max_duration` if none is requested. As upstream, a short request becomes [`MIN_DURATION`] even
/// if `max_duration` is below that.
fn lifetime(requested_seconds: Option<i32>, max_duration: Duration) -> Duration {
    let Some(seconds) = requested_seconds else { return max_duration };
    match Duration::from_secs(u64::try_from(seconds).unwrap_or_default()) {
        requested if requested > max_duration => max_duration,
        requested => requested.max(MIN_DURATION),
    }
}

/// Checks that the usages are those of a client's certificate, and that `client auth` is there.
fn check_client_usages(usages: &[Istr]) -> Result<(), String> {
    const CLIENT: &str = "client auth";
    for usage in usages {
        if !["digital signature", "key encipherment", CLIENT].contains(&usage.as_str()) {
            return Err(format!("invalid usage for client certificate: {usage}"));
        }
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
    current: Mutex<LoadedPair>,
}

/// A certificate and its key, as they were read.
struct LoadedPair {
    certificate: Vec<u8>,
    key: Vec<u8>,
    /// The authority; an error, with which each signing fails, unless the file has exactly one
    /// certificate.
    authority: Result<Arc<Authority>, String>,
}

impl AuthorityFiles {
    /// Reads the two files for the first time. Fails if they cannot be used.
    fn load(certificate: &str, key: &str) -> Result<AuthorityFiles, String> {
        let fault = |error: String| format!("error reading CA cert file {certificate:?}: {error}");
        if certificate.is_empty() || key.is_empty() {
            return Err(fault("missing filename for serving cert".to_owned()));
        }
        let loaded = LoadedPair::read(certificate, key).map_err(fault)?;
        loaded.authority.clone()?;
        Ok(AuthorityFiles {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
            current: Mutex::new(loaded),
        })
    }

    /// Reads the files again, and returns the authority. Blocks. If the files cannot be read, or
    /// the key does not belong to the certificate, the last authority stays in use.
    fn reload(&self) -> Result<Arc<Authority>, String> {
        let read = LoadedPair::read(&self.certificate, &self.key);
        let mut current = self.current.lock();
        match read {
            Ok(read) if read.certificate == current.certificate && read.key == current.key => {}
            Ok(read) => {
                log::info!(
                    "Loaded a new cert/key pair name=\"{}\"",
                    provider_name(&self.certificate, &self.key)
                );
                *current = read;
            }
            Err(error) => {
                log::error!("{} failed with: {error}", provider_name(&self.certificate, &self.key));
            }
        }
        current.authority.clone()
    }
}

/// Returns the name by which the log calls the pair of files. Upstream:
/// `DynamicCertKeyPairContent.Name`.
fn provider_name(certificate: &str, key: &str) -> String {
    format!("csr-controller::{certificate}::{key}")
}

impl LoadedPair {
    /// Reads the two files; an error if one is unreadable or empty, or if they do not belong
    /// together. If there are several certificates, only its `authority` is an error.
    fn read(certificate_file: &str, key_file: &str) -> Result<LoadedPair, String> {
        let read = |file: &str| fs::read(file).map_err(|error| format!("open {file}: {error}"));
        let (certificate, key) = (read(certificate_file)?, read(key_file)?);
        if certificate.is_empty() || key.is_empty() {
            let name = provider_name(certificate_file, key_file);
            return Err(format!("missing content for serving cert {name:?}"));
        }
        let authority = Authority::from_pem(&certificate, &key)?;
        let authority = match pem::certificates(&certificate).len() {
            1 => Ok(Arc::new(authority)),
            count => {
                let name = provider_name(certificate_file, key_file);
                let fault = format!("expected 1 certificate, found {count}");
                Err(format!("error reading CA cert file {name:?}: {fault}"))
            }
        };
        Ok(LoadedPair { certificate, key, authority })
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
        assert_eq!(lifetime(Some(1), Duration::from_secs(60)), MIN_DURATION);
        assert_eq!(lifetime(Some(61), Duration::from_secs(60)).as_secs(), 60);
    }

    #[test]
    fn only_usages_of_clients_are_client_usages() {
        let check = |usages: &[&str]| {
            check_client_usages(&usages.iter().copied().map(Istr::from).collect::<Vec<_>>())
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
        let first = files.reload().unwrap();
        assert!(Arc::ptr_eq(&first, &files.reload().unwrap()));
        write(&two.cert.pem(), &one.signing_key.serialize_pem());
        assert!(Arc::ptr_eq(&first, &files.reload().unwrap()), "half of a new pair");
        write(&both, &one.signing_key.serialize_pem());
        assert!(files.reload().is_err());
        write(&two.cert.pem(), &two.signing_key.serialize_pem());
        assert!(!Arc::ptr_eq(&first, &files.reload().unwrap()));
        fs::remove_dir_all(&folder).unwrap();
        assert!(files.reload().is_ok(), "the files are gone");
    }
}
