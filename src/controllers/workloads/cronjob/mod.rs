//! Starts the Jobs of CronJobs at their times. Upstream: `pkg/controller/cronjob`.

pub mod due;
pub mod schedule;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::tz::TimeZone;
use k8s_openapi::api::core::v1::ObjectReference;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use self::due::Missed;
use self::schedule::{Schedule, time_zone};
use crate::cache::Lister;
use crate::client::{Client, Delete};
use crate::clock::SharedClock;
use crate::controllers::runner::{Change, keys};
use crate::controllers::workloads::creations::{CHANGED, controller_ref_change};
use crate::controllers::{Controller, Error, Next, QueuePolicy, SyncResult};
use crate::events::Recorder;
use crate::metrics::metrics;
use crate::objects::{CronJob, Job, Labels, Object, ObjectKey, Resource, Timestamp};

/// Upstream: `batch.CronJobScheduledTimestampAnnotation`.
const SCHEDULED: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";

metrics! {
    fn register;
    static SKEW: Histogram(crate::metrics::exponential(1.0, 2.0, 10)) =
        "cronjob_controller_job_creation_skew_duration_seconds",
        "[STABLE] Time between when a cronjob is scheduled to be run, and when the corresponding job is created";
}

/// Sets up the controller `cronjob-controller`.
pub fn controller(c: &mut Controller) -> Result<(), String> {
    register();
    let (cron_jobs, jobs) = (c.lister::<CronJob>(), c.lister::<Job>());
    let queue = c.queue(QueuePolicy::default());
    c.watch(&jobs, &queue, keys::of_controller(&cron_jobs).mapper());
    let (clock, recorder) = (c.clock(), c.recorder());
    c.watch(&cron_jobs, &queue, move |change, queue| {
        let key = change.object().meta.key();
        match change {
            Change::Updated { old, new } if is_rescheduled(old, new) => {
                if let Some(wait) = wait(new, clock.now(), &recorder) {
                    queue.add_after(key, wait);
                }
            }
            _ => queue.add(key),
        }
    });
    let (client, clock, recorder) = (c.client(), c.clock(), c.recorder());
    let this = Arc::new(CronJobs { client, clock, recorder, cron_jobs, jobs });
    c.sync(queue, &this, CronJobs::sync);
    Ok(())
}

/// Returns how long it is until the next start of a CronJob whose schedule was changed; `None`,
/// with an event, if the schedule is malformed.
fn wait(cron_job: &CronJob, now: Timestamp, recorder: &Recorder) -> Option<Duration> {
    match parse_schedule(cron_job) {
        Ok(schedule) => Some(due::wait(cron_job, &schedule, now)),
        Err(_) => {
            let text = format!("unparseable schedule for cronjob: {}", cron_job.spec.schedule);
            recorder.warning(cron_job, "UnParseableCronJobSchedule", &text);
            None
        }
    }
}

/// Returns whether an update may change the time of the next start.
fn is_rescheduled(old: &CronJob, new: &CronJob) -> bool {
    old.spec.schedule != new.spec.schedule || old.spec.time_zone != new.spec.time_zone
}

/// Parses the schedule in its time zone; the system's counts where the spec names an unknown one,
/// which the sync reports. Upstream: `formatSchedule`, `cron.ParseStandard`.
fn parse_schedule(cron_job: &CronJob) -> Result<Schedule, String> {
    let spec = &cron_job.spec;
    // A zone within the schedule wins.
    let named = spec.time_zone.as_ref().filter(|_| !names_zone(&spec.schedule));
    let zone = named.and_then(|name| time_zone(name).ok());
    Schedule::parse(&spec.schedule, zone.unwrap_or_else(TimeZone::system))
}

/// Returns whether `schedule` names a time zone itself, as in `CRON_TZ=UTC 0 * * * *`.
fn names_zone(schedule: &str) -> bool {
    schedule.contains("TZ")
}

struct CronJobs {
    client: Client,
    clock: SharedClock,
    recorder: Recorder,
    cron_jobs: Lister<CronJob>,
    jobs: Lister<Job>,
}

/// The CronJob of one sync.
struct Run {
    cron_job: CronJob,
    /// Whether the status differs from the API server's; it is written once, at the end.
    changed: bool,
}

impl Run {
    fn active(&self) -> &[ObjectReference] {
        self.cron_job.status.active.as_deref().unwrap_or_default()
    }

    fn is_active(&self, job: &Job) -> bool {
        let uid = job.meta.uid.to_string();
        self.active().iter().any(|active| active.uid.as_deref() == Some(&*uid))
    }

    /// Takes a Job off the active list.
    fn remove_active(&mut self, uid: &str) {
        let mut active = self.cron_job.status.active.take().unwrap_or_default();
        active.retain(|job| job.uid.as_deref() != Some(uid));
        self.cron_job.status.active = if active.is_empty() { None } else { Some(active) };
        self.changed = true;
    }
}

impl CronJobs {
    /// Removes old Jobs of a CronJob, starts the one that is due, and writes the status, also after
    /// a failure.
    async fn sync(self: Arc<Self>, key: ObjectKey) -> SyncResult {
        let Some(cron_job) = self.cron_jobs.get(&key) else { return Ok(Next::Done) };
        let mut jobs = self.jobs.in_namespace(&key.namespace);
        jobs.retain(|job| job.meta.is_controlled_by(&cron_job.meta.uid));
        let mut run = Run { cron_job: CronJob::clone(&cron_job), changed: false };
        self.clean_up(&mut run, &jobs).await;
        let result = self.advance(&mut run, &jobs).await;
        if run.changed {
            self.client.update_status(&run.cron_job, &run.cron_job.status).await?;
        }
        result
    }

    /// Deletes the oldest finished Jobs beyond the limits. Upstream: `cleanupFinishedJobs`.
    async fn clean_up(&self, run: &mut Run, jobs: &[Arc<Job>]) {
        let spec = &run.cron_job.spec;
        let limits = [
            ("Complete", spec.successful_jobs_history_limit),
            ("Failed", spec.failed_jobs_history_limit),
        ];
        for (condition, limit) in limits {
            let Some(limit) = limit else { continue };
            for job in surplus(jobs, condition, limit) {
                self.delete(run, &job).await;
            }
        }
    }

    /// Deletes a Job, and returns whether that succeeded.
    /// Upstream: `deleteJob`.
    async fn delete(&self, run: &mut Run, job: &Job) -> bool {
        match self.client.delete::<Job>(&job.meta.key(), Delete::background()).await {
            Err(error) => {
                let text = format!("Deleted job: {}", Error::from(error).message());
                self.recorder.warning(&run.cron_job, "FailedDelete", &text);
                false
            }
            Ok(()) => {
                run.remove_active(&job.meta.uid.to_string());
                let text = format!("Deleted job {}", job.meta.name);
                self.recorder.normal(&run.cron_job, "SuccessfulDelete", &text);
                true
            }
        }
    }

    /// Updates the active list, and starts the Job that is due; returns when the next one is, or
    /// `Done` for a CronJob that is suspended, being deleted or malformed, which an event reports.
    /// Upstream: `syncCronJob`.
    async fn advance(&self, run: &mut Run, jobs: &[Arc<Job>]) -> SyncResult {
        let now = self.clock.now();
        self.drop_finished(run, jobs).await?;
        self.drop_missing(run, jobs).await?;
        let spec = &run.cron_job.spec;
        if run.cron_job.meta.is_being_deleted() {
            return Ok(Next::Done);
        }
        if let Some(zone) = &spec.time_zone
            && let Err(error) = time_zone(zone)
        {
            let text = format!("invalid timeZone: {zone:?}: {error}");
            self.recorder.warning(&run.cron_job, "UnknownTimeZone", &text);
            return Ok(Next::Done);
        }
        if spec.suspend == Some(true) {
            return Ok(Next::Done);
        }
        if names_zone(&spec.schedule) {
            let text = format!(
                "CRON_TZ or TZ used in schedule {:?} is not officially supported, see https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details",
                spec.schedule
            );
            self.recorder.warning(&run.cron_job, "UnsupportedSchedule", &text);
        }
        let schedule = match parse_schedule(&run.cron_job) {
            Ok(schedule) => schedule,
            Err(error) => {
                let text = format!("unparseable schedule: {:?} : {error}", spec.schedule);
                self.recorder.warning(&run.cron_job, "UnparseableSchedule", &text);
                return Ok(Next::Done);
            }
        };
        let start = match due::start(&run.cron_job, &schedule, now) {
            Ok(start) => start,
            Err(error) => {
                let text = format!("invalid schedule: {} : {error}", spec.schedule);
                self.recorder.warning(&run.cron_job, "InvalidSchedule", &text);
                return Ok(Next::Done);
            }
        };
        if let Some((time, missed)) = start {
            if missed == Missed::Many {
                let text = "too many missed start times. Set or decrease \
                    .spec.startingDeadlineSeconds or check clock skew";
                self.recorder.warning(&run.cron_job, "TooManyMissedTimes", text);
            }
            self.start(run, time, now).await?;
        }
        Ok(Next::After(due::wait(&run.cron_job, &schedule, now)))
    }

    /// Removes Jobs that have finished from the active list, and records the last success. For a
    /// running Job that is not on the list it reads the CronJob live, because the cached one may be
    /// older; an event reports the Job if it is not on that list either.
    async fn drop_finished(&self, run: &mut Run, jobs: &[Arc<Job>]) -> Result<(), Error> {
        for job in jobs {
            let active = run.is_active(job);
            let Some(finished) = job.finished() else {
                if active {
                    continue;
                }
                let live: CronJob = self.client.get(&run.cron_job.meta.key()).await?;
                let live = Run { cron_job: live, changed: run.changed };
                if live.is_active(job) {
                    // As upstream without the changes so far: a later sync makes them again.
                    *run = live;
                    continue;
                }
                let text = format!(
                    "Saw a job that the controller did not create or forgot: {}",
                    job.meta.name
                );
                self.recorder.warning(&run.cron_job, "UnexpectedJob", &text);
                continue;
            };
            if active {
                run.remove_active(&job.meta.uid.to_string());
                let text =
                    format!("Saw completed job: {}, condition: {}", job.meta.name, finished.r#type);
                self.recorder.normal(&run.cron_job, "SawCompletedJob", &text);
            }
            if finished.r#type == "Complete" {
                let last = &mut run.cron_job.status.last_successful_time;
                let completed = job.status.completion_time;
                if completed > *last {
                    *last = completed;
                    run.changed = true;
                }
            }
        }
        Ok(())
    }

    /// Removes Jobs that are gone from the active list.
    async fn drop_missing(&self, run: &mut Run, jobs: &[Arc<Job>]) -> Result<(), Error> {
        let known: HashSet<String> = jobs.iter().map(|job| job.meta.uid.to_string()).collect();
        for active in run.active().to_vec() {
            let uid = active.uid.unwrap_or_default();
            if known.contains(&uid) {
                continue;
            }
            let name = active.name.unwrap_or_default();
            let key = ObjectKey::new(&active.namespace.unwrap_or_default(), &name);
            match self.client.get::<Job>(&key).await {
                Err(error) if error.is_not_found() => {
                    let text = format!("Active job went missing: {name}");
                    self.recorder.normal(&run.cron_job, "MissingJob", &text);
                    run.remove_active(&uid);
                }
                // It exists, though the cache does not show it yet.
                found => drop(found?),
            }
        }
        Ok(())
    }

    /// Creates the Job for the start at `time`, and adds it to the active list, unless it is too
    /// late, was started already or the concurrency policy forbids it. A foreign Job of its name is
    /// an error, which is retried: that Job may be deleted before the next start is due.
    async fn start(&self, run: &mut Run, time: Timestamp, now: Timestamp) -> Result<(), Error> {
        let spec = &run.cron_job.spec;
        let deadline = spec.starting_deadline_seconds.and_then(|seconds| seconds.try_into().ok());
        if deadline.is_some_and(|seconds| time + Duration::from_secs(seconds) < now) {
            let time = time.to_jiff().strftime("%a, %d %b %Y %H:%M:%S +0000");
            let text = format!("Missed scheduled time to start a job: {time}");
            self.recorder.warning(&run.cron_job, "MissSchedule", &text);
            return Ok(());
        }
        let name = job_name(&run.cron_job, time);
        let namespace = run.cron_job.meta.namespace.clone();
        let key = ObjectKey::new(&namespace, &name);
        let is_listed = run.active().iter().any(|active| {
            active.name.as_deref() == Some(&*name)
                && active.namespace.as_deref() == Some(&namespace)
        });
        if is_listed || run.cron_job.status.last_schedule_time == Some(time) {
            return Ok(());
        }
        if spec.concurrency_policy == "Forbid" && !run.active().is_empty() {
            let text = "Not starting job because prior execution is running and concurrency \
                policy is Forbid";
            self.recorder.normal(&run.cron_job, "JobAlreadyActive", text);
            return Ok(());
        }
        if spec.concurrency_policy == "Replace" {
            self.replace(run).await?;
        }
        let body = job_for(&run.cron_job, &name, time).map_err(Error::other)?;
        let created = self.client.create::<Job>(&namespace, &body).await;
        let job = match created {
            Ok(job) => {
                let created = job.meta.creation_timestamp.unwrap_or(now);
                SKEW.observe(created.duration_since(time).as_secs_f64());
                let text = format!("Created job {name}");
                self.recorder.normal(&run.cron_job, "SuccessfulCreate", &text);
                self.report_change(&run.cron_job, &job);
                job
            }
            // Nothing can be created there any more, which needs no event.
            Err(error) if error.is_namespace_terminating() => return Err(error.into()),
            Err(error) if error.is_already_exists() => {
                // Made by this controller, when its status was not written afterwards.
                let job: Job = self.client.get(&key).await?;
                if !job.meta.is_controlled_by(&run.cron_job.meta.uid) {
                    return Err(Error::other(format!(
                        "job {key} exists already and does not belong to this CronJob"
                    )));
                }
                log::info!("cronjob-controller: Job {key} already exists");
                job
            }
            Err(error) => {
                let error = Error::from(error);
                let text = format!("Error creating job: {}", error.message());
                self.recorder.warning(&run.cron_job, "FailedCreate", &text);
                return Err(error);
            }
        };
        let is_missing = job.finished().is_none() && !run.is_active(&job);
        let status = &mut run.cron_job.status;
        if is_missing {
            status.active.get_or_insert_default().push(reference(&job));
        }
        status.last_schedule_time = Some(time);
        run.changed = true;
        Ok(())
    }

    /// Reports by an event a new Job that has lost its owner reference: no history limit counts it.
    /// The schedule paces the creations, so the next one does not wait.
    fn report_change(&self, cron_job: &CronJob, job: &Job) {
        if let Some(change) = controller_ref_change(&cron_job.meta, &job.meta) {
            let text = format!(
                "Job {:?} came back changed from its creation, so this CronJob does not recognise \
                 it: {change}",
                job.meta.name
            );
            self.recorder.warning(cron_job, CHANGED, text);
        }
    }

    /// Deletes the active Jobs, which the new one replaces.
    async fn replace(&self, run: &mut Run) -> Result<(), Error> {
        for active in run.active().to_vec() {
            let namespace = active.namespace.unwrap_or_default();
            let key = ObjectKey::new(&namespace, &active.name.unwrap_or_default());
            let job: Job = self.client.get(&key).await.map_err(|error| {
                let error = Error::from(error);
                let text = format!("Get job: {}", error.message());
                self.recorder.warning(&run.cron_job, "FailedGet", &text);
                error
            })?;
            if !self.delete(run, &job).await {
                return Err(Error::other(format!("could not replace job {key}")));
            }
        }
        Ok(())
    }
}

/// Returns the Jobs that finished with `condition` and are too many, oldest first.
fn surplus(jobs: &[Arc<Job>], condition: &str, limit: i32) -> Vec<Arc<Job>> {
    let finished = |job: &&Arc<Job>| job.finished().is_some_and(|it| it.r#type == *condition);
    let mut jobs: Vec<Arc<Job>> = jobs.iter().filter(finished).cloned().collect();
    // Those that never started come last.
    jobs.sort_by_cached_key(|job| {
        let started = job.status.start_time;
        (started.is_none(), started, job.meta.name.clone())
    });
    let limit = usize::try_from(limit).unwrap_or(0);
    jobs.truncate(jobs.len().saturating_sub(limit));
    jobs
}

/// Returns the name of the Job for the start at `time`: one for each minute, so that no start makes
/// two Jobs. Upstream: `getJobName`.
fn job_name(cron_job: &CronJob, time: Timestamp) -> String {
    format!("{}-{}", cron_job.meta.name, time.as_micros() / 60_000_000)
}

/// A Job as it is created, its spec as the template has it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct NewJob<'a> {
    api_version: String,
    kind: &'a str,
    metadata: Value,
    spec: &'a Option<Box<RawValue>>,
}

/// Makes the Job of the start at `time` from the template.
/// Upstream: `getJobFromTemplate2`.
fn job_for<'a>(cron_job: &'a CronJob, name: &str, time: Timestamp) -> Result<NewJob<'a>, String> {
    let template = &cron_job.spec.job_template;
    let (labels, annotations) = match &template.metadata {
        Some(metadata) => (metadata.labels.clone(), metadata.annotations.clone()),
        None => (Labels::default(), Labels::default()),
    };
    let zone = time_zone(cron_job.spec.time_zone.as_deref().unwrap_or_default())?;
    let local = time.to_jiff().to_zoned(zone);
    // RFC 3339, as Go prints it: UTC as `Z`.
    let scheduled = match local.offset().seconds() {
        0 => time.to_string(),
        _ => local.strftime("%Y-%m-%dT%H:%M:%S%:z").to_string(),
    };
    let mut metadata = json!({
        "name": name, "namespace": cron_job.meta.namespace,
        "labels": labels, "annotations": annotations,
        "ownerReferences": [cron_job.meta.controller_ref::<CronJob>()],
    });
    metadata["annotations"][SCHEDULED] = json!(scheduled);
    let api_version = Job::RESOURCE.api_version();
    Ok(NewJob { api_version, kind: "Job", metadata, spec: &template.spec })
}

/// Returns the reference to a Job for the active list.
/// Upstream: `ref.GetReference`.
fn reference(job: &Job) -> ObjectReference {
    let meta = job.meta();
    ObjectReference {
        api_version: Some(Job::RESOURCE.api_version()),
        kind: Some(Job::RESOURCE.kind.to_string()),
        namespace: Some(meta.namespace.to_string()),
        name: Some(meta.name.to_string()),
        uid: Some(meta.uid.to_string()),
        resource_version: Some(meta.resource_version.to_string()),
        ..ObjectReference::default()
    }
}

#[cfg(test)]
mod tests;
