//! Deletion of namespaces: the order, finalizers, and the conditions.

use kube_controller_manager::client::{Delete, ListOptions, Patch};
use kube_controller_manager::objects::{Namespace, ObjectKey, Resource, ResourceType};
use sandbox::faults::Fault;
use sandbox::status::ApiError;
use serde_json::{Value, json};

use crate::env::*;
use crate::kinds::*;

const SECRETS: ResourceType = ResourceType::fixed("", "v1", "Secret", "secrets", true);
const PODS: ResourceType = ResourceType::fixed("", "v1", "Pod", "pods", true);
const DEPLOYMENTS: ResourceType =
    ResourceType::fixed("apps", "v1", "Deployment", "deployments", true);
const REPLICA_SETS: ResourceType =
    ResourceType::fixed("apps", "v1", "ReplicaSet", "replicasets", true);

const HOLD: &str = "example.com/hold";

/// Creates `object` in a namespace.
async fn make(env: &TestCluster, resource: &ResourceType, namespace: &str, mut object: Value) {
    object["apiVersion"] = resource.api_version().into();
    object["kind"] = (&*resource.kind).into();
    let verbs = env.client.resource(resource);
    verbs.create::<Value>(namespace, &object).await.expect("create");
}

async fn delete_namespace(env: &TestCluster, name: &str) {
    let key = ObjectKey::cluster(name);
    env.client.delete::<Namespace>(&key, Delete::new()).await.expect("delete");
}

async fn items(env: &TestCluster, resource: &ResourceType, namespace: &str) -> Vec<Value> {
    let verbs = env.client.resource(resource);
    verbs.list(Some(namespace), &ListOptions::default()).await.expect("list").items
}

async fn let_go(env: &TestCluster, resource: &ResourceType, namespace: &str, name: &str) {
    let patch = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    let verbs = env.client.resource(resource);
    verbs.patch::<Value>(&ObjectKey::new(namespace, name), &patch).await.expect("patch");
}

/// Waits until these conditions of a namespace are true, and no other: type, reason and message.
async fn waits_with(env: &TestCluster, name: &str, wanted: &[[&str; 3]]) {
    eventually(&env.clock, &format!("namespace {name} has its conditions"), || async {
        let namespace: Namespace =
            env.client.get(&ObjectKey::cluster(name)).await.map_err(|error| error.to_string())?;
        let conditions = namespace.status.conditions.unwrap_or_default();
        let faults: Vec<[&str; 3]> = conditions
            .iter()
            .filter(|condition| condition.status == "True")
            .map(|condition| {
                let [reason, message] = [&condition.reason, &condition.message];
                [&condition.type_, reason.as_deref().unwrap(), message.as_deref().unwrap()]
            })
            .collect();
        let all = conditions.len() == 5 && faults == wanted;
        if all { Ok(()) } else { Err(format!("{conditions:#?}")) }
    })
    .await;
}

async fn wait_until_deleted(env: &TestCluster, name: &str) {
    eventually(&env.clock, &format!("namespace {name} goes"), || async {
        match env.client.get::<Namespace>(&ObjectKey::cluster(name)).await {
            Err(error) if error.is_not_found() => Ok(()),
            other => Err(format!("{other:#?}")),
        }
    })
    .await;
}

#[test]
fn pods_go_before_anything_else() {
    everywhere("namespace-order", async |env| {
        let _manager =
            env.manager("manager", &["--controllers=*,-root-ca-certificate-publisher-controller"]);
        let all = [&PODS, &CONFIG_MAPS, &DEPLOYMENTS, &REPLICA_SETS, &WIDGETS];
        serve_widgets(env).await;
        make_namespace(&env.client, "ns").await;
        make(env, &CONFIG_MAPS, "ns", json!({ "metadata": { "name": "a" } })).await;
        make(env, &WIDGETS, "ns", json!({ "metadata": { "name": "a" } })).await;
        let mut web = deployment("web", 2, "web:1");
        web["metadata"]["namespace"] = "ns".into();
        make(env, &DEPLOYMENTS, "ns", web).await;
        let held = json!({
            "metadata": { "name": "held", "finalizers": [HOLD] },
            "spec": {
                "terminationGracePeriodSeconds": 1,
                "containers": [{ "name": "main", "image": "web:1" }],
            },
        });
        make(env, &PODS, "ns", held).await;
        eventually(&env.clock, "the pods run", || async {
            let pods = items(env, &PODS, "ns").await;
            let running = pods.iter().filter(|pod| pod["status"]["phase"] == "Running").count();
            if running == 3 { Ok(()) } else { Err(format!("{running} of 3")) }
        })
        .await;

        delete_namespace(env, "ns").await;
        let late = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "b" } });
        let refused = env.client.resource(&CONFIG_MAPS).create::<Value>("ns", &late).await;
        assert!(refused.is_err_and(|error| error.is_namespace_terminating()));
        eventually(&env.clock, "one pod is left", || async {
            let pods = items(env, &PODS, "ns").await;
            let names: Vec<&Value> = pods.iter().map(|pod| &pod["metadata"]["name"]).collect();
            if names == ["held"] { Ok(()) } else { Err(format!("{names:?}")) }
        })
        .await;
        // The conditions prove that the controller has completed its pass without touching the
        // rest.
        waits_with(env, "ns", &[]).await;
        for resource in &all[1..] {
            let left = items(env, resource, "ns").await;
            assert_eq!(left.len(), 1, "{resource}: {left:#?}");
            assert!(left[0]["metadata"]["deletionTimestamp"].is_null(), "{resource}");
        }
        let_go(env, &PODS, "ns", "held").await;
        wait_until_deleted(env, "ns").await;
        for resource in all {
            assert_eq!(items(env, resource, "ns").await, [] as [Value; 0], "{resource}");
        }
    });
}

/// Creates a namespace with a pod that runs until the nodes release it, and has a grace period of
/// an hour.
async fn with_a_slow_pod(env: &TestCluster, namespace: &str, pod: &str) {
    make_namespace(&env.client, namespace).await;
    let slow = json!({
        "metadata": { "name": pod },
        "spec": {
            "terminationGracePeriodSeconds": 3600,
            "containers": [{ "name": "main", "image": "web:1" }],
        },
    });
    make(env, &PODS, namespace, slow).await;
    eventually(&env.clock, "the pod runs", || async {
        let pods = items(env, &PODS, namespace).await;
        let runs = pods[0]["status"]["phase"] == "Running";
        if runs { Ok(()) } else { Err(format!("{pods:#?}")) }
    })
    .await;
    env.steering.keep(pod, true);
}

/// Without further events, the grace period of its pod would delay the next sync of a namespace by
/// half an hour.
#[test]
fn the_last_pod_that_goes_ends_the_wait() {
    everywhere("namespace-emptied", async |env| {
        let _manager = env.manager("manager", &[]);
        with_a_slow_pod(env, "first", "slow-1").await;
        delete_namespace(env, "first").await;
        waits_with(env, "first", &[]).await;
        let namespaces = env.client.resource(&Namespace::RESOURCE);
        let first: Value = namespaces.get(&ObjectKey::cluster("first")).await.expect("first");

        // It already has the conditions that it would get, so its first sync causes no second one.
        with_a_slow_pod(env, "second", "slow-2").await;
        let conditions = &first["status"]["conditions"];
        let patch = Patch::Merge(json!({ "status": { "conditions": conditions } }));
        let status = namespaces.subresource("status");
        status.patch::<Value>(&ObjectKey::cluster("second"), &patch).await.expect("patch");
        delete_namespace(env, "second").await;
        eventually(&env.clock, "the pod is being deleted", || async {
            let pods = items(env, &PODS, "second").await;
            let marked = pods.iter().all(|pod| !pod["metadata"]["deletionTimestamp"].is_null());
            if marked && pods.len() == 1 { Ok(()) } else { Err(format!("{pods:#?}")) }
        })
        .await;
        env.steering.keep("slow-2", false);
        wait_until_deleted(env, "second").await;
        env.steering.keep("slow-1", false);
        wait_until_deleted(env, "first").await;
    });
}

#[test]
fn a_finalizer_holds_a_namespace_and_its_conditions_name_it() {
    everywhere("namespace-held", async |env| {
        let _manager = env.manager("manager", &[]);
        make_namespace(&env.client, "ns").await;
        for name in ["a", "b"] {
            let object = json!({ "metadata": { "name": name, "finalizers": [HOLD] } });
            make(env, &CONFIG_MAPS, "ns", object).await;
        }
        make(env, &SECRETS, "ns", json!({ "metadata": { "name": "a" } })).await;
        // A server that cannot delete a collection.
        if let Some(faults) = &env.faults {
            let refused = ApiError::new(405, "MethodNotAllowed", "not allowed on this resource");
            faults.next(1000, "deletecollection", "secrets", Fault::Fail(refused));
        }
        delete_namespace(env, "ns").await;
        let remaining = |count: u32| {
            [
                [
                    "NamespaceContentRemaining".to_owned(),
                    "SomeResourcesRemain".to_owned(),
                    format!(
                        "Some resources are remaining: configmaps. has {count} resource instances"
                    ),
                ],
                [
                    "NamespaceFinalizersRemaining".to_owned(),
                    "SomeFinalizersRemain".to_owned(),
                    format!(
                        "Some content in the namespace has finalizers remaining: {HOLD} in {count} resource instances"
                    ),
                ],
            ]
        };
        for (count, name) in [(2, "a"), (1, "b")] {
            let wanted = remaining(count);
            let wanted = wanted.each_ref().map(|texts| texts.each_ref().map(String::as_str));
            waits_with(env, "ns", &wanted).await;
            assert_eq!(items(env, &SECRETS, "ns").await, [] as [Value; 0]);
            let_go(env, &CONFIG_MAPS, "ns", name).await;
        }
        wait_until_deleted(env, "ns").await;
        if let Some(faults) = &env.faults {
            assert_eq!(faults.count("delete", "secrets"), 1);
            assert_eq!(faults.count("deletecollection", "configmaps"), 1, "once is enough");
        }
    });
}

#[test]
fn failed_discovery_and_refused_deletes_hold_a_namespace() {
    everywhere("namespace-unknown", async |env| {
        let _manager = env.manager("manager", &[]);
        make_namespace(&env.client, "ns").await;
        for resource in [&CONFIG_MAPS, &SECRETS] {
            make(env, resource, "ns", json!({ "metadata": { "name": "a" } })).await;
        }
        let service = json!({
            "metadata": { "name": "v1beta1.metrics.example.com" },
            "spec": {
                "group": "metrics.example.com", "version": "v1beta1",
                "service": { "namespace": "default", "name": "metrics" },
                "groupPriorityMinimum": 100, "versionPriority": 100,
            },
        });
        make(env, &API_SERVICES, "", service).await;
        let refusal = env.refuse_deletes(&SECRETS).await;
        delete_namespace(env, "ns").await;
        let undiscovered = [
            "NamespaceDeletionDiscoveryFailure",
            "DiscoveryFailed",
            "Discovery failed for some groups, 1 failing: unable to retrieve the complete list of server APIs: metrics.example.com/v1beta1: stale GroupVersion discovery: metrics.example.com/v1beta1",
        ];
        let failed = [
            "NamespaceDeletionContentFailure",
            "ContentDeletionFailed",
            &format!("Failed to delete all resource types, 1 remaining: {refusal}"),
        ];
        waits_with(env, "ns", &[undiscovered, failed]).await;
        assert_eq!(items(env, &CONFIG_MAPS, "ns").await, [] as [Value; 0], "the rest goes");
        env.allow_deletes().await;
        waits_with(env, "ns", &[undiscovered]).await;
        assert_eq!(items(env, &SECRETS, "ns").await, [] as [Value; 0]);
        let key = ObjectKey::cluster("v1beta1.metrics.example.com");
        env.client.resource(&API_SERVICES).delete(&key, Delete::new()).await.expect("delete");
        wait_until_deleted(env, "ns").await;
    });
}

/// A list of very many objects may never complete, and a delete of the collection continues where
/// the previous one stopped.
#[test]
fn content_that_cannot_be_listed_is_deleted() {
    Env::run("namespace-unlisted", async |env| {
        let faults = env.cluster.sandbox.faults();
        let _manager = env.manager("manager", &["--controllers=namespace-controller"]);
        make_namespace(&env.client, "ns").await;
        make(env, &SECRETS, "ns", json!({ "metadata": { "name": "a" } })).await;
        faults.next(usize::MAX, "list", "secrets", Fault::code(504, None));
        delete_namespace(env, "ns").await;
        crate::kinds::wait_until_deleted(env, &SECRETS, &ObjectKey::new("ns", "a")).await;
        faults.clear();
        wait_until_deleted(env, "ns").await;
    });
}
