//! What becomes of dependents when their owner is deleted.

use kube_controller_manager::client::{Delete, ListOptions};
use kube_controller_manager::objects::{Deployment, ObjectKey, Pod, ReplicaSet};

use crate::env::*;

/// Deletes a rolled-out Deployment and waits until it is gone; what is left is the caller's to see.
async fn delete_with(env: &Site, name: &str, how: Delete) {
    let (client, clock) = (&env.client, &env.clock);
    create(client, deployment(name, 2, "web:1")).await;
    rolled_out(client, clock, name).await;
    let key = ObjectKey::new("default", name);
    client.delete::<Deployment>(&key, how).await.expect("delete");
    eventually(clock, "the deployment goes", || async {
        match client.get::<Deployment>(&key).await {
            Err(error) if error.is_not_found() => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}

#[test]
fn dependents_go_with_their_owner_or_stay_as_asked() {
    everywhere("garbage", async |env| {
        let manager = env.manager("manager", &[]);
        let (client, clock) = (&env.client, &env.clock);
        let left = || async {
            let options = ListOptions::default();
            let sets: Vec<ReplicaSet> = client.list(Some("default"), &options).await.unwrap();
            let pods: Vec<Pod> = client.list(Some("default"), &options).await.unwrap();
            (sets, pods)
        };
        let nothing = || async {
            let (sets, pods) = left().await;
            let count = (sets.len(), pods.len());
            if count == (0, 0) { Ok(()) } else { Err(format!("{count:?} left")) }
        };
        delete_with(env, "background", Delete::background()).await;
        eventually(clock, "all that it owned goes", nothing).await;

        delete_with(env, "foreground", Delete::foreground()).await;
        let (sets, _) = left().await;
        assert!(sets.is_empty(), "its ReplicaSets went before it");
        eventually(clock, "its pods go", nothing).await;

        delete_with(env, "orphan", Delete::orphan()).await;
        let (sets, pods) = left().await;
        assert_eq!((sets.len(), pods.len()), (1, 2), "they stay");
        assert!(sets[0].meta.owners().is_empty(), "without an owner");
        drop(manager);
    });
}
