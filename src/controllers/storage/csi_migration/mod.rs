//! In-tree plugins that CSI drivers have replaced. Upstream: `pkg/volume/csimigration`
//! and `csi-translation-lib`.

pub mod translation;

use crate::objects::{InTreeKind, PersistentVolume, VolumeSource};

/// In-tree plugins and their CSI drivers. All are migrated; no gate changes that.
const MIGRATED: [(&str, &str, InTreeKind); 7] = [
    ("kubernetes.io/aws-ebs", "ebs.csi.aws.com", InTreeKind::AwsElasticBlockStore),
    ("kubernetes.io/gce-pd", "pd.csi.storage.gke.io", InTreeKind::GcePersistentDisk),
    ("kubernetes.io/cinder", "cinder.csi.openstack.org", InTreeKind::Cinder),
    ("kubernetes.io/azure-disk", "disk.csi.azure.com", InTreeKind::AzureDisk),
    ("kubernetes.io/azure-file", "file.csi.azure.com", InTreeKind::AzureFile),
    ("kubernetes.io/vsphere-volume", "csi.vsphere.vmware.com", InTreeKind::Vsphere),
    ("kubernetes.io/portworx-volume", "pxd.portworx.com", InTreeKind::Portworx),
];

/// Returns the CSI driver of an in-tree plugin; `None` if it is not migrated.
pub fn driver_of(plugin: &str) -> Option<&'static str> {
    MIGRATED.iter().find(|(name, ..)| *name == plugin).map(|(_, driver, _)| *driver)
}

/// Returns the CSI driver of an in-tree kind of volumes; `None` if it is not migrated.
pub fn driver_of_kind(kind: InTreeKind) -> Option<&'static str> {
    MIGRATED.iter().find(|(.., known)| *known == kind).map(|(_, driver, _)| *driver)
}

/// Returns the migrated in-tree plugin of a volume's source, and its CSI driver.
pub fn plugin_of(volume: &PersistentVolume) -> Option<(&'static str, &'static str)> {
    let Some(VolumeSource::InTree { kind, .. }) = volume.spec.source.as_deref() else {
        return None;
    };
    let row = MIGRATED.iter().find(|(.., known)| known == kind)?;
    Some((row.0, row.1))
}
