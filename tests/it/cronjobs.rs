//! Jobs that start at their times.

use kube_controller_manager::client::{Patch, Result};
use kube_controller_manager::objects::{CronJob, ObjectKey, Resource, ResourceType};
use serde_json::{Value, json};

use crate::env::*;

const JOBS: ResourceType = ResourceType::fixed("batch", "v1", "Job", "jobs", true);

#[test]
fn a_cron_job_starts_jobs_and_follows_them_to_their_end() {
    everywhere("cronjob", async |env| {
        let manager = env.manager("manager", &[]);
        let (client, clock) = (&env.client, &env.clock);
        let cron_jobs = client.resource(&CronJob::RESOURCE);
        let (key, name) = (ObjectKey::new("default", "tick"), "tick");
        let set_status = async |verbs: &ResourceType, key: &ObjectKey, status: Value| {
            let verbs = client.resource(verbs).subresource("status");
            let patch = Patch::Merge(json!({ "status": status }));
            let patched: Result<Value> = verbs.patch(key, &patch).await;
            patched.expect("patch");
        };
        let status = async |what: &str, wanted: fn(&Value) -> bool| {
            eventually(clock, what, || async {
                let cron_job: Value = cron_jobs.get(&key).await.map_err(|e| e.to_string())?;
                match wanted(&cron_job["status"]) {
                    true => Ok(cron_job["status"].clone()),
                    false => Err(cron_job["status"].to_string()),
                }
            })
            .await
        };
        let cron_job = json!({
            "apiVersion": "batch/v1", "kind": "CronJob",
            "metadata": { "name": name, "namespace": "default" },
            "spec": {
                "schedule": "* * * * *", "timeZone": "Asia/Kolkata", "suspend": true,
                "concurrencyPolicy": "Forbid",
                "jobTemplate": {
                    "metadata": { "labels": { "made": "by-tick" } },
                    "spec": { "suspend": true, "template": { "spec": {
                        "restartPolicy": "Never", "containers": [{ "name": "main", "image": "x:1" }],
                    } } },
                },
            },
        });
        create(client, cron_job).await;
        // With a start of the past hour, those since then are overdue: nothing waits for a minute.
        let hour_ago = (clock.now() - std::time::Duration::from_secs(3600)).to_string();
        let overdue = || json!({ "lastScheduleTime": hour_ago });
        set_status(&CronJob::RESOURCE, &key, overdue()).await;
        merge::<CronJob>(client, name, json!({ "spec": { "suspend": false } })).await;

        let started = status("a Job starts", |status| status["active"].is_array()).await;
        let active = started["active"][0].clone();
        let job_name = active["name"].as_str().unwrap().to_owned();
        let job_key = ObjectKey::new("default", &job_name);
        let job: Value = client.resource(&JOBS).get(&job_key).await.expect("it is there");
        let minutes: i64 = job_name.strip_prefix("tick-").unwrap().parse().unwrap();
        let time: kube_controller_manager::objects::Timestamp =
            started["lastScheduleTime"].as_str().unwrap().parse().unwrap();
        assert_eq!(time.as_micros() / 60_000_000, minutes);
        assert_eq!(active["uid"], job["metadata"]["uid"]);
        assert_eq!(job["metadata"]["labels"]["made"], "by-tick");
        let scheduled =
            &job["metadata"]["annotations"]["batch.kubernetes.io/cronjob-scheduled-timestamp"];
        assert!(scheduled.as_str().unwrap().ends_with(":00+05:30"), "{scheduled}");
        assert_eq!(job["metadata"]["ownerReferences"][0]["name"], name);
        has_event(env, name, "SuccessfulCreate", &format!("Created job {job_name}")).await;

        // The next start meets a Job that runs.
        let five_minutes = std::time::Duration::from_secs(300);
        let removed = json!({ "lastScheduleTime": (clock.now() - five_minutes).to_string(),
            "active": [{ "name": "another", "namespace": "default", "uid": active["uid"],
                "kind": "Job", "apiVersion": "batch/v1" }] });
        set_status(&CronJob::RESOURCE, &key, removed).await;
        let refused = "prior execution is running and concurrency policy is Forbid";
        has_event(env, name, "JobAlreadyActive", refused).await;

        let now = clock.now().to_string();
        let condition = |kind: &str| {
            json!({
                "type": kind, "status": "True", "reason": "CompletionsReached",
                "lastProbeTime": now, "lastTransitionTime": now,
            })
        };
        merge::<CronJob>(client, name, json!({ "spec": { "suspend": true } })).await;
        let complete = json!({
            "startTime": now, "completionTime": now, "succeeded": 1,
            "conditions": [condition("SuccessCriteriaMet"), condition("Complete")],
        });
        set_status(&JOBS, &job_key, complete).await;
        let ended = status("the Job's end is seen", |status| status["active"].is_null()).await;
        assert_eq!(ended["lastSuccessfulTime"], now);
        let completed = format!("Saw completed job: {job_name}, condition: Complete");
        has_event(env, name, "SawCompletedJob", &completed).await;

        let no_history = json!({ "spec": { "successfulJobsHistoryLimit": 0 } });
        merge::<CronJob>(client, name, no_history).await;
        has_event(env, name, "SuccessfulDelete", &format!("Deleted job {job_name}")).await;
        drop(manager);
    });
}
