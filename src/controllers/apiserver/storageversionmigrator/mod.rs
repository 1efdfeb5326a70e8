//! Rewrites the stored objects of a resource in its current storage version, one migration of a
//! resource at a time. Upstream: `pkg/controller/storageversionmigrator`.
//!
//! Three queues work on a migration one after the other: `serializer` marks it as running,
//! `freshness` records the version up to which objects are to be migrated, `migrate` patches them.
//! Each writes one condition or field of the status, and that change queues the next.

mod freshness;
mod migrate;
mod serializer;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::cache::{HistoryVersion, Lister};
use crate::client::{ApiResource, Client, Discovery};
use crate::clock::SharedClock;
use crate::controllers::runner::{Change, keys};
use crate::controllers::{Controller, Error, Queue, QueuePolicy};
use crate::objects::{
    Condition, GroupResource, ResourceType, StorageVersionMigration, StorageVersionMigrationStatus,
    Timestamp,
};
use crate::options::Release;

const RUNNING: &str = "Running";
const SUCCEEDED: &str = "Succeeded";
const FAILED: &str = "Failed";

const VERSIONS_QUEUE: &str = "resource-version-controller";
const WORKERS: usize = 5;
/// The factor for rate and burst of requests: a migration sends many.
const FASTER: (f64, u32) = (20.0, 100);
/// How long a resource may be missing in discovery: it may have been defined just now.
const DISCOVERY_GRACE_PERIOD: Duration = Duration::from_mins(1);

struct Migrator {
    name: &'static str,
    client: Client,
    clock: SharedClock,
    migrations: Lister<StorageVersionMigration>,
    /// Whether objects are rewritten, and their number shown, as in 1.37.
    counts_objects: bool,
    /// The newest version that this controller wrote of each migration.
    written: Mutex<HistoryVersion>,
}

/// The controller `storage-version-migrator-controller`; idle without the gate
/// InformerResourceVersion.
pub fn controller(c: &mut Controller) -> Result<(), String> {
    if !c.feature("InformerResourceVersion") {
        return Ok(());
    }
    if !c.options().enable_garbage_collector {
        return Err("storage version migrator requires garbage collector".to_owned());
    }
    let (qps, burst) = FASTER;
    let migrations = c.lister::<StorageVersionMigration>();
    let this = Arc::new(Migrator {
        name: c.name(),
        client: c.client().with_rate(qps, burst),
        clock: c.clock(),
        migrations: migrations.clone(),
        counts_objects: c.options().release() >= Release::V1_37,
        written: Mutex::default(),
    });
    let to_migrate = c.queue(QueuePolicy::default().logged_as(log::Level::Info));
    let to_date = c.queue_named(VERSIONS_QUEUE, QueuePolicy::default().logged_as(log::Level::Info));
    // Upstream gives both queues one name.
    let in_turn = c.queue_named(VERSIONS_QUEUE, QueuePolicy::default());
    c.watch(&migrations, &to_migrate, keys::of_current(|_| true));
    c.watch(&migrations, &to_date, keys::of_current(|_| true));
    c.watch(
        &migrations,
        &in_turn,
        |change: Change<'_, StorageVersionMigration>, queue: &Queue<GroupResource>| {
            queue.add(change.object().spec.resource.clone());
        },
    );
    c.sync_by(WORKERS, to_migrate, &this, Migrator::migrate);
    c.sync_by(1, to_date, &this, Migrator::note_version);
    c.sync_by(1, in_turn, &this, Migrator::take_turns);
    Ok(())
}

/// # Errors
/// While the resources of its group are not known: it may be one of them.
fn find(served: &Discovery, resource: &GroupResource) -> Result<Option<ApiResource>, Error> {
    let is_it = |found: &&ApiResource| {
        resource.group == *found.resource.group && resource.resource == *found.resource.plural
    };
    if let Some(found) = served.preferred().find(is_it) {
        return Ok(Some(found.clone()));
    }
    let group_of =
        |version: &str| version.split_once('/').map_or("", |(group, _)| group).to_owned();
    let unknown = served.failures.iter().find(|(version, _)| *resource.group == group_of(version));
    match unknown {
        Some((version, why)) => Err(Error::NotYet(format!("{resource}: {version}: {why}"))),
        None => Ok(None),
    }
}

/// Upstream: `GroupVersionResource.String`.
fn text(resource: &ResourceType) -> String {
    format!("{}/{}, Resource={}", resource.group, resource.version, resource.plural)
}

/// The number of a resource version that is well formed. Upstream: `isWellFormed`.
fn version(text: &str) -> Option<u64> {
    let is_well_formed = !text.starts_with('0') && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_well_formed)
}

/// Upstream: `InvalidResourceVersion`.
fn malformed(version: &str) -> String {
    format!("resource version is not well formed: {version}")
}

/// Whether the migration has ended, by success or failure.
fn is_terminal(status: &StorageVersionMigrationStatus) -> bool {
    status.is_true(SUCCEEDED) || status.is_true(FAILED)
}

/// `status` with this message of the condition Running, if that is true.
fn with_progress(
    status: &StorageVersionMigrationStatus,
    message: String,
) -> StorageVersionMigrationStatus {
    let mut status = status.clone();
    let running = |known: &&mut Condition| known.type_ == RUNNING && known.status == "True";
    if let Some(running) = status.conditions.iter_mut().find(running) {
        running.message = Some(message);
    }
    status
}

/// `status` with a true condition of this type; an existing one stays as it is. Upstream:
/// `setStatusConditions`.
fn with_condition(
    status: &StorageVersionMigrationStatus,
    name: &str,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> StorageVersionMigrationStatus {
    let mut status = status.clone();
    let known = status.condition(name).map(|condition| &*condition.status);
    if !matches!(known, Some("True" | "False")) {
        status.conditions.push(Condition {
            type_: name.to_owned(),
            status: "True".to_owned(),
            last_transition_time: Some(now.truncate_to_secs()),
            reason: Some(reason.to_owned()),
            message: Some(message.to_owned()),
            ..Condition::default()
        });
    }
    status
}

impl Migrator {
    /// Writes `status`; returns the migration with it.
    async fn write(
        &self,
        migration: &StorageVersionMigration,
        status: &StorageVersionMigrationStatus,
    ) -> Result<StorageVersionMigration, Error> {
        let written = self.client.update_status(migration, status).await?;
        let at = self.migrations.written_at(written.meta.resource_version);
        let mut newest = self.written.lock();
        *newest = at.max(*newest);
        Ok(written)
    }

    /// Fails while the cache is older than the last write: it shows a former state of the
    /// migration.
    fn is_current(&self) -> Result<(), Error> {
        let (written, seen) = (*self.written.lock(), self.migrations.seen());
        match seen < written {
            true => Err(Error::Stale(format!(
                "read version: {} is not as new as written version: {}",
                seen.version, written.version
            ))),
            false => Ok(()),
        }
    }

    async fn fail(&self, migration: &StorageVersionMigration, why: &str) -> Result<(), Error> {
        let reason = "StorageVersionMigrationFailed";
        let now = self.clock.now();
        let status = with_condition(&migration.status, FAILED, reason, why, now);
        self.write(migration, &status).await.map(drop)
    }

    /// The resource in its preferred version; `None` if it is not served.
    async fn served(&self, resource: &GroupResource) -> Result<Option<ApiResource>, Error> {
        find(&self.client.discover().await?, resource)
    }

    /// Whether `migration` was created less than [`DISCOVERY_GRACE_PERIOD`] ago: a resource that
    /// discovery lacks may be new, and not served yet.
    fn is_in_discovery_grace_period(&self, migration: &StorageVersionMigration) -> bool {
        let created = migration.meta.creation_timestamp;
        created.is_some_and(|created| created + DISCOVERY_GRACE_PERIOD > self.clock.now())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::objects::{Pod, ReplicaSet, Resource};

    #[test]
    fn resources_are_written_as_upstream_writes_them() {
        assert_eq!(text(&Pod::RESOURCE), "/v1, Resource=pods");
        assert_eq!(text(&ReplicaSet::RESOURCE), "apps/v1, Resource=replicasets");
    }

    #[test]
    fn versions_are_positive_decimal_numbers() {
        for (text, number) in
            [("1", Some(1)), ("90", Some(90)), ("", None), ("0", None), ("07", None), ("+7", None)]
        {
            assert_eq!(version(text), number, "{text}");
        }
    }

    #[test]
    fn a_resource_of_a_group_that_cannot_be_read_is_not_missing() {
        let served = |failures: &[&str]| Discovery {
            resources: vec![ApiResource {
                resource: ReplicaSet::RESOURCE,
                verbs: Vec::new(),
                preferred: true,
            }],
            failures: failures.iter().map(|version| (version.to_string(), "503".into())).collect(),
        };
        let find = |group: &str, resource: &str, failures: &[&str]| {
            let resource = GroupResource { group: group.into(), resource: resource.into() };
            find(&served(failures), &resource)
        };
        let found = |found: Result<Option<ApiResource>, Error>| found.unwrap().is_some();
        assert!(found(find("apps", "replicasets", &["apps/v2"])));
        assert!(!found(find("apps", "widgets", &["v1", "x.io/v1"])));
        for (group, failure) in [("apps", "apps/v1"), ("", "v1")] {
            let error = find(group, "widgets", &[failure]).unwrap_err();
            assert!(matches!(&error, Error::NotYet(why) if why.contains("503")), "{error}");
        }
    }

    #[test]
    fn progress_is_the_message_of_a_running_migration() {
        for (holds, message) in [("True", "1 of 2"), ("False", "m")] {
            let status: StorageVersionMigrationStatus = serde_json::from_value(json!({
                "conditions": [
                    {"type": RUNNING, "status": holds, "reason": "r", "message": "m"},
                    {"type": FAILED, "status": "True", "reason": "r", "message": "n"},
                ],
            }))
            .unwrap();
            let shown = with_progress(&status, "1 of 2".to_owned());
            let messages = shown.conditions.iter().map(|known| known.message.as_deref().unwrap());
            assert_eq!(messages.collect::<Vec<_>>(), [message, "n"], "{holds}");
        }
    }

    #[test]
    fn a_condition_is_set_once() {
        let now = Timestamp::from_secs(1_000_000);
        let status = |conditions| -> StorageVersionMigrationStatus {
            serde_json::from_value(json!({"conditions": conditions})).unwrap()
        };
        let known = |holds: &str| {
            status(json!([{"type": "Running", "status": holds, "reason": "r", "message": "m",
                "lastTransitionTime": "2026-01-01T00:00:00Z"}]))
        };
        for (before, added) in
            [(status(json!(null)), true), (known("True"), false), (known("False"), false)]
        {
            let after = with_condition(&before, RUNNING, "reason", "message", now);
            assert_eq!(after != before, added);
        }
        let both = with_condition(&known("True"), FAILED, "reason", "", now);
        assert_eq!(both.conditions.len(), 2);
        assert_eq!(
            serde_json::to_value(&both.conditions[1]).unwrap(),
            json!({"type": "Failed", "status": "True", "reason": "reason", "message": "",
                "lastTransitionTime": now})
        );
        assert!(is_terminal(&both) && !is_terminal(&known("True")));
    }
}
