//! The deletion of one object, or the removal of its references: always after a live read.
//! Upstream: `attemptToDeleteItem`, `attemptToOrphanWorker`.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::GarbageCollector;
use super::graph::{FOREGROUND, Identity, ORPHAN, Scope};
use crate::client::{Delete, Dynamic, Patch, Propagation};
use crate::controllers::runner::batch::together;
use crate::controllers::{Error, Next, SyncResult};
use crate::lookup::Lookup;
use crate::objects::{Istr, Meta, ObjectKey, OwnerReference, PartialObjectMetadata, Uid};

/// The state of an owner, as `classify` finds it.
enum Owner {
    /// The owner exists, and does not wait for its dependents.
    Solid,
    /// There is no such object.
    Dangling,
    /// The owner is being deleted in the foreground: it waits for its dependents.
    WaitsForDependents,
}

/// The result of an attempt to delete an object.
enum Attempt {
    /// The object was deleted or changed, or it stays.
    Done,
    /// The API server has no such object.
    Absent,
    /// The object is cluster-scoped and names an owner that has a namespace: a retry cannot find
    /// it.
    NamespacedOwner,
}

/// The number of attempts to remove a finalizer, which conflict with the writes of others, and the
/// delay between them: the first, and the factor by which it grows. Upstream:
/// `retry.DefaultBackoff`.
const ATTEMPTS: u32 = 4;
const FIRST_BACKOFF: Duration = Duration::from_millis(10);
const BACKOFF_FACTOR: u32 = 5;

/// The code of a server that does not support a strategic merge for the resource.
const UNSUPPORTED_MEDIA_TYPE: u16 = 415;

/// The number of dependents that are patched concurrently.
const ORPHAN_BATCH: usize = 100;

impl GarbageCollector {
    /// Deletes the object with this uid if it has lost its owners: the sync of `to_delete`.
    pub(super) async fn attempt_to_delete(self: Arc<Self>, uid: Uid) -> SyncResult {
        self.graph().forget_absent_after_loss(self.history.losses());
        let (identity, waits_for_dependents) = match self.graph().get(&uid) {
            None => return Ok(Next::Done),
            // The API server is ending it already, and it does not wait for dependents.
            Some(node) if node.being_deleted && !node.deleting_dependents => {
                return Ok(Next::Done);
            }
            Some(node) => (node.identity.clone(), node.deleting_dependents),
        };
        match self.attempt_to_delete_item(&identity, waits_for_dependents).await? {
            // A virtual node is processed again until a watch has shown it.
            Attempt::Done if self.graph().get(&uid).is_some_and(|node| node.is_virtual) => {
                Ok(Next::Backoff)
            }
            Attempt::Done | Attempt::NamespacedOwner => Ok(Next::Done),
            Attempt::Absent => {
                self.change_graph(|graph, emit| graph.handle_absence(&identity, emit));
                Ok(Next::Done)
            }
        }
    }

    /// Reads an object from the API server, and deletes it if it has lost its owners. An object
    /// that waits for its dependents gets them queued instead. Upstream: `attemptToDeleteItem`.
    async fn attempt_to_delete_item(
        &self,
        identity: &Identity,
        waits_for_dependents: bool,
    ) -> Result<Attempt, Error> {
        let Some((verbs, key)) = self.verbs_and_key(identity).await? else {
            return Ok(Attempt::NamespacedOwner);
        };
        let live = match verbs.get::<PartialObjectMetadata>(&key).await {
            Ok(live) if live.meta.uid == identity.uid => live.meta,
            Ok(_) => return Ok(Attempt::Absent),
            Err(error) if error.is_not_found() => return Ok(Attempt::Absent),
            Err(error) => return Err(error.into()),
        };
        if waits_for_dependents {
            self.process_deleting_dependents(identity).await?;
            return Ok(Attempt::Done);
        }
        let (mut has_solid, mut has_waiting) = (false, false);
        // The owners that are dangling or waiting.
        let mut to_drop = Vec::new();
        for owner in live.owners() {
            match self.classify(owner, identity).await? {
                None => return Ok(Attempt::NamespacedOwner),
                Some(Owner::Solid) => has_solid = true,
                Some(Owner::Dangling) => to_drop.push(owner.uid.clone()),
                Some(Owner::WaitsForDependents) => {
                    has_waiting = true;
                    to_drop.push(owner.uid.clone());
                }
            }
        }
        if has_solid && !to_drop.is_empty() {
            self.drop_owners(identity, &to_drop).await?;
        }
        if live.owners().is_empty() || has_solid {
            return Ok(Attempt::Done);
        }
        let (has_dependents, in_cycle, has_unseen_owner) = {
            let graph = self.graph();
            let mut dependents = graph.dependents(&identity.uid).peekable();
            let has_dependents = dependents.peek().is_some();
            let in_cycle = dependents.any(|node| node.deleting_dependents);
            (has_dependents, in_cycle, graph.has_unseen_owner(&identity.uid, &to_drop))
        };
        let missing_owners = if has_unseen_owner && !has_waiting && !live.is_being_deleted() {
            Some(owners_text(identity, &live))
        } else {
            None
        };
        let policy = if has_waiting && has_dependents {
            if in_cycle {
                // A cycle of owners that wait for each other is broken here.
                self.unblock_owners(identity, &live).await?;
            }
            Propagation::Foreground
        } else if live.has_finalizer(ORPHAN) {
            Propagation::Orphan
        } else if live.has_finalizer(FOREGROUND) {
            Propagation::Foreground
        } else {
            Propagation::Background
        };
        let result = self.delete_item(&verbs, &key, live, policy).await?;
        if let (Attempt::Done, Some(owners)) = (&result, missing_owners) {
            let text = format!("no object has the kind, name and uid of its owner {owners}");
            log::warn!("Deleting {identity}: {text}");
            self.record_warning(identity, "OwnerNotFound", format!("Deleting it: {text}"));
        }
        Ok(result)
    }

    /// Deletes an object that was read as `live`, unless its owners have changed since.
    async fn delete_item(
        &self,
        verbs: &Dynamic,
        key: &ObjectKey,
        live: Meta,
        policy: Propagation,
    ) -> Result<Attempt, Error> {
        let delete = Delete { propagation_policy: Some(policy), ..Delete::new() };
        let delete = delete.uid(live.uid.clone());
        let at_version = delete.clone().resource_version(live.resource_version);
        let mut deleted = verbs.delete(key, at_version).await;
        if deleted.as_ref().is_err_and(|error| error.is_conflict()) {
            match verbs.get::<PartialObjectMetadata>(key).await.map(|now| now.meta) {
                // It has changed, but its owners have not: updates by others must not keep it.
                Ok(now)
                    if now.uid == live.uid
                        && now.resource_version != live.resource_version
                        && now.owners() == live.owners() =>
                {
                    deleted = verbs.delete(key, delete).await;
                }
                Err(error) if error.is_not_found() => deleted = Err(error),
                // Its owners have changed, or it cannot be read: the conflict is returned.
                _ => {}
            }
        }
        match deleted {
            Ok(()) => Ok(Attempt::Done),
            Err(error) if error.is_not_found() => Ok(Attempt::Absent),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns a client of the object's resource, and the object's key; `None` if the resource is
    /// namespaced and the identity has no namespace. `Err(NotYet)`: no such kind is served.
    async fn verbs_and_key(
        &self,
        identity: &Identity,
    ) -> Result<Option<(Dynamic, ObjectKey)>, Error> {
        let Scope { api_version, kind, namespace } = &*identity.scope;
        let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version.as_str()));
        let mapper = self.client.discovery().await?;
        let Some(resource) = mapper.resource_for(group, version, kind) else {
            return Err(Error::NotYet(format!(
                "unable to get REST mapping for {api_version}/{kind}"
            )));
        };
        if resource.namespaced && namespace.is_empty() {
            return Ok(None);
        }
        let namespace = if resource.namespaced { namespace.clone() } else { Istr::default() };
        let key = ObjectKey { namespace, name: identity.name.clone() };
        Ok(Some((self.client.resource(&resource).metadata_only(), key)))
    }

    /// Returns the state of an owner of `item`, from memory or from the API server; `None` if the
    /// item is cluster-scoped and names a namespaced owner.
    async fn classify(
        &self,
        owner: &OwnerReference,
        item: &Identity,
    ) -> Result<Option<Owner>, Error> {
        let mut named = Identity::of_owner(owner, &item.scope.namespace);
        let cluster_scoped = named.in_namespace(&Istr::default());
        if self.graph().is_absent(&named) || self.graph().is_absent(&cluster_scoped) {
            return Ok(Some(Owner::Dangling));
        }
        let mut mapped = self.verbs_and_key(&named).await;
        // The version that the reference names is not served.
        if matches!(mapped, Err(Error::NotYet(_))) {
            let observed = self.graph().observed_identity(owner, &item.scope.namespace).cloned();
            if let Some(observed) = observed {
                mapped = self.verbs_and_key(&observed).await;
                named = observed;
            }
        }
        let Some((verbs, key)) = mapped? else {
            log::info!("{item} is cluster-scoped, but refers to a namespaced owner: {named}");
            return Ok(None);
        };
        let identity = named.in_namespace(&key.namespace);
        match verbs.get::<PartialObjectMetadata>(&key).await {
            Ok(live) if live.meta.uid == owner.uid => {
                let waits = live.meta.is_being_deleted() && live.meta.has_finalizer(FOREGROUND);
                Ok(Some(if waits { Owner::WaitsForDependents } else { Owner::Solid }))
            }
            Err(error) if !error.is_not_found() => Err(error.into()),
            // Not found, or the name is that of another object: the owner is gone.
            _ => {
                self.graph().remember_absent(identity);
                Ok(Some(Owner::Dangling))
            }
        }
    }

    /// Queues the dependents that block the deletion of `owner`; if there are none, removes its
    /// finalizer. Upstream: `processDeletingDependentsItem`.
    async fn process_deleting_dependents(&self, owner: &Identity) -> Result<(), Error> {
        {
            let graph = self.graph();
            let mut blocking = graph.blocking_dependents(&owner.uid).peekable();
            if blocking.peek().is_some() {
                for dependent in blocking.filter(|node| !node.deleting_dependents) {
                    self.to_delete.add(dependent.identity.uid.clone());
                }
                return Ok(());
            }
        }
        self.remove_finalizer(owner, FOREGROUND).await
    }

    /// Removes the owner with this uid from its dependents' references, then removes the finalizer
    /// `orphan` from the owner: the sync of `to_orphan`.
    pub(super) async fn attempt_to_orphan(self: Arc<Self>, uid: Uid) -> SyncResult {
        let (owner, dependents): (Identity, Vec<Identity>) = {
            let graph = self.graph();
            let Some(owner) = graph.get(&uid) else { return Ok(Next::Done) };
            let dependents = graph.dependents(&uid).map(|node| node.identity.clone());
            (owner.identity.clone(), dependents.collect())
        };
        let mut failures = Vec::new();
        for batch in dependents.chunks(ORPHAN_BATCH) {
            let release = |dependent: &Identity| {
                let (this, dependent, uid) = (self.clone(), dependent.clone(), uid.clone());
                async move { this.drop_owners(&dependent, &[uid]).await }
            };
            let results = together(batch.iter().map(release)).await;
            failures.extend(results.into_iter().filter_map(Result::err));
        }
        if let Some(error) = Error::many(failures) {
            return Err(Error::during("failed to orphan dependents", error));
        }
        self.remove_finalizer(&owner, ORPHAN).await?;
        Ok(Next::Done)
    }

    /// Removes owner references from an object, if it still exists.
    async fn drop_owners(&self, item: &Identity, owners: &[Uid]) -> Result<(), Error> {
        let Some((verbs, key)) = self.verbs_and_key(item).await? else { return Ok(()) };
        let deletions: Vec<Value> =
            owners.iter().map(|uid| json!({ "$patch": "delete", "uid": uid })).collect();
        let body = json!({ "metadata": { "uid": item.uid, "ownerReferences": deletions } });
        let answer = verbs.patch::<PartialObjectMetadata>(&key, &Patch::StrategicMerge(body)).await;
        match answer {
            Err(error) if error.code() == Some(UNSUPPORTED_MEDIA_TYPE) => {
                let dropped = Lookup::new(owners, |uid| uid);
                self.replace_owners(&verbs, &key, item, |owner| {
                    match dropped.contains(&owner.uid) {
                        true => None,
                        false => Some(owner.clone()),
                    }
                })
                .await
            }
            Err(error) if !error.is_not_found() => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Sets `blockOwnerDeletion` to false in the owner references of an object that block.
    async fn unblock_owners(&self, item: &Identity, live: &Meta) -> Result<(), Error> {
        let Some((verbs, key)) = self.verbs_and_key(item).await? else { return Ok(()) };
        let blocks = |owner: &&OwnerReference| owner.block_owner_deletion == Some(true);
        let owners: Vec<Value> = live
            .owners()
            .iter()
            .filter(blocks)
            .map(|owner| json!({ "uid": owner.uid, "blockOwnerDeletion": false }))
            .collect();
        let body = json!({ "metadata": { "uid": item.uid, "ownerReferences": owners } });
        let answer = verbs.patch::<PartialObjectMetadata>(&key, &Patch::StrategicMerge(body)).await;
        match answer {
            Err(error) if error.code() == Some(UNSUPPORTED_MEDIA_TYPE) => {
                // As upstream, also in the references that do not block.
                self.replace_owners(&verbs, &key, item, |owner| {
                    Some(OwnerReference { block_owner_deletion: Some(false), ..owner.clone() })
                })
                .await
            }
            Err(error) => Err(error.into()),
            Ok(_) => Ok(()),
        }
    }

    /// Replaces each owner reference by the result of `change`, or removes it if that is `None`.
    /// For custom resources, which do not support a strategic merge.
    async fn replace_owners(
        &self,
        verbs: &Dynamic,
        key: &ObjectKey,
        item: &Identity,
        change: impl Fn(&OwnerReference) -> Option<OwnerReference>,
    ) -> Result<(), Error> {
        let live = match verbs.get::<PartialObjectMetadata>(key).await {
            Err(error) if error.is_not_found() => return Ok(()),
            live => live?.meta,
        };
        let owners: Vec<OwnerReference> = live.owners().iter().filter_map(change).collect();
        let body = json!({ "metadata": {
            "uid": item.uid, "resourceVersion": live.resource_version.to_string(),
            "ownerReferences": owners,
        }});
        verbs.patch::<PartialObjectMetadata>(key, &Patch::Merge(body)).await?;
        Ok(())
    }

    /// Removes a finalizer from an object, with retries after conflicts. Succeeds if the object or
    /// the finalizer is gone.
    async fn remove_finalizer(&self, item: &Identity, finalizer: &str) -> Result<(), Error> {
        let Some((verbs, key)) = self.verbs_and_key(item).await? else { return Ok(()) };
        let mut wait = FIRST_BACKOFF;
        for attempt in 1..=ATTEMPTS {
            let live = match verbs.get::<PartialObjectMetadata>(&key).await {
                Err(error) if error.is_not_found() => return Ok(()),
                live => live?.meta,
            };
            if live.uid != item.uid || !live.has_finalizer(finalizer) {
                return Ok(());
            }
            let remaining: Vec<&Istr> =
                live.finalizers().iter().filter(|name| *name != finalizer).collect();
            let body = json!({ "metadata": {
                "resourceVersion": live.resource_version.to_string(), "finalizers": remaining,
            }});
            match verbs.patch::<PartialObjectMetadata>(&key, &Patch::Merge(body)).await {
                Err(error) if error.is_conflict() && attempt == ATTEMPTS => break,
                Err(error) if error.is_conflict() => self.clock.sleep(wait).await,
                Err(error) if error.is_not_found() => return Ok(()),
                answer => return answer.map(drop).map_err(Error::from),
            }
            wait *= BACKOFF_FACTOR;
        }
        Err(Error::other(format!("{item}: the finalizer {finalizer} could not be removed yet")))
    }
}

/// Describes the owners that an object names, for a warning.
fn owners_text(item: &Identity, live: &Meta) -> String {
    let owners = live.owners().iter();
    let owners = owners.map(|owner| Identity::of_owner(owner, &item.scope.namespace).to_string());
    owners.collect::<Vec<_>>().join(" or ")
}

#[cfg(test)]
mod tests {
    use futures_lite::future::block_on;

    use super::super::graph::Graph;
    use super::*;
    use crate::cache::VersionLosses;
    use crate::client::testing::answering;
    use crate::clock::FakeClock;
    use crate::controllers::Queue;
    use crate::events::Recorder;
    use crate::events::testing::Heard;
    use crate::objects::Timestamp;

    #[test]
    fn the_missing_owner_of_an_object_is_reported_with_its_deletion() {
        let (absent, none) = ("00000000-0000-4000-8000-000000000000", Value::Null);
        let deletion_time = json!("2026-01-01T00:00:00Z");
        // The answer to the deletion, when the object's deletion began, whether a watch has shown
        // that its owner went, and whether the owner is reported.
        for (code, deletion, went, reported) in [
            (200, &none, false, true),
            (200, &none, true, false),
            (200, &deletion_time, false, false),
            (404, &none, false, false),
            // Its owners may be corrected.
            (409, &none, false, false),
            (403, &none, false, false),
        ] {
            let meta = json!({
                "namespace": "ns", "name": "pod", "uid": "u", "resourceVersion": "7",
                "deletionTimestamp": deletion, "ownerReferences": [{
                    "apiVersion": "v1", "kind": "Pod", "name": "owner", "uid": absent,
                }],
            });
            let live = json!({ "metadata": meta });
            let pods = json!({
                "resource": "pods", "responseKind": { "kind": "Pod" }, "scope": "Namespaced",
            });
            let discovery = json!({ "kind": "APIGroupDiscoveryList", "items": [{
                "metadata": { "name": "" }, "versions": [{ "version": "v1", "resources": [pods] }],
            }] });
            let client = block_on(answering(move |line| {
                let status = |code: u16| (code, json!({ "kind": "Status", "code": code }));
                let words: Vec<&str> = line.split(' ').collect();
                match words[..2] {
                    ["GET", "/api"] => (200, discovery.clone()),
                    ["GET", "/apis"] => (200, json!({})),
                    ["GET", "/api/v1/namespaces/ns/pods/pod"] => (200, live.clone()),
                    ["DELETE", _] => status(code),
                    _ => status(404),
                }
            }));
            let (clock, events) =
                (FakeClock::new(Timestamp::from_secs(0)), Arc::<Heard>::default());
            let mut graph = Graph::default();
            let scope =
                Scope { kind: "Pod".into(), api_version: "v1".into(), namespace: "ns".into() };
            let identity = |name: &str, uid: &str| Identity {
                scope: scope.clone().shared(),
                name: name.into(),
                uid: Uid::new(uid),
            };
            let pod = identity("pod", "u");
            if went {
                graph.handle_deletion(&identity("owner", absent), &mut drop);
            }
            let observed: Meta = serde_json::from_value(meta).expect("the metadata");
            graph.observe(pod.clone(), None, &observed, &mut drop);
            let collector = GarbageCollector {
                client,
                recorder: Recorder::to_sink(events.clone()),
                clock: clock.clone(),
                history: VersionLosses::default(),
                graph: graph.into(),
                to_delete: Queue::for_test(clock.clone()),
                to_orphan: Queue::for_test(clock),
            };
            let attempt = block_on(collector.attempt_to_delete_item(&pod, false));
            assert_eq!(attempt.is_ok(), matches!(code, 200 | 404), "{code}");
            let text = format!(
                "Warning OwnerNotFound Deleting it: no object has the kind, name and uid of its \
                 owner [v1/Pod, namespace: ns, name: owner, uid: {absent}]"
            );
            let expected = if reported { vec![text] } else { vec![] };
            assert_eq!(events.take(), expected, "{code} {deletion} {went}");
        }
    }
}
