//! The lock as an object of kind Lease. Upstream: `resourcelock.LeaseLock`.

use parking_lot::{Mutex, MutexGuard};

use serde::Deserialize;
use serde_json::{Value, json};

use super::{LeaderElectionRecord, Lock, LockError, LockFuture};
use crate::client::{Client, Dynamic};
use crate::events::{EventType, ObjectReference, Recorder, random_uuid};
use crate::objects::{Meta, ObjectKey, ResourceType, Timestamp, from_json};

const LEASES: ResourceType =
    ResourceType::fixed("coordination.k8s.io", "v1", "Lease", "leases", true);

/// Returns a name for this process that is different at each call: `<hostname>_<uuid>`. Upstream:
/// the identity that the command makes.
pub fn new_identity() -> String {
    let names = rustix::system::uname();
    format!("{}_{}", names.nodename().to_string_lossy(), random_uuid())
}

/// A Lease in `coordination.k8s.io/v1` as the lock. Fields of the Lease that are unknown here,
/// labels and annotations are kept. Upstream: `resourcelock.LeaseLock`.
pub struct LeaseLock {
    leases: Dynamic,
    key: ObjectKey,
    identity: String,
    recorder: Option<Recorder>,
    /// The Lease last read or written. Its resourceVersion makes our next write fail if another
    /// contender has written since.
    lease: Mutex<Option<Value>>,
    /// See [`LeaseLock::on_lost_versions`].
    on_lost_versions: Box<dyn Fn() + Send + Sync>,
}

impl LeaseLock {
    /// Makes a lock of the Lease that `key` names, which need not exist. `identity`: see
    /// [`new_identity`]. `recorder`: records the events about the Lease; `None`: there are none.
    /// Sends nothing.
    pub fn new(
        client: &Client,
        key: ObjectKey,
        identity: String,
        recorder: Option<Recorder>,
    ) -> LeaseLock {
        let (leases, lease) = (client.resource(&LEASES), Mutex::new(None));
        LeaseLock { leases, key, identity, recorder, lease, on_lost_versions: Box::new(|| ()) }
    }

    /// Calls `lost` when the Lease is read at an older version than before: the API server was
    /// restored from a backup. A leader reads its Lease after a conflict, so within a retry period.
    /// Upstream has no counterpart.
    pub fn on_lost_versions(self, lost: impl Fn() + Send + Sync + 'static) -> LeaseLock {
        LeaseLock { on_lost_versions: Box::new(lost), ..self }
    }

    fn lease(&self) -> MutexGuard<'_, Option<Value>> {
        self.lease.lock()
    }
}

impl Lock for LeaseLock {
    fn identity(&self) -> &str {
        &self.identity
    }

    fn describe(&self) -> String {
        self.key.to_string()
    }

    /// Reads the Lease, and reports lost versions when it is older than the one read or written
    /// before.
    fn get(&self) -> LockFuture<'_, Option<LeaderElectionRecord>> {
        Box::pin(async {
            let lease: Value = match self.leases.get(&self.key).await {
                Err(error) if error.is_not_found() => return Ok(None),
                other => other?,
            };
            let record = record_of(&lease)?;
            let is_older = is_older(self.lease().as_ref(), &lease);
            *self.lease() = Some(lease);
            if is_older {
                (self.on_lost_versions)();
            }
            Ok(Some(record))
        })
    }

    /// Creates the Lease with `record`.
    fn create<'a>(&'a self, record: &'a LeaderElectionRecord) -> LockFuture<'a, ()> {
        Box::pin(async {
            let mut lease = json!({
                "apiVersion": LEASES.api_version(),
                "kind": LEASES.kind,
                "metadata": { "name": &*self.key.name, "namespace": &*self.key.namespace },
            });
            set_record(&mut lease, record)?;
            let created = self.leases.create(&self.key.namespace, &lease).await?;
            *self.lease() = Some(created);
            Ok(())
        })
    }

    /// Replaces the record in the Lease that was read or written last.
    fn update<'a>(&'a self, record: &'a LeaderElectionRecord) -> LockFuture<'a, ()> {
        Box::pin(async {
            let mut lease = self.lease().clone().ok_or(LockError::NotRead)?;
            set_record(&mut lease, record)?;
            let updated = self.leases.update(&self.key, &lease).await?;
            *self.lease() = Some(updated);
            Ok(())
        })
    }

    /// Records an event about the Lease, once it has been read or written.
    fn record_event(&self, what: &str) {
        let Some(recorder) = &self.recorder else { return };
        let meta = self
            .lease()
            .as_ref()
            .and_then(|lease| from_json::<Meta>(&lease["metadata"].to_string()).ok());
        let Some(meta) = meta else { return };
        recorder.event(
            &ObjectReference::of(&LEASES, &meta),
            EventType::Normal,
            "LeaderElection",
            format!("{} {what}", self.identity),
        );
    }
}

/// Returns whether `read` is an older state of the same Lease than `known`.
fn is_older(known: Option<&Value>, read: &Value) -> bool {
    let version = |lease: &Value| -> Option<u64> {
        lease["metadata"]["resourceVersion"].as_str()?.parse().ok()
    };
    known.is_some_and(|known| {
        known["metadata"]["uid"] == read["metadata"]["uid"] && version(known) > version(read)
    })
}

/// The fields of a Lease that are read. Upstream: `coordination.LeaseSpec`.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    holder_identity: Option<String>,
    lease_duration_seconds: Option<i32>,
    acquire_time: Option<Timestamp>,
    renew_time: Option<Timestamp>,
    lease_transitions: Option<i32>,
    preferred_holder: Option<String>,
    strategy: Option<String>,
}

/// Reads the record in the spec of a Lease.
fn record_of(lease: &Value) -> Result<LeaderElectionRecord, LockError> {
    let spec = from_json::<Option<Spec>>(&lease["spec"].to_string())
        .map_err(|error| LockError::Malformed(format!("spec: {error}")))?
        .unwrap_or_default();
    Ok(LeaderElectionRecord {
        holder_identity: spec.holder_identity.unwrap_or_default(),
        lease_duration_seconds: spec.lease_duration_seconds.unwrap_or_default(),
        acquire_time: spec.acquire_time,
        renew_time: spec.renew_time,
        leader_transitions: spec.lease_transitions.unwrap_or_default(),
        preferred_holder: spec.preferred_holder.unwrap_or_default(),
        strategy: spec.strategy.unwrap_or_default(),
    })
}

/// Writes the record into the spec; other fields of the Lease stay.
fn set_record(lease: &mut Value, record: &LeaderElectionRecord) -> Result<(), LockError> {
    let Some(lease) = lease.as_object_mut() else {
        return Err(LockError::Malformed("no object".into()));
    };
    let spec = lease.entry("spec").or_insert(Value::Null);
    if spec.is_null() {
        *spec = json!({});
    }
    let Some(spec) = spec.as_object_mut() else {
        return Err(LockError::Malformed("spec is no object".into()));
    };
    let time = |time: Option<Timestamp>| time.map(Timestamp::to_micro_string).into();
    spec.insert("holderIdentity".into(), record.holder_identity.as_str().into());
    spec.insert("leaseDurationSeconds".into(), record.lease_duration_seconds.into());
    spec.insert("acquireTime".into(), time(record.acquire_time));
    spec.insert("renewTime".into(), time(record.renew_time));
    spec.insert("leaseTransitions".into(), record.leader_transitions.into());
    let coordinated =
        [("preferredHolder", &record.preferred_holder), ("strategy", &record.strategy)];
    for (name, value) in coordinated {
        match value.as_str() {
            "" => drop(spec.remove(name)),
            value => drop(spec.insert(name.into(), value.into())),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lease_keeps_unknown_fields() {
        let mut lease = json!({
            "metadata": { "name": "kcm", "resourceVersion": "7", "labels": { "a": "b" } },
            "spec": {
                "holderIdentity": "other",
                "leaseDurationSeconds": 15,
                "acquireTime": "2026-05-01T10:00:00.000000Z",
                "renewTime": "2026-05-01T10:00:01.123456Z",
                "leaseTransitions": 3,
                "strategy": "OldestEmulationVersion",
                "preferredHolder": "third",
                "somethingNew": { "x": 1 },
            },
        });
        let mut record = record_of(&lease).unwrap();
        assert_eq!((record.holder_identity.as_str(), record.leader_transitions), ("other", 3));
        assert_eq!(record.renew_time, Some("2026-05-01T10:00:01.123456Z".parse().unwrap()));
        assert_eq!(
            (record.strategy.as_str(), record.preferred_holder.as_str()),
            ("OldestEmulationVersion", "third",)
        );
        record.holder_identity = "me".into();
        record.leader_transitions = 4;
        record.preferred_holder.clear();
        set_record(&mut lease, &record).unwrap();
        assert_eq!(
            lease,
            json!({
                "metadata": { "name": "kcm", "resourceVersion": "7", "labels": { "a": "b" } },
                "spec": {
                    "holderIdentity": "me",
                    "leaseDurationSeconds": 15,
                    "acquireTime": "2026-05-01T10:00:00.000000Z",
                    "renewTime": "2026-05-01T10:00:01.123456Z",
                    "leaseTransitions": 4,
                    "strategy": "OldestEmulationVersion",
                    "somethingNew": { "x": 1 },
                },
            })
        );
        assert_eq!(record_of(&lease).unwrap(), record);
    }

    #[test]
    fn empty_lease_is_free_and_malformed_lease_is_an_error() {
        for empty in [json!({}), json!({ "spec": null }), json!({ "spec": {} })] {
            assert_eq!(record_of(&empty).unwrap(), LeaderElectionRecord::default());
        }
        let broken = json!({ "spec": { "leaseTransitions": "many" } });
        assert!(matches!(record_of(&broken), Err(LockError::Malformed(_))));
        assert!(set_record(&mut json!({ "spec": [] }), &Default::default()).is_err());
    }

    #[test]
    fn an_older_state_of_the_same_lease_is_recognised() {
        let lease = |uid: &str, version: &str| json!({ "metadata": { "uid": uid, "resourceVersion": version } });
        let known = lease("1", "10");
        for (read, older) in [
            (lease("1", "9"), true),
            (lease("1", "10"), false),
            (lease("1", "11"), false),
            (lease("2", "9"), false),
        ] {
            assert_eq!(is_older(Some(&known), &read), older, "{read}");
        }
        assert!(!is_older(None, &known));
    }

    #[test]
    fn identities_are_unique_and_end_in_a_uuid() {
        let (one, two) = (new_identity(), new_identity());
        assert_ne!(one, two);
        let (_, uuid) = one.rsplit_once('_').unwrap();
        let groups: Vec<usize> = uuid.split('-').map(str::len).collect();
        assert_eq!(groups, [8, 4, 4, 4, 12]);
        assert_eq!(&uuid[14..15], "4");
        assert!(matches!(&uuid[19..20], "8" | "9" | "a" | "b"));
    }
}
