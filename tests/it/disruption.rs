//! PodDisruptionBudgets and evictions.

use std::time::Duration;

use kube_controller_manager::client::{Client, ListOptions, Patch, Result};
use kube_controller_manager::objects::{
    ObjectKey, Pod, PodDisruptionBudget, Resource, ResourceType,
};
use sandbox::faults::Fault;
use serde_json::{Value, json};

use crate::daemonsets::daemon_set;
use crate::env::*;
use crate::kinds::{DEFINITIONS, WIDGETS, serve_widgets, wait_until_deleted, wait_until_exists};

/// Defined by [`serve_caches`], with a Scale.
pub const CACHES: ResourceType = ResourceType::fixed("example.com", "v1", "Cache", "caches", true);

pub async fn serve_caches(env: &TestCluster) {
    serve_scaled(env, &CACHES).await;
}

/// Defines `kind` with a Scale, and waits until it is served.
pub async fn serve_scaled(env: &TestCluster, kind: &ResourceType) {
    let anything = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    let definition = json!({
        "apiVersion": DEFINITIONS.api_version(), "kind": DEFINITIONS.kind,
        "metadata": { "name": format!("{}.{}", kind.plural, kind.group) },
        "spec": {
            "group": kind.group, "scope": if kind.namespaced { "Namespaced" } else { "Cluster" },
            "names": {
                "kind": kind.kind, "plural": kind.plural, "singular": kind.kind.to_lowercase(),
            },
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": { "openAPIV3Schema": anything },
                "subresources": { "scale": {
                    "specReplicasPath": ".spec.size", "statusReplicasPath": ".status.size",
                    "labelSelectorPath": ".spec.selector",
                } },
            }],
        },
    });
    env.client.resource(&DEFINITIONS).create::<Value>("", &definition).await.expect("create");
    eventually(&env.clock, &format!("{} are served", kind.plural), || async {
        let objects = env.client.resource(kind);
        let listed = objects.list::<Value>(None, &ListOptions::default()).await;
        listed.map(drop).map_err(|error| error.to_string())
    })
    .await;
}

fn budget(name: &str, labels: Value, demand: Value) -> Value {
    let mut budget = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": { "name": name, "namespace": "default" }, "spec": demand,
    });
    budget["spec"]["selector"] = json!({ "matchLabels": labels });
    budget
}

/// Waits for a status with these counts: pods expected, healthy ones wanted, disruptions allowed.
async fn has_counts(env: &TestCluster, name: &str, counts: [i64; 3]) -> Value {
    let key = ObjectKey::new("default", name);
    let current = |budget: &Value| {
        let status = &budget["status"];
        let of = |field: &str| status[field].as_i64().unwrap_or(-1);
        [of("expectedPods"), of("desiredHealthy"), of("disruptionsAllowed")] == counts
            && status["observedGeneration"] == budget["metadata"]["generation"]
    };
    wait_until_exists(env, &PodDisruptionBudget::RESOURCE, &key, current).await["status"].clone()
}

/// A pod that scheduler and kubelet leave alone.
fn pod(name: &str, app: &str, owner: Option<&Value>) -> Value {
    let owner = owner.map(|owner| {
        json!([{
            "apiVersion": owner["apiVersion"], "kind": owner["kind"], "controller": true,
            "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"],
        }])
    });
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": "default", "labels": { "app": app },
            "ownerReferences": owner,
        },
        "spec": { "schedulerName": "none", "containers": [{ "name": "main", "image": "x:1" }] },
    })
}

async fn set_status(env: &TestCluster, resource: &ResourceType, name: &str, status: Value) {
    let verbs = env.client.resource(resource).subresource("status");
    let patch = Patch::Merge(json!({ "status": status }));
    verbs.patch::<Value>(&ObjectKey::new("default", name), &patch).await.expect("patch");
}

async fn evict(env: &TestCluster, name: &str) -> Result<Value> {
    let eviction = json!({
        "apiVersion": "policy/v1", "kind": "Eviction", "metadata": { "name": name },
    });
    let pods = env.client.resource(&Pod::RESOURCE).subresource("eviction");
    pods.create_for(&ObjectKey::new("default", name), &eviction).await
}

#[test]
fn a_budget_allows_as_many_evictions_as_it_can() {
    everywhere("budget", async |env| {
        let manager = env.manager("manager", &[]);
        let (client, clock) = (&env.client, &env.clock);
        create(client, deployment("web", 3, "web:1")).await;
        rolled_out(client, clock, "web").await;
        create(client, budget("web", json!({ "app": "web" }), json!({ "maxUnavailable": 1 })))
            .await;
        let status = has_counts(env, "web", [3, 2, 1]).await;
        assert_eq!(status["currentHealthy"], 3);
        let condition = &status["conditions"][0];
        assert_eq!(
            [&condition["type"], &condition["status"], &condition["reason"]],
            ["DisruptionAllowed", "True", "SufficientPods"]
        );
        assert_eq!(condition["observedGeneration"], status["observedGeneration"]);

        let pods: Vec<Pod> = list(client).await;
        evict(env, &pods[0].meta.name).await.expect("one may go");
        wait_until_deleted(env, &Pod::RESOURCE, &pods[0].meta.key()).await;
        rolled_out(client, clock, "web").await;
        let status = has_counts(env, "web", [3, 2, 1]).await;
        assert!(status["disruptedPods"].is_null(), "{status}");

        let percent = json!({ "spec": { "maxUnavailable": null, "minAvailable": "67%" } });
        merge::<PodDisruptionBudget>(client, "web", percent).await;
        let status = has_counts(env, "web", [3, 3, 0]).await;
        assert_eq!(status["conditions"][0]["reason"], "InsufficientPods");
        let pods: Vec<Pod> = list(client).await;
        let refused = evict(env, &pods[0].meta.name).await.expect_err("none may go");
        assert!(refused.is_too_many_requests(), "{refused}");

        let number = json!({ "spec": { "minAvailable": 1 } });
        merge::<PodDisruptionBudget>(client, "web", number).await;
        has_counts(env, "web", [3, 1, 2]).await;

        let empty = budget("empty", json!({ "app": "nothing" }), json!({ "minAvailable": "50%" }));
        create(client, empty).await;
        has_counts(env, "empty", [0, 0, 0]).await;
        has_event(env, "empty", "NoPods", "No matching pods found").await;

        create(client, budget("second", json!({ "app": "web" }), json!({ "minAvailable": 1 })))
            .await;
        has_counts(env, "second", [3, 1, 2]).await;
        let labels = json!({ "metadata": { "labels": { "seen": "twice" } } });
        merge::<Pod>(client, &pods[0].meta.name, labels).await;
        let chosen = "matches multiple PodDisruptionBudgets.  Chose \"second\" arbitrarily.";
        has_event(env, &pods[0].meta.name, "MultiplePodDisruptionBudgets", chosen).await;
        drop(manager);
    });
}

#[test]
fn a_budget_counts_the_pods_of_custom_controllers_by_their_scale() {
    everywhere("budget-scale", async |env| {
        serve_caches(env).await;
        serve_widgets(env).await;
        let manager = env.manager("manager", &[]);
        let client = &env.client;
        let owner = async |resource: &ResourceType, spec: Value| -> Value {
            let object = json!({
                "apiVersion": resource.api_version(), "kind": resource.kind,
                "metadata": { "name": "own" }, "spec": spec,
            });
            client.resource(resource).create("default", &object).await.expect("create")
        };
        let cache = owner(&CACHES, json!({ "size": 10 })).await;
        create(client, pod("cached", "cache", Some(&cache))).await;
        let demand = json!({ "minAvailable": "30%" });
        create(client, budget("cache", json!({ "app": "cache" }), demand)).await;
        has_counts(env, "cache", [10, 3, 0]).await;

        let widget = owner(&WIDGETS, json!({})).await;
        create(client, pod("odd", "widget", Some(&widget))).await;
        let demand = json!({ "maxUnavailable": 1 });
        create(client, budget("widget", json!({ "app": "widget" }), demand)).await;
        let message = format!("Failed to calculate the number of expected pods: {NO_SCALE}");
        has_event(env, "widget", "CalculateExpectedPodCountFailed", &message).await;
        let key = ObjectKey::new("default", "widget");
        let failed = |budget: &Value| budget["status"]["conditions"][0]["reason"] == "SyncFailed";
        let found = wait_until_exists(env, &PodDisruptionBudget::RESOURCE, &key, failed).await;
        assert_eq!(found["status"]["conditions"][0]["message"], NO_SCALE);
        assert_eq!(found["status"]["disruptionsAllowed"], 0);

        create(client, pod("alone", "alone", None)).await;
        let demand = json!({ "maxUnavailable": 1 });
        create(client, budget("alone", json!({ "app": "alone" }), demand)).await;
        has_counts(env, "alone", [0, 0, 0]).await;
        let advice = "please set \".spec.minAvailable\" field of the PDB to an integer value.";
        has_event(env, "alone", "UnmanagedPods", advice).await;
        drop(manager);
    });
}

/// Why a budget does not know how many pods a widget has.
const NO_SCALE: &str = "widgets.example.com does not implement the scale subresource; a budget of its pods needs \
                        an integer minAvailable";

/// Upstream gives up, since DaemonSets have no Scale.
#[test]
fn a_budget_counts_the_pods_of_a_daemon_set_by_its_nodes() {
    everywhere("budget-daemons", async |env| {
        // The three nodes have no lease that a node controller could watch.
        let _manager = env.manager("manager", &["--controllers=daemonset,disruption"]);
        let client = &env.client;
        create(client, daemon_set(json!({}))).await;
        let demand = json!({ "maxUnavailable": 1 });
        create(client, budget("agent", json!({ "app": "agent" }), demand)).await;
        has_counts(env, "agent", [3, 2, 1]).await;
        evict(env, &env.pods().await[0].meta.name).await.expect("evicted");

        let demand = json!({ "maxUnavailable": null, "minAvailable": "100%" });
        merge::<PodDisruptionBudget>(client, "agent", json!({ "spec": demand })).await;
        has_counts(env, "agent", [3, 3, 0]).await;
    });
}

/// As the pod of a Job. Upstream gives up while the pod exists.
#[test]
fn a_finished_pod_of_a_controller_without_a_scale_does_not_count() {
    everywhere("budget-finished", async |env| {
        serve_widgets(env).await;
        let _manager = env.manager("manager", &[]);
        let (client, clock) = (&env.client, &env.clock);
        create(client, deployment("web", 3, "web:1")).await;
        rolled_out(client, clock, "web").await;
        let widget = json!({
            "apiVersion": WIDGETS.api_version(), "kind": WIDGETS.kind,
            "metadata": { "name": "own" },
        });
        let widget: Value =
            client.resource(&WIDGETS).create("default", &widget).await.expect("create");
        create(client, pod("task", "web", Some(&widget))).await;
        create(client, budget("web", json!({ "app": "web" }), json!({ "maxUnavailable": 1 })))
            .await;
        has_event(env, "web", "CalculateExpectedPodCountFailed", NO_SCALE).await;
        set_status(env, &Pod::RESOURCE, "task", json!({ "phase": "Succeeded" })).await;
        has_counts(env, "web", [3, 2, 1]).await;
    });
}

#[test]
fn unhealthy_pods_go_as_the_budget_says() {
    everywhere("budget-unhealthy", async |env| {
        let manager = env.manager("manager", &[]);
        let client = &env.client;
        let mut sick = deployment("sick", 2, "x:1");
        let template = &mut sick["spec"]["template"];
        template["metadata"]["annotations"] = json!({ "sandbox/behavior": "never-ready" });
        create(client, sick).await;
        create(client, budget("sick", json!({ "app": "sick" }), json!({ "minAvailable": 1 })))
            .await;
        has_counts(env, "sick", [2, 1, 0]).await;
        let runs = |pod: &Value| pod["status"]["phase"] == "Running";
        let pods: Vec<Pod> = list(client).await;
        let key = pods[0].meta.key();
        wait_until_exists(env, &Pod::RESOURCE, &key, runs).await;
        let refused = evict(env, &key.name).await.expect_err("the budget is not healthy");
        assert!(refused.is_too_many_requests(), "{refused}");
        let always = json!({ "spec": { "unhealthyPodEvictionPolicy": "AlwaysAllow" } });
        merge::<PodDisruptionBudget>(client, "sick", always).await;
        has_counts(env, "sick", [2, 1, 0]).await;
        evict(env, &key.name).await.expect("it is not healthy");
        wait_until_deleted(env, &Pod::RESOURCE, &key).await;
        drop(manager);
    });
}

#[test]
fn disruptions_that_do_not_happen_are_taken_back() {
    everywhere("budget-stale", async |env| {
        let manager = env.manager("manager", &[]);
        let (client, clock) = (&env.client, &env.clock);
        let long_ago = (clock.now() - Duration::from_secs(300)).to_string();
        create(client, pod("stays", "stays", None)).await;
        create(client, budget("stays", json!({ "app": "stays" }), json!({ "minAvailable": 1 })))
            .await;
        has_counts(env, "stays", [1, 1, 0]).await;
        let fresh = clock.now().to_string();
        let disrupted = json!({ "stays": long_ago, "gone": fresh });
        let status = json!({ "disruptedPods": disrupted });
        set_status(env, &PodDisruptionBudget::RESOURCE, "stays", status).await;
        let message = "Pod was expected by PDB default/default to be deleted but it wasn't";
        has_event(env, "stays", "NotDeleted", message).await;
        let key = ObjectKey::new("default", "stays");
        let none = |budget: &Value| budget["status"]["disruptedPods"].is_null();
        wait_until_exists(env, &PodDisruptionBudget::RESOURCE, &key, none).await;

        let condition = |reason: &str| {
            json!({ "conditions": [{
                "type": "DisruptionTarget", "status": "True", "reason": reason, "message": "m",
                "lastTransitionTime": long_ago,
            }] })
        };
        create(client, pod("kept", "kept", None)).await;
        set_status(env, &Pod::RESOURCE, "kept", condition("TerminationByKubelet")).await;
        set_status(env, &Pod::RESOURCE, "stays", condition("EvictionByEvictionAPI")).await;
        let cleared = |pod: &Value| pod["status"]["conditions"][0]["status"] == "False";
        let found = wait_until_exists(env, &Pod::RESOURCE, &key, cleared).await;
        let condition = &found["status"]["conditions"][0];
        assert!(condition["reason"].is_null() && condition["message"].is_null(), "{condition}");
        assert_ne!(condition["lastTransitionTime"], long_ago);
        let kept = client.resource(&Pod::RESOURCE);
        let kept: Value = kept.get(&ObjectKey::new("default", "kept")).await.expect("get");
        assert_eq!(kept["status"]["conditions"][0]["status"], "True", "the kubelet's own stays");
        drop(manager);
    });
}

#[test]
fn refused_writes_of_a_budget_are_made_later() {
    Env::run("budget-refused", async |env| {
        let faults = env.cluster.sandbox.faults();
        for fault in [Fault::code(409, None), Fault::code(500, None), Fault::Cut] {
            faults.next(1, "update", "poddisruptionbudgets/status", fault.clone());
            faults.next(1, "patch", "pods/status", fault);
        }
        let client = &env.client;
        let status = json!({ "conditions": [{
            "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
            "lastTransitionTime": (env.clock.now() - Duration::from_secs(300)).to_string(),
        }] });
        create(client, pod("stale", "stale", None)).await;
        let key = ObjectKey::new("default", "stale");
        client
            .resource(&Pod::RESOURCE)
            .subresource("status")
            .update::<Value>(&key, &with_status(client, &key, status).await)
            .await
            .expect("update");
        let _manager = env.manager("manager", &[]);
        create(client, budget("stale", json!({ "app": "stale" }), json!({ "minAvailable": 0 })))
            .await;
        has_counts(env, "stale", [1, 0, 0]).await;
        let cleared = |pod: &Value| pod["status"]["conditions"][0]["status"] == "False";
        wait_until_exists(env, &Pod::RESOURCE, &key, cleared).await;
        let pending = faults.pending();
        assert!(pending.is_empty(), "{pending:?}");
    });
}

async fn with_status(client: &Client, key: &ObjectKey, status: Value) -> Value {
    let mut live: Value = client.resource(&Pod::RESOURCE).get(key).await.expect("get");
    live["status"] = status;
    live
}
