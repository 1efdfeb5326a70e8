//! A CertificateSigningRequest.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::objects::{Istr, Meta, Timestamp, WholeMeta, null_as_default, resource};

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct CertificateSigningRequest {
    #[serde(rename = "metadata", deserialize_with = "null_as_default")]
    pub meta: Meta,
    #[serde(deserialize_with = "null_as_default")]
    pub spec: CertificateSigningRequestSpec,
    #[serde(deserialize_with = "null_as_default")]
    pub status: CertificateSigningRequestStatus,
}

resource!(
    CertificateSigningRequest,
    "certificates.k8s.io",
    "v1",
    "certificatesigningrequests",
    cluster
);

impl WholeMeta for CertificateSigningRequest {}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CertificateSigningRequestSpec {
    /// PEM in base64.
    #[serde(deserialize_with = "null_as_default")]
    pub request: Box<str>,
    pub signer_name: Istr,
    pub expiration_seconds: Option<i32>,
    #[serde(deserialize_with = "null_as_default")]
    pub usages: Vec<Istr>,
    /// The user who created the request.
    pub username: Istr,
    pub uid: Istr,
    #[serde(deserialize_with = "null_as_default")]
    pub groups: Vec<Istr>,
    #[serde(deserialize_with = "null_as_default")]
    pub extra: BTreeMap<String, Option<Vec<String>>>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CertificateSigningRequestStatus {
    #[serde(deserialize_with = "null_as_default")]
    pub conditions: Vec<RequestCondition>,
    /// PEM in base64; empty until it is issued.
    #[serde(skip_serializing_if = "is_empty", deserialize_with = "null_as_default")]
    pub certificate: Box<str>,
}

fn is_empty(text: &str) -> bool {
    text.is_empty()
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RequestCondition {
    #[serde(rename = "type")]
    pub kind: Istr,
    pub status: Istr,
    pub reason: Istr,
    pub message: Istr,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_update_time: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Timestamp>,
}

impl CertificateSigningRequestStatus {
    pub const APPROVED: &str = "Approved";
    pub const DENIED: &str = "Denied";
    pub const FAILED: &str = "Failed";

    pub fn is_issued(&self) -> bool {
        !self.certificate.is_empty()
    }

    /// Returns whether the request has a condition of this type, with any status.
    pub fn has(&self, kind: &str) -> bool {
        self.conditions.iter().any(|condition| condition.kind == *kind)
    }

    pub fn is_approved(&self) -> bool {
        self.has(Self::APPROVED) && !self.has(Self::DENIED)
    }

    /// Returns whether the request has failed. A condition without a status counts as true.
    pub fn is_failed(&self) -> bool {
        self.conditions.iter().any(|condition| {
            condition.kind == *Self::FAILED && matches!(condition.status.as_str(), "" | "True")
        })
    }
}
