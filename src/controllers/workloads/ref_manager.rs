//! Adoption and release. Upstream: `controller.PodControllerRefManager` and its siblings.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::cache::{Index, IndexValue, Lister};
use crate::client::{Client, Patch};
use crate::controllers::Error;
use crate::controllers::workloads::consistency::Consistency;
use crate::objects::{Meta, Object, OwnerReference, Pod, Resource, Selector, Uid};

/// Returns the index of objects by the uid of their controller, and of orphans by their namespace.
/// Upstream: `PodControllerIndex`.
pub const fn controller_index<T: Object>() -> Index<T> {
    Index::new("controller", by_controller)
}

/// Emits the value of `object` for the [`controller_index`]: the uid of its controller or, without
/// one, its namespace.
fn by_controller<T: Object>(object: &T, emit: &mut dyn FnMut(IndexValue)) {
    let meta = object.meta();
    emit(match meta.controller() {
        Some(owner) => IndexValue::Uid(owner.uid.clone()),
        None => IndexValue::Text(meta.namespace.clone()),
    });
}

/// Returns the objects that `owner` controls in its namespace, in no order. Needs
/// [`controller_index`].
pub fn owned<T: Object>(lister: &Lister<T>, owner: &Meta) -> Vec<Arc<T>> {
    let mut found = lister.by_index(&controller_index(), &IndexValue::Uid(owner.uid.clone()));
    found.retain(|object| object.meta().namespace == owner.namespace);
    found
}

/// Returns the objects of [`owned`], and those without a controller: the candidates of
/// [`ControllerRefManager::claim`].
pub fn owned_or_orphaned<T: Object>(lister: &Lister<T>, owner: &Meta) -> Vec<Arc<T>> {
    let mut found = owned(lister, owner);
    found.extend(orphaned(lister, owner));
    found
}

/// Returns the pods that `owner`, of the kind `O`, controls. A reference with its uid and another
/// kind or name is not to it. Upstream: `PodControllerIndexKey`.
pub fn owned_pods<O: Resource>(lister: &Lister<Pod>, owner: &Meta) -> Vec<Arc<Pod>> {
    let mut found = owned(lister, owner);
    found.retain(|pod| {
        let owned_by =
            |by: &OwnerReference| *by.kind == *O::RESOURCE.kind && *by.name == *owner.name;
        pod.meta.controller().is_some_and(owned_by)
    });
    found
}

/// Returns the pods of [`owned_pods`], and those without a controller. Upstream:
/// `FilterPodsByOwner`.
pub fn owned_or_orphaned_pods<O: Resource>(lister: &Lister<Pod>, owner: &Meta) -> Vec<Arc<Pod>> {
    let mut found = owned_pods::<O>(lister, owner);
    found.extend(orphaned(lister, owner));
    found
}

/// Returns the objects without a controller in the namespace of `owner`.
fn orphaned<T: Object>(lister: &Lister<T>, owner: &Meta) -> Vec<Arc<T>> {
    lister.by_index(&controller_index(), &IndexValue::Text(owner.namespace.clone()))
}

/// Claims the objects of a controller object: keeps its own that match, adopts matching orphans,
/// and releases its own that no longer match.
pub struct ControllerRefManager<'a> {
    pub client: &'a Client,
    /// The metadata of the owner.
    pub owner: &'a Meta,
    /// The owner reference that adopted objects get.
    pub owner_ref: OwnerReference,
    pub selector: &'a Selector,
    /// Finalizers added with an adoption (Job); usually none.
    pub finalizers: &'a [&'a str],
    /// Adoptions are recorded here, under the owner.
    written: Option<&'a Consistency>,
}

impl<'a> ControllerRefManager<'a> {
    /// Makes a manager for an owner of the kind `O`.
    pub fn new<O: Resource>(
        client: &'a Client,
        owner: &'a Meta,
        selector: &'a Selector,
    ) -> ControllerRefManager<'a> {
        let owner_ref = owner.controller_ref::<O>();
        ControllerRefManager { client, owner, owner_ref, selector, finalizers: &[], written: None }
    }

    /// Records each adoption in `consistency`, under the owner. Upstream: `OnWrite`.
    pub fn recording(mut self, consistency: &'a Consistency) -> ControllerRefManager<'a> {
        self.written = Some(consistency);
        self
    }

    /// Adopts and releases `candidates`, and returns those that the owner, of the kind `O`,
    /// controls afterwards; an adopted one as the API returned it, so with its new resourceVersion.
    /// Before the first adoption the owner is read live: the cache may not show yet that it is
    /// being deleted, or was replaced by another. Every candidate is processed; the failures are
    /// returned together. `filter`: what an object must pass besides the selector to match.
    pub async fn claim<O: Object + Resource, C: Object + Resource>(
        &self,
        candidates: Vec<Arc<C>>,
        filter: impl Fn(&C) -> bool,
    ) -> Result<Vec<Arc<C>>, Error> {
        // Whether the owner may adopt; `None`: not checked yet.
        let mut allowed: Option<Result<(), String>> = None;
        let mut claimed = Vec::with_capacity(candidates.len());
        let mut errors = Vec::new();
        let mut selects = self.selector.matcher();
        for candidate in candidates {
            let meta = candidate.meta();
            let matches = || selects(&meta.labels) && filter(&candidate);
            match decide(meta, self.owner, matches) {
                Claim::Keep => claimed.push(candidate),
                Claim::Ignore => {}
                Claim::Release => errors.extend(self.release::<C>(meta).await.err()),
                Claim::Adopt => {
                    if allowed.is_none() {
                        let checked = recheck_deletion_timestamp::<O>(self.client, self.owner);
                        allowed = Some(checked.await.map_err(|error| error.to_string()));
                    }
                    if let Some(Err(reason)) = &allowed {
                        errors.push(Error::other(format!(
                            "can't adopt {} {}/{} ({}): {reason}",
                            C::RESOURCE.kind,
                            meta.namespace,
                            meta.name,
                            meta.uid
                        )));
                        continue;
                    }
                    match self.adopt::<C>(meta).await {
                        // It is gone.
                        Ok(None) => {}
                        Ok(Some(adopted)) => {
                            self.record_adoption::<C>(adopted.meta());
                            claimed.push(Arc::new(adopted));
                        }
                        Err(error) => errors.push(error),
                    }
                }
            }
        }
        Error::many(errors).map_or(Ok(claimed), Err)
    }

    /// Records an adoption, so that the next sync of the owner waits until its cache has seen it.
    fn record_adoption<C: Resource>(&self, adopted: &Meta) {
        if let Some(consistency) = self.written {
            let (owner, version) = (self.owner.key(), adopted.resource_version);
            consistency.record_write(&owner, &self.owner.uid, &C::RESOURCE, version);
        }
    }

    /// Adds the reference to the owner, and returns the adopted object; `None`: it is gone. The API
    /// server refuses when another controller was faster.
    async fn adopt<C: Object + Resource>(&self, meta: &Meta) -> Result<Option<C>, Error> {
        let patch = adopt_patch(&meta.uid, &self.owner_ref, self.finalizers);
        match self.client.patch::<C>(&meta.key(), &Patch::StrategicMerge(patch)).await {
            Ok(adopted) => Ok(Some(adopted)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes the reference to the owner. It is not an error if there is no such object or
    /// reference any more.
    async fn release<C: Object + Resource>(&self, meta: &Meta) -> Result<(), Error> {
        log::debug!("{} {}: releasing it from {}", C::RESOURCE.kind, meta.key(), self.owner.key());
        let patch = release_patch(&meta.uid, &self.owner.uid, self.finalizers);
        match self.client.patch::<C>(&meta.key(), &Patch::StrategicMerge(patch)).await {
            // Invalid: it has no owners any more, or is another object of the same name.
            Err(error) if !error.is_not_found() && !error.is_invalid() => Err(error.into()),
            _ => Ok(()),
        }
    }
}

/// Reads the owner live, and returns `Ok` if it is still the same object and is not being deleted.
/// Upstream: `RecheckDeletionTimestamp`.
async fn recheck_deletion_timestamp<T: Object + Resource>(
    client: &Client,
    owner: &Meta,
) -> Result<(), Error> {
    let fresh: T = client
        .get(&owner.key())
        .await
        .map_err(|error| Error::other(format!("can't recheck DeletionTimestamp: {error}")))?;
    may_adopt(&T::RESOURCE.kind, owner, fresh.meta()).map_err(Error::other)
}

/// Checks that `fresh`, read live, is still `owner` and is not being deleted.
fn may_adopt(kind: &str, owner: &Meta, fresh: &Meta) -> Result<(), String> {
    if fresh.uid != owner.uid {
        return Err(format!(
            "can't recheck DeletionTimestamp: original {kind} {}/{} is gone: got uid {}, wanted {}",
            owner.namespace, owner.name, fresh.uid, owner.uid
        ));
    }
    match fresh.deletion_timestamp {
        None => Ok(()),
        Some(at) => Err(format!(
            "{}/{} has just been deleted at {}",
            fresh.namespace,
            fresh.name,
            at.to_jiff().strftime("%Y-%m-%d %H:%M:%S +0000 UTC")
        )),
    }
}

/// The decision about a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// Already owned, and matches.
    Keep,
    Adopt,
    Release,
    /// It does not concern the owner.
    Ignore,
}

/// Decides what `owner` does with `candidate`. `matches`: its selector and filters, called only
/// when the result matters.
/// Upstream: `BaseControllerRefManager.ClaimObject`.
pub fn decide(candidate: &Meta, owner: &Meta, matches: impl FnOnce() -> bool) -> Claim {
    if let Some(controller) = candidate.controller() {
        return match () {
            () if controller.uid != owner.uid => Claim::Ignore,
            // Keeping takes no action, so an owner that is being deleted may do it.
            () if matches() => Claim::Keep,
            () if owner.is_being_deleted() => Claim::Ignore,
            () => Claim::Release,
        };
    }
    let other_namespace = !owner.namespace.is_empty() && owner.namespace != candidate.namespace;
    if owner.is_being_deleted() || candidate.is_being_deleted() || other_namespace || !matches() {
        return Claim::Ignore;
    }
    Claim::Adopt
}

/// Makes the patch that adds the reference to `owner`, and the finalizers. The uid makes the API
/// server refuse another object of the same name.
fn adopt_patch(candidate: &Uid, owner: &OwnerReference, finalizers: &[&str]) -> Value {
    let mut patch = json!({"metadata": {"ownerReferences": [owner], "uid": candidate}});
    if !finalizers.is_empty() {
        patch["metadata"]["finalizers"] = json!(finalizers);
    }
    patch
}

/// Makes the patch that removes the reference to `owner`, and the finalizers.
fn release_patch(candidate: &Uid, owner: &Uid, finalizers: &[&str]) -> Value {
    let gone = json!({"$patch": "delete", "uid": owner});
    let mut patch = json!({"metadata": {"uid": candidate, "ownerReferences": [gone]}});
    if !finalizers.is_empty() {
        patch["metadata"]["$deleteFromPrimitiveList/finalizers"] = json!(finalizers);
    }
    patch
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Indexer;
    use crate::objects::{ReplicaSet, Timestamp};

    fn meta(json: Value) -> Meta {
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn pods_belong_to_an_owner_by_uid_kind_and_name() {
        let indexer = Arc::new(Indexer::new());
        indexer.add_index(&controller_index());
        for (name, kind, owner, uid) in [
            ("own", "ReplicaSet", "o", "me"),
            ("kind", "Deployment", "o", "me"),
            ("lower", "replicaset", "o", "me"),
            ("name", "ReplicaSet", "x", "me"),
            ("uid", "ReplicaSet", "o", "other"),
        ] {
            let pod = json!({ "metadata": {
                "name": name, "namespace": "ns", "ownerReferences": [{
                    "apiVersion": "apps/v1", "kind": kind, "name": owner, "uid": uid,
                    "controller": true,
                }],
            } });
            indexer.insert(Arc::new(serde_json::from_value(pod).unwrap()));
        }
        let orphan = json!({ "metadata": { "name": "orphan", "namespace": "ns" } });
        indexer.insert(Arc::new(serde_json::from_value(orphan).unwrap()));
        let (pods, owner) =
            (Lister::new(indexer), meta(json!({ "namespace": "ns", "name": "o", "uid": "me" })));
        let names = |pods: Vec<Arc<Pod>>| -> Vec<String> {
            let mut names: Vec<String> = pods.iter().map(|pod| pod.meta.name.to_string()).collect();
            names.sort();
            names
        };
        assert_eq!(names(owned_pods::<ReplicaSet>(&pods, &owner)), ["own"]);
        assert_eq!(names(owned_or_orphaned_pods::<ReplicaSet>(&pods, &owner)), ["orphan", "own"]);
    }

    #[test]
    fn candidates_are_kept_adopted_released_or_ignored() {
        use Claim::{Adopt, Ignore, Keep, Release};
        let controlled_by = |uid: &str| {
            json!({"namespace": "ns", "ownerReferences": [
                {"apiVersion": "v1", "kind": "K", "name": "o", "uid": uid, "controller": true}]})
        };
        let only_owned = json!({"namespace": "ns", "ownerReferences": [
            {"apiVersion": "v1", "kind": "K", "name": "o", "uid": "other"}]});
        let orphan = json!({"namespace": "ns"});
        let going = json!({"namespace": "ns", "deletionTimestamp": "2026-01-01T00:00:00Z"});
        let elsewhere = json!({"namespace": "elsewhere"});
        // candidate, matches, the owner's decision while it stays, and while it is being deleted
        for (candidate, matches, staying, deleting) in [
            (controlled_by("me"), true, Keep, Keep),
            (controlled_by("me"), false, Release, Ignore),
            (controlled_by("other"), true, Ignore, Ignore),
            (controlled_by("other"), false, Ignore, Ignore),
            (orphan.clone(), true, Adopt, Ignore),
            (orphan, false, Ignore, Ignore),
            (only_owned, true, Adopt, Ignore),
            (going, true, Ignore, Ignore),
            (elsewhere, true, Ignore, Ignore),
        ] {
            let candidate = meta(candidate);
            let mut owner = meta(json!({"namespace": "ns", "uid": "me"}));
            assert_eq!(decide(&candidate, &owner, || matches), staying, "{candidate:?} {matches}");
            owner.deletion_timestamp = Some(Timestamp::from_secs(1));
            assert_eq!(decide(&candidate, &owner, || matches), deleting, "{candidate:?} {matches}");
        }
    }

    #[test]
    fn patches_are_those_of_upstream() {
        let owner = meta(json!({"namespace": "ns", "name": "web", "uid": "o"}));
        let owner = owner.controller_ref::<crate::objects::Deployment>();
        assert_eq!(
            adopt_patch(&"c".into(), &owner, &[]),
            json!({"metadata": {"uid": "c", "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "o",
                "controller": true, "blockOwnerDeletion": true}]}})
        );
        assert_eq!(
            adopt_patch(&"c".into(), &owner, &["f"])["metadata"]["finalizers"],
            json!(["f"])
        );
        assert_eq!(
            release_patch(&"c".into(), &"o".into(), &["f"]),
            json!({"metadata": {"uid": "c", "ownerReferences": [{"$patch": "delete", "uid": "o"}],
                "$deleteFromPrimitiveList/finalizers": ["f"]}})
        );
    }

    #[test]
    fn a_deleted_or_terminating_owner_adopts_nothing() {
        let owner = meta(json!({"namespace": "ns", "name": "web", "uid": "a"}));
        let deployment = |fresh: &Meta| may_adopt("Deployment", &owner, fresh);
        assert_eq!(deployment(&owner), Ok(()));
        assert_eq!(
            deployment(&meta(json!({"namespace": "ns", "name": "web", "uid": "b"}))).unwrap_err(),
            "can't recheck DeletionTimestamp: original Deployment ns/web is gone: got uid b, wanted a"
        );
        let going = json!({"namespace": "ns", "name": "web", "uid": "a",
            "deletionTimestamp": "2026-05-01T10:00:00Z"});
        assert_eq!(
            deployment(&meta(going)).unwrap_err(),
            "ns/web has just been deleted at 2026-05-01 10:00:00 +0000 UTC"
        );
    }
}
