//! One migration of a resource at a time: the oldest runs, and the definition of a custom resource
//! shows it. Upstream: `MigrationRunnerController`.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::{Migrator, RUNNING, SUCCEEDED, is_terminal, with_condition};
use crate::client::Patch;
use crate::controllers::{Error, Next, SyncResult};
use crate::objects::{
    Condition, GroupResource, ObjectKey, ResourceType, StorageVersionMigration, Timestamp,
};

/// The field manager of the writes to definitions. Upstream: `MigrationRunnerControllerName`.
const FIELD_MANAGER: &str = "migration-runner-controller";

const DEFINITIONS: ResourceType = ResourceType::fixed(
    "apiextensions.k8s.io",
    "v1",
    "CustomResourceDefinition",
    "customresourcedefinitions",
    false,
);

/// The delays between attempts to write a definition that others write as well. Upstream:
/// `retry.DefaultRetry`.
const CONFLICT_BACKOFF: [Duration; 4] = [Duration::from_millis(10); 4];

/// The decision about the migrations of one resource.
#[derive(Debug, Default, PartialEq)]
struct Decision {
    /// The migrations that have ended, but are still marked as running.
    ended: Vec<Arc<StorageVersionMigration>>,
    /// The oldest migration that waits, if none runs.
    next: Option<Arc<StorageVersionMigration>>,
}

/// Selects the migrations of `resource` that have to be finished, and the one that has to be
/// started. Upstream: `getSVMsForResource`.
fn select_migrations(all: Vec<Arc<StorageVersionMigration>>, resource: &GroupResource) -> Decision {
    let mut decision = Decision::default();
    let mut is_running = false;
    let order = |migration: &StorageVersionMigration| {
        (migration.meta.creation_timestamp, migration.meta.name.clone())
    };
    for migration in all.into_iter().filter(|migration| migration.spec.resource == *resource) {
        let marked_running = migration.status.is_true(RUNNING);
        let has_ended = is_terminal(&migration.status);
        match (marked_running, has_ended) {
            (true, true) => decision.ended.push(migration),
            (true, false) => is_running = true,
            (false, true) => {}
            (false, false) => {
                let next = decision.next.as_ref();
                if next.is_none_or(|next| order(&migration) < order(next)) {
                    decision.next = Some(migration);
                }
            }
        }
    }
    if is_running {
        decision.next = None;
    }
    decision
}

impl Migrator {
    /// Marks the migrations of a resource that have ended as no longer running, and starts the next
    /// one; before that writes the same into the definition of a custom resource.
    pub(super) async fn serialize_migrations(
        self: Arc<Self>,
        resource: GroupResource,
    ) -> SyncResult {
        self.require_current()?;
        let Decision { ended, next } = select_migrations(self.migrations.list(), &resource);
        for migration in ended {
            let success = migration.status.is_true(SUCCEEDED);
            let new_status = |definition: &Value, now| finished_status(definition, success, now);
            self.apply_definition_status(&resource, new_status).await?;
            let mut status = migration.status.clone();
            for condition in status.conditions.iter_mut().filter(|old| old.type_ == RUNNING) {
                *condition = Condition {
                    type_: RUNNING.to_owned(),
                    status: "False".to_owned(),
                    reason: Some("MigrationCompleted".to_owned()),
                    message: Some("Migration completed".to_owned()),
                    observed_generation: Some(migration.meta.generation),
                    last_transition_time: Some(self.clock.now().truncate_to_secs()),
                    ..Condition::default()
                };
            }
            self.write_status(&migration, &status).await?;
        }
        if let Some(migration) = next {
            let name = &*migration.meta.name;
            let new_status = |definition: &Value, now| Some(running_status(definition, name, now));
            self.apply_definition_status(&resource, new_status).await?;
            let message = "The migration is running";
            let now = self.clock.now();
            let status =
                with_condition(&migration.status, RUNNING, "MigrationRunning", message, now);
            self.write_status(&migration, &status).await?;
        }
        Ok(Next::Done)
    }

    /// Applies the status that `new_status` returns for the definition of `resource`, if that is a
    /// custom resource; `None` needs no write. The write is conditional on the version of the
    /// definition; a conflict is retried.
    async fn apply_definition_status(
        &self,
        resource: &GroupResource,
        new_status: impl Fn(&Value, Timestamp) -> Option<Value>,
    ) -> Result<(), Error> {
        let key = ObjectKey::cluster(&format!("{}.{}", resource.resource, resource.group));
        let definitions = self.client.resource(&DEFINITIONS);
        let mut pauses = CONFLICT_BACKOFF.iter();
        loop {
            let live: Value = match definitions.get(&key).await {
                Err(error) if error.is_not_found() => return Ok(()),
                live => live?,
            };
            let Some(mut status) = new_status(&live, self.clock.now()) else { return Ok(()) };
            // An apply removes the fields that it does not contain.
            let stored = &live["status"]["storedVersions"];
            if status["storedVersions"].is_null() && !stored.is_null() {
                status["storedVersions"] = stored.clone();
            }
            let body = json!({
                "apiVersion": DEFINITIONS.api_version(), "kind": DEFINITIONS.kind,
                "metadata": {
                    "name": key.name, "resourceVersion": live["metadata"]["resourceVersion"],
                },
                "status": status,
            });
            let patch = Patch::Apply { manager: FIELD_MANAGER.to_owned(), force: true, body };
            let written: Result<Value, _> =
                definitions.clone().subresource("status").patch(&key, &patch).await;
            match (written, pauses.next()) {
                (Ok(_), _) => return Ok(()),
                (Err(error), Some(pause)) if error.is_conflict() => self.clock.sleep(*pause).await,
                (Err(error), _) => return Err(error.into()),
            }
        }
    }
}

const STORAGE_MIGRATING: &str = "StorageMigrating";

/// Builds the condition of a definition that shows whether a migration of its objects runs.
fn storage_migrating_condition(
    definition: &Value,
    is_running: bool,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> Value {
    let mut condition = json!({
        "type": STORAGE_MIGRATING, "status": if is_running { "True" } else { "False" },
        "lastTransitionTime": now, "reason": reason, "message": message,
    });
    let generation = &definition["metadata"]["generation"];
    if generation.is_number() {
        condition["observedGeneration"] = generation.clone();
    }
    condition
}

/// Builds the status of a definition whose migration starts.
fn running_status(definition: &Value, migration: &str, now: Timestamp) -> Value {
    let message = format!("Migration {migration} is running");
    json!({"conditions": [storage_migrating_condition(definition, true, "MigrationRunning", &message, now)]})
}

/// Returns the status of a definition whose migration has ended; `None` if it has that already,
/// because only the write to the migration after it failed. After a success on an unchanged
/// definition, its storage version is the only stored one. The condition's observed generation is
/// that at the end, not at the beginning.
/// Upstream: `finishCRDMigration`.
fn finished_status(definition: &Value, success: bool, now: Timestamp) -> Option<Value> {
    let conditions = definition["status"]["conditions"].as_array();
    let old = conditions.into_iter().flatten().find(|old| old["type"] == STORAGE_MIGRATING);
    if old.is_some_and(|old| old["status"] == "False") {
        return None;
    }
    let generation = definition["metadata"]["generation"].as_i64().unwrap_or(0);
    let old_generation = old.map(|old| old["observedGeneration"].as_i64().unwrap_or(0));
    let is_unchanged = old_generation == Some(generation);
    let (reason, message) = match (success, is_unchanged) {
        (true, true) => (
            "MigrationSucceeded",
            "The migration has succeeded and the stored versions have been updated",
        ),
        (true, false) => (
            "MigrationSucceeded",
            "The migration has succeeded but the stored versions have not been updated due to a \
             generation mismatch",
        ),
        (false, _) => ("MigrationFailed", "The migration has failed"),
    };
    let mut status = json!({"conditions": [storage_migrating_condition(definition, false, reason, message, now)]});
    let versions = definition["spec"]["versions"].as_array();
    let storage_version = versions.into_iter().flatten().find(|v| v["storage"] == true);
    if let Some(version) = storage_version
        && success
        && is_unchanged
    {
        status["storedVersions"] = json!([version["name"]]);
    }
    Some(status)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn migration(name: &str, age: i64, conditions: &[&str]) -> Arc<StorageVersionMigration> {
        let created = Timestamp::from_secs(1_000_000 - age).to_string();
        let conditions: Vec<Value> = conditions
            .iter()
            .map(|name| {
                json!({"type": name, "status": "True", "reason": "r", "message": "",
                    "lastTransitionTime": created})
            })
            .collect();
        Arc::new(
            serde_json::from_value(json!({
                "metadata": {"name": name, "creationTimestamp": created},
                "spec": {"resource": {"group": "apps", "resource": "deployments"}},
                "status": {"conditions": conditions},
            }))
            .unwrap(),
        )
    }

    #[test]
    fn the_oldest_migration_runs_when_no_other_does() {
        let resource = GroupResource { group: "apps".into(), resource: "deployments".into() };
        let waits = migration("waits", 1, &[]);
        for (others, ended, next) in [
            (vec![], vec![], Some("waits")),
            (vec![migration("older", 2, &[])], vec![], Some("older")),
            (vec![migration("same-age", 1, &[])], vec![], Some("same-age")),
            (vec![migration("runs", 0, &[RUNNING])], vec![], None),
            (vec![migration("done", 9, &[RUNNING, SUCCEEDED])], vec!["done"], Some("waits")),
            (
                vec![migration("done", 9, &[RUNNING, "Failed"]), migration("runs", 0, &[RUNNING])],
                vec!["done"],
                None,
            ),
            (vec![migration("clean", 9, &[SUCCEEDED])], vec![], Some("waits")),
        ] {
            for first in [true, false] {
                let mut all = others.clone();
                all.insert(if first { 0 } else { all.len() }, waits.clone());
                let decision = select_migrations(all, &resource);
                let name =
                    |migration: &Arc<StorageVersionMigration>| migration.meta.name.to_string();
                assert_eq!(decision.ended.iter().map(name).collect::<Vec<_>>(), ended);
                assert_eq!(decision.next.as_ref().map(name).as_deref(), next);
            }
        }
        let other = GroupResource { resource: "replicasets".into(), ..resource };
        assert_eq!(select_migrations(vec![waits], &other), Decision::default());
    }

    #[test]
    fn stored_versions_follow_a_success_on_an_unchanged_definition() {
        let definition = |observed: Value| {
            json!({
                "metadata": {"generation": 3},
                "spec": {"versions": [
                    {"name": "v1", "storage": false}, {"name": "v2", "storage": true}]},
                "status": {"conditions": [{"type": STORAGE_MIGRATING, "observedGeneration": observed}]},
            })
        };
        let now = Timestamp::from_secs(0);
        let start = running_status(&definition(json!(3)), "m", now);
        assert_eq!(
            start["conditions"][0],
            json!({
                "type": "StorageMigrating", "status": "True", "reason": "MigrationRunning",
                "message": "Migration m is running", "observedGeneration": 3, "lastTransitionTime": now,
            })
        );
        for (observed, success, reason, stored) in [
            (json!(3), true, "MigrationSucceeded", json!(["v2"])),
            (json!(2), true, "MigrationSucceeded", Value::Null),
            (Value::Null, true, "MigrationSucceeded", Value::Null),
            (json!(3), false, "MigrationFailed", Value::Null),
        ] {
            let status = finished_status(&definition(observed), success, now).unwrap();
            let condition = &status["conditions"][0];
            assert_eq!(
                (&condition["status"], &condition["reason"]),
                (&json!("False"), &json!(reason))
            );
            assert_eq!(status["storedVersions"], stored);
        }
        let mut ended = definition(json!(3));
        ended["status"]["conditions"][0]["status"] = json!("False");
        assert_eq!(finished_status(&ended, true, now), None, "its end is noted once");
    }
}
