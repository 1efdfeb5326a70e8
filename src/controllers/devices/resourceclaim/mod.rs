//! Creates the ResourceClaims of pods, reserves claims for pods, and releases unused claims.
//! Upstream: `pkg/controller/resourceclaim`.

mod claims;
mod groups;
mod metrics;
mod pods;
mod template_claims;
mod unshared;

use std::fmt;
use std::sync::Arc;

use self::template_claims::ClaimCreator;
use self::unshared::UnsharedClaims;
use super::consumers::{ClaimName, GROUP_CLAIMS, PODS_BY_GROUP, claims_of, is_owner_of_claims};
use super::uid_cache::RecentUids;
use crate::cache::{Index, IndexValue, Lister};
use crate::client::Client;
use crate::controllers::runner::Change;
use crate::controllers::{Controller, Queue, QueuePolicy, SyncResult};
use crate::events::Recorder;
use crate::objects::{ObjectKey, Pod, PodGroup, ResourceClaim, ResourceClaimTemplate, Uid};

/// An annotation of a claim that was generated from a template: the name of the pod's entry.
/// Upstream: `resourceapi.PodResourceClaimAnnotation`.
const POD_CLAIM: &str = "resource.kubernetes.io/pod-claim-name";
/// The field manager of this controller's applies.
const FIELD_MANAGER: &str = "ResourceClaimController";

/// Indexes claims by the pod or PodGroup that they were generated for, and its entry.
const BY_OWNER: Index<ResourceClaim> = Index::new("claimOwner", index_by_owner);

/// Sets up the controller `resourceclaim-controller`.
pub fn controller(c: &mut Controller) -> Result<(), String> {
    let (pods, claims) = (c.lister::<Pod>(), c.lister::<ResourceClaim>());
    let templates = c.lister::<ResourceClaimTemplate>();
    c.index(&pods, &pods::BY_CLAIM);
    c.index(&pods, &pods::BY_TEMPLATE);
    c.index(&claims, &BY_OWNER);
    let groups = c.feature(GROUP_CLAIMS).then(|| c.lister::<PodGroup>());
    if let Some(groups) = &groups {
        c.index(&pods, &PODS_BY_GROUP);
        c.index(groups, &groups::BY_CLAIM);
        c.index(groups, &groups::BY_TEMPLATE);
    }
    let unshared = UnsharedClaims::new(c);
    metrics::export_claim_count(&claims);
    let allows_prioritized_lists = c.feature("DRAPrioritizedList");
    let creator =
        ClaimCreator::new(c.client(), claims.clone(), templates.clone(), allows_prioritized_lists);
    let this = Arc::new(ResourceClaims {
        client: c.client(),
        recorder: c.recorder(),
        pods: pods.clone(),
        claims: claims.clone(),
        groups: groups.clone(),
        unshared,
        creator,
        deleted: RecentUids::default(),
    });
    let queue = c.queue::<Key>(QueuePolicy::default());
    let handler = this.clone();
    c.watch(&pods, &queue, move |change, queue| match change {
        Change::Deleted(last) => handler.pod_deleted(last.object(), queue),
        change => handler.pod_changed(change.object(), queue),
    });
    let handler = this.clone();
    c.watch(&claims, &queue, move |change, queue| {
        // A reservation may name a pod that was gone before the claim was seen.
        if !matches!(change, Change::Deleted(_)) {
            queue.add(Key::Claim(change.object().meta.key()));
        }
        handler.claim_changed(&change.object().meta.key(), queue);
    });
    let handler = this.clone();
    c.watch(&templates, &queue, move |change, queue| {
        if !matches!(change, Change::Deleted(_)) {
            handler.template_changed(&change.object().meta.key(), queue);
        }
    });
    if let Some(groups) = &groups {
        let handler = this.clone();
        c.watch(groups, &queue, move |change, queue| match change {
            Change::Deleted(last) => handler.group_deleted(last.object(), queue),
            change => handler.group_changed(change.object(), queue),
        });
    }
    if let Some(groups) = this.unshared.groups() {
        c.index(&pods, &PODS_BY_GROUP);
        let handler = this.clone();
        c.watch(groups, &queue, move |change, queue| handler.queue_members(change.object(), queue));
    }
    c.sync(queue, &this, ResourceClaims::sync);
    Ok(())
}

/// A key of the queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    Claim(ObjectKey),
    Pod(ObjectKey),
    PodGroup(ObjectKey),
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Claim(key) => write!(f, "claim:{key}"),
            Key::Pod(key) => write!(f, "pod:{key}"),
            Key::PodGroup(key) => write!(f, "podgroup:{key}"),
        }
    }
}

/// Returns the value of [`BY_OWNER`] for an entry of an owner.
fn owner_entry_value(owner: &Uid, entry: &str) -> IndexValue {
    IndexValue::Text(format!("{owner}/{entry}").into())
}

/// Adds the value of a claim to [`BY_OWNER`], if it was generated for a pod or PodGroup.
fn index_by_owner(claim: &ResourceClaim, add: &mut dyn FnMut(IndexValue)) {
    let owner = claim.meta.controller();
    if let Some(owner) = owner.filter(|owner| is_owner_of_claims(&owner.api_version, &owner.kind)) {
        let entry = claim.meta.annotations.get(POD_CLAIM).unwrap_or_default();
        add(owner_entry_value(&owner.uid, entry));
    }
}

struct ResourceClaims {
    client: Client,
    recorder: Recorder,
    pods: Lister<Pod>,
    claims: Lister<ResourceClaim>,
    /// The gate `DRAWorkloadResourceClaims`.
    groups: Option<Lister<PodGroup>>,
    unshared: UnsharedClaims,
    creator: ClaimCreator,
    /// Pods and PodGroups that are known to be deleted: their reservations end without a read from
    /// the API server.
    deleted: RecentUids,
}

impl ResourceClaims {
    /// Returns whether pods share claims with their PodGroups.
    fn has_groups(&self) -> bool {
        self.groups.is_some()
    }

    async fn sync(self: Arc<Self>, key: Key) -> SyncResult {
        match key {
            Key::Claim(key) => self.sync_claim(&key).await,
            Key::Pod(key) => self.sync_pod(&key).await,
            Key::PodGroup(key) => self.sync_group(&key).await,
        }
    }

    /// Queues the pods and PodGroups that use the claim and need a sync.
    fn claim_changed(&self, key: &ObjectKey, queue: &Queue<Key>) {
        let value = IndexValue::Key(key.clone());
        for pod in self.pods.by_index(&pods::BY_CLAIM, &value) {
            self.pod_changed(&pod, queue);
        }
        for group in self.groups.iter().flat_map(|l| l.by_index(&groups::BY_CLAIM, &value)) {
            self.group_changed(&group, queue);
        }
    }

    /// Queues the pods and PodGroups that use the template and need a sync.
    fn template_changed(&self, key: &ObjectKey, queue: &Queue<Key>) {
        let value = IndexValue::Key(key.clone());
        for pod in self.pods.by_index(&pods::BY_TEMPLATE, &value) {
            self.pod_changed(&pod, queue);
        }
        for group in self.groups.iter().flat_map(|l| l.by_index(&groups::BY_TEMPLATE, &value)) {
            self.group_changed(&group, queue);
        }
    }

    /// Queues the claims of a pod that does not need them any more: their reservations end.
    fn queue_claims(&self, pod: &Pod, queue: &Queue<Key>) {
        for name in claims_of(pod).filter_map(ClaimName::name) {
            queue.add(Key::Claim(ObjectKey::new(&pod.meta.namespace, name)));
        }
    }
}
