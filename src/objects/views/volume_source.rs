//! The sources of volumes that are attached to a node before they are mounted.

use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::objects::{Istr, null_as_default};

/// The source of a PersistentVolume, or of a volume that a pod names itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum VolumeSource {
    Csi {
        driver: Istr,
        /// Empty for a volume of a pod: it lives and dies with the pod and is never attached.
        handle: Box<str>,
    },
    InTree {
        kind: InTreeKind,
        /// The fields of the source as JSON.
        fields: Box<str>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InTreeKind {
    AwsElasticBlockStore,
    AzureDisk,
    AzureFile,
    Cinder,
    Fc,
    GcePersistentDisk,
    Iscsi,
    Portworx,
    Vsphere,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WireCsi {
    driver: Istr,
    #[serde(deserialize_with = "null_as_default")]
    volume_handle: Box<str>,
}

/// JSON, as text.
pub(super) struct Fields(Box<str>);

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Fields, D::Error> {
        Ok(Fields(Value::deserialize(from)?.to_string().into()))
    }
}

impl VolumeSource {
    /// Of the sources as they come, those in-tree in the order of their kinds.
    pub(super) fn of(csi: Option<WireCsi>, in_tree: [Option<Fields>; 9]) -> Option<VolumeSource> {
        use InTreeKind::*;
        if let Some(WireCsi { driver, volume_handle: handle }) = csi {
            return Some(VolumeSource::Csi { driver, handle });
        }
        let kinds = [
            AwsElasticBlockStore,
            AzureDisk,
            AzureFile,
            Cinder,
            Fc,
            GcePersistentDisk,
            Iscsi,
            Portworx,
            Vsphere,
        ];
        let mut found = kinds.into_iter().zip(in_tree).filter_map(|(kind, f)| Some((kind, f?)));
        let (kind, Fields(fields)) = found.next()?;
        Some(VolumeSource::InTree { kind, fields })
    }
}
