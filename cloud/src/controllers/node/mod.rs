//! Initializes Nodes with what the cloud knows of their machines, and keeps their addresses.
//! Upstream: `controllers/node`.

mod addresses;
mod initialize;

use std::sync::Arc;

use kube_controller_manager::cache::Lister;
use kube_controller_manager::client::{Client, Patch};
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::controllers::{
    Change, Controller, Error, Next, Queue, QueuePolicy, SyncResult,
};
use kube_controller_manager::events::Recorder;
use kube_controller_manager::metrics::{Histogram, exponential, metrics};
use kube_controller_manager::objects::{ObjectKey, PartialObjectMetadata, Resource};
use serde_json::json;

use self::initialize::{initializing_patch, label_updates};
use super::Parts;
use super::node_writes::{BACKOFF, INITIAL_BACKOFF, patch};
use crate::objects::Node;
use crate::parallel;
use crate::provider::{self, InstanceMetadata, Instances};

/// A kubelet with `--cloud-provider=external` registers its Node with this taint. Upstream:
/// `cloudproviderapi.TaintExternalCloudProvider`.
pub const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";

metrics! {
    fn register;
    static TAINT_REMOVAL: Histogram(exponential(1.0, 4.0, 6)) =
        "node_controller_cloud_provider_taint_removal_delay_seconds",
        "[ALPHA] Number of seconds after node creation when NodeController removed the cloud-provider taint of a single node.";
    static INITIAL_SYNC: Histogram(exponential(1.0, 4.0, 6)) =
        "node_controller_initial_node_sync_delay_seconds",
        "[ALPHA] Number of seconds after node creation when NodeController finished the initial synchronization of a single node.";
}

/// Constructs `cloud-node-controller`, which syncs Nodes by a queue and updates all addresses once
/// a period. It does not run without a cloud that has instances.
pub fn controller(c: &mut Controller) -> Result<(), String> {
    let parts = Parts::of(c)?;
    if parts.cloud.instances().is_none() {
        log::warn!(
            "failed to start cloud node controller: cloud provider does not support instances"
        );
        return Ok(());
    }
    register();
    let nodes = c.lister::<Node>();
    let queue = c.queue(QueuePolicy::default());
    c.watch(&nodes, &queue, |change: Change<'_, Node>, queue: &Queue| {
        if !matches!(change, Change::Deleted(_)) {
            queue.add(change.object().meta.key());
        }
    });
    let workers = parts.concurrent_node_syncs;
    let period = parts.node_status_update_frequency;
    let this = Arc::new(NodeController {
        parts,
        client: c.client(),
        recorder: c.recorder(),
        clock: c.clock(),
        nodes,
    });
    let updater = this.clone();
    c.every(period, move || updater.clone().update_all());
    c.sync_by(workers, queue, &this, NodeController::sync);
    Ok(())
}

struct NodeController {
    parts: Arc<Parts>,
    client: Client,
    recorder: Recorder,
    clock: SharedClock,
    nodes: Lister<Node>,
}

impl NodeController {
    fn instances(&self) -> Result<&dyn Instances, provider::Error> {
        // The constructor has checked it.
        self.parts.cloud.instances().ok_or(provider::Error::NotImplemented)
    }

    /// Initializes a Node that has the taint; brings the labels of another one up to date.
    /// Upstream: `syncNode`.
    async fn sync(self: Arc<Self>, key: ObjectKey) -> SyncResult {
        let Some(node) = self.nodes.get(&key) else { return Ok(Next::Done) };
        match node.has_taint(UNINITIALIZED) {
            true => self.initialize(&node).await?,
            false => self.reconcile_labels(&node).await?,
        }
        Ok(Next::Done)
    }

    /// Writes what the cloud knows into a Node, removes its taint and updates its addresses. Does
    /// nothing if the cloud has no metadata for the Node: another manager initializes it then.
    async fn initialize(&self, node: &Node) -> Result<(), Error> {
        let name = &node.meta.name;
        log::info!("Initializing node {name} with cloud provider");
        let metadata = match self.metadata(node).await {
            Ok(Some(metadata)) => metadata,
            Ok(None) => {
                log::info!("Skip sync node {name} because cloud provided no metadata");
                return Ok(());
            }
            Err(error) => {
                let why = format!("failed to get instance metadata for node {name}: {error}");
                return Err(match error {
                    provider::Error::Retry { after, .. } => {
                        log::warn!("{why} (retrying in {after:?})");
                        Error::Wait { after, why }
                    }
                    _ => Error::other(why),
                });
            }
        };
        // A node whose kubelet wants an address that the cloud does not know stays out of use.
        addresses::preferring_node_ip(node, metadata.node_addresses.clone()).map_err(|fault| {
            Error::other(format!(
                "failed to get node modifiers from cloud provider: provided node ip for node \
                 {name:?} is not valid: {fault}"
            ))
        })?;
        let change = |node: &Node| initializing_patch(node, &metadata);
        let before = patch(&self.client, &self.clock, node, INITIAL_BACKOFF, change).await?;
        // Another Node has its name by now, or another manager has initialized it.
        let Some(before) = before else { return Ok(()) };
        self.observe_age(&TAINT_REMOVAL, node);
        // The addresses are seen without waiting for the period.
        self.update_addresses(&before, metadata).await;
        log::info!("Successfully initialized node {name} with cloud provider");
        self.recorder.normal(node, "Synced", "Node synced successfully");
        self.observe_age(&INITIAL_SYNC, node);
        Ok(())
    }

    /// Observes how long ago the Node was created.
    fn observe_age(&self, metric: &Histogram, node: &Node) {
        if let Some(created) = node.meta.creation_timestamp {
            metric.observe(self.clock.now().duration_since(created).as_secs_f64());
        }
    }

    /// Returns what the cloud knows of the machine, always with a provider id; `None`: another
    /// manager initializes the Node.
    ///
    /// # Errors
    /// As the provider's, and without any provider id: the field can be set only now, and other
    /// controllers need it.
    async fn metadata(&self, node: &Node) -> Result<Option<InstanceMetadata>, provider::Error> {
        let mut metadata = match self.instances()?.metadata(node).await {
            Ok(metadata) => metadata,
            Err(provider::Error::NotImplemented) => return Ok(None),
            Err(error) => return Err(error),
        };
        if metadata.provider_id.is_empty() {
            if node.spec.provider_id.is_empty() {
                let name = &node.meta.name;
                return Err(provider::Error::other(format!(
                    "cloud provider does not set node provider ID for node {name}"
                )));
            }
            metadata.provider_id = node.spec.provider_id.to_string();
        }
        Ok(Some(metadata))
    }

    /// Writes the labels of today that differ from the older ones. Upstream: `reconcileNodeLabels`.
    async fn reconcile_labels(&self, node: &Node) -> Result<(), Error> {
        let change = |node: &Node| {
            let updates = label_updates(&node.meta.labels);
            (!updates.is_empty()).then(|| json!({ "metadata": { "labels": updates } }))
        };
        let patched = patch(&self.client, &self.clock, node, BACKOFF, change).await;
        match patched {
            Err(error) if error.is_not_found() => Ok(()),
            patched => Ok(patched.map(drop)?),
        }
    }

    /// Asks the cloud for the addresses of each initialized Node and writes those that have
    /// changed. Upstream: `UpdateNodeStatus`.
    async fn update_all(self: Arc<Self>) -> Result<(), Error> {
        let nodes = self.nodes.list();
        let limit = self.parts.concurrent_node_status_updates;
        let update = move |node: Arc<Node>| {
            let this = self.clone();
            async move {
                if node.has_taint(UNINITIALIZED) {
                    return;
                }
                let asked = async { this.instances()?.metadata(&node).await };
                match asked.await {
                    Ok(metadata) => this.update_addresses(&node, metadata).await,
                    Err(provider::Error::NotImplemented) => {}
                    Err(error) => {
                        log::error!("Error getting instance metadata for node addresses: {error}");
                    }
                }
            }
        };
        parallel::for_each(nodes, limit, update).await;
        Ok(())
    }

    /// Writes the addresses of a Node if they have changed. Failures are logged: the next period
    /// updates again. Upstream: `updateNodeAddress`.
    async fn update_addresses(&self, node: &Node, metadata: InstanceMetadata) {
        let name = &node.meta.name;
        let addresses = match addresses::wanted(node, metadata.node_addresses) {
            Ok(Some(addresses)) => addresses,
            Ok(None) => return,
            Err(error) => {
                return log::error!("Failed to update node addresses for node {name:?}: {error}");
            }
        };
        let body = json!({
            "metadata": { "uid": node.meta.uid }, "status": { "addresses": addresses },
        });
        let nodes = self.client.resource(&Node::RESOURCE).subresource("status");
        let patched =
            nodes.patch::<PartialObjectMetadata>(&node.meta.key(), &Patch::Merge(body)).await;
        if let Err(error) = patched {
            log::error!("Error patching node {name} with cloud ip addresses: {error}");
        }
    }
}
