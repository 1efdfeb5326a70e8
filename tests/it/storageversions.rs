//! What API servers store and how objects are moved to another version, and the groups that pods
//! are scheduled in: kinds behind gates of the API server.

use kube_controller_manager::client::{Delete, ListOptions, Patch};
use kube_controller_manager::objects::{
    ObjectKey, Pod, PodGroup, Resource, ResourceType, StorageVersion, StorageVersionMigration,
};
use serde_json::{Value, json};

use crate::env::*;
use crate::kinds::CONFIG_MAPS;

const LEASES: ResourceType =
    ResourceType::fixed("coordination.k8s.io", "v1", "Lease", "leases", true);
const DEFINITIONS: ResourceType = ResourceType::fixed(
    "apiextensions.k8s.io",
    "v1",
    "CustomResourceDefinition",
    "customresourcedefinitions",
    false,
);

async fn read(env: &Site, resource: &ResourceType, key: &ObjectKey) -> Result<Value, String> {
    env.client.resource(resource).get(key).await.map_err(|error| error.to_string())
}

async fn make(env: &Site, resource: &ResourceType, mut object: Value) -> Value {
    object["apiVersion"] = json!(resource.api_version());
    object["kind"] = json!(resource.kind);
    let namespace = if resource.namespaced { "default" } else { "" };
    env.client.resource(resource).create(namespace, &object).await.expect("create")
}

#[test]
fn a_pod_group_stays_while_its_pods_run() {
    let gates = &[
        "--feature-gates=GenericWorkload=true",
        "--runtime-config=scheduling.k8s.io/v1alpha2=true",
    ];
    on_real_server("podgroups", gates, async |env| {
        let _manager = env.manager("manager", &["--feature-gates=GenericWorkload=true"]);
        let group = json!({
            "metadata": { "name": "crew", "namespace": "default" },
            "spec": { "schedulingPolicy": { "basic": {} } },
        });
        let made = make(env, &PodGroup::RESOURCE, group).await;
        assert_eq!(
            made["metadata"]["finalizers"],
            json!(["scheduling.k8s.io/podgroup-protection"])
        );
        let pod = |name: &str| {
            json!({
                "metadata": { "name": name, "namespace": "default" },
                "spec": {
                    "schedulingGroup": { "podGroupName": "crew" },
                    "containers": [{ "name": "main", "image": "x:1" }],
                },
            })
        };
        for name in ["one", "two"] {
            make(env, &Pod::RESOURCE, pod(name)).await;
        }
        let key = ObjectKey::new("default", "crew");
        env.client.delete::<PodGroup>(&key, Delete::new()).await.expect("delete");
        // A second group that has no pods goes, so the controller has seen the first one.
        let other = json!({
            "metadata": { "name": "empty", "namespace": "default" },
            "spec": { "schedulingPolicy": { "basic": {} } },
        });
        make(env, &PodGroup::RESOURCE, other).await;
        let empty = ObjectKey::new("default", "empty");
        env.client.delete::<PodGroup>(&empty, Delete::new()).await.expect("delete");
        let gone = async |key: &ObjectKey| {
            eventually(&env.clock, &format!("{key} goes"), || async {
                match env.client.get::<PodGroup>(key).await {
                    Err(error) if error.is_not_found() => Ok(()),
                    other => Err(format!("{other:?}")),
                }
            })
            .await;
        };
        gone(&empty).await;
        env.client.get::<PodGroup>(&key).await.expect("two pods run");
        // One pod ends, the other goes.
        let ended = Patch::Merge(json!({ "status": { "phase": "Succeeded" } }));
        let status = env.client.resource(&Pod::RESOURCE).subresource("status");
        status.patch::<Value>(&ObjectKey::new("default", "one"), &ended).await.expect("patch");
        env.client.get::<PodGroup>(&key).await.expect("one pod runs");
        let two = ObjectKey::new("default", "two");
        env.client.delete::<Pod>(&two, Delete::new().grace_period(0)).await.expect("delete");
        gone(&key).await;
    });
}

#[test]
fn storage_versions_lose_servers_that_are_gone() {
    let gates = &[
        "--feature-gates=APIServerIdentity=true,StorageVersionAPI=true",
        "--runtime-config=internal.apiserver.k8s.io/v1alpha1=true",
    ];
    on_real_server("storage-versions", gates, async |env| {
        let _manager = env
            .manager("manager", &["--feature-gates=APIServerIdentity=true,StorageVersionAPI=true"]);
        let identity = eventually(&env.clock, "the API server has its lease", || async {
            let options = ListOptions {
                label_selector: Some("apiserver.kubernetes.io/identity=kube-apiserver".into()),
                ..ListOptions::default()
            };
            let leases = env.client.resource(&LEASES);
            let found = leases.list::<Value>(Some("kube-system"), &options).await;
            let found = found.map_err(|error| error.to_string())?.items;
            let name = found.first().and_then(|lease| lease["metadata"]["name"].as_str());
            name.map(str::to_owned).ok_or_else(|| "none".to_owned())
        })
        .await;
        let entry = |server: &str, version: &str| {
            json!({
                "apiServerID": server, "encodingVersion": version, "decodableVersions": [version],
            })
        };
        let report = async |name: &str, entries: Value| {
            make(
                env,
                &StorageVersion::RESOURCE,
                json!({ "metadata": { "name": name }, "spec": {} }),
            )
            .await;
            let status = env.client.resource(&StorageVersion::RESOURCE).subresource("status");
            let first = &entries[0]["encodingVersion"];
            let all = entries.as_array().expect("a list");
            // The API server refuses a status without it.
            let common =
                all.iter().all(|entry| entry["encodingVersion"] == *first).then_some(first);
            let patch = Patch::Merge(json!({ "status": {
                "storageVersions": entries, "commonEncodingVersion": common,
            } }));
            let key = ObjectKey::cluster(name);
            status.patch::<Value>(&key, &patch).await.expect("patch");
            key
        };
        let mixed =
            report("example.com.mixed", json!([entry("gone", "v1"), entry(&identity, "v2")]));
        let mixed = mixed.await;
        let stale = report("example.com.stale", json!([entry("gone", "v1")])).await;
        eventually(&env.clock, "one without living servers goes", || async {
            match env.client.get::<StorageVersion>(&stale).await {
                Err(error) if error.is_not_found() => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
        eventually(&env.clock, "the entry of the living server stays", || async {
            let version = read(env, &StorageVersion::RESOURCE, &mixed).await?;
            let status = &version["status"];
            let is_good = status["storageVersions"].as_array().is_some_and(|all| all.len() == 1)
                && status["storageVersions"][0]["apiServerID"] == json!(identity)
                && status["commonEncodingVersion"] == "v2"
                && status["conditions"][0]["type"] == "AllEncodingVersionsEqual"
                && status["conditions"][0]["status"] == "True";
            if is_good { Ok(()) } else { Err(status.to_string()) }
        })
        .await;
        // A server goes for good with its lease.
        let lease = json!({ "metadata": { "name": "second", "namespace": "kube-system",
            "labels": { "apiserver.kubernetes.io/identity": "kube-apiserver" } },
            "apiVersion": LEASES.api_version(), "kind": "Lease",
            "spec": { "holderIdentity": "second", "leaseDurationSeconds": 3600,
                "renewTime": env.clock.now().to_micro_string() } });
        env.client.resource(&LEASES).create::<Value>("kube-system", &lease).await.expect("create");
        let both =
            report("example.com.both", json!([entry("second", "v1"), entry(&identity, "v2")]));
        let both = both.await;
        let second = ObjectKey::new("kube-system", "second");
        env.client.resource(&LEASES).delete(&second, Delete::new()).await.expect("delete");
        eventually(&env.clock, "its entry goes", || async {
            let version = read(env, &StorageVersion::RESOURCE, &both).await?;
            let entries = version["status"]["storageVersions"].as_array().map_or(0, Vec::len);
            if entries == 1 { Ok(()) } else { Err(version["status"].to_string()) }
        })
        .await;
    });
}

#[test]
fn objects_are_migrated_to_the_storage_version() {
    let gates = &[
        "--feature-gates=StorageVersionMigrator=true",
        "--runtime-config=storagemigration.k8s.io/v1beta1=true",
    ];
    on_real_server("migrations", gates, async |env| {
        let _manager = env.manager("manager", &["--feature-gates=StorageVersionMigrator=true"]);
        let migrate = async |name: &str, group: &str, resource: &str| {
            make(
                env,
                &StorageVersionMigration::RESOURCE,
                json!({
                    "metadata": { "name": name },
                    "spec": { "resource": { "group": group, "resource": resource } },
                }),
            )
            .await;
            ObjectKey::cluster(name)
        };
        let ends = async |key: &ObjectKey, how: &str| {
            eventually(&env.clock, &format!("{key} ends: {how}"), || async {
                let migration = read(env, &StorageVersionMigration::RESOURCE, key).await?;
                let holds = |name: &str| {
                    let conditions = migration["status"]["conditions"].as_array();
                    let mut all = conditions.into_iter().flatten();
                    all.find(|known| known["type"] == name).map(|known| known["status"].clone())
                };
                let ended =
                    holds(how) == Some(json!("True")) && holds("Running") == Some(json!("False"));
                if ended { Ok(migration.clone()) } else { Err(migration.to_string()) }
            })
            .await
        };
        // A built-in resource, and two migrations of it.
        make(env, &CONFIG_MAPS, json!({ "metadata": { "name": "kept" }, "data": { "a": "b" } }))
            .await;
        let kept = ObjectKey::new("default", "kept");
        let before = read(env, &CONFIG_MAPS, &kept).await.unwrap();
        let (first, second) =
            (migrate("first", "", "configmaps").await, migrate("second", "", "configmaps").await);
        let done = ends(&first, "Succeeded").await;
        assert!(!done["status"]["resourceVersion"].as_str().unwrap().is_empty());
        ends(&second, "Succeeded").await;
        let after = read(env, &CONFIG_MAPS, &kept).await.unwrap();
        assert_eq!(after["metadata"]["resourceVersion"], before["metadata"]["resourceVersion"]);

        // What cannot be listed cannot be migrated.
        let reviews = migrate("reviews", "authentication.k8s.io", "tokenreviews").await;
        let failed = ends(&reviews, "Failed").await;
        assert!(failed.to_string().contains("does not support discovery operations"), "{failed}");

        // A custom resource whose storage version changes.
        let definition = |stored: &str| {
            let version = |name: &str| {
                json!({
                    "name": name, "served": true, "storage": name == stored,
                    "schema": { "openAPIV3Schema": {
                        "type": "object", "x-kubernetes-preserve-unknown-fields": true } },
                })
            };
            json!({
                "metadata": { "name": "widgets.example.com" },
                "spec": {
                    "group": "example.com", "scope": "Namespaced",
                    "names": { "plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList" },
                    "versions": [version("v1"), version("v2")],
                },
            })
        };
        make(env, &DEFINITIONS, definition("v1")).await;
        let widgets = ResourceType::fixed("example.com", "v1", "Widget", "widgets", true);
        eventually(&env.clock, "widgets are served", || async {
            let widget = json!({
                "apiVersion": "example.com/v1", "kind": "Widget", "metadata": { "name": "w" },
            });
            let made = env.client.resource(&widgets).create::<Value>("default", &widget).await;
            made.map(drop).map_err(|error| error.to_string())
        })
        .await;
        let w = ObjectKey::new("default", "w");
        let before = read(env, &widgets, &w).await.unwrap();
        let key = ObjectKey::cluster("widgets.example.com");
        let switch = Patch::Merge(json!({ "spec": definition("v2")["spec"] }));
        env.client.resource(&DEFINITIONS).patch::<Value>(&key, &switch).await.expect("patch");
        eventually(&env.clock, "both versions are stored", || async {
            let stored = &read(env, &DEFINITIONS, &key).await?["status"]["storedVersions"];
            if *stored == json!(["v1", "v2"]) { Ok(()) } else { Err(stored.to_string()) }
        })
        .await;
        let widgets_done = migrate("widgets", "example.com", "widgets").await;
        ends(&widgets_done, "Succeeded").await;
        let definition = read(env, &DEFINITIONS, &key).await.unwrap();
        assert_eq!(definition["status"]["storedVersions"], json!(["v2"]), "{definition}");
        let conditions = definition["status"]["conditions"].as_array().unwrap();
        let migrating =
            conditions.iter().find(|known| known["type"] == "StorageMigrating").unwrap();
        assert_eq!(
            (&migrating["status"], &migrating["reason"]),
            (&json!("False"), &json!("MigrationSucceeded"))
        );
        let after = read(env, &widgets, &w).await.unwrap();
        assert_ne!(after["metadata"]["resourceVersion"], before["metadata"]["resourceVersion"]);
    });
}
