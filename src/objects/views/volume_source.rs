//! The sources of volumes that are attached to a node before they are mounted.

use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::objects::{Istr, null_as_default};

/// The source of a PersistentVolume, or of an inline volume of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum VolumeSource {
    Csi {
        driver: Istr,
        /// Empty for an ephemeral volume of a pod, which is never attached.
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
    Flex,
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

/// Defines a struct with the sources of a volume in addition to its own fields, and the method
/// `source`, which returns the one that is set.
macro_rules! with_volume_sources {
    (
        $(#[$attribute:meta])*
        $visibility:vis struct $name:ident {
            $($(#[$of_field:meta])* $field:ident: $type:ty,)*
        }
    ) => {
        $(#[$attribute])*
        $visibility struct $name {
            $($(#[$of_field])* $field: $type,)*
            csi: Option<$crate::objects::views::volume_source::WireCsi>,
            aws_elastic_block_store: Option<$crate::objects::views::volume_source::Fields>,
            azure_disk: Option<$crate::objects::views::volume_source::Fields>,
            azure_file: Option<$crate::objects::views::volume_source::Fields>,
            cinder: Option<$crate::objects::views::volume_source::Fields>,
            fc: Option<$crate::objects::views::volume_source::Fields>,
            flex_volume: Option<$crate::objects::views::volume_source::Fields>,
            gce_persistent_disk: Option<$crate::objects::views::volume_source::Fields>,
            iscsi: Option<$crate::objects::views::volume_source::Fields>,
            portworx_volume: Option<$crate::objects::views::volume_source::Fields>,
            vsphere_volume: Option<$crate::objects::views::volume_source::Fields>,
        }

        impl $name {
            fn source(&mut self) -> Option<$crate::objects::VolumeSource> {
                use $crate::objects::InTreeKind::*;
                let in_tree = [
                    (AwsElasticBlockStore, self.aws_elastic_block_store.take()),
                    (AzureDisk, self.azure_disk.take()),
                    (AzureFile, self.azure_file.take()),
                    (Cinder, self.cinder.take()),
                    (Fc, self.fc.take()),
                    (Flex, self.flex_volume.take()),
                    (GcePersistentDisk, self.gce_persistent_disk.take()),
                    (Iscsi, self.iscsi.take()),
                    (Portworx, self.portworx_volume.take()),
                    (Vsphere, self.vsphere_volume.take()),
                ];
                $crate::objects::VolumeSource::of(self.csi.take(), in_tree)
            }
        }
    };
}
pub(super) use with_volume_sources;

impl VolumeSource {
    /// Selects the source that is set.
    pub(super) fn of(
        csi: Option<WireCsi>,
        in_tree: [(InTreeKind, Option<Fields>); 10],
    ) -> Option<VolumeSource> {
        if let Some(WireCsi { driver, volume_handle: handle }) = csi {
            return Some(VolumeSource::Csi { driver, handle });
        }
        let (kind, Fields(fields)) =
            in_tree.into_iter().find_map(|(kind, fields)| Some((kind, fields?)))?;
        Some(VolumeSource::InTree { kind, fields })
    }
}
