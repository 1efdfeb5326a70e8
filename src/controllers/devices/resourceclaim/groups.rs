//! The claims that the pods of a PodGroup share: the gate `DRAWorkloadResourceClaims`.

use super::pods::{owner_reference, statuses};
use super::{Key, ResourceClaims};
use crate::cache::{Index, IndexValue};
use crate::controllers::devices::consumers::{
    BY_GROUP, ClaimName, UNSUPPORTED, by_entry, is_for_group,
};
use crate::controllers::{Error, Next, Queue, SyncResult};
use crate::events::{EventType, ObjectReference};
use crate::objects::{ArcStr, ObjectKey, PodGroup, PodResourceClaim, Resource};

/// PodGroups by the claims that they use.
pub(super) const BY_CLAIM: Index<PodGroup> = Index::new("podGroupResourceClaim", |group, add| {
    for name in names(group).filter_map(ClaimName::known) {
        add(IndexValue::Key(ObjectKey::new(&group.meta.namespace, name)));
    }
});
/// PodGroups by the templates of their claims.
pub(super) const BY_TEMPLATE: Index<PodGroup> =
    Index::new("podGroupResourceClaimTemplate", |group, add| {
        let entries = group.spec.resource_claims.iter();
        for name in entries.filter_map(|entry| entry.resource_claim_template_name.as_ref()) {
            add(IndexValue::Key(ObjectKey::new(&group.meta.namespace, name)));
        }
    });

fn names(group: &PodGroup) -> impl Iterator<Item = ClaimName<'_>> {
    let statuses = by_entry(&group.status.resource_claim_statuses);
    group.spec.resource_claims.iter().map(move |entry| ClaimName::of(entry, &statuses))
}

impl ResourceClaims {
    pub(super) fn group_is_gone(&self, group: &PodGroup, queue: &Queue<Key>) {
        if group.spec.resource_claims.is_empty() {
            return;
        }
        self.deleted.add(&group.meta.uid);
        for name in names(group).filter_map(ClaimName::known) {
            queue.add(Key::Claim(ObjectKey::new(&group.meta.namespace, name)));
        }
        self.queue_members(group, queue);
    }

    pub(super) fn group_changed(&self, group: &PodGroup, queue: &Queue<Key>) {
        if group.spec.resource_claims.is_empty() {
            return;
        }
        if !group.meta.is_being_deleted() && self.group_needs_work(group) {
            queue.add(Key::PodGroup(group.meta.key()));
        }
        self.queue_members(group, queue);
    }

    /// Writes the names of the PodGroup's claims into the statuses of its pods.
    pub(super) fn queue_members(&self, group: &PodGroup, queue: &Queue<Key>) {
        for pod in self.pods.by_index(&BY_GROUP, &IndexValue::Key(group.meta.key())) {
            self.pod_changed(&pod, queue);
        }
    }

    /// Upstream: `podGroupNeedsWork`.
    fn group_needs_work(&self, group: &PodGroup) -> bool {
        names(group).any(|name| match name {
            ClaimName::NotMade | ClaimName::Unsupported => true,
            ClaimName::Given(_) | ClaimName::NotNeeded => false,
            ClaimName::Made(name) => {
                self.claims.get(&ObjectKey::new(&group.meta.namespace, name)).is_none()
            }
        })
    }

    pub(super) async fn sync_group(&self, key: &ObjectKey) -> SyncResult {
        let group = self.groups.as_ref().and_then(|groups| groups.get(key));
        let Some(group) = group.filter(|group| !group.meta.is_being_deleted()) else {
            return Ok(Next::Done);
        };
        let mut named = Vec::new();
        for entry in &group.spec.resource_claims {
            match self.provide_for_group(&group, entry).await {
                Ok(Some(name)) => named.push((&entry.name, name)),
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
        if !named.is_empty() {
            let known = &group.status.resource_claim_statuses;
            let statuses = statuses(&group.spec.resource_claims, known, &named);
            self.apply_names::<PodGroup>(&group.meta, statuses).await.map_err(|error| {
                let why = error.message();
                Error::other(format!("update PodGroup {key} ResourceClaimStatuses: {why}"))
            })?;
        }
        Ok(Next::Done)
    }

    async fn provide_for_group(
        &self,
        group: &PodGroup,
        entry: &PodResourceClaim,
    ) -> Result<Option<ArcStr>, Error> {
        // A PodGroup has at most four entries.
        let name = ClaimName::of(entry, &by_entry(&group.status.resource_claim_statuses));
        match name {
            ClaimName::Given(_) | ClaimName::NotNeeded => return Ok(None),
            ClaimName::Unsupported => {
                return Err(Error::other(format!(
                    "checking for claim before creating it: PodGroup {}, spec.resourceClaim {}: \
                     {UNSUPPORTED}",
                    group.meta.key(),
                    entry.name
                )));
            }
            ClaimName::NotMade => {}
            ClaimName::Made(name) => {
                let key = ObjectKey::new(&group.meta.namespace, name);
                if let Some(claim) = self.claims.get(&key) {
                    match is_for_group(group, &claim) {
                        Ok(()) => return Ok(None),
                        Err(error) => log::error!("{error}; a new claim is made"),
                    }
                }
            }
        }
        let Some(template) = &entry.resource_claim_template_name else { return Ok(None) };
        if let Some(found) = self.creator.find(&group.meta.uid, &entry.name) {
            return Ok(Some(found).filter(|found| !name.is(found)));
        }
        let owner = owner_reference(&self.client.served(&PodGroup::RESOURCE), &group.meta);
        self.creator.make(&group.meta, owner, &entry.name, template).await.map(Some)
    }
}
