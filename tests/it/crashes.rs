//! A manager that dies at any of its writes leaves a state from which the next one reaches the same
//! final state.

use std::sync::Arc;
use std::time::Duration;

use kube_controller_manager::client::{Delete, ListOptions, Patch};
use kube_controller_manager::clock::FakeClock;
use kube_controller_manager::objects::{
    ControllerRevision, Node, ObjectKey, PersistentVolumeClaim, Pod, Resource, ResourceType,
    VolumeAttachment,
};
use kube_controller_manager::options::Options;
use kube_controller_manager::task::{StopToken, Task, spawn};
use sandbox::faults::Death;
use serde_json::{Value, json};

use crate::env::*;

/// A scenario whose final state a crash must not change.
pub struct Scenario<'a> {
    /// The controllers, by the names of their rows.
    pub controllers: &'a [&'a str],
    /// The objects of one run. Their names begin with the one given.
    pub objects: &'a dyn Fn(&str) -> Vec<Value>,
    /// The changes of the first object, in order. Before each, a manager that does not crash brings
    /// the objects to their final state; crashes come after the last change.
    pub changes: Vec<Mutation>,
    /// The final state of one run, from its name and the objects of the cluster: without uids,
    /// versions and times, so that the final states of all runs are equal. An error: it is not
    /// reached yet.
    pub end: &'a dyn Fn(&str, &Cluster) -> Result<Value, String>,
}

/// A change of a scenario's object.
#[derive(Clone)]
pub enum Mutation {
    /// A merge patch.
    Patch(Value),
    Delete,
    /// A merge patch of the status of each of its pods.
    PodStatus(Value),
}

impl Mutation {
    async fn apply(&self, env: &Env, resource: &ResourceType, name: &str) {
        let key = ObjectKey::new("default", name);
        let verbs = env.client.resource(resource);
        match self {
            Mutation::Patch(change) => {
                let patch = Patch::Merge(change.clone());
                verbs.patch::<Value>(&key, &patch).await.expect("patch");
            }
            Mutation::Delete => verbs.delete(&key, Delete::new()).await.expect("delete"),
            Mutation::PodStatus(status) => {
                let patch = Patch::Merge(json!({ "status": status }));
                let pods = env.client.resource(&Pod::RESOURCE).subresource("status");
                for pod in Cluster::read(env, &[]).await.pods_of(name) {
                    let pod = pod["metadata"]["name"].as_str().expect("a name");
                    let key = ObjectKey::new("default", pod);
                    pods.patch::<Value>(&key, &patch).await.expect("patch");
                }
            }
        }
    }
}

/// The objects of the cluster, as a scenario reads them.
pub struct Cluster {
    pub pods: Vec<Value>,
    pub nodes: Vec<Value>,
    pub attachments: Vec<Value>,
    pub claims: Vec<Value>,
    revisions: Vec<Value>,
    objects: Vec<Value>,
}

impl Cluster {
    async fn read(env: &Env, kinds: &[ResourceType]) -> Cluster {
        let list = async |resource: &ResourceType| -> Vec<Value> {
            let verbs = env.client.resource(resource);
            verbs.list(Some("default"), &ListOptions::default()).await.expect("list").items
        };
        let mut objects = Vec::new();
        for kind in kinds {
            objects.extend(list(kind).await);
        }
        Cluster {
            pods: list(&Pod::RESOURCE).await,
            nodes: list(&Node::RESOURCE).await,
            attachments: list(&VolumeAttachment::RESOURCE).await,
            claims: list(&PersistentVolumeClaim::RESOURCE).await,
            revisions: list(&ControllerRevision::RESOURCE).await,
            objects,
        }
    }

    /// The object of a scenario.
    pub fn object(&self, name: &str) -> Result<&Value, String> {
        let found = self.objects.iter().find(|object| object["metadata"]["name"] == name);
        found.ok_or_else(|| format!("{name} is not there"))
    }

    /// The object of a kind with this name.
    pub fn find(&self, kind: &str, name: &str) -> Option<&Value> {
        // Lists leave the kind out.
        self.objects.iter().find(|object| {
            object["metadata"]["name"] == name
                && object["metadata"]["namespace"].is_string() == is_namespaced(kind)
        })
    }

    /// The volumes of the claim of this uid.
    pub fn volumes_of(&self, claim: &Value) -> Vec<&Value> {
        let of_claim =
            |object: &&Value| claim.is_string() && object["spec"]["claimRef"]["uid"] == *claim;
        self.objects.iter().filter(of_claim).collect()
    }

    /// The objects, pods not included, that the object of this name controls.
    pub fn owned_by(&self, name: &str) -> Vec<&Value> {
        let owner = |object: &&Value| object["metadata"]["ownerReferences"][0]["name"] == name;
        self.objects.iter().filter(owner).collect()
    }

    /// The pods that the object of this name controls.
    pub fn pods_of(&self, name: &str) -> Vec<&Value> {
        let owner = |pod: &&Value| pod["metadata"]["ownerReferences"][0]["name"] == name;
        self.pods.iter().filter(owner).collect()
    }

    /// The number and the image of each revision that the object of this name controls, sorted.
    pub fn revisions_of(&self, name: &str) -> Vec<(i64, &str)> {
        let owner = |object: &&Value| object["metadata"]["ownerReferences"][0]["name"] == name;
        let brief = |object| {
            let image = "/data/spec/template/spec/containers/0/image";
            let image = Value::pointer(object, image).and_then(Value::as_str);
            (object["revision"].as_i64().unwrap_or_default(), image.unwrap_or_default())
        };
        let mut revisions: Vec<_> = self.revisions.iter().filter(owner).map(brief).collect();
        revisions.sort();
        revisions
    }
}

/// Controllers in the test's process; `name` is the program in their user agent.
pub struct Manager {
    process: InProcess,
    running: Vec<Task<()>>,
}

impl Manager {
    pub fn start(
        env: &TestCluster,
        clock: &Arc<FakeClock>,
        program: &str,
        controllers: &[&str],
        options: &Options,
    ) -> Manager {
        let client = env.client.named(program);
        let process = InProcess::with_client(env, client, clock.clone(), options.clone());
        let made =
            controllers.iter().map(|name| controller_of(name, &process.cx)).collect::<Vec<_>>();
        process.factory.start(&process.stop);
        let run = |controller: kube_controller_manager::controllers::Controller| {
            spawn(controller.run(StopToken::clone(&process.stop)))
        };
        let running = made.into_iter().map(run).collect();
        Manager { process, running }
    }

    /// Stops it without waiting for running syncs.
    pub async fn abort(self) {
        self.process.stop.stop();
        drop(self.running);
        self.process.factory.shutdown().await;
    }
}

/// Runs `scenario` with a manager that dies at its first write and another one that continues, then
/// with ones that die at later writes, until one does not die: at the second, third, fifth, ninth and
/// so on, and with `LONG_TESTS` at each. Every run must end in the final state of that last run.
/// Returns the number of writes of the last run.
pub async fn survives_every_write(env: &Env, scenario: &Scenario<'_>) -> usize {
    survives_every_write_with(env, scenario, &env.options()).await
}

/// [`survives_every_write`] with options of all managers.
pub async fn survives_every_write_with(
    env: &Env,
    scenario: &Scenario<'_>,
    options: &Options,
) -> usize {
    survives_every_write_at(env, scenario, options, EVERY_SECOND).await
}

/// The number of writes before the next crash, after one behind `writes`.
fn next_crash(writes: usize) -> usize {
    if long_tests() { writes + 1 } else { (2 * writes).max(writes + 1) }
}

/// The number of runs of [`survives_every_write`] on this cluster, in each of which one claim was
/// made. It does not follow from the writes of the last run: two changes may be one write there.
pub async fn runs(env: &Env) -> usize {
    Cluster::read(env, &[]).await.claims.len()
}

/// The time by which the clock advances before the next read of the cluster, given this one.
type Pace = fn(&Cluster) -> Duration;

const EVERY_SECOND: Pace = |_| Duration::from_secs(1);

async fn survives_every_write_at(
    env: &Env,
    scenario: &Scenario<'_>,
    options: &Options,
    pace: Pace,
) -> usize {
    let faults = env.cluster.sandbox.faults();
    let clock = FakeClock::new(env.clock.now());
    let kinds: Vec<ResourceType> = (scenario.objects)("x").iter().map(resource_of).collect();
    let mut crashed: Vec<(usize, Value)> = Vec::new();
    let mut writes = 0;
    let (last, made) = loop {
        let (name, mortal) = (format!("run-{writes}"), format!("mortal-{writes}"));
        faults.allow_writes(&mortal, writes, Death::Before);
        let objects = (scenario.objects)(&name);
        for object in &objects {
            create(&env.client, object.clone()).await;
        }
        let end = async || {
            let cluster = Cluster::read(env, &kinds).await;
            clock.advance(pace(&cluster));
            (scenario.end)(&name, &cluster)
        };
        for (at, change) in scenario.changes.iter().enumerate() {
            let living = format!("living-{writes}-{at}");
            let first = Manager::start(env, &clock, &living, scenario.controllers, options);
            eventually(&env.clock, &format!("{name} before its change {at}"), end).await;
            first.abort().await;
            change.apply(env, &kinds[0], &name).await;
        }
        let manager = Manager::start(env, &clock, &mortal, scenario.controllers, options);
        eventually(&env.clock, &format!("{mortal} dies, or reaches the end"), || async {
            if faults.has_died(&mortal) { Ok(()) } else { end().await.map(drop) }
        })
        .await;
        let died = faults.has_died(&mortal);
        manager.abort().await;
        let heir = died.then(|| {
            let name = format!("heir-{writes}");
            Manager::start(env, &clock, &name, scenario.controllers, options)
        });
        let what = format!("the end after a crash behind {writes} writes");
        let reached = eventually(&env.clock, &what, end).await;
        let Some(heir) = heir else { break (reached, faults.writes(&mortal)) };
        heir.abort().await;
        crashed.push((writes, reached));
        writes = next_crash(writes);
    };
    for (writes, end) in &crashed {
        assert_eq!(*end, last, "after a crash behind {writes} writes");
    }
    made
}

/// The flag of a manager that syncs its claims and volumes every second instead of every fifteen.
pub const QUICK_BINDER: &str = "--pvclaimbinder-sync-period=1s";

/// A manager that only binds claims, and that does not crash.
pub fn binder(env: &TestCluster) -> sandbox::cluster::Manager {
    let only = "--controllers=persistentvolume-binder-controller";
    env.manager("binder", &[only, QUICK_BINDER])
}

fn resource_of(object: &Value) -> ResourceType {
    let text = |at: &str| object[at].as_str().expect("a kind").to_owned();
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    let (group, version) = api_version.rsplit_once('/').unwrap_or(("", &api_version));
    ResourceType {
        group: group.to_owned().into(),
        version: version.to_owned().into(),
        plural: format!("{}s", kind.to_lowercase()).into(),
        namespaced: is_namespaced(&kind),
        kind: kind.into(),
    }
}

pub fn job(name: &str, spec: Value, annotations: Value) -> Value {
    let mut spec = spec;
    spec["template"] = json!({
        "metadata": { "annotations": annotations },
        "spec": {
            "restartPolicy": "Never", "terminationGracePeriodSeconds": 0,
            "containers": [{ "name": "main", "image": "x:1" }],
        },
    });
    let metadata = json!({ "name": name, "namespace": "default" });
    json!({ "apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec })
}

/// The status of a Job that has finished, without times, and the phases of its pods.
pub fn finished(name: &str, cluster: &Cluster) -> Result<Value, String> {
    let mut status = cluster.object(name)?["status"].clone();
    let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    let last = conditions.last().map(|condition| condition["type"].clone()).unwrap_or_default();
    if last != "Complete" && last != "Failed" {
        return Err(status.to_string());
    }
    let pods = cluster.pods_of(name);
    if pods.iter().any(|pod| pod["metadata"]["finalizers"].is_array()) {
        return Err(format!("{pods:#?}"));
    }
    let kinds = conditions.iter().map(|it| json!([it["type"], it["status"], it["reason"]]));
    status["conditions"] = kinds.collect();
    for time in ["startTime", "completionTime"] {
        status[time] = (!status[time].is_null()).into();
    }
    let mut pods: Vec<String> = pods.iter().map(|pod| pod["status"]["phase"].to_string()).collect();
    pods.sort();
    Ok(json!({ "status": status, "pods": pods }))
}

pub fn job_survives(name: &str, spec: Value, annotations: Value, expected: Value, at_least: usize) {
    job_survives_at(EVERY_SECOND, name, spec, annotations, expected, at_least);
}

fn job_survives_at(
    pace: Pace,
    name: &str,
    spec: Value,
    annotations: Value,
    expected: Value,
    at_least: usize,
) {
    Env::run(name, async |env| {
        let scenario = Scenario {
            controllers: &["job-controller"],
            objects: &|name| vec![job(name, spec.clone(), annotations.clone())],
            changes: vec![],
            end: &|name, cluster| {
                let end = finished(name, cluster)?;
                assert_eq!(end, expected, "{name}");
                Ok(end)
            },
        };
        let options = env.options();
        let writes = survives_every_write_at(env, &scenario, &options, pace).await;
        assert!(writes >= at_least, "{writes} writes");
    });
}

#[test]
fn a_job_that_completes_survives_a_crash_at_every_write() {
    let status = json!({
        "conditions": [
            ["SuccessCriteriaMet", "True", "CompletionsReached"],
            ["Complete", "True", "CompletionsReached"],
        ],
        "startTime": true, "completionTime": true, "succeeded": 3, "ready": 0, "terminating": 0,
        "uncountedTerminatedPods": {},
    });
    let done = "\"Succeeded\"";
    job_survives(
        "crash-complete",
        json!({ "completions": 3, "parallelism": 2 }),
        json!({ "sandbox/run": "exit 0" }),
        json!({ "status": status, "pods": [done, done, done] }),
        9,
    );
}

#[test]
fn a_job_of_indexes_survives_a_crash_at_every_write() {
    let status = json!({
        "conditions": [
            ["FailureTarget", "True", "FailedIndexes"], ["Failed", "True", "FailedIndexes"],
        ],
        "startTime": true, "completionTime": false, "succeeded": 1, "failed": 2, "ready": 0,
        "terminating": 0, "completedIndexes": "0", "failedIndexes": "1",
        "uncountedTerminatedPods": {},
    });
    let (done, failed) = ("\"Succeeded\"", "\"Failed\"");
    job_survives(
        "crash-indexed",
        json!({
            "completions": 2, "parallelism": 2, "completionMode": "Indexed",
            "backoffLimitPerIndex": 1,
        }),
        json!({ "sandbox/run": "exit 0", "sandbox/run.index-1": "exit 1" }),
        json!({ "status": status, "pods": [failed, failed, done] }),
        9,
    );
}

#[test]
fn a_job_with_a_deadline_survives_a_crash_at_every_write() {
    let status = json!({
        "conditions": [
            ["FailureTarget", "True", "DeadlineExceeded"], ["Failed", "True", "DeadlineExceeded"],
        ],
        "startTime": true, "completionTime": false, "failed": 2, "ready": 0, "terminating": 0,
        "uncountedTerminatedPods": {},
    });
    job_survives_at(
        // Passes the deadline once both pods are created.
        |cluster| Duration::from_secs(if cluster.pods.len() == 2 { 3_600 } else { 1 }),
        "crash-deadline",
        json!({ "completions": 2, "parallelism": 2, "activeDeadlineSeconds": 3_600 }),
        json!({}),
        json!({ "status": status, "pods": [] }),
        8,
    );
}

#[test]
fn a_job_with_a_success_policy_survives_a_crash_at_every_write() {
    let expected = json!({
        "status": {
            "conditions": [
                ["SuccessCriteriaMet", "True", "SuccessPolicy"],
                ["Complete", "True", "SuccessPolicy"],
            ],
            "startTime": true, "completionTime": true, "succeeded": 1, "ready": 0,
            "terminating": 0, "completedIndexes": "0", "uncountedTerminatedPods": {},
        },
        "pods": ["\"Succeeded\""],
    });
    let spec = json!({
        "completions": 2, "parallelism": 2, "completionMode": "Indexed",
        "successPolicy": { "rules": [{ "succeededIndexes": "0" }] },
    });
    let runs = json!({ "sandbox/run": "sleep inf", "sandbox/run.index-0": "exit 0" });
    Env::run("crash-success", async |env| {
        let scenario = Scenario {
            controllers: &["job-controller"],
            objects: &|name| vec![job(name, spec.clone(), runs.clone())],
            changes: vec![],
            end: &|name, cluster| {
                let mut end = finished(name, cluster)?;
                // As upstream, the other pod counts as failed when the manager dies between its
                // deletion and the removal of its finalizer.
                if let Some(status) = end["status"].as_object_mut() {
                    status.remove("failed");
                }
                assert_eq!(end, expected, "{name}");
                Ok(end)
            },
        };
        let writes = survives_every_write(env, &scenario).await;
        assert!(writes >= 7, "{writes} writes");
    });
}

#[test]
fn jobs_with_a_pod_failure_policy_survive_a_crash_at_every_write() {
    let exits = |action: &str| {
        json!({ "rules": [
            { "action": action, "onExitCodes": { "operator": "In", "values": [42] } },
        ] })
    };
    let fails =
        |reason: &str| json!([["FailureTarget", "True", reason], ["Failed", "True", reason]]);
    let (done, failed) = ("\"Succeeded\"", "\"Failed\"");
    job_survives(
        "crash-fail-job",
        json!({ "podFailurePolicy": exits("FailJob") }),
        json!({ "sandbox/run": "exit 42" }),
        json!({
            "status": {
                "conditions": fails("PodFailurePolicy"), "startTime": true,
                "completionTime": false, "failed": 1, "ready": 0, "terminating": 0,
                "uncountedTerminatedPods": {},
            },
            "pods": [failed],
        }),
        5,
    );
    job_survives(
        "crash-fail-index",
        json!({
            "completions": 2, "parallelism": 2, "completionMode": "Indexed",
            "backoffLimitPerIndex": 3, "podFailurePolicy": exits("FailIndex"),
        }),
        json!({ "sandbox/run": "exit 0", "sandbox/run.index-1": "exit 42" }),
        json!({
            "status": {
                "conditions": fails("FailedIndexes"), "startTime": true, "completionTime": false,
                "succeeded": 1, "failed": 1, "ready": 0, "terminating": 0, "completedIndexes": "0",
                "failedIndexes": "1", "uncountedTerminatedPods": {},
            },
            "pods": [failed, done],
        }),
        7,
    );
}

#[test]
fn a_job_that_is_suspended_or_resumed_survives_a_crash_at_every_write() {
    let end = |name: &str, cluster: &Cluster| {
        let job = cluster.object(name)?;
        let (status, pods) = (&job["status"], cluster.pods_of(name));
        let suspended = job["spec"]["suspend"] == true;
        let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
        let says = |condition: &Value| {
            let is = if suspended { "True" } else { "False" };
            condition["type"] == "Suspended" && condition["status"] == is
        };
        let said = conditions.iter().any(says) || !suspended && conditions.is_empty();
        let (ready, count) = if suspended { (0, 0) } else { (2, 2) };
        let settled = status["ready"] == ready && status["terminating"] == 0;
        if !said || !settled || pods.len() != count {
            return Err(format!("{job} {pods:#?}"));
        }
        Ok(json!({
            "startTime": !status["startTime"].is_null(), "active": status["active"],
            "failed": status["failed"], "uncounted": status["uncountedTerminatedPods"],
            "conditions": conditions.len(),
        }))
    };
    for (test, suspended) in [("crash-suspend", false), ("crash-resume", true)] {
        Env::run(test, async |env| {
            let spec = json!({ "completions": 2, "parallelism": 2, "suspend": suspended });
            let runs = json!({ "sandbox/run": "sleep inf" });
            let scenario = Scenario {
                controllers: &["job-controller"],
                objects: &|name| vec![job(name, spec.clone(), runs.clone())],
                changes: vec![Mutation::Patch(json!({ "spec": { "suspend": !suspended } }))],
                end: &end,
            };
            let writes = survives_every_write(env, &scenario).await;
            assert!(writes >= 4, "{test}: {writes} writes");
        });
    }
}

/// An object of `kind` whose pods run one container.
pub fn set_of_pods(kind: &str, name: &str, spec: Value) -> Value {
    let mut spec = spec;
    spec["selector"] = json!({ "matchLabels": { "app": name } });
    spec["template"] = json!({
        "metadata": { "labels": { "app": name } },
        "spec": { "containers": [{ "name": "main", "image": "x:1" }] },
    });
    let metadata = json!({ "name": name, "namespace": "default" });
    json!({ "apiVersion": "apps/v1", "kind": kind, "metadata": metadata, "spec": spec })
}

/// The images of the pods that stay, by the pods' names without the object's.
pub fn images(name: &str, cluster: &Cluster) -> Vec<String> {
    let pods = cluster.pods_of(name).into_iter();
    let stay = pods.filter(|pod| pod["metadata"]["deletionTimestamp"].is_null());
    let mut images: Vec<String> = stay
        .map(|pod| {
            let own = pod["metadata"]["name"].as_str().unwrap_or_default();
            let ordinal = own.strip_prefix(name).filter(|rest| rest.len() == 2).unwrap_or("");
            format!("{ordinal} {}", pod["spec"]["containers"][0]["image"])
        })
        .collect();
    images.sort();
    images
}

/// The status of a set, if its observed generation is the current one and these counters are
/// `count`.
pub fn counted<'a>(
    name: &str,
    cluster: &'a Cluster,
    counters: &[&str],
    count: i64,
) -> Result<&'a Value, String> {
    let object = cluster.object(name)?;
    let status = &object["status"];
    let observed = status["observedGeneration"] == object["metadata"]["generation"];
    let complete = counters.iter().all(|counter| status[counter] == count);
    if observed && complete { Ok(status) } else { Err(object.to_string()) }
}

#[test]
fn a_stateful_set_survives_a_crash_at_every_write() {
    let end = |name: &str, cluster: &Cluster| {
        let counters = ["replicas", "readyReplicas", "updatedReplicas", "currentReplicas"];
        let status = counted(name, cluster, &counters, 2)?;
        if status["currentRevision"] != status["updateRevision"] {
            return Err(status.to_string());
        }
        let images = images(name, cluster);
        if images.len() == 2 { Ok(json!(images)) } else { Err(format!("{images:?}")) }
    };
    // Claims of the sandbox's default class, whose volumes the stand-in driver provisions.
    let claims = json!([{
        "metadata": { "name": "data" },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } },
        },
    }]);
    let spec = json!({ "replicas": 2, "serviceName": "s", "volumeClaimTemplates": claims });
    let updated = vec![Mutation::Patch(set_image("x:2"))];
    for (test, changes) in [("crash-sts", vec![]), ("crash-sts-update", updated)] {
        Env::run(test, async |env| {
            let _binder = binder(env);
            let scenario = Scenario {
                controllers: &["statefulset-controller"],
                objects: &|name| vec![set_of_pods("StatefulSet", name, spec.clone())],
                changes: changes.clone(),
                end: &end,
            };
            let writes = survives_every_write(env, &scenario).await;
            assert!(writes >= 5, "{writes} writes");
        });
    }
}

#[test]
fn a_daemon_set_survives_a_crash_at_every_write() {
    let end = |name: &str, cluster: &Cluster| {
        let counters = [
            "desiredNumberScheduled",
            "currentNumberScheduled",
            "updatedNumberScheduled",
            "numberAvailable",
        ];
        counted(name, cluster, &counters, 3)?;
        let images = images(name, cluster);
        if images.len() == 3 { Ok(json!(images)) } else { Err(format!("{images:?}")) }
    };
    let rolling = |max_unavailable: i32, max_surge: i32| {
        json!({ "updateStrategy": { "type": "RollingUpdate", "rollingUpdate": {
            "maxUnavailable": max_unavailable, "maxSurge": max_surge,
        } } })
    };
    let updated = vec![Mutation::Patch(set_image("x:2"))];
    for (test, spec, changes, at_least) in [
        ("crash-ds", rolling(1, 0), vec![], 5),
        ("crash-ds-update", rolling(2, 0), updated.clone(), 8),
        ("crash-ds-surge", rolling(0, 2), updated, 8),
    ] {
        Env::run(test, async |env| {
            let scenario = Scenario {
                controllers: &["daemonset-controller"],
                objects: &|name| vec![set_of_pods("DaemonSet", name, spec.clone())],
                changes: changes.clone(),
                end: &end,
            };
            let writes = survives_every_write(env, &scenario).await;
            assert!(writes >= at_least, "{test}: {writes} writes");
        });
    }
}
