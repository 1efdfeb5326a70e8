//! Has a volume provisioned for a claim: by an external provisioner, which is selected by
//! annotations, or by the HostPath plugin. Upstream: `provisionClaim`.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::super::annotations::{
    BETA_STORAGE_PROVISIONER, BOUND_BY_CONTROLLER, IN_TREE_FINALIZER, PROVISIONED_BY,
    SELECTED_NODE, STORAGE_PROVISIONER, with_annotation, without_annotation,
};
use super::super::operation_metrics::operation_ended;
use super::edits::{self, Edit};
use super::plugins::{self, Plugin};
use super::writes::PendingEvent;
use super::{Binder, hostpath};
use crate::controllers::Error;
use crate::objects::{ObjectKey, PersistentVolume, PersistentVolumeClaim, StorageClass};

/// The number of attempts to create the PersistentVolume of a new volume, or to delete the volume.
const TRIES: u32 = 5;
const BETWEEN_TRIES: Duration = Duration::from_secs(10);

const FAILED: &str = "ProvisioningFailed";

impl Binder {
    /// Starts to provision a volume for a claim, unless that runs or has just failed, or
    /// `--enable-dynamic-provisioning` is off. Problems with the class are reported by an event.
    pub fn provision(
        self: &Arc<Self>,
        claim: &Arc<PersistentVolumeClaim>,
        class: Option<Arc<StorageClass>>,
    ) {
        if !self.provisions {
            return;
        }
        let missing =
            || format!("storageclass.storage.k8s.io {:?} not found", claim.storage_class());
        let found = class.ok_or_else(missing).and_then(|class| {
            let plugin = plugins::provisioning(&class.provisioner)?;
            Ok((class, plugin))
        });
        let (class, plugin) = match found {
            Ok(found) => found,
            Err(error) => return self.record(&**claim, PendingEvent::warning(FAILED, error)),
        };
        let key = claim.meta.key().to_string();
        let name = format!("provision-{key}[{}]", claim.meta.uid);
        let (this, claim) = (self.clone(), claim.clone());
        self.operations.start(name, async move {
            let driver = plugins::driver_name(&class.provisioner).to_owned();
            this.timestamps.begin(&key, "provision", || driver.clone());
            let provisioned = match plugin {
                None => this.ask_external(&claim, &driver).await,
                Some(_) => this.make_host_path(&claim, &class).await,
            };
            if provisioned.is_err() {
                this.timestamps.ended(&key, false);
            }
            provisioned
        });
    }

    /// Asks an external provisioner for a volume, by an annotation of the claim.
    /// Upstream: `provisionClaimOperationExternal`.
    async fn ask_external(
        &self,
        claim: &Arc<PersistentVolumeClaim>,
        driver: &str,
    ) -> Result<(), Error> {
        let claim = self.set_provisioner(claim, driver).await.inspect_err(|error| {
            let message = format!("Error saving claim: {}", error.message());
            self.record(&**claim, PendingEvent::warning(FAILED, message));
        })?;
        let message = format!(
            "Waiting for a volume to be created either by the external provisioner '{driver}' or \
             manually by the system administrator. If volume creation is delayed, please verify \
             that the provisioner is running and correctly registered."
        );
        self.record(&*claim, PendingEvent::normal("ExternalProvisioning", message));
        Ok(())
    }

    /// Writes the name of the provisioner into the claim's annotations.
    /// Upstream: `setClaimProvisioner`.
    async fn set_provisioner(
        &self,
        claim: &Arc<PersistentVolumeClaim>,
        driver: &str,
    ) -> Result<Arc<PersistentVolumeClaim>, Error> {
        let annotations = &claim.meta.annotations;
        if annotations.get(STORAGE_PROVISIONER) == Some(driver) {
            return Ok(claim.clone());
        }
        let annotations = with_annotation(annotations, BETA_STORAGE_PROVISIONER, driver);
        let annotations = with_annotation(&annotations, STORAGE_PROVISIONER, driver);
        let annotations =
            edits::with_migration_annotation(&annotations, Some(driver)).unwrap_or(annotations);
        self.edit_claim(claim, Edit::annotations(annotations)).await
    }

    /// Provisions a HostPath volume for a claim: makes a directory and creates its
    /// PersistentVolume. If that fails for certain, the directory is removed.
    /// Upstream: `provisionClaimOperation`, with the HostPath plugin.
    async fn make_host_path(
        &self,
        claim: &Arc<PersistentVolumeClaim>,
        class: &StorageClass,
    ) -> Result<(), Error> {
        let plugin = Plugin::HostPath.name();
        let fail = |claim: &PersistentVolumeClaim, message: String| {
            self.record(claim, PendingEvent::warning(FAILED, message));
        };
        if claim.spec.has_data_source {
            let message = format!(
                "plugin {plugin:?} is not a CSI plugin. Only CSI plugin can provision a claim with \
                 a datasource"
            );
            fail(claim, message.clone());
            return Err(Error::other(message));
        }
        let claim = &self.set_provisioner(claim, &class.provisioner).await?;
        let name = format!("pvc-{}", claim.meta.uid);
        match self.client.get::<PersistentVolume>(&ObjectKey::cluster(&name)).await {
            Ok(_) => return Ok(()),
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error.into()),
        }
        if let Some((event, error)) = self.refusal(claim, class) {
            fail(claim, event);
            return Err(Error::other(error));
        }
        let path = hostpath::new_path();
        let start = self.clock.monotonic();
        let made = match claim.spec.is_block {
            true => Err(format!("{plugin} does not support block volume provisioning")),
            false => hostpath::make(path.clone()).await,
        };
        let took = self.clock.monotonic() - start;
        operation_ended(plugin, "volume_provision", made.is_ok(), false, took);
        if let Err(error) = made {
            self.reschedule(claim).await;
            let class = &class.meta.name;
            fail(claim, format!("Failed to provision volume with StorageClass {class:?}: {error}"));
            return Err(Error::other(error));
        }
        let volume = host_path_volume(claim, class, &name, &path);
        let (error, is_unsure) = match self.create_volume(&volume).await {
            Ok(()) => {
                let message = format!("Successfully provisioned volume {name} using {plugin}");
                self.record(&**claim, PendingEvent::normal("ProvisioningSucceeded", message));
                return Ok(());
            }
            Err(failed) => failed,
        };
        let key = claim.meta.key();
        if is_unsure {
            // The volume may exist, and its directory be in use: the next attempt reads it.
            let error = error.message();
            fail(claim, format!("Error creating provisioned PV object for claim {key}: {error}."));
            return Err(Error::other(error));
        }
        let error = error.message();
        fail(
            claim,
            format!(
                "Error creating provisioned PV object for claim {key}: {error}. Deleting the volume."
            ),
        );
        if let Err(error) = self.remove_directory(&path).await {
            let message = format!(
                "Error cleaning provisioned volume for claim {key}: {error}. Please delete manually."
            );
            self.record(&**claim, PendingEvent::warning("ProvisioningCleanupFailed", message));
        }
        // No back-off, as upstream: the claim's next sync provisions again.
        Ok(())
    }

    /// Returns why the plugin cannot provision, as the event's message and as the error; `None` if
    /// it can.
    fn refusal(
        &self,
        claim: &PersistentVolumeClaim,
        class: &StorageClass,
    ) -> Option<(String, String)> {
        let plugin = Plugin::HostPath.name();
        if !class.mount_options.is_empty() {
            let options: Vec<&str> = class.mount_options.iter().map(|o| o.as_str()).collect();
            let event = format!(
                "Mount options are not supported by the provisioner but StorageClass {:?} has \
                 mount options [{}]",
                class.meta.name,
                options.join(" ")
            );
            return Some((event, format!("provisioner {plugin:?} doesn't support mount options")));
        }
        if !self.provisions_host_paths {
            let error = format!("provisioning in volume plugin {plugin:?} is disabled");
            return Some((format!("Failed to create provisioner: {error}"), error));
        }
        let node = claim.meta.annotations.get(SELECTED_NODE)?;
        if self.nodes.get(&ObjectKey::cluster(node)).is_none() {
            let error = format!("node {node:?} not found");
            return Some((format!("Failed to get target node: {error}"), error));
        }
        None
    }

    /// Removes the selected node from the claim, so that the scheduler chooses again. Upstream:
    /// `rescheduleProvisioning`.
    async fn reschedule(&self, claim: &Arc<PersistentVolumeClaim>) {
        let annotations = &claim.meta.annotations;
        if !annotations.contains_key(SELECTED_NODE) {
            return;
        }
        let edit = Edit::annotations(without_annotation(annotations, SELECTED_NODE));
        if let Err(error) = self.edit_claim(claim, edit).await {
            log::debug!("claim {}: the selected node stays: {error}", claim.meta.key());
        }
    }

    /// Creates a volume, with at most [`TRIES`] attempts; succeeds if it exists.
    ///
    /// # Errors
    /// The last error, and whether the volume may have been created in spite of it.
    async fn create_volume(&self, volume: &Value) -> Result<(), (Error, bool)> {
        let (mut tries, mut is_unsure) = (0, false);
        loop {
            tries += 1;
            match self.client.create::<PersistentVolume>("", volume).await {
                Ok(created) => {
                    self.volumes.assume(created);
                    return Ok(());
                }
                Err(error) if error.is_already_exists() => return Ok(()),
                Err(error) => {
                    is_unsure |= error.is_unsure();
                    if tries == TRIES {
                        return Err((error.into(), is_unsure));
                    }
                    self.clock.sleep(BETWEEN_TRIES).await;
                }
            }
        }
    }

    /// Removes the directory of a volume that could not be created, with at most [`TRIES`]
    /// attempts.
    async fn remove_directory(&self, path: &str) -> Result<(), String> {
        let mut tries = 0;
        loop {
            tries += 1;
            match hostpath::remove(path.to_owned()).await {
                Err(_) if tries < TRIES => self.clock.sleep(BETWEEN_TRIES).await,
                removed => return removed,
            }
        }
    }
}

/// Builds the PersistentVolume for `claim`, of its class, at `path`.
fn host_path_volume(
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    name: &str,
    path: &str,
) -> Value {
    let modes = claim.spec.access_modes.as_deref().unwrap_or_default();
    let modes = if modes.is_empty() { json!(["ReadWriteOnce"]) } else { json!(modes) };
    let finalizers = (class.reclaim_policy == "Delete").then_some([IN_TREE_FINALIZER]);
    json!({
        "apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {
            "name": name, "finalizers": finalizers,
            "annotations": {
                "kubernetes.io/createdby": "hostpath-dynamic-provisioner",
                BOUND_BY_CONTROLLER: "yes", PROVISIONED_BY: Plugin::HostPath.name(),
            },
        },
        "spec": {
            "accessModes": modes, "capacity": { "storage": claim.spec.storage },
            "claimRef": edits::reference(claim), "hostPath": { "path": path },
            "persistentVolumeReclaimPolicy": class.reclaim_policy,
            "storageClassName": claim.storage_class(),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_path_volume_is_provisioned_for_its_claim() {
        let claim = serde_json::from_value(json!({
            "metadata": { "namespace": "ns", "name": "c", "uid": "u", "resourceVersion": "7" },
            "spec": {
                "storageClassName": "local", "accessModes": ["ReadWriteMany"],
                "resources": { "requests": { "storage": "1Gi" } },
            },
        }));
        let claim = claim.unwrap();
        for (policy, finalizers) in
            [("Delete", json!(["kubernetes.io/pv-controller"])), ("Retain", Value::Null)]
        {
            let class = StorageClass { reclaim_policy: policy.into(), ..StorageClass::default() };
            assert_eq!(
                host_path_volume(&claim, &class, "pvc-u", "/tmp/x"),
                json!({
                    "apiVersion": "v1", "kind": "PersistentVolume",
                    "metadata": {
                        "name": "pvc-u", "finalizers": finalizers,
                        "annotations": {
                            "kubernetes.io/createdby": "hostpath-dynamic-provisioner",
                            "pv.kubernetes.io/bound-by-controller": "yes",
                            "pv.kubernetes.io/provisioned-by": "kubernetes.io/host-path",
                        },
                    },
                    "spec": {
                        "accessModes": ["ReadWriteMany"], "capacity": { "storage": "1Gi" },
                        "claimRef": {
                            "kind": "PersistentVolumeClaim", "apiVersion": "v1", "name": "c",
                            "namespace": "ns", "uid": "u", "resourceVersion": "7",
                        },
                        "hostPath": { "path": "/tmp/x" }, "storageClassName": "local",
                        "persistentVolumeReclaimPolicy": policy,
                    },
                })
            );
        }
    }
}
