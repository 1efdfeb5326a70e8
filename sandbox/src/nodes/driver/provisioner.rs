//! Provisions and deletes volumes as external-provisioner does.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use kube_controller_manager::cache::Lister;
use kube_controller_manager::client::{self, Client, Delete};
use kube_controller_manager::objects::{
    Meta, ObjectKey, PersistentVolume, PersistentVolumeClaim, Resource, StorageClass,
};
use kube_controller_manager::task;

use super::{DRIVER, Events};
use crate::nodes::StandIn;
use crate::nodes::worker::{Next, SyncResult, Worker};

const NAME: &str = "sandbox-provisioner";
const WORKERS: usize = 4;
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
const FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";
/// The annotation of a claim that makes provisioning fail.
const ASKED: &str = "sandbox/provisioning";
/// The value of the annotation with which the claim also loses its selected node.
const RESCHEDULE: &str = "reschedule";
/// The pause before a failure that an annotation requests is repeated.
const RETRY_DELAY: Duration = Duration::from_secs(1);

struct Provisioner {
    client: Client,
    events: Events,
    claims: Lister<PersistentVolumeClaim>,
    volumes: Lister<PersistentVolume>,
    classes: Lister<StorageClass>,
    /// Where volumes are folders, which real kubelets mount; `None`: nothing is behind them.
    folder: Option<PathBuf>,
}

/// Stands in for a CSI provisioner: watches claims and volumes; the future works until the stop.
/// `folder`: where real volumes lie.
pub fn provisioner(
    stand_in: StandIn<'_>,
    folder: Option<PathBuf>,
) -> impl Future<Output = ()> + Send + use<> {
    let StandIn { factory, client, clock, recorder, stop } = stand_in;
    let claims = factory.informer::<PersistentVolumeClaim>();
    let volumes = factory.informer::<PersistentVolume>();
    let classes = factory.informer::<StorageClass>();
    let mut worker = Worker::new(NAME, &clock);
    worker.queue_matching(&claims, must_be_provisioned);
    worker.queue_matching(&volumes, must_be_deleted);
    worker.read(&classes);
    let this = Arc::new(Provisioner {
        client,
        events: Events(recorder),
        claims: claims.lister(),
        volumes: volumes.lister(),
        classes: classes.lister(),
        folder,
    });
    worker.run(WORKERS, stop, move |key| this.clone().sync(key))
}

/// Returns whether a volume must be provisioned for the claim.
fn must_be_provisioned(claim: &PersistentVolumeClaim) -> bool {
    let annotations = &claim.meta.annotations;
    let asked = annotations
        .get("volume.kubernetes.io/storage-provisioner")
        .or(annotations.get("volume.beta.kubernetes.io/storage-provisioner"));
    asked == Some(DRIVER) && claim.spec.volume_name.is_empty() && !claim.meta.is_being_deleted()
}

/// Returns whether the volume is one of this driver and must be deleted.
fn must_be_deleted(volume: &PersistentVolume) -> bool {
    volume.meta.annotations.get(PROVISIONED_BY) == Some(DRIVER)
        && volume.spec.reclaim_policy == "Delete"
        && volume.status.phase == "Released"
        && (!volume.meta.is_being_deleted() || volume.meta.has_finalizer(FINALIZER))
}

/// Returns whether an annotation asks for this behaviour.
fn asks(meta: &Meta, annotation: &str, value: &str) -> bool {
    meta.annotations.get(annotation) == Some(value)
}

/// Ignores a conflict or a missing object: an event for it follows.
fn routine(result: client::Result<Next>) -> SyncResult {
    match result {
        Err(error) if error.is_not_found() || error.is_conflict() => Ok(Next::Done),
        result => result,
    }
}

impl Provisioner {
    /// Provisions the volume of a claim, or deletes a volume; a key without a namespace names a
    /// volume.
    async fn sync(self: Arc<Self>, key: ObjectKey) -> SyncResult {
        match key.namespace.is_empty() {
            true => match self.volumes.get(&key).filter(|volume| must_be_deleted(volume)) {
                Some(volume) => routine(self.delete(&volume).await),
                None => Ok(Next::Done),
            },
            false => match self.claims.get(&key).filter(|claim| must_be_provisioned(claim)) {
                Some(claim) => routine(self.provision(&claim).await),
                None => Ok(Next::Done),
            },
        }
    }

    /// Provisions the volume of a claim as a CSI provisioner does, or fails as its annotation asks.
    /// Repeated while the class is unknown; a claim of a class that waits for the first consumer
    /// waits until it has a node.
    async fn provision(&self, claim: &PersistentVolumeClaim) -> SyncResult {
        let key = ObjectKey::cluster(claim.storage_class());
        let Some(class) = self.classes.get(&key) else { return Ok(Next::After(RETRY_DELAY)) };
        let delayed = class.volume_binding_mode == "WaitForFirstConsumer";
        if delayed && !claim.meta.annotations.contains_key(SELECTED_NODE) {
            return Ok(Next::Done);
        }
        let key = claim.meta.key();
        let message = format!("External provisioner is provisioning volume for claim \"{key}\"");
        self.events.normal(claim, "Provisioning", message);
        let reschedules = asks(&claim.meta, ASKED, RESCHEDULE);
        if reschedules || asks(&claim.meta, ASKED, "fail") {
            let code = if reschedules { "ResourceExhausted" } else { "Internal" };
            let message = format!(
                "failed to provision volume with StorageClass {:?}: rpc error: code = {code} desc \
                 = the annotation asks for it",
                class.meta.name
            );
            self.events.warning(claim, "ProvisioningFailed", message);
            if !reschedules || !delayed {
                return Ok(Next::After(RETRY_DELAY));
            }
            // A claim with this annotation loses its selected node; the next sync provisions its
            // volume.
            let forget = |live: &mut Value| {
                let annotations = live.pointer_mut("/metadata/annotations");
                let annotations = annotations.and_then(Value::as_object_mut);
                annotations.is_some_and(|known| {
                    known.get(ASKED).is_some_and(|asked| asked == RESCHEDULE)
                        && known.remove(SELECTED_NODE).is_some()
                })
            };
            self.client.modify::<PersistentVolumeClaim>(&key, forget).await?;
            return Ok(Next::Done);
        }
        let volume = volume_for(claim, &class, self.folder.as_deref());
        match self.client.create::<PersistentVolume>("", &volume).await {
            Err(error) if error.is_already_exists() => return Ok(Next::Done),
            created => created?,
        };
        let name = volume["metadata"]["name"].as_str().unwrap_or_default();
        let message = format!("Successfully provisioned volume {name}");
        self.events.normal(claim, "ProvisioningSucceeded", message);
        Ok(Next::Done)
    }

    /// Deletes a released volume with its data, and removes the finalizer that held it.
    async fn delete(&self, volume: &PersistentVolume) -> SyncResult {
        if asks(&volume.meta, "sandbox/deletion", "fail") {
            let message = "rpc error: code = Internal desc = the annotation asks for it".to_owned();
            self.events.warning(volume, "VolumeFailedDelete", message);
            return Ok(Next::After(RETRY_DELAY));
        }
        let key = volume.meta.key();
        if !volume.meta.is_being_deleted() {
            let delete = Delete::new().uid(volume.meta.uid.clone());
            self.client.delete::<PersistentVolume>(&key, delete).await?;
        }
        if let Some(folder) = &self.folder {
            let data = folder.join(&*volume.meta.name);
            let removed = task::blocking(move || std::fs::remove_dir_all(data)).await;
            if let Err(error) = removed
                && error.kind() != std::io::ErrorKind::NotFound
            {
                self.events.warning(volume, "VolumeFailedDelete", error.to_string());
                return Ok(Next::After(RETRY_DELAY));
            }
        }
        let release = |live: &mut Value| {
            let finalizers = live.pointer_mut("/metadata/finalizers").and_then(Value::as_array_mut);
            finalizers.is_some_and(|names| {
                let count = names.len();
                names.retain(|name| name != FINALIZER);
                names.len() < count
            })
        };
        self.client.modify::<PersistentVolume>(&key, release).await?;
        Ok(Next::Done)
    }
}

/// Builds the volume of a claim: a folder of the host below `folder`, or a CSI volume without one.
fn volume_for(claim: &PersistentVolumeClaim, class: &StorageClass, folder: Option<&Path>) -> Value {
    let uid = claim.meta.uid.to_string();
    let name = format!("pvc-{uid}");
    let deletes = class.reclaim_policy == "Delete";
    let mut annotations = json!({
        PROVISIONED_BY: DRIVER,
        "volume.kubernetes.io/provisioner-deletion-secret-name": "",
        "volume.kubernetes.io/provisioner-deletion-secret-namespace": "",
    });
    if let Some(deletion) = claim.meta.annotations.get("sandbox/deletion") {
        annotations["sandbox/deletion"] = deletion.into();
    }
    let mut volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {
            "name": name, "annotations": annotations,
            "finalizers": deletes.then_some([FINALIZER]),
        },
        "spec": {
            "accessModes": claim.spec.access_modes,
            "capacity": { "storage": claim.spec.storage },
            "claimRef": {
                "apiVersion": "v1", "kind": PersistentVolumeClaim::RESOURCE.kind,
                "namespace": claim.meta.namespace, "name": claim.meta.name, "uid": uid,
                "resourceVersion": claim.meta.resource_version.to_string(),
            },
            "mountOptions": class.mount_options,
            "persistentVolumeReclaimPolicy": class.reclaim_policy,
            "storageClassName": class.meta.name,
            "volumeAttributesClassName": claim.spec.volume_attributes_class_name,
            "volumeMode": if claim.spec.is_block { "Block" } else { "Filesystem" },
        },
    });
    match folder {
        Some(folder) => {
            let path = folder.join(&name);
            volume["spec"]["hostPath"] = json!({ "path": path, "type": "DirectoryOrCreate" });
        }
        None => {
            let identity = format!("1-{DRIVER}");
            volume["spec"]["csi"] = json!({
                "driver": DRIVER, "volumeHandle": uid,
                "volumeAttributes": {
                    "storage.kubernetes.io/csiProvisionerIdentity": identity,
                },
            });
        }
    }
    volume
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_are_made_for_claims_that_ask_for_them() {
        let claim = |annotation: &str, driver: &str, volume: &str| -> PersistentVolumeClaim {
            serde_json::from_value(json!({
                "metadata": { "name": "c", "namespace": "ns", "annotations": { annotation: driver } },
                "spec": { "volumeName": volume },
            }))
            .unwrap()
        };
        let (new, beta) = (
            "volume.kubernetes.io/storage-provisioner",
            "volume.beta.kubernetes.io/storage-provisioner",
        );
        assert!(must_be_provisioned(&claim(new, DRIVER, "")));
        assert!(must_be_provisioned(&claim(beta, DRIVER, "")));
        assert!(!must_be_provisioned(&claim(new, "another", "")));
        assert!(!must_be_provisioned(&claim(new, DRIVER, "v")));
    }

    #[test]
    fn volumes_of_real_nodes_are_folders() {
        let claim = json!({ "metadata": { "name": "c", "namespace": "ns", "uid": "u" } });
        let claim: PersistentVolumeClaim = serde_json::from_value(claim).unwrap();
        let class = StorageClass::default();
        let made = volume_for(&claim, &class, None);
        let driver = made["spec"]["csi"]["driver"].as_str();
        assert_eq!((driver, &made["spec"]["hostPath"]), (Some(DRIVER), &Value::Null));
        let made = volume_for(&claim, &class, Some(Path::new("/volumes")));
        let path = made["spec"]["hostPath"]["path"].as_str().unwrap();
        assert_eq!(path, format!("/volumes/{}", made["metadata"]["name"].as_str().unwrap()));
        assert_eq!(made["spec"]["csi"], Value::Null);
    }

    #[test]
    fn released_volumes_go_under_the_policy_delete() {
        let volume = |by: &str, policy: &str, phase: &str| -> PersistentVolume {
            serde_json::from_value(json!({
                "metadata": { "name": "v", "annotations": { PROVISIONED_BY: by } },
                "spec": { "persistentVolumeReclaimPolicy": policy }, "status": { "phase": phase },
            }))
            .unwrap()
        };
        assert!(must_be_deleted(&volume(DRIVER, "Delete", "Released")));
        assert!(!must_be_deleted(&volume(DRIVER, "Retain", "Released")));
        assert!(!must_be_deleted(&volume(DRIVER, "Delete", "Bound")));
        assert!(!must_be_deleted(&volume("another", "Delete", "Released")));
    }
}
