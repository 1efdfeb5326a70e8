//! StorageVersions, StorageVersionMigrations and PodGroups: kinds behind gates of the API server,
//! which the sandbox serves as well.

use std::time::Duration;

use futures_lite::FutureExt;
use kube_controller_manager::client::{Delete, ListOptions, Patch};
use kube_controller_manager::clock::FakeClock;
use kube_controller_manager::objects::{
    ObjectKey, Pod, PodGroup, Resource, ResourceType, StorageVersion, StorageVersionMigration,
};
use kube_controller_manager::task::spawn;
use sandbox::faults::Fault;
use serde_json::{Value, json};

use crate::env::*;
use crate::kinds::{ACCOUNTS, CONFIG_MAPS, DEFINITIONS, WIDGETS, wait_until_exists};

const LEASES: ResourceType =
    ResourceType::fixed("coordination.k8s.io", "v1", "Lease", "leases", true);

async fn read(
    env: &TestCluster,
    resource: &ResourceType,
    key: &ObjectKey,
) -> Result<Value, String> {
    env.client.resource(resource).get(key).await.map_err(|error| error.to_string())
}

async fn make(env: &TestCluster, resource: &ResourceType, mut object: Value) -> Value {
    object["apiVersion"] = json!(env.client.served(resource).api_version());
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
    everywhere_with_gates("podgroups", gates, pod_group_stays);
}

pub async fn pod_group_stays(env: &TestCluster) {
    let _manager = env.manager("manager", &["--feature-gates=GenericWorkload=true"]);
    let group = json!({
        "metadata": { "name": "crew", "namespace": "default" },
        "spec": { "schedulingPolicy": { "basic": {} } },
    });
    let made = make(env, &PodGroup::RESOURCE, group).await;
    assert_eq!(made["metadata"]["finalizers"], json!(["scheduling.k8s.io/podgroup-protection"]));
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
    // A second group without pods is removed, so the controller has seen the first one.
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
    // One pod ends, the other is deleted.
    let ended = Patch::Merge(json!({ "status": { "phase": "Succeeded" } }));
    let status = env.client.resource(&Pod::RESOURCE).subresource("status");
    status.patch::<Value>(&ObjectKey::new("default", "one"), &ended).await.expect("patch");
    env.client.get::<PodGroup>(&key).await.expect("one pod runs");
    let two = ObjectKey::new("default", "two");
    env.client.delete::<Pod>(&two, Delete::new().grace_period(0)).await.expect("delete");
    gone(&key).await;
}

/// The name of the API server's lease.
pub async fn identity(env: &TestCluster) -> String {
    eventually(&env.clock, "the API server has its lease", || async {
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
    .await
}

#[test]
fn storage_versions_lose_servers_that_are_gone() {
    let gates = &[
        "--feature-gates=APIServerIdentity=true,StorageVersionAPI=true",
        "--runtime-config=internal.apiserver.k8s.io/v1alpha1=true",
    ];
    everywhere_with_gates("storage-versions", gates, async |env| {
        let _manager = env
            .manager("manager", &["--feature-gates=APIServerIdentity=true,StorageVersionAPI=true"]);
        let identity = identity(env).await;
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
        // A server counts as gone once its lease is deleted.
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

const MIGRATOR: &str = "--feature-gates=StorageVersionMigrator=true";
const MIGRATIONS: [&str; 2] = [MIGRATOR, "--runtime-config=storagemigration.k8s.io/v1beta1=true"];

/// A migration of a resource. With a version it is running, and objects up to it are to be migrated.
async fn migration(
    env: &TestCluster,
    name: &str,
    resource: [&str; 2],
    version: Option<&str>,
) -> ObjectKey {
    let [group, resource] = resource;
    let migration = json!({
        "metadata": { "name": name },
        "spec": { "resource": { "group": group, "resource": resource } },
    });
    make(env, &StorageVersionMigration::RESOURCE, migration).await;
    let key = ObjectKey::cluster(name);
    if let Some(version) = version {
        let running = json!({
            "type": "Running", "status": "True", "reason": "MigrationRunning",
            "message": "The migration is running", "lastTransitionTime": env.clock.now(),
        });
        let status = json!({ "status": { "conditions": [running], "resourceVersion": version } });
        let migrations = env.client.resource(&StorageVersionMigration::RESOURCE);
        let migrations = migrations.subresource("status");
        migrations.patch::<Value>(&key, &Patch::Merge(status)).await.expect("patch");
    }
    key
}

/// Waits until the migration is no longer running, and the condition `how` holds. Returns its
/// message.
async fn migration_ends(env: &TestCluster, key: &ObjectKey, how: &str) -> String {
    eventually(&env.clock, &format!("{key} ends: {how}"), || async {
        let migration = read(env, &StorageVersionMigration::RESOURCE, key).await?;
        let conditions = migration["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let is = |name: &str, status: &str| {
            let found = conditions.iter().find(|known| known["type"] == name);
            found.filter(|known| known["status"] == status)
        };
        match (is(how, "True"), is("Running", "False")) {
            (Some(end), Some(_)) => Ok(end["message"].as_str().unwrap_or_default().to_owned()),
            _ => Err(migration.to_string()),
        }
    })
    .await
}

#[test]
fn a_migration_goes_on_after_errors_that_may_pass() {
    everywhere_with_gates("migration-faults", &MIGRATIONS, async |env| {
        let maps = json!({ "metadata": { "name": "kept" }, "data": { "a": "b" } });
        let version = make(env, &CONFIG_MAPS, maps).await["metadata"]["resourceVersion"].clone();
        let version = version.as_str();
        let running = migration(env, "running", ["", "configmaps"], version).await;
        if let Some(faults) = &env.faults {
            faults.next(3, "list", "configmaps", Fault::code(403, None));
            for code in [500, 503, 504] {
                faults.next(1, "patch", "configmaps", Fault::code(code, None));
            }
            faults.next(1, "patch", "configmaps", Fault::Cut);
            faults.next(2, "update", "storageversionmigrations/status", Fault::code(500, None));
        }
        let manager = env.manager("manager", &[MIGRATOR]);
        assert_eq!(migration_ends(env, &running, "Succeeded").await, "");
        let Some(faults) = &env.faults else { return };
        assert_eq!(faults.pending(), []);

        // The next manager runs it from the start; other errors end it.
        drop(manager);
        let next = migration(env, "next", ["", "configmaps"], None).await;
        faults.next(1, "patch", "configmaps", Fault::code(403, None));
        let _manager = env.manager("next", &[MIGRATOR]);
        assert_eq!(
            migration_ends(env, &next, "Failed").await,
            "migration encountered unhandled error: fault on purpose: Forbidden"
        );
    });
}

#[test]
fn a_migration_of_what_is_not_served_fails_after_a_minute() {
    everywhere_with_gates("migration-unserved", &MIGRATIONS, async |env| {
        let fresh = migration(env, "fresh", ["example.com", "ships"], None).await;
        let running = migration(env, "running", ["example.com", "boats"], Some("1")).await;
        // A real server refuses such a version.
        let odd = match env.faults {
            Some(_) => Some(migration(env, "odd", ["", "configmaps"], Some("01")).await),
            None => None,
        };
        let done = migration(env, "done", ["", "configmaps"], None).await;
        let clock = FakeClock::new(env.clock.now());
        let InProcess { cx, factory, stop } = InProcess::new(env, clock.clone(), env.options());
        let controller = controller_of("storage-version-migrator-controller", &cx);
        factory.start(&stop);
        let ran = spawn(controller.run(stop.clone()));
        let ends = async |key: &ObjectKey, how: &str, step: Duration| {
            let passes = async {
                loop {
                    clock.advance(step);
                    env.clock.sleep(Duration::from_millis(20)).await;
                }
            };
            migration_ends(env, key, how).or(passes).await
        };
        // Gives both time: the clock advances by a minute only after others have ended.
        let slowly = Duration::from_millis(5);
        ends(&done, "Succeeded", slowly).await;
        if let Some(odd) = odd {
            assert_eq!(
                ends(&odd, "Failed", slowly).await,
                "migration encountered unhandled error: error comparing resource versions between \
                 GC and SVM resource: resource version is not well formed: 01"
            );
        }
        for key in [&fresh, &running] {
            let migration = read(env, &StorageVersionMigration::RESOURCE, key).await.unwrap();
            assert!(!migration.to_string().contains("Failed"), "{migration}");
        }
        let quickly = Duration::from_secs(5);
        assert_eq!(
            ends(&running, "Failed", quickly).await,
            "migration encountered unhandled error: unable to obtain GVR from discovery"
        );
        assert_eq!(ends(&fresh, "Failed", quickly).await, "resource does not exist in discovery");
        stop.stop();
        ran.await;
        factory.shutdown().await;
    });
}

#[test]
fn objects_are_migrated_to_the_storage_version() {
    everywhere_with_gates("migrations", &MIGRATIONS, async |env| {
        let _manager = env.manager("manager", &env.before_1_37(MIGRATOR));
        // A built-in resource, and two migrations of it.
        make(env, &CONFIG_MAPS, json!({ "metadata": { "name": "kept" }, "data": { "a": "b" } }))
            .await;
        let kept = ObjectKey::new("default", "kept");
        let before = read(env, &CONFIG_MAPS, &kept).await.unwrap();
        let first = migration(env, "first", ["", "configmaps"], None).await;
        let second = migration(env, "second", ["", "configmaps"], None).await;
        migration_ends(env, &first, "Succeeded").await;
        let done = read(env, &StorageVersionMigration::RESOURCE, &first).await.unwrap();
        assert!(!done["status"]["resourceVersion"].as_str().unwrap().is_empty());
        migration_ends(env, &second, "Succeeded").await;
        let after = read(env, &CONFIG_MAPS, &kept).await.unwrap();
        assert_eq!(after["metadata"]["resourceVersion"], before["metadata"]["resourceVersion"]);

        // A resource that cannot be listed cannot be migrated.
        let reviews = ["authentication.k8s.io", "tokenreviews"];
        let reviews = migration(env, "reviews", reviews, None).await;
        assert_eq!(
            migration_ends(env, &reviews, "Failed").await,
            "resource \"authentication.k8s.io/v1, Resource=tokenreviews\" does not support \
             discovery operations: [update patch list]"
        );

        // A custom resource whose storage version changes.
        store_two_versions(env).await;
        let w = ObjectKey::new("default", "w");
        let before = read(env, &WIDGETS, &w).await.unwrap();
        let widgets_done = migration(env, "widgets", ["example.com", "widgets"], None).await;
        migration_ends(env, &widgets_done, "Succeeded").await;
        let (stored, migrating) = stored_and_migrating(env).await;
        assert_eq!(stored, json!(["v2"]));
        assert_eq!(
            (&migrating["status"], &migrating["reason"]),
            (&json!("False"), &json!("MigrationSucceeded"))
        );
        let after = read(env, &WIDGETS, &w).await.unwrap();
        assert_ne!(after["metadata"]["resourceVersion"], before["metadata"]["resourceVersion"]);
    });
}

/// The definition of widgets, stored in one of two versions.
fn stored_in(stored: &str) -> Value {
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
}

fn widgets_definition() -> ObjectKey {
    ObjectKey::cluster("widgets.example.com")
}

/// Changes the version that widgets are stored in, and waits until `both` may be stored.
async fn store_in(env: &TestCluster, stored: &str, both: [&str; 2]) {
    let switch = Patch::Merge(json!({ "spec": stored_in(stored)["spec"] }));
    let definitions = env.client.resource(&DEFINITIONS);
    definitions.patch::<Value>(&widgets_definition(), &switch).await.expect("patch");
    wait_until_exists(env, &DEFINITIONS, &widgets_definition(), |definition| {
        definition["status"]["storedVersions"] == json!(both)
    })
    .await;
}

/// Defines widgets, makes one, `w`, and changes the version that they are stored in from v1 to v2.
async fn store_two_versions(env: &TestCluster) {
    make(env, &DEFINITIONS, stored_in("v1")).await;
    eventually(&env.clock, "widgets are served", || async {
        let widget = json!({
            "apiVersion": "example.com/v1", "kind": "Widget", "metadata": { "name": "w" },
        });
        let made = env.client.resource(&WIDGETS).create::<Value>("default", &widget).await;
        made.map(drop).map_err(|error| error.to_string())
    })
    .await;
    store_in(env, "v2", ["v1", "v2"]).await;
}

/// The versions in which widgets may be stored, and the condition that shows a migration of them.
async fn stored_and_migrating(env: &TestCluster) -> (Value, Value) {
    let definition = read(env, &DEFINITIONS, &widgets_definition()).await.unwrap();
    let conditions = definition["status"]["conditions"].as_array().unwrap();
    let migrating = conditions.iter().find(|known| known["type"] == "StorageMigrating");
    (definition["status"]["storedVersions"].clone(), migrating.cloned().unwrap_or_default())
}

#[test]
fn a_migration_that_fails_keeps_the_stored_versions() {
    everywhere_with_gates("migrations-two", &MIGRATIONS, async |env| {
        let _manager = env.manager("manager", &[MIGRATOR]);
        let widgets = ["example.com", "widgets"];
        store_two_versions(env).await;
        let first = migration(env, "first", widgets, None).await;
        migration_ends(env, &first, "Succeeded").await;
        assert_eq!(stored_and_migrating(env).await.0, json!(["v2"]));
        let Some(faults) = &env.faults else { return };

        store_in(env, "v1", ["v2", "v1"]).await;
        faults.next(1, "patch", "widgets", Fault::code(403, None));
        let second = migration(env, "second", widgets, None).await;
        migration_ends(env, &second, "Failed").await;
        let (stored, migrating) = stored_and_migrating(env).await;
        assert_eq!(stored, json!(["v2", "v1"]), "a widget may be stored in both");
        assert_eq!(
            (&migrating["status"], &migrating["reason"]),
            (&json!("False"), &json!("MigrationFailed"))
        );

        let third = migration(env, "third", widgets, None).await;
        migration_ends(env, &third, "Succeeded").await;
        assert_eq!(stored_and_migrating(env).await.0, json!(["v1"]));
    });
}

#[test]
fn a_definition_that_changed_meanwhile_keeps_its_stored_versions() {
    everywhere_with_gates("migrations-changed", &MIGRATIONS, async |env| {
        store_two_versions(env).await;
        let (key, definitions) = (widgets_definition(), env.client.resource(&DEFINITIONS));
        let definition = read(env, &DEFINITIONS, &key).await.unwrap();
        // A migration has begun before the definition changed.
        let generation = definition["metadata"]["generation"].as_i64().unwrap();
        let migrating = json!({
            "type": "StorageMigrating", "status": "True", "reason": "MigrationRunning",
            "message": "Migration begun is running", "lastTransitionTime": env.clock.now(),
            "observedGeneration": generation - 1,
        });
        let body = json!({
            "apiVersion": DEFINITIONS.api_version(), "kind": DEFINITIONS.kind,
            "metadata": { "name": key.name },
            "status": { "conditions": [migrating], "storedVersions": ["v1", "v2"] },
        });
        let manager = "migration-runner-controller".to_owned();
        let begun = Patch::Apply { manager, force: true, body };
        definitions.subresource("status").patch::<Value>(&key, &begun).await.expect("patch");
        let w = read(env, &WIDGETS, &ObjectKey::new("default", "w")).await.unwrap();
        let version = w["metadata"]["resourceVersion"].as_str();
        let migration = migration(env, "begun", ["example.com", "widgets"], version).await;
        if let Some(faults) = &env.faults {
            // The second of the two writes to the migration fails, after the write to the
            // definition.
            let writes = ["update", "storageversionmigrations/status"];
            faults.next(1, writes[0], writes[1], Fault::Delay(Duration::ZERO));
            faults.next(2, writes[0], writes[1], Fault::code(500, None));
        }
        let _manager = env.manager("manager", &[MIGRATOR]);
        migration_ends(env, &migration, "Succeeded").await;
        let (stored, migrating) = stored_and_migrating(env).await;
        assert_eq!(stored, json!(["v1", "v2"]));
        assert_eq!(
            migrating["message"],
            "The migration has succeeded but the stored versions have not been updated due to a \
             generation mismatch"
        );
        if let Some(faults) = &env.faults {
            assert_eq!(faults.pending(), []);
        }
    });
}

#[test]
fn no_migration_runs_without_the_versions_of_informers() {
    const OFF: &str = "--feature-gates=StorageVersionMigrator=true,InformerResourceVersion=false";
    everywhere_with_gates("migrations-off", &MIGRATIONS, async |env| {
        let manager = env.manager("off", &[OFF]);
        make(env, &CONFIG_MAPS, json!({ "metadata": { "name": "kept" } })).await;
        let key = migration(env, "waits", ["", "configmaps"], None).await;
        // Other controllers are at work.
        wait_until_exists(env, &ACCOUNTS, &ObjectKey::new("default", "default"), |_| true).await;
        let log = std::fs::read_to_string(&manager.log).expect("a log");
        let skipped = "Warning: skipping controller: storage-version-migrator-controller";
        assert!(log.contains(skipped), "{log}");
        let waits = read(env, &StorageVersionMigration::RESOURCE, &key).await.unwrap();
        assert!(waits["status"]["conditions"].is_null(), "{waits}");
        drop(manager);
        let _manager = env.manager("on", &[MIGRATOR]);
        migration_ends(env, &key, "Succeeded").await;
    });
}
