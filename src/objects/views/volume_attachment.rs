//! The lean view of a VolumeAttachment.

use serde::Deserialize;

use crate::objects::{Istr, Meta, null_as_default, resource};

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct VolumeAttachment {
    #[serde(rename = "metadata", deserialize_with = "null_as_default")]
    pub meta: Meta,
    #[serde(deserialize_with = "null_as_default")]
    pub spec: VolumeAttachmentSpec,
    #[serde(deserialize_with = "null_as_default")]
    pub status: VolumeAttachmentStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeAttachmentSpec {
    pub node_name: Istr,
    #[serde(deserialize_with = "null_as_default")]
    pub source: VolumeAttachmentSource,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeAttachmentSource {
    /// `None`: the volume is inline.
    pub persistent_volume_name: Option<Istr>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeAttachmentStatus {
    #[serde(deserialize_with = "null_as_default")]
    pub attached: bool,
    pub attach_error: Option<VolumeError>,
    pub detach_error: Option<VolumeError>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct VolumeError {
    #[serde(deserialize_with = "null_as_default")]
    pub message: Box<str>,
}

resource!(VolumeAttachment, "storage.k8s.io", "v1", "volumeattachments", cluster);
