//! Keeps `status.volumesInUse` of the nodes, as kubelets do.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};

use kube_controller_manager::cache::Lister;
use kube_controller_manager::client::{Client, Patch};
use kube_controller_manager::objects::{
    InTreeKind, Istr, Node, ObjectKey, PersistentVolume, PersistentVolumeClaim, Resource,
    VolumeSource,
};

use super::kubelet::{BoundPod, pods_of};
use super::worker::{Event, Next, SyncResult, Worker};
use super::{StandIn, Steering};

const NAME: &str = "sandbox-mounts";
const WORKERS: usize = 2;

struct Mounts {
    client: Client,
    pods: Lister<BoundPod>,
    claims: Lister<PersistentVolumeClaim>,
    volumes: Lister<PersistentVolume>,
    steering: Steering,
    /// The list written last, by node.
    written: Mutex<HashMap<Istr, BTreeSet<String>>>,
}

/// Stands in for the mounts of all kubelets: watches pods and their claims, and keeps
/// `volumesInUse` of the nodes; the future works until the stop.
pub fn mounts(
    stand_in: StandIn<'_>,
    steering: Steering,
) -> impl Future<Output = ()> + Send + use<> {
    let StandIn { factory, client, clock, stop, .. } = stand_in;
    let pods = pods_of(factory);
    let claims = factory.informer::<PersistentVolumeClaim>();
    let volumes = factory.informer::<PersistentVolume>();
    let mut worker = Worker::new(NAME, &clock);
    let keys = worker.keys();
    worker.watch(&pods, move |event: Event<'_, BoundPod>| {
        let (Event::Seen(pod) | Event::Gone(pod)) = event;
        if !pod.node().is_empty() && pod.claims().next().is_some() {
            keys.add(ObjectKey::cluster(pod.node()));
        }
    });
    let (keys, users) = (worker.keys(), pods.lister());
    worker.watch(&claims, move |event: Event<'_, PersistentVolumeClaim>| {
        let Event::Seen(claim) = event else { return };
        if claim.spec.volume_name.is_empty() {
            return;
        }
        for pod in users.in_namespace(&claim.meta.namespace) {
            if !pod.node().is_empty() && pod.claims().any(|name| *name == *claim.meta.name) {
                keys.add(ObjectKey::cluster(pod.node()));
            }
        }
    });
    worker.read(&volumes);
    let this = Arc::new(Mounts {
        client,
        pods: pods.lister(),
        claims: claims.lister(),
        volumes: volumes.lister(),
        steering,
        written: Mutex::default(),
    });
    async move {
        worker.run(WORKERS, stop, move |key| this.clone().sync(key)).await;
    }
}

impl Mounts {
    /// Writes the volumes in use to a node's status, if they have changed since the last time.
    async fn sync(self: Arc<Self>, key: ObjectKey) -> SyncResult {
        let node = Istr::new(&key.name);
        if self.steering.is_dead(&node) {
            return Ok(Next::Done);
        }
        let in_use = self.in_use(&node);
        if self.written.lock().get(&node) == Some(&in_use) {
            return Ok(Next::Done);
        }
        let patch = Patch::Merge(json!({ "status": { "volumesInUse": in_use } }));
        let status = self.client.resource(&Node::RESOURCE).subresource("status");
        match status.patch::<Value>(&key, &patch).await {
            Ok(_) => {
                self.written.lock().insert(node, in_use);
                Ok(Next::Done)
            }
            // One that is made again has nothing written.
            Err(error) if error.is_not_found() => {
                self.written.lock().remove(&node);
                Ok(Next::Done)
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the unique names of the volumes of the node's pods.
    fn in_use(&self, node: &str) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        for pod in self.pods.list().iter().filter(|pod| *pod.node() == *node && !pod.has_ended()) {
            for claim in pod.claims() {
                names.extend(self.volume_name(&ObjectKey::new(pod.namespace(), &claim)));
            }
        }
        names
    }

    /// Returns the unique name of a claim's volume; `None`: the claim has none, or one that is
    /// neither of CSI nor Flex.
    fn volume_name(&self, claim: &ObjectKey) -> Option<String> {
        let claim = self.claims.get(claim)?;
        let volume = self.volumes.get(&ObjectKey::cluster(&claim.spec.volume_name))?;
        match &**volume.spec.source.as_ref()? {
            VolumeSource::Csi { driver, handle } => {
                Some(format!("kubernetes.io/csi/{driver}^{handle}"))
            }
            VolumeSource::InTree { kind: InTreeKind::Flex, fields } => {
                let fields: Value = serde_json::from_str(fields).ok()?;
                Some(format!("{}/{}", fields["driver"].as_str()?, volume.meta.name))
            }
            VolumeSource::InTree { .. } => None,
        }
    }
}
