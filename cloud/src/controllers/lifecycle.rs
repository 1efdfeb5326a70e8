//! Deletes the Nodes whose machines the cloud does not have, and taints those that are shut down.
//! Upstream: `controllers/nodelifecycle`.

use std::sync::Arc;

use kube_controller_manager::cache::Lister;
use kube_controller_manager::client::{self, Client, Delete};
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::controllers::{Controller, Error};
use kube_controller_manager::events::{EventType, ObjectReference, Recorder};
use kube_controller_manager::metrics::{exponential, metrics};
use kube_controller_manager::objects::{NO_SCHEDULE, Taint};
use kube_controller_manager::options::{Release, followed};

use super::Parts;
use super::node_writes::{BACKOFF, patch, with_taints};
use crate::objects::Node;
use crate::parallel;
use crate::provider::{self, Cloud, Instances};

metrics! {
    fn register;
    static PASSES: Histogram(exponential(0.001, 2.0, 15)) =
        "cloud_node_lifecycle_controller_monitor_nodes_duration_seconds",
        "[ALPHA] A metric measuring the duration in seconds of a single MonitorNodes loop execution.";
    static CALLS: IntCounterVec["operation", "result"] =
        "cloud_node_lifecycle_controller_cloud_provider_calls_total",
        "[ALPHA] The total number of cloud provider API calls, labeled by operation and result.";
}

/// Returns whether the metrics are served: from 1.37 on. Pull request 137964.
fn has_metrics() -> bool {
    followed() >= Release::V1_37
}

/// Upstream: `cloudproviderapi.TaintNodeShutdown`.
pub const SHUTDOWN: &str = "node.cloudprovider.kubernetes.io/shutdown";

/// Constructs `cloud-node-lifecycle-controller`, which checks all Nodes once a period. It does not
/// run without a cloud that has instances.
pub fn controller(c: &mut Controller) -> Result<(), String> {
    let parts = Parts::of(c)?;
    if parts.cloud.instances().is_none() {
        log::warn!(
            "failed to start cloud node lifecycle controller: cloud provider does not support \
             instances"
        );
        return Ok(());
    }
    if has_metrics() {
        register();
    }
    let this = Arc::new(Lifecycle {
        concurrent_syncs: parts.concurrent_node_lifecycle_syncs,
        cloud: parts.cloud.clone(),
        client: c.client(),
        recorder: c.recorder(),
        clock: c.clock(),
        nodes: c.lister::<Node>(),
    });
    let period = c.options().node_monitor_period;
    c.every(period, move || this.clone().monitor());
    Ok(())
}

struct Lifecycle {
    concurrent_syncs: usize,
    cloud: Arc<dyn Cloud>,
    client: Client,
    recorder: Recorder,
    clock: SharedClock,
    nodes: Lister<Node>,
}

/// The state of the machine of a Node that is not ready.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Machine {
    Gone,
    ShutDown,
    Runs,
}

impl Lifecycle {
    /// Checks each Node, several at once. Upstream: `MonitorNodes`.
    async fn monitor(self: Arc<Self>) -> Result<(), Error> {
        let start = self.clock.monotonic();
        let mut nodes = self.nodes.list();
        nodes.sort_by(|a, b| a.meta.name.cmp(&b.meta.name));
        let this = self.clone();
        let check = move |node: Arc<Node>| {
            let this = this.clone();
            async move { this.check(&node).await }
        };
        parallel::for_each(nodes, self.concurrent_syncs, check).await;
        if has_metrics() {
            PASSES.observe((self.clock.monotonic() - start).as_secs_f64());
        }
        Ok(())
    }

    /// Deletes a Node whose machine is gone, and sets the shutdown taint of one whose machine is
    /// shut down. A ready Node loses that taint without a question to the cloud; if the machine of
    /// an unready Node runs, its taint stays as it is. Failures are logged: the next period asks
    /// again.
    async fn check(&self, node: &Node) {
        // The constructor has checked it.
        let Some(instances) = self.cloud.instances() else { return };
        let name = &node.meta.name;
        if node.is_ready() {
            if let Err(error) = self.change_taint(node, without_shutdown).await {
                log::error!("error patching node taints: {name}: {error}");
            }
            return;
        }
        match machine_of(instances, node).await {
            Ok(Machine::Gone) => self.delete(node).await,
            Ok(Machine::ShutDown) => {
                if let Err(error) = self.change_taint(node, with_shutdown).await {
                    log::error!(
                        "failed to apply shutdown taint to node {name}, it may have been deleted: \
                         {error}"
                    );
                }
            }
            Ok(Machine::Runs) => {}
            Err((question, error)) => {
                log::error!("error checking if node {name} {question}: {error}");
            }
        }
    }

    /// Patches the taints of a Node with those that `change` returns; `None` from it: nothing to
    /// write.
    async fn change_taint(
        &self,
        node: &Node,
        change: fn(&[Taint]) -> Option<Vec<Taint>>,
    ) -> client::Result<()> {
        let body = |node: &Node| change(&node.spec.taints).map(|taints| with_taints(&taints));
        patch(&self.client, &self.clock, node, BACKOFF, body).await.map(drop)
    }

    /// Deletes a Node that the cloud does not have, with an event.
    async fn delete(&self, node: &Node) {
        let name = &node.meta.name;
        // As upstream, without the version of the Node.
        let about = ObjectReference { resource_version: 0, ..ObjectReference::to(node) };
        let message =
            format!("Deleting node {name} because it does not exist in the cloud provider");
        self.recorder.event(&about, EventType::Normal, "DeletingNode", message);
        // A Node of the same name may join now: it must stay.
        let delete = Delete::new().uid(node.meta.uid.clone());
        match self.client.delete::<Node>(&node.meta.key(), delete).await {
            Err(error) if !error.is_not_found() => {
                log::error!("unable to delete node {name:?}: {error}");
                let message = format!("Failed deleting node {name}: {error}");
                self.recorder.event(&about, EventType::Warning, "DeletingNodeFailed", message);
            }
            _ => {}
        }
    }
}

/// Asks the cloud for the state of a machine. An error comes with the question that failed, for the
/// log.
async fn machine_of(
    instances: &dyn Instances,
    node: &Node,
) -> Result<Machine, (&'static str, provider::Error)> {
    let exists = instances.exists(node).await;
    count("instance_exists", result_of(&exists, "instance_not_found"));
    if !exists.map_err(|error| ("exists", error))? {
        return Ok(Machine::Gone);
    }
    let is_shut_down = instances.is_shut_down(node).await;
    count("instance_shutdown", result_of(&is_shut_down, "success"));
    match is_shut_down.map_err(|error| ("is shutdown", error))? {
        true => Ok(Machine::ShutDown),
        false => Ok(Machine::Runs),
    }
}

fn count(operation: &str, result: &str) {
    if has_metrics() {
        CALLS.with_label_values(&[operation, result]).inc();
    }
}

/// Returns the value of the label `result`. `no`: that of a call whose answer is no.
fn result_of(answer: &Result<bool, provider::Error>, no: &'static str) -> &'static str {
    match answer {
        Ok(true) => "success",
        Ok(false) => no,
        Err(provider::Error::InstanceNotFound) => "instance_not_found",
        Err(provider::Error::NotImplemented) => "not_implemented",
        Err(_) => "error",
    }
}

fn is_shutdown(taint: &Taint) -> bool {
    taint.key == SHUTDOWN && taint.effect == NO_SCHEDULE
}

/// Returns the taints with the shutdown taint; `None`: they have it. One with a value is replaced.
fn with_shutdown(taints: &[Taint]) -> Option<Vec<Taint>> {
    let shutdown = Taint { key: SHUTDOWN.into(), effect: NO_SCHEDULE.into(), ..Taint::default() };
    if taints.contains(&shutdown) {
        return None;
    }
    let others = taints.iter().filter(|taint| !is_shutdown(taint)).cloned();
    Some(others.chain([shutdown]).collect())
}

/// Returns the taints without the shutdown taint; `None`: they lack it.
fn without_shutdown(taints: &[Taint]) -> Option<Vec<Taint>> {
    let is_there = taints.iter().any(is_shutdown);
    is_there.then(|| taints.iter().filter(|taint| !is_shutdown(taint)).cloned().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_by_their_results() {
        for (answer, exists, is_shut_down) in [
            (Ok(true), "success", "success"),
            (Ok(false), "instance_not_found", "success"),
            (Err(provider::Error::InstanceNotFound), "instance_not_found", "instance_not_found"),
            (Err(provider::Error::NotImplemented), "not_implemented", "not_implemented"),
            (Err(provider::Error::other("why")), "error", "error"),
        ] {
            let found = [result_of(&answer, "instance_not_found"), result_of(&answer, "success")];
            assert_eq!(found, [exists, is_shut_down], "{answer:?}");
        }
    }

    fn taint(key: &str, effect: &str) -> Taint {
        Taint { key: key.into(), effect: effect.into(), ..Taint::default() }
    }

    #[test]
    fn the_shutdown_taint_is_set_once_and_removed_alone() {
        let other = || taint("a", "NoSchedule");
        let shutdown = || taint(SHUTDOWN, "NoSchedule");
        let valued = Taint { value: "v".into(), ..shutdown() };
        for (before, set, removed) in [
            (vec![], Some(vec![shutdown()]), None),
            (vec![other()], Some(vec![other(), shutdown()]), None),
            (vec![shutdown(), other()], None, Some(vec![other()])),
            (vec![valued], Some(vec![shutdown()]), Some(vec![])),
            // Another effect makes another taint.
            (
                vec![taint(SHUTDOWN, "NoExecute")],
                Some(vec![taint(SHUTDOWN, "NoExecute"), shutdown()]),
                None,
            ),
        ] {
            assert_eq!(with_shutdown(&before), set, "{before:?}");
            assert_eq!(without_shutdown(&before), removed, "{before:?}");
        }
    }
}
