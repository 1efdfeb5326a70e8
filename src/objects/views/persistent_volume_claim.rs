//! The lean view of a PersistentVolumeClaim.

use serde::{Deserialize, Deserializer};

use crate::objects::{Istr, Meta, Quantity, ResourceList, null_as_default, resource};

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PersistentVolumeClaim {
    #[serde(rename = "metadata", deserialize_with = "null_as_default")]
    pub meta: Meta,
    #[serde(deserialize_with = "null_as_default")]
    pub spec: PersistentVolumeClaimSpec,
    #[serde(deserialize_with = "null_as_default")]
    pub status: PersistentVolumeClaimStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PersistentVolumeClaimSpec {
    /// The storage requested.
    #[serde(rename = "resources", deserialize_with = "requested_storage")]
    pub storage: Option<Quantity>,
    pub storage_class_name: Option<Istr>,
    pub volume_attributes_class_name: Option<Istr>,
    /// Empty: not bound.
    pub volume_name: Istr,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PersistentVolumeClaimStatus {
    pub phase: Istr,
    /// The storage that an expansion under way has set aside.
    #[serde(rename = "allocatedResources", deserialize_with = "storage")]
    pub allocated_storage: Option<Quantity>,
    pub current_volume_attributes_class_name: Option<Istr>,
    pub modify_volume_status: Option<ModifyVolumeStatus>,
    pub conditions: Option<Box<[ClaimCondition]>>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ClaimCondition {
    pub r#type: Istr,
    pub status: Istr,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ModifyVolumeStatus {
    pub target_volume_attributes_class_name: Istr,
}

resource!(PersistentVolumeClaim, "", "v1", "persistentvolumeclaims", namespaced);

impl PersistentVolumeClaim {
    pub fn condition(&self, name: &str) -> Option<&ClaimCondition> {
        self.status.conditions.iter().flatten().find(|condition| condition.r#type == *name)
    }

    /// The name of its StorageClass, or empty. Upstream: `GetPersistentVolumeClaimClass`.
    pub fn storage_class(&self) -> &str {
        let annotated = self.meta.annotations.get("volume.beta.kubernetes.io/storage-class");
        annotated.or(self.spec.storage_class_name.as_deref()).unwrap_or_default()
    }

    /// The VolumeAttributesClasses it has, wants, or is on the way to.
    /// Upstream: `getReferencedVolumeAttributesClassNames`.
    pub fn volume_attributes_classes(&self) -> Vec<&Istr> {
        let PersistentVolumeClaim { spec, status, .. } = self;
        let target = status.modify_volume_status.as_ref();
        let names = [
            spec.volume_attributes_class_name.as_ref(),
            status.current_volume_attributes_class_name.as_ref(),
            target.map(|target| &target.target_volume_attributes_class_name),
        ];
        let mut names: Vec<&Istr> =
            names.into_iter().flatten().filter(|name| !name.is_empty()).collect();
        names.sort();
        names.dedup();
        names
    }
}

fn requested_storage<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Quantity>, D::Error> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Resources {
        #[serde(deserialize_with = "null_as_default")]
        requests: ResourceList,
    }
    let resources = Option::<Resources>::deserialize(from)?.unwrap_or_default();
    Ok(resources.requests.get("storage"))
}

fn storage<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Quantity>, D::Error> {
    Ok(ResourceList::deserialize(from)?.get("storage"))
}
