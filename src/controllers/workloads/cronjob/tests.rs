use futures_lite::future::block_on;
use parking_lot::Mutex;

use super::*;
use crate::cache::Indexer;
use crate::client::testing::answering;
use crate::clock::FakeClock;
use crate::events::testing::Heard;

const NOW: &str = "2026-05-19T10:07:10Z";

fn now() -> Timestamp {
    NOW.parse().unwrap()
}

/// The controller, with these CronJobs and Jobs in its caches, and its events.
fn controller_of(
    client: Client,
    cron_jobs: &[&Value],
    jobs: &[Value],
) -> (Arc<CronJobs>, Arc<Heard>) {
    let (of_cron_jobs, of_jobs) = (Arc::new(Indexer::new()), Arc::new(Indexer::new()));
    for cron_job in cron_jobs {
        let cron_job: CronJob = serde_json::from_value((*cron_job).clone()).unwrap();
        of_cron_jobs.insert(Arc::new(cron_job));
    }
    for job in jobs {
        of_jobs.insert(Arc::new(serde_json::from_value::<Job>(job.clone()).unwrap()));
    }
    let heard = Arc::new(Heard::default());
    let this = CronJobs {
        client,
        clock: FakeClock::new(now()),
        recorder: Recorder::to_sink(heard.clone()),
        cron_jobs: Lister::new(of_cron_jobs),
        jobs: Lister::new(of_jobs),
    };
    (Arc::new(this), heard)
}

/// A CronJob that is due once a year, with these fields of its spec and its status.
fn cron_job(spec: Value, status: Value) -> Value {
    let mut all = json!({ "schedule": "0 0 1 1 *", "timeZone": "UTC" });
    all.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    json!({
        "apiVersion": "batch/v1", "kind": "CronJob",
        "metadata": {
            "namespace": "ns", "name": "c", "uid": "of-c", "resourceVersion": "7",
            "creationTimestamp": NOW,
        },
        "spec": all, "status": status,
    })
}

/// A Job of the CronJob, with these conditions.
fn job_of_cron_job(name: &str, conditions: Value) -> Value {
    json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {
            "namespace": "ns", "name": name, "uid": format!("of-{name}"), "resourceVersion": "8",
            "creationTimestamp": NOW,
            "ownerReferences": [{ "apiVersion": "batch/v1", "kind": "CronJob", "name": "c",
                "uid": "of-c", "controller": true }],
        },
        "spec": {}, "status": { "conditions": conditions },
    })
}

/// A Job of a custom resource that has the CronJob's name.
fn job_of_workflow(name: &str, conditions: Value) -> Value {
    let mut job = job_of_cron_job(name, conditions);
    job["metadata"]["ownerReferences"] = json!([{ "apiVersion": "example.com/v1",
        "kind": "Workflow", "name": "c", "uid": "of-workflow", "controller": true }]);
    job
}

fn active(name: &str) -> Value {
    json!([{ "apiVersion": "batch/v1", "kind": "Job", "namespace": "ns", "name": name,
        "uid": format!("of-{name}") }])
}

fn status(code: u16, reason: &str) -> (u16, Value) {
    (code, json!({ "kind": "Status", "code": code, "reason": reason, "message": "because" }))
}

#[test]
fn events_say_what_a_sync_saw_and_what_it_could_not_do() {
    let (nothing, missed) = (json!({}), json!({ "lastScheduleTime": "2026-05-19T10:05:00Z" }));
    let minutes = json!({ "schedule": "* * * * *" });
    let replacing = json!({ "schedule": "* * * * *", "concurrencyPolicy": "Replace" });
    let with = |mut status: Value, name: &str| {
        status["active"] = active(name);
        status
    };
    let complete = json!([{ "type": "Complete", "status": "True" }]);
    let mut orphan = job_of_cron_job("c-29653087", json!([]));
    orphan["metadata"]["ownerReferences"] = json!([]);
    // The CronJob, its Jobs, the requests that the API server refuses or the object that it
    // answers, and the events.
    type Answer = Option<(&'static str, (u16, Value))>;
    type Case = (&'static str, Value, Vec<Value>, Answer, Vec<&'static str>);
    let table: Vec<Case> = vec![
        ("nothing is due", cron_job(nothing.clone(), nothing.clone()), vec![], None, vec![]),
        (
            "zone",
            cron_job(json!({ "timeZone": "Mars/Olympus" }), nothing.clone()),
            vec![],
            None,
            vec![
                "Warning UnknownTimeZone invalid timeZone: \"Mars/Olympus\": unknown time zone \
                 Mars/Olympus",
            ],
        ),
        (
            "zone in the schedule",
            cron_job(json!({ "schedule": "TZ=UTC 0 0 1 1 *" }), nothing.clone()),
            vec![],
            None,
            vec![
                "Warning UnsupportedSchedule CRON_TZ or TZ used in schedule \"TZ=UTC 0 0 1 1 *\" \
                 is not officially supported, see \
                 https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more \
                 details",
            ],
        ),
        (
            "schedule",
            cron_job(json!({ "schedule": "often" }), nothing.clone()),
            vec![],
            None,
            vec![
                "Warning UnparseableSchedule unparseable schedule: \"often\" : expected exactly 5 \
                 fields, found 1: [often]",
            ],
        ),
        (
            "31 February",
            cron_job(json!({ "schedule": "59 23 31 2 *" }), nothing.clone()),
            vec![],
            None,
            vec![
                "Warning InvalidSchedule invalid schedule: 59 23 31 2 * : time difference between \
                 two schedules is less than 1 second",
            ],
        ),
        (
            "some starts were missed",
            cron_job(minutes.clone(), missed.clone()),
            vec![],
            Some(("POST", (201, job_of_cron_job("c-29653087", json!([]))))),
            vec!["Normal SuccessfulCreate Created job c-29653087"],
        ),
        (
            "a new Job has lost its owner",
            cron_job(minutes.clone(), missed.clone()),
            vec![],
            Some(("POST", (201, orphan))),
            vec![
                "Normal SuccessfulCreate Created job c-29653087",
                "Warning CreatedObjectChanged Job \"c-29653087\" came back changed from its \
                 creation, so this CronJob does not recognise it: its controller reference is \
                 missing",
            ],
        ),
        (
            "many starts were missed",
            cron_job(minutes.clone(), json!({ "lastScheduleTime": "2026-05-18T10:05:00Z" })),
            vec![],
            Some(("POST", (201, job_of_cron_job("c-29653087", json!([]))))),
            vec![
                "Warning TooManyMissedTimes too many missed start times. Set or decrease \
                 .spec.startingDeadlineSeconds or check clock skew",
                "Normal SuccessfulCreate Created job c-29653087",
            ],
        ),
        (
            "no Job may be made",
            cron_job(minutes.clone(), missed.clone()),
            vec![],
            Some(("POST", status(403, "Forbidden"))),
            vec!["Warning FailedCreate Error creating job: because"],
        ),
        (
            "a Job is gone",
            cron_job(nothing.clone(), with(nothing.clone(), "gone")),
            vec![],
            Some(("GET /apis/batch/v1/namespaces/ns/jobs/gone", status(404, "NotFound"))),
            vec!["Normal MissingJob Active job went missing: gone"],
        ),
        (
            "a Job is a stranger's",
            cron_job(nothing.clone(), nothing.clone()),
            vec![job_of_cron_job("stranger", json!([]))],
            None,
            vec![
                "Warning UnexpectedJob Saw a job that the controller did not create or forgot: \
                 stranger",
            ],
        ),
        (
            "a Job has ended",
            cron_job(nothing.clone(), with(nothing.clone(), "ended")),
            vec![job_of_cron_job("ended", complete.clone())],
            None,
            vec!["Normal SawCompletedJob Saw completed job: ended, condition: Complete"],
        ),
        (
            "a Job too many",
            cron_job(json!({ "successfulJobsHistoryLimit": 0 }), nothing.clone()),
            vec![job_of_cron_job("old", complete.clone())],
            None,
            vec!["Normal SuccessfulDelete Deleted job old"],
        ),
        (
            "the Jobs of another kind's owner of the name",
            cron_job(json!({ "successfulJobsHistoryLimit": 0 }), nothing.clone()),
            vec![job_of_workflow("old", complete.clone()), job_of_workflow("runs", json!([]))],
            None,
            vec![],
        ),
        (
            "a Job too many stays",
            cron_job(json!({ "successfulJobsHistoryLimit": 0 }), nothing.clone()),
            vec![job_of_cron_job("old", complete)],
            Some(("DELETE", status(403, "Forbidden"))),
            vec!["Warning FailedDelete Deleted job: because"],
        ),
        (
            "a Job to be replaced is not found",
            cron_job(replacing, with(missed.clone(), "runs")),
            vec![job_of_cron_job("runs", json!([]))],
            Some(("GET /apis/batch/v1/namespaces/ns/jobs/runs", status(403, "Forbidden"))),
            vec!["Warning FailedGet Get job: because"],
        ),
        (
            "a Job runs",
            cron_job(
                json!({ "schedule": "* * * * *", "concurrencyPolicy": "Forbid" }),
                with(missed, "runs"),
            ),
            vec![job_of_cron_job("runs", json!([]))],
            None,
            vec![
                "Normal JobAlreadyActive Not starting job because prior execution is running and \
                 concurrency policy is Forbid",
            ],
        ),
    ];
    for (name, cron_job, jobs, answer, events) in table {
        let live = cron_job.clone();
        let client = block_on(answering(move |line| match &answer {
            Some((start, answer)) if line.starts_with(start) => answer.clone(),
            _ => (200, live.clone()),
        }));
        let (this, heard) = controller_of(client, &[&cron_job], &jobs);
        let fails = events.iter().any(|event| event.contains("FailedCreate"))
            || events.iter().any(|event| event.contains("FailedGet"));
        let result = block_on(this.sync(ObjectKey::new("ns", "c")));
        assert_eq!(result.is_err(), fails, "{name}: {result:?}");
        assert_eq!(heard.take(), events, "{name}");
    }
}

#[test]
fn a_start_behind_its_deadline_is_missed() {
    let requests = Arc::new(Mutex::new(0));
    let count = requests.clone();
    let client = block_on(answering(move |_| {
        *count.lock() += 1;
        (201, job_of_cron_job("c-29653085", json!([])))
    }));
    let (this, heard) = controller_of(client, &[], &[]);
    let time: Timestamp = "2026-05-19T10:05:00Z".parse().unwrap();
    // 130 seconds ago.
    for (deadline, starts) in [(129, false), (130, true)] {
        let cron_job = cron_job(json!({ "startingDeadlineSeconds": deadline }), json!({}));
        let cron_job = serde_json::from_value(cron_job).unwrap();
        let mut run = Run { cron_job, changed: false };
        assert!(block_on(this.start(&mut run, time, now())).is_ok());
        let event = match starts {
            true => "Normal SuccessfulCreate Created job c-29653085",
            false => {
                "Warning MissSchedule Missed scheduled time to start a job: Tue, 19 May 2026 \
                 10:05:00 +0000"
            }
        };
        assert_eq!(heard.take(), [event], "{deadline}");
        assert_eq!((*requests.lock(), run.changed), (u32::from(starts), starts));
    }
}

#[test]
fn a_schedule_that_cannot_be_read_is_reported_when_it_is_changed() {
    let heard = Arc::new(Heard::default());
    let recorder = Recorder::to_sink(heard.clone());
    let unreadable = cron_job(json!({ "schedule": "often" }), json!({}));
    assert_eq!(wait(&serde_json::from_value(unreadable).unwrap(), now(), &recorder), None);
    let event = "Warning UnParseableCronJobSchedule unparseable schedule for cronjob: often";
    assert_eq!(heard.take(), [event]);
    let minutes = cron_job(json!({ "schedule": "* * * * *" }), json!({}));
    let wait = wait(&serde_json::from_value(minutes).unwrap(), now(), &recorder);
    assert_eq!(wait, Some(Duration::from_millis(50_100)));
    assert!(heard.take().is_empty());
}

#[test]
fn jobs_are_made_from_the_template_and_named_by_their_time() {
    let cron_job: CronJob = serde_json::from_str(
        r#"{
            "metadata": { "namespace": "ns", "name": "backup", "uid": "u" },
            "spec": {
                "timeZone": "Asia/Kolkata",
                "jobTemplate": {
                    "metadata": { "labels": { "a": "b" }, "annotations": { "note": "x" } },
                    "spec": { "parallelism": 2, "future": { "ratio": 1.50 } }
                }
            }
        }"#,
    )
    .unwrap();
    let time: Timestamp = "2026-05-19T10:07:00Z".parse().unwrap();
    let name = job_name(&cron_job, time);
    assert_eq!(name, "backup-29653087");
    let job = job_for(&cron_job, &name, time).unwrap();
    let spec = r#"{ "parallelism": 2, "future": { "ratio": 1.50 } }"#;
    assert_eq!(job.spec.as_ref().unwrap().get(), spec, "each byte is kept");
    assert_eq!(
        serde_json::to_value(job).unwrap(),
        json!({
            "apiVersion": "batch/v1", "kind": "Job",
            "metadata": {
                "name": "backup-29653087", "namespace": "ns", "labels": { "a": "b" },
                "annotations": { "note": "x", SCHEDULED: "2026-05-19T15:37:00+05:30" },
                "ownerReferences": [{
                    "apiVersion": "batch/v1", "kind": "CronJob", "name": "backup", "uid": "u",
                    "controller": true, "blockOwnerDeletion": true,
                }],
            },
            "spec": { "parallelism": 2, "future": { "ratio": 1.50 } },
        })
    );
    let utc: CronJob = serde_json::from_str("{}").unwrap();
    let job = job_for(&utc, "j", time).unwrap();
    assert_eq!(job.metadata["annotations"][SCHEDULED], "2026-05-19T10:07:00Z");
}

#[test]
fn the_oldest_finished_jobs_are_too_many() {
    let job = |name: &str, condition: &str, started: Value| -> Arc<Job> {
        let job = json!({
            "metadata": { "name": name },
            "status": {
                "startTime": started,
                "conditions": [{ "type": condition, "status": "True" }],
            },
        });
        Arc::new(serde_json::from_value(job).unwrap())
    };
    let at = |second: i64| json!(Timestamp::from_secs(second));
    let jobs = [
        job("never", "Complete", json!(null)),
        job("b", "Complete", at(2)),
        job("c", "Complete", at(1)),
        job("a", "Complete", at(2)),
        job("failed", "Failed", at(0)),
        job("runs", "Suspended", at(0)),
    ];
    for (condition, limit, gone) in [
        ("Complete", 4, &[] as &[&str]),
        ("Complete", 2, &["c", "a"]),
        ("Complete", 0, &["c", "a", "b", "never"]),
        ("Failed", 0, &["failed"]),
        ("Failed", 1, &[]),
    ] {
        let found = surplus(&jobs, condition, limit);
        let names: Vec<&str> = found.iter().map(|job| &*job.meta.name).collect();
        assert_eq!(names, gone, "{condition} {limit}");
    }
}
