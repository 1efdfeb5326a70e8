//! Requests for certificates at the API server. Upstream: `client-go/util/certificate/csr`.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1 as api;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_controller_manager::client::x509::{Certificate, Request};
use kube_controller_manager::client::{self, Client, ListOptions, pem};
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::objects::{
    CertificateSigningRequest, CertificateSigningRequestStatus, Object, ObjectKey, Resource,
    Timestamp, Uid, WatchEvent,
};

use super::Error;
use super::key::{PrivateKey, Template};

/// The signer of kubelets' client certificates.
pub const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client-kubelet";
/// The signer of kubelets' serving certificates.
pub const SERVING_SIGNER: &str = "kubernetes.io/kubelet-serving";

pub const SIGNATURE: &str = "digital signature";
pub const ENCIPHERMENT: &str = "key encipherment";

/// The server ends a watch after this time.
const WATCH_TIMEOUT: Duration = Duration::from_secs(300);
/// The pause after a failed list or watch.
const RETRY_PERIOD: Duration = Duration::from_secs(1);

/// A request that the server has.
#[derive(Debug, PartialEq, Eq)]
pub struct Submitted {
    name: String,
    uid: Uid,
}

impl Submitted {
    fn of(object: &CertificateSigningRequest) -> Submitted {
        let meta = object.meta();
        Submitted { name: meta.name.to_string(), uid: meta.uid.clone() }
    }
}

/// Creates a request for `template` with `key`. With a `name` that exists already, that request is
/// taken if it is compatible: an earlier run has created it. Without a name the server chooses one.
/// Upstream: `RequestCertificate`.
pub async fn submit(
    client: &Client,
    template: &Template,
    key: &PrivateKey,
    name: Option<&str>,
    signer: &'static str,
    usages: &[&'static str],
    now: Timestamp,
) -> Result<Submitted, Error> {
    let request = template.request(key)?;
    let object = api::CertificateSigningRequest {
        metadata: ObjectMeta {
            name: name.map(str::to_owned),
            generate_name: name.is_none().then(|| "csr-".to_owned()),
            ..ObjectMeta::default()
        },
        spec: api::CertificateSigningRequestSpec {
            request: ByteString(request.into_bytes()),
            signer_name: signer.to_owned(),
            usages: Some(usages.iter().copied().map(str::to_owned).collect()),
            ..Default::default()
        },
        ..Default::default()
    };
    let fault = |doing| move |source| Error::Request { doing, source };
    let created: client::Result<CertificateSigningRequest> = client.create("", &object).await;
    match (created, name) {
        (Err(error), Some(name)) if error.is_already_exists() => {
            let found = client.get::<CertificateSigningRequest>(&ObjectKey::cluster(name)).await;
            let found = found.map_err(fault("retrieve certificate signing request"))?;
            match incompatibility(&found, template, key, signer, now) {
                None => log::info!("csr for this node already exists, reusing: {name}"),
                Some(fault) => return Err(Error::Incompatible { name: name.to_owned(), fault }),
            }
            Ok(Submitted::of(&found))
        }
        (created, _) => {
            let created = created.map_err(fault("create certificate signing request"))?;
            log::info!("Certificate signing request created: {}", created.meta().name);
            Ok(Submitted::of(&created))
        }
    }
}

/// Returns why an existing request `object` cannot stand for a new one with this template, key and
/// signer; `None`: it can. The API server has checked its signature with the key in it. Upstream:
/// `ensureCompatible`.
fn incompatibility(
    object: &CertificateSigningRequest,
    template: &Template,
    key: &PrivateKey,
    signer: &str,
    now: Timestamp,
) -> Option<String> {
    let text = match STANDARD.decode(&*object.spec.request) {
        Ok(text) => text,
        Err(error) => return Some(error.to_string()),
    };
    let request = match Request::from_pem(&text) {
        Ok(request) => request,
        Err(fault) => return Some(fault),
    };
    if request.common_names().ne([template.common_name.clone()])
        || request.organizations().ne([template.organization.clone()])
    {
        return Some("csr subjects differ".to_owned());
    }
    if object.spec.signer_name != *signer {
        return Some(format!("csr signerNames differ: {:?}", object.spec.signer_name.as_str()));
    }
    if request.public_key() != key.public_key {
        return Some("it is of another key".to_owned());
    }
    let issued = issued(&object.status).unwrap_or_default();
    let is_expired = |der: &[u8]| {
        Certificate::from_der(der).is_ok_and(|certificate| now > certificate.not_after())
    };
    let expired = pem::certificates(&issued).iter().any(|der| is_expired(der));
    expired.then(|| "one of the certificates for the CSR has expired".to_owned())
}

/// Returns the issued certificate in PEM, if there is one.
fn issued(status: &CertificateSigningRequestStatus) -> Option<Vec<u8>> {
    let text = STANDARD.decode(&*status.certificate).ok()?;
    (!text.is_empty()).then_some(text)
}

/// Waits until the certificate is issued, and returns it in PEM. While the server cannot be asked,
/// it asks again each second; the caller limits the time. May be dropped at any time. Upstream:
/// `WaitForCertificate`.
///
/// # Errors
/// When the request was denied, has failed, or is gone.
pub async fn wait(
    client: &Client,
    submitted: &Submitted,
    clock: &SharedClock,
) -> Result<Vec<u8>, Error> {
    loop {
        match follow(client, submitted).await {
            Ok(Some(certificate)) => return Ok(certificate),
            // The server has ended the watch.
            Ok(None) => {}
            Err(Fault::Final(error)) => return Err(error),
            Err(Fault::Passing(why)) => {
                log::debug!("csr {:?}: {why}", submitted.name);
                clock.sleep(RETRY_PERIOD).await;
            }
        }
    }
}

/// A failure while waiting: a final one, or one after which the wait continues.
enum Fault {
    Final(Error),
    Passing(String),
}

impl From<client::Error> for Fault {
    fn from(error: client::Error) -> Fault {
        Fault::Passing(error.to_string())
    }
}

/// Reads the request and watches it until it has a certificate; `None`: the server has ended the
/// watch before.
async fn follow(client: &Client, submitted: &Submitted) -> Result<Option<Vec<u8>>, Fault> {
    let requests = client.resource(&CertificateSigningRequest::RESOURCE);
    let field_selector = Some(format!("metadata.name={}", submitted.name));
    let mut options = ListOptions { field_selector, ..ListOptions::default() };
    let listed = requests.list::<CertificateSigningRequest>(None, &options).await?;
    let deleted = || Fault::Final(Error::Deleted(submitted.name.clone()));
    let found = listed.items.first().ok_or_else(deleted)?;
    if let Some(certificate) = certificate_of(found, submitted).map_err(Fault::Final)? {
        return Ok(Some(certificate));
    }
    options.resource_version = Some(listed.resource_version);
    let mut watch = requests.watch(None, &options, false, WATCH_TIMEOUT).await?;
    while let Some(event) = watch.next().await {
        let object = match event? {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => object,
            WatchEvent::Deleted(_) => return Err(deleted()),
            WatchEvent::Bookmark(_) => continue,
        };
        let object = object.decode().map_err(|error| Fault::Passing(error.to_string()))?;
        if let Some(certificate) = certificate_of(&object, submitted).map_err(Fault::Final)? {
            return Ok(Some(certificate));
        }
    }
    Ok(None)
}

/// Returns the issued certificate; `None`: it is still to be approved or issued. `Err`: the request
/// was denied or has failed, or this is another one of its name.
fn certificate_of(
    object: &CertificateSigningRequest,
    submitted: &Submitted,
) -> Result<Option<Vec<u8>>, Error> {
    if Submitted::of(object) != *submitted {
        return Err(Error::Replaced(submitted.name.clone()));
    }
    let status = &object.status;
    for (kind, verdict) in [
        (CertificateSigningRequestStatus::DENIED, "is denied"),
        (CertificateSigningRequestStatus::FAILED, "failed"),
    ] {
        if let Some(condition) = status.conditions.iter().find(|found| found.kind == *kind) {
            let (reason, message) = (condition.reason.to_string(), condition.message.to_string());
            return Err(Error::Refused { verdict, reason, message });
        }
    }
    let approved = status.has(CertificateSigningRequestStatus::APPROVED);
    Ok(if approved { issued(status) } else { None })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::testing::{authority, pair};
    use super::*;

    fn object(change: impl FnOnce(&mut Value)) -> CertificateSigningRequest {
        let mut object = json!({
            "metadata": {"name": "csr", "uid": "u", "resourceVersion": "1"},
            "spec": {"signerName": CLIENT_SIGNER},
            "status": {},
        });
        change(&mut object);
        serde_json::from_value(object).expect("a request")
    }

    #[test]
    fn status_decides_whether_a_certificate_is_issued() {
        let submitted = Submitted::of(&object(|_| {}));
        let condition = |kind: &str| json!({"type": kind, "reason": "R", "message": "M"});
        let certificate = STANDARD.encode("PEM");
        for (status, expected) in [
            (json!({}), Ok(None)),
            (json!({"conditions": [condition("Approved")]}), Ok(None)),
            (json!({"certificate": certificate}), Ok(None)),
            (
                json!({"conditions": [condition("Approved")], "certificate": certificate}),
                Ok(Some(b"PEM".to_vec())),
            ),
            (
                json!({"conditions": [condition("Approved"), condition("Denied")],
                    "certificate": certificate}),
                Err("certificate signing request is denied, reason: R, message: M"),
            ),
            (
                json!({"conditions": [condition("Failed")]}),
                Err("certificate signing request failed, reason: R, message: M"),
            ),
        ] {
            let object = object(|object| object["status"] = status.clone());
            let found = certificate_of(&object, &submitted).map_err(|error| error.to_string());
            assert_eq!(found, expected.map_err(str::to_owned), "{status}");
        }
        let other = object(|object| object["metadata"]["uid"] = "other".into());
        let error = certificate_of(&other, &submitted).expect_err("another request");
        assert_eq!(error.to_string(), "csr \"csr\" changed UIDs");
    }

    #[test]
    fn request_of_an_earlier_run_is_taken_if_it_is_the_same() {
        let key = PrivateKey::generate().expect("a key");
        let template = Template::of_node("n1");
        let now = Timestamp::from_secs(1_800_000_000);
        let fault = |template: &Template, key: &PrivateKey, change: fn(&mut Value)| {
            let of = Template::of_node("n1");
            let text = STANDARD.encode(of.request(key).expect("a request"));
            let object = object(|object| {
                object["spec"]["request"] = text.into();
                change(object);
            });
            incompatibility(&object, template, key, CLIENT_SIGNER, now)
        };
        assert_eq!(fault(&template, &key, |_| {}), None);
        let other = fault(&Template::of_node("n2"), &key, |_| {});
        assert_eq!(other.as_deref(), Some("csr subjects differ"));
        let other = fault(&template, &key, |object| object["spec"]["signerName"] = "x/y".into());
        assert_eq!(other.as_deref(), Some("csr signerNames differ: \"x/y\""));
        let other = fault(&template, &key, |object| {
            let key = PrivateKey::generate().expect("a key");
            let text = Template::of_node("n1").request(&key).expect("a request");
            object["spec"]["request"] = STANDARD.encode(text).into();
        });
        assert_eq!(other.as_deref(), Some("it is of another key"));
        let other = fault(&template, &key, |object| object["spec"]["request"] = "AAAA".into());
        assert_eq!(other.as_deref(), Some("PEM block type must be CERTIFICATE REQUEST"));
        let other = fault(&template, &key, |object| {
            let ended = authority().sign("n1", Timestamp::from_secs(0), Duration::from_secs(60));
            object["status"]["certificate"] = STANDARD.encode(ended.certificate).into();
        });
        assert_eq!(other.as_deref(), Some("one of the certificates for the CSR has expired"));
        let valid = fault(&template, &key, |object| {
            object["status"]["certificate"] = STANDARD.encode(pair("n1").certificate).into();
        });
        assert_eq!(valid, None);
    }
}
