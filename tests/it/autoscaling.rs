//! HorizontalPodAutoscalers. The metrics are those of the sandbox: a real API server has none.

use kube_controller_manager::client::Patch;
use kube_controller_manager::objects::{
    Deployment, HorizontalPodAutoscaler, ObjectKey, Pod, Resource, ResourceType,
};
use sandbox::faults::Fault;
use serde_json::{Value, json};

use crate::disruption::{CACHES, serve_caches, serve_scaled};
use crate::env::*;
use crate::kinds::{CONFIG_MAPS, wait_until_exists};

/// Flags: frequent syncs, and the CPU of pods counts from their start.
pub const FLAGS: [&str; 3] = [
    "--horizontal-pod-autoscaler-sync-period=200ms",
    "--horizontal-pod-autoscaler-cpu-initialization-period=0s",
    "--horizontal-pod-autoscaler-downscale-stabilization=1s",
];

/// A Deployment whose pods request a tenth of a CPU and carry these annotations.
pub fn target(name: &str, replicas: i32, annotations: Value) -> Value {
    let mut deployment = deployment(name, replicas, "x:1");
    let template = &mut deployment["spec"]["template"];
    template["metadata"]["annotations"] = annotations;
    template["spec"]["containers"][0]["resources"] =
        json!({ "requests": { "cpu": "100m", "memory": "64Mi" } });
    deployment
}

pub fn autoscaler(name: &str, target: &str, [min, max]: [i32; 2], metric: Value) -> Value {
    json!({
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
        "metadata": { "name": name, "namespace": "default" },
        "spec": {
            "scaleTargetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": target },
            "minReplicas": min, "maxReplicas": max, "metrics": [metric],
        },
    })
}

pub fn cpu(percent: i32) -> Value {
    json!({ "type": "Resource", "resource": {
        "name": "cpu", "target": { "type": "Utilization", "averageUtilization": percent },
    } })
}

/// Waits until the target has this number of replicas and `good` accepts the status. Returns the
/// status.
async fn scales(
    env: &TestCluster,
    name: &str,
    replicas: i64,
    good: impl Fn(&Value) -> bool,
) -> Value {
    let key = ObjectKey::new("default", name);
    let of_size = |target: &Value| {
        target["spec"]["replicas"] == replicas && target["status"]["readyReplicas"] == replicas
    };
    wait_until_exists(env, &Deployment::RESOURCE, &key, of_size).await;
    has_status(env, name, |status| status["desiredReplicas"] == replicas && good(status)).await
}

async fn has_status(env: &TestCluster, name: &str, good: impl Fn(&Value) -> bool) -> Value {
    let key = ObjectKey::new("default", name);
    let good = |found: &Value| good(&found["status"]);
    wait_until_exists(env, &HorizontalPodAutoscaler::RESOURCE, &key, good).await["status"].clone()
}

/// The status and the reason of a condition.
fn condition(status: &Value, kind: &str) -> (String, String) {
    let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    let found = conditions.iter().find(|condition| condition["type"] == kind);
    let text =
        |field: &str| found.and_then(|found| found[field].as_str()).unwrap_or_default().to_owned();
    (text("status"), text("reason"))
}

fn is(status: &Value, kind: &str, wanted: (&str, &str)) -> bool {
    let (is, reason) = condition(status, kind);
    (&*is, &*reason) == wanted
}

pub fn annotate_pods(name: &str, value: &str) -> Patch {
    Patch::Merge(json!({ "metadata": { "annotations": { name: value } } }))
}

#[test]
fn names_of_targets_are_escaped_in_logs_and_paths() {
    everywhere("autoscaler-names", async |env| {
        let manager = env.manager("manager", &FLAGS);
        let forged = "x\nE1125 00:00:00.000000       1 forged.rs:1] oops\u{1b}[2K";
        let failed = ("False", "FailedGetScale");
        let is_failed = |status: &Value| is(status, "AbleToScale", failed);
        create(&env.client, autoscaler("forged", forged, [1, 3], cpu(50))).await;
        // A real API server does not take the other name.
        if env.faults.is_some() {
            create(&env.client, autoscaler("above", "..", [1, 3], cpu(50))).await;
            let status = has_status(env, "above", is_failed).await;
            let refused = "the HPA controller was unable to get the target's current scale: \
                           invalid resource name \"..\": [may not be '..']";
            let conditions = status["conditions"].as_array().unwrap();
            assert!(conditions.iter().any(|found| found["message"] == refused), "{status}");
        }
        has_status(env, "forged", is_failed).await;
        let log = eventually(&env.clock, "the name is logged", || async {
            let log = std::fs::read_to_string(&manager.log).unwrap();
            if log.contains("forged.rs:1] oops") { Ok(log) } else { Err(log) }
        })
        .await;
        let forged: Vec<&str> =
            log.lines().filter(|line| line.starts_with("E1125 00:00")).collect();
        assert!(forged.is_empty(), "{forged:?}");
        assert!(!log.contains('\u{1b}') && log.contains("x\\nE1125"), "{log}");
    });
}

#[test]
fn targets_are_brought_between_their_limits() {
    everywhere("autoscaler-limits", async |env| {
        let manager = env.manager("manager", &FLAGS);
        let client = &env.client;
        create(client, target("many", 5, json!({ "sandbox/cpu": "none" }))).await;
        create(client, autoscaler("many", "many", [1, 3], cpu(50))).await;
        scales(env, "many", 3, |status| status["lastScaleTime"].is_string()).await;
        let reason = "New size: 3; reason: Current number of replicas above Spec.MaxReplicas";
        has_event(env, "many", "SuccessfulRescale", reason).await;
        // No pod has metrics.
        let inactive = ("False", "FailedGetResourceMetric");
        let status = has_status(env, "many", |status| is(status, "ScalingActive", inactive)).await;
        let found = status["conditions"].as_array().unwrap();
        let active = found.iter().find(|condition| condition["type"] == "ScalingActive").unwrap();
        let cause = match env.faults.is_some() {
            true => "no metrics returned from resource metrics API",
            false => {
                "unable to fetch metrics from resource metrics API: the server could not find the \
                 requested resource (get pods.metrics.k8s.io)"
            }
        };
        let message = format!(
            "the HPA was unable to compute the replica count: failed to get cpu utilization: \
             unable to get metrics for resource cpu: {cause}"
        );
        assert_eq!(active["message"], message);
        assert!(is(&status, "AbleToScale", ("True", "SucceededGetScale")), "{status}");
        let cause = format!(
            "first error is: failed to get cpu resource metric value: failed to get cpu utilization: unable to get metrics for resource cpu: {cause}"
        );
        has_event(env, "many", "FailedComputeMetricsReplicas", &cause).await;

        create(client, target("few", 1, json!({}))).await;
        create(client, autoscaler("few", "few", [2, 4], cpu(50))).await;
        scales(env, "few", 2, |_| true).await;
        merge::<Deployment>(client, "few", json!({ "spec": { "replicas": 0 } })).await;
        let disabled = ("False", "ScalingDisabled");
        has_status(env, "few", |status| is(status, "ScalingActive", disabled)).await;

        let mut odd = autoscaler("odd", "none", [1, 2], cpu(50));
        create(client, odd.clone()).await;
        let no_scale = ("False", "FailedGetScale");
        has_status(env, "odd", |status| is(status, "AbleToScale", no_scale)).await;
        let message = "deployments.apps \"none\" not found";
        has_event(env, "odd", "FailedGetScale", message).await;
        odd["metadata"]["name"] = "odder".into();
        odd["spec"]["scaleTargetRef"]["kind"] = "Ship".into();
        create(client, odd).await;
        has_event(env, "odder", "FailedGetScale", "no matches for kind \"Ship\" in group \"apps\"")
            .await;
        drop(manager);
    });
}

#[test]
fn an_autoscaler_cannot_scale_cluster_scoped_objects() {
    const FLEETS: ResourceType = ResourceType::fixed("example.com", "v1", "Fleet", "fleets", false);
    everywhere("autoscaler-cluster", async |env| {
        serve_scaled(env, &FLEETS).await;
        let fleets = env.client.resource(&FLEETS);
        let fleet = json!({
            "apiVersion": FLEETS.api_version(), "kind": FLEETS.kind,
            "metadata": { "name": "one" }, "spec": { "size": 5, "selector": "app=x" },
        });
        fleets.create::<Value>("", &fleet).await.expect("create");
        let _manager = env.manager("manager", &FLAGS);
        let mut greedy = autoscaler("greedy", "one", [50, 100], cpu(50));
        greedy["spec"]["scaleTargetRef"] =
            json!({ "apiVersion": FLEETS.api_version(), "kind": FLEETS.kind, "name": "one" });
        create(&env.client, greedy).await;
        let no_scale = ("False", "FailedGetScale");
        has_status(env, "greedy", |status| is(status, "AbleToScale", no_scale)).await;
        let fleet: Value = fleets.get(&ObjectKey::cluster("one")).await.expect("get");
        assert_eq!(fleet["spec"]["size"], 5);
    });
}

#[test]
fn a_target_follows_the_usage_of_its_pods() {
    Env::run("autoscaler-cpu", async |env| {
        let manager = env.manager("manager", &FLAGS);
        let client = &env.client;
        create(client, target("web", 1, json!({ "sandbox/cpu": "200m" }))).await;
        create(client, autoscaler("web", "web", [1, 6], cpu(50))).await;
        let status = scales(env, "web", 6, |status| {
            is(status, "ScalingLimited", ("True", "TooManyReplicas"))
        })
        .await;
        let current = json!({ "averageUtilization": 200, "averageValue": "200m" });
        let metric =
            json!({ "type": "Resource", "resource": { "name": "cpu", "current": current } });
        assert_eq!(status["currentMetrics"], json!([metric]));
        assert!(is(&status, "ScalingActive", ("True", "ValidMetricFound")), "{status}");
        let reason = "reason: cpu resource utilization (percentage of request) above target";
        has_event(env, "web", "SuccessfulRescale", reason).await;

        // With fewer pods the load asks for one.
        let spec = json!({ "spec": { "minReplicas": 2 } });
        merge::<HorizontalPodAutoscaler>(client, "web", spec).await;
        for pod in list::<Pod>(client).await {
            let key = ObjectKey::new("default", &pod.meta.name);
            client.patch::<Pod>(&key, &annotate_pods("sandbox/cpu", "15m")).await.expect("patch");
        }
        let status = scales(env, "web", 2, |_| true).await;
        // The last pass that wrote depends on timing.
        let reasons = ["ReadyForNewScale", "SucceededRescale", "ScaleDownStabilized"];
        assert!(
            reasons.iter().any(|reason| is(&status, "AbleToScale", ("True", reason))),
            "{status}"
        );
        has_event(env, "web", "SuccessfulRescale", "reason: All metrics below target").await;

        // Metrics of one container only, and of memory.
        let container = json!({ "type": "ContainerResource", "containerResource": {
            "name": "memory", "container": "main",
            "target": { "type": "AverageValue", "averageValue": "1Mi" },
        } });
        let spec = json!({ "spec": { "metrics": [container] } });
        merge::<HorizontalPodAutoscaler>(client, "web", spec).await;
        for pod in list::<Pod>(client).await {
            let key = ObjectKey::new("default", &pod.meta.name);
            client
                .patch::<Pod>(&key, &annotate_pods("sandbox/memory", "main=2Mi"))
                .await
                .expect("patch");
        }
        // New pods use 1Mi each, so it scales up to the limit.
        let status = scales(env, "web", 6, |_| true).await;
        assert_eq!(status["currentMetrics"][0]["type"], "ContainerResource", "{status}");
        drop(manager);
    });
}

#[test]
fn targets_follow_custom_and_external_metrics() {
    Env::run("autoscaler-custom", async |env| {
        let manager = env.manager("manager", &FLAGS);
        let client = &env.client;
        let average = |amount: &str| json!({ "type": "AverageValue", "averageValue": amount });

        create(client, target("pods", 1, json!({ "sandbox/metric.queue": "30" }))).await;
        let metric = json!({ "type": "Pods", "pods": {
            "metric": { "name": "queue" }, "target": average("10"),
        } });
        create(client, autoscaler("pods", "pods", [1, 3], metric)).await;
        let status = scales(env, "pods", 3, |_| true).await;
        let shown = json!({ "type": "Pods", "pods": {
            "metric": { "name": "queue" }, "current": { "averageValue": "30" },
        } });
        assert_eq!(status["currentMetrics"], json!([shown]));

        let mut front = target("front", 1, json!({}));
        front["metadata"]["annotations"] = json!({ "sandbox/metric.hits": "9" });
        create(client, front).await;
        let metric = json!({ "type": "Object", "object": {
            "describedObject": { "apiVersion": "apps/v1", "kind": "Deployment", "name": "front" },
            "metric": { "name": "hits" }, "target": average("3"),
        } });
        create(client, autoscaler("front", "front", [1, 5], metric)).await;
        scales(env, "front", 3, |_| true).await;

        let map = |data: Value| {
            json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": { "name": "sandbox-external-metrics", "namespace": "default" },
                "data": data,
            })
        };
        create(client, map(json!({ "jobs": "4 queue=a\n100 queue=b" }))).await;
        create(client, target("worker", 1, json!({}))).await;
        let metric = json!({ "type": "External", "external": {
            "metric": { "name": "jobs", "selector": { "matchLabels": { "queue": "a" } } },
            "target": average("1"),
        } });
        create(client, autoscaler("worker", "worker", [1, 9], metric)).await;
        scales(env, "worker", 4, |_| true).await;
        let reason = "reason: external metric jobs(&LabelSelector{MatchLabels:map[string]string\
                      {queue: a,},MatchExpressions:[]LabelSelectorRequirement{},}) above target";
        has_event(env, "worker", "SuccessfulRescale", reason).await;
        drop(manager);
    });
}

/// Upstream of 1.36 waits for the period first.
#[test]
fn a_new_or_changed_autoscaler_does_not_wait_for_the_period() {
    everywhere("autoscaler-new", async |env| {
        let _manager = env.manager("manager", &["--horizontal-pod-autoscaler-sync-period=1h"]);
        let client = &env.client;
        create(client, target("web", 5, json!({}))).await;
        create(client, autoscaler("web", "web", [1, 4], cpu(50))).await;
        scales(env, "web", 4, |_| true).await;
        let spec = json!({ "spec": { "maxReplicas": 3 } });
        merge::<HorizontalPodAutoscaler>(client, "web", spec).await;
        scales(env, "web", 3, |_| true).await;
    });
}

/// The external metric `jobs` has this value.
fn jobs(value: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": "sandbox-external-metrics", "namespace": "default" },
        "data": { "jobs": value },
    })
}

fn jobs_of_each_pod(average: &str) -> Value {
    json!({ "type": "External", "external": {
        "metric": { "name": "jobs" }, "target": { "type": "AverageValue", "averageValue": average },
    } })
}

/// Upstream scales to zero, and cannot return from there: a server of 1.37 accepts `minReplicas: 0`.
#[test]
fn a_target_does_not_go_to_zero_without_the_gate() {
    Env::run("autoscaler-zero", async |env| {
        let off = "--feature-gates=HPAScaleToZero=false";
        let _manager = env.manager("manager", &[&FLAGS[..], &[off]].concat());
        let client = &env.client;
        create(client, jobs("0")).await;
        create(client, target("web", 2, json!({}))).await;
        create(client, autoscaler("web", "web", [0, 4], jobs_of_each_pod("1"))).await;
        let limited = ("True", "TooFewReplicas");
        let status = scales(env, "web", 1, |status| is(status, "ScalingLimited", limited)).await;
        let said = "kube-controller-manager needs the feature gate HPAScaleToZero";
        assert!(status.to_string().contains(said), "{status}");
    });
}

#[test]
fn a_target_goes_to_zero_and_back() {
    Env::run("autoscaler-to-zero", async |env| goes_to_zero_and_back(env).await);
}

/// With the gate, which is on by default since 1.37: pull request 139648.
pub async fn goes_to_zero_and_back(env: &Env) {
    let gate = env.before_1_37("--feature-gates=HPAScaleToZero=true");
    let _manager = env.manager("manager", &[&FLAGS[..], &gate].concat());
    let client = &env.client;
    create(client, jobs("0")).await;
    create(client, target("web", 2, json!({}))).await;
    create(client, autoscaler("web", "web", [0, 4], jobs_of_each_pod("1"))).await;
    let key = ObjectKey::new("default", "web");
    let sleeps = |target: &Value| target["spec"]["replicas"] == 0;
    wait_until_exists(env, &Deployment::RESOURCE, &key, sleeps).await;
    has_status(env, "web", |status| is(status, "ScaledToZero", ("True", "ScaledToZero"))).await;
    let more = Patch::Merge(json!({ "data": { "jobs": "3" } }));
    let metrics = ObjectKey::new("default", "sandbox-external-metrics");
    client.resource(&CONFIG_MAPS).patch::<Value>(&metrics, &more).await.expect("patch");
    let awake = ("False", "NotScaledToZero");
    scales(env, "web", 3, |status| is(status, "ScaledToZero", awake)).await;
}

/// Upstream takes the replicas of the status, with those of the surge.
#[test]
fn a_rollout_with_a_surge_is_not_scaled_up_within_the_tolerance() {
    Env::run("autoscaler-surge", async |env| {
        let _manager = env.manager("manager", &FLAGS);
        let client = &env.client;
        create(client, jobs("20")).await;
        let mut web = target("web", 2, json!({}));
        web["spec"]["strategy"] =
            json!({ "rollingUpdate": { "maxSurge": "100%", "maxUnavailable": 0 } });
        create(client, web).await;
        let mut scaler = autoscaler("web", "web", [1, 9], jobs_of_each_pod("10"));
        scaler["spec"]["behavior"] = json!({ "scaleDown": { "tolerance": "0.9" } });
        create(client, scaler).await;
        scales(env, "web", 2, |_| true).await;

        // The pods of the surge do not become ready, so they stay beside the old ones.
        let template = json!({ "metadata": { "annotations": { "sandbox/ready": "false" } } });
        merge::<Deployment>(client, "web", json!({ "spec": { "template": template } })).await;
        let halved = |status: &Value| {
            status["currentMetrics"][0]["external"]["current"]["averageValue"] == "5"
        };
        let status = has_status(env, "web", halved).await;
        assert_eq!(
            (&status["currentReplicas"], &status["desiredReplicas"]),
            (&json!(2), &json!(2))
        );
    });
}

#[test]
fn behavior_limits_the_rate_and_a_pod_has_one_autoscaler() {
    Env::run("autoscaler-behavior", async |env| {
        let manager = env.manager("manager", &FLAGS);
        let client = &env.client;
        create(client, target("slow", 1, json!({ "sandbox/cpu": "200m" }))).await;
        let mut slow = autoscaler("slow", "slow", [1, 10], cpu(50));
        slow["spec"]["behavior"] = json!({ "scaleUp": {
            "policies": [{ "type": "Pods", "value": 2, "periodSeconds": 1800 }],
        } });
        create(client, slow).await;
        let limited = ("True", "ScaleUpLimit");
        scales(env, "slow", 3, |status| is(status, "ScalingLimited", limited)).await;

        create(client, autoscaler("second", "slow", [1, 10], cpu(50))).await;
        for name in ["slow", "second"] {
            let ambiguous = ("False", "AmbiguousSelector");
            has_status(env, name, |status| is(status, "ScalingActive", ambiguous)).await;
        }
        let message = "pods by selector app=slow are controlled by multiple HPAs: [default/second default/slow]";
        has_event(env, "second", "AmbiguousSelector", message).await;
        let scale = client.resource(&Deployment::RESOURCE).subresource("scale");
        let scale: Value = scale.get(&ObjectKey::new("default", "slow")).await.expect("get");
        assert_eq!(scale["spec"]["replicas"], 3);
        drop(manager);
    });
}

#[test]
fn an_autoscaler_may_have_a_tolerance_of_its_own() {
    Env::run("autoscaler-tolerance", async |env| {
        // The gate, and the replicas of a target that uses a fifth too much with a large tolerance,
        // and of one that uses a twelfth too much with a small one. 1.37 locks the gate.
        for (gate, loose, tight) in [(true, 1, 2), (false, 2, 1)] {
            let flag = format!("--feature-gates=HPAConfigurableTolerance={gate}");
            let flags = [&FLAGS[..], &[AS_1_36, &flag]].concat();
            let manager = env.manager(&format!("manager-{gate}"), &flags);
            for (name, percent, tolerance, replicas) in
                [("loose", 60, "0.3", loose), ("tight", 54, "0.05", tight)]
            {
                let name = format!("{name}-{gate}");
                let usage = json!({ "sandbox/cpu": format!("{percent}m") });
                create(&env.client, target(&name, 1, usage)).await;
                let mut autoscaler = autoscaler(&name, &name, [1, 2], cpu(50));
                autoscaler["spec"]["behavior"] = json!({ "scaleUp": { "tolerance": tolerance } });
                create(&env.client, autoscaler).await;
                let measured = |status: &Value| {
                    let current = &status["currentMetrics"][0]["resource"]["current"];
                    current["averageUtilization"] == percent
                };
                let status = has_status(env, &name, measured).await;
                assert_eq!(status["desiredReplicas"], replicas, "{name}");
                scales(env, &name, replicas, measured).await;
            }
            drop(manager);
        }
    });
}

#[test]
fn a_custom_resource_is_brought_between_its_limits_by_its_scale() {
    everywhere("autoscaler-scale", async |env| {
        serve_caches(env).await;
        let _manager = env.manager("manager", &FLAGS);
        let caches = env.client.resource(&CACHES);
        for (name, size, selector) in [("few", 1, "app=few"), ("odd", 2, "")] {
            let cache = json!({
                "apiVersion": CACHES.api_version(), "kind": CACHES.kind,
                "metadata": { "name": name }, "spec": { "size": size, "selector": selector },
            });
            caches.create::<Value>("default", &cache).await.expect("create");
            let mut autoscaler = autoscaler(name, name, [2, 4], cpu(50));
            let target = json!({
                "apiVersion": CACHES.api_version(), "kind": CACHES.kind, "name": name,
            });
            autoscaler["spec"]["scaleTargetRef"] = target;
            create(&env.client, autoscaler).await;
        }
        let few = ObjectKey::new("default", "few");
        wait_until_exists(env, &CACHES, &few, |cache| cache["spec"]["size"] == 2).await;
        let reason = "New size: 2; reason: Current number of replicas below Spec.MinReplicas";
        has_event(env, "few", "SuccessfulRescale", reason).await;
        let inactive = ("False", "InvalidSelector");
        has_status(env, "odd", |status| is(status, "ScalingActive", inactive)).await;
        has_event(env, "odd", "SelectorRequired", "selector is required").await;
    });
}

#[test]
fn refused_writes_of_an_autoscaler_are_made_later() {
    Env::run("autoscaler-refused", async |env| {
        let faults = env.cluster.sandbox.faults();
        for fault in [Fault::code(409, None), Fault::code(500, None), Fault::Cut] {
            faults.next(1, "update", "deployments/scale", fault.clone());
            faults.next(1, "update", "horizontalpodautoscalers/status", fault);
        }
        let _manager = env.manager("manager", &FLAGS);
        create(&env.client, target("web", 5, json!({}))).await;
        create(&env.client, autoscaler("web", "web", [2, 2], cpu(50))).await;
        scales(env, "web", 2, |_| true).await;
        let pending = faults.pending();
        assert!(pending.is_empty(), "{pending:?}");
        has_event(env, "web", "FailedRescale", "").await;
        has_event(env, "web", "FailedUpdateStatus", "").await;
    });
}
