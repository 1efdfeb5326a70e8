//! The lean view of a PersistentVolume.

use serde::de::{Error, IgnoredAny};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::volume_source::{VolumeSource, with_volume_sources};
use crate::objects::{
    InTreeKind, Istr, Meta, Quantity, ResourceList, Uid, WholeMeta, from_json, null_as_default,
    resource,
};

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PersistentVolume {
    #[serde(rename = "metadata", deserialize_with = "null_as_default")]
    pub meta: Meta,
    #[serde(deserialize_with = "spec")]
    pub spec: PersistentVolumeSpec,
    #[serde(deserialize_with = "null_as_default")]
    pub status: PersistentVolumeStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(from = "WireSpec")]
pub struct PersistentVolumeSpec {
    /// `capacity.storage`
    pub capacity: Option<Quantity>,
    pub access_modes: Box<[Istr]>,
    pub claim_ref: Option<Box<ClaimRef>>,
    pub reclaim_policy: Istr,
    pub storage_class_name: Istr,
    pub volume_attributes_class_name: Option<Istr>,
    /// Whether `volumeMode` is `Block`.
    pub is_block: bool,
    /// `None`: a source that is never attached to a node.
    pub source: Option<Box<VolumeSource>>,
    /// The sources that other controllers than the attach/detach controller read.
    pub local: Option<LocalSource>,
    /// The spec's JSON while the volume is not bound: it is needed to bind it.
    pub text: Option<Box<str>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalSource {
    HostPath,
    Nfs,
    FlexVolume,
}

/// The claim that a volume is bound to.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ClaimRef {
    pub namespace: Istr,
    pub name: Istr,
    /// Empty: the volume is reserved for a claim of this name.
    #[serde(deserialize_with = "null_as_default")]
    pub uid: Uid,
}

with_volume_sources! {
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct WireSpec {
        #[serde(deserialize_with = "null_as_default")]
        capacity: ResourceList,
        #[serde(deserialize_with = "null_as_default")]
        access_modes: Box<[Istr]>,
        claim_ref: Option<Box<ClaimRef>>,
        persistent_volume_reclaim_policy: Istr,
        storage_class_name: Istr,
        volume_attributes_class_name: Option<Istr>,
        volume_mode: Istr,
        host_path: Option<IgnoredAny>,
        nfs: Option<IgnoredAny>,
    }
}

impl From<WireSpec> for PersistentVolumeSpec {
    /// Converts the wire form of a spec to the view, which has the fields that some controller
    /// reads.
    fn from(mut wire: WireSpec) -> PersistentVolumeSpec {
        let source = wire.source().map(Box::new);
        let is_flex =
            matches!(source.as_deref(), Some(VolumeSource::InTree { kind: InTreeKind::Flex, .. }));
        let local = [
            (wire.host_path.is_some(), LocalSource::HostPath),
            (wire.nfs.is_some(), LocalSource::Nfs),
            (is_flex, LocalSource::FlexVolume),
        ];
        PersistentVolumeSpec {
            capacity: wire.capacity.get("storage"),
            access_modes: wire.access_modes,
            claim_ref: wire.claim_ref,
            reclaim_policy: wire.persistent_volume_reclaim_policy,
            storage_class_name: wire.storage_class_name,
            volume_attributes_class_name: wire.volume_attributes_class_name,
            is_block: wire.volume_mode == "Block",
            source,
            local: local.into_iter().find_map(|(found, source)| found.then_some(source)),
            text: None,
        }
    }
}

/// Reads a spec, and keeps its text if it is not bound to a claim's uid: binding the volume writes
/// the whole spec.
fn spec<'de, D: Deserializer<'de>>(from: D) -> Result<PersistentVolumeSpec, D::Error> {
    let text = Box::<RawValue>::deserialize(from)?;
    let spec = from_json::<Option<PersistentVolumeSpec>>(text.get());
    let mut spec = spec.map_err(D::Error::custom)?.unwrap_or_default();
    if spec.claim_ref.as_ref().is_none_or(|claim| claim.uid.is_empty()) {
        spec.text = Some(text.into());
    }
    Ok(spec)
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PersistentVolumeStatus {
    pub phase: Istr,
    pub reason: Istr,
}

resource!(PersistentVolume, "", "v1", "persistentvolumes", cluster);
impl WholeMeta for PersistentVolume {}

impl PersistentVolume {
    pub fn is_bound(&self) -> bool {
        self.status.phase == "Bound"
    }

    /// Returns the name of its StorageClass, or empty. Upstream: `GetPersistentVolumeClass`.
    pub fn storage_class(&self) -> &str {
        let annotated = self.meta.annotations.get("volume.beta.kubernetes.io/storage-class");
        annotated.unwrap_or(&self.spec.storage_class_name)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn the_text_of_the_spec_is_kept_until_the_volume_is_bound() {
        for (claim, kept) in [
            (Value::Null, true),
            (json!({ "name": "c", "namespace": "ns" }), true),
            (json!({ "name": "c", "namespace": "ns", "uid": "u" }), false),
        ] {
            let spec = json!({ "capacity": { "storage": "1Gi" }, "claimRef": claim, "new": 1.50 });
            let text = json!({ "metadata": { "name": "v" }, "spec": spec }).to_string();
            let volume: PersistentVolume = serde_json::from_str(&text).unwrap();
            assert_eq!(volume.spec.text.as_deref(), kept.then_some(&*spec.to_string()), "{claim}");
            assert_eq!(volume.spec.capacity, Some("1Gi".parse().unwrap()));
        }
        for absent in ["{}", r#"{"spec": null}"#] {
            assert!(serde_json::from_str::<PersistentVolume>(absent).is_ok(), "{absent}");
        }
    }
}
