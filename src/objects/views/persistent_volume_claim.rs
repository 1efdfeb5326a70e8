//! The lean view of a PersistentVolumeClaim.

use serde::de::{Error, IgnoredAny};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::objects::{
    Istr, LabelSelector, Meta, Quantity, ResourceList, WholeMeta, from_json, null_as_default,
    resource,
};

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PersistentVolumeClaim {
    #[serde(rename = "metadata", deserialize_with = "null_as_default")]
    pub meta: Meta,
    #[serde(deserialize_with = "read_spec")]
    pub spec: PersistentVolumeClaimSpec,
    #[serde(deserialize_with = "read_status")]
    pub status: PersistentVolumeClaimStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PersistentVolumeClaimSpec {
    /// The storage requested.
    #[serde(rename = "resources", deserialize_with = "requested_storage")]
    pub storage: Option<Quantity>,
    pub access_modes: Option<Box<[Istr]>>,
    /// Whether `volumeMode` is `Block`.
    #[serde(rename = "volumeMode", deserialize_with = "is_block")]
    pub is_block: bool,
    pub storage_class_name: Option<Istr>,
    pub volume_attributes_class_name: Option<Istr>,
    /// The selector of the volumes to which it may be bound.
    pub selector: Option<Box<LabelSelector>>,
    #[serde(rename = "dataSource", deserialize_with = "is_there")]
    pub has_data_source: bool,
    /// Empty: not bound.
    pub volume_name: Istr,
    /// The spec's JSON while the claim names no volume: it is needed to bind it.
    #[serde(skip)]
    pub text: Option<Box<str>>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PersistentVolumeClaimStatus {
    pub phase: Istr,
    pub access_modes: Option<Box<[Istr]>>,
    /// `capacity.storage`
    #[serde(deserialize_with = "storage")]
    pub capacity: Option<Quantity>,
    /// The storage that is allocated for an expansion in progress.
    #[serde(rename = "allocatedResources", deserialize_with = "storage")]
    pub allocated_storage: Option<Quantity>,
    pub current_volume_attributes_class_name: Option<Istr>,
    pub modify_volume_status: Option<ModifyVolumeStatus>,
    pub conditions: Option<Box<[ClaimCondition]>>,
    /// The status's JSON while the claim is not bound.
    #[serde(skip)]
    pub text: Option<Box<str>>,
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
impl WholeMeta for PersistentVolumeClaim {}

impl PersistentVolumeClaim {
    pub fn condition(&self, name: &str) -> Option<&ClaimCondition> {
        self.status.conditions.iter().flatten().find(|condition| condition.r#type == *name)
    }

    /// Returns the name of its StorageClass, or empty. Upstream: `GetPersistentVolumeClaimClass`.
    pub fn storage_class(&self) -> &str {
        let annotated = self.meta.annotations.get("volume.beta.kubernetes.io/storage-class");
        annotated.or(self.spec.storage_class_name.as_deref()).unwrap_or_default()
    }

    /// Returns the current, the wanted and the target VolumeAttributesClass, sorted, each once.
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

/// Reads a spec, and keeps its text if it names no volume: binding the claim writes the whole spec.
fn read_spec<'de, D: Deserializer<'de>>(from: D) -> Result<PersistentVolumeClaimSpec, D::Error> {
    let text = Box::<RawValue>::deserialize(from)?;
    let spec = from_json::<Option<PersistentVolumeClaimSpec>>(text.get());
    let mut spec = spec.map_err(D::Error::custom)?.unwrap_or_default();
    if spec.volume_name.is_empty() {
        spec.text = Some(text.into());
    }
    Ok(spec)
}

/// Reads a status, and keeps its text if it is not `Bound`: a change of the phase writes the whole
/// status.
fn read_status<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<PersistentVolumeClaimStatus, D::Error> {
    let text = Box::<RawValue>::deserialize(from)?;
    let status = from_json::<Option<PersistentVolumeClaimStatus>>(text.get());
    let mut status = status.map_err(D::Error::custom)?.unwrap_or_default();
    if status.phase != "Bound" {
        status.text = Some(text.into());
    }
    Ok(status)
}

fn is_block<'de, D: Deserializer<'de>>(from: D) -> Result<bool, D::Error> {
    Ok(Istr::deserialize(from)? == "Block")
}

/// Reads whether a field is present and not null.
fn is_there<'de, D: Deserializer<'de>>(from: D) -> Result<bool, D::Error> {
    Ok(Option::<IgnoredAny>::deserialize(from)?.is_some())
}

/// Reads `requests.storage` of the field `resources`.
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

/// Reads the amount `storage` of a list of resources.
fn storage<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Quantity>, D::Error> {
    Ok(ResourceList::deserialize(from)?.get("storage"))
}
