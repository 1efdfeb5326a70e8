//! Keeps Deployments: makes a ReplicaSet for every template they have had, moves pods from the old
//! to the new one as the strategy says, and tells in the status how far it has come.
//! Upstream: `pkg/controller/deployment`.

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
mod wake;

use std::sync::Arc;

use crate::cache::Lister;
use crate::client::Client;
use crate::clock::SharedClock;
use crate::controllers::workloads::consistency::{Consistency, SeenVersion};
use crate::controllers::workloads::ref_manager::{
    CONTROLLER_INDEX, ControllerRefManager, by_controller, owned_or_orphaned,
    recheck_deletion_timestamp,
};
use crate::controllers::{Controller, ControllerContext, Error, Next, SyncResult, keys};
use crate::events::Recorder;
use crate::objects::{Deployment, LabelSelector, ObjectKey, Pod, ReplicaSet, Resource, Selector};
use sync::Owned;

const CONTROLLER_NAME: &str = "deployment-controller";
/// Upstream: `maxRetries`: 5 ms to 82 s.
const MAX_RETRIES: u32 = 15;

pub fn controller(cx: &ControllerContext) -> Controller {
    let deployments = cx.informer::<Deployment>();
    let replica_sets = cx.informer::<ReplicaSet>();
    let pods = cx.informer::<Pod>();
    replica_sets.add_index(CONTROLLER_INDEX, by_controller::<ReplicaSet>);
    pods.add_index(CONTROLLER_INDEX, by_controller::<Pod>);

    let this = Arc::new(DeploymentController {
        client: cx.client(CONTROLLER_NAME),
        recorder: cx.recorder(CONTROLLER_NAME),
        clock: cx.clock(),
        consistency: Consistency::new(vec![
            (Deployment::RESOURCE, seen(deployments.lister())),
            (ReplicaSet::RESOURCE, seen(replica_sets.lister())),
        ]),
        deployments: deployments.lister(),
        replica_sets: replica_sets.lister(),
        pods: pods.lister(),
    });

    let workers = usize::try_from(cx.options.concurrent_deployment_syncs).unwrap_or(1).max(1);
    let mut c = Controller::new(CONTROLLER_NAME);
    let queue = c.queue::<ObjectKey>("deployment", workers).max_retries(MAX_RETRIES);
    let queue = queue.log_retries(log::Level::Debug);
    c.watch(&deployments, &queue, keys::of_object());
    c.watch(&replica_sets, &queue, wake::by_replica_set(deployments.lister()));
    c.watch(
        &pods,
        &queue,
        wake::by_pod(deployments.lister(), replica_sets.lister(), pods.lister()),
    );
    c.sync(queue, move |key| this.clone().sync(key));
    c
}

fn seen<T: crate::objects::Object>(lister: Lister<T>) -> SeenVersion {
    Arc::new(move || lister.last_seen_version())
}

struct DeploymentController {
    client: Client,
    recorder: Recorder,
    clock: SharedClock,
    consistency: Consistency,
    deployments: Lister<Deployment>,
    replica_sets: Lister<ReplicaSet>,
    pods: Lister<Pod>,
}

impl DeploymentController {
    async fn sync(self: Arc<Self>, key: ObjectKey) -> SyncResult {
        match self.sync_deployment(&key).await {
            // Whatever is left undone goes with the namespace.
            Err(error) if error.api().is_some_and(|api| api.is_namespace_terminating()) => {
                Ok(Next::Done)
            }
            other => other,
        }
    }

    /// Upstream: `syncDeployment`.
    async fn sync_deployment(&self, key: &ObjectKey) -> SyncResult {
        let Some(cached) = self.deployments.get(key) else {
            self.consistency.clear(key, None);
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
        if self.was_scaled(&mut deployment, &mut owned).await? {
            return self.sync_scale(&mut deployment, &mut owned).await;
        }
        match deployment.spec.strategy.r#type.as_str() {
            "Recreate" => self.recreate(&mut deployment, &mut owned).await,
            "RollingUpdate" => self.roll(&mut deployment, &mut owned).await,
            other => Err(Error::other(format!("unexpected deployment strategy type: {other}"))),
        }
    }

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

    /// The ReplicaSets that `deployment` owns once orphans are adopted and strangers released.
    /// Upstream: `getReplicaSetsForDeployment`.
    async fn claim(&self, deployment: &Deployment) -> Result<Owned, Error> {
        let meta = &deployment.meta;
        let selector = Selector::try_from(deployment.spec.selector.as_ref()).map_err(|error| {
            let key = meta.key();
            Error::other(format!("deployment {key} has invalid label selector: {error}"))
        })?;
        let manager = ControllerRefManager {
            client: &self.client,
            owner: meta,
            owner_ref: meta.controller_ref::<Deployment>(),
            selector: &selector,
            finalizers: &[],
        };
        let candidates = owned_or_orphaned(&self.replica_sets, meta);
        let recheck = || recheck_deletion_timestamp::<Deployment>(&self.client, meta);
        let owned = manager.claim(candidates, |_| true, recheck).await?;
        for set in owned.iter().filter(|set| !self.is_cached(set)) {
            self.wrote(deployment, &ReplicaSet::RESOURCE, set.meta.resource_version);
        }
        Ok(owned)
    }

    /// False of what was adopted just now.
    fn is_cached(&self, set: &Arc<ReplicaSet>) -> bool {
        set.meta.resource_version <= self.replica_sets.last_seen_version()
    }
}
