//! Authorizes the approval and the signing of certificate requests, and who vouches for a signer's
//! trust anchors.
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
            // Other writes neither approve nor sign.
            _ => return Ok(()),
        };
        let signer = text(old, "/spec/signerName");
        if self.may_act_for(call, verb, signer) {
            return Ok(());
        }
        let why = format!("user not permitted to {verb} requests with signerName {signer:?}");
        Err(failures::forbidden(resource, &call.name, &why))
    }

    /// Checks that the caller may write a ClusterTrustBundle of this signer; other kinds are not
    /// checked, nor a bundle without a signer or with an unchanged spec. Errors: 403.
    pub fn check_attester(&self, call: &Call, old: Option<&Value>, new: &Value) -> ApiResult<()> {
        let resource = &call.kind.resource;
        let signer = text(new, "/spec/signerName");
        let is_bundle = *resource.group == *GROUP && resource.plural == "clustertrustbundles";
        let is_same = old.is_some_and(|old| old["spec"] == new["spec"]);
        if !is_bundle || signer.is_empty() || is_same || self.may_act_for(call, "attest", signer) {
            return Ok(());
        }
        let why = format!("user not permitted to attest for signerName {signer:?}");
        Err(failures::forbidden(resource, text(new, "/metadata/name"), &why))
    }

    /// Returns whether the caller has a verb on this signer, or on all of its domain. Upstream:
    /// `IsAuthorizedForSignerName`.
    fn may_act_for(&self, call: &Call, verb: &str, signer: &str) -> bool {
        let any_of_domain = format!("{}/*", signer.split('/').next().unwrap_or_default());
        [signer, &any_of_domain].into_iter().any(|name| {
            let access = Access {
                verb: verb.to_owned(),
                group: GROUP.to_owned(),
                resource: "signers".to_owned(),
                name: name.to_owned(),
                ..Access::default()
            };
            self.authorize(&call.user, &access).is_ok()
        })
    }
}

/// Returns whether the call is about a CertificateSigningRequest.
pub fn is_certificate_request(call: &Call) -> bool {
    let resource = &call.kind.resource;
    *resource.group == *GROUP && resource.plural == "certificatesigningrequests"
}
