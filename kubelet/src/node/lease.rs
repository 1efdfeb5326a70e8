//! The lease of the node, by which the cluster sees that its kubelet lives.
//! Upstream: `component-helpers/apimachinery/lease`, `util.SetNodeOwnerFunc`.

use std::time::Duration;

use kube_controller_manager::objects::{Lease, Node, ObjectKey, Resource};
use kube_controller_manager::task::StopToken;
use serde_json::{Value, json};

use super::heartbeat::{Error, Heartbeats};

/// The namespace of the leases of nodes.
const NAMESPACE: &str = "kube-node-lease";
/// Upstream: `maxUpdateRetries`.
const MAX_TRIES: usize = 5;
/// Upstream: `backoffEnsureLease`, `maxBackoff`.
const FIRST_DELAY: Duration = Duration::from_millis(200);
const MAX_DELAY: Duration = Duration::from_secs(7);
/// Renewals of many nodes spread by this part of their period.
const JITTER: f64 = 0.04;

/// Renews the lease of a node.
pub struct LeaseController {
    heartbeats: Heartbeats,
    node: String,
    /// For so long the node counts as alive. In seconds.
    duration_seconds: u32,
    /// The lease as the server has it, as far as is known.
    latest: Option<Value>,
}

impl LeaseController {
    pub fn new(heartbeats: Heartbeats, node: String, duration_seconds: u32) -> LeaseController {
        LeaseController { heartbeats, node, duration_seconds, latest: None }
    }

    /// Renews the lease until stopped, four times within its duration.
    pub async fn run(mut self, stop: StopToken) {
        let period = Duration::from_secs(self.duration_seconds.into()) / 4;
        loop {
            if stop.unless_stopped(self.sync()).await.is_none() {
                return;
            }
            let pause = period.mul_f64(1.0 + JITTER * fastrand::f64());
            if stop.unless_stopped(self.heartbeats.clock().sleep(pause)).await.is_none() {
                return;
            }
        }
    }

    /// Renews the lease that is known, without a read; else reads it, or makes it.
    async fn sync(&mut self) {
        if let Some(latest) = self.latest.clone() {
            if self.update(latest).await {
                return;
            }
            log::info!("failed to update lease using latest lease, fallback to ensure lease");
        }
        let (lease, is_new) = self.ensure().await;
        self.latest.clone_from(&lease);
        // A new lease has the time of now already.
        if let Some(lease) = lease.filter(|_| !is_new)
            && !self.update(lease).await
        {
            log::error!("Will retry updating lease {}", self.node);
        }
    }

    /// Gets the lease, or creates it, and repeats that until the server answers. Returns the lease
    /// and whether it is new; `None`: it is not created without its owner, the Node.
    async fn ensure(&self) -> (Option<Value>, bool) {
        let mut delay = FIRST_DELAY;
        loop {
            match self.get_or_create().await {
                Ok(outcome) => return outcome,
                Err(error) => {
                    log::error!("Failed to ensure lease exists, will retry in {delay:?}: {error}");
                    self.heartbeats.clock().sleep(delay).await;
                    delay = (delay * 2).min(MAX_DELAY);
                }
            }
        }
    }

    fn key(&self) -> ObjectKey {
        ObjectKey::new(NAMESPACE, &self.node)
    }

    /// Gets the lease, or creates it. Returns the same as `ensure`.
    async fn get_or_create(&self) -> Result<(Option<Value>, bool), Error> {
        let leases = self.heartbeats.client().resource(&Lease::RESOURCE);
        match self.heartbeats.within(leases.get(&self.key())).await {
            Ok(lease) => Ok((Some(lease), false)),
            Err(error) if error.is_not_found() => {
                let new = json!({
                    "apiVersion": "coordination.k8s.io/v1",
                    "kind": "Lease",
                    "metadata": {"name": self.node, "namespace": NAMESPACE},
                    "spec": {"holderIdentity": self.node},
                });
                let (new, owner) = self.renewed(new).await;
                // Without its owner it would stay when the Node is deleted.
                if let Err(error) = owner {
                    self.log_owner(&error);
                    return Ok((None, false));
                }
                let created = self.heartbeats.within(leases.create(NAMESPACE, &new)).await?;
                Ok((Some(created), true))
            }
            Err(error) => Err(error),
        }
    }

    fn log_owner(&self, error: &Error) {
        let node = &self.node;
        log::error!(
            "Failed to get node {node} when trying to set owner ref to the node lease: {error}"
        );
    }

    /// Returns the lease with the time of now, and with its owner unless it has one; and the error
    /// with which the owner was not found.
    async fn renewed(&self, mut lease: Value) -> (Value, Result<(), Error>) {
        lease["spec"]["leaseDurationSeconds"] = self.duration_seconds.into();
        lease["spec"]["renewTime"] = self.heartbeats.clock().now().to_micro_string().into();
        if lease["metadata"]["ownerReferences"].as_array().is_some_and(|all| !all.is_empty()) {
            return (lease, Ok(()));
        }
        let key = ObjectKey::cluster(&self.node);
        match self.heartbeats.within(self.heartbeats.client().get::<Node>(&key)).await {
            Ok(node) => {
                lease["metadata"]["ownerReferences"] = json!([{
                    "apiVersion": "v1", "kind": "Node", "name": self.node, "uid": node.meta.uid,
                }]);
                (lease, Ok(()))
            }
            Err(error) => (lease, Err(error)),
        }
    }

    /// Renews the lease, with a few tries, and returns whether that succeeded.
    async fn update(&mut self, mut base: Value) -> bool {
        for _ in 0..MAX_TRIES {
            let (lease, owner) = self.renewed(base.clone()).await;
            if let Err(error) = owner {
                self.log_owner(&error);
                continue;
            }
            let leases = self.heartbeats.client().resource(&Lease::RESOURCE);
            match self.heartbeats.within(leases.update(&self.key(), &lease)).await {
                Ok(updated) => {
                    self.latest = Some(updated);
                    return true;
                }
                Err(error) => {
                    log::error!("Failed to update lease {}: {error}", self.node);
                    if error.is_conflict() {
                        let (Some(newer), _) = self.ensure().await else { return false };
                        base = newer;
                    }
                }
            }
        }
        false
    }
}
