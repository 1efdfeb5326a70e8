//! Approves the certificate requests of kubelets that may ask for one.
//! Upstream: `pkg/controller/certificates/approver`.

use std::sync::Arc;

use serde_json::{Value, json};

use super::x509::CertificateRequest;
use super::{kubelet, requests};
use crate::cache::Lister;
use crate::client::Client;
use crate::controllers::runner::Change;
use crate::controllers::{Controller, Error, Next, SyncResult};
use crate::objects::{
    CertificateSigningRequest, CertificateSigningRequestStatus, ObjectKey, RequestCondition,
    ResourceType,
};

const SUBJECT_ACCESS_REVIEWS: ResourceType = ResourceType::fixed(
    "authorization.k8s.io",
    "v1",
    "SubjectAccessReview",
    "subjectaccessreviews",
    false,
);

const SIGNER: &str = "kubernetes.io/kube-apiserver-client-kubelet";

/// A right that lets a kubelet's request be approved: the subresource that a SubjectAccessReview
/// asks about, and the message of the approval.
struct ApprovalRight {
    subresource: &'static str,
    message: &'static str,
}

const SELF_RENEWAL: ApprovalRight = ApprovalRight {
    subresource: "selfnodeclient",
    message: "Auto approving self kubelet client certificate after SubjectAccessReview.",
};
const CLIENT: ApprovalRight = ApprovalRight {
    subresource: "nodeclient",
    message: "Auto approving kubelet client certificate after SubjectAccessReview.",
};

/// Sets up the controller `certificatesigningrequest-approving-controller`.
pub fn controller(c: &mut Controller) -> Result<(), String> {
    let requests = c.lister::<CertificateSigningRequest>();
    let queue = c.queue(requests::queue_policy(c.clock()));
    c.watch(&requests, &queue, |change, queue| {
        if !matches!(change, Change::Deleted(_)) && needs_decision(change.object()) {
            queue.add(change.object().meta.key());
        }
    });
    let this = Arc::new(Approving { client: c.client(), requests });
    c.sync(queue, &this, Approving::sync);
    Ok(())
}

struct Approving {
    client: Client,
    requests: Lister<CertificateSigningRequest>,
}

/// Returns whether the request names this controller's signer, has no certificate, and is neither
/// approved nor denied.
fn needs_decision(request: &CertificateSigningRequest) -> bool {
    let status = &request.status;
    let decided = status.has(CertificateSigningRequestStatus::APPROVED)
        || status.has(CertificateSigningRequestStatus::DENIED);
    request.spec.signer_name == *SIGNER && !status.is_issued() && !decided
}

/// Returns the rights to check, in this order; one of them is sufficient. Empty if the request is
/// not that of a kubelet for a client certificate: then this controller leaves it undecided.
fn approval_rights(
    object: &CertificateSigningRequest,
    request: &CertificateRequest,
) -> &'static [ApprovalRight] {
    if kubelet::check_client(request, &object.spec.usages).is_err() {
        return &[];
    }
    match object.spec.username == *request.subject.common_name() {
        true => &[SELF_RENEWAL, CLIENT],
        false => &[CLIENT],
    }
}

impl Approving {
    /// Approves the request if the requester has one of the rights. An error, so that it is
    /// retried, if the request is a kubelet's but the requester has none of them.
    async fn sync(self: Arc<Self>, key: ObjectKey) -> SyncResult {
        let Some(object) = self.requests.get(&key) else { return Ok(Next::Done) };
        if !needs_decision(&object) {
            return Ok(Next::Done);
        }
        let request = requests::parse_request(&object).map_err(Error::other)?;
        let rights = approval_rights(&object, &request);
        for right in rights {
            if self.has_right(&object, right).await? {
                let mut status = object.status.clone();
                status.conditions.push(RequestCondition {
                    kind: CertificateSigningRequestStatus::APPROVED.into(),
                    status: "True".into(),
                    reason: "AutoApproved".into(),
                    message: right.message.into(),
                    ..RequestCondition::default()
                });
                let updated = self.client.update_part(&*object, "approval", &status).await;
                let doing = "error updating approval for csr";
                return updated.map(|_| Next::Done).map_err(|error| Error::during(doing, error));
            }
        }
        if rights.is_empty() {
            return Ok(Next::Done);
        }
        let subresources: Vec<&str> = rights.iter().map(|right| right.subresource).collect();
        // This is usually a mistake of the requester.
        Err(Error::NotYet(format!(
            "recognized csr {:?} as [{}] but subject access review was not approved",
            key.name,
            subresources.join(" ")
        )))
    }

    /// Asks the API server's authorizers whether the requester has `right`.
    async fn has_right(
        &self,
        object: &CertificateSigningRequest,
        right: &ApprovalRight,
    ) -> Result<bool, Error> {
        let access_review = subject_access_review(object, right);
        let answer: Value =
            self.client.resource(&SUBJECT_ACCESS_REVIEWS).create("", &access_review).await?;
        Ok(answer["status"]["allowed"] == true)
    }
}

/// Builds the SubjectAccessReview that asks whether the requester may create `right`'s subresource.
fn subject_access_review(object: &CertificateSigningRequest, right: &ApprovalRight) -> Value {
    let spec = &object.spec;
    json!({
        "apiVersion": SUBJECT_ACCESS_REVIEWS.api_version(),
        "kind": SUBJECT_ACCESS_REVIEWS.kind,
        "spec": {
            "user": spec.username, "uid": spec.uid, "groups": spec.groups, "extra": spec.extra,
            "resourceAttributes": {
                "group": "certificates.k8s.io", "version": "*",
                "resource": "certificatesigningrequests", "subresource": right.subresource,
                "verb": "create",
            },
        },
    })
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;

    use super::*;

    fn request(username: &str, usages: &[&str]) -> CertificateSigningRequest {
        let csr = include_bytes!("../../../fixtures/certificates/kubelet-client.csr");
        serde_json::from_value(json!({
            "metadata": { "name": "csr" },
            "spec": {
                "request": STANDARD.encode(csr), "signerName": SIGNER, "usages": usages,
                "username": username, "uid": "7", "groups": ["a", "b"],
                "extra": { "e": ["1", "2"] },
            },
        }))
        .unwrap()
    }

    const USAGES: [&str; 2] = ["digital signature", "client auth"];

    #[test]
    fn rights_depend_on_the_requester_being_the_node_itself() {
        let rights = |username: &str, usages: &[&str]| -> Vec<&str> {
            let object = request(username, usages);
            let parsed = requests::parse_request(&object).unwrap();
            super::approval_rights(&object, &parsed).iter().map(|right| right.subresource).collect()
        };
        assert_eq!(rights("system:node:n1", &USAGES), ["selfnodeclient", "nodeclient"]);
        assert_eq!(rights("system:bootstrap:abcdef", &USAGES), ["nodeclient"]);
        assert!(rights("system:node:n1", &["server auth"]).is_empty());
    }

    #[test]
    fn a_review_names_the_requester_and_the_right() {
        let access_review = subject_access_review(&request("u", &USAGES), &CLIENT);
        assert_eq!(
            access_review["spec"],
            json!({
                "user": "u", "uid": "7", "groups": ["a", "b"], "extra": { "e": ["1", "2"] },
                "resourceAttributes": {
                    "group": "certificates.k8s.io", "version": "*", "verb": "create",
                    "resource": "certificatesigningrequests", "subresource": "nodeclient",
                },
            })
        );
    }

    #[test]
    fn decided_requests_and_other_signers_are_ignored() {
        let needs_decision_with = |change: Value| {
            let mut object = json!({ "spec": { "signerName": SIGNER } });
            for (key, value) in change.as_object().unwrap() {
                object[key] = value.clone();
            }
            needs_decision(&serde_json::from_value(object).unwrap())
        };
        assert!(needs_decision_with(json!({})));
        assert!(needs_decision_with(
            json!({ "status": { "conditions": null, "certificate": null } })
        ));
        assert!(needs_decision_with(json!({ "status": { "conditions": [{ "type": "Failed" }] } })));
        for kind in ["Approved", "Denied"] {
            assert!(!needs_decision_with(
                json!({ "status": { "conditions": [{ "type": kind }] } })
            ));
        }
        assert!(!needs_decision_with(json!({ "status": { "certificate": "eA==" } })));
        assert!(!needs_decision_with(
            json!({ "spec": { "signerName": "kubernetes.io/kubelet-serving" } })
        ));
    }
}
