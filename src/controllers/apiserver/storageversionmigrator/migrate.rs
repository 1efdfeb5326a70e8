//! The migration itself: a patch without a change for each object makes the API server store it in
//! the current version. Upstream: `SVMController`.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::{
    Migrator, SUCCEEDED, is_terminal, malformed_message, parse_version, resource_text,
    with_condition, with_progress,
};
use crate::client::{self, ApiResource, ListOptions, Patch};
use crate::controllers::{Error, Next, SyncResult};
use crate::objects::{
    Meta, ObjectKey, PartialObjectMetadata, ResourceType, StorageVersionMigration,
    StorageVersionMigrationStatus,
};
use crate::options::Release;

/// The time between two writes of the number of migrated objects (1.37).
const PROGRESS_PERIOD: Duration = Duration::from_secs(10);

impl Migrator {
    /// Patches all objects of the resource that are not newer than the recorded version, and ends
    /// the migration: the sync of the third queue.
    pub(super) async fn migrate(self: Arc<Self>, key: ObjectKey) -> SyncResult {
        self.require_current()?;
        let Some(migration) = self.migrations.get(&key) else { return Ok(Next::Done) };
        let status = &migration.status;
        if is_terminal(status) || status.resource_version.is_empty() {
            return Ok(Next::Done);
        }
        let Some(found) = self.find_served(&migration.spec.resource).await? else {
            if self.is_in_discovery_grace_period(&migration) {
                let why = "resource does not exist in rest mapper, requeuing to attempt again";
                return Err(Error::NotYet(why.to_owned()));
            }
            return self.fail_unhandled(&migration, "unable to obtain GVR from discovery").await;
        };
        if !has_gc_monitor(&found) {
            let why = format!("no monitor found for resource {}", resource_text(&found.resource));
            return Err(Error::NotYet(why));
        }
        let Some(newest) = parse_version(&status.resource_version) else {
            let why = "error comparing resource versions between GC and SVM resource";
            let why = format!("{why}: {}", malformed_message(&status.resource_version));
            return self.fail_unhandled(&migration, &why).await;
        };
        let verbs = self.client.resource(&found.resource).metadata_only();
        let listed = verbs.list::<PartialObjectMetadata>(None, &ListOptions::default()).await?;
        let listed_version = parse_version(&listed.resource_version).unwrap_or(0);
        if listed_version < newest {
            return Err(Error::NotYet(format!(
                "GC cache is not up to date, requeuing to attempt again. \
                 gcListResourceVersion: {listed_version}, listResourceVersion: {newest}"
            )));
        }
        // A newer object has been written in the current version already.
        let mut outdated: Vec<Meta> = listed.items.into_iter().map(|object| object.meta).collect();
        outdated.retain(|meta| meta.resource_version <= newest);
        let mut progress = Progress {
            migration: StorageVersionMigration::clone(&migration),
            migrated: 0,
            total: outdated.len(),
            written_at: self.clock.monotonic(),
        };
        for meta in outdated {
            match self.patch_object(&found.resource, &meta).await {
                // Another client has changed or deleted it: it needs no migration any more.
                Err(error) if error.is_conflict() || self.is_deleted(&error) => {}
                Err(error) if is_retriable(&error) => return Err(error.into()),
                Err(error) => {
                    let object = meta.key();
                    log::error!("{}: {key}: failed to migrate {object}: {error}", self.name);
                    progress.migration.status = self.status_with_progress(&progress);
                    let why = Error::from(error).message();
                    return self.fail_unhandled(&progress.migration, &why).await;
                }
                Ok(()) => {}
            }
            progress.migrated += 1;
            if self.clock.monotonic() >= progress.written_at + PROGRESS_PERIOD {
                self.write_progress(&key, &mut progress).await;
            }
        }
        let status = self.status_with_progress(&progress);
        let reason = "StorageVersionMigrationSucceeded";
        let status = with_condition(&status, SUCCEEDED, reason, "", self.clock.now());
        self.write_status(&progress.migration, &status).await?;
        Ok(Next::Done)
    }

    /// Marks the migration as failed for good, and ends the sync.
    async fn fail_unhandled(&self, migration: &StorageVersionMigration, why: &str) -> SyncResult {
        let why = format!("migration encountered unhandled error: {why}");
        self.mark_failed(migration, &why).await?;
        Ok(Next::Done)
    }

    /// Writes the number of migrated objects into the status. A failure does not end the migration.
    async fn write_progress(&self, key: &ObjectKey, progress: &mut Progress) {
        let status = self.status_with_progress(progress);
        if status != progress.migration.status {
            match self.write_status(&progress.migration, &status).await {
                Ok(written) => progress.migration = written,
                Err(error) => {
                    log::info!("{}: {key}: its progress is not shown: {error}", self.name);
                    if let Some(cached) = self.migrations.get(key) {
                        progress.migration = StorageVersionMigration::clone(&cached);
                    }
                }
            }
        }
        progress.written_at = self.clock.monotonic();
    }

    /// Returns whether a patch failed because the object was deleted. Only with merge patches,
    /// since 1.37: an apply to a deleted object causes a conflict instead.
    fn is_deleted(&self, error: &client::Error) -> bool {
        self.release >= Release::V1_37 && error.is_not_found() && error.reason() == Some("NotFound")
    }

    /// Returns the migration's status, since 1.37 with the progress in it.
    fn status_with_progress(&self, progress: &Progress) -> StorageVersionMigrationStatus {
        let Progress { migration, migrated, total, .. } = progress;
        match self.release >= Release::V1_37 {
            true => with_progress(
                &migration.status,
                format!("The migration is running: {migrated} of {total} objects migrated"),
            ),
            false => migration.status.clone(),
        }
    }

    /// Patches the object without a change, so that the API server stores it in the current
    /// version.
    async fn patch_object(&self, resource: &ResourceType, meta: &Meta) -> client::Result<()> {
        let patch = match self.release >= Release::V1_37 {
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

/// The progress of a migration.
struct Progress {
    /// The migration as it was last written.
    migration: StorageVersionMigration,
    migrated: usize,
    total: usize,
    /// The monotonic time at which the progress was last written.
    written_at: Duration,
}

/// Builds the body of an apply that changes nothing. With the uid, a deleted object is not created
/// again. With the version, an object that was created again causes a conflict and not a validation
/// error.
fn apply_body(resource: &ResourceType, meta: &Meta) -> serde_json::Value {
    json!({
        "apiVersion": resource.api_version(), "kind": resource.kind,
        "metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version.to_string()},
    })
}

/// Builds the body of a merge patch that changes nothing. It creates no object, so it needs no uid.
/// 1.37: pull request 138874.
fn merge_body(resource: &ResourceType, meta: &Meta) -> serde_json::Value {
    json!({
        "apiVersion": resource.api_version(), "kind": resource.kind,
        "metadata": {"resourceVersion": meta.resource_version.to_string()},
    })
}

/// Returns whether the garbage collector watches the resource: upstream migrates the objects in the
/// collector's cache.
fn has_gc_monitor(found: &ApiResource) -> bool {
    let ResourceType { plural, group, .. } = &found.resource;
    let is_event = plural == "events" && matches!(group.as_ref(), "" | "events.k8s.io");
    found.supports(&["delete", "list", "watch"]) && !is_event
}

/// Returns whether a retry may succeed. Upstream: `isRetriableError`.
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

    use futures_lite::future::block_on;
    use parking_lot::Mutex;
    use serde_json::Value;

    use super::super::RUNNING;
    use super::*;
    use crate::cache::{Indexer, Lister};
    use crate::client::testing::{Received, answering_requests};
    use crate::client::{Client, Failure, FailureBody, Status};
    use crate::clock::FakeClock;
    use crate::objects::{Resource, StorageVersionMigration, Timestamp, Uid};

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

    const TEXT: &str = "The migration is running";

    /// A migration of the ConfigMaps up to version 7, which is running.
    fn running_migration() -> Value {
        let running = json!({ "type": RUNNING, "status": "True", "reason": "r", "message": TEXT });
        json!({
            "metadata": { "name": "maps" },
            "spec": { "resource": { "group": "", "resource": "configmaps" } },
            "status": { "resourceVersion": "7", "conditions": [running] },
        })
    }

    /// The answer of a server to one request about ConfigMaps, two of which are to be migrated. The
    /// patch of the first one takes [`PROGRESS_PERIOD`], that of the second one is answered with
    /// `code`.
    fn answer(request: &Received, (code, reason): (u16, &str), clock: &FakeClock) -> (u16, Value) {
        let item = |name: &str, version: &str| {
            json!({ "metadata": {
                "namespace": "ns", "name": name, "uid": name, "resourceVersion": version,
            } })
        };
        let resource = json!({
            "resource": "configmaps", "responseKind": { "kind": "ConfigMap" },
            "scope": "Namespaced", "verbs": ["delete", "list", "patch", "watch"],
        });
        let version = json!({ "version": "v1", "resources": [resource] });
        let group = json!({ "metadata": { "name": "" }, "versions": [version] });
        let words: Vec<&str> = request.line().split([' ', '?']).collect();
        match words[..2] {
            ["GET", "/api"] => (200, json!({ "kind": "APIGroupDiscoveryList", "items": [group] })),
            ["GET", "/apis"] => (200, json!({})),
            ["GET", "/api/v1/configmaps"] => {
                let items = [item("first", "3"), item("second", "7"), item("newer", "8")];
                let metadata = json!({ "resourceVersion": "10" });
                (200, json!({ "kind": "List", "metadata": metadata, "items": items }))
            }
            ["PATCH", "/api/v1/namespaces/ns/configmaps/first"] => {
                clock.advance(PROGRESS_PERIOD);
                (200, item("first", "11"))
            }
            ["PATCH", "/api/v1/namespaces/ns/configmaps/second"] if code == 200 => {
                (200, item("second", "12"))
            }
            ["PATCH", "/api/v1/namespaces/ns/configmaps/second"] => {
                let status = json!({ "kind": "Status", "code": code, "reason": reason });
                (code, status)
            }
            ["PUT", path] if path.ends_with("/storageversionmigrations/maps/status") => {
                let mut written = request.json();
                written["metadata"]["resourceVersion"] = "13".into();
                (200, written)
            }
            _ => panic!("{}", request.line()),
        }
    }

    /// The patches of a migration, as their types and whether they name the uid; and the statuses
    /// that it writes, as the message of Running and the types of the other conditions.
    #[derive(Debug, Default, PartialEq)]
    struct Written {
        patches: Vec<(String, bool)>,
        statuses: Vec<(String, Vec<String>)>,
    }

    impl Written {
        fn note(&mut self, request: &Received) {
            if request.line().starts_with("PATCH") {
                let names_uid = request.json()["metadata"]["uid"].is_string();
                let kind = request.header("content-type").unwrap_or_default();
                self.patches.push((kind.to_owned(), names_uid));
            }
            if request.line().starts_with("PUT") {
                let body = request.json();
                let [running, others @ ..] = &body["status"]["conditions"].as_array().unwrap()[..]
                else {
                    panic!("{body}");
                };
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                let others = others.iter().map(|other| text(&other["type"])).collect();
                self.statuses.push((text(&running["message"]), others));
            }
        }
    }

    /// Runs the migration as a manager of `release`.
    fn migrate(release: Release, second: (u16, &'static str)) -> Written {
        let clock = FakeClock::new(Timestamp::from_secs(1_000_000));
        let written = Arc::<Mutex<Written>>::default();
        let (noted, time) = (written.clone(), clock.clone());
        let client: Client = block_on(answering_requests(move |request| {
            noted.lock().note(request);
            answer(request, second, &time)
        }));
        let cache = Arc::new(Indexer::<StorageVersionMigration>::new());
        cache.insert(Arc::new(serde_json::from_value(running_migration()).unwrap()));
        let migrator = Migrator {
            name: "storage-version-migrator-controller",
            client,
            clock,
            migrations: Lister::new(cache),
            release,
            written: Mutex::default(),
        };
        let ended = block_on(Arc::new(migrator).migrate(ObjectKey::cluster("maps")));
        assert_eq!(ended.unwrap(), Next::Done);
        std::mem::take(&mut *written.lock())
    }

    /// Pull requests 138874 and 138875.
    #[test]
    fn since_1_37_patches_are_merged_and_the_status_shows_their_number() {
        const APPLY: (&str, bool) = ("application/apply-patch+yaml", true);
        const MERGE: (&str, bool) = ("application/merge-patch+json", false);
        let (done, part, all) = ((200, ""), &["1 of 2", "1 of 2"], &["1 of 2", "2 of 2"]);
        let (conflict, deleted, forbidden) =
            ((409, "Conflict"), (404, "NotFound"), (403, "Forbidden"));
        // The release, the answer to the second patch; the patches, the progress that each written
        // status shows, and the condition of the last one.
        for (release, second, patch, progress, end) in [
            (Release::V1_36, done, APPLY, None, "Succeeded"),
            (Release::V1_36, conflict, APPLY, None, "Succeeded"),
            (Release::V1_36, deleted, APPLY, None, "Failed"),
            (Release::V1_36, forbidden, APPLY, None, "Failed"),
            (Release::V1_37, done, MERGE, Some(all), "Succeeded"),
            (Release::V1_37, conflict, MERGE, Some(all), "Succeeded"),
            (Release::V1_37, deleted, MERGE, Some(all), "Succeeded"),
            (Release::V1_37, forbidden, MERGE, Some(part), "Failed"),
        ] {
            let found = migrate(release, second);
            let (kind, names_uid) = patch;
            let patches = vec![(kind.to_owned(), names_uid); 2];
            let statuses = match progress {
                None => vec![(TEXT.to_owned(), vec![end.to_owned()])],
                Some([shown, last]) => vec![
                    (format!("{TEXT}: {shown} objects migrated"), vec![]),
                    (format!("{TEXT}: {last} objects migrated"), vec![end.to_owned()]),
                ],
            };
            assert_eq!(found, Written { patches, statuses }, "{release} {second:?}");
        }
    }
}
