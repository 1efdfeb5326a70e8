//! The lean view of a PersistentVolume.

use serde::Deserialize;

use crate::objects::{Istr, Meta, resource};

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PersistentVolume {
    #[serde(rename = "metadata")]
    pub meta: Meta,
    pub spec: PersistentVolumeSpec,
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
