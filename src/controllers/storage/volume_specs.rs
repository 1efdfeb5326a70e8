//! The volumes of pods, their plugins and their unique names.
//! Upstream: `volume.Spec`, `VolumePluginMgr`, `CreateVolumeSpecWithNodeMigration`.

use std::fmt::Write;
use std::sync::Arc;

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::csi_migration::translation;
use super::flexvolume::{Drivers, Flex};
use crate::cache::Lister;
use crate::objects::{
    CSIDriver, ClaimSource, ClaimVolume, InTreeKind, InlineVolume, Istr, LocalSource, Meta,
    ObjectKey, PersistentVolume, PersistentVolumeClaim, Pod, VolumeSource, from_json,
};

/// The plugins that attach volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plugin {
    Csi,
    Fc,
    Iscsi,
    /// A FlexVolume driver; its name is the driver's.
    Flex,
}

impl Plugin {
    const ALL: [Plugin; 3] = [Plugin::Csi, Plugin::Fc, Plugin::Iscsi];

    pub fn name(self) -> &'static str {
        match self {
            Plugin::Csi => "kubernetes.io/csi",
            Plugin::Fc => "kubernetes.io/fc",
            Plugin::Iscsi => "kubernetes.io/iscsi",
            // Each driver has its own name, which is in the spec.
            Plugin::Flex => "",
        }
    }

    /// Splits a volume's unique name into the plugin and the plugin's own name of the volume.
    /// `None` if it is the name of a FlexVolume driver, or of no plugin. Upstream:
    /// `SplitUniqueName`.
    pub fn from_unique_name(unique: &str) -> Option<(Plugin, &str)> {
        Plugin::ALL.into_iter().find_map(|plugin| {
            let rest = unique.strip_prefix(plugin.name())?;
            Some((plugin, rest.strip_prefix('/')?))
        })
    }
}

/// Splits a unique name `vendor/driver/volume` into the FlexVolume driver and its name of the
/// volume; `None` for names of another form.
pub fn flex_driver_of(unique: &str) -> Option<(&str, &str)> {
    let (vendor, rest) = unique.split_once('/')?;
    let (name, _) = rest.split_once('/')?;
    let (driver, volume) = unique.split_at(vendor.len() + 1 + name.len());
    Some((driver, volume.strip_prefix('/')?))
}

/// A volume, as a pod or a PersistentVolume describes it.
#[derive(Debug, PartialEq)]
pub struct Spec {
    /// The volume's name in messages.
    pub name: Istr,
    pub plugin: Plugin,
    /// The volume's name in statuses of nodes. Upstream: `UniqueVolumeName`.
    pub volume: Istr,
    /// Whether it may be attached to several nodes. Upstream: `IsMultiAttachAllowed`.
    pub multi_attach: bool,
    pub migrated: bool,
    pub csi: Option<Csi>,
    pub flex: Option<Flex>,
}

#[derive(Debug, PartialEq)]
pub struct Csi {
    pub driver: Istr,
    pub handle: Box<str>,
    pub source: AttachmentSource,
}

/// The source in a VolumeAttachment.
#[derive(Debug, PartialEq)]
pub enum AttachmentSource {
    /// The PersistentVolume's name.
    Volume(Istr),
    /// A migrated inline volume of a pod.
    Inline(Value),
    /// Never attached: a volume that exists as long as its pod.
    Never,
}

/// The separator between a driver's name and a volume's handle.
const SEPARATOR: char = '^';

impl Spec {
    /// Makes the spec of a volume of a CSI driver.
    fn csi(name: Istr, driver: Istr, handle: Box<str>, source: AttachmentSource) -> Spec {
        let plugin = Plugin::Csi;
        let volume = format!("{}/{driver}{SEPARATOR}{handle}", plugin.name()).into();
        let csi = Some(Csi { driver, handle, source });
        Spec { name, plugin, volume, multi_attach: true, migrated: false, csi, flex: None }
    }

    /// Makes the spec of a volume of a FlexVolume driver.
    fn flex(name: Istr, flex: Flex) -> Spec {
        let (plugin, volume) = (Plugin::Flex, format!("{}/{name}", flex.driver).into());
        let flex = Some(flex);
        Spec { name, plugin, volume, multi_attach: true, migrated: false, csi: None, flex }
    }

    /// Makes the spec of a volume of a plugin that is still in the tree. `of_plugin`: the plugin's
    /// own name of the volume.
    fn in_tree(name: Istr, plugin: Plugin, of_plugin: &str) -> Spec {
        let volume = format!("{}/{of_plugin}", plugin.name()).into();
        Spec { name, plugin, volume, multi_attach: true, migrated: false, csi: None, flex: None }
    }

    /// Returns the plugin's name in metrics. Upstream: `GetFullQualifiedPluginNameForVolume`.
    pub fn plugin_name(&self) -> String {
        match (&self.csi, &self.flex) {
            (Some(csi), _) => format!("{}:{}", self.plugin.name(), csi.driver),
            (None, Some(flex)) => flex.driver.to_string(),
            (None, None) => self.plugin.name().to_owned(),
        }
    }
}

/// Returns the name of the VolumeAttachment of a volume on a node.
/// Upstream: `getAttachmentName`.
pub fn attachment_name(handle: &str, driver: &str, node: &str) -> Istr {
    let mut hash = Sha256::new();
    [handle, driver, node].iter().for_each(|part| hash.update(part.as_bytes()));
    let mut name = String::from("csi-");
    for byte in hash.finalize() {
        // Writing to a String does not fail.
        let _ = write!(name, "{byte:02x}");
    }
    name.into()
}

/// Splits the name that the CSI plugin gave to a volume into driver and handle; `None` if it has
/// another form.
pub fn driver_and_handle(of_plugin: &str) -> Option<(&str, &str)> {
    let (driver, handle) = of_plugin.split_once(SEPARATOR)?;
    (!handle.contains(SEPARATOR)).then_some((driver, handle))
}

/// Returns whether volumes with these access modes may be attached to several nodes: if they have
/// no modes, or one that allows it.
fn multi_attach<'a>(mut modes: impl ExactSizeIterator<Item = &'a str>) -> bool {
    modes.len() == 0 || modes.any(|mode| ["ReadWriteMany", "ReadOnlyMany"].contains(&mode))
}

/// Returns the spec of a PersistentVolume; `None` if it is not attached, or its source cannot be
/// read. `read_only`: as the pod mounts it.
pub fn of_volume(volume: &PersistentVolume, read_only: bool) -> Option<Spec> {
    let name = Istr::new(&volume.meta.name);
    let modes = volume.spec.access_modes.iter();
    let source = AttachmentSource::Volume(name.clone());
    let mut spec = match &**volume.spec.source.as_ref()? {
        VolumeSource::Csi { driver, handle } => {
            Spec::csi(name, driver.clone(), handle.clone(), source)
        }
        VolumeSource::InTree { kind, fields } => {
            let fields: Value = from_json(fields).ok()?;
            if *kind == InTreeKind::Flex {
                let flex = Flex::from_source(&fields, &name, read_only)?;
                Spec::flex(name, flex)
            } else if let Some((plugin, of_plugin)) = still_in_tree(*kind, &fields) {
                Spec::in_tree(name, plugin, &of_plugin?)
            } else {
                let migrated = translation::of_volume(*kind, &fields, volume)?;
                let driver = migrated.driver.into();
                let mut spec = Spec::csi(name, driver, migrated.handle.into(), source);
                spec.migrated = true;
                let modes = translation::access_modes(*kind, volume);
                spec.multi_attach = multi_attach(modes.into_iter());
                return Some(spec);
            }
        }
    };
    spec.multi_attach = multi_attach(modes.map(|mode| mode.as_str()));
    Some(spec)
}

/// Returns the spec of an inline volume of a pod; `None` if its source cannot be read, or not be
/// translated for its CSI driver.
pub fn of_inline(volume: &InlineVolume, namespace: &str) -> Option<Spec> {
    let name = volume.name.clone();
    match &volume.source {
        VolumeSource::Csi { driver, .. } => {
            Some(Spec::csi(name, driver.clone(), "".into(), AttachmentSource::Never))
        }
        VolumeSource::InTree { kind, fields } => {
            let fields: Value = from_json(fields).ok()?;
            if *kind == InTreeKind::Flex {
                let flex = Flex::from_source(&fields, &name, fields["readOnly"] == true)?;
                return Some(Spec::flex(name, flex));
            }
            if let Some((plugin, of_plugin)) = still_in_tree(*kind, &fields) {
                return Some(Spec::in_tree(name, plugin, &of_plugin?));
            }
            let inline = translation::of_inline(*kind, &fields, &name, namespace)?;
            let (driver, handle) = (inline.driver.into(), inline.handle.into());
            let source = AttachmentSource::Inline(inline.spec);
            let mut spec = Spec::csi(inline.name.into(), driver, handle, source);
            spec.migrated = true;
            spec.multi_attach = multi_attach([inline.access_mode].into_iter());
            Some(spec)
        }
    }
}

/// Returns the plugin of a kind that has not been migrated to CSI, with the plugin's name of the
/// volume, which is `None` if fields are missing. `None` for other kinds.
fn still_in_tree(kind: InTreeKind, fields: &Value) -> Option<(Plugin, Option<String>)> {
    let list = |name: &str| -> Vec<&str> {
        fields[name].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
    };
    let text = |name: &str| fields[name].as_str().unwrap_or_default();
    match kind {
        InTreeKind::Fc => {
            let (targets, ids) = (list("targetWWNs"), list("wwids"));
            // Go prints lists in this form.
            let name = match fields["lun"].as_i64() {
                Some(lun) if !targets.is_empty() => Some(format!("[{}]:{lun}", targets.join(" "))),
                _ => (!ids.is_empty()).then(|| format!("[{}]", ids.join(" "))),
            };
            Some((Plugin::Fc, name))
        }
        InTreeKind::Iscsi => {
            let lun = fields["lun"].as_i64().unwrap_or_default();
            let name = format!("{}:{}:{lun}", text("targetPortal"), text("iqn"));
            Some((Plugin::Iscsi, Some(name)))
        }
        _ => None,
    }
}

/// Finds the specs of pods' volumes.
#[derive(Clone)]
pub struct Resolver {
    pub claims: Lister<PersistentVolumeClaim>,
    pub volumes: Lister<PersistentVolume>,
    pub drivers: Lister<CSIDriver>,
    /// `None`: FlexVolumes are left out.
    pub flex: Option<Arc<Drivers>>,
}

impl Resolver {
    /// Returns the specs of all volumes of `pod` that are bound and have a plugin here.
    pub fn specs(&self, pod: &Pod) -> Vec<Spec> {
        let shape = &pod.spec.shape;
        let claimed = shape.claims.iter().filter_map(|claim| self.of_claim(&pod.meta, claim));
        let namespace = &pod.meta.namespace;
        let inline = shape.inline_volumes.iter().filter_map(|volume| of_inline(volume, namespace));
        claimed.chain(inline).collect()
    }

    /// Returns the drivers of the FlexVolumes of `pod`.
    pub fn flex_drivers(&self, pod: &Pod) -> Vec<Istr> {
        let shape = &pod.spec.shape;
        let claimed = shape.claims.iter().filter_map(|claim| {
            let volume = self.volume_of_claim(&pod.meta, claim)?;
            if volume.spec.local != Some(LocalSource::FlexVolume) {
                return None;
            }
            of_volume(&volume, claim.read_only)
        });
        let is_flex = |source: &VolumeSource| {
            matches!(source, VolumeSource::InTree { kind: InTreeKind::Flex, .. })
        };
        let inline = shape.inline_volumes.iter().filter(|volume| is_flex(&volume.source));
        let inline = inline.filter_map(|volume| of_inline(volume, &pod.meta.namespace));
        claimed.chain(inline).filter_map(|spec| Some(spec.flex?.driver)).collect()
    }

    /// Returns the spec of the volume to which a claim of `pod` is bound; `None` if it is not
    /// bound, or the volume has no plugin here.
    pub fn of_claim(&self, pod: &Meta, volume: &ClaimVolume) -> Option<Spec> {
        of_volume(&*self.volume_of_claim(pod, volume)?, volume.read_only)
    }

    /// Returns the PersistentVolume to which the claim of a pod's volume is bound; `None` if it is
    /// not bound on both sides, or the claim of an ephemeral volume is not the pod's.
    /// Upstream: `createInTreeVolumeSpec`.
    pub fn volume_of_claim(
        &self,
        pod: &Meta,
        volume: &ClaimVolume,
    ) -> Option<Arc<PersistentVolume>> {
        let for_pod = volume.claim == ClaimSource::Ephemeral;
        let claim = self.claims.get(&ObjectKey::new(&pod.namespace, &volume.claim_of(pod)))?;
        if claim.status.phase != "Bound" || claim.spec.volume_name.is_empty() {
            return None;
        }
        if for_pod && !claim.meta.is_controlled_by(&pod.uid) {
            return None;
        }
        let volume = self.volumes.get(&ObjectKey::cluster(&claim.spec.volume_name))?;
        let is_bound = volume.spec.claim_ref.as_ref()?.uid == claim.meta.uid;
        is_bound.then_some(volume)
    }

    /// Returns whether a plugin attaches the volume. Upstream: `FindAttachablePluginBySpec`.
    pub fn is_attachable(&self, spec: &Spec) -> bool {
        if let Some(flex) = &spec.flex {
            return self.flex.as_ref().is_some_and(|drivers| drivers.attaches(&flex.driver));
        }
        let Some(csi) = &spec.csi else { return true };
        csi.source != AttachmentSource::Never && self.attaches(&csi.driver)
    }

    /// Returns whether there is a plugin that detaches the volume: that of its spec, or without one
    /// that of its unique name. Upstream: `findDetachablePluginBySpec`,
    /// `FindAttachablePluginByName`.
    pub fn is_detachable(&self, spec: Option<&Spec>, unique: &str) -> bool {
        let driver = match spec {
            Some(Spec { flex: None, .. }) => return true,
            Some(Spec { flex: Some(flex), .. }) => &*flex.driver,
            None if Plugin::from_unique_name(unique).is_some() => return true,
            // No driver has an empty name.
            None => flex_driver_of(unique).map_or("", |(driver, _)| driver),
        };
        self.flex.as_ref().is_some_and(|drivers| drivers.attaches(driver))
    }

    /// Returns whether a CSI driver attaches its volumes. One without a CSIDriver object does.
    pub fn attaches(&self, driver: &str) -> bool {
        self.drivers.get(&ObjectKey::cluster(driver)).is_none_or(|driver| driver.attaches())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_are_those_of_upstream() {
        for (source, unique, plugin) in [
            (
                json!({ "csi": { "driver": "d", "volumeHandle": "h" } }),
                "kubernetes.io/csi/d^h",
                "kubernetes.io/csi:d",
            ),
            (
                json!({ "fc": { "targetWWNs": ["a", "b"], "lun": 0 } }),
                "kubernetes.io/fc/[a b]:0",
                "kubernetes.io/fc",
            ),
            (json!({ "fc": { "wwids": ["w"] } }), "kubernetes.io/fc/[w]", "kubernetes.io/fc"),
            (
                json!({ "iscsi": { "targetPortal": "1.2.3.4:3260", "iqn": "iqn.x", "lun": 2 } }),
                "kubernetes.io/iscsi/1.2.3.4:3260:iqn.x:2",
                "kubernetes.io/iscsi",
            ),
            (
                json!({ "flexVolume": { "driver": "k8s/lvm", "options": { "a": "b" } } }),
                "k8s/lvm/pv",
                "k8s/lvm",
            ),
            (
                json!({ "awsElasticBlockStore": { "volumeID": "vol-1" } }),
                "kubernetes.io/csi/ebs.csi.aws.com^vol-1",
                "kubernetes.io/csi:ebs.csi.aws.com",
            ),
        ] {
            let mut object = json!({ "metadata": { "name": "pv" }, "spec": &source });
            object["spec"]["accessModes"] = json!(["ReadWriteOnce"]);
            let volume: PersistentVolume = serde_json::from_value(object).unwrap();
            let spec = of_volume(&volume, false).unwrap();
            assert_eq!((&*spec.volume, &*spec.plugin_name()), (unique, plugin));
            assert!(!spec.multi_attach);
            assert_eq!(spec.migrated, source.get("awsElasticBlockStore").is_some(), "{source}");
            assert_eq!(
                Plugin::from_unique_name(unique).map_or(Plugin::Flex, |found| found.0),
                spec.plugin
            );
        }
        assert_eq!(flex_driver_of("k8s/lvm/pv"), Some(("k8s/lvm", "pv")));
        assert_eq!(flex_driver_of("lvm/pv"), None);
        assert_eq!(Plugin::from_unique_name("kubernetes.io/gce-pd/x"), None);
        assert_eq!(driver_and_handle("d^h"), Some(("d", "h")));
        assert_eq!(driver_and_handle("d^h^i"), None);
        // `printf hdn | sha256sum`
        assert_eq!(
            attachment_name("h", "d", "n"),
            "csi-9072ed11cc1acb5fa433a877ff339b6311d013f33bddd1d0092711a8ace5b16d"
        );
    }

    #[test]
    fn access_modes_decide_whether_several_nodes_are_allowed() {
        for (modes, several) in [
            (&[][..], true),
            (&["ReadWriteOnce"], false),
            (&["ReadWriteOncePod"], false),
            (&["ReadWriteOnce", "ReadOnlyMany"], true),
            (&["ReadWriteMany"], true),
        ] {
            assert_eq!(multi_attach(modes.iter().copied()), several, "{modes:?}");
        }
    }

    #[test]
    fn inline_volumes_of_drivers_are_never_attached() {
        let pod: Pod = serde_json::from_value(json!({ "spec": { "volumes": [
            { "name": "a", "csi": { "driver": "d" } },
            { "name": "b", "iscsi": { "targetPortal": "p", "iqn": "i" } },
            { "name": "c", "emptyDir": {} },
        ] } }))
        .unwrap();
        let specs: Vec<Spec> =
            pod.spec.shape.inline_volumes.iter().filter_map(|v| of_inline(v, "ns")).collect();
        assert_eq!(specs.len(), 2);
        assert_eq!(specs[0].csi.as_ref().unwrap().source, AttachmentSource::Never);
        assert_eq!((&*specs[1].name, &*specs[1].volume), ("b", "kubernetes.io/iscsi/p:i:0"));
        assert!(specs[1].multi_attach);
    }
}
