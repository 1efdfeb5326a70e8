//! The lean view of a CSIDriver.

use serde::Deserialize;

use crate::objects::{Meta, null_as_default, resource};

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct CSIDriver {
    #[serde(rename = "metadata", deserialize_with = "null_as_default")]
    pub meta: Meta,
    #[serde(deserialize_with = "null_as_default")]
    pub spec: CSIDriverSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CSIDriverSpec {
    pub attach_required: Option<bool>,
    pub se_linux_mount: Option<bool>,
}

resource!(CSIDriver, "storage.k8s.io", "v1", "csidrivers", cluster);

impl CSIDriver {
    /// Returns whether volumes of the driver are attached before they are mounted. Upstream:
    /// `skipAttach`.
    pub fn attaches(&self) -> bool {
        self.spec.attach_required != Some(false)
    }
}
