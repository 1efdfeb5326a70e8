//! Rolls out Deployments: creates a ReplicaSet for each template, replaces the pods of old
//! ReplicaSets by those of the new one as the strategy says, and reports the progress in the
//! status. Upstream: `pkg/controller/deployment`.

mod annotations;
mod limits;
mod progress;
mod recreate;
mod rollback;
mod rolling;
mod scaling;
mod sets;
mod status;
mod sync;
mod template;

use std::sync::Arc;

use crate::cache::Lister;
use crate::client::Client;
use crate::clock::SharedClock;
use crate::controllers::runner::Queue;
use crate::controllers::workloads::consistency::Consistency;
use crate::controllers::workloads::creations::Creations;
use crate::controllers::workloads::owner_records::OwnerRecord;
use crate::controllers::workloads::ref_manager::{
    ControllerRefManager, controller_index, owned_or_orphaned,
};
use crate::controllers::{Controller, Error, Next, QueuePolicy, SyncResult, keys};
use crate::events::Recorder;
use crate::objects::{Deployment, LabelSelector, ObjectKey, Pod, ReplicaSet, Selector};
use sets::Owned;

/// Upstream: `maxRetries`: 5 ms to 82 s.
const MAX_RETRIES: u32 = 15;

/// Sets up the controller `deployment-controller`.
pub fn controller(c: &mut Controller) -> Result<(), String> {
    let (deployments, replica_sets) = (c.lister::<Deployment>(), c.lister::<ReplicaSet>());
    let pods = c.lister::<Pod>();
    c.index(&replica_sets, &controller_index());
    c.index(&pods, &controller_index());
    let queue = c.queue(QueuePolicy::at_most(MAX_RETRIES).logged_as(log::Level::Debug));
    let this = Arc::new(DeploymentController {
        queue: queue.clone(),
        client: c.client(),
        recorder: c.recorder(),
        clock: c.clock(),
        consistency: Consistency::default().tracking(&deployments).tracking(&replica_sets),
        creations: Creations::new(c.clock()),
        deployments: deployments.clone(),
        replica_sets: replica_sets.clone(),
        pods: pods.clone(),
        counts_terminating: c.feature("DeploymentReplicaSetTerminatingReplicas"),
    });
    c.watch(&deployments, &queue, keys::of_object());
    let owned = keys::of_controller(&deployments)
        .or_matching_orphans(|it: &Deployment| Selector::try_from(it.spec.selector.as_ref()));
    c.watch(&replica_sets, &queue, owned.mapper());
    c.watch(&pods, &queue, recreate::by_last_pod(deployments, replica_sets, pods.clone()));
    c.sync(queue, &this, DeploymentController::sync);
    Ok(())
}

struct DeploymentController {
    queue: Queue<ObjectKey>,
    client: Client,
    recorder: Recorder,
    clock: SharedClock,
    consistency: Consistency,
    creations: Creations,
    deployments: Lister<Deployment>,
    replica_sets: Lister<ReplicaSet>,
    pods: Lister<Pod>,
    /// Whether the status counts pods that are being deleted.
    counts_terminating: bool,
}

impl DeploymentController {
    /// Syncs a Deployment; not an error: its namespace is being deleted.
    async fn sync(self: Arc<Self>, key: ObjectKey) -> SyncResult {
        match self.sync_deployment(&key).await {
            // The namespace deletes the rest.
            Err(error) if error.api().is_some_and(|api| api.is_namespace_terminating()) => {
                Ok(Next::Done)
            }
            other => other,
        }
    }

    /// Takes the next step for a Deployment: of scaling, of a rollback, or of its strategy.
    /// Upstream: `syncDeployment`.
    async fn sync_deployment(&self, key: &ObjectKey) -> SyncResult {
        let Some(cached) = self.deployments.get(key) else {
            self.consistency.forget(key, None);
            self.creations.forget(key, None);
            return Ok(Next::Done);
        };
        self.consistency.ensure_ready(key)?;
        let mut deployment = (*cached).clone();
        if deployment.spec.selector == Some(LabelSelector::default()) {
            return self.refuse_to_select_all(&mut deployment).await;
        }
        let mut owned = self.claim(&deployment).await?;
        if deployment.meta.is_being_deleted() {
            return self.sync_status_only(&mut deployment, &mut owned).await;
        }
        self.check_paused(&mut deployment).await?;
        if deployment.spec.paused {
            return self.sync_scale(&mut deployment, &mut owned).await;
        }
        if let Some(revision) = rollback::rollback_to(&deployment) {
            return self.roll_back(&mut deployment, &mut owned, revision).await;
        }
        let sets = self.sync_sets(&mut deployment, &mut owned).await?;
        if sets.lag_behind(deployment.replicas()) {
            return self.sync_scale(&mut deployment, &mut owned).await;
        }
        match deployment.spec.strategy.r#type.as_str() {
            "Recreate" => self.recreate(&mut deployment, &mut owned).await,
            "RollingUpdate" => self.roll(&mut deployment, &mut owned).await,
            other => Err(Error::other(format!("unexpected deployment strategy type: {other}"))),
        }
    }

    /// Reports an empty selector, which would select all pods, by an event, and writes the observed
    /// generation; nothing else is done.
    async fn refuse_to_select_all(&self, deployment: &mut Deployment) -> SyncResult {
        self.recorder.warning(
            deployment,
            "SelectingAll",
            "This deployment is selecting all pods. A non-empty selector is required.",
        );
        let generation = deployment.meta.generation;
        if deployment.status.observed_generation.unwrap_or(0) < generation {
            deployment.status.observed_generation = Some(generation);
            self.write_status(deployment).await?;
        }
        Ok(Next::Done)
    }

    /// Returns the ReplicaSets that `deployment` owns, after adopting orphans and releasing those
    /// that no longer match.
    /// Upstream: `getReplicaSetsForDeployment`.
    async fn claim(&self, deployment: &Deployment) -> Result<Owned, Error> {
        let meta = &deployment.meta;
        let selector = Selector::try_from(deployment.spec.selector.as_ref()).map_err(|error| {
            let key = meta.key();
            Error::other(format!("deployment {key} has invalid label selector: {error}"))
        })?;
        let candidates = owned_or_orphaned(&self.replica_sets, meta);
        let manager = ControllerRefManager::new::<Deployment>(&self.client, meta, &selector);
        manager.recording(&self.consistency).claim::<Deployment, _>(candidates, |_| true).await
    }
}
