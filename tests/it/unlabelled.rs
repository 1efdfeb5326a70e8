//! Templates without labels: some controllers add labels of their own, others refuse the pods.

use kube_controller_manager::objects::{ObjectKey, ReplicaSet, Resource};
use serde_json::{Value, json};

use crate::env::*;

const CONTROLLERS: &str = "--controllers=daemonset,deployment,job,replicaset,statefulset";

/// Selects the pods without a label that no pod has.
fn selector() -> Value {
    json!({ "matchExpressions": [{ "key": "x", "operator": "DoesNotExist" }] })
}

fn unlabelled(group: &str, kind: &str, spec: Value) -> Value {
    let policy = if kind == "Job" { "Never" } else { "Always" };
    let mut object = json!({
        "apiVersion": format!("{group}/v1"), "kind": kind,
        "metadata": { "name": kind.to_lowercase(), "namespace": "default" },
        "spec": {
            "selector": selector(),
            "template": { "spec": {
                "restartPolicy": policy, "containers": [{ "name": "main", "image": "x:1" }],
            } },
        },
    });
    object["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    object
}

/// The names of the labels of a pod of this kind of owner.
async fn labels_of_pods(env: &TestCluster, kind: &str) -> Vec<Vec<String>> {
    let pods = env.pods().await;
    let owned = pods.iter().filter(|pod| pod.meta.controller().is_some_and(|c| *c.kind == *kind));
    owned.map(|pod| pod.meta.labels.iter().map(|(key, _)| key.to_owned()).collect()).collect()
}

#[test]
fn a_controller_that_labels_its_pods_needs_no_labels_in_the_template() {
    everywhere("unlabelled", async |env| {
        let _manager = env.manager("manager", &[CONTROLLERS]);
        let job = json!({
            "completionMode": "Indexed", "completions": 2, "parallelism": 2, "manualSelector": true,
        });
        // The kind, its spec, the kind that owns the pods, their number and their labels.
        let table = [
            (
                "DaemonSet",
                json!({}),
                "DaemonSet",
                3,
                &["controller-revision-hash", "pod-template-generation"][..],
            ),
            (
                "StatefulSet",
                json!({ "serviceName": "s", "replicas": 2 }),
                "StatefulSet",
                2,
                &[
                    "apps.kubernetes.io/pod-index",
                    "controller-revision-hash",
                    "statefulset.kubernetes.io/pod-name",
                ],
            ),
            ("Job", job, "Job", 2, &["batch.kubernetes.io/job-completion-index"]),
            ("Deployment", json!({ "replicas": 2 }), "ReplicaSet", 2, &["pod-template-hash"]),
        ];
        for (kind, spec, owner, count, labels) in table {
            let group = if kind == "Job" { "batch" } else { "apps" };
            create(&env.client, unlabelled(group, kind, spec)).await;
            eventually(&env.clock, &format!("{kind}: {count} pods with {labels:?}"), || async {
                let found = labels_of_pods(env, owner).await;
                let all = found.len() == count && found.iter().all(|found| found == labels);
                if all { Ok(()) } else { Err(format!("{found:?}")) }
            })
            .await;
        }

        // With a label that keeps the Deployment from adopting it.
        let mut set = unlabelled("apps", "ReplicaSet", json!({ "replicas": 1 }));
        set["metadata"]["labels"] = json!({ "x": "own" });
        create(&env.client, set).await;
        eventually(&env.clock, "a ReplicaSet of its own says why it has no pods", || async {
            let sets = env.client.resource(&ReplicaSet::RESOURCE);
            let key = ObjectKey::new("default", "replicaset");
            let set: Value = sets.get(&key).await.map_err(|error| error.to_string())?;
            let condition = &set["status"]["conditions"][0];
            let found = ["type", "status", "reason", "message"].map(|field| &condition[field]);
            let message = "unable to create pods, no labels";
            let expected = ["ReplicaFailure", "True", "FailedCreate", message];
            if found == expected { Ok(()) } else { Err(set.to_string()) }
        })
        .await;
        assert_eq!(labels_of_pods(env, "ReplicaSet").await.len(), 2, "those of the Deployment");
    });
}
