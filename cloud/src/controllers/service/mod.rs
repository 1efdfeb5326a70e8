//! Keeps a load balancer for each Service of that type. Upstream: `controllers/service`.

mod predicates;
mod records;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::LoadBalancerStatus;
use kube_controller_manager::cache::{Deleted, Lister};
use kube_controller_manager::client::{self, Client, Patch};
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::controllers::{
    Change, Controller, Error, Next, Queue, QueuePolicy, SyncResult,
};
use kube_controller_manager::events::Recorder;
use kube_controller_manager::metrics::{exponential, metrics};
use kube_controller_manager::objects::{ObjectKey, PartialObjectMetadata, Resource};
use kube_controller_manager::workqueue::{Key, exponential_failure_rate_limiter};
use serde_json::{Value, json};

use self::predicates::{
    FINALIZER, TargetSet, needs_cleanup, needs_status, needs_update, should_sync, shown_names,
    targets, wants_load_balancer,
};
use self::records::Records;
use super::Parts;
use crate::objects::{Node, Service};
use crate::parallel;
use crate::provider::{self, Cloud, LoadBalancer};

/// A Service that needs to be cleaned up is queued again after this time.
const SERVICE_SYNC_PERIOD: Duration = Duration::from_secs(30);
/// The delays of retries, which double. Upstream: `minRetryDelay`, `maxRetryDelay`.
const MIN_RETRY_DELAY: Duration = Duration::from_secs(5);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(300);
/// The only key of the queue of node syncs: each concerns all Services.
const ALL: &str = "all";

metrics! {
    fn register;
    static SYNCS: IntCounter = "service_controller_loadbalancer_sync_total",
        "[ALPHA] A metric counting the amount of times any load balancer has been configured, as an effect of service/node changes on the cluster";
    static NODE_SYNC_ERRORS: IntCounter = "service_controller_nodesync_error_total",
        "[ALPHA] A metric counting the amount of times any load balancer has been configured and errored, as an effect of node changes on the cluster";
    static NODE_SYNC_LATENCY: Histogram(exponential(1.0, 2.0, 15)) =
        "service_controller_nodesync_latency_seconds",
        "[ALPHA] A metric measuring the latency for nodesync which updates loadbalancer hosts on cluster node updates.";
    static UPDATE_LATENCY: Histogram(exponential(1.0, 2.0, 15)) =
        "service_controller_update_loadbalancer_host_latency_seconds",
        "[ALPHA] A metric measuring the latency for updating each load balancer hosts.";
}

/// Constructs `service-lb-controller`, with a queue of Services and one of node syncs. It does not
/// run without a cloud that has load balancers.
pub fn controller(c: &mut Controller) -> Result<(), String> {
    let parts = Parts::of(c)?;
    if parts.cloud.load_balancer().is_none() {
        log::error!(
            "Failed to start service controller: the cloud provider does not support external load \
             balancers"
        );
        return Ok(());
    }
    register();
    let (services, nodes) = (c.lister::<Service>(), c.lister::<Node>());
    fn retries<K: Key>() -> QueuePolicy<K> {
        let limiter = exponential_failure_rate_limiter(MIN_RETRY_DELAY, MAX_RETRY_DELAY);
        QueuePolicy::default().limited_by(limiter)
    }
    let queue = c.queue(retries());
    let node_queue = c.queue_named::<&'static str>("node", retries());
    let period = Some(SERVICE_SYNC_PERIOD);
    c.watch_resyncing(&services, period, &queue, |change: Change<'_, Service>, queue: &Queue| {
        let is_due = match &change {
            // A service may have changed while no manager ran.
            Change::Added { new, .. } => wants_load_balancer(new) || needs_cleanup(new),
            Change::Updated { old, new } => needs_update(old, new) || needs_cleanup(new),
            Change::Resync { object } => needs_cleanup(object),
            // The finalizer leads a deletion through an update, unless that was missed.
            Change::Deleted(deleted) => matches!(deleted, Deleted::FinalStateUnknown(_)),
        };
        if is_due {
            queue.add(change.object().meta.key());
        }
    });
    c.watch_resyncing(&nodes, None, &node_queue, |change: Change<'_, Node>, queue: &Queue<_>| {
        let is_due = match change {
            Change::Updated { old, new } => should_sync(old, new),
            Change::Added { .. } | Change::Deleted(_) => true,
            Change::Resync { .. } => false,
        };
        if is_due {
            queue.add(ALL);
        }
    });
    let this = Arc::new(ServiceController {
        cloud: parts.cloud.clone(),
        client: c.client(),
        recorder: c.recorder(),
        clock: c.clock(),
        services,
        nodes,
        records: Records::default(),
        queue: queue.clone(),
        workers: c.options().concurrent_service_syncs.get(),
    });
    c.sync(queue, &this, ServiceController::sync);
    c.sync_by(1, node_queue, &this, ServiceController::sync_nodes);
    Ok(())
}

struct ServiceController {
    cloud: Arc<dyn Cloud>,
    client: Client,
    recorder: Recorder,
    clock: SharedClock,
    services: Lister<Service>,
    nodes: Lister<Node>,
    records: Records,
    /// For the Services whose nodes could not be updated.
    queue: Queue,
    workers: usize,
}

/// Why a sync failed, and whether the provider chose the time of the next one.
struct Failed {
    text: String,
    after: Option<Duration>,
}

impl Failed {
    /// Returns a failure without the provider's retry time. Upstream: `fmt.Errorf("…: %v")`, which
    /// hides a `RetryError`.
    fn hiding(doing: &str, error: impl std::fmt::Display) -> Failed {
        Failed { text: format!("{doing}: {error}"), after: None }
    }
}

impl From<provider::Error> for Failed {
    fn from(error: provider::Error) -> Failed {
        let after = match error {
            provider::Error::Retry { after, .. } => Some(after),
            _ => None,
        };
        Failed { text: error.to_string(), after }
    }
}

impl ServiceController {
    fn balancer(&self) -> Result<&dyn LoadBalancer, Failed> {
        // The constructor has checked it.
        self.cloud.load_balancer().ok_or_else(|| provider::Error::NotImplemented.into())
    }

    /// Brings the load balancer of a Service up to date, or deletes that of a Service that is gone.
    /// Waits for other calls for the same Service; a provider may choose when the next sync is.
    async fn sync(self: Arc<Self>, key: ObjectKey) -> SyncResult {
        let calls = self.records.calls(&key);
        let _calls = calls.lock().await;
        let synced = match self.services.get(&key) {
            Some(service) => self.create_or_update(&key, service).await,
            None => self.clean_up_deleted(&key).await,
        };
        self.records.forget_unused(&key);
        match synced {
            Ok(()) => Ok(Next::Done),
            Err(Failed { text, after: Some(after) }) => {
                log::warn!("error processing service {key} (retrying in {after:?}): {text}");
                Err(Error::Wait { after, why: text })
            }
            Err(Failed { text, after: None }) => Err(Error::other(text)),
        }
    }

    /// Ensures or cleans up the load balancer of a Service that exists, and records the Service.
    /// Upstream: `processServiceCreateOrUpdate`.
    async fn create_or_update(&self, key: &ObjectKey, service: Arc<Service>) -> Result<(), Failed> {
        if let Some(known) = self.records.service(key)
            && known.meta.uid != service.meta.uid
        {
            // It was deleted and created again without its finalizer.
            self.delete_of(&known).await?;
        }
        self.records.set_service(key, service.clone());
        let synced = match wants_load_balancer(&service) && !needs_cleanup(&service) {
            true => self.ensure(key, &service).await,
            false => match self.clean_up(key, &service).await {
                Ok(()) => {
                    self.records.remove(key);
                    Ok(())
                }
                failed => failed,
            },
        };
        if let Err(failed) = &synced {
            let message = format!("Error syncing load balancer: {}", failed.text);
            self.recorder.warning(&*service, "SyncLoadBalancerFailed", message);
        }
        synced
    }

    /// Deletes the load balancer of a Service that went without its finalizer. Upstream:
    /// `processServiceDeletion`.
    async fn clean_up_deleted(&self, key: &ObjectKey) -> Result<(), Failed> {
        let Some(known) = self.records.service(key) else { return Ok(()) };
        self.delete_of(&known).await?;
        self.records.remove(key);
        Ok(())
    }

    /// Deletes the load balancer of a former Service, if it wanted one. Upstream:
    /// `processLoadBalancerDelete`.
    async fn delete_of(&self, service: &Service) -> Result<(), Failed> {
        if !wants_load_balancer(service) {
            return Ok(());
        }
        self.recorder.normal(service, "DeletingLoadBalancer", "Deleting load balancer");
        if let Err(error) = self.balancer()?.ensure_deleted(service).await {
            let message = format!("Error deleting load balancer: {error}");
            self.recorder.warning(service, "DeleteLoadBalancerFailed", message);
            return Err(error.into());
        }
        self.recorder.normal(service, "DeletedLoadBalancer", "Deleted load balancer");
        Ok(())
    }

    /// Deletes the load balancer of a Service that no longer wants one or is being deleted, then
    /// removes the finalizer and the addresses in the status.
    async fn clean_up(&self, key: &ObjectKey, service: &Service) -> Result<(), Failed> {
        let balancer = self.balancer()?;
        let found = balancer.get(service).await.map_err(|error| {
            Failed::hiding("failed to check if load balancer exists before cleanup", error)
        })?;
        if found.is_some() {
            self.recorder.normal(service, "DeletingLoadBalancer", "Deleting load balancer");
            match balancer.ensure_deleted(service).await {
                Ok(()) => {}
                Err(provider::Error::ImplementedElsewhere) => self.log_elsewhere(key),
                Err(error) => {
                    return Err(Failed::hiding("failed to delete load balancer", error));
                }
            }
        }
        if service.meta.has_finalizer(FINALIZER) {
            let change = json!({ "$deleteFromPrimitiveList/finalizers": [FINALIZER] });
            match self.patch(service, change, json!({})).await {
                Err(error) if !error.is_not_found() => {
                    let doing = "failed to remove load balancer cleanup finalizer";
                    return Err(Failed::hiding(doing, error));
                }
                _ => {}
            }
        }
        self.recorder.normal(service, "DeletedLoadBalancer", "Deleted load balancer");
        self.write_status(key, service, &LoadBalancerStatus::default()).await
    }

    /// Sets the finalizer, makes the load balancer what the Service asks for, and writes its
    /// status. If another controller implements the load balancer, nothing more is done.
    async fn ensure(&self, key: &ObjectKey, service: &Service) -> Result<(), Failed> {
        self.recorder.normal(service, "EnsuringLoadBalancer", "Ensuring load balancer");
        // First: no Service goes before the load balancer that is made for it.
        if !service.meta.has_finalizer(FINALIZER) {
            let added = self.patch(service, json!({ "finalizers": [FINALIZER] }), json!({})).await;
            added.map_err(|error| {
                Failed::hiding("failed to add load balancer cleanup finalizer", error)
            })?;
        }
        let targets = targets(self.nodes.list());
        if targets.is_empty() {
            self.warn_of_no_targets(service);
        }
        self.records.replace_targets(key, &self.records.shared(TargetSet::of(&targets)));
        match self.balancer()?.ensure(service, &targets).await {
            Ok(status) => {
                self.recorder.normal(service, "EnsuredLoadBalancer", "Ensured load balancer");
                self.write_status(key, service, &status).await
            }
            Err(provider::Error::ImplementedElsewhere) => {
                self.log_elsewhere(key);
                Ok(())
            }
            Err(error) => {
                let Failed { text, after } = error.into();
                Err(Failed { text: format!("failed to ensure load balancer: {text}"), after })
            }
        }
    }

    fn log_elsewhere(&self, key: &ObjectKey) {
        log::debug!(
            "The load balancer of Service {key} is implemented by another controller than that of \
             {}",
            self.cloud.provider_name()
        );
    }

    fn warn_of_no_targets(&self, service: &Service) {
        let message = "There are no available nodes for LoadBalancer";
        self.recorder.warning(service, "UnAvailableLoadBalancer", message);
    }

    /// Writes the status of the load balancer into the Service, unless the Service shows it.
    async fn write_status(
        &self,
        key: &ObjectKey,
        service: &Service,
        status: &LoadBalancerStatus,
    ) -> Result<(), Failed> {
        if !needs_status(service, status, self.records.status(key)) {
            return Ok(());
        }
        // Null: an empty list has no other form.
        let ingress = status.ingress.as_ref().filter(|ingress| !ingress.is_empty());
        let change = json!({ "loadBalancer": { "ingress": ingress } });
        match self.patch(service, json!({}), change).await {
            // The Service went when its finalizer was removed.
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(Failed::hiding("failed to update load balancer status", error)),
            Ok(version) => {
                self.records.set_status(key, version);
                Ok(())
            }
        }
    }

    /// Patches the metadata and status of a Service and returns its new version. Finalizers are
    /// patched under `/status` too: the controller's role has no other right to write. Upstream:
    /// `servicehelper.PatchService`.
    async fn patch(
        &self,
        service: &Service,
        mut metadata: Value,
        status: Value,
    ) -> client::Result<u64> {
        metadata["uid"] = json!(service.meta.uid);
        let patch = Patch::StrategicMerge(json!({ "metadata": metadata, "status": status }));
        let services = self.client.resource(&Service::RESOURCE).subresource("status");
        let patched = services.patch::<PartialObjectMetadata>(&service.meta.key(), &patch).await?;
        Ok(patched.meta.resource_version)
    }
}

/// Node syncs.
impl ServiceController {
    /// Brings the targets of all load balancers up to date. Those that fail are queued as Services.
    /// Upstream: `syncNodes`.
    async fn sync_nodes(self: Arc<Self>, _: &'static str) -> SyncResult {
        let start = self.clock.monotonic();
        let this = self.clone();
        let update = move |key: ObjectKey| {
            let this = this.clone();
            async move { (!this.update_targets(&key).await).then_some(key) }
        };
        let failed = parallel::for_each(self.records.keys(), self.workers, update).await;
        failed.into_iter().flatten().for_each(|key| self.queue.add(key));
        NODE_SYNC_LATENCY.observe((self.clock.monotonic() - start).as_secs_f64());
        Ok(Next::Done)
    }

    /// Gives the load balancer of a Service the nodes of the cache, if they have changed. Returns
    /// false if that failed and the Service must be synced. Upstream: `nodeSyncService`.
    async fn update_targets(&self, key: &ObjectKey) -> bool {
        let calls = self.records.calls(key);
        let _calls = calls.lock().await;
        let service = self.records.service(key).filter(|service| wants_load_balancer(service));
        let Some(service) = service else {
            self.records.forget_unused(key);
            return true;
        };
        // Under the lock: a sync of the Service meanwhile may have used newer nodes than those at
        // the start of this pass.
        let targets = targets(self.nodes.list());
        // Also before a failure: the Service is synced then, with all nodes.
        let set = self.records.shared(TargetSet::of(&targets));
        if !self.records.replace_targets(key, &set) {
            return true;
        }
        SYNCS.inc();
        let start = self.clock.monotonic();
        log::debug!("Updating backends for load balancer {key} with {}", shown_names(&targets));
        let updated = self.update(&service, &targets).await;
        UPDATE_LATENCY.observe((self.clock.monotonic() - start).as_secs_f64());
        if let Err(error) = &updated {
            NODE_SYNC_ERRORS.inc();
            log::error!("failed to update load balancer hosts for service {key}: {error}");
        }
        updated.is_ok()
    }

    /// Calls the provider with the new targets and sends an event of the outcome. A failure for a
    /// load balancer that does not exist is ignored. Upstream: `lockedUpdateLoadBalancerHosts`.
    async fn update(
        &self,
        service: &Service,
        targets: &[Arc<Node>],
    ) -> Result<(), provider::Error> {
        let balancer = self.cloud.load_balancer().ok_or(provider::Error::NotImplemented)?;
        match balancer.update(service, targets).await {
            Ok(()) if targets.is_empty() => self.warn_of_no_targets(service),
            Ok(()) => {
                let message = "Updated load balancer with new hosts";
                self.recorder.normal(service, "UpdatedLoadBalancer", message);
            }
            Err(provider::Error::ImplementedElsewhere) => {}
            Err(error) => {
                // A failure only if the load balancer still exists.
                match balancer.get(service).await {
                    Ok(None) => return Ok(()),
                    Ok(Some(_)) => {}
                    Err(unknown) => log::error!(
                        "failed to check if load balancer exists for service {}: {unknown}",
                        service.meta.key()
                    ),
                }
                let message = format!(
                    "Error updating load balancer with new hosts {} [node names limited, total \
                     number of nodes: {}], error: {error}",
                    shown_names(targets),
                    targets.len()
                );
                self.recorder.warning(service, "UpdateLoadBalancerFailed", message);
                return Err(error);
            }
        }
        Ok(())
    }
}
