//! `Recreate`: every old pod is gone before the first new one comes.

use std::sync::Arc;

use super::DeploymentController;
use super::sets::{Owned, Sets};
use super::status::is_complete;
use crate::cache::Lister;
use crate::controllers::runner::{Change, Mapper};
use crate::controllers::workloads::ref_manager::{owned, owned_pods};
use crate::controllers::{Error, SyncResult, keys};
use crate::objects::{Deployment, ObjectKey, Pod, ReplicaSet};

/// Returns the mapper of pods: the deletion of the last pod queues a Deployment that recreates,
/// which waits for that. Upstream: `deletePod`.
pub(super) fn by_last_pod(
    deployments: Lister<Deployment>,
    replica_sets: Lister<ReplicaSet>,
    pods: Lister<Pod>,
) -> impl Mapper<Pod, ObjectKey> {
    move |change, queue| {
        let Change::Deleted(gone) = change else { return };
        let pod = gone.object();
        let deployment = pod.meta.controller().and_then(|owner| {
            let set = keys::resolve(&replica_sets, &pod.meta.namespace, owner)?;
            keys::resolve(&deployments, &set.meta.namespace, set.meta.controller()?)
        });
        let Some(deployment) = deployment.filter(|it| it.spec.strategy.r#type == "Recreate") else {
            return;
        };
        let sets = owned(&replica_sets, &deployment.meta);
        if sets.iter().all(|set| owned_pods::<ReplicaSet>(&pods, &set.meta).is_empty()) {
            queue.add(deployment.meta.key());
        }
    }
}

impl DeploymentController {
    /// Takes the next step of a rollout that deletes all old pods before it creates new ones.
    /// Upstream: `rolloutRecreate`.
    pub(super) async fn recreate(
        &self,
        deployment: &mut Deployment,
        owned_sets: &mut Owned,
    ) -> SyncResult {
        // The new ReplicaSet is not made yet: it would have pods before the old ones are gone.
        let mut sets = self.sync_sets(deployment, owned_sets).await?;
        let mut shrunk = false;
        for set in sets.active_old() {
            shrunk |= self.scale_replica_set(deployment, &set, 0).await?.is_some();
        }
        if shrunk || old_pods_remain(&sets, |set| owned_pods::<ReplicaSet>(&self.pods, &set.meta)) {
            return self.sync_rollout_status(deployment, &sets).await;
        }
        if sets.new.is_none() {
            sets = self.sync_sets_with_new(deployment, owned_sets).await?;
        }
        let Some(new) = &sets.new else {
            return Err(Error::other("the new ReplicaSet is missing"));
        };
        self.scale_replica_set(deployment, new, deployment.replicas()).await?;
        if is_complete(deployment, &deployment.status) {
            self.clean_up_history(deployment, &sets.old).await?;
        }
        self.sync_rollout_status(deployment, &sets).await
    }
}

/// Returns whether an old ReplicaSet counts pods, or has one that is not finished. Upstream:
/// `oldPodsRunning`.
fn old_pods_remain(sets: &Sets, pods: impl Fn(&ReplicaSet) -> Vec<Arc<Pod>>) -> bool {
    sets.old.iter().any(|set| set.status.replicas > 0)
        || sets.old.iter().any(|set| pods(set).iter().any(|pod| !pod.is_terminal()))
}

#[cfg(test)]
mod tests {
    use super::super::sets::tests::set;
    use super::*;
    use serde_json::json;

    #[test]
    fn only_unfinished_old_pods_hold_the_new_ones_back() {
        for (counted, phases, remain) in [
            (0, vec![], false),
            (1, vec![], true),
            (0, vec!["Succeeded", "Failed"], false),
            (0, vec!["Failed", "Running"], true),
            (0, vec!["Pending"], true),
            (0, vec!["Unknown"], true),
        ] {
            let old = set("old", 1, "old", 0, json!({"/status/replicas": counted}));
            let new = set("new", 2, "new", 0, json!({"/status/replicas": 5}));
            let sets = Sets { new: Some(new), old: vec![old] };
            let got = old_pods_remain(&sets, |set| {
                assert_eq!(&*set.meta.name, "old");
                let pod = |phase| json!({"status": {"phase": phase}});
                phases
                    .iter()
                    .map(|phase| Arc::new(serde_json::from_value(pod(phase)).unwrap()))
                    .collect()
            });
            assert_eq!(got, remain, "{counted} {phases:?}");
        }
    }
}
