//! ClusterTrustBundles and PodCertificateRequests.
//! Upstream: `pkg/apis/certificates/validation`.

use serde_json::Value;

use super::Kind;
use super::builtin::kind;
use super::fault::{immutable, invalid, required};
use super::json::{drop_nulls, fill, object, text};
use super::metadata::{NameRule, dns1123_label_fault, subdomain_fault};
use super::rules::Rules;
use super::workloads;
use crate::status::Cause;

const GROUP: &str = "certificates.k8s.io";
const BEGIN: &str = "-----BEGIN CERTIFICATE-----";

/// Builds the kind ClusterTrustBundle.
pub fn trust_bundles() -> Kind {
    let rules = Rules {
        check: bundle_faults,
        ..Rules::named(NameRule::PathSegment).fixed(&["/spec/signerName"])
    };
    let field = |bundle: &Value, path: &str| {
        (path == "spec.signerName").then(|| text(bundle, "/spec/signerName").to_owned())
    };
    kind(GROUP, "ClusterTrustBundle", "clustertrustbundles", &[], false).rules(rules).fields(field)
}

/// Builds the kind PodCertificateRequest, with which kubelets request certificates of pods. Keys
/// and signatures are not verified.
pub fn pod_requests() -> Kind {
    let mut requests = kind(GROUP, "PodCertificateRequest", "podcertificaterequests", &[], true)
        .status(workloads::no_status)
        .default(default_request)
        .fields(|request, path| {
            let fields = ["spec.signerName", "spec.podName", "spec.nodeName"];
            let at = format!("/{}", path.replace('.', "/"));
            fields.contains(&path).then(|| text(request, &at).to_owned())
        });
    requests.validate_create = Box::new(|request| {
        let mut faults = Rules::named(NameRule::Subdomain).check_new(request);
        faults.extend(request_faults(request));
        faults
    });
    requests.validate_update = Box::new(|new, old| {
        let mut faults = Rules::named(NameRule::Subdomain).check_change(new, old);
        faults.extend(immutable("spec", new.get("spec"), old.get("spec")));
        faults
    });
    requests
}

fn default_request(request: &mut Value) {
    drop_nulls(request);
    fill(object(request, "spec"), "maxExpirationSeconds", 86_400);
}

/// Checks a bundle: its name must fit its signer, the signer must be well-formed, and it must have
/// a trust anchor.
fn bundle_faults(bundle: &Value) -> Vec<Cause> {
    let signer = text(bundle, "/spec/signerName");
    let mut faults = Vec::new();
    let name = text(bundle, "/metadata/name");
    faults.extend(
        bundle_name_fault(name, signer).map(|fault| invalid("metadata.name", &name.into(), &fault)),
    );
    if !signer.is_empty() {
        faults.extend(signer_fault(signer));
    }
    if !text(bundle, "/spec/trustBundle").contains(BEGIN) {
        let omitted = "<value omitted>".into();
        let detail = "at least one trust anchor must be provided";
        faults.push(invalid("spec.trustBundle", &omitted, detail));
    }
    faults
}

/// Checks that the name of a ClusterTrustBundle fits its signer. Upstream:
/// `ValidateClusterTrustBundleName`.
fn bundle_name_fault(name: &str, signer: &str) -> Option<String> {
    if signer.is_empty() {
        let has_signer = name.contains(':');
        let fault = "ClusterTrustBundle without signer name must not have \":\" in its name";
        return if has_signer { Some(fault.to_owned()) } else { subdomain_fault(name) };
    }
    let prefix = format!("{}:", signer.replace('/', ":"));
    match name.strip_prefix(&prefix) {
        Some(rest) => subdomain_fault(rest),
        None => Some(format!(
            "ClusterTrustBundle for signerName {signer} must be named with prefix {prefix}"
        )),
    }
}

/// Validates the name of a signer, but not its length. Upstream: `ValidateSignerName`.
fn signer_fault(signer: &str) -> Option<Cause> {
    let fault = |value: &str, detail: &str| Some(invalid("spec.signerName", &value.into(), detail));
    let (domain, path) = match signer.split_once('/') {
        None if signer.is_empty() => return Some(required("spec.signerName", "")),
        Some((domain, path)) if !path.contains('/') => (domain, path),
        _ => {
            let detail = "must be a fully qualified domain and path of the form \
                          'example.com/signer-name'";
            return fault(signer, detail);
        }
    };
    let faulty = |label: &str| Some((label.to_owned(), dns1123_label_fault(label)?));
    if let Some((label, why)) = domain.split('.').find_map(faulty) {
        return fault(domain, &format!("validating label {label:?}: {why}"));
    }
    if !domain.contains('.') {
        return fault(domain, "should be a domain with at least two segments separated by dots");
    }
    let faulty = |label: &str| Some((label.to_owned(), subdomain_fault(label)?));
    let (label, why) = path.split('.').find_map(faulty)?;
    fault(path, &format!("validating label {label:?}: {why}"))
}

/// Validates the spec of a PodCertificateRequest.
fn request_faults(request: &Value) -> Vec<Cause> {
    let spec = |field: &str| text(request, &format!("/spec/{field}"));
    let mut faults = Vec::from_iter(signer_fault(spec("signerName")));
    for field in ["podName", "serviceAccountName", "nodeName"] {
        let fault = subdomain_fault(spec(field));
        faults.extend(fault.map(|why| invalid(format!("spec.{field}"), &spec(field).into(), &why)));
    }
    for field in ["podUID", "serviceAccountUID", "nodeUID"] {
        if spec(field).is_empty() {
            faults.push(invalid(format!("spec.{field}"), &"".into(), "must not be empty"));
        }
    }
    let seconds = request.pointer("/spec/maxExpirationSeconds").unwrap_or(&Value::Null);
    let most = match spec("signerName").starts_with("kubernetes.io/") {
        true => 86_400,
        false => 7_862_400,
    };
    if !seconds.as_i64().is_some_and(|seconds| (3_600..=most).contains(&seconds)) {
        let detail = format!("must be in the range [3600, {most}]");
        faults.push(invalid("spec.maxExpirationSeconds", seconds, &detail));
    }
    let has_key = !spec("pkixPublicKey").is_empty() && !spec("proofOfPossession").is_empty();
    let has_any = !spec("pkixPublicKey").is_empty() || !spec("proofOfPossession").is_empty();
    let has_stub = !spec("stubPKCS10Request").is_empty();
    if has_stub == has_key || has_any != has_key {
        let detail = "exactly one of (stubPKCS10Request) or (pkixPublicKey, proofOfPossession) \
                      must be set";
        faults.push(invalid("spec", &Value::Null, detail));
    }
    faults
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fields(faults: &[Cause]) -> Vec<&str> {
        faults.iter().map(|fault| &*fault.field).collect()
    }

    #[test]
    fn bundles_are_named_after_their_signer() {
        const SIGNER: &str = "example.com/one.two";
        for (name, signer, pem, wrong) in [
            ("plain", "", BEGIN, vec![]),
            ("a:b", "", BEGIN, vec!["metadata.name"]),
            ("example.com:one.two:x", SIGNER, BEGIN, vec![]),
            ("example.com:one.two:", SIGNER, BEGIN, vec!["metadata.name"]),
            ("plain", SIGNER, BEGIN, vec!["metadata.name"]),
            ("example:one:x", "example/one", BEGIN, vec!["spec.signerName"]),
            ("a.b:c:d:x", "a.b/c/d", BEGIN, vec!["spec.signerName"]),
            ("a.b:C:x", "a.b/C", BEGIN, vec!["spec.signerName"]),
            ("plain", "", "", vec!["spec.trustBundle"]),
        ] {
            let bundle = json!({
                "metadata": { "name": name }, "spec": { "signerName": signer, "trustBundle": pem },
            });
            assert_eq!(fields(&bundle_faults(&bundle)), wrong, "{name} of {signer}");
        }
    }

    #[test]
    fn requests_name_their_pod_and_have_one_key() {
        let good = json!({ "spec": {
            "signerName": "example.com/signer", "podName": "p", "podUID": "u",
            "serviceAccountName": "s", "serviceAccountUID": "u", "nodeName": "n", "nodeUID": "u",
            "maxExpirationSeconds": 86_401, "stubPKCS10Request": "AA==",
        } });
        for (field, value, wrong) in [
            ("podName", "p".into(), vec![]),
            ("signerName", "".into(), vec!["spec.signerName"]),
            ("signerName", "kubernetes.io/x".into(), vec!["spec.maxExpirationSeconds"]),
            ("maxExpirationSeconds", json!(3_599), vec!["spec.maxExpirationSeconds"]),
            ("nodeName", "N".into(), vec!["spec.nodeName"]),
            ("podUID", "".into(), vec!["spec.podUID"]),
            ("stubPKCS10Request", "".into(), vec!["spec"]),
            ("pkixPublicKey", "AA==".into(), vec!["spec"]),
        ] {
            let mut request = good.clone();
            request["spec"][field] = value;
            assert_eq!(fields(&request_faults(&request)), wrong, "{request}");
        }
    }
}
