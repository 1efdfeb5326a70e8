//! The migration itself: a patch without a change for each object makes the API server store it in
//! the current version. Upstream: `SVMController`.

use std::sync::Arc;

use serde_json::json;

use super::{Migrator, SUCCEEDED, is_terminal, with_condition};
use crate::client::{self, ApiResource, ListOptions, Patch};
use crate::controllers::{Error, Next, SyncResult};
use crate::objects::{Meta, ObjectKey, PartialObjectMetadata, ResourceType};

impl Migrator {
    pub(super) async fn migrate(self: Arc<Self>, key: ObjectKey) -> SyncResult {
        let Some(migration) = self.migrations.get(&key) else { return Ok(Next::Done) };
        let status = &migration.status;
        if is_terminal(status) || status.resource_version.is_empty() {
            return Ok(Next::Done);
        }
        let fail = async |why: &str| {
            let why = format!("migration encountered unhandled error: {why}");
            self.fail(&migration, &why).await.map(|()| Next::Done)
        };
        let found = self.served(&migration.spec.resource).await?;
        let Some(found) = found.filter(is_collected) else {
            if self.is_young(&migration) {
                let why = "resource does not exist in GC, requeuing to attempt again";
                return Err(Error::NotYet(why.to_owned()));
            }
            return fail("resource does not exist in GC").await;
        };
        let Ok(newest) = status.resource_version.parse::<u64>() else {
            let why = format!("resource version {:?} is not valid", &*status.resource_version);
            return fail(&why).await;
        };
        match self.rewrite(&found.resource, newest).await {
            Ok(()) => {}
            Err(error) if is_retriable(&error) => return Err(error.into()),
            Err(error) => {
                log::error!("{}: {key}: failed to migrate: {error}", self.name);
                return fail(&Error::from(error).message()).await;
            }
        }
        let reason = "StorageVersionMigrationSucceeded";
        let status = with_condition(status, SUCCEEDED, reason, "", self.clock.now());
        self.write(&migration, &status).await?;
        Ok(Next::Done)
    }

    /// Patches all objects that are no newer than `newest`.
    async fn rewrite(&self, resource: &ResourceType, newest: u64) -> client::Result<()> {
        let verbs = self.client.resource(resource).metadata_only();
        let all = verbs.list::<PartialObjectMetadata>(None, &ListOptions::default()).await?.items;
        for PartialObjectMetadata { meta } in all {
            // One that is newer has been written in the current version.
            if meta.resource_version > newest {
                continue;
            }
            let body = body(resource, &meta);
            let patch = Patch::Apply { manager: self.name.to_owned(), force: false, body };
            match verbs.patch::<PartialObjectMetadata>(&meta.key(), &patch).await {
                // It was changed, or deleted, by another: it needs no migration any more.
                Err(error) if !error.is_conflict() => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Changes nothing. The uid keeps a deleted object from being created again, and the version one
/// that was created again from being refused as malformed.
fn body(resource: &ResourceType, meta: &Meta) -> serde_json::Value {
    json!({
        "apiVersion": resource.api_version(), "kind": resource.kind,
        "metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version.to_string()},
    })
}

/// Whether the garbage collector watches it: upstream migrates what that has in its cache.
fn is_collected(found: &ApiResource) -> bool {
    let ResourceType { plural, group, .. } = &found.resource;
    let is_event = plural == "events" && matches!(group.as_ref(), "" | "events.k8s.io");
    found.supports(&["delete", "list", "watch"]) && !is_event
}

/// Whether another try may succeed. Upstream: `isRetriableError`.
fn is_retriable(error: &client::Error) -> bool {
    error.code().is_none_or(|code| matches!(code, 429 | 500 | 503 | 504))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::{Resource, StorageVersionMigration, Uid};

    #[test]
    fn a_patch_names_the_object_and_changes_nothing() {
        let meta = Meta { uid: Uid::new("u"), resource_version: 7, ..Meta::default() };
        assert_eq!(
            body(&StorageVersionMigration::RESOURCE, &meta),
            json!({
                "apiVersion": "storagemigration.k8s.io/v1beta1", "kind": "StorageVersionMigration",
                "metadata": {"uid": "u", "resourceVersion": "7"},
            })
        );
    }
}
