//! The claims of a pod: their creation, their names in its status, and their reservation.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{FIELD_MANAGER, Key, ResourceClaims};
use crate::cache::{Index, IndexValue, Lister};
use crate::client::Patch;
use crate::controllers::devices::consumers::{
    ClaimName, ClaimStatuses, Consumer, UNSUPPORTED, check_is_for_pod, claims_of, consumer_of,
    group_key, has_claims, is_reserved_for, statuses_by_entry,
};
use crate::controllers::{Error, Next, Queue, SyncResult};
use crate::lookup::Lookup;
use crate::objects::{
    ArcStr, Istr, Meta, ObjectKey, OwnerReference, PartialObjectMetadata, Pod, PodGroup,
    PodResourceClaim, Resource, ResourceClaim, ResourceClaimStatus, ResourceType,
};

/// Indexes pods by the claims that they use.
pub(super) const BY_CLAIM: Index<Pod> = Index::new("podResourceClaim", |pod, add| {
    for name in claims_of(pod).filter_map(ClaimName::name) {
        add(IndexValue::Key(ObjectKey::new(&pod.meta.namespace, name)));
    }
});
/// Indexes pods by the templates of their claims.
pub(super) const BY_TEMPLATE: Index<Pod> = Index::new("podResourceClaimTemplate", |pod, add| {
    let entries = pod.spec.shape.resource_claims.iter();
    for name in entries.filter_map(|entry| entry.resource_claim_template_name.as_ref()) {
        add(IndexValue::Key(ObjectKey::new(&pod.meta.namespace, name)));
    }
});

/// Returns whether no container of the pod runs or will run. Upstream: `isPodDone`.
pub(super) fn is_done(pod: &Pod) -> bool {
    pod.is_terminal() || pod.meta.is_being_deleted() && pod.spec.node_name.is_empty()
}

impl ResourceClaims {
    /// Records that a pod with claims is gone, and queues the claims.
    pub(super) fn pod_deleted(&self, pod: &Pod, queue: &Queue<Key>) {
        if has_claims(pod) {
            self.deleted.add(&pod.meta.uid);
            self.queue_claims(pod, queue);
        }
    }

    /// Queues the pod if a claim of it is to be created or reserved; if the pod is done, queues its
    /// claims instead.
    pub(super) fn pod_changed(&self, pod: &Pod, queue: &Queue<Key>) {
        if !has_claims(pod) {
            return;
        }
        if is_done(pod) {
            self.queue_claims(pod, queue);
        } else if self.needs_work(pod) {
            queue.add(Key::Pod(pod.meta.key()));
        }
    }

    /// Returns whether a claim of the pod is to be created or reserved. Upstream: `podNeedsWork`.
    fn needs_work(&self, pod: &Pod) -> bool {
        let statuses = statuses_by_entry(pod.resource_claims());
        let mut entries = pod.spec.shape.resource_claims.iter();
        !pod.meta.is_being_deleted()
            && entries.any(|entry| self.entry_needs_work(pod, entry, &statuses))
    }

    /// Returns whether the claim of an entry is to be created or reserved.
    fn entry_needs_work(
        &self,
        pod: &Pod,
        entry: &PodResourceClaim,
        statuses: &ClaimStatuses<'_>,
    ) -> bool {
        let name = ClaimName::resolve(entry, statuses);
        let (name, is_generated) = match name {
            ClaimName::UserCreated(name) => (name, false),
            ClaimName::Generated(name) => (name, true),
            ClaimName::NotNeeded => return false,
            ClaimName::NotGenerated | ClaimName::Unsupported => return true,
        };
        let key = ObjectKey::new(&pod.meta.namespace, name);
        let Some(claim) = self.claims.get(&key) else {
            return is_generated && self.should_create(pod, entry);
        };
        if is_generated && check_is_for_pod(pod, &claim, self.has_groups()).is_err() {
            // The pod has to wait until the other claim is deleted.
            return false;
        }
        !pod.spec.node_name.is_empty() && self.should_reserve(pod, &claim)
    }

    /// Returns whether the entry's missing claim is to be created for the pod.
    fn should_create(&self, pod: &Pod, entry: &PodResourceClaim) -> bool {
        match self.group_of(pod) {
            // The sync reports the missing PodGroup.
            Err(_) => true,
            Ok(group) => {
                let consumer = consumer_of(pod, group.as_deref(), entry);
                matches!(consumer, Ok(Consumer::Pod))
            }
        }
    }

    /// Returns whether the claim is allocated, and not reserved for the pod yet.
    fn should_reserve(&self, pod: &Pod, claim: &ResourceClaim) -> bool {
        claim.status.allocation.is_some() && !is_reserved_for(pod, claim, self.has_groups())
    }

    /// Returns the PodGroup of the pod; `None` if it names none, or claims are not shared with
    /// PodGroups. An error if the pod names one that is missing.
    fn group_of(&self, pod: &Pod) -> Result<Option<Arc<PodGroup>>, Error> {
        match &self.groups {
            Some(groups) => find_group(groups, pod),
            None => Ok(None),
        }
    }

    /// Creates the pod's missing claims, writes their names into its status, and reserves them if
    /// the pod has a node. A claim that cannot be made ends the sync, with an event.
    pub(super) async fn sync_pod(&self, key: &ObjectKey) -> SyncResult {
        let pod = self.pods.get(key);
        let Some(pod) = pod.filter(|pod| !pod.meta.is_being_deleted() && !is_done(pod)) else {
            return Ok(Next::Done);
        };
        let group = self.group_of(&pod)?;
        let statuses = statuses_by_entry(pod.resource_claims());
        let mut new_names = Vec::new();
        for entry in &pod.spec.shape.resource_claims {
            let name = ClaimName::resolve(entry, &statuses);
            match self.ensure_claim(&pod, group.as_deref(), entry, name).await {
                Ok(Some(name)) => new_names.push((&entry.name, name)),
                Ok(None) => {}
                Err(error) => {
                    let text = format!("PodResourceClaim {}: {}", entry.name, error.message());
                    self.recorder.warning(&*pod, "FailedResourceClaimCreation", &text);
                    return Err(Error::other(format!("pod {key}, {text}")));
                }
            }
        }
        if !new_names.is_empty() {
            self.write_claim_names(&pod, &new_names).await?;
        }
        if pod.spec.node_name.is_empty() {
            // The scheduler reserves the claims.
            return Ok(Next::Done);
        }
        for entry in &pod.spec.shape.resource_claims {
            let name = ClaimName::resolve(entry, &statuses);
            self.reserve(&pod, group.as_deref(), entry, name).await?;
        }
        Ok(Next::Done)
    }

    /// Creates the claim of a pod's entry if necessary, and returns its name if the pod's status
    /// lacks it. A claim that the pod shares with its PodGroup is created by `sync_group`, and only
    /// found here.
    async fn ensure_claim(
        &self,
        pod: &Pod,
        group: Option<&PodGroup>,
        entry: &PodResourceClaim,
        name: ClaimName<'_>,
    ) -> Result<Option<ArcStr>, Error> {
        match name {
            ClaimName::UserCreated(_) | ClaimName::NotNeeded => return Ok(None),
            ClaimName::Unsupported => {
                return Err(Error::other(format!(
                    "checking for claim before creating it: pod \"{}\", spec.resourceClaim \
                     \"{}\": {UNSUPPORTED}",
                    pod.meta.key(),
                    entry.name
                )));
            }
            ClaimName::NotGenerated => {}
            ClaimName::Generated(name) => {
                let key = ObjectKey::new(&pod.meta.namespace, name);
                if let Some(claim) = self.claims.get(&key) {
                    match check_is_for_pod(pod, &claim, self.has_groups()) {
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
            return Ok(found.filter(|found| !name.is_named(found)));
        }
        if let Some(found) = self.creator.find(&pod.meta.uid, &entry.name) {
            // The status may name a new claim that the cache has not seen.
            return Ok(if name.is_named(&found) { None } else { Some(found) });
        }
        self.unshared.check(pod, entry)?;
        let owner = owner_reference(&Pod::RESOURCE, &pod.meta);
        self.creator.create(&pod.meta, owner, &entry.name, template).await.map(Some)
    }

    /// Writes the names of the pod's claims to its status.
    async fn write_claim_names(
        &self,
        pod: &Pod,
        new_names: &[(&Istr, ArcStr)],
    ) -> Result<(), Error> {
        let claims = &pod.spec.shape.resource_claims;
        let statuses = merge_statuses(claims, pod.resource_claims(), new_names);
        let key = pod.meta.key();
        self.apply_claim_statuses::<Pod>(&pod.meta, statuses).await.map_err(|error| {
            Error::other(format!("update pod {key} ResourceClaimStatuses: {}", error.message()))
        })
    }

    /// Applies `resourceClaimStatuses` in the status of a pod or PodGroup; succeeds if it is gone.
    pub(super) async fn apply_claim_statuses<T: Resource>(
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

    /// Reserves the claim of a pod's entry for its consumer if the scheduler did not: for pods that
    /// were created with a node.
    async fn reserve(
        &self,
        pod: &Pod,
        group: Option<&PodGroup>,
        entry: &PodResourceClaim,
        name: ClaimName<'_>,
    ) -> Result<(), Error> {
        let (name, is_generated) = match name {
            ClaimName::UserCreated(name) => (name, false),
            ClaimName::Generated(name) => (name, true),
            // The name in the status is a change, which queues the pod again.
            ClaimName::NotGenerated | ClaimName::NotNeeded | ClaimName::Unsupported => {
                return Ok(());
            }
        };
        let key = ObjectKey::new(&pod.meta.namespace, name);
        let Some(claim) = self.claims.get(&key) else { return Ok(()) };
        if is_generated {
            check_is_for_pod(pod, &claim, self.has_groups())?;
        }
        if !self.should_reserve(pod, &claim) {
            return Ok(());
        }
        let consumer = match (consumer_of(pod, group, entry)?, group) {
            (Consumer::PodGroup, Some(group)) => consumer_reference::<PodGroup>(&group.meta),
            _ => consumer_reference::<Pod>(&pod.meta),
        };
        let status = reservation_patch(&claim, consumer);
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
        claims.patch(&meta.key(), &patch).await.map_err(|error| stale_if_conflict(meta, error))
    }
}

/// Returns the PodGroup that the pod names; an error if that is missing.
pub(super) fn find_group(
    groups: &Lister<PodGroup>,
    pod: &Pod,
) -> Result<Option<Arc<PodGroup>>, Error> {
    let Some(key) = group_key(pod) else { return Ok(None) };
    if let Some(group) = groups.get(&key) {
        return Ok(Some(group));
    }
    let (pod, name) = (pod.meta.key(), &key.name);
    Err(Error::other(format!(
        "get PodGroup for Pod {pod}: podgroup.scheduling.k8s.io \"{name}\" not found"
    )))
}

/// Makes the error of a write to the claim with this metadata. A conflict means that the cache lags
/// behind another write, often by this controller.
pub(super) fn stale_if_conflict(meta: &Meta, error: crate::client::Error) -> Error {
    match error.is_conflict() {
        true => Error::Stale(format!("{} has changed", meta.key())),
        false => error.into(),
    }
}

/// Builds a controller's owner reference without `blockOwnerDeletion`.
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

/// Builds the entry of `reservedFor` for a pod or PodGroup. Upstream:
/// `ResourceClaimConsumerReference`.
fn consumer_reference<T: Resource>(meta: &Meta) -> Value {
    let mut reference = json!({
        "resource": T::RESOURCE.plural, "name": &*meta.name, "uid": meta.uid,
    });
    if !T::RESOURCE.group.is_empty() {
        reference["apiGroup"] = json!(T::RESOURCE.group);
    }
    reference
}

/// Builds the status of a strategic merge patch that appends a consumer to `reservedFor`, a list
/// that is merged by uid.
fn reservation_patch(claim: &ResourceClaim, consumer: Value) -> Value {
    let old = claim.status.reserved_for.iter().map(|consumer| json!({ "uid": consumer.uid }));
    let order: Vec<Value> = old.chain([json!({ "uid": consumer["uid"] })]).collect();
    json!({ "$setElementOrder/reservedFor": order, "reservedFor": [consumer] })
}

/// Returns the statuses of all entries with a template: with the claim's name from `new_names`
/// (pairs of entry and claim), else the old status. All are there, because an apply removes entries
/// that it does not contain.
pub(super) fn merge_statuses(
    entries: &[PodResourceClaim],
    old_statuses: &[ResourceClaimStatus],
    new_names: &[(&Istr, ArcStr)],
) -> Value {
    let new_names = Lookup::new(new_names, |(entry, _)| entry.as_str());
    let old_statuses = statuses_by_entry(old_statuses);
    let status = |entry: &PodResourceClaim| {
        let name = &entry.name;
        if let Some((_, claim)) = new_names.get(name) {
            return Some(json!({ "name": name, "resourceClaimName": &**claim }));
        }
        let old = old_statuses.get(name)?;
        Some(match &old.resource_claim_name {
            Some(claim) => json!({ "name": name, "resourceClaimName": claim }),
            None => json!({ "name": name }),
        })
    };
    let with_template = entries.iter().filter(|entry| entry.resource_claim_template_name.is_some());
    with_template.filter_map(status).collect()
}
