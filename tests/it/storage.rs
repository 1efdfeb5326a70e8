//! Claims, volumes and classes that are in use, and claims of ephemeral volumes.

use kube_controller_manager::client::{Client, Delete, Patch};
use kube_controller_manager::objects::{
    ObjectKey, PersistentVolume, PersistentVolumeClaim, Pod, Resource, ResourceType,
    VolumeAttributesClass,
};
use serde_json::{Value, json};

use crate::env::*;

fn claim(name: &str, class: Option<&str>) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": { "name": name, "namespace": "default" },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "",
            "resources": { "requests": { "storage": "1Gi" } },
            "volumeAttributesClassName": class,
        },
    })
}

fn pod(name: &str, volume: Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": "default" },
        "spec": {
            "containers": [{ "name": "main", "image": "x:1" }],
            "volumes": [volume],
        },
    })
}

async fn live<T: Resource>(client: &Client, key: &ObjectKey) -> Option<Value> {
    match client.resource(&T::RESOURCE).get(key).await {
        Err(error) if error.is_not_found() => None,
        found => Some(found.expect("get")),
    }
}

/// Waits until the object carries the finalizer.
async fn protected<T: Resource>(env: &TestCluster, key: &ObjectKey, finalizer: &str) {
    eventually(&env.clock, &format!("{key} is protected"), || async {
        let object = live::<T>(&env.client, key).await.ok_or("it is gone")?;
        let finalizers = object["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
        if finalizers.iter().any(|name| name == finalizer) {
            return Ok(());
        }
        Err(format!("{finalizers:?}"))
    })
    .await;
}

async fn gone<T: Resource>(env: &TestCluster, key: &ObjectKey) {
    eventually(&env.clock, &format!("{key} goes"), || async {
        live::<T>(&env.client, key).await.map_or(Ok(()), |object| Err(object.to_string()))
    })
    .await;
}

/// Deletes `used` and then `unused`, and waits until `unused` is gone: `used` was checked before
/// it.
async fn only_unused_is_deleted<T: Resource>(
    env: &TestCluster,
    used: &ObjectKey,
    unused: &ObjectKey,
) {
    for key in [used, unused] {
        env.client.delete::<T>(key, Delete::new()).await.expect("delete");
    }
    gone::<T>(env, unused).await;
    let kept = live::<T>(&env.client, used).await.expect("what is used stays");
    assert!(kept["metadata"]["deletionTimestamp"].is_string());
}

#[test]
fn a_claim_stays_while_a_pod_uses_it() {
    everywhere("pvcprotection", async |env| {
        let manager = env.manager("manager", &[]);
        let [used, unused, user] =
            ["used", "unused", "user"].map(|name| ObjectKey::new("default", name));
        for key in [&used, &unused] {
            create(&env.client, claim(&key.name, None)).await;
            protected::<PersistentVolumeClaim>(env, key, "kubernetes.io/pvc-protection").await;
        }
        let volume = json!({ "name": "data", "persistentVolumeClaim": { "claimName": "used" } });
        let mut user_pod = pod("user", volume);
        // A pod counts as soon as it has a node; its claim need not be bound.
        user_pod["spec"]["nodeName"] = json!("node-0");
        create(&env.client, user_pod).await;

        only_unused_is_deleted::<PersistentVolumeClaim>(env, &used, &unused).await;

        let at_once = Delete::new().grace_period(0);
        env.client.delete::<Pod>(&user, at_once).await.expect("delete");
        gone::<PersistentVolumeClaim>(env, &used).await;
        drop(manager);
    });
}

/// A StatefulSet that deletes claims when it is scaled down makes its pods their owners.
#[test]
fn a_pod_and_the_claim_that_it_owns_do_not_wait_for_each_other() {
    everywhere("pvcowner", async |env| {
        let manager = env.manager("manager", &[]);
        let [owner, owned] = ["owner", "owned"].map(|name| ObjectKey::new("default", name));
        let volume = json!({ "name": "data", "persistentVolumeClaim": { "claimName": "owned" } });
        let mut owner_pod = pod("owner", volume);
        owner_pod["spec"]["nodeName"] = json!("node-0");
        let uid = create(&env.client, owner_pod).await["metadata"]["uid"].take();
        let mut claim = claim("owned", None);
        claim["metadata"]["ownerReferences"] = json!([{
            "apiVersion": "v1", "kind": "Pod", "name": "owner", "uid": uid,
            "controller": true, "blockOwnerDeletion": true,
        }]);
        create(&env.client, claim).await;
        protected::<PersistentVolumeClaim>(env, &owned, "kubernetes.io/pvc-protection").await;
        env.client.delete::<Pod>(&owner, Delete::foreground()).await.expect("delete");
        gone::<Pod>(env, &owner).await;
        gone::<PersistentVolumeClaim>(env, &owned).await;
        drop(manager);
    });
}

#[test]
fn a_volume_stays_while_it_is_bound() {
    everywhere("pvprotection", async |env| {
        // The test itself sets the phases.
        let without_binder = "--controllers=*,-persistentvolume-binder-controller";
        let manager = env.manager("manager", &[without_binder]);
        let (client, volumes) = (&env.client, env.client.resource(&PersistentVolume::RESOURCE));
        let [bound, free] = ["bound", "free"].map(ObjectKey::cluster);
        let set_phase = async |phase: &str| {
            let patch = Patch::Merge(json!({ "status": { "phase": phase } }));
            let status = volumes.clone().subresource("status");
            status.patch::<Value>(&bound, &patch).await.expect("patch");
        };
        for key in [&bound, &free] {
            let volume = json!({
                "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": &*key.name },
                "spec": {
                    "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"],
                    "hostPath": { "path": "/tmp/volume" }, "claimRef": {
                        "namespace": "default", "name": "no-claim", "uid": "no-uid",
                    },
                },
            });
            client.create::<PersistentVolume>("", &volume).await.expect("create");
            protected::<PersistentVolume>(env, key, "kubernetes.io/pv-protection").await;
        }
        set_phase("Bound").await;
        only_unused_is_deleted::<PersistentVolume>(env, &bound, &free).await;
        set_phase("Released").await;
        gone::<PersistentVolume>(env, &bound).await;
        drop(manager);
    });
}

#[test]
fn a_class_stays_while_a_claim_or_a_volume_names_it() {
    everywhere("vacprotection", async |env| {
        let manager = env.manager("manager", &[]);
        let [used, unused] = ["gold", "silver"].map(ObjectKey::cluster);
        for key in [&used, &unused] {
            let class = json!({
                "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttributesClass",
                "metadata": { "name": &*key.name },
                "driverName": "csi.example.com", "parameters": { "iops": "1" },
            });
            env.client.create::<VolumeAttributesClass>("", &class).await.expect("create");
            protected::<VolumeAttributesClass>(env, key, "kubernetes.io/vac-protection").await;
        }
        create(&env.client, claim("golden", Some("gold"))).await;
        let golden = ObjectKey::new("default", "golden");
        // The controller knows the claim: another controller that watches claims has seen it.
        protected::<PersistentVolumeClaim>(env, &golden, "kubernetes.io/pvc-protection").await;

        only_unused_is_deleted::<VolumeAttributesClass>(env, &used, &unused).await;
        env.client.delete::<PersistentVolumeClaim>(&golden, Delete::new()).await.expect("delete");
        gone::<VolumeAttributesClass>(env, &used).await;
        drop(manager);
    });
}

#[test]
fn ephemeral_volumes_get_their_claims() {
    everywhere("ephemeral", async |env| {
        let manager = env.manager("manager", &[]);
        let (client, clock) = (&env.client, &env.clock);
        let volume = json!({ "name": "tmp", "ephemeral": { "volumeClaimTemplate": {
            "metadata": { "labels": { "made": "for-a-pod" } },
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
                "resources": { "requests": { "storage": "2Gi" } },
            },
        } } });
        create(client, pod("worker", volume.clone())).await;
        let (worker, tmp) =
            (ObjectKey::new("default", "worker"), ObjectKey::new("default", "worker-tmp"));
        let made = eventually(clock, "the claim is made", || async {
            live::<PersistentVolumeClaim>(client, &tmp).await.ok_or_else(String::new)
        })
        .await;
        let pod_uid = live::<Pod>(client, &worker).await.unwrap()["metadata"]["uid"].clone();
        assert_eq!(made["metadata"]["labels"], json!({ "made": "for-a-pod" }));
        assert_eq!(
            made["metadata"]["ownerReferences"],
            json!([{
                "apiVersion": "v1", "kind": "Pod", "name": "worker", "uid": pod_uid,
                "controller": true, "blockOwnerDeletion": true,
            }])
        );
        assert_eq!(made["spec"]["storageClassName"], "fast");
        assert_eq!(made["spec"]["resources"]["requests"]["storage"], "2Gi");

        create(client, claim("other-tmp", None)).await;
        create(client, pod("other", volume)).await;
        let refused = "ephemeral volume tmp: PVC default/other-tmp was not created for pod \
            default/other (pod is not owner)";
        has_event(env, "other", "FailedBinding", refused).await;
        drop(manager);
    });
}

#[test]
fn finished_jobs_go_when_their_time_is_over() {
    const JOBS: ResourceType = ResourceType::fixed("batch", "v1", "Job", "jobs", true);
    everywhere("ttlafterfinished", async |env| {
        let manager = env.manager("manager", &[]);
        let (client, jobs) = (&env.client, env.client.resource(&JOBS));
        for (name, ttl, finished) in
            [("unlimited", None, true), ("runs", Some(0), false), ("done", Some(1), true)]
        {
            let job = json!({
                "apiVersion": "batch/v1", "kind": "Job",
                "metadata": { "name": name, "namespace": "default" },
                "spec": {
                    "ttlSecondsAfterFinished": ttl, "suspend": true,
                    "template": { "spec": {
                        "restartPolicy": "Never", "containers": [{ "name": "main", "image": "x:1" }],
                    } },
                },
            });
            create(client, job).await;
            if !finished {
                continue;
            }
            let now = env.clock.now().to_string();
            let condition = |kind: &str| {
                json!({
                    "type": kind, "status": "True", "reason": "CompletionsReached",
                    "lastProbeTime": now, "lastTransitionTime": now,
                })
            };
            let status = json!({ "status": {
                "startTime": now, "completionTime": now, "succeeded": 1,
                "conditions": [condition("SuccessCriteriaMet"), condition("Complete")],
            } });
            let key = ObjectKey::new("default", name);
            let verbs = jobs.clone().subresource("status");
            verbs.patch::<Value>(&key, &Patch::Merge(status)).await.expect("patch");
        }
        // The newest is deleted first; the others were checked before it.
        eventually(&env.clock, "the finished Job goes", || async {
            let done = jobs.get::<Value>(&ObjectKey::new("default", "done")).await;
            if done.as_ref().is_err_and(|error| error.is_not_found()) {
                return Ok(());
            }
            Err(format!("{done:?}"))
        })
        .await;
        for name in ["unlimited", "runs"] {
            let job: Value = jobs.get(&ObjectKey::new("default", name)).await.expect("it stays");
            assert!(job["metadata"]["deletionTimestamp"].is_null(), "{name}");
        }
        drop(manager);
    });
}
