//! Jobs that start at their times.

use std::time::Duration;

use kube_controller_manager::client::{Delete, Patch, Result};
use kube_controller_manager::objects::{CronJob, ObjectKey, Resource, ResourceType, Timestamp};
use serde_json::{Value, json};

use crate::env::*;
use crate::metrics::Serving;

const JOBS: ResourceType = ResourceType::fixed("batch", "v1", "Job", "jobs", true);

/// A CronJob with this schedule.
fn cron_job(name: &str, schedule: &str, spec: Value) -> Value {
    let mut all = json!({
        "schedule": schedule, "suspend": true,
        "jobTemplate": {
            "metadata": { "labels": { "made": format!("by-{name}") } },
            "spec": { "suspend": true, "template": { "spec": {
                "restartPolicy": "Never", "containers": [{ "name": "main", "image": "x:1" }],
            } } },
        },
    });
    all.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    let metadata = json!({ "name": name, "namespace": "default" });
    json!({ "apiVersion": "batch/v1", "kind": "CronJob", "metadata": metadata, "spec": all })
}

async fn set_status(env: &TestCluster, resource: &ResourceType, name: &str, status: Value) {
    let verbs = env.client.resource(resource).subresource("status");
    let patch = Patch::Merge(json!({ "status": status }));
    let patched: Result<Value> = verbs.patch(&ObjectKey::new("default", name), &patch).await;
    patched.expect("patch");
}

/// Makes the starts of the last `ago` overdue, so that the test need not wait for the next minute.
async fn make_starts_overdue(env: &TestCluster, name: &str, ago: Duration) {
    let last = (env.clock.now() - ago).to_string();
    set_status(env, &CronJob::RESOURCE, name, json!({ "lastScheduleTime": last })).await;
}

async fn status(
    env: &TestCluster,
    name: &str,
    what: &str,
    wanted: impl Fn(&Value) -> bool,
) -> Value {
    eventually(&env.clock, &format!("{name}: {what}"), || async {
        let cron_jobs = env.client.resource(&CronJob::RESOURCE);
        let key = ObjectKey::new("default", name);
        let cron_job: Value = cron_jobs.get(&key).await.map_err(|e| e.to_string())?;
        match wanted(&cron_job["status"]) {
            true => Ok(cron_job["status"].clone()),
            false => Err(cron_job["status"].to_string()),
        }
    })
    .await
}

/// The names of the Jobs that run.
fn active(status: &Value) -> Vec<String> {
    let active = status["active"].as_array().into_iter().flatten();
    active.map(|job| job["name"].as_str().unwrap().to_owned()).collect()
}

fn condition(kind: &str, reason: &str, now: &str) -> Value {
    json!({
        "type": kind, "status": "True", "reason": reason,
        "lastProbeTime": now, "lastTransitionTime": now,
    })
}

#[test]
fn concurrency_policies_forbid_allow_or_replace_a_running_job() {
    everywhere("concurrency", async |env| {
        let _manager = env.manager("manager", &[]);
        let jobs = env.client.resource(&JOBS);
        for policy in ["Forbid", "Allow", "Replace"] {
            let name = policy.to_lowercase();
            // The start of this year, and then one of the last minutes: two Jobs with different
            // names.
            let spec = json!({ "concurrencyPolicy": policy });
            create(&env.client, cron_job(&name, "0 0 1 1 *", spec)).await;
            make_starts_overdue(env, &name, Duration::from_secs(400 * 86_400)).await;
            merge::<CronJob>(&env.client, &name, json!({ "spec": { "suspend": false } })).await;
            let started = status(env, &name, "starts", |status| active(status).len() == 1).await;
            let first = active(&started).remove(0);
            let every_minute = json!({ "spec": { "schedule": "* * * * *" } });
            merge::<CronJob>(&env.client, &name, every_minute).await;
            make_starts_overdue(env, &name, Duration::from_secs(300)).await;
            let runs = |status: &Value| active(status).contains(&first);
            match policy {
                "Forbid" => {
                    let text = "prior execution is running and concurrency policy is Forbid";
                    has_event(env, &name, "JobAlreadyActive", text).await;
                    let status = status(env, &name, "unchanged", |_| true).await;
                    assert_eq!(active(&status), [first]);
                }
                "Allow" => {
                    let wanted = |status: &Value| runs(status) && active(status).len() > 1;
                    status(env, &name, "runs two", wanted).await;
                    // Failed Jobs have a limit of their own.
                    merge::<CronJob>(
                        &env.client,
                        &name,
                        json!({ "spec": {
                        "suspend": true, "failedJobsHistoryLimit": 0,
                    } }),
                    )
                    .await;
                    let now = env.clock.now().to_string();
                    let failed = ["FailureTarget", "Failed"].map(|kind| condition(kind, "R", &now));
                    let failed = json!({ "startTime": now, "failed": 1, "conditions": failed });
                    set_status(env, &JOBS, &first, failed).await;
                    let text = format!("Deleted job {first}");
                    has_event(env, &name, "SuccessfulDelete", &text).await;
                }
                _ => {
                    let wanted = |status: &Value| !runs(status) && active(status).len() == 1;
                    status(env, &name, "replaces it", wanted).await;
                    let text = format!("Deleted job {first}");
                    has_event(env, &name, "SuccessfulDelete", &text).await;
                    eventually(&env.clock, "the first Job is gone", || async {
                        let key = ObjectKey::new("default", &first);
                        match jobs.get::<Value>(&key).await {
                            Err(error) if error.is_not_found() => Ok(()),
                            found => Err(format!("{found:?}")),
                        }
                    })
                    .await;
                }
            }
        }
    });
}

#[test]
fn foreign_job_of_its_name_delays_a_start_but_does_not_end_the_schedule() {
    everywhere("cronjob-foreign", async |env| {
        let serving = Serving::start(env, "manager", &manager_program(), &[]);
        let year = env.clock.now().to_string()[..4].to_owned();
        let start: Timestamp = format!("{year}-01-01T00:00:00Z").parse().expect("a time");
        let job_name = format!("taken-{}", start.as_micros() / 60_000_000);
        let made = cron_job("taken", "0 0 1 1 *", json!({ "timeZone": "UTC" }));
        let foreign = json!({
            "apiVersion": "batch/v1", "kind": "Job",
            "metadata": { "name": job_name, "namespace": "default" },
            "spec": made["spec"]["jobTemplate"]["spec"],
        });
        create(&env.client, foreign).await;
        create(&env.client, made).await;
        make_starts_overdue(env, "taken", Duration::from_secs(400 * 86_400)).await;
        merge::<CronJob>(&env.client, "taken", json!({ "spec": { "suspend": false } })).await;
        let has_retried = |text: &str| {
            let retries = "workqueue_retries_total{name=\"cronjob\"} ";
            text.lines().any(|line| line.strip_prefix(retries).is_some_and(|count| count != "0"))
        };
        serving.metrics(env, "the start is retried", has_retried).await;
        let status_before = status(env, "taken", "unchanged", |_| true).await;
        assert!(active(&status_before).is_empty(), "{status_before}");
        let key = ObjectKey::new("default", &job_name);
        env.client.resource(&JOBS).delete(&key, Delete::background()).await.expect("deleted");
        let wanted = |status: &Value| active(status) == [&*job_name];
        status(env, "taken", "starts when the name is free", wanted).await;
    });
}

/// Two days of a year, and then none for months.
#[test]
fn the_last_missed_start_of_an_uneven_schedule_takes_place() {
    everywhere("cronjob-uneven", async |env| {
        let _manager = env.manager("manager", &[]);
        let now = env.clock.now().to_string();
        let number = |digits: std::ops::Range<usize>| now[digits].parse::<u32>().expect("digits");
        let (year, current) = (number(0..4), number(5..7));
        // Three months ago.
        let month = (current + 8) % 12 + 1;
        let year = if month > current { year - 1 } else { year };
        let second = |year: u32| format!("{year}-{month:02}-02T00:00:00Z");
        let (name, schedule) = ("uneven", format!("0 0 1,2 {month} *"));
        create(&env.client, cron_job(name, &schedule, json!({ "timeZone": "UTC" }))).await;
        let last = json!({ "lastScheduleTime": second(year - 1) });
        set_status(env, &CronJob::RESOURCE, name, last).await;
        merge::<CronJob>(&env.client, name, json!({ "spec": { "suspend": false } })).await;
        let started = status(env, name, "a Job starts", |it| it["active"].is_array()).await;
        assert_eq!(started["lastScheduleTime"], second(year));
        let job = ObjectKey::new("default", &active(&started)[0]);
        let job: Value = env.client.resource(&JOBS).get(&job).await.expect("the Job");
        let annotations = &job["metadata"]["annotations"];
        let scheduled = &annotations["batch.kubernetes.io/cronjob-scheduled-timestamp"];
        assert_eq!(*scheduled, second(year));
    });
}

#[test]
fn a_cron_job_starts_jobs_and_follows_them_to_their_end() {
    everywhere("cronjob", async |env| {
        let manager = env.manager("manager", &[]);
        let (client, clock, name) = (&env.client, &env.clock, "tick");
        let spec = json!({ "timeZone": "Asia/Kolkata", "concurrencyPolicy": "Forbid" });
        create(client, cron_job(name, "* * * * *", spec)).await;
        make_starts_overdue(env, name, Duration::from_secs(3600)).await;
        merge::<CronJob>(client, name, json!({ "spec": { "suspend": false } })).await;

        let started = status(env, name, "a Job starts", |it| it["active"].is_array()).await;
        let active = started["active"][0].clone();
        let job_name = active["name"].as_str().unwrap().to_owned();
        let job_key = ObjectKey::new("default", &job_name);
        let job: Value = client.resource(&JOBS).get(&job_key).await.expect("it is there");
        let minutes: i64 = job_name.strip_prefix("tick-").unwrap().parse().unwrap();
        let time: Timestamp = started["lastScheduleTime"].as_str().unwrap().parse().unwrap();
        assert_eq!(time.as_micros() / 60_000_000, minutes);
        assert_eq!(active["uid"], job["metadata"]["uid"]);
        assert_eq!(job["metadata"]["labels"]["made"], "by-tick");
        let scheduled =
            &job["metadata"]["annotations"]["batch.kubernetes.io/cronjob-scheduled-timestamp"];
        assert!(scheduled.as_str().unwrap().ends_with(":00+05:30"), "{scheduled}");
        assert_eq!(job["metadata"]["ownerReferences"][0]["name"], name);
        has_event(env, name, "SuccessfulCreate", &format!("Created job {job_name}")).await;

        // The next start meets a Job that runs.
        let five_minutes = Duration::from_secs(300);
        let removed = json!({ "lastScheduleTime": (clock.now() - five_minutes).to_string(),
            "active": [{ "name": "another", "namespace": "default", "uid": active["uid"],
                "kind": "Job", "apiVersion": "batch/v1" }] });
        set_status(env, &CronJob::RESOURCE, name, removed).await;
        let refused = "prior execution is running and concurrency policy is Forbid";
        has_event(env, name, "JobAlreadyActive", refused).await;

        let now = clock.now().to_string();
        let condition = |kind: &str| condition(kind, "CompletionsReached", &now);
        merge::<CronJob>(client, name, json!({ "spec": { "suspend": true } })).await;
        let complete = json!({
            "startTime": now, "completionTime": now, "succeeded": 1,
            "conditions": [condition("SuccessCriteriaMet"), condition("Complete")],
        });
        set_status(env, &JOBS, &job_name, complete).await;
        let ended = status(env, name, "its end is seen", |it| it["active"].is_null()).await;
        assert_eq!(ended["lastSuccessfulTime"], now);
        let completed = format!("Saw completed job: {job_name}, condition: Complete");
        has_event(env, name, "SawCompletedJob", &completed).await;

        let no_history = json!({ "spec": { "successfulJobsHistoryLimit": 0 } });
        merge::<CronJob>(client, name, no_history).await;
        has_event(env, name, "SuccessfulDelete", &format!("Deleted job {job_name}")).await;
        drop(manager);
    });
}
