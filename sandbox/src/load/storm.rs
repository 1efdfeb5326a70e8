//! A storm: many pods at once beside those of a full cluster.

use super::deployments::deployment;
use super::manager_process::ManagerProcess;
use super::{NAMESPACE, POLL, Result, Run};
use kube_controller_manager::client::{Delete, ListOptions};
use kube_controller_manager::objects::{
    Deployment, ObjectKey, PartialObjectMetadata, Pod, Resource,
};

/// The pods of one Deployment of the storm.
const REPLICAS: usize = 100;

fn name(n: usize) -> String {
    format!("storm-{n}")
}

/// Returns the replicas of each Deployment of a storm of `pods`.
fn sizes(pods: usize) -> impl Iterator<Item = usize> {
    (0..pods).step_by(REPLICAS).map(move |from| REPLICAS.min(pods - from))
}

impl Run {
    /// Creates the storm's pods, waits until all are ready, and deletes them again.
    pub(super) async fn storm(&mut self, manager: &mut ManagerProcess) -> Result<()> {
        self.phase("storm");
        let mark = self.start_mark(Some(manager))?;
        self.begin_storm(manager).await?;
        self.add_row("storm: all pods ready", manager, mark).await?;
        let mark = self.start_mark(Some(manager))?;
        self.end_storm(manager).await?;
        self.add_row("storm: deleted", manager, mark).await
    }

    /// Creates the storm's Deployments, and waits until all their pods are available.
    pub(super) async fn begin_storm(&self, manager: &mut ManagerProcess) -> Result<()> {
        let wanted = self.sum().await?.available + self.size.storm as i64;
        for (n, replicas) in sizes(self.size.storm).enumerate() {
            let body = deployment(&name(n), n, replicas);
            self.create(&Deployment::RESOURCE, NAMESPACE, &body).await?;
        }
        self.wait_until(manager, "the storm's pods are ready", |sum| sum.available >= wanted).await
    }

    /// Deletes the storm's Deployments, and waits until their pods are gone.
    pub(super) async fn end_storm(&self, manager: &mut ManagerProcess) -> Result<()> {
        let names: Vec<String> = (0..sizes(self.size.storm).count()).map(name).collect();
        for name in &names {
            let key = ObjectKey::new(NAMESPACE, name);
            match self.client.delete::<Deployment>(&key, Delete::background()).await {
                Err(error) if !error.is_not_found() => return Err(error.into()),
                _ => {}
            }
        }
        let pods = self.client.resource(&Pod::RESOURCE).metadata_only();
        let options = ListOptions {
            label_selector: Some(format!("app in ({})", names.join(","))),
            limit: Some(1),
            ..ListOptions::default()
        };
        let give_up = self.clock.monotonic() + self.patience;
        loop {
            self.check_alive(manager)?;
            let page = pods.list_page(Some(NAMESPACE), &options, None).await?;
            if page.first::<PartialObjectMetadata>().await?.is_none() {
                return Ok(());
            }
            if self.clock.monotonic() > give_up {
                return Err(format!("the storm's pods: not gone after {:?}", self.patience).into());
            }
            self.clock.sleep(POLL).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_storm_is_divided_among_deployments() {
        let of = |pods| sizes(pods).collect::<Vec<_>>();
        assert_eq!(of(250), [100, 100, 50]);
        assert_eq!(of(100), [100]);
        assert!(of(0).is_empty());
    }
}
