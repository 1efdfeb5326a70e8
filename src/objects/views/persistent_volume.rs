//! The lean view of a PersistentVolume.

use serde::Deserialize;

use super::volume_source::{Fields, VolumeSource, WireCsi};
use crate::objects::{Istr, Meta, Uid, null_as_default, resource};

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
#[serde(from = "WireSpec")]
pub struct PersistentVolumeSpec {
    pub volume_attributes_class_name: Option<Istr>,
    pub access_modes: Box<[Istr]>,
    pub claim_ref: Option<Box<ClaimRef>>,
    /// `None`: a source that is never attached to a node.
    pub source: Option<Box<VolumeSource>>,
}

/// The claim that a volume is bound to.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ClaimRef {
    pub namespace: Istr,
    pub name: Istr,
    #[serde(deserialize_with = "null_as_default")]
    pub uid: Uid,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireSpec {
    volume_attributes_class_name: Option<Istr>,
    #[serde(deserialize_with = "null_as_default")]
    access_modes: Box<[Istr]>,
    claim_ref: Option<Box<ClaimRef>>,
    csi: Option<WireCsi>,
    aws_elastic_block_store: Option<Fields>,
    azure_disk: Option<Fields>,
    azure_file: Option<Fields>,
    cinder: Option<Fields>,
    fc: Option<Fields>,
    gce_persistent_disk: Option<Fields>,
    iscsi: Option<Fields>,
    portworx_volume: Option<Fields>,
    vsphere_volume: Option<Fields>,
}

impl From<WireSpec> for PersistentVolumeSpec {
    fn from(wire: WireSpec) -> PersistentVolumeSpec {
        let in_tree = [
            wire.aws_elastic_block_store,
            wire.azure_disk,
            wire.azure_file,
            wire.cinder,
            wire.fc,
            wire.gce_persistent_disk,
            wire.iscsi,
            wire.portworx_volume,
            wire.vsphere_volume,
        ];
        PersistentVolumeSpec {
            volume_attributes_class_name: wire.volume_attributes_class_name,
            access_modes: wire.access_modes,
            claim_ref: wire.claim_ref,
            source: VolumeSource::of(wire.csi, in_tree).map(Box::new),
        }
    }
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
