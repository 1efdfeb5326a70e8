//! Tables of a sync's decisions: the end of a Job, the pods it needs, and the counting of pods.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures_lite::future::block_on;
use serde_json::{Value, json};

use super::backoff::{BackoffStore, Failures};
use super::indexes::COMPLETION_INDEX;
use super::plan::{IndexFailures, Plan, Wanted, plan};
use super::sync_state::{
    FinishedPods, INDEX_FAILURES, INDEX_IGNORED_FAILURES, SyncState, TRACKING, condition,
    ensure_condition,
};
use super::testing::controller;
use super::tracking::{count_released, finish, plan_status};
use super::{ending, tracking};
use crate::client::testing::answering;
use crate::objects::{Job, JobSpec, Pod, Timestamp, Uid};

const NOW: i64 = 1_000_000;

/// A time `ago` seconds before [`now`].
fn seconds_ago(ago: i64) -> Timestamp {
    Timestamp::from_secs(NOW - ago)
}

fn now() -> Timestamp {
    seconds_ago(0)
}

/// A pod in a phase, with the finalizer.
fn pod(name: &str, phase: &str) -> Value {
    json!({
        "metadata": {
            "namespace": "ns", "name": name, "uid": name, "finalizers": [TRACKING],
            "creationTimestamp": seconds_ago(100), "annotations": {},
        },
        "spec": { "nodeName": "n" }, "status": { "phase": phase },
    })
}

fn with_member(mut value: Value, path: &str, new: Value) -> Value {
    *value.pointer_mut(path).unwrap_or_else(|| panic!("{path}")) = new;
    value
}

fn indexed(name: &str, phase: &str, index: i32) -> Value {
    with_member(
        pod(name, phase),
        "/metadata/annotations",
        json!({ COMPLETION_INDEX: index.to_string() }),
    )
}

fn being_deleted(value: Value) -> Value {
    let mut value = value;
    value["metadata"]["deletionTimestamp"] = json!(seconds_ago(1));
    value
}

/// `value` with a container that ended with `code`, `ago` seconds before [`now`].
fn with_exit_code(value: Value, code: i32, ago: i64) -> Value {
    let end = json!({ "exitCode": code, "finishedAt": seconds_ago(ago) });
    let mut value = value;
    value["status"]["containerStatuses"] = json!([{ "name": "c", "state": { "terminated": end } }]);
    value
}

/// The annotations of a pod whose index had this number of failures before.
fn with_failure_counts(value: Value, failures: i32, ignored: i32) -> Value {
    let mut value = value;
    value["metadata"]["annotations"][INDEX_FAILURES] = json!(failures.to_string());
    value["metadata"]["annotations"][INDEX_IGNORED_FAILURES] = json!(ignored.to_string());
    value
}

fn job(spec: Value, status: Value) -> Arc<Job> {
    let metadata = json!({ "namespace": "ns", "name": "j", "uid": "j" });
    let job = json!({ "metadata": metadata, "spec": spec, "status": status });
    Arc::new(serde_json::from_value(job).unwrap())
}

fn state(spec: Value, status: Value, pods: Vec<Value>) -> SyncState {
    let pods = pods.into_iter().map(|pod| Arc::new(serde_json::from_value::<Pod>(pod).unwrap()));
    SyncState::new(job(spec, status), pods.collect(), HashSet::new()).0
}

fn indexed_spec(completions: i32, more: Value) -> Value {
    let mut spec = json!({
        "completionMode": "Indexed", "completions": completions, "parallelism": completions,
    });
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    spec
}

#[test]
fn pods_are_counted_together_with_those_in_the_status() {
    let plain = json!({ "completions": 9, "parallelism": 9 });
    let failed_only = json!({ "completions": 9, "podReplacementPolicy": "Failed" });
    let policy = json!({ "completions": 9, "podFailurePolicy": { "rules": [
        { "action": "Ignore", "onExitCodes": { "operator": "In", "values": [7] } },
    ] } });
    let untracked = |value: Value| with_member(value, "/metadata/finalizers", json!([]));
    let status = json!({
        "succeeded": 1, "failed": 2,
        "uncountedTerminatedPods": { "succeeded": ["a"], "failed": ["b"] },
    });
    let pods = || {
        vec![
            pod("a", "Succeeded"),
            pod("b", "Failed"),
            pod("c", "Succeeded"),
            with_exit_code(pod("d", "Failed"), 7, 5),
            untracked(pod("e", "Failed")),
            being_deleted(pod("f", "Running")),
            pod("g", "Running"),
        ]
    };
    // The Job, and its pods that succeeded, failed, and are being deleted.
    for (spec, succeeded, failed, terminating) in
        [(&plain, 3, 5, 1), (&failed_only, 3, 4, 1), (&policy, 3, 3, 1)]
    {
        let state = state(spec.clone(), status.clone(), pods());
        let found = (state.succeeded, state.failed, state.terminating, state.active.len());
        assert_eq!(found, (succeeded, failed, terminating, 1), "{spec}");
    }
    // A pod whose finalizer is known to be removed is not counted again.
    let pods = vec![Arc::new(serde_json::from_value(pod("c", "Succeeded")).unwrap())];
    let released = HashSet::from([Uid::new("c")]);
    let (state, newly_finished) = SyncState::new(job(plain, json!({})), pods, released);
    assert_eq!((state.succeeded, newly_finished.succeeded.len()), (0, 0));
}

#[test]
fn the_first_reason_to_end_counts() {
    let ends = |name: &str, reason: &str| Some((name.to_owned(), reason.to_owned()));
    let is_true = |kind: &str| json!({ "conditions": [{ "type": kind, "status": "True", "reason": "before" }] });
    let rule = json!({ "rules": [
        { "action": "FailJob", "onExitCodes": { "operator": "In", "values": [42] } },
    ] });
    let fatal = || vec![with_exit_code(pod("a", "Failed"), 42, 5)];
    let restarted = || {
        let mut pod = pod("a", "Running");
        pod["status"]["containerStatuses"] = json!([{ "name": "c", "restartCount": 2 }]);
        pod["status"]["initContainerStatuses"] = json!([{ "name": "i", "restartCount": 1 }]);
        vec![pod]
    };
    let in_place = |limit: i32| {
        let template = json!({ "spec": { "restartPolicy": "OnFailure" } });
        json!({ "backoffLimit": limit, "template": template })
    };
    let late = json!({ "backoffLimit": 6, "activeDeadlineSeconds": 50 });
    let since = |ago: i64| json!({ "startTime": seconds_ago(ago) });
    let suspended = with_member(
        json!({ "backoffLimit": 6, "activeDeadlineSeconds": 50, "suspend": null }),
        "/suspend",
        json!(true),
    );
    let per_index =
        |max: Value| indexed_spec(3, json!({ "backoffLimitPerIndex": 1, "maxFailedIndexes": max }));
    let last_failure =
        |name: &str, index: i32| with_failure_counts(indexed(name, "Failed", index), 1, 0);
    let success = json!({ "rules": [{ "succeededIndexes": "1" }] });
    let none = Value::Null;
    type Case = (Value, Value, Vec<Value>, Option<(String, String)>);
    let table: Vec<Case> = vec![
        (json!({ "backoffLimit": 6 }), json!({}), vec![pod("a", "Failed")], None),
        (
            json!({ "backoffLimit": 0, "podFailurePolicy": rule }),
            is_true("SuccessCriteriaMet"),
            fatal(),
            ends("SuccessCriteriaMet", "before"),
        ),
        (json!({ "backoffLimit": 0 }), is_true("FailureTarget"), vec![], ends("Failed", "before")),
        (
            json!({ "backoffLimit": 0, "podFailurePolicy": rule }),
            json!({}),
            fatal(),
            ends("FailureTarget", "PodFailurePolicy"),
        ),
        (
            json!({ "backoffLimit": 0 }),
            json!({}),
            fatal(),
            ends("FailureTarget", "BackoffLimitExceeded"),
        ),
        (json!({ "backoffLimit": 1 }), json!({}), fatal(), None),
        (in_place(3), json!({}), restarted(), ends("FailureTarget", "BackoffLimitExceeded")),
        (in_place(4), json!({}), restarted(), None),
        (in_place(0), json!({}), restarted(), ends("FailureTarget", "BackoffLimitExceeded")),
        (in_place(0), json!({}), vec![pod("a", "Running")], None),
        (late.clone(), since(50), vec![], ends("FailureTarget", "DeadlineExceeded")),
        (late, since(49), vec![], None),
        (suspended, since(60), vec![], None),
        (per_index(json!(0)), json!({}), vec![last_failure("a", 0)], {
            ends("FailureTarget", "MaxFailedIndexesExceeded")
        }),
        (per_index(none.clone()), json!({}), vec![last_failure("a", 0)], None),
        (
            per_index(none.clone()),
            json!({}),
            vec![with_failure_counts(indexed("a", "Failed", 0), 0, 3)],
            None,
        ),
        (
            per_index(none),
            json!({ "completedIndexes": "1,2" }),
            vec![last_failure("a", 0)],
            ends("FailureTarget", "FailedIndexes"),
        ),
        (
            indexed_spec(3, json!({ "backoffLimit": 6, "successPolicy": success })),
            json!({}),
            vec![indexed("a", "Succeeded", 1)],
            ends("SuccessCriteriaMet", "SuccessPolicy"),
        ),
        (
            indexed_spec(3, json!({ "backoffLimit": 6, "successPolicy": success })),
            json!({}),
            vec![indexed("a", "Succeeded", 2)],
            None,
        ),
    ];
    for (spec, status, pods, expected) in table {
        let text = format!("{spec} {status}");
        let ending = ending::decide(&state(spec, status, pods), now());
        let found = ending.map(|ending| (ending.r#type.to_string(), ending.reason.to_string()));
        assert_eq!(found, expected, "{text}");
    }
}

#[test]
fn a_job_is_complete_when_enough_pods_succeeded_and_no_other_runs() {
    for (completions, succeeded, active, complete) in [
        (json!(null), 0, 0, false),
        (json!(null), 1, 0, true),
        (json!(null), 1, 1, false),
        (json!(2), 1, 0, false),
        (json!(2), 2, 0, true),
        (json!(2), 3, 1, false),
        (json!(0), 0, 0, true),
    ] {
        let spec = &job(json!({ "completions": completions }), json!({})).spec;
        assert_eq!(ending::is_complete(spec, succeeded, active), complete, "{completions}");
    }
}

#[test]
fn the_deadline_counts_from_the_start_while_the_job_is_not_suspended() {
    let spec = |suspend: bool| json!({ "activeDeadlineSeconds": 50, "suspend": suspend });
    let started = json!({ "startTime": seconds_ago(20) });
    for (spec, status, left) in [
        (spec(false), started.clone(), Some(30)),
        (spec(false), json!({ "startTime": seconds_ago(60) }), Some(0)),
        (spec(false), json!({}), None),
        (spec(true), started.clone(), None),
        (json!({}), started, None),
    ] {
        let job = job(spec, status);
        let found = ending::time_left(&job.spec, &job.status, now());
        assert_eq!(found, left.map(Duration::from_secs));
    }
}

/// The names of the pods to be deleted, the indexes of those to be created, or the wait.
fn plan_summary(state: &SyncState, failures: Failures) -> Result<Vec<String>, Vec<Option<i32>>> {
    match plan(state, failures, now()) {
        Plan::Nothing => Err(vec![]),
        Plan::Delete(pods) => Ok(pods.iter().map(|pod| pod.meta.name.to_string()).collect()),
        Plan::Create(wanted) => Err(wanted.into_iter().map(|wanted| wanted.index).collect()),
        Plan::Wait(wait) => Ok(vec![format!("wait {}", wait.as_secs())]),
    }
}

#[test]
fn a_job_has_as_many_pods_as_parallelism_and_completions_ask_for() {
    let spec = |completions: Value, parallelism: i32| json!({ "completions": completions, "parallelism": parallelism });
    let none = Value::Null;
    let running = |count: usize| -> Vec<Value> {
        (0..count).map(|index| pod(&format!("p{index}"), "Running")).collect()
    };
    let succeeded = json!({ "succeeded": 1 });
    let replaces_failed = json!({ "parallelism": 2, "podReplacementPolicy": "Failed" });
    for (spec, status, pods, created, deleted) in [
        (spec(none.clone(), 3), json!({}), running(1), 2, 0),
        (spec(none.clone(), 3), succeeded.clone(), running(1), 0, 0),
        (spec(json!(5), 3), json!({}), running(0), 3, 0),
        (spec(json!(3), 3), succeeded.clone(), running(1), 1, 0),
        (spec(json!(5), 1), json!({}), running(3), 0, 2),
        (spec(json!(1), 3), succeeded, running(2), 0, 2),
        (spec(json!(2000), 2000), json!({}), running(0), 500, 0),
        (spec(json!(1), 0), json!({}), running(700), 0, 500),
        (json!({ "parallelism": 2 }), json!({}), vec![being_deleted(pod("a", "Running"))], 2, 0),
        (replaces_failed, json!({}), vec![being_deleted(pod("a", "Running"))], 1, 0),
    ] {
        let text = format!("{spec} {status}");
        match plan_summary(&state(spec, status, pods), Failures::default()) {
            Ok(names) => assert_eq!((0, names.len()), (created, deleted), "{text}"),
            Err(indexes) => assert_eq!((indexes.len(), 0), (created, deleted), "{text}"),
        }
    }
    let suspended = json!({ "parallelism": 9, "suspend": true });
    let found = plan_summary(&state(suspended, json!({}), running(2)), Failures::default());
    assert_eq!(found, Ok(vec!["p0".to_owned(), "p1".to_owned()]));
}

/// The API server refuses a status with more ready pods than active ones.
#[test]
fn active_pods_count_while_others_wait_for_the_back_off() {
    let ready = |name: &str, index: i32| {
        let mut pod = indexed(name, "Running", index);
        pod["status"]["conditions"] = json!([{ "type": "Ready", "status": "True" }]);
        pod
    };
    let failed = with_exit_code(with_failure_counts(indexed("c", "Failed", 2), 0, 0), 1, 4);
    let plain = json!({ "completions": 3, "parallelism": 3 });
    let per_index = indexed_spec(3, json!({ "backoffLimitPerIndex": 5 }));
    for (spec, seconds) in [(plain, 6), (indexed_spec(3, json!({})), 6), (per_index, 6)] {
        let pods = vec![ready("a", 0), ready("b", 1), failed.clone()];
        let mut state = state(spec.clone(), json!({}), pods);
        let failures = Failures::default().with_finished(state.spec(), &state.finished_pods());
        let plan = plan(&state, failures, now());
        assert_eq!(plan, Plan::Wait(Duration::from_secs(seconds)), "{spec}");
        let client = block_on(answering(|line| panic!("nothing is to be asked: {line}")));
        let (jobs, _) = controller(client);
        let key = state.job.meta.key();
        let (active, ..) = block_on(jobs.manage(&key, &mut state, plan, None));
        assert_eq!((active, state.ready), (2, 2), "{spec}");
    }
}

/// A manager that starts has no record of the failures before it.
#[test]
fn failures_before_the_start_of_the_manager_delay_new_pods() {
    let counted = |value: Value| with_member(value, "/metadata/finalizers", json!([]));
    let failed = |name: &str, ago: i64| with_exit_code(pod(name, "Failed"), 1, ago);
    let succeeded = |name: &str, ago: i64| with_exit_code(pod(name, "Succeeded"), 0, ago);
    let plain = json!({ "completions": 9 });
    let policy = json!({ "podFailurePolicy": { "rules": [] } });
    let in_status = json!({ "failed": 1, "uncountedTerminatedPods": { "failed": ["b"] } });
    // The Job, its status, its pods, and the seconds to wait.
    for (spec, status, pods, seconds) in [
        (&plain, json!({}), vec![], 0),
        (&plain, json!({ "failed": 1 }), vec![counted(failed("a", 4))], 6),
        (
            &plain,
            json!({ "failed": 2 }),
            vec![counted(failed("a", 30)), counted(failed("b", 4))],
            16,
        ),
        // Each failure counts once: one that is counted, one in the status, and a new one.
        (&plain, in_status, vec![counted(failed("a", 30)), failed("b", 20), failed("c", 4)], 36),
        (&plain, json!({ "failed": 1 }), vec![counted(failed("a", 8)), succeeded("b", 4)], 0),
        (
            &plain,
            json!({ "failed": 2, "succeeded": 1 }),
            vec![counted(failed("a", 8)), counted(succeeded("b", 6)), counted(failed("c", 4))],
            6,
        ),
        // One that was too many has failed after its deletion.
        (&plain, json!({}), vec![being_deleted(counted(failed("a", 4)))], 0),
        (&plain, json!({}), vec![being_deleted(counted(pod("a", "Running")))], 0),
        (&policy, json!({}), vec![being_deleted(failed("a", 4))], 6),
        (&policy, json!({}), vec![being_deleted(pod("a", "Running"))], 0),
        (&indexed_spec(2, json!({})), json!({}), vec![counted(failed("a", 4))], 0),
        (
            &indexed_spec(2, json!({})),
            json!({}),
            vec![counted(with_exit_code(indexed("a", "Failed", 1), 1, 4))],
            6,
        ),
    ] {
        let text = format!("{spec} {status} {pods:?}");
        let pods = pods.into_iter().map(|pod| Arc::new(serde_json::from_value(pod).unwrap()));
        let mut pods: Vec<Arc<Pod>> = pods.collect();
        let job = job(spec.clone(), status);
        let (state, newly) = SyncState::new(job.clone(), pods.clone(), HashSet::new());
        let (store, key) = (BackoffStore::default(), job.meta.key());
        let failures = store.failures(&key, &state, &newly);
        assert_eq!(failures.wait(now()), Duration::from_secs(seconds), "{text}");
        // From then on only pods that finish newly change the record: the status has the others.
        store.set(&key, failures);
        let uids = |pods: &[Arc<Pod>]| -> Vec<Uid> {
            pods.iter().map(|pod| pod.meta.uid.clone()).collect()
        };
        let mut job = Job::clone(&job);
        let uncounted = job.status.uncounted_terminated_pods.get_or_insert_default();
        uncounted.failed.extend(uids(&newly.failed));
        uncounted.succeeded.extend(uids(&newly.succeeded));
        let job = Arc::new(job);
        let (state, newly) = SyncState::new(job.clone(), pods.clone(), HashSet::new());
        assert_eq!(store.failures(&key, &state, &newly), failures, "{text}");
        let new = match spec.get("completionMode") {
            Some(_) => indexed("new", "Failed", 1),
            None => pod("new", "Failed"),
        };
        pods.push(Arc::new(serde_json::from_value(with_exit_code(new, 1, 0)).unwrap()));
        let (state, newly) = SyncState::new(job, pods, HashSet::new());
        let next = store.failures(&key, &state, &newly).wait(now());
        assert!(next > failures.wait(now()), "{text}: one more failure");
    }
}

#[test]
fn the_least_advanced_pods_are_deleted_first() {
    let ready = |value: Value, ago: i64| {
        let condition =
            json!({ "type": "Ready", "status": "True", "lastTransitionTime": seconds_ago(ago) });
        with_member(value, "/status", json!({ "phase": "Running", "conditions": [condition] }))
    };
    let restarted = |value: Value| {
        let containers = json!([{ "name": "c", "restartCount": 3 }]);
        with_member(
            value,
            "/status",
            json!({ "phase": "Running", "containerStatuses": containers }),
        )
    };
    let pods = vec![
        ready(pod("ready long", "Running"), 90),
        ready(pod("ready", "Running"), 10),
        pod("old", "Running"),
        with_member(pod("young", "Running"), "/metadata/creationTimestamp", json!(seconds_ago(5))),
        restarted(pod("restarted", "Running")),
        pod("unknown", "Lost"),
        pod("pending", "Pending"),
        with_member(pod("unbound", "Running"), "/spec/nodeName", json!("")),
    ];
    let order = ["unbound", "pending", "unknown", "restarted", "young", "old", "ready"];
    let found =
        plan_summary(&state(json!({ "parallelism": 1 }), json!({}), pods), Failures::default());
    assert_eq!(found, Ok(order.map(str::to_owned).to_vec()));
}

#[test]
fn indexes_have_one_pod_each() {
    let names = |names: &[&str]| Ok(names.iter().map(|name| (*name).to_owned()).collect());
    let indexes = |indexes: &[i32]| Err(indexes.iter().map(|index| Some(*index)).collect());
    let policy = |name: &str| json!({ "podReplacementPolicy": name });
    let per_index = json!({ "backoffLimitPerIndex": 1 });
    let running = |name: &str, index: i32| indexed(name, "Running", index);
    for (spec, status, pods, expected) in [
        (indexed_spec(3, json!({})), json!({}), vec![], indexes(&[0, 1, 2])),
        (
            indexed_spec(5, json!({})),
            json!({ "completedIndexes": "1,2" }),
            vec![running("a", 3)],
            indexes(&[0, 4]),
        ),
        (
            indexed_spec(3, json!({})),
            json!({}),
            vec![running("a", 0), running("b", 0), running("c", 7), pod("d", "Running")],
            names(&["c", "d", "a"]),
        ),
        (
            indexed_spec(2, policy("TerminatingOrFailed")),
            json!({}),
            vec![being_deleted(running("a", 0))],
            indexes(&[0, 1]),
        ),
        (
            indexed_spec(2, policy("Failed")),
            json!({}),
            vec![being_deleted(running("a", 0))],
            indexes(&[1]),
        ),
        (
            indexed_spec(4, per_index.clone()),
            json!({ "failedIndexes": "2", "completedIndexes": "0" }),
            vec![running("a", 1)],
            indexes(&[3]),
        ),
        // Index 0 has to wait, index 1 need not.
        (
            indexed_spec(2, per_index.clone()),
            json!({}),
            vec![with_exit_code(indexed("a", "Failed", 0), 1, 4)],
            indexes(&[1]),
        ),
        (
            indexed_spec(2, per_index),
            json!({ "completedIndexes": "1" }),
            vec![with_exit_code(indexed("a", "Failed", 0), 1, 4)],
            names(&["wait 6"]),
        ),
    ] {
        let text = format!("{spec} {status}");
        assert_eq!(
            plan_summary(&state(spec, status, pods), Failures::default()),
            expected,
            "{text}"
        );
    }
}

#[test]
fn a_new_pod_of_an_index_has_the_failures_of_its_predecessors() {
    let rules = json!({ "rules": [
        { "action": "Ignore", "onExitCodes": { "operator": "In", "values": [7] } },
    ] });
    let spec = indexed_spec(2, json!({ "backoffLimitPerIndex": 5, "podFailurePolicy": rules }));
    let pods = vec![
        with_exit_code(with_failure_counts(indexed("a", "Failed", 0), 2, 1), 1, 900),
        with_exit_code(with_failure_counts(indexed("older", "Failed", 0), 1, 1), 1, 950),
        with_exit_code(with_failure_counts(indexed("b", "Failed", 1), 2, 1), 7, 900),
    ];
    let Plan::Create(wanted) = plan(&state(spec, json!({}), pods), Failures::default(), now())
    else {
        panic!("both indexes are free");
    };
    let failures = |counted, ignored| Some(IndexFailures { counted, ignored });
    assert_eq!(
        wanted,
        [
            Wanted { index: Some(0), failures: failures(3, 1) },
            Wanted { index: Some(1), failures: failures(2, 2) },
        ]
    );
}

#[test]
fn failures_delay_the_pods_that_replace_them() {
    let failed: Arc<Pod> =
        Arc::new(serde_json::from_value(with_exit_code(pod("a", "Failed"), 1, 3)).unwrap());
    let finished = FinishedPods { succeeded: Vec::new(), failed: vec![failed.clone(), failed] };
    let failures = Failures::default().with_finished(&JobSpec::default(), &finished);
    let state = state(json!({ "parallelism": 2, "backoffLimit": 6 }), json!({}), vec![]);
    assert_eq!(plan_summary(&state, failures), Ok(vec!["wait 17".to_owned()]));
}

fn names(uids: &[Uid]) -> Vec<String> {
    uids.iter().map(Uid::to_string).collect()
}

#[test]
fn finished_pods_are_named_once_and_counted_when_they_are_released() {
    let status = json!({
        "succeeded": 1,
        "uncountedTerminatedPods": { "succeeded": ["gone", "a"], "failed": ["lost"] },
    });
    let pods = vec![
        pod("a", "Succeeded"),
        pod("b", "Succeeded"),
        pod("c", "Failed"),
        pod("d", "Running"),
        being_deleted(pod("e", "Running")),
    ];
    let mut state = state(json!({ "completions": 9 }), status, pods);
    let found = plan_status(&mut state, now());
    assert!(found.flush && !found.is_full);
    let released: Vec<&str> = found.release.iter().map(|pod| &*pod.meta.name).collect();
    assert_eq!(released, ["a", "b", "c", "e"]);
    let uncounted = state.uncounted().clone();
    assert_eq!(names(&uncounted.succeeded), ["a", "b"]);
    assert_eq!(names(&uncounted.failed), ["c", "e"]);
    assert_eq!((state.status.succeeded, state.status.failed), (2, 1), "those that are gone");

    let mut tracked = found.tracked;
    tracked.remove(&Uid::new("a"));
    tracked.remove(&Uid::new("c"));
    assert!(count_released(&mut state.status, &tracked));
    assert!(!count_released(&mut state.status, &tracked));
    assert_eq!((state.status.succeeded, state.status.failed), (3, 2));
    assert_eq!(names(&state.uncounted().succeeded), ["b"]);
}

#[test]
fn nothing_is_written_for_pods_that_run() {
    let status = json!({ "uncountedTerminatedPods": {} });
    let mut state = state(json!({ "completions": 9 }), status, vec![pod("a", "Running")]);
    let found = plan_status(&mut state, now());
    assert!(!found.flush && found.release.is_empty());
    assert!(!finish(&mut state, now()));
}

#[test]
fn indexes_are_counted_in_order_until_the_status_is_full() {
    let pods = (0..600).rev().map(|index| indexed(&format!("p{index}"), "Succeeded", index));
    let mut state = state(indexed_spec(600, json!({})), json!({}), pods.collect());
    let found = plan_status(&mut state, now());
    assert!(found.is_full && found.flush);
    assert_eq!(found.release.len(), 500);
    assert_eq!(&*found.release[499].meta.name, "p499");
    // As upstream: all indexes seen are written, of which the first 500 pods are released.
    assert_eq!(&*state.status.completed_indexes, "0-599");
}

#[test]
fn the_failed_pod_of_an_index_is_kept_until_its_next_pod() {
    let spec = || indexed_spec(2, json!({ "backoffLimitPerIndex": 3 }));
    let failed = || with_exit_code(indexed("a", "Failed", 0), 1, 3);
    let mut waits = state(spec(), json!({}), vec![failed()]);
    assert!(plan_status(&mut waits, now()).release.is_empty());
    assert!(waits.uncounted().failed.is_empty());
    let replaced = vec![failed(), with_failure_counts(indexed("b", "Pending", 0), 1, 0)];
    let mut goes = state(spec(), json!({}), replaced);
    assert_eq!(plan_status(&mut goes, now()).release.len(), 1);
    assert_eq!(names(&goes.uncounted().failed), ["a"]);
    assert_eq!(goes.status.failed_indexes.as_deref(), Some(""));
}

#[test]
fn a_job_that_fails_counts_its_pods_as_failed_and_one_that_succeeds_does_not() {
    let condition_of = |kind: &str| condition(kind, true, "r", "m", now());
    for (kind, failed, interim, last) in [
        ("FailureTarget", vec!["a", "b"], vec!["FailureTarget"], "Failed"),
        ("Failed", vec!["a", "b"], vec![], "Failed"),
        ("SuccessCriteriaMet", vec!["a"], vec!["SuccessCriteriaMet"], "Complete"),
    ] {
        let pods = vec![pod("a", "Failed"), pod("b", "Running")];
        let mut state = state(json!({ "completions": 1 }), json!({}), pods);
        state.ending = Some(condition_of(kind));
        let found = plan_status(&mut state, now());
        assert_eq!(found.release.len(), 2, "{kind}");
        assert_eq!(names(&state.uncounted().failed), failed, "{kind}");
        let types = |state: &SyncState| -> Vec<String> {
            state.status.conditions.iter().map(|known| known.r#type.to_string()).collect()
        };
        assert_eq!(types(&state), interim);

        assert!(!finish(&mut state, now()), "{kind}: pods are not counted yet");
        assert!(tracking::count_released(&mut state.status, &HashSet::new()));
        state.terminating = 1;
        assert!(!finish(&mut state, now()), "{kind}: a pod still terminates");
        state.terminating = 0;
        assert!(finish(&mut state, now()));
        assert_eq!(types(&state).last().map(String::as_str), Some(last));
        assert_eq!(state.status.completion_time.is_some(), last == "Complete");
    }
}

#[test]
fn ignored_failures_are_released_and_not_counted() {
    let rules = json!({ "rules": [
        { "action": "Ignore", "onExitCodes": { "operator": "In", "values": [7] } },
        { "action": "Count", "onExitCodes": { "operator": "In", "values": [8] } },
    ] });
    let spec = json!({ "completions": 9, "podFailurePolicy": rules });
    let pods =
        vec![with_exit_code(pod("a", "Failed"), 7, 3), with_exit_code(pod("b", "Failed"), 8, 3)];
    let mut state = state(spec, json!({}), pods);
    let found = plan_status(&mut state, now());
    assert_eq!(found.release.len(), 2);
    assert_eq!(names(&state.uncounted().failed), ["b"]);
    assert_eq!(found.actions.into_iter().collect::<Vec<_>>(), [("Count", 1), ("Ignore", 1)]);
}

#[test]
fn conditions_are_added_when_true_and_changed_where_they_are() {
    let mut conditions = Vec::new();
    let suspended =
        |is_true: bool, reason: &str| condition("Suspended", is_true, reason, "", now());
    assert!(!ensure_condition(&mut conditions, suspended(false, "JobResumed")));
    assert!(ensure_condition(&mut conditions, suspended(true, "JobSuspended")));
    assert!(!ensure_condition(&mut conditions, suspended(true, "JobSuspended")));
    assert!(ensure_condition(&mut conditions, suspended(false, "JobResumed")));
    assert_eq!(conditions, [suspended(false, "JobResumed")]);
}
