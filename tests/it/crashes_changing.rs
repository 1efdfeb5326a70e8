//! A manager that dies at any of its writes while workloads are scaled, rolled back, or lose pods.

use serde_json::{Value, json};

use crate::crashes::*;
use crate::env::*;
use crate::statefulsets::{make_class, owners, with_claims};

/// The number of running pods; an error if there are other pods.
fn running(name: &str, cluster: &Cluster) -> Result<usize, String> {
    let pods = cluster.pods_of(name);
    let runs = |pod: &&Value| {
        pod["status"]["phase"] == "Running" && pod["metadata"]["deletionTimestamp"].is_null()
    };
    if pods.iter().all(runs) { Ok(pods.len()) } else { Err(format!("{pods:#?}")) }
}

/// All counters of a StatefulSet are its replicas, and its pods run one revision.
fn stateful_set_is_whole(name: &str, cluster: &Cluster) -> Result<i64, String> {
    let replicas = cluster.object(name)?["spec"]["replicas"].as_i64().unwrap_or_default();
    let counters = ["replicas", "readyReplicas", "updatedReplicas", "currentReplicas"];
    let status = counted(name, cluster, &counters, replicas)?;
    let runs = running(name, cluster)?;
    if status["currentRevision"] == status["updateRevision"] && runs as i64 == replicas {
        Ok(replicas)
    } else {
        Err(format!("{runs} pods run: {status}"))
    }
}

fn daemon_set_is_whole(name: &str, cluster: &Cluster) -> Result<(), String> {
    let counters = ["desiredNumberScheduled", "updatedNumberScheduled", "numberAvailable"];
    counted(name, cluster, &counters, 3)?;
    match running(name, cluster)? {
        3 => Ok(()),
        pods => Err(format!("{pods} pods run")),
    }
}

/// The revisions and images that remain once the object has been changed `changes` times.
fn history(name: &str, cluster: &Cluster, expected: &[(i64, &str)]) -> Result<Value, String> {
    let revisions = cluster.revisions_of(name);
    let was_changed = cluster.object(name)?["metadata"]["generation"] == 3;
    if was_changed && revisions != expected {
        return Err(format!("{revisions:?}"));
    }
    Ok(json!([revisions, images(name, cluster)]))
}

#[test]
fn a_stateful_set_that_shrinks_survives_a_crash_at_every_write() {
    Env::run("crash-sts-shrink", async |env| {
        make_class(env).await;
        let _binder = binder(env);
        let set = |name: &str| {
            let mut set = with_claims("Retain", "Delete");
            set["metadata"]["name"] = json!(name);
            set["spec"]["selector"]["matchLabels"] = json!({ "app": name });
            let template = &mut set["spec"]["template"];
            template["metadata"]["labels"] = json!({ "app": name });
            template["spec"]["terminationGracePeriodSeconds"] = json!(0);
            vec![set]
        };
        let end = |name: &str, cluster: &Cluster| {
            let replicas = stateful_set_is_whole(name, cluster)?;
            // No garbage collector runs: a claim that would be deleted with its pod stays, with its
            // owner.
            let claims: Vec<Value> = cluster
                .claims
                .iter()
                .filter(|claim| {
                    let own = claim["metadata"]["name"].as_str().unwrap_or_default();
                    own.starts_with(&format!("data-{name}-"))
                })
                .map(|claim| json!(owners(claim)))
                .collect();
            let (none, pod) = (json!([]), json!(["Pod"]));
            let expected =
                if replicas == 1 { json!([none, pod, pod]) } else { json!([none, none, none]) };
            if json!(claims) == expected { Ok(expected) } else { Err(format!("{claims:?}")) }
        };
        let scenario = Scenario {
            controllers: &["statefulset-controller"],
            objects: &set,
            changes: vec![Mutation::Patch(json!({ "spec": { "replicas": 1 } }))],
            end: &end,
        };
        let writes = survives_every_write(env, &scenario).await;
        assert!(writes >= 5, "two claims, two pods, a status: {writes}");
    });
}

#[test]
fn sets_that_are_rolled_back_survive_a_crash_at_every_write() {
    let back = || vec![Mutation::Patch(set_image("x:2")), Mutation::Patch(set_image("x:1"))];
    Env::run("crash-sts-rollback", async |env| {
        let end = |name: &str, cluster: &Cluster| {
            stateful_set_is_whole(name, cluster)?;
            history(name, cluster, &[(2, "x:2"), (3, "x:1")])
        };
        let spec = json!({ "replicas": 2, "serviceName": "s" });
        let scenario = Scenario {
            controllers: &["statefulset-controller"],
            objects: &|name| vec![set_of_pods("StatefulSet", name, spec.clone())],
            changes: back(),
            end: &end,
        };
        let writes = survives_every_write(env, &scenario).await;
        assert!(writes >= 6, "a revision, two pods twice, a status: {writes}");
    });
    // With and without a history.
    for (test, limit, kept) in [
        ("crash-ds-rollback", 10, &[(2, "x:2"), (3, "x:1")][..]),
        ("crash-ds-cleanup", 0, &[(3, "x:1")]),
    ] {
        Env::run(test, async |env| {
            let end = |name: &str, cluster: &Cluster| {
                daemon_set_is_whole(name, cluster)?;
                history(name, cluster, kept)
            };
            let spec = json!({ "revisionHistoryLimit": limit });
            let scenario = Scenario {
                controllers: &["daemonset-controller"],
                objects: &|name| vec![set_of_pods("DaemonSet", name, spec.clone())],
                changes: back(),
                end: &end,
            };
            let writes = survives_every_write(env, &scenario).await;
            assert!(writes >= 8, "{test}: a revision, three pods twice, a status: {writes}");
        });
    }
}

#[test]
fn sets_whose_pods_failed_survive_a_crash_at_every_write() {
    let evicted = || vec![Mutation::PodStatus(json!({ "phase": "Failed", "reason": "Evicted" }))];
    Env::run("crash-sts-failed", async |env| {
        let end = |name: &str, cluster: &Cluster| {
            stateful_set_is_whole(name, cluster).map(|_| json!(images(name, cluster)))
        };
        let spec = json!({ "replicas": 2, "serviceName": "s" });
        let scenario = Scenario {
            controllers: &["statefulset-controller"],
            objects: &|name| vec![set_of_pods("StatefulSet", name, spec.clone())],
            changes: evicted(),
            end: &end,
        };
        let writes = survives_every_write(env, &scenario).await;
        assert!(writes >= 4, "two pods go and come: {writes}");
    });
    Env::run("crash-ds-failed", async |env| {
        let end = |name: &str, cluster: &Cluster| {
            daemon_set_is_whole(name, cluster).map(|()| json!(images(name, cluster)))
        };
        let scenario = Scenario {
            controllers: &["daemonset-controller"],
            objects: &|name| vec![set_of_pods("DaemonSet", name, json!({}))],
            changes: evicted(),
            end: &end,
        };
        let writes = survives_every_write(env, &scenario).await;
        assert!(writes >= 6, "three pods go and come: {writes}");
    });
}

/// The Job has as many ready pods as completions, and no other holds its finalizer.
fn job_is_under_way(name: &str, cluster: &Cluster) -> Result<Value, String> {
    let job = cluster.object(name)?;
    let (status, wanted) = (&job["status"], &job["spec"]["completions"]);
    let pods = cluster.pods_of(name);
    let phase = |pod: &&Value| pod["status"]["phase"].as_str().unwrap_or_default().to_owned();
    let mut phases: Vec<String> = pods.iter().map(phase).collect();
    phases.sort();
    let stays = |pod: &&Value| pod["metadata"]["deletionTimestamp"].is_null();
    let held = |pod: &&Value| pod["metadata"]["finalizers"].is_array();
    let runs = |pod: &&Value| pod["status"]["phase"] == "Running";
    let is_tidy = pods.iter().all(|pod| stays(pod) && held(pod) == runs(pod));
    let count = pods.iter().filter(|pod| runs(pod)).count();
    let counted = ["ready", "active"].iter().all(|counter| status[counter] == *wanted)
        && status["terminating"] == 0
        && status["uncountedTerminatedPods"].as_object().is_none_or(serde_json::Map::is_empty);
    if !is_tidy || !counted || *wanted != count {
        return Err(format!("{status} {pods:#?}"));
    }
    Ok(json!({
        "phases": phases, "failed": status["failed"], "succeeded": status["succeeded"],
        "conditions": status["conditions"],
    }))
}

#[test]
fn a_job_of_indexes_that_shrinks_survives_a_crash_at_every_write() {
    Env::run("crash-elastic", async |env| {
        let spec = json!({ "completions": 3, "parallelism": 3, "completionMode": "Indexed" });
        let scenario = Scenario {
            controllers: &["job-controller"],
            objects: &|name| vec![job(name, spec.clone(), json!({ "sandbox/run": "sleep inf" }))],
            changes: vec![Mutation::Patch(
                json!({ "spec": { "completions": 1, "parallelism": 1 } }),
            )],
            end: &job_is_under_way,
        };
        let writes = survives_every_write(env, &scenario).await;
        assert!(writes >= 5, "two pods and their finalizers, a status: {writes}");
    });
}

#[test]
fn a_job_that_ignores_failures_survives_a_crash_at_every_write() {
    Env::run("crash-ignored", async |env| {
        let condition = json!({ "type": "DisruptionTarget", "status": "True" });
        let rule = json!({ "action": "Ignore", "onPodConditions": [condition] });
        let spec = json!({
            "completions": 2, "parallelism": 2, "backoffLimit": 0,
            "podFailurePolicy": { "rules": [rule] },
        });
        let status = json!({ "phase": "Failed", "conditions": [condition] });
        let end = |name: &str, cluster: &Cluster| {
            let end = job_is_under_way(name, cluster)?;
            assert!(end["failed"].is_null() && end["conditions"].is_null(), "{end}");
            Ok(end)
        };
        let scenario = Scenario {
            controllers: &["job-controller"],
            objects: &|name| vec![job(name, spec.clone(), json!({ "sandbox/run": "sleep inf" }))],
            changes: vec![Mutation::PodStatus(status)],
            end: &end,
        };
        let writes = survives_every_write(env, &scenario).await;
        assert!(writes >= 6, "two finalizers, two pods, the status twice: {writes}");
    });
}

#[test]
fn a_job_without_retries_survives_a_crash_at_every_write() {
    let reason = "BackoffLimitExceeded";
    let ended = json!({
        "status": {
            "conditions": [["FailureTarget", "True", reason], ["Failed", "True", reason]],
            "startTime": true, "completionTime": false, "failed": 1, "ready": 0, "terminating": 0,
            "uncountedTerminatedPods": {},
        },
        "pods": ["\"Failed\""],
    });
    let counts = json!({ "rules": [
        { "action": "Count", "onExitCodes": { "operator": "In", "values": [42] } },
        { "action": "FailJob", "onExitCodes": { "operator": "NotIn", "values": [0] } },
    ] });
    for (test, policy) in [("crash-no-retry", json!(null)), ("crash-count", counts)] {
        let spec = json!({ "backoffLimit": 0, "podFailurePolicy": policy });
        job_survives(test, spec, json!({ "sandbox/run": "exit 42" }), ended.clone(), 5);
    }
}
