//! A driver's volume, as a pod or a PersistentVolume names it.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use k8s_openapi::api::core::v1 as core;
use kube_controller_manager::objects::ObjectKey;

use crate::csi::api::volume_capability::MountVolume;
use crate::csi::{Lifecycle, PLUGIN, Stage, ephemeral_handle, unique_name};
use crate::pod::{Pod, PodExt};
use crate::volumes::claim::Bound;

/// A volume of a driver, as a pod's volume or its PersistentVolume names it.
#[derive(Clone, Debug)]
pub(in crate::volumes) struct CsiVolume {
    pub(in crate::volumes) driver: String,
    pub(in crate::volumes) handle: String,
    /// That of the pod's volume, or of the PersistentVolume.
    pub(in crate::volumes) name: String,
    pub(in crate::volumes) lifecycle: Lifecycle,
    pub(in crate::volumes) read_only: bool,
    pub(in crate::volumes) is_block: bool,
    /// See [`Bound::migrated`].
    pub(super) migrated: bool,
    pub(super) fs_type: String,
    pub(super) attributes: HashMap<String, String>,
    pub(super) access_modes: Vec<String>,
    pub(super) mount_options: Vec<String>,
    /// The namespaces and names of Secrets.
    pub(super) stage_secret: Option<ObjectKey>,
    pub(super) publish_secret: Option<ObjectKey>,
    pub(in crate::volumes) expand_secret: Option<ObjectKey>,
}

/// A volume on this node, as its driver names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::volumes) struct Handle {
    pub(in crate::volumes) driver: String,
    pub(in crate::volumes) handle: String,
}

impl Handle {
    /// Returns the plugin's name, for metrics.
    pub(in crate::volumes) fn plugin(&self) -> String {
        plugin(&self.driver)
    }

    /// Returns the volume's unique name, as the Node's status has it.
    pub(in crate::volumes) fn device(&self) -> String {
        unique_name(&self.driver, &self.handle)
    }
}

/// Returns the plugin's name of a driver's volumes, for metrics.
pub(super) fn plugin(driver: &str) -> String {
    format!("{PLUGIN}:{driver}")
}

/// Returns the namespace and name of a Secret that a volume refers to.
fn secret_key(secret: Option<&core::SecretReference>) -> Option<ObjectKey> {
    let secret = secret?;
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    Some(ObjectKey::new(&text(&secret.namespace), &text(&secret.name)))
}

/// Converts a map of an object to the one of a call; `None` to an empty one.
pub(super) fn string_map(all: Option<&BTreeMap<String, String>>) -> HashMap<String, String> {
    all.into_iter().flatten().map(|(key, value)| (key.clone(), value.clone())).collect()
}

impl CsiVolume {
    /// Describes a volume that exists as long as its pod.
    pub(in crate::volumes) fn inline(
        pod: &Pod,
        name: &str,
        source: &core::CSIVolumeSource,
    ) -> CsiVolume {
        let secret = source.node_publish_secret_ref.as_ref();
        CsiVolume {
            driver: source.driver.clone(),
            handle: ephemeral_handle(&pod.uid(), name),
            name: name.to_owned(),
            lifecycle: Lifecycle::Ephemeral,
            read_only: source.read_only.unwrap_or_default(),
            is_block: false,
            migrated: false,
            fs_type: source.fs_type.clone().unwrap_or_default(),
            attributes: string_map(source.volume_attributes.as_ref()),
            access_modes: vec!["ReadWriteOnce".to_owned()],
            mount_options: Vec::new(),
            stage_secret: None,
            publish_secret: secret.map(|secret| ObjectKey::new(pod.namespace(), &secret.name)),
            expand_secret: None,
        }
    }

    /// Describes the volume of a PersistentVolume.
    pub(in crate::volumes) fn persistent(
        bound: &Bound,
        source: &core::CSIPersistentVolumeSource,
    ) -> CsiVolume {
        let spec = bound.spec();
        CsiVolume {
            driver: source.driver.clone(),
            handle: source.volume_handle.clone(),
            name: bound.name().to_owned(),
            lifecycle: Lifecycle::Persistent,
            read_only: bound.read_only,
            is_block: bound.is_block(),
            migrated: bound.migrated,
            fs_type: source.fs_type.clone().unwrap_or_default(),
            attributes: string_map(source.volume_attributes.as_ref()),
            access_modes: spec.access_modes.unwrap_or_default(),
            mount_options: spec.mount_options.unwrap_or_default(),
            stage_secret: secret_key(source.node_stage_secret_ref.as_ref()),
            publish_secret: secret_key(source.node_publish_secret_ref.as_ref()),
            expand_secret: secret_key(source.node_expand_secret_ref.as_ref()),
        }
    }

    /// Returns the driver and the handle alone.
    pub(in crate::volumes) fn of(&self) -> Handle {
        Handle { driver: self.driver.clone(), handle: self.handle.clone() }
    }

    /// Returns the volume's unique name, as the Node's status has it; locks have it too.
    pub(in crate::volumes) fn device(&self) -> String {
        unique_name(&self.driver, &self.handle)
    }

    /// Returns the first access mode: the only one that counts for drivers, as upstream.
    fn access_mode(&self) -> String {
        self.access_modes.first().map_or("ReadWriteOnce", String::as_str).to_owned()
    }

    /// Returns whether only one pod may use the volume.
    pub(super) fn is_exclusive(&self) -> bool {
        self.access_modes == ["ReadWriteOncePod"]
    }

    /// Builds the part of a call that describes the volume and its path. The caller adds Secrets
    /// and what the attachment says. `group`: the pod's, for a driver that sets it itself.
    pub(in crate::volumes) fn call(&self, path: &Path, group: Option<u32>) -> Stage {
        let mount = MountVolume {
            fs_type: self.fs_type.clone(),
            mount_flags: self.mount_options.clone(),
            volume_mount_group: group.map(|group| group.to_string()).unwrap_or_default(),
        };
        Stage {
            handle: self.handle.clone(),
            path: path.display().to_string(),
            attributes: self.attributes.clone(),
            access_mode: self.access_mode(),
            migrated: self.migrated,
            mount: (!self.is_block).then_some(mount),
            ..Stage::default()
        }
    }

    /// Returns whether the kubelet gives the volume to the pod's group. `policy`: the
    /// `fsGroupPolicy` of the driver's CSIDriver. Upstream: `supportsFSGroup`.
    pub(super) fn gets_group(&self, policy: &str) -> bool {
        let has_writer = || {
            let is_once = |mode: &String| mode == "ReadWriteOnce" || mode == "ReadWriteOncePod";
            self.access_modes.iter().any(is_once)
        };
        match policy {
            _ if self.read_only => false,
            // The policy `None` of the CSIDriver: the driver does not support groups.
            "None" => false,
            "File" => true,
            // `ReadWriteOnceWithFSType`, the default.
            _ => !self.fs_type.is_empty() && has_writer(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::super::tests::pod;
    use super::*;

    fn persistent(spec: Value, read_only: bool) -> CsiVolume {
        let volume: core::PersistentVolume =
            serde_json::from_value(json!({"metadata": {"name": "v"}, "spec": spec}))
                .expect("a volume");
        let source = volume.spec.as_ref().and_then(|spec| spec.csi.clone()).expect("a source");
        let volume = Arc::new(volume);
        let bound = Bound { claim: Arc::default(), volume, read_only, migrated: true };
        CsiVolume::persistent(&bound, &source)
    }

    #[test]
    fn volumes_are_given_to_the_group_by_the_drivers_policy() {
        let with = |fs_type: &str, modes: &[&str], read_only| {
            let csi = json!({"driver": "d", "volumeHandle": "h", "fsType": fs_type});
            persistent(json!({"csi": csi, "accessModes": modes}), read_only)
        };
        for (volume, by_default, by_file) in [
            (with("ext4", &["ReadWriteOnce"], false), true, true),
            (with("ext4", &["ReadWriteMany", "ReadWriteOncePod"], false), true, true),
            (with("ext4", &["ReadWriteMany"], false), false, true),
            (with("ext4", &[], false), false, true),
            (with("", &["ReadWriteOnce"], false), false, true),
            (with("ext4", &["ReadWriteOnce"], true), false, false),
        ] {
            assert_eq!(volume.gets_group("ReadWriteOnceWithFSType"), by_default, "{volume:?}");
            assert_eq!(volume.gets_group("File"), by_file, "{volume:?}");
            assert!(!volume.gets_group("None"), "{volume:?}");
        }
        let source: core::CSIVolumeSource =
            serde_json::from_value(json!({"driver": "d", "fsType": "ext4"})).expect("a source");
        let inline = CsiVolume::inline(&pod(), "v", &source);
        assert!(inline.gets_group("ReadWriteOnceWithFSType"));
    }

    #[test]
    fn calls_name_the_volume_as_its_object_does() {
        let csi = json!({"driver": "d", "volumeHandle": "h", "fsType": "ext4",
                         "volumeAttributes": {"a": "b"},
                         "nodeStageSecretRef": {"namespace": "x", "name": "y"}});
        let spec = json!({"csi": csi, "accessModes": ["ReadWriteMany", "ReadWriteOnce"],
                          "mountOptions": ["noatime"]});
        let volume = persistent(spec, true);
        let call = volume.call(Path::new("/p"), Some(7));
        assert_eq!((&*call.handle, &*call.path, &*call.access_mode), ("h", "/p", "ReadWriteMany"));
        assert_eq!(call.attributes["a"], "b");
        assert!(call.migrated);
        let mount = call.mount.expect("a mount");
        assert_eq!((&*mount.fs_type, &*mount.volume_mount_group), ("ext4", "7"));
        assert_eq!(mount.mount_flags, ["noatime"]);
        let secret = volume.stage_secret.as_ref().expect("a secret");
        assert_eq!((&*secret.namespace, &*secret.name), ("x", "y"));
        assert!(volume.read_only && !volume.is_exclusive());
        let block = json!({"csi": {"driver": "d", "volumeHandle": "h"}, "volumeMode": "Block",
                           "accessModes": ["ReadWriteOncePod"]});
        let block = persistent(block, false);
        assert!(block.call(Path::new("/p"), None).mount.is_none() && block.is_exclusive());
    }
}
