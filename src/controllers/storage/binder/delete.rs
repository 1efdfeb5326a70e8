//! Deletes the directory of a released HostPath volume, and then the volume.
//! Upstream: `deleteVolumeOperation`.

use std::sync::Arc;

use serde_json::Value;

use super::super::annotations::IN_TREE_FINALIZER;
use super::super::operation_metrics::operation_ended;
use super::edits::Edit;
use super::plugins::Plugin;
use super::writes::PendingEvent;
use super::{Binder, hostpath};
use crate::client::Delete;
use crate::controllers::Error;
use crate::objects::{PersistentVolume, Resource, from_json};

impl Binder {
    /// Starts the deletion of a released volume, unless it runs or has just failed.
    pub fn delete(self: &Arc<Self>, volume: &Arc<PersistentVolume>, plugin: Plugin) {
        let name = format!("delete-{}[{}]", volume.meta.name, volume.meta.uid);
        let (this, volume) = (self.clone(), volume.clone());
        self.operations.start(name, async move {
            let deleted = this.delete_now(&volume, plugin).await;
            // A success is recorded when the watch shows the deletion.
            if deleted.is_err() {
                this.timestamps.ended(&volume.meta.name, false);
            }
            deleted
        });
    }

    /// Deletes a released volume with its content, if the live volume is still to be deleted. Does
    /// nothing if that cannot be read: the next sync retries.
    /// Upstream: `deleteVolumeOperation`.
    async fn delete_now(
        &self,
        volume: &Arc<PersistentVolume>,
        plugin: Plugin,
    ) -> Result<(), Error> {
        // The cache may be behind.
        let key = volume.meta.key();
        let verbs = self.client.resource(&PersistentVolume::RESOURCE);
        let Ok(json) = verbs.get::<Value>(&key).await else { return Ok(()) };
        let path = json.pointer("/spec/hostPath/path").and_then(Value::as_str).map(str::to_owned);
        let Ok(live) = from_json::<PersistentVolume>(&json.to_string()) else { return Ok(()) };
        let is_kept = live.spec.reclaim_policy != volume.spec.reclaim_policy;
        if live.meta.uid != volume.meta.uid || is_kept || !self.may_reclaim(&live) {
            return Ok(());
        }
        if let Err(error) = self.delete_content(volume, plugin, path).await {
            let message = error.message();
            let notice = PendingEvent::warning("VolumeFailedDelete", message);
            self.set_phase_with(volume, "Failed", Some(notice)).await?;
            return Err(error);
        }
        let deleted = self
            .client
            .delete::<PersistentVolume>(&key, Delete::new().uid(volume.meta.uid.clone()))
            .await;
        if let Err(error) = deleted {
            // The next sync retries.
            log::debug!("volume {key}: {error}");
        }
        Ok(())
    }

    /// Removes the directory of a volume, and then the finalizer that waits for that.
    /// Upstream: `doDeleteVolume`.
    async fn delete_content(
        &self,
        volume: &PersistentVolume,
        plugin: Plugin,
        path: Option<String>,
    ) -> Result<(), Error> {
        let name = &volume.meta.name;
        let path = path.ok_or_else(|| {
            let error = "spec.PersistentVolumeSource.HostPath is nil";
            Error::other(format!("failed to create deleter for volume {name:?}: {error}"))
        })?;
        let start = self.clock.monotonic();
        let removed = hostpath::remove(path).await;
        let took = self.clock.monotonic() - start;
        operation_ended(plugin.name(), "volume_delete", removed.is_ok(), false, took);
        removed.map_err(Error::other)?;
        let live: PersistentVolume = self.client.get(&volume.meta.key()).await?;
        if !live.meta.has_finalizer(IN_TREE_FINALIZER) {
            return Ok(());
        }
        let others = live.meta.finalizers().iter().filter(|name| **name != *IN_TREE_FINALIZER);
        let finalizers = Some(others.map(ToString::to_string).collect());
        let edited = self.edit_volume(&live, Edit { finalizers, ..Edit::default() }).await;
        let doing = "persistent volume controller can't update finalizer";
        edited.map(drop).map_err(|error| Error::during(doing, error))
    }
}
