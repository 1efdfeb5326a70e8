//! The lean view of a VolumeAttributesClass.

use serde::Deserialize;

use crate::objects::{Meta, resource};

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct VolumeAttributesClass {
    #[serde(rename = "metadata")]
    pub meta: Meta,
}

resource!(VolumeAttributesClass, "storage.k8s.io", "v1", "volumeattributesclasses", cluster);
