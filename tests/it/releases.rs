//! One manager for two releases: it follows its API server, or the flag. The server of 1.37 is the
//! sandbox's.

use std::collections::BTreeMap;
use std::path::Path;

use kube_controller_manager::client::Delete;
use kube_controller_manager::controllers::certificates::trustbundle::BUNDLES;
use kube_controller_manager::objects::{
    Deployment, DeviceTaintRule, HorizontalPodAutoscaler, Job, ObjectKey, PersistentVolumeClaim,
    Pod, PodGroup, Resource, ResourceSlice, ResourceType, StatefulSet, StorageVersionMigration,
    Workload,
};
use sandbox::cluster::Manager;
use serde_json::{Value, json};

use crate::autoscaling::{FLAGS, annotate_pods, autoscaler, cpu, goes_to_zero_and_back, target};
use crate::crashes::QUICK_BINDER;
use crate::crashes_gated::all;
use crate::devices::*;
use crate::env::*;
use crate::faults::cut_lists_and_watches;
use crate::go_manager::handover::{
    PROBES, everything, populate, populate_work, settled, work_settled, works, written,
};
use crate::kinds::{CONFIG_MAPS, wait_until_deleted, wait_until_exists};
use crate::metrics::Serving;
use crate::statefulsets::half_is_updated_at_once;
use crate::storageversions::pod_group_stays;
use crate::trust::{authority_is_published, bundle_is_restored, pod_requests_are_deleted};
use crate::volumes;

/// Two managers of a test follow each other at once.
const ALONE: &str = "--leader-elect=false";

async fn page(serving: &Serving, path: &str) -> Result<Value, String> {
    let text = serving.client.get_path(path).await.map_err(|error| error.to_string())?;
    serde_json::from_slice(&text).map_err(|error| error.to_string())
}

/// Starts a manager, and waits until it reports this version.
async fn start(env: &Env, name: &str, flags: &[&str], version: &str) -> Serving {
    let open = "--authorization-always-allow-paths=/metrics,/version,/configz,/flagz,/statusz";
    let mut all = vec![open];
    all.extend(flags);
    let serving = Serving::start(env, name, &manager_program(), &all);
    let release = flags.iter().find_map(|flag| flag.strip_prefix("--emulated-version="));
    let followed = format!("Following Kubernetes {}", release.unwrap_or(&version[1..5]));
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
        for (name, flags, version, is_newer, has_flagz) in [
            ("follows", &[][..], "v1.37.0", true, true),
            ("emulates", &[AS_1_36][..], "v1.36.2", false, true),
            ("emulates-1-35", &["--emulated-version=1.35"][..], "v1.36.2", false, false),
        ] {
            let serving = start(env, name, flags, version).await;
            for path in ["/flagz", "/statusz"] {
                let answer = serving.client.get_path(path).await;
                let is_missing = answer.is_err_and(|error| error.code() == Some(404));
                assert_eq!(is_missing, !has_flagz, "{name} {path}");
            }
            let gates = |text: &str| text.contains("kubernetes_feature_enabled{");
            let text = serving.metrics(env, "the gates are counted", gates).await;
            assert_eq!(text.contains(LEASES), is_newer, "{name}");
            let config = page(&serving, "/configz").await.expect("/configz");
            let config = &config["kubecontrollermanager.config.k8s.io"];
            assert_eq!(config["DisruptionController"].is_object(), is_newer, "{config}");
        }
    });
}

/// Waits until the log of a manager has this text.
async fn logged(env: &Env, log: &Path, text: &str) {
    eventually(&env.clock, text, || async {
        let log = std::fs::read_to_string(log).map_err(|error| error.to_string())?;
        if log.contains(text) { Ok(()) } else { Err(log) }
    })
    .await;
}

#[test]
fn flags_that_1_37_does_not_allow_end_the_start() {
    Env::run_as_1_37("flags-of-1-36", async |env| {
        for (name, flag, fault) in [
            (
                "gone",
                "--feature-gates=SidecarContainers=true",
                "--feature-gates: unrecognized feature gate: SidecarContainers",
            ),
            (
                "locked",
                "--feature-gates=HPAConfigurableTolerance=false",
                "--feature-gates: cannot set feature gate HPAConfigurableTolerance to false, \
                 feature is locked to true",
            ),
            (
                "cloud",
                "--controllers=*,-service-lb-controller",
                "--controllers: \"service-lb-controller\" is not in the list of known controllers",
            ),
        ] {
            let manager = env.manager(name, &[flag]);
            logged(env, &manager.log, &format!("Error: {fault}")).await;
            drop(manager);
            let older = env.manager(&format!("{name}-1-36"), &[flag, AS_1_36]);
            logged(env, &older.log, "Starting version v1.36.2").await;
        }
    });
}

#[test]
fn server_of_an_unknown_release_is_followed_as_the_nearest_with_a_warning() {
    for (minor, followed, warning) in [
        (33, "Following Kubernetes 1.34: ", "the API server is older than 1.34: "),
        (38, "Following Kubernetes 1.37: ", "the API server is newer than 1.37: "),
    ] {
        Env::run_as(&format!("server-of-1-{minor}"), minor, async |env| {
            let manager = env.manager("manager", &[]);
            for text in [followed, warning] {
                logged(env, &manager.log, text).await;
            }
        });
    }
}

/// Pull requests 138228 and 138653.
#[test]
fn autoscalers_name_the_generation_that_they_have_seen() {
    Env::run_as_1_37("hpa-generation", async |env| {
        let manager = env.manager("manager", &FLAGS);
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
        drop(manager);

        let _older = env.manager("older", &[&FLAGS[..], &[AS_1_36][..]].concat());
        create(&env.client, deployment("old", 1, "x:1")).await;
        create(&env.client, autoscaler("old", "old", [2, 3], cpu(50))).await;
        let key = ObjectKey::new("default", "old");
        let is_scaled = |found: &Value| found["status"]["desiredReplicas"] == 2;
        let found = wait_until_exists(env, autoscalers, &key, is_scaled).await;
        assert!(!found["status"].to_string().contains("observedGeneration"), "{found}");
    });
}

/// Pull request 139025. A manager of 1.36 writes on, and is refused.
#[test]
fn autoscaler_waits_until_its_cache_has_its_status() {
    Env::run_as_1_37("hpa-stale", async |env| {
        let faults = env.cluster.sandbox.faults();
        for (name, flags, waits) in [("newer", &[][..], true), ("older", &[AS_1_36][..], false)] {
            let manager = env.manager(name, &[&FLAGS[..], flags, &["-v=4"]].concat());
            create(&env.client, target(name, 1, json!({ "sandbox/cpu": "50m" }))).await;
            create(&env.client, autoscaler(name, name, [1, 1], cpu(50))).await;
            let usage = |percent: i32| {
                move |found: &Value| {
                    let metric = &found["status"]["currentMetrics"][0]["resource"];
                    metric["current"]["averageUtilization"] == percent
                }
            };
            let (autoscalers, key) =
                (&HorizontalPodAutoscaler::RESOURCE, ObjectKey::new("default", name));
            wait_until_exists(env, autoscalers, &key, usage(50)).await;
            // The cache sees no more; the next status is written, since the usage is another one.
            cut_lists_and_watches(faults, "horizontalpodautoscalers");
            let writes = || faults.count("update", "horizontalpodautoscalers/status");
            let before = writes();
            let pod = list::<Pod>(&env.client)
                .await
                .into_iter()
                .find(|pod| pod.meta.name.starts_with(name));
            let pod = ObjectKey::new("default", &pod.expect("a pod").meta.name);
            let more = annotate_pods("sandbox/cpu", "60m");
            env.client.patch::<Pod>(&pod, &more).await.expect("patch");
            eventually(&env.clock, "the next sync waits, or writes", || async {
                let log = std::fs::read_to_string(&manager.log).expect("a log");
                let is_stale = log.lines().any(|line| {
                    line.contains(&format!("Error syncing default/{name}:"))
                        && line.contains("horizontalpodautoscalers.autoscaling")
                });
                let goes_on = if waits { is_stale } else { writes() > before + 2 };
                if goes_on { Ok(()) } else { Err(format!("{}: {log}", writes() - before)) }
            })
            .await;
            if waits {
                assert!(writes() <= before + 1);
            }
            faults.clear();
            wait_until_exists(env, autoscalers, &key, usage(60)).await;
            drop(manager);
            for resource in [autoscalers, &Deployment::RESOURCE] {
                env.client.resource(resource).delete(&key, Delete::new()).await.expect("delete");
            }
        }
    });
}

/// Pull request 139648; `autoscaling.rs` has the other column.
#[test]
fn targets_go_to_zero_by_default() {
    Env::run_as_1_37("to-zero-by-default", async |env| goes_to_zero_and_back(env).await);
}

/// Pull request 139466. With 1.36 one pod after the other is updated, and two gauges are missing.
#[test]
fn stateful_sets_have_unavailable_pods_by_default() {
    const GAUGES: &str = "statefulset_controller_statefulset_";
    const LABELS: &str = "{pod_management_policy=\"Parallel\",statefulset_name=\"web\",\
                          statefulset_namespace=\"default\"}";
    Env::run_as_1_37("max-unavailable", async |env| {
        let newer = start(env, "newer", &[ALONE], "v1.37.0").await;
        half_is_updated_at_once(env).await;
        let gauges = [("max_unavailable", 2), ("unavailable_replicas", 0)];
        let gauges = gauges.map(|(name, value)| format!("{GAUGES}{name}{LABELS} {value}\n"));
        let are_served = |text: &str| gauges.iter().all(|gauge| text.contains(gauge));
        newer.metrics(env, &format!("{gauges:?}"), are_served).await;
        drop(newer);
        let older = start(env, "older", &[ALONE, AS_1_36], "v1.36.2").await;
        env.steering.hold(true);
        merge::<StatefulSet>(&env.client, "web", set_image("db:3")).await;
        let key = ObjectKey::new("default", "web");
        wait_until_exists(env, &StatefulSet::RESOURCE, &key, |found| {
            found["status"]["updatedReplicas"] == 1 && found["status"]["readyReplicas"] == 3
        })
        .await;
        let text = older.metrics(env, "the metrics", |_| true).await;
        assert!(!text.contains(GAUGES), "{text}");
        env.steering.hold(false);
    });
}

/// Pull request 139620.
#[test]
fn claims_say_since_when_they_are_unused() {
    Env::run_as_1_37("unused-claims", async |env| {
        let older = env.manager("older", &[AS_1_36, QUICK_BINDER]);
        volumes::make(&env.client, &volumes::volume("v", "1Gi", "Retain", "/tmp/v")).await;
        create(&env.client, volumes::claim("data", "1Gi", Some(""))).await;
        volumes::bound(env, "data").await;
        // The controller has seen both claims when it lets the second one go.
        create(&env.client, volumes::claim("other", "2Gi", Some(""))).await;
        volumes::delete_claim(env, "other").await;
        let unused = |claim: &Value| {
            let conditions = claim["status"]["conditions"].as_array();
            let mut found = conditions.into_iter().flatten();
            found.find(|condition| condition["type"] == "Unused").cloned()
        };
        assert_eq!(unused(&volumes::bound(env, "data").await), None);
        drop(older);

        let _newer = env.manager("newer", &[QUICK_BINDER]);
        let (claims, key) = (&PersistentVolumeClaim::RESOURCE, volumes::claim_key("data"));
        let says = async |status: &str, reason: &str| {
            wait_until_exists(env, claims, &key, |found| {
                unused(found).is_some_and(|it| it["status"] == status && it["reason"] == reason)
            })
            .await;
        };
        says("True", "NoPodsUsingPVC").await;
        let volume = json!({ "name": "d", "persistentVolumeClaim": { "claimName": "data" } });
        let user = json!({
            "metadata": { "name": "user" },
            "spec": {
                "volumes": [volume], "containers": [{ "name": "main", "image": "x:1" }],
            },
        });
        make::<Pod>(env, user).await;
        says("False", "PodUsingPVC").await;
    });
}

/// Pull requests 138542 and 140422.
#[test]
fn metrics_of_claims_have_the_names_of_their_release() {
    const OLD: &str = "resourceclaim_controller_";
    const NEW: &str = "dynamic_resource_allocation_resource";
    Env::run_as_1_37("metrics-by-release", async |env| {
        class(env).await;
        template(env).await;
        let created = r#"admin_access="false",status="success"} 1"#;
        let created_for =
            r#"admin_access="false",owner_api_group="",owner_api_kind="Pod",status="success"} 1"#;
        for (name, flags, version, series, other) in [
            (
                "newer",
                &[ALONE][..],
                "v1.37.0",
                [format!("{NEW}claim_creates_total{{{created_for}"), format!("{NEW}_claims{{")],
                OLD,
            ),
            (
                "older",
                &[ALONE, AS_1_36][..],
                "v1.36.2",
                [format!("{OLD}creates_total{{{created}"), format!("{OLD}resource_claims{{")],
                NEW,
            ),
        ] {
            let serving = start(env, name, flags, version).await;
            make::<Pod>(env, pod(name, from_template(), "ready")).await;
            claim_of::<Pod>(env, name).await;
            let is_counted = |text: &str| series.iter().all(|series| text.contains(series));
            let text = serving.metrics(env, &format!("{series:?}"), is_counted).await;
            assert!(!text.contains(other), "{name}");
        }
    });
}

async fn make_rule(env: &Env, name: &str) {
    let rule = json!({
        "metadata": { "name": name },
        "spec": {
            "deviceSelector": { "driver": "x.example.com" },
            "taint": { "key": "k", "value": "v", "effect": "NoExecute" },
        },
    });
    make::<DeviceTaintRule>(env, rule).await;
}

/// Makes a migration of the ConfigMaps.
async fn make_migration(env: &Env, name: &str) {
    let migration = json!({
        "metadata": { "name": name },
        "spec": { "resource": { "group": "", "resource": "configmaps" } },
    });
    make::<StorageVersionMigration>(env, migration).await;
}

fn condition(found: &Value, kind: &str) -> Option<Value> {
    let conditions = found["status"]["conditions"].as_array();
    conditions.into_iter().flatten().find(|known| known["type"] == kind).cloned()
}

/// Whether a migration has succeeded.
fn has_ended(found: &Value) -> bool {
    let ended = condition(found, "Running").unwrap_or_default();
    condition(found, "Succeeded").is_some() && ended["status"] == "False"
}

/// Pull requests 138560, 138874, 138875 and 138676. By default a manager of 1.36 neither migrates
/// nor reads rules; with the gates it uses the older versions: `storageversions.rs`, `devices.rs`.
#[test]
fn kinds_are_used_in_the_versions_of_1_37() {
    Env::run_as_1_37("versions-of-1-37", async |env| {
        let manager = env.manager("manager", &[]);
        for resource in [DeviceTaintRule::RESOURCE, StorageVersionMigration::RESOURCE] {
            assert_eq!(env.client.served(&resource).version, "v1");
        }
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": "kept", "namespace": "default" },
        });
        let before = create(&env.client, map).await;
        make_migration(env, "maps").await;
        let key = ObjectKey::cluster("maps");
        wait_until_exists(env, &StorageVersionMigration::RESOURCE, &key, has_ended).await;
        let kept: Value = env
            .client
            .resource(&CONFIG_MAPS)
            .get(&ObjectKey::new("default", "kept"))
            .await
            .expect("it stays");
        assert_eq!(kept["metadata"]["uid"], before["metadata"]["uid"]);
        // A merge patch without a change leaves no trace, an apply would leave its manager.
        assert_eq!(kept["metadata"]["managedFields"], before["metadata"]["managedFields"]);

        make_rule(env, "rule").await;
        let is_reported = |found: &Value| condition(found, "EvictionInProgress").is_some();
        let key = ObjectKey::cluster("rule");
        wait_until_exists(env, &DeviceTaintRule::RESOURCE, &key, is_reported).await;
        drop(manager);
    });
}

/// Pull request 138676. A manager of 1.36 acts on the taints of slices alone.
#[test]
fn rules_of_device_taints_count_by_default() {
    Env::run_as_1_37("taint-rules-by-default", async |env| {
        let older = env.manager("older", &[AS_1_36]);
        class(env).await;
        make::<ResourceSlice>(env, slice(env, &[])).await;
        for device in ["d0", "d1", "d2"] {
            user_of(env, device, json!([])).await;
        }
        let rule = json!({
            "metadata": { "name": "rule" },
            "spec": {
                "deviceSelector": { "driver": DRIVER, "device": "d2" },
                "taint": { "key": "k", "effect": "NoExecute" },
            },
        });
        make::<DeviceTaintRule>(env, rule).await;
        // The rule is older than both taints of the slice.
        for (tainted, pod) in [(&["d0"][..], "on-d0"), (&["d0", "d1"][..], "on-d1")] {
            set_taints(env, tainted).await;
            wait_until_deleted(env, &Pod::RESOURCE, &key(pod)).await;
        }
        let pod = wait_until_exists(env, &Pod::RESOURCE, &key("on-d2"), |_| true).await;
        assert!(pod["metadata"]["deletionTimestamp"].is_null(), "{pod}");
        let (rules, rule) = (&DeviceTaintRule::RESOURCE, ObjectKey::cluster("rule"));
        let found = wait_until_exists(env, rules, &rule, |_| true).await;
        assert_eq!(condition(&found, "EvictionInProgress"), None);
        drop(older);

        let _newer = env.manager("newer", &[]);
        wait_until_deleted(env, &Pod::RESOURCE, &key("on-d2")).await;
    });
}

/// Pull request 138572: `scheduling.k8s.io/v1beta1`.
#[test]
fn pod_groups_of_1_37_stay_while_they_are_used() {
    Env::run_as_1_37_with_gates("podgroups-of-1-37", async |env| pod_group_stays(env).await);
}

/// Pull request 140184: `scheduling.k8s.io/v1alpha3`.
#[test]
fn pod_groups_of_the_alpha_version_stay_while_they_are_used() {
    Env::run_as_1_37_with_gates("podgroups-alpha", async |env| {
        env.serve(&[("PodGroup", "v1alpha3")]).await;
        pod_group_stays(env).await;
    });
}

/// Without the controllers that read discovery from time to time.
#[test]
fn controllers_follow_the_served_versions() {
    const CONTROLLERS: &str = "--controllers=podgroup-protection-controller,\
        kube-apiserver-serving-clustertrustbundle-publisher-controller";
    Env::run_as_1_37_with_gates("changed-versions", async |env| {
        let gate = "--feature-gates=GenericWorkload=true";
        let manager = env.manager("manager", &[CONTROLLERS, gate]);
        bundle_is_restored(env).await;
        for (group, bundle, name) in [
            ("v1alpha3", "v1beta1", "one"),
            ("v1alpha2", "v1alpha1", "two"),
            ("v1beta1", "v1", "three"),
        ] {
            env.serve(&[("PodGroup", group), ("ClusterTrustBundle", bundle)]).await;
            for (resource, version) in [(PodGroup::RESOURCE, group), (BUNDLES, bundle)] {
                uses(env, &manager, &resource, version).await;
            }
            bundle_is_restored(env).await;
            let key = ObjectKey::new("default", name);
            let spec = json!({ "schedulingPolicy": { "basic": {} } });
            let made =
                make::<PodGroup>(env, json!({ "metadata": { "name": name }, "spec": spec })).await;
            assert!(made["metadata"]["finalizers"].is_array(), "{made}");
            env.client.delete::<PodGroup>(&key, Delete::new()).await.expect("delete");
            wait_until_deleted(env, &PodGroup::RESOURCE, &key).await;
        }
    });
}

/// Waits until the manager's last line about the version of `resource` names this one.
async fn uses(env: &Env, manager: &Manager, resource: &ResourceType, version: &str) {
    eventually(&env.clock, &format!("{resource} is used in {version}"), || async {
        let log = std::fs::read_to_string(&manager.log).map_err(|error| error.to_string())?;
        let about = format!("{resource}: version ");
        let last = log.lines().rev().find(|line| line.contains(&about));
        match last.filter(|line| line.contains(&format!("{about}{version} is used"))) {
            Some(_) => Ok(()),
            None => Err(log),
        }
    })
    .await;
}

/// Workloads of later versions are made of the Job's `spec.scheduling`.
#[test]
fn jobs_have_workloads_in_the_version_of_1_36_alone() {
    const GATES: &str = "--feature-gates=GenericWorkload=true,WorkloadWithJob=true";
    Env::run_with_gates("workloads-of-jobs", async |env| {
        env.serve(&[("PodGroup", "v1beta1"), ("Workload", "v1beta1")]).await;
        let manager = env.manager("manager", &["--controllers=job-controller", GATES]);
        for (version, name, has_workload) in [
            ("v1beta1", "one", false),
            ("v1alpha2", "two", true),
            ("v1alpha3", "three", false),
            ("v1alpha2", "four", true),
        ] {
            env.serve(&[("PodGroup", version), ("Workload", version)]).await;
            for resource in [PodGroup::RESOURCE, Workload::RESOURCE] {
                uses(env, &manager, &resource, version).await;
            }
            let gang = json!({
                "metadata": { "name": name },
                "spec": {
                    "parallelism": 2, "completions": 2, "completionMode": "Indexed",
                    "template": { "spec": {
                        "restartPolicy": "Never", "containers": [{ "name": "c", "image": "x:1" }],
                    } },
                },
            });
            make::<Job>(env, gang).await;
            let pods = eventually(&env.clock, "the Job has pods", || async {
                let mut pods = all::<Pod>(env).await;
                pods.retain(|pod| pod["metadata"]["labels"]["job-name"] == name);
                if pods.len() == 2 { Ok(pods) } else { Err(format!("{pods:#?}")) }
            })
            .await;
            let mut workloads = all::<Workload>(env).await;
            workloads.retain(|workload| workload["spec"]["controllerRef"]["name"] == name);
            assert_eq!(workloads.len(), usize::from(has_workload), "{workloads:#?}");
            let mut groups = all::<PodGroup>(env).await;
            groups.retain(|group| group["metadata"]["ownerReferences"][0]["name"] == name);
            let group = groups.first().map_or(&Value::Null, |group| &group["metadata"]["name"]);
            assert_eq!(group.is_string(), has_workload, "{groups:#?}");
            for pod in pods {
                assert_eq!(pod["spec"]["schedulingGroup"]["podGroupName"], *group, "{pod:#}");
            }
        }
    });
}

/// Pull request 139437: on by default, and `certificates.k8s.io/v1`.
#[test]
fn authority_is_published_by_default() {
    Env::run_as_1_37("trust-of-1-37", async |env| authority_is_published(env).await);
}

/// Pull request 139579: `certificates.k8s.io/v1`.
#[test]
fn pod_certificate_requests_of_1_37_are_deleted() {
    Env::run_as_1_37("pod-certificates-of-1-37", async |env| pod_requests_are_deleted(env).await);
}

/// Pull request 138363. Pods of 1.36 have claims of their own instead.
#[test]
fn claim_of_a_pod_group_is_made_for_no_pod_while_the_gate_is_off() {
    Env::run_as_1_37_with_gates("claims-of-groups-off", async |env| {
        class(env).await;
        template(env).await;
        group_with_claim(env).await;
        let fails = async |pod: &str, why: &str| {
            let message = format!("PodResourceClaim gpu: {why} group");
            has_event(env, pod, "FailedResourceClaimCreation", &message).await;
        };
        let groups = "--feature-gates=GenericWorkload=true";
        let manager = env.manager("groups", &[groups]);
        member(env, "one").await;
        let why = "DRAWorkloadResourceClaims feature is disabled but the claim is that of PodGroup";
        fails("one", why).await;
        // The group has no such claim.
        let mut other = pod("other", from_template(), "ready");
        other["spec"]["resourceClaims"][0]["name"] = json!("own");
        other["spec"]["schedulingGroup"] = json!({ "podGroupName": "group" });
        make::<Pod>(env, other).await;
        claim_of::<Pod>(env, "other").await;
        drop(manager);

        let manager = env.manager("no-groups", &[]);
        member(env, "two").await;
        fails("two", "GenericWorkload feature is disabled but Pod is in PodGroup").await;
        assert_eq!(claims(env).await.len(), 1);
        drop(manager);

        let _manager = env.manager("older", &[AS_1_36]);
        for name in ["one", "two"] {
            claim_of::<Pod>(env, name).await;
        }
        assert_eq!(claims(env).await.len(), 3);
    });
}

/// An object without what a manager of 1.37 adds to it.
fn as_in_1_36(path: &str, mut object: Value) -> Value {
    const NEWS: [&str; 2] = ["/horizontalpodautoscalers ", "/persistentvolumeclaims "];
    if !NEWS.iter().any(|resource| path.contains(resource)) {
        return object;
    }
    object["metadata"]["resourceVersion"].take();
    let Some(status) = object["status"].as_object_mut() else { return object };
    status.remove("observedGeneration");
    let mut conditions = status.remove("conditions").unwrap_or_default();
    for condition in conditions.as_array_mut().into_iter().flatten() {
        condition.as_object_mut().expect("a condition").remove("observedGeneration");
    }
    let rest = conditions.as_array().into_iter().flatten();
    let rest = rest.filter(|condition| condition["type"] != "Unused").cloned();
    status.insert("conditions".to_owned(), rest.collect());
    object
}

type Objects = BTreeMap<String, Value>;

/// All objects but those that only a manager of 1.37 makes: a bundle, and the accounts of controllers
/// that run by default since then.
fn all_as_in_1_36(objects: &Objects) -> Objects {
    const NEW: [&str; 2] = ["/clustertrustbundles ", "/serviceaccounts kube-system/"];
    let is_old = |path: &str| !NEW.iter().any(|resource| path.contains(resource));
    let objects = objects.iter().filter(|(path, _)| is_old(path));
    objects.map(|(path, object)| (path.clone(), as_in_1_36(path, object.clone()))).collect()
}

/// The first manager of 1.37 adds the generations of autoscalers, the condition Unused of claims, a
/// bundle, and accounts of controllers; after that neither writes anything.
#[test]
fn swap_between_both_releases_writes_what_1_37_adds_and_nothing_else() {
    Env::run_as_1_37("swap-of-releases", async |env| {
        make_namespace(&env.client, PROBES).await;
        let start = |name: &str, flags: &[&str]| {
            let period = "--horizontal-pod-autoscaler-sync-period=1s";
            env.manager(name, &[&[period][..], flags].concat())
        };
        let stop = async |manager: Manager| {
            let patience = std::time::Duration::from_secs(60);
            assert!(manager.stop(&env.clock, patience).await.expect("it ends").success());
        };
        let first = start("first", &[AS_1_36]);
        populate(env).await;
        populate_work(env).await;
        let set = json!({
            "apiVersion": "apps/v1", "kind": "StatefulSet",
            "metadata": { "name": "wide", "namespace": "default" },
            "spec": {
                "replicas": 2, "serviceName": "wide",
                "updateStrategy": {
                    "type": "RollingUpdate", "rollingUpdate": { "maxUnavailable": 2 },
                },
                "selector": { "matchLabels": { "app": "wide" } },
                "template": {
                    "metadata": { "labels": { "app": "wide" } },
                    "spec": { "containers": [{ "name": "main", "image": "x:1" }] },
                },
            },
        });
        create(&env.client, set).await;
        let wide = ObjectKey::new("default", "wide");
        let is_whole = |found: &Value| found["status"]["availableReplicas"] == 2;
        wait_until_exists(env, &StatefulSet::RESOURCE, &wide, is_whole).await;
        class(env).await;
        template(env).await;
        make::<Pod>(env, pod("claims", from_template(), "ready")).await;
        claim_of::<Pod>(env, "claims").await;
        work_settled(env).await;
        settled(env).await;
        works(env, 0, true).await;
        let of_36 = everything(env).await;
        stop(first).await;

        let second = start("second", &[]);
        works(env, 1, true).await;
        let observes = |found: &Value| found["status"]["observedGeneration"] == 1;
        let half = ObjectKey::new("default", "half");
        wait_until_exists(env, &HorizontalPodAutoscaler::RESOURCE, &half, observes).await;
        let of_37 = everything(env).await;
        let found = written(&all_as_in_1_36(&of_36), &all_as_in_1_36(&of_37));
        assert!(found.is_empty(), "the first manager of 1.37 wrote\n{found}");
        assert!(!written(&of_36, &of_37).is_empty());
        // What only 1.37 works on.
        let (rule, migration) = (ObjectKey::cluster("rule"), ObjectKey::cluster("maps"));
        make_rule(env, "rule").await;
        make_migration(env, "maps").await;
        let is_reported = |found: &Value| condition(found, "EvictionInProgress").is_some();
        wait_until_exists(env, &DeviceTaintRule::RESOURCE, &rule, is_reported).await;
        wait_until_exists(env, &StorageVersionMigration::RESOURCE, &migration, has_ended).await;
        let of_37 = everything(env).await;
        stop(second).await;

        for (round, flags) in [(2, &[AS_1_36][..]), (3, &[][..])] {
            let manager = start(&format!("manager-{round}"), flags);
            works(env, round, true).await;
            let found = written(&of_37, &everything(env).await);
            assert!(found.is_empty(), "{flags:?} wrote\n{found}");
            stop(manager).await;
        }
    });
}
