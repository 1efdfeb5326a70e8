//! Removes API servers that do not exist any more from StorageVersions. Upstream:
//! `pkg/controller/storageversiongc`.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::cache::{Lister, Scope};
use crate::client::{Client, Delete, ListOptions};
use crate::clock::SharedClock;
use crate::controllers::runner::Change;
use crate::controllers::{Controller, Error, Next, Queue, QueuePolicy, SyncResult};
use crate::objects::{
    Meta, ObjectKey, PartialObjectMetadata, Resource, ResourceType, StorageVersion, Timestamp, Uid,
};

const LEASES: ResourceType =
    ResourceType::fixed("coordination.k8s.io", "v1", "Lease", "leases", true);
/// The namespace of the API servers' identity leases.
const NAMESPACE: &str = "kube-system";
/// Key and value of the label of the identity leases of API servers. Upstream:
/// `IdentityLeaseComponentLabelKey`, `KubeAPIServer`.
const IDENTITY_LABEL: (&str, &str) = ("apiserver.kubernetes.io/identity", "kube-apiserver");

/// Sets up the controller `storageversion-garbage-collector-controller`.
pub fn controller(c: &mut Controller) -> Result<(), String> {
    let leases = c.lister_of::<PartialObjectMetadata>(Scope {
        namespace: Some(NAMESPACE.to_owned()),
        ..Scope::metadata(LEASES)
    });
    let versions = c.lister::<StorageVersion>();
    let this = Arc::new(StorageVersions { client: c.client(), clock: c.clock() });
    let policy = QueuePolicy::default();
    let lease_queue = c.queue_named("storage_version_garbage_collector_leases", policy);
    let policy = QueuePolicy::default();
    let version_queue = c.queue_named("storage_version_garbage_collector_storageversions", policy);
    c.watch(&leases, &lease_queue, |change: Change<'_, PartialObjectMetadata>, queue: &Queue| {
        if let Change::Deleted(last) = change
            && is_identity_lease(&last.object().meta)
        {
            queue.add(last.object().meta.key());
        }
    });
    c.watch(&versions, &version_queue, move |change: Change<'_, StorageVersion>, queue: &Queue| {
        if !matches!(change, Change::Deleted(_))
            && names_server_without_lease(change.object(), &leases)
        {
            queue.add(change.object().meta.key());
        }
    });
    c.sync_by(1, lease_queue, &this, StorageVersions::sync_lease);
    c.sync_by(1, version_queue, &this, StorageVersions::sync_version);
    Ok(())
}

/// Returns whether the lease is the identity of an API server.
fn is_identity_lease(lease: &Meta) -> bool {
    let (key, value) = IDENTITY_LABEL;
    lease.labels.get(key) == Some(value)
}

/// Returns whether an entry of the StorageVersion belongs to an API server without an identity
/// lease in the cache.
fn names_server_without_lease(
    version: &StorageVersion,
    leases: &Lister<PartialObjectMetadata>,
) -> bool {
    version.status.storage_versions.iter().any(|entry| {
        let lease = leases.get(&ObjectKey::new(NAMESPACE, &entry.api_server_id));
        !lease.is_some_and(|lease| is_identity_lease(&lease.meta))
    })
}

struct StorageVersions {
    client: Client,
    clock: SharedClock,
}

impl StorageVersions {
    /// Removes the API server whose lease was deleted from all StorageVersions, unless it has a
    /// lease again. Upstream: `processDeletedLease`.
    async fn sync_lease(self: Arc<Self>, key: ObjectKey) -> SyncResult {
        // As upstream, a lease of this name without the label counts here.
        if self.live_lease(&key.name).await?.is_some() {
            return Ok(Next::Done);
        }
        let versions: Vec<Value> = self
            .client
            .resource(&StorageVersion::RESOURCE)
            .list(None, &ListOptions::default())
            .await?
            .items;
        let mut errors = Vec::new();
        for live in versions {
            errors.extend(self.remove_servers(live, |server| server == &*key.name).await.err());
        }
        match Error::many(errors) {
            Some(error) => Err(error),
            None => Ok(Next::Done),
        }
    }

    /// Removes the API servers that have no lease from one StorageVersion. Upstream:
    /// `syncStorageVersion`.
    async fn sync_version(self: Arc<Self>, key: ObjectKey) -> SyncResult {
        let live: Value = match self.client.resource(&StorageVersion::RESOURCE).get(&key).await {
            Err(error) if error.is_not_found() => return Ok(Next::Done),
            live => live?,
        };
        let mut without_lease = Vec::new();
        for server in server_ids(&live) {
            // The live lease decides: the cache may lack it.
            if !self.live_lease(server).await?.is_some_and(|lease| is_identity_lease(&lease)) {
                without_lease.push(server.to_owned());
            }
        }
        self.remove_servers(live, |server| without_lease.iter().any(|other| other == server))
            .await?;
        Ok(Next::Done)
    }

    /// Reads the live lease of this name; `None` if it does not exist.
    async fn live_lease(&self, name: &str) -> Result<Option<Meta>, Error> {
        let leases = self.client.resource(&LEASES).metadata_only();
        let found: Result<PartialObjectMetadata, _> =
            leases.get(&ObjectKey::new(NAMESPACE, name)).await;
        match found {
            Ok(lease) => Ok(Some(lease.meta)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes the StorageVersion `live` without the servers for which `is_gone` holds, or deletes
    /// it if no server remains.
    async fn remove_servers(
        &self,
        mut live: Value,
        is_gone: impl Fn(&str) -> bool,
    ) -> Result<(), Error> {
        let versions = self.client.resource(&StorageVersion::RESOURCE);
        let text_at = |at: &str| live.pointer(at).and_then(Value::as_str).unwrap_or_default();
        let key = ObjectKey::cluster(text_at("/metadata/name"));
        let uid = Uid::new(text_at("/metadata/uid"));
        let version = text_at("/metadata/resourceVersion").parse().unwrap_or_default();
        match prune_servers(&mut live, is_gone, self.clock.now()) {
            Edit::Nothing => Ok(()),
            Edit::Delete => {
                let delete = Delete::new().uid(uid).resource_version(version);
                match versions.delete(&key, delete).await {
                    Err(error) if !error.is_not_found() => Err(error.into()),
                    _ => Ok(()),
                }
            }
            Edit::Update => {
                let status = versions.subresource("status");
                status.update::<Value>(&key, &live).await?;
                Ok(())
            }
        }
    }
}

/// Returns the ids of the API servers in the status of a StorageVersion.
fn server_ids(version: &Value) -> impl Iterator<Item = &str> {
    let entries = version["status"]["storageVersions"].as_array();
    entries.into_iter().flatten().filter_map(|entry| entry["apiServerID"].as_str())
}

/// How a pruned StorageVersion is written.
#[derive(Debug, PartialEq)]
enum Edit {
    Nothing,
    Update,
    Delete,
}

/// Removes the entries of servers for which `is_gone` holds, and computes `commonEncodingVersion`
/// and the condition `AllEncodingVersionsEqual` again. Returns how the object is to be written.
/// Upstream: `updateOrDeleteStorageVersion`, `SetCommonEncodingVersion`.
fn prune_servers(version: &mut Value, is_gone: impl Fn(&str) -> bool, now: Timestamp) -> Edit {
    let generation = version["metadata"]["generation"].as_i64().unwrap_or(0);
    let status = &mut version["status"];
    let Some(entries) = status["storageVersions"].as_array_mut() else { return Edit::Nothing };
    let old_count = entries.len();
    entries.retain(|entry| !is_gone(entry["apiServerID"].as_str().unwrap_or_default()));
    if entries.len() == old_count {
        return Edit::Nothing;
    }
    if entries.is_empty() {
        return Edit::Delete;
    }
    let first = entries[0]["encodingVersion"].clone();
    let is_common = entries.iter().all(|entry| entry["encodingVersion"] == first);
    let old = status["commonEncodingVersion"].take();
    let is_other_version = is_common && old.is_string() && old != first;
    if is_common {
        status["commonEncodingVersion"] = first;
    } else if let Some(status) = status.as_object_mut() {
        status.remove("commonEncodingVersion");
    }
    let (condition_status, reason, message) = match is_common {
        true => ("True", "CommonEncodingVersionSet", "Common encoding version set"),
        false => ("False", "CommonEncodingVersionUnset", "Common encoding version unset"),
    };
    let mut condition = json!({
        "type": "AllEncodingVersionsEqual", "status": condition_status, "observedGeneration": generation,
        "lastTransitionTime": now, "reason": reason, "message": message,
    });
    if generation == 0
        && let Some(condition) = condition.as_object_mut()
    {
        condition.remove("observedGeneration");
    }
    if !status["conditions"].is_array() {
        status["conditions"] = json!([]);
    }
    if let Some(conditions) = status["conditions"].as_array_mut() {
        match conditions.iter_mut().find(|old| old["type"] == condition["type"]) {
            Some(old) => {
                if old["status"] == condition["status"] && !is_other_version {
                    condition["lastTransitionTime"] = old["lastTransitionTime"].take();
                }
                *old = condition;
            }
            None => conditions.push(condition),
        }
    }
    Edit::Update
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(entries: &[(&str, &str)], common: Option<&str>, equal: &str) -> Value {
        let entries: Vec<Value> = entries
            .iter()
            .map(|(server, version)| {
                json!({"apiServerID": server, "encodingVersion": version, "brandNew": [1]})
            })
            .collect();
        let mut version = json!({
            "metadata": {"name": "apps.deployments", "generation": 1},
            "status": {
                "storageVersions": entries, "brandNew": 2,
                "conditions": [{"type": "AllEncodingVersionsEqual", "status": equal,
                    "lastTransitionTime": "2026-01-01T00:00:00Z"}],
            },
        });
        if let Some(common) = common {
            version["status"]["commonEncodingVersion"] = json!(common);
        }
        version
    }

    #[test]
    fn entries_of_servers_that_are_gone_are_removed() {
        let now = Timestamp::from_secs(0);
        let (old, new) = (json!("2026-01-01T00:00:00Z"), json!(now));
        // The entries, the common version and the condition before; the servers that are gone; the
        // edit, and the common version, the condition and its time after it.
        for (entries, common, equal, gone, edit, after) in [
            (vec![("a", "v1")], Some("v1"), "True", "", Edit::Nothing, None),
            (vec![], None, "False", "a", Edit::Nothing, None),
            (vec![("a", "v1")], Some("v1"), "True", "a", Edit::Delete, None),
            (
                vec![("a", "v1"), ("b", "v1")],
                Some("v1"),
                "True",
                "a",
                Edit::Update,
                Some((json!("v1"), "True", old.clone())),
            ),
            (
                vec![("a", "v1"), ("b", "v2")],
                None,
                "False",
                "a",
                Edit::Update,
                Some((json!("v2"), "True", new.clone())),
            ),
            (
                vec![("a", "v1"), ("b", "v2"), ("c", "v3")],
                None,
                "False",
                "a",
                Edit::Update,
                Some((Value::Null, "False", old)),
            ),
            (
                vec![("a", "v1"), ("b", "v2")],
                Some("v1"),
                "True",
                "a",
                Edit::Update,
                Some((json!("v2"), "True", new)),
            ),
        ] {
            let case = format!("{entries:?} without {gone}");
            let mut version = version(&entries, common, equal);
            assert_eq!(prune_servers(&mut version, |server| server == gone, now), edit, "{case}");
            let Some((common, equal, since)) = after else { continue };
            let (status, condition) = (&version["status"], &version["status"]["conditions"][0]);
            assert_eq!(status["commonEncodingVersion"], common, "{case}");
            assert_eq!(
                (&condition["status"], &condition["lastTransitionTime"]),
                (&json!(equal), &since)
            );
            assert_eq!(condition["observedGeneration"], 1);
            assert_eq!(
                (&status["brandNew"], &status["storageVersions"][0]["brandNew"]),
                (&json!(2), &json!([1]))
            );
            assert_eq!(server_ids(&version).count(), entries.len() - 1);
        }
    }
}
