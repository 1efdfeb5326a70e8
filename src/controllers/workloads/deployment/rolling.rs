//! `RollingUpdate`: the new ReplicaSet grows as the old ones shrink.

use super::DeploymentController;
use super::limits::Limits;
use super::scaling::{self, PodCounts, Shrink};
use super::sets::{Owned, Sets, by_creation};
use super::status::is_complete;
use crate::controllers::{Error, Next, SyncResult};
use crate::objects::{Deployment, ReplicaSet};

impl DeploymentController {
    /// Takes one step of a rolling update: scales the new ReplicaSet, or else shrinks the old ones.
    /// Upstream: `rolloutRolling`.
    pub(super) async fn roll(&self, deployment: &mut Deployment, owned: &mut Owned) -> SyncResult {
        let sets = self.sync_sets_with_new(deployment, owned).await?;
        let Some(new) = sets.new.clone() else {
            return Err(Error::other("the new ReplicaSet is missing"));
        };
        let mut failure = None;
        if !self.scale_new(deployment, &sets, &new).await? {
            // A failure is returned at the end: the status has to be right, and its deadline to
            // pass, while the old ones cannot shrink.
            match self.shrink_old(deployment, &sets, &new).await {
                Ok(true) => {}
                Ok(false) if !is_complete(deployment, &deployment.status) => {}
                Ok(false) => self.clean_up_history(deployment, &sets.old).await?,
                Err(error) => failure = Some(error),
            }
        }
        let status = self.sync_rollout_status(deployment, &sets).await;
        let Some(failure) = failure else { return status };
        match status {
            // The deadline does not wait for the retries, which come to an end.
            Ok(Next::After(delay)) => self.queue.add_after(deployment.meta.key(), delay),
            Ok(_) => {}
            Err(error) => {
                let key = deployment.meta.key();
                log::error!("{key}: failed to update the status: {error}");
            }
        }
        Err(failure)
    }

    /// Scales the new ReplicaSet to the wanted size, as far as the surge allows, and returns
    /// whether it was scaled.
    /// Upstream: `reconcileNewReplicaSet`.
    async fn scale_new(
        &self,
        deployment: &Deployment,
        sets: &Sets,
        new: &ReplicaSet,
    ) -> Result<bool, Error> {
        let desired = deployment.replicas();
        let size = if new.replicas() >= desired {
            desired
        } else {
            let most = Limits::new(deployment).max_replicas(desired);
            scaling::new_size(desired, most, sets.replicas(), new.replicas())
        };
        Ok(self.scale_replica_set(deployment, new, size).await?.is_some())
    }

    /// Shrinks the old ReplicaSets as far as enough pods stay available. Returns
    /// [`Shrink::scaled`]: whether that is the step of this sync, after which the history is not
    /// cleaned up yet.
    /// Upstream: `reconcileOldReplicaSets`.
    async fn shrink_old(
        &self,
        deployment: &Deployment,
        sets: &Sets,
        new: &ReplicaSet,
    ) -> Result<bool, Error> {
        let mut old = sets.active_old();
        if old.is_empty() {
            return Ok(false);
        }
        old.sort_by(|a, b| by_creation(a, b));
        let view: Vec<PodCounts> = old.iter().map(|set| PodCounts::from(&**set)).collect();
        let min_available = deployment.replicas() - Limits::new(deployment).max_unavailable;
        let Shrink { steps, scaled } = scaling::shrink(&view, PodCounts::from(new), min_available);
        for step in steps {
            let set = &old[step.index];
            let written = self.scale_replica_set(deployment, set, step.size).await?;
            if let Some(written) = written {
                old[step.index] = written;
            }
        }
        Ok(scaled)
    }
}
