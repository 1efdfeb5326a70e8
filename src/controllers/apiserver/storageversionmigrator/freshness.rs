//! The version up to which objects are migrated: that of the resource when its migration begins.
//! Upstream: `ResourceVersionController`.

use std::sync::Arc;

use super::{Migrator, RUNNING, is_terminal, malformed_message, parse_version, resource_text};
use crate::client::{ApiResource, ListOptions};
use crate::controllers::{Error, Next, SyncResult};
use crate::objects::{Istr, ObjectKey, PartialObjectMetadata};

/// An invalid name: no namespace and no object has it.
const FAKE_NAME: &str = "@fake:svm_ns!";
const VERBS: [&str; 3] = ["update", "patch", "list"];

impl Migrator {
    /// Records the newest version of the resource in the status of a migration that has begun, or
    /// fails the migration if the resource cannot be migrated.
    pub(super) async fn record_resource_version(self: Arc<Self>, key: ObjectKey) -> SyncResult {
        self.require_current()?;
        let Some(migration) = self.migrations.get(&key) else { return Ok(Next::Done) };
        let status = &migration.status;
        if !status.is_true(RUNNING) || is_terminal(status) || !status.resource_version.is_empty() {
            return Ok(Next::Done);
        }
        let Some(found) = self.find_served(&migration.spec.resource).await? else {
            if self.is_in_discovery_grace_period(&migration) {
                let why = "resource does not exist in our rest mapper, requeuing to attempt again";
                return Err(Error::NotYet(why.to_owned()));
            }
            self.mark_failed(&migration, "resource does not exist in discovery").await?;
            return Ok(Next::Done);
        };
        if !found.supports(&VERBS) {
            let why = format!(
                "resource {:?} does not support discovery operations: [{}]",
                resource_text(&found.resource),
                VERBS.join(" ")
            );
            log::error!("{}: {key}: {why}", self.name);
            self.mark_failed(&migration, &why).await?;
            return Ok(Next::Done);
        }
        let newest = self.newest_version(&found).await?;
        if parse_version(&newest).is_none() {
            let (resource, why) = (resource_text(&found.resource), malformed_message(&newest));
            let why = format!("latest resourceVersion for {resource} is not valid: {why}");
            self.mark_failed(&migration, &why).await?;
            return Ok(Next::Done);
        }
        let mut status = status.clone();
        status.resource_version = Istr::new(&newest);
        self.write_status(&migration, &status).await?;
        Ok(Next::Done)
    }

    /// Returns the newest version of the resource: that of a list which is always empty, so that no
    /// object is read.
    async fn newest_version(&self, found: &ApiResource) -> Result<String, Error> {
        let name_selector = match found.resource.namespaced {
            true => None,
            false => Some(format!("metadata.name={FAKE_NAME}")),
        };
        let options =
            ListOptions { field_selector: name_selector, limit: Some(1), ..ListOptions::default() };
        let resource = self.client.resource(&found.resource).metadata_only();
        let list = resource.list::<PartialObjectMetadata>(Some(FAKE_NAME), &options).await;
        let doing = "error getting latest resourceVersion";
        Ok(list.map_err(|error| Error::during(doing, error))?.resource_version)
    }
}
