//! The lean view of a StorageClass.

use serde::Deserialize;

use crate::objects::{Istr, Meta, null_as_default, resource};

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StorageClass {
    #[serde(rename = "metadata", deserialize_with = "null_as_default")]
    pub meta: Meta,
    pub provisioner: Istr,
    pub reclaim_policy: Istr,
    /// Empty: the server has not set its default.
    pub volume_binding_mode: Istr,
    #[serde(deserialize_with = "null_as_default")]
    pub mount_options: Vec<Istr>,
}

resource!(StorageClass, "storage.k8s.io", "v1", "storageclasses", cluster);

impl StorageClass {
    /// Returns whether an annotation makes it the default class. Upstream:
    /// `util.IsDefaultAnnotation`.
    pub fn is_default(&self) -> bool {
        const NAMES: [&str; 2] = [
            "storageclass.kubernetes.io/is-default-class",
            "storageclass.beta.kubernetes.io/is-default-class",
        ];
        NAMES.iter().any(|name| self.meta.annotations.get(name) == Some("true"))
    }
}
