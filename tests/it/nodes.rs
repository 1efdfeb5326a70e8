//! The node controllers: a node that stops reporting and recovers, and the pod CIDRs of nodes.

use std::time::Duration;

use kube_controller_manager::client::{Delete, Patch};
use kube_controller_manager::objects::{Node, ObjectKey, Pod, Resource, ResourceType};
use sandbox::faults::Fault;
use sandbox::nodes::NodeOptions;
use serde_json::{Value, json};

use crate::env::*;
use crate::kinds::{EVENTS, wait_until_deleted, wait_until_exists};

pub const LEASES: ResourceType =
    ResourceType::fixed("coordination.k8s.io", "v1", "Lease", "leases", true);
pub const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

/// Nodes that renew their leases far more often than the grace period requires.
pub fn lively() -> NodeOptions {
    NodeOptions { heartbeat: Duration::from_secs(1), ..quick_nodes() }
}

pub const QUICK: [&str; 4] = [
    // All nodes that stop reporting together are found in one pass.
    "--node-monitor-period=2s",
    "--node-monitor-grace-period=10s",
    "--node-startup-grace-period=10s",
    "--node-eviction-rate=10",
];

/// Null before it exists.
pub async fn node(env: &TestCluster, name: &str) -> Value {
    let nodes = env.client.resource(&Node::RESOURCE);
    match nodes.get(&ObjectKey::cluster(name)).await {
        Err(error) if error.is_not_found() => Value::Null,
        found => found.expect("get"),
    }
}

pub async fn pod(env: &TestCluster, name: &str) -> Value {
    let pods = env.client.resource(&Pod::RESOURCE);
    pods.get(&ObjectKey::new("default", name)).await.expect("get")
}

/// `key:effect` of each taint.
pub fn taints(node: &Value) -> Vec<String> {
    let taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut taints: Vec<String> = taints
        .iter()
        .map(|taint| format!("{}:{}", text(&taint["key"]), text(&taint["effect"])))
        .collect();
    taints.sort();
    taints
}

pub fn condition(object: &Value, name: &str) -> Value {
    let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.into_iter().find(|condition| condition["type"] == name).unwrap_or_default()
}

/// A pod on a node; it tolerates an unreachable node for a number of seconds, or for ever.
pub fn tolerant(name: &str, node: &str, seconds: Option<i64>) -> Value {
    let toleration = |key: &str| {
        let mut toleration = json!({ "key": key, "operator": "Exists", "effect": "NoExecute" });
        if let Some(seconds) = seconds {
            toleration["tolerationSeconds"] = seconds.into();
        }
        toleration
    };
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": "default" },
        "spec": {
            "nodeName": node,
            "tolerations": [toleration(UNREACHABLE), toleration("node.kubernetes.io/not-ready")],
            "containers": [{ "name": "main", "image": "x:1" }],
        },
    })
}

/// Writes as a kubelet does: its lease, and the condition Ready.
async fn live(env: &TestCluster, name: &str) {
    says(env, name, "True").await;
}

/// Writes as a kubelet does: its lease, and the status of the condition Ready.
pub async fn says(env: &TestCluster, name: &str, ready: &str) {
    let now = env.clock.now();
    let lease = Patch::Merge(json!({ "spec": { "renewTime": now.to_micro_string() } }));
    let key = ObjectKey::new("kube-node-lease", name);
    env.client.resource(&LEASES).patch::<Value>(&key, &lease).await.expect("patch");
    let condition = json!({
        "type": "Ready", "status": ready, "reason": "Kubelet",
        "lastHeartbeatTime": now, "lastTransitionTime": now,
    });
    let status = Patch::StrategicMerge(json!({ "status": { "conditions": [condition] } }));
    let nodes = env.client.resource(&Node::RESOURCE).subresource("status");
    nodes.patch::<Value>(&ObjectKey::cluster(name), &status).await.expect("patch");
}

/// A stand-in that was marked by mistake, for instance by a manager that had not seen its leases.
#[test]
fn a_node_that_lives_reports_that_it_is_ready_after_it_was_marked_as_unreachable() {
    everywhere_with("nodes-marked", lively(), async |env| {
        let lease = ObjectKey::new("kube-node-lease", "node-0");
        wait_until_exists(env, &LEASES, &lease, |_| true).await;
        says(env, "node-0", "Unknown").await;
        eventually(&env.clock, "the node is ready", || async {
            let ready = condition(&node(env, "node-0").await, "Ready");
            if ready["status"] == "True" { Ok(()) } else { Err(ready.to_string()) }
        })
        .await;
    });
}

#[test]
fn a_silent_node_is_tainted_and_its_pods_leave_until_it_comes_back() {
    everywhere_with("nodes-silent", lively(), async |env| {
        let clock = &env.clock;
        let _manager = env.manager("manager", &QUICK);
        has_event(env, "node-0", "RegisteredNode", "Registered Node node-0 in Controller").await;
        for (name, seconds) in [("leaves", Some(1)), ("waits", Some(3600)), ("stays", None)] {
            create(&env.client, tolerant(name, "node-0", seconds)).await;
        }
        create(&env.client, tolerant("elsewhere", "node-1", Some(1))).await;
        eventually(clock, "the pods are ready", || async {
            for name in ["leaves", "waits", "stays", "elsewhere"] {
                if condition(&pod(env, name).await, "Ready")["status"] != "True" {
                    return Err(name.to_owned());
                }
            }
            Ok(())
        })
        .await;
        env.steering.kill("node-0");
        // Each write meets both faults once.
        let writes = [
            ("patch", "nodes/status"),
            ("patch", "nodes"),
            ("patch", "pods/status"),
            ("delete", "pods"),
        ];
        if let Some(faults) = &env.faults {
            for (verb, resource) in writes {
                for code in [500, 409] {
                    faults.next(1, verb, resource, Fault::code(code, None));
                }
            }
        }

        let dead = eventually(clock, "the node is unreachable", || async {
            let node = node(env, "node-0").await;
            let expected =
                [format!("{UNREACHABLE}:NoExecute"), format!("{UNREACHABLE}:NoSchedule")];
            if taints(&node) == expected { Ok(node) } else { Err(format!("{node:#}")) }
        })
        .await;
        for name in ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"] {
            let condition = condition(&dead, name);
            assert_eq!(condition["status"], "Unknown", "{condition}");
            assert_eq!(condition["reason"], "NodeStatusUnknown");
            assert_eq!(condition["message"], "Kubelet stopped posting node status.");
        }
        for taint in dead["spec"]["taints"].as_array().unwrap() {
            assert!(taint["timeAdded"].is_string(), "{taint}");
        }
        let labels = &dead["metadata"]["labels"];
        assert_eq!(labels["beta.kubernetes.io/os"], labels["kubernetes.io/os"]);
        let message = "Node node-0 status is now: NodeNotReady";
        has_event(env, "node-0", "NodeNotReady", message).await;

        eventually(clock, "a pod is deleted when its time has passed", || async {
            let pod = pod(env, "leaves").await;
            if pod["metadata"]["deletionTimestamp"].is_string() {
                return Ok(());
            }
            Err(format!("{pod:#}"))
        })
        .await;
        let leaves = pod(env, "leaves").await;
        let target = condition(&leaves, "DisruptionTarget");
        assert_eq!(
            [&target["status"], &target["reason"], &target["message"]],
            ["True", "DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint"]
        );
        let message = "Marking for deletion Pod default/leaves";
        has_event(env, "leaves", "TaintManagerEviction", message).await;
        for name in ["leaves", "waits", "stays"] {
            has_event(env, name, "NodeNotReady", "Node is not ready").await;
            eventually(clock, "the pod is not ready", || async {
                let ready = condition(&pod(env, name).await, "Ready");
                if ready["status"] == "False" { Ok(()) } else { Err(format!("{name}: {ready}")) }
            })
            .await;
        }

        eventually(clock, "the taints go when the node is ready", || async {
            live(env, "node-0").await;
            let node = node(env, "node-0").await;
            if taints(&node).is_empty() { Ok(()) } else { Err(format!("{node:#}")) }
        })
        .await;
        let message = "Cancelling deletion of Pod default/waits";
        has_event(env, "waits", "TaintManagerEviction", message).await;
        for name in ["waits", "stays", "elsewhere"] {
            assert!(pod(env, name).await["metadata"]["deletionTimestamp"].is_null(), "{name}");
        }
        if let Some(faults) = &env.faults {
            assert!(faults.pending().is_empty(), "{:?}", faults.pending());
        }
        let healthy = node(env, "node-1").await;
        assert!(taints(&healthy).is_empty(), "{healthy:#}");
        assert_eq!(condition(&healthy, "Ready")["status"], "True");
        let events = env.client.resource(&EVENTS);
        let events = events.list::<Value>(None, &Default::default()).await.expect("list").items;
        let marked = events.iter().filter(|event| {
            event["message"].as_str().is_some_and(|text| text.starts_with("Marking for deletion"))
        });
        let counts: Vec<&Value> = marked.map(|event| &event["count"]).collect();
        assert_eq!(counts, [&json!(1)], "one pod is evicted, once");
    });
}

#[test]
fn a_manager_that_starts_after_an_outage_gives_nodes_their_grace_period() {
    everywhere_with("nodes-outage", lively(), async |env| {
        let ago = env.clock.now() - Duration::from_secs(3600);
        let (leases, key) =
            (env.client.resource(&LEASES), ObjectKey::new("kube-node-lease", "node-0"));
        eventually(&env.clock, "the node has a lease", || async {
            leases.get::<Value>(&key).await.map_err(|error| error.to_string())
        })
        .await;
        // The node last reported an hour ago.
        env.steering.kill("node-0");
        let lease = Patch::Merge(json!({ "spec": { "renewTime": ago.to_micro_string() } }));
        leases.patch::<Value>(&key, &lease).await.expect("patch");
        let condition = json!({
            "type": "Ready", "status": "True", "lastHeartbeatTime": ago, "lastTransitionTime": ago,
        });
        let status = Patch::StrategicMerge(json!({ "status": { "conditions": [condition] } }));
        let nodes = env.client.resource(&Node::RESOURCE).subresource("status");
        nodes.patch::<Value>(&ObjectKey::cluster("node-0"), &status).await.expect("patch");

        let start = env.clock.monotonic();
        let _manager = env.manager("manager", &QUICK);
        eventually(&env.clock, "the node is unreachable", || async {
            let node = node(env, "node-0").await;
            match taints(&node).len() {
                2 => Ok(()),
                _ => Err(format!("{node:#}")),
            }
        })
        .await;
        let waited = env.clock.monotonic() - start;
        assert!(waited >= Duration::from_secs(10), "{waited:?}");
    });
}

#[test]
fn a_silent_cluster_is_left_alone() {
    everywhere_with("nodes-all-silent", lively(), async |env| {
        let clock = &env.clock;
        let _manager = env.manager("manager", &QUICK);
        has_event(env, "node-2", "RegisteredNode", "Registered Node node-2 in Controller").await;
        create(&env.client, tolerant("kept", "node-0", Some(0))).await;
        let names = ["node-0", "node-1", "node-2"];
        names.iter().for_each(|name| env.steering.kill(name));
        // The NoSchedule taints follow the conditions, and come after the pass that stopped
        // evictions.
        eventually(clock, "no node is evicted", || async {
            for name in names {
                let node = node(env, name).await;
                if taints(&node) != [format!("{UNREACHABLE}:NoSchedule")] {
                    return Err(format!("{node:#}"));
                }
            }
            Ok(())
        })
        .await;
        eventually(clock, "one node comes back", || async {
            live(env, "node-1").await;
            let node = node(env, "node-1").await;
            if taints(&node).is_empty() { Ok(()) } else { Err(format!("{node:#}")) }
        })
        .await;
        // Evictions resume for the others, once these are silent for another grace period.
        eventually(clock, "the others are evicted", || async {
            live(env, "node-1").await;
            let found = env.client.get::<Pod>(&ObjectKey::new("default", "kept")).await;
            match found {
                Ok(pod) if !pod.meta.is_being_deleted() => Err("not yet".to_owned()),
                _ => Ok(()),
            }
        })
        .await;
    });
}

fn cidrs(node: &Value) -> Vec<String> {
    let cidrs = node["spec"]["podCIDRs"].as_array().cloned().unwrap_or_default();
    cidrs.iter().map(|cidr| cidr.as_str().unwrap_or_default().to_owned()).collect()
}

#[test]
fn nodes_get_ranges_and_leave_them_to_others() {
    everywhere_with("nodes-ranges", lively(), async |env| {
        let clock = &env.clock;
        // Four ranges of IPv4, of which services take one.
        let flags = [
            "--allocate-node-cidrs",
            "--cluster-cidr=10.40.0.0/22,fd40::/60",
            "--node-cidr-mask-size-ipv4=24",
            "--service-cluster-ip-range=10.40.0.0/24,fd50::/112",
        ];
        let manager = env.manager("manager", &flags);
        let assigned = async |name: &str| {
            eventually(clock, &format!("{name} has ranges"), || async {
                let node = node(env, name).await;
                let cidrs = cidrs(&node);
                let is_first = |cidr: &&String| node["spec"]["podCIDR"] == **cidr;
                match cidrs.len() {
                    2 if cidrs.first().filter(is_first).is_some() => Ok(cidrs),
                    _ => Err(format!("{node:#}")),
                }
            })
            .await
        };
        let mut given = Vec::new();
        for name in ["node-0", "node-1", "node-2"] {
            given.push(assigned(name).await);
        }
        let mut all: Vec<&str> = given.iter().map(|cidrs| cidrs[0].as_str()).collect();
        all.sort_unstable();
        assert_eq!(all, ["10.40.1.0/24", "10.40.2.0/24", "10.40.3.0/24"]);
        assert!(given.iter().all(|cidrs| cidrs[1].starts_with("fd40:")), "{given:?}");

        let body = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "extra" } });
        env.client.resource(&Node::RESOURCE).create::<Value>("", &body).await.expect("create");
        let message = "Node extra status is now: CIDRNotAvailable";
        has_event(env, "extra", "CIDRNotAvailable", message).await;
        env.steering.kill("node-2");
        let gone = ObjectKey::cluster("node-2");
        env.client.delete::<Node>(&gone, Delete::new()).await.expect("delete");
        let reused = assigned("extra").await;
        assert_eq!(reused[0], given[2][0]);

        // A new manager knows all ranges from the nodes.
        manager.stop(clock, PATIENCE).await.expect("it stops");
        let key = ObjectKey::cluster("extra");
        env.client.delete::<Node>(&key, Delete::new()).await.expect("delete");
        let _manager = env.manager("second", &flags);
        let mut body = body.clone();
        body["metadata"]["name"] = "late".into();
        env.client.resource(&Node::RESOURCE).create::<Value>("", &body).await.expect("create");
        assert_eq!(assigned("late").await[0], given[2][0]);
    });
}

#[test]
fn a_range_that_cannot_be_written_is_an_event_and_is_tried_again() {
    Env::run("nodes-unassigned", async |env| {
        let faults = env.cluster.sandbox.faults();
        let flags = [
            "--controllers=node-ipam-controller",
            "--allocate-node-cidrs",
            "--cluster-cidr=10.40.0.0/22",
        ];
        let _manager = env.manager("manager", &flags);
        let ranges = async |name: &str| {
            eventually(&env.clock, &format!("{name} has a range"), || async {
                let node = node(env, name).await;
                cidrs(&node).pop().ok_or_else(|| format!("{node:#}"))
            })
            .await
        };
        let mut given = Vec::new();
        for name in ["node-0", "node-1", "node-2"] {
            given.push(ranges(name).await);
            // The stand-in's own patch would use up a fault.
            eventually(&env.clock, &format!("{name} has no taint"), || async {
                let left = taints(&node(env, name).await);
                if left.is_empty() { Ok(()) } else { Err(left.concat()) }
            })
            .await;
        }
        // All attempts of the first sync.
        faults.next(3, "patch", "nodes", Fault::code(500, None));
        env.steering.kill("extra");
        let body = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "extra" } });
        env.client.resource(&Node::RESOURCE).create::<Value>("", &body).await.expect("create");
        let message = "Node extra status is now: CIDRAssignmentFailed";
        has_event(env, "extra", "CIDRAssignmentFailed", message).await;
        assert!(!given.contains(&ranges("extra").await));
    });
}

#[test]
fn a_range_that_the_flags_exclude_is_left_alone() {
    everywhere_with("nodes-excluded", lively(), async |env| {
        let body = json!({
            "apiVersion": "v1", "kind": "Node", "metadata": { "name": "odd" },
            "spec": { "podCIDR": "10.99.0.0/24", "podCIDRs": ["10.99.0.0/24"] },
        });
        env.client.resource(&Node::RESOURCE).create::<Value>("", &body).await.expect("create");
        let flags = ["--allocate-node-cidrs", "--cluster-cidr=10.40.0.0/16"];
        let _manager = env.manager("manager", &flags);
        let message = "The pod CIDR 10.99.0.0/24 is outside of --cluster-cidr, so it is ignored";
        has_event(env, "odd", "CIDROutOfRange", message).await;
        // All other nodes and controllers are served.
        for name in ["node-0", "node-1", "node-2"] {
            eventually(&env.clock, "the node has a range", || async {
                let node = node(env, name).await;
                let is_own = |cidr: &String| cidr.starts_with("10.40.");
                if cidrs(&node).iter().any(is_own) { Ok(()) } else { Err(format!("{node:#}")) }
            })
            .await;
        }
        create(&env.client, deployment("web", 1, "web:1")).await;
        rolled_out(&env.client, &env.clock, "web").await;
        assert_eq!(cidrs(&node(env, "odd").await), ["10.99.0.0/24"]);
    });
}

#[test]
fn an_eviction_that_is_refused_waits_for_the_taints_to_change() {
    Env::run("nodes-refused", async |env| {
        let faults = env.faults.as_ref().expect("the sandbox has faults");
        let manager = env.manager("manager", &[]);
        has_event(env, "node-0", "RegisteredNode", "Registered Node node-0 in Controller").await;
        create(&env.client, tolerant("refused", "node-0", None)).await;
        let taint = async |key: &str| {
            let taints = json!([{ "key": key, "effect": "NoExecute" }]);
            let patch = Patch::Merge(json!({ "spec": { "taints": taints } }));
            env.client.patch::<Node>(&ObjectKey::cluster("node-0"), &patch).await.expect("patch");
        };
        faults.next(usize::MAX, "delete", "pods", Fault::code(403, None));
        taint("example.com/out").await;
        eventually(&env.clock, "the manager gives up", || async {
            let log = std::fs::read_to_string(&manager.log).unwrap_or_default();
            let is_over = log.contains("Error syncing default/refused, not retried");
            if is_over { Ok(()) } else { Err(log) }
        })
        .await;
        assert_eq!(faults.count("delete", "pods"), 5);
        faults.clear();

        create(&env.client, tolerant("later", "node-0", None)).await;
        let later = ObjectKey::new("default", "later");
        wait_until_deleted(env, &Pod::RESOURCE, &later).await;
        assert!(pod(env, "refused").await["metadata"]["deletionTimestamp"].is_null());
        taint("example.com/out-for-long").await;
        wait_until_deleted(env, &Pod::RESOURCE, &ObjectKey::new("default", "refused")).await;
    });
}

#[test]
fn an_eviction_that_waits_follows_the_tolerations_of_its_pod() {
    everywhere_with("nodes-tolerations", lively(), async |env| {
        let _manager = env.manager("manager", &["--controllers=taint-eviction-controller"]);
        let key = "example.com/out";
        let tolerates = |name: &str, seconds: i64| {
            let mut pod = tolerant(name, "node-0", None);
            pod["spec"]["tolerations"] = json!([{
                "key": key, "operator": "Exists", "effect": "NoExecute",
                "tolerationSeconds": seconds,
            }]);
            pod
        };
        let out = ObjectKey::cluster("node-0");
        eventually(&env.clock, "the node has registered", || async {
            let found = env.client.get::<Node>(&out).await;
            found.map(drop).map_err(|error| error.to_string())
        })
        .await;
        let pods =
            [("longer", 600), ("leaves", 20), ("shorter", 3600), ("endless", 18_446_744_074)];
        for (name, seconds) in pods {
            create(&env.client, tolerates(name, seconds)).await;
        }
        create(&env.client, tolerant("first", "node-0", None)).await;
        let taints = json!([{ "key": key, "effect": "NoExecute" }]);
        let patch = Patch::Merge(json!({ "spec": { "taints": taints } }));
        env.client.patch::<Node>(&out, &patch).await.expect("patch");
        // One pass plans for all.
        let text = "Marking for deletion Pod default/first";
        has_event(env, "first", "TaintManagerEviction", text).await;
        for (name, seconds) in [("longer", 3600), ("shorter", 1)] {
            let pod = ObjectKey::new("default", name);
            let modified = env.client.modify::<Pod>(&pod, |live| {
                let tolerations = live["spec"]["tolerations"].as_array_mut().expect("a list");
                let own = tolerations.iter_mut().find(|toleration| toleration["key"] == key);
                own.expect("its own")["tolerationSeconds"] = seconds.into();
                true
            });
            modified.await.expect("modified");
        }
        let text = "Cancelling deletion of Pod default/longer";
        has_event(env, "longer", "TaintManagerEviction", text).await;
        for name in ["shorter", "leaves"] {
            wait_until_deleted(env, &Pod::RESOURCE, &ObjectKey::new("default", name)).await;
        }
        for name in ["longer", "endless"] {
            assert!(pod(env, name).await["metadata"]["deletionTimestamp"].is_null(), "{name}");
        }
    });
}

#[test]
fn an_eviction_that_fails_waits_for_a_longer_toleration() {
    Env::run("nodes-postponed", async |env| {
        let faults = env.faults.as_ref().expect("the sandbox has faults");
        let _manager = env.manager("manager", &["--controllers=taint-eviction-controller"]);
        let out = ObjectKey::cluster("node-0");
        eventually(&env.clock, "the node has registered", || async {
            let found = env.client.get::<Node>(&out).await;
            found.map(drop).map_err(|error| error.to_string())
        })
        .await;
        let key = "example.com/out";
        let mut lenient = tolerant("lenient", "node-0", None);
        lenient["spec"]["tolerations"] = json!([{
            "key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1,
        }]);
        create(&env.client, lenient).await;
        faults.next(usize::MAX, "delete", "pods", Fault::code(503, None));
        let taints = json!([{ "key": key, "effect": "NoExecute" }]);
        let patch = Patch::Merge(json!({ "spec": { "taints": taints } }));
        env.client.patch::<Node>(&out, &patch).await.expect("patch");
        has_event(
            env,
            "lenient",
            "TaintManagerEviction",
            "Marking for deletion Pod default/lenient",
        )
        .await;
        eventually(&env.clock, "the eviction has failed", || async {
            let count = faults.count("delete", "pods");
            if count > 0 { Ok(()) } else { Err(count.to_string()) }
        })
        .await;
        let lenient = ObjectKey::new("default", "lenient");
        let modified = env.client.modify::<Pod>(&lenient, |live| {
            let tolerations = live["spec"]["tolerations"].as_array_mut().expect("a list");
            let own = tolerations.iter_mut().find(|toleration| toleration["key"] == key);
            own.expect("its own")["tolerationSeconds"] = 3600.into();
            true
        });
        modified.await.expect("modified");
        let text = "Cancelling deletion of Pod default/lenient";
        has_event(env, "lenient", "TaintManagerEviction", text).await;
        faults.clear();
        // The controller evicts others.
        create(&env.client, tolerant("leaves", "node-0", None)).await;
        wait_until_deleted(env, &Pod::RESOURCE, &ObjectKey::new("default", "leaves")).await;
        assert!(pod(env, "lenient").await["metadata"]["deletionTimestamp"].is_null());
    });
}

/// A kubelet that removes the first taint of its node keeps those that others have set before.
#[test]
fn the_sandbox_kubelet_removes_its_own_taint_alone() {
    let one = NodeOptions { count: 1, ..lively() };
    Env::run_with_nodes("kubelet-taints", one, async |env| {
        let (client, faults) = (&env.client, env.cluster.sandbox.faults());
        let key = ObjectKey::cluster("node-0");
        let taints = async || {
            let node: Value =
                client.resource(&Node::RESOURCE).get(&key).await.map_err(|e| e.to_string())?;
            let taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
            Ok::<_, String>(taints.iter().map(|taint| taint["key"].clone()).collect::<Vec<_>>())
        };
        let are = async |expected: &[&str]| {
            eventually(&env.clock, &format!("the taints are {expected:?}"), || async {
                let found = taints().await?;
                if found == expected { Ok(()) } else { Err(format!("{found:?}")) }
            })
            .await;
        };
        are(&[]).await;
        faults.next(1, "update", "nodes", Fault::Hold);
        client.delete::<Node>(&key, Delete::new()).await.expect("delete");
        are(&["node.kubernetes.io/not-ready"]).await;
        eventually(&env.clock, "its removal is under way", || async {
            if faults.pending().is_empty() { Ok(()) } else { Err("no write".to_owned()) }
        })
        .await;
        let modified = client.modify::<Node>(&key, |live| {
            let taints = live["spec"]["taints"].as_array_mut().expect("a list");
            taints.push(json!({ "key": "example.com/out", "effect": "NoSchedule" }));
            true
        });
        modified.await.expect("modified");
        faults.clear();
        are(&["example.com/out"]).await;
    });
}

/// A conflict need not come from a change of the pod, which an event would follow.
#[test]
fn the_sandbox_kubelet_retries_after_conflicts() {
    Env::run("kubelet-conflicts", async |env| {
        let faults = env.cluster.sandbox.faults();
        let conflicts = |verb, resource| faults.next(3, verb, resource, Fault::code(409, None));
        conflicts("patch", "pods/status");
        let web = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "web" },
            "spec": { "containers": [{ "name": "web", "image": "web:1" }] },
        });
        create(&env.client, web).await;
        eventually(&env.clock, "the pod runs", || async {
            let status = pod(env, "web").await["status"].take();
            if status["phase"] == "Running" { Ok(()) } else { Err(status.to_string()) }
        })
        .await;
        env.steering.keep("web", true);
        let key = ObjectKey::new("default", "web");
        env.client.delete::<Pod>(&key, Delete::new()).await.expect("delete");
        conflicts("delete", "pods");
        env.steering.keep("web", false);
        wait_until_deleted(env, &Pod::RESOURCE, &key).await;
    });
}
