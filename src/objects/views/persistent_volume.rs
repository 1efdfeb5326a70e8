//! The lean view of a PersistentVolume.

use serde::Deserialize;

use crate::objects::{Istr, Meta, null_as_default, resource};

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PersistentVolume {
    #[serde(rename = "metadata", deserialize_with = "null_as_default")]
    pub meta: Meta,
    #[serde(deserialize_with = "null_as_default")]
    pub spec: PersistentVolumeSpec,
    #[serde(deserialize_with = "null_as_default")]
    pub status: PersistentVolumeStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PersistentVolumeSpec {
    pub volume_attributes_class_name: Option<Istr>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PersistentVolumeStatus {
    pub phase: Istr,
}

resource!(PersistentVolume, "", "v1", "persistentvolumes", cluster);

impl PersistentVolume {
    pub fn is_bound(&self) -> bool {
        self.status.phase == "Bound"
    }
}
