//! Claims of devices: created, reserved, released; pods that device taints evict; the status of
//! pools. The tests take the part of the scheduler.

use kube_controller_manager::client::{Delete, ListOptions, Patch};
use kube_controller_manager::objects::{
    DeviceClass, DeviceTaintRule, Namespace, ObjectKey, Pod, PodGroup, Resource, ResourceClaim,
    ResourceClaimTemplate, ResourcePoolStatusRequest, ResourceSlice,
};
use sandbox::faults::Fault;
use serde_json::{Value, json};

use crate::crashes::{Cluster, Scenario, survives_every_write};
use crate::env::*;
use crate::kinds::{wait_until_deleted, wait_until_exists};

pub const DRIVER: &str = "gpu.example.com";
pub const POOL: &str = "pool-a";
const FINALIZER: &str = "resource.kubernetes.io/delete-protection";

pub fn key(name: &str) -> ObjectKey {
    ObjectKey::new("default", name)
}

pub async fn make<T: Resource>(env: &TestCluster, mut object: Value) -> Value {
    object["apiVersion"] = json!(env.client.served(&T::RESOURCE).api_version());
    object["kind"] = json!(T::RESOURCE.kind);
    env.client.resource(&T::RESOURCE).create("default", &object).await.expect("create")
}

/// The spec of a claim for one device of the class "gpu".
pub fn one_device() -> Value {
    let exactly = json!({ "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1 });
    json!({ "devices": { "requests": [{ "name": "r", "exactly": exactly }] } })
}

pub async fn class(env: &TestCluster) {
    make::<DeviceClass>(env, json!({ "metadata": { "name": "gpu" }, "spec": {} })).await;
}

pub async fn template(env: &TestCluster) {
    let template = json!({
        "metadata": { "name": "gpu" },
        "spec": {
            "metadata": { "labels": { "a": "b" }, "annotations": { "c": "d" } },
            "spec": one_device(),
        },
    });
    make::<ResourceClaimTemplate>(env, template).await;
}

/// A pod that the stand-in scheduler leaves alone. A `behavior` of "exit" ends it once it has a
/// node.
pub fn pod(name: &str, entry: Value, behavior: &str) -> Value {
    json!({
        "metadata": { "name": name, "annotations": { "sandbox/behavior": behavior } },
        "spec": {
            "schedulerName": "by-hand", "restartPolicy": "Never", "resourceClaims": [entry],
            "containers": [{ "name": "main", "image": "x:1" }],
        },
    })
}

pub fn from_template() -> Value {
    json!({ "name": "gpu", "resourceClaimTemplateName": "gpu" })
}

/// A pod with a node from the start: the scheduler does not see it.
pub fn placed(name: &str, claim: &str, behavior: &str) -> Value {
    let entry = json!({ "name": "gpu", "resourceClaimName": claim });
    let mut pod = pod(name, entry, behavior);
    pod["spec"]["nodeName"] = json!("node-0");
    pod
}

/// The name of the claim that the status of a pod or a PodGroup gives.
pub async fn claim_of<T: Resource>(env: &TestCluster, name: &str) -> ObjectKey {
    let named = |object: &Value| {
        let name = &object["status"]["resourceClaimStatuses"][0]["resourceClaimName"];
        name.as_str().map(key)
    };
    let pod =
        wait_until_exists(env, &T::RESOURCE, &key(name), |object| named(object).is_some()).await;
    named(&pod).expect("a name")
}

/// Allocates a device to a claim, as the scheduler does, for `consumers`.
pub async fn allocate(env: &TestCluster, claim: &ObjectKey, device: &str, consumers: &[Value]) {
    allocate_tolerating(env, claim, device, consumers, json!([])).await;
}

pub async fn allocate_tolerating(
    env: &TestCluster,
    claim: &ObjectKey,
    device: &str,
    consumers: &[Value],
    tolerations: Value,
) {
    let claims = env.client.resource(&ResourceClaim::RESOURCE);
    let finalizer = Patch::Merge(json!({ "metadata": { "finalizers": [FINALIZER] } }));
    claims.patch::<Value>(claim, &finalizer).await.expect("patch");
    let device = json!({
        "request": "r", "driver": DRIVER, "pool": POOL, "device": device,
        "tolerations": tolerations,
    });
    let status = json!({
        "allocation": { "devices": { "results": [device] } }, "reservedFor": consumers,
    });
    let status = Patch::Merge(json!({ "status": status }));
    claims.subresource("status").patch::<Value>(claim, &status).await.expect("patch");
}

pub fn consumer(pod: &Value) -> Value {
    let metadata = &pod["metadata"];
    json!({ "resource": "pods", "name": metadata["name"], "uid": metadata["uid"] })
}

pub async fn bind(env: &TestCluster, pod: &str) {
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding", "metadata": { "name": pod },
        "target": { "apiVersion": "v1", "kind": "Node", "name": "node-0" },
    });
    let pods = env.client.resource(&Pod::RESOURCE).subresource("binding");
    pods.create_for::<Value>(&key(pod), &binding).await.expect("bound");
}

async fn finishes(env: &TestCluster, pod: &str) {
    wait_until_exists(env, &Pod::RESOURCE, &key(pod), |pod| pod["status"]["phase"] == "Succeeded")
        .await;
}

/// The names of the consumers of a claim.
fn users(claim: &Value) -> Vec<String> {
    let users = claim["status"]["reservedFor"].as_array().into_iter().flatten();
    users.filter_map(|user| Some(user["name"].as_str()?.to_owned())).collect()
}

pub async fn is_used_by(env: &TestCluster, claim: &ObjectKey, wanted: &[&str]) -> Value {
    wait_until_exists(env, &ResourceClaim::RESOURCE, claim, |claim| users(claim) == wanted).await
}

pub async fn claims(env: &TestCluster) -> Vec<Value> {
    let claims = env.client.resource(&ResourceClaim::RESOURCE);
    claims.list(Some("default"), &ListOptions::default()).await.expect("list").items
}

#[test]
fn a_claim_is_made_for_a_pod_and_goes_with_its_end() {
    everywhere("claims", async |env| {
        let manager = env.manager("manager", &[]);
        class(env).await;
        template(env).await;
        let first = make::<Pod>(env, pod("first", from_template(), "exit")).await;
        let claim_key = claim_of::<Pod>(env, "first").await;
        let claim: Value =
            env.client.resource(&ResourceClaim::RESOURCE).get(&claim_key).await.unwrap();
        let metadata = &claim["metadata"];
        assert_eq!(metadata["generateName"], "first-gpu-");
        assert_eq!(metadata["labels"], json!({ "a": "b" }));
        assert_eq!(
            metadata["annotations"],
            json!({ "c": "d", "resource.kubernetes.io/pod-claim-name": "gpu" })
        );
        assert_eq!(
            metadata["ownerReferences"],
            json!([{
                "apiVersion": "v1", "kind": "Pod", "name": "first",
                "uid": first["metadata"]["uid"], "controller": true,
            }])
        );
        assert_eq!(claim["spec"], one_device());

        // A new manager finds the claim, and creates one for the second pod only.
        drop(manager);
        let manager = env.manager("second-manager", &[]);
        let second = make::<Pod>(env, pod("second", from_template(), "exit")).await;
        let second_key = claim_of::<Pod>(env, "second").await;
        assert_eq!(claims(env).await.len(), 2);

        // The claim of a finished pod is deleted, although the pod stays. It is not created again.
        allocate(env, &claim_key, "d0", &[consumer(&first)]).await;
        bind(env, "first").await;
        finishes(env, "first").await;
        wait_until_deleted(env, &ResourceClaim::RESOURCE, &claim_key).await;
        allocate(env, &second_key, "d1", &[consumer(&second)]).await;
        bind(env, "second").await;
        finishes(env, "second").await;
        wait_until_deleted(env, &ResourceClaim::RESOURCE, &second_key).await;
        make::<Pod>(env, pod("third", from_template(), "ready")).await;
        let third_key = claim_of::<Pod>(env, "third").await;
        assert_eq!(claims(env).await.len(), 1, "only that of the third pod");

        // A pod that is deleted before it has a node leaves nothing behind.
        env.client.delete::<Pod>(&key("third"), Delete::new()).await.expect("delete");
        wait_until_deleted(env, &ResourceClaim::RESOURCE, &third_key).await;
        drop(manager);
    });
}

#[test]
fn a_claim_for_administrators_is_made_from_its_template() {
    everywhere("admin-claim", async |env| {
        let _manager = env.manager("manager", &[]);
        class(env).await;
        // The API server allows such a template only in a namespace with this label.
        let label = json!({ "resource.kubernetes.io/admin-access": "true" });
        let labelled = Patch::Merge(json!({ "metadata": { "labels": label } }));
        let namespace = ObjectKey::cluster("default");
        env.client.patch::<Namespace>(&namespace, &labelled).await.expect("patch");
        let mut spec = one_device();
        spec["devices"]["requests"][0]["exactly"]["adminAccess"] = json!(true);
        let template = json!({ "metadata": { "name": "gpu" }, "spec": { "spec": spec } });
        make::<ResourceClaimTemplate>(env, template).await;
        let pod = make::<Pod>(env, pod("admin", from_template(), "ready")).await;
        let claim = claim_of::<Pod>(env, "admin").await;
        let made: Value = env.client.resource(&ResourceClaim::RESOURCE).get(&claim).await.unwrap();
        assert_eq!(made["spec"], spec);

        // It is deallocated and deleted as any other claim.
        allocate(env, &claim, "d0", &[consumer(&pod)]).await;
        env.client
            .delete::<Pod>(&key("admin"), Delete::new().grace_period(0))
            .await
            .expect("delete");
        wait_until_deleted(env, &ResourceClaim::RESOURCE, &claim).await;
    });
}

#[test]
fn a_shared_claim_is_deallocated_with_its_last_pod() {
    everywhere("shared-claim", async |env| {
        let manager = env.manager("manager", &[]);
        class(env).await;
        template(env).await;
        let shared = key("shared");
        let claim = json!({ "metadata": { "name": "shared" }, "spec": one_device() });
        make::<ResourceClaim>(env, claim).await;
        allocate(env, &shared, "d0", &[]).await;
        make::<Pod>(env, placed("a", "shared", "ready")).await;
        is_used_by(env, &shared, &["a"]).await;

        // Reserved for a pod that finishes, released, and not reserved again.
        env.steering.hold(true);
        make::<Pod>(env, placed("b", "shared", "exit")).await;
        is_used_by(env, &shared, &["a", "b"]).await;
        env.steering.hold(false);
        finishes(env, "b").await;
        let settled = is_used_by(env, &shared, &["a"]).await;
        make::<Pod>(env, pod("other", from_template(), "ready")).await;
        claim_of::<Pod>(env, "other").await;
        let later = is_used_by(env, &shared, &["a"]).await;
        assert_eq!(
            settled["metadata"]["resourceVersion"], later["metadata"]["resourceVersion"],
            "nothing is written for a pod that has finished"
        );

        // A restart changes nothing; a pod that is deleted meanwhile is noticed.
        make::<Pod>(env, placed("c", "shared", "ready")).await;
        is_used_by(env, &shared, &["a", "c"]).await;
        drop(manager);
        let at_once = || Delete::new().grace_period(0);
        env.client.delete::<Pod>(&key("c"), at_once()).await.expect("delete");
        wait_until_deleted(env, &Pod::RESOURCE, &key("c")).await;
        let manager = env.manager("second-manager", &[]);
        let used = is_used_by(env, &shared, &["a"]).await;
        assert!(used["status"]["allocation"].is_object());

        env.client.delete::<Pod>(&key("a"), at_once()).await.expect("delete");
        let free = wait_until_exists(env, &ResourceClaim::RESOURCE, &shared, |claim| {
            users(claim).is_empty() && claim["metadata"]["finalizers"].is_null()
        })
        .await;
        assert!(free["status"]["allocation"].is_null(), "{free}");

        // A claim that is deleted while it is allocated and not in use.
        allocate(env, &shared, "d0", &[]).await;
        env.client.delete::<ResourceClaim>(&shared, Delete::new()).await.expect("delete");
        wait_until_deleted(env, &ResourceClaim::RESOURCE, &shared).await;
        drop(manager);
    });
}

/// Makes `pod`, which requests an extended resource, and as the scheduler does a claim of `device` for
/// it, which the pod's status names.
async fn make_with_extended_resource(env: &TestCluster, mut pod: Value, device: &str) {
    let amounts = json!({ "example.com/gpu": "1" });
    pod["spec"].as_object_mut().unwrap().remove("resourceClaims");
    pod["spec"]["containers"][0]["resources"] = json!({ "requests": amounts, "limits": amounts });
    let pod = make::<Pod>(env, pod).await;
    let name = pod["metadata"]["name"].as_str().expect("a name");
    let claim = format!("{name}-extended");
    let owner = json!({
        "apiVersion": "v1", "kind": "Pod", "name": name, "uid": pod["metadata"]["uid"],
        "controller": true,
    });
    let annotations = json!({ "resource.kubernetes.io/extended-resource-claim": "true" });
    let metadata = json!({ "name": claim, "ownerReferences": [owner], "annotations": annotations });
    make::<ResourceClaim>(env, json!({ "metadata": metadata, "spec": one_device() })).await;
    allocate(env, &key(&claim), device, &[consumer(&pod)]).await;
    let mapping = json!({
        "containerName": "main", "resourceName": "example.com/gpu", "requestName": "r",
    });
    let status = json!({ "extendedResourceClaimStatus": {
        "resourceClaimName": claim, "requestMappings": [mapping],
    } });
    let pods = env.client.resource(&Pod::RESOURCE).subresource("status");
    let patch = Patch::Merge(json!({ "status": status }));
    pods.patch::<Value>(&key(name), &patch).await.expect("patch");
}

#[test]
fn a_claim_for_extended_resources_goes_with_its_pod() {
    everywhere("extended-claim", async |env| {
        let _manager = env.manager("manager", &[]);
        class(env).await;
        make_with_extended_resource(env, pod("user", Value::Null, "exit"), "d0").await;
        bind(env, "user").await;
        finishes(env, "user").await;
        wait_until_deleted(env, &ResourceClaim::RESOURCE, &key("user-extended")).await;
    });
}

#[test]
fn a_pod_waits_for_its_template_and_an_event_says_so() {
    everywhere("no-template", async |env| {
        let _manager = env.manager("manager", &[]);
        class(env).await;
        let mut two = pod("two", from_template(), "ready");
        two["spec"]["resourceClaims"] = json!([
            { "name": "later", "resourceClaimTemplateName": "gpu" },
            { "name": "early", "resourceClaimTemplateName": "gpu" },
        ]);
        make::<Pod>(env, two).await;
        let message = "PodResourceClaim later: resource claim template \"gpu\": \
                       resourceclaimtemplate.resource.k8s.io \"gpu\" not found";
        has_event(env, "two", "FailedResourceClaimCreation", message).await;
        template(env).await;
        let names = |pod: &Value| -> Vec<(String, String)> {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let statuses = pod["status"]["resourceClaimStatuses"].as_array().into_iter().flatten();
            let name = |s: &Value| (text(&s["name"]), text(&s["resourceClaimName"]));
            statuses.map(name).collect()
        };
        let done =
            wait_until_exists(env, &Pod::RESOURCE, &key("two"), |pod| names(pod).len() == 2).await;
        let before = names(&done);

        // One of two claims is lost: it is created again, and the other one keeps its name.
        let lost = key(&before[0].1);
        env.client.delete::<ResourceClaim>(&lost, Delete::new()).await.expect("delete");
        let done = wait_until_exists(env, &Pod::RESOURCE, &key("two"), |pod| {
            names(pod).len() == 2 && names(pod)[0].1 != before[0].1
        })
        .await;
        assert_eq!(names(&done)[1], before[1]);
        assert_eq!(claims(env).await.len(), 2);
    });
}

#[test]
fn a_gate_keeps_claims_with_alternatives_from_being_made() {
    everywhere("alternatives", async |env| {
        let manager =
            env.manager("manager", &[AS_1_36, "--feature-gates=DRAPrioritizedList=false"]);
        class(env).await;
        let mut wanted = one_device();
        let mut alternative = wanted["devices"]["requests"][0]["exactly"].take();
        alternative["name"] = json!("first");
        wanted["devices"]["requests"][0] = json!({ "name": "r", "firstAvailable": [alternative] });
        let template = json!({ "metadata": { "name": "gpu" }, "spec": { "spec": wanted } });
        make::<ResourceClaimTemplate>(env, template).await;
        make::<Pod>(env, pod("user", from_template(), "ready")).await;
        let message = "PodResourceClaim gpu: template includes a prioritized list of subrequests, \
                       but the feature is disabled";
        has_event(env, "user", "FailedResourceClaimCreation", message).await;
        drop(manager);
        let _manager = env.manager("second-manager", &[]);
        claim_of::<Pod>(env, "user").await;
    });
}

#[test]
fn a_crash_at_any_write_leaves_one_claim_for_each_entry() {
    Env::run("claims-crashes", async |env| {
        class(env).await;
        template(env).await;
        let objects = |name: &str| {
            let mut user = pod(name, from_template(), "ready");
            user["apiVersion"] = json!("v1");
            user["kind"] = json!("Pod");
            user["spec"]["resourceClaims"] = json!([
                { "name": "a", "resourceClaimTemplateName": "gpu" },
                { "name": "b", "resourceClaimTemplateName": "gpu" },
            ]);
            let own = json!({
                "apiVersion": ResourceClaim::RESOURCE.api_version(), "kind": "ResourceClaim",
                "metadata": { "name": format!("{name}-own") }, "spec": one_device(),
            });
            vec![user, own]
        };
        let end = |name: &str, cluster: &Cluster| {
            let user = cluster.object(name)?;
            let statuses = user["status"]["resourceClaimStatuses"].as_array();
            let statuses = statuses.filter(|statuses| statuses.len() == 2).ok_or("no names")?;
            let mut named = Vec::new();
            for status in statuses {
                let claim = status["resourceClaimName"].as_str().unwrap_or_default();
                let annotations = &cluster.object(claim)?["metadata"]["annotations"];
                named.push(annotations["resource.kubernetes.io/pod-claim-name"].clone());
            }
            Ok(json!({ "named": named, "claims": cluster.owned_by(name).len() }))
        };
        let scenario = Scenario {
            controllers: &["resourceclaim-controller"],
            objects: &objects,
            changes: vec![],
            end: &end,
        };
        let writes = survives_every_write(env, &scenario).await;
        assert!(writes >= 3, "two claims and their names: {writes}");
    });
}

#[test]
fn refused_writes_of_claims_are_retried() {
    Env::run("claims-refused", async |env| {
        let faults = env.cluster.sandbox.faults();
        let refusals = [
            Fault::code(500, None),
            Fault::code(409, None),
            Fault::code(429, Some(1)),
            Fault::code(503, None),
            Fault::Cut,
        ];
        for (verb, resource) in [
            ("create", "resourceclaims"),
            ("patch", "resourceclaims/status"),
            ("patch", "resourceclaims"),
            ("delete", "resourceclaims"),
        ] {
            refusals.iter().for_each(|fault| faults.next(1, verb, resource, fault.clone()));
        }
        class(env).await;
        template(env).await;
        // The test's own writes come first, without the manager.
        let owner = make::<Pod>(env, pod("user", from_template(), "exit")).await;
        faults.next(1, "patch", "pods/status", Fault::code(500, None));
        let manager = env.manager("manager", &[]);
        let claim = claim_of::<Pod>(env, "user").await;
        drop(manager);
        eventually(&env.clock, "the device is allocated", || async {
            // Faults hit the test as well.
            let claims = env.client.resource(&ResourceClaim::RESOURCE);
            let finalizer = Patch::Merge(json!({ "metadata": { "finalizers": [FINALIZER] } }));
            let device = json!({ "request": "r", "driver": DRIVER, "pool": POOL, "device": "d0" });
            let status = json!({ "status": {
                "allocation": { "devices": { "results": [device] } },
                "reservedFor": [consumer(&owner)],
            } });
            claims.patch::<Value>(&claim, &finalizer).await.map_err(|e| e.to_string())?;
            let status = Patch::Merge(status);
            let patched = claims.subresource("status").patch::<Value>(&claim, &status).await;
            patched.map(drop).map_err(|e| e.to_string())
        })
        .await;
        for resource in ["resourceclaims/status", "resourceclaims"] {
            refusals.iter().for_each(|fault| faults.next(1, "patch", resource, fault.clone()));
        }
        let _manager = env.manager("second-manager", &[]);
        bind(env, "user").await;
        wait_until_deleted(env, &ResourceClaim::RESOURCE, &claim).await;
        eventually(&env.clock, "every fault has hit", || async {
            let pending = faults.pending();
            if pending.is_empty() { Ok(()) } else { Err(format!("{pending:?}")) }
        })
        .await;
    });
}

/// A slice of devices d0 to d2, with taints of effect NoExecute on those of `tainted`.
pub fn slice(env: &TestCluster, tainted: &[&str]) -> Value {
    let devices: Vec<Value> = ["d0", "d1", "d2"]
        .iter()
        .map(|name| match tainted.contains(name) {
            false => json!({ "name": name }),
            true => {
                let taint = json!({
                    "key": "broken", "effect": "NoExecute", "timeAdded": env.clock.now(),
                });
                json!({ "name": name, "taints": [taint] })
            }
        })
        .collect();
    json!({
        "metadata": { "name": "slice" },
        "spec": {
            "driver": DRIVER, "allNodes": true, "devices": devices,
            "pool": { "name": POOL, "generation": 1, "resourceSliceCount": 1 },
        },
    })
}

pub async fn set_taints(env: &TestCluster, tainted: &[&str]) {
    let devices = json!({ "spec": { "devices": slice(env, tainted)["spec"]["devices"] } });
    let slices = env.client.resource(&ResourceSlice::RESOURCE);
    let key = ObjectKey::cluster("slice");
    slices.patch::<Value>(&key, &Patch::Merge(devices)).await.expect("patch");
}

/// A pod that uses a device by a claim of its own; its claim's name is that of the device.
pub async fn user_of(env: &TestCluster, device: &str, tolerations: Value) {
    let claim = json!({ "metadata": { "name": device }, "spec": one_device() });
    make::<ResourceClaim>(env, claim).await;
    allocate_tolerating(env, &key(device), device, &[], tolerations).await;
    make::<Pod>(env, placed(&format!("on-{device}"), device, "ready")).await;
    is_used_by(env, &key(device), &[&format!("on-{device}")]).await;
}

pub const RULE_GATE: &str = "--feature-gates=DRADeviceTaintRules=true";

#[test]
fn device_taints_evict_the_pods_that_do_not_tolerate_them() {
    let flags = [RULE_GATE, "--runtime-config=resource.k8s.io/v1beta2=true"];
    everywhere_with_gates("device-taints", &flags, async |env| {
        let manager = env.manager("manager", &env.before_1_37(RULE_GATE));
        class(env).await;
        make::<ResourceSlice>(env, slice(env, &[])).await;
        let for_an_hour =
            json!([{ "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 3600 }]);
        user_of(env, "d0", json!([])).await;
        user_of(env, "d1", for_an_hour).await;
        user_of(env, "d2", json!([])).await;

        // A taint of a slice.
        set_taints(env, &["d0", "d1"]).await;
        has_event(env, "on-d0", "DeviceTaintManagerEviction", "Marking for deletion").await;
        wait_until_deleted(env, &Pod::RESOURCE, &key("on-d0")).await;
        // The deletion of the pod that tolerates the taint is cancelled, also by a new manager.
        drop(manager);
        let _manager = env.manager("second-manager", &env.before_1_37(RULE_GATE));
        let rule = |effect: &str| {
            let taint = json!({ "key": "k", "effect": effect, "timeAdded": env.clock.now() });
            json!({
                "metadata": { "name": "rule" },
                "spec": { "deviceSelector": { "driver": DRIVER, "device": "d2" }, "taint": taint },
            })
        };
        let rules = env.client.resource(&DeviceTaintRule::RESOURCE);
        let rule_key = ObjectKey::cluster("rule");
        let condition = async |reason: &str| {
            let found = wait_until_exists(env, &DeviceTaintRule::RESOURCE, &rule_key, |rule| {
                rule["status"]["conditions"][0]["reason"] == reason
            })
            .await;
            let condition = found["status"]["conditions"][0].clone();
            assert_eq!(condition["type"], "EvictionInProgress");
            assert_eq!(condition["status"], "False");
            assert_eq!(condition["observedGeneration"], found["metadata"]["generation"]);
            condition["message"].as_str().unwrap_or_default().to_owned()
        };
        make::<DeviceTaintRule>(env, rule("None")).await;
        assert_eq!(
            condition("NoEffect").await,
            "1 published device selected. 1 allocated device selected. 1 pod would be evicted in 1 \
             namespace if the effect was NoExecute. This information will not be updated again. \
             Recreate the DeviceTaintRule to trigger an update."
        );
        set_taints(env, &[]).await;
        has_event(env, "on-d1", "DeviceTaintManagerEviction", "Cancelling deletion").await;

        // A taint of a rule.
        let spec = json!({ "spec": { "taint": rule("NoExecute")["spec"]["taint"] } });
        rules.patch::<Value>(&rule_key, &Patch::Merge(spec)).await.expect("patch");
        wait_until_deleted(env, &Pod::RESOURCE, &key("on-d2")).await;
        assert_eq!(condition("Completed").await, "1 pod evicted since starting the controller.");
        let tolerating = wait_until_exists(env, &Pod::RESOURCE, &key("on-d1"), |_| true).await;
        assert!(tolerating["metadata"]["deletionTimestamp"].is_null());
        let conditions = tolerating["status"]["conditions"].as_array().cloned();
        assert!(conditions.iter().flatten().all(|c| c["type"] != "DisruptionTarget"));
    });
}

#[test]
fn a_device_taint_evicts_the_pods_that_use_the_device_for_an_extended_resource() {
    everywhere("extended-taint", async |env| {
        let _manager = env.manager("manager", &[]);
        class(env).await;
        make::<ResourceSlice>(env, slice(env, &[])).await;
        make_with_extended_resource(env, placed("before", "", "ready"), "d0").await;
        make_with_extended_resource(env, placed("untainted", "", "ready"), "d2").await;
        set_taints(env, &["d0", "d1"]).await;
        // The status of the last one names its claim when the device has its taint already.
        make_with_extended_resource(env, placed("after", "", "ready"), "d1").await;
        for name in ["before", "after"] {
            has_event(env, name, "DeviceTaintManagerEviction", "Marking for deletion").await;
            wait_until_deleted(env, &Pod::RESOURCE, &key(name)).await;
        }
        let stays = wait_until_exists(env, &Pod::RESOURCE, &key("untainted"), |_| true).await;
        assert!(stays["metadata"]["deletionTimestamp"].is_null(), "{stays}");
    });
}

#[test]
fn a_request_for_the_status_of_pools_is_answered() {
    const GATE: &str = "--feature-gates=DRAResourcePoolStatus=true";
    let flags = [GATE, "--runtime-config=resource.k8s.io/v1alpha3=true"];
    everywhere_with_gates("pool-status", &flags, async |env| {
        let _manager = env.manager("manager", &[GATE]);
        class(env).await;
        make::<ResourceSlice>(env, slice(env, &[])).await;
        let claim = json!({ "metadata": { "name": "d0" }, "spec": one_device() });
        make::<ResourceClaim>(env, claim).await;
        allocate(env, &key("d0"), "d0", &[]).await;
        let answer = async |name: &str, driver: &str| {
            let request = json!({ "metadata": { "name": name }, "spec": { "driver": driver } });
            make::<ResourcePoolStatusRequest>(env, request).await;
            let (resource, key) = (&ResourcePoolStatusRequest::RESOURCE, ObjectKey::cluster(name));
            let request = wait_until_exists(env, resource, &key, |request| {
                request["status"]["poolCount"].is_u64()
            })
            .await;
            request["status"].clone()
        };
        let mut status = json!(null);
        // The manager may not have seen the allocation yet.
        for attempt in 0..100 {
            status = answer(&format!("request-{attempt}"), DRIVER).await;
            if status["pools"][0]["allocatedDevices"] == 1 {
                break;
            }
        }
        assert_eq!(
            status["pools"],
            json!([{
                "driver": DRIVER, "poolName": POOL, "generation": 1, "resourceSliceCount": 1,
                "totalDevices": 3, "allocatedDevices": 1, "availableDevices": 2,
                "unavailableDevices": 0,
            }])
        );
        assert_eq!(status["conditions"][0]["type"], "Complete");
        assert_eq!(status["conditions"][0]["message"], "Calculated status for 1 pools");
        assert_eq!(answer("none", "none.example.com").await["poolCount"], 0);

        // The controller waits for a pool that lacks slices, and then reports it as incomplete.
        let mut part = slice(env, &[]);
        part["metadata"]["name"] = json!("part");
        part["spec"]["driver"] = json!("part.example.com");
        part["spec"]["pool"]["resourceSliceCount"] = json!(2);
        make::<ResourceSlice>(env, part).await;
        for attempt in 0..100 {
            status = answer(&format!("part-{attempt}"), "part.example.com").await;
            if status["poolCount"] == 1 {
                break;
            }
        }
        assert_eq!(
            status["pools"][0]["validationError"],
            "pool part.example.com/pool-a is incomplete: observed 1/2 slices at generation 1"
        );
    });
}

pub const GROUP_GATES: &str = "--feature-gates=GenericWorkload=true,DRAWorkloadResourceClaims=true";
pub const GROUPS_SERVED: &str = "--runtime-config=scheduling.k8s.io/v1alpha2=true";

/// A PodGroup with a claim for all its pods.
pub async fn group_with_claim(env: &TestCluster) -> Value {
    let group = json!({
        "metadata": { "name": "group" },
        "spec": { "schedulingPolicy": { "basic": {} }, "resourceClaims": [from_template()] },
    });
    make::<PodGroup>(env, group).await
}

/// A pod of the group, on a node.
pub async fn member(env: &TestCluster, name: &str) {
    let mut member = pod(name, from_template(), "ready");
    member["spec"]["schedulingGroup"] = json!({ "podGroupName": "group" });
    member["spec"]["nodeName"] = json!("node-0");
    make::<Pod>(env, member).await;
}

#[test]
fn the_pods_of_a_group_share_a_claim() {
    everywhere_with_gates("group-claims", &[GROUP_GATES, GROUPS_SERVED], async |env| {
        let _manager = env.manager("manager", &[GROUP_GATES]);
        class(env).await;
        template(env).await;
        let group = group_with_claim(env).await;
        member(env, "member").await;
        let shared = claim_of::<PodGroup>(env, "group").await;
        assert_eq!(claim_of::<Pod>(env, "member").await, shared);
        let claims = claims(env).await;
        assert_eq!(claims.len(), 1);
        let owner = &claims[0]["metadata"]["ownerReferences"][0];
        assert_eq!((&owner["kind"], &owner["name"]), (&json!("PodGroup"), &json!("group")));

        allocate(env, &shared, "d0", &[]).await;
        let reserved = is_used_by(env, &shared, &["group"]).await;
        assert_eq!(
            reserved["status"]["reservedFor"],
            json!([{
                "apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "group",
                "uid": group["metadata"]["uid"],
            }])
        );
        // The claim is released when the group is deleted, and then has no owner.
        env.client.delete::<Pod>(&key("member"), Delete::new().grace_period(0)).await.unwrap();
        wait_until_deleted(env, &Pod::RESOURCE, &key("member")).await;
        env.client.delete::<PodGroup>(&key("group"), Delete::new()).await.expect("delete");
        wait_until_deleted(env, &ResourceClaim::RESOURCE, &shared).await;
    });
}
