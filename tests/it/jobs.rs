//! Jobs, from their pods to their end.

use std::collections::BTreeMap;
use std::time::Duration;

use kube_controller_manager::client::{Delete, Patch};
use kube_controller_manager::objects::{Job, ObjectKey, Pod, Resource};
use sandbox::faults::Fault;
use serde_json::{Value, json};

use crate::env::*;

const FINALIZER: &str = "batch.kubernetes.io/job-tracking";

/// A Job whose containers do what `run` says: see the annotation `sandbox/run`.
fn job(name: &str, run: &str, spec: Value) -> Value {
    let mut spec = spec;
    let policy = spec.as_object_mut().unwrap().remove("restartPolicy");
    let annotations: BTreeMap<String, &str> = run
        .split(',')
        .filter_map(|part| part.split_once('='))
        .map(|(key, script)| (format!("sandbox/run{key}"), script))
        .collect();
    spec["template"] = json!({
        "metadata": { "annotations": annotations, "labels": { "of": name } },
        "spec": {
            "restartPolicy": policy.unwrap_or("Never".into()), "terminationGracePeriodSeconds": 0,
            "containers": [{ "name": "main", "image": "x:1" }],
        },
    });
    let metadata = json!({ "name": name, "namespace": "default" });
    json!({ "apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec })
}

async fn read(env: &TestCluster, name: &str) -> Result<Value, String> {
    let key = ObjectKey::new("default", name);
    let jobs = env.client.resource(&Job::RESOURCE);
    jobs.get::<Value>(&key).await.map_err(|error| error.to_string())
}

async fn pods_of(env: &TestCluster, name: &str) -> Vec<Pod> {
    let mut pods = env.pods().await;
    pods.retain(|pod| pod.meta.labels.get("of") == Some(name));
    pods
}

/// Waits for a status of the Job that `wanted` accepts.
async fn status(
    env: &TestCluster,
    name: &str,
    what: &str,
    wanted: impl Fn(&Value) -> bool,
) -> Value {
    eventually(&env.clock, &format!("{name}: {what}"), || async {
        let job = read(env, name).await?;
        if wanted(&job["status"]) { Ok(job["status"].clone()) } else { Err(job.to_string()) }
    })
    .await
}

fn indexed(completions: i32, more: Value) -> Value {
    let mut spec = json!({
        "completionMode": "Indexed", "completions": completions, "parallelism": completions,
    });
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    spec
}

/// The conditions of a Job, without times, in their order.
fn conditions(status: &Value) -> Vec<String> {
    let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    let text = |condition: &Value, name: &str| condition[name].as_str().unwrap_or("").to_owned();
    let short = |condition: &Value| {
        format!("{} {}", text(condition, "type"), text(condition, "reason")).trim_end().to_owned()
    };
    conditions.iter().map(short).collect()
}

#[test]
fn jobs_run_to_their_ends() {
    let exits = |action: &str, code: i32| {
        json!({ "rules": [
            { "action": action, "onExitCodes": { "operator": "In", "values": [code] } },
        ] })
    };
    let succeeds =
        |reason: &str| [format!("SuccessCriteriaMet {reason}"), format!("Complete {reason}")];
    let fails = |reason: &str| [format!("FailureTarget {reason}"), format!("Failed {reason}")];
    // The script of its containers, its spec, its conditions, and the rest of its status.
    let table = [
        (
            "plain",
            "=sleep 1",
            json!({ "completions": 3, "parallelism": 2 }),
            succeeds("CompletionsReached"),
            json!({ "succeeded": 3 }),
        ),
        (
            "queue",
            "=exit 0",
            json!({ "parallelism": 2 }),
            succeeds("CompletionsReached"),
            json!({ "succeeded": 2 }),
        ),
        (
            "indexed",
            "=exit 0",
            indexed(4, json!({})),
            succeeds("CompletionsReached"),
            json!({ "succeeded": 4, "completedIndexes": "0-3" }),
        ),
        (
            "limit",
            "=exit 1",
            json!({ "backoffLimit": 0 }),
            fails("BackoffLimitExceeded"),
            json!({ "failed": 1 }),
        ),
        (
            "twice",
            "=exit 1",
            json!({ "backoffLimit": 1 }),
            fails("BackoffLimitExceeded"),
            json!({ "failed": 2 }),
        ),
        (
            "in-place",
            "=exit 1",
            json!({ "backoffLimit": 1, "restartPolicy": "OnFailure" }),
            fails("BackoffLimitExceeded"),
            json!({ "failed": 1 }),
        ),
        (
            "recovers",
            "=exit 1|exit 0",
            json!({ "restartPolicy": "OnFailure" }),
            succeeds("CompletionsReached"),
            json!({ "succeeded": 1 }),
        ),
        (
            "per-index",
            "=exit 0,.index-1=exit 1",
            indexed(3, json!({ "backoffLimitPerIndex": 0 })),
            fails("FailedIndexes"),
            json!({ "succeeded": 2, "failed": 1, "completedIndexes": "0,2", "failedIndexes": "1" }),
        ),
        (
            "most-failed",
            "=sleep inf,.index-0=exit 1",
            indexed(2, json!({ "backoffLimitPerIndex": 0, "maxFailedIndexes": 0 })),
            fails("MaxFailedIndexesExceeded"),
            json!({ "failed": 2, "failedIndexes": "0" }),
        ),
        (
            "fail-index",
            "=exit 0,.index-1=exit 7",
            indexed(
                2,
                json!({
                    "backoffLimitPerIndex": 9, "podFailurePolicy": exits("FailIndex", 7),
                }),
            ),
            fails("FailedIndexes"),
            json!({ "succeeded": 1, "failed": 1, "completedIndexes": "0", "failedIndexes": "1" }),
        ),
        (
            "success",
            "=sleep inf,.index-0=exit 0",
            indexed(2, json!({ "successPolicy": { "rules": [{ "succeededIndexes": "0" }] } })),
            succeeds("SuccessPolicy"),
            json!({ "succeeded": 1, "completedIndexes": "0" }),
        ),
        (
            "enough",
            "=sleep inf,.index-0=exit 0",
            indexed(2, json!({ "successPolicy": { "rules": [{ "succeededCount": 1 }] } })),
            succeeds("SuccessPolicy"),
            json!({ "succeeded": 1, "completedIndexes": "0" }),
        ),
        (
            "counted",
            "=exit 5",
            json!({ "backoffLimit": 0, "podFailurePolicy": exits("Count", 5) }),
            fails("BackoffLimitExceeded"),
            json!({ "failed": 1 }),
        ),
        (
            "fatal",
            "=exit 42",
            json!({ "podFailurePolicy": exits("FailJob", 42) }),
            fails("PodFailurePolicy"),
            json!({ "failed": 1 }),
        ),
        (
            "ignored",
            "=exit 3,.index-1=sleep 2;exit 42",
            indexed(
                2,
                json!({ "backoffLimit": 0, "podFailurePolicy": { "rules": [
                { "action": "Ignore", "onExitCodes": { "operator": "In", "values": [3] } },
                { "action": "FailJob", "onExitCodes": { "operator": "In", "values": [42] } },
            ] } }),
            ),
            fails("PodFailurePolicy"),
            // Also counts the pod that has replaced the ignored one, if there is one yet.
            json!({ "failed": [1, 2] }),
        ),
        (
            "late",
            "=sleep inf",
            json!({ "activeDeadlineSeconds": 2 }),
            fails("DeadlineExceeded"),
            json!({ "failed": 1 }),
        ),
    ];
    everywhere("jobs", async |env| {
        let _manager = env.manager("manager", &[]);
        for (name, run, spec, ..) in &table {
            create(&env.client, job(name, run, spec.clone())).await;
        }
        for (name, _, spec, expected, counters) in &table {
            let ended = |status: &Value| {
                let last = conditions(status).pop().unwrap_or_default();
                last.starts_with("Complete ") || last.starts_with("Failed ")
            };
            let status = status(env, name, "ends", ended).await;
            assert_eq!(conditions(&status), expected, "{name}");
            let mut wanted = json!({
                "conditions": status["conditions"], "startTime": status["startTime"],
                "ready": 0, "terminating": 0, "uncountedTerminatedPods": {},
            });
            for (counter, allowed) in counters.as_object().unwrap() {
                let found = &status[counter];
                let is_allowed = allowed.as_array().is_some_and(|all| all.contains(found));
                wanted[counter] = if is_allowed { found.clone() } else { allowed.clone() };
            }
            if expected[1].starts_with("Complete") {
                assert!(status["completionTime"].is_string(), "{name}");
                wanted["completionTime"] = status["completionTime"].clone();
            }
            assert_eq!(status, wanted, "{name} {spec}");
            let (kind, reason) = expected[1].split_once(' ').unwrap();
            match kind {
                "Complete" => has_event(env, name, "Completed", "Job completed").await,
                _ => has_event(env, name, reason, "").await,
            }
            for pod in pods_of(env, name).await {
                assert!(!pod.meta.has_finalizer(FINALIZER), "{}", pod.meta.key());
            }
        }
    });
}

#[test]
fn running_pods_are_counted_while_another_waits_for_its_back_off() {
    everywhere("back-off", async |env| {
        let _manager = env.manager("manager", &[]);
        // With a limit per index, a failed pod is counted once its index has another one.
        for (name, more, counted) in
            [("whole", json!({}), 1), ("by-index", json!({ "backoffLimitPerIndex": 9 }), 0)]
        {
            let run = "=sleep inf,.index-2=exit 1";
            create(&env.client, job(name, run, indexed(3, more))).await;
            status(env, name, "two pods run", |status| {
                let failed = status["failed"].as_i64().unwrap_or(0);
                status["active"] == 2 && status["ready"] == 2 && failed >= counted
            })
            .await;
        }
    });
}

/// Writes the status of a pod that fails an hour from now, after which a back-off would begin.
async fn ends_in_an_hour(env: &TestCluster, pod: &Pod, conditions: Value) {
    let at = env.clock.now() + Duration::from_secs(3600);
    let end = json!({ "terminated": { "exitCode": 1, "startedAt": at, "finishedAt": at } });
    let container = json!({
        "name": "main", "image": "x:1", "imageID": "", "restartCount": 0, "ready": false,
        "state": end,
    });
    let status = json!({
        "phase": "Failed", "conditions": conditions, "containerStatuses": [container],
    });
    let (patch, key) = (Patch::Merge(json!({ "status": status })), pod.meta.key());
    let pods = env.client.resource(&Pod::RESOURCE).subresource("status");
    pods.patch::<Value>(&key, &patch).await.expect("patch");
}

#[test]
fn a_new_manager_knows_the_back_off_of_a_job() {
    everywhere("back-off-kept", async |env| {
        let manager = env.manager("first", &[]);
        let spec = json!({ "completions": 2, "parallelism": 2 });
        create(&env.client, job("fails", "=sleep inf", spec)).await;
        status(env, "fails", "runs", |status| status["ready"] == 2).await;
        let pods = pods_of(env, "fails").await;
        ends_in_an_hour(env, &pods[0], json!([])).await;
        status(env, "fails", "the failure is counted", |status| {
            status["failed"] == 1 && status["uncountedTerminatedPods"] == json!({})
        })
        .await;
        drop(manager);

        let _manager = env.manager("second", &[]);
        create(&env.client, job("other", "=sleep inf", json!({}))).await;
        status(env, "other", "runs", |status| status["ready"] == 1).await;
        ends_in_an_hour(env, &pods[1], json!([])).await;
        let counted = |status: &Value| status["failed"] == 2 && status["active"] == Value::Null;
        status(env, "fails", "the second failure is counted, and nothing runs", counted).await;
        assert_eq!(pods_of(env, "fails").await.len(), 2);
    });
}

#[test]
fn a_job_says_why_its_pods_keep_their_finalizer() {
    Env::run("kept-finalizers", async |env| {
        let faults = env.cluster.sandbox.faults();
        // As an admission webhook that forbids changes of pods.
        faults.next(usize::MAX, "patch", "pods", Fault::code(403, None));
        let _manager = env.manager("manager", &[]);
        create(&env.client, job("held", "=exit 0", json!({}))).await;
        has_event(env, "held", "FailedRemoveFinalizer", "fault on purpose: Forbidden").await;
        let held = read(env, "held").await.expect("the Job");
        assert_eq!(conditions(&held["status"]), ["SuccessCriteriaMet CompletionsReached"]);
        let message = &held["status"]["conditions"][0]["message"];
        assert_eq!(message, "Reached expected number of succeeded pods");
        faults.clear();
        status(env, "held", "ends", |status| status["completionTime"].is_string()).await;
    });
}

#[test]
fn the_failure_of_a_disrupted_pod_may_be_ignored() {
    everywhere("disrupted", async |env| {
        let _manager = env.manager("manager", &[]);
        let condition = json!({ "type": "DisruptionTarget", "status": "True" });
        let rule = json!({ "action": "Ignore", "onPodConditions": [condition] });
        let spec = json!({ "backoffLimit": 0, "podFailurePolicy": { "rules": [rule] } });
        create(&env.client, job("d", "=sleep inf", spec)).await;
        status(env, "d", "runs", |status| status["ready"] == 1).await;
        let first = pods_of(env, "d").await.remove(0);
        // A back-off would begin when the pod ends.
        ends_in_an_hour(env, &first, json!([condition])).await;
        eventually(&env.clock, "another pod runs, and the first one is released", || async {
            let pods = pods_of(env, "d").await;
            let is_first = |pod: &&Pod| pod.meta.uid == first.meta.uid;
            let runs = pods.iter().any(|pod| !is_first(&pod) && pod.is_ready());
            let held =
                pods.iter().find(is_first).is_some_and(|it| it.meta.has_finalizer(FINALIZER));
            if runs && !held { Ok(()) } else { Err(format!("{pods:#?}")) }
        })
        .await;
        let status = status(env, "d", "runs again", |status| status["ready"] == 1).await;
        assert_eq!((conditions(&status), &status["failed"]), (Vec::new(), &Value::Null));
    });
}

#[test]
fn a_finished_job_is_deleted_when_its_time_is_over() {
    everywhere("ttl-after-finished", async |env| {
        let _manager = env.manager("manager", &[]);
        let ttl = |seconds: Value| json!({ "ttlSecondsAfterFinished": seconds });
        let gone = async |name: &str| {
            eventually(&env.clock, &format!("{name} and its pods are gone"), || async {
                let pods = pods_of(env, name).await.len();
                match read(env, name).await {
                    Err(_) if pods == 0 => Ok(()),
                    job => Err(format!("{pods} pods of {job:?}")),
                }
            })
            .await;
        };
        for (name, seconds) in [("hour", json!(3600)), ("never", json!(null)), ("soon", json!(1))] {
            create(&env.client, job(name, "=exit 0", ttl(seconds))).await;
        }
        for name in ["hour", "never"] {
            status(env, name, "ends", |status| status["completionTime"].is_string()).await;
        }
        gone("soon").await;
        // A changed TTL also counts from the end of the Job.
        let change = json!({ "spec": ttl(json!(0)) });
        merge::<Job>(&env.client, "hour", change).await;
        gone("hour").await;
        assert!(read(env, "never").await.is_ok());
    });
}

#[test]
fn a_suspended_job_has_no_pods_and_may_be_changed() {
    everywhere("suspend", async |env| {
        let _manager = env.manager("manager", &[]);
        create(&env.client, job("s", "=sleep inf", indexed(3, json!({})))).await;
        status(env, "s", "runs", |status| status["ready"] == 3).await;
        merge::<Job>(&env.client, "s", json!({ "spec": { "suspend": true } })).await;
        let suspended = status(env, "s", "is suspended", |status| {
            status["active"].is_null()
                && status["terminating"] == 0
                && conditions(status).len() == 1
        })
        .await;
        assert_eq!(conditions(&suspended), ["Suspended JobSuspended"]);
        assert_eq!((&suspended["startTime"], &suspended["failed"]), (&Value::Null, &Value::Null));
        has_event(env, "s", "Suspended", "Job suspended").await;
        assert_eq!(pods_of(env, "s").await.len(), 0);

        let resume = json!({ "spec": { "suspend": false, "template": { "spec": {
            "nodeSelector": { "kubernetes.io/os": "linux" },
        } } } });
        merge::<Job>(&env.client, "s", resume).await;
        let resumed = status(env, "s", "runs again", |status| status["ready"] == 3).await;
        assert_eq!(conditions(&resumed), ["Suspended JobResumed"]);
        assert!(resumed["startTime"].is_string());
        has_event(env, "s", "Resumed", "Job resumed").await;

        // An elastic Job: completions follow parallelism, and pods of other indexes are deleted.
        let smaller = json!({ "spec": { "completions": 1, "parallelism": 1 } });
        merge::<Job>(&env.client, "s", smaller).await;
        status(env, "s", "is smaller", |status| status["active"] == 1).await;
        let left = pods_of(env, "s").await;
        let names: Vec<&str> = left
            .iter()
            .filter(|pod| !pod.meta.is_being_deleted())
            .map(|pod| pod.meta.generate_name.as_str())
            .collect();
        assert_eq!(names, ["s-0-"]);
        let larger = json!({ "spec": { "completions": 4, "parallelism": 4 } });
        merge::<Job>(&env.client, "s", larger).await;
        status(env, "s", "is larger", |status| status["ready"] == 4).await;
    });
}

#[test]
fn pods_without_their_job_lose_the_finalizer() {
    everywhere("orphans", async |env| {
        let _manager = env.manager("manager", &[]);
        let key = ObjectKey::new("default", "o");
        for (delete, left) in [(Delete::orphan(), 1), (Delete::background(), 0)] {
            create(&env.client, job("o", "=sleep inf", json!({}))).await;
            status(env, "o", "runs", |status| status["ready"] == 1).await;
            let before = pods_of(env, "o").await;
            assert!(before.iter().any(|pod| pod.meta.has_finalizer(FINALIZER)));
            env.client.delete::<Job>(&key, delete).await.expect("delete");
            eventually(&env.clock, "its pods are released", || async {
                let pods = pods_of(env, "o").await;
                let free = pods.iter().all(|pod| pod.meta.finalizers().is_empty());
                let gone = read(env, "o").await.is_err();
                if free && gone && pods.len() == left { Ok(()) } else { Err(format!("{pods:#?}")) }
            })
            .await;
            for pod in pods_of(env, "o").await {
                let now = Delete::new().grace_period(0);
                env.client.delete::<Pod>(&pod.meta.key(), now).await.expect("delete");
            }
        }
    });
}

#[test]
fn a_job_of_another_controller_is_left_alone() {
    everywhere("managed-by", async |env| {
        let _manager = env.manager("manager", &[]);
        let managed = json!({ "managedBy": "example.com/batch" });
        create(&env.client, job("theirs", "=exit 0", managed)).await;
        create(&env.client, job("ours", "=exit 0", json!({}))).await;
        status(env, "ours", "ends", |status| status["succeeded"] == 1).await;
        assert_eq!(read(env, "theirs").await.unwrap()["status"], json!({}));
        assert_eq!(pods_of(env, "theirs").await.len(), 0);
    });
}

#[test]
fn with_the_policy_failed_a_pod_is_replaced_once_it_has_failed() {
    everywhere("replaced-failed", async |env| {
        // The pod garbage collector would remove terminating pods without a node.
        let controllers = "--controllers=*,-pod-garbage-collector-controller";
        let _manager = env.manager("manager", &[controllers]);
        for policy in ["TerminatingOrFailed", "Failed"] {
            let name = policy.to_lowercase();
            let spec = json!({ "podReplacementPolicy": policy });
            let mut object = job(&name, "=exit 0", spec);
            // No node runs its pods, and something holds them when they are deleted.
            let template = &mut object["spec"]["template"];
            template["spec"]["nodeSelector"] = json!({ "kubernetes.io/hostname": "none" });
            template["metadata"]["finalizers"] = json!(["example.com/hold"]);
            create(&env.client, object).await;
            status(env, &name, "has a pod", |status| status["active"] == 1).await;
            let first = pods_of(env, &name).await.remove(0);
            env.client.delete::<Pod>(&first.meta.key(), Delete::new()).await.expect("delete");
            let waits = status(env, &name, "sees it", |status| status["terminating"] == 1).await;
            let others = async || {
                let mut pods = pods_of(env, &name).await;
                pods.retain(|pod| pod.meta.uid != first.meta.uid);
                pods.len()
            };
            if policy == "Failed" {
                assert_eq!((&waits["active"], &waits["failed"]), (&Value::Null, &Value::Null));
                assert_eq!(others().await, 0);
                let failed = Patch::Merge(json!({ "status": { "phase": "Failed" } }));
                let pods = env.client.resource(&Pod::RESOURCE).subresource("status");
                pods.patch::<Value>(&first.meta.key(), &failed).await.expect("patch");
            }
            let counted = |status: &Value| status["active"] == 1 && status["failed"] == 1;
            status(env, &name, "has another pod", counted).await;
            assert_eq!(others().await, 1, "{policy}");
        }
    });
}

#[test]
fn pods_that_are_being_deleted_are_replaced_at_once_or_when_they_have_failed() {
    everywhere("replacement", async |env| {
        let _manager = env.manager("manager", &[]);
        for policy in ["TerminatingOrFailed", "Failed"] {
            let name = policy.to_lowercase();
            let spec = json!({ "podReplacementPolicy": policy, "backoffLimit": 5 });
            let mut object = job(&name, "=sleep inf", spec);
            // The stand-in node takes its time with this one: a finalizer holds it.
            object["spec"]["template"]["metadata"]["finalizers"] = json!(["example.com/hold"]);
            create(&env.client, object).await;
            status(env, &name, "runs", |status| status["ready"] == 1).await;
            let first = pods_of(env, &name).await.remove(0);
            env.client.delete::<Pod>(&first.meta.key(), Delete::new()).await.expect("delete");
            let replaced = status(env, &name, "has another pod", |status| {
                status["active"] == 1 && status["failed"] == 1 && status["ready"] == 1
            })
            .await;
            assert_eq!(replaced["uncountedTerminatedPods"], json!({}), "{policy}");
            let pods = pods_of(env, &name).await;
            assert_eq!(pods.len(), 2, "{policy}: {pods:#?}");
        }
    });
}
