//! The in-tree plugin that provisions, deletes or recycles a volume, if there is one.
//! Upstream: `findProvisionablePlugin`, `findDeletablePlugin` and `VolumePluginMgr`.

use super::super::annotations::{IN_TREE_PREFIX, MIGRATED_TO, PROVISIONED_BY};
use super::super::csi_migration::driver_of;
use crate::objects::{LocalSource, PersistentVolume, VolumeSource};

/// The plugins of this manager. Only HostPath provisions and deletes; both recycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plugin {
    HostPath,
    Nfs,
}

const NO_MATCH: &str = "no volume plugin matched";

impl Plugin {
    pub fn name(self) -> &'static str {
        match self {
            Plugin::HostPath => "kubernetes.io/host-path",
            Plugin::Nfs => "kubernetes.io/nfs",
        }
    }

    fn by_name(name: &str) -> Option<Plugin> {
        [Plugin::HostPath, Plugin::Nfs].into_iter().find(|plugin| plugin.name() == name)
    }

    /// Returns the plugin of the volume's source; `None` if this manager has none.
    pub fn of_volume(volume: &PersistentVolume) -> Option<Plugin> {
        match volume.spec.local? {
            LocalSource::HostPath => Some(Plugin::HostPath),
            LocalSource::Nfs => Some(Plugin::Nfs),
            LocalSource::FlexVolume => None,
        }
    }
}

/// Returns the in-tree plugin of this name, which must be able to provision and delete; `None` if
/// the name is not in-tree. `does`: the ability, for the error.
fn by_name(name: &str, does: &str) -> Result<Option<Plugin>, String> {
    let error = match Plugin::by_name(name) {
        Some(Plugin::HostPath) => return Ok(Some(Plugin::HostPath)),
        Some(Plugin::Nfs) => format!("no {does} volume plugin matched"),
        None if !name.starts_with(IN_TREE_PREFIX) => return Ok(None),
        None => format!("{NO_MATCH} name: {name}"),
    };
    Err(error)
}

/// Returns the plugin for `provisioner`; `None` if that is outside of this manager. `Err`: its name
/// is in-tree, but no plugin here provisions for it.
pub fn provisioning(provisioner: &str) -> Result<Option<Plugin>, String> {
    if driver_of(provisioner).is_some() {
        return Ok(None);
    }
    by_name(provisioner, "provisionable")
}

/// Returns the plugin that deletes `volume`; `None` if a deleter outside of this manager does.
/// `Err`: an in-tree volume that no plugin here deletes.
pub fn deleting(volume: &PersistentVolume) -> Result<Option<Plugin>, String> {
    let annotations = &volume.meta.annotations;
    if let Some(name) = annotations.get(PROVISIONED_BY).filter(|name| !name.is_empty()) {
        return by_name(name, "deletable");
    }
    let is_csi = matches!(volume.spec.source.as_deref(), Some(VolumeSource::Csi { .. }));
    if annotations.contains_key(MIGRATED_TO) || is_csi {
        return Ok(None);
    }
    let error = match Plugin::of_volume(volume) {
        Some(Plugin::HostPath) => return Ok(Some(Plugin::HostPath)),
        Some(Plugin::Nfs) => "no deletable volume plugin matched",
        None => NO_MATCH,
    };
    let name = &volume.meta.name;
    Err(format!("error getting deleter volume plugin for volume {name:?}: {error}"))
}

/// Returns the name of a class's provisioner; of a migrated plugin that of its CSI driver.
pub fn driver_name(provisioner: &str) -> &str {
    driver_of(provisioner).unwrap_or(provisioner)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn provisioners_are_in_this_manager_or_outside() {
        for (name, expected) in [
            ("kubernetes.io/host-path", Ok(Some(Plugin::HostPath))),
            ("csi.example.com", Ok(None)),
            ("kubernetes.io/aws-ebs", Ok(None)),
            ("kubernetes.io/nfs", Err("no provisionable volume plugin matched")),
            (
                "kubernetes.io/no-provisioner",
                Err("no volume plugin matched name: kubernetes.io/no-provisioner"),
            ),
        ] {
            assert_eq!(provisioning(name), expected.map_err(str::to_owned), "{name}");
        }
    }

    #[test]
    fn deleters_are_found_by_annotation_and_by_source() {
        let host_path = json!({ "hostPath": { "path": "/tmp/x" } });
        let csi = json!({ "csi": { "driver": "d", "volumeHandle": "h" } });
        let nfs = json!({ "nfs": { "server": "s", "path": "/" } });
        let by = |name: &str| json!({ PROVISIONED_BY: name });
        let missing = "error getting deleter volume plugin for volume \"v\": no volume plugin \
                       matched";
        for (annotations, spec, expected) in [
            (json!({}), host_path.clone(), Ok(Some(Plugin::HostPath))),
            (by("kubernetes.io/host-path"), json!({}), Ok(Some(Plugin::HostPath))),
            (by("csi.example.com"), host_path.clone(), Ok(None)),
            (by(""), host_path.clone(), Ok(Some(Plugin::HostPath))),
            (json!({}), csi, Ok(None)),
            (json!({ MIGRATED_TO: "d" }), host_path, Ok(None)),
            (
                by("kubernetes.io/unknown"),
                json!({}),
                Err("no volume plugin matched name: kubernetes.io/unknown"),
            ),
            (
                json!({}),
                nfs,
                Err("error getting deleter volume plugin for volume \"v\": no deletable volume \
                     plugin matched"),
            ),
            (json!({}), json!({ "local": { "path": "/" } }), Err(missing)),
        ] {
            let volume: Value =
                json!({ "metadata": { "name": "v", "annotations": annotations }, "spec": spec });
            let volume = serde_json::from_value(volume).unwrap();
            assert_eq!(deleting(&volume), expected.map_err(str::to_owned));
        }
    }
}
