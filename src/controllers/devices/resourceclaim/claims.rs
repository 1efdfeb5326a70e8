//! The reservations of a claim: when they end, and the deallocation of a claim without any.

use std::time::Duration;

use serde_json::{Value, json};

use super::ResourceClaims;
use super::pods::{is_done, stale_if_conflict};
use crate::client::{Delete, Patch};
use crate::controllers::{Error, Next, SyncResult};
use crate::objects::{
    ClaimConsumer, Istr, Meta, ObjectKey, PartialObjectMetadata, Pod, PodGroup, Resource,
    ResourceClaim, Uid,
};

/// Keeps a claim while it is allocated. Upstream: `resourceapi.Finalizer`.
const FINALIZER: &str = "resource.kubernetes.io/delete-protection";

/// The delay before the next sync of a claim whose consumer only the API server has shown.
const UNSEEN_CONSUMER_RECHECK: Duration = Duration::from_secs(30);

/// The decision about a reservation of a claim for a consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reservation {
    Stays,
    Ends,
    /// The cache does not have the consumer: it may be new.
    Unseen,
}

/// The object in the cache that has the name of a consumer.
#[derive(Clone, Copy, Debug)]
struct CachedConsumer<'a> {
    uid: &'a Uid,
    is_done: bool,
}

/// Decides from the cache whether the reservation of the consumer with this uid ends. `is_deleted`:
/// its deletion was observed.
fn decide_reservation(
    uid: &Uid,
    is_deleted: bool,
    cached: Option<CachedConsumer<'_>>,
) -> Reservation {
    if is_deleted {
        return Reservation::Ends;
    }
    match cached {
        None => Reservation::Unseen,
        Some(cached) if cached.uid != uid || cached.is_done => Reservation::Ends,
        Some(_) => Reservation::Stays,
    }
}

/// The writes to a claim whose reservations end.
#[derive(Debug, Default, PartialEq)]
struct Plan {
    /// The patch of the status.
    status: Option<Value>,
    removes_finalizer: bool,
}

/// Plans the writes to a claim when the reservations for the consumers `ended_uids` end.
///
/// A claim is deallocated when its last reservation ends. A claim that had no reservation keeps its
/// allocation, since it may be allocated before it is reserved, unless it is being deleted. The
/// finalizer is removed from a claim that is not allocated any more.
fn plan(claim: &ResourceClaim, ended_uids: &[&Uid]) -> Plan {
    let is_unused = ended_uids.len() == claim.status.reserved_for.len();
    let has_finalizer = claim.meta.has_finalizer(FINALIZER);
    let is_allocated = claim.status.allocation.is_some();
    if !ended_uids.is_empty() {
        let removed = ended_uids.iter().map(|uid| json!({ "$patch": "delete", "uid": uid }));
        let mut status = json!({ "reservedFor": removed.collect::<Vec<Value>>() });
        let deallocates = is_unused && has_finalizer && is_allocated;
        if deallocates {
            status["allocation"] = Value::Null;
        }
        let removes_finalizer = has_finalizer && (deallocates || !is_allocated);
        return Plan { status: Some(status), removes_finalizer };
    }
    if has_finalizer && is_unused && claim.meta.is_being_deleted() {
        let status = is_allocated.then(|| json!({ "allocation": null }));
        return Plan { status, removes_finalizer: true };
    }
    Plan::default()
}

impl ResourceClaims {
    /// Removes the reservations of consumers that are gone or done, and deallocates an unused
    /// claim. One that was generated for a pod that will not run is deleted.
    pub(super) async fn sync_claim(&self, key: &ObjectKey) -> SyncResult {
        let Some(claim) = self.claims.get(key) else { return Ok(Next::Done) };
        let (mut ended_uids, mut next) = (Vec::new(), Next::Done);
        for consumer in &claim.status.reserved_for {
            match self.reservation(&key.namespace, consumer).await? {
                Reservation::Ends => ended_uids.push(&consumer.uid),
                // If the cache never shows the consumer, no event about its end comes.
                Reservation::Unseen => next = Next::After(UNSEEN_CONSUMER_RECHECK),
                Reservation::Stays => {}
            }
        }
        let Plan { status, removes_finalizer } = plan(&claim, &ended_uids);
        let mut newest = None;
        if let Some(status) = status {
            newest = Some(self.patch_claim_status(&claim.meta, status).await?);
        }
        if removes_finalizer {
            let meta = newest.as_ref().map_or(&claim.meta, |newest| &newest.meta);
            self.remove_finalizer(meta).await?;
        }
        if ended_uids.len() == claim.status.reserved_for.len() {
            self.delete_unneeded_claim(&claim).await?;
        }
        Ok(next)
    }

    /// Decides whether the reservation for `consumer` ends; one for a consumer of an unknown kind
    /// stays. A consumer that the cache lacks is read from the API server: `Unseen` if it exists
    /// there.
    async fn reservation(
        &self,
        namespace: &str,
        consumer: &ClaimConsumer,
    ) -> Result<Reservation, Error> {
        let key = ObjectKey::new(namespace, &consumer.name);
        let is_deleted = self.deleted.has(&consumer.uid);
        let (reservation, resource) = if consumer.is_pod() {
            let pod = self.pods.get(&key);
            let cached = pod
                .as_ref()
                .map(|pod| CachedConsumer { uid: &pod.meta.uid, is_done: is_done(pod) });
            (decide_reservation(&consumer.uid, is_deleted, cached), &Pod::RESOURCE)
        } else if consumer.is_group()
            && let Some(groups) = &self.groups
        {
            let group = groups.get(&key);
            let cached =
                group.as_ref().map(|group| CachedConsumer { uid: &group.meta.uid, is_done: false });
            (decide_reservation(&consumer.uid, is_deleted, cached), &PodGroup::RESOURCE)
        } else {
            return Ok(Reservation::Stays);
        };
        if reservation != Reservation::Unseen {
            return Ok(reservation);
        }
        // A pod that is being scheduled must not lose its claim.
        let resource = self.client.resource(resource).metadata_only();
        match resource.get::<PartialObjectMetadata>(&key).await {
            Ok(live) if live.meta.uid == consumer.uid => Ok(Reservation::Unseen),
            Ok(_) => Ok(Reservation::Ends),
            Err(error) if error.is_not_found() => Ok(Reservation::Ends),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes this controller's finalizer from the claim with this metadata.
    async fn remove_finalizer(&self, meta: &Meta) -> Result<(), Error> {
        if !meta.has_finalizer(FINALIZER) {
            return Ok(());
        }
        let remaining: Vec<&Istr> =
            meta.finalizers().iter().filter(|finalizer| **finalizer != FINALIZER).collect();
        let version = meta.resource_version.to_string();
        let metadata = json!({ "resourceVersion": version, "finalizers": remaining });
        let patch = Patch::Merge(json!({ "metadata": metadata }));
        let claims = self.client.resource(&ResourceClaim::RESOURCE).metadata_only();
        match claims.patch::<PartialObjectMetadata>(&meta.key(), &patch).await {
            Err(error) if !error.is_not_found() => Err(stale_if_conflict(meta, error)),
            _ => Ok(()),
        }
    }

    /// Deletes a claim that was generated for a pod that will not run, or whose name another pod
    /// has: the pod itself may stay a long time. When no pod has the name, the garbage collector
    /// deletes the claim.
    async fn delete_unneeded_claim(&self, claim: &ResourceClaim) -> Result<(), Error> {
        let Some(owner) = claim.meta.controller() else { return Ok(()) };
        let is_pods = owner.api_version == "v1" && owner.kind == "Pod";
        if !is_pods || claim.meta.is_being_deleted() {
            return Ok(());
        }
        let pod = self.pods.get(&ObjectKey::new(&claim.meta.namespace, &owner.name));
        let Some(pod) = pod else { return Ok(()) };
        if pod.meta.uid == owner.uid && !is_done(&pod) {
            return Ok(());
        }
        let (key, delete) = (claim.meta.key(), Delete::new().uid(claim.meta.uid.clone()));
        match self.client.delete::<ResourceClaim>(&key, delete).await {
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(Error::other(format!(
                "delete unused generated claim {key}: {}",
                Error::from(error).message()
            ))),
            Ok(()) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_lite::future::block_on;

    use super::super::{ClaimCreator, Key, RecentUids, UnsharedClaims};
    use super::*;
    use crate::cache::{Indexer, Lister};
    use crate::client::testing::answering;
    use crate::events::Recorder;
    use crate::events::testing::NoSink;

    /// No event about the end of such a pod comes if it ends before a watch is open again.
    #[test]
    fn a_claim_whose_pod_only_the_server_shows_is_synced_again() {
        let pod = json!({ "metadata": { "namespace": "ns", "name": "p", "uid": "u" } });
        let claim: ResourceClaim = serde_json::from_value(json!({
            "metadata": { "namespace": "ns", "name": "c", "finalizers": [FINALIZER] },
            "status": { "allocation": {}, "reservedFor": [
                { "resource": "pods", "name": "p", "uid": "u" },
            ] },
        }))
        .unwrap();
        let key = claim.meta.key();
        let (pods, claims) = (Arc::new(Indexer::<Pod>::new()), Arc::new(Indexer::new()));
        claims.insert(Arc::new(claim));
        let claims = Lister::new(claims);
        let live = pod.clone();
        let client = block_on(answering(move |_| (200, live.clone())));
        let templates = Lister::new(Arc::new(Indexer::new()));
        let this = Arc::new(ResourceClaims {
            creator: ClaimCreator::new(client.clone(), claims.clone(), templates, false),
            client,
            recorder: Recorder::to_sink(Arc::new(NoSink)),
            pods: Lister::new(pods.clone()),
            claims,
            groups: None,
            unshared: UnsharedClaims::Allowed,
            deleted: RecentUids::default(),
        });
        let sync = || block_on(this.clone().sync(Key::Claim(key.clone()))).unwrap();
        assert_eq!(sync(), Next::After(UNSEEN_CONSUMER_RECHECK));
        pods.insert(Arc::new(serde_json::from_value(pod).unwrap()));
        assert_eq!(sync(), Next::Done);
    }

    #[test]
    fn a_reservation_ends_with_its_consumer() {
        let (uid, other) = (Uid::new("u"), Uid::new("v"));
        for (deleted, cached, expected) in [
            (false, None, Reservation::Unseen),
            (true, None, Reservation::Ends),
            (false, Some((&uid, false)), Reservation::Stays),
            (false, Some((&uid, true)), Reservation::Ends),
            (false, Some((&other, false)), Reservation::Ends),
        ] {
            let cached = cached.map(|(uid, is_done)| CachedConsumer { uid, is_done });
            let found = decide_reservation(&uid, deleted, cached);
            assert_eq!(found, expected, "{deleted} {cached:?}");
        }
    }

    #[test]
    fn a_claim_is_deallocated_with_its_last_reservation() {
        let [a, b] = ["a", "b"].map(Uid::new);
        let claim = |finalizers: &[&str], allocated: bool, reserved: &[&Uid], deleted: bool| {
            let reserved: Vec<Value> =
                reserved.iter().map(|uid| json!({ "resource": "pods", "uid": uid })).collect();
            let mut claim = json!({
                "metadata": { "finalizers": finalizers }, "status": { "reservedFor": reserved },
            });
            if allocated {
                claim["status"]["allocation"] = json!({});
            }
            if deleted {
                claim["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            }
            serde_json::from_value::<ResourceClaim>(claim).unwrap()
        };
        let remove = |uid: &Uid| json!({ "$patch": "delete", "uid": uid });
        let (ours, others) = (&[FINALIZER][..], &["example.com/x"][..]);
        for (what, claim, ended_uids, status, removes_finalizer) in [
            ("in use", claim(ours, true, &[&a], false), vec![], None, false),
            ("allocated, not reserved yet", claim(ours, true, &[], false), vec![], None, false),
            (
                "the last use ends",
                claim(ours, true, &[&a], false),
                vec![&a],
                Some(json!({ "reservedFor": [remove(&a)], "allocation": null })),
                true,
            ),
            (
                "one of two uses ends",
                claim(ours, true, &[&a, &b], false),
                vec![&b],
                Some(json!({ "reservedFor": [remove(&b)] })),
                false,
            ),
            (
                "allocated by something else",
                claim(others, true, &[&a], false),
                vec![&a],
                Some(json!({ "reservedFor": [remove(&a)] })),
                false,
            ),
            (
                "not allocated any more",
                claim(ours, false, &[&a], false),
                vec![&a],
                Some(json!({ "reservedFor": [remove(&a)] })),
                true,
            ),
            (
                "being deleted, allocated",
                claim(ours, true, &[], true),
                vec![],
                Some(json!({ "allocation": null })),
                true,
            ),
            ("being deleted, not allocated", claim(ours, false, &[], true), vec![], None, true),
            ("being deleted, in use", claim(ours, true, &[&a], true), vec![], None, false),
            ("being deleted, not ours", claim(others, true, &[], true), vec![], None, false),
        ] {
            assert_eq!(plan(&claim, &ended_uids), Plan { status, removes_finalizer }, "{what}");
        }
    }
}
