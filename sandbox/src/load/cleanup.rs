//! The deletion of the namespace with all that is in it.

use std::time::Duration;

use super::manager_process::ManagerProcess;
use super::{NAMESPACE, NAMESPACES, POLL, Result, Row, Run};
use kube_controller_manager::client::{Delete, ListOptions};
use kube_controller_manager::objects::{
    Deployment, ObjectKey, PartialObjectMetadata, Pod, Resource,
};

/// When nothing of a namespace is deleted within this time, no manager empties it.
const DELETION_STARTS_WITHIN: Duration = Duration::from_secs(20);

impl Run {
    /// Deletes the namespace of the load and measures until it is gone. Skips the phase when the
    /// manager does not begin to delete its objects.
    pub(super) async fn delete_namespace(&mut self, manager: &mut ManagerProcess) -> Result<()> {
        const PHASE: &str = "namespace deleted";
        let mark = self.start_mark(Some(manager))?;
        let key = ObjectKey::cluster(NAMESPACE);
        let namespaces = self.client.resource(&NAMESPACES);
        match namespaces.delete(&key, Delete::new()).await {
            // Deleted by a stage that was given up.
            Err(error) if error.is_not_found() => return Ok(()),
            deleted => deleted?,
        }
        let begun = self.clock.monotonic();
        let mut touched = false;
        loop {
            self.check_alive(manager)?;
            match namespaces.get::<PartialObjectMetadata>(&key).await {
                Err(error) if error.is_not_found() => break,
                Err(error) => return Err(error.into()),
                Ok(_) => {}
            }
            let waited = self.clock.monotonic() - begun;
            if !touched && waited > Duration::from_secs(1) {
                touched = self.is_being_emptied().await?;
            }
            if !touched && waited > DELETION_STARTS_WITHIN {
                let why = "the manager runs no namespace controller: nothing was deleted";
                self.report.rows.push(Row::skipped(PHASE, why));
                return Ok(());
            }
            if waited > self.patience {
                return Err(format!("{PHASE}: not after {:?}", self.patience).into());
            }
            self.clock.sleep(POLL * 2).await;
        }
        self.add_row(PHASE, manager, mark).await?;
        let mark = self.start_mark(Some(manager))?;
        self.wait_until_settled(manager).await?;
        self.add_row("settled, empty again", manager, mark).await
    }

    /// Returns whether some Deployment or pod of the namespace has been deleted.
    async fn is_being_emptied(&self) -> Result<bool> {
        let options = ListOptions { limit: Some(1), ..ListOptions::default() };
        let pods = self.client.resource(&Pod::RESOURCE).metadata_only();
        let page = pods.list_page(Some(NAMESPACE), &options, None).await?;
        let first: Option<PartialObjectMetadata> = page.first().await?;
        let deployments: Vec<Deployment> =
            self.client.list(Some(NAMESPACE), &ListOptions::default()).await?;
        let fewer = deployments.len() < self.size.deployments;
        Ok(fewer || first.is_none_or(|pod| pod.meta.is_being_deleted()))
    }
}
