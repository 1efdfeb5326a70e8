//! Keeps the status of PodDisruptionBudgets, which decides whether evictions are allowed.
//! Upstream: `pkg/controller/disruption`.

mod expected;
mod stale;
mod status;

use std::sync::Arc;
use std::time::Duration;

use self::stale::Stale;
use self::status::{Counts, Disrupted};
use crate::cache::Lister;
use crate::client::{self, Client, Scales};
use crate::clock::SharedClock;
use crate::controllers::runner::Change;
use crate::controllers::{Controller, Error, Next, Queue, QueuePolicy, SyncResult, keys};
use crate::events::Recorder;
use crate::objects::{
    DaemonSet, Deployment, Labels, ObjectKey, Pod, PodDisruptionBudget, PodDisruptionBudgetStatus,
    ReplicaSet, ReplicationController, Selector, StatefulSet, golang,
};

/// What must have passed after a deadline for it to be over.
const TICK: Duration = Duration::from_millis(1);

/// The delay before the next sync of a budget whose pods or scales could not be read.
const RETRY: Duration = Duration::from_secs(30);

/// Sets up the controller `disruption-controller`.
pub fn controller(c: &mut Controller) -> Result<(), String> {
    let (budgets, pods) = (c.lister::<PodDisruptionBudget>(), c.lister::<Pod>());
    let daemon_sets = c.lister::<DaemonSet>();
    let this = Arc::new(Disruption {
        client: c.client(),
        scales: Scales::new(c.client()),
        recorder: c.recorder(),
        clock: c.clock(),
        budgets: budgets.clone(),
        pods: pods.clone(),
        sets: c.lister(),
        deployments: c.lister(),
        stateful_sets: c.lister(),
        controllers: c.lister(),
        daemon_sets: daemon_sets.clone(),
    });
    let stale = Arc::new(Stale { client: c.client(), clock: c.clock(), pods: pods.clone() });
    let queue = c.queue(QueuePolicy::default());
    let stale_queue = c.queue_named("stale_pod_disruption", QueuePolicy::default());
    c.watch(&budgets, &queue, keys::of_object());
    let (of_pod, timers, stale_pods) = (this.clone(), stale_queue.clone(), stale.clone());
    c.watch(&pods, &queue, move |change, queue| {
        let pod = change.object();
        of_pod.queue_budget(pod, queue);
        if !matches!(change, Change::Deleted(_))
            && let Some(after) = stale_pods.stale_after(pod)
        {
            timers.add_after(pod.meta.key(), after);
        }
    });
    let of_set = this.clone();
    c.watch(&daemon_sets, &queue, move |change, queue| {
        if wants_other_number(&change) {
            let set = change.object();
            let budgets = of_set.budgets_for(&set.meta.namespace, &set.spec.template.labels);
            budgets.iter().for_each(|budget| queue.add(budget.meta.key()));
        }
    });
    c.sync(queue, &this, Disruption::sync);
    c.sync_by(1, stale_queue, &stale, Stale::sync);
    Ok(())
}

struct Disruption {
    client: Client,
    scales: Scales,
    recorder: Recorder,
    clock: SharedClock,
    budgets: Lister<PodDisruptionBudget>,
    pods: Lister<Pod>,
    sets: Lister<ReplicaSet>,
    deployments: Lister<Deployment>,
    stateful_sets: Lister<StatefulSet>,
    controllers: Lister<ReplicationController>,
    daemon_sets: Lister<DaemonSet>,
}

/// Returns whether a DaemonSet wants another number of pods than before. That may change after the
/// last event of its pods.
fn wants_other_number(change: &Change<'_, DaemonSet>) -> bool {
    let number = |set: &DaemonSet| set.status.desired_number_scheduled;
    match change {
        Change::Added { .. } => true,
        Change::Updated { old, new } => number(old) != number(new),
        Change::Resync { .. } | Change::Deleted(_) => false,
    }
}

impl Disruption {
    /// Returns the budgets that select pods with these labels.
    fn budgets_for(&self, namespace: &str, labels: &Labels) -> Vec<Arc<PodDisruptionBudget>> {
        let mut budgets = self.budgets.in_namespace(namespace);
        budgets.retain(|budget| {
            Selector::try_from(budget.spec.selector.as_ref())
                .is_ok_and(|selector| selector.matches(labels))
        });
        budgets
    }

    /// Queues the budget that selects `pod`. If there are several, which is an error, one is
    /// chosen. Upstream: `getPdbForPod`.
    fn queue_budget(&self, pod: &Pod, queue: &Queue) {
        let budgets = self.budgets_for(&pod.meta.namespace, &pod.meta.labels);
        let Some(first) = budgets.iter().min_by(|a, b| a.meta.name.cmp(&b.meta.name)) else {
            return;
        };
        if budgets.len() > 1 {
            let message = format!(
                "Pod {:?}/{:?} matches multiple PodDisruptionBudgets.  Chose {:?} arbitrarily.",
                pod.meta.namespace.as_str(),
                pod.meta.name,
                first.meta.name
            );
            self.recorder.warning(pod, "MultiplePodDisruptionBudgets", message);
        }
        queue.add(first.meta.key());
    }

    /// Updates the status of a budget; if that fails, writes a status that allows no eviction. A
    /// conflict is returned instead: the cached budget is an old one.
    async fn sync(self: Arc<Self>, key: ObjectKey) -> SyncResult {
        let Some(budget) = self.budgets.get(&key) else { return Ok(Next::Done) };
        let error = match self.try_sync(&budget).await {
            Ok(next) => return Ok(next),
            Err(error) => error,
        };
        if error.api().is_some_and(client::Error::is_conflict) {
            return Err(error);
        }
        // Until a sync succeeds no eviction is allowed.
        let failed = status::fail_safe(&budget.status, error.message(), self.clock.now());
        let is_changed = failed != budget.status;
        let level = if is_changed { log::Level::Error } else { log::Level::Debug };
        log::log!(level, "Failed to sync PDB {key}: {error}");
        self.write(&budget, failed).await?;
        // No event says that the API server is well again.
        Ok(if error.may_pass() { Next::After(RETRY) } else { Next::Done })
    }

    /// Computes the status of a budget from its pods, and writes it.
    /// Upstream: `trySync`.
    async fn try_sync(&self, budget: &PodDisruptionBudget) -> SyncResult {
        let pods = self.pods_of(budget).inspect_err(|error| {
            self.recorder.warning(budget, "NoPods", format!("Failed to get pods: {error}"));
        })?;
        if pods.is_empty() {
            self.recorder.normal(budget, "NoPods", "No matching pods found");
        }
        let expected = self.expected(budget, &pods).await.inspect_err(|error| {
            let why = error.message();
            let message = format!("Failed to calculate the number of expected pods: {why}");
            self.recorder.warning(budget, "CalculateExpectedPodCountFailed", message);
        })?;
        if expected.has_unmanaged {
            let selector = golang::label_selector(budget.spec.selector.as_ref());
            let message = format!(
                "Pods selected by this PodDisruptionBudget (selector: {selector}) were found to be \
                 unmanaged. As a result, the status of the PDB cannot be calculated correctly, \
                 which may result in undefined behavior. To account for these pods please set \
                 \".spec.minAvailable\" field of the PDB to an integer value."
            );
            self.recorder.warning(budget, "UnmanagedPods", message);
        }
        let now = self.clock.now();
        let Disrupted { waiting, overdue, recheck } =
            status::disrupted(&pods, &budget.status.disrupted_pods, now);
        for pod in overdue {
            // Upstream names the namespace twice.
            let message = format!(
                "Pod was expected by PDB {0}/{0} to be deleted but it wasn't",
                budget.meta.namespace
            );
            self.recorder.warning(&*pod, "NotDeleted", message);
        }
        let counts = Counts {
            healthy: status::healthy(&pods, &waiting, now),
            desired: expected.desired,
            expected: expected.count,
        };
        let generation = budget.meta.generation;
        let status = status::calculate(&budget.status, generation, counts, waiting, now);
        self.write(budget, status).await?;
        Ok(match recheck {
            Some(at) => Next::After(at.duration_since(now) + TICK),
            None => Next::Done,
        })
    }

    /// Returns the pods that the budget selects.
    fn pods_of(&self, budget: &PodDisruptionBudget) -> Result<Vec<Arc<Pod>>, Error> {
        let selector = Selector::try_from(budget.spec.selector.as_ref())?;
        let mut pods = self.pods.in_namespace(&budget.meta.namespace);
        pods.retain(|pod| selector.matches(&pod.meta.labels));
        Ok(pods)
    }

    /// Writes the status if it differs.
    async fn write(
        &self,
        budget: &PodDisruptionBudget,
        status: PodDisruptionBudgetStatus,
    ) -> Result<(), Error> {
        if status != budget.status {
            self.client.update_status_for_metadata(budget, &status).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use futures_lite::future::block_on;
    use serde_json::{from_value, json};

    use super::*;
    use crate::cache::Indexer;
    use crate::client::testing::answering;
    use crate::clock::FakeClock;
    use crate::events::testing::NoSink;
    use crate::objects::{Object, Timestamp};

    fn cached<T: Object>(objects: Vec<T>) -> Lister<T> {
        let cache = Arc::new(Indexer::new());
        objects.into_iter().for_each(|object| _ = cache.insert(Arc::new(object)));
        Lister::new(cache)
    }

    fn disruption(client: Client) -> Disruption {
        Disruption {
            scales: Scales::new(client.clone()),
            client,
            recorder: Recorder::to_sink(Arc::new(NoSink)),
            clock: FakeClock::new(Timestamp::from_secs(0)),
            budgets: cached(Vec::new()),
            pods: cached(Vec::new()),
            sets: cached(Vec::new()),
            deployments: cached(Vec::new()),
            stateful_sets: cached(Vec::new()),
            controllers: cached(Vec::new()),
            daemon_sets: cached(Vec::new()),
        }
    }

    fn daemon_set(name: &str, nodes: i32) -> DaemonSet {
        from_value(json!({
            "metadata": { "namespace": "ns", "name": name, "uid": name },
            "status": { "desiredNumberScheduled": nodes },
        }))
        .unwrap()
    }

    #[test]
    fn a_daemon_set_wants_a_pod_for_each_of_its_nodes() {
        let client = block_on(answering(|_| (404, json!({}))));
        let this = Disruption {
            daemon_sets: cached(vec![daemon_set("a", 5), daemon_set("new", 0)]),
            ..disruption(client)
        };
        let pod = |owner: &str| -> Arc<Pod> {
            let owner = json!({
                "apiVersion": "apps/v1", "kind": "DaemonSet", "name": owner, "uid": owner, "controller": true,
            });
            let metadata = json!({ "namespace": "ns", "name": "p", "ownerReferences": [owner] });
            Arc::new(from_value(json!({ "metadata": metadata })).unwrap())
        };
        // The owners of the pods, the budget; the pods expected and how many must be healthy.
        for (owners, demand, expected) in [
            (vec!["a", "a"], json!({ "maxUnavailable": 1 }), Some((5, 4))),
            (vec!["a"], json!({ "maxUnavailable": "20%" }), Some((5, 4))),
            (vec!["a", "new"], json!({ "minAvailable": "50%" }), Some((5, 3))),
            (vec!["new"], json!({ "maxUnavailable": 1 }), Some((0, 0))),
            (vec!["a", "gone"], json!({ "maxUnavailable": 1 }), None),
            (vec!["gone"], json!({ "minAvailable": 1 }), Some((1, 1))),
        ] {
            let budget = from_value(json!({ "metadata": { "namespace": "ns" }, "spec": demand }));
            let pods: Vec<Arc<Pod>> = owners.iter().map(|owner| pod(owner)).collect();
            let found = block_on(this.expected(&budget.unwrap(), &pods));
            let found = found.ok().map(|found| (found.count, found.desired));
            assert_eq!(found, expected, "{owners:?} {demand}");
        }
    }

    #[test]
    fn another_number_of_nodes_wakes_the_budgets_of_a_daemon_set() {
        let [three, also_three, four] = [3, 3, 4].map(|nodes| Arc::new(daemon_set("a", nodes)));
        for (change, expected) in [
            (Change::Added { new: &three, initial: true }, true),
            (Change::Updated { old: &three, new: &also_three }, false),
            (Change::Updated { old: &three, new: &four }, true),
            (Change::Resync { object: &three }, false),
        ] {
            assert_eq!(wants_other_number(&change), expected);
        }
    }

    #[test]
    fn a_budget_whose_scale_cannot_be_read_for_now_is_retried() {
        let metadata = json!({
            "namespace": "ns", "name": "a", "labels": { "app": "a" },
            "ownerReferences": [{
                "apiVersion": "example.com/v1", "kind": "Shop", "name": "s", "uid": "s", "controller": true,
            }],
        });
        let budget = json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": metadata,
            "spec": { "maxUnavailable": 1, "selector": { "matchLabels": { "app": "a" } } },
        });
        for (code, next) in [(503, Next::After(RETRY)), (404, Next::Done)] {
            let written = budget.clone();
            let client = block_on(answering(move |line| match line.starts_with("PUT") {
                true => (200, written.clone()),
                false => (code, json!({})),
            }));
            let this = Arc::new(Disruption {
                budgets: cached(vec![from_value(budget.clone()).unwrap()]),
                pods: cached(vec![from_value(json!({ "metadata": metadata })).unwrap()]),
                ..disruption(client)
            });
            let synced = block_on(this.sync(ObjectKey::new("ns", "a")));
            assert_eq!(synced.unwrap(), next, "{code}");
        }
    }
}
