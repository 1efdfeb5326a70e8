//! The lean view of a Namespace.

use serde::Deserialize;

use super::{Meta, resource};

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Namespace {
    #[serde(rename = "metadata")]
    pub meta: Meta,
    pub status: NamespaceStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NamespaceStatus {
    pub phase: NamespacePhase,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum NamespacePhase {
    Active,
    Terminating,
    /// Absent, or not known to this build.
    #[default]
    #[serde(other)]
    Unknown,
}

resource!(Namespace, "", "v1", "namespaces", cluster);

impl Namespace {
    pub fn is_active(&self) -> bool {
        self.status.phase == NamespacePhase::Active
    }
}
