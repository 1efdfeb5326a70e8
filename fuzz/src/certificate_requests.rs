//! Certificate requests and certificates, in DER and PEM. What is read can be written, and a
//! request with a good signature can be signed.

use std::sync::LazyLock;
use std::time::Duration;

use kube_controller_manager::client::{pem, x509};
use kube_controller_manager::controllers::certificates::x509::{
    Authority, CertificateRequest, Template,
};
use kube_controller_manager::objects::Timestamp;

static AUTHORITY: LazyLock<Authority> = LazyLock::new(|| {
    let certificate = include_bytes!("../../fixtures/certificates/ca-p256.crt");
    let key = include_bytes!("../../fixtures/certificates/ca-p256.key");
    Authority::from_pem(certificate, key).expect("an authority")
});

/// Checks a parsed request: it can be signed if its own signature is right, and the certificate can
/// be read.
fn check_request(request: &CertificateRequest) {
    assert!(request.subject.to_der().is_ok());
    assert!(request.names.to_extension().is_ok());
    let usages = ["client auth".into(), "server auth".into()];
    let now = Timestamp::from_secs(1_777_000_000);
    let template = Template { usages: &usages, lifetime: Duration::from_secs(3600), now };
    let signed = AUTHORITY.sign(request, &template);
    assert_eq!(signed.is_ok(), request.check_signature().is_ok(), "{signed:?} {request:?}");
    if let Ok(der) = signed {
        check_certificate(&x509::Certificate::from_der(&der).expect("what was written"));
    }
}

/// Checks that all parts of a parsed certificate can be read.
fn check_certificate(certificate: &x509::Certificate) {
    assert!(!certificate.subject().is_empty() && !certificate.public_key().is_empty());
    certificate.subject_key_id();
    certificate.may_serve();
    let names = certificate.common_names().chain(certificate.organizations());
    assert!(names.chain(certificate.dns_names()).all(|name| name.len() < 1 << 20));
    assert!(!certificate.not_before().to_string().is_empty());
    assert!(!certificate.not_after().to_string().is_empty());
}

/// Parses any bytes as a request and as certificates, and checks what is found.
pub fn target(input: &[u8]) {
    for request in [CertificateRequest::from_pem(input), CertificateRequest::from_der(input)] {
        match request {
            Ok(request) => check_request(&request),
            Err(error) => assert!(!error.is_empty()),
        }
    }
    let whole = x509::Certificate::from_der(input);
    let in_pem = pem::certificates(input).into_iter();
    for certificate in in_pem.map(|der| x509::Certificate::from_der(&der)).chain([whole]).flatten()
    {
        check_certificate(&certificate);
    }
}
