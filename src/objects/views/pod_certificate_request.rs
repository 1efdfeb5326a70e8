//! The lean view of a PodCertificateRequest: only its metadata.

use serde::Deserialize;

use crate::objects::{Meta, null_as_default, resource};

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PodCertificateRequest {
    #[serde(rename = "metadata", deserialize_with = "null_as_default")]
    pub meta: Meta,
}

resource!(
    PodCertificateRequest,
    "certificates.k8s.io",
    "v1beta1",
    "podcertificaterequests",
    namespaced
);
