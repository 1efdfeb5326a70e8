//! The rules for certificates of kubelets. Upstream: `pkg/apis/certificates` (`helpers.go`).

use super::x509::CertificateRequest;
use crate::objects::Istr;

const ORGANIZATION: &str = "system:nodes";
const NAME_PREFIX: &str = "system:node:";

const SIGNATURE: &str = "digital signature";
/// The usage that only RSA keys may have.
const ENCIPHERMENT: &str = "key encipherment";

/// Checks that `request` is for a serving certificate of a kubelet.
///
/// # Errors
/// The first fault, in the words that conditions carry.
pub fn check_serving(request: &CertificateRequest, usages: &[Istr]) -> Result<(), String> {
    check_organization(request)?;
    let names = &request.names;
    let faults = [
        (names.dns.is_empty() && names.ips.is_empty(), "DNS or IP subjectAltName is required"),
        (!names.emails.is_empty(), "Email subjectAltNames are not allowed"),
        (!names.uris.is_empty(), "URI subjectAltNames are not allowed"),
    ];
    reject_faults(&faults)?;
    check_usages(usages, "server auth")?;
    check_common_name(request)
}

/// Checks that `request` is for the client certificate with which a kubelet authenticates.
///
/// # Errors
/// The first fault, in the words that conditions carry.
pub fn check_client(request: &CertificateRequest, usages: &[Istr]) -> Result<(), String> {
    check_organization(request)?;
    let names = &request.names;
    let faults = [
        (!names.dns.is_empty(), "DNS subjectAltNames are not allowed"),
        (!names.emails.is_empty(), "Email subjectAltNames are not allowed"),
        (!names.ips.is_empty(), "IP subjectAltNames are not allowed"),
        (!names.uris.is_empty(), "URI subjectAltNames are not allowed"),
    ];
    reject_faults(&faults)?;
    check_common_name(request)?;
    check_usages(usages, "client auth")
}

/// Returns the message of the first fault whose flag is set, as an error.
fn reject_faults(faults: &[(bool, &str)]) -> Result<(), String> {
    for (has_fault, message) in faults {
        if *has_fault {
            return Err((*message).to_owned());
        }
    }
    Ok(())
}

/// Checks that the subject names one organization, that of all nodes.
fn check_organization(request: &CertificateRequest) -> Result<(), String> {
    match request.subject.organizations() {
        [one] if one == ORGANIZATION => Ok(()),
        _ => Err("subject organization is not system:nodes".to_owned()),
    }
}

/// Checks that the common name begins as that of every node does.
fn check_common_name(request: &CertificateRequest) -> Result<(), String> {
    match request.subject.common_name().starts_with(NAME_PREFIX) {
        true => Ok(()),
        false => Err("subject common name does not begin with system:node:".to_owned()),
    }
}

/// Checks that the usages are a digital signature, `purpose`, and perhaps key encipherment. They
/// may be repeated and in any order.
fn check_usages(usages: &[Istr], purpose: &str) -> Result<(), String> {
    let has = |name: &str| usages.iter().any(|usage| usage == name);
    let is_allowed = |usage: &Istr| [SIGNATURE, ENCIPHERMENT, purpose].contains(&usage.as_str());
    if has(SIGNATURE) && has(purpose) && usages.iter().all(is_allowed) {
        return Ok(());
    }
    // Upstream's text lists key encipherment too.
    let mut required = [SIGNATURE, ENCIPHERMENT, purpose];
    required.sort();
    Err(format!("usages did not match [{}]", required.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    macro_rules! request {
        ($name:literal) => {
            include_bytes!(concat!("../../../fixtures/certificates/", $name, ".csr")) as &[u8]
        };
    }

    #[test]
    fn kubelets_requests_are_checked() {
        const CLIENT: &[&str] = &["digital signature", "client auth"];
        const SERVING: &[&str] = &["digital signature", "server auth"];
        type Check = fn(&CertificateRequest, &[Istr]) -> Result<(), String>;
        // The messages are those of the Go manager for the same requests.
        let cases: [(&[u8], Check, &[&str], &str); 16] = [
            (request!("kubelet-client"), check_client, CLIENT, ""),
            (
                request!("kubelet-client"),
                check_client,
                &["client auth", "key encipherment", "digital signature", "client auth"],
                "",
            ),
            (
                request!("bad-kubelet-client"),
                check_client,
                CLIENT,
                "subject common name does not begin with system:node:",
            ),
            (
                request!("bad-kubelet-usages"),
                check_client,
                &["client auth"],
                "usages did not match [client auth digital signature key encipherment]",
            ),
            (
                request!("kubelet-client"),
                check_client,
                &["digital signature", "client auth", "server auth"],
                "usages did not match [client auth digital signature key encipherment]",
            ),
            (
                request!("bad-kubelet-org"),
                check_client,
                CLIENT,
                "subject organization is not system:nodes",
            ),
            (
                request!("bad-kubelet-san"),
                check_client,
                CLIENT,
                "DNS subjectAltNames are not allowed",
            ),
            (
                request!("bad-kubelet-uri"),
                check_client,
                CLIENT,
                "URI subjectAltNames are not allowed",
            ),
            (request!("kubelet-serving"), check_serving, SERVING, ""),
            (
                request!("kubelet-serving"),
                check_client,
                CLIENT,
                "DNS subjectAltNames are not allowed",
            ),
            (
                request!("bad-serving-nosan"),
                check_serving,
                SERVING,
                "DNS or IP subjectAltName is required",
            ),
            (
                request!("bad-serving-email"),
                check_serving,
                SERVING,
                "Email subjectAltNames are not allowed",
            ),
            (
                request!("bad-serving-usages"),
                check_serving,
                CLIENT,
                "usages did not match [digital signature key encipherment server auth]",
            ),
            (
                request!("bad-serving-cn"),
                check_serving,
                SERVING,
                "subject common name does not begin with system:node:",
            ),
            (
                request!("api-client"),
                check_client,
                CLIENT,
                "subject organization is not system:nodes",
            ),
            (
                request!("legacy-all"),
                check_serving,
                SERVING,
                "subject organization is not system:nodes",
            ),
        ];
        for (at, (request, check, usages, why)) in cases.into_iter().enumerate() {
            let request = CertificateRequest::from_pem(request).unwrap();
            let usages: Vec<Istr> = usages.iter().copied().map(Istr::from).collect();
            let expected = if why.is_empty() { Ok(()) } else { Err(why.to_owned()) };
            assert_eq!(check(&request, &usages), expected, "case {at}");
        }
    }
}
