//! The lean view of a Namespace.

use serde::{Deserialize, Serialize};

use crate::objects::{Condition, Istr, Meta, WholeMeta, null_as_default, resource};

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Namespace {
    #[serde(rename = "metadata", deserialize_with = "null_as_default")]
    pub meta: Meta,
    #[serde(deserialize_with = "null_as_default")]
    pub spec: NamespaceSpec,
    #[serde(deserialize_with = "null_as_default")]
    pub status: NamespaceStatus,
}

/// The whole spec, so that it can be written back.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NamespaceSpec {
    /// The finalizers that must be removed before the namespace is.
    #[serde(deserialize_with = "null_as_default")]
    pub finalizers: Vec<Istr>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NamespaceStatus {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Vec<Condition>>,
}

resource!(Namespace, "", "v1", "namespaces", cluster);
impl WholeMeta for Namespace {}

impl Namespace {
    /// Whether `status.phase` is `Active`.
    pub fn is_active(&self) -> bool {
        self.status.phase.as_deref() == Some("Active")
    }

    /// Whether `status.phase` is `Terminating`.
    pub fn is_terminating(&self) -> bool {
        self.status.phase.as_deref() == Some("Terminating")
    }
}
