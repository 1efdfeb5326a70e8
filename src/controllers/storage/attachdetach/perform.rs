//! Carries decisions out: VolumeAttachments, statuses of nodes, events.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::AttachDetach;
use super::metrics;
use super::operations::{Kind, Lag, PodRef};
use super::reconcile::{Act, Ended, Observed, Plan};
use super::state_of_world::{Listed, Report};
use crate::client::{Delete, Patch};
use crate::controllers::storage::volume_specs::{
    AttachmentSource, Csi, Plugin, Spec, attachment_name, driver_and_handle, flex_driver_of,
};
use crate::controllers::{Error, Next, SyncResult};
use crate::objects::{
    AttachedVolume, Istr, Node, ObjectKey, PartialObjectMetadata, Pod, Resource, VolumeAttachment,
};

const FAILED: &str = "FailedAttachVolume";
const SUCCEEDED: &str = "SuccessfulAttachVolume";

/// Formats the text of an event about a volume. Upstream: `VolumeToAttach.GenerateMsg`.
fn message(prefix: &str, volume: &str, suffix: &str) -> String {
    format!("{prefix} for volume {volume:?} {suffix}")
}

impl AttachDetach {
    /// Plans the acts for one volume and carries them out, until a plan has none. Then sets the
    /// timer for the next check.
    pub(super) async fn sync_volume(self: Arc<Self>, key: ObjectKey) -> SyncResult {
        let name = Istr::new(&key.name);
        loop {
            let Plan { ended, acts, wake_at } = self.decide(&name);
            ended.iter().for_each(|ended| self.record_end(&name, ended));
            if acts.is_empty() {
                match wake_at {
                    Some(at) => {
                        let after = at.saturating_sub(self.clock.monotonic());
                        self.volume_queue.set_timer_after(key, after.max(Duration::from_millis(1)));
                    }
                    None => drop(self.volume_queue.cancel_timer(&key)),
                }
                return Ok(Next::Done);
            }
            for act in acts {
                self.carry_out(&name, act).await;
            }
        }
    }

    /// Plans the acts for a volume from the state of the world and the caches now, records them as
    /// begun in the world, and queues the nodes whose report has changed.
    fn decide(&self, name: &Istr) -> Plan {
        let observed = Observed {
            seen: self.attachments.last_seen_version(),
            attachment: &|name| self.attachments.get(&ObjectKey::cluster(name)),
            health: &|node| self.health(node),
            attaches: &|driver| self.resolver.attaches(driver),
            detaches: &|spec, name| self.resolver.is_detachable(spec, name),
            settings: self.settings,
            now: self.clock.monotonic(),
        };
        let mut world = self.world.lock();
        let plan = world.reconcile(name, &observed);
        self.queue_nodes(&mut world);
        plan
    }

    /// Ends the operation on `node` with its result: the path of the device, or an error.
    fn end(&self, name: &Istr, node: &Istr, result: Result<Istr, String>) {
        let mut world = self.world.lock();
        let ended = world.end(name, node, result, self.clock.monotonic());
        self.queue_nodes(&mut world);
        drop(world);
        ended.iter().for_each(|ended| self.record_end(name, ended));
    }

    /// Reports the end of an operation in metrics and the log, and an attach by events of the pods.
    fn record_end(&self, name: &Istr, ended: &Ended) {
        let Ended { operation, result } = ended;
        let node = &operation.node;
        let took = self.clock.monotonic().saturating_sub(operation.started);
        let migrated = operation.spec.as_ref().is_some_and(|spec| spec.migrated);
        let plugin = match &operation.spec {
            Some(spec) => spec.plugin_name(),
            None => match Plugin::from_unique_name(name) {
                Some((plugin, _)) => plugin.name().to_owned(),
                None => flex_driver_of(name).map_or("", |(driver, _)| driver).to_owned(),
            },
        };
        metrics::observe_operation(&plugin, operation.kind.name(), result.is_ok(), migrated, took);
        // `nil` is what Go prints for a volume without a spec.
        let volume = operation.spec.as_ref().map_or("nil", |spec| spec.name.as_str());
        match (operation.kind, result) {
            (Kind::Attach, Ok(())) => {
                let text = message("AttachVolume.Attach succeeded", volume, "");
                self.for_each_pod(&operation.pods, |pod| {
                    self.recorder.normal(pod, SUCCEEDED, &*text)
                });
                log::info!("attached volume {name} to node {node}");
            }
            (Kind::Attach, Err(error)) => {
                let text = message("AttachVolume.Attach failed", volume, &format!(": {error}"));
                self.for_each_pod(&operation.pods, |pod| {
                    self.recorder.warning(pod, FAILED, &*text)
                });
                log::error!("cannot attach volume {name} to node {node}: {error}");
            }
            (Kind::Detach, Ok(())) => log::info!("detached volume {name} from node {node}"),
            (Kind::Detach, Err(error)) => {
                log::error!("cannot detach volume {name} from node {node}: {error}");
            }
        }
    }

    /// Calls `report` for those of `pods` that still exist.
    fn for_each_pod(&self, pods: &[PodRef], report: impl Fn(&Pod)) {
        for PodRef { key, uid } in pods {
            if let Some(pod) = self.pods.get(key).filter(|pod| pod.meta.uid == *uid) {
                report(&pod);
            }
        }
    }

    /// Makes the requests of one act, and records the result.
    async fn carry_out(&self, name: &Istr, act: Act) {
        match act {
            Act::Attach { node, spec } => match self.attach(&spec, &node).await {
                Err(error) => self.end(name, &node, Err(error)),
                Ok(Some(device)) => self.end(name, &node, Ok(device)),
                Ok(None) => self.wait(name, &node, Lag::None),
            },
            Act::Detach { node, verify } => match self.detach(name, &node, verify).await {
                Err(error) => self.end(name, &node, Err(error)),
                Ok(Detaching::Done) => self.end(name, &node, Ok(Istr::default())),
                Ok(Detaching::Begun(lag)) => self.wait(name, &node, lag),
            },
            Act::RefuseMultiAttach { spec, pods, users } => {
                self.refuse_multi_attach(&spec, &pods, &users);
            }
            Act::Verify { node, attachment } => self.verify(name, &node, &attachment).await,
            Act::Ask { node, spec } => self.ask_driver(name, &node, &spec).await,
            Act::CountForcedDetach(reason) => {
                metrics::forced_detach(reason);
                log::info!("detaching volume {name} by force: {reason}");
            }
        }
    }

    /// Marks the operation on `node` as one that the driver works on.
    fn wait(&self, name: &Istr, node: &Istr, lag: Lag) {
        self.world.lock().wait(name, node, lag, self.clock.monotonic());
    }

    /// Attaches the volume, and returns the path of the device. `None`: a VolumeAttachment exists,
    /// and the driver is to answer.
    /// Upstream: `csiAttacher.Attach`.
    async fn attach(&self, spec: &Spec, node: &str) -> Result<Option<Istr>, String> {
        if let (Some(flex), Some(drivers)) = (&spec.flex, &self.resolver.flex) {
            drivers.probe(&flex.driver).await;
            return drivers.attach(flex, node).await.map(Some);
        }
        // Volumes of FC and iSCSI need no operation.
        let Some(csi) = &spec.csi else { return Ok(Some(Istr::default())) };
        let name = attachment_name(&csi.handle, &csi.driver, node);
        if self.attachments.get(&ObjectKey::cluster(&name)).is_some() {
            return Ok(None);
        }
        let attachments = self.client.resource(&VolumeAttachment::RESOURCE);
        let body = new_attachment(&name, csi, node);
        match attachments.create_for_metadata("", &body).await {
            Err(error) if !error.is_already_exists() => {
                let error = Error::from(error).message();
                Err(format!("kubernetes.io/csi: attacher.Attach failed: {error}"))
            }
            _ => Ok(None),
        }
    }

    /// Starts the detach of a volume. `verify`: only if the node's status, read from the API
    /// server, does not list it as in use.
    async fn detach(&self, name: &str, node: &str, verify: bool) -> Result<Detaching, String> {
        if verify {
            self.verify_safe(name, node).await?;
        }
        let Some((Plugin::Csi, of_plugin)) = Plugin::from_unique_name(name) else {
            return self.detach_in_tree(name, node).await.map(|()| Detaching::Done);
        };
        let Some((driver, handle)) = driver_and_handle(of_plugin) else {
            return Err("volumeName missing expected data".into());
        };
        let attachment = ObjectKey::cluster(&attachment_name(handle, driver, node));
        let known = self.attachments.get(&attachment).map(|known| known.meta.uid.clone());
        let delete = match &known {
            Some(uid) => Delete::new().uid(uid.clone()),
            None => Delete::new(),
        };
        match self.client.delete::<VolumeAttachment>(&attachment, delete).await {
            Ok(()) if known.is_some() => Ok(Detaching::Begun(Lag::None)),
            Ok(()) => self.check_unseen_deletion(&attachment).await,
            Err(error) if error.is_not_found() => {
                Ok(known.map_or(Detaching::Done, |uid| Detaching::Begun(Lag::Gone(uid))))
            }
            Err(error) => Err(format!(
                "kubernetes.io/csi: detacher.Detach failed to delete VolumeAttachment [{}]: {}",
                attachment.name,
                Error::from(error).message(),
            )),
        }
    }

    /// Reads from the API server whether an attachment that was just deleted, and that the cache
    /// did not have, is gone. A finalizer of the driver may keep it.
    async fn check_unseen_deletion(&self, attachment: &ObjectKey) -> Result<Detaching, String> {
        match self.client.get::<VolumeAttachment>(attachment).await {
            Ok(found) => Ok(Detaching::Begun(Lag::Unseen(found.meta.resource_version))),
            Err(error) if error.is_not_found() => Ok(Detaching::Done),
            Err(error) => Err(format!(
                "kubernetes.io/csi: detacher.Detach failed to get VolumeAttachment [{}]: {}",
                attachment.name,
                Error::from(error).message(),
            )),
        }
    }

    /// Detaches a volume by its FlexVolume driver, which `Plugin::from_unique_name` does not know.
    /// Volumes of FC and iSCSI have nothing to detach in the controller; a name of no known form
    /// counts as detached.
    async fn detach_in_tree(&self, unique: &str, node: &str) -> Result<(), String> {
        match (Plugin::from_unique_name(unique), flex_driver_of(unique), &self.resolver.flex) {
            (None, Some((driver, volume)), Some(drivers)) => {
                drivers.detach(driver, volume, node).await
            }
            _ => Ok(()),
        }
    }

    /// Checks with the API server that the kubelet does not use the volume; a node that does not
    /// exist uses none.
    /// Upstream: `verifyVolumeIsSafeToDetach`.
    async fn verify_safe(&self, name: &str, node: &str) -> Result<(), String> {
        match self.client.get::<Node>(&ObjectKey::cluster(node)).await {
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(format!("failed fetching node from API server: {error}")),
            Ok(node) if node.status.volumes_in_use.iter().any(|volume| *volume == *name) => {
                Err("volume is still in use by node, according to Node status".into())
            }
            Ok(_) => Ok(()),
        }
    }

    /// Records an event for each of `pods`: the volume is attached to other nodes, where `users`
    /// use it. Upstream: `reportMultiAttachError`.
    fn refuse_multi_attach(&self, spec: &Spec, pods: &[PodRef], users: &[PodRef]) {
        self.for_each_pod(pods, |pod| {
            let text = multi_attach_error(&pod.meta.namespace, users);
            let text = message("Multi-Attach error", &spec.name, &text);
            self.recorder.warning(pod, FAILED, text);
        });
        log::info!("Multi-Attach error: volume {} is attached to another node", spec.volume);
    }

    /// Reads from the API server an attachment that the cache does not have; if it is not attached
    /// there, the volume counts as detached.
    async fn verify(&self, name: &Istr, node: &Istr, attachment: &str) {
        let key = ObjectKey::cluster(attachment);
        let is_attached = match self.client.get::<VolumeAttachment>(&key).await {
            Ok(found) => found.status.attached,
            // Any other error leaves it unknown: the volume stays attached.
            Err(error) => !error.is_not_found(),
        };
        if !is_attached {
            let mut world = self.world.lock();
            world.remove_attached(name, node);
            self.queue_nodes(&mut world);
        }
    }

    /// Asks a FlexVolume driver whether its volume is still attached; if not, it counts as
    /// detached.
    async fn ask_driver(&self, name: &Istr, node: &Istr, spec: &Spec) {
        let (Some(flex), Some(drivers)) = (&spec.flex, &self.resolver.flex) else { return };
        match drivers.is_attached(flex, node).await {
            Ok(true) => {}
            Ok(false) => {
                log::info!("volume {name} is no longer attached to node {node}");
                let mut world = self.world.lock();
                world.remove_attached(name, node);
                self.queue_nodes(&mut world);
            }
            Err(error) => {
                log::error!("is volume {name} attached to node {node}? {error}");
            }
        }
    }

    /// Writes the volumes that are attached to a node into its status, unless it lists them
    /// already. Then queues the volumes whose detach waits for that.
    /// Upstream: `NodeStatusUpdater.UpdateNodeStatusForNode`.
    pub(super) async fn sync_node(self: Arc<Self>, key: ObjectKey) -> SyncResult {
        let name = Istr::new(&key.name);
        let Some(report) = self.world.lock().unwritten_report(&name) else { return Ok(Next::Done) };
        let is_there = match self.nodes.get(&key) {
            None => false,
            Some(node) => {
                let is_listed = match &report.listed {
                    // Starting over a cluster that is in order writes nothing.
                    Listed::Cached => sorted(&node.status.volumes_attached) == report.volumes,
                    Listed::Written(volumes) => *volumes == report.volumes,
                    Listed::Unknown => false,
                };
                is_listed || self.write_status(&key, &report).await?
            }
        };
        let mut world = self.world.lock();
        let waiting = world.mark_written(&name, report, is_there);
        let more = world.unwritten_report(&name).is_some();
        drop(world);
        self.queue_volumes(&waiting);
        if more {
            self.node_queue.add(key);
        }
        Ok(Next::Done)
    }

    /// Writes a report into the status of a node, and returns whether the node still exists.
    async fn write_status(&self, key: &ObjectKey, report: &Report) -> Result<bool, Error> {
        let volumes = &report.volumes;
        let volumes = if volumes.is_empty() { Value::Null } else { json!(volumes) };
        let patch = Patch::StrategicMerge(json!({ "status": { "volumesAttached": volumes } }));
        let status = self.client.resource(&Node::RESOURCE).subresource("status");
        match status.patch::<PartialObjectMetadata>(key, &patch).await {
            Ok(_) => Ok(true),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => {
                if error.is_unsure() {
                    self.world.lock().mark_outcome_unknown(&key.name, report);
                }
                Err(error.into())
            }
        }
    }
}

/// Returns the volumes sorted, as a [`Report`] has them.
fn sorted(volumes: &[AttachedVolume]) -> Vec<AttachedVolume> {
    let mut volumes = volumes.to_vec();
    volumes.sort();
    volumes
}

/// How far a detach is after its request.
enum Detaching {
    Done,
    /// The driver is to answer.
    Begun(Lag),
}

/// Returns the VolumeAttachment that asks a CSI driver to attach a volume.
fn new_attachment(name: &str, csi: &Csi, node: &str) -> Value {
    let source = match &csi.source {
        AttachmentSource::Volume(volume) => json!({ "persistentVolumeName": volume }),
        AttachmentSource::Inline(spec) => json!({ "inlineVolumeSpec": spec }),
        AttachmentSource::Never => json!({}),
    };
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment",
        "metadata": { "name": name },
        "spec": { "attacher": csi.driver, "nodeName": node, "source": source },
    })
}

/// Returns the text about the pods that hold a volume on other nodes. It names no pod of another
/// namespace.
fn multi_attach_error(namespace: &str, users: &[PodRef]) -> String {
    let in_namespace = users.iter().filter(|user| user.key.namespace == *namespace);
    let names: Vec<&str> = in_namespace.map(|user| &*user.key.name).collect();
    match (names.len(), users.len() - names.len()) {
        (0, 0) => "Volume is already exclusively attached to one node and can't be attached to \
                   another"
            .into(),
        (0, others) => {
            format!("Volume is already used by {others} pod(s) in different namespaces")
        }
        (_, 0) => format!("Volume is already used by pod(s) {}", names.join(", ")),
        (_, others) => format!(
            "Volume is already used by pod(s) {} and {others} pod(s) in different namespaces",
            names.join(", ")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::Uid;

    #[test]
    fn texts_are_those_of_upstream() {
        let user =
            |namespace, name| PodRef { key: ObjectKey::new(namespace, name), uid: Uid::default() };
        let table = [
            (
                vec![],
                "Multi-Attach error for volume \"pv\" Volume is already exclusively attached to \
                 one node and can't be attached to another",
            ),
            (
                vec![user("ns", "a"), user("ns", "b")],
                "Multi-Attach error for volume \"pv\" Volume is already used by pod(s) a, b",
            ),
            (
                vec![user("ns", "a"), user("x", "b")],
                "Multi-Attach error for volume \"pv\" Volume is already used by pod(s) a and 1 \
                 pod(s) in different namespaces",
            ),
            (
                vec![user("y", "a"), user("x", "b")],
                "Multi-Attach error for volume \"pv\" Volume is already used by 2 pod(s) in \
                 different namespaces",
            ),
        ];
        for (users, text) in table {
            let found = message("Multi-Attach error", "pv", &multi_attach_error("ns", &users));
            assert_eq!(found, text);
        }
        assert_eq!(
            message("AttachVolume.Attach succeeded", "pv", ""),
            "AttachVolume.Attach succeeded for volume \"pv\" "
        );
    }
}
