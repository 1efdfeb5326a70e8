//! Attaches the volumes of pods to their nodes, and detaches those that no pod uses any more. CSI
//! volumes are attached by VolumeAttachments, which drivers answer; volumes of the plugins `fc` and
//! `iscsi` need no operation and are only listed in the statuses of nodes. FlexVolume drivers are
//! programs that attach and detach.
//! Upstream: `pkg/controller/volume/attachdetach`.

mod metrics;
mod operations;
mod perform;
mod reconcile;
mod state_of_world;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use self::operations::PodRef;
use self::reconcile::{DRIVER_PATIENCE, Health, Settings};
use self::state_of_world::StateOfWorld;
use super::claims::{BY_CLAIM, pods_of};
use super::flexvolume::Drivers;
use super::volume_specs::{Resolver, of_volume};
use crate::cache::Lister;
use crate::client::Client;
use crate::clock::SharedClock;
use crate::controllers::nodes::pods::{BY_NODE, on_node};
use crate::controllers::runner::Change;
use crate::controllers::{Controller, Next, Queue, QueuePolicy, SyncResult};
use crate::events::Recorder;
use crate::objects::{
    CSIDriver, Istr, Node, ObjectKey, PersistentVolume, PersistentVolumeClaim, Pod,
    VolumeAttachment,
};
use crate::task::Latch;
use crate::workqueue::ItemExponentialFailureRateLimiter;

/// An annotation of nodes whose kubelets leave attaching to this controller.
/// Upstream: `ControllerManagedAttachAnnotation`.
const MANAGED: &str = "volumes.kubernetes.io/controller-managed-attach-detach";
/// Upstream: `v1.TaintNodeOutOfService`.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
/// Delays between attempts to write the status of a node.
const STATUS_RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));
/// Workers for each queue: writes of different volumes and nodes do not wait for each other.
const WORKERS: usize = 10;

/// Sets up the controller `persistentvolume-attach-detach-controller`.
pub fn controller(c: &mut Controller) -> Result<(), String> {
    let (pods, nodes) = (c.lister::<Pod>(), c.lister::<Node>());
    let claims = c.lister::<PersistentVolumeClaim>();
    let volumes = c.lister::<PersistentVolume>();
    let attachments = c.lister::<VolumeAttachment>();
    let drivers = c.lister::<CSIDriver>();
    c.index(&pods, &BY_CLAIM);
    c.index(&pods, &BY_NODE);
    let options = c.options();
    let verify = !options.disable_attach_detach_reconcile_sync;
    let settings = Settings {
        force_detach_on_timeout: !options.disable_force_detach_on_timeout,
        verify_after: verify.then_some(options.attach_detach_reconcile_sync_period),
    };
    let flex = Drivers::new(&options.flex_volume_plugin_dir);
    let pod_queue = c.queue(QueuePolicy::default());
    let volume_queue = c.queue_named("attachdetach_volumes", QueuePolicy::default());
    let (first, longest) = STATUS_RETRY;
    let limiter = Arc::new(ItemExponentialFailureRateLimiter::new(first, longest));
    let retries = QueuePolicy::default().limited_by(limiter).logged_as(log::Level::Debug);
    let node_queue = c.queue_named("attachdetach_nodes", retries);
    let this = Arc::new(AttachDetach {
        client: c.client(),
        recorder: c.recorder(),
        clock: c.clock(),
        pods: pods.clone(),
        nodes: nodes.clone(),
        attachments: attachments.clone(),
        resolver: Resolver {
            claims: claims.clone(),
            volumes: volumes.clone(),
            drivers: drivers.clone(),
            flex: Some(Arc::new(flex)),
        },
        world: Mutex::default(),
        settings,
        pod_queue: pod_queue.clone(),
        volume_queue: volume_queue.clone(),
        node_queue: node_queue.clone(),
        populated: Latch::new(),
    });

    c.watch(&pods, &pod_queue, queue_pod);
    let users = pods.clone();
    c.watch(&claims, &pod_queue, move |change, queue| {
        if let Some(claim) = newly_bound_claim(&change) {
            pods_of(&users, &claim).iter().for_each(|pod| queue.add(pod.meta.key()));
        }
    });
    let users = pods.clone();
    c.watch(&volumes, &pod_queue, move |change, queue| {
        if let Some(claim) = newly_bound_volume(&change) {
            pods_of(&users, &claim).iter().for_each(|pod| queue.add(pod.meta.key()));
        }
    });
    let handler = this.clone();
    c.watch(&nodes, &node_queue, move |change, _| handler.handle_node_change(&change));
    let handler = this.clone();
    c.watch(&attachments, &volume_queue, move |change, queue| {
        let volume = handler.world.lock().volume_of(&change.object().meta.name);
        volume.iter().for_each(|volume| queue.add(ObjectKey::cluster(volume)));
    });
    let handler = this.clone();
    c.watch(&drivers, &pod_queue, move |change, _| handler.handle_driver_change(&change));

    let start = this.clone();
    c.background(move |stop| async move {
        if let Some(drivers) = &start.resolver.flex {
            drivers.find().await;
        }
        start.populate();
        drop(start);
        stop.stopped().await;
    });
    c.ready_when(&this.populated);
    metrics::report(&this);
    c.sync_by(1, pod_queue, &this, async |this, key| this.sync_pod(&key).await);
    c.sync_by(WORKERS, volume_queue, &this, AttachDetach::sync_volume);
    c.sync_by(WORKERS, node_queue, &this, AttachDetach::sync_node);
    Ok(())
}

struct AttachDetach {
    client: Client,
    recorder: Recorder,
    clock: SharedClock,
    pods: Lister<Pod>,
    nodes: Lister<Node>,
    attachments: Lister<VolumeAttachment>,
    resolver: Resolver,
    world: Mutex<StateOfWorld>,
    settings: Settings,
    /// Pods whose volumes are to be checked.
    pod_queue: Queue,
    /// Volumes, by their unique names.
    volume_queue: Queue,
    /// Nodes whose status is written.
    node_queue: Queue,
    /// Open once the state of world has been filled from the caches.
    populated: Latch,
}

fn has_volumes(pod: &Pod) -> bool {
    let shape = &pod.spec.shape;
    !(shape.claims.is_empty() && shape.inline_volumes.is_empty())
}

/// Queues a pod with volumes when it has got its node or has ended. A pod's volumes never change; a
/// pod gets a node once, and ends once.
fn queue_pod(change: Change<'_, Pod>, queue: &Queue) {
    let pod = change.object();
    let matters = match change {
        Change::Updated { old, new } => {
            old.spec.node_name != new.spec.node_name || old.is_terminated() != new.is_terminated()
        }
        Change::Resync { .. } => false,
        Change::Added { .. } | Change::Deleted(_) => true,
    };
    if matters && has_volumes(pod) && !pod.spec.node_name.is_empty() {
        queue.add(pod.meta.key());
    }
}

/// Returns the key of a claim that the change has bound to a volume. An object of the first list is
/// no change: `populate` reads it.
fn newly_bound_claim(change: &Change<'_, PersistentVolumeClaim>) -> Option<ObjectKey> {
    let bound = |claim: &PersistentVolumeClaim| {
        let is_bound = claim.status.phase == "Bound" && !claim.spec.volume_name.is_empty();
        is_bound.then(|| claim.spec.volume_name.clone())
    };
    let (old, new) = match change {
        Change::Added { new, initial: false } => (None, new),
        Change::Updated { old, new } => (bound(old), new),
        _ => return None,
    };
    let volume = bound(new);
    if volume.is_none() || volume == old {
        return None;
    }
    Some(new.meta.key())
}

/// Returns the claim of a volume that the change has bound. An object of the first list is no
/// change.
fn newly_bound_volume(change: &Change<'_, PersistentVolume>) -> Option<ObjectKey> {
    let (old, new) = match change {
        Change::Added { new, initial: false } => (None, new),
        Change::Updated { old, new } => (old.spec.claim_ref.as_ref(), new),
        _ => return None,
    };
    let claim = new.spec.claim_ref.as_ref().filter(|claim| !claim.uid.is_empty())?;
    if let Some(old) = old
        && old.uid == claim.uid
    {
        return None;
    }
    Some(ObjectKey::new(&claim.namespace, &claim.name))
}

/// Returns whether the change switches attaching by the driver on or off. A driver without a
/// CSIDriver attaches its volumes; an object of the first list is no change.
fn changes_attaching(change: &Change<'_, CSIDriver>) -> bool {
    match change {
        Change::Added { new, initial } => !initial && !new.attaches(),
        Change::Updated { old, new } => old.attaches() != new.attaches(),
        Change::Deleted(last) => !last.object().attaches(),
        Change::Resync { .. } => false,
    }
}

/// Returns the state of a node that decides about forced detaches.
fn health(node: &Node) -> Health {
    Health { ready: node.is_ready(), out_of_service: node.has_taint(OUT_OF_SERVICE) }
}

impl AttachDetach {
    /// Queues volumes by their unique names.
    fn queue_volumes(&self, volumes: &[Istr]) {
        volumes.iter().for_each(|volume| self.volume_queue.add(ObjectKey::cluster(volume)));
    }

    /// Queues the nodes whose report has changed, so that it is written.
    fn queue_nodes(&self, world: &mut StateOfWorld) {
        for node in world.take_unwritten() {
            self.node_queue.add(ObjectKey::cluster(&node));
        }
    }

    /// Returns the health of a node by name; the default if it is deleted.
    fn health(&self, node: &str) -> Health {
        self.nodes.get(&ObjectKey::cluster(node)).map(|node| health(&node)).unwrap_or_default()
    }

    /// Records a change of a node, and queues the volumes and the node status that it affects, and
    /// the pods of a node that is newly managed. Before `populate` has ended it only records.
    /// Upstream: `nodeAdd`, `nodeUpdate`, `nodeDelete`.
    fn handle_node_change(&self, change: &Change<'_, Node>) {
        let node = change.object();
        let name = Istr::new(&node.meta.name);
        let mut world = self.world.lock();
        let in_use = &node.status.volumes_in_use;
        let (is_new, mut volumes) = match change {
            Change::Deleted(_) => (false, world.record_node_deleted(&name, in_use)),
            _ => {
                let is_managed = node.meta.annotations.contains_key(MANAGED);
                let is_new = is_managed && world.manage(&name);
                (is_new, world.set_in_use(&name, in_use))
            }
        };
        let health_changed = match change {
            Change::Updated { old, new } => health(old) != health(new),
            Change::Added { .. } | Change::Deleted(_) => true,
            Change::Resync { .. } => false,
        };
        if health_changed {
            volumes.extend(world.attached_to(&name));
        }
        if matches!(change, Change::Added { .. }) {
            world.record_node_added(&name);
        }
        if !self.populated.is_open() {
            return;
        }
        self.queue_volumes(&volumes);
        self.queue_nodes(&mut world);
        drop(world);
        if is_new {
            let pods = on_node(&self.pods, &name);
            let with_volumes = pods.iter().filter(|pod| has_volumes(pod));
            with_volumes.for_each(|pod| self.pod_queue.add(pod.meta.key()));
        }
    }

    /// Forgets the volumes of a CSI driver that has stopped to attach them, or queues the pods with
    /// volumes if it has started to. Upstream: the populator's loop.
    fn handle_driver_change(&self, change: &Change<'_, CSIDriver>) {
        if !changes_attaching(change) {
            return;
        }
        let driver = &change.object().meta.name;
        // The driver's present state counts: there may be a later change already.
        if self.resolver.attaches(driver) {
            let pods = self.pods.list();
            let bound = pods.iter().filter(|pod| !pod.spec.node_name.is_empty());
            bound.filter(|pod| has_volumes(pod)).for_each(|p| self.pod_queue.add(p.meta.key()));
        } else {
            let volumes = self.world.lock().forget_driver(driver);
            self.queue_volumes(&volumes);
        }
    }

    /// Fills the state of world from nodes, VolumeAttachments and pods, once at the start; then
    /// queues all volumes and nodes, and opens `populated`.
    /// Upstream: `populateActualStateOfWorld`, `populateDesiredStateOfWorld`.
    fn populate(&self) {
        let mut world = self.world.lock();
        let nodes = self.nodes.list();
        for node in &nodes {
            let name = Istr::new(&node.meta.name);
            for volume in &node.status.volumes_attached {
                let path = volume.device_path.clone();
                world.add_attached(&volume.name, None, &name, path, true);
            }
            if node.meta.annotations.contains_key(MANAGED) {
                world.manage(&name);
            }
        }
        for attachment in self.attachments.list() {
            self.populate_attachment(&mut world, &attachment);
        }
        // After all attached volumes, the uncertain ones too: what its node does not use is
        // detached before another node gets it.
        for node in &nodes {
            world.set_in_use(&Istr::new(&node.meta.name), &node.status.volumes_in_use);
        }
        drop(world);
        for pod in self.pods.list() {
            if has_volumes(&pod) && !pod.spec.node_name.is_empty() {
                self.populate_specs(&pod);
                self.add_wanted_volumes(&pod);
            }
        }
        let mut world = self.world.lock();
        self.queue_volumes(&world.volume_names());
        self.queue_nodes(&mut world);
        self.populated.open();
    }

    /// Adds an attachment that no node reports, as uncertain: it is confirmed if a pod wants the
    /// volume there, or else detached. Upstream: `processVolumeAttachments`.
    fn populate_attachment(&self, world: &mut StateOfWorld, attachment: &VolumeAttachment) {
        let (spec, name) = (&attachment.spec, &attachment.meta.name);
        let Some(volume) = &spec.source.persistent_volume_name else {
            return log::info!("Skipping VolumeAttachment {name}: it names no PersistentVolume");
        };
        let found = self.resolver.volumes.get(&ObjectKey::cluster(volume));
        let found = found.and_then(|volume| of_volume(&volume, false));
        let Some(found) = found.filter(|found| self.resolver.is_attachable(found)) else {
            return log::info!("Skipping VolumeAttachment {name}: {volume} is not attachable");
        };
        let volume = found.volume.clone();
        if world.is_attached(&volume, &spec.node_name).is_none() {
            let found = Some(Arc::new(found));
            world.add_attached(&volume, found, &spec.node_name, Istr::default(), false);
            let node = self.nodes.get(&ObjectKey::cluster(&spec.node_name));
            if attachment.status.attached && node.is_none() {
                world.assume_in_use(&volume, &spec.node_name);
            }
        }
    }

    /// Sets the specs of the pod's volumes that its node reports as attached. Nodes report only
    /// names, and the specs are known from pods.
    fn populate_specs(&self, pod: &Pod) {
        let node = &pod.spec.node_name;
        for spec in self.resolver.specs(pod) {
            let volume = spec.volume.clone();
            let mut world = self.world.lock();
            if world.is_attached(&volume, node) != Some(true) || !self.resolver.is_attachable(&spec)
            {
                continue;
            }
            let live = self.nodes.get(&ObjectKey::cluster(node));
            let reported = live.as_ref().and_then(|node| {
                node.status.volumes_attached.iter().find(|attached| attached.name == volume)
            });
            if let Some(reported) = reported {
                let path = reported.device_path.clone();
                world.add_attached(&volume, Some(Arc::new(spec)), node, path, true);
            }
        }
    }

    /// Adds the volumes that the pod wants to the state of world, or forgets them if the pod has
    /// ended. Is repeated later while a FlexVolume driver of the pod is missing.
    async fn sync_pod(&self, key: &ObjectKey) -> SyncResult {
        match self.pods.get(key) {
            Some(pod) if !pod.spec.node_name.is_empty() => {
                let has_drivers = self.find_drivers(&pod).await;
                self.add_wanted_volumes(&pod);
                if !has_drivers {
                    return Ok(Next::After(DRIVER_PATIENCE));
                }
            }
            _ => {
                let volumes = self.world.lock().forget_pod(key, None);
                self.queue_volumes(&volumes);
            }
        }
        Ok(Next::Done)
    }

    /// Probes the FlexVolume drivers of the pod's volumes. Returns whether all exist, which does
    /// not matter for a pod that has ended.
    async fn find_drivers(&self, pod: &Pod) -> bool {
        let Some(drivers) = &self.resolver.flex else { return true };
        let mut all = true;
        for driver in self.resolver.flex_drivers(pod) {
            drivers.probe(&driver).await;
            all &= drivers.is_there(&driver);
        }
        all || pod.is_terminated()
    }

    /// Adds the volumes that the pod wants to the state of world, and queues the changed ones. What
    /// was added stays until the pod ends, even if its claim is deleted.
    /// Upstream: `ProcessPodVolumes`.
    fn add_wanted_volumes(&self, pod: &Pod) {
        let (key, node) = (pod.meta.key(), &pod.spec.node_name);
        let current = (!pod.is_terminated()).then_some((&pod.meta.uid, node.as_str()));
        let mut changed = self.world.lock().forget_pod(&key, current);
        if current.is_some() && self.world.lock().is_managed(node) {
            let reference = PodRef { key, uid: pod.meta.uid.clone() };
            for spec in self.resolver.specs(pod) {
                let spec = Arc::new(spec);
                // A driver that stops attaching is forgotten after it has changed in the cache, so
                // the question and the addition are one step.
                let mut world = self.world.lock();
                if self.resolver.is_attachable(&spec)
                    && world.add_pod_volume(&reference, node, &spec)
                {
                    changed.push(spec.volume.clone());
                }
            }
        }
        self.queue_volumes(&changed);
    }
}
