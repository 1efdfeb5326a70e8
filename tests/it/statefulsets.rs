//! StatefulSets: identity, order, versions, claims.

use std::collections::BTreeMap;

use kube_controller_manager::client::{Delete, ListOptions, Patch};
use kube_controller_manager::objects::{
    ControllerRevision, ObjectKey, PersistentVolumeClaim, Pod, Resource, StatefulSet, StorageClass,
    Timestamp,
};
use sandbox::faults::Fault;
use sandbox::nodes::DRIVER;
use serde_json::{Value, json};

use crate::crashes::QUICK_BINDER;
use crate::env::*;
use crate::faults::cut_lists_and_watches;
use crate::kinds::EVENTS;
use crate::quota::uses;

/// A StatefulSet of one container, selected by `app: <name>`.
fn stateful_set(name: &str, replicas: i32) -> Value {
    let mut set = deployment(name, replicas, "db:1");
    set["kind"] = json!("StatefulSet");
    set["spec"]["serviceName"] = json!(name);
    set
}

async fn list_values<T: Resource>(env: &TestCluster) -> BTreeMap<String, Value> {
    let items = env.client.resource(&T::RESOURCE);
    let items = items.list::<Value>(Some("default"), &ListOptions::default()).await;
    let name = |item: &Value| item["metadata"]["name"].as_str().expect("a name").to_owned();
    items.expect("list").items.into_iter().map(|item| (name(&item), item)).collect()
}

/// Waits until `good` accepts the list. Returns the objects by name.
async fn listed<T: Resource>(
    env: &TestCluster,
    what: &str,
    good: impl Fn(&BTreeMap<String, Value>) -> bool,
) -> BTreeMap<String, Value> {
    eventually(&env.clock, what, || async {
        let items = list_values::<T>(env).await;
        if good(&items) { Ok(items) } else { Err(format!("{items:#?}")) }
    })
    .await
}

/// Waits until the pods, that are not being deleted, are these: `web-0 db:1`.
async fn pods_are(env: &TestCluster, expected: &[&str]) -> BTreeMap<String, Value> {
    let state = |pods: &BTreeMap<String, Value>| -> Vec<String> {
        let stay = pods.values().filter(|pod| pod["metadata"]["deletionTimestamp"].is_null());
        let text = |pod: &Value| {
            let image = pod["spec"]["containers"][0]["image"].as_str().expect("an image");
            format!("{} {image}", pod["metadata"]["name"].as_str().expect("a name"))
        };
        stay.map(text).collect()
    };
    listed::<Pod>(env, &format!("the pods are {expected:?}"), |pods| state(pods) == expected).await
}

/// Waits until the set has these pods, all ready, and its status shows the newest template.
async fn settled(env: &TestCluster, name: &str, replicas: i32) -> Value {
    let key = ObjectKey::new("default", name);
    let sets = env.client.resource(&StatefulSet::RESOURCE);
    eventually(&env.clock, &format!("{name} settles at {replicas}"), || async {
        let set: Value = sets.get(&key).await.map_err(|error| error.to_string())?;
        let status = &set["status"];
        let count = |field: &str| status[field].as_i64().unwrap_or(0);
        let observed = status["observedGeneration"] == set["metadata"]["generation"];
        let ready = ["replicas", "readyReplicas", "availableReplicas"]
            .iter()
            .all(|field| count(field) == i64::from(replicas));
        if observed && ready { Ok(set) } else { Err(set.to_string()) }
    })
    .await
}

/// As [`settled`], when all pods are of the newest template.
async fn updated(env: &TestCluster, name: &str, replicas: i32) -> Value {
    eventually(&env.clock, &format!("{name} is updated"), || async {
        let set = settled(env, name, replicas).await;
        let status = &set["status"];
        let complete = status["currentRevision"] == status["updateRevision"]
            && status["updatedReplicas"].as_i64().unwrap_or(0) == i64::from(replicas)
            && status["currentReplicas"] == status["updatedReplicas"];
        if complete { Ok(set) } else { Err(set.to_string()) }
    })
    .await
}

fn uid(object: &Value) -> &str {
    object["metadata"]["uid"].as_str().expect("a uid")
}

async fn set_spec(env: &TestCluster, name: &str, spec: Value) {
    merge::<StatefulSet>(&env.client, name, json!({ "spec": spec })).await;
}

#[test]
fn pods_have_an_identity_and_come_and_go_in_order() {
    everywhere("sts-order", async |env| {
        let _manager = env.manager("manager", &[]);
        env.steering.hold(true);
        create(&env.client, stateful_set("web", 3)).await;
        let pods = pods_are(env, &["web-0 db:1"]).await;
        has_event(env, "web", "SuccessfulCreate", "Create Pod web-0 in StatefulSet web successful")
            .await;
        let (metadata, spec) = (&pods["web-0"]["metadata"], &pods["web-0"]["spec"]);
        let labels = &metadata["labels"];
        assert_eq!(labels["statefulset.kubernetes.io/pod-name"], "web-0");
        assert_eq!(labels["apps.kubernetes.io/pod-index"], "0");
        assert_eq!((&spec["hostname"], &spec["subdomain"]), (&json!("web-0"), &json!("web")));
        let key = ObjectKey::new("default", "web");
        let sets = env.client.resource(&StatefulSet::RESOURCE);
        let set: Value = eventually(&env.clock, "the status names the revision", || async {
            let set: Value = sets.get(&key).await.map_err(|error| error.to_string())?;
            match set["status"]["updateRevision"] == labels["controller-revision-hash"] {
                true => Ok(set),
                false => Err(set.to_string()),
            }
        })
        .await;
        assert_eq!(set["status"]["collisionCount"], 0);
        env.steering.hold(false);
        settled(env, "web", 3).await;
        let pods = pods_are(env, &["web-0 db:1", "web-1 db:1", "web-2 db:1"]).await;
        let created = |name: &str| pods[name]["metadata"]["creationTimestamp"].to_string();
        assert!(created("web-0") <= created("web-1") && created("web-1") <= created("web-2"));

        // Other ordinals: the old pods go, from the highest, once the new ones are ready.
        set_spec(env, "web", json!({ "ordinals": { "start": 2 }, "replicas": 2 })).await;
        pods_are(env, &["web-2 db:1", "web-3 db:1"]).await;
        settled(env, "web", 2).await;
        set_spec(env, "web", json!({ "replicas": 0 })).await;
        pods_are(env, &[]).await;
        settled(env, "web", 0).await;
        for name in ["web-3", "web-2"] {
            let text = format!("Delete Pod {name} in StatefulSet web successful");
            has_event(env, "web", "SuccessfulDelete", &text).await;
        }
    });
}

#[test]
fn a_pod_is_available_when_it_was_ready_for_long_enough() {
    everywhere("sts-min-ready", async |env| {
        let _manager = env.manager("manager", &[]);
        let mut web = stateful_set("web", 2);
        web["spec"]["minReadySeconds"] = json!(3600);
        create(&env.client, web).await;
        let key = ObjectKey::new("default", "web");
        let sets = env.client.resource(&StatefulSet::RESOURCE);
        eventually(&env.clock, "the first pod is ready and not available", || async {
            let set: Value = sets.get(&key).await.map_err(|error| error.to_string())?;
            let status = &set["status"];
            let ready = status["readyReplicas"] == 1;
            let available = status["availableReplicas"].as_i64().unwrap_or(0);
            if ready && available == 0 { Ok(()) } else { Err(status.to_string()) }
        })
        .await;
        set_spec(env, "web", json!({ "minReadySeconds": 4 })).await;
        settled(env, "web", 2).await;
        let pods = list_values::<Pod>(env).await;
        let time = |value: &Value| value.as_str().expect("a time").parse::<Timestamp>().unwrap();
        let conditions = pods["web-0"]["status"]["conditions"].as_array().expect("conditions");
        let ready = conditions.iter().find(|condition| condition["type"] == "Ready").unwrap();
        let (ready, next) = (
            time(&ready["lastTransitionTime"]),
            time(&pods["web-1"]["metadata"]["creationTimestamp"]),
        );
        assert!(next >= ready + std::time::Duration::from_secs(4), "{ready} {next}");
    });
}

#[test]
fn parallel_pods_do_not_wait_for_each_other() {
    everywhere("sts-parallel", async |env| {
        let _manager = env.manager("manager", &[]);
        env.steering.hold(true);
        let mut web = stateful_set("web", 4);
        web["spec"]["podManagementPolicy"] = json!("Parallel");
        create(&env.client, web).await;
        pods_are(env, &["web-0 db:1", "web-1 db:1", "web-2 db:1", "web-3 db:1"]).await;
        set_spec(env, "web", json!({ "replicas": 1 })).await;
        pods_are(env, &["web-0 db:1"]).await;
        env.steering.hold(false);
        updated(env, "web", 1).await;
    });
}

/// The wanted pod needs the place of the pod that is to go.
#[test]
fn a_parallel_set_is_scaled_down_while_a_quota_refuses_a_pod_below() {
    everywhere("sts-quota", async |env| {
        let _manager = env.manager("manager", &[]);
        let mut web = stateful_set("web", 3);
        web["spec"]["podManagementPolicy"] = json!("Parallel");
        create(&env.client, web).await;
        updated(env, "web", 3).await;
        let quota = json!({
            "apiVersion": "v1", "kind": "ResourceQuota",
            "metadata": { "namespace": "default", "name": "pods" },
            "spec": { "hard": { "pods": "2" } },
        });
        create(&env.client, quota).await;
        uses(env, "pods", &[("pods", "3")]).await;
        let key = ObjectKey::new("default", "web-0");
        env.client.delete::<Pod>(&key, Delete::new()).await.expect("delete");
        eventually(&env.clock, "web-0 is refused", || async {
            let events = env.client.resource(&EVENTS);
            let events = events.list::<Value>(Some("default"), &ListOptions::default()).await;
            let events = events.map_err(|error| error.to_string())?.items;
            let is_refusal = |event: &Value| {
                event["reason"] == "FailedCreate" && event["involvedObject"]["name"] == "web"
            };
            if events.iter().any(is_refusal) { Ok(()) } else { Err(format!("{events:#?}")) }
        })
        .await;
        set_spec(env, "web", json!({ "replicas": 2 })).await;
        pods_are(env, &["web-0 db:1", "web-1 db:1"]).await;
        updated(env, "web", 2).await;
    });
}

#[test]
fn updates_follow_partition_and_strategy_and_can_be_rolled_back() {
    everywhere("sts-update", async |env| {
        let _manager = env.manager("manager", &[]);
        create(&env.client, stateful_set("web", 3)).await;
        let first = updated(env, "web", 3).await;
        let partition = |partition: i32| json!({ "type": "RollingUpdate", "rollingUpdate": { "partition": partition } });
        set_spec(env, "web", json!({ "updateStrategy": partition(2) })).await;
        merge::<StatefulSet>(&env.client, "web", set_image("db:2")).await;
        pods_are(env, &["web-0 db:1", "web-1 db:1", "web-2 db:2"]).await;
        let set = settled(env, "web", 3).await;
        let status = &set["status"];
        assert_eq!(status["currentRevision"], first["status"]["currentRevision"]);
        assert_ne!(status["updateRevision"], status["currentRevision"]);
        // A pod below the partition comes back as it was.
        let key = ObjectKey::new("default", "web-0");
        let before = list_values::<Pod>(env).await;
        env.client.delete::<Pod>(&key, Delete::new()).await.expect("delete");
        listed::<Pod>(env, "web-0 is replaced", |pods| {
            pods.get("web-0").is_some_and(|pod| uid(pod) != uid(&before["web-0"]))
        })
        .await;
        pods_are(env, &["web-0 db:1", "web-1 db:1", "web-2 db:2"]).await;

        settled(env, "web", 3).await;
        set_spec(env, "web", json!({ "updateStrategy": partition(0) })).await;
        updated(env, "web", 3).await;
        pods_are(env, &["web-0 db:2", "web-1 db:2", "web-2 db:2"]).await;

        // The first template again is the first revision, under a new number.
        merge::<StatefulSet>(&env.client, "web", set_image("db:1")).await;
        let back = updated(env, "web", 3).await;
        assert_eq!(back["status"]["currentRevision"], first["status"]["currentRevision"]);
        let revisions = list_values::<ControllerRevision>(env).await;
        let numbers: Vec<_> = revisions.values().map(|revision| &revision["revision"]).collect();
        assert_eq!(revisions.len(), 2, "{revisions:#?}");
        assert!(numbers.contains(&&json!(2)) && numbers.contains(&&json!(3)), "{numbers:?}");
        let name = back["status"]["currentRevision"].as_str().expect("a name");
        assert_eq!(revisions[name]["revision"], 3);

        // With OnDelete the user deletes the pods.
        let strategy = json!({ "type": "OnDelete", "rollingUpdate": null });
        set_spec(env, "web", json!({ "updateStrategy": strategy, "revisionHistoryLimit": 0 }))
            .await;
        merge::<StatefulSet>(&env.client, "web", set_image("db:3")).await;
        let key = ObjectKey::new("default", "web-1");
        eventually(&env.clock, "the new template is seen", || async {
            let set = settled(env, "web", 3).await;
            let status = &set["status"];
            match status["updateRevision"] != status["currentRevision"] {
                true => Ok(()),
                false => Err(set.to_string()),
            }
        })
        .await;
        env.client.delete::<Pod>(&key, Delete::new()).await.expect("delete");
        pods_are(env, &["web-0 db:1", "web-1 db:3", "web-2 db:1"]).await;
        settled(env, "web", 3).await;
        // The revision without pods is deleted.
        listed::<ControllerRevision>(env, "the history is short", |all| all.len() == 2).await;
        for name in ["web-0", "web-2"] {
            let key = ObjectKey::new("default", name);
            env.client.delete::<Pod>(&key, Delete::new()).await.expect("delete");
        }
        pods_are(env, &["web-0 db:3", "web-1 db:3", "web-2 db:3"]).await;
        updated(env, "web", 3).await;
        listed::<ControllerRevision>(env, "the history is empty", |all| all.len() == 1).await;
    });
}

#[test]
fn failed_and_evicted_pods_are_replaced() {
    everywhere("sts-evicted", async |env| {
        let _manager = env.manager("manager", &[]);
        create(&env.client, stateful_set("web", 2)).await;
        updated(env, "web", 2).await;
        let pods = env.client.resource(&Pod::RESOURCE).subresource("status");
        for (status, pod) in [
            (json!({ "phase": "Failed", "reason": "Evicted" }), "web-0"),
            (json!({ "phase": "Succeeded" }), "web-1"),
        ] {
            let before = list_values::<Pod>(env).await;
            let key = ObjectKey::new("default", pod);
            let patch = Patch::Merge(json!({ "status": status }));
            pods.patch::<Value>(&key, &patch).await.expect("patch");
            listed::<Pod>(env, &format!("{pod} is replaced"), |pods| {
                pods.get(pod).is_some_and(|now| uid(now) != uid(&before[pod]))
            })
            .await;
            settled(env, "web", 2).await;
            let text = format!("Delete Pod {pod} in StatefulSet web successful");
            has_event(env, "web", "SuccessfulDelete", &text).await;
        }
    });
}

/// Makes the class `csi` of [`with_claims`]. The stand-in driver makes its volumes.
pub async fn make_class(env: &TestCluster) {
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": { "name": "csi" },
        "provisioner": DRIVER, "volumeBindingMode": "Immediate",
    });
    env.client.create::<StorageClass>("", &class).await.expect("create");
}

/// `web` of three pods with a claim `data` of the class `csi` each.
pub fn with_claims(deleted: &str, scaled: &str) -> Value {
    let mut web = stateful_set("web", 3);
    web["spec"]["volumeClaimTemplates"] = json!([{
        "metadata": { "name": "data", "labels": { "tier": "db" } },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "csi",
            "resources": { "requests": { "storage": "1Gi" } },
        },
    }]);
    web["spec"]["persistentVolumeClaimRetentionPolicy"] =
        json!({ "whenDeleted": deleted, "whenScaled": scaled });
    web
}

/// The kinds of a claim's owners.
pub fn owners(claim: &Value) -> Vec<&str> {
    let owners = claim["metadata"]["ownerReferences"].as_array().into_iter().flatten();
    owners.map(|owner| owner["kind"].as_str().expect("a kind")).collect()
}

#[test]
fn claims_are_kept_or_deleted_as_the_policy_says() {
    everywhere("sts-claims", async |env| {
        make_class(env).await;
        let _manager = env.manager("manager", &[QUICK_BINDER]);
        create(&env.client, with_claims("Retain", "Retain")).await;
        let set = updated(env, "web", 3).await;
        let claims = list_values::<PersistentVolumeClaim>(env).await;
        let names: Vec<&String> = claims.keys().collect();
        assert_eq!(names, ["data-web-0", "data-web-1", "data-web-2"]);
        let claim = &claims["data-web-1"];
        assert_eq!(claim["metadata"]["labels"], json!({ "app": "web", "tier": "db" }));
        assert!(owners(claim).is_empty());
        let text = "Create Claim data-web-1 Pod web-1 in StatefulSet web success";
        has_event(env, "web", "SuccessfulCreate", text).await;
        let pods = list_values::<Pod>(env).await;
        let volume = &pods["web-1"]["spec"]["volumes"][0];
        assert_eq!(volume["persistentVolumeClaim"]["claimName"], "data-web-1");

        // Claims that are kept are used again.
        set_spec(env, "web", json!({ "replicas": 1 })).await;
        settled(env, "web", 1).await;
        set_spec(env, "web", json!({ "replicas": 2 })).await;
        settled(env, "web", 2).await;
        let again = list_values::<PersistentVolumeClaim>(env).await;
        assert_eq!(again.len(), 3);
        assert_eq!(uid(&again["data-web-1"]), uid(claim));

        // A claim of another controller is not changed.
        let other = json!([{
            "apiVersion": "example.com/v1", "kind": "Keeper", "name": "k", "uid": "k-1",
            "controller": true,
        }]);
        let of_other = json!({ "metadata": { "ownerReferences": other } });
        merge::<PersistentVolumeClaim>(&env.client, "data-web-0", of_other).await;
        let policy = json!({ "whenDeleted": "Delete", "whenScaled": "Delete" });
        set_spec(env, "web", json!({ "persistentVolumeClaimRetentionPolicy": policy })).await;
        let claims = listed::<PersistentVolumeClaim>(env, "claims have owners", |claims| {
            owners(&claims["data-web-1"]) == ["StatefulSet"]
        })
        .await;
        let owner = &claims["data-web-1"]["metadata"]["ownerReferences"][0];
        assert_eq!(owner["uid"], set["metadata"]["uid"]);
        assert_eq!(owner["controller"], true);
        // The event of the next pod that uses it says so; the word "manging" is upstream's.
        let first = ObjectKey::new("default", "web-0");
        env.client.delete::<Pod>(&first, Delete::new()).await.expect("delete");
        let text = "PersistentVolumeClaim data-web-0 has a conflicting OwnerReference that acts as \
            a manging controller, the retention policy is ignored for this claim";
        has_event(env, "web", "ConflictingController", text).await;
        settled(env, "web", 2).await;

        // Scaled down, the claim is deleted with its pod, and a new one comes with the next.
        let before = uid(&claims["data-web-1"]).to_owned();
        set_spec(env, "web", json!({ "replicas": 1 })).await;
        listed::<PersistentVolumeClaim>(env, "the claim goes", |claims| {
            !claims.contains_key("data-web-1")
        })
        .await;
        set_spec(env, "web", json!({ "replicas": 2 })).await;
        settled(env, "web", 2).await;
        let claims = list_values::<PersistentVolumeClaim>(env).await;
        assert_ne!(uid(&claims["data-web-1"]), before);
        let key = ObjectKey::new("default", "web");
        env.client.delete::<StatefulSet>(&key, Delete::new()).await.expect("delete");
        let claims = listed::<PersistentVolumeClaim>(env, "claims go with the set", |claims| {
            !claims.contains_key("data-web-1")
        })
        .await;
        assert_eq!(owners(&claims["data-web-0"]), ["Keeper"]);
    });
}

#[test]
fn a_scale_up_waits_for_the_claim_of_the_pod_before() {
    Env::run("sts-stale-claim", async |env| {
        make_class(env).await;
        let _manager = env.manager("manager", &[QUICK_BINDER]);
        create(&env.client, with_claims("Retain", "Delete")).await;
        updated(env, "web", 3).await;
        // Something else holds the claim for a while.
        let hold = json!({ "metadata": { "finalizers": ["example.com/hold"] } });
        merge::<PersistentVolumeClaim>(&env.client, "data-web-2", hold).await;
        set_spec(env, "web", json!({ "replicas": 2 })).await;
        listed::<PersistentVolumeClaim>(env, "the claim is going", |claims| {
            !claims["data-web-2"]["metadata"]["deletionTimestamp"].is_null()
        })
        .await;
        set_spec(env, "web", json!({ "replicas": 3 })).await;
        eventually(&env.clock, "the new size is seen", || async {
            let set = settled(env, "web", 2).await;
            match set["spec"]["replicas"] == 3 {
                true => Ok(()),
                false => Err(set.to_string()),
            }
        })
        .await;
        let free = json!({ "metadata": { "finalizers": null } });
        merge::<PersistentVolumeClaim>(&env.client, "data-web-2", free).await;
        settled(env, "web", 3).await;
        let claims = list_values::<PersistentVolumeClaim>(env).await;
        assert!(claims["data-web-2"]["metadata"]["deletionTimestamp"].is_null());
    });
}

#[test]
fn pods_and_revisions_are_orphaned_and_adopted() {
    everywhere("sts-adopt", async |env| {
        let _manager = env.manager("manager", &[]);
        create(&env.client, stateful_set("web", 2)).await;
        updated(env, "web", 2).await;
        let pods = list_values::<Pod>(env).await;
        let revisions = list_values::<ControllerRevision>(env).await;
        let key = ObjectKey::new("default", "web");
        let orphan = Delete::orphan();
        env.client.delete::<StatefulSet>(&key, orphan).await.expect("delete");
        eventually(&env.clock, "the set is gone", || async {
            match env.client.get::<StatefulSet>(&key).await {
                Err(error) if error.is_not_found() => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
        let orphans = listed::<Pod>(env, "the pods are orphans", |pods| {
            pods.len() == 2 && pods.values().all(|pod| owners(pod).is_empty())
        })
        .await;
        assert_eq!(uid(&orphans["web-0"]), uid(&pods["web-0"]));

        create(&env.client, stateful_set("web", 2)).await;
        updated(env, "web", 2).await;
        let adopted = list_values::<Pod>(env).await;
        for name in ["web-0", "web-1"] {
            assert_eq!(uid(&adopted[name]), uid(&pods[name]));
            assert_eq!(owners(&adopted[name]), ["StatefulSet"]);
        }
        let again = list_values::<ControllerRevision>(env).await;
        let names = |all: &BTreeMap<String, Value>| all.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&again), names(&revisions));
        assert!(again.values().all(|revision| owners(revision) == ["StatefulSet"]));

        // A pod that is no longer selected is released and replaced.
        let relabel = json!({ "metadata": { "labels": { "app": "other" } } });
        merge::<Pod>(&env.client, "web-1", relabel).await;
        listed::<Pod>(env, "web-1 is released", |pods| {
            pods.get("web-1").is_some_and(|pod| owners(pod).is_empty())
        })
        .await;
        let name = ObjectKey::new("default", "web-1");
        env.client.delete::<Pod>(&name, Delete::new()).await.expect("delete");
        listed::<Pod>(env, "web-1 is there again", |pods| {
            pods.get("web-1").is_some_and(|pod| owners(pod) == ["StatefulSet"])
        })
        .await;
    });
}

const MAX_UNAVAILABLE: &str = "--feature-gates=MaxUnavailableStatefulSet=true";

#[test]
fn as_many_pods_are_updated_as_may_be_unavailable() {
    Env::run("sts-max-unavailable", async |env| {
        let manager = env.manager("manager", &env.before_1_37(MAX_UNAVAILABLE));
        half_is_updated_at_once(env).await;
        drop(manager);
    });
}

pub async fn half_is_updated_at_once(env: &Env) {
    let mut web = stateful_set("web", 4);
    web["spec"]["podManagementPolicy"] = json!("Parallel");
    web["spec"]["updateStrategy"] =
        json!({ "type": "RollingUpdate", "rollingUpdate": { "maxUnavailable": "50%" } });
    create(&env.client, web).await;
    updated(env, "web", 4).await;
    let key = ObjectKey::new("default", "web");
    env.steering.hold(true);
    merge::<StatefulSet>(&env.client, "web", set_image("db:2")).await;
    pods_are(env, &["web-0 db:1", "web-1 db:1", "web-2 db:2", "web-3 db:2"]).await;
    // The status shows that the new pods are known; they allow no further deletions.
    eventually(&env.clock, "the new pods are counted", || async {
        let set: Value = env.client.resource(&StatefulSet::RESOURCE).get(&key).await.unwrap();
        let status = &set["status"];
        match status["updatedReplicas"] == 2 && status["readyReplicas"] == 2 {
            true => Ok(()),
            false => Err(set.to_string()),
        }
    })
    .await;
    pods_are(env, &["web-0 db:1", "web-1 db:1", "web-2 db:2", "web-3 db:2"]).await;
    env.steering.hold(false);
    updated(env, "web", 4).await;
}

#[test]
fn pods_that_never_became_ready_are_updated() {
    everywhere("sts-broken", async |env| {
        let _manager = env.manager("manager", &env.before_1_37(MAX_UNAVAILABLE));
        let mut web = stateful_set("web", 3);
        web["spec"]["podManagementPolicy"] = json!("Parallel");
        web["spec"]["template"]["metadata"]["annotations"] = json!({ "sandbox/ready": "false" });
        create(&env.client, web).await;
        pods_are(env, &["web-0 db:1", "web-1 db:1", "web-2 db:1"]).await;
        let mended = json!({ "spec": { "template": {
            "metadata": { "annotations": { "sandbox/ready": null } },
            "spec": { "containers": [{ "name": "main", "image": "db:2" }] },
        } } });
        merge::<StatefulSet>(&env.client, "web", mended).await;
        updated(env, "web", 3).await;
        pods_are(env, &["web-0 db:2", "web-1 db:2", "web-2 db:2"]).await;
    });
}

#[test]
fn a_stale_cache_is_waited_for() {
    Env::run("sts-stale", async |env| {
        let manager = env.manager("manager", &["-v=4"]);
        create(&env.client, stateful_set("web", 1)).await;
        updated(env, "web", 1).await;
        let faults = env.cluster.sandbox.faults();
        // Watches of pods break; reads still work.
        cut_lists_and_watches(faults, "pods");
        set_spec(env, "web", json!({ "replicas": 2 })).await;
        eventually(&env.clock, "the sync waits for its cache", || async {
            let log = std::fs::read_to_string(&manager.log).unwrap();
            let waits = log.lines().any(|line| {
                line.contains("statefulset-controller: Error syncing default/web:")
                    && line.contains("for group resource pods")
            });
            if waits { Ok(()) } else { Err("not yet".to_owned()) }
        })
        .await;
        assert_eq!(faults.count("create", "pods"), 2);
        faults.clear();
        updated(env, "web", 2).await;
    });
}

#[test]
fn refused_writes_are_retried() {
    Env::run("sts-refused", async |env| {
        let faults = env.cluster.sandbox.faults();
        let refuse = |verb: &str, resource: &str| {
            for fault in [
                Fault::code(500, None),
                Fault::code(409, None),
                Fault::code(503, None),
                Fault::Cut,
                Fault::LoseAnswer,
            ] {
                faults.next(1, verb, resource, fault);
            }
        };
        // Few faults at a time: the delay doubles with each retry, until a sync succeeds.
        let all_hit = async || {
            eventually(&env.clock, "every fault has hit", || async {
                let pending = faults.pending();
                if pending.is_empty() { Ok(()) } else { Err(format!("{pending:?}")) }
            })
            .await;
        };
        refuse("create", "controllerrevisions");
        refuse("create", "persistentvolumeclaims");
        make_class(env).await;
        let _manager = env.manager("manager", &[QUICK_BINDER]);
        let mut web = with_claims("Retain", "Retain");
        web["spec"]["revisionHistoryLimit"] = json!(0);
        create(&env.client, web).await;
        updated(env, "web", 3).await;
        all_hit().await;
        // The claims are bound by now: only their owners are still to be written.
        refuse("update", "persistentvolumeclaims");
        refuse("update", "statefulsets/status");
        let policy = json!({ "whenDeleted": "Delete" });
        set_spec(env, "web", json!({ "persistentVolumeClaimRetentionPolicy": policy })).await;
        listed::<PersistentVolumeClaim>(env, "claims have owners", |claims| {
            claims.values().all(|claim| owners(claim) == ["StatefulSet"])
        })
        .await;
        all_hit().await;
        refuse("create", "pods");
        refuse("delete", "controllerrevisions");
        merge::<StatefulSet>(&env.client, "web", set_image("db:2")).await;
        updated(env, "web", 3).await;
        pods_are(env, &["web-0 db:2", "web-1 db:2", "web-2 db:2"]).await;
        listed::<ControllerRevision>(env, "the history is short", |all| all.len() == 1).await;
        all_hit().await;
    });
}
