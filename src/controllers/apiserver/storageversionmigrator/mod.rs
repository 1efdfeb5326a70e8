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

const VERSION_QUEUE: &str = "resource-version-controller";
const WORKERS: usize = 5;
/// The factors for rate and burst of requests: a migration sends many.
const RATE_FACTOR: f64 = 20.0;
const BURST_FACTOR: u32 = 100;
/// How long a resource may be missing in discovery: it may have been defined just now.
const DISCOVERY_GRACE_PERIOD: Duration = Duration::from_mins(1);

struct Migrator {
    name: &'static str,
    client: Client,
    clock: SharedClock,
    migrations: Lister<StorageVersionMigration>,
    /// Since 1.37 objects get merge patches, and the status shows their number.
    release: Release,
    /// The version of the newest write to any migration.
    written: Mutex<HistoryVersion>,
}

/// Sets up the controller `storage-version-migrator-controller`; idle without the gate
/// InformerResourceVersion. With it fails without the garbage collector, as upstream, which
/// migrates the objects in the collector's cache.
pub fn controller(c: &mut Controller) -> Result<(), String> {
    if !c.feature("InformerResourceVersion") {
        return Ok(());
    }
    if !c.options().enable_garbage_collector {
        return Err("storage version migrator requires garbage collector".to_owned());
    }
    let migrations = c.lister::<StorageVersionMigration>();
    let this = Arc::new(Migrator {
        name: c.name(),
        client: c.client().with_rate(RATE_FACTOR, BURST_FACTOR),
        clock: c.clock(),
        migrations: migrations.clone(),
        release: c.options().release(),
        written: Mutex::default(),
    });
    let migrate_queue = c.queue(QueuePolicy::default().logged_as(log::Level::Info));
    let version_queue =
        c.queue_named(VERSION_QUEUE, QueuePolicy::default().logged_as(log::Level::Info));
    // Upstream gives both queues one name.
    let serializer_queue = c.queue_named(VERSION_QUEUE, QueuePolicy::default());
    c.watch(&migrations, &migrate_queue, keys::of_current(|_| true));
    c.watch(&migrations, &version_queue, keys::of_current(|_| true));
    c.watch(
        &migrations,
        &serializer_queue,
        |change: Change<'_, StorageVersionMigration>, queue: &Queue<GroupResource>| {
            queue.add(change.object().spec.resource.clone());
        },
    );
    c.sync_by(WORKERS, migrate_queue, &this, Migrator::migrate);
    c.sync_by(1, version_queue, &this, Migrator::record_resource_version);
    c.sync_by(1, serializer_queue, &this, Migrator::serialize_migrations);
    Ok(())
}

/// Finds the resource in its preferred version; `None` if it is not served.
///
/// # Errors
/// When discovery could not read a version of the group: the resource may be in it.
fn find_resource(
    served: &Discovery,
    resource: &GroupResource,
) -> Result<Option<ApiResource>, Error> {
    for found in served.preferred() {
        if resource.group == *found.resource.group && resource.resource == *found.resource.plural {
            return Ok(Some(found.clone()));
        }
    }
    for (group_version, why) in &served.failures {
        let group = group_version.split_once('/').map_or("", |(group, _)| group);
        if *resource.group == *group {
            return Err(Error::NotYet(format!("{resource}: {group_version}: {why}")));
        }
    }
    Ok(None)
}

/// Formats a resource for messages. Upstream: `GroupVersionResource.String`.
fn resource_text(resource: &ResourceType) -> String {
    format!("{}/{}, Resource={}", resource.group, resource.version, resource.plural)
}

/// Returns the number of a resource version; `None` if it is not well formed. Upstream:
/// `isWellFormed`.
fn parse_version(text: &str) -> Option<u64> {
    let is_well_formed = !text.starts_with('0') && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_well_formed { text.parse().ok() } else { None }
}

/// Returns the message about a malformed resource version. Upstream: `InvalidResourceVersion`.
fn malformed_message(version: &str) -> String {
    format!("resource version is not well formed: {version}")
}

/// Returns whether the migration has ended, by success or failure.
fn is_terminal(status: &StorageVersionMigrationStatus) -> bool {
    status.is_true(SUCCEEDED) || status.is_true(FAILED)
}

/// Returns `status` with this message in the condition Running, if that is true.
fn with_progress(
    status: &StorageVersionMigrationStatus,
    message: String,
) -> StorageVersionMigrationStatus {
    let mut status = status.clone();
    let is_running = |old: &&mut Condition| old.type_ == RUNNING && old.status == "True";
    if let Some(condition) = status.conditions.iter_mut().find(is_running) {
        condition.message = Some(message);
    }
    status
}

/// Returns `status` with a true condition of this type added, unless it has one that is True or
/// False: a False one is of a phase that has ended. One that is Unknown, which nothing here writes,
/// stays beside the new one, as upstream.
/// Upstream: `setStatusConditions`.
fn with_condition(
    status: &StorageVersionMigrationStatus,
    condition_type: &str,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> StorageVersionMigrationStatus {
    let mut status = status.clone();
    let old = status.condition(condition_type).map(|condition| &*condition.status);
    if !matches!(old, Some("True" | "False")) {
        status.conditions.push(Condition {
            type_: condition_type.to_owned(),
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
    /// Writes `status`, records the version of the write for [`Migrator::require_current`], and
    /// returns the migration with it.
    async fn write_status(
        &self,
        migration: &StorageVersionMigration,
        status: &StorageVersionMigrationStatus,
    ) -> Result<StorageVersionMigration, Error> {
        let written = self.client.update_status(migration, status).await?;
        let version = self.migrations.written_at(written.meta.resource_version);
        let mut newest = self.written.lock();
        *newest = version.max(*newest);
        Ok(written)
    }

    /// Fails as stale while the cache is older than the last write to any migration: it shows a
    /// former state.
    fn require_current(&self) -> Result<(), Error> {
        let (written, seen) = (*self.written.lock(), self.migrations.seen());
        match seen < written {
            true => Err(Error::Stale(format!(
                "read version: {} is not as new as written version: {}",
                seen.version, written.version
            ))),
            false => Ok(()),
        }
    }

    /// Sets the condition Failed, which ends the migration.
    async fn mark_failed(
        &self,
        migration: &StorageVersionMigration,
        why: &str,
    ) -> Result<(), Error> {
        let reason = "StorageVersionMigrationFailed";
        let now = self.clock.now();
        let status = with_condition(&migration.status, FAILED, reason, why, now);
        self.write_status(migration, &status).await.map(drop)
    }

    /// Reads discovery, and returns the resource in its preferred version; `None` if it is not
    /// served.
    async fn find_served(&self, resource: &GroupResource) -> Result<Option<ApiResource>, Error> {
        find_resource(&self.client.discover().await?, resource)
    }

    /// Returns whether `migration` was created less than [`DISCOVERY_GRACE_PERIOD`] ago: a resource
    /// that discovery lacks may be new, and not served yet.
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
        assert_eq!(resource_text(&Pod::RESOURCE), "/v1, Resource=pods");
        assert_eq!(resource_text(&ReplicaSet::RESOURCE), "apps/v1, Resource=replicasets");
    }

    #[test]
    fn versions_are_positive_decimal_numbers() {
        for (text, number) in
            [("1", Some(1)), ("90", Some(90)), ("", None), ("0", None), ("07", None), ("+7", None)]
        {
            assert_eq!(parse_version(text), number, "{text}");
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
            find_resource(&served(failures), &resource)
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
        for (condition_status, message) in [("True", "1 of 2"), ("False", "m")] {
            let status: StorageVersionMigrationStatus = serde_json::from_value(json!({
                "conditions": [
                    {"type": RUNNING, "status": condition_status, "reason": "r", "message": "m"},
                    {"type": FAILED, "status": "True", "reason": "r", "message": "n"},
                ],
            }))
            .unwrap();
            let updated = with_progress(&status, "1 of 2".to_owned());
            let messages = updated.conditions.iter().map(|known| known.message.as_deref().unwrap());
            assert_eq!(messages.collect::<Vec<_>>(), [message, "n"], "{condition_status}");
        }
    }

    #[test]
    fn a_condition_is_set_once() {
        let now = Timestamp::from_secs(1_000_000);
        let status = |conditions| -> StorageVersionMigrationStatus {
            serde_json::from_value(json!({"conditions": conditions})).unwrap()
        };
        let known = |condition_status: &str| {
            status(
                json!([{"type": "Running", "status": condition_status, "reason": "r", "message": "m",
                "lastTransitionTime": "2026-01-01T00:00:00Z"}]),
            )
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
