//! The load of Deployments, and the start of managers on a full cluster.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::manager_process::ManagerProcess;
use super::objects::template;
use super::{NAMESPACE, POLL, PROGRAM, Result, Run};
use kube_controller_manager::client::{Delete, ListOptions, Patch};
use kube_controller_manager::objects::{Deployment, ObjectKey, Resource};

/// The length of a start varies by half and more, so the median is reported. Odd, so that the last
/// start adds a pod.
const RESTARTS: usize = 5;
/// The pause between two starts, so that the API server has finished its work.
const PAUSE: Duration = Duration::from_secs(2);

impl Run {
    /// Creates the Deployments, then starts managers on the full cluster.
    pub(super) async fn deployments(
        &mut self,
        mut manager: ManagerProcess,
        idle: Duration,
    ) -> Result<ManagerProcess> {
        self.fill(&mut manager).await?;
        self.phase("idle");
        let mark = self.start_mark(Some(&manager))?;
        self.clock.sleep(idle).await;
        self.add_row("idle", &manager, mark).await?;
        self.restarts(manager).await
    }

    /// Creates the Deployments, and waits until all their pods are ready and the manager is idle.
    pub(super) async fn fill(&mut self, manager: &mut ManagerProcess) -> Result<()> {
        self.phase("Deployments");
        let mark = self.start_mark(Some(manager))?;
        self.create_deployments().await?;
        let pods = self.size.pods() as i64;
        self.wait_until(manager, "all pods exist", |sum| sum.replicas >= pods).await?;
        let existing = self.start_mark(Some(manager))?;
        self.add_row("all pods exist", manager, mark).await?;
        self.wait_until(manager, "all pods are ready", |sum| sum.available >= pods).await?;
        self.add_row("all pods ready", manager, existing).await?;
        let mark = self.start_mark(Some(manager))?;
        self.wait_until_settled(manager).await?;
        self.add_row("settled, full", manager, mark).await
    }

    /// Creates the Deployments, and waits until all their pods are ready.
    pub(super) async fn create_pods(&mut self, manager: &mut ManagerProcess) -> Result<()> {
        self.create_deployments().await?;
        let pods = self.size.pods() as i64;
        self.wait_until(manager, "all pods are ready", |sum| sum.available >= pods).await
    }

    /// Creates the Deployments of the load, one after the other.
    async fn create_deployments(&self) -> Result<()> {
        for n in 0..self.size.deployments {
            let ObjectKey { namespace, name } = self.deployment_key(n);
            let body = deployment(&name, n, self.size.replicas);
            self.create(&Deployment::RESOURCE, &namespace, &body).await?;
        }
        Ok(())
    }

    /// Returns the key of the `n`th Deployment.
    pub(super) fn deployment_key(&self, n: usize) -> ObjectKey {
        let namespace = match self.size.namespaces {
            0 => NAMESPACE.to_owned(),
            count => super::spread::namespace_name(n % count),
        };
        ObjectKey::new(&namespace, &format!("app-{n}"))
    }

    /// Restarts the manager on the full cluster several times, and returns the last one. The report
    /// gets the start of the median duration.
    pub(super) async fn restarts(&mut self, mut manager: ManagerProcess) -> Result<ManagerProcess> {
        self.phase("restarts on the full cluster");
        let pods = self.size.pods() as i64;
        let scaled = self.deployment_key(0);
        let mut starts = Vec::new();
        let mut mark = self.start_mark(None)?;
        for restart in 1..=RESTARTS {
            self.end(manager).await?;
            self.clock.sleep(PAUSE).await;
            // One pod more, or one less again.
            let more = restart % 2;
            let replicas = json!({ "spec": { "replicas": self.size.replicas + more } });
            self.client.patch::<Deployment>(&scaled, &Patch::Merge(replicas)).await?;
            mark = self.start_mark(None)?;
            manager = self.start_manager()?;
            self.wait_for_status(&mut manager, &scaled).await?;
            let mut start = self.figures("restarted: first write", &manager, mark)?;
            start.after_lists_seconds = self.since_lists();
            starts.push(start);
            mark = self.start_mark(Some(&manager))?;
            let wanted = pods + more as i64;
            self.wait_until(&mut manager, "the new size", |sum| sum.available == wanted).await?;
        }
        starts.sort_by(|one, other| one.seconds.total_cmp(&other.seconds));
        self.report.rows.push(starts.swap_remove(RESTARTS / 2));
        self.wait_until_settled(&mut manager).await?;
        if let Some((_, before)) = &mut self.queues {
            // The counters of a new process begin at zero.
            *before = Default::default();
        }
        self.add_row("restarted: settled", &manager, mark).await?;
        Ok(manager)
    }

    /// Returns the time since the last byte of the managers' lists was sent.
    fn since_lists(&self) -> Option<f64> {
        let listed = self.server.sandbox()?.traffic().listed(PROGRAM)?;
        Some(self.clock.monotonic().saturating_sub(listed).as_secs_f64())
    }

    /// Waits until the manager has written the status of a Deployment without pods.
    pub(super) async fn first_write(&self, manager: &mut ManagerProcess) -> Result<()> {
        let body = deployment("probe", 0, 0);
        self.create(&Deployment::RESOURCE, NAMESPACE, &body).await?;
        self.wait_until(manager, "the first write", |sum| sum.unobserved == 0).await?;
        let key = ObjectKey::new(NAMESPACE, "probe");
        Ok(self.client.delete::<Deployment>(&key, Delete::background()).await?)
    }

    /// Waits until `done` returns true for the sum of all Deployments' statuses. Fails when the
    /// manager ends, or after the patience.
    pub(super) async fn wait_until(
        &self,
        manager: &mut ManagerProcess,
        what: &str,
        done: impl Fn(&Sum) -> bool,
    ) -> Result<()> {
        let give_up = self.clock.monotonic() + self.patience;
        loop {
            self.check_alive(manager)?;
            let sum = self.sum().await?;
            if done(&sum) {
                return Ok(());
            }
            if self.clock.monotonic() > give_up {
                return Err(format!("{what}: not after {:?}: {sum:?}", self.patience).into());
            }
            self.clock.sleep(POLL).await;
        }
    }

    /// Waits for the manager's status of the newest spec. Reads one object at a time, to
    /// leave the server to the manager.
    pub(super) async fn wait_for_status(
        &self,
        manager: &mut ManagerProcess,
        key: &ObjectKey,
    ) -> Result<()> {
        let give_up = self.clock.monotonic() + self.patience;
        loop {
            self.check_alive(manager)?;
            let deployment: Deployment = self.client.get(key).await?;
            if deployment.status.observed_generation == Some(deployment.meta.generation) {
                return Ok(());
            }
            if self.clock.monotonic() > give_up {
                return Err(format!("the first write: not after {:?}", self.patience).into());
            }
            self.clock.sleep(POLL / 10).await;
        }
    }

    /// Adds up the statuses of all Deployments, from the cache if there is one, else from a list of
    /// the load's one namespace.
    pub(super) async fn sum(&self) -> Result<Sum> {
        let all = match &self.seen {
            Some(seen) => seen.deployments(),
            None => {
                let options = ListOptions::default();
                let all = self.client.list(Some(NAMESPACE), &options).await?;
                all.into_iter().map(Arc::new).collect()
            }
        };
        let mut sum = Sum::default();
        for deployment in all {
            let deployment: &Deployment = &deployment;
            sum.replicas += i64::from(deployment.status.replicas.unwrap_or(0));
            sum.available += i64::from(deployment.status.available_replicas.unwrap_or(0));
            let observed = deployment.status.observed_generation;
            sum.unobserved += usize::from(observed != Some(deployment.meta.generation));
        }
        Ok(sum)
    }
}

/// Sums over the statuses of all Deployments of the load.
#[derive(Debug, Default)]
pub(super) struct Sum {
    pub replicas: i64,
    pub available: i64,
    /// Deployments whose newest spec no manager has observed.
    pub unobserved: usize,
}

/// Builds a Deployment of this many replicas.
pub(super) fn deployment(name: &str, n: usize, replicas: usize) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": { "name": name, "labels": { "app": name } },
        "spec": {
            "replicas": replicas, "selector": { "matchLabels": { "app": name } },
            "template": template(name, n),
        },
    })
}
