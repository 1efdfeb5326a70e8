//! A stand-in for the sidecar external-attacher: registers the CSI driver, on each node too, and
//! answers its VolumeAttachments.
//!
//! Annotations of a PersistentVolume steer it: `sandbox/attaching` and `sandbox/detaching` are
//! `fail` (each try ends with an error) or `hang` (there is no answer).

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use kube_controller_manager::cache::{Lister, Scope};
use kube_controller_manager::client::{self, Client, Patch};
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::objects::{
    Istr, Meta, Node, Object, ObjectKey, PersistentVolume, Resource, ResourceType, VolumeAttachment,
};

use super::StandIn;
use super::driver::DRIVER;
use super::worker::{Event, Next, SyncResult, Worker};

const NAME: &str = "sandbox-attacher";
const WORKERS: usize = 4;
/// The finalizer of VolumeAttachments and PersistentVolumes, with external-attacher's name for it.
const FINALIZER: &str = "external-attacher/csi-sandbox-local";
/// The pause before a failure that an annotation requests is repeated.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// The namespaces of keys that stand for PersistentVolumes, and for Nodes.
const VOLUME: &str = "persistentvolume";
const NODE: &str = "node";
/// The limit of volumes per node that kubelets report for a driver.
const VOLUMES_OF_A_NODE: u32 = 100;

const DRIVERS: ResourceType =
    ResourceType::fixed("storage.k8s.io", "v1", "CSIDriver", "csidrivers", false);
const CSI_NODES: ResourceType =
    ResourceType::fixed("storage.k8s.io", "v1", "CSINode", "csinodes", false);

/// The fields of a VolumeAttachment that the attacher reads.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Attachment {
    #[serde(rename = "metadata")]
    meta: Meta,
    spec: Spec,
    status: Status,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    attacher: Istr,
    node_name: Istr,
    source: Source,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Source {
    persistent_volume_name: Option<Istr>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    attached: bool,
    attach_error: Option<Failure>,
    detach_error: Option<Failure>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Failure {
    message: String,
}

impl Object for Attachment {
    fn meta(&self) -> &Meta {
        &self.meta
    }
}

struct Attacher {
    client: Client,
    clock: SharedClock,
    attachments: Lister<Attachment>,
    volumes: Lister<PersistentVolume>,
    nodes: Lister<Node>,
}

/// Stands in for the attacher of a CSI driver: watches VolumeAttachments, volumes and nodes; the
/// future works until the stop.
pub fn attacher(stand_in: StandIn<'_>) -> impl Future<Output = ()> + Send + use<> {
    let StandIn { factory, client, clock, stop, .. } = stand_in;
    let attachments = factory.informer_for::<Attachment>(Scope::all(VolumeAttachment::RESOURCE));
    let volumes = factory.informer::<PersistentVolume>();
    let mut worker = Worker::new(NAME, &clock);
    let keys = worker.keys();
    worker.watch(&attachments, move |event: Event<'_, Attachment>| match event {
        Event::Seen(attachment) => keys.add(attachment.meta.key()),
        Event::Gone(attachment) => {
            if let Some(volume) = &attachment.spec.source.persistent_volume_name {
                keys.add(ObjectKey::new(VOLUME, volume));
            }
        }
    });
    let keys = worker.keys();
    worker.watch(&volumes, move |event: Event<'_, PersistentVolume>| {
        if let Event::Seen(volume) = event
            && volume.meta.has_finalizer(FINALIZER)
        {
            keys.add(ObjectKey::new(VOLUME, &volume.meta.name));
        }
    });
    let nodes = factory.informer::<Node>();
    let (keys, mut known) = (worker.keys(), HashSet::new());
    worker.watch(&nodes, move |event: Event<'_, Node>| {
        // Nodes change all the time.
        if let Event::Seen(node) = event
            && known.insert(node.meta.uid.clone())
        {
            keys.add(ObjectKey::new(NODE, &node.meta.name));
        }
    });
    let this = Arc::new(Attacher {
        client,
        clock,
        attachments: attachments.lister(),
        volumes: volumes.lister(),
        nodes: nodes.lister(),
    });
    async move {
        worker.run(WORKERS, stop, move |key| this.clone().sync(key)).await;
    }
}

/// The next step for a VolumeAttachment.
#[derive(Debug, PartialEq)]
enum Step {
    Nothing,
    Protect,
    Attach,
    Refuse(String),
    Release,
    Keep(String),
}

/// Decides the next step of an attachment. `how` is the annotation that steers the step; `other`
/// another node that has the volume; `volume_is_deleted` says that the volume is being deleted.
fn step(attachment: &Attachment, how: &str, other: Option<&str>, volume_is_deleted: bool) -> Step {
    let failure = |verb| format!("rpc error: code = Internal desc = {verb} fails on purpose");
    let protected = attachment.meta.has_finalizer(FINALIZER);
    if attachment.meta.is_being_deleted() {
        return match how {
            _ if !protected => Step::Nothing,
            "fail" => Step::Keep(failure("detaching")),
            "hang" => Step::Nothing,
            _ => Step::Release,
        };
    }
    match (how, other) {
        _ if attachment.status.attached => Step::Nothing,
        _ if volume_is_deleted => Step::Refuse(marked_for_deletion(attachment)),
        _ if !protected => Step::Protect,
        ("fail", _) => Step::Refuse(failure("attaching")),
        ("hang", _) => Step::Nothing,
        (_, Some(node)) => Step::Refuse(format!(
            "rpc error: code = FailedPrecondition desc = volume is attached to node {node}"
        )),
        _ => Step::Attach,
    }
}

fn marked_for_deletion(attachment: &Attachment) -> String {
    let name = attachment.spec.source.persistent_volume_name.as_deref().unwrap_or_default();
    format!("PersistentVolume {name:?} is marked for deletion")
}

impl Attacher {
    /// Carries out one step of an attachment, or registers a node, or releases a volume, by the
    /// key's namespace.
    async fn sync(self: Arc<Self>, key: ObjectKey) -> SyncResult {
        if key.namespace == NODE {
            return self.register(&ObjectKey::cluster(&key.name)).await;
        }
        if key.namespace == VOLUME {
            return self.release_volume(&ObjectKey::cluster(&key.name)).await;
        }
        let Some(attachment) = self.attachments.get(&key) else { return Ok(Next::Done) };
        if attachment.spec.attacher != DRIVER {
            return Ok(Next::Done);
        }
        let name = attachment.spec.source.persistent_volume_name.clone().unwrap_or_default();
        let volume = self.volumes.get(&ObjectKey::cluster(&name));
        let deleted = attachment.meta.is_being_deleted();
        let is_missing = volume.is_none() && !name.is_empty();
        if is_missing && !deleted && !attachment.status.attached {
            // Its watch may be behind: without the volume's finalizer nothing is attached.
            return Ok(Next::After(RETRY_DELAY));
        }
        let steered = if deleted { "sandbox/detaching" } else { "sandbox/attaching" };
        let how = volume.as_ref().and_then(|volume| volume.meta.annotations.get(steered));
        let other = volume.as_ref().and_then(|volume| self.other_node(&attachment, volume));
        let volume_is_deleted =
            volume.as_ref().is_some_and(|volume| volume.meta.is_being_deleted());
        match step(&attachment, how.unwrap_or_default(), other.as_deref(), volume_is_deleted) {
            Step::Nothing if how == Some("hang") => return Ok(Next::After(RETRY_DELAY)),
            Step::Nothing => {}
            Step::Protect => {
                if let Some(volume) = &volume {
                    self.set_finalizer(&volume.meta, &PersistentVolume::RESOURCE, true).await?;
                }
                self.set_finalizer(&attachment.meta, &VolumeAttachment::RESOURCE, true).await?;
            }
            Step::Attach => {
                self.set_status(&key, json!({ "attached": true, "attachError": null })).await?;
            }
            Step::Refuse(message) => {
                self.report(&key, "attachError", &attachment.status.attach_error, message).await?;
                return Ok(Next::After(RETRY_DELAY));
            }
            Step::Keep(message) => {
                self.report(&key, "detachError", &attachment.status.detach_error, message).await?;
                return Ok(Next::After(RETRY_DELAY));
            }
            Step::Release => {
                self.set_status(&key, json!({ "attached": false, "detachError": null })).await?;
                self.drop_finalizer(&key, &VolumeAttachment::RESOURCE).await?;
            }
        }
        Ok(Next::Done)
    }

    /// Registers the driver, and that it runs on the node.
    async fn register(&self, key: &ObjectKey) -> SyncResult {
        let Some(node) = self.nodes.get(key) else { return Ok(Next::Done) };
        let driver = json!({
            "apiVersion": DRIVERS.api_version(), "kind": DRIVERS.kind,
            "metadata": { "name": DRIVER }, "spec": { "attachRequired": true },
        });
        ignore_present(self.client.resource(&DRIVERS).create::<Value>("", &driver).await)?;
        let of_node = json!({
            "apiVersion": CSI_NODES.api_version(), "kind": CSI_NODES.kind,
            "metadata": { "name": key.name, "ownerReferences": [{
                "apiVersion": "v1", "kind": "Node", "name": key.name, "uid": node.meta.uid,
            }] },
            "spec": { "drivers": [{
                "name": DRIVER, "nodeID": key.name, "topologyKeys": null,
                "allocatable": { "count": VOLUMES_OF_A_NODE },
            }] },
        });
        ignore_present(self.client.resource(&CSI_NODES).create::<Value>("", &of_node).await)?;
        Ok(Next::Done)
    }

    /// Returns another node to which the volume is attached, if it may have only one writer.
    fn other_node(&self, attachment: &Attachment, volume: &PersistentVolume) -> Option<Istr> {
        let several = |mode: &Istr| mode.ends_with("Many");
        if volume.spec.access_modes.iter().any(several) {
            return None;
        }
        let all = self.attachments.list();
        let found = all.iter().find(|other| {
            other.meta.name != attachment.meta.name
                && other.status.attached
                && other.spec.source.persistent_volume_name.as_deref() == Some(&*volume.meta.name)
        });
        found.map(|other| other.spec.node_name.clone())
    }

    /// Writes a failure to an attachment's status, unless it is there already.
    async fn report(
        &self,
        key: &ObjectKey,
        field: &str,
        known: &Option<Failure>,
        message: String,
    ) -> client::Result<()> {
        if known.as_ref().is_some_and(|known| known.message == message) {
            return Ok(());
        }
        let error = json!({ "message": message, "time": self.clock.now() });
        self.set_status(key, json!({ field: error })).await
    }

    async fn set_status(&self, key: &ObjectKey, status: Value) -> client::Result<()> {
        let patch = Patch::Merge(json!({ "status": status }));
        let attachments = self.client.resource(&VolumeAttachment::RESOURCE).subresource("status");
        ignore_gone(attachments.patch::<Value>(key, &patch).await)
    }

    /// Releases a volume that is being deleted once it is attached to no node.
    async fn release_volume(&self, key: &ObjectKey) -> SyncResult {
        let Some(volume) = self.volumes.get(key) else { return Ok(Next::Done) };
        let is_attached = self.attachments.list().iter().any(|attachment| {
            attachment.spec.source.persistent_volume_name.as_deref() == Some(&*key.name)
        });
        if volume.meta.is_being_deleted() && volume.meta.has_finalizer(FINALIZER) && !is_attached {
            self.set_finalizer(&volume.meta, &PersistentVolume::RESOURCE, false).await?;
        }
        Ok(Next::Done)
    }

    /// Adds or removes the attacher's finalizer. Does nothing if it is as wanted, or the object is
    /// gone.
    async fn set_finalizer(
        &self,
        meta: &Meta,
        resource: &ResourceType,
        present: bool,
    ) -> client::Result<()> {
        if meta.has_finalizer(FINALIZER) == present {
            return Ok(());
        }
        let mut finalizers: Vec<&str> =
            meta.finalizers().iter().map(|name| name.as_str()).collect();
        finalizers.retain(|name| *name != FINALIZER);
        if present {
            finalizers.push(FINALIZER);
        }
        let patch = Patch::Merge(json!({ "metadata": {
            "resourceVersion": meta.resource_version.to_string(), "finalizers": finalizers,
        } }));
        ignore_gone(self.client.resource(resource).patch::<Value>(&meta.key(), &patch).await)
    }

    /// Removes the finalizer from the live object, because its status has just been written.
    async fn drop_finalizer(&self, key: &ObjectKey, resource: &ResourceType) -> client::Result<()> {
        match self.client.resource(resource).get::<Attachment>(key).await {
            Ok(live) => self.set_finalizer(&live.meta, resource, false).await,
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(error),
        }
    }
}

fn ignore_present<T>(result: client::Result<T>) -> client::Result<()> {
    match result {
        Err(error) if !error.is_already_exists() => Err(error),
        _ => Ok(()),
    }
}

fn ignore_gone<T>(result: client::Result<T>) -> client::Result<()> {
    match result {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attachments_are_answered_as_annotations_ask() {
        let deleted = json!({
            "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [FINALIZER],
        });
        let protected = json!({ "finalizers": [FINALIZER] });
        let internal = |verb| format!("rpc error: code = Internal desc = {verb} fails on purpose");
        let marked = "PersistentVolume \"v\" is marked for deletion";
        for (meta, attached, expected) in [
            (json!({}), false, Step::Refuse(marked.into())),
            (protected.clone(), true, Step::Nothing),
            (deleted.clone(), true, Step::Release),
        ] {
            let object = json!({
                "metadata": meta, "spec": { "source": { "persistentVolumeName": "v" } },
                "status": { "attached": attached },
            });
            let attachment: Attachment = serde_json::from_value(object.clone()).unwrap();
            assert_eq!(step(&attachment, "", None, true), expected, "{object}");
        }
        for (meta, attached, how, other, expected) in [
            (json!({}), false, "", None, Step::Protect),
            (json!({}), false, "fail", None, Step::Protect),
            (protected.clone(), false, "", None, Step::Attach),
            (protected.clone(), true, "fail", None, Step::Nothing),
            (protected.clone(), false, "hang", None, Step::Nothing),
            (protected.clone(), false, "fail", None, Step::Refuse(internal("attaching"))),
            (
                protected.clone(),
                false,
                "",
                Some("b"),
                Step::Refuse(
                    "rpc error: code = FailedPrecondition desc = volume is attached to node b"
                        .into(),
                ),
            ),
            (deleted.clone(), true, "", None, Step::Release),
            (deleted.clone(), true, "hang", None, Step::Nothing),
            (deleted, true, "fail", None, Step::Keep(internal("detaching"))),
        ] {
            let object = json!({ "metadata": meta, "status": { "attached": attached } });
            let attachment: Attachment = serde_json::from_value(object.clone()).unwrap();
            assert_eq!(step(&attachment, how, other, false), expected, "{object} {how}");
        }
    }
}
