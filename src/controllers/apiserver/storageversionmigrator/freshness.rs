//! The version up to which objects are migrated: that of the resource when its migration begins.
//! Upstream: `ResourceVersionController`.

use std::sync::Arc;

use super::{Migrator, RUNNING, is_terminal, malformed, text, version};
use crate::client::{ApiResource, ListOptions};
use crate::controllers::{Error, Next, SyncResult};
use crate::objects::{Istr, ObjectKey, PartialObjectMetadata};

/// A name that no namespace and no object has: it is not valid.
const NOWHERE: &str = "@fake:svm_ns!";
const VERBS: [&str; 3] = ["update", "patch", "list"];

impl Migrator {
    pub(super) async fn note_version(self: Arc<Self>, key: ObjectKey) -> SyncResult {
        self.is_current()?;
        let Some(migration) = self.migrations.get(&key) else { return Ok(Next::Done) };
        let status = &migration.status;
        if !status.is_true(RUNNING) || is_terminal(status) || !status.resource_version.is_empty() {
            return Ok(Next::Done);
        }
        let Some(found) = self.served(&migration.spec.resource).await? else {
            if self.is_in_discovery_grace_period(&migration) {
                let why = "resource does not exist in our rest mapper, requeuing to attempt again";
                return Err(Error::NotYet(why.to_owned()));
            }
            self.fail(&migration, "resource does not exist in discovery").await?;
            return Ok(Next::Done);
        };
        if !found.supports(&VERBS) {
            let why = format!(
                "resource {:?} does not support discovery operations: [{}]",
                text(&found.resource),
                VERBS.join(" ")
            );
            log::error!("{}: {key}: {why}", self.name);
            self.fail(&migration, &why).await?;
            return Ok(Next::Done);
        }
        let newest = self.newest_version(&found).await?;
        if version(&newest).is_none() {
            let (resource, why) = (text(&found.resource), malformed(&newest));
            let why = format!("latest resourceVersion for {resource} is not valid: {why}");
            self.fail(&migration, &why).await?;
            return Ok(Next::Done);
        }
        let mut status = status.clone();
        status.resource_version = Istr::new(&newest);
        self.write(&migration, &status).await?;
        Ok(Next::Done)
    }

    /// The version of a list that is always empty.
    async fn newest_version(&self, found: &ApiResource) -> Result<String, Error> {
        let options = ListOptions {
            field_selector: (!found.resource.namespaced)
                .then(|| format!("metadata.name={NOWHERE}")),
            limit: Some(1),
            ..ListOptions::default()
        };
        let resource = self.client.resource(&found.resource).metadata_only();
        let list = resource.list::<PartialObjectMetadata>(Some(NOWHERE), &options).await;
        let doing = "error getting latest resourceVersion";
        Ok(list.map_err(|error| Error::during(doing, error))?.resource_version)
    }
}
