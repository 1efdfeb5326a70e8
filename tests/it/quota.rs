//! Usage of ResourceQuotas.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_lite::{FutureExt, future};
use kube_controller_manager::cache::SharedInformerFactory;
use kube_controller_manager::client::{Client, Delete, Patch};
use kube_controller_manager::clock::FakeClock;
use kube_controller_manager::objects::{ObjectKey, Pod, Resource, ResourceQuota, ResourceType};
use kube_controller_manager::options::Options;
use kube_controller_manager::task::{StopToken, Task, spawn};
use sandbox::faults::Fault;
use serde_json::{Value, json};

use crate::env::*;
use crate::kinds::*;

/// Without the controllers that create ConfigMaps and accounts in every namespace: only the test's
/// own objects are counted.
pub const ONLY: &str = "--controllers=resourcequota-controller";

const SERVICES: ResourceType = ResourceType::fixed("", "v1", "Service", "services", true);

fn object(api_version: &str, kind: &str, name: &str, rest: Value) -> Value {
    let mut object = json!({
        "apiVersion": api_version, "kind": kind,
        "metadata": { "name": name, "namespace": "default" },
    });
    object.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    object
}

fn pod(name: &str, cpu: &str, extra: Value) -> Value {
    let mut spec = json!({
        "schedulerName": "none",
        "containers": [{
            "name": "main", "image": "x:1", "resources": { "requests": { "cpu": cpu } },
        }],
    });
    spec.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    object("v1", "Pod", name, json!({ "spec": spec }))
}

pub fn quota(name: &str, spec: Value) -> Value {
    object("v1", "ResourceQuota", name, json!({ "spec": spec }))
}

/// Waits until exactly this is used of the quota.
pub async fn uses(env: &TestCluster, name: &str, used: &[(&str, &str)]) {
    let status = env.client.resource(&ResourceQuota::RESOURCE);
    let wanted: BTreeMap<&str, &str> = used.iter().copied().collect();
    let wanted = serde_json::to_value(wanted).unwrap();
    eventually(&env.clock, &format!("{name} uses {wanted}"), || async {
        let key = ObjectKey::new("default", name);
        let quota: Value = status.get(&key).await.map_err(|error| error.to_string())?;
        let is_whole = quota["status"]["hard"] == quota["spec"]["hard"];
        if is_whole && quota["status"]["used"] == wanted {
            return Ok(());
        }
        Err(quota.to_string())
    })
    .await;
}

async fn delete(client: &Client, resource: &ResourceType, name: &str) {
    let key = ObjectKey::new("default", name);
    client.resource(resource).delete(&key, Delete::new()).await.expect("delete");
}

/// Defines a custom resource and creates an object of it.
pub async fn define_widgets(env: &TestCluster) {
    serve_widgets(env).await;
    eventually(&env.clock, "a widget is created", || async {
        let widget = object("example.com/v1", "Widget", "first", json!({}));
        let created = env.client.resource(&WIDGETS).create::<Value>("default", &widget).await;
        created.map(drop).map_err(|error| error.to_string())
    })
    .await;
}

#[test]
fn deleted_and_ended_objects_are_not_counted() {
    everywhere("quota", async |env| {
        let client = &env.client;
        define_widgets(env).await;
        for name in ["one", "two"] {
            create(client, object("v1", "ConfigMap", name, json!({}))).await;
            create(client, pod(name, "600m", json!({}))).await;
        }
        create(client, pod("short", "1", json!({ "activeDeadlineSeconds": 600 }))).await;
        let node_port = json!({ "spec": { "type": "NodePort", "ports": [{ "port": 80 }] } });
        create(client, object("v1", "Service", "web", node_port)).await;
        let all = json!({ "hard": {
            "pods": "10", "requests.cpu": "4", "count/configmaps": "5", "count/pods": "10",
            "count/widgets.example.com": "3", "services.nodeports": "1", "count/unknown.io": "1",
        } });
        create(client, quota("all", all)).await;
        let long = json!({ "hard": { "pods": "4", "cpu": "2" }, "scopes": ["NotTerminating"] });
        create(client, quota("long", long)).await;
        // No full pass comes within this test: changes alone cause counts.
        let _manager = env.manager("manager", &[ONLY, "--resource-quota-sync-period=1h"]);
        let used = |pods: &'static str, cpu, maps, widgets, ports| {
            [
                ("pods", pods),
                ("requests.cpu", cpu),
                ("count/configmaps", maps),
                ("count/pods", pods),
                ("count/widgets.example.com", widgets),
                ("services.nodeports", ports),
            ]
        };
        uses(env, "all", &used("3", "2200m", "2", "1", "1")).await;
        uses(env, "long", &[("pods", "2"), ("cpu", "1200m")]).await;

        delete(client, &Pod::RESOURCE, "one").await;
        delete(client, &CONFIG_MAPS, "one").await;
        delete(client, &WIDGETS, "first").await;
        delete(client, &SERVICES, "web").await;
        uses(env, "all", &used("2", "1600m", "1", "0", "0")).await;
        uses(env, "long", &[("pods", "1"), ("cpu", "600m")]).await;

        // A pod that has ended still exists, and uses nothing.
        let status = client.resource(&Pod::RESOURCE).subresource("status");
        let ended = Patch::Merge(json!({ "status": { "phase": "Succeeded" } }));
        status.patch::<Value>(&ObjectKey::new("default", "two"), &ended).await.expect("patch");
        uses(env, "long", &[("pods", "0"), ("cpu", "0")]).await;
        let mut ended = used("1", "1", "1", "0", "0");
        ended[3].1 = "2";
        uses(env, "all", &ended).await;

        // A changed limit is counted at once.
        merge::<ResourceQuota>(client, "long", json!({ "spec": { "hard": { "cpu": null } } }))
            .await;
        uses(env, "long", &[("pods", "0")]).await;
    });
}

/// Upstream counts it until the next full pass.
#[test]
fn a_pod_that_is_stuck_is_not_counted_once_its_time_is_over() {
    everywhere("quota-stuck", async |env| {
        let client = &env.client;
        // No kubelet stops these pods.
        env.steering.kill("silent");
        for name in ["early", "late", "stays"] {
            create(client, pod(name, "1", json!({ "nodeName": "silent" }))).await;
        }
        let limits = json!({ "hard": { "pods": "9", "requests.cpu": "9", "count/pods": "9" } });
        create(client, quota("all", limits)).await;
        let _manager = env.manager("manager", &[ONLY, "--resource-quota-sync-period=1h"]);
        let used =
            |pods: &'static str| [("pods", pods), ("requests.cpu", pods), ("count/pods", "3")];
        uses(env, "all", &used("3")).await;
        let delete = async |name, grace| {
            let delete = Delete::new().grace_period(grace);
            client.delete::<Pod>(&ObjectKey::new("default", name), delete).await.expect("delete");
        };
        delete("late", 3600).await;
        delete("early", 1).await;
        uses(env, "all", &used("2")).await;
        delete("late", 1).await;
        uses(env, "all", &used("1")).await;
    });
}

#[test]
fn the_extended_resource_of_a_deleted_class_is_not_counted() {
    everywhere("quota-class", async |env| {
        let client = &env.client;
        let classes =
            ResourceType::fixed("resource.k8s.io", "v1", "DeviceClass", "deviceclasses", false);
        let class = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass",
            "metadata": { "name": "fast" },
            "spec": { "extendedResourceName": "example.com/gpu" },
        });
        client.resource(&classes).create::<Value>("", &class).await.expect("create");
        let request = json!({ "name": "r", "exactly": {
            "deviceClassName": "fast", "allocationMode": "ExactCount", "count": 2,
        } });
        let claim = json!({ "spec": { "devices": { "requests": [request] } } });
        create(client, object("resource.k8s.io/v1", "ResourceClaim", "two", claim)).await;
        let limits = json!({ "hard": {
            "requests.example.com/gpu": "9", "count/resourceclaims.resource.k8s.io": "9",
            "requests.deviceclass.resource.kubernetes.io/fast": "9",
            "fast.deviceclass.resource.k8s.io/devices": "9",
        } });
        create(client, quota("all", limits)).await;
        let _manager = env.manager("manager", &[ONLY, "--resource-quota-sync-period=1s"]);
        let used = |extended: &'static str| {
            [
                ("requests.example.com/gpu", extended),
                ("count/resourceclaims.resource.k8s.io", "1"),
                ("requests.deviceclass.resource.kubernetes.io/fast", extended),
                ("fast.deviceclass.resource.k8s.io/devices", "2"),
            ]
        };
        uses(env, "all", &used("2")).await;
        client.resource(&classes).delete(&ObjectKey::cluster("fast"), Delete::new()).await.unwrap();
        // Pods alone may still ask for it. The claim keeps the name of its class.
        uses(env, "all", &used("0")).await;
    });
}

#[test]
fn the_next_pass_corrects_a_wrong_count() {
    everywhere("quota-resync", async |env| {
        let client = &env.client;
        let hard = json!({ "hard": { "count/configmaps": "9", "pods": "1", "cpu": "2" } });
        create(client, quota("all", hard)).await;
        let _manager = env.manager("manager", &[ONLY, "--resource-quota-sync-period=1s"]);
        uses(env, "all", &[("count/configmaps", "0"), ("pods", "0"), ("cpu", "0")]).await;
        create(client, object("v1", "ConfigMap", "one", json!({}))).await;
        create(client, pod("one", "1", json!({}))).await;
        // The API server counts what it admits, and refuses the excess.
        let pods = client.resource(&Pod::RESOURCE);
        let why = "exceeded quota: all, requested: pods=1, used: pods=1, limited: pods=1";
        eventually(&env.clock, "one more is refused", || async {
            match pods.create::<Value>("default", &pod("two", "1", json!({}))).await {
                Err(error) if error.to_string().contains(why) => Ok(()),
                // A pass between the charge and the creation of the first pod removed it from the
                // count.
                other => {
                    let _ = pods.delete(&ObjectKey::new("default", "two"), Delete::new()).await;
                    Err(format!("{other:?}"))
                }
            }
        })
        .await;
        let status = client.resource(&ResourceQuota::RESOURCE).subresource("status");
        let wrong = Patch::Merge(json!({ "status": { "used": { "pods": "0", "cpu": "2" } } }));
        status.patch::<Value>(&ObjectKey::new("default", "all"), &wrong).await.expect("patch");
        uses(env, "all", &[("count/configmaps", "1"), ("pods", "1"), ("cpu", "1")]).await;
    });
}

/// A quota controller in this process.
struct Counting {
    clock: Arc<FakeClock>,
    factory: SharedInformerFactory,
    stop: StopToken,
    running: Task<()>,
}

impl Counting {
    /// `resource_quota_sync_period`: with zero there are no full passes, and changes alone cause counts.
    fn start(env: &Env, resource_quota_sync_period: Duration) -> Counting {
        let clock = FakeClock::new(env.clock.now());
        let options = Options { resource_quota_sync_period, ..env.options() };
        let InProcess { cx, factory, stop } = InProcess::new(env, clock.clone(), options);
        let controller = controller_of("resourcequota-controller", &cx);
        factory.start(&stop);
        let running = spawn(controller.run(stop.clone()));
        Counting { clock, factory, stop, running }
    }

    /// The controller's time passes by 100 ms after each `pause`, without end.
    async fn passes(&self, env: &Env, pause: Duration) {
        self.passes_for(env, pause, usize::MAX).await;
    }

    /// As [`Self::passes`], this number of times.
    async fn passes_for(&self, env: &Env, pause: Duration, times: usize) {
        for _ in 0..times {
            env.clock.sleep(pause).await;
            self.clock.advance(Duration::from_millis(100));
        }
        future::pending::<()>().await;
    }

    /// As [`uses`]. Time passes slowly: a count that met a conflict, or a watch that was cut at its
    /// start, waits for it; what is due only after seconds must not happen early.
    async fn uses(&self, env: &Env, name: &str, used: &[(&str, &str)]) {
        uses(env, name, used).or(self.passes(env, Duration::from_millis(500))).await;
    }

    async fn end(self) {
        self.stop.stop();
        self.running.await;
        self.factory.shutdown().await;
    }
}

#[test]
fn a_charged_pod_that_the_cache_lacks_stays_counted() {
    Env::run_several(&["quota-behind", "quota-behind-for-long"], async |sites| {
        for (env, comes_back) in sites.iter().zip([true, false]) {
            lags_behind_a_charge(env, comes_back).await;
        }
    });
}

/// A pod is charged while the watch of pods is silent, and a ConfigMap goes.
async fn lags_behind_a_charge(env: &Env, comes_back: bool) {
    let (client, faults) = (&env.client, env.cluster.sandbox.faults());
    create(client, object("v1", "ConfigMap", "one", json!({}))).await;
    create(client, quota("all", json!({ "hard": { "count/configmaps": "9", "pods": "9" } }))).await;
    create(client, quota("maps", json!({ "hard": { "count/configmaps": "9" } }))).await;
    let counting = Counting::start(env, Duration::ZERO);
    counting.uses(env, "all", &[("count/configmaps", "1"), ("pods", "0")]).await;

    // The watch of pods ends, and answers come no more.
    faults.next(1000, "watch", "pods", Fault::Hold);
    if comes_back {
        faults.next(1000, "list", "pods", Fault::Hold);
    }
    faults.cut_watches();
    create(client, pod("one", "1", json!({}))).await;
    delete(client, &CONFIG_MAPS, "one").await;
    // The five seconds of patience with the pods should not pass.
    counting.uses(env, "maps", &[("count/configmaps", "0")]).await;
    let pods = counting.factory.informer::<Pod>().lister();
    let known = || pods.get(&ObjectKey::new("default", "one"));
    if comes_back {
        faults.clear();
        eventually(&env.clock, "the pod is known", || async {
            known().map(drop).ok_or_else(|| "no pod".to_owned())
        })
        .await;
    }
    let fast = counting.passes(env, Duration::from_millis(20));
    uses(env, "all", &[("count/configmaps", "0"), ("pods", "1")]).or(fast).await;
    assert_eq!(known().is_some(), comes_back);
    faults.clear();
    counting.end().await;
}

/// Other objects are created and deleted without end, so the quota is charged and counted all the time.
#[test]
fn a_deleted_pod_is_not_counted_while_the_quota_is_charged_for_others() {
    everywhere("quota-busy", async |env| {
        let client = &env.client;
        create(client, quota("all", json!({ "hard": { "count/configmaps": "9", "pods": "2" } })))
            .await;
        let _manager = env.manager("manager", &[ONLY, "--resource-quota-sync-period=1h"]);
        uses(env, "all", &[("count/configmaps", "0"), ("pods", "0")]).await;
        for name in ["one", "two"] {
            create(client, pod(name, "1", json!({}))).await;
        }
        let charges = async {
            for number in 0.. {
                let name = format!("m{number}");
                create(client, object("v1", "ConfigMap", &name, json!({}))).await;
                env.clock.sleep(Duration::from_millis(150)).await;
                delete(client, &CONFIG_MAPS, &name).await;
            }
        };
        let is_counted = async {
            delete(client, &Pod::RESOURCE, "one").await;
            let quotas = client.resource(&ResourceQuota::RESOURCE);
            eventually(&env.clock, "the pod is not counted", || async {
                let key = ObjectKey::new("default", "all");
                let quota: Value = quotas.get(&key).await.map_err(|error| error.to_string())?;
                let used = &quota["status"]["used"];
                if used["pods"] == "1" { Ok(()) } else { Err(used.to_string()) }
            })
            .await;
            create(client, pod("three", "1", json!({}))).await;
        };
        is_counted.or(charges).await;
    });
}

/// Upstream: `replenishQuota` looks for limits in the status alone, which is empty then.
#[test]
fn a_deletion_during_the_first_count_is_counted() {
    Env::run("quota-first", async |env| {
        let (client, faults) = (&env.client, env.cluster.sandbox.faults());
        let hard = json!({ "hard": { "count/configmaps": "9" } });
        create(client, object("v1", "ConfigMap", "one", json!({}))).await;
        create(client, quota("known", hard.clone())).await;
        let counting = Counting::start(env, Duration::ZERO);
        counting.uses(env, "known", &[("count/configmaps", "1")]).await;

        let writes = || faults.count("update", "resourcequotas/status");
        let before = writes();
        faults.next(1, "update", "resourcequotas/status", Fault::Hold);
        create(client, quota("new", hard)).await;
        eventually(&env.clock, "the first count is written", || async {
            if writes() > before { Ok(()) } else { Err("no write".to_owned()) }
        })
        .await;
        delete(client, &CONFIG_MAPS, "one").await;
        // The deletion has reached both quotas once this one has been counted again.
        counting.uses(env, "known", &[("count/configmaps", "0")]).await;
        faults.clear();
        // Less than the five seconds after which a first count is repeated in any case.
        let later = counting.passes_for(env, Duration::from_millis(20), 20);
        uses(env, "new", &[("count/configmaps", "0")]).or(later).await;
        counting.end().await;
    });
}

/// It is charged to nothing, since the quota has no limits in its status yet.
#[test]
fn an_object_that_is_created_during_the_first_count_is_counted() {
    Env::run("quota-uncharged", async |env| {
        let (client, faults) = (&env.client, env.cluster.sandbox.faults());
        let counting = Counting::start(env, Duration::ZERO);
        faults.next(1, "update", "resourcequotas/status", Fault::Hold);
        create(client, quota("new", json!({ "hard": { "count/configmaps": "9" } }))).await;
        eventually(&env.clock, "the first count is written", || async {
            if faults.pending().is_empty() { Ok(()) } else { Err("no write".to_owned()) }
        })
        .await;
        create(client, object("v1", "ConfigMap", "one", json!({}))).await;
        faults.clear();
        let later = counting.passes(env, Duration::from_millis(20));
        uses(env, "new", &[("count/configmaps", "1")]).or(later).await;
        counting.end().await;
    });
}

/// Creates two widgets, two ConfigMaps, and a quota of both.
async fn widgets_and_maps(env: &Env) {
    define_widgets(env).await;
    let widget = object("example.com/v1", "Widget", "second", json!({}));
    env.client.resource(&WIDGETS).create::<Value>("default", &widget).await.expect("create");
    for name in ["one", "two"] {
        create(&env.client, object("v1", "ConfigMap", name, json!({}))).await;
    }
    let hard = json!({ "count/configmaps": "9", "count/widgets.example.com": "9" });
    create(&env.client, quota("all", json!({ "hard": hard }))).await;
}

fn widgets_maps<'a>(widgets: &'a str, maps: &'a str) -> [(&'a str, &'a str); 2] {
    [("count/widgets.example.com", widgets), ("count/configmaps", maps)]
}

#[test]
fn a_group_whose_discovery_fails_is_counted() {
    Env::run("quota-away", async |env| {
        let (client, faults) = (&env.client, env.cluster.sandbox.faults());
        widgets_and_maps(env).await;
        let counting = Counting::start(env, Duration::ZERO);
        counting.uses(env, "all", &widgets_maps("2", "2")).await;
        let watches = faults.count("watch", "widgets");

        register_unreachable_server(env, "example.com").await;
        discovery_is_read(env, &counting.clock, 3).await;
        delete(client, &CONFIG_MAPS, "one").await;
        counting.uses(env, "all", &widgets_maps("2", "1")).await;
        // Another limit causes a full count.
        let more = json!({ "spec": { "hard": { "pods": "1" } } });
        merge::<ResourceQuota>(client, "all", more).await;
        let all = [&widgets_maps("2", "1")[..], &[("pods", "0")]].concat();
        counting.uses(env, "all", &all).await;
        // Its watch still brings deletions.
        delete_stored_widget(env, "default/first");
        let all = [&widgets_maps("1", "1")[..], &[("pods", "0")]].concat();
        counting.uses(env, "all", &all).await;

        let key = ObjectKey::cluster("v1.example.com");
        client.resource(&API_SERVICES).delete(&key, Delete::new()).await.expect("delete");
        discovery_is_read(env, &counting.clock, 2).await;
        delete(client, &WIDGETS, "second").await;
        let all = [&widgets_maps("0", "1")[..], &[("pods", "0")]].concat();
        counting.uses(env, "all", &all).await;
        assert_eq!(faults.count("watch", "widgets"), watches, "the watch was never closed");
        counting.end().await;
    });
}

#[test]
fn an_earlier_count_stays_while_discovery_fails() {
    Env::run("quota-unknown", async |env| {
        let client = &env.client;
        widgets_and_maps(env).await;
        let status = client.resource(&ResourceQuota::RESOURCE).subresource("status");
        // An earlier manager counted more of both.
        let hard = json!({ "count/configmaps": "9", "count/widgets.example.com": "9" });
        let used = json!({ "count/configmaps": "7", "count/widgets.example.com": "7" });
        let before = Patch::Merge(json!({ "status": { "hard": hard, "used": used } }));
        status.patch::<Value>(&ObjectKey::new("default", "all"), &before).await.expect("patch");
        register_unreachable_server(env, "example.com").await;
        client.reset_discovery();

        let counting = Counting::start(env, Duration::from_secs(1));
        counting.uses(env, "all", &widgets_maps("7", "2")).await;
        delete(client, &CONFIG_MAPS, "one").await;
        counting.uses(env, "all", &widgets_maps("7", "1")).await;
        assert_eq!(env.cluster.sandbox.faults().count("watch", "widgets"), 0);

        let key = ObjectKey::cluster("v1.example.com");
        client.resource(&API_SERVICES).delete(&key, Delete::new()).await.expect("delete");
        discovery_is_read(env, &counting.clock, 2).await;
        // The count may follow only the next read.
        let later = async {
            loop {
                counting.clock.advance(Duration::from_secs(1));
                env.clock.sleep(Duration::from_millis(50)).await;
            }
        };
        uses(env, "all", &widgets_maps("2", "1")).or(later).await;
        counting.end().await;
    });
}
