//! Authorizes the approval and the signing of certificate requests.
//! Upstream: `plugin/pkg/admission/certificates`, `pkg/apis/certificates/authorization`.

use serde_json::Value;

use super::Authorizer;
use crate::access::Access;
use crate::failures;
use crate::object::text;
use crate::request::call::Call;
use crate::status::ApiResult;

const GROUP: &str = "certificates.k8s.io";

impl Authorizer<'_> {
    /// Checks that the caller may write this subresource of a certificate request; other kinds are
    /// not checked. Errors: 403.
    pub fn check_signer(&self, call: &Call, old: &Value, new: &Value) -> ApiResult<()> {
        let resource = &call.kind.resource;
        if !is_certificate_request(call) {
            return Ok(());
        }
        let same = |key: &str| old["status"][key] == new["status"][key];
        let verb = match call.subresource.as_str() {
            "approval" => "approve",
            "status" if !(same("certificate") && same("conditions")) => "sign",
            _ => return Ok(()),
        };
        let signer = text(old, "/spec/signerName");
        let any_of_domain = format!("{}/*", signer.split('/').next().unwrap_or_default());
        let allowed = [signer, &any_of_domain].into_iter().any(|name| {
            let access = Access {
                verb: verb.to_owned(),
                group: GROUP.to_owned(),
                resource: "signers".to_owned(),
                name: name.to_owned(),
                ..Access::default()
            };
            self.authorize(&call.user, &access).is_ok()
        });
        if allowed {
            return Ok(());
        }
        let why = format!("user not permitted to {verb} requests with signerName {signer:?}");
        Err(failures::forbidden(resource, &call.name, &why))
    }
}

/// Whether the call is about a CertificateSigningRequest.
pub fn is_certificate_request(call: &Call) -> bool {
    let resource = &call.kind.resource;
    *resource.group == *GROUP && resource.plural == "certificatesigningrequests"
}
