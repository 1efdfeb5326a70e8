//! The lean view of a VolumeAttributesClass.

use serde::Deserialize;

use crate::objects::{Meta, null_as_default, resource};

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct VolumeAttributesClass {
    #[serde(rename = "metadata", deserialize_with = "null_as_default")]
    pub meta: Meta,
}

resource!(VolumeAttributesClass, "storage.k8s.io", "v1", "volumeattributesclasses", cluster);
