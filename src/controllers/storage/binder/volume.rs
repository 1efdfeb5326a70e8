//! The decision about a volume. Upstream: `syncVolume` and `reclaimVolume`.

use std::sync::Arc;

use super::super::annotations::{MIGRATED_TO, PROVISIONED_BY};
use super::matching::modes_differ;
use super::plugins::{self, Plugin};
use super::writes::PendingEvent;
use super::{Binder, edits};
use crate::controllers::{Error, Next, SyncResult};
use crate::objects::{ObjectKey, PersistentVolume, PersistentVolumeClaim};

/// What to do with a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plan {
    /// Free, or reserved for a claim that is not bound to it.
    Available,
    /// The claim exists and names no volume; it is bound by its own sync.
    WakeClaim,
    /// The claim exists and names no volume, and may not be bound to this one.
    ModesDiffer,
    Bound,
    /// Its claim is deleted, or has another volume.
    Release,
    /// The claim has another volume, and this one was not made for it.
    Unbind,
}

/// Decides what to do with `volume`. `claim`: the claim with the name and the uid of its claim
/// reference.
fn plan(volume: &PersistentVolume, claim: Option<&PersistentVolumeClaim>) -> Plan {
    if volume.spec.claim_ref.as_ref().is_none_or(|claim| claim.uid.is_empty()) {
        return Plan::Available;
    }
    let Some(claim) = claim else { return Plan::Release };
    match &*claim.spec.volume_name {
        "" if modes_differ(volume, claim) => Plan::ModesDiffer,
        "" => Plan::WakeClaim,
        name if *name == *volume.meta.name => Plan::Bound,
        // The claim is bound to another volume.
        _ => {
            let is_provisioned = volume.meta.annotations.contains_key(PROVISIONED_BY);
            let is_reclaimed = is_provisioned && volume.spec.reclaim_policy == "Delete";
            if is_reclaimed { Plan::Release } else { Plan::Unbind }
        }
    }
}

/// Returns whether the volume is marked as released. Failed counts too and stays: the user is to
/// see that something failed.
fn is_released(volume: &PersistentVolume) -> bool {
    matches!(&*volume.status.phase, "Released" | "Failed")
}

impl Binder {
    /// Decides what to do with a volume, and does it: sets its phase, queues its claim, or releases
    /// and reclaims it.
    /// Upstream: `syncVolume`.
    pub async fn sync_volume(self: Arc<Self>, key: ObjectKey) -> SyncResult {
        let Some(volume) = self.volumes.get(&key) else { return Ok(Next::Done) };
        let volume = self.mark_volume(volume).await?;
        let claim = self.claim_of(&volume).await?;
        match plan(&volume, claim.as_deref()) {
            Plan::Available => {
                self.set_phase(&volume, "Available").await?;
                self.wake_lost_claim(&volume);
            }
            Plan::Bound => {
                self.set_phase(&volume, "Bound").await?;
                self.wake_lost_claim(&volume);
            }
            Plan::WakeClaim => {
                claim.iter().for_each(|claim| self.claim_queue.add(claim.meta.key()))
            }
            Plan::ModesDiffer => {
                claim.iter().for_each(|claim| self.report_modes(&volume, claim));
                return Ok(Next::After(self.period));
            }
            Plan::Unbind => self.unbind(&volume).await?,
            Plan::Release => {
                let volume = match is_released(&volume) {
                    true => volume,
                    false => self.set_phase(&volume, "Released").await?,
                };
                return self.reclaim(&volume).await;
            }
        }
        Ok(Next::Done)
    }

    /// Queues the claim of `volume` if its phase is Lost: it may be bound again.
    fn wake_lost_claim(&self, volume: &PersistentVolume) {
        let Some(key) = volume.spec.claim_ref.as_ref().map(|claim| claim.key()) else { return };
        if self.claims.get(&key).is_some_and(|claim| claim.status.phase == "Lost") {
            self.claim_queue.add(key);
        }
    }

    /// Records the events about a claim and a volume whose modes differ.
    fn report_modes(&self, volume: &PersistentVolume, claim: &PersistentVolumeClaim) {
        let end = "due to incompatible volumeMode.";
        let (volume_name, claim_name) = (&volume.meta.name, &claim.meta.name);
        let message = format!(
            "Cannot bind PersistentVolume to requested PersistentVolumeClaim {claim_name:?} {end}"
        );
        self.record(volume, PendingEvent::warning("VolumeMismatch", message));
        let message = format!(
            "Cannot bind PersistentVolume {volume_name:?} to requested PersistentVolumeClaim {end}"
        );
        self.record(claim, PendingEvent::warning("VolumeMismatch", message));
    }

    /// Returns the claim that the volume names, by name and uid. If the cache lacks it, it is read
    /// from the API server: a volume is not released while its claim exists there.
    async fn claim_of(
        &self,
        volume: &PersistentVolume,
    ) -> Result<Option<Arc<PersistentVolumeClaim>>, Error> {
        let reference = volume.spec.claim_ref.as_ref();
        let Some(reference) = reference.filter(|reference| !reference.uid.is_empty()) else {
            return Ok(None);
        };
        let key = reference.key();
        let cached = self.claims.get(&key);
        if cached.as_ref().is_some_and(|claim| claim.meta.uid == reference.uid) {
            return Ok(cached);
        }
        // An earlier sync has read the API server and released the volume.
        if cached.is_none() && is_released(volume) {
            return Ok(None);
        }
        match self.client.get::<PersistentVolumeClaim>(&key).await {
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error.into()),
            Ok(claim) => Ok(Some(claim).filter(|c| c.meta.uid == reference.uid).map(Arc::new)),
        }
    }

    /// Writes the annotation of migration and the finalizers of a volume if they differ, and
    /// returns the volume as it is then.
    async fn mark_volume(
        &self,
        volume: Arc<PersistentVolume>,
    ) -> Result<Arc<PersistentVolume>, Error> {
        let meta = &volume.meta;
        let edit = edits::Edit {
            annotations: edits::with_migration_annotation(
                &meta.annotations,
                meta.annotations.get(PROVISIONED_BY),
            ),
            finalizers: edits::deletion_finalizers(meta, &volume.spec.reclaim_policy),
            ..edits::Edit::default()
        };
        if edit == edits::Edit::default() {
            return Ok(volume);
        }
        let doing = "persistent Volume Controller can't anneal migration annotations or finalizer";
        self.edit_volume(&volume, edit).await.map_err(|error| Error::during(doing, error))
    }

    /// Recycles, deletes or keeps a released volume, by its policy. Upstream: `reclaimVolume`.
    async fn reclaim(self: &Arc<Self>, volume: &Arc<PersistentVolume>) -> SyncResult {
        // The provisioner of the CSI driver reclaims it.
        if volume.meta.annotations.get(MIGRATED_TO).is_some_and(|driver| !driver.is_empty()) {
            return Ok(Next::Done);
        }
        match &*volume.spec.reclaim_policy {
            "Retain" => return Ok(Next::Done),
            "Recycle" => self.recycle(volume),
            "Delete" => {
                let plugin = plugins::deleting(volume);
                self.timestamps
                    .begin(&volume.meta.name, "delete", || self.provisioner_name(volume, &plugin));
                match plugin {
                    // The external deleter does it.
                    Ok(None) => return Ok(Next::Done),
                    Ok(Some(plugin)) => self.delete(volume, plugin),
                    Err(error) => {
                        let notice = PendingEvent::warning("VolumeFailedDelete", error);
                        self.set_phase_with(volume, "Failed", Some(notice)).await?;
                    }
                }
            }
            _ => {
                let message = "Volume has unrecognized PersistentVolumeReclaimPolicy";
                let notice = PendingEvent::warning("VolumeUnknownReclaimPolicy", message);
                self.set_phase_with(volume, "Failed", Some(notice)).await?;
                return Ok(Next::Done);
            }
        }
        // An operation that failed is retried.
        Ok(Next::After(self.period))
    }

    /// Returns the name of the plugin that reclaims a volume, for metrics.
    /// Upstream: `getProvisionerNameFromVolume`.
    fn provisioner_name(
        &self,
        volume: &PersistentVolume,
        plugin: &Result<Option<Plugin>, String>,
    ) -> String {
        let unknown = || "N/A".to_owned();
        match plugin {
            Err(_) => unknown(),
            Ok(Some(plugin)) => plugin.name().to_owned(),
            Ok(None) => {
                let class = self.classes.get(&ObjectKey::cluster(volume.storage_class()));
                class.map_or_else(unknown, |class| {
                    plugins::driver_name(&class.provisioner).to_owned()
                })
            }
        }
    }

    /// Returns whether the volume may be recycled or deleted: its claim is deleted, or has another
    /// volume. One that names no claim, or no uid of it, is not bound and may not.
    /// Upstream: `isVolumeReleased`.
    pub fn may_reclaim(&self, volume: &PersistentVolume) -> bool {
        let Some(reference) = &volume.spec.claim_ref else { return false };
        if reference.uid.is_empty() {
            return false;
        }
        match self.claims.get(&reference.key()) {
            Some(claim) if claim.meta.uid == reference.uid => {
                let name = &claim.spec.volume_name;
                !name.is_empty() && **name != *volume.meta.name
            }
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::super::annotations::BOUND_BY_CONTROLLER;
    use super::*;

    #[test]
    fn volumes_follow_their_claims() {
        let claim = |volume: &str, mode: &str| -> Option<PersistentVolumeClaim> {
            let json = json!({
                "metadata": { "namespace": "ns", "name": "c", "uid": "u" },
                "spec": { "volumeName": volume, "volumeMode": mode },
            });
            Some(serde_json::from_value(json).unwrap())
        };
        let reference = json!({ "namespace": "ns", "name": "c", "uid": "u" });
        let reserved = json!({ "namespace": "ns", "name": "c" });
        let made = json!({ PROVISIONED_BY: "x" });
        let by_controller = json!({ BOUND_BY_CONTROLLER: "yes" });
        for (what, claim_ref, annotations, policy, claim, expected) in [
            ("free", Value::Null, json!({}), "Retain", None, Plan::Available),
            ("reserved", reserved, json!({}), "Retain", claim("", ""), Plan::Available),
            ("no claim", reference.clone(), json!({}), "Retain", None, Plan::Release),
            ("claimed", reference.clone(), json!({}), "Retain", claim("", ""), Plan::WakeClaim),
            (
                "block",
                reference.clone(),
                json!({}),
                "Retain",
                claim("", "Block"),
                Plan::ModesDiffer,
            ),
            ("bound", reference.clone(), json!({}), "Retain", claim("v", ""), Plan::Bound),
            (
                "bound, of another mode",
                reference.clone(),
                json!({}),
                "Retain",
                claim("v", "Block"),
                Plan::Bound,
            ),
            ("elsewhere", reference.clone(), json!({}), "Delete", claim("w", ""), Plan::Unbind),
            (
                "elsewhere, by us",
                reference.clone(),
                by_controller,
                "Delete",
                claim("w", ""),
                Plan::Unbind,
            ),
            (
                "elsewhere, made",
                reference.clone(),
                made.clone(),
                "Delete",
                claim("w", ""),
                Plan::Release,
            ),
            ("elsewhere, made, kept", reference, made, "Retain", claim("w", ""), Plan::Unbind),
        ] {
            let volume = serde_json::from_value(json!({
                "metadata": { "name": "v", "annotations": annotations },
                "spec": { "claimRef": claim_ref, "persistentVolumeReclaimPolicy": policy },
            }));
            assert_eq!(plan(&volume.unwrap(), claim.as_ref()), expected, "{what}");
        }
    }
}
