//! Keeps a PodGroup that is being deleted while it has pods that have not ended.
//! Upstream: `pkg/controller/scheduling/podgroupprotection`.

use std::sync::Arc;

use crate::cache::{Index, IndexValue, Lister};
use crate::client::Client;
use crate::controllers::runner::{Change, keys};
use crate::controllers::storage::protection::Protection;
use crate::controllers::{Controller, Next, Queue, QueuePolicy, SyncResult};
use crate::objects::{ObjectKey, Pod, PodGroup};

/// Upstream: `scheduling.PodGroupProtectionFinalizer`. An admission plugin adds it.
const PROTECTION: Protection = Protection("scheduling.k8s.io/podgroup-protection");
/// Pods that have not ended, by their groups.
const BY_GROUP: Index<Pod> = Index::new("activePodSchedulingGroup", |pod, emit| {
    if !pod.is_terminal() {
        group_of(pod).into_iter().for_each(|group| emit(IndexValue::Key(group)));
    }
});

/// Sets up the controller `podgroup-protection-controller`.
pub fn controller(c: &mut Controller) -> Result<(), String> {
    let (groups, pods) = (c.lister::<PodGroup>(), c.lister::<Pod>());
    c.index(&pods, &BY_GROUP);
    let queue = c.queue(QueuePolicy::default());
    let candidate = |group: &PodGroup| PROTECTION.is_deletion_candidate(&group.meta);
    c.watch(&groups, &queue, keys::of_current(candidate));
    c.watch(&pods, &queue, queue_left_group);
    let this = Arc::new(PodGroupProtection { client: c.client(), groups, pods });
    c.sync(queue, &this, PodGroupProtection::sync);
    Ok(())
}

/// Returns the group that a pod is scheduled with.
fn group_of(pod: &Pod) -> Option<ObjectKey> {
    let name = &pod.spec.shape.pod_group;
    (!name.is_empty()).then(|| ObjectKey::new(&pod.meta.namespace, name))
}

/// Queues the group of a pod that has ended or is deleted.
fn queue_left_group(change: Change<'_, Pod>, queue: &Queue) {
    let has_left = match &change {
        Change::Added { new, .. } | Change::Updated { new, .. } => new.is_terminal(),
        Change::Deleted(_) => true,
        Change::Resync { .. } => false,
    };
    if has_left {
        group_of(change.object()).into_iter().for_each(|group| queue.add(group));
    }
}

struct PodGroupProtection {
    client: Client,
    groups: Lister<PodGroup>,
    pods: Lister<Pod>,
}

impl PodGroupProtection {
    /// Removes the finalizer from a PodGroup that is being deleted and whose pods have all ended.
    async fn sync(self: Arc<Self>, key: ObjectKey) -> SyncResult {
        let Some(group) = self.groups.get(&key) else { return Ok(Next::Done) };
        let is_used = || !self.pods.by_index(&BY_GROUP, &IndexValue::Key(key)).is_empty();
        if PROTECTION.is_deletion_candidate(&group.meta) && !is_used() {
            PROTECTION.remove(&self.client, &*group).await?;
        }
        Ok(Next::Done)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cache::{Deleted, Indexer};
    use crate::clock::FakeClock;
    use crate::objects::Timestamp;

    fn pod(group: &str, phase: &str) -> Arc<Pod> {
        Arc::new(
            serde_json::from_value(json!({
                "metadata": {"name": "p", "namespace": "ns"},
                "spec": {"schedulingGroup": {"podGroupName": group}},
                "status": {"phase": phase},
            }))
            .unwrap(),
        )
    }

    #[test]
    fn pods_use_their_group_until_they_end() {
        for (group, phase, used) in [
            ("g", "Pending", true),
            ("g", "Running", true),
            ("g", "Succeeded", false),
            ("g", "Failed", false),
            ("", "Running", false),
        ] {
            let indexer = Indexer::new();
            indexer.add_index(&BY_GROUP);
            indexer.insert(pod(group, phase));
            let found = indexer.by_index(&BY_GROUP, &IndexValue::Key(ObjectKey::new("ns", "g")));
            assert_eq!(found.len(), usize::from(used), "{group} {phase}");
        }
    }

    #[test]
    fn pods_that_end_or_are_deleted_queue_their_group() {
        let queue = Queue::for_test(FakeClock::new(Timestamp::from_secs(0)));
        let queued = |change: Change<'_, Pod>| {
            queue_left_group(change, &queue);
            queue.drain().len()
        };
        let (runs, ended) = (pod("g", "Running"), pod("g", "Failed"));
        assert_eq!(queued(Change::Added { new: &runs, initial: true }), 0);
        assert_eq!(queued(Change::Added { new: &ended, initial: true }), 1);
        assert_eq!(queued(Change::Updated { old: &runs, new: &runs }), 0);
        assert_eq!(queued(Change::Updated { old: &runs, new: &ended }), 1);
        assert_eq!(queued(Change::Deleted(&Deleted::Known(runs))), 1);
        assert_eq!(queued(Change::Deleted(&Deleted::Known(pod("", "Running")))), 0);
    }
}
