//! Finishes the expansion of volumes as external-resizer does for a driver that needs no help from
//! the node.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use kube_controller_manager::cache::Lister;
use kube_controller_manager::client::{Client, Patch};
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::objects::{
    ObjectKey, PersistentVolume, PersistentVolumeClaim, Resource, VolumeSource,
};

use super::{DRIVER, Events};
use crate::nodes::StandIn;
use crate::nodes::worker::{Next, SyncResult, Worker};

const NAME: &str = "sandbox-resizer";
const WORKERS: usize = 2;
/// The pause before a failure that an annotation requests is repeated.
const RETRY_DELAY: Duration = Duration::from_secs(1);

struct Resizer {
    client: Client,
    clock: SharedClock,
    events: Events,
    claims: Lister<PersistentVolumeClaim>,
    volumes: Lister<PersistentVolume>,
}

/// Stands in for a CSI resizer: watches claims; the future works until the stop.
pub fn resizer(stand_in: StandIn<'_>) -> impl Future<Output = ()> + Send + use<> {
    let StandIn { factory, client, clock, recorder, stop } = stand_in;
    let claims = factory.informer::<PersistentVolumeClaim>();
    let volumes = factory.informer::<PersistentVolume>();
    let mut worker = Worker::new(NAME, &clock);
    worker.queue_matching(&claims, grows);
    worker.read(&volumes);
    let (claims, volumes) = (claims.lister(), volumes.lister());
    let this = Resizer { client, clock, events: Events(recorder), claims, volumes };
    let this = Arc::new(this);
    worker.run(WORKERS, stop, move |key| this.clone().sync(key))
}

/// Returns whether a bound claim requests more than its capacity.
fn grows(claim: &PersistentVolumeClaim) -> bool {
    let (wanted, has) = (claim.spec.storage, claim.status.capacity);
    claim.status.phase == "Bound"
        && wanted.zip(has).is_some_and(|(wanted, has)| wanted.compare(has).is_gt())
}

impl Resizer {
    /// Expands the volume of a claim that asks for more than it has, if it is this driver's.
    async fn sync(self: Arc<Self>, key: ObjectKey) -> SyncResult {
        let Some(claim) = self.claims.get(&key).filter(|claim| grows(claim)) else {
            return Ok(Next::Done);
        };
        let Some(volume) = self.volumes.get(&ObjectKey::cluster(&claim.spec.volume_name)) else {
            return Ok(Next::Done);
        };
        let source = volume.spec.source.as_deref();
        if !matches!(source, Some(VolumeSource::Csi { driver, .. }) if driver == DRIVER) {
            return Ok(Next::Done);
        }
        match self.resize(&claim, &volume).await {
            Err(error) if error.is_not_found() || error.is_conflict() => Ok(Next::Done),
            result => result,
        }
    }

    /// Grows a volume to the size of its claim as a CSI resizer does, or fails as the claim's
    /// annotation asks.
    async fn resize(&self, claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> SyncResult {
        let (key, size) = (claim.meta.key(), claim.spec.storage);
        let name = &volume.meta.name;
        self.patch_status(
            &key,
            json!({
                "allocatedResources": { "storage": size },
                "allocatedResourceStatuses": { "storage": "ControllerResizeInProgress" },
                "conditions": [{
                    "type": "Resizing", "status": "True",
                    "lastTransitionTime": self.clock.now().to_string(),
                }],
            }),
        )
        .await?;
        let message = format!("External resizer is resizing volume {name}");
        self.events.normal(claim, "Resizing", message);
        if claim.meta.annotations.get("sandbox/resizing") == Some("fail") {
            let message = format!(
                "resize volume {name:?} by resizer {DRIVER:?} failed: rpc error: code = Internal \
                 desc = the annotation asks for it"
            );
            self.events.warning(claim, "VolumeResizeFailed", message);
            return Ok(Next::After(RETRY_DELAY));
        }
        let grown = json!({ "spec": { "capacity": { "storage": size } } });
        let grown = Patch::StrategicMerge(grown);
        self.client.patch::<PersistentVolume>(&volume.meta.key(), &grown).await?;
        self.patch_status(
            &key,
            json!({
                "capacity": { "storage": size },
                "allocatedResourceStatuses": null,
                "conditions": [{ "type": "Resizing", "$patch": "delete" }],
            }),
        )
        .await?;
        let message = "Resize volume succeeded".to_owned();
        self.events.normal(claim, "VolumeResizeSuccessful", message);
        Ok(Next::Done)
    }

    /// Patches the status of a claim.
    async fn patch_status(
        &self,
        key: &ObjectKey,
        status: Value,
    ) -> kube_controller_manager::client::Result<Value> {
        let verbs = self.client.resource(&PersistentVolumeClaim::RESOURCE).subresource("status");
        verbs.patch(key, &Patch::StrategicMerge(json!({ "status": status }))).await
    }
}
