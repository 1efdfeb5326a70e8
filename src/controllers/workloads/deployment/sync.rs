//! What every strategy shares: the new ReplicaSet, scaling, history, writing.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::DeploymentController;
use super::annotations::{self, DESIRED_REPLICAS, REVISION};
use super::limits::{Limits, is_rolling_update};
use super::rollback::rollback_to;
use super::scaling::{self, Share};
use super::sets::{Owned, Sets, beyond_history, by_size_newer, by_size_older};
use super::status::{self, PROGRESSING};
use super::template::{HASH_LABEL, differences, equal_ignoring_hash, hash, replica_set_name};
use crate::client::{self, Delete, Patch};
use crate::controllers::workloads::creations::ownership_changes;
use crate::controllers::{Error, Next, SyncResult};
use crate::objects::{Deployment, Labels, ReplicaSet, Resource, ResourceType, from_json};

impl DeploymentController {
    /// Updates only the status, of a Deployment that is being deleted. Upstream: `syncStatusOnly`.
    pub(super) async fn sync_status_only(
        &self,
        deployment: &mut Deployment,
        owned: &mut Owned,
    ) -> SyncResult {
        let sets = self.sync_sets(deployment, owned).await?;
        self.sync_status(deployment, &sets).await
    }

    /// Scales, without a rollout: when the size was changed, or while paused. Upstream: `sync`.
    pub(super) async fn sync_scale(
        &self,
        deployment: &mut Deployment,
        owned: &mut Owned,
    ) -> SyncResult {
        let sets = self.sync_sets(deployment, owned).await?;
        self.scale(deployment, &sets).await?;
        if deployment.spec.paused && rollback_to(deployment).is_none() {
            self.clean_up_history(deployment, &sets.old).await?;
        }
        self.sync_status(deployment, &sets).await
    }

    /// Writes the status if it has changed. Upstream: `syncDeploymentStatus`.
    async fn sync_status(&self, deployment: &mut Deployment, sets: &Sets) -> SyncResult {
        let next = status::calculate(sets, deployment, self.clock.now(), self.counts_terminating);
        if next != status::without_defaults(deployment.status.clone()) {
            deployment.status = next;
            self.write_status(deployment).await?;
        }
        Ok(Next::Done)
    }

    /// Writes the condition Progressing when the rollout was paused or resumed, so that the
    /// deadline does not count the time of the pause.
    /// Upstream: `checkPausedConditions`.
    pub(super) async fn check_paused(&self, deployment: &mut Deployment) -> Result<(), Error> {
        let Some((reason, message)) = paused_condition(deployment) else { return Ok(()) };
        let now = self.clock.now();
        let condition = status::condition(PROGRESSING, "Unknown", reason, message, now);
        status::set_condition(&mut deployment.status, condition);
        self.write_status(deployment).await
    }

    /// Returns the ReplicaSets by role, after updating the new one's annotations and
    /// minReadySeconds or, if these are right already, the Deployment's revision and a missing
    /// condition Progressing. Creates nothing. Upstream: `getAllReplicaSetsAndSyncRevision`.
    pub(super) async fn sync_sets(
        &self,
        deployment: &mut Deployment,
        owned: &mut Owned,
    ) -> Result<Sets, Error> {
        let mut sets = Sets::new(&deployment.spec.template, owned);
        let Some(new) = &sets.new else { return Ok(sets) };
        let patch = newest_patch(deployment, new, next_revision(&sets));
        if let Some(patch) = patch {
            let written = self.patch_replica_set(deployment, new, patch).await?;
            if let Some(at) = owned.iter().position(|set| set.meta.uid == written.meta.uid) {
                owned[at] = written.clone();
            }
            sets.new = Some(written);
            return Ok(sets);
        }
        let revision = new.meta.annotations.get(REVISION).unwrap_or_default();
        let mut changed = set_revision(deployment, revision);
        if status::progress_deadline(deployment).is_some()
            && status::find_condition(&deployment.status, PROGRESSING).is_none()
        {
            let message = format!("Found new replica set {:?}", new.meta.name);
            self.set_progressing(deployment, "True", status::FOUND_REPLICA_SET, message);
            changed = true;
        }
        if changed {
            self.write_status(deployment).await?;
        }
        Ok(sets)
    }

    /// Returns the ReplicaSets as [`Self::sync_sets`] does, with `new`, which is created if it is
    /// missing. Upstream: `getNewReplicaSet`.
    pub(super) async fn sync_sets_with_new(
        &self,
        deployment: &mut Deployment,
        owned: &mut Owned,
    ) -> Result<Sets, Error> {
        let mut sets = self.sync_sets(deployment, owned).await?;
        if sets.new.is_none() {
            let created = match self.create_new(deployment, &sets).await {
                // The creation has to wait: see `Creations`. Meanwhile the status follows the old
                // ones.
                Err(error) if error.wait().is_some() => {
                    self.sync_status(deployment, &sets).await?;
                    return Err(error);
                }
                created => created?,
            };
            owned.push(created.clone());
            sets.new = Some(created);
        }
        Ok(sets)
    }

    /// Creates the new ReplicaSet, and writes the condition that says so. One that exists already
    /// is taken: see [`Self::handle_existing_name`]. `Err` also if a created one came back changed.
    async fn create_new(
        &self,
        deployment: &mut Deployment,
        sets: &Sets,
    ) -> Result<Arc<ReplicaSet>, Error> {
        let hash = hash(&deployment.spec.template, deployment.status.collision_count);
        let name = replica_set_name(&deployment.meta.name, &hash);
        let desired = deployment.replicas();
        let most = Limits::new(deployment).max_replicas(desired);
        let size = if is_rolling_update(deployment) {
            scaling::new_size(desired, most, sets.replicas(), 0)
        } else {
            desired
        };
        let revision = next_revision(sets);
        let body = new_replica_set(deployment, &name, &hash, size, revision);
        let permit = self.creations.allow(&deployment.meta, || self.dry_run(deployment, &body));
        let permit = permit.await?;
        let result = self.client.create::<ReplicaSet>(&deployment.meta.namespace, &body).await;
        let created = match result {
            Ok(created) => {
                self.record_write(deployment, &ReplicaSet::RESOURCE, created.meta.resource_version);
                Arc::new(created)
            }
            Err(error) if error.is_already_exists() => {
                let found = self.handle_existing_name(deployment, &name, error).await?;
                if set_revision(deployment, &revision.to_string()) {
                    self.write_status(deployment).await?;
                }
                return Ok(found);
            }
            // Nothing can be created there any more, which needs no event.
            Err(error) if error.is_namespace_terminating() => return Err(error.into()),
            Err(error) => return Err(self.report_failed_create(deployment, &name, error).await),
        };
        if size > 0 {
            let message = format!("Scaled up replica set {name} from 0 to {size}");
            self.recorder.normal(deployment, "ScalingReplicaSet", message);
        }
        let changes = changes(deployment, &body, &created);
        let (named, recorder) = (("ReplicaSet", &*name), &self.recorder);
        let recorded = self.creations.record_created(deployment, permit, recorder, named, &changes);
        if let Err(wait) = recorded {
            set_revision(deployment, &revision.to_string());
            if status::progress_deadline(deployment).is_some() {
                let reason = status::FAILED_CREATE;
                self.set_progressing(deployment, "False", reason, wait.message());
            }
            self.write_status(deployment).await?;
            return Err(wait);
        }
        let mut changed = set_revision(deployment, &revision.to_string());
        if status::progress_deadline(deployment).is_some() {
            let message = format!("Created new replica set {name:?}");
            self.set_progressing(deployment, "True", status::NEW_REPLICA_SET, message);
            changed = true;
        }
        if changed {
            self.write_status(deployment).await?;
        }
        Ok(created)
    }

    /// Creates the ReplicaSet `body` in a dry run, and returns why `deployment` would not recognise
    /// it; nothing if it would.
    async fn dry_run(&self, deployment: &Deployment, body: &Value) -> client::Result<Vec<String>> {
        let sets = self.client.resource(&ReplicaSet::RESOURCE).dry_run();
        match sets.create::<ReplicaSet>(&deployment.meta.namespace, body).await {
            Ok(created) => Ok(changes(deployment, body, &created)),
            // The one that came back changed has this name. The creation fails too, and the next
            // sync takes another name.
            Err(error) if error.is_already_exists() => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Returns the ReplicaSet that has the new one's `name` already, if it is the new one, created
    /// before this cache showed it; `Stale` while the cache does not show it. Otherwise its
    /// template has the same hash: then this increments the collision count, so that the next sync
    /// takes another name, and returns `error`.
    async fn handle_existing_name(
        &self,
        deployment: &mut Deployment,
        name: &str,
        error: client::Error,
    ) -> Result<Arc<ReplicaSet>, Error> {
        let key = crate::objects::ObjectKey::new(&deployment.meta.namespace, name);
        let Some(found) = self.replica_sets.get(&key) else {
            return Err(Error::Stale(format!("replica set {key} exists but is not cached yet")));
        };
        if found.meta.is_controlled_by(&deployment.meta.uid)
            && equal_ignoring_hash(&deployment.spec.template, &found.spec.template)
        {
            return Ok(found);
        }
        let count = deployment.status.collision_count.unwrap_or(0).wrapping_add(1);
        deployment.status.collision_count = Some(count);
        if self.write_status(deployment).await.is_ok() {
            log::info!(
                "{}: the hash of {name} collides, collisionCount is now {count}",
                deployment.meta.key()
            );
        }
        Err(error.into())
    }

    /// Records the condition and the event of a ReplicaSet that could not be created; returns the
    /// error.
    async fn report_failed_create(
        &self,
        deployment: &mut Deployment,
        name: &str,
        error: client::Error,
    ) -> Error {
        let reason = error.message().map_or_else(|| error.to_string(), str::to_owned);
        let message = format!("Failed to create new replica set {name:?}: {reason}");
        if status::progress_deadline(deployment).is_some() {
            self.set_progressing(deployment, "False", status::FAILED_CREATE, message.clone());
            if let Err(second) = self.write_status(deployment).await {
                log::debug!("{}: {second}", deployment.meta.key());
            }
        }
        self.recorder.warning(deployment, status::FAILED_CREATE, message);
        error.into()
    }

    /// Scales the ReplicaSets to the Deployment's size, several of a rollout in proportion.
    /// Upstream: `scale`.
    async fn scale(&self, deployment: &Deployment, sets: &Sets) -> Result<(), Error> {
        let desired = deployment.replicas();
        if let Some(only) = sets.active_or_latest() {
            self.scale_replica_set(deployment, only, desired).await?;
            return Ok(());
        }
        if sets.new.as_ref().is_some_and(|new| is_saturated(deployment, new)) {
            // Old pods are left over from ReplicaSets that were adopted after the rollout.
            for old in sets.active_old() {
                self.scale_replica_set(deployment, &old, 0).await?;
            }
            return Ok(());
        }
        if !is_rolling_update(deployment) {
            // `Recreate` has no shares: its old ReplicaSets go to 0 first.
            return Ok(());
        }
        let mut active: Owned = sets.active().cloned().collect();
        let most = Limits::new(deployment).max_replicas(desired);
        let total = sets.replicas();
        let to_add = scaling::to_add(desired, most, total);
        match to_add {
            1.. => active.sort_by(|a, b| by_size_newer(a, b)),
            0 => {}
            _ => active.sort_by(|a, b| by_size_older(a, b)),
        }
        let shares: Vec<Share> = active.iter().map(|set| Share::from(&**set)).collect();
        let current = deployment.status.replicas.unwrap_or(0);
        let sizes = scaling::proportional(&shares, to_add, desired, most, current);
        for (set, size) in active.iter().zip(sizes) {
            self.scale_and_annotate(deployment, set, size).await?;
        }
        Ok(())
    }

    /// Scales `set` to `size`, with the annotations about the Deployment's size, unless it has that
    /// size already. Returns the ReplicaSet as written; `None` if nothing was.
    /// Upstream: `scaleReplicaSetAndRecordEvent`.
    pub(super) async fn scale_replica_set(
        &self,
        deployment: &Deployment,
        set: &ReplicaSet,
        size: i32,
    ) -> Result<Option<Arc<ReplicaSet>>, Error> {
        if set.replicas() == size {
            return Ok(None);
        }
        self.scale_and_annotate(deployment, set, size).await
    }

    /// Scales `set` to `size`, and updates the annotations about the Deployment's size even if it
    /// has that size already. Returns the ReplicaSet as written; `None` if its size stays.
    /// Upstream: `scaleReplicaSet`.
    async fn scale_and_annotate(
        &self,
        deployment: &Deployment,
        set: &ReplicaSet,
        size: i32,
    ) -> Result<Option<Arc<ReplicaSet>>, Error> {
        let before = set.replicas();
        let desired = deployment.replicas();
        let notes = annotations::sizes(desired, Limits::new(deployment).max_replicas(desired));
        let is_noted =
            notes.iter().all(|(key, value)| set.meta.annotations.get(key) == Some(value.as_str()));
        if before == size && is_noted {
            return Ok(None);
        }
        let notes: Map<String, Value> =
            notes.into_iter().map(|(key, value)| (key.to_owned(), value.into())).collect();
        let patch = json!({"metadata": {"annotations": notes}, "spec": {"replicas": size}});
        let written = self.patch_replica_set(deployment, set, patch).await?;
        if before == size {
            return Ok(None);
        }
        let direction = if before < size { "up" } else { "down" };
        let message =
            format!("Scaled {direction} replica set {} from {before} to {size}", set.meta.name);
        self.recorder.normal(deployment, "ScalingReplicaSet", message);
        Ok(Some(written))
    }

    /// Deletes the oldest history beyond `spec.revisionHistoryLimit`, whose largest value means no
    /// limit. Upstream: `cleanupDeployment`.
    pub(super) async fn clean_up_history(
        &self,
        deployment: &Deployment,
        old: &[Arc<ReplicaSet>],
    ) -> Result<(), Error> {
        let limit = deployment.spec.revision_history_limit.filter(|limit| *limit != i32::MAX);
        let Some(limit) = limit else { return Ok(()) };
        for set in beyond_history(old, limit) {
            let delete = Delete::new().uid(set.meta.uid.clone());
            match self.client.delete::<ReplicaSet>(&set.meta.key(), delete).await {
                Err(error) if !error.is_not_found() => return Err(error.into()),
                _ => {}
            }
        }
        Ok(())
    }

    /// Writes the status and the annotations of `deployment`, which then has the version that was
    /// written.
    pub(super) async fn write_status(&self, deployment: &mut Deployment) -> Result<(), Error> {
        let status = &deployment.status;
        let written = self.client.update_status_for_metadata(&*deployment, status).await?;
        deployment.meta.resource_version = written.meta.resource_version;
        self.record_write(deployment, &Deployment::RESOURCE, deployment.meta.resource_version);
        Ok(())
    }

    /// Patches `set`, and returns it as written. The API server refuses the patch if `set` is no
    /// longer the newest version.
    async fn patch_replica_set(
        &self,
        deployment: &Deployment,
        set: &ReplicaSet,
        mut patch: Value,
    ) -> Result<Arc<ReplicaSet>, Error> {
        patch["metadata"]["resourceVersion"] = set.meta.resource_version.to_string().into();
        let written: ReplicaSet = self.client.patch(&set.meta.key(), &Patch::Merge(patch)).await?;
        self.record_write(deployment, &ReplicaSet::RESOURCE, written.meta.resource_version);
        Ok(Arc::new(written))
    }

    /// Records a write, so that the next sync of `deployment` waits until the cache of `resource`
    /// has seen `version`.
    pub(super) fn record_write(
        &self,
        deployment: &Deployment,
        resource: &ResourceType,
        version: u64,
    ) {
        let meta = &deployment.meta;
        self.consistency.record_write(&meta.key(), &meta.uid, resource, version);
    }

    /// Sets the condition Progressing of `deployment`, without a write. `value`: the condition's
    /// status.
    fn set_progressing(
        &self,
        deployment: &mut Deployment,
        value: &str,
        reason: &str,
        text: String,
    ) {
        let now = self.clock.now();
        let condition = status::condition(PROGRESSING, value, reason, text, now);
        status::set_condition(&mut deployment.status, condition);
    }
}

/// Returns the reason and message to write when a pause, or its end, is not noted yet; `None` also
/// without a deadline or after it.
fn paused_condition(deployment: &Deployment) -> Option<(&'static str, &'static str)> {
    status::progress_deadline(deployment)?;
    let reason = status::find_condition(&deployment.status, PROGRESSING)
        .and_then(|condition| condition.reason.as_deref());
    match (deployment.spec.paused, reason) {
        // A deadline that has passed stays visible.
        (_, Some(status::TIMED_OUT)) => None,
        // It is noted already.
        (true, Some(status::PAUSED)) => None,
        (true, _) => Some((status::PAUSED, "Deployment is paused")),
        (false, Some(status::PAUSED)) => Some((status::RESUMED, "Deployment is resumed")),
        (false, _) => None,
    }
}

/// Returns the revision of the new ReplicaSet: one more than the highest of the old. After the
/// largest number it wraps, as upstream's: any number is valid in the annotation.
fn next_revision(sets: &Sets) -> i64 {
    annotations::max_revision(sets.old.iter().filter_map(|set| annotations::revision(&set.meta)))
        .wrapping_add(1)
}

/// Sets the revision in the annotation of `deployment`, without a write, and returns whether it
/// changed. Upstream: `SetDeploymentRevision`.
fn set_revision(deployment: &mut Deployment, revision: &str) -> bool {
    let current = &deployment.meta.annotations;
    if current.get(REVISION).unwrap_or_default() == revision {
        return false;
    }
    deployment.meta.annotations = annotations::with_label(current, REVISION, revision);
    true
}

/// Returns the patch of annotations and minReadySeconds for a new ReplicaSet that exists already;
/// `None` if it is up to date.
fn newest_patch(deployment: &Deployment, new: &ReplicaSet, revision: i64) -> Option<Value> {
    let current = annotations::to_map(&new.meta.annotations);
    let next = annotations::of_newest(&deployment.meta.annotations, &current, revision);
    let min_ready = deployment.spec.min_ready_seconds;
    if next.is_none() && new.spec.min_ready_seconds == min_ready {
        return None;
    }
    let with_copied = || annotations::with_copied(&deployment.meta.annotations, &current);
    let mut changed = next.unwrap_or_else(with_copied);
    changed.retain(|key, value| current.get(key) != Some(value));
    let mut patch = json!({"metadata": {"annotations": changed}});
    if new.spec.min_ready_seconds != min_ready {
        patch["spec"]["minReadySeconds"] = min_ready.into();
    }
    Some(patch)
}

/// Makes the ReplicaSet of the Deployment's template, from the template's own JSON.
fn new_replica_set(
    deployment: &Deployment,
    name: &str,
    hash: &str,
    size: i32,
    revision: i64,
) -> Value {
    let meta = &deployment.meta;
    let spec = &deployment.spec;
    let labels = annotations::with_label(&spec.template.labels, HASH_LABEL, hash);
    let mut template = spec.template.to_value();
    template["metadata"]["labels"] = json!(labels);
    let mut selector = spec.selector.clone().unwrap_or_default();
    selector.match_labels = annotations::with_label(&selector.match_labels, HASH_LABEL, hash);
    let mut notes = annotations::of_newest(&meta.annotations, &Default::default(), revision)
        .unwrap_or_default();
    let desired = deployment.replicas();
    let sizes = annotations::sizes(desired, Limits::new(deployment).max_replicas(desired));
    notes.extend(sizes.map(|(key, value)| (key.to_owned(), value)));
    let mut body = json!({
        "apiVersion": ReplicaSet::RESOURCE.api_version(),
        "kind": ReplicaSet::RESOURCE.kind,
        "metadata": {
            "name": name,
            "namespace": meta.namespace,
            "labels": labels,
            "annotations": notes,
            "ownerReferences": [meta.controller_ref::<Deployment>()],
        },
        "spec": {"replicas": size, "selector": selector, "template": template},
    });
    if spec.min_ready_seconds != 0 {
        body["spec"]["minReadySeconds"] = spec.min_ready_seconds.into();
    }
    body
}

/// Returns why `deployment` does not take `created`, which was sent as `sent`, as its new
/// ReplicaSet; nothing if it does.
fn changes(deployment: &Deployment, sent: &Value, created: &ReplicaSet) -> Vec<String> {
    let labels: Labels = from_json(&sent["metadata"]["labels"].to_string()).unwrap_or_default();
    let selector = deployment.spec.selector.as_ref();
    let mut changes = ownership_changes(&deployment.meta, selector, &labels, &created.meta);
    changes.extend(differences(&deployment.spec.template, &created.spec.template));
    changes
}

/// Returns whether the new ReplicaSet should have all the pods, by its spec and its annotation, and
/// all are available. Upstream: `IsSaturated`.
fn is_saturated(deployment: &Deployment, set: &ReplicaSet) -> bool {
    let desired = deployment.replicas();
    set.replicas() == desired
        && annotations::replicas(&set.meta.annotations, DESIRED_REPLICAS) == Some(desired)
        && set.status.available_replicas == desired
}

#[cfg(test)]
mod tests {
    use super::super::annotations::MAX_REPLICAS;
    use super::super::sets::tests::set;
    use super::*;

    fn deployment(json: Value) -> Deployment {
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn a_new_replica_set_is_made_from_the_templates_own_json() {
        let wanted = deployment(json!({
            "metadata": {"namespace": "ns", "name": "web", "uid": "u",
                "annotations": {"cause": "edit", "deployment.kubernetes.io/revision": "7"}},
            "spec": {"replicas": 4, "minReadySeconds": 5,
                "selector": {"matchLabels": {"app": "a"},
                    "matchExpressions": [{"key": "x", "operator": "DoesNotExist"}]},
                "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%"}},
                "template": {"metadata": {"labels": {"app": "a"}}, "spec": {"brandNew": [1]}}}
        }));
        assert_eq!(
            new_replica_set(&wanted, "web-h", "h", 3, 8),
            json!({
                "apiVersion": "apps/v1", "kind": "ReplicaSet",
                "metadata": {"namespace": "ns", "name": "web-h",
                    "labels": {"app": "a", "pod-template-hash": "h"},
                    "annotations": {"cause": "edit", "deployment.kubernetes.io/revision": "8",
                        DESIRED_REPLICAS: "4", MAX_REPLICAS: "5"},
                    "ownerReferences": [{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web",
                        "uid": "u", "controller": true, "blockOwnerDeletion": true}]},
                "spec": {"replicas": 3, "minReadySeconds": 5,
                    "selector": {"matchLabels": {"app": "a", "pod-template-hash": "h"},
                        "matchExpressions": [{"key": "x", "operator": "DoesNotExist"}]},
                    "template": {"metadata": {"labels": {"app": "a", "pod-template-hash": "h"}},
                        "spec": {"brandNew": [1]}}}
            })
        );
    }

    #[test]
    fn an_existing_replica_set_is_patched_only_where_it_differs() {
        let wanted = |min_ready: i32| {
            deployment(json!({"metadata": {"annotations": {"cause": "edit"}},
                "spec": {"minReadySeconds": min_ready}}))
        };
        let noted = json!({"/metadata/annotations": {"cause": "edit", REVISION: "2"}});
        let current = set("web", 1, "a", 1, noted);
        assert_eq!(newest_patch(&wanted(0), &current, 2), None);
        assert_eq!(
            newest_patch(&wanted(3), &current, 2),
            Some(json!({"metadata": {"annotations": {}}, "spec": {"minReadySeconds": 3}}))
        );
        assert_eq!(
            newest_patch(&wanted(0), &current, 3),
            Some(json!({"metadata": {"annotations":
                {REVISION: "3", "deployment.kubernetes.io/revision-history": "2"}}}))
        );
    }

    #[test]
    fn an_unreadable_revision_stays_and_hides_no_other_change() {
        let wanted = |min_ready: i32| {
            deployment(json!({"metadata": {"annotations": {"cause": "edit"}},
                "spec": {"minReadySeconds": min_ready}}))
        };
        let noted = json!({"/metadata/annotations": {"cause": "old", REVISION: "abc"}});
        let current = set("web", 1, "a", 1, noted);
        // Alone the Deployment's annotations are not written, as upstream.
        assert_eq!(newest_patch(&wanted(0), &current, 2), None);
        let patch = json!({"metadata": {"annotations": {"cause": "edit"}},
            "spec": {"minReadySeconds": 3}});
        assert_eq!(newest_patch(&wanted(3), &current, 2), Some(patch));
    }

    #[test]
    fn the_revision_after_the_largest_number_is_not_written() {
        let noted = json!({"/metadata/annotations": {REVISION: i64::MAX.to_string()}});
        let old = vec![set("old", 1, "a", 0, noted)];
        // It wraps, as upstream's, and so is no higher than any.
        let next = next_revision(&Sets { new: None, old });
        assert_eq!(next, i64::MIN);
        let wanted = deployment(json!({"metadata": {"name": "web", "uid": "u"}}));
        let body = new_replica_set(&wanted, "web-h", "h", 1, next);
        assert!(body["metadata"]["annotations"].get(REVISION).is_none(), "{body}");
    }

    #[test]
    fn a_pause_is_noted_once_and_never_hides_a_missed_deadline() {
        for (deadline, paused, reason, noted) in [
            (Some(10), true, None, Some("DeploymentPaused")),
            (Some(10), true, Some("ReplicaSetUpdated"), Some("DeploymentPaused")),
            (Some(10), true, Some("DeploymentPaused"), None),
            (Some(10), true, Some("ProgressDeadlineExceeded"), None),
            (Some(10), false, Some("DeploymentPaused"), Some("DeploymentResumed")),
            (Some(10), false, Some("ReplicaSetUpdated"), None),
            (Some(10), false, None, None),
            (None, true, None, None),
        ] {
            let conditions: Vec<Value> = reason
                .iter()
                .map(|reason| json!({"type": "Progressing", "status": "True", "reason": reason}))
                .collect();
            let deployment = deployment(json!({
                "spec": {"paused": paused, "progressDeadlineSeconds": deadline},
                "status": {"conditions": conditions}
            }));
            let got = paused_condition(&deployment).map(|(reason, _)| reason);
            assert_eq!(got, noted, "{deadline:?} {paused} {reason:?}");
        }
    }

    #[test]
    fn saturated_is_full_known_and_available() {
        let wanted = deployment(json!({"spec": {"replicas": 2}}));
        for (replicas, noted, available, saturated) in [
            (2, "2", 2, true),
            (1, "2", 2, false),
            (2, "3", 2, false),
            (2, "x", 2, false),
            (2, "2", 1, false),
        ] {
            let more = json!({"/metadata/annotations": {DESIRED_REPLICAS: noted},
                "/status/availableReplicas": available});
            assert_eq!(is_saturated(&wanted, &set("web", 1, "a", replicas, more)), saturated);
        }
    }
}
