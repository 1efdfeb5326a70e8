//! The claims that the pods of a PodGroup share: the gate `DRAWorkloadResourceClaims`.

use super::pods::{merge_statuses, owner_reference};
use super::{Key, ResourceClaims};
use crate::cache::{Index, IndexValue};
use crate::controllers::devices::consumers::{
    ClaimName, PODS_BY_GROUP, UNSUPPORTED, check_is_for_group, statuses_by_entry,
};
use crate::controllers::{Error, Next, Queue, SyncResult};
use crate::events::{EventType, ObjectReference};
use crate::objects::{ArcStr, ObjectKey, PodGroup, PodResourceClaim, Resource};

/// Indexes PodGroups by the claims that they use.
pub(super) const BY_CLAIM: Index<PodGroup> = Index::new("podGroupResourceClaim", |group, add| {
    for name in claim_names(group).filter_map(ClaimName::name) {
        add(IndexValue::Key(ObjectKey::new(&group.meta.namespace, name)));
    }
});
/// Indexes PodGroups by the templates of their claims.
pub(super) const BY_TEMPLATE: Index<PodGroup> =
    Index::new("podGroupResourceClaimTemplate", |group, add| {
        let entries = group.spec.resource_claims.iter();
        for name in entries.filter_map(|entry| entry.resource_claim_template_name.as_ref()) {
            add(IndexValue::Key(ObjectKey::new(&group.meta.namespace, name)));
        }
    });

/// Returns the claims of the PodGroup's entries.
fn claim_names(group: &PodGroup) -> impl Iterator<Item = ClaimName<'_>> {
    let statuses = statuses_by_entry(&group.status.resource_claim_statuses);
    group.spec.resource_claims.iter().map(move |entry| ClaimName::resolve(entry, &statuses))
}

impl ResourceClaims {
    /// Records that a PodGroup is gone, and queues its claims and its pods. Does nothing if it has
    /// no claims.
    pub(super) fn group_deleted(&self, group: &PodGroup, queue: &Queue<Key>) {
        if group.spec.resource_claims.is_empty() {
            return;
        }
        self.deleted.add(&group.meta.uid);
        for name in claim_names(group).filter_map(ClaimName::name) {
            queue.add(Key::Claim(ObjectKey::new(&group.meta.namespace, name)));
        }
        self.queue_members(group, queue);
    }

    /// Queues the PodGroup if a claim of it is missing, and its pods. Does nothing if it has no
    /// claims.
    pub(super) fn group_changed(&self, group: &PodGroup, queue: &Queue<Key>) {
        if group.spec.resource_claims.is_empty() {
            return;
        }
        if !group.meta.is_being_deleted() && self.group_needs_work(group) {
            queue.add(Key::PodGroup(group.meta.key()));
        }
        self.queue_members(group, queue);
    }

    /// Queues the PodGroup's pods: their statuses name its claims.
    pub(super) fn queue_members(&self, group: &PodGroup, queue: &Queue<Key>) {
        for pod in self.pods.by_index(&PODS_BY_GROUP, &IndexValue::Key(group.meta.key())) {
            self.pod_changed(&pod, queue);
        }
    }

    /// Returns whether a claim of the PodGroup is missing, so that a sync creates or reports it.
    /// Upstream: `podGroupNeedsWork`.
    fn group_needs_work(&self, group: &PodGroup) -> bool {
        claim_names(group).any(|name| match name {
            ClaimName::NotGenerated | ClaimName::Unsupported => true,
            ClaimName::UserCreated(_) | ClaimName::NotNeeded => false,
            ClaimName::Generated(name) => {
                self.claims.get(&ObjectKey::new(&group.meta.namespace, name)).is_none()
            }
        })
    }

    /// Creates the missing claims of a PodGroup, and writes their names into its status. A claim
    /// that cannot be made ends the sync, with an event.
    pub(super) async fn sync_group(&self, key: &ObjectKey) -> SyncResult {
        let group = self.groups.as_ref().and_then(|groups| groups.get(key));
        let Some(group) = group.filter(|group| !group.meta.is_being_deleted()) else {
            return Ok(Next::Done);
        };
        let mut new_names = Vec::new();
        for entry in &group.spec.resource_claims {
            match self.ensure_group_claim(&group, entry).await {
                Ok(Some(name)) => new_names.push((&entry.name, name)),
                Ok(None) => {}
                Err(error) => {
                    let text = format!("PodGroupResourceClaim {}: {}", entry.name, error.message());
                    let resource = self.client.served(&PodGroup::RESOURCE);
                    let about = ObjectReference::of(&resource, &group.meta);
                    self.recorder.event(
                        &about,
                        EventType::Warning,
                        "FailedResourceClaimCreation",
                        &text,
                    );
                    return Err(Error::other(format!("PodGroup {key}, {text}")));
                }
            }
        }
        if !new_names.is_empty() {
            let old = &group.status.resource_claim_statuses;
            let statuses = merge_statuses(&group.spec.resource_claims, old, &new_names);
            let applied = self.apply_claim_statuses::<PodGroup>(&group.meta, statuses).await;
            if let Err(error) = applied {
                let why = error.message();
                let text = format!("update PodGroup {key} ResourceClaimStatuses: {why}");
                return Err(Error::other(text));
            }
        }
        Ok(Next::Done)
    }

    /// Creates the claim of an entry if necessary, and returns its name if the PodGroup's status
    /// lacks it.
    async fn ensure_group_claim(
        &self,
        group: &PodGroup,
        entry: &PodResourceClaim,
    ) -> Result<Option<ArcStr>, Error> {
        // Indexed again for each entry: a PodGroup has at most four.
        let name =
            ClaimName::resolve(entry, &statuses_by_entry(&group.status.resource_claim_statuses));
        match name {
            ClaimName::UserCreated(_) | ClaimName::NotNeeded => return Ok(None),
            ClaimName::Unsupported => {
                return Err(Error::other(format!(
                    "checking for claim before creating it: PodGroup {}, spec.resourceClaim {}: \
                     {UNSUPPORTED}",
                    group.meta.key(),
                    entry.name
                )));
            }
            ClaimName::NotGenerated => {}
            ClaimName::Generated(name) => {
                let key = ObjectKey::new(&group.meta.namespace, name);
                if let Some(claim) = self.claims.get(&key) {
                    match check_is_for_group(group, &claim) {
                        Ok(()) => return Ok(None),
                        Err(error) => log::error!("{error}; a new claim is made"),
                    }
                }
            }
        }
        let Some(template) = &entry.resource_claim_template_name else { return Ok(None) };
        if let Some(found) = self.creator.find(&group.meta.uid, &entry.name) {
            return Ok(if name.is_named(&found) { None } else { Some(found) });
        }
        let owner = owner_reference(&self.client.served(&PodGroup::RESOURCE), &group.meta);
        self.creator.create(&group.meta, owner, &entry.name, template).await.map(Some)
    }
}
