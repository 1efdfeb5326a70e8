//! Keeps a PersistentVolume that is being deleted while it is bound.
//! Upstream: `pkg/controller/volume/pvprotection`.

use std::sync::Arc;

use super::protection::Protection;
use crate::cache::Lister;
use crate::client::Client;
use crate::controllers::runner::keys;
use crate::controllers::{Controller, Next, QueuePolicy, SyncResult};
use crate::objects::{ObjectKey, PersistentVolume};

/// Upstream: `volumeutil.PVProtectionFinalizer`.
const PROTECTION: Protection = Protection("kubernetes.io/pv-protection");

/// Sets up the controller `persistentvolume-protection-controller`.
pub fn controller(c: &mut Controller) -> Result<(), String> {
    let volumes = c.lister::<PersistentVolume>();
    let this = Arc::new(PvProtection { client: c.client(), volumes: volumes.clone() });
    let queue = c.queue(QueuePolicy::default());
    let needs_sync = |volume: &PersistentVolume| PROTECTION.concerns(&volume.meta);
    c.watch(&volumes, &queue, keys::of_current(needs_sync));
    c.sync(queue, &this, PvProtection::sync);
    Ok(())
}

struct PvProtection {
    client: Client,
    volumes: Lister<PersistentVolume>,
}

impl PvProtection {
    /// Adds the finalizer to a volume, or removes it from a deleted volume that is not bound.
    async fn sync(self: Arc<Self>, key: ObjectKey) -> SyncResult {
        let Some(volume) = self.volumes.get(&key) else { return Ok(Next::Done) };
        if PROTECTION.is_deletion_candidate(&volume.meta) && !volume.is_bound() {
            PROTECTION.remove(&self.client, &*volume).await?;
        }
        if PROTECTION.is_missing(&volume.meta) {
            PROTECTION.add(&self.client, &*volume).await?;
        }
        Ok(Next::Done)
    }
}
