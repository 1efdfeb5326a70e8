//! One manager for two releases: it follows its API server, or the flag. The server of 1.37 is the
//! sandbox's.

use kube_controller_manager::client::{Delete, ListOptions};
use kube_controller_manager::objects::{
    HorizontalPodAutoscaler, ObjectKey, PartialObjectMetadata, Pod, PodGroup, Resource,
    ResourceType, StatefulSet,
};
use serde_json::{Value, json};

use crate::autoscaling::{FLAGS, autoscaler, cpu};
use crate::env::*;
use crate::kinds::{CONFIG_MAPS, wait_until_exists};
use crate::metrics::Serving;

const MIGRATIONS: ResourceType = ResourceType::fixed(
    "storagemigration.k8s.io",
    "v1",
    "StorageVersionMigration",
    "storageversionmigrations",
    false,
);
const RULES: ResourceType =
    ResourceType::fixed("resource.k8s.io", "v1", "DeviceTaintRule", "devicetaintrules", false);

async fn page(serving: &Serving, path: &str) -> Result<Value, String> {
    let text = serving.client.get_path(path).await.map_err(|error| error.to_string())?;
    serde_json::from_slice(&text).map_err(|error| error.to_string())
}

/// Starts a manager, and waits until it reports this version.
async fn start(env: &Env, name: &str, flags: &[&str], version: &str) -> Serving {
    let mut all = vec!["--authorization-always-allow-paths=/metrics,/version,/configz"];
    all.extend(flags);
    let serving = Serving::start(env, name, &manager_program(), &all);
    let followed = format!("Following Kubernetes {}", &version[1..5]);
    eventually(&env.clock, &format!("{name} follows its release"), || async {
        let log = std::fs::read_to_string(&serving.manager.log).expect("a log");
        if log.contains(&followed) { Ok(()) } else { Err(log) }
    })
    .await;
    eventually(&env.clock, &format!("{name} reports {version}"), || async {
        let found = page(&serving, "/version").await?;
        if found["gitVersion"] == version { Ok(()) } else { Err(found.to_string()) }
    })
    .await;
    serving
}

#[test]
fn manager_follows_its_server_or_the_flag() {
    const LEASES: &str =
        "kubernetes_feature_enabled{name=\"NodeControllerLeaseCircuitBreaker\",stage=\"BETA\"} 1";
    Env::run_as_1_37("follows", async |env| {
        for (name, flags, version, is_newer) in [
            ("follows", &[][..], "v1.37.0", true),
            ("emulates", &["--emulated-version=1.36"][..], "v1.36.2", false),
        ] {
            let serving = start(env, name, flags, version).await;
            let gates = |text: &str| text.contains("kubernetes_feature_enabled{");
            let text = serving.metrics(env, "the gates are counted", gates).await;
            assert_eq!(text.contains(LEASES), is_newer, "{name}");
            let config = page(&serving, "/configz").await.expect("/configz");
            let config = &config["kubecontrollermanager.config.k8s.io"];
            assert_eq!(config["DisruptionController"].is_object(), is_newer, "{config}");
        }
    });
}

#[test]
fn gate_of_another_release_ends_the_start() {
    Env::run_as_1_37("gate-of-1-36", async |env| {
        let flag = "--feature-gates=SidecarContainers=true";
        let manager = env.manager("manager", &[flag]);
        eventually(&env.clock, "the manager ends", || async {
            let log = std::fs::read_to_string(&manager.log).map_err(|error| error.to_string())?;
            let line = "Error: --feature-gates: unrecognized feature gate: SidecarContainers";
            if log.contains(line) { Ok(()) } else { Err(log) }
        })
        .await;
    });
}

/// Pull requests 138228 and 138653.
#[test]
fn autoscalers_name_the_generation_that_they_have_seen() {
    Env::run_as_1_37("hpa-generation", async |env| {
        let _manager = env.manager("manager", &FLAGS);
        create(&env.client, deployment("web", 1, "x:1")).await;
        create(&env.client, autoscaler("web", "web", [2, 3], cpu(50))).await;
        let key = ObjectKey::new("default", "web");
        let observes = |generation: i64| {
            move |found: &Value| {
                let conditions = found["status"]["conditions"].as_array();
                found["status"]["observedGeneration"] == generation
                    && conditions.into_iter().flatten().all(|condition| {
                        condition["type"] == "ScaledToZero"
                            || condition["observedGeneration"] == generation
                    })
            }
        };
        let autoscalers = &HorizontalPodAutoscaler::RESOURCE;
        wait_until_exists(env, autoscalers, &key, observes(1)).await;
        let spec = json!({ "spec": { "maxReplicas": 4 } });
        merge::<HorizontalPodAutoscaler>(&env.client, "web", spec).await;
        wait_until_exists(env, autoscalers, &key, observes(2)).await;
    });
}

/// Pull requests 138560, 138874, 138875 and 138676.
#[test]
fn kinds_are_used_in_the_versions_of_1_37() {
    Env::run_as_1_37("versions-of-1-37", async |env| {
        let manager = env.manager("manager", &[]);
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": "kept", "namespace": "default" },
        });
        let before = create(&env.client, map).await;
        let migration = json!({
            "apiVersion": MIGRATIONS.api_version(), "kind": MIGRATIONS.kind,
            "metadata": { "name": "maps" },
            "spec": { "resource": { "group": "", "resource": "configmaps" } },
        });
        let migrations = env.client.resource(&MIGRATIONS);
        migrations.create::<Value>("", &migration).await.expect("create");
        let key = ObjectKey::cluster("maps");
        let condition = |found: &Value, kind: &str| {
            let conditions = found["status"]["conditions"].as_array();
            conditions.into_iter().flatten().find(|known| known["type"] == kind).cloned()
        };
        let has_ended = |found: &Value| {
            let ended = condition(found, "Running").unwrap_or_default();
            condition(found, "Succeeded").is_some() && ended["status"] == "False"
        };
        wait_until_exists(env, &MIGRATIONS, &key, has_ended).await;
        let kept: Value = env
            .client
            .resource(&CONFIG_MAPS)
            .get(&ObjectKey::new("default", "kept"))
            .await
            .expect("it stays");
        assert_eq!(kept["metadata"]["uid"], before["metadata"]["uid"]);
        // A merge patch without a change leaves no trace, an apply would leave its manager.
        assert_eq!(kept["metadata"]["managedFields"], before["metadata"]["managedFields"]);

        let rule = json!({
            "apiVersion": RULES.api_version(), "kind": RULES.kind,
            "metadata": { "name": "rule" },
            "spec": {
                "deviceSelector": { "driver": "x.example.com" },
                "taint": { "key": "k", "value": "v", "effect": "NoExecute" },
            },
        });
        env.client.resource(&RULES).create::<Value>("", &rule).await.expect("create");
        let is_reported = |found: &Value| condition(found, "EvictionInProgress").is_some();
        wait_until_exists(env, &RULES, &ObjectKey::cluster("rule"), is_reported).await;
        drop(manager);
    });
}

/// Pull request 138572: `scheduling.k8s.io/v1beta1`.
#[test]
fn pod_groups_of_1_37_stay_while_they_are_used() {
    Env::run_as_1_37_with_gates("podgroups-of-1-37", async |env| {
        let _manager = env.manager("manager", &["--feature-gates=GenericWorkload=true"]);
        let groups = ResourceType { version: "v1beta1".into(), ..PodGroup::RESOURCE };
        let group = json!({
            "apiVersion": groups.api_version(), "kind": groups.kind,
            "metadata": { "name": "crew", "namespace": "default" },
            "spec": { "schedulingPolicy": { "basic": {} } },
        });
        let made: Value =
            env.client.resource(&groups).create("default", &group).await.expect("create");
        let finalizers = &made["metadata"]["finalizers"];
        assert_eq!(*finalizers, json!(["scheduling.k8s.io/podgroup-protection"]));
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": "one", "namespace": "default" },
            "spec": {
                "schedulingGroup": { "podGroupName": "crew" },
                "containers": [{ "name": "main", "image": "x:1" }],
            },
        });
        create(&env.client, pod).await;
        let key = ObjectKey::new("default", "crew");
        env.client.resource(&groups).delete(&key, Delete::new()).await.expect("delete");
        // A second group without pods is removed, so the controller has seen the first one.
        let mut other = group.clone();
        other["metadata"]["name"] = "empty".into();
        env.client.resource(&groups).create::<Value>("default", &other).await.expect("create");
        let empty = ObjectKey::new("default", "empty");
        env.client.resource(&groups).delete(&empty, Delete::new()).await.expect("delete");
        let goes = async |key: &ObjectKey| {
            eventually(&env.clock, &format!("{key} goes"), || async {
                match env.client.resource(&groups).get::<Value>(key).await {
                    Err(error) if error.is_not_found() => Ok(()),
                    other => Err(format!("{other:?}")),
                }
            })
            .await;
        };
        goes(&empty).await;
        env.client.resource(&groups).get::<Value>(&key).await.expect("its pod runs");
        let one = ObjectKey::new("default", "one");
        env.client.delete::<Pod>(&one, Delete::new().grace_period(0)).await.expect("delete");
        goes(&key).await;
    });
}

/// The versions of workloads and their pods, by kind and name.
async fn versions(env: &Env) -> Vec<(String, u64)> {
    let mut all = Vec::new();
    for (group, plural, kind) in [
        ("apps", "deployments", "Deployment"),
        ("apps", "replicasets", "ReplicaSet"),
        ("apps", "statefulsets", "StatefulSet"),
        ("", "pods", "Pod"),
    ] {
        let resource = ResourceType::fixed(group, "v1", kind, plural, true);
        let verbs = env.client.resource(&resource).metadata_only();
        let found = verbs
            .list::<PartialObjectMetadata>(Some("default"), &ListOptions::default())
            .await
            .expect("list");
        all.extend(found.items.into_iter().map(|object| {
            (format!("{plural} {}", object.meta.name), object.meta.resource_version)
        }));
    }
    all
}

/// Autoscalers and claims are written once: 1.37 has more in their statuses.
#[test]
fn swap_between_both_releases_writes_no_workload() {
    Env::run_as_1_37("swap-of-releases", async |env| {
        let first = env.manager("first", &["--emulated-version=1.36"]);
        create(&env.client, deployment("web", 2, "x:1")).await;
        rolled_out(&env.client, &env.clock, "web").await;
        let template = json!({
            "metadata": { "labels": { "app": "web-set" } },
            "spec": { "containers": [{ "name": "main", "image": "x:1" }] },
        });
        let set = json!({
            "apiVersion": "apps/v1", "kind": "StatefulSet",
            "metadata": { "name": "web-set", "namespace": "default" },
            "spec": {
                "replicas": 2, "serviceName": "web", "template": template,
                "selector": { "matchLabels": { "app": "web-set" } },
            },
        });
        create(&env.client, set).await;
        let is_whole = |found: &Value| {
            found["status"]["availableReplicas"] == 2 && found["status"]["observedGeneration"] == 1
        };
        let key = ObjectKey::new("default", "web-set");
        wait_until_exists(env, &StatefulSet::RESOURCE, &key, is_whole).await;
        let settled = versions(env).await;
        assert_eq!(settled.len(), 7, "{settled:?}");
        let patience = std::time::Duration::from_secs(60);
        assert!(first.stop(&env.clock, patience).await.expect("it ends").success());
        for (name, flags) in [("second", &[][..]), ("third", &["--emulated-version=1.36"][..])] {
            let manager = env.manager(name, flags);
            // When this is rolled out, the manager has seen the objects from before.
            create(&env.client, deployment(name, 1, "x:1")).await;
            rolled_out(&env.client, &env.clock, name).await;
            let now = versions(env).await;
            let left: Vec<_> = now.into_iter().filter(|one| one.0.contains(" web")).collect();
            assert_eq!(left, settled, "{name}");
            assert!(manager.stop(&env.clock, patience).await.expect("it ends").success());
        }
    });
}
