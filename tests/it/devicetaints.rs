//! Device taints that are tolerated for some time, or hit a group of pods, and answers that expire:
//! on a clock of the test's own, with restarts between.

use std::time::Duration;

use kube_controller_manager::client::Delete;
use kube_controller_manager::clock::{Clock, FakeClock};
use kube_controller_manager::objects::{
    DeviceTaintRule, ObjectKey, Pod, PodGroup, Resource, ResourceClaim, ResourcePoolStatusRequest,
    ResourceSlice,
};
use kube_controller_manager::options::Options;
use serde_json::{Value, json};

use crate::crashes::Manager;
use crate::devices::*;
use crate::env::*;
use crate::kinds::{wait_until_deleted, wait_until_exists};

const RULES_SERVED: &str = "--runtime-config=resource.k8s.io/v1beta2=true";

/// Options with DeviceTaintRules, which are off by default before 1.37.
pub fn rules_on(env: &TestCluster) -> Options {
    let mut options = env.options();
    options.feature_gates.given.push(("DRADeviceTaintRules".to_owned(), true));
    options
}

async fn rule(env: &TestCluster, name: &str, driver: &str, effect: &str, time: Value) -> ObjectKey {
    let taint = json!({ "key": "k", "effect": effect, "timeAdded": time });
    let rule = json!({
        "metadata": { "name": name },
        "spec": { "deviceSelector": { "driver": driver }, "taint": taint },
    });
    make::<DeviceTaintRule>(env, rule).await;
    ObjectKey::cluster(name)
}

/// Waits until the controller has handled a new rule: all earlier work is done then.
async fn is_at_work(env: &TestCluster, probe: &str) {
    let key = rule(env, probe, "none.example.com", "None", json!(env.clock.now())).await;
    wait_until_exists(env, &DeviceTaintRule::RESOURCE, &key, |rule| {
        rule["status"]["conditions"][0]["reason"] == "NoEffect"
    })
    .await;
}

/// A pod on a node that uses a device by a claim of the device's name.
async fn user(env: &TestCluster, device: &str, seconds: i64) {
    let claim = json!({ "metadata": { "name": device }, "spec": one_device() });
    make::<ResourceClaim>(env, claim).await;
    let pod = make::<Pod>(env, placed(&format!("on-{device}"), device, "ready")).await;
    let tolerations = json!([
        { "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds },
    ]);
    allocate_tolerating(env, &key(device), device, &[consumer(&pod)], tolerations).await;
}

async fn stays(env: &TestCluster, pod: &str) {
    let pod: Value = env.client.resource(&Pod::RESOURCE).get(&key(pod)).await.expect("it stays");
    assert!(pod["metadata"]["deletionTimestamp"].is_null(), "{pod}");
}

#[test]
fn a_pod_is_evicted_when_its_toleration_ends() {
    let flags = [RULE_GATE, RULES_SERVED];
    everywhere_with_gates("taint-timers", &flags, async |env| {
        let clock = FakeClock::new(env.clock.now());
        let controllers = ["device-taint-eviction-controller"];
        class(env).await;
        for (device, seconds) in [("d0", 60), ("d1", 36_000), ("d2", 72_000)] {
            user(env, device, seconds).await;
        }
        let tainted = rule(env, "rule", DRIVER, "NoExecute", json!(clock.now())).await;
        let condition = async |message: &str, step: Duration| {
            let what = format!("the rule says: {message}");
            eventually(&env.clock, &what, || async {
                clock.advance(step);
                let rules = env.client.resource(&DeviceTaintRule::RESOURCE);
                let rule: Value = rules.get(&tainted).await.map_err(|error| error.to_string())?;
                let condition = &rule["status"]["conditions"][0];
                let is_it = condition["reason"] == "PodsPendingEviction"
                    && condition["status"] == "True"
                    && condition["message"] == message;
                if is_it { Ok(rule) } else { Err(rule.to_string()) }
            })
            .await
        };

        // All objects are in the caches when the first manager starts.
        let first = Manager::start(env, &clock, "first", &controllers, &rules_on(env));
        let message = "3 pods need to be evicted in 1 namespace.";
        let before = condition(message, Duration::ZERO).await;
        // The cache has seen that status once it has seen a later rule.
        is_at_work(env, "probe-0").await;
        clock.advance(Duration::from_secs(50));
        is_at_work(env, "probe-1").await;
        stays(env, "on-d0").await;
        let after = condition(message, Duration::ZERO).await;
        assert_eq!(
            before["metadata"]["resourceVersion"], after["metadata"]["resourceVersion"],
            "a status that says the same is not written"
        );

        // Another manager counts the seconds from the time of the taint.
        first.abort().await;
        let second = Manager::start(env, &clock, "second", &controllers, &rules_on(env));
        clock.advance(Duration::from_secs(15));
        wait_until_deleted(env, &Pod::RESOURCE, &key("on-d0")).await;
        let message = "2 pods need to be evicted in 1 namespace. \
                       1 pod evicted since starting the controller.";
        condition(message, Duration::from_secs(1)).await;

        // Without the rule no pod is evicted.
        let rules = env.client.resource(&DeviceTaintRule::RESOURCE);
        rules.delete(&tainted, Delete::new()).await.expect("delete");
        for pod in ["on-d1", "on-d2"] {
            has_event(env, pod, "DeviceTaintManagerEviction", "Cancelling deletion").await;
        }
        clock.advance(Duration::from_secs(100_000));
        is_at_work(env, "probe-2").await;
        for pod in ["on-d1", "on-d2"] {
            stays(env, pod).await;
        }
        second.abort().await;
    });
}

#[test]
fn a_device_taint_evicts_all_pods_of_a_group() {
    everywhere_with_gates("group-taints", &[GROUP_GATES, GROUPS_SERVED], async |env| {
        let _manager = env.manager("manager", &[GROUP_GATES]);
        class(env).await;
        template(env).await;
        make::<ResourceSlice>(env, slice(env, &[])).await;
        group_with_claim(env).await;
        let names = ["one", "two"];
        for name in names {
            member(env, name).await;
        }
        let shared = claim_of::<PodGroup>(env, "group").await;
        for name in names {
            assert_eq!(claim_of::<Pod>(env, name).await, shared);
        }
        allocate(env, &shared, "d1", &[]).await;
        is_used_by(env, &shared, &["group"]).await;

        set_taints(env, &["d0"]).await;
        // A pod without a group, whose device has the same taint, is evicted: so the taint was
        // seen.
        user_of(env, "d0", json!([])).await;
        wait_until_deleted(env, &Pod::RESOURCE, &key("on-d0")).await;
        for name in names {
            stays(env, name).await;
        }
        set_taints(env, &["d0", "d1"]).await;
        for name in names {
            has_event(env, name, "DeviceTaintManagerEviction", "Marking for deletion").await;
            wait_until_deleted(env, &Pod::RESOURCE, &key(name)).await;
        }
    });
}

#[test]
fn an_answered_request_for_the_status_of_pools_expires() {
    const GATE: &str = "--feature-gates=DRAResourcePoolStatus=true";
    let flags = [GATE, "--runtime-config=resource.k8s.io/v1alpha3=true"];
    everywhere_with_gates("pool-status-expires", &flags, async |env| {
        let clock = FakeClock::new(env.clock.now());
        let controllers = ["resourcepoolstatusrequest-controller"];
        let resource = &ResourcePoolStatusRequest::RESOURCE;
        let answered = async |name: &str| {
            let request = json!({ "metadata": { "name": name }, "spec": { "driver": DRIVER } });
            make::<ResourcePoolStatusRequest>(env, request).await;
            let key = ObjectKey::cluster(name);
            wait_until_exists(env, resource, &key, |request| {
                request["status"]["poolCount"].is_u64()
            })
            .await
        };
        let first = Manager::start(env, &clock, "first", &controllers, &rules_on(env));
        let before = answered("first").await;
        first.abort().await;
        clock.advance(Duration::from_mins(59));
        let second = Manager::start(env, &clock, "second", &controllers, &rules_on(env));
        // The second manager is at work, and has nothing to write to the first request.
        answered("second").await;
        let key = ObjectKey::cluster("first");
        let after = wait_until_exists(env, resource, &key, |_| true).await;
        assert_eq!(before["metadata"]["resourceVersion"], after["metadata"]["resourceVersion"]);
        clock.advance(Duration::from_secs(61));
        wait_until_deleted(env, resource, &key).await;
        wait_until_exists(env, resource, &ObjectKey::cluster("second"), |_| true).await;
        second.abort().await;
    });
}
