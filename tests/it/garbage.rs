//! The garbage collector: dependents of deleted owners.

use std::time::Duration;

use kube_controller_manager::client::{Delete, ListOptions, Patch};
use kube_controller_manager::clock::FakeClock;
use kube_controller_manager::objects::{
    ClusterRole, Deployment, Meta, ObjectKey, PartialObjectMetadata, PersistentVolumeClaim, Pod,
    ReplicaSet, Resource, ResourceType,
};
use kube_controller_manager::task::spawn;
use sandbox::faults::Fault;
use serde_json::{Value, json};

use crate::env::*;
use crate::faults::cut_lists_and_watches;
use crate::kinds::*;
use crate::volumes::claim;

/// Deletes a rolled-out Deployment and waits until it is gone.
async fn delete_with(env: &TestCluster, name: &str, how: Delete) {
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
fn dependents_are_deleted_or_orphaned_as_requested() {
    everywhere("garbage", async |env| {
        let _manager = env.manager("manager", &[]);
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
        eventually(clock, "all dependents go", nothing).await;

        delete_with(env, "foreground", Delete::foreground()).await;
        let (sets, _) = left().await;
        assert!(sets.is_empty(), "its ReplicaSets went before it");
        eventually(clock, "its pods go", nothing).await;

        delete_with(env, "orphan", Delete::orphan()).await;
        let (sets, pods) = left().await;
        assert_eq!((sets.len(), pods.len()), (1, 2));
        assert!(sets[0].meta.owners().is_empty(), "without an owner");
        Objects(env).collector_works("orphan").await;
        let (sets, pods) = left().await;
        assert_eq!((sets.len(), pods.len()), (1, 2), "they stay");
    });
}

/// No API server serves `extensions/v1beta1` any more.
#[test]
fn dependents_that_name_their_owner_by_an_older_version_are_deleted_with_it() {
    everywhere("garbage-renamed", async |env| {
        let _manager = env.manager("manager", &[]);
        let (objects, deployments) = (Objects(env), &Deployment::RESOURCE);
        for (name, how) in
            [("foreground", Delete::foreground()), ("background", Delete::background())]
        {
            let (key, child) = (format!("default/{name}"), format!("default/{name}-map"));
            create(&env.client, deployment(name, 1, "web:1")).await;
            rolled_out(&env.client, &env.clock, name).await;
            let made = objects.get(deployments, &key).await.expect("the owner");
            let owner = json!({
                "apiVersion": "extensions/v1beta1", "kind": "Deployment", "name": name,
                "uid": made.uid, "blockOwnerDeletion": true,
            });
            objects.make(&CONFIG_MAPS, &child, json!({ "ownerReferences": [owner] })).await;
            objects.collector_works(name).await;
            let kept = objects.get(&CONFIG_MAPS, &child).await;
            assert!(kept.is_some_and(|meta| !meta.is_being_deleted()), "its owner exists");
            objects.delete(deployments, &key, how).await;
            objects.gone(&CONFIG_MAPS, &child).await;
            objects.gone(deployments, &key).await;
        }
    });
}

/// Creates, reads and deletes objects without content, of any kind.
pub struct Objects<'a>(pub &'a TestCluster);

impl Objects<'_> {
    /// Creates an object with more metadata. Returns an owner reference to it.
    pub async fn make(&self, kind: &ResourceType, key: &str, meta: Value) -> Value {
        let key = ObjectKey::parse(key).unwrap();
        let mut body = json!({
            "apiVersion": kind.api_version(), "kind": kind.kind,
            "metadata": { "name": key.name, "namespace": key.namespace },
        });
        body["metadata"].as_object_mut().unwrap().extend(meta.as_object().unwrap().clone());
        let kinds = self.0.client.resource(kind);
        let made: PartialObjectMetadata =
            kinds.create(&key.namespace, &body).await.expect("create");
        json!({
            "apiVersion": kind.api_version(), "kind": kind.kind,
            "name": key.name, "uid": made.meta.uid,
        })
    }

    pub async fn get(&self, kind: &ResourceType, key: &str) -> Option<Meta> {
        let key = ObjectKey::parse(key).unwrap();
        match self.0.client.resource(kind).get::<PartialObjectMetadata>(&key).await {
            Ok(found) => Some(found.meta),
            Err(error) if error.is_not_found() => None,
            Err(error) => panic!("{key}: {error}"),
        }
    }

    pub async fn gone(&self, kind: &ResourceType, key: &str) {
        eventually(&self.0.clock, &format!("{key} goes"), || async {
            self.get(kind, key).await.map_or(Ok(()), |meta| Err(format!("{meta:?}")))
        })
        .await;
    }

    async fn is(&self, kind: &ResourceType, key: &str, what: &str, like: impl Fn(&Meta) -> bool) {
        eventually(&self.0.clock, &format!("{key} is {what}"), || async {
            let meta = self.get(kind, key).await;
            if meta.as_ref().is_some_and(&like) { Ok(()) } else { Err(format!("{meta:?}")) }
        })
        .await;
    }

    /// Waits until the collector has deleted an object that is created now, whose owner does not
    /// exist: the events and keys from before have been handled. `name`: of the object.
    pub async fn collector_works(&self, name: &str) {
        let absent = json!({ "apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "x" });
        let key = format!("default/after-{name}");
        self.make(&CONFIG_MAPS, &key, json!({ "ownerReferences": [absent] })).await;
        self.gone(&CONFIG_MAPS, &key).await;
    }

    pub async fn delete(&self, kind: &ResourceType, key: &str, how: Delete) {
        let key = ObjectKey::parse(key).unwrap();
        self.0.client.resource(kind).delete(&key, how).await.expect("delete");
    }

    async fn release(&self, kind: &ResourceType, key: &str) {
        let key = ObjectKey::parse(key).unwrap();
        let none = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
        self.0.client.resource(kind).patch::<Value>(&key, &none).await.expect("patch");
    }
}

#[test]
fn an_owner_whose_name_is_no_segment_of_a_path_is_not_gone() {
    everywhere("garbage-names", async |env| {
        let manager = env.manager("manager", &[]);
        let objects = Objects(env);
        // As path segments these names would address the namespace, the collection, a subresource.
        let names = ["..", ".", "a/b", "%2e%2e"];
        for (n, name) in names.iter().enumerate() {
            let owner =
                json!({ "apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": "x" });
            let key = format!("default/owned-{n}");
            objects.make(&CONFIG_MAPS, &key, json!({ "ownerReferences": [owner] })).await;
        }
        // Each request is refused and retried.
        eventually(&env.clock, "the names are refused", || async {
            let log = std::fs::read_to_string(&manager.log).unwrap();
            let is_refused = |name: &str| {
                log.matches(&format!("invalid resource name {name:?}: [may not ")).count() > 1
            };
            if names.into_iter().all(is_refused) { Ok(()) } else { Err(log) }
        })
        .await;
        objects.collector_works("names").await;
        for (n, name) in names.iter().enumerate() {
            let left = objects.get(&CONFIG_MAPS, &format!("default/owned-{n}")).await;
            assert!(left.is_some_and(|meta| !meta.is_being_deleted()), "{name}");
        }
    });
}

#[test]
fn an_owner_is_the_object_that_its_reference_names() {
    everywhere("garbage-owners", async |env| {
        let _manager = env.manager("manager", &[]);
        let objects = Objects(env);
        let (maps, roles) = (&CONFIG_MAPS, &ClusterRole::RESOURCE);
        let owner = objects.make(maps, "default/owner", json!({})).await;
        let role = objects.make(roles, "role", json!({})).await;
        let mut other = owner.clone();
        other["uid"] = json!("00000000-0000-4000-8000-000000000000");
        let by = |owners: &[&Value]| json!({ "ownerReferences": owners });

        let mut held = by(&[&other]);
        held["finalizers"] = json!(["test.io/hold"]);
        objects.make(maps, "default/held", held).await;
        // A cluster-scoped object can't have an owner in a namespace: the collector ignores it.
        objects.make(roles, "odd", by(&[&owner])).await;
        objects.make(maps, "default/good", by(&[&owner])).await;
        objects.make(maps, "default/both", by(&[&other, &owner])).await;
        objects.make(maps, "default/of-role", by(&[&role])).await;
        objects.make(maps, "default/other-uid", by(&[&other])).await;
        objects.make(maps, "kube-system/abroad", by(&[&owner])).await;

        objects.gone(maps, "default/other-uid").await;
        objects.gone(maps, "kube-system/abroad").await;
        let text = format!(
            "ownerRef [v1/ConfigMap, namespace: kube-system, name: owner, uid: {}] \
             does not exist in namespace \"kube-system\"",
            owner["uid"].as_str().unwrap()
        );
        has_event(env, "abroad", "OwnerRefInvalidNamespace", &text).await;
        let one_owner = |meta: &Meta| meta.owners().len() == 1;
        objects.is(maps, "default/both", "left to the owner that is there", one_owner).await;
        objects.is(maps, "default/held", "being deleted", Meta::is_being_deleted).await;
        objects.release(maps, "default/held").await;
        objects.gone(maps, "default/held").await;

        assert!(objects.get(maps, "default/of-role").await.is_some());
        objects.delete(roles, "role", Delete::background()).await;
        objects.gone(maps, "default/of-role").await;
        for (kind, key) in [(maps, "default/good"), (maps, "default/both"), (roles, "odd")] {
            let left = objects.get(kind, key).await;
            assert!(left.is_some_and(|meta| !meta.is_being_deleted()), "{key} stays");
        }
    });
}

#[test]
fn the_missing_owner_of_a_restored_claim_is_reported() {
    everywhere("garbage-restored", async |env| {
        let manager = env.manager("manager", &[]);
        let (objects, maps) = (Objects(env), &CONFIG_MAPS);
        let owner = objects.make(maps, "default/owner", json!({})).await;
        objects.make(maps, "default/dependent", json!({ "ownerReferences": [owner] })).await;
        objects.collector_works("dependent").await;
        objects.delete(maps, "default/owner", Delete::background()).await;
        objects.gone(maps, "default/dependent").await;

        // A restored owner has its name from the backup, and another uid.
        let mut owner = objects.make(maps, "default/restored", json!({})).await;
        owner["uid"] = json!("00000000-0000-4000-8000-000000000000");
        let mut restored = claim("data", "1Gi", Some(""));
        restored["metadata"]["ownerReferences"] = json!([owner]);
        create(&env.client, restored).await;
        objects.gone(&PersistentVolumeClaim::RESOURCE, "default/data").await;
        let text = "no object has the kind, name and uid of its owner [v1/ConfigMap, namespace: \
                    default, name: restored, uid: 00000000-0000-4000-8000-000000000000]";
        has_event(env, "data", "OwnerNotFound", &format!("Deleting it: {text}")).await;
        let log = std::fs::read_to_string(&manager.log).expect("the log");
        assert!(log.contains(text), "{log}");

        // The dependent was deleted with its owner, as was meant.
        let events = env.client.resource(&EVENTS);
        let events = events.list::<Value>(None, &ListOptions::default()).await.expect("events");
        let reported = |name: &str| {
            let mut events = events.items.iter();
            events.any(|event| {
                event["reason"] == "OwnerNotFound" && event["involvedObject"]["name"] == name
            })
        };
        assert!(reported("data") && !reported("dependent"), "{:#?}", events.items);
    });
}

#[test]
fn foreground_deletion_waits_for_blocking_dependents() {
    everywhere("garbage-foreground", async |env| {
        let _manager = env.manager("manager", &[]);
        let (objects, maps) = (Objects(env), &CONFIG_MAPS);
        let owner = objects.make(maps, "default/owner", json!({})).await;
        let mut blocking = owner.clone();
        blocking["blockOwnerDeletion"] = json!(true);
        let hold =
            |owner: &Value| json!({ "ownerReferences": [owner], "finalizers": ["test.io/hold"] });
        objects.make(maps, "default/blocking", hold(&blocking)).await;
        objects.make(maps, "default/free", hold(&owner)).await;
        objects.make(maps, "default/quick", json!({ "ownerReferences": [blocking] })).await;
        // A non-blocking dependent is processed when the deletion of its owner starts, if it is
        // known by then.
        objects.collector_works("dependents").await;
        objects.delete(maps, "default/owner", Delete::foreground()).await;

        objects.gone(maps, "default/quick").await;
        for key in ["default/blocking", "default/free"] {
            objects.is(maps, key, "being deleted", Meta::is_being_deleted).await;
        }
        objects.collector_works("quick").await;
        let owner = objects.get(maps, "default/owner").await.expect("it waits");
        assert!(owner.has_finalizer("foregroundDeletion"));
        objects.release(maps, "default/blocking").await;
        objects.gone(maps, "default/owner").await;
        assert!(objects.get(maps, "default/free").await.is_some(), "it did not block its owner");
        objects.release(maps, "default/free").await;
        objects.gone(maps, "default/free").await;
    });
}

#[test]
fn a_cycle_of_owners_is_deleted() {
    everywhere("garbage-cycle", async |env| {
        let _manager = env.manager("manager", &[]);
        let (objects, maps) = (Objects(env), &CONFIG_MAPS);
        let blocks = |mut owner: Value| {
            owner["blockOwnerDeletion"] = json!(true);
            json!({ "ownerReferences": [owner] })
        };
        let one = objects.make(maps, "default/one", json!({})).await;
        let two = objects.make(maps, "default/two", blocks(one)).await;
        let three = objects.make(maps, "default/three", blocks(two)).await;
        let back = Patch::Merge(json!({ "metadata": blocks(three) }));
        let first = ObjectKey::new("default", "one");
        env.client.resource(maps).patch::<Value>(&first, &back).await.expect("patch");
        // Each blocks the next, so none of them could be deleted first.
        objects.delete(maps, "default/one", Delete::foreground()).await;
        for key in ["default/one", "default/two", "default/three"] {
            objects.gone(maps, key).await;
        }
    });
}

#[test]
fn a_dependent_made_after_orphaning_goes_with_the_owner() {
    everywhere("garbage-late", async |env| {
        let _manager = env.manager("manager", &[]);
        let (objects, maps) = (Objects(env), &CONFIG_MAPS);
        let hold = json!({ "finalizers": ["test.io/hold"] });
        let owner = objects.make(maps, "default/owner", hold).await;
        let owned = json!({ "ownerReferences": [owner] });
        objects.make(maps, "default/early", owned.clone()).await;
        objects.delete(maps, "default/owner", Delete::orphan()).await;
        let is_free = |meta: &Meta| meta.owners().is_empty();
        objects.is(maps, "default/early", "an orphan", is_free).await;
        let is_let_go = |meta: &Meta| meta.is_being_deleted() && !meta.has_finalizer("orphan");
        objects.is(maps, "default/owner", "done with its orphans", is_let_go).await;
        objects.make(maps, "default/late", owned).await;
        objects.release(maps, "default/owner").await;
        objects.gone(maps, "default/owner").await;
        objects.gone(maps, "default/late").await;
        let early = objects.get(maps, "default/early").await.expect("it stays");
        assert!(!early.is_being_deleted());
    });
}

#[test]
fn a_refused_delete_is_retried() {
    everywhere("garbage-refused", async |env| {
        let manager = env.manager("manager", &[]);
        let (objects, maps, roles) = (Objects(env), &CONFIG_MAPS, &ClusterRole::RESOURCE);
        let owner = objects.make(roles, "owner", json!({})).await;
        let mut owned = json!({ "ownerReferences": [owner] });
        let dependent = objects.make(maps, "default/refused", owned.clone()).await;
        let uid = dependent["uid"].as_str().unwrap();
        owned["finalizers"] = json!(["test.io/hold"]);
        objects.make(&ACCOUNTS, "default/allowed", owned).await;
        let refusal = env.refuse_deletes(maps).await;
        objects.delete(roles, "owner", Delete::background()).await;
        // Other objects are not delayed.
        objects.is(&ACCOUNTS, "default/allowed", "being deleted", Meta::is_being_deleted).await;
        eventually(&env.clock, "a delete is refused", || async {
            let log = std::fs::read_to_string(&manager.log).unwrap();
            let is_refused = |line: &str| line.contains(uid) && line.contains(refusal);
            if log.lines().any(is_refused) { Ok(()) } else { Err(log) }
        })
        .await;
        let refused = objects.get(maps, "default/refused").await;
        assert!(refused.is_some_and(|meta| !meta.is_being_deleted()));
        env.allow_deletes().await;
        objects.gone(maps, "default/refused").await;
        objects.release(&ACCOUNTS, "default/allowed").await;
    });
}

#[test]
fn failures_only_delay_collection() {
    Env::run("garbage-failures", async |env| {
        let _manager = env.manager("manager", &[]);
        let (objects, maps) = (Objects(env), &CONFIG_MAPS);
        for how in ["background", "foreground", "orphan"] {
            let owner = objects.make(maps, &format!("default/{how}"), json!({})).await;
            let mut blocking = owner.clone();
            blocking["blockOwnerDeletion"] = json!(true);
            for number in 0..5 {
                let key = format!("default/{how}-{number}");
                objects.make(maps, &key, json!({ "ownerReferences": [blocking] })).await;
            }
        }
        for (how, delete) in [
            ("background", Delete::background()),
            ("foreground", Delete::foreground()),
            ("orphan", Delete::orphan()),
        ] {
            objects.delete(maps, &format!("default/{how}"), delete).await;
            let faults = env.cluster.sandbox.faults();
            // More conflicts than the removal of a finalizer retries.
            for (verb, times, fault) in [
                ("get", 2, Fault::code(500, None)),
                ("patch", 6, Fault::code(409, None)),
                ("delete", 2, Fault::code(409, None)),
                ("patch", 1, Fault::LoseAnswer),
                ("delete", 2, Fault::LoseAnswer),
                ("delete", 1, Fault::code(429, Some(1))),
                ("get", 1, Fault::Cut),
            ] {
                faults.next(times, verb, "configmaps", fault);
            }
            faults.cut_watches();
            faults.expire_watches();
            eventually(
                &env.clock,
                &format!("{how}: dependents are deleted or orphaned"),
                || async {
                    let (verbs, options) = (env.client.resource(maps), ListOptions::default());
                    let all = verbs.list::<PartialObjectMetadata>(Some("default"), &options).await;
                    let mut all = all.map_err(|error| error.to_string())?.items;
                    all.retain(|map| map.meta.name.starts_with(how));
                    let free = all.iter().filter(|map| map.meta.owners().is_empty()).count();
                    let wanted = if how == "orphan" { 5 } else { 0 };
                    if (all.len(), free) == (wanted, wanted) {
                        return Ok(());
                    }
                    Err(format!("{all:?}"))
                },
            )
            .await;
            faults.clear();
        }
    });
}

#[test]
fn a_group_whose_discovery_fails_keeps_its_watches_and_its_objects() {
    Env::run("garbage-away", async |env| {
        serve_widgets(env).await;
        let clock = FakeClock::new(env.clock.now());
        let InProcess { cx, factory, stop } = InProcess::new(env, clock.clone(), env.options());
        let controller = controller_of("garbage-collector-controller", &cx);
        factory.start(&stop);
        let running = spawn(controller.run(stop.clone()));
        let (objects, maps) = (Objects(env), &CONFIG_MAPS);
        let faults = env.cluster.sandbox.faults();
        // Rounds in which the collector and the mapper read discovery.
        let looks = async |times| discovery_is_read(env, &clock, times).await;
        let owned_by = |owner: &Value| json!({ "ownerReferences": [owner] });
        let first = objects.make(&WIDGETS, "default/first", json!({})).await;
        let keeper = objects.make(&WIDGETS, "default/keeper", json!({})).await;
        let later = objects.make(&WIDGETS, "default/later", json!({})).await;
        objects.make(maps, "default/of-first", owned_by(&first)).await;
        objects.make(&WIDGETS, "default/kept", owned_by(&keeper)).await;
        objects.make(maps, "default/of-keeper", owned_by(&keeper)).await;
        objects.make(maps, "default/of-later", owned_by(&later)).await;
        objects.delete(&WIDGETS, "default/first", Delete::background()).await;
        objects.gone(maps, "default/of-first").await;
        let watches = faults.count("watch", "widgets");

        register_unreachable_server(env, "example.com").await;
        looks(3).await;
        // Its watch still brings deletions.
        delete_stored_widget(env, "default/later");
        objects.gone(maps, "default/of-later").await;
        // Whether this owner exists cannot be known now.
        let unknown =
            json!({ "apiVersion": "example.com/v1", "kind": "Widget", "name": "no", "uid": "n" });
        objects.make(maps, "default/of-unknown", owned_by(&unknown)).await;
        let absent = json!({ "apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "x" });
        objects.make(maps, "default/other", owned_by(&absent)).await;
        objects.gone(maps, "default/other").await;
        looks(2).await;
        for name in ["of-unknown", "of-keeper"] {
            assert!(objects.get(maps, &format!("default/{name}")).await.is_some(), "{name} stays");
        }
        let store = &env.cluster.sandbox.api().store;
        assert!(store.get(WIDGET_TABLE, "default/kept").is_some());

        objects.delete(&API_SERVICES, "v1.example.com", Delete::new()).await;
        looks(2).await;
        eventually(&env.clock, "of-unknown goes", || async {
            // It has failed before with growing delays, up to 1,000 s.
            clock.advance(Duration::from_secs(1000));
            let meta = objects.get(maps, "default/of-unknown").await;
            meta.map_or(Ok(()), |meta| Err(format!("{meta:?}")))
        })
        .await;
        assert!(objects.get(maps, "default/of-keeper").await.is_some());
        assert!(objects.get(&WIDGETS, "default/kept").await.is_some());
        assert_eq!(faults.count("watch", "widgets"), watches, "the watch was never closed");
        stop.stop();
        running.await;
        factory.shutdown().await;
    });
}

#[test]
fn stale_cache_entries_are_checked_against_the_server() {
    Env::run("garbage-stale", async |env| {
        let _manager = env.manager("manager", &[]);
        let (objects, maps) = (Objects(env), &CONFIG_MAPS);
        let faults = env.cluster.sandbox.faults();
        let owner = objects.make(&ACCOUNTS, "default/owner", json!({})).await;
        let by = |owners: &[&Value]| json!({ "ownerReferences": owners });
        for name in ["kept", "freed", "another", "lost"] {
            objects.make(maps, &format!("default/{name}"), by(&[&owner])).await;
        }
        // Now the collector knows them.
        objects.collector_works("start").await;

        cut_lists_and_watches(faults, "configmaps");
        // Changes that the collector does not see: a new owner, and other references.
        let absent = json!({ "apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "x" });
        let unheard = objects.make(maps, "default/unheard", json!({})).await;
        let patch = |owners: &[&Value]| Patch::Merge(json!({ "metadata": by(owners) }));
        for (name, owners) in [("kept", &[&unheard][..]), ("freed", &[])] {
            let key = ObjectKey::new("default", name);
            let maps = env.client.resource(maps);
            maps.patch::<Value>(&key, &patch(owners)).await.expect("patch");
        }
        objects.delete(maps, "default/another", Delete::new()).await;
        objects.make(maps, "default/another", json!({})).await;
        objects.make(&ACCOUNTS, "default/of-unheard", by(&[&absent, &unheard])).await;
        objects.delete(&ACCOUNTS, "default/owner", Delete::background()).await;
        objects.gone(maps, "default/lost").await;
        let one_owner = |meta: &Meta| meta.owners().len() == 1;
        objects.is(&ACCOUNTS, "default/of-unheard", "left to the other owner", one_owner).await;
        faults.clear();
        objects.collector_works("end").await;
        for (kind, name) in [
            (maps, "kept"),
            (maps, "freed"),
            (maps, "another"),
            (maps, "unheard"),
            (&ACCOUNTS, "of-unheard"),
        ] {
            let left = objects.get(kind, &format!("default/{name}")).await;
            assert!(left.is_some_and(|meta| !meta.is_being_deleted()), "{name} stays");
        }
    });
}

#[test]
fn an_object_that_changes_before_its_delete_arrives_is_kept() {
    Env::run("garbage-late-change", async |env| {
        let _manager = env.manager("manager", &[]);
        let (objects, maps) = (Objects(env), &CONFIG_MAPS);
        let faults = env.cluster.sandbox.faults();
        let owner = objects.make(&ACCOUNTS, "default/owner", json!({})).await;
        for name in ["freed", "another"] {
            let owned = json!({ "ownerReferences": [owner] });
            objects.make(maps, &format!("default/{name}"), owned).await;
        }
        faults.next(2, "delete", "configmaps", Fault::Hold);
        objects.delete(&ACCOUNTS, "default/owner", Delete::background()).await;
        eventually(&env.clock, "both are about to be deleted", || async {
            let asked = faults.count("delete", "configmaps");
            if asked == 2 { Ok(()) } else { Err(format!("{asked} requests")) }
        })
        .await;
        let key = ObjectKey::new("default", "freed");
        let none = Patch::Merge(json!({ "metadata": { "ownerReferences": null } }));
        env.client.resource(maps).patch::<Value>(&key, &none).await.expect("patch");
        objects.delete(maps, "default/another", Delete::new()).await;
        objects.make(maps, "default/another", json!({})).await;
        faults.clear();
        objects.collector_works("end").await;
        for name in ["freed", "another"] {
            let left = objects.get(maps, &format!("default/{name}")).await;
            assert!(left.is_some_and(|meta| !meta.is_being_deleted()), "{name} stays");
        }
    });
}
