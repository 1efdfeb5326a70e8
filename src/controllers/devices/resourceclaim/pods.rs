//! The claims of a pod: their creation, their names in its status, and their reservation.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{FIELD_MANAGER, Key, ResourceClaims};
use crate::cache::{Index, IndexValue, Lister};
use crate::client::Patch;
use crate::controllers::devices::consumers::{
    ClaimName, ClaimStatuses, Consumer, UNSUPPORTED, by_entry, claims_of, consumer_of, group_key,
    has_claims, is_for_pod, is_reserved_for,
};
use crate::controllers::{Error, Next, Queue, SyncResult};
use crate::lookup::Lookup;
use crate::objects::{
    ArcStr, Istr, Meta, ObjectKey, OwnerReference, PartialObjectMetadata, Pod, PodGroup,
    PodResourceClaim, Resource, ResourceClaim, ResourceClaimStatus, ResourceType,
};

/// Pods by the claims that they use.
pub(super) const BY_CLAIM: Index<Pod> = Index::new("podResourceClaim", |pod, add| {
    for name in claims_of(pod).filter_map(ClaimName::known) {
        add(IndexValue::Key(ObjectKey::new(&pod.meta.namespace, name)));
    }
});
/// Pods by the templates of their claims.
pub(super) const BY_TEMPLATE: Index<Pod> = Index::new("podResourceClaimTemplate", |pod, add| {
    let entries = pod.spec.shape.resource_claims.iter();
    for name in entries.filter_map(|entry| entry.resource_claim_template_name.as_ref()) {
        add(IndexValue::Key(ObjectKey::new(&pod.meta.namespace, name)));
    }
});

/// Whether no container of it runs or will run. Upstream: `isPodDone`.
pub(super) fn is_done(pod: &Pod) -> bool {
    pod.is_terminal() || pod.meta.is_being_deleted() && pod.spec.node_name.is_empty()
}

impl ResourceClaims {
    pub(super) fn pod_is_gone(&self, pod: &Pod, queue: &Queue<Key>) {
        if has_claims(pod) {
            self.deleted.add(&pod.meta.uid);
            self.release_claims(pod, queue);
        }
    }

    /// Queues the pod if it needs a sync, and its claims if it does not need them.
    pub(super) fn pod_changed(&self, pod: &Pod, queue: &Queue<Key>) {
        if !has_claims(pod) {
            return;
        }
        if is_done(pod) {
            self.release_claims(pod, queue);
        } else if self.needs_work(pod) {
            queue.add(Key::Pod(pod.meta.key()));
        }
    }

    /// Upstream: `podNeedsWork`.
    fn needs_work(&self, pod: &Pod) -> bool {
        let statuses = by_entry(pod.resource_claims());
        let mut entries = pod.spec.shape.resource_claims.iter();
        !pod.meta.is_being_deleted()
            && entries.any(|entry| self.entry_needs_work(pod, entry, &statuses))
    }

    fn entry_needs_work(
        &self,
        pod: &Pod,
        entry: &PodResourceClaim,
        statuses: &ClaimStatuses<'_>,
    ) -> bool {
        let name = ClaimName::of(entry, statuses);
        let (name, is_made) = match name {
            ClaimName::Given(name) => (name, false),
            ClaimName::Made(name) => (name, true),
            ClaimName::NotNeeded => return false,
            ClaimName::NotMade | ClaimName::Unsupported => return true,
        };
        let key = ObjectKey::new(&pod.meta.namespace, name);
        let Some(claim) = self.claims.get(&key) else {
            return is_made && self.is_to_be_made(pod, entry);
        };
        if is_made && is_for_pod(pod, &claim, self.has_groups()).is_err() {
            // The pod has to wait until the other claim is deleted.
            return false;
        }
        !pod.spec.node_name.is_empty() && self.is_to_be_reserved(pod, &claim)
    }

    /// Whether the entry's missing claim is to be created for the pod.
    fn is_to_be_made(&self, pod: &Pod, entry: &PodResourceClaim) -> bool {
        match self.group_of(pod) {
            Err(_) => true,
            Ok(group) => consumer_of(pod, group.as_deref(), entry)
                .is_ok_and(|consumer| consumer == Consumer::Pod),
        }
    }

    fn is_to_be_reserved(&self, pod: &Pod, claim: &ResourceClaim) -> bool {
        claim.status.allocation.is_some() && !is_reserved_for(pod, claim, self.has_groups())
    }

    /// The PodGroup of the pod. An error when the pod names one that is missing.
    fn group_of(&self, pod: &Pod) -> Result<Option<Arc<PodGroup>>, Error> {
        self.groups.as_ref().map_or(Ok(None), |groups| find_group(groups, pod))
    }

    pub(super) async fn sync_pod(&self, key: &ObjectKey) -> SyncResult {
        let pod = self.pods.get(key);
        let Some(pod) = pod.filter(|pod| !pod.meta.is_being_deleted() && !is_done(pod)) else {
            return Ok(Next::Done);
        };
        let group = self.group_of(&pod)?;
        let statuses = by_entry(pod.resource_claims());
        let mut named = Vec::new();
        for entry in &pod.spec.shape.resource_claims {
            let name = ClaimName::of(entry, &statuses);
            match self.provide(&pod, group.as_deref(), entry, name).await {
                Ok(Some(name)) => named.push((&entry.name, name)),
                Ok(None) => {}
                Err(error) => {
                    let text = format!("PodResourceClaim {}: {}", entry.name, error.message());
                    self.recorder.warning(&*pod, "FailedResourceClaimCreation", &text);
                    return Err(Error::other(format!("pod {key}, {text}")));
                }
            }
        }
        if !named.is_empty() {
            self.name_claims(&pod, &named).await?;
        }
        if pod.spec.node_name.is_empty() {
            // The scheduler reserves.
            return Ok(Next::Done);
        }
        for entry in &pod.spec.shape.resource_claims {
            let name = ClaimName::of(entry, &statuses);
            self.reserve(&pod, group.as_deref(), entry, name).await?;
        }
        Ok(Next::Done)
    }

    /// The name of the entry's claim, if the status lacks it. Creates the claim if necessary.
    async fn provide(
        &self,
        pod: &Pod,
        group: Option<&PodGroup>,
        entry: &PodResourceClaim,
        name: ClaimName<'_>,
    ) -> Result<Option<ArcStr>, Error> {
        match name {
            ClaimName::Given(_) | ClaimName::NotNeeded => return Ok(None),
            ClaimName::Unsupported => {
                return Err(Error::other(format!(
                    "checking for claim before creating it: pod \"{}\", spec.resourceClaim \
                     \"{}\": {UNSUPPORTED}",
                    pod.meta.key(),
                    entry.name
                )));
            }
            ClaimName::NotMade => {}
            ClaimName::Made(name) => {
                let key = ObjectKey::new(&pod.meta.namespace, name);
                if let Some(claim) = self.claims.get(&key) {
                    match is_for_pod(pod, &claim, self.has_groups()) {
                        Ok(()) => return Ok(None),
                        Err(error) => log::error!("{error}; a new claim is made"),
                    }
                }
            }
        }
        let Some(template) = &entry.resource_claim_template_name else { return Ok(None) };
        if consumer_of(pod, group, entry)? == Consumer::PodGroup {
            let owner = group.map(|group| &group.meta.uid);
            let found = owner.and_then(|owner| self.creator.find(owner, &entry.name));
            return Ok(found.filter(|found| !name.is(found)));
        }
        if let Some(found) = self.creator.find(&pod.meta.uid, &entry.name) {
            // The status may name a new claim that the cache has not seen.
            return Ok(Some(found).filter(|found| !name.is(found)));
        }
        self.unshared.check(pod, entry)?;
        let owner = owner_reference(&Pod::RESOURCE, &pod.meta);
        self.creator.make(&pod.meta, owner, &entry.name, template).await.map(Some)
    }

    /// Writes the names of the pod's claims to its status.
    async fn name_claims(&self, pod: &Pod, named: &[(&Istr, ArcStr)]) -> Result<(), Error> {
        let claims = &pod.spec.shape.resource_claims;
        let statuses = statuses(claims, pod.resource_claims(), named);
        let key = pod.meta.key();
        self.apply_names::<Pod>(&pod.meta, statuses).await.map_err(|error| {
            Error::other(format!("update pod {key} ResourceClaimStatuses: {}", error.message()))
        })
    }

    pub(super) async fn apply_names<T: Resource>(
        &self,
        meta: &Meta,
        statuses: Value,
    ) -> Result<(), Error> {
        let resource = self.client.served(&T::RESOURCE);
        let body = json!({
            "apiVersion": resource.api_version(), "kind": resource.kind,
            "metadata": { "name": &*meta.name, "namespace": meta.namespace, "uid": meta.uid },
            "status": { "resourceClaimStatuses": statuses },
        });
        let patch = Patch::Apply { manager: FIELD_MANAGER.to_owned(), force: true, body };
        let status = self.client.resource(&resource).metadata_only().subresource("status");
        match status.patch::<PartialObjectMetadata>(&meta.key(), &patch).await {
            Err(error) if !error.is_not_found() => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Reserves the entry's claim where the scheduler did not: for pods that were given a node.
    async fn reserve(
        &self,
        pod: &Pod,
        group: Option<&PodGroup>,
        entry: &PodResourceClaim,
        name: ClaimName<'_>,
    ) -> Result<(), Error> {
        let (name, is_made) = match name {
            ClaimName::Given(name) => (name, false),
            ClaimName::Made(name) => (name, true),
            // The pod's next change brings it back.
            ClaimName::NotMade | ClaimName::NotNeeded | ClaimName::Unsupported => return Ok(()),
        };
        let key = ObjectKey::new(&pod.meta.namespace, name);
        let Some(claim) = self.claims.get(&key) else { return Ok(()) };
        if is_made {
            is_for_pod(pod, &claim, self.has_groups())?;
        }
        if !self.is_to_be_reserved(pod, &claim) {
            return Ok(());
        }
        let consumer = match (consumer_of(pod, group, entry)?, group) {
            (Consumer::PodGroup, Some(group)) => reference::<PodGroup>(&group.meta),
            _ => reference::<Pod>(&pod.meta),
        };
        let status = with_consumer(&claim, consumer);
        self.patch_claim_status(&claim.meta, status).await.map(drop).map_err(|error| match error {
            Error::Stale(_) => error,
            error => Error::other(format!("reserve claim {key}: {}", error.message())),
        })
    }

    /// Merges `status` into the status of a claim, if the claim still has the version that the
    /// decision was made for.
    pub(super) async fn patch_claim_status(
        &self,
        meta: &Meta,
        status: Value,
    ) -> Result<PartialObjectMetadata, Error> {
        let metadata = json!({ "resourceVersion": meta.resource_version.to_string() });
        let patch = Patch::StrategicMerge(json!({ "metadata": metadata, "status": status }));
        let claims = self.client.resource(&ResourceClaim::RESOURCE);
        let claims = claims.metadata_only().subresource("status");
        claims.patch(&meta.key(), &patch).await.map_err(|error| behind(meta, error))
    }
}

/// The PodGroup of the pod. An error when the pod names one that is missing.
pub(super) fn find_group(
    groups: &Lister<PodGroup>,
    pod: &Pod,
) -> Result<Option<Arc<PodGroup>>, Error> {
    let Some(key) = group_key(pod) else { return Ok(None) };
    groups.get(&key).map(Some).ok_or_else(|| {
        let (pod, name) = (pod.meta.key(), &key.name);
        Error::other(format!(
            "get PodGroup for Pod {pod}: podgroup.scheduling.k8s.io \"{name}\" not found"
        ))
    })
}

/// A conflict means that the cache lags behind a write, often an own one.
pub(super) fn behind(meta: &Meta, error: crate::client::Error) -> Error {
    match error.is_conflict() {
        true => Error::Stale(format!("{} has changed", meta.key())),
        false => error.into(),
    }
}

/// An owner reference without `blockOwnerDeletion`.
pub(super) fn owner_reference(resource: &ResourceType, meta: &Meta) -> OwnerReference {
    OwnerReference {
        api_version: resource.api_version().into(),
        kind: Istr::new(&resource.kind),
        name: Istr::new(&meta.name),
        uid: meta.uid.clone(),
        controller: Some(true),
        block_owner_deletion: None,
    }
}

/// Upstream: `ResourceClaimConsumerReference`.
fn reference<T: Resource>(meta: &Meta) -> Value {
    let mut reference = json!({
        "resource": T::RESOURCE.plural, "name": &*meta.name, "uid": meta.uid,
    });
    if !T::RESOURCE.group.is_empty() {
        reference["apiGroup"] = json!(T::RESOURCE.group);
    }
    reference
}

/// The patch that adds a consumer behind the others.
fn with_consumer(claim: &ResourceClaim, consumer: Value) -> Value {
    let known = claim.status.reserved_for.iter().map(|known| json!({ "uid": known.uid }));
    let order: Vec<Value> = known.chain([json!({ "uid": consumer["uid"] })]).collect();
    json!({ "$setElementOrder/reservedFor": order, "reservedFor": [consumer] })
}

/// The statuses of all entries with a template: the new names and the known ones. An apply removes
/// entries that it does not contain.
pub(super) fn statuses(
    entries: &[PodResourceClaim],
    known: &[ResourceClaimStatus],
    named: &[(&Istr, ArcStr)],
) -> Value {
    let named = Lookup::new(named, |(name, _)| name.as_str());
    let known = by_entry(known);
    let status = |entry: &PodResourceClaim| {
        let name = &entry.name;
        if let Some((_, claim)) = named.get(name) {
            return Some(json!({ "name": name, "resourceClaimName": &**claim }));
        }
        let known = known.get(name)?;
        Some(match &known.resource_claim_name {
            Some(claim) => json!({ "name": name, "resourceClaimName": claim }),
            None => json!({ "name": name }),
        })
    };
    let made = entries.iter().filter(|entry| entry.resource_claim_template_name.is_some());
    made.filter_map(status).collect()
}
