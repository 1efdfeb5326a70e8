//! Binds claims to volumes, has volumes provisioned for claims, and reclaims released volumes.
//! Upstream: `pkg/controller/volume/persistentvolume`.
//!
//! A binding is two references, from the volume to the claim and back, written one after the other.
//! After a crash between them the next sync writes what is missing.
//!
//! Upstream syncs all claims and volumes in every `--pvclaimbinder-sync-period`. Here each claim or
//! volume that waits for something or has failed has a timer of that period; the others are synced
//! when they, or the objects that they are bound to, change.

mod assume_cache;
mod claim;
mod delete;
mod edits;
mod free_volumes;
mod hostpath;
mod matching;
mod metrics;
mod operations;
mod plugins;
mod provision;
mod recycle;
mod volume;
mod writes;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::claims::BY_CLAIM;
use crate::cache::{IndexValue, Lister};
use crate::client::Client;
use crate::clock::SharedClock;
use crate::controllers::runner::Change;
use crate::controllers::{Controller, Error, Queue, QueuePolicy};
use crate::events::Recorder;
use crate::objects::{Node, ObjectKey, PersistentVolume, PersistentVolumeClaim, Pod, StorageClass};
use crate::workqueue::exponential_failure_rate_limiter;
use assume_cache::AssumeCache;
use free_volumes::FreeVolumes;
use matching::BY_CLAIM_REF;
use metrics::Timestamps;
use operations::Operations;
use recycle::Recyclers;

/// Claims and volumes have a worker each, as upstream: two syncs of claims could choose one volume.
const WORKERS: usize = 1;
/// The delay after a first failure. Upstream: that of `DefaultTypedControllerRateLimiter`.
const FIRST_RETRY: Duration = Duration::from_millis(5);

struct Binder {
    client: Client,
    recorder: Recorder,
    clock: SharedClock,
    volumes: AssumeCache<PersistentVolume>,
    claims: AssumeCache<PersistentVolumeClaim>,
    free_volumes: Mutex<FreeVolumes>,
    classes: Lister<StorageClass>,
    nodes: Lister<Node>,
    pods: Lister<Pod>,
    claim_queue: Queue,
    operations: Arc<Operations>,
    timestamps: Timestamps,
    recyclers: Recyclers,
    /// `--pvclaimbinder-sync-period`
    period: Duration,
    provisions: bool,
    provisions_host_paths: bool,
    /// The gate VolumeAttributesClass.
    attributes_classes: bool,
}

/// Sets up the controller `persistentvolume-binder-controller`.
pub fn controller(c: &mut Controller) -> Result<(), String> {
    let volumes = c.lister::<PersistentVolume>();
    let claims = c.lister::<PersistentVolumeClaim>();
    let classes = c.lister::<StorageClass>();
    let (nodes, pods) = (c.lister::<Node>(), c.lister::<Pod>());
    c.index(&volumes, &BY_CLAIM_REF);
    c.index(&pods, &BY_CLAIM);
    let recyclers = Recyclers::new(c.options())?;
    let period = c.options().pvclaimbinder_sync_period;
    let claim_queue = c.queue_named("claims", queue_policy(period));
    let volume_queue = c.queue_named("volumes", queue_policy(period));
    let (operations, started) = Operations::new(c.clock());
    let binder = Arc::new(Binder {
        client: c.client(),
        recorder: c.recorder(),
        clock: c.clock(),
        volumes: AssumeCache::new(volumes.clone()),
        claims: AssumeCache::new(claims.clone()),
        free_volumes: Mutex::default(),
        classes,
        nodes,
        pods,
        claim_queue: claim_queue.clone(),
        operations,
        timestamps: Timestamps::new(c.clock()),
        recyclers,
        period,
        provisions: c.options().enable_dynamic_provisioning,
        provisions_host_paths: c.options().enable_hostpath_provisioner,
        attributes_classes: c.feature("VolumeAttributesClass"),
    });
    let (this, affected_claims) = (binder.clone(), claim_queue.clone());
    c.watch(&volumes, &volume_queue, move |change, queue| {
        this.observe_volume(change, queue, &affected_claims);
    });
    let (this, affected_volumes, known) = (binder.clone(), volume_queue.clone(), volumes.clone());
    c.watch(&claims, &claim_queue, move |change, queue| {
        this.observe_claim(change, queue, &affected_volumes, &known);
    });
    c.at_start(move || metrics::register(volumes, claims));
    c.background(move |stop| operations::run(started, stop));
    c.sync_by(WORKERS, volume_queue, &binder, async |this, key| {
        this.sync_volume(key).await.map_err(conflict_to_stale)
    });
    c.sync_by(WORKERS, claim_queue, &binder, async |this, key| {
        this.sync_claim(key).await.map_err(conflict_to_stale)
    });
    Ok(())
}

/// Returns the pace of retries: keys that failed back off to at most `period`, after which upstream
/// syncs all keys.
fn queue_policy(period: Duration) -> QueuePolicy {
    let longest = period.max(FIRST_RETRY);
    QueuePolicy::default().limited_by(exponential_failure_rate_limiter(FIRST_RETRY, longest))
}

/// Converts a conflict to [`Error::Stale`], which is retried soon: users, the scheduler and
/// provisioners write the same objects.
fn conflict_to_stale(error: Error) -> Error {
    match error.api() {
        Some(conflict) if conflict.is_conflict() => Error::Stale(error.to_string()),
        _ => error,
    }
}

impl Binder {
    /// Handles a change of a volume: updates the index of free volumes, and queues the volume and
    /// the claims that the change affects.
    fn observe_volume(&self, change: Change<'_, PersistentVolume>, queue: &Queue, claims: &Queue) {
        let queue_claim = |volume: &PersistentVolume| {
            volume.spec.claim_ref.iter().for_each(|claim| claims.add(claim.key()));
        };
        match change {
            Change::Deleted(last) => {
                let meta = &last.object().meta;
                self.volumes.forget(&meta.key(), &meta.uid);
                // The end of its deletion, if this controller has started one.
                self.timestamps.ended(&meta.name, true);
                self.free_volumes.lock().remove(&last.object().meta.name);
                queue_claim(last.object());
                return;
            }
            Change::Updated { old, new } => {
                let affects_claims = old.spec.claim_ref != new.spec.claim_ref
                    || old.spec.access_modes != new.spec.access_modes;
                if affects_claims {
                    queue_claim(old);
                    queue_claim(new);
                }
            }
            Change::Added { .. } | Change::Resync { .. } => {}
        }
        self.free_volumes.lock().update(change.object());
        queue.add(change.object().meta.key());
    }

    /// Handles a change of a claim: queues it and the volumes that the change affects.
    fn observe_claim(
        &self,
        change: Change<'_, PersistentVolumeClaim>,
        queue: &Queue,
        volumes: &Queue,
        known: &Lister<PersistentVolume>,
    ) {
        let key = change.object().meta.key();
        let affects_volumes = match &change {
            Change::Deleted(last) => {
                self.claims.forget(&key, &last.object().meta.uid);
                self.timestamps.forget(&key.to_string());
                true
            }
            Change::Updated { old, new } => old.spec.volume_name != new.spec.volume_name,
            Change::Added { .. } | Change::Resync { .. } => false,
        };
        if affects_volumes {
            for volume in known.by_index(&BY_CLAIM_REF, &IndexValue::Key(key.clone())) {
                volumes.add(volume.meta.key());
            }
            let name = &change.object().spec.volume_name;
            if !name.is_empty() {
                volumes.add(ObjectKey::cluster(name));
            }
        }
        if !matches!(change, Change::Deleted(_)) {
            queue.add(key);
        }
    }
}
