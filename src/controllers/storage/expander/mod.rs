//! Leaves the expansion of claims to external resizers, and keeps the status of expansions that
//! only the kubelet can do. Upstream: `pkg/controller/volume/expand`.

mod flex;

use std::sync::Arc;

use serde_json::{Value, json};

use super::annotations::{PRE_RESIZE_CAPACITY, STORAGE_RESIZER};
use super::csi_migration;
use crate::cache::Lister;
use crate::client::{Client, Patch};
use crate::clock::SharedClock;
use crate::controllers::runner::Change;
use crate::controllers::{Controller, Error, Next, QueuePolicy, SyncResult};
use crate::events::Recorder;
use crate::objects::{
    LocalSource, ObjectKey, PersistentVolume, PersistentVolumeClaim, Quantity, Resource,
};

/// The reason of the events.
const EXPANDING: &str = "ExternalExpanding";

struct Expander {
    client: Client,
    recorder: Recorder,
    clock: SharedClock,
    claims: Lister<PersistentVolumeClaim>,
    volumes: Lister<PersistentVolume>,
}

/// Sets up the controller `persistentvolume-expander-controller`.
pub fn controller(c: &mut Controller) -> Result<(), String> {
    let claims = c.lister::<PersistentVolumeClaim>();
    let volumes = c.lister::<PersistentVolume>();
    let queue = c.queue(QueuePolicy::default());
    c.watch(&claims, &queue, |change, queue| {
        let concerns = match &change {
            Change::Added { .. } => true,
            Change::Updated { old, new } => has_grown(old, new),
            Change::Resync { .. } | Change::Deleted(_) => false,
        };
        let claim = change.object();
        if concerns && claim.status.phase == "Bound" {
            queue.add(claim.meta.key());
        }
    });
    let (client, recorder, clock) = (c.client(), c.recorder(), c.clock());
    let this = Arc::new(Expander { client, recorder, clock, claims, volumes });
    c.sync(queue, &this, Expander::sync);
    Ok(())
}

/// Compares two amounts; an absent one is zero.
fn compare(a: Option<Quantity>, b: Option<Quantity>) -> std::cmp::Ordering {
    a.unwrap_or_default().compare(b.unwrap_or_default())
}

/// Returns whether an update of a claim asks for more storage, or its capacity has grown.
fn has_grown(old: &PersistentVolumeClaim, new: &PersistentVolumeClaim) -> bool {
    compare(new.spec.storage, old.spec.storage).is_gt()
        || compare(new.status.capacity, old.status.capacity).is_gt()
}

/// What to do about a claim and its volume.
#[derive(Debug, PartialEq)]
enum Plan {
    Nothing,
    /// The resizer of the CSI driver that has replaced the plugin expands it.
    Migrated {
        plugin: &'static str,
        driver: &'static str,
    },
    External,
    /// The kubelet does the work; this controller keeps the status.
    Flex,
}

/// Decides who expands the volume.
fn plan(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Plan {
    let asks = compare(claim.spec.storage, claim.status.capacity).is_gt();
    if !asks && !volume.meta.annotations.contains_key(PRE_RESIZE_CAPACITY) {
        return Plan::Nothing;
    }
    match (csi_migration::plugin_of(volume), volume.spec.local) {
        (Some((plugin, driver)), _) => Plan::Migrated { plugin, driver },
        (None, Some(LocalSource::FlexVolume)) => Plan::Flex,
        (None, _) => Plan::External,
    }
}

/// Returns whether the volume names this very claim, by its uid.
fn is_bound_to(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    volume.spec.claim_ref.as_ref().is_some_and(|reference| {
        reference.namespace == claim.meta.namespace && reference.uid == claim.meta.uid
    })
}

impl Expander {
    /// Starts the expansion of a claim that asks for more storage: an event says that a resizer
    /// does it, or the status asks the kubelet. Fails if the volume is not bound to this claim.
    async fn sync(self: Arc<Self>, key: ObjectKey) -> SyncResult {
        let Some(claim) = self.claims.get(&key) else { return Ok(Next::Done) };
        let name = ObjectKey::cluster(&claim.spec.volume_name);
        let cached = self.volumes.get(&name).filter(|volume| is_bound_to(volume, &claim));
        let volume = match cached {
            Some(volume) => volume,
            // The cache may be behind.
            None => {
                Arc::new(self.client.get::<PersistentVolume>(&name).await.map_err(|error| {
                    let error = Error::from(error).message();
                    Error::other(format!("failed to get PV {:?}: {error}", name.name))
                })?)
            }
        };
        if !is_bound_to(&volume, &claim) {
            let error = format!("persistent Volume is not bound to PVC being updated : {key}");
            return Err(Error::other(error));
        }
        match plan(&claim, &volume) {
            Plan::Nothing => {}
            Plan::External => {
                let message = "waiting for an external controller to expand this PVC";
                self.recorder.normal(&*claim, EXPANDING, message);
            }
            Plan::Migrated { plugin, driver } => {
                let message = format!(
                    "CSI migration enabled for {plugin}; waiting for external resizer to expand \
                     the pvc"
                );
                self.recorder.normal(&*claim, EXPANDING, message);
                self.set_resizer(&claim, driver).await.inspect_err(|error| {
                    self.recorder.warning(&*claim, EXPANDING, error.message());
                })?;
            }
            Plan::Flex => self.expand(&claim).await?,
        }
        Ok(Next::Done)
    }

    /// Writes the name of the CSI driver that expands the claim into its annotations.
    /// Upstream: `util.SetClaimResizer`.
    async fn set_resizer(&self, claim: &PersistentVolumeClaim, driver: &str) -> Result<(), Error> {
        let (meta, key) = (&claim.meta, claim.meta.key());
        if meta.annotations.get(STORAGE_RESIZER) == Some(driver) {
            return Ok(());
        }
        let patch = json!({ "metadata": {
            "annotations": { STORAGE_RESIZER: driver },
            "resourceVersion": meta.resource_version.to_string(),
        } });
        self.patch_status(&key, patch).await.map(drop).map_err(|error| {
            Error::other(format!(
                "error setting resizer annotation to pvc {key}, with error {}",
                error.message()
            ))
        })
    }

    /// Patches the status of a claim, and returns the claim. Upstream: `PatchPVCStatus`.
    async fn patch_status(&self, key: &ObjectKey, patch: Value) -> Result<Value, Error> {
        let verbs = self.client.resource(&PersistentVolumeClaim::RESOURCE).subresource("status");
        verbs.patch(key, &Patch::StrategicMerge(patch)).await.map_err(|error| {
            let (name, error) = (&key.name, Error::from(error));
            let message = error.message();
            Error::other(format!("patchPVCStatus failed to patch PVC {name:?}: {message}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(wanted: &str, has: &str) -> PersistentVolumeClaim {
        serde_json::from_value(json!({
            "spec": { "resources": { "requests": { "storage": wanted } } },
            "status": { "capacity": { "storage": has } },
        }))
        .unwrap()
    }

    #[test]
    fn claims_that_ask_for_more_or_have_grown_are_synced() {
        for (old, new, expected) in [
            (("1Gi", "1Gi"), ("1Gi", "1Gi"), false),
            (("1Gi", "1Gi"), ("2Gi", "1Gi"), true),
            (("2Gi", "1Gi"), ("2Gi", "2Gi"), true),
            (("2Gi", "1Gi"), ("1Gi", "1Gi"), false),
        ] {
            let (old, new) = (claim(old.0, old.1), claim(new.0, new.1));
            assert_eq!(has_grown(&old, &new), expected);
        }
    }

    #[test]
    fn the_source_of_the_volume_decides_who_expands_it() {
        let volume = |source: Value, annotations: Value| -> PersistentVolume {
            serde_json::from_value(json!({
                "metadata": { "annotations": annotations }, "spec": source,
            }))
            .unwrap()
        };
        let (csi, flex) = (json!({ "csi": { "driver": "d" } }), json!({ "flexVolume": {} }));
        let ebs = json!({ "awsElasticBlockStore": { "volumeID": "v" } });
        let grows = claim("2Gi", "1Gi");
        let migrated =
            Plan::Migrated { plugin: "kubernetes.io/aws-ebs", driver: "ebs.csi.aws.com" };
        for (source, expected) in [(csi, Plan::External), (flex, Plan::Flex), (ebs, migrated)] {
            assert_eq!(
                plan(&claim("1Gi", "1Gi"), &volume(source.clone(), json!({}))),
                Plan::Nothing
            );
            assert_eq!(plan(&grows, &volume(source.clone(), json!({}))), expected);
            let before = json!({ PRE_RESIZE_CAPACITY: "1Gi" });
            assert_eq!(plan(&claim("2Gi", "2Gi"), &volume(source, before)), expected);
        }
    }
}
