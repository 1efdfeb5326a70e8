//! Deletes Jobs some time after they have finished.
//! Upstream: `pkg/controller/ttlafterfinished`.

use std::sync::Arc;
use std::time::Duration;

use crate::cache::Lister;
use crate::client::{Client, Delete};
use crate::clock::SharedClock;
use crate::controllers::runner::keys;
use crate::controllers::{Controller, Error, Next, QueuePolicy, SyncResult};
use crate::metrics::metrics;
use crate::objects::{Job, ObjectKey, Timestamp};

metrics! {
    fn register;
    static DURATION: Histogram(crate::metrics::exponential(0.1, 2.0, 14)) =
        "ttl_after_finished_controller_job_deletion_duration_seconds",
        "[ALPHA] The time it took to delete the job since it became eligible for deletion";
}

/// Sets up the controller `ttl-after-finished-controller`.
pub fn controller(c: &mut Controller) -> Result<(), String> {
    register();
    let jobs = c.lister::<Job>();
    let queue = c.queue(QueuePolicy::default());
    c.watch(&jobs, &queue, keys::of_current(|job: &Job| ttl(job).is_some()));
    let this = Arc::new(TtlAfterFinished { client: c.client(), clock: c.clock(), jobs });
    c.sync(queue, &this, TtlAfterFinished::sync);
    Ok(())
}

struct TtlAfterFinished {
    client: Client,
    clock: SharedClock,
    jobs: Lister<Job>,
}

impl TtlAfterFinished {
    /// Deletes a finished Job whose TTL has passed, by its live state, or waits for that.
    async fn sync(self: Arc<Self>, key: ObjectKey) -> SyncResult {
        let Some(job) = self.jobs.get(&key) else { return Ok(Next::Done) };
        match plan(&job, self.clock.now())? {
            Plan::Delete { .. } => {}
            Plan::Wait(left) => return Ok(Next::After(left)),
            Plan::Keep => return Ok(Next::Done),
        }
        // The cached TTL may be an old one.
        let live: Job = match self.client.get(&key).await {
            Err(error) if error.is_not_found() => return Ok(Next::Done),
            live => live?,
        };
        let since = match plan(&live, self.clock.now())? {
            Plan::Delete { since } => since,
            Plan::Wait(left) => return Ok(Next::After(left)),
            Plan::Keep => return Ok(Next::Done),
        };
        self.client.delete::<Job>(&key, Delete::foreground().uid(live.meta.uid.clone())).await?;
        DURATION.observe(self.clock.now().duration_since(since).as_secs_f64());
        Ok(Next::Done)
    }
}

/// What to do with a Job now.
#[derive(Debug, PartialEq)]
enum Plan {
    Delete {
        /// When its time was over.
        since: Timestamp,
    },
    Wait(Duration),
    Keep,
}

/// Returns the TTL of a Job that has finished and is not being deleted; `None` of any other.
fn ttl(job: &Job) -> Option<Duration> {
    let seconds = job.spec.ttl_seconds_after_finished?;
    let ends = job.finished().is_some() && !job.meta.is_being_deleted();
    ends.then(|| Duration::from_secs(u64::try_from(seconds).unwrap_or(0)))
}

/// Decides whether `job` is deleted now, later or never. `Err`: it has no time of its end.
/// Upstream: `processTTL`.
fn plan(job: &Job, now: Timestamp) -> Result<Plan, Error> {
    let (Some(ttl), Some(finished)) = (ttl(job), job.finished()) else { return Ok(Plan::Keep) };
    let key = job.meta.key();
    let Some(finished) = finished.last_transition_time else {
        let text = format!("unable to find the time when the Job {key} finished");
        return Err(Error::other(text));
    };
    if finished > now {
        log::warn!(
            "Job {key} finished in the future, probably because clocks differ: its deletion waits"
        );
    }
    let expiry = finished + ttl;
    Ok(match expiry <= now {
        true => Plan::Delete { since: expiry },
        false => Plan::Wait(expiry.duration_since(now)),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn job(meta: Value, ttl: Value, conditions: Value) -> Job {
        serde_json::from_value(json!({
            "metadata": meta,
            "spec": { "ttlSecondsAfterFinished": ttl },
            "status": { "conditions": conditions },
        }))
        .unwrap()
    }

    #[test]
    fn when_a_job_is_deleted() {
        let now = Timestamp::from_secs(1_000);
        let at = |seconds| Timestamp::from_secs(seconds);
        let done = |kind: &str, status: &str, seconds: i64| json!([{ "type": kind, "status": status, "lastTransitionTime": at(seconds) }]);
        let deleted = json!({ "deletionTimestamp": "2026-01-01T00:00:00Z" });
        for (meta, ttl, conditions, planned) in [
            (json!({}), json!(10), done("Complete", "True", 990), Plan::Delete { since: now }),
            (json!({}), json!(0), done("Failed", "True", 900), Plan::Delete { since: at(900) }),
            (
                json!({}),
                json!(11),
                done("Complete", "True", 990),
                Plan::Wait(at(1).duration_since(at(0))),
            ),
            (
                json!({}),
                json!(5),
                done("Complete", "True", 1_100),
                Plan::Wait(Duration::from_secs(105)),
            ),
            (json!({}), json!(0), done("Complete", "False", 0), Plan::Keep),
            (json!({}), json!(0), done("SuccessCriteriaMet", "True", 0), Plan::Keep),
            (json!({}), json!(null), done("Complete", "True", 0), Plan::Keep),
            (json!({}), json!(0), json!(null), Plan::Keep),
            (deleted, json!(0), done("Complete", "True", 0), Plan::Keep),
        ] {
            let text = format!("{meta} {ttl} {conditions}");
            assert_eq!(plan(&job(meta, ttl, conditions), now).unwrap(), planned, "{text}");
        }
        let timeless = json!([{ "type": "Complete", "status": "True" }]);
        let job = job(json!({ "namespace": "ns", "name": "j" }), json!(0), timeless);
        assert_eq!(
            plan(&job, now).unwrap_err().to_string(),
            "unable to find the time when the Job ns/j finished"
        );
    }
}
