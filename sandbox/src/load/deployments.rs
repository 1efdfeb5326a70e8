//! The load of Deployments, and the start of managers on a full cluster.

use std::time::Duration;

use serde_json::{Value, json};

use super::manager_process::ManagerProcess;
use super::objects::template;
use super::{NAMESPACE, POLL, Result, Run};
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
        self.phase("Deployments");
        let mark = self.mark(Some(&manager))?;
        for n in 0..self.size.deployments {
            let body = deployment(&format!("app-{n}"), n, self.size.replicas);
            self.create(&Deployment::RESOURCE, NAMESPACE, &body).await?;
        }
        let pods = self.size.pods() as i64;
        self.until(&mut manager, "all pods exist", |sum| sum.replicas >= pods).await?;
        let existing = self.mark(Some(&manager))?;
        self.row("all pods exist", &manager, mark)?;
        self.until(&mut manager, "all pods are ready", |sum| sum.available >= pods).await?;
        self.row("all pods ready", &manager, existing)?;
        let mark = self.mark(Some(&manager))?;
        self.settled(&mut manager).await?;
        self.row("settled, full", &manager, mark)?;

        self.phase("idle");
        let mark = self.mark(Some(&manager))?;
        self.clock.sleep(idle).await;
        self.row("idle", &manager, mark)?;

        self.phase("restarts on the full cluster");
        let scaled = ObjectKey::new(NAMESPACE, "app-0");
        let mut starts = Vec::new();
        let mut mark = self.mark(None)?;
        for restart in 1..=RESTARTS {
            self.end(manager).await?;
            self.clock.sleep(PAUSE).await;
            // One pod more, or one less again.
            let more = restart % 2;
            let replicas = json!({ "spec": { "replicas": self.size.replicas + more } });
            self.client.patch::<Deployment>(&scaled, &Patch::Merge(replicas)).await?;
            mark = self.mark(None)?;
            manager = self.start_manager()?;
            self.acted_upon(&mut manager, &scaled).await?;
            starts.push(self.figures("restarted: first write", &manager, mark)?);
            mark = self.mark(Some(&manager))?;
            let wanted = pods + more as i64;
            self.until(&mut manager, "the new size", |sum| sum.available == wanted).await?;
        }
        starts.sort_by(|one, other| one.seconds.total_cmp(&other.seconds));
        self.report.rows.push(starts.swap_remove(RESTARTS / 2));
        self.settled(&mut manager).await?;
        self.row("restarted: settled", &manager, mark)?;
        Ok(manager)
    }

    /// Waits until the manager has written the status of a Deployment without pods.
    pub(super) async fn first_write(&self, manager: &mut ManagerProcess) -> Result<()> {
        let body = deployment("probe", 0, 0);
        self.create(&Deployment::RESOURCE, NAMESPACE, &body).await?;
        self.until(manager, "the first write", |sum| sum.unobserved == 0).await?;
        let key = ObjectKey::new(NAMESPACE, "probe");
        Ok(self.client.delete::<Deployment>(&key, Delete::background()).await?)
    }

    async fn until(
        &self,
        manager: &mut ManagerProcess,
        what: &str,
        done: impl Fn(&Sum) -> bool,
    ) -> Result<()> {
        let give_up = self.clock.monotonic() + self.patience;
        loop {
            self.alive(manager)?;
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
    async fn acted_upon(&self, manager: &mut ManagerProcess, key: &ObjectKey) -> Result<()> {
        let give_up = self.clock.monotonic() + self.patience;
        loop {
            self.alive(manager)?;
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

    async fn sum(&self) -> Result<Sum> {
        let all: Vec<Deployment> =
            self.client.list(Some(NAMESPACE), &ListOptions::default()).await?;
        let mut sum = Sum::default();
        for deployment in &all {
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
struct Sum {
    replicas: i64,
    available: i64,
    /// Deployments whose newest spec no manager has observed.
    unobserved: usize,
}

fn deployment(name: &str, n: usize, replicas: usize) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": { "name": name, "labels": { "app": name } },
        "spec": {
            "replicas": replicas, "selector": { "matchLabels": { "app": name } },
            "template": template(name, n),
        },
    })
}
