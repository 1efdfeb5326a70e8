//! What becomes of dependents when their owner is deleted.

use kube_controller_manager::client::{Delete, ListOptions, Patch};
use kube_controller_manager::objects::{
    ClusterRole, Deployment, Meta, ObjectKey, PartialObjectMetadata, Pod, ReplicaSet, Resource,
    ResourceType,
};
use serde_json::{Value, json};

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

const CONFIG_MAPS: ResourceType = ResourceType::fixed("", "v1", "ConfigMap", "configmaps", true);
const EVENTS: ResourceType = ResourceType::fixed("", "v1", "Event", "events", true);
const WIDGETS: ResourceType = ResourceType::fixed("test.io", "v1", "Widget", "widgets", true);

/// Objects without content, of any kind.
struct Objects<'a>(&'a Env);

impl Objects<'_> {
    /// Makes one, `key.name`, with more metadata; gives the reference that names it as an owner.
    async fn make(&self, kind: &ResourceType, key: &str, meta: Value) -> Value {
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

    async fn get(&self, kind: &ResourceType, key: &str) -> Option<Meta> {
        let key = ObjectKey::parse(key).unwrap();
        match self.0.client.resource(kind).get::<PartialObjectMetadata>(&key).await {
            Ok(found) => Some(found.meta),
            Err(error) if error.is_not_found() => None,
            Err(error) => panic!("{key}: {error}"),
        }
    }

    async fn gone(&self, kind: &ResourceType, key: &str) {
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

    async fn delete(&self, kind: &ResourceType, key: &str, how: Delete) {
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
fn an_owner_is_who_its_reference_says() {
    block_on(async {
        let env = Env::new("garbage-owners").await;
        let manager = env.manager("manager", &[]);
        let objects = Objects(&env);
        let (maps, roles) = (&CONFIG_MAPS, &ClusterRole::RESOURCE);
        let owner = objects.make(maps, "default/owner", json!({})).await;
        let role = objects.make(roles, "role", json!({})).await;
        let mut other = owner.clone();
        other["uid"] = json!("00000000-0000-4000-8000-000000000000");
        let by = |owners: &[&Value]| json!({ "ownerReferences": owners });

        let mut held = by(&[&other]);
        held["finalizers"] = json!(["test.io/hold"]);
        objects.make(maps, "default/held", held).await;
        // A cluster-scoped object can't have an owner in a namespace: nothing is done about it.
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
        eventually(&env.clock, "the reference across namespaces is reported", || async {
            let options = ListOptions::default();
            let verbs = env.client.resource(&EVENTS);
            let events = verbs.list::<Value>(Some("kube-system"), &options).await.unwrap().items;
            let found = events.iter().any(|event| {
                event["reason"] == "OwnerRefInvalidNamespace"
                    && event["type"] == "Warning"
                    && event["message"] == text.as_str()
                    && event["involvedObject"]["name"] == "abroad"
            });
            if found { Ok(()) } else { Err(format!("{events:?}")) }
        })
        .await;
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
        drop(manager);
        env.stop().await;
    });
}

#[test]
fn an_owner_in_the_foreground_waits_for_what_blocks_it() {
    block_on(async {
        let env = Env::new("garbage-foreground").await;
        let manager = env.manager("manager", &[]);
        let (objects, maps) = (Objects(&env), &CONFIG_MAPS);
        let owner = objects.make(maps, "default/owner", json!({})).await;
        let mut blocking = owner.clone();
        blocking["blockOwnerDeletion"] = json!(true);
        let hold =
            |owner: &Value| json!({ "ownerReferences": [owner], "finalizers": ["test.io/hold"] });
        objects.make(maps, "default/blocking", hold(&blocking)).await;
        objects.make(maps, "default/free", hold(&owner)).await;
        objects.make(maps, "default/quick", json!({ "ownerReferences": [blocking] })).await;
        objects.delete(maps, "default/owner", Delete::foreground()).await;

        objects.gone(maps, "default/quick").await;
        for key in ["default/blocking", "default/free"] {
            objects.is(maps, key, "being deleted", Meta::is_being_deleted).await;
        }
        let owner = objects.get(maps, "default/owner").await.expect("it waits");
        assert!(owner.has_finalizer("foregroundDeletion"));
        objects.release(maps, "default/blocking").await;
        objects.gone(maps, "default/owner").await;
        assert!(objects.get(maps, "default/free").await.is_some(), "it blocked nothing");
        objects.release(maps, "default/free").await;
        objects.gone(maps, "default/free").await;
        drop(manager);
        env.stop().await;
    });
}

#[test]
fn custom_resources_are_collected_though_their_kind_came_later() {
    block_on(async {
        let env = Env::new("garbage-custom").await;
        let manager = env.manager("manager", &[]);
        let (objects, maps) = (Objects(&env), &CONFIG_MAPS);
        // The collector works, with what was served until now.
        let absent = json!({ "apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "x" });
        objects.make(maps, "default/first", json!({ "ownerReferences": [absent] })).await;
        objects.gone(maps, "default/first").await;

        let crd = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": { "name": "widgets.test.io" },
            "spec": {
                "group": "test.io", "scope": "Namespaced",
                "names": { "kind": "Widget", "plural": "widgets", "singular": "widget" },
                "versions": [{ "name": "v1", "served": true, "storage": true,
                    "schema": { "openAPIV3Schema": { "type": "object" } } }],
            },
        });
        let crds = ResourceType::fixed(
            "apiextensions.k8s.io",
            "v1",
            "CustomResourceDefinition",
            "customresourcedefinitions",
            false,
        );
        env.client.resource(&crds).create::<Value>("", &crd).await.unwrap();
        eventually(&env.clock, "widgets are served", || async {
            let widgets = env.client.resource(&WIDGETS);
            let listed = widgets.list::<Value>(Some("default"), &ListOptions::default()).await;
            listed.map(drop).map_err(|error| error.to_string())
        })
        .await;
        for owner in ["background", "orphan"] {
            let key = |name: &str| format!("default/{owner}-{name}");
            let parent = objects.make(&WIDGETS, &key("parent"), json!({})).await;
            let owned = json!({ "ownerReferences": [parent] });
            objects.make(&WIDGETS, &key("child"), owned.clone()).await;
            objects.make(maps, &key("map"), owned).await;
        }
        objects.delete(&WIDGETS, "default/background-parent", Delete::background()).await;
        objects.delete(&WIDGETS, "default/orphan-parent", Delete::orphan()).await;
        objects.gone(&WIDGETS, "default/background-child").await;
        objects.gone(maps, "default/background-map").await;
        objects.gone(&WIDGETS, "default/orphan-parent").await;
        for (kind, key) in [(&WIDGETS, "default/orphan-child"), (maps, "default/orphan-map")] {
            let left = objects.get(kind, key).await.expect("an orphan stays");
            assert!(left.owners().is_empty() && !left.is_being_deleted(), "{left:?}");
        }
        drop(manager);
        env.stop().await;
    });
}
