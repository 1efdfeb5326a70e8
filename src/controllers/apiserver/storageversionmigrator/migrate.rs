//! The migration itself: a patch without a change for each object makes the API server store it in
//! the current version. Upstream: `SVMController`.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::{
    Migrator, SUCCEEDED, is_terminal, malformed, text, version, with_condition, with_progress,
};
use crate::client::{self, ApiResource, ListOptions, Patch};
use crate::controllers::{Error, Next, SyncResult};
use crate::objects::{
    Meta, ObjectKey, PartialObjectMetadata, ResourceType, StorageVersionMigration,
    StorageVersionMigrationStatus,
};

/// The time between two writes of the number of migrated objects (1.37).
const PROGRESS_PERIOD: Duration = Duration::from_secs(10);

impl Migrator {
    pub(super) async fn migrate(self: Arc<Self>, key: ObjectKey) -> SyncResult {
        self.is_current()?;
        let Some(migration) = self.migrations.get(&key) else { return Ok(Next::Done) };
        let status = &migration.status;
        if is_terminal(status) || status.resource_version.is_empty() {
            return Ok(Next::Done);
        }
        let fail = async |why: &str| {
            let why = format!("migration encountered unhandled error: {why}");
            self.fail(&migration, &why).await.map(|()| Next::Done)
        };
        let Some(found) = self.served(&migration.spec.resource).await? else {
            if self.is_in_discovery_grace_period(&migration) {
                let why = "resource does not exist in rest mapper, requeuing to attempt again";
                return Err(Error::NotYet(why.to_owned()));
            }
            return fail("unable to obtain GVR from discovery").await;
        };
        if !is_collected(&found) {
            let why = format!("no monitor found for resource {}", text(&found.resource));
            return Err(Error::NotYet(why));
        }
        let Some(newest) = version(&status.resource_version) else {
            let why = "error comparing resource versions between GC and SVM resource";
            return fail(&format!("{why}: {}", malformed(&status.resource_version))).await;
        };
        let verbs = self.client.resource(&found.resource).metadata_only();
        let all = verbs.list::<PartialObjectMetadata>(None, &ListOptions::default()).await?;
        let seen = version(&all.resource_version).unwrap_or(0);
        if seen < newest {
            return Err(Error::NotYet(format!(
                "GC cache is not up to date, requeuing to attempt again. \
                 gcListResourceVersion: {seen}, listResourceVersion: {newest}"
            )));
        }
        // A newer object has been written in the current version already.
        let old = all.items.into_iter().filter(|object| object.meta.resource_version <= newest);
        let old: Vec<Meta> = old.map(|object| object.meta).collect();
        let mut progress = Progress {
            migration: StorageVersionMigration::clone(&migration),
            done: 0,
            all: old.len(),
            written: self.clock.monotonic(),
        };
        for meta in old {
            match self.rewrite(&found.resource, &meta).await {
                // Another client has changed or deleted it: it needs no migration any more.
                Err(error) if error.is_conflict() || self.is_gone(&error) => {}
                Err(error) if is_retriable(&error) => return Err(error.into()),
                Err(error) => {
                    let object = meta.key();
                    log::error!("{}: {key}: failed to migrate {object}: {error}", self.name);
                    progress.migration.status = self.status_with(&progress);
                    let why = Error::from(error).message();
                    let why = format!("migration encountered unhandled error: {why}");
                    return self.fail(&progress.migration, &why).await.map(|()| Next::Done);
                }
                Ok(()) => {}
            }
            progress.done += 1;
            if self.clock.monotonic() >= progress.written + PROGRESS_PERIOD {
                self.show(&key, &mut progress).await;
            }
        }
        let status = self.status_with(&progress);
        let reason = "StorageVersionMigrationSucceeded";
        let status = with_condition(&status, SUCCEEDED, reason, "", self.clock.now());
        self.write(&progress.migration, &status).await?;
        Ok(Next::Done)
    }

    /// Writes how many objects are migrated. A failure does not end the migration.
    async fn show(&self, key: &ObjectKey, progress: &mut Progress) {
        let status = self.status_with(progress);
        if status != progress.migration.status {
            match self.write(&progress.migration, &status).await {
                Ok(written) => progress.migration = written,
                Err(error) => {
                    log::info!("{}: {key}: its progress is not shown: {error}", self.name);
                    if let Some(cached) = self.migrations.get(key) {
                        progress.migration = StorageVersionMigration::clone(&cached);
                    }
                }
            }
        }
        progress.written = self.clock.monotonic();
    }

    /// Whether an error says that the object of a merge patch has been deleted. That of an apply
    /// has a conflict then.
    fn is_gone(&self, error: &client::Error) -> bool {
        self.counts_objects && error.is_not_found() && error.reason() == Some("NotFound")
    }

    fn status_with(&self, progress: &Progress) -> StorageVersionMigrationStatus {
        let Progress { migration, done, all, .. } = progress;
        match self.counts_objects {
            true => with_progress(
                &migration.status,
                format!("The migration is running: {done} of {all} objects migrated"),
            ),
            false => migration.status.clone(),
        }
    }

    async fn rewrite(&self, resource: &ResourceType, meta: &Meta) -> client::Result<()> {
        let patch = match self.counts_objects {
            true => Patch::Merge(merge_body(resource, meta)),
            false => {
                let body = apply_body(resource, meta);
                Patch::Apply { manager: self.name.to_owned(), force: false, body }
            }
        };
        let verbs = self.client.resource(resource).metadata_only();
        verbs.patch::<PartialObjectMetadata>(&meta.key(), &patch).await.map(drop)
    }
}

/// How far a migration is.
struct Progress {
    /// As it was written last.
    migration: StorageVersionMigration,
    done: usize,
    all: usize,
    /// When it was written last, in monotonic time.
    written: Duration,
}

/// An apply that changes nothing. With the uid, a deleted object is not created again. With the
/// version, an object that was created again causes a conflict and not a validation error.
fn apply_body(resource: &ResourceType, meta: &Meta) -> serde_json::Value {
    json!({
        "apiVersion": resource.api_version(), "kind": resource.kind,
        "metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version.to_string()},
    })
}

/// A merge patch that changes nothing. It creates no object, so it needs no uid. 1.37: pull request
/// 138874.
fn merge_body(resource: &ResourceType, meta: &Meta) -> serde_json::Value {
    json!({
        "apiVersion": resource.api_version(), "kind": resource.kind,
        "metadata": {"resourceVersion": meta.resource_version.to_string()},
    })
}

/// Whether the garbage collector watches it: upstream migrates the objects in the collector's
/// cache.
fn is_collected(found: &ApiResource) -> bool {
    let ResourceType { plural, group, .. } = &found.resource;
    let is_event = plural == "events" && matches!(group.as_ref(), "" | "events.k8s.io");
    found.supports(&["delete", "list", "watch"]) && !is_event
}

/// Whether a retry may succeed. Upstream: `isRetriableError`.
fn is_retriable(error: &client::Error) -> bool {
    error.is_reset()
        || error.is_timeout()
        || error.is_too_many_requests()
        || error.is_internal()
        || error.is_unavailable()
}

#[cfg(test)]
mod tests {
    use std::io::{self, ErrorKind};

    use super::*;
    use crate::client::{Failure, FailureBody, Status};
    use crate::objects::{Resource, StorageVersionMigration, Uid};

    #[test]
    fn only_errors_that_may_pass_are_retried() {
        let request = || "PATCH /x".to_owned();
        let answer = |code: u16, reason: &str| {
            let status = Status { code, reason: reason.to_owned(), ..Status::default() };
            let (request, body) = (request(), FailureBody::Status);
            let failure = Failure { request, code, retry_after: None, body, status };
            client::Error::Status(Box::new(failure))
        };
        let transport = |kind: ErrorKind| client::Error::Transport {
            request: request(),
            source: io::Error::from(kind).into(),
        };
        let malformed = || "malformed".into();
        for (error, expected) in [
            (answer(500, "InternalError"), true),
            (answer(500, "ServerTimeout"), true),
            (answer(504, "Timeout"), true),
            (answer(429, "TooManyRequests"), true),
            (answer(503, "ServiceUnavailable"), true),
            (answer(500, ""), false),
            (answer(500, "StoreReadError"), false),
            (answer(403, "Forbidden"), false),
            (answer(422, "Invalid"), false),
            (transport(ErrorKind::ConnectionReset), true),
            (transport(ErrorKind::UnexpectedEof), true),
            (transport(ErrorKind::ConnectionRefused), false),
            (transport(ErrorKind::TimedOut), false),
            (client::Error::Decode { request: request(), source: malformed() }, false),
            (client::Error::Request { request: request(), source: malformed() }, false),
        ] {
            assert_eq!(is_retriable(&error), expected, "{error:?}");
        }
    }

    #[test]
    fn a_patch_names_the_object_and_changes_nothing() {
        let meta = Meta { uid: Uid::new("u"), resource_version: 7, ..Meta::default() };
        assert_eq!(
            apply_body(&StorageVersionMigration::RESOURCE, &meta),
            json!({
                "apiVersion": "storagemigration.k8s.io/v1beta1", "kind": "StorageVersionMigration",
                "metadata": {"uid": "u", "resourceVersion": "7"},
            })
        );
        assert_eq!(
            merge_body(&StorageVersionMigration::RESOURCE, &meta),
            json!({
                "apiVersion": "storagemigration.k8s.io/v1beta1", "kind": "StorageVersionMigration",
                "metadata": {"resourceVersion": "7"},
            })
        );
    }
}
