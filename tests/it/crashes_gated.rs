//! Controllers of kinds that are behind gates: they die at any of their writes, and restart when
//! there is nothing to do.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_lite::FutureExt;
use kube_controller_manager::client::{Delete, ListOptions, Patch};
use kube_controller_manager::objects::{
    DeviceTaintRule, Namespace, ObjectKey, Pod, PodGroup, Resource, ResourceClaim,
    ResourcePoolStatusRequest, ResourceSlice, StorageVersion, StorageVersionMigration,
};
use serde_json::{Value, json};

use crate::crashes::{Mutation, Scenario, survives_every_write, survives_every_write_with};
use crate::devices::*;
use crate::devicetaints::rules_on;
use crate::env::*;
use crate::kinds::{CONFIG_MAPS, WIDGETS, serve_widgets, wait_until_deleted, wait_until_exists};
use crate::storageversions::identity;

/// Repeats `step`, which does the part of a component that does not run in the test.
async fn repeat_step(env: &Env, step: impl AsyncFn()) -> usize {
    loop {
        step().await;
        env.clock.sleep(Duration::from_millis(20)).await;
    }
}

pub async fn all<T: Resource>(env: &TestCluster) -> Vec<Value> {
    let resource = env.client.resource(&T::RESOURCE);
    resource.list(None, &ListOptions::default()).await.expect("list").items
}

fn name_of(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

fn of_kind<T: Resource>(env: &TestCluster, mut object: Value) -> Value {
    object["apiVersion"] = json!(env.client.served(&T::RESOURCE).api_version());
    object["kind"] = json!(T::RESOURCE.kind);
    object
}

#[test]
fn an_eviction_by_a_device_taint_survives_a_crash_at_every_write() {
    Env::run_with_gates("crash-device-taint", async |env| {
        class(env).await;
        let objects = |name: &str| {
            let claim = format!("{name}-claim");
            let taint = json!({
                "key": "k", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z",
            });
            let spec = json!({ "deviceSelector": { "device": name }, "taint": taint });
            vec![
                of_kind::<Pod>(env, placed(name, &claim, "ready")),
                of_kind::<ResourceClaim>(
                    env,
                    json!({ "metadata": { "name": claim }, "spec": one_device() }),
                ),
                of_kind::<DeviceTaintRule>(
                    env,
                    json!({ "metadata": { "name": format!("{name}-rule") }, "spec": spec }),
                ),
            ]
        };
        let scenario = Scenario {
            controllers: &["device-taint-eviction-controller"],
            objects: &objects,
            changes: vec![],
            end: &|name, cluster| {
                let condition =
                    &cluster.object(&format!("{name}-rule"))?["status"]["conditions"][0];
                if cluster.object(name).is_ok() || condition["status"] != "False" {
                    return Err(format!("the pod stays, or is waited for: {condition}"));
                }
                Ok(condition["status"].clone())
            },
        };
        let scheduler = repeat_step(env, async || {
            let claims = all::<ResourceClaim>(env).await;
            let is_free = |claim: &&Value| claim["status"]["allocation"].is_null();
            let free: Vec<&str> = claims.iter().filter(is_free).map(name_of).collect();
            for pod in all::<Pod>(env).await {
                let name = name_of(&pod);
                let claim = format!("{name}-claim");
                if free.contains(&claim.as_str()) {
                    allocate(env, &key(&claim), name, &[consumer(&pod)]).await;
                }
            }
        });
        let options = rules_on(env);
        let survives = survives_every_write_with(env, &scenario, &options);
        let writes = survives.or(scheduler).await;
        assert!(writes >= 3, "the rule's status, the pod's, and its end: {writes}");
    });
}

#[test]
fn the_end_of_a_pod_group_survives_a_crash_at_every_write() {
    Env::run_with_gates("crash-pod-group", async |env| {
        let group = |name: &str| {
            of_kind::<PodGroup>(
                env,
                json!({
                    "metadata": { "name": name }, "spec": { "schedulingPolicy": { "basic": {} } },
                }),
            )
        };
        let scenario = Scenario {
            controllers: &["podgroup-protection-controller"],
            objects: &|name| vec![group(name)],
            changes: vec![Mutation::Delete],
            end: &|name, cluster| match cluster.object(name) {
                Ok(group) if !group["metadata"]["deletionTimestamp"].is_null() => {
                    Err(group.to_string())
                }
                found => Ok(json!(found.is_ok())),
            },
        };
        let writes = survives_every_write(env, &scenario).await;
        assert!(writes >= 1, "its finalizer: {writes}");
    });
}

#[test]
fn an_answer_about_pools_survives_a_crash_at_every_write() {
    Env::run_with_gates("crash-pool-status", async |env| {
        make::<ResourceSlice>(env, slice(env, &[])).await;
        let request = |name: &str| {
            of_kind::<ResourcePoolStatusRequest>(
                env,
                json!({ "metadata": { "name": name }, "spec": { "driver": DRIVER } }),
            )
        };
        let scenario = Scenario {
            controllers: &["resourcepoolstatusrequest-controller"],
            objects: &|name| vec![request(name)],
            changes: vec![],
            end: &|name, cluster| {
                let status = &cluster.object(name)?["status"];
                if status["poolCount"] == 1 {
                    Ok(status["pools"].clone())
                } else {
                    Err("no".into())
                }
            },
        };
        let writes = survives_every_write(env, &scenario).await;
        assert!(writes >= 1, "its status: {writes}");
    });
}

#[test]
fn the_end_of_an_api_server_survives_a_crash_at_every_write() {
    Env::run_with_gates("crash-storage-version", async |env| {
        let living = identity(env).await;
        let objects = |name: &str| {
            let version = |name: String| {
                of_kind::<StorageVersion>(env, json!({ "metadata": { "name": name }, "spec": {} }))
            };
            vec![version(format!("{name}.gone")), version(format!("{name}.mixed"))]
        };
        let scenario = Scenario {
            controllers: &["storageversion-garbage-collector-controller"],
            objects: &objects,
            changes: vec![],
            end: &|name, cluster| {
                let mixed = &cluster.object(&format!("{name}.mixed"))?["status"];
                let servers = mixed["storageVersions"].as_array().cloned().unwrap_or_default();
                let is_over = cluster.object(&format!("{name}.gone")).is_err()
                    && servers.len() == 1
                    && servers[0]["apiServerID"] == json!(living);
                let end = || json!([mixed["commonEncodingVersion"], servers]);
                if is_over { Ok(end()) } else { Err(mixed.to_string()) }
            },
        };
        let entry = |server: &str, version: &str| {
            json!({
                "apiServerID": server, "encodingVersion": version, "decodableVersions": [version],
            })
        };
        // The API servers, one of which stops.
        let servers = repeat_step(env, async || {
            for version in all::<StorageVersion>(env).await {
                let name = name_of(&version);
                if !name.starts_with("run-") || !version["status"]["storageVersions"].is_null() {
                    continue;
                }
                let status = match name.ends_with(".mixed") {
                    true => json!({
                        "storageVersions": [entry("gone", "v1"), entry(&living, "v2")],
                    }),
                    false => json!({
                        "storageVersions": [entry("gone", "v1")], "commonEncodingVersion": "v1",
                    }),
                };
                let status = json!({ "status": status });
                let versions = env.client.resource(&StorageVersion::RESOURCE);
                let versions = versions.subresource("status");
                let key = ObjectKey::cluster(name);
                versions.patch::<Value>(&key, &Patch::Merge(status)).await.expect("patch");
            }
        });
        let writes = survives_every_write(env, &scenario).or(servers).await;
        assert!(writes >= 2, "an update and a deletion: {writes}");
    });
}

#[test]
fn a_storage_migration_survives_a_crash_at_every_write() {
    Env::run_with_gates("crash-migration", async |env| {
        serve_widgets(env).await;
        let widget = json!({
            "apiVersion": WIDGETS.api_version(), "kind": WIDGETS.kind, "metadata": { "name": "w" },
        });
        env.client.resource(&WIDGETS).create::<Value>("default", &widget).await.expect("create");
        let migration = |name: &str| {
            let resource = json!({ "group": WIDGETS.group, "resource": WIDGETS.plural });
            of_kind::<StorageVersionMigration>(
                env,
                json!({ "metadata": { "name": name }, "spec": { "resource": resource } }),
            )
        };
        let scenario = Scenario {
            controllers: &["storage-version-migrator-controller"],
            objects: &|name| vec![migration(name)],
            changes: vec![],
            end: &|name, cluster| {
                let conditions = &cluster.object(name)?["status"]["conditions"];
                let conditions = conditions.as_array().cloned().unwrap_or_default();
                let brief = |it: &Value| json!([it["type"], it["status"], it["reason"]]);
                let conditions: Vec<Value> = conditions.iter().map(brief).collect();
                let ended = json!(["Running", "False", "MigrationCompleted"]);
                if conditions.contains(&ended) {
                    Ok(json!(conditions))
                } else {
                    Err(format!("{conditions:?}"))
                }
            },
        };
        let writes = survives_every_write(env, &scenario).await;
        assert!(writes >= 7, "four of the status, two of the definition, a widget: {writes}");
    });
}

/// The gates of the controllers under test.
const GATES: &str = "--feature-gates=GenericWorkload=true,DRAWorkloadResourceClaims=true,\
    DRADeviceTaintRules=true,DRAResourcePoolStatus=true,APIServerIdentity=true,\
    StorageVersionAPI=true,StorageVersionMigrator=true";

/// The resources and subresources that they write. Of pods only deletions count, because the
/// stand-in nodes write statuses as well.
const WRITTEN: [&str; 8] = [
    "resourceclaims",
    "devicetaintrules",
    "resourcepoolstatusrequests",
    "podgroups",
    "storageversions",
    "storageversionmigrations",
    "configmaps",
    "pods",
];

fn writes(env: &Env) -> BTreeMap<(String, String), u64> {
    let mut counts = env.cluster.sandbox.faults().counts();
    counts.retain(|(verb, resource), _| {
        let whole = resource.split('/').next().unwrap_or_default();
        let is_write = !matches!(verb.as_str(), "get" | "list" | "watch");
        is_write && WRITTEN.contains(&whole) && (whole != "pods" || verb == "delete")
    });
    counts
}

#[test]
fn a_new_manager_writes_nothing_where_all_is_settled() {
    Env::run_with_gates("settled", async |env| {
        class(env).await;
        template(env).await;
        make::<ResourceSlice>(env, slice(env, &[])).await;
        make::<StorageVersion>(
            env,
            json!({ "metadata": { "name": "example.com.kept" }, "spec": {} }),
        )
        .await;
        let living = identity(env).await;
        let entry = |server: &str| {
            let entry = json!({
                "apiServerID": server, "encodingVersion": "v1", "decodableVersions": ["v1"],
            });
            json!({ "status": { "storageVersions": [entry], "commonEncodingVersion": "v1" } })
        };
        let reports = async |name: &str, server: &str| {
            let versions = env.client.resource(&StorageVersion::RESOURCE).subresource("status");
            let (key, status) = (ObjectKey::cluster(name), Patch::Merge(entry(server)));
            versions.patch::<Value>(&key, &status).await.expect("patch");
        };
        reports("example.com.kept", &living).await;
        let map =
            json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "kept" } });
        env.client.resource(&CONFIG_MAPS).create::<Value>("default", &map).await.expect("create");

        let group = |name: &str| {
            json!({
                "metadata": { "name": name }, "spec": { "schedulingPolicy": { "basic": {} } },
            })
        };
        let rule = |name: &str, effect: &str| {
            let time = json!(env.clock.now());
            let taint = json!({ "key": "k", "effect": effect, "timeAdded": time });
            json!({
                "metadata": { "name": name },
                "spec": { "deviceSelector": { "driver": DRIVER }, "taint": taint },
            })
        };
        let request =
            |name: &str| json!({ "metadata": { "name": name }, "spec": { "driver": DRIVER } });
        let migration = |name: &str| {
            let resource = json!({ "group": "", "resource": "configmaps" });
            json!({ "metadata": { "name": name }, "spec": { "resource": resource } })
        };
        let of_cluster = ObjectKey::cluster;
        let rule_says = async |name: &str, reason: &str| {
            wait_until_exists(env, &DeviceTaintRule::RESOURCE, &of_cluster(name), |rule| {
                rule["status"]["conditions"][0]["reason"] == reason
            })
            .await;
        };
        let is_answered = async |name: &str| {
            wait_until_exists(
                env,
                &ResourcePoolStatusRequest::RESOURCE,
                &of_cluster(name),
                |request| request["status"]["poolCount"].is_u64(),
            )
            .await;
        };
        let is_migrated = async |name: &str| {
            wait_until_exists(
                env,
                &StorageVersionMigration::RESOURCE,
                &of_cluster(name),
                |migration| {
                    let conditions = migration["status"]["conditions"].as_array();
                    let mut conditions = conditions.into_iter().flatten();
                    conditions.any(|it| it["reason"] == "MigrationCompleted")
                },
            )
            .await;
        };

        // Objects of each kind: a claim from a template and a claim that exists, both in use; a pod
        // that tolerates a taint for an hour; a group with a pod; an answered request; a migration.
        let manager = env.manager("manager", &[GATES]);
        make::<Pod>(env, pod("user", from_template(), "ready")).await;
        claim_of::<Pod>(env, "user").await;
        let for_an_hour =
            json!([{ "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 3600 }]);
        user_of(env, "d0", for_an_hour).await;
        make::<DeviceTaintRule>(env, rule("rule", "NoExecute")).await;
        rule_says("rule", "PodsPendingEviction").await;
        make::<PodGroup>(env, group("crew")).await;
        let mut member = pod("member", json!(null), "ready");
        member["spec"].as_object_mut().unwrap().remove("resourceClaims");
        member["spec"]["schedulingGroup"] = json!({ "podGroupName": "crew" });
        make::<Pod>(env, member).await;
        env.client.delete::<PodGroup>(&key("crew"), Delete::new()).await.expect("delete");
        make::<ResourcePoolStatusRequest>(env, request("request")).await;
        is_answered("request").await;
        make::<StorageVersionMigration>(env, migration("migration")).await;
        is_migrated("migration").await;
        // No step above waits for these.
        for namespace in all::<Namespace>(env).await {
            let certificate = ObjectKey::new(name_of(&namespace), "kube-root-ca.crt");
            wait_until_exists(env, &CONFIG_MAPS, &certificate, |_| true).await;
        }
        drop(manager);

        // After the objects that the new manager finds at its start, one new object for each
        // controller.
        let before = writes(env);
        let _manager = env.manager("second-manager", &[GATES]);
        make::<Pod>(env, pod("later", from_template(), "ready")).await;
        claim_of::<Pod>(env, "later").await;
        make::<DeviceTaintRule>(env, rule("later", "None")).await;
        rule_says("later", "NoEffect").await;
        make::<PodGroup>(env, group("later")).await;
        env.client.delete::<PodGroup>(&key("later"), Delete::new()).await.expect("delete");
        wait_until_deleted(env, &PodGroup::RESOURCE, &key("later")).await;
        make::<ResourcePoolStatusRequest>(env, request("later")).await;
        is_answered("later").await;
        let gone = json!({ "metadata": { "name": "example.com.later" }, "spec": {} });
        make::<StorageVersion>(env, gone).await;
        reports("example.com.later", "gone").await;
        wait_until_deleted(env, &StorageVersion::RESOURCE, &of_cluster("example.com.later")).await;

        let mut news = writes(env);
        for (what, count) in &before {
            *news.get_mut(what).expect("counts stay") -= count;
        }
        news.retain(|_, count| *count > 0);
        let expected = [
            ("create", "devicetaintrules", 1),
            ("create", "podgroups", 1),
            ("create", "resourceclaims", 1),
            ("create", "resourcepoolstatusrequests", 1),
            ("create", "storageversions", 1),
            // The test asks for the end of a group; the controller takes its finalizer.
            ("delete", "podgroups", 1),
            ("delete", "storageversions", 1),
            ("patch", "devicetaintrules/status", 1),
            ("patch", "resourcepoolstatusrequests/status", 1),
            ("patch", "storageversions/status", 1),
            ("update", "podgroups", 1),
        ];
        let expected: BTreeMap<(String, String), u64> = expected
            .into_iter()
            .map(|(verb, resource, n)| ((verb.to_owned(), resource.to_owned()), n))
            .collect();
        assert_eq!(news, expected);
    });
}
