//! An API server that is restored from a backup, with the manager running on and with a restart.

use std::collections::BTreeSet;

use kube_controller_manager::client::Delete;
use kube_controller_manager::objects::{Deployment, ObjectKey};
use serde_json::{Value, json};

use crate::election::lease_that;
use crate::env::*;

/// The uids of the pods that stay and whose names begin with `prefix`.
async fn uids(env: &TestCluster, prefix: &str) -> BTreeSet<String> {
    let pods = env.pods().await;
    let pods = pods.iter().filter(|pod| pod.meta.name.starts_with(prefix));
    let pods = pods.filter(|pod| !pod.meta.is_being_deleted());
    pods.map(|pod| pod.meta.uid.to_string()).collect()
}

async fn has_pods(env: &TestCluster, name: &str, count: usize) -> BTreeSet<String> {
    eventually(&env.clock, &format!("{name} has {count} pods"), || async {
        let found = uids(env, name).await;
        if found.len() == count { Ok(found) } else { Err(format!("{found:?}")) }
    })
    .await
}

/// Two Deployments, before the backup.
async fn populate(env: &TestCluster) {
    for (name, replicas) in [("scaled", 3), ("deleted", 2)] {
        create(&env.client, deployment(name, replicas, "web:1")).await;
        rolled_out(&env.client, &env.clock, name).await;
    }
}

/// Changes that the restore loses: a scaled Deployment, a deleted one, and a new one.
async fn change(env: &TestCluster) {
    let (client, clock) = (&env.client, &env.clock);
    merge::<Deployment>(client, "scaled", json!({ "spec": { "replicas": 5 } })).await;
    let key = ObjectKey::new("default", "deleted");
    client.delete::<Deployment>(&key, Delete::new()).await.expect("delete");
    create(client, deployment("new", 2, "web:1")).await;
    for name in ["scaled", "new"] {
        rolled_out(client, clock, name).await;
    }
    // A node that still stops one of them would delete the restored pod.
    eventually(clock, "its pods are gone", || async {
        let pods = env.pods().await;
        let left = pods.iter().filter(|pod| pod.meta.name.starts_with("deleted")).count();
        if left == 0 { Ok(()) } else { Err(left.to_string()) }
    })
    .await;
}

/// A backup is restored under a manager that runs on, or that is started again.
async fn manager_of_a_restored_server(env: &TestCluster, restarts: bool) {
    let (client, clock) = (&env.client, &env.clock);
    let manager = env.manager("manager", &[]);
    populate(env).await;
    let (scaled, deleted) = (uids(env, "scaled").await, uids(env, "deleted").await);
    let backup = env.backup().await;
    change(env).await;

    let mut running = Some(manager);
    if restarts {
        drop(running.take());
    }
    env.restore(&backup).await;
    running.get_or_insert_with(|| env.manager("second", &[]));
    // Versions that the manager has seen before are given again.
    merge::<Deployment>(client, "scaled", json!({ "spec": { "replicas": 4 } })).await;
    rolled_out(client, clock, "scaled").await;
    create(client, deployment("later", 2, "web:1")).await;
    rolled_out(client, clock, "later").await;
    rolled_out(client, clock, "deleted").await;
    // No restored pod is replaced.
    assert!(has_pods(env, "scaled", 4).await.is_superset(&scaled));
    assert_eq!(has_pods(env, "deleted", 2).await, deleted);
    has_pods(env, "new", 0).await;
}

#[test]
fn a_manager_that_runs_on_over_a_restored_backup_is_right() {
    everywhere("restored", async |env| manager_of_a_restored_server(env, false).await);
}

#[test]
fn a_manager_that_starts_after_a_restored_backup_is_right() {
    everywhere("restored-restart", async |env| manager_of_a_restored_server(env, true).await);
}

/// The renewal of the lease that follows `before`.
async fn next_renewal(env: &TestCluster, before: &Value) -> Value {
    let is_later = |spec: &Value| spec["renewTime"] != *before;
    lease_that(env, "the lease is renewed", is_later).await["renewTime"].take()
}

/// No cache can see this by its versions: the Lease of the leader shows it.
#[test]
fn a_restore_is_noticed_although_the_server_has_passed_the_known_versions() {
    Env::run("restored-passed", async |env| {
        // The lease is renewed often, and not lost on a slow machine.
        let flags = ["--leader-elect-lease-duration=110s", "--leader-elect-renew-deadline=100s"];
        let _manager = env.candidate("manager", &flags);
        populate(env).await;
        let api = env.cluster.sandbox.api();
        let backup = api.store.backup();
        let before = next_renewal(env, &Value::Null).await;
        change(env).await;
        // The leader knows a version that the backup lacks: it renews only after the answer to its
        // last renewal.
        let first = next_renewal(env, &before).await;
        next_renewal(env, &first).await;
        let known = api.store.version();
        api.restore_and(&backup, || {
            while api.store.version() < known + 100 {
                let map = json!({
                    "apiVersion": "v1", "kind": "ConfigMap",
                    "metadata": { "generateName": "passing-", "namespace": "default" },
                });
                api.create_value("", "configmaps", map).expect("created");
            }
        });
        let three = json!({ "spec": { "replicas": 3 } });
        merge::<Deployment>(&env.client, "deleted", three).await;
        rolled_out(&env.client, &env.clock, "deleted").await;
        has_pods(env, "scaled", 3).await;
        has_pods(env, "new", 0).await;
    });
}
