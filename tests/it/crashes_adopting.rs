//! A manager that dies at any of its writes while a StatefulSet adopts and replaces what it finds.

use serde_json::{Value, json};

use crate::crashes::{Cluster, Scenario, binder, survives_every_write};
use crate::env::*;
use crate::statefulsets::{make_class, owners, with_claims};

/// A set of two pods that finds an orphan of each of an older version: a pod to be replaced, a pod
/// too many, the claims of both, a revision.
fn set_with_orphans(name: &str) -> Vec<Value> {
    let meta = |name: String, labels: Value| json!({ "name": name, "labels": labels });
    let pod = |ordinal: i32| {
        let claim = json!({ "claimName": format!("data-{name}-{ordinal}") });
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": meta(
                format!("{name}-{ordinal}"),
                json!({ "app": name, "controller-revision-hash": format!("{name}-old") }),
            ),
            "spec": {
                "containers": [{ "name": "main", "image": "db:0" }],
                "terminationGracePeriodSeconds": 0,
                "volumes": [{ "name": "data", "persistentVolumeClaim": claim }],
            },
        })
    };
    let revision = json!({
        "apiVersion": "apps/v1", "kind": "ControllerRevision",
        "metadata": meta(format!("{name}-old"), json!({ "app": name })),
        "data": { "spec": { "template": { "$patch": "replace", "spec": {} } } }, "revision": 1,
    });
    let mut set = with_claims("Delete", "Delete");
    set["metadata"]["name"] = json!(name);
    set["spec"]["replicas"] = json!(2);
    set["spec"]["revisionHistoryLimit"] = json!(0);
    set["spec"]["selector"]["matchLabels"] = json!({ "app": name });
    let template = &mut set["spec"]["template"];
    template["metadata"]["labels"] = json!({ "app": name });
    template["spec"]["terminationGracePeriodSeconds"] = json!(0);
    let template = set["spec"]["volumeClaimTemplates"][0].clone();
    let claim = |ordinal: i32| {
        let mut claim = template.clone();
        claim["apiVersion"] = json!("v1");
        claim["kind"] = json!("PersistentVolumeClaim");
        claim["metadata"] = meta(format!("data-{name}-{ordinal}"), json!({ "app": name }));
        claim
    };
    vec![revision, claim(0), claim(3), pod(0), pod(3), set]
}

fn end_with_orphans(name: &str, cluster: &Cluster) -> Result<Value, String> {
    let set = cluster.object(name)?;
    let (status, pods) = (&set["status"], cluster.pods_of(name));
    let is_new = |pod: &&&Value| {
        pod["metadata"]["labels"]["controller-revision-hash"] == status["updateRevision"]
            && pod["metadata"]["deletionTimestamp"].is_null()
            && pod["metadata"]["labels"]["statefulset.kubernetes.io/pod-name"]
                == pod["metadata"]["name"]
    };
    let counts = ["replicas", "readyReplicas", "updatedReplicas", "currentReplicas"];
    let complete = counts.iter().all(|count| status[count] == 2)
        && status["currentRevision"] == status["updateRevision"]
        && (pods.len(), pods.iter().filter(is_new).count()) == (2, 2)
        && cluster.object(&format!("{name}-old")).is_err();
    let claims = [0, 1].map(|at| cluster.object(&format!("data-{name}-{at}")).map(owners));
    if !complete || claims.iter().any(|owners| *owners != Ok(vec!["StatefulSet"])) {
        return Err(format!("{status} {claims:?} {pods:#?}"));
    }
    let revision = cluster.object(status["updateRevision"].as_str().expect("a name"))?;
    Ok(json!({
        "revision": revision["revision"], "owners": owners(revision),
        "collisions": status["collisionCount"], "available": status["availableReplicas"],
    }))
}

#[test]
fn a_stateful_set_with_orphans_survives_a_crash_at_every_write() {
    Env::run("crash-adopt", async |env| {
        make_class(env).await;
        let _binder = binder(env);
        let scenario = Scenario {
            controllers: &["statefulset-controller"],
            objects: &set_with_orphans,
            changes: vec![],
            end: &end_with_orphans,
        };
        let writes = survives_every_write(env, &scenario).await;
        assert!(writes >= 12, "{writes} writes");
    });
}
