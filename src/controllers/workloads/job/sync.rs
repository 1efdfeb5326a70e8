//! One sync of a Job. Upstream: `syncJob`.

use std::collections::HashSet;
use std::sync::Arc;

use super::manage::Action;
use super::sync_state::{SyncState, TRACKING, condition, ensure_condition};
use super::tracking::{StatusPlan, count_released, finish, plan_status};
use super::{Jobs, ending, managed_by_another, metrics, plan};
use crate::controllers::runner::batch::together;
use crate::controllers::workloads::pod_control::is_not_found;
use crate::controllers::workloads::ref_manager::{ControllerRefManager, owned_or_orphaned_pods};
use crate::controllers::{Error, Next, SyncResult};
use crate::objects::{Job, JobStatus, ObjectKey, Pod, Resource, Selector, Uid};

impl Jobs {
    /// Syncs a Job that has not finished and that no other controller manages.
    pub(super) async fn sync(self: Arc<Self>, key: ObjectKey) -> SyncResult {
        self.consistency.start_sync(&key, &metrics::STALE_SYNC_SKIPS)?;
        let Some(job) = self.jobs.get(&key) else {
            self.records.forget(&key, None);
            return Ok(Next::Done);
        };
        if managed_by_another(&job) {
            return Ok(Next::Done);
        }
        if job.finished().is_some() {
            self.records.forget(&key, Some(&job.meta.uid));
            return Ok(Next::Done);
        }
        if self.finished.contains(&job.meta.uid, self.jobs.seen().history) {
            log::debug!("{key} has finished, though the cache does not show it yet");
            return Ok(Next::Done);
        }
        let mode = job.spec.completion_mode.as_deref().unwrap_or("NonIndexed");
        if mode != "NonIndexed" && mode != "Indexed" {
            let text = "Skipped Job sync because completion mode is unknown";
            self.recorder.warning(&*job, "UnknownCompletionMode", text);
            return Ok(Next::Done);
        }
        let (start, mode) = (self.clock.monotonic(), metrics::mode(&job.spec));
        let mut action = Action::default();
        let result = self.advance(&key, job, &mut action).await;
        let outcome = if result.is_ok() { "success" } else { "error" };
        let labels = [mode, outcome, action.name()];
        let took = self.clock.monotonic().saturating_sub(start);
        metrics::SYNC_SECONDS.with_label_values(&labels).observe(took.as_secs_f64());
        metrics::SYNCS.with_label_values(&labels).inc();
        result.map(|()| Next::Done)
    }

    /// Does one sync of an unfinished Job: pods, then status. `action` becomes what it did with
    /// pods.
    /// Upstream: `syncJob`.
    async fn advance(
        self: &Arc<Self>,
        key: &ObjectKey,
        job: Arc<Job>,
        action: &mut Action,
    ) -> Result<(), Error> {
        let selector = Selector::try_from(job.spec.selector.as_ref())
            .map_err(|error| Error::other(format!("couldn't convert Job selector: {error}")))?;
        if self.consistency.settle(key, &selector, &self.client).await? {
            self.consistency.ensure_ready(key)?;
        }
        // Before the pods are read: a pod that appears in between would count as seen.
        let satisfied = self.expectations.satisfied(key);
        let pods = self.claim(&job, &selector).await?;
        let group = self.pod_group(&job, &pods).await?;
        let (mut state, newly_finished) = SyncState::new(job, pods, self.released.pods_of(key));
        let now = self.now();
        if state.status.start_time.is_none() && !state.spec().is_suspended() {
            state.status.start_time = Some(now);
        }
        let failures = self.backoff.failures(key, &state, &newly_finished);
        state.ending = ending::decide(&state, now);
        if let Some(left) = ending::time_left(state.spec(), &state.status, now)
            && !left.is_zero()
        {
            self.queue.add_after(key.clone(), left);
        }

        let mut active = state.active.len().try_into().unwrap_or(i32::MAX);
        let mut failure = None;
        let mut resumed_or_suspended = false;
        if state.ending.is_some() {
            let deleted = self.delete_active(&state.job, &state.active).await;
            if deleted.all != active || !satisfied {
                // Some pods still run, or are not in the cache yet.
                state.ending = None;
            }
            active -= deleted.all;
            state.terminating += deleted.all;
            state.ready -= deleted.ready;
            failure = deleted.failure;
        } else {
            let manages = satisfied && !state.job.meta.is_being_deleted();
            if manages {
                let plan = plan::plan(&state, failures, now);
                (active, *action, failure) =
                    self.manage(key, &mut state, plan, group.as_deref()).await;
            }
            if ending::is_complete(state.spec(), state.succeeded, active) {
                state.ending = Some(ending::completion_condition(self.now()));
            } else if manages {
                resumed_or_suspended = self.update_suspension(&mut state);
            }
        }

        let status = &mut state.status;
        let (ready, terminating) = (Some(state.ready), Some(state.terminating));
        let changed = resumed_or_suspended
            || (active, ready, terminating) != (status.active, status.ready, status.terminating);
        (status.active, status.ready, status.terminating) = (active, ready, terminating);
        let tracked = self.track(key, state, changed, || self.backoff.set(key, failures)).await;
        tracked.map_err(|error| Error::during("tracking status", error))?;
        failure.map_or(Ok(()), Err)
    }

    /// Returns the pods of `job`, after adopting orphans and releasing pods that no longer match.
    /// Upstream: `getPodsForJob`.
    async fn claim(&self, job: &Job, selector: &Selector) -> Result<Vec<Arc<Pod>>, Error> {
        let candidates = owned_or_orphaned_pods::<Job>(&self.pods, &job.meta);
        let mut manager = ControllerRefManager::new::<Job>(&self.client, &job.meta, selector);
        manager.finalizers = &[TRACKING];
        manager.recording(&self.consistency).claim::<Job, _>(candidates, |_| true).await
    }

    /// Sets the condition `Suspended` by the spec. If it changed, also records an event, and sets
    /// the start time when the Job is resumed; a suspended one loses it with `resets_start_time`.
    /// Returns whether it changed.
    fn update_suspension(&self, state: &mut SyncState) -> bool {
        let now = self.now();
        let (reason, event, message, start) = match state.spec().is_suspended() {
            true => ("JobSuspended", "Suspended", "Job suspended", None),
            // The deadline counts from the new start time.
            false => ("JobResumed", "Resumed", "Job resumed", Some(now)),
        };
        let suspended = start.is_none();
        let wanted = condition("Suspended", suspended, reason, message, now);
        let changed = ensure_condition(&mut state.status.conditions, wanted);
        if changed {
            self.recorder.normal(&*state.job, event, message);
            if !suspended || self.resets_start_time {
                state.status.start_time = start;
            }
        }
        changed
    }

    /// Writes the status, and removes the finalizers of the pods that it counts. `changed`: the
    /// status has to be written in any case. `first_written` is called after the first write, if
    /// there is one.
    /// Upstream: `trackJobStatusAndRemoveFinalizers`.
    async fn track(
        self: &Arc<Self>,
        key: &ObjectKey,
        mut state: SyncState,
        changed: bool,
        first_written: impl FnOnce(),
    ) -> Result<(), Error> {
        let mut old = state.status.clone();
        let StatusPlan { release, mut tracked, flush, is_full, actions } =
            plan_status(&mut state, self.now());
        if changed || flush {
            self.write(&mut state, "adding uncounted pods to status").await?;
            first_written();
            metrics::count_finished(state.spec(), &old, &state.status);
            old = state.status.clone();
        }
        metrics::count_actions(&actions);
        let failure = self.release_all(key, &state.job, release, &mut tracked).await;
        let mut must_write = count_released(&mut state.status, &tracked);
        if let Some(failure) = failure {
            if must_write {
                self.write(&mut state, "removing uncounted pods from status").await?;
                metrics::count_finished(state.spec(), &old, &state.status);
            }
            return Err(failure);
        }
        let finished = !is_full && finish(&mut state, self.now());
        must_write |= finished;
        if must_write {
            self.write_end(key, &mut state, finished).await?;
            metrics::count_finished(state.spec(), &old, &state.status);
        }
        Ok(())
    }

    /// Writes the last status of a sync. `finished`: it ends the Job, of which no sync begins after
    /// that, and whose records are dropped.
    async fn write_end(
        &self,
        key: &ObjectKey,
        state: &mut SyncState,
        finished: bool,
    ) -> Result<(), Error> {
        let doing = "removing uncounted pods from status";
        let Some(ending) = state.ending.take().filter(|_| finished) else {
            return self.write(state, doing).await;
        };
        // The cache may show the end before the answer is here.
        let uid = state.job.meta.uid.clone();
        self.finished.insert(&uid, self.jobs.seen().history);
        if let Err(error) = self.write(state, doing).await {
            self.finished.remove(&uid);
            return Err(error);
        }
        self.record_end(&state.job, &ending.r#type, &ending.reason, &ending.message);
        // If the cache shows the end already, its event came before the last records of this sync.
        let unfinished = |job: &Arc<Job>| job.meta.uid == uid && job.finished().is_none();
        if !self.jobs.get(key).is_some_and(|job| unfinished(&job)) {
            self.records.forget(key, Some(&state.job.meta.uid));
        }
        Ok(())
    }

    /// Writes the status of `state`, which then has the Job as the API server returned it.
    async fn write(&self, state: &mut SyncState, doing: &'static str) -> Result<(), Error> {
        let written: Job = self
            .client
            .update_status(&*state.job, &state.status)
            .await
            .map_err(|error| Error::during(doing, error))?;
        let (key, version) = (written.meta.key(), written.meta.resource_version);
        self.consistency.record_write(&key, &written.meta.uid, &Job::RESOURCE, version);
        state.status = JobStatus::clone(&written.status);
        state.job = Arc::new(written);
        Ok(())
    }

    /// Removes the finalizers of `pods`, and drops those that have none any more from `tracked`.
    /// Returns the first failure.
    /// Upstream: `removeTrackingFinalizerFromPods`.
    async fn release_all(
        self: &Arc<Self>,
        key: &ObjectKey,
        job: &Arc<Job>,
        pods: Vec<Arc<Pod>>,
        tracked: &mut HashSet<Uid>,
    ) -> Option<Error> {
        if pods.is_empty() {
            return None;
        }
        self.released.expect(key, pods.iter().map(|pod| pod.meta.uid.clone()));
        let releases = pods.iter().cloned().map(|pod| {
            let (this, job) = (self.clone(), job.clone());
            async move { this.remove_finalizer_of(&job, &pod).await }
        });
        let mut failures = Vec::new();
        for (pod, result) in pods.iter().zip(together(releases).await) {
            let uid = &pod.meta.uid;
            if result.is_err() {
                // No event comes for it.
                self.released.observed(key, uid);
            }
            match result {
                // A pod that is gone has no finalizer either.
                Err(error) if !is_not_found(&error) => failures.push((pod, error)),
                _ => _ = tracked.remove(uid),
            }
        }
        self.record_unreleased(job, failures.iter().map(|(pod, error)| (&***pod, error)));
        failures.into_iter().next().map(|(_, error)| error)
    }

    /// Records the end of a Job in metrics and events.
    /// Upstream: `recordJobFinished`.
    fn record_end(&self, job: &Job, kind: &str, reason: &str, message: &str) {
        let mode = metrics::mode(&job.spec);
        let result = if kind == "Complete" { "succeeded" } else { "failed" };
        metrics::FINISHED.with_label_values(&[mode, result, reason]).inc();
        if kind != "Complete" {
            return self.recorder.warning(job, reason, message);
        }
        if job.spec.completions.is_some_and(|wanted| job.status.succeeded > wanted) {
            let text = "Too many succeeded pods running after completion count reached";
            self.recorder.warning(job, "TooManySucceededPods", text);
        }
        self.recorder.normal(job, "Completed", "Job completed");
    }
}

#[cfg(test)]
mod tests {
    use futures_lite::future::block_on;
    use serde_json::{Value, json};

    use super::super::testing::controller;
    use super::*;
    use crate::client::testing::answering;
    use crate::objects::Timestamp;

    #[test]
    fn a_written_end_of_a_job_is_kept_until_the_cache_shows_it() {
        let job = |end: Value| {
            json!({
                "metadata": { "namespace": "ns", "name": "j", "uid": "u", "resourceVersion": "7" },
                "spec": {}, "status": { "conditions": end },
            })
        };
        let running: Arc<Job> = Arc::new(serde_json::from_value(job(json!([]))).unwrap());
        let ended = job(json!([{ "type": "Complete", "status": "True" }]));
        let shown: Arc<Job> = Arc::new(serde_json::from_value(ended.clone()).unwrap());
        let key = ObjectKey::new("ns", "j");
        for (cached, code, succeeds, remembered) in [
            (Some(&running), 200, true, true),
            // The event came before the answer.
            (Some(&shown), 200, true, false),
            (None, 200, true, false),
            (Some(&running), 409, false, false),
        ] {
            let ended = ended.clone();
            let client = block_on(answering(move |_| match code {
                200 => (200, ended.clone()),
                _ => (code, json!({ "kind": "Status", "code": code, "reason": "Conflict" })),
            }));
            let (jobs, caches) = controller(client);
            cached.into_iter().for_each(|job| _ = caches.jobs.insert(job.clone()));
            let (mut state, _) = SyncState::new(running.clone(), Vec::new(), HashSet::new());
            let now = Timestamp::from_secs(1);
            state.ending = Some(condition("Complete", true, "R", "m", now));
            let written = block_on(jobs.write_end(&key, &mut state, true));
            assert_eq!(written.is_ok(), succeeds);
            assert_eq!(jobs.finished.contains(&running.meta.uid, 0), remembered);
            caches.jobs.go_back(1);
            assert!(!jobs.finished.contains(&running.meta.uid, jobs.jobs.seen().history));
            assert_eq!(jobs.consistency.is_empty(), !remembered);
        }
    }

    #[test]
    fn an_event_says_why_a_pod_is_not_released() {
        let job: Arc<Job> = Arc::new(
            serde_json::from_value(json!({ "metadata": { "namespace": "ns", "name": "j" } }))
                .unwrap(),
        );
        let pod = |name: &str| -> Arc<Pod> {
            let finalizers = [TRACKING];
            let meta = json!({
                "namespace": "ns", "name": name, "uid": name, "finalizers": finalizers,
            });
            Arc::new(serde_json::from_value(json!({ "metadata": meta })).unwrap())
        };
        let denied = "Warning FailedRemoveFinalizer Error removing finalizer \
            batch.kubernetes.io/job-tracking from pod a: denied";
        for (code, reason, events) in [
            (400, "BadRequest", vec![denied]),
            (403, "Forbidden", vec![denied]),
            (422, "Invalid", vec![denied]),
            (500, "InternalError", vec![denied]),
            (404, "NotFound", vec![]),
            (409, "Conflict", vec![]),
            (429, "TooManyRequests", vec![]),
            (500, "ServerTimeout", vec![]),
            (503, "ServiceUnavailable", vec![]),
            (504, "Timeout", vec![]),
        ] {
            let client = block_on(answering(move |_| {
                let status = json!({
                    "kind": "Status", "code": code, "reason": reason, "message": "denied",
                });
                (code, status)
            }));
            let (jobs, caches) = controller(client);
            let (key, pods) = (job.meta.key(), vec![pod("b"), pod("a"), pod("c")]);
            block_on(jobs.release_all(&key, &job, pods.clone(), &mut HashSet::new()));
            assert_eq!(caches.events.take(), events, "{code}, counted");
            block_on(jobs.delete_surplus(&key, &job, pods));
            let removals = caches.events.take();
            let removals = removals.iter().filter(|event| !event.contains("FailedDelete"));
            assert!(removals.eq(&events), "{code}, too many");
        }
    }
}
