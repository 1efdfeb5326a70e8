//! Swaps of managers on a live cluster: the new manager writes nothing that is already right, and
//! continues where the old one stopped.
//!
//! The other manager is the Go one, where its binary `kube-controller-manager` is in the folder
//! that `KUBEBUILDER_ASSETS` names; elsewhere it is this one in another process.

use std::collections::BTreeMap;
use std::time::Duration;

use kube_controller_manager::client::{Delete, ListOptions, Patch};
use kube_controller_manager::objects::{ObjectKey, PodPhase, ResourceType};
use sandbox::cluster::{Manager, ManagerProgram};
use serde_json::{Value, json};

use crate::certificates::{request, submit};
use crate::env::*;
use crate::kinds::wait_until_exists;
use crate::real;

const fn apps(kind: &'static str, plural: &'static str) -> ResourceType {
    ResourceType::fixed("apps", "v1", kind, plural, true)
}
const DEPLOYMENTS: ResourceType = apps("Deployment", "deployments");
const STATEFUL_SETS: ResourceType = apps("StatefulSet", "statefulsets");
const DAEMON_SETS: ResourceType = apps("DaemonSet", "daemonsets");
const JOBS: ResourceType = ResourceType::fixed("batch", "v1", "Job", "jobs", true);
pub const CLAIMS: ResourceType =
    ResourceType::fixed("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", true);
pub const VOLUMES: ResourceType =
    ResourceType::fixed("", "v1", "PersistentVolume", "persistentvolumes", false);
const BUDGETS: ResourceType =
    ResourceType::fixed("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", true);
const QUOTAS: ResourceType = ResourceType::fixed("", "v1", "ResourceQuota", "resourcequotas", true);
const PODS: ResourceType = ResourceType::fixed("", "v1", "Pod", "pods", true);
const CONTROLLERS: ResourceType =
    ResourceType::fixed("", "v1", "ReplicationController", "replicationcontrollers", true);
const REPLICA_SETS: ResourceType = apps("ReplicaSet", "replicasets");
const CRON_JOBS: ResourceType = ResourceType::fixed("batch", "v1", "CronJob", "cronjobs", true);
const AUTOSCALERS: ResourceType = ResourceType::fixed(
    "autoscaling",
    "v2",
    "HorizontalPodAutoscaler",
    "horizontalpodautoscalers",
    true,
);
const NAMESPACES: ResourceType = ResourceType::fixed("", "v1", "Namespace", "namespaces", false);
const CONFIG_MAPS: ResourceType = ResourceType::fixed("", "v1", "ConfigMap", "configmaps", true);

/// The namespace of objects that only prove that a manager works.
pub const PROBES: &str = "probes";

/// The Go manager, where its binary is present.
pub fn go_program() -> Option<ManagerProgram> {
    let beside = real::assets().map(|assets| assets.join("kube-controller-manager"));
    beside.filter(|path| path.exists()).map(ManagerProgram::Path)
}

pub fn other_program() -> ManagerProgram {
    go_program().unwrap_or_else(manager_program)
}

fn template(name: &str) -> Value {
    json!({
        "metadata": { "labels": { "app": name } },
        "spec": { "containers": [{ "name": "main", "image": "one" }] },
    })
}

fn workload(kind: &str, name: &str, more: Value) -> Value {
    let mut object = json!({
        "apiVersion": "apps/v1", "kind": kind, "metadata": { "name": name },
        "spec": {
            "selector": { "matchLabels": { "app": name } }, "template": template(name),
        },
    });
    for (key, value) in more.as_object().into_iter().flatten() {
        object["spec"][key] = value.clone();
    }
    object
}

fn job(name: &str) -> Value {
    let mut template = template(name);
    template["spec"]["restartPolicy"] = "Never".into();
    json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": { "name": name },
        "spec": { "completions": 2, "parallelism": 2, "template": template },
    })
}

pub fn volume(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": name },
        "spec": {
            "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"],
            "storageClassName": "by-hand", "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": { "path": format!("/tmp/{name}") },
        },
    })
}

pub fn claim(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": name },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "by-hand",
            "resources": { "requests": { "storage": "1Gi" } },
        },
    })
}

pub async fn make(env: &TestCluster, resource: &ResourceType, namespace: &str, object: Value) {
    let made = env.client.resource(resource).create::<Value>(namespace, &object).await;
    made.unwrap_or_else(|error| panic!("{resource}: {error}"));
}

/// Creates objects of each kind that controllers work on.
pub async fn populate(env: &TestCluster) {
    let space = "default";
    make(env, &DEPLOYMENTS, space, workload("Deployment", "web", json!({ "replicas": 2 }))).await;
    make(env, &DEPLOYMENTS, space, workload("Deployment", "half", json!({ "replicas": 2 }))).await;
    let service = json!({ "replicas": 2, "serviceName": "db" });
    make(env, &STATEFUL_SETS, space, workload("StatefulSet", "db", service)).await;
    make(env, &DAEMON_SETS, space, workload("DaemonSet", "agent", json!({}))).await;
    make(env, &JOBS, space, job("work")).await;
    let controller = json!({
        "apiVersion": "v1", "kind": "ReplicationController", "metadata": { "name": "old" },
        "spec": { "replicas": 1, "selector": { "app": "old" }, "template": template("old") },
    });
    make(env, &CONTROLLERS, space, controller).await;
    let budget = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": { "name": "web" },
        "spec": { "minAvailable": 1, "selector": { "matchLabels": { "app": "web" } } },
    });
    make(env, &BUDGETS, space, budget).await;
    let quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": { "name": "limits" },
        "spec": { "hard": { "pods": "100", "count/jobs.batch": "10" } },
    });
    make(env, &QUOTAS, space, quota).await;
    make(env, &VOLUMES, "", volume("disk")).await;
    make(env, &CLAIMS, space, claim("disk")).await;
    create(
        &env.client,
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "name": "web" },
            "spec": { "selector": { "app": "web" }, "ports": [{ "port": 80 }] },
        }),
    )
    .await;
}

/// Creates unfinished work: a Job with one completed index, a namespace that cannot be removed yet,
/// a request without an approval, an autoscaled workload, claims of a StatefulSet; and objects that
/// wait for a time.
pub async fn populate_work(env: &TestCluster) {
    let space = "default";
    let mut half = job("half-done");
    half["spec"]["completionMode"] = "Indexed".into();
    half["spec"]["template"]["metadata"]["annotations"] =
        json!({ "sandbox/run.index-0": "exit 0", "sandbox/run.index-1": "sleep inf" });
    make(env, &JOBS, space, half).await;
    let yearly = json!({
        "apiVersion": "batch/v1", "kind": "CronJob", "metadata": { "name": "yearly" },
        "spec": { "schedule": "0 0 1 1 *", "jobTemplate": { "spec": job("yearly")["spec"] } },
    });
    make(env, &CRON_JOBS, space, yearly).await;
    let replicas = json!({ "replicas": 1 });
    make(env, &REPLICA_SETS, space, workload("ReplicaSet", "bare", replicas)).await;
    make(env, &AUTOSCALERS, space, autoscaler("half", 2)).await;
    let names = [0, 1].map(|ordinal| format!("stored-{ordinal}"));
    for name in &names {
        let mut volume = volume(name);
        volume["spec"]["claimRef"] = json!({
            "kind": "PersistentVolumeClaim", "namespace": space, "name": format!("data-{name}"),
        });
        make(env, &VOLUMES, "", volume).await;
    }
    let stored = json!({
        "replicas": 2, "serviceName": "stored",
        "persistentVolumeClaimRetentionPolicy": { "whenDeleted": "Delete", "whenScaled": "Retain" },
        "volumeClaimTemplates": [{ "metadata": { "name": "data" }, "spec": claim("")["spec"] }],
    });
    make(env, &STATEFUL_SETS, space, workload("StatefulSet", "stored", stored)).await;
    let signer = "kubernetes.io/kube-apiserver-client-kubelet";
    submit(env, &env.client, &request("asked", "node-0", &[], signer, "client auth").0).await;
    make_namespace(&env.client, "ending").await;
    let held = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": "held", "finalizers": ["example.com/hold"] },
    });
    make(env, &CONFIG_MAPS, "ending", held).await;
    let ending = ObjectKey::cluster("ending");
    let deleted = env.client.resource(&NAMESPACES).delete(&ending, Delete::background()).await;
    deleted.expect("delete");
}

fn autoscaler(deployment: &str, replicas: i32) -> Value {
    json!({
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
        "metadata": { "name": deployment },
        "spec": {
            "scaleTargetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": deployment },
            "minReplicas": replicas, "maxReplicas": replicas,
            "metrics": [{ "type": "Resource", "resource": {
                "name": "memory", "target": { "type": "AverageValue", "averageValue": "1Gi" },
            } }],
        },
    })
}

/// Whether the autoscaler has read its metrics, or found that there are none.
fn has_measured(autoscaler: &Value) -> bool {
    let conditions = autoscaler["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|condition| condition["type"] == "ScalingActive")
}

/// Waits until the objects of [`populate_work`] no longer change.
pub async fn work_settled(env: &TestCluster) {
    let at = |name: &str| ObjectKey::new("default", name);
    wait_until_exists(env, &JOBS, &at("half-done"), |j| {
        let status = &j["status"];
        status["succeeded"] == 1
            && status["ready"] == 1
            && status["completedIndexes"] == "0"
            && status["uncountedTerminatedPods"].as_object().is_none_or(|pods| pods.is_empty())
    })
    .await;
    wait_until_exists(env, &REPLICA_SETS, &at("bare"), |r| r["status"]["availableReplicas"] == 1)
        .await;
    wait_until_exists(env, &STATEFUL_SETS, &at("stored"), |s| {
        s["status"]["availableReplicas"] == 2
    })
    .await;
    wait_until_exists(env, &AUTOSCALERS, &at("half"), has_measured).await;
    let ending = ObjectKey::cluster("ending");
    wait_until_exists(env, &NAMESPACES, &ending, |n| {
        let conditions = n["status"]["conditions"].as_array();
        let remain = "NamespaceFinalizersRemaining";
        conditions.into_iter().flatten().any(|c| c["type"] == remain && c["status"] == "True")
    })
    .await;
}

/// Waits until the objects of [`populate`] no longer change.
pub async fn settled(env: &TestCluster) {
    let at = |name: &str| ObjectKey::new("default", name);
    for name in ["web", "half"] {
        wait_until_exists(env, &DEPLOYMENTS, &at(name), |d| d["status"]["availableReplicas"] == 2)
            .await;
    }
    wait_until_exists(env, &STATEFUL_SETS, &at("db"), |s| s["status"]["availableReplicas"] == 2)
        .await;
    wait_until_exists(env, &DAEMON_SETS, &at("agent"), |d| {
        let (ready, wanted) =
            (&d["status"]["numberAvailable"], &d["status"]["desiredNumberScheduled"]);
        wanted.as_i64() > Some(0) && ready == wanted
    })
    .await;
    wait_until_exists(env, &JOBS, &at("work"), |j| j["status"]["ready"] == 2).await;
    wait_until_exists(env, &BUDGETS, &at("web"), |b| b["status"]["currentHealthy"] == 2).await;
    wait_until_exists(env, &CLAIMS, &at("disk"), |c| c["status"]["phase"] == "Bound").await;
    // Pods that were created at the same time as the quota are counted with its next change.
    let more = Patch::Merge(json!({ "spec": { "hard": { "pods": "101" } } }));
    env.client.resource(&QUOTAS).patch::<Value>(&at("limits"), &more).await.expect("patch");
    let pods = env.pods().await;
    let pods =
        pods.iter().filter(|pod| pod.status.phase != PodPhase::Succeeded).count().to_string();
    wait_until_exists(env, &QUOTAS, &at("limits"), |q| q["status"]["used"]["pods"] == *pods).await;
}

/// Waits until the manager in charge has completed new workloads and cleaned them up: then it has
/// also processed all older objects. `scales`: includes autoscalers.
pub async fn works(env: &TestCluster, round: usize, scales: bool) {
    let name = format!("probe-{round}");
    let at = ObjectKey::new(PROBES, &name);

    let replicas = || json!({ "replicas": 1 });
    let set = json!({ "replicas": 1, "serviceName": "probe" });
    make(env, &DEPLOYMENTS, PROBES, workload("Deployment", &name, replicas())).await;
    wait_until_exists(env, &DEPLOYMENTS, &at, |d| d["status"]["availableReplicas"] == 1).await;
    if scales {
        make(env, &AUTOSCALERS, PROBES, autoscaler(&name, 1)).await;
        wait_until_exists(env, &AUTOSCALERS, &at, has_measured).await;
        env.client.resource(&AUTOSCALERS).delete(&at, Delete::background()).await.expect("delete");
    }
    env.client.resource(&DEPLOYMENTS).delete(&at, Delete::foreground()).await.expect("delete");
    crate::kinds::wait_until_deleted(env, &DEPLOYMENTS, &at).await;
    make(env, &STATEFUL_SETS, PROBES, workload("StatefulSet", &name, set)).await;
    wait_until_exists(env, &STATEFUL_SETS, &at, |s| s["status"]["availableReplicas"] == 1).await;
    make(env, &DAEMON_SETS, PROBES, workload("DaemonSet", &name, json!({}))).await;
    wait_until_exists(env, &DAEMON_SETS, &at, |d| {
        d["status"]["numberAvailable"].as_i64() > Some(0)
    })
    .await;
    make(env, &JOBS, PROBES, job(&name)).await;
    wait_until_exists(env, &JOBS, &at, |j| j["status"]["ready"] == 2).await;
    for resource in [&STATEFUL_SETS, &DAEMON_SETS, &JOBS] {
        env.client.resource(resource).delete(&at, Delete::foreground()).await.expect("delete");
        crate::kinds::wait_until_deleted(env, resource, &at).await;
    }
}

/// Every object outside of [`PROBES`], by path, without the fields that other programs write.
pub async fn everything(env: &TestCluster) -> BTreeMap<String, Value> {
    let read = async |path: &str| -> Value {
        let bytes = env.client.get_path(path).await.unwrap_or_else(|e| panic!("{path}: {e}"));
        serde_json::from_slice(&bytes).unwrap_or_else(|error| panic!("{path}: {error}"))
    };
    let mut versions = vec!["/api/v1".to_owned()];
    for group in read("/apis").await["groups"].as_array().expect("groups") {
        // Metrics are taken when they are read.
        if group["name"] == "metrics.k8s.io" {
            continue;
        }
        let version = group["preferredVersion"]["groupVersion"].as_str().expect("a version");
        versions.push(format!("/apis/{version}"));
    }
    let mut objects = BTreeMap::new();
    for version in versions {
        for resource in read(&version).await["resources"].as_array().expect("resources") {
            let name = resource["name"].as_str().expect("a name");
            let listed = resource["verbs"].as_array().is_some_and(|v| v.contains(&"list".into()));
            if !listed || ["events", "leases", "componentstatuses"].contains(&name) {
                continue;
            }
            for mut item in read(&format!("{version}/{name}")).await["items"]
                .take()
                .as_array_mut()
                .expect("items")
                .drain(..)
            {
                let metadata = &item["metadata"];
                let space = metadata["namespace"].as_str().unwrap_or_default().to_owned();
                let key =
                    format!("{version}/{name} {space}/{}", metadata["name"].as_str().unwrap());
                if space == PROBES || key.ends_with(&format!("/{PROBES}")) {
                    continue;
                }
                if name == "nodes" {
                    // Kubelets write these all the time.
                    item["status"].take();
                    item["metadata"]["resourceVersion"].take();
                }
                item["metadata"]["managedFields"].take();
                objects.insert(key, item);
            }
        }
    }
    objects
}

/// The differences, one object per line.
pub fn written(before: &BTreeMap<String, Value>, after: &BTreeMap<String, Value>) -> String {
    let mut lines = Vec::new();
    for (key, old) in before {
        match after.get(key) {
            None => lines.push(format!("{key} is gone")),
            Some(new) if new != old => lines.push(format!("{key}:\n  {old}\n  {new}")),
            Some(_) => {}
        }
    }
    lines.extend(
        after.keys().filter(|key| !before.contains_key(*key)).map(|k| format!("{k} is new")),
    );
    lines.join("\n")
}

async fn start(env: &TestCluster, program: &ManagerProgram, round: usize) -> Manager {
    let mut flags = quick_election();
    flags.push("--horizontal-pod-autoscaler-sync-period=1s".into());
    let manager = Manager::spawn(program, &env.kubeconfig, &format!("manager-{round}"), &flags);
    manager.expect("the manager starts")
}

pub async fn end(env: &TestCluster, manager: Manager) {
    // Its exit code is not checked here: the Go manager always exits with a failure.
    let _ = manager.stop(&env.clock, Duration::from_secs(30)).await;
}

#[test]
fn a_newcomer_writes_nothing_and_goes_on_with_what_is_under_way() {
    everywhere("handover", async |env| {
        let (ours, other) = (manager_program(), other_program());
        make_namespace(&env.client, PROBES).await;
        let mut manager = start(env, &other, 0).await;
        populate(env).await;
        populate_work(env).await;
        work_settled(env).await;
        settled(env).await;
        works(env, 0, true).await;
        let at_rest = everything(env).await;
        for (round, (program, name)) in
            [(&ours, "ours"), (&other, "the other"), (&ours, "ours")].into_iter().enumerate()
        {
            end(env, manager).await;
            manager = start(env, program, round + 1).await;
            works(env, round + 1, true).await;
            let found = written(&at_rest, &everything(env).await);
            assert!(found.is_empty(), "{name} in round {round} wrote\n{found}");
        }

        // A rollout that is incomplete because no new pod becomes ready.
        let pods = |app: &'static str| async move {
            let options = ListOptions {
                label_selector: Some(format!("app={app}")),
                ..ListOptions::default()
            };
            let pods = env.client.resource(&PODS).list::<Value>(Some("default"), &options).await;
            let uid = |pod: &Value| {
                let restarts = &pod["status"]["containerStatuses"][0]["restartCount"];
                format!("{} restarts {restarts}", pod["metadata"]["uid"])
            };
            let mut uids: Vec<String> = pods.expect("pods").items.iter().map(uid).collect();
            uids.sort();
            uids
        };
        let all = async || {
            let mut all = Vec::new();
            for app in ["web", "db", "agent", "work", "half-done", "stored", "bare"] {
                all.push(pods(app).await);
            }
            all
        };
        let before = all().await;
        env.steering.hold(true);
        let half = ObjectKey::new("default", "half");
        let deployments = env.client.resource(&DEPLOYMENTS);
        let patch = Patch::Merge(set_image("two"));
        deployments.patch::<Value>(&half, &patch).await.expect("patch");
        wait_until_exists(env, &DEPLOYMENTS, &half, |d| d["status"]["updatedReplicas"] == 1).await;
        let standing = pods("half").await;
        for (round, program) in [&other, &ours].into_iter().enumerate() {
            end(env, manager).await;
            manager = start(env, program, round + 4).await;
            let marked = json!({ "spec": { "replicas": 2 + round + 1 } });
            let web = ObjectKey::new("default", "web");
            deployments.patch::<Value>(&web, &Patch::Merge(marked)).await.expect("patch");
            let wanted = 2 + round + 1;
            wait_until_exists(env, &DEPLOYMENTS, &web, |d| d["status"]["replicas"] == wanted).await;
            assert_eq!(pods("half").await, standing, "the rollout stands");
        }
        env.steering.hold(false);
        wait_until_exists(env, &DEPLOYMENTS, &half, |d| {
            let status = &d["status"];
            status["updatedReplicas"] == 2
                && status["replicas"] == 2
                && status["availableReplicas"] == 2
        })
        .await;
        let after = all().await;
        for (before, after) in before.iter().zip(&after) {
            assert!(before.iter().all(|uid| after.contains(uid)), "{before:?} {after:?}");
        }

        // The Job continues at its second index, and the namespace is removed.
        let second = pods("half-done").await;
        let index = ListOptions {
            label_selector: Some("batch.kubernetes.io/job-completion-index=1".into()),
            ..ListOptions::default()
        };
        let deleted = env.client.resource(&PODS);
        let deleted = deleted.delete_collection(Some("default"), Delete::new(), &index).await;
        deleted.expect("delete");
        let half_done = ObjectKey::new("default", "half-done");
        wait_until_exists(env, &JOBS, &half_done, |j| {
            j["status"]["failed"] == 1 && j["status"]["ready"] == 1
        })
        .await;
        let done =
            wait_until_exists(env, &JOBS, &half_done, |j| j["status"]["succeeded"] == 1).await;
        assert_eq!(done["status"]["completedIndexes"], "0");
        assert_ne!(pods("half-done").await, second);
        let unheld = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
        let held = ObjectKey::new("ending", "held");
        env.client.resource(&CONFIG_MAPS).patch::<Value>(&held, &unheld).await.expect("patch");
        crate::kinds::wait_until_deleted(env, &NAMESPACES, &ObjectKey::cluster("ending")).await;
        end(env, manager).await;
    });
}
