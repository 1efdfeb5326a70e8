//! Creates and deletes the pods of a Job.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;

use super::indexes::COMPLETION_INDEX;
use super::plan::{Plan, Wanted};
use super::sync_state::{INDEX_FAILURES, INDEX_IGNORED_FAILURES, SyncState, TRACKING, as_i32};
use super::{BATCH_PERIOD, Jobs, metrics};
use crate::client::{self, Patch};
use crate::controllers::Error;
use crate::controllers::runner::batch::together;
use crate::controllers::workloads::new_pod::{EnvSource, NewPod};
use crate::controllers::workloads::pod_batch::create_expected;
use crate::controllers::workloads::pod_control::{
    is_being_deleted_in_cache, is_gone, is_not_found,
};
use crate::objects::{Job, ObjectKey, Pod, PodGroup, Resource};

const INDEX_VARIABLE: &str = "JOB_COMPLETION_INDEX";
const INDEX_FIELD: &str = "metadata.labels['batch.kubernetes.io/job-completion-index']";
/// Upstream: `names.MaxGeneratedNameLength`.
const LONGEST_PREFIX: usize = 58;

/// The result of deleting pods: see [`count_deleted`].
pub struct Deleted {
    pub all: i32,
    pub ready: i32,
    /// The first failure.
    pub failure: Option<Error>,
}

/// What a sync did, as a label of metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Action {
    #[default]
    Reconciling,
    Tracking,
    PodsCreated,
    PodsDeleted,
}

impl Action {
    pub fn name(self) -> &'static str {
        match self {
            Action::Reconciling => "reconciling",
            Action::Tracking => "tracking",
            Action::PodsCreated => "pods_created",
            Action::PodsDeleted => "pods_deleted",
        }
    }
}

impl Jobs {
    /// Carries out `plan`: creates or deletes pods, or comes back later. Returns the number of
    /// active pods afterwards, the action, and a failure.
    pub(super) async fn manage(
        self: &Arc<Self>,
        key: &ObjectKey,
        state: &mut SyncState,
        plan: Plan,
        group: Option<&PodGroup>,
    ) -> (i32, Action, Option<Error>) {
        let active = as_i32(state.active.len());
        match plan {
            Plan::Nothing => (active, Action::Tracking, None),
            Plan::Delete(pods) => {
                let deleted = self.delete_surplus(key, &state.job, pods).await;
                state.terminating += deleted.all;
                state.ready -= deleted.ready;
                (active - deleted.all, Action::PodsDeleted, deleted.failure)
            }
            // The action is upstream's, which counts the wait as a creation.
            Plan::Wait(wait) => {
                self.queue.add_after(key.clone(), wait.max(BATCH_PERIOD));
                (active, Action::PodsCreated, None)
            }
            Plan::Create(wanted) => {
                let (created, failure) = self.create(key, state, wanted, group).await;
                (active + created, Action::PodsCreated, failure)
            }
        }
    }

    /// Deletes pods that the Job does not count any more: they lose their finalizer first.
    /// Upstream: `deleteJobPods`.
    pub(super) async fn delete_surplus(
        self: &Arc<Self>,
        key: &ObjectKey,
        job: &Arc<Job>,
        pods: Vec<Arc<Pod>>,
    ) -> Deleted {
        let uids = pods.iter().map(|pod| pod.meta.uid.clone()).collect();
        self.expectations.expect_deletions(key, uids);
        let deletions = pods.iter().cloned().map(|pod| {
            let (this, job, key) = (self.clone(), job.clone(), key.clone());
            async move {
                let attempt = match this.remove_finalizer_of(&job, &pod).await {
                    Ok(()) => Attempt::Delete(this.pod_control.delete(&*job, &pod).await),
                    Err(error) => Attempt::Release(error),
                };
                // No event comes for this deletion, or it came before the expectation.
                if attempt.has_failed() || is_being_deleted_in_cache(&pod, &this.pods) {
                    this.expectations.deletion_observed(&key, &pod.meta.uid);
                }
                attempt
            }
        });
        let attempts = together(deletions).await;
        let unreleased = pods.iter().zip(&attempts).filter_map(|(pod, attempt)| match attempt {
            Attempt::Release(error) => Some((&**pod, error)),
            Attempt::Delete(_) => None,
        });
        self.record_unreleased(job, unreleased);
        count_deleted(&pods, attempts)
    }

    /// Records by an event why a pod keeps its finalizer: a policy or webhook may forbid changes of
    /// the pod. Of several pods it is the first by name, the same one in each retry.
    pub(super) fn record_unreleased<'a>(
        &self,
        job: &Job,
        failures: impl Iterator<Item = (&'a Pod, &'a Error)>,
    ) {
        let refused = failures.filter(|(_, error)| error.api().is_some_and(is_refusal));
        let Some((pod, error)) = refused.min_by_key(|(pod, _)| &pod.meta.name) else { return };
        let (name, why) = (&pod.meta.name, error.message());
        let text = format!("Error removing finalizer {TRACKING} from pod {name}: {why}");
        self.recorder.warning(job, "FailedRemoveFinalizer", text);
    }

    /// Deletes pods and keeps their finalizers, so that they are still counted.
    /// Upstream: `deleteActivePods`.
    pub(super) async fn delete_active(
        self: &Arc<Self>,
        job: &Arc<Job>,
        pods: &[Arc<Pod>],
    ) -> Deleted {
        let deletions = pods.iter().cloned().map(|pod| {
            let (control, job) = (self.pod_control.clone(), job.clone());
            async move { Attempt::Delete(control.delete(&*job, &pod).await) }
        });
        count_deleted(pods, together(deletions).await)
    }

    /// Removes the finalizer from a pod of `job`, so that the pod can go. The job's next sync waits
    /// until the cache shows the removal.
    pub(super) async fn remove_finalizer_of(&self, job: &Job, pod: &Pod) -> Result<(), Error> {
        if let Some(version) = self.remove_finalizer(pod).await? {
            self.pod_control.record_write(&job.meta, version);
        }
        Ok(())
    }

    /// Removes the finalizer from `pod`, and returns the pod's new version; `None`: it had no
    /// finalizer.
    pub(super) async fn remove_finalizer(&self, pod: &Pod) -> Result<Option<u64>, Error> {
        if !pod.meta.has_finalizer(TRACKING) {
            return Ok(None);
        }
        let patch = Patch::StrategicMerge(json!({ "metadata": {
            // The API server refuses a pod of another uid, with a conflict.
            "uid": pod.meta.uid, "$deleteFromPrimitiveList/finalizers": [TRACKING],
        } }));
        let pods = self.client.resource(&Pod::RESOURCE);
        let released = pods.patch_for_metadata(&pod.meta.key(), &patch).await?;
        Ok(Some(released.meta.resource_version))
    }

    /// Creates pods, in growing batches. Returns the number of created pods, and the first failure.
    async fn create(
        self: &Arc<Self>,
        key: &ObjectKey,
        state: &SyncState,
        wanted: Vec<Wanted>,
        group: Option<&PodGroup>,
    ) -> (i32, Option<Error>) {
        if wanted.is_empty() {
            return (0, None);
        }
        let job = state.job.clone();
        let base = match template_pod(&job, group) {
            Ok(base) => Arc::new(base),
            Err(error) => return (0, Some(error)),
        };
        let total = wanted.len();
        log::debug!("{key}: too few pods running, creating {total}");
        self.expectations.expect_creations(key, total);
        // Counts the attempts: after a batch with a failure the rest is not tried.
        let (wanted, tried) = (Arc::new(wanted), AtomicUsize::new(0));
        let create = |at: usize| {
            tried.store(at + 1, Ordering::Relaxed);
            let (control, job, base) = (self.pod_control.clone(), job.clone(), base.clone());
            let wanted = wanted.clone();
            async move {
                let pod = pod_for(&base, &job, &wanted[at])?;
                control.create(&*job, &pod.encode()?).await
            }
        };
        let (created, failure) = create_expected(&self.expectations, key, total, create).await;
        record_creations(state, created, tried.into_inner() - created);
        (as_i32(created), failure)
    }
}

/// Returns whether the next sync will fail in the same way. A conflict, a server that is busy, or a
/// lost answer is over by then, and a pod that is gone has no finalizer.
fn is_refusal(error: &client::Error) -> bool {
    let is_busy = error.is_too_many_requests() || error.is_unavailable() || error.is_timeout();
    error.code().is_some() && !error.is_conflict() && !error.is_not_found() && !is_busy
}

/// The result of deleting a pod.
enum Attempt {
    /// The pod could not be released, so it was not deleted.
    Release(Error),
    Delete(Result<(), Error>),
}

impl Attempt {
    fn has_failed(&self) -> bool {
        !matches!(self, Attempt::Delete(Ok(())))
    }

    /// Returns why the pod was not deleted; `None` if it was, or was gone already.
    fn failure(self) -> Option<Error> {
        match self {
            // Not `is_gone`: a conflict may be about the write here, not about the pod's uid.
            Attempt::Release(error) if is_not_found(&error) => None,
            Attempt::Release(error) => Some(Error::during("removing completion finalizer", error)),
            Attempt::Delete(result) => result.err().filter(|error| !is_gone(error)),
        }
    }
}

/// Counts the pods that are deleted or were gone already, and returns the first failure. As
/// upstream, `ready` also counts ready pods whose deletion failed. Ready pods that were gone have
/// to count: the API server refuses a status with more ready pods than active ones.
fn count_deleted(pods: &[Arc<Pod>], attempts: Vec<Attempt>) -> Deleted {
    let mut deleted = Deleted { all: 0, ready: 0, failure: None };
    for (pod, attempt) in pods.iter().zip(attempts) {
        let was_released = matches!(attempt, Attempt::Delete(_));
        let failure = attempt.failure();
        deleted.all += i32::from(failure.is_none());
        deleted.ready += i32::from(pod.is_ready() && (was_released || failure.is_none()));
        deleted.failure = deleted.failure.or(failure);
    }
    deleted
}

/// Makes the parts that all new pods of a Job share.
fn template_pod(job: &Job, group: Option<&PodGroup>) -> Result<NewPod, Error> {
    let mut pod = NewPod::new::<Job>(&job.meta, &job.spec.template)?;
    pod.metadata.add_finalizer(TRACKING);
    if job.spec.is_indexed() {
        pod.edit_spec(|spec| spec.add_env(INDEX_VARIABLE, &EnvSource::Field(INDEX_FIELD)))?;
    }
    if let Some(group) = group {
        // The Job alone owns the pod: upstream drops the reference to the group on the way.
        pod.edit_spec(|spec| spec.set_scheduling_group(&group.meta.name))?;
    }
    Ok(pod)
}

/// Returns `base` with the index of `wanted`, and the failures of that index; unchanged without an
/// index.
fn pod_for(base: &NewPod, job: &Job, wanted: &Wanted) -> Result<NewPod, Error> {
    let mut pod = base.clone();
    let Some(index) = wanted.index else { return Ok(pod) };
    let (name, text) = (&job.meta.name, index.to_string());
    pod.metadata.generate_name = name_prefix(name, index);
    pod.metadata.set_annotation(COMPLETION_INDEX, &text);
    pod.metadata.set_label(COMPLETION_INDEX, &text);
    if let Some(failures) = wanted.failures {
        pod.metadata.set_annotation(INDEX_FAILURES, &failures.counted.to_string());
        if failures.ignored > 0 {
            pod.metadata.set_annotation(INDEX_IGNORED_FAILURES, &failures.ignored.to_string());
        }
    }
    pod.edit_spec(|spec| spec.set_hostname(&format!("{name}-{index}")))?;
    Ok(pod)
}

/// Returns the prefix of generated names, `job-index-`, with the Job's name cut to fit. Upstream:
/// `podGenerateNameWithIndex`.
fn name_prefix(job: &str, index: i32) -> String {
    let end = format!("-{index}-");
    let room = LONGEST_PREFIX - end.len();
    format!("{}{end}", job.get(..room).unwrap_or(job))
}

/// Counts pods that were created, and creations that failed, by the reason for which the pods were
/// needed.
/// Upstream: `recordJobPodsCreationTotal`.
fn record_creations(state: &SyncState, created: usize, failed: usize) {
    let policy = &state.spec().pod_replacement_policy;
    let only_failed = policy.as_ref().is_some_and(|policy| *policy == "Failed");
    let reason = match () {
        () if only_failed && state.failed > 0 => "recreate_failed",
        () if state.failed > 0 || state.terminating > 0 => "recreate_terminating_or_failed",
        () => "new",
    };
    for (status, pods) in [("succeeded", created), ("failed", failed)] {
        if pods > 0 {
            metrics::PODS_CREATED.with_label_values(&[reason, status]).inc_by(pods as u64);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::super::plan::IndexFailures;
    use super::*;
    use crate::client::{self, Failure, FailureBody, Status};

    #[test]
    fn a_pod_that_was_not_released_stays_ready() {
        let ready = json!({ "status": { "conditions": [{ "type": "Ready", "status": "True" }] } });
        let pod: Arc<Pod> = Arc::new(serde_json::from_value(ready).unwrap());
        let answer = |code: u16| -> Error {
            let reason = if code == 404 { "NotFound" } else { "Conflict" };
            let status = Status { code, reason: reason.into(), ..Status::default() };
            let (request, body) = (String::new(), FailureBody::Status);
            let failure = Failure { request, code, retry_after: None, body, status };
            client::Error::Status(Box::new(failure)).into()
        };
        for (attempt, all, ready, fails) in [
            (Attempt::Delete(Ok(())), 1, 1, false),
            (Attempt::Delete(Err(answer(404))), 1, 1, false),
            (Attempt::Delete(Err(Error::other("refused"))), 0, 1, true),
            (Attempt::Release(Error::other("refused")), 0, 0, true),
            (Attempt::Release(answer(409)), 0, 0, true),
            (Attempt::Release(answer(404)), 1, 1, false),
        ] {
            let deleted = count_deleted(std::slice::from_ref(&pod), vec![attempt]);
            assert_eq!(
                (deleted.all, deleted.ready, deleted.failure.is_some()),
                (all, ready, fails)
            );
        }
    }

    #[test]
    fn pods_of_an_index_carry_it() {
        let job: Job = serde_json::from_value(json!({
            "metadata": { "namespace": "ns", "name": "j", "uid": "u" },
            "spec": {
                "completionMode": "Indexed",
                "template": {
                    "metadata": { "labels": { "a": "b" }, "finalizers": ["x/y"] },
                    "spec": {
                        "initContainers": [{ "name": "i" }],
                        "containers": [
                            { "name": "c" },
                            { "name": "d", "env": [{ "name": "JOB_COMPLETION_INDEX" }] },
                        ],
                    },
                },
            },
        }))
        .unwrap();
        let base = template_pod(&job, None).unwrap();
        let failures = Some(IndexFailures { counted: 2, ignored: 1 });
        let pod = pod_for(&base, &job, &Wanted { index: Some(4), failures }).unwrap();
        let pod = serde_json::to_value(pod).unwrap();
        let env = json!([{ "name": INDEX_VARIABLE, "valueFrom": { "fieldRef": { "fieldPath": INDEX_FIELD } } }]);
        assert_eq!(pod["metadata"]["generateName"], "j-4-");
        assert_eq!(pod["metadata"]["finalizers"], json!(["x/y", TRACKING]));
        assert_eq!(pod["metadata"]["labels"], json!({ "a": "b", COMPLETION_INDEX: "4" }));
        assert_eq!(
            pod["metadata"]["annotations"],
            json!({ COMPLETION_INDEX: "4", INDEX_FAILURES: "2", INDEX_IGNORED_FAILURES: "1" })
        );
        assert_eq!(pod["spec"]["hostname"], "j-4");
        assert_eq!(pod["spec"]["initContainers"][0]["env"], env);
        assert_eq!(pod["spec"]["containers"][0]["env"], env);
        assert_eq!(pod["spec"]["containers"][1]["env"], json!([{ "name": INDEX_VARIABLE }]));

        let failures = Some(IndexFailures::default());
        let pod = pod_for(&base, &job, &Wanted { index: Some(0), failures }).unwrap();
        let annotations = serde_json::to_value(pod.metadata.annotations).unwrap();
        assert_eq!(annotations, json!({ COMPLETION_INDEX: "0", INDEX_FAILURES: "0" }));
    }

    /// Without one, [`PodControl::create`] refuses the pod.
    #[test]
    fn only_an_index_gives_a_label_to_the_pods_of_a_template_without_labels() {
        for (mode, index, labels) in [("NonIndexed", None, 0), ("Indexed", Some(4), 1)] {
            let job: Job = serde_json::from_value(json!({
                "metadata": { "name": "j", "uid": "u" },
                "spec": { "completionMode": mode, "template": { "spec": {} } },
            }))
            .unwrap();
            let base = template_pod(&job, None).unwrap();
            let pod = pod_for(&base, &job, &Wanted { index, failures: None }).unwrap();
            assert_eq!(pod.metadata.labels.iter().count(), labels, "{mode}");
        }
    }

    #[test]
    fn pods_of_a_group_name_it() {
        let job: Job = serde_json::from_value(json!({
            "metadata": { "name": "j", "uid": "u" },
            "spec": { "template": { "metadata": { "labels": { "a": "b" } }, "spec": {} } },
        }))
        .unwrap();
        let group: PodGroup =
            serde_json::from_value(json!({ "metadata": { "name": "g", "uid": "g1" } })).unwrap();
        let pod: Value = serde_json::to_value(template_pod(&job, Some(&group)).unwrap()).unwrap();
        assert_eq!(pod["spec"]["schedulingGroup"], json!({ "podGroupName": "g" }));
        assert_eq!(pod["metadata"]["ownerReferences"].as_array().map(Vec::len), Some(1));
    }

    #[test]
    fn prefixes_leave_room_for_a_generated_name() {
        let long = "a".repeat(63);
        assert_eq!(name_prefix("j", 10), "j-10-");
        assert_eq!(name_prefix(&long, 10), format!("{}-10-", "a".repeat(54)));
    }
}
