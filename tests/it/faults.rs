//! Trouble between the manager and the API server. Whatever happens, the final state is the right
//! one, and no pod is made twice.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use kube_controller_manager::objects::{Deployment, ObjectKey, Pod, ReplicaSet, Resource};
use kube_controller_manager::sandbox::faults::Fault;
use kube_controller_manager::sandbox::store::Store;
use serde_json::{Value, json};

use crate::env::*;

/// Every pod that ever was, by its owner's uid.
#[derive(Default)]
pub struct Births {
    seen: u64,
    uids: BTreeMap<String, HashSet<String>>,
}

impl Births {
    /// Takes up what happened since the last look. The store must still remember that.
    pub fn look(&mut self, store: &Store) {
        let news =
            store.changes("pods", self.seen, usize::MAX, true).expect("the history is there");
        self.seen = news.version;
        for change in news.changes {
            let text = |at: &str| {
                let found = change.new.value.pointer(at).and_then(Value::as_str);
                found.unwrap_or_default().to_owned()
            };
            let owner = text("/metadata/ownerReferences/0/uid");
            self.uids.entry(owner).or_default().insert(text("/metadata/uid"));
        }
    }

    /// How many pods each owner ever had.
    pub fn counts(&self) -> Vec<usize> {
        self.uids.values().map(HashSet::len).collect()
    }
}

/// Rolls `web` out, and twice over, with `trouble` before each step; each ReplicaSet must have made
/// each of its six pods once. The steps: made, a new image, scaled down.
async fn rollout_in_trouble(env: &Env, mut trouble: impl FnMut(&Env, usize)) -> Births {
    let (client, clock) = (&env.client, &env.clock);
    let store = &env.cluster.sandbox.api().store;
    let mut births = Births::default();
    trouble(env, 0);
    create(client, deployment("web", 6, "web:1")).await;
    rolled_out(client, clock, "web").await;
    births.look(store);
    trouble(env, 1);
    merge::<Deployment>(client, "web", set_image("web:2")).await;
    rolled_out(client, clock, "web").await;
    births.look(store);
    trouble(env, 2);
    merge::<Deployment>(client, "web", json!({ "spec": { "replicas": 2 } })).await;
    rolled_out(client, clock, "web").await;
    births.look(store);
    births
}

#[test]
fn watches_that_break_in_the_middle_of_an_object_lose_nothing() {
    block_on(async {
        let env = Env::new("cut").await;
        let manager = env.manager("manager", &[]);
        let births = rollout_in_trouble(&env, |env, step| {
            let faults = env.cluster.sandbox.faults();
            faults.cut_watches();
            for resource in ["pods", "replicasets", "deployments"] {
                // Somewhere in the first object, and further on.
                for bytes in [10, 1500] {
                    faults.next(1, "watch", resource, Fault::CutAfter(bytes + 100 * step));
                }
            }
        })
        .await;
        assert_eq!(births.counts(), [6, 6]);
        drop(manager);
        env.stop().await;
    });
}

#[test]
fn a_watch_may_expire_at_any_time() {
    block_on(async {
        let env = Env::new("expired").await;
        let manager = env.manager("manager", &[]);
        let (client, clock) = (&env.client, &env.clock);
        let sandbox = &env.cluster.sandbox;
        let mut births = Births::default();
        let mut expire = || {
            let store = &sandbox.api().store;
            births.look(store);
            // What was not looked at yet must not be forgotten.
            while !store.compact_at(births.seen) {
                births.look(store);
            }
            sandbox.faults().expire_watches();
            births.counts()
        };
        create(client, deployment("web", 6, "web:1")).await;
        expire();
        rolled_out(client, clock, "web").await;
        merge::<Deployment>(client, "web", set_image("web:2")).await;
        eventually(clock, "a second ReplicaSet has pods", || {
            // Again and again, while pods of both are made and deleted.
            let counts = expire();
            async move { if counts.len() == 2 { Ok(()) } else { Err(format!("{counts:?}")) } }
        })
        .await;
        rolled_out(client, clock, "web").await;
        assert_eq!(expire(), [6, 6]);
        drop(manager);
        env.stop().await;
    });
}

/// Requests of the manager that a rollout and a scale-down make.
const WRITES: [(&str, &str); 6] = [
    ("create", "replicasets"),
    ("patch", "replicasets"),
    ("update", "replicasets/status"),
    ("update", "deployments/status"),
    ("create", "pods"),
    ("delete", "pods"),
];

/// A rollout whose first writes of every sort meet `faults`, while `trouble` plans others.
fn failing_writes(name: &str, faults: &[Fault], trouble: impl Fn(&Env)) {
    block_on(async {
        let env = Env::new(name).await;
        let manager = env.manager("manager", &[]);
        let births = rollout_in_trouble(&env, |env, step| {
            if step == 0 {
                for (verb, resource) in WRITES {
                    for fault in faults {
                        env.cluster.sandbox.faults().next(1, verb, resource, fault.clone());
                    }
                }
            }
            trouble(env);
        })
        .await;
        assert_eq!(births.counts(), [6, 6]);
        assert_eq!(env.cluster.sandbox.faults().pending(), [], "every fault has hit");
        drop(manager);
        env.stop().await;
    });
}

#[test]
fn refused_writes_are_made_again() {
    failing_writes(
        "refused",
        &[
            Fault::code(409, None),
            Fault::code(500, None),
            Fault::code(429, Some(1)),
            Fault::code(503, None),
            Fault::code(504, None),
        ],
        |_| (),
    );
}

#[test]
fn writes_whose_answer_is_lost_are_not_made_twice() {
    failing_writes("lost", &[Fault::LoseAnswer, Fault::Cut, Fault::LoseAnswer], |env| {
        // Nor does the cache know: the watches of the manager, the scheduler and the nodes lag.
        let faults = env.cluster.sandbox.faults();
        faults.next(3, "watch", "pods", Fault::Delay(Duration::from_secs(1)));
        faults.cut_watches();
    });
}

#[test]
fn events_told_twice_and_in_the_wrong_order_do_no_harm() {
    block_on(async {
        let env = Env::new("stutter").await;
        env.cluster.sandbox.faults().stutter(true);
        let manager = env.manager("manager", &[]);
        rollout_in_trouble(&env, |_, _| ()).await;
        // What is wrong now stays wrong: nothing more will be told.
        env.cluster.sandbox.faults().stutter(false);
        rolled_out(&env.client, &env.clock, "web").await;
        drop(manager);
        env.stop().await;
    });
}

#[test]
fn an_api_server_that_was_away_is_caught_up_with() {
    block_on(async {
        let env = Env::new("away").await;
        let mut manager = env.manager("manager", &["--leader-elect=false"]);
        let (client, clock) = (&env.client, &env.clock);
        let sandbox = &env.cluster.sandbox;
        let (store, faults) = (&sandbox.api().store, sandbox.faults());
        create(client, deployment("web", 4, "web:1")).await;
        rolled_out(client, clock, "web").await;
        let before: Vec<Pod> = list(client).await;

        faults.go_away();
        let tried = faults.count("*", "*");
        eventually(clock, "the manager asks in vain", || async {
            let tries = faults.count("*", "*") - tried;
            if tries > 20 { Ok(()) } else { Err(format!("{tries} tries")) }
        })
        .await;
        // Two pods vanish, and so does the history that tells of it.
        for pod in &before[..2] {
            let key = format!("default/{}", pod.meta.name);
            let stored = store.get("pods", &key).expect("the pod is there");
            store.delete("pods", &key, stored.version, None).expect("nobody else writes");
        }
        store.compact();
        faults.come_back();

        eventually(clock, "two pods are made anew", || async {
            let pods: Vec<Pod> = client
                .list(Some("default"), &Default::default())
                .await
                .map_err(|error| error.to_string())?;
            let kept = pods.iter().filter(|pod| before.iter().any(|b| b.meta.uid == pod.meta.uid));
            let (kept, all) = (kept.count(), pods.len());
            if (kept, all) == (2, 4) { Ok(()) } else { Err(format!("{kept} kept of {all}")) }
        })
        .await;
        rolled_out(client, clock, "web").await;
        assert_eq!(manager.ended().unwrap(), None, "it has run all the time");
        drop(manager);
        env.stop().await;
    });
}

#[test]
fn a_read_that_fails_is_read_again() {
    block_on(async {
        let env = Env::new("reads").await;
        let faults = env.cluster.sandbox.faults();
        for resource in [Deployment::RESOURCE, ReplicaSet::RESOURCE, Pod::RESOURCE] {
            for verb in ["watch", "list"] {
                faults.next(1, verb, &resource.plural, Fault::code(500, None));
                faults.next(1, verb, &resource.plural, Fault::code(429, Some(1)));
                faults.next(1, verb, &resource.plural, Fault::CutAfter(30));
            }
        }
        let manager = env.manager("manager", &[]);
        create(&env.client, deployment("web", 3, "web:1")).await;
        let key = ObjectKey::new("default", "web");
        eventually(&env.clock, "the deployment is observed", || async {
            let web: Deployment = env.client.get(&key).await.map_err(|error| error.to_string())?;
            if web.status.updated_replicas == Some(3) { Ok(()) } else { Err("not yet".into()) }
        })
        .await;
        drop(manager);
        env.stop().await;
    });
}
