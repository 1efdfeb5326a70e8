//! What is done about one object: nothing is deleted that was not looked up live.
//! Upstream: `attemptToDeleteItem`, `attemptToOrphanWorker`.

use std::sync::Arc;

use serde_json::{Value, json};

use super::GarbageCollector;
use super::graph::{FOREGROUND, Identity, Node, ORPHAN};
use crate::client::{Delete, Dynamic, Patch, Propagation};
use crate::controllers::{Error, Next, SyncResult};
use crate::objects::{Istr, Meta, ObjectKey, OwnerReference, PartialObjectMetadata, Uid};

/// What an owner reference leads to.
enum Owner {
    /// It is there, and stays.
    Solid,
    /// There is no such object.
    Dangling,
    /// It is being deleted in the foreground: it waits for its dependents.
    WaitsForDependents,
}

/// Tries of removing a finalizer that others change too.
const TRIES: u32 = 5;

impl GarbageCollector {
    pub(super) async fn attempt_to_delete(self: Arc<Self>, uid: Uid) -> SyncResult {
        self.ready.stopped().await;
        let Some(node) = self.graph().get(&uid).cloned() else { return Ok(Next::Done) };
        if node.being_deleted && !node.deleting_dependents {
            return Ok(Next::Done);
        }
        let (verbs, key) = self.verbs(&node.identity).await?;
        let live = match verbs.get::<PartialObjectMetadata>(&key).await {
            Ok(live) if live.meta.uid == uid => live.meta,
            Ok(_) => return Ok(self.is_absent(&node.identity)),
            Err(error) if error.is_not_found() => return Ok(self.is_absent(&node.identity)),
            Err(error) => return Err(error.into()),
        };
        if node.deleting_dependents {
            return self.wait_for_dependents(&node).await;
        }
        let (mut solid, mut loose, mut waiting) = (false, Vec::new(), false);
        for owner in live.owners() {
            match self.classify(owner, &node.identity).await? {
                None => return Ok(Next::Done),
                Some(Owner::Solid) => solid = true,
                Some(Owner::Dangling) => loose.push(owner.uid.clone()),
                Some(Owner::WaitsForDependents) => {
                    waiting = true;
                    loose.push(owner.uid.clone());
                }
            }
        }
        if solid && !loose.is_empty() {
            self.drop_owners(&node.identity, &loose).await?;
        }
        if live.owners().is_empty() || solid {
            // A virtual node is looked at until a watch has shown it.
            return Ok(if node.is_virtual { Next::Backoff } else { Next::Done });
        }
        let policy = match &live {
            _ if waiting && !node.dependents.is_empty() => {
                let dependents = self.graph().dependents(&uid);
                if dependents.iter().any(|dependent| dependent.deleting_dependents) {
                    // A cycle of owners that wait for each other is broken here.
                    self.unblock_owners(&node.identity, &live).await?;
                }
                Propagation::Foreground
            }
            live if live.has_finalizer(ORPHAN) => Propagation::Orphan,
            live if live.has_finalizer(FOREGROUND) => Propagation::Foreground,
            _ => Propagation::Background,
        };
        self.delete(&node, &verbs, &key, live, policy).await
    }

    async fn delete(
        &self,
        node: &Node,
        verbs: &Dynamic,
        key: &ObjectKey,
        live: Meta,
        policy: Propagation,
    ) -> SyncResult {
        let delete = Delete { propagation_policy: Some(policy), ..Delete::new() };
        let delete = delete.uid(live.uid.clone());
        let at_version = delete.clone().resource_version(live.resource_version);
        let mut ended = verbs.delete(key, at_version).await;
        if ended.as_ref().is_err_and(|error| error.is_conflict()) {
            let now = verbs.get::<PartialObjectMetadata>(key).await;
            match now {
                // It changed, its owners did not: others' updates must not keep it alive.
                Ok(now) if now.meta.uid == live.uid && now.meta.owners() == live.owners() => {
                    ended = verbs.delete(key, delete).await;
                }
                Err(error) if error.is_not_found() => ended = Err(error),
                _ => {}
            }
        }
        match ended {
            Ok(()) => Ok(Next::Done),
            Err(error) if error.is_not_found() => Ok(self.is_absent(&node.identity)),
            Err(error) => Err(error.into()),
        }
    }

    fn is_absent(&self, identity: &Identity) -> Next {
        self.change(|graph, wake| graph.verified_absent(identity, wake));
        Next::Done
    }

    /// The verbs over an object's resource, and its key there.
    async fn verbs(&self, identity: &Identity) -> Result<(Dynamic, ObjectKey), Error> {
        let (group, version) =
            identity.api_version.rsplit_once('/').unwrap_or(("", identity.api_version.as_str()));
        let mapper = self.client.discovery().await?;
        let Some(resource) = mapper.resource_for(group, version, &identity.kind) else {
            return Err(Error::Stale(format!(
                "unable to get REST mapping for {}/{}",
                identity.api_version, identity.kind
            )));
        };
        let namespace =
            if resource.namespaced { identity.namespace.clone() } else { Istr::default() };
        let key = ObjectKey { namespace, name: identity.name.clone() };
        if resource.namespaced && key.namespace.is_empty() {
            let fault = "cluster-scoped objects cannot refer to namespaced owners";
            return Err(Error::Terminal(Box::new(Error::other(fault))));
        }
        Ok((self.client.resource(&resource).metadata_only(), key))
    }

    /// `None`: a cluster-scoped object that names a namespaced owner; it is left alone.
    async fn classify(
        &self,
        owner: &OwnerReference,
        item: &Identity,
    ) -> Result<Option<Owner>, Error> {
        let named = Identity::of_owner(owner, &item.namespace);
        let cluster = Identity { namespace: Istr::default(), ..named.clone() };
        if self.graph().is_absent(&named) || self.graph().is_absent(&cluster) {
            return Ok(Some(Owner::Dangling));
        }
        let (verbs, key) = match self.verbs(&named).await {
            Err(Error::Terminal(why)) => {
                log::info!("garbage collector: {item}: {why}");
                return Ok(None);
            }
            found => found?,
        };
        let place = Identity { namespace: key.namespace.clone(), ..named };
        match verbs.get::<PartialObjectMetadata>(&key).await {
            Ok(found) if found.meta.uid == owner.uid => {
                let waits = found.meta.is_being_deleted() && found.meta.has_finalizer(FOREGROUND);
                Ok(Some(if waits { Owner::WaitsForDependents } else { Owner::Solid }))
            }
            Err(error) if !error.is_not_found() => Err(error.into()),
            _ => {
                self.graph().remember_absent(place);
                Ok(Some(Owner::Dangling))
            }
        }
    }

    /// Lets go of an owner that waits, once nothing blocks it.
    async fn wait_for_dependents(&self, node: &Node) -> SyncResult {
        let blocking = self.graph().blocking_dependents(&node.identity.uid);
        if blocking.is_empty() {
            return self.remove_finalizer(&node.identity, FOREGROUND).await;
        }
        for dependent in blocking.into_iter().filter(|node| !node.deleting_dependents) {
            self.to_delete.add(dependent.identity.uid);
        }
        Ok(Next::Done)
    }

    pub(super) async fn attempt_to_orphan(self: Arc<Self>, uid: Uid) -> SyncResult {
        self.ready.stopped().await;
        let Some(owner) = self.graph().get(&uid).cloned() else { return Ok(Next::Done) };
        let dependents = self.graph().dependents(&uid);
        for dependent in dependents {
            self.drop_owners(&dependent.identity, std::slice::from_ref(&uid)).await?;
        }
        self.remove_finalizer(&owner.identity, ORPHAN).await
    }

    /// Takes references out of an object; one that is gone has none.
    async fn drop_owners(&self, item: &Identity, owners: &[Uid]) -> Result<(), Error> {
        let (verbs, key) = self.verbs(item).await?;
        let gone: Vec<Value> =
            owners.iter().map(|uid| json!({ "$patch": "delete", "uid": uid })).collect();
        let body = json!({ "metadata": { "uid": item.uid, "ownerReferences": gone } });
        let answer = verbs.patch::<PartialObjectMetadata>(&key, &Patch::StrategicMerge(body)).await;
        match answer {
            Err(error) if error.code() == Some(415) => {
                self.replace_owners(&verbs, &key, item, |owner| {
                    (!owners.contains(&owner.uid)).then(|| owner.clone())
                })
                .await
            }
            Err(error) if !error.is_not_found() => Err(error.into()),
            _ => Ok(()),
        }
    }

    async fn unblock_owners(&self, item: &Identity, live: &Meta) -> Result<(), Error> {
        let (verbs, key) = self.verbs(item).await?;
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
            Err(error) if error.code() == Some(415) => {
                self.replace_owners(&verbs, &key, item, |owner| {
                    Some(OwnerReference { block_owner_deletion: Some(false), ..owner.clone() })
                })
                .await
            }
            Err(error) => Err(error.into()),
            Ok(_) => Ok(()),
        }
    }

    /// For custom resources, which know no strategic merge.
    async fn replace_owners(
        &self,
        verbs: &Dynamic,
        key: &ObjectKey,
        item: &Identity,
        keep: impl Fn(&OwnerReference) -> Option<OwnerReference>,
    ) -> Result<(), Error> {
        let live = match verbs.get::<PartialObjectMetadata>(key).await {
            Err(error) if error.is_not_found() => return Ok(()),
            live => live?.meta,
        };
        let owners: Vec<OwnerReference> = live.owners().iter().filter_map(keep).collect();
        let body = json!({ "metadata": {
            "uid": item.uid, "resourceVersion": live.resource_version.to_string(),
            "ownerReferences": owners,
        }});
        verbs.patch::<PartialObjectMetadata>(key, &Patch::Merge(body)).await?;
        Ok(())
    }

    async fn remove_finalizer(&self, item: &Identity, finalizer: &str) -> SyncResult {
        let (verbs, key) = self.verbs(item).await?;
        for _ in 0..TRIES {
            let live = match verbs.get::<PartialObjectMetadata>(&key).await {
                Err(error) if error.is_not_found() => return Ok(Next::Done),
                live => live?.meta,
            };
            if live.uid != item.uid || !live.has_finalizer(finalizer) {
                return Ok(Next::Done);
            }
            let left: Vec<&Istr> =
                live.finalizers().iter().filter(|name| *name != finalizer).collect();
            let body = json!({ "metadata": {
                "resourceVersion": live.resource_version.to_string(), "finalizers": left,
            }});
            match verbs.patch::<PartialObjectMetadata>(&key, &Patch::Merge(body)).await {
                Err(error) if error.is_conflict() => continue,
                Err(error) if error.is_not_found() => return Ok(Next::Done),
                answer => return answer.map(|_| Next::Done).map_err(Error::from),
            }
        }
        Err(Error::other(format!("{item}: the finalizer {finalizer} could not be removed yet")))
    }
}
