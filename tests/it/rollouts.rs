//! Edge cases of Deployments and ReplicaSets.

use std::collections::BTreeMap;
use std::time::Duration;

use kube_controller_manager::client::{Delete, Dynamic, ListOptions, Patch};
use kube_controller_manager::objects::{
    Deployment, ObjectKey, PartialObjectMetadata, Pod, ReplicaSet, Resource, ResourceQuota,
    Timestamp, Uid,
};
use serde_json::{Value, json};

use crate::env::*;
use crate::faults::cut_lists_and_watches;
use crate::policies::{BINDINGS, create_policy};

/// A ReplicaSet of pods with the labels `app: <name>, tier: x`, which selects by the first label
/// only.
fn replica_set(name: &str, replicas: i32) -> Value {
    let mut template = deployment(name, 0, "web:1")["spec"]["template"].take();
    template["metadata"]["labels"]["tier"] = json!("x");
    json!({
        "apiVersion": "apps/v1", "kind": "ReplicaSet",
        "metadata": { "name": name, "namespace": "default" },
        "spec": {
            "replicas": replicas, "selector": { "matchLabels": { "app": name } },
            "template": template,
        },
    })
}

/// Waits until `good` accepts the object. Returns it.
async fn is<T: Resource + serde::de::DeserializeOwned>(
    env: &TestCluster,
    name: &str,
    what: &str,
    good: impl Fn(&Value) -> bool,
) -> Value {
    let (key, resource) = (ObjectKey::new("default", name), env.client.resource(&T::RESOURCE));
    eventually(&env.clock, &format!("{} {name} is {what}", T::RESOURCE), || async {
        let object: Value = resource.get(&key).await.map_err(|error| error.to_string())?;
        if good(&object) { Ok(object) } else { Err(object.to_string()) }
    })
    .await
}

/// The ReplicaSets by their image.
async fn by_image(env: &TestCluster) -> BTreeMap<String, ReplicaSet> {
    let image = |set: &ReplicaSet| {
        let template = set.spec.template.to_value();
        template["spec"]["containers"][0]["image"].as_str().expect("an image").to_owned()
    };
    let sets: Vec<ReplicaSet> = list(&env.client).await;
    sets.into_iter().map(|set| (image(&set), set)).collect()
}

#[test]
fn a_new_size_during_a_rollout_is_divided_in_proportion() {
    everywhere("share", async |env| {
        let _manager = env.manager("manager", &[]);
        let (client, clock) = (&env.client, &env.clock);
        let mut web = deployment("web", 10, "web:1");
        web["spec"]["strategy"] = json!({ "rollingUpdate": {
            "maxSurge": 3, "maxUnavailable": "20%",
        } });
        create(client, web).await;
        rolled_out(client, clock, "web").await;
        let mut stuck = set_image("web:2");
        stuck["spec"]["template"]["metadata"] =
            json!({ "annotations": { "sandbox/behavior": "never-ready" } });
        merge::<Deployment>(client, "web", stuck).await;
        let have = async |old: i32, new: i32| {
            eventually(clock, &format!("the sizes are {old} and {new}"), || async {
                let sizes: Vec<i32> = by_image(env).await.values().map(|s| s.replicas()).collect();
                if sizes == [old, new] { Ok(()) } else { Err(format!("{sizes:?}")) }
            })
            .await;
        };
        // At most two below and three above the wanted number.
        have(8, 5).await;
        merge::<Deployment>(client, "web", json!({ "spec": { "replicas": 15 } })).await;
        have(11, 7).await;
        let sets = by_image(env).await;
        for (image, from, to) in [("web:1", 8, 11), ("web:2", 5, 7)] {
            let text =
                format!("Scaled up replica set {} from {from} to {to}", sets[image].meta.name);
            has_event(env, "web", "ScalingReplicaSet", &text).await;
        }
    });
}

/// A ReplicaSet that shrinks is refused from now on.
async fn forbid_shrinking(env: &TestCluster) {
    let spec = json!({
        "matchConstraints": { "resourceRules": [{
            "apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["UPDATE"],
            "resources": ["replicasets"],
        }] },
        "validations": [{ "expression": "object.spec.replicas >= oldObject.spec.replicas" }],
    });
    create_policy(env, "no-shrinking", &spec).await;
    let binding = json!({
        "apiVersion": BINDINGS.api_version(), "kind": BINDINGS.kind,
        "metadata": { "name": "no-shrinking" },
        "spec": { "policyName": "no-shrinking", "validationActions": ["Deny"] },
    });
    env.client.resource(&BINDINGS).create::<Value>("", &binding).await.expect("binding");
    create(&env.client, replica_set("probe", 1)).await;
    let (key, sets) =
        (ObjectKey::new("default", "probe"), env.client.resource(&ReplicaSet::RESOURCE));
    eventually(&env.clock, "the policy is in force", || async {
        for replicas in [1, 0] {
            let patch = Patch::Merge(json!({ "spec": { "replicas": replicas } }));
            if sets.patch::<Value>(&key, &patch).await.is_err_and(|error| error.is_invalid()) {
                return Ok(());
            }
        }
        Err("the probe was made smaller".to_owned())
    })
    .await;
}

#[test]
fn a_status_is_current_while_old_replica_sets_cannot_shrink() {
    everywhere("no-shrinking", async |env| {
        let _manager = env.manager("manager", &[]);
        let mut web = deployment("web", 2, "web:1");
        web["spec"]["strategy"] =
            json!({ "rollingUpdate": { "maxSurge": 1, "maxUnavailable": 0 } });
        web["spec"]["progressDeadlineSeconds"] = json!(4);
        create(&env.client, web).await;
        rolled_out(&env.client, &env.clock, "web").await;
        forbid_shrinking(env).await;
        merge::<Deployment>(&env.client, "web", set_image("web:2")).await;
        is::<Deployment>(env, "web", "late with one new pod", |web| {
            let (status, late) = (&web["status"], "ProgressDeadlineExceeded");
            let conditions = status["conditions"].as_array();
            status["observedGeneration"] == web["metadata"]["generation"]
                && [&status["updatedReplicas"], &status["availableReplicas"]] == [1, 3]
                && conditions.is_some_and(|all| all.iter().any(|it| it["reason"] == late))
        })
        .await;
    });
}

#[test]
fn old_templates_are_kept_up_to_the_limit_and_reused() {
    everywhere("history", async |env| {
        let _manager = env.manager("manager", &[]);
        let (client, clock) = (&env.client, &env.clock);
        let mut web = deployment("web", 2, "web:1");
        web["spec"]["revisionHistoryLimit"] = json!(1);
        create(client, web).await;
        rolled_out(client, clock, "web").await;
        for image in ["web:2", "web:3"] {
            merge::<Deployment>(client, "web", set_image(image)).await;
            rolled_out(client, clock, "web").await;
        }
        let sets = eventually(clock, "the oldest template goes", || async {
            let sets = by_image(env).await;
            let images: Vec<&String> = sets.keys().collect();
            if images == ["web:2", "web:3"] { Ok(sets) } else { Err(format!("{images:?}")) }
        })
        .await;

        const BACK: &str = "deprecated.deployment.rollback.to";
        for (revision, reason, text) in [
            (
                "9",
                "DeploymentRollbackRevisionNotFound",
                "Unable to find the revision to rollback to.",
            ),
            ("0", "DeploymentRollback", "Rolled back deployment \"web\" to revision 2"),
        ] {
            let ask = json!({ "metadata": { "annotations": { BACK: revision } } });
            merge::<Deployment>(client, "web", ask).await;
            has_event(env, "web", reason, text).await;
            is::<Deployment>(env, "web", "done with the rollback", |web| {
                web["metadata"]["annotations"][BACK].is_null()
            })
            .await;
        }
        let back = rolled_out(client, clock, "web").await;
        assert_eq!(back.meta.annotations.get("deployment.kubernetes.io/revision"), Some("4"));
        let again = by_image(env).await;
        assert_eq!(again["web:2"].meta.uid, sets["web:2"].meta.uid, "the same ReplicaSet");
        assert_eq!([again["web:2"].replicas(), again["web:3"].replicas()], [2, 0]);
    });
}

#[test]
fn a_pod_is_available_after_min_ready_seconds() {
    everywhere("min-ready", async |env| {
        let _manager = env.manager("manager", &[]);
        let mut web = deployment("web", 1, "web:1");
        web["spec"]["minReadySeconds"] = json!(3);
        create(&env.client, web).await;
        rolled_out(&env.client, &env.clock, "web").await;
        let pod = env.pods().await.remove(0).meta.name.to_string();
        let since = |object: &Value, condition: &str| -> Timestamp {
            let conditions = object["status"]["conditions"].as_array().expect("conditions");
            let found = conditions.iter().find(|it| it["type"] == condition).expect(condition);
            assert_eq!(found["status"], "True");
            found["lastTransitionTime"].as_str().expect("a time").parse().expect("a time")
        };
        let ready = since(&is::<Pod>(env, &pod, "there", |_| true).await, "Ready");
        let web = is::<Deployment>(env, "web", "there", |_| true).await;
        let waited = since(&web, "Available").duration_since(ready);
        assert!(waited >= Duration::from_secs(3), "{waited:?}");
    });
}

#[test]
fn the_pods_with_the_lowest_deletion_cost_go_first() {
    everywhere("cost", async |env| {
        let _manager = env.manager("manager", &[]);
        let client = &env.client;
        create(client, replica_set("web", 4)).await;
        let all = |field: &'static str, count: i32| {
            move |set: &Value| set["status"][field].as_i64() == Some(count.into())
        };
        is::<ReplicaSet>(env, "web", "ready", all("readyReplicas", 4)).await;
        let mut names: Vec<String> =
            env.pods().await.iter().map(|pod| pod.meta.name.to_string()).collect();
        names.sort();
        for (name, cost) in [(&names[0], "-10"), (&names[3], "10")] {
            let meta = json!({
                "annotations": { "controller.kubernetes.io/pod-deletion-cost": cost },
                "labels": { "tier": "y" },
            });
            merge::<Pod>(client, name, json!({ "metadata": meta })).await;
        }
        // The changed label shows in the status when the controller has seen the cost.
        is::<ReplicaSet>(env, "web", "informed", all("fullyLabeledReplicas", 2)).await;
        for (replicas, left) in [(3, &names[1..]), (1, &names[3..])] {
            merge::<ReplicaSet>(client, "web", json!({ "spec": { "replicas": replicas } })).await;
            eventually(&env.clock, &format!("{left:?} remain"), || async {
                let pods = env.pods().await;
                let mut found: Vec<&str> = pods.iter().map(|pod| &*pod.meta.name).collect();
                found.sort();
                if found == left { Ok(()) } else { Err(format!("{found:?}")) }
            })
            .await;
        }
        has_event(env, "web", "SuccessfulCreate", &format!("Created pod: {}", names[0])).await;
        has_event(env, "web", "SuccessfulDelete", &format!("Deleted pod: {}", names[0])).await;
    });
}

#[test]
fn a_name_collision_counts_up() {
    everywhere("collision", async |env| {
        let _manager = env.manager("manager", &[]);
        let (client, clock) = (&env.client, &env.clock);
        create(client, deployment("web", 2, "web:1")).await;
        rolled_out(client, clock, "web").await;
        let name = by_image(env).await["web:1"].meta.name.to_string();
        client
            .delete::<Deployment>(&ObjectKey::new("default", "web"), Delete::foreground())
            .await
            .expect("delete");
        eventually(clock, "everything goes", || async {
            let left = list::<Deployment>(client).await.len() + by_image(env).await.len();
            let left = left + env.pods().await.len();
            if left == 0 { Ok(()) } else { Err(format!("{left} left")) }
        })
        .await;
        let mut taken = replica_set("other", 0);
        taken["metadata"]["name"] = json!(name);
        create(client, taken).await;
        create(client, deployment("web", 2, "web:1")).await;
        rolled_out(client, clock, "web").await;
        let web = is::<Deployment>(env, "web", "there", |_| true).await;
        assert_eq!(web["status"]["collisionCount"], 1);
        let taken = is::<ReplicaSet>(env, &name, "there", |_| true).await;
        assert!(taken["metadata"]["ownerReferences"].is_null(), "it is not adopted");
        assert_eq!(taken["spec"]["template"]["metadata"]["labels"]["app"], "other");
    });
}

#[test]
fn creates_slow_down_while_a_quota_forbids_them() {
    everywhere("forbidden", async |env| {
        let _manager = env.manager("manager", &[]);
        let client = &env.client;
        let quota = json!({
            "apiVersion": "v1", "kind": "ResourceQuota",
            "metadata": { "name": "few", "namespace": "default" },
            "spec": { "hard": { "pods": "2" } },
        });
        create(client, quota).await;
        let counted = |quota: &Value| quota["status"]["used"]["pods"] == "0";
        is::<ResourceQuota>(env, "few", "counted", counted).await;
        create(client, replica_set("web", 30)).await;
        let why =
            "is forbidden: exceeded quota: few, requested: pods=1, used: pods=2, limited: pods=2";
        is::<ReplicaSet>(env, "web", "short of pods and says why", |set| {
            let condition = &set["status"]["conditions"][0];
            set["status"]["replicas"] == 2
                && [&condition["type"], &condition["status"], &condition["reason"]]
                    == ["ReplicaFailure", "True", "FailedCreate"]
                && condition["message"].as_str().is_some_and(|message| message.ends_with(why))
        })
        .await;
        has_event(env, "web", "FailedCreate", why).await;
        if let Some(faults) = &env.faults {
            // One create, then two at once; after that one each time, with growing delays.
            let asked = faults.count("create", "pods");
            assert!(asked < 30, "{asked} requests");
        }
        let more = json!({ "spec": { "hard": { "pods": "30" } } });
        merge::<ResourceQuota>(client, "few", more).await;
        is::<ReplicaSet>(env, "web", "complete, without the condition", |set| {
            set["status"]["replicas"] == 30 && set["status"]["conditions"].is_null()
        })
        .await;
    });
}

#[test]
fn terminating_pods_are_counted_and_replaced() {
    everywhere("terminating", async |env| {
        let _manager = env.manager("manager", &[]);
        let (client, clock) = (&env.client, &env.clock);
        create(client, deployment("web", 2, "web:1")).await;
        rolled_out(client, clock, "web").await;
        let name = env.pods().await[0].meta.name.to_string();
        let set = by_image(env).await["web:1"].meta.name.to_string();
        let hold = |finalizers: Value| json!({ "metadata": { "finalizers": finalizers } });
        // With only a finalizer, the kubelet would report that the pod has ended.
        env.steering.keep(&name, true);
        merge::<Pod>(client, &name, hold(json!(["test.io/hold"]))).await;
        let key = ObjectKey::new("default", &name);
        client.delete::<Pod>(&key, Delete::new().grace_period(0)).await.expect("delete");
        for going in [1, 0] {
            let counts = |object: &Value| {
                let status = &object["status"];
                status["terminatingReplicas"] == going && status["readyReplicas"] == 2
            };
            is::<ReplicaSet>(env, &set, &format!("at {going} terminating"), counts).await;
            is::<Deployment>(env, "web", &format!("at {going} terminating"), counts).await;
            if going == 1 {
                assert_eq!(env.pods().await.len(), 3, "the third takes its place");
                env.steering.keep(&name, false);
                merge::<Pod>(client, &name, hold(Value::Null)).await;
            }
        }
    });
}

#[test]
fn a_status_is_written_only_when_it_changes() {
    Env::run("quiet", async |env| {
        let _manager = env.manager("manager", &[]);
        create(&env.client, replica_set("web", 5)).await;
        is::<ReplicaSet>(env, "web", "ready", |set| set["status"]["readyReplicas"] == 5).await;
        for pod in env.pods().await {
            let touch = json!({ "metadata": { "labels": { "tier": "y" } } });
            merge::<Pod>(&env.client, &pod.meta.name, touch).await;
        }
        is::<ReplicaSet>(env, "web", "relabelled", |set| {
            set["status"]["fullyLabeledReplicas"].as_i64().unwrap_or(0) == 0
        })
        .await;
        let written = env.cluster.sandbox.faults().count("update", "replicasets/status");
        // A write without a change makes no version. The first version is the creation.
        let store = &env.cluster.sandbox.api().store;
        let versions = store.changes("replicasets.apps", 0, usize::MAX, true).expect("the history");
        assert_eq!(written, versions.changes.len() as u64 - 1);
    });
}

/// The verbs of a kind, and whether it has a namespace.
async fn served(env: &TestCluster, kind: &str) -> (Dynamic, bool) {
    let discovery = env.client.discovery().await.expect("discovery");
    let found = discovery.preferred().find(|found| *found.resource.kind == *kind);
    let resource = &found.expect("a kind that is served").resource;
    (env.client.resource(resource), resource.namespaced)
}

/// Creates a namespace with work for most controllers, and waits until the work is done.
pub async fn populate_namespace(env: &TestCluster, name: &str) {
    let service = json!({ "apiVersion": "v1", "spec": { "selector": { "app": name }, "ports": [{ "port": 80 }] } });
    let token = json!({
        "apiVersion": "v1", "type": "kubernetes.io/service-account-token",
        "metadata": { "annotations": { "kubernetes.io/service-account.name": "default" } },
    });
    let quota = json!({ "apiVersion": "v1", "spec": { "hard": { "pods": "9" } } });
    let job = json!({ "apiVersion": "batch/v1", "spec": { "template": {
        "metadata": { "annotations": { "sandbox/run": "exit 0" } },
        "spec": { "restartPolicy": "Never", "containers": [{ "name": "main", "image": "x:1" }] },
    } } });
    let two = |list: &Value| list.as_array().is_some_and(|list| list.len() == 2);
    let is_done = |kind: &str, object: &Value| match kind {
        "ConfigMap" => object["data"]["ca.crt"].is_string(),
        "Secret" => object["data"]["token"].is_string(),
        "ResourceQuota" => object["status"]["used"]["pods"] == "2",
        "Endpoints" => two(&object["subsets"][0]["addresses"]),
        "EndpointSlice" => {
            let ready = |endpoint: &Value| endpoint["conditions"]["ready"] == true;
            let endpoints = &object["endpoints"];
            two(endpoints) && endpoints.as_array().unwrap().iter().all(ready)
        }
        "ReplicaSet" => object["status"]["availableReplicas"] == 2,
        "Job" => object["status"]["completionTime"].is_string(),
        "Deployment" => {
            let conditions = object["status"]["conditions"].as_array().into_iter().flatten();
            let mut reasons = conditions.map(|condition| &condition["reason"]);
            object["status"]["availableReplicas"] == 2
                && reasons.any(|reason| reason == "NewReplicaSetAvailable")
        }
        _ => true,
    };
    // An object is created, `None` is only waited for: a token needs its account first, and a quota
    // is counted once when all that it counts exists.
    for (kind, object) in [
        ("Namespace", Some(json!({ "apiVersion": "v1" }))),
        ("ServiceAccount", None),
        ("Service", Some(service)),
        ("Secret", Some(token)),
        ("Deployment", Some(deployment(name, 2, "web:1"))),
        ("Job", Some(job)),
        ("ConfigMap", None),
        ("Secret", None),
        ("Endpoints", None),
        ("EndpointSlice", None),
        ("ReplicaSet", None),
        ("Deployment", None),
        ("Job", None),
        ("ResourceQuota", Some(quota)),
        ("ResourceQuota", None),
    ] {
        let (verbs, namespaced) = served(env, kind).await;
        if let Some(mut object) = object {
            let namespace = if namespaced { name } else { "" };
            object["kind"] = json!(kind);
            object["metadata"]["name"] = json!(name);
            object["metadata"]["namespace"] = json!(namespace);
            verbs.create::<Value>(namespace, &object).await.expect("create");
            continue;
        }
        eventually(&env.clock, &format!("{kind} of {name} is done"), || async {
            let all = verbs.list::<Value>(Some(name), &ListOptions::default()).await;
            let all = all.map_err(|error| error.to_string())?.items;
            let done = all.len() == 1 && is_done(kind, &all[0]);
            if done { Ok(()) } else { Err(format!("{all:?}")) }
        })
        .await;
    }
}

/// The uids and versions of the namespace `name` and its objects.
async fn versions(env: &TestCluster, name: &str) -> BTreeMap<String, (Uid, u64)> {
    let mut versions = BTreeMap::new();
    for kind in [
        "Namespace",
        "ServiceAccount",
        "ConfigMap",
        "Secret",
        "ResourceQuota",
        "Service",
        "Endpoints",
        "EndpointSlice",
        "Deployment",
        "ReplicaSet",
        "Job",
        "Pod",
    ] {
        let (verbs, namespaced) = served(env, kind).await;
        let (verbs, place) = (verbs.metadata_only(), namespaced.then_some(name));
        let all = verbs.list::<PartialObjectMetadata>(place, &ListOptions::default()).await;
        for PartialObjectMetadata { meta, .. } in all.expect("list").items {
            if namespaced || *meta.name == *name {
                versions
                    .insert(format!("{kind} {}", meta.key()), (meta.uid, meta.resource_version));
            }
        }
    }
    versions
}

#[test]
fn a_manager_that_takes_over_changes_nothing() {
    everywhere("swap", async |env| {
        let first = env.manager("first", &[]);
        populate_namespace(env, "before").await;
        assert!(first.stop(&env.clock, PATIENCE).await.unwrap().success());
        let before = versions(env, "before").await;
        assert_eq!(before.len(), 14, "{before:?}");
        let _second = env.manager("second", &[]);
        // When this is done, every controller has seen the objects from before.
        populate_namespace(env, "after").await;
        assert_eq!(versions(env, "before").await, before);
    });
}

/// Waits until the manager's cache of ReplicaSets has all writes until now.
async fn caught_up(env: &TestCluster) {
    let mut last = replica_set("last", 0);
    last["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "apps/v1", "kind": "Deployment", "name": "no", "uid": "no",
    }]);
    create(&env.client, last).await;
    eventually(&env.clock, "the last ReplicaSet is collected", || async {
        let sets: Vec<ReplicaSet> = list(&env.client).await;
        if sets.iter().any(|set| &*set.meta.name == "last") {
            Err("not yet".into())
        } else {
            Ok(())
        }
    })
    .await;
}

#[test]
fn a_sync_waits_until_its_cache_has_its_own_writes() {
    Env::run("lagging", async |env| {
        let manager = env.manager("manager", &["-v=4"]);
        let (client, clock, faults) = (&env.client, &env.clock, env.cluster.sandbox.faults());
        for name in ["web", "other"] {
            create(client, replica_set(name, 2)).await;
            is::<ReplicaSet>(env, name, "ready", |set| set["status"]["readyReplicas"] == 2).await;
        }
        let ready = async |app: &str| -> Vec<String> {
            let pods = env.pods().await;
            let of = pods.iter().filter(|pod| pod.meta.labels.get("app") == Some(app));
            of.filter(|pod| pod.is_ready()).map(|pod| pod.meta.name.to_string()).collect()
        };
        let replaced = async |app: &str| {
            let name = ready(app).await.remove(0);
            let key = ObjectKey::new("default", &name);
            client.delete::<Pod>(&key, Delete::new()).await.expect("delete");
            eventually(clock, &format!("{name} is replaced"), || async {
                let now = ready(app).await;
                if now.len() == 2 && !now.contains(&name) {
                    Ok(())
                } else {
                    Err(format!("{now:?}"))
                }
            })
            .await;
        };
        caught_up(env).await;
        cut_lists_and_watches(faults, "replicasets");
        // The status written with this does not come back through the watch.
        replaced("web").await;
        let name = ready("web").await.remove(0);
        let key = ObjectKey::new("default", &name);
        client.delete::<Pod>(&key, Delete::new()).await.expect("delete");
        // Its deletion came before those of the others, and was handled since.
        replaced("other").await;
        let looks = || {
            let log = std::fs::read_to_string(&manager.log).unwrap();
            log.matches("Error syncing default/web: read version: ").count()
        };
        let before = looks();
        eventually(clock, "the sync waits for the cache", || async {
            if looks() > before + 1 { Ok(()) } else { Err("it does not".to_owned()) }
        })
        .await;
        assert_eq!(env.pods().await.len(), 3, "one of web, two of other");
        faults.clear();
        for name in ["web", "other"] {
            is::<ReplicaSet>(env, name, "whole", |set| set["status"]["readyReplicas"] == 2).await;
        }
        assert_eq!(env.pods().await.len(), 4);
    });
}

#[test]
fn an_owner_with_another_uid_on_the_server_adopts_nothing() {
    Env::run("recheck", async |env| {
        let _manager = env.manager("manager", &[]);
        let (client, clock, faults) = (&env.client, &env.clock, env.cluster.sandbox.faults());
        create(client, replica_set("web", 0)).await;
        let known = |set: &Value| set["status"]["observedGeneration"] == 1;
        is::<ReplicaSet>(env, "web", "known", known).await;
        caught_up(env).await;
        cut_lists_and_watches(faults, "replicasets");
        client
            .delete::<ReplicaSet>(&ObjectKey::new("default", "web"), Delete::new())
            .await
            .expect("delete");
        let mut another = replica_set("other", 0);
        another["metadata"]["name"] = json!("web");
        create(client, another).await;
        let asked = faults.count("get", "replicasets");
        let orphan = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": "orphan", "namespace": "default", "labels": { "app": "web" } },
            "spec": { "containers": [{ "name": "main", "image": "web:1" }] },
        });
        create(client, orphan).await;
        eventually(clock, "the owner is looked up", || async {
            let now = faults.count("get", "replicasets");
            if now > asked + 1 { Ok(()) } else { Err(format!("{} times", now - asked)) }
        })
        .await;
        let is_free = |pods: Vec<Pod>| pods.len() == 1 && pods[0].meta.owners().is_empty();
        assert!(is_free(env.pods().await));
        faults.clear();
        is::<ReplicaSet>(env, "web", "known", known).await;
        assert!(is_free(env.pods().await));
    });
}
