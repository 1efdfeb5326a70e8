//! The view of a ResourceClaimTemplate.

use serde::Deserialize;

use crate::objects::{Meta, Template, null_as_default, resource};

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ResourceClaimTemplate {
    #[serde(rename = "metadata", deserialize_with = "null_as_default")]
    pub meta: Meta,
    /// Metadata and spec of the claims.
    #[serde(deserialize_with = "null_as_default")]
    pub spec: Template,
}

resource!(ResourceClaimTemplate, "resource.k8s.io", "v1", "resourceclaimtemplates", namespaced);
