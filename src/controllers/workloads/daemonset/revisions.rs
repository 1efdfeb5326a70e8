//! The ControllerRevisions of a DaemonSet. Upstream: `constructHistory`, `cleanupHistory`.

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::json;

use super::DaemonSets;
use super::sites::has_target;
use crate::client::Patch;
use crate::controllers::Error;
use crate::controllers::workloads::history::{
    self, Created, Limit, NewRevision, REVISION_LABEL, beyond_limit, next_revision, renumber,
};
use crate::controllers::workloads::ref_manager::owned_or_orphaned;
use crate::objects::{ControllerRevision, DaemonSet, Pod, Resource, Selector};

/// The limit when the API server did not set the default, as upstream.
const DEFAULT_HISTORY_LIMIT: i32 = 10;

/// The versions of a set's template.
pub(super) struct Revisions {
    /// The label of the current revision, which its pods have.
    pub hash: String,
    /// The other revisions, oldest first.
    pub old: Vec<Arc<ControllerRevision>>,
}

impl DaemonSets {
    /// Claims the revisions of `set` and ensures that the current one exists once and is the
    /// newest. `pods`: those of the set, which may get another label here.
    pub(super) async fn revisions(
        &self,
        set: &Arc<DaemonSet>,
        selector: &Selector,
        pods: &mut [Arc<Pod>],
    ) -> Result<Revisions, Error> {
        let collisions = set.status.collision_count;
        let new_revision = |number| {
            let template = &set.spec.template;
            NewRevision::of_daemon_set::<DaemonSet>(&set.meta, template, number, collisions)
        };
        // For its data, which do not depend on the number.
        let wanted = new_revision(0)?;
        let (mut current, mut old) = (Vec::new(), Vec::new());
        let found = owned_or_orphaned(&self.revisions, &set.meta);
        let claimed =
            history::claim_revisions::<DaemonSet>(&self.client, &set.meta, selector, found);
        for revision in claimed.await? {
            let revision = self.ensure_label(revision).await?;
            match self.changed_revisions.is_equal(&set.meta, wanted.data(), &revision) {
                true => current.push(revision),
                false => old.push(revision),
            }
        }
        let number = next_revision(&old);
        let current = match current.pop() {
            None => self.create_revision(set, &new_revision(number)?).await?,
            Some(newest) => {
                self.drop_duplicates(&newest, &current, pods).await?;
                if newest.revision < number {
                    renumber(&self.client, &*self.clock, &newest, number).await?;
                }
                newest
            }
        };
        Ok(Revisions { hash: hash(&current).to_owned(), old })
    }

    /// Labels a revision with its name, if a manager that did not label revisions made it.
    async fn ensure_label(
        &self,
        revision: Arc<ControllerRevision>,
    ) -> Result<Arc<ControllerRevision>, Error> {
        if revision.meta.labels.contains_key(REVISION_LABEL) {
            return Ok(revision);
        }
        let patch = json!({"metadata": {
            "uid": revision.meta.uid, "labels": {REVISION_LABEL: revision.meta.name},
        }});
        let key = revision.meta.key();
        Ok(Arc::new(self.client.patch(&key, &Patch::Merge(patch)).await?))
    }

    /// Creates the revision of the set's template, or returns the one of that name if it has the
    /// same data. A collision with other data is counted in the status, and the sync ends with an
    /// error.
    /// Upstream: `snapshot`.
    async fn create_revision(
        &self,
        set: &Arc<DaemonSet>,
        revision: &NewRevision,
    ) -> Result<Arc<ControllerRevision>, Error> {
        match revision.create(&self.client, &**set, &self.changed_revisions).await? {
            Created::New(created) | Created::Same(created) => Ok(Arc::new(created)),
            Created::Collision => Err(self.count_collision(set, revision.name()).await?),
        }
    }

    /// Increments the collision count, so that the next sync finds another name. Returns the error
    /// that the sync ends with.
    ///
    /// # Errors
    /// When the count could not be written.
    async fn count_collision(&self, set: &Arc<DaemonSet>, name: &str) -> Result<Error, Error> {
        let key = set.meta.key();
        let live: DaemonSet = self.client.get(&key).await?;
        if live.meta.uid != set.meta.uid
            || live.status.collision_count != set.status.collision_count
        {
            // The hash was that of an older count, or of a deleted set of this name.
            return Ok(Error::Stale(format!(
                "found a stale collision count of DaemonSet {key}; will retry until it is updated"
            )));
        }
        let mut status = live.status.clone();
        status.collision_count = Some(status.collision_count.unwrap_or(0).wrapping_add(1));
        let updated = self.client.update_status(&live, &status).await?;
        let version = updated.meta.resource_version;
        self.consistency.record_write(&key, &set.meta.uid, &DaemonSet::RESOURCE, version);
        log::info!("Found a hash collision for DaemonSet {key}: its collision count grows");
        Ok(Error::Stale(format!("controllerrevisions.apps {name:?} already exists")))
    }

    /// Deletes the `others`, which have the same data as `kept`, after all `pods` have its label,
    /// as upstream also those of older revisions. Upstream: `dedupCurHistories`.
    async fn drop_duplicates(
        &self,
        kept: &ControllerRevision,
        others: &[Arc<ControllerRevision>],
        pods: &mut [Arc<Pod>],
    ) -> Result<(), Error> {
        if others.is_empty() {
            return Ok(());
        }
        for pod in pods {
            if pod.meta.labels.get(REVISION_LABEL) == Some(hash(kept)) {
                continue;
            }
            let patch = json!({"metadata": {
                "uid": pod.meta.uid, "labels": {REVISION_LABEL: hash(kept)},
            }});
            *pod = Arc::new(self.client.patch::<Pod>(&pod.meta.key(), &Patch::Merge(patch)).await?);
        }
        for other in others {
            history::delete(&self.client, other).await?;
        }
        Ok(())
    }

    /// Deletes the old revisions beyond the limit, except those of pods that have a node or are
    /// meant for one. Pods that are finished and being deleted count too.
    pub(super) async fn clean_up_revisions(
        &self,
        set: &DaemonSet,
        old: &[Arc<ControllerRevision>],
        pods: &[Arc<Pod>],
    ) -> Result<(), Error> {
        let limit = set.spec.revision_history_limit.unwrap_or(DEFAULT_HISTORY_LIMIT);
        if usize::try_from(limit).is_ok_and(|limit| old.len() <= limit) {
            return Ok(());
        }
        let placed = pods.iter().filter(|pod| has_target(pod));
        let live: HashSet<&str> =
            placed.filter_map(|pod| pod.meta.labels.get(REVISION_LABEL)).collect();
        let is_used = |revision: &ControllerRevision| live.contains(hash(revision));
        for revision in beyond_limit(old, is_used, Limit::All, limit) {
            history::delete(&self.client, &revision).await?;
        }
        Ok(())
    }
}

/// Returns the hash by which pods name the revision.
fn hash(revision: &ControllerRevision) -> &str {
    revision.meta.labels.get(REVISION_LABEL).unwrap_or_default()
}
