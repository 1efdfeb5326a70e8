//! The rollback that an annotation asks for, as the removed API versions had it. (`kubectl rollout
//! undo` writes the old template itself.)

use serde_json::{Map, Value};

use super::DeploymentController;
use super::annotations::{self, ROLLBACK_TO};
use super::sets::Owned;
use super::template::{equal_ignoring_hash, without_hash};
use crate::controllers::{Error, Next, SyncResult};
use crate::objects::{Deployment, ReplicaSet, Resource};

const REVISION_NOT_FOUND: &str = "DeploymentRollbackRevisionNotFound";
const TEMPLATE_UNCHANGED: &str = "DeploymentRollbackTemplateUnchanged";
const DONE: &str = "DeploymentRollback";

/// Returns the revision that the annotation asks for, 0 for the last one. A text that is no number
/// is ignored.
/// Upstream: `getRollbackTo`.
pub(super) fn rollback_to(deployment: &Deployment) -> Option<i64> {
    deployment.meta.annotations.get(ROLLBACK_TO)?.parse().ok()
}

impl DeploymentController {
    /// Puts back the template of `revision`; the request is cleared in any case.
    /// Upstream: `rollback`.
    pub(super) async fn roll_back(
        &self,
        deployment: &mut Deployment,
        owned: &mut Owned,
        revision: i64,
    ) -> SyncResult {
        let sets = self.sync_sets_with_new(deployment, owned).await?;
        let known = || sets.all().filter_map(|set| annotations::revision(&set.meta));
        let revision = match revision {
            0 => annotations::last_revision(known()),
            asked => asked,
        };
        if revision == 0 {
            self.recorder.warning(deployment, REVISION_NOT_FOUND, "Unable to find last revision.");
            return self.write_rollback(deployment, None).await;
        }
        let target = sets.all().find(|set| annotations::revision(&set.meta) == Some(revision));
        let Some(target) = target else {
            self.recorder.warning(
                deployment,
                REVISION_NOT_FOUND,
                "Unable to find the revision to rollback to.",
            );
            return self.write_rollback(deployment, None).await;
        };
        let name = &deployment.meta.name;
        if equal_ignoring_hash(&deployment.spec.template, &target.spec.template) {
            let message = format!(
                "The rollback revision contains the same template as current deployment {name:?}"
            );
            self.recorder.warning(deployment, TEMPLATE_UNCHANGED, message);
            return self.write_rollback(deployment, None).await;
        }
        let message = format!("Rolled back deployment {name:?} to revision {revision}");
        self.write_rollback(deployment, Some(target)).await?;
        self.recorder.normal(deployment, DONE, message);
        Ok(Next::Done)
    }

    /// Clears the request and, with a `target`, takes its template and annotations.
    async fn write_rollback(
        &self,
        deployment: &Deployment,
        target: Option<&ReplicaSet>,
    ) -> SyncResult {
        let key = deployment.meta.key();
        let version = deployment.meta.resource_version.to_string();
        let mut decided_on_this = true;
        let written: Deployment = self
            .client
            .modify(&key, |live| {
                decided_on_this = live["metadata"]["resourceVersion"] == *version;
                if decided_on_this {
                    apply_rollback(live, target);
                }
                decided_on_this
            })
            .await?;
        if !decided_on_this {
            return Err(Error::Stale(format!(
                "deployment {key} has changed since version {version}"
            )));
        }
        self.record_write(deployment, &Deployment::RESOURCE, written.meta.resource_version);
        Ok(Next::Done)
    }
}

/// Removes the request from the Deployment `live` and, with a `target`, puts back its template and
/// annotations. Otherwise the target would get the annotations of the template that is left behind.
/// Upstream: `SetFromReplicaSetTemplate`, `SetDeploymentAnnotationsTo`.
fn apply_rollback(live: &mut Value, target: Option<&ReplicaSet>) {
    let mut kept = match live["metadata"]["annotations"].take() {
        Value::Object(annotations) => annotations,
        _ => Map::new(),
    };
    if let Some(target) = target {
        kept.retain(|key, _| annotations::is_not_copied(key));
        let handed_back =
            target.meta.annotations.iter().filter(|(key, _)| !annotations::is_not_copied(key));
        kept.extend(handed_back.map(|(key, value)| (key.to_owned(), value.into())));
        live["spec"]["template"] = without_hash(&target.spec.template);
    }
    kept.remove(ROLLBACK_TO);
    live["metadata"]["annotations"] = Value::Object(kept);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_template_and_its_annotations_come_back() {
        let live = json!({
            "metadata": {"name": "web", "annotations": {"cause": "edit", "extra": "x",
                "deployment.kubernetes.io/revision": "2", "deprecated.deployment.rollback.to": "1"}},
            "spec": {"replicas": 3, "template": {"spec": {"image": "b"}}, "unknown": true}
        });
        let target: ReplicaSet = serde_json::from_value(json!({
            "metadata": {"annotations": {"cause": "create", "deployment.kubernetes.io/revision": "1"}},
            "spec": {"template": {"metadata": {"labels": {"app": "a", "pod-template-hash": "h"}},
                "spec": {"image": "a"}}}
        }))
        .unwrap();
        let mut cleared = live.clone();
        apply_rollback(&mut cleared, None);
        assert_eq!(cleared["spec"], live["spec"]);
        assert_eq!(
            cleared["metadata"]["annotations"],
            json!({"cause": "edit", "extra": "x", "deployment.kubernetes.io/revision": "2"})
        );
        let mut back = live;
        apply_rollback(&mut back, Some(&target));
        assert_eq!(
            back,
            json!({
                "metadata": {"name": "web", "annotations":
                    {"cause": "create", "deployment.kubernetes.io/revision": "2"}},
                "spec": {"replicas": 3, "unknown": true, "template":
                    {"metadata": {"labels": {"app": "a"}}, "spec": {"image": "a"}}}
            })
        );
    }
}
