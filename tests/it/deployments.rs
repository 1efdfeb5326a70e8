//! Deployments, ReplicaSets and ReplicationControllers.

use kube_controller_manager::client::{Delete, ListOptions};
use kube_controller_manager::objects::{
    Deployment, ObjectKey, Pod, ReplicaSet, ReplicaSetStatus, ReplicationController, Resource,
    WatchEvent,
};
use sandbox::faults::Fault;
use sandbox::status::ApiError;
use serde_json::{Value, json};

use crate::env::*;

fn image_of(set: &ReplicaSet) -> String {
    set.spec.template.to_value()["spec"]["containers"][0]["image"].as_str().unwrap().to_owned()
}

#[test]
fn a_deployment_scales_rolls_out_pauses_and_resumes() {
    everywhere("life", async |env| {
        let manager = env.manager("manager", &[]);
        let (client, clock) = (&env.client, &env.clock);
        create(client, deployment("web", 4, "web:1")).await;
        let first = rolled_out(client, clock, "web").await;
        assert_eq!(first.meta.annotations.get("deployment.kubernetes.io/revision"), Some("1"));

        merge::<Deployment>(client, "web", json!({ "spec": { "replicas": 7 } })).await;
        rolled_out(client, clock, "web").await;

        merge::<Deployment>(client, "web", set_image("web:2")).await;
        let second = rolled_out(client, clock, "web").await;
        assert_eq!(second.meta.annotations.get("deployment.kubernetes.io/revision"), Some("2"));
        let sets: Vec<ReplicaSet> = list(client).await;
        assert_eq!(sets.len(), 2);

        // Back to the first template: its ReplicaSet gets a new revision.
        merge::<Deployment>(client, "web", set_image("web:1")).await;
        let third = rolled_out(client, clock, "web").await;
        assert_eq!(third.meta.annotations.get("deployment.kubernetes.io/revision"), Some("3"));
        let sets: Vec<ReplicaSet> = list(client).await;
        assert_eq!(sets.len(), 2, "the old ReplicaSet was reused");
        let live: Vec<&ReplicaSet> = sets.iter().filter(|set| set.replicas() > 0).collect();
        assert_eq!(live.iter().map(|set| image_of(set)).collect::<Vec<_>>(), ["web:1"]);

        // A paused Deployment creates no ReplicaSet for a new template; a resumed one does. The
        // sync that would create it reports the generation as observed.
        let pause = |paused: bool| json!({ "spec": { "paused": paused } });
        merge::<Deployment>(client, "web", pause(true)).await;
        merge::<Deployment>(client, "web", set_image("web:3")).await;
        eventually(clock, "the pause is observed", || async {
            let deployment: Deployment =
                client.get(&ObjectKey::new("default", "web")).await.map_err(|e| e.to_string())?;
            let seen = deployment.status.observed_generation == Some(deployment.meta.generation);
            if seen { Ok(()) } else { Err("generation not observed".into()) }
        })
        .await;
        assert_eq!(list::<ReplicaSet>(client).await.len(), 2);
        merge::<Deployment>(client, "web", pause(false)).await;
        rolled_out(client, clock, "web").await;
        assert_eq!(list::<ReplicaSet>(client).await.len(), 3);

        merge::<Deployment>(client, "web", json!({ "spec": { "replicas": 0 } })).await;
        rolled_out(client, clock, "web").await;
        let status = manager.stop(clock, PATIENCE).await.unwrap();
        assert!(status.success(), "{status}");
    });
}

#[test]
fn the_first_status_shows_the_new_set() {
    everywhere("first-status", async |env| {
        create(&env.client, deployment("web", 2, "web:1")).await;
        let deployments = env.client.resource(&Deployment::RESOURCE);
        let created: Deployment =
            env.client.get(&ObjectKey::new("default", "web")).await.expect("it exists");
        let since = ListOptions {
            resource_version: Some(created.meta.resource_version.to_string()),
            ..ListOptions::default()
        };
        let mut changes =
            deployments.watch(Some("default"), &since, false, PATIENCE).await.expect("a watch");
        let _manager = env.manager("manager", &[]);
        let first = loop {
            match changes.next().await.expect("a change").expect("no error") {
                WatchEvent::Bookmark(_) => {}
                WatchEvent::Modified(first) => break first,
                other => panic!("{other:?}"),
            }
        };
        let first: Deployment = first.decode().expect("a Deployment");
        let reasons: Vec<_> = first.status.conditions.unwrap_or_default();
        let reasons: Vec<_> = reasons.iter().filter_map(|of| of.reason.as_deref()).collect();
        assert_eq!(reasons, ["NewReplicaSetCreated"]);
        assert_eq!(first.meta.annotations.get("deployment.kubernetes.io/revision"), Some("1"));
    });
}

#[test]
fn recreate_never_runs_two_versions_at_once() {
    everywhere("recreate", async |env| {
        let _manager = env.manager("manager", &[]);
        let (client, clock) = (&env.client, &env.clock);
        let mut object = deployment("solo", 3, "solo:1");
        object["spec"]["strategy"] = json!({ "type": "Recreate" });
        create(client, object).await;
        rolled_out(client, clock, "solo").await;
        let old: Vec<Pod> = list(client).await;
        let held = old[0].meta.name.to_string();
        let hold = |finalizers: Value| json!({ "metadata": { "finalizers": finalizers } });
        // With only a finalizer, the kubelet would report that the pod has ended.
        env.steering.keep(&held, true);
        merge::<Pod>(client, &held, hold(json!(["test.io/hold"]))).await;
        merge::<Deployment>(client, "solo", set_image("solo:2")).await;
        let key = ObjectKey::new("default", "solo");
        eventually(clock, "one terminating pod remains", || async {
            let solo: Deployment = client.get(&key).await.map_err(|error| error.to_string())?;
            let (all, going) = (solo.status.replicas, solo.status.terminating_replicas);
            if (all.unwrap_or(0), going) == (0, Some(1)) {
                return Ok(());
            }
            Err(format!("{all:?} and {going:?}"))
        })
        .await;
        // The sync that wrote this status would have made the new ReplicaSet first.
        let sets: Vec<ReplicaSet> = list(client).await;
        assert_eq!(sets.len(), 1, "the new one has to wait");
        env.steering.keep(&held, false);
        merge::<Pod>(client, &held, hold(Value::Null)).await;
        eventually(clock, "new pods come", || async {
            let pods: Vec<Pod> = list(client).await;
            let fresh = |pod: &&Pod| old.iter().all(|old| old.meta.uid != pod.meta.uid);
            let (fresh, all) = (pods.iter().filter(fresh).count(), pods.len());
            assert!(fresh == 0 || fresh == all, "{fresh} new pods of {all}");
            if fresh == 3 { Ok(()) } else { Err(format!("{fresh} new pods")) }
        })
        .await;
        rolled_out(client, clock, "solo").await;
    });
}

#[test]
fn orphans_are_adopted_and_relabelled_pods_released() {
    everywhere("adopt", async |env| {
        let (client, clock) = (&env.client, &env.clock);
        let orphan = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": "orphan", "namespace": "default", "labels": { "app": "web" } },
            "spec": { "containers": [{ "name": "main", "image": "web:1" }] },
        });
        create(client, orphan).await;
        let set = json!({
            "apiVersion": "apps/v1", "kind": "ReplicaSet",
            "metadata": { "name": "web", "namespace": "default" },
            "spec": {
                "replicas": 2, "selector": { "matchLabels": { "app": "web" } },
                "template": deployment("web", 0, "web:1")["spec"]["template"],
            },
        });
        create(client, set).await;
        let _manager = env.manager("manager", &[]);
        let owned = |pods: Vec<Pod>| -> Vec<Pod> {
            pods.into_iter().filter(|pod| pod.meta.controller().is_some()).collect()
        };
        eventually(clock, "the orphan is adopted and one pod made", || async {
            let pods = owned(env.pods().await);
            let adopted = pods.iter().any(|pod| &*pod.meta.name == "orphan");
            if adopted && pods.len() == 2 { Ok(()) } else { Err(format!("{} owned", pods.len())) }
        })
        .await;
        merge::<Pod>(client, "orphan", json!({ "metadata": { "labels": { "app": "other" } } }))
            .await;
        eventually(clock, "the relabelled pod is released and replaced", || async {
            let pods = env.pods().await;
            let released = pods
                .iter()
                .any(|pod| &*pod.meta.name == "orphan" && pod.meta.controller().is_none());
            let count = owned(pods).len();
            if released && count == 2 { Ok(()) } else { Err(format!("{released}, {count} owned")) }
        })
        .await;
    });
}

#[test]
fn a_rollout_without_progress_has_its_condition() {
    everywhere("deadline", async |env| {
        let _manager = env.manager("manager", &[]);
        let (client, clock) = (&env.client, &env.clock);
        env.steering.hold(true);
        let mut object = deployment("stuck", 2, "stuck:1");
        object["spec"]["progressDeadlineSeconds"] = json!(1);
        object["spec"]["minReadySeconds"] = json!(0);
        object["spec"]["template"]["metadata"]["annotations"] =
            json!({ "sandbox/behavior": "never-ready" });
        create(client, object).await;
        eventually(clock, "the deadline is reported", || async {
            let deployment: Deployment =
                client.get(&ObjectKey::new("default", "stuck")).await.map_err(|e| e.to_string())?;
            let conditions = deployment.status.conditions.unwrap_or_default();
            let found = conditions.iter().any(|condition| {
                condition.type_ == "Progressing"
                    && condition.status == "False"
                    && condition.reason.as_deref() == Some("ProgressDeadlineExceeded")
            });
            if found { Ok(()) } else { Err(format!("{conditions:?}")) }
        })
        .await;
    });
}

/// A conflict, as a webhook may return it, does not mean that the pod is deleted.
#[test]
fn a_delete_that_is_refused_has_an_event_and_is_repeated() {
    Env::run("refused-delete", async |env| {
        let faults = env.cluster.sandbox.faults();
        let _manager = env.manager("manager", &[]);
        create(&env.client, deployment("web", 2, "web:1")).await;
        rolled_out(&env.client, &env.clock, "web").await;
        let refused = ApiError::new(409, "Conflict", "the pod is busy");
        faults.next(1, "delete", "pods", Fault::Fail(refused));
        merge::<Deployment>(&env.client, "web", json!({ "spec": { "replicas": 1 } })).await;
        rolled_out(&env.client, &env.clock, "web").await;
        let sets: Vec<ReplicaSet> = list(&env.client).await;
        has_event(env, &sets[0].meta.name, "FailedDelete", "the pod is busy").await;
    });
}

#[test]
fn a_replication_controller_keeps_its_pods() {
    everywhere("replication", async |env| {
        let _manager = env.manager("manager", &[]);
        let (client, clock) = (&env.client, &env.clock);
        let spec = deployment("old", 3, "old:1")["spec"].take();
        create(
            client,
            json!({
                "apiVersion": "v1", "kind": "ReplicationController",
                "metadata": { "name": "old", "namespace": "default" },
                "spec": { "replicas": 3, "selector": { "app": "old" }, "template": spec["template"] },
            }),
        )
        .await;
        let key = ObjectKey::new("default", "old");
        let settled = async |wanted: i32| {
            eventually(clock, "the status counts the pods", || async {
                let live: ReplicationController =
                    client.get(&key).await.map_err(|e| e.to_string())?;
                let expected = ReplicaSetStatus {
                    replicas: wanted,
                    fully_labeled_replicas: wanted,
                    ready_replicas: wanted,
                    available_replicas: wanted,
                    observed_generation: live.meta.generation,
                    ..ReplicaSetStatus::default()
                };
                let pods = env.pods().await;
                let owned = pods.iter().filter(|pod| pod.meta.is_controlled_by(&live.meta.uid));
                let owned = owned.filter(|pod| pod.is_active()).count();
                if live.status == expected && i32::try_from(owned) == Ok(wanted) {
                    Ok(())
                } else {
                    Err(format!("{owned} pods, {:?}", live.status))
                }
            })
            .await;
        };
        settled(3).await;
        let name = env.pods().await[0].meta.name.to_string();
        let relabel = json!({ "metadata": { "labels": { "app": "other" } } });
        merge::<Pod>(client, &name, relabel).await;
        eventually(clock, "the relabelled pod is released", || async {
            let key = ObjectKey::new("default", &name);
            let pod: Pod = client.get(&key).await.map_err(|e| e.to_string())?;
            if pod.meta.controller().is_none() { Ok(()) } else { Err("still owned".into()) }
        })
        .await;
        settled(3).await;
        merge::<ReplicationController>(client, "old", json!({ "spec": { "replicas": 1 } })).await;
        settled(1).await;
        // The API server orphans the pods of this old kind by default.
        client.delete::<ReplicationController>(&key, Delete::background()).await.expect("delete");
        eventually(clock, "its pods go with it", || async {
            let left = env.pods().await.len();
            if left == 1 { Ok(()) } else { Err(format!("{left} left")) }
        })
        .await;
    });
}
