//! Deployments, and a manager that starts when they are there.

use std::time::Duration;

use serde_json::{Value, json};

use super::objects::template;
use super::working::Working;
use super::{NAMESPACE, POLL, Result, Run};
use kube_controller_manager::client::{Delete, ListOptions, Patch};
use kube_controller_manager::objects::{Deployment, ObjectKey, Resource};

/// The length of a start varies by half and more, so the median is reported. Odd, so that the last
/// start adds a pod.
const RESTARTS: usize = 5;
/// Between two of them, so that the API server has nothing left to do.
const PAUSE: Duration = Duration::from_secs(2);

impl Run {
    /// Deployments, and a manager that starts when they are there.
    pub(super) async fn deployments(
        &mut self,
        mut working: Working,
        idle: Duration,
    ) -> Result<Working> {
        self.phase("Deployments");
        let mark = self.mark(Some(&working))?;
        for n in 0..self.size.deployments {
            let body = deployment(&format!("app-{n}"), n, self.size.replicas);
            self.create(&Deployment::RESOURCE, NAMESPACE, &body).await?;
        }
        let pods = self.size.pods() as i64;
        self.until(&mut working, "all pods exist", |sum| sum.replicas >= pods).await?;
        let existing = self.mark(Some(&working))?;
        self.row("all pods exist", &working, mark)?;
        self.until(&mut working, "all pods are ready", |sum| sum.available >= pods).await?;
        self.row("all pods ready", &working, existing)?;
        let mark = self.mark(Some(&working))?;
        self.settled(&mut working).await?;
        self.row("settled, full", &working, mark)?;

        self.phase("idle");
        let mark = self.mark(Some(&working))?;
        self.clock.sleep(idle).await;
        self.row("idle", &working, mark)?;

        self.phase("restarts on the full cluster");
        let scaled = ObjectKey::new(NAMESPACE, "app-0");
        let mut starts = Vec::new();
        let mut mark = self.mark(None)?;
        for restart in 1..=RESTARTS {
            self.end(working).await?;
            self.clock.sleep(PAUSE).await;
            // One pod more, or one less again.
            let more = restart % 2;
            let replicas = json!({ "spec": { "replicas": self.size.replicas + more } });
            self.client.patch::<Deployment>(&scaled, &Patch::Merge(replicas)).await?;
            mark = self.mark(None)?;
            working = self.start_manager()?;
            self.acted_upon(&mut working, &scaled).await?;
            starts.push(self.figures("restarted: first write", &working, mark)?);
            mark = self.mark(Some(&working))?;
            let wanted = pods + more as i64;
            self.until(&mut working, "the new size", |sum| sum.available == wanted).await?;
        }
        starts.sort_by(|one, other| one.seconds.total_cmp(&other.seconds));
        self.report.rows.push(starts.swap_remove(RESTARTS / 2));
        self.settled(&mut working).await?;
        self.row("restarted: settled", &working, mark)?;
        Ok(working)
    }

    /// The manager has taken up its work: it answers a Deployment without pods.
    pub(super) async fn first_write(&self, working: &mut Working) -> Result<()> {
        let body = deployment("probe", 0, 0);
        self.create(&Deployment::RESOURCE, NAMESPACE, &body).await?;
        self.until(working, "the first write", |sum| sum.unobserved == 0).await?;
        let key = ObjectKey::new(NAMESPACE, "probe");
        Ok(self.client.delete::<Deployment>(&key, Delete::background()).await?)
    }

    async fn until(
        &self,
        working: &mut Working,
        what: &str,
        done: impl Fn(&Sum) -> bool,
    ) -> Result<()> {
        let give_up = self.clock.monotonic() + self.patience;
        loop {
            self.alive(working)?;
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

    /// Waits for the manager's status of the newest spec. Asks for one object at a time: the server
    /// is to be busy with the manager.
    async fn acted_upon(&self, working: &mut Working, key: &ObjectKey) -> Result<()> {
        let give_up = self.clock.monotonic() + self.patience;
        loop {
            self.alive(working)?;
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

/// Over all Deployments of the load, as their statuses say.
#[derive(Debug, Default)]
struct Sum {
    replicas: i64,
    available: i64,
    /// Those whose newest spec no manager has acted on.
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
